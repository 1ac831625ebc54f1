//! Configuration errors in nginx's words, with a place and, beyond nginx, a hint.

use crate::tree::Span;

/// Severity, with the names of nginx's `error_log` levels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Level {
    Emerg,
    Alert,
    Crit,
    Error,
    Warn,
    Notice,
    Info,
    Debug,
}

impl Level {
    /// The word in brackets of a log line.
    pub fn as_str(self) -> &'static str {
        match self {
            Level::Emerg => "emerg",
            Level::Alert => "alert",
            Level::Crit => "crit",
            Level::Error => "error",
            Level::Warn => "warn",
            Level::Notice => "notice",
            Level::Info => "info",
            Level::Debug => "debug",
        }
    }
}

/// Writes the error of a system call as nginx does: `28: No space left on device`. What comes from no system call is written
/// in its own words.
///
/// All lines of logs go through here: the standard library writes `No space left on device (os error 28)`.
pub fn errno(error: &std::io::Error) -> String {
    let text = error.to_string();
    match error.raw_os_error() {
        Some(code) => format!("{code}: {}", words(&text)),
        None => text,
    }
}

/// The words of strerror(3) for an error number.
pub fn strerror(code: i32) -> String {
    words(&std::io::Error::from_raw_os_error(code).to_string()).to_owned()
}

const FOREIGN: &[u8] = b" (os error ";

fn words(text: &str) -> &str {
    text.split(" (os error").next().unwrap_or_default()
}

/// Whether a line has an error in the words of the standard library, which should have gone through [`errno`].
pub fn is_foreign(line: &[u8]) -> bool {
    line.windows(FOREIGN.len()).any(|bytes| bytes == FOREIGN)
}

/// One diagnostic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// `Emerg` stops; `Warn` is printed and goes on.
    pub level: Level,
    /// nginx's words, without level and without ` in FILE:LINE`.
    pub message: String,
    /// The word at fault, for the caret.
    pub span: Option<Span>,
    /// What nginx prints as ` in FILE:LINE`: the place where the directive ended.
    pub at: Option<Span>,
    /// What to write instead, if known. Never part of nginx's line.
    pub hint: Option<String>,
    /// Ordinal of the directive (see [`crate::tree::Directive::ordinal`]); `u32::MAX` when none.
    pub ordinal: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_system_are_in_the_words_of_nginx() {
        let full = std::io::Error::from_raw_os_error(28);
        assert_eq!(errno(&full), "28: No space left on device");
        assert_eq!(errno(&std::io::Error::other("broken record")), "broken record");
        assert_eq!(strerror(2), "No such file or directory");
        assert!(is_foreign(format!("failed ({full})").as_bytes()));
        assert!(!is_foreign(format!("failed ({})", errno(&full)).as_bytes()));
    }
}
