//! One connection: the handshake, packets, paths, and the end.
//!
//! - [`Connection::receive`] takes a datagram, [`Connection::expire`] what is due.
//! - [`Connection::transmit`] puts datagrams together, [`Connection::deadline`] says when something is due.
//! - [`Connection::poll`] tells what happened; [`Connection::streams`] has the content.

mod close;
mod config;
mod crypto;
mod datagrams;
mod event;
mod frames;
mod handshake;
mod ids;
mod items;
mod keys;
mod migration;
mod mtu;
mod outbound;
mod packets;
mod path;
mod receive;
mod stats;
mod timers;
mod transmit;

pub use config::{ACK_DELAY_EXPONENT, Config, MAX_ACK_DELAY};
pub use event::{Event, Reason};
pub use ids::{IdChange, Identity, ResetToken};
pub use path::Route;
pub use stats::{Kept, Stats};
pub use transmit::Transmit;

use crate::error::{Code, Error};
use crate::id::{ConnectionId, Side};
use crate::recovery::{self, Recovery};
use crate::stream::Streams;
use crate::time::Time;
use crate::tls::Session;
use crate::version::Version;
use close::State;
use datagrams::Datagrams;
use handshake::Handshake;
use ids::{LocalIds, RemoteIds};
use items::Span;
use keys::DataKeys;
use outbound::Outbound;
use path::Path;
use std::any::Any;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

/// Packet number space (RFC 9000, section 12.3).
pub use crate::recovery::Space;

/// What the peer has said in its transport parameters, as far as it is needed later.
#[derive(Clone, Copy, Debug)]
struct Peer {
    /// Time without packets after which it ends the connection.
    idle: Duration,
    ack_delay_exponent: u8,
    /// Largest datagram that it takes (`max_udp_payload_size`).
    payload: u64,
    /// Largest DATAGRAM frame that it takes.
    datagrams: u64,
    /// The fixed bit of packets to it may have any value (RFC 9287).
    greases: bool,
}

/// Facts that both sides of a new connection know.
#[derive(Clone, Debug)]
pub struct Begin {
    /// Version of the first packet.
    pub version: Version,
    /// Addresses.
    pub route: Route,
    /// Identifier of this side.
    pub local: ConnectionId,
    /// Identifier of the peer: a server's client has chosen it, a client makes it up.
    pub remote: ConnectionId,
    /// Identifier by which Initial packets are protected: the first that the client sent to.
    pub initial: ConnectionId,
    /// Identifier that the first Initial packet of a client was sent to, before a Retry.
    pub original: ConnectionId,
    /// Identifier that a Retry packet of this server had as its source.
    pub retried: Option<ConnectionId>,
    /// The client has proved its address, by a token.
    pub is_proved: bool,
    /// Token for the Initial packets of a client.
    pub token: Vec<u8>,
}

/// Connection.
pub struct Connection {
    side: Side,
    version: Version,
    state: State,
    config: Rc<Config>,
    source: Rc<dyn Identity>,
    random: fn() -> u64,
    /// TLS, until nothing of it is needed any more.
    session: Option<Box<dyn Session>>,
    facts: Option<Box<dyn Any>>,
    /// Initial and Handshake packets, until the handshake is confirmed.
    handshake: Option<Box<Handshake>>,
    /// Keys of 1-RTT packets.
    keys: Option<Box<DataKeys>>,
    recovery: Recovery<Span>,
    outbound: Outbound,
    path: Path,
    /// The path before a migration, or one that is asked.
    other: Option<Box<Path>>,
    peer: Option<Peer>,
    datagrams: Option<Box<Datagrams>>,
    events: VecDeque<Event>,
    id_changes: Vec<IdChange>,
    stats: Stats,
    /// Time from which the idle timeout counts.
    active: Time,
    /// Something that asks for an acknowledgment was sent since the last packet came.
    has_asked: bool,
    /// Time at which a packet that the pacer holds back may leave.
    paced_until: Option<Time>,
    /// Packets that leave now are marked with ECT(0).
    marks: bool,
    /// Nothing was left to send at the end of the last [`Connection::transmit`].
    has_sent_all: bool,
    /// The handshake is confirmed (RFC 9001, section 4.1.2).
    is_confirmed: bool,
    /// State of the bits that nobody can foretell (RFC 9287).
    noise: u64,
    /// Largest packet number of a 1-RTT packet that came.
    largest: Option<u64>,
    /// Identifiers of this side that the peer takes (`active_connection_id_limit`).
    peer_ids: u64,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connection")
            .field("side", &self.side)
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl Connection {
    /// Creates a connection. A client's first packet is put together by [`Connection::transmit`], and a server's connection gets the
    /// client's by [`Connection::receive`].
    ///
    /// `session` has this side's transport parameters, see [`Config::parameters`]. `random` returns numbers that nobody can foretell.
    pub fn new(
        side: Side,
        now: Time,
        begin: Begin,
        config: Rc<Config>,
        source: Rc<dyn Identity>,
        session: Box<dyn Session>,
        random: fn() -> u64,
    ) -> Connection {
        let most_mtu = if config.searches_mtu { config.most_mtu } else { mtu::BASE };
        let path = Path::new(begin.route, side.is_client() || begin.is_proved, most_mtu);
        let mut connection = Connection {
            side,
            version: begin.version,
            state: State::Open,
            recovery: Recovery::new(&recovery_config(&config, random), side.is_server(), now),
            outbound: Outbound {
                items: items::Items::default(),
                streams: Streams::new(side, config.limits),
                local: LocalIds::new(begin.local),
                remote: RemoteIds::new(begin.remote, config.ids),
                early: [Some(Box::default()), None],
                data: outbound::SpaceState::default(),
                handshake_done: false,
                token: None,
                sent_token: None,
                ping: false,
            },
            config,
            source,
            random,
            session: Some(session),
            facts: None,
            handshake: Some(Box::new(Handshake::new(begin))),
            keys: None,
            path,
            other: None,
            peer: None,
            datagrams: None,
            events: VecDeque::new(),
            id_changes: Vec::new(),
            stats: Stats::default(),
            active: now,
            has_asked: false,
            paced_until: None,
            marks: false,
            has_sent_all: false,
            is_confirmed: false,
            noise: random(),
            largest: None,
            peer_ids: 2,
        };
        if side.is_client() {
            connection.advance(now);
        }
        connection
    }

    /// Returns the role of this side.
    pub fn side(&self) -> Side {
        self.side
    }

    /// Returns the version in use.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Returns the next event.
    pub fn poll(&mut self) -> Option<Event> {
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        self.outbound.streams.poll().map(Event::Stream)
    }

    /// Returns the streams. What was written leaves with [`Connection::transmit`].
    pub fn streams(&mut self) -> &mut Streams {
        self.has_sent_all = false;
        &mut self.outbound.streams
    }

    /// Returns the next change of the identifiers that packets for this connection have.
    pub fn take_id_change(&mut self) -> Option<IdChange> {
        // They are few, and their order counts.
        (!self.id_changes.is_empty()).then(|| self.id_changes.remove(0))
    }

    /// Returns the facts that the handshake has brought, once they are known ([`Session::facts`]).
    pub fn facts(&self) -> Option<Box<dyn Any>> {
        self.session.as_ref()?.facts()
    }

    /// Takes the facts of the handshake, once it is complete.
    pub fn take_facts(&mut self) -> Option<Box<dyn Any>> {
        self.facts.take().or_else(|| self.facts())
    }

    /// Returns the address of the peer that it has proved last, since anybody can write another into a datagram.
    pub fn proved_remote(&self) -> std::net::SocketAddr {
        let other = self.other.as_ref().filter(|other| other.is_proved && !self.path.is_proved);
        other.map_or(self.path.route.remote, |other| other.route.remote)
    }

    /// Returns `true` until the handshake is complete.
    pub fn is_handshaking(&self) -> bool {
        self.keys.is_none() || self.session.as_ref().is_some_and(|session| session.is_handshaking())
    }

    /// Returns the round-trip time that is expected.
    pub fn rtt(&self) -> Duration {
        self.recovery.rtt().smoothed()
    }

    /// Returns counts.
    pub fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Returns what the connection keeps.
    pub fn kept(&self) -> Kept {
        Kept {
            items: self.outbound.items.len(),
            packets: self.recovery.unacked(Space::Data).count(),
            events: self.events.len(),
            content: self.outbound.streams.kept(),
        }
    }

    /// Describes the state of paths and timers, for tests.
    #[doc(hidden)]
    pub fn recovery(&self) -> String {
        let path = |path: &Path| {
            let Path { route, challenge, response, is_proved, .. } = path;
            format!("{} {challenge:?} {response:?} {is_proved} {}", route.remote, path.allowance())
        };
        let (other, recovery) = (self.other.as_deref().map(path), &self.recovery);
        format!(
            "{} other {other:?} in flight {} room {} {:?} {:?} timer {:?} ack {:?} idle {:?} {:?} paced {:?}",
            path(&self.path),
            recovery.in_flight(),
            recovery.room(),
            recovery.rtt(),
            recovery.stats(),
            recovery.deadline(self.is_amplification_limited()),
            self.outbound.data.acks.deadline(),
            self.idle_deadline(),
            self.keep_alive_deadline(),
            self.paced_until,
        )
    }

    /// Returns the bytes that the path is taken to carry at a time.
    pub fn window(&self) -> u64 {
        self.recovery.window()
    }

    /// Returns the size of datagrams, bytes of UDP payload.
    pub fn mtu(&self) -> u16 {
        self.path.mtu.current()
    }

    /// Returns `true` if [`Connection::transmit`] has nothing to send before something else happens.
    pub fn has_sent_all(&self) -> bool {
        self.has_sent_all
    }

    /// Gives memory back that an idle connection does not need.
    pub fn shrink(&mut self, now: Time) {
        self.outbound.shrink();
        self.recovery.shrink(now);
        if self.events.is_empty() {
            self.events = VecDeque::new();
        }
        if self.id_changes.is_empty() {
            self.id_changes = Vec::new();
        }
    }

    /// Returns the time after which a packet that is not acknowledged is asked for, for timers of the connection (RFC 9002, section 6.2.1).
    fn pto(&self) -> Duration {
        self.recovery.pto(Space::Data)
    }

    /// Returns `true` if nothing may be sent before the peer sends more (RFC 9000, section 8.1).
    fn is_amplification_limited(&self) -> bool {
        self.path.allowance() < transmit::LEAST as u64
    }

    fn internal(reason: &'static str) -> Error {
        Error::new(Code::INTERNAL_ERROR, reason)
    }
}

fn recovery_config(config: &Config, random: fn() -> u64) -> recovery::Config {
    recovery::Config {
        algorithm: config.congestion,
        initial_rtt: config.initial_rtt,
        datagram_size: mtu::BASE,
        ecn: true,
        unpaced_below: if config.is_paced { Duration::ZERO } else { Duration::MAX },
        seed: random(),
    }
}
