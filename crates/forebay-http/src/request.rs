//! The one request head of every HTTP version (RFC 9110, section 3.9; RFC 9112, section 3).
//! Hot path.

use crate::field::{FieldLine, Name, Slice};
use crate::h1::fields::Scan;
use crate::h1::line::Line;
use crate::host::{self, InvalidHost};

/// HTTP version of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
#[allow(missing_docs)]
pub enum Version {
    Http09,
    Http10,
    #[default]
    Http11,
    Http2,
    Http3,
}

impl Version {
    /// Returns the value of `$server_protocol`. It is empty for an HTTP/0.9 request.
    pub fn as_str(self) -> &'static str {
        match self {
            Version::Http09 => "HTTP/0.9",
            Version::Http10 => "HTTP/1.0",
            Version::Http11 => "HTTP/1.1",
            Version::Http2 => "HTTP/2.0",
            Version::Http3 => "HTTP/3.0",
        }
    }

    /// Returns `true` if a connection carries several requests at a time, each on a stream.
    pub fn is_multiplexed(self) -> bool {
        self >= Version::Http2
    }
}

/// Request method (RFC 9110, section 9; RFC 4918 and others for the rest that nginx names).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[allow(missing_docs)]
pub enum Method {
    #[default]
    Get,
    Head,
    Post,
    Put,
    Delete,
    Mkcol,
    Copy,
    Move,
    Options,
    Propfind,
    Proppatch,
    Lock,
    Unlock,
    Patch,
    Trace,
    Connect,
    /// Anything else that is made of the characters nginx allows in a method.
    Other,
}

/// Framing of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Framing {
    /// No body.
    #[default]
    None,
    /// `Content-Length`, in bytes.
    Length(u64),
    /// `Transfer-Encoding: chunked`.
    Chunked,
    /// Ends with the stream (HTTP/2 and later, without a length).
    Stream,
}

/// Places of the first lines of known names among the lines of a head. One byte each: every request under way has two of these.
#[derive(Clone, Debug)]
pub struct FirstLines([u8; Name::COUNT]);

/// Entry of a name whose first line has this index less 1, or a higher one. Heads rarely have so many lines.
const FAR: u8 = u8::MAX;

impl Default for FirstLines {
    fn default() -> Self {
        FirstLines([0; Name::COUNT])
    }
}

impl FirstLines {
    /// Finds the places again after lines have moved.
    pub(crate) fn index(lines: &[FieldLine]) -> FirstLines {
        let mut places = FirstLines::default();
        for (place, line) in lines.iter().enumerate() {
            places.note(line.id, place);
        }
        places
    }

    /// Notes that a line at a place has a name, unless an earlier one has it.
    #[inline]
    pub(crate) fn note(&mut self, name: Name, place: usize) {
        if let Some(first) = self.0.get_mut(name as usize)
            && *first == 0
        {
            *first = u8::try_from(place + 1).unwrap_or(FAR);
        }
    }

    /// Returns `true` if a line has the name.
    #[inline]
    pub fn has(&self, name: Name) -> bool {
        self.0.get(name as usize).is_some_and(|first| *first != 0)
    }

    /// Returns the place of the first line with a name among the lines.
    #[inline]
    pub fn place(&self, name: Name, lines: &[FieldLine]) -> Option<usize> {
        let near = usize::from(FAR) - 1;
        match self.0.get(name as usize).copied().unwrap_or(0) {
            0 => None,
            FAR => Some(near + lines.get(near..)?.iter().position(|line| line.id == name)?),
            first => Some(usize::from(first) - 1),
        }
    }

    /// Returns the first line with a name.
    #[inline]
    pub(crate) fn line(&self, name: Name, lines: &[FieldLine]) -> Option<FieldLine> {
        lines.get(self.place(name, lines)?).copied()
    }
}

/// A request head. All slices point into `buf`; the head is reused from request to request, so that a
/// warm connection allocates nothing.
#[derive(Clone, Debug, Default)]
pub struct RequestHead {
    /// Bytes as received (HTTP/1) or as decoded (HTTP/2). Bytes after `len` belong to the body or to
    /// the next request.
    pub buf: Vec<u8>,
    /// Length of the head in `buf`, empty line included; 0 while it is incomplete.
    pub len: usize,
    /// Method.
    pub method: Method,
    /// The method as written.
    pub method_text: Slice,
    /// The whole request line without its line end (`$request`).
    pub request_line: Slice,
    /// Path and query as the client wrote them (`$request_uri`); `/` if absolute-form had no path.
    pub target: Slice,
    /// Query without the `?` (`$args`), empty if none.
    pub args: Slice,
    /// The target has a `?`.
    pub has_args: bool,
    /// Host of an absolute-form target, without port.
    pub target_host: Option<Slice>,
    /// Decoded and normalised path (`$uri` at first).
    pub path: Vec<u8>,
    /// `path` differs from the undecoded path of the target (nginx: complex or quoted URI).
    pub path_changed: bool,
    /// Version.
    pub version: Version,
    /// Field lines in the order received, trailers excluded.
    pub fields: Vec<FieldLine>,
    /// Places in `fields` of the first lines with known names.
    pub first: FirstLines,
    /// Body framing.
    pub framing: Framing,
    /// The version and `Connection` allow to use the connection again.
    pub keep_alive: bool,
    /// `Host` (or `:authority`, or of the absolute form) validated, lower-cased, without port or final dot.
    pub host: Vec<u8>,
    /// It was an extended CONNECT for a WebSocket (RFC 8441; RFC 9220). A response with a status of success opens a tunnel.
    pub is_websocket: bool,
    /// The client asked for `100 (Continue)`.
    pub expect_continue: bool,
    /// The version as the client wrote it (`$server_protocol`), for instance `HTTP/1.1`; empty in HTTP/0.9.
    pub protocol: Slice,
    /// Port that was written behind the host (`$request_port`).
    pub port: Option<u16>,
    /// Whole lines left out of `fields` because of their names (nginx: ignore_invalid_headers), for the log.
    pub ignored: Vec<Slice>,
    /// State of the HTTP/1 parser.
    pub(crate) scan: Scan,
    /// The part of it that belongs to the request line.
    pub(crate) line: Line,
    pub(crate) room: Room,
    /// The last host that was read. The next request usually has it, too, so it stays when a head is cleared.
    last_host: LastHost,
}

/// Buffers that nginx would have for a head.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Room {
    /// End of the one that it would be filling.
    pub(crate) end: usize,
    /// Large ones that it would have used.
    pub(crate) large_used: usize,
}

/// A host as written, with its parsed form.
#[derive(Clone, Debug, Default)]
struct LastHost {
    text: Vec<u8>,
    host: Vec<u8>,
    port: Option<u16>,
}

impl LastHost {
    /// Longest text that is kept, bytes.
    const LONGEST: usize = 256;
}

impl RequestHead {
    /// Drops the first `consumed` bytes of `buf` (the head, and any of its body) and forgets
    /// everything else, so that the next request on the connection can be parsed. Capacities stay.
    pub fn advance(&mut self, consumed: usize) {
        if consumed >= self.buf.len() {
            self.buf.clear();
        } else {
            self.buf.drain(..consumed);
        }
        self.forget();
    }

    /// Takes `host` and `port` from a host as written.
    pub(crate) fn take_host(&mut self, text: &[u8]) -> Result<(), InvalidHost> {
        let last = &mut self.last_host;
        if text.is_empty() || last.text != text {
            last.text.clear();
            last.port = host::parse(text, &mut last.host)?;
            if text.len() <= LastHost::LONGEST {
                last.text.extend_from_slice(text);
            }
        }
        self.host.clear();
        self.host.extend_from_slice(&last.host);
        self.port = last.port;
        Ok(())
    }

    /// Makes this a new head that keeps the capacities of its buffers.
    pub fn clear(&mut self) {
        self.buf.clear();
        self.forget();
    }

    /// Resets everything but `buf`. Field by field, since a whole new head would be moved in memory.
    fn forget(&mut self) {
        self.len = 0;
        self.method = Method::default();
        self.method_text = Slice::default();
        self.request_line = Slice::default();
        self.target = Slice::default();
        self.args = Slice::default();
        self.has_args = false;
        self.target_host = None;
        self.path.clear();
        self.path_changed = false;
        self.version = Version::default();
        self.fields.clear();
        self.first = FirstLines::default();
        self.framing = Framing::default();
        self.keep_alive = false;
        self.host.clear();
        self.is_websocket = false;
        self.expect_continue = false;
        self.protocol = Slice::default();
        self.port = None;
        self.ignored.clear();
        self.scan = Scan::default();
        self.line = Line::default();
        self.room = Room::default();
    }

    /// Makes this the same head as another one, in the memory that it has.
    pub fn copy(&mut self, other: &RequestHead) {
        // Named one by one, so that none is forgotten.
        let RequestHead {
            buf,
            len,
            method,
            method_text,
            request_line,
            target,
            args,
            has_args,
            target_host,
            path,
            path_changed,
            version,
            fields,
            first,
            framing,
            keep_alive,
            host,
            is_websocket,
            expect_continue,
            protocol,
            port,
            ignored,
            scan,
            line,
            room,
            // Each head has its own.
            last_host: _,
        } = other;
        self.buf.clone_from(buf);
        self.len = *len;
        self.method = *method;
        self.method_text = *method_text;
        self.request_line = *request_line;
        self.target = *target;
        self.args = *args;
        self.has_args = *has_args;
        self.target_host = *target_host;
        self.path.clone_from(path);
        self.path_changed = *path_changed;
        self.version = *version;
        self.fields.clone_from(fields);
        self.first.0.copy_from_slice(&first.0);
        self.framing = *framing;
        self.keep_alive = *keep_alive;
        self.host.clone_from(host);
        self.is_websocket = *is_websocket;
        self.expect_continue = *expect_continue;
        self.protocol = *protocol;
        self.port = *port;
        self.ignored.clone_from(ignored);
        self.scan.clone_from(scan);
        self.line.clone_from(line);
        self.room = *room;
    }

    /// Resets the parser, so that the same bytes can be parsed with other limits.
    pub fn restart(&mut self) {
        self.forget();
    }

    /// Appends a field line whose name and value are already in `buf` and indexes it.
    pub fn push_field(&mut self, name: Slice, value: Slice) -> Name {
        let id = Name::of(name.of(&self.buf));
        self.index_field(FieldLine { id, name, value });
        id
    }

    /// Appends a field line and indexes it.
    #[inline]
    pub(crate) fn index_field(&mut self, line: FieldLine) {
        self.first.note(line.id, self.fields.len());
        self.fields.push(line);
    }

    /// Inserts a field line at the end of the head, in front of what follows the head in `buf`. Returns the number of bytes by
    /// which that moved. The caller has checked name and value.
    pub fn insert_field(&mut self, name: &[u8], value: &[u8]) -> usize {
        let at = self.len;
        self.buf.splice(at..at, name.iter().chain(value).copied());
        self.len += name.len() + value.len();
        // Offsets in a head have 32 bits.
        let (start, middle) = (at as u32, (at + name.len()) as u32);
        self.push_field(Slice { start, end: middle }, Slice { start: middle, end: self.len as u32 });
        name.len() + value.len()
    }

    /// Removes all field lines whose name fulfils a condition. Their bytes stay in `buf`.
    pub fn remove_fields(&mut self, named: impl Fn(&[u8]) -> bool) {
        let buf = &self.buf;
        let before = self.fields.len();
        self.fields.retain(|f| !named(f.name.of(buf)));
        if self.fields.len() == before {
            return;
        }
        self.first = FirstLines::index(&self.fields);
    }

    /// Replaces the host by one as it is written in `Host`; an empty text is none.
    ///
    /// # Errors
    /// [`InvalidHost`]; the host is as before then.
    pub fn replace_host(&mut self, text: &[u8]) -> Result<(), InvalidHost> {
        if text.is_empty() {
            self.host.clear();
            self.port = None;
            return Ok(());
        }
        self.take_host(text)
    }

    /// Returns the value of the first line with this known name.
    #[inline]
    pub fn get(&self, name: Name) -> Option<&[u8]> {
        self.first.line(name, &self.fields).map(|f| f.value.of(&self.buf))
    }

    /// Returns the value of the one line with this known name. `Some(None)`: there is no such line; `None`: there are several.
    #[inline]
    pub fn only(&self, name: Name) -> Option<Option<&[u8]>> {
        let Some(place) = self.first.place(name, &self.fields) else { return Some(None) };
        let (line, behind) = self.fields.get(place..)?.split_first()?;
        behind.iter().all(|f| f.id != name).then(|| Some(line.value.of(&self.buf)))
    }

    /// Returns all lines with this name, in order. `name` is compared without regard to case.
    pub fn all<'a>(&'a self, name: &'a [u8]) -> impl Iterator<Item = &'a [u8]> + 'a {
        self.fields
            .iter()
            .filter(move |f| f.name.of(&self.buf).eq_ignore_ascii_case(name))
            .map(|f| f.value.of(&self.buf))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_of_a_name_is_found_wherever_it_is() {
        for place in [0, 1, 253, 254, 255, 600] {
            let mut head = RequestHead::default();
            for n in 0..700 {
                let name: &[u8] = if n == place || n == place + 50 { b"Referer" } else { b"X-Other" };
                let start = head.buf.len() as u32;
                head.buf.extend_from_slice(name);
                let middle = head.buf.len() as u32;
                head.buf.extend_from_slice(n.to_string().as_bytes());
                let end = head.buf.len() as u32;
                head.push_field(Slice { start, end: middle }, Slice { start: middle, end });
            }
            assert_eq!(head.first.place(Name::Referer, &head.fields), Some(place));
            assert_eq!(head.get(Name::Referer), Some(place.to_string().as_bytes()));
            assert_eq!(head.only(Name::Referer), None, "two lines have the name");
            assert!(head.first.has(Name::Referer) && !head.first.has(Name::Cookie));
            head.remove_fields(|name| name == b"X-Other");
            assert_eq!(head.first.place(Name::Referer, &head.fields), Some(0));
        }
    }
}
