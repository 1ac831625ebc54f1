//! Memory of the paths that were opened lately, for a file cache that is full. Hot path.

/// Number of paths that are remembered: four times the number of entries of a cache.
const PLACES: usize = 4096;

/// Paths that were opened lately, by their hashes. Two paths with the same hash cost an entry of the cache at most.
#[derive(Debug, Default)]
pub(super) struct Seen(Vec<u32>);

impl Seen {
    /// Notes a path. Returns `true` if it has been noted before, and not too many other paths since.
    pub(super) fn note(&mut self, hash: u64) -> bool {
        if self.0.is_empty() {
            self.0 = vec![0; PLACES];
        }
        // The mark is never 0, which stands for no path.
        let mark = (hash >> 32) as u32 | 1;
        let place = self.0.get_mut(hash as usize % PLACES);
        place.is_some_and(|place| std::mem::replace(place, mark) == mark)
    }

    /// Forgets all paths.
    pub(super) fn clear(&mut self) {
        self.0 = Vec::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_noted_until_another_takes_its_place() {
        let mut seen = Seen::default();
        let hash = |n: u64| n << 40 | 7;
        assert!(!seen.note(hash(1)) && seen.note(hash(1)));
        assert!(!seen.note(hash(2)) && !seen.note(hash(1)));
        // Another place.
        assert!(!seen.note(hash(2) + 1) && seen.note(hash(1)));
        // A hash of zeros is a path as any other.
        assert!(!seen.note(0) && seen.note(0));
        seen.clear();
        assert!(!seen.note(hash(1)));
    }
}
