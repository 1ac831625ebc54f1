//! The keys of the ConfigMap, judged before they have effect.

use super::{Deciding, files, probe};
use crate::blame::{self, Bounds, Verdict, directive_at};
use crate::ingress::{Globals, read_globals};
use crate::judge::Refusal;
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
    let refusal = options
        .judge
        .errors(&probe::files(&globals, files::default_certificate(view, options)))
        .into_iter()
        .next();
    if let Some(refusal) = refusal {
        let base = refuse(view, options, &map, &mut judged);
        own.clear();
        globals = read_globals(view, options, &map, &judged, &mut own);
        if let Some(base) = base {
            let text = format!("no configuration can be made, whatever the values: {}", base.message);
            own.push(Problem::new(Kind::ConfigMap, &map.metadata, "data", text).reason("NotBuilt"));
        } else if judged.refused.is_empty() {
            own.push(
                Problem::new(Kind::ConfigMap, &map.metadata, "data", refusal.message).reason("NotBuilt"),
            );
        }
    }
    problems.extend(own);
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
    (globals, deciding)
}

/// Finds the keys of a ConfigMap that do not work. Returns the error of a configuration without any of them.
fn refuse(view: &View<'_>, options: &Options, map: &ConfigMap, judged: &mut Judged) -> Option<Refusal> {
    let is_snippet = |key: &str| SNIPPETS.iter().any(|(name, _)| *name == key);
    let mut keys: Vec<&'static str> = map
        .data
        .iter()
        .filter(|(_, text)| !text.is_empty())
        .filter_map(|(key, _)| Some(settings::row(key)?.name))
        .filter(|key| !judged.refused.contains_key(key))
        .collect();
    let before = judged.refused.clone();
    // Of a key and a snippet that do not work together, the snippet is the one set aside.
    keys.sort_by_key(|key| is_snippet(key));
    let last = judged.last.clone();
    let without = |units: &[usize]| {
        let left = keys.iter().enumerate().filter(|(i, _)| !units.contains(i));
        let mut refused = before.clone();
        refused.extend(left.map(|(_, key)| (*key, Invalid::new(0, ""))));
        Judged { refused, last: last.clone() }
    };
    let certificate = files::default_certificate(view, options);
    let found = blame::find(keys.len(), KEYS, |units| {
        let globals = read_globals(view, options, map, &without(units), &mut Vec::new());
        let mut verdict = Verdict::default();
        for refusal in options.judge.errors(&probe::files(&globals, certificate.clone())) {
            let place = units
                .iter()
                .find(|i| keys.get(**i).is_some_and(|key| offset(map, key, &refusal.text).is_some()));
            match place {
                Some(unit) => verdict.placed.push((*unit, refusal)),
                None => verdict.other = verdict.other.or(Some(refusal)),
            }
        }
        verdict
    });
    for (unit, refusal) in found.guilty {
        if let Some(key) = keys.get(unit) {
            let context = SNIPPETS.iter().find(|(name, _)| name == key).map(|(_, context)| *context);
            let at =
                context.and_then(|context| blame::place(map.data.get(*key)?, context, &refusal)).unwrap_or(0);
            judged.refused.insert(key, Invalid::new(at, refusal.message));
        }
    }
    for key in found.undecided.iter().filter(|_| found.base.is_none()).filter_map(|unit| keys.get(*unit)) {
        judged.refused.insert(key, Invalid::new(0, "too many other values are wrong to judge this one"));
    }
    found.base
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
    let is_new = |key: &str, value: &String| {
        !value.is_empty() && options.refused.get(key).is_none_or(|refused| refused.value != *value)
    };
    let values: Vec<(&'static str, &str)> = map
        .data
        .iter()
        .filter(|(key, value)| is_new(key, value))
        .filter_map(|(key, value)| Some((settings::row(key)?.name, value.as_str())))
        .collect();
    let snippets = || {
        let context = |key: &str| SNIPPETS.iter().find(|(name, _)| *name == key).map(|(_, context)| *context);
        values.iter().filter_map(move |(key, value)| Some((*key, *value, context(key)?)))
    };
    let of_line =
        |(_, value, context): &(&str, &str, Contexts)| directive_at(value, *context, line).is_some();
    if let Some((key, _, _)) = snippets().find(|snippet| !line.trim().is_empty() && of_line(snippet)) {
        return Some(key);
    }
    // Ports that others have are no fault of a snippet that does not listen at them.
    if let Some(rest) = reason.find("bind() to ").and_then(|at| reason.get(at..)) {
        let address = rest.split(' ').nth(2).unwrap_or_default();
        let port = address.rsplit(':').next().unwrap_or_default();
        let is_port = |word: &str| !port.is_empty() && word == port;
        let listens =
            |text: &str| text.contains("listen") && text.split(|c: char| !c.is_ascii_digit()).any(is_port);
        return snippets().find(|(_, text, _)| listens(text)).map(|(key, _, _)| key);
    }
    let quoted: Vec<&str> = reason.split('"').skip(1).step_by(2).filter(|word| word.len() > 1).collect();
    let names = |value: &str| quoted.iter().any(|word| word.contains(value.trim()));
    if let Some((key, _)) = values.iter().find(|(key, value)| NAMES.contains(key) && names(value)) {
        return Some(key);
    }
    let holds = |text: &str| quoted.iter().any(|word| word.len() > 3 && text.contains(word));
    if let Some((key, _, _)) = snippets().find(|(_, text, _)| holds(text)) {
        return Some(key);
    }
    let open = |key: &str, value: &str| on_failure(key, value) == OnFailure::Default;
    let mut rest: Vec<_> =
        snippets().filter(|_| guess).map(|(key, value, _)| (!open(key, value), key)).collect();
    rest.sort_by_key(|(closes, _)| *closes);
    rest.first().map(|(_, key)| *key)
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
