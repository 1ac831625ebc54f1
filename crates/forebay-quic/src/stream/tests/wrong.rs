//! Frames that make no sense, in any order, from a peer that does as it likes.

use super::*;

/// Has a frame come that may be wrong.
fn frame(of: &mut Streams, random: &mut Random) -> Result<(), Error> {
    // Most are harmless, so that there are many before the first error.
    let is_wild = random.below(100) == 0;
    let streams = if is_wild { 1 << 60 } else { 4 };
    let kinds = [0, 1, if of.side.is_client() { 3 } else { 2 }];
    let id = StreamId(random.below(streams) * 4 + kinds[random.below(if is_wild { 3 } else { 1 }) as usize]);
    let n = if is_wild { (1 << 62) - 1 - random.below(3) } else { random.below(4_000) };
    match random.below(12) {
        0 if is_wild => of.on_reset_stream(id, n, random.below(12_000))?,
        0 => of.on_reset_stream(id, n, 4_700)?,
        1 => of.on_stop_sending(id, n)?,
        2 => of.on_max_stream_data(id, n)?,
        3 => of.on_max_data(n),
        4 => of.on_max_streams(Dir::Bi, n.min(1 << 60)),
        5 => of.on_streams_blocked(Dir::Uni, n.min(1 << 60)),
        6 => of.on_stream_data_blocked(id)?,
        _ => {
            let len = if random.below(10) == 0 { 4_700_u64.saturating_sub(n) } else { random.below(700) };
            of.on_stream(id, n, Bytes::from(content(len as usize)), n + len == 4_700)?;
        }
    }
    Ok(())
}

/// Has the application do something with a stream, which may not exist.
fn act(of: &mut Streams, random: &mut Random) {
    let id = StreamId(random.below(40));
    match random.below(10) {
        0 => drop(of.open(if random.below(2) == 0 { Dir::Bi } else { Dir::Uni })),
        1 => drop(of.accept(Dir::Bi).or_else(|| of.accept(Dir::Uni))),
        2 => drop(of.write_slice(id, &content(random.below(9_000) as usize))),
        3 => drop(of.write(id, &mut Bytes::from(content(random.below(9_000) as usize)))),
        4 => drop(of.finish(id)),
        5 if random.below(4) == 0 => drop(of.reset(id, 1)),
        6 if random.below(4) == 0 => drop(of.stop(id, 2)),
        7 => drop(of.received_reset(id)),
        8 => drop(of.set_priority(id, random.below(5) as i32)),
        _ => drop(of.read(id, random.below(3_000) as usize)),
    }
    while of.poll().is_some() {}
}

#[test]
fn no_order_of_frames_does_harm() {
    let (mut errors, mut frames) = (0, 0);
    for seed in 1..=600 {
        let mut random = Random(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        let side = if seed % 2 == 0 { Side::Client } else { Side::Server };
        let mut of = Streams::new(side, LIMITS);
        of.set_peer(as_peer(Limits { stream_window: random.below(20_000), ..LIMITS }));
        let mut items: Vec<Item> = Vec::new();
        for _ in 0..300 {
            if random.below(2) == 0 {
                frames += 1;
                if frame(&mut of, &mut random).is_err() {
                    errors += 1;
                    break;
                }
            }
            act(&mut of, &mut random);
            if of.wants_to_send() && random.below(2) == 0 {
                let (bytes, sent) = packet(&mut of, 200 + random.below(1_200) as usize);
                assert!(!bytes.is_empty(), "seed {seed}: something was to be sent");
                items.extend(sent);
            }
            // Packets are told acknowledged or lost in any order, and again.
            if !items.is_empty() {
                let item = items[random.below(items.len() as u64) as usize];
                match random.below(4) {
                    0 => of.acked(item),
                    1 => of.lost(item),
                    2 => of.again(item),
                    _ => drop(items.swap_remove(0)),
                }
            }
            assert!(of.kept() <= LIMITS.send_window);
            assert!(of.controls.len() <= 200 && of.waiting.len() <= 50, "seed {seed}");
        }
    }
    assert!(errors > 100 && frames > 20_000, "{errors} errors in {frames} frames");
}
