use rustls::crypto::aws_lc_rs::cipher_suite::TLS13_CHACHA20_POLY1305_SHA256;
use rustls::crypto::cipher::{AeadKey, Iv};
use rustls::quic::DirectionalKeys;

use super::samples::*;
use super::*;
use crate::packet::build::{Head, TAG, push_short};
use crate::packet::header::{LongKind, Packet};
use crate::packet::number::expand;

fn bytes(digits: &str) -> Vec<u8> {
    let digit = |byte: &u8| char::from(*byte).to_digit(16).expect("a hexadecimal digit") as u8;
    digits.as_bytes().as_chunks::<2>().0.iter().map(|[high, low]| digit(high) << 4 | digit(low)).collect()
}

fn client_id() -> ConnectionId {
    ConnectionId::new(&bytes("8394c8f03e515708")).expect("8 bytes")
}

/// Opens the packet at the beginning of a datagram with keys of the receiver. Returns packet number and payload.
fn open_first(keys: &DirectionalKeys, datagram: &mut [u8], id_len: usize) -> Option<(u64, Vec<u8>)> {
    let packet = Packet::parse(datagram, id_len)?;
    let bytes = &mut datagram[..packet.len];
    let head = unprotect(&*keys.header, bytes, packet.number_at)?;
    let number = expand(head.number, head.number_len, 0);
    let payload = open(&*keys.packet, bytes, packet.number_at, head.number_len, number)?;
    check_reserved(head.first).expect("reserved bits are 0");
    Some((number, bytes[payload].to_vec()))
}

/// RFC 9001 and RFC 9369, appendices A.2.
#[test]
fn initial_packets_of_the_client() {
    for (version, sample) in [(Version::V1, CLIENT_V1), (Version::V2, CLIENT_V2)] {
        let dst = client_id();
        let head = Head { kind: LongKind::Initial, version, dst: &dst, src: b"", token: b"" };
        let mut out = Vec::new();
        let mut place = head.push(&mut out, 2, 4);
        out.extend_from_slice(&bytes(CLIENT_PAYLOAD));
        out.resize(place.number_at + 4 + 1162, 0);
        place.finish(&mut out);
        let keys = initial_keys(version, &dst, Side::Client).expect("keys");
        seal(&*keys.local.header, &*keys.local.packet, &mut out, &place).expect("sealed");
        assert!(out == bytes(sample), "{version:?}");
        let keys = initial_keys(version, &dst, Side::Server).expect("keys");
        let (number, payload) = open_first(&keys.remote, &mut out, 8).expect("authentic");
        assert_eq!((number, payload.len()), (2, 1162));
        assert!(payload.starts_with(&bytes(CLIENT_PAYLOAD)));
    }
}

/// RFC 9001 and RFC 9369, appendices A.3.
#[test]
fn initial_packets_of_the_server() {
    for (version, sample) in [(Version::V1, SERVER_V1), (Version::V2, SERVER_V2)] {
        let head =
            Head { kind: LongKind::Initial, version, dst: b"", src: &bytes("f067a5502a4262b5"), token: b"" };
        let mut out = Vec::new();
        let mut place = head.push(&mut out, 1, 2);
        out.extend_from_slice(&bytes(SERVER_PAYLOAD));
        place.finish(&mut out);
        let keys = initial_keys(version, &client_id(), Side::Server).expect("keys");
        seal(&*keys.local.header, &*keys.local.packet, &mut out, &place).expect("sealed");
        assert!(out == bytes(sample), "{version:?}");
        let keys = initial_keys(version, &client_id(), Side::Client).expect("keys");
        assert_eq!(open_first(&keys.remote, &mut out, 8), Some((1, bytes(SERVER_PAYLOAD))));
    }
}

/// RFC 9001 and RFC 9369, appendices A.5, with the keys that the texts derive.
#[test]
fn short_packets_with_chacha20() {
    let samples = [
        (
            "c6d98ff3441c3fe1b2182094f69caa2ed4b716b65488960a7a984979fb23e1c8",
            "e0459b3474bdd0e44a41c144",
            "25a282b9e82f06f21f488917a4fc8f1b73573685608597d0efcb076b0ab7a7a4",
            "4cfe4189655e5cd55c41f69080575d7999c25a5bfb",
        ),
        (
            "3bfcddd72bcf02541d7fa0dd1f5f9eeea817e09a6963a0e6c7df0f9a1bab90f2",
            "a6b5bc6ab7dafce30ffff5dd",
            "d659760d2ba434a226fd37b35c69e2da8211d10c4f12538787d65645d5d1b8e2",
            "5558b1c60ae7b6b932bc27d786f4bc2bb20f2162ba",
        ),
    ];
    let suite = TLS13_CHACHA20_POLY1305_SHA256.tls13().and_then(|suite| suite.quic_suite()).expect("a suite");
    let key = |digits: &str| AeadKey::from(<[u8; 32]>::try_from(bytes(digits)).expect("32 bytes"));
    for (packet_key, iv, header_key, sample) in samples {
        let iv = Iv::new(bytes(iv).try_into().expect("12 bytes"));
        let packet_key = suite.quic.packet_key(key(packet_key), iv);
        let header_key = suite.quic.header_protection_key(key(header_key));
        let mut out = Vec::new();
        let mut place = push_short(&mut out, b"", false, false, 654_360_564, 3);
        out.push(1);
        place.finish(&mut out);
        seal(&*header_key, &*packet_key, &mut out, &place).expect("sealed");
        assert_eq!(out, bytes(sample));
        let head = unprotect(&*header_key, &mut out, 1).expect("long enough");
        assert_eq!(head, Unprotected { first: 0x42, number_len: 3, number: 0xbff4 });
        assert_eq!(open(&*packet_key, &mut out, 1, 3, 654_360_564), Some(4..5));
    }
}

/// Packets behind each other in one buffer, as segments of a batch are.
#[test]
fn packets_of_a_buffer_are_sealed_together() {
    let sealer = initial_keys(Version::V1, &client_id(), Side::Server).expect("keys").local;
    let opener = initial_keys(Version::V1, &client_id(), Side::Client).expect("keys").remote;
    let mut out = b"other bytes".to_vec();
    let before = out.len();
    let mut places = Vec::new();
    for number in 0..10_u64 {
        let mut place = push_short(&mut out, b"12345678", false, true, number, 1 + number as usize % 4);
        out.extend(std::iter::repeat_n(1, number as usize * 100));
        place.finish(&mut out);
        places.push(place);
    }
    let mut one_by_one = out.clone();
    seal_all(&*sealer.header, &*sealer.packet, &mut out, &places).expect("sealed");
    for place in &places {
        seal(&*sealer.header, &*sealer.packet, &mut one_by_one, place).expect("sealed");
    }
    assert!(out == one_by_one && out.starts_with(b"other bytes"));
    let mut rest = &mut out[before..];
    for (number, place) in places.iter().enumerate() {
        let (packet, behind) = rest.split_at_mut(place.size());
        let (found, payload) = open_first(&opener, packet, 8).expect("authentic");
        let padding = if number == 0 { 3 } else { 0 };
        assert_eq!((found, payload.len()), (number as u64, number * 100 + padding));
        rest = behind;
    }
    assert!(rest.is_empty());
}

#[test]
fn a_place_outside_of_the_buffer_is_an_error() {
    let keys = initial_keys(Version::V1, &client_id(), Side::Client).expect("keys").local;
    let mut out = Vec::new();
    let unfinished = push_short(&mut out, b"", false, false, 1, 1);
    let mut place = unfinished;
    place.finish(&mut out);
    let mut short = out.clone();
    short.pop();
    for (buffer, place) in [(&mut short, place), (&mut out, unfinished)] {
        let error = seal(&*keys.header, &*keys.packet, buffer, &place).expect_err("an error");
        assert_eq!(error.code, Code::INTERNAL_ERROR);
    }
}

#[test]
fn packets_that_are_too_short_are_dropped() {
    let keys = initial_keys(Version::V1, &client_id(), Side::Client).expect("keys").local;
    for len in 0..40 {
        let mut packet = vec![0x40; len];
        let head = unprotect(&*keys.header, &mut packet, 9);
        assert_eq!(head.is_some(), len >= 9 + 4 + 16);
        assert_eq!(open(&*keys.packet, &mut packet, 9, 4, 1), None);
    }
}

#[test]
fn a_changed_packet_does_not_open() {
    let sealer = initial_keys(Version::V2, &client_id(), Side::Client).expect("keys").local;
    let opener = initial_keys(Version::V2, &client_id(), Side::Server).expect("keys").remote;
    let mut out = Vec::new();
    let mut place = push_short(&mut out, b"id", false, false, 5, 2);
    out.extend_from_slice(b"payload");
    place.finish(&mut out);
    seal(&*sealer.header, &*sealer.packet, &mut out, &place).expect("sealed");
    for at in 0..out.len() {
        let mut wrong = out.clone();
        wrong[at] ^= 0x20;
        assert_eq!(open_first(&opener, &mut wrong, 2), None, "{at}");
    }
    assert_eq!(out.len(), 1 + 2 + 2 + 7 + TAG);
    assert_eq!(open_first(&opener, &mut out, 2), Some((5, b"payload".to_vec())));
}

#[test]
fn reserved_bits_are_checked() {
    for first in 0..=255_u8 {
        let mask = if first & 0x80 == 0 { 0x18 } else { 0x0c };
        let code = check_reserved(first).err().map(|error| error.code);
        assert_eq!(code, (first & mask != 0).then_some(Code::PROTOCOL_VIOLATION));
    }
}
