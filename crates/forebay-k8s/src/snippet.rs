//! Snippets: texts of directives from annotations and the ConfigMap.
//!
//! A snippet is parsed as the content of one block, so its braces cannot close one of ours. What an Ingress may never say is
//! refused by the meaning of the directive, wherever it stands in the snippet.

use crate::options::Options;
use crate::reach;
use crate::taken;
use crate::value::Invalid;
use crate::variables::{self, Known};
use forebay_conf::Node;
use forebay_conf::error::Level;
use forebay_conf::grammar::Contexts;
use forebay_conf::parse::body;
use forebay_conf::tree::{Block, Directive, Word};
use std::collections::BTreeSet;

/// Author of a snippet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Author {
    /// Whoever may write the Ingress. `own_host`: its servers have names of their own, so `$host` is none that a client chose.
    Tenant {
        /// `$host` is a name of the server.
        own_host: bool,
    },
    /// Whoever may write the ConfigMap of the controller.
    Operator,
}

/// Directives that an Ingress may use in a snippet. What is in none of the lists is refused.
#[rustfmt::skip]
const ALLOWED: &[&str] = &[
    "absolute_redirect", "add_after_body", "add_before_body", "add_header", "add_header_inherit", "add_trailer",
    "add_trailer_inherit", "addition_types", "aio", "aio_write", "allow", "auth_basic", "auth_delay", "auth_request",
    "auth_request_set", "break", "brotli", "brotli_buffers", "brotli_comp_level", "brotli_min_length", "brotli_types",
    "brotli_window", "charset", "charset_types", "chunked_transfer_encoding", "client_body_buffer_size",
    "client_body_early_read", "client_body_in_single_buffer", "client_body_timeout", "client_header_buffer_size",
    "client_header_timeout", "client_max_body_size", "connection_pool_size", "default_type", "deny", "early_hints",
    "empty_gif", "error_page", "etag", "expires", "fastcgi_buffer_size", "fastcgi_buffering", "fastcgi_buffers",
    "fastcgi_busy_buffers_size", "fastcgi_connect_timeout", "fastcgi_force_ranges", "fastcgi_hide_header",
    "fastcgi_ignore_client_abort", "fastcgi_ignore_headers", "fastcgi_index", "fastcgi_intercept_errors",
    "fastcgi_keep_conn", "fastcgi_limit_rate", "fastcgi_next_upstream", "fastcgi_next_upstream_timeout",
    "fastcgi_next_upstream_tries", "fastcgi_param", "fastcgi_pass_header", "fastcgi_pass_request_body", "fastcgi_pass_request_headers",
    "fastcgi_read_timeout", "fastcgi_request_buffering", "fastcgi_send_lowat", "fastcgi_send_timeout",
    "fastcgi_socket_keepalive", "fastcgi_split_path_info", "grpc_buffer_size", "grpc_connect_timeout", "grpc_hide_header",
    "grpc_ignore_headers", "grpc_intercept_errors", "grpc_next_upstream", "grpc_next_upstream_timeout",
    "grpc_next_upstream_tries", "grpc_pass_header", "grpc_read_timeout", "grpc_send_timeout", "grpc_set_header",
    "grpc_socket_keepalive", "grpc_ssl_ciphers", "grpc_ssl_name", "grpc_ssl_protocols", "grpc_ssl_server_name",
    "grpc_ssl_session_reuse", "grpc_ssl_verify", "grpc_ssl_verify_depth", "grpc_ssl_verify_names", "gunzip", "gunzip_buffers", "gzip", "gzip_buffers",
    "gzip_comp_level", "gzip_disable", "gzip_hash", "gzip_http_version", "gzip_min_length", "gzip_no_buffer", "gzip_proxied",
    "gzip_types", "gzip_vary", "gzip_window", "http2_chunk_size", "http2_push", "http2_push_preload", "if",
    "if_modified_since", "ignore_invalid_headers", "index", "internal", "keepalive_disable", "keepalive_min_timeout",
    "keepalive_requests", "keepalive_time", "keepalive_timeout", "large_client_header_buffers", "limit_conn",
    "limit_conn_dry_run", "limit_conn_log_level", "limit_conn_status", "limit_except", "limit_rate", "limit_rate_after",
    "limit_req", "limit_req_dry_run", "limit_req_log_level", "limit_req_status", "lingering_close", "lingering_time",
    "lingering_timeout", "location", "log_not_found", "log_subrequest", "max_headers", "max_ranges", "merge_slashes", "mirror",
    "mirror_request_body", "more_clear_headers", "more_clear_input_headers", "more_set_headers", "more_set_input_headers",
    "msie_padding", "msie_refresh", "output_buffers", "override_charset", "port_in_redirect", "post_action",
    "postpone_gzipping", "postpone_output", "proxy_buffer_size", "proxy_buffering", "proxy_buffers",
    "proxy_busy_buffers_size", "proxy_connect_timeout", "proxy_cookie_domain", "proxy_cookie_flags", "proxy_cookie_path",
    "proxy_force_ranges", "proxy_headers_hash_bucket_size", "proxy_headers_hash_max_size", "proxy_hide_header",
    "proxy_http_version", "proxy_ignore_client_abort", "proxy_ignore_headers", "proxy_intercept_errors", "proxy_limit_rate",
    "proxy_max_temp_file_size", "proxy_method", "proxy_next_upstream", "proxy_next_upstream_timeout",
    "proxy_next_upstream_tries", "proxy_pass_header", "proxy_pass_request_body", "proxy_pass_request_headers",
    "proxy_pass_trailers", "proxy_read_timeout", "proxy_redirect", "proxy_request_buffering", "proxy_send_lowat",
    "proxy_send_timeout", "proxy_set_body", "proxy_set_header", "proxy_socket_keepalive", "proxy_ssl_ciphers",
    "proxy_ssl_name", "proxy_ssl_protocols", "proxy_ssl_server_name", "proxy_ssl_session_reuse", "proxy_ssl_verify",
    "proxy_ssl_verify_depth", "proxy_ssl_verify_names", "read_ahead", "real_ip_header", "real_ip_recursive", "recursive_error_pages",
    "request_pool_size", "reset_timedout_connection", "resolver_timeout", "return", "rewrite", "rewrite_log", "satisfy",
    "secure_link", "secure_link_md5", "secure_link_secret", "send_lowat", "send_timeout", "server_name_in_redirect",
    "server_tokens", "set", "set_decode_base64", "set_decode_base64url", "set_decode_hex", "set_encode_base64",
    "set_encode_base64url", "set_encode_hex", "set_escape_uri", "set_if_empty", "set_md5", "set_quote_json_str", "set_random",
    "set_real_ip_from", "set_secure_random_alphanum", "set_secure_random_lcalpha", "set_sha1", "set_unescape_uri",
    "source_charset", "ssl_buffer_size", "ssl_ciphers", "ssl_early_data", "ssl_ecdh_curve", "ssl_prefer_server_ciphers",
    "ssl_protocols", "ssl_session_tickets", "ssl_session_timeout", "ssl_verify_depth", "sub_filter",
    "sub_filter_last_modified", "sub_filter_once", "sub_filter_types", "subrequest_output_buffer_size", "tcp_nodelay",
    "tcp_nopush", "types", "types_hash_bucket_size", "types_hash_max_size", "underscores_in_headers", "userid",
    "userid_domain", "userid_expires", "userid_flags", "userid_mark", "userid_name", "userid_p3p", "userid_path",
    "userid_service", "uninitialized_variable_warn", "valid_referers", "zstd", "zstd_buffers", "zstd_comp_level",
    "zstd_min_length", "zstd_types", "chunked_transfer_encoding",
];

/// Directives of the stream block that an Ingress may use in a snippet.
#[rustfmt::skip]
const ALLOWED_STREAM: &[&str] = &[
    "allow", "deny", "hash", "least_conn", "least_time", "limit_conn", "limit_conn_dry_run", "limit_conn_log_level", "map",
    "preread_buffer_size", "preread_timeout", "proxy_buffer_size", "proxy_connect_timeout", "proxy_download_rate",
    "proxy_half_close", "proxy_next_upstream", "proxy_next_upstream_timeout", "proxy_next_upstream_tries", "proxy_protocol",
    "proxy_protocol_timeout", "proxy_requests", "proxy_responses", "proxy_socket_keepalive", "proxy_timeout",
    "proxy_upload_rate", "random", "resolver_timeout", "split_clients", "ssl_preread", "tcp_nodelay", "upstream", "zone",
];

/// Parses a snippet.
///
/// # Errors
/// The first thing that is wrong or not allowed, and where.
pub fn parse(
    text: &str,
    context: Contexts,
    author: Author,
    options: &Options,
    known: &Known,
) -> Result<Vec<Node>, Invalid> {
    let parsed = body(text.as_bytes(), context);
    let root = &parsed.tree.root;
    let gate = Gate { author, options, stream: context == Contexts::STREAM };
    gate.shared(root)?;
    gate.block(root)?;
    if let Some(error) = parsed.errors.iter().find(|e| e.level <= Level::Emerg) {
        let at = error.span.or(error.at).map_or(0, |s| s.start as usize);
        let hint = error.hint.as_deref().map(|h| format!(" ({h})")).unwrap_or_default();
        return Err(Invalid::new(at, format!("{}{hint}", error.message)));
    }
    let mut defined = known.clone();
    if context == Contexts::STREAM {
        defined.extend(variables::known_in_stream().map(str::to_owned));
    }
    definitions(root, &mut defined);
    nesting(root, (context == Contexts::LOCATION).then_some(Outer::Any), &defined)?;
    mentions(root, &defined)?;
    Ok(forebay_conf::print::nodes(root))
}

/// Returns the names of groups and variables that a snippet of the stream block defines, in lower case. Those of variables begin with
/// `$`.
pub(crate) fn stream_names(text: &str) -> BTreeSet<String> {
    let root = body(text.as_bytes(), Contexts::STREAM).tree.root;
    let mut variables = Known::new();
    definitions(&root, &mut variables);
    let groups = root.items.iter().filter(|d| d.name.text == b"upstream").filter_map(|d| d.args.first());
    let groups = groups.map(|w| w.as_str().to_ascii_lowercase());
    groups.chain(variables.iter().map(|name| format!("${name}"))).collect()
}

/// Adds the variables that a snippet defines.
pub(crate) fn defined(text: &str, context: Contexts, known: &mut Known) {
    definitions(&body(text.as_bytes(), context).tree.root, known);
}

/// Location around a block.
#[derive(Clone, Copy)]
enum Outer<'a> {
    /// One that the snippet does not know, which may be an exact one.
    Any,
    /// A location without a modifier, or with `^~`, for paths with this beginning.
    Prefix(&'a [u8]),
    Regex,
    /// One that a variable decides on, which may stand around and inside of all but exact ones.
    Predicate,
    Exact,
}

impl<'a> Outer<'a> {
    fn of(location: &'a Directive) -> Outer<'a> {
        match location.args.as_slice() {
            [modifier, path] if modifier.text == b"^~" => Outer::Prefix(&path.text),
            [modifier, _] if modifier.text.starts_with(b"~") => Outer::Regex,
            [path] if path.text.starts_with(b"/") => Outer::Prefix(&path.text),
            [name] if name.text.starts_with(b"$") => Outer::Predicate,
            _ => Outer::Exact,
        }
    }
}

/// Refuses locations where they make a configuration invalid: in exact ones, and outside of the path of the one around them.
fn nesting(block: &Block, outer: Option<Outer<'_>>, known: &Known) -> Result<(), Invalid> {
    for directive in &block.items {
        let Some(inner) = &directive.block else { continue };
        if directive.name.text != b"location" {
            nesting(inner, outer, known)?;
            continue;
        }
        let own = Outer::of(directive);
        if matches!(own, Outer::Predicate) {
            variable(directive, known)?;
        }
        let fits = match (outer, own) {
            (None, _) => true,
            (Some(Outer::Prefix(start)), Outer::Prefix(path)) => path.starts_with(start),
            (Some(Outer::Predicate), _) => true,
            (Some(Outer::Prefix(_) | Outer::Regex), Outer::Regex | Outer::Predicate) => true,
            _ => false,
        };
        if !fits {
            return Err(Invalid::new(
                at(&directive.name),
                "a location does not fit into the one around it; use server-snippet",
            ));
        }
        nesting(inner, Some(own), known)?;
    }
    Ok(())
}

/// Refuses a location whose name is more than one variable that exists.
fn variable(location: &Directive, known: &Known) -> Result<(), Invalid> {
    let Some(word) = location.args.first() else { return Ok(()) };
    let text = word.as_str();
    let name = text.strip_prefix('$').unwrap_or_default().to_ascii_lowercase();
    let is_name = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if is_name && (variables::exists(&name) || known.contains(&name)) {
        return Ok(());
    }
    Err(Invalid::new(at(word), "a location takes one variable that exists, or a path"))
}

struct Gate<'a> {
    author: Author,
    options: &'a Options,
    stream: bool,
}

fn at(word: &Word) -> usize {
    word.span.start as usize
}

/// Beginnings of the names of groups and variables that the controller makes in the stream block.
const RESERVED: &[&str] = &["choice_", "gateway_", "probe_", "tcp_", "tls_", "udp_"];

fn is_reserved(name: &str) -> bool {
    RESERVED.iter().any(|start| name.starts_with(start))
}

/// Returns the name of a variable in lower case.
fn bare(word: &str) -> String {
    word.trim_start_matches('$').trim_matches(['{', '}']).to_ascii_lowercase()
}

/// Refuses captures of the stream block whose names are reserved.
fn captures(block: &Block) -> Result<(), Invalid> {
    for directive in &block.items {
        for word in std::iter::once(&directive.name).chain(&directive.args) {
            let mut names = Known::new();
            named_captures(&word.as_str(), &mut names);
            let known = |name: &String| variables::known_in_stream().any(|known| known == name);
            if names.iter().any(|name| known(name) || is_reserved(name)) {
                return Err(Invalid::new(at(word), "the name of the capture is reserved"));
            }
        }
        directive.block.as_ref().map_or(Ok(()), captures)?;
    }
    Ok(())
}

impl Gate<'_> {
    /// Refuses what an Ingress may not say in the stream block, which all services share: it may define groups and variables with names
    /// of its own.
    fn shared(&self, root: &Block) -> Result<(), Invalid> {
        if !self.stream || self.author == Author::Operator {
            return Ok(());
        }
        for directive in &root.items {
            let name = directive.name.as_str();
            let defined = match &*name {
                "map" | "split_clients" => directive.args.last(),
                "upstream" => directive.args.first(),
                // Others are refused with a reason of their own.
                _ if !ALLOWED_STREAM.contains(&&*name) => continue,
                _ => {
                    let text = format!(
                        "\"{name}\" is not allowed in an Ingress: it would hold for the services of others"
                    );
                    return Err(Invalid::new(at(&directive.name), text));
                }
            };
            let Some(word) = defined else { continue };
            let text = bare(&word.as_str());
            let known = &*name != "upstream" && variables::known_in_stream().any(|known| known == text);
            if known || is_reserved(&text) {
                return Err(Invalid::new(at(word), "the name is reserved"));
            }
        }
        captures(root)
    }

    fn block(&self, block: &Block) -> Result<(), Invalid> {
        for directive in &block.items {
            let words: Vec<String> = directive.args.iter().map(|w| w.as_str().into_owned()).collect();
            if let Some(word) =
                taken::reserved(&directive.name.as_str(), &words).and_then(|i| directive.args.get(i))
            {
                return Err(Invalid::new(at(word), "the name is reserved: the controller makes such names"));
            }
            self.directive(directive)?;
            // Entries of `types` and `map` are data.
            let data = ["types", "map", "num_map", "split_clients"]
                .iter()
                .any(|n| n.as_bytes() == directive.name.text);
            if let Some(inner) = directive.block.as_ref().filter(|_| !data) {
                self.block(inner)?;
            }
        }
        Ok(())
    }

    fn directive(&self, directive: &Directive) -> Result<(), Invalid> {
        let Author::Tenant { own_host } = self.author else { return Ok(()) };
        let name = directive.name.as_str();
        let name = name.as_ref();
        let refuse = |why: &str| {
            Err(Invalid::new(at(&directive.name), format!("\"{name}\" is not allowed in an Ingress: {why}")))
        };
        match name {
            "proxy_pass" | "grpc_pass" | "fastcgi_pass" | "scgi_pass" | "uwsgi_pass" | "memcached_pass"
            | "tunnel_pass" => self.pass(directive, own_host),
            "server" if self.stream && directive.block.is_none() => self.pass(directive, own_host),
            "server" if self.stream => {
                refuse("it may listen at a port of others; use the ConfigMap of TCP services")
            }
            "access_log" if directive.args.len() == 1 && directive.args[0].text == b"off" => Ok(()),
            "try_files" => try_files(directive),
            "ssl_verify_client" if directive.args.iter().all(|w| w.text == b"off") => {
                refuse("it would let clients in without a certificate")
            }
            "ssl_verify_client" => Ok(()),
            _ if self.stream && ALLOWED_STREAM.contains(&name) => Ok(()),
            _ if !self.stream && ALLOWED.contains(&name) => self.words(directive),
            _ => refuse(reason(name)),
        }
    }

    /// Refuses words that name a file or socket where others are allowed.
    fn words(&self, directive: &Directive) -> Result<(), Invalid> {
        let name = directive.name.text.as_slice();
        let local = |w: &&Word| w.text.get(..5).is_some_and(|start| start.eq_ignore_ascii_case(b"unix:"));
        match directive.args.iter().find(local) {
            Some(word) if name != b"set_real_ip_from" => {
                Err(Invalid::new(at(word), "sockets of the file system are not allowed"))
            }
            _ => Ok(()),
        }
    }

    fn pass(&self, directive: &Directive, own_host: bool) -> Result<(), Invalid> {
        let Some(word) = directive.args.first() else { return Ok(()) };
        let text = word.as_str();
        let has_scheme = text.contains("://");
        // Addresses of protocols without a scheme are judged as if they had one.
        let url = if has_scheme {
            text.replacen("grpcs://", "https://", 1).replacen("grpc://", "http://", 1)
        } else {
            format!("http://{text}")
        };
        match reach::forbidden_url(&url, own_host, self.options) {
            Some(why) => Err(Invalid::new(at(word), why)),
            None => Ok(()),
        }
    }
}

/// Returns why a directive is refused.
fn reason(name: &str) -> &'static str {
    if name.ends_with("_pass") {
        return "it reaches other servers";
    }
    match name {
        "listen" | "server_name" => "it would take requests of other hosts",
        "api" | "dashboard" | "prometheus" | "prometheus_labels" | "stub_status" | "status_zone" => {
            "it shows what belongs to others"
        }
        "resolver" | "proxy_bind" | "grpc_bind" | "fastcgi_bind" | "uwsgi_bind" | "scgi_bind"
        | "memcached_bind" => "it changes where requests go",
        _ if name.contains("cache") => "caches are shared with others",
        _ => "it may reach files, or it is not known to be harmless",
    }
}

fn try_files(directive: &Directive) -> Result<(), Invalid> {
    let fine = |w: &Word| {
        matches!(w.text.first(), Some(b'@' | b'=' | b'/')) && !w.text.windows(2).any(|p| p == b"..")
    };
    match directive.args.iter().find(|w| !fine(w) && w.text != b"$uri" && w.text != b"$uri/") {
        Some(word) => Err(Invalid::new(at(word), "only @NAME, =STATUS, $uri and paths are allowed here")),
        None => Ok(()),
    }
}

/// Collects the variables that directives define.
fn definitions(block: &Block, defined: &mut Known) {
    for directive in &block.items {
        let name = directive.name.as_str();
        // Entries of a `map` begin with their patterns.
        named_captures(&name, defined);
        if name.starts_with("set") || matches!(&*name, "auth_request_set" | "json_set" | "time_format") {
            defined.extend(directive.args.first().map(|w| bare(&w.as_str())));
        }
        if matches!(&*name, "map" | "num_map" | "geo" | "split_clients") {
            defined.extend(directive.args.last().map(|w| bare(&w.as_str())));
        }
        if name == "keyval" {
            defined.extend(directive.args.get(1).map(|w| bare(&w.as_str())));
        }
        for word in &directive.args {
            named_captures(&word.as_str(), defined);
        }
        if let Some(inner) = &directive.block {
            definitions(inner, defined);
        }
    }
}

/// Adds the names of `(?<name>...)`.
fn named_captures(text: &str, defined: &mut Known) {
    for start in ["(?<", "(?P<", "(?'"] {
        for (i, _) in text.match_indices(start) {
            let rest = text.get(i + start.len()..).unwrap_or_default();
            let len = rest.bytes().take_while(|b| b.is_ascii_alphanumeric() || *b == b'_').count();
            defined.extend(rest.get(..len).filter(|n| !n.is_empty()).map(str::to_ascii_lowercase));
        }
    }
}

/// Refuses variables that nothing defines: one of them would make the whole configuration invalid.
fn mentions(block: &Block, defined: &Known) -> Result<(), Invalid> {
    for directive in &block.items {
        let name = directive.name.as_str();
        // Regular expressions end in `$`.
        let regex = |i: usize| match &*name {
            "rewrite" => i == 0,
            "location" | "if" | "server_name" | "valid_referers" => true,
            _ => false,
        };
        let conditions = &*name == "if";
        for (i, word) in directive.args.iter().enumerate() {
            if regex(i) && !(conditions && i == 0) {
                continue;
            }
            let text = word.as_str();
            for mention in variables::mentions(&text) {
                let known = |n: &str| {
                    n.bytes().all(|b| b.is_ascii_digit()) || variables::exists(n) || defined.contains(n)
                };
                if !known(&mention.name.to_ascii_lowercase()) {
                    return Err(Invalid::new(
                        at(word),
                        format!("there is no variable \"${}\"", mention.name),
                    ));
                }
            }
        }
        if let Some(inner) = &directive.block {
            mentions(inner, defined)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(text: &str, context: Contexts) -> Option<(usize, String)> {
        let author = Author::Tenant { own_host: true };
        parse(text, context, author, &Options::default(), &Known::new()).err().map(|e| (e.at, e.reason))
    }

    #[test]
    fn allowed_directives_exist() {
        for (names, context) in [(ALLOWED, Contexts::SERVER), (ALLOWED_STREAM, Contexts::STREAM)] {
            for name in names {
                let known = !forebay_conf::grammar::rows(name.as_bytes()).is_empty();
                assert!(known, "{name} of {context:?}");
            }
        }
    }

    /// Each directive that can stand in a server or location is refused or was judged to do no harm.
    #[test]
    fn dangerous_directives_are_refused() {
        let dangerous = [
            "root",
            "alias",
            "include",
            "ssl_certificate",
            "ssl_certificate_key",
            "ssl_trusted_certificate",
            "ssl_client_certificate",
            "ssl_crl",
            "ssl_password_file",
            "ssl_stapling_file",
            "ssl_session_ticket_key",
            "ssl_conf_command",
            "ssl_dhparam",
            "ssl_ech_file",
            "ssl_key_log",
            "ssl_keylog_file",
            "proxy_ssl_key_log",
            "auth_basic_user_file",
            "error_log",
            "proxy_store",
            "client_body_in_file_only",
            "client_body_temp_path",
            "proxy_temp_path",
            "proxy_cache",
            "proxy_cache_path",
            "proxy_ssl_certificate",
            "proxy_ssl_certificate_key",
            "proxy_ssl_trusted_certificate",
            "proxy_ssl_conf_command",
            "proxy_ssl_password_file",
            "proxy_bind",
            "resolver",
            "acme",
            "acme_certificate",
            "acme_hook",
            "api",
            "dashboard",
            "prometheus",
            "prometheus_labels",
            "stub_status",
            "dav_methods",
            "create_full_put_path",
            "listen",
            "server_name",
            "autoindex",
            "random_index",
            "gzip_static",
            "ssi",
            "scgi_param",
            "uwsgi_param",
            "open_log_file_cache",
            "quic_host_key",
            "fastcgi_store",
            "sendfile",
            "directio",
            "disable_symlinks",
            "load_module",
            "slice",
            "brotli_static",
            "health_check",
            "perl",
        ];
        for name in dangerous {
            assert!(!ALLOWED.contains(&name), "{name}");
        }
    }

    #[test]
    fn locations_of_variables() {
        let server = |text: &str| refusal(text, Contexts::SERVER);
        assert_eq!(
            server("location $arg_a { location /b { return 403; } location $arg_b { return 403; } }"),
            None
        );
        assert_eq!(server("location /b { location $arg_a { return 403; } }"), None);
        for refused in [
            "location $nobody { return 403; }",
            "location = /b { location $arg_a { return 403; } }",
            "location $arg_a$arg_b { return 403; }",
        ] {
            assert!(server(refused).is_some(), "{refused}");
        }
    }

    #[test]
    fn places() {
        let location = |text: &str| refusal(text, Contexts::LOCATION);
        assert_eq!(location("more_set_headers \"X: y\";\nif ($host = x) {\n return 403;\n}"), None);
        assert_eq!(location("set $x 1; more_set_headers \"X: $x\";"), None);
        assert_eq!(location("rewrite ^/(?<rest>.*)$ /$rest;"), None);
        assert_eq!(location("try_files $uri @x;"), None);
        assert_eq!(location("proxy_pass http://10.0.0.1:80;"), None);
        let at = |text: &str| location(text).map(|(at, _)| at);
        assert_eq!(at("if ($host = x) { root /; }"), Some(17));
        assert_eq!(at("proxy_pass http://$http_x;"), Some(11));
        assert_eq!(at("grpc_pass unix:/x;"), Some(10));
        assert_eq!(at("fastcgi_pass 127.0.0.1:9000;"), Some(13));
        assert_eq!(at("try_files /../etc/passwd =404;"), Some(10));
        assert_eq!(at("access_log /x;"), Some(0));
        assert_eq!(at("access_log off;"), None);
        assert_eq!(at("return 200 $nonesuch;"), Some(11));
        assert_eq!(at("x"), Some(0));
        assert_eq!(at("location /x { return 200; }"), Some(0));
        let server = |text: &str| refusal(text, Contexts::SERVER).map(|(at, _)| at);
        assert_eq!(server("location /x { location /x/y { alias /; } }"), Some(30));
        assert_eq!(
            server("location /x { location /x/y { return 200; } location ~ z { return 201; } }"),
            None
        );
        assert_eq!(server("location = /x { location /x/y { return 200; } }"), Some(16));
        assert_eq!(server("location /x { location /y { return 200; } }"), Some(14));
        assert_eq!(server("server_name other.test;"), Some(0));
        let stream = |text: &str| refusal(text, Contexts::STREAM).map(|(at, _)| at);
        assert_eq!(stream("upstream x { server 127.0.0.1:1; }"), Some(20));
        assert_eq!(stream("upstream x { server 10.0.0.1:1; }"), None);
        assert_eq!(stream("server { listen 80; }"), Some(0));
        assert_eq!(
            stream("map $remote_addr $own { default a; } split_clients $remote_addr $half { 50% a; * b; }"),
            None
        );
        for text in ["tls_way", "gateway_a", "remote_addr"] {
            let map = format!("map $remote_port $own {{ default a; \"~(?<{text}>.)\" b; }}");
            assert_eq!(stream(&map), map.find("\"~"), "{text}");
        }
        let captured = "map $remote_port $own { default a; \"~(?<last>.)\" $last; }";
        assert_eq!(stream(captured), None);
        for name in
            ["tls_way", "TLS_GROUP", "gateway_tls_1", "choice_1", "ssl_preread_server_name", "remote_addr"]
        {
            assert_eq!(stream(&format!("map $remote_port ${name} {{ default a; }}")), Some(17), "{name}");
        }
        for name in [
            "tls_here",
            "Tls_through",
            "tls_ns_web_443",
            "tcp_ns_web_80",
            "udp_ns_web_53",
            "gateway_ns_web_80",
        ] {
            assert_eq!(stream(&format!("upstream {name} {{ server 10.0.0.1:1; }}")), Some(9), "{name}");
        }
        // They would hold for all servers of the block.
        for line in
            ["deny all;", "proxy_timeout 1s;", "proxy_protocol on;", "limit_conn z 1;", "ssl_preread off;"]
        {
            assert_eq!(stream(line), Some(0), "{line}");
        }
    }
}
