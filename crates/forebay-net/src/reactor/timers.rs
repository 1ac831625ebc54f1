//! Timers of slots and of tasks.

use super::poller::Token;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// Time at which a wait ends, in nanoseconds since the poller was created. Half the size of an `Instant`, of which each idle
/// connection has several, and cheaper to compute: [`super::Poller::after`] is one addition.
#[derive(PartialEq, Eq, PartialOrd, Ord, Clone, Copy, Debug)]
pub struct Deadline(pub(super) u64);

impl Deadline {
    /// Deadline that never comes: 584 years.
    pub(super) const NEVER: Deadline = Deadline(u64::MAX);

    /// Returns the deadline that lies `d` later.
    pub(crate) fn plus(self, d: Duration) -> Deadline {
        let nanos = u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        // `NEVER` is more than a deadline may be: it marks timers that are not armed.
        Deadline(self.0.saturating_add(nanos).min(Deadline::NEVER.0 - 1))
    }

    /// Returns the time from `earlier` to this deadline.
    pub(crate) fn since(self, earlier: Deadline) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Owner of a timer.
#[derive(PartialEq, Eq, Clone, Copy, Debug)]
pub(super) enum Target {
    /// A slot.
    Slot(Token),
    /// A task, by number.
    Task(u32),
}

/// Index that no slot has; marks a packed [`Target::Task`].
const TASK: u32 = u32::MAX;

impl Target {
    fn pack(self) -> u64 {
        match self {
            Target::Slot(token) => token.pack(),
            Target::Task(id) => Token { index: TASK, age: id }.pack(),
        }
    }

    fn unpack(v: u64) -> Target {
        match Token::unpack(v) {
            Token { index: TASK, age } => Target::Task(age),
            token => Target::Slot(token),
        }
    }
}

/// Heap of timers. A timer whose owner no longer wants it stays until it fires or is swept out.
pub(super) struct Timers {
    /// Time and packed target.
    heap: BinaryHeap<Reverse<(Deadline, u64)>>,
    /// Length at which the heap is swept.
    sweep_at: usize,
}

/// Memory of a timer, bytes.
pub(super) const ENTRY: usize = size_of::<(Deadline, u64)>();

/// Fewest timers that are swept.
const SWEEP: usize = 1024;

impl Default for Timers {
    fn default() -> Timers {
        Timers { heap: BinaryHeap::new(), sweep_at: SWEEP }
    }
}

impl Timers {
    /// Adds a timer. Returns whether it is time for [`Timers::sweep`].
    pub(super) fn add(&mut self, deadline: Deadline, target: Target) -> bool {
        self.heap.push(Reverse((deadline, target.pack())));
        self.heap.len() >= self.sweep_at
    }

    /// Removes timers that `wanted` rejects. Needed where most belong to connections that have ended: many short
    /// connections with long timeouts.
    pub(super) fn sweep(&mut self, wanted: impl Fn(Deadline, Target) -> bool) {
        self.heap.retain(|Reverse((t, target))| wanted(*t, Target::unpack(*target)));
        // The heap doubles between two sweeps, so their cost for each added timer stays constant.
        self.sweep_at = SWEEP.max(self.heap.len() * 2);
    }

    /// Removes the earliest timer if it is due at `now`.
    pub(super) fn pop_due(&mut self, now: Deadline) -> Option<Target> {
        match self.heap.peek() {
            Some(Reverse((t, _))) if *t <= now => {
                self.heap.pop().map(|Reverse((_, target))| Target::unpack(target))
            }
            _ => None,
        }
    }

    /// Returns the time of the earliest timer.
    pub(super) fn next(&self) -> Option<Deadline> {
        self.heap.peek().map(|Reverse((t, _))| *t)
    }

    /// Returns the number of timers.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }
}
