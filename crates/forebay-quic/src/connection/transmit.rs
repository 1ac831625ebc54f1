//! Datagrams that leave: frames become packets, packets are sealed.

use super::close::{State, Why};
use super::items::Span;
use super::path::{Path, Route};
use super::{ACK_DELAY_EXPONENT, Connection, Space, mtu};
use crate::error::{Code, Error};
use crate::frame;
use crate::id::ConnectionId;
use crate::item::Item;
use crate::packet::build::TAG;
use crate::packet::{Head, Kind, LongKind, Place, build, header, number, protect};
use crate::recovery::SentPacket;
use crate::time::Time;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

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
enum Permission {
    All,
    /// Packets that do not ask for an acknowledgment, and probes.
    Acks,
}

/// Packet that is put together.
struct Built {
    level: Kind,
    place: Place,
    /// It asks for an acknowledgment.
    asks: bool,
    /// It has a question or an answer of a path, and shows that the path carries large datagrams.
    proves: bool,
    span: Span,
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

    fn departure(&self, route: Route, segment: usize, datagrams: usize) -> Transmit {
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
    fn pad(&self, built: &mut [Option<Built>; 3], out: &mut Vec<u8>, start: usize, room: usize) {
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

    /// Returns the level of packets of a space, if there are keys for it.
    fn level(&self, space: Space) -> Option<Kind> {
        let handshake = self.handshake.as_ref();
        match space {
            Space::Initial => self.outbound.early[0].as_ref().map(|_| Kind::Initial),
            Space::Handshake => handshake.and_then(|h| h.keys.as_ref()).map(|_| Kind::Handshake),
            Space::Data if self.keys.is_some() => Some(Kind::OneRtt),
            Space::Data => {
                handshake.filter(|h| self.side.is_client() && h.early.is_some()).map(|_| Kind::ZeroRtt)
            }
        }
    }

    /// Puts a packet together, if its space has something to send.
    fn build(
        &mut self,
        space: Space,
        now: Time,
        out: &mut Vec<u8>,
        end: usize,
        permission: Permission,
    ) -> Option<Built> {
        let level = self.level(space)?;
        let start = out.len();
        // A datagram with an Initial packet that asks for an acknowledgment is a large one.
        let fits = level != Kind::Initial || end - start >= usize::from(mtu::BASE);
        let wants = self.wants(space, level);
        let state = self.outbound.space(space)?;
        let must_ack = level != Kind::ZeroRtt && state.acks.is_due(now);
        // The handshake does not wait for the congestion window: packets that fill it may have to wait for the handshake, and no timer runs for
        // them before (RFC 9002, section 6.2.1).
        let is_free = permission == Permission::All || space != Space::Data || state.probes > 0;
        // Nor does the proof of a path: the packets that fill the window may have been lost on another.
        let is_free = is_free || level == Kind::OneRtt && self.path.has_probe();
        let may_ask = fits && wants && is_free;
        if !may_ask && !must_ack {
            return None;
        }
        let place = self.push_header(level, space, out)?;
        let limit = end.checked_sub(TAG)?;
        let head_end = out.len();
        if level != Kind::ZeroRtt {
            // Type and content of PATH_CHALLENGE and PATH_RESPONSE.
            let reserved = if level == Kind::OneRtt && self.path.has_probe() { 18 } else { 0 };
            self.push_ack(space, now, out, limit.saturating_sub(reserved));
        }
        let before = out.len();
        let proves = may_ask && self.fill(space, level, now, out, limit);
        if out.len() == head_end {
            out.truncate(start);
            return None;
        }
        let mut place = place;
        place.finish(out);
        let asks = out.len() - TAG > before && may_ask;
        if asks && let Some(state) = self.outbound.space(space) {
            state.probes = state.probes.saturating_sub(1);
        }
        Some(Built { level, place, asks, proves, span: self.outbound.items.close(space) })
    }

    /// Returns `true` if a space has something to send that asks for an acknowledgment.
    fn wants(&mut self, space: Space, level: Kind) -> bool {
        let aside = self.path.has_probe();
        let datagrams = self.datagrams.as_ref().is_some_and(|d| d.has_unsent());
        let has_data = match space {
            Space::Data => level == Kind::OneRtt && aside || datagrams || self.outbound.has_data(),
            _ => false,
        };
        let Some(state) = self.outbound.space(space) else { return false };
        has_data || state.probes > 0 || state.crypto.out.has_unsent()
    }

    fn push_header(&mut self, level: Kind, space: Space, out: &mut Vec<u8>) -> Option<Place> {
        let dst = *self.outbound.remote.active();
        self.push_header_to(dst, level, space, out)
    }

    fn push_header_to(
        &mut self,
        dst: ConnectionId,
        level: Kind,
        space: Space,
        out: &mut Vec<u8>,
    ) -> Option<Place> {
        let number = self.recovery.next_number(space);
        let len = number::len_for(number, self.recovery.largest_acked(space));
        let kind = match level {
            Kind::OneRtt => {
                let phase = self.keys.as_ref()?.phase;
                let place = build::push_short(out, &dst, false, phase, number, len);
                self.grease(out, place.start);
                return Some(place);
            }
            Kind::Initial => LongKind::Initial,
            Kind::Handshake => LongKind::Handshake,
            Kind::ZeroRtt => LongKind::ZeroRtt,
        };
        let src = self.outbound.local.first();
        let token = self.handshake.as_ref().map_or(&[][..], |h| &h.begin.token);
        Some(Head { kind, version: self.version, dst: &dst, src: &src, token }.push(out, number, len))
    }

    /// Gives the fixed bit of a packet any value, if the peer takes it (RFC 9287, section 3.1).
    fn grease(&mut self, out: &mut [u8], start: usize) {
        if !self.peer.is_some_and(|peer| peer.greases) {
            return;
        }
        // Knuth's generator: enough for bits that are there so that nobody relies on them.
        self.noise =
            self.noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        if let Some(first) = out.get_mut(start).filter(|_| self.noise >> 63 == 0) {
            *first &= !header::FIXED;
        }
    }

    /// Adds an acknowledgment, if packets came that were not acknowledged.
    fn push_ack(&mut self, space: Space, now: Time, out: &mut Vec<u8>, limit: usize) {
        let Some(state) = self.outbound.space(space) else { return };
        if !state.acks.has_news() && !state.acks.is_due(now) {
            return;
        }
        // Of the other spaces the delay means nothing (RFC 9000, section 13.2.5).
        let delay = if space == Space::Data { state.acks.delay(now).as_micros() as u64 } else { 0 };
        let room = limit.saturating_sub(out.len());
        let ecn = state.acks.ecn();
        if frame::push_ack(out, state.acks.ranges(), delay >> ACK_DELAY_EXPONENT, ecn, room) > 0 {
            let largest = state.acks.largest();
            state.acks.on_sent();
            self.outbound.items.push(Item::Ack(largest.unwrap_or(0)));
        }
    }

    /// Fills a packet with frames that ask for an acknowledgment. Returns `true` if frames of the path are among them.
    fn fill(&mut self, space: Space, level: Kind, now: Time, out: &mut Vec<u8>, limit: usize) -> bool {
        let before = out.len();
        if level == Kind::OneRtt {
            fill_path(&mut self.path, now, self.recovery.pto(Space::Data), out, limit);
        }
        let proves = out.len() > before;
        if level != Kind::ZeroRtt {
            self.fill_crypto(space, out, limit);
        }
        if space == Space::Data {
            if level == Kind::OneRtt {
                self.fill_connection(out, limit);
            }
            self.fill_streams(out, limit);
        }
        let probes = self.outbound.space(space).map_or(0, |state| state.probes);
        let pings = space == Space::Data && std::mem::take(&mut self.outbound.ping);
        if (probes > 0 || pings) && out.len() == before && out.len() < limit {
            frame::push_ping(out);
        }
        proves
    }

    fn fill_crypto(&mut self, space: Space, out: &mut Vec<u8>, limit: usize) {
        // Each probe has bytes of the handshake as long as some are outstanding: of two probes one may be lost, and a server may refuse a
        // first packet without them (RFC 9000, section 17.2.2).
        if let Some(state) =
            self.outbound.space(space).filter(|state| space != Space::Data && state.probes > 0)
            && !state.crypto.out.has_unsent()
        {
            state.crypto.out.send_again();
        }
        loop {
            // Type, offset and length take at most 1 + 8 + 2 bytes.
            let room = limit.saturating_sub(out.len() + 11);
            let outbound = &mut self.outbound;
            let state = match space {
                Space::Data => Some(&mut outbound.data),
                Space::Initial => outbound.early[0].as_deref_mut(),
                Space::Handshake => outbound.early[1].as_deref_mut(),
            };
            let Some((offset, bytes)) = state.and_then(|state| state.crypto.out.take(room)) else { return };
            frame::push_crypto(out, offset, bytes);
            outbound.items.push(Item::Crypto { offset, len: bytes.len() as u16 });
        }
    }

    /// Adds frames of the connection.
    fn fill_connection(&mut self, out: &mut Vec<u8>, limit: usize) {
        let outbound = &mut self.outbound;
        if outbound.handshake_done && frame::fit(out, limit, frame::push_handshake_done) {
            outbound.handshake_done = false;
            outbound.items.push(Item::HandshakeDone);
        }
        // The longest has 1 + 8 + 8 + 1 + 20 + 16 bytes.
        while out.len() + 54 <= limit
            && let Some((number, id)) = outbound.local.take_unsent()
        {
            frame::push_new_connection_id(out, number, 0, &id, &self.source.reset_token(&id));
            outbound.items.push(Item::NewConnectionId(number));
        }
        while out.len() + 9 <= limit
            && let Some(number) = outbound.remote.take_unsent()
        {
            frame::push_retire_connection_id(out, number);
            outbound.items.push(Item::RetireConnectionId(number));
        }
        if let Some(token) = outbound.token.take() {
            if frame::fit(out, limit, |out| frame::push_new_token(out, &token)) {
                outbound.items.push(Item::NewToken);
                outbound.sent_token = Some(token);
            } else {
                outbound.token = Some(token);
            }
        }
    }

    fn fill_streams(&mut self, out: &mut Vec<u8>, limit: usize) {
        let longest = self.longest_datagram().unwrap_or(0);
        let super::outbound::Outbound { streams, items, .. } = &mut self.outbound;
        streams.push_control(out, limit, &mut |item| items.push(item));
        if let Some(datagrams) = &mut self.datagrams {
            while datagrams.has_unsent() {
                // The path may have become narrower since it was taken.
                datagrams.drop_longer(longest);
                let room = limit.saturating_sub(out.len());
                let fits = |len: usize| frame::datagram_head_len(len, false) + len <= room;
                let Some(datagram) = datagrams.take_unsent(fits) else { break };
                frame::push_datagram(out, &datagram, false);
                items.push(Item::Datagram);
            }
        }
        let mut sent = 0;
        streams.push_content(out, limit, &mut |item| {
            sent += 1;
            items.push(item);
        });
        self.stats.sent_stream_frames += sent;
    }

    /// Protects a packet, and notes that it leaves.
    fn seal(&mut self, now: Time, packet: &Built, out: &mut [u8]) -> Result<(), Error> {
        let until = now + self.pto() * 3;
        let Built { level, place, asks, span, .. } = packet;
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
        self.note_sent(now, packet.level.space(), place, *asks, *span, false);
        if is_worn
            && self.is_confirmed
            && let Some(keys) = &mut self.keys
        {
            keys.update(until);
        }
        Ok(())
    }

    fn note_sent(
        &mut self,
        now: Time,
        space: Space,
        place: &Place,
        asks: bool,
        span: Span,
        is_mtu_probe: bool,
    ) {
        self.stats.sent_packets += 1;
        let packet = SentPacket {
            number: place.number,
            size: place.size() as u16,
            ack_eliciting: asks,
            in_flight: asks,
            mtu_probe: is_mtu_probe,
            ect: self.marks,
            content: span,
        };
        self.recovery.on_sent(space, now, packet);
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
        let keys = self.keys.as_mut()?;
        if protect::seal(&*keys.local.header, &*keys.local.packet, out, &place).is_err() {
            out.truncate(start);
            return None;
        }
        keys.sealed(place.number);
        self.note_sent(now, Space::Data, &place, true, span, true);
        self.path.mtu.sent(size, place.number);
        Some(self.departure(self.path.route, usize::from(size), 1))
    }

    /// Tells the peer that the connection is closed, with all keys that it may have (RFC 9000, section 10.2.3).
    fn transmit_close(&mut self, now: Time, out: &mut Vec<u8>) -> Option<Transmit> {
        let State::Closing(closing) = &mut self.state else { return None };
        if !std::mem::take(&mut closing.is_due) {
            return None;
        }
        let room = usize::from(mtu::BASE).min(usize::try_from(self.path.allowance()).unwrap_or(usize::MAX));
        let start = out.len();
        let mut built: [Option<Built>; 3] = [None, None, None];
        let spaces = [Space::Initial, Space::Handshake, Space::Data];
        for (slot, space) in built.iter_mut().zip(spaces) {
            let Some(level) = self.level(space).filter(|_| out.len() + LEAST <= start + room) else {
                continue;
            };
            let packet_start = out.len();
            let Some(mut place) = self.push_header(level, space, out) else { continue };
            let left = (start + room).saturating_sub(out.len() + TAG);
            let State::Closing(closing) = &self.state else { return None };
            if !push_close(out, &closing.why, level, left) {
                out.truncate(packet_start);
                continue;
            }
            place.finish(out);
            let span = self.outbound.items.close(space);
            *slot = Some(Built { level, place, asks: false, proves: false, span });
        }
        self.pad(&mut built, out, start, room);
        let size = out.len() - start;
        for packet in built.iter().flatten() {
            if self.seal(now, packet, out).is_err() {
                out.truncate(start);
                return None;
            }
        }
        self.path.note_sent(size);
        (size > 0).then(|| self.departure(self.path.route, size, 1))
    }
}

/// Adds the question and the answer of a path.
fn fill_path(path: &mut Path, now: Time, pto: Duration, out: &mut Vec<u8>, limit: usize) {
    if let Some(challenge) = path.challenge.as_mut().filter(|c| c.is_due)
        && frame::fit(out, limit, |out| frame::push_path_challenge(out, challenge.data))
    {
        challenge.note_sent(now, pto);
    }
    if let Some(data) = path.response
        && frame::fit(out, limit, |out| frame::push_path_response(out, data))
    {
        path.response = None;
    }
}

/// Adds CONNECTION_CLOSE. Before the handshake is complete an error of the application is not told (RFC 9000, section 10.2.3).
fn push_close(out: &mut Vec<u8>, why: &Why, level: Kind, room: usize) -> bool {
    match (why, level) {
        (Why::Transport(e), _) => {
            frame::push_connection_close(out, e.code.0, Some(e.frame), e.reason.as_bytes(), room)
        }
        (Why::Application { code, reason }, Kind::OneRtt | Kind::ZeroRtt) => {
            frame::push_connection_close(out, *code, None, reason, room)
        }
        (Why::Application { .. }, _) => {
            frame::push_connection_close(out, Code::APPLICATION_ERROR.0, Some(0), &[], room)
        }
    }
}

impl super::ids::LocalIds {
    /// Returns `true`, once, if the peer uses another identifier than before: then packets to it get another one, too.
    pub(super) fn uses_other(&mut self, dst: &ConnectionId) -> bool {
        let is_other = self.used.is_some_and(|used| used != *dst);
        self.used = Some(*dst);
        is_other
    }
}
