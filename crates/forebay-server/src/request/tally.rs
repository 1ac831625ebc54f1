//! Times and bytes of a request, for logs, counters and limits. Hot path.

use std::time::Instant;

/// Arrival of a request's first byte, as far as it matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Arrival {
    /// It is not known whether it came before this turn of the loop.
    #[default]
    Unknown,
    /// Before this turn of the loop began. Facts found in this turn, such as the state of a file, are no older than the request.
    BeforeTurn,
    /// In one packet with the request before it (`$pipe`).
    Pipelined,
}

/// Times and bytes of a request.
#[derive(Debug)]
pub struct Tally {
    /// Time at which the first byte arrived.
    pub started: Instant,
    /// Circumstances of its arrival.
    pub arrival: Arrival,
    /// Bytes received, head and body (`$request_length`).
    pub received: u64,
    /// Bytes sent, head included (`$bytes_sent`).
    pub sent: u64,
    /// Bytes of the head sent.
    pub sent_head: u64,
    /// `true` once the response has been sent whole (`$request_completion`).
    pub complete: bool,
}

impl Tally {
    /// Makes the tally of a request whose first byte has just come.
    pub fn new(now: Instant) -> Tally {
        Tally { started: now, arrival: Arrival::Unknown, received: 0, sent: 0, sent_head: 0, complete: false }
    }

    /// Counts a request that begins, with a head of `received` bytes. The arrival of its first byte has been noted before.
    #[inline]
    pub fn begin(&mut self, received: u64) {
        // Every field is named, so that a new field cannot be left out.
        let Tally { started: _, arrival: _, received: all, sent, sent_head, complete } = self;
        *all = received;
        (*sent, *sent_head, *complete) = (0, 0, false);
    }

    /// Prepares for the first byte of a request, which has not come before `now`.
    pub fn start_clock(&mut self, now: Instant) {
        (self.started, self.arrival) = (now, Arrival::Unknown);
    }

    /// Notes that this turn of the loop ends.
    #[inline]
    pub fn end_turn(&mut self) {
        if self.arrival == Arrival::BeforeTurn {
            self.arrival = Arrival::Unknown;
        }
    }

    /// Returns `true` if facts found in this turn of the loop are no older than the request.
    #[inline]
    pub fn is_before_turn(&self) -> bool {
        self.arrival == Arrival::BeforeTurn
    }

    /// Returns the bytes of the response's body that were sent (`$body_bytes_sent`).
    #[inline]
    pub fn sent_body(&self) -> u64 {
        self.sent.saturating_sub(self.sent_head)
    }
}
