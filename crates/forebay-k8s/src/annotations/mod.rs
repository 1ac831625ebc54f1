//! The annotations of an Ingress: one row for each, and the reading of them.

mod dropped;
mod rows;

use crate::objects::{Ingress, Kind};
use crate::options::Options;
use crate::problem::{Problem, Severity};
use crate::settings::Settings;
use crate::value::Value;
use std::collections::BTreeMap;
use std::sync::OnceLock;

pub use rows::{OWN, ROWS};

/// Second prefix of annotations, with the same names and some of our own.
pub const PREFIX: &str = "forebay.io";

/// Reason why annotations and keys of ModSecurity are refused, and what follows.
pub const NO_FIREWALL: &str = "Forebay has no ModSecurity engine: the paths answer 503. With --ignore-missing-waf they are served, and \
    nothing is filtered";

/// Objects that an annotation is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The paths of the Ingress.
    Location,
    /// The Ingress as a whole.
    Ingress,
}

/// How much harm a wrong or hostile value can do, by ingress-nginx's own scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum Risk {
    Low,
    Medium,
    High,
    Critical,
}

impl Risk {
    /// Reads the value of `annotations-risk-level`.
    pub fn parse(text: &str) -> Option<Risk> {
        let all = [Risk::Low, Risk::Medium, Risk::High, Risk::Critical];
        all.into_iter().find(|r| r.as_str().eq_ignore_ascii_case(text))
    }

    /// Returns the name.
    pub fn as_str(self) -> &'static str {
        match self {
            Risk::Low => "Low",
            Risk::Medium => "Medium",
            Risk::High => "High",
            Risk::Critical => "Critical",
        }
    }
}

/// Verdict of Forebay on an annotation or key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It works as documented by ingress-nginx.
    Works,
    /// It works in another way, or has no effect and needs none.
    Differs(&'static str),
    /// It is refused.
    Refused(&'static str),
}

/// An annotation.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Name after the prefix.
    pub name: &'static str,
    /// Type of its value.
    pub value: Value,
    /// Value without it; empty: none.
    pub default: &'static str,
    /// Objects that it is about.
    pub scope: Scope,
    /// Harm that it can do.
    pub risk: Risk,
    /// It decides on access: if its value is refused, the paths of the Ingress answer 503.
    pub access: bool,
    /// Other names.
    pub aliases: &'static [&'static str],
    /// What Forebay does.
    pub verdict: Verdict,
}

/// Finds the row of a name or alias.
pub fn row(name: &str) -> Option<&'static Row> {
    static INDEX: OnceLock<BTreeMap<&'static str, &'static Row>> = OnceLock::new();
    let index = INDEX.get_or_init(|| {
        let names = |row: &'static Row| {
            std::iter::once(row.name).chain(row.aliases.iter().copied()).map(move |n| (n, row))
        };
        ROWS.iter().chain(OWN).flat_map(names).collect()
    });
    index.get(name).copied()
}

/// The valid annotations of an Ingress.
#[derive(Clone, Debug, Default)]
pub struct Annotations {
    values: BTreeMap<&'static str, String>,
    /// An annotation that decides on access was refused: the paths of the Ingress must not be served.
    pub closed: bool,
    /// A value has a word that `annotation-value-word-blocklist` names: the Ingress is not served.
    pub banned: bool,
    /// An annotation asks for ModSecurity.
    firewall: bool,
}

/// Annotations that decide on access and whose default is the strictest value: it holds if their own is refused.
const STRICT: &[&str] = &["auth-tls-verify-client", "auth-tls-verify-depth"];

/// Returns `true` if nobody is to be let in while an annotation has no effect.
fn closes(row: &Row, text: &str) -> bool {
    row.access && !STRICT.contains(&row.name)
        || row.value == Value::Snippet && crate::settings::snippet_decides(text)
}

/// Returns what holds in place of a value that is no bool, where the default would serve over HTTP what its author wishes to be asked
/// for over HTTPS. What the ConfigMap does not allow has no effect at all.
fn strictest(row: &Row, text: &str, settings: &Settings) -> Option<&'static str> {
    let redirects = matches!(row.name, "force-ssl-redirect" | "ssl-redirect");
    let allowed = row.risk <= settings.risk_level() && settings.blocked_word(text).is_none();
    (redirects && allowed && crate::value::parse_bool(text).is_none()).then_some("true")
}

/// An annotation as it is written.
struct Written<'a> {
    ingress: &'a Ingress,
    /// Name with its prefix.
    full: &'a str,
    text: &'a str,
}

impl Written<'_> {
    fn problem(&self, text: impl Into<String>) -> Problem {
        let field = format!("metadata.annotations[{}]", self.full);
        Problem::new(Kind::Ingress, &self.ingress.metadata, field, text)
    }

    /// Reports a name that no annotation has.
    fn unknown(&self, name: &str) -> Problem {
        if let Some(instead) = dropped::instead(name) {
            let text = format!("ingress-nginx itself has dropped it, it has no effect: {instead}");
            return self.problem(text).severity(Severity::Ignored).reason("DroppedAnnotation");
        }
        let near = nearest(name).map(|n| format!("; did you mean \"{n}\"?")).unwrap_or_default();
        let text = format!("there is no such annotation{near}");
        self.problem(text).severity(Severity::Ignored).reason("UnknownAnnotation")
    }

    /// Returns why the value is refused.
    fn refusal(&self, row: &'static Row, settings: &Settings) -> Option<Problem> {
        let text = self.text;
        let closes = match strictest(row, text, settings) {
            Some(value) => format!("; it counts as \"{value}\""),
            None if closes(row, text) => "; the paths of the Ingress answer 503".to_owned(),
            None if STRICT.contains(&row.name) => format!("; the default \"{}\" holds", row.default),
            None => String::new(),
        };
        if row.value == Value::Snippet && !settings.flag("allow-snippet-annotations") {
            let why = format!("snippets are not allowed: allow-snippet-annotations is false{closes}");
            return Some(self.problem(why).reason("SnippetNotAllowed"));
        }
        if row.risk > settings.risk_level() {
            let (own, level) = (row.risk.as_str(), settings.risk_level().as_str());
            let why = format!("its risk is {own}, and annotations-risk-level is {level}{closes}");
            return Some(self.problem(why).reason("RiskTooHigh"));
        }
        let invalid = row.value.check(text, &settings.defined).err()?;
        Some(self.problem(format!("the value is not valid{closes}")).invalid(text, &invalid))
    }
}

/// Returns `true` for an annotation of ModSecurity.
fn asks_for_firewall(row: &Row) -> bool {
    row.verdict == Verdict::Refused(NO_FIREWALL)
}

impl Annotations {
    /// Reads the annotations of an Ingress.
    pub fn read(
        ingress: &Ingress,
        options: &Options,
        settings: &Settings,
        problems: &mut Vec<Problem>,
    ) -> Annotations {
        let mut read = Annotations::default();
        for (full, text) in &ingress.metadata.annotations {
            let Some((domain, name)) = full.split_once('/') else { continue };
            if domain != options.annotations_prefix && domain != PREFIX {
                continue;
            }
            let written = Written { ingress, full, text };
            match row(name) {
                None => problems.push(written.unknown(name)),
                // Of a name and its alias, or of two prefixes, the first counts: `forebay.io` sorts first.
                Some(row) if read.values.contains_key(row.name) => {}
                Some(row) => read.add(row, &written, settings, problems),
            }
        }
        read.closed |= read.wants_firewall() && !options.ignore_missing_waf;
        read
    }

    /// Reports whether an annotation asks for ModSecurity, and none says that it is off.
    fn wants_firewall(&self) -> bool {
        let off = self.get("enable-modsecurity").and_then(crate::value::parse_bool) == Some(false);
        self.firewall && !off
    }

    fn add(
        &mut self,
        row: &'static Row,
        written: &Written<'_>,
        settings: &Settings,
        problems: &mut Vec<Problem>,
    ) {
        let text = written.text;
        // ingress-nginx takes an empty value for an absent annotation.
        if text.is_empty() || !row.access && text.trim().is_empty() {
            return;
        }
        if let Some((word, at)) = settings.blocked_word(text) {
            let why = format!(
                "the value contains \"{word}\", which annotation-value-word-blocklist names; the Ingress is not served"
            );
            problems.push(written.problem(why).reason("BlockedWord").at(text, at));
            self.banned = true;
        } else if let Some(refused) = written.refusal(row, settings) {
            self.closed |= closes(row, text);
            self.values.extend(strictest(row, text, settings).map(|value| (row.name, value.to_owned())));
            self.firewall |= asks_for_firewall(row);
            problems.push(refused);
        } else {
            self.take(row, written, problems);
        }
    }

    /// Takes a value that is valid, as far as Forebay does what it says.
    fn take(&mut self, row: &'static Row, written: &Written<'_>, problems: &mut Vec<Problem>) {
        let text = written.text;
        match row.verdict {
            // `false` asks for nothing, so it is accepted.
            Verdict::Refused(_)
                if row.value == Value::Bool && crate::value::parse_bool(text) == Some(false) => {}
            Verdict::Refused(why) => {
                let firewall = asks_for_firewall(row);
                let reason = if firewall { "NoFirewall" } else { "NotSupported" };
                problems.push(written.problem(why).reason(reason));
                self.firewall |= firewall;
                return;
            }
            Verdict::Differs(how) if deviates(row, text) => {
                let without = how.starts_with("accepted without effect");
                let severity = if without { Severity::Ignored } else { Severity::Differs };
                problems.push(written.problem(how).severity(severity).reason("Differs"));
            }
            Verdict::Works | Verdict::Differs(_) => {}
        }
        self.values.insert(row.name, text.to_owned());
    }

    /// Returns a value that is set.
    pub fn get(&self, name: &'static str) -> Option<&str> {
        debug_assert!(row(name).is_some(), "no annotation {name}");
        self.values.get(name).map(|text| text.trim())
    }

    /// Returns a value with its white space.
    pub fn raw(&self, name: &'static str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// Returns a value, or the default of the row.
    pub fn or_default(&self, name: &'static str) -> &str {
        self.get(name).unwrap_or_else(|| row(name).map_or("", |r| r.default))
    }

    /// Returns a `Bool`, or the default of the row.
    pub fn flag(&self, name: &'static str) -> bool {
        crate::value::parse_bool(self.or_default(name)).unwrap_or(false)
    }

    /// Returns a `Number` that is set.
    pub fn number(&self, name: &'static str) -> Option<i64> {
        self.get(name)?.parse().ok()
    }

    /// Returns the names that are set.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.values.keys().copied()
    }

    /// Removes a value.
    pub fn remove(&mut self, name: &'static str) {
        self.values.remove(name);
    }
}

/// Returns `true` if what Forebay does with a value differs, for annotations of which only some values do.
fn deviates(row: &Row, text: &str) -> bool {
    match row.name {
        "affinity" | "canary" | "canary-weight" => false,
        "affinity-mode" => text == "balanced",
        "auth-type" => text != "basic",
        "load-balance" => text != "round_robin",
        "auth-keepalive-share-vars" | "http2-push-preload" | "session-cookie-conditional-samesite-none" => {
            crate::value::parse_bool(text) == Some(true)
        }
        "configuration-snippet" | "server-snippet" | "auth-snippet" | "stream-snippet" => false,
        "auth-tls-error-page" => false,
        "proxy-ssl-verify-depth" => text != "1",
        "session-cookie-expires" | "upstream-hash-by-subset-size" => false,
        "proxy-ssl-protocols" => text.split_ascii_whitespace().any(|p| p == "TLSv1" || p == "TLSv1.1"),
        "proxy-ssl-ciphers" | "ssl-ciphers" => false,
        _ => true,
    }
}

/// Returns the known name closest to an unknown one.
fn nearest(name: &str) -> Option<&'static str> {
    let names = ROWS.iter().flat_map(|r| std::iter::once(r.name).chain(r.aliases.iter().copied()));
    forebay_conf::grammar::nearest(name, names)
}
