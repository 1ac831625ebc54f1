//! The Gateways that are ours, with their listeners.

use super::GatewayOptions;
use super::certificates::{certificate, verify_clients};
use super::cluster::{Cluster, Referrer};
use super::listener::{Attached, Owner, Speaks, attach};
use super::objects::{Gateway, ListenerSet};
use crate::model::CertificateFiles;
use crate::objects::{Key, Metadata};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

/// Why a Gateway is not served: type and reason of the condition, and a message.
pub(crate) type Problem = (&'static str, &'static str, String);

/// Gateway that is ours.
#[derive(Clone, Debug)]
pub(crate) struct Ours {
    /// Namespace and name.
    pub key: Key,
    /// The object.
    pub gateway: Arc<Gateway>,
    /// Listeners of the Gateway and of its ListenerSets.
    pub listeners: Vec<Attached>,
    /// Address to listen at; `None`: all of this machine.
    pub address: Option<IpAddr>,
    /// Why it is not served.
    pub problem: Option<Problem>,
    /// Why the server refuses it: it is served nowhere, and nobody else gets its hosts.
    pub refused: Option<String>,
    /// What has no effect.
    pub notes: Vec<String>,
    /// ListenerSets that may attach, and those that may not.
    pub sets: Vec<(Arc<ListenerSet>, bool)>,
    /// Certificate that backends see, or why there is none: reason and message.
    pub client_certificate: Option<Result<CertificateFiles, (&'static str, String)>>,
}

/// Returns the Gateways whose class is ours, the oldest first.
pub(crate) fn gateways(cluster: Cluster<'_>, options: &GatewayOptions) -> Vec<Ours> {
    let is_ours =
        |g: &Gateway| {
            let class = Key::new("", g.spec.gateway_class_name.as_str());
            cluster.gateway.classes.get(&class).is_some_and(|c| {
                c.spec.controller_name == cluster.controller && c.spec.parameters_ref.is_none()
            })
        };
    let mut ours: Vec<Ours> = (cluster.gateway.gateways.iter())
        .filter(|(_, g)| is_ours(g))
        .map(|(key, g)| ours(cluster, key, g, options))
        .collect();
    ours.sort_by(|a, b| age(&a.gateway.metadata, &a.key).cmp(&age(&b.gateway.metadata, &b.key)));
    ours
}

impl Ours {
    /// Closes all listeners, since the server refuses the Gateway.
    pub(super) fn refuse(&mut self, why: String) {
        for listener in &mut self.listeners {
            listener.unsupported = Some(why.clone());
        }
        self.refused = Some(why);
    }
}

/// Returns what objects are ordered by: the oldest first, then by name.
pub(crate) fn age<'a>(metadata: &'a Metadata, key: &'a Key) -> (&'a str, &'a Key) {
    (&metadata.creation_timestamp, key)
}

fn ours(cluster: Cluster<'_>, key: &Key, gateway: &Arc<Gateway>, options: &GatewayOptions) -> Ours {
    let sets = listener_sets(cluster, key, gateway);
    let mut listeners = listeners(cluster, key, gateway, &sets);
    let mut notes = Vec::new();
    let problem = refusal(gateway, &mut listeners, &mut notes);
    notes.extend(unheard(gateway).filter(|_| options.service.is_none()));
    Ours {
        client_certificate: client_certificate(cluster, key, gateway),
        key: key.clone(),
        gateway: gateway.clone(),
        listeners,
        address: None,
        problem,
        refused: None,
        notes,
        sets,
    }
}

/// Returns the ListenerSets of a Gateway, the oldest first, and whether each may attach.
fn listener_sets(cluster: Cluster<'_>, key: &Key, gateway: &Gateway) -> Vec<(Arc<ListenerSet>, bool)> {
    let is_parent = |set_key: &Key, set: &ListenerSet| {
        let parent = &set.spec.parent_ref;
        parent.name == key.name
            && parent.namespace.as_deref().unwrap_or(&set_key.namespace) == key.namespace
            && parent.kind.as_deref().unwrap_or("Gateway") == "Gateway"
    };
    let allowed = gateway.spec.allowed_listeners.namespaces.as_ref();
    let mut sets: Vec<(Arc<ListenerSet>, bool)> = (cluster.gateway.listener_sets.iter())
        .filter(|(set_key, set)| is_parent(set_key, set))
        .map(|(set_key, set)| {
            (set.clone(), cluster.allows(allowed, &key.namespace, &set_key.namespace, "None"))
        })
        .collect();
    let name = |set: &ListenerSet| {
        (set.metadata.creation_timestamp.clone(), set.metadata.namespace.clone(), set.metadata.name.clone())
    };
    sets.sort_by_key(|(set, _)| name(set));
    sets
}

/// Returns the listeners of a Gateway and of the ListenerSets that may attach to it.
fn listeners(
    cluster: Cluster<'_>,
    key: &Key,
    gateway: &Gateway,
    sets: &[(Arc<ListenerSet>, bool)],
) -> Vec<Attached> {
    let own = Referrer { kind: "Gateway", namespace: &key.namespace };
    let mut listeners: Vec<Attached> =
        gateway.spec.listeners.iter().map(|l| attach(cluster, l, Owner::Gateway, own)).collect();
    for (set, _) in sets.iter().filter(|(_, allowed)| *allowed) {
        let own = Referrer { kind: "ListenerSet", namespace: &set.metadata.namespace };
        listeners.extend(set.spec.listeners.iter().map(|l| attach(cluster, l, Owner::Set(set.clone()), own)));
    }
    find_conflicts(&mut listeners);
    for l in listeners.iter_mut().filter(|l| l.speaks == Some(Speaks::Https)) {
        verify_clients(cluster, key, gateway, l);
    }
    listeners
}

/// Finds the certificate that backends see. `None`: the Gateway names none.
fn client_certificate(
    cluster: Cluster<'_>,
    key: &Key,
    gateway: &Gateway,
) -> Option<Result<CertificateFiles, (&'static str, String)>> {
    let reference = gateway.spec.tls.backend.as_ref()?.client_certificate_ref.as_ref()?;
    let own = Referrer { kind: "Gateway", namespace: &key.namespace };
    Some(certificate(cluster, reference, own).map_err(|(reason, text)| match reason {
        "RefNotPermitted" => (reason, text),
        _ => ("InvalidClientCertificateRef", text),
    }))
}

/// Fields of a Gateway that are not read and that change nothing of what is served.
const HARMLESS: &[&str] = &["defaultScope"];

/// Returns what a Gateway asks for and does not get, if that closes all of it; marks the listeners that it closes.
fn refusal(gateway: &Gateway, listeners: &mut [Attached], notes: &mut Vec<String>) -> Option<Problem> {
    let mut closed = None;
    for path in &gateway.unread {
        let own = gateway.spec.listeners.len();
        match listener_of(path).filter(|index| *index < own).and_then(|index| listeners.get_mut(index)) {
            Some(l) => l.unsupported = Some(format!("the field {path} is not supported")),
            None if HARMLESS.contains(&path.as_str()) => {
                notes.push(format!("the field {path} has no effect"));
            }
            None => closed = Some(("Accepted", "Invalid", format!("the field {path} is not supported"))),
        }
    }
    close_listeners_of_sets(listeners);
    let parameters = gateway.spec.infrastructure.as_ref().and_then(|wishes| wishes.parameters_ref.as_ref());
    if let Some(parameters) = parameters {
        let kind = parameters.kind.as_deref().unwrap_or_default();
        closed =
            Some(("Accepted", "InvalidParameters", format!("parameters of the kind {kind} are not known")));
    }
    closed
}

/// Marks the listeners of ListenerSets that have a field that is not read.
fn close_listeners_of_sets(listeners: &mut [Attached]) {
    for l in listeners {
        let Owner::Set(set) = &l.owner else { continue };
        let is_own = |path: &&String| {
            let named = listener_of(path).and_then(|index| set.spec.listeners.get(index));
            named.is_none_or(|named| named.name == l.listener.name)
        };
        let unread = set.unread.iter().find(is_own).map(|path| format!("the field {path} is not supported"));
        l.unsupported = unread.or(l.unsupported.take());
    }
}

/// Returns what is said about labels and annotations that no object gets.
fn unheard(gateway: &Gateway) -> Option<String> {
    let wishes = gateway.spec.infrastructure.as_ref()?;
    let some = !(wishes.labels.is_empty() && wishes.annotations.is_empty());
    let text = "labels and annotations of infrastructure have no effect: no Service is made for a Gateway (--gateway-service)";
    some.then(|| text.to_owned())
}

/// Returns the index of the listener that a path is below.
fn listener_of(path: &str) -> Option<usize> {
    path.strip_prefix("listeners[")?.split_once(']')?.0.parse().ok()
}

/// Marks listeners that cannot be told apart. Those of the Gateway, and of older sets, come first and win over those of sets.
fn find_conflicts(listeners: &mut [Attached]) {
    let mut protocols: BTreeMap<(bool, u16), (String, Option<Speaks>)> = BTreeMap::new();
    let mut hosts: BTreeMap<((bool, u16), String), usize> = BTreeMap::new();
    for i in 0..listeners.len() {
        let Some(l) = listeners.get(i) else { continue };
        let (protocol, place) = (protocol(l), (l.port(), l.host()));
        let of_set = matches!(l.owner, Owner::Set(_));
        let first = protocols.entry(l.port()).or_insert_with(|| protocol.clone());
        if *first != protocol {
            let port = l.port();
            mark(listeners, i, "ProtocolConflict");
            if !of_set {
                mark_gateway(listeners, port, first);
            }
            continue;
        }
        if let Some(other) = hosts.get(&place).copied() {
            mark(listeners, i, "HostnameConflict");
            if !of_set {
                mark(listeners, other, "HostnameConflict");
            }
        } else {
            hosts.insert(place, i);
        }
    }
}

/// Returns the protocol of a listener, as far as two listeners of a port have to agree on it.
fn protocol(l: &Attached) -> (String, Option<Speaks>) {
    (l.listener.protocol.clone(), l.speaks.map(Speaks::shared))
}

/// Marks the listeners of the Gateway that have a port for a protocol. Listeners of one Gateway conflict with each other, none wins.
fn mark_gateway(listeners: &mut [Attached], port: (bool, u16), of: &(String, Option<Speaks>)) {
    for i in 0..listeners.len() {
        let same = |l: &Attached| l.port() == port && protocol(l) == *of && matches!(l.owner, Owner::Gateway);
        if listeners.get(i).is_some_and(same) {
            mark(listeners, i, "ProtocolConflict");
        }
    }
}

fn mark(listeners: &mut [Attached], index: usize, reason: &'static str) {
    if let Some(l) = listeners.get_mut(index) {
        l.conflict = Some((reason, "another listener has this port".to_owned()));
    }
}
