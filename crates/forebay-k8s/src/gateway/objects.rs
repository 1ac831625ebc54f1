//! Objects of the Gateway API (gateway.networking.k8s.io), with the fields that a translation reads.

use crate::objects::{Key, Metadata};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;

mod tls_policy;

pub use tls_policy::{BackendTlsPolicy, BackendTlsSpec, PolicyTarget, SubjectAltName, Validation};

/// Group of the API.
pub const GROUP: &str = "gateway.networking.k8s.io";

/// Kinds of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum GatewayKind {
    GatewayClass,
    Gateway,
    HttpRoute,
    GrpcRoute,
    TlsRoute,
    TcpRoute,
    UdpRoute,
    ReferenceGrant,
    BackendTlsPolicy,
    ListenerSet,
}

impl GatewayKind {
    /// Finds a kind by its `apiVersion` and `kind`. The fields that are read are the same in all versions.
    pub fn find(api_version: &str, kind: &str) -> Option<GatewayKind> {
        let (group, _) = api_version.split_once('/')?;
        GatewayKind::ALL.into_iter().find(|k| group == GROUP && k.name() == kind)
    }

    /// All kinds.
    pub const ALL: [GatewayKind; 10] = [
        GatewayKind::GatewayClass,
        GatewayKind::Gateway,
        GatewayKind::HttpRoute,
        GatewayKind::GrpcRoute,
        GatewayKind::TlsRoute,
        GatewayKind::TcpRoute,
        GatewayKind::UdpRoute,
        GatewayKind::ReferenceGrant,
        GatewayKind::BackendTlsPolicy,
        GatewayKind::ListenerSet,
    ];

    /// Returns `true` for routes of HTTP requests.
    pub(crate) fn is_http(self) -> bool {
        matches!(self, GatewayKind::HttpRoute | GatewayKind::GrpcRoute)
    }

    /// Returns the name of the kind.
    pub fn name(self) -> &'static str {
        match self {
            GatewayKind::GatewayClass => "GatewayClass",
            GatewayKind::Gateway => "Gateway",
            GatewayKind::HttpRoute => "HTTPRoute",
            GatewayKind::GrpcRoute => "GRPCRoute",
            GatewayKind::TlsRoute => "TLSRoute",
            GatewayKind::TcpRoute => "TCPRoute",
            GatewayKind::UdpRoute => "UDPRoute",
            GatewayKind::ReferenceGrant => "ReferenceGrant",
            GatewayKind::BackendTlsPolicy => "BackendTLSPolicy",
            GatewayKind::ListenerSet => "ListenerSet",
        }
    }

    /// Returns the plural name, as paths of the API server have it.
    pub fn plural(self) -> &'static str {
        match self {
            GatewayKind::GatewayClass => "gatewayclasses",
            GatewayKind::Gateway => "gateways",
            GatewayKind::HttpRoute => "httproutes",
            GatewayKind::GrpcRoute => "grpcroutes",
            GatewayKind::TlsRoute => "tlsroutes",
            GatewayKind::TcpRoute => "tcproutes",
            GatewayKind::UdpRoute => "udproutes",
            GatewayKind::ReferenceGrant => "referencegrants",
            GatewayKind::BackendTlsPolicy => "backendtlspolicies",
            GatewayKind::ListenerSet => "listenersets",
        }
    }

    /// Returns the version that is read.
    pub fn version(self) -> &'static str {
        match self {
            GatewayKind::ReferenceGrant => "v1beta1",
            _ => "v1",
        }
    }
}

/// A GatewayClass.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct GatewayClass {
    /// Metadata.
    pub metadata: Metadata,
    /// Specification.
    #[serde(default)]
    pub spec: GatewayClassSpec,
}

/// Specification of a GatewayClass.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GatewayClassSpec {
    /// Name of its controller.
    pub controller_name: String,
}

/// A Gateway.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Gateway {
    /// Metadata.
    pub metadata: Metadata,
    /// Specification.
    #[serde(default)]
    pub spec: GatewaySpec,
    /// Status, for the addresses that it has.
    #[serde(default)]
    pub status: GatewayStatus,
}

/// Specification of a Gateway.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GatewaySpec {
    /// Name of its GatewayClass.
    pub gateway_class_name: String,
    /// Listeners.
    pub listeners: Vec<Listener>,
    /// Wanted addresses.
    pub addresses: Vec<Address>,
    /// ListenerSets that may add listeners.
    pub allowed_listeners: AllowedListeners,
    /// TLS of clients and backends.
    pub tls: GatewayTls,
}

/// TLS of a Gateway.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GatewayTls {
    /// To clients.
    pub frontend: Option<Frontend>,
    /// To backends.
    pub backend: Option<BackendSide>,
}

/// Certificates of clients.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Frontend {
    /// For all ports.
    pub default: FrontendTls,
    /// For single ports.
    pub per_port: Vec<PortTls>,
}

/// Certificates of clients at a port.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PortTls {
    /// Port.
    pub port: u16,
    /// Verification.
    pub tls: FrontendTls,
}

/// Verification of clients.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct FrontendTls {
    /// Verification; `None`: clients show no certificate.
    pub validation: Option<FrontendValidation>,
}

/// Verification of the certificates of clients.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FrontendValidation {
    /// ConfigMaps with authorities.
    pub ca_certificate_refs: Vec<ObjectRef>,
    /// `AllowValidOnly` or `AllowInsecureFallback`.
    pub mode: Option<String>,
}

/// Certificate that backends see.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BackendSide {
    /// Secret.
    pub client_certificate_ref: Option<ObjectRef>,
}

/// Status of a Gateway.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GatewayStatus {
    /// Addresses.
    pub addresses: Vec<Address>,
}

/// Address of a Gateway.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct Address {
    /// `IPAddress`, `Hostname` or another type.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// The address.
    pub value: String,
}

/// ListenerSets that may attach to a Gateway.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct AllowedListeners {
    /// Namespaces.
    pub namespaces: Option<AllowedNamespaces>,
}

/// Listener of a Gateway or a ListenerSet.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
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
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ListenerTls {
    /// `Terminate` or `Passthrough`.
    pub mode: Option<String>,
    /// Secrets.
    pub certificate_refs: Vec<ObjectRef>,
}

/// Reference to an object.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(default)]
pub struct ObjectRef {
    /// Group; `None`: that of the field's default.
    pub group: Option<String>,
    /// Kind.
    pub kind: Option<String>,
    /// Name.
    pub name: String,
    /// Namespace; `None`: that of the object with the reference.
    pub namespace: Option<String>,
}

/// Routes that may attach to a listener.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct AllowedRoutes {
    /// Namespaces.
    pub namespaces: Option<AllowedNamespaces>,
    /// Kinds; empty: those of the protocol.
    pub kinds: Vec<RouteKind>,
}

/// Namespaces of routes.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct AllowedNamespaces {
    /// `Same`, `All`, `Selector` or `None`.
    pub from: Option<String>,
    /// Labels.
    pub selector: Selector,
}

/// Selector of labels.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Selector {
    /// Labels with their values.
    pub match_labels: BTreeMap<String, String>,
    /// Conditions.
    pub match_expressions: Vec<Expression>,
}

/// Condition on a label.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
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
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
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
    /// Specification.
    #[serde(default)]
    pub spec: ListenerSetSpec,
}

/// Specification of a ListenerSet.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ListenerSetSpec {
    /// Its Gateway.
    pub parent_ref: ObjectRef,
    /// Listeners.
    pub listeners: Vec<Listener>,
}

/// Reference of a route to a Gateway.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Eq)]
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
    /// Specification.
    #[serde(default)]
    pub spec: RouteSpec,
}

/// Specification of a route.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
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
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Rule {
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
}

/// Repetitions of failed requests.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Retry {
    /// Statuses that are repeated.
    pub codes: Vec<u16>,
    /// Repetitions.
    pub attempts: Option<u32>,
}

/// Time limits of a rule, such as `500ms`.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Timeouts {
    /// The whole request.
    pub request: Option<String>,
    /// One attempt at a backend.
    pub backend_request: Option<String>,
}

/// Conditions of a rule, all of which have to hold.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
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
#[derive(Clone, Debug, Deserialize, PartialEq)]
#[serde(untagged)]
pub enum Method {
    /// HTTP method.
    Http(String),
    /// Service and method of gRPC.
    Grpc(GrpcMethod),
}

/// Service and method of gRPC.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
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
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct PathMatch {
    /// `Exact`, `PathPrefix` or `RegularExpression`.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Path.
    pub value: Option<String>,
}

/// Condition on a field or a parameter.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
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
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
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

/// Change of requests and answers.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Filter {
    /// Type.
    #[serde(rename = "type")]
    pub kind: String,
    /// `RequestHeaderModifier`.
    pub request_header_modifier: Option<HeaderModifier>,
    /// `ResponseHeaderModifier`.
    pub response_header_modifier: Option<HeaderModifier>,
    /// `RequestRedirect`.
    pub request_redirect: Option<Redirect>,
    /// `URLRewrite`.
    pub url_rewrite: Option<UrlRewrite>,
    /// `RequestMirror`.
    pub request_mirror: Option<RequestMirror>,
    /// `CORS`.
    pub cors: Option<Cors>,
}

/// Fields that are set, added and removed.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct HeaderModifier {
    /// Fields that take the place of others.
    pub set: Vec<NameValue>,
    /// Fields that are added.
    pub add: Vec<NameValue>,
    /// Names of fields that are removed.
    pub remove: Vec<String>,
}

/// Name and value of a field.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct NameValue {
    /// Name.
    pub name: String,
    /// Value.
    pub value: String,
}

/// Redirect.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Redirect {
    /// Scheme.
    pub scheme: Option<String>,
    /// Host.
    pub hostname: Option<String>,
    /// Path.
    pub path: Option<PathModifier>,
    /// Port.
    pub port: Option<u16>,
    /// Status.
    pub status_code: Option<u16>,
}

/// New host and path of requests to a backend.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct UrlRewrite {
    /// Host.
    pub hostname: Option<String>,
    /// Path.
    pub path: Option<PathModifier>,
}

/// New path.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PathModifier {
    /// `ReplaceFullPath` or `ReplacePrefixMatch`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The whole path.
    pub replace_full_path: Option<String>,
    /// In place of the prefix that the match names.
    pub replace_prefix_match: Option<String>,
}

/// Copies of requests.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct RequestMirror {
    /// Service that gets them.
    pub backend_ref: BackendRef,
    /// Share, percent.
    pub percent: Option<u32>,
    /// Share as a fraction.
    pub fraction: Option<Fraction>,
}

/// Fraction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct Fraction {
    /// Numerator.
    pub numerator: u32,
    /// Denominator; 100 if absent.
    pub denominator: Option<u32>,
}

/// Answers to pages of other origins.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Cors {
    /// Origins.
    pub allow_origins: Vec<String>,
    /// Credentials are allowed.
    pub allow_credentials: Option<bool>,
    /// Methods.
    pub allow_methods: Vec<String>,
    /// Fields of requests.
    pub allow_headers: Vec<String>,
    /// Fields of answers.
    pub expose_headers: Vec<String>,
    /// Seconds for which an answer to OPTIONS holds.
    pub max_age: Option<u32>,
}

/// A ReferenceGrant.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct ReferenceGrant {
    /// Metadata.
    pub metadata: Metadata,
    /// Specification.
    #[serde(default)]
    pub spec: GrantSpec,
}

/// Specification of a ReferenceGrant.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GrantSpec {
    /// Objects with references.
    pub from: Vec<GrantFrom>,
    /// Objects in the namespace of the grant.
    pub to: Vec<GrantTo>,
}

/// Kind of objects with references.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GrantFrom {
    /// Group.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Namespace.
    pub namespace: String,
}

/// Kind of objects that are referred to.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub struct GrantTo {
    /// Group.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Name; `None`: all.
    pub name: Option<String>,
}

/// The objects of a cluster.
#[derive(Clone, Debug, Default)]
pub struct GatewayObjects {
    /// Number that grows with each change.
    pub version: u64,
    /// GatewayClasses.
    pub classes: BTreeMap<Key, Arc<GatewayClass>>,
    /// Gateways.
    pub gateways: BTreeMap<Key, Arc<Gateway>>,
    /// HTTPRoutes.
    pub http_routes: BTreeMap<Key, Arc<Route>>,
    /// GRPCRoutes.
    pub grpc_routes: BTreeMap<Key, Arc<Route>>,
    /// TLSRoutes.
    pub tls_routes: BTreeMap<Key, Arc<Route>>,
    /// TCPRoutes.
    pub tcp_routes: BTreeMap<Key, Arc<Route>>,
    /// UDPRoutes.
    pub udp_routes: BTreeMap<Key, Arc<Route>>,
    /// ReferenceGrants.
    pub grants: BTreeMap<Key, Arc<ReferenceGrant>>,
    /// BackendTLSPolicies.
    pub tls_policies: BTreeMap<Key, Arc<BackendTlsPolicy>>,
    /// ListenerSets.
    pub listener_sets: BTreeMap<Key, Arc<ListenerSet>>,
}

impl GatewayObjects {
    /// Adds an object, or replaces it.
    ///
    /// # Errors
    /// The object does not have the shape of its kind; the former one stays.
    pub fn apply(&mut self, kind: GatewayKind, key: Key, value: serde_json::Value) -> Result<bool, String> {
        fn add<T: PartialEq + serde::de::DeserializeOwned>(
            all: &mut BTreeMap<Key, Arc<T>>,
            key: Key,
            value: serde_json::Value,
        ) -> Result<bool, String> {
            let object = serde_json::from_value(value).map_err(|e| e.to_string())?;
            let changed = all.get(&key).is_none_or(|before| **before != object);
            if changed {
                all.insert(key, Arc::new(object));
            }
            Ok(changed)
        }
        let changed = match kind {
            GatewayKind::GatewayClass => add(&mut self.classes, key, value),
            GatewayKind::Gateway => add(&mut self.gateways, key, value),
            GatewayKind::HttpRoute => add(&mut self.http_routes, key, value),
            GatewayKind::GrpcRoute => add(&mut self.grpc_routes, key, value),
            GatewayKind::TlsRoute => add(&mut self.tls_routes, key, value),
            GatewayKind::TcpRoute => add(&mut self.tcp_routes, key, value),
            GatewayKind::UdpRoute => add(&mut self.udp_routes, key, value),
            GatewayKind::ReferenceGrant => add(&mut self.grants, key, value),
            GatewayKind::BackendTlsPolicy => add(&mut self.tls_policies, key, value),
            GatewayKind::ListenerSet => add(&mut self.listener_sets, key, value),
        }?;
        self.version += u64::from(changed);
        Ok(changed)
    }

    /// Removes an object.
    pub fn delete(&mut self, kind: GatewayKind, key: &Key) {
        self.version += 1;
        match kind {
            GatewayKind::GatewayClass => drop(self.classes.remove(key)),
            GatewayKind::Gateway => drop(self.gateways.remove(key)),
            GatewayKind::HttpRoute => drop(self.http_routes.remove(key)),
            GatewayKind::GrpcRoute => drop(self.grpc_routes.remove(key)),
            GatewayKind::TlsRoute => drop(self.tls_routes.remove(key)),
            GatewayKind::TcpRoute => drop(self.tcp_routes.remove(key)),
            GatewayKind::UdpRoute => drop(self.udp_routes.remove(key)),
            GatewayKind::ReferenceGrant => drop(self.grants.remove(key)),
            GatewayKind::BackendTlsPolicy => drop(self.tls_policies.remove(key)),
            GatewayKind::ListenerSet => drop(self.listener_sets.remove(key)),
        }
    }
}
