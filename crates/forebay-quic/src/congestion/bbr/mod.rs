//! BBR, version 3 (draft-ietf-ccwg-bbr).

use std::time::Duration;

use super::{Acked, initial_window, mix};
use crate::time::Time;

mod sampler;
mod signals;
mod states;
#[cfg(test)]
mod tests;

use sampler::Sampler;

/// BBR, version 3 (draft-ietf-ccwg-bbr).
///
/// Estimates the bandwidth of the path and its round-trip time without queues, and sends at that rate. Differs from the draft:
///
/// - The short-term bounds `bw_short` and `inflight_short` fall after rounds in which more than 2 % was lost and all packets met a
///   queue, or more than 5 % without one, not after each loss. The draft's rule takes random losses for congestion. They do not
///   fall after rounds that the application limited.
/// - A mark of explicit congestion notification counts as such a round (RFC 9002, section 7.1). In Startup one mark suffices to
///   leave it, and in a probe one mark ends the probe.
/// - Startup that ends by losses leaves twice the product of bandwidth and delay as `inflight_long`, not once. A flow that meets
///   the full queue of another one has found only a part of its share by then, and the lower bound would keep it there.
/// - A probe that loses too much sets `inflight_long` to what was in flight when the lost packet was sent, or to 0.8 of it if all
///   packets met a queue, so that other flows get a part of it. The draft takes the part at which the losses reached 2 %.
/// - A round-trip time close to the lowest one postpones the state ProbeRtt if the application limited what was sent, as its
///   pauses leave no queue. The draft asks for a lower one.
/// - Losses count as one event for each acknowledgment that reveals them, not for each gap in the packet numbers.
/// - The window does not shrink to what is in flight while losses are repaired, and losses that prove spurious are not undone.
/// - State of the sampler is kept for each burst, not for each packet (see sampler.rs).
#[derive(Debug)]
pub(crate) struct Bbr {
    datagram_size: u64,
    sampler: Sampler,
    /// State of the random numbers.
    random: u64,
    state: State,
    /// Congestion window, bytes.
    cwnd: u64,
    /// Window before the state ProbeRtt or persistent congestion.
    prior_cwnd: u64,
    /// Bytes per second; zero before the first sample.
    pacing_rate: u64,
    pacing_gain: f64,
    cwnd_gain: f64,

    /// Value of `delivered` at which the current round trip ends.
    next_round_delivered: u64,
    round_start: bool,
    round_count: u64,
    /// The window was full in this round trip.
    cwnd_limited: bool,

    /// Highest rates of the previous and of the current cycle of probing.
    max_bw_filter: [u64; 2],
    bw_short: u64,
    inflight_short: u64,
    /// Bytes that may be in flight as far as is known for longer.
    inflight_long: u64,

    /// State of the round trips in which losses are counted.
    loss_round_delivered: u64,
    loss_round_start: bool,
    /// Values of `delivered` and `lost` when it began.
    loss_round_from: (u64, u64),
    loss_events: u32,
    congestion_marked: bool,
    /// Shortest round-trip time in it.
    loss_round_rtt: Duration,
    app_limited_in_round: bool,
    bw_latest: u64,
    inflight_latest: u64,

    /// Time and bytes acknowledged since then, by which acknowledgments beyond the rate are found.
    extra_acked_start: Time,
    extra_acked_bytes: u64,
    /// Highest excesses, of the current and the previous five round trips.
    extra_acked: [u64; 2],
    extra_acked_rounds: u64,

    full_bw: u64,
    full_bw_rounds: u32,
    full_bw_now: bool,
    full_bw_reached: bool,

    cycle_start: Time,
    probe_wait: Duration,
    rounds_since_probe: u64,
    /// Losses may be due to our probing.
    probe_samples: bool,
    probe_up_rounds: u32,
    probe_up_acked: u64,
    /// Acknowledged bytes for which `inflight_long` grows by a packet.
    probe_up_step: u64,
    ack_phase: AckPhase,

    min_rtt: Option<Duration>,
    min_rtt_stamp: Time,
    probe_rtt_min: Option<Duration>,
    probe_rtt_min_stamp: Time,
    probe_rtt_expired: bool,
    probe_rtt_done: Option<Time>,
    probe_rtt_round_done: bool,
    idle_restart: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Doubles the rate each round trip.
    Startup,
    /// Lets the queue drain that Startup has filled.
    Drain,
    /// Sends less than is delivered, after a probe.
    Down,
    Cruise,
    /// Fills the path before a probe.
    Refill,
    /// Probes for more bandwidth.
    Up,
    /// Sends little to measure the round-trip time without queues.
    ProbeRtt,
}

/// Phase of probing that arriving acknowledgments belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AckPhase {
    Init,
    Refilling,
    ProbeStarting,
    ProbeFeedback,
    ProbeStopping,
}

/// Gain of the rate that doubles it in a round trip (section 2.4).
const STARTUP_PACING_GAIN: f64 = 2.77;

/// Gain of the window that leaves room for acknowledgments that come late.
const CWND_GAIN: f64 = 2.0;

/// Losses in a round trip that are tolerated.
const LOSS_THRESHOLD: f64 = 0.02;

/// Part of a bound that remains after too many losses.
const BETA: f64 = 0.7;

impl Bbr {
    /// Creates the state of a path. `seed` is a random number.
    pub(super) fn new(now: Time, datagram_size: u16, seed: u64) -> Bbr {
        let datagram_size = datagram_size.into();
        Bbr {
            datagram_size,
            sampler: Sampler::new(now),
            random: seed,
            state: State::Startup,
            cwnd: initial_window(datagram_size),
            prior_cwnd: 0,
            pacing_rate: 0,
            pacing_gain: STARTUP_PACING_GAIN,
            cwnd_gain: CWND_GAIN,
            next_round_delivered: 0,
            round_start: false,
            round_count: 0,
            cwnd_limited: false,
            max_bw_filter: [0; 2],
            bw_short: u64::MAX,
            inflight_short: u64::MAX,
            inflight_long: u64::MAX,
            loss_round_delivered: 0,
            loss_round_start: false,
            loss_round_from: (0, 0),
            loss_events: 0,
            congestion_marked: false,
            loss_round_rtt: Duration::MAX,
            app_limited_in_round: false,
            bw_latest: 0,
            inflight_latest: 0,
            extra_acked_start: now,
            extra_acked_bytes: 0,
            extra_acked: [0; 2],
            extra_acked_rounds: 0,
            full_bw: 0,
            full_bw_rounds: 0,
            full_bw_now: false,
            full_bw_reached: false,
            cycle_start: now,
            probe_wait: Duration::ZERO,
            rounds_since_probe: 0,
            probe_samples: false,
            probe_up_rounds: 0,
            probe_up_acked: 0,
            probe_up_step: u64::MAX,
            ack_phase: AckPhase::Init,
            min_rtt: None,
            min_rtt_stamp: now,
            probe_rtt_min: None,
            probe_rtt_min_stamp: now,
            probe_rtt_expired: false,
            probe_rtt_done: None,
            probe_rtt_round_done: false,
            idle_restart: false,
        }
    }

    /// Notes bytes that were sent, after which `in_flight` bytes are in flight.
    pub(super) fn on_sent(&mut self, now: Time, bytes: u64, in_flight: u64) {
        if in_flight <= bytes && self.sampler.is_app_limited() {
            self.idle_restart = true;
            self.extra_acked_start = now;
            self.extra_acked_bytes = 0;
            if self.is_in_probe_bw() {
                self.set_pacing_rate(1.0);
            } else if self.state == State::ProbeRtt {
                self.check_probe_rtt_done(now);
            }
        }
        self.sampler.on_sent(now, bytes, in_flight);
        self.cwnd_limited |= in_flight + 2 * self.datagram_size >= self.cwnd;
    }

    /// Notes that the application has nothing to send.
    pub(super) fn on_app_limited(&mut self, in_flight: u64) {
        if in_flight < self.cwnd {
            self.sampler.on_app_limited(in_flight);
        }
    }

    /// Takes acknowledgments.
    pub(super) fn on_ack(&mut self, batch: &Acked) {
        let (now, acked, in_flight) = (batch.now, batch.bytes, batch.in_flight);
        self.sampler.on_ack(now, batch.newest_sent, acked);
        // Later than this packets are lost (RFC 9002, section 6.1.2).
        let memory = 2 * batch.rtt.conservative();
        let min_rtt = self.min_rtt.unwrap_or_default();
        let Some(sample) = self.sampler.take_sample(now, min_rtt, memory) else {
            return;
        };
        self.update_round(&sample);
        self.update_congestion_signals(&sample);
        self.update_ack_aggregation(now, acked);
        self.check_full_bw_reached(&sample);
        self.check_startup_and_drain(now, in_flight);
        self.update_probe_bw(now, &sample, acked, in_flight);
        self.update_min_rtt(now, sample.rtt, sample.app_limited);
        self.check_probe_rtt(now, in_flight);
        self.advance_loss_round(&sample);
        self.set_pacing_rate(self.pacing_gain);
        self.set_cwnd(acked);
        if self.round_start {
            self.cwnd_limited = false;
        }
    }

    /// Takes losses, of which the newest packet was sent at `newest`.
    pub(super) fn on_lost(&mut self, now: Time, newest: Time, bytes: u64) {
        self.loss_events += 1;
        if let Some((lost, in_flight, app_limited)) = self.sampler.on_lost(newest, bytes)
            && self.probe_samples
            && is_too_high(lost, in_flight)
        {
            self.on_inflight_too_high(now, in_flight, app_limited);
        }
    }

    /// Takes a congestion mark on a packet that was sent at `sent`.
    pub(super) fn on_marked(&mut self, now: Time, sent: Time) {
        self.loss_events += 1;
        self.congestion_marked = true;
        if let Some((_, in_flight, app_limited)) = self.sampler.on_lost(sent, 0)
            && self.probe_samples
        {
            self.on_inflight_too_high(now, in_flight, app_limited);
        }
    }

    /// Sends little until acknowledgments come. They let the window grow back to what the model says.
    pub(super) fn on_persistent_congestion(&mut self) {
        self.cwnd = self.min_cwnd();
    }

    pub(super) fn set_datagram_size(&mut self, size: u16) {
        self.datagram_size = size.into();
        self.cwnd = self.cwnd.max(self.min_cwnd());
    }

    /// Returns the congestion window, bytes.
    pub(super) fn window(&self) -> u64 {
        self.cwnd
    }

    /// Returns the rate of sending in bytes per second, once there is one.
    pub(super) fn pacing_rate(&self) -> Option<u64> {
        (self.pacing_rate != 0).then_some(self.pacing_rate)
    }

    pub(super) fn in_startup(&self) -> bool {
        self.state == State::Startup
    }

    /// Gives memory back.
    pub(super) fn shrink(&mut self) {
        self.sampler.shrink();
    }

    /// Returns a random number below `n`.
    fn draw(&mut self, n: u64) -> u64 {
        self.random = mix(self.random);
        self.random % n
    }
}

/// Tells whether more was lost than is tolerated of what was in flight.
fn is_too_high(lost: u64, in_flight: u64) -> bool {
    lost as f64 > in_flight as f64 * LOSS_THRESHOLD
}
