//! The terminal: raw mode and drawing of lines.

use crate::line::Line;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::getpgrp;
use rustix::termios::{OptionalActions, Termios, isatty, tcgetattr, tcgetpgrp, tcgetwinsize, tcsetattr};
use std::io::{self, Write};
use std::os::fd::AsFd;

/// A terminal with a screen of its own, until this is dropped. `Out` is standard output or standard error. Standard input is in raw
/// mode if it is a terminal, too.
///
/// A signal that ends the process would leave the terminal as it is now: whoever opens a screen takes signals over first.
#[derive(Debug)]
pub struct Screen<Out: Write + AsFd> {
    out: Out,
    /// State of standard input before; `None` if that is no terminal.
    before: Option<Termios>,
    color: bool,
}

/// Alternate screen, no cursor, no wrapping; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l";
const LEAVE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

impl<Out: Write + AsFd> Screen<Out> {
    /// Takes over the terminal.
    ///
    /// # Errors
    /// `out` is no terminal, it is gone, or another job has it: a process in the background that sets a terminal up is stopped.
    pub fn open(mut out: Out) -> io::Result<Screen<Out>> {
        tcgetattr(&out)?;
        if tcgetpgrp(&out).is_ok_and(|foreground| foreground != getpgrp()) {
            return Err(io::Error::other("the process runs in the background"));
        }
        let before = if isatty(io::stdin()) { Some(tcgetattr(io::stdin())?) } else { None };
        if let Some(before) = &before {
            let mut raw = before.clone();
            raw.make_raw();
            tcsetattr(io::stdin(), OptionalActions::Now, &raw)?;
        }
        let entered = out.write_all(ENTER.as_bytes()).and_then(|()| out.flush());
        let screen = Screen { out, before, color: std::env::var_os("NO_COLOR").is_none() };
        entered.map(|()| screen)
    }

    /// Returns the columns and lines of the screen; 80 and 24 if the terminal does not tell.
    pub fn size(&self) -> (usize, usize) {
        size(&self.out).unwrap_or((80, 24))
    }

    /// Draws the lines from the top, and clears the rest.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn draw(&mut self, lines: &[Line]) -> io::Result<()> {
        let (width, height) = self.size();
        self.out.write_all(frame(lines, width, height, self.color).as_bytes())?;
        self.out.flush()
    }

    /// Returns the bytes of the keys that were pressed, without waiting; an empty list if the terminal is gone. [`crate::keys`] tells them
    /// apart.
    pub fn pressed(&self) -> Option<Vec<u8>> {
        self.before.as_ref()?;
        let stdin = io::stdin();
        let mut ready = [PollFd::new(&stdin, PollFlags::IN)];
        if !matches!(poll(&mut ready, Some(&Timespec::default())), Ok(1..)) {
            return None;
        }
        let mut bytes = [0; 64];
        // Not through the buffer of `io::stdin`, whose contents poll(2) does not see.
        let count = rustix::io::read(&stdin, &mut bytes).unwrap_or(0);
        Some(bytes.get(..count).unwrap_or_default().to_vec())
    }
}

/// Returns what draws the lines from the top and clears the rest.
fn frame(lines: &[Line], width: usize, height: usize, color: bool) -> String {
    let mut text = String::from("\x1b[H");
    for (n, line) in lines.iter().take(height).enumerate() {
        if n > 0 {
            text.push_str("\r\n");
        }
        // Not behind the text: after a line as wide as the screen the cursor stays on its last character.
        text.push_str("\x1b[2K");
        text.push_str(&line.colored(width, color));
    }
    if lines.len() < height {
        text.push_str(if lines.is_empty() { "\x1b[J" } else { "\r\n\x1b[J" });
    }
    text
}

/// Returns the columns and lines of a terminal; `None` if it is none.
pub fn size(terminal: impl AsFd) -> Option<(usize, usize)> {
    let size = tcgetwinsize(terminal).ok()?;
    let (width, height) = (usize::from(size.ws_col), usize::from(size.ws_row));
    (width > 0 && height > 0).then_some((width, height))
}

impl<Out: Write + AsFd> Drop for Screen<Out> {
    fn drop(&mut self) {
        let _ = self.out.write_all(LEAVE.as_bytes()).and_then(|()| self.out.flush());
        if let Some(before) = &self.before {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, before);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Look;

    #[test]
    fn nothing_is_cleared_behind_a_full_line() {
        let lines = ["full", "a", "too long"].map(|text| Line::default().add(text, Look::Plain));
        assert_eq!(frame(&lines, 4, 3, false), "\x1b[H\x1b[2Kfull\r\n\x1b[2Ka\r\n\x1b[2Ktoo ");
        assert!(frame(&lines, 4, 9, false).ends_with("too \r\n\x1b[J"));
        assert_eq!(frame(&[], 4, 1, false), "\x1b[H\x1b[J");
    }
}
