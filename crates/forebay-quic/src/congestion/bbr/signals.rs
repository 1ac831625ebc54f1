//! Estimates of the path from acknowledgments.

use std::time::Duration;

use super::sampler::Sample;
use super::{BETA, Bbr, CWND_GAIN, LOSS_THRESHOLD, State};
use crate::time::Time;

/// Losses in a round trip that are tolerated if no queue was seen: a limit of the path's rate or chance loses packets then.
const LOSS_WITHOUT_QUEUE: f64 = 0.05;

/// Multiple of the lowest round-trip time above which there is a queue.
const QUEUE_RTT: f64 = 1.25;

const FULL_BW_GROWTH: f64 = 1.25;
const FULL_BW_ROUNDS: u32 = 3;
const FULL_LOSS_EVENTS: u32 = 6;
const MIN_RTT_FILTER: Duration = Duration::from_secs(10);

/// Multiple of the lowest round-trip time that is as good: clocks and hosts vary more than that.
const SAME_RTT: f64 = 1.0 + 1.0 / 64.0;

const PROBE_RTT_INTERVAL: Duration = Duration::from_secs(5);
const EXTRA_ACKED_ROUNDS: u64 = 5;

impl Bbr {
    pub(super) fn update_round(&mut self, sample: &Sample) {
        self.round_start = sample.prior_delivered >= self.next_round_delivered;
        if self.round_start {
            self.start_round();
            self.round_count += 1;
            self.rounds_since_probe += 1;
        }
    }

    /// Updates what has been seen in the current round trip, and the bounds at its end.
    pub(super) fn update_congestion_signals(&mut self, sample: &Sample) {
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
            let queue = self.sees_queue();
            let part = lost as f64 / (delivered + lost).max(1) as f64;
            self.at_end_of_loss_round(part, queue);
        }
    }

    /// Tells whether all packets that arrived in this round trip met a queue.
    pub(super) fn sees_queue(&self) -> bool {
        let shortest = self.min_rtt.filter(|_| self.loss_round_rtt != Duration::MAX);
        shortest.is_some_and(|x| self.loss_round_rtt > x.mul_f64(QUEUE_RTT))
    }

    /// Takes a round trip in which `part` of the bytes was lost, and all others met a `queue`.
    pub(super) fn at_end_of_loss_round(&mut self, part: f64, queue: bool) {
        if self.state == State::Startup
            && !self.full_bw_reached
            && ((part > LOSS_THRESHOLD && self.loss_events >= FULL_LOSS_EVENTS) || self.congestion_marked)
        {
            self.full_bw_reached = true;
            self.inflight_long =
                self.bdp(self.max_bw(), CWND_GAIN).max(self.inflight_latest).max(self.min_cwnd());
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

    /// Begins a new round trip of losses, once all have used what was seen in the old one.
    pub(super) fn advance_loss_round(&mut self, sample: &Sample) {
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

    /// Updates how many bytes more than the bandwidth says have been acknowledged at once.
    pub(super) fn update_ack_aggregation(&mut self, now: Time, acked: u64) {
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
        let interval = now.since(self.extra_acked_start);
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

    pub(super) fn check_full_bw_reached(&mut self, sample: &Sample) {
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

    pub(super) fn update_min_rtt(&mut self, now: Time, rtt: Duration, app_limited: bool) {
        self.probe_rtt_expired = now.since(self.probe_rtt_min_stamp) > PROBE_RTT_INTERVAL;
        if self.probe_rtt_expired || self.probe_rtt_min.is_none_or(|x| rtt < x) {
            self.probe_rtt_min = Some(rtt);
            self.probe_rtt_min_stamp = now;
        } else if app_limited && self.probe_rtt_min.is_some_and(|x| rtt <= x.mul_f64(SAME_RTT)) {
            // The path was without a queue in a pause, so there is no need to drain it.
            self.probe_rtt_min_stamp = now;
        }
        let expired = now.since(self.min_rtt_stamp) > MIN_RTT_FILTER;
        if expired || self.min_rtt.is_none_or(|x| self.probe_rtt_min < Some(x)) {
            self.min_rtt = self.probe_rtt_min;
            self.min_rtt_stamp = self.probe_rtt_min_stamp;
        }
    }
}
