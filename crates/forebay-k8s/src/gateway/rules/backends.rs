//! Backends of rules.

use super::faults;
use crate::gateway::backend_tls;
use crate::gateway::cluster::{Cluster, Referrer};
use crate::gateway::objects::{BackendRef, Filter, GatewayKind, Route, Rule};
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

impl Protocol {
    /// Returns the protocol of the routes of a kind to a port with an `appProtocol`.
    fn of(kind: GatewayKind, app_protocol: Option<&str>) -> Protocol {
        match (kind, app_protocol) {
            (GatewayKind::GrpcRoute, _) => Protocol::Grpc,
            (_, Some("kubernetes.io/h2c")) => Protocol::Http2,
            _ => Protocol::Http,
        }
    }
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

/// Lookup of the backends of a route.
#[derive(Clone, Copy)]
pub(crate) struct Lookup<'a> {
    /// Objects.
    pub cluster: Cluster<'a>,
    /// Route.
    pub route: &'a Route,
    /// Its kind.
    pub kind: GatewayKind,
    /// A BackendTLSPolicy holds for connections of the route. TLS that passes as it is has none of ours.
    pub encrypts: bool,
}

/// Backends of a rule.
#[derive(Default)]
pub(crate) struct Backends {
    /// Backends with their shares.
    pub choices: Vec<Choice>,
    /// Why references cannot be used.
    pub unresolved: Vec<Unresolved>,
    /// What backends ask for and do not get.
    pub refused: Vec<String>,
}

impl Lookup<'_> {
    /// Finds the backends of a rule.
    pub(crate) fn of_rule(self, rule: &Rule) -> Backends {
        let mut found = Backends::default();
        for reference in &rule.backend_refs {
            let faults = faults::of_backend(&reference.filters, rule, self.kind);
            let backend = match self.find(reference) {
                // A filter that is not applied must not be skipped.
                Ok(backend) => Some(backend).filter(|_| faults.is_empty()),
                Err(why) => {
                    found.unresolved.push(why);
                    None
                }
            };
            found.refused.extend(faults);
            let weight = reference.weight.unwrap_or(1);
            found.choices.push(Choice { backend, weight, filters: reference.filters.clone() });
        }
        found
    }

    /// Finds the backend of a reference.
    fn find(self, reference: &BackendRef) -> Result<Backend, Unresolved> {
        let key = self.service(reference)?;
        let missing = || ("BackendNotFound", format!("there is no Service {key} with this port"));
        let service = self.cluster.objects.service(&key).ok_or_else(missing)?;
        let number = reference.port.ok_or_else(missing)?;
        let udp = self.kind == GatewayKind::UdpRoute;
        let speaks = if udp { "UDP" } else { "TCP" };
        let fits = |p: &&ServicePort| p.port == number && p.protocol.as_deref().unwrap_or("TCP") == speaks;
        let port = service.object.spec.ports.iter().find(fits).ok_or_else(missing)?;
        let protocol = Protocol::of(self.kind, port.app_protocol.as_deref());
        let tls = if self.encrypts { backend_tls::of(self.cluster, &key, &port.name)? } else { None };
        let port = PortRef { name: None, number: Some(number) };
        let spec = Spec { service: key, port, udp, ..Spec::default() }.beside(self.cluster.taken);
        Ok(Backend { spec: Arc::new(spec), protocol, tls })
    }

    /// Returns the Service that a reference names, if the route may refer to it.
    fn service(self, reference: &BackendRef) -> Result<Key, Unresolved> {
        let own = &self.route.metadata.namespace;
        let (group, name) =
            (reference.group.as_deref().unwrap_or(""), reference.kind.as_deref().unwrap_or("Service"));
        if (group, name) != ("", "Service") {
            return Err(("InvalidKind", format!("backends of kind {name} are not known")));
        }
        let key = Key::new(reference.namespace.as_deref().unwrap_or(own), reference.name.as_str());
        if !self.cluster.is_granted(Referrer { kind: self.kind.name(), namespace: own }, "Service", &key) {
            return Err(("RefNotPermitted", format!("no ReferenceGrant allows the Service {key}")));
        }
        Ok(key)
    }
}

/// Finds the backend of a reference of an HTTP route.
pub(crate) fn backend(
    cluster: Cluster<'_>,
    route: &Route,
    kind: GatewayKind,
    reference: &BackendRef,
) -> Result<Backend, Unresolved> {
    Lookup { cluster, route, kind, encrypts: true }.find(reference)
}
