//! Datagrams that leave: frames become packets, packets are sealed.

use super::close::State;
use super::items::Span;
use super::packets::fill_path;
use super::path::Route;
use super::{Connection, Space, mtu};
use crate::error::{Code, Error};
use crate::frame;
use crate::packet::build::TAG;
use crate::packet::{Kind, Place, protect};
use crate::recovery::SentPacket;
use crate::time::Time;
use std::net::{IpAddr, SocketAddr};

/// Bytes below which no datagram is begun: header, a small frame, tag.
pub(super) const LEAST: usize = 64;
/// ECT(0), which packets of paths that carry it have (RFC 9000, section 13.4.1).
const ECT0: u8 = 0b10;

/// Datagrams of a connection that leave together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Address of the peer.
    pub remote: SocketAddr,
    /// Local address, where it is known.
    pub local: Option<IpAddr>,
    /// Size of each datagram, bytes. The last may be shorter.
    pub segment: usize,
    /// Number of datagrams.
    pub datagrams: usize,
    /// The two bits for explicit congestion notification.
    pub ecn: u8,
}

/// What the congestion control allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Permission {
    All,
    /// Packets that do not ask for an acknowledgment, and probes.
    Acks,
}

/// Packet that is put together.
pub(super) struct Built {
    pub level: Kind,
    pub place: Place,
    /// It asks for an acknowledgment.
    pub asks: bool,
    /// It has a question or an answer of a path, and shows that the path carries large datagrams.
    pub proves: bool,
    /// It tries a larger size of datagrams.
    pub is_mtu_probe: bool,
    pub span: Span,
}

impl Connection {
    /// Puts datagrams together that leave now, at most `most` of one size, at the end of `out`. Returns `None` if there are none.
    pub fn transmit(&mut self, now: Time, most: usize, out: &mut Vec<u8>) -> Option<Transmit> {
        // All datagrams that leave together have one mark.
        self.marks = self.recovery.marks_packets();
        let sent = match self.state {
            State::Open => self
                .transmit_aside(now, out)
                .or_else(|| self.transmit_mtu_probe(now, out))
                .or_else(|| self.transmit_active(now, most, out)),
            State::Closing(_) => self.transmit_close(now, out),
            State::Draining(_) | State::Drained => None,
        };
        self.has_sent_all |= sent.is_none();
        sent
    }

    fn transmit_active(&mut self, now: Time, most: usize, out: &mut Vec<u8>) -> Option<Transmit> {
        // What the path carried before counts for nothing until it is proved.
        let size = if self.path.is_proved { self.path.mtu.current() } else { mtu::BASE };
        let full = usize::from(size);
        let (mut segment, mut count) = (0, 0);
        // What was left to send, when it was looked at last.
        let mut is_done = false;
        while count < most {
            let room = if segment == 0 { full } else { segment };
            let size = self.datagram(now, out, room);
            if size == 0 {
                is_done = true;
                break;
            }
            count += 1;
            if segment == 0 {
                segment = size;
            }
            if size < full || size < segment {
                is_done = self.is_confirmed && self.other.is_none() && !self.wants(Space::Data, Kind::OneRtt);
                break;
            }
        }
        self.has_sent_all = is_done;
        (count > 0).then(|| self.departure(self.path.route, segment, count))
    }

    pub(super) fn departure(&self, route: Route, segment: usize, datagrams: usize) -> Transmit {
        let ecn = if self.marks { ECT0 } else { 0 };
        Transmit { remote: route.remote, local: route.local, segment, datagrams, ecn }
    }

    /// Puts a datagram of at most `room` bytes together. Returns its size, 0 if there is nothing to send.
    fn datagram(&mut self, now: Time, out: &mut Vec<u8>, room: usize) -> usize {
        let mut room = room.min(usize::try_from(self.path.allowance()).unwrap_or(usize::MAX));
        if self.path.is_scarce() {
            if !self.path.has_probe() && !self.outbound.data.acks.is_due(now) {
                return 0;
            }
            room = room.min(LEAST);
        }
        if room < LEAST {
            return 0;
        }
        let start = out.len();
        let permission = self.permission(now, room);
        let mut built: [Option<Built>; 3] = [None, None, None];
        let spaces = [Space::Initial, Space::Handshake, Space::Data];
        for (slot, space) in built.iter_mut().zip(spaces) {
            if space != Space::Data && self.handshake.is_none() {
                continue;
            }
            if out.len() + LEAST <= start + room {
                *slot = self.build(space, now, out, start + room, permission);
            }
        }
        if built.iter().all(Option::is_none) {
            if permission == Permission::All {
                self.recovery.on_app_limited();
            }
            return 0;
        }
        self.pad(&mut built, out, start, room);
        let size = out.len() - start;
        for packet in built.iter().flatten() {
            if let Err(error) = self.seal(now, packet, out) {
                out.truncate(start);
                self.fail(now, error);
                return 0;
            }
        }
        self.path.note_sent(size);
        let has_handshake = built.iter().flatten().any(|b| b.level == Kind::Handshake);
        if has_handshake && self.side.is_client() && self.outbound.early[0].is_some() {
            // RFC 9001, section 4.9.1.
            self.discard(Space::Initial, now);
        }
        size
    }

    fn permission(&mut self, now: Time, room: usize) -> Permission {
        if self.recovery.room() < room as u64 {
            return Permission::Acks;
        }
        self.paced_until = self.recovery.blocked_until(now);
        match self.paced_until {
            Some(_) => Permission::Acks,
            None => Permission::All,
        }
    }

    /// Makes a datagram with an Initial packet, or one that proves a path, as large as RFC 9000, sections 14.1 and 8.2.1, wants it.
    pub(super) fn pad(&self, built: &mut [Option<Built>; 3], out: &mut Vec<u8>, start: usize, room: usize) {
        let needs = built[0].as_ref().is_some_and(|initial| initial.asks || self.side.is_client())
            || built[2].as_ref().is_some_and(|packet| packet.proves);
        let least = usize::from(mtu::BASE).min(room);
        let missing = least.saturating_sub(out.len() - start);
        if needs
            && missing > 0
            && let Some(last) = built.iter_mut().rev().flatten().next()
        {
            out.truncate(last.place.end - TAG);
            frame::push_padding(out, missing);
            last.place.finish(out);
        }
    }

    /// Protects a packet, and notes that it leaves.
    pub(super) fn seal(&mut self, now: Time, packet: &Built, out: &mut [u8]) -> Result<(), Error> {
        let Built { level, place, .. } = packet;
        let mut is_worn = false;
        match level {
            Kind::OneRtt => {
                let keys = self.keys.as_mut().ok_or(Connection::internal("no keys"))?;
                if keys.is_used_up() {
                    return Err(Error::new(Code::AEAD_LIMIT_REACHED, "keys have protected too many packets"));
                }
                protect::seal(&*keys.local.header, &*keys.local.packet, out, place)?;
                is_worn = keys.sealed(place.number);
            }
            Kind::ZeroRtt => {
                let early = self.handshake.as_ref().and_then(|h| h.early.as_ref());
                let (keys, _) = early.ok_or(Connection::internal("no keys"))?;
                protect::seal(&*keys.header, &*keys.packet, out, place)?;
            }
            _ => {
                let (version, side) = (self.version, self.side);
                let handshake = self.handshake.as_mut().ok_or(Connection::internal("no keys"))?;
                let keys = match level {
                    Kind::Initial => handshake.initial(version, side),
                    _ => handshake.keys.as_ref(),
                };
                let keys = &keys.ok_or(Connection::internal("no keys"))?.local;
                protect::seal(&*keys.header, &*keys.packet, out, place)?;
            }
        }
        self.note_sent(now, packet);
        if is_worn
            && self.is_confirmed
            && let Some(keys) = &mut self.keys
        {
            keys.update();
        }
        Ok(())
    }

    /// Notes a packet that leaves.
    fn note_sent(&mut self, now: Time, packet: &Built) {
        let Built { level, place, asks, is_mtu_probe, span, .. } = *packet;
        self.stats.sent_packets += 1;
        let record = SentPacket {
            number: place.number,
            size: place.size() as u16,
            ack_eliciting: asks,
            in_flight: asks,
            mtu_probe: is_mtu_probe,
            ect: self.marks,
            content: span,
        };
        self.recovery.on_sent(level.space(), now, record);
        if !asks {
            // Nobody learns what becomes of it.
            self.outbound.forget(span);
        }
        if asks && !std::mem::replace(&mut self.has_asked, true) {
            self.active = now;
        }
    }

    /// Sends questions and answers of the other path.
    fn transmit_aside(&mut self, now: Time, out: &mut Vec<u8>) -> Option<Transmit> {
        let other = self.other.as_mut()?;
        if !other.has_probe() {
            return None;
        }
        // As large as the path has to carry, as far as its address may get that (RFC 9000, section 8.2.1).
        let room = usize::from(mtu::BASE).min(usize::try_from(other.allowance()).unwrap_or(usize::MAX));
        if room < LEAST || self.keys.is_none() {
            return None;
        }
        let (route, has_own_id) = (other.route, other.has_own_id);
        let start = out.len();
        let pto = self.recovery.pto(Space::Data);
        let remote = &self.outbound.remote;
        let dst = if has_own_id { *remote.aside()? } else { *remote.active() };
        let mut place = self.push_header_to(dst, Kind::OneRtt, Space::Data, out)?;
        if let Some(other) = &mut self.other {
            fill_path(other, now, pto, out, start + room - TAG);
            frame::push_padding(out, (start + room - TAG).saturating_sub(out.len()));
            other.note_sent(room);
        }
        place.finish(out);
        let packet = Built {
            level: Kind::OneRtt,
            place,
            asks: true,
            proves: true,
            is_mtu_probe: false,
            span: self.outbound.items.close(Space::Data),
        };
        if let Err(error) = self.seal(now, &packet, out) {
            out.truncate(start);
            self.fail(now, error);
            return None;
        }
        Some(self.departure(route, room, 1))
    }

    /// Sends a packet as large as the path is asked to carry.
    fn transmit_mtu_probe(&mut self, now: Time, out: &mut Vec<u8>) -> Option<Transmit> {
        if !self.is_confirmed
            || !self.path.is_proved
            || !self.config.searches_mtu
            || self.outbound.data.probes > 0
        {
            return None;
        }
        // An idle connection is not woken for it.
        let size = self.path.mtu.due(now).filter(|_| self.outbound.has_data())?;
        if self.permission(now, usize::from(size)) == Permission::Acks {
            return None;
        }
        let start = out.len();
        let mut place = self.push_header(Kind::OneRtt, Space::Data, out)?;
        frame::push_ping(out);
        frame::push_padding(out, (start + usize::from(size) - TAG).saturating_sub(out.len()));
        place.finish(out);
        let span = self.outbound.items.close(Space::Data);
        let packet =
            Built { level: Kind::OneRtt, place, asks: true, proves: false, is_mtu_probe: true, span };
        if let Err(error) = self.seal(now, &packet, out) {
            out.truncate(start);
            self.fail(now, error);
            return None;
        }
        self.path.mtu.sent(size, place.number);
        Some(self.departure(self.path.route, usize::from(size), 1))
    }
}
