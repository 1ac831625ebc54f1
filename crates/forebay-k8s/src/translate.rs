//! The translation as a whole, kept between calls so that only what changed is made anew.

mod stream;

use crate::gateway::{GatewayPart, Gateways, StatusUpdate};
use crate::groups::{self, Endpoint, Servers, Spec};
use crate::ingress::{self, Globals, Made, Members, Names, Parsed, Use};
use crate::model::{CertificateFiles, File, HostName};
use crate::objects::{Key, Kind, Objects};
use crate::options::Options;
use crate::problem::Problem;
use crate::tree;
use crate::view::{self, Dependency, View};
use forebay_conf::Node;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Name of the main file.
pub const MAIN: &str = "forebay.conf";

/// Name of the file with the servers of all Gateways.
const GATEWAYS: &str = "gateways.conf";

/// Groups up to this number are in one file; more are spread over 256 by a hash of their names.
const ONE_FILE: usize = 500;

/// What objects become.
#[derive(Clone, Debug, Default)]
pub struct Translation {
    /// Files by their paths relative to one directory: the main file first, then groups, hosts, certificates and the like. A
    /// file that has not changed is the same `Arc` as before.
    pub files: Vec<(PathBuf, Arc<[u8]>)>,
    /// Endpoints of each group as they are now.
    pub groups: BTreeMap<Arc<str>, Arc<[Endpoint]>>,
    /// What objects wish and do not get, in the order of their hosts.
    pub problems: Vec<Problem>,
    /// Ingresses that are served.
    pub accepted: Vec<Accepted>,
    /// Services that groups are made of.
    pub services: BTreeSet<Key>,
    /// Statuses of objects of the Gateway API.
    pub statuses: Vec<StatusUpdate>,
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
    members: Vec<(Key, u64)>,
    names: Names,
    dependencies: Vec<Dependency>,
    bytes: Arc<[u8]>,
    uses: Vec<Use>,
    problems: Vec<Problem>,
    files: Vec<File>,
    /// It keeps answers of an authentication service.
    auth_cache: bool,
}

/// A group with what it was made of.
struct GroupPart {
    spec: Arc<Spec>,
    revisions: Vec<u64>,
    servers: Servers,
}

/// Translates objects, again and again.
#[derive(Default)]
pub struct Translator {
    globals: Option<(Arc<Globals>, Vec<Dependency>, Vec<Problem>)>,
    options: Options,
    parsed: HashMap<Key, (u64, Arc<Parsed>)>,
    hosts: BTreeMap<String, HostPart>,
    groups: HashMap<Arc<str>, GroupPart>,
    gateways: Gateways,
    /// Texts by path, with the directives' hash, so that an unchanged file stays the same `Arc`.
    texts: HashMap<String, Arc<[u8]>>,
}

impl Translator {
    /// Makes a translator that has nothing to go by yet.
    pub fn new() -> Translator {
        Translator::default()
    }

    /// Translates objects. What has not changed since the last call costs next to nothing.
    pub fn translate(&mut self, objects: &Objects, options: &Options) -> Translation {
        let (globals, mut problems) = self.globals(objects, options);
        let ours = self.parse(objects, &globals, options);
        let members = by_host(&ours);
        let names = names(&ours, &members, &mut problems);
        self.make_hosts(objects, &globals, members, &names);
        let mut out = Translation::default();
        let gateways = self.gateways.translate(objects, &objects.gateway, &options.gateway);
        self.group_parts(objects, &globals, &gateways.specs, &mut out, &mut problems);
        let stream = stream::parts(objects, &globals, &ours, &mut out, &mut problems);
        let certificate = default_certificate(objects, options);
        self.files(&globals, certificate, (&stream, &gateways), &mut out);
        out.statuses = gateways.statuses;
        for parsed in &ours {
            problems.extend(parsed.problems.iter().cloned());
            let hosts = parsed.rules.iter().filter_map(|r| r.host.clone()).collect();
            out.accepted.push(Accepted { key: parsed.key.clone(), hosts });
        }
        problems.extend(self.hosts.values().flat_map(|h| h.problems.iter().cloned()));
        out.problems = problems;
        out
    }

    /// Finds the endpoints of the groups of the last translation as they are now, without a new one.
    pub fn endpoints(&mut self, objects: &Objects) -> BTreeMap<Arc<str>, Arc<[Endpoint]>> {
        let mut all = BTreeMap::new();
        for (name, part) in &mut self.groups {
            let revisions = revisions(objects, &part.spec);
            if part.revisions != revisions {
                part.servers = groups::servers(&part.spec, objects, &self.options);
                part.revisions = revisions;
            }
            all.insert(name.clone(), part.servers.endpoints.clone());
        }
        all
    }

    /// Returns the Ingresses that have a part in a file of the last translation.
    pub fn ingresses_of(&self, path: &Path) -> Vec<Key> {
        let host = self.hosts.iter().find(|(host, _)| Path::new(&host_path(host)) == path);
        host.map(|(_, part)| part.members.iter().map(|(key, _)| key.clone()).collect()).unwrap_or_default()
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
        self.groups.clear();
        self.options = options.clone();
        let view = View::new(objects);
        let mut problems = Vec::new();
        let globals = Arc::new(ingress::read_globals(&view, options, &mut problems));
        self.globals = Some((globals.clone(), view.into_dependencies(), problems.clone()));
        (globals, problems)
    }

    /// Reads the Ingresses that are ours, the oldest first.
    fn parse(&mut self, objects: &Objects, globals: &Globals, options: &Options) -> Vec<Arc<Parsed>> {
        let mut ours = Vec::new();
        let mut seen = 0;
        for (key, stored) in objects.ingresses() {
            if !ingress::is_ours(&stored.object, objects, options) {
                continue;
            }
            seen += 1;
            if let Some((revision, parsed)) = self.parsed.get(key)
                && *revision == stored.revision
            {
                ours.push(parsed.clone());
                continue;
            }
            let parsed = Arc::new(ingress::parse(&stored.object, globals));
            self.parsed.insert(key.clone(), (stored.revision, parsed.clone()));
            ours.push(parsed);
        }
        if self.parsed.len() > seen {
            let keys: BTreeSet<&Key> = ours.iter().map(|p| &p.key).collect();
            self.parsed.retain(|key, _| keys.contains(key));
        }
        ours.sort_by(|a, b| {
            let age = (&a.ingress.metadata.creation_timestamp, &a.key);
            age.cmp(&(&b.ingress.metadata.creation_timestamp, &b.key))
        });
        ours
    }

    fn make_hosts(
        &mut self,
        objects: &Objects,
        globals: &Globals,
        members: BTreeMap<Option<String>, Members>,
        names: &BTreeMap<String, Names>,
    ) {
        let mut before = std::mem::take(&mut self.hosts);
        let revision = |p: &Parsed| self.parsed.get(&p.key).map_or(0, |(r, _)| *r);
        for (host, members) in members {
            let name = host.clone().unwrap_or_else(|| "_".into());
            let versions: Vec<(Key, u64)> =
                members.iter().map(|(p, _)| (p.key.clone(), revision(p))).collect();
            let names = names.get(&name).cloned().unwrap_or_default();
            let old = before.remove(&name).filter(|old| {
                old.members == versions && old.names == names && view::current(objects, &old.dependencies)
            });
            let part = old.unwrap_or_else(|| {
                let host = host.map_or(HostName::Any, HostName::Name);
                make_host(objects, globals, &host, &members, versions, names)
            });
            self.hosts.insert(name, part);
        }
    }

    /// Finds the endpoints of all groups that hosts need.
    fn group_parts(
        &mut self,
        objects: &Objects,
        globals: &Globals,
        of_gateways: &[Arc<Spec>],
        out: &mut Translation,
        problems: &mut Vec<Problem>,
    ) {
        let mut before = std::mem::take(&mut self.groups);
        let default = globals.default_backend.clone().map(Arc::new);
        let uses = self.hosts.values().flat_map(|h| &h.uses);
        let specs = default.iter().chain(of_gateways).map(|s| (s, None));
        let specs = specs.chain(uses.map(|u| (&u.spec, Some(u))));
        for (spec, used) in specs {
            let name: Arc<str> = spec.name().into();
            if self.groups.contains_key(&name) {
                continue;
            }
            let revisions = revisions(objects, spec);
            let part = match before.remove(&name).filter(|old| old.revisions == revisions) {
                Some(old) => old,
                None => GroupPart {
                    spec: spec.clone(),
                    revisions,
                    servers: groups::servers(spec, objects, &self.options),
                },
            };
            if let (Some(why), Some(used)) = (&part.servers.problem, used) {
                let text = format!("{why}; the path answers 503");
                let problem = Problem::new(Kind::Ingress, &used.origin.metadata, used.field.as_str(), text);
                problems.push(problem.reason("BackendMissing"));
            }
            out.services.insert(spec.service.clone());
            out.groups.insert(name.clone(), part.servers.endpoints.clone());
            self.groups.insert(name, part);
        }
    }

    fn files(
        &mut self,
        globals: &Globals,
        certificate: Option<CertificateFiles>,
        (stream, gateways): (&stream::Parts, &GatewayPart),
        out: &mut Translation,
    ) {
        let mut files: BTreeMap<String, Arc<[u8]>> = BTreeMap::new();
        let mut shards: BTreeMap<String, Vec<Node>> = BTreeMap::new();
        for name in out.groups.keys() {
            // Groups of the stream block are in the main file.
            let Some(part) = self.groups.get(name) else { continue };
            let shard = if out.groups.len() <= ONE_FILE {
                "groups.conf".to_owned()
            } else {
                format!("groups/{}.conf", groups::short_hash(name).get(..2).unwrap_or("00"))
            };
            shards.entry(shard).or_default().push(groups::block(
                name,
                &part.spec,
                &part.servers,
                &globals.groups,
            ));
        }
        let group_paths: Vec<String> = shards.keys().cloned().collect();
        for (path, nodes) in shards {
            let bytes = self.text(&path, &nodes);
            files.insert(path, bytes);
        }
        let mut host_paths = Vec::new();
        for (host, part) in &self.hosts {
            let path = host_path(host);
            files.insert(path.clone(), part.bytes.clone());
            host_paths.push(path);
            files.extend(part.files.iter().map(|f| (f.path.clone(), f.bytes.clone())));
        }
        if !gateways.http.is_empty() {
            let bytes = self.text(GATEWAYS, &gateways.http);
            files.insert(GATEWAYS.to_owned(), bytes);
            host_paths.push(GATEWAYS.to_owned());
        }
        files.extend(gateways.files.iter().map(|f| (f.path.clone(), f.bytes.clone())));
        if let Some(c) = &certificate {
            files.extend([&c.chain, &c.key].map(|f| (f.path.clone(), f.bytes.clone())));
        }
        if let Some(key) = &globals.ticket_key {
            files.insert(ingress::TICKET_KEY.to_owned(), key.clone());
        }
        let main = tree::main(&tree::Main {
            globals,
            groups: group_paths,
            hosts: host_paths,
            certificate,
            auth_cache: self.hosts.values().any(|h| h.auth_cache),
            stream: &stream.ports,
            passthrough: stream.passthrough.clone(),
            stream_snippets: stream.snippets.clone(),
        });
        let main = self.text(MAIN, &main);
        out.files.push((MAIN.into(), main));
        out.files.extend(files.into_iter().map(|(path, bytes)| (path.into(), bytes)));
    }

    /// Prints directives, and returns the text of the last call if it is the same.
    fn text(&mut self, path: &str, nodes: &[Node]) -> Arc<[u8]> {
        // Words were checked when they were made; what cannot be printed is left out as a whole.
        let bytes = forebay_conf::print(nodes).unwrap_or_default();
        match self.texts.get(path) {
            Some(old) if **old == *bytes => old.clone(),
            _ => {
                let bytes: Arc<[u8]> = bytes.into();
                self.texts.insert(path.to_owned(), bytes.clone());
                bytes
            }
        }
    }
}

/// Returns the path of a host's file.
fn host_path(host: &str) -> String {
    match host.strip_prefix("*.") {
        Some(rest) => format!("hosts/_wildcard.{rest}.conf"),
        None => format!("hosts/{host}.conf"),
    }
}

fn revisions(objects: &Objects, spec: &Spec) -> Vec<u64> {
    let service = view::revision(objects, Kind::Service, &spec.service);
    std::iter::once(service).chain(objects.slices(&spec.service).map(|s| s.revision)).collect()
}

/// Collects the Ingresses of each host, and all hosts without rules even if none has any.
fn by_host(ours: &[Arc<Parsed>]) -> BTreeMap<Option<String>, Members> {
    let mut hosts: BTreeMap<Option<String>, Members> = BTreeMap::new();
    hosts.insert(None, Vec::new());
    for parsed in ours {
        for (index, rules) in parsed.rules.iter().enumerate() {
            hosts.entry(rules.host.clone()).or_default().push((parsed.clone(), index));
        }
    }
    hosts
}

/// Finds the names that servers have beside their hosts: those of `server-alias` and `from-to-www-redirect`. A host of a rule
/// counts before them, and an older Ingress before a younger.
fn names(
    ours: &[Arc<Parsed>],
    members: &BTreeMap<Option<String>, Members>,
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
                } else if members.contains_key(&Some(name.clone())) || !taken.insert(name.clone()) {
                    problems.push(problem("another server has the name").reason("HostConflict"));
                } else {
                    found.entry((*host).clone()).or_default().aliases.push(name);
                }
            }
        }
        if parsed.annotations.flag("from-to-www-redirect") {
            for host in hosts.iter().filter(|h| !h.starts_with("*.")) {
                let other = host.strip_prefix("www.").map_or_else(|| format!("www.{host}"), str::to_owned);
                if !members.contains_key(&Some(other.clone())) && taken.insert(other.clone()) {
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
    host: &HostName,
    members: &Members,
    versions: Vec<(Key, u64)>,
    names: Names,
) -> HostPart {
    let view = View::new(objects);
    let Made { server, uses, mut problems, files } = ingress::server(host, members, &names, globals, &view);
    let bytes = forebay_conf::print(&tree::server(&server, globals)).unwrap_or_else(|error| {
        for (parsed, _) in members {
            problems.push(
                parsed.problem("metadata", format!("the host \"{}\" is not served: {error}", host.as_str())),
            );
        }
        Vec::new()
    });
    let dependencies = view.into_dependencies();
    let auth_cache =
        server.routes.iter().any(|r| r.policy.authority.as_ref().is_some_and(|a| a.cache.is_some()));
    HostPart {
        members: versions,
        names,
        dependencies,
        bytes: bytes.into(),
        uses,
        problems,
        files,
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
