//! WebSockets on streams of HTTP/2 and HTTP/3 (RFC 8441, section 5; RFC 9220). The request is an extended CONNECT, which
//! `forebay_http::h2::request` has made a GET. Upstreams are asked as over HTTP/1 (RFC 6455, section 4), so their `Upgrade` is
//! translated both ways here.

use crate::error_page;
use crate::request::Request;
use crate::response::Response;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use forebay_conf::error::Level;
use forebay_core::digest::sha1;
use forebay_http::field::Slice;
use forebay_http::request::RequestHead;

/// Text that a server appends to a key (RFC 6455, section 1.3).
const SUFFIX: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const KEY: &[u8] = b"sec-websocket-key";

/// Adds the fields that the request would have over HTTP/1.
pub(super) fn complete(head: &mut RequestHead) {
    push(head, b"upgrade", b"websocket");
    push(head, b"connection", b"upgrade");
    // Clients of RFC 8441 send no key, but nothing forbids it.
    if head.all(KEY).next().is_none() {
        let mut nonce = [0; 16];
        for half in nonce.chunks_mut(8) {
            half.copy_from_slice(&forebay_sys::random::random_u64().to_ne_bytes());
        }
        push(head, KEY, STANDARD.encode(nonce).as_bytes());
    }
    head.len = head.buf.len();
}

fn push(head: &mut RequestHead, name: &[u8], value: &[u8]) {
    // Offsets in a head have 32 bits, and its limits keep it shorter.
    let start = head.buf.len() as u32;
    head.buf.extend_from_slice(name);
    let middle = head.buf.len() as u32;
    head.buf.extend_from_slice(value);
    let value = Slice { start: middle, end: head.buf.len() as u32 };
    head.push_field(Slice { start, end: middle }, value);
}

/// Returns `true` if the head of an upstream's response accepts the key of the request.
pub fn is_accepted(req: &Request) -> bool {
    let key = req.head.all(KEY).next().unwrap_or_default();
    let expected = STANDARD.encode(sha1(&[key, SUFFIX]));
    let head = &req.modules.upstream.head;
    let mut lines = head.fields.iter();
    lines.any(|l| {
        l.name.of(&head.buf).eq_ignore_ascii_case(b"Sec-WebSocket-Accept")
            && l.value.of(&head.buf) == expected.as_bytes()
    })
}

/// Makes the response of an upstream that has switched to the protocol what it is on a stream.
pub fn open(resp: &mut Response) {
    // A stream answers an extended CONNECT with 200, not 101, and needs no proof of the key (RFC 8441, section 5).
    resp.status = 200;
    resp.head_only = true;
    resp.fields.remove(b"Sec-WebSocket-Accept");
}

/// Refuses a request if its response opens no WebSocket although its status says that it does.
pub fn check(req: &mut Request) {
    let status = req.status();
    let open = req.resp.source.as_ref().is_some_and(|source| source.is_switched());
    if open || !(200..300).contains(&status) {
        return;
    }
    req.log(Level::Info, "client asked for a WebSocket where there is none");
    if let Some(mut source) = req.resp.source.take() {
        source.abandon(req);
    }
    error_page::built_in(req, 501);
}
