//! Deadlines and stop rules of a thread: reports, timeouts, the end of sending and of waiting.

use super::usage::ThreadCounters;
use crate::load::Load;
use crate::record::ThreadUse;
use crate::thread_cpu;

/// Interval between the reports of a thread, ns.
pub(crate) const TICK: u64 = 100_000_000;

/// Times of a run that all threads share, ns of the monotonic clock.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    /// The first request.
    pub(super) start: u64,
    /// The end of the warm-up.
    pub(super) from: u64,
    /// The end of the measured time.
    pub(super) end: u64,
}

impl Times {
    /// Returns the times of a run that starts now.
    pub(super) fn starting(start: u64, load: &Load) -> Times {
        use crate::load::Stop;
        let from = start + load.warmup.as_nanos() as u64;
        let end = match load.stop {
            Stop::After(time) | Stop::Count(_, Some(time)) => from + time.as_nanos() as u64,
            Stop::Count(_, None) => u64::MAX / 2,
        };
        Times { start, from, end }
    }

    /// Returns `true` if this moment is within the measured time.
    #[inline]
    pub(super) fn measure(&self, now: u64) -> bool {
        (self.from..=self.end).contains(&now)
    }
}

/// Time between two reports of a thread.
pub(super) struct Lap {
    /// Time at which the lap began, ns.
    pub(super) since: u64,
    /// CPU time of the thread in it, ns.
    pub(super) cpu: u64,
}

/// The end of the measured time, as a thread saw it.
struct Stopped {
    at: u64,
    used: ThreadUse,
    /// Responses are awaited until then.
    drain_until: u64,
}

/// Deadlines and stop rules of a thread's loop.
pub(super) struct Timing {
    /// Planned times, which an early stop does not change.
    times: Times,
    timeout: u64,
    drain: u64,
    scan_every: u64,
    next_tick: u64,
    next_scan: u64,
    last_tick: u64,
    last_cpu: u64,
    /// Counters at the end of the warm-up.
    usage: Option<ThreadCounters>,
    stopped: Option<Stopped>,
}

impl Timing {
    pub(super) fn new(load: &Load, times: Times) -> Timing {
        let timeout = load.timeout.as_nanos() as u64;
        let scan_every = (timeout / 20).clamp(5_000_000, TICK);
        Timing {
            times,
            timeout,
            drain: load.drain.unwrap_or(load.timeout).as_nanos() as u64,
            scan_every,
            next_tick: times.start + TICK,
            next_scan: times.start + scan_every,
            last_tick: times.start,
            last_cpu: thread_cpu(),
            usage: None,
            stopped: None,
        }
    }

    /// Returns the longest time for a connection or a response, ns.
    pub(super) fn timeout(&self) -> u64 {
        self.timeout
    }

    /// Notes the end of the warm-up and the end of the run; returns whether the run stops at this moment. `halt`: the
    /// user has stopped it.
    pub(super) fn stops(&mut self, now: u64, halt: bool) -> bool {
        if self.usage.is_none() && now >= self.times.from {
            self.usage = Some(ThreadCounters::now());
        }
        if self.is_stopped() || now < self.times.end && !halt {
            return false;
        }
        let drain = if halt { 0 } else { self.drain };
        self.stopped = Some(Stopped {
            at: now.min(self.times.end),
            used: self.used(),
            drain_until: now.saturating_add(drain),
        });
        true
    }

    /// Returns `true` if the measured time is over.
    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.is_some()
    }

    /// Returns `true` if no more responses are awaited.
    pub(super) fn is_over(&self, now: u64) -> bool {
        self.stopped.as_ref().is_some_and(|s| now >= s.drain_until)
    }

    /// Returns `true` if it is time to look for requests without a response, and sets the next such time.
    pub(super) fn scan_is_due(&mut self, now: u64) -> bool {
        let due = now >= self.next_scan;
        if due {
            self.next_scan = now + self.scan_every;
        }
        due
    }

    /// Returns the stretch since the last report when it is time for another.
    pub(super) fn tick(&mut self, now: u64) -> Option<Lap> {
        (now >= self.next_tick).then(|| self.lap(now))
    }

    /// Returns the stretch since the last report.
    pub(super) fn lap(&mut self, now: u64) -> Lap {
        let cpu = thread_cpu();
        let lap = Lap { since: self.last_tick, cpu: cpu.saturating_sub(self.last_cpu) };
        (self.last_tick, self.last_cpu, self.next_tick) = (now, cpu, now + TICK);
        lap
    }

    /// Returns the next deadline of the loop.
    pub(super) fn next_deadline(&self) -> u64 {
        let end = self.stopped.as_ref().map_or(self.times.end, |s| s.drain_until);
        self.next_tick.min(self.next_scan).min(end)
    }

    /// Returns the length of the measured time and what the thread used in it. `last`: the last response, the end of a
    /// run that ends by itself.
    pub(super) fn measured(&self, last: u64) -> (u64, ThreadUse) {
        let (end, used) = match &self.stopped {
            Some(stopped) => (stopped.at, stopped.used.clone()),
            None => (last.max(self.times.from), self.used()),
        };
        let wall = end.saturating_sub(self.times.from);
        (wall, ThreadUse { wall, ..used })
    }

    fn used(&self) -> ThreadUse {
        self.usage.unwrap_or_else(ThreadCounters::now).until_now()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{Order, Protocol, Stop, Wanted};
    use std::time::Duration;

    fn timing() -> Timing {
        let url = crate::url::Url::parse("http://127.0.0.1:1/").expect("URL");
        let mut load = Load::new(&[Wanted::get(url)], Protocol::Http1, Order::Listed, 1).expect("load");
        load.stop = Stop::After(Duration::from_secs(2));
        load.warmup = Duration::from_secs(1);
        load.drain = Some(Duration::from_secs(1));
        let times = Times::starting(0, &load);
        Timing::new(&load, times)
    }

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_run_stops_once_and_then_waits_for_responses() {
        let mut timing = timing();
        assert!(!timing.stops(2 * SECOND, false) && !timing.is_over(2 * SECOND));
        assert!(timing.stops(3 * SECOND + 5, false) && !timing.stops(3 * SECOND + 6, false));
        assert!(!timing.is_over(4 * SECOND) && timing.is_over(4 * SECOND + 5));
        assert_eq!(timing.measured(0).0, 2 * SECOND);
    }

    #[test]
    fn a_halted_run_waits_for_nothing() {
        let mut timing = timing();
        assert!(timing.stops(2 * SECOND, true) && timing.is_over(2 * SECOND));
        assert_eq!(timing.measured(0).0, SECOND);
    }
}
