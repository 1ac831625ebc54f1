//! Compressed responses: which coding a response gets, its head, and where its compressed bytes come from. Hot path.
//!
//! nginx has one filter for each coding. Here one filter decides among all codings that a location enables,
//! since the client's weights compare all of them. The compressed form of a small file or cached response is
//! made once, by [`forms`]; anything else goes through an [`encoder`].

mod brotli_memory;
pub mod encoder;
pub mod forms;
mod pool;

use crate::brotli;
use crate::gzip;
use crate::gzip_accept;
use crate::zstd;
use encoder::Encoder;
use forebay_core::idle_memory::Ended;
use forebay_core::thread::Thread as WorkerThread;
use forebay_core::vars::VarError;
use forebay_http::field::Name;
use forebay_http::request::Method;
use forebay_server::module::levels::LocationSettings;
use forebay_server::module::thread::{ThreadSlot, ThreadState};
use forebay_server::module::{HeaderFilter, Module};
use forebay_server::request::Request;
use forebay_server::request::rare::Unused;
use forebay_server::request::states::Slot;
use forebay_server::response::coding::{self, Coded, Coding, FormKey, Ranked, Set};
use forebay_sys::pooled::Pooled;
use forms::Subject;
use std::time::Instant;

/// Form to make before the head is written.
static WANTED: Slot<Wanted> = Slot::new();

/// Form to make before the head is written.
#[derive(Debug, Default)]
struct Wanted(Option<(Subject, FormKey)>);

impl Unused for Wanted {
    const UNUSED: &'static Wanted = &Wanted(None);

    fn clear(&mut self) {
        self.0 = None;
    }
}

/// Encoders that threads keep for their next streams.
static ENCODERS: ThreadSlot<Encoders> = ThreadSlot::new();

/// Encoders of a thread, which the pools of [`encoder`] have.
struct Encoders;

impl ThreadState for Encoders {
    fn new(_: &WorkerThread) -> Encoders {
        Encoders
    }

    fn end_unneeded(&self, _: Instant) -> Ended {
        encoder::end_unneeded()
    }
}

/// Compression by gzip, brotli and zstd.
pub static MODULE: Module = Module {
    header_filters: &[HeaderFilter::new(enabled, filter).by_coding(ranked)],
    threads: &[&ENCODERS],
    ..Module::NONE
};

/// Returns `true` if a location compresses.
pub fn enabled(s: &LocationSettings) -> bool {
    on(s) != Set::default()
}

fn on(s: &LocationSettings) -> Set {
    Set([zstd::SETTINGS.of(s).on, brotli::SETTINGS.of(s).on, gzip::SETTINGS.of(s).on])
}

/// Returns the codings that the client accepts here, judging by the request. Returns `None` if fields of the response
/// count, too (nginx: gzip_proxied).
pub fn ranked(req: &Request, s: &LocationSettings) -> Option<Ranked> {
    if gzip::SETTINGS.of(s).on
        && req.head.get(Name::Via).is_some()
        && !gzip_accept::SETTINGS.of(s).proxied.is_plain()
    {
        // nginx reads `gzip_proxied` only for requests that have come through a proxy, which say so in `Via`.
        return None;
    }
    Some(rank(req, s, on(s)))
}

/// Returns the codings of `among` that the client accepts. If gzip is the only one, reads `Accept-Encoding` as nginx
/// does.
pub fn rank(req: &Request, s: &LocationSettings, among: Set) -> Ranked {
    let Some(accept) = req.head.get(Name::AcceptEncoding) else { return Ranked::default() };
    // With gzip alone a configuration of nginx gets the decisions that it knows; weights of several codings
    // need a real comparison.
    if among == Set::of(Coding::Gzip) {
        return if gzip_accept::accepted(req, s) { Ranked::of(Coding::Gzip) } else { Ranked::default() };
    }
    let mut among = among;
    if among.has(Coding::Gzip) && !gzip_accept::allowed(req, s) {
        among.remove(Coding::Gzip);
    }
    coding::rank(accept, among)
}

/// Returns the media type of a response, without parameters.
pub fn media_type(content_type: &[u8]) -> &[u8] {
    let end = memchr::memchr(b';', content_type).unwrap_or(content_type.len());
    content_type.get(..end).unwrap_or_default().trim_ascii_end()
}

/// Returns the codings whose types and least length permit the response.
fn eligible(req: &Request, s: &LocationSettings) -> Set {
    let r = &req.resp;
    // As in nginx, `*` stands for a response without a type, too.
    let kind = media_type(&r.content_type);
    let long = |min: u64| r.content_length.is_none_or(|n| n >= min);
    let (zstd, brotli, gzip) = (zstd::SETTINGS.of(s), brotli::SETTINGS.of(s), gzip::SETTINGS.of(s));
    Set([
        zstd.on && long(zstd.min_length.0) && zstd.types.contains(kind),
        brotli.on && long(brotli.min_length.0) && brotli.types.contains(kind),
        gzip.on && long(gzip.min_length.0) && gzip.types.contains(kind),
    ])
}

/// Makes the validator weak, because the bytes of the content change (nginx: prefix W/).
pub fn weaken_etag(req: &mut Request) {
    let r = &mut req.resp;
    // RFC 9110, section 8.8.1: a strong validator promises equal bytes, and the plain content has the same
    // one.
    if r.validators.etag.first() == Some(&b'"') {
        r.validators.etag.splice(0..0, *b"W/");
    }
    let Some(etag) = r.fields.get(b"ETag") else { return };
    if etag.starts_with(b"W/") {
        return;
    }
    if etag.first() == Some(&b'"') {
        let weak = [b"W/", etag].concat();
        r.fields.replace(b"ETag", &weak);
    } else {
        // A value without quotes is no entity tag (RFC 9110, section 8.8.3), and cannot be made a weak one.
        r.fields.remove(b"ETag");
    }
}

/// Removes length and ranges from a response whose length is not known in advance.
pub fn unknown_length(req: &mut Request) {
    weaken_etag(req);
    let r = &mut req.resp;
    // Ranges would count bytes of the coded content, which is not at hand before it is sent.
    r.content_length = None;
    r.forbid_ranges();
    r.fields.remove(b"Accept-Ranges");
}

/// Chooses a coding for a response and prepares it.
///
/// # Errors
/// Never.
fn filter(req: &mut Request) -> Result<(), VarError> {
    req.resp.coded = Coded::default();
    let http = req.http();
    let s = &http.location(req).settings;
    let r = &req.resp;
    // With `slice`, the body begins at the slice of the requested range. A coding would have to ignore the
    // range, and the response would lack its beginning.
    let sliced = req.resp.segments.is_some() && req.head.get(Name::Range).is_some();
    // Where an upstream has sent no head, the client gets none over HTTP/1, and nothing could name the coding.
    let unnamed = r.origin.is_headless() && !req.head.version.is_multiplexed();
    if sliced
        || unnamed
        || !matches!(r.status, 200 | 403 | 404)
        || r.fields.get(b"Content-Encoding").is_some()
    {
        return Ok(());
    }
    let eligible = eligible(req, s);
    if eligible == Set::default() {
        return Ok(());
    }
    // Without `Vary` a cache on the way could send a coding to a client that does not accept it. nginx sends `Vary`
    // with `gzip_vary` only, which decides here for gzip alone.
    req.resp.server_fields.vary |= gzip_accept::SETTINGS.of(s).vary || eligible != Set::of(Coding::Gzip);
    let Some(coding) = rank(req, s, on(s)).first_of(eligible) else { return Ok(()) };
    req.resp.coded.coding = Some(coding);
    let len = req.resp.content_length;
    unknown_length(req);
    req.resp.fields.push(b"Content-Encoding", coding.name());
    if let Some(subject) = forms::subject(req, len) {
        let key = forms::for_form(coding, s);
        match subject.forms().get(key) {
            Some(form) => req.resp.use_form(form, len.unwrap_or(0)),
            // A response to HEAD sends no body, so making a form would be work for nothing.
            None if req.method == Method::Head => {}
            None => {
                // A header filter cannot wait for the blocking pool. The form is made after the filters and
                // before the head, which has its length.
                WANTED.of_mut(req).0 = Some((subject, key));
                req.resp.filters.late = Some(|req| Pooled::new(make_form(req)));
            }
        }
    } else if req.method != Method::Head {
        let filter = Encoder::new(forms::for_stream(coding, s));
        req.resp.filters.body.push(Box::new(filter));
    }
    Ok(())
}

/// Makes the form that the header filter asked for, on another thread. If that fails, the response is compressed as it
/// is sent.
async fn make_form(req: &mut Request) {
    let Some((subject, key)) = WANTED.of_mut(req).0.take() else { return };
    match forms::make(req, &subject, key).await {
        Some(form) => req.resp.use_form(form, subject.len()),
        None => {
            let http = req.http();
            let key = forms::for_stream(key.coding, &http.location(req).settings);
            req.resp.filters.body.push(Box::new(Encoder::new(key)));
        }
    }
}

/// Appends the ratio of the lengths before and after a coding, with two digits (nginx: $gzip_ratio).
pub fn ratio(req: &Request, coding: Coding, out: &mut Vec<u8>) -> bool {
    let state = &req.resp.coded;
    if state.coding != Some(coding) {
        return false;
    }
    let encoded = || req.resp.filters.body.iter().find_map(|f| f.lengths());
    let Some((before, after)) = state.lengths.or_else(encoded).filter(|(_, after)| *after > 0) else {
        return false;
    };
    let (mut whole, mut hundredths) = (before / after, before.saturating_mul(100) / after % 100);
    // The third digit rounds the second one, and the carry may reach the number before the point.
    if before.saturating_mul(1000) / after % 10 > 4 {
        hundredths += 1;
        if hundredths > 99 {
            (whole, hundredths) = (whole + 1, 0);
        }
    }
    forebay_http::h1::response::number(out, whole);
    out.extend_from_slice(&[b'.', b'0' + (hundredths / 10) as u8, b'0' + (hundredths % 10) as u8]);
    true
}
