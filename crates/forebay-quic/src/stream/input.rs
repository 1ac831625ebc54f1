//! Frames of streams that came (RFC 9000, section 19). Hot path.
//!
//! Errors name no type of frame: the caller knows it.

use super::recv::Phase;
use super::send::{Fin, Reset};
use super::table::Half;
use super::{StreamEvent, Streams, TooManyGaps, of};
use crate::error::{Code, Error};
use crate::id::{Dir, StreamId};
use bytes::Bytes;

const NOT_RECEIVING: Error = Error::new(Code::STREAM_STATE_ERROR, "frame for a stream that only sends");
const NOT_SENDING: Error = Error::new(Code::STREAM_STATE_ERROR, "frame for a stream that only receives");
const NOT_OPENED: Error = Error::new(Code::STREAM_STATE_ERROR, "frame for a stream that was not opened");
const TOO_MANY: Error = Error::new(Code::STREAM_LIMIT_ERROR, "more streams than are allowed");
const GAPS: Error = Error::new(Code::INTERNAL_ERROR, "too many gaps");

impl Streams {
    /// Takes a STREAM frame. Its content is kept without a copy unless it is short.
    ///
    /// # Errors
    /// STREAM_STATE_ERROR, STREAM_LIMIT_ERROR, FINAL_SIZE_ERROR, FLOW_CONTROL_ERROR; INTERNAL_ERROR for too many gaps.
    pub fn on_stream(&mut self, id: StreamId, offset: u64, data: Bytes, fin: bool) -> Result<(), Error> {
        self.check_receiving(id)?;
        let Some(slot) = self.receiving(id) else { return Ok(()) };
        let Some(recv) = self.recvs.get_mut(slot) else { return Ok(()) };
        let more = recv.receive(offset.saturating_add(data.len() as u64), fin)?;
        self.incoming.receive(more)?;
        match recv.phase {
            Phase::Open => recv.assembler.insert(offset, data).map_err(|TooManyGaps| GAPS)?,
            // What it had was counted when it was reset.
            Phase::Reset(_) => return Ok(()),
            Phase::Stopped(_) => {
                self.incoming.consume(more);
                if fin {
                    self.close_recv(id, slot);
                }
                return Ok(());
            }
        }
        if recv.waits && recv.is_readable() {
            self.readable(id, slot);
        }
        Ok(())
    }

    /// Takes a RESET_STREAM frame.
    ///
    /// # Errors
    /// STREAM_STATE_ERROR, STREAM_LIMIT_ERROR, FINAL_SIZE_ERROR, FLOW_CONTROL_ERROR.
    pub fn on_reset_stream(&mut self, id: StreamId, code: u64, size: u64) -> Result<(), Error> {
        self.check_receiving(id)?;
        let Some(slot) = self.receiving(id) else {
            self.reset_after_end(id);
            return Ok(());
        };
        let Some(recv) = self.recvs.get_mut(slot) else { return Ok(()) };
        let was_complete = recv.is_complete();
        let more = recv.receive(size, true)?;
        self.incoming.receive(more)?;
        match recv.phase {
            Phase::Reset(_) => {}
            Phase::Stopped(_) => {
                self.incoming.consume(more);
                self.close_recv(id, slot);
            }
            Phase::Open if was_complete => {
                if !std::mem::replace(&mut recv.reset_after_end, true) {
                    self.events.push_back(StreamEvent::ResetAfterEnd { id });
                }
            }
            Phase::Open => {
                let unread = recv.discard();
                recv.phase = Phase::Reset(code);
                // The application may be busy with something else than reading.
                recv.waits = true;
                self.incoming.consume(unread);
                self.readable(id, slot);
            }
        }
        Ok(())
    }

    /// Notes a reset of a receiving half that is over. The application is told once, as long as it has the other half.
    fn reset_after_end(&mut self, id: StreamId) {
        if let Some(entry) = self.index.get_mut(id)
            && entry.recv == Half::OVER
            && !entry.send.is_over()
        {
            entry.recv = Half::RESET_AFTER_END;
            self.events.push_back(StreamEvent::ResetAfterEnd { id });
        }
    }

    /// Takes a STOP_SENDING frame. A stream that has not sent everything is reset, with the peer's code unless the application is faster
    /// with one of its own (RFC 9000, section 3.5).
    ///
    /// # Errors
    /// STREAM_STATE_ERROR, STREAM_LIMIT_ERROR.
    pub fn on_stop_sending(&mut self, id: StreamId, code: u64) -> Result<(), Error> {
        self.check_sending(id)?;
        let Some(slot) = self.sending(id) else { return Ok(()) };
        let Some(send) = self.sends.get_mut(slot) else { return Ok(()) };
        if send.stopped.is_some() || send.reset != Reset::No {
            return Ok(());
        }
        send.stopped = Some(code);
        self.events.push_back(StreamEvent::Stopped { id, code });
        // One that was sent to its end is only reset if some of it is lost.
        if send.fin == Fin::Open || send.next(u64::MAX).is_some() {
            self.begin_reset(id, slot, code);
        }
        Ok(())
    }

    /// Takes a MAX_DATA frame.
    pub fn on_max_data(&mut self, limit: u64) {
        if limit <= self.outgoing.limit {
            return;
        }
        self.outgoing.limit = limit;
        self.outgoing.blocked_is_due = false;
        if self.outgoing.credit() > 0 {
            self.order.unpark(&mut self.sends);
        }
    }

    /// Takes a MAX_STREAM_DATA frame.
    ///
    /// # Errors
    /// STREAM_STATE_ERROR, STREAM_LIMIT_ERROR.
    pub fn on_max_stream_data(&mut self, id: StreamId, limit: u64) -> Result<(), Error> {
        self.check_sending(id)?;
        self.raise(id, limit);
        Ok(())
    }

    /// Takes a MAX_STREAMS frame.
    pub fn on_max_streams(&mut self, dir: Dir, limit: u64) {
        let ours = of(&mut self.ours, dir);
        let known = ours.limit;
        ours.raise(limit);
        if self.was_refused && limit > known {
            self.release(dir, known);
        }
    }

    /// Takes a STREAM_DATA_BLOCKED frame. Nothing depends on it: limits are raised as soon as content is read.
    ///
    /// # Errors
    /// STREAM_STATE_ERROR, STREAM_LIMIT_ERROR.
    pub fn on_stream_data_blocked(&mut self, id: StreamId) -> Result<(), Error> {
        self.check_receiving(id)
    }

    /// Takes a STREAMS_BLOCKED frame. A peer that may open more than it knows is told so.
    pub fn on_streams_blocked(&mut self, dir: Dir, limit: u64) {
        let theirs = of(&mut self.theirs, dir);
        theirs.look(limit);
    }

    /// Checks that the peer may send content of a stream, and opens it if it is new.
    #[inline]
    fn check_receiving(&mut self, id: StreamId) -> Result<(), Error> {
        match (id.opener() == self.side, id.dir()) {
            (true, Dir::Uni) => Err(NOT_RECEIVING),
            _ => self.check_opened(id),
        }
    }

    /// Checks that this side sends content of a stream, and opens it if it is new.
    #[inline]
    fn check_sending(&mut self, id: StreamId) -> Result<(), Error> {
        match (id.opener() == self.side, id.dir()) {
            (false, Dir::Uni) => Err(NOT_SENDING),
            _ => self.check_opened(id),
        }
    }

    /// Opens a stream of the peer, and those before it that it has not used (RFC 9000, section 3.2).
    #[inline]
    fn check_opened(&mut self, id: StreamId) -> Result<(), Error> {
        let (opener, dir) = (id.opener(), id.dir());
        let opened = self.index.opened(opener, dir);
        if id.index() < opened {
            return Ok(());
        }
        if opener == self.side {
            return Err(NOT_OPENED);
        }
        let theirs = of(&mut self.theirs, dir);
        if id.index() >= theirs.limit {
            return Err(TOO_MANY);
        }
        theirs.has_new = true;
        for _ in opened..=id.index() {
            self.index.open(opener, dir);
        }
        theirs.look(id.index() + 1);
        Ok(())
    }

    /// Tells the application that there is something to read. It reads of a stream that it has accepted without being told.
    fn readable(&mut self, id: StreamId, slot: u32) {
        let is_known = id.opener() == self.side || id.index() < of(&mut self.theirs, id.dir()).accepted;
        if let Some(recv) = self.recvs.get_mut(slot).filter(|recv| is_known && recv.waits) {
            recv.waits = false;
            self.events.push_back(StreamEvent::Readable { id });
        }
    }

    /// Raises the limit of a stream.
    pub(super) fn raise(&mut self, id: StreamId, limit: u64) {
        let Some(slot) = self.sending(id) else { return };
        let Some(send) = self.sends.get_mut(slot) else { return };
        if send.raise(limit) {
            self.queue(slot);
            self.wake_writer(id, slot);
        }
    }
}
