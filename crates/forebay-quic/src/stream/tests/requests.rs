//! Requests and responses as HTTP/3 has them.

use super::*;
use crate::stream::{Chunk, Closed, Next, ReadError, WriteError};

#[test]
fn a_request_and_its_response() {
    let mut pair = Pair::new(LIMITS);
    let id = pair.client.open(Dir::Bi).expect("a stream");
    assert_eq!(id, bi(Side::Client, 0));
    assert_eq!(pair.client.write_slice(id, b"request"), Ok(7));
    assert_eq!(pair.client.finish(id), Ok(()));
    assert_eq!(pair.client.write_slice(id, b"more"), Err(WriteError::Closed));
    let (sent, _) = pair.run();
    assert_eq!(sent, [Item::Stream { id, offset: 0, len: 7, fin: true }]);

    assert_eq!(events(&mut pair.server), [StreamEvent::Opened { dir: Dir::Bi }]);
    assert_eq!((pair.server.accept(Dir::Bi), pair.server.accept(Dir::Bi)), (Some(id), None));
    let chunk = Chunk { bytes: Bytes::from_static(b"request"), next: Next::End };
    assert_eq!(pair.server.read(id, 100), Ok(Some(chunk)));
    assert_eq!(pair.server.read(id, 100), Err(ReadError::Closed));
    let mut body = Bytes::from(content(5000));
    assert_eq!(pair.server.write_slice(id, b"head"), Ok(4));
    assert_eq!((pair.server.write(id, &mut body), body.len()), (Ok(5000), 0));
    assert_eq!((pair.server.finish(id), pair.server.finish(id)), (Ok(()), Err(Closed)));
    assert_eq!((pair.server.send_streams(), pair.server.kept()), (1, 5004));
    pair.run();
    assert_eq!((pair.server.send_streams(), pair.server.kept()), (0, 0));

    let (finished, readable) = (StreamEvent::Finished { id }, StreamEvent::Readable { id });
    assert_eq!(events(&mut pair.client), [finished, readable]);
    assert_eq!(read_all(&mut pair.client, id), ([b"head", &content(5000)[..]].concat(), true));
    assert_eq!(events(&mut pair.server), [finished]);
    assert!(!pair.client.is_open(id) && !pair.server.is_open(id));
}

#[test]
fn reads_are_told_what_follows() {
    let mut pair = Pair::new(LIMITS);
    let id = pair.client.open(Dir::Uni).expect("a stream");
    pair.client.write_slice(id, b"12345").expect("room");
    pair.run();
    pair.server.accept(Dir::Uni).expect("a stream");
    let next =
        |read: Result<Option<Chunk>, ReadError>| read.map(|chunk| chunk.map(|c| (c.bytes.len(), c.next)));
    assert_eq!(next(pair.server.read(id, 2)), Ok(Some((2, Next::More))));
    assert_eq!(next(pair.server.read(id, 9)), Ok(Some((3, Next::Blocked))));
    assert_eq!(next(pair.server.read(id, 9)), Err(ReadError::Blocked));
    events(&mut pair.server);
    pair.client.finish(id).expect("open");
    pair.run();
    assert_eq!(events(&mut pair.server), [StreamEvent::Readable { id }]);
    assert_eq!(next(pair.server.read(id, 9)), Ok(None));
    assert_eq!(next(pair.server.read(id, 9)), Err(ReadError::Closed));
}

/// An application is told once that there is something to read, until it has read everything.
#[test]
fn events_are_not_repeated() {
    let mut pair = Pair::new(LIMITS);
    let id = pair.client.open(Dir::Bi).expect("a stream");
    for _ in 0..3 {
        pair.client.write_slice(id, b"1").expect("room");
        pair.run();
    }
    assert_eq!(events(&mut pair.server), [StreamEvent::Opened { dir: Dir::Bi }]);
    pair.server.accept(Dir::Bi).expect("a stream");
    assert_eq!(read_all(&mut pair.server, id), (b"111".to_vec(), false));
    for _ in 0..3 {
        pair.client.write_slice(id, b"2").expect("room");
        pair.run();
    }
    assert_eq!(events(&mut pair.server), [StreamEvent::Readable { id }]);
}

#[test]
fn a_reset_drops_what_was_not_read() {
    let mut pair = Pair::new(LIMITS);
    let id = pair.client.open(Dir::Bi).expect("a stream");
    pair.client.write_slice(id, b"content").expect("room");
    pair.run();
    pair.server.accept(Dir::Bi).expect("a stream");
    assert_eq!(pair.client.reset(id, 7), Ok(()));
    assert_eq!(pair.client.reset(id, 8), Err(Closed));
    pair.run();
    events(&mut pair.client);
    assert_eq!(events(&mut pair.server)[1..], [StreamEvent::Readable { id }]);
    assert_eq!(pair.server.read(id, 100), Err(ReadError::Reset(7)));
    assert_eq!(pair.server.read(id, 100), Err(ReadError::Closed));
    assert_eq!(pair.server.received_reset(id), None);
    // The other half is not concerned.
    assert_eq!(pair.server.write_slice(id, b"sorry"), Ok(5));
    pair.server.finish(id).expect("open");
    pair.run();
    assert_eq!(read_all(&mut pair.client, id), (b"sorry".to_vec(), true));
}

#[test]
fn a_reset_can_be_asked_for() {
    let mut pair = Pair::new(LIMITS);
    let id = pair.client.open(Dir::Uni).expect("a stream");
    pair.client.write_slice(id, b"content").expect("room");
    pair.run();
    assert_eq!(pair.server.received_reset(id), None);
    pair.client.reset(id, 7).expect("open");
    pair.run();
    assert_eq!(pair.server.received_reset(id), Some(7));
    assert_eq!(pair.server.received_reset(id), None);
    assert!(!pair.server.is_open(id));
}

/// What arrived whole can be read even if its sender resets it: it did not know.
#[test]
fn a_reset_behind_the_end() {
    for read_before in [false, true] {
        let mut pair = Pair::new(LIMITS);
        let id = pair.client.open(Dir::Bi).expect("a stream");
        pair.client.write_slice(id, b"request").expect("room");
        pair.client.finish(id).expect("open");
        let (bytes, _) = packet(&mut pair.client, 1200);
        deliver(&mut pair.server, Side::Client, &bytes).expect("right");
        pair.server.accept(Dir::Bi).expect("a stream");
        if read_before {
            read_all(&mut pair.server, id);
        }
        events(&mut pair.server);
        pair.client.reset(id, 7).expect("not acknowledged");
        let (bytes, items) = packet(&mut pair.client, 1200);
        assert_eq!(items, [Item::ResetStream(id)]);
        for _ in 0..3 {
            deliver(&mut pair.server, Side::Client, &bytes).expect("right");
        }
        assert_eq!(events(&mut pair.server), [StreamEvent::ResetAfterEnd { id }]);
        if !read_before {
            assert_eq!(read_all(&mut pair.server, id), (b"request".to_vec(), true));
            deliver(&mut pair.server, Side::Client, &bytes).expect("right");
        }
        assert_eq!(events(&mut pair.server), []);
    }
}

#[test]
fn a_stopped_stream_is_reset() {
    let mut pair = Pair::new(LIMITS);
    let id = pair.client.open(Dir::Bi).expect("a stream");
    pair.client.write_slice(id, b"request").expect("room");
    pair.run();
    pair.server.accept(Dir::Bi).expect("a stream");
    events(&mut pair.server);
    assert_eq!((pair.server.stop(id, 5), pair.server.stop(id, 6)), (Ok(()), Err(Closed)));
    assert_eq!(pair.server.read(id, 100), Err(ReadError::Closed));
    let (_, sent) = pair.run();
    assert_eq!(sent, [Item::StopSending(id)]);
    assert_eq!(events(&mut pair.client), [StreamEvent::Stopped { id, code: 5 }]);
    assert_eq!(pair.client.write_slice(id, b"more"), Err(WriteError::Closed));
    assert_eq!(events(&mut pair.server), []);
    assert!(pair.server.is_open(id), "the other half");
    pair.server.finish(id).expect("open");
    pair.run();
    assert_eq!(read_all(&mut pair.client, id), (vec![], true));
    assert!(!pair.server.is_open(id) && !pair.client.is_open(id));
}

/// The application may know a better code than that of the peer.
#[test]
fn the_code_of_a_reset_that_was_asked_for() {
    for own in [None, Some(9)] {
        let mut pair = Pair::new(LIMITS);
        let id = pair.client.open(Dir::Uni).expect("a stream");
        pair.client.write_slice(id, b"1").expect("room");
        pair.client.on_stop_sending(id, 5).expect("right");
        assert_eq!(pair.client.write_slice(id, b"1"), Err(WriteError::Stopped(5)));
        if let Some(code) = own {
            assert_eq!((pair.client.reset(id, code), pair.client.reset(id, 1)), (Ok(()), Err(Closed)));
        }
        pair.run();
        pair.server.accept(Dir::Uni).expect("a stream");
        assert_eq!(pair.server.read(id, 10), Err(ReadError::Reset(own.unwrap_or(5))));
    }
}

/// RFC 9000, section 3.5: a stream that was sent to its end need not be reset, unless something of it is lost.
#[test]
fn a_stream_that_was_sent_is_reset_once_something_is_lost() {
    let mut pair = Pair::new(LIMITS);
    let id = pair.client.open(Dir::Uni).expect("a stream");
    pair.client.write_slice(id, &content(2000)).expect("room");
    pair.client.finish(id).expect("open");
    let (_, first) = packet(&mut pair.client, 1200);
    let (_, second) = packet(&mut pair.client, 1200);
    pair.client.on_stop_sending(id, 5).expect("right");
    assert!(!pair.client.wants_to_send());
    assert_eq!(pair.client.stopped(id), Some(5));
    pair.client.acked(first[0]);
    pair.client.lost(second[0]);
    assert_eq!(packet(&mut pair.client, 1200).1, [Item::ResetStream(id)]);
}

/// One that has not been read is over all the same once its end is known.
#[test]
fn content_of_a_stopped_stream_counts_as_read() {
    let mut pair = Pair::new(LIMITS);
    for _ in 0..100 {
        let id = pair.client.open(Dir::Uni).expect("a stream");
        assert_eq!(pair.client.write_slice(id, &content(5000)), Ok(5000));
        let (bytes, items) = packet(&mut pair.client, 1200);
        deliver(&mut pair.server, Side::Client, &bytes).expect("right");
        items.iter().for_each(|item| pair.client.acked(*item));
        pair.server.stop(id, 3).expect("open");
        pair.run();
        assert!(!pair.server.is_open(id) && !pair.client.is_open(id));
    }
}
