//! The routes that attach to listeners.

use super::cluster::Cluster;
use super::gateways::Ours;
use super::listener::{Attached, Owner};
use super::objects::{GROUP, GatewayKind, ParentRef, Route};

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

/// Finds the listeners that a route attaches to by a reference; `None` if the reference is not to one of our Gateways.
pub(crate) fn parent(
    cluster: Cluster<'_>,
    ours: &[Ours],
    route: &Route,
    kind: GatewayKind,
    reference: &ParentRef,
) -> Option<Parent> {
    let own = &route.metadata.namespace;
    let namespace = reference.namespace.as_deref().unwrap_or(own);
    if reference.group.as_deref().unwrap_or(GROUP) != GROUP {
        return None;
    }
    let set = |o: &Ours| {
        o.sets.iter().any(|(s, allowed)| {
            *allowed && s.metadata.name == reference.name && s.metadata.namespace == namespace
        })
    };
    let (gateway, to_set) = match reference.kind.as_deref().unwrap_or("Gateway") {
        "Gateway" => {
            (ours.iter().position(|o| o.key.namespace == namespace && o.key.name == reference.name)?, false)
        }
        "ListenerSet" => (ours.iter().position(set)?, true),
        _ => return None,
    };
    let is_candidate = |l: &Attached| {
        let owned = match &l.owner {
            Owner::Gateway => !to_set,
            Owner::Set(s) => to_set && s.metadata.name == reference.name && s.metadata.namespace == namespace,
        };
        owned
            && reference.section_name.as_ref().is_none_or(|s| l.listener.name == *s)
            && reference.port.is_none_or(|p| l.listener.port == p)
    };
    let candidates: Vec<(usize, &Attached)> =
        ours.get(gateway)?.listeners.iter().enumerate().filter(|(_, l)| is_candidate(l)).collect();
    let (mut permitted, mut listeners) = (false, Vec::new());
    for (index, l) in &candidates {
        let allowed = &l.listener.allowed_routes.namespaces;
        if !l.kinds.contains(&kind.name()) || !cluster.allows(allowed.as_ref(), &l.namespace, own, "Same") {
            continue;
        }
        permitted = true;
        let hosts = intersection(&l.host(), &route.spec.hostnames);
        if !hosts.is_empty() {
            listeners.push((*index, hosts));
        }
    }
    let accepted = match (candidates.is_empty(), permitted, listeners.is_empty()) {
        (true, ..) => ("NoMatchingParent", "no listener has this name or port".to_owned()),
        (_, false, _) => {
            ("NotAllowedByListeners", "no listener allows routes of this kind and namespace".to_owned())
        }
        (_, _, true) => ("NoMatchingListenerHostname", "no listener has one of the hosts".to_owned()),
        _ => ("Accepted", String::new()),
    };
    Some(Parent { gateway, listeners, accepted })
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
