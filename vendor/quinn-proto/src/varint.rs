use std::{convert::TryInto, fmt};

use bytes::{Buf, BufMut};
use thiserror::Error;

use crate::coding::{self, Codec, UnexpectedEnd};

/// An integer less than 2^62
///
/// Values of this type are suitable for encoding as QUIC variable-length integer.
// It would be neat if we could express to Rust that the top two bits are available for use as enum
// discriminants
#[derive(Default, Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct VarInt(pub(crate) u64);

impl VarInt {
    /// The largest representable value
    pub const MAX: Self = Self((1 << 62) - 1);
    /// The largest encoded value length
    pub const MAX_SIZE: usize = 8;

    /// Construct a `VarInt` infallibly
    pub const fn from_u32(x: u32) -> Self {
        Self(x as u64)
    }

    /// Succeeds iff `x` < 2^62
    pub fn from_u64(x: u64) -> Result<Self, VarIntBoundsExceeded> {
        if x < 2u64.pow(62) {
            Ok(Self(x))
        } else {
            Err(VarIntBoundsExceeded)
        }
    }

    /// Create a VarInt without ensuring it's in range
    ///
    /// `x` must be less than 2^62: other values cannot be encoded.
    pub(crate) const fn from_u64_unchecked(x: u64) -> Self {
        Self(x)
    }

    /// Extract the integer value
    pub const fn into_inner(self) -> u64 {
        self.0
    }

    /// Compute the number of bytes needed to encode this value
    pub(crate) const fn size(self) -> usize {
        let x = self.0;
        if x < 2u64.pow(6) {
            1
        } else if x < 2u64.pow(14) {
            2
        } else if x < 2u64.pow(30) {
            4
        } else if x < 2u64.pow(62) {
            8
        } else {
            panic!("malformed VarInt");
        }
    }
}

impl From<VarInt> for u64 {
    fn from(x: VarInt) -> Self {
        x.0
    }
}

impl From<u8> for VarInt {
    fn from(x: u8) -> Self {
        Self(x.into())
    }
}

impl From<u16> for VarInt {
    fn from(x: u16) -> Self {
        Self(x.into())
    }
}

impl From<u32> for VarInt {
    fn from(x: u32) -> Self {
        Self(x.into())
    }
}

impl std::convert::TryFrom<u64> for VarInt {
    type Error = VarIntBoundsExceeded;
    /// Succeeds iff `x` < 2^62
    fn try_from(x: u64) -> Result<Self, VarIntBoundsExceeded> {
        Self::from_u64(x)
    }
}

impl std::convert::TryFrom<u128> for VarInt {
    type Error = VarIntBoundsExceeded;
    /// Succeeds iff `x` < 2^62
    fn try_from(x: u128) -> Result<Self, VarIntBoundsExceeded> {
        Self::from_u64(x.try_into().map_err(|_| VarIntBoundsExceeded)?)
    }
}

impl std::convert::TryFrom<usize> for VarInt {
    type Error = VarIntBoundsExceeded;
    /// Succeeds iff `x` < 2^62
    fn try_from(x: usize) -> Result<Self, VarIntBoundsExceeded> {
        Self::try_from(x as u64)
    }
}

impl fmt::Debug for VarInt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for VarInt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Error returned when constructing a `VarInt` from a value >= 2^62
#[derive(Debug, Copy, Clone, Eq, PartialEq, Error)]
#[error("value too large for varint encoding")]
pub struct VarIntBoundsExceeded;

impl Codec for VarInt {
    #[inline]
    fn decode<B: Buf>(r: &mut B) -> coding::Result<Self> {
        let (x, size) = match Self::read(r.chunk()) {
            Some(x) => x,
            None => return Self::decode_scattered(r),
        };
        r.advance(size);
        Ok(x)
    }

    // There is little left of it where the number is known, e.g. the type of a frame.
    #[inline(always)]
    fn encode<B: BufMut>(&self, w: &mut B) {
        let x = self.0;
        if x < 2u64.pow(6) {
            w.put_slice(&[x as u8]);
        } else if x < 2u64.pow(14) {
            w.put_slice(&((0b01 << 14) | x as u16).to_be_bytes());
        } else if x < 2u64.pow(30) {
            w.put_slice(&((0b10 << 30) | x as u32).to_be_bytes());
        } else if x < 2u64.pow(62) {
            w.put_slice(&((0b11 << 62) | x).to_be_bytes());
        } else {
            unreachable!("malformed VarInt")
        }
    }
}

impl VarInt {
    /// Read an integer from the start of `bytes`, and return it with its size in bytes
    #[inline]
    fn read(bytes: &[u8]) -> Option<(Self, usize)> {
        let first = *bytes.first()?;
        let (x, size) = match first >> 6 {
            0b00 => (u64::from(first), 1),
            0b01 => (
                u64::from(u16::from_be_bytes(*bytes.first_chunk()?) & (u16::MAX >> 2)),
                2,
            ),
            0b10 => (
                u64::from(u32::from_be_bytes(*bytes.first_chunk()?) & (u32::MAX >> 2)),
                4,
            ),
            _ => (
                u64::from_be_bytes(*bytes.first_chunk()?) & (u64::MAX >> 2),
                8,
            ),
        };
        Some((Self(x), size))
    }

    /// Decode an integer that is not in one piece, or incomplete
    #[cold]
    fn decode_scattered<B: Buf>(r: &mut B) -> coding::Result<Self> {
        if !r.has_remaining() {
            return Err(UnexpectedEnd);
        }
        let mut bytes = [0; Self::MAX_SIZE];
        bytes[0] = r.get_u8();
        let size = 1 << (bytes[0] >> 6);
        if r.remaining() < size - 1 {
            return Err(UnexpectedEnd);
        }
        r.copy_to_slice(&mut bytes[1..size]);
        Self::read(&bytes).map(|(x, _)| x).ok_or(UnexpectedEnd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn coding() {
        for (x, size) in [
            (0, 1),
            (63, 1),
            (64, 2),
            (16_383, 2),
            (16_384, 4),
            ((1 << 30) - 1, 4),
            (1 << 30, 8),
            (VarInt::MAX.0, 8),
        ] {
            let x = VarInt(x);
            let mut bytes = Vec::new();
            x.encode(&mut bytes);
            assert_eq!(bytes.len(), size);
            assert_eq!(x.size(), size);
            bytes.push(0xff);

            let mut r = &bytes[..];
            assert_eq!(VarInt::decode(&mut r), Ok(x));
            assert_eq!(r, [0xff]);

            // In two pieces
            for split in 1..size {
                let mut r = bytes[..split].chain(&bytes[split..]);
                assert_eq!(VarInt::decode(&mut r), Ok(x));
                assert_eq!(r.remaining(), 1);
            }

            // Cut off
            for end in 0..size {
                assert_eq!(VarInt::decode(&mut &bytes[..end]), Err(UnexpectedEnd));
            }
        }
    }

    #[test]
    fn examples_of_rfc_9000() {
        // Appendix A.1
        for (mut bytes, x) in [
            (
                &hex_literal::hex!("c2197c5eff14e88c")[..],
                151_288_809_941_952_652,
            ),
            (&hex_literal::hex!("9d7f3e7d"), 494_878_333),
            (&hex_literal::hex!("7bbd"), 15_293),
            (&hex_literal::hex!("25"), 37),
            (&hex_literal::hex!("4025"), 37),
        ] {
            assert_eq!(VarInt::decode(&mut bytes), Ok(VarInt(x)));
            assert!(bytes.is_empty());
        }
    }
}
