//! Waits of a request for its client.

use super::Request;
use forebay_core::transfers::{Direction, Over, Waiting, transfer};
use std::time::{Duration, Instant};

/// Time of waiting for an upstream after which a request gives memory back.
pub(crate) const LONG: Duration = Duration::from_millis(500);

impl Request {
    /// Gives memory back that the request does not need while it waits for its upstream.
    #[cold]
    pub(crate) fn shrink(&mut self) {
        self.conn.wire.shrink();
        self.spare = Vec::new();
        self.vars.shrink();
        let upstream = &mut self.modules.upstream;
        self.head.fields.shrink_to_fit();
        upstream.head.fields.shrink_to_fit();
        for buf in [&mut self.head.buf, &mut upstream.head.buf, &mut upstream.early, &mut self.resp.text] {
            buf.shrink_to_fit();
        }
    }

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
