//! Sets of integers as a few ranges: packet numbers, and bytes of streams.

use std::ops::Range;

/// Set of integers, kept as disjoint ranges in ascending order with a gap between neighbours.
///
/// It is made for few ranges: where a peer decides how many there are, its user bounds [`len`](RangeSet::len). The largest range
/// lies in the set itself, so a set of one range needs no other memory. Memory of more ranges is kept until
/// [`shrink`](RangeSet::shrink).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RangeSet {
    /// The largest range. It is empty if the set is.
    last: Span,
    /// All other ranges.
    before: Vec<Span>,
}

/// A range that can be copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Span {
    start: u64,
    end: u64,
}

impl Span {
    fn is_empty(self) -> bool {
        self.start >= self.end
    }

    /// Returns the smallest range that covers both.
    fn cover(self, other: Span) -> Span {
        Span { start: self.start.min(other.start), end: self.end.max(other.end) }
    }
}

impl From<Span> for Range<u64> {
    fn from(span: Span) -> Range<u64> {
        span.start..span.end
    }
}

impl RangeSet {
    /// Creates an empty set.
    pub const fn new() -> RangeSet {
        RangeSet { last: Span { start: 0, end: 0 }, before: Vec::new() }
    }

    /// Returns `true` if nothing is in the set.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.last.is_empty()
    }

    /// Returns the number of ranges.
    #[inline]
    pub fn len(&self) -> usize {
        self.before.len() + usize::from(!self.is_empty())
    }

    /// Returns the number of integers.
    pub fn count(&self) -> u64 {
        self.iter().map(|range| range.end - range.start).sum()
    }

    /// Adds a range. Returns `true` if any of its integers is new.
    #[inline]
    pub fn insert(&mut self, range: Range<u64>) -> bool {
        let new = Span { start: range.start, end: range.end };
        if new.is_empty() {
            return false;
        }
        if self.is_empty() {
            self.last = new;
            return true;
        }
        if new.start > self.last.end {
            self.before.push(self.last);
            self.last = new;
            return true;
        }
        if new.end >= self.last.start && self.before.last().is_none_or(|before| before.end < new.start) {
            let whole = self.last.cover(new);
            return std::mem::replace(&mut self.last, whole) != whole;
        }
        self.insert_before(new)
    }

    /// Adds an integer. Returns `true` if it is new. `u64::MAX` cannot be added.
    #[inline]
    pub fn insert_one(&mut self, value: u64) -> bool {
        self.insert(value..value.saturating_add(1))
    }

    /// Adds a range that touches other ranges than the last, or none.
    fn insert_before(&mut self, new: Span) -> bool {
        self.before.push(self.last);
        // Ranges from `low` to `high` touch the new one.
        let low = self.before.partition_point(|range| range.end < new.start);
        let high = self.before.partition_point(|range| range.start <= new.end);
        let whole =
            self.before.get(low..high).unwrap_or_default().iter().fold(new, |all, one| all.cover(*one));
        let mut changed = true;
        match self.before.get_mut(low) {
            Some(first) if low < high => {
                changed = *first != whole;
                *first = whole;
                self.before.drain(low + 1..high);
            }
            _ => self.before.insert(low, whole),
        }
        self.last = self.before.pop().unwrap_or_default();
        changed
    }

    /// Takes a range out. Returns `true` if any of its integers was in the set.
    pub fn remove(&mut self, range: Range<u64>) -> bool {
        let gone = Span { start: range.start, end: range.end };
        if gone.is_empty() || gone.start >= self.last.end {
            return false;
        }
        // Ranges from `low` to `high` lose something. The last one counts as if it lay behind the others.
        let low = self.before.partition_point(|range| range.end <= gone.start);
        let high = self.before.partition_point(|range| range.start < gone.end);
        if high == self.before.len() && gone.end > self.last.start {
            return self.remove_last(low, gone);
        }
        let (Some(first), Some(last)) =
            (self.before.get(low).copied(), self.before.get(high.wrapping_sub(1)))
        else {
            return false;
        };
        if low >= high {
            return false;
        }
        let left = Span { start: first.start, end: gone.start };
        let right = Span { start: gone.end, end: last.end };
        let mut at = low;
        for piece in [left, right].into_iter().filter(|piece| !piece.is_empty()) {
            match self.before.get_mut(at) {
                Some(place) if at < high => *place = piece,
                _ => self.before.insert(at, piece),
            }
            at += 1;
        }
        if at < high {
            self.before.drain(at..high);
        }
        true
    }

    /// Takes out a range that covers a part of the last one and all others from `low` on.
    fn remove_last(&mut self, low: usize, gone: Span) -> bool {
        let start = self.before.get(low).map_or(self.last.start, |first| first.start);
        let left = Span { start, end: gone.start };
        let right = Span { start: gone.end, end: self.last.end };
        self.before.truncate(low);
        match (left.is_empty(), right.is_empty()) {
            (false, false) => {
                self.before.push(left);
                self.last = right;
            }
            (false, true) => self.last = left,
            (true, false) => self.last = right,
            (true, true) => self.last = self.before.pop().unwrap_or_default(),
        }
        true
    }

    /// Takes out everything below a value. Returns `true` if there was anything.
    pub fn remove_below(&mut self, value: u64) -> bool {
        self.remove(0..value)
    }

    /// Returns `true` if a value is in the set.
    #[inline]
    pub fn contains(&self, value: u64) -> bool {
        self.contains_all(value..value.saturating_add(1))
    }

    /// Returns `true` if all of a range that is not empty is in the set.
    #[inline]
    pub fn contains_all(&self, range: Range<u64>) -> bool {
        let holder = if range.start >= self.last.start {
            self.last
        } else {
            let at = self.before.partition_point(|before| before.end <= range.start);
            self.before.get(at).copied().unwrap_or_default()
        };
        range.start < range.end && holder.start <= range.start && range.end <= holder.end
    }

    /// Returns the ranges in ascending order; `rev` gives the descending one.
    pub fn iter(&self) -> impl DoubleEndedIterator<Item = Range<u64>> + '_ {
        let last = (!self.is_empty()).then_some(self.last);
        self.before.iter().copied().chain(last).map(Range::from)
    }

    /// Returns the range with the smallest integers.
    #[inline]
    pub fn first(&self) -> Option<Range<u64>> {
        self.before.first().copied().map(Range::from).or_else(|| self.last())
    }

    /// Returns the range with the largest integers.
    #[inline]
    pub fn last(&self) -> Option<Range<u64>> {
        (!self.is_empty()).then(|| self.last.into())
    }

    /// Returns the smallest integer.
    pub fn min(&self) -> Option<u64> {
        self.first().map(|range| range.start)
    }

    /// Returns the largest integer.
    pub fn max(&self) -> Option<u64> {
        self.last().map(|range| range.end - 1)
    }

    /// Takes out the range with the smallest integers.
    pub fn pop_min(&mut self) -> Option<Range<u64>> {
        if self.before.is_empty() {
            let last = self.last();
            self.last = Span::default();
            return last;
        }
        Some(self.before.remove(0).into())
    }

    /// Takes out the range with the largest integers.
    pub fn pop_max(&mut self) -> Option<Range<u64>> {
        let last = self.last();
        self.last = self.before.pop().unwrap_or_default();
        last
    }

    /// Takes everything out and keeps the memory.
    pub fn clear(&mut self) {
        self.last = Span::default();
        self.before.clear();
    }

    /// Gives back memory that is not used.
    pub fn shrink(&mut self) {
        self.before.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(ranges: &[Range<u64>]) -> RangeSet {
        let mut set = RangeSet::new();
        for range in ranges {
            set.insert(range.clone());
        }
        set
    }

    /// Returns begins and ends.
    fn list(set: &RangeSet) -> Vec<(u64, u64)> {
        set.iter().map(|range| (range.start, range.end)).collect()
    }

    #[test]
    fn neighbours_become_one() {
        let mut s = RangeSet::new();
        assert!(s.insert_one(5) && s.insert_one(6) && !s.insert_one(5) && !s.insert(7..7));
        assert_eq!(list(&s), [(5, 7)]);
        assert!(s.insert(8..9) && s.insert(3..4) && s.insert(7..8));
        assert_eq!(list(&s), [(3, 4), (5, 9)]);
        assert_eq!((s.len(), s.count(), s.min(), s.max()), (2, 5, Some(3), Some(8)));
        assert!(s.insert(0..20) && !s.insert(3..9));
        assert_eq!(list(&s), [(0, 20)]);
    }

    #[test]
    fn one_range_needs_no_other_memory() {
        let mut s = RangeSet::new();
        for value in 0..100 {
            s.insert_one(value);
            s.insert(value * 3..value * 3 + 4);
        }
        assert!(s.remove(0..50) && s.remove(250..400) && s.insert(40..60));
        assert_eq!((list(&s), s.before.capacity()), (vec![(40, 250)], 0));
    }

    #[test]
    fn both_ends_can_be_taken() {
        let mut s = set(&[1..2, 4..6, 9..12]);
        assert_eq!((s.first(), s.last()), (Some(1..2), Some(9..12)));
        assert_eq!(s.iter().rev().collect::<Vec<_>>(), [9..12, 4..6, 1..2]);
        assert_eq!(
            (s.pop_min(), s.pop_max(), s.pop_max(), s.pop_min()),
            (Some(1..2), Some(9..12), Some(4..6), None)
        );
        assert_eq!((s.first(), s.min(), s.max(), s.pop_max(), s.len()), (None, None, None, None, 0));
        s.shrink();
        assert_eq!(s.before.capacity(), 0);
    }

    #[test]
    fn values_at_the_end_of_the_numbers() {
        let mut s = RangeSet::new();
        assert!(s.insert_one(u64::MAX - 1) && !s.insert_one(u64::MAX));
        assert!(s.contains(u64::MAX - 1) && !s.contains(u64::MAX));
        assert!(s.remove(0..u64::MAX) && s.is_empty());
    }

    /// Random operations give the same as a table of bits.
    #[test]
    fn agrees_with_a_table() {
        const SIZE: u64 = 48;
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = |below: u64| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % below
        };
        let (mut s, mut table) = (RangeSet::new(), [false; SIZE as usize]);
        for _ in 0..20_000 {
            let start = next(SIZE);
            let range = start..(start + next(8)).min(SIZE);
            let insert = next(5) < 3;
            let mut changed = false;
            for value in range.clone() {
                changed |= table[value as usize] != insert;
                table[value as usize] = insert;
            }
            let all = range.clone().all(|value| table[value as usize]) && !range.is_empty();
            assert_eq!(if insert { s.insert(range.clone()) } else { s.remove(range.clone()) }, changed);
            assert_eq!(s.contains_all(range), all);
            for value in 0..SIZE {
                assert_eq!(s.contains(value), table[value as usize], "{value} of {s:?}");
            }
            let ranges = list(&s);
            assert!(ranges.iter().all(|range| range.0 < range.1));
            assert!(ranges.windows(2).all(|pair| pair[0].1 < pair[1].0), "{ranges:?}");
            if next(200) == 0 {
                s.clear();
                table = [false; SIZE as usize];
            }
        }
    }
}
