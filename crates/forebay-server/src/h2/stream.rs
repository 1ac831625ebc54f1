//! One request and its response on an HTTP/2 connection. Hot path.

use super::{Session, SessionState};
use crate::connection::mux::{RequestStream, Reset, Reused};
use crate::thread::Thread;
use forebay_core::client::Client;
use forebay_http::h2::connection::Window;
use forebay_http::h2::frame::{self, Code, flag, kind};
use forebay_http::h2::request::Refusal;
use forebay_http::priority::Priority;
use forebay_http::request::RequestHead;
use forebay_net::mux::Mux;
use forebay_net::wire::{Sent, Then};
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

/// A stream.
#[derive(Debug)]
pub struct Stream {
    /// Stream number; odd, since clients open streams.
    pub id: u32,
    session: Rc<Session>,
    /// Number of the request on its connection.
    pub(super) number: Cell<u32>,
    /// The request, until its runner takes it.
    pub(super) head: RefCell<Option<Box<RequestHead>>>,
    /// Reason for refusing the request.
    pub refusal: Cell<Option<Refusal>>,
    pub(super) send_window: Cell<Window>,
    pub(super) recv_window: Cell<i64>,
    /// Content received, not read by the handler yet.
    pub(super) received: RefCell<Vec<u8>>,
    /// Content read since the last WINDOW_UPDATE, bytes.
    read: Cell<u32>,
    /// The client has sent END_STREAM.
    pub(super) ended: Cell<bool>,
    /// Bytes of the announced `Content-Length` that have not arrived.
    pub(super) promised: Cell<Option<u64>>,
    /// The length of the content differs from `Content-Length`.
    pub(super) wrong_length: Cell<bool>,
    /// END_STREAM has been queued.
    end_sent: Cell<bool>,
    /// Bytes of the field block as received.
    pub(super) head_len: Cell<u32>,
    /// The handler has begun to read, so the window was widened beyond `http2_body_preread_size`.
    widened: Cell<bool>,
    /// The stream or the connection is gone.
    broken: Cell<bool>,
    /// The response is complete.
    finished: Cell<bool>,
    pub(super) priority: Cell<Priority>,
    pub(super) granted: Cell<bool>,
    /// Offset of this stream's last frame header, counted like `SessionState::out_start`.
    frame: Cell<Option<u64>>,
    /// `http2_chunk_size` of the location.
    chunk: Cell<usize>,
    /// Number of current waits for the client.
    waits: Cell<u32>,
    reader: RefCell<Option<Waker>>,
    writer: RefCell<Option<Waker>>,
}

impl Stream {
    #[inline]
    pub(super) fn new(session: &Rc<Session>, id: u32, send_window: Window) -> Stream {
        Stream {
            id,
            session: session.clone(),
            number: Cell::new(0),
            head: RefCell::new(None),
            refusal: Cell::new(None),
            send_window: Cell::new(send_window),
            recv_window: Cell::new(i64::from(session.settings.window)),
            received: RefCell::default(),
            read: Cell::new(0),
            ended: Cell::new(false),
            promised: Cell::new(None),
            wrong_length: Cell::new(false),
            end_sent: Cell::new(false),
            head_len: Cell::new(0),
            widened: Cell::new(false),
            broken: Cell::new(false),
            finished: Cell::new(false),
            priority: Cell::new(Priority::DEFAULT),
            granted: Cell::new(false),
            frame: Cell::new(None),
            chunk: Cell::new(8192),
            waits: Cell::new(0),
            reader: RefCell::default(),
            writer: RefCell::default(),
        }
    }

    /// Ends the stream and wakes its reader and writer. Also sends RST_STREAM if there is a code.
    pub(super) fn break_off(&self, reset: Option<Code>) {
        self.broken.set(true);
        self.received.replace(Vec::new());
        if let Some(code) = reset {
            let mut s = self.session.state.borrow_mut();
            s.push_reset(self.id, code);
        }
        self.wake_reader();
        self.wake_writer();
    }

    pub(super) fn wake_reader(&self) {
        if let Some(w) = self.reader.borrow_mut().take() {
            w.wake();
        }
    }

    pub(super) fn wake_writer(&self) {
        if let Some(w) = self.writer.borrow_mut().take() {
            w.wake();
        }
    }

    /// Returns `n` bytes of window to the client. Sends WINDOW_UPDATE only from half a window on, or when the window is
    /// empty.
    fn open_window(&self, n: u32) {
        let read = self.read.get() + n;
        if self.ended.get() || (read < self.session.settings.window / 2 && self.recv_window.get() > 0) {
            self.read.set(read);
            return;
        }
        self.read.set(0);
        self.recv_window.set(self.recv_window.get() + i64::from(read));
        frame::push_window_update(&mut self.session.state.borrow_mut().out, self.id, read);
        self.session.notify();
    }

    /// Returns the window that padding took: padding counts for flow control, but is never read.
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
        self.reader = RefCell::default();
        self.writer = RefCell::default();
    }
}

impl RequestStream for Stream {
    fn client(&self) -> Rc<Client> {
        self.session.client.clone()
    }

    fn number(&self) -> u32 {
        self.number.get()
    }

    fn take_head(&self) -> Option<Box<RequestHead>> {
        self.head.borrow_mut().take()
    }

    fn head_len(&self) -> u32 {
        self.head_len.get()
    }

    fn refusal(&self) -> Option<Refusal> {
        self.refusal.get()
    }

    fn leave(&self) {
        self.session.leave();
    }

    fn set_chunk(&self, n: usize) {
        self.chunk.set(n.clamp(1, frame::MAX_FRAME));
    }

    /// If the request is incomplete or malformed, also resets the stream (RFC 9113, sections 8.1 and 8.1.1).
    fn finish(&self) {
        if self.finished.replace(true) || self.broken.get() {
            return;
        }
        let mut s = self.session.state.borrow_mut();
        self.end_sending(&mut s);
        let open = !self.ended.get();
        let malformed = self.wrong_length.get() || self.refusal.get().is_some_and(|r| r.malformed);
        if malformed || open {
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
        self.broken.set(true);
        self.session.notify();
    }

    fn reset(&self, why: Reset) {
        if self.finished.replace(true) || self.broken.get() {
            return;
        }
        self.broken.set(true);
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
        thread.h2.give_stream(self);
    }
}

impl Mux for Stream {
    fn read(&self, buf: &mut Vec<u8>) -> Result<usize, Errno> {
        if self.broken.get() {
            return Err(Errno::CONNRESET);
        }
        let mut received = self.received.borrow_mut();
        let n = received.len().min(buf.capacity() - buf.len());
        if n == 0 {
            if self.wrong_length.get() {
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
        if self.broken.get() {
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
        if self.broken.get() {
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
        // END_STREAM must not be set on this frame: the final response follows.
        self.frame.set(None);
    }

    fn end(&self) {
        if !self.broken.get() {
            self.end_sending(&mut self.session.state.borrow_mut());
            self.session.notify();
        }
    }

    fn whole(&self) -> Option<usize> {
        (self.ended.get() && !self.wrong_length.get()).then(|| self.received.borrow().len())
    }

    fn is_broken(&self) -> bool {
        self.broken.get()
    }

    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.broken.get() || self.ended.get() || !self.received.borrow().is_empty() {
            return Poll::Ready(());
        }
        *self.reader.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }

    fn poll_writable(self: Rc<Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.broken.get() || self.granted.replace(false) {
            return Poll::Ready(());
        }
        *self.writer.borrow_mut() = Some(cx.waker().clone());
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
        if self.broken.get() {
            return Poll::Ready(());
        }
        *self.reader.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }

    fn wait_for_client(&self, begins: bool, now: Instant) {
        let n = if begins { self.waits.get() + 1 } else { self.waits.get().saturating_sub(1) };
        let before = self.waits.replace(n);
        if (before == 0) != (n == 0) {
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
