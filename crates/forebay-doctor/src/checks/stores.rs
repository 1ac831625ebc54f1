//! Checks of what caches, browsers and logs keep: pages of persons, streams, empty answers, forged lines and tokens.

use super::ask::{FAMILIES, carried, is_wide, parameter, pass_of};
use super::doors::{has_word, words};
use super::patterns::conditions;
use super::{Check, checks};
use crate::routes;
use crate::scene::{Scene, Table};
use forebay_conf::tree::Span;

/// Returns the cache in effect in a block: the family of its directives, and the directive.
fn cache_of(s: &Scene<'_>, block: usize) -> Option<(&'static str, usize)> {
    FAMILIES.into_iter().find_map(|family| {
        s.child(Some(block), &format!("{family}_pass"))?;
        let cache = s.effective(Some(block), &format!("{family}_cache"))?;
        (s.arg(cache, 0) != "off").then_some((family, cache))
    })
}

/// Reports keys by which an empty answer to HEAD is kept for GET. Only `proxy_cache` turns HEAD into GET by itself.
fn heads_kept(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for family in ["fastcgi", "uwsgi", "scgi"] {
        for n in s.all(&format!("{family}_cache_key")) {
            let used = s.parent(n).is_some_and(|b| {
                let name = format!("{family}_cache");
                s.effective(Some(b), &name)
                    .into_iter()
                    .chain(s.named_inside(b, &name))
                    .any(|c| s.arg(c, 0) != "off")
            });
            let key = s.text(n);
            let method =
                carried(s, s.parent(n), &key).iter().any(|v| v == "request_method" || v == "request");
            let kept = |end: &str| {
                let all = s.all_effective(s.parent(n), &format!("{family}_{end}"));
                all.filter(|c| s.text(*c).contains("request_method")).count() > 0
            };
            if used && !method && !kept("no_cache") {
                found(s.arg_span(n, 0), "the answer to HEAD has no body, and is kept for GET".to_owned());
            }
        }
    }
}

/// Words of paths whose pages are made for one person.
const PERSONAL: [&str; 12] = [
    "account",
    "accounts",
    "profile",
    "cart",
    "basket",
    "checkout",
    "inbox",
    "dashboard",
    "admin",
    "wishlist",
    "me",
    "settings",
];

/// Reports pages of persons in a cache that does not know persons.
fn persons_kept(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for l in s.all("location") {
        let Some((family, cache)) = cache_of(s, l) else { continue };
        let word = words(s, l).into_iter().find(|w| PERSONAL.contains(&w.as_str()));
        let Some(word) = word else { continue };
        let key = s.effective(Some(l), &format!("{family}_cache_key"));
        let carried_by_key = key.map(|k| carried(s, Some(l), &s.text(k))).unwrap_or_default();
        let personal = |v: &String| {
            v.starts_with("cookie_")
                || ["http_cookie", "http_authorization", "remote_user"].contains(&v.as_str())
        };
        // What is not in the tables of this file may be about persons as well.
        let unknown = |v: &String| ["session", "user", "member", "login"].iter().any(|w| v.contains(w));
        let spared = ["no_cache", "cache_bypass"]
            .iter()
            .any(|end| s.effective(Some(l), &format!("{family}_{end}")).is_some());
        let ending = s.last_arg(l).contains('.');
        // Administration in a cache of the site has a rule of its own.
        let inherited = s.parent(cache) != Some(l);
        let own = word != "admin" && word != "dashboard" || !inherited;
        let fits = own && !ending && !spared;
        if fits && !carried_by_key.iter().any(|v| personal(v) || unknown(v)) {
            found(s.span(l), format!("the page of the first who asks for /{word} is kept for the next"));
        }
    }
}

/// Reports event streams that a cache is to keep.
fn streams_kept(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for l in s.all("location") {
        let Some((_, cache)) = cache_of(s, l) else { continue };
        let stream = s.child(Some(l), "default_type").is_some_and(|t| s.arg(t, 0) == "text/event-stream")
            || s.children(Some(l), "proxy_set_header").any(|h| s.arg(h, 1).contains("text/event-stream"))
            || has_word(s, l, &["sse", "eventsource", "websocket"]);
        if stream {
            let span = if s.parent(cache) == Some(l) { s.span(cache) } else { s.span(l) };
            found(
                span,
                "a stream has no end, so it is never kept, and with a lock others wait for it".to_owned(),
            );
        }
    }
}

/// Reports answers behind a login that all caches may keep.
fn public_behind_login(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("add_header").filter(|n| s.arg(*n, 0).eq_ignore_ascii_case("cache-control")) {
        let Some(l) = s.parent(n).filter(|p| s.is(*p, "location")) else { continue };
        let value = s.arg(n, 1).to_ascii_lowercase();
        let public = value.split([',', ' ']).any(|w| w == "public" || w.starts_with("s-maxage"));
        let login = ["auth_basic", "auth_request", "auth_jwt", "auth_oidc"]
            .iter()
            .find(|a| s.effective(Some(l), a).is_some_and(|n| s.arg(n, 0) != "off"));
        let assets = has_word(s, l, &["css", "js", "static", "assets", "fonts", "woff2", "dist"]);
        // Either is enough, so not all who get it have a login.
        let any = s.effective(Some(l), "satisfy").is_some_and(|a| s.arg(a, 0) == "any");
        if let Some(login) = login.filter(|_| public && !assets && !any) {
            found(s.arg_span(n, 1), format!("caches give to strangers what {login} is to keep from them"));
        }
    }
}

/// Reports assets that browsers load again with each page.
fn assets_unkept(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("add_header").filter(|n| s.arg(*n, 0).eq_ignore_ascii_case("cache-control")) {
        let Some(l) = s.parent(n).filter(|p| s.is(*p, "location")) else { continue };
        let assets = routes::prefix(s, l).is_some_and(|p| {
            let p = p.trim_matches('/');
            [
                "assets",
                "static",
                "_next/static",
                "dist",
                "fonts",
                "css",
                "js",
                "build",
                "_nuxt",
                "_app/immutable",
            ]
            .contains(&p)
        });
        let refused = s.child(Some(l), "return").is_some() || s.child(Some(l), "internal").is_some();
        if assets && !refused && s.arg(n, 1).to_ascii_lowercase().contains("no-store") {
            found(s.arg_span(n, 1), "browsers load them again with each page".to_owned());
        }
    }
}

/// Variables that the client writes, and in which quotes or line feeds can be.
fn is_free(v: &str) -> bool {
    ["http_", "arg_", "cookie_"].iter().any(|f| v.starts_with(f))
        || [
            "request",
            "request_uri",
            "uri",
            "args",
            "query_string",
            "remote_user",
            "request_body",
            "document_uri",
        ]
        .contains(&v)
}

/// Reports logs into which clients write lines and quotes of their own.
fn unescaped_logs(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("log_format").filter(|n| s.has(*n, "escape=none") && s.around(*n, "http").is_some()) {
        let own = carried(s, s.parent(n), &s.text(n)).into_iter().find(|v| is_free(v));
        if let Some(v) = own {
            found(s.arg_span(n, 1), format!("${v} comes into the log as the client writes it"));
        }
    }
}

/// Names of arguments that are keys.
const KEYS: [&str; 10] = [
    "token",
    "access_token",
    "api_key",
    "apikey",
    "secret",
    "password",
    "passwd",
    "auth_token",
    "jwt",
    "session_id",
];

/// Returns the argument of a request that lets its sender in, with the directive that looks at it.
fn keys_in_addresses(s: &Scene<'_>) -> Vec<(usize, String)> {
    let is_key = |v: &str| v.strip_prefix("arg_").is_some_and(|name| KEYS.contains(&name));
    let by_condition = conditions(s).filter(|c| is_key(&c.variable) && c.refuses(s));
    let mut all: Vec<(usize, String)> = by_condition.map(|c| (c.node, c.variable)).collect();
    for n in s.all("auth_jwt") {
        let given =
            s.args(n).iter().find_map(|a| a.strip_prefix("token=$")).filter(|v| v.starts_with("arg_"));
        all.extend(given.map(|v| (n, v.to_owned())));
    }
    all
}

/// Reports keys in addresses that the access log keeps.
fn keys_logged(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    let formats: Table<&str, usize> = s.all("log_format").map(|n| (s.arg(n, 0), n)).collect();
    let has_query = |v: &String| ["request", "request_uri", "args", "query_string"].contains(&v.as_str());
    for (n, variable) in keys_in_addresses(s) {
        let log = s.effective(s.parent(n), "access_log");
        let off = log.is_some_and(|l| s.arg(l, 0) == "off" || s.arg(l, 0).starts_with("/dev/null"));
        let name =
            log.map(|l| s.arg(l, 1)).filter(|f| !f.is_empty() && !f.contains('=')).unwrap_or("combined");
        let own = formats.get(name).map(|f| carried(s, s.parent(*f), &s.text(*f)));
        // A format of another file is not known.
        let shown =
            own.map_or(name == "combined", |vars| vars.iter().any(|v| has_query(v) || *v == variable));
        if shown && !off {
            found(s.span(n), format!("the log \"{name}\" has the address with ${variable} in it"));
        }
    }
}

/// Returns the milliseconds between two requests that a rate lets through.
fn pause(rate: &str) -> Option<u64> {
    let (count, unit) = rate.split_once("r/")?;
    let whole = if unit == "s" { 1_000_u64 } else { 60_000 };
    whole.checked_div(count.parse().ok()?)
}

/// Reports limits for whole sites under which two requests of one page cannot follow each other.
fn without_burst(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    let zone = |n: usize| parameter(s, n, "zone").map(|z| z.split(':').next().unwrap_or_default());
    let pauses: Table<&str, u64> = s
        .all("limit_req_zone")
        .filter(|n| s.arg(*n, 0).contains("remote_addr"))
        .filter_map(|n| Some((zone(n)?, parameter(s, n, "rate").and_then(pause)?)))
        .collect();
    for n in s.all("limit_req").filter(|n| is_wide(s, *n)) {
        let burst = parameter(s, n, "burst").is_some_and(|b| b != "0");
        let pause = zone(n).and_then(|z| pauses.get(z)).filter(|_| !burst);
        // Slower rates have a rule of their own.
        if let Some(pause) = pause.filter(|p| (10..500).contains(*p)) {
            found(s.span(n), format!("of two requests within {pause} ms one is refused"));
        }
    }
}

/// Words of places where passwords are tried.
const LOGINS: [&str; 6] = ["login", "logon", "signin", "wp_login", "authenticate", "token"];

checks! { Check;
    "cache-head-kept" |s, _, found| heads_kept(s, found),
    "cache-personal" |s, _, found| persons_kept(s, found),
    "cache-stream" |s, _, found| streams_kept(s, found),
    "public-behind-login" |s, _, found| public_behind_login(s, found),
    "assets-unkept" |s, _, found| assets_unkept(s, found),
    "log-unescaped" |s, _, found| unescaped_logs(s, found),
    "key-logged" |s, _, found| keys_logged(s, found),
    "login-unlogged" |s, _, found| for n in s.all("access_log").filter(|n| s.arg(*n, 0) == "off") {
        let Some(l) = s.parent(n).filter(|p| s.is(*p, "location") && pass_of(s, *p).is_some()) else { continue };
        let words = words(s, l);
        let last = words.last().is_some_and(|w| LOGINS.contains(&w.as_str()))
            || words.ends_with(&["login".to_owned(), "php".to_owned()]);
        if last && s.effective(Some(l), "internal").is_none() && !s.asked().contains(&l) {
            found(s.span(n), format!("who tries passwords at {} leaves no line", s.last_arg(l)));
        }
    },
    "gzip-static-always" |s, _, found| for n in s.all("gzip_static").filter(|n| s.arg(*n, 0) == "always") {
        let inside = || s.parent(n).is_some_and(|b| s.named_inside(b, "gunzip").any(|g| s.arg(g, 0) == "on"));
        if !s.on(s.parent(n), "gunzip") && !inside() {
            found(s.span(n), "clients that do not take gzip get it, too".to_owned());
        }
    },
    "limit-burstless" |s, _, found| without_burst(s, found),
}
