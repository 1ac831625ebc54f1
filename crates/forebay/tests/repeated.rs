//! Requests that are sent again after a status, and the time limit for all attempts.

use forebay_testkit::{DEADLINE, Origin, Server, http, raw};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// Starts an upstream that answers the first request of a row with a status and the others with 200. Returns the requests so far.
fn failing_first(status: &'static str) -> (SocketAddr, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let own = count.clone();
    let up = Origin::start(move |asked| {
        let first = own.fetch_add(1, SeqCst) == 0;
        asked.answer(if first { status } else { "200 OK" }, "", "body\n")
    });
    (up.addr, count)
}

fn server(upstream: SocketAddr, settings: &str) -> Server {
    Server::start(http!(
        "upstream u {{ server {upstream} max_fails=0; }}\n\
         server {{ listen 127.0.0.1:%PORT0%; location / {{ proxy_pass http://u; {settings} }} }}"
    ))
}

fn ask(server: &Server, method: &str) -> String {
    let answer = raw(
        server.addr(0),
        format!("{method} / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"),
    );
    String::from_utf8_lossy(&answer).split(' ').nth(1).unwrap_or_default().to_owned()
}

/// Any status of an error may be a reason, and none of them is one to send a POST again.
#[test]
fn statuses_that_are_repeated() {
    for (status, word) in
        [("408 X", "http_408"), ("425 X", "http_425"), ("599 X", "http_599"), ("503 X", "http_503")]
    {
        for (method, wanted, requests) in
            [("GET", "200", 2), ("POST", status.split(' ').next().unwrap_or_default(), 1)]
        {
            let (upstream, count) = failing_first(status);
            let settings = format!(
                "proxy_next_upstream error timeout {word}; proxy_next_upstream_tries 2; proxy_next_upstream_again on;"
            );
            let server = server(upstream, &settings);
            assert_eq!(ask(&server, method), wanted, "{method} {status}");
            assert_eq!(count.load(SeqCst), requests, "{method} {status}");
        }
    }
}

/// A status that is not named is answered as it is.
#[test]
fn statuses_that_are_not_repeated() {
    let (upstream, count) = failing_first("418 X");
    let server = server(
        upstream,
        "proxy_next_upstream http_425 http_503; proxy_next_upstream_tries 2; proxy_next_upstream_again on;",
    );
    assert_eq!(ask(&server, "GET"), "418");
    assert_eq!(count.load(SeqCst), 1);
}

/// The limit is one for all attempts, however short each of them is.
#[test]
fn all_attempts_have_one_limit() {
    let addr = Origin::start(|asked| {
        std::thread::sleep(Duration::from_millis(120));
        asked.answer("503 X", "", "body\n")
    })
    .addr;
    let settings = "proxy_next_upstream error timeout http_503; proxy_next_upstream_tries 100; proxy_next_upstream_again on;\n\
                    proxy_read_timeout 10s; proxy_response_timeout 500ms;";
    let server = server(addr, settings);
    let begun = Instant::now();
    assert_eq!(ask(&server, "GET"), "504");
    assert!(begun.elapsed() < DEADLINE / 2, "{:?}", begun.elapsed());
    assert!(
        server.read("logs/error.log").contains("proxy_response_timeout"),
        "{}",
        server.read("logs/error.log")
    );
}

/// A pause lies between two attempts, and none that the limit of time leaves no room for.
#[test]
fn attempts_pause() {
    let settings = "proxy_next_upstream error timeout http_503; proxy_next_upstream_tries 3; proxy_next_upstream_again on;\n\
                    proxy_next_upstream_delay 200ms;";
    let (upstream, count) = failing_first("503 X");
    let server_of = |more: &str| server(upstream, &format!("{settings} {more}"));
    let patient = server_of("");
    let begun = Instant::now();
    assert_eq!(ask(&patient, "GET"), "200");
    assert!(begun.elapsed() >= Duration::from_millis(200), "{:?}", begun.elapsed());
    assert_eq!(count.load(SeqCst), 2);
    let (upstream, count) = failing_first("503 X");
    let hurried = server(upstream, &format!("{settings} proxy_next_upstream_timeout 150ms;"));
    assert_eq!(ask(&hurried, "GET"), "503");
    assert_eq!(count.load(SeqCst), 1);
    let (upstream, count) = failing_first("503 X");
    let limited = server(upstream, &format!("{settings} proxy_response_timeout 150ms;"));
    assert_eq!(ask(&limited, "GET"), "504");
    assert_eq!(count.load(SeqCst), 1);
}
