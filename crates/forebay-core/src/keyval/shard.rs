//! A part of a store: a hash table under a lock of its own. Hot path.

use hashbrown::HashTable;
use hashbrown::hash_table::Entry as Place;

/// A record. Key and value lie in one piece of memory.
#[derive(Debug)]
pub(super) struct Record {
    text: Box<[u8]>,
    key_length: u32,
    /// Time until which it counts, in milliseconds since the start of the process; [`NEVER`] if it does not expire.
    pub(super) until: u64,
}

/// Time of records that do not expire.
pub(super) const NEVER: u64 = u64::MAX;

impl Record {
    /// Makes a record. The length of the key is limited by [`super::MAX_KEY`].
    pub(super) fn new(key: &[u8], value: &[u8], until: u64) -> Record {
        let key_length = u32::try_from(key.len()).unwrap_or(u32::MAX);
        Record { text: [key, value].concat().into(), key_length, until }
    }

    /// Returns its key.
    pub(super) fn key(&self) -> &[u8] {
        self.text.get(..self.key_length as usize).unwrap_or(&self.text)
    }

    /// Returns its value.
    pub(super) fn value(&self) -> &[u8] {
        self.text.get(self.key_length as usize..).unwrap_or_default()
    }

    /// Returns the bytes of key and value.
    pub(super) fn length(&self) -> usize {
        self.text.len()
    }
}

/// A part of a store.
#[derive(Debug, Default)]
pub(super) struct Shard {
    table: HashTable<Record>,
}

/// Function that returns the hash of a key.
pub(super) type Hash<'h> = &'h dyn Fn(&[u8]) -> u64;

impl Shard {
    /// Finds a record, which may have expired.
    #[inline]
    pub(super) fn find(&self, hash: u64, key: &[u8]) -> Option<&Record> {
        self.table.find(hash, |r| r.key() == key)
    }

    /// Puts a record in its place. Returns the one with the same key.
    pub(super) fn put(&mut self, hash: u64, record: Record, hasher: Hash<'_>) -> Option<Record> {
        match self.table.entry(hash, |r| r.key() == record.key(), |r| hasher(r.key())) {
            Place::Occupied(mut place) => Some(std::mem::replace(place.get_mut(), record)),
            Place::Vacant(place) => {
                place.insert(record);
                None
            }
        }
    }

    /// Removes a record.
    pub(super) fn remove(&mut self, hash: u64, key: &[u8], hasher: Hash<'_>) -> Option<Record> {
        let place = self.table.find_entry(hash, |r| r.key() == key).ok()?;
        let (record, _) = place.remove();
        self.shrink(hasher);
        Some(record)
    }

    /// Removes the records that `removed` chooses.
    pub(super) fn remove_all(&mut self, mut removed: impl FnMut(&Record) -> bool, hasher: Hash<'_>) {
        self.table.retain(|r| !removed(r));
        self.shrink(hasher);
    }

    /// Returns all records.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Record> {
        self.table.iter()
    }

    /// Gives memory back, once most of it is not in use.
    fn shrink(&mut self, hasher: Hash<'_>) {
        if self.table.len() < self.table.capacity() / 4 {
            self.table.shrink_to(self.table.len() * 2, |r| hasher(r.key()));
        }
    }
}
