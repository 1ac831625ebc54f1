//! Headers of packets (RFC 8999, section 5; RFC 9000, section 17; RFC 9369, section 3.2).

use std::ops::Range;

use super::Kind;
use crate::id::ConnectionId;
use crate::varint::Reader;
use crate::version::Version;

/// Bit of the first byte: the header is long.
pub const LONG: u8 = 0x80;
/// Bit of the first byte that is set in all packets of versions 1 and 2, unless the peer allowed others (RFC 9287).
pub const FIXED: u8 = 0x40;
/// Bit of the first byte of a short header: the spin bit.
pub const SPIN: u8 = 0x20;
/// Bit of the first byte of a short header: the key phase. It is under header protection.
pub const KEY_PHASE: u8 = 0x04;
/// Bits of the first byte of a long header that are 0, under header protection.
pub const RESERVED_LONG: u8 = 0x0c;
/// Bits of the first byte of a short header that are 0, under header protection.
pub const RESERVED_SHORT: u8 = 0x18;
/// Bits of the first byte with the length of the packet number less one, under header protection.
pub const NUMBER_LEN: u8 = 0x03;
/// Bytes of the integrity tag at the end of a Retry packet.
pub const RETRY_TAG: usize = 16;

/// Type of a packet with a long header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LongKind {
    /// Initial.
    Initial,
    /// 0-RTT.
    ZeroRtt,
    /// Handshake.
    Handshake,
    /// Retry, which has no packet number and no protection.
    Retry,
}

impl LongKind {
    /// Returns the kind whose two bits of the first byte a version has.
    const fn from_bits(version: Version, bits: u8) -> LongKind {
        // Version 2 counts one further (RFC 9369, section 3.2).
        let bits = match version {
            Version::V1 => bits,
            Version::V2 => bits.wrapping_sub(1),
        };
        match bits & 3 {
            0 => LongKind::Initial,
            1 => LongKind::ZeroRtt,
            2 => LongKind::Handshake,
            _ => LongKind::Retry,
        }
    }

    /// Returns the first byte of the header, in which bits under header protection are 0.
    pub const fn first_byte(self, version: Version) -> u8 {
        let bits = match self {
            LongKind::Initial => 0,
            LongKind::ZeroRtt => 1,
            LongKind::Handshake => 2,
            LongKind::Retry => 3,
        };
        let bits = match version {
            Version::V1 => bits,
            Version::V2 => bits + 1,
        };
        LONG | FIXED | (bits & 3) << 4
    }

    /// Returns the encryption level. Retry packets have none.
    pub const fn level(self) -> Option<Kind> {
        match self {
            LongKind::Initial => Some(Kind::Initial),
            LongKind::ZeroRtt => Some(Kind::ZeroRtt),
            LongKind::Handshake => Some(Kind::Handshake),
            LongKind::Retry => None,
        }
    }
}

/// Long header of version 1 or 2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Long {
    /// Type.
    pub kind: LongKind,
    /// Version.
    pub version: Version,
    /// Destination connection identifier.
    pub dst: ConnectionId,
    /// Source connection identifier.
    pub src: ConnectionId,
    /// Where the token of an Initial or Retry packet lies. It is empty if there is none.
    pub token: Range<usize>,
}

/// Header of a packet. Ranges count from the beginning of the packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Header {
    /// Short header: a 1-RTT packet.
    Short {
        /// Destination connection identifier.
        dst: ConnectionId,
    },
    /// Long header of a version that is spoken here.
    Long(Long),
    /// Version Negotiation packet.
    Negotiation {
        /// Where the destination connection identifier of up to 255 bytes lies.
        dst: Range<usize>,
        /// Where the source connection identifier of up to 255 bytes lies.
        src: Range<usize>,
        /// Where the versions lie.
        versions: Range<usize>,
    },
    /// Packet of another version, of which only the invariants are known (RFC 8999).
    Unknown {
        /// Version.
        version: u32,
        /// Where the destination connection identifier of up to 255 bytes lies.
        dst: Range<usize>,
        /// Where the source connection identifier of up to 255 bytes lies.
        src: Range<usize>,
    },
}

/// Packet at the beginning of some bytes of a datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packet {
    /// Header.
    pub header: Header,
    /// Bytes of the packet. Another one may follow.
    pub len: usize,
    /// Where the packet number begins; 0 if there is none.
    pub number_at: usize,
    /// Value of the fixed bit. A packet of versions 1 and 2 without it is only valid if the peer was told that
    /// (RFC 9287, section 3).
    pub fixed: bool,
}

impl Packet {
    /// Parses the header of the packet at the beginning of a datagram, or of what its packets before left. Identifiers that are
    /// given to peers have `id_len` bytes, at most 20.
    ///
    /// Returns `None` if it is malformed: then the rest of the datagram is dropped.
    #[inline]
    pub fn parse(bytes: &[u8], id_len: usize) -> Option<Packet> {
        let mut reader = Reader::new(bytes);
        let first = reader.u8()?;
        if first & LONG == 0 {
            let dst = ConnectionId::new(reader.bytes(id_len)?)?;
            return Some(Packet {
                header: Header::Short { dst },
                len: bytes.len(),
                number_at: reader.position(),
                fixed: first & FIXED != 0,
            });
        }
        Packet::parse_long(first, reader, bytes.len())
    }

    fn parse_long(first: u8, mut reader: Reader<'_>, len: usize) -> Option<Packet> {
        let number = reader.u32()?;
        let dst = id_range(&mut reader)?;
        let src = id_range(&mut reader)?;
        let fixed = first & FIXED != 0;
        let whole = |header| Some(Packet { header, len, number_at: 0, fixed });
        if number == 0 {
            return whole(Header::Negotiation { dst, src, versions: reader.position()..len });
        }
        match Version::from_number(number) {
            Some(version) => Packet::parse_known(version, first, reader, [dst, src]),
            None => whole(Header::Unknown { version: number, dst, src }),
        }
    }

    /// Parses what follows the identifiers in version 1 or 2.
    fn parse_known(
        version: Version,
        first: u8,
        mut reader: Reader<'_>,
        ids: [Range<usize>; 2],
    ) -> Option<Packet> {
        let bytes = reader.all();
        let [dst, src] = ids;
        let mut long = Long {
            kind: LongKind::from_bits(version, first >> 4),
            version,
            dst: ConnectionId::new(bytes.get(dst)?)?,
            src: ConnectionId::new(bytes.get(src)?)?,
            token: 0..0,
        };
        let fixed = first & FIXED != 0;
        if long.kind == LongKind::Retry {
            long.token = reader.position()..bytes.len().checked_sub(RETRY_TAG)?;
            let complete = long.token.start <= long.token.end;
            let header = Header::Long(long);
            return complete.then_some(Packet { header, len: bytes.len(), number_at: 0, fixed });
        }
        if long.kind == LongKind::Initial {
            let token = reader.sized()?;
            long.token = reader.position() - token.len()..reader.position();
        }
        let rest = reader.sized()?.len();
        let len = reader.position();
        Some(Packet { header: Header::Long(long), len, number_at: len - rest, fixed })
    }

    /// Returns the encryption level. Packets without a number have none.
    #[inline]
    pub fn level(&self) -> Option<Kind> {
        match &self.header {
            Header::Short { .. } => Some(Kind::OneRtt),
            Header::Long(long) => long.kind.level(),
            Header::Negotiation { .. } | Header::Unknown { .. } => None,
        }
    }
}

/// Reads a connection identifier of any version behind its length.
fn id_range(reader: &mut Reader<'_>) -> Option<Range<usize>> {
    let len = usize::from(reader.u8()?);
    let start = reader.position();
    reader.bytes(len)?;
    Some(start..start + len)
}

#[cfg(test)]
mod tests;
