//! Sealing of the secrets for session tickets in the store, by keys that are not there: whoever reads the store, or a copy of it,
//! cannot take over sessions.
//!
//! The keys are derived from a file of the configuration (`session_tickets=file:PATH`), or else from the private keys of the
//! servers' certificates, which replicas with the same certificates have in common.

use super::script::{SECRET, Secret};
use aws_lc_rs::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Salt};
use forebay_sys::sync::lock;
use std::sync::{Arc, LazyLock, Mutex};
use zeroize::Zeroizing;

/// Most keys of servers that a secret is sealed for.
const MAX_KEYS: usize = 16;
/// Bytes of the name of a key.
const NAME: usize = 8;
/// Bytes of a sealed secret: the name of its key, nonce, secret and tag.
const SEALED: usize = NAME + NONCE_LEN + SECRET + 16;

/// Key that seals secrets.
#[derive(Clone)]
struct Key {
    name: [u8; NAME],
    cipher: Arc<LessSafeKey>,
}

/// Keys of the servers' certificates in this process, by the order of their names. Servers that a reload takes over do not name
/// theirs again, so none is forgotten.
static OF_SERVERS: LazyLock<Mutex<Vec<Key>>> = LazyLock::new(Mutex::default);

/// Length of what is derived from a key.
#[derive(Clone, Copy)]
struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

impl Key {
    /// Derives a key from a secret of the configuration.
    fn derive(secret: &[u8]) -> Option<Key> {
        let random = Salt::new(HKDF_SHA256, b"forebay shared_store").extract(secret);
        let fill = |info: &[u8], out: &mut [u8]| {
            random.expand(&[info], Length(out.len())).and_then(|derived| derived.fill(out)).ok()
        };
        let (mut name, mut key) = ([0; NAME], Zeroizing::new([0; 32]));
        fill(b"name of the key for session tickets", &mut name)?;
        fill(b"key for session tickets", key.as_mut_slice())?;
        let cipher = LessSafeKey::new(UnboundKey::new(&AES_256_GCM, key.as_slice()).ok()?);
        Some(Key { name, cipher: Arc::new(cipher) })
    }

    fn seal(&self, secret: &[u8]) -> Option<Vec<u8>> {
        let mut nonce = [0; NONCE_LEN];
        aws_lc_rs::rand::fill(&mut nonce).ok()?;
        let mut sealed = Zeroizing::new(secret.to_vec());
        let aad = Aad::from(self.name);
        self.cipher.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), aad, &mut *sealed).ok()?;
        Some([&self.name[..], &nonce, &sealed].concat())
    }

    /// Opens a sealed secret. Returns `None` if it is for another key, or broken.
    fn open(&self, sealed: &[u8]) -> Option<Secret> {
        let (nonce, rest) = sealed.strip_prefix(&self.name)?.split_at_checked(NONCE_LEN)?;
        let mut bytes = Zeroizing::new(rest.to_vec());
        let nonce = Nonce::try_assume_unique_for_key(nonce).ok()?;
        let length = self.cipher.open_in_place(nonce, Aad::from(self.name), &mut bytes).ok()?.len();
        bytes.truncate(length);
        (length == SECRET).then_some(bytes)
    }
}

/// Notes the private key, DER, of a certificate of a server.
pub(crate) fn remember(private_key: &[u8]) {
    let Some(key) = Key::derive(private_key) else { return };
    let mut known = lock(&OF_SERVERS);
    if let Err(at) = known.binary_search_by_key(&key.name, |k| k.name) {
        known.insert(at, key);
    }
}

/// Keys by which this replica seals and opens secrets.
pub(super) struct Sealer(Vec<Key>);

impl Sealer {
    /// Returns the keys of the file's content, or else those of the servers. There may be none.
    pub(super) fn new(file: Option<&Secret>) -> Sealer {
        Sealer(match file {
            Some(secret) => Key::derive(secret).into_iter().collect(),
            None => lock(&OF_SERVERS).iter().take(MAX_KEYS).cloned().collect(),
        })
    }

    /// Returns `true` if there is no key.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Seals a secret for each of the keys, one after the other.
    pub(super) fn seal(&self, secret: &Secret) -> Option<Vec<u8>> {
        let sealed: Option<Vec<_>> = self.0.iter().map(|key| key.seal(secret)).collect();
        sealed.map(|all| all.concat())
    }

    /// Opens a secret that another replica has sealed. Returns `None` if there is no key in common.
    pub(super) fn open(&self, sealed: &[u8]) -> Option<Secret> {
        sealed.chunks(SEALED).find_map(|one| self.0.iter().find_map(|key| key.open(one)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sealer(keys: &[&[u8]]) -> Sealer {
        Sealer(keys.iter().map(|k| Key::derive(k).expect("a key")).collect())
    }

    #[test]
    fn a_key_in_common_opens() {
        let secret = Zeroizing::new(vec![7; SECRET]);
        let (one, two, both) = (sealer(&[b"one"]), sealer(&[b"two"]), sealer(&[b"two", b"one"]));
        let sealed = one.seal(&secret).expect("sealed");
        assert_eq!(sealed.len(), SEALED);
        assert!(!sealed.windows(8).any(|w| w == [7; 8]), "it cannot be read");
        assert_eq!(one.open(&sealed), Some(secret.clone()));
        assert_eq!(both.open(&sealed), Some(secret.clone()));
        assert_eq!(two.open(&sealed), None);
        assert_eq!(two.open(&both.seal(&secret).expect("sealed")), Some(secret.clone()));
        assert_ne!(one.seal(&secret), one.seal(&secret));
        assert_eq!(sealer(&[]).seal(&secret).as_deref(), Some(&[][..]));
        for at in [0, NAME, NAME + NONCE_LEN, SEALED - 1] {
            let mut changed = sealed.clone();
            changed[at] ^= 1;
            assert_eq!(one.open(&changed), None, "{at}");
            assert_eq!(one.open(&sealed[..at]), None);
        }
    }

    #[test]
    fn keys_of_servers_count_once() {
        remember(b"a private key");
        let before = Sealer::new(None).0.len();
        remember(b"a private key");
        assert_eq!(Sealer::new(None).0.len(), before);
        assert_eq!(Sealer::new(Some(&Zeroizing::new(b"content".to_vec()))).0.len(), 1);
    }
}
