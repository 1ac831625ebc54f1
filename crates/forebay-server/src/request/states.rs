//! State of modules in a request. Each module that has any owns a [`Slot`], and names it nowhere else. Hot path.
//!
//! A request has room for the states that it uses. They are emptied for the next request, and their memory is used again.

use super::rare::Unused;
use super::{Origin, Request};
use forebay_sys::states;

/// States of one request.
pub type States = states::States<Origin>;

/// Name of a module's state in all requests. For a `static`.
pub struct Slot<T>(states::Slot<OfModule<T>>);

/// State of a module, as the container knows it.
#[derive(Default)]
struct OfModule<T>(T);

impl<T: Unused> states::State<Origin> for OfModule<T> {
    fn clear(&mut self) {
        self.0.clear();
    }

    fn end(&mut self) {
        self.0.end();
    }

    fn derive(&self, origin: Origin) -> Option<OfModule<T>> {
        self.0.for_request(origin).map(OfModule)
    }

    fn text(&self) -> Option<String> {
        // Nothing is to be said about a state that has been emptied.
        let text = format!("{:?}", self.0);
        (text != format!("{:?}", T::UNUSED)).then_some(text)
    }
}

impl<T: Unused> Default for Slot<T> {
    fn default() -> Slot<T> {
        Slot::new()
    }
}

impl<T: Unused> Slot<T> {
    /// Makes a slot.
    pub const fn new() -> Slot<T> {
        Slot(states::Slot::new())
    }

    /// Returns the state; [`Unused::UNUSED`] in a request that has not used it.
    #[inline]
    pub fn of<'r>(&self, req: &'r Request) -> &'r T {
        req.modules.states.get(&self.0).map_or(T::UNUSED, |state| &state.0)
    }

    /// Returns the state, to change it.
    #[inline]
    pub fn of_mut<'r>(&self, req: &'r mut Request) -> &'r mut T {
        &mut req.modules.states.get_mut(&self.0).0
    }

    /// Empties the state.
    #[inline]
    pub fn clear(&self, req: &mut Request) {
        req.modules.states.clear_one(&self.0);
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
        assert_eq!(states.get(&FIRST.0).map(|state| &state.0), Some(&Count(8)));
        assert!(states.get(&SECOND.0).is_none());
        let mut states = States::default();
        states.derive(&req.modules.states, Origin::Client);
        assert!(states.get(&FIRST.0).is_none());
    }
}
