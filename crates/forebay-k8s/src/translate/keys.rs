//! The keys of the ConfigMap, judged before they have effect.

use super::{Deciding, files, probe};
use crate::blame::{self, Bounds, Verdict, directive_at};
use crate::ingress::{Globals, read_globals};
use crate::judge::Refusal;
use crate::model::CertificateFiles;
use crate::objects::{ConfigMap, Kind};
use crate::options::Options;
use crate::problem::Problem;
use crate::settings::{self, Judged, OnFailure, ROWS, on_failure};
use crate::value::Invalid;
use crate::view::View;
use forebay_conf::grammar::Contexts;
use std::time::Duration;

/// Bounds of the search among the keys of a ConfigMap: each build is that of a small configuration.
const KEYS: Bounds = Bounds { builds: 4000, time: Duration::from_secs(15) };

/// Snippets of the ConfigMap, and where they stand.
const SNIPPETS: [(&str, Contexts); 6] = [
    ("main-snippet", Contexts::MAIN),
    ("http-snippet", Contexts::HTTP),
    ("server-snippet", Contexts::SERVER),
    ("location-snippet", Contexts::LOCATION),
    ("global-auth-snippet", Contexts::LOCATION),
    ("stream-snippet", Contexts::STREAM),
];

/// Reads what all parts share, without the values that no server accepts. `last`: values that decide on access, as they last worked.
/// Returns also those that this configuration has.
pub(super) fn globals(
    view: &View<'_>,
    options: &Options,
    last: &Deciding,
    problems: &mut Vec<Problem>,
) -> (Globals, Deciding) {
    let map = options.config_map.as_ref().and_then(|key| view.config_map(key)).unwrap_or_default();
    let refused = options.refused.iter().filter(|(key, refused)| map.data.get(**key) == Some(&refused.value));
    let refused = refused.map(|(key, refused)| (*key, Invalid::new(0, refused.reason.as_str()))).collect();
    let mut judged = Judged { refused, last: last.clone() };
    let mut own = Vec::new();
    let mut globals = read_globals(view, options, &map, &judged, &mut own);
    let files = probe::files(&globals, files::default_certificate(view, options));
    if let Some(refusal) = options.judge.errors(&files).into_iter().next() {
        let base = Search::new(view, options, &map, &judged).refuse(&mut judged);
        own.clear();
        globals = read_globals(view, options, &map, &judged, &mut own);
        let report =
            |text: String| Problem::new(Kind::ConfigMap, &map.metadata, "data", text).reason("NotBuilt");
        if let Some(base) = base {
            let text = format!("no configuration can be made, whatever the values: {}", base.message);
            own.push(report(text));
        } else if judged.refused.is_empty() {
            own.push(report(refusal.message));
        }
    }
    problems.extend(own);
    let deciding = deciding(&globals, &judged);
    (globals, deciding)
}

/// Returns the values that decide on access and are in effect.
fn deciding(globals: &Globals, judged: &Judged) -> Deciding {
    let mut deciding = Deciding::new();
    for row in ROWS {
        let works = !globals.settings.set_aside.contains(&row.name);
        if let Some(value) = globals.settings.set(row.name)
            && (works || judged.last.contains_key(row.name))
            && on_failure(row.name, value) == OnFailure::Close
        {
            deciding.insert(row.name, value.to_owned());
        }
    }
    deciding
}

/// Search for the keys of a ConfigMap that do not work.
struct Search<'a> {
    view: &'a View<'a>,
    options: &'a Options,
    map: &'a ConfigMap,
    /// Keys that are suspected.
    keys: Vec<&'static str>,
    /// What was known before the search.
    before: Judged,
}

impl<'a> Search<'a> {
    fn new(view: &'a View<'a>, options: &'a Options, map: &'a ConfigMap, judged: &Judged) -> Search<'a> {
        let set = map.data.iter().filter(|(_, text)| !text.is_empty());
        let mut keys: Vec<&'static str> = set
            .filter_map(|(key, _)| Some(settings::row(key)?.name))
            .filter(|key| !judged.refused.contains_key(key))
            .collect();
        // Of a key and a snippet that do not work together, the snippet is the one set aside.
        keys.sort_by_key(|key| snippet_context(key).is_some());
        let before = Judged { refused: judged.refused.clone(), last: judged.last.clone() };
        Search { view, options, map, keys, before }
    }

    /// Adds the keys that do not work to those that are refused. Returns the error of a configuration without any of them.
    fn refuse(&self, judged: &mut Judged) -> Option<Refusal> {
        let certificate = files::default_certificate(self.view, self.options);
        let found = blame::find(self.keys.len(), KEYS, |units| self.verdict(units, certificate.clone()));
        for (unit, refusal) in found.guilty {
            let Some(key) = self.keys.get(unit) else { continue };
            let at = snippet_context(key)
                .and_then(|context| blame::place(self.map.data.get(*key)?, context, &refusal));
            judged.refused.insert(key, Invalid::new(at.unwrap_or(0), refusal.message));
        }
        let undecided = found.undecided.iter().filter(|_| found.base.is_none());
        for key in undecided.filter_map(|unit| self.keys.get(*unit)) {
            let why = "too many other values are wrong to judge this one";
            judged.refused.insert(key, Invalid::new(0, why));
        }
        found.base
    }

    /// Judges a configuration with some of the keys.
    fn verdict(&self, units: &[usize], certificate: Option<CertificateFiles>) -> Verdict {
        let left = self.keys.iter().enumerate().filter(|(i, _)| !units.contains(i));
        let mut refused = self.before.refused.clone();
        refused.extend(left.map(|(_, key)| (*key, Invalid::new(0, ""))));
        let judged = Judged { refused, last: self.before.last.clone() };
        let globals = read_globals(self.view, self.options, self.map, &judged, &mut Vec::new());
        let mut verdict = Verdict::default();
        for refusal in self.options.judge.errors(&probe::files(&globals, certificate)) {
            let is_of = |key: &&str| offset(self.map, key, &refusal.text).is_some();
            match units.iter().find(|i| self.keys.get(**i).is_some_and(is_of)) {
                Some(unit) => verdict.placed.push((*unit, refusal)),
                None => verdict.other = verdict.other.or(Some(refusal)),
            }
        }
        verdict
    }
}

/// Returns the context of the directives of a snippet. `None`: the key is none of a snippet.
fn snippet_context(key: &str) -> Option<Contexts> {
    SNIPPETS.iter().find(|(name, _)| *name == key).map(|(_, context)| *context)
}

/// Keys with names that the server opens or looks up.
const NAMES: [&str; 4] = ["access-log-path", "http-access-log-path", "stream-access-log-path", "syslog-host"];

/// Finds the key of the ConfigMap that made the server refuse a configuration which the judge takes. `line`: that of the refusal.
///
/// The line of a snippet tells its key, and so does a name that the reason quotes. Otherwise, and if `guess` is set, each snippet is
/// suspected, one after the other, those that decide on access last.
pub fn suspect(
    map: &ConfigMap,
    options: &Options,
    line: &str,
    reason: &str,
    guess: bool,
) -> Option<&'static str> {
    let suspects = Suspects::new(map, options);
    if let Some(key) = suspects
        .snippet(|text, context| !line.trim().is_empty() && directive_at(text, context, line).is_some())
    {
        return Some(key);
    }
    // Ports that others have are no fault of a snippet that does not listen at them.
    if let Some(rest) = reason.find("bind() to ").and_then(|at| reason.get(at..)) {
        return suspects.listening(rest);
    }
    suspects.quoted(reason).or_else(|| suspects.first().filter(|_| guess))
}

/// Keys of the ConfigMap with values that have not been refused.
struct Suspects<'a>(Vec<(&'static str, &'a str)>);

impl<'a> Suspects<'a> {
    fn new(map: &'a ConfigMap, options: &Options) -> Suspects<'a> {
        let is_new = |key: &str, value: &String| {
            !value.is_empty() && options.refused.get(key).is_none_or(|refused| refused.value != *value)
        };
        let values = map.data.iter().filter(|(key, value)| is_new(key, value));
        Suspects(values.filter_map(|(key, value)| Some((settings::row(key)?.name, value.as_str()))).collect())
    }

    fn snippets(&self) -> impl Iterator<Item = (&'static str, &'a str, Contexts)> {
        self.0.iter().filter_map(|(key, value)| Some((*key, *value, snippet_context(key)?)))
    }

    fn snippet(&self, is_meant: impl Fn(&str, Contexts) -> bool) -> Option<&'static str> {
        self.snippets().find(|(_, text, context)| is_meant(text, *context)).map(|(key, ..)| key)
    }

    /// Returns a snippet that listens at the port of a failed `bind() to ADDRESS`.
    fn listening(&self, failure: &str) -> Option<&'static str> {
        let address = failure.split(' ').nth(2).unwrap_or_default();
        let port = address.rsplit(':').next().unwrap_or_default();
        let is_port = |word: &str| !port.is_empty() && word == port;
        self.snippet(|text, _| {
            text.contains("listen") && text.split(|c: char| !c.is_ascii_digit()).any(is_port)
        })
    }

    /// Returns a key whose value has a word that a reason quotes.
    fn quoted(&self, reason: &str) -> Option<&'static str> {
        let quoted: Vec<&str> = reason.split('"').skip(1).step_by(2).filter(|word| word.len() > 1).collect();
        let names = |value: &str| quoted.iter().any(|word| word.contains(value.trim()));
        let named = self.0.iter().find(|(key, value)| NAMES.contains(key) && names(value));
        let holds = |text: &str| quoted.iter().any(|word| word.len() > 3 && text.contains(word));
        named.map(|(key, _)| *key).or_else(|| self.snippet(|text, _| holds(text)))
    }

    /// Returns the first snippet, one that decides on access only if there is no other.
    fn first(&self) -> Option<&'static str> {
        let closes = |key: &str, value: &str| on_failure(key, value) != OnFailure::Default;
        self.snippets().min_by_key(|(key, value, _)| closes(key, value)).map(|(key, ..)| key)
    }
}

/// Finds the directive of a snippet of the ConfigMap that a line was printed of.
fn offset(map: &ConfigMap, key: &str, line: &str) -> Option<usize> {
    let (_, context) = SNIPPETS.iter().find(|(name, _)| *name == key)?;
    directive_at(map.data.get(key)?, *context, line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::value::Value;
    use std::collections::BTreeSet;

    #[test]
    fn all_snippets_have_a_context() {
        let all =
            ROWS.iter().filter(|row| row.value == Value::Snippet && !row.name.starts_with("modsecurity"));
        let names: BTreeSet<&str> = all.map(|row| row.name).collect();
        assert_eq!(names, SNIPPETS.iter().map(|(name, _)| *name).collect());
    }

    #[test]
    fn a_refusal_of_the_server_leads_to_a_key() {
        let data = [
            ("http-snippet", "resolver nosuch.test;\nserver { listen 9999; }"),
            ("location-snippet", "ssl_trusted_certificate /no/x;"),
            ("server-snippet", "deny 10.0.0.1;"),
            ("access-log-path", "/no/where.log"),
            ("syslog-host", "logs.none.test"),
            ("gzip-level", "3"),
        ];
        let data = data.map(|(key, value)| (key.to_owned(), value.to_owned())).into();
        let map = ConfigMap { data, ..ConfigMap::default() };
        let mut options = Options::default();
        let find = |options: &Options, line: &str, reason: &str| suspect(&map, options, line, reason, true);
        let cases = [
            ("    resolver nosuch.test;", "host not found", "http-snippet"),
            ("", "open() \"/no/where.log\" failed (2: No such file or directory)", "access-log-path"),
            (
                "access_log syslog:server=logs.none.test:514;",
                "host not found in syslog server \"logs.none.test:514\"",
                "syslog-host",
            ),
            ("", "cannot load certificate \"/no/x\"", "location-snippet"),
            ("", "bind() to 0.0.0.0:9999 failed (98: Address already in use)", "http-snippet"),
            ("", "no memory", "http-snippet"),
        ];
        for (line, reason, key) in cases {
            assert_eq!(find(&options, line, reason), Some(key), "{line} {reason}");
        }
        assert_eq!(find(&options, "", "bind() to 0.0.0.0:80 failed (98: Address already in use)"), None);
        assert_eq!(suspect(&map, &options, "", "no memory", false), None);
        let mut found = Vec::new();
        while let Some(key) = find(&options, "", "no memory") {
            let value = map.data.get(key).cloned().unwrap_or_default();
            options.refused.insert(key, crate::options::RefusedValue { value, reason: String::new() });
            found.push(key);
        }
        assert_eq!(found, ["http-snippet", "location-snippet", "server-snippet"]);
    }
}
