//! Waits for one connection together with another whose end makes the wait pointless. Hot path.

use crate::io::Io;
use crate::reactor::Deadline;
use crate::wire::{Watch, Wire};
use std::task::{Context, Poll};

/// Events to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum For {
    /// A read may give something.
    Read,
    /// A write may take something.
    Write,
    /// Either.
    Both,
}

/// Result of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waited {
    /// The connection is ready.
    Ready,
    /// The time is over.
    Timeout,
    /// The client closed its connection.
    ClientGone,
}

/// A wait after a call that would have blocked.
#[derive(Debug)]
pub struct Wait<'w> {
    what: For,
    deadline: Deadline,
    watch: &'w mut Watch,
}

impl<'w> Wait<'w> {
    /// Creates a wait until `deadline`, or until the watched client is gone.
    pub fn new(what: For, deadline: Deadline, watch: &'w mut Watch) -> Wait<'w> {
        Wait { what, deadline, watch }
    }

    /// Is ready when one of the events has happened.
    pub fn poll(&mut self, io: &Io, wire: &Wire, cx: &mut Context<'_>) -> Poll<Waited> {
        // Both are polled, so that each is registered for its event.
        let read = self.what != For::Write && wire.poll_readable(io, cx).is_ready();
        let write = self.what != For::Read && wire.poll_writable(io, cx).is_ready();
        if read || write {
            return Poll::Ready(Waited::Ready);
        }
        if self.watch.poll_gone(&io.poller, cx).is_ready() {
            return Poll::Ready(Waited::ClientGone);
        }
        io.poller.poll_until(self.deadline).map(|()| Waited::Timeout)
    }
}
