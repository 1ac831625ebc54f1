//! Routes. Those of all kinds are read as HTTPRoutes.

use super::Filter;
use crate::objects::Metadata;
use serde::{Deserialize, Serialize};

/// Reference of a route to a Gateway.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(default, rename_all = "camelCase")]
pub struct ParentRef {
    /// Group.
    pub group: Option<String>,
    /// Kind.
    pub kind: Option<String>,
    /// Namespace; `None`: that of the route.
    pub namespace: Option<String>,
    /// Name.
    pub name: String,
    /// Name of a listener; `None`: all.
    pub section_name: Option<String>,
    /// Port of listeners; `None`: all.
    pub port: Option<u16>,
}

/// An HTTPRoute, or a route of another kind whose rules are read as those of one.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Route {
    /// Metadata.
    pub metadata: Metadata,
    /// Fields of the specification that are not read.
    #[serde(skip)]
    pub unread: Vec<String>,
    /// Specification.
    #[serde(default)]
    pub spec: RouteSpec,
}

/// Specification of a route.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RouteSpec {
    /// Gateways.
    pub parent_refs: Vec<ParentRef>,
    /// Host names; empty: those of the listeners.
    pub hostnames: Vec<String>,
    /// Rules.
    pub rules: Vec<Rule>,
}

/// Rule of a route.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Rule {
    /// Name.
    pub name: Option<String>,
    /// Conditions, one of which has to hold; empty: all requests.
    pub matches: Vec<Match>,
    /// Changes of requests and answers.
    pub filters: Vec<Filter>,
    /// Services.
    pub backend_refs: Vec<BackendRef>,
    /// Time limits.
    pub timeouts: Timeouts,
    /// Repetitions.
    pub retry: Option<Retry>,
    /// Server that a client stays with.
    pub session_persistence: Option<SessionPersistence>,
}

/// Server that a client stays with. Versions before 1.7 of the API have the name beside the cookie.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SessionPersistence {
    /// Name of the cookie or the field, before 1.7.
    pub session_name: Option<String>,
    /// Longest time of a session.
    pub absolute_timeout: Option<String>,
    /// Longest time without a request.
    pub idle_timeout: Option<String>,
    /// `Cookie` or `Header`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// The cookie.
    #[serde(alias = "cookieConfig")]
    pub cookie: Option<SessionCookie>,
    /// The field.
    pub header: Option<SessionHeader>,
}

/// Cookie of a session.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct SessionCookie {
    /// Name.
    pub name: Option<String>,
    /// Path; `None`: `/`.
    pub path: Option<String>,
    /// `Session` or `Permanent`.
    pub lifetime_type: Option<String>,
}

/// Field of a session.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct SessionHeader {
    /// Name.
    pub name: String,
}

/// Repetitions of failed requests.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct Retry {
    /// Statuses that are repeated.
    pub codes: Vec<u16>,
    /// Repetitions; `None`: one.
    pub attempts: Option<u32>,
    /// Least time before a repetition.
    pub backoff: Option<String>,
}

/// Time limits of a rule, such as `500ms`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Timeouts {
    /// The whole request.
    pub request: Option<String>,
    /// One attempt at a backend.
    pub backend_request: Option<String>,
}

/// Conditions of a rule, all of which have to hold.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Match {
    /// Path.
    pub path: Option<PathMatch>,
    /// Fields.
    pub headers: Vec<ValueMatch>,
    /// Parameters of the query.
    pub query_params: Vec<ValueMatch>,
    /// Method: a word for HTTPRoute, an object for GRPCRoute.
    pub method: Option<Method>,
}

/// Method of a request.
#[derive(Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(untagged)]
pub enum Method {
    /// HTTP method.
    Http(String),
    /// Service and method of gRPC.
    Grpc(GrpcMethod),
}

/// Service and method of gRPC.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct GrpcMethod {
    /// `Exact` or `RegularExpression`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Service.
    pub service: Option<String>,
    /// Method.
    pub method: Option<String>,
}

/// Condition on the path.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct PathMatch {
    /// `Exact`, `PathPrefix` or `RegularExpression`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Path.
    pub value: Option<String>,
}

/// Condition on a field or a parameter.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct ValueMatch {
    /// `Exact` or `RegularExpression`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Name.
    pub name: String,
    /// Value.
    pub value: String,
}

/// Service that requests go to.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct BackendRef {
    /// Group.
    pub group: Option<String>,
    /// Kind.
    pub kind: Option<String>,
    /// Name.
    pub name: String,
    /// Namespace; `None`: that of the route.
    pub namespace: Option<String>,
    /// Port.
    pub port: Option<u16>,
    /// Share of the requests in relation to the others.
    pub weight: Option<u32>,
    /// Changes of requests to this one.
    pub filters: Vec<Filter>,
}
