//! The handshake: TLS, its keys, and transport parameters (RFC 9001, section 4; RFC 9000, section 7).

use super::keys::DataKeys;
use super::outbound::SpaceState;
use super::receive::Arrived;
use super::{Begin, Connection, Event, Peer, Space};
use crate::error::{Code, Error};
use crate::id::Side;
use crate::packet::protect::initial_keys;
use crate::parameters::{Attempt, Ids, TransportParameters};
use crate::stream::PeerLimits;
use crate::time::Time;
use crate::tls::Session;
use crate::version::Version;
use bytes::{Bytes, BytesMut};
use rustls::quic::{DirectionalKeys, KeyChange, Keys};
use std::time::Duration;

/// Packets that are kept until there are keys for them, and their bytes.
const MOST_HELD: usize = 8;
const MOST_HELD_BYTES: usize = 12_000;

/// Packet that came before its keys.
pub(super) struct Held {
    pub arrived: Arrived,
    pub packet: BytesMut,
}

/// What only the handshake needs.
pub(super) struct Handshake {
    pub begin: Begin,
    /// Keys of Initial packets of versions 1 and 2, made when they are needed.
    initial: [Option<Keys>; 2],
    /// Keys of Handshake packets.
    pub keys: Option<Keys>,
    /// Keys of 0-RTT packets, and the time after which a server needs them no longer.
    pub early: Option<(DirectionalKeys, Option<Time>)>,
    /// Limits of the session that a client's early data relies on.
    remembered: Option<Box<TransportParameters>>,
    /// Packets that came before their keys.
    pub held: Vec<Held>,
    /// Level of the bytes that are read next, and of those that are sent next.
    read: Space,
    write: Space,
    /// The client knows the identifier of the server.
    pub has_peer_id: bool,
    /// The server's first packet has been read: it sends no Retry and no Version Negotiation any more.
    pub has_answer: bool,
}

impl Handshake {
    pub fn new(begin: Begin) -> Handshake {
        Handshake {
            begin,
            initial: [None, None],
            keys: None,
            early: None,
            remembered: None,
            held: Vec::new(),
            read: Space::Initial,
            write: Space::Initial,
            has_peer_id: false,
            has_answer: false,
        }
    }

    /// Returns the keys of Initial packets.
    pub fn initial(&mut self, version: Version, side: Side) -> Option<&Keys> {
        let id = self.begin.initial;
        let keys = match version {
            Version::V1 => &mut self.initial[0],
            Version::V2 => &mut self.initial[1],
        };
        if keys.is_none() {
            *keys = initial_keys(version, &id, side).ok();
        }
        keys.as_ref()
    }

    /// Has Initial packets protected by another identifier (after a Retry).
    pub fn forget_initial(&mut self) {
        self.initial = [None, None];
    }

    /// Keeps a packet until its keys are there.
    pub fn hold(&mut self, held: Held) {
        let bytes: usize = self.held.iter().map(|held| held.packet.len()).sum();
        if self.held.len() < MOST_HELD && bytes + held.packet.len() <= MOST_HELD_BYTES {
            // Copied, so that a small packet does not keep a large datagram.
            let packet = BytesMut::from(&*held.packet);
            self.held.push(Held { packet, ..held });
        }
    }
}

impl Connection {
    /// Reads what has come of the handshake, and writes what follows. Ends the connection if something is wrong.
    pub(super) fn advance(&mut self, now: Time) {
        let Some(mut session) = self.session.take() else {
            // A client has nothing to say after the handshake, not even KeyUpdate (RFC 9001, section 6).
            if self.outbound.data.crypto.read().is_some() {
                self.fail(now, Error::new(Code::crypto(10), "sent a message after the handshake"));
            }
            return;
        };
        let done = self.drive(&mut *session, now);
        let is_over = self.side.is_server() && self.is_confirmed && !session.is_handshaking();
        if is_over {
            self.facts = session.facts();
        } else {
            self.session = Some(session);
        }
        if let Err(error) = done {
            self.fail(now, error);
        }
    }

    fn drive(&mut self, session: &mut dyn Session, now: Time) -> Result<(), Error> {
        self.write_handshake(session)?;
        self.remember_early(session)?;
        while let Some(bytes) = self.read_level().and_then(|space| self.outbound.space(space)?.crypto.read())
        {
            session.read(&bytes)?;
            self.learn(session, now)?;
            self.write_handshake(session)?;
            self.next_level(session)?;
            self.has_sent_all = false;
            if !session.is_handshaking() && !self.is_complete() {
                self.connected(session, now)?;
            }
        }
        Ok(())
    }

    fn is_complete(&self) -> bool {
        self.handshake.as_ref().is_none_or(|h| h.read == Space::Data)
    }

    fn read_level(&self) -> Option<Space> {
        Some(self.handshake.as_ref().map_or(Space::Data, |h| h.read))
    }

    /// Takes the keys and limits of a remembered session, for a client's early data.
    fn remember_early(&mut self, session: &dyn Session) -> Result<(), Error> {
        let Some(handshake) = &mut self.handshake else { return Ok(()) };
        if self.side.is_server() || handshake.early.is_some() || handshake.keys.is_some() {
            return Ok(());
        }
        let Some(keys) = session.early_keys() else { return Ok(()) };
        if let Some(raw) = session.parameters() {
            let parameters = TransportParameters::read(raw, Side::Server)?;
            self.outbound.streams.set_peer(peer_limits(&parameters));
            handshake.early = Some((keys, None));
            handshake.remembered = Some(Box::new(parameters));
        }
        Ok(())
    }

    /// Takes what the peer's first message says.
    fn learn(&mut self, session: &dyn Session, now: Time) -> Result<(), Error> {
        self.version = session.version();
        let Some(handshake) = &mut self.handshake else { return Ok(()) };
        if self.side.is_server() && handshake.early.is_none() {
            handshake.early = session.early_keys().map(|keys| (keys, None));
        }
        // A client may still see those of the session that it resumes.
        if self.peer.is_some() || self.side.is_client() && session.is_handshaking() {
            return Ok(());
        }
        let Some(raw) = session.parameters() else { return Ok(()) };
        let parameters = TransportParameters::read(raw, self.side.other())?;
        let remote = *self.outbound.remote.active();
        let begin = &handshake.begin;
        let is_client = self.side.is_client();
        parameters.check_ids(Ids {
            initial_source: &remote,
            original_destination: Some(&begin.original).filter(|_| is_client),
            retry_source: begin.retried.as_ref().filter(|_| is_client),
        })?;
        match self.side {
            // TLS has chosen the version by them. RFC 9368, section 4.
            Side::Server => {
                let chosen = parameters.version_information.map(|information| information.chosen);
                if chosen.is_some_and(|chosen| chosen != begin.version.number()) {
                    return Err(Error::new(
                        Code::VERSION_NEGOTIATION_ERROR,
                        "chosen version is not the one in use",
                    ));
                }
            }
            Side::Client => {
                let attempt = Attempt {
                    begun: begin.version,
                    negotiated: self.version,
                    available: &[begin.version],
                    is_reaction: false,
                };
                attempt.validate_server(parameters.version_information.as_ref())?;
                let was_accepted = session.is_early_data_accepted();
                let remembered = handshake.remembered.take();
                if let Some(before) = remembered.filter(|_| was_accepted) {
                    parameters.check_remembered(&before)?;
                }
                if handshake.early.take().is_some() && !was_accepted {
                    self.outbound.streams.reject_early();
                    let outbound = &mut self.outbound;
                    self.recovery.reject_early(now, |span| outbound.forget(span));
                }
            }
        }
        self.apply(&parameters)
    }

    /// Applies the peer's transport parameters.
    fn apply(&mut self, parameters: &TransportParameters) -> Result<(), Error> {
        self.outbound.streams.set_peer(peer_limits(parameters));
        self.path.mtu.set_peer_limit(parameters.max_udp_payload_size);
        self.peer = Some(Peer {
            idle: Duration::from_millis(parameters.max_idle_timeout),
            ack_delay_exponent: parameters.ack_delay_exponent,
            payload: parameters.max_udp_payload_size,
            datagrams: parameters.max_datagram_frame_size,
            greases: parameters.grease_quic_bit,
        });
        self.recovery.set_max_ack_delay(Duration::from_millis(parameters.max_ack_delay.into()));
        if let Some(token) = parameters.stateless_reset_token {
            self.outbound.remote.set_first_token(token, &mut self.id_changes);
        }
        self.peer_ids = parameters.active_connection_id_limit;
        // It has the sequence number 1 (RFC 9000, section 5.1.1).
        parameters.preferred_address.as_ref().map_or(Ok(()), |address| {
            self.outbound.remote.add((1, 0), address.id, address.token, &mut self.id_changes)
        })
    }

    /// Handles a CRYPTO frame.
    ///
    /// # Errors
    /// PROTOCOL_VIOLATION for new bytes of a level that is over (RFC 9001, section 4.1.3), CRYPTO_BUFFER_EXCEEDED, INTERNAL_ERROR.
    pub(super) fn crypto_frame(&mut self, space: Space, offset: u64, data: Bytes) -> Result<(), Error> {
        let reads = self.handshake.as_ref().map_or(Space::Data, |handshake| handshake.read);
        let is_over = space != Space::Data && reads != Space::Initial && reads != space;
        let Some(state) = self.outbound.space(space) else { return Ok(()) };
        if is_over && offset.saturating_add(data.len() as u64) > state.crypto.read_to() {
            return Err(Error::new(Code::PROTOCOL_VIOLATION, "sent more of the handshake at an old level"));
        }
        state.crypto.receive(offset, data)
    }

    /// Has what TLS writes sent, and takes its keys.
    fn write_handshake(&mut self, session: &mut dyn Session) -> Result<(), Error> {
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            let change = session.write(&mut bytes);
            if bytes.is_empty() && change.is_none() {
                return Ok(());
            }
            let level = self.handshake.as_ref().map_or(Space::Data, |h| h.write);
            if !bytes.is_empty() {
                let state =
                    self.outbound.space(level).ok_or(Connection::internal("no such packet number space"))?;
                state.crypto.out.push(&bytes);
            }
            self.version = session.version();
            if let Some(change) = change {
                self.take_keys(change);
            }
        }
    }

    fn take_keys(&mut self, change: KeyChange) {
        let Some(handshake) = &mut self.handshake else { return };
        match change {
            KeyChange::Handshake { keys } => {
                handshake.keys = Some(keys);
                handshake.write = Space::Handshake;
                self.recovery.set_handshake_keys();
                self.outbound.early[1] = Some(Box::new(SpaceState::default()));
            }
            KeyChange::OneRtt { keys, next } => {
                self.keys = Some(Box::new(DataKeys::new(keys, next)));
                handshake.write = Space::Data;
            }
        }
    }

    /// Goes on to the level of the next bytes to be read.
    ///
    /// # Errors
    /// PROTOCOL_VIOLATION if bytes of the level before are left (RFC 9001, section 4.1.3).
    fn next_level(&mut self, session: &dyn Session) -> Result<(), Error> {
        let Some(handshake) = &mut self.handshake else { return Ok(()) };
        let is_done = match handshake.read {
            Space::Initial => handshake.keys.is_some(),
            Space::Handshake => !session.is_handshaking(),
            Space::Data => false,
        };
        if !is_done {
            return Ok(());
        }
        let old = handshake.read;
        let has_left = self.outbound.space(old).is_some_and(|space| space.crypto.has_unread());
        if has_left {
            return Err(Error::new(
                Code::PROTOCOL_VIOLATION,
                "sent bytes of the handshake that nobody reads",
            ));
        }
        if let Some(handshake) = &mut self.handshake
            && old == Space::Initial
        {
            handshake.read = Space::Handshake;
        }
        Ok(())
    }

    /// Goes on after the handshake.
    fn connected(&mut self, session: &mut dyn Session, now: Time) -> Result<(), Error> {
        if self.peer.is_none() {
            return Err(Error::new(Code::crypto(109), "sent no transport parameters"));
        }
        if let Some(handshake) = &mut self.handshake {
            handshake.read = Space::Data;
        }
        self.events.push_back(Event::Connected);
        self.outbound.local.fill(self.peer_ids, &*self.source, &mut self.id_changes);
        if self.side.is_server() {
            // An address from which the handshake was completed has received the keys.
            self.path.is_proved = true;
            self.outbound.handshake_done = true;
            if self.config.gives_token {
                self.outbound.token = self.source.token(self.version, self.path.route.remote.ip());
            }
            self.write_handshake(session)?;
            self.confirmed(now);
        }
        Ok(())
    }

    /// Notes that the handshake is confirmed: its keys are of no more use (RFC 9001, section 4.9.2).
    pub(super) fn confirmed(&mut self, now: Time) {
        self.is_confirmed = true;
        self.discard(Space::Initial, now);
        self.discard(Space::Handshake, now);
        self.recovery.set_handshake_confirmed();
        let until = now + self.pto() * 3;
        // 0-RTT packets may come late.
        if self.side.is_server()
            && let Some((_, end)) = self.handshake.as_mut().and_then(|h| h.early.as_mut())
        {
            *end = Some(until);
        }
    }

    /// Gives up the keys of a packet number space.
    pub(super) fn discard(&mut self, space: Space, now: Time) {
        let outbound = &mut self.outbound;
        outbound.discard(space);
        self.recovery.discard(space, now, |span| outbound.forget(span));
        if let Some(handshake) = &mut self.handshake {
            match space {
                Space::Initial => handshake.forget_initial(),
                Space::Handshake => handshake.keys = None,
                Space::Data => {}
            }
        }
    }

    /// Frees what only the handshake needed, once that is confirmed.
    pub(super) fn free_handshake(&mut self) {
        if self.is_confirmed
            && self.handshake.as_ref().is_some_and(|h| h.early.is_none() && h.held.is_empty())
        {
            self.forget_initial_id();
            self.handshake = None;
        }
    }
}

fn peer_limits(parameters: &TransportParameters) -> PeerLimits {
    PeerLimits {
        max_data: parameters.initial_max_data,
        max_stream_data_bidi_local: parameters.initial_max_stream_data_bidi_local,
        max_stream_data_bidi_remote: parameters.initial_max_stream_data_bidi_remote,
        max_stream_data_uni: parameters.initial_max_stream_data_uni,
        max_streams_bi: parameters.initial_max_streams_bidi,
        max_streams_uni: parameters.initial_max_streams_uni,
    }
}
