//! States of many types in one container, found by index without a look at their types. Hot path.
//!
//! A [`Slot`] is the name of one state in all containers. Its index belongs to no other slot, so the state at the index has the type of
//! the slot.

use std::fmt;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Number of slots that have been used.
static SLOTS: AtomicUsize = AtomicUsize::new(0);

/// State in a container. `O` is what [`States::derive`] passes on.
pub trait State<O>: Default + 'static {
    /// Empties it. Its memory is used again.
    fn clear(&mut self);

    /// Gives back resources outside of the container.
    fn end(&mut self);

    /// Returns the state with which a derived container begins, or `None` for none.
    fn derive(&self, how: O) -> Option<Self>;

    /// Returns it as text, or `None` if there is nothing to say about it.
    fn text(&self) -> Option<String>;
}

/// Name of a state. For a `static`.
pub struct Slot<T> {
    /// Index of the state, plus one; 0 until the slot is first used.
    index: AtomicUsize,
    // Neither a subtype nor a supertype of `T` may stand for it.
    kind: PhantomData<fn(T) -> T>,
}

impl<T> Default for Slot<T> {
    fn default() -> Slot<T> {
        Slot::new()
    }
}

impl<T> Slot<T> {
    /// Makes a slot.
    pub const fn new() -> Slot<T> {
        Slot { index: AtomicUsize::new(0), kind: PhantomData }
    }

    #[inline]
    fn index(&self) -> usize {
        // The index is known only at run time and never changes, so the weak ordering is enough.
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
}

/// A state of any type.
trait AnyState<O> {
    fn clear(&mut self);
    fn end(&mut self);
    fn derive(&self, how: O) -> Option<Box<dyn AnyState<O>>>;
    fn text(&self) -> Option<String>;
}

impl<O, T: State<O>> AnyState<O> for T {
    fn clear(&mut self) {
        State::clear(self);
    }

    fn end(&mut self) {
        State::end(self);
    }

    fn derive(&self, how: O) -> Option<Box<dyn AnyState<O>>> {
        Some(Box::new(State::derive(self, how)?))
    }

    fn text(&self) -> Option<String> {
        State::text(self)
    }
}

/// The container.
///
/// Invariant: the state at the index of a `Slot<T>` is a `T`. Only [`States::get_mut`] and [`States::derive`] put states here: the first
/// at the index of the slot of their type, the second at the index where a state of the same type was.
pub struct States<O>(Vec<Option<Box<dyn AnyState<O>>>>);

impl<O> Default for States<O> {
    fn default() -> States<O> {
        States(Vec::new())
    }
}

impl<O> fmt::Debug for States<O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().flatten().filter_map(|state| state.text())).finish()
    }
}

impl<O> States<O> {
    /// Returns a state, if there is one.
    #[inline]
    pub fn get<T: State<O>>(&self, slot: &Slot<T>) -> Option<&T> {
        let state: &dyn AnyState<O> = &**self.0.get(slot.index())?.as_ref()?;
        // SAFETY: the state at the index of a `Slot<T>` is a `T` (see the invariant); the reference borrows the container.
        Some(unsafe { &*std::ptr::from_ref(state).cast::<T>() })
    }

    /// Returns a state, to change it. Makes it if there is none.
    #[inline]
    pub fn get_mut<T: State<O>>(&mut self, slot: &Slot<T>) -> &mut T {
        let index = slot.index();
        // A container has no room for states that it has never had.
        if index >= self.0.len() {
            self.0.resize_with(index + 1, || None);
        }
        let state: &mut dyn AnyState<O> = &mut **self.0[index].get_or_insert_with(|| Box::new(T::default()));
        // SAFETY: as for `get`; the reference borrows the container mutably.
        unsafe { &mut *std::ptr::from_mut(state).cast::<T>() }
    }

    /// Empties one state.
    #[inline]
    pub fn clear_one<T: State<O>>(&mut self, slot: &Slot<T>) {
        if let Some(Some(state)) = self.0.get_mut(slot.index()) {
            state.clear();
        }
    }

    /// Empties all states.
    #[inline]
    pub fn clear(&mut self) {
        self.0.iter_mut().flatten().for_each(|state| state.clear());
    }

    /// Gives back the resources that the states hold outside of the container.
    #[inline]
    pub fn end(&mut self) {
        self.0.iter_mut().flatten().for_each(|state| state.end());
    }

    /// Takes over the states that this container begins with, as `parent` has them.
    pub fn derive(&mut self, parent: &States<O>, how: O)
    where
        O: Copy,
    {
        for (index, state) in parent.0.iter().enumerate() {
            let Some(derived) = state.as_ref().and_then(|state| state.derive(how)) else { continue };
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

    #[derive(Default, Debug, PartialEq)]
    struct Count(u32);

    impl State<u32> for Count {
        fn clear(&mut self) {
            self.0 = 0;
        }

        fn end(&mut self) {
            self.0 += 100;
        }

        fn derive(&self, how: u32) -> Option<Count> {
            (how > 0).then(|| Count(self.0 + how))
        }

        fn text(&self) -> Option<String> {
            (self.0 > 0).then(|| format!("{self:?}"))
        }
    }

    #[derive(Default, Debug, PartialEq)]
    struct Text(String);

    impl State<u32> for Text {
        fn clear(&mut self) {
            self.0.clear();
        }

        fn end(&mut self) {}

        fn derive(&self, _: u32) -> Option<Text> {
            None
        }

        fn text(&self) -> Option<String> {
            Some(self.0.clone())
        }
    }

    static FIRST: Slot<Count> = Slot::new();
    static SECOND: Slot<Text> = Slot::new();
    static THIRD: Slot<Count> = Slot::new();

    #[test]
    fn each_slot_has_its_own_state() {
        let mut states = States::<u32>::default();
        assert_eq!((states.get(&FIRST), states.get(&SECOND)), (None, None));
        states.get_mut(&SECOND).0.push_str("text");
        states.get_mut(&FIRST).0 = 1;
        states.get_mut(&THIRD).0 = 3;
        assert_eq!(states.get(&FIRST), Some(&Count(1)));
        assert_eq!(states.get(&SECOND), Some(&Text("text".into())));
        assert_eq!(states.get(&THIRD), Some(&Count(3)));
        states.end();
        states.clear_one(&THIRD);
        assert_eq!((states.get(&FIRST), states.get(&THIRD)), (Some(&Count(101)), Some(&Count(0))));
        assert_eq!(format!("{states:?}").matches("Count").count(), 1);
        states.clear();
        assert_eq!((states.get(&FIRST), states.get(&SECOND)), (Some(&Count(0)), Some(&Text(String::new()))));
    }

    #[test]
    fn derived_states_have_the_type_of_their_slot() {
        let mut parent = States::<u32>::default();
        parent.get_mut(&SECOND).0.push_str("text");
        parent.get_mut(&THIRD).0 = 3;
        let mut states = States::default();
        states.derive(&parent, 4);
        assert_eq!((states.get(&SECOND), states.get(&THIRD)), (None, Some(&Count(7))));
        let mut states = States::default();
        states.derive(&parent, 0);
        assert_eq!(states.get(&THIRD), None);
    }

    #[test]
    fn an_index_belongs_to_one_slot_in_all_threads() {
        let slots: Vec<Slot<Count>> = (0..50).map(|_| Slot::new()).collect();
        let indices = std::thread::scope(|scope| {
            let all = [(); 4].map(|()| scope.spawn(|| slots.iter().map(Slot::index).collect::<Vec<_>>()));
            all.map(|thread| thread.join().expect("indices"))
        });
        assert!(indices.iter().all(|of_one| *of_one == indices[0]));
        let distinct: std::collections::HashSet<&usize> = indices[0].iter().collect();
        assert_eq!(distinct.len(), slots.len());
    }
}
