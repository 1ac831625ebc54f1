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
    pub(super) fn class_item(&mut self, c: u8, set: &mut ByteSet) -> Result<Option<u8>, BridgeError> {
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
