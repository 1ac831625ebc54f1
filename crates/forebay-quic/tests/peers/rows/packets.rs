//! Packets and their headers (RFC 9000, sections 5.2, 12, 14.1 and 17; RFC 9001, section 5; RFC 9287).

use super::made;
use crate::lab::{Lab, Stage};
use crate::raw::{Shape, eight};
use crate::table::{BOTH, CLIENT, Row, SERVER, Want, of, row};
use forebay_quic::endpoint::Answer;
use forebay_quic::error::Code;
use forebay_quic::frame;
use forebay_quic::packet::Kind;
use std::time::Duration;

const UP: Stage = Stage::Connected;
const PROTOCOL: Code = Code::PROTOCOL_VIOLATION;

fn shape(change: impl FnOnce(&mut Shape)) -> Shape {
    let mut shape = Shape::default();
    change(&mut shape);
    shape
}

/// Sends a packet with PING.
fn ping(lab: &mut Lab, kind: Kind, change: impl FnOnce(&mut Shape)) {
    lab.shaped(kind, &[1], &shape(change));
}

/// Sends the first message of a client, with unusual packets.
fn hello(lab: &mut Lab, len: usize, change: impl Fn(&mut Shape)) {
    let hello = lab.raw.hello().to_vec();
    for (at, part) in hello.chunks(1000).enumerate() {
        let mut frames = made(|out| frame::push_crypto(out, at as u64 * 1000, part));
        frames.resize(frames.len().max(len), 0);
        let packet = lab.raw.shaped(Kind::Initial, &frames, &shape(&change));
        lab.send(&packet);
    }
}

pub fn rows() -> Vec<Row> {
    let mut all =
        [headers(), numbers(), datagrams(), initials(), unknown()].into_iter().flatten().collect::<Vec<_>>();
    all.extend(of(9001, protection()));
    all.extend(of(9287, fixed()));
    all
}

fn headers() -> Vec<Row> {
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
            |l| {
                let mut packet = vec![0xc0, 0, 0, 0, 1, 21];
                packet.resize(1200, 7);
                l.send(&packet);
            },
            Want::Nothing,
        ),
        row(
            "17.2",
            SERVER,
            Stage::Fresh,
            "a long header with an identifier of 21 bytes of the client",
            |l| {
                let mut packet = vec![0xc0, 0, 0, 0, 1, 8, 1, 2, 3, 4, 5, 6, 7, 8, 21];
                packet.resize(1200, 7);
                l.send(&packet);
            },
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

fn numbers() -> Vec<Row> {
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
            |l| {
                ping(l, Kind::Handshake, |s| s.number = Some(0));
            },
            Want::Ignored,
        ),
    ]
}

fn datagrams() -> Vec<Row> {
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

fn initials() -> Vec<Row> {
    vec![
        row(
            "14.1",
            SERVER,
            Stage::Fresh,
            "a first Initial packet in a datagram of 1199 bytes",
            |l| {
                let hello = made(|out| frame::push_crypto(out, 0, &l.raw.hello()[..900]));
                let probe = l.raw.packet(Kind::Initial, &hello).len();
                let mut frames = hello;
                frames.resize(frames.len() + 1199 - probe, 0);
                let packet = l.raw.packet(Kind::Initial, &frames);
                assert_eq!(packet.len(), 1199);
                l.send(&packet);
            },
            Want::Nothing,
        ),
        row(
            "14.1",
            SERVER,
            Stage::Hello,
            "a later Initial packet in a small datagram",
            |l| {
                let packet = l.raw.packet(Kind::Initial, &[1, 0, 0, 0]);
                l.send(&packet);
            },
            Want::Dropped,
        ),
        row(
            "14.1",
            SERVER,
            Stage::Hello,
            "a small Initial packet and others in a large datagram",
            |l| {
                let mut datagram = l.raw.packet(Kind::Initial, &[1, 0, 0, 0]);
                datagram.resize(1200, 0);
                l.send(&datagram);
            },
            Want::Ignored,
        ),
        row(
            "7.2",
            SERVER,
            Stage::Fresh,
            "an Initial packet to an identifier of seven bytes",
            |l| {
                let id = forebay_quic::id::ConnectionId::new(&[5; 7]).unwrap();
                l.raw.initial =
                    forebay_quic::packet::protect::initial_keys(l.raw.version, &id, l.raw.side).ok();
                hello(l, 1170, |s| s.dst = Some(id));
            },
            Want::Nothing,
        ),
        row(
            "7.2",
            SERVER,
            Stage::Hello,
            "an Initial packet from another identifier",
            |l| {
                ping(l, Kind::Initial, |s| s.src = Some(eight(5)));
            },
            Want::Dropped,
        ),
        row(
            "7.2",
            SERVER,
            Stage::Hello,
            "a Handshake packet from another identifier",
            |l| {
                ping(l, Kind::Handshake, |s| s.src = Some(eight(5)));
            },
            Want::Dropped,
        ),
        row(
            "7.2",
            CLIENT,
            Stage::Hello,
            "a Handshake packet from another identifier",
            |l| {
                ping(l, Kind::Handshake, |s| s.src = Some(eight(5)));
            },
            Want::Dropped,
        ),
        row(
            "7.2",
            CLIENT,
            Stage::Fresh,
            "Initial packets from two identifiers",
            |l| {
                ping(l, Kind::Initial, |_| {});
                let taken = l.node.taken();
                ping(l, Kind::Initial, |s| s.src = Some(eight(5)));
                assert_eq!(l.node.taken(), taken);
            },
            Want::That(|l| l.is_open()),
        ),
        row(
            "17.2.2",
            CLIENT,
            Stage::Fresh,
            "an Initial packet of a server with a token",
            |l| {
                ping(l, Kind::Initial, |s| s.token = Some(vec![1, 2, 3]));
            },
            Want::Dropped,
        ),
        row(
            "17.2.2",
            CLIENT,
            Stage::Fresh,
            "an Initial packet of a server for another identifier",
            |l| {
                ping(l, Kind::Initial, |s| s.dst = Some(eight(5)));
            },
            Want::Dropped,
        ),
        row(
            "5.2",
            SERVER,
            Stage::Fresh,
            "an Initial packet that is not authentic",
            |l| {
                let packet = made(|out| {
                    let mut packet = l.raw.packet(Kind::Initial, &[1; 1170]);
                    packet[1170] ^= 1;
                    out.extend(packet);
                });
                l.send(&packet);
            },
            Want::Nothing,
        ),
        row(
            "17.2.2",
            SERVER,
            Stage::Fresh,
            "an Initial packet whose token is longer than the datagram",
            |l| {
                let mut packet = vec![0xc0, 0, 0, 0, 1, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0x7f, 0xff];
                packet.resize(1200, 7);
                l.send(&packet);
            },
            Want::Nothing,
        ),
        row(
            "17.2.2.1",
            SERVER,
            UP,
            "an Initial packet behind the handshake",
            |l| ping(l, Kind::Initial, |_| {}),
            Want::Dropped,
        ),
        row(
            "17.2.2.1",
            CLIENT,
            UP,
            "an Initial packet behind the handshake",
            |l| ping(l, Kind::Initial, |_| {}),
            Want::Dropped,
        ),
        row(
            "5.2",
            CLIENT,
            UP,
            "a packet from another address of a server",
            |l| {
                let packet = l.raw.packet(Kind::OneRtt, &[1]);
                l.send_from(crate::lab::address(7, 443), &packet);
            },
            Want::Dropped,
        ),
        row(
            "5.2",
            SERVER,
            Stage::Hello,
            "a packet from another address before the handshake is complete",
            |l| {
                let packet = l.raw.packet(Kind::Handshake, &[1, 0, 0, 0]);
                l.send_from(crate::lab::address(7, 40_000), &packet);
            },
            Want::Dropped,
        ),
    ]
}

fn unknown() -> Vec<Row> {
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
            |l| {
                let mut packet = vec![0xe0, 0, 0, 0, 1, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0x44, 0x00];
                packet.resize(1200, 7);
                l.send(&packet);
            },
            Want::Nothing,
        ),
        row(
            "5.2.2",
            SERVER,
            Stage::Fresh,
            "a 0-RTT packet of no connection",
            |l| {
                let mut packet = vec![0xd0, 0, 0, 0, 1, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0x44, 0x00];
                packet.resize(1200, 7);
                l.send(&packet);
            },
            Want::Nothing,
        ),
        row(
            "17.2.5",
            SERVER,
            Stage::Fresh,
            "a Retry packet of no connection",
            |l| {
                let mut packet = vec![0xf0, 0, 0, 0, 1, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0];
                packet.resize(1200, 7);
                l.send(&packet);
            },
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

fn protection() -> Vec<Row> {
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
            |l| {
                l.frames(Kind::OneRtt, &[0x3f]);
            },
            Want::Dropped,
        ),
        row(
            "5.7",
            SERVER,
            Stage::Hello,
            "a 1-RTT packet that came early, and then the handshake",
            |l| {
                l.frames(Kind::OneRtt, &super::fields(8, &[0]));
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

fn fixed() -> Vec<Row> {
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
