//! Keys that are for RSASSA-PSS alone (id-RSASSA-PSS, RFC 4055), which rustls does not sign with. Their signatures are those of
//! `rsa_pss_pss_sha256` and its like (RFC 8446, section 4.2.3).

use super::der::{Der, INTEGER, OCTETS, OID, SEQUENCE, context};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::KeyPair;
use aws_lc_rs::signature::{
    KeyPair as _, RSA_PSS_SHA256, RSA_PSS_SHA384, RSA_PSS_SHA512, RsaSignatureEncoding,
};
use rustls::pki_types::PrivateKeyDer;
use rustls::sign::{Signer, SigningKey};
use rustls::{Error, SignatureAlgorithm, SignatureScheme};
use std::sync::Arc;

/// id-RSASSA-PSS, 1.2.840.113549.1.1.10.
const ID: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 10];
/// Beginning of the identifiers of the SHA-2 hashes, 2.16.840.1.101.3.4.2.
const SHA2: &[u8] = &[0x60, 0x86, 0x48, 1, 101, 3, 4, 2];

/// An algorithm of signatures.
#[derive(Clone, Copy)]
struct Form {
    scheme: SignatureScheme,
    /// Last number of the identifier of the hash.
    hash: u8,
    /// Bytes of the hash, and of the salt.
    length: u32,
    encoding: &'static RsaSignatureEncoding,
}

impl std::fmt::Debug for Form {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.scheme.fmt(f)
    }
}

/// All forms, the preferred one first.
static FORMS: [Form; 3] = [
    Form { scheme: SignatureScheme::Unknown(0x0809), hash: 1, length: 32, encoding: &RSA_PSS_SHA256 },
    Form { scheme: SignatureScheme::Unknown(0x080a), hash: 2, length: 48, encoding: &RSA_PSS_SHA384 },
    Form { scheme: SignatureScheme::Unknown(0x080b), hash: 3, length: 64, encoding: &RSA_PSS_SHA512 },
];

/// Reason for which a key cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unusable {
    /// The parameters of the key or its certificate allow none of the algorithms of TLS.
    Parameters,
    /// The key is broken, or too short.
    Key,
    /// The key is not that of the certificate.
    Mismatch,
}

/// Returns `true` if a private key is one of these.
pub fn is_pss(key: &PrivateKeyDer<'_>) -> bool {
    matches!(key, PrivateKeyDer::Pkcs8(der) if private(der.secret_pkcs8_der()).is_some())
}

/// Returns `true` if a key signs by these algorithms.
pub fn signs(key: &dyn SigningKey) -> bool {
    FORMS.iter().any(|form| key.choose_scheme(&[form.scheme]).is_some())
}

/// Makes a key for signatures. `public` is the key in its certificate, SubjectPublicKeyInfo.
///
/// # Errors
/// [`Unusable`].
pub fn signing_key(key: &PrivateKeyDer<'_>, public: &[u8]) -> Result<Arc<dyn SigningKey>, Unusable> {
    let PrivateKeyDer::Pkcs8(der) = key else { return Err(Unusable::Key) };
    let (own, key) = private(der.secret_pkcs8_der()).ok_or(Unusable::Key)?;
    let (parameters, public) = self::public(public).ok_or(Unusable::Mismatch)?;
    let key = KeyPair::from_der(key).map_err(|_| Unusable::Key)?;
    // A certificate with another key would let each handshake fail only at the client, which sees the wrong signature.
    if key.public_key().as_ref() != public {
        return Err(Unusable::Mismatch);
    }
    // Key and certificate may both restrict the algorithms (RFC 4055, section 1.2), so a form has to fit both.
    let allowed = FORMS.iter().filter(|form| allows(own, form) && allows(parameters, form));
    let forms: Vec<Form> = allowed.copied().collect();
    if forms.is_empty() {
        return Err(Unusable::Parameters);
    }
    Ok(Arc::new(Key { key: Arc::new(key), forms }))
}

/// Returns the parameters and the RSAPrivateKey of a PrivateKeyInfo (RFC 5958).
fn private(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut info = Der(Der(der).expect(SEQUENCE)?);
    info.expect(INTEGER)?;
    let parameters = algorithm(info.expect(SEQUENCE)?)?;
    Some((parameters, info.expect(OCTETS)?))
}

/// Returns the parameters and the RSAPublicKey of a SubjectPublicKeyInfo.
fn public(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut info = Der(Der(der).expect(SEQUENCE)?);
    let parameters = algorithm(info.expect(SEQUENCE)?)?;
    Some((parameters, info.expect(super::der::BITS)?.strip_prefix(&[0])?))
}

/// Returns the parameters of an AlgorithmIdentifier, empty if there are none.
fn algorithm(contents: &[u8]) -> Option<&[u8]> {
    let mut parts = Der(contents);
    parts.expect(OID).filter(|id| *id == ID)?;
    Some(parts.0)
}

/// Returns `true` if RSASSA-PSS-params allow a form. No parameters allow all.
fn allows(parameters: &[u8], form: &Form) -> bool {
    parameters.is_empty() || restricted(parameters, form).unwrap_or(false)
}

fn restricted(parameters: &[u8], form: &Form) -> Option<bool> {
    let mut parts = Der(Der(parameters).expect(SEQUENCE)?);
    let is_hash = |contents: &[u8]| {
        let id = Der(Der(contents).expect(SEQUENCE)?).expect(OID)?;
        Some(id.strip_prefix(SHA2) == Some(&[form.hash]))
    };
    // Without these fields it is SHA-1.
    let hash = is_hash(parts.optional(context(0))?)?;
    let mut mask = Der(Der(parts.optional(context(1))?).expect(SEQUENCE)?);
    mask.expect(OID)?;
    let mask = is_hash(mask.0)?;
    let salt = match parts.optional(context(2)) {
        Some(number) => Der(number).number()?,
        None => 20,
    };
    // The salt of TLS is as long as the hash, and may be longer than the parameters demand.
    Some(hash && mask && salt <= form.length)
}

#[derive(Debug)]
struct Key {
    key: Arc<KeyPair>,
    forms: Vec<Form>,
}

impl SigningKey for Key {
    fn choose_scheme(&self, offered: &[SignatureScheme]) -> Option<Box<dyn Signer>> {
        let offers = |form: &&Form| offered.contains(&form.scheme);
        // In TLS 1.2 rustls leaves out of the list what it does not know. A client that does not know these keys ends the handshake.
        let is_cut = || offered.len() > 1 && offered.contains(&SignatureScheme::RSA_PSS_SHA256);
        let form = self.forms.iter().find(offers).or_else(|| self.forms.first().filter(|_| is_cut()))?;
        Some(Box::new(Signature { key: self.key.clone(), form: *form }))
    }

    fn algorithm(&self) -> SignatureAlgorithm {
        SignatureAlgorithm::RSA
    }
}

#[derive(Debug)]
struct Signature {
    key: Arc<KeyPair>,
    form: Form,
}

impl Signer for Signature {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        let mut signature = vec![0; self.key.public_modulus_len()];
        let signed = self.key.sign(self.form.encoding, &SystemRandom::new(), message, &mut signature);
        signed.map(|()| signature).map_err(|_| Error::General("signing failed".to_owned()))
    }

    fn scheme(&self) -> SignatureScheme {
        self.form.scheme
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tls::{pem, verify};
    use std::process::Command;

    /// Makes a key with these options of `openssl genpkey` and its certificate. Returns both.
    fn made(options: &str) -> (PrivateKeyDer<'static>, Vec<u8>) {
        let dir = tempfile::tempdir().unwrap();
        let run = |args: String| {
            let done = Command::new("openssl")
                .args(args.split(' '))
                .current_dir(dir.path())
                .output()
                .expect("openssl");
            assert!(done.status.success(), "{args}: {}", String::from_utf8_lossy(&done.stderr));
        };
        run(format!("genpkey -algorithm RSA-PSS -out key -pkeyopt rsa_keygen_bits:2048{options}"));
        run("req -x509 -key key -out crt -subj /CN=x".to_owned());
        let read = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
        let leaf = pem::certificates(&read("crt")).remove(0);
        (pem::private_key(&read("key"), &[]).ok().unwrap(), verify::public_key(&leaf).unwrap())
    }

    #[test]
    fn parameters_decide_about_the_algorithms() {
        let (sha256, sha384) = (SignatureScheme::Unknown(0x0809), SignatureScheme::Unknown(0x080a));
        let md =
            |hash: &str| format!(" -pkeyopt rsa_pss_keygen_md:{hash} -pkeyopt rsa_pss_keygen_mgf1_md:{hash}");
        let free = made("");
        assert!(is_pss(&free.0));
        let key = signing_key(&free.0, &free.1).unwrap();
        assert!(signs(&*key));
        let scheme = |key: &dyn SigningKey, offered: &[SignatureScheme]| {
            key.choose_scheme(offered).map(|s| s.scheme())
        };
        assert_eq!(scheme(&*key, &[sha384]), Some(sha384));
        assert_eq!(scheme(&*key, &[sha384, sha256]), Some(sha256));
        assert_eq!(scheme(&*key, &[SignatureScheme::RSA_PSS_SHA256]), None);
        assert_eq!(
            scheme(&*key, &[SignatureScheme::RSA_PSS_SHA512, SignatureScheme::RSA_PSS_SHA256]),
            Some(sha256)
        );
        assert_eq!(key.choose_scheme(&[sha256]).unwrap().sign(b"x").unwrap().len(), 256);
        let bound = made(&md("sha384"));
        let key = signing_key(&bound.0, &bound.1).unwrap();
        assert_eq!((scheme(&*key, &[sha256]), scheme(&*key, &[sha256, sha384])), (None, Some(sha384)));
        assert!(matches!(signing_key(&bound.0, &free.1), Err(Unusable::Mismatch)));
        for unusable in [md("sha1"), md("sha256") + " -pkeyopt rsa_pss_keygen_saltlen:100"] {
            let (key, public) = made(&unusable);
            assert!(matches!(signing_key(&key, &public), Err(Unusable::Parameters)), "{unusable}");
        }
    }
}
