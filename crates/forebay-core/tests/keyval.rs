//! Memory and time of a zone with many records.
#![allow(missing_docs)]

use forebay_core::keyval::{Kind, Lifetime, Pair, Store};
use forebay_sys::alloc::CountingAllocator;
use std::hint::black_box;
use std::time::{Duration, Instant};

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const RECORDS: usize = 100_000;

fn pair(key: String, n: usize) -> Pair {
    Pair { key, value: format!("value{n}"), lifetime: Lifetime::Endless }
}

/// Fills a store. Returns its memory in bytes.
fn fill(kind: Kind, key: impl Fn(usize) -> String) -> (Store, i64) {
    let before = CountingAllocator::counts().live();
    let store = Store::new(kind, 12 << 20);
    for n in 0..RECORDS {
        assert_eq!(store.add(&pair(key(n), n)), Ok(()));
    }
    let memory = CountingAllocator::counts().live() - before;
    (store, memory)
}

/// Looks every key up. Returns the mean time, and asserts that nothing is allocated.
fn look_up(store: &Store, key: impl Fn(usize) -> String) -> Duration {
    // In an order that does not follow memory.
    let keys: Vec<String> = (0..RECORDS).map(|n| key(n * 7919 % RECORDS)).collect();
    let mut out = Vec::with_capacity(64);
    let before = CountingAllocator::counts().allocations;
    let begun = Instant::now();
    for key in &keys {
        out.clear();
        assert!(store.lookup(black_box(key.as_bytes()), &mut out));
        black_box(&out);
    }
    let time = begun.elapsed() / u32::try_from(RECORDS).expect("a small number");
    assert_eq!(CountingAllocator::counts().allocations, before);
    time
}

#[test]
fn many_records_take_little_memory() {
    type Key = fn(usize) -> String;
    let address: Key = |n| format!("10.{}.{}.{}", n >> 16, n >> 8 & 255, n & 255);
    let uuid: Key = |n| format!("{n:08x}-0000-4000-8000-{:012x}", n * 31);
    let path: Key = |n| format!("/customers/{n:06}/");
    for (kind, key) in [(Kind::String, uuid), (Kind::Ip, address), (Kind::Prefix, path)] {
        let (store, memory) = fill(kind, key);
        println!(
            "{kind:?}: {memory} bytes, {:?} for a lookup, {} bytes charged",
            look_up(&store, key),
            store.used()
        );
        assert!(memory <= 12_000_000, "{kind:?}: {memory}");
        // The size of a zone bounds its memory.
        assert!(
            memory <= i64::try_from(store.used()).expect("a size"),
            "{kind:?}: {memory} {}",
            store.used()
        );
        let before = CountingAllocator::counts().live();
        for n in 0..RECORDS {
            assert_eq!(store.remove(&key(n)), Ok(()));
        }
        let freed = before - CountingAllocator::counts().live();
        assert!(freed > memory * 9 / 10, "{kind:?}: {freed} of {memory}");
    }
}
