//! Protection of packets, and keys that are gone or not there yet (RFC 9001, sections 4.9 and 5).

use super::{UP, ping, shape};
use crate::lab::Stage;
use crate::table::{BOTH, CLIENT, Row, SERVER, Want, row};
use forebay_quic::packet::Kind;

pub fn rows() -> Vec<Row> {
    vec![
        row(
            "5.4.2",
            BOTH,
            UP,
            "a packet without room for a sample",
            |l| {
                let packet = l.raw.packet(Kind::OneRtt, &[1]);
                l.send(&packet[..28.min(packet.len() - 1)]);
            },
            Want::Dropped,
        ),
        row(
            "5.4.2",
            BOTH,
            UP,
            "the shortest packet with a sample",
            |l| {
                l.shaped(Kind::OneRtt, &[1, 0, 0], &shape(|s| (s.len, s.is_bare) = (Some(1), true)));
            },
            Want::Ignored,
        ),
        row(
            "5.5",
            BOTH,
            UP,
            "a packet that is not authentic",
            |l| {
                let mut packet = l.raw.packet(Kind::OneRtt, &[1]);
                *packet.last_mut().unwrap() ^= 0x80;
                l.send(&packet);
            },
            Want::Dropped,
        ),
        row(
            "5.3",
            BOTH,
            UP,
            "a packet whose header was changed",
            |l| {
                let mut packet = l.raw.packet(Kind::OneRtt, &[1]);
                packet[0] ^= 0x20;
                l.send(&packet);
            },
            Want::Dropped,
        ),
        row(
            "4.9.1",
            SERVER,
            Stage::Hello,
            "an Initial packet behind a Handshake packet",
            |l| {
                ping(l, Kind::Handshake, |_| {});
                let taken = l.node.taken();
                ping(l, Kind::Initial, |_| {});
                assert_eq!(l.node.taken(), taken);
            },
            Want::That(|l| l.is_open()),
        ),
        row(
            "4.9.1",
            CLIENT,
            Stage::Hello,
            "an Initial packet behind the client's Handshake packet",
            |l| ping(l, Kind::Initial, |_| {}),
            Want::Dropped,
        ),
        row(
            "4.9.2",
            BOTH,
            UP,
            "a Handshake packet behind the handshake",
            |l| ping(l, Kind::Handshake, |_| {}),
            Want::Dropped,
        ),
        row(
            "5.7",
            SERVER,
            Stage::Hello,
            "a 1-RTT packet before the handshake is complete",
            |l| ping(l, Kind::OneRtt, |_| {}),
            Want::Dropped,
        ),
        row(
            "5.7",
            SERVER,
            Stage::Hello,
            "an error in a 1-RTT packet before the handshake is complete",
            |l| l.frames(Kind::OneRtt, &[0x3f]),
            Want::Dropped,
        ),
        row(
            "5.7",
            SERVER,
            Stage::Hello,
            "a 1-RTT packet that came early, and then the handshake",
            |l| {
                l.frames(Kind::OneRtt, &crate::rows::fields(8, &[0]));
                l.connect();
            },
            Want::That(|l| l.is_open() && l.only().streams().accept(forebay_quic::id::Dir::Bi).is_some()),
        ),
        row(
            "5.6",
            CLIENT,
            UP,
            "a 0-RTT packet of a server",
            |l| {
                let mut packet = vec![0xd0, 0, 0, 0, 1, 8];
                packet.extend(&*l.raw.remote);
                packet.extend([0, 0x40, 40]);
                packet.resize(packet.len() + 40, 7);
                l.send(&packet);
            },
            Want::Dropped,
        ),
    ]
}
