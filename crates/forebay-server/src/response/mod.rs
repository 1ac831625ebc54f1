//! The one response of every HTTP version: status, fields, body. Reused from request to request. Hot path.
//!
//! Values with CR, LF or NUL are refused. The lines of a parsed head are not searched for them again, since the parsers accept none
//! (`FieldList::copy`).

pub mod coding;
pub mod fields;
pub mod head;
pub mod made;
pub mod origin;
pub mod respond;
pub mod sent;
pub mod sent_heads;
pub mod server_fields;
pub mod stored;
pub mod streamed;

use crate::body::Further;
use crate::file_cache::OpenFile;
use crate::module::LateFilter;
use crate::request::Request;
use crate::request::rare::Rare;
use bytes::Bytes;
use coding::{Coded, Form};
use forebay_http::field::{self, FieldLine, Unsafe};
use forebay_http::h1::response;
use origin::{AllowedRanges, Origin};
use server_fields::ServerFields;
use std::borrow::Cow;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

/// Field lines in one buffer.
#[derive(Debug, Default)]
pub struct FieldList {
    /// Lines as HTTP/1 has them, so that neighbours are sent with one copy.
    buf: Vec<u8>,
    lines: Vec<ListedLine>,
}

/// Offsets of a line in the buffer of its list.
#[derive(Clone, Copy, Debug)]
struct ListedLine {
    /// First byte of the name.
    name: u32,
    /// First byte of the value, two bytes after the name.
    value: u32,
    /// After the last byte of the value, two bytes before the end of the line.
    end: u32,
    /// Origin of the value.
    origin: ValueOrigin,
}

/// Origin of a field's value, which decides whether it is searched for line breaks before it is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueOrigin {
    /// A head that a parser has read and found without CR, LF and NUL in values.
    Parsed,
    /// Anything else: the configuration, variables, values that were rewritten.
    Made,
}

impl ListedLine {
    fn name(self, buf: &[u8]) -> &[u8] {
        &buf[self.name as usize..self.value as usize - 2]
    }

    fn value(self, buf: &[u8]) -> &[u8] {
        &buf[self.value as usize..self.end as usize]
    }
}

impl FieldList {
    /// List without lines.
    pub const NONE: FieldList = FieldList { buf: Vec::new(), lines: Vec::new() };

    /// Appends a line.
    pub fn push(&mut self, name: &[u8], value: &[u8]) {
        let start = self.buf.len();
        for piece in [name, b": ", value, b"\r\n"] {
            self.buf.extend_from_slice(piece);
        }
        self.list(start, name.len(), ValueOrigin::Made);
    }

    /// Appends a line of a head that a parser has read into `buf`, with its value unchanged.
    pub fn copy(&mut self, buf: &[u8], line: &FieldLine) {
        let start = self.buf.len();
        response::copied_field(&mut self.buf, buf, line);
        self.list(start, line.name.len(), ValueOrigin::Parsed);
    }

    /// Lists the line that begins at `start` and ends the buffer.
    #[inline]
    fn list(&mut self, start: usize, name_len: usize, origin: ValueOrigin) {
        // The casts keep all bits: a head is far below 4 GiB.
        let (value, end) = ((start + name_len + 2) as u32, (self.buf.len() - 2) as u32);
        self.lines.push(ListedLine { name: start as u32, value, end, origin });
    }

    /// Makes each value one line.
    ///
    /// # Errors
    /// Errors of [`field::one_line`], with the name of the first such line.
    pub fn unfold(&mut self) -> Result<(), Unsafe> {
        for at in 0..self.lines.len() {
            // The parser has accepted no line breaks in parsed values, so only the others are searched.
            let Some(line) = self.lines.get(at).filter(|l| l.origin == ValueOrigin::Made) else { continue };
            if let Cow::Owned(value) = field::one_line(line.name(&self.buf), line.value(&self.buf))? {
                self.replace_at(at, &value);
            }
        }
        Ok(())
    }

    /// Appends the lines to a head of HTTP/1. The caller has unfolded them.
    pub fn write_lines(&self, out: &mut Vec<u8>) {
        // Lines that are adjacent in the buffer are copied together. All lines are adjacent unless one was removed or replaced.
        let (mut from, mut to) = (0, 0);
        for line in &self.lines {
            if line.name != to {
                out.extend_from_slice(&self.buf[from as usize..to as usize]);
                from = line.name;
            }
            to = line.end + 2;
        }
        out.extend_from_slice(&self.buf[from as usize..to as usize]);
    }

    /// Returns the lines as name and value, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.lines.iter().map(|l| (l.name(&self.buf), l.value(&self.buf)))
    }

    /// Returns the first value with this name, compared without regard to case.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        // Comparing the lengths first leaves out almost all lines without reading their names.
        let mut same_length = self.lines.iter().filter(|l| (l.value - l.name) as usize == name.len() + 2);
        let line = same_length.find(|l| l.name(&self.buf).eq_ignore_ascii_case(name))?;
        Some(line.value(&self.buf))
    }

    /// Returns all values with this name.
    pub fn all<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + 'a {
        self.iter().filter(move |(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v)
    }

    /// Removes all lines with this name.
    pub fn remove(&mut self, name: &[u8]) {
        let buf = &self.buf;
        // The bytes of the lines stay in the buffer. Only the list loses them.
        self.lines.retain(|l| !l.name(buf).eq_ignore_ascii_case(name));
    }

    /// Removes all lines whose name fulfils a condition.
    pub fn remove_named(&mut self, named: impl Fn(&[u8]) -> bool) {
        let buf = &self.buf;
        self.lines.retain(|l| !named(l.name(buf)));
    }

    /// Replaces all lines with this name by one.
    pub fn set(&mut self, name: &[u8], value: &[u8]) {
        self.remove(name);
        self.push(name, value);
    }

    /// Gives the first line with this name another value; it stays where it is.
    pub fn replace(&mut self, name: &[u8], value: &[u8]) {
        let buf = &self.buf;
        if let Some(at) = self.lines.iter().position(|l| l.name(buf).eq_ignore_ascii_case(name)) {
            self.replace_at(at, value);
        }
    }

    /// Gives the line with this index another value.
    fn replace_at(&mut self, at: usize, value: &[u8]) {
        let Some(line) = self.lines.get_mut(at) else { return };
        // The new value goes to the end of the buffer and the old one stays there unused, so that the offsets of the other lines do not
        // change.
        let old = std::mem::replace(&mut line.name, self.buf.len() as u32);
        let length = line.value - old;
        line.value = line.name + length;
        line.end = line.value + value.len() as u32;
        line.origin = ValueOrigin::Made;
        // The copy has the name with its colon and space.
        self.buf.extend_from_within(old as usize..(old + length) as usize);
        self.buf.extend_from_slice(value);
        self.buf.extend_from_slice(b"\r\n");
    }

    /// Forgets all lines, keeps the memory.
    pub fn clear(&mut self) {
        self.buf.clear();
        self.lines.clear();
    }

    /// Returns `true` if there are no lines.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }
}

/// A piece of a body.
#[derive(Debug, Clone)]
pub enum Part {
    /// Text that is part of the program.
    Static(&'static [u8]),
    /// Bytes made for this response.
    Bytes(Bytes),
    /// Bytes `start..end` of [`Response::text`].
    Text {
        /// First byte.
        start: u32,
        /// After the last byte.
        end: u32,
    },
    /// Bytes `start..end` of a file, from memory if the cache holds it.
    File {
        /// The file.
        file: Rc<OpenFile>,
        /// First byte.
        start: u64,
        /// After the last byte.
        end: u64,
    },
}

impl Part {
    /// Returns the length in bytes.
    pub fn len(&self) -> u64 {
        match self {
            Part::Static(b) => b.len() as u64,
            Part::Bytes(b) => b.len() as u64,
            Part::Text { start, end } => u64::from(end - start),
            Part::File { start, end, .. } => end - start,
        }
    }

    /// Returns `true` if the part has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the bytes `from..to` of this part as a part.
    pub fn slice(&self, from: u64, to: u64) -> Part {
        match self {
            Part::Static(b) => Part::Static(b.get(from as usize..to as usize).unwrap_or_default()),
            Part::Bytes(b) => {
                // `Bytes::slice` panics on a range outside of the content.
                let len = b.len();
                Part::Bytes(b.slice((from as usize).min(len)..(to as usize).min(len)))
            }
            Part::Text { start, end } => {
                let at = |n: u64| (u64::from(*start) + n).min(u64::from(*end)) as u32;
                Part::Text { start: at(from), end: at(to) }
            }
            Part::File { file, start, end } => Part::File {
                file: file.clone(),
                start: (start + from).min(*end),
                end: (start + to).min(*end),
            },
        }
    }
}

/// Bytes of a content that are sent, for a range of which not all is at hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// Number of bytes to leave out first.
    pub skip: u64,
    /// Number of bytes to send after them.
    pub left: u64,
}

impl Default for Window {
    /// Everything.
    fn default() -> Window {
        Window { skip: 0, left: u64::MAX }
    }
}

impl Window {
    /// Removes the bytes from `start` on that are outside of the window, and counts the bytes inside.
    #[inline]
    pub fn cut(&mut self, out: &mut Vec<u8>, start: usize) {
        // Nearly all responses are sent whole, and need not count.
        if *self == Window::default() {
            return;
        }
        let skipped = self.skip.min((out.len() - start) as u64);
        out.drain(start..start + skipped as usize);
        self.skip -= skipped;
        let n = self.left.min((out.len() - start) as u64);
        out.truncate(start + n as usize);
        self.took(n);
    }

    /// Counts bytes that have been taken.
    #[inline]
    pub fn took(&mut self, n: u64) {
        // The greatest number stands for everything, so it stays as it is.
        if self.left != u64::MAX {
            self.left -= n;
        }
    }
}

/// Failure of a filter, as text for the error log. The connection is closed, so that the client does not take what was
/// sent for the whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterError(pub &'static str);

/// Filter of content on its way out. It gets files in pieces of at most 32 KiB.
pub trait BodyFilter {
    /// Filters a piece. `last` means that nothing follows. Appends the output that is ready to `out`.
    ///
    /// # Errors
    /// [`FilterError`].
    fn feed(&mut self, input: &[u8], last: bool, out: &mut Vec<u8>) -> Result<(), FilterError>;

    /// Appends the output that was held back, since nothing follows for a while.
    ///
    /// # Errors
    /// [`FilterError`].
    fn flush(&mut self, _out: &mut Vec<u8>) -> Result<(), FilterError> {
        Ok(())
    }

    /// Returns the numbers of bytes taken and put out, if the filter counts them (`$gzip_ratio`).
    fn lengths(&self) -> Option<(u64, u64)> {
        None
    }

    /// Returns `true` if a short piece may become a very long one, so that the filter gets little at a time.
    fn expands(&self) -> bool {
        false
    }
}

/// Splits a value into type and charset, but only if the two give the same value again, byte for byte.
fn split_charset(value: &[u8]) -> Option<(&[u8], &[u8])> {
    let (kind, parameter) = value.split_at(memchr::memchr(b';', value)?);
    let charset = parameter.strip_prefix(b"; charset=")?;
    (!charset.iter().any(|b| matches!(b, b';' | b'"'))).then_some((kind, charset))
}

/// Content that is fetched in segments, one request to an upstream after the other (nginx: slice). The first one is the source of the
/// response.
pub trait Segments {
    /// Limits the response to the bytes `start..end` of the whole content. Returns the offset of the first byte that is fetched.
    fn cut(&self, req: &mut Request, start: u64, end: u64) -> u64;

    /// Returns `true` if another segment follows the one that has been sent.
    fn wants_more(&self, req: &Request) -> bool;

    /// Fetches the next segment. Logs an error and returns `None` if that fails or the segment is of another version.
    fn next<'r>(&self, req: &'r mut Request) -> Pin<Box<dyn Future<Output = Option<Further>> + 'r>>;
}

/// A response under construction.
#[derive(Default)]
pub struct Response {
    /// Status code.
    pub status: u16,
    /// `Content-Type` without the charset parameter; empty if none.
    pub content_type: Vec<u8>,
    /// Charset after the type, if any.
    pub charset: Vec<u8>,
    /// Charset that an upstream wants, whatever the type says; `off`: as it is.
    pub override_charset: Rare<Vec<u8>>,
    /// `Content-Length`; `None` sends the body chunked or until close.
    pub content_length: Option<u64>,
    /// Validators of the content.
    pub validators: Validators,
    /// `Location`, empty if none. Made absolute when the head is written.
    pub location: Vec<u8>,
    /// All other fields.
    pub fields: FieldList,
    /// Fields of [`Response::fields`] that came with an `X-Accel-Redirect`. They stay, whichever location answers.
    pub handed_on: Rare<FieldList>,
    /// Trailer fields.
    pub trailers: Rare<FieldList>,
    /// Body.
    pub body: Vec<Part>,
    /// Bytes made for the body, reused from request to request.
    pub text: Vec<u8>,
    /// Rest of an upstream's response, which follows the parts.
    pub source: Option<streamed::Body>,
    /// The content comes in segments.
    pub segments: Option<&'static dyn Segments>,
    /// Bytes of parts and source that are sent.
    pub window: Window,
    /// Origin of the response.
    pub origin: Origin,
    /// The head is the one that was sent last for the file or entry; nothing but status and body is filled in.
    pub ready: Option<Rc<sent_heads::SentHead>>,
    /// Parts of the body in addition to its own content.
    pub join: Option<Box<crate::body::compose::Join>>,
    /// Filters that header filters have added.
    pub filters: Filters,
    /// Content coding.
    pub coded: Coded,
    /// Ranges that a request may ask for.
    pub allowed_ranges: AllowedRanges,
    /// Head only: HEAD requests, 204, 304.
    pub head_only: bool,
    /// Fields that the server adds.
    pub server_fields: ServerFields,
    /// `$limit_rate` at work, bytes/s; 0 = none.
    pub limit_rate: u64,
    /// Status line of an upstream, reason phrase included; empty: the standard one.
    pub reason: Vec<u8>,
}

/// Validators of content (RFC 9110, section 8.8) that the server has made.
#[derive(Debug, Default)]
pub struct Validators {
    /// `Last-Modified`, Unix seconds.
    pub last_modified: Option<i64>,
    /// `ETag` with its quotes; empty if none.
    pub etag: Vec<u8>,
}

impl Validators {
    fn clear(&mut self) {
        let Validators { last_modified, etag } = self;
        *last_modified = None;
        etag.clear();
    }
}

/// Filters that header filters have added to a response.
#[derive(Default)]
pub struct Filters {
    /// Filters of the body, in order.
    pub body: Vec<Box<dyn BodyFilter>>,
    /// Filter that waits. It runs once, after all header filters.
    pub late: Option<LateFilter>,
}

impl Filters {
    /// Forgets all of them.
    pub fn clear(&mut self) {
        let Filters { body, late } = self;
        body.clear();
        *late = None;
    }
}

impl Response {
    /// Sets `Content-Type`. Splits a charset off the type, so that the charset filter sees it.
    pub fn set_content_type(&mut self, value: &[u8]) {
        let (kind, charset) = split_charset(value).unwrap_or((value, b""));
        self.content_type.clear();
        self.content_type.extend_from_slice(kind);
        self.charset.clear();
        self.charset.extend_from_slice(charset);
    }

    /// Returns `true` if its type is sent, where there is one. As in nginx, a 204 has one only over HTTP/1, where its status line is an
    /// upstream's. `multiplexed`: it goes over HTTP/2 or HTTP/3.
    pub fn has_type(&self, multiplexed: bool) -> bool {
        self.status != 204 || !(self.reason.is_empty() || multiplexed)
    }

    /// Empties it for the next request; memory is kept.
    pub fn clear(&mut self) {
        // Every field is named, so that a new field cannot be left out.
        let Response {
            status,
            content_type,
            charset,
            override_charset,
            content_length,
            validators,
            location,
            fields,
            handed_on,
            trailers,
            body,
            text,
            source,
            segments,
            window,
            origin,
            ready,
            join,
            filters,
            coded,
            allowed_ranges,
            head_only,
            server_fields,
            limit_rate,
            reason,
        } = self;
        *status = 0;
        content_type.clear();
        charset.clear();
        override_charset.clear();
        *content_length = None;
        validators.clear();
        location.clear();
        fields.clear();
        handed_on.clear();
        trailers.clear();
        body.clear();
        text.clear();
        *source = None;
        *segments = None;
        *window = Window::default();
        *origin = Origin::Own;
        *ready = None;
        *join = None;
        filters.clear();
        *coded = Coded::default();
        *allowed_ranges = AllowedRanges::None;
        *head_only = false;
        *server_fields = ServerFields::default();
        *limit_rate = 0;
        reason.clear();
    }

    /// Returns the time of the last modification, Unix seconds, wherever the response has it.
    pub fn modified(&self) -> Option<i64> {
        self.validators
            .last_modified
            .or_else(|| forebay_http::date::parse(self.fields.get(b"Last-Modified")?))
    }

    /// Returns `ETag`, wherever the response has it.
    pub fn etag(&self) -> Option<&[u8]> {
        match self.validators.etag.as_slice() {
            b"" => self.fields.get(b"ETag"),
            own => Some(own),
        }
    }

    /// Removes `Last-Modified`, wherever the response has it.
    pub fn clear_last_modified(&mut self) {
        self.validators.last_modified = None;
        self.fields.remove(b"Last-Modified");
    }

    /// Removes `ETag`, wherever the response has it.
    pub fn clear_etag(&mut self) {
        self.validators.etag.clear();
        self.fields.remove(b"ETag");
    }

    /// Removes both validators, because the content has been changed since it came from a file or an upstream.
    pub fn clear_validators(&mut self) {
        self.clear_last_modified();
        self.clear_etag();
    }

    /// Has the response sent whole.
    pub fn forbid_ranges(&mut self) {
        self.allowed_ranges = AllowedRanges::None;
    }

    /// Returns `true` if trailers follow the content, or may follow it.
    #[inline]
    pub fn has_trailers(&self) -> bool {
        self.server_fields.trailers || !self.trailers.is_empty()
    }

    /// Sets a body made for this response, and its length.
    pub fn set_body(&mut self, b: impl Into<Bytes>) {
        let b = b.into();
        self.body.clear();
        self.content_length = Some(b.len() as u64);
        if !b.is_empty() {
            self.body.push(Part::Bytes(b));
        }
    }

    /// Makes what has been written to [`Response::text`] the body, and sets its length.
    pub fn body_from_text(&mut self) {
        let end = u32::try_from(self.text.len()).unwrap_or(u32::MAX);
        self.body.clear();
        self.content_length = Some(u64::from(end));
        if end > 0 {
            self.body.push(Part::Text { start: 0, end });
        }
    }

    /// Replaces the body, whose length was `from` bytes, by a compressed form.
    pub fn use_form(&mut self, form: Arc<Form>, from: u64) {
        let len = form.bytes.len() as u64;
        self.content_length = Some(len);
        self.body.clear();
        self.body.push(Part::Bytes(form.bytes.clone()));
        self.coded = Coded { coding: Some(form.key.coding), lengths: Some((from, len)), form: Some(form) };
    }

    /// Returns the length of the body's parts.
    pub fn body_len(&self) -> u64 {
        self.body.iter().map(Part::len).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::FieldList;
    use forebay_http::h1::client::{self, ResponseHead};

    fn written(list: &FieldList) -> String {
        let mut out = Vec::new();
        list.write_lines(&mut out);
        String::from_utf8(out).expect("ASCII only")
    }

    #[test]
    fn lines_are_written_in_order_after_changes() {
        let mut list = FieldList::default();
        assert_eq!(written(&list), "");
        for (name, value) in [("A", "1"), ("B", "2"), ("C", "3"), ("b", "4"), ("D", "")] {
            list.push(name.as_bytes(), value.as_bytes());
        }
        assert_eq!(written(&list), "A: 1\r\nB: 2\r\nC: 3\r\nb: 4\r\nD: \r\n");
        list.replace(b"b", b"two");
        list.replace(b"none", b"x");
        assert_eq!(written(&list), "A: 1\r\nB: two\r\nC: 3\r\nb: 4\r\nD: \r\n");
        assert_eq!(list.get(b"B"), Some(&b"two"[..]));
        assert_eq!(list.all(b"B").collect::<Vec<_>>(), [b"two".as_slice(), b"4"]);
        list.set(b"A", b"one");
        assert_eq!(written(&list), "B: two\r\nC: 3\r\nb: 4\r\nD: \r\nA: one\r\n");
        list.remove(b"B");
        assert_eq!(written(&list), "C: 3\r\nD: \r\nA: one\r\n");
        list.clear();
        assert!(list.is_empty() && written(&list).is_empty());
    }

    #[test]
    fn values_become_one_line_unless_a_parser_has_read_them() {
        let mut head = ResponseHead::default();
        head.buf = b"HTTP/1.1 200 OK\r\nA:  b\r\nC: d\r\n\r\n".to_vec();
        client::parse(&mut head, usize::MAX).expect("sound");
        let mut list = FieldList::default();
        head.fields.iter().for_each(|line| list.copy(&head.buf, line));
        assert_eq!(list.unfold(), Ok(()));
        assert_eq!(written(&list), "A: b\r\nC: d\r\n");
        list.push(b"F", b"f \r\n\t\n f");
        list.push(b"G", b"g");
        assert_eq!(list.unfold(), Ok(()));
        assert_eq!(written(&list), "A: b\r\nC: d\r\nF: f f\r\nG: g\r\n");
        list.replace(b"C", b"d\r\nE: f");
        assert_eq!(list.unfold().expect_err("has a line break").name, b"C");
        list.set(b"C", b"d");
        list.set(b"G", b"\0");
        assert_eq!(list.unfold().expect_err("has NUL").name, b"G");
    }
}
