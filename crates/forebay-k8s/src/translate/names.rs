//! Names that servers have beside their hosts: those of `server-alias` and `from-to-www-redirect`.

use super::hosts::Hosts;
use crate::ingress::{self, Names, Parsed};
use crate::problem::Problem;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Names of all hosts that have any.
#[derive(Default)]
pub(super) struct All {
    names: BTreeMap<String, Names>,
    none: Names,
    /// All names.
    taken: BTreeSet<String>,
    /// Number of changes of the names.
    pub(super) changes: u64,
    pub(super) problems: Vec<Problem>,
}

/// Returns `true` if an Ingress names servers beside its hosts.
pub(super) fn has_names(parsed: &Parsed) -> bool {
    let a = &parsed.annotations;
    !parsed.canary && (a.get("server-alias").is_some() || a.flag("from-to-www-redirect"))
}

/// Returns the names of an annotation, and its regular expressions, which may have spaces.
fn aliases(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).flat_map(|part| {
        let whole = part.starts_with('~').then_some(part);
        let names = part.split(' ').filter(move |_| whole.is_none());
        whole.into_iter().chain(names).filter(|name| !name.is_empty())
    })
}

/// Names of nobody: a pattern that fits one of them would take requests for hosts that its author does not have.
#[rustfmt::skip]
const PROBES: [&str; 22] = [
    "", "localhost", "10.1.2.3", "192.168.77.200", "203.0.113.9", "[::1]", "::1", "[2001:db8::7]", "2001:db8::7", "qzxv", "7", "a.b",
    "qzxv-wkjq.com", "q7z-31.wkjq.net", "fghb.qzxv.org", "w0.kjq.io", "zv.wkjq.dev", "pods.qzxv.local", "17.qzxv.svc", "aeiou.uoiea",
    "abcdefghijklm-nopqrstuvwxyz-0123456789.zyxwvutsrqponmlkjihgfedcba.9876543210.invalid", "bcd.fgh.test",
];

/// Returns why a regular expression is no alias: it fits names of others, or it cannot be told.
fn too_wide(alias: &str) -> Option<&'static str> {
    let pattern = alias.strip_prefix('~')?;
    let pattern = pattern.strip_prefix('*').unwrap_or(pattern);
    let built = regex::RegexBuilder::new(pattern).case_insensitive(true).size_limit(1 << 20).build();
    match built {
        Ok(pattern) if PROBES.iter().any(|name| pattern.is_match(name)) => {
            Some("it fits names that are not below one of its own")
        }
        Ok(_) => None,
        Err(_) => Some(
            "look-around and back references are not allowed, since nobody can tell which names they fit",
        ),
    }
}

impl All {
    /// Returns the names of a host.
    pub(super) fn of(&self, host: &str) -> &Names {
        self.names.get(host).unwrap_or(&self.none)
    }

    /// Returns `true` if a server has a name beside its host.
    pub(super) fn has(&self, name: &str) -> bool {
        self.taken.contains(name)
    }

    /// Finds the names anew if hosts have changed, and adds those hosts whose names have. A host of a rule counts before names, and an
    /// older Ingress before a younger. `naming`: Ingresses with such names, the oldest first.
    pub(super) fn update<'p>(
        &mut self,
        naming: impl Iterator<Item = &'p Parsed>,
        hosts: &Hosts,
        dirty: &mut BTreeSet<Arc<str>>,
    ) {
        if dirty.is_empty() {
            return;
        }
        let before = std::mem::take(&mut self.names);
        self.problems.clear();
        let mut taken = BTreeSet::new();
        for parsed in naming {
            self.aliases(parsed, hosts, &mut taken);
            self.redirected(parsed, hosts, &mut taken);
        }
        self.changes += u64::from(taken != self.taken);
        self.taken = taken;
        for host in before.keys().chain(self.names.keys()) {
            if before.get(host) != self.names.get(host) {
                dirty.insert(host.as_str().into());
            }
        }
    }

    fn aliases(&mut self, parsed: &Parsed, hosts: &Hosts, taken: &mut BTreeSet<String>) {
        let host = parsed.rules.iter().find_map(|r| r.host.as_ref());
        let (Some(host), Some(text)) = (host, parsed.annotations.get("server-alias")) else { return };
        for alias in aliases(text) {
            let pattern = alias.starts_with('~');
            let name = if pattern { alias.to_owned() } else { alias.to_ascii_lowercase() };
            let problem = |why: &str| {
                let text_of = format!("\"{}\" is no alias: {why}", alias.escape_debug());
                parsed.annotation_problem("server-alias", text_of).at(text, text.find(alias).unwrap_or(0))
            };
            if let Some(why) = too_wide(alias) {
                self.problems.push(problem(why).reason("InvalidHost"));
            } else if !pattern && !ingress::is_host(&name) {
                self.problems.push(problem("it is no DNS name").reason("InvalidHost"));
            } else if self.of(host).aliases.contains(&name) {
                // Another Ingress of the host names it, too.
            } else if hosts.has(&name) || !taken.insert(name.clone()) {
                self.problems.push(problem("another server has the name").reason("HostConflict"));
            } else {
                self.names.entry(host.clone()).or_default().aliases.push(name);
            }
        }
    }

    fn redirected(&mut self, parsed: &Parsed, hosts: &Hosts, taken: &mut BTreeSet<String>) {
        if !parsed.annotations.flag("from-to-www-redirect") {
            return;
        }
        let named = parsed.rules.iter().filter_map(|r| r.host.as_ref());
        for host in named.filter(|h| !h.starts_with("*.")) {
            let other = host.strip_prefix("www.").map_or_else(|| format!("www.{host}"), str::to_owned);
            if !hosts.has(&other) && taken.insert(other.clone()) {
                self.names.entry(host.clone()).or_default().redirected_from = Some(other);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_that_fit_names_of_others_are_refused() {
        let wide = [
            "~.*",
            "~.",
            "~^",
            "~^.+$",
            "~*.*",
            "~^[^.]+$",
            "~^[a-z.]+$",
            "~^$",
            "~^\\d",
            "~^[0-9.]+$",
            "~:",
            "~^\\[",
            "~\\.com$",
            "~^.{20,}$",
            "~^[^x]*$",
            "~local",
            "~^(?!www)",
            "~(a)\\1",
            "~.*\\.(com|net)$",
            "~(?i)Z",
        ];
        for pattern in wide {
            assert!(too_wide(pattern).is_some(), "{pattern}");
        }
        for pattern in [
            "~^www\\d+\\.example\\.com$",
            "~^al[0-9]+[.]a.example.com$",
            "~\\.example\\.com$",
            "a.example.com",
            "*.x.test",
        ] {
            assert_eq!(too_wide(pattern), None, "{pattern}");
        }
    }
}
