//! Packets of a datagram, and when they are acknowledged (RFC 9000, sections 12.2, 13.2.1 and 14).

use super::{UP, shape};
use crate::lab::Stage;
use crate::table::{BOTH, Row, Want, row};
use forebay_quic::packet::Kind;
use std::time::Duration;

pub fn rows() -> Vec<Row> {
    vec![
        row(
            "12.2",
            BOTH,
            UP,
            "a packet for another identifier behind one that counts",
            |l| {
                let mut datagram = Vec::new();
                // Only a long header has a length.
                datagram.extend(l.raw.shaped(Kind::Handshake, &[1], &shape(|s| s.dst = Some(l.raw.remote))));
                let other = l.raw.ids[0].1;
                datagram.extend(l.raw.shaped(Kind::OneRtt, &[1], &shape(|s| s.dst = Some(other))));
                l.send(&datagram);
            },
            Want::Dropped,
        ),
        row(
            "12.2",
            BOTH,
            Stage::Hello,
            "a packet that is not authentic before one that is",
            |l| {
                let mut bad = l.raw.packet(Kind::Handshake, &[1, 0, 0, 0]);
                *bad.last_mut().unwrap() ^= 1;
                bad.extend(l.raw.packet(Kind::Handshake, &[1, 0, 0, 0]));
                l.send(&bad);
            },
            Want::Ignored,
        ),
        row(
            "12.2",
            BOTH,
            UP,
            "a packet whose keys are gone before one that counts",
            |l| {
                let mut datagram = l.raw.packet(Kind::Handshake, &[1, 0, 0, 0]);
                datagram.extend(l.raw.packet(Kind::OneRtt, &[1]));
                l.send(&datagram);
            },
            Want::Ignored,
        ),
        row(
            "12.2",
            BOTH,
            Stage::Hello,
            "packets of two spaces are acknowledged each",
            |l| {
                let mut datagram = l.raw.packet(Kind::Initial, &[1, 0, 0, 0]);
                datagram.extend(l.raw.packet(Kind::Handshake, &[1, 0, 0, 0]));
                datagram.resize(1200, 0);
                l.send(&datagram);
            },
            Want::That(|l| {
                l.is_open()
                    && l.raw.got.iter().any(|got| got.kind == Kind::Handshake && got.frame.starts_with("Ack"))
            }),
        ),
        row(
            "12.2",
            BOTH,
            UP,
            "garbage behind a packet",
            |l| {
                let mut datagram = l.raw.packet(Kind::Handshake, &[1, 0, 0, 0]);
                datagram.extend([0xff; 50]);
                l.send(&datagram);
            },
            Want::Dropped,
        ),
        row(
            "14",
            BOTH,
            UP,
            "a datagram of 1500 bytes",
            |l| {
                let frames = vec![0; 1470];
                let mut all = vec![1];
                all.extend(frames);
                l.frames(Kind::OneRtt, &all);
            },
            Want::Ignored,
        ),
        row(
            "13.2.1",
            BOTH,
            UP,
            "a packet that asks for nothing",
            |l| {
                let sent = l.sent.len();
                l.frames(Kind::OneRtt, &[0]);
                l.wait(Duration::from_secs(1));
                assert_eq!(l.sent.len(), sent, "it is not acknowledged alone");
            },
            Want::That(|l| l.is_open()),
        ),
        row(
            "13.2.1",
            BOTH,
            UP,
            "a gap in packets that ask for nothing",
            |l| {
                let sent = l.sent.len();
                let number = l.raw.next[2] + 5;
                l.shaped(Kind::OneRtt, &[0], &shape(|s| s.number = Some(number)));
                l.wait(Duration::from_secs(1));
                assert_eq!(l.sent.len(), sent);
            },
            Want::That(|l| l.is_open()),
        ),
        row(
            "13.2.1",
            BOTH,
            UP,
            "one packet that asks",
            |l| {
                let sent = l.sent.len();
                l.frames(Kind::OneRtt, &[1]);
                l.wait(Duration::from_secs(1));
                assert_eq!(l.sent.len(), sent + 1);
            },
            Want::Answered("Ack"),
        ),
    ]
}
