//! Objects beside the Gateway API: policies, and certificates of authorities for the whole cluster.

use super::PolicyTarget;
use crate::objects::Metadata;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A policy of ours for routes. `route_policy/` reads its fields.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct RoutePolicy {
    /// Metadata.
    pub metadata: Metadata,
    /// Specification.
    #[serde(default)]
    pub spec: Value,
}

/// An XTelemetryPolicy.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct TelemetryPolicy {
    /// Metadata.
    pub metadata: Metadata,
    /// Specification.
    #[serde(default)]
    pub spec: TelemetrySpec,
}

/// Specification of an XTelemetryPolicy.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TelemetrySpec {
    /// Gateways.
    pub target_refs: Vec<PolicyTarget>,
}

/// A ClusterTrustBundle.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct ClusterTrustBundle {
    /// Metadata.
    pub metadata: Metadata,
    /// Specification.
    #[serde(default)]
    pub spec: TrustBundleSpec,
}

/// Specification of a ClusterTrustBundle.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct TrustBundleSpec {
    /// Certificates, PEM.
    pub trust_bundle: String,
}
