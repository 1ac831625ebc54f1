//! Encoders and their memory that a thread keeps for its next streams. Hot path.
//!
//! A thread keeps as much as it lately used at a time: creating the tables of an encoder would cost more than a small response
//! itself, and a burst of streams would begin by faulting in their pages.

use forebay_core::idle_memory::Ended;
use forebay_server::response::coding::FormKey;
use std::cell::RefCell;
use std::thread::LocalKey;

/// Amount of something that is used at a time, in any unit.
#[derive(Debug, Default)]
pub(super) struct Demand {
    used: usize,
    /// Largest amount that was used at a time since the last [`Demand::turn`].
    peak: usize,
    /// Largest amount that was used at a time in the period before.
    before: usize,
}

impl Demand {
    /// Creates a demand of nothing.
    pub(super) const fn new() -> Demand {
        Demand { used: 0, peak: 0, before: 0 }
    }

    /// Counts `n` as used.
    pub(super) fn take(&mut self, n: usize) {
        self.used += n;
        self.peak = self.peak.max(self.used);
    }

    /// Counts `n` as used no more.
    pub(super) fn give(&mut self, n: usize) {
        self.used = self.used.saturating_sub(n);
    }

    /// Returns the amount that is worth keeping in addition to what is used.
    pub(super) fn room(&self) -> usize {
        // The period before counts, too. Otherwise everything would be dropped at the beginning of a period,
        // before any stream needs it.
        self.peak.max(self.before) - self.used
    }

    /// Begins another period.
    pub(super) fn turn(&mut self) {
        self.before = self.peak;
        self.peak = self.used;
    }
}

/// Encoder whose tables serve one stream after another.
pub(super) trait Reusable: Sized + 'static {
    /// Creates an encoder.
    fn create(key: FormKey) -> Option<Self>;
    /// Prepares the encoder of an ended stream for the next one. Returns `false` if it cannot serve again.
    fn renew(&mut self) -> bool;
    /// Returns the largest number of such encoders that a thread keeps.
    fn most(key: FormKey) -> usize;
    /// Returns the encoders of the thread.
    fn pool() -> &'static LocalKey<RefCell<Pool<Self>>>;
}

/// Encoders of one kind.
#[derive(Debug)]
pub(super) struct Pool<T> {
    demand: Demand,
    /// Encoders of ended streams, the longest unused first.
    spare: Vec<(FormKey, T)>,
    /// Encoders that were created.
    #[cfg(test)]
    pub created: usize,
}

impl<T> Pool<T> {
    pub(super) const fn new() -> Pool<T> {
        Pool {
            demand: Demand::new(),
            spare: Vec::new(),
            #[cfg(test)]
            created: 0,
        }
    }

    /// Takes the encoder of these parameters that was used last.
    fn take(&mut self, key: FormKey) -> Option<T> {
        // The one that was used last, so that encoders in excess stay at the front, where `trim` drops them.
        let at = self.spare.iter().rposition(|(k, _)| *k == key)?;
        Some(self.spare.remove(at).1)
    }

    fn keep(&mut self, key: FormKey, encoder: T, most: usize) {
        self.spare.push((key, encoder));
        self.trim(most);
    }

    fn trim(&mut self, most: usize) {
        let room = self.demand.room().min(most);
        self.spare.drain(..self.spare.len().saturating_sub(room));
    }

    /// Drops encoders that were not needed since the last call.
    pub(super) fn end_unneeded(&mut self) -> Ended {
        let before = self.spare.len();
        self.demand.turn();
        // The limit of the number was applied when the encoders were kept, here only the demand counts.
        self.trim(usize::MAX);
        Ended { some: self.spare.len() < before, left: !self.spare.is_empty() }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.spare.len()
    }
}

/// Encoder of the pool while a stream uses it. Only [`Lent::end`] gives it back: the encoder of an abandoned stream is dropped.
pub(super) struct Lent<T: Reusable> {
    key: FormKey,
    encoder: T,
    _used: Used<T>,
}

/// Count of an encoder that is used.
struct Used<T: Reusable>(std::marker::PhantomData<T>);

impl<T: Reusable> Drop for Used<T> {
    fn drop(&mut self) {
        // A thread that is ending has no pool any more.
        let _ = T::pool().try_with(|p| p.borrow_mut().demand.give(1));
    }
}

impl<T: Reusable> Lent<T> {
    /// Takes an encoder from the pool, or creates one.
    pub(super) fn take(key: FormKey) -> Option<Lent<T>> {
        let encoder = match T::pool().with_borrow_mut(|p| p.take(key)) {
            Some(encoder) => encoder,
            None => {
                #[cfg(test)]
                T::pool().with_borrow_mut(|p| p.created += 1);
                T::create(key)?
            }
        };
        T::pool().with_borrow_mut(|p| p.demand.take(1));
        Some(Lent { key, encoder, _used: Used(std::marker::PhantomData) })
    }

    /// Returns the encoder.
    pub(super) fn get(&mut self) -> &mut T {
        &mut self.encoder
    }

    /// Gives the encoder of an ended stream back.
    pub(super) fn end(self) {
        let Lent { key, mut encoder, _used: used } = self;
        let serves = encoder.renew();
        // The count goes down first. While this encoder still counts as used, the pool has no room for it.
        drop(used);
        if serves {
            let _ = T::pool().try_with(|p| p.borrow_mut().keep(key, encoder, T::most(key)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_much_is_kept_as_was_used_at_a_time() {
        let mut d = Demand::new();
        assert_eq!(d.room(), 0);
        d.take(3);
        d.take(2);
        d.give(4);
        assert_eq!(d.room(), 4);
        d.turn();
        assert_eq!(d.room(), 4, "the period before counts, too");
        d.give(1);
        d.turn();
        assert_eq!(d.room(), 1, "one was used at the beginning of the last period");
        d.turn();
        assert_eq!(d.room(), 0);
    }
}
