//! `slice`: requests for a large response in ranges of one size, each cached separately (nginx: ngx_http_slice_module).
//! nginx makes a subrequest for each range; here the source of the response continues with the next range.

use forebay_conf::error::Level;
use forebay_core::config::value::Size;
use forebay_core::vars::RowSource;
use forebay_core::vars::VarError;
use forebay_http::field::Name;
use forebay_http::h1::response::number;
use forebay_proxy::modules::{proxy, proxy_cache};
use forebay_server::body::Further;
use forebay_server::module::levels::LocationSettings;
use forebay_server::module::{HeaderFilter, Module};
use forebay_server::request::rare::Unused;
use forebay_server::request::states::Slot;
use forebay_server::request::{Origin, Request};
use forebay_server::response::Segments;
use forebay_server::response::origin::AllowedRanges;
use forebay_server::response::streamed::Empty;
use forebay_server::variables::Row;
use std::pin::Pin;

forebay_server::module_settings! {
    /// `slice`, bytes; 0 for off.
    "slice" => size: Size = Size(0);
}

/// `slice`.
pub static MODULE: Module = Module {
    settings: &[&SETTINGS],
    variables: &[VARIABLES],
    header_filters: &[HeaderFilter::new(enabled, filter).included()],
    ..Module::NONE
};

/// State of this module.
static STATE: Slot<SliceState> = Slot::new();

/// Slices of one request.
#[derive(Clone, Debug, Default)]
pub struct SliceState {
    /// Size of a slice; 0 until `$slice_range` is evaluated.
    size: u64,
    /// Start of the current slice.
    start: u64,
    /// End of the bytes to send.
    end: u64,
    /// `true` if the response is assembled from slices.
    active: bool,
    etag: Vec<u8>,
}

impl Unused for SliceState {
    const UNUSED: &'static SliceState =
        &SliceState { size: 0, start: 0, end: 0, active: false, etag: Vec::new() };

    fn clear(&mut self) {
        (self.size, self.start, self.end, self.active) = (0, 0, 0, false);
        self.etag.clear();
    }

    /// A request that renews an entry of a cache is for the same slice.
    fn for_request(&self, origin: Origin) -> Option<SliceState> {
        (origin == Origin::Background).then(|| self.clone())
    }
}

const VARIABLES: &[Row] = &[Row { name: "slice_range", get: RowSource::Get(range), settable: false }];

fn range(r: &mut Request, out: &mut Vec<u8>) -> Result<bool, VarError> {
    if STATE.of(r).size == 0 {
        let size = SETTINGS.of(&r.http().location(r).settings).size.0;
        if size == 0 {
            return Ok(false);
        }
        STATE.of_mut(r).size = size;
        // A client that asks for the end of a large file must not wait for the slices before it.
        let first = first_byte(r);
        STATE.of_mut(r).start = size * (first / size);
    }
    let s = STATE.of(r);
    out.extend_from_slice(b"bytes=");
    number(out, s.start);
    out.push(b'-');
    number(out, s.start.saturating_add(s.size) - 1);
    Ok(true)
}

/// Returns the start of the range that the client asks for, or 0 for anything but a single range.
fn first_byte(r: &Request) -> u64 {
    // Whether the range counts is known with the first response only, and the whole content begins with the
    // first slice.
    if r.head.get(Name::IfRange).is_some() {
        return 0;
    }
    let Some((unit, rest)) = r.head.get(Name::Range).and_then(|v| v.split_at_checked(6)) else { return 0 };
    // Several ranges are answered with the whole content, which begins with the first slice.
    if !unit.eq_ignore_ascii_case(b"bytes=") || rest.contains(&b',') {
        return 0;
    }
    let rest = rest.trim_ascii_start();
    let digits = rest.iter().position(|b| !b.is_ascii_digit()).unwrap_or(rest.len());
    forebay_conf::units::number(&rest[..digits]).unwrap_or(0)
}

/// Returns `true` if a location has `slice`.
fn enabled(s: &LocationSettings) -> bool {
    SETTINGS.of(s).size.0 > 0
}

/// Reads `bytes START-LAST/LENGTH` and returns start, end and length.
fn content_range(value: &[u8]) -> Option<(u64, u64, u64)> {
    let rest = value.strip_prefix(b"bytes ")?;
    let dash = memchr::memchr(b'-', rest)?;
    let slash = memchr::memchr(b'/', rest)?;
    let n = |b: Option<&[u8]>| forebay_conf::units::number(b?.trim_ascii());
    let (start, last, len) = (n(rest.get(..dash))?, n(rest.get(dash + 1..slash))?, n(rest.get(slash + 1..))?);
    (start <= last && last < len).then_some((start, last + 1, len))
}

/// Checks the range of a received slice. Returns the length of the whole.
fn judge(req: &mut Request, value: Option<Vec<u8>>) -> Option<u64> {
    let Some((start, end, len)) = value.as_deref().and_then(content_range) else {
        req.log(Level::Error, "invalid range in slice response");
        return None;
    };
    let s = STATE.of(req);
    // An upstream may answer with another range than was asked for, which would shift all bytes after it.
    if start != s.start || end != s.start.saturating_add(s.size).min(len) {
        let text = format!("unexpected range in slice response: {start}-{end}");
        req.log(Level::Error, &text);
        return None;
    }
    Some(len)
}

/// Turns the response with the first slice into the response for the whole.
///
/// # Errors
/// Never.
fn filter(req: &mut Request) -> Result<(), VarError> {
    if STATE.of(req).size == 0 || STATE.of(req).active {
        return Ok(());
    }
    if req.resp.status != 206 || !req.resp.origin.is_proxied() {
        // A response that is no slice is passed on as it is: an error, or the whole content of an upstream
        // without ranges.
        STATE.clear(req);
        return Ok(());
    }
    // The fields of the upstream count, since the response may lack some that the configuration hides from
    // clients.
    let head = &req.modules.upstream.head;
    let value = head.get(Name::ContentRange).map(<[u8]>::to_vec);
    let etag = head.get(Name::Etag).unwrap_or_default().to_vec();
    let Some(len) = judge(req, value) else {
        req.ending.drop_connection();
        return Ok(());
    };
    let r = &mut req.resp;
    r.status = 200;
    r.reason.clear();
    r.content_length = Some(len);
    // The head describes the whole content now. If the client asked for a range, the range filter writes its
    // own fields.
    r.fields.remove(b"Content-Range");
    r.fields.remove(b"Accept-Ranges");
    // Slices come one after the other, so only a single range can be cut out of them.
    r.allowed_ranges = AllowedRanges::One;
    if r.source.is_none() {
        r.source = Some(Box::new(Empty));
    }
    let s = STATE.of_mut(req);
    (s.etag, s.end, s.active) = (etag, len, true);
    req.resp.segments = Some(&Slices);
    Ok(())
}

/// Slices as segments of a response.
struct Slices;

impl Segments for Slices {
    /// The first slice has been fetched for the length. It takes the place of the slice right before the range, and slices between
    /// them are skipped.
    fn cut(&self, req: &mut Request, start: u64, end: u64) -> u64 {
        let s = STATE.of_mut(req);
        let first = s.start;
        s.end = end;
        if s.start.saturating_add(s.size) <= start {
            s.start = s.size * (start / s.size) - s.size;
        }
        s.start.max(first)
    }

    fn wants_more(&self, req: &Request) -> bool {
        let s = STATE.of(req);
        s.active && s.start.saturating_add(s.size) < s.end
    }

    fn next<'r>(&self, req: &'r mut Request) -> Pin<Box<dyn Future<Output = Option<Further>> + 'r>> {
        Box::pin(next(req))
    }
}

/// Fetches the next slice. Logs an error and returns `None` if that fails or the slice belongs to another version.
async fn next(req: &mut Request) -> Option<Further> {
    let state = STATE.of_mut(req);
    state.start += state.size;
    // Variables keep describing the first slice, as in nginx, where subrequests fetch the others.
    let status = proxy_cache::STATE.of(req).status;
    let u = &mut req.modules.upstream;
    let own = *u.own_attempts.get_or_insert(u.attempts.len());
    u.attempts.truncate(own);
    let first = std::mem::take(&mut u.head);
    let more = proxy::more(req).await;
    let head = std::mem::replace(&mut req.modules.upstream.head, first);
    proxy_cache::STATE.of_mut(req).status = status;
    let more = more?;
    let status = head.status;
    let range = head.get(Name::ContentRange).map(<[u8]>::to_vec);
    // Slices of different versions must not be joined, and a slice in a cache may be older than the others.
    let same = head.get(Name::Etag).unwrap_or_default() == STATE.of(req).etag;
    if status != 206 {
        req.log(Level::Error, &format!("unexpected status code {status} in slice response"));
    } else if !same {
        req.log(Level::Error, "etag mismatch in slice response");
    } else if judge(req, range).is_some() {
        return Some(more);
    }
    if let Further::Body(mut body) = more {
        // The client has the head with the full length, so an error can only end the response early.
        body.abandon(req);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::content_range;

    #[test]
    fn ranges_are_checked() {
        assert_eq!(content_range(b"bytes 0-1/100"), Some((0, 2, 100)));
        for bad in [&b"bytes"[..], b"bytes 0-1/*", b"bytes 2-1/9", b"bytes 0-9/9", b"0-1/9"] {
            assert_eq!(content_range(bad), None);
        }
    }
}
