//! A request to an upstream and its response. Heads and trailers come by methods of their own, content as from any wire. Hot path.

use super::session::{Session, Waits, problem_of};
use crate::upstream::pooled::{Problem, RequestStream};
use forebay_http::h2::link::{Got, Refused, Request};
use forebay_net::mux::Mux;
use forebay_net::reactor::Waiter;
use forebay_net::wire::{Sent, Then};
use rustix::io::Errno;
use std::cell::Cell;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Instant;

/// A request and its response. Dropping it cancels what is not over.
pub struct Stream {
    /// Identifier, once the request has begun.
    id: Cell<Option<u32>>,
    session: Rc<Session>,
    /// Longest field section of the response, bytes.
    longest: usize,
    /// Time at which something of the response was last read, or the request began.
    since: Cell<Instant>,
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Stream").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        self.session.remove(self.id.get());
    }
}

impl Stream {
    /// Makes a stream whose place has been reserved.
    pub(super) fn new(session: &Rc<Session>, longest: usize) -> Stream {
        let since = Cell::new(session.now());
        Stream { id: Cell::new(None), session: session.clone(), longest, since }
    }

    /// Returns the identifier; 0, which no stream has, before the request.
    fn id(&self) -> u32 {
        self.id.get().unwrap_or_default()
    }

    /// Returns `true` if the response is over and has been read.
    pub fn is_over(&self) -> bool {
        self.session.link.borrow().is_over(self.id())
    }

    /// Returns `true` if the response is over and has been read, and has no trailers.
    pub fn is_bare(&self) -> bool {
        let link = self.session.link.borrow();
        link.is_over(self.id()) && !link.has_trailers(self.id())
    }

    /// Returns `true` if the response has ended with its head.
    pub fn has_ended_with_head(&self) -> bool {
        self.session.link.borrow().has_ended_with_head(self.id())
    }

    /// Has the session send frames that reading has produced, such as window updates.
    fn notify(&self) {
        if !self.session.link.borrow().pending().is_empty() {
            self.session.ask();
        }
    }

    /// Notes the task that is being polled.
    fn wait(&self, place: fn(&mut Waits) -> &mut Option<Waiter>, cx: &Context<'_>) {
        if let Some(waits) = self.session.link.borrow_mut().kept(self.id()) {
            self.session.poller().set_waiter(place(waits), cx);
        }
    }
}

impl RequestStream for Stream {
    fn request(&self, head: &[u8], trailers: bool, end: bool, _: &mut Vec<u8>) -> u64 {
        let https = self.session.is_encrypted();
        let request = Request { head, https, trailers, end, limit: self.longest };
        let mut link = self.session.link.borrow_mut();
        let before = link.pending().len();
        if self.id.get().is_none() {
            self.id.set(Some(link.open(&request)));
        }
        let sent = link.pending().len() - before;
        drop(link);
        self.since.set(self.session.now());
        self.session.ask();
        sent as u64
    }

    fn next_head(&self, _: usize, out: &mut Vec<u8>) -> Result<bool, Problem> {
        let mut link = self.session.link.borrow_mut();
        if let Some(problem) = link.problem(self.id()) {
            return Err(problem_of(problem));
        }
        if link.next_head(self.id(), out) {
            self.since.set(self.session.now());
            return Ok(true);
        }
        self.session.lost().map_or(Ok(false), Err)
    }

    fn problem(&self) -> Option<Problem> {
        let link = self.session.link.borrow();
        // A response that had ended before the connection was lost is complete.
        let lost = || self.session.lost().filter(|_| !link.has_ended(self.id()));
        link.problem(self.id()).map(problem_of).or_else(lost)
    }

    fn take_uncounted(&self) -> u64 {
        self.session.link.borrow_mut().take_uncounted(self.id())
    }

    fn trailers(&self, f: &mut dyn FnMut(&[u8], &[u8])) {
        self.session.link.borrow().trailers(self.id(), f);
    }

    fn timed_out(&self) {
        self.session.doubt(self.since.get());
    }
}

impl Mux for Stream {
    fn read(&self, buf: &mut Vec<u8>) -> Result<usize, Errno> {
        let got = self.session.link.borrow_mut().read(self.id(), buf);
        match got {
            Got::Bytes(n) => {
                self.since.set(self.session.now());
                self.notify();
                Ok(n)
            }
            Got::End => Ok(0),
            Got::Failed => Err(Errno::CONNRESET),
            // All bytes that had come before the connection was lost have been read by now.
            Got::Nothing if self.session.is_lost() => Err(Errno::CONNRESET),
            Got::Nothing => Err(Errno::AGAIN),
        }
    }

    fn send(&self, bytes: &[u8]) -> Result<Sent, Errno> {
        if self.session.is_lost() {
            return Err(Errno::CONNRESET);
        }
        let taken = self.session.link.borrow_mut().content(self.id(), bytes);
        match taken {
            Ok(n) => {
                self.session.ask();
                Ok(Sent { bytes: n, full: n < bytes.len() })
            }
            Err(Refused::Full) => Err(Errno::AGAIN),
            // As with a socket, the server reads no more of the request, but its response may still come.
            Err(Refused::Over) => Err(Errno::PIPE),
            Err(Refused::Failed) => Err(Errno::CONNRESET),
        }
    }

    fn room(&self) -> usize {
        if self.session.is_lost() { 0 } else { self.session.link.borrow().room(self.id()) }
    }

    fn send_head(&self, _: &[u8], _: Then) {
        // `RequestStream::request` sends the head; requests have no trailers.
    }

    fn send_interim(&self, _: &[u8]) {
        // Requests have no interim messages.
    }

    fn end(&self) {
        self.session.link.borrow_mut().end(self.id());
        self.session.ask();
    }

    fn whole(&self) -> Option<usize> {
        None
    }

    fn is_broken(&self) -> bool {
        let link = self.session.link.borrow();
        link.problem(self.id()).is_some() || self.session.is_lost() && !link.has_ended(self.id())
    }

    fn is_readable(&self) -> bool {
        self.session.is_lost() || self.session.link.borrow().is_readable(self.id())
    }

    fn poll_readable(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_readable() {
            return Poll::Ready(());
        }
        self.wait(|waits| &mut waits.reader, cx);
        Poll::Pending
    }

    fn poll_writable(self: Rc<Self>, cx: &mut Context<'_>) -> Poll<()> {
        let is_ready = {
            let link = self.session.link.borrow();
            self.session.is_lost() || link.has_sent(self.id()) || link.room(self.id()) > 0
        };
        if is_ready {
            return Poll::Ready(());
        }
        self.session.link.borrow_mut().await_room(self.id());
        self.wait(|waits| &mut waits.writer, cx);
        Poll::Pending
    }

    fn poll_gone(&self, cx: &mut Context<'_>) -> Poll<()> {
        if self.is_broken() {
            return Poll::Ready(());
        }
        self.wait(|waits| &mut waits.reader, cx);
        Poll::Pending
    }

    fn wait_for_client(&self, _: bool, _: Instant) {}

    fn is_given_up(&self) -> bool {
        false
    }
}
