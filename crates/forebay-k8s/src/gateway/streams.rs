//! Servers of the stream block: TLSRoutes, TCPRoutes and UDPRoutes.
//!
//! A listener without names of hosts has one route, the oldest. TLS that passes as it is goes by the name in its handshake, from a `map`;
//! TLS that ends here has a server for each host, with the certificate of its listener. Where a port has both, hosts whose TLS passes
//! have servers, too (`ssl_passthrough`).

use super::attach::{Common, covers};
use super::gateways::Ours;
use super::listener::Speaks;
use super::place::Placed;
use super::ports::{Member, Others, Port, map_word, specificity};
use super::route_policy::Policies;
use super::rules::{percent, tls};
use crate::groups::{Spec, short_hash};
use crate::ingress::Globals;
use crate::model::File;
use forebay_conf::Node;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Group without servers. A connection that is passed to it is closed.
const NONE: &str = "gateway_none";

/// Time after which a UDP session without datagrams ends.
const UDP_IDLE: &str = "60s";

/// Group of the stream block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StreamGroup {
    /// Name. No group of the http block, and no other one of the stream block has it.
    pub name: String,
    /// What it is made from.
    pub spec: Arc<Spec>,
}

/// Directives of the stream block while they are made.
#[derive(Default)]
pub(super) struct Streams {
    /// Variables, and behind them the servers.
    pub nodes: Vec<Node>,
    /// Groups that are named.
    pub groups: Vec<StreamGroup>,
    /// Certificates and keys.
    pub files: Vec<File>,
    /// Variables and groups that have been made.
    made: BTreeSet<String>,
}

/// Route at a listener, with the hosts that both have.
struct Attachment<'a> {
    placed: &'a Placed<'a>,
    member: Member<'a>,
    hosts: &'a [Common],
}

impl Attachment<'_> {
    /// Returns `true` if TLS passes as it is.
    fn passes(&self) -> bool {
        self.member.attached.speaks == Some(Speaks::TlsPassthrough)
    }
}

/// Returns the routes at a port, the oldest first.
fn attachments<'a>(port: &Port<'a>, routes: &'a [Placed<'a>]) -> Vec<Attachment<'a>> {
    let mut all = Vec::new();
    for placed in routes {
        for parent in placed.parents.iter().flatten() {
            all.extend(parent.listeners.iter().filter_map(|(listener, hosts)| {
                let member = port.member(parent.gateway, *listener)?;
                Some(Attachment { placed, member, hosts })
            }));
        }
    }
    all
}

/// Returns the hosts of the listeners and routes of a port, with the route of each: the one with the most specific host, then the oldest.
fn hosts<'a, 'r>(
    port: &Port<'a>,
    attached: &'r [Attachment<'a>],
) -> BTreeMap<String, Option<&'r Attachment<'a>>> {
    let mut hosts: BTreeSet<String> = port.hosts().into_iter().collect();
    for at in attached {
        let own = at.member.attached.host();
        let of_listener = at.hosts.iter().map(|h| &h.host).filter(|h| port.owner(h).as_ref() == Some(&own));
        hosts.extend(of_listener.cloned());
    }
    let route = |host: &str| {
        let owner = port.owner(host);
        let of = |at: &Attachment<'_>| {
            let own = at.hosts.iter().filter(|own| covers(&own.host, host));
            own.map(|own| (specificity(&own.host), specificity(&own.written))).max()
        };
        let here = attached.iter().filter(|at| Some(at.member.attached.host()) == owner);
        // Of equals, the first stays.
        here.filter_map(|at| Some((of(at)?, at)))
            .reduce(|best, next| if next.0 > best.0 { next } else { best })
            .map(|(_, at)| at)
    };
    hosts.into_iter().map(|host| (host.clone(), route(&host))).collect()
}

impl Streams {
    /// Makes the servers of all ports.
    pub(super) fn new(
        ours: &[Ours],
        policies: &Policies,
        routes: &[Placed<'_>],
        others: &Others<'_>,
    ) -> Streams {
        let mut streams = Streams::default();
        for port in Port::all(ours, others).iter().filter(|port| !port.speaks.is_http()) {
            streams.port(policies, port, &attachments(port, routes), others.globals);
        }
        streams
    }

    /// Makes the servers of a port.
    fn port(&mut self, policies: &Policies, port: &Port<'_>, attached: &[Attachment<'_>], globals: &Globals) {
        // Without a route nobody listens: connections are refused.
        let Some(first) = attached.first() else { return };
        match port.speaks {
            // A server has one list of networks.
            Speaks::TlsPassthrough | Speaks::TlsTerminate
                if port.encrypted()
                    || attached.iter().any(|at| networks(policies, at) != Some(Vec::new())) =>
            {
                self.ends(policies, port, attached, globals);
            }
            Speaks::TlsPassthrough | Speaks::TlsTerminate => self.by_name(port, attached, globals),
            _ => {
                let mut nodes = self.passes(policies, first);
                if port.speaks == Speaks::Udp {
                    nodes.push(Node::new("proxy_timeout").arg(UDP_IDLE));
                }
                self.server(port.listen(false, globals), nodes);
            }
        }
    }

    /// Makes the server of a port where all TLS passes as it is.
    fn by_name(&mut self, port: &Port<'_>, attached: &[Attachment<'_>], globals: &Globals) {
        let variable = format!("$gateway_tls_{}", short_hash(&port.name()));
        let mut entries = vec![Node::new("hostnames")];
        let mut rest = NONE.to_owned();
        for (host, at) in hosts(port, attached) {
            let target = at.map_or_else(|| NONE.to_owned(), |at| self.target(at).0);
            if host.is_empty() {
                rest = target;
            } else {
                entries.push(Node::new(map_word(&host).as_str()).arg(target));
            }
        }
        entries.push(Node::new("default").arg(rest));
        let map = Node::new("map").args(["$ssl_preread_server_name", variable.as_str()]);
        self.nodes.push(map.block(entries));
        let read = Node::new("ssl_preread").arg("on");
        self.server(port.listen(false, globals), vec![read, pass(&variable)]);
    }

    /// Makes the servers of a port where TLS ends.
    fn ends(&mut self, policies: &Policies, port: &Port<'_>, attached: &[Attachment<'_>], globals: &Globals) {
        let mut hosts = hosts(port, attached);
        hosts.entry(String::new()).or_default();
        for (host, at) in hosts {
            let rest = host.is_empty();
            let mut nodes = vec![Node::new("server_name").arg(if rest { "_" } else { host.as_str() })];
            if let Some(at) = at {
                match at.passes() {
                    true => nodes.push(Node::new("ssl_passthrough").arg("on")),
                    false => nodes.extend(self.certificates(at)),
                }
                nodes.extend(self.passes(policies, at));
            } else {
                nodes.push(Node::new("ssl_reject_handshake").arg("on"));
                nodes.push(Node::new("return").arg(""));
            }
            self.server(port.listen(rest, globals), nodes);
        }
    }

    /// Returns the directives for the certificates of a listener.
    fn certificates(&mut self, at: &Attachment<'_>) -> Vec<Node> {
        let mut nodes = Vec::new();
        for files in &at.member.attached.certificates {
            nodes.push(Node::new("ssl_certificate").arg(files.chain.path.as_str()));
            nodes.push(Node::new("ssl_certificate_key").arg(files.key.path.as_str()));
            self.files.extend([files.chain.clone(), files.key.clone()]);
        }
        nodes
    }

    fn server(&mut self, listen: Vec<Node>, nodes: Vec<Node>) {
        if self.made.insert(NONE.to_owned()) {
            let none = vec![Node::new("fallback").arg("off")];
            self.nodes.insert(0, Node::new("upstream").arg(NONE).block(none));
        }
        self.nodes.push(Node::new("server").block(listen.into_iter().chain(nodes).collect()));
    }

    /// Returns the directives that pass the connections of a route on, from the networks that are let in.
    fn passes(&mut self, policies: &Policies, at: &Attachment<'_>) -> Vec<Node> {
        let Some(mut nodes) = networks(policies, at) else { return vec![pass(NONE)] };
        let (target, encryption) = self.target(at);
        nodes.extend(encryption);
        nodes.push(pass(&target));
        nodes
    }

    /// Returns what the connections of a route are passed to: a group, or the variable that chooses one; and the directives for TLS to it.
    fn target(&mut self, at: &Attachment<'_>) -> (String, Vec<Node>) {
        let placed = at.placed;
        if !placed.faults(0).is_empty() {
            return (NONE.to_owned(), Vec::new());
        }
        let choices = placed.choices.first().map(Vec::as_slice).unwrap_or_default();
        let backend = choices.iter().filter(|c| c.weight > 0).find_map(|c| c.backend.as_ref());
        let mut nodes = Vec::new();
        if let Some(backend) = backend.filter(|b| b.tls.is_some() && !at.passes()) {
            let certificate =
                at.member.ours.client_certificate.as_ref().and_then(|found| found.as_ref().ok());
            nodes.push(Node::new("proxy_ssl").arg("on"));
            nodes.extend(tls::encryption("proxy", backend, certificate, &mut self.files));
        }
        (self.backends(placed), nodes)
    }

    fn backends(&mut self, placed: &Placed<'_>) -> String {
        // A route of these kinds has no conditions, so that only its first rule can be met.
        let choices = placed.choices.first().map(Vec::as_slice).unwrap_or_default();
        let used = choices.iter().filter(|c| c.weight > 0);
        let mut targets: Vec<(u32, String)> = used
            .map(|c| match &c.backend {
                Some(backend) => (c.weight, self.group(&backend.spec)),
                None => (c.weight, NONE.to_owned()),
            })
            .collect();
        if let [] | [_] = targets.as_slice() {
            return targets.pop().map_or_else(|| NONE.to_owned(), |(_, target)| target);
        }
        let variable = format!("$choice_{}", short_hash(&format!("{} {}", placed.kind.name(), placed.key)));
        if self.made.insert(variable.clone()) {
            // No two sessions have the same text.
            let text = "$remote_addr $remote_port $connection";
            let parts = shares(targets);
            self.nodes.push(Node::new("split_clients").args([text, variable.as_str()]).block(parts));
        }
        variable
    }

    fn group(&mut self, spec: &Arc<Spec>) -> String {
        let name = format!("gateway_{}", spec.name());
        if self.made.insert(name.clone()) {
            self.groups.push(StreamGroup { name: name.clone(), spec: spec.clone() });
        }
        name
    }
}

/// Returns the networks that policies and the ConfigMap let in; their other checks are about requests. `None`: one of them closes the
/// route.
fn networks(policies: &Policies, at: &Attachment<'_>) -> Option<Vec<Node>> {
    let listener = &at.member.attached.listener.name;
    let applied = policies.of(at.placed, 0, &at.member.ours.key, listener);
    let networks = &applied.policy.networks;
    let line = |name: &str, network: &String| Node::new(name).arg(network.as_str());
    let mut nodes: Vec<Node> = networks.deny.iter().map(|n| line("deny", n)).collect();
    if !networks.allow.is_empty() {
        nodes.extend(networks.allow.iter().map(|n| line("allow", n)));
        nodes.push(Node::new("deny").arg("all"));
    }
    (!applied.is_closed()).then_some(nodes)
}

/// Returns the entries of `split_clients` for targets with their weights.
fn shares(targets: Vec<(u32, String)>) -> Vec<Node> {
    let total: u64 = targets.iter().map(|(weight, _)| u64::from(*weight)).sum();
    let last = targets.len() - 1;
    let entry = |(index, (weight, target)): (usize, (u32, String))| {
        let share = if index == last { "*".to_owned() } else { percent(u64::from(weight), total) };
        // A share that is rounded to nothing cannot be written.
        (share != "0.00%").then(|| Node::new(share.as_str()).arg(target))
    };
    targets.into_iter().enumerate().filter_map(entry).collect()
}

fn pass(target: &str) -> Node {
    Node::new("proxy_pass").arg(target)
}
