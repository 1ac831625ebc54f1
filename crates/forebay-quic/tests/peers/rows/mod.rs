//! Rules that a peer can break, in the order of the RFCs.

mod frames;
mod handshake;
mod ids;
mod keys;
mod packets;
mod parameters;
mod places;
mod streams;
mod versions;

use crate::lab::Lab;
use forebay_quic::id::{Dir, StreamId};
use forebay_quic::varint;

/// Returns bytes that a function appends.
pub fn made(push: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    push(&mut out);
    out
}

/// Returns a type of a frame and integers behind it.
pub fn fields(kind: u64, all: &[u64]) -> Vec<u8> {
    made(|out| {
        varint::push(out, kind);
        all.iter().for_each(|n| varint::push(out, *n));
    })
}

/// Returns a stream that the wrong peer opens.
pub fn own(lab: &Lab, dir: Dir, index: u64) -> StreamId {
    StreamId::new(lab.raw.side, dir, index)
}

/// Returns a stream that the tested side opens.
pub fn other(lab: &Lab, dir: Dir, index: u64) -> StreamId {
    StreamId::new(lab.node.side, dir, index)
}

/// All rows. A row that disappears is noticed.
#[test]
fn every_rule_has_a_row() {
    let groups = [
        ("streams", streams::rows()),
        ("ids", ids::rows()),
        ("packets", packets::rows()),
        ("frames", frames::rows()),
        ("places", places::rows()),
        ("handshake", handshake::rows()),
        ("parameters", parameters::rows()),
        ("keys", keys::rows()),
        ("versions", versions::rows()),
    ];
    let (mut counts, mut failures) = (Vec::new(), Vec::new());
    for (name, rows) in groups {
        match std::panic::catch_unwind(|| crate::table::run(&rows)) {
            Ok(count) => counts.push((name, count)),
            Err(why) => failures.push(format!("{name}: {}", why.downcast_ref::<String>().map_or("", |s| s))),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert_eq!(counts.iter().map(|(_, count)| count).sum::<usize>(), ROWS, "{counts:?}");
}

/// Number of rows, of both sides.
const ROWS: usize = 638;
