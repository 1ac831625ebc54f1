//! Response heads from upstreams (RFC 9112, sections 4 and 6), resumable at any byte; accepts and refuses
//! what nginx's proxy does. Hot path.

use super::fields::{At, Detail, Event, InvalidLine, Scan, State, field_line, usual_line, value_stop};
use super::line::slice;
use super::request::{Status, content_length};
use crate::field::{Classes, FieldLine, Name, Slice, same};
use crate::params::{list_has, skip_blanks};
use crate::request::{FirstLines, Framing, Version};

/// A response head. All slices point into `buf`; the head is reused from response to response.
#[derive(Debug, Default)]
pub struct ResponseHead {
    /// Bytes as received. Bytes after `len` belong to the body or to the next response.
    pub buf: Vec<u8>,
    /// Length of the head in `buf`, empty line included; 0 while it is incomplete.
    pub len: usize,
    /// The upstream's version; minor versions above 1 count as 1.
    pub version: Version,
    /// Status, below 1000.
    pub status: u16,
    /// Status and reason phrase as written, for instance `200 OK`.
    pub status_text: Slice,
    /// Field lines in the order received.
    pub fields: Vec<FieldLine>,
    /// Places in `fields` of the first lines with known names.
    pub first: FirstLines,
    /// Value of `Content-Length`.
    pub content_length: Option<u64>,
    /// The transfer coding is `chunked`.
    pub chunked: bool,
    /// The version and `Connection` allow to use the connection again, if the body has an end.
    pub keep_alive: bool,
    scan: Scan,
}

/// The reason for refusing a response: status 502, unless `not_http`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadResponse {
    /// Start of nginx's error log text.
    pub reason: &'static str,
    /// There is no status line at all. nginx passes such a response on as the body of HTTP/0.9.
    pub not_http: bool,
    detail: Detail,
}

impl BadResponse {
    fn new(reason: &'static str, detail: Detail) -> Self {
        BadResponse { reason, not_http: false, detail }
    }

    /// Appends nginx's error log text, without the context that nginx adds to every line.
    pub fn message(&self, head: &ResponseHead, out: &mut Vec<u8>) {
        out.extend_from_slice(self.reason.as_bytes());
        self.detail.append(&head.buf, out);
    }
}

impl ResponseHead {
    /// Returns the value of the first line with this known name.
    #[inline]
    pub fn get(&self, name: Name) -> Option<&[u8]> {
        self.first_line(name).map(|line| line.value.of(&self.buf))
    }

    fn first_line(&self, name: Name) -> Option<FieldLine> {
        self.first.line(name, &self.fields)
    }

    /// Returns `true` if another head follows: a status from 100 to 199 other than 101.
    pub fn is_interim(&self) -> bool {
        (100..200).contains(&self.status) && self.status != 101
    }

    /// Drops the first `consumed` bytes of `buf` and forgets everything else. Capacities stay.
    pub fn advance(&mut self, consumed: usize) {
        // A head that has been read has a status, whatever was done with its bytes.
        let is_new = self.status == 0 && self.scan.pos.get() == 0 && self.len == 0 && self.fields.is_empty();
        if is_new && self.buf.is_empty() {
            return;
        }
        if consumed >= self.buf.len() {
            self.buf.clear();
        } else {
            self.buf.drain(..consumed);
        }
        // Field by field: a whole new head would be moved about.
        self.len = 0;
        self.version = Version::default();
        self.status = 0;
        self.status_text = Slice::default();
        self.fields.clear();
        self.first = FirstLines::default();
        self.content_length = None;
        self.chunked = false;
        self.keep_alive = false;
        self.scan = Scan::default();
    }
}

/// Returns the framing of a response's body (RFC 9112, section 6.3). `to_head`: the request was HEAD.
pub fn framing_of_response(head: &ResponseHead, to_head: bool) -> Framing {
    if to_head || matches!(head.status, 100..=199 | 204 | 304) {
        Framing::None
    } else if head.chunked {
        Framing::Chunked
    } else {
        head.content_length.map_or(Framing::Stream, Framing::Length)
    }
}

/// Takes all bytes as the content of a response of HTTP/0.9, which has no head and ends with the connection. For a response that
/// [`parse`] has refused with [`BadResponse::not_http`].
pub fn take_as_content(head: &mut ResponseHead) {
    let buf = std::mem::take(&mut head.buf);
    head.advance(usize::MAX);
    *head = ResponseHead { buf, version: Version::Http09, status: 200, ..std::mem::take(head) };
    head.scan.state = State::Done;
}

/// Parses on from where the last call stopped. `head.buf` holds the bytes received so far. After
/// `Status::Complete` the bytes from `head.len` on are the body. `max_len` (nginx: proxy_buffer_size) is
/// the most bytes that the head may have.
///
/// # Errors
/// No HTTP, an invalid line, or framing that could be understood in two ways.
pub fn parse(head: &mut ResponseHead, max_len: usize) -> Result<Status, BadResponse> {
    let buf = std::mem::take(&mut head.buf);
    let outcome = run(&buf, head, max_len);
    head.buf = buf;
    outcome
}

fn run(buf: &[u8], head: &mut ResponseHead, max_len: usize) -> Result<Status, BadResponse> {
    // A head is refused for its length rather than for bytes beyond the limit. Slices reach no further than 4 GiB.
    let view = buf.get(..max_len.min(u32::MAX as usize)).unwrap_or(buf);
    if head.scan.state == State::Done {
        return Ok(Status::Complete);
    }
    if head.scan.state < State::FieldStart {
        let Some(end) = status_line(view, head)? else {
            return if buf.len() >= max_len { Err(TOO_BIG) } else { Ok(Status::Partial) };
        };
        head.scan.pos = At::of(end);
        head.scan.state = State::FieldStart;
    }
    while let Some(event) = next_unusual(&Input { buf, view, max_len }, head)? {
        match event {
            Event::Field => take_field(buf, head, head.scan.field())?,
            Event::End => return end(head),
        }
    }
    Ok(Status::Partial)
}

/// Received bytes of a head.
struct Input<'b> {
    buf: &'b [u8],
    /// The part of `buf` within the limit.
    view: &'b [u8],
    max_len: usize,
}

/// Takes the usual lines, and scans the next line that is not one of them. `None`: it is incomplete.
#[inline]
fn next_unusual(input: &Input<'_>, head: &mut ResponseHead) -> Result<Option<Event>, BadResponse> {
    let &Input { buf, view, max_len } = input;
    if head.scan.state == State::FieldStart {
        usual_lines(buf, view, head)?;
        if let Some([b'\r', b'\n', ..]) = view.get(head.scan.pos.get()..) {
            head.scan.pos.advance(2);
            return Ok(Some(Event::End));
        }
    }
    let event = field_line(view, &mut head.scan)
        .map_err(|InvalidLine(detail)| BadResponse::new("upstream sent invalid header", detail))?;
    // An incomplete line has all received bytes and at least one more.
    let used = if event.is_some() { head.scan.pos.get() } else { buf.len().saturating_add(1) };
    if used > max_len {
        return Err(TOO_BIG);
    }
    Ok(event)
}

#[inline(always)]
fn usual_lines(buf: &[u8], view: &[u8], head: &mut ResponseHead) -> Result<(), BadResponse> {
    // A usual line ends within the limit, since it was found there.
    while let Some(line) = usual_line(view, head.scan.pos.get()) {
        head.scan.pos = At::of(line.end);
        take_field(buf, head, line.field)?;
    }
    Ok(())
}

const TOO_BIG: BadResponse =
    BadResponse { reason: "upstream sent too big header", not_http: false, detail: Detail::None };

const NOT_HTTP: BadResponse =
    BadResponse { reason: "upstream sent no valid HTTP/1.0 header", not_http: true, detail: Detail::None };

/// Reads a status line as almost all responses have it. Returns the offset after it; `None` if it is incomplete or another.
#[inline]
fn usual_status_line(buf: &[u8], head: &mut ResponseHead) -> Option<usize> {
    const START: usize = 9;
    let (&start, text) = buf.split_first_chunk::<START>()?;
    let &[a @ b'0'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9', b' '] = text.first_chunk::<4>()? else {
        return None;
    };
    if start != *b"HTTP/1.1 " {
        return None;
    }
    let stop = value_stop(buf, START + 4);
    let Some([b'\r', b'\n']) = buf.get(stop..stop + 2) else { return None };
    let digit = |d: u8| u16::from(d - b'0');
    head.version = Version::Http11;
    head.status = digit(a) * 100 + digit(b) * 10 + digit(c);
    head.status_text = slice(START, stop);
    Some(stop + 2)
}

/// Reads the status line. Returns the offset after it, or `None` while it is incomplete.
fn status_line(buf: &[u8], head: &mut ResponseHead) -> Result<Option<usize>, BadResponse> {
    const PREFIX: &[u8] = b"HTTP/";
    if let Some(end) = usual_status_line(buf, head) {
        return Ok(Some(end));
    }
    if !buf.iter().zip(PREFIX).all(|(a, b)| a == b) {
        return Err(NOT_HTTP);
    }
    let Some(found) = memchr::memchr(b'\n', buf.get(head.scan.pos.get()..).unwrap_or_default()) else {
        // These bytes have no line end: the next call searches only behind them.
        head.scan.pos = At::of(buf.len());
        return Ok(None);
    };
    let newline = head.scan.pos.get() + found;
    let line = buf.get(..newline).unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let rest = line.strip_prefix(PREFIX).ok_or(NOT_HTTP)?;
    let (version, rest) = version(rest).ok_or(NOT_HTTP)?;
    let text = skip_blanks(rest);
    head.version = version;
    head.status = status_code(text).ok_or(NOT_HTTP)?;
    head.status_text = slice(line.len() - text.len(), line.len());
    Ok(Some(newline + 1))
}

/// Parses the text after `HTTP/`. Returns the version, and the text behind the blank after it.
fn version(text: &[u8]) -> Option<(Version, &[u8])> {
    let (major, rest) = version_number(text)?;
    if !matches!(text.first(), Some(b'1'..=b'9')) {
        return None;
    }
    let (minor, rest) = version_number(rest.strip_prefix(b".")?)?;
    let version = if (major, minor) == (1, 0) { Version::Http10 } else { Version::Http11 };
    Some((version, rest.strip_prefix(b" ")?))
}

/// Parses status and reason phrase.
fn status_code(text: &[u8]) -> Option<u16> {
    let (&[a @ b'0'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9'], after) = text.split_first_chunk::<3>()? else {
        return None;
    };
    // Some servers write sub-codes, as in `404.1`.
    if !matches!(after.first(), None | Some(b' ' | b'.')) || after.contains(&b'\r') {
        return None;
    }
    let digit = |d: u8| u16::from(d - b'0');
    Some(digit(a) * 100 + digit(b) * 10 + digit(c))
}

/// Reads one to three digits.
fn version_number(text: &[u8]) -> Option<(u32, &[u8])> {
    let len = text.iter().position(|b| !b.is_ascii_digit()).unwrap_or(text.len());
    if !(1..=3).contains(&len) {
        return None;
    }
    let (digits, rest) = text.split_at_checked(len)?;
    Some((digits.iter().fold(0, |n, d| n * 10 + u32::from(d - b'0')), rest))
}

#[inline(always)]
fn take_field(buf: &[u8], head: &mut ResponseHead, line: FieldLine) -> Result<(), BadResponse> {
    if let Name::ContentLength | Name::TransferEncoding | Name::Connection = line.id {
        take_meaning(buf, head, line)?;
    }
    head.first.note(line.id, head.fields.len());
    head.fields.push(line);
    Ok(())
}

/// Takes the framing, or whether the connection persists, from a line.
#[inline(never)]
fn take_meaning(buf: &[u8], head: &mut ResponseHead, line: FieldLine) -> Result<(), BadResponse> {
    let value = line.value.of(buf);
    if line.id.is(Classes::FRAMING) {
        return take_framing(value, head, line);
    }
    // The usual values first: they need no list to be taken apart.
    if same(b"close", value) {
        head.scan.connection = Some(false);
    } else if same(b"keep-alive", value) {
        // `close` in any line counts: `keep-alive` never replaces it.
        head.scan.connection.get_or_insert(true);
    } else if list_has(value, b"close") {
        head.scan.connection = Some(false);
    } else if list_has(value, b"keep-alive") {
        head.scan.connection.get_or_insert(true);
    }
    Ok(())
}

/// Takes `Content-Length` or `Transfer-Encoding`. A second line of either could be understood in two ways (RFC 9112,
/// section 6.3).
fn take_framing(value: &[u8], head: &mut ResponseHead, line: FieldLine) -> Result<(), BadResponse> {
    let whole = |l: FieldLine| Slice { start: l.name.start, end: l.value.end };
    if let Some(previous) = head.first_line(line.id) {
        let detail = Detail::Duplicate(whole(line), whole(previous));
        return Err(BadResponse::new("upstream sent duplicate header line", detail));
    }
    if line.id == Name::TransferEncoding {
        if !value.eq_ignore_ascii_case(b"chunked") {
            let detail = Detail::Quoted(line.value);
            return Err(BadResponse::new("upstream sent unknown \"Transfer-Encoding\"", detail));
        }
        head.chunked = true;
        return Ok(());
    }
    let length = content_length(value).ok_or(BadResponse::new(
        "upstream sent invalid \"Content-Length\" header",
        Detail::Quoted(whole(line)),
    ))?;
    head.content_length = Some(length);
    Ok(())
}

/// Ends a head whose empty line has been read.
fn end(head: &mut ResponseHead) -> Result<Status, BadResponse> {
    head.len = head.scan.pos.get();
    head.scan.state = State::Done;
    if head.chunked && head.content_length.is_some() {
        return Err(BadResponse::new(
            "upstream sent \"Content-Length\" and \"Transfer-Encoding\" headers at the same time",
            Detail::None,
        ));
    }
    head.keep_alive = head.scan.connection.unwrap_or(head.version >= Version::Http11);
    Ok(Status::Complete)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_in(input: &[u8], piece: usize) -> (ResponseHead, Result<Status, BadResponse>) {
        let mut head = ResponseHead::default();
        for part in input.chunks(piece) {
            head.buf.extend_from_slice(part);
            match parse(&mut head, 4096) {
                Ok(Status::Partial) => {}
                done => return (head, done),
            }
        }
        (head, Ok(Status::Partial))
    }

    fn run(input: &[u8]) -> (ResponseHead, Result<Status, BadResponse>) {
        let whole = run_in(input, input.len());
        let slow = run_in(input, 1);
        assert_eq!(slow.1.map_err(|e| e.reason), whole.1.map_err(|e| e.reason), "{}", input.escape_ascii());
        assert_eq!(slow.0.len, whole.0.len);
        whole
    }

    #[test]
    fn a_head_is_forgotten_wherever_its_bytes_have_gone() {
        for input in [b"no head".as_slice(), b"HTTP/1.1 200 OK\r\nServer: x\r\n\r\n", b"HTTP/1.1 204"] {
            let (mut head, done) = run_in(input, input.len());
            if done.is_err() {
                take_as_content(&mut head);
            }
            head.buf = Vec::new();
            head.advance(usize::MAX);
            head.buf = b"HTTP/1.1 404 Not Found\r\n\r\nX".to_vec();
            assert_eq!(parse(&mut head, 4096), Ok(Status::Complete));
            assert_eq!((head.status, head.version, head.len), (404, Version::Http11, head.buf.len() - 1));
        }
    }

    #[test]
    fn a_plain_response() {
        let input = b"HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 2\r\n\r\nok";
        let (mut head, outcome) = run(input);
        assert_eq!(outcome, Ok(Status::Complete));
        assert_eq!((head.status, head.len, head.keep_alive), (200, input.len() - 2, true));
        assert_eq!(head.status_text.of(&head.buf), b"200 OK");
        assert_eq!(head.get(Name::Server), Some(&b"x"[..]));
        assert_eq!(framing_of_response(&head, false), Framing::Length(2));
        assert_eq!(framing_of_response(&head, true), Framing::None);
        let end = head.len + 2;
        head.advance(end);
        assert!(head.buf.is_empty() && head.fields.is_empty());
    }

    #[test]
    fn status_lines_as_nginx() {
        for (line, status, text) in [
            ("HTTP/1.1 200", 200, "200"),
            ("HTTP/1.1 200 ", 200, "200 "),
            ("HTTP/1.1  200 OK", 200, "200 OK"),
            ("HTTP/1.1 099 OK", 99, "099 OK"),
            ("HTTP/1.0 999 X\0\u{1}", 999, "999 X\0\u{1}"),
            ("HTTP/2.0 200 OK", 200, "200 OK"),
            ("HTTP/11.111 200 OK", 200, "200 OK"),
            ("HTTP/1.1 200.1 OK", 200, "200.1 OK"),
        ] {
            let (head, outcome) = run(format!("{line}\r\n\r\n").as_bytes());
            assert_eq!(outcome, Ok(Status::Complete), "{line}");
            assert_eq!((head.status, head.status_text.of(&head.buf)), (status, text.as_bytes()));
            let (_, outcome) = run(format!("{line}\n\n").as_bytes());
            assert_eq!(outcome, Ok(Status::Complete), "{line}");
        }
        for line in [
            "HTTP/1.1 2000 OK",
            "HTTP/1.1 20 OK",
            "HTTP/1.1 200OK",
            "HTTP/1.1 200\tOK",
            "HTTP/1.1 200 O\rK",
            "HTTP/2 200 OK",
            "HTTP/0.9 200 OK",
            "HTTP/1.1111 200 OK",
            "http/1.1 200 OK",
            "HTTP/1.1 abc",
            " HTTP/1.1 200 OK",
            "ICY 200 OK",
            "hello",
            "HTTP/1.1 200 OK\r",
            "HTTP/1.1",
        ] {
            assert!(run(format!("{line}\r\n\r\n").as_bytes()).1.is_err_and(|e| e.not_http), "{line}");
        }
    }

    #[test]
    fn refusals_and_their_texts() {
        for (fields, want) in [
            ("X : y\r\n", "upstream sent invalid header: \"X\\x20...\""),
            ("X: y\r\n z\r\n", "upstream sent invalid header: \"\\x20...\""),
            ("X: a\rb\r\n", "upstream sent invalid header: \"X: a\\x0d...\""),
            (": y\r\n", "upstream sent invalid header: \"\\x3a...\""),
            (
                "Content-Length: x\r\n",
                "upstream sent invalid \"Content-Length\" header: \"Content-Length: x\"",
            ),
            (
                "Content-Length: 2\r\nContent-Length: 2\r\n",
                "upstream sent duplicate header line: \"Content-Length: 2\", previous value: \
                 \"Content-Length: 2\"",
            ),
            ("Transfer-Encoding: gzip\r\n", "upstream sent unknown \"Transfer-Encoding\": \"gzip\""),
            (
                "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n",
                "upstream sent \"Content-Length\" and \"Transfer-Encoding\" headers at the same time",
            ),
        ] {
            let (head, outcome) = run(format!("HTTP/1.1 200 OK\r\n{fields}\r\n").as_bytes());
            let mut text = Vec::new();
            outcome.expect_err("a refusal").message(&head, &mut text);
            assert_eq!(String::from_utf8_lossy(&text), want);
        }
        let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "a".repeat(5000));
        assert!(run(long.as_bytes()).1.is_err_and(|e| e.reason == "upstream sent too big header"));
        // A fault beyond the limit is not seen, in however many pieces the head comes.
        let faulty = format!("HTTP/1.1 200 OK\r\nX{}\0\r\n\r\n", "a".repeat(5000));
        assert!(run(faulty.as_bytes()).1.is_err_and(|e| e.reason == "upstream sent too big header"));
    }

    #[test]
    fn bytes_without_a_head_are_content() {
        for input in ["ICY 200 OK\r\nicy-name: x\r\n\r\nDATA", "hello", "\r\n\r\n", "HTTP/1.1 20 OK\r\n\r\nx"]
        {
            for piece in [1, 3, input.len()] {
                let (mut head, outcome) = run_in(input.as_bytes(), piece);
                assert!(outcome.is_err_and(|bad| bad.not_http), "{input}");
                let came = head.buf.clone();
                take_as_content(&mut head);
                assert_eq!((head.version, head.status, head.len), (Version::Http09, 200, 0));
                assert_eq!(parse(&mut head, 4096), Ok(Status::Complete));
                assert_eq!(head.buf, came);
                assert_eq!(framing_of_response(&head, false), Framing::Stream);
                assert!(!head.keep_alive && head.fields.is_empty());
                head.advance(usize::MAX);
                assert_eq!(head.version, Version::default());
            }
        }
    }

    #[test]
    fn framing_and_reuse() {
        let head = |fields: &str| run(format!("HTTP/1.{fields}\r\n\r\n").as_bytes()).0;
        let framing = |fields: &str| framing_of_response(&head(fields), false);
        assert_eq!(framing("1 200 OK"), Framing::Stream);
        assert_eq!(framing("0 200 OK\r\nTransfer-Encoding: Chunked"), Framing::Chunked);
        assert_eq!(framing("1 204 N\r\nContent-Length: 2"), Framing::None);
        assert_eq!(framing("1 304 N\r\nTransfer-Encoding: chunked"), Framing::None);
        assert!(
            head("1 100 C").is_interim() && head("1 103 E").is_interim() && !head("1 101 S").is_interim()
        );
        assert!(!head("0 200 OK").keep_alive && head("0 200 OK\r\nConnection: keep-alive").keep_alive);
        assert!(!head("1 200 OK\r\nConnection: x, Close").keep_alive);
        assert_eq!(head("1 200 OK\r\nX_Y: 1\r\nX").fields.len(), 2);
    }

    #[test]
    fn framing_counts_once_however_many_lines_come_first() {
        let mut head = ResponseHead { buf: b"HTTP/1.1 200 OK\r\n".to_vec(), ..Default::default() };
        for _ in 0..70_000 {
            head.buf.extend_from_slice(b"a:\r\n");
        }
        head.buf.extend_from_slice(b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n");
        assert!(parse(&mut head, usize::MAX).is_err());
    }
}
