//! Groups of servers: which endpoints a Service has, and the `upstream` block of a group.

use crate::objects::{EndpointSlice, Key, Objects, Port, PortRef, Service, ServicePort};
use crate::options::Options;
use crate::taken::Taken;
use forebay_conf::Node;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// A server of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Endpoint {
    /// Address and port.
    pub addr: SocketAddr,
    /// Share of the requests in relation to the others.
    pub weight: u32,
}

/// Way to choose a server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub enum Balance {
    /// One after the other.
    #[default]
    RoundRobin,
    /// The one with the least average time.
    LeastTime,
    /// By a hash of variables, so that few keys move when servers change.
    Hash(String),
}

/// Cookie, or field, that names the server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Sticky {
    /// Name.
    pub name: String,
    /// It is a field.
    pub field: bool,
    /// Words of `sticky` after the name.
    pub words: Vec<String>,
}

/// Status of requests for a group without servers whose Ingress has a default backend: an `error_page` leads there. No other part
/// of the server answers it.
pub const NO_SERVERS: u16 = 591;

/// What a group is made from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Spec {
    /// Namespace and name of the Service.
    pub service: Key,
    /// Port.
    pub port: PortRef,
    /// Way to choose a server.
    pub balance: Balance,
    /// Cookie or field that names the server.
    pub sticky: Option<Sticky>,
    /// The address of the Service instead of those of its endpoints.
    pub service_upstream: bool,
    /// Group that stands in while there are no servers.
    pub fallback: Option<String>,
    /// The port is one of UDP.
    pub udp: bool,
    /// The name without a hash is that of a group or zone of the operator.
    pub renamed: bool,
}

impl Spec {
    /// Returns the name: `NAMESPACE_SERVICE_PORT`, with a hash of what differs from the ordinary. No two specifications have the
    /// same, since names of objects contain no `_`, and none has that of a limit, whose zone is `NAMESPACE_INGRESS_rps`.
    pub fn name(&self) -> String {
        let plain = self.plain_name();
        let like_a_limit = self.port.name.as_deref().is_some_and(|port| LIMIT_ZONES.contains(&port));
        let ordinary = Spec { service: self.service.clone(), port: self.port.clone(), ..Spec::default() };
        if *self == ordinary && !like_a_limit {
            plain
        } else {
            format!("{plain}_{}", short_hash(&format!("{self:?}")))
        }
    }

    fn plain_name(&self) -> String {
        format!("{}_{}_{}", self.service.namespace, self.service.name, port_text(&self.port))
    }

    /// Returns the same specification with a name that is not taken.
    pub(crate) fn beside(self, taken: &Taken) -> Spec {
        Spec { renamed: taken.has_group(&self.plain_name()), ..self }
    }
}

/// Returns a port as it is written.
pub fn port_text(port: &PortRef) -> String {
    match (&port.name, port.number) {
        (Some(name), _) if !name.is_empty() => name.clone(),
        (_, Some(number)) => number.to_string(),
        _ => String::new(),
    }
}

/// Ends of the names of the zones of `limit-connections`, `limit-rps` and `limit-rpm`.
pub(crate) const LIMIT_ZONES: [&str; 3] = ["conn", "rps", "rpm"];

/// Digits of a [`short_hash`]: more than a port's name has, and more than anybody can find a second text for.
pub const HASH_DIGITS: usize = 20;

/// Returns hexadecimal digits that differ for different texts.
pub fn short_hash(text: &str) -> String {
    use sha1::Digest;
    let digest = sha1::Sha1::digest(text.as_bytes());
    digest.iter().take(HASH_DIGITS / 2).map(|b| format!("{b:02x}")).collect()
}

/// Returns the number of the file that a group is in, if there are many.
pub(crate) fn shard(name: &str) -> u8 {
    use sha1::Digest;
    sha1::Sha1::digest(name.as_bytes()).first().copied().unwrap_or(0)
}

/// Servers of a group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Servers {
    /// Endpoints, sorted.
    pub endpoints: Arc<[Endpoint]>,
    /// Host and port to resolve, of an ExternalName Service.
    pub external: Option<(String, u16)>,
    /// Domains below which that host is looked for first.
    pub search: Vec<String>,
    /// Why there are none.
    pub problem: Option<String>,
}

/// Returns the parameter of `server` for domains below which its name is looked for.
pub(crate) fn search(domains: &[String]) -> Option<String> {
    (!domains.is_empty()).then(|| format!("search={}", domains.join(",")))
}

/// Returns the domains below which a name is looked for first, as the C library does it. Names at which Forebay must not connect are
/// left out.
fn domains(name: &str, options: &Options) -> Vec<String> {
    let host = name.trim_end_matches('.');
    let whole =
        name.ends_with('.') || host.matches('.').count() >= options.ndots || host.parse::<IpAddr>().is_ok();
    if whole {
        return Vec::new();
    }
    let allowed = |d: &&String| crate::reach::forbidden(&format!("{host}.{d}"), options).is_none();
    options.search.iter().filter(allowed).cloned().collect()
}

/// Endpoints of a group beyond this are left out.
const MAX_ENDPOINTS: usize = 10_000;

/// Finds the servers of a group.
pub fn servers(spec: &Spec, objects: &Objects, options: &Options) -> Servers {
    let found = find_servers(spec, objects, options);
    found.unwrap_or_else(|text| Servers { problem: Some(text), ..Servers::default() })
}

fn find_servers(spec: &Spec, objects: &Objects, options: &Options) -> Result<Servers, String> {
    let Some(service) = objects.service(&spec.service) else {
        return Err(format!("the Service {} does not exist", spec.service));
    };
    let service = &service.object;
    if service.spec.kind == "ExternalName" {
        check_external(spec, service, options)?;
        let found = external(service, &spec.port, spec.udp);
        return Ok(Servers { search: domains(&service.spec.external_name, options), ..found });
    }
    let Some(port) = find_port(service, &spec.port, spec.udp) else {
        return Err(format!("the Service {} has no port \"{}\"", spec.service, port_text(&spec.port)));
    };
    let mut endpoints =
        if spec.service_upstream { cluster_addresses(service, port.port) } else { Vec::new() };
    // A headless Service has no address of its own.
    if endpoints.is_empty() {
        let mut found = Ready::new(service, port, &options.topology_zone);
        objects.slices(&spec.service).for_each(|slice| found.add(&slice.object));
        endpoints = found.chosen();
    }
    endpoints.sort_unstable();
    endpoints.dedup();
    endpoints.truncate(MAX_ENDPOINTS);
    Ok(Servers { endpoints: endpoints.into(), ..Servers::default() })
}

/// Checks that the host of an ExternalName may be used, and can be.
fn check_external(spec: &Spec, service: &Service, options: &Options) -> Result<(), String> {
    let of = &spec.service;
    if options.disable_svc_external_name {
        return Err(format!("the Service {of} is an ExternalName (--disable-svc-external-name)"));
    }
    let name = &service.spec.external_name;
    let host = name.trim_end_matches('.').to_ascii_lowercase();
    let named = crate::ingress::is_host(&host) && !host.starts_with('*');
    let address = host.parse::<IpAddr>().is_ok();
    if let Some(why) = crate::reach::forbidden(name, options) {
        return Err(format!("the externalName of the Service {of}: {why}"));
    }
    if !named && !address {
        return Err(format!("the externalName of the Service {of} is no name"));
    }
    if options.resolvers.is_empty() && !address {
        return Err(format!("no name servers are known to resolve the externalName of the Service {of}"));
    }
    Ok(())
}

/// Finds a port by name or number: its own or, as in ingress-nginx, that of the containers.
fn find_port<'s>(service: &'s Service, wanted: &PortRef, udp: bool) -> Option<&'s ServicePort> {
    let protocol = if udp { "UDP" } else { "TCP" };
    let tcp = |p: &&ServicePort| p.protocol.as_deref().unwrap_or("TCP") == protocol;
    let named = wanted.name.as_deref().filter(|n| !n.is_empty());
    let ports = || service.spec.ports.iter().filter(tcp);
    match named {
        Some(name) => {
            let target =
                |p: &&ServicePort| matches!(&p.target_port, Some(Port::Name(target)) if target == name);
            ports().find(|p| p.name == name).or_else(|| ports().find(target))
        }
        None => {
            let target =
                |p: &&ServicePort| matches!(p.target_port, Some(Port::Number(n)) if Some(n) == wanted.number);
            ports().find(|p| Some(p.port) == wanted.number).or_else(|| ports().find(target))
        }
    }
}

fn external(service: &Service, wanted: &PortRef, udp: bool) -> Servers {
    let declared = find_port(service, wanted, udp).map(|p| match p.target_port {
        Some(Port::Number(n)) if n > 0 => n,
        _ => p.port,
    });
    match declared.or(wanted.number) {
        Some(port) => {
            let host = service.spec.external_name.trim_end_matches('.').to_ascii_lowercase();
            Servers { external: Some((host, port)), ..Servers::default() }
        }
        None => {
            let text = format!("the Service {} has no port \"{}\"", service.metadata.name, port_text(wanted));
            Servers { problem: Some(text), ..Servers::default() }
        }
    }
}

fn cluster_addresses(service: &Service, port: u16) -> Vec<Endpoint> {
    let mut texts: Vec<&str> = service.spec.cluster_ips.iter().map(String::as_str).collect();
    if texts.is_empty() {
        texts.push(&service.spec.cluster_ip);
    }
    let addresses = texts.into_iter().filter_map(|t| t.parse::<IpAddr>().ok());
    addresses.map(|ip| Endpoint { addr: SocketAddr::new(ip, port), weight: 1 }).collect()
}

/// Endpoints of the slices of a Service. Those that are being ended but still serve count while no other is ready, and hints of zones
/// count if every ready endpoint has some and one is for ours, as for kube-proxy.
struct Ready<'a> {
    port: &'a ServicePort,
    /// Endpoints that are not ready count, too.
    not_ready_too: bool,
    zone: &'a str,
    ready: Vec<Endpoint>,
    ending: Vec<Endpoint>,
    /// Ready endpoints for our zone.
    near: Vec<Endpoint>,
    all_hinted: bool,
}

impl<'a> Ready<'a> {
    fn new(service: &Service, port: &'a ServicePort, zone: &'a str) -> Ready<'a> {
        let not_ready_too = service.spec.publish_not_ready_addresses;
        let (ready, ending, near) = (Vec::new(), Vec::new(), Vec::new());
        Ready { port, not_ready_too, zone, ready, ending, near, all_hinted: true }
    }

    fn add(&mut self, slice: &EndpointSlice) {
        let protocol = self.port.protocol.as_deref().unwrap_or("TCP");
        let is_ours = |p: &&crate::objects::EndpointPort| {
            p.name == self.port.name && p.protocol.as_deref().unwrap_or("TCP") == protocol
        };
        let Some(number) = slice.ports.iter().find(is_ours).and_then(|p| p.port) else { return };
        for endpoint in &slice.endpoints {
            let Some(ip) = endpoint.addresses.first().and_then(|a| a.parse::<IpAddr>().ok()) else {
                continue;
            };
            let server = Endpoint { addr: SocketAddr::new(ip, number), weight: 1 };
            let conditions = endpoint.conditions;
            if conditions.ready.unwrap_or(true) || self.not_ready_too {
                self.ready.push(server);
                let zones = &endpoint.hints.for_zones;
                self.all_hinted &= !zones.is_empty();
                self.near.extend(zones.iter().any(|z| z.name == self.zone).then_some(server));
            } else if conditions.serving == Some(true) && conditions.terminating == Some(true) {
                self.ending.push(server);
            }
        }
    }

    fn chosen(self) -> Vec<Endpoint> {
        match self.ready.is_empty() {
            true => self.ending,
            false if self.zone.is_empty() || !self.all_hinted || self.near.is_empty() => self.ready,
            false => self.near,
        }
    }
}

/// Settings of all groups.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Common {
    /// `keepalive`, `keepalive_requests`, `keepalive_time` and `keepalive_timeout`.
    pub keepalive: Vec<(&'static str, String)>,
    /// Endpoints are printed.
    pub endpoints_in_files: bool,
}

/// Makes the `upstream` block of a group.
pub fn block(name: &str, spec: &Spec, servers: &Servers, common: &Common) -> Node {
    let mut nodes = vec![Node::new("zone").arg(name).arg("64k")];
    match &spec.balance {
        Balance::RoundRobin => {}
        Balance::LeastTime => nodes.push(Node::new("least_time").arg("last_byte")),
        Balance::Hash(key) => nodes.push(Node::new("hash").arg(key.as_str()).arg("consistent")),
    }
    nodes.extend(lines(servers, common));
    if let Some(sticky) = &spec.sticky {
        let kind = if sticky.field { "header" } else { "cookie" };
        let line = Node::new("sticky").arg(kind).arg(sticky.name.as_str());
        nodes.push(line.args(sticky.words.iter().map(String::as_str)));
    }
    // A name without an address is a server that cannot be reached.
    let none = if servers.external.is_some() { "=502" } else { "=503" };
    nodes.push(Node::new("fallback").arg(spec.fallback.as_deref().unwrap_or(none)));
    nodes.extend(common.keepalive.iter().map(|(name, value)| Node::new(*name).arg(value.as_str())));
    Node::new("upstream").arg(name).block(nodes)
}

/// Makes the `server` lines of a group, or the line for servers that are delivered later.
fn lines(servers: &Servers, common: &Common) -> Vec<Node> {
    if let Some((host, port)) = &servers.external {
        let resolve = host.parse::<IpAddr>().is_err().then_some("resolve");
        let line = Node::new("server").arg(format!("{host}:{port}")).args(resolve);
        return vec![line.args(search(&servers.search)).arg("max_fails=0")];
    }
    if !common.endpoints_in_files {
        return vec![Node::new("peers").args(["external", "max_fails=0"])];
    }
    // Kubernetes decides on readiness, so a failed request says nothing about the next.
    let line = |e: &Endpoint| {
        let weight = (e.weight != 1).then(|| format!("weight={}", e.weight));
        Node::new("server").arg(e.addr.to_string()).args(weight).arg("max_fails=0")
    };
    servers.endpoints.iter().map(line).collect()
}
