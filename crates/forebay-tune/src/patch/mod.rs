//! The edits of a configuration that set a level of a knob, and comments that give their reason.

pub(crate) mod cache;
mod fastcgi;
mod hosts;

use crate::knobs::{Knob, Place, statements};
use forebay_conf::files::Files;
use forebay_copy::patch::{Edit, View, normal};

/// Returns the changes of a level of a knob. None: the configuration has it already, or there is no place for it.
pub fn edits(view: &View<'_>, knob: &Knob, level: &str) -> Vec<Edit> {
    match knob.place {
        Place::Main => set_all(view, None, &statements(level)),
        Place::Events => set_events(view, &statements(level)),
        Place::There => set_there(view, level),
        Place::Http => set_http(view, level),
        Place::Listen => set_listen(view, level),
        Place::ListenThere => raise_listen(view, level),
        Place::ErrorLog => quieten_logs(view, level),
        Place::NewUpstream => hosts::new_upstreams(view, level),
        Place::FastCgi => fastcgi::keep_connections(view, level),
        Place::Cache => cache::store(view, level, None),
        Place::AccessLog => buffer_logs(view, level),
        Place::Upstream => upstream(view, level),
        Place::Sysctl => {
            level.split_once(';').map_or_else(Vec::new, |(_, word)| listen_parameter(view, word.trim()))
        }
    }
}

fn set_all(view: &View<'_>, block: Option<usize>, statements: &[(&str, &str)]) -> Vec<Edit> {
    statements.iter().flat_map(|(name, args)| view.set(block, name, args)).collect()
}

fn set_events(view: &View<'_>, statements: &[(&str, &str)]) -> Vec<Edit> {
    match view.child(None, "events") {
        Some(events) => set_all(view, Some(events), statements),
        None => Vec::new(),
    }
}

/// Changes directives where they are, except in `upstream`.
fn set_there(view: &View<'_>, level: &str) -> Vec<Edit> {
    let in_upstream = |n: usize| view.nodes[n].parent.is_some_and(|p| view.name(p) == "upstream");
    let mut edits = Vec::new();
    for (name, args) in statements(level) {
        let others = view.all(name).filter(|n| !in_upstream(*n) && view.args(*n).join(" ") != args);
        edits.extend(others.map(|n| view.replace(n, &format!("{name} {args};"))));
    }
    edits
}

fn set_http(view: &View<'_>, level: &str) -> Vec<Edit> {
    let Some(http) = view.child(None, "http") else { return Vec::new() };
    let statements = statements(level);
    // Zones are made once; a second level that only differs in them is of no use.
    let has_zone = || view.all("ssl_session_cache").any(|n| view.args(n)[0].starts_with("shared"));
    if statements.iter().any(|(name, _)| *name == "ssl_session_cache") && has_zone() {
        return Vec::new();
    }
    set_all(view, Some(http), &statements)
}

/// Adds a parameter of `listen`, and sets the directive in `events` that belongs to it.
fn set_listen(view: &View<'_>, level: &str) -> Vec<Edit> {
    let parts = statements(level);
    let Some(((word, _), others)) = parts.split_first() else { return Vec::new() };
    let mut edits = listen_parameter(view, word);
    if !edits.is_empty() {
        edits.extend(set_events(view, others));
    }
    edits
}

/// Adds parameters to each `access_log` of a file that has no buffer.
fn buffer_logs(view: &View<'_>, level: &str) -> Vec<Edit> {
    let Some(http) = view.child(None, "http") else { return Vec::new() };
    let mut edits = Vec::new();
    for n in view.all("access_log").filter(|n| view.within(*n, http)) {
        let args = view.args(n);
        let is_file = |a: &String| a != "off" && !a.starts_with("syslog:") && !a.contains('$');
        let buffered = args.iter().any(|a| a.starts_with("buffer=") || a.starts_with("gzip"));
        if args.first().is_some_and(is_file) && !buffered {
            let format = if args.len() == 1 { "combined " } else { "" };
            edits.push(view.append(n, &format!("{format}{level}")));
        }
    }
    edits
}

fn listen_parameter(view: &View<'_>, word: &str) -> Vec<Edit> {
    let mut seen = std::collections::BTreeSet::new();
    let mut edits = Vec::new();
    let name = word.split('=').next().unwrap_or(word).to_owned();
    for n in view.all("listen") {
        let args = view.args(n);
        let Some(address) = args.first().filter(|a| !a.starts_with("unix:")) else { continue };
        let first = seen.insert(normal(address));
        let has = args.iter().any(|a| a.split('=').next() == Some(name.as_str()));
        if first && !has && !args.iter().any(|a| a == "quic") {
            edits.push(view.append(n, word));
        }
    }
    edits
}

/// Returns the edit that replaces an argument.
fn replace_argument(view: &View<'_>, n: usize, index: usize, text: String) -> Option<Edit> {
    let word = view.nodes[n].d.args.get(index)?.span;
    Some(Edit { file: word.file, start: word.start, end: word.end, text })
}

/// Raises a parameter of `listen` where it is set to less.
fn raise_listen(view: &View<'_>, level: &str) -> Vec<Edit> {
    let number = |word: &str| word.split_once('=').and_then(|(_, n)| n.parse::<u64>().ok());
    let name = level.split_once('=').map_or(level, |(name, _)| name);
    let mut edits = Vec::new();
    for n in view.all("listen") {
        let is_less =
            |a: &String| a.split_once('=').is_some_and(|(word, _)| word == name) && number(a) < number(level);
        let index = view.args(n).iter().position(is_less);
        edits.extend(index.and_then(|i| replace_argument(view, n, i, level.to_owned())));
    }
    edits
}

/// Levels of `error_log` from the one that writes most.
const LEVELS: [&str; 8] = ["debug", "info", "notice", "warn", "error", "crit", "alert", "emerg"];

/// Changes the level of each `error_log` that writes more than `level`. One without a level has `error`.
fn quieten_logs(view: &View<'_>, level: &str) -> Vec<Edit> {
    let place = |name: &str| LEVELS.iter().position(|l| *l == name);
    let mut edits = Vec::new();
    for n in view.all("error_log") {
        let writes_more = |a: &String| place(a).is_some_and(|p| Some(p) < place(level));
        let index = view.args(n).iter().skip(1).position(writes_more);
        edits.extend(index.and_then(|i| replace_argument(view, n, i + 1, level.to_owned())));
    }
    edits
}

/// Makes upstreams keep connections, and adds the directives that their locations need for that.
fn upstream(view: &View<'_>, level: &str) -> Vec<Edit> {
    let mut edits = Vec::new();
    let mut names = Vec::new();
    for u in view.all("upstream").filter(|u| view.child(Some(*u), "keepalive").is_none()) {
        if view.child(Some(u), "server").is_some() {
            edits.push(append_to_block(view, u, level));
            names.extend(view.args(u).first().cloned());
        }
    }
    for pass in view.all("proxy_pass") {
        let target = view.args(pass).first().cloned().unwrap_or_default();
        let host = target.split("://").nth(1).and_then(|r| r.split('/').next()).unwrap_or_default();
        if names.iter().any(|n| n == host) {
            edits.extend(keeping_needs(view, pass));
        }
    }
    edits.dedup();
    edits
}

/// Adds a directive as the last one of a block: a method of balancing has to come before `keepalive`.
fn append_to_block(view: &View<'_>, block: usize, text: &str) -> Edit {
    let last = view.children(Some(block)).last().unwrap_or(block);
    let end = view.nodes[last].d.end;
    let indent = " ".repeat((view.span(last).column as usize - 1).min(32));
    Edit { file: end.file, start: end.end, end: end.end, text: format!("\n{indent}{text}") }
}

/// Returns the edits that a location needs so that connections to its upstream can be kept.
fn keeping_needs(view: &View<'_>, pass: usize) -> Vec<Edit> {
    let mut edits = Vec::new();
    let location = view.nodes[pass].parent;
    // Fields of a location replace those of the blocks around it, so a new one goes where the others are.
    let fields = view.effective(location, "proxy_set_header").map(|n| view.nodes[n].parent);
    let block = fields.unwrap_or(location);
    let sets_connection = |n: usize| {
        view.name(n) == "proxy_set_header"
            && view.args(n).first().is_some_and(|a| a.eq_ignore_ascii_case("connection"))
    };
    let closes = |n: &usize| {
        sets_connection(*n) && view.args(*n).get(1).is_some_and(|a| a.eq_ignore_ascii_case("close"))
    };
    if let Some(n) = view.children(block).find(closes) {
        edits.push(view.replace(n, "proxy_set_header Connection \"\";"));
    } else if !view.children(block).any(sets_connection) {
        edits.push(view.insert(block, "proxy_set_header Connection \"\";"));
    }
    match view.effective(location, "proxy_http_version") {
        None => edits.push(view.insert(location, "proxy_http_version 1.1;")),
        Some(n) if view.args(n).first().is_some_and(|a| a == "1.0") => {
            edits.push(view.replace(n, "proxy_http_version 1.1;"));
        }
        Some(_) => {}
    }
    edits
}

/// Returns edits with a comment each that gives the reason.
pub fn explained(files: &Files, edits: &[Edit], why: &str) -> Vec<Edit> {
    let mut out = edits.to_vec();
    for e in &mut out {
        let rest = files.bytes(e.file).get(e.end as usize..).unwrap_or_default();
        let line = rest.split(|b| *b == b'\n').next().unwrap_or_default();
        explain(e, line, why);
    }
    out
}

/// Adds a comment to an edit, where that does not comment out a directive. `line`: the rest of the line behind the edit.
fn explain(e: &mut Edit, line: &[u8], why: &str) {
    // A parameter ends before its `;`, and the comment has to come after that.
    let (semicolon, tail) = match line.split_first() {
        Some((b';', tail)) if e.text.starts_with(' ') => (";", tail),
        _ => ("", line),
    };
    let is_line = e.start == e.end && e.text.ends_with('\n');
    e.text = match tail.iter().find(|b| !b.is_ascii_whitespace()) {
        _ if is_line => format!("{}  # {why}\n", e.text.trim_end()),
        Some(_) if e.text.starts_with('\n') => format!("{}  # {why}\n", e.text),
        None | Some(b'#') => {
            e.end += semicolon.len() as u32;
            format!("{}{semicolon}  # {why}", e.text)
        }
        Some(_) if semicolon.is_empty() => format!("\n# {why}\n{}", e.text),
        // Another directive follows on the line.
        Some(_) => return,
    };
}
#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::knobs::KNOBS;
    use forebay_conf::tree::FileId;
    use forebay_copy::patch::{Source, apply};
    use forebay_copy::scene::{Copy, CopyPlace, Upstreams};

    pub(super) fn source(text: &str) -> (tempfile::TempDir, Source) {
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("nginx.conf");
        std::fs::write(&path, text).expect("written");
        let source = Source::read(&path).expect("parses");
        (dir, source)
    }

    fn knob(name: &str) -> &'static Knob {
        KNOBS.iter().find(|k| k.name == name).expect("in the table")
    }

    pub(super) fn patched(text: &str, name: &str, why: Option<&str>) -> String {
        let (_dir, s) = source(text);
        let mut edits = edits(&s.view(), knob(name), knob(name).levels[0]);
        if let Some(why) = why {
            edits = explained(&s.files, &edits, why);
        }
        let new = apply(s.files.bytes(FileId(0)), FileId(0), &edits);
        let dir = tempfile::tempdir().expect("dir");
        let path = dir.path().join("x.conf");
        std::fs::write(&path, &new).expect("written");
        let text = String::from_utf8(new).expect("text");
        Source::read(&path).unwrap_or_else(|e| panic!("{e}\n{text}"));
        text
    }

    #[test]
    fn comments_and_layout_stay() {
        let text =
            "# mine\nevents { }\nhttp {\n   sendfile  off ;   # slow disk\n   server { listen 80; }\n}\n";
        let new = patched(text, "sendfile", Some("+3 %"));
        for part in [
            "# mine\nevents { }\nhttp {",
            "sendfile on;  # +3 %   # slow disk\n",
            "\n   tcp_nopush on;  # +3 %\n",
        ] {
            assert!(new.contains(part), "{new}");
        }
    }

    #[test]
    fn parameters_of_listen() {
        let text = "events {}\nhttp { server { listen 80; } server { listen *:80; }\nserver {\n listen [::]:80;\n}}\n";
        let new = patched(text, "reuseport", Some("why"));
        assert_eq!(new.matches("reuseport").count(), 2, "{new}");
        assert!(new.contains("listen 80 reuseport; }"), "{new}");
        assert!(new.contains("listen [::]:80 reuseport;  # why\n"), "{new}");
        assert_eq!(
            patched("events {}\nhttp { server { listen 80 reuseport; } }", "reuseport", None)
                .matches("reuseport")
                .count(),
            1
        );
    }

    #[test]
    fn settings_that_hold_already_are_left() {
        let text = "events {}\nhttp { keepalive_requests 100000; access_log /x combined buffer=1k; }\n";
        assert_eq!(patched(text, "keepalive_requests", None), text);
        assert_eq!(patched(text, "access_log", None), text);
    }

    #[test]
    fn deeper_occurrences_change_too() {
        let text =
            "events {}\nhttp { server { keepalive_requests 1; location / { keepalive_requests 2; } } }\n";
        let new = patched(text, "keepalive_requests", Some("why"));
        assert!(!new.contains("requests 1;") && !new.contains("requests 2;"), "{new}");
    }

    #[test]
    fn upstreams_get_what_keeping_needs() {
        let text = "events {}\nhttp {\n upstream b {\n  server 127.0.0.1:1;\n }\n server { location / { proxy_pass http://b; } \
                    location /w { proxy_pass http://b; proxy_set_header Connection $http_upgrade; } }\n}\n";
        let new = patched(text, "upstream_keepalive", None);
        assert!(new.contains("server 127.0.0.1:1;\n  keepalive 32;"), "{new}");
        assert_eq!(new.matches("Connection \"\"").count(), 1, "{new}");
    }

    #[test]
    fn a_host_becomes_an_upstream_with_what_keeping_needs() {
        let text = "events {}\nhttp {\n server {\n  location / {\n   proxy_pass http://10.0.0.1:81/a;\n   proxy_http_version 1.0;\n   \
                    proxy_set_header Connection close;\n  }\n  location /b {\n   proxy_pass http://10.0.0.1:81;\n  }\n location /s { \
                    proxy_pass https://b; }\n }\n}\n";
        let new = patched(text, "proxy_keepalive", None);
        for part in [
            "upstream tuned_1 { server 10.0.0.1:81; keepalive 32; }",
            "proxy_pass http://tuned_1/a;",
            "proxy_pass http://tuned_1;",
            "proxy_pass https://b;",
        ] {
            assert_eq!(new.matches(part).count(), 1, "{part}: {new}");
        }
        assert_eq!(new.matches("Connection \"\";").count(), 2, "{new}");
        assert_eq!(new.matches("proxy_set_header Host 10.0.0.1:81;").count(), 2, "{new}");
        assert!(!new.contains("close") && !new.contains("1.0;"), "{new}");
    }

    #[test]
    fn short_queues_grow_and_loud_logs_become_quiet() {
        let text = "error_log /e debug;\nevents {}\nhttp { error_log /f; server { listen 80 backlog=4; listen 81 backlog=9999; } }\n";
        assert!(patched(text, "error_log", None).contains("error_log /e error;"));
        let listens = patched(text, "listen_backlog", None);
        assert!(listens.contains("listen 80 backlog=511;") && listens.contains("backlog=9999"), "{listens}");
    }

    #[test]
    fn nothing_of_the_live_server_is_left() {
        let dir = tempfile::tempdir().expect("dir");
        std::fs::create_dir(dir.path().join("sub")).expect("made");
        let conf = dir.path().join("nginx.conf");
        let main = "pid /run/nginx.pid;\nevents {}\nhttp { access_log /var/log/nginx/a.log combined; access_log \
                    /var/log/nginx/$host.log; access_log syslog:server=10.0.0.2:514,tag=x,severity=info combined; include \
                    sub/*; }\n";
        std::fs::write(&conf, main).expect("written");
        let server = "server { listen 80; listen [::]:80 ipv6only=on; location / { proxy_pass http://10.0.0.1; } location /a { \
             set $b 1; proxy_pass http://10.0.0.$b:80$request_uri; } location ~ \\.php$ { fastcgi_pass unix:/run/php.sock; } \
             location /d { dav_methods PUT DELETE; } location /s { proxy_store on; \
             proxy_pass http://10.0.0.1/; } }";
        std::fs::write(dir.path().join("sub/a"), server).expect("written");
        let source = Source::read(&conf).expect("parses");
        let place = CopyPlace {
            upstreams: Upstreams::Http(4242),
            ..CopyPlace::new(dir.path().join("copy"), "/usr/share/nginx".into())
        };
        let copy = Copy::new(&source, place).expect("made");
        let view = source.view();
        let knobs: Vec<Edit> =
            KNOBS.iter().flat_map(|k| edits(&view, k, &crate::knobs::level_text(k.levels[0], 2))).collect();
        for edits in [Vec::new(), knobs] {
            copy.write(&source, &edits).expect("written");
            let all: String = ["0.conf", "1.conf"]
                .map(|f| std::fs::read_to_string(dir.path().join("copy/conf").join(f)).expect("there"))
                .concat();
            // What the upstream is told is no address.
            let all = all.replace("Host 10.0.0.1;", "");
            for live in [
                "/var/log",
                "/run/nginx.pid",
                "listen 80",
                "[::]",
                "10.0.0.",
                "ipv6only",
                "sub/*",
                "/run/php",
                "PUT",
                "store on",
            ] {
                assert!(!all.contains(live), "{live}: {all}");
            }
            assert!(all.contains("http://127.0.0.1:4242"), "{all}");
            assert!(
                all.contains("_var_log_nginx_$host.log") && all.contains(",tag=x,severity=info"),
                "{all}"
            );
            Source::read(&dir.path().join("copy/conf/0.conf")).unwrap_or_else(|e| panic!("{e}: {all}"));
        }
        assert_eq!(copy.ports.len(), 2);
    }
}
