//! Sending half of a stream (RFC 9000, section 3.1). Hot path.

use super::segments::{SMALL, Segments};
use crate::id::StreamId;
use crate::ranges::RangeSet;
use bytes::Bytes;

/// What is known of the end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fin {
    /// The application may write more. "Ready" or "Send".
    Open,
    /// It is to be sent.
    Due,
    /// It was sent. "Data Sent".
    Sent,
    /// The peer has it.
    Acked,
}

/// Reset of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reset {
    No,
    /// RESET_STREAM is to be sent with this code.
    Due(u64),
    /// It was sent. "Reset Sent".
    Sent(u64),
}

/// Content for one STREAM frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) offset: u64,
    pub(super) len: u64,
    /// It was not sent before.
    pub(super) is_new: bool,
}

/// State of a sending half. One that is over has none.
#[derive(Debug)]
pub(super) struct Send {
    pub(super) id: StreamId,
    pieces: Segments,
    /// Offset of the first byte that the peer has not acknowledged.
    base: u64,
    /// Offset of the first byte that was never sent.
    sent: u64,
    /// Offset behind the last byte that the application has written.
    end: u64,
    /// Acknowledged bytes behind `base`.
    acked: RangeSet,
    /// Bytes to be sent again.
    lost: RangeSet,
    /// Limit of the peer.
    limit: u64,
    pub(super) fin: Fin,
    pub(super) reset: Reset,
    /// The peer reads no more, for this reason.
    pub(super) stopped: Option<u64>,
    pub(super) priority: i32,
    /// Place in the order of streams that have something to send; 0 for none.
    pub(super) turn: u64,
    /// It has a place, but connection flow control has it wait.
    pub(super) parked: bool,
    /// The application waits until it can write more.
    pub(super) waits: bool,
    /// It is among those that wait for room in the send window.
    pub(super) is_listed: bool,
    /// The peer's limit of streams does not allow it any more: 0-RTT was refused.
    pub(super) is_held: bool,
    /// STREAM_DATA_BLOCKED is to be sent.
    pub(super) blocked_is_due: bool,
    /// Limit at which the peer was told last that this side waits.
    told_blocked: u64,
}

impl Send {
    pub(super) fn new(id: StreamId, limit: u64) -> Send {
        Send {
            id,
            pieces: Segments::new(),
            base: 0,
            sent: 0,
            end: 0,
            acked: RangeSet::new(),
            lost: RangeSet::new(),
            limit,
            fin: Fin::Open,
            reset: Reset::No,
            stopped: None,
            priority: 0,
            turn: 0,
            parked: false,
            waits: false,
            is_listed: false,
            is_held: false,
            blocked_is_due: false,
            told_blocked: u64::MAX,
        }
    }

    /// Returns `true` if the application may write.
    pub(super) fn is_open(&self) -> bool {
        self.fin == Fin::Open && self.reset == Reset::No
    }

    /// Returns the bytes that are kept.
    pub(super) fn kept(&self) -> u64 {
        self.end - self.base
    }

    /// Returns the number of bytes that were sent: the final size if it is reset now.
    pub(super) fn sent(&self) -> u64 {
        self.sent
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Returns how many bytes the peer's limit allows to write.
    pub(super) fn room(&self) -> u64 {
        self.limit.saturating_sub(self.end)
    }

    /// Raises the peer's limit. Returns `true` if it was lower.
    pub(super) fn raise(&mut self, limit: u64) -> bool {
        let raised = limit > self.limit;
        self.limit = self.limit.max(limit);
        raised
    }

    /// Appends content, without a copy unless it is short.
    pub(super) fn append(&mut self, bytes: Bytes) {
        if bytes.len() < SMALL {
            return self.append_copy(&bytes);
        }
        let len = bytes.len() as u64;
        self.pieces.push(self.end, bytes);
        self.end += len;
    }

    /// Appends a copy of content.
    pub(super) fn append_copy(&mut self, bytes: &[u8]) {
        self.pieces.push_copy(self.end, bytes);
        self.end += bytes.len() as u64;
    }

    /// Notes that the application waits for the peer's limit. STREAM_DATA_BLOCKED is due once for each limit. Returns `true` if it was not
    /// due before.
    pub(super) fn note_blocked(&mut self) -> bool {
        let is_told = self.told_blocked == self.limit;
        self.told_blocked = self.limit;
        !is_told && !std::mem::replace(&mut self.blocked_is_due, true)
    }

    /// Returns `true` if RESET_STREAM is to be sent, or STREAM_DATA_BLOCKED while it still says the truth.
    pub(super) fn has_control(&self) -> bool {
        match self.reset {
            Reset::No => self.blocked_is_due && self.is_open() && self.waits && self.room() == 0,
            Reset::Due(_) => true,
            Reset::Sent(_) => false,
        }
    }

    /// Returns the content of the next frame: what was lost, then what was never sent, then the end alone. `credit`: bytes that connection
    /// flow control allows to send.
    #[inline]
    pub(super) fn next(&self, credit: u64) -> Option<Part> {
        if self.reset != Reset::No || self.is_held {
            return None;
        }
        if let Some(lost) = self.lost.first() {
            return Some(Part { offset: lost.start, len: lost.end - lost.start, is_new: false });
        }
        let most = self.end.min(self.limit).min(self.sent.saturating_add(credit));
        let len = most.saturating_sub(self.sent);
        let is_due = len > 0 || self.fin == Fin::Due && self.sent == self.end;
        is_due.then_some(Part { offset: self.sent, len, is_new: true })
    }

    /// Returns `true` if the stream ends at an offset.
    pub(super) fn ends_at(&self, offset: u64) -> bool {
        self.fin != Fin::Open && offset == self.end
    }

    /// Appends content to a packet.
    pub(super) fn copy_to(&self, offset: u64, len: usize, out: &mut Vec<u8>) {
        self.pieces.copy_to(offset, len, out);
    }

    /// Notes content that was sent.
    pub(super) fn note_sent(&mut self, part: Part, fin: bool) {
        match part.is_new {
            true => self.sent += part.len,
            false => {
                self.lost.remove(part.offset..part.offset + part.len);
            }
        }
        if fin && self.fin == Fin::Due {
            self.fin = Fin::Sent;
        }
    }

    /// Notes content that the peer has acknowledged. Returns the number of bytes that are kept no more.
    #[inline]
    pub(super) fn acked(&mut self, offset: u64, len: u64, fin: bool) -> u64 {
        if self.reset != Reset::No {
            return 0;
        }
        if fin {
            self.fin = Fin::Acked;
        }
        let (before, end) = (self.base, offset + len);
        if !self.lost.is_empty() {
            self.lost.remove(offset..end);
        }
        if offset > self.base {
            self.acked.insert(offset..end);
            return 0;
        }
        self.base = self.base.max(end);
        while let Some(first) = self.acked.first().filter(|first| first.start <= self.base) {
            self.base = self.base.max(first.end);
            self.acked.pop_min();
        }
        self.pieces.drop_before(self.base);
        self.base - before
    }

    /// Returns `true` if the peer has acknowledged everything. "Data Recvd".
    pub(super) fn is_complete(&self) -> bool {
        self.fin == Fin::Acked && self.base == self.end
    }

    /// Has content sent again that has not been acknowledged.
    pub(super) fn lost(&mut self, offset: u64, len: u64, fin: bool) {
        if self.reset != Reset::No {
            return;
        }
        let (start, end) = (offset.max(self.base), (offset + len).min(self.sent));
        if start < end {
            self.lost.insert(start..end);
            for acked in self.acked.iter().filter(|acked| acked.start < end && acked.end > start) {
                self.lost.remove(acked);
            }
        }
        if fin && self.fin == Fin::Sent {
            self.fin = Fin::Due;
        }
    }

    /// Resets it: content is sent no more. Returns the number of bytes that are kept no more.
    pub(super) fn reset(&mut self, code: u64) -> u64 {
        let kept = self.kept();
        self.pieces.clear();
        (self.acked, self.lost) = (RangeSet::new(), RangeSet::new());
        self.base = self.end;
        self.reset = Reset::Due(code);
        self.waits = false;
        kept
    }

    /// Begins again from the first byte, once the peer allows the stream: nothing that was sent counts. The peer's limit is unknown. Nothing
    /// may have been acknowledged.
    pub(super) fn rewind(&mut self) {
        self.is_held = true;
        self.sent = 0;
        self.lost = RangeSet::new();
        self.limit = 0;
        self.told_blocked = u64::MAX;
        if self.fin == Fin::Sent {
            self.fin = Fin::Due;
        }
        if let Reset::Sent(code) = self.reset {
            self.reset = Reset::Due(code);
        }
    }
}
