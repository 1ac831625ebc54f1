//! The servers of the Gateway API, made anew only when something that they depend on has changed.

use super::hosts::{self, Hosts};
use super::{Changes, Source, groups, names, stream};
use crate::gateway::ports::Others;
use crate::gateway::{AllAside, GatewayPart, GatewayService, Gateways, StatusUpdate, StreamGroup};
use crate::ingress::Globals;
use crate::objects::{Kind, Objects};
use crate::problem::Problem;
use crate::tree;
use forebay_conf::Node;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// Path of the file with the servers of all Gateways.
pub(super) const FILE: &str = "gateways/http.conf";

/// Path of the file with their servers of the stream block.
pub(super) const STREAM_FILE: &str = "gateways/stream.conf";

/// User of the groups of all Gateways. No host has such a name.
const USER: &str = " gateways";

/// Versions of what the servers depend on, beside other objects.
#[derive(Clone, Copy, PartialEq)]
struct Seen {
    gateway: u64,
    hosts: u64,
    names: u64,
    has_rest: bool,
}

/// Hosts that Ingresses have.
#[derive(Clone, Copy)]
pub(super) struct Taken<'a> {
    pub(super) hosts: &'a Hosts,
    /// Further names of servers.
    pub(super) names: &'a names::All,
}

impl Taken<'_> {
    pub(super) fn has(self, name: &str) -> bool {
        self.hosts.has(name) || self.names.has(name)
    }

    /// Returns `true` if an Ingress has rules for all hosts without a server.
    pub(super) fn has_rest(self) -> bool {
        self.hosts.has(hosts::ANY)
    }
}

/// The last translation of the Gateway API.
#[derive(Default)]
pub(super) struct Kept {
    gateways: Gateways,
    part: GatewayPart,
    seen: Option<Seen>,
    text: Arc<[u8]>,
    stream_text: Arc<[u8]>,
}

impl Kept {
    /// Begins anew with the addresses of an earlier translation.
    pub(super) fn after(former: Kept) -> Kept {
        let Kept { gateways, text, stream_text, .. } = former;
        Kept { gateways, text, stream_text, ..Kept::default() }
    }

    /// Translates the objects if any of them has changed, or an object that they refer to.
    pub(super) fn update(
        &mut self,
        source: Source<'_>,
        changes: &Changes,
        taken: Taken<'_>,
        groups: &mut groups::Parts,
    ) {
        let objects = source.objects;
        let is_endpoint = |(kind, _): &(Kind, _)| matches!(kind, Kind::EndpointSlice | Kind::Ingress);
        let only_endpoints = matches!(changes, Changes::Some(list) if list.iter().all(is_endpoint));
        let seen = Seen {
            gateway: objects.gateway.version,
            hosts: taken.hosts.changes,
            names: taken.names.changes,
            has_rest: taken.has_rest(),
        };
        if only_endpoints && self.seen == Some(seen) {
            return;
        }
        self.seen = Some(seen);
        let has_name = |name: &str| taken.has(name);
        let others = others(source, &has_name, taken.has_rest(), &objects.gateway.aside);
        self.part = self.gateways.translate(objects, &others);
        groups.replace_specs(&USER.into(), &self.part.specs, source);
        // Words were checked when they were made; what cannot be printed is left out as a whole.
        let text = forebay_conf::print(&self.part.http).unwrap_or_default();
        if *self.text != *text {
            self.text = text.into();
        }
    }

    /// Returns the endpoints of the groups of the stream block.
    pub(super) fn stream_endpoints(&self, source: Source<'_>) -> impl Iterator<Item = super::Group> {
        self.part.stream_groups.iter().map(move |group| {
            let servers = crate::groups::servers(&group.spec, source.objects, &source.globals.options);
            (group.name.as_str().into(), servers.endpoints)
        })
    }

    /// Finds the endpoints of the groups of the stream block, and makes its file.
    pub(super) fn update_stream(&mut self, source: Source<'_>, groups: &mut super::Groups) {
        let Source { objects, globals } = source;
        for group in &self.part.stream_groups {
            let servers = crate::groups::servers(&group.spec, objects, &globals.options);
            Arc::make_mut(groups).insert(group.name.as_str().into(), servers.endpoints);
        }
        let text = stream_file(&self.part, objects, globals);
        if *self.stream_text != *text {
            self.stream_text = text.into();
        }
    }

    /// Returns the file with the servers of the stream block; `None` if there are none.
    pub(super) fn stream_text(&self) -> Option<Arc<[u8]>> {
        (!self.stream_text.is_empty()).then(|| self.stream_text.clone())
    }

    /// Returns the file with the servers; `None` if there are none.
    pub(super) fn text(&self) -> Option<Arc<[u8]>> {
        (!self.text.is_empty()).then(|| self.text.clone())
    }

    /// Returns the files that the servers name, each once.
    pub(super) fn files(&self) -> impl Iterator<Item = (Arc<Path>, Arc<[u8]>)> {
        let files: BTreeMap<&str, &Arc<[u8]>> =
            self.part.files.iter().map(|f| (f.path.as_str(), &f.bytes)).collect();
        files.into_iter().map(|(path, bytes)| (Path::new(path).into(), bytes.clone()))
    }

    /// Returns `true` if answers of services that decide on requests are kept.
    pub(super) fn keeps_answers(&self) -> bool {
        self.part.auth_cache
    }

    /// Returns the problems of objects that are set aside.
    pub(super) fn problems(&self) -> &[Problem] {
        &self.part.problems
    }

    /// Returns the same Gateways, whose addresses are known.
    pub(super) fn gateways(&self) -> &Gateways {
        &self.gateways
    }

    pub(super) fn services(&self) -> Vec<GatewayService> {
        self.part.services.clone()
    }

    pub(super) fn statuses(&self) -> Vec<StatusUpdate> {
        self.part.statuses.clone()
    }
}

/// Returns what listens beside Gateways. `has_rest`: an Ingress has rules for all hosts without a server.
pub(super) fn others<'a>(
    source: Source<'a>,
    has_name: &'a dyn Fn(&str) -> bool,
    has_rest: bool,
    aside: &'a AllAside,
) -> Others<'a> {
    let Source { objects, globals } = source;
    let (tcp, udp) = (stream::tcp_ports(objects, globals), stream::udp_ports(objects, globals));
    Others { globals, has_name, has_rest, tcp, udp, taken: &objects.gateway.taken, aside }
}

/// Makes the file of the stream block.
pub(super) fn stream_file(part: &GatewayPart, objects: &Objects, globals: &Globals) -> Vec<u8> {
    let group = |group: &StreamGroup| {
        let servers = crate::groups::servers(&group.spec, objects, &globals.options);
        tree::stream_group(&group.name, &group.spec, &servers, globals)
    };
    let mut nodes: Vec<Node> = part.stream_groups.iter().map(group).collect();
    nodes.extend(part.stream.iter().cloned());
    forebay_conf::print(&nodes).unwrap_or_default()
}
