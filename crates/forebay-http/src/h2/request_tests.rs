use super::*;
use crate::h2::encode;

const GET: [(&str, &str); 4] =
    [(":method", "GET"), (":scheme", "http"), (":path", "/"), (":authority", "localhost")];

fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (n, v) in fields {
        // Not by `encode::field`, which makes names lower-case.
        out.push(0);
        crate::compression::push_int(&mut out, 0, 7, n.len());
        out.extend_from_slice(n.as_bytes());
        crate::compression::push_int(&mut out, 0, 7, v.len());
        out.extend_from_slice(v.as_bytes());
    }
    out
}

fn run(fields: &[(&str, &str)], end: bool) -> (Outcome, RequestHead) {
    let mut head = RequestHead::default();
    let limits = Limits::default();
    let o = parse(&mut Decoder::default(), &block(fields), end, &mut head, &mut Vec::new(), &limits)
        .expect("HPACK");
    (o, head)
}

fn with(more: &[(&'static str, &'static str)]) -> Vec<(&'static str, &'static str)> {
    GET.iter().chain(more).copied().collect()
}

#[test]
fn a_request_is_as_if_it_came_by_http_1() {
    let (o, h) = run(
        &[
            (":method", "GET"),
            (":path", "/a/../b%20c?x=1"),
            (":scheme", "https"),
            (":authority", "Example.COM:8443"),
            ("user-agent", "test"),
            ("cookie", "a=b"),
            ("x-other", "1"),
            ("cookie", "c=d"),
        ],
        true,
    );
    assert_eq!(o, Outcome::Complete);
    assert_eq!(h.request_line.of(&h.buf), b"GET /a/../b%20c?x=1 HTTP/2.0");
    assert_eq!((h.path.as_slice(), h.args.of(&h.buf)), (&b"/b c"[..], &b"x=1"[..]));
    assert_eq!((h.host.as_slice(), h.port), (&b"example.com"[..], Some(8443)));
    assert_eq!(h.get(Name::Cookie), Some(&b"a=b; c=d"[..]));
    assert_eq!(h.get(Name::Host), Some(&b"Example.COM:8443"[..]));
    assert_eq!(h.get(Name::UserAgent), Some(&b"test"[..]));
    assert_eq!(h.all(b"x-other").collect::<Vec<_>>(), [b"1"]);
    assert_eq!((h.framing, h.version), (Framing::None, Version::Http2));
}

#[test]
fn malformed_requests() {
    for (fields, reset) in [
        (with(&[("X-Upper", "1")]), true),
        (with(&[("Host", "localhost")]), true),
        (with(&[("connection", "close")]), true),
        (with(&[("transfer-encoding", "chunked")]), true),
        (with(&[("te", "gzip")]), true),
        (with(&[("x", "a\r\nb: c")]), true),
        (with(&[("x:y", "1")]), true),
        (with(&[("x", "1"), (":path", "/x")]), true),
        // The field is left out (underscores_in_headers), but it came first.
        (vec![GET[0], GET[1], GET[2], ("x_y", "1"), GET[3]], true),
        (with(&[(":path", "/x")]), true),
        (with(&[(":odd", "/x")]), true),
        (with(&[(":status", "200")]), true),
        (with(&[("host", "other")]), false),
        (with(&[("content-length", "x")]), false),
        (with(&[("content-length", "5")]), true),
        (GET[1..].to_vec(), true),
        (GET[..3].to_vec(), false),
        (vec![GET[0], GET[2], GET[3]], true),
        (vec![GET[0], GET[1], GET[3]], true),
        (vec![GET[0], GET[1], (":path", ""), GET[3]], true),
        (vec![GET[0], GET[1], (":path", "x"), GET[3]], false),
        (vec![GET[0], GET[1], (":path", "/ x"), GET[3]], false),
        (vec![GET[0], GET[1], GET[2], (":authority", "a@b")], true),
        (vec![(":method", "get it"), GET[1], GET[2], GET[3]], false),
    ] {
        match run(&fields, true).0 {
            Outcome::Refused(r) => assert_eq!((r.status, r.malformed), (400, reset), "{fields:?}"),
            other => panic!("{fields:?}: {other:?}"),
        }
    }
    assert_eq!(run(&with(&[("te", "trailers"), ("host", "localhost")]), true).0, Outcome::Complete);
}

/// RFC 8441, section 4.
#[test]
fn websockets_are_made_gets() {
    let connect = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        GET[1],
        (":path", "/chat?x"),
        (":authority", "localhost"),
    ];
    let (o, h) = run(&connect, false);
    assert_eq!((o, h.is_websocket, h.framing), (Outcome::Complete, true, Framing::None));
    assert_eq!((h.method, h.request_line.of(&h.buf)), (Method::Get, &b"GET /chat?x HTTP/2.0"[..]));
    let length = connect.iter().chain(&[("content-length", "3")]).copied().collect();
    let mut other = connect.to_vec();
    other[1].1 = "connect-ip";
    for (fields, status, reset) in [
        (length, 400, true),
        (with(&[(":protocol", "websocket")]), 400, true),
        (connect[..3].to_vec(), 400, true),
        (connect[..4].to_vec(), 400, true),
        (other, 501, false),
    ] {
        match run(&fields, false).0 {
            Outcome::Refused(r) => assert_eq!((r.status, r.malformed), (status, reset), "{fields:?}"),
            other => panic!("{fields:?}: {other:?}"),
        }
    }
}

/// As in nginx, a field counts as it was received, and all together as they were decoded.
#[test]
fn limits_count_fields_as_received() {
    let refused =
        |outcome| matches!(outcome, Outcome::Refused(Refusal { status: 494, malformed: false, .. }));
    let long = "x".repeat(8193);
    let mut f = GET.to_vec();
    f.push(("x", &long));
    assert!(refused(run(&f, true).0));
    // In Huffman code the letter takes 5 bits, so that 12,000 of them take 7,500 bytes.
    for (letters, fits) in [(8193, true), (12_000, true), (13_200, false)] {
        let mut out = block(&GET);
        encode::field(&mut out, b"cookie", "a".repeat(letters).as_bytes());
        let mut head = RequestHead::default();
        let mut decoder = Decoder::default();
        let outcome = parse(&mut decoder, &out, true, &mut head, &mut Vec::new(), &Limits::default());
        let outcome = outcome.expect("HPACK");
        assert_eq!((outcome == Outcome::Complete, refused(outcome)), (fits, !fits), "{letters}");
    }
    let piece = "x".repeat(8000);
    let mut f = GET.to_vec();
    f.extend([("a", piece.as_str()); 4]);
    assert_eq!(run(&f, true).0, Outcome::Complete);
    f.push(("a", &piece));
    assert!(refused(run(&f, true).0));
}

#[test]
fn names_out_of_the_ordinary_are_left_out() {
    let (o, h) = run(&with(&[("x_foo", "1"), ("x.y", "2"), ("referer", "r")]), true);
    assert_eq!(o, Outcome::Complete);
    assert_eq!(h.fields.len(), 2);
    assert_eq!(h.ignored.iter().map(|i| i.of(&h.buf)).collect::<Vec<_>>(), [&b"x_foo: 1"[..], b"x.y: 2"]);
}

#[test]
fn trailers_are_skipped_but_seen() {
    let mut out = Vec::new();
    encode::field(&mut out, b"x-sum", b"123");
    let t = skip(&mut Decoder::default(), &out, &mut Vec::new()).expect("HPACK");
    assert_eq!(t, Trailers { size: 8, pseudo: false });
    let t = skip(&mut Decoder::default(), &[0x82], &mut Vec::new()).expect("HPACK");
    assert!(t.pseudo);
}
