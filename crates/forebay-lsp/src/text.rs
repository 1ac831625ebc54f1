//! Places in a text as the protocol has them: lines and UTF-16 units from 0, against offsets in bytes.

use forebay_conf::tree::Span;
use lsp_types::{Position, Range, Uri};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// Returns the position of an offset. One behind the end is that of the end.
pub(crate) fn position(text: &[u8], offset: usize) -> Position {
    let before = text.get(..offset).unwrap_or(text);
    let line = before.iter().filter(|b| **b == b'\n').count();
    let start = before.iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
    let units = String::from_utf8_lossy(before.get(start..).unwrap_or_default()).encode_utf16().count();
    Position::new(u32::try_from(line).unwrap_or(u32::MAX), u32::try_from(units).unwrap_or(u32::MAX))
}

/// Returns the range of two offsets.
pub(crate) fn range(text: &[u8], start: usize, end: usize) -> Range {
    Range::new(position(text, start), position(text, end))
}

/// Returns the range of a span. Its line and column are known, so that nothing before them is read.
pub(crate) fn range_of(text: &[u8], span: Span) -> Range {
    let start = span.start as usize;
    let line_start = start.saturating_sub(span.column.saturating_sub(1) as usize);
    let line = span.line.saturating_sub(1);
    let units = |from: usize, to: usize| {
        let part = String::from_utf8_lossy(text.get(from..to).unwrap_or_default());
        u32::try_from(part.encode_utf16().count()).unwrap_or(u32::MAX)
    };
    let end = span.end as usize;
    let within = position(text.get(start..).unwrap_or_default(), end.saturating_sub(start));
    let begin = Position::new(line, units(line_start, start));
    let end = match within.line {
        0 => Position::new(line, begin.character.saturating_add(within.character)),
        more => Position::new(line.saturating_add(more), within.character),
    };
    Range::new(begin, end)
}

/// Returns the offset of a position. A position behind the end of a line is the end of the line.
pub(crate) fn offset(text: &[u8], position: Position) -> usize {
    let mut start = 0;
    for _ in 0..position.line {
        match text.get(start..).and_then(|rest| rest.iter().position(|b| *b == b'\n')) {
            Some(at) => start += at + 1,
            None => return text.len(),
        }
    }
    let line = text.get(start..).unwrap_or_default();
    let line = line.split(|b| *b == b'\n').next().unwrap_or_default();
    let mut units = 0;
    for (at, c) in String::from_utf8_lossy(line).char_indices() {
        if units >= position.character as usize {
            return start + at;
        }
        units += c.len_utf16();
    }
    start + line.len()
}

/// Returns the path of a `file:` URI (RFC 8089).
pub(crate) fn path(uri: &Uri) -> Option<PathBuf> {
    let text = uri.as_str().strip_prefix("file://")?;
    let path = text.strip_prefix("localhost").unwrap_or(text);
    let mut bytes = Vec::new();
    let mut rest = path.bytes();
    while let Some(b) = rest.next() {
        bytes.push(match b {
            b'%' => {
                let digits = [rest.next()?, rest.next()?];
                u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
            }
            b => b,
        });
    }
    Some(std::ffi::OsString::from_vec(bytes).into())
}

/// Returns the `file:` URI of a path.
pub(crate) fn uri(path: &Path) -> Option<Uri> {
    let mut text = String::from("file://");
    for b in path.as_os_str().as_bytes() {
        match b {
            b'/' | b'.' | b'_' | b'-' | b'~' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => {
                text.push(char::from(*b))
            }
            b => text.push_str(&format!("%{b:02X}")),
        }
    }
    Uri::from_str(&text).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_utf16() {
        let text = "a\nbä😀c\n".as_bytes();
        let c = text.iter().position(|b| *b == b'c').expect("a place");
        assert_eq!(position(text, c), Position::new(1, 4));
        assert_eq!(offset(text, Position::new(1, 4)), c);
        assert_eq!(offset(text, Position::new(1, 99)), text.len() - 1);
        assert_eq!(offset(text, Position::new(9, 0)), text.len());
        assert_eq!(position(text, 999), Position::new(2, 0));
    }

    #[test]
    fn ranges_of_spans_are_those_of_their_offsets() {
        let text = "a\n  ä \"b\nc😀\" d\n".as_bytes();
        let place = |byte: u8| text.iter().position(|b| *b == byte).expect("a place");
        let (start, end) = (place(b'"'), text.iter().rposition(|b| *b == b'"').expect("a place") + 1);
        let column = u32::try_from(start - 2 + 1).expect("short");
        let offset = |at: usize| u32::try_from(at).expect("short");
        let span = Span { line: 2, column, start: offset(start), end: offset(end), ..Span::default() };
        assert_eq!(range_of(text, span), range(text, start, end));
    }

    #[test]
    fn uris_of_paths() {
        let path_of = |text: &str| path(&Uri::from_str(text).expect("a URI"));
        let odd = Path::new("/etc/ngi nx/a%b.conf");
        let made = uri(odd).expect("a URI");
        assert_eq!(made.as_str(), "file:///etc/ngi%20nx/a%25b.conf");
        assert_eq!(path(&made).as_deref(), Some(odd));
        assert_eq!(path_of("file://localhost/a").as_deref(), Some(Path::new("/a")));
        assert_eq!(path_of("untitled:x"), None);
    }
}
