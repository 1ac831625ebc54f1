//! Reading of a JSON document (RFC 8259) for the values at some paths. One pass, no tree, and a limit of depth.

use super::path::{NodeId, Paths};
use std::ops::Range;

/// A text that is not JSON, or is nested too deep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invalid;

/// Value in a document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// Text between the quotes of a string.
    String(Range<usize>),
    /// Any other value, as written.
    Other(Range<usize>),
}

impl Value {
    /// Appends the value: strings without quotes and escapes, everything else as written.
    pub fn push(&self, text: &[u8], out: &mut Vec<u8>) {
        match self {
            // What is found has been read, so that its escapes are known to be valid.
            Value::String(range) => drop(unescape(text.get(range.clone()).unwrap_or_default(), out)),
            Value::Other(range) => out.extend_from_slice(text.get(range.clone()).unwrap_or_default()),
        }
    }
}

/// Finds the values at the paths, by the numbers of the paths. If an object has two members of one name, only the last one counts.
///
/// # Errors
/// If the whole text is not one JSON value, or is nested deeper than `depth`.
pub fn read(text: &[u8], paths: &Paths, depth: u16) -> Result<Vec<Option<Value>>, Invalid> {
    let mut reader = Reader { text, at: 0, paths, found: vec![None; paths.len()], name: Vec::new() };
    reader.blanks();
    reader.value(Some(Paths::ROOT), depth)?;
    reader.blanks();
    if reader.at == text.len() { Ok(reader.found) } else { Err(Invalid) }
}

struct Reader<'t> {
    text: &'t [u8],
    at: usize,
    paths: &'t Paths,
    found: Vec<Option<Value>>,
    /// Name of a member, without escapes.
    name: Vec<u8>,
}

impl Reader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn blanks(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    /// Takes a byte if it comes next.
    fn takes(&mut self, byte: u8) -> bool {
        let next = self.peek() == Some(byte);
        self.at += usize::from(next);
        next
    }

    fn needs(&mut self, byte: u8) -> Result<(), Invalid> {
        if self.takes(byte) { Ok(()) } else { Err(Invalid) }
    }

    /// Reads a value, whose place is `node` if a path leads there. `depth`: further objects and arrays that may be nested here.
    fn value(&mut self, node: Option<NodeId>, depth: u16) -> Result<(), Invalid> {
        let start = self.at;
        let value = match self.peek().ok_or(Invalid)? {
            b'"' => Value::String(self.string()?),
            other => {
                match other {
                    b'{' => self.object(node, depth.checked_sub(1).ok_or(Invalid)?)?,
                    b'[' => self.array(node, depth.checked_sub(1).ok_or(Invalid)?)?,
                    b't' => self.word(b"true")?,
                    b'f' => self.word(b"false")?,
                    b'n' => self.word(b"null")?,
                    _ => self.number()?,
                }
                Value::Other(start..self.at)
            }
        };
        let paths = self.paths;
        for path in node.map_or(&[][..], |node| paths.wanted(node)) {
            if let Some(place) = self.found.get_mut(*path) {
                *place = Some(value.clone());
            }
        }
        Ok(())
    }

    fn object(&mut self, node: Option<NodeId>, depth: u16) -> Result<(), Invalid> {
        self.needs(b'{')?;
        self.blanks();
        if self.takes(b'}') {
            return Ok(());
        }
        loop {
            self.blanks();
            let name = self.string()?;
            let member = node.and_then(|node| self.member(node, name));
            self.blanks();
            self.needs(b':')?;
            self.blanks();
            self.value(member, depth)?;
            self.blanks();
            if self.takes(b'}') {
                return Ok(());
            }
            self.needs(b',')?;
        }
    }

    /// Finds the place of a member, and forgets what an earlier member of this name had.
    fn member(&mut self, node: NodeId, name: Range<usize>) -> Option<NodeId> {
        let written = self.text.get(name).unwrap_or_default();
        let member = if written.contains(&b'\\') {
            self.name.clear();
            unescape(written, &mut self.name).ok()?;
            self.paths.member(node, &self.name)
        } else {
            self.paths.member(node, written)
        }?;
        let found = &mut self.found;
        self.paths.each_from(member, &mut |path| {
            if let Some(place) = found.get_mut(path) {
                *place = None;
            }
        });
        Some(member)
    }

    fn array(&mut self, node: Option<NodeId>, depth: u16) -> Result<(), Invalid> {
        self.needs(b'[')?;
        self.blanks();
        if self.takes(b']') {
            return Ok(());
        }
        for index in 0.. {
            self.blanks();
            self.value(node.and_then(|node| self.paths.element(node, index)), depth)?;
            self.blanks();
            if self.takes(b']') {
                return Ok(());
            }
            self.needs(b',')?;
        }
        Err(Invalid)
    }

    /// Reads a string. Returns the place of the text between its quotes. Bytes above 127 are not checked: a value is bytes, and one
    /// wrong byte anywhere must not hide a value by which access is decided.
    fn string(&mut self) -> Result<Range<usize>, Invalid> {
        self.needs(b'"')?;
        let start = self.at;
        loop {
            let byte = self.peek().ok_or(Invalid)?;
            self.at += 1;
            match byte {
                b'"' => return Ok(start..self.at - 1),
                b'\\' => {
                    let rest = self.text.get(self.at..).unwrap_or_default();
                    self.at += escape_len(rest).ok_or(Invalid)?;
                }
                0..0x20 => return Err(Invalid),
                _ => {}
            }
        }
    }

    fn word(&mut self, word: &[u8]) -> Result<(), Invalid> {
        let rest = self.text.get(self.at..).unwrap_or_default();
        if !rest.starts_with(word) {
            return Err(Invalid);
        }
        self.at += word.len();
        Ok(())
    }

    fn number(&mut self) -> Result<(), Invalid> {
        self.takes(b'-');
        if !self.takes(b'0') {
            self.digits()?;
        }
        if self.takes(b'.') {
            self.digits()?;
        }
        if self.takes(b'e') || self.takes(b'E') {
            let _ = self.takes(b'+') || self.takes(b'-');
            self.digits()?;
        }
        Ok(())
    }

    /// Reads one digit or more.
    fn digits(&mut self) -> Result<(), Invalid> {
        let start = self.at;
        while self.peek().is_some_and(|b| b.is_ascii_digit()) {
            self.at += 1;
        }
        if self.at > start { Ok(()) } else { Err(Invalid) }
    }
}

/// Returns the length of an escape without its backslash.
fn escape_len(rest: &[u8]) -> Option<usize> {
    match rest.first()? {
        b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => Some(1),
        b'u' => hex(rest.get(1..)?).map(|_| 5),
        _ => None,
    }
}

/// Reads four hexadecimal digits.
fn hex(text: &[u8]) -> Option<u32> {
    let digit = |n: u32, b: &u8| Some(n * 16 + char::from(*b).to_digit(16)?);
    text.get(..4)?.iter().try_fold(0, digit)
}

/// Appends the text of a string without its escapes. Half of a surrogate pair becomes U+FFFD.
///
/// # Errors
/// If an escape is invalid.
pub fn unescape(text: &[u8], out: &mut Vec<u8>) -> Result<(), Invalid> {
    let mut rest = text;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        let (plain, escaped) = rest.split_at(at);
        out.extend_from_slice(plain);
        rest = escape(escaped.get(1..).unwrap_or_default(), out)?;
    }
    out.extend_from_slice(rest);
    Ok(())
}

/// Appends what an escape stands for, and returns the text after it.
fn escape<'t>(rest: &'t [u8], out: &mut Vec<u8>) -> Result<&'t [u8], Invalid> {
    let byte = match rest.first() {
        Some(plain @ (b'"' | b'\\' | b'/')) => *plain,
        Some(b'b') => 8,
        Some(b'f') => 12,
        Some(b'n') => b'\n',
        Some(b'r') => b'\r',
        Some(b't') => b'\t',
        Some(b'u') => return code_point(rest.get(1..).unwrap_or_default(), out),
        _ => return Err(Invalid),
    };
    out.push(byte);
    Ok(rest.get(1..).unwrap_or_default())
}

/// Appends a character by its UTF-16 units, the first of which begins the text.
fn code_point<'t>(text: &'t [u8], out: &mut Vec<u8>) -> Result<&'t [u8], Invalid> {
    let first = hex(text).ok_or(Invalid)?;
    let rest = text.get(4..).unwrap_or_default();
    let second = rest.strip_prefix(b"\\u").and_then(hex).filter(|low| (0xdc00..0xe000).contains(low));
    let (code, rest) = match second {
        Some(low) if (0xd800..0xdc00).contains(&first) => {
            (0x10000 + ((first - 0xd800) << 10) + (low - 0xdc00), rest.get(6..).unwrap_or_default())
        }
        _ => (first, rest),
    };
    let character = char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER);
    out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
    Ok(rest)
}
