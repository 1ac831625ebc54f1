//! Checks of requests and sessions on their way to upstreams, and of what may reach them.

use super::ask::{FAMILIES, children, group_of, has, http_servers, is_wide, parameter, pass_of, seconds};
use super::general::{number, size};
use super::traffic::{SOCKETS, STREAMS, field, passing, path_with, upgrades};
use super::{Check, checks};
use crate::scene::Scene;
use crate::variables::{entries_of_tables, named};
use forebay_conf::address::{Address, Host};
use forebay_conf::tree::Span;
use forebay_conf::units;
use std::collections::HashMap;

/// Ports of services that are for the own network.
const INNER: [(u16, &str); 23] = [
    (5672, "RabbitMQ"),
    (3389, "Remote Desktop"),
    (5900, "VNC"),
    (389, "LDAP"),
    (161, "SNMP"),
    (445, "SMB"),
    (2049, "NFS"),
    (873, "rsync"),
    (23, "Telnet"),
    (6379, "Redis"),
    (11211, "memcached"),
    (27017, "MongoDB"),
    (9200, "Elasticsearch"),
    (5432, "PostgreSQL"),
    (3306, "MySQL"),
    (1433, "SQL Server"),
    (1521, "Oracle"),
    (5984, "CouchDB"),
    (2379, "etcd"),
    (2181, "ZooKeeper"),
    (9092, "Kafka"),
    (2375, "Docker"),
    (9042, "Cassandra"),
];

/// Versions of TLS that nobody should speak any more.
const OLD: [&str; 4] = ["SSLv2", "SSLv3", "TLSv1", "TLSv1.1"];

/// Returns the inner service behind an address.
fn service(address: &str) -> Option<(u16, &'static str)> {
    let port: u16 = address.rsplit(':').next()?.parse().ok()?;
    INNER.into_iter().find(|(p, _)| *p == port)
}

/// Returns `true` if a socket can be reached from everywhere.
fn is_public(address: &str) -> bool {
    match Address::parse(address, None) {
        Some(Address::Inet(Host::Any { .. }, _)) => true,
        Some(Address::Inet(Host::Ip(ip), _)) => ip.is_unspecified() || !super::safety::is_near(ip),
        _ => false,
    }
}

/// Reports services for the own network that strangers may connect to.
fn inner_services(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for server in s.all("server").filter(|n| s.parent(*n).is_some_and(|p| s.is(p, "stream"))) {
        let Some(pass) = s.child(Some(server), "proxy_pass") else { continue };
        let guarded = s.effective(Some(server), "deny").is_some()
            || s.effective(Some(server), "ssl_verify_client").is_some_and(|v| s.arg(v, 0) != "off");
        let target = s.arg(pass, 0);
        let group =
            group_of(s, target).into_iter().flat_map(|g| children(s, g, "server")).map(|n| s.arg(n, 0));
        let behind = std::iter::once(target).chain(group).find_map(|a| service(a));
        for l in children(s, server, "listen")
            .filter(|l| !guarded && is_public(s.arg(*l, 0)) && !has(s, *l, "proxy_protocol"))
        {
            if let Some((port, name)) = service(s.arg(l, 0)).or(behind) {
                found(s.span(l), format!("everybody may connect to {name} (port {port})"));
            }
        }
    }
}

/// Returns the place of the line by which a value of Connection is "upgrade" for plain requests, too.
fn plain_upgrade(s: &Scene<'_>, n: usize) -> Option<Span> {
    let value = s.arg(n, 1);
    if value.eq_ignore_ascii_case("upgrade") {
        return Some(s.arg_span(n, 1));
    }
    let names = named(value);
    let [(0, name)] = names.as_slice() else { return None };
    let entries = entries_of_tables(s, s.parent(n), name);
    let of_none = entries.iter().find(|e| e.key.is_empty());
    let line = of_none.or_else(|| entries.iter().find(|e| e.key == "default"))?;
    line.value.eq_ignore_ascii_case("upgrade").then_some(line.span)
}

/// Returns the blocks of a scene that speak TLS to upstreams with a check of the name: the directive, and the family.
fn checked_names<'s>(s: &'s Scene<'_>) -> impl Iterator<Item = (usize, usize)> + 's {
    s.all("proxy_pass")
        .filter(move |n| s.arg(*n, 0).starts_with("https://") && s.on(s.parent(*n), "proxy_ssl_verify"))
        .filter_map(move |n| Some((n, group_of(s, s.arg(n, 0))?)))
}

/// Returns the longest time for which good responses are valid in a block.
fn longest(s: &Scene<'_>, family: &str, block: Option<usize>) -> Option<u64> {
    let name = format!("{family}_cache_valid");
    s.all_effective(block, &name).filter_map(|n| units::time_secs(s.args(n).last()?.as_bytes())).max()
}

/// Returns the time for which browsers keep responses by `expires` or Cache-Control, if it is a day or more.
fn kept_for(s: &Scene<'_>, n: usize) -> Option<String> {
    if s.is(n, "expires") {
        let time = s.last_arg(n);
        let long = time == "max" || units::time_secs(time.as_bytes()).is_some_and(|t| t >= 86_400);
        return long.then(|| time.to_owned());
    }
    let value = s.arg(n, 1).to_ascii_lowercase();
    let age = value.split("max-age=").nth(1).filter(|_| s.arg(n, 0).eq_ignore_ascii_case("cache-control"))?;
    let digits: String = age.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok().filter(|t: &u64| *t >= 86_400).map(|t| format!("{t} s"))
}

/// Returns `true` if a location sends pages, not files whose names change with their content.
fn is_page(s: &Scene<'_>, location: usize) -> bool {
    let path = s.last_arg(location);
    let last = s.child(Some(location), "try_files").map_or("", |t| s.last_arg(t));
    let ending = path.starts_with("\\.")
        && path.contains("html")
        && !["css", "js", "png", "woff"].iter().any(|e| path.contains(e));
    let whole = path == "/" || path == "/index.html";
    let pages =
        last.ends_with(".html") || last.contains(".php") || s.child(Some(location), "index").is_some();
    path.ends_with("index.html") || ending || whole && pages
}

/// Parts of paths of pages that are made for one person.
const PERSONAL: [&str; 14] = [
    "me",
    "account",
    "accounts",
    "profile",
    "user",
    "my",
    "cart",
    "basket",
    "checkout",
    "orders",
    "settings",
    "dashboard",
    "inbox",
    "my-account",
];

/// Returns `true` if a location may use the cache of a zone.
pub(super) fn is_used(s: &Scene<'_>, path: usize, family: &str) -> bool {
    let zone = parameter(s, path, "keys_zone").and_then(|z| z.split(':').next()).unwrap_or_default();
    let is_part = s.is_partial() || http_servers(s).next().is_none();
    is_part || s.all(&format!("{family}_cache")).any(|n| s.arg(n, 0) == zone || s.arg(n, 0).contains('$'))
}

checks! { Check;
    "stream-port-open" |s, _, found| inner_services(s, found),
    "upstream-name-group" |s, _, found| for (n, group) in checked_names(s) {
        let name = s.arg(group, 0);
        if s.effective(s.parent(n), "proxy_ssl_name").is_none() && !name.contains('.') {
            found(s.arg_span(n, 0), format!("the certificate would have to be for \"{name}\""));
        }
    },
    "upstream-old-tls" |s, _, found| for n in ["proxy_ssl_protocols", "grpc_ssl_protocols", "uwsgi_ssl_protocols"].into_iter().flat_map(|name| s.all(name)) {
        let args = s.args(n);
        if let Some(old) = args.iter().find(|a| OLD.contains(&&***a)) {
            let only = args.iter().all(|a| OLD.contains(&&**a));
            found(s.span(n), if only { format!("{old} and nothing newer is spoken to upstreams") } else { format!("{old} is spoken to upstreams") });
        }
    },
    "gzip-events" |s, _, found| for n in ["gzip_types", "brotli_types", "zstd_types"].into_iter().flat_map(|name| s.all(name)) {
        if let Some(i) = s.args(n).iter().position(|a| a == "text/event-stream") {
            found(s.arg_span(n, i), "events wait until there is enough to compress".to_owned());
        }
    },
    "websocket-timeout" |s, _, found| for (_, block) in passing(s).filter(|(_, b)| upgrades(s, Some(*b))) {
        let Some(n) = s.effective(Some(block), "proxy_read_timeout") else { continue };
        if let Some(t) = seconds(s, n, 0).filter(|t| *t < 30) {
            found(s.arg_span(n, 0), format!("a web socket that is silent for {t} s is cut"));
        }
    },
    "client-abort-ignored" |s, _, found| for name in ["proxy_ignore_client_abort", "fastcgi_ignore_client_abort", "uwsgi_ignore_client_abort"] {
        for n in s.all(name).filter(|n| s.arg(*n, 0) == "on") {
            let Some(block) = s.parent(n) else { continue };
            let endless = upgrades(s, Some(block)) || path_with(s, block, &STREAMS).is_some() || path_with(s, block, &SOCKETS).is_some() || s.effective(Some(block), "proxy_buffering").is_some_and(|b| s.arg(b, 0) == "off");
            let below = || s.inside(block).any(|l| s.is(l, "location") && (path_with(s, l, &STREAMS).is_some() || path_with(s, l, &SOCKETS).is_some()));
            if endless || below() {
                found(s.span(n), "streams of clients that have left go on for ever".to_owned());
            }
        }
    },
    "connection-upgrade-plain" |s, _, found| for n in s.all("proxy_set_header").filter(|n| s.arg(*n, 0).eq_ignore_ascii_case("connection")) {
        let socket = s.parent(n).is_some_and(|b| s.is(b, "location") && path_with(s, b, &SOCKETS).is_some());
        let table = !s.arg(n, 1).eq_ignore_ascii_case("upgrade");
        let here = table || !is_wide(s, n) && !socket;
        if let Some(span) = plain_upgrade(s, n).filter(|_| here) {
            found(span, "requests without Upgrade are sent with \"Connection: upgrade\", too".to_owned());
        }
    },
    "connection-passed" |s, _, found| for (n, block) in passing(s) {
        let Some((at, value)) = field(s, Some(block), "connection") else { continue };
        let pooled = group_of(s, s.arg(n, 0)).is_some_and(|g| s.child(Some(g), "keepalive").is_some());
        if value.contains("$http_connection") {
            let text = if pooled || !upgrades(s, Some(block)) { "each client decides whether the connection to the upstream is kept" } else { "a client can name any field in it, and the upstream drops that field" };
            found(s.arg_span(at, 1), text.to_owned());
        }
    },
    "retry-acts-grpc" |s, _, found| for n in s.all("grpc_next_upstream").filter(|n| has(s, *n, "non_idempotent")) {
        let at = s.args(n).iter().position(|a| a == "non_idempotent").unwrap_or(0);
        found(s.arg_span(n, at), "each call is a POST: an order is made again at the next server".to_owned());
    },
    "grpc-without-http2" |s, _, found| { let by_word = s.all("listen").any(|l| has(s, l, "http2")); for server in http_servers(s) {
        let Some(pass) = s.named_inside(server, "grpc_pass").next() else { continue };
        let spoken = by_word || s.effective(Some(server), "http2").is_some_and(|n| s.arg(n, 0) == "on");
        let listens: Vec<usize> = children(s, server, "listen").collect();
        let first = listens.first().filter(|_| !spoken && !listens.iter().any(|l| has(s, *l, "quic")));
        if let Some(listen) = first {
            found(s.span(*listen), format!("clients of gRPC speak HTTP/2, which is not accepted here for {}", s.arg(pass, 0)));
        }
    } },
    "cache-inactive" |s, _, found| for family in FAMILIES {
        let (name, cache) = (format!("{family}_cache_path"), format!("{family}_cache"));
        // The longest time of a response by zones.
        let mut valid: HashMap<&str, u64> = HashMap::new();
        for (zone, time) in s.all(&cache).filter_map(|c| Some((s.arg(c, 0), longest(s, family, s.parent(c))?))) {
            let known = valid.entry(zone).or_default();
            *known = time.max(*known);
        }
        for n in s.all(&name) {
            let Some(zone) = parameter(s, n, "keys_zone").and_then(|z| z.split(':').next()) else { continue };
            // Ten minutes, unless it is said.
            let inactive = parameter(s, n, "inactive").map_or(Some(600), |t| units::time_secs(t.as_bytes()));
            let longest = valid.get(zone).copied();
            let at = s.args(n).iter().position(|a| a.starts_with("inactive="));
            if let (Some(inactive), Some(valid)) = (inactive, longest) && valid >= inactive.saturating_mul(6)
                && (at.is_some() || valid >= 86_400) {
                found(at.map_or(s.span(n), |i| s.arg_span(n, i)), format!("what nobody asks for within {inactive} s goes, though it is valid for {valid} s"));
            }
        }
    },
    "cache-unbounded" |s, _, found| for family in FAMILIES {
        let name = format!("{family}_cache_path");
        let unbounded = |n: &usize| parameter(s, *n, "max_size").is_none() && parameter(s, *n, "min_free").is_none();
        for n in s.all(&name).filter(unbounded).filter(|n| is_used(s, *n, family)) {
            found(s.span(n), "it grows until the disk is full".to_owned());
        }
    },
    "cache-unbuffered" |s, _, found| for family in FAMILIES {
        let (cache, buffering) = (format!("{family}_cache"), format!("{family}_buffering"));
        let is_off = |n: usize| s.is(n, &buffering) && s.arg(n, 0) == "off";
        for n in s.with_name(|name| name == cache || name == buffering) {
            // Either of them may be on the outer level.
            let pair = if is_off(n) { s.effective(s.parent(n), &cache).map(|c| (n, c)) } else if s.is(n, &cache) { s.effective(s.parent(n), &buffering).filter(|b| is_off(*b)).map(|b| (b, n)) } else { None };
            if let Some((b, c)) = pair.filter(|(_, c)| s.arg(*c, 0) != "off") {
                found(s.span(b), format!("nothing gets into the cache \"{}\"", s.arg(c, 0)));
            }
        }
    },
    "expires-page" |s, _, found| for n in s.all("expires").chain(s.all("add_header")) {
        let Some(time) = kept_for(s, n) else { continue };
        let Some(block) = s.parent(n) else { continue };
        let location = if s.is(block, "server") { children(s, block, "location").find(|l| s.args(*l) == ["/"] && s.child(Some(*l), "expires").is_none()) } else { Some(block) };
        let passes = |l: usize| s.is(n, "add_header") && s.args(l) == ["/"] && pass_of(s, l).is_some();
        if location.is_some_and(|l| s.is(l, "location") && (is_page(s, l) || passes(l))) {
            found(s.span(n), format!("browsers keep the page itself for {time}, and see no change"));
        }
    },
    "personal-public" |s, _, found| for n in s.all("add_header").chain(s.all("expires")) {
        let location = s.parent(n).filter(|p| s.is(*p, "location"));
        let shared = s.arg(n, 1).to_ascii_lowercase();
        let field = s.arg(n, 0).eq_ignore_ascii_case("cache-control") && (shared.contains("public") || shared.contains("s-maxage"));
        let public = field || s.is(n, "expires") && kept_for(s, n).is_some();
        if let Some(path) = location.filter(|l| public && pass_of(s, *l).is_some()).and_then(|l| path_with(s, l, &PERSONAL)) {
            found(s.span(n), format!("{path} looks like pages of one person, and caches may give them to others"));
        }
    },
    "cors-vary" |s, _, found| for n in s.all("add_header").filter(|n| s.arg(*n, 0).eq_ignore_ascii_case("access-control-allow-origin")) {
        let is_vary = |h: usize| s.arg(h, 0).eq_ignore_ascii_case("vary") && (s.arg(h, 1).to_ascii_lowercase().contains("origin") || s.arg(h, 1).contains('*'));
        let varies = s.children(s.parent(n), "add_header").any(is_vary);
        if s.arg(n, 1).contains('$') && !varies {
            found(s.arg_span(n, 1), "a cache gives the answer for one origin to another".to_owned());
        }
    },
    "cors-null" |s, _, found| for n in s.all("add_header").filter(|n| s.arg(*n, 0).eq_ignore_ascii_case("access-control-allow-origin")) {
        let value = s.arg(n, 1);
        let lines = named(value).into_iter().flat_map(|(_, v)| entries_of_tables(s, s.parent(n), v));
        let line = lines.into_iter().find(|e| e.key.eq_ignore_ascii_case("null") && !e.value.is_empty()).map(|e| e.span);
        let own = value.eq_ignore_ascii_case("null").then(|| s.arg_span(n, 1));
        if let Some(span) = own.or(line) {
            found(span, "any page can have the origin null, by a frame in a sandbox".to_owned());
        }
    },
    "limit-conn-high" |s, _, found| for n in s.all("limit_conn") {
        if let Some(most) = s.arg(n, 1).parse::<u64>().ok().filter(|m| *m >= 5000) {
            found(s.arg_span(n, 1), format!("{most} connections for one key: no client comes so far"));
        }
    },
    "limit-status-named" |s, _, found| for n in ["limit_req_status", "limit_conn_status"].into_iter().flat_map(|name| s.all(name)).filter(|n| s.arg(*n, 0).starts_with('5')) {
        found(s.arg_span(n, 0), "who is refused hears that the server is broken".to_owned());
    },
    "body-files-kept" |s, _, found| for n in s.all("client_body_in_file_only").filter(|n| s.arg(*n, 0) == "on") {
        found(s.span(n), "every body is left in a file, for ever".to_owned());
    },
    "lingering-long" |s, _, found| for n in s.all("lingering_time").chain(s.all("lingering_timeout")) {
        if let Some(t) = seconds(s, n, 0).filter(|t| *t >= 300) {
            found(s.arg_span(n, 0), format!("a client that is done with may send for {} min", t / 60));
        }
    },
    "file-cache-large" |s, _, found| for n in s.all("open_file_cache") {
        let most = parameter(s, n, "max").and_then(|m| m.parse::<u64>().ok()).unwrap_or(0);
        let limit = s.all("worker_rlimit_nofile").last().and_then(|l| number(s, l)).unwrap_or(0);
        if limit > 0 && most >= limit || limit == 0 && most >= 500_000 {
            found(s.span(n), format!("{most} open files, and {} descriptors", if limit > 0 { limit } else { 1024 }));
        }
    },
    "stream-buffer-large" |s, _, found| for n in s.all("proxy_buffer_size").filter(|n| s.around(*n, "stream").is_some()) {
        if let Some(b) = size(s, n, 0).filter(|b| *b >= 256 << 10) {
            found(s.arg_span(n, 0), format!("{} kB for each session, which has two of them", b >> 9));
        }
    },
    "stream-timeout-long" |s, _, found| for n in s.all("proxy_timeout") {
        if let Some(t) = seconds(s, n, 0).filter(|t| *t > 86_400) {
            found(s.arg_span(n, 0), format!("a dead session is kept for {} days", t / 86_400));
        }
    },
}
