//! The Gateway API: Gateways and routes to servers, and their statuses.
//!
//! Each listener's hosts become servers. Rules become `route` lines, in the order of precedence that the API defines, and a named
//! location each. Read in this order: `cluster.rs`, `gateways.rs` and `listener.rs` (what is ours), `attach.rs` and `place.rs` (which
//! routes belong to which listeners), `ports.rs` (which listeners share a port), `servers.rs` (the servers of a port), `rules/` (what a
//! rule does), `route_policy/` (our policies), `streams.rs` (TLS, TCP and UDP), `conditions.rs` (statuses).
//!
//! A rule with anything that is not supported is closed (`rules/faults.rs`). `objects/set.rs` finds fields that no type reads.

mod addresses;
mod attach;
mod backend_tls;
mod certificates;
mod cluster;
mod conditions;
mod features;
mod gateways;
mod listener;
pub mod objects;
mod place;
pub(crate) mod ports;
mod route_policy;
mod rules;
mod servers;
mod services;
mod status;
mod streams;
#[cfg(test)]
mod tests;

pub use features::FEATURES;
pub use objects::{AllAside, Aside, GatewayKind, GatewayObjects, Place};
pub use services::GatewayService;
pub use status::{Complaint, StatusUpdate};

use crate::groups::Spec;
use crate::model::File;
use crate::objects::{Key, Objects};
use crate::problem::Problem;
use addresses::Addresses;
use cluster::Cluster;
use forebay_conf::Node;
use place::Placed;
use ports::{Others, Port};
use route_policy::Policies;
pub(crate) use rules::literal;
use std::collections::{BTreeMap, BTreeSet};
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
    /// Service of the controller, of which each Gateway gets an alias in its namespace. `None`: none gets one.
    pub service: Option<Key>,
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
    /// Services of Gateways.
    pub services: Vec<GatewayService>,
    /// Answers of services that decide on requests are kept.
    pub auth_cache: bool,
    /// Routes by the names of their locations, without the `@`.
    pub places: BTreeMap<String, Place>,
    /// Problems of objects that are set aside.
    pub problems: Vec<Problem>,
}

impl GatewayPart {
    /// Adds the servers of a port.
    fn extend(&mut self, servers: GatewayPart) {
        self.http.extend(servers.http);
        self.files.extend(servers.files);
        self.specs.extend(servers.specs);
        self.places.extend(servers.places);
    }

    fn add_streams(&mut self, streams: Streams) {
        self.stream = streams.nodes;
        self.stream_groups = streams.groups;
        self.files.extend(streams.files);
    }
}

/// Keeps what stays from one translation to the next.
#[derive(Clone, Debug, Default)]
pub struct Gateways {
    addresses: Addresses,
}

impl Gateways {
    /// Translates the objects of the Gateway API.
    pub(crate) fn translate(&mut self, objects: &Objects, others: &Others<'_>) -> GatewayPart {
        let (gateway, options) = (&objects.gateway, &others.globals.options.gateway);
        if options.controller.is_empty() {
            return GatewayPart::default();
        }
        let judge = &others.globals.options.judge;
        let taken = &others.globals.taken;
        let cluster = Cluster { objects, gateway, controller: &options.controller, judge, taken };
        let mut ours = self.ours(cluster, others);
        let mut routes = place::place_routes(cluster, &ours, others);
        ports::yield_hosts(&ours, &mut routes, others);
        count_routes(&mut ours, &routes);
        let policies = Policies::new(cluster, others);
        let mut part = GatewayPart {
            statuses: conditions::statuses(cluster, &ours, &routes, &policies, options),
            services: services::services(&ours, options),
            http: policies.zones(others.globals),
            files: policies.files().collect(),
            auth_cache: policies.keep_answers(),
            problems: refusals(gateway).collect(),
            ..GatewayPart::default()
        };
        part.statuses.extend(policies.statuses(cluster, &ours, &routes));
        for port in Port::all(&ours, others).iter().filter(|port| port.speaks.is_http()) {
            part.extend(servers::servers(cluster, &policies, port, &routes, others));
        }
        part.add_streams(Streams::new(&ours, &policies, &routes, others));
        part.specs.extend(place::specs_of_copies(cluster, &routes));
        let mut known = BTreeSet::new();
        part.specs.retain(|spec| known.insert(spec.name()));
        part
    }

    /// Returns the Gateways that are ours, with their addresses and what is refused of them.
    fn ours(&mut self, cluster: Cluster<'_>, others: &Others<'_>) -> Vec<gateways::Ours> {
        let options = &others.globals.options.gateway;
        let mut ours = gateways::gateways(cluster, options);
        ours.retain(|o| others.aside(GatewayKind::Gateway, &o.key) != Some(&Aside::Absent));
        for o in &mut ours {
            if let Some(why) = others.refusal(GatewayKind::Gateway, &o.key) {
                o.refuse(why);
            }
        }
        self.addresses.allocate(&mut ours, options);
        ports::settle(&mut ours, others);
        let unheard = route_policy::unheard(others.globals);
        ours.iter_mut().for_each(|o| o.notes.extend(unheard.clone()));
        ours
    }
}

/// Returns the problems of the objects that the server has refused.
fn refusals(gateway: &GatewayObjects) -> impl Iterator<Item = Problem> {
    gateway.aside.iter().filter_map(|(place, aside)| {
        let Aside::Closed(why) = aside else { return None };
        let text = format!("the server refuses it, and it is closed: {why}");
        Some(Problem::new(place.0, gateway.metadata(place)?, "spec", text).reason("ObjectRefused"))
    })
}

fn count_routes(ours: &mut [gateways::Ours], routes: &[Placed<'_>]) {
    for parent in routes.iter().flat_map(|r| r.parents.iter().flatten()) {
        let Some(o) = ours.get_mut(parent.gateway) else { continue };
        for (listener, _) in &parent.listeners {
            if let Some(l) = o.listeners.get_mut(*listener) {
                l.routes += 1;
            }
        }
    }
}
