//! The keys of the ConfigMap, judged before they have effect.

use super::{files, probe};
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
use std::collections::BTreeMap;
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
pub(super) fn globals(
    view: &View<'_>,
    options: &Options,
    last: &mut BTreeMap<&'static str, String>,
    problems: &mut Vec<Problem>,
) -> Globals {
    let map = options.config_map.as_ref().and_then(|key| view.config_map(key)).unwrap_or_default();
    let mut judged = Judged { last: last.clone(), ..Judged::default() };
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
    last.clear();
    for row in ROWS {
        let works = !globals.settings.set_aside.contains(&row.name);
        if let Some(value) = globals.settings.set(row.name)
            && (works || judged.last.contains_key(row.name))
            && on_failure(row.name, value) == OnFailure::Close
        {
            last.insert(row.name, value.to_owned());
        }
    }
    globals
}

/// Finds the keys of a ConfigMap that do not work. Returns the error of a configuration without any of them.
fn refuse(view: &View<'_>, options: &Options, map: &ConfigMap, judged: &mut Judged) -> Option<Refusal> {
    let is_snippet = |key: &str| SNIPPETS.iter().any(|(name, _)| *name == key);
    let mut keys: Vec<&'static str> = map
        .data
        .iter()
        .filter(|(_, text)| !text.is_empty())
        .filter_map(|(key, _)| Some(settings::row(key)?.name))
        .collect();
    // Of a key and a snippet that do not work together, the snippet is the one set aside.
    keys.sort_by_key(|key| is_snippet(key));
    let without = |units: &[usize]| {
        let left = keys.iter().enumerate().filter(|(i, _)| !units.contains(i));
        let refused = left.map(|(_, key)| (*key, Invalid::new(0, ""))).collect();
        Judged { refused, last: judged.last.clone() }
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
}
