//! From PCRE2's pattern language, as nginx.conf has it, to that of the `regex` and `fancy-regex` crates.
//!
//! nginx compiles without any option but caseless: bytes, not characters, and `$` also before a final line
//! end. Everything is written out in ASCII here; classes become sets of bytes.

mod byte_set;
mod classes;
mod escapes;
mod groups;

use byte_set::ByteSet;
use regex_syntax::hir::{Class, HirKind};
use std::fmt::Write;

/// Pattern that cannot be translated.
#[derive(Debug, PartialEq, Eq)]
pub struct BridgeError {
    /// Message, as PCRE2 has it.
    pub message: &'static str,
    /// Offset into the pattern, bytes.
    pub at: usize,
}

/// Pattern in the languages of the engines.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Bridged {
    /// For `regex`; a final `$` is `\z` there: see [`Bridged::dollar`].
    pub plain: String,
    /// For `fancy-regex`.
    pub fancy: String,
    /// Only `fancy-regex` can run it.
    pub hard: bool,
    /// `$` or `\Z` occurs: where nothing matched and the text ends in a line end, the text without it is to be tried.
    pub dollar: bool,
}

/// Largest count of a quantifier.
const MAX_COUNT: u32 = 65535;
/// Longest name of a group.
const MAX_NAME: usize = 32;
/// Deepest nesting of groups.
const MAX_DEPTH: usize = 250;

const NOT_REPEATABLE: &str = "quantifier does not follow a repeatable item";
const NO_SUCH_GROUP: &str = "reference to non-existent subpattern";
const BAD_NAME: &str = "syntax error in subpattern name (missing terminator?)";
const RECURSION: &str = "recursion and subroutine calls are not supported";
const CONDITIONAL: &str = "conditional groups are not supported";

#[derive(Clone, Copy, Default)]
struct Flags {
    multi_line: bool,
    extended: bool,
}

struct Bridge<'p> {
    text: &'p [u8],
    at: usize,
    out: Bridged,
    flags: Flags,
    /// For each open group: the flags to go back to, and whether it is an assertion, which gets a group around it.
    open: Vec<(Flags, bool)>,
    /// Offset at which an assertion has just ended.
    after_assertion: Option<usize>,
    /// The item being read follows an assertion.
    assertion_repeated: bool,
    /// `\z` occurs.
    strict_end: bool,
    groups: u32,
    names: Vec<&'p [u8]>,
    /// Referred to: number and offset for a message.
    numbers_used: Vec<(u32, usize)>,
    names_used: Vec<(&'p [u8], usize)>,
    /// A quantifier may follow.
    repeatable: bool,
    literal: bool,
}

type Step = Result<(), BridgeError>;

/// Translates a pattern.
///
/// # Errors
/// For patterns that PCRE2 refuses, and for the few features without a counterpart.
pub fn bridge(text: &[u8]) -> Result<Bridged, BridgeError> {
    let mut b = Bridge {
        text,
        at: 0,
        out: Bridged::default(),
        flags: Flags::default(),
        open: Vec::new(),
        after_assertion: None,
        assertion_repeated: false,
        strict_end: false,
        groups: 0,
        names: Vec::new(),
        numbers_used: Vec::new(),
        names_used: Vec::new(),
        repeatable: false,
        literal: false,
    };
    while let Some(c) = b.next() {
        b.item(c)?;
    }
    if !b.open.is_empty() {
        return Err(b.error_at_end("missing closing parenthesis"));
    }
    if let Some((_, at)) = b.numbers_used.iter().find(|(n, _)| *n > b.groups) {
        return Err(BridgeError { message: NO_SUCH_GROUP, at: *at });
    }
    if let Some((_, at)) = b.names_used.iter().find(|(n, _)| !b.names.contains(n)) {
        return Err(BridgeError { message: NO_SUCH_GROUP, at: *at });
    }
    // Trying the text without its line end would let `\z` match too early.
    b.out.hard |= b.strict_end && b.out.dollar;
    Ok(b.out)
}

impl<'p> Bridge<'p> {
    pub(super) fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    pub(super) fn next(&mut self) -> Option<u8> {
        let c = self.peek()?;
        self.at += 1;
        Some(c)
    }

    pub(super) fn rest(&self) -> &'p [u8] {
        self.text.get(self.at..).unwrap_or_default()
    }

    pub(super) fn eat(&mut self, what: &[u8]) -> bool {
        let found = self.rest().starts_with(what);
        if found {
            self.at += what.len();
        }
        found
    }

    pub(super) fn fail(&self, message: &'static str) -> BridgeError {
        BridgeError { message, at: self.at }
    }

    /// Points at the byte read last.
    pub(super) fn fail_back(&self, message: &'static str) -> BridgeError {
        BridgeError { message, at: self.at.saturating_sub(1) }
    }

    pub(super) fn error_at_end(&self, message: &'static str) -> BridgeError {
        BridgeError { message, at: self.text.len() }
    }

    pub(super) fn put(&mut self, text: &str) {
        self.out.plain.push_str(text);
        self.out.fancy.push_str(text);
    }

    /// Appends an item that only `fancy-regex` knows.
    pub(super) fn put_hard(&mut self, text: &str) {
        self.out.hard = true;
        self.out.fancy.push_str(text);
    }

    pub(super) fn put_byte(&mut self, c: u8) {
        if c.is_ascii_alphanumeric() || matches!(c, b'_' | b'/') {
            self.put(char::from(c).encode_utf8(&mut [0; 4]));
        } else {
            self.put(&format!("\\x{c:02X}"));
        }
        self.repeatable = true;
    }

    pub(super) fn put_set(&mut self, set: &ByteSet, negated: bool) {
        let text = set.text(negated);
        self.put(&text);
        self.repeatable = true;
    }

    pub(super) fn item(&mut self, c: u8) -> Step {
        if self.literal {
            if c == b'\\' && self.eat(b"E") {
                self.literal = false;
            } else {
                self.put_byte(c);
            }
            return Ok(());
        }
        if self.flags.extended && self.skip_extended(c) {
            return Ok(());
        }
        self.assertion_repeated = self.after_assertion.take() == Some(self.at - 1);
        match c {
            b'\\' => self.escape()?,
            b'[' => self.class()?,
            b'(' => self.group()?,
            b')' => self.close()?,
            b'|' => self.assertion("|"),
            b'^' => self.assertion("^"),
            b'$' => self.dollar(),
            b'.' => {
                self.put(".");
                self.repeatable = true;
            }
            b'*' | b'+' | b'?' => self.quantifier(char::from(c).encode_utf8(&mut [0; 4]))?,
            b'{' => match self.braces()? {
                Some(text) => self.quantifier(&text)?,
                None => self.put_byte(c),
            },
            c => self.put_byte(c),
        }
        Ok(())
    }

    /// Blanks and comments under `(?x)`.
    fn skip_extended(&mut self, c: u8) -> bool {
        match c {
            b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c => true,
            b'#' => {
                while self.next().is_some_and(|c| c != b'\n') {}
                true
            }
            _ => false,
        }
    }

    fn dollar(&mut self) {
        if self.flags.multi_line {
            self.put("$");
        } else {
            self.end_of_text();
        }
        self.repeatable = false;
    }

    /// Appends an assertion of the end of the text, or of a line end there.
    fn end_of_text(&mut self) {
        self.out.plain.push_str("\\z");
        self.out.fancy.push_str("(?=\\x0A?\\z)");
        self.out.dollar = true;
    }

    /// Reads `{n}`, `{n,}` or `{n,m}` whose brace has been read; `None`: a literal brace.
    pub(super) fn braces(&mut self) -> Result<Option<String>, BridgeError> {
        let Some(end) = self.rest().iter().position(|b| *b == b'}') else { return Ok(None) };
        let inner = self.rest().get(..end).unwrap_or_default();
        let (low, high) = match inner.iter().position(|b| *b == b',') {
            None => (inner, Some(inner)),
            Some(comma) => (&inner[..comma], Some(&inner[comma + 1..]).filter(|h| !h.is_empty())),
        };
        let digits = |t: &[u8]| !t.is_empty() && t.iter().all(u8::is_ascii_digit);
        if !digits(low) || !high.is_none_or(digits) {
            return Ok(None);
        }
        let start = self.at;
        let count =
            |t: &[u8]| t.iter().fold(0u32, |n, d| n.saturating_mul(10).saturating_add(u32::from(d - b'0')));
        let too_big = |t: &[u8]| count(t) > MAX_COUNT;
        if too_big(low) || high.is_some_and(too_big) {
            let at = start + if too_big(low) { low.len() } else { end };
            return Err(BridgeError { message: "number too big in {} quantifier", at });
        }
        self.at += end + 1;
        if high.is_some_and(|h| count(h) < count(low)) {
            return Err(self.fail_back("numbers out of order in {} quantifier"));
        }
        Ok(Some(match high {
            None => format!("{{{},}}", count(low)),
            Some(h) => format!("{{{},{}}}", count(low), count(h)),
        }))
    }

    pub(super) fn quantifier(&mut self, text: &str) -> Step {
        if !self.repeatable {
            return Err(self.fail_back(NOT_REPEATABLE));
        }
        if self.assertion_repeated {
            // An assertion holds or it does not: once is enough, and not at all is a branch of its own.
            if text.starts_with(['*', '?']) || text.starts_with("{0,") {
                self.out.fancy.pop();
                self.put("|)");
            }
            let _ = self.eat(b"?") || self.eat(b"+");
            self.repeatable = false;
            return Ok(());
        }
        self.put(text);
        if self.eat(b"?") {
            self.put("?");
        } else if self.eat(b"+") {
            self.put_hard("+");
        }
        self.repeatable = false;
        Ok(())
    }

    fn close(&mut self) -> Step {
        let Some((flags, assertion)) = self.open.pop() else {
            return Err(self.fail_back("unmatched closing parenthesis"));
        };
        self.flags = flags;
        self.put(if assertion { "))" } else { ")" });
        self.after_assertion = assertion.then_some(self.at);
        self.repeatable = true;
        Ok(())
    }

    pub(super) fn begin(&mut self, text: &str, hard: bool) -> Step {
        if self.open.len() >= MAX_DEPTH {
            return Err(self.fail("parentheses are too deeply nested"));
        }
        let assertion = hard && text != "(?>";
        self.open.push((self.flags, assertion));
        match (hard, assertion) {
            (false, _) => self.put(text),
            (true, false) => self.put_hard(text),
            (true, true) => self.put_hard(&format!("(?:{text}")),
        }
        self.repeatable = false;
        Ok(())
    }
}
