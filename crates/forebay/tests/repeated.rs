//! Requests that are sent again after a status, and the time limit for all attempts.

use forebay_testkit::{DEADLINE, Origin, Server, http};
use std::time::{Duration, Instant};

forebay_testkit::cases!("cases/repeated.cases": statuses_that_are_repeated, statuses_that_are_not_repeated);

/// Starts a server whose upstream answers the first request with 503 and the others with 200.
fn failing_first(settings: &str) -> (Server, Origin) {
    let first = std::sync::atomic::AtomicBool::new(true);
    let up = Origin::start(move |asked| {
        let is_first = first.swap(false, std::sync::atomic::Ordering::SeqCst);
        asked.answer(if is_first { "503 X" } else { "200 OK" }, "", "body\n")
    });
    (server(up, settings), up)
}

fn server(upstream: Origin, settings: &str) -> Server {
    Server::start(http!(
        "upstream u {{ server {upstream} max_fails=0; }}\n\
         proxy_next_upstream error timeout http_503; proxy_next_upstream_again on;\n\
         server {{ listen 127.0.0.1:%PORT0%; location / {{ proxy_pass http://u; {settings} }} }}"
    ))
}

/// The limit is one for all attempts, however short each of them is.
#[test]
fn all_attempts_have_one_limit() {
    let up = Origin::start(|asked| {
        std::thread::sleep(Duration::from_millis(120));
        asked.answer("503 X", "", "body\n")
    });
    let server =
        server(up, "proxy_next_upstream_tries 100; proxy_read_timeout 10s; proxy_response_timeout 500ms;");
    let begun = Instant::now();
    assert!(server.get("/").starts_with("HTTP/1.1 504 "));
    assert!(begun.elapsed() < DEADLINE / 2, "{:?}", begun.elapsed());
    assert!(server.error_log().contains("proxy_response_timeout"), "{}", server.error_log());
}

/// A pause lies between two attempts, and none that the limit of time leaves no room for.
#[test]
fn attempts_pause() {
    let pauses = "proxy_next_upstream_tries 3; proxy_next_upstream_delay 200ms;";
    for (limit, status, asked) in [
        ("", "200", 2),
        ("proxy_next_upstream_timeout 150ms;", "503", 1),
        ("proxy_response_timeout 150ms;", "504", 1),
    ] {
        let (server, up) = failing_first(&format!("{pauses} {limit}"));
        let begun = Instant::now();
        assert!(server.get("/").starts_with(&format!("HTTP/1.1 {status} ")), "{limit}");
        assert!(asked == 1 || begun.elapsed() >= Duration::from_millis(200), "{:?}", begun.elapsed());
        assert_eq!(up.asked(), asked, "{limit}");
    }
}
