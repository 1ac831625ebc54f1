//! Connection identifiers that tell the place of a connection: its process, its thread, its endpoint.

use aws_lc_rs::aead::quic::{AES_128, HeaderProtectionKey};
use quinn_proto::{ConnectionId, ConnectionIdGenerator};
use std::sync::Arc;
use std::time::Duration;

/// Length of an identifier, bytes: the place, and random ones.
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
        // It fails for samples of another length only.
        let mask = self.0.new_mask(&sample).unwrap_or_default();
        place.iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
    }

    /// Returns the place that an identifier names; a random one if it is not ours. `None`: its length is another.
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
    if first & 0x80 == 0 {
        return Some((datagram.get(1..1 + LENGTH)?, false));
    }
    let length = usize::from(*datagram.get(5)?);
    Some((datagram.get(6..6 + length)?, true))
}

/// Maker of identifiers.
pub(super) struct Generator {
    pub place: Place,
    pub mask: Arc<Mask>,
}

impl ConnectionIdGenerator for Generator {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut bytes = [0; LENGTH];
        let (place, random) = bytes.split_at_mut(PLACE);
        place.copy_from_slice(&self.place.bytes());
        random.copy_from_slice(&forebay_sys::random::random_u64().to_ne_bytes());
        self.mask.apply(&mut bytes);
        ConnectionId::new(&bytes)
    }

    fn cid_len(&self) -> usize {
        LENGTH
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identifier_names_its_place_and_shows_it_to_nobody() {
        let mask = Arc::new(Mask::new(&[7; 16]).expect("16 bytes are a key"));
        let place = Place { process: 0x1234, thread: 5, endpoint: 6 };
        let mut generator = Generator { place, mask: mask.clone() };
        let ids: Vec<ConnectionId> = (0..100).map(|_| generator.generate_cid()).collect();
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
