//! BackendTLSPolicies.

use super::ObjectRef;
use crate::objects::Metadata;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A BackendTLSPolicy.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
pub struct BackendTlsPolicy {
    /// Metadata.
    pub metadata: Metadata,
    /// Fields of the specification that are not read.
    #[serde(skip)]
    pub unread: Vec<String>,
    /// Specification.
    #[serde(default)]
    pub spec: BackendTlsSpec,
}

/// Specification of a BackendTLSPolicy.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct BackendTlsSpec {
    /// Services.
    pub target_refs: Vec<PolicyTarget>,
    /// Verification.
    pub validation: Validation,
    /// Options of other implementations.
    pub options: BTreeMap<String, String>,
}

/// Service that a policy is about.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PolicyTarget {
    /// Group.
    pub group: String,
    /// Kind.
    pub kind: String,
    /// Name.
    pub name: String,
    /// Name of a port; `None`: all.
    pub section_name: Option<String>,
}

/// Verification of a backend's certificate.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Validation {
    /// ConfigMaps with authorities.
    pub ca_certificate_refs: Vec<ObjectRef>,
    /// `System`.
    #[serde(rename = "wellKnownCACertificates")]
    pub well_known_ca_certificates: Option<String>,
    /// Name in the certificate, and in the handshake.
    pub hostname: String,
    /// Alternative names of which the certificate has to have one, in place of the name.
    pub subject_alt_names: Vec<SubjectAltName>,
}

/// Alternative name of a certificate.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, Serialize)]
#[serde(default)]
pub struct SubjectAltName {
    /// `Hostname` or `URI`.
    #[serde(rename = "type")]
    pub kind: String,
    /// DNS name.
    pub hostname: String,
    /// URI.
    pub uri: String,
}

impl SubjectAltName {
    /// Returns the name as a word of `proxy_ssl_verify_names`; `None` if it is not of its type.
    pub(crate) fn word(&self) -> Option<&str> {
        match self.kind.as_str() {
            "Hostname" => Some(&self.hostname).filter(|name| !name.contains(':')),
            "URI" => Some(&self.uri).filter(|uri| uri.contains(':')),
            _ => None,
        }
        .map(String::as_str)
        .filter(|word| !word.is_empty() && word.is_ascii())
    }
}
