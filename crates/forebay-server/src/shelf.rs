//! Things that a thread uses again. It keeps as many as it has lately needed at a time. Hot path.

use std::cell::RefCell;

/// Maximum number of things of a kind that are kept.
const MOST: usize = 32;

/// Maximum number of short buffers that a thread keeps. As many requests may wait for upstreams at once, each with one buffer.
const SHORT_BUFFERS: usize = 1024;

/// Largest short buffer, bytes: the head of a request to an upstream has room in it.
const SHORT: usize = 2048;

/// Things of one kind that a thread uses again, at most `N`.
#[derive(Debug)]
pub struct Shelf<T, const N: usize = MOST>(RefCell<Kept<T>>);

#[derive(Debug)]
struct Kept<T> {
    things: Vec<T>,
    /// Smallest number of things since [`Shelf::end_unneeded`] looked.
    fewest: usize,
}

impl<T, const N: usize> Default for Shelf<T, N> {
    fn default() -> Shelf<T, N> {
        Shelf(RefCell::new(Kept { things: Vec::new(), fewest: 0 }))
    }
}

impl<T, const N: usize> Shelf<T, N> {
    /// Takes a thing, if there is one.
    #[inline]
    pub fn take(&self) -> Option<T> {
        let mut kept = self.0.borrow_mut();
        let thing = kept.things.pop();
        kept.fewest = kept.fewest.min(kept.things.len());
        thing
    }

    /// Keeps a thing, unless there are enough.
    #[inline]
    pub fn give(&self, thing: T) {
        let mut kept = self.0.borrow_mut();
        if kept.things.len() < N {
            kept.things.push(thing);
        }
    }

    /// Drops the things that were not needed since the last call. Returns `true` if there were any.
    pub fn end_unneeded(&self) -> bool {
        let mut kept = self.0.borrow_mut();
        let left = kept.things.len() - kept.fewest.min(kept.things.len());
        let unneeded = kept.things.split_off(left);
        kept.fewest = kept.things.len();
        drop(kept);
        !unneeded.is_empty()
    }

    /// Drops everything.
    pub fn clear(&self) {
        let things = std::mem::take(&mut self.0.borrow_mut().things);
        drop(things);
    }

    /// Returns `true` if there is nothing.
    pub fn is_empty(&self) -> bool {
        self.0.borrow().things.is_empty()
    }
}

/// Buffers of a thread for heads, values of variables and the like, which requests use one after the other. Requests that wait keep
/// few of them, and the buffers that go from hand to hand stay in the caches of the CPU.
#[derive(Debug, Default)]
pub struct SmallBuffers {
    short: Shelf<Vec<u8>, SHORT_BUFFERS>,
    others: Shelf<Vec<u8>>,
}

impl SmallBuffers {
    /// Returns an empty buffer.
    #[inline]
    pub fn take(&self) -> Vec<u8> {
        self.others.take().or_else(|| self.short.take()).unwrap_or_default()
    }

    /// Returns an empty buffer that may be kept during a wait, so that it is short.
    #[inline]
    pub fn take_short(&self) -> Vec<u8> {
        self.short.take().unwrap_or_default()
    }

    /// Takes a buffer back.
    #[inline]
    pub fn give(&self, mut b: Vec<u8>) {
        b.clear();
        match b.capacity() {
            0 => {}
            1..=SHORT => self.short.give(b),
            _ => self.others.give(b),
        }
    }

    /// Drops the buffers that were not needed since the last call. Returns `true` if there were any.
    pub fn end_unneeded(&self) -> bool {
        self.short.end_unneeded() | self.others.end_unneeded()
    }

    /// Returns `true` if there is none.
    pub fn is_empty(&self) -> bool {
        self.short.is_empty() && self.others.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_are_kept_than_are_needed() {
        let shelf: Shelf<i32> = Shelf::default();
        (0..100).for_each(|n| shelf.give(n));
        assert_eq!(shelf.0.borrow().things.len(), MOST);
        assert!(!shelf.end_unneeded(), "they are new");
        let taken: Vec<i32> = (0..10).filter_map(|_| shelf.take()).collect();
        taken.into_iter().for_each(|n| shelf.give(n));
        assert!(shelf.end_unneeded());
        assert_eq!(shelf.0.borrow().things.len(), 10);
        assert!(shelf.end_unneeded());
        assert!(shelf.is_empty() && !shelf.end_unneeded());
    }

    #[test]
    fn buffers_of_a_burst_are_given_up() {
        let buffers = SmallBuffers::default();
        assert_eq!(buffers.take().capacity(), 0);
        for _ in 0..2 * SHORT_BUFFERS {
            buffers.give(Vec::with_capacity(200));
            buffers.give(Vec::with_capacity(20_000));
        }
        let kept = |buffers: &SmallBuffers| {
            (buffers.short.0.borrow().things.len(), buffers.others.0.borrow().things.len())
        };
        assert_eq!(kept(&buffers), (SHORT_BUFFERS, MOST));
        // Those that may be kept during a wait are short, whatever else there is.
        let short = buffers.take_short();
        assert!((200..=SHORT).contains(&short.capacity()));
        buffers.give(short);
        buffers.end_unneeded();
        let used = buffers.take_short();
        buffers.give(used);
        assert!(buffers.end_unneeded());
        assert_eq!(kept(&buffers), (1, 0));
        assert!(buffers.end_unneeded() && buffers.is_empty());
    }
}
