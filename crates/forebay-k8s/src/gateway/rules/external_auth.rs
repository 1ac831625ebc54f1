//! The filter `ExternalAuth`: a service that decides on requests, asked over HTTP.

use super::backends::{Backend, Protocol};
use super::{Place, literal, node, tls};
use crate::gateway::objects::{ExternalAuth, HttpAuth};
use crate::model::File;
use forebay_conf::Node;

/// Fields of requests that the service always gets.
const ALWAYS: &[(&str, &str)] = &[
    ("Host", "$best_http_host"),
    ("Authorization", "$http_authorization"),
    ("X-Forwarded-For", "$remote_addr"),
    ("X-Forwarded-Proto", "$pass_access_scheme"),
    ("X-Forwarded-Host", "$best_http_host"),
    ("X-Request-ID", "$req_id"),
];

/// Largest body that a service gets, bytes.
const LARGEST_BODY: i64 = 1 << 30;

/// Returns what cannot be done of the filter.
pub(super) fn faults(filter: &ExternalAuth) -> Vec<String> {
    let mut faults = Vec::new();
    if filter.protocol != "HTTP" {
        faults.push("ExternalAuth works with the protocol HTTP only, not with ext_authz over gRPC".into());
    }
    if filter.forward_body.as_ref().is_some_and(|body| !(0..=LARGEST_BODY).contains(&body.max_size)) {
        faults.push(format!("ExternalAuth: forwardBody.maxSize is not between 0 and {LARGEST_BODY}"));
    }
    let Some(http) = &filter.http else { return faults };
    for name in http.allowed_headers.iter().chain(&http.allowed_response_headers) {
        let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
        if !plain || super::fields::bad_name(name).is_some() || name.eq_ignore_ascii_case("host") {
            let name = super::matches::shown(name);
            faults.push(format!("ExternalAuth: the field \"{name}\" cannot be copied"));
        }
    }
    if http.allowed_headers.len() > 64 || http.allowed_response_headers.len() > 64 {
        faults.push("ExternalAuth: a list has more than 64 fields".into());
    }
    if let Some(path) = &http.path
        && super::matches::text(path).and_then(|()| super::matches::decoded(path)).is_err()
    {
        faults.push("ExternalAuth: http.path is no path".into());
    }
    faults
}

/// The check of requests by a service.
#[derive(Default)]
pub(super) struct Check {
    /// Directives of the location that it protects.
    pub gate: Vec<Node>,
    /// Directives that come after it has been asked.
    pub after: Vec<Node>,
    /// Fields of requests to the backend.
    pub fields: Vec<(String, String)>,
    /// Its location.
    pub locations: Vec<Node>,
}

/// Makes the check of a filter at a place.
pub(super) fn check(
    filter: &ExternalAuth,
    backend: &Backend,
    place: &Place<'_>,
    files: &mut Vec<File>,
) -> Check {
    let id = &place.id;
    let path = format!("/_authorized_{id}");
    let http = filter.http.clone().unwrap_or_default();
    let mut check = Check::default();
    check.gate.push(node("auth_request", [path.as_str()]));
    let status = format!("$authorized_{id}");
    check.gate.push(node("auth_request_set", [status.as_str(), "$upstream_status"]));
    for (index, name) in http.allowed_response_headers.iter().enumerate() {
        let variable = format!("$authorized_{id}_{index}");
        check.gate.push(node("auth_request_set", [variable.clone(), variable_of("$upstream_http_", name)]));
        check.fields.push((name.clone(), variable));
    }
    if http.allowed_response_headers.is_empty() {
        // HTTPAuthConfig: all of them then.
        check.gate.push(node("auth_request_fields", ["on"]));
    }
    if let Some(size) = body_size(filter) {
        check.gate.push(node("auth_request_body", ["on"]));
        // HTTPExternalAuthFilter: larger bodies must be rejected with a 4xx series error.
        check.gate.push(node("client_max_body_size", [size.to_string()]));
    }
    // Any other status denies.
    let denied = node("if", [format!("({status}"), "!=".into(), "200)".into()]);
    check.after.push(denied.block(vec![node("return", ["403"])]));
    let mut body = asking(filter, &http);
    body.extend(tls::encryption("proxy", backend, place.certificate, files));
    body.extend(passing(backend, &http));
    check.locations.push(node("location", ["=".to_owned(), path]).block(body));
    check
}

/// Returns the length of the longest body that the service gets. `None`: it gets none.
fn body_size(filter: &ExternalAuth) -> Option<i64> {
    filter.forward_body.as_ref().map(|body| body.max_size).filter(|size| *size > 0)
}

/// Returns the variable of a field.
fn variable_of(start: &str, field: &str) -> String {
    format!("{start}{}", field.to_ascii_lowercase().replace('-', "_"))
}

/// Makes the directives of the request to the service.
fn asking(filter: &ExternalAuth, http: &HttpAuth) -> Vec<Node> {
    let mut body = vec![
        node("internal", [""; 0]),
        node("proxy_pass_request_headers", ["off"]),
        node("proxy_method", ["$request_method"]),
    ];
    if body_size(filter).is_none() {
        body.push(node("proxy_pass_request_body", ["off"]));
        body.push(node("proxy_set_header", ["Content-Length", ""]));
    }
    let is_new = |name: &&String| !ALWAYS.iter().any(|(own, _)| own.eq_ignore_ascii_case(name));
    let listed = http.allowed_headers.iter().filter(is_new);
    let listed = listed.map(|name| (name.clone(), variable_of("$http_", name)));
    let always = ALWAYS.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned()));
    body.extend(always.chain(listed).map(|(n, v)| node("proxy_set_header", [n, v])));
    body
}

/// Makes the directives that pass the request to the service.
fn passing(backend: &Backend, http: &HttpAuth) -> [Node; 2] {
    let version = if backend.protocol == Protocol::Http2 { "2" } else { "1.1" };
    let scheme = if backend.tls.is_some() { "https" } else { "http" };
    let prefix = literal(http.path.as_deref().unwrap_or_default().trim_end_matches('/'));
    let target = format!("{scheme}://{}{prefix}$request_uri", backend.spec.name());
    [node("proxy_http_version", [version]), node("proxy_pass", [target])]
}
