//! Response heads that need no parsing. Hot path.

use forebay_http::h1::client::ResponseHead;
use forebay_http::request::Framing;

/// Longest head that is remembered.
const REMEMBERED: usize = 2048;

/// Meaning of a response head for the engine.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Meaning {
    /// `None` in a protocol without statuses.
    pub(super) status: Option<u16>,
    pub(super) framing: Framing,
    pub(super) keep_alive: bool,
}

/// The last head received for a request, and its meaning. Most servers send the same bytes again, and comparing is
/// much cheaper than parsing.
#[derive(Debug, Default)]
pub(super) struct KnownHead {
    bytes: Vec<u8>,
    meaning: Meaning,
}

impl KnownHead {
    /// Returns the meaning of the head that `data` begins with and the rest of `data`, if the head is this one.
    pub(super) fn matching<'d>(&self, data: &'d [u8]) -> Option<(Meaning, &'d [u8])> {
        if self.bytes.is_empty() {
            return None;
        }
        let rest = data.strip_prefix(self.bytes.as_slice())?;
        Some((self.meaning, rest))
    }

    /// Remembers a parsed head, unless it is too long.
    pub(super) fn remember(&mut self, head: &ResponseHead, meaning: Meaning) {
        if head.len <= REMEMBERED {
            self.bytes.clear();
            self.bytes.extend_from_slice(head.buf.get(..head.len).unwrap_or_default());
            self.meaning = meaning;
        }
    }

    /// Returns the bytes of the head.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_http::h1::client::parse;

    #[test]
    fn only_the_same_bytes_are_known() {
        let mut head = ResponseHead::default();
        head.buf.extend_from_slice(b"HTTP/1.1 204 No Content\r\n\r\n");
        assert!(parse(&mut head, 4096).is_ok());
        let mut known = KnownHead::default();
        assert!(known.matching(b"").is_none());
        known.remember(&head, Meaning { status: Some(204), framing: Framing::None, keep_alive: true });
        let found = known.matching(b"HTTP/1.1 204 No Content\r\n\r\nHTTP");
        assert_eq!(found.map(|(meaning, rest)| (meaning.status, rest)), Some((Some(204), &b"HTTP"[..])));
        assert!(known.matching(b"HTTP/1.1 204 No Content\r\n").is_none());
    }
}
