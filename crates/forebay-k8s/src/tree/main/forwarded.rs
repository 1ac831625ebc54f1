//! What proxies in front tell of the client: its address, its port and its scheme.

use super::super::node;
use super::http::map;
use crate::ingress::Globals;
use forebay_conf::Node;

/// Returns `true` if connections begin with a PROXY header.
fn has_header(globals: &Globals) -> bool {
    // The stream block of `--enable-ssl-passthrough` writes one.
    globals.settings.flag("use-proxy-protocol") || globals.options.enable_ssl_passthrough
}

/// Makes the entries of a `geo` that has 1 for the proxies that are believed.
fn networks(globals: &Globals) -> Vec<Node> {
    let all = globals.settings.trusted_networks();
    let everyone = all.iter().any(|n| n == "0.0.0.0/0");
    let mut entries = vec![node("default", [if everyone { "1" } else { "0" }])];
    entries.extend(all.iter().filter(|n| !everyone && *n != "::/0").map(|n| node(n, ["1"])));
    entries
}

/// Makes the variable that is 1 if the connection comes from a proxy that is believed. What a PROXY header tells counts only then.
pub(super) fn connection(globals: &Globals, nodes: &mut Vec<Node>) {
    let mut entries = networks(globals);
    if globals.options.enable_ssl_passthrough && !entries.iter().any(|n| n.name == b"127.0.0.1") {
        entries.push(node("127.0.0.1", ["1"]));
    }
    nodes.push(node("geo", ["$realip_remote_addr", "$connection_trusted"]).block(entries));
}

/// Makes the variable that is 1 if the fields of a request come from a trusted proxy.
pub(super) fn trust(globals: &Globals, nodes: &mut Vec<Node>) {
    if !has_header(globals) {
        nodes.push(map("$connection_trusted", "$forwarded_trusted", &[("default", "0"), ("1", "1")]));
        return;
    }
    // The connection has to come from a trusted address, and so has the client that a PROXY header names.
    let told = [("default", "$proxy_protocol_addr"), ("", "$realip_remote_addr")];
    nodes.push(map("$proxy_protocol_addr", "$forwarding_addr", &told));
    nodes.push(node("geo", ["$forwarding_addr", "$client_trusted"]).block(networks(globals)));
    let both = [("default", "0"), ("11", "1")];
    nodes.push(map("$connection_trusted$client_trusted", "$forwarded_trusted", &both));
}

/// Makes the variables of the port that the client connected to, and of its scheme. The PROXY header of a trusted balancer tells the
/// port of the balancer; one that ends TLS has 443.
pub(super) fn own_port(globals: &Globals, nodes: &mut Vec<Node>) {
    let port = globals.options.https_port.to_string();
    let public = globals.options.public_https_port.to_string();
    nodes.push(map("$server_port", "$own_port", &[("default", "$server_port"), (&port, &public)]));
    let believed = [("default", ""), ("1", "$proxy_protocol_server_port")];
    nodes.push(map("$connection_trusted", "$balancer_port", &believed));
    // The stream block of `--enable-ssl-passthrough` writes the port of this machine.
    let told = [("default", "$balancer_port"), ("", "$own_port"), (port.as_str(), public.as_str())];
    let told = if globals.options.enable_ssl_passthrough { &told[..] } else { &told[..2] };
    nodes.push(map("$balancer_port", "$pass_server_port", told));
    nodes.push(map("$balancer_port", "$own_scheme", &[("default", "$scheme"), ("443", "https")]));
}

/// Returns where the address of the client comes from, as words of `real_ip_header`. Empty: the connection.
fn real_ip_header(globals: &Globals) -> Vec<&str> {
    let s = &globals.settings;
    let proxy = has_header(globals);
    let field = s.flag("use-forwarded-headers") || s.flag("enable-real-ip") && !s.flag("use-proxy-protocol");
    let words = [proxy.then_some("proxy_protocol"), field.then(|| s.get("forwarded-for-header"))];
    words.into_iter().flatten().collect()
}

/// Adds the lines by which the address of the client replaces that of a proxy.
pub(super) fn real_ip(globals: &Globals, nodes: &mut Vec<Node>) {
    let header = real_ip_header(globals);
    if header.is_empty() {
        return;
    }
    if globals.options.enable_ssl_passthrough {
        nodes.push(node("set_real_ip_from", ["127.0.0.1"]));
    }
    nodes.push(node("real_ip_header", header));
    nodes.push(node("real_ip_recursive", ["on"]));
    nodes.extend(trusted(globals));
}

/// Makes the lines of the proxies that are believed.
pub(super) fn trusted(globals: &Globals) -> Vec<Node> {
    let networks = globals.settings.trusted_networks();
    let six = networks.iter().any(|n| n == "0.0.0.0/0").then_some("::/0");
    let all = networks.iter().map(String::as_str).chain(six);
    all.map(|n| node("set_real_ip_from", [n])).collect()
}
