//! Request targets: decoding, normalisation and escaping of paths (RFC 3986, sections 2.1 and 5.2.4; the
//! accepted set and the escape sets are nginx's). Hot path.

/// The target cannot be mapped to a path: a broken or zero escape, or a climb above the root.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidUri;

/// Value of each hexadecimal digit, 0xff for other bytes.
pub(crate) static HEX: [u8; 256] = {
    let mut t = [0xffu8; 256];
    let mut i = 0u8;
    while i < 10 {
        t[(b'0' + i) as usize] = i;
        i += 1;
    }
    let mut i = 0u8;
    while i < 6 {
        t[(b'a' + i) as usize] = 10 + i;
        t[(b'A' + i) as usize] = 10 + i;
        i += 1;
    }
    t
};

/// The parts of a target, as lengths from its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Split {
    /// Length of the undecoded path.
    pub path: usize,
    /// Start and end of the query without its `?`, if there is a `?`.
    pub args: Option<(usize, usize)>,
}

/// Finds path and query of a target in origin form. A fragment, which clients should not send, belongs to
/// neither.
pub fn split(target: &[u8]) -> Split {
    let end = memchr::memchr(b'#', target).unwrap_or(target.len());
    let before = target.get(..end).unwrap_or(target);
    match memchr::memchr(b'?', before) {
        Some(q) => Split { path: q, args: Some((q + 1, end)) },
        None => Split { path: end, args: None },
    }
}

/// Decodes `%XX` and resolves `.` and `..` segments of `raw`, a path without query and fragment, into
/// `out`, which is replaced. An escaped slash or dot counts as a plain one. With `merge_slashes` (nginx:
/// merge_slashes) empty segments vanish. An empty `raw` gives `/`.
///
/// # Errors
/// A `%` without two hexadecimal digits, `%00`, or `..` above the root.
pub fn normalise(raw: &[u8], merge_slashes: bool, out: &mut Vec<u8>) -> Result<(), InvalidUri> {
    out.clear();
    out.push(b'/');
    let mut segment = 1;
    let mut rest = raw.strip_prefix(b"/").unwrap_or(raw);
    while let Some((&first, after)) = rest.split_first() {
        let (byte, after) = if first == b'%' { unescape_one(after)? } else { (first, after) };
        rest = after;
        if byte == b'/' {
            segment = close_segment(out, segment, merge_slashes, true)?;
        } else {
            out.push(byte);
        }
    }
    close_segment(out, segment, merge_slashes, false)?;
    Ok(())
}

/// The byte of the two digits after a `%`, and what follows them.
fn unescape_one(after: &[u8]) -> Result<(u8, &[u8]), InvalidUri> {
    let (&[high, low], rest) = after.split_first_chunk::<2>().ok_or(InvalidUri)?;
    let (high, low) = (HEX[high as usize], HEX[low as usize]);
    // Both are at most 15, or 0xff where the digit is none.
    if high | low == 0xff || high | low == 0 {
        return Err(InvalidUri);
    }
    Ok((high << 4 | low, rest))
}

/// Ends the segment that starts at `segment`, with a slash or with the end of the path; gives the start of
/// the next one. `out` before `segment` always ends with a slash.
fn close_segment(
    out: &mut Vec<u8>,
    segment: usize,
    merge_slashes: bool,
    slash: bool,
) -> Result<usize, InvalidUri> {
    match out.get(segment..).unwrap_or_default() {
        b"." => {
            out.truncate(segment);
            Ok(segment)
        }
        b".." => {
            let parent = out.get(..segment.saturating_sub(1)).unwrap_or_default();
            let start = memchr::memrchr(b'/', parent).ok_or(InvalidUri)? + 1;
            out.truncate(start);
            Ok(start)
        }
        b"" if merge_slashes => Ok(segment),
        _ => {
            if slash {
                out.push(b'/');
            }
            Ok(out.len())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(raw: &str, merge: bool) -> Result<String, InvalidUri> {
        let mut out = b"old".to_vec();
        normalise(raw.as_bytes(), merge, &mut out)?;
        Ok(out.iter().map(|&b| char::from(b)).collect())
    }

    #[test]
    fn normalises_as_nginx() {
        for (raw, want) in [
            ("", "/"),
            ("/", "/"),
            ("/a/../b", "/b"),
            ("/a/..", "/"),
            ("/a/.", "/a/"),
            ("/a/./b", "/a/b"),
            ("/a/.b", "/a/.b"),
            ("/a/..b", "/a/..b"),
            ("/a/.../b", "/a/.../b"),
            ("//a", "/a"),
            ("/a///..//b", "/b"),
            ("/a/%2e%2E/b", "/b"),
            ("/a%2f..%2Fb", "/b"),
            ("/a%2F%2Fb", "/a/b"),
            ("/a%3fb", "/a?b"),
            ("/a%2541", "/a%41"),
            ("/a+b%20c", "/a+b c"),
            ("/a%7f%0a", "/a\u{7f}\n"),
            ("/a\\..\\b", "/a\\..\\b"),
            ("/a%2e%2e/", "/a../"),
            ("/a//../b", "/b"),
            ("/a/b//../../c", "/c"),
        ] {
            assert_eq!(path(raw, true), Ok(want.to_owned()), "{raw}");
        }
        for (raw, want) in [
            ("//a//b", "//a//b"),
            ("/a//../b", "/a/b"),
            ("/a/b///../../../c", "/a/c"),
            ("//..", "/"),
            ("/a/%2f..", "/a/"),
            ("/./a//./b", "/a//b"),
            ("/a%2f%2fb", "/a//b"),
        ] {
            assert_eq!(path(raw, false), Ok(want.to_owned()), "{raw}");
        }
    }

    #[test]
    fn refuses_as_nginx() {
        for raw in [
            "/..", "/../", "/../a", "/a/../..", "/%2e%2e", "/a%2", "/a%", "/a%zz", "/a%00", "/%2f..",
            "//../a", "/%0", "/%f", "/%0g", "/%g0",
        ] {
            assert_eq!(path(raw, true), Err(InvalidUri), "{raw}");
        }
    }

    #[test]
    fn splits_path_and_query() {
        assert_eq!(split(b"/a"), Split { path: 2, args: None });
        assert_eq!(split(b"/a?"), Split { path: 2, args: Some((3, 3)) });
        assert_eq!(split(b"/a?b?c"), Split { path: 2, args: Some((3, 6)) });
        assert_eq!(split(b"/a?b#f"), Split { path: 2, args: Some((3, 4)) });
        assert_eq!(split(b"/a#f?b"), Split { path: 2, args: None });
        assert_eq!(split(b"?b"), Split { path: 0, args: Some((1, 2)) });
    }
}
