//! Differences between two configurations, as the dashboard shows them after a reload: files, and directives that are new or
//! gone. The order of directives does not count.

use forebay_conf::files::Files;
use forebay_conf::parse::parse;
use forebay_conf::tree::{Block, Directive, FileId};
use forebay_core::config::Environment;
use forebay_modules::parts::facts::Changes;
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

/// Most files and directives that are named.
const MOST: usize = 20;
/// Longest text of a directive, characters.
const LONGEST: usize = 120;
/// Parts of the names of directives whose arguments may be secret, as passwords in fields of requests.
const SECRET: &[&str] = &[
    "auth",
    "cookie",
    "env",
    "header",
    "key",
    "param",
    "password",
    "return",
    "secret",
    "secure_link",
    "set",
    "sub_filter",
    "token",
    "userid",
    "if",
    "rewrite",
    "eab",
    "account",
    // acme_dns_program.
    "program",
];
/// Blocks of data, whose lines are no directives.
const DATA: &[&str] =
    &["map", "geo", "types", "split_clients", "charset_map", "match", "num_map", "keyval", "include_types"];

/// Directive that one of two configurations has more often than the other.
struct Line {
    /// How much more often the new one has it.
    more: i64,
    /// Offset in the file.
    at: u32,
    place: String,
    text: String,
}

/// Configuration that was read from a record.
pub(crate) struct Recorded {
    files: Files,
    root: Block,
}

impl Recorded {
    /// Reads a record; `None` if it is broken.
    pub(crate) fn new(environment: &Environment, record: &[u8]) -> Option<Recorded> {
        let mut files = Files::from_bytes(record).ok()?;
        let directory = environment.conf_path.parent().unwrap_or(Path::new("/"));
        let parsed = parse(&environment.conf_path, &environment.globals, directory, &mut files);
        Some(Recorded { files, root: parsed.tree.root })
    }

    fn contents(&self) -> BTreeMap<PathBuf, &[u8]> {
        self.files.iter().map(|(_, path, bytes)| (path.to_owned(), bytes)).collect()
    }
}

/// Returns the differences. `others` are files of both that are not configuration, such as certificates.
pub(crate) fn between(old: &mut Recorded, new: &mut Recorded, others: &[PathBuf]) -> Changes {
    let mut files = configuration_files(old, new);
    for path in others {
        let before = old.files.read(path).ok().map(|(_, bytes)| bytes.to_vec());
        let now = new.files.read(path).ok().map(|(_, bytes)| bytes);
        if before.is_some() && before.as_deref() != now {
            files.push((path.display().to_string(), "renewed"));
        }
    }
    let mut lines = HashMap::new();
    add(&new.root, &new.files, 1, &mut lines);
    add(&old.root, &old.files, -1, &mut lines);
    let (added, removed) = (of(&lines, 1), of(&lines, -1));
    let counts = [files.len(), added.len(), removed.len()];
    files.truncate(MOST);
    let short =
        |lines: Vec<&Line>| lines.iter().take(MOST).map(|l| format!("{} {}", l.place, l.text)).collect();
    Changes { files, added: short(added), removed: short(removed), counts }
}

fn configuration_files(old: &Recorded, new: &Recorded) -> Vec<(String, &'static str)> {
    let (before, now) = (old.contents(), new.contents());
    let gone = before.keys().filter(|path| !now.contains_key(*path)).map(|path| (path, "removed"));
    let differing = now.iter().filter_map(|(path, bytes)| match before.get(path) {
        None => Some((path, "added")),
        Some(old) if old != bytes => Some((path, "changed")),
        Some(_) => None,
    });
    differing.chain(gone).map(|(path, what)| (path.display().to_string(), what)).collect()
}

/// Returns the directives that one configuration has more often, in the order of their places.
fn of(lines: &HashMap<(PathBuf, u64), Line>, sign: i64) -> Vec<&Line> {
    let mut found: Vec<_> = lines.iter().filter(|(_, line)| line.more * sign > 0).collect();
    found.sort_by(|((a, _), x), ((b, _), y)| (a, x.at).cmp(&(b, y.at)));
    found.into_iter().map(|(_, line)| line).collect()
}

fn add(block: &Block, files: &Files, sign: i64, lines: &mut HashMap<(PathBuf, u64), Line>) {
    for d in &block.items {
        let path = files.path(d.name.span.file);
        let line = lines.entry((path.to_owned(), hash(d))).or_insert_with(|| Line {
            more: 0,
            at: d.name.span.start,
            place: place(path, d.name.span.file, d.name.span.line),
            text: text(d),
        });
        line.more += sign;
        match &d.block {
            Some(block) if !is_data(d) => add(block, files, sign, lines),
            _ => {}
        }
    }
}

fn place(path: &Path, file: FileId, line: u32) -> String {
    match file {
        FileId::COMMAND_LINE => "-g:".to_owned(),
        _ => format!("{}:{line}:", path.file_name().unwrap_or_default().to_string_lossy()),
    }
}

fn is_data(d: &Directive) -> bool {
    DATA.iter().any(|name| name.as_bytes() == d.name.text)
}

/// Returns a hash of a directive: its words, and for a block of data the words in it.
fn hash(d: &Directive) -> u64 {
    fn words(d: &Directive, hasher: &mut DefaultHasher) {
        (&d.name.text, d.args.len()).hash(hasher);
        d.args.iter().for_each(|word| word.text.hash(hasher));
    }
    let mut hasher = DefaultHasher::new();
    words(d, &mut hasher);
    if let Some(block) = d.block.as_ref().filter(|_| is_data(d)) {
        block.items.iter().for_each(|inner| words(inner, &mut hasher));
    }
    hasher.finish()
}

/// Returns the text of a directive, without what may be secret.
fn text(d: &Directive) -> String {
    let name = d.name.as_str();
    let mut text = name.clone().into_owned();
    if SECRET.iter().any(|part| name.contains(part)) {
        text.push_str(" …");
    } else {
        for word in &d.args {
            text.push(' ');
            text.push_str(&open(&word.as_str()));
        }
    }
    if text.chars().count() > LONGEST {
        text = text.chars().take(LONGEST).collect::<String>() + "…";
    }
    text.push_str(if d.block.is_some() && d.name.text != b"include" { " { }" } else { ";" });
    text
}

/// Returns a word without what may be secret: the user in a URL, and a query.
fn open(word: &str) -> Cow<'_, str> {
    let is_url = word.contains("://");
    match word.split_once('?') {
        // http://user:password@host
        _ if is_url && word.contains('@') => "…".into(),
        // A question mark in a pattern begins no query.
        Some((before, query)) if !query.is_empty() && (is_url || query.contains('=')) => {
            format!("{before}?…").into()
        }
        _ => word.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn recorded(main: &str, site: &str) -> Recorded {
        let environment = Environment {
            prefix: "/srv/".into(),
            conf_path: "/srv/nginx.conf".into(),
            globals: String::new(),
            error_log: None,
            access_log: String::new(),
        };
        let files =
            Files::recorded([("/srv/nginx.conf", main), ("/srv/site.conf", site), ("/srv/c.pem", main)]);
        let mut read = Recorded::new(&environment, &files.to_bytes()).expect("a record");
        let _ = read.files.read(Path::new("/srv/c.pem"));
        read
    }

    const MAIN: &str = "events {}\nhttp {\n include site.conf;\n}\n";

    #[test]
    fn new_and_gone_directives_are_named_with_their_places() {
        let mut old = recorded(MAIN, "server {\n listen 80;\n location / { proxy_pass http://a; }\n}\n");
        let mut new = recorded(
            MAIN,
            "server {\n listen 80;\n listen 81;\n location / { proxy_pass http://b; proxy_set_header X secret; }\n}\n",
        );
        let changes = between(&mut old, &mut new, &["/srv/c.pem".into()]);
        assert_eq!(changes.files, [("/srv/site.conf".to_owned(), "changed")]);
        assert_eq!(
            changes.added,
            [
                "site.conf:3: listen 81;",
                "site.conf:4: proxy_pass http://b;",
                "site.conf:4: proxy_set_header …;"
            ]
        );
        assert_eq!(changes.removed, ["site.conf:3: proxy_pass http://a;"]);
        assert_eq!(changes.counts, [1, 3, 1]);
    }

    #[test]
    fn secrets_are_left_out_and_lists_are_short() {
        let many: String = (0..50).map(|n| format!("listen {};", 8000 + n)).collect();
        let data = "map $host $x { a 1; }";
        let mut old = recorded(MAIN, data);
        let site = format!(
            "acme_dns_program /bin/dns t0ken; map $host $x {{ a 2; }} server {{ location / {{ proxy_pass http://u:p@h; }} secure_link_md5 x; {many} }}"
        );
        let mut new = recorded(&MAIN.replace("events", "#\nevents"), &site);
        let changes = between(&mut old, &mut new, &["/srv/c.pem".into(), "/srv/none".into()]);
        assert_eq!((changes.added.len(), changes.counts), (MOST, [3, 56, 1]), "{changes:?}");
        assert!(changes.files.contains(&("/srv/c.pem".to_owned(), "renewed")), "{changes:?}");
        assert_eq!(changes.removed, ["site.conf:1: map $host $x { }"]);
        let all = changes.added.join("\n");
        assert!(all.contains("proxy_pass …;") && all.contains("secure_link_md5 …;"), "{all}");
        assert!(!all.contains("u:p@h") && !all.contains("md5 x") && !all.contains("t0ken"), "{all}");
        assert_eq!(open("http://h/x?t0ken"), "http://h/x?…");
        assert_eq!(open("uri=/x?key=t0ken&b"), "uri=/x?…");
        for kept in ["http://h/x?", "^/a?b(?:c)?$", "http://h/x=y", "/a=b?c"] {
            assert_eq!(open(kept), kept);
        }
        let same = between(&mut recorded(MAIN, data), &mut recorded(MAIN, data), &[]);
        assert_eq!(same.counts, [0; 3]);
    }
}
