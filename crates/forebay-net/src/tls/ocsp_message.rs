//! OCSP requests and responses (RFC 6960) in the profile of RFC 5019: one certificate and no nonce, so that responders can
//! send responses that they signed before.

use crate::tls::der::{BITS, BOOLEAN, Der, ENUMERATED, INTEGER, OCTETS, OID, SEQUENCE, context, element};
use crate::tls::dn::canonical;
use crate::tls::verify::{has_issued, signed_by};
use aws_lc_rs::digest;
use rustls::pki_types::CertificateDer;
use x509_parser::prelude::*;

const SHA1: &[u8] = &[0x2b, 0x0e, 3, 2, 0x1a];
const SHA256: &[u8] = &[0x60, 0x86, 0x48, 1, 0x65, 3, 4, 2, 1];
const BASIC: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 0x30, 1, 1];
const NONCE: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 0x30, 1, 2];

/// Longest response that is accepted, bytes.
pub const MAX_RESPONSE: usize = 64 * 1024;
/// Largest number of certificates of a response that are read.
const MAX_CERTIFICATES: usize = 8;
/// Largest number of states in a response.
const MAX_STATES: usize = 256;
/// Allowed difference of clocks, seconds.
const SKEW: i64 = 300;
/// Lifetime of a response without `nextUpdate`, seconds. Such a response says that the responder has newer
/// information at any time (RFC 6960, section 4.2.2.1).
const UNSAID: i64 = 24 * 3600;

/// A certificate and its issuer.
#[derive(Clone, Debug)]
pub struct Subject {
    /// The certificate in question.
    pub cert: CertificateDer<'static>,
    /// Its issuer.
    pub issuer: CertificateDer<'static>,
}

impl Subject {
    /// Copies both from DER.
    pub fn of(cert: &[u8], issuer: &[u8]) -> Subject {
        let owned = |der: &[u8]| CertificateDer::from(der.to_vec());
        Subject { cert: owned(cert), issuer: owned(issuer) }
    }
}

/// State of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// In force.
    Good,
    /// Revoked by its issuer.
    Revoked,
    /// Not known to the responder.
    Unknown,
}

impl State {
    /// Returns OpenSSL's word.
    pub fn text(self) -> &'static str {
        match self {
            State::Good => "good",
            State::Revoked => "revoked",
            State::Unknown => "unknown",
        }
    }
}

/// A response that was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answer {
    /// State of the certificate.
    pub state: State,
    /// `thisUpdate`, seconds since 1970.
    pub from: i64,
    /// `nextUpdate`.
    pub until: Option<i64>,
}

/// Certificates that may sign responses, in addition to the issuer and its delegates.
#[derive(Clone, Copy, Debug)]
pub struct Signers<'a>(pub &'a [CertificateDer<'static>]);

fn parse(der: &[u8]) -> Option<X509Certificate<'_>> {
    X509Certificate::from_der(der).ok().map(|(_, c)| c)
}

fn key_bits<'a>(cert: &'a X509Certificate<'_>) -> &'a [u8] {
    &cert.public_key().subject_public_key.data
}

/// Returns the contents of a CertID with this kind of hash, without the algorithm.
fn names(algorithm: &'static digest::Algorithm, s: &Subject) -> Option<[Vec<u8>; 3]> {
    let (cert, issuer) = (parse(&s.cert)?, parse(&s.issuer)?);
    Some([
        element(OCTETS, &[digest::digest(algorithm, cert.issuer().as_raw()).as_ref()]),
        element(OCTETS, &[digest::digest(algorithm, key_bits(&issuer)).as_ref()]),
        element(INTEGER, &[cert.raw_serial()]),
    ])
}

/// Makes a request like nginx's, which names the issuer by SHA-1, as every responder understands. Returns `None` if the
/// certificates cannot be parsed.
pub fn request(s: &Subject) -> Option<Vec<u8>> {
    let [name, key, serial] = names(&digest::SHA1_FOR_LEGACY_USE_ONLY, s)?;
    let algorithm = element(SEQUENCE, &[&element(OID, &[SHA1]), &[5, 0]]);
    let id = element(SEQUENCE, &[&algorithm, &name, &key, &serial]);
    let list = element(SEQUENCE, &[&element(SEQUENCE, &[&id])]);
    Some(element(SEQUENCE, &[&element(SEQUENCE, &[&list])]))
}

/// Returns `true` if a CertID with these contents names this certificate.
fn is_about(id: &[u8], s: &Subject) -> bool {
    let mut id = Der(id);
    let names = hash_algorithm(&mut id).and_then(|algorithm| names(algorithm, s));
    names.is_some_and(|names| id.0 == names.concat())
}

/// Reads the algorithm of the hashes in a CertID.
fn hash_algorithm(id: &mut Der<'_>) -> Option<&'static digest::Algorithm> {
    match Der(id.expect(SEQUENCE)?).expect(OID)? {
        SHA1 => Some(&digest::SHA1_FOR_LEGACY_USE_ONLY),
        SHA256 => Some(&digest::SHA256),
        _ => None,
    }
}

/// One SingleResponse.
struct Single<'a> {
    id: &'a [u8],
    state: State,
    from: i64,
    until: Option<i64>,
}

/// Signer of a response: `[1]` with a name, or `[2]` with the hash of a key.
type Responder<'a> = (u8, &'a [u8]);

/// A BasicOCSPResponse.
struct Basic<'a> {
    /// The whole structure, of which the signature covers a part.
    der: &'a [u8],
    responder: Responder<'a>,
    states: Vec<Single<'a>>,
    certificates: Vec<&'a [u8]>,
}

/// Returns `None` if there is an unknown critical extension.
fn harmless(extensions: &[u8]) -> Option<()> {
    let mut all = Der(Der(extensions).expect(SEQUENCE)?);
    while !all.is_empty() {
        harmless_extension(all.expect(SEQUENCE)?)?;
    }
    Some(())
}

fn harmless_extension(extension: &[u8]) -> Option<()> {
    let mut e = Der(extension);
    let oid = e.expect(OID)?;
    let critical = e.optional(BOOLEAN).is_some_and(|b| b != [0]);
    e.expect(OCTETS)?;
    // The request had no nonce, so one in the response has no meaning.
    (!critical || oid == NONCE).then_some(())
}

fn single(der: &[u8]) -> Option<Single<'_>> {
    let mut s = Der(der);
    let id = s.expect(SEQUENCE)?;
    let state = cert_status(&mut s)?;
    let from = s.time()?;
    let until = next_update(&mut s)?;
    s.optional(context(1)).map_or(Some(()), harmless)?;
    // Bytes that are left over mean that the structure is another one, and its state must not be trusted.
    s.is_empty().then_some(Single { id, state, from, until })
}

/// Reads `certStatus`.
fn cert_status(single: &mut Der<'_>) -> Option<State> {
    match single.next()? {
        // These are implicit tags: `[0]` and `[2]` stand for NULL, `[1]` for a sequence with the time (RFC
        // 6960, section 4.2.1).
        (0x80, []) => Some(State::Good),
        (0xa1, _) => Some(State::Revoked),
        (0x82, []) => Some(State::Unknown),
        _ => None,
    }
}

/// Reads `nextUpdate`, which may be missing.
fn next_update(single: &mut Der<'_>) -> Option<Option<i64>> {
    match single.optional(context(0)) {
        Some(time) => Der(time).time().map(Some),
        None => Some(None),
    }
}

impl<'a> Basic<'a> {
    fn parse(der: &'a [u8]) -> Option<Basic<'a>> {
        let mut all = Der(der);
        let mut outer = Der(all.expect(SEQUENCE)?);
        let data = outer.expect(SEQUENCE)?;
        skip_signature(&mut outer)?;
        let certificates = outer.optional(context(0)).map_or(Some(Vec::new()), certificates)?;
        let (responder, states) = response_data(data)?;
        (outer.is_empty() && all.is_empty()).then_some(Basic { der, responder, states, certificates })
    }
}

fn skip_signature(outer: &mut Der<'_>) -> Option<()> {
    outer.expect(SEQUENCE)?;
    outer.expect(BITS)?;
    Some(())
}

/// Reads ResponseData: the signer and the states.
fn response_data(data: &[u8]) -> Option<(Responder<'_>, Vec<Single<'_>>)> {
    let mut data = Der(data);
    if !data.optional(context(0)).is_none_or(is_version_1) {
        return None;
    }
    let responder = responder(&mut data)?;
    data.time()?;
    let states = states(&mut data)?;
    data.optional(context(1)).map_or(Some(()), harmless)?;
    data.is_empty().then_some((responder, states))
}

fn is_version_1(version: &[u8]) -> bool {
    Der(version).number() == Some(0)
}

/// Reads the certificates that come with a response.
fn certificates(list: &[u8]) -> Option<Vec<&[u8]>> {
    let mut all = Der(Der(list).expect(SEQUENCE)?);
    let mut certificates = Vec::new();
    while !all.is_empty() && certificates.len() < MAX_CERTIFICATES {
        certificates.push(all.whole(SEQUENCE)?);
    }
    Some(certificates)
}

/// Reads the signer.
fn responder<'a>(data: &mut Der<'a>) -> Option<Responder<'a>> {
    match data.next()? {
        (0xa1, name) => Some((1, name)),
        (0xa2, key) => Some((2, Der(key).expect(OCTETS)?)),
        _ => None,
    }
}

/// Reads the states of certificates.
fn states<'a>(data: &mut Der<'a>) -> Option<Vec<Single<'a>>> {
    let mut list = Der(data.expect(SEQUENCE)?);
    let mut states = Vec::new();
    while !list.is_empty() {
        if states.len() >= MAX_STATES {
            return None;
        }
        states.push(single(list.expect(SEQUENCE)?)?);
    }
    Some(states)
}

/// Returns `true` if a certificate is the signer that a response names.
fn is_responder(cert: &X509Certificate<'_>, responder: Responder<'_>) -> bool {
    match responder {
        (1, name) => canonical(cert.subject().as_raw()) == canonical(name),
        (_, hash) => digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, key_bits(cert)).as_ref() == hash,
    }
}

/// Returns `true` if the issuer has delegated signing to `cert` (RFC 6960, section 4.2.2.2).
fn is_delegate(cert: &X509Certificate<'_>, issuer: &X509Certificate<'_>, now: i64) -> bool {
    let usage = cert.extended_key_usage();
    let may = matches!(usage, Ok(Some(u)) if u.value.ocsp_signing);
    let signs = match cert.key_usage() {
        Ok(u) => u.is_none_or(|u| u.value.digital_signature() || u.value.non_repudiation()),
        Err(_) => false,
    };
    let in_time =
        cert.validity().not_before.timestamp() <= now && now <= cert.validity().not_after.timestamp();
    may && signs && in_time && has_issued(issuer, cert) && signed_by(cert.as_raw(), issuer.public_key())
}

fn failed(call: &str, code: &str, text: &str) -> String {
    format!("{call}() failed (SSL: error:{code}:{text})")
}

fn check_signature(b: &Basic<'_>, s: &Subject, signers: Signers<'_>, now: i64) -> Result<(), String> {
    let call = "OCSP_basic_verify";
    let untrusted = || {
        let text =
            "OCSP routines::certificate verify error:Verify error: nobody that is trusted has signed it";
        failed(call, "13800065", text)
    };
    let issuer = parse(&s.issuer).ok_or_else(untrusted)?;
    let mut named = false;
    let known = std::iter::once(&s.issuer).chain(signers.0).map(|c| (c.as_ref(), true));
    let sent = b.certificates.iter().map(|c| (*c, false));
    for (der, trusted) in known.chain(sent) {
        let Some(cert) = parse(der).filter(|c| is_responder(c, b.responder)) else { continue };
        named = true;
        if !trusted && !is_delegate(&cert, &issuer, now) {
            continue;
        }
        if signed_by(b.der, cert.public_key()) {
            return Ok(());
        }
        if trusted && b.certificates.is_empty() {
            return Err(failed(call, "13800075", "OCSP routines::signature failure"));
        }
    }
    if named {
        Err(untrusted())
    } else {
        Err(failed(call, "13800076", "OCSP routines::signer certificate not found"))
    }
}

/// Returns `true` if bytes are an OCSPResponse, whatever its contents.
pub fn is_response(der: &[u8]) -> bool {
    let mut r = Der(der);
    let Some(contents) = r.expect(SEQUENCE) else { return false };
    r.is_empty() && Der(contents).expect(ENUMERATED).is_some_and(|s| s.len() == 1)
}

fn malformed() -> String {
    failed("d2i_OCSP_RESPONSE", "0688010A", "asn1 encoding routines::nested asn1 error:Type=OCSP_RESPONSE")
}

/// Returns the BasicOCSPResponse in a successful response.
///
/// # Errors
/// In nginx's words.
fn basic(der: &[u8]) -> Result<&[u8], String> {
    let no_basic = || failed("OCSP_response_get1_basic", "1380007B", "OCSP routines::not basic response");
    let mut response = Der(Der(der).expect(SEQUENCE).ok_or_else(malformed)?);
    match response.expect(ENUMERATED) {
        Some([0]) => {}
        Some([n]) => return Err(format!("OCSP response not successful ({n}: {})", status_text(*n))),
        _ => return Err(malformed()),
    }
    let bytes = response.expect(context(0)).and_then(|b| Der(b).expect(SEQUENCE));
    let mut bytes = Der(bytes.ok_or_else(no_basic)?);
    if bytes.expect(OID) != Some(BASIC) {
        return Err(no_basic());
    }
    let basic = bytes.expect(OCTETS).ok_or_else(malformed)?;
    if bytes.is_empty() && response.is_empty() { Ok(basic) } else { Err(malformed()) }
}

/// Returns nginx's text of an OCSPResponseStatus (RFC 6960, section 4.2.1).
fn status_text(status: u8) -> &'static str {
    match status {
        1 => "malformedrequest",
        2 => "internalerror",
        3 => "trylater",
        5 => "sigrequired",
        6 => "unauthorized",
        _ => "(UNKNOWN)",
    }
}

/// Checks that a state is in force at a time.
fn check_times(found: &Single<'_>, now: i64) -> Result<(), String> {
    let validity =
        |code, text: &str| Err(failed("OCSP_check_validity", code, &format!("OCSP routines::{text}")));
    if found.from > now + SKEW {
        return validity("1380007E", "status not yet valid");
    }
    if found.until.unwrap_or(found.from + UNSAID) < now - SKEW {
        return validity("1380007D", "status expired");
    }
    if found.until.is_some_and(|t| t < found.from) {
        return validity("1380007A", "nextupdate before thisupdate");
    }
    Ok(())
}

/// Parses a response and checks that it is about this certificate, in force at `now` (seconds since 1970), and signed by
/// the issuer, its delegate, or one of `signers`.
///
/// # Errors
/// In nginx's words.
pub fn check(der: &[u8], s: &Subject, signers: Signers<'_>, now: i64) -> Result<Answer, String> {
    if der.len() > MAX_RESPONSE || !is_response(der) {
        return Err(malformed());
    }
    let b = Basic::parse(basic(der)?).ok_or_else(malformed)?;
    check_signature(&b, s, signers, now)?;
    let found = b.states.iter().find(|one| is_about(one.id, s));
    let found = found.ok_or("certificate status not found in the OCSP response")?;
    check_times(found, now)?;
    Ok(Answer { state: found.state, from: found.from, until: found.until })
}
