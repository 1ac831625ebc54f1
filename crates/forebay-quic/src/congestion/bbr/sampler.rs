//! Delivery rates (draft-ietf-ccwg-bbr, section 4.1).

use std::collections::VecDeque;
use std::time::Duration;

use crate::time::Time;

/// Measures the delivery rate (draft-ietf-ccwg-bbr, section 4.1).
///
/// Keeps state for each burst, where the draft keeps it for each packet: packets that are sent at the same time have it in
/// common, and an ACK frame needs only that of the newest packet it acknowledges.
#[derive(Debug, Clone)]
pub(super) struct Sampler {
    /// Bytes delivered so far.
    pub(super) delivered: u64,
    /// Bytes lost so far.
    pub(super) lost: u64,
    /// Time at which `delivered` grew last.
    delivered_time: Time,
    /// Sending time of the packet from which the current interval of sending counts.
    first_sent: Time,
    /// Value of `delivered` up to which samples are limited by the application, or zero.
    app_limited: u64,
    /// Bursts whose packets may be in flight, by time.
    bursts: VecDeque<Burst>,
    /// Sending time of the newest packet acknowledged in the current batch.
    newest_acked: Option<Time>,
}

/// State of the sampler when packets were sent.
#[derive(Debug, Clone, Copy)]
pub(super) struct Burst {
    time: Time,
    delivered: u64,
    delivered_time: Time,
    first_sent: Time,
    lost: u64,
    /// Bytes in flight once the burst was sent.
    in_flight: u64,
    app_limited: bool,
}

/// Delivery rate and losses that a batch of acknowledgments shows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sample {
    /// Bytes per second, or zero if the interval is too short to tell.
    pub(super) rate: u64,
    /// Bytes delivered in the interval.
    pub(super) delivered: u64,
    /// Bytes that had been delivered when the packet was sent.
    pub(super) prior_delivered: u64,
    /// Bytes lost since the packet was sent.
    pub(super) lost: u64,
    /// Bytes in flight once the packet was sent.
    pub(super) tx_in_flight: u64,
    /// The application had nothing more to send.
    pub(super) app_limited: bool,
    pub(super) rtt: Duration,
}

impl Sampler {
    /// Bursts that are remembered at most.
    const MAX_BURSTS: usize = 4096;

    pub(super) fn new(now: Time) -> Self {
        Self {
            delivered: 0,
            lost: 0,
            delivered_time: now,
            first_sent: now,
            app_limited: 0,
            bursts: VecDeque::new(),
            newest_acked: None,
        }
    }

    pub(super) fn is_app_limited(&self) -> bool {
        self.app_limited != 0
    }

    /// Notes that `bytes` were sent, and that `in_flight` are now in flight.
    pub(super) fn on_sent(&mut self, now: Time, bytes: u64, in_flight: u64) {
        if in_flight <= bytes {
            self.bursts.clear();
            self.first_sent = now;
            self.delivered_time = now;
        }
        match self.bursts.back_mut() {
            Some(last) if last.time >= now => last.in_flight = in_flight,
            _ => {
                if self.bursts.len() >= Self::MAX_BURSTS {
                    self.bursts.pop_front();
                }
                self.bursts.push_back(Burst {
                    time: now,
                    delivered: self.delivered,
                    delivered_time: self.delivered_time,
                    first_sent: self.first_sent,
                    lost: self.lost,
                    in_flight,
                    app_limited: self.app_limited != 0,
                });
            }
        }
    }

    /// Marks what is in flight, and what is sent before it is delivered, as limited by the application.
    pub(super) fn on_app_limited(&mut self, in_flight: u64) {
        self.app_limited = (self.delivered + in_flight).max(1);
    }

    /// Notes that `bytes` were acknowledged, of which the newest were sent at `sent`.
    pub(super) fn on_ack(&mut self, now: Time, sent: Time, bytes: u64) {
        self.delivered += bytes;
        self.delivered_time = now;
        self.newest_acked = self.newest_acked.max(Some(sent));
    }

    /// Takes the sample of a batch of acknowledgments.
    ///
    /// Rates over less than `min_rtt` come from acknowledgments that were held back and are not
    /// used. What was sent more than `memory` before the newest acknowledged packet is forgotten.
    pub(super) fn take_sample(&mut self, now: Time, min_rtt: Duration, memory: Duration) -> Option<Sample> {
        let sent = self.newest_acked.take()?;
        if self.app_limited != 0 && self.delivered > self.app_limited {
            self.app_limited = 0;
        }
        let burst = *self.burst(sent)?;
        self.first_sent = self.first_sent.max(burst.time);
        while self.bursts.get(1).is_some_and(|next| next.time + memory < sent) {
            self.bursts.pop_front();
        }

        let send_elapsed = burst.time.since(burst.first_sent);
        let ack_elapsed = now.since(burst.delivered_time);
        let interval = send_elapsed.max(ack_elapsed);
        let delivered = self.delivered - burst.delivered;
        let rate = match interval < min_rtt || interval.is_zero() {
            true => 0,
            false => rate(delivered, interval),
        };
        Some(Sample {
            rate,
            delivered,
            prior_delivered: burst.delivered,
            lost: self.lost - burst.lost,
            tx_in_flight: burst.in_flight,
            app_limited: burst.app_limited,
            rtt: now.since(sent),
        })
    }

    /// Notes that `bytes` were lost, of which the newest were sent at `sent`.
    ///
    /// Returns the bytes that are lost since then, the bytes that were in flight then, and whether
    /// the application had limited them.
    pub(super) fn on_lost(&mut self, sent: Time, bytes: u64) -> Option<(u64, u64, bool)> {
        self.lost += bytes;
        let burst = self.burst(sent)?;
        Some((self.lost - burst.lost, burst.in_flight, burst.app_limited))
    }

    /// Returns the burst of a packet that was sent at `time`.
    fn burst(&self, time: Time) -> Option<&Burst> {
        let next = self.bursts.partition_point(|x| x.time <= time);
        self.bursts.get(next.checked_sub(1)?)
    }

    /// Gives memory back.
    pub(super) fn shrink(&mut self) {
        self.bursts.shrink_to_fit();
    }

    #[cfg(test)]
    pub(super) fn bursts(&self) -> usize {
        self.bursts.len()
    }
}

/// Returns bytes per second.
pub(super) fn rate(bytes: u64, time: Duration) -> u64 {
    let nanos = time.as_nanos().max(1);
    u64::try_from(u128::from(bytes) * 1_000_000_000 / nanos).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn rate_is_the_lower_one_of_sending_and_acknowledging() {
        let start = Time::from_nanos(5_000_000_000);
        let mut sampler = Sampler::new(start);
        // Two bursts 10 ms apart, acknowledged together after 50 ms
        sampler.on_sent(start, 1000, 1000);
        sampler.on_sent(start + 10 * MS, 1000, 2000);
        sampler.on_ack(start + 50 * MS, start, 1000);
        sampler.on_ack(start + 50 * MS, start + 10 * MS, 1000);
        let sample = sampler.take_sample(start + 50 * MS, MS, 100 * MS).unwrap();
        assert_eq!(sample.delivered, 2000);
        assert_eq!(sample.rate, 40_000);
        assert_eq!(sample.tx_in_flight, 2000);
        assert_eq!(sample.rtt, 40 * MS);
        assert!(!sample.app_limited);
        assert!(sampler.take_sample(start + 50 * MS, MS, 100 * MS).is_none());

        // Acknowledgments that come faster than the data went do not raise it.
        for n in 0..10 {
            sampler.on_sent(start + (60 + 10 * n) * MS, 1000, 1000 * u64::from(n + 1));
        }
        for n in 0..10 {
            sampler.on_ack(start + 150 * MS, start + (60 + 10 * n) * MS, 1000);
        }
        let sample = sampler.take_sample(start + 150 * MS, MS, 100 * MS).unwrap();
        assert_eq!(sample.rate, 10_000 * 1000 / 90);
    }

    #[test]
    fn short_intervals_have_no_rate() {
        let start = Time::from_nanos(5_000_000_000);
        let mut sampler = Sampler::new(start);
        sampler.on_sent(start, 1000, 1000);
        sampler.on_ack(start + MS, start, 1000);
        let sample = sampler.take_sample(start + MS, 2 * MS, 100 * MS).unwrap();
        assert_eq!((sample.rate, sample.delivered), (0, 1000));
    }

    #[test]
    fn samples_limited_by_the_application_are_marked() {
        let start = Time::from_nanos(5_000_000_000);
        let mut sampler = Sampler::new(start);
        sampler.on_sent(start, 1000, 1000);
        sampler.on_app_limited(1000);
        sampler.on_sent(start + MS, 1000, 2000);
        sampler.on_ack(start + 50 * MS, start, 1000);
        let first = sampler.take_sample(start + 50 * MS, MS, 100 * MS).unwrap();
        assert!(!first.app_limited);
        sampler.on_ack(start + 51 * MS, start + MS, 1000);
        let second = sampler.take_sample(start + 51 * MS, MS, 100 * MS).unwrap();
        assert!(second.app_limited);
        assert!(!sampler.is_app_limited());
    }

    #[test]
    fn bursts_are_forgotten() {
        let start = Time::from_nanos(5_000_000_000);
        let mut sampler = Sampler::new(start);
        sampler.on_sent(start, 1000, 1000);
        for n in 1..100_000 {
            sampler.on_sent(start + n * MS, 1000, 51_000);
            if n > 50 {
                sampler.on_ack(start + n * MS, start + (n - 50) * MS, 1000);
                assert!(sampler.take_sample(start + n * MS, MS, 100 * MS).is_some());
            }
            assert!(sampler.bursts() < 160);
        }
        // Without acknowledgments there is a limit.
        for n in 100_000..110_000 {
            sampler.on_sent(start + n * MS, 1000, 51_000);
        }
        assert_eq!(sampler.bursts(), Sampler::MAX_BURSTS);
        // Nothing was in flight.
        sampler.on_sent(start + 110_000 * MS, 1000, 1000);
        assert_eq!(sampler.bursts(), 1);
    }

    #[test]
    fn losses_since_a_packet() {
        let start = Time::from_nanos(5_000_000_000);
        let mut sampler = Sampler::new(start);
        sampler.on_sent(start, 5000, 5000);
        assert_eq!(sampler.on_lost(start, 1000), Some((1000, 5000, false)));
        sampler.on_sent(start + MS, 1000, 5000);
        assert_eq!(sampler.on_lost(start + MS, 1000), Some((1000, 5000, false)));
        assert_eq!(sampler.on_lost(Time::from_nanos(4_999_000_000), 1000), None);
    }
}
