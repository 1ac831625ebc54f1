//! Checks of caches: who gets what was made for somebody else.

use super::ask::{FAMILIES, carried, has, http_server, parameter};
use super::{Check, checks};
use crate::routes;
use crate::scene::{Scene, Table};
use crate::variables::{is_name, named, sources};
use forebay_conf::tree::Span;
use forebay_conf::units;
use std::borrow::Cow;
use std::collections::HashSet;

/// Variables by which an application knows its users.
fn is_personal(v: &str) -> bool {
    v.starts_with("cookie_")
        || matches!(v, "http_cookie" | "http_authorization" | "remote_user" | "jwt_claim_sub")
}

/// Returns the directives `*_cache` that use a cache, with their families.
fn caches<'s>(s: &'s Scene<'_>) -> impl Iterator<Item = (&'static str, usize)> + 's {
    FAMILIES.into_iter().flat_map(move |family| {
        let name = format!("{family}_cache");
        let all = s.all(&name).filter(move |n| s.arg(*n, 0) != "off");
        all.map(move |n| (family, n))
    })
}

/// Returns `true` if a cache of a family is used in a block, inside of it, or around it.
fn is_cached(s: &Scene<'_>, family: &str, block: Option<usize>) -> bool {
    let name = format!("{family}_cache");
    let on = |n: usize| s.arg(n, 0) != "off";
    s.effective(block, &name).is_some_and(on) || block.is_some_and(|b| s.named_inside(b, &name).any(on))
}

/// Returns `true` if a field of the upstream is hidden from clients.
fn hides(s: &Scene<'_>, family: &str, block: Option<usize>, field: &str) -> bool {
    let name = format!("{family}_hide_header");
    let is_it = |n: usize| s.arg(n, 0).eq_ignore_ascii_case(field);
    s.all_effective(block, &name).any(is_it) || block.is_some_and(|b| s.named_inside(b, &name).any(is_it))
}

/// Reports a field of the upstream that a cache ignores.
fn ignored(s: &Scene<'_>, field: &str, text: &str, found: &mut dyn FnMut(Span, String)) {
    for family in FAMILIES {
        let name = format!("{family}_ignore_headers");
        for n in s.all(&name) {
            let at = s.args(n).iter().position(|a| a.eq_ignore_ascii_case(field));
            let hidden = field == "Set-Cookie" && hides(s, family, s.parent(n), field);
            if let Some(i) = at.filter(|_| is_cached(s, family, s.parent(n)) && !hidden) {
                found(s.arg_span(n, i), text.to_owned());
            }
        }
    }
}

/// Key of a cache, with the place where it is written.
struct Key {
    node: usize,
    text: String,
    variables: Vec<String>,
}

impl Key {
    /// Returns the key in effect for a directive `*_cache`.
    fn of(s: &Scene<'_>, family: &str, cache: usize) -> Option<Key> {
        let node = s.effective(s.parent(cache), &format!("{family}_cache_key"))?;
        let text = s.text(node).into_owned();
        let variables = carried(s, s.parent(cache), &text);
        Some(Key { node, text, variables })
    }

    fn has(&self, names: &[&str]) -> bool {
        self.variables.iter().any(|v| names.contains(&v.as_str()))
    }
}

/// Returns `true` if the upstream is told a fixed host, so that its answers do not depend on the one that the client names.
fn has_fixed_host(s: &Scene<'_>, cache: usize) -> bool {
    let mut hosts = s
        .all_effective(s.parent(cache), "proxy_set_header")
        .filter(|n| {
            s.arg(*n, 0).eq_ignore_ascii_case("host") || s.arg(*n, 0).eq_ignore_ascii_case("x-forwarded-host")
        })
        .peekable();
    hosts.peek().is_some() && hosts.all(|n| !s.arg(n, 1).contains('$'))
}

/// Returns the zones, with their families, that are used in more than one server.
fn zones_of_several<'s>(s: &'s Scene<'_>) -> HashSet<(&'static str, &'s str)> {
    let mut first: Table<(&str, &str), Option<usize>> = Table::default();
    let is_other = |(family, n): &(&'static str, usize)| {
        let server = http_server(s, *n);
        *first.entry((family, s.arg(*n, 0))).or_insert(server) != server
    };
    caches(s).filter(is_other).map(|(family, n)| (family, s.arg(n, 0))).collect()
}

/// Returns `true` if a cache is used for more than one name. `elsewhere`: its zone is used in another server as well.
fn has_many_names(s: &Scene<'_>, cache: usize, elsewhere: bool) -> bool {
    let Some(server) = http_server(s, cache) else { return true };
    let names: Vec<_> = super::ask::children(s, server, "server_name").flat_map(|n| s.args(n)).collect();
    elsewhere || names.len() > 1 || names.iter().any(|n| n.starts_with(['*', '.', '~', '_']))
}

/// Returns `true` if a location serves files that are the same whatever the arguments.
fn is_of_assets(s: &Scene<'_>, cache: usize) -> bool {
    let Some(location) = s.parent(cache).filter(|p| s.is(*p, "location")) else { return false };
    let text = s.text(location);
    let pattern = routes::pattern(s, location).is_some();
    (pattern && ["css", "js", "jpg", "png", "woff"].iter().any(|e| text.contains(e)))
        || ["static", "assets", "images", "media", "fonts"].iter().any(|w| text.contains(w))
}

/// Returns the variables of all directives of a name in effect in a block, with those that they are made from.
fn conditions(s: &Scene<'_>, block: Option<usize>, name: &str) -> Vec<String> {
    let all = s.all_effective(block, name);
    let mut found: Vec<String> = all.flat_map(|n| sources(s, block, &s.text(n))).collect();
    let under = deciding(s, block, &found);
    found.extend(under);
    found
}

/// Returns the variables of the conditions under which some of these variables are set.
fn deciding(s: &Scene<'_>, block: Option<usize>, names: &[String]) -> Vec<String> {
    let server = block.and_then(|b| http_server(s, b));
    let sets =
        s.all("set").filter(|n| http_server(s, *n) == server && names.iter().any(|v| is_name(s, *n, v)));
    let conditions = sets.filter_map(|n| s.parent(n).filter(|p| s.is(*p, "if")));
    conditions.flat_map(|c| sources(s, block, &s.text(c))).collect()
}

/// Returns `true` if a field of a request orders the cache about.
fn is_order(v: &str) -> bool {
    let words = ["refresh", "purge", "bypass", "nocache", "no_cache", "update", "debug"];
    v.strip_prefix("http_").is_some_and(|name| words.iter().any(|w| name.contains(w)))
}

/// Returns the codes and the time of `*_cache_valid`.
fn validity<'s, 't>(s: &'s Scene<'t>, n: usize) -> Option<(&'s [Cow<'t, str>], u64)> {
    let (time, codes) = s.args(n).split_last()?;
    Some((codes, units::time_secs(time.as_bytes())?))
}

checks! { Check;
    "cache-stores-cookies" |s, _, found| ignored(s, "Set-Cookie", "a response that sets the cookie of one visitor goes to all", found),
    "cache-ignores-vary" |s, _, found| ignored(s, "Vary", "a response in one language, form or origin goes to all", found),
    "cache-ignores-private" |s, _, found| ignored(s, "Cache-Control", "what the application calls private or no-store is kept, too", found),
    "cache-key-host" |s, _, found| {
        let several = zones_of_several(s);
        for (family, n) in caches(s) {
            let Some(key) = Key::of(s, family, n) else { continue };
            let is_shared = several.contains(&(family, s.arg(n, 0)));
            if !key.has(&["host", "http_host", "server_name", "proxy_host"]) && (is_shared || !has_fixed_host(s, n)) {
                let many = has_many_names(s, n, is_shared);
                let text = if many { "sites of different names share entries" } else { "what a request with another Host got is given to all" };
                found(s.span(key.node), text.to_owned());
            }
        }
    },
    "auth-cached" |s, _, found| for (family, n) in caches(s) {
        let Some(block) = s.parent(n).filter(|b| s.asked().contains(b)) else { continue };
        let key = Key::of(s, family, n);
        let by_user = key.as_ref().is_some_and(|k| k.variables.iter().any(|v| is_personal(v) || v.starts_with("http_x_") || v.contains("user") || v.contains("token")));
        if !by_user && s.effective(Some(block), "auth_basic").is_none() {
            found(s.span(key.map_or(n, |k| k.node)), "one user is let in, and with him all the others".to_owned());
        }
    },
    "cache-key-arguments" |s, _, found| { let asked = s.asked(); for (family, n) in caches(s) {
        let Some(key) = Key::of(s, family, n) else { continue };
        let whole = key.has(&["request_uri", "args", "query_string", "request"]);
        let some = key.variables.iter().any(|v| v.starts_with("arg_"));
        // Arguments that sign a link are no part of what it names.
        let is_signed = s.effective(s.parent(n), "secure_link").is_some_and(|l| s.arg(l, 0).contains("$arg_"));
        if !whole && !some && !is_signed && key.text.contains('$') && !is_of_assets(s, n) && !s.parent(n).is_some_and(|b| asked.contains(&b)) {
            found(s.span(key.node), "/list?page=1 and /list?page=2 are one entry".to_owned());
        }
    } },
    "cache-key-path" |s, _, found| for (family, n) in caches(s) {
        let Some(key) = Key::of(s, family, n) else { continue };
        let location = s.parent(n).filter(|p| s.is(*p, "location"));
        // The path is the only one of its location, or a part of it is captured by a name.
        let is_exact = location.is_some_and(|l| s.arg(l, 0) == "=");
        let text = location.map(|l| s.text(l)).unwrap_or_default();
        let is_captured = key.variables.iter().any(|v| text.contains(&format!("<{v}>")));
        if !is_exact && !is_captured && !key.has(&["request_uri", "uri", "document_uri", "request", "proxy_path", "request_filename"]) && named(&key.text).iter().all(|(_, v)| !v.starts_with(|c: char| c.is_ascii_digit())) && !key.variables.iter().any(|v| v.starts_with("arg_")) {
            found(s.span(key.node), "all paths are one entry".to_owned());
        }
    },
    "cache-key-method" |s, _, found| for family in FAMILIES {
        let name = format!("{family}_cache_methods");
        for n in s.all(&name).filter(|n| has(s, *n, "POST")) {
            let key = s.effective(s.parent(n), &format!("{family}_cache_key"));
            let has_body = key.is_some_and(|k| carried(s, s.parent(n), &s.text(k)).iter().any(|v| v == "request_body"));
            if !has_body {
                found(s.span(n), "a POST is answered from what another body got".to_owned());
            }
        }
    },
    "cache-head" |s, _, found| for family in FAMILIES {
        let name = format!("{family}_cache_convert_head");
        for n in s.all(&name).filter(|n| s.arg(*n, 0) == "off") {
            let key = s.effective(s.parent(n), &format!("{family}_cache_key"));
            let by_method = key.is_some_and(|k| carried(s, s.parent(n), &s.text(k)).iter().any(|v| v == "request_method" || v == "request"));
            let cache = format!("{family}_cache");
            let is_used = s.all(&cache).any(|c| s.arg(c, 0) != "off" && s.effective(s.parent(c), &name) == Some(n));
            if !by_method && is_used {
                found(s.span(n), "the empty answer to a HEAD is given to a GET".to_owned());
            }
        }
    },
    "cache-slice" |s, _, found| for n in s.all("slice").filter(|n| s.arg(*n, 0) != "0") {
        for family in FAMILIES.into_iter().filter(|f| is_cached(s, f, s.parent(n))) {
            let key = s.effective(s.parent(n), &format!("{family}_cache_key"));
            if !key.is_some_and(|k| s.text(k).contains("slice_range")) {
                found(s.span(n), "all slices of a file are one entry".to_owned());
            }
        }
    },
    "cache-bypass-stores" |s, _, found| for (family, n) in caches(s) {
        let block = s.parent(n);
        let Some(at) = s.effective(block, &format!("{family}_cache_bypass")) else { continue };
        let kept = conditions(s, block, &format!("{family}_no_cache"));
        let bypassed = conditions(s, block, &format!("{family}_cache_bypass"));
        if let Some(v) = bypassed.iter().find(|v| is_personal(v) && !kept.contains(v)) {
            found(s.span(at), format!("what is made for a request with ${v} is kept, and given to others"));
        }
    },
    "cache-serves-members" |s, _, found| for (family, n) in caches(s) {
        let block = s.parent(n);
        let Some(at) = s.effective(block, &format!("{family}_no_cache")) else { continue };
        let kept = conditions(s, block, &format!("{family}_no_cache"));
        let bypassed = conditions(s, block, &format!("{family}_cache_bypass"));
        if let Some(v) = kept.iter().find(|v| is_personal(v) && !bypassed.contains(v)) {
            found(s.span(at), format!("a request with ${v} still gets what is kept for others"));
        }
    },
    "cache-behind-login" |s, _, found| for (family, n) in caches(s) {
        let block = s.parent(n);
        let login = ["auth_basic", "auth_request", "auth_jwt", "auth_oidc"].iter().find(|d| s.effective(block, d).is_some_and(|a| s.arg(a, 0) != "off"));
        let key = Key::of(s, family, n);
        let by_user = key.as_ref().is_some_and(|k| k.variables.iter().any(|v| is_personal(v) || v.contains("user") || v.contains("jwt")));
        let skipped = conditions(s, block, &format!("{family}_no_cache")).iter().any(|v| is_personal(v));
        if let Some(login) = login.filter(|_| !by_user && !skipped) {
            found(s.span(n), format!("behind {login} all users share the entries"));
        }
    },
    "cache-errors-long" |s, _, found| for family in FAMILIES {
        let name = format!("{family}_cache_valid");
        for n in s.all(&name) {
            let Some((codes, time)) = validity(s, n) else { continue };
            let long = |code: &&Cow<'_, str>| match &***code {
                "any" => time >= 300,
                c if c.starts_with('5') => time >= 60,
                "404" | "410" => time > 3600,
                c if c.starts_with('4') => time >= 300,
                _ => false,
            };
            if let Some(code) = codes.iter().find(long) {
                found(s.span(n), format!("responses with {} are kept for {time} s", if code == "any" { "any error" } else { code }));
            }
        }
    },
    "cache-zone-tiny" |s, _, found| for family in FAMILIES {
        let name = format!("{family}_cache_path");
        for n in s.all(&name) {
            let zone = parameter(s, n, "keys_zone").and_then(|z| units::size(z.rsplit(':').next()?.as_bytes()));
            if let Some(zone) = zone.filter(|z| *z < 1 << 20) {
                found(s.span(n), format!("room for {} entries", zone / 128));
            }
        }
    },
    "cache-bypass-open" |s, _, found| for family in FAMILIES {
        let name = format!("{family}_cache_bypass");
        for n in s.all(&name) {
            let used = sources(s, s.parent(n), &s.text(n));
            if let Some(v) = used.iter().find(|v| v.starts_with("arg_") || is_order(v) || matches!(v.as_str(), "http_pragma" | "http_cache_control")) {
                found(s.span(n), format!("${v} in a request has the upstream do the work, as often as anybody likes"));
            }
        }
    },
    "expires-pages" |s, _, found| for n in s.all("expires") {
        let time = s.last_arg(n);
        let long = time == "max" || units::time_secs(time.as_bytes()).is_some_and(|t| t >= 86_400);
        let passes = |b: usize| ["proxy_pass", "fastcgi_pass", "uwsgi_pass"].iter().any(|d| s.child(Some(b), d).is_some());
        let Some(block) = s.parent(n) else { continue };
        let pages = (s.is(block, "location") && s.args(block) == ["/"] && passes(block)) || ((s.is(block, "server") || s.is(block, "http")) && s.named_inside(block, "location").any(|l| s.args(l) == ["/"] && passes(l)));
        if long && pages {
            found(s.span(n), format!("browsers and proxies keep pages of the application for {time}"));
        }
    },
}
