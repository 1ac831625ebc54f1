//! Requests for certificates (RFC 2986), certificates that the server makes itself, and what is read of others (RFC 5280).

use crate::key::{BITS, INTEGER, Key, OID, SEQUENCE, base64url, integer};
use crate::settings::Identifier;
use aws_lc_rs::digest::{SHA256, digest};
use forebay_net::tls::der::element;
use forebay_net::tls::verify;
use std::net::IpAddr;
use x509_parser::extensions::ParsedExtension;
use x509_parser::prelude::{FromDer, X509Certificate};

/// Tag of a BOOLEAN.
const BOOLEAN: u8 = 1;
/// Tag of an OCTET STRING.
const OCTETS: u8 = 4;
/// Tag of a UTF8String.
const UTF8: u8 = 0x0c;
/// Tag of a UTCTime.
const UTC_TIME: u8 = 0x17;
/// Tag of a GeneralizedTime.
const TIME: u8 = 0x18;
/// Tag of a SET.
const SET: u8 = 0x31;
/// Tag of the element with number 0 of a choice or sequence, constructed; others follow.
const CONTEXT: u8 = 0xa0;
/// Tag of a `dNSName`.
const DNS_NAME: u8 = 0x82;
/// Tag of an `iPAddress`.
const IP_ADDRESS: u8 = 0x87;

/// commonName.
const COMMON_NAME: &[u8] = &[0x55, 4, 3];
/// subjectAltName.
const ALTERNATIVE_NAMES: &[u8] = &[0x55, 0x1d, 0x11];
/// basicConstraints.
const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x13];
/// keyUsage.
const KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x0f];
/// subjectKeyIdentifier.
const SUBJECT_KEY_ID: &[u8] = &[0x55, 0x1d, 0x0e];
/// authorityKeyIdentifier.
const AUTHORITY_KEY_ID: &[u8] = &[0x55, 0x1d, 0x23];
/// nameConstraints.
const NAME_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 0x1e];
/// extKeyUsage.
const EXTENDED_KEY_USAGE: &[u8] = &[0x55, 0x1d, 0x25];
/// id-kp-serverAuth.
const SERVER_AUTH: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 3, 1];
/// extensionRequest (RFC 2985, section 5.4.2).
const EXTENSION_REQUEST: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9, 0x0e];
/// id-pe-acmeIdentifier (RFC 8737, section 6.1).
const ACME_IDENTIFIER: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 1, 0x1f];

fn oid(bytes: &[u8]) -> Vec<u8> {
    element(OID, &[bytes])
}

/// Returns a name with at most a common name.
fn name(common: Option<&str>) -> Vec<u8> {
    let Some(common) = common else { return element(SEQUENCE, &[]) };
    let pair = element(SEQUENCE, &[&oid(COMMON_NAME), &element(UTF8, &[common.as_bytes()])]);
    element(SEQUENCE, &[&element(SET, &[&pair])])
}

fn alternative_names(identifiers: &[Identifier]) -> Vec<u8> {
    let names: Vec<Vec<u8>> = (identifiers.iter())
        .map(|identifier| match identifier {
            Identifier::Dns(name) => element(DNS_NAME, &[name.as_bytes()]),
            Identifier::Ip(IpAddr::V4(ip)) => element(IP_ADDRESS, &[&ip.octets()]),
            Identifier::Ip(IpAddr::V6(ip)) => element(IP_ADDRESS, &[&ip.octets()]),
        })
        .collect();
    let list = element(SEQUENCE, &[&names.concat()]);
    element(SEQUENCE, &[&oid(ALTERNATIVE_NAMES), &element(OCTETS, &[&list])])
}

/// Makes a request for a certificate. `common`: its common name.
///
/// # Errors
/// If it cannot be signed.
pub(crate) fn request(
    key: &Key,
    identifiers: &[Identifier],
    common: Option<&str>,
) -> Result<Vec<u8>, String> {
    let extensions = element(SEQUENCE, &[&alternative_names(identifiers)]);
    let attribute = element(SEQUENCE, &[&oid(EXTENSION_REQUEST), &element(SET, &[&extensions])]);
    let version = element(INTEGER, &[&[0]]);
    let parts = [version, name(common), key.public(), element(CONTEXT, &[&attribute])];
    key.sign_der(&element(SEQUENCE, &[&parts.concat()]))
}

/// Makes a certificate that is signed by its own key and valid for a year around `now`.
///
/// # Errors
/// If it cannot be signed.
pub(crate) fn self_signed(key: &Key, extensions: &[u8], common: &str, now: i64) -> Result<Vec<u8>, String> {
    let subject =
        Subject { common, public: key.public(), extensions, validity: (now - DAY, now + 365 * DAY) };
    signed(&subject, common, key)
}

/// Seconds of a day.
pub(crate) const DAY: i64 = 24 * 3600;

/// Content of a certificate that the server makes.
pub(crate) struct Subject<'a> {
    /// Common name.
    pub(crate) common: &'a str,
    /// Public key, SubjectPublicKeyInfo.
    pub(crate) public: Vec<u8>,
    /// Encoded extensions, one after the other.
    pub(crate) extensions: &'a [u8],
    /// First and last second, since 1970.
    pub(crate) validity: (i64, i64),
}

/// Makes a certificate. `issuer`: common name of the certificate of `key`, which signs it.
///
/// # Errors
/// If it cannot be signed.
pub(crate) fn signed(subject: &Subject<'_>, issuer: &str, key: &Key) -> Result<Vec<u8>, String> {
    let (from, until) = subject.validity;
    let mut parts = vec![
        element(CONTEXT, &[&element(INTEGER, &[&[2]])]),
        integer(&forebay_sys::random::random_u64().to_be_bytes()),
        key.signature_algorithm(),
        name(Some(issuer)),
        element(SEQUENCE, &[&time(from), &time(until)]),
        name(Some(subject.common)),
        subject.public.clone(),
    ];
    if !subject.extensions.is_empty() {
        parts.push(element(CONTEXT + 3, &[&element(SEQUENCE, &[subject.extensions])]));
    }
    key.sign_der(&element(SEQUENCE, &[&parts.concat()]))
}

/// Returns the extensions of the certificate of an authority that signs those of servers (RFC 5280, section 4.2.1). It may do so for
/// `domains` and the names below them, and for addresses in `networks` (an address and its mask): a stolen key is of no use for others.
pub(crate) fn authority_extensions(public: &[u8], domains: &[&str], networks: &[Vec<u8>]) -> Vec<u8> {
    let subtree = |tag: u8, value: &[u8]| element(SEQUENCE, &[&element(tag, &[value])]);
    let mut permitted: Vec<u8> = domains.iter().flat_map(|d| subtree(DNS_NAME, d.as_bytes())).collect();
    permitted.extend(networks.iter().flat_map(|n| subtree(IP_ADDRESS, n)));
    let constraints = element(SEQUENCE, &[&element(CONTEXT, &[&permitted])]);
    // The authority has none below it.
    let basic = element(SEQUENCE, &[&element(BOOLEAN, &[&[0xff]]), &element(INTEGER, &[&[0]])]);
    // keyCertSign and cRLSign.
    let usage = element(BITS, &[&[1, 0x06]]);
    let key_id = element(OCTETS, &[&key_id(public)]);
    // A store may trust its roots for mail and programs, too.
    let server = element(SEQUENCE, &[&oid(SERVER_AUTH)]);
    [
        extension(BASIC_CONSTRAINTS, true, &basic),
        extension(KEY_USAGE, true, &usage),
        extension(SUBJECT_KEY_ID, false, &key_id),
        extension(EXTENDED_KEY_USAGE, false, &server),
        extension(NAME_CONSTRAINTS, true, &constraints),
    ]
    .concat()
}

/// Returns the extensions of the certificate of a server. `issuer`: public key of the authority.
pub(crate) fn server_extensions(identifiers: &[Identifier], issuer: &[u8]) -> Vec<u8> {
    // The element with number 0, primitive.
    let authority = element(SEQUENCE, &[&element(0x80, &[&key_id(issuer)])]);
    // digitalSignature.
    let usage = element(BITS, &[&[7, 0x80]]);
    let server = element(SEQUENCE, &[&oid(SERVER_AUTH)]);
    [
        alternative_names(identifiers),
        extension(KEY_USAGE, true, &usage),
        extension(EXTENDED_KEY_USAGE, false, &server),
        extension(AUTHORITY_KEY_ID, false, &authority),
    ]
    .concat()
}

fn extension(id: &[u8], critical: bool, value: &[u8]) -> Vec<u8> {
    let critical = if critical { element(BOOLEAN, &[&[0xff]]) } else { Vec::new() };
    element(SEQUENCE, &[&oid(id), &critical, &element(OCTETS, &[value])])
}

/// Returns the identifier of a public key (RFC 7093, section 2, method 4).
fn key_id(public: &[u8]) -> Vec<u8> {
    let hash = digest(&SHA256, public);
    hash.as_ref().get(..20).unwrap_or_default().to_vec()
}

/// Returns the extensions of the certificate that proves control by TLS-ALPN-01 (RFC 8737, section 3). `digest`: SHA-256 of the key
/// authorization.
pub(crate) fn proof_extensions(identifier: &Identifier, digest: &[u8]) -> Vec<u8> {
    let critical = element(BOOLEAN, &[&[0xff]]);
    let value = element(OCTETS, &[&element(OCTETS, &[digest])]);
    let proof = element(SEQUENCE, &[&oid(ACME_IDENTIFIER), &critical, &value]);
    [alternative_names(std::slice::from_ref(identifier)), proof].concat()
}

/// Returns the identifier of a public key as renewal identifiers have it ([`Leaf::renewal_id`]).
pub(crate) fn key_id_text(public: &[u8]) -> String {
    base64url(&key_id(public))
}

/// Encodes a time (RFC 5280, section 4.1.2.5).
fn time(seconds: i64) -> Vec<u8> {
    let Ok(at) = jiff::Timestamp::from_second(seconds) else { return element(TIME, &[b"99991231235959Z"]) };
    let text = at.strftime("%Y%m%d%H%M%SZ").to_string();
    match text.strip_prefix("20").filter(|rest| *rest < "5") {
        Some(rest) => element(UTC_TIME, &[rest.as_bytes()]),
        None => element(TIME, &[text.as_bytes()]),
    }
}

/// Fields of an issued certificate that its renewal depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leaf {
    /// Time from which it is valid, seconds since 1970.
    pub(crate) from: i64,
    /// Time at which it expires.
    pub(crate) until: i64,
    /// Name for renewal information (RFC 9773, section 4.1), if it has one.
    pub(crate) renewal_id: Option<String>,
}

/// Reads a certificate. Returns `None` if it is not one.
pub(crate) fn leaf(der: &[u8]) -> Option<Leaf> {
    let (_, cert) = X509Certificate::from_der(der).ok()?;
    let issuer = cert.extensions().iter().find_map(|e| match e.parsed_extension() {
        ParsedExtension::AuthorityKeyIdentifier(id) => id.key_identifier.as_ref().map(|id| id.0),
        _ => None,
    });
    let renewal_id = issuer.map(|id| format!("{}.{}", base64url(id), base64url(cert.raw_serial())));
    let validity = cert.validity();
    Some(Leaf { from: validity.not_before.timestamp(), until: validity.not_after.timestamp(), renewal_id })
}

/// Returns `true` if a certificate is for all identifiers.
pub(crate) fn covers(der: &[u8], identifiers: &[Identifier]) -> bool {
    identifiers.iter().all(|i| match i {
        // A wildcard name matches itself only as written.
        Identifier::Dns(name) if i.is_wildcard() => has_name(der, name),
        other => verify::is_for_host(der, &other.to_string()),
    })
}

fn has_name(der: &[u8], wanted: &str) -> bool {
    use x509_parser::extensions::GeneralName;
    let Ok((_, cert)) = X509Certificate::from_der(der) else { return false };
    let Ok(Some(names)) = cert.subject_alternative_name() else { return false };
    names
        .value
        .general_names
        .iter()
        .any(|n| matches!(n, GeneralName::DNSName(n) if n.eq_ignore_ascii_case(wanted)))
}

/// Returns the common name of the issuer of a certificate.
pub(crate) fn issuer_name(der: &[u8]) -> Option<String> {
    let (_, cert) = X509Certificate::from_der(der).ok()?;
    cert.issuer().iter_common_name().find_map(|n| n.as_str().ok().map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::KeyKind;
    use x509_parser::certification_request::X509CertificationRequest;

    fn names() -> Vec<Identifier> {
        ["a.example", "*.b.example", "192.0.2.1", "2001:db8::1"]
            .iter()
            .filter_map(|n| Identifier::parse(n))
            .collect()
    }

    #[test]
    fn requests_are_signed_and_name_everything() {
        for kind in [KeyKind::P256, KeyKind::P384, KeyKind::Rsa2048] {
            let key = Key::generate(kind).expect("a key");
            let der = request(&key, &names(), Some("a.example")).expect("a request");
            let (rest, parsed) = X509CertificationRequest::from_der(&der).expect("a request");
            assert!(rest.is_empty());
            assert_eq!(parsed.certification_request_info.subject.to_string(), "CN=a.example");
            let shown = format!("{:?}", parsed.requested_extensions().map(|e| e.collect::<Vec<_>>()));
            assert!(shown.contains("a.example") && shown.contains("*.b.example"), "{shown}");
        }
    }

    #[test]
    fn a_certificate_of_its_own_can_be_read() {
        let key = Key::generate(KeyKind::P256).expect("a key");
        let now = 1_800_000_000;
        let extensions = alternative_names(&names());
        let der = self_signed(&key, &extensions, "here", now).expect("a certificate");
        let read = leaf(&der).expect("a certificate");
        assert_eq!((read.from, read.until), (now - 86_400, now + 365 * 86_400));
        assert_eq!(read.renewal_id, None);
        assert!(covers(&der, &names()));
        assert!(!covers(&der, &[Identifier::Dns("c.example".into())]));
        assert!(!covers(&der, &[Identifier::Dns("*.a.example".into())]));
        assert_eq!(issuer_name(&der).as_deref(), Some("here"));
        assert_eq!(verify::public_key(&der), Some(key.public()));
    }

    #[test]
    fn proofs_have_a_critical_extension() {
        let key = Key::generate(KeyKind::P256).expect("a key");
        let id = Identifier::Dns("a.example".into());
        let der = self_signed(&key, &proof_extensions(&id, &[7; 32]), "proof", 1_800_000_000).expect("made");
        let (_, cert) = X509Certificate::from_der(&der).expect("a certificate");
        let proof = cert.extensions().iter().find(|e| e.oid.to_id_string() == "1.3.6.1.5.5.7.1.31");
        let proof = proof.expect("the extension");
        assert!(proof.critical);
        assert_eq!(proof.value, [[4, 32].as_slice(), &[7; 32]].concat());
    }

    #[test]
    fn times_change_their_form_in_2050() {
        assert_eq!(time(1_800_000_000).first(), Some(&UTC_TIME));
        assert_eq!(time(2_600_000_000).first(), Some(&TIME));
    }
}
