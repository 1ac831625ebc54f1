//! Hosts: the Ingresses of each, and the file that they become.

use crate::ingress::{self, Globals, Made, Members, Names, Parsed, Use};
use crate::model::{File, HostName};
use crate::objects::{Key, Kind, Objects};
use crate::problem::Problem;
use crate::tree;
use crate::view::{Dependency, View};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

/// Stands for all hosts without rules among the names of hosts.
pub(super) const ANY: &str = "_";

/// File of a host with what it depends on.
pub(super) struct HostPart {
    dependencies: Vec<Dependency>,
    pub(super) path: Arc<Path>,
    pub(super) bytes: Arc<[u8]>,
    pub(super) uses: Vec<Use>,
    pub(super) problems: Vec<Problem>,
    pub(super) files: Vec<(Arc<Path>, Arc<[u8]>)>,
    /// It keeps answers of an authentication service.
    pub(super) auth_cache: bool,
}

/// All hosts.
#[derive(Default)]
pub(super) struct Hosts {
    members: BTreeMap<Arc<str>, Members>,
    parts: BTreeMap<Arc<str>, HostPart>,
    /// Hosts whose parts have problems.
    troubled: BTreeSet<Arc<str>>,
    /// Number of changes of the set of hosts.
    pub(super) changes: u64,
    /// Files from before everything was made anew.
    before: HashMap<Arc<Path>, Arc<[u8]>>,
}

fn names_of(parsed: &Parsed) -> impl Iterator<Item = (usize, &str)> {
    parsed.rules.iter().enumerate().map(|(i, r)| (i, r.host.as_deref().unwrap_or(ANY)))
}

impl Hosts {
    /// Makes an empty set that remembers the files of another.
    pub(super) fn after(old: &Hosts) -> Hosts {
        let before = old.parts.values().map(|part| (part.path.clone(), part.bytes.clone())).collect();
        Hosts { before, ..Hosts::default() }
    }

    /// Removes an Ingress from its hosts.
    pub(super) fn leave(&mut self, parsed: &Parsed, dirty: &mut BTreeSet<Arc<str>>) {
        for (_, name) in names_of(parsed) {
            let Some(members) = self.members.get_mut(name) else { continue };
            members.retain(|(p, _)| p.key != parsed.key);
            if members.is_empty() {
                self.members.remove(name);
            }
            dirty.insert(name.into());
        }
    }

    /// Adds an Ingress to its hosts.
    pub(super) fn join(&mut self, parsed: &Arc<Parsed>, dirty: &mut BTreeSet<Arc<str>>) {
        for (index, name) in names_of(parsed) {
            let name: Arc<str> = name.into();
            let members = self.members.entry(name.clone()).or_default();
            let age = super::age(parsed);
            let at = members.partition_point(|(p, _)| super::age(p) < age);
            members.insert(at, (parsed.clone(), index));
            dirty.insert(name);
        }
    }

    /// Adds the hosts that have looked at objects that have changed.
    pub(super) fn depending(&self, changes: &[(Kind, Key)], dirty: &mut BTreeSet<Arc<str>>) {
        let relevant = |kind: Kind| matches!(kind, Kind::Service | Kind::Secret | Kind::ConfigMap);
        let changed: BTreeSet<(Kind, &Key)> =
            changes.iter().filter(|(k, _)| relevant(*k)).map(|(k, key)| (*k, key)).collect();
        if changed.is_empty() {
            return;
        }
        for (name, part) in &self.parts {
            if part.dependencies.iter().any(|(kind, key, _)| changed.contains(&(*kind, key))) {
                dirty.insert(name.clone());
            }
        }
    }

    /// Returns `true` if a host has rules.
    pub(super) fn has(&self, name: &str) -> bool {
        self.members.contains_key(name)
    }

    /// Returns the Ingresses of a host. `None`: it has none, and no server.
    pub(super) fn members(&self, name: &str) -> Option<&Members> {
        static NONE: Members = Members::new();
        self.members.get(name).or((name == ANY).then_some(&NONE))
    }

    /// Replaces the part of a host. Returns the old one and the new one.
    pub(super) fn replace(
        &mut self,
        name: &Arc<str>,
        mut part: Option<HostPart>,
    ) -> (Option<HostPart>, Option<&HostPart>) {
        if let Some(part) = &mut part {
            let same = self.before.remove(&part.path).filter(|old| **old == *part.bytes);
            part.bytes = same.unwrap_or_else(|| part.bytes.clone());
        }
        if part.as_ref().is_some_and(|part| !part.problems.is_empty()) {
            self.troubled.insert(name.clone());
        } else {
            self.troubled.remove(name);
        }
        let had = self.parts.contains_key(name);
        self.changes += u64::from(had != part.is_some());
        let old = match part {
            Some(part) => self.parts.insert(name.clone(), part),
            None => self.parts.remove(name),
        };
        (old, self.parts.get(name))
    }

    /// Returns the host whose file has a path.
    pub(super) fn name_of(&self, path: &Path) -> Option<&str> {
        self.parts.iter().find(|(_, part)| &*part.path == path).map(|(name, _)| &**name)
    }

    /// Returns the part of a host.
    pub(super) fn part(&self, name: &str) -> Option<&HostPart> {
        self.parts.get(name)
    }

    pub(super) fn parts(&self) -> impl Iterator<Item = &HostPart> {
        self.parts.values()
    }

    pub(super) fn problems(&self) -> impl Iterator<Item = &Problem> {
        self.troubled.iter().filter_map(|name| self.parts.get(name)).flat_map(|part| &part.problems)
    }
}

/// Returns the path of a host's file.
fn path(host: &str) -> String {
    match host.strip_prefix("*.") {
        Some(rest) => format!("hosts/_wildcard.{rest}.conf"),
        None => format!("hosts/{host}.conf"),
    }
}

/// Makes the part of a host.
pub(super) fn make(
    objects: &Objects,
    globals: &Globals,
    name: &str,
    members: &Members,
    names: &Names,
) -> HostPart {
    let view = View::new(objects, &globals.options.judge);
    let host = if name == ANY { HostName::Any } else { HostName::Name(name.to_owned()) };
    let Made { server, uses, mut problems, files } = ingress::server(&host, members, names, globals, &view);
    let bytes = forebay_conf::print(&tree::server(&server, globals)).unwrap_or_else(|error| {
        for (parsed, _) in members {
            let text = format!("the host \"{}\" is not served: {error}", host.as_str());
            problems.push(parsed.problem("metadata", text).reason("TooLong"));
        }
        Vec::new()
    });
    let auth_cache =
        server.routes.iter().any(|r| r.policy.authority.as_ref().is_some_and(|a| a.cache.is_some()));
    HostPart {
        dependencies: view.into_dependencies(),
        path: Path::new(&path(name)).into(),
        bytes: bytes.into(),
        uses,
        problems,
        files: files.into_iter().map(|File { path, bytes }| (Path::new(&path).into(), bytes)).collect(),
        auth_cache,
    }
}
