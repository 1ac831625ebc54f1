//! Answers of HTTP/1, taken apart by hand.

use crate::{expires_after, through};

/// Head and content of an answer.
#[derive(Debug, Clone, Default)]
pub struct Answer {
    /// Status line and fields, without the empty line.
    pub head: String,
    /// Content, without chunks.
    pub body: Vec<u8>,
}

impl Answer {
    /// Takes an answer apart, whose chunks have to be complete.
    pub fn of(bytes: &[u8]) -> Answer {
        let mut answer = Answer::of_part(bytes);
        if answer.field("Transfer-Encoding") == Some("chunked") {
            answer.body = dechunked(body_of(bytes));
        }
        answer
    }

    /// Takes an answer apart that may break off. One without an end of its head has no content.
    pub fn of_part(bytes: &[u8]) -> Answer {
        let at = bytes.windows(4).position(|w| w == b"\r\n\r\n").unwrap_or(bytes.len());
        let head = String::from_utf8_lossy(&bytes[..at]).into_owned();
        Answer { head, body: content_of(bytes) }
    }

    /// Returns the status, or an empty text.
    pub fn status(&self) -> &str {
        status(&self.head)
    }

    /// Returns the value of a field.
    pub fn field(&self, name: &str) -> Option<&str> {
        field(&self.head, name)
    }

    /// Returns the content without its coding, with the tools of the codings.
    pub fn decoded(&self) -> Vec<u8> {
        match self.field("Content-Encoding") {
            None => self.body.clone(),
            _ if self.body.is_empty() => Vec::new(),
            Some("gzip") => through(&["gzip", "-dc"], &self.body),
            Some("br") => through(&["brotli", "-dc"], &self.body),
            Some("zstd") => through(&["zstd", "-dc"], &self.body),
            Some(other) => panic!("{other}"),
        }
    }

    /// Returns the head without what two servers, or two framings, may say differently.
    pub fn comparable(&self) -> String {
        let mut skipped = vec!["Date", "Server", "Content-Length", "Transfer-Encoding"];
        if self.field("Content-Encoding").is_some() && self.field("ETag").is_some_and(|e| e.starts_with('"'))
        {
            // A file that was compressed beforehand: nginx today allows ranges of it, 1.22.1 does not.
            skipped.push("Accept-Ranges");
        }
        let lines = self.head.lines().filter(|l| !skipped.iter().any(|s| l.starts_with(&format!("{s}: "))));
        let lines = lines.map(|l| match l.strip_prefix("Expires: ") {
            Some(value) => format!("Expires: {}", expires_after(self.field("Date"), value)),
            None => l.to_owned(),
        });
        lines.collect::<Vec<_>>().join("\n")
    }

    /// Returns the content as text.
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}

/// Returns the status of an answer, or an empty text.
pub fn status(answer: &str) -> &str {
    answer.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.get(..3)).unwrap_or_default()
}

/// Returns the value of the first field of a name in a head.
pub fn field<'a>(head: &'a str, name: &str) -> Option<&'a str> {
    let head = head.split("\r\n\r\n").next().unwrap_or_default();
    let pairs = head.split("\r\n").skip(1).filter_map(|line| line.split_once(':'));
    pairs.filter(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).next()
}

/// Returns the value of a series of a text for Prometheus, by its whole left side.
pub fn series(text: &str, name: &str) -> f64 {
    let line = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|v| v.parse().ok()).unwrap_or_else(|| panic!("no {name} in {text}"))
}

/// Returns what follows the head of an answer.
pub fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").map_or("", |(_, body)| body)
}

/// Returns what follows the head of an answer, which has to have one.
pub fn body_of(answer: &[u8]) -> &[u8] {
    let at = answer.windows(4).position(|w| w == b"\r\n\r\n").expect("a head");
    &answer[at + 4..]
}

/// Returns the content of an answer; what is there of one that breaks off.
pub fn content_of(answer: &[u8]) -> Vec<u8> {
    let Some(at) = answer.windows(4).position(|w| w == b"\r\n\r\n").map(|at| at + 4) else {
        return Vec::new();
    };
    let (head, rest) = answer.split_at(at);
    match String::from_utf8_lossy(head).to_ascii_lowercase().contains("transfer-encoding: chunked") {
        true => crate::fragments(rest),
        false => rest.to_vec(),
    }
}

/// Returns the content of chunks that are complete.
pub fn dechunked(mut body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    loop {
        let at = body.windows(2).position(|w| w == b"\r\n").expect("a chunk's size");
        let size = usize::from_str_radix(std::str::from_utf8(&body[..at]).expect("text"), 16).expect("hex");
        if size == 0 {
            assert_eq!(&body[at..], b"\r\n\r\n", "the end");
            return out;
        }
        out.extend_from_slice(&body[at + 2..at + 2 + size]);
        assert_eq!(&body[at + 2 + size..at + 4 + size], b"\r\n");
        body = &body[at + 4 + size..];
    }
}
