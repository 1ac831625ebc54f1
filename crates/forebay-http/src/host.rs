//! Host validation: the value of `Host`, the host of an absolute-form target, and `:authority`
//! (RFC 3986, section 3.2.2; the accepted set is nginx's). Hot path.

/// The text is not a host that nginx would accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InvalidHost;

const REG_NAME: u8 = 1;
const LITERAL: u8 = 2;

/// Per byte: whether a name, and whether an address in brackets, may have it.
static CLASS: [u8; 256] = {
    let mut t = [0u8; 256];
    let both = b"!$&'()*+,;=-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let mut i = 0;
    while i < both.len() {
        t[both[i] as usize] = REG_NAME | LITERAL;
        i += 1;
    }
    t[b'%' as usize] = REG_NAME;
    t[b':' as usize] = LITERAL;
    t
};

/// Checks `text` and replaces `out` with its host: lower-cased, without port and without a final dot.
/// The port is returned if one is there (`host:` has none); it is at most 65535.
///
/// # Errors
/// An empty host, two dots in a row, a byte outside the sets of RFC 3986, an unfinished literal, or a
/// port that is not a number below 65536.
pub fn parse(text: &[u8], out: &mut Vec<u8>) -> Result<Option<u16>, InvalidHost> {
    out.clear();
    let (host, port) = check(text)?;
    out.extend_from_slice(host);
    out.make_ascii_lowercase();
    Ok(port)
}

/// Returns the part of `text` that is the host, in the case in which it was written. Refuses what [`parse`] refuses.
///
/// # Errors
/// Errors of [`parse`].
pub fn check(text: &[u8]) -> Result<(&[u8], Option<u16>), InvalidHost> {
    let (mut host, rest) = text.split_at_checked(host_len(text)?).ok_or(InvalidHost)?;
    let port = port(rest)?;
    if let [before @ .., b'.'] = host {
        host = before;
    }
    if host.is_empty() {
        return Err(InvalidHost);
    }
    Ok((host, port))
}

/// Length of the host before an optional `:port`.
#[inline]
fn host_len(text: &[u8]) -> Result<usize, InvalidHost> {
    if text.first() == Some(&b'[') { literal_len(text) } else { name_len(text) }
}

/// Length of the name before an optional `:port`.
fn name_len(text: &[u8]) -> Result<usize, InvalidHost> {
    let mut previous = 0u8;
    for (i, &b) in text.iter().enumerate() {
        if CLASS[b as usize] & REG_NAME == 0 {
            return if b == b':' { Ok(i) } else { Err(InvalidHost) };
        }
        if b == b'.' && previous == b'.' {
            return Err(InvalidHost);
        }
        previous = b;
    }
    Ok(text.len())
}

/// Length of a bracketed literal, brackets included.
fn literal_len(text: &[u8]) -> Result<usize, InvalidHost> {
    let mut previous = 0u8;
    for (i, &b) in text.iter().enumerate().skip(1) {
        if b == b']' {
            return Ok(i + 1);
        }
        if CLASS[b as usize] & LITERAL == 0 || (b == b'.' && previous == b'.') {
            return Err(InvalidHost);
        }
        previous = b;
    }
    Err(InvalidHost)
}

/// Reads the text behind a host: nothing, or a colon and perhaps a port.
#[inline]
fn port(text: &[u8]) -> Result<Option<u16>, InvalidHost> {
    match text {
        [] => Ok(None),
        [b':', digits @ ..] => parse_port(digits),
        _ => Err(InvalidHost),
    }
}

fn parse_port(digits: &[u8]) -> Result<Option<u16>, InvalidHost> {
    if digits.is_empty() {
        return Ok(None);
    }
    let mut value = 0u32;
    for &d in digits {
        if !d.is_ascii_digit() {
            return Err(InvalidHost);
        }
        value = value * 10 + u32::from(d - b'0');
        if value > u32::from(u16::MAX) {
            return Err(InvalidHost);
        }
    }
    Ok(u16::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(text: &str) -> Result<(String, Option<u16>), InvalidHost> {
        let mut out = b"old".to_vec();
        let port = parse(text.as_bytes(), &mut out)?;
        Ok((String::from_utf8(out).expect("ASCII only"), port))
    }

    #[test]
    fn accepts_what_nginx_accepts() {
        for (text, host, port) in [
            ("a", "a", None),
            ("A.Example.:80", "a.example", Some(80)),
            ("a.", "a", None),
            ("a:", "a", None),
            (".a", ".a", None),
            ("a:000080", "a", Some(80)),
            ("a:65535", "a", Some(65535)),
            ("a%zz", "a%zz", None),
            ("a,b_~", "a,b_~", None),
            ("[::1]", "[::1]", None),
            ("[::1]:", "[::1]", None),
            ("[]", "[]", None),
            ("[a.]:1", "[a.]", Some(1)),
            ("[v0.!$&'()*+,;=-._~Z:]", "[v0.!$&'()*+,;=-._~z:]", None),
        ] {
            assert_eq!(run(text), Ok((host.to_owned(), port)), "{text}");
        }
    }

    #[test]
    fn refuses_what_nginx_refuses() {
        for text in [
            "", ".", ":80", "a..", "a..b", "a b", "a:65536", "a:80:80", "a:8x", "a:-1", "u@a", "a/b",
            "[::1].", "[::1", "[::1]a", "[a..b]", "[a%1]", "a[", "a]", "\u{e9}", "a\u{7f}",
        ] {
            assert_eq!(run(text), Err(InvalidHost), "{text}");
        }
    }
}
