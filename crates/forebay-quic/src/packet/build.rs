//! Headers of packets that are put together.
//!
//! A packet is begun with [`Head::push`] or [`push_short`], then frames are appended, then [`Place::finish`] ends it, and
//! `protect` seals it. Several packets of a buffer can be sealed together.

use super::header::{FIXED, KEY_PHASE, LongKind, SPIN};
use super::number;
use crate::varint;
use crate::version::Version;

/// Bytes of the authentication tag at the end of a packet. All AEADs of TLS 1.3 have the same.
pub const TAG: usize = 16;
/// Bytes of a sample for header protection. It begins four bytes behind the begin of the packet number (RFC 9001, section 5.4.2).
pub const SAMPLE: usize = 16;
/// Bytes that a packet number is taken to have when a sample is taken.
pub const SAMPLE_AT: usize = 4;

/// Long header of a packet with a number: Initial, 0-RTT or Handshake.
#[derive(Clone, Copy, Debug)]
pub struct Head<'a> {
    /// Type.
    pub kind: LongKind,
    /// Version.
    pub version: Version,
    /// Destination connection identifier.
    pub dst: &'a [u8],
    /// Source connection identifier.
    pub src: &'a [u8],
    /// Token of an Initial packet, otherwise not used.
    pub token: &'a [u8],
}

impl Head<'_> {
    /// Returns the number of bytes before the payload.
    pub fn size(&self, number_len: usize) -> usize {
        let token = match self.kind {
            LongKind::Initial => varint::len(self.token.len() as u64) + self.token.len(),
            _ => 0,
        };
        1 + 4 + 1 + self.dst.len() + 1 + self.src.len() + token + 2 + number_len
    }

    /// Appends the header. Its length is filled in by [`Place::finish`].
    pub fn push(&self, out: &mut Vec<u8>, number: u64, number_len: usize) -> Place {
        let start = out.len();
        out.push(self.kind.first_byte(self.version) | number_bits(number_len));
        push_ids(out, self.version.number(), self.dst, self.src);
        if self.kind == LongKind::Initial {
            varint::push(out, self.token.len() as u64);
            out.extend_from_slice(self.token);
        }
        varint::push_in(out, 0, 2);
        let number_at = out.len();
        number::push(out, number, number_len);
        Place { start, number_at, end: out.len(), number, long: true }
    }
}

/// Appends version and connection identifiers, which are where all versions have them.
pub(super) fn push_ids(out: &mut Vec<u8>, version: u32, dst: &[u8], src: &[u8]) {
    out.extend_from_slice(&version.to_be_bytes());
    for id in [dst, src] {
        out.push(id.len() as u8);
        out.extend_from_slice(id);
    }
}

/// Appends the short header of a 1-RTT packet. It has `1 + dst.len() + number_len` bytes.
#[inline]
pub fn push_short(
    out: &mut Vec<u8>,
    dst: &[u8],
    spin: bool,
    key_phase: bool,
    number: u64,
    number_len: usize,
) -> Place {
    let start = out.len();
    let spin = if spin { SPIN } else { 0 };
    let key_phase = if key_phase { KEY_PHASE } else { 0 };
    out.push(FIXED | spin | key_phase | number_bits(number_len));
    out.extend_from_slice(dst);
    let number_at = out.len();
    number::push(out, number, number_len);
    Place { start, number_at, end: out.len(), number, long: false }
}

/// Returns the bits of the first byte for a packet number of 1 to 4 bytes.
const fn number_bits(len: usize) -> u8 {
    len.saturating_sub(1) as u8 & 3
}

/// Where a packet lies in the buffer that it is written to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// First byte.
    pub start: usize,
    /// First byte of the packet number. The two bytes of the length are before it in a long header.
    pub number_at: usize,
    /// First byte behind the packet once it is finished.
    pub end: usize,
    /// Packet number.
    pub number: u64,
    /// The header is long.
    pub long: bool,
}

impl Place {
    /// Ends the packet at the end of the buffer: adds PADDING if it is too short for header protection, room for the authentication
    /// tag, and the length to a long header. Of a packet with a long header at most 16,383 bytes can follow the length.
    ///
    /// PADDING would become content of a frame without a length. Such a frame may only end a packet whose number and frames have four
    /// bytes or more.
    #[inline]
    pub fn finish(&mut self, out: &mut Vec<u8>) {
        let end = out.len().max(self.number_at + SAMPLE_AT + SAMPLE - TAG) + TAG;
        out.resize(end, 0);
        self.end = end;
        if self.long
            && let Some(length) = self.number_at.checked_sub(2).and_then(|at| out.get_mut(at..))
        {
            varint::put_u14(length, (end - self.number_at) as u16);
        }
    }

    /// Returns the number of bytes of the finished packet.
    #[inline]
    pub fn size(&self) -> usize {
        self.end - self.start
    }
}
