//! Responses of FastCGI servers (nginx: ngx_http_fastcgi_module). The parsers are in forebay-http, `fastcgi.rs` and `cgi.rs`.
//! Hot path.

use super::decoder::{Content, Decoded, End, Input};
use super::facts::{Facts, Reasons};
use super::{Asked, Came, Speak, Written, cgi};
use crate::modules::fastcgi::{SETTINGS, write_params};
use crate::modules::proxy::NextUpstream;
use crate::upstream::exchange::{Outgoing, READ};
use crate::upstream::fault::{self, Fault, READING};
use forebay_conf::error::Level;
use forebay_core::upstream::conn::Conn;
use forebay_http::fastcgi::{self, RecordPart, Records};
use forebay_http::h1::client::ResponseHead;
use forebay_http::h1::request::Status;
use forebay_http::request::Framing;
use forebay_server::request::Request;
use forebay_server::request::rare::Unused;
use forebay_server::request::states::Slot;
use forebay_server::request::upstream::Upstreamed;
use rustix::io::Errno;

/// Longest piece of a record of errors that becomes one line of the error log, bytes.
const LONGEST_LINE: usize = 1900;

/// FastCGI (`fastcgi_pass`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FastCgi {
    /// `true` if the request was HEAD and no content has come.
    to_head: bool,
}

impl FastCgi {
    /// Codec before the first response.
    pub const NEW: FastCgi = FastCgi { to_head: false };
}

static FACTS: Facts = Facts {
    prefix: "fastcgi_",
    scheme: b"fastcgi://",
    // The letters "fcgi", so that an idle connection is never used by another protocol.
    made_for: 0x6663_6769_0000_0000,
    ends_apart: true,
    marks_end: true,
    reasons: Reasons::Optional,
    hides: b"Status",
    ..Facts::NONE
};

impl Speak for FastCgi {
    fn facts(&self) -> &'static Facts {
        &FACTS
    }

    fn can_stream(&self, _framing: Framing) -> bool {
        true
    }

    fn write_request(&self, req: &mut Request, asked: &Asked<'_>, out: &mut Vec<u8>) -> Written {
        let is_bare = matches!(asked.body, Outgoing::None);
        write_params(req, asked.settings, asked.stored, is_bare, out)?;
        Ok(false)
    }

    fn push_content(&self, content: &[u8], out: &mut Vec<u8>) {
        fastcgi::stdin(out, content);
    }

    fn push_file_piece(&self, left: u64, out: &mut Vec<u8>) -> u64 {
        let len = left.min(fastcgi::MAX_CONTENT as u64);
        fastcgi::stdin_header(out, len as usize);
        len
    }

    fn push_end(&self, out: &mut Vec<u8>) {
        fastcgi::stdin_end(out);
    }

    fn sends_plain(&self) -> bool {
        false
    }

    fn begin(&self, req: &mut Request) {
        cgi::begin(req);
        LINK.clear(req);
    }

    fn read_head(&self, req: &mut Request, conn: &Conn, limit: usize) -> Result<Result<usize, Errno>, Fault> {
        let mut raw = req.thread.io.large.take();
        let got = conn.read(&mut raw, READ);
        // Records of content may come together with the records of the head, so the buffer needs room for all of them.
        req.borrow_head(raw.len());
        let took = if got.is_ok() { take_head(req, &raw, limit) } else { Ok(()) };
        req.give_buf(raw);
        took.map(|()| got)
    }

    fn parse_head(&self, req: &mut Request, limit: usize, _headless: bool) -> Result<Came, Fault> {
        let came = cgi::parse_head(req, limit)?;
        match came {
            Came::All => keep_content(req),
            _ => may_go_on(req)?,
        }
        Ok(came)
    }

    fn keeps_alive(&self, req: &Request) -> bool {
        SETTINGS.of(&req.own_location().settings).keep_conn
    }

    fn framing_of_response(&self, head: &ResponseHead, to_head: bool, stored: bool) -> Framing {
        cgi::framing_of_response(head, to_head, stored)
    }

    fn begin_content(&mut self, to_head: bool) {
        self.to_head = to_head;
    }

    fn decode(&mut self, c: &mut Content, req: &mut Request, input: Input<'_>, out: &mut Vec<u8>) -> Decoded {
        let before = out.len();
        out.append(&mut req.modules.upstream.early);
        if let Err(text) = take(req, input.bytes, out) {
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
        if over && got == 0 && self.to_head {
            // A program may announce a length in answer to HEAD and send nothing, which is no failure.
            c.left = 0;
        }
        self.to_head &= got == 0;
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

    fn ends_with_connection(&self, c: &Content) -> bool {
        // As in nginx, without a length the end of the connection is the end of the response as well.
        c.left == 0 || self.to_head
    }
}

/// State of the response under way.
#[derive(Debug, Default)]
struct Link {
    records: Records,
    /// Text for the error log, until its record is complete.
    stderr: Vec<u8>,
    /// `true` if bytes came after the end.
    extra: bool,
}

/// State of the requests whose upstream is a FastCGI server.
static LINK: Slot<Link> = Slot::new();

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
    fn is_over(&self) -> bool {
        self.records.is_over()
    }

    /// Returns `true` if the connection may serve another request.
    fn is_reusable(&self) -> bool {
        self.is_over() && !self.extra
    }
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
                    // Only while the head is incomplete can another server be asked, so later texts are logged and do no
                    // more.
                    let over = matches!(
                        forebay_http::cgi::parse(&mut req.modules.upstream.head, limit),
                        Ok(Status::Complete)
                    );
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
                fault::log(req, Level::Error, &format!("upstream {bad} {READING}"));
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

/// Takes the content after a complete head, which has been taken out of its records already, out of the buffer of the head.
fn keep_content(req: &mut Request) {
    let Upstreamed { head, early, .. } = &mut req.modules.upstream;
    // Without content after the head no buffer is needed, so it is taken only here.
    if early.capacity() == 0 {
        *early = req.thread.buffers.take();
    }
    early.extend_from_slice(head.buf.get(head.len..).unwrap_or_default());
    head.buf.truncate(head.len);
}

/// Checks that the rest of an incomplete head can still come.
fn may_go_on(req: &mut Request) -> Result<(), Fault> {
    let records = &LINK.of(req).records;
    let text = match (records.is_closed(), records.is_over()) {
        (false, false) => return Ok(()),
        (true, _) => "upstream prematurely closed FastCGI stdout",
        (false, true) => "upstream sent unexpected FastCGI record: 3",
    };
    fault::log(req, Level::Error, &format!("{text} {READING}"));
    Err(Fault::new(NextUpstream::InvalidHeader, 502))
}
