//! Groups: who uses them, their endpoints, and the files of their blocks.

use super::{Changes, Group, Groups, Source};
use crate::groups::{self, Endpoint, Servers, Spec};
use crate::ingress::{Globals, Use};
use crate::objects::{Key, Kind, Objects};
use crate::problem::Problem;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

/// Groups up to this number are in one file; more are spread over 256 by a hash of their names.
const ONE_FILE: usize = 500;

/// User of the default backend, which no host is.
const DEFAULT: &str = "";

/// A group with what it was made of.
struct Part {
    spec: Arc<Spec>,
    /// Hosts that use it, and for each the first field that does.
    users: BTreeMap<Arc<str>, Option<Use>>,
    servers: Servers,
    /// Its block as text.
    block: Vec<u8>,
    shard: u8,
}

/// All groups.
#[derive(Default)]
pub(super) struct Parts {
    parts: BTreeMap<Arc<str>, Part>,
    /// Groups that a host uses.
    of_host: HashMap<Arc<str>, Vec<Arc<str>>>,
    of_service: HashMap<Key, BTreeSet<Arc<str>>>,
    endpoints: Groups,
    /// Files whose blocks have changed.
    dirty: BTreeSet<u8>,
    in_shards: BTreeMap<u8, BTreeSet<Arc<str>>>,
    texts: BTreeMap<String, Arc<[u8]>>,
}

impl Parts {
    /// Returns the endpoints of all groups.
    pub(super) fn endpoints(&self) -> Groups {
        self.endpoints.clone()
    }

    pub(super) fn services(&self) -> impl Iterator<Item = &Key> {
        self.of_service.keys()
    }

    /// Takes the groups that a host uses now. `None`: it is gone.
    pub(super) fn replace(&mut self, host: &Arc<str>, uses: Option<&[Use]>, source: Source<'_>) {
        let before = self.of_host.remove(host).unwrap_or_default();
        let mut now: Vec<Arc<str>> = Vec::new();
        for used in uses.unwrap_or_default() {
            if !now.contains(&used.name) {
                self.add(&used.spec, host, Some(used.clone()), source);
                now.push(used.name.clone());
            }
        }
        before.iter().filter(|name| !now.contains(name)).for_each(|name| self.remove(name, host));
        if !now.is_empty() {
            self.of_host.insert(host.clone(), now);
        }
    }

    /// Takes the groups that something beside the hosts of Ingresses uses now.
    pub(super) fn replace_specs(&mut self, user: &Arc<str>, specs: &[Arc<Spec>], source: Source<'_>) {
        let before = self.of_host.remove(user).unwrap_or_default();
        let now: Vec<Arc<str>> = specs.iter().map(|spec| spec.name().into()).collect();
        specs.iter().for_each(|spec| self.add(spec, user, None, source));
        before.iter().filter(|name| !now.contains(name)).for_each(|name| self.remove(name, user));
        self.of_host.insert(user.clone(), now);
    }

    /// Adds a user of a group. `used`: the field of an Ingress that names it.
    fn add(&mut self, spec: &Arc<Spec>, user: &Arc<str>, used: Option<Use>, source: Source<'_>) {
        let Source { objects, globals } = source;
        let name: Arc<str> = match &used {
            Some(used) => used.name.clone(),
            None => spec.name().into(),
        };
        if let Some(part) = self.parts.get_mut(&name) {
            part.users.insert(user.clone(), used);
            return;
        }
        let servers = groups::servers(spec, objects, &globals.options);
        let shard = groups::shard(&name);
        let block = block(&name, spec, &servers, globals);
        Arc::make_mut(&mut self.endpoints).insert(name.clone(), servers.endpoints.clone());
        self.of_service.entry(spec.service.clone()).or_default().insert(name.clone());
        self.in_shards.entry(shard).or_default().insert(name.clone());
        self.dirty.insert(shard);
        let users = [(user.clone(), used)].into();
        self.parts.insert(name, Part { spec: spec.clone(), users, servers, block, shard });
    }

    fn remove(&mut self, name: &Arc<str>, host: &Arc<str>) {
        let Some(part) = self.parts.get_mut(name) else { return };
        part.users.remove(host);
        if !part.users.is_empty() {
            return;
        }
        let Some(part) = self.parts.remove(name) else { return };
        Arc::make_mut(&mut self.endpoints).remove(name);
        if let Some(names) = self.of_service.get_mut(&part.spec.service) {
            names.remove(name);
            if names.is_empty() {
                self.of_service.remove(&part.spec.service);
            }
        }
        if let Some(names) = self.in_shards.get_mut(&part.shard) {
            names.remove(name);
        }
        self.dirty.insert(part.shard);
    }

    /// Finds the endpoints of the groups whose Services or slices have changed. Returns the groups with other endpoints than before.
    pub(super) fn refresh(&mut self, source: Source<'_>, changes: &Changes) -> Vec<Group> {
        let Source { objects, globals } = source;
        if let Some(spec) = &globals.default_backend {
            self.add(&Arc::new(spec.clone()), &DEFAULT.into(), None, source);
        }
        let names: BTreeSet<Arc<str>> = match changes {
            Changes::All => self.parts.keys().cloned().collect(),
            Changes::Some(list) => {
                let services =
                    list.iter().filter(|(kind, _)| matches!(kind, Kind::Service | Kind::EndpointSlice));
                services.filter_map(|(_, key)| self.of_service.get(key)).flatten().cloned().collect()
            }
        };
        let other = |name: Arc<str>| Some((name.clone(), self.one(&name, objects, globals)?));
        names.into_iter().filter_map(other).collect()
    }

    /// Finds the endpoints of a group. Returns them if they are others than before.
    fn one(&mut self, name: &Arc<str>, objects: &Objects, globals: &Globals) -> Option<Arc<[Endpoint]>> {
        let part = self.parts.get_mut(name)?;
        let servers = groups::servers(&part.spec, objects, &globals.options);
        if servers == part.servers {
            return None;
        }
        let other = (servers.endpoints != part.servers.endpoints).then(|| servers.endpoints.clone());
        if let Some(endpoints) = &other {
            Arc::make_mut(&mut self.endpoints).insert(name.clone(), endpoints.clone());
        }
        part.servers = servers;
        let block = block(name, &part.spec, &part.servers, globals);
        if block != part.block {
            part.block = block;
            self.dirty.insert(part.shard);
        }
        other
    }

    /// Returns what is wrong with the Services of groups.
    pub(super) fn problems(&self) -> impl Iterator<Item = Problem> {
        self.parts.values().flat_map(|part| {
            let why = part.servers.problem.iter();
            why.flat_map(|why| part.users.values().flatten().map(move |used| problem(why, used)))
        })
    }

    /// Returns the files of groups with their paths.
    pub(super) fn texts(&mut self) -> &BTreeMap<String, Arc<[u8]>> {
        let dirty = std::mem::take(&mut self.dirty);
        let one = self.parts.len() <= ONE_FILE;
        const ALL: &str = "groups.conf";
        if one {
            if !dirty.is_empty() || self.texts.len() != 1 || !self.texts.contains_key(ALL) {
                let text: Vec<u8> = self.parts.values().flat_map(|p| p.block.iter().copied()).collect();
                let old = std::mem::take(&mut self.texts).remove(ALL).filter(|old| **old == *text);
                self.texts.insert(ALL.into(), old.unwrap_or_else(|| text.into()));
            }
            return &self.texts;
        }
        let anew = self.texts.remove(ALL).is_some() || self.texts.is_empty();
        let shards: Vec<u8> =
            if anew { self.in_shards.keys().copied().collect() } else { dirty.into_iter().collect() };
        for shard in shards {
            let names = self.in_shards.get(&shard).into_iter().flatten();
            let blocks = names.filter_map(|name| self.parts.get(name)).flat_map(|p| p.block.iter().copied());
            let text: Vec<u8> = blocks.collect();
            let path = format!("groups/{shard:02x}.conf");
            if text.is_empty() {
                self.texts.remove(&path);
            } else if self.texts.get(&path).is_none_or(|old| **old != *text) {
                self.texts.insert(path, text.into());
            }
        }
        &self.texts
    }
}

/// Makes the block of a group.
pub(super) fn block(name: &str, spec: &Spec, servers: &Servers, globals: &Globals) -> Vec<u8> {
    // Names are short and have no control characters, so that they can be printed.
    forebay_conf::print(&[groups::block(name, spec, servers, &globals.groups)]).unwrap_or_default()
}

fn problem(why: &str, used: &Use) -> Problem {
    let text = format!("{why}; the path answers 503");
    Problem::new(Kind::Ingress, &used.origin.metadata, used.field.as_str(), text).reason("BackendMissing")
}
