//! The Kubernetes objects that a translation reads, with the fields that it reads, and the set of them.
//!
//! Unknown fields are ignored, and absent ones have their defaults, so that objects of newer API servers are read as well.

mod kinds;
mod manifests;
mod secret;
mod set;

pub use kinds::{
    ConfigMap, Endpoint, EndpointConditions, EndpointPort, EndpointSlice, HttpPath, HttpRule, Ingress,
    IngressBackend, IngressClass, IngressClassSpec, IngressRule, IngressServiceBackend, IngressSpec,
    IngressTls, Metadata, Namespace, ParametersRef, Port, PortRef, Service, ServicePort, ServiceSpec,
};
pub use manifests::{Document, GatewayDocument, Manifests, Skipped, yaml};
pub use secret::Secret;
pub use set::{Key, Kind, Object, Objects, Stored};
