//! Classes of bytes: brackets, properties, POSIX names.

use super::*;

impl Bridge<'_> {
    pub(super) fn class(&mut self) -> Step {
        let negated = self.eat(b"^");
        let mut set = ByteSet::default();
        let (mut first, mut quoted) = (true, false);
        loop {
            let Some(c) = self.next() else {
                return Err(self.error_at_end("missing terminating ] for character class"));
            };
            match c {
                b'\\' if self.eat(b"E") => {
                    // An end counts as an item only where a quotation began.
                    first &= !quoted;
                    quoted = false;
                    continue;
                }
                _ if quoted => set.add(c),
                b']' if !first => break,
                b'\\' if self.eat(b"Q") => {
                    quoted = true;
                    continue;
                }
                _ => self.class_part(c, &mut set)?,
            }
            first = false;
        }
        self.put_set(&set, negated);
        Ok(())
    }

    /// Reads an item of a class, or a range.
    fn class_part(&mut self, c: u8, set: &mut ByteSet) -> Step {
        const INVALID: &str = "invalid range in character class";
        let low = self.class_item(c, set)?;
        let after = self.text.get(self.at + 1).copied();
        let ranges = self.peek() == Some(b'-') && after.is_some_and(|e| e != b']');
        match low {
            // A set cannot begin a range.
            None if ranges && c == b'\\' => Err(self.fail(INVALID)),
            None => Ok(()),
            Some(low) if ranges => {
                self.at += 1;
                let at = self.at;
                let end = self.next().unwrap_or_default();
                let high = self.class_item(end, set)?.ok_or_else(|| self.fail(INVALID))?;
                if high < low {
                    return Err(BridgeError { message: "range out of order in character class", at });
                }
                set.add_range(low, high);
                Ok(())
            }
            Some(low) => {
                set.add(low);
                Ok(())
            }
        }
    }

    /// Reads one item of a class. Returns `None` if it was a set, which has been added.
    pub(super) fn class_item(&mut self, c: u8, set: &mut ByteSet) -> Result<Option<u8>, BridgeError> {
        match c {
            b'[' if matches!(self.peek(), Some(b':' | b'.' | b'=')) => self.posix(set),
            b'\\' => self.class_escape(set),
            c => Ok(Some(c)),
        }
    }

    /// Reads an escape in a class, as [`Bridge::class_item`] does.
    fn class_escape(&mut self, set: &mut ByteSet) -> Result<Option<u8>, BridgeError> {
        let Some(e) = self.next() else { return Err(self.fail("\\ at end of pattern")) };
        let (more, negated) = match e {
            b'b' => return Ok(Some(0x08)),
            b'N' => return Err(self.fail("\\N is not supported in a class")),
            b'R' | b'X' | b'B' => {
                return Err(self.fail_back("escape sequence is invalid in character class"));
            }
            b'1'..=b'7' => return self.octal(u32::from(e - b'0'), 2).map(Some),
            b'8' | b'9' => return Ok(Some(e)),
            b'p' | b'P' => self.property(e == b'P')?,
            e => match ByteSet::of_escape(e) {
                Some(named) => named,
                None => return self.byte_escape(e).map(Some),
            },
        };
        set.join(&more, negated);
        Ok(None)
    }

    /// Reads what follows `\p` or `\P`: the bytes that, as characters of Latin-1, have a Unicode property, and whether all others
    /// are meant.
    pub(super) fn property(&mut self, negated: bool) -> Result<(ByteSet, bool), BridgeError> {
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

    pub(super) fn posix(&mut self, set: &mut ByteSet) -> Result<Option<u8>, BridgeError> {
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
