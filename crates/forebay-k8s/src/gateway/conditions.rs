//! Statuses of the objects of the Gateway API.

use super::cluster::Cluster;
use super::gateways::Ours;
use super::listener::{Attached, Clients, Owner};
use super::objects::{self, BackendTlsPolicy, GatewayClass, GatewayKind, ListenerSet};
use super::place::Placed;
use super::route_policy::{ClosedBy, Policies};
use super::status::{StatusUpdate, condition, parent as parent_status};
use super::{FEATURES, GatewayOptions, backend_tls};
use crate::objects::{Key, Metadata};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

/// Makes all statuses.
pub(super) fn statuses(
    cluster: Cluster<'_>,
    ours: &[Ours],
    routes: &[Placed<'_>],
    policies: &Policies,
    options: &GatewayOptions,
) -> Vec<StatusUpdate> {
    let mut all = Vec::new();
    for (key, class) in &cluster.gateway.classes {
        if class.spec.controller_name == options.controller {
            all.push(class_status(key, class, options));
        }
    }
    for o in ours {
        all.push(gateway_status(o, options));
        for (set, allowed) in &o.sets {
            all.push(set_status(o, set, *allowed));
        }
    }
    all.extend(routes.iter().map(|r| route_status(r, policies.settings_of(r, ours), options)));
    all.extend(policy_statuses(cluster, ours, routes, options));
    all.extend(telemetry_statuses(cluster, ours, options));
    all
}

/// Returns the status of a GatewayClass that is ours.
fn class_status(key: &Key, class: &GatewayClass, options: &GatewayOptions) -> StatusUpdate {
    let features: Vec<Value> = FEATURES
        .iter()
        .filter(|name| **name != "GatewayInfrastructure" || options.service.is_some())
        .map(|name| json!({ "name": name }))
        .collect();
    let of = Conditions(&class.metadata);
    let accepted = match &class.spec.parameters_ref {
        None => of.holds("Accepted", "Accepted", ""),
        Some(parameters) => {
            let kind = parameters.kind.as_deref().unwrap_or_default();
            of.fails("Accepted", "InvalidParameters", &format!("parameters of the kind {kind} are not known"))
        }
    };
    let status = json!({ "conditions": [accepted], "supportedFeatures": features });
    StatusUpdate { kind: GatewayKind::GatewayClass, key: key.clone(), status }
}

/// Returns the statuses of XTelemetryPolicies. None is accepted: nothing is traced, and all requests are logged as the ConfigMap says.
fn telemetry_statuses(cluster: Cluster<'_>, ours: &[Ours], options: &GatewayOptions) -> Vec<StatusUpdate> {
    let mut all = Vec::new();
    for (key, policy) in &cluster.gateway.telemetry_policies {
        let is_target = |o: &&Ours| {
            let is = |t: &objects::PolicyTarget| {
                t.group == objects::GROUP && t.kind == "Gateway" && t.name == o.key.name
            };
            o.key.namespace == key.namespace && policy.spec.target_refs.iter().any(is)
        };
        let text = "tracing is not supported; the ConfigMap sets logs";
        let accepted = condition(&policy.metadata, "Accepted", false, "Invalid", text);
        let ancestors: Vec<Value> = ours
            .iter()
            .filter(is_target)
            .map(|o| ancestor(&o.key, options, std::slice::from_ref(&accepted)))
            .collect();
        if !ancestors.is_empty() {
            let status = json!({ "ancestors": ancestors });
            all.push(StatusUpdate { kind: GatewayKind::TelemetryPolicy, key: key.clone(), status });
        }
    }
    all
}

/// Returns what a policy says about a Gateway.
fn ancestor(gateway: &Key, options: &GatewayOptions, conditions: &[Value]) -> Value {
    json!({
        "ancestorRef": { "group": objects::GROUP, "kind": "Gateway", "namespace": gateway.namespace, "name": gateway.name },
        "controllerName": options.controller,
        "conditions": conditions,
    })
}

/// Conditions of one object.
#[derive(Clone, Copy)]
struct Conditions<'a>(&'a Metadata);

impl Conditions<'_> {
    /// Returns a condition that holds.
    fn holds(self, kind: &str, reason: &str, text: &str) -> Value {
        condition(self.0, kind, true, reason, text)
    }

    /// Returns a condition that does not hold.
    fn fails(self, kind: &str, reason: &str, text: &str) -> Value {
        condition(self.0, kind, false, reason, text)
    }
}

/// Returns the status of a listener.
fn listener_status(l: &Attached, of: Conditions<'_>) -> Value {
    let resolved = match (&l.unresolved, l.invalid_kinds) {
        (Some((reason, text)), _) => of.fails("ResolvedRefs", reason, text),
        (None, true) => {
            of.fails("ResolvedRefs", "InvalidRouteKinds", "it names kinds of routes that it cannot have")
        }
        (None, false) => of.holds("ResolvedRefs", "ResolvedRefs", ""),
    };
    let works = l.works() && l.unresolved.is_none() && !(l.invalid_kinds && l.kinds.is_empty());
    let programmed = if works {
        of.holds("Programmed", "Programmed", "")
    } else {
        let reason = l.conflict.as_ref().map_or("Invalid", |(reason, _)| reason);
        of.fails("Programmed", reason, "see the other conditions")
    };
    let conflicted = match &l.conflict {
        Some((reason, text)) => of.holds("Conflicted", reason, text),
        None => of.fails("Conflicted", "NoConflicts", ""),
    };
    json!({
        "name": l.listener.name,
        "supportedKinds": l.kinds.iter().map(|kind| json!({ "group": objects::GROUP, "kind": kind })).collect::<Vec<_>>(),
        "attachedRoutes": l.routes,
        "conditions": [listener_accepted(l, of), programmed, resolved, conflicted],
    })
}

/// Returns the condition `Accepted` of a listener.
fn listener_accepted(l: &Attached, of: Conditions<'_>) -> Value {
    let (reason, text) = if let Some((reason, text)) = &l.conflict {
        (*reason, text.as_str())
    } else if let Some(text) = &l.unavailable {
        ("PortUnavailable", text.as_str())
    } else if l.speaks.is_none() {
        ("UnsupportedProtocol", "this protocol is not served")
    } else if matches!(l.clients, Clients::Unknown) {
        ("NoValidCACertificate", "no authority of clients can be read")
    } else if let Some(text) = &l.unsupported {
        ("UnsupportedValue", text.as_str())
    } else {
        return of.holds("Accepted", "Accepted", foreign_options(l));
    };
    of.fails("Accepted", reason, text)
}

/// Returns what has no effect at a listener.
fn foreign_options(l: &Attached) -> &'static str {
    match l.listener.tls.as_ref().is_some_and(|tls| !tls.options.is_empty()) {
        true => "tls.options are those of other implementations and have no effect",
        false => "",
    }
}

fn gateway_status(o: &Ours, options: &GatewayOptions) -> StatusUpdate {
    let of = Conditions(&o.gateway.metadata);
    let own: Vec<&Attached> = o.listeners.iter().filter(|l| matches!(l.owner, Owner::Gateway)).collect();
    let listeners: Vec<Value> = own.iter().map(|l| listener_status(l, of)).collect();
    let attached = o.sets.iter().filter(|(set, allowed)| *allowed && has_good_listener(o, set)).count();
    let mut conditions = Vec::from(accepted_and_programmed(o, &own, of));
    conditions.extend(o.client_certificate.as_ref().map(|found| match found {
        Ok(_) => of.holds("ResolvedRefs", "ResolvedRefs", ""),
        Err((reason, text)) => of.fails("ResolvedRefs", reason, text),
    }));
    let insecure = |l: &Attached| matches!(l.clients, Clients::Of { insecure: true, .. });
    if o.listeners.iter().any(insecure) {
        let text = "clients without a valid certificate are served";
        conditions.push(of.holds("InsecureFrontendValidationMode", "ConfigurationChanged", text));
    }
    let addresses = addresses(o, options);
    let mut status = json!({ "conditions": conditions, "addresses": addresses, "listeners": listeners });
    if o.gateway.spec.allowed_listeners.namespaces.is_some() {
        status["attachedListenerSets"] = json!(attached);
    }
    StatusUpdate { kind: GatewayKind::Gateway, key: o.key.clone(), status }
}

/// Returns the conditions `Accepted` and `Programmed` of a Gateway. `own`: its listeners without those of ListenerSets.
fn accepted_and_programmed(o: &Ours, own: &[&Attached], of: Conditions<'_>) -> [Value; 2] {
    let is_good = |l: &&Attached| l.has_port() && l.unsupported.is_none();
    let (all_good, some_good) = (own.iter().all(is_good), own.iter().any(is_good));
    let accepted = match &o.problem {
        Some(("Accepted", reason, text)) => of.fails("Accepted", reason, text),
        _ => match &o.refused {
            Some(text) => of.fails("Accepted", "Invalid", text),
            None if all_good => of.holds("Accepted", "Accepted", &o.notes.join("; ")),
            None => {
                let text = "not all of its listeners can be used";
                condition(of.0, "Accepted", some_good, "ListenersNotValid", text)
            }
        },
    };
    let programmed = match &o.problem {
        Some(("Accepted", _, text)) => of.fails("Programmed", "Invalid", text),
        Some((_, reason, text)) => of.fails("Programmed", reason, text),
        None if some_good => of.holds("Programmed", "Programmed", ""),
        None => of.fails("Programmed", "Invalid", "none of its listeners can be used"),
    };
    [accepted, programmed]
}

/// Returns the addresses of a Gateway, as its status has them.
fn addresses(o: &Ours, options: &GatewayOptions) -> Vec<Value> {
    let address = |a: &str| {
        let kind = if a.parse::<IpAddr>().is_ok() { "IPAddress" } else { "Hostname" };
        json!({ "type": kind, "value": a })
    };
    match (&o.address, &o.problem) {
        (_, Some(_)) => Vec::new(),
        (Some(a), None) => vec![address(&a.to_string())],
        (None, None) => options.published.iter().map(|a| address(a)).collect(),
    }
}

fn is_of(l: &Attached, set: &Arc<ListenerSet>) -> bool {
    matches!(&l.owner, Owner::Set(s) if Arc::ptr_eq(s, set))
}

fn has_good_listener(o: &Ours, set: &Arc<ListenerSet>) -> bool {
    o.listeners.iter().any(|l| is_of(l, set) && l.works())
}

fn set_status(o: &Ours, set: &Arc<ListenerSet>, allowed: bool) -> StatusUpdate {
    let metadata = &set.metadata;
    let of = Conditions(metadata);
    let conditions = match (allowed, has_good_listener(o, set)) {
        (false, _) => {
            ["Accepted", "Programmed"].map(|c| of.fails(c, "NotAllowed", "the Gateway does not allow it"))
        }
        (true, false) => ["Accepted", "Programmed"]
            .map(|c| of.fails(c, "ListenersNotValid", "none of its listeners can be used")),
        (true, true) => ["Accepted", "Programmed"].map(|c| of.holds(c, c, "")),
    };
    let own = o.listeners.iter().filter(|l| is_of(l, set));
    let listeners: Vec<Value> = own.map(|l| listener_status(l, of)).collect();
    let status = json!({ "conditions": conditions, "listeners": listeners });
    let key = Key::new(metadata.namespace.as_str(), metadata.name.as_str());
    StatusUpdate { kind: GatewayKind::ListenerSet, key, status }
}

/// Returns the status of a route. `setting`: a setting of the ConfigMap that closes rules of it.
fn route_status(placed: &Placed<'_>, setting: Option<ClosedBy>, options: &GatewayOptions) -> StatusUpdate {
    let of = Conditions(&placed.route.metadata);
    let resolved = match placed.unresolved.first() {
        Some((reason, text)) => of.fails("ResolvedRefs", reason, text),
        None => of.holds("ResolvedRefs", "ResolvedRefs", ""),
    };
    let closing = Closing::of(placed, setting);
    let partly = match &closing {
        Closing::Rules(reason, text) => Some(of.holds("PartiallyInvalid", reason, text)),
        _ => None,
    };
    let references = placed.route.spec.parent_refs.iter().zip(&placed.parents);
    let parents = references.filter_map(|(reference, parent)| {
        let accepted = match (&parent.as_ref()?.accepted, &closing) {
            (("Accepted", _), Closing::All(reason, text)) => of.fails("Accepted", reason, text),
            (("Accepted", text), _) => of.holds("Accepted", "Accepted", text),
            ((reason, text), _) => of.fails("Accepted", reason, text),
        };
        let mut conditions = vec![accepted, resolved.clone()];
        conditions.extend(partly.clone());
        Some(json!({
            "parentRef": parent_status(reference),
            "controllerName": options.controller,
            "conditions": conditions,
        }))
    });
    let status = json!({ "parents": parents.collect::<Vec<Value>>() });
    StatusUpdate { kind: placed.kind, key: placed.key.clone(), status }
}

/// Parts of a route that are closed, with the reason and message of the condition that says so.
enum Closing {
    Nothing,
    Rules(&'static str, String),
    All(&'static str, String),
}

impl Closing {
    fn of(placed: &Placed<'_>, setting: Option<ClosedBy>) -> Closing {
        let complaints = placed.complaints().join("; ");
        let ends = if placed.kind.is_http() { "answers 503" } else { "closes all connections" };
        match (complaints.as_str(), setting) {
            (_, Some(ClosedBy { setting, all: true })) => {
                Closing::All("SettingInvalid", format!("{setting}; the route {ends}"))
            }
            ("", None) => Closing::Nothing,
            ("", Some(ClosedBy { setting, .. })) => {
                Closing::Rules("SettingInvalid", format!("{setting}; these rules answer 503"))
            }
            (text, _) if placed.is_closed() => {
                Closing::All("UnsupportedValue", format!("{text}; the route answers 500"))
            }
            (text, _) => Closing::Rules("UnsupportedValue", format!("{text}; these parts answer 500")),
        }
    }
}

/// Returns the statuses of BackendTLSPolicies: one ancestor for each Gateway whose routes use their Services.
fn policy_statuses(
    cluster: Cluster<'_>,
    ours: &[Ours],
    routes: &[Placed<'_>],
    options: &GatewayOptions,
) -> Vec<StatusUpdate> {
    let used = UsedPolicies::of(cluster, routes);
    let status = |(key, gateways): (&&Key, &BTreeSet<usize>)| {
        let policy = cluster.gateway.tls_policies.get(*key)?;
        let conditions = tls_policy_conditions(cluster, key, policy, used.chosen.contains(key));
        let gateways = gateways.iter().filter_map(|index| ours.get(*index));
        let ancestors: Vec<Value> = gateways.map(|o| ancestor(&o.key, options, &conditions)).collect();
        let status = json!({ "ancestors": ancestors });
        Some(StatusUpdate { kind: GatewayKind::BackendTlsPolicy, key: (*key).clone(), status })
    };
    used.gateways.iter().filter_map(status).collect()
}

/// BackendTLSPolicies about the backends of routes.
#[derive(Default)]
struct UsedPolicies<'a> {
    /// Policies with the indices of the Gateways whose routes use their Services.
    gateways: BTreeMap<&'a Key, BTreeSet<usize>>,
    /// Those that are in effect for a backend.
    chosen: BTreeSet<&'a Key>,
}

impl<'a> UsedPolicies<'a> {
    fn of(cluster: Cluster<'a>, routes: &[Placed<'_>]) -> UsedPolicies<'a> {
        let mut used = UsedPolicies::default();
        for placed in routes.iter().filter(|r| r.kind != GatewayKind::UdpRoute) {
            let gateways: BTreeSet<usize> = placed.parents.iter().flatten().map(|p| p.gateway).collect();
            for reference in placed.route.spec.rules.iter().flat_map(|r| &r.backend_refs) {
                let namespace = reference.namespace.as_deref().unwrap_or(&placed.route.metadata.namespace);
                let service = Key::new(namespace, reference.name.as_str());
                let ports = cluster.objects.service(&service).into_iter().flat_map(|s| &s.object.spec.ports);
                let port = ports.into_iter().find(|p| Some(p.port) == reference.port);
                let port = port.map(|p| p.name.as_str()).unwrap_or_default();
                used.chosen.extend(backend_tls::policy(cluster, &service, port).map(|(key, _)| key));
                for key in policies_about(cluster, &service) {
                    used.gateways.entry(key).or_default().extend(&gateways);
                }
            }
        }
        used
    }
}

/// Returns the BackendTLSPolicies that name a Service.
fn policies_about<'a>(cluster: Cluster<'a>, service: &Key) -> impl Iterator<Item = &'a Key> {
    let policies = cluster.gateway.tls_policies.iter();
    let about = policies.filter(|(key, policy)| {
        key.namespace == service.namespace && policy.spec.target_refs.iter().any(|t| t.name == service.name)
    });
    about.map(|(key, _)| key)
}

/// Returns the conditions `Accepted` and `ResolvedRefs` of a BackendTLSPolicy. `in_use`: it is in effect for a backend.
fn tls_policy_conditions(
    cluster: Cluster<'_>,
    key: &Key,
    policy: &BackendTlsPolicy,
    in_use: bool,
) -> [Value; 2] {
    let of = Conditions(&policy.metadata);
    let resolved = || of.holds("ResolvedRefs", "ResolvedRefs", "");
    if let Some(path) = policy.unread.first() {
        let text = format!("the field {path} is not supported");
        return [of.fails("Accepted", "Invalid", &text), resolved()];
    }
    if !in_use {
        let text = "another policy is about the same Service";
        return [of.fails("Accepted", "Conflicted", text), resolved()];
    }
    let system = policy.spec.validation.well_known_ca_certificates.as_deref() == Some("System");
    match if system { Ok(Vec::new()) } else { backend_tls::authorities(cluster, key, policy) } {
        Ok(_) => [of.holds("Accepted", "Accepted", ""), resolved()],
        Err((reason, text)) => {
            [of.fails("Accepted", "NoValidCACertificate", &text), of.fails("ResolvedRefs", reason, &text)]
        }
    }
}
