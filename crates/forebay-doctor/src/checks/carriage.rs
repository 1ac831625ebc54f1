//! Checks of how requests are carried: to whom, with what in them, and what happens where a server fails.

use super::ask::{
    FAMILIES, client_field, group_of, http_server, http_servers, is_local, is_wide, parameter, pass_of,
};
use super::doors::{has_lock, is_for_strangers};
use super::patterns::{defined, lines};
use super::{Check, checks};
use crate::routes;
use crate::scene::Scene;
use crate::variables::named;
use forebay_conf::tree::Span;
use std::collections::HashSet;

/// Reports locations of gRPC whose calls go on over HTTP/1.
fn calls_by_proxy(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for server in http_servers(s) {
        if s.named_inside(server, "grpc_pass").next().is_none() {
            continue;
        }
        for l in s.children(Some(server), "location") {
            let Some(pass) = s.child(Some(l), "proxy_pass") else { continue };
            let name =
                routes::prefix(s, l).and_then(|p| p.strip_prefix('/')).map(|p| p.trim_end_matches('/'));
            let service = name.and_then(|n| n.rsplit_once('.')).filter(|(package, service)| {
                !package.contains('/') && service.starts_with(|c: char| c.is_ascii_uppercase())
            });
            // Envoy and others take calls of browsers over HTTP/1.
            let of_browsers =
                s.text(l).contains("web") || s.inside(l).any(|n| s.text(n).contains("grpc-web"));
            if service.is_some() && !of_browsers {
                found(s.span(pass), "calls of gRPC need HTTP/2 and trailers up to their server".to_owned());
            }
        }
    }
}

/// Words of fields about a certificate or an identity. Plainer words, such as "user", have a rule of their own.
const CERTIFIED: [&str; 7] = ["cn", "san", "certificate", "identity", "fingerprint", "serial", "spiffe"];

/// Words beside which another rule tells, or that are of no person.
const OTHERWISE: [&str; 10] =
    ["user", "dn", "cert", "verify", "verified", "subject", "token", "key", "agent", "session"];

/// Reports fields about certificates that repeat what the client wrote.
fn persons_claimed(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in ["proxy_set_header", "grpc_set_header"].into_iter().flat_map(|name| s.all(name)) {
        let name = s.arg(n, 0).to_ascii_lowercase();
        let has = |list: &[&str]| name.split(['-', '_']).any(|w| list.contains(&w));
        let near = http_server(s, n).is_none_or(|b| is_local(s, b));
        let inner = s.effective(s.parent(n), "internal").is_some();
        let person = has(&CERTIFIED) && !has(&OTHERWISE) && !near && !inner;
        if let Some(v) = client_field(s, s.parent(n), s.arg(n, 1)).filter(|_| person) {
            let field = s.arg(n, 0);
            found(
                s.arg_span(n, 1),
                format!("${v} is whatever the client writes, and the service believes {field}"),
            );
        }
    }
}

/// Words of fields by which a customer is chosen.
const CUSTOMERS: [&str; 10] = [
    "tenant",
    "customer",
    "org",
    "organization",
    "organisation",
    "account",
    "backend",
    "upstream",
    "workspace",
    "company",
];

/// Reports tables that choose the application of a customer by what the client writes.
fn customers_by_field(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for map in s.all("map") {
        let source = s.arg(map, 0);
        let by_client = ["$http_", "$arg_"].iter().find_map(|f| source.strip_prefix(f));
        let Some(field) = by_client.filter(|f| f.split('_').any(|w| CUSTOMERS.contains(&w))) else {
            continue;
        };
        let mut targets: HashSet<String> = HashSet::new();
        targets.extend(lines(s, map).filter_map(|e| Some(e.args.first()?.as_str().into_owned())));
        let variable = format!("${}", defined(s, map));
        let passes = s.with_text(&variable).find(|n| {
            let pass = FAMILIES.iter().any(|f| s.is(*n, &format!("{f}_pass"))) || s.is(*n, "grpc_pass");
            let exact = pass && named(s.arg(*n, 0)).iter().any(|(_, v)| variable.get(1..) == Some(*v));
            let open = || http_server(s, *n).is_some_and(|b| is_for_strangers(s, b));
            exact && s.parent(*n).is_some_and(|b| !has_lock(s, b)) && open()
        });
        if passes.is_some() && targets.len() > 1 {
            found(
                s.span(map),
                format!("whoever writes another {field} reaches the application of somebody else"),
            );
        }
    }
}

/// Returns the time of a parameter of a server, in seconds.
fn time_of(s: &Scene<'_>, server: usize, name: &str) -> Option<u64> {
    parameter(s, server, name).and_then(|t| forebay_conf::units::time_secs(t.as_bytes()))
}

/// Reports times after failures that count none, and that one failure makes long.
fn failure_times(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for u in s.all("upstream") {
        let count = s.children(Some(u), "server").take(2).count();
        for n in s.children(Some(u), "server").filter(|_| count > 1) {
            let fails = parameter(s, n, "max_fails").map_or(Some(1), |f| f.parse::<u64>().ok());
            // Ten minutes and more have a rule of their own.
            let Some(t) = time_of(s, n, "fail_timeout").filter(|t| *t <= 600) else { continue };
            if t == 0 && fails != Some(0) {
                found(s.span(n), "no time is left in which failures could be counted".to_owned());
            } else if t >= 300 && fails == Some(1) {
                found(s.span(n), format!("one failure takes the server away for {} min", t / 60));
            }
        }
    }
}

/// Variables that have few values, or one value for most clients.
const UNEVEN: [&str; 11] = [
    "http_user_agent",
    "http_accept_language",
    "http_accept_encoding",
    "http_accept",
    "request_method",
    "scheme",
    "server_protocol",
    "server_port",
    "http_referer",
    "https",
    "http_origin",
];

/// Reports keys by which most requests come to one server.
fn uneven_keys(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("hash").filter(|n| s.parent(*n).is_some_and(|p| s.is(p, "upstream"))) {
        let names = named(s.arg(n, 0));
        let all = names.iter().all(|(_, name)| UNEVEN.contains(name));
        if all && s.around(n, "http").is_some() {
            let what = names.first().map_or_else(|| "the key".to_owned(), |(_, name)| format!("${name}"));
            found(
                s.arg_span(n, 0),
                format!("{what} is the same for many clients, and one server gets them all"),
            );
        }
    }
}

/// Reports sites with TLS that another server gives away in the clear.
fn plain_twins(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    let is_plain = |l: usize| !["ssl", "quic", "proxy_protocol"].iter().any(|w| s.has(l, w));
    let names = |server: usize| s.children(Some(server), "server_name").flat_map(move |n| s.args(n));
    let listens = |server: usize| s.children(Some(server), "listen");
    let mut with_tls: HashSet<&str> = HashSet::new();
    for server in http_servers(s).filter(|b| listens(*b).any(|l| s.has(l, "ssl"))) {
        with_tls
            .extend(names(server).map(|n| &**n).filter(|n| n.contains('.') && !n.starts_with(['~', '*'])));
    }
    for server in http_servers(s).filter(|b| is_for_strangers(s, *b) && listens(*b).all(is_plain)) {
        let port = listens(server).find(|l| s.arg(*l, 0) == "80" || s.arg(*l, 0).ends_with(":80"));
        let twin = names(server).find(|n| with_tls.contains(&***n));
        let (Some(l), Some(name)) = (port, twin) else { continue };
        let leaves = ["return", "rewrite", "if", "error_page"].iter().any(|d| {
            s.named_inside(server, d).any(|n| {
                let text = s.text(n);
                text.contains("https") || text.contains("$scheme") || text.contains("forwarded_proto")
            })
        });
        let taker = routes::chosen(s, server, "/x");
        let files = s.effective(Some(taker), "root").is_some() && s.child(Some(server), "return").is_none();
        let answers = s.child(Some(taker), "return").is_none() && (pass_of(s, taker).is_some() || files);
        let included = s.child(Some(server), "include").is_some();
        if answers && !leaves && !included && s.child(Some(server), "return").is_none() {
            found(s.span(l), format!("{name} has TLS in another server, and answers here without it"));
        }
    }
}

/// Reports sockets beside a certificate that do not speak TLS.
fn plain_sockets(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    let with_tls: HashSet<&str> = s.all("listen").filter(|l| s.has(*l, "ssl")).map(|l| s.arg(l, 0)).collect();
    for server in http_servers(s).filter(|b| !is_local(s, *b)) {
        let own =
            s.child(Some(server), "ssl_certificate").is_some() && !super::secrecy::speaks_tls(s, server);
        let mut listens = s.children(Some(server), "listen").peekable();
        let port = |l: usize| s.arg(l, 0).rsplit(':').next().unwrap_or_default();
        let plain = |l: usize| {
            !["ssl", "quic", "proxy_protocol"].iter().any(|w| s.has(l, w))
                && !with_tls.contains(s.arg(l, 0))
                && port(l).parse::<u16>().is_ok_and(|p| p != 80 && p != 443)
        };
        let first = listens.peek().copied();
        let included = s.child(Some(server), "include").is_some();
        if let Some(l) = first.filter(|_| own && !included && listens.all(plain)) {
            found(
                s.span(l),
                "without \"ssl\" it speaks plain HTTP, and the certificate is for nobody".to_owned(),
            );
        }
    }
}

/// Returns `true` if an address is one of the own network, and not of this machine.
fn is_near(address: &str) -> bool {
    let second = |rest: &str| rest.split('.').next().and_then(|n| n.parse::<u8>().ok());
    address.starts_with("10.")
        || address.starts_with("192.168.")
        || address.strip_prefix("172.").and_then(second).is_some_and(|n| (16..32).contains(&n))
}

/// Reports TLS to machines of the own network whose certificates nobody looks at, for TCP.
fn unverified_near(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("proxy_pass").filter(|n| s.around(*n, "stream").is_some()) {
        let block = s.parent(n);
        let group = group_of(s, s.arg(n, 0)).filter(|g| s.around(*g, "stream").is_some());
        let servers = group.and_then(|g| s.child(Some(g), "server"));
        let address = servers.map_or_else(|| s.arg(n, 0), |server| s.arg(server, 0));
        let told = s.effective(block, "proxy_ssl_verify").is_some();
        if s.on(block, "proxy_ssl") && !told && is_near(address) {
            found(s.span(n), format!("whoever answers at {address} is believed"));
        }
    }
}

/// Reports applications below a prefix of which they know nothing, whose redirects nobody corrects.
fn redirects_inside(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("proxy_redirect").filter(|n| s.arg(*n, 0) == "off") {
        let Some(l) = s.parent(n).filter(|p| s.is(*p, "location")) else { continue };
        let prefix = routes::prefix(s, l).filter(|p| p.len() > 1);
        let url = s.child(Some(l), "proxy_pass").map(|p| s.arg(p, 0)).unwrap_or_default();
        let path = url.split_once("://").and_then(|(_, rest)| rest.split_once('/')).map(|(_, path)| path);
        let told = s.all_effective(Some(l), "proxy_set_header").any(|h| {
            let name = s.arg(h, 0).to_ascii_lowercase();
            ["prefix", "script", "base", "root", "path"].iter().any(|w| name.contains(w))
        });
        let Some(prefix) = prefix.filter(|_| path == Some("") && !told) else { continue };
        found(s.span(n), format!("a redirect of the application to /x leads out of {prefix}"));
    }
}

/// Reports programs of `auth_request` that are told of a body which is not sent.
fn lengths_promised(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for &l in s.asked() {
        let off = s.effective(Some(l), "proxy_pass_request_body").is_some_and(|b| s.arg(b, 0) == "off");
        let emptied = s
            .all_effective(Some(l), "proxy_set_header")
            .any(|h| s.arg(h, 0).eq_ignore_ascii_case("content-length"));
        let fields = s.effective(Some(l), "proxy_pass_request_headers").is_none_or(|f| s.arg(f, 0) != "off");
        let pass = s.child(Some(l), "proxy_pass").filter(|_| off && !emptied && fields);
        if let Some(pass) = pass.filter(|_| s.child(Some(l), "include").is_none()) {
            found(
                s.span(pass),
                "the field Content-Length of the client promises a body that is not sent".to_owned(),
            );
        }
    }
}

/// Reports refusals of one server that are asked for at all others.
fn refusals_repeated(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for family in FAMILIES.into_iter().chain(["grpc"]) {
        for n in s.all(&format!("{family}_next_upstream")) {
            let refusal = s.has(n, "http_403");
            let missing = s.has(n, "http_404") && is_wide(s, n);
            if refusal || missing {
                let code = if refusal { 403 } else { 404 };
                found(s.span(n), format!("each answer with {code} is asked for at all servers"));
            }
        }
    }
}

checks! { Check;
    "grpc-by-proxy" |s, _, found| calls_by_proxy(s, found),
    "certificate-claimed" |s, _, found| persons_claimed(s, found),
    "customer-by-field" |s, _, found| customers_by_field(s, found),
    "fail-timeout-odd" |s, _, found| failure_times(s, found),
    "hash-uneven" |s, _, found| uneven_keys(s, found),
    "retry-refusals" |s, _, found| refusals_repeated(s, found),
    "plain-twin" |s, _, found| plain_twins(s, found),
    "certificate-without-ssl" |s, _, found| plain_sockets(s, found),
    "stream-unverified-near" |s, _, found| unverified_near(s, found),
    "redirect-inside" |s, _, found| redirects_inside(s, found),
    "auth-length-passed" |s, _, found| lengths_promised(s, found),
}
