//! One request and its response on an HTTP/3 connection. Hot path.

use super::Session;
use super::heads::Waiting;
use super::session::Head;
use crate::connection::mux::{RequestStream, Reset, Reused};
use crate::thread::Thread;
use bytes::Bytes;
use forebay_core::client::Client;
use forebay_http::field::Name;
use forebay_http::h2::request::Refusal;
use forebay_http::h3::input::{Failure, Input, Next};
use forebay_http::h3::output::Output;
use forebay_http::h3::tables::Required;
use forebay_http::h3::transport::Unwritten;
use forebay_http::h3::{Code, Fatal};
use forebay_http::priority::Priority;
use forebay_http::request::Framing;
use forebay_net::mux::Mux;
use forebay_net::quic::{Link, StreamId};
use forebay_net::wire::{Sent, Then};
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

/// Content that is taken from QUIC to see whether it is whole, bytes.
const HELD: usize = 64 * 1024;

/// A request stream.
#[derive(Debug)]
pub struct Stream {
    pub(super) id: StreamId,
    session: Rc<Session>,
    /// The request and its response are those of HTTP/0.9: bytes without frames.
    is_bare: bool,
    /// Number of the request on its connection.
    number: Cell<u32>,
    /// The request, until its runner takes it.
    head: RefCell<Option<Head>>,
    refusal: Cell<Option<Refusal>>,
    head_len: Cell<u32>,
    begun: Cell<bool>,
    /// The head is not complete: the time that it has.
    waiting: RefCell<Option<Waiting>>,
    input: RefCell<Input>,
    /// Field section that waits for so many insertions.
    pub(super) blocked_section: RefCell<Option<(u64, Bytes)>>,
    /// Bytes of the announced `Content-Length` that have not arrived.
    promised: Cell<Option<u64>>,
    /// The length of the content differs from `Content-Length`, or trailers are malformed (RFC 9114, section 4.1.2).
    malformed: Cell<bool>,
    output: RefCell<Output>,
    /// The stream or the connection is gone.
    broken: Cell<bool>,
    finished: Cell<bool>,
    waits: Cell<u32>,
    priority: Cell<Priority>,
    /// A PRIORITY_UPDATE frame has set it, which takes precedence over the field.
    updated: Cell<bool>,
    /// Turn of the last write.
    turn: Cell<u64>,
    reader: RefCell<Option<Waker>>,
    writer: RefCell<Option<Waker>>,
}

impl Stream {
    #[inline]
    pub(super) fn new(session: &Rc<Session>, id: StreamId, longest: usize, is_bare: bool) -> Stream {
        Stream {
            id,
            session: session.clone(),
            is_bare,
            number: Cell::new(0),
            head: RefCell::new(None),
            refusal: Cell::new(None),
            head_len: Cell::new(0),
            begun: Cell::new(false),
            waiting: RefCell::default(),
            input: RefCell::new(Input::new(id.0, longest)),
            blocked_section: RefCell::new(None),
            promised: Cell::new(None),
            malformed: Cell::new(false),
            output: RefCell::new(Output::new(id.0, is_bare)),
            broken: Cell::new(false),
            finished: Cell::new(false),
            waits: Cell::new(0),
            priority: Cell::new(Priority::DEFAULT),
            updated: Cell::new(false),
            turn: Cell::new(0),
            reader: RefCell::default(),
            writer: RefCell::default(),
        }
    }

    /// Returns `true` if a runner has the request.
    pub(super) fn has_begun(&self) -> bool {
        self.begun.get()
    }

    /// Takes over the priority that the request's field gives.
    pub(super) fn prioritize(&self, priority: Priority) {
        if !self.updated.get() {
            self.set_priority(priority);
        }
    }

    /// Takes over the priority of a PRIORITY_UPDATE frame.
    pub(super) fn update_priority(&self, priority: Priority) {
        self.updated.set(true);
        self.set_priority(priority);
    }

    fn set_priority(&self, priority: Priority) {
        if self.priority.replace(priority) == priority {
            return;
        }
        if let Some(link) = self.session.link() {
            let _ = link.streams().set_priority(self.id, rank(priority, self.id.index()));
        }
    }

    /// Returns the place among the streams that may write. Those that take turns are in the order of their last writes.
    pub(super) fn order(&self) -> (u8, u64, u64) {
        let (urgency, number) = self.priority.get().order(self.id.index());
        (urgency, number, self.turn.get())
    }

    /// Notes that QUIC has something to read.
    pub(super) fn note_readable(&self) {
        self.input.borrow_mut().note_readable();
    }

    /// Reads the field section of the request, or its line.
    pub(super) fn read_section(&self) -> Result<Next, Failure> {
        if self.is_waiting() {
            return Ok(Next::Nothing);
        }
        let Some(link) = self.session.link() else { return Ok(Next::Nothing) };
        match self.input.borrow_mut().head(link.as_ref(), self.is_bare)? {
            Next::End => Err(Failure::Reset),
            found => Ok(found),
        }
    }

    /// Returns `true` if the client has reset the stream while the head waits for insertions. QUIC forgets the stream then.
    pub(super) fn is_reset_while_waiting(&self) -> bool {
        let link = self.session.link().filter(|_| self.is_waiting());
        link.is_some_and(|link| link.streams().received_reset(self.id).is_some())
    }

    /// Returns `true` if the head or the trailers wait for insertions.
    pub(super) fn is_waiting(&self) -> bool {
        self.blocked_section.borrow().is_some()
    }

    /// Returns `true` if some of the head has come, and no runner has the request.
    pub(super) fn has_begun_head(&self) -> bool {
        !self.begun.get() && !self.broken.get() && (self.is_waiting() || self.input.borrow().held() > 0)
    }

    /// Stops waiting for insertions: the client has reset the stream. Returns `false` if the head did not wait.
    pub(super) fn stop_waiting(&self) -> bool {
        let waited = self.blocked_section.take().is_some();
        if waited {
            self.input.borrow_mut().cut_off();
        }
        waited
    }

    /// Returns `true` if the client has ended the stream before its request was complete.
    pub(super) fn is_incomplete(&self) -> bool {
        self.input.borrow().has_ended()
    }

    /// Returns `true` if the request has no content: its end has been received with the head.
    pub(super) fn ends(&self) -> bool {
        let mut input = self.input.borrow_mut();
        if input.is_drained()
            && let Some(link) = self.session.link()
        {
            // The end often comes with the head.
            let _ = input.fill(link.as_ref());
        }
        input.has_ended() && input.is_drained()
    }

    /// Begins the request.
    pub(super) fn begin(&self, number: u32, head: Head, len: usize, refusal: Option<Refusal>) {
        self.begun.set(true);
        self.waiting.take();
        self.number.set(number);
        self.head_len.set(u32::try_from(len).unwrap_or(u32::MAX));
        self.refusal.set(refusal);
        if let Framing::Length(n) = head.framing
            && head.get(Name::ContentLength).is_some()
        {
            self.promised.set(Some(n));
        }
        *self.head.borrow_mut() = Some(head);
    }

    /// Sets the time that an incomplete head has. Without an entry it has any.
    pub(super) fn wait_for_head(&self, waiting: Waiting) {
        if !self.begun.get() && !self.broken.get() {
            self.waiting.replace(Some(waiting));
        }
    }

    /// Ends the stream because its head has taken too long.
    pub(super) fn time_out(&self, thread: &Rc<Thread>) {
        self.waiting.take();
        self.session.guard(|| self.session.time_out(thread, self));
    }

    /// Wakes the handler if there is something for it, or the request has been given up.
    pub(super) fn look(&self) -> Result<(), Fatal> {
        let reset = self.session.link().is_some_and(|link| link.streams().received_reset(self.id).is_some());
        if reset && !self.broken.get() {
            self.break_off(Some(Code::RequestCancelled));
            return self.session.count_reset();
        }
        self.wake_reader();
        Ok(())
    }

    /// Notes that QUIC takes more.
    pub(super) fn writable(&self) {
        self.output.borrow_mut().note_room();
        let _ = self.send_pending();
        if self.finished.get() && self.output.borrow().has_ended() {
            self.broken.set(true);
            self.session.remove(self.id, true);
        }
        self.wake_writer();
    }

    /// Ends the stream, and wakes its reader and writer. Tells the client if there is a code.
    pub(super) fn break_off(&self, reset: Option<Code>) {
        if self.broken.replace(true) {
            return;
        }
        if let Some(why) = reset {
            self.tell(why);
            if !self.begun.get() {
                self.session.remove(self.id, false);
            }
        }
        self.wake_reader();
        self.wake_writer();
    }

    /// Has the client stop sending, if it has not ended its side.
    fn stop(&self, why: Code) {
        let waiting = self.blocked_section.take().is_some();
        let ended = self.input.borrow().has_ended();
        if !ended && let Some(link) = self.session.link() {
            let _ = link.streams().stop(self.id, why.number());
        }
        if !ended || waiting {
            self.session.cancel_sections(self.id);
        }
    }

    /// Ends both directions with a code.
    fn tell(&self, why: Code) {
        self.stop(why);
        if let Some(link) = self.session.link() {
            let _ = link.streams().reset(self.id, why.number());
        }
        self.session.notify();
    }

    fn wake_reader(&self) {
        if let Some(w) = self.reader.borrow_mut().take() {
            w.wake();
        }
    }

    fn wake_writer(&self) {
        if let Some(w) = self.writer.borrow_mut().take() {
            w.wake();
        }
    }

    /// Has QUIC take bytes by `send`.
    fn give<R>(&self, send: impl FnOnce(&mut Output, &Link) -> Result<R, Unwritten>) -> Result<R, Errno> {
        let Some(link) = self.session.link() else { return Err(Errno::CONNRESET) };
        let mut output = self.output.borrow_mut();
        let sent = send(&mut output, link);
        if output.take_progress() {
            self.turn.set(self.session.next_turn());
            self.session.notify();
        }
        drop(output);
        sent.map_err(|_| Errno::CONNRESET)
    }

    /// Sends what waits.
    fn send_pending(&self) -> Result<bool, Errno> {
        self.give(|output, link| output.flush(link))
    }

    /// Queues a HEADERS frame. Returns `false` if there is none to send.
    fn push_section(&self, section: &[u8]) -> bool {
        if self.broken.get() || self.is_bare {
            return false;
        }
        self.session.push_section(self.id, section, self.output.borrow_mut().frames());
        true
    }

    /// Notes `n` bytes of `len` that have been queued as content.
    fn moved(&self, n: usize, len: usize) -> Sent {
        self.session.moved(n);
        Sent { bytes: n, full: n < len || self.output.borrow().waits() }
    }

    /// Notes trailers that are too large: the request is malformed (RFC 9114, section 4.2.2).
    fn skip_trailers(&self) {
        self.session.cancel_sections(self.id);
        self.malformed.set(true);
    }

    /// Handles the trailers, or has them wait for insertions.
    fn trailers(&self, section: Bytes) -> Result<(), Fatal> {
        match self.session.required(&section)? {
            Required::Awaited(required) => *self.blocked_section.borrow_mut() = Some((required, section)),
            Required::Here(_) => self.end_by_trailers(&section)?,
        }
        Ok(())
    }

    /// Handles trailers whose insertions are there.
    pub(super) fn end_by_trailers(&self, section: &[u8]) -> Result<(), Fatal> {
        if !self.session.trailers(self.id, section)? {
            self.malformed.set(true);
        }
        self.wake_reader();
        Ok(())
    }

    /// Reads content, or finds out why there is none.
    fn pull(&self, buf: &mut Vec<u8>) -> Result<usize, Errno> {
        let Some(link) = self.session.link() else { return Err(Errno::CONNRESET) };
        if self.is_waiting() {
            return Err(Errno::AGAIN);
        }
        let mut input = self.input.borrow_mut();
        loop {
            let before = buf.len();
            match input.read(link.as_ref(), buf).map_err(|failure| self.note(failure))? {
                Next::Content => return self.check_length(buf.len() - before),
                Next::Section(section) => {
                    self.trailers(section).map_err(|fatal| self.note(Failure::Connection(fatal)))?;
                    if self.malformed.get() {
                        return Err(Errno::PROTO);
                    }
                    if self.is_waiting() {
                        return Err(Errno::AGAIN);
                    }
                }
                Next::TooLarge => {
                    self.skip_trailers();
                    return Err(Errno::PROTO);
                }
                Next::End => {
                    return match self.promised.get() {
                        Some(1..) => {
                            self.malformed.set(true);
                            Err(Errno::PROTO)
                        }
                        _ => Ok(0),
                    };
                }
                Next::Nothing => return Err(Errno::AGAIN),
            }
        }
    }

    /// Checks content against `Content-Length`.
    fn check_length(&self, n: usize) -> Result<usize, Errno> {
        self.session.moved(n);
        if let Some(left) = self.promised.get() {
            match left.checked_sub(n as u64) {
                Some(left) => self.promised.set(Some(left)),
                None => {
                    self.malformed.set(true);
                    return Err(Errno::PROTO);
                }
            }
        }
        Ok(n)
    }

    /// Reads what has arrived behind the part that the handler wanted: mistakes there count as anywhere else.
    fn skip_rest(&self) {
        if self.is_bare {
            return;
        }
        let Some(link) = self.session.link() else { return };
        let mut input = self.input.borrow_mut();
        loop {
            let skipped = match input.drain(link.as_ref(), |_| {}) {
                Ok(Next::Section(section)) => self.trailers(section).map_err(Failure::Connection),
                Ok(Next::TooLarge) => {
                    self.skip_trailers();
                    Ok(())
                }
                Ok(_) => return,
                Err(failure) => Err(failure),
            };
            match skipped {
                Ok(()) => {}
                Err(Failure::Connection(fatal)) => return self.session.blame(fatal),
                Err(Failure::Reset) => return,
            }
        }
    }

    /// Notes a failure, for the connection.
    fn note(&self, failure: Failure) -> Errno {
        if let Failure::Connection(fatal) = failure {
            self.session.blame(fatal);
        }
        self.broken.set(true);
        Errno::CONNRESET
    }
}

/// Streams of an urgency that QUIC tells apart.
const RANKS: i32 = 1 << 26;

/// Returns the priority for QUIC: streams of greater ones go first, those of the same one take turns. That of clients that give none is
/// QUIC's default. `number`: position of the request on its connection.
fn rank(priority: Priority, number: u64) -> i32 {
    let level = i32::from(Priority::DEFAULT.urgency) - i32::from(priority.urgency);
    let within = match priority.incremental {
        true => 0,
        false => RANKS - 1 - i32::try_from(number).unwrap_or(i32::MAX).min(RANKS - 2),
    };
    level * RANKS + within
}

impl Reused for Stream {
    type Session = Session;

    fn retire(&mut self, nobody: Rc<Session>) {
        self.session = nobody;
        self.input = RefCell::new(Input::new(0, 0));
        self.blocked_section = RefCell::default();
        self.output = RefCell::default();
        self.reader = RefCell::default();
        self.writer = RefCell::default();
    }
}

impl RequestStream for Stream {
    fn client(&self) -> Rc<Client> {
        self.session.client()
    }

    fn number(&self) -> u32 {
        self.number.get()
    }

    fn take_head(&self) -> Option<Head> {
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

    /// A client that is still sending is told to stop (RFC 9114, sections 4.1 and 4.1.2).
    fn finish(&self) {
        if self.finished.replace(true) || self.broken.get() {
            self.session.remove(self.id, false);
            return;
        }
        self.skip_rest();
        let malformed = self.malformed.get() || self.refusal.get().is_some_and(|r| r.malformed);
        let cut = self.output.borrow().is_cut();
        if cut {
            self.tell(Code::InternalError);
        } else {
            self.end();
        }
        self.stop(if malformed { Code::MessageError } else { Code::NoError });
        // Until QUIC has taken everything the stream must be found when it becomes writable.
        if self.output.borrow().has_ended() || cut {
            self.broken.set(true);
            self.session.remove(self.id, !malformed && !cut);
        }
        self.session.notify();
    }

    fn reset(&self, why: Reset) {
        if self.finished.replace(true) {
            return;
        }
        if !self.broken.replace(true) {
            self.tell(match why {
                Reset::Internal => Code::InternalError,
                Reset::Cancelled => Code::RequestCancelled,
            });
        }
        self.session.remove(self.id, false);
    }

    fn recycle(self: Rc<Self>, thread: &Thread) {
        thread.quic.give_stream(thread, self);
    }
}

impl Mux for Stream {
    fn read(&self, buf: &mut Vec<u8>) -> Result<usize, Errno> {
        if self.broken.get() {
            return Err(Errno::CONNRESET);
        }
        if self.malformed.get() {
            return Err(Errno::PROTO);
        }
        let read = self.pull(buf);
        if matches!(read, Ok(1..)) {
            // The client may have to be told of the window.
            self.session.notify();
        }
        read
    }

    fn send(&self, bytes: &[u8]) -> Result<Sent, Errno> {
        if self.broken.get() {
            return Err(Errno::CONNRESET);
        }
        let done = self.give(|output, link| output.send(link, bytes))?;
        Ok(self.moved(done, bytes.len()))
    }

    fn send_shared(&self, bytes: &Bytes, then: Then) -> Result<Sent, Errno> {
        if self.broken.get() {
            return Err(Errno::CONNRESET);
        }
        let done = self.give(|output, link| match then {
            Then::Close => output.send_last(link, bytes),
            _ => output.send_shared(link, bytes),
        })?;
        Ok(self.moved(done, bytes.len()))
    }

    fn room(&self) -> usize {
        if self.broken.get() { 0 } else { self.output.borrow().room() }
    }

    fn send_head(&self, block: &[u8], then: Then) {
        if self.push_section(block) && then != Then::More {
            let _ = self.send_pending();
        }
    }

    fn send_interim(&self, block: &[u8]) {
        self.send_head(block, Then::Nothing);
    }

    fn end(&self) {
        let mut output = self.output.borrow_mut();
        if !self.broken.get() && !output.has_ended() {
            output.end();
            drop(output);
            let _ = self.send_pending();
        }
    }

    fn whole(&self) -> Option<usize> {
        let mut input = self.input.borrow_mut();
        if let Some(link) = self.session.link() {
            while !input.has_ended() && input.held() < HELD && input.fill(link.as_ref()).unwrap_or(false) {}
        }
        let whole = input.whole()?;
        self.promised.get().is_none_or(|promised| promised == whole as u64).then_some(whole)
    }

    fn is_broken(&self) -> bool {
        self.broken.get()
    }

    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        let input = self.input.borrow();
        if self.broken.get() || self.malformed.get() || input.may_give() && !self.is_waiting() {
            return Poll::Ready(());
        }
        *self.reader.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }

    fn poll_writable(self: Rc<Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.broken.get() || !self.output.borrow().is_full() {
            return Poll::Ready(());
        }
        *self.writer.borrow_mut() = Some(cx.waker().clone());
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

    #[test]
    fn ranks_are_those_of_the_priorities() {
        let of = |text: &[u8], number| rank(Priority::parse(text), number);
        assert_eq!(rank(Priority::DEFAULT, 9), 0);
        assert!(of(b"u=0, i", 9) > of(b"u=1", 0) && of(b"u=1", 0) > of(b"u=1", 1));
        assert!(of(b"u=1", u64::MAX) > of(b"u=1, i", 0) && of(b"u=1, i", 0) == of(b"u=1, i", 9));
        assert!(of(b"u=7, i", 0) < of(b"u=6, i", 0) && of(b"u=7", 0) < of(b"u=6, i", 0));
    }
}
