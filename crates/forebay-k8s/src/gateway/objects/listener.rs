//! Listeners, of Gateways and of ListenerSets.

use super::ObjectRef;
use crate::objects::Metadata;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// ListenerSets that may attach to a Gateway.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct AllowedListeners {
    /// Namespaces.
    pub namespaces: Option<AllowedNamespaces>,
}

/// Listener of a Gateway or a ListenerSet.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Listener {
    /// Name.
    pub name: String,
    /// Host name; empty: all.
    pub hostname: Option<String>,
    /// Port.
    pub port: u16,
    /// `HTTP`, `HTTPS`, `TLS`, `TCP` or `UDP`.
    pub protocol: String,
    /// TLS.
    pub tls: Option<ListenerTls>,
    /// Routes that may attach.
    pub allowed_routes: AllowedRoutes,
}

/// TLS of a listener.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ListenerTls {
    /// `Terminate` or `Passthrough`.
    pub mode: Option<String>,
    /// Secrets.
    pub certificate_refs: Vec<ObjectRef>,
    /// Options of other implementations.
    pub options: BTreeMap<String, String>,
}

/// Routes that may attach to a listener.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct AllowedRoutes {
    /// Namespaces.
    pub namespaces: Option<AllowedNamespaces>,
    /// Kinds; empty: those of the protocol.
    pub kinds: Vec<RouteKind>,
}

/// Namespaces of routes.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct AllowedNamespaces {
    /// `Same`, `All`, `Selector` or `None`.
    pub from: Option<String>,
    /// Labels.
    pub selector: Selector,
}

/// Selector of labels.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Selector {
    /// Labels with their values.
    pub match_labels: BTreeMap<String, String>,
    /// Conditions.
    pub match_expressions: Vec<Expression>,
}

/// Condition on a label.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct Expression {
    /// Label.
    pub key: String,
    /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
    pub operator: String,
    /// Values.
    pub values: Vec<String>,
}

impl Selector {
    /// Returns `true` if labels meet all conditions. An unknown operator is never met.
    pub fn selects(&self, labels: &BTreeMap<String, String>) -> bool {
        let has = |e: &Expression| labels.get(&e.key).is_some_and(|v| e.values.contains(v));
        self.match_labels.iter().all(|(k, v)| labels.get(k) == Some(v))
            && self.match_expressions.iter().all(|e| match e.operator.as_str() {
                "In" => has(e),
                "NotIn" => !has(e),
                "Exists" => labels.contains_key(&e.key),
                "DoesNotExist" => !labels.contains_key(&e.key),
                _ => false,
            })
    }
}

/// Kind of routes.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct RouteKind {
    /// Group; `None`: that of the Gateway API.
    pub group: Option<String>,
    /// Kind.
    pub kind: String,
}

/// A ListenerSet.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct ListenerSet {
    /// Metadata.
    pub metadata: Metadata,
    /// Fields of the specification that are not read.
    #[serde(skip)]
    pub unread: Vec<String>,
    /// Specification.
    #[serde(default)]
    pub spec: ListenerSetSpec,
}

/// Specification of a ListenerSet.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ListenerSetSpec {
    /// Its Gateway.
    pub parent_ref: ObjectRef,
    /// Listeners.
    pub listeners: Vec<Listener>,
}
