//! Pacing of packet transmissions.

use crate::{Duration, Instant};

use tracing::warn;

/// A simple token-bucket pacer
///
/// The bucket refills at the rate of the congestion controller, or, if it has none, at a rate slightly faster than one
/// congestion window per RTT, as recommended in RFC 9002, section 7.7. Once it is empty, further transmission is blocked until it
/// is full: packets leave in bursts of [`BURST_INTERVAL_NANOS`].
pub(super) struct Pacer {
    capacity: u64,
    /// Rate, window and MTU from which `capacity` was computed
    last: (Option<u64>, u64, u16),
    tokens: u64,
    /// Tokens above `capacity` that make up for a timer that fired late
    excess: u64,
    prev: Instant,
    /// Time until which data had to wait, if it had to
    due: Option<Instant>,
}

impl Pacer {
    /// Obtains a new [`Pacer`].
    pub(super) fn new(smoothed_rtt: Duration, window: u64, mtu: u16, now: Instant) -> Self {
        let capacity = optimal_capacity(smoothed_rtt, window, None, mtu);
        Self {
            capacity,
            last: (None, window, mtu),
            tokens: capacity,
            excess: 0,
            prev: now,
            due: None,
        }
    }

    /// Record that a packet has been transmitted.
    pub(super) fn on_transmit(&mut self, packet_length: u16) {
        self.tokens = self.tokens.saturating_sub(packet_length.into())
    }

    /// Return how long we need to wait before sending `bytes_to_send`
    ///
    /// If we can send a packet right away, this returns `None`. Otherwise, returns `Some(d)`,
    /// where `d` is the time before this function should be called again.
    ///
    /// `rate` is in bytes per second. Without it, it is 5/4 of `window` in `smoothed_rtt`: the ratio comes from the suggestion
    /// that N = 1.25 in RFC 9002.
    pub(super) fn delay(
        &mut self,
        smoothed_rtt: Duration,
        bytes_to_send: u64,
        mtu: u16,
        window: u64,
        rate: Option<u64>,
        now: Instant,
    ) -> Option<Instant> {
        debug_assert_ne!(
            window, 0,
            "zero-sized congestion control window is nonsense"
        );

        // Only the rate counts, if there is one
        let key = match rate {
            Some(_) => (rate, 0, mtu),
            None => (None, window, mtu),
        };
        if key != self.last {
            self.capacity = optimal_capacity(smoothed_rtt, window, rate, mtu);

            // Clamp the tokens
            self.tokens = self.tokens.min(self.capacity + self.excess);
            self.last = key;
        }

        // if we can already send a packet, there is no need for delay
        if self.tokens >= bytes_to_send {
            return None;
        }

        // we disable pacing for extremely large windows
        if rate.is_none() && window > u64::from(u32::MAX) {
            return None;
        }

        let time_elapsed = now.checked_duration_since(self.prev).unwrap_or_else(|| {
            warn!("received a timestamp early than a previous recorded time, ignoring");
            Default::default()
        });

        let rate = match rate {
            Some(rate) => rate.max(1) as f64,
            None if smoothed_rtt.is_zero() => return None,
            None => window as f64 * 1.25 / smoothed_rtt.as_secs_f64(),
        };

        // Data that waited for longer than it had to goes at once, or the rate would not be reached.
        let late = self.due.take().map_or(Duration::ZERO, |due| {
            now.saturating_duration_since(due).min(MAX_LATE)
        });
        self.excess = (rate * late.as_secs_f64()) as u64;
        let new_tokens = rate * time_elapsed.as_secs_f64();
        self.tokens = self
            .tokens
            .saturating_add(new_tokens as _)
            .min(self.capacity + self.excess);

        self.prev = now;

        // if we can already send a packet, there is no need for delay
        if self.tokens >= bytes_to_send {
            return None;
        }

        // this is the time at which the pacing window becomes empty
        let wait = (bytes_to_send.max(self.capacity) - self.tokens) as f64 / rate;
        self.due = Some(self.prev + Duration::from_secs_f64(wait));
        self.due
    }
}

/// Calculates a pacer capacity for a certain window and RTT
///
/// The goal is to emit a burst (of size `capacity`) in timer intervals
/// which compromise between
/// - ideally distributing datagrams over time
/// - constantly waking up the connection to produce additional datagrams
///
/// Too short burst intervals means we will never meet them since the timer
/// accuracy in user-space is not high enough.
///
/// Too long burst intervals make pacing less effective.
fn optimal_capacity(smoothed_rtt: Duration, window: u64, rate: Option<u64>, mtu: u16) -> u64 {
    let capacity = match rate {
        Some(rate) => rate as u128 * BURST_INTERVAL_NANOS / 1_000_000_000,
        None => window as u128 * BURST_INTERVAL_NANOS / smoothed_rtt.as_nanos().max(1),
    } as u64;

    // Small bursts are less efficient (no GSO), could increase latency and don't effectively
    // use the channel's buffer capacity. Large bursts might block the connection on sending.
    capacity.clamp(MIN_BURST_SIZE * mtu as u64, MAX_BURST_SIZE * mtu as u64)
}

/// The burst interval
///
/// The capacity will we refilled in 4/5 of that time.
/// 2ms is chosen here since framework timers might have 1ms precision.
/// If kernel-level pacing is supported later a higher time here might be
/// more applicable.
const BURST_INTERVAL_NANOS: u128 = 2_000_000; // 2ms

/// Lateness of timers that is made up for
const MAX_LATE: Duration = Duration::from_millis(10);

/// Allows some usage of GSO, and doesn't slow down the handshake.
const MIN_BURST_SIZE: u64 = 10;

/// Creating 256 packets took 1ms in a benchmark, so larger bursts don't make sense.
const MAX_BURST_SIZE: u64 = 256;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn does_not_panic_on_bad_instant() {
        let old_instant = Instant::now();
        let new_instant = old_instant + Duration::from_micros(15);
        let rtt = Duration::from_micros(400);

        assert!(
            Pacer::new(rtt, 30000, 1500, new_instant)
                .delay(Duration::from_micros(0), 0, 1500, 1, None, old_instant)
                .is_none()
        );
        assert!(
            Pacer::new(rtt, 30000, 1500, new_instant)
                .delay(Duration::from_micros(0), 1600, 1500, 1, None, old_instant)
                .is_none()
        );
        assert!(
            Pacer::new(rtt, 30000, 1500, new_instant)
                .delay(
                    Duration::from_micros(0),
                    1500,
                    1500,
                    3000,
                    None,
                    old_instant
                )
                .is_none()
        );
    }

    #[test]
    fn derives_initial_capacity() {
        let window = 2_000_000;
        let mtu = 1500;
        let rtt = Duration::from_millis(50);
        let now = Instant::now();

        let pacer = Pacer::new(rtt, window, mtu, now);
        assert_eq!(
            pacer.capacity,
            (window as u128 * BURST_INTERVAL_NANOS / rtt.as_nanos()) as u64
        );
        assert_eq!(pacer.tokens, pacer.capacity);

        let pacer = Pacer::new(Duration::from_millis(0), window, mtu, now);
        assert_eq!(pacer.capacity, MAX_BURST_SIZE * mtu as u64);
        assert_eq!(pacer.tokens, pacer.capacity);

        let pacer = Pacer::new(rtt, 1, mtu, now);
        assert_eq!(pacer.capacity, MIN_BURST_SIZE * mtu as u64);
        assert_eq!(pacer.tokens, pacer.capacity);
    }

    #[test]
    fn adjusts_capacity() {
        let window = 2_000_000;
        let mtu = 1500;
        let rtt = Duration::from_millis(50);
        let now = Instant::now();

        let mut pacer = Pacer::new(rtt, window, mtu, now);
        assert_eq!(
            pacer.capacity,
            (window as u128 * BURST_INTERVAL_NANOS / rtt.as_nanos()) as u64
        );
        assert_eq!(pacer.tokens, pacer.capacity);
        let initial_tokens = pacer.tokens;

        pacer.delay(rtt, mtu as u64, mtu, window * 2, None, now);
        assert_eq!(
            pacer.capacity,
            (2 * window as u128 * BURST_INTERVAL_NANOS / rtt.as_nanos()) as u64
        );
        assert_eq!(pacer.tokens, initial_tokens);

        pacer.delay(rtt, mtu as u64, mtu, window / 2, None, now);
        assert_eq!(
            pacer.capacity,
            (window as u128 / 2 * BURST_INTERVAL_NANOS / rtt.as_nanos()) as u64
        );
        assert_eq!(pacer.tokens, initial_tokens / 2);

        pacer.delay(rtt, mtu as u64, mtu * 2, window, None, now);
        assert_eq!(
            pacer.capacity,
            (window as u128 * BURST_INTERVAL_NANOS / rtt.as_nanos()) as u64
        );

        pacer.delay(rtt, mtu as u64, 20_000, window, None, now);
        assert_eq!(pacer.capacity, 20_000_u64 * MIN_BURST_SIZE);
    }

    #[test]
    fn computes_pause_correctly() {
        let window = 2_000_000u64;
        let mtu = 1000;
        let rtt = Duration::from_millis(50);
        let old_instant = Instant::now();

        let mut pacer = Pacer::new(rtt, window, mtu, old_instant);
        let packet_capacity = pacer.capacity / mtu as u64;

        for _ in 0..packet_capacity {
            assert_eq!(
                pacer.delay(rtt, mtu as u64, mtu, window, None, old_instant),
                None,
                "When capacity is available packets should be sent immediately"
            );

            pacer.on_transmit(mtu);
        }

        let pace_duration = Duration::from_nanos((BURST_INTERVAL_NANOS * 4 / 5) as u64);

        assert_eq!(
            pacer
                .delay(rtt, mtu as u64, mtu, window, None, old_instant)
                .expect("Send must be delayed")
                .duration_since(old_instant),
            pace_duration
        );

        // Refill half of the tokens
        assert_eq!(
            pacer.delay(
                rtt,
                mtu as u64,
                mtu,
                window,
                None,
                old_instant + pace_duration / 2
            ),
            None
        );
        assert_eq!(pacer.tokens, pacer.capacity / 2);

        for _ in 0..packet_capacity / 2 {
            assert_eq!(
                pacer.delay(rtt, mtu as u64, mtu, window, None, old_instant),
                None,
                "When capacity is available packets should be sent immediately"
            );

            pacer.on_transmit(mtu);
        }

        // Refill all capacity by waiting more than the expected duration
        assert_eq!(
            pacer.delay(
                rtt,
                mtu as u64,
                mtu,
                window,
                None,
                old_instant + pace_duration * 3 / 2
            ),
            None
        );
        assert_eq!(pacer.tokens, pacer.capacity);
    }

    #[test]
    fn rate_is_kept_by_late_timers() {
        let (rate, mtu) = (12_500_000, 1200);
        let rtt = Duration::from_millis(50);
        let start = Instant::now();
        let mut now = start;
        let mut pacer = Pacer::new(rtt, 12_000, mtu, start);
        let mut sent = 0;
        while now < start + Duration::from_secs(1) {
            match pacer.delay(rtt, mtu.into(), mtu, 1_000_000, Some(rate), now) {
                None => {
                    pacer.on_transmit(mtu);
                    sent += u64::from(mtu);
                }
                // Each timer is late, some of them more than a burst takes.
                Some(due) => now = due + Duration::from_micros(300 + sent % 7 * 1000),
            }
        }
        assert!(sent.abs_diff(rate) < rate / 50, "{sent}");

        // What the application did not use is lost.
        now += Duration::from_secs(1);
        let mut burst = 0;
        while pacer
            .delay(rtt, mtu.into(), mtu, 1_000_000, Some(rate), now)
            .is_none()
        {
            pacer.on_transmit(mtu);
            burst += u64::from(mtu);
        }
        assert!(burst <= rate / 1000 * 12, "{burst}");
    }
}
