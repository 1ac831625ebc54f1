//! The translation as a whole, kept between calls so that only what changed is made anew.

mod stream;

use crate::groups::{self, Endpoint, Servers, Spec};
use crate::ingress::{self, Globals, Made, Members, Names, Parsed, Use};
use crate::model::{CertificateFiles, File, HostName};
use crate::objects::{Key, Kind, Metadata, Objects};
use crate::options::Options;
use crate::problem::Problem;
use crate::tree;
use crate::view::{self, Dependency, View};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;
use std::sync::Arc;

/// Name of the main file.
pub const MAIN: &str = "forebay.conf";

/// Groups up to this number are in one file; more are spread over 256 by a hash of their names.
const ONE_FILE: usize = 500;

/// Endpoints of groups by the names of the groups. The map of a translation that changes nothing is the one of the last.
pub type Groups = Arc<BTreeMap<Arc<str>, Arc<[Endpoint]>>>;

/// What objects become.
#[derive(Clone, Debug, Default)]
pub struct Translation {
    /// Files by their paths relative to one directory: the main file first, then groups, hosts, certificates and the like. A
    /// file that has not changed is the same `Arc` as before.
    pub files: Vec<(Arc<Path>, Arc<[u8]>)>,
    /// Endpoints of each group as they are now.
    pub groups: Groups,
    /// What objects wish and do not get.
    pub problems: Vec<Problem>,
    /// Ingresses that are served, the oldest first.
    pub accepted: Vec<Arc<Accepted>>,
}

/// An Ingress that is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Namespace and name.
    pub key: Key,
    /// Its hosts; empty: all hosts without rules.
    pub hosts: Vec<String>,
}

/// File of a host with what it depends on.
struct HostPart {
    /// Ingresses of the host and their revisions.
    members: Vec<(Key, u64)>,
    names: Names,
    dependencies: Vec<Dependency>,
    path: Arc<Path>,
    bytes: Arc<[u8]>,
    uses: Vec<Use>,
    problems: Vec<Problem>,
    files: Vec<(Arc<Path>, Arc<[u8]>)>,
    /// It keeps answers of an authentication service.
    auth_cache: bool,
}

/// A group with what it was made of.
struct GroupPart {
    spec: Arc<Spec>,
    /// Revisions of the Service and its slices.
    revisions: Vec<u64>,
    servers: Servers,
    /// Its block as text.
    block: Vec<u8>,
    /// Number that no other block has.
    id: u64,
    shard: u8,
}

/// What the main file is made of, beside what all parts share.
#[derive(Clone, PartialEq)]
struct MainKey {
    hosts: u64,
    shards: Vec<String>,
    certificate: Option<CertificateFiles>,
    auth_cache: bool,
    stream: stream::Parts,
}

/// Translates objects, again and again.
#[derive(Default)]
pub struct Translator {
    globals: Option<(Arc<Globals>, Vec<Dependency>, Vec<Problem>)>,
    options: Options,
    parsed: HashMap<Key, (Arc<Parsed>, Arc<Accepted>)>,
    hosts: BTreeMap<Arc<str>, HostPart>,
    /// Number of changes of the set of hosts.
    hosts_changes: u64,
    groups: HashMap<Arc<str>, GroupPart>,
    next_id: u64,
    /// Texts of groups by path, with the numbers of the blocks in them.
    shards: BTreeMap<String, (Vec<u64>, Arc<[u8]>)>,
    main: Option<(MainKey, Arc<[u8]>)>,
}

impl Translator {
    /// Makes a translator that has nothing to go by yet.
    pub fn new() -> Translator {
        Translator::default()
    }

    /// Returns the Services that the groups of the last translation are made of.
    pub fn services(&self) -> impl Iterator<Item = &Key> {
        self.groups.values().map(|part| &part.spec.service)
    }

    /// Translates objects. What has not changed since the last call costs next to nothing.
    pub fn translate(&mut self, objects: &Objects, options: &Options) -> Translation {
        let (globals, mut problems) = self.globals(objects, options);
        let mut out = Translation::default();
        let ours = self.parse(objects, &globals, options, &mut out.accepted);
        let members = by_host(&ours);
        let names = names(&ours, &members, &mut problems);
        self.make_hosts(objects, &globals, members, &names);
        self.group_parts(objects, &globals, &mut out, &mut problems);
        let stream = stream::parts(objects, &globals, &ours, &mut out, &mut problems);
        let certificate = default_certificate(objects, options);
        self.files(&globals, certificate, stream, &mut out, &mut problems);
        problems.extend(ours.iter().flat_map(|parsed| parsed.problems.iter().cloned()));
        problems.extend(self.hosts.values().flat_map(|h| h.problems.iter().cloned()));
        out.problems = once_each(problems);
        out
    }

    /// Returns what all parts share; forgets all parts if it has changed.
    fn globals(&mut self, objects: &Objects, options: &Options) -> (Arc<Globals>, Vec<Problem>) {
        if let Some((globals, dependencies, problems)) = &self.globals
            && self.options == *options
            && view::current(objects, dependencies)
        {
            return (globals.clone(), problems.clone());
        }
        self.parsed.clear();
        self.hosts.clear();
        self.hosts_changes += 1;
        self.groups.clear();
        self.main = None;
        self.options = options.clone();
        let view = View::new(objects);
        let mut problems = Vec::new();
        let globals = Arc::new(ingress::read_globals(&view, options, &mut problems));
        self.globals = Some((globals.clone(), view.into_dependencies(), problems.clone()));
        (globals, problems)
    }

    /// Reads the Ingresses that are ours, the oldest first.
    fn parse(
        &mut self,
        objects: &Objects,
        globals: &Globals,
        options: &Options,
        accepted: &mut Vec<Arc<Accepted>>,
    ) -> Vec<Arc<Parsed>> {
        let mut ours: Vec<(Arc<Parsed>, Arc<Accepted>)> = Vec::with_capacity(self.parsed.len());
        for (key, stored) in objects.ingresses() {
            if !ingress::is_ours(&stored.object, objects, options) {
                continue;
            }
            let kept = self.parsed.get(key).filter(|(parsed, _)| parsed.revision == stored.revision);
            if let Some(kept) = kept {
                ours.push(kept.clone());
                continue;
            }
            let parsed = Arc::new(ingress::parse(&stored.object, stored.revision, globals));
            let hosts = parsed.rules.iter().filter_map(|r| r.host.clone()).collect();
            let accepted = Arc::new(Accepted { key: key.clone(), hosts });
            self.parsed.insert(key.clone(), (parsed.clone(), accepted.clone()));
            ours.push((parsed, accepted));
        }
        if self.parsed.len() > ours.len() {
            let keys: BTreeSet<&Key> = ours.iter().map(|(p, _)| &p.key).collect();
            self.parsed.retain(|key, _| keys.contains(key));
        }
        ours.sort_by(|(a, _), (b, _)| {
            let age = (&a.ingress.metadata.creation_timestamp, &a.key);
            age.cmp(&(&b.ingress.metadata.creation_timestamp, &b.key))
        });
        accepted.extend(ours.iter().map(|(_, accepted)| accepted.clone()));
        ours.into_iter().map(|(parsed, _)| parsed).collect()
    }

    fn make_hosts(
        &mut self,
        objects: &Objects,
        globals: &Globals,
        members: BTreeMap<Option<&str>, Members>,
        names: &BTreeMap<String, Names>,
    ) {
        let mut changed = false;
        self.hosts.retain(|name, _| {
            let stays = members.contains_key(&Some(&**name).filter(|n| *n != ANY));
            changed |= !stays;
            stays
        });
        for (host, members) in members {
            let name = host.unwrap_or(ANY);
            let none = Names::default();
            let names = names.get(name).unwrap_or(&none);
            let old = self.hosts.get(name);
            let current = old.is_some_and(|old| {
                let same =
                    old.members.iter().zip(&members).all(|((k, r), (p, _))| *r == p.revision && *k == p.key);
                same && old.members.len() == members.len()
                    && old.names == *names
                    && view::current(objects, &old.dependencies)
            });
            if current {
                continue;
            }
            changed |= old.is_none();
            let part = make_host(objects, globals, host, &members, names);
            self.hosts.insert(name.into(), part);
        }
        self.hosts_changes += u64::from(changed);
    }

    /// Finds the endpoints of all groups that hosts need.
    fn group_parts(
        &mut self,
        objects: &Objects,
        globals: &Globals,
        out: &mut Translation,
        problems: &mut Vec<Problem>,
    ) {
        let mut before = std::mem::take(&mut self.groups);
        let default = globals.default_backend.clone().map(|s| (Arc::<str>::from(s.name()), Arc::new(s)));
        let uses = self.hosts.values().flat_map(|h| &h.uses).map(|u| (&u.name, &u.spec, Some(u)));
        let specs = default.iter().map(|(name, spec)| (name, spec, None)).chain(uses);
        let mut groups = HashMap::with_capacity(before.len());
        for (name, spec, used) in specs {
            if groups.contains_key(name) {
                continue;
            }
            let old = before.remove(name);
            let part = match old {
                Some(old) if same_revisions(objects, spec, &old.revisions) => old,
                old => {
                    let part = make_group(objects, globals, name, spec, &mut self.next_id);
                    // A block that is the same keeps its number, and with it the file.
                    match old.filter(|old| old.block == part.block) {
                        Some(old) => GroupPart { id: old.id, ..part },
                        None => part,
                    }
                }
            };
            if let (Some(why), Some(used)) = (&part.servers.problem, used) {
                let text = format!("{why}; the path answers 503");
                let problem = Problem::new(Kind::Ingress, &used.origin.metadata, used.field.as_str(), text);
                problems.push(problem.reason("BackendMissing"));
            }
            groups.insert(name.clone(), part);
        }
        out.groups =
            groups.iter().map(|(name, part)| (name.clone(), part.servers.endpoints.clone())).collect();
        self.groups = groups;
    }

    /// Puts the blocks of groups together.
    fn make_shards(&mut self, names: &BTreeMap<Arc<str>, Arc<[Endpoint]>>) {
        let mut blocks: BTreeMap<String, Vec<&GroupPart>> = BTreeMap::new();
        let parts = names.keys().filter_map(|name| self.groups.get(name));
        if self.groups.len() <= ONE_FILE {
            blocks.insert("groups.conf".into(), parts.collect());
        } else {
            let mut by_shard: Vec<Vec<&GroupPart>> = vec![Vec::new(); 256];
            for part in parts {
                if let Some(shard) = by_shard.get_mut(usize::from(part.shard)) {
                    shard.push(part);
                }
            }
            let named = by_shard.into_iter().enumerate().filter(|(_, parts)| !parts.is_empty());
            blocks.extend(named.map(|(i, parts)| (format!("groups/{i:02x}.conf"), parts)));
        }
        let mut before = std::mem::take(&mut self.shards);
        for (path, parts) in blocks {
            let old =
                before.remove(&path).filter(|(ids, _)| ids.iter().copied().eq(parts.iter().map(|p| p.id)));
            let shard = old.unwrap_or_else(|| {
                let text: Vec<u8> = parts.iter().flat_map(|p| p.block.iter().copied()).collect();
                (parts.iter().map(|p| p.id).collect(), text.into())
            });
            self.shards.insert(path, shard);
        }
    }

    fn files(
        &mut self,
        globals: &Globals,
        certificate: Option<CertificateFiles>,
        stream: stream::Parts,
        out: &mut Translation,
        problems: &mut Vec<Problem>,
    ) {
        self.make_shards(&out.groups);
        let key = MainKey {
            hosts: self.hosts_changes,
            shards: self.shards.keys().cloned().collect(),
            certificate,
            auth_cache: self.hosts.values().any(|h| h.auth_cache),
            stream,
        };
        let main = self.main_file(globals, &key, problems);
        out.files.reserve(self.hosts.len() + self.shards.len() + 1);
        out.files.push((Path::new(MAIN).into(), main));
        let shards = self.shards.iter().map(|(path, (_, bytes))| (Path::new(path).into(), bytes.clone()));
        out.files.extend(shards);
        let mut others: BTreeMap<Arc<Path>, Arc<[u8]>> = BTreeMap::new();
        for part in self.hosts.values() {
            out.files.push((part.path.clone(), part.bytes.clone()));
            others.extend(part.files.iter().cloned());
        }
        if let Some(c) = &key.certificate {
            others.extend([&c.chain, &c.key].map(|f| (Path::new(&f.path).into(), f.bytes.clone())));
        }
        if let Some(key) = &globals.ticket_key {
            others.insert(Path::new(ingress::TICKET_KEY).into(), key.clone());
        }
        out.files.extend(others);
    }

    fn main_file(&mut self, globals: &Globals, key: &MainKey, problems: &mut Vec<Problem>) -> Arc<[u8]> {
        if let Some((old, bytes)) = &self.main
            && old == key
        {
            return bytes.clone();
        }
        let nodes = tree::main(&tree::Main {
            globals,
            groups: key.shards.clone(),
            hosts: self.hosts.values().map(|h| h.path.display().to_string()).collect(),
            certificate: key.certificate.clone(),
            auth_cache: key.auth_cache,
            stream: &key.stream.ports,
            passthrough: key.stream.passthrough.clone(),
            stream_snippets: key.stream.snippets.clone(),
        });
        let bytes: Arc<[u8]> = match forebay_conf::print(&nodes) {
            Ok(bytes) => bytes.into(),
            Err(error) => {
                let metadata = self.options.config_map.as_ref().map(|key| Metadata {
                    namespace: key.namespace.clone(),
                    name: key.name.clone(),
                    ..Metadata::default()
                });
                let problem =
                    Problem::new(Kind::ConfigMap, &metadata.unwrap_or_default(), "data", error.to_string());
                problems.push(problem.reason("InvalidValue"));
                // Something that works, if there has been anything.
                return self.main.as_ref().map(|(_, bytes)| bytes.clone()).unwrap_or_default();
            }
        };
        self.main = Some((key.clone(), bytes.clone()));
        bytes
    }
}

/// Stands for all hosts without rules among the names of hosts.
const ANY: &str = "_";

/// Removes problems that are there twice: an Ingress has several hosts.
fn once_each(problems: Vec<Problem>) -> Vec<Problem> {
    let mut seen = BTreeSet::new();
    let first = |p: &Problem| seen.insert((p.kind, p.key.clone(), p.field.clone(), p.text.clone()));
    let fresh: Vec<bool> = problems.iter().map(first).collect();
    problems.into_iter().zip(fresh).filter(|(_, fresh)| *fresh).map(|(problem, _)| problem).collect()
}

fn make_group(
    objects: &Objects,
    globals: &Globals,
    name: &str,
    spec: &Arc<Spec>,
    next_id: &mut u64,
) -> GroupPart {
    let servers = groups::servers(spec, objects, &globals.options);
    let block = groups::block(name, spec, &servers, &globals.groups);
    *next_id += 1;
    let revisions = revisions(objects, spec).collect();
    // Names have no control characters and are short, so that they can be printed.
    let block = forebay_conf::print(&[block]).unwrap_or_default();
    GroupPart { spec: spec.clone(), revisions, servers, block, id: *next_id, shard: groups::shard(name) }
}

fn revisions<'o>(objects: &'o Objects, spec: &'o Spec) -> impl Iterator<Item = u64> + use<'o> {
    let service = view::revision(objects, Kind::Service, &spec.service);
    std::iter::once(service).chain(objects.slices(&spec.service).map(|s| s.revision))
}

fn same_revisions(objects: &Objects, spec: &Spec, then: &[u64]) -> bool {
    revisions(objects, spec).eq(then.iter().copied())
}

/// Returns the path of a host's file.
fn host_path(host: &str) -> String {
    match host.strip_prefix("*.") {
        Some(rest) => format!("hosts/_wildcard.{rest}.conf"),
        None => format!("hosts/{host}.conf"),
    }
}

/// Collects the Ingresses of each host, and all hosts without rules even if none has any.
fn by_host(ours: &[Arc<Parsed>]) -> BTreeMap<Option<&str>, Members> {
    let mut hosts: BTreeMap<Option<&str>, Members> = BTreeMap::new();
    hosts.insert(None, Vec::new());
    for parsed in ours {
        for (index, rules) in parsed.rules.iter().enumerate() {
            hosts.entry(rules.host.as_deref()).or_default().push((parsed.clone(), index));
        }
    }
    hosts
}

/// Finds the names that servers have beside their hosts: those of `server-alias` and `from-to-www-redirect`. A host of a rule
/// counts before them, and an older Ingress before a younger.
fn names(
    ours: &[Arc<Parsed>],
    members: &BTreeMap<Option<&str>, Members>,
    problems: &mut Vec<Problem>,
) -> BTreeMap<String, Names> {
    let mut found: BTreeMap<String, Names> = BTreeMap::new();
    let mut taken: BTreeSet<String> = BTreeSet::new();
    for parsed in ours.iter().filter(|p| !p.canary) {
        let hosts: Vec<&String> = parsed.rules.iter().filter_map(|r| r.host.as_ref()).collect();
        if let (Some(host), Some(text)) = (hosts.first(), parsed.annotations.get("server-alias")) {
            for alias in text.split([',', ' ']).filter(|a| !a.is_empty()) {
                let name = alias.to_ascii_lowercase();
                let problem = |why: &str| {
                    let problem = parsed.annotation_problem(
                        "server-alias",
                        format!("\"{}\" is no alias: {why}", alias.escape_debug()),
                    );
                    problem.at(text, text.find(alias).unwrap_or(0))
                };
                if !ingress::is_host(&name) {
                    problems.push(problem("it is no DNS name").reason("InvalidHost"));
                } else if members.contains_key(&Some(name.as_str())) || !taken.insert(name.clone()) {
                    problems.push(problem("another server has the name").reason("HostConflict"));
                } else {
                    found.entry((*host).clone()).or_default().aliases.push(name);
                }
            }
        }
        if parsed.annotations.flag("from-to-www-redirect") {
            for host in hosts.iter().filter(|h| !h.starts_with("*.")) {
                let other = host.strip_prefix("www.").map_or_else(|| format!("www.{host}"), str::to_owned);
                if !members.contains_key(&Some(other.as_str())) && taken.insert(other.clone()) {
                    found.entry((*host).clone()).or_default().redirected_from = Some(other);
                }
            }
        }
    }
    found
}

fn make_host(
    objects: &Objects,
    globals: &Globals,
    host: Option<&str>,
    members: &Members,
    names: &Names,
) -> HostPart {
    let view = View::new(objects);
    let path = Path::new(&host_path(host.unwrap_or(ANY))).into();
    let host = host.map_or(HostName::Any, |name| HostName::Name(name.to_owned()));
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
        members: members.iter().map(|(p, _)| (p.key.clone(), p.revision)).collect(),
        names: names.clone(),
        dependencies: view.into_dependencies(),
        path,
        bytes: bytes.into(),
        uses,
        problems,
        files: files.into_iter().map(|File { path, bytes }| (Path::new(&path).into(), bytes)).collect(),
        auth_cache,
    }
}

fn default_certificate(objects: &Objects, options: &Options) -> Option<CertificateFiles> {
    let secret = options.default_ssl_certificate.as_ref().and_then(|key| {
        let secret = objects.secret(key)?;
        ingress::certificate_files(key, &secret.object).ok()
    });
    let made = options.made_certificate.as_ref().map(|c| CertificateFiles {
        chain: File { path: "secrets/default.crt".into(), bytes: c.chain.clone() },
        key: File { path: "secrets/default.key".into(), bytes: c.key.clone() },
    });
    secret.or(made)
}

#[cfg(test)]
mod tests;
