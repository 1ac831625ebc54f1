//! The handshake (RFC 9000, sections 7.5, 8.1 and 17.2.5; RFC 9001, sections 4 and 8).

use super::{fields, made};
use crate::lab::{Lab, Stage};
use crate::node::{Plain, UNIX};
use crate::raw::eight;
use crate::table::{BOTH, CLIENT, Row, SERVER, Want, of, row};
use forebay_quic::error::Code;
use forebay_quic::frame::{self, kind};
use forebay_quic::id::ConnectionId;
use forebay_quic::packet::header::FIXED;
use forebay_quic::packet::retry::Retry;
use forebay_quic::packet::{Header, Kind, Packet};
use forebay_quic::version::Version;

const UP: Stage = Stage::Connected;
const PROTOCOL: Code = Code::PROTOCOL_VIOLATION;

fn crypto(lab: &mut Lab, kind: Kind, offset: u64, data: &[u8]) {
    let frame = made(|out| frame::push_crypto(out, offset, data));
    lab.frames(kind, &frame);
}

/// Sends a message of TLS behind the handshake.
fn message(lab: &mut Lab, bytes: &[u8]) {
    let offset = lab.raw.sent[2];
    crypto(lab, Kind::OneRtt, offset, bytes);
}

pub fn rows() -> Vec<Row> {
    let mut all: Vec<Row> = [buffers(), tokens(), retries(), after_retry()].into_iter().flatten().collect();
    all.extend(of(9001, levels()));
    all.extend(of(9001, messages()));
    all
}

fn buffers() -> Vec<Row> {
    const FULL: Want = Want::Close(Code::CRYPTO_BUFFER_EXCEEDED, kind::CRYPTO);
    vec![
        row("7.5", BOTH, UP, "CRYPTO too far ahead", |l| crypto(l, Kind::OneRtt, 80_000, &[1]), FULL),
        row(
            "7.5",
            BOTH,
            Stage::Hello,
            "CRYPTO too far ahead in a Handshake packet",
            |l| crypto(l, Kind::Handshake, 80_000, &[1]),
            Want::That(|l| !l.is_open()),
        ),
        row(
            "7.5",
            SERVER,
            Stage::Fresh,
            "CRYPTO too far ahead in the first packet",
            |l| crypto(l, Kind::Initial, 80_000, &[1]),
            FULL,
        ),
        row(
            "7.5",
            CLIENT,
            Stage::Fresh,
            "CRYPTO too far ahead in the first packet of a server",
            |l| crypto(l, Kind::Initial, 80_000, &[1]),
            FULL,
        ),
        row(
            "7.5",
            SERVER,
            Stage::Fresh,
            "4096 bytes that come before the first one",
            |l| {
                let hello = [l.raw.hello(), &[0; 0]].concat();
                for start in (1..hello.len()).step_by(400).collect::<Vec<_>>().into_iter().rev() {
                    let part = hello[start..(start + 400).min(hello.len())].to_vec();
                    crypto(l, Kind::Initial, start as u64, &part);
                }
                assert_eq!(l.raw.count("Crypto"), 0);
                crypto(l, Kind::Initial, 0, &hello[..1]);
            },
            Want::Answered("Crypto"),
        ),
    ]
}

fn levels() -> Vec<Row> {
    vec![
        row(
            "4.1.3",
            SERVER,
            Stage::Hello,
            "more of the handshake in Initial packets behind their level",
            |l| {
                let offset = l.raw.sent[0];
                crypto(l, Kind::Initial, offset, &[1]);
            },
            Want::Close(PROTOCOL, kind::CRYPTO),
        ),
        row(
            "4.1.3",
            CLIENT,
            Stage::Hello,
            "more of the handshake in Handshake packets behind their level",
            |l| {
                let offset = l.raw.sent[1];
                crypto(l, Kind::Handshake, offset, &[1]);
            },
            Want::Close(PROTOCOL, kind::CRYPTO),
        ),
        row(
            "4.1.3",
            SERVER,
            Stage::Hello,
            "the first message again",
            |l| {
                let hello = l.raw.hello()[..1000].to_vec();
                crypto(l, Kind::Initial, 0, &hello);
            },
            Want::Ignored,
        ),
        row(
            "4.1.3",
            SERVER,
            Stage::Fresh,
            "bytes behind the first message",
            Lab::flight,
            Want::Close(PROTOCOL, 0),
        )
        .with(|s| {
            s.edit = |level, bytes| {
                if level == 0 {
                    bytes.extend([1, 0, 0])
                }
            }
        }),
        row(
            "4.1.3",
            CLIENT,
            Stage::Fresh,
            "bytes behind the first message of a server",
            Lab::flight,
            Want::Close(PROTOCOL, 0),
        )
        .with(|s| {
            s.edit = |level, bytes| {
                if level == 0 {
                    bytes.extend([2, 0, 0])
                }
            }
        }),
        row(
            "4.1.3",
            CLIENT,
            Stage::Fresh,
            "bytes behind the last message of the handshake",
            Lab::connect,
            Want::Close(PROTOCOL, 0),
        )
        .with(|s| {
            s.edit = |level, bytes| {
                if level == 1 {
                    bytes.extend([2, 0, 0])
                }
            }
        }),
        row(
            "8.3",
            SERVER,
            Stage::Fresh,
            "CRYPTO in a 0-RTT packet",
            |l| {
                *l = super::places::resumed(l.setup.clone());
                l.frames(Kind::ZeroRtt, &fields(kind::CRYPTO, &[0, 1, 1]));
            },
            Want::Close(PROTOCOL, kind::CRYPTO),
        ),
    ]
}

/// Removes an extension from a ClientHello or from EncryptedExtensions.
fn without(bytes: &mut Vec<u8>, extension: u16) {
    let mut at = 4;
    if bytes[0] == 1 {
        at += 34;
        at += 1 + usize::from(bytes[at]);
        at += 2 + usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
        at += 1 + usize::from(bytes[at]);
    }
    let list = at;
    let end = at + 2 + usize::from(u16::from_be_bytes([bytes[at], bytes[at + 1]]));
    at += 2;
    while at < end {
        let len = 4 + usize::from(u16::from_be_bytes([bytes[at + 2], bytes[at + 3]]));
        if [bytes[at], bytes[at + 1]] == extension.to_be_bytes() {
            bytes.drain(at..at + len);
            let listed = (end - list - 2 - len) as u16;
            bytes[list..list + 2].copy_from_slice(&listed.to_be_bytes());
            let whole = u32::from_be_bytes([0, bytes[1], bytes[2], bytes[3]]) - len as u32;
            bytes[1..4].copy_from_slice(&whole.to_be_bytes()[1..]);
            return;
        }
        at += len;
    }
    panic!("no such extension");
}

fn messages() -> Vec<Row> {
    const UNEXPECTED: Code = Code::crypto(10);
    const NO_PROTOCOL: Code = Code::crypto(120);
    const MISSING: Code = Code::crypto(109);
    vec![
        row("6", BOTH, UP, "KeyUpdate", |l| message(l, &[24, 0, 0, 1, 0]), Want::Close(UNEXPECTED, 0)),
        row(
            "4.4",
            CLIENT,
            UP,
            "CertificateRequest behind the handshake",
            |l| {
                message(l, &[13, 0, 0, 11, 0, 0, 8, 0, 13, 0, 4, 0, 2, 4, 3]);
            },
            Want::Close(PROTOCOL, 0),
        ),
        row(
            "4.6.1",
            CLIENT,
            Stage::Fresh,
            "a ticket for less early data than all",
            Lab::connect,
            Want::Close(PROTOCOL, 0),
        )
        .with(|s| {
            s.edit = |level, bytes| {
                let early = [0, 42, 0, 4, 0xff, 0xff, 0xff, 0xff];
                let at = bytes.windows(8).position(|part| part == early).filter(|_| level == 2);
                if let Some(at) = at {
                    bytes[at + 4] = 0;
                }
            };
        }),
        row(
            "4.8",
            SERVER,
            Stage::Fresh,
            "another message than the first",
            Lab::flight,
            Want::Close(UNEXPECTED, 0),
        )
        .with(|s| s.edit = |_, bytes| bytes[0] = 20),
        row(
            "4.8",
            CLIENT,
            Stage::Fresh,
            "another message than the first of a server",
            Lab::flight,
            Want::Close(UNEXPECTED, 0),
        )
        .with(|s| {
            s.edit = |level, bytes| {
                if level == 0 {
                    bytes[0] = 20
                }
            }
        }),
        row(
            "4.8",
            SERVER,
            Stage::Fresh,
            "a malformed first message",
            Lab::flight,
            Want::Close(Code::crypto(50), 0),
        )
        .with(|s| s.edit = |_, bytes| bytes[38] = 200),
        row(
            "4.8",
            SERVER,
            Stage::Hello,
            "a wrong Finished",
            |l| {
                l.raw.drive();
                let mut bytes = std::mem::take(&mut l.raw.unsent[1]);
                *bytes.last_mut().unwrap() ^= 1;
                crypto(l, Kind::Handshake, 0, &bytes);
            },
            Want::Close(Code::crypto(51), 0),
        ),
        row(
            "4.2",
            SERVER,
            Stage::Fresh,
            "an older version of TLS",
            Lab::flight,
            Want::Close(Code::crypto(70), 0),
        )
        .with(|s| s.edit = |_, bytes| without(bytes, 43)),
        row("8.1", SERVER, Stage::Fresh, "no protocol in common", Lab::flight, Want::Close(NO_PROTOCOL, 0))
            .with(|s| s.alpn = [b"a", b"b"]),
        row(
            "8.1",
            CLIENT,
            Stage::Fresh,
            "a server that chooses no protocol",
            Lab::connect,
            Want::Close(NO_PROTOCOL, 0),
        )
        .with(|s| {
            s.alpn = [b"a", b"a"];
            s.edit = |level, bytes| {
                if level == 1 {
                    without(bytes, 16)
                }
            };
        }),
        row("8.2", SERVER, Stage::Fresh, "no transport parameters", Lab::flight, Want::Close(MISSING, 0))
            .with(|s| s.edit = |_, bytes| without(bytes, 0x39)),
        row(
            "8.2",
            CLIENT,
            Stage::Fresh,
            "no transport parameters of a server",
            Lab::connect,
            Want::Close(MISSING, 0),
        )
        .with(|s| {
            s.edit = |level, bytes| {
                if level == 1 {
                    without(bytes, 0x39)
                }
            }
        }),
    ]
}

/// Makes a token of a Retry packet for an address.
fn retry_token(lab: &Lab, port: u16) -> Vec<u8> {
    let mut addr = lab.raw.addr;
    addr.set_port(port);
    made(|out| {
        let version = lab.raw.version;
        assert!(Plain::tokens().push_retry(out, version, addr, &lab.raw.original, UNIX, [9; 16]));
    })
}

fn tokens() -> Vec<Row> {
    fn with(lab: &mut Lab, token: Vec<u8>) {
        lab.raw.token = token;
        lab.flight();
    }
    fn given(lab: &Lab, host: u8) -> Vec<u8> {
        made(|out| {
            assert!(Plain::tokens().push_new(out, lab.raw.version, [10, 0, 0, host].into(), UNIX, [4; 16]));
        })
    }
    vec![
        row(
            "8.1.2",
            SERVER,
            Stage::Fresh,
            "a token of a Retry packet",
            |l| {
                let token = retry_token(l, l.raw.addr.port());
                with(l, token);
            },
            Want::Answered("Crypto"),
        )
        .with(|s| s.retries = true),
        row(
            "8.1.2",
            SERVER,
            Stage::Fresh,
            "a token of a Retry packet for another port",
            |l| {
                let token = retry_token(l, 1);
                with(l, token);
            },
            Want::That(|l| {
                l.node.connections.is_empty()
                    && l.raw.closes.iter().all(|c| c.code == Code::INVALID_TOKEN.0)
                    && !l.raw.closes.is_empty()
            }),
        ),
        row(
            "8.1.3",
            SERVER,
            Stage::Fresh,
            "a token of somebody else",
            |l| with(l, vec![1; 60]),
            Want::Answered("Crypto"),
        ),
        row(
            "8.1.3",
            SERVER,
            Stage::Fresh,
            "a token of somebody else where addresses have to be proved",
            |l| with(l, vec![1; 60]),
            Want::That(|l| l.node.connections.is_empty() && !l.raw.others.is_empty()),
        )
        .with(|s| s.retries = true),
        row(
            "8.1.3",
            SERVER,
            Stage::Fresh,
            "a token of a former connection for another address",
            |l| {
                let token = given(l, 77);
                with(l, token);
            },
            Want::That(|l| l.node.connections.is_empty() && !l.raw.others.is_empty()),
        )
        .with(|s| s.retries = true),
        row(
            "8.1.4",
            SERVER,
            Stage::Fresh,
            "a token of a former connection twice",
            |l| {
                let token = given(l, 9);
                with(l, token.clone());
                let mut setup = l.setup.clone();
                setup.retries = false;
                l.raw = crate::raw::Raw::new(l.raw.side, &setup);
                l.node.retries = true;
                with(l, token);
            },
            Want::That(|l| l.node.begun == 1 && !l.raw.others.is_empty()),
        ),
        row(
            "8.1.2",
            SERVER,
            Stage::Fresh,
            "an Initial packet without a token",
            Lab::flight,
            Want::That(|l| l.node.connections.is_empty() && l.raw.others.iter().all(|d| d[0] & 0xf0 == 0xf0)),
        )
        .with(|s| s.retries = true),
        row(
            "8.1.2",
            SERVER,
            Stage::Fresh,
            "a handshake with Retry",
            |l| {
                l.flight();
                let retry = l.raw.others[0].clone();
                let Some(Packet { header: Header::Long(long), .. }) = Packet::parse(&retry, 8) else {
                    panic!("no Retry")
                };
                l.raw.retry(&retry[long.token], long.src);
                l.connect();
            },
            Want::Ignored,
        )
        .with(|s| s.retries = true),
    ]
}

/// Retry packet for the tested client.
fn retry(lab: &mut Lab, version: Version, src: ConnectionId, token: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    let retry = Retry { version, dst: &lab.raw.remote, src: &src, original_dst: &lab.raw.original, token };
    assert!(retry.push(&mut out, 5));
    out
}

/// Sends a Retry packet that is to be dropped.
fn dropped(lab: &mut Lab, packet: &[u8]) {
    let sent = lab.sent.len();
    lab.send(packet);
    assert_eq!(lab.sent.len(), sent, "nothing is sent anew");
}

fn retries() -> Vec<Row> {
    const FRESH: Stage = Stage::Fresh;
    const STAYS: Want = Want::That(|l| l.is_open());
    vec![
        row(
            "17.2.5.2",
            CLIENT,
            FRESH,
            "a Retry packet",
            |l| {
                let packet = retry(l, Version::V1, eight(0xee), b"token");
                l.send(&packet);
            },
            Want::That(|l| {
                let last = l.sent.last().map(|d| d.bytes.clone()).unwrap_or_default();
                let Some(Packet { header: Header::Long(long), .. }) = Packet::parse(&last, 8) else {
                    return false;
                };
                long.dst == eight(0xee) && &last[long.token] == b"token" && last.len() >= 1200
            }),
        ),
        row(
            "17.2.5.2",
            CLIENT,
            FRESH,
            "a Retry packet with a wrong tag",
            |l| {
                let mut packet = retry(l, Version::V1, eight(0xee), b"token");
                *packet.last_mut().unwrap() ^= 1;
                dropped(l, &packet);
            },
            STAYS,
        ),
        row(
            "17.2.5.2",
            CLIENT,
            FRESH,
            "a Retry packet without a token",
            |l| {
                let packet = retry(l, Version::V1, eight(0xee), b"");
                dropped(l, &packet);
            },
            STAYS,
        ),
        row(
            "17.2.5.1",
            CLIENT,
            FRESH,
            "a Retry packet with the identifier of the client's packet",
            |l| {
                let packet = retry(l, Version::V1, l.raw.original, b"token");
                dropped(l, &packet);
            },
            STAYS,
        ),
        row(
            "17.2.5.2",
            CLIENT,
            FRESH,
            "a second Retry packet",
            |l| {
                let packet = retry(l, Version::V1, eight(0xee), b"token");
                l.send(&packet);
                l.raw.original = eight(0xee);
                let packet = retry(l, Version::V1, eight(0xdd), b"other");
                dropped(l, &packet);
            },
            STAYS,
        ),
        row(
            "17.2.5.2",
            CLIENT,
            FRESH,
            "a Retry packet behind an Initial packet",
            |l| {
                l.frames(Kind::Initial, &[1]);
                let packet = retry(l, Version::V1, eight(0xee), b"token");
                dropped(l, &packet);
            },
            STAYS,
        ),
        row(
            "17.2.5.2",
            CLIENT,
            FRESH,
            "a Retry packet for another client",
            |l| {
                l.raw.remote = eight(1);
                let packet = retry(l, Version::V1, eight(0xee), b"token");
                dropped(l, &packet);
            },
            STAYS,
        ),
        row(
            "17.2.5.2",
            CLIENT,
            FRESH,
            "a Retry packet of another version",
            |l| {
                let packet = retry(l, Version::V2, eight(0xee), b"token");
                dropped(l, &packet);
            },
            STAYS,
        ),
        row(
            "17.2",
            CLIENT,
            FRESH,
            "a Retry packet whose fixed bit is 0",
            |l| {
                let packet = retry(l, Version::V1, eight(0xee), b"token");
                let packet = refixed(l, &packet);
                dropped(l, &packet);
            },
            STAYS,
        ),
        row(
            "17.2.5",
            CLIENT,
            UP,
            "a Retry packet behind the handshake",
            |l| {
                let packet = retry(l, Version::V1, eight(0xee), b"token");
                dropped(l, &packet);
            },
            STAYS,
        ),
        row(
            "6.2",
            CLIENT,
            FRESH,
            "a Version Negotiation packet behind a Retry packet",
            |l| {
                let packet = retry(l, Version::V1, eight(0xee), b"token");
                l.send(&packet);
                let (dst, src) = (l.raw.remote, eight(0xee));
                let packet = super::versions::negotiation(&dst, &src, &[0x0a0a_0a0a]);
                dropped(l, &packet);
            },
            STAYS,
        ),
    ]
}

/// Clears the fixed bit of a Retry packet, with a tag that is right.
fn refixed(lab: &Lab, packet: &[u8]) -> Vec<u8> {
    use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
    let mut packet = packet[..packet.len() - 16].to_vec();
    packet[0] &= !FIXED;
    let mut pseudo = vec![lab.raw.original.len() as u8];
    pseudo.extend(&*lab.raw.original);
    pseudo.extend(&packet);
    let key = 0xbe0c_690b_9f66_575a_1d76_6b54_e368_c84e_u128.to_be_bytes();
    let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &key).unwrap());
    let nonce = [0x46, 0x15, 0x99, 0xd3, 0x5d, 0x63, 0x2b, 0xf2, 0x23, 0x98, 0x25, 0xbb];
    let tag = key
        .seal_in_place_separate_tag(Nonce::assume_unique_for_key(nonce), Aad::from(&pseudo), &mut [])
        .unwrap();
    packet.extend(tag.as_ref());
    packet
}

/// Sends Retry, and makes the handshake that follows it.
fn through_retry(lab: &mut Lab) {
    let packet = retry(lab, Version::V1, eight(0xee), b"token");
    lab.raw.forget();
    lab.raw.local = eight(0xee);
    lab.send(&packet);
    lab.connect();
}

fn after_retry() -> Vec<Row> {
    const FRESH: Stage = Stage::Fresh;
    const WRONG: Want = Want::Close(Code::TRANSPORT_PARAMETER_ERROR, 0);
    vec![
        row("7.3", CLIENT, FRESH, "a handshake with Retry", through_retry, Want::Ignored)
            .with(|s| s.parameters = |p| p.retry_source_connection_id = Some(eight(0xee))),
        row("7.3", CLIENT, FRESH, "Retry, and no retry_source_connection_id", through_retry, WRONG),
        row("7.3", CLIENT, FRESH, "Retry, and another retry_source_connection_id", through_retry, WRONG)
            .with(|s| s.parameters = |p| p.retry_source_connection_id = Some(eight(0xed))),
        row("7.3", CLIENT, FRESH, "Retry, and its identifier as the original one", through_retry, WRONG)
            .with(|s| {
                s.parameters = |p| {
                    p.retry_source_connection_id = Some(eight(0xee));
                    p.original_destination_connection_id = Some(eight(0xee));
                };
            }),
    ]
}
