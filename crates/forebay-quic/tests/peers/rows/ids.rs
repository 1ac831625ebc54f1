//! Connection identifiers (RFC 9000, sections 5.1, 19.15 and 19.16), resets and the end (section 10).

use super::{fields, made};
use crate::lab::{Lab, Stage};
use crate::node::reset_token;
use crate::raw::{Shape, eight};
use crate::setup::IDS;
use crate::table::{BOTH, CLIENT, Row, SERVER, Want, row};
use forebay_quic::connection::Reason;
use forebay_quic::error::Code;
use forebay_quic::frame::{self, kind};
use forebay_quic::packet::Kind;
use forebay_quic::varint;
use std::time::Duration;

const UP: Stage = Stage::Connected;
const NEW: u64 = kind::NEW_CONNECTION_ID;
const RETIRE: u64 = kind::RETIRE_CONNECTION_ID;

fn new(lab: &mut Lab, number: u64, prior: u64, n: u8, token: u8) {
    let frame = made(|out| frame::push_new_connection_id(out, number, prior, &eight(n), &[token; 16]));
    lab.frames(Kind::OneRtt, &frame);
}

/// Sends NEW_CONNECTION_ID with an identifier of any length.
fn of_len(lab: &mut Lab, len: u8) {
    let mut frame = fields(NEW, &[1, 0]);
    frame.push(len);
    frame.resize(frame.len() + usize::from(len) + 16, 3);
    lab.frames(Kind::OneRtt, &frame);
}

/// Sends a datagram that looks like a packet and ends with a token.
fn reset(lab: &mut Lab, first: u8, token: [u8; 16]) {
    let mut datagram = vec![first; 24];
    datagram[1..9].copy_from_slice(&lab.raw.remote);
    datagram.extend(token);
    lab.send(&datagram);
}

fn is_reset(reason: &Reason) -> bool {
    *reason == Reason::Reset
}

pub fn rows() -> Vec<Row> {
    [new_ids(), retired(), resets(), ends()].into_iter().flatten().collect()
}

fn new_ids() -> Vec<Row> {
    const FORM: Code = Code::FRAME_ENCODING_ERROR;
    const PROTOCOL: Code = Code::PROTOCOL_VIOLATION;
    vec![
        row(
            "5.1.1",
            BOTH,
            UP,
            "as many identifiers as are kept",
            |l| {
                (1..IDS).for_each(|n| new(l, n, 0, n as u8, n as u8));
            },
            Want::Ignored,
        ),
        row(
            "5.1.1",
            BOTH,
            UP,
            "an identifier too many",
            |l| {
                (1..=IDS).for_each(|n| new(l, n, 0, n as u8, n as u8));
            },
            Want::Close(Code::CONNECTION_ID_LIMIT_ERROR, NEW),
        ),
        row("19.15", BOTH, UP, "an identifier of no bytes", |l| of_len(l, 0), Want::Close(FORM, NEW)),
        row("19.15", BOTH, UP, "an identifier of 21 bytes", |l| of_len(l, 21), Want::Close(FORM, NEW)),
        row("19.15", BOTH, UP, "an identifier of 20 bytes", |l| of_len(l, 20), Want::Ignored),
        row("19.15", BOTH, UP, "an identifier of one byte", |l| of_len(l, 1), Want::Ignored),
        row(
            "19.15",
            BOTH,
            UP,
            "an identifier although none are used",
            |l| new(l, 1, 0, 1, 1),
            Want::Close(PROTOCOL, NEW),
        )
        .with(|s| s.id_len = 0),
        row(
            "19.15",
            BOTH,
            UP,
            "the same frame twice",
            |l| {
                new(l, 1, 0, 1, 1);
                new(l, 1, 0, 1, 1);
            },
            Want::Ignored,
        ),
        row(
            "19.15",
            BOTH,
            UP,
            "one number for two identifiers",
            |l| {
                new(l, 1, 0, 1, 1);
                new(l, 1, 0, 2, 1);
            },
            Want::Close(PROTOCOL, NEW),
        ),
        row(
            "19.15",
            BOTH,
            UP,
            "one identifier with two numbers",
            |l| {
                new(l, 1, 0, 1, 1);
                new(l, 2, 0, 1, 1);
            },
            Want::Close(PROTOCOL, NEW),
        ),
        row(
            "19.15",
            BOTH,
            UP,
            "one identifier with two tokens",
            |l| {
                new(l, 1, 0, 1, 1);
                new(l, 1, 0, 1, 2);
            },
            Want::Close(PROTOCOL, NEW),
        ),
        row(
            "19.15",
            BOTH,
            UP,
            "retire prior to a larger number",
            |l| new(l, 1, 2, 1, 1),
            Want::Close(FORM, NEW),
        ),
        row(
            "19.15",
            BOTH,
            UP,
            "retire prior to a smaller number than before",
            |l| {
                new(l, 2, 2, 2, 2);
                new(l, 3, 0, 3, 3);
            },
            Want::Ignored,
        ),
        row(
            "19.15",
            BOTH,
            UP,
            "an identifier that was retired before it came",
            |l| {
                new(l, 2, 2, 2, 2);
                new(l, 1, 0, 1, 1);
            },
            Want::Answered("RetireConnectionId(1)"),
        ),
        row(
            "19.15",
            BOTH,
            UP,
            "the same frame, which retires more",
            |l| {
                new(l, 1, 0, 1, 1);
                new(l, 1, 1, 1, 1);
            },
            Want::Answered("RetireConnectionId(0)"),
        ),
        row(
            "5.1.2",
            BOTH,
            UP,
            "all identifiers wanted back but one",
            |l| new(l, 1, 1, 1, 1),
            Want::That(|l| {
                l.frames(Kind::OneRtt, &[1]);
                l.wait(Duration::from_millis(30));
                l.raw.count("RetireConnectionId(0)") > 0
                    && l.raw.got.last().is_some_and(|got| got.dst == eight(1))
            }),
        ),
        row(
            "19.15",
            BOTH,
            UP,
            "a frame that is cut off",
            |l| {
                let frame = made(|out| frame::push_new_connection_id(out, 1, 0, &eight(1), &[0; 16]));
                l.frames(Kind::OneRtt, &frame[..frame.len() - 1]);
            },
            Want::Close(FORM, NEW),
        ),
    ]
}

fn retired() -> Vec<Row> {
    const PROTOCOL: Code = Code::PROTOCOL_VIOLATION;
    vec![
        row(
            "19.16",
            BOTH,
            UP,
            "an identifier retired that was not given",
            |l| {
                l.frames(Kind::OneRtt, &fields(RETIRE, &[3]));
            },
            Want::Close(PROTOCOL, RETIRE),
        ),
        row(
            "19.16",
            BOTH,
            UP,
            "the largest number retired",
            |l| {
                l.frames(Kind::OneRtt, &fields(RETIRE, &[varint::MAX]));
            },
            Want::Close(PROTOCOL, RETIRE),
        ),
        row(
            "19.16",
            BOTH,
            UP,
            "the identifier of the packet retired",
            |l| {
                l.frames(Kind::OneRtt, &fields(RETIRE, &[0]));
            },
            Want::Close(PROTOCOL, RETIRE),
        ),
        row(
            "5.1.1",
            BOTH,
            UP,
            "another identifier retired",
            |l| {
                l.raw.ids.clear();
                l.frames(Kind::OneRtt, &fields(RETIRE, &[1]));
            },
            Want::Answered("NewConnectionId { sequence: 3"),
        ),
        row(
            "19.16",
            BOTH,
            UP,
            "one identifier retired twice",
            |l| {
                l.frames(Kind::OneRtt, &fields(RETIRE, &[1]));
                l.frames(Kind::OneRtt, &fields(RETIRE, &[1]));
            },
            Want::Ignored,
        ),
        row(
            "5.1.2",
            BOTH,
            UP,
            "a packet to a retired identifier",
            |l| {
                l.frames(Kind::OneRtt, &fields(RETIRE, &[1]));
                let (_, dst, _) = l.raw.ids[l.raw.ids.iter().position(|(n, ..)| *n == 1).expect("one")];
                let taken = l.node.taken();
                l.shaped(Kind::OneRtt, &[1], &Shape { dst: Some(dst), ..Shape::default() });
                assert_eq!(l.node.taken(), taken);
            },
            Want::That(|l| l.is_open()),
        ),
        row(
            "5.1.1",
            BOTH,
            UP,
            "a packet to each identifier",
            |l| {
                for (_, dst, _) in l.raw.ids.clone() {
                    let taken = l.node.taken();
                    l.shaped(Kind::OneRtt, &[1], &Shape { dst: Some(dst), ..Shape::default() });
                    assert_eq!(l.node.taken(), taken + 1);
                }
            },
            Want::That(|l| l.is_open() && l.raw.ids.len() == 2),
        ),
        row(
            "19.16",
            BOTH,
            UP,
            "RETIRE_CONNECTION_ID without a number",
            |l| l.frames(Kind::OneRtt, &[RETIRE as u8]),
            Want::Close(Code::FRAME_ENCODING_ERROR, RETIRE),
        ),
    ]
}

fn resets() -> Vec<Row> {
    vec![
        row(
            "10.3",
            BOTH,
            UP,
            "a reset by a token that no identifier in use has",
            |l| {
                new(l, 1, 0, 1, 0x55);
                let taken = l.node.taken();
                reset(l, 0x41, [0x55; 16]);
                assert_eq!(l.node.taken(), taken);
            },
            Want::That(|l| l.is_open()),
        ),
        row(
            "10.3.1",
            BOTH,
            UP,
            "a reset by the token of the identifier in use",
            |l| {
                new(l, 1, 1, 1, 0x55);
                reset(l, 0x41, [0x55; 16]);
            },
            Want::Lost(is_reset),
        ),
        row(
            "10.3",
            BOTH,
            UP,
            "a reset that looks like a long header",
            |l| {
                new(l, 1, 1, 1, 0x55);
                let mut datagram = vec![0xc0, 0, 0, 0, 1, 8];
                datagram.extend(&*l.raw.remote);
                datagram.extend([0; 20]);
                datagram.extend([0x55; 16]);
                l.send(&datagram);
            },
            Want::Lost(is_reset),
        ),
        row(
            "10.3",
            BOTH,
            UP,
            "a reset with bits that no packet has",
            |l| {
                new(l, 1, 1, 1, 0x55);
                reset(l, 0x01, [0x55; 16]);
            },
            Want::Lost(is_reset),
        ),
        row(
            "10.3.1",
            BOTH,
            UP,
            "a reset for an identifier that means nothing",
            |l| {
                new(l, 1, 1, 1, 0x55);
                let mut datagram = vec![0x41; 24];
                datagram.extend([0x55; 16]);
                l.send(&datagram);
            },
            Want::Lost(is_reset),
        ),
        row(
            "10.3.1",
            BOTH,
            UP,
            "a reset by the token of a retired identifier",
            |l| {
                new(l, 1, 1, 1, 0x55);
                new(l, 2, 2, 2, 0x66);
                let taken = l.node.taken();
                reset(l, 0x41, [0x55; 16]);
                assert_eq!(l.node.taken(), taken);
            },
            Want::That(|l| l.is_open()),
        ),
        row(
            "10.3.1",
            CLIENT,
            UP,
            "a reset by the token of the transport parameters",
            |l| reset(l, 0x41, [0x77; 16]),
            Want::Lost(is_reset),
        )
        .with(|s| s.parameters = |p| p.stateless_reset_token = Some([0x77; 16])),
        row(
            "10.3.1",
            BOTH,
            UP,
            "a reset that differs in one bit",
            |l| {
                new(l, 1, 1, 1, 0x55);
                let mut token = [0x55; 16];
                token[15] ^= 1;
                let taken = l.node.taken();
                reset(l, 0x41, token);
                assert_eq!(l.node.taken(), taken);
            },
            Want::That(|l| l.is_open()),
        ),
        row(
            "10.3",
            SERVER,
            Stage::Fresh,
            "a packet of no connection",
            |l| {
                let mut datagram = vec![0x41; 40];
                datagram[1..9].copy_from_slice(&[9; 8]);
                l.send(&datagram);
            },
            Want::That(|l| {
                let [answer] = &l.sent[..] else { return false };
                answer.bytes.len() < 40
                    && answer.bytes.ends_with(&reset_token(&[9; 8]))
                    && answer.bytes[0] & 0xc0 == 0x40
            }),
        ),
        row(
            "10.3",
            SERVER,
            Stage::Fresh,
            "a packet of no connection that is too short",
            |l| l.send(&[0x41; 21]),
            Want::Nothing,
        ),
        row(
            "10.3",
            SERVER,
            Stage::Fresh,
            "a packet without an identifier",
            |l| l.send(&[0x41; 8]),
            Want::Nothing,
        ),
    ]
}

fn ends() -> Vec<Row> {
    fn closed(lab: &mut Lab) {
        lab.frames(Kind::OneRtt, &fields(kind::CONNECTION_CLOSE, &[0, 0, 0]));
    }
    vec![
        row(
            "10.2.2",
            BOTH,
            UP,
            "packets behind CONNECTION_CLOSE",
            |l| {
                closed(l);
                let sent = l.sent.len();
                (0..10).for_each(|_| l.frames(Kind::OneRtt, &[1]));
                assert_eq!(l.sent.len(), sent);
            },
            Want::Lost(|r| matches!(r, Reason::PeerError(_))),
        ),
        row(
            "10.2.2",
            BOTH,
            UP,
            "frames behind CONNECTION_CLOSE in its packet",
            |l| {
                let mut frames = fields(kind::CONNECTION_CLOSE, &[0, 0, 0]);
                frames.push(0x3f);
                l.frames(Kind::OneRtt, &frames);
            },
            Want::Lost(|r| matches!(r, Reason::PeerError(_))),
        ),
        row(
            "10.2",
            BOTH,
            UP,
            "CONNECTION_CLOSE of the application",
            |l| {
                l.frames(Kind::OneRtt, &fields(kind::CONNECTION_CLOSE_APP, &[77, 0]));
            },
            Want::Lost(|r| matches!(r, Reason::PeerClosed { code: 77, .. })),
        ),
        row(
            "10.2.1",
            BOTH,
            UP,
            "packets behind an error",
            |l| {
                l.frames(Kind::OneRtt, &[0x3f]);
                (0..100).for_each(|_| l.frames(Kind::OneRtt, &[1]));
            },
            Want::That(|l| !l.is_open() && (2..=9).contains(&l.raw.closes.len())),
        ),
        row(
            "10.2.1",
            BOTH,
            UP,
            "CONNECTION_CLOSE behind an error",
            |l| {
                l.frames(Kind::OneRtt, &[0x3f]);
                closed(l);
            },
            Want::That(|l| !l.is_open()),
        ),
        row(
            "10.2",
            BOTH,
            UP,
            "silence behind an error",
            |l| {
                l.frames(Kind::OneRtt, &[0x3f]);
                l.wait(Duration::from_secs(10));
            },
            Want::That(|l| l.node.connections.is_empty() && l.raw.closes.len() == 1),
        ),
        row(
            "10.1",
            BOTH,
            UP,
            "silence",
            |l| l.wait(Duration::from_secs(31)),
            Want::Lost(|r| *r == Reason::TimedOut),
        ),
        row(
            "10.1",
            BOTH,
            UP,
            "packets, and acknowledgments of none",
            |l| {
                // Something to acknowledge.
                l.frames(Kind::OneRtt, &[0x1a, 1, 2, 3, 4, 5, 6, 7, 8]);
                for _ in 0..1000 {
                    l.wait(Duration::from_secs(1));
                    l.frames(Kind::OneRtt, &[0x01]);
                }
            },
            Want::Lost(|r| *r == Reason::TimedOut),
        ),
        row(
            "10.1",
            BOTH,
            UP,
            "silence and a shorter timeout of the peer",
            |l| l.wait(Duration::from_secs(4)),
            Want::Lost(|r| *r == Reason::TimedOut),
        )
        .with(|s| s.parameters = |p| p.max_idle_timeout = 3000),
        row(
            "19.19",
            BOTH,
            UP,
            "CONNECTION_CLOSE with a reason longer than the packet",
            |l| {
                l.frames(Kind::OneRtt, &fields(kind::CONNECTION_CLOSE, &[0, 0, 50]));
            },
            Want::Close(Code::FRAME_ENCODING_ERROR, kind::CONNECTION_CLOSE),
        ),
        row(
            "19.19",
            BOTH,
            UP,
            "CONNECTION_CLOSE with a reason that is no text",
            |l| {
                let mut frame = fields(kind::CONNECTION_CLOSE, &[1, 0, 2]);
                frame.extend([0xff, 0xfe]);
                l.frames(Kind::OneRtt, &frame);
            },
            Want::Lost(|r| matches!(r, Reason::PeerError(_))),
        ),
        row(
            "10.2.3",
            SERVER,
            Stage::Hello,
            "an error before the handshake is complete",
            |l| l.frames(Kind::Handshake, &[0x3f]),
            Want::Close(Code::FRAME_ENCODING_ERROR, 0x3f),
        ),
        row("5.1", BOTH, UP, "an identifier of no bytes", |l| l.frames(Kind::OneRtt, &[1]), Want::Ignored)
            .with(|s| s.id_len = 0),
    ]
}
