use std::any::Any;
use std::cmp;
use std::sync::Arc;

use super::{BASE_DATAGRAM_SIZE, Controller, ControllerFactory};
use crate::connection::RttEstimator;
use crate::{Duration, Instant};

/// CUBIC Constants.
///
/// These are the values of RFC 9438, section 4.6 and 5.1.
const BETA_CUBIC: f64 = 0.7;

const C: f64 = 0.4;

/// CUBIC State Variables.
///
/// We need to keep those variables across the connection.
/// k, w_max are described in the RFC.
#[derive(Debug, Default, Clone)]
pub(super) struct State {
    k: f64,

    w_max: f64,

    // Window that Reno would have (RFC 9438, section 4.3), bytes.
    w_est: f64,

    // Window before the latest reduction, bytes.
    cwnd_prior: f64,

    // Store cwnd increment during congestion avoidance.
    cwnd_inc: u64,
}

/// CUBIC Functions.
///
/// Note that these calculations are based on a count of cwnd as bytes,
/// not packets.
/// Unit of t (duration) and RTT are based on seconds (f64).
impl State {
    // K = cbrt(w_max * (1 - beta_cubic) / C) (Eq. 2)
    fn cubic_k(&self, max_datagram_size: u64) -> f64 {
        let w_max = self.w_max / max_datagram_size as f64;
        (w_max * (1.0 - BETA_CUBIC) / C).cbrt()
    }

    // W_cubic(t) = C * (t - K)^3 - w_max (Eq. 1)
    fn w_cubic(&self, t: Duration, max_datagram_size: u64) -> f64 {
        let w_max = self.w_max / max_datagram_size as f64;

        (C * (t.as_secs_f64() - self.k).powi(3) + w_max) * max_datagram_size as f64
    }

    // W_est = W_est + alpha_cubic * segments_acked / cwnd (RFC 9438, section 4.3). Grows as Reno
    // does once it has reached the window before the reduction.
    fn grow_w_est(&mut self, bytes: u64, window: u64, max_datagram_size: u64) {
        let alpha = match self.w_est < self.cwnd_prior {
            true => 3.0 * (1.0 - BETA_CUBIC) / (1.0 + BETA_CUBIC),
            false => 1.0,
        };
        self.w_est += alpha * bytes as f64 / window as f64 * max_datagram_size as f64;
    }
}

/// The congestion controller of RFC 9438, as widely used for TCP
#[derive(Debug, Clone)]
pub struct Cubic {
    config: Arc<CubicConfig>,
    /// Maximum number of bytes in flight that may be sent.
    window: u64,
    /// Slow start threshold in bytes. When the congestion window is below ssthresh, the mode is
    /// slow start and the window grows by the number of bytes acknowledged.
    ssthresh: u64,
    /// The time when QUIC first detects a loss, causing it to enter recovery. When a packet sent
    /// after this time is acknowledged, QUIC exits recovery.
    recovery_start_time: Option<Instant>,
    cubic_state: State,
    current_mtu: u64,
}

impl Cubic {
    /// Construct a state using the given `config` and current time `now`
    pub fn new(config: Arc<CubicConfig>, _now: Instant, current_mtu: u16) -> Self {
        Self {
            window: config.initial_window,
            ssthresh: u64::MAX,
            recovery_start_time: None,
            config,
            cubic_state: Default::default(),
            current_mtu: current_mtu as u64,
        }
    }

    fn minimum_window(&self) -> u64 {
        2 * self.current_mtu
    }
}

impl Controller for Cubic {
    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        app_limited: bool,
        rtt: &RttEstimator,
    ) {
        if app_limited
            || self
                .recovery_start_time
                .map(|recovery_start_time| sent <= recovery_start_time)
                .unwrap_or(false)
        {
            return;
        }

        if self.window < self.ssthresh {
            // Slow start
            self.window += bytes;
        } else {
            // Congestion avoidance.
            let ca_start_time;

            match self.recovery_start_time {
                Some(t) => ca_start_time = t,
                None => {
                    // When we come here without congestion_event() triggered,
                    // initialize congestion_recovery_start_time, w_max and k.
                    ca_start_time = now;
                    self.recovery_start_time = Some(now);

                    self.cubic_state.w_max = self.window as f64;
                    self.cubic_state.k = 0.0;
                    self.cubic_state.w_est = self.window as f64;
                    self.cubic_state.cwnd_prior = self.window as f64;
                }
            }

            let t = now - ca_start_time;

            // w_cubic(t + rtt)
            let w_cubic = self.cubic_state.w_cubic(t + rtt.get(), self.current_mtu);

            self.cubic_state
                .grow_w_est(bytes, self.window, self.current_mtu);
            let w_est = self.cubic_state.w_est;

            let mut cubic_cwnd = self.window;

            if w_cubic < w_est {
                // TCP friendly region.
                cubic_cwnd = cmp::max(cubic_cwnd, w_est as u64);
            } else if cubic_cwnd < w_cubic as u64 {
                // Concave region or convex region use same increment.
                let cubic_inc =
                    (w_cubic - cubic_cwnd as f64) / cubic_cwnd as f64 * self.current_mtu as f64;

                // w_cubic grows cubically with the time since the last congestion
                // event and can exceed `u64::MAX` after a long lossless period.
                cubic_cwnd = cubic_cwnd.saturating_add(cubic_inc as u64);
            }

            // Update the increment and increase cwnd by MSS.
            self.cubic_state.cwnd_inc += cubic_cwnd - self.window;

            // cwnd_inc can be more than 1 MSS in the late stage of max probing.
            // however RFC9002 §7.3.3 (Congestion Avoidance) limits
            // the increase of cwnd to 1 max_datagram_size per cwnd acknowledged.
            if self.cubic_state.cwnd_inc >= self.current_mtu {
                self.window += self.current_mtu;
                self.cubic_state.cwnd_inc = 0;
            }
        }
    }

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        _lost_bytes: u64,
    ) {
        if self
            .recovery_start_time
            .map(|recovery_start_time| sent <= recovery_start_time)
            .unwrap_or(false)
        {
            return;
        }

        self.recovery_start_time = Some(now);
        let window = self.window as f64;

        // Fast convergence lowers W_max first; the 0.7 loss reduction still
        // applies to the old window, not to that already-reduced W_max.
        // https://www.rfc-editor.org/rfc/rfc9438.html#section-4.7
        // https://www.rfc-editor.org/rfc/rfc9438.html#section-4.6
        if window < self.cubic_state.w_max {
            self.cubic_state.w_max = window * (1.0 + BETA_CUBIC) / 2.0;
        } else {
            self.cubic_state.w_max = window;
        }

        self.ssthresh = cmp::max((window * BETA_CUBIC) as u64, self.minimum_window());
        self.window = self.ssthresh;
        self.cubic_state.cwnd_prior = window;
        self.cubic_state.w_est = self.window as f64;
        self.cubic_state.k = self.cubic_state.cubic_k(self.current_mtu);

        self.cubic_state.cwnd_inc = (self.cubic_state.cwnd_inc as f64 * BETA_CUBIC) as u64;

        if is_persistent_congestion {
            self.recovery_start_time = None;
            self.cubic_state.w_max = self.window as f64;

            // 4.7 Timeout - reduce ssthresh based on BETA_CUBIC
            self.ssthresh = cmp::max(
                (self.window as f64 * BETA_CUBIC) as u64,
                self.minimum_window(),
            );

            self.cubic_state.cwnd_inc = 0;

            self.window = self.minimum_window();
            self.cubic_state.w_est = self.window as f64;
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.current_mtu = new_mtu as u64;
        self.window = self.window.max(self.minimum_window());
    }

    fn window(&self) -> u64 {
        self.window
    }

    fn metrics(&self) -> super::ControllerMetrics {
        super::ControllerMetrics {
            congestion_window: self.window(),
            ssthresh: Some(self.ssthresh),
            pacing_rate: None,
        }
    }

    fn clone_box(&self) -> Box<dyn Controller> {
        Box::new(self.clone())
    }

    fn initial_window(&self) -> u64 {
        self.config.initial_window
    }

    fn into_any(self: Box<Self>) -> Box<dyn Any> {
        self
    }
}

/// Configuration for the `Cubic` congestion controller
#[derive(Debug, Clone)]
pub struct CubicConfig {
    initial_window: u64,
}

impl CubicConfig {
    /// Default limit on the amount of outstanding data in bytes.
    ///
    /// Recommended value: `min(10 * max_datagram_size, max(2 * max_datagram_size, 14720))`
    pub fn initial_window(&mut self, value: u64) -> &mut Self {
        self.initial_window = value;
        self
    }
}

impl Default for CubicConfig {
    fn default() -> Self {
        Self {
            initial_window: 14720.clamp(2 * BASE_DATAGRAM_SIZE, 10 * BASE_DATAGRAM_SIZE),
        }
    }
}

impl ControllerFactory for CubicConfig {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(Cubic::new(self, now, current_mtu))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_convergence_reduces_w_max_without_double_reducing_window() {
        let now = Instant::now();
        let config = Arc::new(CubicConfig::default());
        let mut cubic = Cubic::new(config, now, BASE_DATAGRAM_SIZE as u16);
        let window = 8 * BASE_DATAGRAM_SIZE;

        cubic.window = window;
        cubic.ssthresh = window;
        cubic.cubic_state.w_max = 12.0 * BASE_DATAGRAM_SIZE as f64;

        cubic.on_congestion_event(now, now + Duration::from_millis(1), false, 0);

        assert_eq!(
            cubic.cubic_state.w_max,
            window as f64 * (1.0 + BETA_CUBIC) / 2.0
        );
        assert_eq!(cubic.ssthresh, (window as f64 * BETA_CUBIC) as u64);
        assert_eq!(cubic.window, cubic.ssthresh);
    }

    #[test]
    fn congestion_avoidance_does_not_overflow_after_long_lossless_period() {
        let now = Instant::now();
        let rtt = RttEstimator::new(Duration::from_millis(100));
        let config = Arc::new(CubicConfig::default());
        let mut cubic = Cubic::new(config, now, BASE_DATAGRAM_SIZE as u16);

        // Put CUBIC directly into congestion avoidance.
        cubic.ssthresh = cubic.window;
        cubic.recovery_start_time = Some(now);
        let window = cubic.window;

        // After ten days without a congestion event, w_cubic exceeds u64::MAX.
        // Before this fix, computing the window increment overflowed.
        let later = now + Duration::from_secs(10 * 24 * 60 * 60);
        cubic.on_ack(later, later, BASE_DATAGRAM_SIZE, false, &rtt);

        assert_eq!(cubic.window, window + BASE_DATAGRAM_SIZE);
    }

    /// Bytes of windows that are acknowledged until the window has grown from `beta` times to its old size
    fn rounds_to_recover(window: u64) -> u64 {
        let now = Instant::now();
        let mut rtt = RttEstimator::new(Duration::from_millis(10));
        rtt.update(Duration::ZERO, Duration::from_millis(10));
        let mut cubic = Cubic::new(
            Arc::new(CubicConfig::default()),
            now,
            BASE_DATAGRAM_SIZE as u16,
        );
        cubic.window = window;
        // Fast convergence must not delay the growth of Reno's window.
        cubic.cubic_state.w_max = 2.0 * window as f64;
        cubic.on_congestion_event(now, now, false, 1200);
        let mut time = now;
        for round in 1.. {
            time += Duration::from_millis(10);
            for _ in 0..cubic.window / BASE_DATAGRAM_SIZE {
                cubic.on_ack(time, time, BASE_DATAGRAM_SIZE, false, &rtt);
            }
            if cubic.window + BASE_DATAGRAM_SIZE > window {
                return round;
            }
        }
        unreachable!()
    }

    #[test]
    fn small_windows_grow_as_fast_as_those_of_reno() {
        // 6 of 20 packets at 0.53 a round trip, less one because the window grows by whole packets
        let rounds = rounds_to_recover(20 * BASE_DATAGRAM_SIZE);
        assert!((9..=12).contains(&rounds), "{rounds}");
    }
}
