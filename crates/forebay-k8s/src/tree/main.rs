//! The main file: settings of the ConfigMap, and the includes of the other files.

use super::node;
use crate::ingress::Globals;
use crate::model::CertificateFiles;
use forebay_conf::Node;

/// Parts of the main file.
pub struct Main<'a> {
    /// Settings and options.
    pub globals: &'a Globals,
    /// Paths of the files of groups.
    pub groups: Vec<String>,
    /// Paths of the files of hosts.
    pub hosts: Vec<String>,
    /// Certificate of hosts without one.
    pub certificate: Option<CertificateFiles>,
}

/// Makes the directives of the main file.
pub fn main(parts: &Main<'_>) -> Vec<Node> {
    let globals = parts.globals;
    let s = &globals.settings;
    let mut nodes = globals.options.main.clone();
    nodes.push(node("worker_processes", [s.get("worker-processes")]));
    nodes.push(node("worker_shutdown_timeout", [s.get("worker-shutdown-timeout")]));
    nodes
        .push(Node::new("events").block(vec![node("worker_connections", [s.get("max-worker-connections")])]));
    nodes.push(Node::new("http").block(http(parts)));
    nodes
}

fn map(from: &str, to: &str, entries: &[(&str, &str)]) -> Node {
    node("map", [from, to]).block(entries.iter().map(|(k, v)| node(k, [*v])).collect())
}

fn http(parts: &Main<'_>) -> Vec<Node> {
    let globals = parts.globals;
    let mut nodes = globals.options.http.clone();
    nodes.push(map("$scheme", "$redirect_to_https", &[("http", "1"), ("default", "")]));
    nodes.push(map("$host", "$redirect_host", &[("default", "$host")]));
    nodes.push(map("$http_upgrade", "$connection_upgrade", &[("default", "upgrade"), ("", "")]));
    nodes.push(node("proxy_http_version", ["1.1"]));
    let set = |name: &str, value: &str| node("proxy_set_header", [name, value]);
    nodes.extend([
        set("Host", "$http_host"),
        set("X-Real-IP", "$remote_addr"),
        set("X-Forwarded-For", "$remote_addr"),
        set("X-Forwarded-Proto", "$scheme"),
        set("Upgrade", "$http_upgrade"),
        set("Connection", "$connection_upgrade"),
    ]);
    if let Some(files) = &parts.certificate {
        nodes.push(node("ssl_certificate", [files.chain.path.as_str()]));
        nodes.push(node("ssl_certificate_key", [files.key.path.as_str()]));
    }
    if !globals.options.resolvers.is_empty() {
        nodes.push(node("resolver", globals.options.resolvers.iter().map(String::as_str)));
    }
    nodes.extend(parts.groups.iter().chain(&parts.hosts).map(|path| node("include", [path.as_str()])));
    nodes
}
