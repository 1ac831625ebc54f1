//! The file of one host: its server, and what that needs in `http`.

use super::node;
use crate::ingress::Globals;
use crate::model::{Action, Forward, HostName, PathMatch, Protocol, Route, Server};
use forebay_conf::Node;

/// Makes the directives of a host's file. `tls`: the server has a certificate, its own or the default one.
pub fn server(server: &Server, globals: &Globals) -> Vec<Node> {
    let mut http = Vec::new();
    let mut nodes = Vec::new();
    names(server, &mut nodes);
    listen(server, globals, &mut nodes);
    locations(server, globals, &mut http, &mut nodes);
    http.push(Node::new("server").block(nodes));
    http
}

fn names(server: &Server, nodes: &mut Vec<Node>) {
    let names = std::iter::once(server.host.as_str()).chain(server.aliases.iter().map(String::as_str));
    nodes.push(node("server_name", names));
}

/// Returns the addresses to listen at with a port.
fn addresses(globals: &Globals, port: u16) -> Vec<String> {
    let options = &globals.options;
    if !options.bind_addresses.is_empty() {
        return options
            .bind_addresses
            .iter()
            .map(|a| if a.contains(':') { format!("[{a}]:{port}") } else { format!("{a}:{port}") })
            .collect();
    }
    let mut all = vec![port.to_string()];
    if options.ipv6 {
        all.push(format!("[::]:{port}"));
    }
    all
}

fn listen(server: &Server, globals: &Globals, nodes: &mut Vec<Node>) {
    let any = server.host == HostName::Any;
    let default = || any.then_some("default_server");
    let proxy_protocol = || globals.settings.flag("use-proxy-protocol").then_some("proxy_protocol");
    for address in addresses(globals, globals.options.http_port) {
        nodes.push(Node::new("listen").arg(address).args(default()).args(proxy_protocol()));
    }
    if server.tls.certificate.is_none() && !globals.default_certificate {
        return;
    }
    for address in addresses(globals, globals.options.https_port) {
        nodes.push(Node::new("listen").arg(address).arg("ssl").args(default()).args(proxy_protocol()));
    }
    // The default certificate is in `http`.
    if let Some(files) = &server.tls.certificate {
        nodes.push(node("ssl_certificate", [files.chain.path.as_str()]));
        nodes.push(node("ssl_certificate_key", [files.key.path.as_str()]));
    }
}

fn locations(server: &Server, globals: &Globals, http: &mut Vec<Node>, nodes: &mut Vec<Node>) {
    let mut routes: Vec<&Route> = server.routes.iter().collect();
    // Of regular expressions the first that matches counts, so the longest path comes first.
    routes.sort_by_key(|r| std::cmp::Reverse(r.path.path().len()));
    let has_root = routes.iter().any(|r| r.path.path() == "/" && !matches!(r.path, PathMatch::Exact(_)));
    for route in routes {
        let body = body(server, route, globals, http);
        for words in conditions(server, route) {
            nodes.push(node("location", words).block(body.clone()));
        }
    }
    if !has_root {
        nodes.push(node("location", ["/"]).block(vec![default_backend(globals)]));
    }
}

/// Returns the words of the `location`s of a route.
fn conditions(server: &Server, route: &Route) -> Vec<Vec<String>> {
    let path = route.path.path();
    if server.regex {
        return vec![vec!["~*".into(), format!("^{path}")]];
    }
    match &route.path {
        PathMatch::Exact(path) => vec![vec!["=".into(), path.clone()]],
        PathMatch::Start(path) => vec![vec![path.clone()]],
        PathMatch::Prefix(path) if path == "/" => vec![vec!["/".into()]],
        PathMatch::Prefix(path) => {
            let below = vec![format!("{path}/")];
            let exact = PathMatch::Exact(path.clone());
            let taken = server.routes.iter().any(|r| r.path == exact);
            if taken { vec![below] } else { vec![vec!["=".into(), path.clone()], below] }
        }
    }
}

/// Makes the answer for paths and hosts without a backend.
fn default_backend(globals: &Globals) -> Node {
    match &globals.default_backend {
        Some(spec) => node("proxy_pass", [format!("http://{}", spec.name())]),
        None => node("return", ["404"]),
    }
}

fn body(server: &Server, route: &Route, globals: &Globals, _http: &mut [Node]) -> Vec<Node> {
    let mut nodes = Vec::new();
    let tls = server.tls.certificate.is_some();
    if route.policy.https && tls && !is_exempt(globals, "no-tls-redirect-locations", route.path.path()) {
        let code = globals.settings.get("http-redirect-code");
        let target = "https://$redirect_host$request_uri";
        nodes.push(node("if", ["($redirect_to_https)"]).block(vec![node("return", [code, target])]));
    }
    match &route.action {
        Action::Forward(forward) => forward_nodes(forward, &mut nodes),
        Action::Redirect { code, url } => nodes.push(node("return", [code.to_string(), url.clone()])),
        Action::Answer(status) => nodes.push(node("return", [status.to_string()])),
    }
    nodes
}

/// Returns `true` if a list of paths in the ConfigMap names a beginning of a path.
pub(super) fn is_exempt(globals: &Globals, list: &'static str, path: &str) -> bool {
    globals.settings.list(list).any(|start| path.starts_with(start))
}

fn forward_nodes(forward: &Forward, nodes: &mut Vec<Node>) {
    let group = &forward.group;
    nodes.push(match forward.protocol {
        Protocol::Http => node("proxy_pass", [format!("http://{group}")]),
        Protocol::Https => node("proxy_pass", [format!("https://{group}")]),
        Protocol::Auto => node("proxy_pass", [format!("$scheme://{group}")]),
        Protocol::Grpc => node("grpc_pass", [format!("grpc://{group}")]),
        Protocol::Grpcs => node("grpc_pass", [format!("grpcs://{group}")]),
        Protocol::Fcgi => node("fastcgi_pass", [group.as_str()]),
    });
}
