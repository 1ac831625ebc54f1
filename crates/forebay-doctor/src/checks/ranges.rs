//! Checks of times, sizes and numbers against the range in which they serve their purpose.

use super::ask::{children, http_server, parameter, seconds};
use super::general::{number, size};
use super::traffic::path_with;
use super::{Check, checks};
use crate::scene::Scene;
use forebay_conf::tree::Span;
use std::borrow::Cow;

/// Range of a value: the directive, the least and the largest sensible value, and the harm of larger ones.
struct Range {
    name: &'static str,
    least: u64,
    most: u64,
    harm: &'static str,
}

const fn range(name: &'static str, least: u64, most: u64, harm: &'static str) -> Range {
    Range { name, least, most, harm }
}

/// Times, in seconds.
const TIMES: [Range; 21] = [
    range("ssl_handshake_timeout", 2, 120, "slow clients hold sockets before they have said anything"),
    range("preread_timeout", 1, 120, "slow clients hold sockets before they have said anything"),
    range("proxy_protocol_timeout", 1, 120, "slow clients hold sockets before they have said anything"),
    range("resolver_timeout", 1, 60, "requests wait for a name server that is gone"),
    range("http2_idle_timeout", 1, 3600, "idle connections are kept"),
    range("http2_recv_timeout", 5, 600, "silent connections are kept"),
    range("keepalive_time", 1, 86_400, "connections are never ended"),
    range("lingering_time", 1, 600, "connections that have ended are kept"),
    range("proxy_cache_lock_timeout", 0, 120, "requests wait for one that hangs"),
    range("fastcgi_cache_lock_timeout", 0, 120, "requests wait for one that hangs"),
    range("uwsgi_cache_lock_timeout", 0, 120, "requests wait for one that hangs"),
    range("scgi_cache_lock_timeout", 0, 120, "requests wait for one that hangs"),
    range("proxy_cache_lock_age", 0, 600, "requests wait for an update that hangs"),
    range("open_file_cache_valid", 0, 3600, "files that have changed are not looked at"),
    range("worker_shutdown_timeout", 1, 86_400, "old workers stay after each reload"),
    range("auth_http_timeout", 1, 120, "logins wait for a server that is gone"),
    range(
        "proxy_next_upstream_timeout",
        0,
        600,
        "a request goes from server to server, long after its client",
    ),
    range(
        "fastcgi_next_upstream_timeout",
        0,
        600,
        "a request goes from server to server, long after its client",
    ),
    range(
        "uwsgi_next_upstream_timeout",
        0,
        600,
        "a request goes from server to server, long after its client",
    ),
    range("grpc_next_upstream_timeout", 0, 600, "a call goes from server to server, long after its client"),
    range("js_fetch_timeout", 1, 300, "requests wait for a server that is gone"),
];

/// Sizes, in bytes.
const SIZES: [Range; 13] = [
    range("mp4_max_buffer_size", 1 << 10, 100 << 20, "one request may take as much memory"),
    range("mp4_buffer_size", 4 << 10, 16 << 20, "each request takes as much memory"),
    range("subrequest_output_buffer_size", 1 << 10, 16 << 20, "each subrequest may take as much memory"),
    range("image_filter_buffer", 64 << 10, 100 << 20, "each picture may take as much memory"),
    range("http2_max_field_size", 1 << 10, 256 << 10, "each connection may take as much memory"),
    range("http2_max_header_size", 1 << 10, 512 << 10, "each connection may take as much memory"),
    range("http2_recv_buffer_size", 16 << 10, 16 << 20, "each worker takes as much memory"),
    range("limit_rate", 1 << 10, u64::MAX, ""),
    range("proxy_limit_rate", 1 << 10, u64::MAX, ""),
    range("fastcgi_limit_rate", 1 << 10, u64::MAX, ""),
    range("proxy_download_rate", 1 << 10, u64::MAX, ""),
    range("proxy_upload_rate", 1 << 10, u64::MAX, ""),
    range("client_max_body_size", 1 << 10, u64::MAX, ""),
];

/// Plain numbers.
const NUMBERS: [Range; 9] = [
    range("http2_max_concurrent_streams", 2, 1024, "one connection has as many requests at once"),
    range("http3_max_concurrent_streams", 2, 1024, "one connection has as many requests at once"),
    range("http2_max_requests", 10, 10_000_000, "connections last for ever"),
    range("ssl_verify_depth", 1, 10, "chains of any length are followed"),
    range(
        "keepalive_requests",
        1,
        10_000_000,
        "connections last for ever, with the memory that they have taken",
    ),
    range("proxy_next_upstream_tries", 0, 10, "one bad request is tried at as many servers"),
    range("fastcgi_next_upstream_tries", 0, 10, "one bad request is tried at as many servers"),
    range("grpc_next_upstream_tries", 0, 10, "one bad request is tried at as many servers"),
    range("max_ranges", 0, 1000, "one request asks for a file as many times"),
];

/// Reports values outside of their ranges.
fn outside(
    s: &Scene<'_>,
    ranges: &[Range],
    value: impl Fn(usize) -> Option<u64>,
    found: &mut dyn FnMut(Span, String),
) {
    for range in ranges {
        for n in s.all(range.name) {
            // 0 is "no limit", or the way to turn it off.
            let Some(v) = value(n).filter(|v| *v != 0) else { continue };
            let harm = if v > range.most { range.harm } else { "hardly anything is served within it" };
            if v < range.least || v > range.most {
                found(s.arg_span(n, 0), format!("{} {}: {harm}", range.name, s.arg(n, 0)));
            }
        }
    }
}

/// Parts of paths where passwords and codes are guessed.
const LOGINS: [&str; 20] = [
    "login",
    "signin",
    "sign-in",
    "logon",
    "auth",
    "oauth",
    "token",
    "password",
    "passwd",
    "reset",
    "forgot",
    "otp",
    "2fa",
    "mfa",
    "register",
    "signup",
    "wp-login.php",
    "xmlrpc.php",
    "session",
    "sessions",
];

/// Returns the requests a minute of a zone of `limit_req`, with its place.
fn rate(s: &Scene<'_>, zone: &str) -> Option<(usize, u64)> {
    let n = s
        .all("limit_req_zone")
        .find(|n| parameter(s, *n, "zone").is_some_and(|z| z.split(':').next() == Some(zone)))?;
    let rate = parameter(s, n, "rate")?;
    let (count, unit) = rate.split_once("r/")?;
    let count: u64 = count.parse().ok()?;
    Some((n, if unit == "s" { count.saturating_mul(60) } else { count }))
}

/// Reports limits of locations for logins under which passwords can be guessed.
fn loose_logins(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("limit_req") {
        let location = s.parent(n).filter(|p| s.is(*p, "location"));
        let zone = parameter(s, n, "zone").unwrap_or_default();
        let by_name = || zone.split(['_', '-']).any(|p| LOGINS.contains(&p)).then_some(Cow::Borrowed(zone));
        let Some(path) = location.and_then(|l| path_with(s, l, &LOGINS)).or_else(by_name) else { continue };
        if let Some((at, rate)) = rate(s, zone).filter(|(_, r)| *r > 600) {
            found(s.span(at), format!("{rate} passwords a minute can be tried at {path}"));
        }
    }
}

/// Reports connections to an upstream that are kept longer than servers keep theirs.
fn long_pools(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for u in s.all("upstream") {
        for n in children(s, u, "keepalive_timeout") {
            if let Some(t) = seconds(s, n, 0).filter(|t| *t > 900) {
                found(
                    s.arg_span(n, 0),
                    format!("most servers end idle connections before {t} s, and requests meet the end"),
                );
            }
        }
        for n in children(s, u, "server") {
            let fail =
                parameter(s, n, "fail_timeout").and_then(|t| forebay_conf::units::time_secs(t.as_bytes()));
            if let Some(t) = fail.filter(|t| *t > 600) {
                found(s.span(n), format!("one failure takes the server away for {} min", t / 60));
            }
        }
    }
}

checks! { Check;
    "time-unusual" |s, _, found| outside(s, &TIMES, |n| seconds(s, n, 0), found),
    "size-unusual" |s, _, found| outside(s, &SIZES, |n| size(s, n, 0), found),
    "number-unusual" |s, _, found| outside(s, &NUMBERS, |n| number(s, n), found),
    "login-rate" |s, _, found| loose_logins(s, found),
    "upstream-waits-long" |s, _, found| long_pools(s, found),
    "stream-days" |s, _, found| for n in ["proxy_read_timeout", "proxy_send_timeout", "grpc_read_timeout", "grpc_send_timeout", "fastcgi_read_timeout", "uwsgi_read_timeout"].into_iter().flat_map(|name| s.all(name)) {
        let http = http_server(s, n).is_some() || s.around(n, "http").is_some();
        let waits = seconds(s, n, 0).filter(|t| *t > 86_400 && http);
        if let Some(t) = waits {
            found(s.arg_span(n, 0), format!("a connection whose end is gone is kept for {} days", t / 86_400));
        }
    },
    "limit-status-wrong" |s, _, found| for n in ["limit_req_status", "limit_conn_status"].into_iter().flat_map(|name| s.all(name)) {
        let code = s.arg(n, 0);
        if ["400", "401", "404", "405", "410", "413", "418"].contains(&code) {
            found(s.arg_span(n, 0), format!("{code} says that the page is gone or the request wrong, and caches keep it"));
        }
    },
    "limit-key-none" |s, _, found| for n in ["limit_req_zone", "limit_conn_zone"].into_iter().flat_map(|name| s.all(name)) {
        let key = s.arg(n, 0);
        let empty = ["$remote_user", "$ssl_client_s_dn", "$ssl_client_serial", "$ssl_client_fingerprint", "$proxy_protocol_addr", "$ssl_server_name"];
        if empty.contains(&key) {
            found(s.arg_span(n, 0), format!("{key} is empty for many clients, who are not counted"));
        } else if !key.contains('$') && !key.contains("zone=") {
            found(s.arg_span(n, 0), format!("\"{key}\" is the same for all clients, who share one limit"));
        }
    },
    "sendfile-chunk-off" |s, _, found| for n in s.all("sendfile_max_chunk").filter(|n| s.arg(*n, 0) == "0") {
        found(s.span(n), "one fast client may keep a worker for a whole file".to_owned());
    },
}
