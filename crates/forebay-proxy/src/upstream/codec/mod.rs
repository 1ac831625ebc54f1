//! Protocols of upstreams, one file each: the form of a request, the head and the content of a response, and the condition under
//! which the connection may serve another request. Hot path.
//!
//! [`Codec`] says how an upstream is spoken to. Each of its variants implements `Speak` in a file of its own: `http1.rs`,
//! `http2.rs`, `http3.rs`, `fastcgi.rs`, `uwsgi.rs`, `scgi.rs`, `memcached.rs`. The heads of all of them become heads of HTTP/1, so
//! all later code reads one form. `muxed.rs` has what HTTP/2 and HTTP/3 have in common, `cgi.rs` the heads of FastCGI, uwsgi and
//! SCGI, and `decoder.rs` the state of a response's content. The files of these names in `modules/` have the directives, and write
//! the parameters of FastCGI, uwsgi and SCGI.
//!
//! A new protocol is a file here, a variant of [`Codec`] with its line in `each!`, and a file in `modules/` with its directives.

mod asked;
mod cgi;
pub mod decoder;
pub mod facts;
pub mod fastcgi;
pub mod http1;
pub mod http2;
pub mod http3;
pub mod memcached;
pub mod muxed;
pub mod scgi;
pub mod uwsgi;

pub use asked::{Asked, Unwritten};

use super::Reuse;
use super::exchange::READ;
use super::fault::Fault;
use crate::modules::proxy::HttpVersion;
use crate::upstream::CALL;
use asked::Written;
use decoder::{Content, Decoded, Input};
use facts::Facts;
use fastcgi::FastCgi;
use forebay_core::upstream::conn::Conn;
use forebay_http::h1::client::{self, ResponseHead};
use forebay_http::request::{Framing, Method};
use forebay_server::request::Request;
use http1::Http1;
use http2::Http2;
use http3::Http3;
use memcached::Memcached;
use rustix::io::Errno;
use scgi::Scgi;
use uwsgi::Uwsgi;

/// Way in which an upstream is spoken to, with the state that only one protocol needs. Requests begin with the codec of their
/// location; the content of a response has a copy of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Codec {
    /// HTTP/1 (`proxy_pass`).
    Http1(Http1),
    /// HTTP/2 (`proxy_http_version 2`, `grpc_pass`).
    Http2(Http2),
    /// HTTP/3 (`proxy_http_version 3`).
    Http3(Http3),
    /// `fastcgi_pass`.
    FastCgi(FastCgi),
    /// `uwsgi_pass`.
    Uwsgi(Uwsgi),
    /// `scgi_pass`.
    Scgi(Scgi),
    /// `memcached_pass`.
    Memcached(Memcached),
}

/// Evaluates an expression with the [`Speak`] of a codec.
macro_rules! each {
    ($codec:expr, $own:ident => $call:expr) => {
        match $codec {
            Codec::Http1($own) => $call,
            Codec::Http2($own) => $call,
            Codec::Http3($own) => $call,
            Codec::FastCgi($own) => $call,
            Codec::Uwsgi($own) => $call,
            Codec::Scgi($own) => $call,
            Codec::Memcached($own) => $call,
        }
    };
}

/// Protocol of upstreams (nginx: the functions of `ngx_http_upstream_t`).
trait Speak {
    /// Returns the facts about the protocol.
    fn facts(&self) -> &'static Facts;

    /// Returns `true` if a body with this framing can be passed on as it comes (nginx: proxy_request_buffering off).
    fn can_stream(&self, framing: Framing) -> bool;

    /// Appends a request up to its content.
    fn write_request(&self, req: &mut Request, asked: &Asked<'_>, out: &mut Vec<u8>) -> Written;

    /// Appends a piece of a request's content, which is not empty.
    fn push_content(&self, content: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(content);
    }

    /// Appends the bytes before the next piece of a file of which `left` bytes are to be sent, and returns the length of the
    /// piece. Only for content whose length was known beforehand.
    fn push_file_piece(&self, left: u64, _out: &mut Vec<u8>) -> u64 {
        left
    }

    /// Appends the end of a request's content.
    fn push_end(&self, _out: &mut Vec<u8>) {}

    /// Returns `true` if nothing stands between pieces of a request's content.
    fn sends_plain(&self) -> bool {
        true
    }

    /// Prepares for the head of a response.
    fn begin(&self, req: &mut Request) {
        req.modules.upstream.head.advance(usize::MAX);
    }

    /// Reads bytes of a head that have come. The inner error is an error of the connection.
    fn read_head(
        &self,
        req: &mut Request,
        conn: &Conn,
        _limit: usize,
    ) -> Result<Result<usize, Errno>, Fault> {
        Ok(read_into_head(req, conn))
    }

    /// Parses the part of a head that has come. `limit`: longest head, bytes; `headless`: there may be none.
    fn parse_head(&self, req: &mut Request, limit: usize, headless: bool) -> Result<Came, Fault>;

    /// Returns `true` if the connection may serve another request after the response whose head has been read.
    fn keeps_alive(&self, req: &Request) -> bool;

    /// Returns `true` if content may follow the head that has been read, although its status says that none does. The connection is not
    /// used again then.
    fn may_follow(&self, _head: &ResponseHead) -> bool {
        false
    }

    /// Returns the framing of a response's content. `stored`: the response is stored.
    fn framing_of_response(&self, head: &ResponseHead, to_head: bool, _stored: bool) -> Framing {
        client::framing_of_response(head, to_head)
    }

    /// Returns the place of content that has come together with a head; `None` if it may be incomplete, or is not all in
    /// one place.
    fn at_once(&self, _conn: &Conn) -> Option<Place> {
        None
    }

    /// Prepares for the content of a response. `to_head`: it may be missing whatever its length is announced to be.
    fn begin_content(&mut self, _to_head: bool) {}

    /// Appends the content in bytes that have been received.
    fn decode(&mut self, c: &mut Content, req: &mut Request, input: Input<'_>, out: &mut Vec<u8>) -> Decoded {
        c.decode_plain(req, input.bytes, out)
    }

    /// Returns `true` if the end of the connection is the end of the response as well.
    fn ends_with_connection(&self, content: &Content) -> bool {
        content.framing == Framing::Stream
    }

    /// Notes the trailers of a response that is over.
    fn note_trailers(&self, _content: &Content, _req: &mut Request, _conn: Option<&Conn>) {}
}

impl Default for Codec {
    fn default() -> Codec {
        Codec::HTTP1
    }
}

impl Codec {
    /// HTTP/1.1.
    pub const HTTP1: Codec = Codec::Http1(Http1::V11);
    /// HTTP/2.
    pub const HTTP2: Codec = Codec::Http2(Http2::HTTP);
    /// gRPC.
    pub const GRPC: Codec = Codec::Http2(Http2::GRPC);

    /// Returns the codec for a version of HTTP, if the protocol is HTTP.
    pub fn in_version(self, version: HttpVersion) -> Codec {
        match (self, version) {
            (Codec::Http1(_), HttpVersion::V10) => Codec::Http1(Http1::V10),
            (Codec::Http1(_), HttpVersion::V2) => Codec::HTTP2,
            (Codec::Http1(_), HttpVersion::V3) => Codec::Http3(Http3),
            (codec, _) => codec,
        }
    }

    /// Makes this the codec of a request that is about to be sent. `chunked`: over HTTP/1 the length of its content is not known.
    pub fn begin(self, req: &mut Request, chunked: bool) {
        let codec = match self {
            Codec::Http1(http1) => Codec::Http1(http1.sending(chunked)),
            codec => codec,
        };
        CALL.of_mut(req).codec = codec;
        each!(codec, own => own.begin(req));
    }

    /// Returns the facts about the protocol.
    pub fn facts(&self) -> &'static Facts {
        each!(self, own => own.facts())
    }

    /// Returns `true` if a body with this framing can be passed on as it comes (nginx: proxy_request_buffering off).
    pub fn can_stream(&self, framing: Framing) -> bool {
        each!(self, own => own.can_stream(framing))
    }

    /// Appends a request up to its content.
    pub(crate) fn write_request(&self, req: &mut Request, asked: &Asked<'_>, out: &mut Vec<u8>) -> Written {
        each!(self, own => own.write_request(req, asked, out))
    }

    /// Appends a piece of a request's content.
    pub(super) fn push_content(&self, content: &[u8], out: &mut Vec<u8>) {
        // An empty chunk or record would mark the end of the content.
        if !content.is_empty() {
            each!(self, own => own.push_content(content, out));
        }
    }

    /// Appends the bytes before the next piece of a file of which `left` bytes are to be sent, and returns the length of the
    /// piece. Only for content whose length was known beforehand.
    pub(super) fn push_file_piece(&self, left: u64, out: &mut Vec<u8>) -> u64 {
        each!(self, own => own.push_file_piece(left, out))
    }

    /// Appends the end of a request's content.
    pub(super) fn push_end(&self, out: &mut Vec<u8>) {
        each!(self, own => own.push_end(out));
    }

    /// Returns `true` if nothing stands between pieces of a request's content.
    pub(super) fn sends_plain(&self) -> bool {
        each!(self, own => own.sends_plain())
    }

    /// Returns `true` if a written request asks for no content.
    pub fn is_to_head(&self, req: &Request, head: &[u8]) -> bool {
        match self.facts().is_http {
            // `proxy_method` or `proxy_cache_convert_head` may have replaced the client's method, so the written request
            // counts. The other protocols have no request line to look at.
            true => head.starts_with(b"HEAD "),
            false => req.method == Method::Head,
        }
    }

    /// Reads bytes of a head that have come. The inner error is an error of the connection.
    pub(super) fn read_head(
        &self,
        req: &mut Request,
        conn: &Conn,
        limit: usize,
    ) -> Result<Result<usize, Errno>, Fault> {
        if !conn.readable() {
            // Without a new event, a read would be a system call that returns the same error.
            return Ok(Err(Errno::AGAIN));
        }
        each!(self, own => own.read_head(req, conn, limit))
    }

    /// Parses the part of a head that has come. `limit`: longest head, bytes; `headless`: there may be none.
    pub(super) fn parse_head(&self, req: &mut Request, limit: usize, headless: bool) -> Result<Came, Fault> {
        each!(self, own => own.parse_head(req, limit, headless))
    }

    /// Returns `true` if the connection may serve another request after the response whose head has been read.
    pub fn keeps_alive(&self, req: &Request) -> bool {
        CALL.of(req).reuse != Reuse::No && each!(self, own => own.keeps_alive(req))
    }

    /// Returns `true` if content may follow the head that has been read, although its status says that none does. The connection is not
    /// used again then.
    pub fn may_follow(&self, head: &ResponseHead) -> bool {
        each!(self, own => own.may_follow(head))
    }

    /// Returns the framing of a response's content. `stored`: the response is stored.
    pub fn framing_of_response(&self, head: &ResponseHead, to_head: bool, stored: bool) -> Framing {
        each!(self, own => own.framing_of_response(head, to_head, stored))
    }

    /// Returns the place of content that has come together with a head; `None` if it may be incomplete, or is not all in
    /// one place.
    pub fn at_once(&self, conn: &Conn) -> Option<Place> {
        each!(self, own => own.at_once(conn))
    }

    fn begin_content(&mut self, to_head: bool) {
        each!(self, own => own.begin_content(to_head));
    }

    fn decode(&mut self, c: &mut Content, req: &mut Request, input: Input<'_>, out: &mut Vec<u8>) -> Decoded {
        each!(self, own => own.decode(c, req, input, out))
    }

    fn ends_with_connection(&self, content: &Content) -> bool {
        each!(self, own => own.ends_with_connection(content))
    }

    fn note_trailers(&self, content: &Content, req: &mut Request, conn: Option<&Conn>) {
        each!(self, own => own.note_trailers(content, req, conn));
    }
}

/// Result of parsing a head.
pub(crate) enum Came {
    Part,
    /// The head of an interim response.
    Interim,
    All,
}

/// Place of content that has come together with its head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// After the head, in its buffer.
    Head,
    /// In the buffer for content that has been taken out of its frames.
    Early,
}

/// Reads bytes of a head, and of the content after it, into a buffer of the thread (see [`Request::lend_head`]).
pub(super) fn read_into_head(req: &mut Request, conn: &Conn) -> Result<usize, Errno> {
    req.borrow_head(READ);
    let buf = &mut req.modules.upstream.head.buf;
    let got = conn.read(buf, READ);
    // The read has found no byte. The request waits now, and must not keep a large buffer of the thread meanwhile.
    if buf.is_empty() {
        req.thread.io.large.give(std::mem::take(buf));
    }
    got
}

/// Notes that a head is complete.
fn took_head(req: &mut Request) {
    let status = req.modules.upstream.head.status;
    if let Some(a) = req.modules.upstream.attempts.last_mut() {
        a.header = Some(req.thread.io.poller.since(a.started));
        a.status = status;
    }
}
