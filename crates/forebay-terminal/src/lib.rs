//! Text for people: screens of `forebay top` and `forebay bench`, with a terminal in raw mode, lines with looks, panels and bar
//! charts, and [`print()`] for everything else.
//!
//! The programs draw some lines once a second. A library of widgets would be a sixth of the compiler's work for the first start.

mod chart;
mod key;
mod line;
mod panel;
mod prompt;
mod screen;

pub use chart::{bars, spark};
pub use key::keys;
pub use line::{Line, Look};
pub use panel::{beside, gauge, panel};
pub use prompt::hidden_line;
pub use screen::{Screen, size};

/// Writes to standard output. A reader that has gone away, as `head` does, is no reason to complain, or to panic as `println!` does.
pub fn print(text: impl AsRef<[u8]>) {
    let _ = std::io::Write::write_all(&mut std::io::stdout(), text.as_ref());
}
