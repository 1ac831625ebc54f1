//! Tests of streams: two ends, and a network between them that the tests rule.

mod assembler;
mod flow;
mod memory;
mod order;
mod requests;
mod states;
mod transfer;
mod wrong;

use super::{Limits, PeerLimits, StreamEvent, Streams};
use crate::error::Error;
use crate::frame::{Frame, Frames};
use crate::id::{Dir, Side, StreamId};
use crate::item::Item;
use crate::packet::Kind;
use bytes::Bytes;

pub(super) const LIMITS: Limits =
    Limits { stream_window: 10_000, window: 20_000, bi: 10, uni: 4, send_window: 50_000 };

/// Returns the limits of a side in the form of transport parameters.
pub(super) fn as_peer(limits: Limits) -> PeerLimits {
    PeerLimits {
        max_data: limits.window,
        max_stream_data_bidi_local: limits.stream_window,
        max_stream_data_bidi_remote: limits.stream_window,
        max_stream_data_uni: limits.stream_window,
        max_streams_bi: limits.bi,
        max_streams_uni: limits.uni,
    }
}

pub(super) fn bi(opener: Side, index: u64) -> StreamId {
    StreamId::new(opener, Dir::Bi, index)
}

pub(super) fn uni(opener: Side, index: u64) -> StreamId {
    StreamId::new(opener, Dir::Uni, index)
}

/// Content that differs from byte to byte.
pub(super) fn content(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at % 251) as u8).collect()
}

/// Returns a packet of at most `size` bytes, and what is in it.
pub(super) fn packet(from: &mut Streams, size: usize) -> (Vec<u8>, Vec<Item>) {
    let (mut out, mut items) = (Vec::new(), Vec::new());
    from.push_control(&mut out, size, &mut |item| items.push(item));
    from.push_content(&mut out, size, &mut |item| items.push(item));
    assert!(out.len() <= size, "{} of {size} bytes", out.len());
    (out, items)
}

/// Hands the frames of a packet over.
pub(super) fn deliver(to: &mut Streams, from: Side, packet: &[u8]) -> Result<(), Error> {
    let all = Bytes::copy_from_slice(packet);
    for frame in Frames::new(&all, Kind::OneRtt, from)? {
        let (kind, frame) = frame?;
        handle(to, &all, frame).map_err(|error| error.in_frame(kind))?;
    }
    Ok(())
}

fn handle(to: &mut Streams, all: &Bytes, frame: Frame<'_>) -> Result<(), Error> {
    match frame {
        Frame::Stream { id, offset, data, fin } => to.on_stream(id, offset, all.slice_ref(data), fin),
        Frame::ResetStream { id, code, final_size } => to.on_reset_stream(id, code, final_size),
        Frame::StopSending { id, code } => to.on_stop_sending(id, code),
        Frame::MaxStreamData { id, limit } => to.on_max_stream_data(id, limit),
        Frame::StreamDataBlocked { id, .. } => to.on_stream_data_blocked(id),
        Frame::MaxData(limit) => {
            to.on_max_data(limit);
            Ok(())
        }
        Frame::MaxStreams { dir, limit } => {
            to.on_max_streams(dir, limit);
            Ok(())
        }
        Frame::StreamsBlocked { dir, limit } => {
            to.on_streams_blocked(dir, limit);
            Ok(())
        }
        Frame::DataBlocked(_) => Ok(()),
        other => panic!("not a frame of streams: {other:?}"),
    }
}

/// Both ends of a connection.
pub(super) struct Pair {
    pub(super) client: Streams,
    pub(super) server: Streams,
}

impl Pair {
    pub(super) fn new(limits: Limits) -> Pair {
        let (mut client, mut server) =
            (Streams::new(Side::Client, limits), Streams::new(Side::Server, limits));
        client.set_peer(as_peer(limits));
        server.set_peer(as_peer(limits));
        Pair { client, server }
    }

    /// Delivers all packets until nothing is to be sent any more. Returns what was delivered from the client, and from the server.
    pub(super) fn run(&mut self) -> (Vec<Item>, Vec<Item>) {
        let (mut from_client, mut from_server) = (Vec::new(), Vec::new());
        while self.client.wants_to_send() || self.server.wants_to_send() {
            from_client.extend(exchange(&mut self.client, &mut self.server, Side::Client));
            from_server.extend(exchange(&mut self.server, &mut self.client, Side::Server));
        }
        (from_client, from_server)
    }
}

/// Has one end send all that it has; everything arrives and is acknowledged.
pub(super) fn exchange(from: &mut Streams, to: &mut Streams, side: Side) -> Vec<Item> {
    let mut all = Vec::new();
    while from.wants_to_send() {
        let (bytes, items) = packet(from, 1200);
        assert!(!bytes.is_empty(), "something was to be sent");
        deliver(to, side, &bytes).expect("frames are right");
        items.iter().for_each(|item| from.acked(*item));
        all.extend(items);
    }
    all
}

/// Returns all events.
pub(super) fn events(of: &mut Streams) -> Vec<StreamEvent> {
    std::iter::from_fn(|| of.poll()).collect()
}

/// Reads all that is there. Returns `true` with it if the stream has ended.
pub(super) fn read_all(of: &mut Streams, id: StreamId) -> (Vec<u8>, bool) {
    let mut all = Vec::new();
    loop {
        match of.read(id, usize::MAX) {
            Ok(Some(chunk)) => {
                all.extend_from_slice(&chunk.bytes);
                match chunk.next {
                    super::Next::More => {}
                    super::Next::Blocked => return (all, false),
                    super::Next::End => return (all, true),
                }
            }
            Ok(None) => return (all, true),
            Err(super::ReadError::Blocked) => return (all, false),
            Err(error) => panic!("{error:?}"),
        }
    }
}

/// Numbers that look random, the same for a seed.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % n
    }
}
