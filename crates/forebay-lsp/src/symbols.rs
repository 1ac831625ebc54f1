//! Names that a configuration defines and uses: groups of servers, variables, named locations, zones, log formats.

use crate::project::Project;
use forebay_conf::tree::{Directive, FileId, Span, Word};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

/// Kind of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Upstream,
    Variable,
    Location,
    Zone,
    LogFormat,
}

/// A name at a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Occurrence {
    pub kind: Kind,
    /// Block that has the name, `http` or `stream`; for a named location its server's place.
    pub scope: u32,
    /// Name, of a variable in lower case and without `$`.
    pub name: String,
    pub span: Span,
    pub defines: bool,
}

impl Occurrence {
    /// Returns `true` if both stand for the same thing.
    pub(crate) fn is_same(&self, other: &Occurrence) -> bool {
        (self.kind, self.scope, &self.name) == (other.kind, other.scope, &other.name)
    }
}

/// Returns all names of a configuration in reading order.
pub(crate) fn all(project: &Project) -> Vec<Occurrence> {
    let mut finder = Finder { project, found: Vec::new() };
    project.walk(&mut |d, around| finder.directive(d, around));
    let Finder { found, .. } = finder;
    let chosen = chosen_groups(project, &found);
    found.into_iter().chain(chosen).collect()
}

/// Returns the groups that a `map` names whose variable is in a `proxy_pass` or the like.
fn chosen_groups(project: &Project, found: &[Occurrence]) -> Vec<Occurrence> {
    let mut passes = Vec::new();
    project.walk(&mut |d, _| {
        if d.name.text.ends_with(b"_pass") {
            passes.extend(d.args.first().map(|w| w.span));
        }
    });
    passes.sort_unstable_by_key(|word| (word.file, word.start));
    // The last word that begins before a place is the only one that can hold it.
    let is_in_pass = |span: Span| {
        let behind = passes.partition_point(|word| (word.file, word.start) <= (span.file, span.start));
        let word = behind.checked_sub(1).and_then(|last| passes.get(last));
        word.is_some_and(|word| span.file == word.file && span.end <= word.end)
    };
    let is_passed = |o: &&Occurrence| o.kind == Kind::Variable && is_in_pass(o.span);
    let passed: HashSet<(u32, &str)> =
        found.iter().filter(is_passed).map(|o| (o.scope, o.name.as_str())).collect();
    if passed.is_empty() {
        return Vec::new();
    }
    let is_group = |o: &&Occurrence| o.kind == Kind::Upstream && o.defines;
    let groups: HashMap<(u32, &str), &Occurrence> =
        found.iter().rev().filter(is_group).map(|o| ((o.scope, o.name.as_str()), o)).collect();
    let mut chosen = Vec::new();
    project.walk(&mut |d, around| {
        let Some(map) = around.last().filter(|_| d.row.is_none()) else { return };
        let scope = around.first().map_or(0, |top| top.ordinal);
        let variable = map.args.last().map(|w| w.as_str().to_ascii_lowercase()).unwrap_or_default();
        let is_passed = passed.contains(&(scope, variable.trim_start_matches('$')));
        let Some(word) = d.args.last().filter(|_| is_passed) else { return };
        if let Some(group) = groups.get(&(scope, &*word.as_str())) {
            let quote = u32::from(word.quoted);
            let span = Span {
                start: word.span.start + quote,
                end: word.span.end.saturating_sub(quote),
                ..word.span
            };
            chosen.push(Occurrence { span, defines: false, ..(*group).clone() });
        }
    });
    chosen
}

/// Returns the name at an offset of a file.
pub(crate) fn at(all: &[Occurrence], file: FileId, offset: usize) -> Option<&Occurrence> {
    all.iter()
        .find(|o| o.span.file == file && (o.span.start as usize..=o.span.end as usize).contains(&offset))
}

struct Finder<'p> {
    project: &'p Project,
    found: Vec<Occurrence>,
}

impl<'p> Finder<'p> {
    fn directive(&mut self, d: &Directive, around: &[&Directive]) {
        let name = d.name.as_str();
        let top = around.first().map_or(0, |top| top.ordinal);
        // Lines of data have variables and groups in every word.
        let words = std::iter::once(&d.name).filter(|_| d.row.is_none()).chain(&d.args);
        for word in words {
            self.variables(word, top, d);
        }
        match &*name {
            "upstream" if d.row.is_some() => self.whole(Kind::Upstream, d.args.first(), top, true),
            "location" => self.named_location(d, around),
            "log_format" => self.whole(Kind::LogFormat, d.args.first(), top, true),
            "access_log" => {
                self.whole(Kind::LogFormat, d.args.get(1).filter(|w| !w.text.contains(&b'=')), top, false)
            }
            _ if name.ends_with("_pass") => self.pass(d, top),
            _ => {}
        }
        for word in &d.args {
            self.zone(word, &name, top);
            if word.text.first() == Some(&b'@') && name != "location" {
                self.whole(Kind::Location, Some(word), server_of(around), false);
            }
        }
    }

    fn whole(&mut self, kind: Kind, word: Option<&Word>, scope: u32, defines: bool) {
        let Some(word) = word.filter(|w| !w.text.is_empty() && !w.text.contains(&b'$')) else { return };
        let quote = u32::from(word.quoted);
        let span =
            Span { start: word.span.start + quote, end: word.span.end.saturating_sub(quote), ..word.span };
        self.found.push(Occurrence { kind, scope, name: word.as_str().into_owned(), span, defines });
    }

    fn named_location(&mut self, d: &Directive, around: &[&Directive]) {
        let word = d.args.first().filter(|w| w.text.first() == Some(&b'@'));
        self.whole(Kind::Location, word, server_of(around), true);
    }

    /// Finds the group in `proxy_pass http://GROUP/...`, or in `fastcgi_pass GROUP`.
    fn pass(&mut self, d: &Directive, top: u32) {
        let Some(word) = d.args.first() else { return };
        let raw = self.raw(word.span);
        let start = raw.find("://").map_or(usize::from(word.quoted), |at| at + 3);
        let rest = raw.get(start..).unwrap_or_default();
        let end = rest.find(['/', ':', '$', '"', '\'', '?']).unwrap_or(rest.len());
        let name = rest.get(..end).unwrap_or_default().to_owned();
        if !name.is_empty() && name != "unix" {
            self.part(Kind::Upstream, top, name, word.span, start..start + end, false);
        }
    }

    /// Finds the zone in `zone=NAME:SIZE`, `keys_zone=NAME:SIZE`, or `limit_req zone=NAME`.
    fn zone(&mut self, word: &Word, directive: &str, top: u32) {
        let raw = self.raw(word.span);
        let Some(start) =
            ["keys_zone=", "zone="].iter().find_map(|key| raw.strip_prefix(key).map(|_| key.len()))
        else {
            let uses = matches!(
                directive,
                "limit_conn" | "proxy_cache" | "fastcgi_cache" | "uwsgi_cache" | "scgi_cache"
            );
            if uses && word.text != b"off" && !word.text.iter().all(u8::is_ascii_digit) {
                self.whole(Kind::Zone, Some(word), top, false);
            }
            return;
        };
        let rest = raw.get(start..).unwrap_or_default();
        let end = rest.find(':').unwrap_or(rest.len());
        let defines = end < rest.len();
        let name = rest.get(..end).unwrap_or_default().to_owned();
        if !name.is_empty() {
            self.part(Kind::Zone, top, name, word.span, start..start + end, defines);
        }
    }

    fn variables(&mut self, word: &Word, top: u32, d: &Directive) {
        let raw = self.raw(word.span);
        let defining = forebay_conf::variables::defined(d);
        let is_definition = defining.is_some_and(|w| w.span == word.span);
        let mut from = 0;
        while let Some(at) = raw.get(from..).and_then(|rest| rest.find('$')).map(|at| from + at) {
            let behind = raw.get(at + 1..).unwrap_or_default();
            let braced = usize::from(behind.starts_with('{'));
            let name: String =
                behind.chars().skip(braced).take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
            let start = at + 1 + braced;
            // Groups of a pattern, $1, are no names.
            if name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
                let end = start + name.len();
                self.part(
                    Kind::Variable,
                    top,
                    name.to_ascii_lowercase(),
                    word.span,
                    start..end,
                    is_definition,
                );
            }
            from = start;
        }
        // (?<name>...)
        for (at, _) in raw.match_indices("(?<").chain(raw.match_indices("(?P<")) {
            let start = at + raw.get(at..).and_then(|r| r.find('<')).unwrap_or_default() + 1;
            let name: String = raw
                .get(start..)
                .unwrap_or_default()
                .chars()
                .take_while(|c| c.is_ascii_alphanumeric() || *c == '_')
                .collect();
            if !name.is_empty() {
                let end = start + name.len();
                self.part(Kind::Variable, top, name.to_ascii_lowercase(), word.span, start..end, true);
            }
        }
    }

    /// Adds a part of a word, by its offsets in the word as it is written.
    fn part(
        &mut self,
        kind: Kind,
        scope: u32,
        name: String,
        word: Span,
        part: std::ops::Range<usize>,
        defines: bool,
    ) {
        let offset = |at: usize| word.start.saturating_add(u32::try_from(at).unwrap_or(u32::MAX));
        let span = Span { start: offset(part.start), end: offset(part.end), ..word };
        self.found.push(Occurrence { kind, scope, name, span, defines });
    }

    fn raw(&self, span: Span) -> Cow<'p, str> {
        let bytes = self.project.files.bytes(span.file);
        let raw = bytes.get(span.start as usize..span.end as usize).unwrap_or_default();
        if raw.is_ascii() {
            return String::from_utf8_lossy(raw);
        }
        // Offsets must stay those of the bytes.
        raw.iter().map(|b| if b.is_ascii() { char::from(*b) } else { '\u{1a}' }).collect()
    }
}

fn server_of(around: &[&Directive]) -> u32 {
    around.iter().rfind(|d| d.name.text == b"server").map_or(0, |d| d.ordinal)
}
