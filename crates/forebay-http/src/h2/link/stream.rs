//! A stream of a connection to an upstream: a request and its response.

use super::{Problem, WINDOW, Window};

/// A request and its response.
#[derive(Debug)]
pub(super) struct Stream<W> {
    pub(super) id: u32,
    /// State that the caller keeps with the stream.
    pub(super) kept: W,
    /// It is among the news.
    pub(super) noted: bool,
    /// It waits for room.
    pub(super) waits: bool,
    /// Heads that have not been taken, interim ones first, as HTTP/1 heads.
    pub(super) heads: Vec<u8>,
    /// Content that has come, of which `read` bytes have been read.
    pub(super) content: Vec<u8>,
    pub(super) read: usize,
    pub(super) trailers: Vec<u8>,
    /// Most bytes of a head.
    pub(super) limit: usize,
    /// Content of the request that the server takes.
    pub(super) send_window: Window,
    /// Content of the response that the server may send.
    pub(super) recv_window: Window,
    /// Content that has been read, or is padding, and for which the window is still to be opened.
    pub(super) credit: u32,
    /// Interim responses so far.
    pub(super) interim: u32,
    /// Bytes of field blocks that have not been counted.
    pub(super) uncounted: u64,
    /// Place of the last frame with content, in all that was ever written.
    pub(super) last_frame: Option<u64>,
    /// Round in which it has last added content, and how much.
    pub(super) round: u64,
    pub(super) added: usize,
    pub(super) final_head: bool,
    /// All of the request is in frames.
    pub(super) sent_end: bool,
    /// The response has come whole.
    pub(super) ended: bool,
    /// The response has ended with its head.
    pub(super) ended_with_head: bool,
    /// Either side has reset it.
    pub(super) reset: bool,
    pub(super) problem: Option<Problem>,
}

impl<W: Default> Stream<W> {
    pub(super) fn new(id: u32, send_window: Window) -> Stream<W> {
        Stream {
            id,
            kept: W::default(),
            noted: false,
            waits: false,
            heads: Vec::new(),
            content: Vec::new(),
            read: 0,
            trailers: Vec::new(),
            limit: 0,
            send_window,
            recv_window: Window::new(WINDOW),
            credit: 0,
            interim: 0,
            uncounted: 0,
            last_frame: None,
            round: 0,
            added: 0,
            final_head: false,
            sent_end: false,
            ended: false,
            ended_with_head: false,
            reset: false,
            problem: None,
        }
    }
}

impl<W> Stream<W> {
    /// Returns `true` if nothing follows of the request: it is whole, or the server does not need the rest.
    pub(super) fn sends_no_more(&self) -> bool {
        self.sent_end || self.ended || self.reset || self.problem.is_some()
    }

    /// Returns `true` if frames of a response may come.
    pub(super) fn is_open(&self) -> bool {
        !self.ended && !self.reset
    }

    /// Returns `true` if there is content that has not been read.
    pub(super) fn has_content(&self) -> bool {
        self.read < self.content.len()
    }

    /// Moves the next head behind `out`.
    pub(super) fn next_head(&mut self, out: &mut Vec<u8>) -> bool {
        const END: &[u8] = b"\r\n\r\n";
        if self.heads.is_empty() {
            return false;
        }
        // Heads are put here whole. Only interim ones come before another, so that the first end has to be looked for.
        let end = match self.interim {
            0 => self.heads.len(),
            _ => match memchr::memmem::find(&self.heads, END) {
                Some(at) => at + END.len(),
                None => return false,
            },
        };
        out.extend_from_slice(self.heads.get(..end).unwrap_or_default());
        if end == self.heads.len() {
            self.heads.clear();
        } else {
            self.heads.drain(..end);
        }
        true
    }

    /// Moves content to the spare capacity of `out`. Returns the number of bytes.
    pub(super) fn read(&mut self, out: &mut Vec<u8>) -> usize {
        let all = self.content.len() - self.read;
        let n = all.min(out.capacity() - out.len());
        if n == all && n > 0 && self.read == 0 && out.is_empty() && n > LARGE {
            // Exchanged rather than copied.
            std::mem::swap(out, &mut self.content);
        } else {
            out.extend_from_slice(self.content.get(self.read..self.read + n).unwrap_or_default());
            self.read += n;
        }
        if !self.has_content() {
            self.content.clear();
            self.read = 0;
        }
        // At most the window.
        self.credit += n as u32;
        n
    }

    /// Opens the window again for half of its size or more. Returns the increment for WINDOW_UPDATE.
    pub(super) fn refill(&mut self) -> Option<u32> {
        // A WINDOW_UPDATE for each DATA frame would double the number of frames.
        if self.credit < WINDOW / 2 || !self.is_open() {
            return None;
        }
        let increment = std::mem::take(&mut self.credit);
        let _ = self.recv_window.widen(i64::from(increment));
        Some(increment)
    }
}

/// Content that is worth an exchange of buffers, bytes.
const LARGE: usize = 8 * 1024;
