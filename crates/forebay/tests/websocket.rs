//! An upstream that speaks WebSocket, and WebSockets on streams of HTTP/2 (RFC 8441). Those of HTTP/3 are in `http3/websocket.rs`.

use forebay_http::h2::frame::kind;
use forebay_testkit::{Talk, h2};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Starts an upstream that accepts keys (or sends wrong ones back), then echoes bytes until `end` or the client's end. What asks for no
/// WebSocket gets 200. Returns its address and the number of connections that their clients have ended.
pub fn echo(honest: bool) -> (SocketAddr, Arc<AtomicUsize>) {
    let gone = Arc::new(AtomicUsize::new(0));
    let count = gone.clone();
    let addr = forebay_testkit::accept(move |mut stream, _| {
        let head = stream.head();
        let field = |name: &str| {
            let found = head.lines().filter_map(|l| l.split_once(": "));
            found.filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v).collect::<Vec<_>>().join(",")
        };
        if field("upgrade") != "websocket" || field("connection") != "upgrade" || !head.starts_with("GET ") {
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnone");
            return;
        }
        let key = if honest { field("sec-websocket-key") } else { "other".to_owned() };
        let accept = accept(&key);
        let answer = format!(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
             Sec-WebSocket-Accept: {accept}\r\nSec-WebSocket-Protocol: x\r\n\r\n"
        );
        let _ = stream.write_all(answer.as_bytes());
        let mut buf = [0; 16384];
        loop {
            match stream.read(&mut buf) {
                Ok(n) if n > 0 => {
                    let _ = stream.write_all(&buf[..n]);
                    if buf[..n].ends_with(b"end") {
                        return;
                    }
                }
                _ => break,
            }
        }
        count.fetch_add(1, Ordering::SeqCst);
    });
    (addr, gone)
}

/// Returns the answer to a key.
pub fn accept(key: &str) -> String {
    let suffix = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
    base64(&forebay_core::digest::sha1(&[key.as_bytes(), suffix]))
}

/// Base64 of a hash of 20 bytes.
fn base64(hash: &[u8; 20]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for part in hash.chunks(3) {
        let bits = part.iter().chain([&0; 2]).take(3).fold(0u32, |n, b| n << 8 | u32::from(*b));
        let digits = [18, 12, 6, 0].map(|shift| char::from(DIGITS[(bits >> shift & 63) as usize]));
        text.extend(&digits[..part.len() + 1]);
    }
    text + "="
}

#[test]
fn on_streams_of_http2() {
    let (up, _) = echo(true);
    let server = crate::http2::serve(
        "",
        &format!(
            "location / {{ proxy_pass http://{up}; proxy_set_header Upgrade $http_upgrade;\n\
             proxy_set_header Connection $http_connection; }} location /text {{ return 200 text; }}"
        ),
    );
    let mut c = h2::Client::new(&server);
    let connect = [(":method", "CONNECT"), (":protocol", "websocket")];
    c.request(1, "/text", &connect, false);
    assert_eq!(c.answer(1).field(":status"), "501");
    c.request(3, "/chat", &connect, false);
    c.frame(kind::DATA, 0, 3, b"hello, ");
    c.frame(kind::DATA, 0, 3, b"end");
    let a = c.answer(3);
    assert_eq!((a.field(":status"), a.body.as_slice(), a.ended), ("200", &b"hello, end"[..], true));
    assert_eq!((a.field("connection"), a.field("upgrade"), a.field("sec-websocket-accept")), ("", "", ""));
}
