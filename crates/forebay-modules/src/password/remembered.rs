//! Passwords that were right a short time ago. A check of a slow hash takes milliseconds, and a browser sends its password with each
//! request. Hot path.

use aws_lc_rs::hmac;
use aws_lc_rs::rand::SystemRandom;
use hashbrown::HashMap;
use std::time::{Duration, Instant};

/// Time for which a password counts after its check.
const KEPT: Duration = Duration::from_secs(60);

/// Largest number of passwords that a thread remembers.
const MOST: usize = 4096;

/// Name of a password and a hash that belong together: their digest with a key that no other process has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pair([u8; 32]);

/// Pairs of a password and its hash that have been checked. Wrong passwords are not remembered, so each of them costs a check.
#[derive(Debug)]
pub struct Remembered {
    /// `None` where the system has no random bytes: then nothing is remembered.
    key: Option<hmac::Key>,
    /// Ends of the pairs.
    // Clients cannot choose names that collide, as these are digests with a secret key. So a fast hash is
    // enough.
    pairs: HashMap<Pair, Instant, foldhash::fast::RandomState>,
    /// Number of lookups that found a pair.
    #[cfg(test)]
    pub hits: u64,
}

impl Default for Remembered {
    fn default() -> Remembered {
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).ok();
        Remembered {
            key,
            pairs: HashMap::default(),
            #[cfg(test)]
            hits: 0,
        }
    }
}

impl Remembered {
    /// Returns the name of a password with a hash. Another hash gives another name, so a password that has been changed is not found.
    pub fn pair(&self, password: &[u8], hash: &[u8]) -> Option<Pair> {
        let mut digest = hmac::Context::with_key(self.key.as_ref()?);
        // The length keeps the two texts apart.
        digest.update(&(hash.len() as u64).to_le_bytes());
        digest.update(hash);
        digest.update(password);
        digest.sign().as_ref().try_into().ok().map(Pair)
    }

    /// Returns `true` if a pair was found right a short time ago.
    pub fn is_right(&mut self, pair: &Pair, now: Instant) -> bool {
        let right = self.pairs.get(pair).is_some_and(|end| now < *end);
        #[cfg(test)]
        {
            self.hits += u64::from(right);
        }
        right
    }

    /// Remembers a pair whose check has succeeded.
    pub fn insert(&mut self, pair: Pair, now: Instant) {
        if self.pairs.len() >= MOST {
            self.pairs.retain(|_, end| now < *end);
        }
        if self.pairs.len() >= MOST {
            // Only right passwords get here, so no attacker can fill the table, and each user pays one more
            // check.
            self.pairs.clear();
        }
        self.pairs.insert(pair, now + KEPT);
    }

    /// Forgets all pairs.
    pub fn clear(&mut self) {
        self.pairs.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_count_for_a_while() {
        let (mut r, now) = (Remembered::default(), Instant::now());
        let pair = r.pair(b"pass", b"$1$hash").expect("a key");
        assert!(!r.is_right(&pair, now));
        r.insert(pair, now);
        let again = r.pair(b"pass", b"$1$hash").expect("a key");
        assert!(r.is_right(&again, now + KEPT - Duration::from_millis(1)));
        assert!(!r.is_right(&again, now + KEPT));
        assert_eq!(r.hits, 1);
        r.clear();
        assert!(!r.is_right(&pair, now));
    }

    #[test]
    fn other_passwords_and_hashes_are_other_pairs() {
        let r = Remembered::default();
        let of = |password: &str, hash: &str| r.pair(password.as_bytes(), hash.as_bytes()).expect("a key");
        let pairs =
            [of("a", "bc"), of("ab", "c"), of("", "bca"), of("bca", ""), of("a", "bd"), of("b", "bc")];
        for (i, a) in pairs.iter().enumerate() {
            assert!(pairs[..i].iter().all(|b| a != b), "{i}");
        }
        assert_ne!(
            Some(pairs[0]),
            Remembered::default().pair(b"a", b"bc"),
            "each thread has a key of its own"
        );
    }

    #[test]
    fn the_number_of_pairs_is_bounded() {
        let (mut r, now) = (Remembered::default(), Instant::now());
        for i in 0..3 * MOST {
            let pair = r.pair(&i.to_le_bytes(), b"hash").expect("a key");
            r.insert(pair, now);
            assert!(r.pairs.len() <= MOST);
            assert!(r.is_right(&pair, now));
        }
    }
}
