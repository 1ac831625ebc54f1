//! Transfers over a network that loses, repeats and reorders packets.

use super::*;
use crate::stream::{Next, ReadError, WriteError};

/// A packet on its way, or one of which nothing is known.
struct Flight {
    bytes: Vec<u8>,
    items: Vec<Item>,
    from: Side,
}

/// What an application does with a stream.
#[derive(Default)]
struct Work {
    written: usize,
    whole: usize,
    ended: bool,
    read: usize,
    read_ended: bool,
    /// There was no room, and no event since.
    is_full: bool,
    /// There was nothing to read, and no event since.
    is_empty: bool,
}

/// One end, and the streams of its application.
struct End {
    streams: Streams,
    side: Side,
    work: Vec<(StreamId, Work)>,
    may_open: usize,
    /// The application gives some streams up.
    is_fickle: bool,
}

/// Returns the byte of a stream at an offset, of the direction from a side.
fn byte(id: StreamId, side: Side, at: usize) -> u8 {
    ((at * 7 + at / 256) as u64 ^ (id.0 * 31) ^ u64::from(side.is_client())) as u8
}

impl End {
    fn new(side: Side, limits: Limits, may_open: usize, is_fickle: bool) -> End {
        End { streams: Streams::new(side, limits), side, work: Vec::new(), may_open, is_fickle }
    }

    fn step(&mut self, random: &mut Random) {
        while let Some(event) = self.streams.poll() {
            self.note(event);
        }
        for dir in [Dir::Bi, Dir::Uni] {
            while let Some(id) = self.streams.accept(dir) {
                let whole = if dir == Dir::Bi { random.below(30_000) as usize } else { 0 };
                let ended = dir == Dir::Uni;
                self.work.push((id, Work { whole, ended, ..Work::default() }));
            }
        }
        if self.may_open > 0 {
            let dir = if random.below(3) == 0 { Dir::Uni } else { Dir::Bi };
            if let Some(id) = self.streams.open(dir) {
                self.may_open -= 1;
                let _ = self.streams.set_priority(id, random.below(3) as i32);
                let whole = random.below(20_000) as usize;
                self.work.push((id, Work { whole, read_ended: dir == Dir::Uni, ..Work::default() }));
            }
        }
        for (id, work) in &mut self.work {
            if self.is_fickle {
                give_up(&mut self.streams, *id, work, random);
            }
            write(&mut self.streams, *id, work, self.side, random);
            read(&mut self.streams, *id, work, self.side, random);
        }
    }

    fn note(&mut self, event: StreamEvent) {
        match event {
            StreamEvent::Readable { id } => self.work_of(id).is_empty = false,
            StreamEvent::Writable { id } => self.work_of(id).is_full = false,
            StreamEvent::Finished { id } => assert!(self.work_of(id).ended),
            StreamEvent::Opened { .. } | StreamEvent::Available { .. } => {}
            StreamEvent::Stopped { id, code } => {
                assert!(self.is_fickle && code == 2);
                if let Some((_, work)) = self.work.iter_mut().find(|(other, _)| *other == id) {
                    work.ended = true;
                }
            }
            StreamEvent::ResetAfterEnd { .. } => assert!(self.is_fickle),
        }
    }

    /// Returns a stream that the application knows.
    fn work_of(&mut self, id: StreamId) -> &mut Work {
        self.work.iter_mut().find(|(other, _)| *other == id).map(|(_, work)| work).expect("accepted")
    }

    fn is_done(&self) -> bool {
        self.may_open == 0 && self.work.iter().all(|(_, work)| work.ended && work.read_ended)
    }
}

/// Has an application give a stream up now and then, in one direction or both.
fn give_up(streams: &mut Streams, id: StreamId, work: &mut Work, random: &mut Random) {
    if random.below(40) == 0 && streams.reset(id, 1).is_ok() {
        work.ended = true;
    }
    if random.below(40) == 0 && streams.stop(id, 2).is_ok() {
        work.read_ended = true;
    }
}

fn write(streams: &mut Streams, id: StreamId, work: &mut Work, side: Side, random: &mut Random) {
    if work.ended || work.is_full {
        return;
    }
    let end = (work.written + 1 + random.below(6_000) as usize).min(work.whole);
    let bytes: Vec<u8> = (work.written..end).map(|at| byte(id, side, at)).collect();
    let written = match random.below(2) {
        0 => streams.write_slice(id, &bytes),
        _ => streams.write(id, &mut Bytes::from(bytes)),
    };
    match written {
        Ok(n) => work.written += n,
        Err(WriteError::Blocked) => {}
        Err(WriteError::Stopped(code)) => {
            assert_eq!(code, 2);
            work.ended = true;
            return;
        }
        Err(WriteError::Closed) => {
            // The peer has stopped it, and it was reset therefore.
            work.ended = true;
            return;
        }
    }
    work.is_full = work.written < end;
    if work.written == work.whole {
        streams.finish(id).expect("open");
        work.ended = true;
    }
}

fn read(streams: &mut Streams, id: StreamId, work: &mut Work, side: Side, random: &mut Random) {
    if work.read_ended || work.is_empty || random.below(3) == 0 {
        return;
    }
    match streams.read(id, 1 + random.below(5_000) as usize) {
        Ok(Some(chunk)) => {
            for (at, found) in (work.read..).zip(chunk.bytes.iter()) {
                assert_eq!(*found, byte(id, side.other(), at), "stream {id} at {at}");
            }
            work.read += chunk.bytes.len();
            work.read_ended = chunk.next == Next::End;
            work.is_empty = chunk.next == Next::Blocked;
        }
        Ok(None) => work.read_ended = true,
        Err(ReadError::Blocked) => work.is_empty = true,
        Err(ReadError::Reset(1 | 2)) => work.read_ended = true,
        Err(error) => panic!("{error:?}"),
    }
}

/// Has an end send a packet, or all of one packet again if there is nothing else to send.
fn send(end: &mut End, flights: &mut Vec<Flight>, random: &mut Random) {
    if !end.streams.wants_to_send() {
        let oldest = flights.iter().find(|flight| flight.from == end.side);
        if let Some(oldest) = oldest.filter(|_| random.below(4) == 0) {
            oldest.items.iter().for_each(|item| end.streams.again(*item));
        }
    }
    if end.streams.wants_to_send() {
        let (bytes, items) = packet(&mut end.streams, 100 + random.below(1300) as usize);
        assert!(!bytes.is_empty(), "something was to be sent");
        flights.push(Flight { bytes, items, from: end.side });
    }
}

/// Decides what becomes of a packet.
fn settle(ends: &mut [End; 2], flights: &mut Vec<Flight>, random: &mut Random) {
    if flights.is_empty() {
        return;
    }
    let at = match random.below(4) {
        0 => random.below(flights.len() as u64) as usize,
        _ => 0,
    };
    let flight = flights.remove(at);
    let (sender, receiver) = (usize::from(flight.from.is_server()), usize::from(flight.from.is_client()));
    let arrives = random.below(100);
    if arrives < 90 {
        deliver(&mut ends[receiver].streams, flight.from, &flight.bytes).expect("frames are right");
    }
    match arrives {
        0..70 => flight.items.iter().for_each(|item| ends[sender].streams.acked(*item)),
        // It is acknowledged after it was taken for lost.
        70..80 => flight.items.iter().for_each(|item| {
            ends[sender].streams.lost(*item);
            ends[sender].streams.acked(*item);
        }),
        // It arrives twice.
        80..85 => flights.push(flight),
        _ => flight.items.iter().for_each(|item| ends[sender].streams.lost(*item)),
    }
}

fn run(seed: u64, is_fickle: bool) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let limits = Limits {
        stream_window: 500 + random.below(20_000),
        window: 1_000 + random.below(40_000),
        bi: 1 + random.below(8),
        uni: 1 + random.below(3),
        send_window: 1_000 + random.below(30_000),
    };
    let mut ends =
        [End::new(Side::Client, limits, 20, is_fickle), End::new(Side::Server, limits, 5, is_fickle)];
    ends.iter_mut().for_each(|end| end.streams.set_peer(as_peer(limits)));
    let mut flights = Vec::new();
    for step in 0.. {
        assert!(step < 100_000, "seed {seed} never ends");
        for end in &mut ends {
            if random.below(3) == 0 {
                end.step(&mut random);
            }
            assert!(end.streams.kept() <= limits.send_window);
            send(end, &mut flights, &mut random);
        }
        settle(&mut ends, &mut flights, &mut random);
        let is_quiet = flights.is_empty() && !ends.iter_mut().any(|end| end.streams.wants_to_send());
        if is_quiet && ends.iter().all(End::is_done) {
            break;
        }
    }
    for end in &mut ends {
        assert_eq!((end.streams.send_streams(), end.streams.kept()), (0, 0), "seed {seed}");
        assert_eq!(end.streams.recvs.len(), 0, "seed {seed}");
        let all: Vec<_> = end.work.iter().map(|(id, _)| *id).collect();
        assert!(all.iter().all(|id| !end.streams.is_open(*id)));
    }
    let [client, server] = &ends;
    for (from, to) in [(client, server), (server, client)] {
        let sent = from.streams.outgoing.sent;
        assert_eq!(to.streams.incoming.counts(), (sent, sent), "seed {seed}: all counts as read");
    }
    for (id, work) in &client.work {
        let (_, other) = server.work.iter().find(|(other, _)| other == id).expect("it arrived");
        if !is_fickle {
            assert_eq!((work.written, other.written), (other.read, work.read), "seed {seed}, stream {id}");
        }
    }
}

#[test]
fn everything_arrives_once() {
    (1..=60).for_each(|seed| run(seed, false));
}

/// Streams that are reset and stopped at any time leave nothing behind, and no byte is lost for flow control.
#[test]
fn streams_are_given_up() {
    (1..=60).for_each(|seed| run(seed, true));
}

/// An early client sends everything again if the server refuses 0-RTT, with the limits that it gets then.
#[test]
fn early_data_is_refused() {
    let limits = Limits { window: 6_000, bi: 3, stream_window: 4_000, ..LIMITS };
    let mut client = Streams::new(Side::Client, LIMITS);
    client.set_peer(as_peer(LIMITS));
    let ids: Vec<_> = (0..5).filter_map(|_| client.open(Dir::Bi)).collect();
    for id in &ids[..4] {
        assert_eq!(client.write_slice(*id, &content(5_000)), Ok(5_000));
        client.finish(*id).expect("open");
    }
    client.stop(ids[3], 3).expect("open");
    while client.wants_to_send() {
        packet(&mut client, 1200);
    }
    client.reset(ids[1], 7).expect("open");
    packet(&mut client, 1200);
    client.reject_early();
    assert!(!client.wants_to_send());
    // The fifth has no state yet, and is not allowed any more.
    client.finish(ids[4]).expect("open");
    let server = Streams::new(Side::Server, limits);
    let mut pair = Pair { client, server };
    pair.server.set_peer(as_peer(LIMITS));
    pair.client.set_peer(as_peer(limits));
    let (items, _) = pair.run();
    assert_eq!(items[0], Item::ResetStream(ids[1]));
    let accepted: Vec<_> = std::iter::from_fn(|| pair.server.accept(Dir::Bi)).collect();
    assert_eq!(accepted, ids[..3]);
    assert_eq!(pair.server.read(ids[1], 1), Err(ReadError::Reset(7)));
    for id in [ids[0], ids[2]] {
        let mut all = Vec::new();
        while all.len() < 5_000 {
            all.extend(read_all(&mut pair.server, id).0);
            pair.run();
        }
        assert!(all == content(5_000));
        pair.server.finish(id).expect("open");
        pair.run();
    }
    assert_eq!(read_all(&mut pair.client, ids[0]), (vec![], true));
    pair.run();
    // A stream is over, so the fourth may begin.
    assert_eq!(pair.server.accept(Dir::Bi), Some(ids[3]));
    assert!(events(&mut pair.server).contains(&StreamEvent::Stopped { id: ids[3], code: 3 }));
}

/// Remembered limits that the server has raised since.
#[test]
fn early_data_is_accepted() {
    let mut pair = Pair::new(LIMITS);
    let mut client = Streams::new(Side::Client, LIMITS);
    client.set_peer(PeerLimits { max_streams_bi: 1, ..as_peer(Limits { stream_window: 100, ..LIMITS }) });
    let id = client.open(Dir::Bi).expect("a stream");
    assert_eq!(client.open(Dir::Bi), None);
    assert_eq!(client.write_slice(id, &content(300)), Ok(100));
    pair.client = client;
    pair.client.set_peer(as_peer(LIMITS));
    assert_eq!(
        events(&mut pair.client),
        [StreamEvent::Available { dir: Dir::Bi }, StreamEvent::Writable { id }]
    );
    assert_eq!(pair.client.write_slice(id, &content(300)), Ok(300));
    let (items, _) = pair.run();
    assert_eq!(items, [Item::Stream { id, offset: 0, len: 400, fin: false }]);
}

/// A probe has the oldest content again, and nothing is counted twice.
#[test]
fn probes_repeat_content() {
    let mut pair = Pair::new(LIMITS);
    let id = pair.client.open(Dir::Bi).expect("a stream");
    pair.client.write_slice(id, &content(2_000)).expect("room");
    pair.client.finish(id).expect("open");
    let (_, first) = packet(&mut pair.client, 1200);
    let (_, second) = packet(&mut pair.client, 1200);
    assert!(!pair.client.wants_to_send());
    pair.client.again(first[0]);
    let (bytes, again) = packet(&mut pair.client, 1200);
    assert_eq!(again, first);
    deliver(&mut pair.server, Side::Client, &bytes).expect("right");
    pair.client.acked(again[0]);
    pair.client.acked(first[0]);
    assert_eq!(pair.client.kept(), 2_000 - u64::from(len_of(first[0])));
    pair.client.lost(first[0]);
    assert!(!pair.client.wants_to_send(), "it is there");
    pair.client.lost(second[0]);
    pair.client.again(second[0]);
    let (bytes, again) = packet(&mut pair.client, 1200);
    assert_eq!(again, second);
    deliver(&mut pair.server, Side::Client, &bytes).expect("right");
    pair.client.acked(again[0]);
    assert_eq!(events(&mut pair.client), [StreamEvent::Finished { id }]);
    pair.server.accept(Dir::Bi).expect("a stream");
    assert_eq!(read_all(&mut pair.server, id), (content(2_000), true));
}

fn len_of(item: Item) -> u16 {
    if let Item::Stream { len, .. } = item { len } else { 0 }
}
