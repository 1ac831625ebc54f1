//! Runs a [`Load`]: one thread a CPU, each with its own connections, clock and counts; nothing is shared but
//! a flag to stop.

mod conn;
mod h1;
mod h2;
mod worker;

use crate::load::Load;
use crate::record::{Record, Sample, ThreadUse};
use crate::{Error, clock};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier, mpsc};
use std::time::Duration;

/// How often threads report, ns.
pub const TICK: u64 = 100_000_000;

/// A finished run.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The counts of all threads.
    pub record: Record,
    /// What each thread used.
    pub threads: Vec<ThreadUse>,
    /// All samples in order of time.
    pub samples: Vec<Sample>,
    /// Time that was measured: warm-up and waiting for the last answers not counted.
    pub measured: Duration,
    /// Whether somebody stopped it early.
    pub interrupted: bool,
    /// What went wrong first, in words.
    pub first_error: Option<String>,
    /// Head of the last answer to the first request, in HTTP/1; empty if it was longer than 2 kB.
    pub head: Vec<u8>,
}

impl Outcome {
    /// Requests answered a second.
    pub fn rate(&self) -> f64 {
        self.record.in_time as f64 / self.measured.as_secs_f64().max(1e-9)
    }

    /// CPU time of this program's threads per answer, ns.
    pub fn client_cpu_per_request(&self) -> f64 {
        let cpu: u64 = self.threads.iter().map(|t| t.cpu_time).sum();
        cpu as f64 / self.record.in_time.max(1) as f64
    }
}

/// What a thread gives back.
pub(crate) struct ThreadResult {
    pub record: Record,
    pub used: ThreadUse,
    pub measured: u64,
    pub first_error: Option<String>,
    pub head: Vec<u8>,
}

/// Times of a run that all threads share, ns of the monotonic clock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Times {
    pub start: u64,
    pub from: u64,
    pub end: u64,
}

/// Runs to the end. `tick` gets the samples as they come, some ten times a second, and gives `false` to stop
/// early; what was measured until then is the outcome.
///
/// # Errors
/// This machine has no room for the sockets or threads.
pub fn run(load: &Load, mut tick: impl FnMut(&[Sample]) -> bool) -> Result<Outcome, Error> {
    let threads = load.cpus.len().max(1).min(load.connections);
    if load.connections == 0 {
        return Err(Error::Usage("0 connections send nothing".into()));
    }
    let room = forebay_sys::limits::raise_descriptors();
    if (load.connections as u64).saturating_add(64) > room {
        return Err(Error::Usage(format!(
            "{} connections need more descriptors than the {room} that this process may have (ulimit -n)",
            load.connections
        )));
    }
    let stop = Arc::new(AtomicBool::new(false));
    let barrier = Barrier::new(threads + 1);
    let times = std::sync::OnceLock::new();
    let (sender, samples) = mpsc::channel();
    let mut outcome = Outcome::default();
    let results = std::thread::scope(|scope| {
        let mut handles = Vec::new();
        for index in 0..threads {
            let (stop, sender) = (Arc::clone(&stop), sender.clone());
            let (barrier, times) = (&barrier, &times);
            let builder = std::thread::Builder::new().name(format!("bench {index}"));
            let handle = builder.spawn_scoped(scope, move || {
                let cpu = load.cpus.get(index).copied();
                if let Some(cpu) = cpu {
                    // Without the right to be there the run is worse, not wrong.
                    let _ = forebay_sys::affinity::pin_current_thread(&[cpu]);
                }
                let made = worker::Worker::new(load, index, threads, sender);
                barrier.wait();
                barrier.wait();
                let times = times.get().copied().unwrap_or(Times { start: 0, from: 0, end: 0 });
                let mut result = made?.run(times, &stop)?;
                result.used.cpu = cpu;
                Ok::<ThreadResult, Error>(result)
            });
            handles.push(handle.map_err(Error::io("a thread"))?);
        }
        drop(sender);
        barrier.wait();
        let start = clock();
        let from = start + load.warmup.as_nanos() as u64;
        let end = match load.stop {
            crate::load::Stop::After(time) | crate::load::Stop::Count(_, Some(time)) => {
                from + time.as_nanos() as u64
            }
            crate::load::Stop::Count(_, None) => u64::MAX / 2,
        };
        let _ = times.set(Times { start, from, end });
        barrier.wait();
        let mut new = Vec::new();
        loop {
            match samples.recv_timeout(Duration::from_nanos(TICK)) {
                Ok(sample) => {
                    new.push(sample);
                    new.extend(samples.try_iter());
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
            if !tick(&new) && !outcome.interrupted {
                outcome.interrupted = true;
                stop.store(true, Ordering::Relaxed);
            }
            outcome.samples.append(&mut new);
        }
        let ended =
            handles.into_iter().map(|h| h.join().map_err(|_| Error::Usage("a thread panicked".into()))?);
        ended.collect::<Result<Vec<_>, Error>>()
    })?;
    let mut measured = 0;
    for result in results {
        outcome.record.merge(&result.record);
        outcome.threads.push(result.used);
        measured = measured.max(result.measured);
        outcome.first_error = outcome.first_error.take().or(result.first_error);
        if outcome.head.is_empty() {
            outcome.head = result.head;
        }
    }
    outcome.measured = Duration::from_nanos(measured);
    outcome.samples.sort_by_key(|s| s.at);
    Ok(outcome)
}
