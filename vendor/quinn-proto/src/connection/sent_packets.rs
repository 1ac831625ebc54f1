//! Packets in flight

use std::{collections::VecDeque, ops::Range};

use super::spaces::SentPacket;

/// Packets of one number space that are neither acknowledged nor lost, by packet number
///
/// Packet numbers only grow and are almost dense, and packets leave mostly at the front. A queue
/// with a place for each packet thus finds a number by its distance from the first one. Packets
/// that leave in the middle leave their place behind. Places are given back as soon as they are
/// at either end, or when more than a quarter of them are without a packet: the memory
/// depends on the packets in flight alone, no matter which of them a peer acknowledges.
#[derive(Debug, Default)]
pub(super) struct SentPackets {
    /// Places in the order of their packet numbers; neither the first nor the last is vacant
    places: VecDeque<Place>,
    /// Number of places without a packet
    vacant: usize,
}

#[derive(Debug)]
struct Place {
    number: u64,
    packet: Option<SentPacket>,
}

impl SentPackets {
    /// Vacant places that are tolerated in any case
    const MIN_VACANT: usize = 64;

    /// Places whose memory is kept when no packet is left
    const MIN_CAPACITY: usize = 64;

    /// Track `packet`, whose number must be larger than all before
    pub(super) fn insert(&mut self, number: u64, packet: SentPacket) {
        debug_assert!(self.places.back().is_none_or(|x| x.number < number));
        self.places.push_back(Place {
            number,
            packet: Some(packet),
        });
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    pub(super) fn get(&self, number: u64) -> Option<&SentPacket> {
        let place = self.places.get(self.lower_bound(number))?;
        match place.number == number {
            true => place.packet.as_ref(),
            false => None,
        }
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<SentPacket> {
        let index = self.lower_bound(number);
        let place = self.places.get_mut(index)?;
        if place.number != number {
            return None;
        }
        let packet = place.packet.take()?;
        self.vacant += 1;
        self.trim();
        Some(packet)
    }

    /// Remove the packets whose numbers are in `range`, and call `f` for each, in ascending order
    pub(super) fn remove_range(&mut self, range: Range<u64>, mut f: impl FnMut(u64, &SentPacket)) {
        let mut index = self.lower_bound(range.start);
        while let Some(place) = self.places.get_mut(index) {
            if place.number >= range.end {
                break;
            }
            if let Some(packet) = &place.packet {
                f(place.number, packet);
                place.packet = None;
                self.vacant += 1;
            }
            index += 1;
        }
        self.trim();
    }

    /// Whether there are packets whose numbers are in `range`
    pub(super) fn any_in(&self, range: Range<u64>) -> bool {
        let (Some(front), Some(back)) = (self.places.front(), self.places.back()) else {
            return false;
        };
        // Both places have a packet
        range.contains(&front.number)
            || range.contains(&back.number)
            || (front.number < range.start
                && range.end <= back.number
                && self.range(range).next().is_some())
    }

    /// Iterate over the packets whose numbers are in `range`, in ascending order
    pub(super) fn range(&self, range: Range<u64>) -> impl Iterator<Item = (u64, &SentPacket)> + '_ {
        self.places
            .range(self.lower_bound(range.start)..)
            .take_while(move |x| x.number < range.end)
            .filter_map(|x| Some((x.number, x.packet.as_ref()?)))
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &SentPacket> + '_ {
        self.places.iter().filter_map(|x| x.packet.as_ref())
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut SentPacket> + '_ {
        self.places.iter_mut().filter_map(|x| x.packet.as_mut())
    }

    pub(super) fn into_values(self) -> impl Iterator<Item = SentPacket> {
        self.places.into_iter().filter_map(|x| x.packet)
    }

    /// Number of places, with or without a packet
    #[cfg(test)]
    pub(super) fn places(&self) -> usize {
        self.places.len()
    }

    /// Index of the first place whose number is at least `number`
    fn lower_bound(&self, number: u64) -> usize {
        let Some(front) = self.places.front() else {
            return 0;
        };
        if number <= front.number {
            return 0;
        }
        let distance = number - front.number;
        // Numbers are distinct, thus no place further back than the distance can have the number.
        let limit =
            usize::try_from(distance).map_or(self.places.len(), |x| self.places.len().min(x));
        if self.places.get(limit).is_some_and(|x| x.number == number)
            || (limit == self.places.len() && self.places[limit - 1].number < number)
        {
            return limit;
        }
        self.places.partition_point(|x| x.number < number)
    }

    /// Give back the memory for more places than there are
    pub(super) fn shrink(&mut self) {
        self.places.shrink_to_fit();
    }

    /// Give back places that are not needed
    fn trim(&mut self) {
        while self.places.front().is_some_and(|x| x.packet.is_none()) {
            self.places.pop_front();
            self.vacant -= 1;
        }
        while self.places.back().is_some_and(|x| x.packet.is_none()) {
            self.places.pop_back();
            self.vacant -= 1;
        }
        if self.places.is_empty() {
            self.places.shrink_to(Self::MIN_CAPACITY);
        } else if self.vacant > Ord::max(self.places.len() / 4, Self::MIN_VACANT) {
            self.places.retain(|x| x.packet.is_some());
            self.vacant = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use rand::{RngExt, SeedableRng, rngs::StdRng};

    use super::*;
    use crate::{Instant, connection::spaces::ThinRetransmits, frame::StreamMetaVec};

    fn packet(size: u16) -> SentPacket {
        SentPacket {
            path_generation: 0,
            time_sent: Instant::now(),
            size,
            ack_eliciting: true,
            acked_below: 0,
            retransmits: ThinRetransmits::default(),
            stream_frames: StreamMetaVec::new(),
        }
    }

    /// Packets with the given numbers, and the numbers as their sizes
    fn packets(numbers: impl IntoIterator<Item = u64>) -> SentPackets {
        let mut packets = SentPackets::default();
        for number in numbers {
            packets.insert(number, packet(number as u16));
        }
        packets
    }

    fn numbers(packets: &SentPackets, range: Range<u64>) -> Vec<u64> {
        packets.range(range).map(|(number, _)| number).collect()
    }

    fn remove_range(packets: &mut SentPackets, range: Range<u64>) -> Vec<u64> {
        let mut numbers = Vec::new();
        packets.remove_range(range, |number, packet| {
            assert_eq!(packet.size, number as u16);
            numbers.push(number);
        });
        numbers
    }

    #[test]
    fn empty() {
        let mut packets = SentPackets::default();
        assert!(packets.get(0).is_none());
        assert!(packets.remove(0).is_none());
        assert_eq!(remove_range(&mut packets, 0..u64::MAX), []);
        assert_eq!(numbers(&packets, 0..u64::MAX), []);
        assert_eq!(packets.values().count(), 0);
        assert!(packets.is_empty());
        assert_eq!(packets.into_values().count(), 0);
    }

    #[test]
    fn skipped_numbers() {
        // A space may begin at any number, e.g. after a Retry.
        let mut packets = packets([5, 6, 8, 9, 17, 18]);
        for number in [0, 4, 7, 10, 16, 19, u64::MAX] {
            assert!(packets.get(number).is_none(), "{number}");
            assert!(packets.remove(number).is_none(), "{number}");
        }
        for number in [5, 6, 8, 9, 17, 18] {
            assert_eq!(packets.get(number).unwrap().size, number as u16);
        }
        assert_eq!(numbers(&packets, 0..u64::MAX), [5, 6, 8, 9, 17, 18]);
        assert_eq!(numbers(&packets, 6..9), [6, 8]);
        assert_eq!(numbers(&packets, 7..8), []);
        assert_eq!(numbers(&packets, 10..18), [17]);
        assert_eq!(numbers(&packets, 18..19), [18]);
        assert_eq!(numbers(&packets, 19..30), []);
    }

    #[test]
    fn removal() {
        let mut packets = packets(0..10);
        for number in [4, 0, 9, 5] {
            assert_eq!(packets.remove(number).unwrap().size, number as u16);
            assert!(packets.remove(number).is_none());
            assert!(packets.get(number).is_none());
        }
        assert_eq!(numbers(&packets, 0..10), [1, 2, 3, 6, 7, 8]);
        assert_eq!(remove_range(&mut packets, 4..8), [6, 7]);
        assert_eq!(remove_range(&mut packets, 4..8), []);
        assert_eq!(numbers(&packets, 3..9), [3, 8]);
        // A packet may follow after the last place was given back.
        assert_eq!(packets.remove(8).unwrap().size, 8);
        assert_eq!(packets.places.len(), 3);
        packets.insert(10, packet(10));
        assert_eq!(numbers(&packets, 0..11), [1, 2, 3, 10]);
        for x in packets.values_mut() {
            x.size = 0;
        }
        assert_eq!(packets.values().map(|x| x.size).sum::<u16>(), 0);
        assert_eq!(packets.into_values().count(), 4);
    }

    #[test]
    fn places_are_given_back() {
        // The first packet is never acknowledged, all others but the last one are.
        let mut packets = packets([0]);
        for number in 1..10_000 {
            packets.insert(number, packet(number as u16));
            packets.insert(number + 10_000_000, packet(2));
            assert!(packets.remove(number).is_some());
            assert!(packets.remove(number + 10_000_000).is_some());
        }
        assert_eq!(packets.places.len(), 1);
        for number in 10_000..20_000 {
            packets.insert(number, packet(number as u16));
            if number > 10_000 {
                assert!(packets.remove(number - 1).is_some());
            }
            assert!(packets.places.len() <= SentPackets::MIN_VACANT + 3);
        }
        assert_eq!(numbers(&packets, 0..u64::MAX), [0, 19_999]);

        // An idle connection keeps little.
        for number in 20_000..30_000 {
            packets.insert(number, packet(number as u16));
        }
        assert_eq!(remove_range(&mut packets, 0..u64::MAX).len(), 10_002);
        assert!(packets.places.capacity() <= 2 * SentPackets::MIN_CAPACITY);
        assert_eq!(packets.vacant, 0);
    }

    #[test]
    fn behaves_like_a_map() {
        let mut rng = StdRng::seed_from_u64(1);
        let mut packets = SentPackets::default();
        let mut map = BTreeMap::new();
        let mut next = 0;
        for _ in 0..100_000 {
            // Phases with few and with many packets
            let many = next % 4000 > 2000;
            match rng.random_range(0..if many { 6 } else { 12 }) {
                0..5 => {
                    next += u64::from(rng.random_ratio(1, 50)) * rng.random_range(0..300);
                    packets.insert(next, packet(next as u16));
                    map.insert(next, next as u16);
                    next += 1;
                }
                5..9 => {
                    let number = rng.random_range(next.saturating_sub(1000)..next + 2);
                    assert_eq!(
                        packets.get(number).map(|x| x.size),
                        map.get(&number).copied()
                    );
                    assert_eq!(packets.remove(number).map(|x| x.size), map.remove(&number));
                }
                _ => {
                    let start = rng.random_range(0..next + 2);
                    let range = start..start + rng.random_range(0..10);
                    assert_eq!(
                        numbers(&packets, range.clone()),
                        map.range(range.clone()).map(|x| *x.0).collect::<Vec<_>>()
                    );
                    assert_eq!(
                        packets.any_in(range.clone()),
                        map.range(range.clone()).next().is_some()
                    );
                    let removed = remove_range(&mut packets, range.clone());
                    assert!(removed.iter().eq(map.range(range).map(|x| x.0)));
                    for number in removed {
                        map.remove(&number);
                    }
                }
            }
            assert_eq!(packets.places.len(), map.len() + packets.vacant);
            assert!(packets.vacant <= Ord::max(packets.places.len() / 4, SentPackets::MIN_VACANT));
        }
        assert!(packets.values().map(|x| x.size).eq(map.values().copied()));
    }
}
