//! Flow control, limits of streams, and final sizes (RFC 9000, section 4).

use super::*;
use crate::error::Code;
use crate::stream::WriteError;

/// Takes content of a stream from a client at a fresh server.
fn take(server: &mut Streams, id: StreamId, offset: u64, len: usize, fin: bool) -> Result<(), Code> {
    server.on_stream(id, offset, Bytes::from(content(len)), fin).map_err(|error| error.code)
}

fn server() -> Streams {
    Pair::new(LIMITS).server
}

#[test]
fn a_stream_has_a_limit() {
    let id = bi(Side::Client, 0);
    assert_eq!(take(&mut server(), id, 9_999, 1, false), Ok(()));
    assert_eq!(take(&mut server(), id, 9_999, 2, false), Err(Code::FLOW_CONTROL_ERROR));
    assert_eq!(take(&mut server(), id, 10_001, 0, true), Err(Code::FLOW_CONTROL_ERROR));
    assert_eq!(take(&mut server(), id, u64::MAX, 100, true), Err(Code::FLOW_CONTROL_ERROR));
    let reset = |size| server().on_reset_stream(id, 1, size).map_err(|error| error.code);
    assert_eq!((reset(10_000), reset(10_001)), (Ok(()), Err(Code::FLOW_CONTROL_ERROR)));
}

/// What lies in gaps counts.
#[test]
fn the_connection_has_a_limit() {
    let mut of = server();
    assert_eq!(take(&mut of, bi(Side::Client, 0), 9_000, 1_000, false), Ok(()));
    assert_eq!(take(&mut of, bi(Side::Client, 0), 0, 1_000, false), Ok(()));
    assert_eq!(take(&mut of, uni(Side::Client, 0), 9_000, 1_000, false), Ok(()));
    assert_eq!(take(&mut of, bi(Side::Client, 1), 0, 1, false), Err(Code::FLOW_CONTROL_ERROR));
    let mut of = server();
    for index in 0..2 {
        of.on_reset_stream(bi(Side::Client, index), 1, 10_000).expect("within the limits");
    }
    // Nobody will read what a reset stream had.
    let (_, items) = packet(&mut of, 1200);
    assert_eq!(items, [Item::MaxData(40_000)]);
    assert_eq!(take(&mut of, bi(Side::Client, 2), 0, 10_000, false), Ok(()));
}

#[test]
fn final_sizes_do_not_change() {
    let id = bi(Side::Client, 0);
    let second = |offset, len, fin| {
        let mut of = server();
        take(&mut of, id, 50, 50, true).expect("right");
        take(&mut of, id, offset, len, fin)
    };
    assert_eq!((second(0, 50, false), second(50, 50, true), second(100, 0, true)), (Ok(()), Ok(()), Ok(())));
    assert_eq!(second(99, 2, false), Err(Code::FINAL_SIZE_ERROR));
    assert_eq!(second(100, 1, true), Err(Code::FINAL_SIZE_ERROR));
    assert_eq!(second(0, 60, true), Err(Code::FINAL_SIZE_ERROR));
    let reset = |fin, size| {
        let mut of = server();
        take(&mut of, id, 50, 50, fin).expect("right");
        of.on_reset_stream(id, 1, size).map_err(|error| error.code)
    };
    assert_eq!((reset(true, 100), reset(false, 100), reset(false, 200)), (Ok(()), Ok(()), Ok(())));
    assert_eq!(reset(true, 99), Err(Code::FINAL_SIZE_ERROR));
    assert_eq!(reset(true, 101), Err(Code::FINAL_SIZE_ERROR));
    assert_eq!(reset(false, 99), Err(Code::FINAL_SIZE_ERROR));
    // After a reset, too, as long as the application does not know.
    let mut of = server();
    of.on_reset_stream(id, 1, 100).expect("right");
    assert_eq!(take(&mut of, id, 0, 100, true), Ok(()));
    assert_eq!(take(&mut of, id, 0, 99, true), Err(Code::FINAL_SIZE_ERROR));
    assert_eq!(take(&mut of, id, 99, 2, false), Err(Code::FINAL_SIZE_ERROR));
    assert_eq!(of.on_reset_stream(id, 1, 101).map_err(|error| error.code), Err(Code::FINAL_SIZE_ERROR));
}

#[test]
fn the_number_of_streams_has_a_limit() {
    let mut of = server();
    assert_eq!(take(&mut of, bi(Side::Client, 9), 0, 1, false), Ok(()));
    assert_eq!(take(&mut of, uni(Side::Client, 3), 0, 1, false), Ok(()));
    let accepted: Vec<_> = std::iter::from_fn(|| of.accept(Dir::Bi)).collect();
    assert_eq!(accepted, (0..10).map(|index| bi(Side::Client, index)).collect::<Vec<_>>());
    let over = |result: Result<(), Error>| result.map_err(|error| error.code);
    for id in [bi(Side::Client, 10), uni(Side::Client, 4), StreamId((1 << 62) - 4)] {
        let wrong = Err(Code::STREAM_LIMIT_ERROR);
        assert_eq!(take(&mut of, id, 0, 1, false), wrong);
        assert_eq!(over(of.on_reset_stream(id, 0, 0)), wrong);
        assert_eq!(over(of.on_stream_data_blocked(id)), wrong);
        if id.dir() == Dir::Bi {
            assert_eq!((over(of.on_stop_sending(id, 0)), over(of.on_max_stream_data(id, 0))), (wrong, wrong));
        }
    }
}

/// RFC 9000, sections 19.4, 19.5, 19.8, 19.10 and 19.13.
#[test]
fn frames_for_the_wrong_streams() {
    let mut of = server();
    let own = of.open(Dir::Uni).expect("a stream");
    let code = |result: Result<(), Error>| result.err().map(|error| error.code);
    let wrong = Some(Code::STREAM_STATE_ERROR);
    // Streams that only this side sends, or that it has not opened.
    for id in [own, uni(Side::Server, 1), bi(Side::Server, 0)] {
        assert_eq!(code(of.on_stream(id, 0, Bytes::new(), false)), wrong);
        assert_eq!(code(of.on_reset_stream(id, 0, 0)), wrong);
        assert_eq!(code(of.on_stream_data_blocked(id)), wrong);
    }
    // Streams that only the peer sends, or that this side has not opened.
    for id in [uni(Side::Client, 0), uni(Side::Server, 1), bi(Side::Server, 0)] {
        assert_eq!(code(of.on_stop_sending(id, 0)), wrong);
        assert_eq!(code(of.on_max_stream_data(id, 0)), wrong);
    }
    assert_eq!(code(of.on_stop_sending(own, 0)), None);
    let own = of.open(Dir::Bi).expect("a stream");
    assert_eq!(code(of.on_stream(own, 0, Bytes::new(), true)), None);
}

#[test]
fn too_many_gaps() {
    let mut of = server();
    let mut gaps = (1..).map(|n| of.on_stream(bi(Side::Client, 0), 2 * n, Bytes::from_static(b"1"), false));
    let error = gaps.find_map(Result::err).expect("an end of the gaps");
    assert_eq!((error.code, &*error.reason), (Code::INTERNAL_ERROR, "too many gaps"));
}

/// Limits are raised once a quarter of the window was read, not for each read.
#[test]
fn limits_follow_what_is_read() {
    let mut pair = Pair::new(LIMITS);
    let id = pair.client.open(Dir::Uni).expect("a stream");
    assert_eq!(pair.client.write_slice(id, &content(30_000)), Ok(10_000), "as much as the stream may have");
    assert_eq!(pair.client.write_slice(id, &[1]), Err(WriteError::Blocked));
    let (items, _) = pair.run();
    assert_eq!(items[0], Item::StreamDataBlocked(id, 10_000));
    assert_eq!(events(&mut pair.client), []);
    pair.server.accept(Dir::Uni).expect("a stream");
    assert_eq!(pair.server.read(id, 1000).map(|chunk| chunk.map(|chunk| chunk.bytes.len())), Ok(Some(1000)));
    assert!(!pair.server.wants_to_send());
    let mut read = 1000;
    while read < 2500 {
        let chunk = pair.server.read(id, 2500 - read).expect("content").expect("no end");
        read += chunk.bytes.len();
    }
    let (_, items) = pair.run();
    assert_eq!(items, [Item::MaxStreamData(id, 12_500)]);
    assert_eq!(events(&mut pair.client), [StreamEvent::Writable { id }]);
    assert_eq!(pair.client.write_slice(id, &content(10_000)), Ok(2_500));
    read_all(&mut pair.server, id);
    let (_, items) = pair.run();
    assert_eq!(items, [Item::MaxData(30_000), Item::MaxStreamData(id, 20_000)]);
    read_all(&mut pair.server, id);
    // The end is known: the stream needs no limit any more.
    pair.client.write_slice(id, &content(7_000)).expect("room");
    pair.client.finish(id).expect("open");
    pair.run();
    read_all(&mut pair.server, id);
    let (_, items) = pair.run();
    assert_eq!(items, [Item::MaxData(39_500), Item::MaxStreams(Dir::Uni, 5)]);
}

/// Streams wait for connection flow control, and the first ones go on first.
#[test]
fn the_connection_is_blocked() {
    let mut pair = Pair::new(LIMITS);
    let ids: Vec<_> = (0..3).filter_map(|_| pair.client.open(Dir::Bi)).collect();
    for id in &ids {
        assert_eq!(pair.client.write_slice(*id, &content(9_000)), Ok(9_000));
    }
    let (items, _) = pair.run();
    let sent: u64 =
        items.iter().map(|item| if let Item::Stream { len, .. } = item { u64::from(*len) } else { 0 }).sum();
    assert_eq!((sent, items.last()), (20_000, Some(&Item::DataBlocked(20_000))));
    assert!(!pair.client.wants_to_send());
    // An end needs no credit; content of another stream does.
    let fourth = pair.client.open(Dir::Bi).expect("a stream");
    pair.client.finish(fourth).expect("open");
    assert_eq!(pair.run().0, [Item::Stream { id: fourth, offset: 0, len: 0, fin: true }]);
    let fifth = pair.client.open(Dir::Bi).expect("a stream");
    pair.client.write_slice(fifth, b"1").expect("room");
    assert!(!pair.client.wants_to_send());
    // What was lost goes again without credit.
    pair.client.again(Item::Stream { id: fourth, offset: 0, len: 0, fin: true });
    assert!(!pair.client.wants_to_send(), "it is over");
    for id in ids.iter().chain([&fourth]) {
        assert_eq!(pair.server.accept(Dir::Bi), Some(*id));
        read_all(&mut pair.server, *id);
    }
    pair.run();
    assert_eq!(pair.server.accept(Dir::Bi), Some(fifth));
    let mut left = 0;
    for id in ids.iter().chain([&fifth]) {
        left += read_all(&mut pair.server, *id).0.len();
    }
    assert_eq!(left, 27_001 - 20_000);
    assert_eq!(pair.client.kept(), 0);
}

/// What is lost is sent again although connection flow control allows nothing new.
#[test]
fn lost_content_needs_no_credit() {
    let mut pair = Pair::new(Limits { window: 1_000, ..LIMITS });
    let id = pair.client.open(Dir::Bi).expect("a stream");
    pair.client.write_slice(id, &content(5_000)).expect("room");
    let (_, items) = packet(&mut pair.client, 1200);
    assert_eq!(items, [Item::Stream { id, offset: 0, len: 1_000, fin: false }]);
    let (_, blocked) = packet(&mut pair.client, 1200);
    assert_eq!(blocked, [Item::DataBlocked(1_000)]);
    pair.client.lost(items[0]);
    pair.client.lost(blocked[0]);
    let (bytes, again) = packet(&mut pair.client, 1200);
    assert_eq!(again, [blocked[0], items[0]]);
    assert!(!pair.client.wants_to_send());
    deliver(&mut pair.server, Side::Client, &bytes).expect("right");
    again.iter().for_each(|item| pair.client.acked(*item));
    pair.server.accept(Dir::Bi).expect("a stream");
    let mut all = Vec::new();
    while all.len() < 5_000 {
        let (more, _) = read_all(&mut pair.server, id);
        assert!(!more.is_empty());
        all.extend(more);
        pair.run();
    }
    assert!(all == content(5_000));
}

/// The peer gets streams in place of those that are over: a few at a time, and at once if it has none left.
#[test]
fn streams_follow_those_that_are_over() {
    let limits = Limits { bi: 32, ..LIMITS };
    let mut pair = Pair::new(limits);
    let mut told = Vec::new();
    for round in 0..40 {
        let id = pair.client.open(Dir::Bi).expect("a stream");
        pair.client.finish(id).expect("open");
        pair.run();
        assert_eq!(pair.server.accept(Dir::Bi), Some(id));
        assert_eq!(pair.server.read(id, 1), Ok(None));
        pair.server.finish(id).expect("open");
        let (_, items) = pair.run();
        assert_eq!(pair.client.read(id, 1), Ok(None));
        told.extend(
            items.into_iter().filter(|item| matches!(item, Item::MaxStreams(..))).map(|item| (round, item)),
        );
    }
    let expected = (1..=10).map(|n| (4 * n - 1, Item::MaxStreams(Dir::Bi, 32 + 4 * n)));
    assert!(told == expected.collect::<Vec<_>>(), "{told:?}");
    // All are open: one that is over counts at once.
    let mut pair = Pair::new(limits);
    let ids: Vec<_> = std::iter::from_fn(|| pair.client.open(Dir::Bi)).collect();
    assert_eq!(ids.len(), 32);
    ids.iter().for_each(|id| pair.client.finish(*id).expect("open"));
    let (items, _) = pair.run();
    assert_eq!(items[0], Item::StreamsBlocked(Dir::Bi, 32));
    events(&mut pair.client);
    assert_eq!(pair.server.accept(Dir::Bi), Some(ids[0]));
    assert_eq!(pair.server.read(ids[0], 1), Ok(None));
    pair.server.finish(ids[0]).expect("open");
    let (_, items) = pair.run();
    assert!(items.contains(&Item::MaxStreams(Dir::Bi, 33)), "{items:?}");
    assert!(events(&mut pair.client).contains(&StreamEvent::Available { dir: Dir::Bi }));
    assert_eq!(pair.client.open(Dir::Bi), Some(bi(Side::Client, 32)));
}

#[test]
fn limits_change() {
    let mut pair = Pair::new(LIMITS);
    pair.server.set_max_streams(Dir::Bi, 12);
    pair.server.set_receive_window(50_000);
    let (_, items) = pair.run();
    assert_eq!(items, [Item::MaxData(50_000), Item::MaxStreams(Dir::Bi, 12)]);
    // Lower ones do not take back what was allowed.
    pair.server.set_max_streams(Dir::Bi, 1);
    pair.server.set_receive_window(1_000);
    assert!(!pair.server.wants_to_send());
    assert_eq!(std::iter::from_fn(|| pair.client.open(Dir::Bi)).count(), 12);
}

#[test]
fn frames_with_limits_are_sent_again() {
    let mut pair = Pair::new(LIMITS);
    pair.server.set_max_streams(Dir::Uni, 5);
    pair.server.set_receive_window(30_000);
    let (_, old) = packet(&mut pair.server, 1200);
    pair.server.set_receive_window(40_000);
    let (_, new) = packet(&mut pair.server, 1200);
    assert_eq!(
        (&old[..], &new[..]),
        (&[Item::MaxData(30_000), Item::MaxStreams(Dir::Uni, 5)][..], &[Item::MaxData(40_000)][..])
    );
    pair.server.lost(old[0]);
    assert!(!pair.server.wants_to_send(), "there is a newer one");
    pair.server.lost(old[1]);
    pair.server.lost(new[0]);
    assert_eq!(packet(&mut pair.server, 1200).1, [new[0], old[1]]);
}

/// Content that was not acknowledged has a limit for the connection; writers are told when a quarter of it is free.
#[test]
fn the_send_window() {
    let limits = Limits { stream_window: 100_000, window: 100_000, send_window: 8_000, ..LIMITS };
    let mut pair = Pair::new(limits);
    let (first, second) =
        (pair.client.open(Dir::Bi).expect("a stream"), pair.client.open(Dir::Bi).expect("a stream"));
    let mut body = Bytes::from(content(10_000));
    assert_eq!((pair.client.write(first, &mut body), body.len()), (Ok(8_000), 2_000));
    assert_eq!(pair.client.write_slice(second, &[1]), Err(WriteError::Blocked));
    let mut packets = Vec::new();
    while pair.client.wants_to_send() {
        packets.extend(packet(&mut pair.client, 1200).1);
    }
    assert_eq!(packets.len(), 7);
    pair.client.acked(packets[0]);
    assert_eq!(events(&mut pair.client), []);
    // It is no prefix: it is kept.
    pair.client.acked(packets[2]);
    assert_eq!((events(&mut pair.client), pair.client.kept() > 6_000), (vec![], true));
    pair.client.acked(packets[1]);
    let writable = [first, second].map(|id| StreamEvent::Writable { id });
    assert_eq!(events(&mut pair.client), writable);
    assert_eq!(pair.client.write(first, &mut body), Ok(2_000));
    let room = 8_000 - pair.client.kept() as usize;
    assert_eq!(pair.client.write_slice(second, &content(4_000)), Ok(room));
    pair.client.set_send_window(20_000);
    assert_eq!(events(&mut pair.client), [StreamEvent::Writable { id: second }]);
    pair.client.reset(first, 1).expect("open");
    assert!(pair.client.kept() < 4_000);
}
