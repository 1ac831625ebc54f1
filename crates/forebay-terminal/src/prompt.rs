//! A question whose answer is not shown.

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use std::io::{self, BufRead, Write};

/// State of the terminal, which is restored when this is dropped.
struct Hidden(Termios);

impl Drop for Hidden {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.0);
    }
}

/// Asks on standard error, and reads a line from the terminal of standard input without showing it. Returns the line without its end.
///
/// # Errors
/// Standard input is no terminal, or has ended.
pub fn hidden_line(prompt: &str) -> io::Result<String> {
    let before = tcgetattr(io::stdin())?;
    let mut silent = before.clone();
    silent.local_modes.remove(LocalModes::ECHO);
    let hidden = Hidden(before);
    tcsetattr(io::stdin(), OptionalActions::Flush, &silent)?;
    eprint!("{prompt}");
    io::stderr().flush()?;
    let mut line = String::new();
    let count = io::stdin().lock().read_line(&mut line)?;
    drop(hidden);
    // The end of the line was not shown either.
    eprintln!();
    if count == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end_matches(['\n', '\r']).to_owned())
}
