//! Finds the content of a response in the bytes that are received, and its end.

use super::Codec;
use forebay_conf::error::Level;
use forebay_core::upstream::conn::Conn;
use forebay_http::request::Framing;
use forebay_server::request::Request;

pub(crate) const TOO_MUCH: &str =
    "upstream sent more data than specified in \"Content-Length\" header while reading upstream";

/// Text for content beyond the announced length, where the protocol has frames.
pub(super) const TOO_LONG: &str =
    "upstream sent response body larger than indicated content length while reading upstream";

/// Decoder of one response's content.
#[derive(Debug)]
pub struct Decoder {
    codec: Codec,
    pub(in crate::upstream) content: Content,
}

/// State of a response's content that all protocols have.
#[derive(Debug)]
pub struct Content {
    pub(in crate::upstream) framing: Framing,
    /// Bytes to come, if the length is known.
    pub(in crate::upstream) left: u64,
    /// `true` if the connection may serve another request once the response is over.
    pub(in crate::upstream) reusable: bool,
    /// `proxy_pass_trailers`.
    pub(in crate::upstream) pass_trailers: bool,
}

/// Content of a response as its head announces it.
#[derive(Clone, Copy, Debug)]
pub struct Announced {
    /// Framing of the content.
    pub framing: Framing,
    /// `true` if the content may be missing whatever its length is announced to be.
    pub to_head: bool,
    /// `true` if the connection may serve another request.
    pub reusable: bool,
}

/// Bytes that have been received, and their connection.
#[derive(Clone, Copy)]
pub(super) struct Input<'r> {
    pub(super) conn: Option<&'r Conn>,
    pub(super) bytes: &'r [u8],
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

impl Decoded {
    /// Returns the result for `n` bytes of content; `over`: nothing follows.
    pub(super) fn content(n: usize, over: bool) -> Decoded {
        Decoded { got: n, length: n as u64, end: if over { End::Whole } else { End::NotYet } }
    }

    pub(super) fn failed(length: u64, text: &str) -> Decoded {
        Decoded { got: 0, length, end: End::Failed(text.to_owned()) }
    }
}

impl Announced {
    /// No content, after which the connection is not used again.
    pub const NOTHING: Announced = Announced { framing: Framing::None, to_head: false, reusable: false };

    /// Bytes up to the end of the connection.
    pub const REST: Announced = Announced { framing: Framing::Stream, ..Announced::NOTHING };
}

impl Decoder {
    /// Creates a decoder for the content of a response that comes by `codec`.
    pub fn new(mut codec: Codec, announced: Announced) -> Decoder {
        let Announced { framing, to_head, reusable } = announced;
        codec.begin_content(to_head);
        let left = match framing {
            Framing::Length(n) => n,
            _ => 0,
        };
        // Content that ends with the connection leaves no connection for another request.
        let reusable = reusable && (framing != Framing::Stream || codec.facts().marks_end);
        Decoder { codec, content: Content { framing, left, reusable, pass_trailers: false } }
    }

    /// Appends the content in the received bytes.
    pub fn decode(
        &mut self,
        req: &mut Request,
        conn: Option<&Conn>,
        input: &[u8],
        out: &mut Vec<u8>,
    ) -> Decoded {
        self.codec.decode(&mut self.content, req, Input { conn, bytes: input }, out)
    }

    /// Returns `true` if the end of the connection is the end of the response as well.
    pub fn ends_with_connection(&self) -> bool {
        self.codec.ends_with_connection(&self.content)
    }

    /// Returns `true` if the received bytes are the content, up to a known length or to the end.
    pub fn is_plain(&self) -> bool {
        self.codec.facts().is_plain && matches!(self.content.framing, Framing::Length(_) | Framing::Stream)
    }

    /// Returns `true` if the end of what is read has to be decoded.
    pub fn judges_end(&self) -> bool {
        self.codec.facts().judges_end
    }

    /// Returns the number of bytes that follow without a coding; 0 if unknown.
    pub fn left(&self) -> u64 {
        if self.codec.facts().is_plain { self.content.left } else { 0 }
    }

    /// Notes the trailers of a response that is over.
    pub fn note_trailers(&self, req: &mut Request, conn: Option<&Conn>) {
        self.codec.note_trailers(&self.content, req, conn);
    }
}

impl Content {
    /// Appends content without a coding.
    pub(super) fn decode_plain(&mut self, req: &mut Request, input: &[u8], out: &mut Vec<u8>) -> Decoded {
        if self.framing == Framing::None {
            // Bytes after a response without content would be taken for the head of the next response.
            self.reusable &= input.is_empty();
            return Decoded::content(0, true);
        }
        let before = out.len();
        out.extend_from_slice(input);
        self.arrived(req, out, before)
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

    /// Counts `n` bytes of content that have gone to the client inside the kernel. `behind` finds out what follows the
    /// last of them.
    pub(crate) fn passed(&mut self, req: &mut Request, n: usize, behind: impl FnOnce() -> Behind) -> Decoded {
        self.left -= n as u64;
        // Whether the server has sent more than it announced can be known only once the content is complete.
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
            // As in nginx, the client gets what was announced, and the rest costs the connection.
            out.truncate(out.len() - (got - n));
            self.reusable = false;
            req.log(Level::Warn, TOO_MUCH);
        }
        n
    }

    pub(super) fn note_trailer(&self, req: &mut Request, name: &[u8], value: &[u8]) {
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
    use super::super::{fastcgi::FastCgi, memcached::Memcached};
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

    fn of(codec: Codec, framing: Framing, to_head: bool) -> Decoder {
        Decoder::new(codec, Announced { framing, to_head, reusable: true })
    }

    fn http1(framing: Framing) -> Decoder {
        of(Codec::HTTP1, framing, false)
    }

    #[test]
    fn a_length_ends_the_content() {
        let mut d = http1(Framing::Length(5));
        let (content, last) = decode(&mut d, &[b"con", b"te"]);
        assert_eq!((content.as_str(), last.got, d.content.reusable), ("conte", 2, true));
        assert!(matches!(last.end, End::Whole));
        let mut d = http1(Framing::Length(5));
        let (content, last) = decode(&mut d, &[b"content"]);
        assert_eq!(
            (content.as_str(), last.length, d.content.reusable),
            ("conte", 5, false),
            "more came than announced"
        );
    }

    #[test]
    fn chunks_end_the_content() {
        let mut d = http1(Framing::Chunked);
        let (content, last) = decode(&mut d, &[b"3\r\nabc\r\n", b"0\r\n\r\n"]);
        assert_eq!((content.as_str(), d.content.reusable), ("abc", true));
        assert!(matches!(last.end, End::Whole));
        let (_, last) = decode(&mut http1(Framing::Chunked), &[b"x\r\n"]);
        assert!(matches!(last.end, End::Broken));
    }

    #[test]
    fn only_content_without_a_length_ends_with_the_connection() {
        assert!(http1(Framing::Stream).ends_with_connection());
        assert!(!http1(Framing::Length(1)).ends_with_connection());
        let fastcgi = Codec::FastCgi(FastCgi::NEW);
        let of = |framing, to_head| of(fastcgi, framing, to_head).ends_with_connection();
        assert_eq!([of(Framing::Stream, false), of(Framing::Length(1), false)], [true, false]);
        assert!(of(Framing::Length(1), true), "to HEAD the content may be missing");
    }

    /// The words after the value count as nginx counts them.
    #[test]
    fn a_value_of_memcached_has_words_after_it() {
        let memcached = || of(Codec::Memcached(Memcached::NEW), Framing::Length(5), false);
        let mut d = memcached();
        let (content, last) = decode(&mut d, &[b"val", b"ue\r\nEN", b"D\r\n"]);
        assert_eq!((content.as_str(), last.length, d.content.reusable), ("value", 3, true));
        assert!(matches!(last.end, End::Whole));
        let mut d = memcached();
        let (content, last) = decode(&mut d, &[b"value, more"]);
        assert_eq!((content.as_str(), d.content.reusable), ("value", false));
        assert!(matches!(last.end, End::Whole));
    }
}
