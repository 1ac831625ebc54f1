//! RoutePolicies: what annotations do for Ingresses, for routes. They attach to what their `targetRefs` name (GEP-713).
//!
//! A policy of a rule counts before that of its route, that before the one of the listener, and that before the one of the Gateway.
//! Each replaces the parts that it has; networks that are not let in add up. Of two policies about the same the oldest counts.
//! Read in this order: `table.rs` (fields and annotations), `read.rs`, and this file; `ingress/route_policy.rs` makes the policy.

mod general;
mod read;
pub(crate) mod table;

use super::cluster::Cluster;
use super::gateways::{Ours, age};
use super::objects::{Aside, Cors, GatewayKind, PolicyTarget, RoutePolicy as Object};
use super::place::Placed;
use super::ports::Others;
use super::status::{StatusUpdate, condition};
use crate::groups::{Balance, short_hash};
use crate::ingress::{Globals, RoutePolicy, route_policy};
use crate::model::{self, File, Policy};
use crate::objects::Key;
use crate::tree::guard;
use forebay_conf::Node;
use general::General;
pub(crate) use general::unheard;
use read::Written;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Policies that hold for a rule, as one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Applied {
    /// Checks, settings and fields.
    pub policy: Arc<Policy>,
    /// Answers to pages of other origins.
    pub cors: Option<Cors>,
    /// Cookie that names the server.
    pub stay: Option<super::rules::persistence::Stay>,
    /// Way to choose a server.
    pub balance: Option<Balance>,
    /// A policy is invalid: the rule answers 503.
    pub closed: bool,
    /// Why the ConfigMap closes the rule.
    pub setting: Option<Arc<str>>,
    /// Fields of a service that is not asked.
    pub unasked: Vec<String>,
    /// The service of the ConfigMap is asked if no policy has one.
    general: Option<bool>,
}

impl Applied {
    /// Returns `true` if nobody is let in.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed || self.setting.is_some()
    }
}

/// A policy that was read.
struct Known {
    key: Key,
    object: Arc<Object>,
    written: Written,
    made: RoutePolicy,
}

impl Known {
    fn faults(&self) -> impl Iterator<Item = &String> {
        self.written.faults.iter().chain(&self.made.refused)
    }

    fn is_valid(&self) -> bool {
        self.faults().next().is_none()
    }
}

/// What a policy is about.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Target {
    kind: String,
    /// Name in the namespace of the policy.
    key: Key,
    /// Name of a part.
    section: Option<String>,
}

/// Gateways and routes that policies may be about.
#[derive(Clone, Copy)]
struct Targets<'a> {
    cluster: Cluster<'a>,
    ours: &'a [Ours],
    routes: &'a [Placed<'a>],
}

/// Result of the search for a target.
enum Search {
    /// The target is of another controller.
    Foreign,
    Found,
    /// Missing, and what.
    Missing(String),
}

/// Setting of the ConfigMap that closes rules of a route.
pub(crate) struct ClosedBy {
    /// Why it closes them.
    pub setting: Arc<str>,
    /// It closes all rules.
    pub all: bool,
}

/// The policies of a cluster, the oldest first.
#[derive(Default)]
pub(crate) struct Policies {
    general: General,
    known: Vec<Known>,
    /// The policy that counts for each target.
    first: BTreeMap<Target, usize>,
}

impl Policies {
    /// Reads all policies.
    pub(crate) fn new(cluster: Cluster<'_>, others: &Others<'_>) -> Policies {
        let globals = others.globals;
        let mut all: Vec<_> = cluster.gateway.route_policies.iter().collect();
        all.sort_by(|a, b| age(&a.1.metadata, a.0).cmp(&age(&b.1.metadata, b.0)));
        let mut policies = Policies { general: General::new(globals), ..Policies::default() };
        all.retain(|(key, _)| others.aside(GatewayKind::RoutePolicy, key) != Some(&Aside::Absent));
        for (index, (key, object)) in all.into_iter().enumerate() {
            let mut written = read::read(&object.spec);
            written.faults.extend(others.refusal(GatewayKind::RoutePolicy, key));
            for target in &written.targets {
                policies.first.entry(place_of(key, target)).or_insert(index);
            }
            let made = route_policy(&object.metadata, &written.annotations, cluster.objects, globals);
            policies.known.push(Known { key: key.clone(), object: object.clone(), written, made });
        }
        policies
    }

    fn find(&self, kind: &str, key: &Key, section: Option<&str>) -> Option<&Known> {
        let target = Target { kind: kind.to_owned(), key: key.clone(), section: section.map(str::to_owned) };
        self.first.get(&target).and_then(|index| self.known.get(*index))
    }

    /// Returns the policies of a rule at a listener as one, with what the ConfigMap says where they say nothing.
    pub(crate) fn of(&self, placed: &Placed<'_>, rule: usize, gateway: &Key, listener: &str) -> Applied {
        let networks = self.general.networks.clone();
        let outermost =
            Applied { policy: Arc::new(Policy { networks, ..Policy::default() }), ..Applied::default() };
        let kind = placed.kind.name();
        let name = placed.route.spec.rules.get(rule).and_then(|r| r.name.as_deref());
        let found = [
            self.find("Gateway", gateway, None),
            self.find("Gateway", gateway, Some(listener)),
            self.find(kind, placed.key, None),
            name.and_then(|name| self.find(kind, placed.key, Some(name))),
        ];
        let mut applied = found.into_iter().flatten().fold(outermost, Applied::under);
        // The policy may have been meant for any of the rules.
        applied.closed |= self.has_lost(placed);
        self.general(placed.kind.is_http(), &mut applied);
        applied
    }

    /// Adds what the ConfigMap says about a rule. `requests`: the rule is about requests, not about connections.
    fn general(&self, requests: bool, applied: &mut Applied) {
        let General { authority, closed, closed_requests, broken, .. } = &self.general;
        let mut why = closed.as_ref();
        if requests {
            why = why.or(closed_requests.as_ref());
            let is_asked = applied.policy.authority.is_none() && applied.general != Some(false);
            match authority {
                Some(_) if is_asked && broken.is_some() => why = why.or(broken.as_ref()),
                Some(authority) if is_asked => {
                    Arc::make_mut(&mut applied.policy).authority = Some(authority.clone());
                }
                Some(authority) => applied.unasked.clone_from(&authority.response_headers),
                None => {}
            }
        }
        applied.setting = why.map(|why| why.as_str().into());
    }

    /// Returns the setting of the ConfigMap that closes rules of a route.
    pub(crate) fn settings_of(&self, placed: &Placed<'_>, ours: &[Ours]) -> Option<ClosedBy> {
        let rules = placed.route.spec.rules.len().max(1);
        let of_listener = |gateway: &Ours, index: usize| {
            let listener = gateway.listeners.get(index)?.listener.name.clone();
            Some((gateway.key.clone(), listener))
        };
        let places: Vec<_> = (placed.parents.iter().flatten())
            .filter_map(|parent| Some((ours.get(parent.gateway)?, &parent.listeners)))
            .flat_map(|(gateway, all)| all.iter().filter_map(move |(index, _)| of_listener(gateway, *index)))
            .collect();
        let all = places.iter().flat_map(|(gateway, listener)| {
            (0..rules).map(move |rule| self.of(placed, rule, gateway, listener).setting)
        });
        let all: Vec<Option<Arc<str>>> = all.collect();
        let setting = all.iter().flatten().next()?.clone();
        Some(ClosedBy { setting, all: all.iter().all(Option::is_some) })
    }

    /// Returns `true` if a policy is about a rule of a route that has no such name.
    fn has_lost(&self, placed: &Placed<'_>) -> bool {
        let names =
            |section: &str| placed.route.spec.rules.iter().any(|r| r.name.as_deref() == Some(section));
        let kind = placed.kind.name();
        self.first.keys().any(|target| {
            let lost = target.section.as_deref().is_some_and(|section| !names(section));
            target.kind == kind && target.key == *placed.key && lost
        })
    }

    /// Returns the zones of the limits of all policies that count.
    pub(crate) fn zones(&self, globals: &Globals) -> Vec<Node> {
        let all = self.counting().filter(|known| !known.made.policy.limits.limits.is_empty());
        all.flat_map(|known| guard::zones(&known.made.policy, globals)).collect()
    }

    /// Returns the files that policies name.
    pub(crate) fn files(&self) -> impl Iterator<Item = File> {
        self.counting().flat_map(|known| known.made.files.iter().cloned())
    }

    /// Returns `true` if answers of a service that decides on requests may be kept.
    pub(crate) fn keep_answers(&self) -> bool {
        let own = self.counting().map(|known| &known.made.policy.authority);
        own.chain([&self.general.authority]).flatten().any(|authority| authority.cache.is_some())
    }

    fn counting(&self) -> impl Iterator<Item = &Known> {
        let counts = |index: usize| self.first.values().any(|first| *first == index);
        let all =
            self.known.iter().enumerate().filter(move |(index, known)| known.is_valid() && counts(*index));
        all.map(|(_, known)| known)
    }

    /// Makes the statuses of all policies about something of ours.
    pub(crate) fn statuses(
        &self,
        cluster: Cluster<'_>,
        ours: &[Ours],
        routes: &[Placed<'_>],
    ) -> Vec<StatusUpdate> {
        let targets = Targets { cluster, ours, routes };
        let status = |(index, known): (usize, &Known)| {
            let all = known.written.targets.iter();
            let ancestors: Vec<Value> =
                all.filter_map(|target| self.ancestor(index, known, target, targets)).collect();
            (!ancestors.is_empty()).then(|| StatusUpdate {
                kind: GatewayKind::RoutePolicy,
                key: known.key.clone(),
                status: json!({ "ancestors": ancestors }),
            })
        };
        self.known.iter().enumerate().filter_map(status).collect()
    }

    /// Returns what the status of a policy says about a target. `None`: the target is of another controller.
    fn ancestor(
        &self,
        index: usize,
        known: &Known,
        target: &PolicyTarget,
        targets: Targets<'_>,
    ) -> Option<Value> {
        let (reason, text) = self.verdict(index, known, target, targets)?;
        let accepted = condition(&known.object.metadata, "Accepted", reason == "Accepted", reason, &text);
        let mut ancestor = json!({ "group": target.group, "kind": target.kind, "namespace": known.key.namespace, "name": target.name });
        if let Some(section) = &target.section_name {
            ancestor["sectionName"] = json!(section);
        }
        let controller = targets.cluster.controller;
        Some(json!({ "ancestorRef": ancestor, "controllerName": controller, "conditions": [accepted] }))
    }

    /// Returns reason and message of the condition `Accepted` for a target. `None`: the target is of another controller.
    fn verdict(
        &self,
        index: usize,
        known: &Known,
        target: &PolicyTarget,
        targets: Targets<'_>,
    ) -> Option<(&'static str, String)> {
        let place = place_of(&known.key, target);
        let first = self.first.get(&place).copied().unwrap_or(index);
        if known.is_valid() {
            match targets.search(&place) {
                Search::Found => {}
                Search::Foreign => return None,
                Search::Missing(what) => return Some(("TargetNotFound", what)),
            }
        }
        if first != index {
            let winner = self.known.get(first).map(|k| k.key.to_string()).unwrap_or_default();
            return Some(("Conflicted", format!("the older RoutePolicy {winner} is about the same")));
        }
        let faults: Vec<String> = known.faults().map(|fault| with_field(fault)).collect();
        if !faults.is_empty() {
            return Some(("Invalid", format!("{}; its targets answer 503", faults.join("; "))));
        }
        let notes: Vec<String> = known.made.differs.iter().map(|note| with_field(note)).collect();
        Some(("Accepted", notes.join("; ")))
    }
}

fn place_of(policy: &Key, target: &PolicyTarget) -> Target {
    let key = Key::new(policy.namespace.as_str(), target.name.as_str());
    Target { kind: target.kind.clone(), key, section: target.section_name.clone() }
}

impl Targets<'_> {
    fn search(self, target: &Target) -> Search {
        if target.kind == "Gateway" { self.gateway(target) } else { self.route(target) }
    }

    fn gateway(self, Target { kind, key, section }: &Target) -> Search {
        let Some(gateway) = self.cluster.gateway.gateways.get(key) else {
            return Search::Missing(format!("there is no {kind} {key}"));
        };
        if !self.ours.iter().any(|o| o.key == *key) {
            return Search::Foreign;
        }
        let has = |section: &str| gateway.spec.listeners.iter().any(|l| l.name == section);
        match section.as_deref().filter(|section| !has(section)) {
            Some(section) => Search::Missing(format!("{kind} {key} has no listener {section}")),
            None => Search::Found,
        }
    }

    fn route(self, Target { kind, key, section }: &Target) -> Search {
        let gateway = self.cluster.gateway;
        let all = if kind == "GRPCRoute" { &gateway.grpc_routes } else { &gateway.http_routes };
        let Some(route) = all.get(key) else {
            return Search::Missing(format!("there is no {kind} {key}"));
        };
        if !self.routes.iter().any(|r| r.kind.name() == kind && r.key == key) {
            return Search::Foreign;
        }
        let has = |section: &str| route.spec.rules.iter().any(|r| r.name.as_deref() == Some(section));
        match section.as_deref().filter(|section| !has(section)) {
            Some(section) => {
                Search::Missing(format!("{kind} {key} has no rule {section}; all of it answers 503"))
            }
            None => Search::Found,
        }
    }
}

/// Returns a text about an annotation as one about the field.
fn with_field(text: &str) -> String {
    let Some((annotation, rest)) = text.split_once(": ") else { return text.to_owned() };
    let field = table::FIELDS.iter().find(|f| f.annotation == annotation).map(|f| f.path);
    let group = table::GROUPS.iter().find(|(_, own, _)| *own == annotation).map(|(group, ..)| *group);
    format!("{}: {rest}", field.or(group).unwrap_or(annotation))
}

impl Applied {
    /// Returns these policies with a more specific one, which replaces the parts that it has.
    fn under(self, known: &Known) -> Applied {
        if !known.is_valid() {
            return Applied { closed: true, ..self };
        }
        let inner = &known.made.policy;
        Applied {
            policy: Arc::new(over(Policy::clone(&self.policy), inner)),
            cors: inner.cors.as_ref().map(cors).or(self.cors),
            stay: known.made.sticky.clone().or(self.stay),
            balance: known.made.balance.clone().or(self.balance),
            general: known.made.general_authority.or(self.general),
            ..self
        }
    }
}

/// Returns a policy with the parts that a more specific one replaces.
fn over(outer: Policy, inner: &Policy) -> Policy {
    let mut networks = outer.networks;
    networks.deny.extend(inner.networks.deny.iter().cloned());
    networks.deny.sort();
    networks.deny.dedup();
    if !inner.networks.allow.is_empty() {
        networks.allow.clone_from(&inner.networks.allow);
    }
    let replaced = |name: &str| inner.plain.iter().any(|own| own.name == name);
    let plain = outer.plain.into_iter().filter(|d| !replaced(d.name)).chain(inner.plain.iter().cloned());
    Policy {
        id: short_hash(&format!("{} {}", outer.id, inner.id)),
        plain: plain.collect(),
        networks,
        passwords: inner.passwords.clone().or(outer.passwords),
        authority: inner.authority.clone().or(outer.authority),
        limits: if inner.limits.limits.is_empty() { outer.limits } else { inner.limits.clone() },
        headers: by_name(outer.headers, &inner.headers),
        response_headers: by_name(outer.response_headers, &inner.response_headers),
        ..Policy::default()
    }
}

/// Returns fields, those of a more specific policy in place of their namesakes.
fn by_name(outer: Vec<(String, String)>, inner: &[(String, String)]) -> Vec<(String, String)> {
    let replaced = |name: &str| inner.iter().any(|(own, _)| own.eq_ignore_ascii_case(name));
    let kept = outer.into_iter().filter(|(name, _)| !replaced(name));
    kept.chain(inner.iter().cloned()).collect()
}

/// Returns the answers to pages of other origins as a filter of a rule.
fn cors(policy: &model::Cors) -> Cors {
    let list = |text: &str| {
        text.split([',', ' ']).filter(|word| !word.is_empty()).map(str::to_owned).collect::<Vec<_>>()
    };
    let origin = |origin: &String| match origin.contains("://") || origin == "null" {
        true => vec![origin.clone()],
        false => vec![format!("http://{origin}"), format!("https://{origin}")],
    };
    let origins: Vec<String> = policy.origins.iter().flat_map(origin).collect();
    Cors {
        allow_origins: if origins.is_empty() { vec!["*".into()] } else { origins },
        allow_credentials: Some(policy.credentials),
        allow_methods: list(&policy.methods),
        allow_headers: list(&policy.headers),
        expose_headers: list(&policy.expose),
        max_age: u32::try_from(policy.max_age).ok(),
    }
}
