//! Directives that nginx does not have: those of well-known third-party modules, and those that nginx removed. Their names come
//! from the modules' documentation.

/// A module whose directives people bring along.
struct Module {
    /// Name, as in an error message.
    name: &'static str,
    /// Names of its directives. A `*` at the beginning or end stands for anything.
    directives: &'static [&'static str],
    /// The replacement in Forebay.
    instead: &'static str,
}

const LUA: &str =
    "decide with \"map\" and \"auth_request\", and compute in an application behind \"proxy_pass\"";
const STATUS: &str = "use \"status_zone\" with \"prometheus\" or \"api\"";
const VARIABLES: &str = "use \"map\", or compute it in the application";
const PUSH: &str = "use \"proxy_pass\" to an application that keeps WebSocket or event-stream connections";

const MODULES: &[Module] = &[
    Module {
        name: "lua-nginx-module",
        directives: &["*_by_lua", "*_by_lua_block", "*_by_lua_file", "lua_*"],
        instead: LUA,
    },
    Module { name: "njs", directives: &["js_*"], instead: LUA },
    Module {
        name: "echo-nginx-module",
        directives: &["echo", "echo_*"],
        instead: "use \"return 200 TEXT\", \"add_before_body\" and \"add_after_body\"",
    },
    Module {
        name: "set-misc-nginx-module",
        directives: &[
            "set_quote_sql_str",
            "set_quote_pgsql_str",
            "set_hash*",
            "set_hmac_*",
            "set_encode_base32",
            "set_decode_base32",
            "set_base32_*",
            "set_rotate",
            "set_local_today",
            "set_formatted_*",
        ],
        instead: VARIABLES,
    },
    Module {
        name: "array-var-nginx-module",
        directives: &["array_split", "array_join", "array_map", "array_map_op"],
        instead: VARIABLES,
    },
    Module {
        name: "encrypted-session-nginx-module",
        directives: &["encrypted_session_*", "set_encrypt_session", "set_decrypt_session"],
        instead: VARIABLES,
    },
    Module {
        name: "srcache-nginx-module",
        directives: &["srcache_*"],
        instead: "use \"proxy_cache\" or \"fastcgi_cache\"",
    },
    Module {
        name: "redis2-nginx-module",
        directives: &["redis2_*", "redis_pass", "redis_*"],
        instead: "use \"memcached_pass\", or an application in front of Redis",
    },
    Module {
        name: "ngx_substitutions_filter",
        directives: &["subs_filter", "subs_filter_*", "replace_filter*"],
        instead: "use \"sub_filter\"",
    },
    Module {
        name: "ngx-fancyindex",
        directives: &["fancyindex", "fancyindex_*"],
        instead: "use \"autoindex\" with \"autoindex_format\", \"add_before_body\" and \"add_after_body\"",
    },
    Module {
        name: "nginx-module-vts",
        directives: &["vhost_traffic_status*", "stream_server_traffic_status*"],
        instead: STATUS,
    },
    Module {
        name: "nginx_upstream_check_module",
        directives: &["check", "check_*"],
        instead: "use \"health_check\"",
    },
    Module { name: "nginx-sticky-module-ng", directives: &["session_sticky*"], instead: "use \"sticky\"" },
    Module {
        name: "ngx_cache_purge",
        directives: &["fastcgi_cache_purge_*", "proxy_cache_purge_*", "cache_purge_*"],
        instead: "use \"proxy_cache_purge\"",
    },
    Module {
        name: "nginx-dav-ext-module",
        directives: &["dav_ext_*"],
        instead: "\"dav_methods\" has PUT, DELETE, MKCOL, COPY and MOVE; run a WebDAV server for the rest",
    },
    Module {
        name: "ModSecurity-nginx",
        directives: &["modsecurity", "modsecurity_*", "ModSecurity*"],
        instead: "put a web application firewall in front, or ask one with \"auth_request\"",
    },
    Module {
        name: "naxsi",
        directives: &[
            "MainRule",
            "BasicRule",
            "SecRulesEnabled",
            "SecRulesDisabled",
            "LearningMode",
            "DeniedUrl",
            "CheckRule",
        ],
        instead: "put a web application firewall in front, or ask one with \"auth_request\"",
    },
    Module {
        name: "ngx_pagespeed",
        directives: &["pagespeed", "pagespeed_*"],
        instead: "\"gzip\", \"brotli\" and \"zstd\" compress; optimize pages when they are built",
    },
    Module {
        name: "Passenger",
        directives: &["passenger_*", "rails_*"],
        instead: "run the application server by itself and use \"proxy_pass\"",
    },
    Module {
        name: "nginx-rtmp-module",
        directives: &["rtmp", "rtmp_*"],
        instead: "run a media server beside Forebay",
    },
    Module {
        name: "nginx-vod-module",
        directives: &["vod", "vod_*"],
        instead: "run a media server and use \"proxy_pass\"",
    },
    Module { name: "nchan", directives: &["nchan_*", "push_stream_*"], instead: PUSH },
    Module {
        name: "nginx-upload-module",
        directives: &["upload_pass", "upload_store", "upload_*"],
        instead: "let the application take the upload, or use \"dav_methods PUT\"",
    },
    Module {
        name: "ngx_http_auth_pam_module",
        directives: &["auth_pam", "auth_pam_*"],
        instead: "use \"auth_request\"",
    },
    Module {
        name: "nginx-auth-ldap",
        directives: &["auth_ldap", "auth_ldap_*", "ldap_server"],
        instead: "use \"auth_request\"",
    },
    Module {
        name: "spnego-http-auth-nginx-module",
        directives: &["auth_gss*"],
        instead: "use \"auth_request\"",
    },
    Module {
        name: "nginx-http-auth-digest",
        directives: &["auth_digest*"],
        instead: "use \"auth_basic\" over TLS",
    },
    Module {
        name: "testcookie-nginx-module",
        directives: &["testcookie", "testcookie_*"],
        instead: "use \"limit_req\" and \"limit_conn\"",
    },
    Module {
        name: "nginx-opentracing",
        directives: &["opentracing", "opentracing_*", "opentelemetry*"],
        instead: "pass the client's \"traceparent\" on; the application records the trace",
    },
    Module {
        name: "ngx_http_geoip2_module",
        directives: &["geoip2", "geoip2_*"],
        instead: "put the networks of the database's CSV edition into a file that \"geo\" includes",
    },
    Module {
        name: "http_doh of Angie",
        directives: &["doh_*"],
        instead: "use \"proxy_pass\" to a name server that speaks DNS over HTTPS",
    },
    Module {
        name: "nginx_accept_language_module",
        directives: &["set_from_accept_language"],
        instead: "use \"map $http_accept_language\"",
    },
    Module {
        name: "nginx_ajp_module",
        directives: &["ajp_*"],
        instead: "use \"proxy_pass\" to the HTTP connector",
    },
    Module {
        name: "nginx-http-concat",
        directives: &["concat", "concat_*"],
        instead: "join files when they are built; HTTP/2 makes it needless",
    },
];

/// Directives that nginx removed, and their replacements.
const REMOVED: &[(&str, &str)] = &[
    ("ssl", "it was removed in nginx 1.25.1: use \"listen ... ssl\""),
    ("limit_zone", "it was removed in nginx 1.7.6: use \"limit_conn_zone\""),
    ("upstream_conf", "use \"api\""),
    ("status", "use \"api\" or \"stub_status\""),
    ("status_format", "use \"api\""),
    ("spdy_headers_comp", "SPDY is gone: use \"http2 on\""),
    ("spdy_chunk_size", "SPDY is gone: use \"http2 on\""),
];

/// Finds the third-party module of a directive and its replacement.
pub(crate) fn third_party(name: &[u8]) -> Option<(&'static str, &'static str)> {
    let name = std::str::from_utf8(name).ok()?;
    let is = |pattern: &&str| match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(end), _) => name.ends_with(end),
        (_, Some(start)) => name.starts_with(start),
        _ => name == *pattern,
    };
    MODULES.iter().find(|m| m.directives.iter().any(is)).map(|m| (m.name, m.instead))
}

/// Returns the replacement of a directive that nginx removed.
pub(crate) fn removed(name: &[u8]) -> Option<&'static str> {
    REMOVED.iter().find(|(n, _)| n.as_bytes() == name).map(|(_, instead)| *instead)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grammar;

    #[test]
    fn directives_of_modules_are_known_by_their_names() {
        assert_eq!(third_party(b"content_by_lua_block").map(|m| m.0), Some("lua-nginx-module"));
        assert_eq!(third_party(b"js_content").map(|m| m.0), Some("njs"));
        assert_eq!(third_party(b"echo").map(|m| m.0), Some("echo-nginx-module"));
        assert_eq!(third_party(b"echoes"), None);
        assert_eq!(third_party(b"proxy_pass"), None);
    }

    #[test]
    fn no_directive_that_forebay_has_is_called_foreign_or_gone() {
        for row in grammar::all() {
            let never = matches!(row.support, grammar::Support::Never(_));
            assert!(never || third_party(row.name.as_bytes()).is_none(), "{}", row.name);
            assert!(removed(row.name.as_bytes()).is_none(), "{}", row.name);
        }
    }
}
