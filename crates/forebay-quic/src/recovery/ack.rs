//! ACK frames that come. Hot path.

use std::ops::RangeInclusive;
use std::time::Duration;

use super::sent::{Flags, Record, Skipped};
use super::{Fate, Outcome, Recovery, Space};
use crate::error::{Code, Error};
use crate::time::Time;

/// ACK frame without its ranges.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ack {
    /// Largest acknowledged packet number.
    pub largest: u64,
    /// Time that the peer waited, with its exponent applied.
    pub delay: Duration,
    /// Packets that arrived with ECT(0), ECT(1) and CE.
    pub ecn: Option<[u64; 3]>,
}

/// What an ACK frame said that was not known before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AckResult {
    /// Packets were acknowledged for the first time.
    pub newly: bool,
    /// The round-trip time has a new sample.
    pub sampled: bool,
    /// Packets are lost.
    pub lost: bool,
    /// Persistent congestion was found (RFC 9002, section 7.6).
    pub persistent_congestion: bool,
}

/// Sums over the packets that a frame acknowledges.
#[derive(Default)]
struct Sums {
    newly: bool,
    eliciting: u32,
    /// Bytes that leave the flight.
    bytes: u64,
    /// Those of them that were sent after the window was reduced last.
    after_reduction: u64,
    /// Time at which the newest packet in flight was sent.
    newest: Time,
    /// Packets marked with ECT(0).
    marked: u64,
    /// Time at which the largest acknowledged packet was sent, if that is new and of this path.
    largest_sent: Option<Time>,
    /// Smallest packet that was declared lost, and the time at which it was sent.
    late: Option<(u64, Time)>,
}

impl Sums {
    fn add<C>(&mut self, number: u64, largest: u64, after: Time, record: &Record<C>) {
        let (flags, time, size) = (record.flags, record.time(), u64::from(record.size));
        self.newly = true;
        self.marked += u64::from(flags.has(Flags::ECT) && !flags.has(Flags::OTHER_PATH));
        if number == largest && !flags.has(Flags::OTHER_PATH) {
            self.largest_sent = Some(time);
        }
        self.eliciting += u32::from(flags.has(Flags::ACK_ELICITING));
        if flags.has(Flags::IN_FLIGHT) {
            self.bytes += size;
            self.newest = self.newest.max(time);
            if time > after {
                self.after_reduction += size;
            }
        }
    }
}

impl<C: Copy> Recovery<C> {
    /// Takes an ACK frame. `ranges` are its ranges from the largest number down. The fate of each packet that it decides goes to
    /// `fate`.
    ///
    /// # Errors
    ///
    /// PROTOCOL_VIOLATION if it acknowledges a packet that was not sent (RFC 9000, section 13.1).
    pub fn on_ack(
        &mut self,
        space: Space,
        now: Time,
        ack: &Ack,
        ranges: impl IntoIterator<Item = RangeInclusive<u64>>,
        mut fate: impl FnMut(Outcome<C>),
    ) -> Result<AckResult, Error> {
        let sums = self.take_acked(space, ack.largest, ranges, &mut fate)?;
        let mut result = AckResult { newly: sums.newly, ..AckResult::default() };
        let Some(state) = self.spaces.get_mut(space).filter(|_| sums.newly) else { return Ok(result) };
        let grows = state.largest_acked.is_none_or(|x| ack.largest > x);
        state.largest_acked = state.largest_acked.max(Some(ack.largest));
        state.eliciting = state.eliciting.saturating_sub(sums.eliciting);
        self.path.in_flight = self.path.in_flight.saturating_sub(sums.bytes);

        let sample = sums.largest_sent.filter(|_| sums.eliciting > 0).map(|sent| now.since(sent));
        if let Some(sample) = sample {
            self.update_rtt(space, now, sample, ack.delay);
            result.sampled = true;
        }
        if let Some((number, sent)) = sums.late {
            self.on_late(space, now, number, sent);
        }
        if grows {
            self.check_ecn(space, now, ack, &sums);
        }
        let losses = self.detect_losses(space, now, &mut fate);
        result.lost = losses.packets > 0;
        result.persistent_congestion = losses.persistent;
        if sums.bytes > 0 {
            self.path.on_acked(now, sums.bytes, sums.after_reduction, sums.newest, sample);
        }
        if self.handshake.peer_validated {
            self.pto_count = 0;
        }
        self.timer_set = now;
        let keep_from = self.keep_lost_from(now);
        if let Some(state) = self.spaces.get_mut(space) {
            state.sent.trim(keep_from);
        }
        Ok(result)
    }

    /// Takes the acknowledged packets out.
    fn take_acked(
        &mut self,
        space: Space,
        largest: u64,
        ranges: impl IntoIterator<Item = RangeInclusive<u64>>,
        fate: &mut impl FnMut(Outcome<C>),
    ) -> Result<Sums, Error> {
        let mut sums = Sums::default();
        let Some(state) = self.spaces.get_mut(space) else { return Ok(sums) };
        if largest >= state.next {
            return Err(Error::new(Code::PROTOCOL_VIOLATION, "acknowledgment of a packet that was not sent"));
        }
        let after = self.path.reduced_at();
        let skipped = state.skipped();
        for range in ranges {
            if range.contains(&skipped) {
                return Err(never_sent());
            }
            if *range.end() < state.sent.first() {
                break;
            }
            let acked = state.sent.acknowledge(range, |number, record| {
                if record.is_lost() {
                    sums.newly = true;
                    // Ranges come in descending order, and packets of a range in ascending order.
                    if sums.late.is_none_or(|(x, _)| number < x) {
                        sums.late = Some((number, record.time()));
                    }
                    self.stats.late += 1;
                    self.path.on_spurious(record.time());
                    fate(Outcome::new(Fate::LateAcked, number, record));
                } else {
                    sums.add(number, largest, after, record);
                    fate(Outcome::new(Fate::Acked, number, record));
                }
            });
            acked.map_err(|Skipped| never_sent())?;
        }
        Ok(sums)
    }

    fn update_rtt(&mut self, space: Space, now: Time, sample: Duration, delay: Duration) {
        // The delay of Initial packets is ignored, and until the handshake is confirmed a peer may wait longer than it said
        // (RFC 9002, section 5.3).
        let delay = match space {
            Space::Initial => Duration::ZERO,
            _ if self.handshake.confirmed => delay.min(self.max_ack_delay),
            _ => delay,
        };
        self.path.rtt.update(sample, delay);
        self.path.first_sample.get_or_insert(now);
    }

    fn check_ecn(&mut self, space: Space, now: Time, ack: &Ack, sums: &Sums) {
        let Some(state) = self.spaces.get_mut(space) else { return };
        if self.path.ecn.on_ack(sums.marked, ack.ecn, state.sent_ect, &mut state.ecn)
            && let Some(sent) = sums.largest_sent
        {
            self.stats.congestion_marks += 1;
            self.path.on_marked(now, sent);
        }
    }
}

fn never_sent() -> Error {
    Error::new(Code::PROTOCOL_VIOLATION, "acknowledgment of a packet number that was skipped")
}
