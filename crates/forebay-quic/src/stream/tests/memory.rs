//! Memory of streams that wait, come and go.

use super::*;
use crate::stream::recv::Recv;
use crate::stream::send::Send;

#[test]
fn states_are_small() {
    let sizes = (size_of::<Streams>(), size_of::<Send>(), size_of::<Recv>());
    assert!(sizes.0 <= 800 && sizes.1 <= 256 && sizes.2 <= 128, "{sizes:?}");
}

/// Returns the memory of containers in places.
fn capacity(of: &Streams) -> usize {
    of.controls.capacity() + of.events.capacity() + of.waiting.capacity() + of.order.places()
}

/// Has a client make a request, and the server answer it.
fn request(pair: &mut Pair) -> StreamId {
    let id = pair.client.open(Dir::Bi).expect("a stream");
    pair.client.write_slice(id, &content(100)).expect("room");
    pair.client.finish(id).expect("open");
    pair.run();
    assert_eq!(pair.server.accept(Dir::Bi), Some(id));
    assert!(read_all(&mut pair.server, id).1);
    pair.server.write_slice(id, &content(300)).expect("room");
    pair.server.finish(id).expect("open");
    pair.run();
    assert!(read_all(&mut pair.client, id).1);
    pair.run();
    events(&mut pair.client);
    events(&mut pair.server);
    id
}

#[test]
fn an_idle_connection_keeps_nothing() {
    let mut pair = Pair::new(LIMITS);
    assert_eq!(capacity(&pair.server), 0);
    for _ in 0..1000 {
        request(&mut pair);
    }
    pair.server.shrink();
    pair.client.shrink();
    for of in [&pair.client, &pair.server] {
        assert_eq!((capacity(of), of.sends.capacity(), of.recvs.capacity()), (0, 0, 0));
        assert_eq!(of.index.capacity(), 0);
    }
}

/// A stream that stays must not have the index grow with those that come and go.
#[test]
fn an_old_stream_costs_little() {
    let mut pair = Pair::new(LIMITS);
    let old = pair.client.open(Dir::Bi).expect("a stream");
    pair.client.write_slice(old, b"1").expect("room");
    pair.run();
    assert_eq!(pair.server.accept(Dir::Bi), Some(old));
    assert_eq!(read_all(&mut pair.server, old), (b"1".to_vec(), false));
    let mut last = old;
    for _ in 0..5_000 {
        last = request(&mut pair);
    }
    for of in [&pair.client, &pair.server] {
        assert!(of.index.capacity() <= 256, "{}", of.index.capacity());
    }
    assert_eq!(last.index(), 5_000);
    // It works as before, and ends.
    pair.client.write_slice(old, b"2").expect("room");
    pair.client.finish(old).expect("open");
    pair.run();
    assert_eq!(read_all(&mut pair.server, old), (b"2".to_vec(), true));
    pair.server.finish(old).expect("open");
    pair.run();
    assert_eq!(read_all(&mut pair.client, old), (vec![], true));
    assert!(!pair.client.is_open(old) && !pair.server.is_open(old));
    assert_eq!(pair.client.write_slice(old, b"3"), Err(crate::stream::WriteError::Closed));
}

/// A peer that opens all its streams at once costs an entry for each, not a state.
#[test]
fn streams_that_were_skipped_have_no_state() {
    let mut of = Pair::new(Limits { bi: 1000, ..LIMITS }).server;
    of.on_stream(bi(Side::Client, 999), 0, Bytes::from_static(b"1"), false).expect("right");
    assert_eq!((of.sends.capacity(), of.recvs.len()), (0, 1));
    assert_eq!(std::iter::from_fn(|| of.accept(Dir::Bi)).count(), 1000);
    assert_eq!((of.sends.capacity(), of.recvs.len()), (0, 1));
}

/// Short pieces that an application does not read must not keep their datagrams.
#[test]
fn short_frames_keep_no_datagrams() {
    let mut of = Pair::new(LIMITS).server;
    let datagrams: Vec<_> = (0..1000).map(|_| Bytes::from(vec![7; 1200])).collect();
    for (at, datagram) in (0..).zip(&datagrams) {
        of.on_stream(bi(Side::Client, 0), at, datagram.slice(..1), false).expect("right");
    }
    let kept = datagrams.iter().filter(|datagram| !datagram.is_unique()).count();
    assert!(kept <= 1, "{kept}");
}

/// Frames that repeat what was said are not gathered.
#[test]
fn queues_do_not_grow() {
    let mut of = Pair::new(LIMITS).server;
    let id = bi(Side::Client, 0);
    of.on_stream(id, 0, Bytes::from_static(b"1"), false).expect("right");
    of.accept(Dir::Bi).expect("a stream");
    for n in 0..10_000 {
        of.on_max_stream_data(id, 10_000 + n).expect("right");
        of.on_max_data(20_000 + n);
        let _ = of.write_slice(id, &content(60_000));
        of.on_streams_blocked(Dir::Bi, 10);
        of.on_reset_stream(id, 1, 1).expect("right");
        events(&mut of);
    }
    of.on_stop_sending(id, 1).expect("right");
    of.on_stop_sending(id, 1).expect("right");
    assert!(capacity(&of) < 64, "{}", capacity(&of));
}
