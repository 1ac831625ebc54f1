//! State of modules in a request. Each module that has any owns a [`Slot`], and names it nowhere else. Hot path.
//!
//! A request has room for the states that it uses. They are emptied for the next request, and their memory is used again.

use super::rare::Unused;
use super::{Origin, Request};
use std::any::Any;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Number of slots that have been used.
static SLOTS: AtomicUsize = AtomicUsize::new(0);

/// Name of a module's state in all requests.
pub struct Slot<T> {
    /// Index of the state, plus one; 0 until the slot is first used.
    index: AtomicUsize,
    kind: PhantomData<fn() -> T>,
}

impl<T: Unused> Default for Slot<T> {
    fn default() -> Slot<T> {
        Slot::new()
    }
}

impl<T: Unused> Slot<T> {
    /// Makes a slot, for a `static`.
    pub const fn new() -> Slot<T> {
        Slot { index: AtomicUsize::new(0), kind: PhantomData }
    }

    #[inline]
    fn index(&self) -> usize {
        // Slots are statics of modules, so the number of an index is known only at run time. An index never changes, so the weak ordering
        // is enough.
        match self.index.load(Relaxed) {
            0 => self.assign(),
            n => n - 1,
        }
    }

    /// Gives the slot its index. If two threads do so at once, one index stays unused.
    #[cold]
    fn assign(&self) -> usize {
        let new = SLOTS.fetch_add(1, Relaxed) + 1;
        match self.index.compare_exchange(0, new, Relaxed, Relaxed) {
            Ok(_) => new - 1,
            Err(other) => other - 1,
        }
    }

    /// Returns the state; [`Unused::UNUSED`] in a request that has not used it.
    #[inline]
    pub fn of<'r>(&self, req: &'r Request) -> &'r T {
        req.modules.states.get(self.index()).unwrap_or(T::UNUSED)
    }

    /// Returns the state, to change it.
    #[inline]
    pub fn of_mut<'r>(&self, req: &'r mut Request) -> &'r mut T {
        req.modules.states.get_mut(self.index())
    }

    /// Empties the state.
    #[inline]
    pub fn clear(&self, req: &mut Request) {
        if let Some(Some(state)) = req.modules.states.0.get_mut(self.index()) {
            state.clear();
        }
    }
}

/// A state of any type.
trait AnyState: Any {
    fn clear(&mut self);
    fn end(&mut self);
    fn for_request(&self, origin: Origin) -> Option<Box<dyn AnyState>>;
    /// Returns the state as text, unless it is unused.
    fn text(&self) -> Option<String>;
}

impl<T: Unused> AnyState for T {
    fn clear(&mut self) {
        Unused::clear(self);
    }

    fn end(&mut self) {
        Unused::end(self);
    }

    fn for_request(&self, origin: Origin) -> Option<Box<dyn AnyState>> {
        Some(Box::new(Unused::for_request(self, origin)?))
    }

    fn text(&self) -> Option<String> {
        Some(format!("{self:?}")).filter(|text| *text != format!("{:?}", T::UNUSED))
    }
}

/// States of one request, by the indices of their slots.
#[derive(Default)]
pub struct States(Vec<Option<Box<dyn AnyState>>>);

impl std::fmt::Debug for States {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.iter().flatten().filter_map(|state| state.text())).finish()
    }
}

impl States {
    #[inline]
    fn get<T: Unused>(&self, index: usize) -> Option<&T> {
        let state: &dyn Any = &**self.0.get(index)?.as_ref()?;
        state.downcast_ref()
    }

    #[inline]
    fn get_mut<T: Unused>(&mut self, index: usize) -> &mut T {
        // A request has no room for states that it has never used.
        if index >= self.0.len() {
            self.0.resize_with(index + 1, || None);
        }
        let state: &mut dyn Any = &mut **self.0[index].get_or_insert_with(|| Box::new(T::default()));
        state.downcast_mut().expect("an index belongs to one slot, and so to one type")
    }

    /// Empties all states for the next request.
    #[inline]
    pub fn clear(&mut self) {
        self.0.iter_mut().flatten().for_each(|state| state.clear());
    }

    /// Gives back the resources that the states hold outside of the request.
    #[inline]
    pub fn end(&mut self) {
        self.0.iter_mut().flatten().for_each(|state| state.end());
    }

    /// Takes over the states that a request made for another one begins with.
    pub(super) fn derive(&mut self, parent: &States, origin: Origin) {
        for (index, state) in parent.0.iter().enumerate() {
            let Some(derived) = state.as_ref().and_then(|state| state.for_request(origin)) else { continue };
            if index >= self.0.len() {
                self.0.resize_with(index + 1, || None);
            }
            self.0[index] = Some(derived);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::request;

    #[derive(Default, Debug, PartialEq)]
    struct Count(u32);

    impl Unused for Count {
        const UNUSED: &'static Count = &Count(0);

        fn clear(&mut self) {
            self.0 = 0;
        }

        fn for_request(&self, origin: Origin) -> Option<Count> {
            (origin == Origin::Background).then(|| Count(self.0 + 1))
        }
    }

    static FIRST: Slot<Count> = Slot::new();
    static SECOND: Slot<Vec<u8>> = Slot::new();

    #[test]
    fn states_are_emptied_and_kept() {
        let mut req = request("", "");
        assert_eq!((FIRST.of(&req), SECOND.of(&req).len()), (&Count(0), 0));
        FIRST.of_mut(&mut req).0 = 7;
        SECOND.of_mut(&mut req).extend_from_slice(b"text");
        assert_eq!((FIRST.of(&req), SECOND.of(&req).as_slice()), (&Count(7), &b"text"[..]));
        let place = SECOND.of(&req).as_ptr();
        req.modules.states.clear();
        assert_eq!((FIRST.of(&req), SECOND.of(&req).len()), (&Count(0), 0));
        SECOND.of_mut(&mut req).push(1);
        assert_eq!(SECOND.of(&req).as_ptr(), place, "the memory is used again");
    }

    #[test]
    fn a_state_decides_which_requests_inherit_it() {
        let mut req = request("", "");
        FIRST.of_mut(&mut req).0 = 7;
        SECOND.of_mut(&mut req).push(1);
        let mut states = States::default();
        states.derive(&req.modules.states, Origin::Background);
        assert_eq!(states.get(FIRST.index()), Some(&Count(8)));
        assert_eq!(states.get::<Vec<u8>>(SECOND.index()), None);
        let mut states = States::default();
        states.derive(&req.modules.states, Origin::Client);
        assert_eq!(states.get::<Count>(FIRST.index()), None);
    }
}
