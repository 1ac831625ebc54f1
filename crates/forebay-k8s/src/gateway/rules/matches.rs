//! Matches of rules, as words of `route`: values and patterns.
//!
//! A part that cannot be expressed holds for all requests, so that what the rest of the match selects is closed and does not fall to
//! another rule.

use crate::gateway::objects::{GatewayKind, Match, Method, ValueMatch};
use std::collections::BTreeSet;

/// Longest text of a match, in bytes.
const LONGEST: usize = 2000;

/// Most fields or arguments of a match.
const MOST_VALUES: usize = 64;

/// A match as words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Words {
    /// Values and patterns.
    pub words: Vec<String>,
    /// What cannot be expressed.
    pub faults: Vec<String>,
}

impl Words {
    fn add(&mut self, value: impl Into<String>, pattern: Result<String, String>) {
        match pattern {
            Ok(pattern) => self.words.extend([value.into(), pattern]),
            Err(fault) => self.faults.push(fault),
        }
    }
}

/// Returns what cannot be expressed of a match.
pub(crate) fn faults(found: &Match, kind: GatewayKind) -> Vec<String> {
    words(found, kind, false).faults
}

/// Returns the conditions of a match. `preflight`: those of the request that asks for permission to send one that matches.
pub(super) fn words(found: &Match, kind: GatewayKind, preflight: bool) -> Words {
    let mut all = Words::default();
    if kind == GatewayKind::GrpcRoute {
        all.add("$uri", grpc_path(found));
    } else {
        all.add("$uri", path(found));
        match &found.method {
            Some(Method::Http(method)) => {
                let name = if preflight { "$http_access_control_request_method" } else { "$request_method" };
                let is_method = !method.is_empty() && method.len() <= 16 && is_token(method);
                let fault = || format!("\"{}\" is no method", shown(method));
                all.add(name, is_method.then(|| format!("={method}")).ok_or_else(fault));
            }
            Some(Method::Grpc(_)) => all.faults.push("a method of gRPC is no HTTP method".into()),
            None => {}
        }
    }
    // Browsers ask for permission without the fields that a request will have.
    let fields: &[ValueMatch] = if preflight { &[] } else { &found.headers };
    values("field", fields, true, &mut all);
    values("argument", &found.query_params, false, &mut all);
    all
}

/// Adds conditions on fields or arguments. Of several with a name the first counts.
fn values(what: &str, found: &[ValueMatch], ignore_case: bool, all: &mut Words) {
    if found.len() > MOST_VALUES {
        all.faults.push(format!("a match has more than {MOST_VALUES} conditions of one kind"));
    }
    let mut known = BTreeSet::new();
    for value in found.iter().take(MOST_VALUES) {
        let name = if ignore_case { value.name.to_ascii_lowercase() } else { value.name.clone() };
        let is_name = !name.is_empty() && (!ignore_case || is_token(&name));
        if !known.insert(name.clone()) {
            continue;
        }
        let checked = text(&name).and_then(|()| match is_name {
            true => value_pattern(value),
            false => Err(format!("\"{}\" is no name of a field", shown(&name))),
        });
        all.add(format!("{what}:{name}"), checked);
    }
}

fn path(found: &Match) -> Result<String, String> {
    let path = found.path.clone().unwrap_or_default();
    let value = path.value.unwrap_or_else(|| "/".into());
    text(&value)?;
    match path.kind.as_deref() {
        Some("RegularExpression") => regex(&value),
        Some("Exact") => Ok(format!("={}", decoded(&value)?)),
        Some("PathPrefix") | None => Ok(format!("^{}", decoded(&value)?)),
        Some(other) => Err(format!("a path of type {} is not known", shown(other))),
    }
}

/// Returns a path as `$uri` has it: requests are compared by their decoded paths.
pub(super) fn decoded(path: &str) -> Result<String, String> {
    let wrong = || Err(format!("\"{}\" is no path that a request can have", shown(path)));
    if !path.starts_with('/') || path.contains("//") || path.contains(['?', '#']) {
        return wrong();
    }
    let (mut bytes, mut rest) = (Vec::new(), path.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        rest = after;
        if *first != b'%' {
            bytes.push(*first);
            continue;
        }
        let digits = after.get(..2).and_then(|two| std::str::from_utf8(two).ok());
        match digits.and_then(|two| u8::from_str_radix(two, 16).ok()) {
            Some(byte) if byte >= b' ' => bytes.push(byte),
            _ => return wrong(),
        }
        rest = after.get(2..).unwrap_or_default();
    }
    let segments = || bytes.split(|b| *b == b'/');
    match String::from_utf8(bytes.clone()) {
        Ok(text) if !segments().any(|s| s == b"." || s == b"..") => Ok(text),
        _ => wrong(),
    }
}

fn value_pattern(found: &ValueMatch) -> Result<String, String> {
    text(&found.value)?;
    match found.kind.as_deref() {
        Some("RegularExpression") => regex(&found.value),
        Some("Exact") | None => Ok(format!("={}", found.value)),
        Some(other) => Err(format!("a value of type {} is not known", shown(other))),
    }
}

/// Returns the pattern of a regular expression for the whole value.
fn regex(text: &str) -> Result<String, String> {
    let whole = format!("^(?:{text})$");
    // Alone, too: `a)(b` would fit between the parentheses.
    let built = |text: &str| regex::RegexBuilder::new(text).size_limit(1 << 20).build().is_ok();
    if built(text) && built(&whole) {
        return Ok(format!("~{whole}"));
    }
    Err(format!("\"{}\" is no regular expression of the form RE2", shown(text)))
}

/// Returns the pattern of the path of a gRPC method: `/SERVICE/METHOD`.
fn grpc_path(found: &Match) -> Result<String, String> {
    let method = match &found.method {
        Some(Method::Grpc(method)) => method,
        None => return Ok("~^/".into()),
        Some(Method::Http(_)) => return Err("a method of HTTP is no method of gRPC".into()),
    };
    let is_regex = match method.kind.as_deref() {
        Some("RegularExpression") => true,
        Some("Exact") | None => false,
        Some(other) => return Err(format!("a method of type {} is not known", shown(other))),
    };
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    for part in method.service.iter().chain(&method.method) {
        text(part)?;
        if is_regex {
            regex(part)?;
        } else if part.is_empty() || !part.chars().all(allowed) {
            return Err(format!("\"{}\" is no name of gRPC", shown(part)));
        }
    }
    let part = |text: &Option<String>| match text {
        Some(text) if is_regex => format!("(?:{text})"),
        Some(text) => escape(text),
        None => "[^/]+".to_owned(),
    };
    Ok(match (&method.service, &method.method) {
        (Some(service), Some(method)) if !is_regex => format!("=/{service}/{method}"),
        (service, method) => format!("~^/{}/{}$", part(service), part(method)),
    })
}

/// Checks the size of a text, and that it is one line.
pub(super) fn text(text: &str) -> Result<(), String> {
    if text.len() > LONGEST {
        return Err(format!("\"{}\" is longer than {LONGEST} bytes", shown(text)));
    }
    match text.chars().any(char::is_control) {
        true => Err(format!("\"{}\" has control characters", shown(text))),
        false => Ok(()),
    }
}

/// Returns the beginning of a text, for messages.
pub(super) fn shown(text: &str) -> String {
    let mut start: String = text.chars().take(60).collect();
    if start.len() < text.len() {
        start.push_str("...");
    }
    start.escape_debug().to_string()
}

/// Returns `true` for characters of a token (RFC 9110, section 5.6.2).
pub(super) fn is_token(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b))
}

/// Returns a text as a regular expression that fits it alone.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if !c.is_ascii_alphanumeric() && c.is_ascii() {
            out.push('\\');
        }
        out.push(c);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::objects::{GrpcMethod, PathMatch};

    #[test]
    fn paths_of_grpc() {
        let path = |kind: Option<&str>, service: Option<&str>, method: Option<&str>| {
            let method = GrpcMethod {
                kind: kind.map(str::to_owned),
                service: service.map(str::to_owned),
                method: method.map(str::to_owned),
            };
            grpc_path(&Match { method: Some(Method::Grpc(method)), ..Match::default() })
        };
        let ok = |text: &str| Ok(text.to_owned());
        assert_eq!(path(None, Some("a.B"), Some("C")), ok("=/a.B/C"));
        assert_eq!(path(None, Some("a.B"), None), ok("~^/a\\.B/[^/]+$"));
        assert_eq!(path(None, None, Some("C")), ok("~^/[^/]+/C$"));
        assert_eq!(path(Some("RegularExpression"), Some("a.*"), Some("C")), ok("~^/(?:a.*)/(?:C)$"));
        assert_eq!(grpc_path(&Match::default()), ok("~^/"));
        for (kind, service) in
            [(None, "a/b"), (None, ""), (Some("RegularExpression"), "("), (Some("Other"), "a")]
        {
            assert!(path(kind, Some(service), None).is_err(), "{kind:?} {service}");
        }
    }

    fn path_of(kind: Option<&str>, value: &str) -> Words {
        let path = PathMatch { kind: kind.map(str::to_owned), value: Some(value.to_owned()) };
        words(&Match { path: Some(path), ..Match::default() }, GatewayKind::HttpRoute, false)
    }

    #[test]
    fn paths() {
        let good = |kind, value: &str| path_of(kind, value).words.get(1).cloned().unwrap_or_default();
        assert_eq!(good(None, "/a"), "^/a");
        assert_eq!(good(Some("Exact"), "/a%20b"), "=/a b");
        assert_eq!(good(Some("PathPrefix"), "/caf%C3%A9"), "^/café");
        assert_eq!(good(Some("RegularExpression"), "/a.*"), "~^(?:/a.*)$");
        let long = "/".to_owned() + &"x".repeat(3000);
        for (kind, value) in [
            (None, "a"),
            (None, "/a//b"),
            (None, "/a/../b"),
            (None, "/a/%2e%2e/b"),
            (None, "/%zz"),
            (None, "/%0a"),
            (None, "/%ff"),
            (None, "/a\nb"),
            (None, long.as_str()),
            (Some("Other"), "/a"),
            (Some("RegularExpression"), "("),
            (Some("RegularExpression"), "a)(b"),
            (Some("RegularExpression"), "(?=a)"),
        ] {
            let words = path_of(kind, value);
            // The path part is left out: it holds for all requests.
            assert_eq!((words.words.len(), words.faults.len()), (0, 1), "{kind:?} {value}");
        }
    }

    #[test]
    fn fields_and_arguments() {
        let value = |name: &str, value: &str| ValueMatch {
            kind: None,
            name: name.to_owned(),
            value: value.to_owned(),
        };
        let found = Match {
            headers: vec![value("X-A", "1"), value("x-a", "2"), value("x.y_z", "3"), value("a b", "4")],
            query_params: vec![value("a-b[]", "1"), value("A", "2"), value("a", "3")],
            ..Match::default()
        };
        let found_words = words(&found, GatewayKind::HttpRoute, false);
        assert_eq!(
            found_words.words[2..],
            [
                "field:x-a",
                "=1",
                "field:x.y_z",
                "=3",
                "argument:a-b[]",
                "=1",
                "argument:A",
                "=2",
                "argument:a",
                "=3"
            ]
        );
        assert_eq!(found_words.faults, ["\"a b\" is no name of a field"]);
        let asked = words(&found, GatewayKind::HttpRoute, true);
        assert!(!asked.words.iter().any(|word| word.starts_with("field:")));
    }
}
