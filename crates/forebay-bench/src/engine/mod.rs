//! Runs a [`Load`]: one thread a CPU, each with its own connections, clock and counts; nothing is shared but
//! a flag to stop.
//!
//! `worker.rs` is the loop of a thread over an epoll set of its own, `context.rs` its state, `timing.rs` the phases of a run,
//! `supply.rs` the requests, `transport.rs` plain bytes, TLS, or content that is dropped in the kernel (MSG_TRUNC). `conn.rs` is a slot
//! for one connection after another; `http.rs`, `h1.rs`, `h2.rs` and `h3.rs` read the answers. `quic.rs` has the sockets of HTTP/3 over
//! the client side of `forebay-net/src/quic/client.rs`. Requests are encoded before the run, nothing is allocated for a request, and a
//! head that comes again is compared instead of parsed (`known_head.rs`).

mod conn;
mod context;
mod flight;
mod h1;
mod h2;
mod h3;
mod http;
mod known_head;
mod pool;
mod quic;
mod supply;
mod timing;
mod transport;
mod usage;
mod worker;

pub(crate) use context::DISTRUST;
pub(crate) use timing::TICK;

use crate::load::Load;
use crate::record::{Record, Sample, ThreadUse};
use crate::{Error, clock};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Barrier, OnceLock};
use std::time::Duration;
use timing::Times;
use worker::{ThreadResult, Worker};

/// A finished run.
#[derive(Debug, Default)]
pub struct Outcome {
    /// The counts of all threads.
    pub record: Record,
    /// CPU time and waiting time of each thread.
    pub threads: Vec<ThreadUse>,
    /// All samples in order of time.
    pub samples: Vec<Sample>,
    /// Time that was measured: warm-up and waiting for the last answers not counted.
    pub measured: Duration,
    /// The user stopped it early.
    pub interrupted: bool,
    /// The first error in words.
    pub first_error: Option<String>,
    /// Head of the last answer to the first request, in HTTP/1; empty if it was longer than 2 kB.
    pub head: Vec<u8>,
}

impl Outcome {
    /// Returns the requests answered a second.
    pub fn rate(&self) -> f64 {
        self.record.in_time as f64 / self.measured.as_secs_f64().max(1e-9)
    }

    /// Returns the share of its CPU that the busiest thread used, 0 to 1.
    pub(crate) fn busiest_thread(&self) -> f64 {
        self.threads.iter().map(|t| t.cpu_time as f64 / t.wall.max(1) as f64).fold(0.0, f64::max)
    }

    /// Returns the CPU time of this program's threads per answer, ns.
    pub fn client_cpu_per_request(&self) -> f64 {
        let cpu: u64 = self.threads.iter().map(|t| t.cpu_time).sum();
        cpu as f64 / self.record.in_time.max(1) as f64
    }
}

/// State that the threads of a run share.
struct Run<'l> {
    load: &'l Load,
    threads: usize,
    /// Set to end the run early.
    stop: AtomicBool,
    /// Set between two waits at the barrier: when all threads are prepared, and before any starts.
    times: OnceLock<Times>,
    barrier: Barrier,
}

/// Runs to the end. `tick` gets the samples, some ten times a second, and returns `false` to stop early;
/// the outcome then has the measurements until that moment.
///
/// # Errors
/// This machine has no room for the sockets or threads.
pub fn run(load: &Load, mut tick: impl FnMut(&[Sample]) -> bool) -> Result<Outcome, Error> {
    let threads = load.cpus.len().max(1).min(load.connections);
    check_connections(load.connections)?;
    let run = Run {
        load,
        threads,
        stop: AtomicBool::new(false),
        times: OnceLock::new(),
        barrier: Barrier::new(threads + 1),
    };
    let mut outcome = Outcome::default();
    let results = std::thread::scope(|scope| {
        let (sender, samples) = mpsc::channel();
        let mut handles = Vec::new();
        for index in 0..threads {
            let (run, sender) = (&run, sender.clone());
            let builder = std::thread::Builder::new().name(format!("bench {index}"));
            let handle = builder.spawn_scoped(scope, move || run.thread(index, sender));
            handles.push(handle.map_err(Error::io("a thread"))?);
        }
        drop(sender);
        run.start();
        outcome.collect(&samples, |new| run.proceed_while(tick(new)));
        let ended =
            handles.into_iter().map(|h| h.join().map_err(|_| Error::Usage("a thread panicked".into()))?);
        ended.collect::<Result<Vec<_>, Error>>()
    })?;
    outcome.interrupted = run.stop.into_inner();
    outcome.merge(results);
    Ok(outcome)
}

fn check_connections(connections: usize) -> Result<(), Error> {
    if connections == 0 {
        return Err(Error::Usage("0 connections send nothing".into()));
    }
    let room = forebay_sys::limits::raise_descriptors();
    if (connections as u64).saturating_add(64) > room {
        return Err(Error::Usage(format!(
            "{connections} connections need more descriptors than the {room} that this process may have (ulimit -n)"
        )));
    }
    Ok(())
}

impl Run<'_> {
    /// Runs thread `index`.
    fn thread(&self, index: usize, sender: Sender<Sample>) -> Result<ThreadResult, Error> {
        let cpu = self.load.cpus.get(index).copied();
        if let Some(cpu) = cpu {
            // Without the right to be there the run is worse, not wrong.
            let _ = forebay_sys::affinity::pin_current_thread(&[cpu]);
        }
        let worker = Worker::new(self.load, index, self.threads, sender);
        self.barrier.wait();
        self.barrier.wait();
        let times = self.times.get().copied().unwrap_or_default();
        let mut result = worker?.run(times, &self.stop)?;
        result.used.cpu = cpu;
        Ok(result)
    }

    /// Starts the threads when all of them are prepared.
    fn start(&self) {
        self.barrier.wait();
        let _ = self.times.set(Times::starting(clock(), self.load));
        self.barrier.wait();
    }

    fn proceed_while(&self, go_on: bool) {
        if !go_on {
            self.stop.store(true, Ordering::Relaxed);
        }
    }
}

impl Outcome {
    /// Receives samples until all threads have ended.
    fn collect(&mut self, samples: &Receiver<Sample>, mut tick: impl FnMut(&[Sample])) {
        let mut new = Vec::new();
        loop {
            match samples.recv_timeout(Duration::from_nanos(TICK)) {
                Ok(sample) => {
                    new.push(sample);
                    new.extend(samples.try_iter());
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            tick(&new);
            self.samples.append(&mut new);
        }
    }

    /// Adds the results of all threads.
    fn merge(&mut self, results: Vec<ThreadResult>) {
        let mut measured = 0;
        for result in results {
            self.record.merge(&result.record);
            self.threads.push(result.used);
            measured = measured.max(result.measured);
            self.first_error = self.first_error.take().or(result.first_error);
            if self.head.is_empty() {
                self.head = result.head;
            }
        }
        self.measured = Duration::from_nanos(measured);
        self.samples.sort_by_key(|s| s.at);
    }
}
