//! Structures of the objects, named as in the Kubernetes API.

use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;

/// Reads `null` as the default.
fn nullable<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(from: D) -> Result<T, D::Error> {
    Ok(Option::<T>::deserialize(from)?.unwrap_or_default())
}

/// `metadata` of every object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Metadata {
    /// Name, unique among objects of a kind in a namespace.
    pub name: String,
    /// Namespace; empty for kinds without one.
    #[serde(deserialize_with = "nullable")]
    pub namespace: String,
    /// Identity: another object of the same name has another.
    #[serde(deserialize_with = "nullable")]
    pub uid: String,
    /// Number of changes of the specification.
    #[serde(deserialize_with = "nullable")]
    pub generation: i64,
    /// Time of creation, RFC 3339 in UTC, so that texts sort as the times do.
    #[serde(deserialize_with = "nullable")]
    pub creation_timestamp: String,
    /// Annotations.
    #[serde(deserialize_with = "nullable")]
    pub annotations: BTreeMap<String, String>,
    /// Labels.
    #[serde(deserialize_with = "nullable")]
    pub labels: BTreeMap<String, String>,
}

/// Ingress of `networking.k8s.io/v1`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Ingress {
    /// Name, annotations and so on.
    pub metadata: Metadata,
    /// Rules.
    #[serde(deserialize_with = "nullable")]
    pub spec: IngressSpec,
}

/// `spec` of an [`Ingress`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct IngressSpec {
    /// Name of the class.
    pub ingress_class_name: Option<String>,
    /// Backend of requests that no rule takes.
    pub default_backend: Option<IngressBackend>,
    /// Certificates.
    #[serde(deserialize_with = "nullable")]
    pub tls: Vec<IngressTls>,
    /// Rules by host.
    #[serde(deserialize_with = "nullable")]
    pub rules: Vec<IngressRule>,
}

/// Certificate of an [`Ingress`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct IngressTls {
    /// Hosts that it is for; empty: those of the rules.
    #[serde(deserialize_with = "nullable")]
    pub hosts: Vec<String>,
    /// Secret with `tls.crt` and `tls.key`; empty: the default certificate.
    #[serde(deserialize_with = "nullable")]
    pub secret_name: String,
}

/// Rule of an [`Ingress`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct IngressRule {
    /// Host name, `*.NAME`, or empty for all hosts without a rule.
    #[serde(deserialize_with = "nullable")]
    pub host: String,
    /// Paths.
    pub http: Option<HttpRule>,
}

/// Paths of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct HttpRule {
    /// Paths.
    #[serde(deserialize_with = "nullable")]
    pub paths: Vec<HttpPath>,
}

/// Path of a rule.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct HttpPath {
    /// Path; empty means `/`.
    #[serde(deserialize_with = "nullable")]
    pub path: String,
    /// `Exact`, `Prefix` or `ImplementationSpecific`.
    pub path_type: Option<String>,
    /// Backend.
    #[serde(deserialize_with = "nullable")]
    pub backend: IngressBackend,
}

/// Backend of a path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct IngressBackend {
    /// Service. Other resources are not supported.
    pub service: Option<IngressServiceBackend>,
}

/// Service of a backend.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct IngressServiceBackend {
    /// Name in the namespace of the Ingress.
    pub name: String,
    /// Port of the Service.
    #[serde(deserialize_with = "nullable")]
    pub port: PortRef,
}

/// Port of a Service, by number or name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Deserialize)]
#[serde(default)]
pub struct PortRef {
    /// Name.
    pub name: Option<String>,
    /// Number.
    pub number: Option<u16>,
}

/// IngressClass of `networking.k8s.io/v1`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct IngressClass {
    /// Name, annotations and so on.
    pub metadata: Metadata,
    /// Controller.
    #[serde(deserialize_with = "nullable")]
    pub spec: IngressClassSpec,
}

/// `spec` of an [`IngressClass`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct IngressClassSpec {
    /// Name of the controller that serves Ingresses of the class.
    #[serde(deserialize_with = "nullable")]
    pub controller: String,
    /// Object with more settings. It is not read.
    pub parameters: Option<ParametersRef>,
}

/// `parameters` of an [`IngressClass`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ParametersRef {
    /// Kind of the object.
    #[serde(deserialize_with = "nullable")]
    pub kind: String,
    /// Name of the object.
    #[serde(deserialize_with = "nullable")]
    pub name: String,
}

/// Service of `v1`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Service {
    /// Name, annotations and so on.
    pub metadata: Metadata,
    /// Ports and kind.
    #[serde(deserialize_with = "nullable")]
    pub spec: ServiceSpec,
}

/// `spec` of a [`Service`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceSpec {
    /// `ClusterIP`, `NodePort`, `LoadBalancer` or `ExternalName`.
    #[serde(rename = "type", deserialize_with = "nullable")]
    pub kind: String,
    /// Address in the cluster; `None` is a text here.
    #[serde(rename = "clusterIP", deserialize_with = "nullable")]
    pub cluster_ip: String,
    /// Addresses in the cluster, one for each family.
    #[serde(rename = "clusterIPs", deserialize_with = "nullable")]
    pub cluster_ips: Vec<String>,
    /// Name of a host, if the type is `ExternalName`.
    #[serde(deserialize_with = "nullable")]
    pub external_name: String,
    /// Endpoints count although they are not ready.
    #[serde(deserialize_with = "nullable")]
    pub publish_not_ready_addresses: bool,
    /// Ports.
    #[serde(deserialize_with = "nullable")]
    pub ports: Vec<ServicePort>,
}

/// Port of a [`Service`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct ServicePort {
    /// Name; empty if the Service has one port.
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    /// Number.
    pub port: u16,
    /// `TCP`, `UDP` or `SCTP`; absent: TCP.
    pub protocol: Option<String>,
    /// Port of the endpoints.
    pub target_port: Option<Port>,
    /// `kubernetes.io/h2c` and the like. It is read by `backend-protocol: AUTO`, which does not exist yet.
    pub app_protocol: Option<String>,
}

/// Number or name of a port.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Port {
    /// Number.
    Number(u16),
    /// Name of a port of the containers.
    Name(String),
}

/// ConfigMap of `v1`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ConfigMap {
    /// Name, annotations and so on.
    pub metadata: Metadata,
    /// Keys and values.
    #[serde(deserialize_with = "nullable")]
    pub data: BTreeMap<String, String>,
}

/// Namespace of `v1`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Namespace {
    /// Name, labels and so on.
    pub metadata: Metadata,
}

/// EndpointSlice of `discovery.k8s.io/v1`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EndpointSlice {
    /// Name; the label `kubernetes.io/service-name` names the Service.
    pub metadata: Metadata,
    /// Endpoints.
    #[serde(deserialize_with = "nullable")]
    pub endpoints: Vec<Endpoint>,
    /// Ports of each of them.
    #[serde(deserialize_with = "nullable")]
    pub ports: Vec<EndpointPort>,
}

impl EndpointSlice {
    /// Returns the name of the Service that the endpoints are of.
    pub fn service_name(&self) -> Option<&str> {
        self.metadata.labels.get("kubernetes.io/service-name").map(String::as_str)
    }
}

/// Endpoint of an [`EndpointSlice`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct Endpoint {
    /// Addresses. Clients should use the first; others are the same endpoint.
    #[serde(deserialize_with = "nullable")]
    pub addresses: Vec<String>,
    /// Whether it takes requests.
    #[serde(deserialize_with = "nullable")]
    pub conditions: EndpointConditions,
    /// Who should use it.
    #[serde(deserialize_with = "nullable")]
    pub hints: EndpointHints,
}

/// Hints for the choice of an [`Endpoint`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct EndpointHints {
    /// Zones whose clients should use it.
    #[serde(deserialize_with = "nullable")]
    pub for_zones: Vec<ForZone>,
}

/// Zone of [`EndpointHints`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct ForZone {
    /// Name, as in the label `topology.kubernetes.io/zone` of nodes.
    pub name: String,
}

/// Conditions of an [`Endpoint`]. Absent means unknown, which counts as ready.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct EndpointConditions {
    /// It takes requests and is not being ended.
    pub ready: Option<bool>,
    /// It takes requests, ended or not.
    pub serving: Option<bool>,
    /// It is being ended.
    pub terminating: Option<bool>,
}

/// Port of an [`EndpointSlice`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct EndpointPort {
    /// Name of the port of the Service.
    #[serde(deserialize_with = "nullable")]
    pub name: String,
    /// Number; absent: all ports.
    pub port: Option<u16>,
    /// `TCP`, `UDP` or `SCTP`; absent: TCP.
    pub protocol: Option<String>,
}
