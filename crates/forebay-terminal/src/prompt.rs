//! A question whose answer is not shown.

use rustix::process::{Signal, getpid, kill_process};
use rustix::termios::{LocalModes, OptionalActions, SpecialCodeIndex, Termios, tcgetattr, tcsetattr};
use std::io::{self, Read, Write};

/// State of the terminal, which is restored when this is dropped.
struct Hidden(Termios);

impl Drop for Hidden {
    fn drop(&mut self) {
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.0);
    }
}

/// Asks on standard error, and reads a line from the terminal of standard input without showing it. Returns the line without its end.
/// A `^C` ends the program as ever, once the terminal shows again what is typed.
///
/// # Errors
/// Standard input is no terminal, or has ended.
pub fn hidden_line(prompt: &str) -> io::Result<String> {
    let before = tcgetattr(io::stdin())?;
    let mut silent = before.clone();
    // The signal would end the program with the terminal as it is. So the key ends the line instead.
    let interrupt = before.special_codes[SpecialCodeIndex::VINTR];
    silent.local_modes.remove(LocalModes::ECHO | LocalModes::ISIG);
    // Nor do the keys that suspend or kill a program become letters of the answer.
    let others = [SpecialCodeIndex::VSUSP, SpecialCodeIndex::VQUIT].map(|key| before.special_codes[key]);
    silent.special_codes[SpecialCodeIndex::VEOL] = interrupt;
    let hidden = Hidden(before);
    tcsetattr(io::stdin(), OptionalActions::Flush, &silent)?;
    eprint!("{prompt}");
    io::stderr().flush()?;
    let line = read_line(interrupt, others);
    drop(hidden);
    // The end of the line was not shown either.
    eprintln!();
    let Some(line) = line? else {
        kill_process(getpid(), Signal::INT)?;
        return Err(io::ErrorKind::Interrupted.into());
    };
    if line.is_empty() {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let line = String::from_utf8(line).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    Ok(line.trim_end_matches(['\n', '\r']).to_owned())
}

/// Reads a line with its end. Returns `None` if a key interrupts it, whose code is 0 if there is no such key. Leaves out `others`.
fn read_line(interrupt: u8, others: [u8; 2]) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    let mut input = io::stdin().lock();
    let mut byte = [0];
    loop {
        match input.read(&mut byte) {
            Ok(0) => break,
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(e),
        }
        if byte == [interrupt] && interrupt != 0 {
            return Ok(None);
        }
        if others.contains(&byte[0]) && byte != [0] {
            continue;
        }
        line.extend(byte);
        if byte == *b"\n" {
            break;
        }
    }
    Ok(Some(line))
}
