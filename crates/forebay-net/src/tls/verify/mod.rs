//! Verifies a peer's certificates (RFC 5280, section 6) as OpenSSL does with nginx's settings. Accepts certificates of
//! version 1. A chain ends in a trusted self-signed certificate. Failures have OpenSSL's numbers and texts, which
//! `$ssl_client_verify` and the error log show. Anything that cannot be parsed fails.

use super::constraints;
use super::crl::Lists;
use super::der::{BITS, Der, SEQUENCE};
use super::dn::{self, canonical};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use std::collections::HashMap;
use std::sync::Arc;
use x509_parser::prelude::*;

/// Reason for which a certificate is not accepted: OpenSSL's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VerifyError(pub u32);

/// OpenSSL's texts by number.
const FAILURES: &[(u32, &str)] = &[
    (2, "unable to get issuer certificate"),
    (3, "unable to get certificate CRL"),
    (7, "certificate signature failure"),
    (8, "CRL signature failure"),
    (9, "certificate is not yet valid"),
    (10, "certificate has expired"),
    (11, "CRL is not yet valid"),
    (12, "CRL has expired"),
    (18, "self-signed certificate"),
    (19, "self-signed certificate in certificate chain"),
    (20, "unable to get local issuer certificate"),
    (21, "unable to verify the first certificate"),
    (22, "certificate chain too long"),
    (23, "certificate revoked"),
    (25, "path length constraint exceeded"),
    (26, "unsuitable certificate purpose"),
    (34, "unhandled critical extension"),
    (35, "key usage does not include CRL signing"),
    (36, "unhandled critical CRL extension"),
    (44, "different CRL scope"),
    (47, "permitted subtree violation"),
    (48, "excluded subtree violation"),
    (51, "unsupported name constraint type"),
    (53, "unsupported or invalid name syntax"),
    (62, "hostname mismatch"),
    (79, "invalid CA certificate"),
];

impl VerifyError {
    /// Returns OpenSSL's text.
    pub fn text(self) -> &'static str {
        let known = FAILURES.iter().find(|(number, _)| *number == self.0);
        known.map_or("application verification failure", |(_, text)| text)
    }

    /// Returns `true` if only a trusted issuer is missing (nginx: optional_no_ca).
    pub fn is_trust(self) -> bool {
        matches!(self.0, 2 | 18..=21)
    }
}

/// Returns the time in seconds since 1970.
pub fn now() -> i64 {
    UnixTime::now().as_secs() as i64
}

fn parse(der: &[u8]) -> Option<X509Certificate<'_>> {
    X509Certificate::from_der(der).ok().map(|(_, c)| c)
}

/// Returns the public key of a certificate, SubjectPublicKeyInfo.
pub fn public_key(der: &[u8]) -> Option<Vec<u8>> {
    parse(der).map(|c| c.public_key().raw.to_vec())
}

/// Returns the times at which a certificate becomes valid and expires, seconds since 1970.
pub fn validity(der: &[u8]) -> Option<(i64, i64)> {
    parse(der).map(|c| (c.validity().not_before.timestamp(), c.validity().not_after.timestamp()))
}

/// Returns the names and addresses that a certificate is for: its alternative names, or its common name if it has none.
pub fn names(der: &[u8]) -> Vec<String> {
    let Some(cert) = parse(der) else { return Vec::new() };
    let alternative = cert.subject_alternative_name().ok().flatten();
    let alternative = alternative.map(|n| n.value.general_names.as_slice()).unwrap_or_default();
    let name = |name: &GeneralName<'_>| match name {
        GeneralName::DNSName(name) => Some((*name).to_owned()),
        GeneralName::IPAddress(bytes) => address(bytes).map(|a| a.to_string()),
        _ => None,
    };
    let names: Vec<String> = alternative.iter().filter_map(name).collect();
    let common = cert.subject().iter_common_name().filter_map(|n| n.as_str().ok());
    if names.is_empty() { common.map(str::to_owned).collect() } else { names }
}

fn address(bytes: &[u8]) -> Option<std::net::IpAddr> {
    let v4 = <[u8; 4]>::try_from(bytes).map(Into::into);
    v4.or_else(|_| <[u8; 16]>::try_from(bytes).map(Into::into)).ok()
}

fn algorithms() -> WebPkiSupportedAlgorithms {
    rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms
}

/// Returns the first URL of an OCSP responder in a certificate (RFC 5280, section 4.2.2.1).
pub fn responder(der: &[u8]) -> Option<Vec<u8>> {
    let cert = parse(der)?;
    cert.extensions().iter().find_map(|e| match e.parsed_extension() {
        ParsedExtension::AuthorityInfoAccess(a) => a.accessdescs.iter().find_map(|d| {
            let named = d.access_method.to_id_string() == "1.3.6.1.5.5.7.48.1";
            match &d.access_location {
                GeneralName::URI(u) if named => Some(u.as_bytes().to_vec()),
                _ => None,
            }
        }),
        _ => None,
    })
}

/// Returns the issuer of a certificate among `known`.
pub fn issuer<'a>(
    der: &[u8],
    known: impl Iterator<Item = &'a CertificateDer<'static>>,
) -> Option<&'a CertificateDer<'static>> {
    let cert = parse(der)?;
    let mut known = known;
    known.find(|c| {
        parse(c).is_some_and(|c| {
            has_issued(&c, &cert)
                && key_ids_fit(&cert, &c)
                && signed_by(cert.as_raw(), c.public_key())
                && c.as_raw() != cert.as_raw()
        })
    })
}

/// A signed structure, `SEQUENCE { signed, algorithm, BIT STRING }`.
struct Signed<'d> {
    /// Signed bytes.
    signed: &'d [u8],
    algorithm: &'d [u8],
    signature: &'d [u8],
}

impl<'d> Signed<'d> {
    fn parse(der: &'d [u8]) -> Option<Signed<'d>> {
        let mut parts = Der(Der(der).expect(SEQUENCE)?);
        let signed = parts.whole(SEQUENCE)?;
        let algorithm = parts.expect(SEQUENCE)?;
        // The first byte is the number of unused bits, which is 0, as signatures are whole bytes.
        let signature = parts.expect(BITS)?.strip_prefix(&[0])?;
        Some(Signed { signed, algorithm, signature })
    }
}

/// Returns the algorithm of a public key, DER.
fn key_algorithm<'k>(key: &SubjectPublicKeyInfo<'k>) -> Option<&'k [u8]> {
    Der(Der(key.raw).expect(SEQUENCE)?).expect(SEQUENCE)
}

/// Checks the signature of a certificate or revocation list.
pub fn signed_by(der: &[u8], issuer_key: &SubjectPublicKeyInfo<'_>) -> bool {
    let (Some(d), Some(key_algorithm)) = (Signed::parse(der), key_algorithm(issuer_key)) else {
        return false;
    };
    let key = &issuer_key.subject_public_key.data;
    algorithms().all.iter().any(|a| {
        a.signature_alg_id().as_ref() == d.algorithm
            && a.public_key_alg_id().as_ref() == key_algorithm
            && a.verify_signature(key, d.signed, d.signature).is_ok()
    })
}

/// Authorities and limits by which certificates are verified.
#[derive(Debug)]
pub struct Trust {
    anchors: Vec<CertificateDer<'static>>,
    /// Indexes of the anchors by the canonical form of their subjects. A system's list has more than a hundred, of which a chain needs one.
    by_subject: HashMap<Vec<u8>, Vec<usize>>,
    /// Names of authorities that clients receive with the request for a certificate.
    hints: Vec<DistinguishedName>,
    crls: Lists,
    /// Lists were configured, even if none can be parsed.
    has_crls: bool,
    depth: usize,
    fingerprint: [u8; 32],
}

/// Use of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// Authenticates a client.
    Client,
    /// Authenticates a server.
    Server,
    /// Issues certificates.
    Issuer,
}

/// Longest chain that is verified.
const MAX_CHAIN: usize = 16;
/// Largest number of signatures that are checked while a path is built, since a client may offer many certificates of one name.
const MAX_SIGNATURES: usize = 32;

impl Trust {
    /// Creates the authorities. Clients receive the subjects of `hints`; a path has at most `depth` intermediates.
    pub fn new(
        anchors: Vec<CertificateDer<'static>>,
        hints: Vec<CertificateDer<'static>>,
        crls: Vec<Vec<u8>>,
        depth: usize,
    ) -> Trust {
        // A name that several certificates have is sent once.
        let mut names: Vec<DistinguishedName> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        for subject in hints.iter().filter_map(|c| subject(c)) {
            if seen.insert(subject.clone()) {
                names.push(subject.into());
            }
        }
        let has_crls = !crls.is_empty();
        let crls = Lists::new(&crls);
        let bound = depth.to_be_bytes();
        let parts = anchors.iter().map(AsRef::as_ref).chain(crls.parts()).chain([bound.as_slice()]);
        let fingerprint = super::sessions::context(parts);
        let mut by_subject: HashMap<Vec<u8>, Vec<usize>> = HashMap::new();
        for (i, c) in anchors.iter().enumerate() {
            if let Some(subject) = subject(c) {
                let subject = canonical(&subject);
                by_subject.entry(subject).or_default().push(i);
            }
        }
        Trust { by_subject, hints: names, anchors, crls, has_crls, depth, fingerprint }
    }

    /// Returns a verifier that asks clients for certificates and accepts all. They are verified after the handshake,
    /// since a request with a bad one gets an answer (nginx: error 495).
    pub fn asker(&self) -> Arc<dyn ClientCertVerifier> {
        Arc::new(Asker { hints: self.hints.clone() })
    }

    /// Verifies a chain, whose first certificate is the one in question.
    ///
    /// # Errors
    /// The last failure that OpenSSL would have found.
    pub fn verify(
        &self,
        chain: &[CertificateDer<'_>],
        purpose: Purpose,
        now: i64,
    ) -> Result<(), VerifyError> {
        self.verified(chain, purpose, now, |_| ())
    }

    /// Verifies like [`Trust::verify`]. Returns the certificates from the one in question to the trusted root.
    ///
    /// # Errors
    /// Errors of [`Trust::verify`].
    pub fn path(
        &self,
        chain: &[CertificateDer<'_>],
        purpose: Purpose,
        now: i64,
    ) -> Result<Vec<CertificateDer<'static>>, VerifyError> {
        self.verified(chain, purpose, now, |path| {
            path.iter().map(|(c, _)| CertificateDer::from(c.as_raw().to_vec())).collect()
        })
    }

    /// Returns a hash of anchors, revocation lists and depth.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }

    fn verified<T>(
        &self,
        chain: &[CertificateDer<'_>],
        purpose: Purpose,
        now: i64,
        then: impl FnOnce(&[PathCert<'_>]) -> T,
    ) -> Result<T, VerifyError> {
        let leaf = chain.first().and_then(|c| parse(c)).ok_or(VerifyError(7))?;
        let offered: Vec<X509Certificate<'_>> =
            chain.iter().skip(1).take(MAX_CHAIN).filter_map(|c| parse(c)).collect();
        let trusted = self.named(std::iter::once(&leaf).chain(&offered));
        let path = Search { offered: &offered, trusted: &trusted, signatures: 0 }.path(&leaf, now)?;
        // The leaf and the root do not count.
        if path.len() > self.depth + 2 {
            return Err(VerifyError(22));
        }
        self.judge(&path, purpose, now)?;
        Ok(then(&path))
    }

    /// Returns the anchors that certificates name as issuers, directly or through other anchors, in their order.
    fn named<'c>(
        &self,
        certificates: impl Iterator<Item = &'c X509Certificate<'c>>,
    ) -> Vec<X509Certificate<'_>> {
        let names = certificates.flat_map(|c| [c.subject().as_raw(), c.issuer().as_raw()]);
        let mut names: Vec<Vec<u8>> = names.map(canonical).collect();
        let mut found: Vec<(usize, X509Certificate<'_>)> = Vec::new();
        while let Some(name) = names.pop() {
            for &i in self.by_subject.get(&name).map(Vec::as_slice).unwrap_or_default() {
                // Anchors may name each other in a circle.
                if found.iter().any(|(at, _)| *at == i) {
                    continue;
                }
                if let Some(c) = self.anchors.get(i).and_then(|c| parse(c)) {
                    names.push(canonical(c.issuer().as_raw()));
                    found.push((i, c));
                }
            }
        }
        // The anchors are in the order of the file, since the first of several fitting issuers is used.
        found.sort_by_key(|(i, _)| *i);
        found.into_iter().map(|(_, c)| c).collect()
    }

    /// Checks a whole path. Like OpenSSL with a callback that ignores failures, goes on after each, and the last one
    /// counts: extensions and revocation are checked from the leaf on, signatures and times from the root on.
    fn judge(&self, path: &[PathCert<'_>], purpose: Purpose, now: i64) -> Result<(), VerifyError> {
        let mut last = constraints::check(path, purpose).err().or(unsuitable(path, purpose));
        // The root is its own issuer.
        let issuers = path.iter().skip(1).chain(path.last()).map(|(c, _)| *c);
        let issued: Vec<_> = path.iter().map(|(c, _)| *c).zip(issuers).collect();
        for (cert, issuer) in &issued {
            last = self.check_revoked(cert, issuer, now).err().or(last);
        }
        for (i, (cert, issuer)) in issued.iter().enumerate().rev() {
            // A root is trusted without its signature.
            if i + 1 < path.len() && !signed_by(cert.as_raw(), issuer.public_key()) {
                return Err(VerifyError(7));
            }
            last = timely(cert, now).err().or(last);
        }
        last.map_or(Ok(()), Err)
    }

    /// Checks the revocation lists. Once there are any, each certificate needs one of its issuer (nginx: ssl_crl).
    fn check_revoked(
        &self,
        cert: &X509Certificate<'_>,
        issuer: &X509Certificate<'_>,
        now: i64,
    ) -> Result<(), VerifyError> {
        if self.has_crls { self.crls.check(cert, issuer, now) } else { Ok(()) }
    }
}

/// Returns the name of a certificate.
fn subject(der: &[u8]) -> Option<Vec<u8>> {
    parse(der).map(|c| c.subject().as_raw().to_vec())
}

/// Certificate of a path, and whether it is an anchor.
type PathCert<'c> = (&'c X509Certificate<'c>, bool);

/// Search for the path from a certificate to a trusted root.
struct Search<'c> {
    /// Certificates that the peer sent with its own.
    offered: &'c [X509Certificate<'c>],
    /// Anchors that may be on the path.
    trusted: &'c [X509Certificate<'c>],
    /// Number of signatures checked so far.
    signatures: usize,
}

impl<'c> Search<'c> {
    fn path(&mut self, leaf: &'c X509Certificate<'c>, now: i64) -> Result<Vec<PathCert<'c>>, VerifyError> {
        let mut path = vec![(leaf, is_among(leaf, self.trusted))];
        loop {
            match self.next(&path) {
                Ok(Some(next)) => path.push(next),
                Ok(None) => return Ok(path),
                // A wrong time counts more than a missing issuer.
                Err(f) if f.is_trust() => return Err(untimely(&path, now).unwrap_or(f)),
                Err(f) => return Err(f),
            }
        }
    }

    /// Returns the issuer of the last certificate of a path, `None` if the path has reached a trusted root.
    fn next(&mut self, path: &[PathCert<'c>]) -> Result<Option<PathCert<'c>>, VerifyError> {
        let &(last, known) = path.last().ok_or(VerifyError(20))?;
        if is_self_issued(last) {
            let untrusted = if path.len() == 1 { VerifyError(18) } else { VerifyError(19) };
            return if known { Ok(None) } else { Err(untrusted) };
        }
        if path.len() > MAX_CHAIN {
            return Err(VerifyError(22));
        }
        let missing = match path.len() {
            _ if known => 2,
            1 => 21,
            _ => 20,
        };
        self.above(last).map(Some).ok_or(VerifyError(missing))
    }

    /// Returns the issuer of a certificate: an anchor, or else a certificate that the peer sent.
    fn above(&mut self, cert: &X509Certificate<'_>) -> Option<PathCert<'c>> {
        if let Some(anchor) = self.issuer(cert, self.trusted) {
            return Some((anchor, true));
        }
        self.issuer(cert, self.offered).map(|c| (c, is_among(c, self.trusted)))
    }

    /// Returns the issuer of a certificate in a list. If no certificate of that name has made the signature, returns the
    /// first one of that name.
    fn issuer(
        &mut self,
        cert: &X509Certificate<'_>,
        list: &'c [X509Certificate<'c>],
    ) -> Option<&'c X509Certificate<'c>> {
        let is_named = |c: &&X509Certificate<'_>| has_issued(c, cert) && key_ids_fit(cert, c);
        let named: Vec<_> = list.iter().filter(is_named).collect();
        let signer = named.iter().find(|c| {
            self.signatures += 1;
            // Signatures are counted before the check and over the whole search, since the peer chooses how many certificates share a name.
            self.signatures <= MAX_SIGNATURES && signed_by(cert.as_raw(), c.public_key())
        });
        signer.or(named.first()).copied()
    }
}

/// Returns the last failure of the certificates' extensions and usage on a path.
fn unsuitable(path: &[PathCert<'_>], purpose: Purpose) -> Option<VerifyError> {
    let mut last = None;
    for (i, (cert, _)) in path.iter().enumerate() {
        if cert.extensions().iter().any(|e| e.critical && !is_understood(e)) {
            last = Some(VerifyError(34));
        }
        if !is_sound(cert) || !fits(cert, purpose, i == 0) {
            last = Some(VerifyError(26));
        }
        // Each certificate above the leaf has issued the one below.
        if let Some(below) = i.checked_sub(1).and_then(|n| path.get(1..=n)) {
            last = unfit_issuer(cert, below).or(last);
        }
    }
    last
}

/// Returns the reason for which a certificate may not issue others. `below` are the intermediates that it vouches for.
fn unfit_issuer(cert: &X509Certificate<'_>, below: &[PathCert<'_>]) -> Option<VerifyError> {
    let constraints = cert.basic_constraints().ok().flatten().map(|c| c.value);
    let room = constraints.and_then(|c| c.path_len_constraint);
    // RFC 5280, section 4.2.1.9: self-issued certificates do not count against the length of the path.
    let between = below.iter().filter(|(c, _)| !is_self_issued(c)).count();
    if room.is_some_and(|n| between > n as usize) {
        return Some(VerifyError(25));
    }
    let is_ca = match constraints {
        Some(c) => c.ca,
        // Certificates of version 1 have no extensions, and some old roots are of that version.
        None => cert.version() == X509Version::V1 && is_self_issued(cert),
    };
    let may_sign = cert.key_usage().ok().flatten().is_none_or(|u| u.value.key_cert_sign());
    (!is_ca || !may_sign).then_some(VerifyError(79))
}

/// Returns the failure of the first certificate of a path that has expired or is not valid yet.
fn untimely(path: &[PathCert<'_>], now: i64) -> Option<VerifyError> {
    path.iter().find_map(|(c, _)| timely(c, now).err())
}

/// Checks that a certificate is valid at a time.
fn timely(cert: &X509Certificate<'_>, now: i64) -> Result<(), VerifyError> {
    let times = cert.validity();
    if times.not_after.timestamp() < now {
        return Err(VerifyError(10));
    }
    if times.not_before.timestamp() > now { Err(VerifyError(9)) } else { Ok(()) }
}

/// Returns `true` if a certificate may be used for a purpose. `own` is `true` for the certificate of the peer
/// and `false` for one of an authority.
fn fits(cert: &X509Certificate<'_>, purpose: Purpose, own: bool) -> bool {
    let (Ok(extended), Ok(usage)) = (cert.extended_key_usage(), cert.key_usage()) else { return false };
    let (extended, usage) = (extended.map(|u| u.value), usage.map(|u| u.value));
    let signs = |more: fn(&KeyUsage) -> bool| {
        !own || usage.is_none_or(|u| u.digital_signature() || u.key_agreement() || more(u))
    };
    // `anyExtendedKeyUsage` stands for none of the purposes, as in OpenSSL.
    match purpose {
        Purpose::Issuer => true,
        Purpose::Client => extended.is_none_or(|u| u.client_auth) && signs(|_| false),
        Purpose::Server => {
            extended.is_none_or(|u| u.server_auth || u.other.iter().any(is_gated_crypto))
                && signs(KeyUsage::key_encipherment)
        }
    }
}

/// Returns `true` for Server Gated Crypto, Netscape's and Microsoft's old usage of servers, which OpenSSL accepts.
fn is_gated_crypto(usage: &asn1_rs::Oid<'_>) -> bool {
    matches!(usage.to_id_string().as_str(), "2.16.840.1.113730.4.1" | "1.3.6.1.4.1.311.10.3.3")
}

/// Returns `true` if all known extensions can be parsed. One that cannot may forbid anything.
fn is_sound(cert: &X509Certificate<'_>) -> bool {
    !cert.extensions().iter().any(|e| matches!(e.parsed_extension(), ParsedExtension::ParseError { .. }))
}

/// Returns `true` if a certificate has the name of its issuer.
pub(super) fn is_self_issued(cert: &X509Certificate<'_>) -> bool {
    has_issued(cert, cert)
}

/// Returns `true` if a certificate names another one as its issuer.
pub(super) fn has_issued(issuer: &X509Certificate<'_>, cert: &X509Certificate<'_>) -> bool {
    let (subject, named) = (issuer.subject().as_raw(), cert.issuer().as_raw());
    subject == named || canonical(subject) == canonical(named)
}

fn is_among(cert: &X509Certificate<'_>, list: &[X509Certificate<'_>]) -> bool {
    list.iter().any(|c| c.as_raw() == cert.as_raw())
}

/// Returns the identifier of a certificate's key, if it has one.
pub(super) fn subject_key_id<'c>(cert: &'c X509Certificate<'_>) -> Option<&'c [u8]> {
    cert.extensions().iter().find_map(|e| match e.parsed_extension() {
        ParsedExtension::SubjectKeyIdentifier(k) => Some(k.0),
        _ => None,
    })
}

/// Compares the authority key identifier with the issuer's subject key identifier, if both exist.
fn key_ids_fit(cert: &X509Certificate<'_>, issuer: &X509Certificate<'_>) -> bool {
    let wanted = cert.extensions().iter().find_map(|e| match e.parsed_extension() {
        ParsedExtension::AuthorityKeyIdentifier(a) => a.key_identifier.as_ref().map(|k| k.0),
        _ => None,
    });
    match (wanted, subject_key_id(issuer)) {
        (Some(a), Some(b)) => a == b,
        _ => true,
    }
}

fn is_understood(e: &X509Extension<'_>) -> bool {
    matches!(
        e.parsed_extension(),
        ParsedExtension::BasicConstraints(_)
            | ParsedExtension::KeyUsage(_)
            | ParsedExtension::ExtendedKeyUsage(_)
            | ParsedExtension::SubjectAlternativeName(_)
            | ParsedExtension::AuthorityKeyIdentifier(_)
            | ParsedExtension::SubjectKeyIdentifier(_)
            | ParsedExtension::NSCertType(_)
            | ParsedExtension::NameConstraints(_)
    )
}

/// Returns `true` if a certificate is for a host (RFC 6125). Compares its alternative names, or its common name if it has
/// none. Names are compared as they are written, a final dot included (nginx: proxy_ssl_name).
pub fn is_for_host(der: &[u8], host: &str) -> bool {
    let Some(cert) = parse(der) else { return false };
    // If the alternative names cannot be parsed, the common name does not count either.
    let Ok(names) = cert.subject_alternative_name() else { return false };
    let names = names.map(|n| n.value.general_names.as_slice()).unwrap_or_default();
    if names.iter().any(|name| is_name_of(name, host)) {
        return true;
    }
    let has_names = names.iter().any(|name| match name {
        GeneralName::DNSName(_) => true,
        GeneralName::Invalid(tag, _) => tag.0 == DNS_NAME,
        _ => false,
    });
    !has_names && common_hosts(&cert).any(|n| matches_name(&n, host))
}

/// Returns the common names that may be names of hosts. These and no others stand for hosts, and name constraints apply to them.
pub(super) fn common_hosts(cert: &X509Certificate<'_>) -> impl Iterator<Item = String> {
    let values = cert.subject().iter_common_name().map(|a| a.attr_value());
    let texts: Vec<String> =
        values.filter_map(|v| u8::try_from(v.tag().0).ok().and_then(|tag| dn::text(tag, v.data))).collect();
    texts.into_iter().filter(|n| may_be_host(n))
}

/// Returns `true` if a text may be the name or address of a host, with a star for its first label or without.
fn may_be_host(text: &str) -> bool {
    let rest = text.strip_prefix("*.").unwrap_or(text);
    !rest.is_empty()
        && rest.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'-' | b'_' | b':'))
}

/// Returns `true` if a certificate has one of some alternative names (RFC 5280, section 4.2.1.6). Names with a colon are URIs, which
/// are compared as they are written; the others are DNS names. The common name does not count.
pub fn has_alternative_name(der: &[u8], wanted: &[String]) -> bool {
    let Some(cert) = parse(der) else { return false };
    let Ok(Some(names)) = cert.subject_alternative_name() else { return false };
    names.value.general_names.iter().any(|name| match name {
        GeneralName::URI(uri) => wanted.iter().any(|w| w.contains(':') && w == uri),
        GeneralName::DNSName(n) => wanted.iter().any(|w| !w.contains(':') && matches_name(n, w)),
        _ => false,
    })
}

/// Returns `true` if an alternative name is that of a host.
fn is_name_of(name: &GeneralName<'_>, host: &str) -> bool {
    use std::net::IpAddr;
    match name {
        GeneralName::DNSName(n) => matches_name(n, host),
        GeneralName::IPAddress(bytes) => match host.parse() {
            Ok(IpAddr::V4(a)) => a.octets().as_slice() == *bytes,
            Ok(IpAddr::V6(a)) => a.octets().as_slice() == *bytes,
            Err(_) => false,
        },
        _ => false,
    }
}

/// Tag of a `dNSName` (RFC 5280, section 4.2.1.6).
const DNS_NAME: u32 = 2;

/// Compares a name with a host. The first label of the name may be a star.
fn matches_name(pattern: &str, host: &str) -> bool {
    if pattern.eq_ignore_ascii_case(host) {
        return true;
    }
    let Some(rest) = pattern.strip_prefix("*.") else { return false };
    match host.split_once('.') {
        // A star stands for one whole label (RFC 6125, section 6.4.3), and for none directly below a top-level name.
        Some((label, tail)) => !label.is_empty() && rest.contains('.') && tail.eq_ignore_ascii_case(rest),
        None => false,
    }
}

/// TLS version of a handshake signature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// TLS 1.2.
    V12,
    /// TLS 1.3.
    V13,
}

/// Returns `true` if TLS 1.3 allows an algorithm for handshakes. RSASSA-PKCS1-v1_5 and SHA-1 are in its list for
/// certificates only (RFC 8446, section 4.2.3).
fn signs_v13(scheme: SignatureScheme) -> bool {
    use SignatureScheme as S;
    matches!(
        scheme,
        S::RSA_PSS_SHA256
            | S::RSA_PSS_SHA384
            | S::RSA_PSS_SHA512
            | S::ECDSA_NISTP256_SHA256
            | S::ECDSA_NISTP384_SHA384
            | S::ECDSA_NISTP521_SHA512
            | S::ED25519
    )
}

/// Checks a signature of the handshake. Accepts X.509 certificates of any version.
///
/// # Errors
/// The signature is wrong, or the algorithm does not belong to the version.
pub fn handshake_signature(
    version: Version,
    message: &[u8],
    cert: &CertificateDer<'_>,
    dss: &DigitallySignedStruct,
) -> Result<HandshakeSignatureValid, Error> {
    let bad = || Error::InvalidCertificate(rustls::CertificateError::BadSignature);
    let v13 = version == Version::V13;
    if v13 && !signs_v13(dss.scheme) {
        return Err(rustls::PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into());
    }
    let cert = parse(cert).ok_or(Error::InvalidCertificate(rustls::CertificateError::BadEncoding))?;
    let info = cert.public_key();
    let key_algorithm = key_algorithm(info).ok_or_else(bad)?;
    let mapping = algorithms().mapping;
    // TLS 1.3 binds the curve to the hash: the first algorithm of a scheme is that one.
    let most = if v13 { 1 } else { usize::MAX };
    let schemes = mapping.iter().filter(|(scheme, _)| *scheme == dss.scheme);
    let all = schemes.flat_map(|(_, all)| all.iter().take(most));
    let mut fitting = all.filter(|a| a.public_key_alg_id().as_ref() == key_algorithm).peekable();
    if fitting.peek().is_none() {
        // An algorithm for keys of another kind: `illegal_parameter` (RFC 8446, section 4.4.3).
        return Err(rustls::PeerMisbehaved::SignedHandshakeWithUnadvertisedSigScheme.into());
    }
    let key = &info.subject_public_key.data;
    let sound = fitting.any(|a| a.verify_signature(key, message, dss.signature()).is_ok());
    if sound { Ok(HandshakeSignatureValid::assertion()) } else { Err(bad()) }
}

/// Returns the supported signature schemes.
pub fn schemes() -> Vec<SignatureScheme> {
    algorithms().supported_schemes()
}

/// Verifier that accepts every certificate of a client, if only the client has its key.
#[derive(Debug)]
struct Asker {
    hints: Vec<DistinguishedName>,
}

impl ClientCertVerifier for Asker {
    fn client_auth_mandatory(&self) -> bool {
        false
    }
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }
    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Ok(ClientCertVerified::assertion())
    }
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        super::sigalg::checked(dss.scheme);
        handshake_signature(Version::V12, message, cert, dss)
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        super::sigalg::checked(dss.scheme);
        handshake_signature(Version::V13, message, cert, dss)
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        schemes()
    }
}

#[cfg(test)]
mod tests;
