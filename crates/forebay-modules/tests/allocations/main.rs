//! A warm keep-alive GET from the file cache allocates nothing, nor does one that goes to an upstream.
#![allow(missing_docs)]
#![allow(clippy::disallowed_methods, reason = "tests make files as they like")]

use forebay_bench::load::{Load, Order, Protocol, Stop, Wanted};
use forebay_bench::tls::{self, Trust};
use forebay_bench::{run, url::Url};
use forebay_sys::alloc::CountingAllocator;
use forebay_testkit::worker;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

mod origin;
mod paths;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// An upstream that answers every request on its connections alike, for as long as the process lives.
fn upstream() -> std::net::SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let addr = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            std::thread::spawn(move || {
                let mut request = [0; 4096];
                let mut len = 0;
                while let Ok(n) = stream.read(&mut request[len..]) {
                    len += n;
                    if n == 0 || len == request.len() {
                        return;
                    }
                    if request[..len].ends_with(b"\r\n\r\n") {
                        len = 0;
                        let answer = b"HTTP/1.1 200 OK\r\nServer: u\r\nContent-Type: text/plain\r\n\
                            Content-Length: 7\r\nLast-Modified: Sun, 06 Nov 1994 08:49:37 GMT\r\n\
                            Connection: keep-alive\r\nETag: \"1\"\r\nX-Other: 1\r\n\r\nproxied";
                        stream.write_all(answer).expect("write");
                    }
                }
            });
        }
    });
    addr
}

/// The same over HTTP/2.
fn upstream_h2() -> std::net::SocketAddr {
    use forebay_http::h2::encode;
    use forebay_http::h2::frame::{self, FrameHeader, flag, kind};
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    let addr = listener.local_addr().expect("bound");
    let mut block = Vec::new();
    encode::status(&mut block, 200);
    encode::field(&mut block, b"content-type", b"text/plain");
    encode::field(&mut block, b"content-length", b"7");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (mut stream, block) = (stream.expect("a connection"), block.clone());
            std::thread::spawn(move || {
                let (mut got, mut buf, mut out) = (Vec::new(), [0; 16384], Vec::new());
                frame::push_settings(&mut out, &[]);
                let mut at = frame::PREFACE.len();
                while stream.write_all(&out).is_ok() {
                    out.clear();
                    let Ok(n @ 1..) = stream.read(&mut buf) else { return };
                    got.extend_from_slice(&buf[..n]);
                    while let Some(h) = got.get(at..).and_then(FrameHeader::parse) {
                        if got.len() < at + frame::HEADER_LEN + h.len {
                            break;
                        }
                        at += frame::HEADER_LEN + h.len;
                        if h.kind == kind::HEADERS {
                            frame::push_field_block(&mut out, h.stream, 0, &block);
                            frame::push_header(&mut out, 7, kind::DATA, flag::END_STREAM, h.stream);
                            out.extend_from_slice(b"proxied");
                        }
                    }
                    got.drain(..at.min(got.len()));
                    at -= at.min(at);
                }
            });
        }
    });
    addr
}

/// Runs a worker with a server in this thread while another one sends `requests` for a path with more fields on one connection.
/// Returns what this thread allocated. Bodies end with `end`.
fn allocations(dir: &Path, requests: usize, path: &str, fields: &str, end: &'static [u8]) -> u64 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("bind");
    listener.set_nonblocking(true).expect("nonblocking");
    let addr = listener.local_addr().expect("bound");
    let (upstream, upstream_h2) = (upstream(), upstream_h2());
    let server = format!(
        "upstream u {{ server {upstream}; keepalive 4; keepalive_requests 1000000; }} \
         upstream h2 {{ server {upstream_h2}; keepalive 4; keepalive_requests 1000000; }} \
         server {{ listen {addr}; root {d}; \
         location /zip/ {{ alias {d}/; gzip on; brotli on; gzip_vary on; }} \
         location /ssi/ {{ alias {d}/; ssi on; ssi_types *; }} \
         location /around/ {{ alias {d}/; add_before_body /ssi/a.html; add_after_body /ssi/b.html; addition_types *; }} \
         location /auth/ {{ alias {d}/; auth_request /ssi/a.html; }} \
         location /stream/ {{ proxy_pass http://u; proxy_http_version 1.1; proxy_set_header Connection \"\"; \
           gzip on; gzip_types *; gzip_min_length 0; gzip_comp_level 1; \
           brotli on; brotli_types *; brotli_min_length 0; brotli_comp_level 1; }} \
         location /h2/ {{ proxy_pass http://h2; proxy_http_version 2; }} \
         location /proxy/ {{ proxy_pass http://u; proxy_http_version 1.1; proxy_set_header Connection \"\"; }} }}",
        d = dir.display()
    );
    let request = format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nUser-Agent: test\r\n{fields}\r\n");
    during(dir, &server, listener.into(), move || {
        let mut stream = TcpStream::connect(addr).expect("connect");
        let mut answer = [0; 4096];
        for _ in 0..requests {
            stream.write_all(request.as_bytes()).expect("write");
            let n = stream.read(&mut answer).expect("read");
            assert!(answer[..n].starts_with(b"HTTP/1.1 200 OK\r\n") && answer[..n].ends_with(end));
        }
    })
}

/// The same over HTTP/3 for a file of 1 KB: on `connections`, with `streams` requests at a time on each.
fn over_http3(dir: &Path, requests: u64, connections: usize, streams: usize) -> u64 {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("bind");
    socket.set_nonblocking(true).expect("nonblocking");
    let addr = socket.local_addr().expect("bound");
    let server = format!(
        "server {{ listen {addr} quic; root {d}; ssl_certificate {d}/crt; ssl_certificate_key {d}/key; }}",
        d = dir.display()
    );
    during(dir, &server, socket.into(), move || {
        let url = Url::parse(&format!("https://{addr}/1k")).expect("URL");
        let mut load = Load::new(&[Wanted::get(url)], Protocol::Http3, Order::Listed, 1).expect("load");
        (load.connections, load.parallel) = (connections, streams);
        load.stop = Stop::Count(requests, Some(Duration::from_secs(60)));
        load.tls = Some(tls::config(&Trust::Anyone, Protocol::Http3).expect("TLS"));
        let record = run::run(&load, None, |_| true).expect("runs").outcome.record;
        assert_eq!((record.ok, record.errors()), (requests, 0));
    })
}

/// Runs a worker in this thread while another one calls `client`. Returns what this thread allocated.
fn during(dir: &Path, server: &str, socket: OwnedFd, client: impl FnOnce() + Send + 'static) -> u64 {
    let conf = format!(
        "events {{}}\nhttp {{ open_file_cache max=10; access_log {d}/access.log combined buffer=64k flush=5s; \
         keepalive_requests 1000000; {server} }}\n",
        d = dir.display()
    );
    let mut before = 0;
    let begin = || before = CountingAllocator::counts().allocations;
    worker::serve(dir, &conf, forebay_modules::FRONT_ENDS, socket, begin, client);
    CountingAllocator::counts().allocations - before
}

/// Counts the allocations of a thousand warm requests.
fn of_a_thousand(path: &str, fields: &str, end: &'static [u8]) -> u64 {
    let dir = tempfile::tempdir().expect("temporary directory");
    let page = format!("<html>page{}</html>\n", " and more of it".repeat(40));
    std::fs::write(dir.path().join("page.html"), page).expect("write");
    let include = |name: &str| format!("<!--#include virtual=\"/ssi/{name}.html\" -->");
    let page = format!("<html>{}<p>between</p>{}</html>\n", include("a"), include("b"));
    std::fs::write(dir.path().join("page.shtml"), page).expect("write");
    std::fs::write(dir.path().join("a.html"), "<p>the first</p>").expect("write");
    std::fs::write(dir.path().join("b.html"), "<p>the second</p>").expect("write");
    // What the process makes once (tables, regular expressions, time zone) is not counted.
    allocations(dir.path(), 10, path, fields, end);
    let few = allocations(dir.path(), 100, path, fields, end);
    let many = allocations(dir.path(), 1100, path, fields, end);
    many.abs_diff(few)
}

#[test]
fn a_warm_request_allocates_nothing() {
    // The two runs differ in a thousand warm requests; timing may cost a handful in either.
    let difference = of_a_thousand("/page.html", "", b"</html>\n");
    assert!(difference < 50, "{difference} allocations in 1000 requests");
    let gzip = "Accept-Encoding: gzip, deflate\r\n";
    // The last bytes of gzip are the length of what it was made of: 11 + 15 * 40 + 8.
    let difference = of_a_thousand("/zip/page.html", gzip, b"\x6a\x02\x00\x00");
    assert!(difference < 50, "{difference} allocations in 1000 compressed responses");
    let difference = of_a_thousand("/zip/page.html", "Accept-Encoding: deflate\r\n", b"</html>\n");
    assert!(difference < 50, "{difference} allocations in 1000 responses that might be compressed");
    let difference = of_a_thousand("/proxy/page.html", "", b"proxied");
    assert!(difference < 50, "{difference} allocations in 1000 proxied requests");
}

/// The stream, which is the wire of the request, and the room for its waits, which requests over HTTP/1 do not keep.
#[test]
fn a_warm_request_on_a_shared_connection_allocates_its_stream() {
    let difference = of_a_thousand("/h2/page.html", "", b"proxied");
    assert!(difference < 2050, "{difference} allocations in 1000 requests");
}

/// A page of two fragments allocates for the state of the page and its subrequests, and for their paths, but neither for their
/// requests nor for their way through the phases. All other subrequests of a response are alike.
#[test]
fn a_page_of_fragments_allocates_little() {
    for (path, end, most) in [
        ("/ssi/page.shtml", b"<p>the second</p></html>\n\r\n0\r\n\r\n".as_slice(), 12),
        ("/around/page.html", b"<p>the second</p>\r\n0\r\n\r\n", 12),
        ("/auth/page.html", b"</html>\n", 6),
    ] {
        let difference = of_a_thousand(path, "", end);
        assert!(difference < most * 1000 + 50, "{path}: {difference} allocations in 1000 responses");
    }
}

/// A response that is compressed as it is sent allocates its filter, and brotli the state of the encoder and its list of hashes.
/// The tables, hundreds of kilobytes, are those of earlier responses.
#[test]
fn a_streamed_compressed_response_makes_no_tables() {
    for (coding, end, most) in
        [("gzip", b"\x07\x00\x00\x00\r\n0\r\n\r\n".as_slice(), 2), ("br", b"\x03\r\n0\r\n\r\n", 5)]
    {
        let fields = format!("Accept-Encoding: {coding}\r\n");
        let difference = of_a_thousand("/stream/page.html", &fields, end);
        assert!(
            difference < most * 1000 + 50,
            "{coding}: {difference} allocations in 1000 streamed responses"
        );
    }
}

/// Neither does one over HTTP/3, but for tables that grow while many streams are new: they are a few. A connection that gets nothing for
/// 200 ms gives its tables back, so that a busy machine may cost a run more: one of three counts.
#[test]
fn a_warm_request_over_http3_allocates_nothing() {
    let dir = tempfile::tempdir().expect("temporary directory");
    std::fs::write(dir.path().join("1k"), [b'x'; 1024]).expect("write");
    tls::self_signed(tls::Kind::Ecdsa, &dir.path().join("crt"), &dir.path().join("key")).expect("openssl");
    for (connections, streams) in [(10, 10), (1, 1)] {
        over_http3(dir.path(), 200, connections, streams);
        let runs = (0..3).map(|_| {
            let few = over_http3(dir.path(), 1000, connections, streams);
            let many = over_http3(dir.path(), 5000, connections, streams);
            many.saturating_sub(few) as f64 / 4000.0
        });
        let each: Vec<f64> = runs.collect();
        assert!(each.iter().any(|each| *each <= 0.05), "{each:?} for {connections} with {streams} streams");
    }
}
