//! The `stream` block of the main file: ports of TCP and UDP services, and TLS sessions that pass as they are.

use super::super::node;
use super::{Main, StreamPort};
use crate::groups::{Balance, Servers, Spec};
use crate::ingress::Globals;
use crate::value::parse_time;
use forebay_conf::Node;
use std::collections::BTreeSet;

pub(super) fn block(parts: &Main<'_>) -> Option<Node> {
    let globals = parts.globals;
    let passthrough = globals.options.enable_ssl_passthrough;
    if parts.stream.is_empty()
        && !passthrough
        && globals.snippets.stream.is_empty()
        && parts.stream_snippets.is_empty()
        && parts.stream_file.is_none()
    {
        return None;
    }
    let mut nodes = vec![node("upstream_start_unresolved", ["on"])];
    settings(globals, &mut nodes);
    // A snippet that does not work may have been one that keeps clients out.
    let closed = globals.settings.closed.iter().any(|key| ["main-snippet", "stream-snippet"].contains(key));
    ports(parts, closed, &mut nodes);
    if passthrough {
        pass_sessions(parts, closed, &mut nodes);
    }
    nodes.extend(parts.stream_file.map(|path| node("include", [path])));
    nodes.extend(globals.snippets.stream.iter().cloned());
    nodes.extend(parts.stream_snippets.iter().cloned());
    Some(Node::new("stream").block(nodes))
}

/// Makes the servers of ports and their groups. `closed`: nobody is let in.
fn ports(parts: &Main<'_>, closed: bool, nodes: &mut Vec<Node>) {
    let mut made = BTreeSet::new();
    for port in parts.stream {
        if made.insert(port.group.clone()) {
            nodes.push(group(&port.group, &port.spec, &port.servers, parts.globals));
        }
        // Groups of passthrough hosts have no port of their own.
        if port.port != 0 {
            nodes.push(server(port, closed, parts.globals));
        }
    }
}

fn settings(globals: &Globals, nodes: &mut Vec<Node>) {
    let s = &globals.settings;
    nodes.push(node("log_format", ["log_stream"]).args(super::http::parts_of(s.get("log-format-stream"))));
    if s.flag("disable-access-log") || s.flag("disable-stream-access-log") {
        nodes.push(node("access_log", ["off"]));
    } else {
        let path = s
            .set("stream-access-log-path")
            .or_else(|| s.set("access-log-path"))
            .unwrap_or(&globals.options.access_log);
        nodes.push(node("access_log", [path, "log_stream"]));
    }
    nodes.push(node(
        "proxy_timeout",
        [parse_time(s.get("proxy-stream-timeout")).unwrap_or_else(|| "600s".into())],
    ));
    nodes
        .push(node("proxy_next_upstream", [if s.flag("proxy-stream-next-upstream") { "on" } else { "off" }]));
    let time = parse_time(s.get("proxy-stream-next-upstream-timeout")).unwrap_or_else(|| "600s".into());
    nodes.push(node("proxy_next_upstream_timeout", [time]));
    nodes.push(node("proxy_next_upstream_tries", [s.get("proxy-stream-next-upstream-tries")]));
    if !globals.options.resolvers.is_empty() {
        nodes.push(node("resolver", globals.options.resolvers.iter().map(String::as_str)));
    }
    // The address of a PROXY header counts in logs, and is passed on by those that this server sends.
    if s.flag("enable-real-ip") {
        nodes.extend(super::forwarded::trusted(globals));
    }
}

/// Makes the `upstream` block of a group.
pub(crate) fn group(name: &str, spec: &Spec, servers: &Servers, globals: &Globals) -> Node {
    let mut nodes = vec![node("zone", [name, "64k"])];
    if let Balance::Hash(key) = &spec.balance {
        nodes.push(node("hash", [key.as_str(), "consistent"]));
    }
    match &servers.external {
        Some((host, number)) => {
            let resolve = host.parse::<std::net::IpAddr>().is_err().then_some("resolve");
            let search = crate::groups::search(&servers.search);
            nodes.push(
                Node::new("server")
                    .arg(format!("{host}:{number}"))
                    .args(resolve)
                    .args(search)
                    .arg("max_fails=0"),
            );
        }
        None if globals.options.endpoints_in_files => {
            let all = servers.endpoints.iter();
            nodes.extend(all.map(|e| node("server", [e.addr.to_string(), "max_fails=0".into()])));
        }
        None => nodes.push(node("peers", ["external", "max_fails=0"])),
    }
    nodes.push(node("fallback", ["off"]));
    node("upstream", [name]).block(nodes)
}

fn server(port: &StreamPort, closed: bool, globals: &Globals) -> Node {
    let mut nodes = Vec::new();
    for address in super::super::addresses(globals, port.port) {
        let listen = node("listen", [address]).args(port.udp.then_some("udp"));
        nodes.push(listen.args(port.decode_proxy.then_some("proxy_protocol")));
    }
    nodes.extend(closed.then(|| node("deny", ["all"])));
    if port.udp {
        nodes.push(node("proxy_responses", [globals.settings.get("proxy-stream-responses")]));
    }
    if port.encode_proxy {
        nodes.push(node("proxy_protocol", ["on"]));
    }
    nodes.push(node("proxy_pass", [port.group.as_str()]));
    Node::new("server").block(nodes)
}

/// Group of the TLS sessions that end here.
pub(crate) const TLS_HERE: &str = "tls_here";

/// Returns a host as a key of a `map`. A wildcard of an Ingress stands for one label.
fn one_label(host: &str) -> String {
    let rest = host.strip_prefix("*.");
    rest.map_or_else(|| host.to_owned(), |rest| format!("~*^[^.]+\\.{}$", regex::escape(rest)))
}

/// Makes the servers that look at the name in a TLS session.
///
/// The first sends all sessions on with a PROXY header, from which the `http` block learns who the client is. Sessions of hosts with
/// passthrough go to a second one, which takes the header off again, since their servers do not expect it.
fn pass_sessions(parts: &Main<'_>, closed: bool, nodes: &mut Vec<Node>) {
    let own = parts.globals.options.ssl_passthrough_proxy_port;
    let second = own.saturating_sub(1).max(1);
    let hostnames = || node("hostnames", [] as [&str; 0]);
    let map = |to: &str, default: &str, group: &dyn Fn(&str) -> String| {
        let hosts = parts.passthrough.iter().map(|(host, name)| node(&one_label(host), [group(name)]));
        let entries = [node("default", [default]), hostnames()].into_iter().chain(hosts);
        node("map", ["$ssl_preread_server_name", to]).block(entries.collect())
    };
    let way = |group: &str| if group == TLS_HERE { TLS_HERE } else { "tls_through" }.to_owned();
    nodes.push(map("$tls_way", TLS_HERE, &way));
    nodes.push(map("$tls_group", TLS_HERE, &str::to_owned));
    for (name, port) in [(TLS_HERE, own), ("tls_through", second)] {
        nodes.push(node("upstream", [name]).block(vec![node("server", [format!("127.0.0.1:{port}")])]));
    }
    nodes.push(sorting(parts.globals));
    let mut through = vec![node("listen", [format!("127.0.0.1:{second}"), "proxy_protocol".into()])];
    through.extend(closed.then(|| node("deny", ["all"])));
    through.extend([node("ssl_preread", ["on"]), node("proxy_pass", ["$tls_group"])]);
    nodes.push(Node::new("server").block(through));
}

/// Makes the server that sends TLS sessions on by their names.
fn sorting(globals: &Globals) -> Node {
    let decode = globals.settings.flag("use-proxy-protocol").then_some("proxy_protocol");
    let addresses = super::super::addresses(globals, globals.options.https_port).into_iter();
    let mut nodes: Vec<Node> = addresses.map(|address| node("listen", [address]).args(decode)).collect();
    if decode.is_some() {
        // Without it the balancer would be the client.
        nodes.extend(super::forwarded::trusted(globals));
    }
    nodes.push(node("ssl_preread", ["on"]));
    nodes.push(node("proxy_protocol", ["on"]));
    nodes.push(node("proxy_pass", ["$tls_way"]));
    Node::new("server").block(nodes)
}
