//! From PCRE2's pattern language, as nginx.conf has it, to that of the `regex` and `fancy-regex` crates.
//!
//! nginx compiles without any option but caseless: bytes, not characters, and `$` also before a final line
//! end. Everything is written out in ASCII here; classes become sets of bytes.

use regex_syntax::hir::{Class, HirKind};
use std::fmt::Write;

/// A pattern that could not be taken over.
#[derive(Debug, PartialEq, Eq)]
pub struct BridgeError {
    /// As PCRE2 puts it.
    pub message: &'static str,
    /// Offset into the pattern, bytes.
    pub at: usize,
}

/// What to hand to an engine.
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
    /// Where an assertion has just ended.
    after_assertion: Option<usize>,
    /// What is read now follows an assertion.
    assertion_repeated: bool,
    /// `\z` occurs.
    strict_end: bool,
    groups: u32,
    names: Vec<&'p [u8]>,
    /// Referred to: number and offset for a message.
    numbers_used: Vec<(u32, usize)>,
    names_used: Vec<(&'p [u8], usize)>,
    /// Whether a quantifier may follow.
    repeatable: bool,
    literal: bool,
}

type Step = Result<(), BridgeError>;

/// Translates a pattern.
///
/// # Errors
/// What PCRE2 would refuse, and the few things that have no counterpart.
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
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let c = self.peek()?;
        self.at += 1;
        Some(c)
    }

    fn rest(&self) -> &'p [u8] {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn eat(&mut self, what: &[u8]) -> bool {
        let found = self.rest().starts_with(what);
        if found {
            self.at += what.len();
        }
        found
    }

    fn fail(&self, message: &'static str) -> BridgeError {
        BridgeError { message, at: self.at }
    }

    /// Points at the byte read last.
    fn fail_back(&self, message: &'static str) -> BridgeError {
        BridgeError { message, at: self.at.saturating_sub(1) }
    }

    fn error_at_end(&self, message: &'static str) -> BridgeError {
        BridgeError { message, at: self.text.len() }
    }

    fn put(&mut self, text: &str) {
        self.out.plain.push_str(text);
        self.out.fancy.push_str(text);
    }

    /// Something that only `fancy-regex` knows.
    fn put_hard(&mut self, text: &str) {
        self.out.hard = true;
        self.out.fancy.push_str(text);
    }

    fn put_byte(&mut self, c: u8) {
        if c.is_ascii_alphanumeric() || matches!(c, b'_' | b'/') {
            self.put(char::from(c).encode_utf8(&mut [0; 4]));
        } else {
            self.put(&format!("\\x{c:02X}"));
        }
        self.repeatable = true;
    }

    fn put_set(&mut self, set: &ByteSet, negated: bool) {
        let text = set.text(negated);
        self.put(&text);
        self.repeatable = true;
    }

    fn item(&mut self, c: u8) -> Step {
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
            b'|' => {
                self.put("|");
                self.repeatable = false;
            }
            b'^' => {
                self.put("^");
                self.repeatable = false;
            }
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

    /// The end of the text, or before a line end there.
    fn end_of_text(&mut self) {
        self.out.plain.push_str("\\z");
        self.out.fancy.push_str("(?=\\x0A?\\z)");
        self.out.dollar = true;
    }

    /// Reads `{n}`, `{n,}` or `{n,m}` whose brace has been read; `None`: a literal brace.
    fn braces(&mut self) -> Result<Option<String>, BridgeError> {
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

    fn quantifier(&mut self, text: &str) -> Step {
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

    fn begin(&mut self, text: &str, hard: bool) -> Step {
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

    fn group(&mut self) -> Step {
        if self.rest().starts_with(b"*") {
            let end = self.rest().iter().position(|b| *b == b')').unwrap_or(self.rest().len());
            return Err(BridgeError { message: "(*VERB) not recognized or malformed", at: self.at + end });
        }
        if !self.eat(b"?") {
            self.groups += 1;
            return self.begin("(", false);
        }
        for (mark, text) in
            [(&b"<="[..], "(?<="), (b"<!", "(?<!"), (b"=", "(?="), (b"!", "(?!"), (b">", "(?>")]
        {
            if self.eat(mark) {
                return self.begin(text, true);
            }
        }
        match self.next() {
            None => Err(self.error_at_end("missing closing parenthesis")),
            Some(b':') => self.begin("(?:", false),
            Some(b'#') => match self.rest().iter().position(|b| *b == b')') {
                Some(end) => {
                    self.at += end + 1;
                    Ok(())
                }
                None => Err(self.error_at_end("missing ) after (?# comment")),
            },
            Some(b'<') => self.named(b'>'),
            Some(b'\'') => self.named(b'\''),
            Some(b'P') => match self.next() {
                Some(b'<') => self.named(b'>'),
                Some(b'=') => self.named_reference(b')'),
                Some(b'>') => Err(self.fail(RECURSION)),
                _ => Err(self.fail_back("unrecognized character after (?P")),
            },
            Some(b'R' | b'&' | b'0'..=b'9') => Err(self.fail_back(RECURSION)),
            Some(b'+') => Err(self.fail_back(RECURSION)),
            Some(b'-') if self.peek().is_some_and(|c| c.is_ascii_digit()) => Err(self.fail_back(RECURSION)),
            Some(b'(') => Err(self.fail_back(CONDITIONAL)),
            Some(b'|') => Err(self.fail_back("branch reset groups are not supported")),
            Some(b'C') => Err(self.fail_back("callouts are not supported")),
            Some(_) => {
                self.at -= 1;
                self.inline_flags()
            }
        }
    }

    fn inline_flags(&mut self) -> Step {
        let (mut on, mut off, mut negative) = (String::new(), String::new(), false);
        let mut flags = self.flags;
        if self.eat(b"^") {
            off.push_str("imsU");
            flags = Flags::default();
        }
        loop {
            match self.next() {
                None => return Err(self.error_at_end("missing closing parenthesis")),
                Some(c @ (b'i' | b'm' | b's' | b'U')) => {
                    if c == b'm' {
                        flags.multi_line = !negative;
                    }
                    if !negative {
                        off.retain(|o| o != char::from(c));
                        on.push(char::from(c));
                    } else {
                        on.retain(|o| o != char::from(c));
                        off.push(char::from(c));
                    }
                }
                Some(b'x') => flags.extended = !negative,
                Some(b'J') => {}
                Some(b'-') if !negative => negative = true,
                Some(b'n') => return Err(self.fail_back("option n (no auto-capture) is not supported")),
                Some(c @ (b')' | b':')) => return self.apply_flags(&on, &off, flags, c == b':'),
                Some(_) => return Err(self.fail_back("unrecognized character after (? or (?-")),
            }
        }
    }

    fn apply_flags(&mut self, on: &str, off: &str, flags: Flags, group: bool) -> Step {
        let minus = if off.is_empty() { "" } else { "-" };
        let text = format!("(?{on}{minus}{off}");
        if group {
            let text = if on.is_empty() && off.is_empty() { "(?:".to_owned() } else { text + ":" };
            self.begin(&text, false)?;
        } else if !(on.is_empty() && off.is_empty()) {
            self.put(&(text + ")"));
            self.repeatable = false;
        }
        self.flags = flags;
        Ok(())
    }

    /// Reads a name up to its end mark.
    fn name(&mut self, end: u8) -> Result<&'p [u8], BridgeError> {
        let rest = self.rest();
        if rest.first().is_some_and(u8::is_ascii_digit) {
            return Err(self.fail("subpattern name must start with a non-digit"));
        }
        let len = rest.iter().position(|b| !(b.is_ascii_alphanumeric() || *b == b'_')).unwrap_or(rest.len());
        let name = rest.get(..len).unwrap_or_default();
        let at = self.at + len;
        if len > MAX_NAME {
            return Err(BridgeError { message: "subpattern name is too long (maximum 32 code units)", at });
        }
        if len == 0 {
            return Err(BridgeError { message: "subpattern name expected", at });
        }
        if rest.get(len) != Some(&end) {
            return Err(BridgeError { message: BAD_NAME, at });
        }
        self.at += len + 1;
        Ok(name)
    }

    fn named(&mut self, end: u8) -> Step {
        let name = self.name(end)?;
        if self.names.contains(&name) {
            return Err(self.fail("two named subpatterns have the same name (PCRE2_DUPNAMES not set)"));
        }
        self.names.push(name);
        self.groups += 1;
        self.begin(&format!("(?P<{}>", String::from_utf8_lossy(name)), false)
    }

    fn named_reference(&mut self, end: u8) -> Step {
        let at = self.at;
        let name = self.name(end)?;
        self.names_used.push((name, at));
        self.put_hard(&format!("(?:\\k<{}>)", String::from_utf8_lossy(name)));
        self.repeatable = true;
        Ok(())
    }

    fn numbered_reference(&mut self, n: u32) {
        self.numbers_used.push((n, self.at.saturating_sub(1)));
        self.put_hard(&format!("(?:\\{n})"));
        self.repeatable = true;
    }

    fn digits(&mut self) -> Option<u32> {
        let len = self.rest().iter().take_while(|b| b.is_ascii_digit()).count();
        let text = self.rest().get(..len).filter(|t| !t.is_empty())?;
        self.at += len;
        Some(text.iter().fold(0u32, |n, d| n.saturating_mul(10).saturating_add(u32::from(d - b'0'))))
    }

    fn escape(&mut self) -> Step {
        let Some(c) = self.next() else { return Err(self.fail("\\ at end of pattern")) };
        match c {
            b'Q' => self.literal = true,
            b'E' => {}
            b'A' | b'G' => self.assertion("\\A"),
            b'z' => {
                self.strict_end = true;
                self.assertion("\\z");
            }
            b'Z' => {
                self.end_of_text();
                self.repeatable = false;
            }
            b'b' => self.assertion("\\b"),
            b'B' => self.assertion("\\B"),
            b'K' => {
                self.put_hard("\\K");
                self.repeatable = false;
            }
            b'R' => {
                self.put("(?:\\x0D\\x0A|[\\x0A-\\x0D\\x85])");
                self.repeatable = true;
            }
            b'N' if self.rest().starts_with(b"{U+") => {
                return Err(self.fail("\\N{U+dddd} is supported only in Unicode (UTF) mode"));
            }
            b'N' => self.put_set(&ByteSet::of(b"\n"), true),
            b'C' => {
                self.put("[\\x00-\\xFF]");
                self.repeatable = true;
            }
            b'p' | b'P' => {
                let (set, negated) = self.property(c == b'P')?;
                self.put_set(&set, negated);
            }
            b'X' => return Err(self.fail_back("extended grapheme clusters are not supported")),
            b'1'..=b'9' => self.digit_escape()?,
            b'g' => self.g_escape()?,
            b'k' => match self.next() {
                Some(b'<') => self.named_reference(b'>')?,
                Some(b'\'') => self.named_reference(b'\'')?,
                Some(b'{') => self.named_reference(b'}')?,
                _ => {
                    return Err(self.fail("\\k is not followed by a braced, angle-bracketed, or quoted name"));
                }
            },
            c => match ByteSet::of_escape(c) {
                Some((set, negated)) => self.put_set(&set, negated),
                None => {
                    let byte = self.byte_escape(c)?;
                    self.put_byte(byte);
                }
            },
        }
        Ok(())
    }

    fn assertion(&mut self, text: &str) {
        self.put(text);
        self.repeatable = false;
    }

    /// `\1` to `\9` are references; longer numbers too if there are that many groups so far, or octal.
    fn digit_escape(&mut self) -> Step {
        self.at -= 1;
        let start = self.at;
        let n = self.digits().unwrap_or(0);
        if n < 10 || n <= self.groups {
            self.numbered_reference(n);
            return Ok(());
        }
        self.at = start + 1;
        let first = self.text.get(start).copied().unwrap_or(0);
        if first >= b'8' {
            self.put_byte(first);
            return Ok(());
        }
        let byte = self.octal(u32::from(first - b'0'), 2)?;
        self.put_byte(byte);
        Ok(())
    }

    fn octal(&mut self, start: u32, most: usize) -> Result<u8, BridgeError> {
        let mut n = start;
        for _ in 0..most {
            match self.peek() {
                Some(d @ b'0'..=b'7') => n = n * 8 + u32::from(d - b'0'),
                _ => break,
            }
            self.at += 1;
        }
        u8::try_from(n).map_err(|_| self.fail("octal value is greater than \\377 in 8-bit non-UTF-8 mode"))
    }

    fn g_escape(&mut self) -> Step {
        const WRONG: &str =
            "\\g is not followed by a braced, angle-bracketed, or quoted name/number or by a plain number";
        let braced = match self.peek() {
            Some(b'<' | b'\'') => return Err(self.fail(RECURSION)),
            Some(b'{') => {
                self.at += 1;
                true
            }
            _ => false,
        };
        let sign = self.peek().filter(|c| matches!(c, b'+' | b'-'));
        if sign.is_some() {
            self.at += 1;
        }
        let Some(n) = self.digits() else {
            return if braced && sign.is_none() { self.named_reference(b'}') } else { Err(self.fail(WRONG)) };
        };
        if braced && !self.eat(b"}") {
            return Err(self.fail(WRONG));
        }
        let n = match sign {
            Some(b'-') => self.groups.checked_add(1).and_then(|g| g.checked_sub(n)).unwrap_or(0),
            Some(_) => self.groups.saturating_add(n),
            None => n,
        };
        if n == 0 {
            return Err(self.fail_back(NO_SUCH_GROUP));
        }
        self.numbered_reference(n);
        Ok(())
    }

    /// An escape that stands for one byte, inside a class or outside.
    fn byte_escape(&mut self, c: u8) -> Result<u8, BridgeError> {
        const TOO_LARGE: &str = "character code point value in \\x{} or \\o{} is too large";
        Ok(match c {
            b'a' => 0x07,
            b'e' => 0x1b,
            b'f' => 0x0c,
            b'n' => b'\n',
            b'r' => b'\r',
            b't' => b'\t',
            b'0' => self.octal(0, 2)?,
            b'c' => match self.next() {
                Some(c @ 0x20..=0x7e) => c.to_ascii_uppercase() ^ 0x40,
                Some(_) => return Err(self.fail("\\c must be followed by a printable ASCII character")),
                None => return Err(self.fail("\\c at end of pattern")),
            },
            b'o' | b'x' if self.rest().starts_with(b"{") => {
                let (radix, wrong) = match c {
                    b'o' => (8, "non-octal character in \\o{} (closing brace missing?)"),
                    _ => (16, "non-hex character in \\x{} (closing brace missing?)"),
                };
                self.at += 1;
                let mut n = 0u32;
                while let Some(d) = self.peek().and_then(|d| char::from(d).to_digit(radix)) {
                    n = n.saturating_mul(radix).saturating_add(d);
                    self.at += 1;
                }
                if self.peek() != Some(b'}') {
                    return Err(self.fail(wrong));
                }
                let byte = u8::try_from(n).map_err(|_| self.fail(TOO_LARGE))?;
                self.at += 1;
                byte
            }
            b'o' => return Err(self.fail("missing opening brace after \\o")),
            b'x' => {
                let mut n = 0;
                for _ in 0..2 {
                    let Some(d) = self.peek().and_then(|d| char::from(d).to_digit(16)) else { break };
                    n = n * 16 + d;
                    self.at += 1;
                }
                n as u8
            }
            b'F' | b'L' | b'l' | b'U' | b'u' => {
                return Err(self.fail("PCRE2 does not support \\F, \\L, \\l, \\N{name}, \\U, or \\u"));
            }
            c if c.is_ascii_alphanumeric() => return Err(self.fail_back("unrecognized character follows \\")),
            c => c,
        })
    }

    fn class(&mut self) -> Step {
        let negated = self.eat(b"^");
        let mut set = ByteSet::default();
        let (mut first, mut quoted) = (true, false);
        loop {
            let Some(c) = self.next() else {
                return Err(self.error_at_end("missing terminating ] for character class"));
            };
            if quoted {
                if c == b'\\' && self.eat(b"E") {
                    quoted = false;
                } else {
                    set.add(c);
                }
                first = false;
                continue;
            }
            if c == b']' && !first {
                break;
            }
            if c == b'\\' && self.eat(b"Q") {
                quoted = true;
                continue;
            }
            if c == b'\\' && self.eat(b"E") {
                continue;
            }
            first = false;
            let Some(low) = self.class_item(c, &mut set)? else {
                // A set cannot begin a range.
                if self.rest().first() == Some(&b'-')
                    && self.text.get(self.at + 1).is_some_and(|c| *c != b']')
                    && c == b'\\'
                {
                    return Err(self.fail("invalid range in character class"));
                }
                continue;
            };
            match (self.peek(), self.text.get(self.at + 1)) {
                (Some(b'-'), Some(e)) if *e != b']' => {
                    self.at += 1;
                    let at = self.at;
                    let end = self.next().unwrap_or_default();
                    let Some(high) = self.class_item(end, &mut set)? else {
                        return Err(self.fail("invalid range in character class"));
                    };
                    if high < low {
                        return Err(BridgeError { message: "range out of order in character class", at });
                    }
                    set.add_range(low, high);
                }
                _ => set.add(low),
            }
        }
        self.put_set(&set, negated);
        Ok(())
    }

    /// Reads one item of a class; `None`: it was a set, which has been added.
    fn class_item(&mut self, c: u8, set: &mut ByteSet) -> Result<Option<u8>, BridgeError> {
        match c {
            b'[' if matches!(self.peek(), Some(b':' | b'.' | b'=')) => self.posix(set),
            b'\\' => match self.next() {
                None => Err(self.fail("\\ at end of pattern")),
                Some(b'b') => Ok(Some(0x08)),
                Some(b'N') => Err(self.fail("\\N is not supported in a class")),
                Some(b'R' | b'X' | b'B') => {
                    Err(self.fail_back("escape sequence is invalid in character class"))
                }
                Some(p @ (b'p' | b'P')) => {
                    let (property, negated) = self.property(p == b'P')?;
                    set.join(&property, negated);
                    Ok(None)
                }
                Some(d @ b'1'..=b'7') => self.octal(u32::from(d - b'0'), 2).map(Some),
                Some(d @ (b'8' | b'9')) => Ok(Some(d)),
                Some(e) => match ByteSet::of_escape(e) {
                    Some((s, negated)) => {
                        set.join(&s, negated);
                        Ok(None)
                    }
                    None => self.byte_escape(e).map(Some),
                },
            },
            c => Ok(Some(c)),
        }
    }

    /// Reads what follows `\p` or `\P`: the bytes that, as characters of Latin-1, have a Unicode property, and whether all others
    /// are meant.
    fn property(&mut self, negated: bool) -> Result<(ByteSet, bool), BridgeError> {
        const MALFORMED: &str = "malformed \\P or \\p sequence";
        let (name, negated) = if self.eat(b"{") {
            let negated = negated ^ self.eat(b"^");
            let Some(len) = self.rest().iter().position(|b| *b == b'}') else {
                return Err(self.error_at_end(MALFORMED));
            };
            let name = self.rest().get(..len).unwrap_or_default();
            self.at += len + 1;
            (name, negated)
        } else {
            let at = self.at;
            self.next().filter(u8::is_ascii_alphabetic).ok_or_else(|| self.fail(MALFORMED))?;
            (self.text.get(at..self.at).unwrap_or_default(), negated)
        };
        let set = ByteSet::property(name).ok_or_else(|| self.fail("unknown property after \\P or \\p"))?;
        Ok((set, negated))
    }

    fn posix(&mut self, set: &mut ByteSet) -> Result<Option<u8>, BridgeError> {
        let mark = self.peek().unwrap_or_default();
        let rest = self.text.get(self.at + 1..).unwrap_or_default();
        let len = rest.iter().position(|b| *b == mark || *b == b']' || *b == b'\\').unwrap_or(rest.len());
        if rest.get(len..len + 2) != Some(&[mark, b']'][..]) {
            return Ok(Some(b'['));
        }
        if mark != b':' {
            return Err(self.fail_back("POSIX collating elements are not supported"));
        }
        let name = rest.get(..len).unwrap_or_default();
        let (name, negated) = name.strip_prefix(b"^").map_or((name, false), |n| (n, true));
        let Some(named) = ByteSet::posix(name) else {
            return Err(BridgeError { message: "unknown POSIX class name", at: self.at + 1 });
        };
        set.join(&named, negated);
        self.at += len + 3;
        Ok(None)
    }
}

/// A set of bytes.
#[derive(Clone, Default)]
struct ByteSet([u128; 2]);

impl ByteSet {
    fn of(bytes: &[u8]) -> ByteSet {
        let mut s = ByteSet::default();
        bytes.iter().for_each(|b| s.add(*b));
        s
    }

    /// The bytes that have a Unicode property as characters of Latin-1; `None`: there is no such property.
    fn property(name: &[u8]) -> Option<ByteSet> {
        let name = std::str::from_utf8(name).ok()?;
        let loose: String = name.chars().filter(|c| !matches!(c, ' ' | '-' | '_')).collect();
        // PCRE2 has a few of its own (pcre2pattern, "Special properties for PCRE2").
        let class = match loose.to_ascii_lowercase().as_str() {
            "any" => r"[\x00-\u{10FFFF}]".to_owned(),
            "l&" | "lc" => r"[\p{Lu}\p{Ll}\p{Lt}]".to_owned(),
            "xan" => r"[\p{L}\p{N}]".to_owned(),
            "xwd" => r"[\p{L}\p{N}\p{Mn}\p{Pc}]".to_owned(),
            "xps" | "xsp" => r"[\p{Z}\x09-\x0d\x{85}]".to_owned(),
            "xuc" => r"[$@`\x{A0}-\x{FF}]".to_owned(),
            simple if simple.bytes().all(|b| b.is_ascii_alphanumeric()) => format!(r"\p{{{simple}}}"),
            _ => return None,
        };
        let hir = regex_syntax::Parser::new().parse(&class).ok()?;
        let mut set = ByteSet::default();
        match hir.kind() {
            HirKind::Class(Class::Unicode(class)) => {
                for range in class.ranges() {
                    let (low, high) = (u32::from(range.start()), u32::from(range.end()).min(255));
                    (low..=high).filter_map(|b| u8::try_from(b).ok()).for_each(|b| set.add(b));
                }
            }
            HirKind::Class(Class::Bytes(class)) => {
                class.ranges().iter().for_each(|range| set.add_range(range.start(), range.end()));
            }
            // A property of one character.
            HirKind::Literal(l) => {
                let c = std::str::from_utf8(&l.0).ok()?.chars().next()?;
                u8::try_from(u32::from(c)).into_iter().for_each(|b| set.add(b));
            }
            _ => return None,
        }
        Some(set)
    }

    fn where_(test: impl Fn(u8) -> bool) -> ByteSet {
        let mut s = ByteSet::default();
        (0..=u8::MAX).filter(|b| test(*b)).for_each(|b| s.add(b));
        s
    }

    fn add(&mut self, b: u8) {
        self.0[usize::from(b >> 7)] |= 1 << (b & 127);
    }

    fn add_range(&mut self, low: u8, high: u8) {
        (low..=high).for_each(|b| self.add(b));
    }

    fn has(&self, b: u8) -> bool {
        self.0[usize::from(b >> 7)] >> (b & 127) & 1 == 1
    }

    fn join(&mut self, other: &ByteSet, negated: bool) {
        (0..=u8::MAX).filter(|b| other.has(*b) != negated).for_each(|b| self.add(b));
    }

    /// `\d` and its kin: the set, and whether its complement is meant.
    fn of_escape(c: u8) -> Option<(ByteSet, bool)> {
        let set = match c.to_ascii_lowercase() {
            b'd' => ByteSet::where_(|b| b.is_ascii_digit()),
            b'w' => ByteSet::where_(|b| b.is_ascii_alphanumeric() || b == b'_'),
            b's' => ByteSet::of(b" \t\n\x0b\x0c\r"),
            b'h' => ByteSet::of(b" \t\xa0"),
            b'v' => ByteSet::of(b"\n\x0b\x0c\r\x85"),
            _ => return None,
        };
        Some((set, c.is_ascii_uppercase()))
    }

    fn posix(name: &[u8]) -> Option<ByteSet> {
        Some(match name {
            b"alpha" => ByteSet::where_(|b| b.is_ascii_alphabetic()),
            b"lower" => ByteSet::where_(|b| b.is_ascii_lowercase()),
            b"upper" => ByteSet::where_(|b| b.is_ascii_uppercase()),
            b"alnum" => ByteSet::where_(|b| b.is_ascii_alphanumeric()),
            b"ascii" => ByteSet::where_(|b| b.is_ascii()),
            b"blank" => ByteSet::of(b" \t"),
            b"cntrl" => ByteSet::where_(|b| b.is_ascii_control()),
            b"digit" => ByteSet::where_(|b| b.is_ascii_digit()),
            b"graph" => ByteSet::where_(|b| b.is_ascii_graphic()),
            b"print" => ByteSet::where_(|b| b.is_ascii_graphic() || b == b' '),
            b"punct" => ByteSet::where_(|b| b.is_ascii_punctuation()),
            b"space" => ByteSet::of(b" \t\n\x0b\x0c\r"),
            b"word" => ByteSet::where_(|b| b.is_ascii_alphanumeric() || b == b'_'),
            b"xdigit" => ByteSet::where_(|b| b.is_ascii_hexdigit()),
            _ => return None,
        })
    }

    /// As a class; an empty one matches nothing.
    fn text(&self, negated: bool) -> String {
        let mut out = String::new();
        let mut at = 0u16;
        while at < 256 {
            let first = at;
            while at < 256 && self.has(at as u8) {
                at += 1;
            }
            if at > first {
                let last = at - 1;
                let _ = if first == last {
                    write!(out, "\\x{first:02X}")
                } else {
                    write!(out, "\\x{first:02X}-\\x{last:02X}")
                };
            }
            at += 1;
        }
        match (out.is_empty(), negated) {
            (true, true) => "[\\x00-\\xFF]".to_owned(),
            (true, false) => "[^\\x00-\\xFF]".to_owned(),
            (false, true) => format!("[^{out}]"),
            (false, false) => format!("[{out}]"),
        }
    }
}
