//! Tables of requests and answers: tests that need no code.
//!
//! A file has cases, each with a name, a comment and sections. Sections before the first case are the first ones of each.
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
//!   `compared`: servers for comparisons, see [`crate::wrap`], with its files. `outside`: text of the http block before the server.
//!   `%NAME%` is the address of an origin.
//! - `file NAME`, `bytes NAME` (a string), `gzip NAME`, `directory NAME`, `pages` ([`crate::page_files`]): files. `certificates`: `NAME
//!   rsa|ec SUBJECT[ NAMES]`, see [`Site::certificate`]; `openssl`: arguments of it.
//! - `origin NAME`: an upstream, by target ([`rules`]). `origin NAME at_head`: it does not wait for bodies. Others: `upstreams.rs`.
//!   `names NAME`, `rules NAME`: other names that a name server knows, and
//!   other rules of an origin, from there on.
//! - `each NAME`: a list. Lines and titles with `<NAME>` or `<#NAME>` are there for each of its rows or their numbers (`each.rs`).
//! - `requests`: each on a connection of its own, which is closed. After `until` one is sent again until its answer is as expected.
//!   `connection`: all on one connection. See [`row`].
//! - `requests nginx`: the answers are compared to those of nginx, too. More words are the form that is compared, see [`Form`]: `sorted`,
//!   `joined`, `decoded` or the name of a field; and the version from which nginx does the same, such as `1.31`: an older one is not asked.
//! - `judged`: servers that nginx and the program accept, or refuse for the same reason; the version as above.
//! - `log`: texts that the error log has, or has not (`!`), or so many times (`2x TEXT`) then; `1+x TEXT`, `9-x TEXT`: so many times or
//!   more, or less. `log NAME`: those of another file.
//! - `h3`: commands of a client of HTTP/3 (`h3.rs`); without one the case is skipped.
//! - `talk`: connections that stay open (`talk.rs`); `talk until`: the rows are repeated until all hold. `h2`: requests and frames of
//!   HTTP/2 (`h2.rs`). `acts`: signals, and files (`acts.rs`).
//! - `access NAME`: lines that a log has, all of them; `access NAME nginx`: that of nginx, too.
//! - `asked NAME COUNT`: requests that an origin has received so far. `received NAME`: these requests (`received.rs`).
//! - `tls`: connections of `openssl s_client` (`tls.rs`).
//! - `commands`: the program is run (`commands.rs`). Without a configuration above no server is started: `file nginx.conf` is one then.
//! - `write NAME`: another text of a file, from there on. `content NAME`: the text that one has then. `absent`: names that do not exist
//!   then.
//! - `reload`: `OLD => NEW`, changes of the configuration, then a reload, for which the next requests wait.
//! - `refused http|server|stream|main`: `TEXT => MESSAGE[ | MESSAGE]...`, configurations that are refused, and parts of the reason;
//!   `!~TEXT` is none. The text of an http block stands in the third line.
//!
//! - `start daemon`: the program runs as one. `start KIB`: no file may grow beyond that. `datagrams NAME`: a unix socket that was left
//!   behind.
//!
//! `%FILE NAME%` in a file is the text of another one, which a section above has made. `%DIR%` and `%PORT0%` are also filled in what is
//! sent and expected, but for comparisons, and `%NAME.port%` is the port of an origin.

mod acts;
mod commands;
mod each;
mod h2;
mod h3;
mod judged;
mod programs;
mod received;
pub mod row;
pub mod rules;
mod section;
mod socket;
mod steps;
mod talk;
mod text;
mod tls;
mod upstreams;

use crate::h3::Client;
use crate::{
    Conf, DEADLINE, Form, Oracle, P256, RSA, Server, Site, is_before, oracle, page_files, stamp, wait_until,
    wrap,
};
use row::{Row, unescape};
use section::{Section, sections};
use std::os::unix::net::UnixDatagram;
use std::time::Instant;
use talk::Talks;
use upstreams::Upstream;

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

/// Returns the rows of a text for tests that need code: `each` sections, and others with rows.
pub fn rows(text: &str) -> Vec<String> {
    sections(&format!("\n{text}")).iter().flat_map(Section::rows).collect()
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
    let of_all = file.split("\n== ").next().and_then(|head| Some(head[head.find("\n-- ")?..].trim_end()));
    let (title, own) = cases[at].split_at(cases[at].find("\n-- ").unwrap_or(cases[at].len()));
    let sections = sections(&format!("{title}{}{own}", of_all.unwrap_or_default()));
    let origins: Vec<Upstream> =
        sections.iter().filter(|s| s.kind == "origin").map(Upstream::start).collect();
    let talks = Talks::default();
    let (worker, idle, ours, theirs) = (None, None, None, None);
    let mut client = None;
    if let Some(section) = sections.iter().find(|s| s.kind == "h3") {
        let script = if section.argument.is_empty() { "client.py" } else { "attacker.py" };
        client = Client::start_script(script);
        if client.is_none() {
            return;
        }
    }
    let mut case = Case { sections: &sections, origins: &origins, idle, talks, client, worker, ours, theirs };
    match case.conf() {
        Some(conf) => case.start(&conf),
        None => case.idle = Some(case.site(&case.file_conf())),
    }
    for section in &sections {
        case.step(section);
    }
}

/// A case that runs.
struct Case<'a> {
    sections: &'a [Section],
    origins: &'a [Upstream],
    talks: Talks,
    /// Client of HTTP/3.
    client: Option<Client>,
    worker: acts::Worker,
    /// Directory of a case without a server.
    idle: Option<Site>,
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

/// Words after `requests`.
#[derive(Default)]
struct Compared {
    nginx: bool,
    form: Form,
    /// Minor version from which nginx does the same.
    since: u32,
}

impl Compared {
    fn of(argument: &str) -> Compared {
        let mut all = Compared::default();
        for word in argument.split_whitespace() {
            match (word, word.strip_prefix("1.")) {
                ("nginx", _) => all.nginx = true,
                ("sorted", _) => all.form = Form::Sorted,
                ("joined", _) => all.form = Form::Joined,
                ("decoded", _) => all.form = Form::Decoded,
                (_, Some(minor)) => all.since = minor.parse().expect("a version"),
                _ => all.form = Form::Field(word.to_owned()),
            }
        }
        all
    }

    /// Returns nginx, if there is one and it is new enough.
    fn oracle(&self) -> Option<String> {
        oracle().filter(|nginx| self.since == 0 || !is_before(nginx, self.since))
    }
}

impl Case<'_> {
    /// Replaces the names of origins by their addresses.
    fn filled(&self, text: &str) -> String {
        let replace = |text: String, Upstream { name, addr, path, .. }: &Upstream| {
            let text = text.replace(&format!("%{name}.port%"), &addr.port().to_string());
            let at = path.as_ref().map_or(addr.to_string(), |path| format!("unix:{}", path.display()));
            text.replace(&format!("%{name}%"), &at)
        };
        self.origins.iter().fold(text.to_owned(), replace)
    }

    /// The same for what is sent and expected, where the directory and ports have their values, too.
    fn said(&self, text: &str) -> String {
        let site = self.here();
        let text = self.filled(text).replace("%DIR%", &site.dir().display().to_string());
        let port = |text: String, i| text.replace(&format!("%PORT{i}%"), &site.addr(i).port().to_string());
        (0..site.ports()).fold(text, port)
    }

    fn conf(&self) -> Option<Conf> {
        let begin = |s: &Section| Some(conf_of(&s.kind, &self.filled(&s.text))?.main(&s.argument));
        let conf = self.sections.iter().find_map(begin)?;
        let outside = self.sections.iter().filter(|s| s.kind == "outside");
        Some(outside.fold(conf, |conf, s| conf.outside(self.filled(&s.text))))
    }

    /// Returns the configuration of a case without a server.
    fn file_conf(&self) -> Conf {
        let file = self.sections.iter().find(|s| s.kind == "file" && s.argument == "nginx.conf");
        crate::main(file.map_or_else(String::new, |s| self.filled(&s.text)))
    }

    fn site(&self, conf: &Conf) -> Site {
        let site = conf.clone().site();
        for section in self.sections {
            match section.kind.as_str() {
                "pages" | "compared" => page_files(&site),
                "datagrams" => drop(UnixDatagram::bind(site.path(&section.argument)).expect("bind")),
                "gzip" => {
                    let text = section.text.strip_suffix('\n').unwrap_or_default();
                    let packed = crate::through(&["gzip", "-nc"], text.as_bytes());
                    stamp(&site.write_bytes(&section.argument, packed));
                }
                "bytes" => {
                    let bytes = row::string(section.text.trim()).expect("a string");
                    stamp(&site.write_bytes(&section.argument, bytes));
                }
                "directory" => drop(site.make_dir(&section.argument)),
                "openssl" => section.rows().iter().for_each(|args| site.openssl(args)),
                "certificates" => section.rows().iter().for_each(|row| {
                    let words: Vec<&str> = row.split(' ').collect();
                    let key = if words[1] == "ec" { P256 } else { RSA };
                    site.certificate(words[0], key, words[2], words.get(3).copied().unwrap_or_default());
                }),
                "file" => {
                    let mut text = self.filled(section.text.strip_suffix('\n').unwrap_or_default());
                    while let Some((before, rest)) = text.split_once("%FILE ") {
                        let (name, after) = rest.split_once('%').expect("the end of a name");
                        text = format!("{before}{}{after}", site.read(name));
                    }
                    stamp(&site.write(&section.argument, text));
                }
                _ => {}
            }
        }
        site
    }

    fn start(&mut self, conf: &Conf) {
        let compared = |kind: &str| {
            let sections = self.sections.iter().filter(|s| s.kind == kind);
            sections.map(|s| Compared::of(&s.argument)).filter(|c| c.nginx).collect::<Vec<_>>()
        };
        // Logs are those of requests, which say since when nginx knows the configuration.
        let requests = compared("requests");
        let asked = if requests.is_empty() { compared("access") } else { requests };
        self.theirs =
            asked.iter().find_map(Compared::oracle).map(|nginx| Oracle::start(&nginx, self.site(conf)));
        let start = self.sections.iter().find(|s| s.kind == "start").map(|s| s.argument.as_str());
        let site = self.site(conf);
        self.ours = Some(match start {
            None => Server::start_on(site),
            Some("daemon") => Server::daemon_on(site),
            Some(kib) => Server::start_limited(site, kib.parse().expect("KiB")),
        });
    }

    fn server(&self) -> &Server {
        self.ours.as_ref().expect("a configuration")
    }

    /// Returns the directory.
    fn here(&self) -> &Site {
        self.idle.as_ref().unwrap_or_else(|| &self.server().site)
    }

    fn step(&mut self, section: &Section) {
        match section.kind.as_str() {
            "requests" => self.requests(section),
            "connection" => {
                let mut stream = self.server().connect();
                for text in section.rows() {
                    let failed = Row::parse(&self.said(&text)).check_on(&mut stream, self.server()).err();
                    assert_eq!(failed, None, "{}", self.server().error_log());
                }
            }
            "judged" => judged::check(&section.rows(), &Compared::of(&section.argument)),
            "log" => {
                let name = if section.argument.is_empty() { "logs/error.log" } else { &section.argument };
                section.rows().iter().for_each(|text| self.log(name, &self.said(text)));
            }
            "talk" => self.talk(section),
            "h2" => {
                let rows: Vec<String> = section.rows().iter().map(|row| self.said(row)).collect();
                h2::check(&rows, &section.argument, self.server());
            }
            "h3" => {
                let rows: Vec<String> = section.rows().iter().map(|row| self.said(row)).collect();
                let server = self.ours.as_ref().expect("a configuration");
                let client = self.client.as_mut().expect("checked before");
                let failed: String =
                    rows.iter().filter_map(|row| h3::check(row, client, server).err()).collect();
                assert!(failed.is_empty(), "{failed}\n{}", server.error_log());
            }
            "acts" => {
                let server = self.ours.as_mut().expect("a configuration");
                section
                    .rows()
                    .iter()
                    .for_each(|row| acts::act(row, server, &mut self.worker, &mut self.talks));
            }
            "rules" => self.origin(&section.argument).change(&section.rows()),
            "names" => self.origin(&section.argument).know(&section.rows()),
            "access" => self.access(section),
            "asked" => {
                let (name, count) = section.argument.split_once(' ').expect("a name and a number");
                let (origin, count) = (self.origin(name), count.parse().expect("a number"));
                wait_until(&format!("requests to {name}"), || origin.asked() >= count);
                assert_eq!(origin.asked(), count, "requests of {name}");
            }
            "received" => {
                let rows: Vec<String> = section.rows().iter().map(|row| self.said(row)).collect();
                received::check(&rows, &section.argument, self.origin(&section.argument).http());
            }
            "tls" => {
                let end = Instant::now() + DEADLINE;
                loop {
                    let failed = |row: &String| tls::check(&self.said(row), self.server()).err();
                    let all: Vec<String> = section.rows().iter().filter_map(failed).collect();
                    if all.is_empty() {
                        break;
                    }
                    let again = section.argument == "until" && Instant::now() < end;
                    assert!(again, "{}\n{}", all.join("\n"), self.server().error_log());
                }
            }
            "commands" => {
                let failed = |row: &String| commands::check(&self.said(row), self.here()).err();
                let all: Vec<String> = section.rows().iter().filter_map(failed).collect();
                assert!(all.is_empty(), "{}", all.join("\n"));
            }
            "write" => {
                let text = section.text.strip_suffix('\n').unwrap_or_default();
                self.here().write(&section.argument, self.filled(text));
            }
            "content" => {
                let text = section.text.strip_suffix('\n').unwrap_or_default();
                let found = self.here().read(&section.argument);
                assert_eq!(found, self.said(text), "{}", section.argument);
            }
            "absent" => section.rows().iter().for_each(|name| {
                assert!(!self.here().path(name).exists(), "{name} exists");
            }),
            "reload" => self.reload(section),
            "refused" => section.rows().iter().for_each(|text| {
                let (text, message) = sides(text);
                let conf = conf_of(&section.argument, &self.filled(text)).expect("a kind");
                let site = self.site(&conf);
                // A file of this name is for commands.
                site.write("nginx.conf", conf.to_string());
                let out = site.run(&["-t"]);
                let said = String::from_utf8_lossy(&out.stderr).into_owned();
                assert!(!out.status.success(), "{text} is not refused: {said}");
                for part in message.split(" | ") {
                    let (part, has) = part.strip_prefix("!~").map_or((part, true), |part| (part, false));
                    let part = unescape(part).replace("%DIR%", &site.dir().display().to_string());
                    assert_eq!(said.contains(&part), has, "{text}: {part}: {said}");
                }
            }),
            "http" | "server" | "stream" | "main" | "compared" | "outside" | "file" | "gzip" | "bytes"
            | "directory" | "start" | "datagrams" | "pages" | "origin" | "certificates" | "openssl" => {}
            other => panic!("no section {other}"),
        }
    }
}
