//! The keys of the controller's ConfigMap: one row for each, and the reading of them.

mod access;
mod detail;
mod rows;

use crate::annotations::{Risk, Verdict};
use crate::objects::{ConfigMap, Kind};
use crate::problem::{Problem, Severity};
use crate::value::{Invalid, Value, parse_bool};
use crate::variables::Known;
use forebay_conf::grammar::Contexts;
use std::collections::BTreeMap;
use std::sync::OnceLock;

pub use access::{OnFailure, closes, on_failure, snippet_decides};
pub use rows::ROWS;

/// A key of the ConfigMap.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Key.
    pub name: &'static str,
    /// Type of its value.
    pub value: Value,
    /// Value without it; empty: none.
    pub default: &'static str,
    /// Harm that it can do.
    pub risk: Risk,
    /// What Forebay does.
    pub verdict: Verdict,
}

/// Finds the row of a key.
pub fn row(name: &str) -> Option<&'static Row> {
    static INDEX: OnceLock<BTreeMap<&'static str, &'static Row>> = OnceLock::new();
    INDEX.get_or_init(|| ROWS.iter().map(|r| (r.name, r)).collect()).get(name).copied()
}

/// The valid keys of the ConfigMap.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    values: BTreeMap<&'static str, String>,
    /// A key asks for ModSecurity.
    pub wants_firewall: bool,
    /// Variables that its snippets define.
    pub defined: Known,
    /// Keys that decide on access and have no value to go by: nothing is served until they are mended.
    pub closed: Vec<&'static str>,
    /// Keys whose values have no effect.
    pub set_aside: Vec<&'static str>,
}

/// What is known of the values of a ConfigMap from elsewhere.
#[derive(Clone, Debug, Default)]
pub struct Judged {
    /// Keys that a build has refused, with the texts and the offsets in the values.
    pub refused: BTreeMap<&'static str, Invalid>,
    /// Values of keys that decide on access, as they were when they last worked.
    pub last: BTreeMap<&'static str, String>,
}

/// Finds the variables that snippets of a ConfigMap define.
fn defined(map: &ConfigMap) -> Known {
    let mut known = Known::new();
    for (key, context) in [("http-snippet", Contexts::HTTP), ("server-snippet", Contexts::SERVER)] {
        if let Some(text) = map.data.get(key) {
            crate::snippet::defined(text, context, &mut known);
        }
    }
    known
}

/// Returns `true` for the keys that ask for ModSecurity.
fn is_firewall(name: &str) -> bool {
    matches!(name, "enable-modsecurity" | "enable-owasp-modsecurity-crs" | "modsecurity-snippet")
}

impl Settings {
    /// Reads a ConfigMap.
    pub fn read(map: &ConfigMap, judged: &Judged, problems: &mut Vec<Problem>) -> Settings {
        let mut read = Settings { defined: defined(map), ..Settings::default() };
        for (key, text) in &map.data {
            let problem =
                |text: &str| Problem::new(Kind::ConfigMap, &map.metadata, format!("data[{key}]"), text);
            let Some(row) = row(key) else {
                let near = forebay_conf::grammar::nearest(key, ROWS.iter().map(|r| r.name));
                let near = near.map(|n| format!("; did you mean \"{n}\"?")).unwrap_or_default();
                let text = format!("there is no such key{near}");
                problems.push(problem(&text).severity(Severity::Ignored).reason("UnknownKey"));
                continue;
            };
            if text.is_empty() {
                continue;
            }
            let checked = row.value.check(text, &read.defined).and_then(|()| detail::check(row.name, text));
            if let Some(invalid) = checked.err().or_else(|| judged.refused.get(row.name).cloned()) {
                let follows = read.fail(row, text, judged);
                read.wants_firewall |= is_firewall(row.name);
                let text_of = format!("the value is not valid, {follows}");
                problems.push(problem(&text_of).invalid(text, &invalid).reason("ValueSetAside"));
                continue;
            }
            problems.extend(
                read.take(row, text)
                    .map(|(how, severity, reason)| problem(how).severity(severity).reason(reason)),
            );
        }
        read
    }

    /// Takes a value that is valid, as far as Forebay does what it says. Returns what is to be said about that.
    fn take(&mut self, row: &'static Row, text: &str) -> Option<(&'static str, Severity, &'static str)> {
        let report = match row.verdict {
            // `false` asks for nothing, so it is accepted.
            Verdict::Refused(_) if parse_bool(text) == Some(false) => return None,
            Verdict::Refused(why) => {
                self.wants_firewall |= is_firewall(row.name);
                return Some((why, Severity::Refused, "NotSupported"));
            }
            Verdict::Differs(how) if how.starts_with("accepted without effect") => {
                Some((how, Severity::Ignored, "Differs"))
            }
            Verdict::Differs(how) => Some((how, Severity::Differs, "Differs")),
            Verdict::Works => None,
        };
        self.values.insert(row.name, text.to_owned());
        report
    }

    /// Returns `true` if the value of a key is not valid, and no other one holds in its place.
    pub fn refused(&self, name: &'static str) -> bool {
        debug_assert!(row(name).is_some(), "no key {name}");
        self.set_aside.contains(&name) && !self.values.contains_key(name)
    }

    /// Returns `true` if the value of a key is not valid. `rests`: the ends of the names of the keys.
    pub(crate) fn refused_any(&self, start: &str, rests: &[&str]) -> bool {
        self.set_aside.iter().filter_map(|name| name.strip_prefix(start)).any(|rest| rests.contains(&rest))
    }

    /// Returns the networks of proxies that are believed: none if they, or the field that is read, are not known.
    pub fn trusted_networks(&self) -> Vec<String> {
        if self.refused("proxy-real-ip-cidr") || self.refused("forwarded-for-header") {
            return Vec::new();
        }
        crate::value::cidrs(self.get("proxy-real-ip-cidr")).unwrap_or_default()
    }

    /// Takes what holds in place of a value that fails. Returns the words for it.
    pub fn fail(&mut self, row: &Row, text: &str, judged: &Judged) -> &'static str {
        self.values.remove(row.name);
        if !self.set_aside.contains(&row.name) {
            self.set_aside.push(row.name);
        }
        match on_failure(row.name, text) {
            OnFailure::Default => "the default stays",
            OnFailure::Strictest(value) => {
                self.values.insert(row.name, value.to_owned());
                "the strictest one holds"
            }
            OnFailure::Close => match judged.last.get(row.name).filter(|last| *last != text) {
                Some(last) => {
                    self.values.insert(row.name, last.clone());
                    "the last one that worked stays"
                }
                None => {
                    self.closed.push(row.name);
                    "and it decides on access: all paths of Ingresses answer 503"
                }
            },
        }
    }

    /// Returns a value that is set.
    pub fn set(&self, name: &'static str) -> Option<&str> {
        debug_assert!(row(name).is_some(), "no key {name}");
        self.values.get(name).map(String::as_str)
    }

    /// Returns a value, or the default of the row.
    pub fn get(&self, name: &'static str) -> &str {
        self.set(name).map(str::trim).unwrap_or_else(|| row(name).map_or("", |r| r.default))
    }

    /// Returns a value, or the default of the row; `None` if that is empty.
    pub fn some(&self, name: &'static str) -> Option<&str> {
        Some(self.get(name)).filter(|text| !text.is_empty())
    }

    /// Returns a `Bool`.
    pub fn flag(&self, name: &'static str) -> bool {
        parse_bool(self.get(name)).unwrap_or(false)
    }

    /// Returns a `Number`.
    pub fn number(&self, name: &'static str) -> i64 {
        self.get(name).parse().unwrap_or(0)
    }

    /// Returns the parts of a value between commas, trimmed.
    pub fn list(&self, name: &'static str) -> impl Iterator<Item = &str> {
        self.get(name).split(',').map(str::trim).filter(|part| !part.is_empty())
    }

    /// Returns the highest risk of an annotation that is accepted.
    pub fn risk_level(&self) -> Risk {
        Risk::parse(self.get("annotations-risk-level")).unwrap_or(Risk::High)
    }

    /// Returns the first word of `annotation-value-word-blocklist` in a value, and where it is.
    pub fn blocked_word(&self, value: &str) -> Option<(&str, usize)> {
        self.list("annotation-value-word-blocklist").find_map(|word| Some((word, value.find(word)?)))
    }
}
