//! The translation as a whole, kept between calls so that only what changed is made anew.
//!
//! The set of objects tells what has changed since the last call: a changed Ingress makes its hosts anew, a changed Service, Secret
//! or ConfigMap the hosts that have looked at it, and a changed EndpointSlice the groups of its Service.

mod files;
mod gateways;
mod groups;
mod guilty;
mod hosts;
mod judged;
mod keys;
mod names;
mod probe;
mod stream;

pub use keys::suspect;

use crate::blame::Bounds;
use crate::gateway::{GatewayService, StatusUpdate};
use crate::groups::Endpoint;
use crate::ingress::{self, Globals, Parsed};
use crate::objects::{Key, Kind, Objects};
use crate::options::Options;
use crate::problem::Problem;
use crate::view::{self, Dependency, View};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

/// Name of the main file.
pub const MAIN: &str = "forebay.conf";

/// Name of a group and its endpoints.
pub type Group = (Arc<str>, Arc<[Endpoint]>);

/// Endpoints of groups by the names of the groups.
pub type Groups = Arc<BTreeMap<Arc<str>, Arc<[Endpoint]>>>;

/// Values of the ConfigMap that decide on access, by their keys.
pub type Deciding = BTreeMap<&'static str, String>;

/// What objects become.
#[derive(Clone, Debug, Default)]
pub struct Translation {
    /// Files by their paths relative to one directory: the main file first, then groups, hosts, certificates and the like. A
    /// file that has not changed is the same `Arc` as before.
    pub files: Vec<(Arc<Path>, Arc<[u8]>)>,
    /// Endpoints of each group as they are now. A map without a change is the same `Arc` as before.
    pub groups: Groups,
    /// What objects wish and do not get.
    pub problems: Vec<Problem>,
    /// Ingresses that are served, the oldest first.
    pub accepted: Arc<[Arc<Accepted>]>,
    /// Statuses of objects of the Gateway API.
    pub statuses: Vec<StatusUpdate>,
    /// Services of Gateways.
    pub services: Vec<GatewayService>,
    /// Values of the ConfigMap that decide on access, for [`Translator::worked`].
    pub deciding: Arc<Deciding>,
    /// The judge had no time for some hosts: the next translation goes on with them.
    pub unjudged: bool,
}

/// An Ingress that is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Namespace and name.
    pub key: Key,
    /// Its hosts; empty: all hosts without rules.
    pub hosts: Vec<String>,
}

/// Place of an Ingress among others: its time of creation, then its key.
type Age = (String, Key);

/// What all parts share, and what it is made of.
struct Shared {
    globals: Arc<Globals>,
    dependencies: Vec<Dependency>,
    problems: Vec<Problem>,
    deciding: Arc<Deciding>,
}

/// Translates objects, again and again.
#[derive(Default)]
pub struct Translator {
    options: Options,
    globals: Option<Shared>,
    /// Version of the objects of the last call.
    seen: Option<(u64, u64)>,
    /// Ingresses that are ours, the oldest first.
    ours: BTreeMap<Age, (Arc<Parsed>, Arc<Accepted>)>,
    ages: HashMap<Key, Age>,
    /// The same for [`Translation::accepted`]; `None`: it has to be made anew.
    accepted: Option<Arc<[Arc<Accepted>]>>,
    /// Ingresses with problems of their own.
    troubled: BTreeSet<Age>,
    /// Ingresses that name servers beside their hosts.
    naming: BTreeSet<Age>,
    names: names::All,
    hosts: hosts::Hosts,
    groups: groups::Parts,
    files: files::Kept,
    gateways: gateways::Kept,
    /// Values of the ConfigMap that decide on access, as they last worked.
    last: Arc<Deciding>,
    /// Bounds of the search for hosts that no server accepts.
    bounds: Bounds,
    /// Hosts that the judge had no time for.
    unjudged: BTreeSet<Arc<str>>,
    /// Ingresses with snippets, as they last worked.
    good: BTreeMap<Key, Arc<Parsed>>,
}

/// What the parts of a translation are made of.
#[derive(Clone, Copy)]
struct Source<'a> {
    objects: &'a Objects,
    globals: &'a Globals,
}

/// What has changed since the last call.
enum Changes {
    /// Everything may have.
    All,
    /// These have.
    Some(Vec<(Kind, Key)>),
}

impl Translator {
    /// Makes a translator that has nothing to go by yet.
    pub fn new() -> Translator {
        Translator::default()
    }

    /// Returns the Ingresses that have a part in a file of the last translation.
    pub fn ingresses_of(&self, path: &Path) -> Vec<Key> {
        let host = self.hosts.name_of(path);
        let members = host.and_then(|host| self.hosts.members(host));
        members.into_iter().flatten().map(|(parsed, _)| parsed.key.clone()).collect()
    }

    /// Takes the values that decide on access of a translation that is in use: they are those to return to.
    pub fn worked(&mut self, deciding: &Arc<Deciding>) {
        if self.last == *deciding {
            return;
        }
        self.last = deciding.clone();
        // A value that is set aside may have one to return to now.
        if self.globals.as_ref().is_some_and(|shared| !shared.globals.settings.set_aside.is_empty()) {
            self.globals = None;
        }
    }

    /// Returns a value of the ConfigMap that decides on access, as it last worked.
    pub fn last(&self, key: &str) -> Option<&str> {
        self.last.get(key).map(String::as_str)
    }

    /// Returns the Services that the groups of the last translation are made of.
    pub fn services(&self) -> impl Iterator<Item = &Key> {
        self.groups.services()
    }

    /// Translates objects. What has not changed since the last call costs next to nothing.
    pub fn translate(&mut self, objects: &Objects, options: &Options) -> Translation {
        let (globals, problems) = self.globals(objects, options);
        let source = Source { objects, globals: &globals };
        self.update(source);
        let mut out = Translation { groups: self.groups.endpoints(), problems, ..Translation::default() };
        self.gateways.update_stream(source, &mut out.groups);
        let ours = || self.ours.values().map(|(parsed, _)| parsed);
        let mut stream = stream::parts(source, ours(), &mut out);
        stream.snippets = judged::stream_snippets(&globals, ours(), &mut out.problems);
        let certificate = files::default_certificate(&View::new(objects, &options.judge), options);
        let parts = files::Parts {
            globals: &globals,
            hosts: &self.hosts,
            groups: self.groups.texts(),
            gateways: &self.gateways,
            certificate,
            stream,
        };
        self.files.collect(parts, &mut out);
        let accepted = || self.ours.values().map(|(_, accepted)| accepted.clone()).collect();
        out.accepted = self.accepted.get_or_insert_with(accepted).clone();
        self.report(&mut out.problems);
        out.problems = once_each(out.problems);
        out.statuses = self.gateways.statuses();
        out.services = self.gateways.services();
        out.deciding = self.globals.as_ref().map(|shared| shared.deciding.clone()).unwrap_or_default();
        out.unjudged = !self.unjudged.is_empty();
        out
    }

    /// Makes the hosts, groups and Gateways that have changed.
    fn update(&mut self, source: Source<'_>) {
        let Source { objects, globals } = source;
        let changes = self.changes(objects);
        let mut dirty = self.ingresses(objects, globals, &changes);
        dirty.append(&mut self.unjudged);
        if let Changes::Some(list) = &changes {
            self.hosts.depending(list, &mut dirty);
        }
        let naming = self.naming.iter().filter_map(|age| self.ours.get(age)).map(|(parsed, _)| &**parsed);
        self.names.update(naming, &self.hosts, &mut dirty);
        self.make_hosts(source, dirty);
        let names = gateways::Taken { hosts: &self.hosts, names: &self.names };
        self.gateways.update(source, &changes, names, &mut self.groups);
        self.groups.refresh(source, &changes);
        self.seen = Some(objects.version());
    }

    /// Adds the problems of all parts.
    fn report(&self, problems: &mut Vec<Problem>) {
        problems.extend(self.gateways.problems().iter().cloned());
        problems.extend(self.names.problems.iter().cloned());
        problems.extend(self.groups.problems());
        let troubled = self.troubled.iter().filter_map(|age| self.ours.get(age));
        problems.extend(troubled.flat_map(|(parsed, _)| parsed.problems.iter().cloned()));
        problems.extend(self.hosts.problems().cloned());
    }

    /// Finds the endpoints that have changed since the last translation, without one: those of slices wait for nothing else. Returns the
    /// groups that have other endpoints, and perhaps some that have the same. `None`: only a translation can tell.
    pub fn endpoints(&mut self, objects: &Objects, options: &Options) -> Option<Vec<Group>> {
        let Shared { globals, dependencies, .. } = self.globals.as_ref()?;
        if self.options != *options || !view::current(objects, dependencies) {
            return None;
        }
        let globals = globals.clone();
        let source = Source { objects, globals: &globals };
        let Changes::Some(list) = self.changes(objects) else { return None };
        let count = list.len();
        let slices: Vec<_> = list.into_iter().filter(|(kind, _)| *kind == Kind::EndpointSlice).collect();
        // The others wait for the next translation, and these come again with them.
        if slices.len() == count {
            self.seen = Some(objects.version());
        }
        let mut changed = self.groups.refresh(source, &Changes::Some(slices));
        changed.extend(self.gateways.stream_endpoints(source));
        let mut of_stream = Translation::default();
        stream::parts(source, self.ours.values().map(|(parsed, _)| parsed), &mut of_stream);
        changed.extend(of_stream.groups.iter().map(|(name, servers)| (name.clone(), servers.clone())));
        Some(changed)
    }

    /// Returns what all parts share; forgets all parts if it has changed.
    fn globals(&mut self, objects: &Objects, options: &Options) -> (Arc<Globals>, Vec<Problem>) {
        if let Some(Shared { globals, dependencies, problems, .. }) = &self.globals
            && self.options == *options
            && view::current(objects, dependencies)
        {
            return (globals.clone(), problems.clone());
        }
        let view = View::new(objects, &options.judge);
        let mut problems = Vec::new();
        let (globals, deciding) = keys::globals(&view, options, &self.last, &mut problems);
        let (globals, deciding) = (Arc::new(globals), Arc::new(deciding));
        // A file that comes out the same is to be the same `Arc`.
        let hosts = hosts::Hosts::after(&self.hosts);
        // A Gateway keeps its address.
        let gateways = gateways::Kept::after(std::mem::take(&mut self.gateways));
        let (last, good, bounds) =
            (std::mem::take(&mut self.last), std::mem::take(&mut self.good), self.bounds);
        let options = options.clone();
        *self = Translator { options, hosts, gateways, last, good, bounds, ..Translator::default() };
        let dependencies = view.into_dependencies();
        let shared = Shared { globals: globals.clone(), dependencies, problems: problems.clone(), deciding };
        self.globals = Some(shared);
        (globals, problems)
    }

    fn changes(&self, objects: &Objects) -> Changes {
        let list = self.seen.and_then(|seen| objects.changes_since(seen));
        match list.map(|list| list.map(|(kind, key)| (kind, key.clone())).collect::<BTreeSet<_>>()) {
            Some(list) => Changes::Some(list.into_iter().collect()),
            None => Changes::All,
        }
    }

    /// Reads the Ingresses that have changed. Returns the hosts that have to be made anew.
    fn ingresses(&mut self, objects: &Objects, globals: &Globals, changes: &Changes) -> BTreeSet<Arc<str>> {
        let mut dirty = BTreeSet::new();
        let some = match changes {
            // Labels of namespaces may decide on all of their Ingresses.
            Changes::Some(list)
                if !list.iter().any(|(kind, _)| matches!(kind, Kind::IngressClass | Kind::Namespace)) =>
            {
                list
            }
            _ => {
                // The server of all hosts without rules is there even if no Ingress has any.
                dirty.insert(hosts::ANY.into());
                let gone: Vec<Key> =
                    self.ages.keys().filter(|key| objects.ingress(key).is_none()).cloned().collect();
                let all: Vec<Key> = objects.ingresses().map(|(key, _)| key.clone()).chain(gone).collect();
                all.iter().for_each(|key| self.ingress(objects, globals, key, &mut dirty));
                return dirty;
            }
        };
        for (_, key) in some.iter().filter(|(kind, _)| *kind == Kind::Ingress) {
            self.ingress(objects, globals, key, &mut dirty);
        }
        dirty
    }

    /// Takes an Ingress as it is now.
    fn ingress(&mut self, objects: &Objects, globals: &Globals, key: &Key, dirty: &mut BTreeSet<Arc<str>>) {
        let now = objects.ingress(key).filter(|i| ingress::is_ours(&i.object, objects, &globals.options));
        let before = self.ages.get(key).and_then(|age| self.ours.get(age));
        if let (Some((old, _)), Some(now)) = (before, now)
            && old.revision == now.revision
        {
            return;
        }
        let was_there = self.leave(key, dirty);
        match now {
            Some(now) => self.join(ingress::parse(&now.object, now.revision, globals), dirty),
            None if was_there => drop(self.good.remove(key)),
            None => {}
        }
    }

    /// Removes an Ingress. Returns `true` if it was there.
    fn leave(&mut self, key: &Key, dirty: &mut BTreeSet<Arc<str>>) -> bool {
        let Some(age) = self.ages.remove(key) else { return false };
        let Some((old, _)) = self.ours.remove(&age) else { return false };
        self.hosts.leave(&old, dirty);
        self.troubled.remove(&age);
        self.naming.remove(&age);
        self.accepted = None;
        true
    }

    /// Adds an Ingress.
    fn join(&mut self, parsed: Parsed, dirty: &mut BTreeSet<Arc<str>>) {
        self.accepted = None;
        let parsed = Arc::new(parsed);
        let hosts = parsed.rules.iter().filter_map(|r| r.host.clone()).collect();
        let accepted = Arc::new(Accepted { key: parsed.key.clone(), hosts });
        self.hosts.join(&parsed, dirty);
        let age = age(&parsed);
        self.ages.insert(parsed.key.clone(), age.clone());
        if !parsed.problems.is_empty() {
            self.troubled.insert(age.clone());
        }
        if names::has_names(&parsed) {
            self.naming.insert(age.clone());
        }
        self.ours.insert(age, (parsed, accepted));
    }

    /// Makes hosts anew.
    fn make_hosts(&mut self, source: Source<'_>, dirty: BTreeSet<Arc<str>>) {
        let Source { objects, globals } = source;
        let make = |host: Arc<str>| {
            let members = self.hosts.members(&host);
            let part = members.map(|m| hosts::make(objects, globals, &host, m, self.names.of(&host)));
            (host, part)
        };
        let mut made: judged::MadeHosts = dirty.into_iter().map(make).collect();
        let (hosts, names, good) = (&self.hosts, &self.names, &mut self.good);
        let bounds = self.bounds;
        self.unjudged = judged::Judging { objects, globals, hosts, names, good, bounds }.hosts(&mut made);
        for (host, part) in made {
            let (old, new) = self.hosts.replace(&host, part);
            self.groups.replace(&host, new.map(|part| part.uses.as_slice()), source);
            self.files.replace(old.as_ref(), new);
        }
    }
}

fn age(parsed: &Parsed) -> Age {
    (parsed.ingress.metadata.creation_timestamp.clone(), parsed.key.clone())
}

/// Removes problems that are there twice: an Ingress has several hosts.
fn once_each(problems: Vec<Problem>) -> Vec<Problem> {
    let mut seen = BTreeSet::new();
    let mut fresh = |p: &Problem| seen.insert((p.kind, p.key.clone(), p.field.clone(), p.text.clone()));
    problems.into_iter().filter(|p| fresh(p)).collect()
}

#[cfg(test)]
mod tests;
