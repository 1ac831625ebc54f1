//! Frames of streams to send, and what became of those that were sent. Hot path.

use super::recv::{Phase, Recv};
use super::send::{Part, Reset, Send};
use super::{DIRS, StreamEvent, Streams, of};
use crate::frame::{
    fit, push_data_blocked, push_max_data, push_max_stream_data, push_max_streams, push_reset_stream,
    push_stop_sending, push_stream_data_blocked, push_stream_head, push_streams_blocked, stream_head_len,
};
use crate::id::StreamId;
use crate::item::Item;
use crate::varint;

/// Shortest content with which a frame begins that does not have all of it, bytes: each frame costs the peer time.
const SHORTEST: usize = 32;
/// Most content of a frame, bytes.
const MOST: usize = u16::MAX as usize;

impl Streams {
    /// Returns `true` if there are frames to send.
    #[inline]
    pub fn wants_to_send(&mut self) -> bool {
        !self.order.is_empty() || self.wants_to_send_control()
    }

    /// Returns `true` if there are other frames than STREAM to send.
    #[inline]
    pub fn wants_to_send_control(&mut self) -> bool {
        self.incoming.is_due
            || self.outgoing.blocked_is_due
            || self.theirs.iter().any(|theirs| theirs.is_due)
            || self.ours.iter().any(|ours| ours.blocked_is_due)
            || self.has_control_of_stream()
    }

    /// Returns `true` if a stream has control frames to send. Those that have become needless since they were due are forgotten.
    fn has_control_of_stream(&mut self) -> bool {
        while let Some(id) = self.controls.front().copied() {
            let entry = self.index.get(id).filter(|_| self.is_allowed(id));
            if let Some(entry) = entry {
                let recv = entry.recv.slot().and_then(|slot| self.recvs.get(slot));
                let send = entry.send.slot().and_then(|slot| self.sends.get_mut(slot));
                if recv.is_some_and(Recv::has_control) || send.as_deref().is_some_and(Send::has_control) {
                    return true;
                }
                if let Some(send) = send {
                    send.blocked_is_due = false;
                }
            }
            self.controls.pop_front();
        }
        false
    }

    /// Appends frames other than STREAM to a packet, which may grow up to `end` bytes. Calls `sent` for each. Those for which there is no room
    /// stay due.
    pub fn push_control(&mut self, out: &mut Vec<u8>, end: usize, sent: &mut impl FnMut(Item)) {
        if self.push_for_connection(out, end, sent).is_none() {
            return;
        }
        while let Some(id) = self.controls.front().copied() {
            if !self.is_allowed(id) {
                // It comes back once it is.
            } else if self.push_for_sending(id, out, end, sent).is_none()
                || self.push_for_receiving(id, out, end, sent).is_none()
            {
                return;
            }
            self.controls.pop_front();
        }
    }

    /// Appends frames for the connection. Returns `None` if there is no room for one.
    fn push_for_connection(
        &mut self,
        out: &mut Vec<u8>,
        end: usize,
        sent: &mut impl FnMut(Item),
    ) -> Option<()> {
        if self.incoming.is_due {
            let limit = self.incoming.next_limit();
            fit(out, end, |out| push_max_data(out, limit)).then_some(())?;
            (self.incoming.limit, self.incoming.is_due) = (limit, false);
            sent(Item::MaxData(limit));
        }
        if self.outgoing.blocked_is_due {
            let limit = self.outgoing.limit;
            fit(out, end, |out| push_data_blocked(out, limit)).then_some(())?;
            self.outgoing.blocked_is_due = false;
            sent(Item::DataBlocked(limit));
        }
        for dir in DIRS {
            let theirs = of(&mut self.theirs, dir);
            if theirs.is_due {
                let limit = theirs.next_limit();
                fit(out, end, |out| push_max_streams(out, dir, limit)).then_some(())?;
                (theirs.limit, theirs.is_due) = (limit, false);
                sent(Item::MaxStreams(dir, limit));
            }
            let ours = of(&mut self.ours, dir);
            if ours.blocked_is_due {
                let limit = ours.limit;
                fit(out, end, |out| push_streams_blocked(out, dir, limit)).then_some(())?;
                ours.blocked_is_due = false;
                sent(Item::StreamsBlocked(dir, limit));
            }
        }
        Some(())
    }

    /// Appends frames of a sending half. Returns `None` if there is no room for one.
    fn push_for_sending(
        &mut self,
        id: StreamId,
        out: &mut Vec<u8>,
        end: usize,
        sent: &mut impl FnMut(Item),
    ) -> Option<()> {
        let half = self.index.get(id).and_then(|entry| entry.send.slot());
        let Some(send) = half.and_then(|slot| self.sends.get_mut(slot)) else { return Some(()) };
        if let Reset::Due(code) = send.reset {
            let size = send.sent();
            fit(out, end, |out| push_reset_stream(out, id, code, size)).then_some(())?;
            send.reset = Reset::Sent(code);
            sent(Item::ResetStream(id));
        }
        if send.has_control() {
            let limit = send.limit();
            fit(out, end, |out| push_stream_data_blocked(out, id, limit)).then_some(())?;
            sent(Item::StreamDataBlocked(id, limit));
        }
        send.blocked_is_due = false;
        Some(())
    }

    /// Appends frames of a receiving half. Returns `None` if there is no room for one.
    fn push_for_receiving(
        &mut self,
        id: StreamId,
        out: &mut Vec<u8>,
        end: usize,
        sent: &mut impl FnMut(Item),
    ) -> Option<()> {
        let half = self.index.get(id).and_then(|entry| entry.recv.slot());
        let Some(recv) = half.and_then(|slot| self.recvs.get_mut(slot)) else { return Some(()) };
        if !recv.has_control() {
            return Some(());
        }
        if let Phase::Stopped(code) = recv.phase {
            fit(out, end, |out| push_stop_sending(out, id, code)).then_some(())?;
            recv.stop_is_due = false;
            sent(Item::StopSending(id));
        } else if let Some(limit) = recv.next_limit(self.stream_window) {
            fit(out, end, |out| push_max_stream_data(out, id, limit)).then_some(())?;
            (recv.limit, recv.limit_is_due) = (limit, false);
            sent(Item::MaxStreamData(id, limit));
        }
        Some(())
    }

    /// Appends STREAM frames to a packet, which may grow up to `end` bytes. Calls `sent` for each. The last one has no length if it fills the
    /// packet, so that nothing may be appended then. Where there is room for a few bytes only, nothing may be appended here.
    pub fn push_content(&mut self, out: &mut Vec<u8>, end: usize, sent: &mut impl FnMut(Item)) {
        let mut has_sent = false;
        while let Some(slot) = self.order.first(&self.sends) {
            let credit = self.outgoing.credit();
            let Some(send) = self.sends.get_mut(slot) else { return };
            let Some(part) = send.next(credit) else {
                self.leave(slot);
                has_sent = false;
                continue;
            };
            let Some(len) = push_part(send, part, (out, end), sent) else { break };
            has_sent = true;
            if part.is_new {
                self.outgoing.sent += len;
            }
        }
        if has_sent {
            // The packet is full: it is the turn of the next stream.
            self.order.rotate(&mut self.sends);
        }
        self.park();
    }

    /// Has streams wait if connection flow control allows no new content.
    fn park(&mut self) {
        if self.outgoing.credit() == 0 && !self.order.is_empty() && self.order.park(&mut self.sends) {
            self.outgoing.note_blocked();
        }
    }

    /// Takes the first stream out of the order: it has nothing to send now.
    fn leave(&mut self, slot: u32) {
        self.order.pop(&mut self.sends);
        // It may have to wait for connection flow control.
        self.queue(slot);
    }

    /// Notes a frame that the peer has acknowledged.
    pub fn acked(&mut self, item: Item) {
        match item {
            Item::Stream { id, offset, len, fin } => self.content_acked(id, offset, len, fin),
            Item::ResetStream(id) => {
                if let Some((slot, _)) = self.sending_part(id) {
                    self.close_send(id, slot);
                }
            }
            _ => {}
        }
    }

    #[inline]
    fn content_acked(&mut self, id: StreamId, offset: u64, len: u16, fin: bool) {
        let (had_room, credit) = (self.outgoing.has_room(), self.outgoing.credit());
        let Some((slot, send)) = self.sending_part(id) else { return };
        let freed = send.acked(offset, len.into(), fin);
        let is_complete = send.is_complete();
        let is_idle = send.turn != 0 && !send.parked && send.next(credit).is_none();
        self.outgoing.kept -= freed;
        if is_complete {
            self.close_send(id, slot);
            self.events.push_back(StreamEvent::Finished { id });
        } else if is_idle && let Some(send) = self.sends.get_mut(slot) {
            // What was to be sent again has arrived after all. There may be new content that waits.
            self.order.remove(send);
            self.queue(slot);
        }
        if !had_room {
            self.wake_writers();
        }
    }

    /// Notes a frame that was lost: what still counts of it is sent again.
    pub fn lost(&mut self, item: Item) {
        let stopped = match item {
            Item::Stream { id, .. } => self.sending_part(id).and_then(|(slot, send)| {
                let code = send.stopped.filter(|_| send.reset == Reset::No)?;
                Some((id, slot, code))
            }),
            _ => None,
        };
        match stopped {
            // The peer does not want it (RFC 9000, section 3.5).
            Some((id, slot, code)) => self.begin_reset(id, slot, code),
            None => self.again(item),
        }
    }

    /// Has a frame sent again of which it is not known whether it was lost: for probes (RFC 9002, section 6.2.4).
    pub fn again(&mut self, item: Item) {
        match item {
            Item::Stream { id, offset, len, fin } => {
                if let Some((slot, send)) = self.sending_part(id) {
                    send.lost(offset, len.into(), fin);
                    self.queue(slot);
                }
            }
            Item::ResetStream(id) => {
                if let Some((_, send)) = self.sending_part(id)
                    && let Reset::Sent(code) = send.reset
                {
                    send.reset = Reset::Due(code);
                    self.controls.push_back(id);
                }
            }
            Item::StreamDataBlocked(id, limit) => {
                if let Some((_, send)) = self.sending_part(id)
                    && send.limit() == limit
                    && !std::mem::replace(&mut send.blocked_is_due, true)
                {
                    self.controls.push_back(id);
                }
            }
            Item::StopSending(id) | Item::MaxStreamData(id, _) => self.receiving_again(id, item),
            Item::MaxData(limit) => self.incoming.is_due |= limit == self.incoming.limit,
            Item::DataBlocked(limit) => self.outgoing.blocked_is_due |= limit == self.outgoing.limit,
            Item::MaxStreams(dir, limit) => {
                let theirs = of(&mut self.theirs, dir);
                theirs.is_due |= limit == theirs.limit;
            }
            Item::StreamsBlocked(dir, limit) => {
                let ours = of(&mut self.ours, dir);
                ours.blocked_is_due |= limit == ours.limit;
            }
            _ => {}
        }
    }

    /// Has a frame of a receiving half sent again.
    fn receiving_again(&mut self, id: StreamId, item: Item) {
        let half = self.index.get(id).and_then(|entry| entry.recv.slot());
        let Some(recv) = half.and_then(|slot| self.recvs.get_mut(slot)) else { return };
        let was_due = match item {
            Item::MaxStreamData(_, limit) if limit == recv.limit => {
                std::mem::replace(&mut recv.limit_is_due, true)
            }
            Item::StopSending(_) => std::mem::replace(&mut recv.stop_is_due, true),
            _ => true,
        };
        if !was_due {
            self.controls.push_back(id);
        }
    }

    /// Returns the sending half of a stream, if it has a state.
    #[inline]
    fn sending_part(&mut self, id: StreamId) -> Option<(u32, &mut Send)> {
        let slot = self.index.get(id)?.send.slot()?;
        Some((slot, self.sends.get_mut(slot)?))
    }

    /// Resets a stream.
    pub(super) fn begin_reset(&mut self, id: StreamId, slot: u32, code: u64) {
        let Some(send) = self.sends.get_mut(slot) else { return };
        self.outgoing.kept -= send.reset(code);
        self.order.remove(send);
        self.controls.push_back(id);
        self.wake_writers();
    }
}

/// Appends a STREAM frame with the first bytes of a part. Returns the number of bytes, or `None` if there is no room.
#[inline]
fn push_part(
    send: &mut Send,
    part: Part,
    (out, end): (&mut Vec<u8>, usize),
    sent: &mut impl FnMut(Item),
) -> Option<u64> {
    let id = send.id;
    let room = end.checked_sub(out.len() + stream_head_len(id, part.offset, None))?;
    let all = usize::try_from(part.len).unwrap_or(usize::MAX);
    let (len, has_len) = match all >= room && room <= MOST {
        true => (room, false),
        false => (all.min(room.checked_sub(varint::len(all.min(MOST) as u64))?).min(MOST), true),
    };
    if len < all.min(SHORTEST) {
        return None;
    }
    let fin = send.ends_at(part.offset + len as u64);
    push_stream_head(out, id, part.offset, has_len.then_some(len), fin);
    send.copy_to(part.offset, len, out);
    send.note_sent(Part { len: len as u64, ..part }, fin);
    sent(Item::Stream { id, offset: part.offset, len: u16::try_from(len).unwrap_or(u16::MAX), fin });
    Some(len as u64)
}
