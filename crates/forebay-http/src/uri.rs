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

/// Returns `true` if `target` is in origin form and has only bytes that nginx accepts there: neither controls nor blanks.
/// For targets that did not come in a request line, whose parser checks this itself.
pub fn is_plain(target: &[u8]) -> bool {
    target.first() == Some(&b'/') && target.iter().all(|&b| b > b' ' && b != 0x7f)
}

/// Decodes `%XX` and resolves `.` and `..` segments of `raw`, a path without query and fragment, into
/// `out`, which is replaced. An escaped slash or dot counts as a plain one. With `merge_slashes` (nginx:
/// merge_slashes) empty segments vanish. An empty `raw` gives `/`.
///
/// # Errors
/// A `%` without two hexadecimal digits, a zero byte or `%00`, or `..` above the root.
pub fn normalise(raw: &[u8], merge_slashes: bool, out: &mut Vec<u8>) -> Result<(), InvalidUri> {
    out.clear();
    out.push(b'/');
    let mut segment = 1;
    let mut rest = raw.strip_prefix(b"/").unwrap_or(raw);
    while let Some((&first, after)) = rest.split_first() {
        // Decoded before the segments are resolved, so that `%2e%2e` cannot climb.
        let (byte, after) = if first == b'%' { unescape_one(after)? } else { (first, after) };
        rest = after;
        // A path with a zero byte would be cut by the file system's interface.
        if byte == 0 {
            return Err(InvalidUri);
        }
        if byte == b'/' {
            segment = close_segment(out, segment, merge_slashes, true)?;
        } else {
            out.push(byte);
        }
    }
    close_segment(out, segment, merge_slashes, false)?;
    Ok(())
}

/// Decodes the two digits after a `%`. Returns their byte, and the bytes behind them.
fn unescape_one(after: &[u8]) -> Result<(u8, &[u8]), InvalidUri> {
    let (&[high, low], rest) = after.split_first_chunk::<2>().ok_or(InvalidUri)?;
    let (high, low) = (HEX[high as usize], HEX[low as usize]);
    // Both are at most 15, or 0xff where the digit is none.
    if high | low == 0xff {
        return Err(InvalidUri);
    }
    Ok((high << 4 | low, rest))
}

/// Ends the segment that starts at `segment`, with a slash or with the end of the path. Returns the start of
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
            // At the root the parent is empty and has no slash.
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

/// Classes of bytes that `escape` writes as `%XX`. Controls, blank and `%` are in every class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Escape {
    /// `Location` of a rewrite with an unnamed redirect: also `"`, `#` and bytes from 0x7f on.
    Redirect = 1,
    /// Paths sent to upstreams and in redirects to a directory: also `<>?\^\`{|}`.
    Uri = 2,
    /// Captures put into the query by a rewrite: also `&`, `+` and `;`.
    Args = 4,
    /// Parts of a URI, as in listings of a directory: all but unreserved characters.
    Component = 8,
    /// Keys of memcached: only controls, blank and `%`.
    Memcached = 16,
}

static ESCAPES: [u8; 256] = {
    let mut t = [0u8; 256];
    let mut i = 0;
    while i < 256 {
        let b = i as u8;
        let base = Escape::Redirect as u8 | Escape::Uri as u8 | Escape::Args as u8;
        if b <= b' ' || b == b'%' {
            t[i] = base | Escape::Component as u8 | Escape::Memcached as u8;
        } else if b >= 0x7f || b == b'"' || b == b'#' {
            t[i] = base | Escape::Component as u8;
        } else if matches!(b, b'<' | b'>' | b'?' | b'\\' | b'^' | b'`' | b'{' | b'|' | b'}') {
            t[i] = Escape::Uri as u8 | Escape::Args as u8 | Escape::Component as u8;
        } else if matches!(b, b'&' | b'+' | b';') {
            t[i] = Escape::Args as u8 | Escape::Component as u8;
        } else if !(b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_' | b'~')) {
            t[i] = Escape::Component as u8;
        }
        i += 1;
    }
    t
};

/// Appends `text` with the bytes of the class as `%XX`, digits in upper case.
pub fn escape(text: &[u8], class: Escape, out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    out.reserve(text.len());
    for &b in text {
        if ESCAPES[b as usize] & class as u8 == 0 {
            out.push(b);
        } else {
            out.extend_from_slice(&[b'%', DIGITS[b as usize >> 4], DIGITS[b as usize & 15]]);
        }
    }
}

/// Appends `text` with `"`, `&`, `<` and `>` as HTML entities.
pub fn escape_html(text: &[u8], out: &mut Vec<u8>) {
    let mut rest = text;
    while let Some((at, escape)) = rest.iter().enumerate().find_map(|(at, b)| Some((at, html_escape(*b)?))) {
        let (plain, special) = rest.split_at(at);
        out.extend_from_slice(plain);
        out.extend_from_slice(escape);
        rest = special.get(1..).unwrap_or_default();
    }
    out.extend_from_slice(rest);
}

fn html_escape(b: u8) -> Option<&'static [u8]> {
    match b {
        b'"' => Some(b"&quot;"),
        b'&' => Some(b"&amp;"),
        b'<' => Some(b"&lt;"),
        b'>' => Some(b"&gt;"),
        _ => None,
    }
}

/// Appends `text` with `%XX` decoded, as nginx does for values that it did not check before (for instance
/// `X-Accel-Redirect`): of a broken escape the `%` vanishes, and a first digit with the byte after it.
pub fn unescape(text: &[u8], out: &mut Vec<u8>) {
    let mut rest = text.iter();
    while let Some(&b) = rest.next() {
        if b != b'%' {
            out.push(b);
            continue;
        }
        let Some(&first) = rest.next() else { return };
        let high = HEX[first as usize];
        if high == 0xff {
            out.push(first);
            continue;
        }
        let Some(&second) = rest.next() else { return };
        let low = HEX[second as usize];
        if low != 0xff {
            out.push(high << 4 | low);
        }
    }
}

/// Returns `true` if a decoded path leads upwards or is cut short by a NUL, so that it must not name a file.
pub fn is_unsafe(path: &[u8]) -> bool {
    path.contains(&0) || path.split(|b| *b == b'/').any(|segment| segment == b"..")
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
    fn paths_upwards_are_unsafe() {
        for path in ["/..", "/a/../b", "..", "/a/..", "/a\0"] {
            assert!(is_unsafe(path.as_bytes()), "{path}");
        }
        for path in ["/", "", "/a//b", "/./a", "/a/...", "/..a", "/a..", "/%2e%2e/"] {
            assert!(!is_unsafe(path.as_bytes()), "{path}");
        }
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
        assert!(is_plain(b"/a?%00\xff") && !is_plain(b"a") && !is_plain(b"/a b") && !is_plain(b"/\x7f"));
        assert_eq!(split(b"?b"), Split { path: 0, args: Some((1, 2)) });
    }

    #[test]
    fn escape_classes_are_nginx_s() {
        let needs_escape = |text: &[u8], class| {
            let mut out = Vec::new();
            escape(text, class, &mut out);
            out != text
        };
        let changed = |class| {
            let all: Vec<u8> = (0x21..0x7f).collect();
            all.into_iter().filter(|&b| needs_escape(&[b], class)).map(char::from).collect::<String>()
        };
        assert_eq!(changed(Escape::Redirect), "\"#%");
        assert_eq!(changed(Escape::Uri), "\"#%<>?\\^`{|}");
        assert_eq!(changed(Escape::Args), "\"#%&+;<>?\\^`{|}");
        assert_eq!(changed(Escape::Component), "!\"#$%&'()*+,/:;<=>?@[\\]^`{|}");
        assert_eq!(changed(Escape::Memcached), "%");
        for class in [Escape::Redirect, Escape::Uri, Escape::Args, Escape::Component] {
            assert!(needs_escape(b"\x7f", class) && needs_escape(b"\xff", class));
        }
        assert!(!needs_escape(b"\x7f\xff", Escape::Memcached));
        let mut out = Vec::new();
        escape(b"/a b%\xff?", Escape::Uri, &mut out);
        assert_eq!(out, b"/a%20b%25%FF%3F");
        out.clear();
        escape_html(b"<a href=\"'&\">", &mut out);
        assert_eq!(out, b"&lt;a href=&quot;'&amp;&quot;&gt;");
    }

    #[test]
    fn lenient_unescaping() {
        for (text, want) in [
            ("a%41b", "aAb"),
            ("a%zzb", "azzb"),
            ("a%4", "a"),
            ("a%", "a"),
            ("a%4zb", "ab"),
            ("%%41", "%41"),
            ("a+b", "a+b"),
        ] {
            let mut out = Vec::new();
            unescape(text.as_bytes(), &mut out);
            assert_eq!(out, want.as_bytes(), "{text}");
        }
    }
}
