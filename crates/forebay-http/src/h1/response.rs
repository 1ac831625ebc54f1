//! Writing response heads (RFC 9112, section 4): status lines, field lines, numbers. Hot path.

use crate::field::{self, FieldLine, Unsafe};

macro_rules! statuses {
    ($($code:literal $reason:literal,)*) => {
        /// Returns the reason phrase that nginx uses for a status, empty if it has none.
        pub fn reason(status: u16) -> &'static str {
            match status {
                $($code => $reason,)*
                _ => "",
            }
        }

        fn known_line(status: u16) -> Option<&'static [u8]> {
            match status {
                $($code => Some(concat!("HTTP/1.1 ", $code, " ", $reason, "\r\n").as_bytes()),)*
                _ => None,
            }
        }
    };
}

statuses! {
    100 "Continue", 101 "Switching Protocols", 103 "Early Hints",
    200 "OK", 201 "Created", 202 "Accepted", 204 "No Content", 206 "Partial Content",
    301 "Moved Permanently", 302 "Moved Temporarily", 303 "See Other", 304 "Not Modified",
    307 "Temporary Redirect", 308 "Permanent Redirect",
    400 "Bad Request", 401 "Unauthorized", 402 "Payment Required", 403 "Forbidden", 404 "Not Found",
    405 "Not Allowed", 406 "Not Acceptable", 407 "Proxy Authentication Required", 408 "Request Time-out",
    409 "Conflict", 410 "Gone", 411 "Length Required", 412 "Precondition Failed",
    413 "Request Entity Too Large", 414 "Request-URI Too Large", 415 "Unsupported Media Type",
    416 "Requested Range Not Satisfiable", 421 "Misdirected Request", 429 "Too Many Requests",
    500 "Internal Server Error", 501 "Not Implemented", 502 "Bad Gateway",
    503 "Service Temporarily Unavailable", 504 "Gateway Time-out", 505 "HTTP Version Not Supported",
    507 "Insufficient Storage",
}

/// Status as the client gets it: nginx's own 494 to 497 are 400 on the wire.
pub fn wire_status(status: u16) -> u16 {
    match status {
        494..=497 => 400,
        other => other,
    }
}

/// Appends `HTTP/1.1 STATUS REASON` and the line end. A status without a text keeps the blank before it,
/// as in nginx.
#[inline]
pub fn status_line(out: &mut Vec<u8>, status: u16) {
    let status = wire_status(status);
    match known_line(status) {
        Some(line) => out.extend_from_slice(line),
        None => {
            out.extend_from_slice(b"HTTP/1.1 ");
            out.extend_from_slice(&three_digits(status));
            out.extend_from_slice(b" \r\n");
        }
    }
}

/// Returns a status below 1000 as three digits, with leading zeros.
pub fn three_digits(status: u16) -> [u8; 3] {
    let digit = |n: u16| b'0' + (n % 10) as u8;
    [digit(status / 100), digit(status / 10), digit(status)]
}

/// Appends `NAME: VALUE` and the line end. All heads and trailers of HTTP/1 are made of these and of [`copied_field`].
///
/// # Errors
/// Errors of [`field::one_line`]; nothing is appended then. Names come from the configuration or from a
/// head that was read, which have none.
#[inline]
pub fn field(out: &mut Vec<u8>, name: &[u8], value: &[u8]) -> Result<(), Unsafe> {
    push_line(out, name, &field::one_line(name, value)?);
    Ok(())
}

/// Appends a field line of a head that this crate has read into `buf`. The parsers accept no value with CR, LF or NUL, so
/// that looking again would be lost time.
#[inline]
pub fn copied_field(out: &mut Vec<u8>, buf: &[u8], line: &FieldLine) {
    match written_as_here(buf, line) {
        Some(text) => out.extend_from_slice(text),
        None => push_line(out, line.name.of(buf), line.value.of(buf)),
    }
}

/// Returns the text of a line with its end, if the peer wrote it as [`field`] does.
#[inline]
fn written_as_here<'b>(buf: &'b [u8], line: &FieldLine) -> Option<&'b [u8]> {
    let text = buf.get(line.name.start as usize..)?.get(..line.name.len() + line.value.len() + 4)?;
    let colon = text.get(line.name.len()..line.name.len() + 2)?;
    let at_value = line.value.start == line.name.end.wrapping_add(2);
    (at_value && colon == b": " && text.ends_with(b"\r\n")).then_some(text)
}

#[inline]
fn push_line(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    out.reserve(name.len() + value.len() + 4);
    out.extend_from_slice(name);
    out.extend_from_slice(b": ");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\r\n");
}

/// Appends a decimal number.
#[inline]
pub fn number(out: &mut Vec<u8>, value: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::h1::client::{self, ResponseHead};
    use crate::h1::request;
    use crate::request::RequestHead;

    fn line(status: u16) -> String {
        let mut out = Vec::new();
        status_line(&mut out, status);
        String::from_utf8(out).expect("ASCII only")
    }

    #[test]
    fn status_lines() {
        assert_eq!(line(200), "HTTP/1.1 200 OK\r\n");
        assert_eq!(line(302), "HTTP/1.1 302 Moved Temporarily\r\n");
        assert_eq!(line(494), "HTTP/1.1 400 Bad Request\r\n");
        assert_eq!(line(203), "HTTP/1.1 203 \r\n");
        assert_eq!(line(999), "HTTP/1.1 999 \r\n");
        assert_eq!(line(5), "HTTP/1.1 005 \r\n");
    }

    #[test]
    fn lines_are_copied_in_one_form() {
        let mut head = ResponseHead::default();
        head.buf = b"HTTP/1.1 200 OK\r\nA: b\r\nC:d\r\nE:   f\r\nG: h  \r\nI: j\nK: l\r\r\nM:\r\nN: \r\n\r\n"
            .to_vec();
        client::parse(&mut head, usize::MAX).expect("sound");
        let mut out = Vec::new();
        for line in &head.fields {
            copied_field(&mut out, &head.buf, line);
        }
        let text = String::from_utf8_lossy(&out);
        assert_eq!(text, "A: b\r\nC: d\r\nE: f\r\nG: h\r\nI: j\r\nK: l\r\nM: \r\nN: \r\n");
    }

    /// [`copied_field`] relies on it.
    #[test]
    fn parsers_accept_no_value_that_check_refuses() {
        let accepts = |line: &FieldLine, buf: &[u8]| field::check(b"", line.value.of(buf)) == Ok(());
        let mut accepted = 0;
        for byte in 0..=255u8 {
            for value in [
                &[byte][..],
                &[b'a', byte],
                &[b'a', byte, b'b'],
                &[b"sixteen letters.", &[byte, b'y'][..]].concat(),
            ] {
                let lines = [b"\r\nX: ", value, b"\r\nServer: ", value, b"\r\n\r\n"].concat();
                let mut head = ResponseHead::default();
                head.buf = [b"HTTP/1.1 200 OK", &lines[..]].concat();
                let _ = client::parse(&mut head, usize::MAX);
                assert!(
                    head.fields.iter().all(|f| accepts(f, &head.buf)),
                    "{byte} in {value:?} of a response"
                );
                accepted += head.fields.len();
                let mut head = RequestHead::default();
                head.buf = [b"GET / HTTP/1.1\r\nHost: a", &lines[..]].concat();
                let _ = request::parse(&mut head, &request::Limits::default());
                assert!(
                    head.fields.iter().all(|f| accepts(f, &head.buf)),
                    "{byte} in {value:?} of a request"
                );
                accepted += head.fields.len();
            }
        }
        assert!(accepted > 2000, "{accepted}");
    }

    #[test]
    fn field_lines() {
        let mut out = Vec::new();
        assert_eq!(field(&mut out, b"Server", b"forebay"), Ok(()));
        for value in [&b"/a\r\nSet-Cookie: x"[..], b"a\nb", b"a\rb", b"a\0b"] {
            assert_eq!(field(&mut out, b"Location", value), Err(Unsafe { name: b"Location".to_vec() }));
        }
        assert_eq!(out, b"Server: forebay\r\n");
    }
}
