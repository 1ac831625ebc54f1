//! Values of parameters: variables in them, conditions, and targets of includes.

use super::shared;
use forebay_core::pattern::fleeting::{self, Matched};
use forebay_core::vars::VarError;
use forebay_server::request::Request;
use std::borrow::Cow;

/// Reason why a value cannot be evaluated, for the log.
pub(super) type Invalid = String;

impl From<VarError> for Problem {
    fn from(e: VarError) -> Problem {
        Problem(e.0)
    }
}

/// Reason why a command fails, for the log.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Problem(pub Invalid);

/// Returns the value of a variable. Variables set by the page come first, then captures of its last regular expression,
/// then variables of the request.
pub(super) fn variable(
    req: &mut Request,
    matched: &Matched,
    name: &[u8],
) -> Result<Option<Vec<u8>>, Problem> {
    let name = name.to_ascii_lowercase();
    if let Some(v) = shared(req).borrow().variable(&name) {
        return Ok(Some(v.to_vec()));
    }
    // Names of digits are the groups of the last regular expression in a condition, `$1` and so on.
    if !name.is_empty() && name.iter().all(u8::is_ascii_digit) {
        let n = std::str::from_utf8(&name).ok().and_then(|n| n.parse::<usize>().ok());
        return Ok(n.and_then(|n| matched.groups.get(n)?.clone()));
    }
    if let Some((_, n)) = matched.names.iter().find(|(text, _)| *text == name) {
        return Ok(matched.groups.get(*n).cloned().flatten());
    }
    Ok(req.var_named(&name)?)
}

/// Replaces the variables in a text. A backslash escapes a dollar sign, a quote or a backslash.
pub(super) fn evaluate<'t>(
    req: &mut Request,
    matched: &Matched,
    text: &'t [u8],
) -> Result<Cow<'t, [u8]>, Problem> {
    // Most values are constant, and are used without a copy.
    if memchr::memchr2(b'$', b'\\', text).is_none() {
        return Ok(Cow::Borrowed(text));
    }
    let mut out = Vec::new();
    let mut rest = text;
    while let Some((b, after)) = rest.split_first() {
        match (b, after.first()) {
            (b'\\', Some(escaped @ (b'$' | b'"' | b'\'' | b'\\'))) => {
                out.push(*escaped);
                rest = after.get(1..).unwrap_or_default();
            }
            (b'$', _) => {
                let (name, after) = variable_name(text, after)?;
                out.extend_from_slice(&variable(req, matched, name)?.unwrap_or_default());
                rest = after;
            }
            _ => {
                out.push(*b);
                rest = after;
            }
        }
    }
    Ok(Cow::Owned(out))
}

/// Returns the name after a dollar sign, and the text after the name.
fn variable_name<'t>(all: &[u8], rest: &'t [u8]) -> Result<(&'t [u8], &'t [u8]), Problem> {
    let invalid = || Problem(format!("invalid variable name in \"{}\"", String::from_utf8_lossy(all)));
    let of_name = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_';
    let braced = rest.strip_prefix(b"{");
    let name = braced.unwrap_or(rest);
    let len = name.iter().position(|b| !of_name(b)).unwrap_or(name.len());
    let (name, after) = name.split_at(len);
    match (braced, after.split_first()) {
        _ if name.is_empty() => Err(invalid()),
        (None, _) => Ok((name, after)),
        (Some(_), Some((b'}', after))) => Ok((name, after)),
        (Some(_), _) => Err(Problem(format!(
            "the closing bracket in \"{}\" variable is missing",
            String::from_utf8_lossy(name)
        ))),
    }
}

/// Evaluates a condition. A regular expression that matches stores its groups in `matched`.
pub(super) fn holds(req: &mut Request, matched: &mut Matched, expr: &[u8]) -> Result<bool, Problem> {
    let of_left = |b: &u8| b.is_ascii_alphanumeric() || b"_${}\"'".contains(b);
    let end = expr.iter().position(|b| !of_left(b)).unwrap_or(expr.len());
    let (left, rest) = expr.split_at(end);
    let left = evaluate(req, matched, left)?;
    let rest = skip_spaces(rest);
    if rest.is_empty() {
        return Ok(!left.is_empty());
    }
    let (negated, right) = operator(rest).ok_or_else(|| invalid(expr))?;
    let equal = match skip_spaces(right) {
        [b'/', pattern @ .., b'/'] => matches_pattern(req, matched, &left, pattern),
        [b'/', _, ..] => Err(invalid(expr)),
        right => evaluate(req, matched, right).map(|right| right == left),
    };
    Ok(equal? != negated)
}

fn invalid(expr: &[u8]) -> Problem {
    Problem(format!("invalid expression in \"{}\"", String::from_utf8_lossy(expr)))
}

/// Reads `=` or `!=`. Returns whether it negates, and the text after it.
fn operator(text: &[u8]) -> Option<(bool, &[u8])> {
    match text {
        [b'=', right @ ..] => Some((false, right)),
        [b'!', b'=', right @ ..] => Some((true, right)),
        _ => None,
    }
}

/// Matches a text with a regular expression. The groups of a match go to `matched`.
fn matches_pattern(
    req: &mut Request,
    matched: &mut Matched,
    text: &[u8],
    pattern: &[u8],
) -> Result<bool, Problem> {
    let pattern = evaluate(req, matched, pattern)?;
    let found = fleeting::compile(&pattern).map_err(Problem)?.exec(text).map_err(VarError::from)?;
    // A failed match leaves the groups of the last one that succeeded.
    let Some(groups) = found else { return Ok(false) };
    *matched = groups;
    Ok(true)
}

fn skip_spaces(text: &[u8]) -> &[u8] {
    let at = text.iter().position(|b| *b != b' ').unwrap_or(text.len());
    text.get(at..).unwrap_or_default()
}

/// Returns decoded path and query of an include, in spare buffers of the request. A path without a leading slash is relative to the page.
pub(super) fn target(req: &mut Request, text: &[u8]) -> Result<(Vec<u8>, Vec<u8>), Problem> {
    let mut all = Cow::Borrowed(text);
    if text.first().is_some_and(|b| *b != b'/') {
        let slash = memchr::memrchr(b'/', &req.uri.path).map_or(0, |at| at + 1);
        all = [req.uri.path.get(..slash).unwrap_or_default(), text].concat().into();
    }
    let query = memchr::memchr(b'?', &all);
    let (path, query) = match query {
        Some(at) => (&all[..at], &all[at + 1..]),
        None => (&all[..], &b""[..]),
    };
    // The URI comes from the page and its variables, so it is decoded and checked as the one of a client.
    let mut uri = req.take_buf();
    forebay_http::uri::unescape(path, &mut uri);
    if uri.is_empty() || forebay_http::uri::is_unsafe(&uri) {
        return Err(Problem(format!("unsafe URI \"{}\" was detected", String::from_utf8_lossy(&all))));
    }
    let mut args = Vec::new();
    if !query.is_empty() {
        args = req.take_buf();
        args.extend_from_slice(query);
    }
    Ok((uri, args))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    fn request() -> Request {
        let mut req = testing::request("server { set $conf val; }", "x=1&e=");
        super::super::share(&mut testing::request("", ""), &mut req);
        req.uri.path = b"/dir/page.html".to_vec();
        req
    }

    #[test]
    fn variables_are_replaced() {
        let mut req = request();
        shared(&mut req).borrow_mut().set(b"own", b"mine");
        let m = Matched { groups: vec![Some(b"0".to_vec()), None], names: vec![(b"nm".to_vec(), 0)] };
        for (text, want) in [
            ("", Ok("")),
            ("a $own-${OWN}x$nope|", Ok("a mine-minex|")),
            ("$arg_x$0$1$2$nm", Ok("100")),
            (r#"\$own \x\"\\$arg_x"#, Ok(r#"$own \x"\1"#)),
            ("$", Err("invalid variable name in \"$\"")),
            ("a${}", Err("invalid variable name in \"a${}\"")),
            ("${conf", Err("the closing bracket in \"conf\" variable is missing")),
        ] {
            let got = evaluate(&mut req, &m, text.as_bytes()).map(Cow::into_owned).map_err(|p| p.0);
            assert_eq!(got, want.map(|w| w.as_bytes().to_vec()).map_err(str::to_owned), "{text}");
        }
    }

    #[test]
    fn conditions_compare() {
        let mut req = request();
        for (text, want) in [
            ("", Some(false)),
            (" ", Some(false)),
            ("0", Some(true)),
            ("$arg_x", Some(true)),
            ("$arg_e", Some(false)),
            ("$arg_x = 1", Some(true)),
            ("$arg_x=1", Some(true)),
            ("$arg_x == 1", Some(false)),
            ("$arg_x != 1", Some(false)),
            ("2!=$arg_x", Some(true)),
            ("$arg_e =", Some(true)),
            ("=", Some(true)),
            ("a = a b", Some(false)),
            ("abc = /(b)(?P<n>c)/", Some(true)),
            ("abc != /x/", Some(true)),
            ("abc = //", Some(true)),
            ("abc = /", Some(false)),
            ("abc = /x", None),
            ("abc = /(/", None),
            ("a b", None),
            ("a.b = a.b", None),
            ("a = a.b", Some(false)),
            (r"abc = /\w\\wc/", Some(true)),
            ("a ! b", None),
            (" a = a", None),
        ] {
            let mut m = Matched::default();
            assert_eq!(holds(&mut req, &mut m, text.as_bytes()).ok(), want, "{text}");
            if text.contains("(b)") {
                assert_eq!((m.groups.len(), m.names.len()), (3, 1));
            }
        }
    }

    #[test]
    fn targets_stay_below_the_root() {
        let mut req = request();
        let mut ok = |t: &str| {
            target(&mut req, t.as_bytes()).map(|(u, a)| (String::from_utf8(u), String::from_utf8(a)))
        };
        for (text, uri, args) in [
            ("/a?b?c", "/a", "b?c"),
            ("b.html", "/dir/b.html", ""),
            ("/%41%3fb?c%41", "/A?b", "c%41"),
            ("/a..b/..c/./d", "/a..b/..c/./d", ""),
        ] {
            assert_eq!(ok(text), Ok((Ok(uri.to_owned()), Ok(args.to_owned()))));
        }
        for text in ["", "../a", "/..", "/a/%2e%2e/b", "/a/..%2fb", "/a%00b", "?x"] {
            assert_eq!(target(&mut req, text.as_bytes()).is_ok(), text == "?x", "{text}");
        }
    }
}
