//! Packets of a packet number space that were sent and whose fate is not known yet. Hot path.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use crate::time::Time;

/// Set of properties of a sent packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Flags(u8);

impl Flags {
    pub(super) const ACK_ELICITING: Flags = Flags(1);
    /// It counts for the bytes in flight of the path that is in use.
    pub(super) const IN_FLIGHT: Flags = Flags(1 << 1);
    /// It tries a larger size of datagrams. Its loss is no sign of congestion.
    pub(super) const MTU_PROBE: Flags = Flags(1 << 2);
    /// It was marked with ECT(0).
    pub(super) const ECT: Flags = Flags(1 << 3);
    /// It was sent on a path that is not in use any more.
    pub(super) const OTHER_PATH: Flags = Flags(1 << 4);
    /// It is acknowledged, or nobody wants to know. Nothing else is set then.
    const GONE: Flags = Flags(1 << 5);
    /// It is declared lost, and kept for the case that it arrived nevertheless.
    const LOST: Flags = Flags(1 << 6);
    /// The number was skipped: no packet has it.
    const SKIPPED: Flags = Flags(1 << 7);

    pub(super) const fn has(self, other: Flags) -> bool {
        self.0 & other.0 != 0
    }

    #[must_use]
    pub(super) const fn with(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }

    /// Returns the flags with `other` if the condition holds.
    #[must_use]
    pub(super) const fn with_if(self, other: Flags, condition: bool) -> Flags {
        if condition { self.with(other) } else { self }
    }

    #[must_use]
    pub(super) const fn without(self, other: Flags) -> Flags {
        Flags(self.0 & !other.0)
    }
}

/// Sent packet as it is remembered.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record<C> {
    /// Nanoseconds at which it was sent. If it is gone: the last number of a run of packets that are gone.
    at: u64,
    pub(super) content: C,
    pub(super) size: u16,
    pub(super) flags: Flags,
}

impl<C> Record<C> {
    pub(super) fn new(time: Time, content: C, size: u16, flags: Flags) -> Record<C> {
        Record { at: time.as_nanos(), content, size, flags }
    }

    pub(super) fn time(&self) -> Time {
        Time::from_nanos(self.at)
    }

    /// Returns `true` if it is declared lost.
    pub(super) fn is_lost(&self) -> bool {
        self.flags.has(Flags::LOST)
    }

    fn is_live(&self) -> bool {
        !self.flags.has(Flags(Flags::GONE.0 | Flags::LOST.0 | Flags::SKIPPED.0))
    }
}

/// Acknowledgment of a number that no packet has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Skipped;

/// What a step of loss detection says about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Lost,
    /// Neither it nor any later packet is lost.
    Stop,
}

/// Ring of packets with contiguous numbers.
///
/// Each number has a place, so that it is found by its distance from the first one. Places are given back at the front only.
/// A packet that is gone earlier leaves its place behind, which holds how far the run of such places reaches: ranges that a peer
/// acknowledges again and again are skipped in one step.
#[derive(Debug)]
pub(super) struct Sent<C> {
    places: VecDeque<Record<C>>,
    /// Number of the first place.
    first: u64,
    /// All packets with smaller numbers are gone or lost.
    undecided: u64,
}

impl<C: Copy> Sent<C> {
    pub(super) fn new() -> Sent<C> {
        Sent { places: VecDeque::new(), first: 0, undecided: 0 }
    }

    /// Returns the smallest number that has a place.
    pub(super) fn first(&self) -> u64 {
        self.first
    }

    /// Returns the number behind the last place.
    fn end(&self) -> u64 {
        self.first + self.places.len() as u64
    }

    /// Adds a packet. Its number is larger than all before; the numbers between are skipped.
    pub(super) fn push(&mut self, number: u64, record: Record<C>) {
        if self.places.is_empty() {
            self.first = number;
        }
        while self.end() < number {
            self.places.push_back(Record { flags: Flags::SKIPPED, ..record });
        }
        self.places.push_back(record);
    }

    /// Notes a packet that needs neither content nor acknowledgment.
    pub(super) fn push_gone(&mut self, number: u64, content: C) {
        if !self.places.is_empty() {
            self.push(number, Record { at: number, content, size: 0, flags: Flags::GONE });
        }
    }

    fn get_mut(&mut self, number: u64) -> Option<&mut Record<C>> {
        self.places.get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    /// Takes the packets of a range out and gives them to `acked`, in ascending order. Packets that were declared lost are
    /// among them.
    pub(super) fn acknowledge(
        &mut self,
        range: RangeInclusive<u64>,
        mut acked: impl FnMut(u64, &Record<C>),
    ) -> Result<(), Skipped> {
        let (begin, end) = (self.first.max(*range.start()), *range.end());
        let mut number = begin;
        while number <= end {
            let Some(record) = self.get_mut(number) else { break };
            if record.flags.has(Flags::GONE) {
                number = record.at + 1;
                continue;
            }
            if record.flags.has(Flags::SKIPPED) {
                return Err(Skipped);
            }
            let packet = *record;
            record.flags = Flags::GONE;
            record.at = number;
            acked(number, &packet);
            number += 1;
        }
        let run_end = number.saturating_sub(1);
        if let Some(record) = self.get_mut(begin)
            && record.flags.has(Flags::GONE)
            && run_end > record.at
        {
            record.at = run_end;
            record.size = record.size.max(1);
        }
        Ok(())
    }

    /// Asks `judge` about the packets whose fate is open and whose numbers are at most `largest`, in ascending order, and marks
    /// those that are lost. `judge` gets `None` for packets that are acknowledged.
    pub(super) fn detect(&mut self, largest: u64, mut judge: impl FnMut(u64, Option<&Record<C>>) -> Verdict) {
        let mut number = self.undecided.max(self.first);
        while number <= largest {
            let Some(record) = self.get_mut(number) else { break };
            if record.flags.has(Flags::GONE) {
                // Only packets that nobody had to acknowledge have no size.
                let acknowledged = record.size != 0;
                number = record.at + 1;
                if acknowledged {
                    judge(number, None);
                }
                continue;
            }
            if record.is_live() {
                if judge(number, Some(record)) == Verdict::Stop {
                    break;
                }
                record.flags = record.flags.with(Flags::LOST);
            }
            number += 1;
        }
        self.undecided = number;
    }

    /// Gives places at the front back whose packets are gone. Packets that were lost have to be sent before `lost_before`.
    pub(super) fn trim(&mut self, lost_before: Time) {
        while let Some(front) = self.places.front() {
            if front.is_live() || (front.is_lost() && front.time() >= lost_before) {
                return;
            }
            self.places.pop_front();
            self.first += 1;
        }
    }

    /// Iterates over the packets whose fate is open, the oldest first.
    pub(super) fn live(&self) -> impl Iterator<Item = &Record<C>> {
        let from = usize::try_from(self.undecided.saturating_sub(self.first)).unwrap_or(usize::MAX);
        self.places.range(from.min(self.places.len())..).filter(|x| x.is_live())
    }

    /// Iterates over the packets whose fate is open.
    pub(super) fn live_mut(&mut self) -> impl Iterator<Item = &mut Record<C>> {
        self.places.iter_mut().filter(|x| x.is_live())
    }

    /// Takes all packets out and gives those whose fate is open to `f`.
    pub(super) fn clear(&mut self, mut f: impl FnMut(u64, &Record<C>)) {
        let end = self.end();
        for (number, record) in (self.first..).zip(&self.places) {
            if record.is_live() {
                f(number, record);
            }
        }
        self.places.clear();
        self.first = end;
    }

    /// Gives memory back that is not needed now.
    pub(super) fn shrink(&mut self) {
        self.places.shrink_to_fit();
    }

    #[cfg(test)]
    pub(super) fn places(&self) -> usize {
        self.places.len()
    }

    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.places.capacity()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::congestion::mix;

    fn record(number: u64) -> Record<u64> {
        Record::new(Time::from_nanos(number), number, 1, Flags::ACK_ELICITING)
    }

    fn acknowledge(sent: &mut Sent<u64>, range: RangeInclusive<u64>) -> Result<Vec<u64>, Skipped> {
        let mut numbers = Vec::new();
        sent.acknowledge(range, |number, record| {
            assert_eq!(record.content, number);
            numbers.push(number);
        })?;
        Ok(numbers)
    }

    #[test]
    fn repeated_ranges_are_skipped() {
        let mut sent = Sent::new();
        for number in 0..10_000 {
            sent.push(number, record(number));
        }
        // The first packet stays, so that no place is given back.
        for end in 1..10_000u64 {
            assert_eq!(acknowledge(&mut sent, 1..=end), Ok(vec![end]));
            let start = sent.get_mut(1).expect("a place");
            assert_eq!((start.at, start.size), (end, 1));
        }
        sent.trim(Time::default());
        assert_eq!((sent.first(), sent.places()), (0, 10_000));
        assert_eq!(acknowledge(&mut sent, 0..=10_005), Ok(vec![0]));
        sent.trim(Time::default());
        assert_eq!((sent.first(), sent.places()), (10_000, 0));
    }

    #[test]
    fn skipped_numbers_have_no_packet() {
        let mut sent = Sent::new();
        sent.push(5, record(5));
        sent.push(8, record(8));
        assert_eq!(acknowledge(&mut sent, 6..=6), Err(Skipped));
        assert_eq!(acknowledge(&mut sent, 8..=8), Ok(vec![8]));
        assert_eq!(acknowledge(&mut sent, 0..=5), Ok(vec![5]));
        sent.trim(Time::default());
        assert_eq!(sent.places(), 0);
    }

    /// State of a packet in the model.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Model {
        Open,
        Lost,
    }

    /// Compares with a map: random ranges are acknowledged, old packets are lost.
    #[test]
    fn behaves_like_a_map() {
        let mut random = 1;
        let mut draw = |n: u64| {
            random = mix(random);
            random % n
        };
        let (mut sent, mut map, mut next) = (Sent::new(), BTreeMap::new(), 0u64);
        for _ in 0..30_000 {
            match draw(8) {
                0..5 => {
                    if draw(10) == 0 {
                        sent.push_gone(next, next);
                    } else {
                        sent.push(next, record(next));
                        map.insert(next, Model::Open);
                    }
                    next += 1;
                }
                5 | 6 => {
                    let start = next.saturating_sub(draw(40));
                    let range = start..=(start + draw(20)).min(next);
                    let acked = acknowledge(&mut sent, range.clone()).expect("none is skipped");
                    let expected: Vec<_> = map.range(range.clone()).map(|x| *x.0).collect();
                    assert_eq!(acked, expected);
                    map.retain(|number, _| !range.contains(number));
                }
                _ => {
                    let largest = next.saturating_sub(draw(30));
                    sent.detect(largest, |number, record| match record {
                        Some(_) if number + 10 > largest => Verdict::Stop,
                        Some(_) => {
                            assert_eq!(map.insert(number, Model::Lost), Some(Model::Open));
                            Verdict::Lost
                        }
                        None => Verdict::Stop,
                    });
                    let forget = next.saturating_sub(100);
                    sent.trim(Time::from_nanos(forget));
                    let first = sent.first();
                    map.retain(|number, state| *state == Model::Open || *number >= first);
                    assert!(map.keys().all(|x| *x >= first));
                }
            }
            let open = map.iter().filter(|x| *x.1 == Model::Open).map(|x| *x.0);
            assert!(sent.live().map(|x| x.content).eq(open));
            assert!(sent.places() <= 300, "{}", sent.places());
        }
    }
}
