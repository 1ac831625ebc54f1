//! Checks of what responses, caches and logs tell, and to whom, and of whom limits count.

use super::ask::{http_servers, pass_of};
use super::{Check, checks};
use crate::scene::{Scene, Table};
use forebay_conf::tree::Span;
use std::collections::HashSet;

/// Reports limits whose refusals the error log leaves out.
fn quiet_limits(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    let levels = ["debug", "info", "notice", "warn", "error", "crit", "alert", "emerg"];
    let rank = |text: &str| levels.iter().position(|l| *l == text);
    for n in ["limit_req_log_level", "limit_conn_log_level"].into_iter().flat_map(|name| s.all(name)) {
        let log = s
            .effective(s.parent(n), "error_log")
            .map_or("error", |l| s.args(l).get(1).map_or("error", |w| w));
        if let (Some(own), Some(log_rank)) = (rank(s.arg(n, 0)), rank(log))
            && own < log_rank
        {
            found(s.arg_span(n, 0), format!("the error log begins at {log}, so refusals are not in it"));
        }
    }
}

/// Reports tables of status codes by which a log has only what went well.
fn only_successes(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    let used: HashSet<&str> = s.all("access_log").filter_map(|n| super::ask::parameter(s, n, "if")).collect();
    for n in s.all("map").filter(|n| s.arg(*n, 0) == "$status" && used.contains(s.arg(*n, 1))) {
        let lines = || {
            super::patterns::lines(s, n).map(|l| {
                (l.name.as_str(), l.args.first().map(|a| a.as_str().into_owned()).unwrap_or_default())
            })
        };
        let off = |value: &str| value.is_empty() || value == "0";
        let rest = lines().find(|(key, _)| key == "default").is_none_or(|(_, value)| off(&value));
        let failures = |key: &str| key.trim_start_matches(['~', '^']).contains(['4', '5']);
        if rest && !lines().any(|(key, value)| failures(&key) && !off(&value)) {
            found(s.span(n), "errors have no line in it, and so none in the log".to_owned());
        }
    }
}

/// Returns the values of a directive of Content-Security-Policy.
fn policy<'v>(value: &'v str, name: &str) -> Option<&'v str> {
    value.split(';').map(str::trim).find_map(|d| d.strip_prefix(name)?.strip_prefix(' '))
}

/// Words in the paths of an administration.
const ADMINISTRATION: [&str; 4] = ["admin", "administrator", "backend", "dashboard"];

/// Reports administration that a cache of the whole site keeps.
fn cached_administration(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for l in s.all("location").filter(|l| pass_of(s, *l).is_some()) {
        let path = s.last_arg(l).to_ascii_lowercase();
        if !path.split(['/', '^', '$', '.', '-', '_']).any(|w| ADMINISTRATION.contains(&w)) {
            continue;
        }
        for family in ["proxy", "fastcgi", "uwsgi"] {
            let name = |end: &str| format!("{family}_{end}");
            let cache = s.effective(Some(l), &name("cache")).filter(|n| s.arg(*n, 0) != "off");
            let inherited = cache.is_some_and(|n| s.parent(n) != Some(l));
            let spared =
                ["no_cache", "cache_bypass"].iter().any(|end| s.child(Some(l), &name(end)).is_some());
            let ignored = s.effective(Some(l), &name("ignore_headers"));
            let blind = ignored.is_some_and(|n| s.has(n, "Cache-Control") || s.has(n, "Set-Cookie"));
            if inherited && !spared && blind {
                found(s.span(l), "pages for one administrator are kept for whoever asks next".to_owned());
            }
        }
    }
}

/// Reports servers with HTTP/3 whose responses do not tell of it.
fn unannounced(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    let tells = |n: usize| s.arg(n, 0).eq_ignore_ascii_case("alt-svc");
    let telling: HashSet<Option<usize>> =
        s.all("add_header").filter(|n| tells(*n)).map(|n| s.parent(n)).collect();
    for server in http_servers(s).filter(|_| !s.is_partial()) {
        let quic = s.children(Some(server), "listen").find(|l| s.has(*l, "quic"));
        let own = s.child(Some(server), "add_header").is_some();
        let outer = || !own && telling.contains(&s.parent(server));
        let inside = || s.named_inside(server, "add_header").any(tells);
        if let Some(l) = quic.filter(|_| !outer() && !inside()) {
            found(s.span(l), "no response has Alt-Svc, so no browser comes here".to_owned());
        }
    }
}

/// Returns the lines of a table: what is compared, and the value.
fn entries<'s>(s: &'s Scene<'_>, table: usize) -> impl Iterator<Item = (String, String)> + 's {
    super::patterns::lines(s, table)
        .filter_map(|e| Some((e.name.as_str().into_owned(), e.args.first()?.as_str().into_owned())))
}

/// Beginnings of private addresses.
const PRIVATE: [&str; 4] = ["10.", "192.168.", "172.16.", "127."];

/// Reports limits that count the own networks, and no strangers.
fn spared_strangers(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    let zones = ["limit_req_zone", "limit_conn_zone"];
    let keys: HashSet<&str> = zones.into_iter().flat_map(|name| s.all(name)).map(|n| s.arg(n, 0)).collect();
    let networks: Table<&str, usize> = s.all("geo").map(|n| (s.last_arg(n), n)).collect();
    for map in s.all("map").filter(|n| keys.contains(s.arg(*n, 1))) {
        let Some(geo) = networks.get(s.arg(map, 0)).copied() else { continue };
        let empty: HashSet<String> = entries(s, map).filter(|(_, v)| v.is_empty()).map(|(k, _)| k).collect();
        let spares = entries(s, geo).any(|(k, v)| k == "default" && empty.contains(&v));
        let is_own = |k: &str| PRIVATE.iter().any(|p| k.starts_with(p));
        if spares && entries(s, geo).any(|(k, v)| is_own(&k) && !empty.contains(&v)) {
            found(s.span(map), format!("{} is empty for strangers, who are not counted", s.arg(map, 1)));
        }
    }
}

checks! { Check;
    "limit-spares-strangers" |s, _, found| spared_strangers(s, found),
    "limit-log-quiet" |s, _, found| quiet_limits(s, found),
    "log-only-successes" |s, _, found| only_successes(s, found),
    "cache-administration" |s, _, found| cached_administration(s, found),
    "hsts-preload" |s, _, found| for n in s.all("add_header").filter(|n| s.arg(*n, 0).eq_ignore_ascii_case("strict-transport-security")) {
        let value = s.arg(n, 1).to_ascii_lowercase();
        let age = value.split("max-age=").nth(1).and_then(|a| a.trim_start_matches('"').split([';', ' ', '"']).next()?.parse::<u64>().ok());
        let lacks = if !value.contains("includesubdomains") { "includeSubDomains" } else { "a year of max-age" };
        if value.contains("preload") && (!value.contains("includesubdomains") || age.is_some_and(|a| a < 31_536_000)) {
            found(s.arg_span(n, 1), format!("the list of browsers takes no name without {lacks}"));
        }
    },
    "slice-unkept" |s, _, found| for n in s.all("slice").filter(|n| s.arg(*n, 0) != "0") {
        let cached = s.effective(s.parent(n), "proxy_cache").is_some_and(|c| s.arg(c, 0) != "off");
        let mut valid = s.all_effective(s.parent(n), "proxy_cache_valid").peekable();
        if let Some(first) = valid.peek().copied().filter(|_| cached)
            && !valid.any(|v| s.has(v, "206") || s.has(v, "any"))
        {
            found(s.span(first), "slices are answered with 206, which is not in the list".to_owned());
        }
    },
    "cookie-echoed" |s, _, found| for n in s.all("add_header").filter(|n| !s.arg(*n, 0).eq_ignore_ascii_case("set-cookie")) {
        let value = s.arg(n, 1);
        let own = crate::variables::named(value).into_iter().find(|(_, v)| v.starts_with("cookie_") || ["http_cookie", "http_authorization"].contains(v));
        if let Some((_, v)) = own {
            found(s.arg_span(n, 1), format!("scripts read ${v} there, whatever HttpOnly says"));
        }
    },
    "policy-any" |s, _, found| for n in s.all("add_header").filter(|n| s.arg(*n, 0).eq_ignore_ascii_case("content-security-policy")) {
        let value = s.arg(n, 1);
        let any = |name: &str| policy(value, name).is_some_and(|v| v.split(' ').any(|w| ["*", "http:", "https:", "http://*", "https://*"].contains(&w)));
        if any("frame-ancestors") {
            found(s.arg_span(n, 1), "pages of every site may show this one in a frame".to_owned());
        }
    },
    "quic-unannounced" |s, _, found| unannounced(s, found),
}
