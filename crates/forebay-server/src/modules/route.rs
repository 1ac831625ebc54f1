//! `route`: named locations for requests that meet several conditions; the first route that fits decides. nginx does not have it. Rules
//! of the Gateway API (HTTPRoute) become it. Hot path.

use crate::config::Scope;
use crate::config::http::LocationId;
use crate::request::Request;
use forebay_conf::error::Error;
use forebay_conf::tree::{Directive, Word};
use forebay_core::pattern::{LimitExceeded, Pattern};
use forebay_core::vars::Template;
use std::collections::HashMap;

/// One `route` directive.
#[derive(Debug)]
pub struct Route {
    conditions: Vec<Condition>,
    location: LocationId,
}

/// `route` directive whose location may come later in the file.
#[derive(Debug)]
pub struct Written {
    conditions: Vec<Condition>,
    target: Vec<u8>,
    /// An error at the directive, with an empty text.
    at: Error,
}

/// Condition on a value of the request.
#[derive(Debug)]
struct Condition {
    value: Value,
    matcher: Matcher,
}

/// Value that is compared.
#[derive(Debug)]
enum Value {
    /// `$uri`, which needs no copy.
    Path,
    /// `field:NAME`: the values of a field, joined by commas. A variable cannot name all fields, since its name has no signs.
    Field(Vec<u8>),
    /// `argument:NAME`: the first argument of this name, decoded.
    Argument(Vec<u8>),
    /// Any other value.
    Text(Template),
}

/// Comparison. An empty value fits only an exact pattern, since a field that is absent must not fit a regular expression.
#[derive(Debug)]
enum Matcher {
    /// `=TEXT`.
    Exact(Vec<u8>),
    /// `^PATH`: the path itself, and the paths below it.
    Segments(Vec<u8>),
    /// `~REGEX` or `~*REGEX`.
    Regex(Pattern),
}

impl Written {
    /// Reads `route @NAME VALUE PATTERN [VALUE PATTERN ...]`.
    ///
    /// # Errors
    /// The target is no named location, or a pattern is invalid.
    pub fn parse(d: &Directive, cx: &mut Scope<'_>) -> Result<Written, Error> {
        let Some((target, conditions)) = d.args.split_first() else { return Err(cx.error(d, "no location")) };
        if !target.text.starts_with(b"@") {
            let text = format!("\"{}\" is not a named location", target.as_str());
            return Err(cx.error_at(d, target, text));
        }
        let pairs = conditions.chunks_exact(2);
        if let [value] = pairs.remainder() {
            return Err(cx.error_at(d, value, format!("no pattern for \"{}\"", value.as_str())));
        }
        let conditions = pairs.map(|pair| Condition::parse(d, pair, cx)).collect::<Result<_, _>>()?;
        Ok(Written { conditions, target: target.text.clone(), at: cx.error(d, "") })
    }

    /// Finds the location.
    ///
    /// # Errors
    /// The server has no such location.
    pub fn find(self, named: &HashMap<Vec<u8>, LocationId>) -> Result<Route, Error> {
        let Written { conditions, target, at } = self;
        match named.get(&target) {
            Some(location) => Ok(Route { conditions, location: *location }),
            None => {
                let message =
                    format!("could not find named location \"{}\"", String::from_utf8_lossy(&target));
                Err(Error { message, ..at })
            }
        }
    }
}

impl Condition {
    fn parse(d: &Directive, pair: &[Word], cx: &mut Scope<'_>) -> Result<Condition, Error> {
        let [value, pattern] = pair else { return Err(cx.error(d, "no pattern")) };
        let matcher = match pattern.text.as_slice() {
            [b'=', text @ ..] => Matcher::Exact(text.to_vec()),
            // A slash at the end makes no difference: prefixes of the Gateway API consist of whole segments.
            [b'^', path @ ..] => Matcher::Segments(path.strip_suffix(b"/").unwrap_or(path).to_vec()),
            [b'~', b'*', regex @ ..] => Matcher::Regex(cx.pattern(d, regex, true)?),
            [b'~', regex @ ..] => Matcher::Regex(cx.pattern(d, regex, false)?),
            _ => {
                let text = format!(
                    "invalid pattern \"{}\", it begins with \"=\", \"^\", \"~\" or \"~*\"",
                    pattern.as_str()
                );
                return Err(cx.error_at(d, pattern, text));
            }
        };
        let value = match value.text.as_slice() {
            b"$uri" => Value::Path,
            [b'f', b'i', b'e', b'l', b'd', b':', name @ ..] => Value::Field(name.to_vec()),
            [b'a', b'r', b'g', b'u', b'm', b'e', b'n', b't', b':', name @ ..] => {
                Value::Argument(name.to_vec())
            }
            _ => Value::Text(cx.template(d, value)?),
        };
        Ok(Condition { value, matcher })
    }

    fn holds(&self, req: &mut Request) -> Result<bool, LimitExceeded> {
        match &self.value {
            Value::Path => self.matcher.fits(&req.uri.path),
            Value::Field(name) => field(req, name).map_or(Ok(false), |text| self.matcher.fits(&text)),
            Value::Argument(name) => {
                argument(&req.uri.args, name).map_or(Ok(false), |text| self.matcher.fits(&text))
            }
            // A value that cannot be made fits nothing.
            Value::Text(value) => value.value(req).map_or(Ok(false), |text| self.matcher.fits(&text)),
        }
    }
}

/// Returns the values of a field, joined by commas; `None` if there is none.
fn field(req: &Request, name: &[u8]) -> Option<Vec<u8>> {
    let head = &req.head;
    let own = head.fields.iter().filter(|f| f.name.of(&head.buf).eq_ignore_ascii_case(name));
    let values: Vec<&[u8]> = own.map(|f| f.value.of(&head.buf)).collect();
    // Several lines of a field are one list (RFC 9110, section 5.3).
    (!values.is_empty()).then(|| values.join(b", ".as_slice()))
}

/// Returns the first argument of a name. Both names are decoded, so that another spelling of the same name is found, too.
fn argument(args: &[u8], name: &[u8]) -> Option<Vec<u8>> {
    let decoded = |text: &[u8]| {
        // Forms write a space in a query as a plus sign.
        let spaced: Vec<u8> = text.iter().map(|b| if *b == b'+' { b' ' } else { *b }).collect();
        let mut plain = Vec::with_capacity(spaced.len());
        forebay_http::uri::unescape(&spaced, &mut plain);
        plain
    };
    args.split(|b| *b == b'&').find_map(|pair| {
        let mut halves = pair.splitn(2, |b| *b == b'=');
        let own = halves.next().is_some_and(|own| decoded(own) == name);
        own.then(|| decoded(halves.next().unwrap_or_default()))
    })
}

impl Matcher {
    fn fits(&self, text: &[u8]) -> Result<bool, LimitExceeded> {
        match self {
            Matcher::Exact(exact) => Ok(text == exact),
            Matcher::Segments(path) => {
                let rest = text.strip_prefix(path.as_slice());
                Ok(rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/")))
            }
            // A variable without a value is empty, and must not fit an expression such as `.*`.
            Matcher::Regex(pattern) => {
                if text.is_empty() {
                    Ok(false)
                } else {
                    pattern.is_match(text)
                }
            }
        }
    }
}

/// Returns the location of the first route whose conditions the request meets.
///
/// # Errors
/// A pattern exceeded its limits. The request must not be served.
pub fn choose(routes: &[Route], req: &mut Request) -> Result<Option<LocationId>, LimitExceeded> {
    for route in routes {
        let mut holds = true;
        for condition in &route.conditions {
            if !condition.holds(req)? {
                holds = false;
                break;
            }
        }
        if holds {
            return Ok(Some(route.location));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments() {
        let value = |args: &str, name: &str| {
            argument(args.as_bytes(), name.as_bytes()).map(|v| String::from_utf8_lossy(&v).into_owned())
        };
        let some = |text: &str| Some(text.to_owned());
        for (args, name, wanted) in [
            ("a=1&b=2", "b", some("2")),
            ("a-b=1", "a-b", some("1")),
            ("x.y%5B%5D=1", "x.y[]", some("1")),
            ("a=c%20d&a=e", "a", some("c d")),
            ("a=c+d", "a", some("c d")),
            ("%61=1", "a", some("1")),
            ("a", "a", some("")),
            ("A=1", "a", None),
            ("ab=1", "a", None),
            ("", "a", None),
        ] {
            assert_eq!(value(args, name), wanted, "{args} {name}");
        }
    }

    #[test]
    fn segments() {
        let fits = |path: &str, text: &str| {
            let matcher = Matcher::Segments(path.strip_suffix('/').unwrap_or(path).as_bytes().to_vec());
            matcher.fits(text.as_bytes()).expect("no pattern")
        };
        for (path, text, wanted) in [
            ("/a", "/a", true),
            ("/a", "/a/", true),
            ("/a", "/a/b", true),
            ("/a", "/ab", false),
            ("/a/", "/a", true),
            ("/", "/anything", true),
            ("/a", "/", false),
        ] {
            assert_eq!(fits(path, text), wanted, "{path} {text}");
        }
    }
}
