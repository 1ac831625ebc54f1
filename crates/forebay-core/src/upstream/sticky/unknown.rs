//! Sessions that the shared store did not know when it was asked. A client whose session nobody has learnt would cost a question for each of
//! its requests.

use crate::shared_store::SessionKey;
use std::collections::{HashMap, VecDeque};

/// Time for which an answer holds, milliseconds. A replica that learns the session meanwhile tells the others.
pub(super) const LIFE: u64 = 2000;
/// Most sessions. Of more, the oldest are asked for again.
const MOST: usize = 10_000;

/// Unknown sessions. Times are those of [`crate::upstream::peer::clock`].
#[derive(Debug, Default)]
pub(super) struct Unknown {
    until: HashMap<SessionKey, u64, foldhash::fast::RandomState>,
    /// Keys by age.
    order: VecDeque<SessionKey>,
}

impl Unknown {
    /// Notes that the store does not know a session.
    pub(super) fn note(&mut self, key: SessionKey, now: u64) {
        while let Some(first) = self.order.front()
            && (self.order.len() >= MOST || !self.has(first, now))
        {
            self.until.remove(first);
            self.order.pop_front();
        }
        if self.until.insert(key, now.saturating_add(LIFE)).is_none() {
            self.order.push_back(key);
        }
    }

    /// Returns `true` if the store did not know a session a moment ago.
    pub(super) fn has(&self, key: &SessionKey, now: u64) -> bool {
        self.until.get(key).is_some_and(|until| now < *until)
    }

    /// Forgets all, since messages of other replicas may be missing.
    pub(super) fn clear(&mut self) {
        *self = Unknown::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_hold_for_a_while_and_are_bounded() {
        let key = |n: u32| {
            let mut key = [0; 32];
            key[..4].copy_from_slice(&n.to_be_bytes());
            key
        };
        let mut unknown = Unknown::default();
        unknown.note(key(0), 1);
        assert!(unknown.has(&key(0), LIFE) && !unknown.has(&key(0), LIFE + 1) && !unknown.has(&key(1), 1));
        // Noted again, and forgotten with the next one after its time.
        unknown.note(key(0), 1000);
        assert!(unknown.has(&key(0), 1000 + LIFE - 1));
        unknown.note(key(1), 1000 + LIFE);
        assert_eq!((unknown.until.len(), unknown.order.len()), (1, 1));
        let most = u32::try_from(MOST).expect("a number");
        (2..2 * most).for_each(|n| unknown.note(key(n), 5000));
        assert_eq!((unknown.until.len(), unknown.order.len()), (MOST, MOST));
        assert!(unknown.has(&key(2 * most - 1), 5001) && !unknown.has(&key(2), 5001));
        unknown.clear();
        assert!(!unknown.has(&key(2 * most - 1), 5001));
    }
}
