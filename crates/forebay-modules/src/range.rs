//! Ranges of responses (RFC 9110, section 14; nginx: the range filter). Hot path.

use crate::headers;
use crate::not_modified::validators;
use forebay_core::vars::VarError;
use forebay_http::conditional;
use forebay_http::field::Name;
use forebay_http::range::{self, ByteRange, Ranges};
use forebay_http::request::Version;
use forebay_server::module::{Head, HeaderFilter, Module};
use forebay_server::request::{Refusal, Request};
use forebay_server::response::origin::AllowedRanges;
use forebay_server::response::{Part, Window};

/// `range_filter`.
pub static MODULE: Module =
    Module { header_filters: &[HeaderFilter::new(|_| true, ranges).with_head(Head::File)], ..Module::NONE };

/// Applies `Range`.
///
/// # Errors
/// Never.
fn ranges(req: &mut Request) -> Result<(), VarError> {
    let r = &req.resp;
    // A response of HTTP/0.9 has no head, so nothing could say which part of the content it is.
    if r.allowed_ranges == AllowedRanges::None || r.status != 200 || req.head.version < Version::Http10 {
        return Ok(());
    }
    // Without the length, the end of an open range and the place of a suffix range are not known.
    let Some(len) = r.content_length else { return Ok(()) };
    let http = req.http();
    let max = http.location(req).settings.core.max_ranges.0.map_or(usize::MAX, |n| n as usize);
    // `max_ranges 0` turns ranges off, and the response does not offer them in `Accept-Ranges` either.
    if max == 0 {
        return Ok(());
    }
    let mut list = Vec::new();
    let condition = req.head.get(Name::IfRange);
    // RFC 9110, section 13.1.5: where the content is another one by now, the client needs all of it.
    let holds = condition.is_none_or(|c| conditional::if_range(c, validators(req)));
    let asked = match req.head.get(Name::Range).filter(|_| holds) {
        Some(v) => range::parse(v, len, max, &mut list),
        None => Ranges::Whole,
    };
    match asked {
        Ranges::Whole => req.resp.fields.push(b"Accept-Ranges", b"bytes"),
        // A body that comes from an upstream passes once, so several ranges in any order cannot be cut out of
        // it.
        Ranges::Partial
            if list.len() > 1 && (r.allowed_ranges == AllowedRanges::One || r.source.is_some()) =>
        {
            req.resp.fields.push(b"Accept-Ranges", b"bytes");
        }
        Ranges::Unsatisfiable => {
            let mut content_range = Vec::new();
            range::content_range_unsatisfied(&mut content_range, len);
            hand_on(req);
            req.errors.refusal = Some(Box::new(Refusal { status: 416, content_range }));
        }
        Ranges::Partial => partial(req, &list, len),
    }
    Ok(())
}

/// Copies fields of the response to the 416 answer that replaces it, as nginx does; `Expires` and `Cache-Control` matter most.
/// Fields about the content are left out. So are fields of `add_header ... always`, which the answer gets anyway.
fn hand_on(req: &mut Request) {
    let http = req.http();
    let added = headers::SETTINGS.of(&http.location(req).settings);
    let r = &mut req.resp;
    r.handed_on.clear();
    for (name, value) in r.fields.iter().filter(|(name, _)| !added.always_adds(name)) {
        if !matches!(
            Name::of(name),
            Name::AcceptRanges
                | Name::ContentEncoding
                | Name::ContentRange
                | Name::Etag
                | Name::LastModified
                | Name::WwwAuthenticate
        ) {
            r.handed_on.push(name, value);
        }
    }
}

/// Appends the parts of a body that hold its bytes `start..end`.
fn cut(body: &[Part], start: u64, end: u64, out: &mut Vec<Part>) {
    let mut at = 0;
    for p in body {
        let len = p.len();
        // A range may begin and end inside of parts, such as a file between texts.
        let (from, to) = (start.max(at), end.min(at + len));
        if from < to {
            out.push(p.slice(from - at, to - at));
        }
        at += len;
    }
}

fn partial(req: &mut Request, list: &[ByteRange], len: u64) {
    // The response was 200 until here, and an upstream may have named its reason.
    req.resp.reason.clear();
    req.resp.fields.remove(b"Content-Range");
    // The body is not at hand yet. A window over it drops the bytes before and after the range as they pass.
    if let ([one], Some(_)) = (list, &req.resp.source) {
        let mut value = Vec::new();
        range::content_range(&mut value, *one, len);
        let r = &mut req.resp;
        r.status = 206;
        r.fields.push(b"Content-Range", &value);
        r.content_length = Some(one.len());
        let first = req.resp.segments.map_or(0, |segments| segments.cut(req, one.start, one.end));
        req.resp.window = Window { skip: one.start.saturating_sub(first), left: one.len() };
        return;
    }
    let body = std::mem::take(&mut req.resp.body);
    let r = &mut req.resp;
    r.status = 206;
    let mut parts = Vec::new();
    if let [one] = list {
        let mut value = Vec::new();
        range::content_range(&mut value, *one, len);
        r.fields.push(b"Content-Range", &value);
        cut(&body, one.start, one.end, &mut parts);
        r.content_length = Some(one.len());
        r.body = parts;
        return;
    }
    // The number is used once, so responses of different requests have different boundaries.
    let boundary = format!("{:020}", forebay_sys::serial::next());
    let mut content_type = r.content_type.clone();
    if !r.charset.is_empty() {
        content_type.extend_from_slice(b"; charset=");
        content_type.extend_from_slice(&r.charset);
    }
    for one in list {
        let mut head = Vec::new();
        range::part_head(&mut head, boundary.as_bytes(), &content_type, *one, len);
        parts.push(Part::Bytes(head.into()));
        cut(&body, one.start, one.end, &mut parts);
    }
    let mut end = Vec::new();
    range::parts_end(&mut end, boundary.as_bytes());
    parts.push(Part::Bytes(end.into()));
    r.content_type = format!("multipart/byteranges; boundary={boundary}").into_bytes();
    // The charset is in the heads of the parts. The multipart type itself has no such parameter.
    r.charset.clear();
    r.content_length = Some(parts.iter().map(Part::len).sum());
    r.body = parts;
}
