//! The table of directives tells the truth about what is bound here.

mod geo;
mod map;
mod memory;
mod plan;
mod sharing;
mod split_clients;

use super::acme;
use forebay_conf::grammar::{self, Contexts, Row, Support};
use forebay_server::config::http;
use forebay_server::config::upstreams;
use forebay_server::module::levels::BOUND;
use forebay_server::module::list::{self, all};
use forebay_server::module::settings;
use forebay_server::modules::server;
use regex::Regex;
use std::collections::{BTreeSet, HashSet};
use std::path::Path;

/// Directives that the parser of forebay-conf handles itself, in every context.
const PARSER: &[&str] = &["include", "load_module"];

/// A level of the file: its contexts, and the names that code takes there.
struct Level {
    contexts: &'static [Contexts],
    names: Vec<&'static str>,
}

fn levels() -> Vec<Level> {
    list::begin(crate::MODULES);
    let mut http: Vec<&str> = BOUND.concat();
    http.extend(settings::names());
    http.extend(
        server::Written::DIRECTIVES
            .iter()
            .chain(all().iter().flat_map(|m| m.http_directives).map(|(name, _)| name))
            .chain(all().iter().flat_map(|m| m.location_directives).map(|(name, _)| name)),
    );
    http.extend(http::DIRECTIVES);
    vec![
        Level {
            contexts: &[Contexts::MAIN],
            names: forebay_core::config::main_directives().chain(["http"]).collect(),
        },
        Level { contexts: &[Contexts::EVENTS], names: forebay_core::config::EVENTS_DIRECTIVES.to_vec() },
        Level {
            contexts: &[
                Contexts::HTTP,
                Contexts::SERVER,
                Contexts::LOCATION,
                Contexts::IF_IN_SERVER,
                Contexts::IF_IN_LOCATION,
                Contexts::LIMIT_EXCEPT,
            ],
            names: http,
        },
        Level { contexts: &[Contexts::UPSTREAM], names: of_upstreams() },
        Level { contexts: &[Contexts::ACME_ISSUER], names: acme::DIRECTIVES.to_vec() },
    ]
}

fn of_upstreams() -> Vec<&'static str> {
    let of_modules = all().iter().flat_map(|module| module.config.upstream_directives).map(|(name, _)| *name);
    upstreams::DIRECTIVES.iter().copied().chain(of_modules).collect()
}

impl Level {
    fn has(&self, row: &Row) -> bool {
        self.contexts.iter().any(|c| row.contexts.meets(*c))
    }
}

#[test]
fn supported_directives_are_bound() {
    let levels = levels();
    let unbound: Vec<&str> = (grammar::all().iter())
        // The front end of stream has such a test of its own.
        .filter(|row| {
            row.support == Support::Yes && !PARSER.contains(&row.name) && !row.module.contains("stream")
        })
        .filter(|row| !levels.iter().any(|level| level.has(row) && level.names.contains(&row.name)))
        .map(|row| row.name)
        .collect();
    assert_eq!(unbound, [""; 0]);
}

#[test]
fn bound_directives_are_supported() {
    for level in levels() {
        for name in &level.names {
            let works = (grammar::rows(name.as_bytes()).iter())
                .any(|row| level.has(row) && (row.support == Support::Yes || CHECKED.contains(name)));
            assert!(works, "{name}");
        }
    }
}

/// Directives that need no code, and are bound only because the check of their value does.
const CHECKED: &[&str] = &["gzip_hash", "ssl_dhparam"];

/// Modules whose settings are read by a variable of another name, such as `s`.
const ALIASED: &[&str] = &["settings", "proxy_cache", "proxy_ssl", "ssl"];

/// Finds the fields of settings that nothing reads: their directives have no effect, whatever the table says.
#[test]
fn every_setting_has_a_reader() {
    let row = Regex::new(r#"(?m)^\s*"([a-z0-9_]+)" => ([a-z0-9_]+): "#).unwrap();
    let sources = sources();
    let all: String = sources.iter().map(|(_, text)| text.as_str()).collect();
    let rows: Vec<(&str, String, String)> = (sources.iter())
        .flat_map(|(module, text)| {
            row.captures_iter(text).map(|c| (module.as_str(), c[1].to_owned(), c[2].to_owned()))
        })
        .collect();
    assert!(rows.len() > 200, "{} rows of settings", rows.len());
    let reads = |text: &str, what: &str| Regex::new(&format!(r"{what}\b[^(]")).unwrap().is_match(text);
    let mut unread = Vec::new();
    for (module, directive, field) in &rows {
        let unique = rows.iter().filter(|(_, _, f)| f == field).count() == 1;
        let own = sources.iter().filter(|(m, _)| m == module).any(|(_, t)| reads(t, &format!(r"\.{field}")));
        let found = own
            || reads(&all, &format!(r"\b{module}\.{field}"))
            || reads(&all, &format!(r"\b{module}::SETTINGS\s*\.of\([^;]*?\)\.{field}"))
            || unique && reads(&all, &format!(r"\.{field}"))
            || ALIASED.contains(module) && reads(&all, &format!(r"\b[a-z]{{1,3}}\.{field}"));
        if !found && !CHECKED.contains(&directive.as_str()) {
            unread.push(directive.as_str());
        }
    }
    assert_eq!(unread, [""; 0]);
}

/// Parameters that need no reader.
const MET: &[&str] = &[
    // Every TCP listener has a socket for each thread.
    "reuseport",
];

/// Finds the fields for parameters that nothing reads, as `listen ... multipath` once was. Such a field has the parameter in
/// backquotes at the beginning of its comment.
#[test]
fn every_parameter_has_a_reader() {
    let row = Regex::new(
        r"(?m)^\s*/// `([a-z0-9_]+)=?[^`\n]*`.*\n(?:\s*///.*\n)*\s*pub(?:\([a-z]+\))? ([a-z0-9_]+): ",
    )
    .unwrap();
    let all: String = sources().into_iter().map(|(_, text)| text).collect();
    let fields: BTreeSet<&str> = row.captures_iter(&all).map(|c| c.get(2).unwrap().as_str()).collect();
    assert!(fields.len() > 50, "{} fields of parameters", fields.len());
    // An assignment is no use.
    let is_used = |after: usize| !all[after..].trim_start().starts_with("= ");
    let used = Regex::new(r"\.([a-z0-9_]+)\b").unwrap();
    let read: HashSet<&str> = (used.captures_iter(&all).filter_map(|c| c.get(1)))
        .filter(|field| is_used(field.end()))
        .map(|field| field.as_str())
        .collect();
    let unread: Vec<_> = fields.into_iter().filter(|f| !read.contains(f) && !MET.contains(f)).collect();
    assert_eq!(unread, [""; 0]);
}

/// Source files of the crates with directives, with the names of their modules.
fn sources() -> Vec<(String, String)> {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR"));
    let names =
        ["forebay-server", "forebay-proxy", "forebay-modules", "forebay-core", "forebay-stream", "forebay"];
    let mut folders: Vec<_> = names.iter().map(|name| crates.join(format!("../{name}/src"))).collect();
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") && !path.ends_with("tests.rs") {
                let named = if path.ends_with("mod.rs") { folder.as_path() } else { path.as_path() };
                let module = named.file_stem().unwrap_or_default().to_string_lossy().into_owned();
                found.push((module, std::fs::read_to_string(&path).unwrap()));
            }
        }
    }
    found
}
