//! Frames in packets that may not hold them (RFC 9000, table 3; RFC 9001, section 8.3).

use super::fields;
use crate::lab::{Lab, Stage};
use crate::setup::Setup;
use crate::table::{BOTH, Row, SERVER, Want, of, row};
use forebay_quic::error::Code;
use forebay_quic::frame::kind;
use forebay_quic::id::Side;
use forebay_quic::packet::Kind;

/// Frames of each type that only 1-RTT packets, or those and 0-RTT packets, may hold. They are well formed.
const LATE: &[(u64, &[u64])] = &[
    (kind::RESET_STREAM, &[0, 0, 0]),
    (kind::STOP_SENDING, &[0, 0]),
    (kind::NEW_TOKEN, &[1, 1]),
    (kind::STREAM, &[0]),
    (kind::STREAM_LAST, &[0, 0, 0]),
    (kind::MAX_DATA, &[1]),
    (kind::MAX_STREAM_DATA, &[0, 1]),
    (kind::MAX_STREAMS_BIDI, &[1]),
    (kind::MAX_STREAMS_UNI, &[1]),
    (kind::DATA_BLOCKED, &[1]),
    (kind::STREAM_DATA_BLOCKED, &[0, 1]),
    (kind::STREAMS_BLOCKED_BIDI, &[1]),
    (kind::STREAMS_BLOCKED_UNI, &[1]),
    (kind::NEW_CONNECTION_ID, &[1, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
    (kind::RETIRE_CONNECTION_ID, &[0]),
    (kind::PATH_CHALLENGE, &[0, 0, 0, 0, 0, 0, 0, 0]),
    (kind::PATH_RESPONSE, &[0, 0, 0, 0, 0, 0, 0, 0]),
    (kind::CONNECTION_CLOSE_APP, &[0, 0]),
    (kind::HANDSHAKE_DONE, &[]),
    (0x30, &[]),
    (0x31, &[0]),
];

/// Frames that 0-RTT packets may not hold.
const NOT_EARLY: &[(u64, &[u64])] = &[
    (kind::ACK, &[0, 0, 0, 0]),
    (kind::ACK_ECN, &[0, 0, 0, 0, 0, 0, 0]),
    (kind::CRYPTO, &[0, 1, 1]),
    (kind::NEW_TOKEN, &[1, 1]),
    (kind::RETIRE_CONNECTION_ID, &[0]),
    (kind::PATH_RESPONSE, &[0, 0, 0, 0, 0, 0, 0, 0]),
    (kind::HANDSHAKE_DONE, &[]),
];

/// Completes a connection that gives a session, and begins the next one with early data.
pub fn resumed(setup: Setup) -> Lab {
    let setup = setup.shared();
    drop(Lab::new(Side::Server, Stage::Connected, &setup));
    let mut lab = Lab::new(Side::Server, Stage::Fresh, &setup);
    assert!(lab.raw.early.is_some(), "there are keys for early data");
    lab.flight();
    lab
}

/// Tries every type in every packet. Returns the number of cases.
fn all(kind: Kind, frames: &[(u64, &[u64])], begin: impl Fn(Side) -> Lab, sides: &[Side]) -> usize {
    let mut wrong = Vec::new();
    for side in sides {
        for (frame, rest) in frames {
            crate::lab::seed(1);
            let mut lab = begin(*side);
            lab.frames(kind, &fields(*frame, rest));
            let is_told =
                |c: &crate::raw::Close| c.code == Code::PROTOCOL_VIOLATION.0 && c.frame == Some(*frame);
            if lab.is_open() || lab.raw.closes.is_empty() || !lab.raw.closes.iter().all(is_told) {
                wrong.push((side, *frame, lab.raw.closes.clone()));
            }
        }
    }
    assert!(wrong.is_empty(), "RFC 9000, 12.4: {kind:?}: {wrong:?}");
    frames.len() * sides.len()
}

#[test]
fn frames_in_wrong_packets() {
    let setup = Setup::default();
    let both = [Side::Server, Side::Client];
    let count = all(Kind::Handshake, LATE, |side| Lab::new(side, Stage::Hello, &setup), &both)
        + all(Kind::Initial, LATE, |_| Lab::new(Side::Server, Stage::Hello, &setup), &both[..1])
        + all(Kind::Initial, LATE, |_| Lab::new(Side::Client, Stage::Fresh, &setup), &both[1..])
        + all(Kind::ZeroRtt, NOT_EARLY, |_| resumed(Setup::default()), &both[..1]);
    assert_eq!(count, 4 * LATE.len() + NOT_EARLY.len());
}

pub fn rows() -> Vec<Row> {
    let mut all = vec![
        row(
            "12.4",
            BOTH,
            Stage::Hello,
            "an unknown type in a Handshake packet",
            |l| l.frames(Kind::Handshake, &[0x2f]),
            Want::Close(Code::FRAME_ENCODING_ERROR, 0x2f),
        ),
        row(
            "12.5",
            BOTH,
            Stage::Hello,
            "PING and PADDING in a Handshake packet",
            |l| l.frames(Kind::Handshake, &[0, 1, 0]),
            Want::Ignored,
        ),
        row(
            "12.4",
            BOTH,
            Stage::Hello,
            "a Handshake packet without a frame",
            |l| {
                l.shaped(Kind::Handshake, &[], &crate::raw::Shape { is_bare: true, ..Default::default() });
            },
            Want::Close(Code::PROTOCOL_VIOLATION, 0),
        ),
        row(
            "17.2.2",
            SERVER,
            Stage::Hello,
            "CONNECTION_CLOSE in an Initial packet",
            |l| {
                l.frames(Kind::Initial, &fields(kind::CONNECTION_CLOSE, &[2, 0, 0]));
            },
            Want::Lost(|r| matches!(r, forebay_quic::connection::Reason::PeerError(_))),
        ),
    ];
    all.extend(of(
        9001,
        vec![row(
            "5.7",
            SERVER,
            Stage::Fresh,
            "0-RTT packets before the first message",
            |l| {
                let mut packet = vec![0xd0, 0, 0, 0, 1, 8];
                packet.extend(&*l.raw.remote);
                packet.extend([0, 0x40, 40]);
                packet.resize(1200, 7);
                l.send(&packet);
            },
            Want::Nothing,
        )],
    ));
    all
}
