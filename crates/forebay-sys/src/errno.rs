//! Error numbers in nginx's words.

use rustix::io::Errno;
use std::io::Error;

/// Writes the error of a system call as nginx does: `28: No space left on device`. An error that has no number is written in
/// its own words.
///
/// All lines of logs go through here: the standard library writes `No space left on device (os error 28)`.
pub fn errno(error: &Error) -> String {
    let text = error.to_string();
    match error.raw_os_error() {
        Some(code) => format!("{code}: {}", words(&text)),
        None => text,
    }
}

/// Writes an error number in brackets, as at the end of a line of nginx's log: `(2: No such file or directory)`.
pub fn errno_text(e: Errno) -> String {
    format!("({})", errno(&e.into()))
}

/// Returns the words of strerror(3) for an error number.
pub fn strerror(code: i32) -> String {
    words(&Error::from_raw_os_error(code).to_string()).to_owned()
}

const FOREIGN: &[u8] = b" (os error ";

fn words(text: &str) -> &str {
    text.split(" (os error").next().unwrap_or_default()
}

/// Tells whether a line has an error in the words of the standard library, which should have gone through [`errno`].
pub fn is_foreign(line: &[u8]) -> bool {
    line.windows(FOREIGN.len()).any(|bytes| bytes == FOREIGN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_system_are_in_the_words_of_nginx() {
        let full = Error::from_raw_os_error(28);
        assert_eq!(errno(&full), "28: No space left on device");
        assert_eq!(errno(&Error::other("broken record")), "broken record");
        assert_eq!(errno_text(Errno::NOENT), "(2: No such file or directory)");
        assert_eq!(strerror(2), "No such file or directory");
        assert!(is_foreign(format!("failed ({full})").as_bytes()));
        assert!(!is_foreign(format!("failed ({})", errno(&full)).as_bytes()));
    }
}
