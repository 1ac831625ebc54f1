//! Rows of tables: a request, and what its answer has to be.
//!
//! `[@PORT ]METHOD TARGET[ | FIELD: VALUE]...[ | "BODY"] => EXPECTED[ | EXPECTED]...[ => nginx EXPECTED[ | EXPECTED]...]`
//!
//! The request may be a string of raw bytes instead. `HTTP/1.0` may follow the target. `Host`, `Connection: close` and the length of a
//! body are added. Strings have the escapes `\r`, `\n`, `\t`, `\0`, `\"`, `\\`, `\xNN`, and `\{TEXT*COUNT}` for repetition.
//!
//! Expected are: `404` or `404 Not Found`: the status; `NAME: VALUE`: a field with this value; `!NAME`: no such field; `2x NAME`: so many
//! fields; `"TEXT"`: the content; `..."TEXT"`: the end of the content; `~"TEXT"` and `!~"TEXT"`: a part of the answer, and none;
//! `whole "TEXT"`: all bytes of the answer; `json POINTER JSON`: a value in content of JSON, a part of an array or object with `~`
//! before it; `json POINTER > NUMBER`, `json POINTER none`; `series NAME NUMBER`, `series NAME > NUMBER`: a value for Prometheus; `closed`:
//! the end of the connection, without an answer. After `nginx` stands what nginx answers where it differs.

use crate::oracle::Form;
use crate::{Answer, Oracle, Server, Talk, raw};
use std::net::TcpStream;

/// A row.
pub struct Row {
    text: String,
    port: usize,
    bytes: Vec<u8>,
    expected: Vec<String>,
    /// Expected of nginx, where that differs.
    of_nginx: Option<Vec<String>>,
}

/// Replaces the escapes of a string.
pub fn unescape(text: &str) -> String {
    String::from_utf8_lossy(&unescaped(text)).into_owned()
}

/// Returns the place of the `}` behind a repetition, which may have others inside.
fn end_of_repetition(text: &str) -> usize {
    let mut open = 0;
    for (at, c) in text.char_indices() {
        match c {
            '{' if text[..at].ends_with('\\') => open += 1,
            '}' if open == 0 => return at,
            '}' => open -= 1,
            _ => {}
        }
    }
    panic!("the end of a repetition: {text}")
}

/// The same, and returns bytes.
pub fn unescaped(text: &str) -> Vec<u8> {
    let (mut out, mut rest) = (Vec::new(), text);
    while let Some(at) = rest.find('\\') {
        out.extend_from_slice(&rest.as_bytes()[..at]);
        let (letter, after) = (rest.as_bytes().get(at + 1).copied(), rest.get(at + 2..).unwrap_or_default());
        rest = after;
        match letter {
            Some(b'r') => out.push(b'\r'),
            Some(b'n') => out.push(b'\n'),
            Some(b't') => out.push(b'\t'),
            Some(b'0') => out.push(0),
            Some(b'x') => {
                out.push(u8::from_str_radix(&after[..2], 16).expect("two digits"));
                rest = &after[2..];
            }
            Some(b'{') => {
                let (repeated, after) = after.split_at(end_of_repetition(after));
                let after = after.get(1..).unwrap_or_default();
                let (piece, count) = repeated.rsplit_once('*').expect("a repetition");
                out.extend(unescaped(piece).repeat(count.parse().expect("a number")));
                rest = after;
            }
            other => out.extend(other),
        }
    }
    out.extend_from_slice(rest.as_bytes());
    out
}

/// Splits a text outside of its strings.
pub(super) fn split<'a>(text: &'a str, by: &str) -> Vec<&'a str> {
    let (mut parts, mut from, mut quoted, mut escaped) = (Vec::new(), 0, false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' if quoted => escaped = true,
            // Quotes within values of fields are no strings.
            '"' if quoted => quoted = false,
            '"' if text[..at].ends_with(['~', '.', ' ']) || at == 0 => {
                // A string begins an expectation, whichever separator is before it.
                let ends = [" | ", " => "]
                    .map(|separator| text[from..at].rfind(separator).map(|i| i + separator.len()));
                let begin = from + ends.into_iter().flatten().max().unwrap_or(0);
                quoted = begins_string(text[begin..at].trim_start());
            }
            _ if !quoted && at >= from && text[at..].starts_with(by) => {
                parts.push(&text[from..at]);
                from = at + by.len();
            }
            _ => {}
        }
    }
    parts.push(&text[from..]);
    parts
}

/// Words that may stand before a string.
const WORDS: [&str; 9] =
    ["out ", "err ", "whole ", "sends ", "trickles ", "reads ", "ends ", "raw ", "data "];

/// Returns `true` for what may stand before the string of an expectation: `~`, `!~`, `...`, `2x `, also after one of the words; and
/// for kinds of records and frames.
fn begins_string(before: &str) -> bool {
    let before = before
        .split_once("x frame ")
        .map_or(before, |(count, _)| if count.parse::<u32>().is_ok() { "frame " } else { before });
    if ["record ", "padded ", "frame ", "lacks "].iter().any(|word| before.starts_with(word)) {
        return true;
    }
    let stream = WORDS.iter().find_map(|word| before.strip_prefix(word)).unwrap_or(before);
    let count = stream.trim_start_matches(|c: char| c.is_ascii_digit());
    ["", "~", "!~", "...", "x "].contains(&count) && (count == "x " || count.len() == stream.len())
}

/// Returns the inside of a string.
pub(super) fn string(text: &str) -> Option<Vec<u8>> {
    text.strip_prefix('"')?.strip_suffix('"').map(unescaped)
}

impl Row {
    /// Reads a row.
    pub fn parse(text: &str) -> Row {
        let sides = split(text, " => ");
        let list = |side: &str| split(side, " | ").into_iter().map(|e| e.trim().to_owned()).collect();
        let (port, request) = match sides[0].strip_prefix('@').and_then(|r| r.split_once(' ')) {
            Some((port, request)) => (port.parse().expect("a port"), request),
            None => (0, sides[0]),
        };
        let nginx = |side: &&&str| side.starts_with("nginx ");
        Row {
            text: text.to_owned(),
            port,
            bytes: request_bytes(request.trim()),
            expected: sides.iter().skip(1).find(|s| !nginx(s)).map_or_else(Vec::new, |side| list(side)),
            of_nginx: sides.iter().find(nginx).map(|side| list(&side["nginx ".len()..])),
        }
    }

    /// Sends the request on a connection of its own, to nginx, too, if there is one, whose answer is equal in a form.
    ///
    /// # Errors
    /// The difference to what is expected.
    pub fn check(&self, ours: &Server, theirs: Option<&Oracle>, form: &Form) -> Result<(), String> {
        let answer = raw(ours.addr(self.port), &self.bytes);
        let Some(theirs) = theirs else { return self.judge(&self.expected, &answer) };
        let of_nginx = raw(theirs.site().addr(self.port), &self.bytes);
        if let Some(expected) = &self.of_nginx {
            self.judge(expected, &of_nginx).map_err(|e| format!("nginx: {e}"))?;
            return self.judge(&self.expected, &answer);
        }
        let (a, b) = (form.of_answer(&of_nginx, theirs.site()), form.of_answer(&answer, ours));
        if a != b {
            let short = |text: &str| text.chars().take(3000).collect::<String>();
            let (a, b) = (short(&a), short(&b));
            return Err(format!("== {}\n-- nginx\n{a}\n-- forebay\n{b}\n", self.text));
        }
        self.judge(&self.expected, &answer)
    }

    /// Sends the request on a connection that goes on.
    ///
    /// # Errors
    /// The difference to what is expected.
    pub fn check_on(&self, stream: &mut TcpStream, server: &Server) -> Result<(), String> {
        let text = String::from_utf8_lossy(&self.bytes).replacen("Connection: close\r\n", "", 1);
        stream.send(text.replace(&format!("@{}", self.port), &server.addr(self.port).to_string()));
        let answer = stream.answer();
        let head = answer.head.replace("Transfer-Encoding", "X-Transfer-Encoding");
        self.judge(&self.expected, &[head.as_bytes(), b"\r\n\r\n", &answer.body].concat())
    }

    fn judge(&self, expected: &[String], bytes: &[u8]) -> Result<(), String> {
        let answer = Answer::of_part(bytes);
        let text = String::from_utf8_lossy(bytes).into_owned();
        match expected.iter().find(|expected| !holds(expected, &answer, &text)) {
            Some(failed) => Err(format!("{}: not {failed}: {text}\n", self.text)),
            None => Ok(()),
        }
    }
}

/// Returns the bytes of a request.
fn request_bytes(request: &str) -> Vec<u8> {
    if let Some(raw) = string(request) {
        return raw;
    }
    let mut parts = split(request, " | ").into_iter().map(str::trim);
    let line = parts.next().unwrap_or_default();
    let (mut fields, mut content) = (String::new(), None);
    for part in parts {
        match string(part) {
            Some(body) => content = Some(body),
            None => fields.push_str(&format!("{part}\r\n")),
        }
    }
    let has = |name: &str| fields.lines().any(|l| l.to_ascii_lowercase().starts_with(&format!("{name}:")));
    let mut head = line.to_owned();
    if !line.ends_with("HTTP/1.0") {
        head.push_str(" HTTP/1.1");
    }
    head.push_str("\r\n");
    if !has("host") {
        head.push_str("Host: localhost\r\n");
    }
    head.push_str(&fields);
    if let Some(content) = content.as_ref().filter(|_| !has("content-length") && !has("transfer-encoding")) {
        head.push_str(&format!("Content-Length: {}\r\n", content.len()));
    }
    if !has("connection") && !line.ends_with("HTTP/1.0") {
        head.push_str("Connection: close\r\n");
    }
    [head.as_bytes(), b"\r\n", &content.unwrap_or_default()].concat()
}

/// Returns `true` if JSON has a value at a pointer.
pub(super) fn json_holds(expected: &str, body: &[u8]) -> bool {
    use serde_json::Value;
    let (pointer, wanted) = expected.split_once(' ').unwrap_or((expected, ""));
    let Ok(all) = serde_json::from_slice::<Value>(body) else { return false };
    let found = all.pointer(pointer.trim_end_matches('/'));
    match (wanted.strip_prefix("> "), wanted) {
        (Some(least), _) => {
            let least: f64 = least.parse().expect("a number");
            found.and_then(Value::as_f64).is_some_and(|value| value > least)
        }
        (None, "none") => found.is_none(),
        (None, _) => match wanted.strip_prefix('~') {
            Some(part) => found.is_some_and(|value| value.to_string().contains(part)),
            None => {
                let wanted: Value = serde_json::from_str(wanted).unwrap_or_else(|e| panic!("{wanted}: {e}"));
                found == Some(&wanted)
            }
        },
    }
}

/// Returns `true` if an answer is as expected.
fn holds(expected: &str, answer: &Answer, text: &str) -> bool {
    let contains = |quoted: &str| {
        text.contains(&String::from_utf8_lossy(&string(quoted).expect("a string")).into_owned())
    };
    let fields = |name: &str| {
        let names = answer.head.split("\r\n").skip(1).filter_map(|l| l.split_once(':'));
        names.filter(|(n, _)| n.eq_ignore_ascii_case(name)).count()
    };
    if expected == "closed" {
        return text.is_empty();
    }
    if let Some(whole) = expected.strip_prefix("whole ") {
        return text.as_bytes() == string(whole).expect("a string");
    }
    if let Some(rest) = expected.strip_prefix("series ") {
        let (name, wanted) = rest.rsplit_once(' ').expect("a number");
        let (name, least) = name.strip_suffix(" >").map_or((name, false), |name| (name, true));
        let wanted: f64 = wanted.parse().expect("a number");
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        let value = line.and_then(|value| value.trim().parse::<f64>().ok());
        return value.is_some_and(|value| if least { value > wanted } else { (value - wanted).abs() < 1e-9 });
    }
    if let Some(rest) = expected.strip_prefix("json ") {
        return json_holds(rest, &answer.body);
    }
    if let Some(content) = string(expected) {
        return answer.body == content;
    }
    if let Some(end) = expected.strip_prefix("...") {
        return answer.body.ends_with(&string(end).expect("a string"));
    }
    if let Some(part) = expected.strip_prefix("!~") {
        return !contains(part);
    }
    if let Some(part) = expected.strip_prefix('~') {
        return contains(part);
    }
    if let Some(name) = expected.strip_prefix('!') {
        return fields(name) == 0;
    }
    if let Some((count, name)) = expected.split_once("x ")
        && let Ok(count) = count.parse::<usize>()
    {
        return fields(name) == count;
    }
    if expected.as_bytes().first_chunk().is_some_and(|digits: &[u8; 3]| digits.iter().all(u8::is_ascii_digit))
    {
        let line = answer.head.lines().next().unwrap_or_default();
        let status = line.strip_prefix("HTTP/1.1 ").unwrap_or_default();
        return status == expected || expected.len() == 3 && status.starts_with(expected);
    }
    assert!(expected.contains(':'), "expected is {expected:?}");
    answer.head.split("\r\n").skip(1).any(|line| line == expected)
}

#[cfg(test)]
mod tests {
    use super::{Row, holds, split, unescape};
    use crate::Answer;

    #[test]
    fn strings_have_escapes_and_repetitions() {
        assert_eq!(unescape(r#"a\r\n\"\\\x41\{xy*3}z"#), "a\r\n\"\\Axyxyxyz");
        assert_eq!(unescape(r"\{a\{b*2}*2}"), "abbabb");
    }

    #[test]
    fn separators_in_strings_separate_nothing() {
        assert_eq!(split(r#"a | "b | c" | ~"d | e""#, " | "), ["a", r#""b | c""#, r#"~"d | e""#]);
        assert_eq!(split(r#"ETag: "x" | b"#, " | "), [r#"ETag: "x""#, "b"]);
        assert_eq!(split(r#"out ~"a | b" | 2x "c | d""#, " | "), [r#"out ~"a | b""#, r#"2x "c | d""#]);
    }

    #[test]
    fn requests_have_what_they_need() {
        let row = Row::parse(r#"@2 POST /a | X: y | "abc" => 200 | "x => y" => nginx 404"#);
        let head = "POST /a HTTP/1.1\r\nHost: localhost\r\nX: y\r\nContent-Length: 3\r\nConnection: close\r\n\r\nabc";
        assert_eq!((row.port, String::from_utf8_lossy(&row.bytes).as_ref()), (2, head));
        assert_eq!(row.expected, ["200", r#""x => y""#]);
        assert_eq!(row.of_nginx, Some(vec!["404".to_owned()]));
    }

    #[test]
    fn expectations_hold_or_do_not() {
        let text = "HTTP/1.1 404 Not Found\r\nA: b\r\nA: c\r\n\r\nbody";
        let answer = Answer::of(text.as_bytes());
        for expected in
            ["404", "404 Not Found", "A: b", "!B", "2x A", r#""body""#, r#"..."dy""#, r#"~"od""#, r#"!~"x""#]
        {
            assert!(holds(expected, &answer, text), "{expected}");
        }
        for expected in [
            "404 Not",
            "200",
            "A: d",
            "!A",
            "1x A",
            r#""bod""#,
            r#"..."x""#,
            r#"~"x""#,
            r#"!~"od""#,
            r#"whole "body""#,
            "closed",
        ] {
            assert!(!holds(expected, &answer, text), "{expected}");
        }
    }

    #[test]
    #[should_panic(expected = "expected is \"40\"")]
    fn an_expectation_that_is_none_is_refused() {
        let text = "HTTP/1.1 404 Not Found\r\n\r\n";
        holds("40", &Answer::of(text.as_bytes()), text);
    }
}
