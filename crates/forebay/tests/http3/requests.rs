//! Requests and their answers.

use super::{Client, serve};
use forebay_testkit::{Asked, Origin, Server, wait_until};
use serde_json::json;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

forebay_testkit::cases!("../cases/http3/requests.cases":
    files, a_hundred_requests_at_a_time, trailers_and_early_hints_of_an_upstream, compression,
    a_large_field_ends_its_request_alone);

/// Small answers, whose end is sent along with their content, through windows that take only a part of them.
#[test]
fn small_answers_through_small_windows() {
    let Some(mut client) = Client::start() else { return };
    let server = serve("");
    let sizes = [0, 1, 100, 1000, 4000];
    for size in sizes {
        server.write(format!("html/{size}"), &"0123456789".repeat(size)[..size]);
    }
    for window in [1, 77, 300, 3000] {
        // The connection's window holds several streams up, too.
        client.connect_with("a", &server, json!({"stream_window": window, "window": 600}));
        for turn in 0..3 {
            for size in sizes {
                let told = client.ask("a", json!({"path": format!("/{size}"), "text": true}));
                assert_eq!(
                    (&told["status"], &told["whole"], &told["ended"]),
                    (&json!(200), &json!("0123456789".repeat(size)[..size]), &json!(true)),
                    "a window of {window}, request {turn} for {size}"
                );
            }
        }
    }
}

/// A server that passes requests on, and the upstream.
fn proxied(lines: &str, answer: impl Fn(&mut Asked) -> bool + Send + Sync + 'static) -> Server {
    let up = Origin::start(answer);
    serve(&format!("client_max_body_size 10m; location / {{ proxy_pass http://{up}; {lines} }}"))
}

#[test]
fn uploads() {
    let Some(mut client) = Client::start() else { return };
    for lines in ["", "proxy_request_buffering off; proxy_http_version 1.1;"] {
        let server = proxied(lines, |asked| {
            let body = asked.text.split_once("\r\n\r\n").map_or(0, |(_, body)| body.len());
            let told = format!("{} {}", asked.field("content-length"), body);
            asked.answer("200 OK", "", &told)
        });
        client.connect("a", &server);
        let fields = json!([["content-length", "200000"]]);
        let told = client.ask("a", json!({"method": "POST", "length": 200_000, "fields": fields}));
        assert_eq!((&told["status"], &told["text"]), (&json!(200), &json!("200000 200000")), "{lines}");
        let small = json!({"method": "POST", "length": 3, "fields": [["content-length", "3"]]});
        assert_eq!(client.ask("a", small)["text"], "3 3", "{lines}");
        if lines.is_empty() {
            // The length is only known once everything is there.
            let told = client.ask("a", json!({"method": "POST", "length": 200_000}));
            assert_eq!(told["text"], "200000 200000");
        }
        // RFC 9114, section 4.1.2: a malformed request is a stream error.
        for announced in ["9", "11"] {
            let fields = json!([["content-length", announced]]);
            let told = client.ask("a", json!({"method": "POST", "length": 10, "fields": fields}));
            let malformed = [&told["reset"], &told["stopped"]].iter().any(|code| **code == 0x10e);
            assert!(malformed || told["status"] == 400, "{lines} {announced}: {told}");
            assert_eq!(told["closed"], json!(null));
        }
        assert_eq!(
            client.ask("a", json!({"method": "POST", "length": 3, "fields": [["content-length", "3"]]}))["text"],
            "3 3"
        );
    }
}

/// A client that gives a request up, in either way, ends the upstream's connection.
#[test]
fn requests_that_are_given_up() {
    let Some(mut client) = Client::start() else { return };
    for (how, lines) in [("stop", ""), ("reset", "proxy_request_buffering off; proxy_http_version 1.1;")] {
        let (begun, ended) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let (b, e) = (begun.clone(), ended.clone());
        // The request is longer than what comes, so this socket reads by itself.
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
        let up = listener.local_addr().expect("address");
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let _ = stream.set_read_timeout(Some(Duration::from_secs(20)));
                let mut buf = [0; 4096];
                if stream.read(&mut buf).is_ok_and(|n| n > 0) {
                    let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc");
                    b.fetch_add(1, Ordering::SeqCst);
                }
                while stream.read(&mut buf).is_ok_and(|n| n > 0) {}
                e.fetch_add(1, Ordering::SeqCst);
            }
        });
        let server = serve(&format!("location / {{ proxy_pass http://{up}; {lines} }}"));
        client.connect("a", &server);
        let request = match how {
            "stop" => json!({}),
            _ => json!({"method": "POST", "length": 10, "end": false, "fields": [["content-length", "20"]]}),
        };
        client.request("a", "r", request);
        wait_until("a request upstream", || begun.load(Ordering::SeqCst) == 1);
        if how == "stop" {
            client.call("answer", json!({"of": "r", "until": "head"}));
        }
        client.call(how, json!({"of": "r"}));
        client.call("ping", json!({"on": "a"}));
        wait_until("the end of the upstream's connection", || ended.load(Ordering::SeqCst) == 1);
        assert_eq!(client.call("state", json!({"on": "a"}))["closed"], json!(null), "{how}");
    }
}
