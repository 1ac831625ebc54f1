//! Packets that came, and when they are acknowledged (RFC 9000, section 13.2). Hot path.

use std::time::Duration;

use crate::ranges::RangeSet;
use crate::time::Time;

/// Ranges of packet numbers that are kept at most.
const MAX_RANGES: usize = 64;

/// Ack-eliciting packets that are acknowledged together (RFC 9000, section 13.2.2).
const ACK_EVERY: u8 = 2;

/// ECN field of the IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EcnMark {
    /// ECT(0).
    Ect0,
    /// ECT(1).
    Ect1,
    /// CE: the path is congested.
    Ce,
}

impl EcnMark {
    /// Returns the mark in the last two bits of the Traffic Class or TOS field, if there is one.
    pub const fn from_bits(bits: u8) -> Option<EcnMark> {
        match bits & 3 {
            1 => Some(EcnMark::Ect1),
            2 => Some(EcnMark::Ect0),
            3 => Some(EcnMark::Ce),
            _ => None,
        }
    }
}

/// Packets of a packet number space that came.
#[derive(Clone, Debug, Default)]
pub struct Acks {
    received: RangeSet,
    /// All smaller numbers count as received: it is forgotten which of them were.
    floor: u64,
    /// Time at which the packet with the largest number came.
    largest_time: Time,
    /// Number behind the largest ack-eliciting packet.
    eliciting_end: u64,
    /// Time at which an ACK frame is due.
    due: Option<Time>,
    /// Ack-eliciting packets since the last ACK frame.
    unacked: u8,
    /// Packets with ECT(0), ECT(1) and CE.
    ecn: [u64; 3],
}

impl Acks {
    /// Creates the state of a space without packets.
    pub fn new() -> Acks {
        Acks::default()
    }

    /// Returns `true` if a packet was received before, or if that is not known any more. Such a packet is to be dropped.
    pub fn is_duplicate(&self, number: u64) -> bool {
        number < self.floor || self.received.contains(number)
    }

    /// Notes a packet that is no duplicate and could be read. If it is ack-eliciting, an ACK frame is due after `max_delay`, or
    /// at once. `max_delay` is zero for Initial and Handshake packets.
    pub fn on_received(
        &mut self,
        number: u64,
        now: Time,
        ack_eliciting: bool,
        mark: Option<EcnMark>,
        max_delay: Duration,
    ) {
        if self.received.max().is_none_or(|largest| number > largest) {
            self.largest_time = now;
        }
        self.received.insert_one(number);
        while self.received.len() > MAX_RANGES {
            self.floor = self.received.pop_min().map_or(self.floor, |range| range.end);
        }
        if let Some(count) = mark.and_then(|mark| self.ecn.get_mut(mark as usize)) {
            *count += 1;
        }
        if ack_eliciting {
            let at_once = self.is_out_of_order(number) || mark == Some(EcnMark::Ce);
            self.eliciting_end = self.eliciting_end.max(number + 1);
            self.unacked = self.unacked.saturating_add(1);
            let due = if at_once || self.unacked >= ACK_EVERY { now } else { now + max_delay };
            self.due = Some(self.due.map_or(due, |x| x.min(due)));
        }
    }

    /// Tells whether the number is smaller than the one of an earlier ack-eliciting packet, or packets between are missing.
    fn is_out_of_order(&self, number: u64) -> bool {
        number < self.eliciting_end
            || self.received.last().is_some_and(|last| last.start > self.eliciting_end)
    }

    /// Returns `true` if an ACK frame is to be sent now, even in a packet of its own.
    pub fn is_due(&self, now: Time) -> bool {
        self.due.is_some_and(|due| due <= now)
    }

    /// Returns when an ACK frame is to be sent.
    pub fn deadline(&self) -> Option<Time> {
        self.due
    }

    /// Returns `true` if an ack-eliciting packet came since the last ACK frame, so that one is worth its bytes in a packet that
    /// is sent anyway.
    pub fn has_news(&self) -> bool {
        self.unacked != 0
    }

    /// Returns the packet numbers to acknowledge.
    pub fn ranges(&self) -> &RangeSet {
        &self.received
    }

    /// Returns the largest packet number that came and may be acknowledged.
    pub fn largest(&self) -> Option<u64> {
        self.received.max()
    }

    /// Returns the time since the packet with the largest number came.
    pub fn delay(&self, now: Time) -> Duration {
        now.since(self.largest_time)
    }

    /// Returns the counts of ECN if any packet had a mark.
    pub fn ecn(&self) -> Option<[u64; 3]> {
        (self.ecn != [0; 3]).then_some(self.ecn)
    }

    /// Notes that an ACK frame was sent.
    pub fn on_sent(&mut self) {
        self.due = None;
        self.unacked = 0;
    }

    /// Notes that the peer received an ACK frame with that largest number. It needs the ranges below no more (RFC 9000, section
    /// 13.2.4). The newest range stays.
    pub fn on_acked(&mut self, largest: u64) {
        while self.received.len() > 1
            && let Some(first) = self.received.first()
            && first.end <= largest
        {
            self.received.pop_min();
            // What is missing below the next range may be lost, but for certain it does not come twice.
            self.floor = self.received.min().unwrap_or(first.end);
        }
    }

    /// Gives memory that is not needed back.
    pub fn shrink(&mut self) {
        self.received.shrink();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::congestion::mix;

    const DELAY: Duration = Duration::from_millis(25);
    const START: Time = Time::from_nanos(1_000_000_000);

    fn receive(acks: &mut Acks, number: u64) {
        acks.on_received(number, START, true, None, DELAY);
    }

    /// Returns whether an ACK frame is due after a packet, and notes that it was sent.
    fn is_due_after(acks: &mut Acks, number: u64) -> bool {
        receive(acks, number);
        let due = acks.is_due(START);
        acks.on_sent();
        due
    }

    #[test]
    fn every_second_packet_is_acknowledged_at_once() {
        let mut acks = Acks::new();
        receive(&mut acks, 0);
        assert_eq!((acks.is_due(START), acks.deadline()), (false, Some(START + DELAY)));
        assert!(acks.has_news() && acks.is_due(START + DELAY));
        receive(&mut acks, 1);
        assert!(acks.is_due(START));
        acks.on_sent();
        assert_eq!((acks.has_news(), acks.deadline()), (false, None));
        assert_eq!(acks.delay(START + DELAY), DELAY);
        // The first deadline holds.
        acks.on_received(2, START, true, None, DELAY);
        acks.on_received(3, START + DELAY / 2, false, None, DELAY);
        assert_eq!(acks.deadline(), Some(START + DELAY));
    }

    #[test]
    fn other_packets_make_no_acknowledgment_due() {
        let mut acks = Acks::new();
        for number in [0, 1, 5, 3] {
            acks.on_received(number, START, false, None, DELAY);
        }
        assert_eq!((acks.has_news(), acks.deadline()), (false, None));
        assert_eq!(acks.ranges().len(), 3);
    }

    #[test]
    fn disorder_is_reported_at_once() {
        let mut acks = Acks::new();
        assert!(!is_due_after(&mut acks, 0));
        assert!(is_due_after(&mut acks, 2));
        assert!(!is_due_after(&mut acks, 3));
        assert!(is_due_after(&mut acks, 1));
        assert!(!is_due_after(&mut acks, 4));
        // Packets between that are not ack-eliciting are not missing.
        acks.on_received(5, START, false, None, DELAY);
        assert!(!is_due_after(&mut acks, 6));
        // The first packet may be missing, too.
        assert!(is_due_after(&mut Acks::new(), 1));
        acks.on_received(7, START, true, Some(EcnMark::Ce), DELAY);
        assert!(acks.is_due(START));
        let mut handshake = Acks::new();
        handshake.on_received(0, START, true, None, Duration::ZERO);
        assert!(handshake.is_due(START));
    }

    #[test]
    fn marks_are_counted() {
        let mut acks = Acks::new();
        assert_eq!(acks.ecn(), None);
        for (bits, number) in [2, 0, 2, 3, 1, 2].into_iter().zip(0..) {
            acks.on_received(number, START, true, EcnMark::from_bits(bits), DELAY);
        }
        assert_eq!(acks.ecn(), Some([3, 1, 1]));
    }

    #[test]
    fn acknowledged_ranges_are_forgotten() {
        let mut acks = Acks::new();
        for number in [0, 1, 5, 6, 9] {
            receive(&mut acks, number);
        }
        acks.on_acked(6);
        assert_eq!(acks.ranges().iter().collect::<Vec<_>>(), [5..7, 9..10]);
        for (number, expected) in [(0, true), (3, true), (5, true), (7, false), (8, false), (9, true)] {
            assert_eq!(acks.is_duplicate(number), expected, "{number}");
        }
        acks.on_acked(9);
        acks.on_acked(9);
        assert_eq!((acks.ranges().len(), acks.largest()), (1, Some(9)));
    }

    #[test]
    fn no_packet_is_taken_twice() {
        let (mut acks, mut random) = (Acks::new(), 1);
        let mut taken = std::collections::HashSet::new();
        for step in 0..50_000u64 {
            random = mix(random);
            let number = step.saturating_sub(random % 500);
            if !acks.is_duplicate(number) {
                receive(&mut acks, number);
                assert!(taken.insert(number), "{number}");
            }
            if random.is_multiple_of(97) {
                acks.on_acked(number);
            }
            assert!(acks.ranges().len() <= MAX_RANGES);
        }
        assert!(taken.len() > 10_000, "{}", taken.len());
    }
}
