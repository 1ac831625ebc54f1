//! Small parsers for what modules look up in fields and queries. Hot path.

/// Value of a cookie in the values of the `Cookie` fields, in order; the first one counts (nginx:
/// `$cookie_NAME`). Names are compared without regard to case, only `;` separates, and blanks around the
/// name and before the value are skipped.
pub fn cookie<'a>(fields: impl Iterator<Item = &'a [u8]>, name: &[u8]) -> Option<&'a [u8]> {
    if name.is_empty() {
        return None;
    }
    for field in fields {
        for pair in field.split(|&b| b == b';') {
            let pair = skip_blanks(pair);
            let Some((start, after)) = pair.split_at_checked(name.len()) else { continue };
            if !start.eq_ignore_ascii_case(name) {
                continue;
            }
            match skip_blanks(after) {
                [b'=', value @ ..] => return Some(skip_blanks(value)),
                // Just the name: nginx gives this field up.
                [] => break,
                _ => {}
            }
        }
    }
    None
}

/// Value of a query argument, not decoded; the first one with a `=` counts (nginx: `$arg_NAME`). Names are
/// compared without regard to case.
pub fn arg<'a>(args: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    if name.is_empty() {
        return None;
    }
    args.split(|&b| b == b'&').find_map(|pair| {
        let (start, after) = pair.split_at_checked(name.len())?;
        if start.eq_ignore_ascii_case(name) { after.strip_prefix(b"=") } else { None }
    })
}

/// Whether `Accept-Encoding` allows a content coding, by nginx's rules for gzip: the first mention after the
/// start, a comma or a blank decides; `*` is not looked at; a weight of zero or a malformed one refuses.
pub fn accepts_coding(value: &[u8], coding: &[u8]) -> bool {
    let mut from = 0;
    while let Some(window) = value.get(from..from + coding.len()) {
        let starts = from == 0 || matches!(value.get(from - 1), Some(b',' | b' '));
        if starts && window.eq_ignore_ascii_case(coding) {
            return weight_allows(value.get(from + coding.len()..).unwrap_or_default());
        }
        from += 1;
    }
    false
}

/// What follows the name of a coding: nothing, a comma, or a weight.
fn weight_allows(after: &[u8]) -> bool {
    match skip_blanks(after) {
        [] | [b',', ..] => true,
        [b';', params @ ..] => match skip_blanks(params) {
            [] => true,
            [b'q' | b'Q', b'=', number @ ..] => weight(number).is_some_and(|thousandths| thousandths > 0),
            _ => false,
        },
        _ => false,
    }
}

/// `0`, `1`, or one of them with a point and up to three digits, at most 1.000; then the end, a comma or a
/// blank. In thousandths.
fn weight(text: &[u8]) -> Option<u16> {
    let (&first, mut rest) = text.split_first()?;
    let mut value = match first {
        b'0' => 0,
        b'1' => 1000,
        _ => return None,
    };
    if let Some(mut decimals) = rest.strip_prefix(b".") {
        for scale in [100, 10, 1] {
            let [digit @ b'0'..=b'9', next @ ..] = decimals else { break };
            value += u16::from(digit - b'0') * scale;
            decimals = next;
        }
        rest = decimals;
    }
    (value <= 1000 && matches!(rest.first(), None | Some(b',' | b' '))).then_some(value)
}

/// Whether all of `text` is a token (RFC 9110, section 5.6.2).
pub fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|&b| crate::h1::chunked::is_token(b))
}

/// Elements of a comma-separated list (RFC 9110, section 5.6.1) without surrounding white space; empty ones
/// are left out. Commas in quoted strings do not separate.
pub fn list(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let (mut quoted, mut escaped) = (false, false);
    value
        .split(move |&b| {
            let plain = !std::mem::take(&mut escaped);
            match b {
                b'"' if plain => quoted = !quoted,
                b'\\' if plain && quoted => escaped = true,
                _ => {}
            }
            b == b',' && !quoted
        })
        .map(<[u8]>::trim_ascii)
        .filter(|element| !element.is_empty())
}

/// Whether a list, for instance the value of `Connection`, has this element, without regard to case.
pub fn list_has(value: &[u8], element: &[u8]) -> bool {
    // Mostly it is the only one.
    value.eq_ignore_ascii_case(element) || list(value).any(|e| e.eq_ignore_ascii_case(element))
}

/// Appends the content of a quoted string (RFC 9110, section 5.6.4) whose opening quote is the first byte,
/// and returns what follows the closing one. `None` if it is not a complete quoted string; `out` may then
/// have grown.
pub fn unquote<'a>(text: &'a [u8], out: &mut Vec<u8>) -> Option<&'a [u8]> {
    let mut rest = text.strip_prefix(b"\"")?;
    loop {
        match rest {
            [b'"', after @ ..] => return Some(after),
            [b'\\', b, after @ ..] | [b, after @ ..] => {
                out.push(*b);
                rest = after;
            }
            [] => return None,
        }
    }
}

/// Appends `text` as a quoted string.
pub fn quote(text: &[u8], out: &mut Vec<u8>) {
    out.push(b'"');
    for &b in text {
        if matches!(b, b'"' | b'\\') {
            out.push(b'\\');
        }
        out.push(b);
    }
    out.push(b'"');
}

fn skip_blanks(mut text: &[u8]) -> &[u8] {
    while let [b' ', rest @ ..] = text {
        text = rest;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cookies_as_nginx() {
        for (fields, want) in [
            (&["foo=1"][..], Some("1")),
            (&["Foo=1"], Some("1")),
            (&["a=1;foo=2"], Some("2")),
            (&["a=1,foo=2"], None),
            (&["a=1 foo=2"], None),
            (&["foo = 1"], Some("1")),
            (&["foo="], Some("")),
            (&["foo"], None),
            (&["foo;foo=3"], None),
            (&["foo", "foo=2"], Some("2")),
            (&["xfoo=1; foo=2"], Some("2")),
            (&["foo=\"a b\"; c=1"], Some("\"a b\"")),
            (&["foo=1 ;b"], Some("1 ")),
            (&["; foo=1;"], Some("1")),
            (&["foo=1=2"], Some("1=2")),
            (&["a=foo=1"], None),
            (&["a=\"foo=1\"; foo=2"], Some("2")),
            (&["a=b; \tfoo=2"], None),
            (&["$foo=1; foo=2"], Some("2")),
            (&["a=1", "foo=2", "foo=3"], Some("2")),
            (&[""], None),
        ] {
            let got = cookie(fields.iter().map(|f| f.as_bytes()), b"foo");
            assert_eq!(got, want.map(str::as_bytes), "{fields:?}");
        }
        assert_eq!(cookie([&b"=1"[..]].into_iter(), b""), None);
    }

    #[test]
    fn args_as_nginx() {
        for (args, want) in [
            ("foo=1", Some("1")),
            ("FOO=1", Some("1")),
            ("a=1&foo=2", Some("2")),
            ("a=1;foo=2", None),
            ("foo=1&foo=2", Some("1")),
            ("xfoo=1", None),
            ("foo", None),
            ("foo&foo=3", Some("3")),
            ("foo=", Some("")),
            ("foo=1=2", Some("1=2")),
            ("foo=%20", Some("%20")),
            ("f%6fo=1", None),
            ("a=foo=1", None),
            ("foofoo=1", None),
        ] {
            assert_eq!(arg(args.as_bytes(), b"foo"), want.map(str::as_bytes), "{args}");
        }
        assert_eq!(arg(b"=1", b""), None);
    }

    #[test]
    fn gzip_as_nginx() {
        for yes in [
            "gzip",
            "GZIP",
            "gzip;q=0.001",
            "gzip ; q=1",
            "gzip;q=1.0",
            "identity, gzip",
            "deflate gzip",
            "gzip,deflate",
            "gzip;q=0.5, gzip;q=0",
            "gzip;Q=1",
            " gzip",
            "gzip;q=1.000",
            "gzip;  q=1",
            "x-gzip, gzip",
            "gzip;q=1 x",
            "gzip;q=1 , x",
            "gzip,",
            "gzip ,x",
            "gzip;",
            "gzip; ",
            "gzip;q=1.,x",
        ] {
            assert!(accepts_coding(yes.as_bytes(), b"gzip"), "{yes}");
        }
        for no in [
            "x-gzip",
            "gzip;q=0",
            "gzip;q=0.0",
            "gzip;q=1.001",
            "gzip;q=2",
            "gzip;q=0.",
            "gzip;q=",
            "gzip;q=x",
            "*",
            "*;q=1",
            "identity",
            "gzip;q=0, *",
            "gzipx",
            "xgzip",
            "gzip deflate",
            "deflate;gzip",
            "gzip;a=b",
            "gzip;q=0.0001",
            "gzip;q=0, gzip",
            "gzip;Q=0",
            "gzip\t",
            "gzip;q=1.0000",
            "gzip;q=00",
            "gzip;q=01",
            "gzip;q=.5",
            "gzip;q=0.5x",
            "gzip;q= 1",
            "\"gzip\"",
            "gzipx, gzip",
            "gzip;q=1;a=b",
            "gzip;a=b;q=1",
            "gzip;q =1",
            "gzip;q",
            "gzip;q=0.0.1",
            "\tgzip",
            "",
            "gzi",
        ] {
            assert!(!accepts_coding(no.as_bytes(), b"gzip"), "{no}");
        }
    }

    #[test]
    fn lists_and_quotes() {
        let got: Vec<_> = list(b" a,, b=\"x,\\\",y\" ,c").collect();
        assert_eq!(got, [&b"a"[..], b"b=\"x,\\\",y\"", b"c"]);
        assert!(list_has(b"keep-alive, Upgrade", b"upgrade") && !list_has(b"upgraded", b"upgrade"));
        assert!(is_token(b"a-b") && !is_token(b"") && !is_token(b"a b"));
        let mut out = Vec::new();
        assert_eq!(unquote(b"\"a\\\"b\"; c", &mut out), Some(&b"; c"[..]));
        assert_eq!(out, b"a\"b");
        assert_eq!(unquote(b"\"a\\\"", &mut out), None);
        assert_eq!(unquote(b"a", &mut out), None);
        out.clear();
        quote(b"a\"\\", &mut out);
        assert_eq!(out, b"\"a\\\"\\\\\"");
    }
}
