//! HTTP/2 to upstreams: Forebay, nginx and frames made here on the other side.

use forebay_http::h2::frame::{Code, flag, kind, setting};
use forebay_testkit::{
    Answer, Conf, DEADLINE, Oracle, Origin, Server, Site, Talk, chunked, connect, h2, http, oracle, request,
    run,
};
use std::io::Read;
use std::net::SocketAddr;

forebay_testkit::cases!("cases/proxy_h2.cases":
    a_connection_serves_many_requests, http2_is_agreed_on_where_it_is_encrypted, servers_that_break_the_protocol,
    a_request_that_was_not_taken_goes_to_the_next_server, limits_of_connections,
    connections_of_one_client_are_not_shared, ways_to_the_upstream);

fn conf(http: &str) -> Conf {
    http!(
        "client_max_body_size 100m;\n\
         proxy_http_version 2; {http}"
    )
}

fn number(payload: &[u8]) -> u32 {
    u32::from_be_bytes(payload.try_into().expect("four bytes"))
}

fn put(server: &Server, uri: &str, body: &[u8], is_chunked: bool) -> String {
    if !is_chunked {
        return server.ask(request(format!("PUT {uri}"), "", body));
    }
    let fields = "Host: localhost\r\nConnection: close\r\nTransfer-Encoding: chunked";
    server
        .ask([format!("PUT {uri} HTTP/1.1\r\n{fields}\r\n\r\n").into_bytes(), chunked(body, 50_000)].concat())
}

/// A server that sends to each connection what comes next when a request has come, and closes.
fn frames(answers: Vec<Vec<u8>>) -> SocketAddr {
    let serve = move |peer: &mut h2::Peer, number: usize| {
        if let (Some(_), Some(answer)) = (peer.request(), answers.get(number - 1)) {
            peer.send(std::slice::from_ref(answer));
            let _ = peer.stream.shutdown(std::net::Shutdown::Write);
            while peer.next().is_some() {}
        }
    };
    h2::upstream(&[], serve).0
}

fn headers(fields: &[(&str, &str)], flags: u8) -> Vec<u8> {
    h2::headers(1, fields, flags)
}

fn data(text: &[u8], flags: u8) -> Vec<u8> {
    h2::data(1, text, flags)
}

const END: u8 = flag::END_STREAM;

#[test]
fn bodies_go_both_ways() {
    // Behind the second server one that answers with what it was sent.
    let echo = Origin::start(|asked| {
        let body = asked.body().to_owned();
        asked.answer("200 OK", "", body)
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
            let answer = put(&server, uri, &body.as_bytes()[..len], chunked);
            assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{uri}: {}", &answer[..answer.len().min(300)]);
            let (_, got) = answer.split_once("\r\n\r\n").expect("a head");
            // Without a length it comes in chunks, whose sizes are of no interest here.
            let plain: String = got.split("\r\n").filter(|l| l.len() > 8 || len < 9).collect();
            assert!(plain.contains(&body[..len]), "{uri} {chunked} {len}: {} bytes", got.len());
        }
    }
    assert!(!server.error_log().contains("[error]"), "{}", server.error_log());
}

/// Returns the content of the answer to a request on a connection.
fn content(client: &mut impl Talk) -> String {
    let answer = client.answer();
    assert_eq!(answer.status(), "200", "{}", answer.head);
    answer.text()
}

/// A server that answers each piece of a request at once with the same bytes, as far as windows allow.
fn echo() -> SocketAddr {
    h2::upstream(&[], |peer, _| serve_echo(peer)).0
}

fn serve_echo(peer: &mut h2::Peer) {
    let (mut rooms, mut initial, mut id) = ([65_535i64; 2], 65_535, 0);
    let (mut owed, mut ended) = (Vec::new(), false);
    while let Some(f) = peer.next() {
        match f.kind {
            kind::SETTINGS => {
                let mut pairs = f.payload.chunks_exact(6);
                let window = pairs.find(|pair| pair[..2] == setting::INITIAL_WINDOW_SIZE.to_be_bytes());
                initial = window.map_or(initial, |pair| i64::from(number(&pair[2..])));
            }
            kind::HEADERS => {
                (id, rooms[1]) = (f.stream, initial);
                peer.send(&[h2::status(id, 200, 0)]);
            }
            kind::DATA if !f.payload.is_empty() => {
                owed.extend_from_slice(&f.payload);
                peer.send(&[0, id].map(|stream| h2::window_update(stream, f.payload.len() as u32)));
            }
            kind::WINDOW_UPDATE => rooms[usize::from(f.stream != 0)] += i64::from(number(&f.payload)),
            _ => {}
        }
        ended |= f.has(END) && matches!(f.kind, kind::DATA | kind::HEADERS);
        while !owed.is_empty() && rooms.iter().all(|room| *room > 0) {
            let n = owed.len().min(16_384).min(rooms[0].min(rooms[1]) as usize);
            peer.send(&[h2::data(id, &owed.drain(..n).collect::<Vec<u8>>(), 0)]);
            rooms.iter_mut().for_each(|room| *room -= n as i64);
        }
        if std::mem::take(&mut ended) {
            match owed.is_empty() {
                true => peer.send(&[h2::data(id, b"", END)]),
                false => ended = true,
            }
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
    assert!(got.ends_with(&format!("\r\nHTTP/2.0 GET /a?b=c%20d {port} trailers x  bar")), "{got}");
    assert!(!got.contains("Server: x"), "{got}");
    let got = ask("/rw/q", "");
    assert!(got.ends_with(&format!("\r\nHTTP/2.0 GET /x%2520y/q?z=1 {port}   a ")), "{got}");
    // To a client of HTTP/1.1 behind the last chunk, to others in HEADERS.
    let got = ask("/trailers", "");
    assert!(got.contains("Content-Type: application/grpc\r\n"), "{got}");
    assert!(got.ends_with("\r\n5\r\nhello\r\n0\r\ngrpc-status: 7\r\ngrpc-message: no\r\n\r\n"), "{got}");
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
        let plain = content(&mut server.send(request(format!("PUT {uri}"), "", &body)));
        assert!(plain == body, "{uri}: {} bytes", plain.len());
    }
    for uri in ["/streamed", "/grpc"] {
        dialogue(server.addr(0), uri);
    }
    assert!(!server.error_log().contains("[error]"), "{}", server.error_log());
}

/// Reports the frames of each request as one line, with the value of `content-length` behind the name of HEADERS.
fn listen_to(peer: &mut h2::Peer, report: &std::sync::mpsc::Sender<String>) {
    let mut line = String::new();
    while let Some(f) = peer.next() {
        match f.kind {
            kind::HEADERS => {
                let fields = h2::fields(&f.payload);
                let length = fields.iter().find(|(name, _)| name == "content-length");
                line = format!("HEADERS{}", length.map_or(String::new(), |(_, value)| format!(" {value}")));
            }
            kind::DATA => line.push_str(&format!(", DATA of {}", f.payload.len())),
            _ => continue,
        }
        if f.has(END) {
            let _ = report.send(std::mem::take(&mut line) + " end");
            peer.send(&[headers(&[(":status", "204")], END)]);
        }
    }
}

/// A body that is there, but empty, ends with an empty DATA frame (compared with nginx).
#[test]
fn an_empty_body_ends_with_a_frame_of_its_own() {
    let (report, reports) = std::sync::mpsc::channel();
    let (there, _) = h2::upstream(&[], move |peer, _| listen_to(peer, &report));
    let server = Server::start(conf(&format!(
        "server {{ listen 127.0.0.1:%PORT0%; http2 on; location /grpc {{ grpc_pass {there}; }}\n\
           location /kept {{ proxy_pass http://{there}; }}\n\
           location /streamed {{ proxy_request_buffering off; proxy_pass http://{there}; }} }}"
    )));
    let line = |uri: &str| reports.recv_timeout(DEADLINE).unwrap_or_else(|_| panic!("{uri}: no request"));
    let over_http2 = |uri: &str, length: Option<&str>, content: Option<&[u8]>| {
        let mut fields = vec![(":method", "POST")];
        fields.extend(length.map(|length| ("content-length", length)));
        let mut client = h2::Client::new(&server);
        client.request(1, uri, &fields, content.is_none());
        if let Some(content) = content {
            client.send(&data(content, END));
        }
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

/// Without a group they serve no other request, so they close at once instead of staying idle for seconds.
#[test]
fn connections_without_a_group_close_after_their_request() {
    let (report, _reports) = std::sync::mpsc::channel();
    // Serves the next connection when the last one has been closed.
    let one_by_one = std::sync::Mutex::new(report);
    let (there, _) = h2::upstream(&[], move |peer, _| listen_to(peer, &one_by_one.lock().expect("lock")));
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

/// The part of a streamed body that one server was sent goes to the next server as well, as long as it is in memory.
#[test]
fn a_streamed_request_that_was_not_taken_is_sent_from_its_beginning() {
    let busy = frames(vec![h2::reset(1, Code::RefusedStream as u32); 3]);
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
        let rest = [&got[..], &client.rest_bytes()].concat();
        assert_eq!(Answer::of(&rest).text(), "beginningend", "{uri}");
    }
    let answer = begin("/", "a longer beginning").rest();
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
}

/// Each piece of a request arrives though the client takes nothing of the response.
#[test]
fn a_request_goes_on_beside_a_response_that_stands_still() {
    let (tell, came) = std::sync::mpsc::channel();
    // It answers with more than sockets hold, and tells how much of the request's content has come.
    let (there, _) = h2::upstream(&[], move |peer, _| {
        peer.send(&[headers(&[(":status", "200")], 0), data(&[b'x'; 16_384], 0).repeat(15)]);
        let mut length = 0;
        while let Some(f) = peer.next_of(kind::DATA) {
            length += f.payload.len();
            let _ = tell.send(length);
        }
    });
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
        let answer = put(&server, "/v", &[b'x'; 300_000], false);
        assert!(answer.ends_with("HTTP/2.0"), "{answer}");
    }
}
