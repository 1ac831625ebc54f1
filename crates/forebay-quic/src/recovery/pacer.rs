//! Pacing: spreads what may be in flight over the round-trip time (RFC 9002, section 7.7). Hot path.

use std::time::Duration;

use crate::time::Time;

/// Binary digits behind the point of a time for a byte.
const FRACTION: u32 = 20;

/// Packets that may leave at once in any case.
const BURST_PACKETS: u64 = 10;

/// Nanoseconds for which data may leave at once, as timers are not exact.
const BURST_TIME: u64 = 2_000_000;

/// Most bytes that leave at once after a pause.
const BURST_BYTES: u64 = 256 * 1024;

/// Lowest rate, bytes per second.
const MIN_RATE: u64 = 1000;

/// Pacer of a path. It counts in time: each byte moves the time at which the next packet is due.
#[derive(Clone, Copy, Debug)]
pub struct Pacer {
    /// Time at which the next packet is due, if packets left evenly. Packets may leave from then on.
    next: Time,
    /// Nanoseconds that a byte takes, with [`FRACTION`] digits; 0 means no pacing.
    byte_time: u64,
    /// Nanoseconds that `next` may be behind the time.
    burst: u64,
}

impl Pacer {
    /// Creates a pacer that lets everything pass until it has a rate.
    pub(super) fn new() -> Pacer {
        Pacer { next: Time::default(), byte_time: 0, burst: 0 }
    }

    /// Sets the rate in bytes per second.
    pub(super) fn set_rate(&mut self, rate: u64, datagram_size: u16) {
        self.set_byte_time((1_000_000_000 << FRACTION) / rate.max(MIN_RATE), datagram_size);
    }

    /// Sets the rate to so many bytes in a time.
    pub(super) fn set_window(&mut self, bytes: u64, time: Duration, datagram_size: u16) {
        // 2^44 nanoseconds are 4 hours, so that nothing overflows.
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).min(u64::MAX >> FRACTION);
        let slowest = (1_000_000_000 << FRACTION) / MIN_RATE;
        self.set_byte_time(((nanos << FRACTION) / bytes.max(1)).min(slowest), datagram_size);
    }

    fn set_byte_time(&mut self, byte_time: u64, datagram_size: u16) {
        self.byte_time = byte_time.max(1);
        let least = self.time_for(BURST_PACKETS * u64::from(datagram_size));
        self.burst = BURST_TIME.min(self.time_for(BURST_BYTES)).max(least);
    }

    /// Returns the nanoseconds that bytes take.
    fn time_for(&self, bytes: u64) -> u64 {
        self.byte_time.saturating_mul(bytes) >> FRACTION
    }

    /// Notes bytes that were sent.
    pub(super) fn on_sent(&mut self, now: Time, bytes: u64) {
        if self.byte_time != 0 {
            let earliest = now.as_nanos().saturating_sub(self.burst);
            let from = self.next.as_nanos().max(earliest);
            self.next = Time::from_nanos(from.saturating_add(self.time_for(bytes)));
        }
    }

    /// Returns when packets may leave, if they may not now. Half a burst may leave then, so that timers are few.
    pub(super) fn blocked_until(&self, now: Time) -> Option<Time> {
        (self.next > now).then(|| Time::from_nanos(self.next.as_nanos().saturating_add(self.burst / 2)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends packets of 1000 bytes for a time as soon as they may leave. Returns their number.
    fn run(pacer: &mut Pacer, now: &mut Time, time: Duration) -> u64 {
        let end = *now + time;
        let mut sent = 0;
        while *now < end {
            match pacer.blocked_until(*now) {
                None => {
                    pacer.on_sent(*now, 1000);
                    sent += 1;
                }
                Some(until) => {
                    assert!(until > *now);
                    *now = until;
                }
            }
        }
        sent
    }

    #[test]
    fn keeps_the_rate() {
        for rate in [20_000, 1_000_000, 125_000_000, 5_000_000_000u64] {
            let mut pacer = Pacer::new();
            let mut now = Time::from_nanos(5_000_000_000);
            pacer.set_rate(rate, 1000);
            run(&mut pacer, &mut now, Duration::from_millis(100));
            let (start, sent) = (now, run(&mut pacer, &mut now, Duration::from_secs(10)));
            let measured = (sent * 1000) as f64 / now.since(start).as_secs_f64();
            assert!((0.97..1.03).contains(&(measured / rate as f64)), "{rate}: {measured}");
        }
    }

    #[test]
    fn a_pause_allows_a_burst() {
        let mut pacer = Pacer::new();
        let now = Time::from_nanos(5_000_000_000);
        pacer.set_rate(100_000, 1000);
        let burst = (0..100).take_while(|_| {
            let free = pacer.blocked_until(now).is_none();
            pacer.on_sent(now, 1000);
            free
        });
        assert_eq!(burst.count(), 11);
        assert!(pacer.blocked_until(now).is_some());
    }

    #[test]
    fn without_a_rate_nothing_waits() {
        let mut pacer = Pacer::new();
        let now = Time::from_nanos(1);
        pacer.on_sent(now, u64::MAX);
        assert_eq!(pacer.blocked_until(now), None);
    }
}
