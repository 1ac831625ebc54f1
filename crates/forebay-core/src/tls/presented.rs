//! Certificates that a server presents, and the cache of those that are loaded while it runs (nginx: ssl_certificate_cache).

use super::cache_settings::CacheLimits;
use super::slot::Slot;
use forebay_sys::sync::lock;
use rustls::SignatureScheme;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use std::collections::HashMap;
use std::sync::Arc;

/// Certificates with keys. The client's signature algorithms decide which one is presented.
#[derive(Debug, Default)]
pub(crate) struct Presented(pub(crate) Vec<Arc<Slot>>);

impl Presented {
    /// Creates a set of certificates that nothing else replaces.
    pub(crate) fn fixed(keys: Vec<Arc<CertifiedKey>>) -> Presented {
        Presented(keys.into_iter().map(|key| Arc::new(Slot::new(key))).collect())
    }

    /// Returns the certificate of this index.
    pub(crate) fn get(&self, i: usize) -> Option<Arc<CertifiedKey>> {
        self.0.get(i).map(|slot| slot.get())
    }

    /// Sets or removes the OCSP response that is stapled to a certificate.
    pub(crate) fn staple(&self, i: usize, response: Option<Vec<u8>>) {
        if let Some(slot) = self.0.get(i) {
            slot.staple(response);
        }
    }
}

impl Presented {
    /// Chooses a certificate for a client that verifies these signatures, the preferred one first.
    fn choose(&self, schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        let get = |slot: &Arc<Slot>| slot.get();
        if let [only] = self.0.as_slice() {
            return Some(get(only));
        }
        // A provisional certificate is for no name. It must not win over one of another kind that is there.
        let find = |provisional: bool| {
            let slots = || self.0.iter().filter(|s| s.is_provisional() == provisional);
            let fits = |k: &Arc<CertifiedKey>, s: &SignatureScheme| k.key.choose_scheme(&[*s]).is_some();
            schemes.iter().find_map(|scheme| slots().map(get).find(|k| fits(k, scheme)))
        };
        // If nothing fits, return any: rustls then fails with the right error.
        find(false).or_else(|| find(true)).or_else(|| self.0.first().map(get))
    }
}

impl ResolvesServerCert for Presented {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.choose(hello.signature_schemes())
    }
}

/// Certificates with their keys by name, bounded (nginx: ssl_certificate_cache).
#[derive(Debug)]
pub(crate) struct Loaded {
    limits: CacheLimits,
    map: std::sync::Mutex<HashMap<Vec<u8>, LoadedKey>>,
}

#[derive(Debug)]
struct LoadedKey {
    key: Arc<CertifiedKey>,
    checked: std::time::Instant,
    used: std::time::Instant,
}

impl LoadedKey {
    /// Returns `true` if the time of the entry is over.
    fn is_over(&self, limits: &CacheLimits) -> bool {
        self.checked.elapsed() > limits.valid || self.used.elapsed() > limits.inactive
    }
}

impl Loaded {
    /// Creates an empty cache.
    pub(crate) fn new(limits: CacheLimits) -> Loaded {
        Loaded { limits, map: Default::default() }
    }

    /// Returns the certificate and key loaded from these files.
    pub(crate) fn of_files(&self, files: &(Vec<u8>, Vec<u8>)) -> Option<Arc<CertifiedKey>> {
        self.get(&id(files))
    }

    /// Returns the certificate of a name, unless it has been there too long.
    pub(crate) fn get(&self, name: &[u8]) -> Option<Arc<CertifiedKey>> {
        let mut map = lock(&self.map);
        let entry = map.get_mut(name)?;
        if entry.is_over(&self.limits) {
            map.remove(name);
            return None;
        }
        entry.used = std::time::Instant::now();
        Some(entry.key.clone())
    }

    /// Adds a certificate, in place of the least recently used one of a full cache.
    pub(crate) fn put(&self, name: Vec<u8>, key: Arc<CertifiedKey>) {
        let mut map = lock(&self.map);
        // Two handshakes may load the same files at once. The second replaces an entry, so evict none for it.
        if map.len() >= self.limits.max && !map.contains_key(&name) {
            map.retain(|_, e| !e.is_over(&self.limits));
            let oldest = map.iter().min_by_key(|(_, e)| e.used).map(|(n, _)| n.clone());
            oldest.filter(|_| map.len() >= self.limits.max).map(|n| map.remove(&n));
        }
        let now = std::time::Instant::now();
        map.insert(name, LoadedKey { key, checked: now, used: now });
    }
}

/// Returns the key of a pair of files in the cache.
pub(crate) fn id((cert, key): &(Vec<u8>, Vec<u8>)) -> Vec<u8> {
    [cert.as_slice(), b"\0", key].concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use aws_lc_rs::signature::{
        ECDSA_P256_SHA256_ASN1_SIGNING, ECDSA_P384_SHA384_ASN1_SIGNING, EcdsaKeyPair, EcdsaSigningAlgorithm,
    };
    use rustls::pki_types::PrivatePkcs8KeyDer;
    use std::time::Duration;

    fn key() -> Arc<CertifiedKey> {
        key_of(&ECDSA_P256_SHA256_ASN1_SIGNING)
    }

    fn key_of(algorithm: &'static EcdsaSigningAlgorithm) -> Arc<CertifiedKey> {
        let random = aws_lc_rs::rand::SystemRandom::new();
        let made = EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        let der = PrivatePkcs8KeyDer::from(made.as_ref().to_vec()).into();
        let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&der).unwrap();
        Arc::new(CertifiedKey::new(Vec::new(), key))
    }

    /// One kind may be issued before the other.
    #[test]
    fn a_provisional_certificate_gives_way() {
        use SignatureScheme::{ECDSA_NISTP256_SHA256 as P256, ECDSA_NISTP384_SHA384 as P384};
        let (p256, p384) = (key(), key_of(&ECDSA_P384_SHA384_ASN1_SIGNING));
        let first = Arc::new(Slot::provisional(p256.clone()));
        let all = Presented(vec![first.clone(), Arc::new(Slot::new(p384.clone()))]);
        let is = |schemes: &[SignatureScheme], key: &Arc<CertifiedKey>| {
            Arc::ptr_eq(&all.choose(schemes).expect("a certificate"), key)
        };
        assert!(is(&[P256, P384], &p384));
        assert!(is(&[P256], &p256), "better than none");
        first.replace(p256.clone());
        assert!(is(&[P256, P384], &p256) && is(&[P384, P256], &p384), "the client's order");
    }

    /// Of too many certificates the one leaves that was not used for longest (nginx: ssl_certificate_cache).
    #[test]
    fn the_least_recently_used_certificate_leaves_a_full_cache() {
        let key = key();
        let limits = CacheLimits { inactive: Duration::from_secs(60), ..CacheLimits::of(2) };
        let cache = Loaded::new(limits);
        let has = |name: &str| cache.get(name.as_bytes()).is_some();
        let put = |name: &str| cache.put(name.as_bytes().to_vec(), key.clone());
        put("a");
        put("b");
        assert!(has("a"));
        put("c");
        assert!(has("a") && !has("b") && has("c"));
        // A name that is there already takes no other's place.
        put("c");
        assert!(has("a") && has("c"));
        // Entries whose time is over leave before those in use.
        let cache = Loaded::new(CacheLimits { inactive: Duration::ZERO, ..limits });
        cache.put(b"a".to_vec(), key.clone());
        cache.put(b"b".to_vec(), key.clone());
        std::thread::yield_now();
        cache.put(b"c".to_vec(), key.clone());
        assert_eq!(cache.map.lock().unwrap().len(), 1);
    }
}
