//! Losses (RFC 9002, sections 6.1 and 7.6).

use std::time::Duration;

use super::rtt::GRANULARITY;
use super::sent::{Flags, Verdict};
use super::{Fate, Outcome, Recovery, Space};
use crate::time::Time;

/// Packets behind which a later one has to be acknowledged until a packet is lost.
pub(super) const PACKET_THRESHOLD: u64 = 3;

/// Most packets to which the threshold rises when a path reorders them.
const MAX_PACKET_THRESHOLD: u64 = 256;

/// Eighths of the round-trip time after which a packet is lost.
pub(super) const TIME_THRESHOLD: u32 = 9;

/// Eighths to which the threshold rises.
const MAX_TIME_THRESHOLD: u32 = 16;

/// Probe timeouts without any acknowledgment that are persistent congestion.
const PERSISTENT_TIMEOUTS: u32 = 3;

/// Round-trip times for which lost packets are remembered.
const KEEP_LOST: u32 = 3;

/// Losses that were found at once.
#[derive(Default)]
pub(super) struct Losses {
    /// Packets in flight on the path in use, without probes of the datagram size.
    pub(super) packets: u32,
    bytes: u64,
    newest: Time,
    pub(super) persistent: bool,
}

impl<C: Copy> Recovery<C> {
    /// Finds lost packets of a space and hands them to `fate`.
    pub(super) fn detect_losses(
        &mut self,
        space: Space,
        now: Time,
        fate: &mut impl FnMut(Outcome<C>),
    ) -> Losses {
        let mut losses = Losses::default();
        let delay = self.loss_delay();
        let (threshold, persistent_after) = (self.packet_threshold, self.persistent_duration());
        let Some(state) = self.spaces.get_mut(space) else { return losses };
        let Some(largest) = state.largest_acked else { return losses };
        state.loss_time = None;
        let (path, stats) = (&mut self.path, &mut self.stats);
        state.sent.detect(largest, |number, record| {
            let Some(record) = record else {
                state.lost_since = None;
                return Verdict::Stop;
            };
            let due = record.time() + delay;
            if due > now && largest < number + threshold {
                state.loss_time = Some(due);
                return Verdict::Stop;
            }
            let (flags, size, sent) = (record.flags, u64::from(record.size), record.time());
            if flags.has(Flags::ACK_ELICITING) {
                state.eliciting = state.eliciting.saturating_sub(1);
                if path.first_sample.is_some_and(|x| sent > x) && !flags.has(Flags::OTHER_PATH) {
                    let since = *state.lost_since.get_or_insert(sent);
                    losses.persistent |= sent.since(since) > persistent_after;
                }
            }
            if flags.has(Flags::IN_FLIGHT) {
                path.in_flight = path.in_flight.saturating_sub(size);
            }
            if flags.has(Flags::MTU_PROBE) {
                stats.lost_mtu_probes += 1;
            } else {
                stats.lost += 1;
                stats.lost_bytes += size;
                if flags.has(Flags::IN_FLIGHT) {
                    losses.packets += 1;
                    losses.bytes += size;
                    losses.newest = sent;
                }
                if flags.has(Flags::ECT) && !flags.has(Flags::OTHER_PATH) {
                    path.ecn.on_lost();
                }
            }
            fate(Outcome::new(Fate::Lost, number, record));
            Verdict::Lost
        });
        self.on_losses(space, now, &losses);
        losses
    }

    /// Tells the controller.
    fn on_losses(&mut self, space: Space, now: Time, losses: &Losses) {
        if losses.packets > 0 {
            self.path.on_lost(now, losses.packets, losses.bytes, losses.newest);
        }
        if losses.persistent {
            if let Some(state) = self.spaces.get_mut(space) {
                state.lost_since = None;
            }
            self.stats.persistent_congestion += 1;
            self.path.on_persistent_congestion();
        }
    }

    /// Returns the time after which a packet is lost if a later one was acknowledged.
    fn loss_delay(&self) -> Duration {
        Duration::from_nanos(self.path.rtt.eighths(self.time_threshold)).max(GRANULARITY)
    }

    /// Returns for how long all packets have to be lost until congestion is persistent.
    fn persistent_duration(&self) -> Duration {
        self.path.rtt.pto(self.max_ack_delay) * PERSISTENT_TIMEOUTS
    }

    /// Raises the thresholds after a packet arrived that was declared lost: the path reorders packets (RFC 9002, section
    /// 6.1.1).
    pub(super) fn on_late(&mut self, space: Space, now: Time, number: u64, sent: Time) {
        let Some(state) = self.spaces.get_mut(space) else { return };
        state.lost_since = None;
        let distance = state.largest_acked.unwrap_or_default().saturating_sub(number);
        if distance >= self.packet_threshold {
            self.packet_threshold = (distance + 1).min(MAX_PACKET_THRESHOLD);
        }
        if now.since(sent) > self.loss_delay() {
            self.time_threshold = (self.time_threshold + 1).min(MAX_TIME_THRESHOLD);
        }
    }

    /// Returns the time from which on lost packets are remembered.
    pub(super) fn keep_lost_from(&self, now: Time) -> Time {
        Time::from_nanos(now.as_nanos().saturating_sub(self.path.rtt.eighths(8 * KEEP_LOST)))
    }
}
