//! Ports of the TCP and UDP ConfigMaps, and hosts whose TLS sessions pass as they are.

use super::{Source, Translation};
use crate::gateway::ports::of_options;
use crate::groups::{self, Spec};
use crate::ingress::{Globals, HostPath, HostRules, Parsed, is_name};
use crate::model::PathMatch;
use crate::objects::{ConfigMap, Key, Kind, Objects, PortRef};
use crate::problem::Problem;
use crate::tree::StreamPort;
use forebay_conf::Node;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Parts of the stream block.
#[derive(Clone, Default, PartialEq)]
pub(super) struct Parts {
    pub(super) ports: Vec<StreamPort>,
    pub(super) passthrough: Vec<(String, String)>,
    pub(super) snippets: Vec<Node>,
}

/// Makes the parts of the stream block. Adds the endpoints of its groups and the problems to the translation.
pub(super) fn parts<'p>(
    source: Source<'_>,
    ours: impl Iterator<Item = &'p Arc<Parsed>> + Clone,
    out: &mut Translation,
) -> Parts {
    let mut parts = Parts::default();
    let options = &source.globals.options;
    for (key, udp) in [(&options.tcp_services, false), (&options.udp_services, true)] {
        let Some(map) = key.as_ref().and_then(|k| source.objects.config_map(k)) else { continue };
        let entries = Entries { map: &map.object, udp };
        entries.add(source, &mut parts, &mut out.problems);
    }
    if options.enable_ssl_passthrough {
        passthrough(source, ours.clone(), &mut parts, &mut out.problems);
    }
    for port in &parts.ports {
        Arc::make_mut(&mut out.groups).insert(port.group.as_str().into(), port.servers.endpoints.clone());
    }
    parts.snippets = ours.flat_map(|p| p.stream_snippet.iter().cloned()).collect();
    parts
}

/// Returns the TCP ports that are in use, but not by the servers of Ingresses.
pub(super) fn tcp_ports(objects: &Objects, globals: &Globals) -> BTreeSet<u16> {
    let mut ports = of_options(&globals.options);
    let services = ports_of(globals.options.tcp_services.as_ref(), objects);
    // Entries for these are refused.
    let own = [globals.options.http_port, globals.options.https_port];
    ports.extend(services.filter(|port| !own.contains(port)));
    ports
}

/// Returns the UDP ports that are in use.
pub(super) fn udp_ports(objects: &Objects, globals: &Globals) -> BTreeSet<u16> {
    ports_of(globals.options.udp_services.as_ref(), objects).collect()
}

fn ports_of<'o>(map: Option<&Key>, objects: &'o Objects) -> impl Iterator<Item = u16> + use<'o> {
    let map = map.and_then(|key| objects.config_map(key));
    map.into_iter().flat_map(|map| map.object.data.keys()).filter_map(|port| port.parse().ok())
}

/// Entries of the ConfigMap of TCP or UDP ports.
struct Entries<'a> {
    map: &'a ConfigMap,
    udp: bool,
}

impl Entries<'_> {
    fn add(&self, source: Source<'_>, parts: &mut Parts, problems: &mut Vec<Problem>) {
        let options = &source.globals.options;
        let mut taken = of_options(options);
        taken.extend([options.http_port, options.https_port]);
        for (port, text) in &self.map.data {
            let number = port.parse::<u16>().ok().filter(|n| *n > 0 && (self.udp || !taken.contains(n)));
            let Some(number) = number else {
                problems.push(self.problem(port, "the key must be a port that is free"));
                continue;
            };
            let Some(service) = service(text, self.udp) else {
                let why = "the value must be NAMESPACE/SERVICE:PORT, with PROXY behind it or not";
                problems.push(self.problem(port, why).at(text, 0));
                continue;
            };
            let protocol = if self.udp { "udp" } else { "tcp" };
            let own = StreamPort { port: number, udp: self.udp, ..stream_port(source, service, protocol) };
            if let Some(why) = &own.servers.problem {
                problems.push(self.problem(port, why).reason("BackendMissing"));
            }
            parts.ports.push(own);
        }
    }

    fn problem(&self, port: &str, why: &str) -> Problem {
        let field = format!("data[{port}]");
        Problem::new(Kind::ConfigMap, &self.map.metadata, field, why).reason("InvalidValue")
    }
}

/// Service of a port, and which sides send PROXY headers.
struct PortService {
    spec: Spec,
    decode_proxy: bool,
    encode_proxy: bool,
}

/// Makes an entry of the stream block that listens nowhere. The name of its group begins with the protocol.
fn stream_port(source: Source<'_>, service: PortService, protocol: &str) -> StreamPort {
    let spec = service.spec.beside(&source.globals.taken);
    StreamPort {
        port: 0,
        udp: false,
        decode_proxy: service.decode_proxy,
        encode_proxy: service.encode_proxy,
        servers: groups::servers(&spec, source.objects, &source.globals.options),
        group: format!("{protocol}_{}", spec.name()),
        spec: Arc::new(spec),
    }
}

/// Reads `NAMESPACE/SERVICE:PORT[:PROXY][:PROXY]`. The first PROXY is one of clients, the second one for servers.
fn service(text: &str, udp: bool) -> Option<PortService> {
    let mut words = text.trim().split(':');
    let key = Key::parse(words.next()?)?;
    let port = words.next()?;
    let proxy: Vec<&str> = words.collect();
    let fine = proxy.len() <= 2 && proxy.iter().all(|w| w.is_empty() || *w == "PROXY");
    if !fine || !is_name(&key.namespace) || !is_name(&key.name) || !is_name(port) {
        return None;
    }
    let number = port.parse::<u16>().ok();
    let port = PortRef { name: number.is_none().then(|| port.to_owned()), number };
    let has = |i: usize| proxy.get(i) == Some(&"PROXY") && !udp;
    let spec = Spec { service: key, port, udp, ..Spec::default() };
    Some(PortService { spec, decode_proxy: has(0), encode_proxy: has(1) })
}

/// Adds the hosts of `ssl-passthrough`. Their groups are those of the path `/`. An Ingress cannot take sessions of a host that an older
/// one of another namespace has, and a wildcard takes none of hosts that have Ingresses of their own.
fn passthrough<'p>(
    source: Source<'_>,
    ours: impl Iterator<Item = &'p Arc<Parsed>> + Clone,
    parts: &mut Parts,
    problems: &mut Vec<Problem>,
) {
    let mut owners: BTreeMap<&str, &str> = BTreeMap::new();
    for parsed in ours.clone() {
        for host in parsed.rules.iter().filter_map(|rules| rules.host.as_deref()) {
            owners.entry(host).or_insert(&parsed.key.namespace);
        }
    }
    let mut seen = BTreeSet::new();
    for parsed in ours.filter(|p| !p.canary && p.annotations.flag("ssl-passthrough")) {
        for rules in &parsed.rules {
            let Some(host) = &rules.host else { continue };
            if owners.get(host.as_str()).is_some_and(|owner| *owner != parsed.key.namespace) {
                let text = format!("an older Ingress of another namespace has the host {host}");
                problems.push(parsed.annotation_problem("ssl-passthrough", text).reason("HostConflict"));
                continue;
            }
            let Some(spec) = root_group(parsed, rules).filter(|_| seen.insert(host.as_str())) else {
                continue;
            };
            let service = PortService { spec, decode_proxy: false, encode_proxy: false };
            let port = stream_port(source, service, "tls");
            parts.passthrough.push((host.clone(), port.group.clone()));
            parts.ports.push(port);
        }
    }
    let below =
        |host: &str| host.split_once('.').is_some_and(|(_, rest)| seen.contains(&*format!("*.{rest}")));
    let own = owners.keys().filter(|host| !seen.contains(*host) && !host.starts_with('*') && below(host));
    parts.passthrough.extend(own.map(|host| ((*host).to_owned(), crate::tree::TLS_HERE.to_owned())));
}

/// Returns the group of the path `/` of a host, or else of its first path.
fn root_group(parsed: &Parsed, rules: &HostRules) -> Option<Spec> {
    let is_root = |p: &&HostPath| p.path == PathMatch::Prefix("/".into());
    let root = rules.paths.iter().find(is_root).or(rules.paths.first())?;
    let (service, port) = root.backend.clone()?;
    let service = Key::new(parsed.key.namespace.as_str(), service);
    let is_named = is_name(&service.name) && is_name(&service.namespace);
    is_named.then(|| Spec { service, port, ..Spec::default() })
}
