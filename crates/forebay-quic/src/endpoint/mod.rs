//! Connections of one socket: which connection a datagram is for, and answers to datagrams without one.
//!
//! The owner keeps the connections, each at the slot that it got here, and has [`Endpoint::settle`] take their changes of
//! identifiers.

use crate::connection::{Begin, Config, Connection, IdChange, Identity, ResetToken, Route};
use crate::error::{Code, Error};
use crate::frame::push_connection_close;
use crate::id::{ConnectionId, Side};
use crate::packet::retry::Retry;
use crate::packet::{Head, Header, LongKind, Packet, negotiation, protect, reset};
use crate::parameters::TransportParameters;
use crate::time::Time;
use crate::tls::Session;
use crate::token::{Opened, TokenKey};
use crate::version::Version;
use bytes::BytesMut;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

/// Smallest datagram with the first packet of a client (RFC 9000, section 14.1), bytes.
const LEAST_INITIAL: usize = 1200;
/// Shortest identifier that a client may make up for a server (RFC 9000, section 7.2), bytes.
const LEAST_ID: usize = 8;

/// Place of a connection at its owner.
pub type Slot = u32;

/// Settings of an endpoint.
#[derive(Clone)]
pub struct Settings {
    /// Identifiers and secrets of this side.
    pub identity: Rc<dyn Identity>,
    /// Source of numbers that nobody can foretell.
    pub random: fn() -> u64,
    /// Tokens of addresses; `None` at endpoints that take no connections.
    pub tokens: Option<Rc<TokenKey>>,
    /// Shortest time between two stateless resets.
    pub resets: Duration,
}

/// What a datagram is for.
#[derive(Debug)]
pub enum Routed {
    /// A connection.
    Connection(Slot),
    /// A new connection, if the owner wants one.
    New(Box<Arrival>),
    /// None here. [`Endpoint::answer`] may have an answer.
    Unknown,
    /// It is malformed, or too short to be answered.
    Dropped,
}

/// Kind of an answer to a datagram without a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Version Negotiation packet (RFC 9000, section 6.1).
    Negotiation,
    /// Stateless reset (RFC 9000, section 10.3).
    Reset,
}

/// First packet of a client.
#[derive(Clone, Debug)]
pub struct Arrival {
    /// Version of the packet.
    pub version: Version,
    /// Addresses.
    pub route: Route,
    /// Identifier that the client has made up for the server, or got by a Retry packet.
    dst: ConnectionId,
    /// Identifier of the client.
    src: ConnectionId,
    /// What its token says.
    token: TokenOf,
}

/// What the token of an Initial packet says.
#[derive(Clone, Debug, PartialEq, Eq)]
enum TokenOf {
    /// There is none, or one of another server.
    Nothing,
    /// It was in a Retry packet for this address. The identifier is the one that the client sent to first.
    Retry(ConnectionId),
    /// It was in a NEW_TOKEN frame for this address.
    Given,
    /// It was in a Retry packet for another address, or too long ago.
    Wrong,
}

impl Arrival {
    /// Returns the address of the client.
    pub fn remote(&self) -> SocketAddr {
        self.route.remote
    }

    /// Returns the local address that the client has sent to, where it is known.
    pub fn local(&self) -> Option<IpAddr> {
        self.route.local
    }

    /// Returns `true` if the client has proved its address by a token.
    pub fn is_proved(&self) -> bool {
        matches!(self.token, TokenOf::Retry(_) | TokenOf::Given)
    }

    /// Returns `true` if a Retry packet may be sent: the client has not had one.
    pub fn may_retry(&self) -> bool {
        matches!(self.token, TokenOf::Nothing | TokenOf::Given)
    }
}

/// Connections of one socket.
pub struct Endpoint {
    settings: Settings,
    ids: HashMap<ConnectionId, Slot>,
    /// Tokens of stateless resets, of the identifiers that packets are sent to.
    resets: HashMap<ResetToken, Slot>,
    /// Slots that are free.
    free: Vec<Slot>,
    /// Number of slots.
    slots: Slot,
    /// Time of the last stateless reset.
    last_reset: Option<Time>,
}

impl std::fmt::Debug for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Endpoint").field("ids", &self.ids.len()).finish_non_exhaustive()
    }
}

impl Endpoint {
    /// Creates an endpoint without connections.
    pub fn new(settings: Settings) -> Endpoint {
        Endpoint {
            settings,
            ids: HashMap::new(),
            resets: HashMap::new(),
            free: Vec::new(),
            slots: 0,
            last_reset: None,
        }
    }

    /// Changes the secret of address tokens.
    pub fn set_tokens(&mut self, tokens: Option<Rc<TokenKey>>) {
        self.settings.tokens = tokens;
    }

    /// Finds out what a datagram is for. `unix` returns seconds since 1970, for the age of tokens.
    pub fn route(&self, route: Route, datagram: &[u8], unix: impl FnOnce() -> u64) -> Routed {
        let reset = || reset::token_of(datagram).and_then(|token| self.resets.get(token)).copied();
        let Some(found) = Packet::parse(datagram, self.settings.identity.id_len()) else {
            return reset().map_or(Routed::Dropped, Routed::Connection);
        };
        let dst = match &found.header {
            Header::Short { dst } => Some(*dst),
            Header::Long(long) => Some(long.dst),
            Header::Negotiation { dst, .. } | Header::Unknown { dst, .. } => {
                datagram.get(dst.clone()).and_then(ConnectionId::new)
            }
        };
        if let Some(slot) = dst.and_then(|dst| self.ids.get(&dst)) {
            return Routed::Connection(*slot);
        }
        // A reset has an identifier that means nothing, and may look like any packet (RFC 9000, section 10.3).
        if let Some(slot) = reset() {
            return Routed::Connection(slot);
        }
        match &found.header {
            Header::Long(long) if self.settings.tokens.is_some() && long.kind == LongKind::Initial => {
                // Only a client that was here before may clear the fixed bit (RFC 9287, section 3.1).
                let is_valid = found.fixed || !long.token.is_empty();
                if datagram.len() < LEAST_INITIAL || long.dst.len() < LEAST_ID || !is_valid {
                    return Routed::Dropped;
                }
                let token = datagram.get(long.token.clone()).unwrap_or_default();
                let token = self.token(token, route, long.version, unix());
                // A client may know from a former connection that the bit may have any value (RFC 9287, section 3.1).
                if !found.fixed && token != TokenOf::Given {
                    return Routed::Dropped;
                }
                Routed::New(Box::new(Arrival {
                    version: long.version,
                    route,
                    dst: long.dst,
                    src: long.src,
                    token,
                }))
            }
            Header::Long(_) | Header::Negotiation { .. } => Routed::Dropped,
            Header::Unknown { .. } | Header::Short { .. } => Routed::Unknown,
        }
    }

    fn token(&self, token: &[u8], route: Route, version: Version, unix: u64) -> TokenOf {
        let Some(tokens) = self.settings.tokens.as_ref().filter(|_| !token.is_empty()) else {
            return TokenOf::Nothing;
        };
        match tokens.open(token, version, route.remote, unix) {
            Opened::Retry { original_dst } => TokenOf::Retry(original_dst),
            Opened::New { unique, .. } if self.settings.identity.takes_token(u128::from_ne_bytes(unique)) => {
                TokenOf::Given
            }
            Opened::Invalid => TokenOf::Wrong,
            Opened::New { .. } | Opened::Foreign => TokenOf::Nothing,
        }
    }

    /// Appends the answer to a datagram that is for no connection, if there is one.
    pub fn answer(&mut self, now: Time, datagram: &[u8], out: &mut Vec<u8>) -> Option<Answer> {
        let found = Packet::parse(datagram, self.settings.identity.id_len())?;
        match &found.header {
            Header::Unknown { version, dst, src } => {
                // RFC 9000, section 6.1: so that nobody is sent more than it has sent.
                let (dst, src) = (datagram.get(dst.clone())?, datagram.get(src.clone())?);
                if datagram.len() < LEAST_INITIAL || self.settings.tokens.is_none() {
                    return None;
                }
                negotiation::push_negotiation(out, *version, src, dst, (self.settings.random)());
                Some(Answer::Negotiation)
            }
            Header::Short { dst } => {
                if self.last_reset.is_some_and(|last| now.since(last) < self.settings.resets) {
                    return None;
                }
                let token = self.settings.identity.reset_token(dst);
                let random = self.random::<32>();
                let is_sent = reset::push_reset(out, datagram.len(), &token, &random);
                if is_sent {
                    self.last_reset = Some(now);
                }
                is_sent.then_some(Answer::Reset)
            }
            _ => None,
        }
    }

    /// Appends a Retry packet, by which the client has to prove its address. Returns `false` if there is none.
    pub fn retry(&self, arrival: &Arrival, unix: u64, out: &mut Vec<u8>) -> bool {
        let Some(tokens) = &self.settings.tokens else { return false };
        let mut token = Vec::new();
        let unique = self.random();
        if !tokens.push_retry(&mut token, arrival.version, arrival.route.remote, &arrival.dst, unix, unique) {
            return false;
        }
        let src = self.settings.identity.make();
        let retry = Retry {
            version: arrival.version,
            dst: &arrival.src,
            src: &src,
            original_dst: &arrival.dst,
            token: &token,
        };
        retry.push(out, (self.settings.random)() as u8)
    }

    /// Appends the refusal of a connection. Returns `false` if there is none.
    pub fn refuse(&self, arrival: &Arrival, out: &mut Vec<u8>) -> bool {
        self.close(arrival, Error::new(Code::CONNECTION_REFUSED, ""), out)
    }

    /// Appends an Initial packet that closes a connection without keeping anything of it.
    fn close(&self, arrival: &Arrival, error: Error, out: &mut Vec<u8>) -> bool {
        let Ok(keys) = protect::initial_keys(arrival.version, &arrival.dst, Side::Server) else {
            return false;
        };
        let before = out.len();
        let src = self.settings.identity.make();
        let head = Head {
            kind: LongKind::Initial,
            version: arrival.version,
            dst: &arrival.src,
            src: &src,
            token: &[],
        };
        let mut place = head.push(out, 0, 1);
        push_connection_close(out, error.code.0, Some(error.frame), error.reason.as_bytes(), 200);
        place.finish(out);
        let sealed = protect::seal(&*keys.local.header, &*keys.local.packet, out, &place);
        if sealed.is_err() {
            out.truncate(before);
        }
        sealed.is_ok()
    }

    /// Begins a connection with the datagram of a client. `begin_session` gets the version and this side's transport parameters.
    ///
    /// Returns `None` if the datagram is not authentic, or its token is wrong; then `out` may have the answer.
    pub fn accept(
        &mut self,
        now: Time,
        arrival: &Arrival,
        (ecn, datagram): (u8, BytesMut),
        config: Rc<Config>,
        begin_session: impl FnOnce(Version, TransportParameters) -> Box<dyn Session>,
        out: &mut Vec<u8>,
    ) -> Option<(Slot, Connection)> {
        if arrival.token == TokenOf::Wrong {
            // RFC 9000, section 8.1.3.
            self.close(arrival, Error::new(Code::INVALID_TOKEN, ""), out);
            return None;
        }
        let local = self.settings.identity.make();
        let (original, retried) = match arrival.token {
            TokenOf::Retry(original) => (original, Some(arrival.dst)),
            _ => (arrival.dst, None),
        };
        let begin = Begin {
            version: arrival.version,
            route: arrival.route,
            local,
            remote: arrival.src,
            initial: arrival.dst,
            original,
            retried,
            is_proved: arrival.is_proved(),
            token: Vec::new(),
        };
        let mut parameters = config.parameters(&local);
        parameters.original_destination_connection_id = Some(original);
        parameters.retry_source_connection_id = retried;
        parameters.stateless_reset_token = Some(self.settings.identity.reset_token(&local));
        let session = begin_session(arrival.version, parameters);
        let source = self.settings.identity.clone();
        let mut connection =
            Connection::new(Side::Server, now, begin, config, source, session, self.settings.random);
        connection.receive(now, arrival.route, ecn, datagram);
        // Nothing is kept for packets that anybody could have made up.
        if connection.stats().received_packets == 0 {
            return None;
        }
        let slot = self.take_slot();
        self.ids.insert(local, slot);
        self.ids.insert(arrival.dst, slot);
        self.settle(slot, &mut connection);
        Some((slot, connection))
    }

    /// Begins a connection to a server. `token`: one that the server gave before.
    ///
    /// # Errors
    /// Errors of `begin_session`.
    pub fn connect(
        &mut self,
        now: Time,
        (version, route): (Version, Route),
        config: Rc<Config>,
        token: Vec<u8>,
        begin_session: impl FnOnce(Version, TransportParameters) -> Result<Box<dyn Session>, Error>,
    ) -> Result<(Slot, Connection), Error> {
        let (local, initial) = (self.settings.identity.make(), self.made_up());
        let session = begin_session(version, config.parameters(&local))?;
        let begin = Begin {
            version,
            route,
            local,
            remote: initial,
            initial,
            original: initial,
            retried: None,
            is_proved: false,
            token,
        };
        let source = self.settings.identity.clone();
        let mut connection =
            Connection::new(Side::Client, now, begin, config, source, session, self.settings.random);
        let slot = self.take_slot();
        self.ids.insert(local, slot);
        self.settle(slot, &mut connection);
        Ok((slot, connection))
    }

    /// Returns an identifier for a server that this client does not know yet.
    fn made_up(&self) -> ConnectionId {
        ConnectionId::new(&self.random::<16>()).unwrap_or_default()
    }

    /// Returns bytes that nobody can foretell.
    fn random<const N: usize>(&self) -> [u8; N] {
        let mut bytes = [0; N];
        for part in bytes.chunks_mut(8) {
            let random = (self.settings.random)().to_ne_bytes();
            part.iter_mut().zip(random).for_each(|(to, from)| *to = from);
        }
        bytes
    }

    fn take_slot(&mut self) -> Slot {
        self.free.pop().unwrap_or_else(|| {
            self.slots += 1;
            self.slots - 1
        })
    }

    /// Takes a connection's changes of identifiers. A connection that is drained loses its slot.
    pub fn settle(&mut self, slot: Slot, connection: &mut Connection) {
        while let Some(change) = connection.take_id_change() {
            match change {
                IdChange::Add(id) => drop(self.ids.insert(id, slot)),
                IdChange::Remove(id) => {
                    if self.ids.get(&id) == Some(&slot) {
                        self.ids.remove(&id);
                    }
                }
                IdChange::AddToken(token) => drop(self.resets.insert(token, slot)),
                IdChange::RemoveToken(token) => {
                    if self.resets.get(&token) == Some(&slot) {
                        self.resets.remove(&token);
                    }
                }
            }
        }
    }

    /// Returns the number of identifiers and of reset tokens that are known.
    pub fn counts(&self) -> (usize, usize) {
        (self.ids.len(), self.resets.len())
    }

    /// Forgets a connection that is over: its slot may serve again.
    pub fn remove(&mut self, slot: Slot, connection: &mut Connection) {
        connection.forget_ids();
        self.settle(slot, connection);
        self.free.push(slot);
    }
}
