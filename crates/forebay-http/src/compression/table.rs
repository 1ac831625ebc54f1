//! The dynamic table (RFC 7541, section 2.3.2; RFC 9204, section 3.2). Hot path.

use super::{Field, Label};
use std::collections::VecDeque;

/// Size of an entry in addition to its bytes (RFC 7541, section 4.1; RFC 9204, section 3.2.1).
pub(crate) const OVERHEAD: usize = 32;

/// An entry of the dynamic table.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// Offset of its name in `Table::bytes`; the value follows.
    at: u32,
    name_len: u32,
    value_len: u32,
    label: Label,
    sound: bool,
}

impl Entry {
    fn len(&self) -> usize {
        (self.name_len + self.value_len) as usize
    }
}

/// Entries, the newest first, and the bytes of all of them, the oldest first: clients enter a path with each request, which
/// is to cost no allocation.
#[derive(Debug)]
pub(crate) struct Table {
    entries: VecDeque<Entry>,
    bytes: Vec<u8>,
    /// Size as the RFCs count it, bytes.
    size: usize,
    /// Greatest size.
    max: usize,
}

impl Table {
    /// Creates a table of at most `max` bytes, as the RFCs count them.
    pub(crate) fn new(max: usize) -> Table {
        Table { entries: VecDeque::new(), bytes: Vec::new(), size: 0, max }
    }

    /// Returns the size in bytes.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the greatest size in bytes.
    pub(crate) fn limited_to(&self) -> usize {
        self.max
    }

    /// Sets the greatest size in bytes. Entries that do not fit any more leave, the oldest first.
    pub(crate) fn limit(&mut self, max: usize) {
        self.max = max;
        self.evict(0);
    }

    /// Enters a field. Without room for it, even in an empty table, all entries leave and the result is `false`.
    pub(crate) fn insert(&mut self, field: Field<'_>) -> bool {
        let need = field.name.len() + field.value.len() + OVERHEAD;
        self.evict(need);
        let fits = need <= self.max;
        if fits {
            self.size += need;
            self.push(field);
        }
        fits
    }

    /// Makes room for `need` bytes.
    fn evict(&mut self, need: usize) {
        while self.size + need > self.max {
            let Some(len) = self.pop() else { break };
            self.size -= len + OVERHEAD;
        }
    }

    /// Returns the number of bytes of memory that names and values have.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> usize {
        self.bytes.capacity()
    }

    /// Returns an entry; 0 is the newest.
    #[inline]
    pub(crate) fn get(&self, i: usize) -> Option<Field<'_>> {
        let e = self.entries.get(i)?;
        let text = self.bytes.get(e.at as usize..)?.get(..e.len())?;
        let (name, value) = text.split_at(e.name_len as usize);
        Some(Field { label: e.label, name, value, sound: e.sound, received: 0 })
    }

    fn push(&mut self, Field { label, name, value, sound, .. }: Field<'_>) {
        // Bytes of entries that are gone lie before the oldest one's.
        let gone = self.entries.back().map_or(self.bytes.len(), |e| e.at as usize);
        let need = name.len() + value.len();
        // Moved only instead of a growth, and if at least half of the bytes are gone, so that the cost for each entry
        // stays constant.
        if self.bytes.len() + need > self.bytes.capacity() && gone >= self.bytes.len() / 2 {
            self.bytes.drain(..gone);
            self.entries.iter_mut().for_each(|e| e.at -= gone as u32);
        }
        // Fits: the table is limited to a few KiB.
        let at = self.bytes.len() as u32;
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        let (name_len, value_len) = (name.len() as u32, value.len() as u32);
        self.entries.push_front(Entry { at, name_len, value_len, label, sound });
    }

    /// Takes the oldest entry out. Returns its length.
    fn pop(&mut self) -> Option<usize> {
        let e = self.entries.pop_back()?;
        if self.entries.is_empty() {
            self.bytes.clear();
        }
        Some(e.len())
    }
}
