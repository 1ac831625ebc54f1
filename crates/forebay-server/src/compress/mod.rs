//! Compressed responses: which coding a response gets, its head, and where its compressed bytes come from. Hot path.
//!
//! nginx has one filter a coding; here one filter decides among all that a location enables, since the client's
//! weights speak about all of them. The compressed form of a small file or cached response is made once, by
//! [`forms`]; anything else goes through an [`encoder`].

pub mod accept;
mod brotli_memory;
pub mod encoder;
pub mod forms;
mod pool;

use crate::module::{Head, HeaderFilter, Module};
use crate::modules::brotli;
use crate::modules::gzip;
use crate::modules::zstd;
use crate::modules::{LocationSettings, gzip_accept};
use crate::request::Request;
use crate::request::rare::Unused;
use crate::request::states::Slot;
use crate::response::Part;
use accept::{Ranked, Set};
use encoder::Encoder;
use forebay_core::vars::VarError;
use forebay_http::field::Name;
use forebay_http::request::Method;
use forms::{Form, FormKey, Subject};
use std::sync::Arc;

/// A content coding, in the order in which they are preferred where the client has no preference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// `zstd` (RFC 8878).
    Zstd,
    /// `br` (RFC 7932).
    Br,
    /// `gzip` (RFC 1952).
    Gzip,
}

impl Coding {
    /// All of them, in order of preference.
    pub const ALL: [Coding; 3] = [Coding::Zstd, Coding::Br, Coding::Gzip];

    /// Returns the token in `Content-Encoding`.
    pub fn name(self) -> &'static [u8] {
        match self {
            Coding::Zstd => b"zstd",
            Coding::Br => b"br",
            Coding::Gzip => b"gzip",
        }
    }

    /// Returns the suffix of precompressed files.
    pub fn suffix(self) -> &'static [u8] {
        match self {
            Coding::Zstd => b".zst",
            Coding::Br => b".br",
            Coding::Gzip => b".gz",
        }
    }
}

/// State of the compression of a response.
pub static STATE: Slot<CompressState> = Slot::new();

/// State of compression for one request.
#[derive(Debug, Default)]
pub struct CompressState {
    coding: Option<Coding>,
    /// Lengths before and after compression, if the form was ready.
    lengths: Option<(u64, u64)>,
    /// Form to make before the head is written.
    wanted: Option<(Subject, FormKey)>,
    /// The form that is the body.
    pub form: Option<Arc<Form>>,
}

impl Unused for CompressState {
    const UNUSED: &'static CompressState =
        &CompressState { coding: None, lengths: None, wanted: None, form: None };

    fn clear(&mut self) {
        *self = CompressState::default();
    }
}

/// Compression by gzip, brotli and zstd.
pub static MODULE: Module =
    Module { header_filters: &[HeaderFilter::new(enabled, filter).with_head(Head::Coding)], ..Module::NONE };

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
        return None;
    }
    Some(rank(req, s, on(s)))
}

/// Returns the codings of `among` that the client accepts. If gzip is the only one, reads `Accept-Encoding` as nginx
/// does.
pub fn rank(req: &Request, s: &LocationSettings, among: Set) -> Ranked {
    let Some(accept) = req.head.get(Name::AcceptEncoding) else { return Ranked::default() };
    if among == Set::of(Coding::Gzip) {
        return if gzip_accept::accepted(req, s) { Ranked::of(Coding::Gzip) } else { Ranked::default() };
    }
    let mut among = among;
    if among.has(Coding::Gzip) && !gzip_accept::allowed(req, s) {
        among.remove(Coding::Gzip);
    }
    accept::rank(accept, among)
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
    if r.etag.first() == Some(&b'"') {
        r.etag.splice(0..0, *b"W/");
    }
    let Some(etag) = r.fields.get(b"ETag") else { return };
    if etag.starts_with(b"W/") {
        return;
    }
    if etag.first() == Some(&b'"') {
        let weak = [b"W/", etag].concat();
        r.fields.replace(b"ETag", &weak);
    } else {
        r.fields.remove(b"ETag");
    }
}

/// Removes length and ranges from a response whose length is not known in advance.
pub fn unknown_length(req: &mut Request) {
    weaken_etag(req);
    let r = &mut req.resp;
    r.content_length = None;
    r.allow_ranges = false;
    r.fields.remove(b"Accept-Ranges");
}

/// Chooses a coding for a response and prepares it.
///
/// # Errors
/// Never.
fn filter(req: &mut Request) -> Result<(), VarError> {
    STATE.clear(req);
    let http = req.http();
    let s = &http.location(req).settings;
    let r = &req.resp;
    // Slices begin where the range does: sent without the range, the response would lack its beginning.
    let sliced = req.resp.segments.is_some() && req.head.get(Name::Range).is_some();
    // A coding has to be named in a head.
    let unnamed = r.headless && !req.head.version.is_multiplexed();
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
    // Without `Vary` a cache on the way could send a coding to a client that does not accept it. nginx leaves that to
    // gzip_vary.
    req.resp.gzip_vary |= gzip_accept::SETTINGS.of(s).vary || eligible != Set::of(Coding::Gzip);
    let Some(coding) = rank(req, s, on(s)).first_of(eligible) else { return Ok(()) };
    STATE.of_mut(req).coding = Some(coding);
    let len = req.resp.content_length;
    unknown_length(req);
    req.resp.fields.push(b"Content-Encoding", coding.name());
    if let Some(subject) = forms::subject(req, len) {
        let key = FormKey::once(coding, s);
        match subject.forms().get(key) {
            Some(form) => use_form(req, form, len.unwrap_or(0)),
            None if req.method == Method::Head => {}
            None => STATE.of_mut(req).wanted = Some((subject, key)),
        }
    } else if req.method != Method::Head {
        let filter = Encoder::new(FormKey::stream(coding, s));
        req.resp.filters.push(Box::new(filter));
    }
    Ok(())
}

/// Replaces the body by a compressed form.
pub fn use_form(req: &mut Request, form: Arc<Form>, from: u64) {
    let len = form.bytes.len() as u64;
    req.resp.content_length = Some(len);
    req.resp.body.clear();
    req.resp.body.push(Part::Bytes(form.bytes.clone()));
    let state = STATE.of_mut(req);
    state.coding = Some(form.key.coding);
    state.lengths = Some((from, len));
    state.form = Some(form);
}

/// Returns `true` if the header filter has asked for a compressed form.
#[inline]
pub fn wants_form(req: &Request) -> bool {
    STATE.of(req).wanted.is_some()
}

/// Makes the form that the header filter asked for, on another thread. If that fails, the response is compressed as it
/// is sent.
pub async fn make_form(req: &mut Request) {
    let Some((subject, key)) = STATE.of_mut(req).wanted.take() else { return };
    match forms::make(req, &subject, key).await {
        Some(form) => use_form(req, form, subject.len()),
        None => {
            let http = req.http();
            let key = FormKey::stream(key.coding, &http.location(req).settings);
            req.resp.filters.push(Box::new(Encoder::new(key)));
        }
    }
}

/// Appends the ratio of the lengths before and after a coding, with two digits (nginx: $gzip_ratio).
pub fn ratio(req: &Request, coding: Coding, out: &mut Vec<u8>) -> bool {
    let state = STATE.of(req);
    if state.coding != Some(coding) {
        return false;
    }
    let encoded = || req.resp.filters.iter().find_map(|f| f.lengths());
    let Some((before, after)) = state.lengths.or_else(encoded).filter(|(_, after)| *after > 0) else {
        return false;
    };
    let (mut whole, mut hundredths) = (before / after, before.saturating_mul(100) / after % 100);
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
