//! Servers: the hosts of listeners, and the rules of the routes that are attached to them.

use super::attach::{Attached, Clients, Cluster, Ours, covers};
use super::objects::{self, GatewayKind, Match, Rule};
use super::rules::{self, Place};
use super::{GatewayPart, Placed};
use crate::model::{CertificateFiles, File};
use forebay_conf::Node;
use std::collections::BTreeMap;
use std::net::IpAddr;

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
pub(super) fn servers(
    cluster: Cluster<'_>,
    (index, o): (usize, &Ours),
    routes: &[Placed<'_>],
    part: &mut GatewayPart,
) {
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
