//! Timers of slots and of runners.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Instant;

/// Owner of a timer.
#[derive(PartialEq, Eq, PartialOrd, Ord, Clone, Copy)]
pub(super) enum Target {
    /// A slot, as a packed token.
    Slot(u64),
    /// A runner, by number.
    Runner(u32),
}

/// Heap of timers. A timer whose owner no longer wants it stays until it fires or is swept out.
pub(super) struct Timers {
    heap: BinaryHeap<Reverse<(Instant, Target)>>,
    /// Length at which the heap is swept.
    sweep_at: usize,
}

/// Memory of a timer, bytes.
pub(super) const ENTRY: usize = size_of::<(Instant, Target)>();

/// Fewest timers that are swept.
const SWEEP: usize = 1024;

impl Default for Timers {
    fn default() -> Timers {
        Timers { heap: BinaryHeap::new(), sweep_at: SWEEP }
    }
}

impl Timers {
    /// Adds a timer; returns whether it is time for [`Timers::sweep`].
    pub(super) fn add(&mut self, deadline: Instant, target: Target) -> bool {
        self.heap.push(Reverse((deadline, target)));
        self.heap.len() >= self.sweep_at
    }

    /// Removes timers that `wanted` rejects. Needed where most belong to connections that have ended: many short
    /// connections with long timeouts.
    pub(super) fn sweep(&mut self, wanted: impl Fn(Instant, Target) -> bool) {
        self.heap.retain(|Reverse((t, target))| wanted(*t, *target));
        self.sweep_at = SWEEP.max(self.heap.len() * 2);
    }

    /// Removes the earliest timer if it is due at `now`.
    pub(super) fn pop_due(&mut self, now: Instant) -> Option<Target> {
        match self.heap.peek() {
            Some(Reverse((t, _))) if *t <= now => self.heap.pop().map(|Reverse((_, target))| target),
            _ => None,
        }
    }

    /// Time of the earliest timer.
    pub(super) fn next(&self) -> Option<Instant> {
        self.heap.peek().map(|Reverse((t, _))| *t)
    }

    /// Number of timers.
    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }
}
