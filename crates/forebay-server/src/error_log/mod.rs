//! Lines of the error log about requests and connections (nginx: error_log).

use self::tags::Tags;
use crate::request::{Origin, Request};
use crate::thread::{Thread, ThreadConfig};
use forebay_conf::error::Level;
use forebay_core::client::Client;
use forebay_core::config::main_settings::{ErrorLog, Form};
use forebay_core::log::error::{self, Entry};
use forebay_core::log::json;
use forebay_core::trace::{self, Step};
use forebay_http::field::Name;

mod tags;

pub use tags::ErrorLogTags;

impl Request {
    /// Writes a line about this request.
    pub fn log(&mut self, level: Level, message: &str) {
        self.log_with(level, |out| out.extend_from_slice(message.as_bytes()));
    }

    /// Writes a line about this request. Builds the message only if a log takes the level.
    pub fn log_with(&mut self, level: Level, message: impl FnOnce(&mut Vec<u8>)) {
        // A request whose way is recorded is no event of the server, so the line belongs into the record.
        if trace::is_on() && level <= Level::Notice {
            let mut text = Vec::new();
            message(&mut text);
            trace::note(|| Step::new("message").fact("level", level.as_str()).fact("text", &text));
            return;
        }
        if !self.logs(level) {
            return;
        }
        let mut text = self.take_buf();
        message(&mut text);
        // Message and tags are evaluated once, although logs of both forms may take the line.
        let tags = tags::of(self);
        if error::takes(self.error_logs(), Form::Text, level) {
            self.log_text(level, &text, &tags);
        }
        if error::takes(self.error_logs(), Form::Json, level) {
            self.log_json(level, &text, &tags);
        }
        self.give_buf(text);
    }

    fn log_text(&mut self, level: Level, message: &[u8], tags: &Tags) {
        let mut line = self.take_buf();
        error::push_prefix(&self.thread, level, Some(self.conn.client.number), &mut line);
        line.extend_from_slice(message);
        self.describe(&mut line);
        for (name, value) in tags {
            line.extend_from_slice(b", ");
            line.extend_from_slice(name.as_bytes());
            line.extend_from_slice(b": \"");
            line.extend_from_slice(value);
            line.push(b'"');
        }
        error::end_line(&mut line);
        error::emit(&self.thread, self.error_logs(), (Form::Text, level), &line);
        self.give_buf(line);
    }

    fn log_json(&self, level: Level, message: &[u8], tags: &Tags) {
        let mut line = json::Line::new(level, self.thread.pid, Some(self.conn.client.number));
        line.message(message);
        self.each_fact(&mut |fact, value| line.text(fact.name(), value));
        for (name, value) in tags {
            line.text(name, value);
        }
        error::emit(&self.thread, self.error_logs(), (Form::Json, level), &line.end());
    }

    /// Writes a line that ends with a description of the request from earlier.
    pub fn log_described(&self, level: Level, message: &str, description: &[u8]) {
        let connection = Some(self.conn.client.number);
        error::write(
            &self.thread,
            self.error_logs(),
            &Entry { level, connection, message, tail: description },
        );
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
        self.each_fact(&mut |fact, value| {
            out.extend_from_slice(b", ");
            out.extend_from_slice(fact.name().as_bytes());
            let (open, close): (&[u8], &[u8]) =
                if fact.is_quoted() { (b": \"", b"\"") } else { (b": ", b"") };
            out.extend_from_slice(open);
            out.extend_from_slice(value);
            out.extend_from_slice(close);
        });
    }

    /// Gives what a line says about this request, in the order of the line.
    fn each_fact(&self, take: &mut dyn FnMut(Fact, &[u8])) {
        take(Fact::Client, &self.remote);
        if let Some(s) = self.http().servers.get(self.server) {
            take(Fact::Server, &s.name);
        }
        let line = self.head.request_line.of(&self.head.buf);
        if !line.is_empty() {
            take(Fact::Request, line);
        }
        if matches!(self.origin, Origin::Sub { .. }) {
            take(Fact::Subrequest, &self.uri.path);
        }
        let upstream = &self.modules.upstream;
        if !upstream.log_name.is_empty() {
            take(Fact::Upstream, &[upstream.log_name.as_slice(), &upstream.log_path].concat());
        }
        if let Some(host) = self.head.get(Name::Host) {
            take(Fact::Host, host);
        }
        if let Some(referer) = self.head.get(Name::Referer) {
            take(Fact::Referrer, referer);
        }
    }
}

/// Fact about a request in a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fact {
    Client,
    Server,
    Request,
    Subrequest,
    Upstream,
    Host,
    Referrer,
}

impl Fact {
    fn name(self) -> &'static str {
        match self {
            Fact::Client => "client",
            Fact::Server => "server",
            Fact::Request => "request",
            Fact::Subrequest => "subrequest",
            Fact::Upstream => "upstream",
            Fact::Host => "host",
            Fact::Referrer => "referrer",
        }
    }

    fn is_quoted(self) -> bool {
        !matches!(self, Fact::Client | Fact::Server)
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
    let entry = Entry { level, connection: Some(client.number), message, tail: tail.as_bytes() };
    error::write(thread, logs, &entry);
}
