//! Objects of the Gateway API and of its neighbours, with the fields that a translation reads.

mod filter;
mod gateway;
mod grant;
mod kinds;
mod listener;
mod policies;
mod route;
mod set;
mod tls_policy;

pub use filter::{
    Cors, ExternalAuth, Filter, ForwardBody, Fraction, GrpcAuth, HeaderModifier, HttpAuth, NameValue,
    PathModifier, Redirect, RequestMirror, UrlRewrite,
};
pub use gateway::{
    Address, BackendSide, Frontend, FrontendTls, FrontendValidation, Gateway, GatewayClass, GatewayClassSpec,
    GatewaySpec, GatewayStatus, GatewayTls, Infrastructure, PortTls,
};
pub use grant::{GrantFrom, GrantSpec, GrantTo, ReferenceGrant};
pub use kinds::GatewayKind;
pub use listener::{
    AllowedListeners, AllowedNamespaces, AllowedRoutes, Expression, Listener, ListenerSet, ListenerSetSpec,
    ListenerTls, RouteKind, Selector,
};
pub use policies::{ClusterTrustBundle, RoutePolicy, TelemetryPolicy, TelemetrySpec, TrustBundleSpec};
pub use route::{
    BackendRef, GrpcMethod, Match, Method, ParentRef, PathMatch, Retry, Route, RouteSpec, Rule,
    SessionCookie, SessionHeader, SessionPersistence, Timeouts, ValueMatch,
};
pub use set::{AllAside, Aside, GatewayObjects, Place};
pub use tls_policy::{BackendTlsPolicy, BackendTlsSpec, PolicyTarget, SubjectAltName, Validation};

use serde::{Deserialize, Serialize};

/// Group of the API.
pub const GROUP: &str = "gateway.networking.k8s.io";

/// Group of our own kinds, the prefix of our annotations.
pub const OWN_GROUP: &str = crate::annotations::PREFIX;

/// Reference to an object.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
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
