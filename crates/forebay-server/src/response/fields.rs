//! Fields of responses, in the order in which every version of HTTP sends them. Hot path.
//!
//! A `Sink` encodes them: lines for HTTP/1, HPACK for HTTP/2, QPACK for HTTP/3.

use crate::modules::alt_svc;
use crate::modules::core::{ServerTokens, Settings};
use crate::request::Request;
use crate::response::Response;
use forebay_http::field::{self, Classes, Name, Unsafe};
use forebay_http::h1::response;
use forebay_http::request::Version;
use forebay_http::{h2, h3};
use forebay_net::addr::Peer;
use std::borrow::Cow;

/// Name and version in `Server` and on built-in pages.
pub const PRODUCT: &str = concat!("forebay/", env!("CARGO_PKG_VERSION"));

/// Appends the value of `Server` (nginx: server_tokens).
pub fn push_server_token(req: &mut Request, core: &Settings, out: &mut Vec<u8>) {
    match &core.server_tokens {
        ServerTokens::On | ServerTokens::Build => out.extend_from_slice(PRODUCT.as_bytes()),
        ServerTokens::Off => out.extend_from_slice(b"forebay"),
        ServerTokens::Value(t) => match t.value(req).unwrap_or_default().as_slice() {
            b"on" | b"build" => out.extend_from_slice(PRODUCT.as_bytes()),
            b"" | b"off" => out.extend_from_slice(b"forebay"),
            other => {
                out.extend_from_slice(field::one_line(b"Server", other).as_deref().unwrap_or(b"forebay"))
            }
        },
    }
}

/// Encoder of fields, by the version of HTTP. A version that is added is a variant here.
pub enum Sink<'o> {
    /// Lines (RFC 9112, section 5).
    Http1(&'o mut Vec<u8>),
    /// Field lines of a block (RFC 7541).
    Hpack(&'o mut Vec<u8>),
    /// Field lines of a section (RFC 9204).
    Qpack(&'o mut Vec<u8>),
}

/// Fields that the server makes itself.
#[derive(Clone, Copy)]
enum Own {
    Server,
    Date,
    ContentType,
    ContentLength,
    LastModified,
    Location,
    Vary,
    Etag,
}

/// Forms of a field that the server makes.
struct FieldForm {
    /// Name in HTTP/1.
    name: &'static [u8],
    /// Name and colon, as a line of HTTP/1 starts.
    start: &'static [u8],
    /// Index of the name in the static table of HPACK.
    hpack: usize,
    /// Index of the name in the static table of QPACK.
    qpack: usize,
}

macro_rules! form {
    ($name:literal, $id:ident) => {
        FieldForm {
            name: $name.as_bytes(),
            start: concat!($name, ": ").as_bytes(),
            hpack: h2::encode::$id,
            qpack: h3::encode::$id,
        }
    };
}

/// Forms in the order of [`Own`].
static FORMS: [FieldForm; 8] = [
    form!("Server", SERVER),
    form!("Date", DATE),
    form!("Content-Type", CONTENT_TYPE),
    form!("Content-Length", CONTENT_LENGTH),
    form!("Last-Modified", LAST_MODIFIED),
    form!("Location", LOCATION),
    form!("Vary", VARY),
    form!("ETag", ETAG),
];

impl Own {
    #[inline]
    fn form(self) -> &'static FieldForm {
        &FORMS[self as usize]
    }
}

impl<'o> Sink<'o> {
    /// Creates the encoder for a request's response.
    pub fn new(version: Version, out: &'o mut Vec<u8>) -> Sink<'o> {
        match version {
            Version::Http2 => Sink::Hpack(out),
            Version::Http3 => Sink::Qpack(out),
            _ => Sink::Http1(out),
        }
    }

    /// Begins the head of a final or interim response, except for HTTP/1, whose status line has a reason.
    pub fn status(&mut self, status: u16) {
        match self {
            Sink::Http1(_) => {}
            Sink::Hpack(out) => h2::encode::status(out, status),
            Sink::Qpack(out) => {
                // Every field section of QPACK begins with a prefix (RFC 9204, section 4.5.1).
                h3::encode::prefix(out);
                h3::encode::status(out, status);
            }
        }
    }

    /// Begins the trailers.
    fn begin_trailers(&mut self) {
        if let Sink::Qpack(out) = self {
            h3::encode::prefix(out);
        }
    }

    /// Appends a checked field to a section of HTTP/2 or HTTP/3, unless they forbid it.
    fn section_field(&mut self, name: &[u8], value: &[u8]) {
        match self {
            // Fields about the connection make a message of HTTP/2 or HTTP/3 malformed (RFC 9113, section 8.2.2).
            _ if Name::of(name).is(Classes::UNFIT_FOR_HTTP2) => {}
            Sink::Http1(_) => {}
            Sink::Hpack(out) => h2::encode::field(out, name, value),
            Sink::Qpack(out) => h3::encode::field(out, name, value),
        }
    }

    /// Appends a field, unless this version of HTTP forbids it. nginx sends `Proxy-Connection` and others over HTTP/2 as well, but
    /// clients refuse such a response as malformed.
    ///
    /// # Errors
    /// Errors of [`field::one_line`]; nothing is appended then.
    #[inline]
    pub fn field(&mut self, name: &[u8], value: &[u8]) -> Result<(), Unsafe> {
        match self {
            Sink::Http1(out) => response::field(out, name, value),
            Sink::Hpack(_) | Sink::Qpack(_) => {
                self.section_field(name, &field::one_line(name, value)?);
                Ok(())
            }
        }
    }

    #[inline]
    fn own(&mut self, own: Own, value: &[u8]) -> Result<(), Unsafe> {
        let form = own.form();
        // All other values are put together from numbers and checked parts, so they need no check here.
        let value = &*match own {
            Own::ContentType | Own::Location | Own::Etag => field::one_line(form.name, value)?,
            _ => Cow::Borrowed(value),
        };
        match self {
            Sink::Http1(out) => {
                out.reserve(form.start.len() + value.len() + 2);
                out.extend_from_slice(form.start);
                out.extend_from_slice(value);
                out.extend_from_slice(b"\r\n");
            }
            // Date and length are short and differ each time, so Huffman coding would cost more than it saves.
            Sink::Hpack(out) if matches!(own, Own::Date | Own::ContentLength) => {
                h2::encode::indexed_plain(out, form.hpack, value);
            }
            Sink::Hpack(out) => h2::encode::indexed(out, form.hpack, value),
            Sink::Qpack(out) if matches!(own, Own::Date | Own::ContentLength) => {
                h3::encode::indexed_plain(out, form.qpack, value);
            }
            Sink::Qpack(out) => h3::encode::indexed(out, form.qpack, value),
        }
        Ok(())
    }

    /// Appends a field that was encoded with the configuration. Over HTTP/3 there is no such field.
    fn encoded(&mut self, field: &alt_svc::Encoded) {
        match self {
            Sink::Http1(out) => out.extend_from_slice(&field.line),
            Sink::Hpack(out) => out.extend_from_slice(&field.hpack),
            Sink::Qpack(_) => {}
        }
    }

    /// Returns the buffer of an HTTP/1 head, for fields about the connection, which other versions do without.
    fn lines(&mut self) -> Option<&mut Vec<u8>> {
        match self {
            Sink::Http1(out) => Some(out),
            Sink::Hpack(_) | Sink::Qpack(_) => None,
        }
    }
}

/// Fields about the connection, which only HTTP/1 has.
pub(super) struct OfConnection {
    /// `Transfer-Encoding: chunked`.
    pub chunked: bool,
}

impl OfConnection {
    fn push(&self, req: &Request, core: &Settings, out: &mut Vec<u8>) {
        if self.chunked {
            out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
        }
        // `Upgrade` has to be named in `Connection`, because it is meant for the next hop only (RFC 9110, section 7.8).
        if req.resp.status == 101 {
            out.extend_from_slice(b"Connection: upgrade\r\n");
        } else if req.ending.keeps_alive() {
            out.extend_from_slice(b"Connection: keep-alive\r\n");
            // nginx sends this field only if keepalive_timeout has a second parameter.
            if let Some(n) = core.keepalive_timeout.header.filter(|n| *n > 0) {
                out.extend_from_slice(b"Keep-Alive: timeout=");
                response::number(out, n);
                out.extend_from_slice(b"\r\n");
            }
        } else {
            out.extend_from_slice(b"Connection: close\r\n");
        }
    }
}

/// Appends the fields of the response. `length` is the value of `Content-Length`.
///
/// # Errors
/// [`Unsafe`] when a value has CR, LF or NUL.
pub(super) fn push_all(
    req: &mut Request,
    core: &Settings,
    length: Option<u64>,
    connection: &OfConnection,
    sink: &mut Sink<'_>,
) -> Result<(), Unsafe> {
    let mut text = req.take_buf();
    let done = push_with(req, core, length, connection, sink, &mut text);
    req.give_buf(text);
    done
}

/// Appends all fields. `text` is a buffer for values that are put together.
#[inline]
fn push_with(
    req: &mut Request,
    core: &Settings,
    length: Option<u64>,
    connection: &OfConnection,
    sink: &mut Sink<'_>,
    text: &mut Vec<u8>,
) -> Result<(), Unsafe> {
    req.resp.fields.unfold()?;
    push_server_and_date(req, core, sink, text)?;
    push_of_content(&req.resp, length, sink, text)?;
    let r = &req.resp;
    let made_absolute = r.location.first() == Some(&b'/') && core.absolute_redirect;
    if made_absolute {
        text.clear();
        push_location(req, core, text);
        sink.own(Own::Location, text)?;
    }
    if let Some(out) = sink.lines() {
        connection.push(req, core, out);
        // As in nginx, a location that is sent unchanged follows here, together with the other fields.
        if r.server_fields.vary {
            out.extend_from_slice(b"Vary: Accept-Encoding\r\n");
        }
    }
    if !made_absolute && !r.location.is_empty() {
        sink.own(Own::Location, &r.location)?;
    }
    push_rest(r, sink)?;
    let http = req.http();
    if let Some(field) = alt_svc::of_response(req, &http.server(req).alt_svc) {
        sink.encoded(field);
    }
    Ok(())
}

#[inline]
fn push_server_and_date(
    req: &mut Request,
    core: &Settings,
    sink: &mut Sink<'_>,
    text: &mut Vec<u8>,
) -> Result<(), Unsafe> {
    if req.resp.server_fields.server && req.resp.fields.get(b"Server").is_none() {
        push_server_token(req, core, text);
        sink.own(Own::Server, text)?;
    }
    if req.resp.server_fields.date && req.resp.fields.get(b"Date").is_none() {
        sink.own(Own::Date, &req.thread.clock.http_date())?;
    }
    Ok(())
}

/// Appends type, length and time of the content.
#[inline]
fn push_of_content(
    r: &Response,
    length: Option<u64>,
    sink: &mut Sink<'_>,
    text: &mut Vec<u8>,
) -> Result<(), Unsafe> {
    push_content_type(r, sink, text)?;
    if let Some(n) = length {
        sink.own(Own::ContentLength, itoa::Buffer::new().format(n).as_bytes())?;
    }
    // nginx sends the time with these statuses only.
    if let Some(t) = r.validators.last_modified.filter(|_| matches!(r.status, 200 | 206 | 304)) {
        sink.own(Own::LastModified, &forebay_http::date::imf(t))?;
    }
    Ok(())
}

/// Appends the remaining fields. The fields of the list have been unfolded before.
#[inline]
fn push_rest(r: &Response, sink: &mut Sink<'_>) -> Result<(), Unsafe> {
    if r.server_fields.vary && sink.lines().is_none() {
        sink.own(Own::Vary, b"Accept-Encoding")?;
    }
    if !r.validators.etag.is_empty() {
        sink.own(Own::Etag, &r.validators.etag)?;
    }
    match sink {
        Sink::Http1(out) => r.fields.write_lines(out),
        Sink::Hpack(_) | Sink::Qpack(_) => {
            r.fields.iter().for_each(|(name, value)| sink.section_field(name, value));
        }
    }
    Ok(())
}

/// Appends `Content-Type`.
fn push_content_type(r: &Response, sink: &mut Sink<'_>, text: &mut Vec<u8>) -> Result<(), Unsafe> {
    if r.content_type.is_empty() || !r.has_type(!matches!(sink, Sink::Http1(_))) {
        return Ok(());
    }
    if r.charset.is_empty() {
        return sink.own(Own::ContentType, &r.content_type);
    }
    text.clear();
    for piece in [&r.content_type[..], b"; charset=", &r.charset] {
        text.extend_from_slice(piece);
    }
    sink.own(Own::ContentType, text)
}

/// Makes the trailers, if a module adds any.
pub fn add_trailers(req: &mut Request) {
    if req.resp.server_fields.trailers {
        let http = req.http();
        http.location(req).plan.trailers.iter().for_each(|add| add(req));
    }
}

/// Appends the trailers of the response. A trailer with CR, LF or NUL is left out, because the status has been sent already and the
/// response cannot become an error any more.
pub fn push_trailers(resp: &Response, sink: &mut Sink<'_>) {
    sink.begin_trailers();
    for (name, value) in resp.trailers.iter() {
        let _ = sink.field(name, value);
    }
}

/// Appends the path of a redirect, made absolute (nginx: absolute_redirect).
fn push_location(req: &Request, core: &Settings, out: &mut Vec<u8>) {
    out.extend_from_slice(req.scheme());
    out.extend_from_slice(b"://");
    let http = req.http();
    if core.server_name_in_redirect {
        let name = &http.server(req).name;
        if name.is_empty() { local_address(req, out) } else { out.extend_from_slice(name) }
    } else if !req.head.host.is_empty() {
        out.extend_from_slice(&req.head.host);
    } else {
        local_address(req, out);
    }
    // As in nginx, a URL does not name the default port of its scheme.
    if core.port_in_redirect
        && let Some(port) =
            req.local_address().map(|a| a.port()).filter(|p| *p != if req.is_encrypted() { 443 } else { 80 })
    {
        out.push(b':');
        response::number(out, u64::from(port));
    }
    out.extend_from_slice(&req.resp.location);
}

fn local_address(req: &Request, out: &mut Vec<u8>) {
    match req.local_address() {
        Some(a) if a.is_ipv6() => out.extend_from_slice(format!("[{}]", a.ip()).as_bytes()),
        Some(a) => out.extend_from_slice(a.ip().to_string().as_bytes()),
        None => {
            if req.conn.client.peer == Peer::Unix {
                out.extend_from_slice(b"localhost");
            }
        }
    }
}
