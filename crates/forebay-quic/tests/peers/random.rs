//! Random numbers that a seed determines.

use std::cell::Cell;

thread_local! {
    static SHARED: Cell<u64> = const { Cell::new(1) };
}

/// Begins the numbers of [`shared`] anew.
pub fn seed_shared(seed: u64) {
    SHARED.set(seed);
}

/// Returns a random number (SplitMix64).
pub fn shared() -> u64 {
    let next = SHARED.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
    SHARED.set(next);
    let mut z = next;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
