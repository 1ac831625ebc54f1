//! Frames and packets of the peer.

use crate::input::Input;
use crate::lab::Lab;
use crate::raw::{Raw, Shape, index};
use forebay_quic::frame::{self, kind};
use forebay_quic::id::ConnectionId;
use forebay_quic::packet::{Header, Kind, LongKind, Packet};
use forebay_quic::varint;

/// Longest payload.
const MOST: usize = 1100;

/// Returns `true` if the peer can seal packets of a kind.
pub fn has_keys(raw: &Raw, kind: Kind) -> bool {
    match kind {
        Kind::Initial => raw.initial.is_some(),
        Kind::ZeroRtt => raw.early.is_some(),
        Kind::Handshake => raw.handshake.is_some(),
        Kind::OneRtt => raw.data.is_some(),
    }
}

/// Makes the payload of a packet.
pub fn payload(input: &mut Input<'_>, lab: &Lab, kind: Kind) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..=input.below(6) {
        match input.below(16) {
            0..12 => any(input, lab, kind, &mut out),
            12 | 13 => out.extend(lab.raw.ack(kind)),
            14 => {
                let len = input.below(48);
                out.extend_from_slice(input.bytes(len));
            }
            // The same frame very often.
            _ => {
                let mut one = Vec::new();
                any(input, lab, kind, &mut one);
                let times = usize::from(input.byte());
                out.extend(one.repeat(times.min(MOST / one.len().max(1))));
            }
        }
    }
    out.truncate(MOST);
    out
}

/// Appends a frame of any type with any fields.
fn any(input: &mut Input<'_>, lab: &Lab, packet: Kind, out: &mut Vec<u8>) {
    let raw = &lab.raw;
    let known = match input.byte() & 0x3f {
        n @ 0..0x20 => u64::from(n),
        0x20..0x24 => kind::DATAGRAM_LEN,
        0x24 => kind::DATAGRAM,
        0x25..0x2f => kind::STREAM | kind::STREAM_LEN | kind::STREAM_OFF,
        0x2f..0x35 => kind::ACK,
        0x35..0x3a => kind::CRYPTO,
        _ => input.value(0x40),
    };
    varint::push(out, known);
    let space = index(packet);
    match known {
        kind::ACK | kind::ACK_ECN => ack(input, raw.seen[space].max().unwrap_or(0), known, out),
        kind::CRYPTO => {
            varint::push(out, input.value(raw.sent[space]));
            content(input, true, out);
        }
        kind::NEW_TOKEN | kind::DATAGRAM | kind::DATAGRAM_LEN => {
            content(input, known != kind::DATAGRAM, out);
        }
        kind::STREAM..=kind::STREAM_LAST => {
            varint::push(out, input.value(4));
            if known & kind::STREAM_OFF != 0 {
                varint::push(out, input.value(1000));
            }
            content(input, known & kind::STREAM_LEN != 0, out);
        }
        kind::NEW_CONNECTION_ID => {
            varint::push(out, input.value(1));
            varint::push(out, input.value(1));
            let id = input.array::<4>();
            let len = if input.seldom(16) { input.byte() } else { 8 };
            out.push(len);
            let id = id.iter().cycle().copied();
            out.extend(id.take(usize::from(len % 21) + 16));
        }
        kind::PATH_CHALLENGE | kind::PATH_RESPONSE => {
            let asked = raw.challenges.len().checked_sub(1 + input.below(4));
            let asked = asked.and_then(|n| raw.challenges.get(n)).map(|(_, data)| *data);
            out.extend(asked.filter(|_| !input.seldom(4)).unwrap_or_else(|| input.array()));
        }
        kind::CONNECTION_CLOSE | kind::CONNECTION_CLOSE_APP => {
            varint::push(out, input.value(0x100));
            if known == kind::CONNECTION_CLOSE {
                varint::push(out, input.value(0x1f));
            }
            content(input, true, out);
        }
        _ => (0..fields(known)).for_each(|_| varint::push(out, input.value(4))),
    }
}

/// Returns the number of integers of the other frames.
fn fields(known: u64) -> usize {
    match known {
        kind::RESET_STREAM => 3,
        kind::STOP_SENDING | kind::MAX_STREAM_DATA | kind::STREAM_DATA_BLOCKED => 2,
        kind::MAX_DATA
        | kind::MAX_STREAMS_BIDI..=kind::DATA_BLOCKED
        | kind::STREAMS_BLOCKED_BIDI
        | kind::STREAMS_BLOCKED_UNI
        | kind::RETIRE_CONNECTION_ID => 1,
        _ => 0,
    }
}

fn ack(input: &mut Input<'_>, largest: u64, known: u64, out: &mut Vec<u8>) {
    let count = input.below(5) as u64;
    varint::push(out, input.value(largest));
    varint::push(out, input.value(0));
    varint::push(out, if input.seldom(16) { input.value(0) } else { count });
    (0..=2 * count).for_each(|_| varint::push(out, input.value(largest)));
    if known == kind::ACK_ECN {
        (0..3).for_each(|_| varint::push(out, input.value(largest)));
    }
}

/// Appends content, with its length if it has one.
fn content(input: &mut Input<'_>, has_len: bool, out: &mut Vec<u8>) {
    let len = if input.seldom(8) { 4 * input.below(256) } else { input.below(32) };
    let fill = input.byte();
    if has_len {
        varint::push(out, if input.seldom(32) { input.value(1) } else { len as u64 });
    }
    out.resize(out.len() + len, fill);
}

/// Says what is unusual about a packet.
pub fn shape(input: &mut Input<'_>, raw: &Raw, kind: Kind) -> Shape {
    let mut shape = Shape { is_bare: input.seldom(8), ..Shape::default() };
    let next = raw.next[index(kind)];
    match input.byte() {
        0..8 => shape.number = Some(next.saturating_sub(input.byte().into())),
        8..12 => shape.number = Some(next + (1 << (input.byte() % 31))),
        12..16 => shape.len = Some(1 + input.below(4)),
        16..18 => shape.reserved = input.byte() & 0x18,
        18..20 => shape.is_not_fixed = true,
        20..22 => shape.other_phase = true,
        22..24 => {
            shape.version = forebay_quic::version::Version::from_number([1, 0x6b33_43cf, 2][input.below(3)])
        }
        24..28 => shape.dst = id(input),
        28..32 => shape.src = id(input),
        32..36 => {
            let len = input.below(80);
            shape.token = Some(input.bytes(len).to_vec());
        }
        36..40 => shape.dst = pick(input, &raw.ids).map(|(_, id, _)| *id),
        _ => {}
    }
    shape
}

fn id(input: &mut Input<'_>) -> Option<ConnectionId> {
    let len = input.below(21);
    ConnectionId::new(input.bytes(len))
}

pub fn pick<'a, T>(input: &mut Input<'_>, all: &'a [T]) -> Option<&'a T> {
    all.get(input.below(all.len()))
}

/// Returns `true` if a datagram begins with a Retry packet.
pub fn is_retry(datagram: &[u8]) -> bool {
    retry_of(datagram).is_some()
}

/// Returns the token of a Retry packet, and its source.
pub fn retry_of(datagram: &[u8]) -> Option<(Vec<u8>, ConnectionId)> {
    match Packet::parse(datagram, 8)?.header {
        Header::Long(long) if long.kind == LongKind::Retry => {
            Some((datagram.get(long.token)?.to_vec(), long.src))
        }
        _ => None,
    }
}

/// Returns a PING frame.
pub fn ping() -> Vec<u8> {
    let mut out = Vec::new();
    frame::push_ping(&mut out);
    out
}
