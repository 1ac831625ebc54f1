//! Forms of frames (RFC 9000, sections 12.4 and 19; RFC 9221), and acknowledgments (sections 13 and 19.3).

use super::{fields, made};
use crate::lab::{Lab, Stage};
use crate::table::{BOTH, CLIENT, Row, SERVER, Want, of, row};
use forebay_quic::error::Code;
use forebay_quic::frame::{self, kind};
use forebay_quic::packet::Kind;
use forebay_quic::varint;

const UP: Stage = Stage::Connected;
const PROTOCOL: Code = Code::PROTOCOL_VIOLATION;
const FORM: Code = Code::FRAME_ENCODING_ERROR;

fn send(lab: &mut Lab, frame: &[u8]) {
    lab.frames(Kind::OneRtt, frame);
}

/// Sends frames and nothing else: no PADDING follows.
fn bare(lab: &mut Lab, frame: &[u8]) {
    lab.shaped(Kind::OneRtt, frame, &crate::raw::Shape { is_bare: true, ..Default::default() });
}

pub fn rows() -> Vec<Row> {
    let mut all: Vec<Row> = [types(), cut(), acks()].into_iter().flatten().collect();
    all.extend(of(9221, datagrams()));
    all
}

fn types() -> Vec<Row> {
    vec![
        row("12.4", BOTH, UP, "a packet without a frame", |l| bare(l, &[]), Want::Close(PROTOCOL, 0)),
        row("12.4", BOTH, UP, "an unknown type", |l| send(l, &[0x1f]), Want::Close(FORM, 0x1f)),
        row(
            "12.4",
            BOTH,
            UP,
            "an unknown type of two bytes",
            |l| send(l, &[0x40, 0x52]),
            Want::Close(FORM, 0x52),
        ),
        row(
            "12.4",
            BOTH,
            UP,
            "an unknown type of eight bytes",
            |l| send(l, &[0xff; 8]),
            Want::Close(FORM, varint::MAX),
        ),
        row(
            "12.4",
            BOTH,
            UP,
            "an unknown type that is cut off",
            |l| bare(l, &[1, 1, 1, 0xc0, 0, 0]),
            Want::Close(FORM, 0),
        ),
        row(
            "12.4",
            BOTH,
            UP,
            "a type in two bytes that fits into one",
            |l| send(l, &[0x40, 0x01]),
            Want::Close(PROTOCOL, kind::PING),
        ),
        row(
            "12.4",
            BOTH,
            UP,
            "a type in eight bytes that fits into one",
            |l| send(l, &[0xc0, 0, 0, 0, 0, 0, 0, 6]),
            Want::Close(PROTOCOL, kind::CRYPTO),
        ),
        row(
            "12.4",
            BOTH,
            UP,
            "an unknown type behind other frames",
            |l| send(l, &[1, 0, 0, 1, 0x21]),
            Want::Close(FORM, 0x21),
        ),
        row(
            "19.20",
            SERVER,
            UP,
            "HANDSHAKE_DONE",
            |l| send(l, &[kind::HANDSHAKE_DONE as u8]),
            Want::Close(PROTOCOL, kind::HANDSHAKE_DONE),
        ),
        row(
            "19.20",
            CLIENT,
            UP,
            "HANDSHAKE_DONE again",
            |l| send(l, &[kind::HANDSHAKE_DONE as u8]),
            Want::Ignored,
        ),
        row(
            "19.7",
            SERVER,
            UP,
            "NEW_TOKEN",
            |l| send(l, &made(|out| frame::push_new_token(out, b"token"))),
            Want::Close(PROTOCOL, kind::NEW_TOKEN),
        ),
        row(
            "19.7",
            CLIENT,
            UP,
            "NEW_TOKEN without a token",
            |l| send(l, &fields(kind::NEW_TOKEN, &[0])),
            Want::Close(FORM, kind::NEW_TOKEN),
        ),
        row(
            "19.7",
            CLIENT,
            UP,
            "the same token twice",
            |l| {
                let frame = made(|out| frame::push_new_token(out, b"token"));
                send(l, &[frame.clone(), frame].concat());
            },
            Want::Ignored,
        ),
        row(
            "19.18",
            BOTH,
            UP,
            "PATH_RESPONSE to no question",
            |l| send(l, &made(|out| frame::push_path_response(out, [1; 8]))),
            Want::Ignored,
        ),
        row(
            "8.2.2",
            BOTH,
            UP,
            "PATH_CHALLENGE",
            |l| send(l, &made(|out| frame::push_path_challenge(out, [3; 8]))),
            Want::That(|l| {
                l.raw
                    .got
                    .iter()
                    .any(|got| got.frame == "PathResponse([3, 3, 3, 3, 3, 3, 3, 3])" && got.size == 1200)
            }),
        ),
        row(
            "8.2.2",
            BOTH,
            UP,
            "two PATH_CHALLENGE in a packet",
            |l| {
                let frame = made(|out| {
                    frame::push_path_challenge(out, [3; 8]);
                    frame::push_path_challenge(out, [4; 8]);
                });
                send(l, &frame);
            },
            Want::Answered("PathResponse([4"),
        ),
        row("19.1", BOTH, UP, "a packet of PADDING", |l| send(l, &[0; 1000]), Want::Ignored),
        row(
            "19.2",
            BOTH,
            UP,
            "PING",
            |l| {
                send(l, &[1]);
                send(l, &[1]);
            },
            Want::Answered("Ack"),
        ),
    ]
}

/// Each type of frame, cut off behind each of its bytes.
fn cut() -> Vec<Row> {
    fn cuts(lab: &mut Lab, whole: &[u8]) {
        // The others are the same with another connection: the longest part is the one that is most nearly whole.
        bare(lab, &[&[1, 1, 1][..], &whole[..whole.len() - 1]].concat());
    }
    vec![
        row("19.3", BOTH, UP, "ACK that is cut off", |l| cuts(l, &[2, 0, 0, 0, 0]), Want::Close(FORM, 2)),
        row(
            "19.3",
            BOTH,
            UP,
            "ACK with counts that is cut off",
            |l| cuts(l, &[3, 0, 0, 0, 0, 0, 0, 0]),
            Want::Close(FORM, 3),
        ),
        row(
            "19.4",
            BOTH,
            UP,
            "RESET_STREAM that is cut off",
            |l| cuts(l, &[4, 0, 0, 0]),
            Want::Close(FORM, 4),
        ),
        row("19.5", BOTH, UP, "STOP_SENDING that is cut off", |l| cuts(l, &[5, 0, 0]), Want::Close(FORM, 5)),
        row("19.6", BOTH, UP, "CRYPTO that is cut off", |l| cuts(l, &[6, 0, 2, 1, 1]), Want::Close(FORM, 6)),
        row(
            "19.7",
            CLIENT,
            UP,
            "NEW_TOKEN that is cut off",
            |l| cuts(l, &[7, 2, 1, 1]),
            Want::Close(FORM, 7),
        ),
        row(
            "19.8",
            BOTH,
            UP,
            "STREAM that is cut off",
            |l| cuts(l, &[0x0e, 0, 0, 2, 1, 1]),
            Want::Close(FORM, 0x0e),
        ),
        row(
            "19.9",
            BOTH,
            UP,
            "MAX_DATA that is cut off",
            |l| cuts(l, &[0x10, 0x40, 1]),
            Want::Close(FORM, 0x10),
        ),
        row(
            "19.10",
            BOTH,
            UP,
            "MAX_STREAM_DATA that is cut off",
            |l| cuts(l, &[0x11, 0, 0]),
            Want::Close(FORM, 0x11),
        ),
        row(
            "19.11",
            BOTH,
            UP,
            "MAX_STREAMS that is cut off",
            |l| cuts(l, &[0x12, 0]),
            Want::Close(FORM, 0x12),
        ),
        row(
            "19.12",
            BOTH,
            UP,
            "DATA_BLOCKED that is cut off",
            |l| cuts(l, &[0x14, 0]),
            Want::Close(FORM, 0x14),
        ),
        row(
            "19.13",
            BOTH,
            UP,
            "STREAM_DATA_BLOCKED that is cut off",
            |l| cuts(l, &[0x15, 0, 0]),
            Want::Close(FORM, 0x15),
        ),
        row(
            "19.14",
            BOTH,
            UP,
            "STREAMS_BLOCKED that is cut off",
            |l| cuts(l, &[0x17, 0]),
            Want::Close(FORM, 0x17),
        ),
        row(
            "19.16",
            BOTH,
            UP,
            "RETIRE_CONNECTION_ID that is cut off",
            |l| cuts(l, &[0x19, 0]),
            Want::Close(FORM, 0x19),
        ),
        row(
            "19.17",
            BOTH,
            UP,
            "PATH_CHALLENGE that is cut off",
            |l| cuts(l, &[0x1a, 0, 0, 0, 0, 0, 0, 0, 0]),
            Want::Close(FORM, 0x1a),
        ),
        row(
            "19.18",
            BOTH,
            UP,
            "PATH_RESPONSE that is cut off",
            |l| cuts(l, &[0x1b, 0, 0, 0, 0, 0, 0, 0, 0]),
            Want::Close(FORM, 0x1b),
        ),
        row(
            "19.19",
            BOTH,
            UP,
            "CONNECTION_CLOSE that is cut off",
            |l| cuts(l, &[0x1c, 0, 0, 0]),
            Want::Close(FORM, 0x1c),
        ),
        row(
            "19.19",
            BOTH,
            UP,
            "CONNECTION_CLOSE of the application that is cut off",
            |l| cuts(l, &[0x1d, 0, 0]),
            Want::Close(FORM, 0x1d),
        ),
        row(
            "19.6",
            BOTH,
            UP,
            "CRYPTO that ends behind 2^62 - 1",
            |l| {
                send(l, &made(|out| frame::push_crypto(out, varint::MAX, &[1])));
            },
            Want::Close(FORM, kind::CRYPTO),
        ),
    ]
}

fn acks() -> Vec<Row> {
    /// Returns ACK of a number, with some packets before it, and ranges of gap and length.
    fn ack(largest: u64, first: u64, ranges: &[[u64; 2]]) -> Vec<u8> {
        let mut all = vec![largest, 0, ranges.len() as u64, first];
        all.extend(ranges.iter().flatten());
        fields(kind::ACK, &all)
    }
    vec![
        row(
            "13.1",
            BOTH,
            UP,
            "acknowledgment of a packet that was not sent",
            |l| send(l, &ack(1000, 0, &[])),
            Want::Close(PROTOCOL, kind::ACK),
        ),
        row(
            "13.1",
            BOTH,
            UP,
            "acknowledgment of the largest number",
            |l| send(l, &ack(varint::MAX, 0, &[])),
            Want::Close(PROTOCOL, kind::ACK),
        ),
        row(
            "13.1",
            BOTH,
            Stage::Hello,
            "acknowledgment of a Handshake packet that was not sent",
            |l| {
                l.frames(Kind::Handshake, &ack(500, 0, &[]));
            },
            Want::Close(PROTOCOL, kind::ACK),
        ),
        row(
            "13.1",
            CLIENT,
            Stage::Fresh,
            "acknowledgment of an Initial packet that was not sent",
            |l| {
                l.frames(Kind::Initial, &ack(500, 0, &[]));
            },
            Want::Close(PROTOCOL, kind::ACK),
        ),
        row(
            "13.1",
            SERVER,
            Stage::Hello,
            "acknowledgment of an Initial packet that was not sent",
            |l| {
                l.frames(Kind::Initial, &ack(500, 0, &[]));
            },
            Want::Close(PROTOCOL, kind::ACK),
        ),
        row(
            "19.3.1",
            BOTH,
            UP,
            "a first range below 0",
            |l| send(l, &ack(0, 1, &[])),
            Want::Close(FORM, kind::ACK),
        ),
        row(
            "19.3.1",
            BOTH,
            UP,
            "a gap below 0",
            |l| send(l, &ack(2, 0, &[[1, 0]])),
            Want::Close(FORM, kind::ACK),
        ),
        row(
            "19.3.1",
            BOTH,
            UP,
            "a range below 0",
            |l| send(l, &ack(5, 0, &[[0, 4]])),
            Want::Close(FORM, kind::ACK),
        ),
        row(
            "19.3.1",
            BOTH,
            UP,
            "a gap of 2^62 - 1",
            |l| send(l, &ack(5, 0, &[[varint::MAX, 0]])),
            Want::Close(FORM, kind::ACK),
        ),
        row(
            "19.3",
            BOTH,
            UP,
            "more ranges than the frame has",
            |l| bare(l, &fields(kind::ACK, &[5, 0, 3, 0, 0, 0])),
            Want::Close(FORM, kind::ACK),
        ),
        row(
            "19.3",
            BOTH,
            UP,
            "2^62 - 1 ranges",
            |l| bare(l, &fields(kind::ACK, &[5, 0, varint::MAX, 0])),
            Want::Close(FORM, kind::ACK),
        ),
        row(
            "19.3",
            BOTH,
            UP,
            "a delay of 2^62 - 1",
            |l| {
                let largest = l.raw.seen[2].max().unwrap();
                send(l, &fields(kind::ACK, &[largest, varint::MAX, 0, 0]));
            },
            Want::Ignored,
        ),
        row(
            "13.2",
            BOTH,
            UP,
            "the same acknowledgment again",
            |l| {
                let ack = l.raw.ack(Kind::OneRtt);
                send(l, &ack);
                send(l, &ack);
            },
            Want::Ignored,
        ),
        row(
            "13.4.2",
            BOTH,
            UP,
            "counts of ECN that nothing accounts for",
            |l| {
                let largest = l.raw.seen[2].max().unwrap();
                send(l, &fields(kind::ACK_ECN, &[largest, 0, 0, 0, 1000, 1000, varint::MAX]));
            },
            Want::Ignored,
        ),
        row(
            "21.4",
            BOTH,
            UP,
            "acknowledgment of all numbers up to the largest, one of which was skipped",
            |l| {
                let id = l.only().streams().open(forebay_quic::id::Dir::Bi).expect("a stream");
                send(l, &fields(kind::MAX_STREAM_DATA, &[id.0, varint::MAX]));
                send(l, &fields(kind::MAX_DATA, &[varint::MAX]));
                for _ in 0..600 {
                    let _ = l.only().streams().write_slice(id, &[1; 1000]);
                    l.turn();
                    let largest = l.raw.seen[2].max().unwrap();
                    send(l, &ack(largest, largest.min(20), &[]));
                }
            },
            Want::Close(PROTOCOL, kind::ACK),
        ),
    ]
}

fn datagrams() -> Vec<Row> {
    vec![
        row(
            "3",
            BOTH,
            UP,
            "DATAGRAM that was not asked for",
            |l| send(l, &[0x31, 0]),
            Want::Close(PROTOCOL, 0x31),
        ),
        row(
            "3",
            BOTH,
            UP,
            "DATAGRAM without a length that was not asked for",
            |l| bare(l, &[1, 1, 1, 0x30]),
            Want::Close(PROTOCOL, 0x30),
        ),
        row(
            "3",
            BOTH,
            UP,
            "the longest DATAGRAM",
            |l| send(l, &made(|out| frame::push_datagram(out, &[1; 98], false))),
            Want::Ignored,
        )
        .with(|s| s.config = |c| c.datagrams = 101),
        row(
            "3",
            BOTH,
            UP,
            "DATAGRAM one byte too long",
            |l| send(l, &made(|out| frame::push_datagram(out, &[1; 99], false))),
            Want::Close(PROTOCOL, 0x31),
        )
        .with(|s| s.config = |c| c.datagrams = 101),
        row(
            "3",
            BOTH,
            UP,
            "the longest DATAGRAM without a length",
            |l| bare(l, &made(|out| frame::push_datagram(out, &[1; 99], true))),
            Want::Ignored,
        )
        .with(|s| s.config = |c| c.datagrams = 100),
        row(
            "3",
            BOTH,
            UP,
            "DATAGRAM without a length one byte too long",
            |l| bare(l, &made(|out| frame::push_datagram(out, &[1; 100], true))),
            Want::Close(PROTOCOL, 0x30),
        )
        .with(|s| s.config = |c| c.datagrams = 100),
        row(
            "4",
            BOTH,
            UP,
            "DATAGRAM that is cut off",
            |l| bare(l, &[1, 1, 0x31, 2, 1]),
            Want::Close(FORM, 0x31),
        )
        .with(|s| s.config = |c| c.datagrams = 100),
        row(
            "3",
            BOTH,
            UP,
            "this side sends none to a peer that takes none",
            |l| {
                assert!(!l.only().send_datagram(bytes::Bytes::from_static(b"x")));
            },
            Want::That(|l| l.is_open()),
        ),
    ]
}
