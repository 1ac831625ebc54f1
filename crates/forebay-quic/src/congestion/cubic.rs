//! CUBIC (RFC 9438).

use std::time::Duration;

use super::hystart::{Growth, HyStart};
use super::{Acked, initial_window};
use crate::time::Time;

/// How fast the window grows, datagrams per cubic second (section 5.1).
const C: f64 = 0.4;

/// Part of the window that remains after a reduction (section 4.6).
const BETA: f64 = 0.7;

/// Growth of the region that is friendly to Reno, until the window is what it was (section 4.3).
const ALPHA: f64 = 3.0 * (1.0 - BETA) / (1.0 + BETA);

/// CUBIC controller. Windows are bytes, with fractions.
#[derive(Debug)]
pub(crate) struct Cubic {
    datagram_size: f64,
    curve: Curve,
    /// Curve before the last reduction.
    before: Option<Curve>,
    hystart: HyStart,
    /// Time of the last acknowledgment.
    last_ack: Time,
    /// Time since which the window is not used, so that the curve stands still (section 5.8).
    unused_since: Option<Time>,
}

/// Window and how it goes on.
#[derive(Clone, Copy, Debug)]
struct Curve {
    window: f64,
    /// Window up to which slow start goes; infinite before the first reduction.
    threshold: f64,
    /// Time at which congestion avoidance began.
    epoch: Option<Time>,
    /// Window at which the curve is flat.
    max: f64,
    /// Seconds from the begin of the epoch until the curve is flat.
    flat_after: f64,
    /// Window that Reno would have.
    reno: f64,
    /// Window before the last reduction.
    prior: f64,
}

impl Cubic {
    pub(super) fn new(datagram_size: u16) -> Cubic {
        let datagram_size = datagram_size.into();
        let window = initial_window(datagram_size) as f64;
        let curve = Curve {
            window,
            threshold: f64::INFINITY,
            epoch: None,
            max: 0.0,
            flat_after: 0.0,
            reno: 0.0,
            prior: 0.0,
        };
        Cubic {
            datagram_size: datagram_size as f64,
            curve,
            before: None,
            hystart: HyStart::new(),
            last_ack: Time::default(),
            unused_since: None,
        }
    }

    pub(super) fn window(&self) -> u64 {
        self.curve.window as u64
    }

    pub(super) fn in_slow_start(&self) -> bool {
        self.curve.window < self.curve.threshold
    }

    pub(super) fn set_datagram_size(&mut self, size: u16) {
        self.datagram_size = size.into();
        self.curve.window = self.curve.window.max(self.least());
    }

    /// Notes that something is sent; `was_idle` if nothing was in flight.
    pub(super) fn on_sent(&mut self, was_idle: bool) {
        if was_idle && self.curve.epoch.is_some() {
            self.unused_since.get_or_insert(self.last_ack);
        }
    }

    pub(super) fn on_ack(&mut self, acked: &Acked) {
        if self.in_slow_start() {
            self.grow_in_slow_start(acked);
        } else if acked.bytes_to_grow == 0 {
            self.unused_since.get_or_insert(self.last_ack);
        } else {
            self.grow(acked);
        }
        self.last_ack = acked.now;
    }

    fn grow_in_slow_start(&mut self, acked: &Acked) {
        // Later slow starts know where to end.
        let growth = if self.curve.threshold == f64::INFINITY {
            self.hystart.on_ack(acked)
        } else {
            Growth::By(acked.bytes_to_grow)
        };
        match growth {
            Growth::By(bytes) => self.curve.window += bytes as f64,
            Growth::End => self.curve.threshold = self.curve.window,
        }
    }

    /// Grows in congestion avoidance (sections 4.2 to 4.5).
    fn grow(&mut self, acked: &Acked) {
        let unused = self.unused_since.take();
        let (datagram_size, acked_bytes) = (self.datagram_size, acked.bytes_to_grow as f64);
        let curve = &mut self.curve;
        let epoch = match (curve.epoch, unused) {
            (Some(epoch), Some(since)) => epoch + acked.now.since(since),
            (Some(epoch), None) => epoch,
            (None, _) => curve.begin(acked.now, datagram_size),
        };
        curve.epoch = Some(epoch);
        let time = acked.now.since(epoch);
        let alpha = if curve.reno >= curve.prior { 1.0 } else { ALPHA };
        curve.reno += alpha * datagram_size * acked_bytes / curve.window;
        if curve.at(time, datagram_size) < curve.reno {
            curve.window = curve.window.max(curve.reno);
            return;
        }
        let target = curve.at(time + acked.rtt.smoothed(), datagram_size);
        let target = target.clamp(curve.window, 1.5 * curve.window);
        curve.window += (target - curve.window) * acked_bytes / curve.window;
    }

    pub(super) fn on_congestion(&mut self) {
        self.before = Some(self.curve);
        let least = self.least();
        let curve = &mut self.curve;
        // Fast convergence: a smaller window than last time makes room for other flows (section 4.7).
        curve.max = if curve.window < curve.max { curve.window * (1.0 + BETA) / 2.0 } else { curve.window };
        curve.prior = curve.window;
        curve.window = (curve.window * BETA).max(least);
        curve.threshold = curve.window;
        curve.epoch = None;
        self.unused_since = None;
    }

    pub(super) fn on_persistent_congestion(&mut self) {
        self.before = None;
        self.curve.window = self.least();
        self.curve.epoch = None;
        // After slow start the curve begins at its flat part (section 4.8).
        self.curve.max = 0.0;
    }

    /// Undoes the last reduction (section 4.9.2).
    pub(super) fn undo(&mut self) {
        if let Some(before) = self.before.take().filter(|x| x.window > self.curve.window) {
            self.curve = before;
        }
    }

    fn least(&self) -> f64 {
        2.0 * self.datagram_size
    }
}

impl Curve {
    /// Begins an epoch at a time, which it returns.
    fn begin(&mut self, now: Time, datagram_size: f64) -> Time {
        self.max = self.max.max(self.window);
        self.flat_after = ((self.max - self.window) / datagram_size / C).cbrt();
        self.reno = self.window;
        now
    }

    /// Returns the window of the cubic function at a time of the epoch (figure 1).
    fn at(&self, time: Duration, datagram_size: f64) -> f64 {
        let distance = time.as_secs_f64() - self.flat_after;
        C * distance * distance * distance * datagram_size + self.max
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recovery::Rtt;

    const SIZE: u16 = 1000;
    const MS: Duration = Duration::from_millis(1);

    /// Controller that got out of slow start with a window of so many datagrams.
    fn reduced(window: u32) -> Cubic {
        let mut cubic = Cubic::new(SIZE);
        cubic.curve.window = f64::from(window * u32::from(SIZE));
        cubic.on_congestion();
        cubic
    }

    /// Acknowledges the window once each 100 ms. Returns the window at the end, in datagrams.
    fn run(cubic: &mut Cubic, now: &mut Time, time: Duration, uses_window: bool) -> f64 {
        let mut rtt = Rtt::new(MS);
        rtt.update(100 * MS, Duration::ZERO);
        let end = *now + time;
        while *now < end {
            *now += 10 * MS;
            let bytes = cubic.window() / 10;
            cubic.on_ack(&Acked {
                now: *now,
                bytes,
                bytes_to_grow: if uses_window { bytes } else { 0 },
                newest_sent: *now,
                in_flight: cubic.window(),
                round_starts: false,
                sample: None,
                rtt: &rtt,
            });
        }
        cubic.curve.window / f64::from(SIZE)
    }

    #[test]
    fn the_curve_is_flat_at_the_last_maximum() {
        let (mut cubic, mut now) = (reduced(1000), Time::from_nanos(5));
        assert_eq!((cubic.window(), cubic.in_slow_start()), (700_000, false));
        // The cube root of 1000 * 0.3 / 0.4 is 9.086; 0.4 * 4^3 is 25.6.
        for (seconds, expected) in [(5.086, 974.4), (4.0, 1000.0), (4.0, 1025.6)] {
            let window = run(&mut cubic, &mut now, Duration::from_secs_f64(seconds), true);
            assert!((window - expected).abs() < 3.0, "{window}");
        }
    }

    #[test]
    fn the_curve_stands_still_while_the_window_is_not_used() {
        let (mut cubic, mut now) = (reduced(100), Time::from_nanos(5));
        let before = run(&mut cubic, &mut now, 5000 * MS, true);
        assert_eq!(run(&mut cubic, &mut now, 60_000 * MS, false), before);
        let after = run(&mut cubic, &mut now, 100 * MS, true);
        assert!(after < before + 1.0, "{before} {after}");
        // The same after a pause
        now += 60_000 * MS;
        cubic.on_sent(true);
        let after = run(&mut cubic, &mut now, 100 * MS, true);
        assert!(after < before + 2.0, "{before} {after}");
    }

    #[test]
    fn a_flow_that_shrinks_makes_room() {
        let mut cubic = reduced(100);
        assert_eq!(cubic.curve.max, 100_000.0);
        cubic.on_congestion();
        assert_eq!((cubic.window(), cubic.curve.max), (49_000, 59_500.0));
        for _ in 0..100 {
            cubic.on_congestion();
        }
        assert_eq!(cubic.window(), 2000);
    }

    #[test]
    fn reductions_are_undone_and_persistent_congestion_is_not() {
        let mut cubic = reduced(100);
        cubic.undo();
        assert_eq!((cubic.window(), cubic.in_slow_start()), (100_000, true));
        cubic.on_congestion();
        cubic.on_persistent_congestion();
        cubic.undo();
        assert_eq!((cubic.window(), cubic.in_slow_start()), (2000, true));
    }

    /// With a short round-trip time Reno would be faster (section 4.3).
    #[test]
    fn small_windows_grow_like_reno() {
        let mut cubic = reduced(10);
        let mut now = Time::from_nanos(5);
        // From 7 datagrams to 10 in steps of 0.53, and of 1 from there on. The curve would have 0.4 * (1 - 1.96)^3 + 10.
        let window = run(&mut cubic, &mut now, 1000 * MS, true);
        assert!((14.0..14.6).contains(&window), "{window}");
    }
}
