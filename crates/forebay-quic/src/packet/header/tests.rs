use super::*;
use crate::packet::build::{Head, TAG, push_short};

const KINDS: [LongKind; 3] = [LongKind::Initial, LongKind::ZeroRtt, LongKind::Handshake];
const VERSIONS: [Version; 2] = [Version::V1, Version::V2];

fn id(bytes: &[u8]) -> ConnectionId {
    ConnectionId::new(bytes).expect("at most 20 bytes")
}

fn long(kind: LongKind, version: Version) -> (Vec<u8>, Packet) {
    let mut out = Vec::new();
    let token: &[u8] = if kind == LongKind::Initial { b"token" } else { b"" };
    let head = Head { kind, version, dst: b"destin", src: b"src", token };
    let mut place = head.push(&mut out, 0x1234, 2);
    assert_eq!(out.len(), head.size(2));
    out.extend_from_slice(b"payload");
    place.finish(&mut out);
    assert_eq!((place.start, place.end, place.size()), (0, out.len(), out.len()));
    let token_at = 5 + 1 + 6 + 1 + 3 + 1;
    let token = if token.is_empty() { 0..0 } else { token_at..token_at + 5 };
    let packet = Packet {
        header: Header::Long(Long { kind, version, dst: id(b"destin"), src: id(b"src"), token }),
        len: out.len(),
        number_at: place.number_at,
        fixed: true,
    };
    (out, packet)
}

#[test]
fn long_headers_come_back() {
    for version in VERSIONS {
        for kind in KINDS {
            let (bytes, packet) = long(kind, version);
            assert_eq!(Packet::parse(&bytes, 8), Some(packet.clone()));
            assert_eq!(packet.level(), kind.level());
            assert_eq!(&bytes[packet.number_at..packet.number_at + 2], [0x12, 0x34]);
            assert_eq!(bytes.len() - packet.number_at, 2 + 7 + TAG);
        }
    }
}

/// RFC 9000, table 5; RFC 9369, section 3.2.
#[test]
fn types_differ_between_versions() {
    let first = |kind: LongKind| VERSIONS.map(|version| kind.first_byte(version) >> 4 & 3);
    assert_eq!(first(LongKind::Initial), [0, 1]);
    assert_eq!(first(LongKind::ZeroRtt), [1, 2]);
    assert_eq!(first(LongKind::Handshake), [2, 3]);
    assert_eq!(first(LongKind::Retry), [3, 0]);
    for version in VERSIONS {
        for kind in [LongKind::Initial, LongKind::ZeroRtt, LongKind::Handshake, LongKind::Retry] {
            assert_eq!(LongKind::from_bits(version, kind.first_byte(version) >> 4), kind);
        }
    }
}

#[test]
fn cut_off_packets_are_refused() {
    for kind in KINDS {
        let (bytes, _) = long(kind, Version::V1);
        for len in 0..bytes.len() {
            assert_eq!(Packet::parse(&bytes[..len], 8), None, "{kind:?} {len}");
        }
    }
    let mut out = Vec::new();
    push_short(&mut out, b"12345678", false, false, 1, 1);
    for len in 0..9 {
        assert_eq!(Packet::parse(&out[..len], 8), None);
    }
    assert!(Packet::parse(&out[..9], 8).is_some(), "protection finds out that there is no packet number");
}

#[test]
fn coalesced_packets_follow_each_other() {
    let mut datagram = Vec::new();
    for kind in [LongKind::Initial, LongKind::Handshake] {
        datagram.extend_from_slice(&long(kind, Version::V2).0);
    }
    let mut place = push_short(&mut datagram, b"12345678", true, true, 7, 1);
    place.finish(&mut datagram);
    let mut rest = &datagram[..];
    let mut levels = Vec::new();
    while let Some(packet) = Packet::parse(rest, 8) {
        levels.push(packet.level());
        rest = &rest[packet.len..];
    }
    assert_eq!(levels, [Some(Kind::Initial), Some(Kind::Handshake), Some(Kind::OneRtt)]);
    assert!(rest.is_empty());
}

#[test]
fn short_headers_come_back() {
    for len in [0, 8, 20] {
        let dst = &[9; 20][..len];
        let mut out = Vec::new();
        let place = push_short(&mut out, dst, true, false, 0x0102_0304, 4);
        assert_eq!((out[0], out.len()), (0x63, 1 + len + 4));
        let packet = Packet::parse(&out, len).expect("a short header");
        assert_eq!(packet.header, Header::Short { dst: id(dst) });
        assert_eq!((packet.number_at, packet.len, packet.fixed), (place.number_at, out.len(), true));
    }
    let mut out = Vec::new();
    push_short(&mut out, b"", false, true, 1, 1);
    assert_eq!(out, [0x44, 1]);
}

#[test]
fn short_packets_are_padded_for_the_sample() {
    for number_len in 1..=4 {
        let mut out = vec![0xff; 3];
        let mut place = push_short(&mut out, b"id", false, false, 1, number_len);
        out.push(1);
        place.finish(&mut out);
        assert_eq!((place.start, place.end), (3, out.len()));
        assert_eq!(out.len(), place.number_at + (number_len + 1).max(4) + TAG);
    }
}

#[test]
fn the_fixed_bit_is_told() {
    let mut bytes = long(LongKind::Handshake, Version::V1).0;
    bytes[0] &= !FIXED;
    assert!(Packet::parse(&bytes, 8).is_some_and(|packet| !packet.fixed));
    assert!(Packet::parse(&[0; 9], 8).is_some_and(|packet| !packet.fixed));
}

#[test]
fn identifiers_of_known_versions_have_at_most_20_bytes() {
    for (n, valid) in [(20, true), (21, false), (255, false)] {
        for version in [1, 0xface_b00c_u32] {
            let mut bytes = vec![0xc0];
            bytes.extend_from_slice(&version.to_be_bytes());
            bytes.push(n);
            bytes.extend_from_slice(&vec![7; n.into()]);
            bytes.extend_from_slice(&[1, 2, 0, 4, 0, 0, 0, 0]);
            let packet = Packet::parse(&bytes, 8);
            if version == 1 {
                assert_eq!(packet.is_some(), valid, "{n}");
            } else {
                let end = 6 + usize::from(n);
                let unknown = Header::Unknown { version, dst: 6..end, src: end + 1..end + 2 };
                assert_eq!(packet.map(|packet| (packet.header, packet.len)), Some((unknown, bytes.len())));
            }
        }
    }
}

#[test]
fn retry_packets_have_a_token_before_the_tag() {
    for version in VERSIONS {
        let mut bytes = vec![LongKind::Retry.first_byte(version) | 0xf];
        bytes.extend_from_slice(&version.number().to_be_bytes());
        bytes.extend_from_slice(&[1, 8, 1, 9]);
        let start = bytes.len();
        bytes.extend_from_slice(&[5; RETRY_TAG + 3]);
        let packet = Packet::parse(&bytes, 8).expect("a Retry packet");
        let token = start..start + 3;
        let header = Long { kind: LongKind::Retry, version, dst: id(&[8]), src: id(&[9]), token };
        assert_eq!((packet.level(), packet.len), (None, bytes.len()));
        assert_eq!(packet.header, Header::Long(header));
        assert_eq!(Packet::parse(&bytes[..start + RETRY_TAG - 1], 8), None);
    }
}

#[test]
fn version_negotiation_is_recognised() {
    let bytes = [0x80, 0, 0, 0, 0, 1, 8, 0, 0, 0, 0, 1];
    let packet = Packet::parse(&bytes, 8).expect("a Version Negotiation packet");
    assert_eq!(packet.header, Header::Negotiation { dst: 6..7, src: 8..8, versions: 8..12 });
}

/// Lengths that reach behind the datagram.
#[test]
fn lies_about_lengths_are_refused() {
    let (bytes, packet) = long(LongKind::Initial, Version::V1);
    let token_len = 5 + 1 + 6 + 1 + 3;
    for (at, value) in [(token_len, 0x3f), (packet.number_at - 2, 0x7f), (5, 200), (12, 200)] {
        let mut wrong = bytes.clone();
        wrong[at] = value;
        assert_eq!(Packet::parse(&wrong, 8), None, "{at}");
    }
}
