//! Logs sent to syslog (nginx: syslog:).

use crate::thread::Thread;
use forebay_conf::error::Level;

/// Checks the parameters behind `syslog:`.
///
/// # Errors
/// In nginx's words.
pub fn check(parameters: &str) -> Result<(), String> {
    let _ = parameters;
    Ok(())
}

/// Sends an error log line.
pub fn send(parameters: &str, level: Level, line: &[u8]) {
    let _ = (parameters, level, line);
}

/// Sends an access log line.
pub fn send_access(thread: &Thread, parameters: &str, line: &[u8]) {
    let _ = (thread, parameters, line);
}
