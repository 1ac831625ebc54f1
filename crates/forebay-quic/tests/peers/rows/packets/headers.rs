//! Headers, and the fixed bit (RFC 9000, section 17; RFC 9287).

use super::{PROTOCOL, UP, filled, hello, ping, shape};
use crate::lab::Stage;
use crate::table::{BOTH, CLIENT, Row, SERVER, Want, row};
use forebay_quic::packet::Kind;

pub fn rows() -> Vec<Row> {
    vec![
        row(
            "17.3.1",
            BOTH,
            UP,
            "reserved bit 0x08 of a short header",
            |l| ping(l, Kind::OneRtt, |s| s.reserved = 0x08),
            Want::Close(PROTOCOL, 0),
        ),
        row(
            "17.3.1",
            BOTH,
            UP,
            "reserved bit 0x10 of a short header",
            |l| ping(l, Kind::OneRtt, |s| s.reserved = 0x10),
            Want::Close(PROTOCOL, 0),
        ),
        row(
            "17.2",
            BOTH,
            Stage::Hello,
            "reserved bit 0x04 of a Handshake packet",
            |l| ping(l, Kind::Handshake, |s| s.reserved = 0x04),
            Want::Close(PROTOCOL, 0),
        ),
        row(
            "17.2",
            BOTH,
            Stage::Hello,
            "reserved bit 0x08 of a Handshake packet",
            |l| ping(l, Kind::Handshake, |s| s.reserved = 0x08),
            Want::Close(PROTOCOL, 0),
        ),
        row(
            "17.2",
            SERVER,
            Stage::Hello,
            "reserved bits of an Initial packet",
            |l| ping(l, Kind::Initial, |s| s.reserved = 0x0c),
            Want::Close(PROTOCOL, 0),
        ),
        row(
            "17.2",
            CLIENT,
            Stage::Fresh,
            "reserved bits of the first Initial packet of a server",
            |l| ping(l, Kind::Initial, |s| s.reserved = 0x0c),
            Want::Close(PROTOCOL, 0),
        ),
        row(
            "17.2",
            SERVER,
            Stage::Fresh,
            "reserved bits of the first Initial packet",
            |l| hello(l, 1170, |s| s.reserved = 0x04),
            Want::That(|l| !l.is_open() && l.raw.closes.iter().all(|c| c.code == PROTOCOL.0)),
        ),
        row(
            "17.3.1",
            BOTH,
            UP,
            "reserved bits of a packet that is not authentic",
            |l| {
                let mut packet = l.raw.shaped(Kind::OneRtt, &[1], &shape(|s| s.reserved = 0x18));
                *packet.last_mut().unwrap() ^= 1;
                l.send(&packet);
            },
            Want::Dropped,
        ),
        row(
            "17.4",
            BOTH,
            UP,
            "the spin bit",
            |l| {
                let packet = l.raw.shaped(Kind::OneRtt, &[1], &shape(|s| s.reserved = 0x20));
                l.send(&packet);
            },
            Want::Ignored,
        ),
        row(
            "17.2",
            SERVER,
            Stage::Fresh,
            "a long header with an identifier of 21 bytes",
            |l| filled(l, &[0xc0, 0, 0, 0, 1, 21]),
            Want::Nothing,
        ),
        row(
            "17.2",
            SERVER,
            Stage::Fresh,
            "a long header with an identifier of 21 bytes of the client",
            |l| filled(l, &[0xc0, 0, 0, 0, 1, 8, 1, 2, 3, 4, 5, 6, 7, 8, 21]),
            Want::Nothing,
        ),
        row(
            "17.2",
            BOTH,
            Stage::Hello,
            "a Handshake packet longer than its datagram",
            |l| {
                let packet = l.raw.packet(Kind::Handshake, &[1, 0, 0, 0]);
                l.send(&packet[..packet.len() - 1]);
            },
            Want::Dropped,
        ),
        row(
            "17.2",
            BOTH,
            Stage::Hello,
            "a Handshake packet of another connection's keys",
            |l| {
                let mut packet = l.raw.packet(Kind::Handshake, &[1, 0, 0, 0]);
                let at = packet.len() - 3;
                packet[at] ^= 0x40;
                l.send(&packet);
            },
            Want::Dropped,
        ),
        row("12.1", BOTH, UP, "an empty datagram", |l| l.send(&[]), Want::Dropped),
        row("17.2", BOTH, UP, "a datagram of one byte", |l| l.send(&[0xc0]), Want::Dropped),
    ]
}

pub fn fixed() -> Vec<Row> {
    vec![
        row(
            "3.1",
            BOTH,
            UP,
            "the fixed bit of a packet is 0",
            |l| ping(l, Kind::OneRtt, |s| s.is_not_fixed = true),
            Want::Ignored,
        ),
        row(
            "3",
            SERVER,
            Stage::Hello,
            "the fixed bit of a Handshake packet is 0",
            |l| ping(l, Kind::Handshake, |s| s.is_not_fixed = true),
            Want::Ignored,
        ),
        row(
            "3",
            SERVER,
            Stage::Fresh,
            "the fixed bit of the first packet is 0",
            |l| hello(l, 1170, |s| s.is_not_fixed = true),
            Want::Nothing,
        ),
        row(
            "3",
            CLIENT,
            Stage::Fresh,
            "the fixed bit of the first packet of a server is 0",
            |l| ping(l, Kind::Initial, |s| s.is_not_fixed = true),
            Want::Ignored,
        ),
        row(
            "3",
            SERVER,
            Stage::Fresh,
            "the fixed bit of a first packet with a token of a former connection is 0",
            |l| {
                let mut token = Vec::new();
                assert!(crate::node::Plain::tokens().push_new(
                    &mut token,
                    l.raw.version,
                    l.raw.addr.ip(),
                    crate::node::UNIX,
                    [5; 16]
                ));
                hello(l, 1100, |s| (s.is_not_fixed, s.token) = (true, Some(token.clone())));
            },
            Want::Answered("Crypto"),
        ),
    ]
}
