//! Random numbers that a seed determines.

use std::cell::Cell;

thread_local! {
    static SHARED: Cell<u64> = const { Cell::new(1) };
}

/// Generator of random numbers (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

pub fn mixed(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

impl Random {
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed(self.0)
    }

    /// Returns a number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n.max(1)
    }

    /// Returns `true` with a probability of `per_mille` thousandths.
    pub fn happens(&mut self, per_mille: u64) -> bool {
        self.below(1000) < per_mille
    }
}

/// Begins the numbers of [`shared`] anew.
pub fn seed_shared(seed: u64) {
    SHARED.set(seed);
}

/// Returns a random number for the endpoints.
pub fn shared() -> u64 {
    let next = SHARED.get().wrapping_add(0x9e37_79b9_7f4a_7c15);
    SHARED.set(next);
    mixed(next)
}
