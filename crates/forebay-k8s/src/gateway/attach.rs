//! The routes that attach to listeners.

use super::cluster::Cluster;
use super::gateways::Ours;
use super::listener::{Attached, Owner};
use super::objects::{GROUP, GatewayKind, ListenerSet, ParentRef, Route};

/// Host that a listener and a route have in common. An empty text stands for all hosts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Common {
    /// The host.
    pub host: String,
    /// Host of the route that makes it one. The more specific of these counts first (GatewayRouteHostnameIntersectionPrecedence).
    pub written: String,
}

/// Result of a reference of a route to a Gateway.
#[derive(Clone, Debug)]
pub(crate) struct Parent {
    /// Index of the Gateway.
    pub gateway: usize,
    /// Listeners that the route is attached to, with the hosts that both have.
    pub listeners: Vec<(usize, Vec<Common>)>,
    /// Reason and message of the condition `Accepted`.
    pub accepted: (&'static str, String),
}

/// Kind of object whose listeners a route attaches to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ParentKind {
    Gateway,
    ListenerSet,
}

/// Reference of a route to a Gateway or ListenerSet.
struct Reference<'a> {
    written: &'a ParentRef,
    kind: ParentKind,
    namespace: &'a str,
}

impl<'a> Reference<'a> {
    /// Returns `None` for a reference to an object of another kind. `own`: namespace of the route.
    fn new(written: &'a ParentRef, own: &'a str) -> Option<Reference<'a>> {
        if written.group.as_deref().unwrap_or(GROUP) != GROUP {
            return None;
        }
        let kind = match written.kind.as_deref().unwrap_or("Gateway") {
            "Gateway" => ParentKind::Gateway,
            "ListenerSet" => ParentKind::ListenerSet,
            _ => return None,
        };
        Some(Reference { written, kind, namespace: written.namespace.as_deref().unwrap_or(own) })
    }

    /// Returns the index of the Gateway that the reference is to, or that the ListenerSet belongs to.
    fn gateway(&self, ours: &[Ours]) -> Option<usize> {
        ours.iter().position(|o| match self.kind {
            ParentKind::Gateway => o.key.namespace == self.namespace && o.key.name == self.written.name,
            ParentKind::ListenerSet => o.sets.iter().any(|(set, allowed)| *allowed && self.is_to(set)),
        })
    }

    fn is_to(&self, set: &ListenerSet) -> bool {
        set.metadata.name == self.written.name && set.metadata.namespace == self.namespace
    }

    /// Returns `true` if the reference names a listener of its Gateway.
    fn names(&self, l: &Attached) -> bool {
        let owned = match &l.owner {
            Owner::Gateway => self.kind == ParentKind::Gateway,
            Owner::Set(set) => self.kind == ParentKind::ListenerSet && self.is_to(set),
        };
        owned
            && self.written.section_name.as_ref().is_none_or(|s| l.listener.name == *s)
            && self.written.port.is_none_or(|p| l.listener.port == p)
    }
}

/// Finds the listeners that a route attaches to by a reference; `None` if the reference is not to one of our Gateways.
pub(crate) fn parent(
    cluster: Cluster<'_>,
    ours: &[Ours],
    route: &Route,
    kind: GatewayKind,
    reference: &ParentRef,
) -> Option<Parent> {
    let own = &route.metadata.namespace;
    let reference = Reference::new(reference, own)?;
    let gateway = reference.gateway(ours)?;
    let candidates: Vec<(usize, &Attached)> =
        ours.get(gateway)?.listeners.iter().enumerate().filter(|(_, l)| reference.names(l)).collect();
    let permits = |l: &Attached| {
        let allowed = &l.listener.allowed_routes.namespaces;
        l.kinds.contains(&kind.name()) && cluster.allows(allowed.as_ref(), &l.namespace, own, "Same")
    };
    let permitted: Vec<_> = candidates.iter().filter(|(_, l)| permits(l)).collect();
    let common = permitted.iter().map(|(index, l)| (*index, intersection(&l.host(), &route.spec.hostnames)));
    let listeners: Vec<_> = common.filter(|(_, hosts)| !hosts.is_empty()).collect();
    let accepted = match (candidates.is_empty(), permitted.is_empty(), listeners.is_empty()) {
        (true, ..) => ("NoMatchingParent", "no listener has this name or port"),
        (_, true, _) => ("NotAllowedByListeners", "no listener allows routes of this kind and namespace"),
        (_, _, true) => ("NoMatchingListenerHostname", "no listener has one of the hosts"),
        _ => ("Accepted", ""),
    };
    Some(Parent { gateway, listeners, accepted: (accepted.0, accepted.1.to_owned()) })
}

/// Returns the hosts that a listener and a route have in common. An empty text stands for all hosts.
pub(crate) fn intersection(listener: &str, hosts: &[String]) -> Vec<Common> {
    if hosts.is_empty() {
        return vec![Common { host: listener.to_owned(), written: String::new() }];
    }
    let of = |written: String| Some(Common { host: common(listener, &written)?, written });
    hosts.iter().filter_map(|host| of(host.to_ascii_lowercase())).collect()
}

fn common(listener: &str, host: &str) -> Option<String> {
    if listener.is_empty() || covers(listener, host) {
        Some(host.to_owned())
    } else if covers(host, listener) {
        Some(listener.to_owned())
    } else {
        None
    }
}

/// Returns `true` if all requests for `host` are also for `pattern`, which may be `*.NAME` or empty for all.
pub(crate) fn covers(pattern: &str, host: &str) -> bool {
    if pattern.is_empty() || pattern == host {
        return true;
    }
    // `*.a` stands for any number of labels, also for those of `*.b.a`.
    let Some(suffix) = pattern.strip_prefix('*') else { return false };
    let name = host.strip_prefix('*').unwrap_or(host);
    name.len() > suffix.len() && name.ends_with(suffix)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_in_common() {
        let hosts = |listener: &str, hosts: &[&str]| {
            let hosts: Vec<String> = hosts.iter().map(|h| (*h).to_owned()).collect();
            intersection(listener, &hosts).into_iter().map(|common| common.host).collect::<Vec<_>>()
        };
        assert_eq!(hosts("", &[]), [""]);
        assert_eq!(hosts("a.example", &[]), ["a.example"]);
        assert_eq!(hosts("a.example", &["a.example", "b.example"]), ["a.example"]);
        assert_eq!(
            hosts("*.example", &["a.example", "b.c.example", "example", "x.test"]),
            ["a.example", "b.c.example"]
        );
        assert_eq!(hosts("a.example", &["*.example"]), ["a.example"]);
        assert_eq!(hosts("*.a.example", &["*.example"]), ["*.a.example"]);
        assert_eq!(hosts("*.example", &["*.a.example"]), ["*.a.example"]);
        assert_eq!(hosts("a.example", &["b.example"]), [""; 0]);
    }
}
