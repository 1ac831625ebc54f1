//! What recovery knows about a path: its round-trip time, its congestion and its ECN.

use std::time::Duration;

use super::Config;
use super::ecn::Ecn;
use super::pacer::Pacer;
use super::rtt::Rtt;
use crate::congestion::{Acked, Controller};
use crate::time::Time;

/// State of recovery for one path. The owner may keep it when it leaves the path, and bring it when it comes back.
#[derive(Debug)]
pub struct PathState {
    /// Estimate of the round-trip time.
    pub rtt: Rtt,
    /// Time of the first sample of it.
    pub(super) first_sample: Option<Time>,
    pub(super) controller: Controller,
    pub(super) pacer: Pacer,
    pub(super) ecn: Ecn,
    pub(super) in_flight: u64,
    /// Most bytes in flight in this round trip.
    max_in_flight: u64,
    /// Time at which the current round trip began.
    round_start: Time,
    /// Time at which the window was reduced last, and the time before that. Zero if it was not.
    recovery_start: Time,
    previous_recovery: Time,
    /// Packets whose loss made the controller reduce the window last, and which did not arrive later.
    episode_losses: u32,
    datagram_size: u16,
}

impl PathState {
    pub(super) fn new(config: &Config, now: Time) -> PathState {
        let mut path = PathState {
            rtt: Rtt::new(config.initial_rtt),
            first_sample: None,
            controller: Controller::new(config.algorithm, now, config.datagram_size, config.seed),
            pacer: Pacer::new(),
            ecn: Ecn::new(config.ecn),
            in_flight: 0,
            max_in_flight: 0,
            round_start: now,
            recovery_start: Time::default(),
            previous_recovery: Time::default(),
            episode_losses: 0,
            datagram_size: config.datagram_size,
        };
        path.set_rate();
        path
    }

    pub(super) fn on_sent(&mut self, now: Time, bytes: u64) {
        self.in_flight += bytes;
        self.max_in_flight = self.max_in_flight.max(self.in_flight);
        self.pacer.on_sent(now, bytes);
        self.controller.on_sent(now, bytes, self.in_flight);
    }

    /// Takes acknowledgments of a frame. `bytes` left the flight already, `after_reduction` of them were sent after the
    /// window was reduced last, and the newest at `newest`.
    pub(super) fn on_acked(
        &mut self,
        now: Time,
        bytes: u64,
        after_reduction: u64,
        newest: Time,
        sample: Option<Duration>,
    ) {
        let round = newest >= self.round_start;
        // Losses of the same frame may have reduced the window just now.
        let may_grow = newest > self.recovery_start && self.is_limited();
        self.controller.on_ack(&Acked {
            now,
            bytes,
            bytes_to_grow: if may_grow { after_reduction } else { 0 },
            newest_sent: newest,
            in_flight: self.in_flight,
            round_starts: round,
            sample,
            rtt: &self.rtt,
        });
        if round {
            self.round_start = now;
            self.max_in_flight = self.in_flight;
        }
        self.set_rate();
    }

    /// Tells whether the window limited what was in flight. A window that is not used does not grow (RFC 9002, section 7.8).
    fn is_limited(&self) -> bool {
        let window = self.controller.window();
        if self.controller.in_slow_start() {
            window < 2 * self.max_in_flight
        } else {
            window < self.max_in_flight + 3 * u64::from(self.datagram_size)
        }
    }

    /// Returns the time at which the window was reduced last.
    pub(super) fn reduced_at(&self) -> Time {
        self.recovery_start
    }

    /// Takes the loss of packets, of which the newest was sent at `newest`.
    pub(super) fn on_lost(&mut self, now: Time, packets: u32, bytes: u64, newest: Time) {
        let reduces = self.begin_recovery(now, newest);
        self.episode_losses = if reduces { packets } else { self.episode_losses.saturating_add(packets) };
        self.controller.on_lost(now, newest, bytes, reduces);
        self.set_rate();
    }

    /// Takes a congestion mark on a packet that was sent at `sent`.
    pub(super) fn on_marked(&mut self, now: Time, sent: Time) {
        let reduces = self.begin_recovery(now, sent);
        // The mark stands, whatever becomes of the losses.
        self.episode_losses = u32::MAX;
        self.controller.on_marked(now, sent, reduces);
        self.set_rate();
    }

    fn begin_recovery(&mut self, now: Time, sent: Time) -> bool {
        let begins = sent > self.recovery_start;
        if begins {
            self.previous_recovery = std::mem::replace(&mut self.recovery_start, now);
        }
        begins
    }

    pub(super) fn on_persistent_congestion(&mut self) {
        self.recovery_start = Time::default();
        self.episode_losses = u32::MAX;
        self.controller.on_persistent_congestion();
        self.set_rate();
    }

    /// Takes the acknowledgment of a packet that was declared lost. If all losses of a reduction prove wrong, it is undone.
    pub(super) fn on_spurious(&mut self, sent: Time) {
        let of_episode = sent <= self.recovery_start && sent > self.previous_recovery;
        if !of_episode || self.episode_losses == u32::MAX || self.episode_losses == 0 {
            return;
        }
        self.episode_losses -= 1;
        if self.episode_losses == 0 {
            self.controller.undo();
            self.recovery_start = self.previous_recovery;
        }
    }

    pub(super) fn set_datagram_size(&mut self, size: u16) {
        self.datagram_size = size;
        self.controller.on_datagram_size(size);
        self.set_rate();
    }

    /// Returns the bytes that may be sent in addition to those in flight.
    pub(super) fn room(&self) -> u64 {
        self.controller.window().saturating_sub(self.in_flight)
    }

    fn set_rate(&mut self) {
        if let Some(rate) = self.controller.pacing_rate() {
            self.pacer.set_rate(rate, self.datagram_size);
        } else if self.rtt.is_sampled() {
            let window = self.controller.window();
            // Slow start doubles the window in a round-trip time.
            let scaled = if self.controller.in_slow_start() { window * 2 } else { window / 4 * 5 };
            self.pacer.set_window(scaled, self.rtt.smoothed(), self.datagram_size);
        }
    }
}
