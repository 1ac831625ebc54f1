//! Servers: the hosts of the listeners of a port, and the rules of the routes that are attached to them.

use super::GatewayPart;
use super::attach::{Common, covers};
use super::cluster::Cluster;
use super::listener::Clients;
use super::objects::{self, GatewayKind, Match, Rule};
use super::place::Placed;
use super::ports::{Member, Others, Port, map_word, specificity};
use super::route_policy::Policies;
use super::rules::{self, Place, Ruled, SHOWN, Served, Serving};
use crate::groups::short_hash;
use crate::ingress::Globals;
use crate::model::File;
use forebay_conf::Node;
use std::collections::{BTreeMap, BTreeSet};

/// One match of a rule, for a host.
struct Candidate<'a> {
    placed: &'a Placed<'a>,
    /// Listener that the route is attached to.
    member: Member<'a>,
    route: usize,
    rule: usize,
    number: usize,
    found: Match,
    /// Host of the route that makes it a candidate.
    host: String,
}

/// Makes the servers of a port.
pub(super) fn servers(
    cluster: Cluster<'_>,
    policies: &Policies,
    port: &Port<'_>,
    routes: &[Placed<'_>],
    others: &Others<'_>,
) -> GatewayPart {
    let mut part = GatewayPart::default();
    let misdirection = Misdirection::new(port);
    part.http.extend(misdirection.as_ref().map(|m| m.map.clone()));
    let hosts = hosts_of_port(port, routes, others);
    // The names of fields are read before the host is known, so that all servers of a port have to agree.
    let signs = hosts.values().flatten().any(names_fields_with_signs);
    for (host, candidates) in hosts {
        let mut first: Vec<Node> = Vec::new();
        if signs {
            first.push(Node::new("ignore_invalid_headers").arg("off"));
            first.push(Node::new("underscores_in_headers").arg("on"));
            first.push(crate::tree::lookalikes(others.globals));
        }
        first.extend(misdirection.as_ref().map(|m| m.check(port.owner(&host))));
        let host = Host { port, name: &host, candidates: &candidates, globals: others.globals };
        let mut server = ServerBuilder::new(host, first, &mut part);
        candidates.iter().for_each(|c| server.add(c, cluster, policies));
        server.finish();
    }
    part
}

/// Returns `true` if a match names a field that is left out of requests by default (nginx: `ignore_invalid_headers`). Requests with it
/// would fall to the next rule.
fn names_fields_with_signs(candidate: &Candidate<'_>) -> bool {
    let plain = |name: &str| name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
    candidate.found.headers.iter().any(|field| !plain(&field.name))
}

/// Check that a request is for the listener whose certificate and whose demands on clients its connection has met (RFC 9110, section
/// 15.5.20). Otherwise one with client certificates could be reached by the name of one without.
struct Misdirection {
    variable: String,
    /// Hosts of the listeners. The place of one is the value of the variable.
    hosts: Vec<String>,
    /// The `map` of the variable, from the server name of the connection.
    map: Node,
}

impl Misdirection {
    /// Returns `None` for a port where nothing can be confused.
    fn new(port: &Port<'_>) -> Option<Misdirection> {
        let hosts = port.hosts();
        // Hosts of Ingresses have other certificates than a listener with a host.
        let confusable = hosts.len() > 1 || port.of_ingresses && hosts.iter().any(|h| !h.is_empty());
        if !port.encrypted() || !confusable {
            return None;
        }
        let variable = format!("$gateway_listener_{}", short_hash(&port.name()));
        let entry =
            |(index, host): (usize, &String)| Node::new(map_word(host).as_str()).arg(index.to_string());
        // A connection without a server name tells nothing.
        let fixed = [Node::new("hostnames"), Node::new("").arg("any")];
        let map = Node::new("map")
            .args(["$ssl_server_name", variable.as_str()])
            .block(fixed.into_iter().chain(hosts.iter().enumerate().map(entry)).collect());
        Some(Misdirection { variable, hosts, map })
    }

    /// Returns the check for the servers of the listeners with a host.
    fn check(&self, owner: Option<String>) -> Node {
        let index = owner.and_then(|owner| self.hosts.iter().position(|host| *host == owner));
        let own = index.map_or_else(|| "none".to_owned(), |index| index.to_string());
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
    member: Member<'a>,
    hosts: &'a [Common],
}

/// Returns the routes at the listeners of a port.
fn routes_at<'a>(port: &Port<'a>, routes: &'a [Placed<'a>]) -> Vec<AtListener<'a>> {
    let mut attached: Vec<AtListener<'a>> = Vec::new();
    for (route, placed) in routes.iter().enumerate() {
        for parent in placed.parents.iter().flatten() {
            attached.extend(parent.listeners.iter().filter_map(|(listener, hosts)| {
                let member = port.member(parent.gateway, *listener)?;
                Some(AtListener { placed, route, member, hosts })
            }));
        }
    }
    // The oldest Gateway of a route counts.
    attached.sort_by_key(|at| (at.route, at.member.gateway));
    attached
}

/// Returns the hosts of the listeners of a port, and of the routes that are attached to them, with the rules of each in order.
fn hosts_of_port<'a>(
    port: &Port<'a>,
    routes: &'a [Placed<'a>],
    others: &Others<'_>,
) -> BTreeMap<String, Vec<Candidate<'a>>> {
    let attached = routes_at(port, routes);
    let mut hosts: BTreeMap<String, Vec<Candidate<'a>>> = BTreeMap::new();
    if !port.of_ingresses {
        // Requests for hosts without a listener get an answer, too.
        hosts.insert(String::new(), Vec::new());
    }
    for member in port.members.iter().filter(|m| m.attached.works()) {
        hosts.entry(member.attached.host()).or_default();
    }
    for at in &attached {
        let own = Some(at.member.attached.host());
        for common in at.hosts.iter().filter(|h| port.owner(&h.host) == own) {
            hosts.entry(common.host.clone()).or_default();
        }
    }
    hosts.retain(|host, _| !others.serve(port.address, port.number, host));
    hosts.iter_mut().for_each(|(host, candidates)| *candidates = candidates_of(host, port, &attached));
    // The server of Ingresses for all other hosts answers what no route wants.
    hosts.retain(|host, candidates| !(port.of_ingresses && host.is_empty() && candidates.is_empty()));
    hosts
}

/// Returns the rules for a host of a port, in order.
fn candidates_of<'a>(host: &str, port: &Port<'a>, attached: &[AtListener<'a>]) -> Vec<Candidate<'a>> {
    let mut candidates = Vec::new();
    let owner = port.owner(host);
    for at in attached.iter().filter(|at| Some(at.member.attached.host()) == owner) {
        for own in at.hosts.iter().filter(|own| covers(&own.host, host)) {
            add_candidates(at, own, &mut candidates);
        }
    }
    sort(&mut candidates);
    candidates
}

fn add_candidates<'a>(at: &AtListener<'a>, common: &Common, all: &mut Vec<Candidate<'a>>) {
    let (placed, route, member) = (at.placed, at.route, at.member);
    let host = &common.written;
    // A route that is closed as a whole is so for all requests.
    let closed = [Rule::default()];
    let rules = if placed.whole.is_empty() { placed.route.spec.rules.as_slice() } else { &closed };
    for (rule, r) in rules.iter().enumerate() {
        let matches = match r.matches.as_slice() {
            [] => vec![Match::default()],
            some => some.to_vec(),
        };
        for (number, found) in matches.into_iter().enumerate() {
            let same = |c: &Candidate<'_>| (c.route, c.rule, c.number) == (route, rule, number);
            match all.iter_mut().find(|c| same(c)) {
                // A route with `*.a` and `x.a` is as specific as the better of them.
                Some(c) if specificity(&c.host) < specificity(host) => c.host.clone_from(host),
                Some(_) => {}
                None => {
                    all.push(Candidate { placed, member, route, rule, number, found, host: host.clone() });
                }
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

/// Host of a port.
#[derive(Clone, Copy)]
struct Host<'a> {
    port: &'a Port<'a>,
    /// Name; empty for all other hosts.
    name: &'a str,
    /// Matches of rules for it, in order.
    candidates: &'a [Candidate<'a>],
    globals: &'a Globals,
}

impl Host<'_> {
    fn is_rest(&self) -> bool {
        self.name.is_empty()
    }

    fn server_name(&self) -> &str {
        match (self.is_rest(), self.port.of_ingresses) {
            (true, false) => "_",
            // The default server is that of Ingresses. A regular expression comes after all names.
            (true, true) => "~^",
            _ => self.name,
        }
    }
}

/// Builder of the server of a host.
struct ServerBuilder<'a> {
    host: Host<'a>,
    nodes: Vec<Node>,
    locations: Vec<Node>,
    /// Clients show certificates.
    verified: bool,
    /// Names of what the server has already.
    made: BTreeSet<String>,
    part: &'a mut GatewayPart,
}

impl<'a> ServerBuilder<'a> {
    /// Begins a server. `first`: directives that come before all others of its own.
    fn new(host: Host<'a>, first: Vec<Node>, part: &'a mut GatewayPart) -> ServerBuilder<'a> {
        let Host { port, globals, .. } = host;
        let mut nodes = port.listen(host.is_rest() && !port.of_ingresses, globals);
        nodes.push(Node::new("server_name").arg(host.server_name()));
        nodes.push(Node::new("http2").arg("on"));
        // The log format of Ingresses shows these.
        let shown = ["$proxy_upstream_name", "$proxy_alternative_upstream_name"];
        nodes.extend(shown.map(|v| Node::new("set").args([v, ""])));
        nodes.extend(first);
        nodes.extend(blocked(globals));
        // Nobody but this server says what a client has shown.
        nodes.push(Node::new("more_clear_input_headers").args(SHOWN.iter().map(|(name, _)| *name)));
        let own = listener(port, host.name, host.candidates);
        if port.encrypted() {
            nodes.extend(tls(port, own, part));
        }
        let verified = own.is_some_and(|own| matches!(own.attached.clients, Clients::Of { .. }));
        let (locations, made) = (Vec::new(), BTreeSet::new());
        let mut server = ServerBuilder { host, nodes, locations, verified, made, part };
        server.probes();
        server
    }

    /// Adds the answer for the probes of balancers, where no route has their path.
    fn probes(&mut self) {
        let is_default = self.host.is_rest() && self.host.port.of_ingresses;
        if is_default && !self.host.candidates.iter().any(is_for_probes) {
            self.nodes.push(Node::new("route").args(["@probes", "$uri", &format!("={PROBES}")]));
            let (log, answer) = (Node::new("access_log").arg("off"), Node::new("return").arg("200"));
            self.locations.push(Node::new("location").arg("@probes").block(vec![log, answer]));
        }
    }

    /// Adds what a match of a rule does.
    fn add(&mut self, c: &Candidate<'_>, cluster: Cluster<'_>, policies: &Policies) {
        let Host { port, globals, .. } = self.host;
        let placed = c.placed;
        let name = format!("{} {}", port.name(), self.host.name);
        let of_place = format!("{name} {} {} {} {}", placed.key, placed.kind.name(), c.rule, c.number);
        self.part.places.insert(short_hash(&of_place), (placed.kind, placed.key.clone()));
        let place = Place {
            server: &name,
            id: short_hash(&of_place),
            port: port.number,
            found: &c.found,
            verified: self.verified,
            certificate: c.member.ours.client_certificate.as_ref().and_then(|found| found.as_ref().ok()),
            index: None,
        };
        let listener = &c.member.attached.listener.name;
        let policy = policies.of(placed, c.rule, &c.member.ours.key, listener);
        let none = Rule::default();
        let ruled = Ruled {
            rule: placed.route.spec.rules.get(c.rule).unwrap_or(&none),
            choices: placed.choices.get(c.rule).map(Vec::as_slice).unwrap_or_default(),
            faults: placed.faults(c.rule),
            policy: &policy,
        };
        let serving = Serving { cluster, globals, route: placed.route, kind: placed.kind };
        let served = rules::serve(serving, ruled, &place, &mut self.made);
        self.take(served);
    }

    fn take(&mut self, served: Served) {
        self.part.http.extend(served.http);
        self.nodes.extend(served.routes);
        self.locations.extend(served.locations);
        self.part.files.extend(served.files);
        self.part.specs.extend(served.specs);
    }

    fn finish(mut self) {
        self.nodes.append(&mut self.locations);
        self.nodes.push(Node::new("location").arg("/").block(vec![Node::new("return").arg("404")]));
        self.part.http.push(Node::new("server").block(self.nodes));
    }
}

/// Returns the checks of what clients say about themselves. The variables are those of Ingresses.
fn blocked(globals: &Globals) -> impl Iterator<Item = Node> {
    let lists = [("block-user-agents", "($block_user_agent)"), ("block-referers", "($block_referer)")];
    let some = lists.into_iter().filter(|(key, _)| globals.settings.list(key).any(crate::tree::is_pattern));
    some.map(|(_, found)| Node::new("if").arg(found).block(vec![Node::new("return").arg("403")]))
}

/// Path that balancers ask whether this node answers, where no host is meant.
const PROBES: &str = "/healthz";

/// Returns `true` if a match names the path of the probes of balancers itself.
fn is_for_probes(candidate: &Candidate<'_>) -> bool {
    let path = candidate.found.path.as_ref().and_then(|path| path.value.as_deref());
    path.is_some_and(|path| path.trim_end_matches('/') == PROBES)
}

/// Returns the listener of a server: the one that its oldest route is attached to, else the oldest one with its host. All of these
/// demand the same of clients.
fn listener<'a>(port: &Port<'a>, host: &str, candidates: &[Candidate<'a>]) -> Option<Member<'a>> {
    let owner = port.owner(host);
    let of_route = candidates.iter().min_by_key(|c| c.route).map(|c| c.member);
    let mut working = port.members.iter().copied().filter(|m| m.attached.works());
    of_route.or_else(|| working.find(|m| Some(m.attached.host()) == owner))
}

/// Returns the directives for the certificate of a server, and for those of clients. `own`: its listener.
fn tls(port: &Port<'_>, own: Option<Member<'_>>, part: &mut GatewayPart) -> Vec<Node> {
    let mut nodes = Vec::new();
    let mut working = port.members.iter().copied().filter(|m| m.attached.works());
    // A handshake needs a certificate even to be refused.
    let Some(listener) = own.or_else(|| working.next()).map(|m| m.attached) else { return nodes };
    for files in &listener.certificates {
        nodes.push(Node::new("ssl_certificate").arg(files.chain.path.as_str()));
        nodes.push(Node::new("ssl_certificate_key").arg(files.key.path.as_str()));
        part.files.extend([files.chain.clone(), files.key.clone()]);
    }
    if let Clients::Of { authorities, insecure } = &listener.clients {
        nodes.extend(verification(authorities, *insecure));
        part.files.push(authorities.clone());
    }
    if own.is_none() {
        // No listener has this name.
        nodes.push(Node::new("ssl_reject_handshake").arg("on"));
    }
    nodes
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
