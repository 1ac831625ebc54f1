//! Checks of requests that are passed on, and of limits.

use super::ask::{
    FAMILIES, children, client_field, group_of, has, http_server, http_servers, is_object_store, is_wide,
    parameter, seconds,
};
use super::general::{number, size};
use super::{Check, checks};
use crate::routes;
use crate::scene::Scene;
use crate::variables::{named, values_of_tables};
use forebay_conf::tree::Span;
use forebay_conf::units;
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

/// Methods of balancing, which have to stand before `keepalive` in nginx.
const METHODS: [&str; 6] = ["least_conn", "ip_hash", "hash", "random", "least_time", "sticky"];

/// Returns the value of a field for the upstream in effect in a block.
pub(super) fn field<'s>(s: &'s Scene<'_>, block: Option<usize>, name: &str) -> Option<(usize, &'s str)> {
    let all = s.all_effective(block, "proxy_set_header");
    all.filter(|n| s.arg(*n, 0).eq_ignore_ascii_case(name)).last().map(|n| (n, s.arg(n, 1)))
}

/// Returns the path of a location, if one of its parts is one of these words.
pub(super) fn path_with<'s>(s: &'s Scene<'_>, location: usize, words: &[&str]) -> Option<Cow<'s, str>> {
    let prefix = routes::prefix(s, location).map(Cow::Borrowed);
    let path =
        prefix.or_else(|| routes::pattern(s, location)).unwrap_or_else(|| Cow::Borrowed(s.arg(location, 1)));
    let plain = path.to_ascii_lowercase().replace(['\\', '^', '$', '(', ')', '?'], "");
    let is_socket =
        |part: &str| part.contains("websocket") || part.starts_with("ws-") || part.ends_with("-ws");
    let fits = |part: &str| words.contains(&part) || (words.contains(&"ws") && is_socket(part));
    plain.split(['/', '|', '*']).any(fits).then_some(path)
}

/// Parts of paths by which web sockets are known.
pub(super) const SOCKETS: [&str; 15] = [
    "hub",
    "socket",
    "sockets",
    "hubs",
    "realtime",
    "ws",
    "wss",
    "websocket",
    "websockets",
    "socket.io",
    "sockjs",
    "cable",
    "signalr",
    "sockjs-node",
    "_socket",
];
/// Parts of paths by which event streams are known.
pub(super) const STREAMS: [&str; 7] =
    ["sse", "events", "event-stream", "eventsource", "event-source", "eventstream", "stream"];

/// Returns `true` if connections are upgraded in a block.
pub(super) fn upgrades(s: &Scene<'_>, block: Option<usize>) -> bool {
    field(s, block, "upgrade").is_some()
}

/// Returns the locations that pass requests on over HTTP.
pub(super) fn passing<'s>(s: &'s Scene<'_>) -> impl Iterator<Item = (usize, usize)> + 's {
    s.all("proxy_pass").filter(|n| http_server(s, *n).is_some()).filter_map(|n| Some((n, s.parent(n)?)))
}

/// Returns the size of a zone `NAME:SIZE` of a limit.
fn zone_size(s: &Scene<'_>, n: usize) -> Option<u64> {
    units::size(parameter(s, n, "zone")?.rsplit(':').next()?.as_bytes())
}

fn zone_name<'s>(s: &'s Scene<'_>, n: usize) -> &'s str {
    parameter(s, n, "zone").and_then(|z| z.split(':').next()).unwrap_or_default()
}

/// Returns the zones of requests by their names; of several the first.
pub(super) fn request_zones<'s>(s: &'s Scene<'_>) -> HashMap<&'s str, usize> {
    s.all("limit_req_zone").rev().map(|n| (zone_name(s, n), n)).collect()
}

/// Returns the requests a minute of a zone.
pub(super) fn rate(s: &Scene<'_>, zone: usize) -> Option<u64> {
    let rate = parameter(s, zone, "rate")?;
    let (count, unit) = rate.split_once("r/")?;
    let count: u64 = count.parse().ok()?;
    Some(if unit == "s" { count.saturating_mul(60) } else { count })
}

/// Reports locations for web sockets whose connections cannot be upgraded.
fn sockets(s: &Scene<'_>, old: bool, found: &mut dyn FnMut(Span, String)) {
    for (n, block) in passing(s) {
        let asked = path_with(s, block, &SOCKETS);
        let upgrade = field(s, Some(block), "upgrade");
        let connection = field(s, Some(block), "connection").map(|(_, v)| v.to_ascii_lowercase());
        let version = s.effective(Some(block), "proxy_http_version").map(|v| s.arg(v, 0));
        match (asked, upgrade) {
            (Some(path), None) => {
                found(s.span(n), format!("{path} looks like web sockets, and Upgrade is not passed on"))
            }
            (_, Some((at, _))) => {
                let tells = connection.is_some_and(|c| c.contains("upgrade") || c.contains('$'));
                if !tells {
                    found(s.span(at), "Upgrade without Connection is dropped".to_owned());
                } else if version == Some("1.0") || (version.is_none() && old) {
                    found(
                        s.span(at),
                        "HTTP/1.0 has no upgrade, and is what nginx before 1.29.7 speaks".to_owned(),
                    );
                }
            }
            _ => {}
        }
    }
}

/// Returns `true` if a table gives "close" for the value of Connection.
fn closes_by_table(s: &Scene<'_>, block: usize, value: &str) -> bool {
    let names = named(value);
    names
        .iter()
        .any(|(_, v)| values_of_tables(s, Some(block), v).iter().any(|v| v.eq_ignore_ascii_case("close")))
}

/// Reports proxied paths whose slashes do not fit those of their location.
fn slashes(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for (n, block) in passing(s) {
        let Some(prefix) = routes::prefix(s, block).filter(|p| p.len() > 1) else { continue };
        let url = s.arg(n, 0);
        let Some((_, rest)) =
            url.split_once("://").filter(|(_, r)| !r.contains('$') && !r.starts_with("unix"))
        else {
            continue;
        };
        let Some((_, path)) = rest.split_once('/') else { continue };
        let rewritten = s.child(Some(block), "rewrite").is_some();
        if rewritten {
            continue;
        }
        match (prefix.ends_with('/'), path.is_empty() || path.ends_with('/')) {
            (false, true) => found(s.arg_span(n, 0), format!("{prefix}/x is asked for as /{path}/x")),
            (true, false) => found(s.arg_span(n, 0), format!("{prefix}x is asked for as /{path}x")),
            _ => {}
        }
    }
}

/// Reports time limits of upstreams above a bound, where no connection is meant to stay open.
fn long_timeouts(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for name in [
        "proxy_read_timeout",
        "proxy_send_timeout",
        "fastcgi_read_timeout",
        "uwsgi_read_timeout",
        "scgi_read_timeout",
        "grpc_read_timeout",
        "grpc_send_timeout",
        "fastcgi_send_timeout",
        "uwsgi_send_timeout",
    ] {
        for n in s.all(name).filter(|n| s.around(*n, "http").is_some()) {
            let block = s.parent(n);
            let streams = s.effective(block, "proxy_buffering").is_some_and(|b| s.arg(b, 0) == "off");
            let stays = streams
                || upgrades(s, block)
                || block.is_some_and(|b| {
                    path_with(s, b, &STREAMS).is_some() || path_with(s, b, &SOCKETS).is_some()
                });
            if let Some(t) = seconds(s, n, 0).filter(|t| *t >= 3600 && !stays) {
                found(
                    s.arg_span(n, 0),
                    format!("an upstream that hangs keeps its client for {} h", t / 3600),
                );
            }
        }
    }
}

/// Reports buffers that are too small, or that are off.
fn small_buffers(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    let of_http = |n: &usize| s.around(*n, "http").is_some();
    for family in FAMILIES {
        for n in s.all(&format!("{family}_buffer_size")).filter(of_http) {
            if let Some(b) = size(s, n, 0).filter(|b| *b < 4096) {
                found(s.arg_span(n, 0), format!("a head of more than {b} bytes is answered with 502"));
            }
        }
        for n in s.all(&format!("{family}_buffers")).filter(of_http) {
            let total = number(s, n).unwrap_or(0).saturating_mul(size(s, n, 1).unwrap_or(0));
            if total < 16 << 10 {
                let text = format!("{total} bytes: the upstream waits for the client, or a file is written");
                found(s.span(n), text);
            }
        }
    }
}

checks! { Check;
    "buffering-off" |s, _, found| for family in FAMILIES {
        for n in s.all(&format!("{family}_buffering")).filter(|n| s.arg(*n, 0) == "off" && is_wide(s, *n)) {
            if !upgrades(s, s.parent(n)) && !is_object_store(s, n) {
                found(s.span(n), "the application waits for each slow client".to_owned());
            }
        }
    },
    "temp-files-off" |s, _, found| for family in FAMILIES {
        for n in s.all(&format!("{family}_max_temp_file_size")).filter(|n| s.arg(*n, 0) == "0" && is_wide(s, *n)) {
            found(s.span(n), "the application waits with the rest for a slow client".to_owned());
        }
    },
    "request-buffering-off" |s, _, found| for n in s.all("proxy_request_buffering").chain(s.all("fastcgi_request_buffering")).filter(|n| s.arg(*n, 0) == "off" && is_wide(s, *n)) {
        found(s.span(n), "each slow upload holds the application, and cannot be retried".to_owned());
    },
    "proxy-buffers-small" |s, _, found| small_buffers(s, found),
    "proxy-buffers-large" |s, _, found| for family in FAMILIES {
        for n in s.all(&format!("{family}_buffers")).filter(|n| s.around(*n, "http").is_some()) {
            let total = number(s, n).unwrap_or(0).saturating_mul(size(s, n, 1).unwrap_or(0));
            if total > 1 << 20 {
                found(s.span(n), format!("{} kB for each request that is passed on", total >> 10));
            }
        }
    },
    "websocket-upgrade" |s, h, found| sockets(s, !h.target.keeps_upstream_connections(), found),
    "connection-upgrade-always" |s, _, found| for n in s.all("proxy_set_header").filter(|n| s.arg(*n, 0).eq_ignore_ascii_case("connection") && s.arg(*n, 1).eq_ignore_ascii_case("upgrade") && is_wide(s, *n)) {
        found(s.arg_span(n, 1), "plain requests ask for an upgrade, too, and their connections are not kept".to_owned());
    },
    "events-buffered" |s, _, found| for (n, block) in passing(s) {
        let Some(path) = path_with(s, block, &STREAMS) else { continue };
        let off = s.effective(Some(block), "proxy_buffering").is_some_and(|b| s.arg(b, 0) == "off");
        if !off && !upgrades(s, Some(block)) {
            found(s.span(n), format!("{path} looks like an event stream, whose events wait in buffers"));
        }
    },
    "retry-acts" |s, _, found| for family in FAMILIES {
        for n in s.all(&format!("{family}_next_upstream")).filter(|n| has(s, *n, "non_idempotent")) {
            let at = s.args(n).iter().position(|a| a == "non_idempotent").unwrap_or(0);
            found(s.arg_span(n, at), "a payment is made again at the next server".to_owned());
        }
    },
    "retry-errors" |s, _, found| for family in FAMILIES {
        for n in s.all(&format!("{family}_next_upstream")) {
            // A refusal (403, 404) counts as no failure of the server.
            let spreads = s.args(n).iter().any(|a| a.starts_with("http_5") || a == "http_429");
            let bounded = [format!("{family}_next_upstream_tries"), format!("{family}_next_upstream_timeout")].iter().any(|d| s.effective(s.parent(n), d).is_some());
            if spreads && !bounded {
                found(s.span(n), "one bad request is tried at every server, and each counts it as a failure".to_owned());
            }
        }
    },
    "proxy-timeout-long" |s, _, found| long_timeouts(s, found),
    "connect-timeout-long" |s, _, found| for family in FAMILIES.into_iter().chain(["grpc"]) {
        for n in s.all(&format!("{family}_connect_timeout")) {
            // Up to 75 s it is the time that the kernel takes, which matters only where another server could be asked.
            let several = || s.all("upstream").any(|u| s.children(Some(u), "server").count() > 1);
            if let Some(t) = seconds(s, n, 0).filter(|t| *t > 75 || *t > 60 && several()) {
                found(s.arg_span(n, 0), format!("a client waits {t} s for a server that is not there"));
            }
        }
    },
    "client-timeouts-long" |s, _, found| for name in ["client_header_timeout", "client_body_timeout", "send_timeout"] {
        for n in s.all(name) {
            if let Some(t) = seconds(s, n, 0).filter(|t| *t >= 600) {
                found(s.arg_span(n, 0), format!("a silent client keeps its connection for {} min", t / 60));
            }
        }
    },
    "keepalive-long" |s, _, found| for n in s.all("keepalive_timeout").filter(|n| !s.parent(*n).is_some_and(|p| s.is(p, "upstream"))) {
        if let Some(t) = seconds(s, n, 0).filter(|t| *t >= 300) {
            found(s.arg_span(n, 0), format!("idle connections are kept for {} min", t / 60));
        }
    },
    "keepalive-order" |s, _, found| for u in s.all("upstream") {
        let Some(keepalive) = s.child(Some(u), "keepalive") else { continue };
        let later = s.level(Some(u)).iter().skip_while(|n| **n != keepalive).find(|n| METHODS.iter().any(|m| s.is(**n, m)));
        if let Some(n) = later {
            found(s.span(*n), "nginx takes the method in place of keepalive".to_owned());
        }
    },
    "upstream-connection-close" |s, h, found| for (n, block) in passing(s) {
        let connection = field(s, Some(block), "connection");
        if let Some((at, value)) = connection.filter(|(_, v)| v.eq_ignore_ascii_case("close")) {
            found(s.arg_span(at, 1), format!("a new connection to the upstream for each request ({value})"));
        } else if let Some((at, value)) = field(s, Some(block), "connection").filter(|(_, v)| closes_by_table(s, block, v))
            && group_of(s, s.arg(n, 0)).is_some_and(|g| s.child(Some(g), "keepalive").is_some())
        {
            found(s.arg_span(at, 1), format!("{value} is \"close\" for plain requests, so no connection is kept"));
        } else if group_of(s, s.arg(n, 0)).is_some_and(|g| s.child(Some(g), "keepalive").is_some())
            && !h.target.keeps_upstream_connections()
            && field(s, Some(block), "connection").is_none()
            && s.effective(Some(block), "proxy_http_version").is_some_and(|v| s.arg(v, 0) == "1.1")
        {
            found(s.span(n), "nginx before 1.29.7 sends \"Connection: close\" unless it is set to nothing".to_owned());
        }
    },
    "proxy-http10" |s, _, found| for n in s.all("proxy_http_version").filter(|n| s.arg(*n, 0) == "1.0") {
        found(s.arg_span(n, 0), "no connection is kept, no response can be told from a broken one".to_owned());
    },
    "fastcgi-keep-conn" |s, _, found| for n in s.all("fastcgi_pass") {
        let kept = group_of(s, s.arg(n, 0)).is_some_and(|g| s.child(Some(g), "keepalive").is_some());
        if kept && !s.on(s.parent(n), "fastcgi_keep_conn") {
            found(s.span(n), "the application closes each connection, whatever \"keepalive\" says".to_owned());
        }
    },
    "max-fails-off" |s, _, found| for u in s.all("upstream") {
        let servers: Vec<usize> = children(s, u, "server").collect();
        let off = |n: &&usize| has(s, **n, "max_fails=0");
        if servers.len() > 1 && servers.iter().all(|n| off(&n)) {
            found(s.span(u), "a server that is gone gets its share of the requests".to_owned());
        }
    },
    "upstream-duplicate" |s, _, found| for u in s.all("upstream") {
        let mut seen: HashSet<&str> = HashSet::new();
        for n in children(s, u, "server") {
            let address = s.arg(n, 0);
            if !seen.insert(address) {
                found(s.arg_span(n, 0), format!("{address} is there twice"));
            }
        }
    },
    "upstream-none" |s, _, found| for u in s.all("upstream") {
        let servers: Vec<usize> = children(s, u, "server").collect();
        if !servers.is_empty() && servers.iter().all(|n| has(s, *n, "down")) {
            found(s.span(u), "all of its servers are down".to_owned());
        }
    },
    "proxy-slash" |s, _, found| slashes(s, found),
    "proxy-variable-path" |s, _, found| for (n, _) in passing(s) {
        let url = s.arg(n, 0);
        let Some((host, path)) = url.split_once("://").and_then(|(_, rest)| rest.split_once('/')) else { continue };
        if host.contains('$') && !path.contains('$') && s.parent(n).is_some_and(|b| !s.has(b, "=")) {
            found(s.arg_span(n, 0), format!("every request asks for /{path}"));
        }
    },
    "dns-once" |s, h, found| {
        if h.target == crate::Target::Forebay {
            return;
        }
        for (n, _) in passing(s) {
            let url = s.arg(n, 0);
            let host = url.split_once("://").map_or("", |(_, r)| r.split(['/', ':']).next().unwrap_or_default());
            let name = host.contains('.') && host.parse::<std::net::IpAddr>().is_err() && !host.contains('$') && group_of(s, url).is_none();
            if name {
                found(s.arg_span(n, 0), format!("{host} is looked up once, at the start"));
            }
        }
    },
    "body-unlimited" |s, _, found| for n in s.all("client_max_body_size") {
        match size(s, n, 0).or_else(|| units::offset(s.arg(n, 0).as_bytes())) {
            // Without buffering nothing is stored here.
            Some(0) if s.effective(s.parent(n), "proxy_request_buffering").is_some_and(|b| s.arg(b, 0) == "off") => {}
            Some(0) => found(s.arg_span(n, 0), "one client can fill the disk".to_owned()),
            Some(b) if b >= 10 << 30 && is_wide(s, n) => found(s.arg_span(n, 0), format!("{} GB for every path", b >> 30)),
            _ => {}
        }
    },
    "burst-waits" |s, _, found| { let zones = request_zones(s); for n in s.all("limit_req").filter(|n| !has(s, *n, "nodelay") && parameter(s, *n, "delay").is_none()) {
        let burst = parameter(s, n, "burst").and_then(|b| b.parse::<u64>().ok()).unwrap_or(0);
        let zone = zones.get(parameter(s, n, "zone").unwrap_or_default());
        let wait = zone.and_then(|zone| rate(s, *zone)).filter(|r| *r > 0).map(|r| burst.saturating_mul(60) / r);
        if let Some(wait) = wait.filter(|w| *w >= 30) {
            found(s.span(n), format!("the last of a burst waits {wait} s"));
        }
    } },
    "limit-status" |s, _, found| for (name, status) in [("limit_req", "limit_req_status"), ("limit_conn", "limit_conn_status")] {
        // gRPC knows both as UNAVAILABLE.
        let is_grpc = |n: usize| s.child(s.parent(n), "grpc_pass").is_some();
        for n in s.all(name).filter(|n| s.around(*n, "http").is_some() && s.effective(s.parent(*n), status).is_none() && !is_grpc(*n)) {
            found(s.span(n), "who is refused hears 503, that the server is broken".to_owned());
        }
    },
    "limit-zone-small" |s, _, found| for n in ["limit_req_zone", "limit_conn_zone"].into_iter().flat_map(|name| s.all(name)) {
        if let Some(zone) = zone_size(s, n).filter(|z| *z < 1 << 20) {
            found(s.span(n), format!("room for some {} clients; the next ones push out the others, or get errors", zone / 128));
        }
    },
    "limit-unused" |s, _, found| for (zones, uses) in [("limit_req_zone", "limit_req"), ("limit_conn_zone", "limit_conn")] {
        let used: HashSet<&str> = s.all(uses).flat_map(|u| [parameter(s, u, "zone").unwrap_or_default(), s.arg(u, 0)]).collect();
        for n in s.all(zones) {
            let name = zone_name(s, n);
            if !name.is_empty() && !used.contains(name) && !s.is_partial() {
                found(s.span(n), format!("no {uses} uses \"{name}\", so nothing is limited"));
            }
        }
    },
    "limit-dry-run" |s, _, found| for n in s.all("limit_req_dry_run").chain(s.all("limit_conn_dry_run")).filter(|n| s.arg(*n, 0) == "on") {
        found(s.span(n), "the limits are counted, and refuse nobody".to_owned());
    },
    "limit-rate-all" |s, _, found| for n in s.all("limit_rate").filter(|n| s.parent(*n).is_some_and(|p| s.is(p, "http") || s.is(p, "server"))) {
        if let Some(b) = size(s, n, 0).filter(|b| *b > 0) {
            found(s.arg_span(n, 0), format!("every response leaves at {} kB a second at most", b >> 10));
        }
    },
    "limit-loose" |s, _, found| {
        for n in s.all("limit_req") {
            let burst = parameter(s, n, "burst").and_then(|b| b.parse::<u64>().ok());
            let at_once = has(s, n, "nodelay") || parameter(s, n, "delay").is_some();
            if let Some(burst) = burst.filter(|b| at_once && *b >= 10_000) {
                found(s.span(n), format!("{burst} requests of one client are let through at once"));
            }
        }
        let zones = request_zones(s);
        for n in s.all("limit_req_zone") {
            let all = zones.get(zone_name(s, n)).and_then(|zone| rate(s, *zone)).filter(|r| *r > 600_000);
            if let Some(r) = all {
                found(s.span(n), format!("{} requests a second of one client are let through", r / 60));
            }
        }
    },
    "headers-large" |s, _, found| for n in s.all("large_client_header_buffers") {
        let total = number(s, n).unwrap_or(0).saturating_mul(size(s, n, 1).unwrap_or(0));
        if total > 512 << 10 {
            found(s.span(n), format!("{} kB for the head of one request", total >> 10));
        }
    },
    "header-buffer-large" |s, _, found| for n in s.all("client_header_buffer_size") {
        if let Some(b) = size(s, n, 0).filter(|b| *b > 64 << 10) {
            found(s.arg_span(n, 0), format!("{} kB for each connection", b >> 10));
        }
    },
    "header-buffer-small" |s, _, found| for n in s.all("client_header_buffer_size") {
        if let Some(b) = size(s, n, 0).filter(|b| *b < 1024) {
            found(s.arg_span(n, 0), format!("{b} bytes: nearly every head needs a second buffer"));
        }
    },
    "body-buffer-small" |s, _, found| for n in s.all("client_body_buffer_size") {
        let most = s.effective(s.parent(n), "client_max_body_size").and_then(|m| size(s, m, 0)).unwrap_or(1 << 20);
        if let Some(b) = size(s, n, 0).filter(|b| *b < 8192 && (*b < most || most == 0)) {
            found(s.arg_span(n, 0), format!("bodies of more than {b} bytes are written to a file"));
        }
    },
    "server-name-form" |s, _, found| for server in http_servers(s) {
        for n in children(s, server, "server_name") {
            for (i, name) in s.args(n).iter().enumerate().filter(|(_, a)| !a.starts_with('~')) {
                let port = name.rsplit_once(':').is_some_and(|(_, p)| p.bytes().all(|b| b.is_ascii_digit()));
                if name.contains("://") || name.contains('/') || port {
                    found(s.arg_span(n, i), format!("no client asks for a host called \"{name}\""));
                }
            }
        }
    },
    "try-files-slash" |s, _, found| for n in s.all("try_files") {
        let args = s.args(n);
        let at = args.len().saturating_sub(1);
        if let Some(last) = args.last().filter(|a| !a.starts_with(['/', '=', '@', '$', '"'])) {
            found(s.arg_span(n, at), format!("\"{last}\" is no path: the request ends with 500"));
        }
    },
    "error-as-200" |s, _, found| for n in s.all("error_page") {
        let args = s.args(n);
        let to_200 = args.iter().any(|a| a == "=200");
        let server_errors = args.iter().any(|a| a.starts_with('5'));
        if to_200 && server_errors {
            found(s.span(n), "failures look like successes to clients, caches and monitors".to_owned());
        }
    },
    "error-page-client" |s, _, found| for n in s.all("error_page") {
        let last = s.last_arg(n);
        let first = named(last).first().is_some_and(|(at, _)| *at == 0);
        if let Some(v) = client_field(s, s.parent(n), last).filter(|_| first) {
            found(s.span(n), format!("${v} decides what is shown"));
        }
    },
}
