//! Byte ranges (RFC 9110, section 14), with nginx's rules for lists. Hot path.

use crate::h1::response::number;
use crate::params::skip_blanks;

/// One range of a representation, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// Offset of the first byte.
    pub start: u64,
    /// Offset after the last one; greater than `start`, at most the length of the representation.
    pub end: u64,
}

impl ByteRange {
    /// Length in bytes, at least 1.
    pub fn len(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Never: an empty range is not satisfiable.
    pub fn is_empty(self) -> bool {
        self.start >= self.end
    }
}

/// The response that a `Range` field calls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ranges {
    /// Another unit, too many ranges or more bytes than there are: send all with status 200.
    Whole,
    /// Send the ranges with status 206.
    Partial,
    /// Malformed or beyond the end: status 416 with `Content-Range: bytes */LENGTH`.
    Unsatisfiable,
}

/// Parses the value of `Range` for a representation of `len` bytes. The satisfiable ranges, in the order
/// asked for, replace `out`. `max_ranges` (nginx: max_ranges) is the most of them; with 0 ranges are off.
pub fn parse(value: &[u8], len: u64, max_ranges: usize, out: &mut Vec<ByteRange>) -> Ranges {
    out.clear();
    let Some((unit, mut rest)) = value.split_at_checked(6) else { return Ranges::Whole };
    if rest.is_empty() || max_ranges == 0 || !unit.eq_ignore_ascii_case(b"bytes=") {
        return Ranges::Whole;
    }
    loop {
        let Some((range, after)) = one(rest, len) else { return Ranges::Unsatisfiable };
        if len == 0 && range.start == 0 {
            // All that there is, whatever follows.
            return Ranges::Whole;
        }
        if !range.is_empty() {
            if out.len() >= max_ranges {
                return Ranges::Whole;
            }
            out.push(range);
        }
        let [_comma, next @ ..] = after else { return judge(out, len) };
        rest = next;
    }
}

/// Decides about satisfiable ranges.
fn judge(ranges: &[ByteRange], len: u64) -> Ranges {
    let total: u128 = ranges.iter().map(|range| u128::from(range.len())).sum();
    if total > u128::from(len) {
        Ranges::Whole
    } else if ranges.is_empty() {
        Ranges::Unsatisfiable
    } else {
        Ranges::Partial
    }
}

/// The range at the start of `text`, cut to the representation (so it may be empty), and what follows:
/// nothing or a comma. `None` if it is malformed.
fn one(text: &[u8], len: u64) -> Option<(ByteRange, &[u8])> {
    let text = skip_blanks(text);
    let (range, after) = match text.strip_prefix(b"-") {
        Some(suffix) => suffix_range(suffix, len)?,
        None => int_range(text, len)?,
    };
    is_end(after).then_some((range, after))
}

/// Reads the length of a suffix range, behind its dash: so many bytes at the end.
fn suffix_range(text: &[u8], len: u64) -> Option<(ByteRange, &[u8])> {
    let (count, after) = digits(text)?;
    Some((ByteRange { start: len.saturating_sub(count), end: len }, skip_blanks(after)))
}

/// Reads `FIRST-LAST` or `FIRST-`.
fn int_range(text: &[u8], len: u64) -> Option<(ByteRange, &[u8])> {
    let (start, after) = digits(text)?;
    let after = skip_blanks(skip_blanks(after).strip_prefix(b"-")?);
    let (end, after) = if is_end(after) { (len, after) } else { last(after, len)? };
    Some((ByteRange { start, end }, after))
}

/// Reads the last position of a range. Returns the position behind it.
fn last(text: &[u8], len: u64) -> Option<(u64, &[u8])> {
    let (last, after) = digits(text)?;
    Some((last.saturating_add(1).min(len), skip_blanks(after)))
}

/// Returns `true` if a range ends before `text`.
fn is_end(text: &[u8]) -> bool {
    matches!(text.first(), None | Some(b','))
}

/// At least one digit, below 2^63.
fn digits(text: &[u8]) -> Option<(u64, &[u8])> {
    let len = text.iter().position(|b| !b.is_ascii_digit()).unwrap_or(text.len());
    let (number, rest) = text.split_at_checked(len)?;
    Some((crate::h1::request::content_length(number)?, rest))
}

/// Appends the value of `Content-Range` for a range of a representation of `len` bytes.
pub fn content_range(out: &mut Vec<u8>, range: ByteRange, len: u64) {
    out.extend_from_slice(b"bytes ");
    number(out, range.start);
    out.push(b'-');
    number(out, range.end.saturating_sub(1));
    out.push(b'/');
    number(out, len);
}

/// Appends the value of `Content-Range` of a 416 answer.
pub fn content_range_unsatisfied(out: &mut Vec<u8>, len: u64) {
    out.extend_from_slice(b"bytes */");
    number(out, len);
}

/// Appends what precedes the bytes of one part of `multipart/byteranges`, line end before it included.
pub fn part_head(out: &mut Vec<u8>, boundary: &[u8], content_type: &[u8], range: ByteRange, len: u64) {
    out.extend_from_slice(b"\r\n--");
    out.extend_from_slice(boundary);
    if !content_type.is_empty() {
        out.extend_from_slice(b"\r\nContent-Type: ");
        out.extend_from_slice(content_type);
    }
    out.extend_from_slice(b"\r\nContent-Range: ");
    content_range(out, range, len);
    out.extend_from_slice(b"\r\n\r\n");
}

/// Appends what follows the last part.
pub fn parts_end(out: &mut Vec<u8>, boundary: &[u8]) {
    out.extend_from_slice(b"\r\n--");
    out.extend_from_slice(boundary);
    out.extend_from_slice(b"--\r\n");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(spec: &str, len: u64, max: usize) -> String {
        let mut out = Vec::new();
        match parse(format!("bytes={spec}").as_bytes(), len, max, &mut out) {
            Ranges::Whole => "200".to_owned(),
            Ranges::Unsatisfiable => "416".to_owned(),
            Ranges::Partial => {
                out.iter().map(|r| format!("{}-{}", r.start, r.end - 1)).collect::<Vec<_>>().join(",")
            }
        }
    }

    #[test]
    fn lists_as_nginx() {
        for (spec, want) in [
            ("0-1", "0-1"),
            ("0-", "0-9"),
            ("9-10", "9-9"),
            ("10-", "416"),
            ("-1", "9-9"),
            ("-0", "416"),
            ("-99", "0-9"),
            ("-", "416"),
            ("", "200"),
            ("0", "416"),
            ("0-a", "416"),
            ("1-0", "416"),
            ("0-1,3-4", "0-1,3-4"),
            ("0-1 , 3-4 ", "0-1,3-4"),
            (" 0 - 1", "0-1"),
            ("0-1,", "416"),
            (",0-1", "416"),
            ("0-1,99-", "0-1"),
            ("0-1,1-0", "0-1"),
            ("0-1,x", "416"),
            ("99-,98-", "416"),
            ("0-9,0-9", "200"),
            ("0-4,5-9", "0-4,5-9"),
            ("0-8,8-", "200"),
            ("-5,-5", "5-9,5-9"),
            ("- 5", "416"),
            ("0-1 2", "416"),
            ("0-1\t", "416"),
            ("0-9,0-9,x", "416"),
            ("0-9223372036854775807", "0-9"),
            ("0-9223372036854775808", "416"),
            ("-9223372036854775807", "0-9"),
        ] {
            assert_eq!(run(spec, 10, usize::MAX), want, "{spec}");
        }
    }

    #[test]
    fn limits_and_empty_content() {
        assert_eq!(run("0-1,3-4", 10, 1), "200");
        assert_eq!(run("0-1,99-", 10, 1), "0-1");
        assert_eq!(run("0-1,3-4,", 10, 1), "200");
        assert_eq!(run("0-1,", 10, 1), "416");
        assert_eq!(run("0-1", 10, 0), "200");
        assert_eq!(run("0-", 0, 9), "200");
        assert_eq!(run("-1", 0, 9), "200");
        assert_eq!(run("x", 0, 9), "416");
        assert_eq!(run("1-", 0, 9), "416");
        assert_eq!(run("1-,-1", 0, 9), "200");
        assert_eq!(run("0-1,x", 0, 9), "200");
    }

    #[test]
    fn units() {
        let mut out = Vec::new();
        assert_eq!(parse(b"BYTES=0-1", 10, 9, &mut out), Ranges::Partial);
        for value in [&b"items=0-1"[..], b"bytes", b"bytes=", b"", b"bytes =0-1"] {
            assert_eq!(parse(value, 10, 9, &mut out), Ranges::Whole);
        }
    }

    #[test]
    fn texts() {
        let mut out = Vec::new();
        let range = ByteRange { start: 3, end: 5 };
        part_head(&mut out, b"0001", b"text/plain", range, 10);
        parts_end(&mut out, b"0001");
        assert_eq!(
            out,
            b"\r\n--0001\r\nContent-Type: text/plain\r\nContent-Range: bytes 3-4/10\r\n\r\n\r\n--0001--\r\n"
        );
        out.clear();
        content_range_unsatisfied(&mut out, 10);
        assert_eq!(out, b"bytes */10");
    }
}
