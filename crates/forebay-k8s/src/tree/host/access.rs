//! The checks of access in a location, and the locations that they need.

use super::super::{merge, node};
use super::{Out, fields, is_exempt, location, policy_id, route_id};
use crate::groups::short_hash;
use crate::ingress::Globals;
use crate::model::{Authority, Limit, LimitKind, Limits, Policy, Route};
use crate::reach;
use forebay_conf::Node;

/// Adds networks, limits, passwords and conditions on certificates.
pub(super) fn checks(out: &mut Out<'_>, route: &Route, nodes: &mut Vec<Node>) {
    let policy = &route.policy;
    if let Some(clients) = &policy.clients {
        let verify = out.server.tls.clients.as_ref().map(|c| c.verify.as_str());
        if verify == Some("on") || clients.required {
            // Requests without TLS have shown none.
            nodes.push(
                node("if", ["($ssl_client_verify", "!=", "SUCCESS)"]).block(vec![node("return", ["403"])]),
            );
        }
    }
    let own = policy.clients.as_ref().and_then(|clients| clients.match_cn.as_deref());
    nodes.extend(own.map_or_else(|| subject(out, route.path.path()), |pattern| Some(mismatch(pattern))));
    nodes.extend(policy.networks.deny.iter().map(|n| node("deny", [n.as_str()])));
    if !policy.networks.allow.is_empty() {
        nodes.extend(policy.networks.allow.iter().map(|n| node("allow", [n.as_str()])));
        nodes.push(node("deny", ["all"]));
    }
    limits(&policy.limits, nodes);
    let exempt = is_exempt(out.globals, "no-auth-locations", route.path.path());
    if let Some(passwords) = policy.passwords.as_ref().filter(|_| !exempt) {
        nodes.push(node("auth_basic", [passwords.realm.as_str()]));
        nodes.push(node("auth_basic_user_file", [passwords.path.as_str()]));
    }
}

/// Makes the check of the client's subject that holds for all paths of a host, as in ingress-nginx.
pub(super) fn subject(out: &Out<'_>, path: &str) -> Option<Node> {
    let clients =
        out.server.tls.clients.as_ref().filter(|_| !is_exempt(out.globals, "no-auth-locations", path));
    clients?.match_cn.as_deref().map(mismatch)
}

/// Adds the same check to the locations of a snippet. Locations in others do not inherit it.
pub(super) fn subject_of_snippet(out: &Out<'_>, nodes: &mut [Node]) {
    for location in nodes.iter_mut().filter(|n| n.name == b"location") {
        let path = location.args.last().map(|w| String::from_utf8_lossy(w).into_owned()).unwrap_or_default();
        let Some(block) = &mut location.block else { continue };
        subject_of_snippet(out, block);
        if let Some(check) = subject(out, &path) {
            block.insert(0, check);
        }
    }
}

fn mismatch(pattern: &str) -> Node {
    let words = ["($ssl_client_s_dn".to_owned(), "!~".into(), format!("{pattern})")];
    node("if", words).block(vec![node("return", ["403"])])
}

/// Makes the zones of the limits of an Ingress.
pub(super) fn zones(policy: &Policy, globals: &Globals, http: &mut Vec<Node>) {
    let (id, limits) = (&policy.id, &policy.limits);
    let general = globals.settings.get("limit-conn-zone-variable");
    let key = if limits.free.is_empty() {
        general.to_owned()
    } else {
        let mut entries = vec![node("default", ["0"])];
        entries.extend(limits.free.iter().map(|n| node(n, ["1"])));
        http.push(node("geo", ["$remote_addr".to_owned(), format!("$limit_free_{id}")]).block(entries));
        let entries = vec![node("0", [general]), node("1", [""])];
        http.push(node("map", [format!("$limit_free_{id}"), format!("$limit_key_{id}")]).block(entries));
        format!("$limit_key_{id}")
    };
    http.extend(limits.limits.iter().map(|l| zone(l, &key)));
}

fn limits(limits: &Limits, nodes: &mut Vec<Node>) {
    for limit in &limits.limits {
        let zone = &limit.zone;
        nodes.push(match limit.kind {
            LimitKind::Connections => node("limit_conn", [zone.clone(), limit.number.to_string()]),
            _ => node(
                "limit_req",
                [format!("zone={zone}"), format!("burst={}", limit.burst), "nodelay".into()],
            ),
        });
    }
}

fn zone(limit: &Limit, key: &str) -> Node {
    let zone = format!("zone={}:5m", limit.zone);
    let unit = match limit.kind {
        LimitKind::Connections => return node("limit_conn_zone", [key, zone.as_str()]),
        LimitKind::Second => "r/s",
        LimitKind::Minute => "r/m",
    };
    let rate = format!("rate={}{unit}", limit.number);
    node("limit_req_zone", [key, zone.as_str(), rate.as_str()]).args(limit.cluster.then_some("sync"))
}

/// Adds the service that decides on requests. Returns the fields of its answers that the upstream gets.
pub(super) fn authority(out: &mut Out<'_>, route: &Route, nodes: &mut Vec<Node>) -> Vec<(String, String)> {
    let Some(authority) = &route.policy.authority else { return Vec::new() };
    if is_exempt(out.globals, "no-auth-locations", route.path.path()) {
        return Vec::new();
    }
    let id = authority_id(out, route, authority);
    let path = format!("/_external-auth-{id}");
    nodes.push(node("auth_request", [path.as_str()]));
    nodes.push(node("auth_request_set", ["$auth_cookie", "$upstream_http_set_cookie"]));
    // An `add_header` would end the inheritance of those that stand further out. These are the statuses that it is for.
    let mut words = vec!["-a"];
    if !authority.always_set_cookie {
        words.extend(["-s", "200 201 204 206 301 302 303 304 307 308"]);
    }
    nodes.push(node("more_set_headers", words).arg("Set-Cookie: $auth_cookie"));
    let fields = response_fields(authority, nodes);
    if authority.signin.is_some() {
        nodes.push(node("error_page", ["401".to_owned(), "=".into(), format!("@signin_{id}")]));
    }
    if out.once(&path) {
        make_authority(out, route, authority, &id);
        make_signin(out, route, authority, &id);
    }
    fields
}

/// Returns the name of a service. What is kept belongs to one path, so a service whose answers are kept is asked from a location of
/// the path.
fn authority_id(out: &Out<'_>, route: &Route, authority: &Authority) -> String {
    let policy = policy_id(out.server, route);
    match authority.cache {
        Some(_) => short_hash(&format!("{} {policy} {}", route_id(out.server, route), authority.url)),
        None => policy,
    }
}

/// Adds the variables of the fields of a service's answers. Returns the fields with their variables.
fn response_fields(authority: &Authority, nodes: &mut Vec<Node>) -> Vec<(String, String)> {
    let mut fields = Vec::new();
    for (i, name) in authority.response_headers.iter().enumerate() {
        let variable = format!("$authheader{i}");
        let source = name.to_ascii_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "_");
        nodes.push(node("auth_request_set", [variable.clone(), format!("$upstream_http_{source}")]));
        fields.push((name.clone(), variable));
    }
    fields
}

/// Makes the location in which a service is asked.
fn make_authority(out: &mut Out<'_>, route: &Route, authority: &Authority, id: &str) {
    let none: [&str; 0] = [];
    let mut body = vec![node("internal", none)];
    if !out.globals.settings.flag("enable-auth-access-log") {
        body.push(node("access_log", ["off"]));
    }
    body.push(node("proxy_pass_request_body", ["off"]));
    body.extend(fields::with(out, &request_fields(authority)));
    if let Some(method) = &authority.method {
        body.push(node("proxy_method", [method.as_str()]));
    }
    body.extend(authority.cache.is_none().then(|| node("proxy_buffering", ["off"])));
    body.push(node("proxy_request_buffering", ["on"]));
    body.push(node("proxy_ssl_server_name", ["on"]));
    if let Some((key, times)) = &authority.cache {
        body.push(node("proxy_buffering", ["on"]));
        body.push(node("proxy_cache", ["auth_cache"]));
        // An answer is kept although it sets a cookie.
        body.push(node("proxy_ignore_headers", ["Set-Cookie"]));
        body.push(node("proxy_cache_key", [format!("{id} $host {key}")]));
        body.extend(times.iter().map(|words| node("proxy_cache_valid", words.iter().map(String::as_str))));
    }
    body = merge::join(body, &authority.snippet);
    match keepalive(out, authority, id) {
        Some(pass) => body.push(pass),
        None => body.extend(pass_url(&authority.url)),
    }
    location::add_helper(out, route, ["=".to_owned(), format!("/_external-auth-{id}")], body);
}

/// Returns the fields that a service gets beside the general ones.
fn request_fields(authority: &Authority) -> Vec<(String, String)> {
    let redirect = authority.redirect.as_deref().unwrap_or("$request_uri");
    let general = [
        ("Content-Length", ""),
        ("Upgrade", ""),
        ("Connection", ""),
        ("Host", &authority.host),
        ("X-Original-URI", "$request_uri"),
        ("X-Original-URL", "$pass_access_scheme://$best_http_host$request_uri"),
        ("X-Original-Method", "$request_method"),
        ("X-Sent-From", "nginx-ingress-controller"),
        ("X-Auth-Request-Redirect", redirect),
    ];
    let is_new = |name: &str| !authority.headers.iter().any(|(own, _)| own.eq_ignore_ascii_case(name));
    let general = general.into_iter().filter(|(name, _)| is_new(name));
    let general = general.map(|(name, value)| (name.to_owned(), value.to_owned()));
    general.chain(authority.headers.iter().cloned()).collect()
}

/// Makes the location that sends clients to the page to log in at.
fn make_signin(out: &mut Out<'_>, route: &Route, authority: &Authority, id: &str) {
    let Some((page, parameter)) = &authority.signin else { return };
    let separator = if page.contains('?') { '&' } else { '?' };
    let query = page.split_once('?').map_or("", |(_, query)| query);
    let named = query.split('&').any(|pair| pair.split('=').next() == Some(parameter.as_str()));
    let back = "$pass_access_scheme://$best_http_host$escaped_request_uri";
    let target = if named { page.clone() } else { format!("{page}{separator}{parameter}={back}") };
    let none: [&str; 0] = [];
    let mut body = vec![node("internal", none), node("add_header", ["Set-Cookie", "$auth_cookie"])];
    if let Some(cors) = &route.policy.cors {
        body.extend(location::cors_answers(out, route, cors));
    }
    body.push(node("return", ["302", target.as_str()]));
    location::add_helper(out, route, [format!("@signin_{id}")], body);
}

/// Makes the group of a service with connections that are kept open, and the directive that passes to it.
fn keepalive(out: &mut Out<'_>, authority: &Authority, id: &str) -> Option<Node> {
    let (connections, requests, timeout) = authority.keepalive?;
    let url = reach::split(&authority.url)?;
    let group = format!("auth_{id}");
    let port = url
        .port
        .map_or_else(|| if url.scheme == "https" { "443".into() } else { "80".to_owned() }, str::to_owned);
    let address = url.host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_ok();
    let server = node("server", [format!("{}:{port}", url.host)]).args((!address).then_some("resolve"));
    out.http.push(node("upstream", [group.as_str()]).block(vec![
        node("zone", [group.as_str(), "64k"]),
        server,
        node("keepalive", [connections.to_string()]),
        node("keepalive_requests", [requests.to_string()]),
        node("keepalive_timeout", [format!("{timeout}s")]),
    ]));
    let rest = if url.rest.is_empty() { "/" } else { url.rest };
    Some(node("proxy_pass", [format!("{}://{group}{rest}", url.scheme)]))
}

/// Makes the directives that pass a request to a URL. Through a variable its host is resolved when it is needed.
pub(super) fn pass_url(url: &str) -> Vec<Node> {
    let host = reach::split(url).map(|u| u.host.trim_matches(['[', ']']).to_owned()).unwrap_or_default();
    let fixed = host.parse::<std::net::IpAddr>().is_ok() && !url.contains('$');
    if fixed {
        let rest = reach::split(url).is_some_and(|u| u.rest.is_empty());
        return vec![node("proxy_pass", [if rest { format!("{url}/") } else { url.to_owned() }])];
    }
    vec![node("set", ["$target", url]), node("proxy_pass", ["$target"])]
}
