//! Content of a stream in memory: pieces by their offsets. Hot path.
//!
//! Memory that a stream no longer needs serves the next one of the thread, so that streams that come and go allocate nothing, and
//! streams without content hold nothing.

use bytes::{Buf, Bytes};
use std::cell::RefCell;
use std::collections::VecDeque;

/// Length from which on a piece is never copied behind another one, bytes.
pub(super) const SMALL: usize = 512;
/// Length up to which short pieces are put together, bytes.
pub(super) const BLOCK: usize = 8 * 1024;
/// Smallest buffer for short pieces, bytes.
const LEAST: usize = 256;
/// Most buffers, and most rings, that a thread keeps.
const KEPT: usize = 256;
/// Segments of the largest ring that a thread keeps.
const LARGEST: usize = 64;

thread_local! {
    static BUFFERS: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
    static RINGS: RefCell<Vec<VecDeque<Segment>>> = const { RefCell::new(Vec::new()) };
}

/// Memory of a piece.
#[derive(Debug)]
enum Data {
    /// A part of a datagram, or what the application gave.
    Shared(Bytes),
    /// Short pieces, put together.
    Own(Vec<u8>),
}

/// Bytes that follow each other.
#[derive(Debug)]
pub(super) struct Segment {
    start: u64,
    data: Data,
}

impl Segment {
    fn shared(start: u64, bytes: Bytes) -> Segment {
        Segment { start, data: Data::Shared(bytes) }
    }

    fn copy(start: u64, bytes: &[u8]) -> Segment {
        let mut buffer = take_buffer(bytes.len());
        buffer.extend_from_slice(bytes);
        Segment { start, data: Data::Own(buffer) }
    }

    fn bytes(&self) -> &[u8] {
        match &self.data {
            Data::Shared(bytes) => bytes,
            Data::Own(buffer) => buffer,
        }
    }

    /// Returns the offset of its first byte.
    pub(super) fn start(&self) -> u64 {
        self.start
    }

    /// Returns the offset behind its last byte.
    pub(super) fn end(&self) -> u64 {
        self.start + self.len() as u64
    }

    fn len(&self) -> usize {
        self.bytes().len()
    }

    /// Returns `true` if it consists of short pieces, and stays short enough with `more` bytes.
    fn may_append(&self, more: usize) -> bool {
        matches!(&self.data, Data::Own(buffer) if buffer.len() + more <= BLOCK)
    }

    /// Appends bytes. Returns `false` if that is not possible.
    fn append(&mut self, bytes: &[u8]) -> bool {
        let may = self.may_append(bytes.len());
        if may && let Data::Own(buffer) = &mut self.data {
            buffer.extend_from_slice(bytes);
        }
        may
    }

    fn free(self) {
        if let Data::Own(buffer) = self.data {
            give_buffer(buffer);
        }
    }
}

/// Segments in the order of their offsets. None overlaps another one.
#[derive(Debug, Default)]
pub(super) struct Segments(VecDeque<Segment>);

impl Segments {
    /// Creates it without memory.
    pub(super) const fn new() -> Segments {
        Segments(VecDeque::new())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn get(&self, at: usize) -> Option<&Segment> {
        self.0.get(at)
    }

    /// Returns the number of pieces that begin at or before an offset.
    pub(super) fn count_from(&self, offset: u64) -> usize {
        // Most often it is the end.
        match self.0.back() {
            Some(last) if last.start > offset => self.0.partition_point(|piece| piece.start <= offset),
            _ => self.0.len(),
        }
    }

    /// Appends bytes, without a copy.
    pub(super) fn push(&mut self, start: u64, bytes: Bytes) {
        self.lend_ring();
        self.0.push_back(Segment::shared(start, bytes));
    }

    /// Appends a copy of bytes.
    pub(super) fn push_copy(&mut self, start: u64, bytes: &[u8]) {
        if self.0.back_mut().is_some_and(|last| last.end() == start && last.append(bytes)) {
            return;
        }
        self.lend_ring();
        self.0.push_back(Segment::copy(start, bytes));
    }

    /// Inserts bytes at a position. Short ones are put together with the pieces that they touch.
    pub(super) fn insert(&mut self, at: usize, start: u64, bytes: Bytes) {
        if bytes.len() >= SMALL {
            self.lend_ring();
            self.0.insert(at, Segment::shared(start, bytes));
            return;
        }
        let before = at.checked_sub(1);
        let piece = before.and_then(|before| self.0.get_mut(before)).filter(|piece| piece.end() == start);
        let own = match before.filter(|_| piece.is_some_and(|piece| piece.append(&bytes))) {
            Some(before) => before,
            None => {
                self.lend_ring();
                self.0.insert(at, Segment::copy(start, &bytes));
                at
            }
        };
        self.join_next(own);
    }

    /// Puts a short piece behind the one that it touches.
    fn join_next(&mut self, at: usize) {
        let joins = match (self.0.get(at), self.0.get(at + 1)) {
            (Some(piece), Some(next)) => {
                next.len() < SMALL && piece.end() == next.start && piece.may_append(next.len())
            }
            _ => false,
        };
        if joins && let Some(next) = self.0.remove(at + 1) {
            if let Some(piece) = self.0.get_mut(at) {
                piece.append(next.bytes());
            }
            next.free();
        }
    }

    /// Removes pieces that lie within bytes from `start` on, and writes them over these.
    pub(super) fn lay_over(&mut self, range: std::ops::Range<usize>, start: u64, bytes: &[u8]) -> Bytes {
        let mut all = bytes.to_vec();
        for piece in self.0.drain(range) {
            let place = usize::try_from(piece.start.saturating_sub(start)).ok();
            let place = place.and_then(|at| all.get_mut(at..)?.get_mut(..piece.len()));
            if let Some(place) = place {
                place.copy_from_slice(piece.bytes());
            }
            piece.free();
        }
        all.into()
    }

    /// Takes the first bytes: as many as lie together, at most `max`.
    pub(super) fn take_first(&mut self, max: usize) -> Option<Bytes> {
        let first = self.0.front_mut()?;
        if let Data::Own(buffer) = &mut first.data {
            first.data = Data::Shared(std::mem::take(buffer).into());
        }
        let Data::Shared(bytes) = &mut first.data else { return None };
        if bytes.len() > max {
            first.start += max as u64;
            return Some(bytes.split_to(max));
        }
        let bytes = std::mem::take(bytes);
        self.0.pop_front();
        self.give_ring_back();
        Some(bytes)
    }

    /// Drops the pieces that end at or before an offset.
    pub(super) fn drop_before(&mut self, offset: u64) {
        while self.0.front().is_some_and(|first| first.end() <= offset) {
            self.0.pop_front().into_iter().for_each(Segment::free);
        }
        self.give_ring_back();
    }

    /// Drops all pieces.
    pub(super) fn clear(&mut self) {
        self.0.drain(..).for_each(Segment::free);
        self.give_ring_back();
    }

    /// Appends `len` bytes from an offset on to `out`.
    pub(super) fn copy_to(&self, offset: u64, len: usize, out: &mut Vec<u8>) {
        let mut at = self.count_from(offset).saturating_sub(1);
        let mut left = len;
        while left > 0
            && let Some(piece) = self.0.get(at)
        {
            let skip = usize::try_from((offset + (len - left) as u64).saturating_sub(piece.start));
            let part = skip.ok().and_then(|skip| piece.bytes().get(skip..)).unwrap_or_default();
            let part = part.get(..left).unwrap_or(part);
            out.extend_from_slice(part);
            left -= part.len();
            at += 1;
        }
    }

    fn lend_ring(&mut self) {
        if self.0.capacity() == 0 {
            self.0 = take_ring();
        }
    }

    fn give_ring_back(&mut self) {
        if self.0.is_empty() && self.0.capacity() > 0 {
            give_ring(std::mem::take(&mut self.0));
        }
    }
}

/// Drops the first bytes.
pub(super) fn skip(bytes: &mut Bytes, n: u64) {
    bytes.advance(usize::try_from(n).unwrap_or(usize::MAX).min(bytes.len()));
}

fn take_buffer(len: usize) -> Vec<u8> {
    if len > BLOCK {
        return Vec::with_capacity(len);
    }
    // It fails at the end of the thread.
    let spare = BUFFERS.try_with(|spare| spare.borrow_mut().pop()).ok().flatten();
    spare.unwrap_or_else(|| Vec::with_capacity(len.max(LEAST)))
}

fn give_buffer(mut buffer: Vec<u8>) {
    if buffer.capacity() == 0 || buffer.capacity() > BLOCK {
        return;
    }
    buffer.clear();
    let _ = BUFFERS.try_with(|spare| {
        let mut spare = spare.borrow_mut();
        if spare.len() < KEPT {
            spare.push(buffer);
        }
    });
}

fn take_ring() -> VecDeque<Segment> {
    RINGS.try_with(|spare| spare.borrow_mut().pop()).ok().flatten().unwrap_or_default()
}

fn give_ring(ring: VecDeque<Segment>) {
    if ring.capacity() > LARGEST {
        return;
    }
    let _ = RINGS.try_with(|spare| {
        let mut spare = spare.borrow_mut();
        if spare.len() < KEPT {
            spare.push(ring);
        }
    });
}
