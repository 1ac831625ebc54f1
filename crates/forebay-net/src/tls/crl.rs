//! Revocation lists (nginx: ssl_crl; RFC 5280, sections 5 and 6.3): read once a configuration, looked into for every
//! certificate of a chain. Of several lists of one issuer one counts, as in OpenSSL: a list that is for the certificate
//! before one that is not, a list in force before one that is not, and among equals the newest. What is not understood
//! fails. Delta lists, indirect lists and lists of some reasons are not used, as in nginx.

use super::verify::{Failure, signed_by};
use forebay_sys::sync::lock;
use std::collections::HashSet;
use std::sync::Mutex;
use x509_parser::prelude::*;

/// A list.
#[derive(Debug)]
struct List {
    der: Vec<u8>,
    issuer: Vec<u8>,
    from: i64,
    until: Option<i64>,
    /// CRL number, big endian, without leading zeros (RFC 5280, section 5.2.3); empty if there is none.
    number: Vec<u8>,
    /// Identifier of the key that has signed it, where it says so.
    key_id: Option<Vec<u8>>,
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

/// Whether these bytes are a revocation list, DER.
pub fn is_list(der: &[u8]) -> bool {
    CertificateRevocationList::from_der(der).is_ok()
}

/// `deltaCRLIndicator` (RFC 5280, section 5.2.4).
const DELTA: &str = "2.5.29.27";

impl List {
    /// Reads a list. `None`: it is none, or of a kind that is not used.
    fn read(der: &[u8]) -> Option<List> {
        let (_, crl) = CertificateRevocationList::from_der(der).ok()?;
        let known = |e: &X509Extension<'_>| {
            !e.critical
                || matches!(
                    e.parsed_extension(),
                    ParsedExtension::ReasonCode(_) | ParsedExtension::InvalidityDate(_)
                )
        };
        let mut list = List {
            der: der.to_vec(),
            issuer: crl.issuer().as_raw().to_vec(),
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
        for e in crl.extensions() {
            match e.parsed_extension() {
                ParsedExtension::IssuingDistributionPoint(p) => {
                    if p.indirect_crl || p.only_some_reasons.is_some() {
                        return None;
                    }
                    let all = p.only_contains_ca_certs && p.only_contains_user_certs;
                    list.understood &= !(p.only_contains_attribute_certs || all);
                    list.only = (p.only_contains_ca_certs || p.only_contains_user_certs)
                        .then_some(p.only_contains_ca_certs);
                    list.places = places(p.distribution_point.as_ref());
                }
                ParsedExtension::AuthorityKeyIdentifier(a) => {
                    list.key_id = a.key_identifier.as_ref().map(|k| k.0.to_vec());
                }
                _ if e.oid.to_id_string() == DELTA => return None,
                _ => list.understood &= !e.critical,
            }
        }
        Some(list)
    }

    /// Whether the list can be one of this issuer's key.
    fn is_of(&self, issuer: &X509Certificate<'_>) -> bool {
        let own = issuer.extensions().iter().find_map(|e| match e.parsed_extension() {
            ParsedExtension::SubjectKeyIdentifier(k) => Some(k.0),
            _ => None,
        });
        match (self.key_id.as_deref(), own) {
            (Some(a), Some(b)) => a == b,
            _ => true,
        }
    }

    /// Whether the list is in force.
    ///
    /// # Errors
    /// It is not yet, or no more.
    fn timely(&self, now: i64) -> Result<(), Failure> {
        if self.from > now {
            return Err(Failure(11));
        }
        if self.until.is_some_and(|t| t < now) { Err(Failure(12)) } else { Ok(()) }
    }

    /// How well the list fits a certificate: the greatest one counts.
    fn rank(&self, cert: &X509Certificate<'_>, now: i64) -> impl Ord {
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

    /// The same key vouches for a list again and again.
    fn is_signed_by(&self, issuer: &X509Certificate<'_>) -> bool {
        let key = issuer.public_key();
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
        let own = self.0.iter().filter(|l| l.issuer == cert.issuer().as_raw() && l.is_of(issuer));
        let list = own.max_by(|a, b| a.rank(cert, now).cmp(&b.rank(cert, now))).ok_or(Failure(3))?;
        // The last failure counts, in OpenSSL's order.
        let mut last = Ok(());
        if issuer.key_usage().ok().flatten().is_some_and(|u| !u.value.crl_sign()) {
            last = Err(Failure(35));
        }
        if !list.covers(cert) {
            last = Err(Failure(44));
        }
        if let Err(f) = list.timely(now) {
            last = Err(f);
        }
        if !list.is_signed_by(issuer) {
            last = Err(Failure(8));
        }
        if !list.understood {
            last = Err(Failure(36));
        }
        if list.revoked.contains(cert.raw_serial()) {
            last = Err(Failure(23));
        }
        last
    }
}
