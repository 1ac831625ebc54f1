//! Packets that are put together: their headers and frames.

use super::path::Path;
use super::transmit::{Built, Permission};
use super::{ACK_DELAY_EXPONENT, Connection, Space, mtu};
use crate::frame;
use crate::id::ConnectionId;
use crate::item::Item;
use crate::packet::build::TAG;
use crate::packet::{Head, Kind, LongKind, Place, build, header, number};
use crate::time::Time;
use std::time::Duration;

impl Connection {
    /// Returns the level of packets of a space, if there are keys for it.
    pub(super) fn level(&self, space: Space) -> Option<Kind> {
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
    pub(super) fn build(
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
        let span = self.outbound.items.close(space);
        Some(Built { level, place, asks, proves, is_mtu_probe: false, span })
    }

    /// Returns `true` if a space has something to send that asks for an acknowledgment.
    pub(super) fn wants(&mut self, space: Space, level: Kind) -> bool {
        let aside = self.path.has_probe();
        let datagrams = self.datagrams.as_ref().is_some_and(|d| d.has_unsent());
        let has_data = match space {
            Space::Data => level == Kind::OneRtt && aside || datagrams || self.outbound.has_data(),
            _ => false,
        };
        let Some(state) = self.outbound.space(space) else { return false };
        has_data || state.probes > 0 || state.crypto.out.has_unsent()
    }

    pub(super) fn push_header(&mut self, level: Kind, space: Space, out: &mut Vec<u8>) -> Option<Place> {
        let dst = *self.outbound.remote.active();
        self.push_header_to(dst, level, space, out)
    }

    pub(super) fn push_header_to(
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
}

/// Adds the question and the answer of a path.
pub(super) fn fill_path(path: &mut Path, now: Time, pto: Duration, out: &mut Vec<u8>, limit: usize) {
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
