//! Receiving half of a stream (RFC 9000, section 3.2). Hot path.

use super::assembler::Assembler;
use crate::error::{Code, Error};

/// What the receiving half is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// The application reads. "Recv", "Size Known" or "Data Recvd".
    Open,
    /// The application reads no more, and the end is not known yet. It has told the peer so with this code.
    Stopped(u64),
    /// The peer has reset the stream with this code, and the application does not know yet. "Reset Recvd".
    Reset(u64),
}

/// The end is not known.
const UNKNOWN: u64 = u64::MAX;

/// State of a receiving half. One that is over has none.
#[derive(Debug)]
pub(super) struct Recv {
    pub(super) assembler: Assembler,
    pub(super) phase: Phase,
    /// Offset behind the last byte that was received, of those in gaps also: they count for flow control.
    pub(super) largest: u64,
    size: u64,
    /// Limit that the peer knows, or will know.
    pub(super) limit: u64,
    /// The application waits for an event.
    pub(super) waits: bool,
    /// The peer has reset it behind its end, and the application was told.
    pub(super) reset_after_end: bool,
    /// STOP_SENDING is to be sent.
    pub(super) stop_is_due: bool,
    /// MAX_STREAM_DATA is to be sent.
    pub(super) limit_is_due: bool,
}

const FINAL_SIZE: Error = Error::new(Code::FINAL_SIZE_ERROR, "the final size changed");

impl Recv {
    pub(super) const fn new(limit: u64) -> Recv {
        Recv {
            assembler: Assembler::new(),
            phase: Phase::Open,
            largest: 0,
            size: UNKNOWN,
            limit,
            waits: true,
            reset_after_end: false,
            stop_is_due: false,
            limit_is_due: false,
        }
    }

    /// Notes content that ends at an offset, and the stream with it if `fin`. Returns the number of bytes that are new for flow control
    /// (RFC 9000, sections 4.1 and 4.5).
    ///
    /// # Errors
    /// FINAL_SIZE_ERROR, FLOW_CONTROL_ERROR.
    #[inline]
    pub(super) fn receive(&mut self, end: u64, fin: bool) -> Result<u64, Error> {
        if end > self.size || fin && (end < self.largest || self.size != UNKNOWN && end != self.size) {
            return Err(FINAL_SIZE);
        }
        if end > self.limit {
            return Err(Error::new(Code::FLOW_CONTROL_ERROR, "more content than a stream may have"));
        }
        if fin {
            self.size = end;
        }
        let more = end.saturating_sub(self.largest);
        self.largest += more;
        Ok(more)
    }

    /// Returns `true` if the end is known. "Size Known" and later states.
    pub(super) fn has_end(&self) -> bool {
        self.size != UNKNOWN
    }

    /// Returns `true` if everything has arrived. "Data Recvd".
    pub(super) fn is_complete(&self) -> bool {
        self.assembler.end() == self.size
    }

    /// Returns `true` if everything has been read. "Data Read".
    pub(super) fn is_read(&self) -> bool {
        self.assembler.offset() == self.size
    }

    /// Returns `true` if there is something for the application: content, the end or a reset.
    pub(super) fn is_readable(&self) -> bool {
        match self.phase {
            Phase::Open => self.assembler.is_readable() || self.is_read(),
            Phase::Stopped(_) => false,
            Phase::Reset(_) => true,
        }
    }

    /// Drops what has not been read. Returns the number of bytes that flow control takes for read from now on.
    pub(super) fn discard(&mut self) -> u64 {
        let unread = self.largest - self.assembler.offset();
        self.assembler.clear();
        unread
    }

    /// Returns the limit that the peer is to be told with a window of so many bytes, if it is to send more.
    pub(super) fn next_limit(&self, window: u64) -> Option<u64> {
        let limit = self.limit.max(self.assembler.offset().saturating_add(window));
        (self.phase == Phase::Open && !self.has_end()).then_some(limit)
    }

    /// Returns `true` if STOP_SENDING is to be sent, or MAX_STREAM_DATA while the peer can make use of it.
    pub(super) fn has_control(&self) -> bool {
        match self.phase {
            Phase::Open => self.limit_is_due && !self.has_end(),
            Phase::Stopped(_) => self.stop_is_due,
            Phase::Reset(_) => false,
        }
    }

    /// Returns `true` if the peer is to be told of a good deal more than it knows, and was not to be told before.
    #[inline]
    pub(super) fn limit_becomes_due(&mut self, window: u64) -> bool {
        let is_due = !self.limit_is_due
            && self.next_limit(window).is_some_and(|next| next - self.limit >= (window / 4).max(1));
        self.limit_is_due |= is_due;
        is_due
    }
}
