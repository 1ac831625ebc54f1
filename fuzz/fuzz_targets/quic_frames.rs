//! Any bytes as the payload of a packet of each kind: frames that are read come back when they are written, and the ranges of an ACK
//! frame descend. ACK frames are written from their ranges into any room.
#![no_main]

use forebay_quic::frame::{AckFrame, Frame, Frames, push_ack};
use forebay_quic::id::Side;
use forebay_quic::packet::Kind;
use forebay_quic::ranges::RangeSet;
use libfuzzer_sys::fuzz_target;

fn read(payload: &[u8], packet: Kind, from: Side) -> Option<Vec<Frame<'_>>> {
    Frames::new(payload, packet, from).ok()?.map(|frame| frame.ok().map(|(_, frame)| frame)).collect()
}

fn acked(ack: &AckFrame<'_>, room: usize) {
    let mut set = RangeSet::new();
    let mut below = u64::MAX;
    for range in ack.ranges() {
        assert!(range.start() <= range.end() && *range.end() < below);
        // Neighbours have a gap between them.
        below = range.start().saturating_sub(1);
        assert!(set.insert(*range.start()..range.end() + 1));
    }
    assert_eq!(set.max(), Some(ack.largest));
    assert!(set.iter().rev().map(|range| range.start..=range.end - 1).eq(ack.ranges()));
    let mut out = Vec::new();
    let count = push_ack(&mut out, &set, ack.delay, ack.ecn, room);
    assert!(out.len() <= room && count <= set.len());
    if count > 0 {
        let frames = read(&out, Kind::OneRtt, Side::Client).expect("well-formed");
        let [Frame::Ack(again)] = frames[..] else { panic!("one ACK frame") };
        assert!(again.ranges().eq(ack.ranges().take(count)));
        assert_eq!((again.delay, again.ecn), (ack.delay, ack.ecn));
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((room, payload)) = input.split_first() else { return };
    let from = [Side::Client, Side::Server];
    for packet in [Kind::Initial, Kind::ZeroRtt, Kind::Handshake, Kind::OneRtt] {
        for from in from {
            let Some(frames) = read(payload, packet, from) else { continue };
            let mut again = Vec::new();
            for frame in &frames {
                if let Frame::Ack(ack) = frame {
                    acked(ack, (*room).into());
                }
                frame.push(&mut again);
            }
            assert_eq!(read(&again, packet, from), Some(frames));
        }
    }
});
