//! Counts of sessions, for the zones of servers of the stream block. Hot path.

use super::{StatusZone, ZoneKind, add, subtract_one, with_cells, zones};
use std::sync::Arc;

/// Zone of servers that serve sessions.
pub const SESSIONS: ZoneKind = ZoneKind { name: "sessions", cells: cell::COUNT };

/// Classes of the statuses of sessions.
pub const CLASSES: [&str; 3] = ["2xx", "4xx", "5xx"];

/// Places of the cells.
mod cell {
    pub(super) const CONNECTIONS: usize = 0;
    pub(super) const PROCESSING: usize = 1;
    pub(super) const DISCARDED: usize = 2;
    pub(super) const RECEIVED: usize = 3;
    pub(super) const SENT: usize = 4;
    /// One for each of [`super::CLASSES`].
    pub(super) const CLASSES: usize = 5;
    pub(super) const COUNT: usize = CLASSES + super::CLASSES.len();
}

/// Result of a session.
#[derive(Clone, Copy, Debug)]
pub struct SessionResult {
    /// Status (`$status`).
    pub status: u16,
    /// Bytes received from the client.
    pub received: u64,
    /// Bytes sent to the client.
    pub sent: u64,
}

/// Session that a zone counts as being processed. If it is dropped before it has a result, it counts as discarded.
#[derive(Debug)]
pub struct CountedSession {
    zone: usize,
    has_result: bool,
}

impl CountedSession {
    /// Counts the beginning of a session.
    pub fn begin(zone: &StatusZone) -> CountedSession {
        with_cells(zone.id, |c| {
            add(c, cell::CONNECTIONS, 1);
            add(c, cell::PROCESSING, 1);
        });
        CountedSession { zone: zone.id, has_result: false }
    }

    /// Counts the end of the session.
    pub fn end(mut self, result: SessionResult) {
        self.has_result = true;
        with_cells(self.zone, |c| {
            add(c, cell::RECEIVED, result.received);
            add(c, cell::SENT, result.sent);
            add(c, cell::CLASSES + class(result.status), 1);
        });
    }
}

impl Drop for CountedSession {
    fn drop(&mut self) {
        with_cells(self.zone, |c| {
            subtract_one(c, cell::PROCESSING);
            if !self.has_result {
                add(c, cell::DISCARDED, 1);
            }
        });
    }
}

/// Returns the place of a status in [`CLASSES`].
fn class(status: u16) -> usize {
    match status {
        ..400 => 0,
        400..500 => 1,
        500.. => 2,
    }
}

/// Totals of a zone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionTotals {
    /// Connections accepted.
    pub connections: u64,
    /// Sessions under way.
    pub processing: u64,
    /// Sessions that have ended, by [`CLASSES`].
    pub sessions: [u64; CLASSES.len()],
    /// Connections that ended without a result.
    pub discarded: u64,
    /// Bytes received from clients.
    pub received: u64,
    /// Bytes sent to clients.
    pub sent: u64,
}

impl SessionTotals {
    /// Returns the totals of a zone.
    pub fn of(zone: &StatusZone) -> SessionTotals {
        let sum = zone.sum();
        SessionTotals {
            connections: sum(cell::CONNECTIONS),
            processing: sum(cell::PROCESSING),
            sessions: std::array::from_fn(|n| sum(cell::CLASSES + n)),
            discarded: sum(cell::DISCARDED),
            received: sum(cell::RECEIVED),
            sent: sum(cell::SENT),
        }
    }

    /// Returns the zones of sessions with their totals.
    pub fn all() -> Vec<(Arc<StatusZone>, SessionTotals)> {
        let zones = zones(SESSIONS).into_iter();
        zones.map(|zone| (zone.clone(), SessionTotals::of(&zone))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sessions_are_counted_by_their_ends() {
        let zone = super::super::zone(SESSIONS, b"by_their_ends");
        let under_way = CountedSession::begin(&zone);
        // Ends in another thread.
        std::thread::scope(|s| {
            for status in [200, 403, 502, 503] {
                let session = CountedSession::begin(&zone);
                s.spawn(move || session.end(SessionResult { status, received: 2, sent: 3 }));
            }
        });
        drop(CountedSession::begin(&zone));
        let totals = SessionTotals::of(&zone);
        let want = SessionTotals {
            connections: 6,
            processing: 1,
            sessions: [1, 1, 2],
            discarded: 1,
            received: 8,
            sent: 12,
        };
        assert_eq!(totals, want);
        drop(under_way);
        assert_eq!(SessionTotals::of(&zone).processing, 0);
    }
}
