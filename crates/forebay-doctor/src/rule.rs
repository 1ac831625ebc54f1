//! Rules as data: `data/rules/*.rules`, a file for each family. A rule begins with `== ID`; each line after it is a key and its
//! value, and a line that begins with blanks goes on with the value before it.

use crate::fix::{Mend, Safety};
use crate::target::Holds;
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// Severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Breaks requests, loses safety, or makes things slower.
    Harm,
    /// Will hurt under conditions that the text names.
    Warning,
    /// Does nothing here: it can go.
    NoEffect,
    /// Could be better.
    Advice,
}

impl Severity {
    /// Returns its name in output for programs.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Harm => "harm",
            Severity::Warning => "warning",
            Severity::NoEffect => "no-effect",
            Severity::Advice => "advice",
        }
    }

    fn parse(name: &str) -> Option<Severity> {
        let all = [Severity::Harm, Severity::Warning, Severity::NoEffect, Severity::Advice];
        all.into_iter().find(|s| s.name() == name)
    }
}

/// Blocks in which a line could stand that a rule misses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reach {
    /// The server block and the locations: a guard, a folder.
    Server,
    /// Any block around: a setting that is inherited.
    Anywhere,
}

impl Reach {
    fn parse(name: &str) -> Option<Reach> {
        match name {
            "server" => Some(Reach::Server),
            "anywhere" => Some(Reach::Anywhere),
            _ => None,
        }
    }
}

/// A rule.
pub struct Rule {
    /// Stable name, also of its section in docs/doctor.md.
    pub id: String,
    /// Family, as in [`FAMILIES`].
    pub family: &'static str,
    /// Its severity.
    pub severity: Severity,
    /// The general problem.
    pub title: String,
    /// Reason for the rule.
    pub why: String,
    /// Advice.
    pub instead: String,
    /// Servers that have the problem.
    pub holds: Holds,
    /// Sources: a CVE, an RFC, a document of nginx, or a measurement.
    pub evidence: String,
    /// Where a line that is not there would have to be looked for. In a file that is not seen there may be one, so the rule is silent.
    pub absent: Option<Reach>,
    /// It is a matter of taste or of a measurement: `--all` shows it.
    pub is_optional: bool,
    /// Settings of `forebay tune` that it speaks about.
    pub knobs: Vec<String>,
    /// How it is mended.
    pub fix: Option<(Safety, Mend)>,
    /// A configuration with the fault and one without; `None` for rules that look at the machine.
    pub example: Option<Example>,
}

/// Pair of configurations, or of parts of the http block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Example {
    /// Has the fault.
    pub bad: String,
    /// Has it not.
    pub good: String,
}

impl std::fmt::Debug for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.id)
    }
}

/// A family of rules: its name, heading and table.
pub struct Family {
    /// Name of its file.
    pub name: &'static str,
    /// Heading in docs/doctor.md.
    pub heading: &'static str,
    text: &'static str,
}

macro_rules! families {
    ($($name:literal $heading:literal,)*) => {
        /// Families of rules, in the order of docs/doctor.md.
        pub const FAMILIES: &[Family] =
            &[$(Family { name: $name, heading: $heading, text: include_str!(concat!("../data/rules/", $name, ".rules")) },)*];
    };
}

families! {
    "access" "Access",
    "identity" "Who the client is",
    "tls" "TLS",
    "certificates" "Certificates",
    "fields" "Fields of responses",
    "locations" "Locations, rewrites and variables",
    "proxying" "Passing requests on",
    "caching" "Caches",
    "limits" "Limits",
    "logs" "Logs",
    "files" "Files",
    "compression" "Compression",
    "connections" "Connections of clients",
    "workers" "Workers",
    "resources" "Descriptors and memory",
    "defaults" "Defaults and old names",
    "http3" "HTTP/3",
    "stream" "TCP and UDP",
    "versions" "Faults of versions of nginx",
    "disks" "File systems",
    "kernel" "The kernel",
    "running" "The running server",
}

static RULES: LazyLock<Vec<Rule>> = LazyLock::new(|| FAMILIES.iter().flat_map(read).collect());

static BY_ID: LazyLock<BTreeMap<&'static str, &'static Rule>> =
    LazyLock::new(|| RULES.iter().map(|rule| (rule.id.as_str(), rule)).collect());

/// Returns all rules, family by family.
pub fn rules() -> impl Iterator<Item = &'static Rule> {
    RULES.iter()
}

/// Returns the rule of this name.
pub fn rule(id: &str) -> Option<&'static Rule> {
    BY_ID.get(id).copied()
}

/// Reads the table of a family. Unknown keys and incomplete rules are left out; a test counts the rules.
fn read(family: &'static Family) -> impl Iterator<Item = Rule> {
    family.text.split("== ").skip(1).filter_map(|text| one(family.name, text))
}

fn one(family: &'static str, text: &str) -> Option<Rule> {
    let (id, body) = text.split_once('\n')?;
    let values = values(body);
    let get = |key: &str| values.get(key).cloned();
    let line = |key: &str| Some(get(key)?.replace('\n', " "));
    let fix = get("fix")?;
    Some(Rule {
        id: id.trim().to_owned(),
        family,
        severity: Severity::parse(&get("severity")?)?,
        title: line("title")?,
        why: line("why")?,
        instead: line("instead")?,
        holds: Holds::parse(&get("holds")?)?,
        evidence: line("evidence")?,
        absent: match get("absent") {
            Some(reach) => Some(Reach::parse(&reach)?),
            None => None,
        },
        is_optional: get("shown").is_some(),
        knobs: get("tune").iter().flat_map(|names| names.split(' ')).map(str::to_owned).collect(),
        fix: if fix == "none" { None } else { Some(Mend::parse(&fix)?) },
        example: get("bad").zip(get("good")).map(|(bad, good)| Example { bad, good }),
    })
}

/// Returns the values of a rule by their keys.
fn values(body: &str) -> BTreeMap<&str, String> {
    let mut values: BTreeMap<&str, String> = BTreeMap::new();
    let mut last = "";
    for line in body.lines().filter(|line| !line.is_empty()) {
        match line.strip_prefix(' ') {
            Some(more) => {
                if let Some(value) = values.get_mut(last) {
                    value.push('\n');
                    value.push_str(more.trim());
                }
            }
            None => {
                let (key, value) = line.split_once(' ').unwrap_or((line, ""));
                values.insert(key, value.trim().to_owned());
                last = key;
            }
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_rule_of_the_tables_is_left_out() {
        let written = FAMILIES.iter().map(|f| f.text.lines().filter(|l| l.starts_with("== ")).count());
        assert_eq!(rules().count(), written.sum::<usize>());
        for family in FAMILIES {
            let ids: Vec<&str> = family.text.lines().filter_map(|l| l.strip_prefix("== ")).collect();
            for id in ids {
                assert!(rule(id).is_some(), "{id} of {} is not complete", family.name);
            }
        }
        assert_eq!(BY_ID.len(), rules().count(), "ids are unique");
    }

    #[test]
    fn values_go_on_in_the_next_lines() {
        let values = values("a  b c\n   d\n\nempty\n");
        assert_eq!(values["a"], "b c\nd");
        assert_eq!(values["empty"], "");
    }
}
