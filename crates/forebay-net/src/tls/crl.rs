//! Revocation lists (nginx: ssl_crl; RFC 5280, sections 5 and 6.3), parsed once a configuration and checked for every
//! certificate of a chain. Of several lists of one issuer one counts, as in OpenSSL: a list that covers the certificate
//! before one that does not, a list in force before one that is not, and among equals the newest. Unknown critical parts
//! fail. Delta lists, indirect lists and lists of some reasons are not used, as in nginx.

use super::dn::canonical;
use super::verify::{VerifyError, signed_by, subject_key_id};
use forebay_sys::sync::lock;
use std::collections::HashSet;
use std::sync::Mutex;
use x509_parser::prelude::*;

/// A revocation list.
#[derive(Debug)]
struct RevocationList {
    der: Vec<u8>,
    /// Canonical form of the issuer's name.
    issuer: Vec<u8>,
    from: i64,
    until: Option<i64>,
    /// CRL number, big endian, without leading zeros (RFC 5280, section 5.2.3); empty if there is none.
    number: Vec<u8>,
    /// Identifier of the key that signed the list, if the list has one.
    key_id: Option<Vec<u8>>,
    /// Serial numbers.
    revoked: HashSet<Box<[u8]>>,
    /// The list has no unknown critical part.
    understood: bool,
    /// The list covers only certificates of authorities (`true`), or only others.
    only: Option<bool>,
    /// The list covers only certificates that name one of these distribution points.
    places: Option<Vec<Vec<u8>>>,
    /// Key by which the signature was checked last, and the result.
    signed: Mutex<Option<(Vec<u8>, bool)>>,
}

/// Revocation lists of a server.
#[derive(Debug, Default)]
pub struct Lists(Vec<RevocationList>);

/// Returns a distribution point in a form that can be compared.
fn place(name: &GeneralName<'_>) -> Option<Vec<u8>> {
    match name {
        GeneralName::URI(u) => Some([b"u", u.as_bytes()].concat()),
        GeneralName::DirectoryName(n) => Some([b"d", canonical(n.as_raw()).as_slice()].concat()),
        _ => None,
    }
}

fn places(point: Option<&DistributionPointName<'_>>) -> Option<Vec<Vec<u8>>> {
    match point? {
        DistributionPointName::FullName(names) => Some(names.iter().filter_map(place).collect()),
        // Relative names are not resolved, so such a list covers no certificate.
        DistributionPointName::NameRelativeToCRLIssuer(_) => Some(Vec::new()),
    }
}

/// Returns `true` if these bytes are a revocation list, DER.
pub fn is_list(der: &[u8]) -> bool {
    CertificateRevocationList::from_der(der).is_ok()
}

/// `deltaCRLIndicator` (RFC 5280, section 5.2.4).
const DELTA: &str = "2.5.29.27";

impl RevocationList {
    /// Parses a list. Returns `None` if the bytes are no list, or a list of a kind that is not used.
    fn read(der: &[u8]) -> Option<RevocationList> {
        let (_, crl) = CertificateRevocationList::from_der(der).ok()?;
        let known = |e: &X509Extension<'_>| {
            !e.critical
                || matches!(
                    e.parsed_extension(),
                    ParsedExtension::ReasonCode(_) | ParsedExtension::InvalidityDate(_)
                )
        };
        let mut list = RevocationList {
            der: der.to_vec(),
            issuer: canonical(crl.issuer().as_raw()),
            from: crl.last_update().timestamp(),
            until: crl.next_update().map(|t| t.timestamp()),
            number: crl.crl_number().map(|n| n.to_bytes_be()).unwrap_or_default(),
            key_id: None,
            revoked: crl.iter_revoked_certificates().map(|r| r.raw_serial().into()).collect(),
            understood: crl.iter_revoked_certificates().all(|r| r.iter_extensions().all(known)),
            only: None,
            places: None,
            signed: Mutex::default(),
        };
        crl.extensions().iter().try_for_each(|e| list.extension(e))?;
        Some(list)
    }

    /// Takes an extension. Returns `None` if the extension makes the list a kind that is not used.
    fn extension(&mut self, e: &X509Extension<'_>) -> Option<()> {
        match e.parsed_extension() {
            ParsedExtension::IssuingDistributionPoint(p) => {
                if p.indirect_crl || p.only_some_reasons.is_some() {
                    return None;
                }
                // At most one of these flags may be set (RFC 5280, section 5.2.5).
                let all = p.only_contains_ca_certs && p.only_contains_user_certs;
                self.understood &= !(p.only_contains_attribute_certs || all);
                self.only = (p.only_contains_ca_certs || p.only_contains_user_certs)
                    .then_some(p.only_contains_ca_certs);
                self.places = places(p.distribution_point.as_ref());
            }
            ParsedExtension::AuthorityKeyIdentifier(a) => {
                self.key_id = a.key_identifier.as_ref().map(|k| k.0.to_vec());
            }
            _ if e.oid.to_id_string() == DELTA => return None,
            _ => self.understood &= !e.critical,
        }
        Some(())
    }

    /// Returns `true` if the list may be signed by this issuer's key.
    fn is_of(&self, issuer: &X509Certificate<'_>) -> bool {
        match (self.key_id.as_deref(), subject_key_id(issuer)) {
            (Some(a), Some(b)) => a == b,
            _ => true,
        }
    }

    /// Checks that the list is in force.
    ///
    /// # Errors
    /// Not yet, or no longer.
    fn timely(&self, now: i64) -> Result<(), VerifyError> {
        if self.from > now {
            return Err(VerifyError(11));
        }
        if self.until.is_some_and(|t| t < now) { Err(VerifyError(12)) } else { Ok(()) }
    }

    /// Returns how well the list fits a certificate. The list with the highest rank counts.
    fn rank(&self, cert: &X509Certificate<'_>, now: i64) -> impl Ord {
        // Without leading zeros, the longer number is the larger one.
        let number = (self.number.len(), &self.number);
        (self.understood, self.covers(cert), self.timely(now).is_ok(), self.from, number)
    }

    fn covers(&self, cert: &X509Certificate<'_>) -> bool {
        let is_ca = cert.basic_constraints().ok().flatten().is_some_and(|c| c.value.ca);
        if self.only.is_some_and(|cas| cas != is_ca) {
            return false;
        }
        let Some(own) = &self.places else { return true };
        cert.extensions().iter().any(|e| match e.parsed_extension() {
            ParsedExtension::CRLDistributionPoints(all) => all.points.iter().any(|p| {
                let named = places(p.distribution_point.as_ref()).unwrap_or_default();
                named.iter().any(|n| own.contains(n))
            }),
            _ => false,
        })
    }

    /// Checks the signature. Remembers the result, since mostly the same key is asked for.
    fn is_signed_by(&self, issuer: &X509Certificate<'_>) -> bool {
        let key = issuer.public_key();
        // The lock is held during the check, so that several threads do not make it at the same time.
        let mut last = lock(&self.signed);
        if let Some((known, sound)) = last.as_ref()
            && known == key.raw
        {
            return *sound;
        }
        let sound = signed_by(&self.der, key);
        *last = Some((key.raw.to_vec(), sound));
        sound
    }
}

impl Lists {
    /// Parses lists from DER. Omits the others, so that their certificates have no list.
    pub fn new(all: &[Vec<u8>]) -> Lists {
        Lists(all.iter().filter_map(|der| RevocationList::read(der)).collect())
    }

    /// Returns the DER of each list, for a hash of all of them.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(|l| l.der.as_slice())
    }

    /// Checks that a certificate is not revoked at a time. Its issuer has to have a list.
    ///
    /// # Errors
    /// The certificate is revoked, or no valid list of its issuer is known.
    pub fn check(
        &self,
        cert: &X509Certificate<'_>,
        issuer: &X509Certificate<'_>,
        now: i64,
    ) -> Result<(), VerifyError> {
        let named = canonical(cert.issuer().as_raw());
        let own = self.0.iter().filter(|l| l.issuer == named && l.is_of(issuer));
        // OpenSSL judges by the best list alone, so another one of the same issuer does not make up for its
        // failures.
        let list = own.max_by(|a, b| a.rank(cert, now).cmp(&b.rank(cert, now))).ok_or(VerifyError(3))?;
        let cannot_sign = issuer.key_usage().ok().flatten().is_some_and(|u| !u.value.crl_sign());
        let timely = list.timely(now);
        let failures = [
            (cannot_sign, VerifyError(35)),
            (!list.covers(cert), VerifyError(44)),
            (timely.is_err(), timely.err().unwrap_or(VerifyError(12))),
            (!list.is_signed_by(issuer), VerifyError(8)),
            (!list.understood, VerifyError(36)),
            (list.revoked.contains(cert.raw_serial()), VerifyError(23)),
        ];
        // In OpenSSL's order the last failure counts.
        match failures.into_iter().rfind(|(failed, _)| *failed) {
            Some((_, failure)) => Err(failure),
            None => Ok(()),
        }
    }
}
