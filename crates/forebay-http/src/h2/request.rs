//! Request heads from field blocks (RFC 9113, section 8.3), checked as nginx checks them and a little stricter.
//! Hot path.

use super::hpack::{Decoder, Error, Field, Label, Sink};
use crate::field::{Classes, FieldLine, Name, Slice};
use crate::h1::line::{method_of, slice};
use crate::h1::request::{Limits, content_length};
use crate::request::{Framing, Method, RequestHead, Version};
use crate::uri;
use crate::words;

/// Why a head is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Status to answer with.
    pub status: u16,
    /// For the error log.
    pub reason: &'static str,
    /// The request is malformed in the sense of RFC 9113, section 8.1.1: the stream is reset too.
    pub malformed: bool,
}

/// What became of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The head is complete.
    Complete,
    /// To be answered with an error.
    Refused(Refusal),
    /// More than the limits allow: ENHANCE_YOUR_CALM for the connection, as nginx does.
    TooLarge(&'static str),
}

const fn malformed(reason: &'static str) -> Refusal {
    Refusal { status: 400, reason, malformed: true }
}

const fn bad(reason: &'static str) -> Refusal {
    Refusal { status: 400, reason, malformed: false }
}

struct Builder<'h> {
    head: &'h mut RequestHead,
    limits: &'h Limits,
    scheme: Option<Slice>,
    authority: Option<Slice>,
    path: Option<Slice>,
    method: Option<Slice>,
    cookies: u32,
    refusal: Option<Refusal>,
    too_large: Option<&'static str>,
    total: usize,
    te: bool,
}

impl Builder<'_> {
    fn refuse(&mut self, r: Refusal) {
        if self.refusal.is_none() {
            self.refusal = Some(r);
        }
    }

    fn push(&mut self, text: &[u8]) -> Slice {
        let start = self.head.buf.len();
        self.head.buf.extend_from_slice(text);
        slice(start, self.head.buf.len())
    }

    fn pseudo(&mut self, label: Label, value: &[u8]) {
        if !self.head.fields.is_empty() {
            return self.refuse(malformed("client sent pseudo-header field after a field"));
        }
        let text = self.push(value);
        let place = match label {
            Label::Method => &mut self.method,
            Label::Path => &mut self.path,
            Label::Scheme => &mut self.scheme,
            Label::Authority => &mut self.authority,
            _ => return self.refuse(malformed("client sent unknown pseudo-header field")),
        };
        if place.replace(text).is_some() {
            self.refuse(malformed("client sent duplicate pseudo-header field"));
        }
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
    fn field(&mut self, Field { label, name, value, sound }: Field<'_>) {
        if self.refusal.is_some() {
            // What follows is not judged by its size either, as in nginx: the connection goes on.
            return;
        }
        self.total += name.len() + value.len();
        let (number, size) = self.limits.large_client_header_buffers;
        if name.len() > size || value.len() > size {
            self.too_large.get_or_insert("client sent too large header field");
        }
        if self.total > number.saturating_mul(size) {
            self.too_large.get_or_insert("client sent too large header");
        }
        if self.too_large.is_some() {
            return;
        }
        let id = match label {
            Label::Field(id) => id,
            Label::Capital => return self.refuse(malformed("client sent invalid header name")),
            _ => return self.pseudo(label, value),
        };
        // White space around a value is malformed; line ends and zero bytes in it are an attack.
        if !sound {
            return self.refuse(malformed("client sent header with invalid value"));
        }
        if id == Name::Other {
            let mut seen = 0;
            let mut unusual = name.is_empty();
            for b in name {
                let class = NAME_CLASS[usize::from(*b)];
                seen |= class;
                unusual |= class == 0;
            }
            if seen & NAME_BAD != 0 || name.is_empty() {
                return self.refuse(malformed("client sent invalid header name"));
            }
            unusual |= seen & NAME_UNDERSCORE != 0 && !self.limits.underscores_in_headers;
            if unusual && self.limits.ignore_invalid_headers {
                let start = self.push(name).start;
                self.head.buf.extend_from_slice(b": ");
                let end = self.push(value).end;
                self.head.ignored.push(Slice { start, end });
                return;
            }
        }
        if self.head.fields.len() >= self.limits.max_headers {
            return self.refuse(bad("client sent too many header lines"));
        }
        let previous = self.head.first.0.get(id as usize).copied().unwrap_or(0) != 0;
        match id {
            id if id.is(Classes::CONNECTION) => {
                return self.refuse(malformed("client sent connection-specific header field"));
            }
            Name::Te => self.te |= value != b"trailers",
            Name::Cookie => {
                self.cookies += 1;
                // Crumbs are joined (RFC 9113, section 8.2.3) when the block is done.
            }
            Name::Host if previous => return self.refuse(bad("client sent duplicate host header")),
            id if previous && id.is(Classes::ONCE_IN_REQUEST) => {
                return self.refuse(bad("client sent duplicate header line"));
            }
            _ => {}
        }
        let start = self.head.buf.len();
        let middle = start + name.len();
        self.head.buf.extend_from_slice(name);
        self.head.buf.extend_from_slice(value);
        let line = FieldLine { id, name: slice(start, middle), value: slice(middle, middle + value.len()) };
        self.head.index_field(line);
    }
}

/// Decodes a block into an empty head. All of the block is decoded, even if the request is refused.
///
/// # Errors
/// The block is not HPACK: the connection is of no more use.
pub fn parse(
    decoder: &mut Decoder,
    block: &[u8],
    end_stream: bool,
    head: &mut RequestHead,
    scratch: &mut Vec<u8>,
    limits: &Limits,
) -> Result<Outcome, Error> {
    let mut b = Builder {
        head,
        limits,
        scheme: None,
        authority: None,
        path: None,
        method: None,
        cookies: 0,
        refusal: None,
        too_large: None,
        total: 0,
        te: false,
    };
    decoder.decode(block, scratch, &mut b)?;
    if let Some(reason) = b.too_large {
        return Ok(Outcome::TooLarge(reason));
    }
    if b.te {
        b.refuse(malformed("client sent invalid \"TE\" header"));
    }
    let Builder { scheme, authority, path, method, cookies, refusal, .. } = b;
    head.version = Version::Http2;
    head.keep_alive = true;
    if cookies > 1 {
        join_cookies(head);
    }
    let finished = finish(head, (method, scheme, path, authority), end_stream, limits);
    match refusal.map_or(finished, Err) {
        Ok(()) => Ok(Outcome::Complete),
        Err(r) => Ok(Outcome::Refused(r)),
    }
}

type Pseudo = (Option<Slice>, Option<Slice>, Option<Slice>, Option<Slice>);

/// The checks of a complete block, and what HTTP/1 has in its request line.
fn finish(
    head: &mut RequestHead,
    (method, scheme, path, authority): Pseudo,
    end_stream: bool,
    limits: &Limits,
) -> Result<(), Refusal> {
    // `$request`, made even of what is not complete, for the log.
    let start = head.buf.len();
    for part in [method, path] {
        if let Some(p) = part {
            head.buf.extend_from_within(p.start as usize..p.end as usize);
        }
        head.buf.push(b' ');
    }
    let version = head.buf.len();
    head.buf.extend_from_slice(b"HTTP/2.0");
    let end = head.buf.len();
    head.len = end;
    head.protocol = slice(version, end);
    if method.is_some() || path.is_some() {
        head.request_line = slice(start, end);
    }
    let text = method.unwrap_or_default();
    head.method_text = text;
    head.method = method_of(text.of(&head.buf));
    head.target = path.unwrap_or_default();
    if method.is_none() {
        return Err(malformed("client sent no :method header"));
    }
    if head.method == Method::Other {
        let name = text.of(&head.buf);
        if name.is_empty() || !name.iter().all(|b| b.is_ascii_uppercase() || matches!(b, b'-' | b'_')) {
            return Err(bad("client sent invalid method"));
        }
    }
    if head.method == Method::Connect && scheme.is_none() && path.is_none() {
        return Err(Refusal { status: 405, reason: "client sent CONNECT method", malformed: false });
    }
    let Some(scheme) = scheme else { return Err(malformed("client sent no :scheme header")) };
    let scheme = scheme.of(&head.buf);
    if scheme != b"https"
        && (!scheme.first().is_some_and(u8::is_ascii_alphabetic)
            || !scheme.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.')))
    {
        return Err(malformed("client sent invalid :scheme header"));
    }
    let Some(path) = path else { return Err(malformed("client sent no :path header")) };
    set_path(head, path, limits.merge_slashes)?;
    set_host(head, authority)?;
    match head.get(Name::ContentLength) {
        Some(text) => match content_length(text) {
            Some(n) if !end_stream || n == 0 => head.framing = Framing::Length(n),
            Some(_) => return Err(malformed("client closed stream with content missing")),
            None => return Err(bad("client sent invalid \"Content-Length\" header")),
        },
        None if !end_stream => head.framing = Framing::Stream,
        None => {}
    }
    head.expect_continue =
        head.get(Name::Expect).is_some_and(|v| v.eq_ignore_ascii_case(b"100-continue")) && !end_stream;
    match head.method {
        Method::Trace => Err(Refusal { status: 405, reason: "client sent TRACE method", malformed: false }),
        Method::Connect => {
            Err(Refusal { status: 405, reason: "client sent CONNECT method", malformed: false })
        }
        _ => Ok(()),
    }
}

fn set_path(head: &mut RequestHead, target: Slice, merge_slashes: bool) -> Result<(), Refusal> {
    let text = target.of(&head.buf);
    match text.first() {
        Some(b'/') => {}
        None => return Err(malformed("client sent empty :path header")),
        Some(_) => return Err(bad("client sent invalid :path header")),
    }
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
    if plain {
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

fn set_host(head: &mut RequestHead, authority: Option<Slice>) -> Result<(), Refusal> {
    let line = match head.first.0.get(Name::Host as usize).copied().unwrap_or(0) {
        0 => None,
        i => head.fields.get(i as usize - 1).map(|f| f.value),
    };
    let Some(chosen) = authority.or(line) else {
        return Err(bad("client sent neither \":authority\" nor \"Host\" header"));
    };
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
        // For those who look for the field: `$http_host`, upstreams.
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
    // Places have moved.
    let mut places = crate::request::FirstLines::default();
    for (i, f) in head.fields.iter().enumerate() {
        if let Some(p) = places.0.get_mut(f.id as usize)
            && *p == 0
        {
            *p = u16::try_from(i + 1).unwrap_or(0);
        }
    }
    head.first = places;
}

/// Decodes a block that nobody waits for: trailers, and heads of streams that are refused.
///
/// # Errors
/// As [`parse`].
pub fn skip(decoder: &mut Decoder, block: &[u8], scratch: &mut Vec<u8>) -> Result<Trailers, Error> {
    struct Count(Trailers);
    impl Sink for Count {
        fn field(&mut self, Field { label, name, value, .. }: Field<'_>) {
            self.0.size += name.len() + value.len();
            self.0.pseudo |= !matches!(label, Label::Field(_));
        }
    }
    let mut c = Count(Trailers::default());
    decoder.decode(block, scratch, &mut c)?;
    Ok(c.0)
}

/// What is known of a trailer section that was skipped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trailers {
    /// Bytes of names and values.
    pub size: usize,
    /// It has a pseudo-header field, or a known name with capital letters: it is malformed.
    pub pseudo: bool,
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
