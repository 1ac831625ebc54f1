use std::any::Any;
use std::sync::Arc;

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg32;

use super::{BASE_DATAGRAM_SIZE, Controller, ControllerFactory, ControllerMetrics};
use crate::connection::RttEstimator;
use crate::{Duration, Instant};

mod sampler;
#[cfg(test)]
mod tests;

use sampler::{Sample, Sampler};

/// BBR, version 3 (draft-ietf-ccwg-bbr)
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
/// - A probe that loses too much sets `inflight_long` to what was in flight when the lost packet was sent, not to the part of
///   it at which the losses reached 2 %.
/// - A round-trip time close to the lowest one postpones the state ProbeRtt if the application limited what was sent, as its
///   pauses leave no queue. The draft asks for a lower one.
/// - Losses count as one event for each acknowledgment that reveals them, not for each gap in the packet numbers.
/// - The window does not shrink to what is in flight while losses are repaired, and losses that prove spurious are not undone.
/// - State of the sampler is kept for each burst, not for each packet (see sampler.rs).
#[derive(Debug, Clone)]
pub struct Bbr {
    config: Arc<BbrConfig>,
    mtu: u64,
    sampler: Sampler,
    /// Bytes acknowledged in the current batch
    acked: u64,
    rng: Pcg32,
    state: State,
    /// Congestion window, bytes
    cwnd: u64,
    /// Window before the state ProbeRtt or persistent congestion
    prior_cwnd: u64,
    /// Bytes per second; zero before the first sample
    pacing_rate: u64,
    pacing_gain: f64,
    cwnd_gain: f64,

    /// Value of `delivered` at which the current round trip ends
    next_round_delivered: u64,
    round_start: bool,
    round_count: u64,
    /// The window was full in this round trip
    cwnd_limited: bool,

    /// Highest rates of the previous and of the current cycle of probing
    max_bw_filter: [u64; 2],
    bw_short: u64,
    inflight_short: u64,
    /// Bytes that may be in flight as far as is known for longer
    inflight_long: u64,

    /// State of the round trips in which losses are counted
    loss_round_delivered: u64,
    loss_round_start: bool,
    /// Values of `delivered` and `lost` when it began
    loss_round_from: (u64, u64),
    loss_events: u32,
    congestion_marked: bool,
    /// Shortest round-trip time in it
    loss_round_rtt: Duration,
    app_limited_in_round: bool,
    bw_latest: u64,
    inflight_latest: u64,

    /// Time and bytes acknowledged since then, by which acknowledgments beyond the rate are found
    extra_acked_start: Instant,
    extra_acked_bytes: u64,
    /// Highest excesses, of the current and the previous five round trips
    extra_acked: [u64; 2],
    extra_acked_rounds: u64,

    full_bw: u64,
    full_bw_rounds: u32,
    full_bw_now: bool,
    full_bw_reached: bool,

    cycle_start: Instant,
    probe_wait: Duration,
    rounds_since_probe: u64,
    /// Losses may be due to our probing
    probe_samples: bool,
    probe_up_rounds: u32,
    probe_up_acked: u64,
    /// Acknowledged bytes for which `inflight_long` grows by a packet
    probe_up_step: u64,
    ack_phase: AckPhase,

    min_rtt: Option<Duration>,
    min_rtt_stamp: Instant,
    probe_rtt_min: Option<Duration>,
    probe_rtt_min_stamp: Instant,
    probe_rtt_expired: bool,
    probe_rtt_done: Option<Instant>,
    probe_rtt_round_done: bool,
    idle_restart: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Doubles the rate each round trip
    Startup,
    /// Lets the queue drain that Startup has filled
    Drain,
    /// Sends less than is delivered, after a probe
    Down,
    Cruise,
    /// Fills the path before a probe
    Refill,
    /// Probes for more bandwidth
    Up,
    /// Sends little to measure the round-trip time without queues
    ProbeRtt,
}

/// Phase of probing that arriving acknowledgments belong to
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum AckPhase {
    Init,
    Refilling,
    ProbeStarting,
    ProbeFeedback,
    ProbeStopping,
}

const STARTUP_PACING_GAIN: f64 = 2.77;
const DRAIN_PACING_GAIN: f64 = 0.5;
const CWND_GAIN: f64 = 2.0;
const UP_PACING_GAIN: f64 = 1.25;
const UP_CWND_GAIN: f64 = 2.25;
const DOWN_PACING_GAIN: f64 = 0.9;
const PROBE_RTT_CWND_GAIN: f64 = 0.5;
/// Part of the estimated bandwidth at which data is sent, so that no queue stays
const PACING_MARGIN: f64 = 0.99;
/// Losses in a round trip that are tolerated
const LOSS_THRESHOLD: f64 = 0.02;
/// The same if no queue was seen, and thus a limit of the path's rate or chance loses packets
const LOSS_WITHOUT_QUEUE: f64 = 0.05;
/// Multiple of the lowest round-trip time above which there is a queue
const QUEUE_RTT: f64 = 1.25;
const BETA: f64 = 0.7;
/// Part of `inflight_long` that is used between probes
const WITHOUT_HEADROOM: f64 = 0.85;
const FULL_BW_GROWTH: f64 = 1.25;
const FULL_BW_ROUNDS: u32 = 3;
const FULL_LOSS_EVENTS: u32 = 6;
const MIN_RTT_FILTER: Duration = Duration::from_secs(10);
/// Multiple of the lowest round-trip time that is as good: clocks and hosts vary more than that
const SAME_RTT: f64 = 1.0 + 1.0 / 64.0;
const PROBE_RTT_INTERVAL: Duration = Duration::from_secs(5);
const PROBE_RTT_DURATION: Duration = Duration::from_millis(200);
/// Round trips after which a probe takes place at the latest, for fairness to Reno
const MAX_ROUNDS_BETWEEN_PROBES: u64 = 63;
const EXTRA_ACKED_ROUNDS: u64 = 5;

impl Bbr {
    /// Construct a state using the given `config` and current time `now`
    pub fn new(config: Arc<BbrConfig>, now: Instant, current_mtu: u16) -> Self {
        Self {
            mtu: current_mtu.into(),
            sampler: Sampler::new(now),
            acked: 0,
            rng: Pcg32::from_rng(&mut rand::rng()),
            state: State::Startup,
            cwnd: config.initial_window,
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
            config,
        }
    }

    fn max_bw(&self) -> u64 {
        self.max_bw_filter[0].max(self.max_bw_filter[1])
    }

    fn bw(&self) -> u64 {
        self.max_bw().min(self.bw_short)
    }

    fn min_cwnd(&self) -> u64 {
        4 * self.mtu
    }

    /// Product of bandwidth and delay, times `gain`, in bytes
    fn bdp(&self, bw: u64, gain: f64) -> u64 {
        match self.min_rtt {
            Some(rtt) if bw != 0 => (bw as f64 * rtt.as_secs_f64() * gain) as u64,
            _ => (self.config.initial_window as f64 * gain) as u64,
        }
    }

    /// Bytes in flight that keep the path busy at `gain`, with what hosts hold back
    fn inflight(&self, bw: u64, gain: f64) -> u64 {
        // Three times what is sent at once (section 5.6.4.2)
        let mut inflight = self.bdp(bw, gain) + 3 * self.send_quantum();
        if self.state == State::Up {
            inflight += 2 * self.mtu;
        }
        inflight.max(self.min_cwnd())
    }

    fn send_quantum(&self) -> u64 {
        (self.pacing_rate / 1000).clamp(2 * self.mtu, 64 * 1024)
    }

    fn inflight_with_headroom(&self) -> u64 {
        match self.inflight_long {
            u64::MAX => u64::MAX,
            x => ((x as f64 * WITHOUT_HEADROOM) as u64).max(self.min_cwnd()),
        }
    }

    fn is_in_probe_bw(&self) -> bool {
        matches!(
            self.state,
            State::Down | State::Cruise | State::Refill | State::Up
        )
    }

    fn reset_full_bw(&mut self) {
        self.full_bw = 0;
        self.full_bw_rounds = 0;
        self.full_bw_now = false;
    }

    fn reset_short_term(&mut self) {
        self.bw_short = u64::MAX;
        self.inflight_short = u64::MAX;
    }

    fn start_round(&mut self) {
        self.next_round_delivered = self.sampler.delivered;
    }

    fn enter(&mut self, state: State, pacing_gain: f64, cwnd_gain: f64) {
        self.state = state;
        self.pacing_gain = pacing_gain;
        self.cwnd_gain = cwnd_gain;
    }

    fn start_down(&mut self, now: Instant) {
        self.probe_samples = false;
        self.probe_up_step = u64::MAX;
        self.rounds_since_probe = self.rng.random_range(0..2);
        self.probe_wait = Duration::from_millis(self.rng.random_range(2000..3000));
        self.cycle_start = now;
        self.ack_phase = AckPhase::ProbeStopping;
        self.start_round();
        self.enter(State::Down, DOWN_PACING_GAIN, CWND_GAIN);
    }

    fn start_refill(&mut self) {
        self.reset_short_term();
        self.probe_up_rounds = 0;
        self.probe_up_acked = 0;
        self.ack_phase = AckPhase::Refilling;
        self.start_round();
        self.enter(State::Refill, 1.0, CWND_GAIN);
    }

    fn start_up(&mut self, now: Instant, sample: &Sample) {
        self.probe_samples = true;
        self.ack_phase = AckPhase::ProbeStarting;
        self.start_round();
        self.reset_full_bw();
        self.full_bw = sample.rate;
        self.cycle_start = now;
        self.enter(State::Up, UP_PACING_GAIN, UP_CWND_GAIN);
        self.raise_probe_slope();
    }

    /// Has `inflight_long` grow twice as fast in each round trip
    fn raise_probe_slope(&mut self) {
        let growth = 1 << self.probe_up_rounds;
        self.probe_up_rounds = (self.probe_up_rounds + 1).min(30);
        self.probe_up_step = (self.cwnd / growth).max(self.mtu);
    }

    fn update_round(&mut self, sample: &Sample) {
        self.round_start = sample.prior_delivered >= self.next_round_delivered;
        if self.round_start {
            self.start_round();
            self.round_count += 1;
            self.rounds_since_probe += 1;
        }
    }

    /// Updates what has been seen in the current round trip, and the bounds at its end
    fn update_congestion_signals(&mut self, sample: &Sample) {
        self.bw_latest = self.bw_latest.max(sample.rate);
        self.inflight_latest = self.inflight_latest.max(sample.delivered);
        self.app_limited_in_round |= sample.app_limited;
        self.loss_round_rtt = self.loss_round_rtt.min(sample.rtt);
        self.loss_round_start = sample.prior_delivered >= self.loss_round_delivered;

        if sample.rate != 0 && (sample.rate >= self.max_bw() || !sample.app_limited) {
            self.max_bw_filter[1] = self.max_bw_filter[1].max(sample.rate);
        }
        if self.loss_round_start {
            let (delivered, lost) = self.loss_round_from;
            let delivered = self.sampler.delivered - delivered;
            let lost = self.sampler.lost - lost;
            let queue = self
                .min_rtt
                .is_some_and(|x| self.loss_round_rtt > x.mul_f64(QUEUE_RTT));
            let part = lost as f64 / (delivered + lost).max(1) as f64;
            self.at_end_of_loss_round(part, queue);
        }
    }

    /// `part` of the bytes was lost, and all others met a `queue`
    fn at_end_of_loss_round(&mut self, part: f64, queue: bool) {
        if self.state == State::Startup
            && !self.full_bw_reached
            && ((part > LOSS_THRESHOLD && self.loss_events >= FULL_LOSS_EVENTS)
                || self.congestion_marked)
        {
            self.full_bw_reached = true;
            self.inflight_long = self
                .bdp(self.max_bw(), CWND_GAIN)
                .max(self.inflight_latest)
                .max(self.min_cwnd());
        }
        // Probes have a bound of their own. What the application limits says little about the path.
        let probes = matches!(self.state, State::Startup | State::Refill | State::Up);
        let tolerated = match queue {
            true => LOSS_THRESHOLD,
            false => LOSS_WITHOUT_QUEUE,
        };
        let lossy = part > tolerated && !self.app_limited_in_round;
        if !probes && (self.congestion_marked || lossy) {
            if self.bw_short == u64::MAX {
                self.bw_short = self.max_bw();
            }
            if self.inflight_short == u64::MAX {
                self.inflight_short = self.cwnd;
            }
            let lower = |x: u64| (x as f64 * BETA) as u64;
            self.bw_short = self.bw_latest.max(lower(self.bw_short));
            self.inflight_short = self.inflight_latest.max(lower(self.inflight_short));
        }
    }

    /// Begins a new round trip of losses, once all have used what was seen in the old one
    fn advance_loss_round(&mut self, sample: &Sample) {
        if self.loss_round_start {
            self.loss_round_delivered = self.sampler.delivered;
            self.loss_round_from = (self.sampler.delivered, self.sampler.lost);
            self.loss_events = 0;
            self.congestion_marked = false;
            self.loss_round_rtt = Duration::MAX;
            self.app_limited_in_round = false;
            self.bw_latest = sample.rate;
            self.inflight_latest = sample.delivered;
        }
    }

    /// Updates how many bytes more than the bandwidth says have been acknowledged at once
    fn update_ack_aggregation(&mut self, now: Instant, acked: u64) {
        if self.round_start {
            self.extra_acked_rounds += 1;
            let rounds = match self.full_bw_reached {
                true => EXTRA_ACKED_ROUNDS,
                false => 1,
            };
            if self.extra_acked_rounds >= rounds {
                self.extra_acked_rounds = 0;
                self.extra_acked = [0, self.extra_acked[0]];
            }
        }
        let interval = now.saturating_duration_since(self.extra_acked_start);
        let mut expected = (self.bw() as f64 * interval.as_secs_f64()) as u64;
        if self.extra_acked_bytes <= expected {
            self.extra_acked_bytes = 0;
            self.extra_acked_start = now;
            expected = 0;
        }
        self.extra_acked_bytes += acked;
        let extra = (self.extra_acked_bytes - expected).min(self.cwnd);
        self.extra_acked[0] = self.extra_acked[0].max(extra);
    }

    fn check_full_bw_reached(&mut self, sample: &Sample) {
        if self.full_bw_now || sample.app_limited || sample.rate == 0 {
            return;
        }
        if sample.rate as f64 >= self.full_bw as f64 * FULL_BW_GROWTH {
            self.reset_full_bw();
            self.full_bw = sample.rate;
            return;
        }
        if !self.round_start {
            return;
        }
        self.full_bw_rounds += 1;
        self.full_bw_now = self.full_bw_rounds >= FULL_BW_ROUNDS;
        self.full_bw_reached |= self.full_bw_now;
    }

    fn check_startup_and_drain(&mut self, now: Instant, in_flight: u64) {
        if self.state == State::Startup && self.full_bw_reached {
            self.enter(State::Drain, DRAIN_PACING_GAIN, CWND_GAIN);
        }
        if self.state == State::Drain && in_flight <= self.inflight(self.max_bw(), 1.0) {
            self.start_down(now);
        }
    }

    fn update_probe_bw(&mut self, now: Instant, sample: &Sample, acked: u64, in_flight: u64) {
        if !self.full_bw_reached {
            return;
        }
        self.adapt_upper_bounds(now, sample, acked);
        match self.state {
            State::Down => {
                if !self.check_time_to_probe(now)
                    && in_flight <= self.inflight_with_headroom()
                    && in_flight <= self.inflight(self.max_bw(), 1.0)
                {
                    self.enter(State::Cruise, 1.0, CWND_GAIN);
                }
            }
            State::Cruise => {
                self.check_time_to_probe(now);
            }
            State::Refill if self.round_start => self.start_up(now, sample),
            State::Up => {
                if self.cwnd_limited && self.cwnd >= self.inflight_long {
                    // The bound may be what keeps the rate from growing.
                    self.reset_full_bw();
                    self.full_bw = sample.rate;
                } else if self.full_bw_now {
                    // A queue alone does not end the probe: other flows may keep one, and only a
                    // flow that fills it too gets its share.
                    self.start_down(now);
                }
            }
            _ => {}
        }
    }

    fn check_time_to_probe(&mut self, now: Instant) -> bool {
        let packets = self.bdp(self.bw(), 1.0).min(self.cwnd) / self.mtu;
        let is_time = now.saturating_duration_since(self.cycle_start) > self.probe_wait
            || self.rounds_since_probe >= packets.clamp(1, MAX_ROUNDS_BETWEEN_PROBES);
        if is_time {
            self.start_refill();
        }
        is_time
    }

    fn adapt_upper_bounds(&mut self, now: Instant, sample: &Sample, acked: u64) {
        if self.round_start {
            match self.ack_phase {
                AckPhase::ProbeStarting => self.ack_phase = AckPhase::ProbeFeedback,
                AckPhase::ProbeStopping => {
                    self.ack_phase = AckPhase::Init;
                    self.probe_samples = false;
                    if self.is_in_probe_bw() && !sample.app_limited {
                        self.max_bw_filter = [self.max_bw_filter[1], 0];
                    }
                }
                _ => {}
            }
        }
        if is_too_high(sample.lost, sample.tx_in_flight) {
            if self.probe_samples {
                self.on_inflight_too_high(now, sample.tx_in_flight, sample.app_limited);
            }
            return;
        }
        if self.inflight_long == u64::MAX {
            return;
        }
        self.inflight_long = self.inflight_long.max(sample.tx_in_flight);
        if self.state == State::Up && self.cwnd_limited && self.cwnd >= self.inflight_long {
            self.probe_up_acked += acked;
            if self.probe_up_acked >= self.probe_up_step {
                let packets = self.probe_up_acked / self.probe_up_step;
                self.probe_up_acked -= packets * self.probe_up_step;
                self.inflight_long += packets * self.mtu;
            }
            if self.round_start {
                self.raise_probe_slope();
            }
        }
    }

    /// Ends a probe in which too much was lost
    fn on_inflight_too_high(&mut self, now: Instant, tx_in_flight: u64, app_limited: bool) {
        self.probe_samples = false;
        if !app_limited {
            let target = self.bdp(self.bw(), 1.0).min(self.cwnd) as f64 * BETA;
            self.inflight_long = tx_in_flight.max(target as u64).max(self.min_cwnd());
        }
        if self.state == State::Up {
            self.start_down(now);
        }
    }

    fn update_min_rtt(&mut self, now: Instant, rtt: Duration, app_limited: bool) {
        self.probe_rtt_expired =
            now.saturating_duration_since(self.probe_rtt_min_stamp) > PROBE_RTT_INTERVAL;
        if self.probe_rtt_expired || self.probe_rtt_min.is_none_or(|x| rtt < x) {
            self.probe_rtt_min = Some(rtt);
            self.probe_rtt_min_stamp = now;
        } else if app_limited
            && self
                .probe_rtt_min
                .is_some_and(|x| rtt <= x.mul_f64(SAME_RTT))
        {
            // The path was without a queue in a pause, so there is no need to drain it.
            self.probe_rtt_min_stamp = now;
        }
        let expired = now.saturating_duration_since(self.min_rtt_stamp) > MIN_RTT_FILTER;
        if expired || self.min_rtt.is_none_or(|x| self.probe_rtt_min < Some(x)) {
            self.min_rtt = self.probe_rtt_min;
            self.min_rtt_stamp = self.probe_rtt_min_stamp;
        }
    }

    fn probe_rtt_cwnd(&self) -> u64 {
        self.bdp(self.bw(), PROBE_RTT_CWND_GAIN)
            .max(self.min_cwnd())
    }

    fn check_probe_rtt(&mut self, now: Instant, in_flight: u64) {
        if self.state != State::ProbeRtt && self.probe_rtt_expired && !self.idle_restart {
            self.enter(State::ProbeRtt, 1.0, PROBE_RTT_CWND_GAIN);
            self.prior_cwnd = self.cwnd;
            self.probe_rtt_done = None;
            self.ack_phase = AckPhase::ProbeStopping;
            self.start_round();
        }
        if self.state == State::ProbeRtt {
            // Samples of this time say nothing about the bandwidth.
            self.sampler.on_app_limited(in_flight);
            match self.probe_rtt_done {
                None if in_flight <= self.probe_rtt_cwnd() => {
                    self.probe_rtt_done = Some(now + PROBE_RTT_DURATION);
                    self.probe_rtt_round_done = false;
                    self.start_round();
                }
                None => {}
                Some(_) => {
                    self.probe_rtt_round_done |= self.round_start;
                    if self.probe_rtt_round_done {
                        self.check_probe_rtt_done(now);
                    }
                }
            }
        }
        self.idle_restart = false;
    }

    fn check_probe_rtt_done(&mut self, now: Instant) {
        if self.probe_rtt_done.is_none_or(|done| now <= done) {
            return;
        }
        self.probe_rtt_min_stamp = now;
        self.cwnd = self.cwnd.max(self.prior_cwnd);
        self.reset_short_term();
        if self.full_bw_reached {
            self.start_down(now);
            self.enter(State::Cruise, 1.0, CWND_GAIN);
        } else {
            self.enter(State::Startup, STARTUP_PACING_GAIN, CWND_GAIN);
        }
    }

    fn set_pacing_rate(&mut self, gain: f64) {
        let bw = self.bw();
        if bw == 0 {
            return;
        }
        let rate = ((gain * bw as f64 * PACING_MARGIN) as u64).max(1);
        if self.full_bw_reached || rate > self.pacing_rate {
            self.pacing_rate = rate;
        }
    }

    fn set_cwnd(&mut self, acked: u64) {
        let extra = self.extra_acked[0].max(self.extra_acked[1]);
        let most = self.inflight(self.bw(), self.cwnd_gain) + extra;
        if self.full_bw_reached {
            self.cwnd = most.min(self.cwnd + acked);
        } else if self.cwnd < most || self.sampler.delivered < self.config.initial_window {
            self.cwnd += acked;
        }

        let mut bound = match self.state {
            State::ProbeRtt => self.probe_rtt_cwnd().min(self.inflight_with_headroom()),
            State::Cruise => self.inflight_with_headroom(),
            State::Down | State::Refill | State::Up => self.inflight_long,
            State::Startup | State::Drain => u64::MAX,
        };
        bound = bound.min(self.inflight_short);
        self.cwnd = self.cwnd.min(bound).max(self.min_cwnd());
    }
}

/// Tells whether more was lost than is tolerated of what was in flight
fn is_too_high(lost: u64, in_flight: u64) -> bool {
    lost as f64 > in_flight as f64 * LOSS_THRESHOLD
}

impl Controller for Bbr {
    fn on_sent(&mut self, now: Instant, bytes: u64, in_flight: u64) {
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
        self.cwnd_limited |= in_flight + 2 * self.mtu >= self.cwnd;
    }

    fn on_app_limited(&mut self, in_flight: u64) {
        if in_flight < self.cwnd {
            self.sampler.on_app_limited(in_flight);
        }
    }

    fn on_ack(
        &mut self,
        now: Instant,
        sent: Instant,
        bytes: u64,
        _app_limited: bool,
        _rtt: &RttEstimator,
    ) {
        self.sampler.on_ack(now, sent, bytes);
        self.acked += bytes;
    }

    fn on_end_acks(
        &mut self,
        now: Instant,
        in_flight: u64,
        _app_limited: bool,
        _largest_packet_num_acked: Option<u64>,
        rtt: &RttEstimator,
    ) {
        let acked = std::mem::take(&mut self.acked);
        // Later than this packets are lost (RFC 9002, section 6.1.2).
        let memory = 2 * rtt.conservative();
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

    fn on_congestion_event(
        &mut self,
        now: Instant,
        sent: Instant,
        is_persistent_congestion: bool,
        lost_bytes: u64,
    ) {
        self.loss_events += 1;
        self.congestion_marked |= lost_bytes == 0;
        if let Some((lost, in_flight, app_limited)) = self.sampler.on_lost(sent, lost_bytes) {
            if self.probe_samples && (lost_bytes == 0 || is_too_high(lost, in_flight)) {
                self.on_inflight_too_high(now, in_flight, app_limited);
            }
        }
        if is_persistent_congestion {
            // Acknowledgments let the window grow back to what the model says.
            self.cwnd = self.min_cwnd();
        }
    }

    fn on_mtu_update(&mut self, new_mtu: u16) {
        self.mtu = new_mtu.into();
        self.cwnd = self.cwnd.max(self.min_cwnd());
    }

    fn window(&self) -> u64 {
        self.cwnd
    }

    fn pacing_rate(&self) -> Option<u64> {
        (self.pacing_rate != 0).then_some(self.pacing_rate)
    }

    fn metrics(&self) -> ControllerMetrics {
        ControllerMetrics {
            congestion_window: self.window(),
            ssthresh: None,
            pacing_rate: Some(self.pacing_rate * 8),
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

/// Configuration for the [`Bbr`] congestion controller
#[derive(Debug, Clone)]
pub struct BbrConfig {
    initial_window: u64,
}

impl BbrConfig {
    /// Default limit on the amount of outstanding data in bytes.
    ///
    /// Recommended value: `min(10 * max_datagram_size, max(2 * max_datagram_size, 14720))`
    pub fn initial_window(&mut self, value: u64) -> &mut Self {
        self.initial_window = value;
        self
    }
}

impl Default for BbrConfig {
    fn default() -> Self {
        Self {
            initial_window: 14720.clamp(2 * BASE_DATAGRAM_SIZE, 10 * BASE_DATAGRAM_SIZE),
        }
    }
}

impl ControllerFactory for BbrConfig {
    fn build(self: Arc<Self>, now: Instant, current_mtu: u16) -> Box<dyn Controller> {
        Box::new(Bbr::new(self, now, current_mtu))
    }
}
