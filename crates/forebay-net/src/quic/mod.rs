//! QUIC (RFC 9000) without an application: the connections of a listening socket in one thread. quinn-proto has the state machine;
//! this has sockets, timers, and the choice of the TLS configuration by the name that a client asks for. Hot path.
//!
//! An [`Endpoint`] turns datagrams into work for [`Link`]s. The owner takes those that have work ([`Endpoint::take_ready`]), lets the
//! application handle their events, and has what all of them send leave together at the end of the turn ([`Endpoint::flush`]).

mod cid;
mod session;

pub use quinn_proto::{ConnectionError, Dir, Event, ReadError, StreamEvent, StreamId, VarInt, WriteError};
pub use rustls::ServerConfig as TlsConfig;
pub use session::{Choose, HandshakeFacts};

use bytes::BytesMut;
use forebay_sys::datagrams::{self, Address, Batch, Datagram, Destination, MOST};
use forebay_sys::sockets;
use quinn_proto::{
    Connection, ConnectionHandle, DatagramEvent, EcnCodepoint, EndpointConfig, IdleTimeout, Incoming,
    ServerConfig, Transmit, TransportConfig,
};
use rustix::io::Errno;
use std::cell::{Cell, RefCell, RefMut};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most datagrams that a connection sends in one piece. The kernel takes 64 of up to 64 KiB together.
const SEGMENTS: usize = 32;
/// Pieces of a connection after which others send.
const PIECES: usize = 8;
/// Half-open connections from which on clients must prove their addresses (RFC 9000, section 8.1.2).
const UNVALIDATED: usize = 64;

/// Limits and settings of an endpoint.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Number of the thread, part of the connection identifiers.
    pub thread: u8,
    /// Streams that a client may have open at a time.
    pub streams: u32,
    /// Content of one stream that a client may send ahead, bytes.
    pub stream_window: u32,
    /// Content that is kept until the client has acknowledged it, bytes of a connection.
    pub send_window: u32,
    /// Time without packets after which a connection ends.
    pub idle: Duration,
    /// Every client must prove its address first (nginx: quic_retry).
    pub retry: bool,
    /// Connections at a time.
    pub connections: usize,
    /// Key of stateless resets and tokens.
    pub key: [u8; 64],
}

/// Connection of an endpoint.
pub struct Link {
    quinn: RefCell<Connection>,
    handle: ConnectionHandle,
    /// It is in [`Endpoint::ready`].
    is_ready: Cell<bool>,
    /// It is in [`Endpoint::sending`].
    is_sending: Cell<bool>,
    /// Time for which a timer is in the heap.
    armed: Cell<Option<Instant>>,
    /// The handshake is not complete.
    half_open: Cell<bool>,
    /// Number of its owner.
    pub owner: Cell<u32>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("handle", &self.handle).finish_non_exhaustive()
    }
}

impl Link {
    /// Returns the state machine. Nothing else may use the link meanwhile.
    pub fn quinn(&self) -> RefMut<'_, Connection> {
        self.quinn.borrow_mut()
    }

    /// Returns the address of the client.
    pub fn remote(&self) -> SocketAddr {
        self.quinn.borrow().remote_address()
    }

    /// Returns the facts of the handshake, once it has chosen a configuration.
    pub fn facts(&self) -> Option<Box<HandshakeFacts>> {
        self.quinn.borrow().crypto_session().handshake_data()?.downcast().ok()
    }
}

/// New connection whose client the owner may refuse.
pub struct Arrival(Incoming);

impl Arrival {
    /// Returns the address of the client.
    pub fn remote(&self) -> SocketAddr {
        self.0.remote_address()
    }

    /// Returns the local address that the client has sent to, where it is known.
    pub fn local(&self) -> Option<IpAddr> {
        self.0.local_ip()
    }
}

/// Connections of a listening socket in one thread.
pub struct Endpoint {
    quinn: RefCell<quinn_proto::Endpoint>,
    socket: Arc<OwnedFd>,
    settings: Settings,
    links: RefCell<Vec<Option<Rc<Link>>>>,
    /// Links with events for the application.
    ready: RefCell<Vec<Rc<Link>>>,
    /// Links that may have something to send.
    sending: RefCell<Vec<Rc<Link>>>,
    /// Times at which links have something to do, by handle. An entry may be out of date.
    timers: RefCell<BinaryHeap<Reverse<(Instant, usize)>>>,
    /// Packets to send.
    buf: RefCell<Vec<u8>>,
    /// Number of links that are not established.
    half_open: Cell<usize>,
    open: Cell<usize>,
    /// The kernel splits pieces.
    splits: Cell<bool>,
    /// Links that a panic has ended, until their owner is told.
    lost: RefCell<Vec<Rc<Link>>>,
    /// Panics that have not been reported.
    panics: Cell<usize>,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").field("open", &self.open).finish_non_exhaustive()
    }
}

impl Endpoint {
    /// Creates the connections of a socket.
    ///
    /// # Errors
    /// Errors of setsockopt(2).
    pub fn new(socket: Arc<OwnedFd>, v6: bool, settings: Settings) -> io::Result<Endpoint> {
        sockets::set_ecn_info(&socket, v6)?;
        let whole = sockets::set_dont_fragment(&socket, v6).is_ok();
        let (reset, token) = settings.key.split_at(32);
        let reset = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, reset);
        let mut config = EndpointConfig::new(Arc::new(reset));
        let thread = settings.thread;
        config.cid_generator(move || Box::new(cid::Generator::new(thread)));
        let token = aws_lc_rs::hkdf::Salt::new(aws_lc_rs::hkdf::HKDF_SHA256, &[]).extract(token);
        let mut server = ServerConfig::new(Arc::new(session::Crypto), Arc::new(token));
        server.transport_config(Arc::new(transport(&settings))).max_incoming(UNVALIDATED * 4);
        let quinn = quinn_proto::Endpoint::new(Arc::new(config), Some(Arc::new(server)), whole, None);
        Ok(Endpoint {
            quinn: RefCell::new(quinn),
            socket,
            settings,
            links: RefCell::default(),
            ready: RefCell::default(),
            sending: RefCell::default(),
            timers: RefCell::default(),
            buf: RefCell::default(),
            half_open: Cell::new(0),
            open: Cell::new(0),
            splits: Cell::new(true),
            lost: RefCell::default(),
            panics: Cell::new(0),
        })
    }

    /// Returns the number of connections.
    pub fn open(&self) -> usize {
        self.open.get()
    }

    /// Calls a function that handles a link. A panic in it ends that link only, without a word to the client.
    pub fn guard<R>(&self, link: &Rc<Link>, f: impl FnOnce() -> R) -> Option<R> {
        let done = catch_unwind(AssertUnwindSafe(f));
        if done.is_err() {
            self.panics.set(self.panics.get() + 1);
            if self.forget(link) {
                self.lost.borrow_mut().push(link.clone());
            }
        }
        done.ok()
    }

    /// Returns the number of panics since the last call.
    pub fn take_panics(&self) -> usize {
        self.panics.take()
    }

    /// Removes a link from the table. Returns `false` if it is not there.
    fn forget(&self, link: &Link) -> bool {
        self.established(link);
        let place = self.links.borrow_mut().get_mut(link.handle.0).and_then(Option::take);
        if place.is_some() {
            self.open.set(self.open.get().saturating_sub(1));
        }
        place.is_some()
    }

    /// Returns the time without packets after which a connection ends.
    pub fn patience(&self) -> Duration {
        self.settings.idle
    }

    /// Returns the socket.
    pub fn socket(&self) -> &Arc<OwnedFd> {
        &self.socket
    }

    /// Receives the datagrams that are there, at most [`MOST`] pieces. `begin` decides on new connections: it returns the number of
    /// their owner, or `None` to refuse. `chooser` is asked for the TLS configuration of handshakes.
    ///
    /// # Errors
    /// Errors of recvmmsg(2); `AGAIN`: there are none.
    pub fn receive(
        &self,
        batch: &mut Batch,
        now: Instant,
        chooser: &Rc<dyn Choose>,
        mut begin: impl FnMut(&Arrival) -> Option<u32>,
    ) -> Result<usize, Errno> {
        batch.clear();
        let count = batch.receive(&self.socket, MOST)?;
        let _choosing = session::Choosing::by(chooser);
        for n in 0..batch.len() {
            let (Some(datagram), Some(sender)) = (batch.get(n), batch.sender(n)) else { continue };
            let Address::Inet(remote) = sender.addr else { continue };
            let ecn = EcnCodepoint::from_bits(batch.ecn(n));
            for bytes in datagram.parts() {
                self.datagram(now, (remote, sender.local), ecn, bytes, &mut begin);
            }
        }
        Ok(count)
    }

    fn datagram(
        &self,
        now: Instant,
        (remote, local): (SocketAddr, Option<IpAddr>),
        ecn: Option<EcnCodepoint>,
        bytes: &[u8],
        begin: &mut impl FnMut(&Arrival) -> Option<u32>,
    ) {
        let mut buf = self.buf.take();
        buf.clear();
        let mut quinn = self.quinn.borrow_mut();
        match quinn.handle(now, remote, local, ecn, BytesMut::from(bytes), &mut buf) {
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                drop(quinn);
                if let Some(link) = self.link(handle) {
                    session::concern(link.owner.get());
                    if self.guard(&link, || link.quinn().handle_event(event)).is_some() {
                        self.mark(&link);
                    }
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                drop(quinn);
                self.arrive(now, Arrival(incoming), &mut buf, begin);
            }
            Some(DatagramEvent::Response(transmit)) => {
                drop(quinn);
                self.send(&transmit, &buf);
            }
            None => {}
        }
        self.buf.replace(buf);
    }

    /// Decides on a new connection.
    fn arrive(
        &self,
        now: Instant,
        arrival: Arrival,
        buf: &mut Vec<u8>,
        begin: &mut impl FnMut(&Arrival) -> Option<u32>,
    ) {
        let incoming = &arrival.0;
        let wary = self.settings.retry || self.half_open.get() >= UNVALIDATED;
        if wary && !incoming.remote_address_validated() && incoming.may_retry() {
            let answered = self.quinn.borrow_mut().retry(arrival.0, buf);
            if let Ok(transmit) = answered {
                self.send(&transmit, buf);
            }
            return;
        }
        let owner = if self.open.get() < self.settings.connections { begin(&arrival) } else { None };
        let Some(owner) = owner else {
            let transmit = self.quinn.borrow_mut().refuse(arrival.0, buf);
            self.send(&transmit, buf);
            return;
        };
        session::concern(owner);
        let accepted = self.quinn.borrow_mut().accept(arrival.0, now, buf, None);
        match accepted {
            Ok((handle, connection)) => {
                let link = Rc::new(Link {
                    quinn: RefCell::new(connection),
                    handle,
                    is_ready: Cell::new(false),
                    is_sending: Cell::new(false),
                    armed: Cell::new(None),
                    half_open: Cell::new(true),
                    owner: Cell::new(owner),
                });
                let mut links = self.links.borrow_mut();
                if links.len() <= handle.0 {
                    links.resize_with(handle.0 + 1, || None);
                }
                if let Some(place) = links.get_mut(handle.0) {
                    *place = Some(link.clone());
                }
                drop(links);
                self.half_open.set(self.half_open.get() + 1);
                self.open.set(self.open.get() + 1);
                self.mark(&link);
            }
            Err(e) => {
                if let Some(transmit) = e.response {
                    self.send(&transmit, buf);
                }
                session::refused(owner);
            }
        }
    }

    fn link(&self, handle: ConnectionHandle) -> Option<Rc<Link>> {
        self.links.borrow().get(handle.0).cloned().flatten()
    }

    /// Notes that a link has events, and may have something to send.
    pub fn mark(&self, link: &Rc<Link>) {
        if !link.is_ready.replace(true) {
            self.ready.borrow_mut().push(link.clone());
        }
        self.mark_sending(link);
    }

    /// Notes that a link may have something to send.
    pub fn mark_sending(&self, link: &Rc<Link>) {
        if !link.is_sending.replace(true) {
            self.sending.borrow_mut().push(link.clone());
        }
    }

    /// Moves a link with events to the caller.
    pub fn take_ready(&self) -> Option<Rc<Link>> {
        let link = self.ready.borrow_mut().pop()?;
        link.is_ready.set(false);
        Some(link)
    }

    /// Notes that the handshake of a link is complete.
    pub fn established(&self, link: &Link) {
        if link.half_open.replace(false) {
            self.half_open.set(self.half_open.get().saturating_sub(1));
        }
    }

    /// Returns `true` if links may have something to send.
    pub fn has_unsent(&self) -> bool {
        !self.sending.borrow().is_empty()
    }

    /// Sends what all links have to send. Calls `gone` for links that are over, after which nothing refers to them. Links that have
    /// more to send stay marked.
    pub fn flush(&self, now: Instant, mut gone: impl FnMut(&Rc<Link>)) {
        let mut sending = self.sending.take();
        let mut buf = self.buf.take();
        for link in sending.drain(..) {
            link.is_sending.set(false);
            let sent = self.guard(&link, || {
                let more = self.flush_one(&link, now, &mut buf);
                self.settle(&link, now, &mut gone);
                more
            });
            if sent == Some(true) {
                self.mark_sending(&link);
            }
        }
        // A statement of its own: the owner may end others.
        let lost = self.lost.take();
        lost.iter().for_each(&mut gone);
        self.buf.replace(buf);
        let mut more = self.sending.borrow_mut();
        if more.is_empty() {
            *more = sending;
        }
    }

    /// Sends what a link has to send. Returns `true` if there is more.
    fn flush_one(&self, link: &Link, now: Instant, buf: &mut Vec<u8>) -> bool {
        for _ in 0..PIECES {
            buf.clear();
            let most = if self.splits.get() { SEGMENTS } else { 1 };
            let Some(transmit) = link.quinn().poll_transmit(now, most, buf) else { return false };
            self.send(&transmit, buf);
        }
        true
    }

    /// Has the endpoint take the events of a link, and sets its timer.
    fn settle(&self, link: &Rc<Link>, now: Instant, gone: &mut impl FnMut(&Rc<Link>)) {
        let mut quinn = link.quinn();
        while let Some(event) = quinn.poll_endpoint_events() {
            let answer = self.quinn.borrow_mut().handle_event(link.handle, event);
            if let Some(event) = answer {
                quinn.handle_event(event);
            }
        }
        if quinn.is_drained() {
            drop(quinn);
            if self.forget(link) {
                gone(link);
            }
            return;
        }
        let Some(at) = quinn.poll_timeout() else { return };
        drop(quinn);
        // A timer that is later than the armed one is found when that fires.
        if link.armed.get().is_none_or(|armed| at < armed || armed <= now) {
            link.armed.set(Some(at));
            self.timers.borrow_mut().push(Reverse((at, link.handle.0)));
        }
    }

    /// Returns the time of the next timer.
    pub fn next_timer(&self) -> Option<Instant> {
        self.timers.borrow().peek().map(|Reverse((at, _))| *at)
    }

    /// Has links whose time has come do what is due.
    pub fn expire(&self, now: Instant) {
        loop {
            let due = {
                let mut timers = self.timers.borrow_mut();
                match timers.peek() {
                    Some(Reverse((at, _))) if *at <= now => timers.pop(),
                    _ => return,
                }
            };
            let Some(Reverse((at, handle))) = due else { return };
            let Some(link) = self.link(ConnectionHandle(handle)) else { continue };
            if link.armed.get() != Some(at) {
                continue;
            }
            link.armed.set(None);
            if self.guard(&link, || link.quinn().handle_timeout(now)).is_some() {
                self.mark(&link);
            }
        }
    }

    /// Calls `f` for each link.
    pub fn each(&self, mut f: impl FnMut(&Rc<Link>)) {
        let links: Vec<Rc<Link>> = self.links.borrow().iter().flatten().cloned().collect();
        links.iter().for_each(&mut f);
    }

    fn send(&self, transmit: &Transmit, buf: &[u8]) {
        let Some(bytes) = buf.get(..transmit.size) else { return };
        let to = Destination { addr: Address::Inet(transmit.destination), local: transmit.src_ip };
        let ecn = transmit.ecn.map_or(0, |ecn| ecn as u8);
        let segment = transmit.segment_size.unwrap_or(0);
        let sent = datagrams::send_marked(&self.socket, Datagram { bytes, segment }, Some(&to), ecn);
        // Others are lost, as elsewhere on their way: QUIC sends again.
        if let Err(Errno::IO | Errno::INVAL) = sent
            && segment > 0
        {
            self.splits.set(false);
            for bytes in bytes.chunks(segment) {
                let _ = datagrams::send_marked(&self.socket, Datagram { bytes, segment: 0 }, Some(&to), ecn);
            }
        }
    }
}

fn transport(settings: &Settings) -> TransportConfig {
    let mut config = TransportConfig::default();
    let idle = IdleTimeout::try_from(settings.idle).ok();
    config
        .max_concurrent_bidi_streams(settings.streams.into())
        // Control and QPACK, and a few of unknown types (RFC 9114, section 6.2).
        .max_concurrent_uni_streams(8u32.into())
        .stream_receive_window(settings.stream_window.into())
        .receive_window((settings.stream_window.saturating_mul(4)).into())
        .send_window(settings.send_window.into())
        .max_idle_timeout(idle)
        .datagram_receive_buffer_size(None)
        .initial_mtu(1200);
    config
}

#[cfg(test)]
mod tests;
