//! Histograms of times for monitoring.

use std::time::Duration;

/// Upper ends of the buckets of a histogram, microseconds; one more bucket has the rest.
pub const BUCKETS: [u64; 13] = [
    1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000, 5_000_000,
    10_000_000,
];

/// Returns the number of the bucket of a time.
pub fn bucket(time: Duration) -> usize {
    // Nearly all requests: the time of a turn that both began and ended it.
    if time <= Duration::from_micros(BUCKETS[0]) {
        return 0;
    }
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    BUCKETS.partition_point(|end| *end < micros)
}

/// Numbers of times by their length.
#[derive(Clone, Debug, Default)]
pub struct Histogram {
    /// Number of times in each bucket.
    pub counts: [u64; BUCKETS.len() + 1],
    /// Sum of all times.
    pub sum: Duration,
}

impl Histogram {
    /// Returns the mean; zero if there are no times.
    pub fn mean(&self) -> Duration {
        let count = u32::try_from(self.counts.iter().sum::<u64>()).unwrap_or(u32::MAX);
        self.sum.checked_div(count).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_fall_into_buckets() {
        assert_eq!(bucket(Duration::ZERO), 0);
        assert_eq!(bucket(Duration::from_millis(1)), 0);
        assert_eq!(bucket(Duration::from_micros(1001)), 1);
        assert_eq!(bucket(Duration::from_secs(10)), 12);
        assert_eq!(bucket(Duration::MAX), 13);
    }
}
