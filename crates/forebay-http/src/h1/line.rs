//! The request line (RFC 9112, section 3; the accepted set is nginx's), resumable at any byte.
//! Reached from `request::parse`. Hot path.

use super::fields::{At, State};
use super::request::{Reject, Stage};
use crate::field::Slice;
use crate::request::{Method, RequestHead, Version};
use crate::{uri, words};

/// Byte classes of the request line. A target ends at a byte with `STOP`; the others only tell whether the
/// path needs normalising.
const STOP: u8 = 1;
const SLASH: u8 = 2;
/// A slash or dot right after a slash begins something to resolve.
const AFTER_SLASH: u8 = 4;
const ESCAPE: u8 = 8;
const QUERY: u8 = 16;
const METHOD: u8 = 32;
const HOST: u8 = 64;
const SCHEME: u8 = 128;

static CLASS: [u8; 256] = {
    let mut t = [0u8; 256];
    let mut i = 0;
    while i <= 0x20 {
        t[i] |= STOP;
        i += 1;
    }
    t[0x7f] |= STOP;
    t[b'/' as usize] |= SLASH | AFTER_SLASH;
    t[b'.' as usize] |= AFTER_SLASH | HOST | SCHEME;
    t[b'-' as usize] |= METHOD | HOST | SCHEME;
    t[b'_' as usize] |= METHOD;
    t[b'+' as usize] |= SCHEME;
    t[b'%' as usize] |= ESCAPE;
    t[b'#' as usize] |= ESCAPE;
    t[b'?' as usize] |= QUERY;
    let mut i = 0;
    while i < 26 {
        t[b'A' as usize + i] |= METHOD | HOST | SCHEME;
        t[b'a' as usize + i] |= HOST | SCHEME;
        i += 1;
    }
    let mut i = 0;
    while i < 10 {
        t[b'0' as usize + i] |= HOST | SCHEME;
        i += 1;
    }
    t
};

/// Returns `true` for the bytes of a bracketed host literal.
fn in_literal(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"!$&'()*+,-.:;=_~".contains(&b)
}

/// State of the line parser between calls, as offsets in the buffer.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Line {
    method_end: At,
    scheme_start: At,
    host: Option<(At, At)>,
    host_end: At,
    target_start: At,
    target_end: At,
    version_start: At,
    minor: u32,
    /// Classes seen in the target so far.
    seen: u8,
    after_slash: bool,
}

impl Line {
    fn version(&self) -> Version {
        // A version never starts at 0, where the method does: 0 means that there is none.
        match (self.version_start.get(), self.minor) {
            (0, _) => Version::Http09,
            (_, 0) => Version::Http10,
            _ => Version::Http11,
        }
    }
}

const INVALID_METHOD: &str = "client sent invalid method";
const INVALID_REQUEST: &str = "client sent invalid request";

/// Continues the scan to the end of the request line.
///
/// Returns the offset after the line end, or `None` if more bytes are needed.
pub(crate) fn scan(buf: &[u8], head: &mut RequestHead) -> Result<Option<usize>, Reject> {
    let mut p = head.scan.pos.get();
    let mut state = head.scan.state;
    let mut line = head.line;
    let outcome = loop {
        match step(buf, p, state, &mut line) {
            LineStep::To(next, at) => {
                state = next;
                p = at;
            }
            LineStep::More(at) => {
                p = at;
                break Ok(None);
            }
            LineStep::End { at, line_end } => {
                head.request_line = slice(0, line_end);
                if line.version_start.get() > 0 {
                    head.protocol = slice(line.version_start.get(), line_end);
                }
                break Ok(Some(at));
            }
            LineStep::Bad(status, reason) => break Err(reject(status, reason)),
        }
    };
    head.scan.pos = At::of(p);
    head.scan.state = state;
    head.line = line;
    outcome
}

enum LineStep {
    To(State, usize),
    /// The buffer ends here.
    More(usize),
    End {
        at: usize,
        line_end: usize,
    },
    Bad(u16, &'static str),
}

const BAD: LineStep = LineStep::Bad(400, INVALID_REQUEST);

/// Reads one run of bytes of the line.
#[inline]
fn step(buf: &[u8], p: usize, state: State, line: &mut Line) -> LineStep {
    match state {
        State::Method => method(buf, p, line),
        State::BeforeTarget => before_target(buf, p, line),
        State::Target => target(buf, p, line),
        State::AfterTarget => after_target(buf, p, line),
        State::Version => version(buf, p, line),
        State::Minor => minor(buf, p, line),
        State::AfterVersion => after_version(buf, p),
        State::LineEnd => line_end(buf, p),
        State::Scheme => scheme(buf, p, line),
        State::SchemeSlashes => scheme_slashes(buf, p, line),
        State::HostStart => host_start(buf, p, line),
        State::Host => host_name(buf, p, line),
        State::HostLiteral => host_literal(buf, p),
        State::HostEnd => host_end(buf, p, line),
        State::Port => port(buf, p, line),
        // The other states belong to the field lines.
        _ => BAD,
    }
}

fn method(buf: &[u8], start: usize, line: &mut Line) -> LineStep {
    let mut p = start;
    while let Some(&b) = buf.get(p) {
        if CLASS[b as usize] & METHOD == 0 {
            if b != b' ' || p == 0 {
                return LineStep::Bad(400, INVALID_METHOD);
            }
            line.method_end = At::of(p);
            return LineStep::To(State::BeforeTarget, p + 1);
        }
        p += 1;
    }
    LineStep::More(p)
}

fn before_target(buf: &[u8], mut p: usize, line: &mut Line) -> LineStep {
    while buf.get(p) == Some(&b' ') {
        p += 1;
    }
    let Some(&b) = buf.get(p) else { return LineStep::More(p) };
    line.target_start = At::of(p);
    // Also the place from which `any_slash` looks for a slash.
    line.scheme_start = At::of(p);
    if is_connect(buf, line) {
        LineStep::To(State::HostStart, p)
    } else if b == b'/' {
        LineStep::To(State::Target, p)
    } else if b.is_ascii_alphabetic() {
        LineStep::To(State::Scheme, p)
    } else {
        BAD
    }
}

fn is_connect(buf: &[u8], line: &Line) -> bool {
    buf.get(..line.method_end.get()) == Some(b"CONNECT")
}

fn target(buf: &[u8], start: usize, line: &mut Line) -> LineStep {
    let rest = buf.get(start..).unwrap_or_default();
    let run = words::plain_path(rest, line.after_slash);
    let mut p = start + run;
    let mut seen = line.seen;
    let slash_before = if run > 0 { rest.get(run - 1) == Some(&b'/') } else { line.after_slash };
    let mut after_slash = if slash_before { AFTER_SLASH } else { 0 };
    while let Some(&b) = buf.get(p) {
        let class = CLASS[b as usize];
        if class & STOP != 0 {
            line.seen = seen;
            line.target_end = At::of(p);
            return match b {
                b' ' => LineStep::To(State::AfterTarget, p + 1),
                b'\r' => LineStep::To(State::LineEnd, p + 1),
                b'\n' => LineStep::End { at: p + 1, line_end: p },
                _ => BAD,
            };
        }
        seen |= class & (ESCAPE | QUERY | after_slash);
        // SLASH shifted by one is AFTER_SLASH.
        after_slash = (class & SLASH) << 1;
        p += 1;
    }
    line.seen = seen;
    line.after_slash = after_slash != 0;
    LineStep::More(p)
}

fn after_target(buf: &[u8], mut p: usize, line: &mut Line) -> LineStep {
    while buf.get(p) == Some(&b' ') {
        p += 1;
    }
    match buf.get(p) {
        None => LineStep::More(p),
        Some(b'H') => {
            line.version_start = At::of(p);
            LineStep::To(State::Version, p)
        }
        Some(b'\r') => LineStep::To(State::LineEnd, p + 1),
        Some(b'\n') => LineStep::End { at: p + 1, line_end: p },
        Some(_) => BAD,
    }
}

fn version(buf: &[u8], p: usize, line: &mut Line) -> LineStep {
    const PREFIX: &[u8] = b"HTTP/1.";
    let text = buf.get(line.version_start.get()..).unwrap_or_default();
    if let Some([digit @ b'0'..=b'9', b'\r', b'\n', ..]) = text.strip_prefix(PREFIX) {
        line.minor = u32::from(digit - b'0');
        let end = line.version_start.get() + PREFIX.len() + 1;
        return LineStep::End { at: end + 2, line_end: end };
    }
    for (i, (&got, &want)) in text.iter().zip(PREFIX).enumerate() {
        if got != want {
            return bad_version(i, got);
        }
    }
    // The state stays at the start of the version: the next call compares all of it again.
    match text.get(PREFIX.len()) {
        None => LineStep::More(p),
        Some(b'0'..=b'9') => LineStep::To(State::Minor, line.version_start.get() + PREFIX.len()),
        Some(_) => BAD,
    }
}

/// Refuses a version that begins to differ from `HTTP/1.` at its byte `i`.
#[cold]
fn bad_version(i: usize, byte: u8) -> LineStep {
    match (i, byte) {
        // The major version is one digit for nginx: 10.1 is as unknown as 2.0.
        (5, b'2'..=b'9') | (6, b'0'..=b'9') => LineStep::Bad(505, "client sent invalid version"),
        _ => BAD,
    }
}

fn minor(buf: &[u8], mut p: usize, line: &mut Line) -> LineStep {
    loop {
        let Some(&b) = buf.get(p) else { return LineStep::More(p) };
        match b {
            // Bounds the value, which cannot overflow; zeros in front may be many.
            b'0'..=b'9' if line.minor <= 99 => line.minor = line.minor * 10 + u32::from(b - b'0'),
            b' ' | b'\r' | b'\n' => return LineStep::To(State::AfterVersion, p),
            _ => return BAD,
        }
        p += 1;
    }
}

fn after_version(buf: &[u8], mut p: usize) -> LineStep {
    while buf.get(p) == Some(&b' ') {
        p += 1;
    }
    match buf.get(p) {
        None => LineStep::More(p),
        Some(b'\r') => LineStep::To(State::LineEnd, p + 1),
        Some(b'\n') => LineStep::End { at: p + 1, line_end: p },
        Some(_) => BAD,
    }
}

/// Reads on behind the CR of the line.
fn line_end(buf: &[u8], p: usize) -> LineStep {
    match buf.get(p) {
        None => LineStep::More(p),
        Some(b'\n') => LineStep::End { at: p + 1, line_end: p.saturating_sub(1) },
        Some(_) => BAD,
    }
}

fn scheme(buf: &[u8], mut p: usize, line: &mut Line) -> LineStep {
    loop {
        match buf.get(p) {
            None => return LineStep::More(p),
            Some(b':') => {
                line.host_end = At::of(p);
                return LineStep::To(State::SchemeSlashes, p + 1);
            }
            Some(&b) if CLASS[b as usize] & SCHEME != 0 => p += 1,
            Some(_) => return BAD,
        }
    }
}

/// Reads the two slashes after the scheme, whose colon is at `host_end`.
fn scheme_slashes(buf: &[u8], p: usize, line: &mut Line) -> LineStep {
    match buf.get(p) {
        None => LineStep::More(p),
        // Counted from the colon, since the two slashes may come in two calls.
        Some(b'/') if p >= line.host_end.get() + 2 => LineStep::To(State::HostStart, p + 1),
        Some(b'/') => LineStep::To(State::SchemeSlashes, p + 1),
        Some(_) => BAD,
    }
}

fn host_start(buf: &[u8], p: usize, line: &mut Line) -> LineStep {
    line.host = Some((At::of(p), At::of(p)));
    match buf.get(p) {
        None => LineStep::More(p),
        Some(b'[') => LineStep::To(State::HostLiteral, p + 1),
        Some(_) => LineStep::To(State::Host, p),
    }
}

fn host_literal(buf: &[u8], mut p: usize) -> LineStep {
    loop {
        match buf.get(p) {
            None => return LineStep::More(p),
            Some(b']') => return LineStep::To(State::HostEnd, p + 1),
            Some(&b) if in_literal(b) => p += 1,
            Some(_) => return BAD,
        }
    }
}

fn host_name(buf: &[u8], mut p: usize, line: &mut Line) -> LineStep {
    while let Some(&b) = buf.get(p) {
        if CLASS[b as usize] & HOST == 0 {
            return host_end(buf, p, line);
        }
        p += 1;
    }
    LineStep::More(p)
}

fn host_end(buf: &[u8], p: usize, line: &mut Line) -> LineStep {
    if let Some((start, _)) = line.host {
        line.host = Some((start, At::of(p)));
    }
    line.host_end = At::of(p);
    match buf.get(p) {
        None => LineStep::More(p),
        Some(b':') => LineStep::To(State::Port, p + 1),
        // Authority form needs its port.
        Some(_) if is_connect(buf, line) => BAD,
        Some(_) => authority_end(buf, p, line),
    }
}

fn port(buf: &[u8], mut p: usize, line: &mut Line) -> LineStep {
    while let Some(b'0'..=b'9') = buf.get(p) {
        p += 1;
    }
    let Some(&after) = buf.get(p) else { return LineStep::More(p) };
    line.host_end = At::of(p);
    if !is_connect(buf, line) {
        return authority_end(buf, p, line);
    }
    // The host ends at the colon.
    let digits = line.host.map_or(0, |(_, end)| p.saturating_sub(end.get() + 1));
    if after == b' ' && digits > 0 { authority_end(buf, p, line) } else { BAD }
}

/// Reads the byte after host and port. A target without a path stands for `/`: its slice is some slash of the
/// line, so that it needs no memory of its own.
fn authority_end(buf: &[u8], p: usize, line: &mut Line) -> LineStep {
    line.target_start = At::of(p);
    match buf.get(p) {
        Some(b'/' | b'?') => LineStep::To(State::Target, p),
        Some(b' ') => {
            line.target_end = At::of(p);
            LineStep::To(State::AfterTarget, p + 1)
        }
        _ => BAD,
    }
}

/// Interprets a complete line: version, method, target, host.
pub(crate) fn finish(buf: &[u8], head: &mut RequestHead, merge_slashes: bool) -> Result<(), Reject> {
    let line = head.line;
    // First: how an error is answered depends on the version.
    head.version = line.version();
    let method_text = slice(0, line.method_end.get());
    let method = method_of(method_text.of(buf));
    if head.version == Version::Http09 && method != Method::Get {
        return Err(reject(400, "client sent invalid method in HTTP/0.9 request"));
    }
    head.method_text = method_text;
    head.method = method;
    set_target(buf, head, &line, merge_slashes)?;
    if let Some((start, end)) = line.host {
        head.target_host = Some(slice(start.get(), end.get()));
        let authority = buf.get(start.get()..line.host_end.get()).unwrap_or_default();
        head.take_host(authority).map_err(|_| reject(400, "client sent invalid host in request line"))?;
    }
    Ok(())
}

/// Splits the target and fills `path`.
fn set_target(buf: &[u8], head: &mut RequestHead, line: &Line, merge_slashes: bool) -> Result<(), Reject> {
    head.target = slice(line.target_start.get(), line.target_end.get());
    if head.target.is_empty() {
        head.target = any_slash(buf, line);
    }
    let target = head.target.of(buf);
    let mut path = target;
    // ESCAPE stands for `#`, too: a fragment has to be cut off.
    if line.seen & (QUERY | ESCAPE) != 0 {
        let parts = uri::split(target);
        path = target.get(..parts.path).unwrap_or(target);
        if let Some((start, end)) = parts.args {
            head.has_args = true;
            head.args = slice(line.target_start.get() + start, line.target_start.get() + end);
        }
    }
    if line.seen & (ESCAPE | AFTER_SLASH) != 0 || path.is_empty() {
        uri::normalise(path, merge_slashes, &mut head.path).map_err(|_| reject(400, INVALID_REQUEST))?;
        head.path_changed = head.path != path;
    } else {
        head.path.clear();
        head.path.extend_from_slice(path);
    }
    Ok(())
}

/// Returns a slice with the text `/`, from `://` or `HTTP/1.1`.
fn any_slash(buf: &[u8], line: &Line) -> Slice {
    let from = line.scheme_start.get();
    let rest = buf.get(from..).unwrap_or_default();
    match memchr::memchr(b'/', rest) {
        Some(i) => slice(from + i, from + i + 1),
        None => Slice::default(),
    }
}

/// Returns the method that `text` spells; names are case-sensitive.
pub(crate) fn method_of(text: &[u8]) -> Method {
    match text {
        b"GET" => Method::Get,
        b"HEAD" => Method::Head,
        b"POST" => Method::Post,
        b"PUT" => Method::Put,
        b"DELETE" => Method::Delete,
        b"MKCOL" => Method::Mkcol,
        b"COPY" => Method::Copy,
        b"MOVE" => Method::Move,
        b"OPTIONS" => Method::Options,
        b"PROPFIND" => Method::Propfind,
        b"PROPPATCH" => Method::Proppatch,
        b"LOCK" => Method::Lock,
        b"UNLOCK" => Method::Unlock,
        b"PATCH" => Method::Patch,
        b"TRACE" => Method::Trace,
        b"CONNECT" => Method::Connect,
        _ => Method::Other,
    }
}

fn reject(status: u16, reason: &'static str) -> Reject {
    Reject::new(status, reason, Stage::Line)
}

/// Returns a slice of the buffer. Heads are far below 4 GiB: see `request::parse`.
pub(crate) fn slice(start: usize, end: usize) -> Slice {
    let cut = |n| u32::try_from(n).unwrap_or(u32::MAX);
    Slice { start: cut(start), end: cut(end) }
}
