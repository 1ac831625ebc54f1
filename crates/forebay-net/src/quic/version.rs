//! Version 2 of QUIC (RFC 9369) on a state machine that knows version 1: the two differ in secrets, and in the types of long headers.
//!
//! quinn-proto sees version 1 only. Headers of version 2 are changed to those of version 1 in datagrams that arrive ([`to_v1`]), and back
//! where packets are sealed ([`header_on_the_wire`]), since the header is part of what is authenticated. So a connection can begin with
//! version 1 and go on with version 2 (RFC 9368).

use aws_lc_rs::hkdf::Prk;
use quinn_proto::ConnectionId;
use quinn_proto::crypto::{AeadKey, HandshakeTokenKey};
use std::cell::Cell;

/// Version 1 (RFC 9000).
pub(super) const V1: u32 = 1;
/// Version 2 (RFC 9369, section 3.1).
pub(super) const V2: u32 = 0x6b33_43cf;

/// Bits of the type in the first byte of a long header.
const TYPE: u8 = 0x30;
/// Distance of two types.
const STEP: u8 = 0x10;
/// Initial and Retry as version 1 has them.
const INITIAL: u8 = 0x00;
const RETRY: u8 = 0x30;

/// Transport parameter `version_information` (RFC 9368, section 3).
const VERSION_INFORMATION: u64 = 0x11;

/// Reads a variable-length integer (RFC 9000, section 16). Returns its value and what follows.
fn varint(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let first = *bytes.first()?;
    if first < 0x40 {
        return Some((u64::from(first), bytes.get(1..)?));
    }
    let length = 1usize << (first >> 6);
    let (head, tail) = bytes.split_at_checked(length)?;
    let value = head.iter().fold(0u64, |value, byte| value << 8 | u64::from(*byte));
    Some((value & (u64::MAX >> (66 - 8 * length)), tail))
}

/// Returns the type of version 2 instead of that of version 1 (RFC 9369, section 3.2).
fn type_of_v2(first: u8) -> u8 {
    first & !TYPE | first.wrapping_add(STEP) & TYPE
}

fn type_of_v1(first: u8) -> u8 {
    first & !TYPE | first.wrapping_sub(STEP) & TYPE
}

/// Returns `true` if a packet has a long header.
pub(super) fn is_long(packet: &[u8]) -> bool {
    packet.first().is_some_and(|first| first & 0x80 != 0)
}

thread_local! {
    static IS_V2: Cell<bool> = const { Cell::new(false) };
}

/// Returns `true` if the datagram that is handled has come in version 2. quinn-proto does not know.
pub(super) fn is_v2_arriving() -> bool {
    IS_V2.get()
}

/// Keys of address tokens, which are of one version (RFC 9369, section 5).
pub(super) struct TokenKeys {
    pub v1: Prk,
    pub v2: Prk,
}

impl HandshakeTokenKey for TokenKeys {
    fn aead_from_hkdf(&self, random_bytes: &[u8]) -> Box<dyn AeadKey> {
        let key = if is_v2_arriving() { &self.v2 } else { &self.v1 };
        key.aead_from_hkdf(random_bytes)
    }
}

/// Returns the version of a packet with a long header.
pub(super) fn of_long_header(packet: &[u8]) -> Option<u32> {
    let (first, rest) = packet.split_first()?;
    let version = rest.first_chunk().filter(|_| first & 0x80 != 0)?;
    Some(u32::from_be_bytes(*version))
}

/// Changes the headers of all packets of version 2 in a datagram that arrives to those of version 1. What cannot be parsed stays as it is.
pub(super) fn to_v1(datagram: &mut [u8]) {
    let mut at = 0;
    IS_V2.set(of_long_header(datagram) == Some(V2));
    while let Some(packet) = datagram.get_mut(at..)
        && of_long_header(packet) == Some(V2)
    {
        let Some(length) = change_packet(packet) else { return };
        at += length;
    }
}

/// Changes the header of a packet. Returns its length.
fn change_packet(packet: &mut [u8]) -> Option<usize> {
    let first = packet.first_mut()?;
    *first = type_of_v1(*first);
    let kind = *first & TYPE;
    packet.get_mut(1..5)?.copy_from_slice(&V1.to_be_bytes());
    let all = packet.len();
    let mut rest = packet.get(5..)?;
    for _ in 0..2 {
        let (length, tail) = rest.split_first()?;
        rest = tail.get(usize::from(*length)..)?;
    }
    if kind == RETRY {
        return Some(all);
    }
    if kind == INITIAL {
        let (token, tail) = varint(rest)?;
        rest = tail.get(usize::try_from(token).ok()?..)?;
    }
    let (length, tail) = varint(rest)?;
    (all - tail.len()).checked_add(usize::try_from(length).ok()?)
}

/// Returns the integrity tag of a Retry packet of version 2 whose header is that of version 1 (RFC 9001, section 5.8; RFC 9369, section
/// 3.3.3).
pub(super) fn retry_tag(orig_dst_cid: &ConnectionId, packet: &[u8]) -> Option<[u8; 16]> {
    use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
    const KEY: [u8; 16] = 0x8fb4_b01b_56ac_48e2_60fb_cbce_ad7c_cc92_u128.to_be_bytes();
    const NONCE: [u8; 12] = [0xd8, 0x69, 0x69, 0xbc, 0x2d, 0x7c, 0x6d, 0x99, 0x90, 0xef, 0xb0, 0x4a];
    let mut pseudo = Vec::with_capacity(packet.len() + orig_dst_cid.len() + 1);
    pseudo.push(u8::try_from(orig_dst_cid.len()).ok()?);
    pseudo.extend_from_slice(orig_dst_cid);
    let at = pseudo.len();
    pseudo.extend_from_slice(packet);
    header_on_the_wire(pseudo.get_mut(at..)?);
    let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &KEY).ok()?);
    let nonce = Nonce::assume_unique_for_key(NONCE);
    let tag = key.seal_in_place_separate_tag(nonce, Aad::from(pseudo), &mut []).ok()?;
    tag.as_ref().try_into().ok()
}

/// Returns the transport parameter that names the version in use and those that we have.
pub(super) fn push_version_information(params: &mut Vec<u8>, version: u32) {
    params.extend_from_slice(&[VERSION_INFORMATION as u8, 12]);
    for version in [version, V2, V1] {
        params.extend_from_slice(&version.to_be_bytes());
    }
}

/// Returns the transport parameters of a client with their names, up to one that cannot be parsed.
fn parameters(mut params: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    std::iter::from_fn(move || {
        let (id, rest) = varint(params)?;
        let (length, rest) = varint(rest)?;
        let (value, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
        params = rest;
        Some((id, value))
    })
}

/// Answer to the `version_information` of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Agreement {
    /// It goes together with the version that the client has begun with, or there is none.
    Good,
    /// It is of another version (RFC 9368, section 4).
    Other,
    /// It cannot be parsed (section 3).
    Malformed,
}

/// Returns the versions in the `version_information` of a client: the one that it has begun with, and then those that it would take, the
/// best first.
fn information(params: &[u8]) -> Option<Option<(u32, Vec<u32>)>> {
    let Some((_, value)) = parameters(params).find(|(id, _)| *id == VERSION_INFORMATION) else {
        return Some(None);
    };
    let (versions, odd) = value.as_chunks::<4>();
    let mut versions = versions.iter().map(|bytes| u32::from_be_bytes(*bytes));
    let chosen = versions.next()?;
    let available: Vec<u32> = versions.collect();
    let is_sound = odd.is_empty() && chosen != 0 && !available.contains(&0);
    is_sound.then_some(Some((chosen, available)))
}

/// Judges the transport parameters of a client that has begun with this version.
pub(super) fn judge(params: &[u8], version: u32) -> Agreement {
    match information(params) {
        None => Agreement::Malformed,
        Some(Some((chosen, _))) if chosen != version => Agreement::Other,
        Some(_) => Agreement::Good,
    }
}

/// Returns `true` if a client that has begun with version 1 would rather have version 2 (RFC 9368, section 2.3).
pub(super) fn prefers_v2(params: &[u8]) -> bool {
    let Some(Some((chosen, available))) = information(params) else { return false };
    chosen == V1 && available.iter().find(|version| [V1, V2].contains(version)) == Some(&V2)
}

/// Returns `true` if a client has sent a transport parameter twice (RFC 9000, section 7.4).
pub(super) fn repeats_parameter(params: &[u8]) -> bool {
    let mut ids: Vec<u64> = parameters(params).map(|(id, _)| id).collect();
    ids.sort_unstable();
    !ids.is_sorted_by(|a, b| a < b)
}

/// Changes a long header of version 1 to that of version 2, as it was or will be on the wire.
pub(super) fn header_on_the_wire(header: &mut [u8]) {
    if is_long(header)
        && let Some([first, version @ ..]) = header.first_chunk_mut::<5>()
    {
        *first = type_of_v2(*first);
        *version = V2.to_be_bytes();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_lc_rs::hkdf;

    #[test]
    fn integers() {
        for (bytes, value) in
            [(&[0x3f][..], 63), (&[0x40, 64], 64), (&[0x80, 0, 0x40, 0], 16384), (&[0xff; 8], (1 << 62) - 1)]
        {
            assert_eq!(varint(bytes), Some((value, &[][..])));
            assert_eq!(varint(&bytes[..bytes.len() - 1]), None);
            assert_eq!(varint(&[bytes, &[7]].concat()), Some((value, &[7][..])));
        }
    }

    #[test]
    fn types_change_and_change_back() {
        // RFC 9369, section 3.2: Initial, 0-RTT, Handshake, Retry.
        for (v1, v2) in [(0xc3u8, 0xd3), (0xd3, 0xe3), (0xe3, 0xf3), (0xf3, 0xc3)] {
            assert_eq!((type_of_v2(v1), type_of_v1(v2)), (v2, v1));
        }
    }

    #[test]
    fn all_packets_of_a_datagram() {
        let version = V2.to_be_bytes();
        let initial: Vec<u8> = [&[0xd0][..], &version, &[1, 9, 0, 2, 7, 7, 0x40, 3, 1, 2, 3]].concat();
        let handshake: Vec<u8> = [&[0xf0][..], &version, &[1, 9, 0, 2, 8, 8]].concat();
        let mut datagram = [&initial[..], &handshake, &[0x40, 1, 2]].concat();
        to_v1(&mut datagram);
        assert!(is_v2_arriving() && datagram[1..5] == V1.to_be_bytes());
        assert_eq!(
            (datagram[0], datagram[initial.len()], datagram[initial.len() + handshake.len()]),
            (0xc0, 0xe0, 0x40)
        );
        for length in 0..datagram.len() {
            to_v1(&mut datagram[..length].to_vec());
        }
        let mut v1 = vec![0xd0, 0, 0, 0, 1, 0, 0];
        to_v1(&mut v1);
        assert!(!is_v2_arriving() && v1[0] == 0xd0);
    }

    /// RFC 9369, appendix A.4.
    #[test]
    fn the_tag_of_a_retry() {
        let id = ConnectionId::new(&[0x83, 0x94, 0xc8, 0xf0, 0x3e, 0x51, 0x57, 0x08]);
        let hex = "cf6b3343cf0008f067a5502a4262b5746f6b656ec8646ce8bfe33952d955543665dcc7b6";
        let bytes: Vec<u8> = (0..hex.len() / 2)
            .map(|n| u8::from_str_radix(&hex[2 * n..2 * n + 2], 16).expect("hex"))
            .collect();
        let (packet, tag) = bytes.split_at(bytes.len() - 16);
        let mut as_v1 = packet.to_vec();
        to_v1(&mut as_v1);
        assert_eq!(as_v1[1..5], V1.to_be_bytes());
        assert_eq!(retry_tag(&id, &as_v1).as_ref().map(|t| &t[..]), Some(tag));
        header_on_the_wire(&mut as_v1);
        assert_eq!(as_v1, packet);
    }

    #[test]
    fn version_information() {
        let mut params = vec![0x01, 1, 5];
        push_version_information(&mut params, V2);
        assert_eq!(judge(&params, V2), Agreement::Good);
        assert_eq!(judge(&params, V1), Agreement::Other);
        assert_eq!(judge(&params[..3], V1), Agreement::Good);
        let with = |value: &[u8]| [&[0x11, value.len() as u8][..], value].concat();
        for wrong in [&[0, 0, 0, 1, 0][..], &[], &[0, 0, 0, 1, 0, 0, 0, 0], &[0, 0, 0, 0]] {
            assert_eq!(judge(&with(wrong), V1), Agreement::Malformed, "{wrong:?}");
        }
        assert_eq!(judge(&with(&[0, 0, 0, 1]), V1), Agreement::Good);
    }

    #[test]
    fn clients_that_would_rather_have_version_2() {
        let with = |versions: &[u32]| {
            let value: Vec<u8> = versions.iter().flat_map(|version| version.to_be_bytes()).collect();
            [&[0x11, value.len() as u8][..], &value].concat()
        };
        for (versions, wanted) in [
            (&[V1, V2, V1][..], true),
            (&[V1, 0x1a2a_3a4a, V2, V1], true),
            (&[V1, V2], true),
            (&[V1, V1, V2], false),
            (&[V1, V1], false),
            (&[V1], false),
            (&[V2, V2, V1], false),
            (&[V1, V2, 0], false),
        ] {
            assert_eq!(prefers_v2(&with(versions)), wanted, "{versions:x?}");
        }
        assert!(!prefers_v2(&[]));
    }

    #[test]
    fn repeated_parameters() {
        assert!(!repeats_parameter(&[0x01, 1, 5, 0x04, 0, 0x7f, 0, 1, 2, 3]));
        assert!(repeats_parameter(&[0x7f, 0, 0, 0x01, 1, 5, 0x7f, 0, 0]));
        assert!(!repeats_parameter(&[0x01, 1, 5, 0x01, 9]));
        assert!(!repeats_parameter(&[]));
    }

    #[test]
    fn tokens_are_of_one_version() {
        let key = |seed| hkdf::Salt::new(hkdf::HKDF_SHA256, &[]).extract(&[seed; 32]);
        let keys = TokenKeys { v1: key(1), v2: key(2) };
        let key_in = |version: u32| {
            to_v1(&mut [&[0xc0][..], &version.to_be_bytes(), &[0; 9]].concat());
            keys.aead_from_hkdf(&[5; 32])
        };
        for (sealing, opening) in [(V1, V1), (V1, V2), (V2, V1), (V2, V2)] {
            let mut token = b"token".to_vec();
            key_in(sealing).seal(&mut token, b"").expect("a token");
            assert_eq!(key_in(opening).open(&mut token, b"").is_ok(), sealing == opening);
        }
    }
}
