//! Heads that CGI programs write (RFC 3875, section 6), as FastCGI servers pass them on. They are made into heads of
//! HTTP/1, so that all that follows sees one form. Lines may end in LF alone. Hot path.

use crate::field::Name;
use crate::h1::client::{self, BadResponse, ResponseHead};
use crate::h1::request::Status;
use crate::h1::response;

/// Status line before the lines of the program, until its status is known.
const PRELUDE: &[u8] = b"HTTP/1.1 200 OK\r\n";
/// Place of the status in it.
const STATUS: std::ops::Range<usize> = 9..15;

/// Longest reason phrase that is taken over, bytes.
const LONGEST: usize = 60;

/// Reason for refusing a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BadHead {
    /// It is malformed as a head of HTTP/1.
    Http(BadResponse),
    /// `Status` has no number, or none that can end a request. The index of its line in `fields`.
    Status(usize),
}

impl BadHead {
    /// Appends nginx's error log text, without the context that nginx adds to every line.
    pub fn message(&self, head: &ResponseHead, out: &mut Vec<u8>) {
        match self {
            BadHead::Http(bad) => bad.message(head, out),
            BadHead::Status(i) => {
                out.extend_from_slice(b"upstream sent invalid status \"");
                out.extend_from_slice(head.fields.get(*i).map_or(b"", |f| f.value.of(&head.buf)));
                out.push(b'"');
            }
        }
    }
}

/// Makes an empty head ready for the output of a program, which is appended to `buf`.
pub fn begin(head: &mut ResponseHead) {
    head.advance(usize::MAX);
    head.buf.extend_from_slice(PRELUDE);
}

/// Decides whether a head has a status line of HTTP in front of its lines, which some servers that are not FastCGI's put
/// there. If so, the status line of [`begin`] is removed, and [`client::parse`] reads the program's. `None`: too few bytes
/// have come.
pub fn has_status_line(head: &mut ResponseHead) -> Option<bool> {
    const START: &[u8] = b"HTTP/";
    let came = head.buf.get(PRELUDE.len()..).unwrap_or_default();
    let has = match came.first_chunk::<5>() {
        Some(start) => start == START,
        None if START.starts_with(came) => return None,
        None => false,
    };
    if has {
        head.advance(PRELUDE.len());
    }
    Some(has)
}

/// Parses on from where the last call stopped, as [`client::parse`]. Without a `Status` that of a head with `Location`
/// is 302, and of any other 200.
///
/// # Errors
/// An invalid line, framing that could be understood in two ways, or a status below 200 or above 999.
pub fn parse(head: &mut ResponseHead, max_len: usize) -> Result<Status, BadHead> {
    if head.len > 0 {
        return Ok(Status::Complete);
    }
    let status = client::parse(head, max_len.saturating_add(PRELUDE.len())).map_err(BadHead::Http)?;
    if status == Status::Partial {
        return Ok(Status::Partial);
    }
    let mut line = [0; LONGEST + 4];
    let len = status_line(head, &mut line)?;
    if len == 0 {
        return Ok(Status::Complete);
    }
    head.buf.splice(STATUS, line.iter().take(len).copied());
    head.advance(0);
    client::parse(head, usize::MAX).map_err(BadHead::Http)
}

/// Writes code and reason phrase of the status to `line`; a phrase that the program has not sent is empty. Returns their length, 0 if [`PRELUDE`] has them already.
fn status_line(head: &ResponseHead, line: &mut [u8; LONGEST + 4]) -> Result<usize, BadHead> {
    let status = head.fields.iter().position(|f| {
        f.id == Name::Other && f.name.len() == 6 && f.name.of(&head.buf).eq_ignore_ascii_case(b"Status")
    });
    let Some((i, f)) = status.and_then(|i| head.fields.get(i).map(|f| (i, *f))) else {
        let redirects = head.get(Name::Location).is_some();
        return Ok(if redirects { put(line, 302, b"Moved Temporarily") } else { 0 });
    };
    let value = f.value.of(&head.buf);
    // Most programs send the status that is assumed.
    if value == b"200 OK" {
        return Ok(0);
    }
    let (code, text) = code(value).ok_or(BadHead::Status(i))?;
    // No program reads the phrase, so the rest of a longer one is no loss.
    Ok(put(line, code, text.get(..LONGEST).unwrap_or(text)))
}

/// Reads code and reason phrase of `Status`.
fn code(value: &[u8]) -> Option<(u16, &[u8])> {
    let (digits, rest) = value.split_first_chunk::<3>()?;
    if !digits.iter().all(u8::is_ascii_digit) || rest.first().is_some_and(u8::is_ascii_digit) {
        return None;
    }
    let code = digits.iter().fold(0, |n, d| n * 10 + u16::from(d - b'0'));
    // An interim response is none here: the client would wait for another.
    let text = rest.strip_prefix(b" ").unwrap_or_default().trim_ascii_end();
    (code >= 200).then_some((code, text))
}

fn put(line: &mut [u8; LONGEST + 4], code: u16, text: &[u8]) -> usize {
    line[..3].copy_from_slice(&response::three_digits(code));
    line[3] = b' ';
    let len = 4 + text.len();
    if let Some(place) = line.get_mut(4..len) {
        place.copy_from_slice(text);
    }
    len
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_in(input: &[u8], piece: usize) -> (ResponseHead, Result<Status, BadHead>) {
        let mut head = ResponseHead::default();
        begin(&mut head);
        for part in input.chunks(piece) {
            head.buf.extend_from_slice(part);
            match parse(&mut head, 4096) {
                Ok(Status::Partial) => {}
                done => return (head, done),
            }
        }
        (head, Ok(Status::Partial))
    }

    /// Status line, and what is behind the head.
    fn run(input: &str) -> Result<(String, Vec<u8>), String> {
        let (slow, slowly) = run_in(input.as_bytes(), 1);
        let (head, whole) = run_in(input.as_bytes(), input.len().max(1));
        match (slowly, whole) {
            (Ok(Status::Complete), Ok(Status::Complete)) => {
                assert_eq!((slow.status, slow.len), (head.status, head.len));
                let text = String::from_utf8_lossy(head.status_text.of(&head.buf)).into_owned();
                assert!(text.starts_with(&head.status.to_string()));
                Ok((text, head.buf[head.len..].to_vec()))
            }
            (Err(a), Err(b)) => {
                let (mut one, mut other) = (Vec::new(), Vec::new());
                a.message(&slow, &mut one);
                b.message(&head, &mut other);
                assert_eq!(one, other);
                Err(String::from_utf8_lossy(&one).into_owned())
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn statuses() {
        for (lines, want) in [
            ("Content-Type: text/plain\r\n", "200 OK"),
            ("Content-Type: text/plain\n", "200 OK"),
            ("", "200 OK"),
            ("Status: 200 OK\r\n", "200 OK"),
            ("status:404 Not Here\r\nX: y\r\n", "404 Not Here"),
            ("Status: 404\r\n", "404 "),
            ("Status: 599\n", "599 "),
            ("Status: 404Foo\r\n", "404 "),
            ("Status: 404  Not  Here \r\n", "404  Not  Here"),
            ("Status: 200 Fine\r\nStatus: 403 No\r\n", "200 Fine"),
            ("Location: /x\r\n", "302 Moved Temporarily"),
            ("Status: 201 Made\r\nLocation: /x\r\n", "201 Made"),
            ("Location: /x\r\nStatus: 200 OK\r\n", "200 OK"),
        ] {
            let got = run(&format!("{lines}\r\nbody")).expect(lines);
            assert_eq!(got.0, want, "{lines}");
            assert_eq!(got.1, if lines.is_empty() { &b"body"[..] } else { &got.1 });
        }
        let long = format!("Status: 500 {}\r\n\r\n", "x".repeat(1000));
        assert_eq!(run(&long).expect("it is cut").0.len(), 64);
    }

    #[test]
    fn refusals() {
        for (lines, want) in [
            ("Status: foo\r\n", "upstream sent invalid status \"foo\""),
            ("Status:\r\n", "upstream sent invalid status \"\""),
            ("Status: 99\r\n", "upstream sent invalid status \"99\""),
            ("Status: 1000 x\r\n", "upstream sent invalid status \"1000 x\""),
            ("Status: 101 Switching\r\n", "upstream sent invalid status \"101 Switching\""),
            ("X y: z\r\n", "upstream sent invalid header: \"X\\x20...\""),
            (
                "Content-Length: 1\nContent-Length: 1\n",
                "upstream sent duplicate header line: \"Content-Length: 1\", previous value: \"Content-Length: 1\"",
            ),
        ] {
            assert_eq!(run(&format!("{lines}\r\n")), Err(want.to_owned()));
        }
        assert_eq!(
            run(&format!("X: {}\r\n\r\n", "a".repeat(5000))),
            Err("upstream sent too big header".into())
        );
    }

    #[test]
    fn status_lines_are_told_apart() {
        let told = |text: &[u8]| {
            let mut head = ResponseHead::default();
            begin(&mut head);
            head.buf.extend_from_slice(text);
            (has_status_line(&mut head), head.buf)
        };
        assert_eq!(told(b"").0, None);
        assert_eq!(told(b"HTTP").0, None);
        assert_eq!(told(b"HTTP/1.1 2"), (Some(true), b"HTTP/1.1 2".to_vec()));
        assert_eq!(told(b"HTTPS: x\n").0, Some(false));
        assert_eq!(told(b"X").0, Some(false));
    }

    #[test]
    fn the_head_can_be_read_again() {
        let (head, _) = run_in(b"Status: 404 Gone away\nX: y\n\nrest", 3);
        let mut again = ResponseHead::default();
        again.buf.extend_from_slice(&head.buf[..head.len]);
        assert_eq!(client::parse(&mut again, usize::MAX), Ok(Status::Complete));
        assert_eq!((again.status, again.fields.len()), (404, 2));
    }
}
