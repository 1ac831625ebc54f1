//! HTTP/3 to upstreams: Forebay on both sides.

use super::{conf, serve, site};
use crate::harness::origin::{self, Asked};
use crate::harness::{DEADLINE, PROGRAM, Server, Site, run, wait_for};
use nix::sys::signal::Signal;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Log of the front: what each request has met.
const LOG: &str = "log_format met '$uri $status $upstream_addr $upstream_status $upstream_connect_time $upstream_response_length \
                   $upstream_bytes_received $upstream_trailer_x_sum'; access_log logs/met.log met;";

/// Starts a server in front of another. `http`: lines of its http block, `location`: lines of its location.
fn front(back: SocketAddr, http: &str, location: &str) -> Server {
    Server::start_on(front_site(back, http, location))
}

fn front_site(back: SocketAddr, http: &str, location: &str) -> Site {
    Site::new(
        &conf(&format!(
            "{http} server {{ listen 127.0.0.1:%PORT0%; client_max_body_size 0;\n\
             location / {{ proxy_http_version 3; proxy_pass https://{back}; {location} }} }}"
        ))
        .replace("ssl_certificate localhost.crt; ssl_certificate_key localhost.key;", "")
        .replace("access_log off;", LOG),
    )
}

/// Body of an answer.
fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

fn met(front: &Server, lines: usize) -> Vec<String> {
    wait_for("lines of the access log", || {
        let text = front.site.read("logs/met.log");
        (text.lines().count() >= lines).then(|| text.lines().map(str::to_owned).collect())
    })
}

/// Opens a connection and sends a request.
fn ask(server: &Server, request: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.addr(0)).expect("connects");
    stream.set_read_timeout(Some(DEADLINE)).expect("timeout");
    stream.write_all(request.as_bytes()).expect("sent");
    stream
}

fn get(server: &Server, uri: &str) -> TcpStream {
    ask(server, &format!("GET {uri} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"))
}

fn rest(mut stream: TcpStream) -> String {
    let mut all = Vec::new();
    let _ = stream.read_to_end(&mut all);
    String::from_utf8_lossy(&all).into_owned()
}

/// Lines of a server that tells how it was asked.
const TELLS: &str = "location /told { return 200 '$connection $connection_requests $server_protocol $host$request_uri $http_te\n'; }";

/// A gate that answers wait for.
#[derive(Clone, Default)]
struct Gate(Arc<(Mutex<bool>, Condvar)>);

impl Gate {
    fn open(&self) {
        *self.0.0.lock().expect("lock") = true;
        self.0.1.notify_all();
    }

    fn pass(&self) {
        let guard = self.0.0.lock().expect("lock");
        let _ = self.0.1.wait_timeout_while(guard, DEADLINE, |open| !*open).expect("lock");
    }
}

#[test]
fn requests_share_a_connection() {
    let back = serve(TELLS);
    let front = front(back.addr(0), "", "");
    let first = front.get("/told?a=b");
    let words: Vec<&str> = body(&first).split_whitespace().collect();
    assert_eq!(words[1..], ["1", "HTTP/3.0", "127.0.0.1/told?a=b"], "{first} {}", front.error_log());
    for n in 2..5 {
        let again = front.get("/told");
        let now: Vec<&str> = body(&again).split_whitespace().collect();
        assert_eq!((now[0], now[1]), (words[0], n.to_string().as_str()), "{again}");
    }
    assert_eq!(body(&front.get("/index.html")), "hello");
    let large = front.get("/large");
    assert_eq!(body(&large).len(), 2_000_000);
    assert!(
        large.starts_with("HTTP/1.1 200 OK\r\n") && large.contains("Content-Length: 2000000\r\n"),
        "{}",
        &large[..300]
    );
    assert!(front.get("/none").starts_with("HTTP/1.1 404 "));
    let head =
        String::from_utf8_lossy(&front.raw(b"HEAD /page HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"))
            .into_owned();
    assert!(head.contains("Content-Length: 10000\r\n") && body(&head).is_empty(), "{head}");
    let told = front.get("/told");
    assert_eq!(body(&told).split_whitespace().next(), Some(words[0]), "HEAD leaves the connection open");
    let met = met(&front, 9);
    let port = back.addr(0).port();
    assert!(
        met[5].starts_with(&format!("/large 200 127.0.0.1:{port} 200 0."))
            && met[5].contains(" 2000000 2000"),
        "{met:?}"
    );
    assert!(met[1..].iter().all(|line| line.contains(" 0.000 ")), "kept connections need no time: {met:?}");
    assert!(!front.error_log().contains("[error]"), "{}", front.error_log());
}
