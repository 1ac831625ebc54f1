//! Key pairs of accounts and certificates, and signatures by them.

use crate::settings::KeyKind;
use aws_lc_rs::encoding::{AsDer, Pkcs8V1Der};
use aws_lc_rs::rand::SystemRandom;
use aws_lc_rs::rsa::{self, KeySize};
use aws_lc_rs::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, ECDSA_P384_SHA384_FIXED_SIGNING, ECDSA_P521_SHA512_FIXED_SIGNING,
    EcdsaKeyPair, EcdsaSigningAlgorithm, KeyPair, RSA_PKCS1_SHA256,
};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use forebay_net::tls::der::{Der, element};
use forebay_net::tls::pem;
use rustls::pki_types::PrivateKeyDer;
use serde_json::{Value, json};
use zeroize::Zeroizing;

/// Tag of an INTEGER.
pub(crate) const INTEGER: u8 = 2;
/// Tag of a BIT STRING.
pub(crate) const BITS: u8 = 3;
/// Tag of a NULL.
const NULL: u8 = 5;
/// Tag of an OBJECT IDENTIFIER.
pub(crate) const OID: u8 = 6;
/// Tag of a SEQUENCE.
pub(crate) const SEQUENCE: u8 = 0x30;

/// Encodes bytes for JSON (RFC 8555, section 6.1).
pub(crate) fn base64url(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

/// Elliptic curve with what formats call it.
struct Curve {
    kind: KeyKind,
    algorithm: &'static EcdsaSigningAlgorithm,
    /// Name in JSON Web Keys.
    name: &'static str,
    /// Signature algorithm of JSON Web Signatures.
    jws: &'static str,
    /// Object identifier.
    oid: &'static [u8],
    /// Object identifier of the signature algorithm.
    signature: &'static [u8],
}

static CURVES: [Curve; 3] = [
    Curve {
        kind: KeyKind::P256,
        algorithm: &ECDSA_P256_SHA256_FIXED_SIGNING,
        name: "P-256",
        jws: "ES256",
        oid: &[0x2a, 0x86, 0x48, 0xce, 0x3d, 3, 1, 7],
        signature: &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2],
    },
    Curve {
        kind: KeyKind::P384,
        algorithm: &ECDSA_P384_SHA384_FIXED_SIGNING,
        name: "P-384",
        jws: "ES384",
        oid: &[0x2b, 0x81, 4, 0, 0x22],
        signature: &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 3],
    },
    Curve {
        kind: KeyKind::P521,
        algorithm: &ECDSA_P521_SHA512_FIXED_SIGNING,
        name: "P-521",
        jws: "ES512",
        oid: &[0x2b, 0x81, 4, 0, 0x23],
        signature: &[0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 4],
    },
];

/// id-ecPublicKey.
const EC_PUBLIC_KEY: &[u8] = &[0x2a, 0x86, 0x48, 0xce, 0x3d, 2, 1];
/// rsaEncryption.
const RSA_ENCRYPTION: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1];
/// sha256WithRSAEncryption.
const RSA_SHA256: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 0x0b];

enum Pair {
    Ec(&'static Curve, EcdsaKeyPair),
    Rsa(rsa::KeyPair),
}

/// A key pair.
pub(crate) struct Key {
    pair: Pair,
    /// Private key, PKCS#8.
    pkcs8: Zeroizing<Vec<u8>>,
}

/// Text for a failure in the cryptographic library.
const BROKEN: &str = "the cryptographic library failed";

impl Key {
    /// Makes a key. That of RSA takes a second or more: call it on the blocking pool.
    ///
    /// # Errors
    /// If the library fails.
    pub(crate) fn generate(kind: KeyKind) -> Result<Key, String> {
        let broken = |_| BROKEN.to_owned();
        if let Some(curve) = CURVES.iter().find(|c| c.kind == kind) {
            let random = SystemRandom::new();
            let made = EcdsaKeyPair::generate_pkcs8(curve.algorithm, &random).map_err(broken)?;
            return Key::of_ec(curve, made.as_ref());
        }
        let size = match kind {
            KeyKind::Rsa4096 => KeySize::Rsa4096,
            KeyKind::Rsa3072 => KeySize::Rsa3072,
            _ => KeySize::Rsa2048,
        };
        Key::of_rsa(rsa::KeyPair::generate(size).map_err(broken)?)
    }

    fn of_ec(curve: &'static Curve, der: &[u8]) -> Result<Key, String> {
        let pair = EcdsaKeyPair::from_private_key_der(curve.algorithm, der).map_err(|e| e.to_string())?;
        let pkcs8 = pair.to_pkcs8v1().map_err(|_| BROKEN.to_owned())?;
        Ok(Key { pkcs8: Zeroizing::new(pkcs8.as_ref().to_vec()), pair: Pair::Ec(curve, pair) })
    }

    fn of_rsa(pair: rsa::KeyPair) -> Result<Key, String> {
        let pkcs8: Pkcs8V1Der<'static> = pair.as_der().map_err(|_| BROKEN.to_owned())?;
        Ok(Key { pkcs8: Zeroizing::new(pkcs8.as_ref().to_vec()), pair: Pair::Rsa(pair) })
    }

    /// Reads a key in PEM.
    ///
    /// # Errors
    /// If it is none, or of a kind that ACME does not use.
    pub(crate) fn from_pem(text: &[u8]) -> Result<Key, String> {
        let der = pem::private_key(text, &[]).map_err(|e| format!("no private key ({e:?})"))?;
        let bytes = der.secret_der();
        if let Some(key) = CURVES.iter().find_map(|curve| Key::of_ec(curve, bytes).ok()) {
            return Ok(key);
        }
        let pair = match &der {
            PrivateKeyDer::Pkcs1(key) => rsa::KeyPair::from_der(key.secret_pkcs1_der()),
            _ => rsa::KeyPair::from_pkcs8(bytes),
        };
        Key::of_rsa(pair.map_err(|e| format!("unsupported key ({e})"))?)
    }

    /// Returns the private key in PEM.
    pub(crate) fn to_pem(&self) -> Zeroizing<Vec<u8>> {
        Zeroizing::new(pem_text("PRIVATE KEY", &self.pkcs8).into_bytes())
    }

    /// Returns the private key for rustls.
    pub(crate) fn private(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(self.pkcs8.to_vec().into())
    }

    /// Returns the algorithm of JSON Web Signatures.
    pub(crate) fn jws_algorithm(&self) -> &'static str {
        match &self.pair {
            Pair::Ec(curve, _) => curve.jws,
            Pair::Rsa(_) => "RS256",
        }
    }

    /// Returns the public key as a JSON Web Key. Its members have the order that the thumbprint needs (RFC 7638).
    pub(crate) fn jwk(&self) -> Value {
        match &self.pair {
            Pair::Ec(curve, pair) => {
                let point = pair.public_key().as_ref().get(1..).unwrap_or_default();
                let (x, y) = point.split_at(point.len() / 2);
                json!({"crv": curve.name, "kty": "EC", "x": base64url(x), "y": base64url(y)})
            }
            Pair::Rsa(pair) => {
                let (modulus, exponent) = rsa_numbers(pair.public_key().as_ref()).unwrap_or_default();
                json!({"e": base64url(exponent), "kty": "RSA", "n": base64url(modulus)})
            }
        }
    }

    /// Returns the text by which challenges name the account's key (RFC 8555, section 8.1).
    pub(crate) fn thumbprint(&self) -> String {
        // serde_json sorts the members of an object, as RFC 7638 demands.
        base64url(
            aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, self.jwk().to_string().as_bytes()).as_ref(),
        )
    }

    /// Signs a message for JSON Web Signatures.
    ///
    /// # Errors
    /// If the library fails.
    pub(crate) fn sign(&self, message: &[u8]) -> Result<Vec<u8>, String> {
        let (random, broken) = (SystemRandom::new(), |_| BROKEN.to_owned());
        match &self.pair {
            Pair::Ec(_, pair) => Ok(pair.sign(&random, message).map_err(broken)?.as_ref().to_vec()),
            Pair::Rsa(pair) => {
                let mut signature = vec![0; pair.public_modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature).map_err(broken)?;
                Ok(signature)
            }
        }
    }

    /// Returns the public key, SubjectPublicKeyInfo.
    pub(crate) fn public(&self) -> Vec<u8> {
        let (algorithm, key) = match &self.pair {
            Pair::Ec(curve, pair) => {
                let oids = [element(OID, &[EC_PUBLIC_KEY]), element(OID, &[curve.oid])];
                (element(SEQUENCE, &[&oids[0], &oids[1]]), pair.public_key().as_ref())
            }
            Pair::Rsa(pair) => {
                let oid = element(OID, &[RSA_ENCRYPTION]);
                (element(SEQUENCE, &[&oid, &element(NULL, &[])]), pair.public_key().as_ref())
            }
        };
        element(SEQUENCE, &[&algorithm, &element(BITS, &[&[0], key])])
    }

    /// Signs a structure of X.509: returns `SEQUENCE { content, algorithm, signature }`.
    ///
    /// # Errors
    /// If the library fails.
    pub(crate) fn sign_der(&self, content: &[u8]) -> Result<Vec<u8>, String> {
        let signature = self.sign(content)?;
        let signature = match &self.pair {
            Pair::Ec(..) => {
                let (r, s) = signature.split_at(signature.len() / 2);
                element(SEQUENCE, &[&integer(r), &integer(s)])
            }
            Pair::Rsa(_) => signature,
        };
        Ok(element(SEQUENCE, &[content, &self.signature_algorithm(), &element(BITS, &[&[0], &signature])]))
    }

    /// Returns the AlgorithmIdentifier of [`Key::sign_der`].
    pub(crate) fn signature_algorithm(&self) -> Vec<u8> {
        match &self.pair {
            Pair::Ec(curve, _) => element(SEQUENCE, &[&element(OID, &[curve.signature])]),
            Pair::Rsa(_) => element(SEQUENCE, &[&element(OID, &[RSA_SHA256]), &element(NULL, &[])]),
        }
    }
}

/// Encodes a number that is not negative, given in big-endian bytes.
pub(crate) fn integer(bytes: &[u8]) -> Vec<u8> {
    let zeros = bytes.iter().take_while(|b| **b == 0).count().min(bytes.len().saturating_sub(1));
    let digits = bytes.get(zeros..).unwrap_or_default();
    // A set highest bit would make it negative.
    let sign: &[u8] = if digits.first().is_some_and(|b| *b >= 0x80) { &[0] } else { &[] };
    element(INTEGER, &[sign, digits])
}

/// Returns modulus and exponent of an RSAPublicKey (RFC 8017, appendix A.1.1), without leading zeros.
fn rsa_numbers(der: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut numbers = Der(Der(der).expect(SEQUENCE)?);
    let modulus = numbers.expect(INTEGER)?;
    let exponent = numbers.expect(INTEGER)?;
    Some((modulus.strip_prefix(&[0]).unwrap_or(modulus), exponent))
}

/// Writes a block of PEM (RFC 7468).
pub fn pem_text(label: &str, der: &[u8]) -> String {
    let mut text = format!("-----BEGIN {label}-----\n");
    let encoded = STANDARD.encode(der);
    for line in encoded.as_bytes().chunks(64) {
        text += std::str::from_utf8(line).unwrap_or_default();
        text.push('\n');
    }
    text + &format!("-----END {label}-----\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_survive_their_file() {
        for kind in [KeyKind::P256, KeyKind::P384, KeyKind::P521, KeyKind::Rsa2048] {
            let key = Key::generate(kind).expect("a key");
            let again = Key::from_pem(&key.to_pem()).expect("the same key");
            assert_eq!(key.public(), again.public(), "{kind:?}");
            assert_eq!(key.thumbprint(), again.thumbprint(), "{kind:?}");
            assert!(rustls::crypto::aws_lc_rs::sign::any_supported_type(&key.private()).is_ok(), "{kind:?}");
        }
        assert!(Key::from_pem(b"no key").is_err());
    }

    /// RFC 7638, section 3.1, has the thumbprint of an RSA key; that of an EC key is in RFC 8555's form alone.
    #[test]
    fn members_of_a_key_are_sorted() {
        let key = Key::generate(KeyKind::P256).expect("a key");
        let text = key.jwk().to_string();
        assert!(text.starts_with("{\"crv\":\"P-256\",\"kty\":\"EC\",\"x\":\""), "{text}");
    }

    #[test]
    fn numbers_are_positive_and_short() {
        assert_eq!(integer(&[0, 0, 1]), [INTEGER, 1, 1]);
        assert_eq!(integer(&[0x80]), [INTEGER, 2, 0, 0x80]);
        assert_eq!(integer(&[0, 0]), [INTEGER, 1, 0]);
    }
}
