//! Flow control of a connection, and the number of its streams (RFC 9000, section 4).

use crate::error::{Code, Error};

/// Content that the peer sends.
#[derive(Debug)]
pub(super) struct Incoming {
    /// Bytes that the peer may send ahead.
    pub(super) window: u64,
    /// Greatest offsets of all streams, added up.
    received: u64,
    /// Bytes that were read, or dropped.
    consumed: u64,
    /// Limit that the peer knows, or will know.
    pub(super) limit: u64,
    /// MAX_DATA is to be sent.
    pub(super) is_due: bool,
}

impl Incoming {
    pub(super) fn new(window: u64) -> Incoming {
        Incoming { window, received: 0, consumed: 0, limit: window, is_due: false }
    }

    /// Counts bytes that were received.
    ///
    /// # Errors
    /// FLOW_CONTROL_ERROR: there are too many.
    #[inline]
    pub(super) fn receive(&mut self, n: u64) -> Result<(), Error> {
        if n > self.limit - self.received {
            return Err(Error::new(Code::FLOW_CONTROL_ERROR, "more content than the connection may have"));
        }
        self.received += n;
        Ok(())
    }

    /// Counts bytes that were read, or dropped.
    #[inline]
    pub(super) fn consume(&mut self, n: u64) {
        self.consumed += n;
        self.is_due |= self.next_limit() - self.limit >= (self.window / 4).max(1);
    }

    /// Returns the bytes that were received, and those that were read or dropped.
    #[cfg(test)]
    pub(super) fn counts(&self) -> (u64, u64) {
        (self.received, self.consumed)
    }

    /// Sets the window.
    pub(super) fn set_window(&mut self, window: u64) {
        self.window = window;
        self.consume(0);
    }

    /// Returns the limit that the peer may be told.
    pub(super) fn next_limit(&self) -> u64 {
        self.limit.max(self.consumed.saturating_add(self.window))
    }
}

/// Content that this side sends.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// Bytes that are kept until they are acknowledged, at most.
    pub(super) window: u64,
    /// Bytes that are kept.
    pub(super) kept: u64,
    /// Limit of the peer.
    pub(super) limit: u64,
    /// Offsets that all streams have reached, added up.
    pub(super) sent: u64,
    /// DATA_BLOCKED is to be sent.
    pub(super) blocked_is_due: bool,
    /// Limit at which the peer was told last that this side waits.
    told_blocked: u64,
}

impl Outgoing {
    pub(super) fn new(window: u64) -> Outgoing {
        Outgoing { window, kept: 0, limit: 0, sent: 0, blocked_is_due: false, told_blocked: u64::MAX }
    }

    /// Returns the bytes that the peer allows to send.
    #[inline]
    pub(super) fn credit(&self) -> u64 {
        self.limit.saturating_sub(self.sent)
    }

    /// Returns the bytes that may be written.
    #[inline]
    pub(super) fn room(&self) -> u64 {
        self.window.saturating_sub(self.kept)
    }

    /// Returns `true` if there is room enough for those who wait for it: a quarter of the window.
    #[inline]
    pub(super) fn has_room(&self) -> bool {
        self.room() >= (self.window / 4).max(1)
    }

    /// Notes that streams wait for the peer's limit. DATA_BLOCKED is due once for each limit.
    pub(super) fn note_blocked(&mut self) {
        if self.told_blocked != self.limit {
            self.told_blocked = self.limit;
            self.blocked_is_due = true;
        }
    }

    /// Forgets the peer's limit, and what was sent.
    pub(super) fn rewind(&mut self) {
        *self = Outgoing { kept: self.kept, ..Outgoing::new(self.window) };
    }
}

/// Streams of a kind that the peer opens.
#[derive(Debug, Default)]
pub(super) struct Theirs {
    /// Streams that it may have open at a time.
    most: u64,
    /// Number of streams that it may open in all: what it knows, or will know.
    pub(super) limit: u64,
    /// Number of those that are over.
    closed: u64,
    /// Number of those that the application has accepted.
    pub(super) accepted: u64,
    /// MAX_STREAMS is to be sent.
    pub(super) is_due: bool,
    /// The application is to be told of new ones.
    pub(super) has_new: bool,
}

/// Greatest number of streams (RFC 9000, section 4.6).
const MOST_STREAMS: u64 = 1 << 60;

impl Theirs {
    pub(super) fn new(most: u64) -> Theirs {
        let most = most.min(MOST_STREAMS);
        Theirs { most, limit: most, ..Theirs::default() }
    }

    /// Returns the limit that the peer may be told.
    pub(super) fn next_limit(&self) -> u64 {
        self.limit.max(self.closed.saturating_add(self.most).min(MOST_STREAMS))
    }

    /// Counts a stream that is over. `opened`: streams that were opened.
    pub(super) fn close(&mut self, opened: u64) {
        self.closed += 1;
        self.look(opened);
    }

    /// Sets the number of streams that the peer may have open at a time.
    pub(super) fn set_most(&mut self, most: u64) {
        self.most = most.min(MOST_STREAMS);
        self.is_due |= self.next_limit() > self.limit;
    }

    /// Has MAX_STREAMS sent for an eighth of the streams, or for less if the peer can open no more.
    pub(super) fn look(&mut self, opened: u64) {
        let more = self.next_limit() - self.limit;
        self.is_due |= more > 0 && (opened == self.limit || more >= self.most / 8);
    }
}

/// Streams of a kind that this side opens.
#[derive(Debug)]
pub(super) struct Ours {
    /// Number of streams that the peer allows in all.
    pub(super) limit: u64,
    /// The application waits for more.
    pub(super) waits: bool,
    /// The application is to be told of more.
    pub(super) has_more: bool,
    /// STREAMS_BLOCKED is to be sent.
    pub(super) blocked_is_due: bool,
    /// Limit at which the peer was told last that this side waits.
    told_blocked: u64,
}

impl Default for Ours {
    fn default() -> Ours {
        Ours { limit: 0, waits: false, has_more: false, blocked_is_due: false, told_blocked: u64::MAX }
    }
}

impl Ours {
    /// Notes that the application waits. STREAMS_BLOCKED is due once for each limit.
    pub(super) fn note_blocked(&mut self) {
        self.waits = true;
        if self.told_blocked != self.limit {
            self.told_blocked = self.limit;
            self.blocked_is_due = true;
        }
    }

    /// Forgets the peer's limit. Whoever waits goes on waiting.
    pub(super) fn rewind(&mut self) {
        *self = Ours { waits: self.waits || self.has_more, ..Ours::default() };
    }

    /// Raises the limit.
    pub(super) fn raise(&mut self, limit: u64) {
        if limit > self.limit {
            self.limit = limit;
            self.blocked_is_due = false;
            self.has_more |= std::mem::take(&mut self.waits);
        }
    }
}
