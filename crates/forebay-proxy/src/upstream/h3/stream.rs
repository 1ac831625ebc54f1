//! A request to an upstream and its response. Heads and trailers come by methods of their own, content as from any wire. Hot path.

use super::session::{Blocked, Decoded, Session};
use crate::upstream::pooled::{Problem, ProblemKind, RequestStream};
use bytes::Bytes;
use forebay_http::h3::client::{BadBlock, each_line, request_section};
use forebay_http::h3::connection::Role;
use forebay_http::h3::input::{Failure, Input, Next};
use forebay_http::h3::output::Output;
use forebay_http::h3::transport::Unwritten;
use forebay_http::h3::{Code, code_name};
use forebay_net::mux::Mux;
use forebay_net::quic::{Link, StreamId};
use forebay_net::wire::{Sent, Then};
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

/// Largest number of interim responses (RFC 9110, section 15.2).
const MAX_INTERIM: u32 = 100;

/// A request and its response. Dropping it cancels what is not over.
pub struct Stream {
    id: StreamId,
    session: Rc<Session>,
    input: RefCell<Input>,
    /// Field section that waits for so many insertions.
    blocked_section: RefCell<Option<Blocked>>,
    /// Interim responses so far.
    interim: Cell<u32>,
    /// Lines of the trailers, as HTTP/1 has them.
    trailers: RefCell<Vec<u8>>,
    /// The response has come whole.
    received: Cell<bool>,
    /// Bytes of field sections that have not been counted.
    uncounted: Cell<u64>,
    output: RefCell<Output>,
    /// The server reads no more of the request.
    stopped: Cell<bool>,
    problem: RefCell<Option<Problem>>,
    /// `true` if the connection is gone, but bytes that came before its end may still be read.
    drains: Cell<bool>,
    /// Code with which the request is cancelled.
    why: Cell<Code>,
    reader: RefCell<Option<Waker>>,
    writer: RefCell<Option<Waker>>,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        if self.session.is_over() {
            return;
        }
        // The end of the stream often comes with the last frame, so the response may be complete although nobody has read
        // its end.
        if !self.received.get() && !self.input.borrow().awaits_head() && self.skip_to_end() {
            self.received.set(true);
        }
        self.cancel();
        self.session.remove(self.id, self.received.get());
    }
}

/// For the session.
impl Stream {
    pub(super) fn new(session: &Rc<Session>, id: StreamId, longest: usize) -> Stream {
        Stream {
            id,
            session: session.clone(),
            input: RefCell::new(Input::new(Role::Client, id.0, longest)),
            blocked_section: RefCell::new(None),
            interim: Cell::new(0),
            trailers: RefCell::default(),
            received: Cell::new(false),
            uncounted: Cell::new(0),
            output: RefCell::new(Output::new(id.0, false)),
            stopped: Cell::new(false),
            problem: RefCell::new(None),
            drains: Cell::new(false),
            why: Cell::new(Code::RequestCancelled),
            reader: RefCell::default(),
            writer: RefCell::default(),
        }
    }

    /// Returns `true` if a field section waits for insertions.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked_section.borrow().is_some()
    }

    /// Goes on with a field section that has waited for insertions.
    pub(super) fn unblock(&self, inserted: u64) {
        if self.blocked_section.borrow().as_ref().is_some_and(|(required, _)| *required <= inserted) {
            wake(&self.reader);
        }
    }

    /// Notes that QUIC has something to read.
    pub(super) fn readable(&self) {
        self.input.borrow_mut().note_readable();
        // A statement of its own, which ends the borrow: the handlers use the link.
        let reset = self.session.link.streams().received_reset(self.id);
        match reset {
            Some(why) if !self.received.get() => self.break_off(reset_by(why)),
            _ => wake(&self.reader),
        }
    }

    /// Notes that QUIC takes more.
    pub(super) fn writable(&self) {
        self.output.borrow_mut().note_room();
        let _ = self.send_pending();
        wake(&self.writer);
    }

    /// Notes that the server reads no more of the request. Its response may still come (RFC 9114, section 4.1).
    pub(super) fn stopped(&self) {
        self.stopped.set(true);
        // QUIC requires a reset in answer to STOP_SENDING (RFC 9000, section 3.5).
        let _ = self.session.link.streams().reset(self.id, Code::NoError.number());
        self.session.notify();
        wake(&self.writer);
    }

    /// Has the request fail. With the end of the connection it fails once what has come before has been read: a server may close a
    /// connection as soon as we have acknowledged its responses.
    pub(super) fn break_off(&self, problem: Problem) {
        self.drains.set(self.session.is_over() && problem.kind != ProblemKind::Invalid);
        self.problem.borrow_mut().get_or_insert(problem);
        wake(&self.reader);
        wake(&self.writer);
    }
}

fn wake(waker: &RefCell<Option<Waker>>) {
    if let Some(waker) = waker.borrow_mut().take() {
        waker.wake();
    }
}

/// Returns the problem of a stream that the server has reset.
fn reset_by(number: u64) -> Problem {
    let name = code_name(number).map_or_else(|| format!("0x{number:x}"), str::to_owned);
    // With this code the server has not processed the request, so it may be sent again (RFC 9114, section 4.1.1).
    let kind = match number == Code::RequestRejected.number() {
        true => ProblemKind::Unsent,
        false => ProblemKind::Gone,
    };
    Problem { text: format!("reset the request ({name})").into(), kind }
}

fn invalid(text: impl Into<std::borrow::Cow<'static, str>>) -> Problem {
    Problem { text: text.into(), kind: ProblemKind::Invalid }
}

/// For the exchange.
impl Stream {
    /// Sends a field section by the static table. `end`: there is no content.
    fn begin(&self, section: &[u8], end: bool) {
        {
            let mut output = self.output.borrow_mut();
            self.session.push_section(self.id, section, output.frames());
            if end {
                output.end();
            }
        }
        let _ = self.send_pending();
    }

    /// Takes the next head, if it has come.
    fn take_head(&self, limit: usize) -> Result<Option<Vec<u8>>, Problem> {
        if let Some(problem) = self.problem().filter(|_| !self.drains.get()) {
            return Err(problem);
        }
        let waiting = self.blocked_section.take();
        let next = match waiting {
            Some((_, section)) => Ok(Next::Section(section)),
            None => self.input.borrow_mut().head(self.session.link.as_ref(), false),
        };
        match next {
            Ok(Next::Section(section)) => match self.section(section, false, limit)? {
                Some((status, lines)) => {
                    self.take_status(status)?;
                    Ok(Some(lines))
                }
                // The section waits for insertions, which will not come on a connection that is gone.
                None => self.drained().map(|()| None),
            },
            Ok(Next::TooLarge) => Err(self.give_up(invalid("sent too big header"), Code::ExcessiveLoad)),
            Ok(Next::End) => {
                self.received.set(true);
                Err(self.give_up(invalid("closed stream without a response"), Code::NoError))
            }
            Ok(Next::Nothing | Next::Content) => self.drained().map(|()| None),
            Err(failure) => Err(self.failed(failure)),
        }
    }

    /// Decodes a field section. Returns status and lines; `None` if it waits for insertions.
    fn section(
        &self,
        section: Bytes,
        trailers: bool,
        limit: usize,
    ) -> Result<Option<(u16, Vec<u8>)>, Problem> {
        let decoded = self.session.decode(self.id, &section, trailers, limit);
        let decoded = decoded.map_err(|fatal| self.failed(Failure::Connection(fatal)))?;
        match decoded {
            Ok(Decoded::Waits(required)) => {
                *self.blocked_section.borrow_mut() = Some((required, section));
                Ok(None)
            }
            Ok(Decoded::Lines(status, lines)) => {
                self.uncounted.set(self.uncounted.get() + section.len() as u64);
                Ok(Some((status, lines)))
            }
            Err(BadBlock::Compression) => Err(invalid("sent invalid field section")),
            Err(BadBlock::TooLarge) => Err(self.give_up(invalid("sent too big header"), Code::ExcessiveLoad)),
            Err(BadBlock::Malformed(what)) => {
                Err(self.give_up(invalid(format!("sent invalid {what}")), Code::MessageError))
            }
        }
    }

    /// Prepares for another head after the head of an interim response.
    fn take_status(&self, status: u16) -> Result<(), Problem> {
        match status {
            // HTTP/3 has no status 101 (RFC 9114, section 4.5).
            101 => Err(self.give_up(invalid("switched protocols over HTTP/3"), Code::MessageError)),
            100..200 if self.interim.get() >= MAX_INTERIM => {
                Err(self.give_up(invalid("sent too many interim responses"), Code::ExcessiveLoad))
            }
            100..200 => {
                self.interim.set(self.interim.get() + 1);
                self.input.borrow_mut().await_head();
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Fails the request alone; it is cancelled with a code.
    fn give_up(&self, problem: Problem, why: Code) -> Problem {
        self.why.set(why);
        self.problem.borrow_mut().get_or_insert(problem).clone()
    }

    /// Fails the request, and the connection if that is at fault.
    fn failed(&self, failure: Failure) -> Problem {
        match failure {
            Failure::Connection(fatal) => self.session.fail(fatal),
            Failure::Reset => {
                let text = "reset the request".into();
                self.problem.borrow_mut().get_or_insert(Problem { text, kind: ProblemKind::Gone });
            }
        }
        self.problem().unwrap_or_else(|| invalid("sent an invalid frame"))
    }

    /// Reads content, or finds out why there is none.
    fn pull(&self, buf: &mut Vec<u8>) -> Result<usize, Problem> {
        loop {
            if self.is_blocked() && !self.end_by_trailers()? {
                return self.drained().map(|()| 0);
            }
            let before = buf.len();
            // A statement of its own, which ends the borrow: the code below uses the input.
            let next = self.input.borrow_mut().read(self.session.link.as_ref(), buf);
            match next {
                Ok(Next::Content) => return Ok(buf.len() - before),
                Ok(Next::Section(section)) => {
                    *self.blocked_section.borrow_mut() = Some((0, section));
                }
                Ok(Next::TooLarge) => {
                    return Err(self.give_up(invalid("sent too big trailers"), Code::ExcessiveLoad));
                }
                Ok(Next::End) => {
                    self.received.set(true);
                    return Ok(0);
                }
                Ok(Next::Nothing) => return self.drained().map(|()| 0),
                Err(failure) => return Err(self.failed(failure)),
            }
        }
    }

    /// Returns the problem of a connection that is gone, now that all of what has come before has been read.
    fn drained(&self) -> Result<(), Problem> {
        self.drains.set(false);
        self.problem().map_or(Ok(()), Err)
    }

    /// Decodes the trailers. Returns `false` if they wait for insertions.
    fn end_by_trailers(&self) -> Result<bool, Problem> {
        let Some((_, section)) = self.blocked_section.take() else { return Ok(true) };
        let limit = self.input.borrow().longest();
        let lines = self.section(section, true, limit)?;
        if let Some((_, lines)) = lines {
            *self.trailers.borrow_mut() = lines;
            return Ok(true);
        }
        Ok(false)
    }

    /// Looks whether nothing but the end is left. Returns `true` if the response has come whole.
    fn skip_to_end(&self) -> bool {
        let mut input = self.input.borrow_mut();
        if input.is_empty() && !input.has_ended() {
            // An error changes nothing here: the end has not come then.
            let _ = input.fill(self.session.link.as_ref());
        }
        input.has_ended() && input.is_empty()
    }

    /// Cancels the parts of the exchange that are not over: the server need not send the response, nor read the request
    /// (RFC 9114, section 4.1.1).
    fn cancel(&self) {
        let why = self.why.get();
        if !self.received.get() {
            let _ = self.session.link.streams().stop(self.id, why.number());
            self.session.cancel_sections(self.id);
        }
        if !self.output.borrow().has_ended() && !self.stopped.get() {
            // After a complete response, the rest of the request is unneeded rather than cancelled.
            let why = if self.received.get() { Code::NoError } else { why };
            let _ = self.session.link.streams().reset(self.id, why.number());
        }
    }

    /// Has QUIC take bytes by `send`.
    fn give<R>(&self, send: impl FnOnce(&mut Output, &Link) -> Result<R, Unwritten>) -> Result<R, Errno> {
        if self.problem.borrow().is_some() {
            return Err(Errno::CONNRESET);
        }
        let mut output = self.output.borrow_mut();
        let sent = send(&mut output, &self.session.link);
        if output.take_progress() {
            self.session.notify();
        }
        drop(output);
        sent.map_err(|e| {
            if e == Unwritten::Stopped {
                self.stopped.set(true);
            }
            if self.stopped.get() { Errno::PIPE } else { Errno::CONNRESET }
        })
    }

    /// Sends what waits.
    fn send_pending(&self) -> Result<bool, Errno> {
        self.give(|output, link| output.flush(link))
    }

    /// Returns the outcome of taking `done` bytes of `len`.
    fn sent(&self, done: usize, len: usize) -> Result<Sent, Errno> {
        let waits = self.output.borrow().waits();
        match done {
            0 if len > 0 || waits => Err(Errno::AGAIN),
            _ => Ok(Sent { bytes: done, full: done < len || waits }),
        }
    }
}

impl RequestStream for Stream {
    fn request(&self, head: &[u8], trailers: bool, end: bool, scratch: &mut Vec<u8>) -> u64 {
        scratch.clear();
        request_section(head, trailers, scratch);
        self.begin(scratch, end);
        scratch.len() as u64
    }

    fn next_head(&self, limit: usize, out: &mut Vec<u8>) -> Result<bool, Problem> {
        let head = self.take_head(limit)?;
        Ok(head.inspect(|head| out.extend_from_slice(head)).is_some())
    }

    fn problem(&self) -> Option<Problem> {
        self.problem.borrow().clone()
    }

    fn take_uncounted(&self) -> u64 {
        self.uncounted.take()
    }

    fn trailers(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        each_line(&self.trailers.borrow(), f);
    }
}

impl Mux for Stream {
    fn read(&self, buf: &mut Vec<u8>) -> Result<usize, Errno> {
        if self.is_broken() && !self.drains.get() {
            return Err(Errno::CONNRESET);
        }
        let n = self.pull(buf).map_err(|_| Errno::CONNRESET)?;
        if n > 0 {
            self.session.link.note_progress(n as u64, 0);
            // The server may need a larger window, which the connection announces.
            self.session.notify();
        }
        if n == 0 && !self.received.get() { Err(Errno::AGAIN) } else { Ok(n) }
    }

    fn send(&self, bytes: &[u8]) -> Result<Sent, Errno> {
        if self.stopped.get() {
            return Err(Errno::PIPE);
        }
        let done = self.give(|output, link| output.send(link, bytes))?;
        self.sent(done, bytes.len())
    }

    fn send_shared(&self, bytes: &Bytes, _then: Then) -> Result<Sent, Errno> {
        if self.stopped.get() {
            return Err(Errno::PIPE);
        }
        let done = self.give(|output, link| output.send_shared(link, bytes))?;
        self.sent(done, bytes.len())
    }

    fn room(&self) -> usize {
        if self.is_broken() { 0 } else { self.output.borrow().room() }
    }

    fn send_head(&self, block: &[u8], _: Then) {
        self.begin(block, false);
    }

    fn send_interim(&self, _: &[u8]) {
        // Requests have no interim messages.
    }

    fn end(&self) {
        self.output.borrow_mut().end();
        let _ = self.send_pending();
    }

    fn whole(&self) -> Option<usize> {
        None
    }

    fn is_broken(&self) -> bool {
        self.problem.borrow().is_some()
    }

    fn is_readable(&self) -> bool {
        let input = self.input.borrow();
        let waits = self
            .blocked_section
            .borrow()
            .as_ref()
            .is_some_and(|(required, _)| !self.session.has_inserted(*required));
        self.is_broken() || input.may_give() && !waits
    }

    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_readable() {
            return Poll::Ready(());
        }
        *self.reader.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }

    fn poll_writable(self: Rc<Self>, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_broken() || self.stopped.get() || !self.output.borrow().is_full() {
            return Poll::Ready(());
        }
        *self.writer.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }

    fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_broken() {
            return Poll::Ready(());
        }
        *self.reader.borrow_mut() = Some(cx.waker().clone());
        Poll::Pending
    }

    fn wait_for_client(&self, _: bool, _: Instant) {}

    fn is_given_up(&self) -> bool {
        false
    }
}
