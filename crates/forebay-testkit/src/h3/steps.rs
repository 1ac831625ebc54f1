//! Steps of a client of HTTP/3 below its requests: frames, field sections and streams that break off.

use crate::cases::row::{unescape, unescaped};
use forebay_http::compression::push_int;
use forebay_http::h3::frame::Header;
use serde_json::{Value, json};

/// Action of a client on a stream.
#[derive(Clone, Debug)]
pub enum Step {
    /// It sends bytes.
    Send(String, Vec<u8>),
    /// It sends bytes and ends its direction.
    End(String, Vec<u8>),
    /// It resets the stream.
    Reset(String),
}

use Step::{End, Reset, Send};

impl Step {
    /// Returns the step as the client reads it.
    pub fn json(&self) -> Value {
        match self {
            Send(stream, bytes) => json!([stream, hex(bytes), false]),
            End(stream, bytes) => json!([stream, hex(bytes), true]),
            Reset(stream) => json!([stream, "reset", 0x100]),
        }
    }
}

/// Returns bytes as digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// Returns the bytes that digits stand for.
pub fn unhex(text: &str) -> Vec<u8> {
    (0..text.len() / 2).map(|n| u8::from_str_radix(&text[2 * n..2 * n + 2], 16).expect("hex")).collect()
}

/// Returns a frame.
pub fn frame(kind: u64, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    Header { kind, len: payload.len() as u64 }.push(&mut out);
    out.extend_from_slice(payload);
    out
}

/// A control stream with SETTINGS and then these bytes.
pub fn control(more: &[u8]) -> Vec<u8> {
    [&[0, 4, 0], more].concat()
}

/// A field section of literals.
pub fn section<T: AsRef<str>>(fields: &[(T, T)]) -> Vec<u8> {
    let mut out = vec![0, 0];
    for (name, value) in fields {
        let (name, value) = (name.as_ref(), value.as_ref());
        push_int(&mut out, 0x20, 3, name.len());
        out.extend_from_slice(name.as_bytes());
        push_int(&mut out, 0, 7, value.len());
        out.extend_from_slice(value.as_bytes());
    }
    out
}

/// Pseudo-header fields of a request.
pub const GET: [(&str, &str); 4] =
    [(":method", "GET"), (":scheme", "https"), (":authority", "localhost"), (":path", "/page")];

/// HEADERS of a request with more fields.
pub fn head(path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    head_of(path, &more.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect::<Vec<_>>())
}

fn head_of(path: &str, more: &[(String, String)]) -> Vec<u8> {
    let mut fields = GET.map(|(n, v)| (n.to_owned(), v.to_owned())).to_vec();
    fields[3].1 = path.to_owned();
    if path == "/up" {
        fields[0].1 = "POST".to_owned();
    }
    frame(1, &section(&[&fields, more].concat()))
}

/// HEADERS of these fields only.
pub fn only(fields: &[(&str, &str)]) -> Vec<u8> {
    frame(1, &section(fields))
}

/// Reads a step: `STREAM BYTES`, `ends STREAM BYTES` or `resets STREAM`. Bytes are `"STRING"`, `only(FIELDS)` and `get(PATH; FIELDS)` (HEADERS
/// of these fields, and of a request with them), `control` (the begin of a control stream), `<TYPE BYTES>` (a frame), `COUNT*BYTES`.
pub fn step(text: &str) -> Step {
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    let (stream, mut rest) = match word {
        "ends" | "resets" => rest.split_once(' ').unwrap_or((rest, "")),
        _ => (word, rest),
    };
    let (stream, bytes) = (stream.to_owned(), all_bytes(&mut rest));
    match word {
        "ends" => End(stream, bytes),
        "resets" => Reset(stream),
        _ => Send(stream, bytes),
    }
}

/// Reads bytes up to the end, or to the one of a frame.
fn all_bytes(rest: &mut &str) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        *rest = rest.trim_start();
        if rest.is_empty() || rest.starts_with('>') {
            *rest = rest.get(1..).unwrap_or_default();
            return out;
        }
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(0);
        let mut count = 1;
        if digits > 0 && rest[digits..].starts_with('*') {
            count = rest[..digits].parse().expect("a number");
            *rest = &rest[digits + 1..];
        }
        out.extend(bytes(rest).repeat(count));
    }
}

fn bytes(rest: &mut &str) -> Vec<u8> {
    let mut up_to = |begin: &str, end: char| {
        let inside = rest.strip_prefix(begin)?;
        let (text, after) = inside.split_once(end).expect("an end");
        *rest = after;
        Some(text)
    };
    if let Some(text) = up_to("\"", '"') {
        return unescaped(text);
    }
    if let Some(text) = up_to("only(", ')') {
        return frame(1, &section(&fields(text)));
    }
    if let Some(text) = up_to("get(", ')') {
        let (path, more) = text.split_once("; ").unwrap_or((text, ""));
        return head_of(path, &fields(more));
    }
    if let Some(after) = rest.strip_prefix("control") {
        *rest = after;
        return control(b"");
    }
    let inside = rest.strip_prefix('<').unwrap_or_else(|| panic!("no bytes: {rest}"));
    let digits = inside.find(|c: char| !c.is_ascii_hexdigit()).expect("the end of a frame");
    let kind = u64::from_str_radix(&inside[..digits], 16).expect("a type");
    *rest = &inside[digits..];
    frame(kind, &all_bytes(rest))
}

/// Returns fields, `NAME: VALUE; ...`.
fn fields(text: &str) -> Vec<(String, String)> {
    let of = |field: &str| field.split_once(": ").map(|(n, v)| (n.to_owned(), unescape(v))).expect("a field");
    text.split("; ").filter(|field| !field.is_empty()).map(of).collect()
}
