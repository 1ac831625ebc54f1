//! The settings in effect in each server and location, with the level that each comes from.

use super::Row;
use crate::origin;
use forebay_conf::files::Files;
use forebay_conf::grammar::{self, Contexts, Support};
use forebay_conf::tree::{Block, Directive, Tree};

/// Directives that act where they stand, or that name the level itself. Inner levels do not take them over.
const NOT_INHERITED: &[&str] = &[
    "server",
    "location",
    "listen",
    "server_name",
    "upstream",
    "map",
    "num_map",
    "geo",
    "split_clients",
    "match",
    "include",
    "if",
    "limit_except",
    "return",
    "rewrite",
    "set",
    "break",
    "goto",
    "try_files",
    "internal",
    "types_hash_bucket_size",
    "proxy_pass",
    "pass",
    "fastcgi_pass",
    "uwsgi_pass",
    "scgi_pass",
    "grpc_pass",
    "memcached_pass",
    "stub_status",
    "empty_gif",
    "api",
    "prometheus",
    "status_zone",
    "health_check",
];

/// Default values of Forebay that differ from nginx's documentation.
const OWN_DEFAULTS: &[(&str, &str)] = &[("keepalive_requests", "10000")];

/// A server or a location.
pub(super) struct Level {
    /// `server app.example.com`, `location ~ \.php$`.
    pub name: String,
    /// Settings in effect there.
    pub rows: Vec<Row>,
}

/// A block with the blocks around it, the innermost first.
#[derive(Clone, Copy)]
pub(super) struct Around<'t> {
    /// The block itself.
    pub block: &'t Block,
    /// Blocks around it.
    pub outer: Option<&'t Around<'t>>,
}

impl<'t> Around<'t> {
    /// Returns the directives of these names in effect: those of the innermost block that has any.
    pub(super) fn effective(&self, names: &[&str]) -> Vec<&'t Directive> {
        let is_wanted = |d: &&Directive| names.iter().any(|n| n.as_bytes() == d.name.text);
        let own: Vec<&Directive> = self.block.iter().filter(is_wanted).collect();
        match self.outer {
            Some(outer) if own.is_empty() => outer.effective(names),
            _ => own,
        }
    }
}

/// Lists the levels of a configuration in reading order. `defaults`: also the directives that nothing sets.
pub(super) fn levels(tree: &Tree, files: &Files, defaults: bool) -> Vec<Level> {
    let mut list = List { files, defaults, levels: Vec::new() };
    for http in blocks(&tree.root, "http") {
        let around = Around { block: http.1, outer: None };
        for (d, block) in blocks(http.1, "server") {
            let server = Around { block, outer: Some(&around) };
            list.add(server_name(d, block, files), &server, Contexts::SERVER);
            list.locations(&server);
        }
    }
    for (_, stream) in blocks(&tree.root, "stream") {
        let around = Around { block: stream, outer: None };
        for (d, block) in blocks(stream, "server") {
            let server = Around { block, outer: Some(&around) };
            list.add(format!("stream {}", server_name(d, block, files)), &server, Contexts::STREAM_SERVER);
        }
    }
    list.levels
}

/// Returns the rows of a server of the stream block.
pub(super) fn stream_rows(server: &Around<'_>, files: &Files, defaults: bool) -> Vec<Row> {
    let mut list = List { files, defaults, levels: Vec::new() };
    list.add(String::new(), server, Contexts::STREAM_SERVER);
    list.levels.pop().map(|level| level.rows).unwrap_or_default()
}

/// Returns the name of a server with its place: `server app.example.com (nginx.conf:3)`.
pub(super) fn server_name(d: &Directive, block: &Block, files: &Files) -> String {
    let names = block.iter().filter(|d| d.name.text == b"server_name").flat_map(|d| &d.args);
    let names: Vec<String> = names.map(|w| w.as_str().into_owned()).collect();
    let name = if names.is_empty() { "(no name)".to_owned() } else { names.join(" ") };
    format!("server {name} ({})", origin::place(d, files))
}

/// Returns the blocks of this name right in a block.
pub(super) fn blocks<'t>(
    block: &'t Block,
    name: &'static str,
) -> impl Iterator<Item = (&'t Directive, &'t Block)> {
    let named = block.iter().filter(move |d| d.name.text == name.as_bytes());
    named.filter_map(|d| Some((d, d.block.as_ref()?)))
}

struct List<'f> {
    files: &'f Files,
    defaults: bool,
    levels: Vec<Level>,
}

impl List<'_> {
    fn locations(&mut self, around: &Around<'_>) {
        for (d, block) in blocks(around.block, "location") {
            let words: Vec<_> = d.args.iter().map(|w| w.as_str().into_owned()).collect();
            let name = format!("location {} ({})", words.join(" "), origin::place(d, self.files));
            let location = Around { block, outer: Some(around) };
            self.add(name, &location, Contexts::LOCATION);
            self.locations(&location);
        }
    }

    fn add(&mut self, name: String, level: &Around<'_>, context: Contexts) {
        let mut rows: Vec<Row> = Vec::new();
        let mut done: Vec<&[u8]> = Vec::new();
        let mut at = Some(level);
        let mut own = true;
        while let Some(around) = at {
            let mut here: Vec<&[u8]> = Vec::new();
            for d in around.block.iter() {
                let word = d.name.text.as_slice();
                let list = list_of(word);
                let merged = merges(level, word);
                let shown = grammar::row(word, context).is_some_and(|row| !row.block)
                    && (own || !NOT_INHERITED.iter().any(|n| n.as_bytes() == word))
                    && (merged || !done.contains(&list));
                if shown {
                    rows.push(row_of(d, self.files));
                    here.push(list);
                }
            }
            done.extend(here);
            at = around.outer;
            own = false;
        }
        let unset = grammar::all().iter().filter(|row| {
            self.defaults
                && row.support == Support::Yes
                && row.contexts.meets(context)
                && !row.default.is_empty()
                && !done.contains(&list_of(row.name.as_bytes()))
                && !NOT_INHERITED.contains(&row.name)
        });
        for row in unset {
            let value = OWN_DEFAULTS.iter().find(|(n, _)| *n == row.name).map_or(row.default, |(_, v)| v);
            rows.push(Row::new(row.name, value, "default"));
        }
        // The sort keeps the order of lists.
        rows.sort_by(|a, b| list_of(a.name.as_bytes()).cmp(list_of(b.name.as_bytes())));
        self.levels.push(Level { name, rows });
    }
}

/// Returns a directive as a row.
pub(super) fn row_of(d: &Directive, files: &Files) -> Row {
    let words: Vec<_> = d.args.iter().map(|w| w.as_str().into_owned()).collect();
    // A text may have several lines.
    let value = words.join(" ").replace('\n', "\\n");
    Row::new(&d.name.as_str(), value, origin::place(d, files))
}

/// Returns the name under which a level inherits a directive: `allow` and `deny` are one list.
fn list_of(name: &[u8]) -> &[u8] {
    if name == b"deny" { b"allow" } else { name }
}

/// Returns `true` if lines of outer levels hold in addition to those of inner ones (nginx: add_header_inherit,
/// add_trailer_inherit).
fn merges(level: &Around<'_>, name: &[u8]) -> bool {
    let inherit: &[u8] = match name {
        b"add_header" => b"add_header_inherit",
        b"add_trailer" => b"add_trailer_inherit",
        _ => return false,
    };
    let mut at = Some(level);
    while let Some(around) = at {
        if let Some(d) = around.block.iter().find(|d| d.name.text == inherit) {
            return d.args.first().is_some_and(|w| w.text == b"merge");
        }
        at = around.outer;
    }
    false
}
