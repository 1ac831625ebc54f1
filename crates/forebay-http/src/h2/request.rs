//! Request heads from field blocks (RFC 9113, section 8.3), checked as nginx checks them and a little stricter.
//! Hot path.

use super::hpack::{Decoder, Error};
use crate::compression::{Field, Label, Sink};
use crate::field::{Classes, FieldLine, Name, Slice};
use crate::h1::line::{method_of, slice};
use crate::h1::request::{Limits, content_length};
use crate::request::{Framing, Method, RequestHead, Version};
use crate::uri;
use crate::words;

/// The reason for refusing a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Status to answer with.
    pub status: u16,
    /// For the error log.
    pub reason: &'static str,
    /// The request is malformed in the sense of RFC 9113, section 8.1.1: the stream is reset too.
    pub malformed: bool,
}

/// Result of [`parse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The head is complete.
    Complete,
    /// To be answered with an error.
    Refused(Refusal),
}

/// Refusal of a head that is larger than the limits allow (nginx: large_client_header_buffers).
pub const TOO_LARGE: Refusal =
    Refusal { status: 494, reason: "client sent too large header", malformed: false };

/// Refusal of a field that is larger than the limits allow.
const TOO_LARGE_FIELD: Refusal =
    Refusal { status: 494, reason: "client sent too large header field", malformed: false };

const fn malformed(reason: &'static str) -> Refusal {
    Refusal { status: 400, reason, malformed: true }
}

const fn bad(reason: &'static str) -> Refusal {
    Refusal { status: 400, reason, malformed: false }
}

/// Pseudo-header fields (RFC 9113, section 8.3.1).
#[derive(Clone, Copy, Debug, Default)]
struct Pseudo {
    method: Option<Slice>,
    scheme: Option<Slice>,
    path: Option<Slice>,
    authority: Option<Slice>,
    protocol: Option<Slice>,
}

impl Pseudo {
    /// Returns the place of a field by its label; `None` if requests do not have it.
    fn place(&mut self, label: Label) -> Option<&mut Option<Slice>> {
        match label {
            Label::Method => Some(&mut self.method),
            Label::Path => Some(&mut self.path),
            Label::Scheme => Some(&mut self.scheme),
            Label::Authority => Some(&mut self.authority),
            Label::Protocol => Some(&mut self.protocol),
            _ => None,
        }
    }
}

/// Receiver of the fields of a request.
#[derive(Debug)]
pub struct Builder<'h> {
    head: &'h mut RequestHead,
    limits: &'h Limits,
    pseudo: Pseudo,
    cookies: u32,
    refusal: Option<Refusal>,
    /// Bytes of names and values.
    total: usize,
    /// There is a `TE` that HTTP/2 does not allow.
    te: bool,
}

impl Builder<'_> {
    fn push(&mut self, text: &[u8]) -> Slice {
        let start = self.head.buf.len();
        self.head.buf.extend_from_slice(text);
        slice(start, self.head.buf.len())
    }

    /// Counts a field against the limits. As in nginx, a single field counts as it was received, mostly in Huffman code, and all
    /// together as they were decoded.
    fn admit(&mut self, field: &Field<'_>) -> Result<(), Refusal> {
        self.total += field.name.len() + field.value.len();
        let (number, size) = self.limits.large_client_header_buffers;
        if field.received > size {
            return Err(TOO_LARGE_FIELD);
        }
        if self.total > number.saturating_mul(size) {
            return Err(TOO_LARGE);
        }
        Ok(())
    }

    fn pseudo(&mut self, label: Label, value: &[u8]) -> Result<(), Refusal> {
        // Pseudo-header fields come before all others (RFC 9113, section 8.3).
        if !(self.head.fields.is_empty() && self.head.ignored.is_empty()) {
            return Err(malformed("client sent pseudo-header field after a field"));
        }
        let text = self.push(value);
        let Some(place) = self.pseudo.place(label) else {
            return Err(malformed("client sent unknown pseudo-header field"));
        };
        if place.replace(text).is_some() {
            return Err(malformed("client sent duplicate pseudo-header field"));
        }
        Ok(())
    }

    #[inline]
    fn regular(&mut self, id: Name, name: &[u8], value: &[u8]) -> Result<(), Refusal> {
        if id == Name::Other && self.is_invalid(name)? {
            let start = self.push(name).start;
            self.head.buf.extend_from_slice(b": ");
            let end = self.push(value).end;
            self.head.ignored.push(Slice { start, end });
            return Ok(());
        }
        if self.head.fields.len() >= self.limits.max_headers {
            return Err(bad("client sent too many header lines"));
        }
        self.known(id, value)?;
        let name = self.push(name);
        let value = self.push(value);
        self.head.index_field(FieldLine { id, name, value });
        Ok(())
    }

    /// Returns `true` if a name is unusual and fields with such names are ignored (nginx: ignore_invalid_headers).
    fn is_invalid(&self, name: &[u8]) -> Result<bool, Refusal> {
        let mut seen = 0;
        let mut unusual = false;
        for b in name {
            let class = NAME_CLASS[usize::from(*b)];
            seen |= class;
            unusual |= class == 0;
        }
        if seen & NAME_BAD != 0 || name.is_empty() {
            return Err(malformed("client sent invalid header name"));
        }
        unusual |= seen & NAME_UNDERSCORE != 0 && !self.limits.underscores_in_headers;
        Ok(unusual && self.limits.ignore_invalid_headers)
    }

    /// Checks a field by its name.
    #[inline]
    fn known(&mut self, id: Name, value: &[u8]) -> Result<(), Refusal> {
        let previous = self.head.first.has(id);
        match id {
            id if id.is(Classes::CONNECTION) => {
                return Err(malformed("client sent connection-specific header field"));
            }
            // Noted, not refused at once: an error in another field is reported before this one.
            Name::Te => self.te |= value != b"trailers",
            // Crumbs are joined (RFC 9113, section 8.2.3) when the block is done.
            Name::Cookie => self.cookies += 1,
            Name::Host if previous => return Err(bad("client sent duplicate host header")),
            id if previous && id.is(Classes::ONCE_IN_REQUEST) => {
                return Err(bad("client sent duplicate header line"));
            }
            _ => {}
        }
        Ok(())
    }
}

/// Classes of bytes in field names.
const NAME_USUAL: u8 = 1;
const NAME_UNDERSCORE: u8 = 2;
const NAME_BAD: u8 = 4;

static NAME_CLASS: [u8; 256] = {
    let mut t = [0u8; 256];
    let mut i = 0;
    while i < 256 {
        let b = i as u8;
        t[i] = match b {
            b'a'..=b'z' | b'0'..=b'9' | b'-' => NAME_USUAL,
            b'_' => NAME_UNDERSCORE,
            b'A'..=b'Z' | b':' | 0..=0x20 | 0x7f => NAME_BAD,
            // Anything else is unusual: left out where `ignore_invalid_headers` is on.
            _ => 0,
        };
        i += 1;
    }
    t
};

impl Sink for Builder<'_> {
    #[inline]
    fn field(&mut self, field: Field<'_>) {
        // Fields after a refusal are not checked, nor kept.
        if self.refusal.is_some() {
            return;
        }
        if let Err(refusal) = self.admit(&field) {
            self.refusal = Some(refusal);
            return;
        }
        let Field { label, name, value, sound, .. } = field;
        let taken = match label {
            // White space around a value is malformed; line ends and zero bytes in it are an attack.
            Label::Field(_) if !sound => Err(malformed("client sent header with invalid value")),
            Label::Field(id) => self.regular(id, name, value),
            Label::Capital => Err(malformed("client sent invalid header name")),
            _ => self.pseudo(label, value),
        };
        self.refusal = taken.err();
    }
}

/// Decodes a block into an empty head. All of the block is decoded, even if the request is refused.
///
/// # Errors
/// The block is not HPACK. The connection cannot be used any more.
pub fn parse(
    decoder: &mut Decoder,
    block: &[u8],
    end_stream: bool,
    head: &mut RequestHead,
    scratch: &mut Vec<u8>,
    limits: &Limits,
) -> Result<Outcome, Error> {
    build(Version::Http2, end_stream, head, limits, |fields| decoder.decode(block, scratch, fields))
}

/// Makes an empty head of the fields that `decode` gives to its argument, for HTTP/2 or HTTP/3: the rules are the same (RFC 9114,
/// section 4.3). `end_stream`: the request has no content.
///
/// # Errors
/// Errors of `decode`.
pub fn build<E>(
    version: Version,
    end_stream: bool,
    head: &mut RequestHead,
    limits: &Limits,
    decode: impl FnOnce(&mut Builder<'_>) -> Result<(), E>,
) -> Result<Outcome, E> {
    let mut b =
        Builder { head, limits, pseudo: Pseudo::default(), cookies: 0, refusal: None, total: 0, te: false };
    decode(&mut b)?;
    b.head.version = version;
    b.head.keep_alive = true;
    let te = b.te.then_some(malformed("client sent invalid \"TE\" header"));
    let Builder { mut pseudo, cookies, refusal, .. } = b;
    // Before the fields are looked at: the join moves lines.
    if cookies > 1 {
        join_cookies(head);
    }
    let protocol = if pseudo.protocol.is_some() { set_protocol(head, &mut pseudo) } else { Ok(()) };
    set_request_line(head, &pseudo);
    // The head of a refused request is filled as far as possible, for the log.
    let finished = finish(head, &pseudo, end_stream, limits);
    Ok(match refusal.or(te).or(protocol.err()).or(finished.err()) {
        Some(refusal) => Outcome::Refused(refusal),
        None => Outcome::Complete,
    })
}

/// Makes an extended CONNECT for a WebSocket (RFC 8441; RFC 9220) the GET that it is over HTTP/1, so that locations, modules and
/// upstreams know one form. Its content is that of the WebSocket: the request has none.
fn set_protocol(head: &mut RequestHead, pseudo: &mut Pseudo) -> Result<(), Refusal> {
    let text = |part: Option<Slice>| part.map(|p| p.of(&head.buf)).unwrap_or_default();
    if text(pseudo.method) != b"CONNECT" {
        return Err(malformed("client sent :protocol header without CONNECT"));
    }
    if [pseudo.scheme, pseudo.path, pseudo.authority].contains(&None) {
        return Err(malformed("client sent incomplete CONNECT with :protocol header"));
    }
    if head.get(Name::ContentLength).is_some() {
        return Err(malformed("client sent CONNECT with \"Content-Length\" header"));
    }
    if !text(pseudo.protocol).eq_ignore_ascii_case(b"websocket") {
        return Err(Refusal {
            status: 501,
            reason: "client sent unknown :protocol header",
            malformed: false,
        });
    }
    let start = head.buf.len();
    head.buf.extend_from_slice(b"GET");
    pseudo.method = Some(slice(start, head.buf.len()));
    head.is_websocket = true;
    Ok(())
}

/// Sets the request line of HTTP/1 (`$request`) and its parts, even from pseudo-header fields that are not complete.
fn set_request_line(head: &mut RequestHead, pseudo: &Pseudo) {
    let start = head.buf.len();
    for part in [pseudo.method, pseudo.path] {
        if let Some(p) = part {
            head.buf.extend_from_within(p.start as usize..p.end as usize);
        }
        head.buf.push(b' ');
    }
    let version = head.buf.len();
    head.buf.extend_from_slice(head.version.as_str().as_bytes());
    let end = head.buf.len();
    head.len = end;
    head.protocol = slice(version, end);
    if pseudo.method.is_some() || pseudo.path.is_some() {
        head.request_line = slice(start, end);
    }
    head.method_text = pseudo.method.unwrap_or_default();
    head.method = method_of(head.method_text.of(&head.buf));
    head.target = pseudo.path.unwrap_or_default();
}

/// Checks a complete block and sets the fields of the head that follow from it.
fn finish(head: &mut RequestHead, pseudo: &Pseudo, end_stream: bool, limits: &Limits) -> Result<(), Refusal> {
    check_method(head, pseudo)?;
    check_scheme(head, pseudo)?;
    let Some(path) = pseudo.path else { return Err(malformed("client sent no :path header")) };
    set_path(head, path, limits.merge_slashes)?;
    set_host(head, pseudo.authority)?;
    set_framing(head, end_stream)?;
    head.expect_continue = head.get(Name::Expect).is_some_and(|v| v.eq_ignore_ascii_case(b"100-continue"))
        && !end_stream
        && !head.is_websocket;
    match head.method {
        Method::Trace => Err(Refusal { status: 405, reason: "client sent TRACE method", malformed: false }),
        Method::Connect => Err(CONNECT),
        _ => Ok(()),
    }
}

const CONNECT: Refusal = Refusal { status: 405, reason: "client sent CONNECT method", malformed: false };

fn check_method(head: &RequestHead, pseudo: &Pseudo) -> Result<(), Refusal> {
    if pseudo.method.is_none() {
        return Err(malformed("client sent no :method header"));
    }
    let name = head.method_text.of(&head.buf);
    let valid = |b: &u8| b.is_ascii_uppercase() || matches!(b, b'-' | b'_');
    if head.method == Method::Other && (name.is_empty() || !name.iter().all(valid)) {
        return Err(bad("client sent invalid method"));
    }
    // CONNECT has neither scheme nor path (RFC 9113, section 8.5), so it is refused before they are looked for.
    if head.method == Method::Connect && pseudo.scheme.is_none() && pseudo.path.is_none() {
        return Err(CONNECT);
    }
    Ok(())
}

fn check_scheme(head: &RequestHead, pseudo: &Pseudo) -> Result<(), Refusal> {
    let Some(scheme) = pseudo.scheme else { return Err(malformed("client sent no :scheme header")) };
    let scheme = scheme.of(&head.buf);
    let valid = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.');
    if scheme == b"https" || (scheme.first().is_some_and(u8::is_ascii_alphabetic) && scheme.iter().all(valid))
    {
        return Ok(());
    }
    Err(malformed("client sent invalid :scheme header"))
}

/// Sets how the content ends: with a length (RFC 9113, section 8.1.1), or with the stream.
fn set_framing(head: &mut RequestHead, end_stream: bool) -> Result<(), Refusal> {
    if head.is_websocket {
        return Ok(());
    }
    let Some(text) = head.get(Name::ContentLength) else {
        if !end_stream {
            head.framing = Framing::Stream;
        }
        return Ok(());
    };
    match content_length(text) {
        Some(n) if !end_stream || n == 0 => {
            head.framing = Framing::Length(n);
            Ok(())
        }
        Some(_) => Err(malformed("client closed stream with content missing")),
        None => Err(bad("client sent invalid \"Content-Length\" header")),
    }
}

fn set_path(head: &mut RequestHead, target: Slice, merge_slashes: bool) -> Result<(), Refusal> {
    let text = target.of(&head.buf);
    check_form(text)?;
    if is_plain(text)? {
        head.path.clear();
        head.path.extend_from_slice(text);
        return Ok(());
    }
    let parts = uri::split(text);
    let path = text.get(..parts.path).unwrap_or(text);
    if let Some((start, end)) = parts.args {
        head.has_args = true;
        head.args = slice(target.start as usize + start, target.start as usize + end);
    }
    uri::normalise(path, merge_slashes, &mut head.path)
        .map_err(|_| bad("client sent invalid :path header"))?;
    head.path_changed = head.path != path;
    Ok(())
}

/// Checks that a target is in origin form (RFC 9112, section 3.2.1).
fn check_form(target: &[u8]) -> Result<(), Refusal> {
    match target.first() {
        Some(b'/') => Ok(()),
        None => Err(malformed("client sent empty :path header")),
        Some(_) => Err(bad("client sent invalid :path header")),
    }
}

/// Returns `true` if a path is its own normal form and has no arguments.
fn is_plain(text: &[u8]) -> Result<bool, Refusal> {
    let mut plain = true;
    let run = words::plain_path(text, false);
    let mut after_slash = run > 0 && text.get(run - 1) == Some(&b'/');
    for &b in text.get(run..).unwrap_or_default() {
        if b <= 0x20 || b == 0x7f {
            return Err(bad("client sent invalid :path header"));
        }
        let special = matches!(b, b'%' | b'#' | b'?') || (after_slash && matches!(b, b'/' | b'.'));
        plain &= !special;
        after_slash = b == b'/';
    }
    Ok(plain)
}

fn set_host(head: &mut RequestHead, authority: Option<Slice>) -> Result<(), Refusal> {
    let line = crate::h1::request::first_line(head, Name::Host).map(|f| f.value);
    let Some(chosen) = authority.or(line) else {
        return Err(bad("client sent neither \":authority\" nor \"Host\" header"));
    };
    // Taken out, so that a slice of it can be held while the head is filled.
    let buf = std::mem::take(&mut head.buf);
    let taken = head.take_host(chosen.of(&buf));
    head.buf = buf;
    let text = chosen.of(&head.buf);
    taken.map_err(|_| match authority {
        // RFC 9113, section 8.3.1: user information is not allowed.
        Some(_) if text.contains(&b'@') => malformed("client sent user information in :authority header"),
        _ => bad("client sent invalid host header"),
    })?;
    if let (Some(_), Some(line)) = (authority, line)
        && !line.of(&head.buf).eq_ignore_ascii_case(text)
    {
        return Err(bad("client sent \":authority\" and \"Host\" headers with different values"));
    }
    if line.is_none() {
        // For code that looks for the field: `$http_host`, upstreams.
        let start = head.buf.len();
        head.buf.extend_from_slice(b"host");
        let name = slice(start, start + 4);
        let value = chosen;
        head.index_field(FieldLine { id: Name::Host, name, value });
        head.len = head.buf.len();
    }
    Ok(())
}

/// Makes one field of several `cookie` fields, in the place of the first.
fn join_cookies(head: &mut RequestHead) {
    let start = head.buf.len();
    head.buf.extend_from_slice(b"cookie");
    let middle = head.buf.len();
    let mut first = None;
    for (i, f) in head.fields.iter().enumerate() {
        if f.id != Name::Cookie {
            continue;
        }
        if first.is_none() {
            first = Some(i);
        } else {
            head.buf.extend_from_slice(b"; ");
        }
        head.buf.extend_from_within(f.value.start as usize..f.value.end as usize);
    }
    let line =
        FieldLine { id: Name::Cookie, name: slice(start, middle), value: slice(middle, head.buf.len()) };
    let mut n = 0;
    head.fields.retain(|f| {
        n += 1;
        f.id != Name::Cookie || Some(n - 1) == first
    });
    if let Some(f) = first.and_then(|i| head.fields.get_mut(i)) {
        *f = line;
    }
    // Places of lines behind the first cookie have changed.
    head.first = crate::request::FirstLines::index(&head.fields);
}

/// Decodes a block only for the HPACK table: trailers, and heads of streams that are refused.
///
/// # Errors
/// The block is not HPACK.
pub fn skip(decoder: &mut Decoder, block: &[u8], scratch: &mut Vec<u8>) -> Result<Trailers, Error> {
    let mut trailers = Trailers::default();
    decoder.decode(block, scratch, &mut trailers)?;
    Ok(trailers)
}

/// Facts of a field section whose fields are not used: trailers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trailers {
    /// Bytes of names and values.
    pub size: usize,
    /// It has a pseudo-header field, or a known name with capital letters: it is malformed.
    pub pseudo: bool,
}

impl Sink for Trailers {
    fn field(&mut self, Field { label, name, value, .. }: Field<'_>) {
        self.size += name.len() + value.len();
        self.pseudo |= !matches!(label, Label::Field(_));
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
