//! What locations of the Gateway API have in common with those of Ingresses: the directives of a policy.

use super::{Out, access, location};
use crate::ingress::Globals;
use crate::model::{Action, HostName, Networks, Origin, PathMatch, Policy, Protocol, Route, Server, Tls};
use forebay_conf::Node;
use std::collections::BTreeSet;
use std::sync::Arc;

/// The checks of access of a policy.
#[derive(Clone, Debug, Default)]
pub(crate) struct Guard {
    /// Networks that are let in. They hold for requests that the other checks do not hold for, too.
    pub lists: Vec<Node>,
    /// All checks.
    pub gate: Vec<Node>,
    /// Fields of requests to the upstream that checks give.
    pub fields: Vec<(String, String)>,
    /// Locations that the checks need.
    pub helpers: Vec<Node>,
    /// Directives of the http level.
    pub http: Vec<Node>,
}

/// Makes the checks of a policy for a path of a server. `made` has the names of what the server has already.
pub(crate) fn guard(
    server: &str,
    path: &str,
    policy: &Arc<Policy>,
    globals: &Globals,
    made: &mut BTreeSet<String>,
) -> Guard {
    let server = named(server);
    let path = if path.is_empty() { "/" } else { path };
    let own_made = std::mem::take(made);
    let mut out = Out { globals, server: &server, http: Vec::new(), helpers: Vec::new(), made: own_made };
    let mut guard = Guard::default();
    let networks: Networks = policy.networks.clone();
    let only_networks = Policy { id: policy.id.clone(), networks, ..Policy::default() };
    access::checks(&mut out, &guarded(path, Arc::new(only_networks)), &mut guard.lists);
    let all = guarded(path, policy.clone());
    access::checks(&mut out, &all, &mut guard.gate);
    guard.fields = access::authority(&mut out, &all, &mut guard.gate);
    // Bodies are measured where the request is first.
    let settings = settings(policy, Protocol::Http).into_iter();
    guard.gate.extend(settings.filter(|n| n.name == b"client_max_body_size"));
    guard.helpers = out.helpers;
    guard.http = out.http;
    *made = out.made;
    guard
}

/// Returns a server that has nothing but a name.
fn named(name: &str) -> Server {
    Server {
        host: HostName::Name(name.to_owned()),
        aliases: Vec::new(),
        tls: Tls::default(),
        routes: Vec::new(),
        regex: false,
        app_root: None,
        redirected_from: None,
        wants_tls: false,
        zones: Vec::new(),
        snippet: Vec::new(),
    }
}

/// Returns a route for a path with a policy.
fn guarded(path: &str, policy: Arc<Policy>) -> Route {
    Route {
        path: PathMatch::Prefix(path.to_owned()),
        slash: false,
        origin: Origin::default(),
        action: Action::Answer(503),
        policy,
    }
}

/// Returns the directives of one word and the like, with the names that a protocol has for them.
pub(crate) fn settings(policy: &Policy, protocol: Protocol) -> Vec<Node> {
    let mut nodes = Vec::new();
    location::plain(protocol, &policy.plain, &mut nodes);
    nodes
}

/// Returns the zones of the limits of a policy.
pub(crate) fn zones(policy: &Policy, globals: &Globals) -> Vec<Node> {
    let mut nodes = Vec::new();
    access::zones(policy, globals, &mut nodes);
    nodes
}
