//! Streams from their opening to their end

use assert_matches::assert_matches;
use bytes::Bytes;

use super::*;
use crate::{
    Side, TransportErrorCode, connection::State as ConnState,
    transport_parameters::TransportParameters,
};

const LIMIT: u32 = 20;

/// One endpoint
struct Peer {
    state: StreamsState,
    pending: Retransmits,
    conn_state: ConnState,
}

impl Peer {
    fn new(side: Side) -> Self {
        let window: VarInt = (1u32 << 24).into();
        let mut state =
            StreamsState::new(side, LIMIT.into(), LIMIT.into(), 1 << 24, window, window);
        state.set_params(&TransportParameters {
            initial_max_data: window,
            initial_max_stream_data_bidi_local: window,
            initial_max_stream_data_bidi_remote: window,
            initial_max_stream_data_uni: window,
            initial_max_streams_bidi: LIMIT.into(),
            initial_max_streams_uni: LIMIT.into(),
            ..TransportParameters::default()
        });
        Self {
            state,
            pending: Retransmits::default(),
            conn_state: ConnState::Established,
        }
    }

    fn streams(&mut self) -> Streams<'_> {
        Streams {
            state: &mut self.state,
            conn_state: &self.conn_state,
        }
    }

    fn recv(&mut self, id: StreamId) -> RecvStream<'_> {
        RecvStream {
            id,
            state: &mut self.state,
            pending: &mut self.pending,
        }
    }

    fn send(&mut self, id: StreamId) -> SendStream<'_> {
        SendStream {
            id,
            state: &mut self.state,
            pending: &mut self.pending,
            conn_state: &self.conn_state,
        }
    }

    /// Reads in order what there is. Returns `None` instead of data at the end.
    fn read(&mut self, id: StreamId) -> Result<Option<Vec<u8>>, ReadError> {
        let mut stream = self.recv(id);
        let mut chunks = stream.read(true).unwrap();
        let mut data = Vec::new();
        loop {
            match chunks.next(100) {
                Ok(Some(chunk)) => data.extend_from_slice(&chunk.bytes),
                Ok(None) if data.is_empty() => return Ok(None),
                Ok(None) | Err(ReadError::Blocked) => return Ok(Some(data)),
                Err(e) => return Err(e),
            }
        }
    }

    fn receive(&mut self, id: StreamId, offset: u64, data: &[u8], fin: bool) {
        let frame = frame::Stream {
            id,
            offset,
            fin,
            data: Bytes::copy_from_slice(data),
        };
        let _ = self.state.received(frame, data.len()).unwrap();
    }

    fn receive_reset(&mut self, id: StreamId, final_offset: u32) {
        let frame = frame::ResetStream {
            id,
            error_code: 7u32.into(),
            final_offset: final_offset.into(),
        };
        let _ = self.state.received_reset(frame).unwrap();
    }

    /// The STREAM frames of one packet, and what was noted for them
    fn transmit(&mut self, max_size: usize) -> Vec<(frame::Stream, frame::StreamMeta)> {
        let mut buf = Vec::new();
        let metas = self.state.write_stream_frames(&mut buf, max_size, true);
        let metas: Vec<_> = metas.iter().map(|meta| meta.clone()).collect();
        assert!(buf.len() <= max_size);
        if buf.is_empty() {
            return Vec::new();
        }
        let frames = frame::Iter::new(buf.into()).unwrap();
        let frames = frames.map(|frame| match frame.unwrap() {
            frame::Frame::Stream(frame) => frame,
            other => panic!("unexpected {other:?}"),
        });
        let all: Vec<_> = frames.zip(metas).collect();
        for (frame, meta) in &all {
            assert_eq!((frame.id, frame.fin), (meta.id, meta.fin));
            assert_eq!(frame.offset, meta.offsets.start);
            assert_eq!(frame.offset + frame.data.len() as u64, meta.offsets.end);
        }
        all
    }

    fn events(&mut self) -> Vec<StreamEvent> {
        std::iter::from_fn(|| self.state.poll()).collect()
    }
}

fn bi(index: u64) -> StreamId {
    StreamId::new(Side::Client, Dir::Bi, index)
}

#[test]
fn request_and_response() {
    let mut server = Peer::new(Side::Server);
    for index in 0..u64::from(LIMIT) * 3 {
        let id = bi(index);
        server.receive(id, 0, b"request", true);
        assert_eq!(server.events(), [StreamEvent::Opened { dir: Dir::Bi }]);
        assert_eq!(server.streams().accept(Dir::Bi), Some(id));
        assert_eq!(server.streams().accept(Dir::Bi), None);
        assert_eq!(server.streams().remote_open_streams(Dir::Bi), 1);
        let mut stream = server.recv(id);
        let mut chunks = stream.read(true).unwrap();
        assert_matches!(chunks.next(100), Ok(Some(ref x)) if &x.bytes[..] == b"request");
        assert_matches!(chunks.next(100), Ok(None));
        drop(chunks);
        assert_eq!(stream.read(true).err(), Some(ReadableError::ClosedStream));

        let mut data = [Bytes::from_static(&[1; 30]), Bytes::from_static(&[2; 40])];
        assert_eq!(server.send(id).write_chunks(&mut data).unwrap().bytes, 70);
        server.send(id).finish().unwrap();
        assert_eq!(server.send(id).finish(), Err(FinishError::ClosedStream));
        assert!(server.state.can_send_stream_data());
        let metas: Vec<_> = std::iter::repeat_with(|| server.transmit(50))
            .take_while(|frames| !frames.is_empty())
            .flat_map(|frames| frames.into_iter().map(|(_, meta)| meta))
            .collect();
        assert!(metas.len() >= 2 && !server.state.can_send_stream_data());
        // The last first, and all but one of them twice
        for meta in metas.iter().rev() {
            assert_eq!(server.streams().send_streams(), 1);
            server.state.received_ack_of(meta.clone());
            server.state.received_ack_of(metas[metas.len() - 1].clone());
        }
        assert_eq!(server.events(), [StreamEvent::Finished { id }]);
        assert_eq!(server.streams().send_streams(), 0);
        assert_eq!(server.state.buffered_data, 0);
        assert_eq!(server.streams().remote_open_streams(Dir::Bi), 0);
        assert_eq!(
            server.state.max_remote[Dir::Bi as usize],
            u64::from(LIMIT) + index + 1
        );

        // Frames that arrive after the end of a stream have no effect
        server.receive(id, 0, b"request", true);
        server.receive_reset(id, 7);
        server.state.received_stop_sending(id, 1u32.into());
        server.state.retransmit(metas[0].clone());
        server.state.received_ack_of(metas[0].clone());
        server.state.reset_acked(id);
        assert_eq!(server.events(), []);
        assert!(!server.state.can_send_stream_data());
        assert_matches!(server.send(id).write(b"x"), Err(WriteError::ClosedStream));
        assert!(server.send(id).stopped().is_err() && server.send(id).priority().is_err());
        assert!(server.recv(id).stop(1u32.into()).is_err());
        assert!(server.recv(id).received_reset().is_err());
    }
}

#[test]
fn resets_by_the_peer_in_each_state() {
    let mut server = Peer::new(Side::Server);
    let max_remote = server.state.max_remote[Dir::Uni as usize];
    let uni = |index| StreamId::new(Side::Client, Dir::Uni, index);

    // Before anything else, and twice
    server.receive_reset(uni(0), 10);
    server.receive_reset(uni(0), 10);
    assert_eq!(server.read(uni(0)), Err(ReadError::Reset(7u32.into())));
    // Behind data that is not read
    server.receive(uni(1), 0, b"0123456789", false);
    server.receive_reset(uni(1), 12);
    assert_eq!(server.recv(uni(1)).received_reset(), Ok(Some(7u32.into())));
    // After the end, which is not read
    server.receive(uni(2), 0, b"0123456789", true);
    server.receive_reset(uni(2), 10);
    assert_eq!(server.read(uni(2)), Err(ReadError::Reset(7u32.into())));
    // After the end was read
    server.receive(uni(3), 0, b"0123456789", true);
    assert_eq!(server.read(uni(3)).unwrap().unwrap(), b"0123456789");
    server.receive_reset(uni(3), 10);
    // After it was stopped
    server.receive(uni(4), 0, b"0123456789", false);
    server.recv(uni(4)).stop(1u32.into()).unwrap();
    server.receive_reset(uni(4), 10);
    // Of an unused stream that is stopped
    server.recv(uni(5)).stop(1u32.into()).unwrap();
    assert!(server.recv(uni(5)).stop(1u32.into()).is_err());
    server.receive_reset(uni(5), 0);

    for index in 0..6 {
        assert!(server.recv(uni(index)).received_reset().is_err());
        assert!(server.recv(uni(index)).read(true).is_err());
    }
    assert_eq!(server.state.max_remote[Dir::Uni as usize], max_remote + 6);
    assert_eq!(server.recv(uni(6)).received_reset(), Ok(None));
    assert_eq!(server.pending.stop_sending.len(), 2);
}

#[test]
fn stop_sending_in_each_state() {
    let mut server = Peer::new(Side::Server);
    let code: VarInt = 5u32.into();
    let stopped = |index| {
        let error_code = code;
        StreamEvent::Stopped {
            id: bi(index),
            error_code,
        }
    };
    for index in 0..5 {
        server.receive(bi(index), 0, b"x", true);
        assert_eq!(server.streams().accept(Dir::Bi), Some(bi(index)));
    }
    server.events();
    // Nothing was written
    server.state.received_stop_sending(bi(0), code);
    assert_eq!(server.events(), [stopped(0)]);
    server.state.received_stop_sending(bi(0), code);
    assert_eq!(server.events(), []);
    assert_eq!(server.send(bi(0)).stopped(), Ok(Some(code)));
    assert_eq!(
        server.send(bi(0)).write(b"x"),
        Err(WriteError::Stopped(code))
    );
    assert_eq!(server.send(bi(0)).finish(), Err(FinishError::Stopped(code)));
    // Written, and not finished
    server.send(bi(1)).write(b"x").unwrap();
    server.state.received_stop_sending(bi(1), code);
    assert_eq!(server.events(), [stopped(1)]);
    assert_eq!(
        server.send(bi(1)).write(b"x"),
        Err(WriteError::Stopped(code))
    );
    // Finished
    server.send(bi(2)).finish().unwrap();
    server.state.received_stop_sending(bi(2), code);
    assert_eq!(server.events(), [stopped(2)]);
    // Reset
    server.send(bi(3)).write(b"x").unwrap();
    server.send(bi(3)).reset(code).unwrap();
    server.state.received_stop_sending(bi(3), code);
    assert!(server.send(bi(3)).reset(code).is_err());
    assert_eq!(server.events(), [stopped(3)]);
    // Closed
    server.send(bi(4)).finish().unwrap();
    for (_, meta) in server.transmit(1000) {
        server.state.received_ack_of(meta);
    }
    server.events();
    server.state.received_stop_sending(bi(4), code);
    assert_eq!(server.events(), []);

    // The ends of the others, of which two finished
    for index in [0, 1] {
        server.send(bi(index)).reset(code).unwrap();
    }
    for index in [0, 1, 3] {
        server.state.reset_acked(bi(index));
        server.state.reset_acked(bi(index));
        assert!(server.send(bi(index)).stopped().is_err());
    }
    assert_eq!(server.state.buffered_data, 0);
    assert_eq!(server.streams().send_streams(), 0);
    assert!(!server.state.can_send_stream_data());
    assert!(server.transmit(1000).is_empty());
}

#[test]
fn high_index_opens_all_below() {
    let mut server = Peer::new(Side::Server);
    let last = u64::from(LIMIT) - 1;
    server.receive(bi(last), 0, b"last", true);
    assert_eq!(server.events(), [StreamEvent::Opened { dir: Dir::Bi }]);
    for index in 0..=last {
        assert_eq!(server.streams().accept(Dir::Bi), Some(bi(index)));
    }
    assert_eq!(server.streams().accept(Dir::Bi), None);
    assert_eq!(
        server.streams().remote_open_streams(Dir::Bi),
        u64::from(LIMIT)
    );
    assert_eq!(server.streams().send_streams(), LIMIT as usize);
    let beyond = frame::Stream {
        id: bi(last + 1),
        offset: 0,
        fin: true,
        data: Bytes::new(),
    };
    let error = server.state.received(beyond.clone(), 0).unwrap_err();
    assert_eq!(error.code, TransportErrorCode::STREAM_LIMIT_ERROR);
    // Streams that the peer has not used
    assert_eq!(server.read(bi(0)), Ok(Some(Vec::new())));
    assert_eq!(server.send(bi(1)).write(b"early"), Ok(5));
    assert_eq!(server.send(bi(2)).stopped(), Ok(None));
    assert_eq!(server.send(bi(2)).priority(), Ok(0));

    assert_eq!(server.read(bi(last)).unwrap().unwrap(), b"last");
    server.send(bi(last)).finish().unwrap();
    for (_, meta) in server.transmit(1000) {
        server.state.received_ack_of(meta);
    }
    let _ = server.state.received(beyond, 0).unwrap();
    assert_eq!(server.streams().accept(Dir::Bi), Some(bi(last + 1)));
}

#[test]
fn ordered_read_after_an_unordered_one() {
    let mut server = Peer::new(Side::Server);
    server.receive(bi(0), 3, b"def", true);
    let mut stream = server.recv(bi(0));
    let mut chunks = stream.read(false).unwrap();
    let chunk = chunks.next(100).unwrap().unwrap();
    assert_eq!((chunk.offset, &chunk.bytes[..]), (3, &b"def"[..]));
    assert_eq!(chunks.next(100), Err(ReadError::Blocked));
    drop(chunks);
    assert_eq!(
        stream.read(true).err(),
        Some(ReadableError::IllegalOrderedRead)
    );
    // That has not harmed the stream
    server.receive(bi(0), 0, b"abc", false);
    let mut stream = server.recv(bi(0));
    let mut chunks = stream.read(false).unwrap();
    assert_eq!(chunks.next(100).unwrap().unwrap().offset, 0);
    assert_eq!(chunks.next(100), Ok(None));
    drop(chunks);
    assert!(server.recv(bi(0)).read(false).is_err());
}

#[test]
fn rejected_early_data() {
    let mut client = Peer::new(Side::Client);
    for round in 0..2 {
        for index in 0..3 {
            assert_eq!(client.streams().open(Dir::Bi), Some(bi(index)));
            client.send(bi(index)).write(b"early data").unwrap();
        }
        assert!(client.streams().open(Dir::Uni).is_some());
        if round == 0 {
            assert_eq!(client.transmit(1000).len(), 3);
            client.state.zero_rtt_rejected();
            assert_eq!(client.streams().send_streams(), 0);
            assert!(client.transmit(1000).is_empty());
            assert_matches!(
                client.send(bi(0)).write(b"x"),
                Err(WriteError::ClosedStream)
            );
        }
    }
    let frames = client.transmit(1000);
    assert_eq!(frames.len(), 3);
    assert!(
        frames
            .iter()
            .all(|(frame, _)| &frame.data[..] == b"early data")
    );
}

#[test]
fn limits_of_the_peer_reach_open_streams() {
    let mut client = StreamsState::new(
        Side::Server,
        LIMIT.into(),
        LIMIT.into(),
        1000,
        1000u32.into(),
        1000u32.into(),
    );
    client.received_stop_sending(bi(3), 0u32.into());
    assert_eq!(client.table.open_send(bi(3)).unwrap().max_data, 0);
    client.set_params(&TransportParameters {
        initial_max_stream_data_bidi_local: 55u32.into(),
        ..TransportParameters::default()
    });
    assert_eq!(client.table.open_send(bi(3)).unwrap().max_data, 55);
    client.received_stop_sending(bi(2), 0u32.into());
    assert_eq!(client.table.open_send(bi(2)).unwrap().max_data, 55);
}

/// Exchanges requests and responses over a path that loses, delays and repeats frames
#[test]
fn exchange_over_a_lossy_path() {
    for seed in 0..20 {
        exchange(seed);
    }
}

fn exchange(seed: u32) {
    const REQUESTS: u64 = 300;
    let mut random = seed;
    let mut below = |n: usize| {
        random = random.wrapping_mul(1664525).wrapping_add(1013904223);
        (random >> 16) as usize % n
    };
    let text = |id: StreamId, len: usize, salt: u8| -> Vec<u8> {
        (0..len)
            .map(|i| (id.index() as u8).wrapping_mul(31) ^ (i as u8) ^ (i >> 8) as u8 ^ salt)
            .collect()
    };
    let mut peers = [Peer::new(Side::Client), Peer::new(Side::Server)];
    // What was read, by peer and stream, and whether the end was
    let mut read = [(); 2].map(|()| vec![(Vec::new(), false); REQUESTS as usize]);
    let mut lens = [(); 2].map(|()| vec![0; REQUESTS as usize]);
    // Frames under way and acknowledgments under way, by the peer that gets them
    let mut frames: [Vec<frame::Stream>; 2] = Default::default();
    let mut acks: [Vec<frame::StreamMeta>; 2] = Default::default();
    let mut finished = [0; 2];
    let mut rounds = 0;
    while finished != [REQUESTS; 2] {
        rounds += 1;
        assert!(rounds < 100_000, "no progress");
        // New requests
        if below(3) == 0 && peers[0].state.next[Dir::Bi as usize] < REQUESTS {
            if let Some(id) = peers[0].streams().open(Dir::Bi) {
                let len = below(300);
                lens[0][id.index() as usize] = len;
                let all = text(id, len, 1);
                assert_eq!(peers[0].send(id).write(&all), Ok(len));
                peers[0].send(id).finish().unwrap();
            }
        }
        for p in 0..2 {
            // What the peer sends
            for (frame, meta) in peers[p].transmit(40 + below(500)) {
                match below(10) {
                    // Lost
                    0 => peers[p].state.retransmit(meta),
                    // Taken for lost, and arrives late
                    1 => {
                        peers[p].state.retransmit(meta);
                        frames[1 - p].push(frame);
                    }
                    // Arrives twice
                    2 => {
                        frames[1 - p].push(frame.clone());
                        frames[1 - p].push(frame);
                        acks[p].push(meta);
                    }
                    _ => {
                        frames[1 - p].push(frame);
                        acks[p].push(meta);
                    }
                }
            }
            // What it gets. Acknowledgments are not ahead of what they acknowledge.
            while !frames[p].is_empty() && below(4) != 0 {
                let at = below(frames[p].len().min(4));
                let frame = frames[p].remove(at);
                let len = frame.data.len();
                let _ = peers[p].state.received(frame, len).unwrap();
            }
            if frames[1 - p].is_empty() {
                while !acks[p].is_empty() {
                    let at = below(acks[p].len());
                    let meta = acks[p].swap_remove(at);
                    if below(10) == 0 {
                        peers[p].state.received_ack_of(meta.clone());
                    }
                    peers[p].state.received_ack_of(meta);
                }
            }
            let mut readable = Vec::new();
            for event in peers[p].events() {
                match event {
                    StreamEvent::Opened { dir } => {
                        while let Some(id) = peers[p].streams().accept(dir) {
                            readable.push(id);
                        }
                    }
                    StreamEvent::Readable { id } => readable.push(id),
                    StreamEvent::Finished { .. } => finished[p] += 1,
                    StreamEvent::Available { .. } => {}
                    other => panic!("unexpected {other:?}"),
                }
            }
            for id in readable {
                let (data, ended) = &mut read[p][id.index() as usize];
                let mut stream = peers[p].recv(id);
                let Ok(mut chunks) = stream.read(true) else {
                    assert!(*ended);
                    continue;
                };
                loop {
                    match chunks.next(1 + below(200)) {
                        Ok(Some(chunk)) => data.extend_from_slice(&chunk.bytes),
                        Ok(None) => break *ended = true,
                        Err(ReadError::Blocked) => break,
                        Err(e) => panic!("unexpected {e}"),
                    }
                }
                drop(chunks);
                if *ended && p == 1 {
                    let len = below(3000);
                    lens[1][id.index() as usize] = len;
                    let all = text(id, len, 2);
                    let mut pieces = [
                        Bytes::copy_from_slice(&all[..len / 3]),
                        all[len / 3..].to_vec().into(),
                    ];
                    assert_eq!(
                        peers[p].send(id).write_chunks(&mut pieces).unwrap().bytes,
                        len
                    );
                    peers[p].send(id).finish().unwrap();
                }
            }
        }
        let max = peers[1].state.max_remote[Dir::Bi as usize];
        peers[0].state.received_max_streams(Dir::Bi, max).unwrap();
    }
    for p in 0..2 {
        for index in 0..REQUESTS {
            let (data, ended) = &read[p][index as usize];
            let expected = text(bi(index), lens[1 - p][index as usize], 2 - p as u8);
            assert!(*ended && *data == expected, "stream {index} of {p}");
            assert!(peers[p].state.table.send_half(bi(index)).is_closed());
            assert!(peers[p].state.table.recv_half(bi(index)).is_closed());
        }
        assert_eq!(peers[p].state.buffered_data, 0);
        assert_eq!(peers[p].streams().send_streams(), 0);
    }
    assert_eq!(peers[1].streams().remote_open_streams(Dir::Bi), 0);
    assert_eq!(
        peers[1].state.max_remote[Dir::Bi as usize],
        REQUESTS + u64::from(LIMIT)
    );
}
