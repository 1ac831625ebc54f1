//! Packets of no connection and of unknown versions (RFC 9000, sections 5.2, 6.1 and 17.2).

use super::filled;
use crate::lab::{Lab, Stage};
use crate::table::{CLIENT, Row, SERVER, Want, row};
use forebay_quic::endpoint::Answer;

pub fn rows() -> Vec<Row> {
    fn version(lab: &mut Lab, number: u32, len: usize) {
        let mut packet = vec![0xc0];
        packet.extend(number.to_be_bytes());
        packet.extend([8, 1, 2, 3, 4, 5, 6, 7, 8, 3, 9, 9, 9]);
        packet.resize(len, 0);
        lab.send(&packet);
    }
    vec![
        row(
            "6.1",
            SERVER,
            Stage::Fresh,
            "an unknown version",
            |l| version(l, 0x5a5a_5a5a, 1200),
            Want::That(|l| {
                let [answer] = &l.sent[..] else { return false };
                let ids = [3, 9, 9, 9, 8, 1, 2, 3, 4, 5, 6, 7, 8];
                l.node.answer == Some(Answer::Negotiation)
                    && answer.bytes[0] & 0x80 != 0
                    && answer.bytes[1..5] == [0; 4]
                    && answer.bytes[5..18] == ids
                    && answer.bytes[18..].len() % 4 == 0
                    && answer.bytes[18..].chunks(4).any(|v| v == [0, 0, 0, 1])
                    && !answer.bytes[18..].chunks(4).any(|v| v == [0x5a; 4])
            }),
        ),
        row(
            "5.2.2",
            SERVER,
            Stage::Fresh,
            "an unknown version in a datagram of 1199 bytes",
            |l| version(l, 0x5a5a_5a5a, 1199),
            Want::Nothing,
        ),
        row(
            "6.1",
            SERVER,
            Stage::Fresh,
            "a Version Negotiation packet",
            |l| version(l, 0, 1200),
            Want::Nothing,
        ),
        row(
            "17.2.1",
            SERVER,
            Stage::Fresh,
            "an unknown version with identifiers of 255 bytes",
            |l| {
                let mut packet = vec![0x80, 0x5a, 0x5a, 0x5a, 0x5a, 255];
                packet.extend([1; 255]);
                packet.push(255);
                packet.extend([2; 255]);
                packet.resize(1200, 0);
                l.send(&packet);
            },
            Want::That(|l| {
                let [answer] = &l.sent[..] else { return false };
                answer.bytes[5] == 255
                    && answer.bytes[6..261] == [2; 255]
                    && answer.bytes[262..517] == [1; 255]
            }),
        ),
        row(
            "5.2.2",
            SERVER,
            Stage::Fresh,
            "a Handshake packet of no connection",
            |l| filled(l, &[0xe0, 0, 0, 0, 1, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0x44, 0x00]),
            Want::Nothing,
        ),
        row(
            "5.2.2",
            SERVER,
            Stage::Fresh,
            "a 0-RTT packet of no connection",
            |l| filled(l, &[0xd0, 0, 0, 0, 1, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0x44, 0x00]),
            Want::Nothing,
        ),
        row(
            "17.2.5",
            SERVER,
            Stage::Fresh,
            "a Retry packet of no connection",
            |l| filled(l, &[0xf0, 0, 0, 0, 1, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0]),
            Want::Nothing,
        ),
        row(
            "5.2.1",
            CLIENT,
            Stage::Fresh,
            "a packet of an unknown version",
            |l| {
                let mut packet = vec![0xc0, 0x5a, 0x5a, 0x5a, 0x5a, 8];
                packet.extend(&*l.raw.remote);
                packet.resize(1200, 7);
                l.send(&packet);
            },
            Want::Dropped,
        ),
    ]
}
