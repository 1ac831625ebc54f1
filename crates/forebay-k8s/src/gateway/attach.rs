//! Gateways with their listeners, and the routes that attach to them.

use super::objects::{
    AllowedNamespaces, GROUP, Gateway, GatewayKind, GatewayObjects, Listener, ListenerSet, ObjectRef,
    ParentRef, Route,
};
use crate::groups::short_hash;
use crate::ingress::certificate_files;
use crate::model::{CertificateFiles, File};
use crate::objects::{Key, Metadata, Objects};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

/// What a translation of the Gateway API needs to know.
#[derive(Clone, Copy)]
pub(crate) struct Cluster<'a> {
    /// Services, Secrets, Namespaces.
    pub objects: &'a Objects,
    /// Objects of the Gateway API.
    pub gateway: &'a GatewayObjects,
    /// `spec.controllerName` of the GatewayClasses that are ours.
    pub controller: &'a str,
    /// Judge of certificates and authorities.
    pub judge: &'a crate::judge::Judge,
}

impl Cluster<'_> {
    /// Returns `true` if a ReferenceGrant lets an object refer to one in another namespace.
    pub(crate) fn is_granted(&self, from: (&str, &str, &str), to: (&str, &str), target: &Key) -> bool {
        let (group, kind, namespace) = from;
        if namespace == target.namespace {
            return true;
        }
        self.gateway.grants.iter().filter(|(key, _)| key.namespace == target.namespace).any(|(_, grant)| {
            grant.spec.from.iter().any(|f| f.group == group && f.kind == kind && f.namespace == namespace)
                && grant.spec.to.iter().any(|t| {
                    t.group == to.0 && t.kind == to.1 && t.name.as_ref().is_none_or(|n| *n == target.name)
                })
        })
    }

    /// Returns `true` if objects of a namespace may attach to something in `own`.
    fn allows(&self, allowed: Option<&AllowedNamespaces>, own: &str, namespace: &str, default: &str) -> bool {
        match allowed.and_then(|a| a.from.as_deref()).unwrap_or(default) {
            "All" => true,
            "Same" => namespace == own,
            "Selector" => {
                let Some(selector) = allowed.map(|a| &a.selector) else { return false };
                let labels = self.objects.namespace(namespace).map(|n| n.object.metadata.labels.clone());
                let mut labels = labels.unwrap_or_default();
                // The API server sets this label; manifests without it mean the same.
                labels.insert("kubernetes.io/metadata.name".into(), namespace.to_owned());
                selector.selects(&labels)
            }
            _ => false,
        }
    }
}

/// Object that a listener is written in.
#[derive(Clone, Debug)]
pub(crate) enum Owner {
    /// A Gateway.
    Gateway,
    /// A ListenerSet.
    Set(Arc<ListenerSet>),
}

/// Protocol of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Speaks {
    Http,
    Https,
    /// TLS that ends here.
    TlsTerminate,
    /// TLS that passes as it is.
    TlsPassthrough,
    Tcp,
    Udp,
}

impl Speaks {
    fn of(listener: &Listener) -> Option<Speaks> {
        let mode = listener.tls.as_ref().and_then(|tls| tls.mode.as_deref()).unwrap_or("Terminate");
        Some(match (listener.protocol.as_str(), mode) {
            ("HTTP", _) => Speaks::Http,
            ("HTTPS", "Terminate") => Speaks::Https,
            ("TLS", "Terminate") => Speaks::TlsTerminate,
            ("TLS", "Passthrough") => Speaks::TlsPassthrough,
            ("TCP", _) => Speaks::Tcp,
            ("UDP", _) => Speaks::Udp,
            _ => return None,
        })
    }

    /// Returns the name for messages.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Speaks::Http => "HTTP",
            Speaks::Https => "HTTPS",
            Speaks::TlsTerminate => "TLS (Terminate)",
            Speaks::TlsPassthrough => "TLS (Passthrough)",
            Speaks::Tcp => "TCP",
            Speaks::Udp => "UDP",
        }
    }

    /// Returns the kinds of routes that may attach.
    fn kinds(self) -> &'static [&'static str] {
        match self {
            Speaks::Http | Speaks::Https => &["HTTPRoute", "GRPCRoute"],
            Speaks::TlsTerminate | Speaks::TlsPassthrough => &["TLSRoute"],
            Speaks::Tcp => &["TCPRoute"],
            Speaks::Udp => &["UDPRoute"],
        }
    }

    /// Returns `true` if HTTP is spoken.
    pub(crate) fn is_http(self) -> bool {
        matches!(self, Speaks::Http | Speaks::Https)
    }

    /// Returns `true` if clients tell the name of a host.
    pub(crate) fn has_hosts(self) -> bool {
        !matches!(self, Speaks::Tcp | Speaks::Udp)
    }
}

/// Listener with what follows from the cluster.
#[derive(Clone, Debug)]
pub(crate) struct Attached {
    /// As written.
    pub listener: Listener,
    /// Protocol; `None`: it is not served.
    pub speaks: Option<Speaks>,
    /// Object that it is written in.
    pub owner: Owner,
    /// Namespace of that object.
    pub namespace: String,
    /// Certificates.
    pub certificates: Vec<CertificateFiles>,
    /// Why references to certificates cannot be used: reason and message.
    pub unresolved: Option<(&'static str, String)>,
    /// Kinds of routes that it serves.
    pub kinds: Vec<&'static str>,
    /// It names kinds that it cannot serve.
    pub invalid_kinds: bool,
    /// Another listener has the same port and host, or another protocol at this port: reason and message.
    pub conflict: Option<(&'static str, String)>,
    /// Why something else has the port.
    pub unavailable: Option<String>,
    /// Routes that are attached.
    pub routes: usize,
    /// Certificates that clients have to show.
    pub clients: Clients,
}

/// Verification of clients at a listener.
#[derive(Clone, Debug, Default)]
pub(crate) enum Clients {
    /// They show no certificate.
    #[default]
    Any,
    /// They show one of these authorities. `insecure`: others are served, too.
    Of { authorities: File, insecure: bool },
    /// No authority can be read. Nobody is served.
    Unknown,
}

impl Clients {
    /// Returns `true` if two listeners demand the same of clients.
    pub(crate) fn is_same(&self, other: &Clients) -> bool {
        match (self, other) {
            (Clients::Any, Clients::Any) | (Clients::Unknown, Clients::Unknown) => true,
            (
                Clients::Of { authorities, insecure },
                Clients::Of { authorities: others, insecure: other_insecure },
            ) => authorities.bytes == others.bytes && insecure == other_insecure,
            _ => false,
        }
    }
}

impl Attached {
    /// Returns the port; `true` for UDP, which has ports of its own.
    pub(crate) fn port(&self) -> (bool, u16) {
        (self.listener.protocol == "UDP", self.listener.port)
    }

    /// Returns `true` if the listener is the one, or one of those, that its port belongs to.
    pub(crate) fn has_port(&self) -> bool {
        self.speaks.is_some() && self.conflict.is_none() && self.unavailable.is_none()
    }

    /// Returns `true` if HTTP is spoken at the listener.
    pub(crate) fn is_http(&self) -> bool {
        self.speaks.is_some_and(Speaks::is_http)
    }

    /// Returns `true` if TLS ends at the listener.
    fn ends_tls(&self) -> bool {
        matches!(self.speaks, Some(Speaks::Https | Speaks::TlsTerminate))
    }

    /// Returns `true` if the listener gets requests.
    pub(crate) fn works(&self) -> bool {
        // Without a certificate no handshake can be answered.
        let has_certificate = !self.ends_tls() || !self.certificates.is_empty();
        let knows_clients = !matches!(self.clients, Clients::Unknown);
        self.has_port() && has_certificate && knows_clients
    }

    /// Returns the host in lower case; empty for all.
    pub(crate) fn host(&self) -> String {
        if self.speaks.is_some_and(|speaks| !speaks.has_hosts()) {
            return String::new();
        }
        self.listener.hostname.clone().unwrap_or_default().to_ascii_lowercase()
    }
}

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
    /// Why its wanted addresses cannot be used: type and reason of the condition, and a message.
    pub address_problem: Option<(&'static str, &'static str, String)>,
    /// ListenerSets that may attach, and those that may not.
    pub sets: Vec<(Arc<ListenerSet>, bool)>,
    /// Certificate that backends see, or why there is none: reason and message.
    pub client_certificate: Option<Result<CertificateFiles, (&'static str, String)>>,
}

/// Returns the Gateways whose class is ours, the oldest first.
pub(crate) fn gateways(cluster: Cluster<'_>) -> Vec<Ours> {
    let is_ours = |g: &Gateway| {
        let class = Key::new("", g.spec.gateway_class_name.as_str());
        cluster.gateway.classes.get(&class).is_some_and(|c| c.spec.controller_name == cluster.controller)
    };
    let mut ours: Vec<Ours> = (cluster.gateway.gateways.iter())
        .filter(|(_, g)| is_ours(g))
        .map(|(key, g)| ours(cluster, key, g))
        .collect();
    ours.sort_by(|a, b| age(&a.gateway.metadata, &a.key).cmp(&age(&b.gateway.metadata, &b.key)));
    ours
}

/// Returns what objects are ordered by: the oldest first, then by name.
pub(crate) fn age<'a>(metadata: &'a Metadata, key: &'a Key) -> (&'a str, &'a Key) {
    (&metadata.creation_timestamp, key)
}

fn ours(cluster: Cluster<'_>, key: &Key, gateway: &Arc<Gateway>) -> Ours {
    let mut listeners: Vec<Attached> = (gateway.spec.listeners.iter())
        .map(|l| attach(cluster, l, Owner::Gateway, ("Gateway", &key.namespace)))
        .collect();
    let mut sets: Vec<(Arc<ListenerSet>, bool)> = (cluster.gateway.listener_sets.iter())
        .filter(|(set_key, set)| {
            let parent = &set.spec.parent_ref;
            parent.name == key.name
                && parent.namespace.as_deref().unwrap_or(&set_key.namespace) == key.namespace
                && parent.kind.as_deref().unwrap_or("Gateway") == "Gateway"
        })
        .map(|(set_key, set)| {
            let allowed = gateway.spec.allowed_listeners.namespaces.as_ref();
            (set.clone(), cluster.allows(allowed, &key.namespace, &set_key.namespace, "None"))
        })
        .collect();
    let name = |set: &ListenerSet| {
        (set.metadata.creation_timestamp.clone(), set.metadata.namespace.clone(), set.metadata.name.clone())
    };
    sets.sort_by_key(|(set, _)| name(set));
    for (set, _) in sets.iter().filter(|(_, allowed)| *allowed) {
        let owner = ("ListenerSet", set.metadata.namespace.as_str());
        listeners
            .extend(set.spec.listeners.iter().map(|l| attach(cluster, l, Owner::Set(set.clone()), owner)));
    }
    find_conflicts(&mut listeners);
    for l in listeners.iter_mut().filter(|l| l.speaks == Some(Speaks::Https)) {
        verify_clients(cluster, key, gateway, l);
    }
    let reference = gateway.spec.tls.backend.as_ref().and_then(|b| b.client_certificate_ref.as_ref());
    let client_certificate = reference.map(|reference| {
        certificate(cluster, reference, ("Gateway", &key.namespace)).map_err(|(reason, text)| match reason {
            "RefNotPermitted" => (reason, text),
            _ => ("InvalidClientCertificateRef", text),
        })
    });
    Ours {
        client_certificate,
        key: key.clone(),
        gateway: gateway.clone(),
        listeners,
        address: None,
        address_problem: None,
        sets,
    }
}

/// Finds the authorities of clients.
fn verify_clients(cluster: Cluster<'_>, gateway: &Key, object: &Gateway, l: &mut Attached) {
    let Some(frontend) = &object.spec.tls.frontend else { return };
    let own = frontend.per_port.iter().find(|p| p.port == l.listener.port).map(|p| &p.tls);
    let Some(validation) = &own.unwrap_or(&frontend.default).validation else { return };
    let (mut bytes, mut wrong) = (Vec::new(), None);
    for reference in &validation.ca_certificate_refs {
        match authority(cluster, gateway, reference) {
            Ok(text) => bytes.extend_from_slice(format!("{text}\n").as_bytes()),
            Err(why) => wrong = Some(why),
        }
    }
    if bytes.is_empty() {
        let (reason, text) = wrong.unwrap_or(("InvalidCACertificateRef", "there is no authority".to_owned()));
        l.clients = Clients::Unknown;
        l.unresolved = Some((reason, text));
        return;
    }
    if wrong.is_some() {
        l.unresolved = wrong;
    }
    let name = short_hash(&format!("{gateway} {}", l.listener.port));
    let authorities = File { path: format!("gateways/clients-{name}.pem"), bytes: bytes.into() };
    l.clients =
        Clients::Of { authorities, insecure: validation.mode.as_deref() == Some("AllowInsecureFallback") };
}

fn authority(
    cluster: Cluster<'_>,
    gateway: &Key,
    reference: &ObjectRef,
) -> Result<String, (&'static str, String)> {
    if (reference.group.as_deref().unwrap_or(""), reference.kind.as_deref().unwrap_or("ConfigMap"))
        != ("", "ConfigMap")
    {
        return Err(("InvalidCACertificateKind", format!("\"{}\" is no ConfigMap", reference.name)));
    }
    let key = Key::new(reference.namespace.as_deref().unwrap_or(&gateway.namespace), reference.name.as_str());
    if !cluster.is_granted((GROUP, "Gateway", &gateway.namespace), ("", "ConfigMap"), &key) {
        return Err(("RefNotPermitted", format!("no ReferenceGrant allows the ConfigMap {key}")));
    }
    let text = cluster.objects.config_map(&key).and_then(|m| m.object.data.get("ca.crt").cloned());
    let text = text.filter(|text| text.contains("-----BEGIN CERTIFICATE-----"));
    text.ok_or_else(|| ("InvalidCACertificateRef", format!("ConfigMap {key} has no certificate at ca.crt")))
}

fn attach(
    cluster: Cluster<'_>,
    listener: &Listener,
    owner: Owner,
    (kind, namespace): (&str, &str),
) -> Attached {
    let speaks = Speaks::of(listener);
    let all = speaks.map_or(&[][..], Speaks::kinds);
    let asked = &listener.allowed_routes.kinds;
    let is_asked = |name: &str| {
        asked.is_empty()
            || asked.iter().any(|k| k.kind == name && k.group.as_deref().unwrap_or(GROUP) == GROUP)
    };
    let kinds: Vec<&'static str> = all.iter().copied().filter(|name| is_asked(name)).collect();
    let known = |k: &&super::objects::RouteKind| {
        !(k.group.as_deref().unwrap_or(GROUP) == GROUP && all.contains(&k.kind.as_str()))
    };
    let mut attached = Attached {
        listener: listener.clone(),
        speaks,
        owner,
        namespace: namespace.to_owned(),
        certificates: Vec::new(),
        unresolved: None,
        invalid_kinds: asked.iter().any(|k| known(&k)),
        kinds,
        conflict: None,
        unavailable: None,
        routes: 0,
        clients: Clients::Any,
    };
    if attached.ends_tls() {
        for reference in listener.tls.iter().flat_map(|tls| &tls.certificate_refs) {
            match certificate(cluster, reference, (kind, namespace)) {
                Ok(files) => attached.certificates.push(files),
                Err(why) => attached.unresolved = Some(why),
            }
        }
        if attached.certificates.is_empty() && attached.unresolved.is_none() {
            attached.unresolved = Some(("InvalidCertificateRef", "there is no certificate".into()));
        }
    }
    attached
}

fn certificate(
    cluster: Cluster<'_>,
    reference: &ObjectRef,
    (kind, namespace): (&str, &str),
) -> Result<CertificateFiles, (&'static str, String)> {
    let invalid = |text: String| ("InvalidCertificateRef", text);
    if !reference.group.as_deref().unwrap_or("").is_empty()
        || reference.kind.as_deref().unwrap_or("Secret") != "Secret"
    {
        return Err(invalid(format!("\"{}\" is no Secret", reference.name)));
    }
    let key = Key::new(reference.namespace.as_deref().unwrap_or(namespace), reference.name.as_str());
    if !cluster.is_granted((GROUP, kind, namespace), ("", "Secret"), &key) {
        return Err(("RefNotPermitted", format!("no ReferenceGrant allows the Secret {key}")));
    }
    let Some(secret) = cluster.objects.secret(&key) else {
        return Err(invalid(format!("there is no Secret {key}")));
    };
    certificate_files(&key, &cluster.judge.secret(secret.object.clone()))
        .map_err(|e| invalid(format!("Secret {key}: {e}")))
}

/// Marks listeners that cannot be told apart. Those of the Gateway, and of older sets, come first and win over those of sets.
fn find_conflicts(listeners: &mut [Attached]) {
    let mut protocols: BTreeMap<(bool, u16), (String, Option<Speaks>)> = BTreeMap::new();
    let mut hosts: BTreeMap<((bool, u16), String), usize> = BTreeMap::new();
    for i in 0..listeners.len() {
        let Some(l) = listeners.get(i) else { continue };
        let port = l.port();
        let (protocol, place) = ((l.listener.protocol.clone(), l.speaks), (port, l.host()));
        let of_set = matches!(l.owner, Owner::Set(_));
        let first = protocols.entry(port).or_insert_with(|| protocol.clone());
        if *first != protocol {
            let first = first.clone();
            mark(listeners, i, "ProtocolConflict");
            if !of_set {
                // Listeners of one Gateway conflict with each other, none wins.
                let same = |l: &Attached| {
                    l.port() == port
                        && (&l.listener.protocol, l.speaks) == (&first.0, first.1)
                        && matches!(l.owner, Owner::Gateway)
                };
                let others: Vec<usize> =
                    listeners.iter().enumerate().filter(|(_, l)| same(l)).map(|(i, _)| i).collect();
                others.into_iter().for_each(|other| mark(listeners, other, "ProtocolConflict"));
            }
            continue;
        }
        match hosts.get(&place) {
            None => {
                hosts.insert(place, i);
            }
            Some(other) => {
                let other = *other;
                mark(listeners, i, "HostnameConflict");
                if !of_set {
                    mark(listeners, other, "HostnameConflict");
                }
            }
        }
    }
}

fn mark(listeners: &mut [Attached], index: usize, reason: &'static str) {
    if let Some(l) = listeners.get_mut(index) {
        l.conflict = Some((reason, "another listener has this port".to_owned()));
    }
}

/// Result of a reference of a route to a Gateway.
#[derive(Clone, Debug)]
pub(crate) struct Parent {
    /// Index of the Gateway.
    pub gateway: usize,
    /// Listeners that the route is attached to, with the hosts that both have.
    pub listeners: Vec<(usize, Vec<String>)>,
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
pub(crate) fn intersection(listener: &str, hosts: &[String]) -> Vec<String> {
    if hosts.is_empty() {
        return vec![listener.to_owned()];
    }
    hosts.iter().filter_map(|host| common(listener, &host.to_ascii_lowercase())).collect()
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
            intersection(listener, &hosts.iter().map(|h| (*h).to_owned()).collect::<Vec<_>>())
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
