//! Packet numbers (RFC 9000, sections 12.3 and 17.1).

use super::{UP, ping, shape};
use crate::lab::Stage;
use crate::table::{BOTH, Row, SERVER, Want, row};
use forebay_quic::packet::Kind;

pub fn rows() -> Vec<Row> {
    vec![
        row(
            "12.3",
            BOTH,
            UP,
            "a packet twice",
            |l| {
                let packet = l.raw.packet(Kind::OneRtt, &[1]);
                l.send(&packet);
                let taken = l.node.taken();
                l.send(&packet);
                assert_eq!(l.node.taken(), taken);
            },
            Want::That(|l| l.is_open()),
        ),
        row(
            "12.3",
            BOTH,
            UP,
            "a number twice with other frames",
            |l| {
                let number = l.raw.next[2];
                ping(l, Kind::OneRtt, |s| s.number = Some(number));
                let taken = l.node.taken();
                l.shaped(Kind::OneRtt, &[0x3f], &shape(|s| s.number = Some(number)));
                assert_eq!(l.node.taken(), taken);
            },
            Want::That(|l| l.is_open()),
        ),
        row(
            "12.3",
            BOTH,
            UP,
            "a number below all ranges that are kept",
            |l| {
                for n in 0..300u64 {
                    ping(l, Kind::OneRtt, |s| s.number = Some(1000 + 2 * n));
                }
                let taken = l.node.taken();
                ping(l, Kind::OneRtt, |s| s.number = Some(1000));
                assert_eq!(l.node.taken(), taken);
            },
            Want::That(|l| l.is_open()),
        ),
        row(
            "17.1",
            BOTH,
            UP,
            "a number far ahead",
            |l| {
                let number = l.raw.next[2] + (1 << 30);
                ping(l, Kind::OneRtt, |s| s.number = Some(number));
            },
            Want::Ignored,
        ),
        row(
            "17.1",
            BOTH,
            UP,
            "a number whose bytes stand for another one",
            |l| {
                let number = l.raw.next[2] + 0x10_0000;
                ping(l, Kind::OneRtt, |s| (s.number, s.len) = (Some(number), Some(1)));
            },
            Want::Dropped,
        ),
        row(
            "17.1",
            BOTH,
            UP,
            "a number of one byte",
            |l| ping(l, Kind::OneRtt, |s| s.len = Some(1)),
            Want::Ignored,
        ),
        row(
            "17.1",
            BOTH,
            UP,
            "the largest number that a packet can have here",
            |l| {
                // Each time as far ahead as four bytes reach.
                for n in 1..40u64 {
                    ping(l, Kind::OneRtt, |s| s.number = Some(n * ((1 << 31) - 1)));
                }
            },
            Want::Ignored,
        ),
        row(
            "12.3",
            SERVER,
            Stage::Hello,
            "numbers of Initial and Handshake packets are apart",
            |l| ping(l, Kind::Handshake, |s| s.number = Some(0)),
            Want::Ignored,
        ),
    ]
}
