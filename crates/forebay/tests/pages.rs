//! Pages with SSI commands, and bodies of subrequests around a body.

use forebay_testkit::{Answer, Origin, Server, Site, Talk, body_of, dechunked, raw, through, tool};
use std::io::Read;
use std::sync::mpsc;
use std::sync::{Arc, Mutex};

forebay_testkit::cases!("cases/pages.cases": commands_do_what_they_do_in_nginx);

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
fn an_include_is_sent_as_it_comes() {
    let (go, wait) = mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let up = Origin::start(move |asked| {
        asked.write(b"HTTP/1.1 200 OK\r\nContent-Length: 200005\r\n\r\n");
        asked.write([b'u'; 100_000]);
        wait.lock().expect("lock").recv().expect("a sign");
        asked.write([b'u'; 100_000]);
        asked.write(b"after")
    });
    let server = server(up, "", &[("p.html", "A<!--#include virtual=\"/up/x\" -->Z")]);
    let mut client = server.send(b"GET /p.html HTTP/1.0\r\n\r\n");
    let mut got = Vec::new();
    let mut piece = [0; 65536];
    // The second half is not even on its way yet.
    while got.len() < 80_000 {
        let n = client.read(&mut piece).expect("read");
        assert!(n > 0, "{}", server.error_log());
        got.extend_from_slice(&piece[..n]);
    }
    go.send(()).expect("sent");
    client.read_to_end(&mut got).expect("read");
    let body = text(&got).split_once("\r\n\r\n").expect("a head").1.to_owned();
    assert_eq!(body.len(), 200_007);
    assert!(body.starts_with("Auu") && body.ends_with("uafterZ"));
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
fn includes_are_fetched_at_the_same_time() {
    let (here, arrived) = mpsc::channel();
    let (here, arrived) = (Mutex::new(here), Mutex::new(arrived));
    // The first is answered when the third has come.
    let up = Origin::start(move |asked| {
        let n = asked.target().trim_start_matches("/up/").to_owned();
        match n.as_str() {
            "1" => {
                let wait = std::time::Duration::from_secs(10);
                arrived.lock().expect("lock").recv_timeout(wait).expect("the third");
            }
            "3" => here.lock().expect("lock").send(()).expect("sent"),
            _ => {}
        }
        asked.answer("200 OK", "", format!("<{n}>"))
    });
    let page: String = ["A", "B", "C"]
        .iter()
        .zip(1..)
        .map(|(t, n)| format!("{t}<!--#include virtual=\"/up/{n}\" -->"))
        .collect();
    let many: String = (0..60).map(|n| format!("<!--#include virtual=\"/up/m{n}\" -->")).collect();
    let server = server(up, "", &[("p.html", &page), ("many.html", &many)]);
    let got = text(&server.raw(b"GET /p.html HTTP/1.0\r\n\r\n"));
    assert!(got.ends_with("\r\n\r\nA<1>B<2>C<3>"), "{got}");
    let got = text(&server.raw(b"GET /many.html HTTP/1.0\r\n\r\n"));
    let want: String = (0..60).map(|n| format!("<m{n}>")).collect();
    assert!(got.ends_with(&format!("\r\n\r\n{want}")), "{got}");
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

#[test]
fn parts_of_a_page_inherit_fields_and_body() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let all = seen.clone();
    let up = Origin::start(move |asked| {
        all.lock().expect("seen").push(asked.text.clone());
        let body =
            if asked.target() == "/up/page" { "<!--#include virtual=\"/up/part?x=1\" -->" } else { "part" };
        asked.answer("200 OK", "Content-Type: text/html\r\n", body)
    });
    let server = server(up, "", &[]);
    let request = "POST /up/page HTTP/1.0\r\nX-Mine: 1\r\nContent-Length: 3\r\n\r\nabc";
    assert!(text(&server.raw(request)).ends_with("\r\n\r\npart"));
    let seen = seen.lock().expect("seen");
    assert_eq!(seen.len(), 2);
    assert!(seen[1].starts_with("GET /up/part?x=1 ") && seen[1].contains("X-Mine: 1"), "{}", seen[1]);
    assert!(seen[1].ends_with("abc"), "{}", seen[1]);
}

#[test]
fn conditions_may_stand_inside_each_other() {
    let page = "<!--#if expr=\"$arg_a\" -->A<!--#if expr=\"$arg_b\" -->B<!--#elif expr=\"$arg_c\" -->C<!--#else -->D\
                <!--#endif -->E<!--#else -->F<!--#if expr=\"$arg_b\" -->G<!--#endif -->H<!--#endif -->I";
    let up = Origin::start(|_| false);
    let server = server(up, "", &[("p.html", page)]);
    for (args, want) in
        [("a=1&b=1", "ABEI"), ("a=1&c=1", "ACEI"), ("a=1", "ADEI"), ("b=1", "FGHI"), ("", "FHI")]
    {
        let got = server.get(format!("/p.html?{args}"));
        assert!(
            got.contains(&format!("\r\n{want}\r\n")) || got.ends_with(&format!("\r\n{want}")),
            "{args}: {got}"
        );
    }
}

#[test]
fn memory_of_a_page_has_a_bound() {
    let block = format!("<!--#block name=\"b\" -->{}<!--#endblock -->x", "b".repeat(2 << 20));
    let sets: String =
        (0..20_000).map(|i| format!("<!--#set var=\"v{i}\" value=\"{}\" -->", "v".repeat(200))).collect();
    let up = Origin::start(|_| false);
    let server = server(up, "", &[("block.html", &block), ("sets.html", &sets)]);
    let got = text(&server.raw(b"GET /block.html HTTP/1.0\r\n\r\n"));
    assert!(got.contains("[an error occurred"));
    server.wait_for_log("too much in SSI blocks", 1);
    let got = text(&server.raw(b"GET /sets.html HTTP/1.0\r\n\r\n"));
    assert!(got.contains("[an error occurred"));
    server.wait_for_log("no room for the", 1);
}

#[test]
fn a_part_ends_when_the_client_leaves() {
    let (tell, told) = mpsc::channel();
    let tell = Mutex::new(tell);
    let up = Origin::start(move |asked| {
        asked.write(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n");
        tell.lock().expect("lock").send(()).expect("told");
        let mut byte = [0; 1];
        let gone = !matches!(asked.stream.read(&mut byte), Ok(n) if n > 0);
        tell.lock().expect("lock").send(()).expect("told");
        !gone
    });
    let server = server(up, "", &[("p.html", "A<!--#include virtual=\"/up/x\" -->Z")]);
    let client = server.send(b"GET /p.html HTTP/1.0\r\n\r\n");
    told.recv_timeout(std::time::Duration::from_secs(10)).expect("asked");
    drop(client);
    told.recv_timeout(std::time::Duration::from_secs(10)).expect("the connection to the upstream is closed");
    assert!(raw(server.addr(0), b"GET /none HTTP/1.0\r\n\r\n").starts_with(b"HTTP/1.1 404"));
}
