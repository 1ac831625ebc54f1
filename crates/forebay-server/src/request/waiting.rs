//! Waits of a request for its client.

use super::Request;
use forebay_core::transfers::{Direction, Over, Waiting, transfer};
use std::time::Instant;

impl Request {
    /// Returns the transfer or the HTTP/2 stream by which the wait for this request's client is tracked.
    pub(crate) fn waiting(&mut self, direction: Direction, now: Instant) -> Waiting {
        if let Some(s) = self.conn.wire.as_mux() {
            return Waiting::Among(s.clone());
        }
        let bytes = if direction == Direction::Body { self.received } else { self.sent };
        Waiting::Alone(transfer(&mut self.transfer, || self.conn.client.network(), direction, bytes, now))
    }

    /// Returns `true` if this request should log the end of the wait itself. A dropped HTTP/2 connection logs one line
    /// for all of its requests.
    pub(crate) fn tells(&self, over: Over) -> bool {
        over == Over::Timeout || !self.conn.wire.is_multiplexed()
    }
}
