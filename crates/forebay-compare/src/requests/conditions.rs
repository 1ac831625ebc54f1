//! What a request has to have so that a condition, or the key of a `map`, meets it.

use super::Ask;
use super::sample::{is_anchored, samples};
use crate::message::Field;

/// A change of a request that lets a variable have a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    Method(String),
    Host(String),
    Field(Field),
    Path(String),
    Query(String),
}

impl Change {
    /// Makes the change.
    pub(crate) fn apply(&self, ask: &mut Ask) {
        match self {
            Change::Method(m) => ask.method.clone_from(m),
            Change::Host(h) => ask.host = Some(h.clone()),
            Change::Field(f) => ask.fields.push(f.clone()),
            Change::Path(p) => ask.target.clone_from(p),
            Change::Query(q) => {
                let separator = if ask.target.contains('?') { '&' } else { '?' };
                ask.target = format!("{}{separator}{q}", ask.target);
            }
        }
    }
}

/// Returns the change that gives a variable a value. `None`: requests have no influence on it.
pub(crate) fn set(variable: &str, value: &str) -> Option<Change> {
    let safe = !value.is_empty() && value.bytes().all(|b| (b' '..0x7f).contains(&b));
    let name = variable.trim_start_matches('$').trim_matches(['{', '}']);
    let word = safe && !value.contains(' ');
    let escaped = || value.replace('%', "%25").replace('&', "%26").replace('#', "%23").replace(' ', "%20");
    Some(match name {
        "request_method" if word => Change::Method(value.to_owned()),
        "host" | "http_host" if word => Change::Host(value.to_owned()),
        "uri" | "document_uri" | "request_uri" | "fastcgi_script_name" | "request_filename" if safe => {
            let path = if value.starts_with('/') { value.to_owned() } else { format!("/{value}") };
            Change::Path(path.replace(' ', "%20"))
        }
        "args" | "query_string" if safe => Change::Query(value.replace(' ', "%20").replace('#', "%23")),
        "content_type" if safe => Change::Field(("Content-Type".into(), value.to_owned())),
        "remote_user" => {
            Change::Field(("Authorization".into(), format!("Basic {}", base64(&format!("{value}:x")))))
        }
        _ => {
            if let Some(field) = name.strip_prefix("http_").filter(|_| safe) {
                return Some(Change::Field((field_name(field), value.trim().to_owned())));
            }
            if let Some(argument) = name.strip_prefix("arg_").filter(|_| safe) {
                return Some(Change::Query(format!("{argument}={}", escaped())));
            }
            let cookie = name.strip_prefix("cookie_").filter(|_| word)?;
            Change::Field(("Cookie".into(), format!("{cookie}={value}")))
        }
    })
}

/// Returns the name of the field that a variable `$http_...` is about.
fn field_name(variable: &str) -> String {
    variable.replace('_', "-")
}

/// Returns the changes that let a variable match a pattern: a text, or an expression behind `~` or `~*`.
pub(crate) fn matching(variable: &str, pattern: &str) -> Vec<Change> {
    let (expression, insensitive) = match pattern.strip_prefix("~*") {
        Some(rest) => (Some(rest), true),
        None => (pattern.strip_prefix('~'), false),
    };
    let Some(expression) = expression else {
        return set(variable, pattern.trim_start_matches('\\')).into_iter().collect();
    };
    let whole = |text: String| match is_anchored(expression) || variable != "$host" {
        true => text,
        false => format!("a{text}"),
    };
    samples(expression, insensitive).into_iter().filter_map(|text| set(variable, &whole(text))).collect()
}

/// Returns the changes that meet the condition of an `if`, given by its words without brackets.
pub(crate) fn of_if(words: &[String]) -> Vec<Change> {
    match words {
        [variable] => set(variable, "1").into_iter().collect(),
        [variable, operator, value] if variable.starts_with('$') => match operator.as_str() {
            "=" => set(variable, value).into_iter().collect(),
            "!=" => set(variable, "other").into_iter().collect(),
            "~" => matching(variable, &format!("~{value}")),
            "~*" => matching(variable, &format!("~*{value}")),
            _ => Vec::new(),
        },
        _ => Vec::new(),
    }
}

/// Encodes in Base64 (RFC 4648, section 4).
fn base64(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for chunk in text.as_bytes().chunks(3) {
        let byte = |i: usize| u32::from(chunk.get(i).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for i in 0..4u32 {
            let digit = DIGITS.get((bits >> (18 - 6 * i) & 63) as usize).copied().unwrap_or(b'=');
            out.push(if i as usize > chunk.len() { '=' } else { char::from(digit) });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn conditions_become_changes() {
        assert_eq!(of_if(&words("$request_method = POST")), [Change::Method("POST".into())]);
        assert_eq!(of_if(&words("$arg_a")), [Change::Query("a=1".into())]);
        let both = of_if(&words("$http_user_agent ~* (curl|wget)"));
        assert_eq!(both.len(), 2, "{both:?}");
        assert!(of_if(&words("-f $request_filename")).is_empty());
        assert!(of_if(&words("$remote_addr = 10.0.0.1")).is_empty());
        assert!(set("$http_x", "a\r\nb").is_none());
    }

    #[test]
    fn digits() {
        assert_eq!(base64("user:x"), "dXNlcjp4");
        assert_eq!(base64("a:x1"), "YTp4MQ==");
    }
}
