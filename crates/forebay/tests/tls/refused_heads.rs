//! Heads that are refused: until the `Host` field has been read, the server is that of the name in the TLS handshake.

use super::site;
use forebay_testkit::{Oracle, Server, oracle, s_client_at};
use std::net::SocketAddr;

const SERVERS: &str = "server { listen 127.0.0.1:%PORT0% ssl; server_name d.test; add_header X-Server default always; }\n\
    server { listen 127.0.0.1:%PORT0% ssl; server_name n.test; add_header X-Server \"named $host\" always; }\n";

fn check(name: &str, addr: SocketAddr) {
    let long = "p".repeat(40_000);
    let (named, default) = ("X-Server: named n.test\r\n", "X-Server: default\r\n");
    for (head, status, server) in [
        (format!("GET /{long} HTTP/1.1\r\nHost: d.test\r\n\r\n"), "414", named),
        ("G@T / HTTP/1.1\r\nHost: d.test\r\n\r\n".to_owned(), "400", named),
        (format!("GET / HTTP/1.1\r\nX: {long}\r\nHost: d.test\r\n\r\n"), "400", named),
        (format!("GET / HTTP/1.1\r\nHost: d.test\r\nX: {long}\r\n\r\n"), "400", default),
        ("GET / HTTP/1.1\r\nHost: n.test\r\nContent-Length: x\r\n\r\n".to_owned(), "400", named),
        ("GET / HTTP/1.1\r\nHost: d.test\r\nHost: n.test\r\n\r\n".to_owned(), "400", default),
        ("GET / HTTP/1.1\r\n\r\n".to_owned(), "400", default),
    ] {
        let answer = s_client_at(addr, "-servername n.test", &head);
        let short = head.replace(&long, "ppp");
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{name}, {short}: {answer}");
        assert!(answer.contains(server), "{name}, {short}: {answer}");
    }
}

#[test]
fn a_head_that_is_refused_early_has_the_server_of_the_handshake() {
    let server = Server::start_on(site(SERVERS));
    check("Forebay", server.addr(0));
    let Some(nginx) = oracle() else { return };
    let theirs = Oracle::start(&nginx, site(SERVERS));
    check("nginx", theirs.site().addr(0));
}
