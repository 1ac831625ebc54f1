//! Judges the other side's certificates (RFC 5280, section 6) as OpenSSL does with nginx's settings: version 1
//! certificates are taken, a chain ends in a trusted self-signed certificate, failures have OpenSSL's numbers
//! and words, which `$ssl_client_verify` and the error log show. Whatever is not understood fails.

use super::constraints;
use super::crl::Lists;
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, Error, SignatureScheme};
use std::collections::HashMap;
use std::sync::Arc;
use x509_parser::prelude::*;

/// Why a certificate is not accepted: OpenSSL's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failure(pub u32);

impl Failure {
    /// OpenSSL's words.
    pub fn text(self) -> &'static str {
        match self.0 {
            2 => "unable to get issuer certificate",
            3 => "unable to get certificate CRL",
            7 => "certificate signature failure",
            8 => "CRL signature failure",
            9 => "certificate is not yet valid",
            10 => "certificate has expired",
            11 => "CRL is not yet valid",
            12 => "CRL has expired",
            18 => "self-signed certificate",
            19 => "self-signed certificate in certificate chain",
            20 => "unable to get local issuer certificate",
            21 => "unable to verify the first certificate",
            22 => "certificate chain too long",
            23 => "certificate revoked",
            25 => "path length constraint exceeded",
            26 => "unsuitable certificate purpose",
            34 => "unhandled critical extension",
            35 => "key usage does not include CRL signing",
            36 => "unhandled critical CRL extension",
            44 => "different CRL scope",
            47 => "permitted subtree violation",
            48 => "excluded subtree violation",
            51 => "unsupported name constraint type",
            62 => "hostname mismatch",
            79 => "invalid CA certificate",
            _ => "application verification failure",
        }
    }

    /// Whether it only says that nobody trusted stands behind the certificate (nginx: optional_no_ca).
    pub fn is_trust(self) -> bool {
        matches!(self.0, 2 | 18..=21)
    }
}

/// Seconds since 1970.
pub fn now() -> i64 {
    UnixTime::now().as_secs() as i64
}

fn parse(der: &[u8]) -> Option<X509Certificate<'_>> {
    X509Certificate::from_der(der).ok().map(|(_, c)| c)
}

/// The public key of a certificate, SubjectPublicKeyInfo.
pub fn public_key(der: &[u8]) -> Option<Vec<u8>> {
    parse(der).map(|c| c.public_key().raw.to_vec())
}

/// From when to when a certificate is valid, seconds since 1970.
pub fn validity(der: &[u8]) -> Option<(i64, i64)> {
    parse(der).map(|c| (c.validity().not_before.timestamp(), c.validity().not_after.timestamp()))
}

fn algorithms() -> WebPkiSupportedAlgorithms {
    rustls::crypto::aws_lc_rs::default_provider().signature_verification_algorithms
}

/// Where a certificate says that its state is told (RFC 5280, section 4.2.2.1): the first URL of a responder.
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

/// Who among `known` has made a certificate.
pub fn issuer<'a>(
    der: &[u8],
    known: impl Iterator<Item = &'a CertificateDer<'static>>,
) -> Option<&'a CertificateDer<'static>> {
    let cert = parse(der)?;
    let mut known = known;
    known.find(|c| {
        parse(c).is_some_and(|c| {
            c.subject().as_raw() == cert.issuer().as_raw()
                && key_ids_fit(&cert, &c)
                && signed_by(cert.as_raw(), c.public_key())
                && c.as_raw() != cert.as_raw()
        })
    })
}

/// Contents of the first element with a tag, and what follows it.
fn element(bytes: &[u8], tag: u8) -> Option<(&[u8], &[u8])> {
    let (&t, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (len, rest) = if first < 0x80 {
        (usize::from(first), rest)
    } else {
        let (n, rest) = rest.split_at_checked(usize::from(first & 0x7f)).filter(|(n, _)| n.len() <= 4)?;
        (n.iter().fold(0, |n, b| n << 8 | usize::from(*b)), rest)
    };
    let (contents, rest) = rest.split_at_checked(len)?;
    (t == tag).then_some((contents, rest))
}

/// Checks the signature of something that is `SEQUENCE { signed, algorithm, BIT STRING }`.
pub fn signed_by(der: &[u8], issuer_key: &SubjectPublicKeyInfo<'_>) -> bool {
    let checked = (|| {
        let (outer, _) = element(der, 0x30)?;
        let (_, rest) = element(outer, 0x30)?;
        let signed = outer.get(..outer.len() - rest.len())?;
        let (algorithm, rest) = element(rest, 0x30)?;
        let (bits, _) = element(rest, 3)?;
        let signature = bits.strip_prefix(&[0])?;
        let (key, _) = element(issuer_key.raw, 0x30)?;
        let (key_algorithm, _) = element(key, 0x30)?;
        let all = algorithms().all;
        let mut fitting = all.iter().filter(|a| {
            a.signature_alg_id().as_ref() == algorithm && a.public_key_alg_id().as_ref() == key_algorithm
        });
        fitting
            .any(|a| a.verify_signature(&issuer_key.subject_public_key.data, signed, signature).is_ok())
            .then_some(())
    })();
    checked.is_some()
}

/// Who is trusted, and how far.
#[derive(Debug)]
pub struct Trust {
    anchors: Vec<CertificateDer<'static>>,
    /// Where they stand, by their subjects: a system's list has more than a hundred, of which a chain needs one.
    by_subject: HashMap<Vec<u8>, Vec<usize>>,
    /// Names that clients are told to have certificates of.
    hints: Vec<DistinguishedName>,
    crls: Lists,
    /// There are lists, even if none can be read.
    has_crls: bool,
    depth: usize,
    fingerprint: [u8; 32],
}

/// What a certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// To speak for a client.
    Client,
    /// To speak for a server.
    Server,
    /// To make certificates.
    Issuer,
}

/// Longest chain that is looked at.
const MAX_CHAIN: usize = 16;
/// Most signatures that are looked at while a chain is put together: a client may offer many certificates of one
/// name.
const MAX_SIGNATURES: usize = 32;

impl Trust {
    /// `hints`: whose names clients are told.
    pub fn new(
        anchors: Vec<CertificateDer<'static>>,
        hints: Vec<CertificateDer<'static>>,
        crls: Vec<Vec<u8>>,
        depth: usize,
    ) -> Trust {
        let subject =
            |c: &CertificateDer<'_>| parse(c).map(|c| DistinguishedName::from(c.subject().as_raw().to_vec()));
        // A name that several certificates have is told once.
        let mut told: Vec<DistinguishedName> = Vec::new();
        let mut seen = std::collections::HashSet::new();
        for name in hints.iter().filter_map(subject) {
            if seen.insert(name.as_ref().to_vec()) {
                told.push(name);
            }
        }
        let has_crls = !crls.is_empty();
        let crls = Lists::new(&crls);
        let bound = depth.to_be_bytes();
        let parts = anchors.iter().map(AsRef::as_ref).chain(crls.parts()).chain([bound.as_slice()]);
        let fingerprint = super::sessions::context(parts);
        let mut by_subject: HashMap<Vec<u8>, Vec<usize>> = HashMap::new();
        for (i, c) in anchors.iter().enumerate() {
            if let Some(c) = parse(c) {
                by_subject.entry(c.subject().as_raw().to_vec()).or_default().push(i);
            }
        }
        Trust { by_subject, hints: told, anchors, crls, has_crls, depth, fingerprint }
    }

    /// What asks clients for their certificates. Every certificate passes here: it is judged after the
    /// handshake, since a request with a bad one is to get an answer (nginx: error 495).
    pub fn asker(&self) -> Arc<dyn ClientCertVerifier> {
        Arc::new(Asker { hints: self.hints.clone() })
    }

    /// Judges a chain, the certificate in question first.
    ///
    /// # Errors
    /// The last failure that OpenSSL would have found.
    pub fn verify(&self, chain: &[CertificateDer<'_>], purpose: Purpose, now: i64) -> Result<(), Failure> {
        self.verified(chain, purpose, now, |_| ())
    }

    /// As [`Trust::verify`]; gives the certificates from the one in question to the trusted root.
    ///
    /// # Errors
    /// As there.
    pub fn path(
        &self,
        chain: &[CertificateDer<'_>],
        purpose: Purpose,
        now: i64,
    ) -> Result<Vec<CertificateDer<'static>>, Failure> {
        self.verified(chain, purpose, now, |path| {
            path.iter().map(|(c, _)| CertificateDer::from(c.as_raw().to_vec())).collect()
        })
    }

    /// What tells one from another.
    pub fn fingerprint(&self) -> [u8; 32] {
        self.fingerprint
    }

    fn verified<T>(
        &self,
        chain: &[CertificateDer<'_>],
        purpose: Purpose,
        now: i64,
        then: impl FnOnce(&[(&X509Certificate<'_>, bool)]) -> T,
    ) -> Result<T, Failure> {
        let leaf = chain.first().and_then(|c| parse(c)).ok_or(Failure(7))?;
        let offered: Vec<X509Certificate<'_>> =
            chain.iter().skip(1).take(MAX_CHAIN).filter_map(|c| parse(c)).collect();
        let trusted = self.named(std::iter::once(&leaf).chain(&offered));
        let looked = std::cell::Cell::new(0);
        let mut path: Vec<(&X509Certificate<'_>, bool)> = vec![(&leaf, is_among(&leaf, &trusted))];
        loop {
            let Some((current, known)) = path.last().copied() else { return Err(Failure(20)) };
            if is_self_issued(current) {
                if known {
                    break;
                }
                let untrusted = Failure(if path.len() == 1 { 18 } else { 19 });
                return Err(untimely(&path, now).unwrap_or(untrusted));
            }
            if path.len() > MAX_CHAIN {
                return Err(Failure(22));
            }
            let issued = |c: &&X509Certificate<'_>| {
                c.subject().as_raw() == current.issuer().as_raw() && key_ids_fit(current, c)
            };
            let of = |list: &'_ [X509Certificate<'_>]| -> Option<usize> {
                let all: Vec<usize> =
                    (0..list.len()).filter(|i| list.get(*i).is_some_and(|c| issued(&c))).collect();
                let signs = |i: &&usize| {
                    looked.set(looked.get() + 1);
                    looked.get() <= MAX_SIGNATURES
                        && list.get(**i).is_some_and(|c| signed_by(current_der(current), c.public_key()))
                };
                all.iter().find(signs).or(all.first()).copied()
            };
            let next = of(&trusted).and_then(|i| trusted.get(i)).map(|c| (c, true));
            let next = next
                .or_else(|| of(&offered).and_then(|i| offered.get(i)).map(|c| (c, is_among(c, &trusted))));
            match next {
                Some(next) => path.push(next),
                // Nobody vouches for it; a time that is over counts all the same, and after that.
                None => {
                    let ends = if known {
                        2
                    } else if path.len() == 1 {
                        21
                    } else {
                        20
                    };
                    return Err(untimely(&path, now).unwrap_or(Failure(ends)));
                }
            }
        }
        if path.len() > self.depth + 2 {
            return Err(Failure(22));
        }
        self.judge(&path, purpose, now)?;
        Ok(then(&path))
    }

    /// The anchors that certificates name, directly or by way of others, in their order.
    fn named<'c>(
        &self,
        certificates: impl Iterator<Item = &'c X509Certificate<'c>>,
    ) -> Vec<X509Certificate<'_>> {
        let names = certificates.flat_map(|c| [c.subject().as_raw(), c.issuer().as_raw()]);
        let mut names: Vec<Vec<u8>> = names.map(<[u8]>::to_vec).collect();
        let mut found: Vec<(usize, X509Certificate<'_>)> = Vec::new();
        while let Some(name) = names.pop() {
            for &i in self.by_subject.get(&name).map(Vec::as_slice).unwrap_or_default() {
                if found.iter().any(|(at, _)| *at == i) {
                    continue;
                }
                if let Some(c) = self.anchors.get(i).and_then(|c| parse(c)) {
                    names.push(c.issuer().as_raw().to_vec());
                    found.push((i, c));
                }
            }
        }
        found.sort_by_key(|(i, _)| *i);
        found.into_iter().map(|(_, c)| c).collect()
    }

    fn judge(
        &self,
        path: &[(&X509Certificate<'_>, bool)],
        purpose: Purpose,
        now: i64,
    ) -> Result<(), Failure> {
        // As OpenSSL does when nobody stops it at the first failure: extensions and revocation from the leaf
        // on, signatures and times from the root on, and the last failure counts.
        let mut last = Ok(());
        for (i, (cert, _)) in path.iter().enumerate() {
            if cert.extensions().iter().any(|e| e.critical && !is_understood(e)) {
                last = Err(Failure(34));
            }
            if !is_sound(cert) || !fits(cert, purpose, i == 0) {
                last = Err(Failure(26));
            }
            if i == 0 {
                continue;
            }
            let constraints = cert.basic_constraints().ok().flatten().map(|c| c.value);
            let is_ca = match constraints {
                Some(c) => c.ca,
                None => cert.version() == X509Version::V1 && is_self_issued(cert),
            };
            let may_sign = cert.key_usage().ok().flatten().is_none_or(|u| u.value.key_cert_sign());
            if !is_ca || !may_sign {
                last = Err(Failure(79));
            }
            let between =
                path.get(1..i).unwrap_or_default().iter().filter(|(c, _)| !is_self_issued(c)).count();
            let room = constraints.and_then(|c| c.path_len_constraint);
            if room.is_some_and(|n| between > n as usize) {
                last = Err(Failure(25));
            }
        }
        if let Err(f) = constraints::check(path) {
            last = Err(f);
        }
        let issuer_of = |i: usize| path.get(i + 1).or(path.get(i)).map(|(c, _)| *c);
        for (i, (cert, _)) in path.iter().enumerate() {
            let issuer = issuer_of(i).ok_or(Failure(2))?;
            if let Err(f) = self.check_revoked(cert, issuer, now) {
                last = Err(f);
            }
        }
        for (i, (cert, _)) in path.iter().enumerate().rev() {
            let issuer = issuer_of(i).ok_or(Failure(2))?;
            // Nobody vouches for a root but whoever trusts it.
            if i + 1 < path.len() && !signed_by(current_der(cert), issuer.public_key()) {
                return Err(Failure(7));
            }
            if let Err(f) = timely(cert, now) {
                last = Err(f);
            }
        }
        last
    }

    /// Every certificate of a chain needs a list of its issuer, once there are lists (nginx: ssl_crl).
    fn check_revoked(
        &self,
        cert: &X509Certificate<'_>,
        issuer: &X509Certificate<'_>,
        now: i64,
    ) -> Result<(), Failure> {
        if self.has_crls { self.crls.check(cert, issuer, now) } else { Ok(()) }
    }
}

/// The time that counts of those that are over or to come in a path which leads nowhere.
fn untimely(path: &[(&X509Certificate<'_>, bool)], now: i64) -> Option<Failure> {
    path.iter().find_map(|(c, _)| timely(c, now).err())
}

/// Whether a certificate is valid at a time.
fn timely(cert: &X509Certificate<'_>, now: i64) -> Result<(), Failure> {
    let times = cert.validity();
    if times.not_after.timestamp() < now {
        return Err(Failure(10));
    }
    if times.not_before.timestamp() > now { Err(Failure(9)) } else { Ok(()) }
}

/// Whether a certificate, or with `own` not set one of an authority, may be used so.
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

/// Old names of the purpose to speak for a server (Server Gated Crypto, Netscape's and Microsoft's), which OpenSSL takes.
fn is_gated_crypto(usage: &asn1_rs::Oid<'_>) -> bool {
    matches!(usage.to_id_string().as_str(), "2.16.840.1.113730.4.1" | "1.3.6.1.4.1.311.10.3.3")
}

/// Whether all extensions that are known can be read. What is in one that cannot is anybody's guess.
fn is_sound(cert: &X509Certificate<'_>) -> bool {
    !cert.extensions().iter().any(|e| matches!(e.parsed_extension(), ParsedExtension::ParseError { .. }))
}

fn current_der<'a>(cert: &X509Certificate<'a>) -> &'a [u8] {
    cert.as_raw()
}

fn is_self_issued(cert: &X509Certificate<'_>) -> bool {
    cert.subject().as_raw() == cert.issuer().as_raw()
}

fn is_among(cert: &X509Certificate<'_>, list: &[X509Certificate<'_>]) -> bool {
    list.iter().any(|c| c.as_raw() == cert.as_raw())
}

/// Authority key identifier against subject key identifier, where both are there.
fn key_ids_fit(cert: &X509Certificate<'_>, issuer: &X509Certificate<'_>) -> bool {
    let wanted = cert.extensions().iter().find_map(|e| match e.parsed_extension() {
        ParsedExtension::AuthorityKeyIdentifier(a) => a.key_identifier.as_ref().map(|k| k.0),
        _ => None,
    });
    let own = issuer.extensions().iter().find_map(|e| match e.parsed_extension() {
        ParsedExtension::SubjectKeyIdentifier(k) => Some(k.0),
        _ => None,
    });
    match (wanted, own) {
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

/// Whether a certificate is for a host (RFC 6125): its alternative names, or its common name where it has none. Names are
/// compared as they are written, a final dot included (nginx: proxy_ssl_name).
pub fn is_for_host(der: &[u8], host: &str) -> bool {
    let Some(cert) = parse(der) else { return false };
    let ip: Option<std::net::IpAddr> = host.parse().ok();
    let mut has_names = false;
    // Names that cannot be read are no reason to believe the common name.
    let Ok(names) = cert.subject_alternative_name() else { return false };
    if let Some(names) = names {
        for name in &names.value.general_names {
            match name {
                GeneralName::DNSName(n) => {
                    has_names = true;
                    if matches_name(n, host) {
                        return true;
                    }
                }
                GeneralName::IPAddress(bytes) => {
                    let same = match ip {
                        Some(std::net::IpAddr::V4(a)) => a.octets().as_slice() == *bytes,
                        Some(std::net::IpAddr::V6(a)) => a.octets().as_slice() == *bytes,
                        None => false,
                    };
                    if same {
                        return true;
                    }
                }
                GeneralName::Invalid(tag, _) => has_names |= tag.0 == DNS_NAME,
                _ => {}
            }
        }
    }
    !has_names
        && cert.subject().iter_common_name().filter_map(|n| n.as_str().ok()).any(|n| matches_name(n, host))
}

/// Tag of a `dNSName` (RFC 5280, section 4.2.1.6).
const DNS_NAME: u32 = 2;

/// One label may be a star, the first one.
fn matches_name(pattern: &str, host: &str) -> bool {
    if pattern.eq_ignore_ascii_case(host) {
        return true;
    }
    let Some(rest) = pattern.strip_prefix("*.") else { return false };
    match host.split_once('.') {
        Some((label, tail)) => !label.is_empty() && rest.contains('.') && tail.eq_ignore_ascii_case(rest),
        None => false,
    }
}

/// The version whose handshake is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// TLS 1.2.
    V12,
    /// TLS 1.3.
    V13,
}

/// Whether TLS 1.3 signs handshakes by an algorithm: not by RSASSA-PKCS1-v1_5, nor by anything with SHA-1, which its
/// list has for certificates only (RFC 8446, section 4.2.3).
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

/// Checks a signature of the handshake, for certificates of any version.
///
/// # Errors
/// When it is not sound, or by an algorithm that the version does not know.
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
    let (key, _) = element(info.raw, 0x30).ok_or_else(bad)?;
    let (key_algorithm, _) = element(key, 0x30).ok_or_else(bad)?;
    let mapping = algorithms().mapping;
    // TLS 1.3 binds the curve to the hash: the first algorithm of a scheme is that one.
    let most = if v13 { 1 } else { usize::MAX };
    let fitting = mapping.iter().filter(|(scheme, _)| *scheme == dss.scheme);
    let mut fitting = fitting.flat_map(|(_, all)| all.iter().take(most));
    let sound = fitting.any(|a| {
        a.public_key_alg_id().as_ref() == key_algorithm
            && a.verify_signature(&info.subject_public_key.data, message, dss.signature()).is_ok()
    });
    if sound { Ok(HandshakeSignatureValid::assertion()) } else { Err(bad()) }
}

/// Signature schemes that are understood.
pub fn schemes() -> Vec<SignatureScheme> {
    algorithms().supported_schemes()
}

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
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_one_label() {
        assert!(matches_name("example.com", "EXAMPLE.com"));
        assert!(matches_name("*.example.com", "a.example.com"));
        assert!(!matches_name("*.example.com", "a.b.example.com"));
        assert!(!matches_name("*.example.com", "example.com"));
        assert!(!matches_name("*.com", "example.com"));
        assert!(!matches_name("*.example.com", ".example.com"));
    }

    /// A client that shows a certificate and signs by the algorithm that it wants.
    #[derive(Debug)]
    struct Wilful(SignatureScheme, Arc<rustls::sign::CertifiedKey>);

    impl rustls::sign::SigningKey for Wilful {
        fn choose_scheme(&self, _: &[SignatureScheme]) -> Option<Box<dyn rustls::sign::Signer>> {
            self.1.key.choose_scheme(&[self.0])
        }
        fn algorithm(&self) -> rustls::SignatureAlgorithm {
            self.1.key.algorithm()
        }
    }

    impl rustls::client::ResolvesClientCert for Wilful {
        fn resolve(&self, _: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<rustls::sign::CertifiedKey>> {
            let key = Arc::new(Wilful(self.0, self.1.clone()));
            Some(Arc::new(rustls::sign::CertifiedKey::new(self.1.cert.clone(), key)))
        }
        fn has_certs(&self) -> bool {
            true
        }
    }

    /// TLS 1.3 has no handshake signed by RSASSA-PKCS1-v1_5 (RFC 8446, section 4.2.3), TLS 1.2 has.
    #[test]
    fn handshakes_are_signed_by_what_the_version_knows() {
        let dir = tempfile::tempdir().unwrap();
        let made = std::process::Command::new("openssl")
            .args([
                "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "key", "-out", "crt", "-subj",
                "/CN=h",
            ])
            .current_dir(dir.path())
            .output();
        if made.is_err() {
            assert!(std::env::var_os("CI").is_none(), "openssl is missing");
            println!("skipped: openssl is missing");
            return;
        }
        let read = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
        let certified =
            super::super::certified::certified(("crt", &read("crt")), ("key", &read("key")), &[]).unwrap();
        let certified = Arc::new(certified);
        let trust = Trust::new(certified.cert.clone(), Vec::new(), Vec::new(), 1);
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        for (version, scheme, sound) in [
            (&rustls::version::TLS13, SignatureScheme::RSA_PKCS1_SHA256, false),
            (&rustls::version::TLS13, SignatureScheme::RSA_PSS_SHA256, true),
            (&rustls::version::TLS12, SignatureScheme::RSA_PKCS1_SHA256, true),
        ] {
            let server = rustls::ServerConfig::builder_with_provider(provider.clone())
                .with_protocol_versions(&[version])
                .unwrap()
                .with_client_cert_verifier(trust.asker())
                .with_cert_resolver(Arc::new(rustls::sign::SingleCertAndKey::from(
                    rustls::sign::CertifiedKey::clone(&certified),
                )));
            let client = rustls::ClientConfig::builder_with_provider(provider.clone())
                .with_protocol_versions(&[version])
                .unwrap()
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(super::super::certified::VerifyLater))
                .with_client_cert_resolver(Arc::new(Wilful(scheme, certified.clone())));
            let name = rustls::pki_types::ServerName::try_from("h").unwrap();
            let mut server = rustls::ServerConnection::new(Arc::new(server)).unwrap();
            let mut client = rustls::ClientConnection::new(Arc::new(client), name).unwrap();
            let mut outcome = Ok(());
            for _ in 0..4 {
                let mut bytes = Vec::new();
                while client.wants_write() {
                    client.write_tls(&mut bytes).unwrap();
                }
                let mut rest = bytes.as_slice();
                while !rest.is_empty() && outcome.is_ok() {
                    server.read_tls(&mut rest).unwrap();
                    outcome = server.process_new_packets().map(|_| ());
                }
                let mut bytes = Vec::new();
                while server.wants_write() {
                    server.write_tls(&mut bytes).unwrap();
                }
                let mut rest = bytes.as_slice();
                while !rest.is_empty() {
                    client.read_tls(&mut rest).unwrap();
                    let _ = client.process_new_packets();
                }
            }
            assert_eq!(outcome.is_ok(), sound, "{version:?} {scheme:?}: {outcome:?}");
            assert_eq!(server.is_handshaking(), !sound);
        }
    }
}
