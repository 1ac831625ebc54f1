//! Answers of memcached, made into heads of HTTP. The parser is in forebay-http, `memcached.rs`. Hot path.

use super::decoder::{Content, Decoded, Input};
use super::facts::Facts;
use super::{Asked, Came, Speak, Unwritten, Written, took_head};
use crate::modules::memcached::write_command;
use crate::upstream::fault::{Fault, READING, bad_head};
use forebay_conf::error::Level;
use forebay_http::h1::client;
use forebay_http::h1::request::Status;
use forebay_http::memcached::{self, Reply, Wrong};
use forebay_http::request::Framing;
use forebay_server::request::Request;
use forebay_server::request::states::Slot;

/// The key that a request asks for, as in the command.
pub static KEY: Slot<Vec<u8>> = Slot::new();

/// memcached (`memcached_pass`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memcached {
    /// Bytes of the words after a value that have come.
    trailer: u8,
}

impl Memcached {
    /// Codec before the first response.
    pub const NEW: Memcached = Memcached { trailer: 0 };
}

static FACTS: Facts = Facts {
    prefix: "memcached_",
    scheme: b"memcached://",
    key: Some(b"$memcached_key"),
    is_untyped: true,
    missing: Some(404),
    // The letters "mc", so that an idle connection is never used by another protocol.
    made_for: 0x6d63_0000_0000_0000,
    ..Facts::NONE
};

impl Speak for Memcached {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn can_stream(&self, _framing: Framing) -> bool {
        false
    }

    fn write_request(&self, req: &mut Request, asked: &Asked<'_>, out: &mut Vec<u8>) -> Written {
        if let Some(key) = asked.key {
            write_command(req, key, out).map_err(Unwritten::Status)?;
        }
        Ok(false)
    }

    fn parse_head(&self, req: &mut Request, limit: usize, _headless: bool) -> Result<Came, Fault> {
        parse_head(req, limit)
    }

    fn keeps_alive(&self, _req: &Request) -> bool {
        true
    }

    fn decode(&mut self, c: &mut Content, req: &mut Request, input: Input<'_>, out: &mut Vec<u8>) -> Decoded {
        if c.framing == Framing::None {
            // memcached knows no HEAD, so the value follows all the same. It would stand in the way of the next answer.
            c.reusable = false;
            return Decoded::content(0, true);
        }
        let input = input.bytes;
        let len = usize::try_from(c.left).unwrap_or(usize::MAX).min(input.len());
        let (value, behind) = input.split_at(len);
        out.extend_from_slice(value);
        c.left -= len as u64;
        // `$upstream_response_length` counts the words after the value as well, as in nginx.
        let length = input.len() as u64;
        let wanted = memcached::TRAILER.get(usize::from(self.trailer)..).unwrap_or_default();
        if !wanted.starts_with(behind) {
            req.log(Level::Error, "memcached sent invalid trailer while reading upstream");
            c.reusable = false;
            return Decoded { length, ..Decoded::content(len, true) };
        }
        // The cast loses nothing, since the bytes are a part of the few words.
        self.trailer += behind.len() as u8;
        Decoded { length, ..Decoded::content(len, c.left == 0 && behind.len() == wanted.len()) }
    }

    fn ends_with_connection(&self, _c: &Content) -> bool {
        false
    }
}

/// Replaces the first line of an answer by a head, before the content. `limit`: longest line, bytes.
fn parse_head(req: &mut Request, limit: usize) -> Result<Came, Fault> {
    let upstream = &req.modules.upstream;
    let Some((end, reply)) = memcached::reply(&upstream.head.buf, KEY.of(req)) else {
        if upstream.head.buf.len() >= limit {
            return Err(bad_head(req, b"upstream sent too big header"));
        }
        return Ok(Came::Part);
    };
    let reply = reply.map_err(|w| wrong(req, end, part_of(&w)))?;
    let head = head_of(req, end, &reply)?;
    let upstream = &mut req.modules.upstream;
    upstream.head.buf.splice(..=end, head);
    // The limit was for the line of the server. The head that replaces it was made here.
    match client::parse(&mut upstream.head, usize::MAX) {
        Ok(Status::Complete) => {
            took_head(req);
            Ok(Came::All)
        }
        _ => Err(bad_head(req, b"upstream sent invalid header")),
    }
}

/// Returns the head for an answer, whose first line ends at `end`.
fn head_of(req: &mut Request, end: usize, reply: &Reply) -> Result<Vec<u8>, Fault> {
    let gzip = crate::modules::memcached::SETTINGS.of(&req.own_location().settings).gzip_flag.0;
    let mut head = Vec::with_capacity(96);
    match *reply {
        Reply::Found { flags: None, .. } if gzip != 0 => return Err(wrong(req, end, "flags")),
        Reply::Found { flags, length } => {
            head.extend_from_slice(b"HTTP/1.1 200 OK\r\nContent-Length: ");
            forebay_http::h1::response::number(&mut head, length);
            if flags.is_some_and(|flags| u64::from(flags) & gzip != 0) {
                head.extend_from_slice(b"\r\nContent-Encoding: gzip");
            }
            head.extend_from_slice(b"\r\n\r\n");
        }
        Reply::Missing => {
            let key = String::from_utf8_lossy(KEY.of(req)).into_owned();
            req.log(Level::Info, &format!("key: \"{key}\" was not found by memcached {READING}"));
            head.extend_from_slice(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n");
        }
    }
    Ok(head)
}

/// Returns the name of the part of a reply that is wrong, empty for all of it.
fn part_of(wrong: &Wrong) -> &'static str {
    match wrong {
        Wrong::Reply => "",
        Wrong::Key => "key",
        Wrong::Length => "length",
    }
}

/// Logs that the line that ends at `end` is invalid, or `what` in it.
#[cold]
fn wrong(req: &mut Request, end: usize, what: &str) -> Fault {
    let upstream = &req.modules.upstream;
    let line = upstream.head.buf.get(..end).unwrap_or_default();
    let line = String::from_utf8_lossy(line.strip_suffix(b"\r").unwrap_or(line));
    let message = match what {
        "" => format!("memcached sent invalid response: \"{line}\""),
        what => {
            let key = String::from_utf8_lossy(KEY.of(req));
            format!("memcached sent invalid {what} in response \"{line}\" for key \"{key}\"")
        }
    };
    bad_head(req, message.as_bytes())
}
