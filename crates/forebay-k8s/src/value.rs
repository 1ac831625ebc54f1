//! Types of the values of annotations and ConfigMap keys, and the check of a text against one.
//!
//! A value becomes a word of the tree, so nothing in it can end a directive. The types refuse what would mean something else
//! than the value's author may say: variables where a text is expected, unknown variables, control characters.

use crate::variables::{self, Known};
use std::net::IpAddr;
use std::time::Duration;

/// Longest value in bytes. Snippets and log formats may be [`LONGEST_TEXT`].
pub(crate) const LONGEST: usize = 1800;

/// Longest text in bytes that is no single word.
const LONGEST_TEXT: usize = 64 * 1024;

/// Type of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// `true` or `false`.
    Bool,
    /// Whole number within bounds.
    Number(i64, i64),
    /// Size as nginx writes it: `8k`, `10m`, `0`.
    Size,
    /// Duration as nginx writes it: `60s`, `1h30m`; a bare number is seconds.
    Time,
    /// One of some words.
    OneOf(&'static [&'static str]),
    /// One of some words, in capitals or not.
    AnyCase(&'static [&'static str]),
    /// Addresses and networks, separated by commas.
    Cidrs,
    /// Token of HTTP (RFC 9110, section 5.6.2).
    Token,
    /// Tokens separated by commas and spaces; `*` is one.
    Tokens,
    /// Name of an object in the namespace of the Ingress.
    Name,
    /// Name of an object, with or without its namespace.
    Reference,
    /// Path that begins with a slash, without variables.
    Path,
    /// Path with captures `$1` to `$9` of a regular expression.
    Captures,
    /// Names of hosts, and regular expressions that begin with `~`, separated by commas.
    Names,
    /// Regular expression.
    Regex,
    /// Letters and variables.
    Variables,
    /// One line with variables.
    Template,
    /// One line without variables.
    Line,
    /// Text of any number of lines with variables.
    Text,
    /// Text of any number of lines with variables of the stream block.
    StreamText,
    /// Directives.
    Snippet,
}

/// Why a value is refused, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    /// Offset in bytes of the first byte at fault.
    pub at: usize,
    /// Reason.
    pub reason: String,
}

impl Invalid {
    /// Makes a refusal.
    pub fn new(at: usize, reason: impl Into<String>) -> Invalid {
        Invalid { at, reason: reason.into() }
    }
}

impl Value {
    /// Checks a value. `known`: variables beside those that always exist.
    ///
    /// # Errors
    /// The reason and the place.
    pub fn check(self, text: &str, known: &Known) -> Result<(), Invalid> {
        self.check_length(text)?;
        match self {
            Value::Number(least, most) => number(text, least, most),
            Value::Cidrs => cidrs(text).map(drop),
            Value::Token => each(text.trim(), is_token_char, "a letter, digit or one of !#%&'*+-.^_|~"),
            Value::Tokens => {
                each(text, |c| is_token_char(c) || matches!(c, ',' | ' '), "a letter, digit, comma or -")
            }
            Value::Name => {
                each(text.trim(), |c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.'), "part of a name")
            }
            Value::Reference => reference(text),
            Value::Path => path(text).and_then(|()| no_dollar(text)),
            Value::Captures => captures(text),
            Value::Regex => regex(text),
            Value::Names => names(text),
            Value::Variables => variables_only(text, known),
            Value::Template | Value::Text => variables::check(text, known),
            Value::Line => no_dollar(text),
            Value::StreamText => variables::check_stream(text),
            _ => self.check_word(text),
        }
    }

    /// Checks the length of a value, and that it is one line if it has to be.
    fn check_length(self, text: &str) -> Result<(), Invalid> {
        let lines = matches!(self, Value::Text | Value::StreamText | Value::Snippet);
        let longest = if lines || self == Value::Cidrs { LONGEST_TEXT } else { LONGEST };
        if text.len() > longest {
            return Err(Invalid::new(0, format!("the value is longer than {longest} bytes")));
        }
        if lines { Ok(()) } else { no_controls(text) }
    }

    /// Checks a value that is one word of a kind.
    fn check_word(self, text: &str) -> Result<(), Invalid> {
        let wrong = |why: &str| Err(Invalid::new(0, why));
        match self {
            Value::Bool if parse_bool(text).is_none() => wrong("it must be \"true\" or \"false\""),
            Value::Size if parse_size(text).is_none() => wrong("it must be a size, such as 8k, 10m or 0"),
            Value::Time if parse_time(text).is_none() => wrong("it must be a time, such as 60s or 1h"),
            Value::OneOf(words) if !words.contains(&text.trim()) => {
                wrong(&format!("it must be one of: {}", words.join(", ")))
            }
            Value::AnyCase(words) if !words.iter().any(|w| w.eq_ignore_ascii_case(text.trim())) => {
                wrong(&format!("it must be one of: {}", words.join(", ")))
            }
            _ => Ok(()),
        }
    }

    /// Returns the shape of values for the documentation.
    pub fn shape(self) -> String {
        match self {
            Value::Bool => "`true` or `false`".into(),
            Value::Number(least, most) if most >= 1_000_000_000 && least == 0 => "number".into(),
            Value::Number(least, most) => format!("number, {least} to {most}"),
            Value::Size => "size".into(),
            Value::Time => "time".into(),
            Value::OneOf(words) => words.iter().map(|w| format!("`{w}`")).collect::<Vec<_>>().join(", "),
            Value::AnyCase(words) => {
                let words = words.iter().map(|w| format!("`{w}`")).collect::<Vec<_>>().join(", ");
                format!("{words}, in any case")
            }
            Value::Cidrs => "networks, separated by commas".into(),
            Value::Token => "token".into(),
            Value::Names => "names, and regular expressions after `~`, separated by commas".into(),
            Value::Tokens => "tokens, separated by commas".into(),
            Value::Name => "name".into(),
            Value::Reference => "`[NAMESPACE/]NAME`".into(),
            Value::Path => "path".into(),
            Value::Captures => "path with `$1` to `$9`".into(),
            Value::Regex => "regular expression".into(),
            Value::Variables => "letters and variables".into(),
            Value::Template => "text with variables".into(),
            Value::Line => "text".into(),
            Value::Text | Value::StreamText => "text with variables, any number of lines".into(),
            Value::Snippet => "directives".into(),
        }
    }
}

fn no_controls(text: &str) -> Result<(), Invalid> {
    match text.char_indices().find(|(_, c)| c.is_control()) {
        Some((at, c)) => {
            Err(Invalid::new(at, format!("the character U+{:04X} is not allowed", u32::from(c))))
        }
        None => Ok(()),
    }
}

fn no_dollar(text: &str) -> Result<(), Invalid> {
    match text.find('$') {
        Some(at) => Err(Invalid::new(at, "variables are not allowed here")),
        None => Ok(()),
    }
}

fn each(text: &str, allowed: impl Fn(char) -> bool, expected: &str) -> Result<(), Invalid> {
    if text.is_empty() {
        return Err(Invalid::new(0, "the value is empty"));
    }
    match text.char_indices().find(|(_, c)| !allowed(*c)) {
        Some((at, c)) => Err(Invalid::new(at, format!("'{}' is not {expected}", c.escape_debug()))),
        None => Ok(()),
    }
}

/// Returns `true` for characters of a token (RFC 9110, section 5.6.2), without the `$`.
pub fn is_token_char(c: char) -> bool {
    c.is_ascii_alphanumeric() || "!#%&'*+-.^_|~".contains(c)
}

fn number(text: &str, least: i64, most: i64) -> Result<(), Invalid> {
    match text.trim().parse::<i64>() {
        Ok(n) if (least..=most).contains(&n) => Ok(()),
        Ok(_) => Err(Invalid::new(0, format!("it must be between {least} and {most}"))),
        Err(_) => Err(Invalid::new(0, "it must be a whole number")),
    }
}

fn reference(text: &str) -> Result<(), Invalid> {
    each(
        text.trim(),
        |c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '/'),
        "part of NAMESPACE/NAME",
    )?;
    let parts: Vec<&str> = text.trim().split('/').collect();
    if parts.len() > 2 || parts.iter().any(|p| p.is_empty()) {
        return Err(Invalid::new(0, "it must be NAME or NAMESPACE/NAME"));
    }
    Ok(())
}

fn path(text: &str) -> Result<(), Invalid> {
    match text.char_indices().find(|(_, c)| *c == ' ') {
        Some((at, _)) => Err(Invalid::new(at, "a path has no spaces")),
        None => Ok(()),
    }
}

fn captures(text: &str) -> Result<(), Invalid> {
    path(text)?;
    for (at, _) in text.match_indices('$') {
        let digit = text.get(at + 1..).and_then(|rest| rest.chars().next());
        if !digit.is_some_and(|c| c.is_ascii_digit() && c != '0') {
            return Err(Invalid::new(at, "only $1 to $9 are allowed here"));
        }
    }
    Ok(())
}

/// Checks a regular expression. Those with constructs that only the engine of the server knows pass if their brackets are right.
fn regex(text: &str) -> Result<(), Invalid> {
    if text.is_empty() {
        return Err(Invalid::new(0, "the value is empty"));
    }
    match regex_lint(text) {
        Some(reason) => Err(Invalid::new(0, reason)),
        None => Ok(()),
    }
}

/// Returns why a text is no regular expression. Look-around and back references, which this check does not know, pass.
pub fn regex_lint(text: &str) -> Option<String> {
    let unknown = ["(?=", "(?!", "(?<=", "(?<!", "(?>", "\\1", "\\2", "\\3", "++", "*+", "?+", "(?i)"];
    let built = regex::RegexBuilder::new(text).size_limit(1 << 20).build();
    match built {
        Err(regex::Error::Syntax(_)) if unknown.iter().any(|u| text.contains(u)) => None,
        Err(regex::Error::Syntax(message)) => {
            let line = message.lines().last().unwrap_or_default();
            Some(format!("it is no regular expression: {}", line.trim_start_matches("error: ")))
        }
        Err(_) => Some("the regular expression is too large".into()),
        Ok(_) => None,
    }
}

/// Checks names of hosts and regular expressions. A name that is none is found by whoever uses it.
fn names(text: &str) -> Result<(), Invalid> {
    let mut at = 0;
    for part in text.split(',') {
        let start = at + part.len() - part.trim_start().len();
        at += part.len() + 1;
        let checked = match part.trim().strip_prefix('~') {
            Some(pattern) => regex(pattern.strip_prefix('*').unwrap_or(pattern)),
            None => no_dollar(part.trim()),
        };
        checked.map_err(|e| Invalid { at: start + e.at, ..e })?;
    }
    Ok(())
}

fn variables_only(text: &str, known: &Known) -> Result<(), Invalid> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "-_${}".contains(c);
    each(text, allowed, "a letter, digit or part of a variable")?;
    variables::check(text, known)
}

/// Reads `true` and `false`, and the other spellings that Kubernetes' tools write.
pub fn parse_bool(text: &str) -> Option<bool> {
    match text.trim() {
        "true" | "True" | "TRUE" | "1" | "t" | "T" => Some(true),
        "false" | "False" | "FALSE" | "0" | "f" | "F" => Some(false),
        _ => None,
    }
}

/// Largest size in bytes, and longest time. Both are more than anybody needs, and no directive refuses them.
const MOST_BYTES: u64 = 1 << 40;
const LONGEST_TIME: Duration = Duration::from_secs(10 * 365 * 86400);

/// Reads a size, and gives it as nginx writes it. Only some directives take the unit `g`, so it becomes `m`.
pub fn parse_size(text: &str) -> Option<String> {
    let text = text.trim();
    let (digits, unit) = match text.strip_suffix(|c: char| c.is_ascii_alphabetic()) {
        Some(digits) => (digits, text.get(digits.len()..)?.to_ascii_lowercase()),
        None => (text, String::new()),
    };
    let n: u64 = digits.parse().ok()?;
    let (n, unit) = if unit == "g" { (n.checked_mul(1024)?, "m".to_owned()) } else { (n, unit) };
    let written = format!("{n}{unit}");
    forebay_conf::units::size(written.as_bytes()).filter(|bytes| *bytes <= MOST_BYTES).map(|_| written)
}

/// Reads a time, and gives it as nginx writes it.
pub fn parse_time(text: &str) -> Option<String> {
    let text = text.trim();
    let written = if text.parse::<u32>().is_ok() { format!("{text}s") } else { text.to_owned() };
    let time = forebay_conf::units::duration_ms(written.as_bytes());
    time.filter(|time| *time <= LONGEST_TIME).map(|_| written)
}

/// Cipher suites of TLS 1.2 that Forebay has, by OpenSSL's names.
const CIPHERS: &[&str] = &[
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-CHACHA20-POLY1305",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES256-GCM-SHA384",
    "ECDHE-RSA-CHACHA20-POLY1305",
];

/// Returns the cipher suites of a list that Forebay has. `None`: there are none; `DEFAULT` and the like mean all.
pub fn ciphers(text: &str) -> Option<String> {
    let known: Vec<&str> = text.split([':', ' ', ',']).filter(|c| CIPHERS.contains(c)).collect();
    (!known.is_empty()).then(|| known.join(":"))
}

/// Reads addresses and networks separated by commas.
///
/// # Errors
/// The first that is none.
pub fn cidrs(text: &str) -> Result<Vec<String>, Invalid> {
    let mut found = Vec::new();
    let mut at = 0;
    for part in text.split(',') {
        let trimmed = part.trim();
        let place = at + part.len() - part.trim_start().len();
        at += part.len() + 1;
        if trimmed.is_empty() {
            continue;
        }
        if !is_cidr(trimmed) {
            return Err(Invalid::new(
                place,
                format!("\"{}\" is no address or network", trimmed.escape_debug()),
            ));
        }
        found.push(trimmed.to_owned());
    }
    // A list that is there and names nobody is not one that names everybody.
    if found.is_empty() && !text.is_empty() {
        return Err(Invalid::new(0, "there is no address or network in it"));
    }
    Ok(found)
}

fn is_cidr(text: &str) -> bool {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits)),
        None => (text, None),
    };
    let Ok(address) = address.parse::<IpAddr>() else { return false };
    let most = if address.is_ipv4() { 32 } else { 128 };
    let digits = |b: &str| !b.is_empty() && b.len() <= 3 && b.bytes().all(|c| c.is_ascii_digit());
    bits.is_none_or(|b| digits(b) && b.parse::<u8>().is_ok_and(|n| n <= most))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gigabytes_are_written_as_megabytes() {
        assert_eq!(parse_size("5g").as_deref(), Some("5120m"));
        assert_eq!(parse_size("8K").as_deref(), Some("8k"));
    }

    #[test]
    fn values() {
        let good: &[(Value, &str)] = &[
            (Value::Bool, "true"),
            (Value::Number(0, 9), " 7"),
            (Value::Size, "8K"),
            (Value::Size, "0"),
            (Value::Size, "1024g"),
            (Value::Time, "5"),
            (Value::Time, "1h30m"),
            (Value::Cidrs, "10.0.0.0/8, ::1,1.2.3.4"),
            (Value::Token, "X-Header"),
            (Value::Reference, "a/b"),
            (Value::Captures, "/x/$1/$2"),
            (Value::Template, "https://$host$request_uri"),
            (Value::Variables, "${remote_addr}-$host"),
            (Value::Regex, "^(a|b)$"),
            (Value::Regex, "^(?!x).*"),
            (Value::Names, "a.example.com, ~^www\\d+\\.example\\.com$,b"),
            (Value::Cidrs, ""),
        ];
        for (value, text) in good {
            assert_eq!(value.check(text, &Known::new()), Ok(()), "{text}");
        }
        let bad: &[(Value, &str, usize)] = &[
            (Value::Bool, "yes", 0),
            (Value::Number(0, 9), "10", 0),
            (Value::Size, "8x", 0),
            (Value::Size, "1025g", 0),
            (Value::Size, "99999999999999999999", 0),
            (Value::Time, "11000000d", 0),
            (Value::Time, "4294967295", 0),
            (Value::Time, "x", 0),
            (Value::Cidrs, "10.0.0.0/8,  10.0.0.0/33", 13),
            (Value::Token, "X Y", 1),
            (Value::Reference, "a/b/c", 0),
            (Value::Captures, "/x/$host", 3),
            (Value::Template, "https://$nonesuch/", 8),
            (Value::Line, "a\nb", 1),
            (Value::Line, "a$b", 1),
            (Value::Regex, "(", 0),
            (Value::Names, "a, ~(", 3),
            (Value::Names, "a, $b", 3),
            (Value::Template, "a$", 1),
            (Value::Cidrs, "1.2.3.4/+8", 0),
        ];
        for (value, text, at) in bad {
            assert_eq!(value.check(text, &Known::new()).map_err(|e| e.at), Err(*at), "{text}");
        }
    }
}
