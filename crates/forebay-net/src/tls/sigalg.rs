//! Signature algorithms of the two sides of a handshake (nginx: $ssl_sigalg, $ssl_client_sigalg). rustls does not return
//! them, but calls the keys and verifiers that it is given. These note the algorithm in a variable of the thread, from which
//! it is taken after the step of the handshake.

use rustls::pki_types::SubjectPublicKeyInfoDer;
use rustls::sign::{Signer, SigningKey};
use rustls::{Error, SignatureAlgorithm, SignatureScheme};
use std::cell::Cell;
use std::sync::Arc;

thread_local! {
    static SIGNED: Cell<u16> = const { Cell::new(0) };
    static CHECKED: Cell<u16> = const { Cell::new(0) };
}

/// Takes the noted algorithms. Returns the numbers of our own and the other side's algorithm, 0 for none.
pub fn take() -> (u16, u16) {
    (SIGNED.replace(0), CHECKED.replace(0))
}

/// Notes the algorithm of the other side's signature.
pub fn checked(scheme: SignatureScheme) {
    CHECKED.set(u16::from(scheme));
}

/// Makes a key note the algorithm of its signatures.
pub fn noting(key: Arc<dyn SigningKey>) -> Arc<dyn SigningKey> {
    Arc::new(Noting(key))
}

#[derive(Debug)]
struct Noting<T>(T);

impl SigningKey for Noting<Arc<dyn SigningKey>> {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        self.0.choose_scheme(offered).map(|s| Box::new(Noting(s)) as Box<dyn Signer>)
    }
    fn public_key(&self) -> Option<SubjectPublicKeyInfoDer<'_>> {
        self.0.public_key()
    }
    fn algorithm(&self) -> SignatureAlgorithm {
        self.0.algorithm()
    }
}

impl Signer for Noting<Box<dyn Signer>> {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        SIGNED.set(u16::from(self.0.scheme()));
        self.0.sign(message)
    }
    fn scheme(&self) -> SignatureScheme {
        self.0.scheme()
    }
}
