//! Groups, inline flags, names and references.

use super::*;

/// Marks behind `(?` of groups that are not supported, and their errors.
const UNSUPPORTED: [(&[u8], &str); 4] = [
    (b"R&+0123456789", RECURSION),
    (b"(", CONDITIONAL),
    (b"|", "branch reset groups are not supported"),
    (b"C", "callouts are not supported"),
];

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
        let Some(c) = self.next() else {
            return Err(self.error_at_end("missing closing parenthesis"));
        };
        if let Some((_, message)) = UNSUPPORTED.iter().find(|(marks, _)| marks.contains(&c)) {
            return Err(self.fail_back(message));
        }
        match c {
            b':' => self.begin("(?:", false),
            b'#' => self.comment(),
            b'<' => self.named(b'>'),
            b'\'' => self.named(b'\''),
            b'P' => self.python_group(),
            b'-' if self.peek().is_some_and(|c| c.is_ascii_digit()) => Err(self.fail_back(RECURSION)),
            _ => {
                self.at -= 1;
                self.inline_flags()
            }
        }
    }

    fn comment(&mut self) -> Step {
        let Some(end) = self.rest().iter().position(|b| *b == b')') else {
            return Err(self.error_at_end("missing ) after (?# comment"));
        };
        self.at += end + 1;
        Ok(())
    }

    /// Reads what follows `(?P`.
    fn python_group(&mut self) -> Step {
        match self.next() {
            Some(b'<') => self.named(b'>'),
            Some(b'=') => self.named_reference(b')'),
            Some(b'>') => Err(self.fail(RECURSION)),
            _ => Err(self.fail_back("unrecognized character after (?P")),
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
                    flags.multi_line = if c == b'm' { !negative } else { flags.multi_line };
                    let (to, from) = if negative { (&mut off, &mut on) } else { (&mut on, &mut off) };
                    from.retain(|o| o != char::from(c));
                    to.push(char::from(c));
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
