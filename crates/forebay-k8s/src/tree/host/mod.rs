//! The file of one host: its server, and what that needs in `http`.

mod access;
mod beside;
mod canary;
pub(in crate::tree) mod fields;
pub(crate) mod guard;
pub(in crate::tree) mod location;

pub(crate) use fields::{lookalikes, other_spellings};
pub(crate) use location::collect;

use super::{addresses, merge, node};
use crate::groups::short_hash;
use crate::ingress::Globals;
use crate::model::{Action, HostName, PathMatch, Route, Server};
use forebay_conf::Node;
use std::collections::BTreeSet;

/// Directives of a file while it is made.
pub(super) struct Out<'a> {
    globals: &'a Globals,
    server: &'a Server,
    /// Directives of `http`, before the server.
    http: Vec<Node>,
    /// Locations that routes need beside their own.
    helpers: Vec<Node>,
    /// Names of what is in the two lists above, so that it is there once.
    made: BTreeSet<String>,
}

impl Out<'_> {
    /// Returns `true` the first time that a name is asked for.
    fn once(&mut self, name: &str) -> bool {
        self.made.insert(name.to_owned())
    }
}

/// Makes the directives of a host's file.
pub fn server(server: &Server, globals: &Globals) -> Vec<Node> {
    let mut out = Out { globals, server, http: Vec::new(), helpers: Vec::new(), made: BTreeSet::new() };
    let mut nodes = own_directives(server, globals);
    // Two locations of the same words are an error. Those of a snippet count, and those of the ConfigMap's before others.
    let mut theirs = BTreeSet::new();
    for snippet in [&globals.snippets.server, &server.snippet] {
        let fresh = |n: &&Node| n.name != b"location" || theirs.insert(n.args.clone());
        let mut own: Vec<Node> = snippet.iter().filter(fresh).cloned().collect();
        access::subject_of_snippet(&out, &mut own);
        nodes = merge::join(nodes, &own);
    }
    for policy in &server.zones {
        access::zones(policy, globals, &mut out.http);
    }
    let own = locations(&mut out);
    if server.host == HostName::Any {
        status(&mut out);
    }
    let taken = |n: &Node| n.name == b"location" && theirs.contains(&n.args);
    nodes.extend(out.helpers.into_iter().chain(own).filter(|n| !taken(n)));
    let mut http = out.http;
    http.push(Node::new("server").block(nodes));
    http.extend(redirecting(server, globals));
    http
}

/// Makes the directives of a server that come before those of snippets.
fn own_directives(server: &Server, globals: &Globals) -> Vec<Node> {
    let names = std::iter::once(server.host.as_str()).chain(server.aliases.iter().map(String::as_str));
    let mut nodes = vec![node("server_name", names.map(one_label))];
    listen(server, globals, &mut nodes);
    certificates(server, globals, &mut nodes);
    if server.tls.clients.is_some() {
        // For locations of snippets.
        let certificate = fields::Family::Proxy.set(&fields::certificate(server, false));
        nodes.extend(merge::join(fields::Family::Proxy.set(&globals.headers), &certificate));
    }
    nodes.extend(blocked(globals));
    nodes
}

/// Makes the refusal of clients that the ConfigMap names.
fn blocked(globals: &Globals) -> Vec<Node> {
    let lists = [("block-user-agents", "($block_user_agent)"), ("block-referers", "($block_referer)")];
    let used = lists.iter().filter(|(list, _)| globals.settings.list(list).any(super::main::is_pattern));
    used.map(|(_, variable)| node("if", [*variable]).block(vec![node("return", ["403"])])).collect()
}

/// Returns the name of a server for a host. A wildcard of an Ingress stands for one label, that of nginx for any number.
fn one_label(host: &str) -> String {
    host.strip_prefix('*').map_or_else(|| host.to_owned(), |rest| format!("+{rest}"))
}

fn listen(server: &Server, globals: &Globals, nodes: &mut Vec<Node>) {
    let default = server.host == HostName::Any;
    nodes.extend(listen_http(globals, default));
    if serves_tls(server, globals) {
        nodes.extend(listen_https(globals, default));
    }
}

/// Returns the `listen` lines of a server at the port for HTTP. `default`: it gets requests for hosts without a server.
pub(crate) fn listen_http(globals: &Globals, default: bool) -> Vec<Node> {
    let proxy_protocol = globals.settings.flag("use-proxy-protocol").then_some("proxy_protocol");
    let line = |address| {
        Node::new("listen").arg(address).args(default.then_some("default_server")).args(proxy_protocol)
    };
    addresses(globals, globals.options.http_port).into_iter().map(line).collect()
}

/// Returns the `listen` lines of a server at the port for HTTPS.
pub(crate) fn listen_https(globals: &Globals, default: bool) -> Vec<Node> {
    let mut lines = listen_tls(globals, default);
    if globals.settings.flag("use-http3") {
        let default = default.then_some("default_server");
        let line = |address: String| node("listen", [address.as_str(), "quic"]).args(default);
        lines.extend(addresses(globals, globals.options.https_port).into_iter().map(line));
    }
    lines
}

fn listen_tls(globals: &Globals, default: bool) -> Vec<Node> {
    let default = default.then_some("default_server");
    if globals.options.enable_ssl_passthrough {
        // The stream block listens at the port, and tells the address of the client.
        let address = format!("127.0.0.1:{}", globals.options.ssl_passthrough_proxy_port);
        return vec![node("listen", [address.as_str(), "ssl", "proxy_protocol"]).args(default)];
    }
    let proxy_protocol = globals.settings.flag("use-proxy-protocol").then_some("proxy_protocol");
    let line = |address: String| node("listen", [address.as_str(), "ssl"]).args(default).args(proxy_protocol);
    addresses(globals, globals.options.https_port).into_iter().map(line).collect()
}

/// Returns `true` if a server has a certificate, its own or the default one. The server of all other hosts has none of its own: it
/// refuses handshakes if there is no default one.
fn serves_tls(server: &Server, globals: &Globals) -> bool {
    server.tls.certificate.is_some() || globals.default_certificate || server.host == HostName::Any
}

fn certificates(server: &Server, globals: &Globals, nodes: &mut Vec<Node>) {
    let tls = &server.tls;
    let refuses = globals.settings.flag("ssl-reject-handshake") || !globals.default_certificate;
    if server.host == HostName::Any && tls.certificate.is_none() && refuses {
        nodes.push(node("ssl_reject_handshake", ["on"]));
    }
    // The default certificate is in `http`.
    if let Some(files) = &tls.certificate {
        nodes.push(node("ssl_certificate", [files.chain.path.as_str()]));
        nodes.push(node("ssl_certificate_key", [files.key.path.as_str()]));
    }
    if let Some(ciphers) = &tls.ciphers {
        nodes.push(node("ssl_ciphers", [ciphers.as_str()]));
    }
    if let Some(prefer) = tls.prefer_server_ciphers {
        nodes.push(node("ssl_prefer_server_ciphers", [if prefer { "on" } else { "off" }]));
    }
    if let Some(clients) = tls.clients.as_ref().filter(|_| serves_tls(server, globals)) {
        if let Some(file) = &clients.authorities {
            nodes.push(node("ssl_client_certificate", [file.path.as_str()]));
            nodes.push(node("ssl_verify_client", [clients.verify.as_str()]));
            nodes.push(node("ssl_verify_depth", [clients.depth.to_string()]));
            nodes.extend(clients.revoked.iter().map(|f| node("ssl_crl", [f.path.as_str()])));
        }
        nodes.extend(clients.error_page.iter().map(|p| node("error_page", ["495", "496", p.as_str()])));
    }
    hsts(server, globals, nodes);
}

fn hsts(server: &Server, globals: &Globals, nodes: &mut Vec<Node>) {
    let s = &globals.settings;
    if !s.flag("hsts") || !(server.tls.certificate.is_some() || server.wants_tls) {
        return;
    }
    // An empty value, as for requests without TLS, removes the field.
    nodes.push(node("more_set_headers", ["Strict-Transport-Security: $hsts_value"]));
}

fn locations(out: &mut Out<'_>) -> Vec<Node> {
    let server = out.server;
    let mut nodes = Vec::new();
    let mut routes: Vec<&Route> = server.routes.iter().collect();
    // Of regular expressions the first that matches counts, so the longest path comes first, and an exact one before others.
    routes.sort_by_key(|r| (std::cmp::Reverse(r.path.path().len()), !matches!(r.path, PathMatch::Exact(_))));
    nodes.extend(app_root(out));
    let is_root = |r: &&Route| r.path.path() == "/" && !matches!(r.path, PathMatch::Exact(_));
    let has_root = routes.iter().any(is_root);
    for route in routes {
        let body = location::body(out, route);
        for words in conditions(server, route) {
            nodes.push(node("location", words).block(body.clone()));
        }
    }
    if !has_root {
        nodes.push(node("location", ["/"]).block(location::unrouted(out)));
    }
    nodes.extend(probes(server));
    nodes
}

/// Makes the redirect of `app-root`, unless a route has the path `/` alone.
fn app_root(out: &Out<'_>) -> Option<Node> {
    let root = out.server.app_root.as_ref()?;
    if out.server.routes.iter().any(|r| matches!(&r.path, PathMatch::Exact(p) if p == "/")) {
        return None;
    }
    let target = format!("$pass_access_scheme://$best_http_host{}", root.path);
    let mut body = location::variables(out, None, &[]);
    body.extend(location::redirect(out, "/", root.https));
    body.extend(access::subject(out, "/"));
    body.push(node("return", ["302", target.as_str()]));
    Some(node("location", ["=", "/"]).block(body))
}

/// Adds `/nginx_status`, which monitors ask the default server for. The address of the connection decides: clients may name others in
/// fields.
fn status(out: &mut Out<'_>) {
    const PATH: &str = "/nginx_status";
    if out.server.routes.iter().any(|r| r.path.path() == PATH) {
        return;
    }
    let s = &out.globals.settings;
    let mut entries = vec![node("default", ["0"])];
    for key in ["nginx-status-ipv4-whitelist", "nginx-status-ipv6-whitelist"] {
        let networks = crate::value::cidrs(s.get(key)).unwrap_or_default();
        let fresh =
            networks.iter().filter(|n| !s.refused(key) && !entries.iter().any(|e| e.name == n.as_bytes()));
        let more: Vec<Node> = fresh.map(|n| node(n, ["1"])).collect();
        entries.extend(more);
    }
    out.http.push(node("geo", ["$realip_remote_addr", "$status_allowed"]).block(entries));
    let refused = node("if", ["($status_allowed", "=", "0)"]).block(vec![node("return", ["403"])]);
    let none: [&str; 0] = [];
    let body = vec![refused, node("access_log", ["off"]), node("stub_status", none)];
    out.helpers.push(node("location", ["=", PATH]).block(body));
}

/// Path that balancers ask whether this node answers. ingress-nginx has it at all its ports.
const PROBES: &str = "/healthz";

/// Makes the answer for the probes of balancers, in servers that may get requests for any host.
fn probes(server: &Server) -> Option<Node> {
    let taken = server.routes.iter().any(|r| r.path.path() == PROBES);
    // A regular expression may fit the address that balancers ask.
    let wide = server.host == HostName::Any || server.aliases.iter().any(|name| name.starts_with('~'));
    (wide && !taken).then(|| {
        node("location", ["=", PROBES]).block(vec![node("access_log", ["off"]), node("return", ["200"])])
    })
}

/// Returns the words of the `location`s of a route.
fn conditions(server: &Server, route: &Route) -> Vec<Vec<String>> {
    let path = route.path.path();
    if server.regex {
        let slash = if route.slash && !path.ends_with('/') { "/" } else { "" };
        return vec![vec!["~*".into(), format!("^{path}{slash}")]];
    }
    match &route.path {
        PathMatch::Exact(path) => vec![vec!["=".into(), path.clone()]],
        PathMatch::Start(path) => vec![vec![path.clone()]],
        PathMatch::Prefix(path) if path == "/" => vec![vec!["/".into()]],
        PathMatch::Prefix(path) => {
            let below = vec![format!("{path}/")];
            let exact = PathMatch::Exact(path.clone());
            let start = PathMatch::Start(format!("{path}/"));
            let taken = |p: &PathMatch| server.routes.iter().any(|r| r.path == *p);
            let mut all = Vec::new();
            if !taken(&exact) {
                all.push(vec!["=".into(), path.clone()]);
            }
            if !taken(&start) {
                all.push(below);
            }
            all
        }
    }
}

/// Makes the server of the name that redirects to a host.
fn redirecting(server: &Server, globals: &Globals) -> Option<Node> {
    let from = server.redirected_from.as_ref()?;
    let mut nodes = vec![node("server_name", [from.as_str()])];
    listen(server, globals, &mut nodes);
    if let Some(files) = &server.tls.certificate {
        nodes.push(node("ssl_certificate", [files.chain.path.as_str()]));
        nodes.push(node("ssl_certificate_key", [files.key.path.as_str()]));
    }
    nodes.extend(blocked(globals));
    let code = globals.settings.get("http-redirect-code");
    let target = format!("$pass_access_scheme://{}$request_uri", server.host.as_str());
    nodes.push(node("return", [code, target.as_str()]));
    Some(Node::new("server").block(nodes))
}

/// Returns a name for what belongs to a route, which no other route has.
pub(super) fn route_id(server: &Server, route: &Route) -> String {
    let kind = match route.path {
        PathMatch::Exact(_) => "=",
        PathMatch::Prefix(_) => "/",
        PathMatch::Start(_) => "~",
    };
    short_hash(&format!("{} {kind} {}", server.host.as_str(), route.path.path()))
}

/// Returns a name for what belongs to an Ingress in a server.
pub(super) fn policy_id(server: &Server, route: &Route) -> String {
    short_hash(&format!("{} {}", server.host.as_str(), route.policy.id))
}

/// Returns `true` if a list of paths in the ConfigMap names a beginning of a path.
pub(super) fn is_exempt(globals: &Globals, list: &'static str, path: &str) -> bool {
    let below = |start: &str| {
        path.strip_prefix(start.trim_end_matches('/')).is_some_and(|r| r.is_empty() || r.starts_with('/'))
    };
    globals.settings.list(list).any(below)
}

/// Returns the group of a route, as a word of `proxy_pass`: its name, or the variable that chooses.
pub(super) fn target(route: &Route, id: &str) -> Option<String> {
    match &route.action {
        Action::Forward(f) if f.alternatives.is_empty() => Some(f.group.clone()),
        Action::Forward(_) => Some(format!("$canary_{id}")),
        _ => None,
    }
}
