//! Rules for the safety of a configuration: directives that let requests or data go where they should not.

use super::Check;
use super::checks;
use super::general::{level_lost, word};
use crate::plain::is_regular;
use crate::scene::{Scene, Table};
use crate::variables::{
    by_client, group, groups, is_name, named, patterns, repeats_itself, sources, takes_line_feeds, values,
};
use std::collections::HashSet;
use std::net::IpAddr;

/// Returns the host in the address of a `proxy_pass` or the like, without a path of variables behind it.
fn host_of(url: &str) -> &str {
    let host = url.split("://").nth(1).unwrap_or(url).split('/').next().unwrap_or_default();
    let cut = ["$uri", "$request_uri"].iter().filter_map(|v| host.find(v)).filter(|at| *at > 0).min();
    host.get(..cut.unwrap_or(host.len())).unwrap_or_default()
}

/// Returns `true` if an address needs no look-up: it is a number, a socket, or the name of an upstream block.
fn known_address(s: &Scene<'_>, address: &str) -> bool {
    let host = host_of(address);
    let name = if host.starts_with('[') {
        host.split(']').next().unwrap_or_default().trim_start_matches('[')
    } else {
        host.split(':').next().unwrap_or_default()
    };
    name == "unix" || name.parse::<IpAddr>().is_ok() || s.group(name).is_some()
}

/// Returns `true` if an address belongs to this machine or its own networks.
pub(crate) fn is_near(ip: IpAddr) -> bool {
    match ip {
        IpAddr::V4(a) => {
            a.is_loopback()
                || a.is_private()
                || a.is_link_local()
                || (a.octets()[0] == 100 && a.octets()[1] & 0xc0 == 64)
        }
        IpAddr::V6(a) => a.is_loopback() || a.is_unique_local() || a.is_unicast_link_local(),
    }
}

/// Returns regular expressions with their places.
fn all_patterns<'s>(s: &'s Scene<'_>) -> Vec<(usize, usize, &'s str)> {
    let mut out = Vec::new();
    for n in s.all("location").filter(|n| s.arg(*n, 0).starts_with('~')) {
        let last = s.args(n).len() - 1;
        out.push((n, last, s.arg(n, last).trim_start_matches(['~', '*'])));
    }
    out.extend(s.all("rewrite").map(|n| (n, 0, s.arg(n, 0))));
    for n in s.all("if").filter(|n| s.args(*n).iter().any(|a| a.contains('~'))) {
        let last = s.args(n).len() - 1;
        out.push((n, last, s.arg(n, last).trim_end_matches(')')));
    }
    out
}

/// Returns `true` if a pattern for the origin, the referring page or the host also matches other names that contain it.
fn is_loose(subject: &str, pattern: &str) -> bool {
    let begins = pattern.contains('^');
    let ends = pattern.ends_with('$');
    // A pattern for everything is no check.
    let is_check = pattern.contains(|c: char| c.is_ascii_alphanumeric());
    if subject.contains("$http_origin") {
        is_check && !(begins && ends)
    } else if subject.contains("$http_referer") {
        is_check && !begins
    } else if subject.contains("$http_host") || subject.contains("$host") || subject.contains("server_name") {
        is_check && !begins && !ends && pattern.contains('.')
    } else {
        false
    }
}

/// Folders that have more than what is for everybody.
const WHOLE: [&str; 14] = [
    "",
    "/etc",
    "/etc/nginx",
    "/etc/ssl",
    "/root",
    "/proc",
    "/sys",
    "/dev",
    "/home",
    "/var",
    "/var/log",
    "/var/lib",
    "/usr",
    "/boot",
];

/// Returns `true` if the number of ways to match a pattern grows with the text: a repeat before look-around, or a back reference.
/// Look-around behind fixed text, as in `/\.(?!well-known)`, is tried once for each place.
fn tries_many(pattern: &[u8]) -> bool {
    let text = String::from_utf8_lossy(pattern);
    let refers = (1..=9).any(|n| text.contains(&format!("\\{n}"))) || text.contains("\\k");
    let looks = ["(?=", "(?!", "(?<"].iter().filter_map(|group| text.find(group)).min();
    let before = looks.map_or(&*text, |at| text.get(..at).unwrap_or_default());
    refers || before.replace("\\*", "").replace("\\+", "").contains(['*', '+', '{'])
}

checks! { Check;
    "alias-traversal" |s, _, found| for n in s.all("alias") {
        let Some(l) = s.parent(n).filter(|p| s.is(*p, "location")) else { continue };
        let args = s.args(l);
        let name = match args { [name] => name, [m, name] if m == "^~" => name, _ => continue };
        if !name.ends_with('/') && s.arg(n, 0).ends_with('/') {
            found(s.span(n), format!("{name}../ reaches outside of {}", s.arg(n, 0)));
        }
    },
    "if-evil" |s, _, found| for n in s.all("if").filter(|n| s.parent(*n).is_some_and(|p| s.is(p, "location"))) {
        // Fields of an answer that the block itself gives are safe.
        let answers = s.child(Some(n), "return").is_some();
        let is_safe = |c: usize| {
            ["return", "rewrite", "set", "break"].iter().any(|d| s.is(c, d)) || answers && (s.is(c, "add_header") || s.is(c, "default_type"))
        };
        if let Some(c) = s.level(Some(n)).iter().find(|c| !is_safe(**c)) {
            found(s.span(*c), format!("\"{}\" inside \"if\"", String::from_utf8_lossy(&s.nodes[*c].d.name.text)));
        }
    },
    "ssrf" |s, _, found| for n in ["proxy_pass", "fastcgi_pass", "uwsgi_pass", "scgi_pass", "grpc_pass"].into_iter().flat_map(|name| s.all(name)) {
        let url = s.arg(n, 0);
        let host = host_of(url);
        if by_client(s, s.parent(n), host).is_some() {
            found(s.arg_span(n, 0), format!("the client chooses {host}"));
        }
    },
    "host-spoofing" |s, _, found| for n in s.all("proxy_set_header").chain(s.all("grpc_set_header")) {
        // A signature of S3 covers the field with its port.
        if s.arg(n, 0).eq_ignore_ascii_case("host") && s.arg(n, 1).contains("$http_host") && !super::ask::is_object_store(s, n) {
            found(s.arg_span(n, 1), "the client's own text, unchecked".to_owned());
        }
    },
    "splitting" |s, _, found| for name in ["return", "rewrite", "add_header", "proxy_set_header"] {
        for n in s.all(name) {
            let last = s.arg(n, 2);
            for (i, a) in s.args(n).iter().enumerate() {
                let sent = match name {
                    "return" => a.starts_with("http") || s.arg(n, 0).starts_with('3'),
                    "rewrite" => i == 1 && (a.starts_with("http") || last == "permanent" || last == "redirect"),
                    _ => true,
                };
                if !sent {
                    continue;
                }
                let around = patterns(s, s.parent(n));
                let captured = |v: &str| name != "rewrite" && around.iter().any(|p| group(p, v).is_some_and(takes_line_feeds));
                if let Some((_, v)) = named(a).into_iter().find(|(_, v)| matches!(*v, "uri" | "document_uri") || captured(v)) {
                    found(s.arg_span(n, i), format!("${v} is decoded"));
                }
            }
        }
    },
    "pattern-backtracking" |s, _, found| {
        let mut judge = |span, text: &[u8]| if !is_regular(text) && forebay_core::pattern::needs_backtracking(text) && tries_many(text) {
            found(span, "it has look-around, a back reference or the like".to_owned());
        };
        for (n, i, p) in all_patterns(s) {
            judge(s.arg_span(n, i), p.as_bytes());
        }
        let entries = s.all("map").filter_map(|n| s.nodes.get(n)?.d.block.as_ref()).flat_map(|b| b.iter().map(|d| &d.name));
        let names = s.all("server_name").filter_map(|n| s.nodes.get(n)).flat_map(|n| &n.d.args);
        for word in entries.chain(names) {
            if let Some(p) = word.text.strip_prefix(b"~") {
                judge(word.span, p.strip_prefix(b"*").unwrap_or(p));
            }
        }
    },
    "missing-resolver" |s, _, found| for name in ["proxy_pass", "fastcgi_pass", "uwsgi_pass", "scgi_pass", "grpc_pass", "memcached_pass"] {
        for n in s.all(name).filter(|n| s.effective(s.parent(*n), "resolver").is_none()) {
            let url = s.arg(n, 0);
            let host = host_of(url);
            let whole = |v: &str| host.trim_matches(['{', '}', '$']) == v || host.starts_with(&format!("${v}:"));
            // Variables whose values are written down, none of which has to be looked up.
            let known = |v: &str| whole(v) && values(s, s.parent(n), v).is_some_and(|all| all.iter().all(|a| known_address(s, a)));
            // "app_$request_method" is made of names of groups.
            let before = host.split('$').next().unwrap_or_default();
            let is_group = before.len() > 1 && s.all("upstream").any(|u| s.arg(u, 0).starts_with(before));
            if !is_group && named(host).into_iter().any(|(_, v)| !known(v)) {
                found(s.arg_span(n, 0), "no resolver here or around".to_owned());
            }
        }
    },
    "valid-referers" |s, _, found| word(s, found, "valid_referers", "none", "requests without Referer pass"),
    "allow-without-deny" |s, _, found| for n in s.all("allow") {
        let block = s.parent(n);
        let first = s.child(block, "allow") == Some(n);
        if first && s.child(block, "deny").is_none() && s.arg(n, 0) != "all" {
            found(s.span(n), "nobody is denied".to_owned());
        }
    },
    "return-before-access" |s, _, found| for n in s.all("return").filter(|n| !s.parent(*n).is_some_and(|p| s.is(p, "if"))) {
        let block = s.parent(n);
        // In stream addresses are looked at first.
        if s.around(n, "stream").is_some() {
            continue;
        }
        let guards = |d: &usize| s.arg(*d, 0) != "off";
        // What is guarded further out is given away by contents only, not by a redirect or an error.
        let gives = s.arg(n, 0).starts_with('2');
        let guarded = ["deny", "auth_basic", "auth_request"].iter().any(|d| {
            let at = if gives { s.effective(block, d) } else { s.child(block, d) };
            at.filter(guards).is_some()
        });
        // A refusal needs no guard.
        if guarded && !s.arg(n, 0).starts_with('4') {
            found(s.span(n), "answered before access is checked".to_owned());
        }
    },
    "regex-unanchored" |s, _, found| for n in s.all("location").filter(|n| s.arg(*n, 0).starts_with('~')) {
        let pattern = s.last_arg(n).trim_start_matches(['~', '*']).to_owned();
        let script = ["\\.php", "\\.cgi", "\\.pl", "\\.py"].iter().any(|e| pattern.ends_with(e));
        if script {
            found(s.span(n), format!("{pattern} also matches in the middle of a name"));
        }
    },
    "body-unread" |s, _, found| for n in s.all("location").filter(|n| s.arg(*n, 0).starts_with('$')) {
        let early = s.effective(Some(n), "client_body_early_read").filter(|e| s.arg(*e, 0) != "off");
        if early.is_none() && sources(s, Some(n), s.arg(n, 0)).iter().any(|v| v == "request_body") {
            found(s.span(n), format!("{} is empty here", s.arg(n, 0)));
        }
    },
    "location-json" |s, _, found| for n in s.all("location") {
        let name = s.arg(n, 0);
        let Some(name) = name.strip_prefix('$') else { continue };
        if s.all("json_set").any(|j| is_name(s, j, name)) {
            found(s.span(n), format!("${name} is true for false and null"));
        }
    },
    "stub-status-open" |s, _, found| for n in s.all("stub_status") {
        let guarded = ["deny", "auth_basic", "auth_request"].iter().any(|d| s.effective(s.parent(n), d).is_some_and(|g| s.arg(g, 0) != "off"));
        let local = s.around(n, "server").is_some_and(|b| {
            let mut listens = s.children(Some(b), "listen").peekable();
            listens.peek().is_some() && listens.all(|l| ["127.", "[::1]", "unix:", "localhost"].iter().any(|p| s.arg(l, 0).starts_with(p)))
        });
        if !guarded && !local {
            found(s.span(n), "no allow and deny beside it".to_owned());
        }
    },
    "origin-unanchored" |s, _, found| {
        for n in s.all("if") {
            let words = s.text(n);
            if let Some((subject, pattern)) = words.split_once('~') && is_loose(subject, pattern.trim_end_matches([')', ' ', '"'])) {
                found(s.span(n), "any name that contains it passes".to_owned());
            }
        }
        for n in s.all("map") {
            let subject = s.arg(n, 0);
            let entries = s.nodes.get(n).and_then(|n| n.d.block.as_ref()).into_iter().flatten();
            for entry in entries.filter(|e| e.name.text.starts_with(b"~") && e.args.iter().any(|a| !a.text.is_empty() && a.text != b"0")) {
                if is_loose(subject, entry.name.as_str().trim_start_matches(['~', '*'])) {
                    found(entry.name.span, "any name that contains it passes".to_owned());
                }
            }
        }
    },
    "error-log-off" |s, _, found| word(s, found, "error_log", "off", "writes a file of that name"),
    "proxy-header-lost" |s, _, found| level_lost(s, "proxy_set_header", found),
    "fastcgi-param-lost" |s, _, found| level_lost(s, "fastcgi_param", found),
    "header-content-type" |s, _, found| for n in s.all("add_header").filter(|n| s.arg(*n, 0).eq_ignore_ascii_case("content-type")) {
        // A 204 has none of its own.
        let is_empty = s.child(s.parent(n), "return").is_some_and(|r| s.arg(r, 0) == "204");
        if !is_empty {
            found(s.span(n), "a second Content-Type".to_owned());
        }
    },
    "header-lines" |s, _, found| for name in ["add_header", "add_trailer", "proxy_set_header"] {
        for n in s.all(name).filter(|n| s.arg(*n, 1).contains('\n')) {
            found(s.arg_span(n, 1), "a line feed in the value".to_owned());
        }
    },
    "map-without-default" |s, _, found| for n in s.all("map") {
        let Some(block) = s.nodes[n].d.block.as_ref() else { continue };
        let name = s.arg(n, 1);
        let decides = |c: usize| ["if", "proxy_pass", "fastcgi_pass", "root", "alias", "return", "rewrite", "auth_basic"].iter().any(|d| s.is(c, d));
        if !block.iter().any(|d| matches!(d.name.as_str().as_ref(), "default" | "include")) && s.with_text(name).any(decides) {
            found(s.span(n), "others give an empty text".to_owned());
        }
    },
    "resolver-remote" |s, _, found| for n in s.all("resolver") {
        for (i, a) in s.args(n).iter().enumerate() {
            let bare = a.strip_prefix('[').map_or_else(|| a.split(':').next().unwrap_or_default(), |v| v.split(']').next().unwrap_or_default());
            if bare.parse::<IpAddr>().is_ok_and(|ip| !is_near(ip)) {
                found(s.arg_span(n, i), format!("{bare} is far"));
            }
        }
    },
    "default-server" |s, _, found| if !s.is_partial() {
        let mut seen: Vec<(&str, usize, usize)> = Vec::new();
        let mut known: Table<&str, usize> = Table::default();
        // A server may listen at an address for TLS and for HTTP/3.
        let mut counted: HashSet<(&str, Option<usize>)> = HashSet::new();
        for n in s.all("listen").filter(|n| s.parent(*n).is_some_and(|p| s.around(p, "http").is_some())) {
            let address = s.arg(n, 0);
            let is_default = s.args(n).iter().any(|a| a == "default_server" || a == "default");
            let is_new = counted.insert((address, s.parent(n)));
            let servers = if is_default { usize::MAX / 2 } else { usize::from(is_new) };
            match known.get(address).and_then(|i| seen.get_mut(*i)) {
                Some((_, _, count)) => *count = count.saturating_add(servers),
                None => {
                    known.insert(address, seen.len());
                    seen.push((address, n, servers));
                }
            }
        }
        for (address, n, count) in seen.into_iter().filter(|(_, _, c)| (2..usize::MAX / 2).contains(c)) {
            found(s.arg_span(n, 0), format!("the first of {count} servers at {address} takes what nobody else does"));
        }
    },
    "root-exposed" |s, _, found| for name in ["root", "alias"] {
        let whole = |root: &str| root.starts_with('/') && WHOLE.contains(&root.trim_end_matches('/'));
        for n in s.all(name).filter(|n| whole(s.arg(*n, 0)) && super::ask::serves(s, *n)) {
            found(s.arg_span(n, 0), format!("all of {} is served", s.arg(n, 0)));
        }
    },
    "redos" |s, _, found| for (n, i, pattern) in all_patterns(s) {
        if let Some(part) = repeats_itself(pattern) {
            found(s.arg_span(n, i), format!("{part} repeats what repeats"));
        }
    },
    "capture-missing" |s, _, found| for n in s.all("rewrite") {
        let pattern = s.arg(n, 0);
        let have = groups(pattern).len();
        let far = |v: &str| v.parse::<usize>().is_ok_and(|g| g > have);
        if let Some((_, v)) = named(s.arg(n, 1)).into_iter().find(|(_, v)| far(v)) {
            found(s.arg_span(n, 1), format!("${v} of {have} groups"));
        }
    },
    "weak-ciphers" |s, _, found| for n in ["ssl_ciphers", "proxy_ssl_ciphers", "grpc_ssl_ciphers", "uwsgi_ssl_ciphers"].into_iter().flat_map(|name| s.all(name)) {
        let list = s.arg(n, 0);
        let anonymous = !list.contains("!aNULL") && !list.contains("!ADH");
        let weak = |w: &&str| {
            let parts = ["RC4", "DES", "3DES", "MD5", "NULL", "eNULL", "aNULL", "EXP", "EXPORT", "LOW", "ADH", "IDEA", "SEED"];
            let named = !w.starts_with(['!', '-', '@']) && w.split(['-', '+']).any(|p| parts.contains(&p));
            named || *w == "@SECLEVEL=0" || anonymous && matches!(*w, "ALL" | "COMPLEMENTOFDEFAULT")
        };
        if let Some(w) = list.split([':', ' ', ',']).find(weak) {
            found(s.arg_span(n, 0), format!("{w} is broken"));
        }
    },
    "hsts-missing" |s, _, found| {
        let sent = s.all("add_header").any(|h| s.arg(h, 0).eq_ignore_ascii_case("strict-transport-security"));
        // Clients of gRPC are no browsers.
        let is_grpc = |server: usize| {
            let has = |name| s.named_inside(server, name).next().is_some();
            has("grpc_pass") && !has("proxy_pass") && !has("root") && !has("fastcgi_pass")
        };
        let is_open = |n: &usize| {
            let server = s.parent(*n);
            s.has(*n, "ssl") && s.around(*n, "http").is_some() && !s.on(server, "ssl_reject_handshake") && !server.is_some_and(is_grpc)
        };
        if let Some(n) = s.all("listen").find(|n| !sent && !s.is_partial() && is_open(n)) {
            found(s.span(n), "browsers are not told to stay on TLS".to_owned());
        }
    },
    "proxy-path-decoded" |s, _, found| for n in s.all("proxy_pass") {
        let url = s.arg(n, 0);
        let path = url.split_once("://").and_then(|(_, rest)| Some(rest.split_once('/')?.1));
        let prefix = s.parent(n).filter(|p| s.is(*p, "location") && !matches!(s.arg(*p, 0), "=" | "/") && !s.arg(*p, 0).starts_with(['~', '@', '$']));
        // A slash behind "/" changes nothing else.
        if path.is_some_and(|p| !p.contains("$request_uri")) && prefix.is_some() && !url.contains("unix:") {
            found(s.arg_span(n, 0), "%2F and .. are resolved before the upstream sees them".to_owned());
        }
    },
}
