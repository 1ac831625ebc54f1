//! Responses of FastCGI servers (nginx: ngx_http_fastcgi_module). The parsers are in forebay-http, `fastcgi.rs` and `cgi.rs`.
//! Hot path.

use super::decoder::{Decoded, Decoder, End};
use crate::modules::fastcgi::SETTINGS;
use crate::modules::proxy::NextUpstream;
use crate::upstream::exchange::READ;
use crate::upstream::fault::{Fault, READING};
use forebay_conf::error::Level;
use forebay_core::upstream::conn::Conn;
use forebay_http::cgi;
use forebay_http::fastcgi::{RecordPart, Records};
use forebay_http::h1::request::Status;
use forebay_http::request::Framing;
use forebay_server::request::Request;
use forebay_server::request::rare::Unused;
use forebay_server::request::states::Slot;
use rustix::io::Errno;

/// Longest piece of a record of errors that becomes one line of the error log, bytes.
const LONGEST_LINE: usize = 1900;

/// State of the response under way.
#[derive(Debug, Default)]
pub struct Link {
    records: Records,
    /// Text for the error log, until its record is complete.
    stderr: Vec<u8>,
    /// `true` if bytes came after the end.
    extra: bool,
}

/// State of the requests whose upstream is a FastCGI server.
pub static LINK: Slot<Link> = Slot::new();

impl Unused for Link {
    const UNUSED: &'static Link = &Link { records: Records::NEW, stderr: Vec::new(), extra: false };

    fn clear(&mut self) {
        self.records = Records::default();
        self.stderr.clear();
        self.extra = false;
    }
}

impl Link {
    /// Takes text for the error log. Returns `true` if it is a complete line now.
    fn push_stderr(&mut self, words: &[u8], last: bool) -> bool {
        self.stderr.extend_from_slice(words);
        last || self.stderr.len() >= LONGEST_LINE
    }

    /// Returns `true` if the end of the response has come.
    pub fn is_over(&self) -> bool {
        self.records.is_over()
    }

    /// Returns `true` if the connection may serve another request.
    pub fn is_reusable(&self) -> bool {
        self.is_over() && !self.extra
    }
}

/// Decodes the content of a response.
pub(super) fn decode(c: &mut Decoder, req: &mut Request, input: &[u8], out: &mut Vec<u8>) -> Decoded {
    let before = out.len();
    out.append(&mut req.modules.upstream.early);
    if let Err(text) = take(req, input, out) {
        out.truncate(before);
        return Decoded::failed(0, &text);
    }
    let mut got = out.len() - before;
    match c.framing {
        Framing::None => {
            out.truncate(before);
            got = 0;
        }
        Framing::Length(_) => got = c.cut(req, out, got),
        _ => {}
    }
    let link = LINK.of(req);
    let over = link.is_over();
    if over && got == 0 && c.to_head {
        c.left = 0;
    }
    c.to_head &= got == 0;
    if over && c.left > 0 {
        // As in nginx, the content that has come is passed on first.
        let text = "upstream prematurely closed FastCGI stdout while reading upstream";
        return Decoded { end: End::FailedAfter(text), ..Decoded::content(got, false) };
    }
    c.reusable &= !over || link.is_reusable();
    if !over && c.framing == Framing::None {
        c.reusable = false;
        return Decoded::content(0, true);
    }
    Decoded::content(got, over)
}

/// Takes received bytes of the body. Appends output of the program to `out`, and logs its errors.
///
/// # Errors
/// The text for the log if the server does not speak FastCGI.
fn take(req: &mut Request, raw: &[u8], out: &mut Vec<u8>) -> Result<(), String> {
    let mut rest = raw;
    loop {
        let link = LINK.of_mut(req);
        let took = match link.records.next(rest) {
            Ok(RecordPart::Stdout { start, end }) => {
                out.extend_from_slice(rest.get(start..end).unwrap_or_default());
                end
            }
            Ok(RecordPart::Stderr { start, end, last }) => {
                if link.push_stderr(rest.get(start..end).unwrap_or_default(), last) {
                    log_stderr(req, "while reading upstream");
                }
                end
            }
            Ok(RecordPart::More) => return Ok(()),
            Ok(RecordPart::End { consumed }) => {
                LINK.of_mut(req).extra |= consumed < rest.len();
                return Ok(());
            }
            Err(bad) => return Err(format!("upstream {bad} while reading upstream")),
        };
        rest = rest.get(took..).unwrap_or_default();
    }
}

/// Reads the part of a head that has come out of its records.
pub(super) fn read_head(req: &mut Request, conn: &Conn, limit: usize) -> Result<Result<usize, Errno>, Fault> {
    let mut raw = req.thread.io.large.take();
    let got = conn.read(&mut raw, READ);
    // Content comes with the head.
    req.borrow_head(raw.len());
    let took = if got.is_ok() { take_head(req, &raw, limit) } else { Ok(()) };
    req.give_buf(raw);
    took.map(|()| got)
}

/// Takes bytes that have been received before the head was complete. Content after the head stays in its buffer. `limit`:
/// longest head, bytes.
fn take_head(req: &mut Request, raw: &[u8], limit: usize) -> Result<(), Fault> {
    let mut rest = raw;
    loop {
        let took = match LINK.of_mut(req).records.next(rest) {
            Ok(RecordPart::Stdout { start, end }) => {
                req.modules.upstream.head.buf.extend_from_slice(rest.get(start..end).unwrap_or_default());
                end
            }
            Ok(RecordPart::Stderr { start, end, last }) => {
                if LINK.of_mut(req).push_stderr(rest.get(start..end).unwrap_or_default(), last) {
                    let over =
                        matches!(cgi::parse(&mut req.modules.upstream.head, limit), Ok(Status::Complete));
                    if log_stderr(req, if over { "while reading upstream" } else { READING }) && !over {
                        return Err(Fault::new(NextUpstream::InvalidHeader, 502));
                    }
                }
                end
            }
            Ok(RecordPart::More) => return Ok(()),
            Ok(RecordPart::End { consumed }) => {
                LINK.of_mut(req).extra |= consumed < rest.len();
                return Ok(());
            }
            Err(bad) => {
                req.log(Level::Error, &format!("upstream {bad} {READING}"));
                return Err(Fault::new(NextUpstream::InvalidHeader, 502));
            }
        };
        rest = rest.get(took..).unwrap_or_default();
    }
}

/// Logs the program's errors. Returns `true` if they have a text that makes the response a failure (nginx:
/// fastcgi_catch_stderr).
fn log_stderr(req: &mut Request, doing: &str) -> bool {
    let mut stderr = std::mem::take(&mut LINK.of_mut(req).stderr);
    let mut text = stderr.as_slice();
    while let [rest @ .., b'\r' | b'\n' | b' ' | b'.'] = text {
        text = rest;
    }
    for line in text.chunks(LONGEST_LINE) {
        req.log_with(Level::Error, |out| {
            out.extend_from_slice(b"FastCGI sent in stderr: \"");
            for b in line {
                match b {
                    // As in nginx, a stack trace of PHP keeps its lines.
                    b'\n' | b'\t' | b' '..=b'~' | 0x80.. => out.push(*b),
                    _ => out.extend_from_slice(format!("\\x{b:02x}").as_bytes()),
                }
            }
            out.extend_from_slice(b"\" ");
            out.extend_from_slice(doing.as_bytes());
        });
    }
    let http = req.http();
    let caught = SETTINGS.of(&http.location(req).settings).catch_stderr.is_in(&stderr);
    stderr.clear();
    LINK.of_mut(req).stderr = stderr;
    caught
}

/// Checks that a head that is not complete can still become so.
pub(super) fn may_go_on(req: &mut Request) -> Result<(), Fault> {
    let records = &LINK.of(req).records;
    let text = match (records.is_closed(), records.is_over()) {
        (false, false) => return Ok(()),
        (true, _) => "upstream prematurely closed FastCGI stdout",
        (false, true) => "upstream sent unexpected FastCGI record: 3",
    };
    req.log(Level::Error, &format!("{text} {READING}"));
    Err(Fault::new(NextUpstream::InvalidHeader, 502))
}
