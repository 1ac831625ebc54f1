//! State that few requests use. Thousands of requests may wait at once, and each has room for all of its fields.
//!
//! Futures of rare waits are boxed where many requests would have room for them: the future of a runner is as large as the largest of its
//! waits, and `connection/mod.rs` has a test for its size.

use super::Origin;
use crate::response::FieldList;
use forebay_core::limit::concurrency::Counted;
use forebay_core::vars::Captures;
use std::ops::{Deref, DerefMut};

/// Type of such a state.
pub trait Unused: Default + std::fmt::Debug + 'static {
    /// State of a request that does not use it.
    const UNUSED: &'static Self;

    /// Empties it for the next request.
    fn clear(&mut self);

    /// Gives back resources outside of the request, at its end.
    fn end(&mut self) {}

    /// Returns the state with which a derived request begins, or `None` for the unused state. `origin` is the origin of the derived
    /// request.
    fn for_request(&self, _origin: Origin) -> Option<Self> {
        None
    }
}

/// State in a block of its own, which is made when it is first changed, and kept for later requests.
pub struct Rare<T>(Option<Box<T>>);

impl<T: Unused> Rare<T> {
    /// Empties the state for the next request.
    #[inline]
    pub fn clear(&mut self) {
        if let Some(used) = &mut self.0 {
            used.clear();
        }
    }
}

impl<T> Default for Rare<T> {
    fn default() -> Rare<T> {
        Rare(None)
    }
}

impl<T> From<T> for Rare<T> {
    fn from(state: T) -> Rare<T> {
        Rare(Some(Box::new(state)))
    }
}

impl<T: Clone> Clone for Rare<T> {
    fn clone(&self) -> Rare<T> {
        Rare(self.0.clone())
    }
}

impl<T: Unused> Deref for Rare<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or(T::UNUSED)
    }
}

impl<T: Unused> DerefMut for Rare<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_insert_default()
    }
}

impl<T: Unused + std::fmt::Debug> std::fmt::Debug for Rare<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (**self).fmt(f)
    }
}

impl Unused for Vec<u8> {
    const UNUSED: &'static Vec<u8> = &Vec::new();

    fn clear(&mut self) {
        Vec::clear(self);
    }
}

impl Unused for Captures {
    const UNUSED: &'static Captures = &Captures { text: Vec::new(), groups: Vec::new() };

    fn clear(&mut self) {
        self.text.clear();
        self.groups.clear();
    }
}

impl Unused for Counted {
    const UNUSED: &'static Counted = &Counted::NONE;

    #[inline]
    fn clear(&mut self) {
        Counted::clear(self);
    }

    #[inline]
    fn end(&mut self) {
        Counted::clear(self);
    }

    /// The limits have counted the client's request already.
    fn for_request(&self, origin: Origin) -> Option<Counted> {
        (matches!(origin, Origin::Sub { .. }) && self.outcome().is_some()).then(|| self.counted())
    }
}

impl Unused for FieldList {
    const UNUSED: &'static FieldList = &FieldList::NONE;

    fn clear(&mut self) {
        FieldList::clear(self);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_made_for_a_change_and_kept() {
        let mut rare: Rare<Vec<u8>> = Rare::default();
        rare.clear();
        assert!(rare.is_empty() && rare.0.is_none());
        assert_eq!(format!("{rare:?}"), "[]");
        rare.push(1);
        rare.clear();
        assert!(rare.is_empty() && rare.0.is_some());
    }
}
