//! Requests passed to upstreams: plain sockets on both sides.

use forebay_testkit::{DEADLINE, Origin, Server, Talk, http, server, wait_for};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

/// An upstream that answers every connection's requests in turn and tells what it was sent, with the number
/// of the connection.
fn upstream(answer: &'static [u8]) -> (SocketAddr, Receiver<(usize, String)>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let addr = listener.local_addr().expect("address");
    let (tell, told) = channel();
    std::thread::spawn(move || {
        for (n, stream) in listener.incoming().enumerate() {
            let (Ok(stream), tell) = (stream, tell.clone()) else { return };
            std::thread::spawn(move || serve(stream, n, answer, &tell));
        }
    });
    (addr, told)
}

fn serve(mut stream: TcpStream, n: usize, answer: &[u8], tell: &std::sync::mpsc::Sender<(usize, String)>) {
    let mut buf = [0; 65536];
    while let Ok(len @ 1..) = stream.read(&mut buf) {
        let _ = tell.send((n, String::from_utf8_lossy(&buf[..len]).into_owned()));
        if stream.write_all(answer).is_err() {
            return;
        }
    }
}

fn next(told: &Receiver<(usize, String)>) -> (usize, String) {
    told.recv_timeout(Duration::from_secs(10)).expect("a request")
}

const OK: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-Up: 1\r\n\r\nok";

#[test]
fn a_request_is_written_anew() {
    let (up, told) = upstream(OK);
    let server = server!("location /a/ {{ proxy_pass http://{up}/b/; }}").start();
    let answer = server.raw(
        b"POST /a/x%20y?q HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nProxy-Connection: x\r\n\
          Connection: close\r\nX-Own: 1\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    );
    assert!(String::from_utf8_lossy(&answer).ends_with("X-Up: 1\r\n\r\nok"));
    let want = format!("POST /b/x%20y?q HTTP/1.1\r\nHost: {up}\r\nContent-Length: 3\r\nX-Own: 1\r\n\r\nabc");
    assert_eq!(next(&told).1, want);
    assert!(server.get("/a").contains("301 Moved Permanently"));
}

/// A connection that serves one request says so, unless the configuration has something to say of it.
#[test]
fn a_connection_that_is_not_kept_is_announced() {
    let (up, told) = upstream(OK);
    let server = Server::start(http!(
        "upstream kept {{ server {up}; }} upstream not {{ server {up}; keepalive 0; }}\n\
         server {{ listen 127.0.0.1:%PORT0%; location /plain {{ proxy_pass http://{up}; }}\n\
         location /kept {{ proxy_pass http://kept; }} location /not {{ proxy_pass http://not; }}\n\
         location /old {{ proxy_http_version 1.0; proxy_pass http://{up}; }}\n\
         location /own {{ proxy_set_header Connection own; proxy_pass http://{up}; }}\n\
         location /none {{ proxy_set_header Connection \"\"; proxy_pass http://{up}; }} }}"
    ));
    for (path, field) in
        [("plain", ""), ("not", "close"), ("kept", ""), ("old", ""), ("own", "own"), ("none", "")]
    {
        assert!(server.get(format!("/{path}")).ends_with("ok"), "{path}");
        let asked = next(&told).1;
        let lines: Vec<&str> = asked.lines().filter_map(|l| l.strip_prefix("Connection: ")).collect();
        let want: Vec<&str> = [field].into_iter().filter(|f| !f.is_empty()).collect();
        assert_eq!(lines, want, "{path}: {asked}");
    }
}

#[test]
fn a_group_keeps_its_connections() {
    let (up, told) = upstream(OK);
    let server = Server::start(http!(
        "upstream u {{ server {up}; }}\n\
         server {{ listen 127.0.0.1:%PORT0%; location / {{ proxy_pass http://u; }} }}"
    ));
    for _ in 0..3 {
        assert!(server.get("/").ends_with("ok"));
        assert_eq!(next(&told).0, 0);
    }
}

#[test]
fn a_dead_server_is_passed_over() {
    let (up, told) = upstream(OK);
    let server = Server::start(http!(
        "upstream u {{ server 127.0.0.1:%PORT1%; server {up}; }}\n\
         server {{ listen 127.0.0.1:%PORT0%; location / {{ proxy_pass http://u; }}\n\
         location /dead {{ proxy_pass http://127.0.0.1:%PORT1%; }} }}"
    ));
    for _ in 0..4 {
        assert!(server.get("/").ends_with("ok"));
        next(&told);
    }
    assert!(server.get("/dead").starts_with("HTTP/1.1 502 "));
    server.wait_for_log("connect() failed (111: Connection refused) while connecting to upstream", 2);
}

#[test]
fn garbage_and_short_bodies_are_not_passed_off_as_answers() {
    let (bad, _) = upstream(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\nok");
    let server = server!("location / {{ proxy_pass http://{bad}; }}").start();
    assert!(server.get("/").starts_with("HTTP/1.1 502 "));
    server.wait_for_log("upstream sent duplicate header line", 1);
}

#[test]
fn a_large_body_goes_through_a_file() {
    let (up, told) = upstream(OK);
    let server = Server::start(server!(
        "client_body_buffer_size 1k;\n\
         location / {{ proxy_pass http://{up}; }}"
    ));
    let body = "0123456789".repeat(1000);
    let request =
        format!("POST / HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 10000\r\n\r\n{body}");
    server.raw(&request);
    let mut got = String::new();
    wait_for("the whole body", || {
        got.push_str(&told.try_recv().map(|m| m.1).unwrap_or_default());
        got.ends_with(&body).then_some(())
    });
    server.wait_for_log("a client request body is buffered to a temporary file", 1);
}

/// Each piece reaches the upstream before the next is sent: a wait for the client's bytes ends with their first event.
#[test]
fn an_unbuffered_upload_passes_piece_by_piece() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a socket");
    let up = listener.local_addr().expect("an address");
    let (tell, told) = channel();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut seen = Vec::new();
        let mut piece = [0; 4096];
        while !seen.ends_with(b"\r\n0\r\n\r\n") {
            let n = stream.read(&mut piece).expect("bytes");
            assert!(n > 0, "the upload ended early");
            seen.extend_from_slice(&piece[..n]);
            let _ = tell.send(seen.len());
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\ngood").expect("an answer");
    });
    let server = Server::start(format!(
        "worker_processes 1;\nevents {{}}\nhttp {{ access_log off; server {{ listen 127.0.0.1:%PORT0%; location / {{ \
         proxy_pass http://{up}; proxy_request_buffering off; }} }} }}\n"
    ));
    let mut client = server.connect();
    client
        .write_all(b"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n")
        .expect("a head");
    let mut seen = 0;
    for i in 0..6 {
        client.write_all(format!("4\r\np{i:03}\r\n").as_bytes()).expect("a piece");
        let before = seen;
        while seen < before + 9 {
            seen = told.recv_timeout(DEADLINE).expect("the piece at the upstream");
            if before == 0 && seen > 9 {
                break;
            }
        }
    }
    client.write_all(b"0\r\n\r\n").expect("the end");
    let answer = client.rest();
    assert!(answer.starts_with("HTTP/1.1 200 OK") && answer.ends_with("good"), "{answer}");
}

/// Long responses pass inside the kernel. They arrive whole, also where the client is slow and where pieces come late; the
/// connection serves on; and what is short or too long is noticed as ever.
#[test]
fn long_responses_are_passed_on_as_they_are() {
    const LEN: usize = 3_000_000;
    fn content() -> Vec<u8> {
        (0..LEN).map(|i| (i * 7 % 251) as u8).collect()
    }
    let peers = std::sync::Mutex::new(Vec::new());
    let (tell, told) = channel();
    let up = Origin::start(move |asked| {
        let _ = tell.send(asked.peer);
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {LEN}\r\n\r\n");
        let body = content();
        let target = asked.target().to_owned();
        asked.write(&head);
        match target.as_str() {
            "/pieces" => {
                for piece in body.chunks(70_001) {
                    asked.write(piece);
                    std::thread::yield_now();
                }
                true
            }
            "/short" => asked.write(&body[..LEN - 1]),
            "/more" => asked.write([&body[..], b"more"].concat()),
            _ => asked.write(&body),
        };
        peers.lock().expect("no panic").push(asked.peer);
        target != "/short" && target != "/end"
    });
    let server = Server::start(http!(
        "upstream u {{ server {up}; keepalive 4; }}\n\
         log_format l '$request_uri $upstream_response_length $upstream_bytes_received $body_bytes_sent';\n\
         server {{ listen 127.0.0.1:%PORT0%; listen 127.0.0.1:%PORT1% sndbuf=32k; access_log logs/a.log l;\n\
         location / {{ proxy_pass http://u; }} }}"
    ));
    let connect = |port: usize| {
        let client = TcpStream::connect(server.addr(port)).expect("connected");
        client.set_read_timeout(Some(Duration::from_secs(20))).expect("option");
        client
    };
    let mut clients = [connect(0), connect(1)];
    // Reads a body of `want` bytes behind a head; the last may not come.
    let mut get_at = |port: usize, path: &str, slow: bool| -> Vec<u8> {
        let client = &mut clients[port];
        client.send(format!("GET {path} HTTP/1.1\r\nHost: h\r\n\r\n"));
        let mut got = Vec::new();
        let mut buf = vec![0; if slow { 5_000 } else { 1 << 20 }];
        loop {
            let n = client.read(&mut buf).expect("read");
            got.extend_from_slice(&buf[..n]);
            let head = got.windows(4).position(|w| w == b"\r\n\r\n").map(|i| i + 4);
            if n == 0 || head.is_some_and(|h| got.len() >= h + LEN) {
                return got.split_off(head.expect("a head"));
            }
        }
    };
    assert!(get_at(1, "/", true) == content());
    let mut get = |path: &str, slow: bool| get_at(0, path, slow);
    let first = {
        assert!(get("/", false) == content());
        let _ = told.recv_timeout(Duration::from_secs(10)).expect("asked");
        told.recv_timeout(Duration::from_secs(10)).expect("asked")
    };
    for (path, slow) in [("/", true), ("/pieces", false), ("/pieces", true), ("/", false)] {
        assert!(get(path, slow) == content(), "{path} {slow}");
        assert_eq!(
            told.recv_timeout(Duration::from_secs(10)).expect("asked"),
            first,
            "the connection is kept"
        );
    }
    assert!(get("/end", false) == content(), "the end behind it is no excess");
    let _ = told.recv_timeout(Duration::from_secs(10)).expect("asked");
    assert!(!server.error_log().contains("more data"), "{}", server.error_log());
    assert!(get("/more", false) == content());
    server.wait_for_log("upstream sent more data than specified in \"Content-Length\" header", 1);
    let more = told.recv_timeout(Duration::from_secs(10)).expect("asked");
    assert!(get("/", false) == content(), "nothing of what was too much is in the next answer");
    assert_ne!(told.recv_timeout(Duration::from_secs(10)).expect("asked"), more);
    assert!(get("/short", false) == content()[..LEN - 1]);
    server.wait_for_log("upstream prematurely closed connection while reading upstream", 1);
    let line = format!("/ {LEN} ");
    wait_for("the log", || server.read("logs/a.log").lines().next().map(str::to_owned))
        .strip_prefix(&line)
        .and_then(|rest| rest.strip_suffix(&format!(" {LEN}")).and_then(|n| n.parse::<usize>().ok()))
        .filter(|received| (LEN..LEN + 200).contains(received))
        .unwrap_or_else(|| panic!("{}", server.read("logs/a.log")));
}
