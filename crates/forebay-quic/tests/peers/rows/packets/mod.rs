//! Packets and their headers (RFC 9000, sections 5.2, 12, 14.1 and 17; RFC 9001, section 5; RFC 9287).

mod datagrams;
mod headers;
mod initials;
mod numbers;
mod protection;
mod unknown;

use super::made;
use crate::lab::{Lab, Stage};
use crate::raw::Shape;
use crate::table::{Row, of};
use forebay_quic::error::Code;
use forebay_quic::frame;
use forebay_quic::packet::Kind;

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

/// Sends a datagram of 1200 bytes that begins so.
fn filled(lab: &mut Lab, begin: &[u8]) {
    let mut packet = begin.to_vec();
    packet.resize(1200, 7);
    lab.send(&packet);
}

pub fn rows() -> Vec<Row> {
    let mut all = headers::rows();
    all.extend(numbers::rows());
    all.extend(datagrams::rows());
    all.extend(initials::rows());
    all.extend(unknown::rows());
    all.extend(of(9001, protection::rows()));
    all.extend(of(9287, headers::fixed()));
    all
}
