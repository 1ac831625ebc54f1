//! Random numbers.

use rustix::rand::{GetRandomFlags, getrandom};
use std::cell::Cell;

/// Returns random bits from the kernel.
pub fn random_u64() -> u64 {
    let mut bytes = [0u8; 8];
    // Fails only if a signal comes before the kernel has random bits (getrandom(2)).
    while getrandom(&mut bytes, GetRandomFlags::empty()).is_err() {}
    u64::from_ne_bytes(bytes)
}

/// Returns a number that is random enough for load balancing, without a system call. Not for secrets.
pub fn quick() -> u32 {
    thread_local! { static STATE: Cell<u64> = const { Cell::new(0) }; }
    STATE.with(|s| {
        let mut x = s.get();
        // 0 is the one state that xorshift never leaves.
        while x == 0 {
            x = random_u64();
        }
        // xorshift64*
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        s.set(x);
        (x.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as u32
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_differ() {
        let all: std::collections::HashSet<u32> = (0..100).map(|_| quick()).collect();
        assert!(all.len() > 90, "{}", all.len());
        assert_ne!(random_u64(), random_u64());
    }
}
