//! The state of a connection that carries several requests, whatever its protocol. Hot path.

use super::Trouble;
use forebay_core::upstream::group::Keepalive;
use std::cell::{Cell, RefCell};
use std::task::Waker;
use std::time::Instant;

/// Stage of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum Stage {
    /// It takes no requests yet.
    Connecting,
    Open,
    /// It takes no further requests.
    Leaving,
    Closed,
}

/// State of a connection that all protocols have.
#[derive(Debug)]
pub(in crate::upstream) struct Life {
    pub(super) keep: Option<Keepalive>,
    pub(super) stage: Cell<Stage>,
    pub(super) trouble: RefCell<Option<Trouble>>,
    /// Requests that wait for the connection or for room.
    pub(super) waiting: Cell<usize>,
    pub(super) waiters: RefCell<Vec<Waker>>,
    /// Requests so far.
    pub(super) requests: Cell<u64>,
    pub(super) opened: Instant,
    /// Time since which there is no request.
    idle_since: Cell<Option<Instant>>,
    pub(super) newly_idle: Cell<bool>,
}

impl Life {
    /// Creates the state of a connection that is being established. `keep`: see [`Need::keep`].
    pub(in crate::upstream) fn new(keep: Option<Keepalive>, now: Instant) -> Life {
        Life {
            keep,
            stage: Cell::new(Stage::Connecting),
            trouble: RefCell::new(None),
            waiting: Cell::new(0),
            waiters: RefCell::default(),
            requests: Cell::new(0),
            opened: now,
            idle_since: Cell::new(None),
            newly_idle: Cell::new(false),
        }
    }

    pub(in crate::upstream) fn stage(&self) -> Stage {
        self.stage.get()
    }

    /// Returns `true` while it is not established.
    pub(in crate::upstream) fn is_connecting(&self) -> bool {
        self.stage.get() == Stage::Connecting
    }

    /// Returns `true` if the connection has ended.
    pub(in crate::upstream) fn is_over(&self) -> bool {
        self.stage.get() == Stage::Closed
    }

    /// Returns `true` if there was no connection, or the server has broken the rules.
    pub(in crate::upstream) fn has_failed(&self) -> bool {
        self.trouble.borrow().is_some()
    }

    /// Notes that it is established.
    pub(in crate::upstream) fn establish(&self, now: Instant) {
        self.stage.set(Stage::Open);
        self.idle_since.set(Some(now));
        self.wake();
    }

    /// Notes why there is no connection, for requests that wait for it.
    pub(in crate::upstream) fn note_trouble(&self, trouble: Trouble) {
        self.trouble.borrow_mut().get_or_insert(trouble);
    }

    /// Ends it. Returns `false` if it has ended before.
    pub(in crate::upstream) fn end(&self) -> bool {
        self.stage.replace(Stage::Closed) != Stage::Closed
    }

    /// Counts a stream that has been opened. Returns `true` if there were others before.
    pub(super) fn opened_stream(&self) -> bool {
        self.idle_since.set(None);
        if self.keep.is_none() {
            // The connection serves this request only.
            self.stage.set(Stage::Leaving);
        }
        self.requests.replace(self.requests.get() + 1) > 0
    }

    /// Notes that the last stream is over. Returns `true` if the connection is to end.
    pub(in crate::upstream) fn rests(&self, now: Instant) -> bool {
        self.idle_since.set(Some(now));
        self.newly_idle.set(true);
        self.stage.get() == Stage::Leaving
    }

    /// Has requests that wait look again.
    pub(in crate::upstream) fn wake(&self) {
        if !self.waiters.borrow().is_empty() {
            self.waiters.take().into_iter().for_each(Waker::wake);
        }
    }

    /// Returns the time since which there is no request, if it could take one.
    pub(in crate::upstream) fn idle_since(&self) -> Option<Instant> {
        self.idle_since.get().filter(|_| self.stage.get() == Stage::Open)
    }

    /// Returns the time at which the connection is closed if there is no request until then.
    pub(in crate::upstream) fn expires(&self) -> Option<Instant> {
        self.idle_since()?.checked_add(self.keep?.timeout)
    }
}
