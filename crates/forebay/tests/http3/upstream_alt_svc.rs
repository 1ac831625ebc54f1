//! `proxy_http3_alt_svc`: upstreams say where they take HTTP/3 (RFC 7838).

use super::upstream::{TELLS, body, front};
use super::{serve, site};
use forebay_testkit::{Server, Talk, connect};

/// A server over TCP and QUIC. `said`: lines that say where it takes HTTP/3, `quic`: another server.
fn back(said: &str, quic: &str) -> Server {
    Server::start_on(site(&format!(
        "server {{ listen 127.0.0.1:%PORT0% ssl; http2 on; {said} {TELLS}\n\
         location /clear {{ add_header Alt-Svc clear; return 200 '- - $server_protocol'; }}\n\
         location /refuses {{ return 421; }} }}\n\
         {quic}"
    )))
}

/// A server that takes HTTP/3 alone, with these lines.
fn other(lines: &str) -> String {
    format!("server {{ listen 127.0.0.1:%PORT1% quic; {lines} {TELLS} }}")
}

/// Protocol of the next request.
fn protocol(front: &Server, path: &str) -> String {
    let told = front.get(path);
    assert!(!told.to_ascii_lowercase().contains("alt-svc"), "{told}");
    body(&told).split_whitespace().nth(2).unwrap_or(&told).to_owned()
}

fn verifies(back: &Server) -> String {
    let dir = back.dir().display();
    format!(
        "proxy_ssl_verify on; proxy_ssl_trusted_certificate {dir}/localhost.crt; proxy_ssl_name localhost;"
    )
}

/// Answer at another port.
fn get_on(server: &Server, port: usize, path: &str) -> String {
    let mut stream = connect(server.addr(port));
    stream.send(format!("GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n"));

    stream.rest()
}

const FOLLOWS: &str = "proxy_http3_alt_svc on;";
const OTHER_PORT: &str = "add_header Alt-Svc 'h2=\":1\", h3=\":%PORT1%\"; ma=3600';";

#[test]
fn requests_move_to_quic_and_back() {
    let back = back("listen 127.0.0.1:%PORT0% quic;", "");
    let front = front(back.addr(0), "", FOLLOWS);
    assert_eq!(protocol(&front, "/told"), "HTTP/2.0", "{}", front.error_log());
    for _ in 0..3 {
        assert_eq!(protocol(&front, "/told"), "HTTP/3.0", "{}", front.error_log());
    }
    let port = back.addr(0).port();
    let learned = format!(
        "upstream takes HTTP/3 at port {port} for 86400s while reading response header from upstream"
    );
    front.wait_for_log(&learned, 1);
    assert_eq!(front.error_log().matches(&learned).count(), 1, "the next responses are no news");
    assert_eq!(protocol(&front, "/clear"), "HTTP/3.0");
    assert_eq!(protocol(&front, "/told"), "HTTP/2.0");
    assert_eq!(protocol(&front, "/told"), "HTTP/3.0");
    // It answers for another name there.
    assert!(front.get("/refuses").starts_with("HTTP/1.1 421 "));
    assert_eq!(protocol(&front, "/told"), "HTTP/2.0");
    assert!(!front.error_log().contains("[warn]"), "{}", front.error_log());
}

#[test]
fn without_the_directive_the_field_is_for_clients() {
    let back = serve(&format!("add_header Alt-Svc 'h3=\":%PORT1%\"'; {TELLS}"));
    let front = front(back.addr(0), "", "");
    let told = front.get("/told");
    assert!(told.contains("HTTP/3.0") && told.contains("alt-svc: h3="), "{told}");
}

#[test]
fn another_port_needs_a_certificate_that_is_verified() {
    let back = back(OTHER_PORT, &other(""));
    let unverified = front(back.addr(0), "", FOLLOWS);
    for _ in 0..3 {
        assert_eq!(protocol(&unverified, "/told"), "HTTP/2.0");
    }
    let verified = front(back.addr(0), "", &format!("{FOLLOWS} {}", verifies(&back)));
    assert_eq!(protocol(&verified, "/told"), "HTTP/2.0");
    assert_eq!(protocol(&verified, "/told"), "HTTP/3.0", "{}", verified.error_log());
}

#[test]
fn alternatives_that_fail_are_left_alone() {
    let key = "ssl_certificate other.crt; ssl_certificate_key other.key;";
    for (quic, text) in [
        (String::new(), "upstream refuses QUIC, it is asked over TCP for 60s while connecting to upstream"),
        (other(key), "upstream failed the handshake over QUIC ("),
    ] {
        let back = back(OTHER_PORT, &quic);
        let front = front(back.addr(0), "", &format!("{FOLLOWS} {}", verifies(&back)));
        for _ in 0..4 {
            assert_eq!(protocol(&front, "/told"), "HTTP/2.0", "{}", front.error_log());
        }
        front.wait_for_log(text, 1);
        assert_eq!(front.error_log().matches("it is asked over TCP").count(), 1, "{}", front.error_log());
    }
}

#[test]
fn requests_over_quic_are_counted() {
    let back = back("listen 127.0.0.1:%PORT0% quic;", "");
    let metrics =
        "server { listen 127.0.0.1:%PORT1%; location = /metrics { prometheus; } location /api { api; } }";
    let front = front(back.addr(0), metrics, FOLLOWS);
    let counts = |want: [u64; 5]| {
        let told = get_on(&front, 1, "/metrics");
        let names = [
            "connections",
            "connections_total",
            "failed_connections_total",
            "requests_total",
            "fallbacks_total",
        ];
        for (name, n) in names.into_iter().zip(want) {
            assert!(told.contains(&format!("\nforebay_upstream_quic_{name} {n}\n")), "{name} {n}: {told}");
        }
    };
    counts([0; 5]);
    (0..4).for_each(|_| drop(front.get("/told")));
    counts([1, 1, 0, 3, 0]);
    let told = get_on(&front, 1, "/api/9/forebay/quic");
    assert!(told.contains("\"upstream_requests\":3"), "{told}");
    let tcp = self::back("", "");
    let gone = super::upstream::front(tcp.addr(0), metrics, "");
    assert_eq!(protocol(&gone, "/told"), "HTTP/2.0");
    let told = get_on(&gone, 1, "/metrics");
    for line in ["connections 0", "failed_connections_total 1", "requests_total 0", "fallbacks_total 1"] {
        assert!(told.contains(&format!("\nforebay_upstream_quic_{line}\n")), "{line}: {told}");
    }
}
