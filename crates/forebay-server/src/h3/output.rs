//! Bytes of a request stream on their way to QUIC, at either end: frames are put together here (RFC 9114, section 7). Hot path.

use super::pieces;
use bytes::Bytes;
use forebay_http::h3::frame::{Header, kind};
use forebay_net::quic::{Link, StreamId, Streams, WriteError};

/// Longest content that is copied behind its frame header, and the head, into one piece for QUIC, bytes. A piece of its own costs more.
const GATHERED: usize = 4096;
/// Content that there is room for while QUIC takes more, bytes. It may take less.
const ROOM: usize = 64 * 1024;

/// See the module.
#[derive(Debug, Default)]
pub struct Output {
    /// Content has no frames (HTTP/0.9).
    is_bare: bool,
    /// Frames that QUIC has not taken.
    pending: Vec<u8>,
    /// Content of the last DATA frame that has not been sent, bytes.
    owed: usize,
    /// QUIC takes no more for now.
    is_full: bool,
    /// Our side ends once `pending` has been sent.
    ends: bool,
    /// QUIC knows of the end.
    has_ended: bool,
    /// QUIC has taken something since it was last asked.
    has_moved: bool,
}

/// Stream that bytes go to.
pub type Place<'l> = (&'l Link, StreamId);

impl Output {
    /// Creates an output without frames if `is_bare`.
    pub fn new(is_bare: bool) -> Output {
        Output { is_bare, ..Output::default() }
    }

    /// Returns the buffer to which a frame can be appended.
    pub fn frames(&mut self) -> &mut Vec<u8> {
        if self.pending.capacity() == 0 {
            self.pending = pieces::take();
        }
        &mut self.pending
    }

    /// Returns the content that there is room for, bytes.
    pub fn room(&self) -> usize {
        if self.is_full { 0 } else { ROOM }
    }

    /// Returns `true` if QUIC takes no more for now.
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    /// Notes that QUIC takes more.
    pub fn note_room(&mut self) {
        self.is_full = false;
    }

    /// Returns `true` if frames wait.
    pub fn waits(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Returns `true` if a DATA frame is not complete.
    pub fn is_cut(&self) -> bool {
        self.owed > 0
    }

    /// Returns `true` if QUIC knows of the end.
    pub fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// Returns `true` if QUIC has taken something since the last call: bytes, or the end.
    pub fn take_progress(&mut self) -> bool {
        std::mem::take(&mut self.has_moved)
    }

    /// Ends our side once what waits has been sent.
    pub fn end(&mut self) {
        self.ends = true;
    }

    /// Has QUIC take content. Returns the number of bytes that were taken.
    ///
    /// # Errors
    /// The stream is gone, or the peer reads no more.
    pub fn send(&mut self, place: Place<'_>, bytes: &[u8]) -> Result<usize, WriteError> {
        let mut done = 0;
        while done < bytes.len() {
            let len = self.begin_frame(bytes.len() - done);
            let Some(piece) = bytes.get(done..done + len) else { break };
            let gathered = len <= GATHERED && !self.is_full;
            if gathered {
                self.pending.extend_from_slice(piece);
                self.owed -= len;
                done += len;
            }
            if !self.flush(place)? {
                break;
            }
            if gathered {
                continue;
            }
            let n = self.give(place, len, |streams, done| {
                streams.write_slice(place.1, piece.get(done..).unwrap_or_default())
            })?;
            done += n;
            self.owed -= n;
            if n < len {
                break;
            }
        }
        Ok(done)
    }

    /// Has QUIC take content as [`Output::send`] does, without a copy if it is long.
    ///
    /// # Errors
    /// Those of [`Output::send`].
    pub fn send_shared(&mut self, place: Place<'_>, bytes: &Bytes) -> Result<usize, WriteError> {
        if bytes.len() <= GATHERED {
            return self.send(place, bytes);
        }
        let len = self.begin_frame(bytes.len());
        if !self.flush(place)? {
            return Ok(0);
        }
        let n = self.give_shared(place, &mut bytes.slice(..len))?;
        self.owed -= n;
        Ok(n)
    }

    /// Has QUIC take the last content as [`Output::send_shared`] does, and the end along with it where the content is gathered.
    ///
    /// # Errors
    /// Those of [`Output::send`].
    pub fn send_last(&mut self, place: Place<'_>, bytes: &Bytes) -> Result<usize, WriteError> {
        self.ends = self.owed == 0 && !self.is_full && bytes.len() <= GATHERED;
        self.send_shared(place, bytes)
    }

    /// Has QUIC take what waits, and the end behind it. Returns `true` if nothing waits any more.
    ///
    /// # Errors
    /// Those of [`Output::send`].
    pub fn flush(&mut self, place: Place<'_>) -> Result<bool, WriteError> {
        if self.waits() {
            let mut rest = std::mem::take(&mut self.pending);
            let taken = self.give(place, rest.len(), |streams, done| {
                streams.write_slice(place.1, rest.get(done..).unwrap_or_default())
            });
            rest.drain(..taken.unwrap_or(rest.len()));
            match rest.is_empty() {
                true => pieces::give(rest),
                false => self.pending = rest,
            }
            taken?;
        }
        let is_empty = !self.waits();
        if is_empty && self.ends && !std::mem::replace(&mut self.has_ended, true) {
            let (link, id) = place;
            let _ = link.streams().finish(id);
            self.has_moved = true;
        }
        Ok(is_empty)
    }

    /// Queues the header of a DATA frame, if one has to begin. Returns the number of bytes of `len` that belong to the frame.
    fn begin_frame(&mut self, len: usize) -> usize {
        if self.owed == 0 {
            if !self.is_bare {
                Header { kind: kind::DATA, len: len as u64 }.push(self.frames());
            }
            self.owed = len;
        }
        len.min(self.owed)
    }

    /// Has QUIC take bytes without a copy. Those that it has not taken stay. Returns the number of those that it took.
    fn give_shared(&mut self, place: Place<'_>, bytes: &mut Bytes) -> Result<usize, WriteError> {
        self.give(place, bytes.len(), |streams, _| streams.write(place.1, bytes))
    }

    /// Has QUIC take `len` bytes by `write`, which gets the number of those that it has taken. Returns their number.
    fn give(
        &mut self,
        (link, _): Place<'_>,
        len: usize,
        mut write: impl FnMut(&mut Streams, usize) -> Result<usize, WriteError>,
    ) -> Result<usize, WriteError> {
        let mut streams = link.streams();
        let mut done = 0;
        while done < len {
            match write(&mut streams, done) {
                Ok(n) => {
                    done += n;
                    self.has_moved = true;
                }
                Err(WriteError::Blocked) => {
                    self.is_full = true;
                    break;
                }
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }
}
