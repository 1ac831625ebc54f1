//! HTTP/2 to upstreams: Forebay, nginx and frames made here on the other side.

use forebay_http::compression::{Field, Sink};
use forebay_http::h2::encode;
use forebay_http::h2::frame::{self, Code, FrameHeader, flag, kind, setting};
use forebay_http::h2::hpack::Decoder;
use forebay_testkit::{Conf, DEADLINE, Oracle, Origin, Server, Site, Talk, ask, connect, http, oracle, run};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::Command;

fn conf(http: &str) -> Conf {
    http!(
        "client_max_body_size 100m;\n\
         proxy_http_version 2; {http}"
    )
}

fn number(payload: &[u8]) -> u32 {
    u32::from_be_bytes(payload.try_into().expect("four bytes"))
}

fn put(addr: SocketAddr, uri: &str, body: &[u8], chunked: bool) -> String {
    let mut request = format!("PUT {uri} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n");
    let mut bytes;
    if chunked {
        request.push_str("Transfer-Encoding: chunked\r\n\r\n");
        bytes = request.into_bytes();
        for part in body.chunks(50_000) {
            bytes.extend_from_slice(format!("{:x}\r\n", part.len()).as_bytes());
            bytes.extend_from_slice(part);
            bytes.extend_from_slice(b"\r\n");
        }
        bytes.extend_from_slice(b"0\r\n\r\n");
    } else {
        request.push_str(&format!("Content-Length: {}\r\n\r\n", body.len()));
        bytes = request.into_bytes();
        bytes.extend_from_slice(body);
    }
    ask(addr, &bytes)
}

/// A server that sends `hello` behind SETTINGS when a request has come, to each connection what comes next, and closes.
fn frames(answers: Vec<Vec<u8>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let addr = listener.local_addr().expect("address");
    std::thread::spawn(move || {
        for (mut stream, answer) in listener.incoming().flatten().zip(answers) {
            let mut out = Vec::new();
            frame::push_settings(&mut out, &[]);
            frame::push_settings_ack(&mut out);
            let (mut got, mut buf) = (Vec::new(), [0; 16384]);
            let mut asked = false;
            while !asked {
                let Ok(n @ 1..) = stream.read(&mut buf) else { break };
                got.extend_from_slice(&buf[..n]);
                let mut at = frame::PREFACE.len();
                while let Some(h) = got.get(at..).and_then(FrameHeader::parse) {
                    asked |= h.kind == kind::HEADERS;
                    at += frame::HEADER_LEN + h.len;
                }
            }
            out.extend_from_slice(&answer);
            let _ = stream.write_all(&out);
            let _ = stream.shutdown(std::net::Shutdown::Write);
            while matches!(stream.read(&mut buf), Ok(1..)) {}
        }
    });
    addr
}

fn headers(fields: &[(&str, &str)], flags: u8) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        match *name {
            ":status" => encode::status(&mut block, value.parse().expect("a status")),
            _ => encode::field(&mut block, name.as_bytes(), value.as_bytes()),
        }
    }
    let mut out = Vec::new();
    frame::push_header(&mut out, block.len(), kind::HEADERS, flags | flag::END_HEADERS, 1);
    out.extend(block);
    out
}

fn data(text: &[u8], flags: u8) -> Vec<u8> {
    let mut out = Vec::new();
    frame::push_header(&mut out, text.len(), kind::DATA, flags, 1);
    out.extend_from_slice(text);
    out
}

const END: u8 = flag::END_STREAM;

#[test]
fn bodies_go_both_ways() {
    // Behind the second server one that answers with what it was sent.
    let echo = Origin::start(|asked| {
        let body = asked.text.split_once("\r\n\r\n").map_or("", |(_, b)| b).to_owned();
        asked.answer("200 OK", "", &body)
    });
    let server = Server::start(conf(&format!(
        "upstream u {{ server 127.0.0.1:%PORT1%; keepalive 4; }}\n\
         server {{ listen 127.0.0.1:%PORT0%; location / {{ proxy_pass http://u; }}\n\
           location /streamed {{ proxy_request_buffering off; proxy_buffering off; proxy_pass http://u; }} }}\n\
         server {{ listen 127.0.0.1:%PORT1%; http2 on; proxy_http_version 1.1; proxy_pass_trailers on;\n\
           add_trailer X-Sum 1; location / {{ proxy_pass http://{echo}; }} }}"
    )));
    let body = "0123456789abcdef".repeat(100_000);
    for (uri, chunked) in [("/a", false), ("/a", true), ("/streamed", false), ("/streamed", true)] {
        for len in [0, 1, 70_000, body.len()] {
            let answer = put(server.addr(0), uri, &body.as_bytes()[..len], chunked);
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{uri}: {}", &answer[..answer.len().min(300)]);
            let (_, got) = answer.split_once("\r\n\r\n").expect("a head");
            // Without a length it comes in chunks, whose sizes are of no interest here.
            let plain: String = got.split("\r\n").filter(|l| l.len() > 8 || len < 9).collect();
            assert!(plain.contains(&body[..len]), "{uri} {chunked} {len}: {} bytes", got.len());
        }
    }
    assert!(!server.error_log().contains("[error]"), "{}", server.error_log());
}

/// Returns the content of chunks.
fn dechunk(mut text: &str) -> String {
    let mut out = String::new();
    while let Some((size, rest)) = text.split_once("\r\n") {
        let size = usize::from_str_radix(size, 16).expect("a size");
        out.push_str(&rest[..size]);
        text = &rest[size + 2..];
    }
    out
}

/// A server that answers each piece of a request at once with the same bytes, as far as windows allow.
fn echo() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let addr = listener.local_addr().expect("address");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            std::thread::spawn(move || serve_echo(stream));
        }
    });
    addr
}

fn serve_echo(mut stream: TcpStream) {
    let (mut got, mut buf) = (Vec::new(), vec![0; 65536]);
    let (mut rooms, mut initial, mut id) = ([65_535i64, 65_535], 65_535, 0);
    let (mut owed, mut ended, mut at) = (Vec::new(), false, frame::PREFACE.len());
    let mut out = Vec::new();
    frame::push_settings(&mut out, &[]);
    loop {
        if stream.write_all(&out).is_err() {
            return;
        }
        out.clear();
        let Ok(n @ 1..) = stream.read(&mut buf) else { return };
        got.extend_from_slice(&buf[..n]);
        while let Some(h) = got.get(at..).and_then(FrameHeader::parse) {
            let Some(payload) = got.get(at + frame::HEADER_LEN..at + frame::HEADER_LEN + h.len) else {
                break;
            };
            match h.kind {
                kind::SETTINGS if !h.has(flag::ACK) => {
                    for pair in payload.chunks_exact(6) {
                        if pair[..2] == setting::INITIAL_WINDOW_SIZE.to_be_bytes() {
                            initial = i64::from(number(&pair[2..]));
                        }
                    }
                    frame::push_settings_ack(&mut out);
                }
                kind::HEADERS => {
                    (id, rooms[1]) = (h.stream, initial);
                    let head = headers(&[(":status", "200")], 0);
                    let at = out.len();
                    out.extend(head);
                    out[at + 5..at + 9].copy_from_slice(&id.to_be_bytes());
                }
                kind::DATA => {
                    owed.extend_from_slice(payload);
                    if h.len > 0 {
                        frame::push_window_update(&mut out, 0, h.len as u32);
                        frame::push_window_update(&mut out, id, h.len as u32);
                    }
                }
                kind::WINDOW_UPDATE => {
                    rooms[usize::from(h.stream != 0)] += i64::from(number(payload));
                }
                _ => {}
            }
            ended |= h.has(flag::END_STREAM) && matches!(h.kind, kind::DATA | kind::HEADERS);
            at += frame::HEADER_LEN + h.len;
        }
        got.drain(..at);
        at = 0;
        while !owed.is_empty() && rooms.iter().all(|r| *r > 0) {
            let n = owed.len().min(16_384).min(rooms[0].min(rooms[1]) as usize);
            frame::push_header(&mut out, n, kind::DATA, 0, id);
            out.extend(owed.drain(..n));
            rooms.iter_mut().for_each(|r| *r -= n as i64);
        }
        if ended && owed.is_empty() {
            frame::push_header(&mut out, 0, kind::DATA, flag::END_STREAM, id);
            ended = false;
        }
    }
}

/// Somebody who says more when there is an answer.
fn dialogue(addr: SocketAddr, uri: &str) {
    let mut client = connect(addr);
    let head = format!("PUT {uri} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    client.send(&head);
    let (mut got, mut buf) = (Vec::new(), [0; 4096]);
    for i in 0..20 {
        let word = format!("word{i:04}");
        client.send(format!("8\r\n{word}\r\n"));
        while !got.windows(word.len()).any(|w| w == word.as_bytes()) {
            let n = client.read(&mut buf).expect("an answer to each");
            assert!(n > 0, "{word}: {}", String::from_utf8_lossy(&got));
            got.extend_from_slice(&buf[..n]);
        }
    }
    client.send(b"0\r\n\r\n");
    while !got.ends_with(b"\r\n0\r\n\r\n") {
        let n = client.read(&mut buf).expect("an end");
        assert!(n > 0);
        got.extend_from_slice(&buf[..n]);
    }
}

#[test]
fn grpc_servers_get_what_nginx_sends_and_give_trailers() {
    let answer = || {
        let trailers = headers(&[("grpc-status", "7"), ("grpc-message", "no")], END);
        [headers(&[(":status", "200"), ("content-type", "application/grpc")], 0), data(b"hello", 0), trailers]
            .concat()
    };
    let there = frames(vec![answer(), answer(), answer()]);
    let server = Server::start(conf(&format!(
        "upstream dead {{ server 127.0.0.1:1; }}\n\
         server {{ listen 127.0.0.1:%PORT0%; http2 on;\n\
           location / {{ grpc_set_header X-Set $host; grpc_set_header Accept ''; grpc_pass grpc://127.0.0.1:%PORT1%; }}\n\
           location /rw {{ set $to 127.0.0.1:%PORT1%; rewrite ^/rw(.*)$ /x%20y$1?z=1 break; grpc_pass $to; }}\n\
           location /trailers {{ grpc_pass {there}; }}\n\
           location /passed {{ proxy_pass_trailers on; proxy_pass http://{there}; }}\n\
           location /dead {{ grpc_pass dead; }} }}\n\
         server {{ listen 127.0.0.1:%PORT1%; http2 on; add_header Server x; location / {{\n\
           return 200 '$server_protocol $request_method $request_uri $http_host $http_te $http_x_set $http_accept $http_foo'; }} }}"
    )));
    let ask = |uri: &str, more: &str| {
        let request =
            format!("GET {uri} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAccept: a\r\n{more}\r\n");
        server.ask(&request)
    };
    let port = server.addr(1);
    let got = ask("/a?b=c%20d", "Foo: bar\r\nTE: gzip, trailers\r\n");
    assert!(
        got.ends_with(&format!("\r\nHTTP/2.0 GET /a?b=c%20d {port} trailers x  bar"))
            && !got.contains("Server: x"),
        "{got}"
    );
    let got = ask("/rw/q", "");
    assert!(got.ends_with(&format!("\r\nHTTP/2.0 GET /x%2520y/q?z=1 {port}   a ")), "{got}");
    // To a client of HTTP/1.1 behind the last chunk, to others in HEADERS.
    let got = ask("/trailers", "");
    assert!(
        got.contains("Content-Type: application/grpc\r\n")
            && got.ends_with("\r\n5\r\nhello\r\n0\r\ngrpc-status: 7\r\ngrpc-message: no\r\n\r\n"),
        "{got}"
    );
    for uri in ["/trailers", "/passed"] {
        let url = format!("http://{}{uri}", server.addr(0));
        let (code, got, errors) =
            run("curl", &["-si", "--http2-prior-knowledge", "-m", "20", &url]).expect("curl");
        assert!(
            code == 0 && got.ends_with("\r\n\r\nhellogrpc-status: 7\r\ngrpc-message: no\r\n"),
            "{uri}: {got} {errors}"
        );
    }
    assert!(ask("/dead", "").starts_with("HTTP/1.1 502 "));
    server.wait_for_log("upstream: \"grpc://127.0.0.1:1\", host", 1);
}

#[test]
fn a_response_comes_beside_the_rest_of_the_request() {
    let there = echo();
    let server = Server::start(conf(&format!(
        "upstream u {{ server {there}; keepalive 4; }}\n\
         server {{ listen 127.0.0.1:%PORT0%; location / {{ proxy_pass http://u; }}\n\
           location /set {{ proxy_set_body $request_body; client_body_in_single_buffer on;\n\
             client_body_buffer_size 4m; proxy_pass http://u; }}\n\
           location /grpc {{ grpc_pass u; }}\n\
           location /streamed {{ proxy_request_buffering off; proxy_buffering off; proxy_pass http://u; }} }}"
    )));
    // More than waits anywhere, and a connection that serves the next one as well.
    let body = "0123456789abcdef".repeat(100_000);
    for uri in ["/kept", "/set", "/kept"] {
        let answer = put(server.addr(0), uri, body.as_bytes(), false);
        let (head, got) = answer.split_once("\r\n\r\n").expect("a head");
        assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{uri}: {head}");
        let plain = dechunk(got);
        assert!(plain == body, "{uri}: {} bytes", plain.len());
    }
    for uri in ["/streamed", "/grpc"] {
        dialogue(server.addr(0), uri);
    }
    assert!(!server.error_log().contains("[error]"), "{}", server.error_log());
}

/// Value of `content-length`, written behind the name of a frame.
struct Length(String);

impl Sink for Length {
    fn field(&mut self, Field { name, value, .. }: Field<'_>) {
        if name == b"content-length" {
            self.0.push_str(&format!(" {}", String::from_utf8_lossy(value)));
        }
    }
}

/// A server that reports the frames of each request as one line.
fn listening(report: std::sync::mpsc::Sender<String>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let addr = listener.local_addr().expect("address");
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let report = report.clone();
            std::thread::spawn(move || listen_to(stream, &report));
        }
    });
    addr
}

fn listen_to(mut stream: TcpStream, report: &std::sync::mpsc::Sender<String>) {
    let mut out = Vec::new();
    frame::push_settings(&mut out, &[]);
    frame::push_settings_ack(&mut out);
    stream.send(&out);
    let (mut got, mut buf, mut at) = (Vec::new(), [0; 16384], frame::PREFACE.len());
    let mut line = Length(String::new());
    while let Ok(n @ 1..) = stream.read(&mut buf) {
        got.extend_from_slice(&buf[..n]);
        while let Some(h) = got.get(at..).and_then(FrameHeader::parse)
            && let Some(payload) = got.get(at + frame::HEADER_LEN..at + frame::HEADER_LEN + h.len)
        {
            at += frame::HEADER_LEN + h.len;
            match h.kind {
                kind::HEADERS => {
                    line.0.push_str("HEADERS");
                    Decoder::default().decode(payload, &mut Vec::new(), &mut line).expect("fields");
                }
                kind::DATA => line.0.push_str(&format!(", DATA of {}", h.len)),
                _ => continue,
            }
            if h.has(END) {
                let _ = report.send(std::mem::take(&mut line.0) + " end");
                let _ = stream.write_all(&headers(&[(":status", "204")], END));
            }
        }
    }
}

/// A body that is there, but empty, ends with an empty DATA frame (compared with nginx 1.31.5).
#[test]
fn an_empty_body_ends_with_a_frame_of_its_own() {
    let (report, reports) = std::sync::mpsc::channel();
    let there = listening(report);
    let server = Server::start(conf(&format!(
        "server {{ listen 127.0.0.1:%PORT0%; http2 on; location /grpc {{ grpc_pass {there}; }}\n\
           location /kept {{ proxy_pass http://{there}; }}\n\
           location /streamed {{ proxy_request_buffering off; proxy_pass http://{there}; }} }}"
    )));
    let line = |uri: &str| reports.recv_timeout(DEADLINE).unwrap_or_else(|_| panic!("{uri}: no request"));
    let over_http2 = |uri: &str, length: Option<&str>, content: Option<&[u8]>| {
        let mut block = Vec::new();
        let pseudo = [(":method", "POST"), (":scheme", "http"), (":path", uri), (":authority", "x")];
        for (name, value) in pseudo.into_iter().chain(length.map(|length| ("content-length", length))) {
            encode::field(&mut block, name.as_bytes(), value.as_bytes());
        }
        let mut request = frame::PREFACE.to_vec();
        frame::push_settings(&mut request, &[]);
        let end = if content.is_none() { END } else { 0 };
        frame::push_header(&mut request, block.len(), kind::HEADERS, flag::END_HEADERS | end, 1);
        request.extend(block);
        request.extend(content.into_iter().flat_map(|content| data(content, END)));
        let _client = server.send(&request);
        line(uri)
    };
    for (uri, none, five) in [("/grpc", "", ""), ("/kept", " 0", " 5"), ("/streamed", "", "")] {
        assert_eq!(over_http2(uri, None, None), "HEADERS end", "{uri}");
        assert_eq!(over_http2(uri, None, Some(b"")), format!("HEADERS{none}, DATA of 0 end"), "{uri}");
        assert_eq!(over_http2(uri, Some("0"), Some(b"")), "HEADERS 0, DATA of 0 end", "{uri}");
        assert_eq!(over_http2(uri, Some("0"), None), "HEADERS 0, DATA of 0 end", "{uri}");
        assert_eq!(over_http2(uri, None, Some(b"hello")), format!("HEADERS{five}, DATA of 5 end"), "{uri}");
        for fields in ["Content-Length: 0\r\n\r\n", "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n"] {
            server.raw(format!("POST {uri} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{fields}"));
            assert_eq!(line(uri), "HEADERS 0, DATA of 0 end", "{uri} {fields}");
        }
        server.raw(format!("POST {uri} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"));
        assert_eq!(line(uri), "HEADERS end", "{uri}");
    }
}

#[test]
fn a_connection_serves_many_requests() {
    let server = Server::start(conf(
        "upstream u { server 127.0.0.1:%PORT1%; keepalive 4; }\n\
         server { listen 127.0.0.1:%PORT0%; location / { proxy_pass http://u; }\n\
           location /one { proxy_http_version 1.1; proxy_pass http://u; }\n\
           location /alone { proxy_pass http://127.0.0.1:%PORT1%; } }\n\
         server { listen 127.0.0.1:%PORT1%; http2 on; location / {\n\
           return 200 \"$server_protocol $scheme $host $connection_requests.\"; } }",
    ));
    for n in 1..=3 {
        assert!(server.get("/").contains(&format!("HTTP/2.0 http u {n}.")));
    }
    // Connections of one version are not for the other.
    assert!(server.get("/one").contains("HTTP/1.1 http u 1."));
    assert!(server.get("/").contains("HTTP/2.0 http u 4."));
    let head = server.ask(b"HEAD / HTTP/1.0\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200 OK") && head.ends_with("\r\n\r\n"), "{head}");
    assert!(server.get("/alone").contains("HTTP/2.0 http 127.0.0.1 1."));
}

/// Without a group they serve no other request, so they close at once instead of staying idle for seconds.
#[test]
fn connections_without_a_group_close_after_their_request() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let there = listener.local_addr().expect("address");
    let (report, _reports) = std::sync::mpsc::channel();
    // Takes the next connection when the last one has been closed.
    std::thread::spawn(move || listener.incoming().flatten().for_each(|stream| listen_to(stream, &report)));
    let server = Server::start(conf(&format!(
        "server {{ listen 127.0.0.1:%PORT0%; location / {{ proxy_pass http://{there}; }}\n\
           location /grpc {{ grpc_pass {there}; }} }}"
    )));
    let begun = std::time::Instant::now();
    for uri in ["/", "/grpc"].repeat(5) {
        let answer = server.get(uri);
        assert!(answer.starts_with("HTTP/1.1 204 "), "{uri}: {answer}");
    }
    assert!(begun.elapsed() < DEADLINE, "each connection was kept: {:?}", begun.elapsed());
}

#[test]
fn http2_is_agreed_on_where_it_is_encrypted() {
    let site = Site::new(conf(
        "server { listen 127.0.0.1:%PORT0%; location / { proxy_pass https://127.0.0.1:%PORT1%; } }\n\
         server { listen 127.0.0.1:%PORT1% ssl; http2 on; ssl_certificate a.crt; ssl_certificate_key a.key;\n\
           location / { return 200 \"$server_protocol $scheme $ssl_alpn_protocol.\"; } }",
    ));
    let args = "req -x509 -newkey rsa:2048 -nodes -keyout a.key -out a.crt -days 30 -subj /CN=a";
    let made = Command::new("openssl").args(args.split(' ')).current_dir(site.dir()).output();
    assert!(made.expect("openssl").status.success());
    let server = Server::start_on(site);
    let answer = server.get("/");
    assert!(answer.contains("HTTP/2.0 https h2."), "{answer}");
}

#[test]
fn servers_that_break_the_protocol() {
    let ok = || headers(&[(":status", "200")], 0);
    let long = |n: usize| headers(&[(":status", "200"), ("x", &"{".repeat(n))], END);
    let sized =
        |text: &[u8]| [headers(&[(":status", "200"), ("content-length", "5")], 0), data(text, END)].concat();
    let mut refused = Vec::new();
    frame::push_reset(&mut refused, 1, Code::InternalError);
    let mut settings = Vec::new();
    frame::push_settings(&mut settings, &[(setting::INITIAL_WINDOW_SIZE, u32::MAX)]);
    let mut padded = Vec::new();
    frame::push_header(&mut padded, 1, kind::HEADERS, flag::PADDED | flag::END_HEADERS, 1);
    padded.push(9);
    let cases = [
        (b"HTTP/1.1 200 OK\r\n\r\n".to_vec(), "too large http2 frame"),
        (data(b"x", END), "unexpected DATA frame before headers"),
        (headers(&[("a", "b")], END), "header without \":status\""),
        (headers(&[(":status", "103")], END), "without a final response"),
        (headers(&[(":status", "200"), ("connection", "close")], END), "connection-specific header"),
        (headers(&[(":status", "200"), ("content-length", "x")], END), "invalid \"Content-Length\" header"),
        (long(5000), "too big header"),
        (sized(b"abc"), "smaller than indicated"),
        (sized(b"abcdefgh"), "larger than indicated"),
        ([ok(), data(b"x", END), refused.clone()].concat(), "rejected request with error 2"),
        (refused, "rejected request with error 2"),
        (settings, "too large initial window"),
        (padded, "invalid padding"),
        (Vec::new(), "prematurely closed connection"),
    ];
    let addr = frames(cases.iter().map(|c| c.0.clone()).collect());
    let server = Server::start(conf(&format!(
        "server {{ listen 127.0.0.1:%PORT0%; location / {{ proxy_pass http://{addr}; }} }}"
    )));
    for (i, (_, text)) in cases.iter().enumerate() {
        let answer = server.get(format!("/{i}"));
        assert!(answer.starts_with("HTTP/1.1 502 "), "{text}: {answer}");
        server.wait_for_log(text, 1);
    }
    assert!(!server.error_log().contains("panic"));
}

#[test]
fn a_request_that_was_not_taken_goes_to_the_next_server() {
    let mut goaway = Vec::new();
    frame::push_goaway(&mut goaway, 0, Code::NoError);
    let mut refused = Vec::new();
    frame::push_reset(&mut refused, 1, Code::RefusedStream);
    let leaving = frames(vec![goaway]);
    let busy = frames(vec![refused]);
    let good = || [headers(&[(":status", "200")], 0), data(b"good", END)].concat();
    let (one, two) = (frames(vec![good()]), frames(vec![good()]));
    let server = Server::start(conf(&format!(
        "upstream a {{ server {leaving}; server {one} backup; }} upstream b {{ server {busy}; server {two} backup; }}\n\
         server {{ listen 127.0.0.1:%PORT0%; location /a {{ proxy_pass http://a; }} location /b {{ proxy_pass http://b; }} }}"
    )));
    // Not idempotent: sent again only because nobody can have acted upon it.
    for uri in ["/a", "/b"] {
        let request =
            format!("POST {uri} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi");
        let answer = server.ask(&request);
        assert!(answer.contains("good"), "{answer}");
    }
}

/// The part of a streamed body that one server was sent goes to the next server as well, as long as it is in memory.
#[test]
fn a_streamed_request_that_was_not_taken_is_sent_from_its_beginning() {
    let mut refused = Vec::new();
    frame::push_reset(&mut refused, 1, Code::RefusedStream);
    let busy = frames(vec![refused.clone(), refused.clone(), refused]);
    let there = echo();
    let server = Server::start(conf(&format!(
        "upstream u {{ server {busy} max_fails=0; server {there} backup; }}\n\
         server {{ listen 127.0.0.1:%PORT0%; proxy_request_buffering off; client_body_buffer_size 16;\n\
           location / {{ proxy_pass http://u; }} location /grpc {{ grpc_pass u; }} }}"
    )));
    let begin = |uri: &str, piece: &str| {
        let mut client = server.connect();
        let len = piece.len();
        let head =
            format!("PUT {uri} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: chunked");
        client.send(format!("{head}\r\n\r\n{len:x}\r\n{piece}\r\n"));
        client
    };
    for uri in ["/", "/grpc"] {
        let mut client = begin(uri, "beginning");
        let mut got = [0; 15];
        client.read_exact(&mut got).expect("an answer");
        assert!(got.starts_with(b"HTTP/1.1 200 OK"), "{uri}: {}", String::from_utf8_lossy(&got));
        client.send(b"3\r\nend\r\n0\r\n\r\n");
        let rest = client.rest();
        let (_, content) = rest.split_once("\r\n\r\n").expect("a head");
        assert_eq!(dechunk(content), "beginningend", "{uri}");
    }
    let mut answer = String::new();
    begin("/", "a longer beginning").read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
}

/// A server that answers each request with more than sockets hold, and tells how much of its content has come.
fn flood(came: std::sync::mpsc::Sender<usize>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let addr = listener.local_addr().expect("address");
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut out = Vec::new();
        frame::push_settings(&mut out, &[]);
        frame::push_settings_ack(&mut out);
        out.extend(headers(&[(":status", "200")], 0));
        for _ in 0..15 {
            out.extend(data(&[b'x'; 16_384], 0));
        }
        stream.send(&out);
        let (mut got, mut buf) = (Vec::new(), [0; 16384]);
        let (mut at, mut len) = (frame::PREFACE.len(), 0);
        while let Ok(n @ 1..) = stream.read(&mut buf) {
            got.extend_from_slice(&buf[..n]);
            while let Some(h) = got.get(at..).and_then(FrameHeader::parse) {
                if h.kind == kind::DATA {
                    len += h.len;
                    let _ = came.send(len);
                }
                at += frame::HEADER_LEN + h.len;
            }
        }
    });
    addr
}

/// Each piece of a request arrives though the client takes nothing of the response.
#[test]
fn a_request_goes_on_beside_a_response_that_stands_still() {
    let (tell, came) = std::sync::mpsc::channel();
    let there = flood(tell);
    let server = Server::start(conf(&format!(
        "server {{ listen 127.0.0.1:%PORT0% sndbuf=16k; proxy_request_buffering off;\n\
           location / {{ proxy_pass http://{there}; }} }}"
    )));
    let mut client = server.send(b"PUT / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
    for i in 1..=200 {
        client.send(b"5\r\npiece\r\n");
        while came.recv_timeout(DEADLINE).unwrap_or_else(|_| panic!("piece {i} does not arrive")) < i * 5 {}
    }
}

#[test]
fn nginx_is_asked_over_http2() {
    let Some(nginx) = oracle() else { return };
    let site = Site::new(
        "events {} http { access_log off; client_body_temp_path %DIR%/b; client_max_body_size 100m;\n\
         server { listen 127.0.0.1:%PORT0% http2; root html; location = /v { return 200 $server_protocol; }\n\
         location = /none { return 204; } } }",
    );
    site.write("html/large", "0123456789".repeat(200_000));
    let there = Oracle::start(&nginx, site);
    let server = Server::start(conf(&format!(
        "upstream u {{ server {}; keepalive 2; }} server {{ listen 127.0.0.1:%PORT0%; location / {{ proxy_pass http://u; }} }}",
        there.addr()
    )));
    for _ in 0..2 {
        assert!(server.get("/v").ends_with("HTTP/2.0"));
        assert!(server.get("/large").ends_with(&"0123456789".repeat(200_000)));
        assert!(server.get("/none").starts_with("HTTP/1.1 204 "));
        // It answers before it has read all.
        let answer = put(server.addr(0), "/v", &[b'x'; 300_000], false);
        assert!(answer.ends_with("HTTP/2.0"), "{answer}");
    }
}
