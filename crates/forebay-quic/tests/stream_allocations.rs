//! Streams that come and go allocate nothing once there is memory for as many as there are at a time.

use bytes::Bytes;
use forebay_quic::id::{Dir, Side, StreamId};
use forebay_quic::item::Item;
use forebay_quic::stream::{Limits, PeerLimits, StreamEvent, Streams};
use forebay_sys::alloc::CountingAllocator;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// A server, a client that is simulated, and memory that both use again.
struct Load {
    server: Streams,
    next: u64,
    packet: Vec<u8>,
    items: Vec<Item>,
    ids: Vec<StreamId>,
    request: Bytes,
    head: Vec<u8>,
    body: Bytes,
}

impl Load {
    fn new(body: usize) -> Load {
        let limits =
            Limits { stream_window: 65_536, window: 262_144, bi: 128, uni: 8, send_window: 1_048_576 };
        let mut server = Streams::new(Side::Server, limits);
        server.set_peer(PeerLimits {
            max_data: 1 << 60,
            max_stream_data_bidi_local: 1 << 40,
            max_stream_data_bidi_remote: 1 << 40,
            max_stream_data_uni: 1 << 40,
            max_streams_bi: 100,
            max_streams_uni: 3,
        });
        Load {
            server,
            next: 0,
            packet: Vec::with_capacity(1500),
            items: Vec::with_capacity(1000),
            ids: Vec::with_capacity(16),
            request: Bytes::from(vec![b'r'; 300]),
            head: vec![b'h'; 200],
            body: Bytes::from(vec![b'b'; body]),
        }
    }

    /// Has ten requests come, answers them, and loses some of the packets.
    fn round(&mut self) {
        for _ in 0..10 {
            let id = StreamId::new(Side::Client, Dir::Bi, self.next);
            self.next += 1;
            self.server.on_stream(id, 0, self.request.clone(), true).expect("right");
        }
        while let Some(event) = self.server.poll() {
            assert!(matches!(event, StreamEvent::Opened { .. } | StreamEvent::Finished { .. }));
        }
        while let Some(id) = self.server.accept(Dir::Bi) {
            let chunk = self.server.read(id, usize::MAX).expect("a request").expect("content");
            assert_eq!(chunk.bytes.len(), 300);
            self.ids.push(id);
        }
        for id in self.ids.drain(..) {
            assert_eq!(self.server.write_slice(id, &self.head), Ok(self.head.len()));
            let mut body = self.body.clone();
            assert_eq!(self.server.write(id, &mut body), Ok(self.body.len()));
            self.server.finish(id).expect("open");
        }
        let mut lost = 0;
        while self.server.wants_to_send() {
            self.packet.clear();
            self.server.push_control(&mut self.packet, 1400, &mut |item| self.items.push(item));
            self.server.push_content(&mut self.packet, 1400, &mut |item| self.items.push(item));
            lost += 1;
            if lost % 5 == 0
                && let Some(item) = self.items.pop()
            {
                self.server.lost(item);
            }
        }
        self.items.drain(..).for_each(|item| self.server.acked(item));
        assert_eq!((self.server.send_streams(), self.server.kept()), (0, 0));
    }
}

#[test]
fn requests_allocate_nothing() {
    for body in [0, 100, 1_000, 10_000, 100_000] {
        let mut load = Load::new(body);
        (0..20).for_each(|_| load.round());
        let before = CountingAllocator::counts();
        (0..100).for_each(|_| load.round());
        let after = CountingAllocator::counts();
        assert_eq!(after.allocations - before.allocations, 0, "1000 requests of {body} bytes");
    }
}

/// An upload in order, and one of which every third packet comes late.
#[test]
fn uploads_allocate_nothing() {
    let mut load = Load::new(0);
    let id = StreamId::new(Side::Client, Dir::Bi, 0);
    let datagram = Bytes::from(vec![b'u'; 1_200]);
    let mut offset = 0;
    let mut upload = |load: &mut Load, late: bool| {
        for at in [if late { 2 } else { 0 }, 1, if late { 0 } else { 2 }] {
            load.server.on_stream(id, offset + 1_200 * at, datagram.clone(), false).expect("right");
        }
        offset += 3_600;
        if load.server.accept(Dir::Bi).is_none() {
            assert_eq!(load.server.poll(), Some(StreamEvent::Readable { id }));
        }
        let mut read = 0;
        while let Ok(Some(chunk)) = load.server.read(id, usize::MAX) {
            read += chunk.bytes.len();
        }
        assert_eq!(read, 3_600);
        load.packet.clear();
        load.server.push_control(&mut load.packet, 1400, &mut |_| {});
    };
    upload(&mut load, false);
    load.server.poll();
    (0..20).for_each(|n| upload(&mut load, n % 2 == 0));
    let before = CountingAllocator::counts();
    (0..1000).for_each(|n| upload(&mut load, n % 2 == 0));
    assert_eq!(CountingAllocator::counts().allocations - before.allocations, 0);
}

/// A connection that has no stream has no memory but its own, and that of an idle one is little.
#[test]
fn idle_connections_are_small() {
    let before = CountingAllocator::counts().live();
    let load = Streams::new(Side::Server, Limits::default());
    assert_eq!(CountingAllocator::counts().live(), before);
    drop(load);
    // Memory of the thread is there from now on.
    Load::new(1_000).round();
    let mut load = Load::new(1_000);
    let before = CountingAllocator::counts().live();
    for index in 0..3 {
        let id = StreamId::new(Side::Client, Dir::Uni, index);
        load.server.on_stream(id, 0, load.request.clone(), false).expect("right");
        load.server.accept(Dir::Uni).expect("a stream");
        load.server.read(id, usize::MAX).expect("content");
        let own = load.server.open(Dir::Uni).expect("a stream");
        load.server.write_slice(own, b"settings").expect("room");
    }
    while load.server.wants_to_send() {
        load.packet.clear();
        load.server.push_content(&mut load.packet, 1400, &mut |item| load.items.push(item));
    }
    load.items.drain(..).for_each(|item| load.server.acked(item));
    load.server.shrink();
    let size = CountingAllocator::counts().live() - before;
    assert!(size <= 1_500, "{size} bytes for three streams of each side");
}
