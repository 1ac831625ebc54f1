//! The `http` block of the main file.

use super::super::host::{fields, location};
use super::super::node;
use super::{Main, forwarded};
use crate::ingress::Globals;
use crate::value::{parse_size, parse_time};
use crate::variables::OF_AUTHORITY;
use forebay_conf::Node;

pub(super) fn map(from: &str, to: &str, entries: &[(&str, &str)]) -> Node {
    node("map", [from, to]).block(entries.iter().map(|(k, v)| node(k, [*v])).collect())
}

pub(super) fn block(parts: &Main<'_>) -> Vec<Node> {
    let globals = parts.globals;
    let mut nodes = globals.options.http.clone();
    // A name without an address is to fail by itself.
    nodes.push(node("upstream_start_unresolved", ["on"]));
    variables(globals, &mut nodes);
    client(globals, &mut nodes);
    forwarded::real_ip(globals, &mut nodes);
    proxying(globals, &mut nodes);
    nodes.extend(fields::http(globals));
    compression(globals, &mut nodes);
    tls(parts, &mut nodes);
    logs(globals, &mut nodes);
    if !globals.options.resolvers.is_empty() {
        let off = globals.settings.flag("disable-ipv6-dns").then_some("ipv6=off");
        nodes.push(
            node("resolver", globals.options.resolvers.iter().map(String::as_str)).args(off).arg("valid=30s"),
        );
    }
    if parts.auth_cache {
        let path = globals.options.cache_directory.as_str();
        nodes.push(node(
            "proxy_cache_path",
            [path, "keys_zone=auth_cache:10m", "max_size=128m", "inactive=30m", "use_temp_path=off"],
        ));
    }
    let mut nodes = super::super::merge::join(nodes, &globals.snippets.http);
    nodes.extend(status(globals));
    // Patterns: the main file stays the same when hosts come and go, and so do the parts that are made of the other files.
    nodes.extend(INCLUDED.iter().map(|pattern| node("include", [*pattern])));
    nodes
}

/// Files of groups and hosts, and that of Gateways. A file need not exist.
const INCLUDED: [&str; 4] = ["groups*.conf", "groups/*.conf", "hosts/*.conf", "gateways/http*.conf"];

/// Makes the variables that all hosts use.
fn variables(globals: &Globals, nodes: &mut Vec<Node>) {
    let s = &globals.settings;
    // The second one is for snippets.
    for name in ["$dollar_sign", "$literal_dollar"] {
        nodes.push(node("geo", [name]).block(vec![node("default", ["$"])]));
    }
    nodes.push(map("$http_host", "$named_host", &[("default", "$http_host"), ("", "$host")]));
    // The host of an absolute URI counts, whatever the field says (RFC 9112, section 3.2.2).
    let absolute = [("default", "$named_host"), ("~^[^ ]+ +[^/ ]+://", "$host")];
    nodes.push(map("$request", "$own_host", &absolute));
    forwarded::connection(globals, nodes);
    forwarded::own_port(globals, nodes);
    if s.flag("use-forwarded-headers") {
        forwarded::trust(globals, nodes);
        // Of a list, the first is what the client used.
        let proto = [
            ("default", "$own_scheme"),
            ("~^1:(?<forwarded_proto>[A-Za-z][A-Za-z0-9+.-]*)", "$forwarded_proto"),
        ];
        nodes.push(map("$forwarded_trusted:$http_x_forwarded_proto", "$pass_access_scheme", &proto));
        let host = [("default", "$own_host"), ("~^1:(?<forwarded_host>[A-Za-z0-9.:_-]+)", "$forwarded_host")];
        nodes.push(map("$forwarded_trusted:$http_x_forwarded_host", "$best_http_host", &host));
        let port = [("default", "$pass_server_port"), ("~^1:(?<forwarded_port>[0-9]+)$", "$forwarded_port")];
        nodes.push(map("$forwarded_trusted:$http_x_forwarded_port", "$pass_port", &port));
    } else {
        nodes.push(map("$host", "$pass_access_scheme", &[("default", "$own_scheme")]));
        nodes.push(map("$host", "$best_http_host", &[("default", "$own_host")]));
        nodes.push(map("$host", "$pass_port", &[("default", "$pass_server_port")]));
    }
    nodes.push(map("$pass_access_scheme", "$redirect_to_https", &[("http", "1"), ("default", "")]));
    let bare = [("default", "$best_http_host"), ("~^(?<redirect_name>.+):[0-9]+$", "$redirect_name")];
    nodes.push(map("$best_http_host", "$redirect_host", &bare));
    let idle = if s.number("upstream-keepalive-connections") > 0 { "" } else { "close" };
    nodes.push(map("$http_upgrade", "$connection_upgrade", &[("default", "upgrade"), ("", idle)]));
    let request_id = if s.flag("generate-request-id") { "$request_id" } else { "" };
    nodes.push(map("$http_x_request_id", "$req_id", &[("default", "$http_x_request_id"), ("", request_id)]));
    nodes.push(map("$host", "$the_real_ip", &[("default", "$remote_addr")]));
    let full = [("default", "$http_x_forwarded_for, $realip_remote_addr"), ("", "$realip_remote_addr")];
    nodes.push(map("$http_x_forwarded_for", "$full_x_forwarded_for", &full));
    // Locations that the controller does not make set none of them.
    let of_location = location::OF_LOCATION.iter().filter(|name| **name != "proxy_host");
    for name in of_location.chain(OF_AUTHORITY) {
        nodes.push(map("$host", &format!("${name}"), &[("default", "")]));
    }
    let mut hsts = format!("max-age={}", s.number("hsts-max-age"));
    if s.flag("hsts-include-subdomains") {
        hsts.push_str("; includeSubDomains");
    }
    if s.flag("hsts-preload") {
        hsts.push_str("; preload");
    }
    nodes.push(map("$scheme", "$hsts_value", &[("https", &hsts), ("default", "")]));
    blocked(globals, "block-user-agents", "$http_user_agent", "$block_user_agent", nodes);
    blocked(globals, "block-referers", "$http_referer", "$block_referer", nodes);
}

/// Makes the variable of a list of texts and regular expressions.
fn blocked(globals: &Globals, key: &'static str, from: &str, to: &str, nodes: &mut Vec<Node>) {
    let entries: Vec<Node> =
        globals.settings.list(key).filter(|p| is_pattern(p)).map(|p| node(p, ["1"])).collect();
    if !entries.is_empty() {
        let all = std::iter::once(node("default", [""])).chain(entries).collect();
        nodes.push(node("map", [from, to]).block(all));
    }
}

/// Returns `true` for a key of a `map`: a text that is no word of its own, or a regular expression.
pub(crate) fn is_pattern(text: &str) -> bool {
    match text.strip_prefix('~') {
        Some(regex) => {
            crate::value::regex_lint(regex.strip_prefix('*').unwrap_or(regex)).is_none() && regex.len() > 1
        }
        None => !["default", "hostnames", "include", "volatile"].contains(&text),
    }
}

fn size(globals: &Globals, nodes: &mut Vec<Node>, key: &'static str, directive: &str) {
    if let Some(value) = globals.settings.some(key).and_then(parse_size) {
        nodes.push(node(directive, [value]));
    }
}

fn seconds(globals: &Globals, nodes: &mut Vec<Node>, key: &'static str, directive: &str) {
    nodes.push(node(directive, [format!("{}s", globals.settings.number(key))]));
}

fn flag(globals: &Globals, nodes: &mut Vec<Node>, key: &'static str, directive: &str) {
    nodes.push(node(directive, [if globals.settings.flag(key) { "on" } else { "off" }]));
}

fn client(globals: &Globals, nodes: &mut Vec<Node>) {
    let s = &globals.settings;
    size(globals, nodes, "client-body-buffer-size", "client_body_buffer_size");
    size(globals, nodes, "client-header-buffer-size", "client_header_buffer_size");
    size(globals, nodes, "proxy-body-size", "client_max_body_size");
    seconds(globals, nodes, "client-body-timeout", "client_body_timeout");
    seconds(globals, nodes, "client-header-timeout", "client_header_timeout");
    seconds(globals, nodes, "keep-alive", "keepalive_timeout");
    nodes.push(node("keepalive_requests", [s.get("keep-alive-requests")]));
    let buffers: Vec<&str> = s.get("large-client-header-buffers").split_ascii_whitespace().collect();
    if buffers.len() == 2 {
        nodes.push(node("large_client_header_buffers", buffers));
    }
    flag(globals, nodes, "use-http2", "http2");
    let (port, public) = (globals.options.https_port, globals.options.public_https_port);
    if globals.settings.flag("use-http3") && port != public {
        // Clients reach the port of the Service.
        nodes.push(node("http3_alt_svc", [format!("h3=\":{public}\"; ma=86400")]));
    }
    nodes.push(node(
        "http2_max_concurrent_streams",
        [s.number("http2-max-concurrent-streams").clamp(1, 100_000).to_string()],
    ));
    flag(globals, nodes, "ignore-invalid-headers", "ignore_invalid_headers");
    flag(globals, nodes, "enable-underscores-in-headers", "underscores_in_headers");
    nodes.push(node("default_type", [s.get("default-type")]));
    nodes.push(node("absolute_redirect", [if s.flag("relative-redirects") { "off" } else { "on" }]));
    flag(globals, nodes, "use-port-in-redirects", "port_in_redirect");
    let tokens = s.flag("server-tokens");
    nodes.push(node("server_tokens", [if tokens { "on" } else { "off" }]));
    if !tokens && !s.flag("allow-backend-server-header") {
        nodes.push(node("more_clear_headers", ["Server"]));
    }
    nodes.push(node("limit_req_status", [s.get("limit-req-status-code")]));
    nodes.push(node("limit_conn_status", [s.get("limit-conn-status-code")]));
    for (key, directive) in [("limit-rate", "limit_rate"), ("limit-rate-after", "limit_rate_after")] {
        if s.number(key) > 0 {
            nodes.push(node(directive, [format!("{}k", s.number(key))]));
        }
    }
    for (name, value) in &globals.response_headers {
        nodes.push(node("more_set_headers", [format!("{name}: {value}")]));
    }
}

fn proxying(globals: &Globals, nodes: &mut Vec<Node>) {
    let s = &globals.settings;
    nodes.push(node("proxy_http_version", [s.get("proxy-http-version")]));
    let mut next: Vec<&str> = s.get("proxy-next-upstream").split_ascii_whitespace().collect();
    if next.is_empty() || !next.iter().all(|w| forebay_conf::grammar::NEXT_UPSTREAM.contains(w)) {
        next = vec!["error", "timeout"];
    }
    if s.flag("retry-non-idempotent") && !next.contains(&"non_idempotent") {
        next.push("non_idempotent");
    }
    for module in ["proxy", "grpc"] {
        for (key, rest) in [
            ("proxy-connect-timeout", "connect_timeout"),
            ("proxy-send-timeout", "send_timeout"),
            ("proxy-read-timeout", "read_timeout"),
            ("proxy-next-upstream-timeout", "next_upstream_timeout"),
        ] {
            seconds(globals, nodes, key, &format!("{module}_{rest}"));
        }
        nodes.push(node(&format!("{module}_next_upstream_tries"), [s.get("proxy-next-upstream-tries")]));
        let words = next.iter().copied().filter(|w| module == "proxy" || *w != "off");
        nodes.push(node(&format!("{module}_next_upstream"), words));
    }
    nodes.push(node("proxy_buffering", [s.get("proxy-buffering")]));
    nodes.push(node("proxy_request_buffering", [s.get("proxy-request-buffering")]));
    buffers(globals, nodes);
    if s.number("grpc-buffer-size-kb") > 0 {
        nodes.push(node("grpc_buffer_size", [format!("{}k", s.number("grpc-buffer-size-kb"))]));
    }
    for (key, directive) in
        [("proxy-cookie-domain", "proxy_cookie_domain"), ("proxy-cookie-path", "proxy_cookie_path")]
    {
        let words: Vec<&str> = s.get(key).split_ascii_whitespace().collect();
        if words == ["off"] || words.len() == 2 {
            nodes.push(node(directive, words));
        }
    }
    let (from, to) = (s.get("proxy-redirect-from"), s.get("proxy-redirect-to"));
    if from == "off" || from == "default" {
        nodes.push(node("proxy_redirect", ["off"]));
    } else if to != "off" {
        nodes.push(node("proxy_redirect", [from, to]));
    }
    nodes.push(node("proxy_ssl_session_reuse", ["on"]));
    nodes.extend(s.list("hide-headers").map(|h| node("proxy_hide_header", [h])));
    if s.flag("allow-backend-server-header") {
        nodes.push(node("proxy_pass_header", ["Server"]));
    }
    for (name, value) in &globals.headers {
        nodes.push(node("proxy_set_header", [name.as_str(), value.as_str()]));
        if !matches!(name.as_str(), "Upgrade" | "Connection") {
            nodes.push(node("grpc_set_header", [name.as_str(), value.as_str()]));
        }
    }
}

/// Adds the sizes of buffers, made to fit each other.
fn buffers(globals: &Globals, nodes: &mut Vec<Node>) {
    let s = &globals.settings;
    let bytes = |key: &'static str| {
        s.some(key).and_then(parse_size).and_then(|t| forebay_conf::units::size(t.as_bytes()))
    };
    let size = bytes("proxy-buffer-size").unwrap_or(4096).max(1024);
    let number = s.number("proxy-buffers-number").max(2).unsigned_abs();
    let most = size.saturating_mul(number - 1);
    let busy = bytes("proxy-busy-buffers-size").unwrap_or(size * 2).min(most - 1).max(size);
    let temp = bytes("proxy-max-temp-file-size").map_or(0, |n| if n == 0 { 0 } else { n.max(size) });
    nodes.push(node("proxy_buffer_size", [size.to_string()]));
    nodes.push(node("proxy_buffers", [number.to_string(), size.to_string()]));
    nodes.push(node("proxy_busy_buffers_size", [busy.to_string()]));
    nodes.push(node("proxy_max_temp_file_size", [temp.to_string()]));
}

fn compression(globals: &Globals, nodes: &mut Vec<Node>) {
    let s = &globals.settings;
    // `text/html` is always among the types; naming it again is an error.
    let types = |key: &'static str| -> Vec<String> {
        s.get(key).split_ascii_whitespace().filter(|t| *t != "text/html").map(str::to_owned).collect()
    };
    let list = |name: &str, types: Vec<String>, nodes: &mut Vec<Node>| {
        // Without the directive, `text/html` is the only type.
        if !types.is_empty() {
            nodes.push(node(name, types));
        }
    };
    if s.flag("use-gzip") {
        nodes.push(node("gzip", ["on"]));
        nodes.push(node("gzip_comp_level", [s.get("gzip-level")]));
        nodes.push(node("gzip_min_length", [s.get("gzip-min-length")]));
        nodes.push(node("gzip_http_version", ["1.1"]));
        nodes.push(node("gzip_proxied", ["any"]));
        nodes.push(node("gzip_vary", ["on"]));
        list("gzip_types", types("gzip-types"), nodes);
        if let Some(disable) = s.some("gzip-disable").filter(|d| crate::value::regex_lint(d).is_none()) {
            nodes.push(node("gzip_disable", [disable]));
        }
    }
    if s.flag("enable-brotli") {
        nodes.push(node("brotli", ["on"]));
        nodes.push(node("brotli_comp_level", [s.get("brotli-level")]));
        nodes.push(node("brotli_min_length", [s.get("brotli-min-length")]));
        list("brotli_types", types("brotli-types"), nodes);
    }
}

fn tls(parts: &Main<'_>, nodes: &mut Vec<Node>) {
    let globals = parts.globals;
    let s = &globals.settings;
    if let Some(files) = &parts.certificate {
        nodes.push(node("ssl_certificate", [files.chain.path.as_str()]));
        nodes.push(node("ssl_certificate_key", [files.key.path.as_str()]));
    }
    let protocols: Vec<&str> = s
        .get("ssl-protocols")
        .split_ascii_whitespace()
        .filter(|p| matches!(*p, "TLSv1.2" | "TLSv1.3"))
        .collect();
    if !protocols.is_empty() {
        nodes.push(node("ssl_protocols", protocols));
    }
    if let Some(ciphers) = crate::value::ciphers(s.get("ssl-ciphers")) {
        nodes.push(node("ssl_ciphers", [ciphers]));
    }
    let curves = ["X25519MLKEM768", "X25519", "prime256v1", "P-256", "secp384r1", "P-384"];
    let known: Vec<&str> = s.get("ssl-ecdh-curve").split(':').filter(|c| curves.contains(c)).collect();
    if !known.is_empty() {
        nodes.push(node("ssl_ecdh_curve", [known.join(":")]));
    }
    flag(globals, nodes, "ssl-early-data", "ssl_early_data");
    size(globals, nodes, "ssl-buffer-size", "ssl_buffer_size");
    if s.flag("ssl-session-cache") {
        let size = parse_size(s.get("ssl-session-cache-size"));
        let bytes = size.and_then(|t| forebay_conf::units::size(t.as_bytes())).unwrap_or(10 << 20);
        // Smaller ones are an error.
        nodes.push(node("ssl_session_cache", [format!("shared:SSL:{}", bytes.max(128 << 10))]));
    }
    if let Some(time) = parse_time(s.get("ssl-session-timeout")) {
        nodes.push(node("ssl_session_timeout", [time]));
    }
    flag(globals, nodes, "ssl-session-tickets", "ssl_session_tickets");
    for index in 0..globals.ticket_keys.len() {
        nodes.push(node("ssl_session_ticket_key", [crate::ingress::ticket_path(index)]));
    }
    if s.flag("enable-ocsp") && !globals.options.resolvers.is_empty() {
        nodes.push(node("ssl_stapling", ["on"]));
    }
}

/// Cuts a text into words that can be printed. `log_format` puts them together.
pub(super) fn parts_of(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    for c in text.chars() {
        // Not within a variable, so that each part is one by itself.
        let full = parts.last().is_some_and(|p| p.len() > 1500)
            && !c.is_ascii_alphanumeric()
            && !matches!(c, '_' | '{' | '}');
        if full {
            parts.push(String::new());
        }
        if let Some(last) = parts.last_mut() {
            last.push(c);
        }
    }
    parts
}

fn logs(globals: &Globals, nodes: &mut Vec<Node>) {
    let s = &globals.settings;
    let escape = if s.flag("log-format-escape-none") {
        Some("escape=none")
    } else {
        s.flag("log-format-escape-json").then_some("escape=json")
    };
    // Requests that are refused or redirected before a location is chosen set none of the variables that the format names.
    nodes.push(node("uninitialized_variable_warn", ["off"]));
    nodes
        .push(node("log_format", ["upstreaminfo"]).args(escape).args(parts_of(s.get("log-format-upstream"))));
    let path = s.set("http-access-log-path").or_else(|| s.set("access-log-path"));
    let path = path.unwrap_or(&globals.options.access_log);
    if s.flag("disable-access-log") || s.flag("disable-http-access-log") || path == "off" {
        nodes.push(node("access_log", ["off"]));
        return;
    }
    let entries: Vec<Node> =
        s.list("skip-access-log-urls").filter(|p| is_pattern(p)).map(|p| node(p, ["0"])).collect();
    let some = !entries.is_empty();
    let all = std::iter::once(node("default", ["1"])).chain(entries).collect();
    if some {
        nodes.push(node("map", ["$request_uri", "$loggable"]).block(all));
    }
    let condition = some.then_some("if=$loggable");
    let path = match s.some("syslog-host").filter(|_| s.flag("enable-syslog")) {
        Some(host) => format!("syslog:server={host}:{}", s.get("syslog-port")),
        None => path.to_owned(),
    };
    let known = |w: &&str| {
        *w == "gzip"
            || ["buffer=", "flush=", "gzip="].iter().any(|p| {
                w.strip_prefix(p).is_some_and(|v| {
                    forebay_conf::units::size(v.as_bytes()).is_some()
                        || forebay_conf::units::duration_ms(v.as_bytes()).is_some()
                })
            })
    };
    let parameters = s.get("access-log-params").split_ascii_whitespace().filter(known);
    nodes.push(node("access_log", [path.as_str(), "upstreaminfo"]).args(parameters).args(condition));
}

/// Makes the server of the controller itself.
fn status(globals: &Globals) -> Option<Node> {
    let port = globals.options.status_port;
    if port == 0 {
        return None;
    }
    let s = &globals.settings;
    let allow = |key: &'static str| s.list(key).map(|n| node("allow", [n])).collect::<Vec<_>>();
    let mut body = allow("nginx-status-ipv4-whitelist");
    body.extend(allow("nginx-status-ipv6-whitelist"));
    body.push(node("deny", ["all"]));
    let none: [&str; 0] = [];
    body.push(node("stub_status", none));
    Some(Node::new("server").block(vec![
        node("listen", [format!("127.0.0.1:{port}")]),
        node("access_log", ["off"]),
        node("location", ["/nginx_status"]).block(body),
        node("location", ["=", "/healthz"]).block(vec![node("return", ["200"])]),
        node("location", ["/"]).block(vec![node("return", ["404"])]),
    ]))
}
