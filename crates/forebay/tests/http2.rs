//! HTTP/2 over plain TCP, by frames made here: what is answered, what is refused, and what a client may cost.

mod ends;
mod limits;

use forebay_http::h2::frame::{self, Code, FrameHeader, HEADER_LEN, PREFACE, flag, kind};
use forebay_testkit::{Origin, Server, Site, h2, http, wait_for};
use std::io::{Read, Write};

pub fn serve(http: &str, server: &str) -> Server {
    let site = Site::new(format!(
        "worker_processes 1;\nerror_log logs/error.log info;\nevents {{ worker_connections 256; }}\nhttp {{ access_log \
         logs/access.log; http2 on; {http}\nserver {{ listen 127.0.0.1:%PORT0%; {server} }} }}\n"
    ));
    site.write("html/page", "x".repeat(10_000));
    site.write("html/large", "0123456789".repeat(30_000));
    site.write("html/small", "small");
    Server::start_on(site)
}

#[test]
fn files_of_all_sizes_and_bodies_both_ways() {
    let server = serve(
        "",
        "client_body_temp_path %DIR%/body; location /echo { client_body_buffer_size 1k; proxy_pass http://127.0.0.1:%PORT0%/body; } location /body { \
         client_max_body_size 10m; proxy_pass http://127.0.0.1:%PORT0%/size; } location /size { return 200 \
         $content_length; } location /trailer { add_trailer X-End \"yes\"; alias html/page; }",
    );
    let mut c = h2::Client::new(&server);
    let mut stream = 1;
    for (path, len) in [("/small", 5), ("/page", 10_000), ("/large", 300_000)] {
        assert!(c.request(stream, path, &[], true));
        let a = c.answer(stream);
        assert_eq!((a.field(":status"), a.body.len(), a.ended), ("200", len, true), "{path}");
        assert_eq!(a.field("content-length"), len.to_string());
        stream += 2;
    }
    // Without a length, in pieces, with padding.
    c.request(stream, "/echo", &[(":method", "POST")], false);
    let mut padded = vec![3];
    padded.extend_from_slice(&[b'a'; 1000]);
    padded.extend_from_slice(&[0; 3]);
    c.frame(kind::DATA, flag::PADDED, stream, &padded);
    for _ in 0..9 {
        c.frame(kind::DATA, 0, stream, &[b'b'; 5000]);
    }
    c.frame(kind::DATA, flag::END_STREAM, stream, b"");
    let a = c.answer(stream);
    let log = server.error_log();
    assert_eq!((a.field(":status"), a.body.as_slice()), ("200", &b"46000"[..]), "{log}");
    c.request(stream + 2, "/trailer", &[], true);
    let a = c.answer(stream + 2);
    assert_eq!((a.body.len(), a.trailers), (10_000, vec![("x-end".to_owned(), "yes".to_owned())]));
    c.request(stream + 4, "/page", &[(":method", "HEAD")], true);
    let a = c.answer(stream + 4);
    assert_eq!((a.field("content-length"), a.body.len(), a.ended), ("10000", 0, true));
    let log = wait_for("lines", || Some(server.read("logs/access.log")).filter(|l| l.contains("HEAD")));
    assert!(log.contains("\"GET /large HTTP/2.0\" 200 300000"), "{log}");
}

#[test]
fn many_streams_share_a_connection() {
    let server = serve("", "");
    let mut c = h2::Client::new(&server);
    c.reads = false;
    // Room for all of it.
    let mut out = Vec::new();
    frame::push_window_update(&mut out, 0, 1 << 30);
    frame::push_settings(&mut out, &[(frame::setting::INITIAL_WINDOW_SIZE, 1 << 20)]);
    c.send(&out);
    let streams: Vec<u32> = (0..50).map(|i| 1 + 2 * i).collect();
    for s in &streams {
        c.request(*s, "/large", &[], true);
    }
    let mut got = std::collections::HashMap::new();
    let mut ended = 0;
    while ended < streams.len() {
        let f = c.next().expect("a frame");
        if f.kind == kind::DATA {
            *got.entry(f.stream).or_insert(0) += f.payload.len();
            ended += usize::from(f.flags & flag::END_STREAM != 0);
        }
    }
    assert!(streams.iter().all(|s| got[s] == 300_000), "{got:?}");
}

#[test]
fn urgent_streams_come_first() {
    let server = serve("", "");
    let mut c = h2::Client::new(&server);
    c.reads = false;
    c.request(1, "/large", &[("priority", "u=5")], true);
    c.request(3, "/large", &[("priority", "u=1")], true);
    // The window of the connection is full when this many bytes are here.
    let mut n = 0;
    while n < 65535 {
        let f = c.next().expect("a frame");
        n += if f.kind == kind::DATA { f.payload.len() } else { 0 };
    }
    let mut out = Vec::new();
    for s in [1, 3, 0] {
        frame::push_window_update(&mut out, s, 1 << 20);
    }
    c.send(&out);
    let mut ends = Vec::new();
    while ends.len() < 2 {
        let f = c.next().expect("a frame");
        if f.kind == kind::DATA && f.flags & flag::END_STREAM != 0 {
            ends.push(f.stream);
        }
    }
    assert_eq!(ends, [3, 1]);
}

#[test]
fn the_preface_and_http_1_on_one_address() {
    let server = serve("", "");
    assert!(server.get("/small").starts_with("HTTP/1.1 200 OK"));
    let mut preface = server.connect();
    preface.write_all(&PREFACE[..10]).expect("half");
    preface.write_all(&PREFACE[10..]).expect("half");
    let mut first = [0; HEADER_LEN];
    preface.read_exact(&mut first).expect("settings");
    assert_eq!(FrameHeader::parse(&first).map(|h| h.kind), Some(kind::SETTINGS));
}

/// Only the beginning of the preface is HTTP/2. Everything else is answered, has its error page and its line in the log, as over HTTP/1.
#[test]
fn first_lines_that_are_no_preface_are_http_1() {
    const PAGE: &str = "error_page 400 414 505 /sorry; location = /sorry { return 200 \"sorry $status\"; }";
    let server = serve("", PAGE);
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "a".repeat(9000));
    let cases: [(&[u8], &str, &str); 16] = [
        (b"INVALID CONNECTION PREFACE\r\n\r\n", "HTTP/1.1 400 ", "INVALID CONNECTION PREFACE"),
        (b"garbage\r\n", "HTTP/1.1 400 ", "garbage"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "HTTP/1.1 400 ", "\\x16\\x03\\x01"),
        (b"SSH-2.0-OpenSSH_9\r\n", "HTTP/1.1 400 ", "SSH-2.0-OpenSSH_9"),
        (b"\0\0\r\n", "HTTP/1.1 400 ", "\\x00\\x00"),
        (b"PRIX\r\n", "HTTP/1.1 400 ", "PRIX"),
        (b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", "HTTP/1.1 400 ", "PRI * HTTP/2.0"),
        (b"PRI * HTTP/2.0\r\nHost: x\r\n\r\n", "HTTP/1.1 400 ", "PRI * HTTP/2.0"),
        (b"get / HTTP/1.1\r\n\r\n", "HTTP/1.1 400 ", "get / HTTP/1.1"),
        (b"GET / XTTP/1.1\r\n\r\n", "HTTP/1.1 400 ", "GET / XTTP/1.1"),
        (b"GET / HTTP/2.0\r\n\r\n", "HTTP/1.1 505 ", "GET / HTTP/2.0"),
        (b"POST /\r\n", "HTTP/1.1 400 ", "POST /"),
        (b"GET /small\r\n", "small", "GET /small"),
        (long.as_bytes(), "HTTP/1.1 414 ", "GET /aaaaaaaa"),
        (&[b'P'; 9000], "HTTP/1.1 414 ", "PPPPPPPPPPPP"),
        (&[b'A'; 9000], "HTTP/1.1 414 ", "AAAAAAAAAAAA"),
    ];
    for (n, (sent, begins, line)) in cases.iter().enumerate() {
        let said = server.ask(sent);
        let page = said.ends_with("small") || said.contains("sorry");
        assert!(said.starts_with(begins) && page, "{}: {said}", String::from_utf8_lossy(sent));
        let log = wait_for("a line", || {
            Some(server.read("logs/access.log")).filter(|log| log.lines().count() == n + 1)
        });
        assert!(log.lines().last().is_some_and(|l| l.contains(&format!("\"{line}"))), "{line}: {log}");
    }
}

#[test]
fn a_refused_head_is_answered_and_has_its_error_page() {
    let server = serve("", "error_page 400 /sorry; location /sorry { return 200 \"sorry\"; }");
    let mut c = h2::Client::new(&server);
    c.request(1, "/", &[("X-Upper", "1")], true);
    let a = c.answer(1);
    assert_eq!((a.field(":status"), a.body.as_slice()), ("400", &b"sorry"[..]));
    // Malformed: the stream is reset behind the answer.
    let reset = loop {
        let f = c.next().expect("a frame");
        if f.kind == kind::RST_STREAM {
            break f.code();
        }
    };
    assert_eq!(reset, Code::ProtocolError as u32);
    // HTTP/1 has the same page.
    let said = server.ask(b"GET / HTTP/1.1\r\nHost: .\r\n\r\n");
    assert!(said.starts_with("HTTP/1.1 400 ") && said.ends_with("sorry"), "{said}");
}

/// A client whose request is answered before it is complete is told to stop (RFC 9113, section 8.1).
#[test]
fn requests_that_are_answered_early_are_stopped() {
    let server = serve("", "");
    let mut c = h2::Client::new(&server);
    let reset = |c: &mut h2::Client, stream: u32| loop {
        let f = c.next().expect("a frame");
        if f.kind == kind::RST_STREAM && f.stream == stream {
            return f.code();
        }
    };
    let early = |c: &mut h2::Client, stream: u32, more: &[(&str, &str)]| {
        c.request(stream, "/small", more, false);
        let a = c.answer(stream);
        assert!(a.ended && a.reset.is_none(), "{stream}");
    };
    early(&mut c, 1, &[("content-length", "5")]);
    assert_eq!(reset(&mut c, 1), Code::NoError as u32);
    // As in nginx also where no content was announced.
    early(&mut c, 3, &[]);
    assert_eq!(reset(&mut c, 3), Code::NoError as u32);
    c.frame(kind::DATA, 0, 3, b"abc");
    // It still has to keep the rules.
    early(&mut c, 5, &[]);
    assert_eq!(reset(&mut c, 5), Code::NoError as u32);
    c.frame(kind::WINDOW_UPDATE, 0, 5, &0x7fff_ffffu32.to_be_bytes());
    assert_eq!(reset(&mut c, 5), Code::FlowControlError as u32);
    early(&mut c, 7, &[]);
    c.frame(kind::DATA, flag::END_STREAM, 7, b"abc");
    early(&mut c, 9, &[]);
}

/// Clients refuse a response with such a field as malformed (RFC 9113, section 8.2.2).
#[test]
fn responses_have_no_fields_of_a_connection() {
    const SPECIFIC: [&str; 7] = [
        "Connection",
        "Keep-Alive",
        "Proxy-Connection",
        "Transfer-Encoding",
        "Upgrade",
        "HTTP2-Settings",
        "TE",
    ];
    let there = Origin::start(|asked| {
        let fields = "Connection: close\r\nKeep-Alive: timeout=5\r\nProxy-Connection: keep-alive\r\nUpgrade: h2c\r\n\
                      HTTP2-Settings: AAAA\r\nTE: trailers\r\nX-Other: 1\r\n";
        asked.answer("200 OK", fields, "answer");
        false
    });
    let added: String =
        SPECIFIC.iter().map(|name| format!("add_header {name} x; add_trailer {name} x; ")).collect();
    let server = serve(
        "proxy_cache_path %DIR%/cache keys_zone=z:1m;",
        &format!(
            "location / {{ proxy_pass http://{there}; }}\n\
             location /cached {{ proxy_cache z; proxy_cache_valid 1m; proxy_pass http://{there}; }}\n\
             location /added {{ {added} add_header X-Other 1; alias %DIR%/html/small; }}"
        ),
    );
    for uri in ["/", "/cached", "/cached", "/added"] {
        let mut client = h2::Client::new(&server);
        client.request(1, uri, &[], true);
        let answer = client.answer(1);
        assert_eq!((answer.field(":status"), answer.field("x-other")), ("200", "1"), "{uri}");
        for name in SPECIFIC {
            let has = |fields: &[(String, String)]| fields.iter().any(|(n, _)| n.eq_ignore_ascii_case(name));
            assert!(!has(&answer.fields) && !has(&answer.trailers), "{uri}: {name}");
        }
    }
    // Over HTTP/1 those that are not about the connection to the upstream pass, as in nginx.
    let answer = server.get("/");
    for line in [
        "Proxy-Connection: keep-alive\r\n",
        "Upgrade: h2c\r\n",
        "HTTP2-Settings: AAAA\r\n",
        "TE: trailers\r\n",
    ] {
        assert!(answer.contains(line), "{line}: {answer}");
    }
}

#[test]
fn curl_and_h2load_are_served() {
    let server = serve("keepalive_requests 100000;", "");
    let url = format!("http://{}/page", server.addr(0));
    let got = std::process::Command::new("curl")
        .args(["-s", "-o", "/dev/null", "-w", "%{http_version} %{http_code} %{size_download}"])
        .args(["--http2-prior-knowledge", &url])
        .output()
        .expect("curl");
    assert_eq!(String::from_utf8_lossy(&got.stdout), "2 200 10000");
    let got = std::process::Command::new("h2load")
        .args(["-n", "20000", "-c", "10", "-m", "20", &url])
        .output()
        .expect("h2load");
    let text = String::from_utf8_lossy(&got.stdout);
    assert!(text.contains("20000 succeeded, 0 failed, 0 errored"), "{text}");
}

/// A client that does not know of our window yet may send again what has come too early, as it may to nginx.
#[test]
fn content_before_a_smaller_window_is_known_can_be_sent_again() {
    let server = serve("http2_body_preread_size 0;", "location / { return 200 x; }");
    let mut c = h2::Client::new(&server);
    c.request(1, "/", &[(":method", "POST")], false);
    c.frame(kind::DATA, flag::END_STREAM, 1, &[b'x'; 1000]);
    assert_eq!(c.answer(1).reset, Some(Code::RefusedStream as u32));
    // What has no content is answered, and so is all once the window is known.
    c.request(3, "/", &[], true);
    assert_eq!(c.answer(3).field(":status"), "200");
    c.frame(kind::SETTINGS, flag::ACK, 0, &[]);
    c.request(5, "/", &[(":method", "POST")], false);
    assert_eq!(c.answer(5).field(":status"), "200");
}

#[test]
fn line_breaks_in_variables_make_no_fields() {
    let server = serve(
        "",
        "location /a/ { return 302 $uri; } location /b/ { return 302 http://x$uri; }
         location /c/ { add_header X-U $uri; return 200 x; }",
    );
    let mut c = h2::Client::new(&server);
    for (stream, path) in [(1, "/a/%0d%0aEvil"), (3, "/b/%0aEvil"), (5, "/c/%0dEvil")] {
        c.request(stream, path, &[], true);
        let answer = c.answer(stream);
        assert_eq!((answer.field(":status"), answer.field("location")), ("500", ""), "{answer:?}");
        assert_eq!(answer.field("x-u"), "", "{answer:?}");
    }
}

/// An upstream's answer to half a body is passed on at once, and the client told that the rest is not wanted.
#[test]
fn an_answer_before_the_end_of_the_body() {
    let up = Origin::at_head(|asked| {
        asked.close_with(b"HTTP/1.1 413 Too Large\r\nContent-Length: 3\r\nConnection: close\r\n\r\nbig")
    });
    let server = serve(
        "",
        &format!(
            "client_body_timeout 60s; location / {{ proxy_request_buffering off; proxy_pass http://{up}; }}"
        ),
    );
    let mut c = h2::Client::new(&server);
    for (stream, length) in [(1, &[("content-length", "100")][..]), (3, &[])] {
        c.request(stream, "/", &[&[(":method", "PUT")], length].concat(), false);
        c.frame(kind::DATA, 0, stream, b"abc");
        let a = c.answer(stream);
        assert_eq!(
            (a.field(":status"), a.body.as_slice(), a.ended),
            ("413", &b"big"[..], true),
            "{length:?}"
        );
    }
    c.request(5, "/", &[], true);
    assert_eq!(c.answer(5).field(":status"), "413");
}

/// A response to HEAD has no content, so it ends with its head, though the body of the upstream's response goes into a cache.
#[test]
fn a_response_to_head_ends_before_the_upstreams_body() {
    let (go_on, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let up = Origin::start(move |asked| {
        asked.write(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\nCache-Control: max-age=60\r\n\r\nSEE-");
        let _ = wait.lock().expect("lock").recv();
        asked.write(b"THIS")
    });
    let server = Server::start(http!(
        "http2 on; \
         proxy_cache_path cache keys_zone=c:1m; server {{ listen 127.0.0.1:%PORT0%; location / {{ \
         proxy_pass http://{up}; proxy_cache c; }} }}"
    ));
    let mut client = h2::Client::new(&server);
    client.request(1, "/a", &[(":method", "HEAD")], true);
    let answer = client.answer(1);
    assert_eq!((answer.field(":status"), answer.field("content-length")), ("200", "8"));
    assert!(answer.ended && answer.body.is_empty());
    drop(go_on);
    client.request(3, "/a", &[], true);
    assert_eq!(client.answer(3).body, b"SEE-THIS");
}

/// Fields of `add_header` are the same over HTTP/1, also those that the server holds apart.
#[test]
fn added_fields_are_those_of_http1() {
    let up = Origin::start(|asked| {
        let fields = "ETag: \"up\"\r\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\nCache-Control: max-age=60\r\nContent-Type: a/b\r\n";
        asked.answer("200 OK", fields, "up")
    });
    let kinds = [
        "alias %DIR%/html/;".to_owned(),
        format!("proxy_pass http://{up}/;"),
        format!("proxy_pass http://{up}/; proxy_cache one; proxy_cache_key $uri;"),
    ];
    let added = [
        "ETag \"\"",
        "ETag '\"new\"'",
        "Last-Modified \"\"",
        "Last-Modified \"Mon, 07 Nov 1994 08:49:37 GMT\"",
        "Last-Modified junk",
        "Date now",
        "Server mine",
        "Content-Type text/x",
        "Location /new",
        "Accept-Ranges none",
        "Cache-Control no-store",
        "Vary Y",
        "Link <b>",
    ];
    let mut locations = String::new();
    let mut paths = Vec::new();
    for (k, kind) in kinds.iter().enumerate() {
        for (i, field) in added.iter().enumerate() {
            locations += &format!("location /{k}-{i}/ {{ {kind} add_header {field}; }}\n");
            // Twice, so that one comes from a cache.
            paths.extend([format!("/{k}-{i}/small"), format!("/{k}-{i}/small")]);
        }
    }
    let server = serve("proxy_cache_path %DIR%/cache keys_zone=one:1m;", &locations);
    let mut client = h2::Client::new(&server);
    for (n, path) in paths.iter().enumerate() {
        let (name, value) = added[n / 2 % added.len()].split_once(' ').expect("a value");
        let text = server.get(path);
        let head = text.split_once("\r\n\r\n").expect("a head").0;
        let mut old: Vec<(String, String)> = (head.lines().skip(1))
            .filter_map(|l| l.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned()))
            .collect();
        let stream = 2 * n as u32 + 1;
        client.request(stream, path, &[], true);
        let mut new = client.answer(stream).fields;
        for fields in [&mut old, &mut new] {
            let own = name == "Date";
            fields.retain(|(n, _)| (own || n != "date") && n != ":status" && n != "connection");
            fields.sort();
        }
        assert_eq!(old, new, "{path} {name}");
        let lines: Vec<&str> =
            new.iter().filter(|(n, _)| *n == name.to_ascii_lowercase()).map(|(_, v)| v.as_str()).collect();
        if matches!(name, "ETag" | "Last-Modified" | "Date" | "Server") {
            let value = value.trim_matches(['"', '\'']);
            let wanted = [value].into_iter().filter(|v| !v.is_empty());
            assert!(lines.iter().map(|v| v.trim_matches('"')).eq(wanted), "{path} {name}: {lines:?}");
        }
    }
}

/// What a body is too large for is answered by the page of `error_page`, and `$http_host` is there without a field `Host`.
#[test]
fn pages_of_413_and_the_host_are_those_of_http1() {
    let up = Origin::start(|asked| asked.answer("200 OK", "", "up"));
    let server = serve(
        "",
        &format!(
            "client_max_body_size 10; error_page 413 /large.html; location / {{ proxy_pass http://{up}; }}\n\
             location /streamed {{ proxy_request_buffering off; proxy_pass http://{up}; }}\n\
             location = /large.html {{ return 200 \"too large, $http_host\"; }} location /host {{ return 200 \"$http_host $host\"; }}"
        ),
    );
    for (n, (path, length)) in
        [("/", Some("100")), ("/", None), ("/streamed", Some("100"))].into_iter().enumerate()
    {
        let mut client = h2::Client::new(&server);
        let stream = 2 * n as u32 + 1;
        let fields: Vec<_> =
            [(":method", "POST")].into_iter().chain(length.map(|l| ("content-length", l))).collect();
        client.request(stream, path, &fields, false);
        client.frame(kind::DATA, flag::END_STREAM, stream, &[b'x'; 100]);
        let answer = client.answer(stream);
        assert_eq!(answer.field(":status"), "413", "{path} {length:?}");
        assert!(answer.body.starts_with(b"too large, "), "{path} {length:?}: {answer:?}");
    }
    let mut client = h2::Client::new(&server);
    client.request(1, "/host", &[], true);
    let body = String::from_utf8(client.answer(1).body).expect("text");
    let (field, host) = body.split_once(' ').expect("two names");
    assert!(!host.is_empty() && field.starts_with(host), "{body}");
}
