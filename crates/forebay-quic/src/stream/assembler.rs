//! Content that arrives in any order, put in order. Hot path.

use super::segments::{SMALL, Segments, skip};
use bytes::Bytes;

/// Most gaps in what has arrived.
pub const GAPS: u32 = 1000;

/// There are more than [`GAPS`] gaps in what has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyGaps;

/// Bytes of a stream that have arrived and have not been read.
///
/// Bytes in order are neither copied nor moved. Bytes that come again are dropped: the first ones count. Short pieces that would hold a
/// whole datagram each are copied, so that the memory is bounded by the bytes and the gaps. Who owns it bounds the bytes, by flow control.
#[derive(Debug, Default)]
pub struct Assembler {
    /// Those before `end` follow each other; gaps are in front of and between the others.
    pieces: Segments,
    /// Offset of the next byte that is read.
    read: u64,
    /// Offset of the first byte that has not arrived.
    end: u64,
    gaps: u32,
}

impl Assembler {
    /// Creates it for a stream from its first byte on. It has no memory.
    pub const fn new() -> Assembler {
        Assembler { pieces: Segments::new(), read: 0, end: 0, gaps: 0 }
    }

    /// Returns the offset of the next byte that is read.
    pub const fn offset(&self) -> u64 {
        self.read
    }

    /// Returns the offset of the first byte that has not arrived.
    pub const fn end(&self) -> u64 {
        self.end
    }

    /// Returns `true` if the next byte has arrived.
    pub const fn is_readable(&self) -> bool {
        self.read < self.end
    }

    /// Returns `true` if bytes have arrived of which some before them are missing.
    pub const fn has_gaps(&self) -> bool {
        self.gaps > 0
    }

    /// Adds bytes from an offset on.
    ///
    /// # Errors
    /// There would be too many gaps.
    #[inline]
    pub fn insert(&mut self, offset: u64, mut data: Bytes) -> Result<(), TooManyGaps> {
        let known = self.end.saturating_sub(offset);
        if known >= data.len() as u64 {
            return Ok(());
        }
        skip(&mut data, known);
        let offset = offset + known;
        if self.gaps > 0 || offset != self.end {
            return self.insert_later(offset, data);
        }
        self.end += data.len() as u64;
        match data.len() < SMALL && !self.pieces.is_empty() {
            true => self.pieces.push_copy(offset, &data),
            false => self.pieces.push(offset, data),
        }
        Ok(())
    }

    /// Adds bytes where some before them are missing, or behind them are pieces.
    fn insert_later(&mut self, mut offset: u64, mut data: Bytes) -> Result<(), TooManyGaps> {
        let at = self.pieces.count_from(offset);
        let before = self.end_before(at);
        if before > offset {
            skip(&mut data, before - offset);
            offset = before;
        }
        if data.is_empty() {
            return Ok(());
        }
        let mut to = self.pieces.count_from((offset + data.len() as u64).saturating_sub(1)).max(at);
        if let Some(last) =
            to.checked_sub(1).filter(|last| *last >= at).and_then(|last| self.pieces.get(last))
            && last.end() >= offset + data.len() as u64
        {
            data.truncate(usize::try_from(last.start().saturating_sub(offset)).unwrap_or(0));
            to -= 1;
        }
        if data.is_empty() {
            return Ok(());
        }
        let end = offset + data.len() as u64;
        self.gaps = self.gaps_with(at, to, offset, end)?;
        if to > at {
            data = self.pieces.lay_over(at..to, offset, &data);
        }
        self.pieces.insert(at, offset, data);
        if offset == self.end {
            self.advance(end);
        }
        Ok(())
    }

    /// Returns the end of the bytes in front of a piece: that of the piece before it, or what has been read.
    fn end_before(&self, at: usize) -> u64 {
        let piece = at.checked_sub(1).and_then(|before| self.pieces.get(before));
        piece.map_or(self.end, |piece| piece.end())
    }

    /// Returns the number of gaps with bytes in place of the pieces `at..to`.
    fn gaps_with(&self, at: usize, to: usize, offset: u64, end: u64) -> Result<u32, TooManyGaps> {
        let closed = (at..=to).filter_map(|k| Some((self.pieces.get(k)?, k)));
        let closed = closed.filter(|(piece, k)| piece.start() > self.end_before(*k)).count();
        let in_front = u32::from(offset > self.end_before(at));
        let behind = u32::from(self.pieces.get(to).is_some_and(|next| next.start() > end));
        let gaps = self.gaps + in_front + behind - u32::try_from(closed).unwrap_or(self.gaps).min(self.gaps);
        if gaps > GAPS { Err(TooManyGaps) } else { Ok(gaps) }
    }

    /// Notes that all before `end` has arrived, and what follows it without a gap.
    fn advance(&mut self, end: u64) {
        self.end = end;
        let mut at = self.pieces.count_from(end.saturating_sub(1)).saturating_sub(1);
        while let Some(piece) = self.pieces.get(at).filter(|piece| piece.start() <= self.end) {
            self.end = self.end.max(piece.end());
            at += 1;
        }
    }

    /// Takes the next bytes: as many as lie together in memory, at most `max`.
    #[inline]
    pub fn read(&mut self, max: usize) -> Option<Bytes> {
        if !self.is_readable() {
            return None;
        }
        let bytes = self.pieces.take_first(max)?;
        self.read += bytes.len() as u64;
        Some(bytes)
    }

    /// Drops what has arrived.
    pub fn clear(&mut self) {
        self.pieces.clear();
        (self.read, self.gaps) = (self.end, 0);
    }

    /// Returns the number of pieces that are kept.
    #[cfg(test)]
    pub(super) fn pieces(&self) -> usize {
        self.pieces.len()
    }

    /// Returns the number of gaps.
    #[cfg(test)]
    pub(super) fn gaps(&self) -> u32 {
        self.gaps
    }
}
