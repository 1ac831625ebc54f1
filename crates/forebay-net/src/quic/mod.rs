//! QUIC (RFC 9000) without an application: the connections of a listening socket in one thread. `forebay-quic` has the state machine;
//! this has sockets, timers, and the choice of the TLS configuration by the name that a client asks for. Hot path.
//!
//! An [`Endpoint`] turns datagrams into work for [`Link`]s. The owner takes those that have work ([`Endpoint::take_ready`]), lets the
//! application handle their events, and has what all of them send leave together at the end of the turn ([`Endpoint::flush`]).

mod budget;
mod cid;
pub mod client;
mod congestion;
mod http;
mod settings;
mod tally;
mod time;
mod tls;

pub use budget::FRAMES;
pub use cid::{Mask, Place};
pub use congestion::Congestion;
pub use forebay_quic::connection::{Connection, Event, Reason};
pub use forebay_quic::endpoint::Arrival;
pub use forebay_quic::error::{Code, Error};
pub use forebay_quic::id::{Dir, Side, StreamId};
pub use forebay_quic::stream::{Chunk, Closed, Next, ReadError, StreamEvent, Streams, WriteError};
pub use forebay_quic::version::Version;
pub use rustls::ServerConfig as TlsConfig;
pub use settings::{HostKey, IDS, Settings};
pub use tally::{COUNTS, Count};
pub use tls::{Choose, HandshakeFacts};

use crate::few_clients::{Clients, Seen};
use budget::Budget;
use bytes::BytesMut;
use cid::Here;
use forebay_quic::connection::{Config, Route, Transmit};
use forebay_quic::endpoint::{Answer, Routed, Slot};
use forebay_quic::packet::reset;
use forebay_sys::datagrams::{self, Address, Batch, Datagram, Destination, MOST, Outbox};
use forebay_sys::random::random_u64;
use forebay_sys::sockets;
use rustix::io::Errno;
use settings::unpaced;
use std::cell::{Cell, RefCell, RefMut};
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tally::Tally;
use time::instant;
pub use time::time;

/// Largest number of datagrams that a connection sends in one piece. The kernel takes up to 64 datagrams with
/// 64 KiB together.
const SEGMENTS: usize = 32;
/// Marks of the packets of almost all paths (RFC 9000, section 13.4.1): ECT(0).
const ECN: u8 = 0b10;
/// Pieces of a connection after which others send.
const PIECES: usize = 8;
/// Half-open connections from which on clients must prove their addresses (RFC 9000, section 8.1.2).
const UNVALIDATED: usize = 64;
/// Open streams from which on the client gets all that the settings allow.
const MANY_STREAMS: usize = 8;
/// Memory that datagrams share, bytes. A part of a datagram that is kept holds all of this memory.
const ROOM: usize = 16 * 1024;
/// Shortest time between two stateless resets. All clients of a process that has died need one at once.
const RESETS: Duration = Duration::from_micros(100);

/// Time without datagrams after which a connection gives memory back that an idle one does not need.
const REST: Duration = Duration::from_millis(200);
/// Number of timers that are out of date, in addition to one for each connection, at which they are dropped.
const STALE_TIMERS: usize = 64;

/// Time at which a link has something to do, and its slot.
type Timer = Reverse<(Instant, Slot)>;

/// Connection of an endpoint.
pub struct Link {
    quic: RefCell<Connection>,
    slot: Slot,
    /// The link is not in the table any more. Another link may have its slot and the number of its owner.
    is_gone: Cell<bool>,
    /// It is in [`Endpoint::ready`].
    is_ready: Cell<bool>,
    /// It is in [`Endpoint::sending`].
    is_sending: Cell<bool>,
    /// Time for which a timer is in the heap.
    armed: Cell<Option<Instant>>,
    /// Time at which the link has rested for long enough to give memory back, unless it has.
    rests_at: Cell<Option<Instant>>,
    /// The handshake is not complete.
    half_open: Cell<bool>,
    /// Frames that the peer may send.
    budget: RefCell<Budget>,
    /// The peer has sent too many. Nothing of it is handled before its owner has ended the connection.
    excess: Cell<bool>,
    /// The client may have as many streams as the settings say.
    has_all_streams: Cell<bool>,
    /// See [`Link::take_pause`].
    has_paused: Cell<bool>,
    /// See [`Clients::note`].
    seen: Cell<Seen>,
    /// Number of its owner.
    pub owner: Cell<u32>,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("slot", &self.slot).finish_non_exhaustive()
    }
}

impl Link {
    /// Returns the state machine. Nothing else may use the link meanwhile.
    pub fn quic(&self) -> RefMut<'_, Connection> {
        self.quic.borrow_mut()
    }

    /// Returns the streams. Nothing else may use the link meanwhile.
    pub fn streams(&self) -> RefMut<'_, Streams> {
        RefMut::map(self.quic.borrow_mut(), Connection::streams)
    }

    /// Closes the connection with an error code and a reason of the application.
    pub fn close(&self, now: Instant, code: u64, reason: &[u8]) {
        self.quic().close(time(now), code, reason);
    }

    /// Notes content that has moved, in bytes, and requests that are over, which make up for so many frames of the peer.
    pub fn note_progress(&self, content: u64, frames: u64) {
        self.budget.borrow_mut().note(content, frames);
    }

    /// Returns `true` if a timer has fired since the last call. That happens soon after the last packet, and seldom while there are many.
    pub fn take_pause(&self) -> bool {
        self.has_paused.take()
    }

    /// Returns `true` if the peer has sent more frames than it may without progress. Looks at those of the turn.
    pub fn is_excessive(&self, now: Instant) -> bool {
        if !self.excess.get() {
            let quic = self.quic.borrow();
            self.excess.set(self.budget.borrow_mut().look(quic.stats(), now));
        }
        self.excess.get()
    }

    /// Handles a datagram; not if the peer has sent too much.
    fn handle(&self, route: Route, ecn: u8, datagram: BytesMut, now: Instant) {
        let mut quic = self.quic();
        if self.excess.get() && !quic.is_closed() {
            return;
        }
        self.rests_at.set(Some(now + REST));
        let len = datagram.len();
        quic.receive(time(now), route, ecn, datagram);
        drop(quic);
        let is_due = self.budget.borrow_mut().receive(len);
        if is_due && self.quic.borrow().side().is_server() {
            self.is_excessive(now);
        }
    }

    /// Returns the address of the client: the one that it has proved last, since anybody can write another into a datagram.
    pub fn remote(&self) -> SocketAddr {
        self.quic.borrow().proved_remote()
    }

    /// Returns the facts of the handshake, once it has chosen a configuration: all of them when the link is established, those of a
    /// resumed session when content comes with the handshake.
    pub fn facts(&self) -> Option<Box<HandshakeFacts>> {
        self.quic.borrow_mut().take_facts()?.downcast().ok()
    }
}

/// Datagram with its addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received<'b> {
    /// Address of the sender.
    pub remote: SocketAddr,
    /// Local address, where it is known.
    pub local: Option<IpAddr>,
    /// Bits of explicit congestion notification (RFC 3168).
    pub ecn: u8,
    /// The datagram.
    pub bytes: &'b [u8],
}

/// Owner of the connections of an endpoint.
pub trait Owner {
    /// Returns `true` if a new connection has to have room made for it. Then only clients that have proved their addresses get it.
    fn is_full(&self) -> bool {
        false
    }

    /// Decides on a new connection. Returns its number, or `None` to refuse it.
    fn begin(&self, arrival: &Arrival) -> Option<u32>;

    /// Gives the first datagram of a new connection to another endpoint, if this one takes none any more since its listener has gone and
    /// come back. Returns `false` if there is no other, `true` also if the client has to send it again.
    fn redirect(&self, received: &Received<'_>) -> bool;

    /// Takes a datagram for another place. `exact`: only if that place is known to exist. Returns `false` if it has not been taken.
    fn pass(&self, place: Place, exact: bool, received: &Received<'_>) -> bool;
}

/// Connections of a listening socket in one thread.
pub struct Endpoint {
    quic: RefCell<forebay_quic::endpoint::Endpoint>,
    identity: Rc<Here>,
    socket: Arc<OwnedFd>,
    settings: RefCell<Settings>,
    config: RefCell<Rc<Config>>,
    /// Configuration for clients of this machine, whose path is not paced, if it is another.
    unpaced: RefCell<Option<Rc<Config>>>,
    /// Whether the kernel keeps datagrams whole.
    whole: bool,
    place: Place,
    mask: Arc<Mask>,
    links: RefCell<Vec<Option<Rc<Link>>>>,
    /// Links with events for the application.
    ready: RefCell<Vec<Rc<Link>>>,
    /// Links that may have something to send.
    sending: RefCell<Vec<Rc<Link>>>,
    /// Times at which links have something to do, by slot. An entry may be out of date.
    timers: RefCell<BinaryHeap<Timer>>,
    /// Buffer for answers to datagrams without a connection.
    buf: RefCell<Vec<u8>>,
    /// Memory for datagrams, which serves again once nothing refers to it.
    room: RefCell<BytesMut>,
    /// Packets of connections that leave together.
    outbox: RefCell<Outbox>,
    clients: Clients,
    /// Number of links that are not established.
    half_open: Cell<usize>,
    open: Cell<usize>,
    /// The kernel splits pieces.
    splits: Cell<bool>,
    /// Links that a panic has ended, until their owner is told.
    lost: RefCell<Vec<Rc<Link>>>,
    /// Panics that have not been reported.
    panics: Cell<usize>,
    /// A datagram found a closed port. Only sockets with a peer learn of that.
    refused: Cell<bool>,
    tally: Tally,
    /// What the kernel has dropped so far.
    drops: Cell<u32>,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").field("open", &self.open).finish_non_exhaustive()
    }
}

impl Endpoint {
    /// Creates the connections of a socket at a place.
    ///
    /// # Errors
    /// Errors of setsockopt(2).
    pub fn new(
        socket: Arc<OwnedFd>,
        v6: bool,
        settings: Settings,
        place: Place,
        mask: Arc<Mask>,
    ) -> io::Result<Endpoint> {
        let resets = reset::Key::new(&settings.key.derive::<32>(b"reset"));
        Endpoint::with(socket, v6, (settings, place, mask), resets, true)
    }

    /// Creates an endpoint. If it is none of a server it takes no connections.
    fn with(
        socket: Arc<OwnedFd>,
        v6: bool,
        (settings, place, mask): (Settings, Place, Arc<Mask>),
        resets: reset::Key,
        is_server: bool,
    ) -> io::Result<Endpoint> {
        sockets::set_ecn_info(&socket, v6)?;
        // A control message for each datagram would cost the kernel some 3 % of sending it.
        sockets::set_ecn(&socket, v6, ECN)?;
        let whole = sockets::set_dont_fragment(&socket, v6).is_ok();
        let _ = datagrams::set_coalescing(&socket, true);
        let tokens = is_server.then(|| Rc::new(settings::tokens(&settings)));
        let tokens_of_identity = RefCell::new(tokens.clone());
        let identity = Rc::new(Here { place, mask: mask.clone(), resets, tokens: tokens_of_identity });
        let quic = forebay_quic::endpoint::Endpoint::new(forebay_quic::endpoint::Settings {
            identity: identity.clone(),
            random: random_u64,
            tokens,
            resets: RESETS,
        });
        Ok(Endpoint {
            quic: RefCell::new(quic),
            identity,
            socket,
            config: RefCell::new(Rc::new(settings::config(&settings, whole))),
            unpaced: RefCell::new(unpaced(&settings, whole)),
            whole,
            settings: RefCell::new(settings),
            place,
            mask,
            links: RefCell::default(),
            ready: RefCell::default(),
            sending: RefCell::default(),
            timers: RefCell::default(),
            room: RefCell::default(),
            buf: RefCell::default(),
            outbox: RefCell::default(),
            clients: Clients::default(),
            half_open: Cell::new(0),
            open: Cell::new(0),
            splits: Cell::new(true),
            lost: RefCell::default(),
            panics: Cell::new(0),
            refused: Cell::new(false),
            tally: Tally::default(),
            drops: Cell::new(0),
        })
    }

    /// Returns the place of its connections.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Changes the settings for connections to come. The key of stateless resets stays.
    pub fn change(&self, settings: Settings) {
        if *self.settings.borrow() != settings {
            let tokens = Rc::new(settings::tokens(&settings));
            self.identity.tokens.replace(Some(tokens.clone()));
            self.quic.borrow_mut().set_tokens(Some(tokens));
            self.config.replace(Rc::new(settings::config(&settings, self.whole)));
            self.unpaced.replace(unpaced(&settings, self.whole));
            self.settings.replace(settings);
        }
    }

    /// Allows a client all its streams once it has this many open.
    pub fn allow_streams(&self, link: &Link, open: usize) {
        if open >= MANY_STREAMS && !link.has_all_streams.replace(true) {
            let all = self.settings.borrow().streams;
            link.streams().set_max_streams(Dir::Bi, all.into());
        }
    }

    /// Counts something.
    pub fn count(&self, what: Count) {
        self.tally.add(what, 1);
    }

    /// Calls `f` with each count since the last call that is not zero, by the number of its [`Count`].
    pub fn take_counts(&self, f: impl FnMut(usize, u64)) {
        self.tally.take(f);
    }

    /// Counts what the kernel has dropped since the last call.
    pub fn count_dropped(&self) {
        if let Ok(drops) = sockets::dropped(&*self.socket) {
            self.tally.add(Count::Dropped, drops.wrapping_sub(self.drops.replace(drops)).into());
        }
    }

    /// Returns the number of connections whose handshake is not complete.
    pub fn half_open(&self) -> usize {
        self.half_open.get()
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
        if link.is_gone.replace(true) {
            return false;
        }
        self.established(link);
        if let Some(place) = self.links.borrow_mut().get_mut(link.slot as usize) {
            *place = None;
        }
        // A panic may have left the connection borrowed; its identifiers then stay until the endpoint goes.
        if let Ok(mut connection) = link.quic.try_borrow_mut() {
            self.quic.borrow_mut().remove(link.slot, &mut connection);
        }
        self.open.set(self.open.get().saturating_sub(1));
        true
    }

    /// Returns the number of streams that a client of a new connection may have open at a time.
    pub fn streams(&self) -> u32 {
        self.settings.borrow().streams
    }

    /// Returns the time without packets after which a connection ends.
    pub fn patience(&self) -> Duration {
        self.settings.borrow().idle
    }

    /// Returns the socket.
    pub fn socket(&self) -> &Arc<OwnedFd> {
        &self.socket
    }

    /// Receives the datagrams that are there, at most [`MOST`] pieces, and returns the number of pieces. [`Endpoint::handle`] takes them.
    ///
    /// # Errors
    /// Errors of recvmmsg(2); `AGAIN`: there are none.
    pub fn receive(&self, batch: &mut Batch) -> Result<usize, Errno> {
        batch.clear();
        batch.receive(&self.socket, MOST)
    }

    /// Returns the number of pieces whose requests should be answered together: 1 or [`MOST`].
    pub fn portion(&self) -> usize {
        if self.clients.are_few() { 1 } else { MOST }
    }

    /// Handles some of the pieces received. `chooser` is asked for the TLS configuration of handshakes.
    pub fn handle(
        &self,
        batch: &Batch,
        pieces: Range<usize>,
        now: Instant,
        chooser: &Rc<dyn Choose>,
        owner: &impl Owner,
    ) {
        for n in pieces {
            let (Some(datagram), Some(sender)) = (batch.get(n), batch.sender(n)) else { continue };
            let Address::Inet(remote) = sender.addr else { continue };
            let ecn = batch.ecn(n);
            for bytes in datagram.parts() {
                let received = Received { remote, local: sender.local, ecn, bytes };
                self.datagram(now, &received, chooser, owner, true);
            }
        }
    }

    /// Handles a datagram that has been received elsewhere.
    pub fn deliver(
        &self,
        received: &Received<'_>,
        now: Instant,
        chooser: &Rc<dyn Choose>,
        owner: &impl Owner,
    ) {
        self.datagram(now, received, chooser, owner, false);
    }

    /// Has the owner take a datagram that is for another place. Long headers may have identifiers that a client has made up.
    fn pass(&self, received: &Received<'_>, long: bool, owner: &impl Owner) -> bool {
        let id = cid::receiver_of(received.bytes).filter(|(_, is_long)| *is_long == long);
        let Some((id, _)) = id else { return false };
        let place = self.mask.place_of(id).filter(|place| *place != self.place);
        let is_passed = place.is_some_and(|place| owner.pass(place, long, received));
        self.tally.add(Count::HandedOver, is_passed.into());
        is_passed
    }

    /// Handles a datagram. A panic costs this one: there may be no connection that it could end.
    fn datagram(
        &self,
        now: Instant,
        received: &Received<'_>,
        chooser: &Rc<dyn Choose>,
        owner: &impl Owner,
        passes: bool,
    ) {
        self.tally.add(Count::Received, 1);
        let done = catch_unwind(AssertUnwindSafe(|| self.dispatch(now, received, chooser, owner, passes)));
        if done.is_err() {
            self.panics.set(self.panics.get() + 1);
        }
    }

    /// Finds out what a datagram is for.
    fn dispatch(
        &self,
        now: Instant,
        received: &Received<'_>,
        chooser: &Rc<dyn Choose>,
        owner: &impl Owner,
        passes: bool,
    ) {
        if passes && self.pass(received, true, owner) {
            return;
        }
        let route = Route { remote: received.remote, local: received.local };
        // This is a statement of its own, since the arms below use the endpoint, too.
        let routed = self.quic.borrow().route(route, received.bytes, time::unix);
        match routed {
            Routed::Connection(slot) => {
                let Some(link) = self.link(slot) else { return };
                let mut seen = link.seen.get();
                self.clients.note(&mut seen);
                link.seen.set(seen);
                let bytes = self.copy(received.bytes);
                if self.guard(&link, || link.handle(route, received.ecn, bytes, now)).is_some() {
                    self.mark(&link);
                }
            }
            Routed::New(arrival) => {
                if !owner.redirect(received) {
                    self.arrive(now, &arrival, received, chooser, owner);
                }
            }
            // Only packets of connections that are not here get this far, and another place may have the
            // connection.
            Routed::Unknown => {
                if !(passes && self.pass(received, false, owner)) {
                    self.answer_unknown(now, received);
                }
            }
            Routed::Dropped => {
                let _ = passes && self.pass(received, false, owner);
            }
        }
    }

    /// Answers a datagram that is for no connection.
    fn answer_unknown(&self, now: Instant, received: &Received<'_>) {
        let mut buf = self.buf.take();
        buf.clear();
        let answer = self.quic.borrow_mut().answer(time(now), received.bytes, &mut buf);
        if let Some(answer) = answer {
            self.count(match answer {
                Answer::Reset => Count::Resets,
                Answer::Negotiation => Count::Negotiations,
            });
            self.answer(received, &buf);
        }
        self.buf.replace(buf);
    }

    /// Copies a datagram into memory that serves again for others: it is decrypted in place, and parts of it may be kept.
    fn copy(&self, bytes: &[u8]) -> BytesMut {
        let mut room = self.room.borrow_mut();
        if room.capacity() < bytes.len() {
            room.reserve(ROOM.max(bytes.len()));
        }
        room.extend_from_slice(bytes);
        room.split()
    }

    /// Decides on a new connection.
    fn arrive(
        &self,
        now: Instant,
        arrival: &Arrival,
        received: &Received<'_>,
        chooser: &Rc<dyn Choose>,
        owner: &impl Owner,
    ) {
        let mut buf = self.buf.take();
        buf.clear();
        self.begin(now, arrival, received, (chooser, owner), &mut buf);
        if !buf.is_empty() {
            self.answer(received, &buf);
        }
        self.buf.replace(buf);
    }

    /// Begins a new connection, or writes the refusal.
    fn begin(
        &self,
        now: Instant,
        arrival: &Arrival,
        received: &Received<'_>,
        (chooser, owner): (&Rc<dyn Choose>, &impl Owner),
        buf: &mut Vec<u8>,
    ) {
        // A handshake costs the server far more than the first datagram costs a client, whose address may be
        // forged.
        let wary = self.settings.borrow().retry || self.half_open.get() >= UNVALIDATED || owner.is_full();
        if wary && !arrival.is_proved() && arrival.may_retry() {
            if self.quic.borrow().retry(arrival, time::unix(), buf) {
                self.count(Count::Retries);
            }
            return;
        }
        // Connections that make room for others stay open until their clients have got the news, so twice the
        // number may be open for a while.
        let most = self.settings.borrow().connections.saturating_mul(2);
        let number = if self.open.get() < most { owner.begin(arrival) } else { None };
        let Some(number) = number else {
            self.count(Count::Refused);
            self.quic.borrow().refuse(arrival, buf);
            return;
        };
        let unpaced = self.unpaced.borrow().clone().filter(|_| arrival.remote().ip().is_loopback());
        let config = unpaced.unwrap_or_else(|| self.config.borrow().clone());
        let first = (received.ecn, self.copy(received.bytes));
        let made = catch_unwind(AssertUnwindSafe(|| {
            self.quic.borrow_mut().accept(
                time(now),
                arrival,
                first,
                config,
                |version, parameters| {
                    Box::new(tls::ServerSession::new(chooser.clone(), number, version, parameters))
                },
                buf,
            )
        }));
        match made {
            Ok(Some((slot, connection))) => {
                let is_v2 = arrival.version == Version::V2;
                self.count(if is_v2 { Count::Version2 } else { Count::Version1 });
                self.add(slot, connection, number, now);
            }
            Ok(None) => chooser.refused(number),
            Err(_) => {
                self.panics.set(self.panics.get() + 1);
                chooser.refused(number);
            }
        }
    }

    /// Adds a connection that begins.
    fn add(&self, slot: Slot, connection: Connection, owner: u32, now: Instant) -> Rc<Link> {
        let link = Rc::new(Link {
            quic: RefCell::new(connection),
            slot,
            is_gone: Cell::new(false),
            is_ready: Cell::new(false),
            is_sending: Cell::new(false),
            armed: Cell::new(None),
            rests_at: Cell::new(Some(now + REST)),
            half_open: Cell::new(true),
            budget: RefCell::new(Budget::new(now)),
            excess: Cell::new(false),
            has_all_streams: Cell::new(false),
            has_paused: Cell::new(false),
            seen: Cell::default(),
            owner: Cell::new(owner),
        });
        let mut links = self.links.borrow_mut();
        let at = slot as usize;
        if links.len() <= at {
            links.resize_with(at + 1, || None);
        }
        if let Some(place) = links.get_mut(at) {
            *place = Some(link.clone());
        }
        drop(links);
        self.half_open.set(self.half_open.get() + 1);
        self.open.set(self.open.get() + 1);
        self.mark(&link);
        link
    }

    fn link(&self, slot: Slot) -> Option<Rc<Link>> {
        self.links.borrow().get(slot as usize).cloned().flatten()
    }

    /// Notes that a link has events, and may have something to send.
    pub fn mark(&self, link: &Rc<Link>) {
        if !link.is_gone.get() && !link.is_ready.replace(true) {
            self.ready.borrow_mut().push(link.clone());
        }
        self.mark_sending(link);
    }

    /// Notes that a link may have something to send.
    pub fn mark_sending(&self, link: &Rc<Link>) {
        if !link.is_gone.get() && !link.is_sending.replace(true) {
            self.sending.borrow_mut().push(link.clone());
        }
    }

    /// Moves a link with events to the caller.
    pub fn take_ready(&self) -> Option<Rc<Link>> {
        loop {
            let link = self.ready.borrow_mut().pop()?;
            link.is_ready.set(false);
            if !link.is_gone.get() {
                return Some(link);
            }
        }
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
        for link in sending.drain(..) {
            link.is_sending.set(false);
            if link.is_gone.get() {
                continue;
            }
            let sent = self.guard(&link, || {
                let more = self.flush_one(&link, now);
                self.settle(&link, now, &mut gone);
                more
            });
            if sent == Some(true) {
                self.mark_sending(&link);
            }
        }
        self.send_waiting(&mut self.outbox.borrow_mut());
        // A statement of its own: the owner may end others.
        let lost = self.lost.take();
        lost.iter().for_each(&mut gone);
        let mut more = self.sending.borrow_mut();
        if more.is_empty() {
            *more = sending;
        }
    }

    /// Queues what a link has to send before it is closed.
    pub fn send(&self, link: &Link, now: Instant) {
        self.flush_one(link, now);
    }

    /// Queues what a link has to send. Returns `true` if there is more.
    fn flush_one(&self, link: &Link, now: Instant) -> bool {
        let mut outbox = self.outbox.borrow_mut();
        for _ in 0..PIECES {
            let mut buf = outbox.buffer();
            let most = if self.splits.get() { SEGMENTS } else { 1 };
            // The borrow ends here: a failed send may borrow the link.
            let (polled, is_last) = {
                let mut quic = link.quic();
                (quic.transmit(time(now), most, &mut buf), quic.has_sent_all())
            };
            let Some(transmit) = polled else {
                outbox.give_back(buf);
                return false;
            };
            let (segment, to, ecn) = self.departure(&transmit);
            outbox.push(buf, segment, to, ecn);
            if outbox.is_full() {
                self.send_waiting(&mut outbox);
            }
            if is_last {
                return false;
            }
        }
        true
    }

    /// Has the endpoint take the events of a link, and sets its timer.
    fn settle(&self, link: &Rc<Link>, now: Instant, gone: &mut impl FnMut(&Rc<Link>)) {
        let mut quic = link.quic();
        self.quic.borrow_mut().settle(link.slot, &mut quic);
        if quic.is_drained() {
            drop(quic);
            if self.forget(link) {
                gone(link);
            }
            return;
        }
        let at = [quic.deadline().map(instant), link.rests_at.get()].into_iter().flatten().min();
        drop(quic);
        let Some(at) = at else { return };
        // A time later than the armed one needs no timer now: it is found when the armed one fires.
        if link.armed.get().is_none_or(|armed| at < armed || armed <= now) {
            link.armed.set(Some(at));
            let mut timers = self.timers.borrow_mut();
            timers.push(Reverse((at, link.slot)));
            if timers.len() > 2 * self.open.get() + STALE_TIMERS {
                self.thin(&mut timers);
            }
        }
    }

    /// Drops timers that are out of date. A link leaves one whenever it is busy after a pause, which lasts as long as the idle timeout.
    fn thin(&self, timers: &mut BinaryHeap<Timer>) {
        let links = self.links.borrow();
        let mut all = std::mem::take(timers).into_vec();
        all.retain(|Reverse((at, slot))| {
            let link = links.get(*slot as usize).and_then(Option::as_ref);
            link.is_some_and(|link| link.armed.get() == Some(*at))
        });
        all.sort_unstable();
        all.dedup();
        *timers = all.into();
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
            let Some(Reverse((at, slot))) = due else { return };
            let Some(link) = self.link(slot) else { continue };
            if link.armed.get() != Some(at) {
                continue;
            }
            link.armed.set(None);
            link.has_paused.set(true);
            // A busy connection would allocate the same tables after each timer.
            let has_rested = link.rests_at.get().is_some_and(|at| at <= now);
            let due = || {
                let mut quic = link.quic();
                quic.expire(time(now));
                if has_rested {
                    link.rests_at.set(None);
                    quic.shrink(time(now));
                }
            };
            if self.guard(&link, due).is_some() {
                self.mark(&link);
            }
        }
    }

    /// Calls `f` for each link.
    pub fn each(&self, mut f: impl FnMut(&Rc<Link>)) {
        let links: Vec<Rc<Link>> = self.links.borrow().iter().flatten().cloned().collect();
        links.iter().for_each(&mut f);
    }

    /// Counts the datagrams of a transmission. Returns the size of each, where there are several, the place that they go to, and the bits
    /// for explicit congestion notification, if they are not those of the socket.
    fn departure(&self, transmit: &Transmit) -> (usize, Destination, Option<u8>) {
        let segment = if transmit.datagrams > 1 { transmit.segment } else { 0 };
        self.tally.add(Count::Sent, transmit.datagrams as u64);
        let to = Destination { addr: Address::Inet(transmit.remote), local: transmit.local };
        (segment, to, (transmit.ecn != ECN).then_some(transmit.ecn))
    }

    /// Sends an answer to a datagram without a connection.
    fn answer(&self, received: &Received<'_>, bytes: &[u8]) {
        self.tally.add(Count::Sent, 1);
        let to = Destination { addr: Address::Inet(received.remote), local: received.local };
        let datagram = Datagram { bytes, segment: 0 };
        if let Err(e) = datagrams::send_marked(&self.socket, datagram, Some(&to), Some(0)) {
            self.failed(e, datagram, &to, Some(0));
        }
    }

    /// Sends the packets that wait.
    fn send_waiting(&self, outbox: &mut Outbox) {
        outbox.send(&self.socket, |e, datagram, to, ecn| self.failed(e, datagram, to, ecn));
    }

    /// Handles a datagram that could not be sent.
    fn failed(&self, e: Errno, datagram: Datagram<'_>, to: &Destination, ecn: Option<u8>) {
        self.refused.set(self.refused.get() || e == Errno::CONNREFUSED);
        // Some devices and kernels cannot split a piece into datagrams, which are sent one by one from now on. A datagram
        // that fails otherwise is lost, as it could be anywhere on its way, and QUIC sends its content again.
        if let Errno::IO | Errno::INVAL = e
            && datagram.segment > 0
        {
            self.splits.set(false);
            for bytes in datagram.parts() {
                let _ = datagrams::send_marked(&self.socket, Datagram { bytes, segment: 0 }, Some(to), ecn);
            }
        }
    }
}

#[cfg(test)]
mod tests;
