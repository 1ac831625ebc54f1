//! Ports of the TCP and UDP ConfigMaps, and hosts whose TLS sessions pass as they are.

use super::Translation;
use crate::gateway::ports::of_options;
use crate::groups::{self, Spec};
use crate::ingress::{Globals, Parsed, is_name};
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

pub(super) fn parts<'p>(
    objects: &Objects,
    globals: &Globals,
    ours: impl Iterator<Item = &'p Arc<Parsed>> + Clone,
    out: &mut Translation,
    problems: &mut Vec<Problem>,
) -> Parts {
    let mut parts = Parts::default();
    let options = &globals.options;
    for (key, udp) in [(&options.tcp_services, false), (&options.udp_services, true)] {
        let Some(map) = key.as_ref().and_then(|k| objects.config_map(k)) else { continue };
        services(&map.object, udp, objects, globals, &mut parts, problems);
    }
    if options.enable_ssl_passthrough {
        passthrough(objects, globals, ours.clone(), &mut parts, problems);
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

fn services(
    map: &ConfigMap,
    udp: bool,
    objects: &Objects,
    globals: &Globals,
    parts: &mut Parts,
    problems: &mut Vec<Problem>,
) {
    let options = &globals.options;
    let mut taken = of_options(options);
    taken.extend([options.http_port, options.https_port]);
    for (port, text) in &map.data {
        let problem = |why: &str| {
            Problem::new(Kind::ConfigMap, &map.metadata, format!("data[{port}]"), why).reason("InvalidValue")
        };
        let number = port.parse::<u16>().ok().filter(|n| *n > 0 && (udp || !taken.contains(n)));
        let Some(number) = number else {
            problems.push(problem("the key must be a port that is free"));
            continue;
        };
        let Some((spec, decode_proxy, encode_proxy)) = service(text, udp) else {
            problems.push(
                problem("the value must be NAMESPACE/SERVICE:PORT, with PROXY behind it or not").at(text, 0),
            );
            continue;
        };
        let spec = spec.beside(&globals.taken);
        let servers = groups::servers(&spec, objects, options);
        if let Some(why) = &servers.problem {
            problems.push(problem(why).reason("BackendMissing"));
        }
        let group = format!("{}_{}", if udp { "udp" } else { "tcp" }, spec.name());
        parts.ports.push(StreamPort {
            port: number,
            udp,
            decode_proxy,
            encode_proxy,
            spec: Arc::new(spec),
            group,
            servers,
        });
    }
}

/// Reads `NAMESPACE/SERVICE:PORT[:PROXY][:PROXY]`. The first PROXY is one of clients, the second one for servers.
fn service(text: &str, udp: bool) -> Option<(Spec, bool, bool)> {
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
    let has = |i: usize| proxy.get(i) == Some(&"PROXY");
    Some((Spec { service: key, port, udp, ..Spec::default() }, has(0) && !udp, has(1) && !udp))
}

/// Adds the hosts of `ssl-passthrough`. Their groups are those of the path `/`. An Ingress cannot take sessions of a host that an older
/// one of another namespace has, and a wildcard takes none of hosts that have Ingresses of their own.
fn passthrough<'p>(
    objects: &Objects,
    globals: &Globals,
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
    for parsed in ours.clone().filter(|p| !p.canary && p.annotations.flag("ssl-passthrough")) {
        for rules in &parsed.rules {
            let Some(host) = &rules.host else { continue };
            if owners.get(host.as_str()).is_some_and(|owner| *owner != parsed.key.namespace) {
                let text = format!("an older Ingress of another namespace has the host {host}");
                problems.push(parsed.annotation_problem("ssl-passthrough", text).reason("HostConflict"));
                continue;
            }
            let root =
                rules.paths.iter().find(|p| p.path == PathMatch::Prefix("/".into())).or(rules.paths.first());
            let Some((service, port)) = root.and_then(|p| p.backend.clone()) else { continue };
            if !is_name(&service) || !is_name(&parsed.key.namespace) || !seen.insert(host.as_str()) {
                continue;
            }
            let spec =
                Spec { service: Key::new(parsed.key.namespace.as_str(), service), port, ..Spec::default() };
            let spec = spec.beside(&globals.taken);
            let servers = groups::servers(&spec, objects, &globals.options);
            let group = format!("tls_{}", spec.name());
            parts.passthrough.push((host.clone(), group.clone()));
            let spec = Arc::new(spec);
            parts.ports.push(StreamPort {
                port: 0,
                udp: false,
                decode_proxy: false,
                encode_proxy: false,
                spec,
                group,
                servers,
            });
        }
    }
    let below =
        |host: &str| host.split_once('.').is_some_and(|(_, rest)| seen.contains(&*format!("*.{rest}")));
    let own = owners.keys().filter(|host| !seen.contains(*host) && !host.starts_with('*') && below(host));
    parts.passthrough.extend(own.map(|host| ((*host).to_owned(), crate::tree::TLS_HERE.to_owned())));
}
