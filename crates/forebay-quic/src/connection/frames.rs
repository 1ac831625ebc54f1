//! Frames of packets that came.

use super::receive::Opened;
use super::{Connection, Event, Reason, Space};
use crate::error::{Code, Error};
use crate::frame::{AckFrame, Frame, Frames, kind};
use crate::recovery::{Ack, Fate};
use crate::time::Time;
use crate::varint;
use std::time::Duration;

/// Summary of the frames of a packet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    /// The packet asks for an acknowledgment.
    pub asks: bool,
    /// All frames are such as do not move the connection to another path.
    pub is_probing: bool,
}

/// Longest token for later connections that is handed on, bytes. A ClientHello has to have room beside it in an Initial packet.
const LONGEST_TOKEN: usize = 512;

impl Connection {
    /// Handles the frames of a packet.
    pub(super) fn frames(&mut self, now: Time, opened: &Opened) -> Result<Seen, Error> {
        let mut seen = Seen { asks: false, is_probing: true };
        let payload = opened.payload.clone();
        for next in Frames::new(&payload, opened.kind, self.side.other())? {
            let (frame_kind, frame) = next?;
            seen.asks |= kind::is_ack_eliciting(frame_kind);
            seen.is_probing &= kind::is_probing(frame_kind);
            if !matches!(frame, Frame::Padding(_)) {
                self.stats.received_frames += 1;
            }
            self.frame(now, opened, (frame_kind, frame)).map_err(|e| e.in_frame(frame_kind))?;
            if self.is_closed() {
                break;
            }
        }
        Ok(seen)
    }

    fn frame(
        &mut self,
        now: Time,
        opened: &Opened,
        (frame_kind, frame): (u64, Frame<'_>),
    ) -> Result<(), Error> {
        let space = opened.kind.space();
        let share = |data: &[u8]| opened.payload.slice_ref(data);
        match frame {
            Frame::Padding(_) | Frame::Ping => Ok(()),
            Frame::Ack(ack) => self.ack(now, space, &ack),
            Frame::Crypto { offset, data } => self.crypto_frame(space, offset, share(data)),
            Frame::Stream { id, offset, data, fin } => {
                self.stats.received_stream_frames += 1;
                self.outbound.streams.on_stream(id, offset, share(data), fin)
            }
            Frame::Datagram(data) => {
                let has_len = frame_kind == kind::DATAGRAM_LEN;
                let len = if has_len { varint::len(data.len() as u64) } else { 0 };
                self.datagram_frame(share(data), 1 + len + data.len())
            }
            Frame::ConnectionClose { code, frame, reason } => {
                self.closed_by_peer(now, code, frame, reason);
                Ok(())
            }
            of_stream @ (Frame::ResetStream { .. }
            | Frame::StopSending { .. }
            | Frame::MaxData(_)
            | Frame::MaxStreamData { .. }
            | Frame::MaxStreams { .. }
            | Frame::DataBlocked(_)
            | Frame::StreamDataBlocked { .. }
            | Frame::StreamsBlocked { .. }) => self.stream_frame(of_stream),
            of_connection => self.connection_frame(now, opened, of_connection),
        }
    }

    /// Handles frames of streams that have no content.
    fn stream_frame(&mut self, frame: Frame<'_>) -> Result<(), Error> {
        let streams = &mut self.outbound.streams;
        match frame {
            Frame::ResetStream { id, code, final_size } => streams.on_reset_stream(id, code, final_size),
            Frame::StopSending { id, code } => streams.on_stop_sending(id, code),
            Frame::MaxData(limit) => {
                streams.on_max_data(limit);
                Ok(())
            }
            Frame::MaxStreamData { id, limit } => streams.on_max_stream_data(id, limit),
            Frame::MaxStreams { dir, limit } => {
                streams.on_max_streams(dir, limit);
                Ok(())
            }
            Frame::StreamDataBlocked { id, .. } => streams.on_stream_data_blocked(id),
            Frame::StreamsBlocked { dir, limit } => {
                streams.on_streams_blocked(dir, limit);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Handles frames of the connection and its paths.
    fn connection_frame(&mut self, now: Time, opened: &Opened, frame: Frame<'_>) -> Result<(), Error> {
        match frame {
            Frame::NewConnectionId { sequence, retire_prior_to, id, token } => {
                self.outbound.remote.add((sequence, retire_prior_to), id, token, &mut self.id_changes)
            }
            Frame::RetireConnectionId(number) => {
                self.outbound.local.retire(number, &opened.dst, &*self.source, &mut self.id_changes)
            }
            Frame::PathChallenge(data) => {
                self.challenged(opened, data);
                Ok(())
            }
            Frame::PathResponse(data) => {
                self.challenge_answered(now, &data);
                Ok(())
            }
            Frame::HandshakeDone => {
                if !self.is_confirmed {
                    self.confirmed(now);
                }
                Ok(())
            }
            Frame::NewToken(token) => {
                if token.len() <= LONGEST_TOKEN {
                    self.events.push_back(Event::Token(token.into()));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Handles an acknowledgment.
    fn ack(&mut self, now: Time, space: Space, frame: &AckFrame<'_>) -> Result<(), Error> {
        // A peer says how it delays acknowledgments of 1-RTT packets only.
        let exponent = self.peer.filter(|_| space == Space::Data).map_or(0, |peer| peer.ack_delay_exponent);
        let delay = if space == Space::Data { frame.delay.saturating_mul(1 << exponent) } else { 0 };
        let ack = Ack { largest: frame.largest, delay: Duration::from_micros(delay), ecn: frame.ecn };
        let (outbound, mtu, stats) = (&mut self.outbound, &mut self.path.mtu, &mut self.stats);
        let mut has_mtu_changed = false;
        if space == Space::Handshake {
            // Only a peer that has this side's Handshake packets acknowledges them. Said first: it ends the backoff of probes.
            self.recovery.set_peer_validated();
        }
        let acked = self.recovery.on_ack(space, now, &ack, frame.ranges(), |packet| match packet.fate {
            Fate::Acked => {
                has_mtu_changed |= mtu.acked(packet.number, packet.size, now);
                outbound.acked(packet.content);
            }
            Fate::Lost => {
                stats.lost_packets += 1;
                has_mtu_changed |=
                    !mtu.probe_lost(packet.number, now) && mtu.lost(packet.number, packet.size, now);
                outbound.lost(packet.content);
            }
            Fate::LateAcked => {}
        })?;
        if has_mtu_changed {
            self.settle_mtu();
        }
        if acked.newly {
            self.settle_send_window();
        }
        if acked.newly && space == Space::Data {
            self.note_acked(frame.largest);
        }
        Ok(())
    }

    /// Tells the congestion control what size datagrams have.
    pub(super) fn settle_mtu(&mut self) {
        self.recovery.set_datagram_size(self.path.mtu.current());
    }

    /// Has as much content kept as the path carries.
    fn settle_send_window(&mut self) {
        let least = self.config.limits.send_window;
        let wanted = self.recovery.window().saturating_mul(3).min(self.config.max_send_window).max(least);
        self.outbound.streams.set_send_window(wanted);
    }

    /// Handles CONNECTION_CLOSE.
    fn closed_by_peer(&mut self, now: Time, code: u64, frame: Option<u64>, reason: &[u8]) {
        let reason = match frame {
            Some(frame) => Reason::PeerError(Error {
                code: Code(code),
                frame,
                reason: String::from_utf8_lossy(reason).into_owned().into(),
            }),
            None => Reason::PeerClosed { code, reason: reason.into() },
        };
        self.drain(now, Some(reason));
    }
}
