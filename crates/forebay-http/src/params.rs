//! Small parsers for what modules look up in fields and queries. Hot path.

/// Value of a cookie in the values of the `Cookie` fields, in order; the first one counts (nginx:
/// `$cookie_NAME`). Names are compared without regard to case, only `;` separates, and blanks around the
/// name and before the value are skipped.
pub fn cookie<'a>(mut fields: impl Iterator<Item = &'a [u8]>, name: &[u8]) -> Option<&'a [u8]> {
    if name.is_empty() {
        return None;
    }
    fields.find_map(|field| cookie_in(field, name))
}

fn cookie_in<'a>(field: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    for pair in field.split(|&b| b == b';') {
        let pair = skip_blanks(pair);
        let Some((start, after)) = pair.split_at_checked(name.len()) else { continue };
        if !start.eq_ignore_ascii_case(name) {
            continue;
        }
        match skip_blanks(after) {
            [b'=', value @ ..] => return Some(skip_blanks(value)),
            // Just the name: nginx skips the rest of this field.
            [] => return None,
            _ => {}
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

/// Returns `true` if a list, for instance the value of `Connection`, has this element, without regard to case.
pub(crate) fn list_has(value: &[u8], element: &[u8]) -> bool {
    // Mostly it is the only one.
    value.eq_ignore_ascii_case(element) || list(value).any(|e| e.eq_ignore_ascii_case(element))
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

/// Returns `text` without the blanks at its start.
pub(crate) fn skip_blanks(mut text: &[u8]) -> &[u8] {
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
    fn lists_and_quotes() {
        let got: Vec<_> = list(b" a,, b=\"x,\\\",y\" ,c").collect();
        assert_eq!(got, [&b"a"[..], b"b=\"x,\\\",y\"", b"c"]);
        assert!(list_has(b"keep-alive, Upgrade", b"upgrade") && !list_has(b"upgraded", b"upgrade"));
        let mut out = Vec::new();
        quote(b"a\"\\", &mut out);
        assert_eq!(out, b"\"a\\\"\\\\\"");
    }
}
