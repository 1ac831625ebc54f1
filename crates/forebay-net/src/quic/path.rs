//! What keys and the endpoint tell each other of a path that is not proved (RFC 9000, section 8.2). quinn-proto, which calls the keys, does
//! not carry it.

use std::cell::Cell;

thread_local! {
    static RESPONSE: Cell<Option<u64>> = const { Cell::new(None) };
    static CHALLENGE: Cell<Option<u64>> = const { Cell::new(None) };
    static MOST: Cell<Option<usize>> = const { Cell::new(None) };
    static LENGTH: Cell<Option<usize>> = const { Cell::new(None) };
}

/// Notes the data of a PATH_RESPONSE frame of the client.
pub(super) fn note_response(data: u64) {
    RESPONSE.set(Some(data));
}

/// Calls a function that handles a datagram. Returns the data of a PATH_RESPONSE frame in it.
pub(super) fn watch<R>(handle: impl FnOnce() -> R) -> (Option<u64>, R) {
    RESPONSE.set(None);
    let result = handle();
    (RESPONSE.get(), result)
}

/// Notes the data of a PATH_CHALLENGE frame that is about to be sent.
pub(super) fn note_challenge(data: u64) {
    CHALLENGE.set(Some(data));
}

/// Returns the data of the PATH_CHALLENGE frame that has been made since the last call.
pub(super) fn take_challenge() -> Option<u64> {
    CHALLENGE.take()
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
