//! Rules for the configuration. Their texts were checked against nginx 1.31 and Linux 6.18.

use super::stream::Socket;
use super::{Check, checks};
use crate::facts::host::Host;
use crate::scene::Scene;
use forebay_conf::tree::Span;
use forebay_conf::units;
use std::collections::HashSet;

pub(crate) fn size(s: &Scene<'_>, n: usize, arg: usize) -> Option<u64> {
    units::size(s.arg(n, arg).as_bytes())
}

pub(crate) fn seconds(s: &Scene<'_>, n: usize) -> Option<u64> {
    units::time_secs(s.arg(n, 0).as_bytes())
}

pub(crate) fn number(s: &Scene<'_>, n: usize) -> Option<u64> {
    s.arg(n, 0).parse().ok()
}

pub(crate) fn connections(s: &Scene<'_>) -> u64 {
    s.all("worker_connections").last().and_then(|n| number(s, n)).unwrap_or(512)
}

pub(crate) fn workers(s: &Scene<'_>, h: &Host) -> u64 {
    match s.all("worker_processes").last().map(|n| s.arg(n, 0)) {
        // On a machine that was not looked at there is more than one CPU.
        Some("auto") => {
            if h.cpus > 0 {
                h.cpus as u64
            } else {
                2
            }
        }
        Some(w) => w.parse().unwrap_or(1),
        None => 1,
    }
}

/// Resources that the settings allow in the worst case.
pub struct Worst {
    /// Workers.
    pub workers: u64,
    /// Connections of each.
    pub connections: u64,
    /// Clients at a time, in all workers.
    pub clients: u64,
    /// Descriptors that a worker needs: connections, cached files, logs and sockets.
    pub descriptors: u64,
    /// Bytes of a client's head.
    pub head: u64,
    /// Bytes of its body.
    pub body: u64,
    /// Bytes of the response of an upstream.
    pub response: u64,
    /// Bytes of a session of the stream block, which has a buffer for each direction.
    pub session: u64,
}

impl Worst {
    /// Descriptors of a worker besides its connections: logs, sockets, the event loop.
    const OTHERS: u64 = 64;

    /// Computes them.
    pub fn of(s: &Scene<'_>, h: &Host) -> Worst {
        let (workers, connections) = (workers(s, h), connections(s));
        let passes_on = proxies(s);
        let most = |name: &str, default: u64, of: &dyn Fn(usize) -> Option<u64>| {
            s.all(name).filter_map(of).max().unwrap_or(default)
        };
        let product = |n: usize| Some(number(s, n)?.saturating_mul(size(s, n, 1)?));
        let one = |n: usize| size(s, n, 0);
        let of_http = |n: usize| size(s, n, 0).filter(|_| s.around(n, "stream").is_none());
        let of_stream = |n: usize| size(s, n, 0).filter(|_| s.around(n, "stream").is_some());
        let response = |p: &str| {
            let first = most(&format!("{p}_buffer_size"), 4096, &of_http);
            most(&format!("{p}_buffers"), 8 * 4096, &product).saturating_add(first)
        };
        let responses = ["proxy", "fastcgi", "uwsgi", "scgi"].map(response);
        // A request that is passed on has two connections, and no cached file.
        let each = if passes_on { 2 } else { 1 };
        let cached = most("open_file_cache", 0, &|n| {
            s.args(n).iter().find_map(|a| a.strip_prefix("max=")?.parse().ok())
        });
        let cached = if passes_on { 0 } else { cached };
        Worst {
            workers,
            connections,
            clients: connections.saturating_mul(workers) / each,
            // A request that is passed on may have a temporary file besides.
            descriptors: connections
                .saturating_mul(each)
                .saturating_add(cached)
                .saturating_add(Worst::OTHERS),
            session: if s.all("stream").next().is_some() {
                most("proxy_buffer_size", 16 << 10, &of_stream).saturating_mul(2)
            } else {
                0
            },
            head: most("large_client_header_buffers", 32 << 10, &product).saturating_add(most(
                "client_header_buffer_size",
                1024,
                &one,
            )),
            body: most("client_body_buffer_size", 16 << 10, &one),
            response: if passes_on { responses.into_iter().max().unwrap_or(0) } else { 0 },
        }
    }

    /// Returns the memory of all clients, bytes.
    pub fn memory(&self) -> u64 {
        let request = self.head.saturating_add(self.body).saturating_add(self.response);
        self.clients.saturating_mul(request.max(self.session))
    }
}

pub(crate) fn proxies(s: &Scene<'_>) -> bool {
    ["proxy_pass", "fastcgi_pass", "uwsgi_pass", "scgi_pass", "grpc_pass", "memcached_pass"]
        .iter()
        .any(|d| s.all(d).next().is_some())
}

/// Reports directives that set the default.
fn defaults(s: &Scene<'_>, found: &mut dyn FnMut(Span, String), list: &[(&str, &[&str])]) {
    for (name, words) in list {
        for n in s.all(name) {
            // Only where no outer level has another value.
            let outer = s.parent(n).and_then(|p| s.effective(s.parent(p), name));
            if s.args(n) == *words && outer.is_none() {
                found(s.span(n), format!("\"{name} {}\" is the default", words.join(" ")));
            }
        }
    }
}

/// Reports `text` for each directive that has `what` among its arguments.
pub(crate) fn word(s: &Scene<'_>, found: &mut dyn FnMut(Span, String), name: &str, what: &str, text: &str) {
    for n in s.all(name) {
        if let Some(i) = s.args(n).iter().position(|a| a == what) {
            found(s.arg_span(n, i), text.to_owned());
        }
    }
}

/// Text of the rule `method-list`.
pub(crate) const PATCH_REFUSED: &str = "PATCH is refused";

/// Returns `true` if the condition of an `if` lets through a list of methods without PATCH.
pub(crate) fn forgets_patch(condition: &str) -> bool {
    condition.contains("$request_method")
        && condition.contains("!~")
        && condition.contains("DELETE")
        && !condition.contains("PATCH")
}

/// Returns the blocks with one of some directives, in reading order.
fn blocks_with(s: &Scene<'_>, names: &[&str]) -> Vec<Option<usize>> {
    let mut blocks: Vec<Option<usize>> =
        names.iter().flat_map(|name| s.all(name)).map(|n| s.parent(n)).collect();
    blocks.sort_unstable();
    blocks.dedup();
    blocks
}

/// Reports directives of a list that hide the directives of outer levels.
pub(crate) fn level_lost(s: &Scene<'_>, name: &str, found: &mut dyn FnMut(Span, String)) {
    let of_block =
        |n: usize| Some((s.parent(n)?, n)).filter(|(block, n)| s.child(Some(*block), name) == Some(*n));
    let mut firsts: Vec<(usize, usize)> = s.all(name).filter_map(of_block).collect();
    firsts.sort_unstable();
    for (block, first) in firsts {
        let merged = |n: usize| s.arg(n, 0) == "merge";
        if name == "add_header" && s.effective(Some(block), "add_header_inherit").is_some_and(merged) {
            continue;
        }
        let Some(outer) = s.effective(s.parent(block), name) else { continue };
        let names = |block: Option<usize>| -> Vec<&str> {
            // An empty field is not sent.
            let sent = |n: &usize| s.args(*n).len() < 2 || !s.arg(*n, 1).is_empty();
            s.children(block, name).filter(sent).map(|n| s.arg(n, 0)).collect()
        };
        let own = names(Some(block));
        let mut lost = names(s.parent(outer));
        // A field with an empty value is taken away on purpose, so it is not lost.
        let taken_away = |h: &str| s.children(Some(block), name).any(|n| s.arg(n, 0).eq_ignore_ascii_case(h));
        lost.retain(|h| !own.iter().any(|o| o.eq_ignore_ascii_case(h)) && !taken_away(h));
        lost.dedup();
        if !lost.is_empty() {
            found(s.span(first), format!("not sent here any more: {}", lost.join(", ")));
        }
    }
}

fn on(s: &Scene<'_>, found: &mut dyn FnMut(Span, String), name: &str, text: &str) {
    for n in s.all(name).filter(|n| s.arg(*n, 0) == "on") {
        found(s.span(n), text.to_owned());
    }
}

checks! { Check;
    "multi-accept" |s, h, found| {
        if s.all("multi_accept").next().is_none() {
            return;
        }
        // In a part the number is not known.
        let single = workers(s, h) == 1 && (s.all("worker_processes").next().is_some() || !s.is_partial());
        // The option may stand once for an address, however many servers it has.
        let reusing = || s.all("listen").filter(|n| s.has(*n, "reuseport"));
        let sockets: HashSet<Socket> = reusing().filter_map(|n| Socket::of(s, n)).collect();
        let written: HashSet<&str> = reusing().map(|n| s.arg(n, 0)).collect();
        let reuses = |n: usize| written.contains(s.arg(n, 0)) || Socket::of(s, n).is_some_and(|socket| sockets.contains(&socket));
        let mut tcp = s.all("listen").filter(|n| !s.has(*n, "udp") && !s.has(*n, "quic") && !s.arg(*n, 0).starts_with("unix:"));
        let all_reuse = s.all("listen").next().is_some() && tcp.all(reuses);
        if !single && !all_reuse {
            on(s, found, "multi_accept", "one worker will take nearly all connections");
        }
    },
    "use-epoll" |s, _, found| for n in s.all("use").filter(|n| s.arg(*n, 0) == "epoll") {
        found(s.span(n), "epoll is used on Linux anyway".to_owned());
    },
    "worker-processes-one" |s, h, found| for n in s.all("worker_processes").filter(|n| s.arg(*n, 0) == "1" && h.is_here() && h.cpus != 1) {
        found(s.arg_span(n, 0), if h.cpus > 1 { format!("1 of {} CPUs of this machine will be used", h.cpus) } else { "only one CPU will be used".to_owned() });
    },
    "worker-processes-many" |s, h, found| for n in s.all("worker_processes") {
        if let Some(w) = number(s, n) && h.is_here() && h.cpus > 0 && w >= (2 * h.cpus as u64).max(5) {
            found(s.arg_span(n, 0), format!("{w} workers, and {} CPUs may be used on this machine", h.cpus));
        }
    },
    "worker-processes-missing" |s, h, found| if let (None, Some(n), 2..) = (s.all("worker_processes").next(), s.all("events").next(), h.cpus) {
        found(s.span(n), format!("nginx uses 1 of {} CPUs", h.cpus));
    },
    "worker-processes-quota" |s, h, found| for n in s.all("worker_processes").filter(|n| s.arg(*n, 0) == "auto") {
        if h.cpus > 0 && h.cpus < h.online {
            found(s.arg_span(n, 0), format!("{} CPUs may be used, nginx will start {} workers", h.cpus, h.online));
        }
    },
    "worker-affinity" |s, h, found| for n in s.all("worker_cpu_affinity") {
        let quota = h.cpus > 0 && h.cpus < h.online;
        found(s.span(n), if quota { format!("{} of {} CPUs are ours: do not pin", h.cpus, h.online) } else { "helps only on CPUs that nobody else uses".to_owned() });
    },
    "worker-connections-low" |s, _, found| for n in s.all("worker_connections") {
        if let Some(c) = number(s, n).filter(|c| *c < 512) {
            found(s.arg_span(n, 0), format!("{c} is fewer than the default of 512"));
        }
    },
    "descriptors-short" |s, h, found| {
        let c = connections(s);
        let need = Worst::of(s, h).descriptors;
        let limit = s.all("worker_rlimit_nofile").last();
        match limit.and_then(|n| number(s, n)) {
            Some(have) if have <= c || have.saturating_add(Worst::OTHERS) < need => {
                let n = limit.unwrap_or(0);
                found(s.arg_span(n, 0), format!("{have} descriptors for {c} connections; {need} are needed in the worst case"));
            }
            None if h.descriptors.0 > 0 && h.descriptors.0 < need => {
                if let Some(n) = s.all("worker_connections").last() {
                    found(s.arg_span(n, 0), format!("{need} descriptors are needed in the worst case, the limit is {}", h.descriptors.0));
                }
            }
            _ => {}
        }
    },
    "nofile-above-nr-open" |s, h, found| for n in s.all("worker_rlimit_nofile") {
        let most = h.number("fs.nr_open").map_or(1_048_576, |v| v.0);
        if let Some(v) = number(s, n).filter(|v| *v > most) {
            found(s.arg_span(n, 0), format!("{v} is more than fs.nr_open allows ({most})"));
        }
    },
    "keepalive-off" |s, _, found| for n in s.all("keepalive_timeout").filter(|n| !s.parent(*n).is_some_and(|p| s.is(p, "upstream"))) {
        if seconds(s, n) == Some(0) {
            found(s.arg_span(n, 0), "every request will take a connection of its own".to_owned());
        }
    },
    "keepalive-tiny" |s, _, found| for n in s.all("keepalive_timeout").filter(|n| !s.parent(*n).is_some_and(|p| s.is(p, "upstream"))) {
        if let Some(t) = seconds(s, n).filter(|t| *t > 0 && *t < 10) {
            found(s.arg_span(n, 0), format!("{t} s: more reconnects than with the default of 75 s"));
        }
    },
    "keepalive-short" |s, _, found| for n in s.all("keepalive_timeout").filter(|n| !s.parent(*n).is_some_and(|p| s.is(p, "upstream"))) {
        if let Some(t) = seconds(s, n).filter(|t| *t > 0 && *t < 60) {
            found(s.arg_span(n, 0), format!("{t} s: more reconnects than with the default of 75 s"));
        }
    },
    "keepalive-requests" |s, _, found| defaults(s, found, &[("keepalive_requests", &["1000"])]),
    "keepalive-requests-stale" |s, _, found| for n in s.all("keepalive_requests") {
        if let Some(v) = number(s, n).filter(|v| *v > 1000) {
            found(s.arg_span(n, 0), format!("{v}: the default is 1000, not 100 as articles say"));
        }
    },
    "default-repeated" |s, h, found| {
        defaults(s, found, &[
            ("tcp_nodelay", &["on"]),
            ("postpone_output", &["1460"]),
            ("client_header_buffer_size", &["1k"]),
            ("large_client_header_buffers", &["4", "8k"]),
            ("accept_mutex", &["off"]),
            ("gzip_buffers", &["32", "4k"]),
        ]);
        for n in s.all("gzip_buffers").filter(|n| s.args(*n) == ["16", "8k"]) {
            found(s.span(n), "\"gzip_buffers 16 8k\" is 128k in all, as the default 32 4k".to_owned());
        }
        // Older servers need these lines, so they are reported only where the version is known.
        if !h.is_here() || !h.target.keeps_upstream_connections() {
            return;
        }
        defaults(s, found, &[("proxy_http_version", &["1.1"])]);
        for n in s.all("proxy_set_header").filter(|n| s.arg(*n, 0).eq_ignore_ascii_case("connection") && s.arg(*n, 1).is_empty()) {
            found(s.span(n), "an empty Connection to upstreams is the default since 1.29.7".to_owned());
        }
    },
    "literal-proxy-pass" |s, _, found| for n in s.all("proxy_pass") {
        let url = s.arg(n, 0);
        let host = url.split("://").nth(1).unwrap_or_default();
        let place = host.split(['/', ':']).next().unwrap_or_default();
        // In a part of a configuration a name without a dot is most likely that of a group elsewhere.
        let group = s.group(place).is_some() || s.is_partial() && !place.contains(['.', ':']) && place != "localhost";
        let socket = super::traffic::upgrades(s, s.parent(n));
        if !group && !socket && !url.contains('$') && !place.is_empty() && !host.starts_with("unix") {
            found(s.arg_span(n, 0), "a new connection for each request".to_owned());
        }
    },
    "upstream-keepalive-many" |s, h, found| for n in s.all("keepalive").filter(|n| s.parent(*n).is_some_and(|p| s.is(p, "upstream"))) {
        if let Some(k) = number(s, n).filter(|k| *k >= 1000) {
            found(s.arg_span(n, 0), format!("up to {} idle connections to the upstream", k.saturating_mul(workers(s, h))));
        }
    },
    "keepalive-http10" |s, _, found| {
        let kept = s.all("upstream").filter(|u| s.child(Some(*u), "keepalive").is_some());
        let kept: HashSet<&str> = kept.map(|u| s.arg(u, 0)).collect();
        for n in s.all("proxy_pass") {
            let host = s.arg(n, 0).split("://").nth(1).and_then(|rest| rest.split('/').next());
            // HTTP/1.0 in so many words has a rule of its own.
            if host.is_some_and(|h| kept.contains(h)) && s.effective(s.parent(n), "proxy_http_version").is_none() {
                found(s.span(n), "without proxy_http_version 1.1 nginx before 1.29.7 closes each connection".to_owned());
            }
        }
    },
    "keepalive-requests-low" |s, _, found| for n in s.all("keepalive_requests") {
        if let Some(v) = number(s, n).filter(|v| *v < 100) {
            found(s.arg_span(n, 0), format!("a new connection every {v} requests"));
        }
    },
    "sendfile-off" |s, _, found| {
        let plain = s.all("listen").any(|l| !s.has(l, "ssl")) || s.all("listen").next().is_none();
        if let Some(n) = s.all("root").find(|n| plain && !s.is_partial() && !s.on(s.parent(*n), "sendfile")) {
            found(s.span(n), "files below it are read and written, not sent".to_owned());
        }
    },
    "file-cache-errors" |s, _, found| on(s, found, "open_file_cache_errors", "a 404 outlives the arrival of the file"),
    "file-cache-stale" |s, _, found| for n in s.all("open_file_cache").filter(|n| s.arg(*n, 0) != "off") {
        let valid = s.effective(s.parent(n), "open_file_cache_valid").and_then(|v| seconds(s, v)).unwrap_or(60);
        if valid > 5 {
            found(s.span(n), format!("up to {valid} s of stale content after a file has changed"));
        }
    },
    "output-buffers" |s, _, found| for n in s.all("output_buffers") {
        let total = number(s, n).unwrap_or(0).saturating_mul(size(s, n, 1).unwrap_or(0));
        if total > 128 * 1024 {
            found(s.span(n), format!("{} kB for each client that is sent a filtered body", total / 1024));
        }
    },
    "header-buffers-small" |s, _, found| for n in s.all("large_client_header_buffers") {
        if let Some(b) = size(s, n, 1).filter(|b| *b < 8192) {
            found(s.arg_span(n, 1), format!("lines of more than {b} bytes will be refused"));
        }
    },
    "body-buffer-large" |s, _, found| for n in s.all("client_body_buffer_size") {
        if let Some(b) = size(s, n, 0).filter(|b| *b >= 512 * 1024) {
            found(s.arg_span(n, 0), format!("{} kB for each upload: {} MB if all {} connections of a worker upload", b / 1024, b.saturating_mul(connections(s)) / (1 << 20), connections(s)));
        }
    },
    "timeouts-tiny" |s, _, found| for name in ["client_body_timeout", "client_header_timeout", "send_timeout"] {
        for n in s.all(name) {
            if let Some(t) = seconds(s, n).filter(|t| *t < 5) {
                let what = if name == "client_header_timeout" { "for a whole head, which slow clients do not send in time" } else { "of silence end a request" };
                found(s.arg_span(n, 0), format!("{t} s {what}"));
            }
        }
    },
    "timeouts-short" |s, _, found| for name in ["client_body_timeout", "client_header_timeout", "send_timeout"] {
        for n in s.all(name) {
            if let Some(t) = seconds(s, n).filter(|t| *t < 15) {
                found(s.arg_span(n, 0), format!("{t} s of silence end a request"));
            }
        }
    },
    "tcp-nopush-alone" |s, _, found| for n in s.all("tcp_nopush").filter(|n| s.arg(*n, 0) == "on" && !s.on(s.parent(*n), "sendfile")) {
        found(s.span(n), "sendfile is off here".to_owned());
    },
    "tcp-nopush-cost" |s, _, found| for n in s.all("tcp_nopush").filter(|n| s.arg(*n, 0) == "on" && s.on(s.parent(*n), "sendfile")) {
        found(s.span(n), "two more system calls for each response; measure whether it pays".to_owned());
    },
    "log-buffer-loss" |s, _, found| for n in s.all("access_log") {
        let flushed = super::ask::parameter(s, n, "flush").and_then(|t| units::time_secs(t.as_bytes()));
        if s.args(n).iter().any(|a| a.starts_with("buffer=")) && flushed.is_none_or(|t| t > 60) {
            found(s.span(n), "lines in the buffer are lost when the machine crashes, in nginx also when a worker is killed".to_owned());
        }
    },
    "gzip-level" |s, _, found| for n in s.all("gzip_comp_level") {
        if let Some(l) = number(s, n).filter(|l| *l > 6) {
            found(s.arg_span(n, 0), format!("level {l} costs twice as much as 6 for almost nothing"));
        }
    },
    "brotli-module" |s, _, found| for n in s.all("brotli").filter(|n| s.arg(*n, 0) == "on") {
        if !s.all("load_module").any(|m| s.arg(m, 0).contains("brotli")) {
            found(s.span(n), "nginx does not know it by itself".to_owned());
            break;
        }
    },
    "gzip-min-length" |s, _, found| for n in s.all("gzip").filter(|n| s.arg(*n, 0) == "on") {
        if s.effective(s.parent(n), "gzip_min_length").is_none() {
            found(s.span(n), "bodies of 20 bytes are compressed too".to_owned());
        }
    },
    "gzip-vary" |s, _, found| for n in s.all("gzip").filter(|n| s.arg(*n, 0) == "on" && !s.on(s.parent(*n), "gzip_vary")) {
        found(s.span(n), "responses do not say \"Vary: Accept-Encoding\"".to_owned());
    },
    "gzip-breach" |s, _, found| for n in s.all("gzip_proxied").filter(|n| s.arg(*n, 0) == "any") {
        found(s.span(n), "pages of members are compressed, too".to_owned());
    },
    "header-lost" |s, _, found| level_lost(s, "add_header", found),
    "cache-control-contradicts" |s, _, found| for n in s.all("add_header").filter(|n| s.arg(*n, 0).eq_ignore_ascii_case("cache-control")) {
        if let Some(e) = s.effective(s.parent(n), "expires").filter(|e| s.arg(*e, 0) != "off") {
            // Lines with other parameters belong together (RFC 9110, section 5.3).
            if ["no-cache", "no-store", "max-age"].iter().any(|word| s.arg(n, 1).contains(word)) {
                found(s.span(n), format!("contradicts \"expires {}\"", s.arg(e, 0)));
            }
        }
    },
    "cache-control-twice" |s, _, found| for n in s.all("add_header").filter(|n| s.arg(*n, 0).eq_ignore_ascii_case("cache-control")) {
        if let Some(e) = s.effective(s.parent(n), "expires").filter(|e| s.arg(*e, 0) != "off") {
            let void = s.arg(n, 1).contains("no-cache") || s.arg(n, 1).contains("no-store");
            found(s.span(n), if void { format!("contradicts \"expires {}\"", s.arg(e, 0)) } else { format!("a second Cache-Control beside that of \"expires {}\"", s.arg(e, 0)) });
        }
    },
    "xss-protection" |s, _, found| for n in s.all("add_header").filter(|n| s.arg(*n, 0).eq_ignore_ascii_case("x-xss-protection")) {
        found(s.span(n), "browsers ignore it".to_owned());
    },
    "method-list" |s, _, found| for n in s.all("if") {
        if forgets_patch(&s.text(n)) {
            found(s.span(n), PATCH_REFUSED.to_owned());
        }
    },
    "burst-long" |s, _, found| { let zones = super::traffic::request_zones(s); for n in s.all("limit_req") {
        let args = s.args(n);
        let burst: u64 = args.iter().find_map(|a| a.strip_prefix("burst=")?.parse().ok()).unwrap_or(0);
        let zone = super::ask::parameter(s, n, "zone").unwrap_or_default();
        // Half a minute of requests at once is more than a page with its pictures.
        let rate = zones.get(zone).and_then(|z| super::traffic::rate(s, *z));
        let long = rate.is_none_or(|per_minute| burst > per_minute / 2);
        if burst >= 10 && long && args.iter().any(|a| a == "nodelay") {
            found(s.span(n), format!("{} requests pass at once", burst + 1));
        }
    } },
    "burst-nodelay" |s, _, found| for n in s.all("limit_req") {
        let args = s.args(n);
        let burst: u64 = args.iter().find_map(|a| a.strip_prefix("burst=")?.parse().ok()).unwrap_or(0);
        if burst >= 20 && args.iter().any(|a| a == "nodelay") {
            found(s.span(n), format!("{} requests pass at once", burst + 1));
        }
    },
    "asset-location" |s, _, found| for n in s.all("location").filter(|n| s.arg(*n, 0).starts_with('~')) {
        let Some(server) = s.around(n, "server") else { continue };
        let pattern = s.text(n);
        let assets = ["css", "js", "png", "jpg"].iter().filter(|e| pattern.contains(*e)).count() >= 2;
        let handles = ["proxy_pass", "try_files", "fastcgi_pass", "return", "root", "alias"].iter().any(|d| s.child(Some(n), d).is_some());
        let rooted = s.effective(Some(server), "root").is_some();
        let proxied = s.named_inside(server, "proxy_pass").next().is_some();
        if assets && proxied && !handles && (!rooted || s.children(Some(server), "location").any(|l| s.arg(l, 0) == "/" && s.child(Some(l), "proxy_pass").is_some())) {
            found(s.span(n), "the application's assets are looked for on disk".to_owned());
        } else if assets && proxied && !handles {
            found(s.span(n), "assets of what is proxied are looked for below \"root\"".to_owned());
        }
    },
    "stub-status-argument" |s, _, found| for n in s.all("stub_status").filter(|n| !s.args(*n).is_empty()) {
        found(s.span(n), "the argument is not used".to_owned());
    },
    "server-tokens" |s, _, found| {
        for n in s.all("server_tokens").filter(|n| s.arg(*n, 0) != "off") {
            found(s.arg_span(n, 0), "responses name the version".to_owned());
        }
        for http in s.all("http").filter(|h| !s.is_partial() && s.child(Some(*h), "server_tokens").is_none()) {
            let mut servers = s.children(Some(http), "server").peekable();
            if servers.peek().is_none() || servers.any(|n| s.child(Some(n), "server_tokens").is_none()) {
                found(s.span(http), "responses name the version".to_owned());
            }
        }
    },
    "listen-http2" |s, _, found| word(s, found, "listen", "http2", "write \"http2 on;\" instead"),
    "old-tls" |s, _, found| for n in s.all("ssl_protocols") {
        for (i, p) in s.args(n).iter().enumerate().filter(|(_, p)| matches!(&***p, "SSLv2" | "SSLv3" | "TLSv1" | "TLSv1.1")) {
            found(s.arg_span(n, i), format!("{p} is broken"));
        }
    },
    "tls-without-cache" |s, _, found| for n in s.all("listen").filter(|n| s.has(*n, "ssl")) {
        match s.effective(s.parent(n), "ssl_session_cache") {
            // Another file may have it.
            None if s.is_partial() => {}
            None => found(s.span(n), "no ssl_session_cache".to_owned()),
            Some(c) if matches!(s.arg(c, 0), "off" | "none") => found(s.span(c), "no session can be resumed by its number".to_owned()),
            Some(_) => continue,
        }
        break;
    },
    "tickets-off" |s, _, found| for n in s.all("ssl_session_tickets").filter(|n| s.arg(*n, 0) == "off") {
        // Without a shared cache the keys do not change by themselves, which is the reason to turn tickets off.
        let shared = s.effective(s.parent(n), "ssl_session_cache").is_some_and(|c| s.args(c).iter().any(|a| a.starts_with("shared:")));
        if shared {
            found(s.span(n), "the keys change by themselves here, so nothing is gained".to_owned());
        }
    },
    "tls-timeout-days" |s, _, found| for n in s.all("ssl_session_timeout") {
        if let Some(t) = seconds(s, n).filter(|t| *t > 86_400) {
            found(s.arg_span(n, 0), format!("keys live for {} h", t / 3600));
        }
    },
    "tls-timeout-long" |s, _, found| for n in s.all("ssl_session_timeout") {
        if let Some(t) = seconds(s, n).filter(|t| *t >= 86_400) {
            found(s.arg_span(n, 0), format!("keys live for {} h", t / 3600));
        }
    },
    "stapling" |s, h, found| for n in s.all("ssl_stapling").filter(|n| s.arg(*n, 0) == "on") {
        let near = |c: &usize| s.parent(*c) == s.parent(n) || s.around(*c, "http") == s.parent(n);
        let named = h.certificates.iter().filter(|(c, _)| near(c)).all(|(_, c)| c.responder) && h.certificates.keys().any(near);
        let lacks_resolver = s.effective(s.parent(n), "resolver").is_none();
        if named && !lacks_resolver {
            continue;
        }
        // Of a certificate that was not read only its path tells whose it is.
        let is_read = h.certificates.keys().any(near);
        let mut paths = s.all("ssl_certificate").filter(near).map(|c| s.arg(c, 0)).peekable();
        let is_named = paths.peek().is_none() || paths.any(|p| ["letsencrypt", "/live/", "fullchain", "acme", "certbot"].iter().any(|w| p.contains(w)));
        if !is_read && !is_named {
            if lacks_resolver {
                found(s.span(n), "without a resolver the responder's address is that of the start".to_owned());
            }
            continue;
        }
        let also = if lacks_resolver { ", and without a resolver the responder's address is that of the start" } else { "" };
        found(s.span(n), format!("does nothing for certificates of Let's Encrypt{also}"));
    },
    "backlog-capped" |s, h, found| for n in s.all("listen") {
        let Some((cap, _)) = h.number("net.core.somaxconn") else { return };
        for (i, a) in s.args(n).iter().enumerate() {
            if let Some(b) = a.strip_prefix("backlog=").and_then(|b| b.parse::<u64>().ok()).filter(|b| *b > cap) {
                found(s.arg_span(n, i), format!("{b} becomes {cap}"));
            }
        }
    },
    "proxy-buffers" |s, _, found| for block in blocks_with(s, &["proxy_buffer_size", "proxy_buffers", "proxy_busy_buffers_size"]) {
        let own = ["proxy_buffer_size", "proxy_buffers", "proxy_busy_buffers_size"].iter().find_map(|d| s.child(block, d));
        // The buffers of stream are others.
        let Some(at) = own.filter(|n| s.around(*n, "stream").is_none()) else { continue };
        let first = s.effective(block, "proxy_buffer_size").and_then(|n| size(s, n, 0)).unwrap_or(4096);
        let (count, one) = s.effective(block, "proxy_buffers").map_or((8, 4096), |n| (number(s, n).unwrap_or(8), size(s, n, 1).unwrap_or(4096)));
        let busy = s.effective(block, "proxy_busy_buffers_size").and_then(|n| size(s, n, 0)).unwrap_or(first.max(one).saturating_mul(2));
        if busy < first.max(one) || busy > one.saturating_mul(count.saturating_sub(1)) {
            found(s.span(at), format!("busy size {busy} is not between {} and {}", first.max(one), one.saturating_mul(count.saturating_sub(1))));
        }
    },
    "cache-without-lock" |s, _, found| for name in ["proxy_cache", "fastcgi_cache", "uwsgi_cache", "scgi_cache"] {
        let (pass, lock) = (name.replace("cache", "pass"), format!("{name}_lock"));
        // Caches that requests go through without a lock.
        let unlocked = s.all(&pass).filter(|p| !s.on(s.parent(*p), &lock));
        let used: HashSet<usize> = unlocked.filter_map(|p| s.effective(s.parent(p), name)).collect();
        for n in s.all(name).filter(|n| s.arg(*n, 0) != "off" && used.contains(n)) {
            found(s.span(n), format!("no {lock}"));
        }
    },
    "cache-zone-small" |s, _, found| for n in s.with_name(|name| name.ends_with("_cache_path")) {
        let args = s.args(n);
        let zone = args.iter().find_map(|a| units::size(a.strip_prefix("keys_zone=")?.rsplit(':').next()?.as_bytes()));
        let max = args.iter().find_map(|a| units::offset(a.strip_prefix("max_size=")?.as_bytes()));
        if let (Some(zone), Some(max)) = (zone, max) {
            let entries = zone / 128;
            if max / entries.max(1) > 256 * 1024 {
                found(s.span(n), format!("{entries} entries for {} MB: only entries of more than {} kB can fill it", max >> 20, (max / entries.max(1)) >> 10));
            }
        }
    },
    "websocket-buffering" |s, _, found| for n in s.all("proxy_set_header").filter(|n| s.arg(*n, 0).eq_ignore_ascii_case("upgrade")) {
        if s.effective(s.parent(n), "proxy_read_timeout").is_none() {
            found(s.span(n), "silent for 60 s means closed".to_owned());
        }
    },
    "memory-worst-case" |s, h, found| {
        let Some(n) = s.all("worker_connections").last() else { return };
        let worst = Worst::of(s, h);
        if h.is_here() && h.memory > 0 && worst.memory() > h.memory {
            found(s.arg_span(n, 0), format!("{} MB of buffers in the worst case, and this machine has {} MB of memory", worst.memory() >> 20, h.memory >> 20));
        }
    },
    "try-files-looks" |s, _, found| for n in s.all("try_files") {
        let cached = s.effective(s.parent(n), "open_file_cache").is_some_and(|c| s.arg(c, 0) != "off");
        let looked = s.args(n).len().saturating_sub(1);
        if !cached && looked > 2 {
            found(s.span(n), format!("{looked} files are looked for at each request"));
        }
    },
    "regex-exact" |s, _, found| for n in s.all("location").filter(|n| matches!(s.arg(*n, 0), "~")) {
        let pattern = s.arg(n, 1);
        let inner = pattern.strip_prefix("^/").and_then(|p| p.strip_suffix('$'));
        if let Some(inner) = inner && inner.bytes().all(|b| b.is_ascii_alphanumeric() || b"/-_".contains(&b)) {
            found(s.arg_span(n, 1), format!("the same as \"= /{inner}\""));
        }
    },
    "rsa-only" |s, h, found| {
        let mut blocks: Vec<Option<usize>> = h.certificates.keys().map(|n| s.parent(*n)).collect();
        blocks.dedup();
        for block in blocks {
            let mut here = h.certificates.iter().filter(|(n, _)| s.parent(**n) == block).peekable();
            let first = here.peek().map(|(n, _)| **n);
            if let (Some(n), true) = (first, here.all(|(_, c)| c.rsa)) {
                found(s.arg_span(n, 0), "each full handshake signs with RSA".to_owned());
            }
        }
    },
}
