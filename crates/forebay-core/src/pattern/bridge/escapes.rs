//! Escapes outside of classes, and bytes written as escapes.

use super::*;

impl Bridge<'_> {
    pub(super) fn escape(&mut self) -> Step {
        let Some(c) = self.next() else { return Err(self.fail("\\ at end of pattern")) };
        match c {
            b'Q' => self.literal = true,
            b'E' => {}
            b'A' | b'G' => self.assertion("\\A"),
            b'b' => self.assertion("\\b"),
            b'B' => self.assertion("\\B"),
            b'z' => {
                self.strict_end = true;
                self.assertion("\\z");
            }
            b'Z' => {
                self.end_of_text();
                self.repeatable = false;
            }
            b'K' => {
                self.put_hard("\\K");
                self.repeatable = false;
            }
            b'1'..=b'9' => self.digit_escape()?,
            b'g' => self.g_escape()?,
            b'k' => self.k_escape()?,
            c => self.character_escape(c)?,
        }
        Ok(())
    }

    /// Reads an escape that stands for one of several characters, or for one.
    fn character_escape(&mut self, c: u8) -> Step {
        match c {
            b'R' => self.repeatable_text("(?:\\x0D\\x0A|[\\x0A-\\x0D\\x85])"),
            b'C' => self.repeatable_text("[\\x00-\\xFF]"),
            b'N' if self.rest().starts_with(b"{U+") => {
                return Err(self.fail("\\N{U+dddd} is supported only in Unicode (UTF) mode"));
            }
            b'N' => self.put_set(&ByteSet::of(b"\n"), true),
            b'X' => return Err(self.fail_back("extended grapheme clusters are not supported")),
            b'p' | b'P' => {
                let (set, negated) = self.property(c == b'P')?;
                self.put_set(&set, negated);
            }
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

    fn repeatable_text(&mut self, text: &str) {
        self.put(text);
        self.repeatable = true;
    }

    /// Reads what follows `\k`.
    fn k_escape(&mut self) -> Step {
        match self.next() {
            Some(b'<') => self.named_reference(b'>'),
            Some(b'\'') => self.named_reference(b'\''),
            Some(b'{') => self.named_reference(b'}'),
            _ => Err(self.fail("\\k is not followed by a braced, angle-bracketed, or quoted name")),
        }
    }

    pub(super) fn assertion(&mut self, text: &str) {
        self.put(text);
        self.repeatable = false;
    }

    /// Reads `\1` to `\9`, which are references. Longer numbers are, too, if there are that many groups so far, else octal.
    pub(super) fn digit_escape(&mut self) -> Step {
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

    pub(super) fn octal(&mut self, start: u32, most: usize) -> Result<u8, BridgeError> {
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

    pub(super) fn g_escape(&mut self) -> Step {
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

    /// Reads an escape that stands for one byte, in a class or outside.
    pub(super) fn byte_escape(&mut self, c: u8) -> Result<u8, BridgeError> {
        if let Some((_, byte)) = BYTES.iter().find(|(name, _)| *name == c) {
            return Ok(*byte);
        }
        match c {
            b'0' => self.octal(0, 2),
            b'c' => self.control(),
            b'o' | b'x' if self.rest().starts_with(b"{") => self.braced_number(c),
            b'o' => Err(self.fail("missing opening brace after \\o")),
            b'x' => Ok(self.hex()),
            b'F' | b'L' | b'l' | b'U' | b'u' => {
                Err(self.fail("PCRE2 does not support \\F, \\L, \\l, \\N{name}, \\U, or \\u"))
            }
            c if c.is_ascii_alphanumeric() => Err(self.fail_back("unrecognized character follows \\")),
            c => Ok(c),
        }
    }

    /// Reads what follows `\c`.
    fn control(&mut self) -> Result<u8, BridgeError> {
        match self.next() {
            Some(c @ 0x20..=0x7e) => Ok(c.to_ascii_uppercase() ^ 0x40),
            Some(_) => Err(self.fail("\\c must be followed by a printable ASCII character")),
            None => Err(self.fail("\\c at end of pattern")),
        }
    }

    /// Reads what follows `\o` or `\x`, a number in braces.
    fn braced_number(&mut self, c: u8) -> Result<u8, BridgeError> {
        const TOO_LARGE: &str = "character code point value in \\x{} or \\o{} is too large";
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
        Ok(byte)
    }

    /// Reads up to two hexadecimal digits.
    fn hex(&mut self) -> u8 {
        let mut n = 0;
        for _ in 0..2 {
            let Some(d) = self.peek().and_then(|d| char::from(d).to_digit(16)) else { break };
            n = n * 16 + d;
            self.at += 1;
        }
        n as u8
    }
}

/// Escapes that stand for one byte.
const BYTES: [(u8, u8); 6] =
    [(b'a', 0x07), (b'e', 0x1b), (b'f', 0x0c), (b'n', b'\n'), (b'r', b'\r'), (b't', b'\t')];
