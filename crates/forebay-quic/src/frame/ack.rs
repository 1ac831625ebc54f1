//! ACK frames (RFC 9000, section 19.3).

use std::ops::RangeInclusive;

use super::kind;
use crate::ranges::RangeSet;
use crate::varint::{Reader, len, push};

/// ACK frame whose ranges are known to be well-formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AckFrame<'b> {
    /// Largest packet number that is acknowledged.
    pub largest: u64,
    /// Delay as it was sent: it counts in units of 2^`ack_delay_exponent` microseconds.
    pub delay: u64,
    /// Number of packets that arrived with ECT(0), ECT(1) and CE.
    pub ecn: Option<[u64; 3]>,
    /// Length of the first range less one.
    first: u64,
    /// Gaps and lengths of all other ranges.
    more: &'b [u8],
}

impl<'b> AckFrame<'b> {
    /// Reads what follows the type of the frame. Returns `None` if it is malformed.
    #[inline]
    pub fn read(reader: &mut Reader<'b>, with_ecn: bool) -> Option<AckFrame<'b>> {
        let largest = reader.varint()?;
        let delay = reader.varint()?;
        let count = reader.varint()?;
        let first = reader.varint()?;
        let mut smallest = largest.checked_sub(first)?;
        let mut ahead = *reader;
        // Each turn takes two bytes, however large the count is.
        for _ in 0..count {
            let range = next_range(&mut ahead, smallest)?;
            smallest = *range.start();
        }
        let more = reader.bytes(ahead.position() - reader.position())?;
        let ecn = if with_ecn { Some([reader.varint()?, reader.varint()?, reader.varint()?]) } else { None };
        Some(AckFrame { largest, delay, ecn, first, more })
    }

    /// Appends the frame.
    pub(super) fn push(&self, out: &mut Vec<u8>) {
        out.push(if self.ecn.is_some() { kind::ACK_ECN } else { kind::ACK } as u8);
        push(out, self.largest);
        push(out, self.delay);
        push(out, self.ranges().count() as u64 - 1);
        push(out, self.first);
        out.extend_from_slice(self.more);
        for count in self.ecn.into_iter().flatten() {
            push(out, count);
        }
    }

    /// Returns the acknowledged packet numbers in descending order.
    #[inline]
    pub fn ranges(&self) -> AckRanges<'b> {
        AckRanges {
            first: Some(self.largest.saturating_sub(self.first)..=self.largest),
            smallest: self.largest.saturating_sub(self.first),
            more: Reader::new(self.more),
        }
    }
}

/// Reads the range that lies below a smallest packet number. Returns `None` if it would be negative.
#[inline]
fn next_range(reader: &mut Reader<'_>, smallest: u64) -> Option<RangeInclusive<u64>> {
    let gap = reader.varint()?;
    let length = reader.varint()?;
    let end = smallest.checked_sub(gap + 2)?;
    Some(end.checked_sub(length)?..=end)
}

/// Iterator over ranges of packet numbers from the largest down.
#[derive(Clone, Debug)]
pub struct AckRanges<'b> {
    first: Option<RangeInclusive<u64>>,
    smallest: u64,
    more: Reader<'b>,
}

impl Iterator for AckRanges<'_> {
    type Item = RangeInclusive<u64>;

    #[inline]
    fn next(&mut self) -> Option<RangeInclusive<u64>> {
        if let Some(first) = self.first.take() {
            return Some(first);
        }
        let range = next_range(&mut self.more, self.smallest)?;
        self.smallest = *range.start();
        Some(range)
    }
}

/// Appends an ACK frame of at most `room` bytes with the largest ranges of a set. Returns the number of ranges in it. That is 0, and
/// nothing is appended, if there is no room for one.
///
/// `delay` counts in units of 2^`ack_delay_exponent` microseconds.
pub fn push_ack(
    out: &mut Vec<u8>,
    ranges: &RangeSet,
    delay: u64,
    ecn: Option<[u64; 3]>,
    room: usize,
) -> usize {
    let Some(last) = ranges.last() else { return 0 };
    let largest = last.end - 1;
    let first = largest - last.start;
    let counts = ecn.map_or(0, |counts| counts.into_iter().map(len).sum());
    let fixed = 1 + len(largest) + len(delay) + len(first) + len(ranges.len() as u64 - 1) + counts;
    let Some(room) = room.checked_sub(fixed) else { return 0 };
    let more = fitting(ranges, room);
    out.push(if ecn.is_some() { kind::ACK_ECN } else { kind::ACK } as u8);
    push(out, largest);
    push(out, delay);
    push(out, more as u64);
    push(out, first);
    for (gap, length) in gaps(ranges).take(more) {
        push(out, gap);
        push(out, length);
    }
    for count in ecn.into_iter().flatten() {
        push(out, count);
    }
    more + 1
}

/// Returns how many ranges below the last one fit into a number of bytes.
fn fitting(ranges: &RangeSet, mut room: usize) -> usize {
    gaps(ranges)
        .take_while(|(gap, length)| {
            let left = room.checked_sub(len(*gap) + len(*length));
            room = left.unwrap_or(0);
            left.is_some()
        })
        .count()
}

/// Returns gaps and lengths of the ranges below the last one as they are encoded.
fn gaps(ranges: &RangeSet) -> impl Iterator<Item = (u64, u64)> + '_ {
    let mut smallest = ranges.last().map_or(0, |last| last.start);
    ranges.iter().rev().skip(1).map(move |range| {
        let gap = smallest - range.end - 1;
        smallest = range.start;
        (gap, range.end - range.start - 1)
    })
}
