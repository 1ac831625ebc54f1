//! Finds the content of a response in the bytes that are received, and its end.

use super::{fastcgi, http2, http3, memcached};
use crate::upstream::codec::protocol::Protocol;
use forebay_conf::error::Level;
use forebay_core::upstream::conn::Conn;
use forebay_http::h1::chunked::{Chunked, Step};
use forebay_http::request::Framing;
use forebay_server::request::Request;

pub(crate) const TOO_MUCH: &str =
    "upstream sent more data than specified in \"Content-Length\" header while reading upstream";

/// Text for content beyond the announced length, where the protocol has frames.
pub(super) const TOO_LONG: &str =
    "upstream sent response body larger than indicated content length while reading upstream";

/// Protocol that content arrives in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carrier {
    /// HTTP/1, or the end of the connection.
    Http1,
    /// A stream of HTTP/2, whose end is that of the response.
    Http2,
    /// A stream of HTTP/3, whose end is that of the response.
    Http3,
    /// Records of FastCGI, which mark the end of the response.
    FastCgi,
    /// A value of memcached: its length is known, and words follow.
    Memcached,
}

/// Decoder of one response's content.
#[derive(Debug)]
pub struct Decoder {
    carrier: Carrier,
    pub(super) framing: Framing,
    /// Bytes to come, if the length is known.
    pub(super) left: u64,
    chunked: Chunked,
    /// Bytes of the words after a value of memcached that have come.
    pub(super) trailer: usize,
    /// `true` if the request was HEAD and no content has come.
    pub(super) to_head: bool,
    /// `true` if the connection may serve another request once the response is over.
    pub reusable: bool,
    /// `proxy_pass_trailers`.
    pub pass_trailers: bool,
}

/// Result of decoding some bytes.
#[derive(Debug)]
pub struct Decoded {
    /// Bytes of content that were appended.
    pub got: usize,
    /// Bytes that `$upstream_response_length` counts.
    pub length: u64,
    /// Progress of the response.
    pub(crate) end: End,
}

/// End of a response.
#[derive(Debug)]
pub(crate) enum End {
    /// More follows.
    NotYet,
    Whole,
    /// The response breaks off, which has been logged.
    Broken,
    /// The response breaks off for this reason.
    Failed(String),
    /// The response breaks off for this reason after the bytes that were appended.
    FailedAfter(&'static str),
}

impl Carrier {
    /// Returns that of a connection that speaks HTTP.
    pub fn of(conn: &Conn) -> Carrier {
        match () {
            () if http2::stream(conn).is_some() => Carrier::Http2,
            () if conn.wire().as_mux().is_some() => Carrier::Http3,
            () => Carrier::Http1,
        }
    }
}

impl Decoded {
    /// Returns the result for `n` bytes of content; `over`: nothing follows.
    pub(super) fn content(n: usize, over: bool) -> Decoded {
        Decoded { got: n, length: n as u64, end: if over { End::Whole } else { End::NotYet } }
    }

    pub(super) fn failed(length: u64, text: &str) -> Decoded {
        Decoded { got: 0, length, end: End::Failed(text.to_owned()) }
    }
}

impl Decoder {
    /// Creates a decoder of HTTP.
    pub fn new(framing: Framing, reusable: bool, carrier: Carrier) -> Decoder {
        let left = match framing {
            Framing::Length(n) => n,
            _ => 0,
        };
        Decoder {
            carrier,
            framing,
            left,
            chunked: Chunked::default(),
            trailer: 0,
            to_head: false,
            reusable: reusable && framing != Framing::Stream,
            pass_trailers: false,
        }
    }

    /// Changes the protocol. `reusable`: the connection may serve another request; `to_head`: the content may be missing
    /// whatever its length is announced to be.
    pub fn speaking(self, protocol: Protocol, reusable: bool, to_head: bool) -> Decoder {
        match protocol {
            Protocol::Http | Protocol::Uwsgi | Protocol::Scgi | Protocol::Grpc => self,
            Protocol::FastCgi => Decoder { carrier: Carrier::FastCgi, reusable, to_head, ..self },
            Protocol::Memcached => Decoder { carrier: Carrier::Memcached, ..self },
        }
    }

    /// Appends the content in the received bytes.
    pub fn decode(
        &mut self,
        req: &mut Request,
        conn: Option<&Conn>,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Decoded {
        match self.carrier {
            Carrier::Http1 => self.decode_http1(req, input, out),
            Carrier::Http2 => http2::decode(self, req, conn, input, out),
            Carrier::Http3 => http3::decode(self, input, out),
            Carrier::FastCgi => fastcgi::decode(self, req, input, out),
            Carrier::Memcached => memcached::decode(self, req, input, out),
        }
    }

    fn decode_http1(&mut self, req: &mut Request, input: &[u8], out: &mut Vec<u8>) -> Decoded {
        let before = out.len();
        match self.framing {
            Framing::None => {
                self.reusable &= input.is_empty();
                Decoded::content(0, true)
            }
            Framing::Length(_) | Framing::Stream => {
                out.extend_from_slice(input);
                self.arrived(req, out, before)
            }
            Framing::Chunked => match self.dechunk(input, out) {
                Ok(over) => Decoded::content(out.len() - before, over),
                Err(()) => {
                    let text = "upstream sent invalid chunked response while reading upstream";
                    req.log(Level::Error, text);
                    Decoded { end: End::Broken, ..Decoded::content(0, false) }
                }
            },
        }
    }

    /// Takes bytes of content without a coding that have been appended after `before`.
    pub fn arrived(&mut self, req: &mut Request, out: &mut Vec<u8>, before: usize) -> Decoded {
        let got = out.len() - before;
        if self.framing == Framing::Stream {
            return Decoded::content(got, false);
        }
        let n = self.cut(req, out, got);
        Decoded::content(n, self.left == 0)
    }

    /// Takes `n` bytes of content that have gone past `arrived`; `behind`: more bytes follow them.
    pub(crate) fn passed(&mut self, req: &mut Request, n: usize, behind: impl FnOnce() -> Behind) -> Decoded {
        self.left -= n as u64;
        if self.left == 0 {
            let behind = behind();
            self.reusable &= behind == Behind::Nothing;
            if behind == Behind::Bytes {
                req.log(Level::Warn, TOO_MUCH);
            }
        }
        Decoded::content(n, self.left == 0)
    }

    /// Cuts the last `got` bytes off at the announced length. Returns the number of them that stay.
    pub(super) fn cut(&mut self, req: &mut Request, out: &mut Vec<u8>, got: usize) -> usize {
        let n = self.left.min(got as u64) as usize;
        self.left -= n as u64;
        if n < got {
            out.truncate(out.len() - (got - n));
            self.reusable = false;
            req.log(Level::Warn, TOO_MUCH);
        }
        n
    }

    /// Decodes chunks. Returns `true` if the end has come.
    fn dechunk(&mut self, input: &[u8], out: &mut Vec<u8>) -> Result<bool, ()> {
        let mut at = 0;
        loop {
            let rest = input.get(at..).unwrap_or_default();
            match self.chunked.decode(rest) {
                Ok(Step::Data { start, end }) => {
                    out.extend_from_slice(rest.get(start..end).unwrap_or_default());
                    at += end;
                }
                Ok(Step::More) => return Ok(false),
                Ok(Step::End { consumed }) => {
                    self.reusable &= at + consumed == input.len();
                    return Ok(true);
                }
                Err(_) => return Err(()),
            }
        }
    }

    /// Returns `true` if the end of the connection is the end of the response as well.
    pub fn ends_with_connection(&self) -> bool {
        match self.carrier {
            Carrier::Http1 => self.framing == Framing::Stream,
            Carrier::Http2 | Carrier::Memcached => false,
            Carrier::Http3 => self.left == 0,
            // As nginx: without a length the end of the connection is the end of the response.
            Carrier::FastCgi => self.left == 0 || self.to_head,
        }
    }

    /// Returns `true` if the received bytes are the content, up to a known length or to the end.
    pub fn is_plain(&self) -> bool {
        self.carrier == Carrier::Http1 && matches!(self.framing, Framing::Length(_) | Framing::Stream)
    }

    /// Returns `true` if the end of what is read has to be decoded: it is that of a stream of HTTP/2.
    pub fn judges_end(&self) -> bool {
        self.carrier == Carrier::Http2
    }

    /// Returns the number of bytes that follow without a coding; 0 if unknown.
    pub fn left(&self) -> u64 {
        if self.carrier == Carrier::Http1 { self.left } else { 0 }
    }

    /// Notes the trailers of a chunked response.
    pub fn note_trailers(&self, req: &mut Request) {
        for (_, name, value) in self.chunked.trailers() {
            self.note_trailer(req, name, value);
        }
    }

    pub(crate) fn note_trailer(&self, req: &mut Request, name: &[u8], value: &[u8]) {
        req.modules.upstream.trailers.push(name, value);
        if self.pass_trailers {
            req.resp.trailers.push(name, value);
        }
    }
}

/// Bytes that a connection has after the content of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behind {
    Nothing,
    Bytes,
    /// The end of the connection, or an error.
    End,
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Decodes pieces of a response; returns its content and how the last piece ended it.
    fn decode(d: &mut Decoder, pieces: &[&[u8]]) -> (String, Decoded) {
        let mut req = crate::testing::request("", "");
        let mut out = Vec::new();
        let mut last = Decoded::content(0, false);
        for piece in pieces {
            last = d.decode(&mut req, None, piece, &mut out);
        }
        (String::from_utf8(out).unwrap(), last)
    }

    fn http1(framing: Framing) -> Decoder {
        Decoder::new(framing, true, Carrier::Http1)
    }

    #[test]
    fn a_length_ends_the_content() {
        let mut d = http1(Framing::Length(5));
        let (content, last) = decode(&mut d, &[b"con", b"te"]);
        assert_eq!((content.as_str(), last.got, d.reusable), ("conte", 2, true));
        assert!(matches!(last.end, End::Whole));
        let mut d = http1(Framing::Length(5));
        let (content, last) = decode(&mut d, &[b"content"]);
        assert_eq!(
            (content.as_str(), last.length, d.reusable),
            ("conte", 5, false),
            "more came than announced"
        );
    }

    #[test]
    fn chunks_end_the_content() {
        let mut d = http1(Framing::Chunked);
        let (content, last) = decode(&mut d, &[b"3\r\nabc\r\n", b"0\r\n\r\n"]);
        assert_eq!((content.as_str(), d.reusable), ("abc", true));
        assert!(matches!(last.end, End::Whole));
        let (_, last) = decode(&mut http1(Framing::Chunked), &[b"x\r\n"]);
        assert!(matches!(last.end, End::Broken));
    }

    #[test]
    fn only_content_without_a_length_ends_with_the_connection() {
        assert!(http1(Framing::Stream).ends_with_connection());
        assert!(!http1(Framing::Length(1)).ends_with_connection());
        let of = |framing, to_head| {
            http1(framing).speaking(Protocol::FastCgi, true, to_head).ends_with_connection()
        };
        assert_eq!([of(Framing::Stream, false), of(Framing::Length(1), false)], [true, false]);
        assert!(of(Framing::Length(1), true), "to HEAD the content may be missing");
    }

    /// The words after the value count as nginx counts them.
    #[test]
    fn a_value_of_memcached_has_words_after_it() {
        let memcached = || http1(Framing::Length(5)).speaking(Protocol::Memcached, true, false);
        let mut d = memcached();
        let (content, last) = decode(&mut d, &[b"val", b"ue\r\nEN", b"D\r\n"]);
        assert_eq!((content.as_str(), last.length, d.reusable), ("value", 3, true));
        assert!(matches!(last.end, End::Whole));
        let mut d = memcached();
        let (content, last) = decode(&mut d, &[b"value, more"]);
        assert_eq!((content.as_str(), d.reusable), ("value", false));
        assert!(matches!(last.end, End::Whole));
    }
}
