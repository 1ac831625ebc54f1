//! Kinds of objects.

use super::{GROUP, OWN_GROUP};

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
    TelemetryPolicy,
    ClusterTrustBundle,
    RoutePolicy,
}

/// What the API server calls a kind.
struct Names {
    kind: &'static str,
    plural: &'static str,
    group: &'static str,
    /// Version that is read.
    version: &'static str,
}

impl GatewayKind {
    /// Finds a kind by its `apiVersion` and `kind`. The fields that are read are the same in all versions.
    pub fn find(api_version: &str, kind: &str) -> Option<GatewayKind> {
        let (group, _) = api_version.split_once('/')?;
        GatewayKind::ALL.into_iter().find(|k| k.group() == group && k.name() == kind)
    }

    /// All kinds.
    pub const ALL: [GatewayKind; 13] = [
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
        GatewayKind::TelemetryPolicy,
        GatewayKind::ClusterTrustBundle,
        GatewayKind::RoutePolicy,
    ];

    /// Returns `true` for routes of HTTP requests.
    pub(crate) fn is_http(self) -> bool {
        matches!(self, GatewayKind::HttpRoute | GatewayKind::GrpcRoute)
    }

    /// Returns `true` for kinds whose objects are in a namespace.
    pub fn namespaced(self) -> bool {
        !matches!(self, GatewayKind::GatewayClass | GatewayKind::ClusterTrustBundle)
    }

    fn names(self) -> Names {
        let of = |kind, plural, version| Names { kind, plural, group: GROUP, version };
        match self {
            GatewayKind::GatewayClass => of("GatewayClass", "gatewayclasses", "v1"),
            GatewayKind::Gateway => of("Gateway", "gateways", "v1"),
            GatewayKind::HttpRoute => of("HTTPRoute", "httproutes", "v1"),
            GatewayKind::GrpcRoute => of("GRPCRoute", "grpcroutes", "v1"),
            GatewayKind::TlsRoute => of("TLSRoute", "tlsroutes", "v1"),
            GatewayKind::TcpRoute => of("TCPRoute", "tcproutes", "v1"),
            GatewayKind::UdpRoute => of("UDPRoute", "udproutes", "v1"),
            GatewayKind::ReferenceGrant => of("ReferenceGrant", "referencegrants", "v1beta1"),
            GatewayKind::BackendTlsPolicy => of("BackendTLSPolicy", "backendtlspolicies", "v1"),
            GatewayKind::ListenerSet => of("ListenerSet", "listenersets", "v1"),
            GatewayKind::TelemetryPolicy => Names {
                group: "gateway.networking.x-k8s.io",
                ..of("XTelemetryPolicy", "xtelemetrypolicies", "v1alpha1")
            },
            GatewayKind::ClusterTrustBundle => Names {
                group: "certificates.k8s.io",
                ..of("ClusterTrustBundle", "clustertrustbundles", "v1")
            },
            GatewayKind::RoutePolicy => {
                Names { group: OWN_GROUP, ..of("RoutePolicy", "routepolicies", "v1alpha1") }
            }
        }
    }

    /// Returns the name of the kind.
    pub fn name(self) -> &'static str {
        self.names().kind
    }

    /// Returns the plural name, as paths of the API server have it.
    pub fn plural(self) -> &'static str {
        self.names().plural
    }

    /// Returns the group.
    pub fn group(self) -> &'static str {
        self.names().group
    }

    /// Returns the version that is read.
    pub fn version(self) -> &'static str {
        self.names().version
    }
}
