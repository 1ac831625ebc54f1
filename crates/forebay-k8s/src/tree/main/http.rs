//! The `http` block of the main file.

use super::super::host::{fields, location};
use super::super::node;
use super::{Main, forwarded};
use crate::ingress::Globals;
use crate::model::CertificateFiles;
use crate::settings::Settings;
use crate::value::{parse_size, parse_time};
use crate::variables::OF_AUTHORITY;
use forebay_conf::Node;

pub(super) fn map(from: &str, to: &str, entries: &[(&str, &str)]) -> Node {
    node("map", [from, to]).block(entries.iter().map(|(k, v)| node(k, [*v])).collect())
}

pub(super) fn block(parts: &Main<'_>) -> Vec<Node> {
    let globals = parts.globals;
    let mut http = HttpBlock { globals, settings: &globals.settings, nodes: globals.options.http.clone() };
    // A name without an address is to fail by itself.
    http.nodes.push(node("upstream_start_unresolved", ["on"]));
    http.variables();
    http.client();
    forwarded::real_ip(globals, &mut http.nodes);
    http.proxying();
    http.nodes.extend(fields::http(globals));
    http.compression();
    http.tls(parts.certificate.as_ref());
    http.logs();
    http.resolver();
    if parts.auth_cache {
        let path = globals.options.cache_directory.as_str();
        http.nodes.push(node(
            "proxy_cache_path",
            [path, "keys_zone=auth_cache:10m", "max_size=128m", "inactive=30m", "use_temp_path=off"],
        ));
    }
    let mut nodes = super::super::merge::join(http.nodes, &globals.snippets.http);
    nodes.extend(status(globals));
    // Patterns: the main file stays the same when hosts come and go, and so do the parts that are made of the other files.
    nodes.extend(INCLUDED.iter().map(|pattern| node("include", [*pattern])));
    nodes
}

/// Files of groups and hosts, and that of Gateways. A file need not exist.
const INCLUDED: [&str; 4] = ["groups*.conf", "groups/*.conf", "hosts/*.conf", "gateways/http*.conf"];

/// Builder of the `http` block.
struct HttpBlock<'a> {
    globals: &'a Globals,
    settings: &'a Settings,
    nodes: Vec<Node>,
}

impl HttpBlock<'_> {
    fn map(&mut self, from: &str, to: &str, entries: &[(&str, &str)]) {
        self.nodes.push(map(from, to, entries));
    }

    fn size(&mut self, key: &'static str, directive: &str) {
        let value = self.settings.some(key).and_then(parse_size);
        self.nodes.extend(value.map(|value| node(directive, [value])));
    }

    fn seconds(&mut self, key: &'static str, directive: &str) {
        self.nodes.push(node(directive, [format!("{}s", self.settings.number(key))]));
    }

    fn flag(&mut self, key: &'static str, directive: &str) {
        self.nodes.push(node(directive, [if self.settings.flag(key) { "on" } else { "off" }]));
    }

    fn word(&mut self, key: &'static str, directive: &str) {
        self.nodes.push(node(directive, [self.settings.get(key)]));
    }

    /// Makes the variables that all hosts use.
    fn variables(&mut self) {
        // The second one is for snippets.
        for name in ["$dollar_sign", "$literal_dollar"] {
            self.nodes.push(node("geo", [name]).block(vec![node("default", ["$"])]));
        }
        self.map("$http_host", "$named_host", &[("default", "$http_host"), ("", "$host")]);
        // The host of an absolute URI counts, whatever the field says (RFC 9112, section 3.2.2).
        self.map("$request", "$own_host", &[("default", "$named_host"), ("~^[^ ]+ +[^/ ]+://", "$host")]);
        forwarded::connection(self.globals, &mut self.nodes);
        forwarded::own_port(self.globals, &mut self.nodes);
        self.forwarded();
        self.map("$pass_access_scheme", "$redirect_to_https", &[("http", "1"), ("default", "")]);
        let bare = [("default", "$best_http_host"), ("~^(?<redirect_name>.+):[0-9]+$", "$redirect_name")];
        self.map("$best_http_host", "$redirect_host", &bare);
        self.of_requests();
        // Locations that the controller does not make set none of them.
        let of_location = location::OF_LOCATION.iter().filter(|name| **name != "proxy_host");
        for name in of_location.chain(OF_AUTHORITY) {
            self.map("$host", &format!("${name}"), &[("default", "")]);
        }
        self.map("$scheme", "$hsts_value", &[("https", &self.hsts()), ("default", "")]);
        self.blocked("block-user-agents", "$http_user_agent", "$block_user_agent");
        self.blocked("block-referers", "$http_referer", "$block_referer");
    }

    /// Makes the scheme, host and port that clients used, which proxies in front may say.
    fn forwarded(&mut self) {
        if !self.settings.flag("use-forwarded-headers") {
            self.map("$host", "$pass_access_scheme", &[("default", "$own_scheme")]);
            self.map("$host", "$best_http_host", &[("default", "$own_host")]);
            self.map("$host", "$pass_port", &[("default", "$pass_server_port")]);
            return;
        }
        forwarded::trust(self.globals, &mut self.nodes);
        // Of a list, the first is what the client used.
        let proto = [
            ("default", "$own_scheme"),
            ("~^1:(?<forwarded_proto>[A-Za-z][A-Za-z0-9+.-]*)", "$forwarded_proto"),
        ];
        self.map("$forwarded_trusted:$http_x_forwarded_proto", "$pass_access_scheme", &proto);
        let host = [("default", "$own_host"), ("~^1:(?<forwarded_host>[A-Za-z0-9.:_-]+)", "$forwarded_host")];
        self.map("$forwarded_trusted:$http_x_forwarded_host", "$best_http_host", &host);
        let port = [("default", "$pass_server_port"), ("~^1:(?<forwarded_port>[0-9]+)$", "$forwarded_port")];
        self.map("$forwarded_trusted:$http_x_forwarded_port", "$pass_port", &port);
    }

    /// Makes the variables of fields of requests to upstreams.
    fn of_requests(&mut self) {
        let s = self.settings;
        let idle = if s.number("upstream-keepalive-connections") > 0 { "" } else { "close" };
        self.map("$http_upgrade", "$connection_upgrade", &[("default", "upgrade"), ("", idle)]);
        let request_id = if s.flag("generate-request-id") { "$request_id" } else { "" };
        self.map("$http_x_request_id", "$req_id", &[("default", "$http_x_request_id"), ("", request_id)]);
        self.map("$host", "$the_real_ip", &[("default", "$remote_addr")]);
        let full = [("default", "$http_x_forwarded_for, $realip_remote_addr"), ("", "$realip_remote_addr")];
        self.map("$http_x_forwarded_for", "$full_x_forwarded_for", &full);
    }

    /// Returns the value of `Strict-Transport-Security`.
    fn hsts(&self) -> String {
        let mut hsts = format!("max-age={}", self.settings.number("hsts-max-age"));
        if self.settings.flag("hsts-include-subdomains") {
            hsts.push_str("; includeSubDomains");
        }
        if self.settings.flag("hsts-preload") {
            hsts.push_str("; preload");
        }
        hsts
    }

    /// Makes the variable of a list of texts and regular expressions.
    fn blocked(&mut self, key: &'static str, from: &str, to: &str) {
        let entries: Vec<Node> =
            self.settings.list(key).filter(|p| is_pattern(p)).map(|p| node(p, ["1"])).collect();
        if !entries.is_empty() {
            let all = std::iter::once(node("default", [""])).chain(entries).collect();
            self.nodes.push(node("map", [from, to]).block(all));
        }
    }

    fn client(&mut self) {
        let s = self.settings;
        self.size("client-body-buffer-size", "client_body_buffer_size");
        self.size("client-header-buffer-size", "client_header_buffer_size");
        self.size("proxy-body-size", "client_max_body_size");
        self.seconds("client-body-timeout", "client_body_timeout");
        self.seconds("client-header-timeout", "client_header_timeout");
        self.seconds("keep-alive", "keepalive_timeout");
        self.word("keep-alive-requests", "keepalive_requests");
        let buffers: Vec<&str> = s.get("large-client-header-buffers").split_ascii_whitespace().collect();
        if buffers.len() == 2 {
            self.nodes.push(node("large_client_header_buffers", buffers));
        }
        self.http_versions();
        self.flag("ignore-invalid-headers", "ignore_invalid_headers");
        self.flag("enable-underscores-in-headers", "underscores_in_headers");
        self.word("default-type", "default_type");
        self.nodes.push(node("absolute_redirect", [if s.flag("relative-redirects") { "off" } else { "on" }]));
        self.flag("use-port-in-redirects", "port_in_redirect");
        self.server_field();
        self.limits();
        let fields = self.globals.response_headers.iter();
        self.nodes.extend(fields.map(|(name, value)| node("more_set_headers", [format!("{name}: {value}")])));
    }

    fn http_versions(&mut self) {
        let s = self.settings;
        self.flag("use-http2", "http2");
        let (port, public) = (self.globals.options.https_port, self.globals.options.public_https_port);
        if s.flag("use-http3") && port != public {
            // Clients reach the port of the Service.
            self.nodes.push(node("http3_alt_svc", [format!("h3=\":{public}\"; ma=86400")]));
        }
        let streams = s.number("http2-max-concurrent-streams").clamp(1, 100_000);
        self.nodes.push(node("http2_max_concurrent_streams", [streams.to_string()]));
    }

    /// Adds what clients get to see of the software.
    fn server_field(&mut self) {
        self.flag("server-tokens", "server_tokens");
        if !self.settings.flag("server-tokens") && !self.settings.flag("allow-backend-server-header") {
            self.nodes.push(node("more_clear_headers", ["Server"]));
        }
    }

    fn limits(&mut self) {
        self.word("limit-req-status-code", "limit_req_status");
        self.word("limit-conn-status-code", "limit_conn_status");
        for (key, directive) in [("limit-rate", "limit_rate"), ("limit-rate-after", "limit_rate_after")] {
            if self.settings.number(key) > 0 {
                self.nodes.push(node(directive, [format!("{}k", self.settings.number(key))]));
            }
        }
    }

    fn proxying(&mut self) {
        let s = self.settings;
        self.word("proxy-http-version", "proxy_http_version");
        self.next_upstream();
        self.word("proxy-buffering", "proxy_buffering");
        self.word("proxy-request-buffering", "proxy_request_buffering");
        self.buffers();
        if s.number("grpc-buffer-size-kb") > 0 {
            self.nodes.push(node("grpc_buffer_size", [format!("{}k", s.number("grpc-buffer-size-kb"))]));
        }
        self.rewriting();
        self.nodes.push(node("proxy_ssl_session_reuse", ["on"]));
        self.nodes.extend(s.list("hide-headers").map(|h| node("proxy_hide_header", [h])));
        if s.flag("allow-backend-server-header") {
            self.nodes.push(node("proxy_pass_header", ["Server"]));
        }
        for (name, value) in &self.globals.headers {
            self.nodes.push(node("proxy_set_header", [name.as_str(), value.as_str()]));
            if !matches!(name.as_str(), "Upgrade" | "Connection") {
                self.nodes.push(node("grpc_set_header", [name.as_str(), value.as_str()]));
            }
        }
    }

    /// Adds time limits, and the failures after which the next server is asked.
    fn next_upstream(&mut self) {
        let s = self.settings;
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
                self.seconds(key, &format!("{module}_{rest}"));
            }
            self.word("proxy-next-upstream-tries", &format!("{module}_next_upstream_tries"));
            let words = next.iter().copied().filter(|w| module == "proxy" || *w != "off");
            self.nodes.push(node(&format!("{module}_next_upstream"), words));
        }
    }

    /// Adds what is rewritten in cookies and redirects of upstreams.
    fn rewriting(&mut self) {
        let s = self.settings;
        for (key, directive) in
            [("proxy-cookie-domain", "proxy_cookie_domain"), ("proxy-cookie-path", "proxy_cookie_path")]
        {
            let words: Vec<&str> = s.get(key).split_ascii_whitespace().collect();
            if words == ["off"] || words.len() == 2 {
                self.nodes.push(node(directive, words));
            }
        }
        let (from, to) = (s.get("proxy-redirect-from"), s.get("proxy-redirect-to"));
        if from == "off" || from == "default" {
            self.nodes.push(node("proxy_redirect", ["off"]));
        } else if to != "off" {
            self.nodes.push(node("proxy_redirect", [from, to]));
        }
    }

    /// Adds the sizes of buffers, made to fit each other.
    fn buffers(&mut self) {
        let s = self.settings;
        let bytes = |key: &'static str| {
            s.some(key).and_then(parse_size).and_then(|t| forebay_conf::units::size(t.as_bytes()))
        };
        let size = bytes("proxy-buffer-size").unwrap_or(4096).max(1024);
        let number = s.number("proxy-buffers-number").max(2).unsigned_abs();
        let most = size.saturating_mul(number - 1);
        let busy = bytes("proxy-busy-buffers-size").unwrap_or(size * 2).min(most - 1).max(size);
        let temp = bytes("proxy-max-temp-file-size").map_or(0, |n| if n == 0 { 0 } else { n.max(size) });
        self.nodes.push(node("proxy_buffer_size", [size.to_string()]));
        self.nodes.push(node("proxy_buffers", [number.to_string(), size.to_string()]));
        self.nodes.push(node("proxy_busy_buffers_size", [busy.to_string()]));
        self.nodes.push(node("proxy_max_temp_file_size", [temp.to_string()]));
    }

    fn compression(&mut self) {
        let s = self.settings;
        if s.flag("use-gzip") {
            self.nodes.push(node("gzip", ["on"]));
            self.word("gzip-level", "gzip_comp_level");
            self.word("gzip-min-length", "gzip_min_length");
            self.nodes.push(node("gzip_http_version", ["1.1"]));
            self.nodes.push(node("gzip_proxied", ["any"]));
            self.nodes.push(node("gzip_vary", ["on"]));
            self.types("gzip-types", "gzip_types");
            let disable = s.some("gzip-disable").filter(|d| crate::value::regex_lint(d).is_none());
            self.nodes.extend(disable.map(|disable| node("gzip_disable", [disable])));
        }
        if s.flag("enable-brotli") {
            self.nodes.push(node("brotli", ["on"]));
            self.word("brotli-level", "brotli_comp_level");
            self.word("brotli-min-length", "brotli_min_length");
            self.types("brotli-types", "brotli_types");
        }
    }

    /// Adds the types of content that are compressed.
    fn types(&mut self, key: &'static str, directive: &str) {
        // `text/html` is always among the types; naming it again is an error.
        let types = self.settings.get(key).split_ascii_whitespace().filter(|t| *t != "text/html");
        let types: Vec<&str> = types.collect();
        // Without the directive, `text/html` is the only type.
        if !types.is_empty() {
            self.nodes.push(node(directive, types));
        }
    }

    fn tls(&mut self, certificate: Option<&CertificateFiles>) {
        let s = self.settings;
        if let Some(files) = certificate {
            self.nodes.push(node("ssl_certificate", [files.chain.path.as_str()]));
            self.nodes.push(node("ssl_certificate_key", [files.key.path.as_str()]));
        }
        self.algorithms();
        self.flag("ssl-early-data", "ssl_early_data");
        self.size("ssl-buffer-size", "ssl_buffer_size");
        self.sessions();
        if s.flag("enable-ocsp") && !self.globals.options.resolvers.is_empty() {
            self.nodes.push(node("ssl_stapling", ["on"]));
        }
    }

    /// Adds protocols, ciphers and curves, as far as they are known.
    fn algorithms(&mut self) {
        let s = self.settings;
        let is_known = |p: &&str| matches!(*p, "TLSv1.2" | "TLSv1.3");
        let protocols: Vec<&str> = s.get("ssl-protocols").split_ascii_whitespace().filter(is_known).collect();
        if !protocols.is_empty() {
            self.nodes.push(node("ssl_protocols", protocols));
        }
        if let Some(ciphers) = crate::value::ciphers(s.get("ssl-ciphers")) {
            self.nodes.push(node("ssl_ciphers", [ciphers]));
        }
        let curves = ["X25519MLKEM768", "X25519", "prime256v1", "P-256", "secp384r1", "P-384"];
        let known: Vec<&str> = s.get("ssl-ecdh-curve").split(':').filter(|c| curves.contains(c)).collect();
        if !known.is_empty() {
            self.nodes.push(node("ssl_ecdh_curve", [known.join(":")]));
        }
    }

    /// Adds what is kept of TLS sessions.
    fn sessions(&mut self) {
        let s = self.settings;
        if s.flag("ssl-session-cache") {
            let size = parse_size(s.get("ssl-session-cache-size"));
            let bytes = size.and_then(|t| forebay_conf::units::size(t.as_bytes())).unwrap_or(10 << 20);
            // Smaller ones are an error.
            self.nodes.push(node("ssl_session_cache", [format!("shared:SSL:{}", bytes.max(128 << 10))]));
        }
        if let Some(time) = parse_time(s.get("ssl-session-timeout")) {
            self.nodes.push(node("ssl_session_timeout", [time]));
        }
        self.flag("ssl-session-tickets", "ssl_session_tickets");
        for index in 0..self.globals.ticket_keys.len() {
            self.nodes.push(node("ssl_session_ticket_key", [crate::ingress::ticket_path(index)]));
        }
    }

    fn logs(&mut self) {
        let s = self.settings;
        let escape = if s.flag("log-format-escape-none") {
            Some("escape=none")
        } else {
            s.flag("log-format-escape-json").then_some("escape=json")
        };
        // Requests that are refused or redirected before a location is chosen set none of the variables that the format names.
        self.nodes.push(node("uninitialized_variable_warn", ["off"]));
        let format = node("log_format", ["upstreaminfo"]).args(escape);
        self.nodes.push(format.args(parts_of(s.get("log-format-upstream"))));
        self.access_log();
    }

    fn access_log(&mut self) {
        let s = self.settings;
        let path = s.set("http-access-log-path").or_else(|| s.set("access-log-path"));
        let path = path.unwrap_or(&self.globals.options.access_log);
        if s.flag("disable-access-log") || s.flag("disable-http-access-log") || path == "off" {
            self.nodes.push(node("access_log", ["off"]));
            return;
        }
        let skipped = s.list("skip-access-log-urls").filter(|p| is_pattern(p)).map(|p| node(p, ["0"]));
        let entries: Vec<Node> = std::iter::once(node("default", ["1"])).chain(skipped).collect();
        let condition = (entries.len() > 1).then_some("if=$loggable");
        if condition.is_some() {
            self.nodes.push(node("map", ["$request_uri", "$loggable"]).block(entries));
        }
        let path = match s.some("syslog-host").filter(|_| s.flag("enable-syslog")) {
            Some(host) => format!("syslog:server={host}:{}", s.get("syslog-port")),
            None => path.to_owned(),
        };
        let parameters = s.get("access-log-params").split_ascii_whitespace().filter(|w| is_log_parameter(w));
        let line = node("access_log", [path.as_str(), "upstreaminfo"]);
        self.nodes.push(line.args(parameters).args(condition));
    }

    fn resolver(&mut self) {
        let resolvers = &self.globals.options.resolvers;
        if !resolvers.is_empty() {
            let off = self.settings.flag("disable-ipv6-dns").then_some("ipv6=off");
            let words = resolvers.iter().map(String::as_str);
            self.nodes.push(node("resolver", words).args(off).arg("valid=30s"));
        }
    }
}

/// Returns `true` for a parameter of `access_log` with a value of its kind.
fn is_log_parameter(word: &str) -> bool {
    let is_value = |value: &str| {
        forebay_conf::units::size(value.as_bytes()).is_some()
            || forebay_conf::units::duration_ms(value.as_bytes()).is_some()
    };
    let starts = ["buffer=", "flush=", "gzip="];
    word == "gzip" || starts.iter().any(|start| word.strip_prefix(start).is_some_and(is_value))
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
