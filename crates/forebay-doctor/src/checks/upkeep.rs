//! Checks of logs, of resources, and of settings that cost speed.

use super::ask::{carried, children, http_servers, parameter, seconds};
use super::general::{connections, number, size};
use super::{Check, checks};
use crate::scene::Scene;
use crate::variables::by_client;
use forebay_conf::units;

/// Variables whose values must not be in a log.
fn is_secret(v: &str) -> bool {
    let lower = v.to_ascii_lowercase();
    let v = lower.as_str();
    let words = [
        "passw", "token", "secret", "session", "api_key", "apikey", "sessid", "sid", "jwt", "otp", "pin",
        "csrf",
    ];
    let named = |prefix: &str| {
        v.strip_prefix(prefix).is_some_and(|rest| {
            words.iter().any(|w| rest.contains(w)) || matches!(rest, "key" | "code" | "pwd" | "auth")
        })
    };
    matches!(
        v,
        "http_authorization"
            | "http_cookie"
            | "http_proxy_authorization"
            | "request_body"
            | "sent_http_set_cookie"
            | "upstream_http_set_cookie"
            | "http_x_api_key"
            | "http_x_auth_token"
            | "http_x_access_token"
            | "ssl_client_raw_cert"
            | "ssl_session_id"
    ) || named("arg_")
        || named("http_x_")
        || v.starts_with("cookie_") && named("cookie_")
}

/// Types of content that are compressed already.
const COMPRESSED: [&str; 13] = [
    "image/jpeg",
    "image/png",
    "image/gif",
    "image/webp",
    "image/avif",
    "video/mp4",
    "video/webm",
    "audio/mpeg",
    "application/zip",
    "application/gzip",
    "application/x-gzip",
    "font/woff",
    "font/woff2",
];

/// Returns the place of the level word of `error_log`.
fn level_word(s: &Scene<'_>, n: usize, words: &[&str]) -> Option<usize> {
    s.args(n).iter().skip(1).position(|a| words.contains(&&**a)).map(|i| i.saturating_add(1))
}

/// Returns `true` if a path is in memory on every usual system.
fn is_in_memory(path: &str) -> bool {
    ["/dev/shm", "/run/", "/var/run/", "/tmp/", "/tmp"]
        .iter()
        .any(|p| path == *p || (path.starts_with(p) && p.ends_with('/')) || path.starts_with("/dev/shm/"))
}

/// Returns the number of a parameter of `listen`.
fn backlog(s: &Scene<'_>, n: usize) -> Option<u64> {
    parameter(s, n, "backlog")?.parse().ok()
}

/// Returns `true` if the block of a directive does nothing that could fail: it answers, or sends the request elsewhere.
fn only_redirects(s: &Scene<'_>, n: usize) -> bool {
    let Some(block) = s.parent(n) else { return false };
    let works =
        ["root", "alias", "try_files", "proxy_pass", "fastcgi_pass", "uwsgi_pass", "grpc_pass", "scgi_pass"];
    let moves = s.child(Some(block), "rewrite").is_some() && s.is(block, "location");
    s.child(Some(block), "return").is_some()
        || moves && !s.inside(block).any(|c| works.iter().any(|w| s.is(c, w)))
}

checks! { Check;
    "log-secrets" |s, _, found| for n in s.all("log_format") {
        for (i, a) in s.args(n).iter().enumerate().skip(1) {
            if let Some(v) = carried(s, s.parent(n), a).into_iter().find(|v| is_secret(v)) {
                found(s.arg_span(n, i), format!("${v} is written into the log"));
            }
        }
    },
    "log-json-escape" |s, _, found| for n in s.all("log_format") {
        let args = s.args(n);
        let text = args.iter().skip(1).filter(|a| !a.starts_with("escape=")).cloned().collect::<String>();
        if text.trim_start().starts_with('{') && text.contains("\":") && !args.iter().any(|a| a == "escape=json") {
            found(s.span(n), "a quote in a request breaks the line".to_owned());
        }
    },
    "log-name-client" |s, _, found| for n in s.all("access_log") {
        let file = s.arg(n, 0);
        if let Some(v) = by_client(s, s.parent(n), file).filter(|_| !file.starts_with("syslog:")) {
            found(s.arg_span(n, 0), format!("each new ${v} makes a file"));
        }
    },
    "error-log-debug" |s, _, found| for n in s.all("error_log") {
        if let Some(i) = level_word(s, n, &["debug"]) {
            found(s.arg_span(n, i), "hundreds of lines for each request, with what is in it".to_owned());
        }
    },
    "error-log-quiet" |s, _, found| for n in s.all("error_log").filter(|n| !only_redirects(s, *n)) {
        if s.arg(n, 0) == "/dev/null" {
            found(s.arg_span(n, 0), "nobody will know why something fails".to_owned());
        } else if let Some(i) = level_word(s, n, &["crit", "alert", "emerg"]) {
            found(s.arg_span(n, i), "failures of upstreams and missing files are at level error".to_owned());
        }
    },
    "access-log-off" |s, _, found| for n in s.all("access_log").filter(|n| s.arg(*n, 0) == "off" || s.arg(*n, 0) == "/dev/null") {
        let wide = s.parent(n).is_some_and(|p| s.is(p, "http") || s.is(p, "server"));
        let other = s.parent(n).is_some_and(|p| children(s, p, "access_log").count() > 1 || s.is(p, "http") && http_servers(s).any(|b| s.child(Some(b), "access_log").is_some()));
        let redirects = s.parent(n).is_some_and(|p| s.child(Some(p), "return").is_some());
        if wide && !other && !redirects {
            found(s.span(n), "there will be no trace of an attack".to_owned());
        }
    },
    "log-unbuffered" |s, _, found| if connections(s) >= 10_000 {
        let plain = |n: &usize| s.around(*n, "stream").is_none() && !s.args(*n).iter().any(|a| a.starts_with("buffer=") || a.starts_with("gzip")) && !["off", "stderr", "stdout"].contains(&s.arg(*n, 0)) && !["syslog:", "/dev/"].iter().any(|p| s.arg(*n, 0).starts_with(p));
        for n in s.all("access_log").filter(plain) {
            found(s.span(n), "a write(2) for each request".to_owned());
        }
    },
    "backlog-small" |s, _, found| for n in s.all("listen") {
        if let Some(b) = backlog(s, n).filter(|b| *b < 128) {
            let at = s.args(n).iter().position(|a| a.starts_with("backlog=")).unwrap_or(0);
            found(s.arg_span(n, at), format!("of a burst {} connections wait, and the others are dropped", b.saturating_add(1)));
        }
    },
    "temp-in-memory" |s, _, found| for n in s.with_name(|name| name.ends_with("_temp_path") || name.ends_with("_cache_path")) {
        if is_in_memory(s.arg(n, 0)) {
            found(s.arg_span(n, 0), format!("{} is memory, or emptied at each start", s.arg(n, 0)));
        }
    },
    "worker-priority" |s, _, found| for n in s.all("worker_priority") {
        match s.arg(n, 0).parse::<i64>() {
            Ok(p) if p > 0 => found(s.arg_span(n, 0), "every other program comes first".to_owned()),
            Ok(p) if p < -10 => found(s.arg_span(n, 0), "the kernel's own threads wait for it".to_owned()),
            _ => {}
        }
    },
    "nodelay-off" |s, _, found| for n in s.all("tcp_nodelay").filter(|n| s.arg(*n, 0) == "off") {
        found(s.span(n), "the last piece of a response waits for an acknowledgement, up to 40 ms".to_owned());
    },
    "output-buffers-small" |s, _, found| for n in s.all("output_buffers") {
        let total = number(s, n).unwrap_or(0).saturating_mul(size(s, n, 1).unwrap_or(0));
        if total < 32 << 10 {
            found(s.span(n), format!("files are read in pieces of {} bytes", size(s, n, 1).unwrap_or(0)));
        }
    },
    "sendfile-chunk-small" |s, _, found| for n in s.all("sendfile_max_chunk") {
        if let Some(b) = size(s, n, 0).filter(|b| *b > 0 && *b < 64 << 10) {
            found(s.arg_span(n, 0), format!("a call for each {} kB", b >> 10));
        }
    },
    "directio-small" |s, _, found| for n in s.all("directio").filter(|n| s.arg(*n, 0) != "off") {
        if let Some(b) = size(s, n, 0).filter(|b| *b < 1 << 20) {
            found(s.arg_span(n, 0), format!("files of {} kB come from the disk each time", b >> 10));
        }
    },
    "aio-alone" |s, _, found| for n in s.all("aio").filter(|n| s.arg(*n, 0) == "on") {
        if s.effective(s.parent(n), "directio").is_none_or(|d| s.arg(d, 0) == "off") {
            found(s.span(n), "without directio Linux reads as before, and blocks".to_owned());
        }
    },
    "gzip-types-all" |s, _, found| for name in ["gzip_types", "brotli_types", "zstd_types"] {
        for n in s.all(name) {
            let args = s.args(n);
            if args.iter().any(|a| a == "*") {
                found(s.span(n), "pictures and archives are compressed again, and grow".to_owned());
            } else if let Some(i) = args.iter().position(|a| COMPRESSED.contains(&&**a)) {
                found(s.arg_span(n, i), format!("{} is compressed already", s.arg(n, i)));
            }
        }
    },
    "gzip-types-missing" |s, _, found| for n in s.all("gzip").filter(|n| s.arg(*n, 0) == "on") {
        let below = s.parent(n).is_some_and(|p| s.named_inside(p, "gzip_types").next().is_some());
        if s.effective(s.parent(n), "gzip_types").is_none() && !below {
            found(s.span(n), "scripts, styles and JSON leave as they are".to_owned());
        }
    },
    "gzip-off" |s, _, found| for n in s.all("gzip").filter(|n| s.arg(*n, 0) == "off" && s.parent(*n).is_some_and(|p| s.is(p, "http"))) {
        let other = ["gzip", "brotli", "zstd"].into_iter().flat_map(|name| s.all(name)).any(|c| s.arg(c, 0) == "on");
        if !other {
            found(s.span(n), "text takes three to five times the bytes".to_owned());
        }
    },
    "gzip-min-length-tiny" |s, _, found| for n in s.all("gzip_min_length").chain(s.all("brotli_min_length")) {
        if let Some(b) = size(s, n, 0).filter(|b| *b < 100) {
            found(s.arg_span(n, 0), format!("bodies of {b} bytes grow when they are compressed"));
        }
    },
    "gzip-vary-off" |s, _, found| for n in s.all("gzip_vary").filter(|n| s.arg(*n, 0) == "off") {
        found(s.span(n), "caches cannot tell the compressed form from the plain one".to_owned());
    },
    "http2-streams-few" |s, _, found| for name in ["http2_max_concurrent_streams", "http3_max_concurrent_streams"] {
        for n in s.all(name) {
            if let Some(m) = number(s, n).filter(|m| *m < 32) {
                found(s.arg_span(n, 0), format!("the {}th request of a page waits", m.saturating_add(1)));
            }
        }
    },
    "http2-chunk-small" |s, _, found| for n in s.all("http2_chunk_size") {
        if let Some(b) = size(s, n, 0).filter(|b| *b < 4096) {
            found(s.arg_span(n, 0), format!("a frame for each {b} bytes"));
        }
    },
    "http3-buffer-small" |s, _, found| for n in s.all("http3_stream_buffer_size") {
        if let Some(b) = size(s, n, 0).filter(|b| *b < 32 << 10) {
            found(s.arg_span(n, 0), format!("{} kB on the way at a time", b >> 10));
        }
    },
    "congestion-control-slow" |s, _, found| for n in s.all("quic_congestion_control").filter(|n| matches!(s.arg(*n, 0), "reno" | "newreno")) {
        found(s.arg_span(n, 0), "far clients take long to get up to speed".to_owned());
    },
    "accept-mutex-on" |s, _, found| for n in s.all("accept_mutex").filter(|n| s.arg(*n, 0) == "on") {
        found(s.span(n), "one worker accepts at a time, and others take over after half a second".to_owned());
    },
    "reuseport-missing" |s, h, found| if h.cpus != 1 && connections(s) >= 50_000 {
        let listens: Vec<usize> = s.all("listen").filter(|n| s.around(*n, "http").is_some() && !s.arg(*n, 0).starts_with("unix:")).collect();
        if let Some(first) = listens.first().filter(|_| !listens.iter().any(|l| super::ask::has(s, *l, "reuseport"))) {
            found(s.span(*first), "the workers that happen to wake up first get most of the connections".to_owned());
        }
    },
    "timer-resolution" |s, _, found| for n in s.all("timer_resolution") {
        let coarse = units::time_ms(s.arg(n, 0).as_bytes()).is_some_and(|ms| ms >= 10);
        found(s.span(n), if coarse { "timeouts are late by as much".to_owned() } else { "a signal for each interval, busy or not".to_owned() });
    },
    "debug-connection" |s, _, found| for n in s.all("debug_connection") {
        found(s.span(n), "everything about these clients is written into the log".to_owned());
    },
    "shutdown-timeout-none" |s, _, found| for n in s.all("worker_shutdown_timeout") {
        if let Some(t) = seconds(s, n, 0).filter(|t| *t > 0 && *t < 5) {
            found(s.arg_span(n, 0), format!("requests of more than {t} s are cut off at each reload"));
        }
    },
    "descriptors-unset" |s, h, found| if h.descriptors.0 == 0 && s.all("worker_rlimit_nofile").next().is_none() {
        for n in s.all("worker_connections") {
            if let Some(c) = number(s, n).filter(|c| *c >= 10_000) {
                found(s.arg_span(n, 0), format!("{c} connections, and the usual limit is 1024 descriptors"));
            }
        }
    },
    "connections-few-proxy" |s, _, found| if super::general::proxies(s) {
        for n in s.all("worker_connections") {
            if let Some(c) = number(s, n).filter(|c| (512..1024).contains(c)) {
                found(s.arg_span(n, 0), format!("{} clients of a worker, as each request that is passed on takes two", c / 2));
            }
        }
    },
}
