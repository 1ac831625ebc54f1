//! Initial packets, and packets from elsewhere (RFC 9000, sections 5.2, 7.2, 14.1 and 17.2.2).

use super::{UP, filled, hello, ping};
use crate::lab::Stage;
use crate::raw::eight;
use crate::rows::made;
use crate::table::{CLIENT, Row, SERVER, Want, row};
use forebay_quic::frame;
use forebay_quic::packet::Kind;

pub fn rows() -> Vec<Row> {
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
            |l| ping(l, Kind::Initial, |s| s.src = Some(eight(5))),
            Want::Dropped,
        ),
        row(
            "7.2",
            SERVER,
            Stage::Hello,
            "a Handshake packet from another identifier",
            |l| ping(l, Kind::Handshake, |s| s.src = Some(eight(5))),
            Want::Dropped,
        ),
        row(
            "7.2",
            CLIENT,
            Stage::Hello,
            "a Handshake packet from another identifier",
            |l| ping(l, Kind::Handshake, |s| s.src = Some(eight(5))),
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
            |l| ping(l, Kind::Initial, |s| s.token = Some(vec![1, 2, 3])),
            Want::Dropped,
        ),
        row(
            "17.2.2",
            CLIENT,
            Stage::Fresh,
            "an Initial packet of a server for another identifier",
            |l| ping(l, Kind::Initial, |s| s.dst = Some(eight(5))),
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
            |l| filled(l, &[0xc0, 0, 0, 0, 1, 8, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0x7f, 0xff]),
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
