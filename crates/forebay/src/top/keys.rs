//! Keys, and signals that mean the same.

use super::view::{DAY, HOUR, MINUTE, Range};
use crate::signals::Signals;
use forebay_terminal::{Screen, keys};
use nix::sys::signal::Signal;
use std::io::{Stdout, stdin};
use std::os::fd::AsFd;
use std::time::Instant;

/// Key that means something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Quit,
    /// Tab of this number, from 0 on.
    Tab(usize),
    NextTab,
    FormerTab,
    NextColumn,
    FormerColumn,
    Reverse,
    Up,
    Down,
    PageUp,
    PageDown,
    Top,
    Pause,
    Range(Range),
    /// Draws again, as other keys do.
    Other,
}

/// Meanings of the bytes that terminals send for keys.
const KEYS: [(&[u8], Key); 27] = [
    (b"q", Key::Quit),
    (b"Q", Key::Quit),
    (b"\x03", Key::Quit),
    (b"\x1b", Key::Quit),
    (b"\t", Key::NextTab),
    (b"\x1b[C", Key::NextTab),
    (b"\x1bOC", Key::NextTab),
    (b"\x1b[Z", Key::FormerTab),
    (b"\x1b[D", Key::FormerTab),
    (b"\x1bOD", Key::FormerTab),
    (b"s", Key::NextColumn),
    (b"S", Key::FormerColumn),
    (b"r", Key::Reverse),
    (b"k", Key::Up),
    (b"\x1b[A", Key::Up),
    (b"\x1bOA", Key::Up),
    (b"j", Key::Down),
    (b"\x1b[B", Key::Down),
    (b"\x1bOB", Key::Down),
    (b"\x1b[5~", Key::PageUp),
    (b"\x1b[6~", Key::PageDown),
    (b"g", Key::Top),
    (b"p", Key::Pause),
    (b" ", Key::Pause),
    (b"m", Key::Range(MINUTE)),
    (b"h", Key::Range(HOUR)),
    (b"d", Key::Range(DAY)),
];

impl Key {
    fn of(bytes: &[u8]) -> Key {
        if let [digit @ b'1'..=b'9'] = bytes {
            return Key::Tab(usize::from(digit - b'1'));
        }
        KEYS.iter().find(|(known, _)| *known == bytes).map_or(Key::Other, |(_, key)| *key)
    }
}

/// Returns the key with the meaning of a signal.
fn key_of(signal: Signal) -> Key {
    match signal {
        Signal::SIGTERM | Signal::SIGHUP | Signal::SIGINT | Signal::SIGQUIT => Key::Quit,
        // Such as the one for another size.
        _ => Key::Other,
    }
}

/// Waits for keys, or a signal that means the same; there are none at `until`.
pub(super) fn wait(screen: &Screen<Stdout>, signals: &Signals, until: Instant) -> Vec<Key> {
    let Ok(ready) = signals.wait(&[stdin().as_fd()], Some(until)) else { return vec![Key::Quit] };
    if let Some(received) = signals.next() {
        return vec![key_of(received.signal)];
    }
    if ready != [true] {
        return Vec::new();
    }
    match screen.pressed() {
        // The terminal is gone.
        Some(bytes) if bytes.is_empty() => vec![Key::Quit],
        bytes => keys(&bytes.unwrap_or_default()).into_iter().map(Key::of).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_known_by_their_bytes() {
        assert_eq!(Key::of(b"q"), Key::Quit);
        assert_eq!(Key::of(b"3"), Key::Tab(2));
        assert_eq!(Key::of(b"\x1b[C"), Key::NextTab);
        assert_eq!(Key::of(b"x"), Key::Other);
    }
}
