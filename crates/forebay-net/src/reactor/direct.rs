//! Work that needs no task: a front end does a step of it for each event of its descriptors. It waits without a future, which
//! saves memory (a waiting pair of plain connections takes about 1,500 bytes instead of 20 KiB) and a poll for each event. Hot path.

use super::poller::{Poller, Role, Token, Watched};
use super::timers::{Deadline, Target};
use std::time::Duration;

/// Name by which a front end finds what it serves without a task, see [`Poller::serve_directly`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Direct {
    /// Number of the front end.
    pub front: u8,
    /// Kind of work; the front end gives it a meaning.
    pub kind: u8,
    /// Number among the work of that kind.
    pub number: u32,
}

impl Poller {
    /// Has the events of a busy slot reported to [`super::Handler::step`] instead of waking a task, until
    /// [`Poller::serve_by_task`] or [`Poller::remove`].
    pub fn serve_directly(&self, token: Token, direct: Direct) {
        let wakers = match self.slot_mut(token) {
            Some(mut s) => {
                s.role = Role::Direct(direct);
                (s.read_waker.take(), s.write_waker.take())
            }
            None => return,
        };
        // A waker's drop may call the poller.
        drop(wakers);
    }

    /// Returns what a slot that is served directly belongs to.
    pub fn direct(&self, token: Token) -> Option<Direct> {
        match self.slot(token)?.role {
            Role::Direct(direct) => Some(direct),
            _ => None,
        }
    }

    /// Has events wake the task that waits for them again.
    pub fn serve_by_task(&self, token: Token) {
        if let Some(mut s) = self.slot_mut(token) {
            s.role = Role::Busy;
        }
    }

    /// Prepares a slot for another use of its descriptor, which stays in the epoll set.
    pub(crate) fn renew(&self, token: Token) {
        let wakers = match self.slot_mut(token) {
            Some(mut s) => {
                s.role = Role::Busy;
                (s.readable, s.writable, s.ended) = (true, true, false);
                (s.read_waker.take(), s.write_waker.take())
            }
            None => return,
        };
        // A waker's drop may call the poller.
        drop(wakers);
    }

    /// Has an event reported when a slot that is served directly becomes readable.
    #[inline]
    pub fn watch_readable(&self, token: Token) {
        if let Some(mut s) = self.slot_mut(token) {
            self.watch(&mut s, token, Watched::Reading);
        }
    }

    /// Has an event reported when a slot that is served directly becomes readable or writable.
    pub fn watch_writable(&self, token: Token) {
        if let Some(mut s) = self.slot_mut(token) {
            self.watch(&mut s, token, Watched::Both);
        }
    }

    /// Sets the deadline of a slot that is served directly; it replaces the one before. A step may come before the deadline.
    #[inline]
    pub fn step_at(&self, token: Token, deadline: Deadline) {
        let arm = match self.slot_mut(token) {
            Some(mut s) => {
                s.deadline = deadline;
                // A deadline later than the armed timer is found when that fires.
                let arm = s.armed > deadline;
                if arm {
                    s.armed = deadline;
                }
                arm
            }
            None => false,
        };
        if arm {
            self.arm(deadline, Target::Slot(token));
        }
    }

    /// Returns `true` if a deadline is not later than the start of this turn.
    #[inline]
    pub fn is_over(&self, deadline: Deadline) -> bool {
        self.after(Duration::ZERO) >= deadline
    }

    /// Has work without a task done once more, after the other connections had their turn.
    pub fn step_again(&self, direct: Direct) {
        self.unfinished.borrow_mut().push(direct);
    }

    /// Moves the work of [`Poller::step_again`] to `out`.
    pub(super) fn take_unfinished(&self, out: &mut Vec<Direct>) {
        out.append(&mut self.unfinished.borrow_mut());
    }
}
