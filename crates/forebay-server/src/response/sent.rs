//! Heads of responses that are used again for the same file or cached response. Hot path.

use super::Part;
use super::coding::Ranked;
use super::sent_heads::{MadeFor, SentHead, SentHeads};
use super::stored::Stored;
use crate::config::http::Location;
use crate::file_cache::OpenFile;
use crate::module::Head;
use crate::modules::alt_svc;
use crate::request::Request;
use forebay_http::field::Name;
use forebay_http::request::{Method, Version};
use std::rc::Rc;

/// Returns `true` if the response is sent whole and unchanged, with a head that depends on nothing but its location `l`.
fn is_plain(req: &Request, l: &Location) -> bool {
    let asks =
        [Name::Range, Name::IfModifiedSince, Name::IfUnmodifiedSince, Name::IfMatch, Name::IfNoneMatch];
    req.errors.is_none()
        && req.ending.keeps_alive()
        && req.head.version >= Version::Http11
        && req.method == Method::Get
        && req.head.method == Method::Get
        && !asks.iter().any(|n| req.head.first.has(*n))
        && l.plan.head != Head::Request
        // A log may show any field of the head, but a head that is sent again is only bytes.
        && !req.conf.http.logs_sent_fields
}

fn made_for(req: &Request) -> MadeFor {
    let http = &req.conf.http;
    let port = alt_svc::of_connection(req, &http.server(req).alt_svc).map_or(0, |field| field.port);
    MadeFor { server: req.server, location: req.location, serial: http.serial, port }
}

/// Returns the codings on which the heads of a location depend, or `None` if they depend on more.
fn ranked(req: &Request, l: &Location) -> Option<Ranked> {
    match (l.plan.head, l.plan.codings) {
        (Head::Coding, Some(codings)) => codings(req, &l.settings),
        _ => Some(Ranked::default()),
    }
}

/// Finds the head that was sent last for a file or a cached response, if this request would get the same.
pub fn ready(req: &Request, heads: &SentHeads) -> Option<Rc<SentHead>> {
    let l = req.own_location();
    if !is_plain(req, l) || !req.resp.fields.is_empty() || req.resp.limit_rate != 0 {
        return None;
    }
    heads.find(made_for(req), ranked(req, l)?, req.head.version)
}

/// Uses a remembered head for this response; `part` is the body, `len` bytes long.
pub fn take_ready(req: &mut Request, head: Rc<SentHead>, len: u64, part: Part) {
    if let Some(form) = &head.form {
        req.resp.use_form(form.clone(), len);
    } else {
        req.resp.content_length = Some(len);
        req.resp.body.push(part);
    }
    req.resp.ready = Some(head);
}

/// Appends the remembered head of the response. Returns `false` if it has none.
pub fn write_ready(req: &mut Request, out: &mut Vec<u8>) -> bool {
    let Some(h) = &req.resp.ready else { return false };
    let start = out.len();
    out.extend_from_slice(&h.bytes);
    let now = req.thread.clock.http_date();
    if let Some(date) = out.get_mut(start + h.date..).and_then(|rest| rest.first_chunk_mut()) {
        *date = now;
    }
    if !req.ending.keeps_alive() {
        // The thread has begun to quit after the head was chosen, and the connection will not take another request.
        const KEEP: &[u8] = b"Connection: keep-alive";
        let from = start + h.date;
        if let Some(at) = out.get(from..).and_then(|rest| memchr::memmem::find(rest, KEEP)) {
            let at = from + at;
            out.splice(at..at + KEEP.len(), *b"Connection: close");
        }
    }
    true
}

/// Returns the file if the response is the whole of a file, before the header filters have run.
pub fn subject(req: &Request) -> Option<Rc<OpenFile>> {
    let r = &req.resp;
    let [Part::File { file, start: 0, end }] = r.body.as_slice() else { return None };
    // A file that the cache does not keep ends with its response, and remembered heads would end with it.
    let whole = r.status == 200 && *end == file.size && file.kept.get();
    let bare = r.location.is_empty() && !r.server_fields.vary && r.fields.is_empty();
    (whole && bare && is_plain(req, req.own_location())).then(|| file.clone())
}

/// Returns `true` if each field of a response is in its cache entry, byte for byte, so that nothing in it comes from this request. The
/// fields in [`Response::fields`](super::Response::fields) are compared with the entry's head, which is in the place of an upstream's
/// head.
fn is_stored(req: &Request) -> bool {
    let (r, stored) = (&req.resp, &req.modules.upstream.head);
    let has = |name: &[u8], value: &[u8]| {
        let mut lines = stored.fields.iter();
        lines.any(|l| l.value.of(&stored.buf) == value && l.name.of(&stored.buf).eq_ignore_ascii_case(name))
    };
    let is = |name: &[u8], value: &[u8]| match Name::of(name) {
        // The date is made again for each response.
        Name::Date => false,
        // Our own compression and ranges make these fields. The codings are part of what a remembered head is found by, and requests for
        // ranges use none.
        Name::ContentEncoding | Name::AcceptRanges => true,
        // Compression changes the bytes of the content, so it makes a strong tag weak.
        Name::Etag => has(name, value) || value.strip_prefix(b"W/").is_some_and(|v| has(name, v)),
        _ => has(name, value),
    };
    r.location.is_empty()
        && r.trailers.is_empty()
        && r.fields.iter().all(|(name, value)| is(name, value))
        && (r.content_type.is_empty()
            || stored.get(Name::ContentType).is_some_and(|t| t.starts_with(&r.content_type)))
}

/// Remembers the head that has been written for a cached response or a file, if the next request would get the same.
pub fn remember(req: &Request, file: Option<Rc<OpenFile>>, out: &[u8]) {
    let r = &req.resp;
    let heads = match (&file, r.origin.entry()) {
        (Some(f), _) if is_of_file(req, f) => &f.made.heads,
        (None, Some(e)) if is_of_entry(req, &**e) => &e.made().heads,
        _ => return,
    };
    if r.source.is_some() || r.head_only || !r.filters.body.is_empty() {
        return;
    }
    let Some(ranked) = ranked(req, req.own_location()) else { return };
    let date = req.thread.clock.http_date();
    let Some(at) = memchr::memmem::find(out, &date) else { return };
    // Another field may have the same date earlier in the head, as `Last-Modified` of a file that has just changed.
    if req.head.version == Version::Http11 && !out.get(..at).is_some_and(|b| b.ends_with(b"\r\nDate: ")) {
        return;
    }
    heads.put(SentHead {
        made_for: made_for(req),
        ranked,
        version: req.head.version,
        bytes: out.into(),
        date: at,
        form: req.resp.coded.form.clone(),
    });
}

/// Returns the length of the content, which may be a compressed form of `plain` bytes.
fn len_of_form(req: &Request, plain: u64) -> Option<u64> {
    Some(req.resp.coded.form.as_ref().map_or(plain, |f| f.bytes.len() as u64))
}

/// Returns `true` if the head depends on the file alone.
fn is_of_file(req: &Request, f: &OpenFile) -> bool {
    let r = &req.resp;
    let known = |name: &[u8]| {
        name.eq_ignore_ascii_case(b"Content-Encoding") || name.eq_ignore_ascii_case(b"Accept-Ranges")
    };
    r.status == 200
        && r.content_length == len_of_form(req, f.size)
        && r.location.is_empty()
        && r.fields.iter().all(|(name, _)| known(name))
}

/// Returns `true` if the head depends on the entry of a cache alone.
fn is_of_entry(req: &Request, e: &dyn Stored) -> bool {
    let r = &req.resp;
    let depends = !r.server_fields.date
        || r.limit_rate != 0
        || r.status != e.status()
        || r.content_length != len_of_form(req, e.content().len())
        || !r.override_charset.is_empty();
    !depends && is_plain(req, req.own_location()) && is_stored(req)
}
