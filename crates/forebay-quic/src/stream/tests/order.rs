//! Which stream sends next, and how packets are filled.

use super::*;

/// Opens streams with so much content, and returns them.
fn streams(of: &mut Streams, n: usize, len: usize) -> Vec<StreamId> {
    let ids: Vec<_> = (0..n).filter_map(|_| of.open(Dir::Bi)).collect();
    ids.iter().for_each(|id| assert_eq!(of.write_slice(*id, &content(len)), Ok(len)));
    ids
}

fn client() -> Streams {
    Pair::new(Limits { stream_window: 100_000, window: 100_000, send_window: 100_000, ..LIMITS }).client
}

/// Returns the streams of the next packets, by their index, each once for a packet.
fn order(of: &mut Streams, packets: usize) -> Vec<Vec<u64>> {
    let mut all = Vec::new();
    for _ in 0..packets {
        let mut ids: Vec<u64> = Vec::new();
        for item in packet(of, 1200).1 {
            if let Item::Stream { id, .. } = item {
                ids.push(id.index());
            }
        }
        all.push(ids);
    }
    all
}

#[test]
fn equal_streams_take_turns() {
    let mut of = client();
    streams(&mut of, 3, 3000);
    assert_eq!(order(&mut of, 7), [vec![0], vec![1], vec![2], vec![0], vec![1], vec![2], vec![0, 1]]);
    assert_eq!(order(&mut of, 2), [vec![2, 1], vec![]]);
    assert!(!of.wants_to_send());
}

#[test]
fn greater_priorities_go_first() {
    let mut of = client();
    let ids = streams(&mut of, 4, 2000);
    of.set_priority(ids[2], 5).expect("open");
    of.set_priority(ids[0], -1).expect("open");
    assert_eq!((of.priority(ids[2]), of.priority(ids[1])), (Ok(5), Ok(0)));
    assert_eq!(order(&mut of, 2), [vec![2], vec![2, 1]]);
    // One that comes later, and one that changes its mind.
    of.set_priority(ids[3], 7).expect("open");
    let late = of.open(Dir::Bi).expect("a stream");
    of.set_priority(late, 8).expect("open");
    of.write_slice(late, &content(10)).expect("room");
    assert_eq!(order(&mut of, 5), [vec![4, 3], vec![3, 1], vec![1], vec![1, 0], vec![0]]);
    assert!(!of.wants_to_send());
}

/// Priorities may change any number of times while a stream waits.
#[test]
fn places_that_do_not_count_are_cleared_away() {
    let mut of = client();
    let ids = streams(&mut of, 2, 100);
    for n in 0..10_000 {
        of.set_priority(ids[0], n).expect("open");
    }
    assert!(of.order.places() < 100, "{}", of.order.places());
    assert_eq!(order(&mut of, 1), [vec![0, 1]]);
    assert!(!of.wants_to_send());
}

#[test]
fn packets_are_filled() {
    for len in 1..300 {
        for size in [64, 65, 66, 120, 1200, 1201] {
            let mut pair = Pair::new(LIMITS);
            let ids = streams(&mut pair.client, 2, len);
            ids.iter().for_each(|id| pair.client.finish(*id).expect("open"));
            let mut sent = 0;
            while pair.client.wants_to_send() {
                let (bytes, items) = packet(&mut pair.client, size);
                sent += items.len();
                assert!(!bytes.is_empty(), "{len} in {size}");
                let is_full = bytes.len() + 40 >= size || !pair.client.wants_to_send();
                assert!(is_full, "{len} in {size}: {}", bytes.len());
                deliver(&mut pair.server, Side::Client, &bytes).expect("right");
            }
            assert!(sent <= 2 + 2 * len.div_ceil(size - 40), "{sent} frames for {len} in {size}");
            for id in ids {
                assert_eq!(pair.server.accept(Dir::Bi), Some(id));
                assert_eq!(read_all(&mut pair.server, id), (content(len), true));
            }
        }
    }
}

/// A large packet fits a length of two bytes at most in an item.
#[test]
fn frames_have_a_greatest_length() {
    let mut pair =
        Pair::new(Limits { stream_window: 100_000, window: 100_000, send_window: 100_000, ..LIMITS });
    let id = streams(&mut pair.client, 1, 90_000)[0];
    let (bytes, items) = packet(&mut pair.client, 80_000);
    assert_eq!(items.len(), 2);
    deliver(&mut pair.server, Side::Client, &bytes).expect("right");
    pair.server.accept(Dir::Bi).expect("a stream");
    assert!(read_all(&mut pair.server, id).0.len() > 79_900);
}

/// Frames for which there is no room stay due.
#[test]
fn control_frames_wait_for_room() {
    let mut of = client();
    let ids = streams(&mut of, 8, 10);
    ids.iter().for_each(|id| of.reset(*id, 1 << 40).expect("open"));
    let mut all = Vec::new();
    while of.wants_to_send() {
        let (bytes, items) = packet(&mut of, 30);
        assert!(!bytes.is_empty());
        all.extend(items);
    }
    assert_eq!(all, ids.iter().map(|id| Item::ResetStream(*id)).collect::<Vec<_>>());
}
