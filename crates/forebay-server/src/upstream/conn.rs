//! A connection to an upstream, new or taken from the idle ones of a group. `open.rs` opens one. Hot path.

use super::Group;
use super::idle::Idle;
use crate::thread::{Thread, ThreadConfig};
use forebay_http::h2::link::Link;
use forebay_net::pipe::Pipe;
use forebay_net::reactor::Token;
use forebay_net::wait::{For, Wait, Waited};
use forebay_net::wire::{self, Sent, Then, Watch, Wire};
use rustix::io::Errno;
use std::cell::{Cell, RefCell, RefMut};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Instant;

/// An open connection; closed when dropped.
pub struct Conn {
    thread: Rc<Thread>,
    token: Token,
    wire: RefCell<Wire>,
    kept: bool,
    link: RefCell<Option<Box<Link>>>,
    /// Whether this request has written to it, and whether writes no longer wait for acknowledgements.
    written: Cell<bool>,
    prompt: Cell<bool>,
    /// What it was made for; 0 = plain.
    pub made_for: u64,
    /// Requests served before this one.
    pub requests: u64,
    /// When it was opened.
    pub opened: Instant,
    /// It was idle before this request.
    pub reused: bool,
}

impl std::fmt::Debug for Conn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Conn").field("token", &self.token).finish_non_exhaustive()
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        if !self.kept {
            self.wire.get_mut().close(&self.thread.io);
            self.thread.io.poller.remove(self.token);
        }
    }
}

impl Conn {
    /// A connection that was idle. `None`: it is closed.
    pub fn reuse(thread: &Rc<Thread>, idle: Idle) -> Option<Conn> {
        let token = idle.token;
        Conn::resumed(thread, idle, |fd| thread.io.poller.reuse(token, fd).then_some(token))
    }

    /// A connection that was idle in another thread, and has just been looked at.
    pub fn adopt(thread: &Rc<Thread>, idle: Idle) -> Option<Conn> {
        Conn::resumed(thread, idle, |fd| {
            let token = thread.io.poller.insert(fd);
            thread.io.poller.drained(token);
            Some(token)
        })
    }

    /// A connection that was idle, in the slot that `place` puts its socket into.
    fn resumed(
        thread: &Rc<Thread>,
        idle: Idle,
        place: impl FnOnce(OwnedFd) -> Option<Token>,
    ) -> Option<Conn> {
        let token = place(idle.fd)?;
        Some(Conn {
            thread: thread.clone(),
            token,
            wire: RefCell::new(Wire::with(token, idle.tls)),
            made_for: idle.made_for,
            kept: false,
            written: Cell::new(false),
            prompt: Cell::new(idle.prompt),
            link: RefCell::new(idle.link),
            requests: idle.requests,
            opened: idle.opened,
            reused: true,
        })
    }

    /// Takes a connection that has just been opened.
    pub fn opened(thread: &Rc<Thread>, wire: Wire, opened: Instant) -> Conn {
        Conn {
            thread: thread.clone(),
            token: wire.token(),
            wire: RefCell::new(wire),
            made_for: 0,
            kept: false,
            written: Cell::new(false),
            prompt: Cell::new(false),
            link: RefCell::new(None),
            requests: 0,
            opened,
            reused: false,
        }
    }

    /// Waits after a call that would have blocked.
    pub async fn wait(&self, what: For, deadline: Instant, watch: &mut Watch) -> Waited {
        let mut wait = Wait::new(what, deadline, watch);
        std::future::poll_fn(|cx| wait.poll(&self.thread.io, &self.wire.borrow(), cx)).await
    }

    /// Whether a read may give something, as far as is known.
    pub fn readable(&self) -> bool {
        self.wire.borrow().is_readable(&self.thread.io)
    }

    /// Reads into the spare capacity of `buf`, made at least `room` bytes; 0 is the end.
    ///
    /// # Errors
    /// `AGAIN` when there is nothing; other errors end the connection.
    pub fn read(&self, buf: &mut Vec<u8>, room: usize) -> Result<usize, Errno> {
        buf.reserve(room);
        self.wire.borrow_mut().read(&self.thread.io, buf)
    }

    /// Fills a pipe with what has come, at most `want` bytes; 0 is the end.
    ///
    /// # Errors
    /// As [`Pipe::fill`]; others end the connection.
    pub fn fill(&self, pipe: &mut Pipe, want: usize) -> Result<usize, Errno> {
        let got = self.with_fd(|fd| pipe.fill(fd, want));
        if got == Err(Errno::AGAIN) {
            self.thread.io.poller.drained(self.token);
        }
        got
    }

    /// Asks the kernel what has come and was not read: `AGAIN` is nothing, 0 the end.
    ///
    /// # Errors
    /// As [`Conn::read`].
    pub fn peek(&self) -> Result<usize, Errno> {
        let peeked = wire::peek(&self.thread.io.poller, self.token);
        if peeked == Err(Errno::AGAIN) {
            self.thread.io.poller.drained(self.token);
        }
        peeked
    }

    /// Whether something has come that was not read, as far as the kernel knows.
    pub fn has_input(&self) -> bool {
        self.readable() || matches!(wire::peek(&self.thread.io.poller, self.token), Ok(n) if n > 0)
    }

    /// From now on no write waits for the acknowledgement of what was written before it (TCP_NODELAY). One write a request
    /// never does, and most requests are one write.
    pub fn hurry(&self) {
        if !self.prompt.replace(true) {
            // A unix socket has nothing to hurry.
            let _ = self.with_fd(|fd| rustix::net::sockopt::set_tcp_nodelay(fd, true));
        }
    }

    /// Writes bytes (see [`Wire::send`]).
    ///
    /// # Errors
    /// `AGAIN` when there is no room; other errors end the connection.
    pub fn send(&self, bytes: &[u8]) -> Result<Sent, Errno> {
        if self.written.replace(true) {
            self.hurry();
        }
        self.wire.borrow_mut().send(&self.thread.io, bytes, Then::Nothing)
    }

    /// Writes the frames of HTTP/2 that wait; gives how many bytes have left, and whether all have.
    pub fn send_frames(&self) -> (u64, Result<(), Errno>) {
        let mut link = self.link();
        let Some(out) = link.as_mut().map(|l| l.out()) else { return (0, Ok(())) };
        let mut all = 0;
        while !out.is_empty() || self.wire().has_unsent() {
            match self.send(out) {
                Ok(sent) => {
                    out.drain(..sent.bytes);
                    all += sent.bytes as u64;
                }
                Err(e) => return (all, Err(e)),
            }
        }
        (all, Ok(()))
    }

    /// Writes a piece of a file (see [`Wire::send_file`]).
    ///
    /// # Errors
    /// As [`Conn::send`].
    pub fn send_file(&self, file: &std::fs::File, offset: &mut u64, count: usize) -> Result<Sent, Errno> {
        self.hurry();
        self.wire.borrow_mut().send_file(&self.thread.io, file, offset, count)
    }

    /// What its bytes go through.
    pub fn wire(&self) -> RefMut<'_, Wire> {
        self.wire.borrow_mut()
    }

    /// What its bytes go through, where nothing else uses the connection.
    pub fn wire_mut(&mut self) -> &mut Wire {
        self.wire.get_mut()
    }

    /// HTTP/2 on it, if that is spoken.
    pub fn link(&self) -> RefMut<'_, Option<Box<Link>>> {
        self.link.borrow_mut()
    }

    /// Its slot.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Calls `f` with the descriptor.
    ///
    /// # Errors
    /// Those of `f`.
    pub fn with_fd<R>(&self, f: impl FnOnce(&OwnedFd) -> Result<R, Errno>) -> Result<R, Errno> {
        self.thread.io.poller.with_fd(self.token, f).unwrap_or(Err(Errno::BADF))
    }

    /// Puts it among the idle ones of its group, which is number `n` of a configuration.
    pub fn keep(mut self, conf: &Rc<ThreadConfig>, group: &Group, n: usize, peer: u64, location: usize) {
        let thread = self.thread.clone();
        let keepalive = &group.keepalive;
        let now = thread.io.poller.now();
        // Adding takes less than subtracting.
        let old = self.opened.checked_add(keepalive.time).is_some_and(|end| end < now);
        if keepalive.connections == 0 || self.requests + 1 >= keepalive.requests || old {
            return;
        }
        // No request to come asks for those of a former configuration.
        if !Rc::ptr_eq(conf, &thread.conf.borrow()) {
            return;
        }
        let deadline = now + keepalive.timeout;
        let Some(fd) = thread.io.poller.set_aside(self.token, deadline, n as u32) else { return };
        self.kept = true;
        let mut wire = self.wire.replace(Wire::Closed);
        wire.shrink();
        let idle = Idle {
            fd,
            tls: wire.into_tls(),
            prompt: self.prompt.get(),
            link: self.link.take(),
            made_for: self.made_for,
            token: self.token,
            peer,
            location,
            requests: self.requests + 1,
            opened: self.opened,
            deadline,
        };
        let threads = thread.all_counters.len();
        let left =
            group.idle.put((thread.number, threads), idle, keepalive.connections, thread.io.poller.epoll());
        for t in left.oldest.map(|i| i.token).into_iter().chain(left.taken) {
            thread.io.poller.remove(t);
        }
    }
}
