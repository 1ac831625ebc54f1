//! Backends of rules.

use super::faults;
use crate::gateway::backend_tls;
use crate::gateway::cluster::Cluster;
use crate::gateway::objects::{BackendRef, Filter, GROUP, GatewayKind, Route, Rule};
use crate::groups::Spec;
use crate::model::File;
use crate::objects::{Key, PortRef, ServicePort};
use std::sync::Arc;

/// Backend of a rule.
#[derive(Clone, Debug)]
pub(crate) struct Backend {
    /// Group of its endpoints.
    pub spec: Arc<Spec>,
    /// Protocol.
    pub protocol: Protocol,
    /// TLS to it.
    pub tls: Option<BackendTls>,
}

/// Protocol to a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http,
    Http2,
    Grpc,
}

/// TLS to a backend.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BackendTls {
    /// Name in the handshake, and in the certificate unless there are `names`.
    pub name: String,
    /// Alternative names of which the certificate has to have one.
    pub names: Vec<String>,
    /// Authorities; `None`: those of the system.
    pub authorities: Option<File>,
}

/// Backend that requests of a rule go to, with its share.
#[derive(Clone, Debug)]
pub(crate) struct Choice {
    /// The backend; `None`: the reference cannot be used, and its share is answered by 500.
    pub backend: Option<Backend>,
    /// Share in relation to the others.
    pub weight: u32,
    /// Changes of requests to this backend.
    pub filters: Vec<Filter>,
}

/// Why a reference of a route cannot be used: reason and message of the condition `ResolvedRefs`.
pub(crate) type Unresolved = (&'static str, String);

/// Finds the backends of a rule. `refused` gets what backends ask for and do not get.
pub(crate) fn choices(
    cluster: Cluster<'_>,
    (route, kind, encrypts): (&Route, GatewayKind, bool),
    rule: &Rule,
    unresolved: &mut Vec<Unresolved>,
    refused: &mut Vec<String>,
) -> Vec<Choice> {
    let mut all = Vec::new();
    for reference in &rule.backend_refs {
        let faults = faults::of_backend(&reference.filters, rule, kind);
        let backend = match find(cluster, (route, kind, encrypts), reference) {
            // A filter that is not applied must not be skipped.
            Ok(backend) => Some(backend).filter(|_| faults.is_empty()),
            Err(why) => {
                unresolved.push(why);
                None
            }
        };
        refused.extend(faults);
        all.push(Choice {
            backend,
            weight: reference.weight.unwrap_or(1),
            filters: reference.filters.clone(),
        });
    }
    all
}

/// Finds the backend of a reference of an HTTP route.
pub(crate) fn backend(
    cluster: Cluster<'_>,
    route: &Route,
    kind: GatewayKind,
    reference: &BackendRef,
) -> Result<Backend, Unresolved> {
    find(cluster, (route, kind, true), reference)
}

/// Finds the backend of a reference. `encrypts`: a BackendTLSPolicy holds for connections of the route. What passes as it is has no TLS
/// of ours.
fn find(
    cluster: Cluster<'_>,
    (route, kind, encrypts): (&Route, GatewayKind, bool),
    reference: &BackendRef,
) -> Result<Backend, Unresolved> {
    let own = &route.metadata.namespace;
    let (group, name) =
        (reference.group.as_deref().unwrap_or(""), reference.kind.as_deref().unwrap_or("Service"));
    if (group, name) != ("", "Service") {
        return Err(("InvalidKind", format!("backends of kind {name} are not known")));
    }
    let key = Key::new(reference.namespace.as_deref().unwrap_or(own), reference.name.as_str());
    if !cluster.is_granted((GROUP, kind.name(), own), ("", "Service"), &key) {
        return Err(("RefNotPermitted", format!("no ReferenceGrant allows the Service {key}")));
    }
    let missing = || ("BackendNotFound", format!("there is no Service {key} with this port"));
    let service = cluster.objects.service(&key).ok_or_else(missing)?;
    let number = reference.port.ok_or_else(missing)?;
    let udp = kind == GatewayKind::UdpRoute;
    let speaks = if udp { "UDP" } else { "TCP" };
    let fits = |p: &&ServicePort| p.port == number && p.protocol.as_deref().unwrap_or("TCP") == speaks;
    let port = service.object.spec.ports.iter().find(fits).ok_or_else(missing)?;
    let protocol = match (kind, port.app_protocol.as_deref()) {
        (GatewayKind::GrpcRoute, _) => Protocol::Grpc,
        (_, Some("kubernetes.io/h2c")) => Protocol::Http2,
        _ => Protocol::Http,
    };
    let port_ref = PortRef { name: None, number: Some(number) };
    let spec = Spec { service: key.clone(), port: port_ref, udp, ..Spec::default() }.beside(cluster.taken);
    let tls = if encrypts { backend_tls::of(cluster, &key, &port.name)? } else { None };
    Ok(Backend { spec: Arc::new(spec), protocol, tls })
}
