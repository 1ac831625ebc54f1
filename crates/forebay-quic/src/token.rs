//! Tokens with which a client shows that it receives packets at its address (RFC 9000, sections 8.1.2 to 8.1.4).
//!
//! A token is 16 random bytes and sealed content. Each token has a key of its own, derived from a secret, the version of QUIC
//! (RFC 9369, section 5) and the random bytes. A server keeps nothing, unless it wants NEW_TOKEN tokens to be used only once.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};

use crate::id::ConnectionId;
use crate::varint::Reader;
use crate::version::Version;

/// Bytes of the longest token.
pub const MAX: usize = UNIQUE + RETRY_MAX + TAG;

/// Random bytes of a token.
const UNIQUE: usize = 16;
/// Bytes of an authentication tag.
const TAG: usize = 16;
/// Bytes of the longest content: type, time, address, port, identifier.
const RETRY_MAX: usize = 1 + 8 + 16 + 2 + crate::id::MAX_ID;

/// Type of a token from a Retry packet, the first byte of its content.
const RETRY: u8 = 1;
/// Type of a token from a NEW_TOKEN frame.
const NEW: u8 = 2;

/// Secret that seals tokens, and how long they are valid. All servers that a token may come back to share it.
pub struct TokenKey {
    secret: Prk,
    /// Seconds that tokens of Retry packets are valid. Clients send them back at once.
    pub retry_life: u64,
    /// Seconds that tokens of NEW_TOKEN frames are valid.
    pub new_life: u64,
}

impl fmt::Debug for TokenKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TokenKey")
    }
}

/// What a token shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened {
    /// The client got a Retry packet at this address and port, and sent its first Initial packet to this identifier.
    Retry {
        /// Destination connection identifier of the first Initial packet.
        original_dst: ConnectionId,
    },
    /// The client got a NEW_TOKEN frame at this address, maybe at another port.
    New {
        /// Random bytes that no other token has. A token should be accepted only once.
        unique: [u8; UNIQUE],
        /// Time at which it was made, in seconds of the same clock.
        made: u64,
    },
    /// The token was in a Retry packet, but for another address, or too long ago. The connection is refused with INVALID_TOKEN: the
    /// client does not take another Retry packet (RFC 9000, section 8.1.2).
    Invalid,
    /// The token is from somebody else, for another version, changed, too old, or for another address: as if there were none.
    Foreign,
}

/// Length of a key and a nonce.
struct KeyAndNonce;

impl KeyType for KeyAndNonce {
    fn len(&self) -> usize {
        32 + 12
    }
}

impl TokenKey {
    /// Creates the key from a secret of at least 32 random bytes. Lives are in seconds.
    pub fn new(secret: &[u8], retry_life: u64, new_life: u64) -> TokenKey {
        let secret = Salt::new(HKDF_SHA256, b"forebay quic token").extract(secret);
        TokenKey { secret, retry_life, new_life }
    }

    /// Derives the key of one token.
    fn derive(&self, version: Version, unique: &[u8; UNIQUE]) -> Option<(LessSafeKey, Nonce)> {
        let number = version.number().to_be_bytes();
        let info: [&[u8]; 2] = [&number, unique];
        let mut derived = [0; 32 + 12];
        self.secret.expand(&info, KeyAndNonce).ok()?.fill(&mut derived).ok()?;
        let (key, nonce) = derived.split_last_chunk()?;
        let key = UnboundKey::new(&AES_256_GCM, key).ok()?;
        Some((LessSafeKey::new(key), Nonce::assume_unique_for_key(*nonce)))
    }

    /// Appends a token for a Retry packet. `now` is in seconds of a clock that all servers share, `unique` is random.
    ///
    /// Returns `false`, and appends nothing, if it cannot be sealed.
    pub fn push_retry(
        &self,
        out: &mut Vec<u8>,
        version: Version,
        client: SocketAddr,
        original_dst: &ConnectionId,
        now: u64,
        unique: [u8; UNIQUE],
    ) -> bool {
        self.push(out, version, unique, |out| {
            push_content(out, RETRY, now, client.ip());
            out.extend_from_slice(&client.port().to_be_bytes());
            out.extend_from_slice(original_dst);
        })
    }

    /// Appends a token for a NEW_TOKEN frame. `now` is in seconds of a clock that all servers share, `unique` is random.
    ///
    /// Returns `false`, and appends nothing, if it cannot be sealed.
    pub fn push_new(
        &self,
        out: &mut Vec<u8>,
        version: Version,
        client: IpAddr,
        now: u64,
        unique: [u8; UNIQUE],
    ) -> bool {
        self.push(out, version, unique, |out| push_content(out, NEW, now, client))
    }

    /// Appends a token with some content.
    fn push(
        &self,
        out: &mut Vec<u8>,
        version: Version,
        unique: [u8; UNIQUE],
        content: impl FnOnce(&mut Vec<u8>),
    ) -> bool {
        let start = out.len();
        out.extend_from_slice(&unique);
        content(out);
        let sealed = self.derive(version, &unique).zip(out.get_mut(start + UNIQUE..));
        let tag = sealed.and_then(|((key, nonce), content)| {
            key.seal_in_place_separate_tag(nonce, Aad::empty(), content).ok()
        });
        match tag {
            Some(tag) => out.extend_from_slice(tag.as_ref()),
            None => out.truncate(start),
        }
        out.len() > start
    }

    /// Opens the token of an Initial packet of a version that came from an address.
    pub fn open(&self, token: &[u8], version: Version, client: SocketAddr, now: u64) -> Opened {
        let mut content = [0; RETRY_MAX + TAG];
        let opened = self.decrypt(token, version, &mut content);
        let Some((unique, content)) =
            opened.and_then(|(unique, content)| Some((unique, Content::read(content)?)))
        else {
            return Opened::Foreign;
        };
        let same_address = content.ip == canonical(client.ip());
        // The clock of another server may be ahead.
        let age = content.made.abs_diff(now);
        match content.retry {
            Some((port, original_dst)) if same_address && port == client.port() && age <= self.retry_life => {
                Opened::Retry { original_dst }
            }
            Some(_) => Opened::Invalid,
            None if same_address && age <= self.new_life => Opened::New { unique, made: content.made },
            None => Opened::Foreign,
        }
    }

    /// Decrypts a token into a buffer. Returns its random bytes and its content.
    fn decrypt<'b>(
        &self,
        token: &[u8],
        version: Version,
        buffer: &'b mut [u8; RETRY_MAX + TAG],
    ) -> Option<([u8; UNIQUE], &'b [u8])> {
        let (unique, sealed) = token.split_first_chunk()?;
        // Before the key is derived, which costs some microseconds.
        let buffer = buffer.get_mut(..sealed.len())?;
        buffer.copy_from_slice(sealed);
        let (key, nonce) = self.derive(version, unique)?;
        let content = key.open_in_place(nonce, Aad::empty(), buffer).ok()?;
        Some((*unique, content))
    }
}

/// Content of a token.
struct Content {
    made: u64,
    ip: [u8; 16],
    /// Port, and destination connection identifier of the first Initial packet.
    retry: Option<(u16, ConnectionId)>,
}

impl Content {
    fn read(content: &[u8]) -> Option<Content> {
        let mut reader = Reader::new(content);
        let kind = reader.u8()?;
        let made = u64::from_be_bytes(reader.array()?);
        let ip = reader.array()?;
        let retry = match kind {
            RETRY => Some((reader.u16()?, ConnectionId::new(reader.rest())?)),
            NEW if reader.is_empty() => None,
            _ => return None,
        };
        Some(Content { made, ip, retry })
    }
}

/// Appends type, time and address.
fn push_content(out: &mut Vec<u8>, kind: u8, now: u64, ip: IpAddr) {
    out.push(kind);
    out.extend_from_slice(&now.to_be_bytes());
    out.extend_from_slice(&canonical(ip));
}

/// Returns an address so that one of IPv4 is the same on sockets of IPv4 and of IPv6.
fn canonical(ip: IpAddr) -> [u8; 16] {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_700_000_000;

    fn key() -> TokenKey {
        TokenKey::new(&[7; 32], 10, 86_400)
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().expect("an address")
    }

    fn original() -> ConnectionId {
        ConnectionId::new(&[9; 20]).expect("20 bytes")
    }

    fn retry(client: &str, version: Version) -> Vec<u8> {
        let mut out = vec![0xff];
        assert!(key().push_retry(&mut out, version, address(client), &original(), NOW, [3; 16]));
        out.split_off(1)
    }

    fn new(client: &str, version: Version) -> Vec<u8> {
        let mut out = Vec::new();
        assert!(key().push_new(&mut out, version, address(client).ip(), NOW, [4; 16]));
        out
    }

    #[test]
    fn tokens_of_retry_packets() {
        let client = "192.0.2.1:4000";
        let token = retry(client, Version::V1);
        assert_eq!(token.len(), MAX);
        let open = |client, now| key().open(&token, Version::V1, address(client), now);
        let valid = Opened::Retry { original_dst: original() };
        for now in [NOW - 10, NOW, NOW + 10] {
            assert_eq!(open(client, now), valid);
        }
        assert_eq!(open("[::ffff:192.0.2.1]:4000", NOW), valid, "the same address on a socket of IPv6");
        assert_eq!(open(client, NOW + 11), Opened::Invalid);
        assert_eq!(open(client, NOW - 11), Opened::Invalid);
        assert_eq!(open("192.0.2.1:4001", NOW), Opened::Invalid);
        assert_eq!(open("192.0.2.2:4000", NOW), Opened::Invalid);
        assert_eq!(key().open(&token, Version::V2, address(client), NOW), Opened::Foreign);
    }

    #[test]
    fn tokens_of_frames() {
        let token = new("[2001:db8::1]:1", Version::V2);
        let open = |client, now| key().open(&token, Version::V2, address(client), now);
        let valid = Opened::New { unique: [4; 16], made: NOW };
        assert_eq!(open("[2001:db8::1]:1", NOW), valid);
        assert_eq!(open("[2001:db8::1]:99", NOW + 86_400), valid, "at another port");
        assert_eq!(open("[2001:db8::1]:1", NOW + 86_401), Opened::Foreign);
        assert_eq!(open("[2001:db8::2]:1", NOW), Opened::Foreign);
        assert_eq!(key().open(&token, Version::V1, address("[2001:db8::1]:1"), NOW), Opened::Foreign);
    }

    #[test]
    fn tokens_of_others() {
        let client = address("192.0.2.1:4000");
        for token in [retry("192.0.2.1:4000", Version::V1), new("192.0.2.1:4000", Version::V1)] {
            let other = TokenKey::new(&[8; 32], 10, 86_400);
            assert_eq!(other.open(&token, Version::V1, client, NOW), Opened::Foreign);
            for at in 0..token.len() {
                let mut wrong = token.clone();
                wrong[at] ^= 1;
                assert_eq!(key().open(&wrong, Version::V1, client, NOW), Opened::Foreign, "{at}");
                assert_eq!(key().open(&token[..at], Version::V1, client, NOW), Opened::Foreign, "{at}");
            }
            let longer = [&token[..], &[0; 100]].concat();
            assert_eq!(key().open(&longer, Version::V1, client, NOW), Opened::Foreign);
        }
    }

    /// Nothing of the address or the identifier can be read, and no two tokens have a part in common.
    #[test]
    fn content_is_sealed() {
        let client = address("192.0.2.1:4000");
        let token = |unique| {
            let mut out = Vec::new();
            assert!(key().push_new(&mut out, Version::V1, client.ip(), NOW, unique));
            out
        };
        let (one, other) = (token([1; 16]), token([2; 16]));
        assert!(!one.windows(4).any(|four| four == [192, 0, 2, 1]));
        assert!(!one.windows(4).any(|four| other.windows(4).any(|same| four == same)));
        assert_eq!(format!("{:?}", key()), "TokenKey");
    }
}
