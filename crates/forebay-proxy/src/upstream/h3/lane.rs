//! A UDP socket to one server, and the connections over it. Hot path.

use super::session::Session;
use forebay_net::dial::{DialError, LocalAddress, OwnStep};
use forebay_net::io::Io;
use forebay_net::quic::Link;
use forebay_net::quic::client::{Client, NO_OWNER};
use forebay_net::reactor::{Direct, Token};
use forebay_sys::datagrams::{Batch, MOST};
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Instant;

/// Number of reads of a step, after which other sockets have their turn.
const READS: usize = 4;

/// A socket to one server.
pub(super) struct Lane {
    pub(super) io: Rc<Io>,
    pub(super) client: Client,
    /// Slot of the poller.
    pub(super) token: Token,
    /// Address of the server, and the local one if it is given.
    pub(super) address: (SocketAddr, Option<LocalAddress>),
    direct: Direct,
    sessions: RefCell<Vec<Rc<Session>>>,
    /// Number of the next session.
    next: Cell<u32>,
    /// `true` if the poller has been asked for a step.
    asked: Cell<bool>,
}

impl std::fmt::Debug for Lane {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lane").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Lane {
    /// Makes the socket.
    ///
    /// # Errors
    /// [`DialError`].
    pub(super) fn open(
        io: &Rc<Io>,
        direct: Direct,
        address: (SocketAddr, Option<LocalAddress>),
    ) -> Result<Rc<Lane>, DialError> {
        let client = Client::bound(address.0, address.1)?;
        let watched = client.socket().try_clone();
        let failed = |e| DialError::Own(OwnStep::Socket, Errno::from_io_error(&e).unwrap_or(Errno::MFILE));
        let fd = watched.map_err(failed)?;
        let token = io.poller.insert(fd);
        // A new socket has received nothing, so the first read waits for an event.
        io.poller.drained(token);
        io.poller.serve_directly(token, direct);
        io.poller.watch_readable(token);
        Ok(Rc::new(Lane {
            io: io.clone(),
            client,
            token,
            address,
            direct,
            sessions: RefCell::default(),
            next: Cell::new(0),
            asked: Cell::new(false),
        }))
    }

    /// Returns the time of the turn.
    pub(super) fn now(&self) -> Instant {
        self.io.poller.now()
    }

    /// Returns the number for a new session.
    pub(super) fn number(&self) -> u32 {
        let number = self.next.get();
        // `NO_OWNER` marks connections without a session, so it is never the number of a session.
        self.next.set((number + 1) % NO_OWNER);
        number
    }

    /// Adds a session.
    pub(super) fn add(&self, session: &Rc<Session>) {
        self.sessions.borrow_mut().push(session.clone());
    }

    /// Returns the sessions.
    pub(super) fn sessions(&self) -> Vec<Rc<Session>> {
        self.sessions.borrow().clone()
    }

    fn session(&self, number: u32) -> Option<Rc<Session>> {
        self.sessions.borrow().iter().find(|session| session.number == number).cloned()
    }

    /// Asks the poller for a step after the other work of the turn.
    pub(super) fn ask(&self) {
        if !self.asked.replace(true) {
            self.io.poller.step_again(self.direct);
        }
    }

    /// Notes that a connection may have something to send.
    pub(super) fn notify(&self, link: &Rc<Link>) {
        self.client.mark_sending(link);
        self.ask();
    }

    /// Receives what is there.
    pub(super) fn receive(&self, batch: &mut Batch) {
        self.asked.set(false);
        let now = self.now();
        for _ in 0..READS {
            match self.client.receive(batch, now) {
                // A batch that is not full has emptied the socket, which saves a read that would return EAGAIN.
                Ok(count) if count < MOST => return self.io.poller.drained(self.token),
                Err(Errno::AGAIN) => return self.io.poller.drained(self.token),
                // The error belongs to a datagram that was sent before (ICMP), so reading goes on.
                Ok(_) | Err(_) => {}
            }
        }
        self.ask();
    }

    /// Has connections do what is due, and handles their events. Returns the number of panics.
    pub(super) fn work(&self) -> usize {
        if self.client.take_refusal() {
            self.refused();
        }
        self.client.expire(self.now());
        while let Some(link) = self.client.take_ready() {
            if let Some(session) = self.session(link.owner.get()) {
                self.client.guard(&link, || session.process());
            }
        }
        self.client.take_panics()
    }

    /// Ends all connections: nobody listens at the server's port.
    fn refused(&self) {
        self.sessions().iter().for_each(|session| session.refused());
    }

    /// Sends what connections have to send.
    pub(super) fn flush(&self) {
        let mut gone: Vec<u32> = Vec::new();
        self.client.flush(self.now(), |link| gone.push(link.owner.replace(NO_OWNER)));
        for session in gone.into_iter().filter_map(|number| self.session(number)) {
            session.gone();
        }
        if self.client.take_refusal() {
            self.refused();
        }
        if self.client.has_unsent() {
            self.ask();
        }
    }

    /// Removes the sessions that are over, and returns them.
    pub(super) fn take_over(&self) -> Vec<Rc<Session>> {
        let mut sessions = self.sessions.borrow_mut();
        if !sessions.iter().any(|session| session.is_over()) {
            return Vec::new();
        }
        let (over, others) = std::mem::take(&mut *sessions).into_iter().partition(|s| s.is_over());
        *sessions = others;
        over
    }

    /// Sets the time of the next step.
    pub(super) fn set_timer(&self) {
        let idle = self.sessions.borrow().iter().filter_map(|session| session.expires()).min();
        if let Some(at) = [self.client.next_timer(), idle].into_iter().flatten().min() {
            self.io.poller.step_at(self.token, self.io.poller.deadline_at(at));
        }
    }

    /// Returns `true` if there is no connection any more.
    pub(super) fn is_over(&self) -> bool {
        self.client.open() == 0 && self.sessions.borrow().is_empty()
    }
}
