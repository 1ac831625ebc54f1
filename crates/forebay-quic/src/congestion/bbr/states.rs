//! States, and what they send.

use std::time::Duration;

use super::sampler::Sample;
use super::{AckPhase, BETA, Bbr, CWND_GAIN, STARTUP_PACING_GAIN, State, is_too_high};
use crate::congestion::initial_window;
use crate::time::Time;

const DRAIN_PACING_GAIN: f64 = 0.5;
const UP_PACING_GAIN: f64 = 1.25;
const UP_CWND_GAIN: f64 = 2.25;
const DOWN_PACING_GAIN: f64 = 0.9;
const PROBE_RTT_CWND_GAIN: f64 = 0.5;

/// Part of the estimated bandwidth at which data is sent, so that no queue stays.
const PACING_MARGIN: f64 = 0.99;

/// Part of `inflight_long` that is used between probes.
const WITHOUT_HEADROOM: f64 = 0.85;

/// Part of what was in flight that remains the bound after a probe that filled the queue.
const AFTER_QUEUE: f64 = 0.8;

const PROBE_RTT_DURATION: Duration = Duration::from_millis(200);

/// Round trips after which a probe takes place at the latest, for fairness to Reno.
const MAX_ROUNDS_BETWEEN_PROBES: u64 = 63;

impl Bbr {
    pub(super) fn max_bw(&self) -> u64 {
        self.max_bw_filter[0].max(self.max_bw_filter[1])
    }

    pub(super) fn bw(&self) -> u64 {
        self.max_bw().min(self.bw_short)
    }

    pub(super) fn min_cwnd(&self) -> u64 {
        4 * self.datagram_size
    }

    /// Returns the product of bandwidth and delay, times `gain`, in bytes.
    pub(super) fn bdp(&self, bw: u64, gain: f64) -> u64 {
        match self.min_rtt {
            Some(rtt) if bw != 0 => (bw as f64 * rtt.as_secs_f64() * gain) as u64,
            _ => (initial_window(self.datagram_size) as f64 * gain) as u64,
        }
    }

    /// Returns the bytes in flight that keep the path busy at `gain`, with what hosts hold back.
    pub(super) fn inflight(&self, bw: u64, gain: f64) -> u64 {
        // Three times what is sent at once (section 5.6.4.2)
        let mut inflight = self.bdp(bw, gain) + 3 * self.send_quantum();
        if self.state == State::Up {
            inflight += 2 * self.datagram_size;
        }
        inflight.max(self.min_cwnd())
    }

    pub(super) fn send_quantum(&self) -> u64 {
        (self.pacing_rate / 1000).clamp(2 * self.datagram_size, 64 * 1024)
    }

    pub(super) fn inflight_with_headroom(&self) -> u64 {
        match self.inflight_long {
            u64::MAX => u64::MAX,
            x => ((x as f64 * WITHOUT_HEADROOM) as u64).max(self.min_cwnd()),
        }
    }

    pub(super) fn is_in_probe_bw(&self) -> bool {
        matches!(self.state, State::Down | State::Cruise | State::Refill | State::Up)
    }

    pub(super) fn reset_full_bw(&mut self) {
        self.full_bw = 0;
        self.full_bw_rounds = 0;
        self.full_bw_now = false;
    }

    pub(super) fn reset_short_term(&mut self) {
        self.bw_short = u64::MAX;
        self.inflight_short = u64::MAX;
    }

    pub(super) fn start_round(&mut self) {
        self.next_round_delivered = self.sampler.delivered;
    }

    pub(super) fn enter(&mut self, state: State, pacing_gain: f64, cwnd_gain: f64) {
        self.state = state;
        self.pacing_gain = pacing_gain;
        self.cwnd_gain = cwnd_gain;
    }

    pub(super) fn start_down(&mut self, now: Time) {
        self.probe_samples = false;
        self.probe_up_step = u64::MAX;
        self.rounds_since_probe = self.draw(2);
        self.probe_wait = Duration::from_millis(2000 + self.draw(1000));
        self.cycle_start = now;
        self.ack_phase = AckPhase::ProbeStopping;
        self.start_round();
        self.enter(State::Down, DOWN_PACING_GAIN, CWND_GAIN);
    }

    pub(super) fn start_refill(&mut self) {
        self.reset_short_term();
        self.probe_up_rounds = 0;
        self.probe_up_acked = 0;
        self.ack_phase = AckPhase::Refilling;
        self.start_round();
        self.enter(State::Refill, 1.0, CWND_GAIN);
    }

    pub(super) fn start_up(&mut self, now: Time, sample: &Sample) {
        self.probe_samples = true;
        self.ack_phase = AckPhase::ProbeStarting;
        self.start_round();
        self.reset_full_bw();
        self.full_bw = sample.rate;
        self.cycle_start = now;
        self.enter(State::Up, UP_PACING_GAIN, UP_CWND_GAIN);
        self.raise_probe_slope();
    }

    /// Has `inflight_long` grow twice as fast in each round trip.
    pub(super) fn raise_probe_slope(&mut self) {
        let growth = 1 << self.probe_up_rounds;
        self.probe_up_rounds = (self.probe_up_rounds + 1).min(30);
        self.probe_up_step = (self.cwnd / growth).max(self.datagram_size);
    }

    pub(super) fn check_startup_and_drain(&mut self, now: Time, in_flight: u64) {
        if self.state == State::Startup && self.full_bw_reached {
            self.enter(State::Drain, DRAIN_PACING_GAIN, CWND_GAIN);
        }
        if self.state == State::Drain && in_flight <= self.inflight(self.max_bw(), 1.0) {
            self.start_down(now);
        }
    }

    pub(super) fn update_probe_bw(&mut self, now: Time, sample: &Sample, acked: u64, in_flight: u64) {
        if !self.full_bw_reached {
            return;
        }
        self.adapt_upper_bounds(now, sample, acked);
        match self.state {
            State::Down => {
                let probes = self.check_time_to_probe(now);
                if !probes
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

    pub(super) fn check_time_to_probe(&mut self, now: Time) -> bool {
        let packets = self.bdp(self.bw(), 1.0).min(self.cwnd) / self.datagram_size;
        let is_time = now.since(self.cycle_start) > self.probe_wait
            || self.rounds_since_probe >= packets.clamp(1, MAX_ROUNDS_BETWEEN_PROBES);
        if is_time {
            self.start_refill();
        }
        is_time
    }

    pub(super) fn adapt_upper_bounds(&mut self, now: Time, sample: &Sample, acked: u64) {
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
                self.inflight_long += packets * self.datagram_size;
            }
            if self.round_start {
                self.raise_probe_slope();
            }
        }
    }

    /// Ends a probe in which too much was lost.
    pub(super) fn on_inflight_too_high(&mut self, now: Time, tx_in_flight: u64, app_limited: bool) {
        self.probe_samples = false;
        if !app_limited {
            let target = self.bdp(self.bw(), 1.0).min(self.cwnd) as f64 * BETA;
            let part = if self.sees_queue() { AFTER_QUEUE } else { 1.0 };
            let most = (tx_in_flight as f64 * part).max(target);
            self.inflight_long = (most as u64).max(self.min_cwnd());
        }
        if self.state == State::Up {
            self.start_down(now);
        }
    }

    pub(super) fn probe_rtt_cwnd(&self) -> u64 {
        self.bdp(self.bw(), PROBE_RTT_CWND_GAIN).max(self.min_cwnd())
    }

    pub(super) fn check_probe_rtt(&mut self, now: Time, in_flight: u64) {
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

    pub(super) fn check_probe_rtt_done(&mut self, now: Time) {
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

    pub(super) fn set_pacing_rate(&mut self, gain: f64) {
        let bw = self.bw();
        if bw == 0 {
            return;
        }
        let rate = ((gain * bw as f64 * PACING_MARGIN) as u64).max(1);
        if self.full_bw_reached || rate > self.pacing_rate {
            self.pacing_rate = rate;
        }
    }

    pub(super) fn set_cwnd(&mut self, acked: u64) {
        let extra = self.extra_acked[0].max(self.extra_acked[1]);
        let most = self.inflight(self.bw(), self.cwnd_gain) + extra;
        if self.full_bw_reached {
            self.cwnd = most.min(self.cwnd + acked);
        } else if self.cwnd < most || self.sampler.delivered < initial_window(self.datagram_size) {
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
