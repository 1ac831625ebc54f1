//! Revocation lists (nginx: ssl_crl; RFC 5280, sections 5 and 6.3): read once a configuration, looked into for every
//! certificate of a chain. A list that is only for some certificates counts for those, and what is not understood
//! fails.

use super::verify::{Failure, signed_by};
use std::collections::HashSet;
use std::sync::{Mutex, PoisonError};
use x509_parser::prelude::*;

/// A list.
#[derive(Debug)]
struct List {
    der: Vec<u8>,
    issuer: Vec<u8>,
    from: i64,
    until: Option<i64>,
    /// Serial numbers.
    revoked: HashSet<Box<[u8]>>,
    /// Nothing critical in it is unknown.
    understood: bool,
    /// For certificates of authorities only (`true`), or for all others only.
    only: Option<bool>,
    /// For certificates that name one of these places only.
    places: Option<Vec<Vec<u8>>>,
    /// The key whose signature was looked at last, and whether it was sound.
    signed: Mutex<Option<(Vec<u8>, bool)>>,
}

/// All lists of a server.
#[derive(Debug, Default)]
pub struct Lists(Vec<List>);

/// What tells places of lists apart.
fn place(name: &GeneralName<'_>) -> Option<Vec<u8>> {
    match name {
        GeneralName::URI(u) => Some([b"u", u.as_bytes()].concat()),
        GeneralName::DirectoryName(n) => Some([b"d", n.as_raw()].concat()),
        _ => None,
    }
}

fn places(point: Option<&DistributionPointName<'_>>) -> Option<Vec<Vec<u8>>> {
    match point? {
        DistributionPointName::FullName(names) => Some(names.iter().filter_map(place).collect()),
        DistributionPointName::NameRelativeToCRLIssuer(_) => Some(Vec::new()),
    }
}

impl List {
    fn read(der: &[u8]) -> Option<List> {
        let (_, crl) = CertificateRevocationList::from_der(der).ok()?;
        let mut list = List {
            der: der.to_vec(),
            issuer: crl.issuer().as_raw().to_vec(),
            from: crl.last_update().timestamp(),
            until: crl.next_update().map(|t| t.timestamp()),
            revoked: crl.iter_revoked_certificates().map(|r| r.raw_serial().into()).collect(),
            understood: true,
            only: None,
            places: None,
            signed: Mutex::default(),
        };
        for e in crl.extensions() {
            match e.parsed_extension() {
                ParsedExtension::IssuingDistributionPoint(p) => {
                    let partial = p.indirect_crl
                        || p.only_some_reasons.is_some()
                        || p.only_contains_attribute_certs
                        || (p.only_contains_ca_certs && p.only_contains_user_certs);
                    list.understood &= !partial;
                    list.only = (p.only_contains_ca_certs || p.only_contains_user_certs)
                        .then_some(p.only_contains_ca_certs);
                    list.places = places(p.distribution_point.as_ref());
                }
                _ => list.understood &= !e.critical,
            }
        }
        Some(list)
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

    /// The same key vouches for a list again and again.
    fn is_signed_by(&self, issuer: &X509Certificate<'_>) -> bool {
        let key = issuer.public_key();
        let mut last = self.signed.lock().unwrap_or_else(PoisonError::into_inner);
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
    /// From DER; what is no list is left out, and so its certificates have none.
    pub fn new(all: &[Vec<u8>]) -> Lists {
        Lists(all.iter().filter_map(|der| List::read(der)).collect())
    }

    /// What all of it hashes to, in parts.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(|l| l.der.as_slice())
    }

    /// Whether a certificate is not revoked at a time. Each needs a list of its issuer.
    ///
    /// # Errors
    /// Revoked, or no list that says otherwise.
    pub fn check(
        &self,
        cert: &X509Certificate<'_>,
        issuer: &X509Certificate<'_>,
        now: i64,
    ) -> Result<(), Failure> {
        let mut failure = Failure(3);
        for list in self.0.iter().filter(|l| l.issuer == cert.issuer().as_raw()) {
            failure = if !list.covers(cert) {
                Failure(44)
            } else if issuer.key_usage().ok().flatten().is_some_and(|u| !u.value.crl_sign()) {
                Failure(35)
            } else if !list.understood {
                Failure(36)
            } else if !list.is_signed_by(issuer) {
                Failure(8)
            } else if list.from > now {
                Failure(11)
            } else if list.until.is_some_and(|t| t < now) {
                Failure(12)
            } else if list.revoked.contains(cert.raw_serial()) {
                return Err(Failure(23));
            } else {
                return Ok(());
            };
        }
        Err(failure)
    }
}
