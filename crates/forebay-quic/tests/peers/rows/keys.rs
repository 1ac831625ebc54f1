//! Changes of keys (RFC 9001, section 6).

use crate::lab::{Lab, Stage};
use crate::raw::Shape;
use crate::table::{BOTH, Row, SERVER, Want, of, row};
use forebay_quic::error::Code;
use forebay_quic::packet::Kind;
use std::time::Duration;

const UP: Stage = Stage::Connected;
const STAYS: Want = Want::That(|l| l.is_open() && l.raw.closes.is_empty());

fn ping(lab: &mut Lab) {
    lab.frames(Kind::OneRtt, &[1]);
}

/// Waits for an acknowledgment, and acknowledges that.
fn settle(lab: &mut Lab) {
    lab.wait(Duration::from_millis(30));
    let ack = lab.raw.ack(Kind::OneRtt);
    lab.frames(Kind::OneRtt, &[&ack[..], &[1]].concat());
    lab.wait(Duration::from_millis(30));
}

/// Returns a packet of the keys in use with a number some way ahead.
fn ahead(lab: &mut Lab, by: u64) -> Vec<u8> {
    let next = lab.raw.next;
    let shape = Shape { number: Some(next[2] + by), ..Shape::default() };
    let packet = lab.raw.shaped(Kind::OneRtt, &[1], &shape);
    lab.raw.next = next;
    packet
}

pub fn rows() -> Vec<Row> {
    of(
        9001,
        vec![
            row(
                "6.2",
                BOTH,
                UP,
                "new keys",
                |l| {
                    l.raw.update_keys();
                    ping(l);
                    l.raw.got.clear();
                    l.wait(Duration::from_millis(30));
                },
                Want::Answered("Ack"),
            ),
            row(
                "6.2",
                BOTH,
                UP,
                "new keys again and again, each acknowledged",
                |l| {
                    for _ in 0..10 {
                        l.raw.update_keys();
                        ping(l);
                        settle(l);
                    }
                    l.raw.got.clear();
                    settle(l);
                },
                Want::Answered("Ack"),
            ),
            row(
                "6.2",
                BOTH,
                UP,
                "new keys twice before the first were answered",
                |l| {
                    l.raw.update_keys();
                    ping(l);
                    l.raw.update_keys();
                    ping(l);
                },
                Want::Close(Code::KEY_UPDATE_ERROR, 0),
            ),
            row(
                "5.5",
                BOTH,
                UP,
                "another key phase without other keys",
                |l| {
                    l.shaped(Kind::OneRtt, &[1], &Shape { other_phase: true, ..Shape::default() });
                },
                Want::Dropped,
            ),
            row(
                "6.3",
                BOTH,
                UP,
                "another key phase without other keys, and then a right packet",
                |l| {
                    l.shaped(Kind::OneRtt, &[1], &Shape { other_phase: true, ..Shape::default() });
                    ping(l);
                },
                Want::Ignored,
            ),
            row(
                "6.5",
                BOTH,
                UP,
                "a packet of old keys that was overtaken",
                |l| {
                    let old = l.raw.packet(Kind::OneRtt, &[1]);
                    l.raw.update_keys();
                    ping(l);
                    let taken = l.node.taken();
                    l.send(&old);
                    assert_eq!(l.node.taken(), taken + 1);
                },
                STAYS,
            ),
            row(
                "6.4",
                BOTH,
                UP,
                "old keys behind new ones",
                |l| {
                    let old = ahead(l, 10);
                    l.raw.update_keys();
                    ping(l);
                    let taken = l.node.taken();
                    l.send(&old);
                    assert_eq!(l.node.taken(), taken);
                },
                Want::That(|l| {
                    l.is_open() || l.raw.closes.iter().all(|c| c.code == Code::KEY_UPDATE_ERROR.0)
                }),
            ),
            row(
                "6.4",
                BOTH,
                UP,
                "old keys between new ones",
                |l| {
                    let old = ahead(l, 3);
                    l.raw.update_keys();
                    l.shaped(
                        Kind::OneRtt,
                        &[1],
                        &Shape { number: Some(l.raw.next[2] + 5), ..Shape::default() },
                    );
                    l.send(&old);
                    // This one has new keys and a smaller number than the one with old keys.
                    let number = l.raw.next[2] - 5;
                    l.shaped(Kind::OneRtt, &[1], &Shape { number: Some(number), ..Shape::default() });
                },
                Want::Close(Code::KEY_UPDATE_ERROR, 0),
            ),
            row(
                "6.5",
                BOTH,
                UP,
                "a packet of old keys that comes very late",
                |l| {
                    let old = l.raw.packet(Kind::OneRtt, &[1]);
                    l.raw.update_keys();
                    ping(l);
                    l.wait(Duration::from_secs(5));
                    let taken = l.node.taken();
                    l.send(&old);
                    assert_eq!(l.node.taken(), taken);
                },
                STAYS,
            ),
            row(
                "6.1",
                SERVER,
                Stage::Hello,
                "new keys before the handshake is complete",
                |l| {
                    l.raw.drive();
                    l.raw.update_keys();
                    ping(l);
                    l.connect();
                },
                Want::Close(Code::KEY_UPDATE_ERROR, 0),
            ),
            row(
                "6.6",
                BOTH,
                UP,
                "many packets that are not authentic",
                |l| {
                    let mut packet = l.raw.packet(Kind::OneRtt, &[1]);
                    *packet.last_mut().unwrap() ^= 1;
                    (0..1000).for_each(|_| l.send(&packet));
                },
                Want::Dropped,
            ),
        ],
    )
}
