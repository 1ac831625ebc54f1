//! Keys of a zone with a state for each, bounded in bytes: the least recently used keys give way to new ones.

use super::zones::KEY_COST;
use std::collections::{HashMap, VecDeque};

/// Keys with a `V` for each.
#[derive(Debug)]
pub(super) struct Keys<V> {
    map: HashMap<Box<[u8]>, Used<V>, foldhash::fast::RandomState>,
    /// Keys in approximate order of their last use, each once, with the number of that use. A use does not move its key:
    /// only [`Keys::evict`] moves keys that were used in the meantime to the end.
    order: VecDeque<(u64, Box<[u8]>)>,
    uses: u64,
    room: usize,
    used: usize,
    /// Bytes that a key takes in addition to its text.
    cost: usize,
}

/// State of a key, and the number of its last use.
#[derive(Debug)]
struct Used<V> {
    value: V,
    last: u64,
}

impl<V> Keys<V> {
    /// Creates an empty set. `room` is the size of the zone in bytes. `more` are the bytes that a key takes in addition to
    /// [`KEY_COST`] and its text.
    pub(super) fn new(room: usize, more: usize) -> Keys<V> {
        Keys {
            map: HashMap::default(),
            order: VecDeque::new(),
            uses: 0,
            room,
            used: 0,
            cost: KEY_COST.saturating_add(more),
        }
    }

    /// Returns the bytes in use.
    pub(super) fn used(&self) -> usize {
        self.used
    }

    /// Returns the state of a key, and counts that as a use of it.
    pub(super) fn touch(&mut self, key: &[u8]) -> Option<&mut V> {
        self.uses += 1;
        let used = self.map.get_mut(key)?;
        used.last = self.uses;
        Some(&mut used.value)
    }

    /// Returns the state of a key. Counts no use.
    pub(super) fn find(&mut self, key: &[u8]) -> Option<&mut V> {
        self.map.get_mut(key).map(|used| &mut used.value)
    }

    /// Adds a key that is not there, and evicts others if that is necessary.
    pub(super) fn insert(&mut self, key: &[u8], value: V) {
        let cost = self.cost + key.len();
        while self.used + cost > self.room && self.evict() {}
        self.used += cost;
        self.map.insert(key.into(), Used { value, last: self.uses });
        self.order.push_back((self.uses, key.into()));
    }

    /// Removes the least recently used key. Returns `false` if there is none.
    fn evict(&mut self) -> bool {
        while let Some((n, key)) = self.order.pop_front() {
            match self.map.get(&key) {
                // Moved once at most: the next time its number is that of the key's last use, since no use comes in
                // between.
                Some(used) if used.last != n => self.order.push_back((used.last, key)),
                known => {
                    if known.is_some() {
                        self.map.remove(&key);
                        self.used = self.used.saturating_sub(self.cost + key.len());
                    }
                    return true;
                }
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_key_gives_way() {
        let mut keys = Keys::new(3 * (KEY_COST + 5 + 1), 5);
        for key in [b"a", b"b", b"c", b"a", b"d"] {
            if keys.touch(key).is_none() {
                keys.insert(key, ());
            }
        }
        assert_eq!(keys.map.len(), 3);
        assert!(keys.find(b"a").is_some() && keys.find(b"b").is_none());
        for _ in 0..1000 {
            assert!(keys.touch(b"a").is_some());
        }
        assert_eq!((keys.order.len(), keys.used()), (3, 3 * (KEY_COST + 6)));
    }
}
