//! One request and its response on an HTTP/2 connection. Hot path.

use super::{Session, SessionState};
use crate::connection::mux::{RequestState, RequestStream, Reset, Reused, WaitChange};
use crate::thread::Thread;
use forebay_core::client::Client;
use forebay_http::h2::connection::Window;
use forebay_http::h2::frame::{self, Code, flag, kind};
use forebay_net::mux::Mux;
use forebay_net::wire::{Sent, Then};
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

/// A stream.
#[derive(Debug)]
pub struct Stream {
    /// Stream number; odd, since clients open streams.
    pub id: u32,
    session: Rc<Session>,
    pub(super) request: RequestState,
    pub(super) send_window: Cell<Window>,
    pub(super) recv_window: Cell<i64>,
    /// Content received, not read by the handler yet.
    pub(super) received: RefCell<Vec<u8>>,
    /// Content read since the last WINDOW_UPDATE, bytes.
    read: Cell<u32>,
    /// The client has sent END_STREAM.
    pub(super) ended: Cell<bool>,
    /// END_STREAM has been queued.
    end_sent: Cell<bool>,
    /// The handler has begun to read, so the window was widened beyond `http2_body_preread_size`.
    widened: Cell<bool>,
    pub(super) granted: Cell<bool>,
    /// Offset of this stream's last frame header, counted like `SessionState::out_start`.
    frame: Cell<Option<u64>>,
    /// `http2_chunk_size` of the location.
    chunk: Cell<usize>,
}

impl Stream {
    #[inline]
    pub(super) fn new(session: &Rc<Session>, id: u32, send_window: Window) -> Stream {
        Stream {
            id,
            session: session.clone(),
            request: RequestState::new(),
            send_window: Cell::new(send_window),
            recv_window: Cell::new(i64::from(session.settings.window)),
            received: RefCell::default(),
            read: Cell::new(0),
            ended: Cell::new(false),
            end_sent: Cell::new(false),
            widened: Cell::new(false),
            granted: Cell::new(false),
            frame: Cell::new(None),
            chunk: Cell::new(8192),
        }
    }

    /// Ends the stream and wakes its reader and writer. Also sends RST_STREAM if there is a code.
    pub(super) fn break_off(&self, reset: Option<Code>) {
        self.request.set_broken();
        self.received.replace(Vec::new());
        if let Some(code) = reset {
            let mut s = self.session.state.borrow_mut();
            s.push_reset(self.id, code);
        }
        self.request.wake_reader();
        self.request.wake_writer();
    }

    /// Returns `n` bytes of window to the client. Sends WINDOW_UPDATE only from half a window on, or when the window is
    /// empty.
    fn open_window(&self, n: u32) {
        let read = self.read.get() + n;
        // After its end, the stream needs no window. Before that, small updates would cost a frame for each read.
        if self.ended.get() || (read < self.session.settings.window / 2 && self.recv_window.get() > 0) {
            self.read.set(read);
            return;
        }
        self.read.set(0);
        self.recv_window.set(self.recv_window.get() + i64::from(read));
        frame::push_window_update(&mut self.session.state.borrow_mut().out, self.id, read);
        self.session.notify();
    }

    /// Returns the window that padding used. Padding counts for flow control, but no handler reads it.
    pub(super) fn skip_padding(&self, n: u32) {
        if n > 0 {
            self.open_window(n);
        }
    }

    /// Sends END_STREAM, unless it has been sent.
    fn end_sending(&self, s: &mut SessionState) {
        if self.end_sent.replace(true) {
            return;
        }
        let at = self.frame.get().and_then(|f| f.checked_sub(s.out_start));
        // If the last frame is still in the buffer, set END_STREAM on it. Otherwise send an empty DATA frame.
        let flags = at.and_then(|at| s.out.get_mut(usize::try_from(at).ok()? + 4));
        match flags {
            Some(flags) => *flags |= flag::END_STREAM,
            None => frame::push_header(&mut s.out, 0, kind::DATA, flag::END_STREAM, self.id),
        }
    }
}

impl Reused for Stream {
    type Session = Session;

    fn retire(&mut self, nobody: Rc<Session>) {
        self.session = nobody;
        self.received = RefCell::default();
        self.request.retire();
    }
}

impl RequestStream for Stream {
    fn state(&self) -> &RequestState {
        &self.request
    }

    fn client(&self) -> Rc<Client> {
        self.session.client.clone()
    }

    fn leave(&self) {
        self.session.leave();
    }

    fn set_chunk(&self, n: usize) {
        self.chunk.set(n.clamp(1, frame::MAX_FRAME));
    }

    /// If the request is incomplete or malformed, also resets the stream (RFC 9113, sections 8.1 and 8.1.1).
    fn finish(&self) {
        if self.request.set_finished() || self.request.is_broken() {
            return;
        }
        let mut s = self.session.state.borrow_mut();
        self.end_sending(&mut s);
        let open = !self.ended.get();
        let malformed = self.request.ends_malformed();
        if malformed || open {
            // NO_ERROR has the client stop sending although its request has been answered (RFC 9113, section 8.1).
            let code = if malformed { Code::ProtocolError } else { Code::NoError };
            s.push_reset(self.id, code);
        }
        s.remove(self.id, open || malformed);
        if !malformed {
            s.budget.finished();
        } else if let Err(what) = s.budget.reset() {
            s.excess(what);
        }
        drop(s);
        self.request.set_broken();
        self.session.notify();
    }

    fn reset(&self, why: Reset) {
        if self.request.set_finished() || self.request.is_broken() {
            return;
        }
        self.request.set_broken();
        let mut s = self.session.state.borrow_mut();
        let code = match why {
            Reset::Internal => Code::InternalError,
            Reset::Cancelled => Code::Cancel,
        };
        s.push_reset(self.id, code);
        s.remove(self.id, true);
        if let Err(what) = s.budget.reset() {
            s.excess(what);
        }
        drop(s);
        self.session.notify();
    }

    fn recycle(self: Rc<Self>, thread: &Thread) {
        thread.h2.ended.borrow_mut().give(self, Session::nobody);
    }
}

impl Mux for Stream {
    fn read(&self, buf: &mut Vec<u8>) -> Result<usize, Errno> {
        if self.request.is_broken() {
            return Err(Errno::CONNRESET);
        }
        let mut received = self.received.borrow_mut();
        let n = received.len().min(buf.capacity() - buf.len());
        if n == 0 {
            if self.request.is_malformed() {
                return Err(Errno::PROTO);
            }
            return if self.ended.get() { Ok(0) } else { Err(Errno::AGAIN) };
        }
        buf.extend_from_slice(&received[..n]);
        received.drain(..n);
        drop(received);
        // Once the handler reads the body, widen the window beyond `http2_body_preread_size`.
        let wider = if self.widened.replace(true) { 0 } else { self.session.settings.window };
        self.open_window(n as u32 + wider);
        Ok(n)
    }

    fn send(&self, bytes: &[u8]) -> Result<Sent, Errno> {
        if self.request.is_broken() {
            return Err(Errno::CONNRESET);
        }
        let mut s = self.session.state.borrow_mut();
        let s = &mut *s;
        let mut rest = bytes;
        while !rest.is_empty() {
            let n = rest.len().min(s.room(self)).min(self.chunk.get());
            if n == 0 {
                break;
            }
            // END_STREAM may be set on this frame later, as long as it waits in the buffer.
            self.frame.set(Some(s.out_start + s.out.len() as u64));
            let (now, later) = rest.split_at(n);
            frame::push_header(&mut s.out, n, kind::DATA, 0, self.id);
            s.out.extend_from_slice(now);
            rest = later;
            s.connection.send_window.sent(n);
            let mut window = self.send_window.get();
            window.sent(n);
            self.send_window.set(window);
            s.moved += n as u64;
            s.budget.data_sent();
        }
        self.session.notify();
        Ok(Sent { bytes: bytes.len() - rest.len(), full: !rest.is_empty() })
    }

    fn room(&self) -> usize {
        self.session.state.borrow().room(self)
    }

    fn send_head(&self, block: &[u8], _: Then) {
        if self.request.is_broken() {
            return;
        }
        let mut s = self.session.state.borrow_mut();
        self.frame.set(Some(s.out_start + s.out.len() as u64));
        frame::push_field_block(&mut s.out, self.id, 0, block);
        drop(s);
        self.session.notify();
    }

    fn send_interim(&self, block: &[u8]) {
        self.send_head(block, Then::Nothing);
        // END_STREAM must not be set on this frame, because the final response follows.
        self.frame.set(None);
    }

    fn end(&self) {
        if !self.request.is_broken() {
            self.end_sending(&mut self.session.state.borrow_mut());
            self.session.notify();
        }
    }

    fn whole(&self) -> Option<usize> {
        (self.ended.get() && !self.request.is_malformed()).then(|| self.received.borrow().len())
    }

    fn is_broken(&self) -> bool {
        self.request.is_broken()
    }

    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        let is_readable = self.ended.get() || !self.received.borrow().is_empty();
        self.request.poll_reader(is_readable, cx)
    }

    fn poll_writable(self: Rc<Self>, cx: &mut Context<'_>) -> Poll<()> {
        let is_granted = !self.request.is_broken() && self.granted.replace(false);
        if self.request.poll_writer(is_granted, cx).is_ready() {
            return Poll::Ready(());
        }
        let mut s = self.session.state.borrow_mut();
        if !s.waiting.iter().any(|w| w.id == self.id) {
            s.waiting.push(self.clone());
            drop(s);
            // There may be room already.
            self.session.notify();
        }
        Poll::Pending
    }

    fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.request.poll_reader(false, cx)
    }

    fn wait_for_client(&self, begins: bool, now: Instant) {
        if self.request.wait(begins) == WaitChange::Changed {
            self.session.stream_waits(begins, now);
        }
    }

    fn is_given_up(&self) -> bool {
        self.session.is_given_up()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::mux::SpareStreams;

    #[test]
    fn memory_of_streams_is_used_again_but_nothing_else_of_them() {
        let session = Session::nobody();
        let mut spare = SpareStreams::default();
        let stream = |id, window| {
            let session = &session;
            move || Stream::new(session, id, Window::new(window))
        };
        let held = spare.take(stream(1, 10));
        let place = Rc::as_ptr(&held);
        spare.give(held.clone(), Session::nobody);
        assert_ne!(Rc::as_ptr(&spare.take(stream(3, 10))), place, "somebody has it yet");
        held.received.borrow_mut().extend_from_slice(b"content");
        held.ended.set(true);
        let before = Rc::strong_count(&session);
        spare.give(held, Session::nobody);
        assert_eq!(Rc::strong_count(&session), before - 1, "it does not keep its connection");
        let next = spare.take(stream(3, 20));
        assert_eq!((Rc::as_ptr(&next), next.id, next.send_window.get().available()), (place, 3, 20));
        assert!(next.received.borrow().is_empty() && !next.ended.get());
    }
}
