//! Connection identifiers that name the place of a connection: its process, its thread and its endpoint.

use super::time;
use aws_lc_rs::aead::quic::{AES_128, HeaderProtectionKey};
use forebay_quic::connection::{Identity, ResetToken};
use forebay_quic::id::ConnectionId;
use forebay_quic::packet::reset;
use forebay_quic::token::TokenKey;
use forebay_quic::version::Version;
use forebay_sys::random::random_u64;
use forebay_sys::sync::lock;
use std::cell::RefCell;
use std::collections::{HashSet, VecDeque};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::{Arc, LazyLock, Mutex};

/// Length of an identifier, bytes. It has the place, and random bytes.
pub(super) const LENGTH: usize = 12;
/// Bytes of the place.
const PLACE: usize = 4;
/// Bytes that a mask is made of.
const SAMPLE: usize = 16;

/// Place of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Number of the process, random.
    pub process: u16,
    /// Number of the thread.
    pub thread: u8,
    /// Number of the endpoint among those of the thread.
    pub endpoint: u8,
}

impl Place {
    fn bytes(self) -> [u8; PLACE] {
        let [high, low] = self.process.to_be_bytes();
        [high, low, self.thread, self.endpoint]
    }
}

/// Secret that hides places: nobody who reads an identifier may learn that another is of the same connection (RFC 9000, section 5.1).
pub struct Mask(HeaderProtectionKey);

impl std::fmt::Debug for Mask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Mask")
    }
}

impl Mask {
    /// Creates a mask from a secret.
    pub fn new(secret: &[u8; 16]) -> Option<Mask> {
        HeaderProtectionKey::new(&AES_128, secret).ok().map(Mask)
    }

    /// Hides or shows the place in an identifier, whose other bytes are random.
    fn apply(&self, id: &mut [u8; LENGTH]) {
        let (place, random) = id.split_at_mut(PLACE);
        let mut sample = [0; SAMPLE];
        sample.iter_mut().zip(random).for_each(|(to, from)| *to = *from);
        // Making the mask fails only for samples of another length.
        let mask = self.0.new_mask(&sample).unwrap_or_default();
        place.iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
    }

    /// Returns the place that an identifier names, which is random for an identifier of another server. Returns `None` if it has another
    /// length.
    pub(super) fn place_of(&self, id: &[u8]) -> Option<Place> {
        let mut id: [u8; LENGTH] = id.try_into().ok()?;
        self.apply(&mut id);
        let [high, low, thread, endpoint, ..] = id;
        Some(Place { process: u16::from_be_bytes([high, low]), thread, endpoint })
    }
}

/// Returns the identifier of the receiver in the first packet of a datagram, and whether the packet has a long header
/// (RFC 9000, section 17).
pub(super) fn receiver_of(datagram: &[u8]) -> Option<(&[u8], bool)> {
    let first = datagram.first()?;
    // A short header has no length of the identifier, so the receiver has to know it (RFC 9000, section
    // 17.3).
    if first & 0x80 == 0 {
        return Some((datagram.get(1..1 + LENGTH)?, false));
    }
    let length = usize::from(*datagram.get(5)?);
    Some((datagram.get(6..6 + length)?, true))
}

/// Identity of an endpoint: its identifiers name its place.
pub(super) struct Here {
    pub place: Place,
    pub mask: Arc<Mask>,
    pub resets: reset::Key,
    /// Secret of tokens. A reload may change it.
    pub tokens: RefCell<Option<Rc<TokenKey>>>,
}

impl Identity for Here {
    fn make(&self) -> ConnectionId {
        let mut bytes = [0; LENGTH];
        let (place, random) = bytes.split_at_mut(PLACE);
        place.copy_from_slice(&self.place.bytes());
        random.copy_from_slice(&random_u64().to_ne_bytes());
        self.mask.apply(&mut bytes);
        ConnectionId::new(&bytes).unwrap_or_default()
    }

    fn id_len(&self) -> usize {
        LENGTH
    }

    fn reset_token(&self, id: &ConnectionId) -> ResetToken {
        self.resets.token(id)
    }

    fn token(&self, version: Version, client: IpAddr) -> Option<Box<[u8]>> {
        let mut token = Vec::new();
        let unique = [random_u64(), random_u64()].map(u64::to_ne_bytes);
        let unique = unique.as_flattened().try_into().ok()?;
        let is_made =
            self.tokens.borrow().as_ref()?.push_new(&mut token, version, client, time::unix(), unique);
        is_made.then_some(token.into())
    }

    fn takes_token(&self, nonce: u128) -> bool {
        // A client could use its token with another thread, so all threads share the list.
        static USED: LazyLock<Mutex<Used>> = LazyLock::new(Mutex::default);
        lock(&USED).insert(nonce)
    }
}

/// Largest number of tokens that are remembered as used.
const USED_TOKENS: usize = 16 * 1024;

/// Tokens that have been used in any thread, the oldest first (RFC 9000, section 8.1.4).
#[derive(Default)]
struct Used {
    all: HashSet<u128>,
    order: VecDeque<u128>,
}

impl Used {
    /// Returns `true` if a token has not been used before.
    fn insert(&mut self, nonce: u128) -> bool {
        if !self.all.insert(nonce) {
            return false;
        }
        self.order.push_back(nonce);
        if self.order.len() > USED_TOKENS
            && let Some(oldest) = self.order.pop_front()
        {
            self.all.remove(&oldest);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_names_its_place_and_shows_it_to_nobody() {
        let mask = Arc::new(Mask::new(&[7; 16]).expect("16 bytes are a key"));
        let place = Place { process: 0x1234, thread: 5, endpoint: 6 };
        let resets = reset::Key::new(&[1; 32]);
        let here = Here { place, mask: mask.clone(), resets, tokens: RefCell::default() };
        let ids: Vec<ConnectionId> = (0..100).map(|_| here.make()).collect();
        for id in &ids {
            assert_eq!((id.len(), mask.place_of(id)), (LENGTH, Some(place)));
        }
        for byte in 0..LENGTH {
            let mut values: Vec<u8> = ids.iter().map(|id| id[byte]).collect();
            values.sort_unstable();
            values.dedup();
            assert!(values.len() > 50, "byte {byte} says something: {values:?}");
        }
        let other = Mask::new(&[8; 16]).expect("16 bytes are a key");
        assert!(ids.iter().filter(|id| other.place_of(id) == Some(place)).count() < 2);
        assert_eq!(mask.place_of(&[0; LENGTH - 1]), None);
    }

    #[test]
    fn a_token_is_taken_once() {
        let mut used = Used::default();
        assert!(used.insert(1) && !used.insert(1));
        for nonce in 2..=USED_TOKENS as u128 + 1 {
            assert!(used.insert(nonce));
        }
        assert_eq!((used.all.len(), used.order.len()), (USED_TOKENS, USED_TOKENS));
    }

    #[test]
    fn the_receiver_of_long_and_short_headers() {
        let long = [0xc0, 0, 0, 0, 1, 2, 8, 9, 0, 0];
        assert_eq!(receiver_of(&long), Some((&[8u8, 9][..], true)));
        assert_eq!(receiver_of(&long[..7]), None);
        let short: Vec<u8> = (0x40..0x50).collect();
        assert_eq!(receiver_of(&short), Some((&short[1..13], false)));
        assert_eq!(receiver_of(&short[..12]), None);
        assert_eq!(receiver_of(&[]), None);
    }
}
