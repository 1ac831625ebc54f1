//! Bytes of the handshake in one packet number space (RFC 9000, section 7.5).

use crate::error::{Code, Error};
use crate::ranges::RangeSet;
use crate::stream::{Assembler, TooManyGaps};
use bytes::Bytes;

/// Bytes of the handshake that may come ahead of what was read. RFC 9000 asks for 4096 at least; chains of certificates are longer.
const AHEAD: u64 = 65_536;

/// Both directions of the handshake in one packet number space.
#[derive(Debug, Default)]
pub struct Crypto {
    /// Bytes that the peer has sent.
    received: Assembler,
    /// Bytes to send, and bytes sent that are not acknowledged.
    pub out: Outgoing,
}

impl Crypto {
    /// Handles a CRYPTO frame.
    ///
    /// # Errors
    /// CRYPTO_BUFFER_EXCEEDED, INTERNAL_ERROR for too many gaps.
    pub fn receive(&mut self, offset: u64, data: Bytes) -> Result<(), Error> {
        let end = offset.checked_add(data.len() as u64);
        if end.is_none_or(|end| end > self.received.offset() + AHEAD) {
            return Err(Error::new(Code::CRYPTO_BUFFER_EXCEEDED, "sent too much of the handshake"));
        }
        let inserted = self.received.insert(offset, data);
        inserted.map_err(|TooManyGaps| Error::new(Code::INTERNAL_ERROR, "too many gaps in the handshake"))
    }

    /// Takes bytes that came, in order.
    pub fn read(&mut self) -> Option<Bytes> {
        self.received.read(usize::MAX)
    }

    /// Returns the offset behind the last byte that was read.
    pub fn read_to(&self) -> u64 {
        self.received.offset()
    }

    /// Returns `true` if something came that has not been read.
    pub fn has_unread(&self) -> bool {
        self.received.is_readable() || self.received.has_gaps()
    }
}

/// Bytes of the handshake that are to be sent.
#[derive(Debug, Default)]
pub struct Outgoing {
    data: Vec<u8>,
    /// Offset of the first byte of `data`.
    base: u64,
    /// Offset of the first byte that was not sent yet.
    next: u64,
    lost: RangeSet,
    acked: RangeSet,
}

impl Outgoing {
    /// Adds bytes at the end.
    pub fn push(&mut self, bytes: &[u8]) {
        self.data.extend_from_slice(bytes);
    }

    fn end(&self) -> u64 {
        self.base + self.data.len() as u64
    }

    /// Returns `true` if there are bytes to send.
    pub fn has_unsent(&self) -> bool {
        self.next < self.end() || self.lost.first().is_some()
    }

    /// Returns `true` if bytes that were sent are not acknowledged.
    pub fn is_outstanding(&self) -> bool {
        !self.data.is_empty()
    }

    /// Takes at most `most` bytes to send, those that were lost first, with their offset.
    pub fn take(&mut self, most: usize) -> Option<(u64, &[u8])> {
        if most == 0 {
            return None;
        }
        let (from, to) = match self.lost.first() {
            Some(lost) => (lost.start, lost.end),
            None => (self.next, self.end()),
        };
        let to = to.min(from + most as u64);
        if to <= from {
            return None;
        }
        self.lost.remove(from..to);
        self.next = self.next.max(to);
        let at = usize::try_from(from - self.base).ok()?;
        let len = usize::try_from(to - from).ok()?;
        Some((from, self.data.get(at..at + len)?))
    }

    /// Notes that bytes arrived.
    pub fn acked(&mut self, offset: u64, len: u16) {
        let end = offset + u64::from(len);
        self.acked.insert(offset.max(self.base)..end.max(self.base));
        self.lost.remove(offset..end);
        let Some(first) = self.acked.first().filter(|first| first.start <= self.base) else { return };
        self.acked.remove(first.clone());
        let done = usize::try_from(first.end - self.base).unwrap_or(usize::MAX).min(self.data.len());
        self.data.drain(..done);
        self.base += done as u64;
        if self.data.is_empty() {
            self.data = Vec::new();
        }
    }

    /// Sends bytes again, unless they arrived meanwhile.
    pub fn lost(&mut self, offset: u64, len: u16) {
        let range = offset.max(self.base)..(offset + u64::from(len)).max(self.base);
        if range.is_empty() {
            return;
        }
        self.lost.insert(range);
        self.remove_arrived();
    }

    fn remove_arrived(&mut self) {
        for range in self.acked.iter() {
            self.lost.remove(range);
        }
    }

    /// Sends everything again that has not arrived.
    pub fn send_again(&mut self) {
        let sent = self.next;
        if sent > self.base {
            self.lost.insert(self.base..sent);
            self.remove_arrived();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_sent_until_they_arrive() {
        let mut out = Outgoing::default();
        assert!(!out.has_unsent() && out.take(10).is_none());
        out.push(b"0123456789");
        assert_eq!(out.take(4), Some((0, &b"0123"[..])));
        assert_eq!(out.take(4), Some((4, &b"4567"[..])));
        out.lost(0, 4);
        out.push(b"ab");
        assert_eq!(out.take(3), Some((0, &b"012"[..])));
        assert_eq!(out.take(100), Some((3, &b"3"[..])));
        assert_eq!(out.take(100), Some((8, &b"89ab"[..])));
        assert!(!out.has_unsent() && out.is_outstanding());
        out.acked(4, 4);
        out.lost(4, 4);
        assert!(!out.has_unsent());
        out.send_again();
        assert_eq!(out.take(100), Some((0, &b"0123"[..])));
        assert_eq!(out.take(100), Some((8, &b"89ab"[..])));
        out.acked(0, 4);
        assert_eq!(out.base, 8);
        out.acked(8, 4);
        out.lost(8, 4);
        assert!(!out.has_unsent() && !out.is_outstanding());
        out.push(b"c");
        assert_eq!(out.take(100), Some((12, &b"c"[..])));
    }

    #[test]
    fn too_much_ahead_is_refused() {
        let mut crypto = Crypto::default();
        let at = |crypto: &mut Crypto, offset| {
            crypto.receive(offset, Bytes::from_static(b"x")).map_err(|e| e.code)
        };
        assert_eq!(at(&mut crypto, AHEAD), Err(Code::CRYPTO_BUFFER_EXCEEDED));
        assert_eq!(at(&mut crypto, u64::MAX), Err(Code::CRYPTO_BUFFER_EXCEEDED));
        assert_eq!(at(&mut crypto, AHEAD - 1), Ok(()));
        assert_eq!((crypto.read(), crypto.has_unread()), (None, true));
        assert_eq!(at(&mut crypto, 0), Ok(()));
        assert_eq!(crypto.read().as_deref(), Some(&b"x"[..]));
        assert_eq!(at(&mut crypto, AHEAD), Ok(()));
    }
}
