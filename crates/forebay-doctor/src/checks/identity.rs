//! Checks of identity: who the client is, by what the server believes.

use super::ask::{carried, client_field, http_server};
use super::{Check, checks};
use crate::scene::Scene;
use forebay_conf::tree::Span;
use std::net::IpAddr;

/// Fields by which proxies name the client.
const ADDRESS_FIELDS: [&str; 7] = [
    "http_x_forwarded_for",
    "http_x_real_ip",
    "http_forwarded",
    "http_true_client_ip",
    "http_cf_connecting_ip",
    "http_x_client_ip",
    "http_client_ip",
];

/// Returns the variable of an address field that a text carries.
fn address_field(s: &Scene<'_>, block: Option<usize>, text: &str) -> Option<String> {
    carried(s, block, text).into_iter().find(|v| ADDRESS_FIELDS.contains(&v.as_str()))
}

/// Returns `true` if a network has more than a proxy could have.
fn is_everybody(network: &str) -> bool {
    let (address, bits) = network.split_once('/').unwrap_or((network, ""));
    let Ok(ip) = address.parse::<IpAddr>() else { return false };
    let Ok(bits) = bits.parse::<u32>() else { return false };
    match ip {
        IpAddr::V4(ip) => bits < 8 || (bits == 8 && !ip.is_private() && !ip.is_loopback()),
        IpAddr::V6(ip) => bits < 16 && !(ip.is_unique_local() && bits >= 7),
    }
}

/// Returns `true` if addresses in a field are replaced by those that proxies vouch for.
fn trusts_proxies(s: &Scene<'_>) -> bool {
    s.all("set_real_ip_from").next().is_some()
}

/// Returns the variable with the arguments of a request in the key of a limit.
fn arguments(s: &Scene<'_>, n: usize) -> Option<String> {
    let all = carried(s, s.parent(n), s.arg(n, 0));
    all.into_iter().find(|v| matches!(v.as_str(), "request_uri" | "args" | "query_string" | "request"))
}

/// Reports keys of limits that the client writes.
fn keys(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in ["limit_req_zone", "limit_conn_zone"].into_iter().flat_map(|name| s.all(name)) {
        if let Some(v) = client_field(s, s.parent(n), s.arg(n, 0)) {
            found(s.arg_span(n, 0), format!("a new ${v} with each request has a limit of its own"));
        } else if let Some(v) = arguments(s, n) {
            found(
                s.arg_span(n, 0),
                format!("other arguments behind the path make a new ${v}, with a limit of its own"),
            );
        }
    }
}

/// Names of the environment by which applications know the client.
const CLIENT_FIELDS: [&str; 7] = [
    "x-real-ip",
    "x-forwarded-for",
    "x-client-ip",
    "true-client-ip",
    "cf-connecting-ip",
    "x-cluster-client-ip",
    "forwarded",
];

/// Reports fields for the upstream that repeat what the client says about its address.
fn passed(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in ["proxy_set_header", "grpc_set_header"].into_iter().flat_map(|name| s.all(name)) {
        let is_address = CLIENT_FIELDS.iter().any(|f| s.arg(n, 0).eq_ignore_ascii_case(f));
        let ours = s.arg(n, 1).contains("remote_addr");
        if let Some(v) = address_field(s, s.parent(n), s.arg(n, 1)).filter(|_| is_address && !ours) {
            found(
                s.arg_span(n, 1),
                format!("the application takes what the client wrote into ${v} for its address"),
            );
        }
    }
    for n in ["fastcgi_param", "uwsgi_param", "scgi_param"].into_iter().flat_map(|name| s.all(name)) {
        let is_address = matches!(s.arg(n, 0), "REMOTE_ADDR" | "HTTP_X_REAL_IP" | "HTTP_X_FORWARDED_FOR");
        if let Some(v) = client_field(s, s.parent(n), s.arg(n, 1)).filter(|_| is_address) {
            found(
                s.arg_span(n, 1),
                format!("the application takes what the client wrote into ${v} for {}", s.arg(n, 0)),
            );
        }
    }
}

/// Reports decisions by an address that the client wrote.
fn judged(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s.all("geo").filter(|n| s.args(*n).len() == 2) {
        if let Some(v) = client_field(s, s.parent(n), s.arg(n, 0)) {
            found(s.arg_span(n, 0), format!("${v} is whatever the client writes"));
        }
    }
    for n in s.all("if") {
        let condition = s.text(n);
        if let Some(v) = ADDRESS_FIELDS.iter().find(|v| condition.contains(&format!("${v}"))) {
            found(s.span(n), format!("${v} is whatever the client writes"));
        }
    }
    for n in s.all("map").filter(|n| ADDRESS_FIELDS.contains(&s.arg(*n, 0).trim_start_matches('$'))) {
        let name = s.last_arg(n);
        let decides = |c: usize| s.is(c, "if") || s.is(c, "limit_req_zone");
        if s.with_text(name).any(decides) {
            found(s.arg_span(n, 0), format!("{} is whatever the client writes", s.arg(n, 0)));
        }
    }
}

/// Reports servers whose applications get a name for the site that is not the client's.
fn hosts(s: &Scene<'_>, found: &mut dyn FnMut(Span, String)) {
    for n in s
        .all("proxy_set_header")
        .chain(s.all("grpc_set_header"))
        .filter(|n| s.arg(*n, 0).eq_ignore_ascii_case("host"))
    {
        let value = s.arg(n, 1);
        let bare = value.split(':').next().unwrap_or_default();
        if bare == "localhost" || bare.parse::<IpAddr>().is_ok() {
            found(s.arg_span(n, 1), format!("links and redirects of the application lead to {bare}"));
        }
    }
}

/// Returns `true` if a request is one of a program that looks whether the application lives, or for a file in which no link is built.
fn is_probe(s: &Scene<'_>, n: usize) -> bool {
    const PROBES: [&str; 10] =
        ["health", "healthz", "healthcheck", "ping", "ready", "readyz", "livez", "static", "assets", "_next"];
    let path = s.parent(n).map_or("", |l| s.last_arg(l));
    path.split(|c: char| !c.is_ascii_alphanumeric() && c != '_').any(|word| PROBES.contains(&word))
}

/// Returns `true` if an address is that of a server of the same file, which chooses nothing by a name.
fn is_own(s: &Scene<'_>, url: &str) -> bool {
    let group = super::ask::group_of(s, url);
    let servers = group.into_iter().flat_map(|g| s.children(Some(g), "server")).map(|n| s.arg(n, 0));
    let port = |address: &str| {
        let host = address.split_once("://").map_or(address, |(_, rest)| rest).split('/').next()?;
        Some(host.rsplit_once(':')?.1.to_owned())
    };
    let listens = |port: &str, n: usize| s.arg(n, 0) == port || s.arg(n, 0).ends_with(&format!(":{port}"));
    std::iter::once(url).chain(servers).filter_map(port).any(|port| {
        let mut of_it = super::ask::http_servers(s)
            .filter(|server| s.children(Some(*server), "listen").any(|l| listens(&port, l)))
            .peekable();
        of_it.peek().is_some() && of_it.all(|server| s.child(Some(server), "server_name").is_none())
    })
}

checks! { Check;
    "real-ip-any" |s, _, found| for n in s.all("set_real_ip_from").filter(|n| is_everybody(s.arg(*n, 0))) {
        found(s.arg_span(n, 0), "everybody may claim any address".to_owned());
    },
    "real-ip-unused" |s, _, found| for n in s.all("real_ip_header") {
        let below = s.parent(n).is_some_and(|p| s.named_inside(p, "set_real_ip_from").next().is_some());
        if s.effective(s.parent(n), "set_real_ip_from").is_none() && !below {
            found(s.span(n), "no set_real_ip_from says whose word counts".to_owned());
        }
    },
    "limit-key-client" |s, _, found| keys(s, found),
    "client-address-passed" |s, _, found| passed(s, found),
    "address-from-field" |s, _, found| if !trusts_proxies(s) {
        judged(s, found);
    },
    "host-localhost" |s, _, found| hosts(s, found),
    "host-missing" |s, _, found| for n in s.all("proxy_pass").filter(|n| http_server(s, *n).is_some()) {
        let block = s.parent(n);
        let is_host = |h: usize| s.arg(h, 0).eq_ignore_ascii_case("host") && s.arg(h, 1) != "$proxy_host";
        let sent = s.all_effective(block, "proxy_set_header").any(is_host);
        let url = s.arg(n, 0);
        let host = url.split_once("://").map_or("", |(_, rest)| rest.split(['/', ':']).next().unwrap_or_default());
        let ours = super::ask::group_of(s, url).is_some() || host == "localhost" || host.parse::<IpAddr>().is_ok();
        if !sent && ours && !s.is_partial() && !is_probe(s, n) && !is_own(s, url) {
            found(s.arg_span(n, 0), format!("the application is told that it is called \"{host}\""));
        }
    },
}
