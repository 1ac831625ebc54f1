//! HTTP/3 to upstreams (RFC 9114; Angie: proxy_http_version 3). Hot path.
//!
//! - [`Pool`] has the QUIC connections of a thread. `codec/http3.rs` asks it for a stream ([`Pool::open`]), and speaks HTTP on it.
//! - `lane::Lane` is a UDP socket to one server. Its events, and work that streams leave, come as steps of the reactor (`Pool::step`).
//! - `session::Session` is a connection: handshake, control and QPACK streams, GOAWAY, its end.
//! - [`alternatives::Alternatives`] are the ports at which servers take HTTP/3 by their own account.
//! - [`stream::Stream`] is a request. To all code after it, it is a wire ([`forebay_net::wire::Wire::Mux`]). Dropping it cancels it.
//!
//! Connections belong to a thread: its requests share them, and a configuration that is replaced gives them no more
//! requests.
//!
//! The QUIC client of a lane is `forebay-net/src/quic/client.rs`. The protocol is the code of `forebay-http/src/h3/connection/mod.rs` in
//! the role of a client. A server without HTTP/3 is remembered, and `exchange.rs` goes on over TCP.

pub mod alternatives;
mod lane;
mod session;
mod stream;

pub use stream::Stream;

use super::pooled;
use super::pooled::{Opened, Session as _, Shared, Trouble};
use alternatives::Alternatives;
use forebay_core::thread::Thread as WorkerThread;
use forebay_core::tls::client::{Unencrypted, Wanted};
use forebay_net::dial::{DialError, LocalAddress};
use forebay_net::quic::client;
use forebay_net::quic::client::Dialling;
use forebay_net::reactor::Direct;
use forebay_net::wire::Watch;
use forebay_server::module::thread::{ThreadSlot, ThreadState};
use forebay_server::thread::Thread;
use lane::Lane;
use rustix::io::Errno;
use session::Session;
use std::cell::RefCell;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Time without packets after which a connection is over.
const SILENCE: Duration = Duration::from_secs(30);
/// Time without packets after which a PING is sent, so that a server does not end the connection during a long request.
const PING: Duration = Duration::from_secs(5);
/// Unidirectional streams that a server may have open at a time: control, QPACK, and a few of unknown types.
const UNIS: u32 = 8;
/// Limit for content that is kept until it is acknowledged, in windows of a stream.
const SEND_WINDOWS: u32 = 16;
/// Largest window of a connection, bytes.
const MOST_WINDOW: u32 = 1 << 28;
/// Number of servers without HTTP/3 that are remembered. Beyond it, expired ones are forgotten.
const REMEMBERED: usize = 1000;

/// Limits of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    /// Requests at a time.
    pub streams: u32,
    /// Content that a server may send ahead on a stream, bytes.
    pub window: u32,
    /// Size of the dynamic table for responses, bytes.
    pub table: usize,
    /// Connection identifiers of the server that are kept (RFC 9000, section 5.1.1).
    pub ids: u64,
}

impl Limits {
    /// Returns the limits in the form of QUIC. Streams whose content is not read for now leave windows for the other
    /// streams.
    fn of_quic(self) -> client::Limits {
        client::Limits {
            window: self.window,
            connection_window: self
                .window
                .saturating_mul(self.streams)
                .clamp(self.window, MOST_WINDOW.max(self.window)),
            send_window: Some(self.window.saturating_mul(SEND_WINDOWS)),
            uni_streams: UNIS,
            idle: Some(SILENCE),
            keep_alive: Some(PING),
            ids: Some(self.ids),
            tokens: false,
        }
    }
}

/// Properties that connections must have in common to serve the same requests.
pub type Key = pooled::Key<Limits>;

/// A request that needs a stream.
pub struct Need<'n> {
    pub(crate) shared: pooled::Need<Limits>,
    pub(crate) addr: SocketAddr,
    pub(crate) wanted: &'n Wanted,
    /// Directory of certificates whose names have variables.
    pub base: &'n Path,
}

impl Trouble {
    /// Returns `true` if the server may be asked over TCP instead.
    pub fn may_fall_back(&self) -> bool {
        match self {
            Trouble::Dial(DialError::Connect(_)) | Trouble::Timeout | Trouble::Unspoken(_) => true,
            Trouble::Dial(_) | Trouble::ClientGone | Trouble::Tls(_) => false,
        }
    }
}

/// QUIC connections of a thread to upstreams.
#[derive(Default)]
pub struct Pool {
    lanes: RefCell<Vec<Option<Rc<Lane>>>>,
    /// Numbers of lanes by their addresses.
    of_address: RefCell<HashMap<(SocketAddr, Option<LocalAddress>), u32>>,
    /// Connections that take requests.
    shared: Shared<Session>,
    /// Servers that have said where they speak HTTP/3.
    pub alternatives: Alternatives,
    /// Servers that do not speak HTTP/3, and the time until which this is assumed.
    without: RefCell<HashMap<SocketAddr, Instant>>,
}

/// Connections of all threads to upstreams.
pub static POOL: ThreadSlot<Pool> = ThreadSlot::new();

impl ThreadState for Pool {
    fn new(_: &WorkerThread) -> Pool {
        Pool::default()
    }

    fn step(&self, thread: &Rc<Thread>, number: u32) {
        Pool::step(self, thread, number);
    }

    fn applied(&self) {
        Pool::retire(self);
    }

    fn end(&self) {
        Pool::end(self);
    }
}

impl Pool {
    /// Returns `true` if a server was found not to speak HTTP/3.
    pub fn is_without(&self, addr: SocketAddr, now: Instant) -> bool {
        let without = self.without.borrow();
        !without.is_empty() && without.get(&addr).is_some_and(|until| *until > now)
    }

    /// Remembers a server that does not speak HTTP/3. Returns `false` if that was known.
    pub fn note_without(&self, addr: SocketAddr, now: Instant, valid: Duration) -> bool {
        let mut without = self.without.borrow_mut();
        if without.len() >= REMEMBERED {
            without.retain(|_, until| *until > now);
        }
        without.insert(addr, now + valid).is_none_or(|until| until <= now)
    }

    /// Opens a stream on a connection that has room, or on a new one.
    ///
    /// # Errors
    /// `Trouble`.
    pub async fn open(
        &self,
        thread: &Rc<Thread>,
        need: &Need<'_>,
        watch: &mut Watch,
    ) -> Result<Opened<Stream>, Trouble> {
        let connect = async |_: &mut Watch| self.connect(thread, need).await;
        let opened = self.shared.open(&thread.io.poller, &need.shared, watch, connect).await?;
        thread.counters.upstream_quic_requests.add(1);
        Ok(opened)
    }

    /// Begins a connection.
    async fn connect(&self, thread: &Rc<Thread>, need: &Need<'_>) -> Result<Rc<Session>, Trouble> {
        let (tls, name) =
            need.wanted.over_quic(need.base).await.map_err(Unencrypted::Own).map_err(Trouble::Tls)?;
        let key = &need.shared.key;
        let lane = self.lane(thread, need.addr, key.local)?;
        let dialling = Dialling::new(tls, key.limits.of_quic());
        // Asked for even if the next call fails, since a lane without connections ends in a step.
        lane.ask();
        let session = Session::begin(&lane, &dialling, &name, need)?;
        thread.counters.upstream_quic_open.add(1);
        thread.counters.upstream_quic_connections.add(1);
        self.shared.add(&session);
        Ok(session)
    }

    /// Returns the socket to a server, which is made if there is none.
    fn lane(
        &self,
        thread: &Rc<Thread>,
        addr: SocketAddr,
        local: Option<LocalAddress>,
    ) -> Result<Rc<Lane>, Trouble> {
        let number = self.of_address.borrow().get(&(addr, local)).copied();
        if let Some(lane) = number.and_then(|number| self.numbered(number)) {
            return Ok(lane);
        }
        let mut lanes = self.lanes.borrow_mut();
        let at = lanes.iter().position(Option::is_none).unwrap_or(lanes.len());
        let number = u32::try_from(at).unwrap_or(u32::MAX);
        let direct = Direct { front: thread.front, kind: POOL.kind(), number };
        let open = || Lane::open(&thread.io, direct, (addr, local));
        let opened = match open() {
            // Cached files and idle connections give their descriptors up for a socket that a request needs.
            Err(e) if e.is_out_of_descriptors() && thread.shed() => open(),
            done => done,
        };
        let lane = opened.map_err(Trouble::Dial)?;
        match lanes.get_mut(at) {
            Some(place) => *place = Some(lane.clone()),
            None => lanes.push(Some(lane.clone())),
        }
        self.of_address.borrow_mut().insert((addr, local), number);
        Ok(lane)
    }

    fn numbered(&self, number: u32) -> Option<Rc<Lane>> {
        self.lanes.borrow().get(number as usize).cloned().flatten()
    }

    /// Handles what has come on a lane, timers, and what its streams have to send.
    fn step(&self, thread: &Rc<Thread>, number: u32) {
        let Some(lane) = self.numbered(number) else { return };
        thread.io.with_batch(|batch| lane.receive(batch));
        let panics = lane.work();
        for _ in 0..panics {
            thread.reactor.report_panic();
        }
        self.settle(thread, &lane);
        if lane.is_over() {
            thread.io.poller.remove(lane.token);
            self.of_address.borrow_mut().remove(&lane.address);
            if let Some(place) = self.lanes.borrow_mut().get_mut(number as usize) {
                *place = None;
            }
        }
    }

    /// Closes connections of a lane that are not needed any more, sends, and forgets connections that are over.
    fn settle(&self, thread: &Thread, lane: &Rc<Lane>) {
        lane.sessions().iter().for_each(|session| self.shared.trim(session, lane.now()));
        lane.flush();
        for session in lane.take_over() {
            thread.counters.upstream_quic_open.sub(1);
            thread.counters.upstream_quic_failed.add(u64::from(session.life().has_failed()));
            self.shared.leave(&session);
        }
        lane.set_timer();
    }

    /// Gives no more requests to any connection. Connections without requests are closed.
    fn retire(&self) {
        self.shared.retire();
    }

    /// Closes all connections at once, since the thread ends.
    fn end(&self) {
        self.retire();
        let lanes: Vec<_> = self.lanes.borrow().iter().flatten().cloned().collect();
        for lane in lanes {
            // No further step follows, so the frames that close the connections leave in this call.
            lane.sessions().iter().for_each(|session| session.close());
            lane.flush();
        }
    }
}

/// Returns the trouble of a server that nobody listens for.
fn refused() -> Trouble {
    Trouble::Dial(DialError::Connect(Errno::CONNREFUSED))
}
