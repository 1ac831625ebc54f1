//! A certificate with its key that may be replaced while servers present it.

use forebay_sys::sync::{read, write};
use rustls::sign::CertifiedKey;
use std::sync::{Arc, RwLock};

/// Place of a certificate. Handshakes hold its lock only for a copy of the pointer.
#[derive(Debug)]
pub struct Slot(RwLock<Arc<CertifiedKey>>);

impl Slot {
    /// Creates a place with a certificate.
    pub fn new(key: Arc<CertifiedKey>) -> Slot {
        Slot(RwLock::new(key))
    }

    /// Returns the certificate.
    pub fn get(&self) -> Arc<CertifiedKey> {
        read(&self.0).clone()
    }

    /// Replaces the certificate. Handshakes that have begun go on with the old one.
    pub fn replace(&self, key: Arc<CertifiedKey>) {
        *write(&self.0) = key;
    }

    /// Sets or removes the OCSP response that is stapled to the certificate.
    pub(super) fn staple(&self, response: Option<Vec<u8>>) {
        let mut key = write(&self.0);
        let mut next = CertifiedKey::clone(&key);
        next.ocsp = response;
        *key = Arc::new(next);
    }
}
