//! Any bytes as an address token, which is none of ours; tokens that were made open at their address only, and not if changed.
#![no_main]

use std::net::SocketAddr;

use forebay_quic::id::ConnectionId;
use forebay_quic::token::{Opened, TokenKey};
use forebay_quic::version::Version;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    let key = TokenKey::new(b"a secret that the fuzzer cannot use", 10, 1000);
    let client = SocketAddr::from(([192, 0, 2, 1], 443));
    for version in [Version::V1, Version::V2] {
        assert_eq!(key.open(input, version, client, 5), Opened::Foreign);
    }
    let Some((unique, rest)) = input.split_first_chunk::<16>() else { return };
    let Some((ip, rest)) = rest.split_first_chunk::<16>() else { return };
    let Some(([at, bits, version, port], id)) = rest.split_first_chunk() else { return };
    let version = if version & 1 == 0 { Version::V1 } else { Version::V2 };
    let client = SocketAddr::from((*ip, u16::from(*port)));
    let now = u64::from(*at);
    let original_dst = ConnectionId::new(id.get(..20).unwrap_or(id)).unwrap_or_default();
    let (mut retry, mut new) = (Vec::new(), Vec::new());
    assert!(key.push_retry(&mut retry, version, client, &original_dst, now, *unique));
    assert!(key.push_new(&mut new, version, client.ip(), now, *unique));
    assert_eq!(key.open(&retry, version, client, now), Opened::Retry { original_dst });
    assert_eq!(key.open(&new, version, client, now), Opened::New { unique: *unique, made: now });
    let elsewhere = SocketAddr::from((*ip, u16::from(*port) + 1));
    assert_eq!(key.open(&retry, version, elsewhere, now), Opened::Invalid);
    assert_eq!(key.open(&retry, version, client, now + 11), Opened::Invalid);
    assert_eq!(key.open(&new, version, client, now + 1001), Opened::Foreign);
    for token in [&mut retry, &mut new] {
        let at = usize::from(*at) % token.len();
        token[at] ^= bits | 1;
        assert_eq!(key.open(token, version, client, now), Opened::Foreign);
    }
});
