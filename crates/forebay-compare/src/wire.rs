//! Reading of HTTP/1 by a client or an upstream that waits.

use crate::message::{Field, MOST_BODY, field, text};
use std::io::{self, BufRead, Read};

/// Most bytes of a line.
const MOST_LINE: u64 = 1 << 20;

/// Most fields of a message.
const MOST_FIELDS: usize = 2000;

/// Way in which the end of a body is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    /// There is none.
    Nothing,
    /// By its length.
    Length(usize),
    /// By chunks.
    Chunks,
    /// By the end of the connection.
    Close,
}

fn bad(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

/// Reads a line without its end.
pub(crate) fn line(from: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    from.take(MOST_LINE).read_until(b'\n', &mut line)?;
    match line.pop() {
        Some(b'\n') => {}
        Some(_) | None => return Err(io::ErrorKind::UnexpectedEof.into()),
    }
    if line.last() == Some(&b'\r') {
        line.pop();
    }
    Ok(line)
}

/// Reads fields up to the empty line.
pub(crate) fn fields(from: &mut impl BufRead) -> io::Result<Vec<Field>> {
    let mut fields = Vec::new();
    loop {
        let line = line(from)?;
        if line.is_empty() {
            return Ok(fields);
        }
        if fields.len() == MOST_FIELDS {
            return Err(bad("too many fields"));
        }
        let line = text(&line);
        let (name, value) = line.split_once(':').unwrap_or((&line, ""));
        fields.push((name.to_owned(), value.trim().to_owned()));
    }
}

/// Returns the framing that fields tell. `otherwise` holds where they tell none.
pub(crate) fn framing(fields: &[Field], otherwise: Framing) -> Framing {
    if field(fields, "transfer-encoding").is_some_and(|v| v.to_ascii_lowercase().contains("chunked")) {
        return Framing::Chunks;
    }
    match field(fields, "content-length").and_then(|v| v.parse().ok()) {
        Some(length) => Framing::Length(length),
        None => otherwise,
    }
}

/// A body that was read.
#[derive(Debug, Default)]
pub(crate) struct Body {
    pub(crate) bytes: Vec<u8>,
    /// Fields behind the last chunk.
    pub(crate) trailers: Vec<Field>,
    /// Bytes that came, with those of chunks.
    pub(crate) wire: usize,
}

impl Body {
    fn plain(bytes: Vec<u8>) -> Body {
        Body { wire: bytes.len(), bytes, trailers: Vec::new() }
    }
}

/// Reads a body, and the trailers behind chunks.
pub(crate) fn body(from: &mut impl BufRead, framing: Framing) -> io::Result<Body> {
    match framing {
        Framing::Nothing => Ok(Body::default()),
        Framing::Length(n) => Ok(Body::plain(exactly(from, n)?)),
        Framing::Chunks => chunks(from),
        Framing::Close => {
            let mut all = Vec::new();
            from.take(MOST_BODY as u64).read_to_end(&mut all)?;
            Ok(Body::plain(all))
        }
    }
}

/// Reads this many bytes.
pub(crate) fn exactly(from: &mut impl Read, n: usize) -> io::Result<Vec<u8>> {
    if n > MOST_BODY {
        return Err(bad("a body that is too large to compare"));
    }
    let mut all = Vec::new();
    if from.take(n as u64).read_to_end(&mut all)? < n {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(all)
}

fn chunks(from: &mut impl BufRead) -> io::Result<Body> {
    let mut body = Body::default();
    loop {
        let head = line(from)?;
        let size = text(&head);
        let size = size.split(';').next().unwrap_or_default().trim();
        let n = usize::from_str_radix(size, 16).map_err(|_| bad("a chunk without a size"))?;
        body.wire += head.len() + 4;
        if n == 0 {
            body.trailers = fields(from)?;
            return Ok(body);
        }
        if body.bytes.len() + n.min(MOST_BODY) > MOST_BODY {
            return Err(bad("a body that is too large to compare"));
        }
        body.bytes.extend(exactly(from, n)?);
        body.wire += n;
        line(from)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bodies_end_as_their_framing_says() {
        let mut chunked = b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\nT: 1\r\n\r\nrest".as_slice();
        let read = body(&mut chunked, Framing::Chunks).expect("chunks");
        assert_eq!(
            (read.bytes.as_slice(), read.trailers.len(), chunked),
            (b"abcde".as_slice(), 1, b"rest".as_slice())
        );
        assert_eq!(read.wire, b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n".len());
        assert!(body(&mut b"ab".as_slice(), Framing::Length(3)).is_err());
        assert!(body(&mut b"zz\r\n".as_slice(), Framing::Chunks).is_err());
        assert!(body(&mut b"ffffffffffffffff\r\n".as_slice(), Framing::Chunks).is_err());
    }

    #[test]
    fn lines_and_fields() {
        let mut input = b"GET / HTTP/1.1\r\nHost:  a \r\nbare\n\r\n".as_slice();
        assert_eq!(line(&mut input).expect("a line"), b"GET / HTTP/1.1");
        let fields = fields(&mut input).expect("fields");
        assert_eq!(fields, [("Host".to_owned(), "a".to_owned()), ("bare".to_owned(), String::new())]);
        assert_eq!(framing(&fields, Framing::Close), Framing::Close);
        assert!(line(&mut b"no end".as_slice()).is_err());
    }
}
