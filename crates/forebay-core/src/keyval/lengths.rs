//! Lengths of the keys in a store, so that a lookup tries those only that occur. Hot path.

use super::key::{Kind, MAX_KEY};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Lengths of networks and prefixes. Changes come one after the other.
#[derive(Debug)]
pub(super) struct Lengths {
    v4: Counted,
    v6: Counted,
    /// Most zones have no prefixes.
    prefixes: OnceLock<Counted>,
}

impl Default for Lengths {
    fn default() -> Self {
        Lengths { v4: Counted::up_to(32), v6: Counted::up_to(128), prefixes: OnceLock::new() }
    }
}

/// Length of the key of an IPv4 network in bytes, of which the first is the number of bits.
const V4: usize = 5;

impl Lengths {
    /// Returns where the length of a key is counted, and the length.
    fn place(&self, kind: Kind, key: &[u8]) -> Option<(&Counted, usize)> {
        match (kind, key) {
            (Kind::Ip, [bits, ..]) if key.len() == V4 => Some((&self.v4, usize::from(*bits))),
            (Kind::Ip, [bits, ..]) => Some((&self.v6, usize::from(*bits))),
            (Kind::Prefix, key) => Some((self.prefixes.get_or_init(|| Counted::up_to(MAX_KEY)), key.len())),
            _ => None,
        }
    }

    /// Adds the length of a key.
    pub(super) fn add(&self, kind: Kind, key: &[u8]) {
        if let Some((counted, length)) = self.place(kind, key) {
            counted.add(length);
        }
    }

    /// Takes the length of a key out.
    pub(super) fn remove(&self, kind: Kind, key: &[u8]) {
        if let Some((counted, length)) = self.place(kind, key) {
            counted.remove(length);
        }
    }

    /// Returns the numbers of bits of networks up to `most`, from the largest.
    pub(super) fn of_networks(&self, v4: bool, most: u8) -> impl Iterator<Item = u8> + '_ {
        let counted = if v4 { &self.v4 } else { &self.v6 };
        counted.descending(most.into()).filter_map(|bits| u8::try_from(bits).ok())
    }

    /// Returns the lengths of prefixes up to `most`, from the largest.
    pub(super) fn of_prefixes(&self, most: usize) -> impl Iterator<Item = usize> + '_ {
        self.prefixes.get().into_iter().flat_map(move |counted| counted.descending(most))
    }
}

/// Numbers that occur.
#[derive(Debug)]
struct Counted {
    /// A bit for each number that occurs.
    words: Box<[AtomicU64]>,
    /// Number of times that each occurs.
    counts: Box<[AtomicU32]>,
}

impl Counted {
    fn up_to(most: usize) -> Counted {
        Counted {
            words: (0..most / 64 + 1).map(|_| AtomicU64::new(0)).collect(),
            counts: (0..=most).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    fn add(&self, n: usize) {
        if let (Some(count), Some(word)) = (self.counts.get(n), self.words.get(n / 64)) {
            count.fetch_add(1, Ordering::Relaxed);
            word.fetch_or(1 << (n % 64), Ordering::Release);
        }
    }

    fn remove(&self, n: usize) {
        if let (Some(count), Some(word)) = (self.counts.get(n), self.words.get(n / 64))
            && count.fetch_sub(1, Ordering::Relaxed) == 1
        {
            word.fetch_and(!(1 << (n % 64)), Ordering::Release);
        }
    }

    fn descending(&self, most: usize) -> impl Iterator<Item = usize> + '_ {
        self.words.iter().enumerate().take(most / 64 + 1).rev().flat_map(move |(at, word)| {
            let mut bits = word.load(Ordering::Acquire);
            if at == most / 64 {
                bits &= u64::MAX >> (63 - most % 64);
            }
            std::iter::from_fn(move || {
                let highest = bits.checked_ilog2()?;
                bits &= !(1 << highest);
                Some(at * 64 + highest as usize)
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_come_from_the_largest() {
        let counted = Counted::up_to(128);
        for n in [0, 128, 63, 64, 64, 7] {
            counted.add(n);
        }
        let below = |most| counted.descending(most).collect::<Vec<_>>();
        assert_eq!(below(128), [128, 64, 63, 7, 0]);
        assert_eq!(below(127), [64, 63, 7, 0]);
        assert_eq!(below(63), [63, 7, 0]);
        assert_eq!(below(0), [0]);
        counted.remove(64);
        assert_eq!(below(64), [64, 63, 7, 0], "it occurs once more");
        counted.remove(64);
        counted.remove(0);
        assert_eq!(below(64), [63, 7]);
    }
}
