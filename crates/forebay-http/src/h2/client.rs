//! Heads between HTTP/1 and HTTP/2 for upstreams: ours go out as field blocks, theirs come in as HTTP/1 heads, so that
//! everything behind sees one form (RFC 9113, section 8). Hot path.

use super::encode;
use super::hpack::{Decoder, Error};
use crate::compression::secret::is_secret;
use crate::compression::{Field, Label, Sink};
use crate::field::{Classes, Name};
use crate::h1::response::reason;

/// Appends the field block of a request whose HTTP/1 head is `head`. Fields of the HTTP/1 connection are left out,
/// `Host` becomes `:authority`. `trailers`: `te: trailers` is sent, unless the head says so itself.
pub(super) fn request_block(head: &[u8], https: bool, trailers: bool, out: &mut Vec<u8>) {
    each_field(head, https, trailers, |name, value| match (name, value) {
        // The static table has an index for common methods, paths and schemes (RFC 7541, appendix A).
        (b":method", b"GET") => out.push(0x82),
        (b":method", b"POST") => out.push(0x83),
        (b":method", method) => encode::indexed(out, encode::METHOD, method),
        (b":path", b"/") => out.push(0x84),
        (b":path", path) => encode::indexed(out, encode::PATH, path),
        (b":scheme", scheme) => out.push(if scheme == b"https" { 0x87 } else { 0x86 }),
        (b":authority", host) => encode::indexed(out, encode::AUTHORITY, host),
        _ if is_secret(name) => encode::sensitive(out, name, value),
        _ => encode::field(out, name, value),
    });
}

/// Calls `field` with each field of a request whose HTTP/1 head is `head`, pseudo-header fields first. Fields of the HTTP/1 connection
/// are left out, `Host` becomes `:authority`. `trailers`: there is `te: trailers`, even if the head does not say so.
pub(crate) fn each_field(head: &[u8], https: bool, trailers: bool, mut field: impl FnMut(&[u8], &[u8])) {
    let mut lines = head.split(|b| *b == b'\n').map(|l| l.strip_suffix(b"\r").unwrap_or(l));
    let line = lines.next().unwrap_or_default();
    let (method, rest) = line.split_at(memchr::memchr(b' ', line).unwrap_or(line.len()));
    let target = rest.strip_prefix(b" ").unwrap_or(rest);
    let target = &target[..memchr::memrchr(b' ', target).unwrap_or(target.len())];
    field(b":method", method);
    field(b":path", target);
    field(b":scheme", if https { b"https" } else { b"http" });
    let fields = lines.filter_map(name_and_value);
    // Pseudo-header fields come first.
    if let Some((_, host)) = fields.clone().find(|(n, _)| n.eq_ignore_ascii_case(b"Host")) {
        field(b":authority", host);
    }
    let mut te = trailers;
    for (name, value) in fields {
        match Name::of(name) {
            Name::Te => te |= value.eq_ignore_ascii_case(b"trailers"),
            Name::Host => {}
            id if id.is(Classes::CONNECTION) => {}
            _ => field(name, value),
        }
    }
    if te {
        field(b"te", b"trailers");
    }
}

fn name_and_value(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let (name, value) = line.split_at_checked(memchr::memchr(b':', line)?)?;
    Some((name, value[1..].trim_ascii()))
}

/// Calls `f` with the name and the value of each field of trailers that have become lines.
pub fn each_line(lines: &[u8], f: &mut dyn FnMut(&[u8], &[u8])) {
    for line in lines.split(|b| *b == b'\n') {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if let Some((name, value)) =
            memchr::memmem::find(line, b": ").and_then(|at| line.split_at_checked(at))
        {
            f(name, value.get(2..).unwrap_or_default());
        }
    }
}

/// The reason for which a block is no head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadBlock {
    /// It cannot be decompressed.
    Compression,
    /// Longer than allowed.
    TooLarge,
    /// It has a field that may not be there. The text names the fault.
    Malformed(&'static str),
}

/// Writer of a decoded field section as lines of HTTP/1.
pub(crate) struct Lines<'o> {
    out: &'o mut Vec<u8>,
    /// Trailers have no status.
    trailers: bool,
    status: Option<u16>,
    limit: usize,
    bad: Option<BadBlock>,
}

impl Sink for Lines<'_> {
    fn field(&mut self, Field { label, name, value, sound, .. }: Field<'_>) {
        // Decoding goes on all the same, since the table must stay that of the server.
        if self.bad.is_some() {
            return;
        }
        if self.out.len() + name.len() + value.len() + 4 > self.limit {
            self.bad = Some(BadBlock::TooLarge);
            return;
        }
        let taken = match label {
            Label::Status => self.status(value),
            Label::Field(id) => self.regular(id, name, value, sound),
            // Fails at the check of the name.
            Label::Capital => self.regular(Name::Other, name, value, sound),
            _ => Err("unknown pseudo-header"),
        };
        self.bad = taken.err().map(BadBlock::Malformed);
    }
}

impl Lines<'_> {
    fn regular(&mut self, id: Name, name: &[u8], value: &[u8], sound: bool) -> Result<(), &'static str> {
        if self.status.is_none() && !self.trailers {
            return Err("header without \":status\"");
        }
        let fits = |b: &u8| !matches!(b, 0..=0x20 | b':' | 0x7f | b'A'..=b'Z');
        if name.is_empty() || !name.iter().all(fits) {
            return Err("header name");
        }
        if !sound {
            return Err("header value");
        }
        if id.is(Classes::CONNECTION) {
            return Err("connection-specific header");
        }
        for piece in [name, b": ", value.trim_ascii(), b"\r\n"] {
            self.out.extend_from_slice(piece);
        }
        Ok(())
    }

    fn status(&mut self, value: &[u8]) -> Result<(), &'static str> {
        if self.trailers {
            return Err("pseudo-header in trailers");
        }
        let &[a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9'] = value else {
            return Err("\":status\" header");
        };
        if self.status.is_some() {
            return Err("duplicate \":status\" header");
        }
        let digit = |d: u8| u16::from(d - b'0');
        let status = digit(a) * 100 + digit(b) * 10 + digit(c);
        self.status = Some(status);
        self.out.extend_from_slice(b"HTTP/1.1 ");
        self.out.extend_from_slice(value);
        let reason = reason(status);
        if !reason.is_empty() {
            self.out.push(b' ');
            self.out.extend_from_slice(reason.as_bytes());
        }
        self.out.extend_from_slice(b"\r\n");
        Ok(())
    }
}

/// A field block of a response.
#[derive(Clone, Copy, Debug)]
pub(super) struct Block<'b> {
    /// As received.
    pub bytes: &'b [u8],
    /// The block has the trailers, which have no status.
    pub trailers: bool,
    /// Most bytes of the HTTP/1 head.
    pub limit: usize,
}

/// Decodes a block into an HTTP/1 head, appended to `out`, which is empty. Returns the status. Trailers become field lines
/// without a status line; their status is 0.
///
/// # Errors
/// [`BadBlock`]. After `Compression` the connection cannot be used any more.
pub(super) fn response_head(
    decoder: &mut Decoder,
    block: &Block<'_>,
    scratch: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> Result<u16, BadBlock> {
    let &Block { bytes, trailers, limit } = block;
    lines(trailers, limit, out, |fields| match decoder.decode(bytes, scratch, fields) {
        Ok(()) => Ok(()),
        Err(Error::Compression | Error::Truncated) => Err(BadBlock::Compression),
    })
}

/// Writes a field section that `decode` decodes as [`response_head`] does, whatever its compression.
///
/// # Errors
/// Errors of `decode`; [`BadBlock`] if the section is malformed or too large.
pub(crate) fn lines(
    trailers: bool,
    limit: usize,
    out: &mut Vec<u8>,
    decode: impl FnOnce(&mut Lines<'_>) -> Result<(), BadBlock>,
) -> Result<u16, BadBlock> {
    let mut lines = Lines { out, trailers, status: None, limit, bad: None };
    decode(&mut lines)?;
    let Lines { status, bad, out, .. } = lines;
    if let Some(bad) = bad {
        return Err(bad);
    }
    if status.is_none() && !trailers {
        return Err(BadBlock::Malformed("header without \":status\""));
    }
    out.extend_from_slice(b"\r\n");
    Ok(status.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn back(block: &[u8], trailers: bool, limit: usize) -> Result<String, BadBlock> {
        let mut out = Vec::new();
        let block = Block { bytes: block, trailers, limit };
        response_head(&mut Decoder::default(), &block, &mut Vec::new(), &mut out)?;
        Ok(String::from_utf8_lossy(&out).into_owned())
    }

    struct Fields(Vec<String>);
    impl Sink for Fields {
        fn field(&mut self, Field { name, value, .. }: Field<'_>) {
            self.0.push(format!("{}={}", String::from_utf8_lossy(name), String::from_utf8_lossy(value)));
        }
    }

    fn request(head: &str, https: bool, trailers: bool) -> Vec<String> {
        let mut out = Vec::new();
        request_block(head.as_bytes(), https, trailers, &mut out);
        let mut fields = Fields(Vec::new());
        Decoder::default().decode(&out, &mut Vec::new(), &mut fields).unwrap();
        fields.0
    }

    #[test]
    fn requests_lose_what_is_of_the_connection() {
        let head = "PUT /a%20b?c HTTP/1.1\r\nX-One: 1\r\nHost: example.com\r\nConnection: close\r\nUpgrade: x\r\n\
                    Transfer-Encoding: chunked\r\nTE: trailers\r\nAuthorization: secret\r\nContent-Length: 3\r\n\r\n";
        assert_eq!(
            request(head, true, false),
            [
                ":method=PUT",
                ":path=/a%20b?c",
                ":scheme=https",
                ":authority=example.com",
                "x-one=1",
                "authorization=secret",
                "content-length=3",
                "te=trailers"
            ]
        );
        assert_eq!(
            request("GET / HTTP/1.1\r\nTE: gzip\r\n\r\n", false, false),
            [":method=GET", ":path=/", ":scheme=http"]
        );
        assert_eq!(request("GET / HTTP/1.1\r\nTE: x\r\n\r\n", false, true).last().unwrap(), "te=trailers");
    }

    #[test]
    fn responses_become_heads_of_http_1() {
        let mut block = Vec::new();
        encode::status(&mut block, 404);
        encode::field(&mut block, b"Content-Type", b"text/html");
        encode::field(&mut block, b"x", b" y ");
        let want = "HTTP/1.1 404 Not Found\r\ncontent-type: text/html\r\nx: y\r\n\r\n";
        assert_eq!(back(&block, false, 4096), Ok(want.into()));
        assert_eq!(back(&block, false, 40), Err(BadBlock::TooLarge));
        assert_eq!(back(&block, true, 4096), Err(BadBlock::Malformed("pseudo-header in trailers")));
        assert_eq!(back(&[], true, 4096), Ok("\r\n".into()));
    }

    #[test]
    fn malformed_responses() {
        let with = |fields: &[(&[u8], &[u8])]| {
            let mut block = vec![0x88];
            for (n, v) in fields {
                crate::compression::push_int(&mut block, 0, 4, 0);
                crate::compression::push_int(&mut block, 0, 7, n.len());
                block.extend_from_slice(n);
                crate::compression::push_int(&mut block, 0, 7, v.len());
                block.extend_from_slice(v);
            }
            back(&block, false, 4096)
        };
        for (name, value, what) in [
            (&b""[..], &b"x"[..], "header name"),
            (b"X", b"x", "header name"),
            (b"a b", b"x", "header name"),
            (b"a", b"x\r\ny: z", "header value"),
            (b"a", b"\0", "header value"),
            (b"transfer-encoding", b"chunked", "connection-specific header"),
            (b"connection", b"close", "connection-specific header"),
            (b":path", b"/", "unknown pseudo-header"),
            (b":status", b"200", "duplicate \":status\" header"),
        ] {
            assert_eq!(with(&[(name, value)]), Err(BadBlock::Malformed(what)), "{}", name.escape_ascii());
        }
        assert_eq!(back(&[], false, 4096), Err(BadBlock::Malformed("header without \":status\"")));
        assert_eq!(back(&[0x80], false, 4096), Err(BadBlock::Compression));
        let mut block = Vec::new();
        encode::field(&mut block, b":status", b"20");
        assert_eq!(back(&block, false, 4096), Err(BadBlock::Malformed("\":status\" header")));
    }
}
