//! Passing requests on to a backend, over TLS or without it.

use super::backends::{Backend, Protocol};
use super::{literal, node};
use crate::model::{CertificateFiles, File};
use forebay_conf::Node;

/// Returns the directives that pass a request on.
pub(super) fn pass(
    backend: &Backend,
    certificate: Option<&CertificateFiles>,
    files: &mut Vec<File>,
) -> Vec<Node> {
    let name = backend.spec.name();
    let (family, scheme) = match (backend.protocol, &backend.tls) {
        (Protocol::Grpc, None) => ("grpc", "grpc"),
        (Protocol::Grpc, Some(_)) => ("grpc", "grpcs"),
        (_, None) => ("proxy", "http"),
        (_, Some(_)) => ("proxy", "https"),
    };
    let mut nodes = encryption(family, backend, certificate, files);
    if family == "proxy" {
        let version = if backend.protocol == Protocol::Http2 { "2" } else { "1.1" };
        nodes.push(node("proxy_http_version", [version]));
    }
    nodes.push(node(&format!("{family}_pass"), [format!("{scheme}://{name}")]));
    nodes
}

/// Returns the directives for TLS to a backend. `family` is the first word of their names.
pub(crate) fn encryption(
    family: &str,
    backend: &Backend,
    certificate: Option<&CertificateFiles>,
    files: &mut Vec<File>,
) -> Vec<Node> {
    let mut nodes = Vec::new();
    let Some(tls) = &backend.tls else { return nodes };
    nodes.push(node(&format!("{family}_ssl_server_name"), ["on"]));
    nodes.push(node(&format!("{family}_ssl_name"), [literal(&tls.name)]));
    nodes.push(node(&format!("{family}_ssl_verify"), ["on"]));
    nodes.push(node(&format!("{family}_ssl_verify_depth"), ["4"]));
    if !tls.names.is_empty() {
        nodes.push(node(&format!("{family}_ssl_verify_names"), tls.names.iter().map(String::as_str)));
    }
    let authorities = tls.authorities.as_ref().map_or(SYSTEM_AUTHORITIES, |f| f.path.as_str());
    nodes.push(node(&format!("{family}_ssl_trusted_certificate"), [authorities]));
    files.extend(tls.authorities.clone());
    if let Some(own) = certificate {
        nodes.push(node(&format!("{family}_ssl_certificate"), [own.chain.path.as_str()]));
        nodes.push(node(&format!("{family}_ssl_certificate_key"), [own.key.path.as_str()]));
        files.extend([own.chain.clone(), own.key.clone()]);
    }
    nodes
}

/// Authorities of the system, where Debian and the image have them.
const SYSTEM_AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";
