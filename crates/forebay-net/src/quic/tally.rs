//! Counts of an endpoint, until its owner takes them over.

use std::cell::Cell;

/// Thing that is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Count {
    /// Connections that began with QUIC version 1.
    Version1,
    /// Connections that began with QUIC version 2.
    Version2,
    /// Connections whose requests came with the handshake (0-RTT).
    Early,
    /// Datagrams received, those from other threads and processes included.
    Received,
    /// Datagrams sent.
    Sent,
    /// Datagrams that the kernel dropped because the receive buffer was full.
    Dropped,
    /// Datagrams passed on to other threads and processes.
    HandedOver,
    /// Retry packets sent (RFC 9000, section 8.1.2).
    Retries,
    /// Stateless resets sent (RFC 9000, section 10.3).
    Resets,
    /// Version Negotiation packets sent.
    Negotiations,
    /// Connections refused because there was no room.
    Refused,
    /// Connections ended because the client sent too much without progress (H3_EXCESSIVE_LOAD).
    Floods,
}

/// Number of things that are counted.
pub const COUNTS: usize = Count::Floods as usize + 1;

/// Counts.
#[derive(Debug, Default)]
pub(super) struct Tally([Cell<u64>; COUNTS]);

impl Tally {
    #[inline]
    pub(super) fn add(&self, what: Count, n: u64) {
        if let Some(cell) = self.0.get(what as usize) {
            cell.set(cell.get() + n);
        }
    }

    /// Calls `f` with each count since the last call that is not zero.
    pub(super) fn take(&self, mut f: impl FnMut(usize, u64)) {
        for (cell, at) in self.0.iter().zip(0..) {
            if cell.get() > 0 {
                f(at, cell.take());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_taken_once() {
        let tally = Tally::default();
        tally.add(Count::Sent, 2);
        tally.add(Count::Sent, 3);
        tally.add(Count::Floods, 1);
        let take = || {
            let mut all = Vec::new();
            tally.take(|at, n| all.push((at, n)));
            all
        };
        assert_eq!(take(), [(Count::Sent as usize, 5), (Count::Floods as usize, 1)]);
        assert!(take().is_empty());
    }
}
