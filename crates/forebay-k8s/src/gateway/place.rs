//! Routes with the listeners that they are attached to, their backends, and what they ask for and do not get.

use super::attach::{self, Parent};
use super::cluster::Cluster;
use super::gateways::{Ours, age};
use super::listener::Speaks;
use super::objects::{BackendRef, GatewayKind, Route, Rule};
use super::ports::Others;
use super::rules::{self, Backend, Choice, Lookup, Unresolved, faults, matches};
use crate::groups::Spec;
use crate::objects::Key;
use std::sync::Arc;

/// Route with the listeners that it is attached to.
pub(crate) struct Placed<'a> {
    pub(crate) key: &'a Key,
    pub(crate) kind: GatewayKind,
    pub(crate) route: &'a Arc<Route>,
    pub(crate) parents: Vec<Option<Parent>>,
    /// Backends of each rule.
    pub(crate) choices: Vec<Vec<Choice>>,
    /// What each rule asks for and does not get. Such a rule is closed.
    pub(crate) faults: Vec<Vec<String>>,
    /// The same for parts of rules: matches and backends, which alone are closed.
    pub(crate) partly: Vec<String>,
    /// The same for the route as a whole. All of it is closed.
    pub(crate) whole: Vec<String>,
    pub(crate) unresolved: Vec<Unresolved>,
}

impl Placed<'_> {
    /// Finds the backends of a rule, and what the rule asks for and does not get.
    fn add_rule(&mut self, lookup: Lookup<'_>, index: usize, rule: &Rule) {
        let kind = self.kind;
        let backends = lookup.of_rule(rule);
        let mut faults = Vec::new();
        if !kind.is_http() && !has_one_tls(&backends.choices) {
            faults.push("its backends have different BackendTLSPolicies".into());
        }
        self.choices.push(backends.choices);
        self.unresolved.extend(backends.unresolved);
        let refused = backends.refused.iter();
        self.partly.extend(refused.map(|fault| format!("rules[{index}].backendRefs: {fault}")));
        for copy in rule.filters.iter().filter_map(|f| f.request_mirror.as_ref()) {
            self.unresolved.extend(self.backend(lookup, &copy.backend_ref).err());
        }
        faults.extend(faults::of_rule(rule, kind));
        for filter in rule.filters.iter().filter_map(|f| f.external_auth.as_ref()) {
            if let Err((reason, text)) = self.backend(lookup, &filter.backend_ref) {
                faults.push(format!("ExternalAuth: {text}"));
                self.unresolved.push((reason, text));
            }
        }
        if let Some(all) = self.faults.get_mut(index) {
            all.extend(faults);
        }
        for (number, found) in rule.matches.iter().enumerate().filter(|_| kind.is_http()) {
            let faults = matches::faults(found, kind).into_iter();
            self.partly.extend(faults.map(|fault| format!("rules[{index}].matches[{number}]: {fault}")));
        }
    }

    /// Finds the backend of a filter.
    fn backend(&self, lookup: Lookup<'_>, reference: &BackendRef) -> Result<Backend, Unresolved> {
        rules::backend(lookup.cluster, self.route, self.kind, reference)
    }

    /// Returns what a rule asks for and does not get, as part of its route.
    pub(crate) fn faults(&self, rule: usize) -> &[String] {
        match self.whole.as_slice() {
            [] => self.faults.get(rule).map(Vec::as_slice).unwrap_or_default(),
            whole => whole,
        }
    }

    /// Returns `true` if nothing of the route is served.
    pub(crate) fn is_closed(&self) -> bool {
        !self.whole.is_empty() || !self.faults.is_empty() && self.faults.iter().all(|f| !f.is_empty())
    }

    /// Returns all that the route asks for and does not get.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let of_rule = |(index, faults): (usize, &Vec<String>)| {
            faults.iter().map(|fault| format!("rules[{index}]: {fault}")).collect::<Vec<_>>()
        };
        let rules = self.faults.iter().enumerate().flat_map(of_rule);
        self.whole.iter().cloned().chain(rules).chain(self.partly.iter().cloned()).collect()
    }
}

/// Finds the listeners of all routes, the oldest route first. Routes of other controllers are left out.
pub(super) fn place_routes<'a>(cluster: Cluster<'a>, ours: &[Ours], others: &Others<'_>) -> Vec<Placed<'a>> {
    let gateway = cluster.gateway;
    let kinds = [
        (GatewayKind::HttpRoute, &gateway.http_routes),
        (GatewayKind::GrpcRoute, &gateway.grpc_routes),
        (GatewayKind::TlsRoute, &gateway.tls_routes),
        (GatewayKind::TcpRoute, &gateway.tcp_routes),
        (GatewayKind::UdpRoute, &gateway.udp_routes),
    ];
    let all =
        kinds.into_iter().flat_map(|(kind, all)| all.iter().map(move |(key, route)| (kind, key, route)));
    let mut routes: Vec<Placed<'a>> =
        all.filter_map(|(kind, key, route)| place(cluster, ours, kind, key, route)).collect();
    for placed in &mut routes {
        placed.whole.extend(others.refusal(placed.kind, placed.key));
    }
    routes.sort_by(|a, b| age(&a.route.metadata, a.key).cmp(&age(&b.route.metadata, b.key)));
    routes
}

fn place<'a>(
    cluster: Cluster<'a>,
    ours: &[Ours],
    kind: GatewayKind,
    key: &'a Key,
    route: &'a Arc<Route>,
) -> Option<Placed<'a>> {
    let references = route.spec.parent_refs.iter();
    let parents: Vec<_> = references.map(|r| attach::parent(cluster, ours, route, kind, r)).collect();
    if parents.iter().all(Option::is_none) {
        return None;
    }
    let rules = &route.spec.rules;
    let mut placed = Placed {
        key,
        kind,
        route,
        parents,
        choices: Vec::new(),
        faults: vec![Vec::new(); rules.len()],
        partly: Vec::new(),
        whole: Vec::new(),
        unresolved: Vec::new(),
    };
    unread_fields(&mut placed);
    if rules.iter().map(|r| r.matches.len().max(1)).sum::<usize>() > faults::MOST_MATCHES {
        placed.whole.push(format!("a route has at most {} matches", faults::MOST_MATCHES));
    }
    let lookup = Lookup { cluster, route, kind, encrypts: encrypts(ours, &placed) };
    for (index, rule) in rules.iter().enumerate() {
        placed.add_rule(lookup, index, rule);
    }
    Some(placed)
}

/// Returns `true` if connections to backends of a route are ours. TLS that passes as it is belongs to the client.
fn encrypts(ours: &[Ours], placed: &Placed<'_>) -> bool {
    let passes = |parent: &Parent| {
        let listeners = ours.get(parent.gateway).map(|o| o.listeners.as_slice()).unwrap_or_default();
        let mut own = parent.listeners.iter().filter_map(|(index, _)| listeners.get(*index));
        own.all(|l| l.speaks == Some(Speaks::TlsPassthrough))
    };
    match placed.kind {
        GatewayKind::UdpRoute => false,
        GatewayKind::TlsRoute => !placed.parents.iter().flatten().all(passes),
        _ => true,
    }
}

/// Returns `true` if all backends that get connections have the same TLS. A server of the stream block has one.
fn has_one_tls(choices: &[Choice]) -> bool {
    let used = choices.iter().filter(|c| c.weight > 0).filter_map(|c| c.backend.as_ref());
    let mut all = used.map(|backend| &backend.tls);
    all.next().is_none_or(|first| all.all(|other| other == first))
}

/// Notes the fields that are not read: what they would change is not known.
fn unread_fields(placed: &mut Placed<'_>) {
    for path in &placed.route.unread {
        let of_rule = path.strip_prefix("rules[").and_then(|rest| rest.split_once(']'));
        let rule = of_rule.and_then(|(index, rest)| Some((index.parse::<usize>().ok()?, rest)));
        match rule.and_then(|(index, rest)| Some((placed.faults.get_mut(index)?, rest))) {
            Some((faults, rest)) => {
                faults.push(format!("the field {} is not supported", rest.trim_start_matches('.')));
            }
            None if path.starts_with(':') => placed.whole.push(format!("it cannot be read{path}")),
            None => placed.whole.push(format!("the field {path} is not supported")),
        }
    }
}

/// Returns the groups that copies of requests go to. Those of backends are known where they are served.
pub(super) fn specs_of_copies<'a>(
    cluster: Cluster<'a>,
    routes: &'a [Placed<'a>],
) -> impl Iterator<Item = Arc<Spec>> + 'a {
    routes.iter().filter(|r| r.kind.is_http()).flat_map(move |r| {
        let copies = r.route.spec.rules.iter().flat_map(|rule| {
            let of_backends = rule.backend_refs.iter().flat_map(|b| &b.filters);
            rule.filters.iter().chain(of_backends).filter_map(|f| f.request_mirror.as_ref())
        });
        copies.filter_map(move |m| Some(rules::backend(cluster, r.route, r.kind, &m.backend_ref).ok()?.spec))
    })
}
