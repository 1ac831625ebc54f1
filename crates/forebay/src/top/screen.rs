//! The terminal: raw mode, keys, and drawing of lines.

use super::line::Line;
use crate::signals::Signals;
use nix::sys::signal::Signal;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use std::io::{self, Read, Write};
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
    /// Draws again, as other keys do.
    Other,
}

/// Meanings of the bytes that terminals send for keys.
const KEYS: [(&[u8], Key); 24] = [
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

/// A terminal in raw mode with a screen of its own, until this is dropped.
pub(super) struct Screen {
    before: Termios,
    /// Signals are read: one that ends the process would leave the terminal in raw mode.
    signals: Signals,
    color: bool,
}

/// Alternate screen, no cursor, no wrapping; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

impl Screen {
    /// Takes over the terminal.
    ///
    /// # Errors
    /// It is none.
    pub(super) fn open() -> io::Result<Screen> {
        let before = tcgetattr(io::stdin())?;
        let signals = Signals::take_over()?;
        let mut raw = before.clone();
        raw.make_raw();
        tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        let screen = Screen { before, signals, color: std::env::var_os("NO_COLOR").is_none() };
        io::stdout().write_all(ENTER.as_bytes())?;
        Ok(screen)
    }

    /// Returns the columns and lines of the terminal; `None` if standard output is none.
    pub(super) fn size() -> Option<(usize, usize)> {
        let size = tcgetwinsize(io::stdout()).ok()?;
        let (width, height) = (usize::from(size.ws_col), usize::from(size.ws_row));
        (width > 0 && height > 0).then_some((width, height))
    }

    /// Draws the lines from the top, and clears the rest.
    ///
    /// # Errors
    /// The terminal is gone.
    pub(super) fn draw(&mut self, lines: &[Line], width: usize, height: usize) -> io::Result<()> {
        let mut text = String::from("\x1b[H");
        for (n, line) in lines.iter().take(height).enumerate() {
            if n > 0 {
                text.push_str("\r\n");
            }
            text.push_str(&line.colored(width, self.color));
            text.push_str("\x1b[K");
        }
        text.push_str("\x1b[J");
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    }

    /// Waits for a key, or a signal that means the same; `None` at `until`.
    pub(super) fn key(&mut self, until: Instant) -> Option<Key> {
        let stdin = io::stdin();
        let Ok(ready) = self.signals.wait(&[stdin.as_fd()], Some(until)) else { return Some(Key::Quit) };
        if let Some(received) = self.signals.next() {
            return Some(key_of(received.signal));
        }
        if ready != [true] {
            return None;
        }
        let mut bytes = [0; 16];
        match stdin.lock().read(&mut bytes) {
            // The terminal is gone.
            Ok(0) | Err(_) => Some(Key::Quit),
            Ok(count) => Some(Key::of(bytes.get(..count).unwrap_or_default())),
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = io::stdout().write_all(LEAVE.as_bytes());
        let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.before);
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
