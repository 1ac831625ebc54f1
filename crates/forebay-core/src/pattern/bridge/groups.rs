//! Groups, inline flags, names and references.

use super::*;

impl<'p> Bridge<'p> {
    pub(super) fn group(&mut self) -> Step {
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

    pub(super) fn inline_flags(&mut self) -> Step {
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

    pub(super) fn apply_flags(&mut self, on: &str, off: &str, flags: Flags, group: bool) -> Step {
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
    pub(super) fn name(&mut self, end: u8) -> Result<&'p [u8], BridgeError> {
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

    pub(super) fn named(&mut self, end: u8) -> Step {
        let name = self.name(end)?;
        if self.names.contains(&name) {
            return Err(self.fail("two named subpatterns have the same name (PCRE2_DUPNAMES not set)"));
        }
        self.names.push(name);
        self.groups += 1;
        self.begin(&format!("(?P<{}>", String::from_utf8_lossy(name)), false)
    }

    pub(super) fn named_reference(&mut self, end: u8) -> Step {
        let at = self.at;
        let name = self.name(end)?;
        self.names_used.push((name, at));
        self.put_hard(&format!("(?:\\k<{}>)", String::from_utf8_lossy(name)));
        self.repeatable = true;
        Ok(())
    }

    pub(super) fn numbered_reference(&mut self, n: u32) {
        self.numbers_used.push((n, self.at.saturating_sub(1)));
        self.put_hard(&format!("(?:\\{n})"));
        self.repeatable = true;
    }

    pub(super) fn digits(&mut self) -> Option<u32> {
        let len = self.rest().iter().take_while(|b| b.is_ascii_digit()).count();
        let text = self.rest().get(..len).filter(|t| !t.is_empty())?;
        self.at += len;
        Some(text.iter().fold(0u32, |n, d| n.saturating_mul(10).saturating_add(u32::from(d - b'0'))))
    }
}
