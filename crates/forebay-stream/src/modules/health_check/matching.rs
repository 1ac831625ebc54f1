//! `match` blocks: bytes that a check sends, and a condition for those that it receives.

use crate::config::Scope;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::pattern::Pattern;
use forebay_core::upstream::health::invalid_line;

/// A `match` block.
#[derive(Debug, Default)]
pub(crate) struct Match {
    /// `send`.
    pub(super) send: Option<Vec<u8>>,
    /// `expect`.
    pub(super) expect: Option<Expect>,
}

/// Condition for the bytes that the server sends.
#[derive(Debug)]
pub(super) enum Expect {
    Contains(Vec<u8>),
    Like(Pattern),
}

impl Expect {
    /// Returns `true` if the bytes fulfil the condition. A pattern that exceeds its limits does not match.
    pub(super) fn holds(&self, bytes: &[u8]) -> bool {
        match self {
            Expect::Contains(text) => memchr::memmem::find(bytes, text).is_some(),
            Expect::Like(pattern) => pattern.is_match(bytes) == Ok(true),
        }
    }
}

impl Match {
    /// Reads `match NAME { ... }`.
    ///
    /// # Errors
    /// With the place of the line that is invalid.
    pub(super) fn parse(d: &Directive, cx: &mut Scope<'_>) -> Result<Match, Error> {
        let mut conditions = Match::default();
        for line in d.block.iter().flatten() {
            conditions.line(line, cx)?;
        }
        Ok(conditions)
    }

    fn line(&mut self, line: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
        let words: Vec<&[u8]> = line.args.iter().map(|w| w.text.as_slice()).collect();
        match (line.name.text.as_slice(), words.as_slice()) {
            (b"send", [text]) if self.send.is_none() => self.send = Some(bytes(text)),
            (b"expect", [text]) if self.expect.is_none() => {
                self.expect = Some(Expect::Contains(bytes(text)));
            }
            (b"expect", [op @ (b"~" | b"~*"), text]) if self.expect.is_none() => {
                self.expect = Some(Expect::Like(cx.pattern(line, text, *op == b"~*")?));
            }
            _ => return Err(invalid_line(line, cx)),
        }
        Ok(())
    }
}

/// Replaces `\xNN` by the byte with this number.
fn bytes(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        match escaped(rest) {
            Some((byte, after)) => {
                out.push(byte);
                rest = after;
            }
            None => {
                out.push(*first);
                rest = after;
            }
        }
    }
    out
}

/// Reads `\xNN`. Also returns the text after it.
fn escaped(text: &[u8]) -> Option<(u8, &[u8])> {
    let digit = |c: u8| char::from(c).to_digit(16).and_then(|n| u8::try_from(n).ok());
    match text {
        [b'\\', b'x', high, low, after @ ..] => Some((digit(*high)? << 4 | digit(*low)?, after)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_by_their_numbers() {
        assert_eq!(bytes(br"a\x00\xfF\xzz\x1"), b"a\x00\xff\\xzz\\x1");
        assert_eq!(bytes(br"\\x41\x4"), b"\\A\\x4");
        assert!(Expect::Contains(bytes(br"\x0d\x0a")).holds(b"220 ready\r\n"));
        assert!(!Expect::Contains(b"ready".to_vec()).holds(b"220 read"));
    }
}
