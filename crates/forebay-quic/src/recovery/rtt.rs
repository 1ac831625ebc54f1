//! Round-trip time of a path (RFC 9002, section 5).

use std::time::Duration;

/// Shortest time that a timer is set to (RFC 9002, section 6.1.2).
pub const GRANULARITY: Duration = Duration::from_millis(1);

/// Estimate of the round-trip time of a path.
#[derive(Clone, Copy, Debug)]
pub struct Rtt {
    /// Nanoseconds, as all of them.
    latest: u64,
    smoothed: u64,
    variation: u64,
    /// Shortest sample; `u64::MAX` before the first one.
    min: u64,
}

impl Rtt {
    /// Creates an estimate that holds until there is a sample.
    pub fn new(initial: Duration) -> Rtt {
        let initial = nanos(initial);
        Rtt { latest: initial, smoothed: initial, variation: initial / 2, min: u64::MAX }
    }

    /// Takes a sample. `ack_delay` is what the peer says it waited, already limited to what it may wait.
    pub fn update(&mut self, sample: Duration, ack_delay: Duration) {
        let (sample, ack_delay) = (nanos(sample), nanos(ack_delay));
        self.latest = sample;
        if !self.is_sampled() {
            self.min = sample;
            self.smoothed = sample;
            self.variation = sample / 2;
            return;
        }
        self.min = self.min.min(sample);
        // A delay that would bring the sample below the minimum is not believed.
        let adjusted = match self.min.checked_add(ack_delay) {
            Some(least) if sample >= least => sample - ack_delay,
            _ => sample,
        };
        self.variation = self.variation / 4 * 3 + self.smoothed.abs_diff(adjusted) / 4;
        self.smoothed = self.smoothed / 8 * 7 + adjusted / 8;
    }

    /// Returns `true` once there was a sample.
    pub fn is_sampled(&self) -> bool {
        self.min != u64::MAX
    }

    /// Returns the newest sample.
    pub fn latest(&self) -> Duration {
        Duration::from_nanos(self.latest)
    }

    /// Returns the smoothed round-trip time.
    pub fn smoothed(&self) -> Duration {
        Duration::from_nanos(self.smoothed)
    }

    /// Returns the variation of the samples.
    pub fn variation(&self) -> Duration {
        Duration::from_nanos(self.variation)
    }

    /// Returns the shortest sample, if there was one.
    pub fn min(&self) -> Option<Duration> {
        self.is_sampled().then(|| Duration::from_nanos(self.min))
    }

    /// Returns the larger one of the newest sample and the smoothed time.
    pub fn conservative(&self) -> Duration {
        Duration::from_nanos(self.latest.max(self.smoothed))
    }

    /// Returns eighths of the larger one of the newest sample and the smoothed time, in nanoseconds.
    pub(super) fn eighths(&self, number: u32) -> u64 {
        (self.latest.max(self.smoothed) / 8).saturating_mul(number.into())
    }

    /// Returns the time after which a probe is sent, without backoff (RFC 9002, section 6.2.1). `max_ack_delay` is zero for
    /// Initial and Handshake packets.
    pub fn pto(&self, max_ack_delay: Duration) -> Duration {
        let variation = self.variation.saturating_mul(4).max(nanos(GRANULARITY));
        Duration::from_nanos(self.smoothed.saturating_add(variation)).saturating_add(max_ack_delay)
    }
}

/// Returns the nanoseconds of a duration; at most 292 years, so that sums do not overflow.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX).min(u64::MAX / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn first_sample_replaces_the_initial_value() {
        let mut rtt = Rtt::new(333 * MS);
        assert_eq!((rtt.smoothed(), rtt.min()), (333 * MS, None));
        assert_eq!(rtt.pto(Duration::ZERO), Duration::from_millis(999));
        // The delay is not used for the first sample (section 5.3).
        rtt.update(100 * MS, 20 * MS);
        assert_eq!(
            (rtt.latest(), rtt.smoothed(), rtt.variation(), rtt.min()),
            (100 * MS, 100 * MS, 50 * MS, Some(100 * MS))
        );
    }

    #[test]
    fn later_samples_are_smoothed() {
        let mut rtt = Rtt::new(333 * MS);
        rtt.update(80 * MS, Duration::ZERO);
        rtt.update(120 * MS, 24 * MS);
        // 7/8 * 80 + 1/8 * 96, 3/4 * 40 + 1/4 * 16
        assert_eq!((rtt.smoothed(), rtt.variation()), (82 * MS, 34 * MS));
        assert_eq!((rtt.latest(), rtt.conservative()), (120 * MS, 120 * MS));
        assert_eq!(rtt.pto(25 * MS), (82 + 4 * 34 + 25) * MS);
    }

    #[test]
    fn a_delay_below_the_minimum_is_not_believed() {
        let mut rtt = Rtt::new(333 * MS);
        rtt.update(80 * MS, Duration::ZERO);
        rtt.update(88 * MS, 24 * MS);
        assert_eq!(rtt.smoothed(), 81 * MS);
        rtt.update(Duration::MAX, Duration::MAX);
        assert_eq!(rtt.min(), Some(80 * MS));
        assert!(rtt.pto(Duration::MAX) >= rtt.smoothed());
    }
}
