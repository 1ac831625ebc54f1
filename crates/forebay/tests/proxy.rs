//! Requests passed to upstreams: plain sockets on both sides.

use forebay_testkit::{DEADLINE, Origin, Server, Talk, connect, http, server, wait_for};
use std::io::Read;
use std::sync::mpsc::channel;

forebay_testkit::cases!("cases/proxy.cases":
    a_request_is_written_anew, a_connection_that_is_not_kept_is_announced, a_group_keeps_its_connections,
    a_dead_server_is_passed_over, garbage_and_short_bodies_are_not_passed_off_as_answers, a_large_body_goes_through_a_file);

/// Each piece reaches the upstream before the next is sent: a wait for the client's bytes ends with their first event.
#[test]
fn an_unbuffered_upload_passes_piece_by_piece() {
    let (tell, told) = channel();
    let up = Origin::at_head(move |asked| {
        let _ = tell.send(asked.buffer.len());
        while !asked.buffer.ends_with(b"\r\n0\r\n\r\n") {
            assert!(asked.more(), "the upload ended early");
            let _ = tell.send(asked.buffer.len());
        }
        asked.answer("200 OK", "", "good");
        false
    });
    let server = server!("location / {{ proxy_pass http://{up}; proxy_request_buffering off; }}").start();
    let mut client =
        server.send("PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n");
    for i in 0..6 {
        client.send(format!("4\r\np{i:03}\r\n"));
        while told.recv_timeout(DEADLINE).expect("the piece at the upstream") < 9 * (i + 1) {}
    }
    client.send("0\r\n\r\n");
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
    let (tell, told) = channel();
    let asked = || told.recv_timeout(DEADLINE).expect("asked");
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
        target != "/short" && target != "/end"
    });
    let server = Server::start(http!(
        "upstream u {{ server {up}; keepalive 4; }}\n\
         log_format l '$request_uri $upstream_response_length $upstream_bytes_received $body_bytes_sent';\n\
         server {{ listen 127.0.0.1:%PORT0%; listen 127.0.0.1:%PORT1% sndbuf=32k; access_log logs/a.log l;\n\
         location / {{ proxy_pass http://u; }} }}"
    ));
    let mut clients = [0, 1].map(|port| connect(server.addr(port)));
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
        asked();
        asked()
    };
    for (path, slow) in [("/", true), ("/pieces", false), ("/pieces", true), ("/", false)] {
        assert!(get(path, slow) == content(), "{path} {slow}");
        assert_eq!(asked(), first, "the connection is kept");
    }
    assert!(get("/end", false) == content(), "the end behind it is no excess");
    asked();
    assert!(!server.error_log().contains("more data"), "{}", server.error_log());
    assert!(get("/more", false) == content());
    server.wait_for_log("upstream sent more data than specified in \"Content-Length\" header", 1);
    let more = asked();
    assert!(get("/", false) == content(), "nothing of what was too much is in the next answer");
    assert_ne!(asked(), more);
    assert!(get("/short", false) == content()[..LEN - 1]);
    server.wait_for_log("upstream prematurely closed connection while reading upstream", 1);
    let line = format!("/ {LEN} ");
    wait_for("the log", || server.read("logs/a.log").lines().next().map(str::to_owned))
        .strip_prefix(&line)
        .and_then(|rest| rest.strip_suffix(&format!(" {LEN}")).and_then(|n| n.parse::<usize>().ok()))
        .filter(|received| (LEN..LEN + 200).contains(received))
        .unwrap_or_else(|| panic!("{}", server.read("logs/a.log")));
}
