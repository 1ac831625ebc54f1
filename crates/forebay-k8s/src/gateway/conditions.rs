//! Statuses of the objects of the Gateway API.

use super::cluster::Cluster;
use super::gateways::Ours;
use super::listener::{Attached, Clients, Owner};
use super::objects::{self, GatewayKind, ListenerSet};
use super::place::Placed;
use super::route_policy::Policies;
use super::status::{StatusUpdate, condition, parent as parent_status};
use super::{FEATURES, GatewayOptions, backend_tls};
use crate::objects::Key;
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
        if class.spec.controller_name != options.controller {
            continue;
        }
        let features: Vec<Value> = FEATURES
            .iter()
            .filter(|name| **name != "GatewayInfrastructure" || options.service.is_some())
            .map(|name| json!({ "name": name }))
            .collect();
        let accepted = match &class.spec.parameters_ref {
            None => condition(&class.metadata, "Accepted", true, "Accepted", ""),
            Some(parameters) => {
                let kind = parameters.kind.as_deref().unwrap_or_default();
                let text = format!("parameters of the kind {kind} are not known");
                condition(&class.metadata, "Accepted", false, "InvalidParameters", &text)
            }
        };
        let status = json!({ "conditions": [accepted], "supportedFeatures": features });
        all.push(StatusUpdate { kind: GatewayKind::GatewayClass, key: key.clone(), status });
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

/// Returns the status of a listener.
fn listener_status(l: &Attached, metadata: &crate::objects::Metadata) -> Value {
    let condition = |kind, holds, reason, text: &str| condition(metadata, kind, holds, reason, text);
    let resolved = match (&l.unresolved, l.invalid_kinds) {
        (Some((reason, text)), _) => condition("ResolvedRefs", false, reason, text),
        (None, true) => condition(
            "ResolvedRefs",
            false,
            "InvalidRouteKinds",
            "it names kinds of routes that it cannot have",
        ),
        (None, false) => condition("ResolvedRefs", true, "ResolvedRefs", ""),
    };
    let accepted = match (l.speaks.is_some(), &l.conflict) {
        (_, Some((reason, text))) => condition("Accepted", false, reason, text),
        _ if l.unavailable.is_some() => {
            condition("Accepted", false, "PortUnavailable", l.unavailable.as_deref().unwrap_or_default())
        }
        (true, None) if matches!(l.clients, Clients::Unknown) => {
            condition("Accepted", false, "NoValidCACertificate", "no authority of clients can be read")
        }
        (false, None) => condition("Accepted", false, "UnsupportedProtocol", "this protocol is not served"),
        (true, None) => match &l.unsupported {
            Some(text) => condition("Accepted", false, "UnsupportedValue", text),
            None => condition("Accepted", true, "Accepted", foreign_options(l)),
        },
    };
    let works = l.works() && l.unresolved.is_none() && !(l.invalid_kinds && l.kinds.is_empty());
    let programmed = if works {
        condition("Programmed", true, "Programmed", "")
    } else {
        let reason = l.conflict.as_ref().map_or("Invalid", |(reason, _)| reason);
        condition("Programmed", false, reason, "see the other conditions")
    };
    let conflicted = match &l.conflict {
        Some((reason, text)) => condition("Conflicted", true, reason, text),
        None => condition("Conflicted", false, "NoConflicts", ""),
    };
    let kinds: Vec<Value> =
        l.kinds.iter().map(|kind| json!({ "group": objects::GROUP, "kind": kind })).collect();
    json!({
        "name": l.listener.name,
        "supportedKinds": kinds,
        "attachedRoutes": l.routes,
        "conditions": [accepted, programmed, resolved, conflicted],
    })
}

/// Returns what has no effect at a listener.
fn foreign_options(l: &Attached) -> &'static str {
    match l.listener.tls.as_ref().is_some_and(|tls| !tls.options.is_empty()) {
        true => "tls.options are those of other implementations and have no effect",
        false => "",
    }
}

fn gateway_status(o: &Ours, options: &GatewayOptions) -> StatusUpdate {
    let metadata = &o.gateway.metadata;
    let condition = |kind, holds, reason, text: &str| condition(metadata, kind, holds, reason, text);
    let own: Vec<&Attached> = o.listeners.iter().filter(|l| matches!(l.owner, Owner::Gateway)).collect();
    let is_good = |l: &&Attached| l.has_port() && l.unsupported.is_none();
    let (all_good, some_good) = (own.iter().all(is_good), own.iter().any(is_good));
    let refused = |kind: &str| o.problem.as_ref().filter(|(of, _, _)| *of == kind);
    let accepted = match (refused("Accepted"), all_good) {
        (Some((_, reason, text)), _) => condition("Accepted", false, reason, text),
        (None, _) if o.refused.is_some() => {
            condition("Accepted", false, "Invalid", o.refused.as_deref().unwrap_or_default())
        }
        (None, true) => condition("Accepted", true, "Accepted", &o.notes.join("; ")),
        (None, false) => {
            condition("Accepted", some_good, "ListenersNotValid", "not all of its listeners can be used")
        }
    };
    let programmed = match &o.problem {
        Some(("Accepted", _, text)) => condition("Programmed", false, "Invalid", text),
        Some((_, reason, text)) => condition("Programmed", false, reason, text),
        None if some_good => condition("Programmed", true, "Programmed", ""),
        None => condition("Programmed", false, "Invalid", "none of its listeners can be used"),
    };
    let address = |a: &str| {
        let kind = if a.parse::<IpAddr>().is_ok() { "IPAddress" } else { "Hostname" };
        json!({ "type": kind, "value": a })
    };
    let addresses: Vec<Value> = match (&o.address, &o.problem) {
        (_, Some(_)) => Vec::new(),
        (Some(a), None) => vec![address(&a.to_string())],
        (None, None) => options.published.iter().map(|a| address(a)).collect(),
    };
    let listeners: Vec<Value> = own.iter().map(|l| listener_status(l, metadata)).collect();
    let attached = o.sets.iter().filter(|(set, allowed)| *allowed && has_good_listener(o, set)).count();
    let mut conditions = vec![accepted, programmed];
    conditions.extend(o.client_certificate.as_ref().map(|found| match found {
        Ok(_) => condition("ResolvedRefs", true, "ResolvedRefs", ""),
        Err((reason, text)) => condition("ResolvedRefs", false, reason, text),
    }));
    let insecure = |l: &Attached| matches!(l.clients, Clients::Of { insecure: true, .. });
    if o.listeners.iter().any(insecure) {
        let text = "clients without a valid certificate are served";
        conditions.push(condition("InsecureFrontendValidationMode", true, "ConfigurationChanged", text));
    }
    let mut status = json!({ "conditions": conditions, "addresses": addresses, "listeners": listeners });
    if o.gateway.spec.allowed_listeners.namespaces.is_some() {
        status["attachedListenerSets"] = json!(attached);
    }
    StatusUpdate { kind: GatewayKind::Gateway, key: o.key.clone(), status }
}

fn is_of(l: &Attached, set: &Arc<ListenerSet>) -> bool {
    matches!(&l.owner, Owner::Set(s) if Arc::ptr_eq(s, set))
}

fn has_good_listener(o: &Ours, set: &Arc<ListenerSet>) -> bool {
    o.listeners.iter().any(|l| is_of(l, set) && l.works())
}

fn set_status(o: &Ours, set: &Arc<ListenerSet>, allowed: bool) -> StatusUpdate {
    let metadata = &set.metadata;
    let condition = |kind, holds, reason, text: &str| condition(metadata, kind, holds, reason, text);
    let own: Vec<&Attached> = o.listeners.iter().filter(|l| is_of(l, set)).collect();
    let (accepted, programmed) = match (allowed, has_good_listener(o, set)) {
        (false, _) => (
            condition("Accepted", false, "NotAllowed", "the Gateway does not allow it"),
            condition("Programmed", false, "NotAllowed", "the Gateway does not allow it"),
        ),
        (true, false) => (
            condition("Accepted", false, "ListenersNotValid", "none of its listeners can be used"),
            condition("Programmed", false, "ListenersNotValid", "none of its listeners can be used"),
        ),
        (true, true) => {
            (condition("Accepted", true, "Accepted", ""), condition("Programmed", true, "Programmed", ""))
        }
    };
    let listeners: Vec<Value> = own.iter().map(|l| listener_status(l, metadata)).collect();
    let status = json!({ "conditions": [accepted, programmed], "listeners": listeners });
    let key = Key::new(metadata.namespace.as_str(), metadata.name.as_str());
    StatusUpdate { kind: GatewayKind::ListenerSet, key, status }
}

/// Returns the status of a route. `setting`: why the ConfigMap closes rules of it, and whether it closes all of them.
fn route_status(
    placed: &Placed<'_>,
    setting: Option<(Arc<str>, bool)>,
    options: &GatewayOptions,
) -> StatusUpdate {
    let metadata = &placed.route.metadata;
    let resolved = match placed.unresolved.first() {
        Some((reason, text)) => condition(metadata, "ResolvedRefs", false, reason, text),
        None => condition(metadata, "ResolvedRefs", true, "ResolvedRefs", ""),
    };
    let complaints = placed.complaints().join("; ");
    let (of_setting, all) = setting.unwrap_or_default();
    let end = if placed.kind.is_http() { "answers 503" } else { "closes all connections" };
    let (closed, partly) = match complaints.as_str() {
        _ if all => (Some(("SettingInvalid", format!("{of_setting}; the route {end}"))), None),
        "" if of_setting.is_empty() => (None, None),
        "" => (None, Some(("SettingInvalid", format!("{of_setting}; these rules answer 503")))),
        text if placed.is_closed() => {
            (Some(("UnsupportedValue", format!("{text}; the route answers 500"))), None)
        }
        text => (None, Some(("UnsupportedValue", format!("{text}; these parts answer 500")))),
    };
    let partly = partly.map(|(reason, text)| condition(metadata, "PartiallyInvalid", true, reason, &text));
    let references = placed.route.spec.parent_refs.iter().zip(&placed.parents);
    let parents: Vec<Value> = references
        .filter_map(|(reference, parent)| {
            let (reason, text) = &parent.as_ref()?.accepted;
            let accepted = match &closed {
                Some((of, text)) if *reason == "Accepted" => condition(metadata, "Accepted", false, of, text),
                _ => condition(metadata, "Accepted", *reason == "Accepted", reason, text),
            };
            let mut conditions = vec![accepted, resolved.clone()];
            conditions.extend(partly.clone());
            Some(json!({
                "parentRef": parent_status(reference),
                "controllerName": options.controller,
                "conditions": conditions,
            }))
        })
        .collect();
    StatusUpdate { kind: placed.kind, key: placed.key.clone(), status: json!({ "parents": parents }) }
}

/// Returns the statuses of BackendTLSPolicies: one ancestor for each Gateway whose routes use their Services.
fn policy_statuses(
    cluster: Cluster<'_>,
    ours: &[Ours],
    routes: &[Placed<'_>],
    options: &GatewayOptions,
) -> Vec<StatusUpdate> {
    let mut gateways: BTreeMap<&Key, BTreeSet<usize>> = BTreeMap::new();
    let mut in_use: BTreeSet<&Key> = BTreeSet::new();
    for placed in routes.iter().filter(|r| r.kind != GatewayKind::UdpRoute) {
        let used: BTreeSet<usize> = placed.parents.iter().flatten().map(|p| p.gateway).collect();
        for reference in placed.route.spec.rules.iter().flat_map(|r| &r.backend_refs) {
            let namespace = reference.namespace.as_deref().unwrap_or(&placed.route.metadata.namespace);
            let service = Key::new(namespace, reference.name.as_str());
            let port = cluster.objects.service(&service).and_then(|s| {
                s.object.spec.ports.iter().find(|p| Some(p.port) == reference.port).map(|p| p.name.clone())
            });
            let chosen = backend_tls::policy(cluster, &service, port.as_deref().unwrap_or_default())
                .map(|(key, _)| key);
            in_use.extend(chosen);
            let about = cluster.gateway.tls_policies.iter().filter(|(key, policy)| {
                key.namespace == service.namespace
                    && policy.spec.target_refs.iter().any(|t| t.name == service.name)
            });
            about.for_each(|(key, _)| gateways.entry(key).or_default().extend(&used));
        }
    }
    let status = |(key, used): (&Key, BTreeSet<usize>)| {
        let policy = cluster.gateway.tls_policies.get(key)?;
        let condition =
            |kind, holds, reason, text: &str| condition(&policy.metadata, kind, holds, reason, text);
        let system = policy.spec.validation.well_known_ca_certificates.as_deref() == Some("System");
        let found = if system { Ok(Vec::new()) } else { backend_tls::authorities(cluster, key, policy) };
        let unread = policy.unread.first().map(|path| format!("the field {path} is not supported"));
        let (accepted, resolved) = match found {
            _ if unread.is_some() => (
                condition("Accepted", false, "Invalid", unread.as_deref().unwrap_or_default()),
                condition("ResolvedRefs", true, "ResolvedRefs", ""),
            ),
            _ if !in_use.contains(key) => (
                condition("Accepted", false, "Conflicted", "another policy is about the same Service"),
                condition("ResolvedRefs", true, "ResolvedRefs", ""),
            ),
            Ok(_) => (
                condition("Accepted", true, "Accepted", ""),
                condition("ResolvedRefs", true, "ResolvedRefs", ""),
            ),
            Err((reason, text)) => (
                condition("Accepted", false, "NoValidCACertificate", &text),
                condition("ResolvedRefs", false, reason, &text),
            ),
        };
        let ancestors: Vec<Value> = used
            .iter()
            .filter_map(|index| ours.get(*index))
            .map(|o| ancestor(&o.key, options, &[accepted.clone(), resolved.clone()]))
            .collect();
        let status = json!({ "ancestors": ancestors });
        Some(StatusUpdate { kind: GatewayKind::BackendTlsPolicy, key: key.clone(), status })
    };
    gateways.into_iter().filter_map(status).collect()
}
