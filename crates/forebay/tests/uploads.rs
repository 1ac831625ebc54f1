//! Bodies of requests on their way to an upstream: through memory, a file, or the kernel alone.

use forebay_testkit::{Origin, Server, Talk, chunked};
use std::io::{Read, Write};
use std::net::TcpStream;

/// Content without the bytes of a chunk's end.
fn content(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| ((i + seed) * 7 % 251) as u8).collect()
}

/// Starts a server whose upstream gives each body back.
fn echo(server: &str) -> Server {
    let up = Origin::at_head(|asked| {
        let body = asked.take_body();
        asked.answer("200 OK", "", body)
    });
    let locations = [
        ("stored", "client_body_buffer_size 16k;"),
        ("small", "client_body_buffer_size 1k;"),
        ("memory", "client_body_buffer_size 4m;"),
        ("file", "client_body_in_file_only clean;"),
        ("streamed", "proxy_request_buffering off;"),
        ("streamed-small", "proxy_request_buffering off; client_body_buffer_size 1k;"),
        ("streamed-memory", "proxy_request_buffering off; client_body_buffer_size 4m;"),
        ("kept", "proxy_request_buffering off; proxy_pass http://u;"),
    ]
    .map(|(name, more)| {
        let pass =
            if more.contains("proxy_pass") { String::new() } else { format!("proxy_pass http://{up};") };
        format!("location /{name} {{ {more} {pass} }}")
    });
    Server::start(format!(
        "worker_processes 1; events {{}}\n\
         http {{ access_log off; client_body_temp_path %DIR%/body; client_max_body_size 0; proxy_http_version 1.1; \
         proxy_set_header Connection ''; upstream u {{ server {up}; keepalive 4; }}\n\
         server {{ listen 127.0.0.1:%PORT0%; {server} {} }} }}",
        locations.concat()
    ))
}

const PATHS: [&str; 8] =
    ["stored", "small", "memory", "file", "streamed", "streamed-small", "streamed-memory", "kept"];

/// Reads a response.
fn response(stream: &mut TcpStream) -> (String, Vec<u8>) {
    let answer = stream.answer();
    (answer.head, answer.body)
}

/// Bytes of a request; `chunk`: length of its chunks, 0 for a body with a length.
fn request(path: &str, body: &[u8], chunk: usize) -> Vec<u8> {
    let head = format!("POST /{path} HTTP/1.1\r\nHost: h\r\n");
    match chunk {
        0 => [format!("{head}Content-Length: {}\r\n\r\n", body.len()).as_bytes(), body].concat(),
        _ => {
            [format!("{head}Transfer-Encoding: chunked\r\n\r\n").into_bytes(), chunked(body, chunk)].concat()
        }
    }
}

/// Every length, framing and way gives the upstream the same bytes, and what follows a body is the next request.
#[test]
fn bodies_arrive_as_they_were_sent() {
    let server = echo("");
    for path in PATHS {
        for chunk in [0, 1000, 100_000] {
            let lengths =
                [0, 1, 1024, 1025, 16_384, 16_385, 32_768, 32_769, 65_536, 65_537, 300_000, 1_500_001];
            // All on one connection, each behind the one before.
            let mut client = server.connect();
            let mut sender = client.try_clone().expect("a second handle");
            let sending = std::thread::spawn(move || {
                for (i, len) in lengths.into_iter().enumerate() {
                    sender.send(request(path, &content(len, i), chunk));
                }
            });
            for (i, len) in lengths.into_iter().enumerate() {
                let (head, body) = response(&mut client);
                assert!(head.starts_with("HTTP/1.1 200 "), "{path} {chunk} {len}: {head}");
                assert!(body == content(len, i), "{path} {chunk} {len}: {} bytes", body.len());
            }
            sending.join().expect("all sent");
        }
    }
}

/// A client that sends in pieces, with the upstream's answer to the one before between them.
#[test]
fn bodies_that_come_in_pieces() {
    let server = echo("");
    for path in PATHS {
        let body = content(200_000, 3);
        let bytes = request(path, &body, 0);
        for pieces in [&[70, 5, 100_000, 1, 30_000, 40_000, 20_000][..], &[100_000; 3], &[9_999; 21]] {
            let mut client = server.connect();
            client.set_nodelay(true).expect("set");
            let mut rest = bytes.as_slice();
            for n in pieces {
                let (piece, after) = rest.split_at((*n).min(rest.len()));
                client.send(piece);
                rest = after;
                std::thread::yield_now();
            }
            client.send(rest);
            let (_, got) = response(&mut client);
            assert!(got == body, "{path}: {} bytes", got.len());
        }
    }
}

/// The server waits with a body for a client that wants to be asked, whichever way the body takes.
#[test]
fn a_body_that_waits_to_be_asked_for() {
    let server = echo("");
    for path in PATHS {
        let body = content(500_000, 5);
        let mut client = server.connect();
        let head = format!(
            "POST /{path} HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        client.send(&head);
        let mut interim = [0; 25];
        client.read_exact(&mut interim).expect("asked");
        assert_eq!(&interim, b"HTTP/1.1 100 Continue\r\n\r\n", "{path}");
        client.send(&body);
        let (_, got) = response(&mut client);
        assert!(got == body, "{path}: {} bytes", got.len());
    }
}

/// An upstream that reads slowly, one that answers in the midst of a long body, and one that goes away.
#[test]
fn upstreams_that_do_not_read_to_the_end() {
    let up = Origin::at_head(|asked| match asked.target() {
        "/slow" => {
            let mut all = Vec::new();
            while all.len() < 3_000_000 {
                let piece = asked.take(100_000);
                if piece.is_empty() {
                    return false;
                }
                all.extend(piece);
                std::thread::yield_now();
            }
            let right = all == content(3_000_000, 9);
            asked.write(format!("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{right:<5}"))
        }
        "/early" => {
            asked.take(200_000);
            asked.write(b"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: 3\r\n\r\nbig");
            // The server may go on sending for a while.
            while asked.more() {}
            false
        }
        _ => {
            asked.take(200_000);
            false
        }
    });
    let server = Server::start(format!(
        "worker_processes 1; events {{}}\n\
         http {{ access_log off; client_max_body_size 0; server {{ listen 127.0.0.1:%PORT0%; proxy_request_buffering off; \
         location / {{ proxy_pass http://{up}; }} }} }}"
    ));
    let bytes = |path: &str| request(path, &content(3_000_000, 9), 0);
    let mut client = server.send(bytes("slow"));
    assert_eq!(response(&mut client).1, b"true ");
    for (path, status, text) in [("early", "413", "big"), ("gone", "502", "")] {
        let mut client = server.connect();
        let mut sender = client.try_clone().expect("a second handle");
        let sent = bytes(path);
        let sending = std::thread::spawn(move || drop(sender.write_all(&sent)));
        let (head, body) = response(&mut client);
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{path}: {head}");
        assert!(String::from_utf8_lossy(&body).contains(text), "{path}");
        drop(client);
        sending.join().expect("it ends");
    }
}
