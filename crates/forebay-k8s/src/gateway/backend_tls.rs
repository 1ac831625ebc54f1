//! TLS to backends (BackendTLSPolicy).

use super::attach::{Cluster, age};
use super::objects::BackendTlsPolicy;
use super::rules::{BackendTls, Unresolved};
use crate::groups::short_hash;
use crate::model::File;
use crate::objects::Key;
use std::sync::Arc;

/// Returns the policy of a port of a Service: that for the port rather than that for the Service, then the oldest.
pub(crate) fn policy<'a>(
    cluster: Cluster<'a>,
    service: &Key,
    port: &str,
) -> Option<(&'a Key, &'a Arc<BackendTlsPolicy>)> {
    let rank = |policy: &BackendTlsPolicy| {
        let targets = policy
            .spec
            .target_refs
            .iter()
            .filter(|t| t.group.is_empty() && t.kind == "Service" && t.name == service.name);
        targets
            .filter_map(|t| match t.section_name.as_deref() {
                Some(section) if section == port => Some(0),
                Some(_) => None,
                None => Some(1),
            })
            .min()
    };
    let here = cluster.gateway.tls_policies.iter().filter(|(key, _)| key.namespace == service.namespace);
    here.filter_map(|(key, policy)| Some((rank(policy)?, key, policy)))
        .min_by(|a, b| (a.0, age(&a.2.metadata, a.1)).cmp(&(b.0, age(&b.2.metadata, b.1))))
        .map(|(_, key, policy)| (key, policy))
}

/// Returns the TLS settings for a port of a Service; `None` without a policy.
///
/// # Errors
/// The policy cannot be used. Requests must not go to the backend without TLS then.
pub(crate) fn of(cluster: Cluster<'_>, service: &Key, port: &str) -> Result<Option<BackendTls>, Unresolved> {
    let Some((key, policy)) = policy(cluster, service, port) else { return Ok(None) };
    let name = policy.spec.validation.hostname.clone();
    let given = &policy.spec.validation.subject_alt_names;
    let names: Vec<String> = given.iter().filter_map(|n| Some(n.word()?.to_owned())).collect();
    if names.len() < given.len() {
        // Without it the others, or none at all, would decide.
        return Err((
            "BackendNotFound",
            format!("BackendTLSPolicy {key}: a subjectAltName is not of its type"),
        ));
    }
    if policy.spec.validation.well_known_ca_certificates.as_deref() == Some("System") {
        return Ok(Some(BackendTls { name, names, authorities: None }));
    }
    let bytes = authorities(cluster, key, policy).map_err(|(reason, text)| {
        let _ = reason;
        ("BackendNotFound", format!("BackendTLSPolicy {key}: {text}"))
    })?;
    let path = format!("gateways/authorities-{}.pem", short_hash(&format!("{key} {}", policy.metadata.uid)));
    Ok(Some(BackendTls { name, names, authorities: Some(File { path, bytes: bytes.into() }) }))
}

/// Returns the authorities of a policy.
///
/// # Errors
/// Reason and message of the condition `ResolvedRefs`.
pub(crate) fn authorities(
    cluster: Cluster<'_>,
    key: &Key,
    policy: &BackendTlsPolicy,
) -> Result<Vec<u8>, (&'static str, String)> {
    let mut all = Vec::new();
    for reference in &policy.spec.validation.ca_certificate_refs {
        let kind =
            (reference.group.as_deref().unwrap_or(""), reference.kind.as_deref().unwrap_or("ConfigMap"));
        if kind != ("", "ConfigMap") {
            return Err(("InvalidKind", format!("authorities of kind {} are not known", kind.1)));
        }
        let map = Key::new(key.namespace.as_str(), reference.name.as_str());
        let found = cluster.objects.config_map(&map).and_then(|m| m.object.data.get("ca.crt").cloned());
        let text = found.filter(|text| text.contains("-----BEGIN CERTIFICATE-----"));
        let text = text.ok_or_else(|| {
            ("InvalidCACertificateRef", format!("ConfigMap {map} has no certificate at ca.crt"))
        })?;
        if let Some(why) = cluster.judge.authorities(text.as_bytes()) {
            let text = format!("ca.crt of the ConfigMap {map} cannot be used: {why}");
            return Err(("InvalidCACertificateRef", text));
        }
        all.extend_from_slice(text.as_bytes());
        all.push(b'\n');
    }
    if all.is_empty() {
        return Err(("InvalidCACertificateRef", "there is no authority".to_owned()));
    }
    Ok(all)
}
