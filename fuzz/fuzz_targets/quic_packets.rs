//! Any bytes as a datagram: its packets lie in it and end. The same bytes as the payload of packets of each kind: what was sealed opens
//! to itself.
#![no_main]

use forebay_quic::id::{ConnectionId, Side};
use forebay_quic::packet::build::{Head, push_short};
use forebay_quic::packet::header::{Header, LongKind, Packet};
use forebay_quic::packet::{negotiation, number, protect, reset, retry};
use forebay_quic::version::Version;
use libfuzzer_sys::fuzz_target;

fn parse(datagram: &[u8], id_len: usize) {
    let keys = protect::initial_keys(Version::V1, &ConnectionId::default(), Side::Server).expect("keys");
    let mut bytes = datagram.to_vec();
    let mut rest = &mut bytes[..];
    while let Some(packet) = Packet::parse(rest, id_len) {
        assert!(packet.len > 0 && packet.len <= rest.len() && packet.number_at <= packet.len);
        let (bytes, behind) = rest.split_at_mut(packet.len);
        match &packet.header {
            Header::Long(long) => {
                assert!(bytes.get(long.token.clone()).is_some());
                if long.kind == LongKind::Retry {
                    retry::verify(long.version, bytes, &long.dst);
                }
            }
            Header::Negotiation { dst, src, versions } => {
                assert!(bytes.get(dst.clone()).is_some() && bytes.get(src.clone()).is_some());
                let list = &bytes[versions.clone()];
                let count = negotiation::versions(list).map_or(0, Iterator::count);
                assert!(count * 4 == list.len() || count == 0);
            }
            Header::Unknown { dst, src, .. } => {
                assert!(bytes.get(dst.clone()).is_some() && bytes.get(src.clone()).is_some());
            }
            Header::Short { dst } => assert_eq!(dst.len(), id_len),
        }
        if packet.level().is_some()
            && let Some(head) = protect::unprotect(&*keys.remote.header, bytes, packet.number_at)
        {
            let number = number::expand(head.number, head.number_len, 0);
            protect::open(&*keys.remote.packet, bytes, packet.number_at, head.number_len, number);
        }
        rest = behind;
    }
    reset::token_of(datagram);
}

fn seal(payload: &[u8], shape: u8) {
    let version = if shape & 1 == 0 { Version::V1 } else { Version::V2 };
    let kinds = [LongKind::Initial, LongKind::ZeroRtt, LongKind::Handshake];
    let (number_len, number) = (usize::from(shape >> 3 & 3) + 1, u64::from(shape));
    let dst = ConnectionId::new(&[shape; 8]).expect("8 bytes");
    let keys = protect::initial_keys(version, &dst, Side::Client).expect("keys");
    let mut out = vec![shape; usize::from(shape >> 5)];
    let start = out.len();
    let mut place = match kinds.get(usize::from(shape >> 1 & 3)) {
        Some(kind) => {
            let token = &payload[..payload.len().min(usize::from(shape))];
            Head { kind: *kind, version, dst: &dst, src: &dst, token }.push(&mut out, number, number_len)
        }
        None => push_short(&mut out, &dst, shape & 8 != 0, shape & 16 != 0, number, number_len),
    };
    out.extend_from_slice(payload);
    place.finish(&mut out);
    protect::seal(&*keys.local.header, &*keys.local.packet, &mut out, &place).expect("sealed");
    let packet = Packet::parse(&out[start..], dst.len()).expect("a packet");
    assert_eq!((packet.len, start + packet.number_at), (place.size(), place.number_at));
    let keys = protect::initial_keys(version, &dst, Side::Server).expect("keys");
    let bytes = &mut out[start..];
    let head = protect::unprotect(&*keys.remote.header, bytes, packet.number_at).expect("long enough");
    assert_eq!((head.number_len, number::expand(head.number, number_len, number)), (number_len, number));
    assert!(protect::check_reserved(head.first).is_ok());
    let opened = protect::open(&*keys.remote.packet, bytes, packet.number_at, number_len, number);
    let opened = &bytes[opened.expect("authentic")];
    assert!(opened.starts_with(payload) && opened[payload.len()..].iter().all(|byte| *byte == 0));
}

fuzz_target!(|input: &[u8]| {
    let Some((shape, rest)) = input.split_first() else { return };
    parse(rest, usize::from(*shape) % 21);
    // The length of a long header has 14 bits.
    if rest.len() < 8_000 {
        seal(rest, *shape);
    }
});
