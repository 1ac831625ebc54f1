//! Integers of variable length (RFC 9000, section 16), and a reader of bytes.

/// Largest integer: two bits of eight bytes hold the length.
pub const MAX: u64 = (1 << 62) - 1;

/// Returns the number of bytes of an integer's shortest form: 1, 2, 4 or 8.
#[inline]
pub const fn len(v: u64) -> usize {
    if v < 1 << 6 {
        1
    } else if v < 1 << 14 {
        2
    } else if v < 1 << 30 {
        4
    } else {
        8
    }
}

/// Appends an integer in its shortest form. Integers above [`MAX`] become [`MAX`].
#[inline]
pub fn push(out: &mut Vec<u8>, v: u64) {
    if v < 1 << 6 {
        out.push(v as u8);
    } else if v < 1 << 14 {
        out.extend_from_slice(&(v as u16 | 0x4000).to_be_bytes());
    } else if v < 1 << 30 {
        out.extend_from_slice(&(v as u32 | 0x8000_0000).to_be_bytes());
    } else {
        out.extend_from_slice(&(v.min(MAX) | 0b11 << 62).to_be_bytes());
    }
}

/// Appends an integer in a form of 1, 2, 4 or 8 bytes, for instance when a length becomes known only later.
/// The form grows to [`len`] if the integer does not fit.
pub fn push_in(out: &mut Vec<u8>, v: u64, bytes: usize) {
    if bytes <= len(v) {
        return push(out, v);
    }
    match bytes {
        2 => out.extend_from_slice(&(v as u16 | 0x4000).to_be_bytes()),
        3 | 4 => out.extend_from_slice(&(v as u32 | 0x8000_0000).to_be_bytes()),
        _ => out.extend_from_slice(&(v | 0b11 << 62).to_be_bytes()),
    }
}

/// Writes an integer below 2^14 in two bytes over the beginning of a slice. A shorter slice stays as it is.
#[inline]
pub fn put_u14(at: &mut [u8], v: u16) {
    if let Some(place) = at.first_chunk_mut() {
        *place = (v & 0x3fff | 0x4000).to_be_bytes();
    }
}

/// Position in bytes that came from the peer. Methods return `None` and do not move if bytes are missing.
#[derive(Clone, Copy, Debug)]
pub struct Reader<'b> {
    all: &'b [u8],
    rest: &'b [u8],
}

impl<'b> Reader<'b> {
    /// Creates a reader at the beginning of bytes.
    #[inline]
    pub const fn new(bytes: &'b [u8]) -> Reader<'b> {
        Reader { all: bytes, rest: bytes }
    }

    /// Returns `true` at the end of the bytes.
    #[inline]
    pub const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Returns the number of bytes before the position.
    #[inline]
    pub const fn position(&self) -> usize {
        self.all.len() - self.rest.len()
    }

    /// Returns the bytes behind the position and does not move.
    #[inline]
    pub const fn peek(&self) -> &'b [u8] {
        self.rest
    }

    /// Returns all bytes behind the position and moves to the end.
    #[inline]
    pub fn rest(&mut self) -> &'b [u8] {
        std::mem::take(&mut self.rest)
    }

    /// Returns all bytes, also those before the position.
    #[inline]
    pub const fn all(&self) -> &'b [u8] {
        self.all
    }

    /// Reads one byte.
    #[inline]
    pub fn u8(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    /// Reads two bytes in network order.
    #[inline]
    pub fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    /// Reads four bytes in network order.
    #[inline]
    pub fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    /// Reads as many bytes as the array has.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (chunk, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(*chunk)
    }

    /// Reads a number of bytes.
    #[inline]
    pub fn bytes(&mut self, n: usize) -> Option<&'b [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(n)?;
        self.rest = rest;
        Some(bytes)
    }

    /// Reads an integer of variable length.
    #[inline]
    pub fn varint(&mut self) -> Option<u64> {
        let first = *self.rest.first()?;
        match first >> 6 {
            0 => self.u8().map(u64::from),
            1 => self.array().map(|b| u64::from(u16::from_be_bytes(b) & 0x3fff)),
            2 => self.array().map(|b| u64::from(u32::from_be_bytes(b) & 0x3fff_ffff)),
            _ => self.array().map(|b| u64::from_be_bytes(b) & MAX),
        }
    }

    /// Reads a length as an integer of variable length, and as many bytes.
    #[inline]
    pub fn sized(&mut self) -> Option<&'b [u8]> {
        let mut ahead = *self;
        let n = usize::try_from(ahead.varint()?).ok()?;
        let bytes = ahead.bytes(n)?;
        *self = ahead;
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9000, appendix A.1.
    #[test]
    fn samples() {
        let cases: [(&[u8], u64); 5] = [
            (&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c], 151_288_809_941_952_652),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15293),
            (&[0x25], 37),
            (&[0x40, 0x25], 37),
        ];
        for (bytes, value) in cases {
            let mut reader = Reader::new(bytes);
            assert_eq!((reader.varint(), reader.position()), (Some(value), bytes.len()));
            for short in 0..bytes.len() {
                let mut reader = Reader::new(&bytes[..short]);
                assert_eq!((reader.varint(), reader.position()), (None, 0));
            }
            let mut out = Vec::new();
            push_in(&mut out, value, bytes.len());
            assert_eq!(out, bytes);
        }
    }

    #[test]
    fn the_shortest_form_is_written() {
        for (value, bytes) in [
            (0, 1),
            (63, 1),
            (64, 2),
            ((1 << 14) - 1, 2),
            (1 << 14, 4),
            ((1 << 30) - 1, 4),
            (1 << 30, 8),
            (MAX, 8),
        ] {
            let mut out = Vec::new();
            push(&mut out, value);
            assert_eq!((out.len(), len(value)), (bytes, bytes));
            assert_eq!(Reader::new(&out).varint(), Some(value));
            for wider in [1, 2, 4, 8] {
                out.clear();
                push_in(&mut out, value, wider);
                assert_eq!((out.len(), Reader::new(&out).varint()), (bytes.max(wider), Some(value)));
            }
        }
        let mut out = Vec::new();
        push(&mut out, u64::MAX);
        assert_eq!(Reader::new(&out).varint(), Some(MAX));
    }

    #[test]
    fn a_length_is_filled_in_later() {
        let mut out = vec![1, 0, 0, 2];
        put_u14(&mut out[1..], 0x1234);
        assert_eq!(out, [1, 0x52, 0x34, 2]);
        put_u14(&mut out[3..], 7);
        assert_eq!(out[3], 2, "there is no room");
    }

    #[test]
    fn nothing_is_read_behind_the_end() {
        let mut reader = Reader::new(&[1, 2, 3, 4, 5, 6, 7, 2, 9, 9, 5, 1]);
        assert_eq!((reader.u8(), reader.u16(), reader.u32()), (Some(1), Some(0x203), Some(0x0405_0607)));
        assert_eq!((reader.sized(), reader.position()), (Some(&[9, 9][..]), 10));
        assert_eq!((reader.sized(), reader.u32(), reader.bytes(3)), (None, None, None));
        assert_eq!((reader.peek(), reader.rest(), reader.is_empty()), (&[5, 1][..], &[5, 1][..], true));
        assert_eq!((reader.u8(), reader.varint(), reader.bytes(0)), (None, None, Some(&[][..])));
    }
}
