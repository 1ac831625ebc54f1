//! Certificates that listeners refer to: their own, and those of authorities.

use super::cluster::{Cluster, Referrer};
use super::listener::{Attached, Clients};
use super::objects::{Gateway, GatewayKind, ObjectRef};
use crate::groups::short_hash;
use crate::ingress::certificate_files;
use crate::model::{CertificateFiles, File};
use crate::objects::Key;

pub(super) fn certificate(
    cluster: Cluster<'_>,
    reference: &ObjectRef,
    referrer: Referrer<'_>,
) -> Result<CertificateFiles, (&'static str, String)> {
    let invalid = |text: String| ("InvalidCertificateRef", text);
    if !reference.group.as_deref().unwrap_or("").is_empty()
        || reference.kind.as_deref().unwrap_or("Secret") != "Secret"
    {
        return Err(invalid(format!("\"{}\" is no Secret", reference.name)));
    }
    let key = Key::new(reference.namespace.as_deref().unwrap_or(referrer.namespace), reference.name.as_str());
    if !cluster.is_granted(referrer, "Secret", &key) {
        return Err(("RefNotPermitted", format!("no ReferenceGrant allows the Secret {key}")));
    }
    let Some(secret) = cluster.objects.secret(&key) else {
        return Err(invalid(format!("there is no Secret {key}")));
    };
    let secret = cluster.judge.secret(secret.object.clone());
    certificate_files(&key, &secret).map_err(|e| invalid(format!("Secret {key}: {e}")))
}

/// Finds the authorities of clients.
pub(super) fn verify_clients(cluster: Cluster<'_>, gateway: &Key, object: &Gateway, l: &mut Attached) {
    let Some(frontend) = &object.spec.tls.frontend else { return };
    let own = frontend.per_port.iter().find(|p| p.port == l.listener.port).map(|p| &p.tls);
    let Some(validation) = &own.unwrap_or(&frontend.default).validation else { return };
    let (mut bytes, mut wrong) = (Vec::new(), None);
    for reference in &validation.ca_certificate_refs {
        match authority(cluster, gateway, reference) {
            Ok(text) => bytes.extend_from_slice(format!("{text}\n").as_bytes()),
            Err(why) => wrong = Some(why),
        }
    }
    if bytes.is_empty() {
        let (reason, text) = wrong.unwrap_or(("InvalidCACertificateRef", "there is no authority".to_owned()));
        l.clients = Clients::Unknown;
        l.unresolved = Some((reason, text));
        return;
    }
    if wrong.is_some() {
        l.unresolved = wrong;
    }
    let name = short_hash(&format!("{gateway} {}", l.listener.port));
    let authorities = File { path: format!("gateways/clients-{name}.pem"), bytes: bytes.into() };
    l.clients =
        Clients::Of { authorities, insecure: validation.mode.as_deref() == Some("AllowInsecureFallback") };
}

fn authority(
    cluster: Cluster<'_>,
    gateway: &Key,
    reference: &ObjectRef,
) -> Result<String, (&'static str, String)> {
    if let Some(found) = trust_bundle(cluster, reference) {
        return found;
    }
    if (reference.group.as_deref().unwrap_or(""), reference.kind.as_deref().unwrap_or("ConfigMap"))
        != ("", "ConfigMap")
    {
        return Err(("InvalidCACertificateKind", format!("\"{}\" is no ConfigMap", reference.name)));
    }
    let key = Key::new(reference.namespace.as_deref().unwrap_or(&gateway.namespace), reference.name.as_str());
    let referrer = Referrer { kind: "Gateway", namespace: &gateway.namespace };
    if !cluster.is_granted(referrer, "ConfigMap", &key) {
        return Err(("RefNotPermitted", format!("no ReferenceGrant allows the ConfigMap {key}")));
    }
    authorities_of_map(cluster, &key)
}

/// Returns the authorities in a ConfigMap.
pub(super) fn authorities_of_map(cluster: Cluster<'_>, key: &Key) -> Result<String, (&'static str, String)> {
    let text = cluster.objects.config_map(key).and_then(|m| m.object.data.get("ca.crt").cloned());
    usable(cluster, text, || format!("ConfigMap {key} has no certificate at ca.crt"))
}

/// Returns a list of authorities that the server can use.
fn usable(
    cluster: Cluster<'_>,
    text: Option<String>,
    missing: impl Fn() -> String,
) -> Result<String, (&'static str, String)> {
    let invalid = |text: String| ("InvalidCACertificateRef", text);
    let text = text.filter(|text| text.contains(BEGIN)).ok_or_else(|| invalid(missing()))?;
    match cluster.judge.authorities(text.as_bytes()) {
        Some(why) => Err(invalid(format!("{}: {why}", missing()))),
        None => Ok(text),
    }
}

/// First line of a certificate.
const BEGIN: &str = "-----BEGIN CERTIFICATE-----";

/// Returns the authorities of a ClusterTrustBundle; `None` if the reference is to another kind.
pub(super) fn trust_bundle(
    cluster: Cluster<'_>,
    reference: &ObjectRef,
) -> Option<Result<String, (&'static str, String)>> {
    let kind = GatewayKind::ClusterTrustBundle;
    if (reference.group.as_deref(), reference.kind.as_deref()) != (Some(kind.group()), Some(kind.name())) {
        return None;
    }
    let name = &reference.name;
    if reference.namespace.is_some() {
        let text = format!("ClusterTrustBundle {name} is in no namespace");
        return Some(Err(("InvalidCACertificateRef", text)));
    }
    let bundle = cluster.gateway.trust_bundles.get(&Key::new("", name.as_str()));
    let text = bundle.map(|b| b.spec.trust_bundle.clone());
    Some(usable(cluster, text, || format!("there is no ClusterTrustBundle {name} with a certificate")))
}
