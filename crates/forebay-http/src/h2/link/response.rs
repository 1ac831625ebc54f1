//! Responses of an upstream server, as far as they have come.

use super::super::{client, frame};
use super::problem::Problem;
use super::stream::Stream;
use super::{Got, Link};

impl<W: Default> Link<W> {
    /// Appends the next head of a stream, an HTTP/1 head. Returns `false` if it has not come.
    pub fn next_head(&mut self, id: u32, out: &mut Vec<u8>) -> bool {
        self.stream(id).is_some_and(|s| s.next_head(out))
    }

    /// Moves content that has come to the spare capacity of `out`.
    pub fn read(&mut self, id: u32, out: &mut Vec<u8>) -> Got {
        let Some(s) = self.stream(id) else { return Got::Failed };
        let n = s.read(out);
        if n == 0 {
            return match () {
                () if s.problem.is_some() => Got::Failed,
                () if s.ended && !s.has_content() => Got::End,
                () => Got::Nothing,
            };
        }
        if let Some(increment) = s.refill() {
            frame::push_window_update(&mut self.out, id, increment);
        }
        Got::Bytes(n)
    }

    /// Returns `true` if a read or the next head may give something, or tells the end.
    pub fn is_readable(&self, id: u32) -> bool {
        self.of(id).is_none_or(|s| s.has_content() || !s.heads.is_empty() || s.ended || s.problem.is_some())
    }

    /// Returns `true` if the response is over and has been read.
    pub fn is_over(&self, id: u32) -> bool {
        self.of(id).is_none_or(|s| s.ended && !s.has_content())
    }

    /// Returns `true` if the response has come whole.
    pub fn has_ended(&self, id: u32) -> bool {
        self.of(id).is_some_and(|s| s.ended)
    }

    /// Returns `true` if the server needs no more of the request.
    pub fn has_sent(&self, id: u32) -> bool {
        self.of(id).is_none_or(Stream::sends_no_more)
    }

    /// Returns why a request has failed.
    pub fn problem(&self, id: u32) -> Option<&Problem> {
        self.of(id)?.problem.as_ref()
    }

    /// Returns the number of bytes of field blocks since the last call.
    pub fn take_uncounted(&mut self, id: u32) -> u64 {
        self.stream(id).map_or(0, |s| std::mem::take(&mut s.uncounted))
    }

    /// Calls `f` with each field of the trailers.
    pub fn trailers(&self, id: u32, f: &mut dyn FnMut(&[u8], &[u8])) {
        if let Some(s) = self.of(id) {
            client::each_line(&s.trailers, f);
        }
    }

    /// Returns `true` if the response has ended with its head, so that it has no content.
    pub fn has_ended_with_head(&self, id: u32) -> bool {
        self.of(id).is_some_and(|s| s.ended_with_head)
    }

    /// Returns `true` if there are trailers.
    pub fn has_trailers(&self, id: u32) -> bool {
        self.of(id).is_some_and(|s| !s.trailers.is_empty())
    }
}
