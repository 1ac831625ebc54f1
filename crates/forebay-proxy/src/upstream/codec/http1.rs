//! HTTP/1 to upstreams (nginx: ngx_http_proxy_module). For HTTP/2 and HTTP/3 the head of a request is made into a field block
//! later. Hot path.

use super::decoder::{Content, Decoded, End, Input};
use super::facts::{Facts, Reasons};
use super::{Asked, Came, Place, Speak, Unwritten, Written, took_head};
use crate::modules::grpc;
use crate::modules::proxy::{SetHeader, Settings};
use crate::modules::proxy_cache;
use crate::upstream::CALL;
use crate::upstream::Reuse;
use crate::upstream::exchange::Outgoing;
use crate::upstream::fault::{Fault, READING, bad_head};
use forebay_conf::error::Level;
use forebay_core::upstream::conn::Conn;
use forebay_http::field::{self, Classes, Name, Unsafe};
use forebay_http::h1::chunked::{Chunked, InvalidChunked, Step};
use forebay_http::h1::client::{self, ResponseHead};
use forebay_http::h1::request::Status;
use forebay_http::h1::response::{copied_field, field, number};
use forebay_http::request::{Framing, Version};
use forebay_server::request::Request;
use forebay_server::request::rare::Unused;
use forebay_server::request::states::Slot;

/// HTTP/1 (`proxy_pass`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Http1 {
    version: Version,
    /// `true` if the content of the request is sent in chunks (RFC 9112, section 7.1).
    sends_chunks: bool,
}

/// Facts about HTTP of any version.
pub(super) const HTTP: Facts = Facts {
    prefix: "proxy_",
    scheme: b"http://",
    encrypted_scheme: Some(b"https://"),
    takes_url: true,
    is_http: true,
    hides_server: true,
    hides: b"X-Pad",
    ..Facts::NONE
};

static FACTS_OF_V10: Facts = Facts { is_plain: true, reasons: Reasons::Line, ..HTTP };
static FACTS_OF_V11: Facts = Facts { is_reused_unasked: true, ..FACTS_OF_V10 };

/// Decoder of the chunks of a response.
#[derive(Debug, Default)]
struct Chunks(Chunked);

/// State of the requests whose response comes in chunks.
static CHUNKS: Slot<Chunks> = Slot::new();

impl Unused for Chunks {
    const UNUSED: &'static Chunks = &Chunks(Chunked::NEW);

    fn clear(&mut self) {
        self.0 = Chunked::NEW;
    }
}

/// Differences between the versions of HTTP in the text of a request's head.
pub(super) struct Form {
    /// End of the first line.
    pub(super) line_end: &'static [u8],
    /// `true` if a request without `Host` is not sent (RFC 9112, section 3.2).
    pub(super) needs_host: bool,
    /// `true` if the last request of a connection announces the end by `Connection: close`.
    pub(super) says_close: bool,
    /// `true` if a body that came on a stream keeps having no length.
    pub(super) keeps_framing: bool,
    /// `true` if the client's wish for trailers is passed on.
    pub(super) passes_te: bool,
    /// `true` if the connection may switch to another protocol.
    pub(super) upgrades: bool,
}

impl Form {
    /// The form of HTTP/1.0.
    const V10: Form = Form {
        line_end: b" HTTP/1.0\r\n",
        needs_host: false,
        // A connection of HTTP/1.0 ends after the response unless somebody asks otherwise (RFC 9112, section 9.3).
        says_close: false,
        keeps_framing: false,
        passes_te: false,
        upgrades: true,
    };

    /// The form of HTTP/1.1.
    const V11: Form = Form { says_close: true, ..Form::STREAM };

    /// The form of a head that becomes a field block.
    pub(super) const STREAM: Form = Form { line_end: b" HTTP/1.1\r\n", needs_host: true, ..Form::V10 };
}

impl Http1 {
    /// HTTP/1.0.
    pub const V10: Http1 = Http1 { version: Version::Http10, sends_chunks: false };
    /// HTTP/1.1.
    pub const V11: Http1 = Http1 { version: Version::Http11, sends_chunks: false };

    /// Returns the codec for a request with content, in chunks or as it is.
    pub(super) fn sending(self, chunks: bool) -> Http1 {
        Http1 { sends_chunks: chunks, ..self }
    }
}

impl Speak for Http1 {
    fn facts(&self) -> &'static Facts {
        if self.version == Version::Http10 { &FACTS_OF_V10 } else { &FACTS_OF_V11 }
    }

    fn can_stream(&self, framing: Framing) -> bool {
        // HTTP/1.0 knows no chunks, so the whole body has to be read first to find out its length.
        self.version != Version::Http10 || matches!(framing, Framing::None | Framing::Length(_))
    }

    fn write_request(&self, req: &mut Request, asked: &Asked<'_>, out: &mut Vec<u8>) -> Written {
        write_head(req, asked, if self.version == Version::Http10 { &Form::V10 } else { &Form::V11 }, out)
    }

    fn push_content(&self, content: &[u8], out: &mut Vec<u8>) {
        if self.sends_chunks {
            out.extend_from_slice(format!("{:x}\r\n", content.len()).as_bytes());
            out.extend_from_slice(content);
            out.extend_from_slice(b"\r\n");
        } else {
            out.extend_from_slice(content);
        }
    }

    fn push_end(&self, out: &mut Vec<u8>) {
        if self.sends_chunks {
            out.extend_from_slice(b"0\r\n\r\n");
        }
    }

    fn sends_plain(&self) -> bool {
        !self.sends_chunks
    }

    fn begin(&self, req: &mut Request) {
        req.modules.upstream.head.advance(usize::MAX);
        CHUNKS.clear(req);
    }

    fn parse_head(&self, req: &mut Request, limit: usize, headless: bool) -> Result<Came, Fault> {
        parse_head(req, limit, headless)
    }

    fn keeps_alive(&self, req: &Request) -> bool {
        req.modules.upstream.head.keep_alive
    }

    /// A 204 must not announce content (RFC 9110, section 8.6; RFC 9112, section 6.1), so a server that does may send
    /// some. A 304 may: it has the length that a 200 would have.
    fn may_follow(&self, head: &ResponseHead) -> bool {
        let announced =
            head.content_length.is_some_and(|n| n > 0) || head.get(Name::TransferEncoding).is_some();
        head.status == 204 && announced
    }

    fn at_once(&self, _conn: &Conn) -> Option<Place> {
        Some(Place::Head)
    }

    fn decode(&mut self, c: &mut Content, req: &mut Request, input: Input<'_>, out: &mut Vec<u8>) -> Decoded {
        if c.framing != Framing::Chunked {
            return c.decode_plain(req, input.bytes, out);
        }
        let before = out.len();
        match dechunk(c, &mut CHUNKS.of_mut(req).0, input.bytes, out) {
            Ok(over) => Decoded::content(out.len() - before, over),
            Err(InvalidChunked) => {
                req.log(Level::Error, "upstream sent invalid chunked response while reading upstream");
                Decoded { end: End::Broken, ..Decoded::content(0, false) }
            }
        }
    }

    fn note_trailers(&self, content: &Content, req: &mut Request, _conn: Option<&Conn>) {
        if content.framing != Framing::Chunked {
            return;
        }
        let chunks = std::mem::take(CHUNKS.of_mut(req));
        for (_, name, value) in chunks.0.trailers() {
            content.note_trailer(req, name, value);
        }
        *CHUNKS.of_mut(req) = chunks;
    }
}

/// Decodes chunks. Returns `true` if the end has come.
fn dechunk(
    content: &mut Content,
    chunks: &mut Chunked,
    input: &[u8],
    out: &mut Vec<u8>,
) -> Result<bool, InvalidChunked> {
    let mut at = 0;
    loop {
        let rest = input.get(at..).unwrap_or_default();
        match chunks.decode(rest)? {
            Step::Data { start, end } => {
                out.extend_from_slice(rest.get(start..end).unwrap_or_default());
                at += end;
            }
            Step::More => return Ok(false),
            Step::End { consumed } => {
                // Bytes after the last chunk belong to no request: the connection could be used to slip a response in
                // (RFC 9112, section 11.1).
                content.reusable &= at + consumed == input.len();
                return Ok(true);
            }
        }
    }
}

/// Parses the part of a head that has come. With `headless`, as in nginx, bytes that are no head are the content of a
/// response of HTTP/0.9.
fn parse_head(req: &mut Request, limit: usize, headless: bool) -> Result<Came, Fault> {
    let head = &mut req.modules.upstream.head;
    match client::parse(head, limit) {
        Ok(Status::Complete) if head.is_interim() => Ok(Came::Interim),
        Ok(Status::Complete) => {
            took_head(req);
            Ok(Came::All)
        }
        Ok(Status::Partial) => Ok(Came::Part),
        Err(bad) => {
            let mut message = Vec::new();
            bad.message(head, &mut message);
            if bad.not_http && headless {
                client::take_as_content(head);
                req.log(Level::Error, &format!("{} {READING}", String::from_utf8_lossy(&message)));
                took_head(req);
                return Ok(Came::All);
            }
            Err(bad_head(req, &message))
        }
    }
}

/// Appends the head of a request, which does not depend on how the client wrote it. Returns `true` if it asks for another
/// protocol. If `proxy_pass` implies the group, a request with `Connection: close` makes its connection end.
pub(super) fn write_head(req: &mut Request, asked: &Asked<'_>, form: &Form, out: &mut Vec<u8>) -> Written {
    request_line(req, asked, form, out)?;
    let upgrade = set_fields(req, asked, form, out)?;
    validators(req, asked, out)?;
    body_fields(req, asked, form, out)?;
    client_fields(req, asked, out);
    let set = &asked.settings.set_header;
    // TE belongs to one connection and is not copied, but servers of gRPC find intermediaries that lose trailers by it.
    if form.passes_te && grpc::wants_trailers(req) && !set.has(Name::Te, b"") {
        field(out, b"TE", b"trailers")?;
    }
    // The side that closes first keeps the port in TIME_WAIT. If that were this side, its ports to the server would run short.
    let last = CALL.of(req).reuse == Reuse::No;
    if last && form.says_close && !upgrade && !set.has(Name::Connection, b"") {
        field(out, b"Connection", b"close")?;
    }
    out.extend_from_slice(b"\r\n");
    Ok(upgrade && form.upgrades)
}

fn request_line(
    req: &mut Request,
    asked: &Asked<'_>,
    form: &Form,
    out: &mut Vec<u8>,
) -> Result<(), Unwritten> {
    match &asked.settings.method.0 {
        Some(t) => {
            t.eval(req, out)?;
            out.make_ascii_uppercase();
        }
        None if asked.as_get => out.extend_from_slice(b"GET"),
        None => out.extend_from_slice(req.method_text()),
    }
    out.push(b' ');
    out.extend_from_slice(asked.uri);
    // Method and URI may come from variables, and a line break in their values would begin a request of its own.
    field::check(b"request line", out)?;
    out.extend_from_slice(form.line_end);
    Ok(())
}

/// Appends the fields of `proxy_set_header`, and always `Host`. Returns `true` if one of them is `Upgrade`.
fn set_fields(
    req: &mut Request,
    asked: &Asked<'_>,
    form: &Form,
    out: &mut Vec<u8>,
) -> Result<bool, Unwritten> {
    let mut value = req.take_buf();
    let mut host = false;
    let mut upgrade = false;
    for SetHeader { name, id, value: template } in asked.settings.set_header.0.iter() {
        value.clear();
        template.eval(req, &mut value)?;
        if *id == Name::Host {
            host = true;
            // An empty value leaves a field out, as in nginx, but a request without `Host` is invalid here.
            if value.is_empty() && form.needs_host {
                value.extend_from_slice(&req.modules.upstream.host);
            }
        } else if !std::mem::replace(&mut host, true) {
            field(out, b"Host", &req.modules.upstream.host)?;
        }
        // The configuration must not set the framing of the body: with two framings the server could take content for
        // another request (RFC 9112, section 11.2).
        if value.is_empty() || id.is(Classes::FRAMING) {
            continue;
        }
        upgrade |= *id == Name::Upgrade;
        if *id == Name::Connection && CALL.of(req).reuse == Reuse::Implied && asks_to_close(&value) {
            CALL.of_mut(req).reuse = Reuse::No;
        }
        field(out, name, &value)?;
    }
    req.give_buf(value);
    if !host {
        field(out, b"Host", &req.modules.upstream.host)?;
    }
    Ok(upgrade)
}

/// Returns `true` if `close` is among the options of a `Connection` field.
fn asks_to_close(value: &[u8]) -> bool {
    value.split(|b| *b == b',').any(|option| option.trim_ascii().eq_ignore_ascii_case(b"close"))
}

/// Appends the conditions for a stored response, by which the server validates it (RFC 9111, section 4.3.1).
fn validators(req: &Request, asked: &Asked<'_>, out: &mut Vec<u8>) -> Result<(), Unsafe> {
    if !asked.stored {
        return Ok(());
    }
    let set = &asked.settings.set_header;
    let stale = proxy_cache::STATE.of(req);
    // Fields of `proxy_set_header` win, since a request with the same condition twice would be ambiguous.
    if let Some(t) = stale.last_modified.filter(|_| !set.has(Name::IfModifiedSince, b"")) {
        field(out, b"If-Modified-Since", &forebay_http::date::imf(t))?;
    }
    if !stale.etag.is_empty() && !set.has(Name::IfNoneMatch, b"") {
        field(out, b"If-None-Match", &stale.etag)?;
    }
    Ok(())
}

/// Appends the framing of the body.
fn body_fields(req: &Request, asked: &Asked<'_>, form: &Form, out: &mut Vec<u8>) -> Result<(), Unsafe> {
    match asked.body {
        Outgoing::None => {}
        // A body that is passed on as it came keeps its framing, even if all of it has come already.
        Outgoing::Stored if form.keeps_framing && has_no_length(req, asked.settings) => {}
        Outgoing::Bytes(b) => length(out, b.len() as u64),
        Outgoing::Stored => length(out, req.body.stored.len()),
        Outgoing::Streamed(true) => field(out, b"Transfer-Encoding", b"chunked")?,
        Outgoing::Streamed(false) => {
            if let Framing::Length(n) = req.head.framing {
                length(out, n);
            }
        }
    }
    Ok(())
}

/// Returns `true` if a body without a length comes on a stream of HTTP/2 and is passed on without being read first. Over HTTP/3 one that
/// has arrived gets a length, as in nginx.
fn has_no_length(req: &Request, s: &Settings) -> bool {
    req.head.framing == Framing::Stream && req.head.version == Version::Http2 && !s.request_buffering
}

/// Appends the client's fields that are not set otherwise (nginx: proxy_pass_request_headers).
fn client_fields(req: &Request, asked: &Asked<'_>, out: &mut Vec<u8>) {
    let h = &req.head;
    for f in h.fields.iter().filter(|_| asked.settings.pass_request_headers) {
        let name = f.name.of(&h.buf);
        // The response is stored, so the client's conditions must not make the server send less than all of it.
        let own = asked.stored && f.id.is(Classes::CONDITIONAL);
        if !f.id.is(Classes::REQUEST_HOP) && !own && !asked.settings.set_header.has(f.id, name) {
            copied_field(out, &h.buf, f);
        }
    }
}

fn length(out: &mut Vec<u8>, n: u64) {
    out.extend_from_slice(b"Content-Length: ");
    number(out, n);
    out.extend_from_slice(b"\r\n");
}
