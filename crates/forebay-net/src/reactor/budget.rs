//! Bound of the waits of one poll of a task that are ready at once. Hot path.
//!
//! A wait is usually ready because of an event. In a loop whose wait is ready although nothing has changed, a task would never return
//! from its poll, and hold up all connections of the thread. Waits count, so such a loop yields to the others.

use std::cell::Cell;
use std::task::Poll;

/// Waits that may be ready in one poll. A task that has work for more yields once in a while, which costs little.
pub(super) const WAITS: u32 = 256;

/// Waits that may still be ready in this poll.
#[derive(Debug, Default)]
pub(super) struct Budget(Cell<Left>);

#[derive(Clone, Copy, Debug, Default)]
enum Left {
    /// No task is being polled: nobody would be polled again.
    #[default]
    Unlimited,
    Waits(u32),
}

/// Whether a wait may be ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spent {
    Yes,
    /// Others have to run first.
    No,
}

impl Budget {
    /// Begins the poll of a task. Returns the budget of the task further up the stack, for [`Budget::end`].
    #[inline]
    pub(super) fn begin(&self) -> Outer {
        Outer(self.0.replace(Left::Waits(WAITS)))
    }

    /// Ends the poll of a task.
    #[inline]
    pub(super) fn end(&self, outer: Outer) {
        self.0.set(outer.0);
    }

    /// Counts a wait that is ready.
    #[inline]
    pub(super) fn spend(&self) -> Spent {
        match self.0.get() {
            Left::Waits(0) => Spent::No,
            Left::Waits(n) => {
                self.0.set(Left::Waits(n - 1));
                Spent::Yes
            }
            Left::Unlimited => Spent::Yes,
        }
    }
}

/// Budget of a task that is interrupted by another one.
#[derive(Debug)]
pub(super) struct Outer(Left);

impl Spent {
    /// Returns the result of the wait. `again` has the task polled again if it has to yield.
    #[inline]
    pub(super) fn then_poll(self, again: impl FnOnce()) -> Poll<()> {
        match self {
            Spent::Yes => Poll::Ready(()),
            Spent::No => {
                again();
                Poll::Pending
            }
        }
    }
}
