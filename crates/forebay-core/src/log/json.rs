//! Lines of `error_log ... json` (NGINX Plus 37; Angie: `format=json`): one JSON object a line.

use forebay_conf::error::Level;
use forebay_http::h1::response::number;

/// Longest line, bytes. What does not fit is left out, and the line says so.
const MAX_LINE: usize = 2048;
/// End of a line that is not whole.
const TRUNCATED: &[u8] = b",\"truncated\":1}\n";

/// Names of the fields that the server sets.
pub const OWN_NAMES: [&str; 17] = [
    "client",
    "cnum",
    "context",
    "errno",
    "errtext",
    "host",
    "level",
    "msg",
    "pid",
    "referrer",
    "request",
    "server",
    "subrequest",
    "tid",
    "timestamp",
    "truncated",
    "upstream",
];

/// A line in the making.
#[derive(Debug)]
pub struct Line {
    out: Vec<u8>,
    is_full: bool,
}

impl Line {
    /// Begins a line: level, time, process, and the number of the connection.
    pub fn new(level: Level, pid: u32, connection: Option<u64>) -> Line {
        let now = jiff::Zoned::now().strftime("%Y-%m-%dT%H:%M:%S%.3f%:z").to_string();
        let mut line = Line { out: b"{".to_vec(), is_full: false };
        line.text("level", level.as_str().as_bytes());
        line.text("timestamp", now.as_bytes());
        line.number("pid", pid.into());
        line.number("tid", pid.into());
        if let Some(n) = connection {
            line.number("cnum", n);
        }
        line
    }

    /// Adds the message. The error of a call, `(2: No such file or directory)`, becomes fields of its own.
    pub fn message(&mut self, message: &[u8]) {
        let Some(error) = SystemError::of(message) else { return self.text("msg", message) };
        self.text("msg", &[error.before, error.after].concat());
        self.number("errno", error.number);
        self.text("errtext", error.text);
    }

    /// Adds a text.
    pub fn text(&mut self, name: &str, value: &[u8]) {
        if self.begin(name).is_none() {
            return;
        }
        self.out.push(b'"');
        // For the second quote, and what ends a line that is cut.
        let room = MAX_LINE - TRUNCATED.len() - 1;
        for chunk in value.utf8_chunks() {
            for c in chunk.valid().chars().chain((!chunk.invalid().is_empty()).then_some('\u{FFFD}')) {
                let before = self.out.len();
                push_escaped(c, &mut self.out);
                if self.out.len() > room {
                    self.out.truncate(before);
                    self.out.push(b'"');
                    self.is_full = true;
                    return;
                }
            }
        }
        self.out.push(b'"');
    }

    fn number(&mut self, name: &str, value: u64) {
        if let Some(start) = self.begin(name) {
            number(&mut self.out, value);
            if self.out.len() > MAX_LINE - TRUNCATED.len() {
                self.out.truncate(start);
                self.is_full = true;
            }
        }
    }

    /// Begins a field. Returns where it begins; `None` if the line is full.
    fn begin(&mut self, name: &str) -> Option<usize> {
        let start = self.out.len();
        if self.is_full || start + name.len() + 8 > MAX_LINE - TRUNCATED.len() {
            self.is_full = true;
            return None;
        }
        if start > 1 {
            self.out.push(b',');
        }
        self.out.push(b'"');
        // Names are of the server or of the configuration, which has been checked.
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
        Some(start)
    }

    /// Ends the line.
    pub fn end(mut self) -> Vec<u8> {
        self.out.extend_from_slice(if self.is_full { TRUNCATED } else { b"}\n" });
        self.out
    }
}

/// Escapes a character (RFC 8259, section 7), also those that control a terminal.
fn push_escaped(c: char, out: &mut Vec<u8>) {
    match c {
        '"' | '\\' => out.extend_from_slice(&[b'\\', c as u8]),
        c if c.is_control() => out.extend_from_slice(format!("\\u{:04x}", u32::from(c)).as_bytes()),
        c => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
    }
}

/// A message taken apart around the error of a call.
struct SystemError<'m> {
    before: &'m [u8],
    number: u64,
    text: &'m [u8],
    after: &'m [u8],
}

impl SystemError<'_> {
    fn of(message: &[u8]) -> Option<SystemError<'_>> {
        let open = message.windows(2).position(|w| w == b" (")?;
        let inner = message.get(open + 2..)?;
        let close = inner.iter().position(|b| *b == b')')?;
        let (inner, after) = (inner.get(..close)?, inner.get(close + 1..)?);
        let colon = inner.iter().position(|b| *b == b':')?;
        let number = std::str::from_utf8(inner.get(..colon)?).ok()?;
        let text = inner.get(colon + 1..)?.strip_prefix(b" ")?;
        Some(SystemError { before: message.get(..open)?, number: number.parse().ok()?, text, after })
    }
}

/// Returns `true` if a name may be that of a tag: letters, digits, `_`, `-` and `.`, and none of [`OWN_NAMES`].
pub fn is_tag_name(name: &[u8]) -> bool {
    let is_plain = |b: &u8| b.is_ascii_alphanumeric() || b"_-.".contains(b);
    let own = OWN_NAMES.iter().any(|own| own.as_bytes() == name);
    !name.is_empty() && name.len() <= 64 && name.iter().all(is_plain) && !own
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: Line) -> serde_json::Value {
        let bytes = line.end();
        assert!(bytes.len() <= MAX_LINE && bytes.ends_with(b"}\n"), "{} bytes", bytes.len());
        serde_json::from_slice(&bytes).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&bytes)))
    }

    #[test]
    fn errors_of_calls_are_fields() {
        let mut line = Line::new(Level::Error, 7, Some(3));
        line.message(b"connect() failed (111: Connection refused) while connecting to upstream");
        line.text("request", b"GET /\"\\\x1b\xff HTTP/1.1");
        let value = parsed(line);
        assert_eq!(value["msg"], "connect() failed while connecting to upstream");
        assert_eq!((&value["errno"], &value["errtext"]), (&111.into(), &"Connection refused".into()));
        assert_eq!((&value["level"], &value["pid"], &value["cnum"]), (&"error".into(), &7.into(), &3.into()));
        assert_eq!(value["request"], "GET /\"\\\u{1b}\u{FFFD} HTTP/1.1");
        for text in ["plain", "(1: x)", "a (x: y) b", "a (1) b", "open (", "a (99999999999999999999: x)"] {
            let mut line = Line::new(Level::Warn, 1, None);
            line.message(text.as_bytes());
            assert_eq!(parsed(line)["msg"], text);
        }
    }

    #[test]
    fn a_long_line_is_cut_and_says_so() {
        for length in [1800, 1850, 1900, 1950, 2000, 2040, 9000] {
            for byte in ["a", "\u{1}", "é", "\""] {
                let mut line = Line::new(Level::Error, 1, None);
                line.message(byte.repeat(length).as_bytes());
                line.text("client", b"192.0.2.1");
                line.text("server", b"example.org");
                let value = parsed(line);
                let whole = value.get("truncated").is_none();
                assert_eq!(whole, value["server"] == "example.org", "{length} {byte:?}");
            }
        }
    }

    #[test]
    fn names_of_tags() {
        assert!(is_tag_name(b"request_id") && is_tag_name(b"x-y.z1"));
        for name in [&b""[..], b"msg", b"client", b"a b", b"a\"", b"\xff"] {
            assert!(!is_tag_name(name));
        }
    }
}
