//! Pages with SSI commands, and bodies of subrequests around a body.

use forebay_testkit::{Answer, Origin, Server, Site, Talk, body_of, dechunked, through, tool};
use std::io::Read;
use std::sync::Mutex;
use std::sync::mpsc;

forebay_testkit::cases!("cases/pages.cases":
    commands_do_what_they_do_in_nginx, an_include_is_sent_as_it_comes, includes_are_fetched_at_the_same_time,
    parts_of_a_page_inherit_fields_and_body, conditions_may_stand_inside_each_other, memory_of_a_page_has_a_bound,
    a_part_ends_when_the_client_leaves);

/// A server whose location / has pages, with an upstream below /up/.
fn server(up: impl std::fmt::Display, more: &str, pages: &[(&str, &str)]) -> Server {
    let site = Site::new(forebay_testkit::server!(
        "listen 127.0.0.1:%PORT1% http2; root %DIR%/pages; default_type text/html;\n\
         ssi on; {more} location /up/ {{ proxy_pass http://{up}; }}"
    ));
    for (name, text) in pages {
        site.write(format!("pages/{name}"), text);
    }
    Server::start_on(site)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_pause_of_an_unbuffered_upstream_flushes_the_compressed_page() {
    let (go, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let up = Origin::start(move |asked| {
        asked.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 10\r\n\r\nearly");
        wait.lock().expect("lock").recv().expect("a sign");
        asked.write(b" late")
    });
    let server = server(up, "gzip on; gzip_min_length 0; proxy_buffering off;", &[]);
    let mut client = server.connect();
    client.set_read_timeout(Some(std::time::Duration::from_secs(20))).expect("a timeout");
    let request =
        b"GET /up/x HTTP/1.1\r\nHost: localhost\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n";
    client.send(request);
    let mut got = Vec::new();
    let mut piece = [0; 65536];
    // The upstream has sent half of the body and waits. The mark ends bytes that can be decompressed (Z_SYNC_FLUSH).
    while !got.windows(4).any(|w| w == [0, 0, 0xff, 0xff]) {
        let n = client.read(&mut piece).expect("read");
        assert!(n > 0, "{}", server.error_log());
        got.extend_from_slice(&piece[..n]);
    }
    go.send(()).expect("sent");
    client.read_to_end(&mut got).expect("read");
    assert_eq!(through(&["gzip", "-dc"], &Answer::of(&got).body), b"early late");
}

#[test]
fn pages_go_over_every_version() {
    let up = Origin::start(|asked| asked.answer("200 OK", "", "from above"));
    let page = "A<!--#include virtual=\"/up/x\" -->|<!--#include virtual=\"/inc.html\" -->Z";
    let want = "Afrom above|[/inc.html]Z";
    let server = server(
        up,
        "gzip on; gzip_min_length 0;",
        &[("p.html", page), ("inc.html", "[<!--#echo var=\"uri\" -->]")],
    );
    // One connection, one request after the other.
    let request = "GET /p.html HTTP/1.1\r\nHost: x\r\n\r\n";
    let last = "GET /p.html HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
    let head = "HEAD /p.html HTTP/1.1\r\nHost: x\r\n\r\n";
    let both = text(&server.raw(format!("{request}{head}{last}")));
    let answers: Vec<&str> = both.split("HTTP/1.1 200 OK").collect();
    assert_eq!(answers.len(), 4, "{both}");
    assert_eq!(text(&dechunked(body_of(answers[1].as_bytes()))), want);
    assert!(answers[2].ends_with("\r\n\r\n") && !answers[2].contains("Content-Length"), "{}", answers[2]);
    assert_eq!(text(&dechunked(body_of(answers[3].as_bytes()))), want);
    let old = text(&server.raw(b"GET /p.html HTTP/1.0\r\n\r\n"));
    assert!(old.ends_with(&format!("\r\n\r\n{want}")), "{old}");
    let zipped =
        server.raw(b"GET /p.html HTTP/1.1\r\nHost: x\r\nAccept-Encoding: gzip\r\nConnection: close\r\n\r\n");
    assert!(text(&zipped).contains("Content-Encoding: gzip"));
    if tool("gzip") {
        assert_eq!(text(&through(&["gzip", "-dc"], &dechunked(body_of(&zipped)))), want);
    }
    if tool("curl") {
        let url = format!("http://{}/p.html", server.addr(1));
        let got = std::process::Command::new("curl").args(["-s", "--http2-prior-knowledge", &url]).output();
        assert_eq!(text(&got.expect("curl").stdout), want);
    }
}
