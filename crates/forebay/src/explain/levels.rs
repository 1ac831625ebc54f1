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
    "try_files",
    "internal",
    "types_hash_bucket_size",
    "proxy_pass",
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

/// Default values of Forebay that are not those of nginx's documentation.
const OWN_DEFAULTS: &[(&str, &str)] = &[("keepalive_requests", "10000")];

/// A server or a location.
pub(super) struct Level {
    /// `server app.example.com`, `location ~ \.php$`.
    pub name: String,
    /// Settings in effect there.
    pub rows: Vec<Row>,
}

/// A block with the blocks around it, the innermost first.
struct Around<'t> {
    block: &'t Block,
    outer: Option<&'t Around<'t>>,
}

/// Lists the levels of a configuration in reading order. `defaults`: also the directives that nothing sets.
pub(super) fn levels(tree: &Tree, files: &Files, defaults: bool) -> Vec<Level> {
    let mut list = List { files, defaults, levels: Vec::new() };
    for http in blocks(&tree.root, "http") {
        let around = Around { block: http.1, outer: None };
        for (d, block) in blocks(http.1, "server") {
            let server = Around { block, outer: Some(&around) };
            let names: Vec<String> = block
                .iter()
                .filter(|d| d.name.text == b"server_name")
                .flat_map(|d| d.args.iter().map(|w| w.as_str().into_owned()))
                .collect();
            let name = if names.is_empty() { "(no name)".to_owned() } else { names.join(" ") };
            list.add(format!("server {name} ({})", origin::place(d, files)), &server, Contexts::SERVER);
            list.locations(&server);
        }
    }
    list.levels
}

fn blocks<'t>(block: &'t Block, name: &'static str) -> impl Iterator<Item = (&'t Directive, &'t Block)> {
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
                let merged = merges(level, word);
                let shown = grammar::row(word, context).is_some_and(|row| !row.block)
                    && (own || !NOT_INHERITED.iter().any(|n| n.as_bytes() == word))
                    && (merged || !done.contains(&word));
                if shown {
                    rows.push(self.row(d));
                    here.push(word);
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
                && !done.contains(&row.name.as_bytes())
                && !NOT_INHERITED.contains(&row.name)
        });
        for row in unset {
            let value = OWN_DEFAULTS.iter().find(|(n, _)| *n == row.name).map_or(row.default, |(_, v)| v);
            rows.push(Row::new(row.name, value, "default"));
        }
        rows.sort_by(|a, b| a.name.cmp(&b.name));
        self.levels.push(Level { name, rows });
    }

    fn row(&self, d: &Directive) -> Row {
        let words: Vec<_> = d.args.iter().map(|w| w.as_str().into_owned()).collect();
        Row::new(&d.name.as_str(), words.join(" "), origin::place(d, self.files))
    }
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
