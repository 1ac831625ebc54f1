//! Requests that do not get to their end: each whose head has begun has one line in the access log.

use forebay_http::h2::frame::{flag, kind};
use forebay_testkit::{Server, Signal, Site, Talk, accept, connect, h2, wait_for, wait_until};
use std::io::Read;
use std::net::{SocketAddr, TcpStream};

/// Connects and sends bytes.
fn send(addr: SocketAddr, bytes: &str) -> TcpStream {
    let mut stream = connect(addr);
    stream.send(bytes);
    stream
}

fn get(addr: SocketAddr, uri: &str, fields: &str) -> TcpStream {
    send(addr, &format!("GET {uri} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n"))
}

fn count(log: &str, part: &str) -> usize {
    log.lines().filter(|line| line.contains(part)).count()
}

/// An upstream that takes connections and says nothing, but switches protocols for `/switch`.
fn silent() -> SocketAddr {
    accept(move |mut stream, _| {
        let mut got = Vec::new();
        let mut buf = [0; 4096];
        while let Ok(n @ 1..) = stream.read(&mut buf) {
            got.extend_from_slice(&buf[..n]);
            if got.starts_with(b"GET /switch") && got.ends_with(b"\r\n\r\n") {
                let head =
                    b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\nhello";
                stream.send(head);
            }
        }
    })
}

/// The end of `worker_shutdown_timeout` cuts off requests of all versions and in all conditions, and each has its line.
#[test]
fn requests_cut_off_by_a_shutdown_are_logged() {
    let site = Site::new(format!(
        "worker_processes 2; worker_shutdown_timeout 500ms; error_log logs/error.log info; events {{}}\n\
         http {{ access_log logs/access.log; http2 on; keepalive_timeout 1m; client_header_timeout 1m; client_body_timeout 1m;\n\
         server {{ listen 127.0.0.1:%PORT0%; location /slow {{ limit_rate 1k; alias html/page; }}\n\
         location /status {{ access_log off; stub_status; }}\n\
         location / {{ proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade;\n\
         client_body_temp_path %DIR%/body; proxy_temp_path %DIR%/temp; proxy_pass http://{}; }} }} }}\n",
        silent()
    ));
    site.write("html/page", "x".repeat(500_000));
    let mut server = Server::start_on(site);
    let addr = server.addr(0);
    let mut slow = get(addr, "/slow?one", "");
    assert!(slow.until("\r\n\r\nxxx").ends_with("\r\n\r\nxxx"));
    let waits = get(addr, "/waits?one", "");
    let mut switched = get(addr, "/switch?one", "Connection: upgrade\r\nUpgrade: x\r\n");
    assert!(switched.until("hello").ends_with("hello"));
    let upload = send(addr, "POST /upload?one HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nabc");
    let line = send(addr, "GET /line?o");
    let head = send(addr, "GET /head?one HTTP/1.1\r\nHo");
    let mut second = h2::Client::new(&server);
    second.request(1, "/slow?two", &[], true);
    second.request(3, "/waits?two", &[], true);
    second.request(5, "/upload?two", &[(":method", "POST")], false);
    while second.next().expect("a frame").kind != kind::DATA {}
    second.frame(kind::HEADERS, flag::END_STREAM, 7, &[0x82, 0x86]);
    // A connection is accepted once its first bytes are there.
    wait_until("the requests", || server.get("/status").contains("Active connections: 8 "));
    server.signal(Signal::SIGQUIT);
    assert_eq!(server.wait_end(), Some(0));
    let log = server.read("logs/access.log");
    for (line, times) in [
        ("GET /slow?one HTTP/1.1\" 200 ", 1),
        ("GET /waits?one HTTP/1.1\" 499 ", 1),
        ("GET /switch?one HTTP/1.1\" 101 ", 1),
        ("POST /upload?one HTTP/1.1\" 499 ", 1),
        ("\"GET /line?o\" 408 ", 1),
        ("\"GET /head?one HTTP/1.1\" 408 ", 1),
        ("GET /slow?two HTTP/2.0\" 200 ", 1),
        ("GET /waits?two HTTP/2.0\" 499 ", 1),
        ("POST /upload?two HTTP/2.0\" 499 ", 1),
        ("\"-\" 408 ", 1),
    ] {
        assert_eq!(count(&log, line), times, "{line}: {log}");
    }
    assert_eq!(log.lines().count(), 10, "{log}");
    drop((waits, upload, line, head));
}

/// A connection that gives way to another, or whose listener a reload removes, has a line if a head has begun on it.
#[test]
fn heads_on_connections_that_are_closed_are_logged() {
    let conf = |listen: &str| {
        format!(
            "worker_processes 1; error_log logs/error.log info; events {{ worker_connections 12; }}\n\
             http {{ access_log logs/access.log; client_header_timeout 1m; server {{ {listen} return 200; }} }}\n"
        )
    };
    let both = "listen 127.0.0.1:%PORT0%; listen 127.0.0.1:%PORT1%;";
    let server = Server::start(conf(both));
    let begun = send(server.addr(1), "GET /removed HTTP/1.1\r\nHo");
    let silent = send(server.addr(1), "");
    assert!(server.get("/x").contains("200"));
    server.reload_with(conf("listen 127.0.0.1:%PORT0%;"));
    let log = wait_for("a line", || {
        Some(server.read("logs/access.log")).filter(|log| log.contains("\"GET /removed HTTP/1.1\" 408 0 "))
    });
    assert_eq!(count(&log, " 408 "), 1, "{log}");
    drop((begun, silent));
    // Slow heads give way to new connections.
    let slow: Vec<TcpStream> =
        (0..30).map(|n| send(server.addr(0), &format!("GET /slow{n} HTTP/1.1\r\nHo"))).collect();
    wait_until("lines", || count(&server.read("logs/access.log"), "\"GET /slow") > 0);
    let log = server.read("logs/access.log");
    assert_eq!(count(&log, "\"GET /slow"), count(&log, "HTTP/1.1\" 408 0 ") - 1, "{log}");
    drop(slow);
}

/// A request that panics has its line, over both versions.
#[test]
fn a_panic_leaves_a_line() {
    let server = Server::start(
        "worker_processes 1; env FOREBAY_TEST_PANIC=/panic; error_log logs/error.log info; events {}\n\
         http { access_log logs/access.log; http2 on; server { listen 127.0.0.1:%PORT0%; return 200 ok; } }\n",
    );
    assert_eq!(server.get("/panic"), "");
    let mut client = h2::Client::new(&server);
    client.request(1, "/panic", &[], true);
    assert_eq!(client.answer(1).fields, []);
    assert!(server.get("/other").contains("ok"));
    let log = wait_for("lines", || Some(server.read("logs/access.log")).filter(|log| log.contains("/other")));
    assert_eq!(count(&log, "GET /panic HTTP/1.1\" 500 0 "), 1, "{log}");
    assert_eq!(count(&log, "GET /panic HTTP/2.0\" 500 0 "), 1, "{log}");
}
