use super::*;

fn limits() -> Limits {
    Limits::default()
}

fn feed(input: &[u8], limits: &Limits, step: usize) -> (RequestHead, Result<Status, Reject>) {
    let mut head = RequestHead::default();
    let mut outcome = Ok(Status::Partial);
    for piece in input.chunks(step.max(1)) {
        head.buf.extend_from_slice(piece);
        if outcome == Ok(Status::Partial) {
            outcome = parse(&mut head, limits);
        }
    }
    (head, outcome)
}

/// Parses in one piece and byte by byte; both must agree.
fn parse_both(input: &[u8], limits: &Limits) -> (RequestHead, Result<Status, Reject>) {
    let (head, outcome) = feed(input, limits, input.len());
    let (slow_head, slow) = feed(input, limits, 1);
    assert_eq!(slow.map_err(|r| r.status), outcome.map_err(|r| r.status), "{}", input.escape_ascii());
    if outcome.is_ok() {
        assert_eq!(format!("{:?}", slow_head.fields), format!("{:?}", head.fields));
        assert_eq!((slow_head.len, &slow_head.path), (head.len, &head.path));
    }
    (head, outcome)
}

fn status(input: &[u8]) -> u16 {
    match parse_both(input, &limits()).1 {
        Ok(Status::Complete) => 200,
        Ok(Status::Partial) => 0,
        Err(reject) => reject.status,
    }
}

fn message(input: &[u8]) -> String {
    let (head, outcome) = parse_both(input, &limits());
    let mut out = Vec::new();
    outcome.expect_err("a refusal").message(&head, &mut out);
    out.escape_ascii().to_string().replace("\\\"", "\"").replace("\\\\", "\\")
}

#[test]
fn a_plain_get() {
    let input = b"GET /index.html?a=1 HTTP/1.1\r\nHost: WWW.Example.com:8080\r\nX:  y \r\n\r\nrest";
    let (head, outcome) = parse_both(input, &limits());
    assert_eq!(outcome, Ok(Status::Complete));
    assert_eq!(head.len, input.len() - 4);
    assert_eq!(head.method, Method::Get);
    assert_eq!(head.request_line.of(&head.buf), b"GET /index.html?a=1 HTTP/1.1");
    assert_eq!(head.target.of(&head.buf), b"/index.html?a=1");
    assert_eq!(head.args.of(&head.buf), b"a=1");
    assert_eq!(head.protocol.of(&head.buf), b"HTTP/1.1");
    assert!(head.has_args && head.keep_alive && !head.path_changed);
    assert_eq!(head.path, b"/index.html");
    assert_eq!(head.host, b"www.example.com");
    assert_eq!(head.port, Some(8080));
    assert_eq!(head.framing, Framing::None);
    assert_eq!(head.fields.len(), 2);
    assert_eq!(head.all(b"x").collect::<Vec<_>>(), [b"y"]);
    assert_eq!(head.get(Name::Host), Some(&b"WWW.Example.com:8080"[..]));
}

#[test]
fn a_head_is_reused_for_pipelined_requests() {
    let mut head = RequestHead::default();
    head.buf.extend_from_slice(
        b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n\r\nPOST /b HTTP/1.1\r\nHost: b\r\nContent-Length: 2\r\n\r\nxy",
    );
    assert_eq!(parse(&mut head, &limits()), Ok(Status::Complete));
    assert_eq!(head.path, b"/a");
    head.advance(head.len);
    assert_eq!(parse(&mut head, &limits()), Ok(Status::Complete));
    assert_eq!((&head.path[..], &head.host[..]), (&b"/b"[..], &b"b"[..]));
    assert_eq!(head.framing, Framing::Length(2));
    head.advance(head.len + 2);
    assert!(head.buf.is_empty());
    assert_eq!(parse(&mut head, &limits()), Ok(Status::Partial));
}

#[test]
fn absolute_form() {
    for (target, host, path, uri) in [
        ("http://b.example/x?y", "b.example", "/x", "/x?y"),
        ("http://b.example", "b.example", "/", "/"),
        ("http://b.example?y", "b.example", "/", "?y"),
        ("h1-+.x://B.Example.:8080/A", "b.example", "/A", "/A"),
        ("http://[::1]:80/%41", "[::1]", "/A", "/%41"),
    ] {
        let input = format!("GET {target} HTTP/1.1\r\nHost: a\r\n\r\n");
        let (head, outcome) = parse_both(input.as_bytes(), &limits());
        assert_eq!(outcome, Ok(Status::Complete), "{target}");
        assert_eq!(head.host, host.as_bytes());
        assert_eq!(head.path, path.as_bytes());
        assert_eq!(head.target.of(&head.buf), uri.as_bytes());
    }
}

#[test]
fn http_09() {
    let (head, outcome) = parse_both(b"GET /x \r\nHost: a\r\n", &limits());
    assert_eq!(outcome, Ok(Status::Complete));
    assert_eq!((head.version, head.len, head.keep_alive), (Version::Http09, 9, false));
    assert!(head.protocol.is_empty());
    let (head, outcome) = parse_both(b"HEAD /\n", &limits());
    assert_eq!(outcome.map_err(|r| r.status), Err(400));
    assert_eq!(head.version, Version::Http09);
}

#[test]
fn messages_are_nginx_s() {
    let line = " while reading client request line";
    let fields = " while reading client request headers";
    for (input, text, stage) in [
        ("get / HTTP/1.1\r\n", "client sent invalid method", line),
        ("GET /.. HTTP/1.1\r\n", "client sent invalid request", line),
        ("GET / HTTP/2.0\r\n", "client sent invalid version", line),
        ("GET http://a..b/ HTTP/1.1\r\n", "client sent invalid host in request line", line),
        ("POST /\r\n", "client sent invalid method in HTTP/0.9 request", line),
        ("GET / HTTP/1.1\r\n\r\n", "client sent HTTP/1.1 request without \"Host\" header", fields),
        ("GET / HTTP/1.1\r\nHost: a b\r\n\r\n", "client sent invalid host header", fields),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nhost:  b\r\n\r\n",
            "client sent duplicate host header: \"host:  b\", previous value: \"Host: a\"",
            fields,
        ),
        (
            "GET / HTTP/1.1\r\nExpect: 1\r\nExpect: 2\r\n\r\n",
            "client sent duplicate header line: \"Expect: 2\", previous value: \"Expect: 1\"",
            fields,
        ),
        ("GET / HTTP/1.1\r\n X: 1\r\n", "client sent invalid header line: \"\\x20...\"", fields),
        ("GET / HTTP/1.1\r\nX : 1\r\n", "client sent invalid header line: \"X\\x20...\"", fields),
        ("GET / HTTP/1.1\r\n: 1\r\n", "client sent invalid header line: \"\\x3a...\"", fields),
        ("GET / HTTP/1.1\r\nX: a\rb\r\n", "client sent invalid header line: \"X: a\\x0d...\"", fields),
        ("GET / HTTP/1.1\r\nX: a\0b\r\n", "client sent invalid header line: \"X: a\\x00...\"", fields),
        ("GET / HTTP/1.1\r\nX: a \r \r\n", "client sent invalid header line: \"X: a\\x20...\"", fields),
        ("GET / HTTP/1.1\r\n\r\r\n", "client sent invalid header line: \"\\x0d...\"", fields),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n",
            "client sent unknown \"Transfer-Encoding\": \"gzip\"",
            fields,
        ),
        (
            "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n",
            "client sent \"Content-Length\" and \"Transfer-Encoding\" headers at the same time",
            fields,
        ),
    ] {
        assert_eq!(message(input.as_bytes()), format!("{text}{stage}"));
    }
}

fn with_buffers(input: &[u8]) -> u16 {
    let small =
        Limits { client_header_buffer_size: 128, large_client_header_buffers: (4, 256), ..Limits::default() };
    match parse_both(input, &small).1 {
        Ok(Status::Complete) => 200,
        Ok(Status::Partial) => 0,
        Err(reject) => reject.status,
    }
}

#[test]
fn buffer_arithmetic() {
    let get = |uri: usize, lines: &[usize]| {
        let mut s = format!("GET /{} HTTP/1.1\r\nHost: a\r\n", "a".repeat(uri));
        for &len in lines {
            s += &format!("X: {}\r\n", "a".repeat(len - 5));
        }
        with_buffers((s + "\r\n").as_bytes())
    };
    assert_eq!((get(240, &[]), get(241, &[])), (200, 414));
    assert_eq!((get(0, &[256]), get(0, &[257])), (200, 494));
    assert_eq!((get(0, &[50; 22]), get(0, &[50; 23])), (200, 494));
    assert_eq!((get(0, &[120; 8]), get(0, &[120; 9])), (200, 494));
    assert_eq!((get(0, &[128; 7]), get(0, &[128; 8])), (200, 494));
    assert_eq!((get(0, &[130; 4]), get(0, &[130; 5])), (200, 494));
    assert_eq!((get(0, &[256; 3]), get(0, &[256; 4])), (200, 494));
    assert_eq!(get(0, &[103, 256, 256, 256]), 200);
    assert_eq!(get(0, &[104, 256, 256, 256]), 494);
    assert_eq!(get(100, &[256, 205, 205, 205]), 200);
    assert_eq!((get(115, &[116, 205, 205, 205]), get(115, &[117, 205, 205, 205])), (200, 494));
    let open = |uri: usize| with_buffers(format!("GET /{}", "a".repeat(uri)).as_bytes());
    assert_eq!((open(250), open(251)), (0, 414));
    let open = |v: usize| with_buffers(format!("GET / HTTP/1.1\r\nX: {}", "a".repeat(v)).as_bytes());
    assert_eq!((open(252), open(253)), (0, 494));
}

#[test]
fn max_headers_counts_what_is_kept() {
    let few = Limits { max_headers: 3, ..Limits::default() };
    let ok = b"GET / HTTP/1.1\r\nHost: a\r\nA_B: 1\r\na.b: 1\r\nb: 1\r\nc: 1\r\n\r\n";
    let (head, outcome) = parse_both(ok, &few);
    assert_eq!(outcome, Ok(Status::Complete));
    let ignored: Vec<_> = head.ignored.iter().map(|s| s.of(&head.buf)).collect();
    assert_eq!(ignored, [b"A_B: 1", b"a.b: 1"]);
    let many = b"GET / HTTP/1.1\r\nHost: a\r\na: 1\r\nb: 1\r\nc: 1\r\n\r\n";
    assert_eq!(parse_both(many, &few).1.map_err(|r| (r.status, r.wire_status())), Err((494, 400)));
}

#[test]
fn connection_and_expect() {
    let keep = |version: &str, fields: &str| {
        let input = format!("GET / HTTP/{version}\r\nHost: a\r\n{fields}\r\n");
        parse_both(input.as_bytes(), &limits()).0.keep_alive
    };
    assert!(keep("1.1", "") && !keep("1.0", "") && keep("1.2", ""));
    assert!(!keep("1.1", "Connection: xclose2\r\n"));
    assert!(!keep("1.1", "Connection: close, keep-alive\r\n"));
    assert!(keep("1.1", "Connection: close\r\nConnection: keep-alive\r\n"));
    assert!(!keep("1.1", "Connection: Keep-Alive\r\nConnection: CLOSE\r\nConnection: foo\r\n"));
    assert!(keep("1.0", "Connection: Upgrade, Keep-Alive\r\n"));
    let expect = |version: &str, value: &str| {
        let input = format!("GET / HTTP/{version}\r\nHost: a\r\nExpect: {value}\r\n\r\n");
        parse_both(input.as_bytes(), &limits()).0.expect_continue
    };
    assert!(expect("1.1", "100-Continue") && !expect("1.0", "100-continue") && !expect("1.1", "foo"));
}

#[test]
fn refusals_come_before_the_end_of_the_line() {
    assert_eq!(status(b"\x16\x03\x01"), 400);
    assert_eq!(status(b"GE\x00"), 400);
    assert_eq!(status(b"GET / HTTP/3"), 505);
    assert_eq!(status(b"GET / HTTP/1.1\r\nX\x01"), 400);
    assert_eq!(status(b"\r\n\n\rGET"), 0);
}

#[test]
fn a_fault_beyond_the_buffer_is_not_seen() {
    let line = format!("GET /{}\0 HTTP/1.1\r\n\r\n", "a".repeat(300));
    assert_eq!(with_buffers(line.as_bytes()), 414);
    let field = format!("GET / HTTP/1.1\r\nX: {}\0\r\n\r\n", "a".repeat(300));
    assert_eq!(with_buffers(field.as_bytes()), 494);
    let field = format!("GET / HTTP/1.1\r\nX: {}\0\r\n\r\n", "a".repeat(200));
    assert_eq!(with_buffers(field.as_bytes()), 400);
}
