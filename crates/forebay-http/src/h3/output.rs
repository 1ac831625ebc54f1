//! Bytes of a request stream on their way to QUIC, at either end: frames are put together here (RFC 9114, section 7). Hot path.

use super::buffers;
use super::frame::{Header, kind};
use super::transport::{Transport, Unwritten};
use bytes::Bytes;

/// Longest content that is copied behind its frame header, and the head, into one piece for QUIC, bytes. A piece of its own costs more.
const GATHERED: usize = 4096;
/// Content that there is room for while QUIC takes more, bytes. It may take less.
const ROOM: usize = 64 * 1024;

/// See the module.
#[derive(Debug, Default)]
pub struct Output {
    id: u64,
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

impl Output {
    /// Creates the output of a stream, without frames if `is_bare`.
    pub fn new(id: u64, is_bare: bool) -> Output {
        Output { id, is_bare, ..Output::default() }
    }

    /// Returns the buffer to which a frame can be appended.
    pub fn frames(&mut self) -> &mut Vec<u8> {
        if self.pending.capacity() == 0 {
            self.pending = buffers::take();
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
    pub fn send(&mut self, quic: &impl Transport, bytes: &[u8]) -> Result<usize, Unwritten> {
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
            if !self.flush(quic)? {
                break;
            }
            if gathered {
                continue;
            }
            let n = self.give(len, |id, done| quic.write(id, piece.get(done..).unwrap_or_default()))?;
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
    pub fn send_shared(&mut self, quic: &impl Transport, bytes: &Bytes) -> Result<usize, Unwritten> {
        if bytes.len() <= GATHERED {
            return self.send(quic, bytes);
        }
        let len = self.begin_frame(bytes.len());
        if !self.flush(quic)? {
            return Ok(0);
        }
        let mut piece = bytes.slice(..len);
        let n = self.give(len, |id, _| quic.write_shared(id, &mut piece))?;
        self.owed -= n;
        Ok(n)
    }

    /// Has QUIC take the last content as [`Output::send_shared`] does, and the end along with it where the content is gathered.
    ///
    /// # Errors
    /// Those of [`Output::send`].
    pub fn send_last(&mut self, quic: &impl Transport, bytes: &Bytes) -> Result<usize, Unwritten> {
        self.ends = self.owed == 0 && !self.is_full && bytes.len() <= GATHERED;
        self.send_shared(quic, bytes)
    }

    /// Has QUIC take what waits, and the end behind it. Returns `true` if nothing waits any more.
    ///
    /// # Errors
    /// Those of [`Output::send`].
    pub fn flush(&mut self, quic: &impl Transport) -> Result<bool, Unwritten> {
        if self.waits() {
            let mut rest = std::mem::take(&mut self.pending);
            let taken =
                self.give(rest.len(), |id, done| quic.write(id, rest.get(done..).unwrap_or_default()));
            rest.drain(..taken.unwrap_or(rest.len()));
            match rest.is_empty() {
                true => buffers::give(rest),
                false => self.pending = rest,
            }
            taken?;
        }
        let is_empty = !self.waits();
        if is_empty && self.ends && !std::mem::replace(&mut self.has_ended, true) {
            quic.finish(self.id);
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

    /// Has QUIC take `len` bytes by `write`, which gets the stream and the number of bytes that it has taken. Returns their number.
    fn give(
        &mut self,
        len: usize,
        mut write: impl FnMut(u64, usize) -> Result<usize, Unwritten>,
    ) -> Result<usize, Unwritten> {
        let mut done = 0;
        while done < len {
            match write(self.id, done) {
                Ok(n) => {
                    done += n;
                    self.has_moved = true;
                }
                Err(Unwritten::Blocked) => {
                    self.is_full = true;
                    break;
                }
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::super::transport::memory::Memory;
    use super::*;

    #[test]
    fn short_content_leaves_with_the_head_and_the_end() {
        let (quic, mut out) = (Memory::default(), Output::new(4, false));
        out.frames().extend_from_slice(&[1, 1, 7]);
        assert_eq!(out.send_last(&quic, &Bytes::from_static(b"ab")), Ok(2));
        assert_eq!(quic.take(4), [1, 1, 7, 0, 2, b'a', b'b']);
        assert!(out.has_ended() && out.take_progress() && !out.is_cut());
        assert_eq!(*quic.finished.borrow(), [4]);
    }

    #[test]
    fn a_frame_that_quic_cannot_take_goes_on_later() {
        let (quic, mut out) = (Memory::default(), Output::new(0, false));
        let content = Bytes::from(vec![5; GATHERED + 1]);
        quic.room.set(100);
        assert_eq!(out.send_shared(&quic, &content), Ok(97));
        assert!(out.is_full() && out.is_cut() && !out.waits(), "the header took three bytes");
        quic.room.set(usize::MAX);
        out.note_room();
        out.end();
        assert_eq!(out.send(&quic, &content[97..]), Ok(content.len() - 97));
        assert_eq!(out.flush(&quic), Ok(true));
        let sent = quic.take(0);
        assert_eq!((sent.len(), &sent[..3]), (content.len() + 3, &[0, 0x50, 0x01][..]), "one frame");
        assert!(out.has_ended() && !out.is_cut());
    }

    #[test]
    fn bare_content_has_no_frames() {
        let (quic, mut out) = (Memory::default(), Output::new(0, true));
        assert_eq!(out.send(&quic, b"ab"), Ok(2));
        assert_eq!(quic.take(0), b"ab");
    }
}
