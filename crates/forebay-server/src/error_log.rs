//! Lines of the error log about requests and connections (nginx: error_log).

use crate::request::{Origin, Request};
use crate::thread::{Thread, ThreadConfig};
use forebay_conf::error::Level;
use forebay_core::client::Client;
use forebay_core::config::main_settings::ErrorLog;
use forebay_core::log::error;
use forebay_core::trace::{self, Step};
use forebay_http::field::Name;

impl Request {
    /// Writes a line about this request.
    pub fn log(&mut self, level: Level, message: &str) {
        self.log_with(level, |out| out.extend_from_slice(message.as_bytes()));
    }

    /// Writes a line about this request. Builds the message only if a log takes the level.
    pub fn log_with(&mut self, level: Level, message: impl FnOnce(&mut Vec<u8>)) {
        if trace::is_on() && level <= Level::Notice {
            let mut text = Vec::new();
            message(&mut text);
            trace::note(|| Step::new("message").fact("level", level.as_str()).fact("text", &text));
            return;
        }
        if !self.logs(level) {
            return;
        }
        let mut line = self.take_buf();
        error::push_prefix(&self.thread, level, Some(self.conn.client.number), &mut line);
        message(&mut line);
        self.describe(&mut line);
        error::end_line(&mut line);
        error::emit(&self.thread, self.error_logs(), level, &line);
        self.give_buf(line);
    }

    /// Writes a line that ends with a description of the request from earlier.
    pub fn log_described(&self, level: Level, message: &str, description: &[u8]) {
        let line = error::line(&self.thread, level, Some(self.conn.client.number), message, description);
        error::emit(&self.thread, self.error_logs(), level, &line);
    }

    /// Returns `true` if a log takes lines of this level.
    pub fn logs(&self, level: Level) -> bool {
        self.error_logs().iter().any(|l| level <= l.level)
    }

    /// Returns the logs of the location.
    fn error_logs(&self) -> &[ErrorLog] {
        let location = self.conf.http.level(self.server, self.location);
        let own = location.and_then(|l| l.settings.log.error_log.as_ref());
        own.map_or(self.conf.config.main.error_log.as_slice(), |l| l.0.as_slice())
    }

    /// Appends the end of a line about this request.
    pub fn describe(&self, out: &mut Vec<u8>) {
        let http = self.http();
        out.extend_from_slice(b", client: ");
        out.extend_from_slice(&self.remote);
        if let Some(s) = http.servers.get(self.server) {
            out.extend_from_slice(b", server: ");
            out.extend_from_slice(&s.name);
        }
        let mut quoted = |label: &[u8], value: &[u8]| {
            out.extend_from_slice(label);
            out.extend_from_slice(value);
            out.push(b'"');
        };
        let line = self.head.request_line.of(&self.head.buf);
        if !line.is_empty() {
            quoted(b", request: \"", line);
        }
        if matches!(self.origin, Origin::Sub { .. }) {
            quoted(b", subrequest: \"", &self.uri.path);
        }
        let upstream = &self.modules.upstream;
        if !upstream.log_name.is_empty() {
            quoted(b", upstream: \"", &[upstream.log_name.as_slice(), &upstream.log_path].concat());
        }
        if let Some(host) = self.head.get(Name::Host) {
            quoted(b", host: \"", host);
        }
        if let Some(referer) = self.head.get(Name::Referer) {
            quoted(b", referrer: \"", referer);
        }
    }
}

/// Returns `true` if any log takes lines of this level from [`log_connection`].
pub fn enabled(thread: &Thread, client: &Client, level: Level) -> bool {
    let conf = thread.config();
    connection_logs(client, &conf).iter().any(|l| level <= l.level)
}

/// Returns the logs for lines about a connection, which are the logs of its default server.
fn connection_logs<'c>(client: &Client, conf: &'c ThreadConfig) -> &'c [ErrorLog] {
    let http = &conf.http;
    let server = client.address(conf).and_then(|a| http.servers.get(a.default_server));
    let own = server.and_then(|s| s.root()?.settings.log.error_log.as_ref());
    own.map_or(conf.config.main.error_log.as_slice(), |l| l.0.as_slice())
}

/// Writes a line about a connection whose request is not known yet.
pub fn log_connection(thread: &Thread, client: &Client, level: Level, message: &str, tail: &str) {
    let conf = thread.config();
    let logs = connection_logs(client, &conf);
    if logs.iter().any(|l| level <= l.level) {
        let line = error::line(thread, level, Some(client.number), message, tail.as_bytes());
        error::emit(thread, logs, level, &line);
    }
}
