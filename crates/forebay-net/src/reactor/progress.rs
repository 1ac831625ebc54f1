//! Progress of a thread, for a watchdog in another thread: relaxed stores, and no clock. Hot path.

use super::Direct;
use std::sync::atomic::{AtomicU64, Ordering};

/// Turns of an event loop, and the work at hand.
#[derive(Debug, Default)]
pub struct Progress {
    /// Beginnings and ends of turns: odd during a turn.
    turns: AtomicU64,
    /// A packed [`Place`].
    place: AtomicU64,
}

/// Work that a thread is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Place {
    /// Work of no connection: accepting, logs, a new configuration.
    #[default]
    Other,
    /// A task, by the number of its connection, which the task has noted by [`super::Poller::note_place`].
    Connection(u64),
    /// Work without a task, by front end and kind: relays, QUIC, sessions over UDP.
    Direct(u8, u8),
}

/// Marks [`Place::Direct`].
const DIRECT: u64 = 1 << 63;

impl Place {
    fn unpack(number: u64) -> Place {
        match number {
            0 => Place::Other,
            n if n & DIRECT == 0 => Place::Connection(n),
            n => Place::Direct((n >> 8) as u8, n as u8),
        }
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Other => f.write_str("no connection"),
            Place::Connection(number) => write!(f, "connection *{number}"),
            Place::Direct(front, kind) => write!(f, "relayed bytes or QUIC, front end {front}, kind {kind}"),
        }
    }
}

/// Returns the packed place of work without a task.
#[inline]
pub(super) fn of_direct(direct: Direct) -> u64 {
    DIRECT | u64::from(direct.front) << 8 | u64::from(direct.kind)
}

impl Progress {
    /// Returns a number that changes when a turn begins and when it ends. It is odd during a turn.
    pub fn turns(&self) -> u64 {
        self.turns.load(Ordering::Relaxed)
    }

    /// Returns what is being done.
    pub fn place(&self) -> Place {
        Place::unpack(self.place.load(Ordering::Relaxed))
    }

    /// Notes the beginning of a turn, or its end; only by the thread.
    #[inline]
    pub(super) fn turn(&self) {
        // Only this thread writes the number, so no exchange is needed.
        self.turns.store(self.turns.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
    }

    /// Notes a packed place; only by the thread.
    #[inline]
    pub(super) fn set_place(&self, place: u64) {
        self.place.store(place, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places() {
        assert_eq!(Place::unpack(of_direct(Direct { front: 1, kind: 3, number: 7 })), Place::Direct(1, 3));
        assert_eq!(Place::unpack(17).to_string(), "connection *17");
        assert_eq!(Place::unpack(0), Place::Other);
    }
}
