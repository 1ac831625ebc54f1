//! Configurations: a part that the test writes, and the directives around it that every test needs.

use crate::{Server, Site};
use std::fmt;

/// A configuration, and files of its directory.
#[derive(Debug, Clone, Default)]
pub struct Conf {
    main: String,
    block: &'static str,
    before: String,
    inside: String,
    is_server: bool,
    files: Vec<(String, String)>,
}

/// Begins a configuration with the contents of the http block.
pub fn http(inside: impl fmt::Display) -> Conf {
    Conf { block: "http", inside: inside.to_string(), ..Conf::default() }
}

/// Begins a configuration with the contents of an http server, which listens at `%PORT0%` unless it says otherwise.
pub fn server(inside: impl fmt::Display) -> Conf {
    Conf { is_server: true, ..http(inside) }
}

/// Begins a configuration with the contents of the stream block.
pub fn stream(inside: impl fmt::Display) -> Conf {
    Conf { block: "stream", inside: inside.to_string(), ..Conf::default() }
}

/// Begins a configuration with a whole file, to which nothing is added.
pub fn main(text: impl fmt::Display) -> Conf {
    Conf { inside: text.to_string(), ..Conf::default() }
}

/// As [`http`](fn@crate::http), with a format string.
#[macro_export]
macro_rules! http {
    ($($text:tt)*) => { $crate::http(format!($($text)*)) };
}

/// As [`server`](fn@crate::server), with a format string.
#[macro_export]
macro_rules! server {
    ($($text:tt)*) => { $crate::server(format!($($text)*)) };
}

/// As [`stream`](fn@crate::stream), with a format string.
#[macro_export]
macro_rules! stream {
    ($($text:tt)*) => { $crate::stream(format!($($text)*)) };
}

/// Returns `true` if a text has a directive outside of its blocks.
fn has(text: &str, name: &str) -> bool {
    let (mut depth, mut quote, mut begins, mut from) = (0usize, None, true, 0);
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(q), _) if c == q => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '{') => (depth, begins) = (depth + 1, true),
            (None, '}') => (depth, begins) = (depth.saturating_sub(1), true),
            (None, ';') => begins = true,
            (None, c) if c.is_whitespace() => {
                if depth == 0 && &text[from..at] == name {
                    return true;
                }
                from = at + 1;
                continue;
            }
            _ => {
                if begins {
                    (begins, from) = (false, at);
                }
                continue;
            }
        }
        from = at + c.len_utf8();
    }
    false
}

impl Conf {
    /// Adds directives of the main context; they take the place of those that a test does without.
    pub fn main(mut self, directives: &str) -> Conf {
        self.main = format!("{} {directives}", self.main);
        self
    }

    /// Sets the number of worker threads.
    pub fn workers(self, count: usize) -> Conf {
        self.main(&format!("worker_processes {count};"))
    }

    /// Adds text to the http or stream block, before the server.
    pub fn outside(mut self, text: impl fmt::Display) -> Conf {
        self.before = format!("{}{text}\n", self.before);
        self
    }

    /// Adds a file to the directory.
    pub fn file(mut self, name: &str, text: impl Into<String>) -> Conf {
        self.files.push((name.to_owned(), text.into()));
        self
    }

    /// Makes the directory.
    pub fn site(self) -> Site {
        let site = Site::new(&self);
        for (name, text) in &self.files {
            site.write(name, text);
        }
        site
    }

    /// Starts the program on it.
    pub fn start(self) -> Server {
        Server::start_on(self.site())
    }
}

/// Directives of the main context that a test has unless it sets them.
const MAIN: [(&str, &str); 4] = [
    ("worker_processes", "worker_processes 1;"),
    ("error_log", "error_log logs/error.log info;"),
    ("pid", "pid logs/nginx.pid;"),
    ("events", "events {}"),
];

/// Directives of the http block that a test has unless it sets them.
const HTTP: [(&str, &str); 3] = [
    ("access_log", "access_log off;"),
    ("client_body_temp_path", "client_body_temp_path %DIR%/body;"),
    ("proxy_temp_path", "proxy_temp_path %DIR%/temp;"),
];

impl fmt::Display for Conf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.block.is_empty() {
            return write!(f, "{}{}", self.main, self.inside);
        }
        for (_, text) in MAIN.iter().filter(|(name, _)| !has(&self.main, name)) {
            write!(f, "{text} ")?;
        }
        write!(f, "{}\n{} {{ ", self.main, self.block)?;
        let level = if self.is_server { &self.before } else { &self.inside };
        for (_, text) in HTTP.iter().filter(|(name, _)| self.block == "http" && !has(level, name)) {
            write!(f, "{text} ")?;
        }
        let own = self.inside.split(';').any(|part| part.contains("listen ") && part.contains("%PORT0%"));
        let listen = if own { "" } else { "listen 127.0.0.1:%PORT0%; " };
        match self.is_server {
            true => writeln!(f, "{}\nserver {{ {listen}{} }} }}", self.before, self.inside),
            false => writeln!(f, "{}\n{} }}", self.before, self.inside),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{has, http, server};

    #[test]
    fn directives_are_found_outside_of_blocks() {
        assert!(has("listen 80;", "listen") && has(" a b;\nlisten 80;", "listen"));
        assert!(!has("server { listen 80; }", "listen") && !has("a listen;", "listen"));
        assert!(has("a { b; } listen 80;", "listen") && !has("a ' listen 8;';", "listen"));
    }

    #[test]
    fn what_a_test_says_is_not_said_twice() {
        let text = http("access_log a; server {}").main("events { x 1; }").to_string();
        assert_eq!(text.matches("access_log").count(), 1, "{text}");
        assert_eq!(text.matches("events").count(), 1, "{text}");
        let text = server("listen %PORT0% ssl;").outside("map a $b {}").to_string();
        assert!(text.contains("map a $b {}\n\nserver { listen %PORT0% ssl; }"), "{text}");
    }
}
