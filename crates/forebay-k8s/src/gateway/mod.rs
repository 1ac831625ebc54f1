//! The Gateway API: Gateways and routes to servers, and their statuses.
//!
//! Each listener's hosts become servers. Rules become `route` lines, in the order of precedence that the API defines, and a named
//! location each. Read in this order: `attach.rs` (which routes belong to which listeners), `ports.rs` (which listeners share a port),
//! `servers.rs` (the servers of a port), `rules.rs` (what a rule does), `streams.rs` (TLS, TCP and UDP), `conditions.rs` (statuses).

mod attach;
mod backend_tls;
mod conditions;
pub mod objects;
pub(crate) mod ports;
mod rules;
mod servers;
mod status;
mod streams;
#[cfg(test)]
mod tests;

pub use objects::{GatewayKind, GatewayObjects};
pub use status::{Complaint, StatusUpdate};

use crate::groups::Spec;
use crate::model::File;
use crate::objects::{Key, Objects};
use attach::{Cluster, Ours, Parent, age};
use forebay_conf::Node;
use objects::Route;
use ports::{Others, Port};
pub(crate) use rules::literal;
use rules::{Choice, Unresolved};
use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
pub(crate) use streams::StreamGroup;
use streams::Streams;

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
    /// Directives of the stream level, without their groups.
    pub stream: Vec<Node>,
    /// Groups of the stream level.
    pub(crate) stream_groups: Vec<StreamGroup>,
    /// Files that all of them name.
    pub files: Vec<File>,
    /// Groups of the http level.
    pub specs: Vec<Arc<Spec>>,
    /// Statuses.
    pub statuses: Vec<StatusUpdate>,
}

/// Features that GatewayClasses name in their status.
pub const FEATURES: &[&str] = &[
    "BackendTLSPolicy",
    "BackendTLSPolicySANValidation",
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
    "TCPRoute",
    "TLSRoute",
    "TLSRouteModeTerminate",
    "UDPRoute",
];

/// Route with the listeners that it is attached to.
pub(crate) struct Placed<'a> {
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
    pub(crate) fn translate(&mut self, objects: &Objects, others: &Others<'_>) -> GatewayPart {
        let (gateway, options) = (&objects.gateway, &others.globals.options.gateway);
        if options.controller.is_empty() {
            return GatewayPart::default();
        }
        let cluster = Cluster {
            objects,
            gateway,
            controller: &options.controller,
            judge: &others.globals.options.judge,
        };
        let mut ours = attach::gateways(cluster);
        self.allocate(&mut ours, options);
        ports::settle(&mut ours, others);
        let mut routes = place_routes(cluster, &ours);
        ports::yield_hosts(&ours, &mut routes, others);
        for parent in routes.iter().flat_map(|r| r.parents.iter().flatten()) {
            let Some(o) = ours.get_mut(parent.gateway) else { continue };
            for (listener, _) in &parent.listeners {
                if let Some(l) = o.listeners.get_mut(*listener) {
                    l.routes += 1;
                }
            }
        }
        let mut part = GatewayPart {
            statuses: conditions::statuses(cluster, &ours, &routes, options),
            ..GatewayPart::default()
        };
        if !ours.is_empty() {
            part.http.push(connection_map());
        }
        let mut streams = Streams::default();
        for port in Port::all(&ours, others) {
            if port.speaks.is_http() {
                servers::servers(cluster, &port, &routes, others, &mut part);
            } else {
                streams.port(&port, &routes, others.globals);
            }
        }
        part.stream = streams.nodes;
        part.stream_groups = streams.groups;
        part.files.extend(streams.files);
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
    let mut routes: Vec<Placed<'a>> = all.filter_map(place).collect();
    routes.sort_by(|a, b| age(&a.route.metadata, a.key).cmp(&age(&b.route.metadata, b.key)));
    routes
}

fn specs<'a>(cluster: Cluster<'a>, routes: &'a [Placed<'a>]) -> impl Iterator<Item = Arc<Spec>> + 'a {
    routes.iter().filter(|r| r.kind.is_http()).flat_map(move |r| {
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
