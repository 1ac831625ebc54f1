//! The conversation with one client: one request, one response, and the end. It runs in a thread of its own, and ends after
//! [`HEAD_WITHIN`] and [`SENT_WITHIN`], whatever the client does.

use super::answers::Document;
use super::{ToMaster, Wish};
use forebay_http::field::Name;
use forebay_http::h1::request::{Limits, Status, parse};
use forebay_http::request::{Framing, Method, RequestHead};
use serde_json::json;
use socket2::Socket;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Longest head of a request, bytes.
const LONGEST_HEAD: usize = 8 << 10;
/// Longest body of a request, bytes. It is read and means nothing.
const LONGEST_BODY: u64 = 64 << 10;
/// Time for a request to arrive.
const HEAD_WITHIN: Duration = Duration::from_secs(10);
/// Time for a response to leave. The text of a large configuration has megabytes.
const SENT_WITHIN: Duration = Duration::from_secs(30);
/// Time for the client to end the connection after the response.
const LINGERING: Duration = Duration::from_secs(1);

/// Answers one request.
pub(super) fn converse(client: Socket, is_tcp: bool, master: &ToMaster) {
    // Some systems hand on the flag of the listening socket.
    if client.set_nonblocking(false).is_err() {
        return;
    }
    let mut head = RequestHead::default();
    let mut line = Timed { client: &client, end: Instant::now() + HEAD_WITHIN };
    let document = match read(&mut line, &mut head) {
        Ok(true) => answer(&head, is_tcp, master),
        Ok(false) => return,
        Err(document) => document,
    };
    let mut line = Timed { client: &client, end: Instant::now() + SENT_WITHIN };
    let _ = line.write_all(&response(&document, head.method == Method::Head));
    let _ = client.shutdown(std::net::Shutdown::Write);
    // Bytes that nobody has read would destroy the response.
    let mut rest = Timed { client: &client, end: Instant::now() + LINGERING };
    let _ = io::copy(&mut Read::by_ref(&mut rest).take(LONGEST_BODY), &mut io::sink());
}

/// Reads a request. Returns `false` if the client has gone away, or was too slow.
fn read(line: &mut Timed<'_>, head: &mut RequestHead) -> Result<bool, Document> {
    let limits = Limits::default();
    loop {
        match parse(head, &limits) {
            Ok(Status::Complete) => break,
            Ok(Status::Partial) if head.buf.len() < LONGEST_HEAD => {}
            Ok(Status::Partial) => return Err(Document::error(431, "the head is too long")),
            Err(_) => return Err(Document::error(400, "this is no request")),
        }
        if !more(line, &mut head.buf) {
            return Ok(false);
        }
    }
    skip_body(line, head)
}

/// Reads the body, so that the end of the connection does not destroy the response.
fn skip_body(line: &mut Timed<'_>, head: &RequestHead) -> Result<bool, Document> {
    let length = match head.framing {
        Framing::None => return Ok(true),
        Framing::Length(length) if length <= LONGEST_BODY => length,
        Framing::Length(_) => return Err(Document::error(413, "the body is too long")),
        _ => return Err(Document::error(411, "the body has no length")),
    };
    let mut left = length.saturating_sub(head.buf.len().saturating_sub(head.len) as u64);
    let mut rest = Vec::new();
    while left > 0 {
        rest.clear();
        if !more(line, &mut rest) {
            return Ok(false);
        }
        left = left.saturating_sub(rest.len() as u64);
    }
    Ok(true)
}

/// Reads what has come. Returns `false` at the end.
fn more(line: &mut Timed<'_>, bytes: &mut Vec<u8>) -> bool {
    let mut piece = [0; 4096];
    let count = line.read(&mut piece).unwrap_or(0);
    bytes.extend_from_slice(piece.get(..count).unwrap_or_default());
    count > 0
}

fn answer(head: &RequestHead, is_tcp: bool, master: &ToMaster) -> Document {
    if is_tcp && !is_local(head) {
        return Document::error(403, "the host is no address of this machine");
    }
    let path = head.path.strip_suffix(b"/").unwrap_or(&head.path);
    let reads = matches!(head.method, Method::Get | Method::Head);
    let wish = match path {
        b"/1" | b"/1/control" if !reads => return Document::error(405, "the method is not allowed"),
        b"/1" => return Document::ok(json!(["control", "nginx"])),
        b"/1/control" => return Document::ok(json!(["processes", "config"])),
        b"/1/nginx" => Wish::Nginx,
        b"/1/control/processes" => Wish::Processes,
        b"/1/control/config" if head.method == Method::Patch => Wish::Reload,
        b"/1/control/config" => Wish::Config,
        _ => return Document::error(404, "there is no such path"),
    };
    if !reads && wish != Wish::Reload {
        return Document::error(405, "the method is not allowed");
    }
    master
        .ask(wish)
        .map_or_else(|| Document::error(500, "the master has not answered in time"), Document::from)
}

/// Returns `true` if the host is a literal address of this machine, and no page of a browser asks. A page of another site could
/// reach a port here, by a name that leads to 127.0.0.1.
fn is_local(head: &RequestHead) -> bool {
    let host = String::from_utf8_lossy(&head.host);
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let is_loopback = bare == "localhost" || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    is_loopback && head.get(Name::Origin).is_none()
}

fn response(document: &Document, only_head: bool) -> Vec<u8> {
    let body = format!("{}\n", document.value);
    let reason = match document.status {
        200 => "OK",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Not Allowed",
        411 => "Length Required",
        413 => "Request Entity Too Large",
        422 => "Unprocessable Entity",
        431 => "Request Header Fields Too Large",
        _ => "Internal Server Error",
    };
    let allow = if document.status == 405 { "Allow: GET, HEAD, PATCH\r\n" } else { "" };
    let mut text = format!(
        "HTTP/1.1 {} {reason}\r\nServer: forebay/{}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
         Cache-Control: no-store\r\n{allow}Connection: close\r\n\r\n",
        document.status,
        env!("CARGO_PKG_VERSION"),
        body.len()
    )
    .into_bytes();
    if !only_head {
        text.extend_from_slice(body.as_bytes());
    }
    text
}

/// A socket until a time.
struct Timed<'s> {
    client: &'s Socket,
    end: Instant,
}

impl Timed<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.end.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.client.set_read_timeout(self.left()?)?;
        (&mut &*self.client).read(bytes)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.client.set_write_timeout(self.left()?)?;
        (&mut &*self.client).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
