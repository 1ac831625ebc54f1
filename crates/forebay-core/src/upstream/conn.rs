//! A connection to a server, new or taken from the idle ones of its group. Hot path.

use super::idle::{IdleConn, Place};
use super::local::LocalSet;
use forebay_net::io::Io;
use forebay_net::pipe::Pipe;
use forebay_net::reactor::{Deadline, Token};
use forebay_net::wait::{For, Wait, Waited};
use forebay_net::wire::{self, Sent, Then, Watch, Wire};
use rustix::io::{Errno, IoSlice};
use rustix::net::AddressFamily;
use std::cell::{Cell, RefCell, RefMut};
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Time for which a connection stays open that is one too many for the list of its group, while others to its server are in use. Requests
/// come in bursts: the next ones need as many connections as the last, and would open them again. With a thousand clients, each connection
/// is needed again after some 50 ms.
const SURPLUS: Duration = Duration::from_millis(200);

/// An open connection; closed when dropped.
pub struct Conn {
    io: Rc<Io>,
    token: Token,
    wire: RefCell<Wire>,
    /// It is among the idle ones now, so that it stays open.
    kept: bool,
    /// This request has written to it.
    written: Cell<bool>,
    /// Writes do not wait for acknowledgements (TCP_NODELAY).
    prompt: Cell<bool>,
    /// Tells connections apart that cannot serve the same requests; 0 = plain.
    pub made_for: u64,
    /// Requests served before this one.
    pub requests: u64,
    /// Time at which it was opened.
    pub opened: Instant,
    /// It was idle before this request.
    pub reused: bool,
    /// Another connection can use its socket, of this family, afterwards ([`forebay_net::dial::DialSettings::spare`]).
    pub spare: Option<AddressFamily>,
}

impl std::fmt::Debug for Conn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Conn").field("token", &self.token).finish_non_exhaustive()
    }
}

impl Drop for Conn {
    fn drop(&mut self) {
        if !self.kept {
            // First, since `close_notify` needs the slot.
            self.wire.get_mut().close(&self.io);
            match self.spare {
                Some(family) => self.io.give_socket(family, self.token),
                None => drop(self.io.poller.remove(self.token)),
            }
        }
    }
}

/// Use of a connection that ends.
#[derive(Clone, Copy)]
pub(super) struct Use {
    /// [`super::peer::Live::id`] of its server.
    pub peer: u64,
    /// Number of the location that has opened it.
    pub opener: usize,
    /// Other connections of this thread to the server are in use.
    pub busy: bool,
}

impl Conn {
    /// Takes a connection that was idle in this thread. Returns `None` if it is closed.
    pub(super) fn reuse(io: &Rc<Io>, idle: IdleConn) -> Option<Conn> {
        let token = idle.token;
        Conn::resumed(io, idle, |fd| io.poller.reuse(token, fd).then_some(token))
    }

    /// Takes a connection that was idle in another thread and has just been found open.
    pub(super) fn adopt(io: &Rc<Io>, idle: IdleConn) -> Option<Conn> {
        Conn::resumed(io, idle, |fd| {
            let token = io.poller.insert(fd);
            // `IdleConn::is_sound` has found no input; epoll reports what comes later.
            io.poller.drained(token);
            Some(token)
        })
    }

    /// Takes a connection that was idle, in the slot that `place` puts its socket into.
    fn resumed(io: &Rc<Io>, idle: IdleConn, place: impl FnOnce(OwnedFd) -> Option<Token>) -> Option<Conn> {
        let token = place(idle.fd)?;
        Some(Conn {
            io: io.clone(),
            token,
            wire: RefCell::new(Wire::with(token, idle.tls)),
            made_for: idle.made_for,
            kept: false,
            written: Cell::new(false),
            prompt: Cell::new(idle.prompt),
            requests: idle.requests,
            opened: idle.opened,
            reused: true,
            spare: None,
        })
    }

    /// Takes a connection that was opened at a time.
    pub fn opened(io: &Rc<Io>, wire: Wire, opened: Instant) -> Conn {
        Conn {
            io: io.clone(),
            token: wire.token(),
            wire: RefCell::new(wire),
            made_for: 0,
            kept: false,
            written: Cell::new(false),
            prompt: Cell::new(false),
            requests: 0,
            opened,
            reused: false,
            spare: None,
        }
    }

    /// Waits after a call that would have blocked.
    pub async fn wait(&self, what: For, deadline: Deadline, watch: &mut Watch) -> Waited {
        let mut wait = Wait::new(what, deadline, watch);
        std::future::poll_fn(|cx| wait.poll(&self.io, &self.wire.borrow(), cx)).await
    }

    /// Returns `false` if it is known that a read would block.
    pub fn readable(&self) -> bool {
        self.wire.borrow().is_readable(&self.io)
    }

    /// Reads into the spare capacity of `buf`, made at least `room` bytes; 0 is the end.
    ///
    /// # Errors
    /// `AGAIN` when there is nothing; other errors end the connection.
    pub fn read(&self, buf: &mut Vec<u8>, room: usize) -> Result<usize, Errno> {
        buf.reserve(room);
        self.wire.borrow_mut().read(&self.io, buf)
    }

    /// Fills a pipe with what has come, at most `want` bytes; 0 is the end.
    ///
    /// # Errors
    /// As [`Pipe::fill`]; others end the connection.
    pub fn fill(&self, pipe: &mut Pipe, want: usize) -> Result<usize, Errno> {
        let got = self.with_fd(|fd| pipe.fill(fd, want));
        if got == Err(Errno::AGAIN) {
            self.io.poller.drained(self.token);
        }
        got
    }

    /// Writes the bytes in a pipe (see [`Wire::send_pipe`]). Returns their number.
    pub fn send_pipe(&self, pipe: &mut Pipe) -> usize {
        self.hurry();
        self.wire.borrow_mut().send_pipe(&self.io, pipe)
    }

    /// Asks the kernel for the number of bytes that have come and were not read: `AGAIN` is none, 0 the end.
    ///
    /// # Errors
    /// As [`Conn::read`].
    pub fn peek(&self) -> Result<usize, Errno> {
        let peeked = wire::peek(&self.io.poller, self.token);
        if peeked == Err(Errno::AGAIN) {
            self.io.poller.drained(self.token);
        }
        peeked
    }

    /// Returns `true` if bytes have come that were not read, as far as the kernel knows.
    pub fn has_input(&self) -> bool {
        self.readable() || matches!(wire::peek(&self.io.poller, self.token), Ok(n) if n > 0)
    }

    /// Makes writes from now on not wait for the acknowledgement of earlier ones (TCP_NODELAY). The first write of a
    /// request never waits, and most requests are one write.
    pub fn hurry(&self) {
        if !self.prompt.replace(true) {
            // Fails for a unix socket, which never waits.
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
        self.wire.borrow_mut().send(&self.io, bytes, Then::Nothing)
    }

    /// Writes bytes and those behind them in one call (see [`Wire::send_pieces`]).
    ///
    /// # Errors
    /// As [`Conn::send`].
    pub fn send_both(&self, first: &[u8], second: &[u8]) -> Result<Sent, Errno> {
        if first.is_empty() || second.is_empty() {
            return self.send(if first.is_empty() { second } else { first });
        }
        if self.written.replace(true) {
            self.hurry();
        }
        let pieces = [IoSlice::new(first), IoSlice::new(second)];
        self.wire.borrow_mut().send_pieces(&self.io, &pieces, Then::Nothing)
    }

    /// Writes a piece of a file (see [`Wire::send_file`]).
    ///
    /// # Errors
    /// As [`Conn::send`].
    pub fn send_file(&self, file: &impl AsFd, offset: &mut u64, count: usize) -> Result<Sent, Errno> {
        self.hurry();
        self.wire.borrow_mut().send_file(&self.io, file, offset, count)
    }

    /// Borrows its wire.
    pub fn wire(&self) -> RefMut<'_, Wire> {
        self.wire.borrow_mut()
    }

    /// Returns its wire, where nothing else uses the connection.
    pub fn wire_mut(&mut self) -> &mut Wire {
        self.wire.get_mut()
    }

    /// Returns its slot.
    pub fn token(&self) -> Token {
        self.token
    }

    /// Calls `f` with the descriptor.
    ///
    /// # Errors
    /// Those of `f`.
    pub fn with_fd<R>(&self, f: impl FnOnce(&OwnedFd) -> Result<R, Errno>) -> Result<R, Errno> {
        self.io.poller.with_fd(self.token, f).unwrap_or(Err(Errno::BADF))
    }

    /// Puts it among the idle ones of its group if the group keeps it; closes it otherwise.
    pub(super) fn keep(mut self, local: &LocalSet, use_of: Use) {
        let io = self.io.clone();
        let (group, owner) = (&local.group, &local.owner);
        let keepalive = &group.keepalive;
        let now = io.poller.now();
        // `checked_add` costs less than the difference of the times.
        let old = self.opened.checked_add(keepalive.time).is_some_and(|end| end < now);
        let spent = self.requests + 1 >= keepalive.requests;
        if keepalive.connections == 0 || spent || old || !owner.current.get() {
            return;
        }
        let surplus = use_of.busy && group.idle.has(owner.thread, keepalive.connections);
        let (timeout, most) = match surplus {
            true => (keepalive.timeout.min(SURPLUS), usize::MAX),
            false => (keepalive.timeout, keepalive.connections),
        };
        // Before the connection is in the list: from then on another thread may take it, and this slot must not have
        // its descriptor.
        let Some(fd) = io.poller.set_aside(self.token, io.poller.after(timeout), group.number) else {
            return;
        };
        self.kept = true;
        let mut wire = self.wire.replace(Wire::Closed);
        // An idle connection keeps no buffers.
        wire.shrink();
        let idle = IdleConn {
            fd,
            tls: wire.into_tls(),
            prompt: self.prompt.get(),
            made_for: self.made_for,
            token: self.token,
            peer: use_of.peer,
            opener: use_of.opener,
            requests: self.requests + 1,
            opened: self.opened,
            deadline: now + timeout,
        };
        let left = group.idle.put(
            Place { thread: owner.thread, threads: owner.threads },
            idle,
            most,
            io.poller.epoll(),
        );
        for t in left.oldest.map(|i| i.token).into_iter().chain(left.taken) {
            io.poller.remove(t);
        }
    }
}
