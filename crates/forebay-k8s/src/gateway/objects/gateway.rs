//! GatewayClasses and Gateways.

use super::{AllowedListeners, Listener, ObjectRef};
use crate::objects::Metadata;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

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
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct GatewayClassSpec {
    /// Name of its controller.
    pub controller_name: String,
    /// Text for people.
    pub description: Option<String>,
    /// Object with parameters of the implementation. None is known, so that such a class is not accepted.
    pub parameters_ref: Option<ObjectRef>,
}

/// A Gateway.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct Gateway {
    /// Metadata.
    pub metadata: Metadata,
    /// Specification.
    #[serde(default)]
    pub spec: GatewaySpec,
    /// Fields of the specification that are not read.
    #[serde(skip)]
    pub unread: Vec<String>,
    /// Status, for the addresses that it has.
    #[serde(default)]
    pub status: GatewayStatus,
}

/// Specification of a Gateway.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
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
    /// What the objects that a Gateway brings are to have.
    pub infrastructure: Option<Infrastructure>,
}

/// Wishes about the objects that an implementation makes for a Gateway. Forebay makes none.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Infrastructure {
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    pub annotations: BTreeMap<String, String>,
    /// Object with parameters of the implementation.
    pub parameters_ref: Option<ObjectRef>,
}

/// TLS of a Gateway.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct GatewayTls {
    /// To clients.
    pub frontend: Option<Frontend>,
    /// To backends.
    pub backend: Option<BackendSide>,
}

/// Certificates of clients.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Frontend {
    /// For all ports.
    pub default: FrontendTls,
    /// For single ports.
    pub per_port: Vec<PortTls>,
}

/// Certificates of clients at a port.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct PortTls {
    /// Port.
    pub port: u16,
    /// Verification.
    pub tls: FrontendTls,
}

/// Verification of clients.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct FrontendTls {
    /// Verification; `None`: clients show no certificate.
    pub validation: Option<FrontendValidation>,
}

/// Verification of the certificates of clients.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct FrontendValidation {
    /// ConfigMaps with authorities.
    pub ca_certificate_refs: Vec<ObjectRef>,
    /// `AllowValidOnly` or `AllowInsecureFallback`.
    pub mode: Option<String>,
}

/// Certificate that backends see.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BackendSide {
    /// Secret.
    pub client_certificate_ref: Option<ObjectRef>,
}

/// Status of a Gateway.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct GatewayStatus {
    /// Addresses.
    pub addresses: Vec<Address>,
}

/// Address of a Gateway.
#[derive(Clone, Debug, Default, Deserialize, Serialize, PartialEq, Eq)]
#[serde(default)]
pub struct Address {
    /// `IPAddress`, `Hostname` or another type.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// The address.
    pub value: String,
}
