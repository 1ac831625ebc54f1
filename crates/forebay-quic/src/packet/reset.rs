//! Stateless resets (RFC 9000, section 10.3).

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac;

use super::header::FIXED;

/// Token at the end of a stateless reset.
pub type Token = [u8; 16];

/// Bytes of the shortest stateless reset.
pub const MIN: usize = 21;

/// Secret from which the tokens of all connection identifiers come. Servers that take over each other's addresses share it.
#[derive(Clone, Debug)]
pub struct Key(hmac::Key);

impl Key {
    /// Creates the key from a secret of at least 32 random bytes, which has no other use.
    pub fn new(secret: &[u8]) -> Key {
        Key(hmac::Key::new(hmac::HMAC_SHA256, secret))
    }

    /// Returns the token of a connection identifier (RFC 9000, section 10.3.2).
    pub fn token(&self, id: &[u8]) -> Token {
        hmac::sign(&self.0, id).as_ref().first_chunk().copied().unwrap_or_default()
    }
}

/// Appends a stateless reset in answer to a datagram of `answered` bytes. It is shorter, so that two endpoints do not answer each
/// other forever, and has as many of the random bytes as that leaves. Returns `false`, and appends nothing, if that are fewer than
/// five; 27 or more random bytes make it as long as packets that are not resets.
pub fn push_reset(out: &mut Vec<u8>, answered: usize, token: &Token, random: &[u8]) -> bool {
    let room = answered.saturating_sub(token.len() + 1);
    let random = random.get(..room).unwrap_or(random);
    let Some((first, rest)) = random.split_first() else { return false };
    if random.len() + token.len() < MIN {
        return false;
    }
    out.push(FIXED | first & 0x3f);
    out.extend_from_slice(rest);
    out.extend_from_slice(token);
    true
}

/// Returns the token of a datagram that is long enough for a stateless reset.
pub fn token_of(datagram: &[u8]) -> Option<&Token> {
    if datagram.len() < MIN {
        return None;
    }
    datagram.last_chunk()
}

/// Compares two tokens in a time that does not depend on them.
pub fn is_same(a: &Token, b: &Token) -> bool {
    verify_slices_are_equal(a, b).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resets_are_shorter_than_what_they_answer() {
        let token = Key::new(&[1; 32]).token(b"id");
        for answered in 0..100 {
            let mut out = Vec::new();
            let sent = push_reset(&mut out, answered, &token, &[0xff; 30]);
            assert_eq!(sent, answered > 21);
            assert_eq!(out.len(), if sent { (answered - 1).min(46) } else { 0 });
            if sent {
                assert_eq!(out[0], 0x7f, "it looks like a short header");
                assert!(token_of(&out).is_some_and(|found| is_same(found, &token)));
            }
        }
        assert!(!push_reset(&mut Vec::new(), 1200, &token, &[0; 4]));
    }

    #[test]
    fn tokens_differ() {
        let (one, other) = (Key::new(&[1; 32]), Key::new(&[2; 32]));
        assert!(is_same(&one.token(b"id"), &one.token(b"id")));
        assert!(
            !is_same(&one.token(b"id"), &one.token(b"ie"))
                && !is_same(&one.token(b"id"), &other.token(b"id"))
        );
        assert_eq!(token_of(&[0; 20]), None);
    }
}
