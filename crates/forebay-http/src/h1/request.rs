//! The request-head parser (RFC 9112, sections 2 to 6), resumable at any byte; accepts and refuses what
//! nginx does. Comes from the connection driver with bytes in `RequestHead::buf`; the request line is in
//! `line`. Hot path.

use super::fields::{At, Detail, Event, InvalidLine, State, UNDERSCORE, UNUSUAL, field_line};
use super::line::{self, slice};
use crate::field::{Classes, FieldLine, Name, Slice};
use crate::host;
use crate::request::{Framing, Method, RequestHead, Version};

/// Limits and switches for one request head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of the first buffer (nginx: client_header_buffer_size).
    pub client_header_buffer_size: usize,
    /// Number and size in bytes of the further buffers (nginx: large_client_header_buffers). No line may be
    /// longer than one of them, unless it fits into the first buffer.
    pub large_client_header_buffers: (usize, usize),
    /// Most field lines (nginx: max_headers).
    pub max_headers: usize,
    /// Leave out lines with unusual names instead of passing them on (nginx: ignore_invalid_headers).
    pub ignore_invalid_headers: bool,
    /// `_` is usual in a name (nginx: underscores_in_headers).
    pub underscores_in_headers: bool,
    /// Make one slash of several in `path` (nginx: merge_slashes).
    pub merge_slashes: bool,
    /// Take CONNECT by HTTP/1.1 instead of refusing it (nginx: tunnel_pass).
    pub connect: bool,
}

impl Default for Limits {
    /// Returns nginx's defaults.
    fn default() -> Self {
        Limits {
            client_header_buffer_size: 1024,
            large_client_header_buffers: (4, 8192),
            max_headers: 1000,
            ignore_invalid_headers: true,
            underscores_in_headers: false,
            merge_slashes: true,
            connect: false,
        }
    }
}

/// Result of parsing a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// More bytes are needed.
    Partial,
    /// The head is complete; `len` is set.
    Complete,
}

/// The part of a head that was being read, for the error log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// The request line: the default server of the listener answers.
    Line,
    /// The field lines: the request line is known, and the host if `host` is not empty.
    Fields,
}

impl Stage {
    /// Returns the text in nginx's error log behind "while ".
    pub fn as_str(self) -> &'static str {
        match self {
            Stage::Line => "reading client request line",
            Stage::Fields => "reading client request headers",
        }
    }
}

/// The reason for refusing a head. All of it is logged at level `info`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reject {
    /// Status to answer with: 400, 405, 414, 494, 501 or 505. 494 is for `error_page`; on the wire and in the
    /// access log it is 400.
    pub status: u16,
    /// Start of nginx's error log text.
    pub reason: &'static str,
    /// The part that was being read.
    pub stage: Stage,
    detail: Detail,
}

impl Reject {
    pub(crate) fn new(status: u16, reason: &'static str, stage: Stage) -> Reject {
        Reject { status, reason, stage, detail: Detail::None }
    }

    /// Status in the status line and in the access log.
    pub fn wire_status(&self) -> u16 {
        super::response::wire_status(self.status)
    }

    /// Appends nginx's error log text, without the context that nginx adds to every line, for instance
    /// `client sent invalid header line: "X\x20..." while reading client request headers`.
    pub fn message(&self, head: &RequestHead, out: &mut Vec<u8>) {
        out.extend_from_slice(self.reason.as_bytes());
        self.detail.append(&head.buf, out);
        out.extend_from_slice(b" while ");
        out.extend_from_slice(self.stage.as_str().as_bytes());
    }
}

/// Parses on from where the last call stopped. `head.buf` holds the bytes received so far, from the start of
/// this request (empty lines before it are removed from `buf` here). After `Complete` the bytes from
/// `head.len` on are body or next request; take them with `RequestHead::advance`.
///
/// # Errors
/// `Reject` when nginx refuses the request; the connection ends after the answer. `head.version` is `Http09`
/// if the answer has to be a bare page; the head has the parts that were read.
pub fn parse(head: &mut RequestHead, limits: &Limits) -> Result<Status, Reject> {
    if head.scan.state == State::Method && head.scan.pos.get() == 0 {
        skip_empty_lines(&mut head.buf);
        head.room.end = limits.client_header_buffer_size;
    }
    // Taken out so that slices of it can be held while the head is filled; no allocation.
    let buf = std::mem::take(&mut head.buf);
    let outcome = run(&buf, head, limits);
    if let Err(reject) = &outcome
        && reject.stage == Stage::Line
    {
        head.request_line = slice(0, memchr::memchr2(b'\r', b'\n', &buf).unwrap_or(buf.len()));
        if buf.starts_with(b"HEAD ") {
            // The answer has no content, whatever is wrong behind the method.
            head.method = Method::Head;
        }
    }
    head.buf = buf;
    outcome
}

fn skip_empty_lines(buf: &mut Vec<u8>) {
    if matches!(buf.first(), Some(b'\r' | b'\n')) {
        let start = buf.iter().position(|b| !matches!(b, b'\r' | b'\n')).unwrap_or(buf.len());
        buf.drain(..start);
    }
}

fn run(buf: &[u8], head: &mut RequestHead, limits: &Limits) -> Result<Status, Reject> {
    if head.scan.state < State::FieldStart && request_line(buf, head, limits)? == Status::Partial {
        return Ok(Status::Partial);
    }
    if head.scan.state == State::Done {
        return Ok(Status::Complete);
    }
    while let Some(event) = next_event(buf, head, limits)? {
        match event {
            Event::Field => take_field(buf, head, limits)?,
            Event::End => return finish(buf, head, limits.connect),
        }
    }
    Ok(Status::Partial)
}

/// Reads the request line. In HTTP/0.9 it is the whole head.
fn request_line(buf: &[u8], head: &mut RequestHead, limits: &Limits) -> Result<Status, Reject> {
    let end = line::scan(within(buf, head, limits), head)?;
    fits(buf, head, limits, end)?;
    let Some(end) = end else { return Ok(Status::Partial) };
    line::finish(buf, head, limits.merge_slashes)?;
    head.scan.pos = At::of(end);
    head.scan.start = At::of(end);
    head.scan.state = State::FieldStart;
    if head.version == Version::Http09 {
        head.len = end;
        head.scan.state = State::Done;
    }
    Ok(Status::Complete)
}

/// Scans to the end of a field line or of the head. `None`: more bytes are needed.
#[inline]
fn next_event(buf: &[u8], head: &mut RequestHead, limits: &Limits) -> Result<Option<Event>, Reject> {
    let view = within(buf, head, limits);
    let event = field_line(view, &mut head.scan).map_err(invalid_line)?;
    fits(buf, head, limits, event.is_some().then_some(head.scan.pos.get()))?;
    Ok(event)
}

/// Returns the bytes that nginx would see while it reads the line under way, so that a line is refused for its length
/// rather than for bytes behind the end of the buffer.
#[inline]
fn within<'a>(buf: &'a [u8], head: &RequestHead, limits: &Limits) -> &'a [u8] {
    let scan = &head.scan;
    let mut end = head.room.end;
    if buf.len() > end && head.room.large_used < limits.large_client_header_buffers.0 {
        let start = if scan.state == State::FieldStart { scan.pos.get() } else { scan.start.get() };
        end = end.max(start.saturating_add(limits.large_client_header_buffers.1));
    }
    buf.get(..end).unwrap_or(buf)
}

/// Checks the length of a line by nginx's buffer arithmetic: lines fill the first buffer; one that does not fit whole moves to
/// the next large buffer and must fit there. `end` is the end of the line, `None` while it is incomplete: then it has all
/// received bytes and at least one more.
#[inline]
fn fits(buf: &[u8], head: &mut RequestHead, limits: &Limits, end: Option<usize>) -> Result<(), Reject> {
    let needed = end.unwrap_or(buf.len() + 1);
    if needed <= head.room.end {
        return Ok(());
    }
    next_buffer(buf, head, limits, needed)
}

#[cold]
fn next_buffer(buf: &[u8], head: &mut RequestHead, limits: &Limits, needed: usize) -> Result<(), Reject> {
    let (number, size) = limits.large_client_header_buffers;
    let start = head.scan.start.get();
    if head.room.large_used < number {
        head.room.large_used += 1;
        head.room.end = start.saturating_add(size);
        if needed <= head.room.end {
            return Ok(());
        }
    }
    if head.scan.state < State::FieldStart {
        return Err(Reject::new(414, "client sent too long URI", Stage::Line));
    }
    let seen = buf.len().min(head.room.end).max(start);
    Err(Reject {
        detail: Detail::Cut(slice(start, seen)),
        ..Reject::new(494, "client sent too long header line", Stage::Fields)
    })
}

fn invalid_line(InvalidLine(detail): InvalidLine) -> Reject {
    Reject { detail, ..Reject::new(400, "client sent invalid header line", Stage::Fields) }
}

/// Stores a complete field line and looks at the names that matter here.
#[inline]
fn take_field(buf: &[u8], head: &mut RequestHead, limits: &Limits) -> Result<(), Reject> {
    let scan = &head.scan;
    let unusual = if limits.underscores_in_headers { UNUSUAL } else { UNUSUAL | UNDERSCORE };
    if scan.seen & unusual != 0 && limits.ignore_invalid_headers {
        head.ignored.push(slice(scan.start.get(), scan.value_end.get()));
        return Ok(());
    }
    if head.fields.len() >= limits.max_headers {
        return Err(Reject::new(494, "client sent too many header lines", Stage::Fields));
    }
    let line = scan.field();
    // Before the line is indexed, or it would be its own predecessor.
    let previous = first_line(head, line.id);
    head.index_field(line);
    if line.id != Name::Other {
        known_field(buf, head, line, previous)?;
    }
    Ok(())
}

/// Returns the first line of a name.
pub(crate) fn first_line(head: &RequestHead, id: Name) -> Option<FieldLine> {
    head.first.line(id, &head.fields)
}

fn known_field(
    buf: &[u8],
    head: &mut RequestHead,
    line: FieldLine,
    previous: Option<FieldLine>,
) -> Result<(), Reject> {
    match line.id {
        Name::Host => {
            check_first("client sent duplicate host header", line, previous)?;
            take_host(line.value.of(buf), head)
        }
        Name::Connection => {
            if let Some(keep) = connection(line.value.of(buf)) {
                head.scan.connection = Some(keep);
            }
            Ok(())
        }
        id if id.is(Classes::ONCE_IN_REQUEST) => {
            check_first("client sent duplicate header line", line, previous)
        }
        _ => Ok(()),
    }
}

/// Refuses the second line of a name.
fn check_first(reason: &'static str, line: FieldLine, previous: Option<FieldLine>) -> Result<(), Reject> {
    let Some(previous) = previous else { return Ok(()) };
    let whole = |l: FieldLine| Slice { start: l.name.start, end: l.value.end };
    Err(Reject {
        detail: Detail::Duplicate(whole(line), whole(previous)),
        ..Reject::new(400, reason, Stage::Fields)
    })
}

/// Takes the value of `Host`. The host of an absolute-form target has precedence, but the field has to be valid all the same.
fn take_host(value: &[u8], head: &mut RequestHead) -> Result<(), Reject> {
    let invalid = |_| Reject::new(400, "client sent invalid host header", Stage::Fields);
    if head.target_host.is_none() {
        head.take_host(value).map_err(invalid)?;
    } else {
        host::check(value).map_err(invalid)?;
    }
    Ok(())
}

/// Returns whether `Connection` keeps the connection open. Looks for the words anywhere in the value, as nginx does; `close`
/// has precedence within one line.
fn connection(value: &[u8]) -> Option<bool> {
    if value.eq_ignore_ascii_case(b"keep-alive") {
        Some(true)
    } else if contains(value, b"close") {
        Some(false)
    } else if contains(value, b"keep-alive") {
        Some(true)
    } else {
        None
    }
}

fn contains(value: &[u8], word: &[u8]) -> bool {
    value.windows(word.len()).any(|w| w.eq_ignore_ascii_case(word))
}

/// Checks a complete head, and sets the fields that follow from it.
fn finish(buf: &[u8], head: &mut RequestHead, connect: bool) -> Result<Status, Reject> {
    head.len = head.scan.pos.get();
    head.scan.state = State::Done;
    let http11 = head.version >= Version::Http11;
    let refuse = |status, reason| Err(Reject::new(status, reason, Stage::Fields));
    if http11 && first_line(head, Name::Host).is_none() {
        return refuse(400, "client sent HTTP/1.1 request without \"Host\" header");
    }
    set_framing(buf, head, http11)?;
    head.keep_alive = head.scan.connection.unwrap_or(http11);
    if let Some(line) = first_line(head, Name::Expect) {
        head.expect_continue = http11 && line.value.of(buf).eq_ignore_ascii_case(b"100-continue");
    }
    match head.method {
        Method::Trace => refuse(405, "client sent TRACE method"),
        Method::Connect => finish_connect(head, connect && http11),
        _ => Ok(Status::Complete),
    }
}

fn finish_connect(head: &mut RequestHead, allowed: bool) -> Result<Status, Reject> {
    if !allowed {
        return Err(Reject::new(405, "client sent CONNECT method", Stage::Fields));
    }
    if head.framing != Framing::None {
        // The bytes behind the head belong to the tunnel (RFC 9110, section 9.3.6).
        return Err(Reject::new(400, "client sent CONNECT with a body", Stage::Fields));
    }
    if head.path.is_empty() {
        head.path.push(b'/');
    }
    Ok(Status::Complete)
}

/// Sets the framing of the body by RFC 9112, section 6.3, as strictly as nginx.
fn set_framing(buf: &[u8], head: &mut RequestHead, http11: bool) -> Result<(), Reject> {
    let refuse = |reason| Err(Reject::new(400, reason, Stage::Fields));
    if let Some(line) = first_line(head, Name::ContentLength) {
        match content_length(line.value.of(buf)) {
            Some(n) => head.framing = Framing::Length(n),
            None => return refuse("client sent invalid \"Content-Length\" header"),
        }
    }
    let Some(line) = first_line(head, Name::TransferEncoding) else { return Ok(()) };
    if !http11 {
        // Its framing is faulty, since HTTP/1.0 has no transfer codings (RFC 9112, section 6.1).
        return refuse("client sent HTTP/1.0 request with \"Transfer-Encoding\" header");
    }
    if !line.value.of(buf).eq_ignore_ascii_case(b"chunked") {
        return Err(Reject {
            detail: Detail::Quoted(line.value),
            ..Reject::new(501, "client sent unknown \"Transfer-Encoding\"", Stage::Fields)
        });
    }
    if head.framing != Framing::None {
        // Servers that disagree on which of the two counts make request smuggling possible (RFC 9112, sections 6.1
        // and 11.2).
        return refuse("client sent \"Content-Length\" and \"Transfer-Encoding\" headers at the same time");
    }
    head.framing = Framing::Chunked;
    Ok(())
}

/// Parses a number: digits only, at most 2^63 - 1.
pub(crate) fn content_length(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return None;
    }
    let mut value = 0u64;
    for &b in text {
        // Bytes below `0` wrap to more than 9.
        let digit = b.wrapping_sub(b'0');
        if digit > 9 {
            return None;
        }
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    // The bound of nginx, whose lengths are signed.
    (value <= i64::MAX as u64).then_some(value)
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
