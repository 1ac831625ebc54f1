//! The response head as it goes onto an HTTP/1 connection (nginx: the header filter). Hot path.

use crate::compress::{self, accept::Ranked, forms::Form};
use crate::error_page;
use crate::file_cache::OpenFile;
use crate::modules::core::{ServerTokens, Settings};
use crate::request::Request;
use crate::response::{Part, Response};
use forebay_conf::error::Level;
use forebay_http::field::{self, Classes, Name, Unsafe};
use forebay_http::h1::response;
use forebay_http::h2::encode;
use forebay_http::request::{Method, Version};
use forebay_net::addr::Peer;
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

/// Name and version in `Server` and on built-in pages.
pub const PRODUCT: &str = concat!("forebay/", env!("CARGO_PKG_VERSION"));

/// Appends what `Server` says here.
pub fn push_server_token(req: &mut Request, core: &Settings, out: &mut Vec<u8>) {
    match &core.server_tokens {
        ServerTokens::On | ServerTokens::Build => out.extend_from_slice(PRODUCT.as_bytes()),
        ServerTokens::Off => out.extend_from_slice(b"forebay"),
        ServerTokens::Value(t) => match t.value(req).unwrap_or_default().as_slice() {
            b"on" | b"build" => out.extend_from_slice(PRODUCT.as_bytes()),
            b"" | b"off" => out.extend_from_slice(b"forebay"),
            other if field::check(b"Server", other).is_err() => out.extend_from_slice(b"forebay"),
            other => out.extend_from_slice(other),
        },
    }
}

/// How the body is framed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BodyFraming {
    /// No body is sent.
    None,
    /// By `Content-Length` or by the end of the connection.
    Plain,
    /// In chunks.
    Chunked,
}

/// Appends the head of the response and says how the body goes. A response that a variable has brought CR, LF or NUL into
/// a field of becomes a built-in page for 500.
pub fn write(req: &mut Request, out: &mut Vec<u8>) -> BodyFraming {
    let start = out.len();
    try_write(req, out).unwrap_or_else(|refused| {
        out.truncate(start);
        let name = String::from_utf8_lossy(&refused.name).into_owned();
        // Unlike nginx: that sends what follows the line break as further fields.
        req.log(Level::Error, &format!("\"{name}\" of the response has a line break or NUL in its value"));
        req.resp.location.clear();
        req.modules.compress.clear();
        error_page::built_in(req, 500);
        // It has nothing of the request's in it.
        try_write(req, out).unwrap_or(BodyFraming::None)
    })
}

fn try_write(req: &mut Request, out: &mut Vec<u8>) -> Result<BodyFraming, Unsafe> {
    let http = req.http();
    let core = &http.location(req).settings.core;
    let status = req.resp.status;
    if req.head.version == Version::Http09 {
        req.keep_alive = false;
        return Ok(if req.resp.head_only { BodyFraming::None } else { BodyFraming::Plain });
    }
    let head_only = req.method == Method::Head
        || req.head.method == Method::Head
        || matches!(status, 100..=199 | 204 | 304);
    req.resp.head_only |= head_only;
    if req.head.version == Version::Http2 {
        return write_h2(req, out);
    }
    if req.resp.reason.is_empty() {
        response::status_line(out, status);
    } else {
        field::check(b"status line", &req.resp.reason)?;
        out.extend_from_slice(b"HTTP/1.1 ");
        out.extend_from_slice(&req.resp.reason);
        out.extend_from_slice(b"\r\n");
    }
    if !req.resp.leaves_server && req.resp.fields.get(b"Server").is_none() {
        match &core.server_tokens {
            ServerTokens::Off => out.extend_from_slice(b"Server: forebay\r\n"),
            ServerTokens::On | ServerTokens::Build => response::field(out, b"Server", PRODUCT.as_bytes())?,
            ServerTokens::Value(_) => {
                out.extend_from_slice(b"Server: ");
                push_server_token(req, core, out);
                out.extend_from_slice(b"\r\n");
            }
        }
    }
    if !req.resp.leaves_date && req.resp.fields.get(b"Date").is_none() {
        response::field(out, b"Date", &req.thread.clock.http_date())?;
    }
    let r = &req.resp;
    if has_content_type(r) {
        field::check(b"Content-Type", &r.content_type)?;
        field::check(b"Content-Type", &r.charset)?;
        out.extend_from_slice(b"Content-Type: ");
        out.extend_from_slice(&r.content_type);
        if !r.charset.is_empty() {
            out.extend_from_slice(b"; charset=");
            out.extend_from_slice(&r.charset);
        }
        out.extend_from_slice(b"\r\n");
    }
    let mut framing = if r.head_only { BodyFraming::None } else { BodyFraming::Plain };
    let mut chunked = false;
    let trailers = r.expect_trailers && req.head.version >= Version::Http11 && core.chunked_transfer_encoding;
    match r.content_length.filter(|_| !trailers) {
        Some(n) if status != 204 => {
            out.extend_from_slice(b"Content-Length: ");
            response::number(out, n);
            out.extend_from_slice(b"\r\n");
        }
        None if status != 304 && status != 204 => {
            if req.head.version >= Version::Http11 && core.chunked_transfer_encoding {
                if framing == BodyFraming::Plain {
                    chunked = true;
                    framing = BodyFraming::Chunked;
                }
            } else if !r.head_only {
                req.keep_alive = false;
            }
        }
        _ => {}
    }
    if let Some(t) = r.last_modified.filter(|_| matches!(status, 200 | 206 | 304)) {
        response::field(out, b"Last-Modified", &forebay_http::date::imf(t))?;
    }
    // A path is made absolute here; anything else goes with the other fields, as nginx has it.
    let made_absolute = r.location.first() == Some(&b'/') && core.absolute_redirect;
    if made_absolute {
        let mut text = req.take_buf();
        location(req, core, &mut text);
        let done = response::field(out, b"Location", &text);
        req.give_buf(text);
        done?;
    }
    if chunked {
        out.extend_from_slice(b"Transfer-Encoding: chunked\r\n");
    }
    if status == 101 {
        out.extend_from_slice(b"Connection: upgrade\r\n");
    } else if req.keep_alive {
        out.extend_from_slice(b"Connection: keep-alive\r\n");
        if let Some(n) = core.keepalive_timeout.header.filter(|n| *n > 0) {
            out.extend_from_slice(b"Keep-Alive: timeout=");
            response::number(out, n);
            out.extend_from_slice(b"\r\n");
        }
    } else {
        out.extend_from_slice(b"Connection: close\r\n");
    }
    let r = &req.resp;
    if r.gzip_vary {
        out.extend_from_slice(b"Vary: Accept-Encoding\r\n");
    }
    if !made_absolute && !r.location.is_empty() {
        response::field(out, b"Location", &r.location)?;
    }
    if !r.etag.is_empty() {
        response::field(out, b"ETag", &r.etag)?;
    }
    for (name, value) in r.fields.iter() {
        response::field(out, name, value)?;
    }
    out.extend_from_slice(b"\r\n");
    Ok(framing)
}

/// As [`try_write`], as an HTTP/2 field block.
fn write_h2(req: &mut Request, out: &mut Vec<u8>) -> Result<BodyFraming, Unsafe> {
    let http = req.http();
    let core = &http.location(req).settings.core;
    let status = req.resp.status;
    encode::status(out, response::wire_status(status));
    if !req.resp.leaves_server && req.resp.fields.get(b"Server").is_none() {
        match &core.server_tokens {
            ServerTokens::Off => encode::indexed(out, encode::SERVER, b"forebay"),
            ServerTokens::On | ServerTokens::Build => {
                encode::indexed(out, encode::SERVER, PRODUCT.as_bytes())
            }
            ServerTokens::Value(_) => {
                let mut text = Vec::new();
                push_server_token(req, core, &mut text);
                encode::indexed(out, encode::SERVER, &text);
            }
        }
    }
    if !req.resp.leaves_date && req.resp.fields.get(b"Date").is_none() {
        encode::indexed_plain(out, encode::DATE, &req.thread.clock.http_date());
    }
    let r = &req.resp;
    if has_content_type(r) {
        field::check(b"Content-Type", &r.content_type)?;
        field::check(b"Content-Type", &r.charset)?;
        if r.charset.is_empty() {
            encode::indexed(out, encode::CONTENT_TYPE, &r.content_type);
        } else {
            let text = [&r.content_type[..], b"; charset=", &r.charset].concat();
            encode::indexed(out, encode::CONTENT_TYPE, &text);
        }
    }
    if let Some(n) = r.content_length.filter(|_| status != 204) {
        let mut digits = itoa::Buffer::new();
        encode::indexed_plain(out, encode::CONTENT_LENGTH, digits.format(n).as_bytes());
    }
    if let Some(t) = r.last_modified.filter(|_| matches!(status, 200 | 206 | 304)) {
        encode::indexed(out, encode::LAST_MODIFIED, &forebay_http::date::imf(t));
    }
    if r.location.first() == Some(&b'/') && core.absolute_redirect {
        let mut text = Vec::new();
        location(req, core, &mut text);
        field::check(b"Location", &text)?;
        encode::indexed(out, encode::LOCATION, &text);
    } else if !r.location.is_empty() {
        field::check(b"Location", &r.location)?;
        encode::indexed(out, encode::LOCATION, &r.location);
    }
    if r.gzip_vary {
        encode::indexed(out, encode::VARY, b"Accept-Encoding");
    }
    if !r.etag.is_empty() {
        field::check(b"ETag", &r.etag)?;
        encode::indexed(out, encode::ETAG, &r.etag);
    }
    for (name, value) in r.fields.iter() {
        field::check(name, value)?;
        encode::field(out, name, value);
    }
    Ok(if r.head_only { BodyFraming::None } else { BodyFraming::Plain })
}

/// Whether the type of the content is told. One without content has a type only where an upstream says it.
fn has_content_type(r: &Response) -> bool {
    !r.content_type.is_empty() && (r.status != 204 || r.proxied)
}

/// Appends the trailers as an HTTP/2 field block.
pub fn write_trailers(req: &Request, out: &mut Vec<u8>) {
    for (name, value) in req.resp.trailers.iter() {
        // An upstream of HTTP/1 may have put anything there.
        if !Name::of(name).is(Classes::CONNECTION) {
            encode::field(out, name, value);
        }
    }
}

/// Appends the path of a redirect, made absolute (nginx: absolute_redirect).
fn location(req: &Request, core: &Settings, out: &mut Vec<u8>) {
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

/// Whether the answer will go out as it is, whole, and with a head that depends on nothing but its location.
fn is_plain(req: &Request) -> bool {
    let first = &req.head.first.0;
    let asks =
        [Name::Range, Name::IfModifiedSince, Name::IfUnmodifiedSince, Name::IfMatch, Name::IfNoneMatch];
    let http = req.http();
    let l = http.location(req);
    req.status_override.is_none()
        && req.keep_alive
        && matches!(req.head.version, Version::Http11 | Version::Http2)
        && req.method == Method::Get
        && req.head.method == Method::Get
        && asks.iter().all(|n| first[*n as usize] == 0)
        && l.plan.plain_head
        && !http.logs_sent_fields
        && req.error_status == 0
        && req.refused == 0
}

fn made_for(req: &Request) -> (usize, u64) {
    (req.location, req.http().serial)
}

/// The head of a plain answer as it was sent last. All but the date is the same from one request to the next.
#[derive(Debug)]
pub struct SentHead {
    /// Location that it was made for, and the serial number of its configuration.
    made_for: (usize, u64),
    /// Codings that the client takes of those that the location has.
    ranked: Ranked,
    version: Version,
    /// What stands before the date,
    before: Box<[u8]>,
    /// and behind it.
    after: Box<[u8]>,
    /// The body, where it is compressed.
    pub form: Option<Arc<Form>>,
}

/// Such heads of one file or cached response.
#[derive(Debug, Default)]
pub struct SentHeads(RefCell<Vec<Rc<SentHead>>>);

/// Heads kept of one file or cached response.
const SENT_HEADS: usize = 8;

impl SentHeads {
    fn find(&self, made_for: (usize, u64), ranked: Ranked, version: Version) -> Option<Rc<SentHead>> {
        let heads = self.0.borrow();
        heads.iter().find(|h| h.made_for == made_for && h.ranked == ranked && h.version == version).cloned()
    }

    fn put(&self, head: SentHead) {
        let mut heads = self.0.borrow_mut();
        heads.retain(|h| {
            h.made_for.1 == head.made_for.1
                && (h.made_for, h.ranked, h.version) != (head.made_for, head.ranked, head.version)
        });
        if heads.len() >= SENT_HEADS {
            heads.remove(0);
        }
        heads.push(Rc::new(head));
    }
}

/// The codings by which the heads of a location are told apart. `None`: they depend on more.
fn ranked(req: &Request) -> Option<Ranked> {
    let http = req.http();
    let l = http.location(req);
    if l.plan.compresses { compress::ranked(req, &l.settings) } else { Some(Ranked::default()) }
}

/// The head that was sent last for a file or a cached response, if it is the one for this request too.
pub fn ready(req: &Request, heads: &SentHeads) -> Option<Rc<SentHead>> {
    if !is_plain(req) || !req.resp.fields.is_empty() || req.resp.limit_rate != 0 {
        return None;
    }
    heads.find(made_for(req), ranked(req)?, req.head.version)
}

/// Answers with such a head and what it belongs to, of `len` bytes.
pub fn take_ready(req: &mut Request, head: Rc<SentHead>, len: u64, part: Part) {
    if let Some(form) = &head.form {
        compress::use_form(req, form.clone(), len);
    } else {
        req.resp.content_length = Some(len);
        req.resp.body.push(part);
    }
    req.resp.ready = Some(head);
}

/// Appends the head of an answer that has one ready. `false`: it has none.
pub fn write_ready(req: &mut Request, out: &mut Vec<u8>) -> bool {
    let Some(h) = &req.resp.ready else { return false };
    out.extend_from_slice(&h.before);
    out.extend_from_slice(&req.thread.clock.http_date());
    if req.keep_alive {
        out.extend_from_slice(&h.after);
        return true;
    }
    // The thread began to end meanwhile.
    const KEEP: &[u8] = b"Connection: keep-alive";
    match memchr::memmem::find(&h.after, KEEP) {
        Some(at) => {
            out.extend_from_slice(&h.after[..at]);
            out.extend_from_slice(b"Connection: close");
            out.extend_from_slice(&h.after[at + KEEP.len()..]);
        }
        None => out.extend_from_slice(&h.after),
    }
    true
}

/// The file that a plain answer is the whole of, before the header filters have run.
pub fn subject(req: &Request) -> Option<Rc<OpenFile>> {
    let r = &req.resp;
    let [Part::File { file, start: 0, end }] = r.body.as_slice() else { return None };
    let whole = r.status == 200 && *end == file.size && file.kept.get();
    let bare = r.location.is_empty() && !r.gzip_vary && r.fields.is_empty();
    (whole && bare && is_plain(req)).then(|| file.clone())
}

/// Whether each field of a response is as its cache entry has it, byte for byte, so that nothing in it comes from this
/// request. [`Response::fields`](crate::response::Response::fields) are compared with the entry's head, which is where that
/// of an upstream would be.
fn is_stored(req: &Request) -> bool {
    let (r, stored) = (&req.resp, &req.modules.upstream.head);
    let has = |name: &[u8], value: &[u8]| {
        let mut lines = stored.fields.iter();
        lines.any(|l| l.value.of(&stored.buf) == value && l.name.of(&stored.buf).eq_ignore_ascii_case(name))
    };
    let is = |name: &[u8], value: &[u8]| match Name::of(name) {
        // Made again each time.
        Name::Date => false,
        // By our own compression and ranges, which such heads are told apart by or do without.
        Name::ContentEncoding | Name::AcceptRanges => true,
        Name::Etag => has(name, value) || value.strip_prefix(b"W/").is_some_and(|v| has(name, v)),
        _ => has(name, value),
    };
    r.location.is_empty()
        && r.trailers.is_empty()
        && r.fields.iter().all(|(name, value)| is(name, value))
        && (r.content_type.is_empty()
            || stored.get(Name::ContentType).is_some_and(|t| t.starts_with(&r.content_type)))
}

/// Keeps the head that has been written for a cached response or a file, if the next request can have it as it is.
pub fn remember(req: &Request, file: Option<Rc<OpenFile>>, out: &[u8]) {
    let r = &req.resp;
    let state = &req.modules.compress;
    let len = state.form.as_ref().map(|f| f.bytes.len() as u64);
    let heads = match (&file, &r.entry) {
        (Some(f), _) => {
            let known = |name: &[u8]| {
                name.eq_ignore_ascii_case(b"Content-Encoding") || name.eq_ignore_ascii_case(b"Accept-Ranges")
            };
            if r.status != 200
                || r.content_length != Some(len.unwrap_or(f.size))
                || !r.location.is_empty()
                || !r.fields.iter().all(|(name, _)| known(name))
            {
                return;
            }
            &f.heads
        }
        (None, Some(e)) => {
            let depends = r.leaves_date
                || r.limit_rate != 0
                || r.status != e.meta.status
                || r.content_length != Some(len.unwrap_or(e.len()))
                || !r.override_charset.is_empty();
            if depends || !is_plain(req) || !is_stored(req) {
                return;
            }
            &e.heads
        }
        (None, None) => return,
    };
    if r.source.is_some() || r.head_only || !r.filters.is_empty() {
        return;
    }
    let Some(ranked) = ranked(req) else { return };
    let date = req.thread.clock.http_date();
    let Some(at) = memchr::memmem::find(out, &date) else { return };
    // A field of the response may have the same date in front of it.
    if req.head.version == Version::Http11 && !out.get(..at).is_some_and(|b| b.ends_with(b"\r\nDate: ")) {
        return;
    }
    heads.put(SentHead {
        made_for: made_for(req),
        ranked,
        version: req.head.version,
        before: out.get(..at).unwrap_or_default().into(),
        after: out.get(at + date.len()..).unwrap_or_default().into(),
        form: state.form.clone(),
    });
}
