//! Lines of `error_log` in nginx's form (nginx: error_log).

use super::json;
use super::write::write_lines;
use crate::config::main_settings::{ErrorLog, ErrorLogTarget, Form};
use crate::thread::Thread;
use forebay_conf::error::Level;
use forebay_http::h1::response::number;
use forebay_sys::printable;

/// Longest line, bytes; nginx cuts there, too.
const MAX_LINE: usize = 2048;

/// Appends the beginning of a line: time, level, process, and the number of the connection.
pub fn push_prefix(thread: &Thread, level: Level, connection: Option<u64>, out: &mut Vec<u8>) {
    let pid = u64::from(thread.pid);
    out.reserve(256);
    out.extend_from_slice(&thread.clock.error_time());
    out.extend_from_slice(b" [");
    out.extend_from_slice(level.as_str().as_bytes());
    out.extend_from_slice(b"] ");
    number(out, pid);
    out.push(b'#');
    number(out, pid);
    out.extend_from_slice(b": ");
    if let Some(n) = connection {
        out.push(b'*');
        number(out, n);
        out.push(b' ');
    }
}

/// Ends a line: escapes hidden characters, so that text from clients and upstreams cannot fake lines or control a terminal, cuts it at
/// `MAX_LINE` and appends the newline.
pub fn end_line(out: &mut Vec<u8>) {
    // Errors of the system must be in the words of the C library, as in nginx.
    debug_assert!(!forebay_sys::errno::is_foreign(out), "{}", String::from_utf8_lossy(out));
    // Unlike nginx: it writes them as they are.
    printable::escape(out);
    out.truncate(MAX_LINE - 1);
    out.push(b'\n');
}

/// Builds a line. `tail` describes the client and the request.
fn line(thread: &Thread, level: Level, connection: Option<u64>, message: &str, tail: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    push_prefix(thread, level, connection, &mut out);
    out.extend_from_slice(message.as_bytes());
    out.extend_from_slice(tail);
    end_line(&mut out);
    out
}

/// Writes a line that belongs to no request.
pub fn log(thread: &Thread, level: Level, message: &str) {
    let conf = thread.active();
    write(thread, &conf.config.main.error_log, &Entry { level, connection: None, message, tail: b"" });
}

/// What a line says that belongs to no request.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Level.
    pub level: Level,
    /// Number of the connection.
    pub connection: Option<u64>,
    /// Message.
    pub message: &'a str,
    /// Description of the client, behind the message.
    pub tail: &'a [u8],
}

/// Writes a line to those of the logs that take its level, in the form of each.
pub fn write(thread: &Thread, logs: &[ErrorLog], entry: &Entry<'_>) {
    let Entry { level, connection, message, tail } = *entry;
    if takes(logs, Form::Text, level) {
        emit(thread, logs, (Form::Text, level), &line(thread, level, connection, message, tail));
    }
    if takes(logs, Form::Json, level) {
        let mut line = json::Line::new(level, thread.pid, connection);
        line.message(message.as_bytes());
        // It has words of clients in it, so that it cannot be taken apart.
        let context = tail.strip_prefix(b", ").unwrap_or(tail);
        if !context.is_empty() {
            line.text("context", context);
        }
        emit(thread, logs, (Form::Json, level), &line.end());
    }
}

/// Returns `true` if one of the logs takes lines of this level, in this form.
pub fn takes(logs: &[ErrorLog], form: Form, level: Level) -> bool {
    logs.iter().any(|l| l.form == form && level <= l.level)
}

/// Writes a complete line to those of the logs that have its form and take its level.
pub fn emit(thread: &Thread, logs: &[ErrorLog], (form, level): (Form, Level), line: &[u8]) {
    for l in logs.iter().filter(|l| l.form == form && level <= l.level) {
        match &l.target {
            ErrorLogTarget::Stderr => drop(rustix::io::write(rustix::stdio::stderr(), line)),
            ErrorLogTarget::File(path) => {
                let conf = thread.active();
                if let Some(n) = conf.config.log_files.iter().position(|p| p == path) {
                    thread.error_lines.borrow_mut().write(thread, n, level, line);
                }
            }
            ErrorLogTarget::Syslog(target) => super::syslog::send(thread, target, level, line),
        }
    }
}

/// Error log lines that are written together at the end of a turn of the loop. Under load, one write takes many lines. No line
/// waits longer than the turn.
#[derive(Debug, Default)]
pub struct Pending {
    /// Numbers of the logs, with their lines.
    lines: Vec<(usize, Vec<u8>)>,
    /// Length of all lines, bytes.
    len: usize,
}

impl Pending {
    fn add(&mut self, log: usize, line: &[u8]) {
        self.len += line.len();
        match self.lines.iter_mut().find(|(n, _)| *n == log) {
            Some((_, b)) => b.extend_from_slice(line),
            None => self.lines.push((log, line.to_vec())),
        }
    }

    /// Adds a line for the log with this number. Writes all lines at once unless this one may wait for the end of the turn.
    fn write(&mut self, thread: &Thread, log: usize, level: Level, line: &[u8]) {
        self.add(log, line);
        // Write severe lines at once, since the process may end. Under load, others are written at the end of the turn;
        // otherwise at once, so that the log has them before the client has its response, as in nginx.
        if level <= Level::Alert || self.is_large() || !thread.io.poller.is_busy() {
            self.flush(thread);
        }
    }

    fn is_large(&self) -> bool {
        self.len >= 32 * 1024
    }

    /// Writes all lines.
    pub fn flush(&mut self, thread: &Thread) {
        if self.len == 0 {
            return;
        }
        let conf = thread.active();
        let logs = conf.logs.borrow();
        for (n, bytes) in &mut self.lines {
            if let Some(fd) = logs.get(*n) {
                // Lines that cannot be written are lost.
                let _ = write_lines(fd, bytes, true, |_| {});
            }
            bytes.clear();
        }
        self.len = 0;
    }
}
