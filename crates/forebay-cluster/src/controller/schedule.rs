//! The times of deliveries, and of what is done again after a while.

use crate::ports;
use std::time::{Duration, Instant};

/// Time for which changes are gathered: of endpoints, and of anything else.
const GATHER_ENDPOINTS: Duration = Duration::from_millis(10);
pub(super) const GATHER: Duration = Duration::from_millis(50);
/// Pause after a configuration, as a multiple of the time that it took, and the longest one. Many changes in a row then take a
/// fifth of the time of all processes, and endpoints seldom wait for a configuration.
const REST: u32 = 4;
const LONGEST_REST: Duration = Duration::from_millis(500);
/// Time after which files of this machine are read again.
const LOOK_AGAIN: Duration = Duration::from_secs(60);
/// Time after which hosts are judged that there was no time for, at first and at most. Each judgement that leaves some doubles it, since
/// nothing else is done meanwhile.
const JUDGE_AGAIN: Duration = Duration::from_secs(2);
const LONGEST_JUDGE_AGAIN: Duration = Duration::from_secs(600);
/// Time after which memory is given back to the system.
const TRIM: Duration = Duration::from_secs(15);

/// Times of deliveries.
#[derive(Debug)]
pub(super) struct Schedule {
    /// Time of the first change that waits: of endpoints, and of anything else.
    pub(super) endpoints: Option<Instant>,
    pub(super) others: Option<Instant>,
    /// Time of the last delivery of a configuration.
    delivered: Instant,
    /// Time before which no other one is delivered.
    pub(super) rests_until: Instant,
    /// Time after which hosts are judged that there was no time for.
    judge_again: Duration,
}

impl Schedule {
    pub(super) fn new() -> Schedule {
        let now = Instant::now();
        let (endpoints, others) = (None, None);
        Schedule { endpoints, others, delivered: now, rests_until: now, judge_again: JUDGE_AGAIN }
    }

    /// Has endpoints delivered soon.
    pub(super) fn want_endpoints(&mut self) {
        self.endpoints.get_or_insert_with(Instant::now);
    }

    /// Has a configuration delivered soon.
    pub(super) fn want_configuration(&mut self) {
        self.others.get_or_insert_with(Instant::now);
    }

    /// Notes whether all hosts have been judged. Those that have not are judged again.
    pub(super) fn judged(&mut self, all: bool) {
        if !all {
            self.others.get_or_insert(Instant::now() + self.judge_again);
        }
        let next = (self.judge_again * 2).min(LONGEST_JUDGE_AGAIN);
        self.judge_again = if all { JUDGE_AGAIN } else { next };
    }

    /// Returns the time of the next delivery. A configuration in flight delays the next one, not endpoints.
    pub(super) fn due(&self, in_flight: bool) -> Option<Instant> {
        let endpoints = self.endpoints.map(|at| at + GATHER_ENDPOINTS);
        [self.configuration_due(in_flight), endpoints].into_iter().flatten().min()
    }

    /// Returns the time of the next configuration.
    pub(super) fn configuration_due(&self, in_flight: bool) -> Option<Instant> {
        let waiting = self.others.filter(|_| !in_flight)?;
        Some((waiting + GATHER).max(self.rests_until))
    }

    /// Notes that a configuration takes all changes that wait.
    pub(super) fn begin(&mut self) {
        (self.endpoints, self.others) = (None, None);
    }

    /// Notes the delivery of a configuration.
    pub(super) fn delivered(&mut self) {
        self.delivered = Instant::now();
    }

    /// Notes the answer to a configuration. The pause after it begins.
    pub(super) fn answered(&mut self) {
        let now = Instant::now();
        self.rests_until = now + ((now - self.delivered) * REST).min(LONGEST_REST);
    }
}

/// Times of what is done again and again.
#[derive(Debug)]
pub(super) struct Chores {
    /// Time at which the files of this machine were read last.
    looked: Instant,
    /// Time of the last look at ports that were taken.
    ports_tried: Instant,
    /// Time at which memory was given back last, and whether anything has changed since.
    trimmed: Instant,
    changed: bool,
}

impl Chores {
    pub(super) fn new() -> Chores {
        let now = Instant::now();
        Chores { looked: now, ports_tried: now, trimmed: now, changed: false }
    }

    /// Notes that objects have changed.
    pub(super) fn note_change(&mut self) {
        self.changed = true;
    }

    /// Returns `true` each time that the files of this machine are to be read again.
    pub(super) fn files_are_due(&mut self) -> bool {
        is_due(&mut self.looked, LOOK_AGAIN)
    }

    /// Returns `true` each time that ports are to be tried again.
    pub(super) fn ports_are_due(&mut self) -> bool {
        is_due(&mut self.ports_tried, ports::PAUSE)
    }

    /// Gives memory back to the system when it is time to. Lists, and the answers to statuses, leave pages that are mostly free.
    pub(super) fn trim(&mut self) {
        if self.changed && is_due(&mut self.trimmed, TRIM) {
            forebay_sys::heap::trim();
            self.changed = false;
        }
    }
}

fn is_due(last: &mut Instant, pause: Duration) -> bool {
    let due = last.elapsed() >= pause;
    if due {
        *last = Instant::now();
    }
    due
}
