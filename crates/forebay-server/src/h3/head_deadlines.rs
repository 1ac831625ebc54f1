//! Request streams whose heads are not complete, by the time at which they end (nginx: client_header_timeout).

use super::Stream;
use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::Instant;

/// Time at which a stream ends, and a number that makes the keys of streams with the same time different.
type Key = (Instant, u64);

/// Incomplete heads of a thread.
#[derive(Debug, Default)]
pub(super) struct HeadDeadlines {
    due: RefCell<BTreeMap<Key, Weak<Stream>>>,
    /// Number of the next entry.
    next: Cell<u64>,
}

/// Entry of a stream, which is removed when this value is dropped.
#[derive(Debug)]
pub(super) struct Waiting {
    heads: Rc<HeadDeadlines>,
    key: Key,
}

impl HeadDeadlines {
    /// Adds a stream that ends at a time unless its head is complete by then.
    pub(super) fn add(self: &Rc<Self>, at: Instant, stream: &Rc<Stream>) -> Waiting {
        let key = (at, self.next.get());
        self.next.set(key.1.wrapping_add(1));
        self.due.borrow_mut().insert(key, Rc::downgrade(stream));
        Waiting { heads: self.clone(), key }
    }

    /// Returns a stream whose time is over.
    pub(super) fn take_due(&self, now: Instant) -> Option<Rc<Stream>> {
        loop {
            let mut due = self.due.borrow_mut();
            let first = due.first_entry().filter(|first| first.key().0 <= now)?;
            if let Some(stream) = first.remove().upgrade() {
                return Some(stream);
            }
        }
    }

    /// Returns the time at which the next stream ends.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        self.due.borrow().first_key_value().map(|((at, _), _)| *at)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.heads.due.borrow_mut().remove(&self.key);
    }
}
