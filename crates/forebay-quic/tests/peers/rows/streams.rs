//! Streams and flow control (RFC 9000, sections 2 to 4, and their frames in section 19).

use super::{fields, made, other, own};
use crate::lab::{Lab, Stage};
use crate::setup::{BI, STREAM_WINDOW, UNI, WINDOW};
use crate::table::{BOTH, Row, Want, row};
use forebay_quic::error::Code;
use forebay_quic::frame::{self, kind};
use forebay_quic::id::{Dir, StreamId};
use forebay_quic::packet::Kind;
use forebay_quic::varint;

const UP: Stage = Stage::Connected;
const STATE: Code = Code::STREAM_STATE_ERROR;
const FLOW: Code = Code::FLOW_CONTROL_ERROR;
const SIZE: Code = Code::FINAL_SIZE_ERROR;
const LIMIT: Code = Code::STREAM_LIMIT_ERROR;
const FORM: Code = Code::FRAME_ENCODING_ERROR;

/// Sends STREAM with a length.
fn stream(lab: &mut Lab, id: StreamId, offset: u64, len: usize, fin: bool) {
    let frame = made(|out| frame::push_stream(out, id, offset, &vec![1; len], fin, false));
    lab.frames(Kind::OneRtt, &frame);
}

fn send(lab: &mut Lab, frame: &[u8]) {
    lab.frames(Kind::OneRtt, frame);
}

/// Sends content of streams up to the limit of the connection: two streams and a half.
fn fill(lab: &mut Lab) {
    for index in 0..WINDOW / STREAM_WINDOW {
        let id = own(lab, Dir::Bi, index);
        stream(lab, id, 0, 1000, false);
        stream(lab, id, 1000, 1000, false);
    }
    stream(lab, own(lab, Dir::Uni, 0), 0, (WINDOW % STREAM_WINDOW) as usize, false);
}

/// Opens a stream of the tested side.
fn opened(lab: &mut Lab, dir: Dir) -> StreamId {
    let id = lab.only().streams().open(dir).expect("a stream");
    let _ = lab.only().streams().write_slice(id, b"x");
    lab.turn();
    id
}

pub fn rows() -> Vec<Row> {
    [states(), flow(), sizes(), limits(), extremes()].into_iter().flatten().collect()
}

fn states() -> Vec<Row> {
    vec![
        row(
            "19.4",
            BOTH,
            UP,
            "RESET_STREAM for a stream that only sends",
            |l| {
                let id = opened(l, Dir::Uni);
                send(l, &fields(kind::RESET_STREAM, &[id.0, 0, 0]));
            },
            Want::Close(STATE, kind::RESET_STREAM),
        ),
        row(
            "19.4",
            BOTH,
            UP,
            "RESET_STREAM for a stream of this side that does not exist",
            |l| {
                let id = other(l, Dir::Bi, 0);
                send(l, &fields(kind::RESET_STREAM, &[id.0, 0, 0]));
            },
            Want::Close(STATE, kind::RESET_STREAM),
        ),
        row(
            "19.5",
            BOTH,
            UP,
            "STOP_SENDING for a stream of this side that does not exist",
            |l| {
                let id = other(l, Dir::Bi, 0);
                send(l, &fields(kind::STOP_SENDING, &[id.0, 0]));
            },
            Want::Close(STATE, kind::STOP_SENDING),
        ),
        row(
            "19.5",
            BOTH,
            UP,
            "STOP_SENDING for a stream that only receives",
            |l| {
                let id = own(l, Dir::Uni, 0);
                send(l, &fields(kind::STOP_SENDING, &[id.0, 0]));
            },
            Want::Close(STATE, kind::STOP_SENDING),
        ),
        row(
            "3.5",
            BOTH,
            UP,
            "STOP_SENDING for a stream that sends",
            |l| {
                let id = opened(l, Dir::Bi);
                send(l, &fields(kind::STOP_SENDING, &[id.0, 7]));
            },
            Want::Answered("ResetStream"),
        ),
        row(
            "3.5",
            BOTH,
            UP,
            "STOP_SENDING before anything else of a stream",
            |l| {
                let id = own(l, Dir::Bi, 0);
                send(l, &fields(kind::STOP_SENDING, &[id.0, 7]));
            },
            Want::Answered("ResetStream"),
        ),
        row(
            "19.8",
            BOTH,
            UP,
            "STREAM for a stream of this side that does not exist",
            |l| {
                stream(l, other(l, Dir::Bi, 0), 0, 1, false);
            },
            Want::Close(STATE, kind::STREAM | kind::STREAM_LEN),
        ),
        row(
            "19.8",
            BOTH,
            UP,
            "STREAM for a stream that only sends",
            |l| {
                let id = opened(l, Dir::Uni);
                stream(l, id, 0, 1, false);
            },
            Want::Close(STATE, kind::STREAM | kind::STREAM_LEN),
        ),
        row(
            "19.10",
            BOTH,
            UP,
            "MAX_STREAM_DATA for a stream of this side that does not exist",
            |l| {
                let id = other(l, Dir::Uni, 0);
                send(l, &fields(kind::MAX_STREAM_DATA, &[id.0, 9]));
            },
            Want::Close(STATE, kind::MAX_STREAM_DATA),
        ),
        row(
            "19.10",
            BOTH,
            UP,
            "MAX_STREAM_DATA for a stream that only receives",
            |l| {
                let id = own(l, Dir::Uni, 0);
                send(l, &fields(kind::MAX_STREAM_DATA, &[id.0, 9]));
            },
            Want::Close(STATE, kind::MAX_STREAM_DATA),
        ),
        row(
            "19.13",
            BOTH,
            UP,
            "STREAM_DATA_BLOCKED for a stream that only sends",
            |l| {
                let id = opened(l, Dir::Uni);
                send(l, &fields(kind::STREAM_DATA_BLOCKED, &[id.0, 9]));
            },
            Want::Close(STATE, kind::STREAM_DATA_BLOCKED),
        ),
        row(
            "19.13",
            BOTH,
            UP,
            "STREAM_DATA_BLOCKED for a stream of this side that does not exist",
            |l| {
                let id = other(l, Dir::Bi, 0);
                send(l, &fields(kind::STREAM_DATA_BLOCKED, &[id.0, 9]));
            },
            Want::Close(STATE, kind::STREAM_DATA_BLOCKED),
        ),
        row(
            "3.2",
            BOTH,
            UP,
            "STREAM behind a reset",
            |l| {
                let id = own(l, Dir::Bi, 0);
                send(l, &fields(kind::RESET_STREAM, &[id.0, 0, 10]));
                stream(l, id, 0, 5, false);
            },
            Want::Ignored,
        ),
        row(
            "3.2",
            BOTH,
            UP,
            "RESET_STREAM twice",
            |l| {
                let id = own(l, Dir::Bi, 0);
                send(l, &fields(kind::RESET_STREAM, &[id.0, 0, 10]));
                send(l, &fields(kind::RESET_STREAM, &[id.0, 1, 10]));
            },
            Want::Ignored,
        ),
    ]
}

fn flow() -> Vec<Row> {
    vec![
        row(
            "4.1",
            BOTH,
            UP,
            "more content than a stream may have",
            |l| {
                stream(l, own(l, Dir::Bi, 0), STREAM_WINDOW - 1, 2, false);
            },
            Want::Close(FLOW, kind::STREAM | kind::STREAM_LEN | kind::STREAM_OFF),
        ),
        row(
            "4.1",
            BOTH,
            UP,
            "the last byte that a stream may have",
            |l| {
                stream(l, own(l, Dir::Bi, 0), STREAM_WINDOW - 1, 1, false);
            },
            Want::Ignored,
        ),
        row(
            "19.10",
            BOTH,
            UP,
            "more content than a stream of the other kind may have",
            |l| {
                stream(l, own(l, Dir::Uni, 0), STREAM_WINDOW, 1, false);
            },
            Want::Close(FLOW, kind::STREAM | kind::STREAM_LEN | kind::STREAM_OFF),
        ),
        row(
            "19.10",
            BOTH,
            UP,
            "more content than a stream of this side may get",
            |l| {
                let id = opened(l, Dir::Bi);
                stream(l, id, STREAM_WINDOW, 1, false);
            },
            Want::Close(FLOW, kind::STREAM | kind::STREAM_LEN | kind::STREAM_OFF),
        ),
        row("4.1", BOTH, UP, "all that the connection may have", fill, Want::Ignored),
        row(
            "19.9",
            BOTH,
            UP,
            "more content than the connection may have",
            |l| {
                fill(l);
                stream(l, own(l, Dir::Uni, 1), 0, 1, false);
            },
            Want::Close(FLOW, kind::STREAM | kind::STREAM_LEN),
        ),
        row(
            "4.1",
            BOTH,
            UP,
            "gaps count like content for the connection",
            |l| {
                for index in 0..3 {
                    stream(l, own(l, Dir::Bi, index), STREAM_WINDOW - 1, 1, false);
                }
            },
            Want::Close(FLOW, kind::STREAM | kind::STREAM_LEN | kind::STREAM_OFF),
        ),
        row(
            "4.5",
            BOTH,
            UP,
            "final sizes of resets count for the connection",
            |l| {
                for index in 0..3 {
                    let id = own(l, Dir::Bi, index);
                    send(l, &fields(kind::RESET_STREAM, &[id.0, 0, STREAM_WINDOW]));
                }
            },
            Want::Ignored,
        ),
        row(
            "19.4",
            BOTH,
            UP,
            "RESET_STREAM with more than a stream may have",
            |l| {
                let id = own(l, Dir::Bi, 0);
                send(l, &fields(kind::RESET_STREAM, &[id.0, 0, STREAM_WINDOW + 1]));
            },
            Want::Close(FLOW, kind::RESET_STREAM),
        ),
        row(
            "19.9",
            BOTH,
            UP,
            "RESET_STREAM with more than the connection may have",
            |l| {
                fill(l);
                let id = own(l, Dir::Uni, 1);
                send(l, &fields(kind::RESET_STREAM, &[id.0, 0, 1]));
            },
            Want::Close(FLOW, kind::RESET_STREAM),
        ),
        row(
            "4.1",
            BOTH,
            UP,
            "MAX_DATA that lowers the limit",
            |l| send(l, &fields(kind::MAX_DATA, &[1])),
            Want::Ignored,
        ),
        row(
            "4.1",
            BOTH,
            UP,
            "MAX_STREAM_DATA that lowers the limit",
            |l| {
                let id = opened(l, Dir::Bi);
                send(l, &fields(kind::MAX_STREAM_DATA, &[id.0, 1]));
            },
            Want::Ignored,
        ),
        row(
            "4.1",
            BOTH,
            UP,
            "this side keeps the limit of a stream",
            |l| {
                let id = l.only().streams().open(Dir::Uni).expect("a stream");
                let _ = l.only().streams().write_slice(id, &[0; 20_000]);
                for _ in 0..20 {
                    l.turn();
                    let ack = l.raw.ack(Kind::OneRtt);
                    l.frames(Kind::OneRtt, &ack);
                }
            },
            Want::That(|l| l.is_open() && l.raw.count("StreamDataBlocked") > 0),
        ),
    ]
}

fn sizes() -> Vec<Row> {
    const FIN: u64 = kind::STREAM | kind::STREAM_LEN | kind::STREAM_FIN;
    vec![
        row(
            "4.5",
            BOTH,
            UP,
            "content behind the end",
            |l| {
                let id = own(l, Dir::Bi, 0);
                stream(l, id, 0, 10, true);
                stream(l, id, 10, 1, false);
            },
            Want::Close(SIZE, kind::STREAM | kind::STREAM_LEN | kind::STREAM_OFF),
        ),
        row(
            "4.5",
            BOTH,
            UP,
            "another end",
            |l| {
                let id = own(l, Dir::Bi, 0);
                stream(l, id, 5, 5, true);
                stream(l, id, 0, 9, true);
            },
            Want::Close(SIZE, FIN),
        ),
        row(
            "4.5",
            BOTH,
            UP,
            "an end before content",
            |l| {
                let id = own(l, Dir::Bi, 0);
                stream(l, id, 5, 5, false);
                stream(l, id, 0, 9, true);
            },
            Want::Close(SIZE, FIN),
        ),
        row(
            "4.5",
            BOTH,
            UP,
            "RESET_STREAM with an end before content",
            |l| {
                let id = own(l, Dir::Bi, 0);
                stream(l, id, 0, 10, false);
                send(l, &fields(kind::RESET_STREAM, &[id.0, 0, 9]));
            },
            Want::Close(SIZE, kind::RESET_STREAM),
        ),
        row(
            "4.5",
            BOTH,
            UP,
            "RESET_STREAM with another end",
            |l| {
                let id = own(l, Dir::Bi, 0);
                stream(l, id, 5, 5, true);
                send(l, &fields(kind::RESET_STREAM, &[id.0, 0, 11]));
            },
            Want::Close(SIZE, kind::RESET_STREAM),
        ),
        row(
            "4.5",
            BOTH,
            UP,
            "two resets with different ends",
            |l| {
                let id = own(l, Dir::Bi, 0);
                send(l, &fields(kind::RESET_STREAM, &[id.0, 0, 10]));
                send(l, &fields(kind::RESET_STREAM, &[id.0, 0, 11]));
            },
            Want::Close(SIZE, kind::RESET_STREAM),
        ),
        row(
            "4.5",
            BOTH,
            UP,
            "content behind the end of a reset",
            |l| {
                let id = own(l, Dir::Bi, 0);
                send(l, &fields(kind::RESET_STREAM, &[id.0, 0, 10]));
                stream(l, id, 10, 1, false);
            },
            Want::Close(SIZE, kind::STREAM | kind::STREAM_LEN | kind::STREAM_OFF),
        ),
        row(
            "4.5",
            BOTH,
            UP,
            "the same end again",
            |l| {
                let id = own(l, Dir::Bi, 0);
                stream(l, id, 0, 10, true);
                stream(l, id, 0, 10, true);
            },
            Want::Ignored,
        ),
    ]
}

fn limits() -> Vec<Row> {
    vec![
        row(
            "4.6",
            BOTH,
            UP,
            "the last stream",
            |l| stream(l, own(l, Dir::Bi, BI - 1), 0, 1, false),
            Want::Ignored,
        ),
        row(
            "4.6",
            BOTH,
            UP,
            "STREAM for a stream too many",
            |l| stream(l, own(l, Dir::Bi, BI), 0, 1, false),
            Want::Close(LIMIT, kind::STREAM | kind::STREAM_LEN),
        ),
        row(
            "4.6",
            BOTH,
            UP,
            "STREAM for a stream of one direction too many",
            |l| {
                stream(l, own(l, Dir::Uni, UNI), 0, 1, false);
            },
            Want::Close(LIMIT, kind::STREAM | kind::STREAM_LEN),
        ),
        row(
            "4.6",
            BOTH,
            UP,
            "RESET_STREAM for a stream too many",
            |l| {
                let id = own(l, Dir::Uni, UNI);
                send(l, &fields(kind::RESET_STREAM, &[id.0, 0, 0]));
            },
            Want::Close(LIMIT, kind::RESET_STREAM),
        ),
        row(
            "4.6",
            BOTH,
            UP,
            "STOP_SENDING for a stream too many",
            |l| {
                let id = own(l, Dir::Bi, BI);
                send(l, &fields(kind::STOP_SENDING, &[id.0, 0]));
            },
            Want::Close(LIMIT, kind::STOP_SENDING),
        ),
        row(
            "4.6",
            BOTH,
            UP,
            "MAX_STREAM_DATA for a stream too many",
            |l| {
                let id = own(l, Dir::Bi, BI);
                send(l, &fields(kind::MAX_STREAM_DATA, &[id.0, 0]));
            },
            Want::Close(LIMIT, kind::MAX_STREAM_DATA),
        ),
        row(
            "4.6",
            BOTH,
            UP,
            "STREAM_DATA_BLOCKED for a stream too many",
            |l| {
                let id = own(l, Dir::Uni, UNI);
                send(l, &fields(kind::STREAM_DATA_BLOCKED, &[id.0, 0]));
            },
            Want::Close(LIMIT, kind::STREAM_DATA_BLOCKED),
        ),
        row(
            "4.6",
            BOTH,
            UP,
            "MAX_STREAMS above 2^60",
            |l| {
                send(l, &fields(kind::MAX_STREAMS_BIDI, &[(1 << 60) + 1]));
            },
            Want::Close(FORM, kind::MAX_STREAMS_BIDI),
        ),
        row(
            "19.11",
            BOTH,
            UP,
            "MAX_STREAMS of one direction above 2^60",
            |l| {
                send(l, &fields(kind::MAX_STREAMS_UNI, &[varint::MAX]));
            },
            Want::Close(FORM, kind::MAX_STREAMS_UNI),
        ),
        row(
            "19.14",
            BOTH,
            UP,
            "STREAMS_BLOCKED above 2^60",
            |l| {
                send(l, &fields(kind::STREAMS_BLOCKED_BIDI, &[(1 << 60) + 1]));
            },
            Want::Close(FORM, kind::STREAMS_BLOCKED_BIDI),
        ),
        row(
            "19.14",
            BOTH,
            UP,
            "STREAMS_BLOCKED of one direction above 2^60",
            |l| {
                send(l, &fields(kind::STREAMS_BLOCKED_UNI, &[varint::MAX]));
            },
            Want::Close(FORM, kind::STREAMS_BLOCKED_UNI),
        ),
        row(
            "4.6",
            BOTH,
            UP,
            "MAX_STREAMS that lowers the limit",
            |l| {
                send(l, &fields(kind::MAX_STREAMS_BIDI, &[0]));
            },
            Want::That(|l| l.is_open() && l.only().streams().open(Dir::Bi).is_some()),
        ),
        row(
            "4.6",
            BOTH,
            UP,
            "this side keeps the number of streams",
            |l| {
                while l.only().streams().open(Dir::Uni).is_some() {}
                l.turn();
            },
            Want::Answered("StreamsBlocked { dir: Uni, limit: 3 }"),
        ),
    ]
}

fn extremes() -> Vec<Row> {
    vec![
        row(
            "4.6",
            BOTH,
            UP,
            "STREAM for the largest stream",
            |l| {
                stream(l, own(l, Dir::Bi, (1 << 60) - 1), 0, 1, false);
            },
            Want::Close(LIMIT, kind::STREAM | kind::STREAM_LEN),
        ),
        row(
            "19.8",
            BOTH,
            UP,
            "content that ends behind 2^62 - 1",
            |l| {
                stream(l, own(l, Dir::Bi, 0), varint::MAX, 1, false);
            },
            Want::Close(FORM, kind::STREAM | kind::STREAM_LEN | kind::STREAM_OFF),
        ),
        row(
            "19.8",
            BOTH,
            UP,
            "the end of a stream at 2^62 - 1",
            |l| {
                stream(l, own(l, Dir::Bi, 0), varint::MAX, 0, true);
            },
            Want::Close(FLOW, kind::STREAM | kind::STREAM_LEN | kind::STREAM_OFF | kind::STREAM_FIN),
        ),
        row(
            "19.4",
            BOTH,
            UP,
            "RESET_STREAM with a final size of 2^62 - 1",
            |l| {
                let id = own(l, Dir::Bi, 0);
                send(l, &fields(kind::RESET_STREAM, &[id.0, varint::MAX, varint::MAX]));
            },
            Want::Close(FLOW, kind::RESET_STREAM),
        ),
        row(
            "19.9",
            BOTH,
            UP,
            "MAX_DATA of 2^62 - 1",
            |l| send(l, &fields(kind::MAX_DATA, &[varint::MAX])),
            Want::Ignored,
        ),
        row(
            "19.10",
            BOTH,
            UP,
            "MAX_STREAM_DATA of 2^62 - 1",
            |l| {
                let id = opened(l, Dir::Bi);
                send(l, &fields(kind::MAX_STREAM_DATA, &[id.0, varint::MAX]));
                send(l, &fields(kind::MAX_DATA, &[varint::MAX]));
            },
            Want::That(|l| l.is_open() && { opened_after(l) }),
        ),
        row(
            "19.11",
            BOTH,
            UP,
            "MAX_STREAMS of 2^60",
            |l| {
                send(l, &fields(kind::MAX_STREAMS_BIDI, &[1 << 60]));
                send(l, &fields(kind::MAX_STREAMS_UNI, &[1 << 60]));
            },
            Want::That(opened_after),
        ),
        row(
            "19.12",
            BOTH,
            UP,
            "DATA_BLOCKED of 2^62 - 1",
            |l| send(l, &fields(kind::DATA_BLOCKED, &[varint::MAX])),
            Want::Ignored,
        ),
        row(
            "19.14",
            BOTH,
            UP,
            "STREAMS_BLOCKED of 2^60",
            |l| {
                send(l, &fields(kind::STREAMS_BLOCKED_BIDI, &[1 << 60]));
            },
            Want::Ignored,
        ),
    ]
}

/// Returns whether streams can be opened and written to, with limits as large as they can be.
fn opened_after(lab: &mut Lab) -> bool {
    let streams = lab.only().streams();
    let Some(id) = streams.open(Dir::Bi) else { return false };
    let written = streams.write_slice(id, &[1; 3000]);
    lab.turn();
    written == Ok(3000) && lab.raw.count("Stream {") > 0
}
