//! Lines of `error_log` in nginx's form (nginx: error_log).

use crate::config::main_settings::{ErrorLog, ErrorLogTarget};
use crate::request::Request;
use crate::thread::Thread;
use forebay_conf::error::Level;
use std::io::Write;

/// Longest line, bytes (nginx cuts there too).
const MAX_LINE: usize = 2048;

impl Request {
    /// Writes a line about this request.
    pub fn log(&mut self, level: Level, message: &str) {
        let http = self.http();
        let own = http.locations.get(self.location).and_then(|l| l.settings.log.error_log.as_ref());
        let conf = self.conf.clone();
        let logs = own.map_or(conf.config.main.error_log.as_slice(), |l| l.0.as_slice());
        if !logs.iter().any(|l| level <= l.level) {
            return;
        }
        let mut tail = Vec::new();
        self.describe(&mut tail);
        let line = line(&self.thread, level, Some(self.conn.number), message, &tail);
        emit(&self.thread, logs, level, &line);
    }

    fn describe(&self, out: &mut Vec<u8>) {
        let http = self.http();
        let mut put = |label: &str, value: &[u8], quoted: bool| {
            out.extend_from_slice(label.as_bytes());
            if quoted {
                out.push(b'"');
            }
            out.extend_from_slice(value);
            if quoted {
                out.push(b'"');
            }
        };
        put(", client: ", &self.remote, false);
        if let Some(s) = http.servers.get(self.server) {
            put(", server: ", &s.name, false);
        }
        let line = self.head.request_line.of(&self.head.buf);
        if !line.is_empty() {
            put(", request: ", line, true);
        }
        let upstream = &self.modules.upstream;
        if !upstream.log_name.is_empty() {
            put(", upstream: ", &[upstream.log_name.as_slice(), &upstream.log_path].concat(), true);
        }
        if let Some(host) = self.head.get(forebay_http::field::Name::Host) {
            put(", host: ", host, true);
        }
        if let Some(referer) = self.head.get(forebay_http::field::Name::Referer) {
            put(", referrer: ", referer, true);
        }
    }
}

/// One line; `tail` says whom it concerns.
fn line(thread: &Thread, level: Level, connection: Option<u64>, message: &str, tail: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(256);
    out.extend_from_slice(&thread.clock.error_time());
    let _ = write!(out, " [{}] {pid}#{tid}: ", level.as_str(), pid = thread.pid, tid = thread.pid);
    if let Some(n) = connection {
        let _ = write!(out, "*{n} ");
    }
    out.extend_from_slice(message.as_bytes());
    out.extend_from_slice(tail);
    out.truncate(MAX_LINE - 1);
    out.push(b'\n');
    out
}

/// Writes a line that concerns no request.
pub fn log(thread: &Thread, level: Level, message: &str) {
    let conf = thread.config();
    let logs = &conf.config.main.error_log;
    if logs.iter().any(|l| level <= l.level) {
        emit(thread, logs, level, &line(thread, level, None, message, b""));
    }
}

/// Writes a line that concerns a connection before its request is known.
pub fn log_connection(thread: &Thread, level: Level, number: u64, message: &str, tail: &str) {
    let conf = thread.config();
    let logs = &conf.config.main.error_log;
    if logs.iter().any(|l| level <= l.level) {
        emit(thread, logs, level, &line(thread, level, Some(number), message, tail.as_bytes()));
    }
}

fn emit(thread: &Thread, logs: &[ErrorLog], level: Level, line: &[u8]) {
    for l in logs.iter().filter(|l| level <= l.level) {
        match &l.target {
            ErrorLogTarget::Stderr => drop(rustix::io::write(rustix::stdio::stderr(), line)),
            ErrorLogTarget::File(path) => {
                let conf = thread.config();
                if let Some(n) = conf.config.log_files.iter().position(|p| p == path) {
                    let mut pending = thread.error_lines.borrow_mut();
                    pending.add(n, line);
                    // What is severe may be the last line; the rest leaves at the end of the turn.
                    if level <= Level::Alert || pending.is_large() {
                        pending.flush(thread);
                    }
                }
            }
            ErrorLogTarget::Syslog(target) => crate::syslog::send(target, level, line),
        }
    }
}

/// Lines of error logs that leave together at the end of a turn of the loop: under load that is one write
/// for many lines, and nothing waits longer than the turn.
#[derive(Debug, Default)]
pub struct Pending {
    lines: Vec<(usize, Vec<u8>)>,
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

    fn is_large(&self) -> bool {
        self.len >= 32 * 1024
    }

    /// Writes all lines out.
    pub fn flush(&mut self, thread: &Thread) {
        if self.len == 0 {
            return;
        }
        let logs = thread.logs.borrow();
        for (n, bytes) in &mut self.lines {
            let mut rest = bytes.as_slice();
            while let (false, Some(fd)) = (rest.is_empty(), logs.get(*n)) {
                match rustix::io::write(fd, rest) {
                    Ok(n) if n > 0 => rest = rest.get(n..).unwrap_or_default(),
                    Err(rustix::io::Errno::INTR) => {}
                    _ => break,
                }
            }
            bytes.clear();
        }
        self.len = 0;
    }
}
