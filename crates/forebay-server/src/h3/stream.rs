//! One request and its response on an HTTP/3 connection. Hot path.

use super::Session;
use super::head_deadlines::Waiting;
use super::session::Head;
use crate::connection::mux::{RequestState, RequestStream, Reset, Reused, WaitChange};
use crate::thread::Thread;
use bytes::Bytes;
use forebay_core::client::Client;
use forebay_http::field::Name;
use forebay_http::h2::request::Refusal;
use forebay_http::h3::connection::Role;
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
use std::task::{Context, Poll};
use std::time::Instant;

/// Maximum of content that is taken from QUIC to find out whether it is whole, bytes.
const HELD: usize = 64 * 1024;

/// A request stream.
#[derive(Debug)]
pub struct Stream {
    pub(super) id: StreamId,
    session: Rc<Session>,
    /// The request and its response follow HTTP/0.9, which has no frames.
    is_bare: bool,
    request: RequestState,
    begun: Cell<bool>,
    /// Entry with the time limit of a head that is not complete.
    waiting: RefCell<Option<Waiting>>,
    input: RefCell<Input>,
    /// Field section that waits for insertions into the table, with the number of insertions that it needs.
    pub(super) blocked_section: RefCell<Option<(u64, Bytes)>>,
    output: RefCell<Output>,
    /// A PRIORITY_UPDATE frame has set the priority, which takes precedence over the field.
    updated: Cell<bool>,
    /// Turn of the last write.
    turn: Cell<u64>,
}

impl Stream {
    #[inline]
    pub(super) fn new(session: &Rc<Session>, id: StreamId, longest: usize, is_bare: bool) -> Stream {
        Stream {
            id,
            session: session.clone(),
            is_bare,
            request: RequestState::new(),
            begun: Cell::new(false),
            waiting: RefCell::default(),
            input: RefCell::new(Input::new(Role::Server, id.0, longest)),
            blocked_section: RefCell::new(None),
            output: RefCell::new(Output::new(id.0, is_bare)),
            updated: Cell::new(false),
            turn: Cell::new(0),
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
        if self.request.priority.replace(priority) == priority {
            return;
        }
        if let Some(link) = self.session.link() {
            let _ = link.streams().set_priority(self.id, rank(priority, self.id.index()));
        }
    }

    /// Returns the place among the streams that may write. Streams that take turns are ordered by their last writes.
    pub(super) fn order(&self) -> (u8, u64, u64) {
        let (urgency, number) = self.request.priority.get().order(self.id.index());
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
        !self.begun.get()
            && !self.request.is_broken()
            && (self.is_waiting() || self.input.borrow().held() > 0)
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
            // QUIC often has the end together with the head.
            let _ = input.fill(link.as_ref());
        }
        input.has_ended() && input.is_drained()
    }

    /// Begins the request.
    pub(super) fn begin(&self, number: u32, head: Head, len: usize, refusal: Option<Refusal>) {
        self.begun.set(true);
        self.waiting.take();
        self.request.number.set(number);
        if let Framing::Length(n) = head.framing
            && head.get(Name::ContentLength).is_some()
        {
            self.request.promise(n);
        }
        self.request.begin(head, len, refusal);
    }

    /// Sets the time limit of an incomplete head. Without an entry there is no limit.
    pub(super) fn wait_for_head(&self, waiting: Waiting) {
        if !self.begun.get() && !self.request.is_broken() {
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
        if reset && !self.request.is_broken() {
            self.break_off(Some(Code::RequestCancelled));
            return self.session.count_reset();
        }
        self.request.wake_reader();
        Ok(())
    }

    /// Notes that QUIC takes more.
    pub(super) fn writable(&self) {
        self.output.borrow_mut().note_room();
        let _ = self.send_pending();
        // The runner has finished before QUIC could take everything, so the stream ends here.
        if self.request.has_finished() && self.output.borrow().has_ended() {
            self.request.set_broken();
            self.session.remove(self.id, true);
        }
        self.request.wake_writer();
    }

    /// Ends the stream, and wakes its reader and writer. Tells the client if there is a code.
    pub(super) fn break_off(&self, reset: Option<Code>) {
        if self.request.set_broken() {
            return;
        }
        if let Some(why) = reset {
            self.tell(why);
            if !self.begun.get() {
                self.session.remove(self.id, false);
            }
        }
        self.request.wake_reader();
        self.request.wake_writer();
    }

    /// Has the client stop sending, if it has not ended its side.
    fn stop(&self, why: Code) {
        let waiting = self.blocked_section.take().is_some();
        let ended = self.input.borrow().has_ended();
        if !ended && let Some(link) = self.session.link() {
            let _ = link.streams().stop(self.id, why.number());
        }
        // Sections that are never decoded must not hold entries of the client's table (RFC 9204, section 4.4.2).
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

    /// Has QUIC take bytes by `send`.
    fn give<R>(&self, send: impl FnOnce(&mut Output, &Link) -> Result<R, Unwritten>) -> Result<R, Errno> {
        let Some(link) = self.session.link() else { return Err(Errno::CONNRESET) };
        let mut output = self.output.borrow_mut();
        let sent = send(&mut output, link);
        if output.take_progress() {
            // Of streams that take turns, the one that has written last waits for all others.
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
        if self.request.is_broken() || self.is_bare {
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
        self.request.set_malformed();
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
            self.request.set_malformed();
        }
        self.request.wake_reader();
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
                Next::Content => {
                    let n = buf.len() - before;
                    self.session.moved(n);
                    return self.request.receive(n, false).map(|()| n);
                }
                Next::Section(section) => {
                    self.trailers(section).map_err(|fatal| self.note(Failure::Connection(fatal)))?;
                    if self.request.is_malformed() {
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
                // Only the end shows whether all of the announced content has come.
                Next::End => return self.request.receive(0, true).map(|()| 0),
                Next::Nothing => return Err(Errno::AGAIN),
            }
        }
    }

    /// Reads what has arrived after the part that the handler wanted, because mistakes in the rest count as well.
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
        self.request.set_broken();
        Errno::CONNRESET
    }
}

/// Number of streams of one urgency that QUIC can distinguish.
const RANKS: i32 = 1 << 26;

/// Returns the priority for QUIC. Streams with a greater one go first, and streams with the same one take turns. Clients that give no
/// priority get QUIC's default. `number` is the position of the request on its connection.
fn rank(priority: Priority, number: u64) -> i32 {
    let level = i32::from(Priority::DEFAULT.urgency) - i32::from(priority.urgency);
    let within = match priority.incremental {
        true => 0,
        // A response that is not incremental is of use only as a whole, so the earlier of two requests gets its response first (RFC
        // 9218).
        false => RANKS - 1 - i32::try_from(number).unwrap_or(i32::MAX).min(RANKS - 2),
    };
    level * RANKS + within
}

impl Reused for Stream {
    type Session = Session;

    fn retire(&mut self, nobody: Rc<Session>) {
        self.session = nobody;
        self.input = RefCell::new(Input::new(Role::Server, 0, 0));
        self.blocked_section = RefCell::default();
        self.output = RefCell::default();
        self.request.retire();
    }
}

impl RequestStream for Stream {
    fn state(&self) -> &RequestState {
        &self.request
    }

    fn client(&self) -> Rc<Client> {
        self.session.client()
    }

    fn leave(&self) {
        self.session.leave();
    }

    /// A client that is still sending is asked to stop (RFC 9114, sections 4.1 and 4.1.2).
    fn finish(&self) {
        if self.request.set_finished() || self.request.is_broken() {
            self.session.remove(self.id, false);
            return;
        }
        self.skip_rest();
        let malformed = self.request.ends_malformed();
        let cut = self.output.borrow().is_cut();
        if cut {
            self.tell(Code::InternalError);
        } else {
            self.end();
        }
        // A client that still sends after a complete response is not to blame (RFC 9114, section 4.1).
        self.stop(if malformed { Code::MessageError } else { Code::NoError });
        // The stream must be found when it becomes writable, so it stays until QUIC has taken everything.
        if self.output.borrow().has_ended() || cut {
            self.request.set_broken();
            self.session.remove(self.id, !malformed && !cut);
        }
        self.session.notify();
    }

    fn reset(&self, why: Reset) {
        if self.request.set_finished() {
            return;
        }
        if !self.request.set_broken() {
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
        if self.request.is_broken() {
            return Err(Errno::CONNRESET);
        }
        if self.request.is_malformed() {
            return Err(Errno::PROTO);
        }
        let read = self.pull(buf);
        if matches!(read, Ok(1..)) {
            // The window may have become wide enough to announce it to the client.
            self.session.notify();
        }
        read
    }

    fn send(&self, bytes: &[u8]) -> Result<Sent, Errno> {
        if self.request.is_broken() {
            return Err(Errno::CONNRESET);
        }
        let done = self.give(|output, link| output.send(link, bytes))?;
        Ok(self.moved(done, bytes.len()))
    }

    fn send_shared(&self, bytes: &Bytes, then: Then) -> Result<Sent, Errno> {
        if self.request.is_broken() {
            return Err(Errno::CONNRESET);
        }
        let done = self.give(|output, link| match then {
            // The end of the stream leaves in the frame of the last content.
            Then::Close => output.send_last(link, bytes),
            _ => output.send_shared(link, bytes),
        })?;
        Ok(self.moved(done, bytes.len()))
    }

    fn room(&self) -> usize {
        if self.request.is_broken() { 0 } else { self.output.borrow().room() }
    }

    fn send_head(&self, block: &[u8], then: Then) {
        // With `More`, the head waits for the content that follows at once, and both leave together.
        if self.push_section(block) && then != Then::More {
            let _ = self.send_pending();
        }
    }

    fn send_interim(&self, block: &[u8]) {
        self.send_head(block, Then::Nothing);
    }

    fn end(&self) {
        let mut output = self.output.borrow_mut();
        if !self.request.is_broken() && !output.has_ended() {
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
        self.request.promised().is_none_or(|promised| promised == whole as u64).then_some(whole)
    }

    fn is_broken(&self) -> bool {
        self.request.is_broken()
    }

    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        let may_give = self.input.borrow().may_give() && !self.is_waiting();
        self.request.poll_reader(self.request.is_malformed() || may_give, cx)
    }

    fn poll_writable(self: Rc<Self>, cx: &mut Context<'_>) -> Poll<()> {
        self.request.poll_writer(!self.output.borrow().is_full(), cx)
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

    #[test]
    fn ranks_are_those_of_the_priorities() {
        let of = |text: &[u8], number| rank(Priority::parse(text), number);
        assert_eq!(rank(Priority::DEFAULT, 9), 0);
        assert!(of(b"u=0, i", 9) > of(b"u=1", 0) && of(b"u=1", 0) > of(b"u=1", 1));
        assert!(of(b"u=1", u64::MAX) > of(b"u=1, i", 0) && of(b"u=1, i", 0) == of(b"u=1, i", 9));
        assert!(of(b"u=7, i", 0) < of(b"u=6, i", 0) && of(b"u=7", 0) < of(b"u=6, i", 0));
    }
}
