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
    /// Returns the word in brackets of a log line.
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

/// One diagnostic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// `Emerg` makes the configuration invalid; `Warn` does not.
    pub level: Level,
    /// nginx's words, without level and without ` in FILE:LINE`.
    pub message: String,
    /// The word at fault, for the caret.
    pub span: Option<Span>,
    /// The end of the directive, which nginx prints as ` in FILE:LINE`.
    pub at: Option<Span>,
    /// Advice on the correct form, if known. Never part of nginx's line.
    pub hint: Option<String>,
    /// Ordinal of the directive (see [`crate::tree::Directive::ordinal`]); `u32::MAX` when none.
    pub ordinal: u32,
}
