//! Length that a datagram for a path that is not proved may have (RFC 9000, section 8.2): the endpoint tells the keys, which quinn-proto calls.

use std::cell::Cell;

thread_local! {
    static MOST: Cell<Option<usize>> = const { Cell::new(None) };
    static LENGTH: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Calls a function that makes a datagram. With `most`, the longest that the path may have, padding is left out: a challenge goes out in a
/// shorter datagram then (section 8.2.1). Returns the length of the datagram if it is shorter than it looks.
pub(super) fn shorten<R>(most: Option<usize>, make: impl FnOnce() -> R) -> (Option<usize>, R) {
    MOST.set(most);
    LENGTH.set(None);
    let result = make();
    MOST.set(None);
    (LENGTH.take(), result)
}

/// Returns the length that the packet about to be sealed may have, with its tag; `None` for any.
pub(super) fn most() -> Option<usize> {
    MOST.get()
}

/// Notes that the packet has been shortened to this length.
pub(super) fn note_length(length: usize) {
    LENGTH.set(Some(length));
}
