//! Tables of requests and answers: tests that need no code.
//!
//! A file has cases, each with a name, a comment and sections:
//!
//! ```text
//! == a_page_of_an_upstream_is_cached
//! # nginx: proxy_cache_valid
//! -- outside
//! proxy_cache_path %DIR%/cache keys_zone=one:1m;
//! -- server
//! location / { proxy_pass http://%up%; proxy_cache one; proxy_cache_valid 200 1h; add_header X-Cache $upstream_cache_status; }
//! -- origin up
//! /old/* => 404 Not Found | "gone"
//! * => 200 OK | X-Target: {target} | "content"
//! -- requests
//! GET /a => 200 | X-Cache: MISS | "content"
//! POST /a | X-Own: 1 | "a body" => 200 OK | !X-Cache | ~"tent"
//! "GET /raw HTTP/1.0\r\n\r\n" => 200
//! -- asked up 3
//! ```
//!
//! - `http`, `server`, `stream`, `main`: the configuration, see [`crate::Conf`]; words after it are directives of the main context.
//!   `compared`: servers for comparisons, see [`crate::wrap`], with its files. `outside`: text of the http block before the server. `%NAME%` is the address of an origin.
//! - `file NAME`, `directory NAME`, `pages` ([`crate::page_files`]): files.
//! - `origin NAME`: an upstream, by target ([`rules`]).
//! - `requests`: each on a connection of its own, which is closed; `requests nginx` compares the answers to those of nginx, too.
//!   `connection`: all on one connection. See [`row`].
//! - `log`: texts that the error log has, or has not (`!`) then. `access NAME`: lines that a log has, all of them.
//! - `asked NAME COUNT`: requests that an origin has received.
//! - `reload`: `OLD => NEW`, changes of the configuration, then a reload, for which the next requests wait.
//! - `refused http|server|stream|main`: `TEXT => MESSAGE`, configurations that are refused, and a part of the reason.

pub mod row;
pub mod rules;

use crate::{Conf, DEADLINE, Oracle, Origin, Server, Site, oracle, page_files, stamp, wait_for, wrap};
use row::{Row, unescape};
use std::time::Instant;

/// Makes a test of each case of a file, which has to have these cases.
#[macro_export]
macro_rules! cases {
    (@ $file:literal $all:tt $($name:ident)*) => {
        $(#[test]
        fn $name() {
            $crate::cases::run(include_str!($file), stringify!($name), stringify!($all));
        })*
    };
    ($file:literal: $($name:ident),* $(,)?) => { $crate::cases!(@ $file [$($name)*] $($name)*); };
}

/// Part of a case.
struct Section<'a> {
    kind: &'a str,
    /// Words after the kind.
    argument: &'a str,
    text: String,
}

impl Section<'_> {
    /// Returns its rows; a line that begins with two spaces continues the one before.
    fn rows(&self) -> Vec<String> {
        let mut rows: Vec<String> = Vec::new();
        for line in self.text.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
            match rows.last_mut() {
                Some(last) if line.starts_with("  ") => *last = format!("{last} {}", line.trim_start()),
                _ => rows.push(line.to_owned()),
            }
        }
        rows
    }
}

/// Returns the sections of a case.
fn sections(case: &str) -> Vec<Section<'_>> {
    let mut all: Vec<Section<'_>> = Vec::new();
    for line in case.lines().skip(1) {
        match (line.strip_prefix("-- "), all.last_mut()) {
            (Some(title), _) => {
                let (kind, argument) = title.split_once(' ').unwrap_or((title, ""));
                all.push(Section { kind, argument: argument.trim(), text: String::new() });
            }
            (None, Some(section)) => section.text = format!("{}{line}\n", section.text),
            (None, None) => assert!(line.is_empty() || line.starts_with('#'), "outside of a section: {line}"),
        }
    }
    all
}

/// Returns the two sides of `A => B`.
fn sides(row: &str) -> (&str, &str) {
    row.rsplit_once(" => ").unwrap_or_else(|| panic!("no => in {row}"))
}

/// Runs a case of a file whose cases are `[all]`.
pub fn run(file: &str, name: &str, all: &str) {
    let file = format!("\n{file}");
    let cases: Vec<&str> = file.split("\n== ").skip(1).collect();
    let names: Vec<&str> = cases.iter().map(|case| case.lines().next().unwrap_or_default().trim()).collect();
    let tests: Vec<&str> = all.trim_matches(['[', ']']).split_whitespace().collect();
    assert_eq!(names, tests, "cases of the file, and those that are tests");
    let at = names.iter().position(|n| *n == name).expect("a case");
    let sections = sections(cases[at]);
    let origins: Vec<(&str, Origin)> = (sections.iter().filter(|s| s.kind == "origin"))
        .map(|s| (s.argument, rules::start(&s.rows())))
        .collect();
    let mut case = Case { sections: &sections, origins: &origins, ours: None, theirs: None };
    if let Some(conf) = case.conf() {
        case.start(&conf);
    }
    for section in &sections {
        case.step(section);
    }
}

/// A case that runs.
struct Case<'a> {
    sections: &'a [Section<'a>],
    origins: &'a [(&'a str, Origin)],
    ours: Option<Server>,
    theirs: Option<Oracle>,
}

/// Begins a configuration of a kind.
fn conf_of(kind: &str, text: &str) -> Option<Conf> {
    Some(match kind {
        "http" => crate::http(text),
        "server" => crate::server(text),
        "stream" => crate::stream(text),
        "main" => crate::main(text),
        "compared" => crate::main(wrap(text)),
        _ => return None,
    })
}

impl Case<'_> {
    /// Replaces the names of origins by their addresses.
    fn filled(&self, text: &str) -> String {
        let replace = |text: String, (name, origin): &(&str, Origin)| {
            text.replace(&format!("%{name}%"), &origin.to_string())
        };
        self.origins.iter().fold(text.to_owned(), replace)
    }

    fn conf(&self) -> Option<Conf> {
        let begin = |s: &Section<'_>| Some(conf_of(s.kind, &self.filled(&s.text))?.main(s.argument));
        let conf = self.sections.iter().find_map(begin)?;
        let outside = self.sections.iter().filter(|s| s.kind == "outside");
        Some(outside.fold(conf, |conf, s| conf.outside(self.filled(&s.text))))
    }

    fn site(&self, conf: &Conf) -> Site {
        let site = conf.clone().site();
        for section in self.sections {
            match section.kind {
                "pages" | "compared" => page_files(&site),
                "directory" => drop(site.make_dir(section.argument)),
                "file" => {
                    let text = section.text.strip_suffix('\n').unwrap_or_default();
                    stamp(&site.write(section.argument, self.filled(text)));
                }
                _ => {}
            }
        }
        site
    }

    fn start(&mut self, conf: &Conf) {
        if self.sections.iter().any(|s| s.kind == "requests" && s.argument == "nginx") {
            self.theirs = oracle().map(|nginx| Oracle::start(&nginx, self.site(conf)));
        }
        self.ours = Some(Server::start_on(self.site(conf)));
    }

    fn server(&self) -> &Server {
        self.ours.as_ref().expect("a configuration")
    }

    fn step(&self, section: &Section<'_>) {
        match section.kind {
            "requests" => {
                let theirs = self.theirs.as_ref().filter(|_| section.argument == "nginx");
                let all: String = (section.rows().iter())
                    .filter_map(|text| Row::parse(&self.filled(text)).check(self.server(), theirs).err())
                    .collect();
                assert!(all.is_empty(), "{all}\n{}", self.server().error_log());
            }
            "connection" => {
                let mut stream = self.server().connect();
                for text in section.rows() {
                    let failed = Row::parse(&self.filled(&text)).check_on(&mut stream, self.server()).err();
                    assert_eq!(failed, None, "{}", self.server().error_log());
                }
            }
            "log" => section.rows().iter().for_each(|text| self.log(&self.filled(text))),
            "access" => {
                let lines = self.filled(&section.text);
                self.server().wait_for_lines(section.argument, lines.lines().count());
                assert_eq!(self.server().read(section.argument), lines);
            }
            "asked" => {
                let (name, count) = section.argument.split_once(' ').expect("a name and a number");
                let (_, origin) = self.origins.iter().find(|(n, _)| *n == name).expect("an origin");
                assert_eq!(origin.asked().to_string(), count, "requests of {name}");
            }
            "reload" => self.reload(section),
            "refused" => section.rows().iter().for_each(|text| {
                let (text, message) = sides(text);
                let conf = conf_of(section.argument, &self.filled(text)).expect("a kind");
                let said = conf.refusal();
                assert!(said.contains(&unescape(message)), "{text}: {said}");
            }),
            "http" | "server" | "stream" | "main" | "compared" | "outside" | "file" | "directory"
            | "pages" | "origin" => {}
            other => panic!("no section {other}"),
        }
    }

    fn log(&self, text: &str) {
        match text.strip_prefix('!') {
            Some(text) => {
                let log = self.server().error_log();
                assert!(!log.contains(text), "{text:?} in {log}");
            }
            None => self.server().wait_for_log(text, 1),
        }
    }

    fn reload(&self, section: &Section<'_>) {
        let server = self.server();
        let mut conf = server.read("nginx.conf");
        for row in section.rows() {
            let (old, new) = sides(&row);
            assert!(conf.contains(old), "{old}");
            conf = conf.replace(old, new);
        }
        let before = server.error_log().matches("reconfigur").count();
        server.reload_with(conf);
        let end = Instant::now() + DEADLINE;
        wait_for("the reload", || {
            assert!(Instant::now() < end, "{}", server.error_log());
            (server.error_log().matches("reconfigur").count() > before).then_some(())
        });
    }
}
