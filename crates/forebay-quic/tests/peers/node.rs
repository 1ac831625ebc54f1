//! The host that is tested: an endpoint of the crate with its connections.

use crate::random;
use crate::setup::Setup;
use bytes::BytesMut;
use forebay_quic::connection::{Config, Connection, Event, Identity, ResetToken, Route};
use forebay_quic::endpoint::{Answer, Endpoint, Routed, Settings, Slot};
use forebay_quic::id::{ConnectionId, Side};
use forebay_quic::parameters::TransportParameters;
use forebay_quic::time::Time;
use forebay_quic::tls::{ClientSession, ServerSession, Session};
use forebay_quic::token::TokenKey;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

/// Seconds since 1970 in all tests.
pub const UNIX: u64 = 1_700_000_000;

/// Datagram that leaves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Datagram {
    pub to: SocketAddr,
    pub bytes: Vec<u8>,
}

/// Identity of the host. Its identifiers have eight bytes.
#[derive(Default)]
pub struct Plain {
    used: RefCell<BTreeSet<u128>>,
}

impl Plain {
    /// Returns the secret of tokens of addresses.
    pub fn tokens() -> Rc<TokenKey> {
        Rc::new(TokenKey::new(&[3; 32], 10, 3600))
    }
}

/// Returns the token by which the host resets a connection with an identifier.
pub fn reset_token(id: &[u8]) -> ResetToken {
    let mut token = [7; 16];
    token.iter_mut().zip(id.iter()).for_each(|(to, from)| *to ^= from);
    token
}

impl Identity for Plain {
    fn make(&self) -> ConnectionId {
        ConnectionId::new(&random::shared().to_ne_bytes()).expect("eight bytes")
    }

    fn id_len(&self) -> usize {
        8
    }

    fn reset_token(&self, id: &ConnectionId) -> ResetToken {
        reset_token(id)
    }

    fn takes_token(&self, unique: u128) -> bool {
        self.used.borrow_mut().insert(unique)
    }
}

/// Host.
pub struct Node {
    pub side: Side,
    pub endpoint: Endpoint,
    pub connections: BTreeMap<Slot, Connection>,
    pub config: Rc<Config>,
    /// New clients have to prove their addresses.
    pub retries: bool,
    /// Last answer that no connection gave.
    pub answer: Option<Answer>,
    /// Connections that were begun.
    pub begun: u32,
    /// What connections told.
    pub events: Vec<Event>,
}

impl Node {
    pub fn new(side: Side, setup: &Setup) -> Node {
        let mut config = crate::setup::config();
        (setup.config)(&mut config);
        Node {
            side,
            endpoint: Endpoint::new(Settings {
                identity: Rc::new(Plain::default()),
                random: random::shared,
                tokens: side.is_server().then(Plain::tokens),
                resets: setup.resets,
            }),
            connections: BTreeMap::new(),
            config: Rc::new(config),
            retries: setup.retries,
            answer: None,
            begun: 0,
            events: Vec::new(),
        }
    }

    /// Begins a connection.
    pub fn connect(&mut self, now: Time, remote: SocketAddr, setup: &Setup) {
        let route = Route { remote, local: None };
        let tls = setup.client_tls();
        let begin = |version, parameters: TransportParameters| {
            let mut encoded = Vec::new();
            parameters.push(&mut encoded, Side::Client, random::shared());
            let session = ClientSession::new(tls, version, "h".try_into().expect("a name"), encoded)?;
            Ok(Box::new(session) as Box<dyn Session>)
        };
        let made = self.endpoint.connect(now, (setup.version, route), self.config.clone(), Vec::new(), begin);
        self.connections.extend([made.expect("a connection")]);
    }

    /// Handles a datagram. Returns the answers that no connection gives.
    pub fn receive(&mut self, now: Time, from: SocketAddr, bytes: &[u8], setup: &Setup) -> Vec<Datagram> {
        let route = Route { remote: from, local: None };
        let mut out = Vec::new();
        let bytes = BytesMut::from(bytes);
        match self.endpoint.route(route, &bytes, || UNIX) {
            Routed::Connection(slot) => {
                if let Some(connection) = self.connections.get_mut(&slot) {
                    connection.receive(now, route, 0, bytes);
                }
            }
            Routed::New(arrival) if self.retries && arrival.may_retry() => {
                self.endpoint.retry(&arrival, UNIX, &mut out);
            }
            Routed::New(arrival) => {
                let tls = setup.server_tls();
                let begin = |version, parameters: TransportParameters| {
                    let mut encoded = Vec::new();
                    parameters.push(&mut encoded, Side::Server, random::shared());
                    let session = ServerSession::new(tls, version, encoded).expect("a session");
                    Box::new(session) as Box<dyn Session>
                };
                let made =
                    self.endpoint.accept(now, &arrival, (0, bytes), self.config.clone(), begin, &mut out);
                self.begun += u32::from(made.is_some());
                self.connections.extend(made);
            }
            Routed::Unknown => self.answer = self.endpoint.answer(now, &bytes, &mut out),
            Routed::Dropped => {}
        }
        if out.is_empty() { Vec::new() } else { vec![Datagram { to: from, bytes: out }] }
    }

    /// Does what is due, and returns what leaves.
    pub fn turn(&mut self, now: Time) -> Vec<Datagram> {
        let (mut out, mut all) = (Vec::new(), Vec::new());
        for (slot, connection) in &mut self.connections {
            if connection.deadline().is_some_and(|at| at <= now) {
                connection.expire(now);
            }
            loop {
                out.clear();
                let Some(sent) = connection.transmit(now, 10, &mut out) else { break };
                let parts = out.chunks(sent.segment);
                all.extend(parts.map(|part| Datagram { to: sent.remote, bytes: part.to_vec() }));
            }
            self.endpoint.settle(*slot, connection);
            self.events.extend(std::iter::from_fn(|| connection.poll()));
        }
        let over: Vec<Slot> =
            self.connections.iter().filter(|(_, c)| c.is_drained()).map(|(slot, _)| *slot).collect();
        for slot in over {
            if let Some(mut connection) = self.connections.remove(&slot) {
                self.endpoint.remove(slot, &mut connection);
            }
        }
        all
    }

    /// Returns the time at which something is due.
    pub fn deadline(&self) -> Option<Time> {
        self.connections.values().filter_map(|c| c.deadline()).min()
    }

    /// Returns the only connection.
    pub fn only(&mut self) -> &mut Connection {
        self.connections.values_mut().next().expect("a connection")
    }

    /// Returns the packets that connections have taken.
    pub fn taken(&self) -> u64 {
        self.connections.values().map(|c| c.stats().received_packets).sum()
    }
}

/// Time between two stateless resets where a test says nothing else.
pub const NO_WAIT: Duration = Duration::ZERO;
