//! HyStart++: ends slow start when the round-trip time grows, before the queue overflows (RFC 9406).

use std::time::Duration;

use super::Acked;

/// Growth of the round-trip time that shows a queue.
const MIN_RTT_THRESHOLD: Duration = Duration::from_millis(4);
const MAX_RTT_THRESHOLD: Duration = Duration::from_millis(16);
const MIN_RTT_DIVISOR: u32 = 8;

/// Samples of a round trip that make it count.
const RTT_SAMPLES: u8 = 8;

/// Part of the growth of slow start that conservative slow start has.
const CSS_GROWTH_DIVISOR: u64 = 4;

/// Round trips of conservative slow start.
const CSS_ROUNDS: u8 = 5;

/// State of the first slow start.
#[derive(Debug)]
pub(super) struct HyStart {
    /// Shortest round-trip times of the last and of the current round trip.
    last_round_min: Duration,
    round_min: Duration,
    /// Samples in the current round trip.
    samples: u8,
    /// Shortest round-trip time of the round trip that began conservative slow start, while that lasts.
    baseline: Option<Duration>,
    css_rounds: u8,
}

/// How the window grows in slow start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Growth {
    /// By so many bytes.
    By(u64),
    /// Slow start is over.
    End,
}

impl HyStart {
    pub(super) fn new() -> HyStart {
        HyStart {
            last_round_min: Duration::MAX,
            round_min: Duration::MAX,
            samples: 0,
            baseline: None,
            css_rounds: 0,
        }
    }

    /// Takes acknowledgments. Returns how the window grows by them.
    pub(super) fn on_ack(&mut self, acked: &Acked) -> Growth {
        if acked.round_starts {
            self.last_round_min = std::mem::replace(&mut self.round_min, Duration::MAX);
            self.samples = 0;
            if self.baseline.is_some() {
                self.css_rounds += 1;
                if self.css_rounds >= CSS_ROUNDS {
                    return Growth::End;
                }
            }
        }
        if let Some(sample) = acked.sample {
            self.round_min = self.round_min.min(sample);
            self.samples = self.samples.saturating_add(1);
        }
        if self.samples >= RTT_SAMPLES {
            self.compare();
        }
        match self.baseline {
            None => Growth::By(acked.bytes_to_grow),
            Some(_) => Growth::By(acked.bytes_to_grow / CSS_GROWTH_DIVISOR),
        }
    }

    /// Enters conservative slow start, or leaves it if the growth was none.
    fn compare(&mut self) {
        match self.baseline {
            None if self.last_round_min != Duration::MAX => {
                let threshold =
                    (self.last_round_min / MIN_RTT_DIVISOR).clamp(MIN_RTT_THRESHOLD, MAX_RTT_THRESHOLD);
                if self.round_min >= self.last_round_min + threshold {
                    self.baseline = Some(self.round_min);
                    self.css_rounds = 0;
                }
            }
            Some(baseline) if self.round_min < baseline => self.baseline = None,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recovery::Rtt;
    use crate::time::Time;

    const MS: Duration = Duration::from_millis(1);

    /// Runs a round trip of some samples. Returns the growth by the last.
    fn round(hystart: &mut HyStart, samples: u32, rtt: Duration) -> Growth {
        let mut growth = Growth::End;
        for n in 0..samples {
            growth = hystart.on_ack(&Acked {
                now: Time::default(),
                bytes: 4000,
                bytes_to_grow: 4000,
                newest_sent: Time::default(),
                in_flight: 0,
                round_starts: n == 0,
                sample: Some(rtt),
                rtt: &Rtt::new(MS),
            });
            if growth == Growth::End {
                break;
            }
        }
        growth
    }

    #[test]
    fn a_growing_round_trip_time_slows_and_ends_slow_start() {
        let mut hystart = HyStart::new();
        assert_eq!(round(&mut hystart, 10, 40 * MS), Growth::By(4000));
        assert_eq!(round(&mut hystart, 10, 44 * MS), Growth::By(4000));
        // Few samples do not count.
        assert_eq!(round(&mut hystart, 7, 80 * MS), Growth::By(4000));
        assert_eq!(round(&mut hystart, 10, 90 * MS), Growth::By(1000));
        for _ in 0..4 {
            assert_eq!(round(&mut hystart, 10, 95 * MS), Growth::By(1000));
        }
        assert_eq!(round(&mut hystart, 10, 95 * MS), Growth::End);
    }

    #[test]
    fn a_short_growth_is_forgiven() {
        let mut hystart = HyStart::new();
        round(&mut hystart, 10, 40 * MS);
        assert_eq!(round(&mut hystart, 10, 60 * MS), Growth::By(1000));
        assert_eq!(round(&mut hystart, 10, 59 * MS), Growth::By(4000));
    }
}
