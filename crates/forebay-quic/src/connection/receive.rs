//! Datagrams that come: packets are found, opened and handed to their frames.

use super::close::State;
use super::handshake::Held;
use super::path::Route;
use super::{Connection, Event, MAX_ACK_DELAY, Reason, Space, mtu};
use crate::error::Error;
use crate::id::{ConnectionId, Side};
use crate::packet::header::KEY_PHASE;
use crate::packet::{Header, Kind, Long, LongKind, Packet, negotiation, number, protect, reset};
use crate::recovery::acks::EcnMark;
use crate::time::Time;
use bytes::{Bytes, BytesMut};
use rustls::quic::DirectionalKeys;
use std::time::Duration;

/// Packet that has been opened.
pub(super) struct Opened {
    pub kind: Kind,
    pub number: u64,
    /// Identifier that it was sent to.
    pub dst: ConnectionId,
    pub payload: Bytes,
    pub arrived: Arrived,
}

/// How a datagram came.
#[derive(Clone, Copy)]
pub(super) struct Arrived {
    pub route: Route,
    /// Bits for explicit congestion notification.
    pub ecn: u8,
    /// Bytes of the datagram.
    pub size: usize,
}

/// Result of opening a packet.
enum Opening {
    /// Its number and its frames.
    Opened(u64, Bytes),
    /// There is no key for it yet.
    Early,
    /// It is not of this connection, or came twice, or its key is gone.
    Dropped,
}

impl Kind {
    /// Returns the packet number space.
    pub(super) fn space(self) -> Space {
        match self {
            Kind::Initial => Space::Initial,
            Kind::Handshake => Space::Handshake,
            Kind::ZeroRtt | Kind::OneRtt => Space::Data,
        }
    }
}

impl Connection {
    /// Handles a datagram, which is decrypted in place. Content of streams is not copied as long as it comes in order.
    ///
    /// `ecn`: the two bits for explicit congestion notification (RFC 3168).
    pub fn receive(&mut self, now: Time, route: Route, ecn: u8, datagram: BytesMut) {
        if !self.takes_from(&route) {
            return;
        }
        if let Some(path) = self.path_of(&route) {
            path.note_received(datagram.len());
        }
        if !matches!(self.state, State::Open) {
            self.note_while_closing();
            return;
        }
        self.has_sent_all = false;
        self.packets(now, Arrived { route, ecn, size: datagram.len() }, datagram);
        if matches!(self.state, State::Open) {
            self.advance(now);
            self.replay(now);
            self.free_handshake();
        }
    }

    /// Returns `true` if datagrams from an address are looked at. Only clients move, and only after the handshake (RFC 9000, section 9).
    fn takes_from(&self, route: &Route) -> bool {
        self.path.route.remote == route.remote || self.side.is_server() && self.is_confirmed
    }

    /// Handles the packets of a datagram.
    fn packets(&mut self, now: Time, arrived: Arrived, mut datagram: BytesMut) {
        let mut first: Option<ConnectionId> = None;
        let token = reset::token_of(&datagram).copied();
        let mut was_opened = false;
        while !datagram.is_empty() && matches!(self.state, State::Open) {
            let Some(found) = Packet::parse(&datagram, self.source.id_len()) else { break };
            let packet = datagram.split_to(found.len.min(datagram.len()));
            // RFC 9000, section 12.2: all packets of a datagram are for one connection.
            let dst = match &found.header {
                Header::Short { dst } => *dst,
                Header::Long(long) => long.dst,
                Header::Negotiation { .. } => {
                    self.negotiation(&packet, &found);
                    break;
                }
                Header::Unknown { .. } => break,
            };
            if *first.get_or_insert(dst) != dst {
                continue;
            }
            match &found.header {
                Header::Long(long) if long.kind == LongKind::Retry => {
                    self.retry(now, &packet, &found);
                    break;
                }
                Header::Long(long) if !self.takes(long, arrived.size) => {}
                _ => was_opened |= self.packet(now, arrived, packet, &found),
            }
        }
        // Whatever it looks like (RFC 9000, section 10.3).
        let is_open = matches!(self.state, State::Open);
        if !was_opened && is_open && token.is_some_and(|token| self.outbound.remote.is_reset(&token)) {
            self.drain(now, Some(Reason::Reset));
        }
    }

    /// Returns `true` if a packet with a long header may be opened, `size`: bytes of its datagram.
    fn takes(&self, long: &Long, size: usize) -> bool {
        let Some(handshake) = &self.handshake else { return false };
        let begin = &handshake.begin;
        // RFC 9000, section 7.2: a peer stays with its first identifier.
        if (self.side.is_server() || handshake.has_peer_id) && long.src != begin.remote {
            return false;
        }
        match (long.kind, self.side) {
            // RFC 9000, section 14.1.
            (LongKind::Initial, Side::Server) => {
                size >= mtu::BASE.into() && (long.version == begin.version || long.version == self.version)
            }
            // RFC 9000, section 17.2.2.
            (LongKind::Initial, Side::Client) => long.token.is_empty(),
            // RFC 9369, section 4.1.
            (LongKind::Handshake, _) => long.version == self.version,
            _ => long.version == begin.version,
        }
    }

    /// Handles a packet. Returns `false` if it could not be opened.
    fn packet(&mut self, now: Time, arrived: Arrived, mut packet: BytesMut, found: &Packet) -> bool {
        let Some((kind, dst)) = kind_of(found) else { return false };
        match self.open(now, kind, &mut packet, found) {
            Ok(Opening::Opened(number, payload)) => {
                let opened = Opened { kind, number, dst, payload, arrived };
                if let Err(error) = self.opened(now, opened, found) {
                    self.fail(now, error);
                }
                true
            }
            Ok(Opening::Early) => {
                if let Some(handshake) = &mut self.handshake {
                    handshake.hold(Held { arrived, packet });
                }
                false
            }
            Ok(Opening::Dropped) => false,
            Err(error) => {
                self.fail(now, error);
                true
            }
        }
    }

    /// Handles packets again that came before their keys.
    fn replay(&mut self, now: Time) {
        let Some(handshake) = &mut self.handshake else { return };
        if handshake.held.is_empty() {
            return;
        }
        for held in std::mem::take(&mut handshake.held) {
            if matches!(self.state, State::Open)
                && let Some(found) = Packet::parse(&held.packet, self.source.id_len())
            {
                self.packet(now, held.arrived, held.packet, &found);
            }
        }
        self.advance(now);
    }

    /// Removes the protection of a packet.
    ///
    /// # Errors
    /// AEAD_LIMIT_REACHED, KEY_UPDATE_ERROR, PROTOCOL_VIOLATION.
    fn open(
        &mut self,
        now: Time,
        kind: Kind,
        packet: &mut BytesMut,
        found: &Packet,
    ) -> Result<Opening, Error> {
        // A server may clear the fixed bit from its first packet on, a client once it knows that the server takes it, from another
        // connection if it has a token (RFC 9287, section 3.1).
        let is_known = self.peer.is_some() || self.handshake.as_ref().is_some_and(|h| h.begin.is_proved);
        if !found.fixed && self.side.is_server() && !is_known {
            return Ok(Opening::Dropped);
        }
        match kind {
            Kind::Initial => self.open_initial(packet, found),
            Kind::Handshake => {
                let keys = self.handshake.as_ref().and_then(|h| h.keys.as_ref());
                let Some(keys) = keys else {
                    return Ok(if self.is_confirmed { Opening::Dropped } else { Opening::Early });
                };
                let expected = self.outbound.early[1].as_ref().map_or(0, |s| s.expected());
                opening(&keys.remote, packet, found, expected)
            }
            Kind::ZeroRtt => {
                let early = self.handshake.as_ref().and_then(|h| h.early.as_ref());
                let Some((keys, _)) = early.filter(|_| self.side.is_server()) else {
                    let may_come = self.side.is_server() && self.peer.is_none();
                    return Ok(if may_come { Opening::Early } else { Opening::Dropped });
                };
                opening(keys, packet, found, self.outbound.data.expected())
            }
            Kind::OneRtt => self.open_data(now, packet, found),
        }
    }

    /// Removes the protection of an Initial packet. A server takes both versions, since it may have chosen another than the client began with.
    fn open_initial(&mut self, packet: &mut BytesMut, found: &Packet) -> Result<Opening, Error> {
        let (Header::Long(long), Some(handshake)) = (&found.header, &mut self.handshake) else {
            return Ok(Opening::Dropped);
        };
        let is_known = long.version == self.version || self.side.is_server();
        let Some(state) = self.outbound.early[0].as_ref().filter(|_| is_known) else {
            return Ok(Opening::Dropped);
        };
        match handshake.initial(long.version, self.side) {
            Some(keys) => opening(&keys.remote, packet, found, state.expected()),
            None => Ok(Opening::Dropped),
        }
    }

    /// Removes the protection of a 1-RTT packet.
    fn open_data(&mut self, now: Time, packet: &mut BytesMut, found: &Packet) -> Result<Opening, Error> {
        // The peer's are not opened before its handshake is complete (RFC 9001, section 5.7).
        let is_early = self.session.as_ref().is_some_and(|session| session.is_handshaking());
        let until = now + self.pto() * 3;
        let Some(keys) = self.keys.as_mut().filter(|_| !is_early) else { return Ok(Opening::Early) };
        let expected = self.outbound.data.expected();
        let Some(header) = protect::unprotect(&*keys.remote.header, packet, found.number_at) else {
            return Ok(Opening::Dropped);
        };
        let number = number::expand(header.number, header.number_len, expected);
        let phase = keys.phase_of(header.first & KEY_PHASE != 0, number);
        let Some(key) = keys.opener(phase) else { return Ok(Opening::Dropped) };
        let Some(payload) = protect::open(key, packet, found.number_at, header.number_len, number) else {
            keys.failed()?;
            return Ok(Opening::Dropped);
        };
        protect::check_reserved(header.first)?;
        keys.opened(phase, number, until)?;
        Ok(Opening::Opened(number, std::mem::take(packet).freeze().slice(payload)))
    }

    /// Handles a packet that has been opened.
    fn opened(&mut self, now: Time, opened: Opened, found: &Packet) -> Result<(), Error> {
        let space = opened.kind.space();
        let Some(state) = self.outbound.space(space) else { return Ok(()) };
        if state.acks.is_duplicate(opened.number) {
            return Ok(());
        }
        self.stats.received_packets += 1;
        self.note_header(now, &opened, found);
        let seen = self.frames(now, &opened)?;
        (self.active, self.has_asked) = (now, false);
        if let Some(state) = self.outbound.space(space) {
            let delay = if opened.kind == Kind::OneRtt { MAX_ACK_DELAY } else { Duration::ZERO };
            let mark = EcnMark::from_bits(opened.arrived.ecn);
            state.acks.on_received(opened.number, now, seen.asks, mark, delay);
        }
        if opened.kind == Kind::OneRtt {
            self.moved(now, &opened, seen.is_probing);
            self.largest = self.largest.max(Some(opened.number));
        }
        Ok(())
    }

    /// Learns from the header of a packet of the handshake.
    fn note_header(&mut self, now: Time, opened: &Opened, found: &Packet) {
        let Header::Long(long) = &found.header else { return };
        let Some(handshake) = &mut self.handshake else { return };
        handshake.has_answer = true;
        if self.side.is_client() && !std::mem::replace(&mut handshake.has_peer_id, true) {
            // RFC 9000, section 7.2: the first packet of the server names its identifier.
            self.outbound.remote.replace_first(long.src);
            handshake.begin.remote = long.src;
        }
        if self.side.is_server() && opened.kind == Kind::Handshake {
            // The client has the keys, and so the server's first packet (RFC 9000, section 8.1).
            self.path.is_proved = true;
            self.discard(Space::Initial, now);
        }
    }

    /// Handles a Version Negotiation packet (RFC 9000, section 6.2).
    fn negotiation(&mut self, packet: &[u8], found: &Packet) {
        let Header::Negotiation { dst, src, versions } = &found.header else { return };
        let Some(handshake) = self.handshake.as_ref().filter(|_| self.side.is_client()) else { return };
        let is_ours = packet.get(dst.clone()) == Some(&*self.outbound.local.first())
            && packet.get(src.clone()) == Some(&*handshake.begin.initial);
        let has_answer = handshake.has_answer || handshake.begin.retried.is_some();
        // RFC 8999, section 6: a list that is empty or cut off is ignored.
        let list = packet.get(versions.clone()).and_then(negotiation::versions);
        let names_other = list.is_some_and(|mut list| list.all(|version| version != self.version.number()));
        if is_ours && !has_answer && names_other {
            self.state = State::Drained;
            self.events.push_back(Event::Lost(Reason::NoVersion));
            self.forget_ids();
        }
    }

    /// Handles a Retry packet (RFC 9000, section 17.2.5.2).
    fn retry(&mut self, now: Time, packet: &[u8], found: &Packet) {
        let Header::Long(long) = &found.header else { return };
        let Some(handshake) = self.handshake.as_mut().filter(|_| self.side == Side::Client) else { return };
        let token = packet.get(long.token.clone()).unwrap_or_default();
        let is_second = handshake.has_answer || handshake.begin.retried.is_some();
        let is_valid = found.fixed
            && long.version == self.version
            && long.dst == self.outbound.local.first()
            && long.src != handshake.begin.initial
            && !token.is_empty()
            && crate::packet::retry::verify(long.version, packet, &handshake.begin.initial);
        if is_second || !is_valid {
            return;
        }
        handshake.begin.token = token.to_vec();
        handshake.begin.retried = Some(long.src);
        handshake.begin.initial = long.src;
        handshake.forget_initial();
        self.outbound.remote.replace_first(long.src);
        if let Some(state) = self.outbound.space(Space::Initial) {
            state.crypto.out.send_again();
        }
        let (outbound, config) = (&mut self.outbound, super::recovery_config(&self.config, self.random));
        self.recovery.on_retry(&config, now, None, |_, span| outbound.lost(span));
    }

    /// Handles frames whose effect depends on the keys: an acknowledgment of a packet of this phase allows the next change of keys.
    pub(super) fn note_acked(&mut self, number: u64) {
        if let Some(keys) = &mut self.keys {
            keys.acked(number);
        }
    }
}

/// Returns the encryption level of a packet with a number, and the identifier that it is for.
fn kind_of(found: &Packet) -> Option<(Kind, ConnectionId)> {
    match &found.header {
        Header::Short { dst } => Some((Kind::OneRtt, *dst)),
        Header::Long(long) => Some((long.kind.level()?, long.dst)),
        _ => None,
    }
}

/// Opens a packet with keys that do not change.
fn opening(
    keys: &DirectionalKeys,
    packet: &mut BytesMut,
    found: &Packet,
    expected: u64,
) -> Result<Opening, Error> {
    let Some(header) = protect::unprotect(&*keys.header, packet, found.number_at) else {
        return Ok(Opening::Dropped);
    };
    let number = number::expand(header.number, header.number_len, expected);
    let Some(payload) = protect::open(&*keys.packet, packet, found.number_at, header.number_len, number)
    else {
        return Ok(Opening::Dropped);
    };
    protect::check_reserved(header.first)?;
    Ok(Opening::Opened(number, std::mem::take(packet).freeze().slice(payload)))
}
