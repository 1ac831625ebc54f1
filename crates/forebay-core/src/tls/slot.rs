//! A certificate with its key that may be replaced while servers present it.

use forebay_sys::sync::{read, write};
use rustls::sign::CertifiedKey;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, RwLock};

/// Place of a certificate. Handshakes hold its lock only for a copy of the pointer.
#[derive(Debug)]
pub struct Slot {
    key: RwLock<Arc<CertifiedKey>>,
    /// The certificate only stands for one that is on its way.
    provisional: AtomicBool,
}

impl Slot {
    /// Creates a place with a certificate.
    pub fn new(key: Arc<CertifiedKey>) -> Slot {
        Slot { key: RwLock::new(key), provisional: AtomicBool::new(false) }
    }

    /// Creates a place with a certificate that is presented only where there is no other.
    pub fn provisional(key: Arc<CertifiedKey>) -> Slot {
        Slot { provisional: AtomicBool::new(true), ..Slot::new(key) }
    }

    /// Returns `true` until the first certificate replaces a provisional one.
    pub(super) fn is_provisional(&self) -> bool {
        self.provisional.load(Relaxed)
    }

    /// Returns the certificate.
    pub fn get(&self) -> Arc<CertifiedKey> {
        read(&self.key).clone()
    }

    /// Replaces the certificate. Handshakes that have begun go on with the old one.
    pub fn replace(&self, key: Arc<CertifiedKey>) {
        *write(&self.key) = key;
        self.provisional.store(false, Relaxed);
    }

    /// Replaces the certificate by one that is as provisional as it.
    pub fn replace_provisional(&self, key: Arc<CertifiedKey>) {
        *write(&self.key) = key;
    }

    /// Sets or removes the OCSP response that is stapled to the certificate.
    pub(super) fn staple(&self, response: Option<Vec<u8>>) {
        let mut key = write(&self.key);
        let mut next = CertifiedKey::clone(&key);
        next.ocsp = response;
        *key = Arc::new(next);
    }
}
