//! Streams by their identifiers. Hot path.
//!
//! Identifiers of a kind are given in order, so that a ring of small entries finds them. A stream whose state was never needed has none,
//! and one that is over leaves none: the ring begins behind it.

use crate::id::{Dir, Side, StreamId};
use std::collections::VecDeque;

/// Half of a stream, sending or receiving.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Half(u32);

impl Half {
    /// It has no state yet.
    pub(super) const FRESH: Half = Half(u32::MAX);
    /// It is over, or never existed.
    pub(super) const OVER: Half = Half(u32::MAX - 1);
    /// It was over when the peer reset it.
    pub(super) const RESET_AFTER_END: Half = Half(u32::MAX - 2);

    /// Creates one with its state in a slot.
    pub(super) const fn in_slot(slot: u32) -> Half {
        Half(slot)
    }

    /// Returns the slot of its state.
    pub(super) fn slot(self) -> Option<u32> {
        (self.0 < Half::RESET_AFTER_END.0).then_some(self.0)
    }

    pub(super) fn is_over(self) -> bool {
        self == Half::OVER || self == Half::RESET_AFTER_END
    }
}

/// Both halves of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) send: Half,
    pub(super) recv: Half,
}

impl Entry {
    pub(super) fn is_over(self) -> bool {
        self.send.is_over() && self.recv.is_over()
    }
}

/// Entries below which a ring is not thinned out.
const THIN: usize = 64;

/// Streams of a kind that exist.
#[derive(Debug, Default)]
struct Ring {
    /// Number of the first one.
    first: u64,
    entries: VecDeque<Entry>,
    /// Entries that are not over.
    live: u32,
}

/// All streams that exist.
#[derive(Debug)]
pub(super) struct Index {
    side: Side,
    rings: [Ring; 4],
    /// Streams that many younger ones have outlived, sorted.
    old: Vec<(StreamId, Entry)>,
}

impl Index {
    pub(super) fn new(side: Side) -> Index {
        Index { side, rings: Default::default(), old: Vec::new() }
    }

    fn ring(&self, id: StreamId) -> Option<&Ring> {
        self.rings.get((id.0 & 3) as usize)
    }

    /// Returns the number of streams of a kind that were opened.
    pub(super) fn opened(&self, opener: Side, dir: Dir) -> u64 {
        let ring = self.ring(StreamId::new(opener, dir, 0));
        ring.map_or(0, |ring| ring.first + ring.entries.len() as u64)
    }

    /// Opens the next stream of a kind.
    pub(super) fn open(&mut self, opener: Side, dir: Dir) -> StreamId {
        let id = StreamId::new(opener, dir, self.opened(opener, dir));
        let entry = match (dir, opener == self.side) {
            (Dir::Bi, _) => Entry { send: Half::FRESH, recv: Half::FRESH },
            (Dir::Uni, true) => Entry { send: Half::FRESH, recv: Half::OVER },
            (Dir::Uni, false) => Entry { send: Half::OVER, recv: Half::FRESH },
        };
        self.thin(id);
        if let Some(ring) = self.rings.get_mut((id.0 & 3) as usize) {
            ring.entries.push_back(entry);
            ring.live += 1;
        }
        id
    }

    /// Moves old streams out of a ring in which most are over: it must not grow with the number of streams that come and go.
    fn thin(&mut self, id: StreamId) {
        let Some(ring) = self.rings.get_mut((id.0 & 3) as usize) else { return };
        let len = ring.entries.len();
        if len < THIN || len / 4 < ring.live as usize {
            return;
        }
        for entry in ring.entries.drain(..) {
            if !entry.is_over() {
                let old = StreamId((ring.first << 2) | (id.0 & 3));
                let at = self.old.partition_point(|(id, _)| *id < old);
                self.old.insert(at, (old, entry));
            }
            ring.first += 1;
        }
        ring.live = 0;
    }

    /// Returns the entry of a stream. Returns `None` if it was not opened, or is over and forgotten.
    #[inline]
    pub(super) fn get(&self, id: StreamId) -> Option<Entry> {
        let ring = self.ring(id)?;
        if let Some(at) = id.index().checked_sub(ring.first) {
            return ring.entries.get(usize::try_from(at).ok()?).copied();
        }
        let at = self.old.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        self.old.get(at).map(|(_, entry)| *entry)
    }

    /// Returns the entry of a stream, as [`Index::get`] does.
    #[inline]
    pub(super) fn get_mut(&mut self, id: StreamId) -> Option<&mut Entry> {
        let ring = self.rings.get_mut((id.0 & 3) as usize)?;
        if let Some(at) = id.index().checked_sub(ring.first) {
            return ring.entries.get_mut(usize::try_from(at).ok()?);
        }
        let at = self.old.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        self.old.get_mut(at).map(|(_, entry)| entry)
    }

    /// Forgets a stream, if both halves are over. Returns `true` if they are.
    pub(super) fn forget(&mut self, id: StreamId) -> bool {
        if !self.get(id).is_some_and(Entry::is_over) {
            return false;
        }
        let Some(ring) = self.rings.get_mut((id.0 & 3) as usize) else { return false };
        if id.index() < ring.first {
            self.old.retain(|(old, _)| *old != id);
            return true;
        }
        ring.live = ring.live.saturating_sub(1);
        while ring.entries.front().is_some_and(|entry| entry.is_over()) {
            ring.entries.pop_front();
            ring.first += 1;
        }
        true
    }

    /// Returns the number of entries for which there is memory.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.rings.iter().map(|ring| ring.entries.capacity()).sum::<usize>() + self.old.capacity()
    }

    /// Gives memory back that is not needed.
    pub(super) fn shrink(&mut self) {
        self.rings.iter_mut().for_each(|ring| ring.entries.shrink_to_fit());
        self.old.shrink_to_fit();
    }
}

/// States in slots that are used again.
#[derive(Debug)]
pub(super) struct Slab<T> {
    slots: Vec<Slot<T>>,
    /// First free slot.
    free: u32,
    used: u32,
}

#[derive(Debug)]
enum Slot<T> {
    /// It is free, and so is the next one, if there is one.
    Free(u32),
    Used(T),
}

/// End of the list of free slots.
const NONE: u32 = u32::MAX;

impl<T> Slab<T> {
    pub(super) const fn new() -> Slab<T> {
        Slab { slots: Vec::new(), free: NONE, used: 0 }
    }

    /// Returns the number of slots in use.
    pub(super) fn len(&self) -> usize {
        self.used as usize
    }

    /// Returns the number of states for which there is memory.
    #[cfg(test)]
    pub(super) fn capacity(&self) -> usize {
        self.slots.capacity()
    }

    /// Puts a state into a slot.
    pub(super) fn insert(&mut self, state: T) -> u32 {
        self.used += 1;
        let at = self.free;
        if let Some(slot) = self.slots.get_mut(at as usize) {
            if let Slot::Free(next) = slot {
                self.free = *next;
            }
            *slot = Slot::Used(state);
            return at;
        }
        self.slots.push(Slot::Used(state));
        u32::try_from(self.slots.len() - 1).unwrap_or(NONE)
    }

    #[inline]
    pub(super) fn get(&self, slot: u32) -> Option<&T> {
        match self.slots.get(slot as usize) {
            Some(Slot::Used(state)) => Some(state),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut T> {
        match self.slots.get_mut(slot as usize) {
            Some(Slot::Used(state)) => Some(state),
            _ => None,
        }
    }

    pub(super) fn remove(&mut self, slot: u32) {
        if let Some(place @ Slot::Used(_)) = self.slots.get_mut(slot as usize) {
            *place = Slot::Free(self.free);
            self.free = slot;
            self.used -= 1;
        }
    }

    /// Calls `f` with each state in use and its slot.
    pub(super) fn for_each(&mut self, mut f: impl FnMut(u32, &mut T)) {
        for (slot, at) in self.slots.iter_mut().zip(0..) {
            if let Slot::Used(state) = slot {
                f(at, state);
            }
        }
    }

    /// Gives memory back that is not needed.
    pub(super) fn shrink(&mut self) {
        while matches!(self.slots.last(), Some(Slot::Free(_))) {
            self.slots.pop();
        }
        self.slots.shrink_to_fit();
        self.free = NONE;
        for (slot, at) in self.slots.iter_mut().zip(0..) {
            if let Slot::Free(next) = slot {
                *next = self.free;
                self.free = at;
            }
        }
    }
}
