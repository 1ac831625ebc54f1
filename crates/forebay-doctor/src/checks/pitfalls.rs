//! Directives that stand where they do something else than they seem to.

use super::ask::{
    FAMILIES, children, has, http_server, http_servers, is_guarded_itself, parameter, pass_of, seconds,
};
use super::traffic::{STREAMS, path_with, upgrades};
use super::{Check, checks};
use crate::routes;
use crate::scene::Scene;
use forebay_conf::tree::Span;

/// Keys that are the same for all clients of a site.
const SHARED: [&str; 6] = ["$server_name", "$host", "$http_host", "$server_addr", "$server_port", "$scheme"];

/// Reports limits, `limit_req` or `limit_conn`, whose key is the same for everybody.
fn shared_limits(s: &Scene<'_>, limit: &str, harm: &str, found: &mut dyn FnMut(Span, String)) {
    let zones = format!("{limit}_zone");
    let name = |z: usize| parameter(s, z, "zone").and_then(|p| p.split(':').next());
    for n in s.all(limit) {
        let zone = parameter(s, n, "zone").unwrap_or(s.arg(n, 0));
        let shared = s.all(&zones).any(|z| name(z) == Some(zone) && SHARED.contains(&s.arg(z, 0)));
        // A bound for the site beside one for each client is what the documents show.
        let beside = s.level(s.parent(n)).iter().filter(|c| s.is(**c, limit)).count() > 1;
        if shared && !beside {
            found(s.span(n), format!("all clients share it: {harm}"));
        }
    }
}

/// Reports servers whose own `return` comes before their locations.
fn returns_before(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for server in http_servers(s) {
        if let Some(n) = s.child(Some(server), "return")
            && let Some(l) = children(s, server, "location").next()
        {
            found(s.span(n), format!("no request gets to \"{}\" and the other locations", s.text(l)));
        }
    }
}

/// Reports pages of errors that the server that has failed is asked for.
fn proxied_pages(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("error_page").filter(|n| s.args(*n).iter().any(|a| matches!(&**a, "502" | "504"))) {
        let page = s.last_arg(n);
        let Some(server) = http_server(s, n).filter(|_| page.starts_with('/') && !page.contains('$')) else {
            continue;
        };
        let taker = routes::chosen(s, server, page);
        if let Some(to) = pass_of(s, taker) {
            found(
                s.arg_span(n, s.args(n).len() - 1),
                format!("the page itself comes from {to}, which does not answer"),
            );
        }
    }
}

/// Reports requests that a server passes to itself.
fn loops(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    const OWN: [&str; 3] = ["127.0.0.1", "localhost", "[::1]"];
    for n in s.all("proxy_pass") {
        let Some(server) = http_server(s, n) else { continue };
        let Some(rest) = s.arg(n, 0).strip_prefix("http://") else { continue };
        // With another path or name the request may come to another location or server.
        let renamed = s
            .all_effective(s.parent(n), "proxy_set_header")
            .any(|f| s.arg(f, 0).eq_ignore_ascii_case("host"));
        let Some((host, port)) = rest.rsplit_once(':').filter(|_| !rest.contains(['/', '$']) && !renamed)
        else {
            continue;
        };
        let listens = |l: usize| {
            let address = s.arg(l, 0);
            address == port
                || address.rsplit_once(':').is_some_and(|(own, p)| {
                    p == port && (own == host || matches!(own, "*" | "0.0.0.0" | "[::]"))
                })
        };
        if OWN.contains(&host) && !s.is_partial() && children(s, server, "listen").any(listens) {
            found(
                s.arg_span(n, 0),
                "the server passes the request to itself until connections are used up".to_owned(),
            );
        }
    }
}

/// Methods that change something.
const WRITING: [&str; 4] = ["POST", "PUT", "DELETE", "PATCH"];

checks! { Check;
    "limit-req-shared" |s, _, found| shared_limits(s, "limit_req", "one of them locks the others out", found),
    "limit-conn-shared" |s, _, found| shared_limits(s, "limit_conn", "one of them can take all connections", found),
    "return-before-locations" |s, _, found| returns_before(s, found),
    "error-page-passed" |s, _, found| proxied_pages(s, found),
    "passes-to-itself" |s, _, found| loops(s, found),
    "name-comma" |s, _, found| for n in s.all("server_name") {
        if let Some(i) = s.args(n).iter().position(|a| a.contains(',') && !a.starts_with('~')) {
            found(s.arg_span(n, i), "names are separated by blanks: this is one name, which no client asks for".to_owned());
        }
    },
    "try-files-named-inside" |s, _, found| for n in s.all("try_files") {
        let before = s.args(n).len().saturating_sub(1);
        if let Some(i) = s.args(n).iter().take(before).position(|a| a.starts_with('@')) {
            found(s.arg_span(n, i), "only the last one may be a location: this one is looked for as a file".to_owned());
        }
    },
    "hash-inconsistent" |s, _, found| for n in s.all("hash").filter(|n| !has(s, *n, "consistent")) {
        let servers = s.children(s.parent(n), "server").filter(|n| !has(s, *n, "backup") && !has(s, *n, "down")).count();
        if servers > 2 && s.arg(n, 0).contains("uri") {
            found(s.span(n), format!("with one of {servers} servers more or less nearly all addresses move, and their caches are cold"));
        }
    },
    "hsts-comma" |s, _, found| for n in s.all("add_header").filter(|n| s.arg(*n, 0).eq_ignore_ascii_case("strict-transport-security")) {
        if s.arg(n, 1).contains(',') {
            found(s.arg_span(n, 1), "its parts are separated by semicolons: browsers ignore the whole field".to_owned());
        }
    },
    "events-timeout" |s, _, found| for family in FAMILIES.into_iter().chain(["grpc"]) {
        for n in s.all(&format!("{family}_read_timeout")) {
            let Some(block) = s.parent(n).filter(|b| s.is(*b, "location")) else { continue };
            let is_call = || ["Subscribe", "Watch"].iter().any(|call| s.text(block).contains(call));
            let lasts = if family == "grpc" { is_call() } else { path_with(s, block, &STREAMS).is_some() };
            if let Some(t) = seconds(s, n, 0).filter(|t| *t < 30 && lasts && !upgrades(s, Some(block))) {
                found(s.arg_span(n, 0), format!("a stream that is silent for {t} s is cut"));
            }
        }
    },
    "methods-inverted" |s, _, found| for n in s.all("limit_except").filter(|n| is_guarded_itself(s, *n)) {
        let writes = s.args(n).iter().any(|m| WRITING.contains(&&**m));
        if writes && !has(s, n, "GET") {
            found(s.span(n), "the methods that change something are free, and reading is guarded".to_owned());
        }
    },
    "expires-dynamic" |s, _, found| for n in s.all("expires").filter(|n| s.arg(*n, 0).starts_with(|c: char| c.is_ascii_digit() || c == '+') || s.arg(*n, 0) == "max") {
        let program = |b: usize| ["fastcgi_pass", "uwsgi_pass", "scgi_pass"].iter().any(|p| s.child(Some(b), p).is_some());
        if s.parent(n).is_some_and(program) {
            found(s.span(n), "browsers keep the pages that a program makes for one user".to_owned());
        }
    },
    "store-unlimited" |s, _, found| for n in s.all("proxy_store").filter(|n| s.arg(*n, 0) != "off") {
        found(s.span(n), "responses are kept for ever: nothing expires and nothing bounds the folder".to_owned());
    },
    "access-log-off-doors" |s, _, found| for n in s.all("access_log").filter(|n| s.arg(*n, 0) == "off") {
        let door = |b: &usize| routes::prefix(s, *b).is_some_and(|p| ["admin", "login", "signin", "payment"].iter().any(|w| p.contains(w)));
        if s.parent(n).filter(|b| s.is(*b, "location")).is_some_and(|b| door(&b)) {
            found(s.span(n), "nobody sees who tries to get in".to_owned());
        }
    },
}
