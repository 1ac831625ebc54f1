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
            if !pattern && !ingress::is_host(&name) {
                self.problems.push(problem("it is no DNS name").reason("InvalidHost"));
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
