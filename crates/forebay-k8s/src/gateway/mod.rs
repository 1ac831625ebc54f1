//! The Gateway API: Gateways and routes to servers, and their statuses.
//!
//! Each listener's hosts become servers. Rules become `route` lines, in the order of precedence that the API defines, and a named
//! location each. Read in this order: `attach.rs` (which routes belong to which listeners), `rules.rs` (what a rule does), `status.rs`.

mod attach;
mod backend_tls;
pub mod objects;
mod rules;
mod status;

pub use objects::{GatewayKind, GatewayObjects};
pub use status::StatusUpdate;

use crate::groups::Spec;
use crate::model::{CertificateFiles, File};
use crate::objects::{Key, Objects};
use attach::{Attached, Clients, Cluster, Ours, Owner, Parent, age, covers};
use forebay_conf::Node;
use objects::{ListenerSet, Match, Route, Rule};
use rules::{Choice, Place, Unresolved};
use serde_json::{Value, json};
use status::{condition, parent as parent_status};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

/// Options of the Gateway API.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GatewayOptions {
    /// `spec.controllerName` of GatewayClasses that are ours; empty: the Gateway API is not served.
    pub controller: String,
    /// Addresses of this machine for Gateways, each of which gets one of its own. Empty: all Gateways share all addresses.
    pub addresses: Vec<IpAddr>,
    /// Addresses that statuses name while Gateways share them.
    pub published: Vec<String>,
}

/// What the objects of the Gateway API become.
#[derive(Clone, Debug, Default)]
pub struct GatewayPart {
    /// Directives of the http level.
    pub http: Vec<Node>,
    /// Files that they name.
    pub files: Vec<File>,
    /// Groups that they name.
    pub specs: Vec<Arc<Spec>>,
    /// Statuses.
    pub statuses: Vec<StatusUpdate>,
}

/// Features that GatewayClasses name in their status.
pub const FEATURES: &[&str] = &[
    "BackendTLSPolicy",
    "GRPCRoute",
    "GRPCRouteNamedRouteRule",
    "Gateway",
    "GatewayAddressEmpty",
    "GatewayBackendClientCertificate",
    "GatewayFrontendClientCertificateValidation",
    "GatewayFrontendClientCertificateValidationInsecureFallback",
    "GatewayHTTPListenerIsolation",
    "GatewayHTTPSListenerDetectMisdirectedRequests",
    "GatewayPort8080",
    "GatewayStaticAddresses",
    "HTTPRoute",
    "HTTPRoute303RedirectStatusCode",
    "HTTPRoute307RedirectStatusCode",
    "HTTPRoute308RedirectStatusCode",
    "HTTPRouteBackendProtocolH2C",
    "HTTPRouteBackendProtocolWebSocket",
    "HTTPRouteBackendRequestHeaderModification",
    "HTTPRouteBackendTimeout",
    "HTTPRouteCORS",
    "HTTPRouteDestinationPortMatching",
    "HTTPRouteHostRewrite",
    "HTTPRouteMethodMatching",
    "HTTPRouteNamedRouteRule",
    "HTTPRouteParentRefPort",
    "HTTPRoutePathRedirect",
    "HTTPRoutePathRewrite",
    "HTTPRoutePortRedirect",
    "HTTPRouteQueryParamMatching",
    "HTTPRouteRequestMirror",
    "HTTPRouteRequestMultipleMirrors",
    "HTTPRouteRequestPercentageMirror",
    "HTTPRouteRequestTimeout",
    "HTTPRouteResponseHeaderModification",
    "HTTPRouteRetry",
    "HTTPRouteRetryBackendTimeout",
    "HTTPRouteRetryConnectionError",
    "HTTPRouteSchemeRedirect",
    "ListenerSet",
    "ReferenceGrant",
];

/// Route with the listeners that it is attached to.
struct Placed<'a> {
    key: &'a Key,
    kind: GatewayKind,
    route: &'a Arc<Route>,
    parents: Vec<Option<Parent>>,
    /// Backends of each rule.
    choices: Vec<Vec<Choice>>,
    unresolved: Vec<Unresolved>,
}

/// Keeps the addresses of Gateways from one translation to the next.
#[derive(Debug, Default)]
pub struct Gateways {
    addresses: HashMap<Key, IpAddr>,
}

impl Gateways {
    /// Translates the objects of the Gateway API.
    pub fn translate(
        &mut self,
        objects: &Objects,
        gateway: &GatewayObjects,
        options: &GatewayOptions,
    ) -> GatewayPart {
        if options.controller.is_empty() {
            return GatewayPart::default();
        }
        let cluster = Cluster { objects, gateway, controller: &options.controller };
        let mut ours = attach::gateways(cluster);
        self.allocate(&mut ours, options);
        let routes = place_routes(cluster, &ours);
        for parent in routes.iter().flat_map(|r| r.parents.iter().flatten()) {
            let Some(o) = ours.get_mut(parent.gateway) else { continue };
            for (listener, _) in &parent.listeners {
                if let Some(l) = o.listeners.get_mut(*listener) {
                    l.routes += 1;
                }
            }
        }
        let mut part =
            GatewayPart { statuses: statuses(cluster, &ours, &routes, options), ..GatewayPart::default() };
        if !ours.is_empty() {
            part.http.push(connection_map());
        }
        for (index, o) in ours.iter().enumerate() {
            servers(cluster, (index, o), &routes, &mut part);
        }
        let mut known = BTreeSet::new();
        part.specs = specs(cluster, &routes).filter(|spec| known.insert(spec.name())).collect();
        part
    }

    /// Gives each Gateway an address. A Gateway keeps the one that it has.
    fn allocate(&mut self, ours: &mut [Ours], options: &GatewayOptions) {
        let mut taken: BTreeSet<IpAddr> = BTreeSet::new();
        let keys: BTreeSet<&Key> = ours.iter().map(|o| &o.key).collect();
        self.addresses.retain(|key, address| keys.contains(key) && options.addresses.contains(address));
        for o in ours.iter_mut() {
            let wanted = &o.gateway.spec.addresses;
            if let Some(other) =
                wanted.iter().find(|a| a.kind.as_deref().unwrap_or("IPAddress") != "IPAddress")
            {
                let text =
                    format!("addresses of type {} are not known", other.kind.as_deref().unwrap_or_default());
                o.address_problem = Some(("Accepted", "UnsupportedAddress", text));
                continue;
            }
            let fixed: Vec<&str> =
                wanted.iter().map(|a| a.value.as_str()).filter(|v| !v.is_empty()).collect();
            if fixed.is_empty() {
                continue;
            }
            match fixed
                .iter()
                .find_map(|v| v.parse().ok().filter(|a| options.addresses.contains(a) && !taken.contains(a)))
            {
                Some(address) if fixed.len() == 1 => {
                    taken.insert(address);
                    self.addresses.insert(o.key.clone(), address);
                }
                _ => {
                    let text = "not all of its addresses are addresses of this machine".to_owned();
                    o.address_problem = Some(("Programmed", "AddressNotUsable", text));
                }
            }
        }
        taken.extend(self.addresses.values());
        for o in ours.iter_mut().filter(|o| o.address_problem.is_none() && !options.addresses.is_empty()) {
            let published = o.gateway.status.addresses.iter().find_map(|a| a.value.parse().ok());
            let known = self.addresses.get(&o.key).copied();
            let free = |a: &IpAddr| options.addresses.contains(a) && !taken.contains(a);
            let address =
                known.or(published.filter(free)).or_else(|| options.addresses.iter().copied().find(free));
            match address {
                Some(address) => {
                    taken.insert(address);
                    self.addresses.insert(o.key.clone(), address);
                    o.address = Some(address);
                }
                None => {
                    o.address_problem =
                        Some(("Programmed", "AddressNotAssigned", "no address is free".to_owned()));
                }
            }
        }
    }
}

fn connection_map() -> Node {
    let entries = vec![Node::new("default").arg("upgrade"), Node::new("").arg("")];
    Node::new("map").args(["$http_upgrade", "$gateway_connection"]).block(entries)
}

fn place_routes<'a>(cluster: Cluster<'a>, ours: &[Ours]) -> Vec<Placed<'a>> {
    let http = cluster.gateway.http_routes.iter().map(|(key, route)| (GatewayKind::HttpRoute, key, route));
    let grpc = cluster.gateway.grpc_routes.iter().map(|(key, route)| (GatewayKind::GrpcRoute, key, route));
    let place = |(kind, key, route): (GatewayKind, &'a Key, &'a Arc<Route>)| {
        let parents: Vec<_> =
            route.spec.parent_refs.iter().map(|r| attach::parent(cluster, ours, route, kind, r)).collect();
        if parents.iter().all(Option::is_none) {
            return None;
        }
        let mut unresolved = Vec::new();
        let choices = route
            .spec
            .rules
            .iter()
            .map(|rule| rules::choices(cluster, route, kind, rule, &mut unresolved))
            .collect();
        for copy in route.spec.rules.iter().flat_map(|r| &r.filters).filter_map(|f| f.request_mirror.as_ref())
        {
            unresolved.extend(rules::backend(cluster, route, kind, &copy.backend_ref).err());
        }
        Some(Placed { key, kind, route, parents, choices, unresolved })
    };
    let mut routes: Vec<Placed<'a>> = http.chain(grpc).filter_map(place).collect();
    routes.sort_by(|a, b| age(&a.route.metadata, a.key).cmp(&age(&b.route.metadata, b.key)));
    routes
}

fn specs<'a>(cluster: Cluster<'a>, routes: &'a [Placed<'a>]) -> impl Iterator<Item = Arc<Spec>> + 'a {
    routes.iter().flat_map(move |r| {
        let used = r.choices.iter().flatten().filter_map(|c| Some(c.backend.as_ref()?.spec.clone()));
        let copies = r.route.spec.rules.iter().flat_map(|rule| {
            let of_backends = rule.backend_refs.iter().flat_map(|b| &b.filters);
            rule.filters.iter().chain(of_backends).filter_map(|f| f.request_mirror.as_ref())
        });
        let copies = copies
            .filter_map(move |m| Some(rules::backend(cluster, r.route, r.kind, &m.backend_ref).ok()?.spec));
        used.chain(copies)
    })
}

/// One match of a rule, for a host.
struct Candidate<'a> {
    placed: &'a Placed<'a>,
    route: usize,
    rule: usize,
    number: usize,
    found: Match,
    /// Host of the route that makes it a candidate.
    host: String,
}

/// Makes the servers of a Gateway.
fn servers(cluster: Cluster<'_>, (index, o): (usize, &Ours), routes: &[Placed<'_>], part: &mut GatewayPart) {
    if o.address_problem.is_some() {
        return;
    }
    let mut ports: BTreeMap<u16, Vec<usize>> = BTreeMap::new();
    for (number, l) in o.listeners.iter().enumerate().filter(|(_, l)| l.works()) {
        ports.entry(l.listener.port).or_default().push(number);
    }
    for (port, listeners) in ports {
        let encrypted =
            listeners.iter().any(|l| o.listeners.get(*l).is_some_and(|l| l.listener.protocol == "HTTPS"));
        let certificate = o.client_certificate.as_ref().and_then(|found| found.as_ref().ok());
        let address = match o.address {
            None => port.to_string(),
            Some(IpAddr::V4(a)) => format!("{a}:{port}"),
            Some(IpAddr::V6(a)) => format!("[{a}]:{port}"),
        };
        let misdirection = Misdirection::new(o, &listeners, &address).filter(|_| encrypted);
        part.http.extend(misdirection.as_ref().map(|m| m.map.clone()));
        for (host, candidates) in hosts_of_port((index, o), &listeners, routes) {
            let owner = owner(o, &listeners, &host);
            let misdirected = misdirection.as_ref().map(|m| m.check(owner));
            let listener = owner.and_then(|l| o.listeners.get(l));
            let fallback = listeners.first().and_then(|l| o.listeners.get(*l));
            server(
                cluster,
                (&host, &candidates),
                (&address, port, encrypted, certificate),
                (listener, fallback),
                misdirected,
                part,
            );
        }
    }
}

/// Check that a request is for the listener whose certificate and whose demands on clients its connection has met (RFC 9110, section
/// 15.5.20). Otherwise one with client certificates could be reached by the name of one without.
struct Misdirection {
    variable: String,
    /// The `map` of the variable, from the server name of the connection to the listener.
    map: Node,
}

impl Misdirection {
    /// Returns `None` for a port with one listener, where nothing can be confused.
    fn new(o: &Ours, listeners: &[usize], address: &str) -> Option<Misdirection> {
        if listeners.len() < 2 {
            return None;
        }
        let variable = format!("$gateway_listener_{}", crate::groups::short_hash(address));
        let entry = |l: &usize| {
            let host = o.listeners.get(*l)?.host();
            let name = match host.as_str() {
                "" => "default".to_owned(),
                // They mean something else in a `map`.
                "default" | "hostnames" | "include" | "volatile" => format!("\\{host}"),
                _ => host,
            };
            Some(Node::new(name.as_str()).arg(l.to_string()))
        };
        // A connection without a server name tells nothing.
        let fixed = [Node::new("hostnames"), Node::new("").arg("any")];
        let map = Node::new("map")
            .args(["$ssl_server_name", variable.as_str()])
            .block(fixed.into_iter().chain(listeners.iter().filter_map(entry)).collect());
        Some(Misdirection { variable, map })
    }

    /// Returns the check for the servers of a listener.
    fn check(&self, listener: Option<usize>) -> Node {
        let own = listener.map_or_else(|| "none".to_owned(), |l| l.to_string());
        Node::new("if")
            .args([format!("({}", self.variable), "!~".to_owned(), format!("^(any|{own})$)")])
            .block(vec![Node::new("return").arg("421")])
    }
}

/// A route at a listener, with the hosts that both have.
struct AtListener<'a> {
    placed: &'a Placed<'a>,
    /// Rank of the route among all.
    route: usize,
    listener: usize,
    hosts: &'a [String],
}

/// Returns the hosts of the listeners of a port, and of the routes that are attached to them, with the rules of each in order.
fn hosts_of_port<'a>(
    (index, o): (usize, &Ours),
    listeners: &[usize],
    routes: &'a [Placed<'a>],
) -> BTreeMap<String, Vec<Candidate<'a>>> {
    let at_gateway = |(route, placed): (usize, &'a Placed<'a>)| {
        let parents = placed.parents.iter().flatten().filter(|p| p.gateway == index);
        let at = parents.flat_map(|p| &p.listeners);
        at.map(move |(listener, hosts)| AtListener { placed, route, listener: *listener, hosts })
            .collect::<Vec<_>>()
    };
    let attached: Vec<AtListener<'a>> = routes
        .iter()
        .enumerate()
        .flat_map(at_gateway)
        .filter(|at| listeners.contains(&at.listener))
        .collect();
    // Requests for hosts without a listener get an answer, too.
    let mut hosts = BTreeMap::from([(String::new(), Vec::new())]);
    for l in listeners.iter().filter_map(|l| o.listeners.get(*l)) {
        hosts.entry(l.host()).or_default();
    }
    for at in &attached {
        for host in at.hosts.iter().filter(|h| owner(o, listeners, h) == Some(at.listener)) {
            hosts.entry(host.clone()).or_default();
        }
    }
    for (host, candidates) in &mut hosts {
        let owner = owner(o, listeners, host);
        for at in attached.iter().filter(|at| Some(at.listener) == owner) {
            for own in at.hosts.iter().filter(|own| covers(own, host)) {
                add_candidates(at.placed, at.route, own, candidates);
            }
        }
        sort(candidates);
    }
    hosts
}

/// Returns the listener that gets requests for a host: the one with the most specific host.
fn owner(o: &Ours, listeners: &[usize], host: &str) -> Option<usize> {
    let of = |l: &usize| o.listeners.get(*l).map(Attached::host).unwrap_or_default();
    let fits = listeners.iter().filter(|l| covers(&of(l), host));
    fits.copied().max_by_key(|l| specificity(&of(l)))
}

/// Rank of a host: exact names before wildcards, longer ones before shorter ones.
fn specificity(host: &str) -> (bool, usize) {
    (!host.is_empty() && !host.starts_with('*'), host.len())
}

fn add_candidates<'a>(placed: &'a Placed<'a>, route: usize, host: &str, all: &mut Vec<Candidate<'a>>) {
    for (rule, r) in placed.route.spec.rules.iter().enumerate() {
        let matches = match r.matches.as_slice() {
            [] => vec![Match::default()],
            some => some.to_vec(),
        };
        for (number, found) in matches.into_iter().enumerate() {
            let same = |c: &Candidate<'_>| (c.route, c.rule, c.number) == (route, rule, number);
            match all.iter_mut().find(|c| same(c)) {
                // A route with `*.a` and `x.a` is as specific as the better of them.
                Some(c) if specificity(&c.host) < specificity(host) => c.host = host.to_owned(),
                Some(_) => {}
                None => all.push(Candidate { placed, route, rule, number, found, host: host.to_owned() }),
            }
        }
    }
}

/// Sorts by precedence (HTTPRouteRule: matches): host, path, method, number of fields, number of parameters, age, name, order.
fn sort(candidates: &mut [Candidate<'_>]) {
    let rank = |c: &Candidate<'_>| {
        let path = c.found.path.clone().unwrap_or_default();
        let kind = match (c.placed.kind, path.kind.as_deref()) {
            (GatewayKind::GrpcRoute, _) => 0,
            (_, Some("Exact")) => 2,
            (_, Some("RegularExpression")) => 1,
            _ => 0,
        };
        let length = match (c.placed.kind, &c.found.method) {
            (GatewayKind::GrpcRoute, Some(objects::Method::Grpc(m))) => {
                // Exact methods before services before methods of all services.
                m.service.as_ref().map_or(0, |s| 1000 + s.len() * 1000)
                    + m.method.as_ref().map_or(0, |m| 1 + m.len())
            }
            _ => path.value.as_deref().map_or(1, |v| v.trim_end_matches('/').len().max(1)),
        };
        let method = c.placed.kind == GatewayKind::HttpRoute && c.found.method.is_some();
        (specificity(&c.host), kind, length, method, c.found.headers.len(), c.found.query_params.len())
    };
    candidates.sort_by(|a, b| {
        let later = (a.route, a.rule, a.number).cmp(&(b.route, b.rule, b.number));
        rank(b).cmp(&rank(a)).then(later)
    });
}

/// Makes the server of a host.
fn server(
    cluster: Cluster<'_>,
    (host, candidates): (&str, &[Candidate<'_>]),
    (address, port, encrypted, certificate): (&str, u16, bool, Option<&CertificateFiles>),
    (listener, fallback): (Option<&Attached>, Option<&Attached>),
    misdirected: Option<Node>,
    part: &mut GatewayPart,
) {
    let mut nodes = Vec::new();
    let mut listen = Node::new("listen").arg(address);
    if encrypted {
        listen = listen.arg("ssl");
    }
    if host.is_empty() {
        listen = listen.arg("default_server");
    }
    nodes.push(listen);
    nodes.push(Node::new("server_name").arg(if host.is_empty() { "_" } else { host }));
    nodes.push(Node::new("http2").arg("on"));
    // The log format of Ingresses shows these.
    nodes.extend(
        ["$proxy_upstream_name", "$proxy_alternative_upstream_name"].map(|v| Node::new("set").args([v, ""])),
    );
    nodes.extend(misdirected);
    if encrypted {
        let of = listener.filter(|l| !l.certificates.is_empty()).or(fallback);
        for files in of.into_iter().flat_map(|l| &l.certificates) {
            nodes.push(Node::new("ssl_certificate").arg(files.chain.path.as_str()));
            nodes.push(Node::new("ssl_certificate_key").arg(files.key.path.as_str()));
            part.files.extend([files.chain.clone(), files.key.clone()]);
        }
        if let Some(Clients::Of { authorities, insecure }) = listener.or(fallback).map(|l| &l.clients) {
            nodes.extend(verification(authorities, *insecure));
            part.files.push(authorities.clone());
        }
        if listener.is_none() {
            // No listener has this name.
            nodes.push(Node::new("ssl_reject_handshake").arg("on"));
        }
    }
    let mut locations = Vec::new();
    for c in candidates {
        let Some(rule) = c.placed.route.spec.rules.get(c.rule) else { continue };
        let choices = c.placed.choices.get(c.rule).map(Vec::as_slice).unwrap_or_default();
        let id = crate::groups::short_hash(&format!(
            "{address} {host} {} {} {} {}",
            c.placed.key,
            c.placed.kind.name(),
            c.rule,
            c.number
        ));
        let place = Place { id, port, found: &c.found, certificate };
        let served = rules::serve(cluster, c.placed.route, c.placed.kind, (rule as &Rule, choices), &place);
        part.http.extend(served.http);
        nodes.extend(served.routes);
        locations.extend(served.locations);
        part.files.extend(served.files);
    }
    nodes.extend(locations);
    nodes.push(Node::new("location").arg("/").block(vec![Node::new("return").arg("404")]));
    part.http.push(Node::new("server").block(nodes));
}

/// Returns the directives that ask clients for certificates.
fn verification(authorities: &File, insecure: bool) -> Vec<Node> {
    if insecure {
        // Without authorities no certificate is wrong: those of strangers pass, too.
        return vec![Node::new("ssl_verify_client").arg("optional_no_ca")];
    }
    vec![
        Node::new("ssl_client_certificate").arg(authorities.path.as_str()),
        Node::new("ssl_verify_client").arg("on"),
        Node::new("ssl_verify_depth").arg("4"),
        // Others get no answer at all, as if the handshake had failed.
        Node::new("error_page").args(["495", "496", "=", "@unverified"]),
        Node::new("location").arg("@unverified").block(vec![Node::new("return").arg("444")]),
    ]
}

/// Makes all statuses.
fn statuses(
    cluster: Cluster<'_>,
    ours: &[Ours],
    routes: &[Placed<'_>],
    options: &GatewayOptions,
) -> Vec<StatusUpdate> {
    let mut all = Vec::new();
    for (key, class) in &cluster.gateway.classes {
        if class.spec.controller_name != options.controller {
            continue;
        }
        let features: Vec<Value> = FEATURES.iter().map(|name| json!({ "name": name })).collect();
        let accepted = condition(&class.metadata, "Accepted", true, "Accepted", "");
        let status = json!({ "conditions": [accepted], "supportedFeatures": features });
        all.push(StatusUpdate { kind: GatewayKind::GatewayClass, key: key.clone(), status });
    }
    for o in ours {
        all.push(gateway_status(o, options));
        for (set, allowed) in &o.sets {
            all.push(set_status(o, set, *allowed));
        }
    }
    all.extend(routes.iter().map(|r| route_status(r, options)));
    all.extend(policy_statuses(cluster, ours, routes, options));
    all
}

/// Returns the status of a listener.
fn listener_status(l: &Attached, metadata: &crate::objects::Metadata) -> Value {
    let condition = |kind, holds, reason, text: &str| condition(metadata, kind, holds, reason, text);
    let resolved = match (&l.unresolved, l.invalid_kinds) {
        (Some((reason, text)), _) => condition("ResolvedRefs", false, reason, text),
        (None, true) => condition(
            "ResolvedRefs",
            false,
            "InvalidRouteKinds",
            "it names kinds of routes that it cannot have",
        ),
        (None, false) => condition("ResolvedRefs", true, "ResolvedRefs", ""),
    };
    let accepted = match (l.supported, l.conflict) {
        (_, Some(reason)) => condition("Accepted", false, reason, "another listener has this port"),
        (true, None) if matches!(l.clients, Clients::Unknown) => {
            condition("Accepted", false, "NoValidCACertificate", "no authority of clients can be read")
        }
        (false, None) => condition("Accepted", false, "UnsupportedProtocol", "this protocol is not served"),
        (true, None) => condition("Accepted", true, "Accepted", ""),
    };
    let works = l.works() && l.unresolved.is_none() && !(l.invalid_kinds && l.kinds.is_empty());
    let programmed = if works {
        condition("Programmed", true, "Programmed", "")
    } else {
        condition("Programmed", false, l.conflict.unwrap_or("Invalid"), "see the other conditions")
    };
    let conflicted = match l.conflict {
        Some(reason) => condition("Conflicted", true, reason, "another listener has this port"),
        None => condition("Conflicted", false, "NoConflicts", ""),
    };
    let kinds: Vec<Value> =
        l.kinds.iter().map(|kind| json!({ "group": objects::GROUP, "kind": kind })).collect();
    json!({
        "name": l.listener.name,
        "supportedKinds": kinds,
        "attachedRoutes": l.routes,
        "conditions": [accepted, programmed, resolved, conflicted],
    })
}

fn gateway_status(o: &Ours, options: &GatewayOptions) -> StatusUpdate {
    let metadata = &o.gateway.metadata;
    let condition = |kind, holds, reason, text: &str| condition(metadata, kind, holds, reason, text);
    let own: Vec<&Attached> = o.listeners.iter().filter(|l| matches!(l.owner, Owner::Gateway)).collect();
    let is_good = |l: &&Attached| l.supported && l.conflict.is_none();
    let (all_good, some_good) = (own.iter().all(is_good), own.iter().any(is_good));
    let refused = |kind: &str| o.address_problem.as_ref().filter(|(of, _, _)| *of == kind);
    let accepted = match (refused("Accepted"), all_good) {
        (Some((_, reason, text)), _) => condition("Accepted", false, reason, text),
        (None, true) => condition("Accepted", true, "Accepted", ""),
        (None, false) => {
            condition("Accepted", some_good, "ListenersNotValid", "not all of its listeners can be used")
        }
    };
    let programmed = match &o.address_problem {
        Some((_, "UnsupportedAddress", text)) => condition("Programmed", false, "Invalid", text),
        Some((_, reason, text)) => condition("Programmed", false, reason, text),
        None if some_good => condition("Programmed", true, "Programmed", ""),
        None => condition("Programmed", false, "Invalid", "none of its listeners can be used"),
    };
    let address = |a: &str| {
        let kind = if a.parse::<IpAddr>().is_ok() { "IPAddress" } else { "Hostname" };
        json!({ "type": kind, "value": a })
    };
    let addresses: Vec<Value> = match (&o.address, &o.address_problem) {
        (_, Some(_)) => Vec::new(),
        (Some(a), None) => vec![address(&a.to_string())],
        (None, None) => options.published.iter().map(|a| address(a)).collect(),
    };
    let listeners: Vec<Value> = own.iter().map(|l| listener_status(l, metadata)).collect();
    let attached = o.sets.iter().filter(|(set, allowed)| *allowed && has_good_listener(o, set)).count();
    let mut conditions = vec![accepted, programmed];
    conditions.extend(o.client_certificate.as_ref().map(|found| match found {
        Ok(_) => condition("ResolvedRefs", true, "ResolvedRefs", ""),
        Err((reason, text)) => condition("ResolvedRefs", false, reason, text),
    }));
    let insecure = |l: &Attached| matches!(l.clients, Clients::Of { insecure: true, .. });
    if o.listeners.iter().any(insecure) {
        let text = "clients without a valid certificate are served";
        conditions.push(condition("InsecureFrontendValidationMode", true, "ConfigurationChanged", text));
    }
    let mut status = json!({ "conditions": conditions, "addresses": addresses, "listeners": listeners });
    if o.gateway.spec.allowed_listeners.namespaces.is_some() {
        status["attachedListenerSets"] = json!(attached);
    }
    StatusUpdate { kind: GatewayKind::Gateway, key: o.key.clone(), status }
}

fn is_of(l: &Attached, set: &Arc<ListenerSet>) -> bool {
    matches!(&l.owner, Owner::Set(s) if Arc::ptr_eq(s, set))
}

fn has_good_listener(o: &Ours, set: &Arc<ListenerSet>) -> bool {
    o.listeners.iter().any(|l| is_of(l, set) && l.works())
}

fn set_status(o: &Ours, set: &Arc<ListenerSet>, allowed: bool) -> StatusUpdate {
    let metadata = &set.metadata;
    let condition = |kind, holds, reason, text: &str| condition(metadata, kind, holds, reason, text);
    let own: Vec<&Attached> = o.listeners.iter().filter(|l| is_of(l, set)).collect();
    let (accepted, programmed) = match (allowed, has_good_listener(o, set)) {
        (false, _) => (
            condition("Accepted", false, "NotAllowed", "the Gateway does not allow it"),
            condition("Programmed", false, "NotAllowed", "the Gateway does not allow it"),
        ),
        (true, false) => (
            condition("Accepted", false, "ListenersNotValid", "none of its listeners can be used"),
            condition("Programmed", false, "ListenersNotValid", "none of its listeners can be used"),
        ),
        (true, true) => {
            (condition("Accepted", true, "Accepted", ""), condition("Programmed", true, "Programmed", ""))
        }
    };
    let listeners: Vec<Value> = own.iter().map(|l| listener_status(l, metadata)).collect();
    let status = json!({ "conditions": [accepted, programmed], "listeners": listeners });
    let key = Key::new(metadata.namespace.as_str(), metadata.name.as_str());
    StatusUpdate { kind: GatewayKind::ListenerSet, key, status }
}

fn route_status(placed: &Placed<'_>, options: &GatewayOptions) -> StatusUpdate {
    let metadata = &placed.route.metadata;
    let resolved = match placed.unresolved.first() {
        Some((reason, text)) => condition(metadata, "ResolvedRefs", false, reason, text),
        None => condition(metadata, "ResolvedRefs", true, "ResolvedRefs", ""),
    };
    let references = placed.route.spec.parent_refs.iter().zip(&placed.parents);
    let parents: Vec<Value> = references
        .filter_map(|(reference, parent)| {
            let (reason, text) = &parent.as_ref()?.accepted;
            let accepted = condition(metadata, "Accepted", *reason == "Accepted", reason, text);
            Some(json!({
                "parentRef": parent_status(reference),
                "controllerName": options.controller,
                "conditions": [accepted, resolved],
            }))
        })
        .collect();
    StatusUpdate { kind: placed.kind, key: placed.key.clone(), status: json!({ "parents": parents }) }
}

/// Returns the statuses of BackendTLSPolicies: one ancestor for each Gateway whose routes use their Services.
fn policy_statuses(
    cluster: Cluster<'_>,
    ours: &[Ours],
    routes: &[Placed<'_>],
    options: &GatewayOptions,
) -> Vec<StatusUpdate> {
    let mut gateways: BTreeMap<&Key, BTreeSet<usize>> = BTreeMap::new();
    let mut in_use: BTreeSet<&Key> = BTreeSet::new();
    for placed in routes {
        let used: BTreeSet<usize> = placed.parents.iter().flatten().map(|p| p.gateway).collect();
        for reference in placed.route.spec.rules.iter().flat_map(|r| &r.backend_refs) {
            let namespace = reference.namespace.as_deref().unwrap_or(&placed.route.metadata.namespace);
            let service = Key::new(namespace, reference.name.as_str());
            let port = cluster.objects.service(&service).and_then(|s| {
                s.object.spec.ports.iter().find(|p| Some(p.port) == reference.port).map(|p| p.name.clone())
            });
            let chosen = backend_tls::policy(cluster, &service, port.as_deref().unwrap_or_default())
                .map(|(key, _)| key);
            in_use.extend(chosen);
            let about = cluster.gateway.tls_policies.iter().filter(|(key, policy)| {
                key.namespace == service.namespace
                    && policy.spec.target_refs.iter().any(|t| t.name == service.name)
            });
            about.for_each(|(key, _)| gateways.entry(key).or_default().extend(&used));
        }
    }
    let status = |(key, used): (&Key, BTreeSet<usize>)| {
        let policy = cluster.gateway.tls_policies.get(key)?;
        let condition =
            |kind, holds, reason, text: &str| condition(&policy.metadata, kind, holds, reason, text);
        let system = policy.spec.validation.well_known_ca_certificates.as_deref() == Some("System");
        let found = if system { Ok(Vec::new()) } else { backend_tls::authorities(cluster, key, policy) };
        let (accepted, resolved) = match found {
            _ if !in_use.contains(key) => (
                condition("Accepted", false, "Conflicted", "another policy is about the same Service"),
                condition("ResolvedRefs", true, "ResolvedRefs", ""),
            ),
            Ok(_) => (
                condition("Accepted", true, "Accepted", ""),
                condition("ResolvedRefs", true, "ResolvedRefs", ""),
            ),
            Err((reason, text)) => (
                condition("Accepted", false, "NoValidCACertificate", &text),
                condition("ResolvedRefs", false, reason, &text),
            ),
        };
        let ancestors: Vec<Value> = used
            .iter()
            .filter_map(|index| ours.get(*index))
            .map(|o| {
                json!({
                    "ancestorRef": { "group": objects::GROUP, "kind": "Gateway", "namespace": o.key.namespace, "name": o.key.name },
                    "controllerName": options.controller,
                    "conditions": [accepted, resolved],
                })
            })
            .collect();
        let status = json!({ "ancestors": ancestors });
        Some(StatusUpdate { kind: GatewayKind::BackendTlsPolicy, key: key.clone(), status })
    };
    gateways.into_iter().filter_map(status).collect()
}
