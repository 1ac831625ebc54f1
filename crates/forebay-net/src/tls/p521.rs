//! Key exchange on the curve P-521 (RFC 8446, section 4.2.8.2; RFC 8422, section 5.4), which rustls has no group for.

use aws_lc_rs::agreement::{ECDH_P521, EphemeralPrivateKey, UnparsedPublicKey, agree_ephemeral};
use aws_lc_rs::rand::SystemRandom;
use rustls::crypto::{ActiveKeyExchange, GetRandomFailed, SharedSecret, SupportedKxGroup};
use rustls::{Error, NamedGroup, PeerMisbehaved};

/// Length of a public key, bytes: an uncompressed point.
const PUBLIC: usize = 1 + 2 * 66;
/// First byte of an uncompressed point.
const UNCOMPRESSED: u8 = 4;

/// The group.
pub static SECP521R1: &dyn SupportedKxGroup = &P521;

#[derive(Debug)]
struct P521;

impl SupportedKxGroup for P521 {
    fn start(&self) -> Result<Box<dyn ActiveKeyExchange>, Error> {
        let key =
            EphemeralPrivateKey::generate(&ECDH_P521, &SystemRandom::new()).map_err(|_| GetRandomFailed)?;
        let public = key.compute_public_key().map_err(|_| GetRandomFailed)?.as_ref().to_vec();
        Ok(Box::new(Exchange { key, public }))
    }

    fn name(&self) -> NamedGroup {
        NamedGroup::secp521r1
    }
}

/// Our side of an exchange.
struct Exchange {
    key: EphemeralPrivateKey,
    public: Vec<u8>,
}

impl ActiveKeyExchange for Exchange {
    fn complete(self: Box<Self>, peer: &[u8]) -> Result<SharedSecret, Error> {
        let bad = || Error::from(PeerMisbehaved::InvalidKeyShare);
        if peer.len() != PUBLIC || peer.first() != Some(&UNCOMPRESSED) {
            return Err(bad());
        }
        // Points that are not on the curve are refused there.
        agree_ephemeral(self.key, UnparsedPublicKey::new(&ECDH_P521, peer), bad(), |secret| {
            Ok(SharedSecret::from(secret))
        })
    }

    fn pub_key(&self) -> &[u8] {
        &self.public
    }

    fn group(&self) -> NamedGroup {
        NamedGroup::secp521r1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_sides_agree_and_points_off_the_curve_are_refused() {
        let (a, b) = (SECP521R1.start().unwrap(), SECP521R1.start().unwrap());
        let (to_a, to_b) = (b.pub_key().to_vec(), a.pub_key().to_vec());
        assert_eq!(to_a.len(), PUBLIC);
        let (one, two) = (a.complete(&to_a).unwrap(), b.complete(&to_b).unwrap());
        assert_eq!(one.secret_bytes(), two.secret_bytes());
        assert_eq!(one.secret_bytes().len(), 66);
        let mut off = to_a.clone();
        off[40] ^= 1;
        let hybrid = [&[6][..], &to_a[1..]].concat();
        for bad in [off.as_slice(), &to_a[..PUBLIC - 1], &hybrid, &[UNCOMPRESSED; PUBLIC], &[]] {
            assert!(SECP521R1.start().unwrap().complete(bad).is_err());
        }
    }
}
