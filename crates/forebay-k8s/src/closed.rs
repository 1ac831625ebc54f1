//! What stands in for the servers of a file that the server refuses.

use forebay_conf::Node;
use forebay_conf::grammar::Contexts;
use forebay_conf::parse;
use forebay_conf::tree::{Block, Directive};
use std::path::Path;
use std::sync::Arc;

/// Returns a file whose servers have the names and addresses of those in a file, and refuse everything: requests have 503, and TLS
/// handshakes fail. `None` for files without servers of HTTP.
pub fn closed(path: &Path, refused: &[u8]) -> Option<Arc<[u8]>> {
    if !path.starts_with("hosts") && !path.starts_with("gateways") {
        return None;
    }
    let parsed = parse::body(refused, Contexts::HTTP);
    let servers =
        parsed.tree.root.iter().filter(|d| d.name.text == b"server").filter_map(|d| d.block.as_ref());
    let nodes: Vec<Node> = servers.filter_map(server).collect();
    let text = forebay_conf::print::print(&nodes).ok()?;
    (!nodes.is_empty()).then(|| text.into())
}

/// Makes the server that refuses everything; `None` for one of `upstream` or `stream`.
fn server(block: &Block) -> Option<Node> {
    let is_place = |d: &&Directive| matches!(d.name.text.as_slice(), b"listen" | b"server_name");
    let mut nodes: Vec<Node> = block.iter().filter(is_place).map(Node::of).collect();
    if !nodes.iter().any(|n| n.name == b"server_name") {
        return None;
    }
    let encrypted = |n: &Node| n.args.iter().any(|word| word == b"ssl" || word == b"quic");
    if nodes.iter().any(encrypted) {
        nodes.push(Node::new("ssl_reject_handshake").arg("on"));
    }
    nodes.push(Node::new("return").arg("503"));
    Some(Node::new("server").block(nodes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_keep_their_names_and_addresses() {
        let refused = b"map $a $b { default 1; }\nserver {\n    server_name a.example b.example;\n    listen 80;\n    listen 443 ssl;\n\
            ssl_certificate x;\n    location / {\n        proxy_pass http://u;\n    }\n}\nserver { server_name c.example; listen 80; nonsense; }\n";
        let made = closed(Path::new("hosts/a.conf"), refused).expect("servers");
        let text = String::from_utf8_lossy(&made);
        assert_eq!(
            text,
            "server {\n    server_name a.example b.example;\n    listen 80;\n    listen 443 ssl;\n    ssl_reject_handshake on;\n    \
             return 503;\n}\nserver {\n    server_name c.example;\n    listen 80;\n    return 503;\n}\n"
        );
        assert_eq!(closed(Path::new("hosts/a.conf"), &made).as_deref(), Some(&*made));
        assert!(closed(Path::new("forebay.conf"), refused).is_none());
        assert!(closed(Path::new("gateways/stream.conf"), b"server { listen 5; proxy_pass u; }").is_none());
    }
}
