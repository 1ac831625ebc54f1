//! Waits of a request for its client.

use super::Request;
use forebay_core::transfers::{Direction, Over, Waiting, transfer};
use forebay_net::io::LargeBuffers;
use std::time::{Duration, Instant};

/// Time of waiting for an upstream after which a request gives memory back.
pub const LONG: Duration = Duration::from_millis(500);

impl Request {
    /// Prepares for the head of a response that is at hand.
    pub fn begin_head_text(&mut self) {
        let head = &mut self.modules.upstream.head;
        head.advance(usize::MAX);
        if head.buf.capacity() == 0 {
            head.buf = self.thread.buffers.take_short();
        }
    }

    /// Prepares for text of the response's body.
    #[inline]
    pub fn begin_text(&mut self) {
        if self.resp.text.capacity() == 0 {
            self.resp.text = self.take_buf();
        }
    }

    /// Makes room for more bytes in the buffer of an upstream's response head, by way of a large buffer of the thread if its own is too
    /// small.
    pub fn borrow_head(&mut self, room: usize) {
        let buf = &mut self.modules.upstream.head.buf;
        if buf.capacity() - buf.len() < room {
            let short = std::mem::replace(buf, self.thread.io.large.take());
            buf.extend_from_slice(&short);
            self.thread.give_buffer(short);
        }
    }

    /// Gives back the large buffer that has the head of an upstream's response, before a wait. Thousands of requests may wait, and each
    /// would hold as much as one read needs.
    pub fn lend_head(&mut self) {
        let buf = &mut self.modules.upstream.head.buf;
        if buf.capacity() >= LargeBuffers::LEAST {
            let mut short = self.thread.buffers.take_short();
            short.extend_from_slice(buf);
            // The head is short, and the large buffer serves the next read of another request.
            self.thread.io.large.give(std::mem::replace(buf, short));
        }
    }

    /// Gives back the large buffer that has the text of the response, before a wait for the client.
    pub fn lend_text(&mut self) {
        let text = &mut self.resp.text;
        if text.capacity() >= LargeBuffers::LEAST {
            let exact = text.as_slice().to_vec();
            self.thread.io.large.give(std::mem::replace(text, exact));
        }
    }

    /// Gives the buffers of a response that is over to other requests of the thread.
    pub fn give_buffers(&mut self) {
        let upstream = &mut self.modules.upstream;
        // This has to come before the buffer of the head is given away, because its bytes show that there is something to clear. Nothing
        // refers to the bytes afterwards.
        upstream.clear();
        for buf in [&mut self.resp.text, &mut upstream.head.buf, &mut upstream.early] {
            if buf.capacity() > 0 {
                self.thread.give_buffer(std::mem::take(buf));
            }
        }
    }

    /// Gives memory back that the request does not need while it waits for its upstream.
    #[cold]
    pub fn shrink(&mut self) {
        self.conn.wire.shrink();
        self.vars.shrink();
        let upstream = &mut self.modules.upstream;
        self.head.fields.shrink_to_fit();
        upstream.head.fields.shrink_to_fit();
        for buf in [&mut self.head.buf, &mut upstream.head.buf, &mut upstream.early, &mut self.resp.text] {
            buf.shrink_to_fit();
        }
    }

    /// Returns the transfer or the HTTP/2 stream by which the wait for this request's client is tracked.
    pub fn waiting(&mut self, direction: Direction, now: Instant) -> Waiting {
        // The client may be taking content of other streams, so the wait is judged for the connection as a whole.
        if let Some(s) = self.conn.wire.as_mux() {
            return Waiting::Among(s.clone());
        }
        let bytes = if direction == Direction::Body { self.tally.received } else { self.tally.sent };
        Waiting::Alone(transfer(&mut self.transfer, || self.conn.client.network(), direction, bytes, now))
    }

    /// Returns `true` if this request should log the end of the wait itself. If an HTTP/2 connection is dropped, one line stands for all
    /// of its requests.
    pub fn tells(&self, over: Over) -> bool {
        over == Over::Timeout || !self.conn.wire.is_multiplexed()
    }
}
