//! Times of all requests of a thread, in buckets whose width grows with the time: the error of a quantile is at most an
//! eighth of its value. Hot path.

use crate::counters::Counter;
use std::time::Duration;

/// Times below this number of microseconds are in the first bucket.
const FIRST: u64 = 1 << FIRST_BITS;
const FIRST_BITS: u32 = 4;
/// Bits of the number of buckets between a power of two and the next.
const PART_BITS: u32 = 3;
/// Times from this number of microseconds on are in the last bucket: 67 seconds.
const LAST: u64 = 1 << LAST_BITS;
const LAST_BITS: u32 = 26;
/// Number of buckets.
pub const BUCKETS: usize = (((LAST_BITS - FIRST_BITS) << PART_BITS) + 2) as usize;

/// Returns the number of the bucket of a time in microseconds.
#[inline]
pub fn bucket(micros: u64) -> usize {
    if micros < FIRST {
        return 0;
    }
    if micros >= LAST {
        return BUCKETS - 1;
    }
    let power = micros.ilog2();
    let part = (micros >> (power - PART_BITS)) & ((1 << PART_BITS) - 1);
    ((power - FIRST_BITS) << PART_BITS) as usize + part as usize + 1
}

/// Returns the lowest time of a bucket, microseconds.
pub fn start(bucket: usize) -> u64 {
    let Some(at) = bucket.checked_sub(1) else { return 0 };
    let at = u32::try_from(at).unwrap_or(u32::MAX).min((LAST_BITS - FIRST_BITS) << PART_BITS);
    let (power, part) = (FIRST_BITS + (at >> PART_BITS), u64::from(at & ((1 << PART_BITS) - 1)));
    (1 << power) + (part << (power - PART_BITS))
}

/// Numbers of times by bucket.
pub type Counts = [u64; BUCKETS];

/// Times that one thread has counted.
#[derive(Debug)]
pub struct Times([Counter; BUCKETS]);

impl Default for Times {
    fn default() -> Times {
        Times(std::array::from_fn(|_| Counter::default()))
    }
}

impl Times {
    /// Counts a time; only by the owning thread.
    #[inline]
    pub fn add(&self, time: Duration) {
        let micros = time.as_secs().saturating_mul(1_000_000).saturating_add(time.subsec_micros().into());
        if let Some(counter) = self.0.get(bucket(micros)) {
            counter.add(1);
        }
    }

    /// Adds the counts to those of other threads.
    pub fn add_to(&self, counts: &mut Counts) {
        for (sum, counter) in counts.iter_mut().zip(&self.0) {
            *sum = sum.wrapping_add(counter.get());
        }
    }
}

/// Returns the time in microseconds below which a share (0 to 1) of all times is. Within a bucket the times count as evenly
/// spread. `None` if there are no times.
pub fn quantile(counts: &Counts, share: f64) -> Option<f64> {
    let total: u64 = counts.iter().sum();
    let wanted = share * total as f64;
    let mut below = 0.0;
    for (n, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let count = *count as f64;
        if below + count >= wanted {
            let (low, high) = (start(n) as f64, start((n + 1).min(BUCKETS - 1)) as f64);
            return Some(low + (high - low) * ((wanted - below) / count).clamp(0.0, 1.0));
        }
        below += count;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_follow_each_other_without_a_gap() {
        assert_eq!((bucket(0), bucket(15), bucket(16), bucket(u64::MAX)), (0, 0, 1, BUCKETS - 1));
        for n in 1..BUCKETS {
            assert_eq!((bucket(start(n)), bucket(start(n) - 1)), (n, n - 1), "{n}");
            assert!(n == 1 || start(n) - start(n - 1) <= start(n) / 8 + 1, "{n}");
        }
        assert_eq!(start(BUCKETS - 1), LAST);
    }

    #[test]
    fn quantiles_are_near_the_true_ones() {
        let times = Times::default();
        for micros in 1..=100_000 {
            times.add(Duration::from_micros(micros));
        }
        times.add(Duration::MAX);
        let mut counts = [0; BUCKETS];
        times.add_to(&mut counts);
        times.add_to(&mut counts);
        assert_eq!(counts.iter().sum::<u64>(), 200_002);
        for (share, want) in [(0.5, 50_000.0), (0.9, 90_000.0), (0.99, 99_000.0)] {
            let got = quantile(&counts, share).expect("times");
            assert!((got - want).abs() < want * 0.05, "{share}: {got}");
        }
        assert_eq!(quantile(&counts, 1.0), Some(LAST as f64));
        assert_eq!(quantile(&[0; BUCKETS], 0.5), None);
    }
}
