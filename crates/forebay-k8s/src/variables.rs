//! Names of variables that texts may mention, and the check of a text for others.
//!
//! A text with an unknown variable makes a whole configuration invalid, so it has to be found here, in the object that it is of.

use crate::value::Invalid;

/// Variables of nginx's modules that Forebay has, and those that the generated configuration defines.
const KNOWN: &[&str] = &[
    "ancient_browser",
    "arg_",
    "args",
    "binary_remote_addr",
    "body_bytes_sent",
    "bytes_sent",
    "connection",
    "connection_requests",
    "connection_time",
    "content_length",
    "content_type",
    "date_gmt",
    "date_local",
    "document_root",
    "document_uri",
    "fastcgi_path_info",
    "fastcgi_script_name",
    "host",
    "hostname",
    "http2",
    "https",
    "invalid_referer",
    "is_args",
    "limit_conn_status",
    "limit_rate",
    "limit_req_status",
    "modern_browser",
    "msec",
    "nginx_version",
    "pid",
    "pipe",
    "proxy_add_x_forwarded_for",
    "proxy_host",
    "proxy_port",
    "proxy_protocol_addr",
    "proxy_protocol_port",
    "proxy_protocol_server_addr",
    "proxy_protocol_server_port",
    "query_string",
    "realip_remote_addr",
    "realip_remote_port",
    "realpath_root",
    "remote_addr",
    "remote_port",
    "remote_user",
    "request",
    "request_body",
    "request_completion",
    "request_filename",
    "request_id",
    "request_length",
    "request_method",
    "request_time",
    "request_uri",
    "scheme",
    "server_addr",
    "server_name",
    "server_port",
    "server_protocol",
    "ssl_cipher",
    "ssl_ciphers",
    "ssl_client_cert",
    "ssl_client_escaped_cert",
    "ssl_client_fingerprint",
    "ssl_client_i_dn",
    "ssl_client_s_dn",
    "ssl_client_serial",
    "ssl_client_v_end",
    "ssl_client_v_remain",
    "ssl_client_v_start",
    "ssl_client_verify",
    "ssl_curve",
    "ssl_curves",
    "ssl_early_data",
    "ssl_protocol",
    "ssl_server_name",
    "ssl_session_id",
    "ssl_session_reused",
    "status",
    "time_iso8601",
    "time_iso8601_ms",
    "time_local",
    "upstream_addr",
    "upstream_bytes_received",
    "upstream_bytes_sent",
    "upstream_cache_status",
    "upstream_connect_time",
    "upstream_header_time",
    "upstream_last_addr",
    "upstream_response_length",
    "upstream_response_time",
    "upstream_status",
    "uri",
    "gzip_ratio",
    "nginx_version",
];

/// Variables that the generated configuration defines, with ingress-nginx's names.
pub const GENERATED: &[&str] = &[
    "best_http_host",
    "connection_upgrade",
    "escaped_request_uri",
    "full_x_forwarded_for",
    "ingress_name",
    "literal_dollar",
    "location_path",
    "namespace",
    "pass_access_scheme",
    "pass_port",
    "pass_server_port",
    "proxy_alternative_upstream_name",
    "proxy_upstream_name",
    "redirect_to_https",
    "req_id",
    "service_name",
    "service_port",
    "the_real_ip",
];

/// Variables of a location that an authentication service protects, with ingress-nginx's names: the cookie of its answer, and the fields
/// of `auth-response-headers` in their order. They are empty elsewhere.
#[rustfmt::skip]
pub(crate) const OF_AUTHORITY: &[&str] = &[
    "auth_cookie", "authheader0", "authheader1", "authheader2", "authheader3", "authheader4", "authheader5", "authheader6",
    "authheader7", "authheader8", "authheader9", "authheader10", "authheader11", "authheader12", "authheader13", "authheader14",
    "authheader15",
];

/// Variables that the generated configuration defines for itself. Another definition would change who is believed to be whom.
pub(crate) const INTERNAL: &[&str] = &[
    "balancer_port",
    "block_referer",
    "block_user_agent",
    "client_trusted",
    "connection_trusted",
    "dollar_sign",
    "forwarded_trusted",
    "forwarding_addr",
    "hsts_value",
    "loggable",
    "named_host",
    "own_host",
    "own_port",
    "own_scheme",
    "redirect_host",
    "secure_cookie",
    "tls_group",
    "tls_way",
    "trusted_forwarded",
];

/// Variables of the stream block.
const STREAM: &[&str] = &[
    "binary_remote_addr",
    "bytes_received",
    "bytes_sent",
    "connection",
    "hostname",
    "msec",
    "nginx_version",
    "pid",
    "protocol",
    "proxy_protocol_addr",
    "proxy_protocol_port",
    "proxy_protocol_server_addr",
    "proxy_protocol_server_port",
    "realip_remote_addr",
    "realip_remote_port",
    "remote_addr",
    "remote_port",
    "server_addr",
    "server_port",
    "session_time",
    "ssl_preread_alpn_protocols",
    "ssl_preread_protocol",
    "ssl_preread_server_name",
    "status",
    "time_iso8601",
    "time_iso8601_ms",
    "time_local",
    "upstream_addr",
    "upstream_bytes_received",
    "upstream_bytes_sent",
    "upstream_connect_time",
    "upstream_first_byte_time",
    "upstream_last_addr",
    "upstream_session_time",
];

/// Beginnings of names with a part of the request or answer.
const PREFIXES: &[&str] = &[
    "arg_",
    "cookie_",
    "http_",
    "sent_http_",
    "sent_trailer_",
    "trailer_",
    "upstream_cookie_",
    "upstream_http_",
    "upstream_trailer_",
];

/// Returns the known names, for tests against the server.
pub fn known() -> impl Iterator<Item = &'static str> {
    KNOWN.iter().copied().filter(|n| !n.ends_with('_'))
}

/// Returns the known names of the stream block.
pub fn known_in_stream() -> impl Iterator<Item = &'static str> {
    STREAM.iter().copied()
}

/// Returns `true` if a variable of this name exists in every generated configuration.
pub fn exists(name: &str) -> bool {
    let with_prefix = || PREFIXES.iter().any(|p| name.strip_prefix(p).is_some_and(|rest| !rest.is_empty()));
    KNOWN.contains(&name) || GENERATED.contains(&name) || OF_AUTHORITY.contains(&name) || with_prefix()
}

/// A variable in a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mention<'a> {
    /// Offset of the `$`.
    pub at: usize,
    /// Name; empty if none follows.
    pub name: &'a str,
}

/// Returns the variables in a text.
pub fn mentions(text: &str) -> impl Iterator<Item = Mention<'_>> {
    text.match_indices('$').filter_map(move |(at, _)| {
        let rest = text.get(at + 1..)?;
        let (braced, rest) = match rest.strip_prefix('{') {
            Some(rest) => (true, rest),
            None => (false, rest),
        };
        let len = rest.bytes().take_while(|b| b.is_ascii_alphanumeric() || *b == b'_').count();
        let name = rest.get(..len)?;
        let closed = !braced || rest.as_bytes().get(len) == Some(&b'}');
        Some(Mention { at, name: if closed { name } else { "" } })
    })
}

/// Names of variables beside those that always exist: those that snippets of the ConfigMap define.
pub type Known = std::collections::BTreeSet<String>;

/// Checks that a text mentions only variables that exist.
///
/// # Errors
/// The first that does not.
pub fn check(text: &str, known: &Known) -> Result<(), Invalid> {
    check_by(text, |name| exists(name) || known_in_lower_case(&name.to_ascii_lowercase(), known))
}

fn known_in_lower_case(name: &str, known: &Known) -> bool {
    known.contains(name) || OF_AUTHORITY.contains(&name)
}

/// Checks that a text mentions only variables of the stream block.
///
/// # Errors
/// The first that is none.
pub fn check_stream(text: &str) -> Result<(), Invalid> {
    check_by(text, |name| STREAM.contains(&name))
}

fn check_by(text: &str, known: impl Fn(&str) -> bool) -> Result<(), Invalid> {
    for Mention { at, name } in mentions(text) {
        if name.is_empty() {
            return Err(Invalid::new(at, "the name of a variable is missing after \"$\""));
        }
        if !known(name) {
            return Err(Invalid::new(at, format!("there is no variable \"${name}\"")));
        }
    }
    Ok(())
}
