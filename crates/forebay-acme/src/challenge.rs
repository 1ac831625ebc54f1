//! Proofs that the authority looks for, as long as an order needs them.

use crate::dns::{self, Record};
use crate::key::{Key, base64url};
use crate::settings::{Identifier, KeyKind};
use crate::x509;
use forebay_core::tls::proof;
use forebay_net::tls::verify;
use forebay_sys::sync::{read, write};
use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;
use std::borrow::Borrow;
use std::collections::HashMap;
use std::hash::Hash;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{LazyLock, RwLock};

/// Answers to HTTP-01 by token. Two issuers with one account may be given the same authorization, and so the same token.
static ANSWERS: LazyLock<RwLock<HashMap<Vec<u8>, Vec<String>>>> = LazyLock::new(RwLock::default);
/// Number of entries of `ANSWERS`, so that threads need no lock while there are none.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Returns the answer to the HTTP-01 challenge of a token.
pub(crate) fn http_answer(token: &[u8]) -> Option<String> {
    if COUNT.load(Relaxed) == 0 {
        return None;
    }
    read(&ANSWERS).get(token)?.last().cloned()
}

/// Proof of control of a name, before it is published.
#[derive(Clone, Debug)]
pub(crate) struct Proof {
    /// Name, without the star of a wildcard.
    pub(crate) identifier: Identifier,
    /// Token of the challenge.
    pub(crate) token: String,
    /// Key authorization (RFC 8555, section 8.1).
    pub(crate) authorization: String,
}

impl Proof {
    /// Returns the name of the record of DNS-01 (RFC 8555, section 8.4).
    pub(crate) fn record_name(&self) -> String {
        format!("{}{}", dns::PREFIX, self.identifier)
    }

    /// Returns the value of that record.
    pub(crate) fn record_value(&self) -> String {
        base64url(self.digest().as_ref())
    }

    fn digest(&self) -> aws_lc_rs::digest::Digest {
        aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, self.authorization.as_bytes())
    }
}

/// Proof that this process presents. It is withdrawn when this is dropped.
pub(crate) enum Posted {
    /// Answer to HTTP-01.
    Http {
        /// Its token.
        token: Vec<u8>,
        /// The answer.
        text: String,
    },
    /// Record of DNS-01.
    Dns {
        /// Withdraws the record when dropped.
        _record: Record,
    },
    /// Certificate for TLS-ALPN-01.
    Tls {
        /// Withdraws the certificate when dropped.
        _proof: proof::Published,
    },
}

impl Posted {
    /// Posts the answer to an HTTP-01 challenge (RFC 8555, section 8.3).
    pub(crate) fn http(proof: &Proof) -> Posted {
        let (token, text) = (proof.token.as_bytes().to_vec(), proof.authorization.clone());
        let mut answers = write(&ANSWERS);
        answers.entry(token.clone()).or_default().push(text.clone());
        COUNT.store(answers.len(), Relaxed);
        Posted::Http { token, text }
    }

    /// Posts the record for a DNS-01 challenge.
    pub(crate) fn dns(proof: &Proof) -> Posted {
        Posted::Dns { _record: Record::publish(proof.record_name(), proof.record_value()) }
    }

    /// Posts the certificate for a TLS-ALPN-01 challenge (RFC 8737).
    ///
    /// # Errors
    /// If it cannot be made.
    pub(crate) fn tls(proof: &Proof) -> Result<Posted, String> {
        let extensions = x509::proof_extensions(&proof.identifier, proof.digest().as_ref());
        let certified = self_made(&extensions, "ACME challenge")?;
        let name = server_name(&proof.identifier).into_bytes();
        Ok(Posted::Tls { _proof: proof::publish(name, certified)? })
    }
}

impl Drop for Posted {
    fn drop(&mut self) {
        if let Posted::Http { token, text } = self {
            let mut answers = write(&ANSWERS);
            remove(&mut answers, token, text);
            COUNT.store(answers.len(), Relaxed);
        }
    }
}

/// Removes a value of a key from a map of several values, and the key after its last value.
pub(crate) fn remove<K, Q>(map: &mut HashMap<K, Vec<String>>, key: &Q, value: &str)
where
    K: Borrow<Q> + Eq + Hash,
    Q: Eq + Hash + ?Sized,
{
    let Some(values) = map.get_mut(key) else { return };
    if let Some(at) = values.iter().position(|v| v == value) {
        values.swap_remove(at);
    }
    if values.is_empty() {
        map.remove(key);
    }
}

/// Makes a key with a certificate signed by it.
///
/// # Errors
/// If the cryptographic library fails.
pub(crate) fn self_made(extensions: &[u8], common: &str) -> Result<CertifiedKey, String> {
    let key = Key::generate(KeyKind::P256)?;
    let der = x509::self_signed(&key, extensions, common, verify::now())?;
    let signing = rustls::crypto::aws_lc_rs::sign::any_supported_type(&key.private());
    let signing = signing.map_err(|e| e.to_string())?;
    Ok(CertifiedKey::new(vec![CertificateDer::from(der)], signing))
}

/// Returns the server name in the authority's handshake. That of an address is its reverse name (RFC 8738, section 6).
fn server_name(identifier: &Identifier) -> String {
    match identifier {
        Identifier::Dns(name) => name.clone(),
        Identifier::Ip(IpAddr::V4(ip)) => {
            let [a, b, c, d] = ip.octets();
            format!("{d}.{c}.{b}.{a}.in-addr.arpa")
        }
        Identifier::Ip(IpAddr::V6(ip)) => {
            let digits = ip.octets().into_iter().rev().map(|b| format!("{:x}.{:x}.", b & 15, b >> 4));
            digits.collect::<String>() + "ip6.arpa"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proof() -> Proof {
        Proof {
            identifier: Identifier::Dns("a.example".to_owned()),
            token: "a-token".to_owned(),
            authorization: "a-token.thumb".to_owned(),
        }
    }

    /// The value was computed by another program.
    #[test]
    fn a_record_has_the_digest_of_the_authorization() {
        assert_eq!(proof().record_name(), "_acme-challenge.a.example");
        assert_eq!(proof().record_value(), "xLsE4LSv0ToPiMMhrWVRnyJJDmtLn9JSlnIpGZynAh4");
    }

    #[test]
    fn answers_end_with_their_order() {
        assert_eq!(http_answer(b"a-token"), None);
        let posted = Posted::http(&proof());
        assert_eq!(http_answer(b"a-token").as_deref(), Some("a-token.thumb"));
        assert_eq!(http_answer(b"b-token"), None);
        drop(posted);
        assert_eq!(http_answer(b"a-token"), None);
    }

    /// Two issuers may have one account, whose authorization both prove.
    #[test]
    fn an_answer_stays_until_its_last_order_ends() {
        let proof = Proof { token: "shared-token".to_owned(), ..proof() };
        let (first, second) = (Posted::http(&proof), Posted::http(&proof));
        drop(first);
        assert_eq!(http_answer(b"shared-token").as_deref(), Some("a-token.thumb"));
        drop(second);
        assert_eq!(http_answer(b"shared-token"), None);
    }

    #[test]
    fn addresses_have_reverse_names() {
        let name = |text: &str| Identifier::parse(text).map(|i| server_name(&i)).unwrap_or_default();
        assert_eq!(name("a.example"), "a.example");
        assert_eq!(name("192.0.2.1"), "1.2.0.192.in-addr.arpa");
        assert!(name("2001:db8::1").starts_with("1.0.0.0."));
        assert!(name("2001:db8::1").ends_with("8.b.d.0.1.0.0.2.ip6.arpa"));
    }
}
