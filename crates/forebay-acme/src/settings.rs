//! Authorities and the certificates that are wanted from them.

use aws_lc_rs::hmac;
use forebay_net::resolver::Resolver;
use rustls::pki_types::CertificateDer;
use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use zeroize::Zeroizing;

/// Directory of Let's Encrypt.
pub const LETS_ENCRYPT: &str = "https://acme-v02.api.letsencrypt.org/directory";
/// Directory of Let's Encrypt for attempts, with high limits and certificates that no browser accepts.
const LETS_ENCRYPT_STAGING: &str = "https://acme-staging-v02.api.letsencrypt.org/directory";
/// Longest response of an authority, bytes, unless a directive says otherwise.
const MAX_RESPONSE: usize = 64 * 1024;

/// Kind of a key pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KeyKind {
    /// ECDSA over P-256.
    #[default]
    P256,
    /// ECDSA over P-384.
    P384,
    /// ECDSA over P-521.
    P521,
    /// RSA of 2048 bits.
    Rsa2048,
    /// RSA of 3072 bits.
    Rsa3072,
    /// RSA of 4096 bits.
    Rsa4096,
}

impl KeyKind {
    /// Reads `ecdsa[:256|384|521]` or `rsa[:2048|3072|4096]`.
    pub fn parse(text: &str) -> Option<KeyKind> {
        Some(match text {
            "ecdsa" | "ecdsa:256" => KeyKind::P256,
            "ecdsa:384" => KeyKind::P384,
            "ecdsa:521" => KeyKind::P521,
            "rsa" | "rsa:2048" => KeyKind::Rsa2048,
            "rsa:3072" => KeyKind::Rsa3072,
            "rsa:4096" => KeyKind::Rsa4096,
            _ => return None,
        })
    }

    /// Returns `true` for RSA, `false` for ECDSA.
    pub fn is_rsa(self) -> bool {
        matches!(self, KeyKind::Rsa2048 | KeyKind::Rsa3072 | KeyKind::Rsa4096)
    }

    /// Returns the text that [`KeyKind::parse`] reads.
    pub fn text(self) -> &'static str {
        match self {
            KeyKind::P256 => "ecdsa:256",
            KeyKind::P384 => "ecdsa:384",
            KeyKind::P521 => "ecdsa:521",
            KeyKind::Rsa2048 => "rsa:2048",
            KeyKind::Rsa3072 => "rsa:3072",
            KeyKind::Rsa4096 => "rsa:4096",
        }
    }
}

/// Way to prove control of a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Challenge {
    /// A text under `/.well-known/acme-challenge/` on port 80 (RFC 8555, section 8.3).
    #[default]
    Http01,
    /// A certificate in a handshake on port 443 (RFC 8737).
    TlsAlpn01,
    /// A TXT record of `_acme-challenge.NAME` (RFC 8555, section 8.4). Alone proves control of wildcard names.
    Dns01,
    /// HTTP-01 or TLS-ALPN-01, another one after each failure.
    Either,
}

impl Challenge {
    /// Reads the name of a challenge as an `acme_issuer` or an `acme_client` has it.
    pub fn parse(text: &str) -> Option<Challenge> {
        Some(match text {
            "http-01" | "http" => Challenge::Http01,
            "tls-alpn-01" | "tls-alpn" | "alpn" => Challenge::TlsAlpn01,
            "dns-01" | "dns" => Challenge::Dns01,
            _ => return None,
        })
    }

    /// Returns the challenge of the attempt after a number of failures in a row.
    pub(crate) fn of_attempt(self, failures: u32) -> Challenge {
        match self {
            Challenge::Either if failures.is_multiple_of(2) => Challenge::Http01,
            Challenge::Either => Challenge::TlsAlpn01,
            one => one,
        }
    }

    /// Returns the challenges of an authorization that meet this one, the preferred one first, by their types.
    pub(crate) fn types(self) -> &'static [(Challenge, &'static str)] {
        const HTTP: (Challenge, &str) = (Challenge::Http01, "http-01");
        const ALPN: (Challenge, &str) = (Challenge::TlsAlpn01, "tls-alpn-01");
        const DNS: (Challenge, &str) = (Challenge::Dns01, "dns-01");
        match self {
            Challenge::Http01 => &[HTTP],
            Challenge::TlsAlpn01 => &[ALPN],
            Challenge::Dns01 => &[DNS],
            Challenge::Either => &[HTTP, ALPN],
        }
    }
}

/// Means by which a proof gets to where the authority looks for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Publication {
    /// The server answers itself.
    #[default]
    Own,
    /// A request to a location publishes it (Angie: acme_hook).
    Hook,
    /// A program publishes the record of DNS-01.
    Program(Program),
}

/// Program that adds and removes records of DNS-01. It is called with `add` or `remove`, the name and the value of the record
/// after its own arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Path.
    pub path: PathBuf,
    /// Arguments before those of the call.
    pub arguments: Vec<OsString>,
    /// Time after which the authority finds the record.
    pub delay: Duration,
}

/// Time of another attempt after a failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Retry {
    /// Pauses that grow.
    #[default]
    Growing,
    /// So many seconds.
    After(i64),
    /// None before the next reload.
    Never,
}

/// Name or address in a certificate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Identifier {
    /// DNS name, in lower case.
    Dns(String),
    /// Address (RFC 8738).
    Ip(IpAddr),
}

impl Identifier {
    /// Reads a name or an address, in brackets or without. Returns `None` for a text that no certificate can have.
    pub fn parse(text: &str) -> Option<Identifier> {
        let text = text.trim_end_matches('.').to_ascii_lowercase();
        let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(&text);
        if let Ok(ip) = bare.parse() {
            return Some(Identifier::Ip(ip));
        }
        let sound = |label: &str| {
            !label.is_empty()
                && label.len() < 64
                && label.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
        };
        let name = text.strip_prefix("*.").unwrap_or(&text);
        (name.split('.').all(sound) && name.len() < 254).then_some(Identifier::Dns(text))
    }

    /// Returns `true` for a name that begins with a star.
    pub fn is_wildcard(&self) -> bool {
        matches!(self, Identifier::Dns(name) if name.starts_with("*."))
    }

    /// Returns the type in requests: `dns` or `ip`.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Identifier::Dns(_) => "dns",
            Identifier::Ip(_) => "ip",
        }
    }
}

impl std::fmt::Display for Identifier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Identifier::Dns(name) => f.write_str(name),
            Identifier::Ip(ip) => write!(f, "{ip}"),
        }
    }
}

/// Account at another system of the authority that an ACME account is bound to (RFC 8555, section 7.3.4).
#[derive(Clone)]
pub struct ExternalAccount {
    /// Identifier of the key.
    pub id: String,
    /// Algorithm of the binding's signature.
    pub algorithm: MacAlgorithm,
    /// Key for that.
    pub key: Zeroizing<Vec<u8>>,
}

/// Algorithm that an external account is bound with (RFC 7518, section 3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MacAlgorithm {
    /// HMAC with SHA-256.
    #[default]
    Hs256,
    /// HMAC with SHA-384.
    Hs384,
    /// HMAC with SHA-512.
    Hs512,
}

impl MacAlgorithm {
    /// Finds an algorithm by its name, in which case does not count.
    pub fn parse(text: &str) -> Option<MacAlgorithm> {
        let all = [MacAlgorithm::Hs256, MacAlgorithm::Hs384, MacAlgorithm::Hs512];
        all.into_iter().find(|a| a.text().eq_ignore_ascii_case(text))
    }

    /// Returns the name.
    pub(crate) fn text(self) -> &'static str {
        match self {
            MacAlgorithm::Hs256 => "HS256",
            MacAlgorithm::Hs384 => "HS384",
            MacAlgorithm::Hs512 => "HS512",
        }
    }

    /// Returns the function.
    pub(crate) fn function(self) -> hmac::Algorithm {
        match self {
            MacAlgorithm::Hs256 => hmac::HMAC_SHA256,
            MacAlgorithm::Hs384 => hmac::HMAC_SHA384,
            MacAlgorithm::Hs512 => hmac::HMAC_SHA512,
        }
    }
}

impl std::fmt::Debug for ExternalAccount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ExternalAccount").field("id", &self.id).finish_non_exhaustive()
    }
}

/// Kind of certificate that the authority offers by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    /// Its name.
    pub name: String,
    /// Fails if the authority does not offer it.
    pub required: bool,
}

/// Time at which a certificate is renewed, unless the authority suggests one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RenewalRule {
    /// After two thirds of the lifetime; after half of one below ten days.
    #[default]
    Lifetime,
    /// So many seconds before the end.
    Before(i64),
}

/// An authority, with the account there.
#[derive(Clone, Debug)]
pub struct Issuer {
    /// Name in the configuration.
    pub name: String,
    /// URL of the directory.
    pub uri: String,
    /// URLs at which the authority reaches the owner of the account.
    pub contacts: Vec<String>,
    /// Kind of the account's key, if it has to be made.
    pub account_kind: KeyKind,
    /// PEM text of the account's key, if it is given.
    pub account_key: Option<Zeroizing<Vec<u8>>>,
    /// External account.
    pub external: Option<ExternalAccount>,
    /// The terms of service are accepted.
    pub terms_accepted: bool,
    /// Challenge.
    pub challenge: Challenge,
    /// Publication of proofs.
    pub publication: Publication,
    /// Certificates are asked for. Otherwise those that are there are used.
    pub enabled: bool,
    /// URL of another directory of the authority, for attempts whose certificates are not used.
    pub staging: Option<String>,
    /// Time of another attempt after a failure.
    pub retry: Retry,
    /// Each start and each reload renews the certificates.
    pub renew_on_load: bool,
    /// Longest response, bytes.
    pub max_response: usize,
    /// Longest chain of a certificate, bytes.
    pub max_chain: Option<usize>,
    /// Profile.
    pub profile: Option<Profile>,
    /// Common name of the issuer at the top of the preferred chain.
    pub preferred_chain: Option<String>,
    /// Requests for certificates have the first name as common name.
    pub common_name: bool,
    /// The authority's own certificate is verified.
    pub verify: bool,
    /// Roots that verify it, in place of those of the system.
    pub roots: Option<Vec<CertificateDer<'static>>>,
    /// Resolver for its name, in place of that of the system.
    pub resolver: Option<Arc<Resolver>>,
    /// Directory of keys and certificates; `None` keeps them in memory only.
    pub state_path: Option<PathBuf>,
    /// Time of renewals.
    pub renewal: RenewalRule,
}

impl Issuer {
    /// Creates an issuer with defaults for everything but its name and directory.
    pub fn new(name: &str, uri: &str) -> Issuer {
        Issuer {
            name: name.to_owned(),
            uri: uri.to_owned(),
            contacts: Vec::new(),
            account_kind: KeyKind::default(),
            account_key: None,
            external: None,
            terms_accepted: false,
            challenge: Challenge::default(),
            publication: Publication::default(),
            enabled: true,
            staging: None,
            retry: Retry::default(),
            renew_on_load: false,
            max_response: MAX_RESPONSE,
            max_chain: None,
            profile: None,
            preferred_chain: None,
            common_name: false,
            verify: true,
            roots: None,
            resolver: None,
            state_path: None,
            renewal: RenewalRule::default(),
        }
    }

    /// Returns `true` if the server answers questions about the records of DNS-01 itself.
    pub fn answers_dns(&self) -> bool {
        self.challenge == Challenge::Dns01 && self.publication == Publication::Own
    }

    /// Returns `true` if the server answers requests of HTTP-01 itself.
    pub fn answers_http(&self) -> bool {
        self.enabled && self.challenge == Challenge::Http01 && self.publication == Publication::Own
    }

    /// Returns the directory for attempts, if the authority has one.
    pub(crate) fn staging_uri(&self) -> Option<&str> {
        let known = (self.uri == LETS_ENCRYPT).then_some(LETS_ENCRYPT_STAGING);
        self.staging.as_deref().or(known)
    }

    /// Returns `true` if the limits of Let's Encrypt hold.
    pub fn is_lets_encrypt(&self) -> bool {
        self.uri.contains(".letsencrypt.org/")
    }
}

/// A certificate that is wanted.
#[derive(Clone, Debug)]
pub struct Order {
    /// Authority.
    pub issuer: Arc<Issuer>,
    /// Names and addresses. Not empty.
    pub identifiers: Vec<Identifier>,
    /// Kind of its key.
    pub key: KeyKind,
}

impl Order {
    /// Returns the identifiers with commas between them, for messages.
    pub fn names(&self) -> String {
        let names: Vec<String> = self.identifiers.iter().map(Identifier::to_string).collect();
        names.join(",")
    }

    /// Returns the name of its files, without extension: the first name, and a hash of all names, the kind of key and the
    /// directory, since a certificate of another authority is another one.
    pub fn file(&self) -> String {
        self.file_of(&format!(" {}", self.issuer.uri))
    }

    /// Returns the name that its files had before the directory was part of it.
    pub(crate) fn former_file(&self) -> String {
        self.file_of("")
    }

    fn file_of(&self, directory: &str) -> String {
        let mut names: Vec<String> = self.identifiers.iter().map(Identifier::to_string).collect();
        names.sort();
        let text = format!("{} {}{directory}", names.join(","), self.key.text());
        let hash = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, text.as_bytes());
        let hex: String = hash.as_ref().iter().take(8).map(|b| format!("{b:02x}")).collect();
        let first = self.identifiers.first().map(Identifier::to_string).unwrap_or_default();
        format!("{}-{hex}", first.replace(['*', ':', '/'], "_"))
    }

    /// Returns the text that tells the certificate from all others of the process.
    pub(crate) fn id(&self) -> String {
        let state = self.issuer.state_path.as_ref().map(|p| p.display().to_string()).unwrap_or_default();
        format!("{} {} {state} {}", self.issuer.name, self.issuer.uri, self.file())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(names: &[&str], key: KeyKind) -> Order {
        let identifiers = names.iter().map(|n| Identifier::parse(n).expect("a name")).collect();
        Order { issuer: Arc::new(Issuer::new("a", "https://b/")), identifiers, key }
    }

    #[test]
    fn identifiers_are_names_or_addresses() {
        let shown = |text: &str| Identifier::parse(text).map(|i| (i.kind(), i.to_string()));
        assert_eq!(shown("WWW.Example.org."), Some(("dns", "www.example.org".into())));
        assert_eq!(shown("*.example.org"), Some(("dns", "*.example.org".into())));
        assert_eq!(shown("[2001:DB8::1]"), Some(("ip", "2001:db8::1".into())));
        assert_eq!(shown("192.0.2.1"), Some(("ip", "192.0.2.1".into())));
        for bad in ["", "a..b", "a b", "www.*", "~x", &"x".repeat(64)] {
            assert_eq!(shown(bad), None, "{bad}");
        }
    }

    #[test]
    fn files_depend_on_names_and_key_but_not_on_the_order() {
        let file = |names: &[&str], key| order(names, key).file();
        let ab = file(&["a.org", "b.org"], KeyKind::P256);
        assert!(ab.starts_with("a.org-"), "{ab}");
        assert_eq!(ab.get(5..), file(&["b.org", "a.org"], KeyKind::P256).get(5..));
        assert_ne!(ab, file(&["a.org", "b.org"], KeyKind::Rsa2048));
        assert_ne!(ab, file(&["a.org"], KeyKind::P256));
        assert!(file(&["*.a.org"], KeyKind::P256).starts_with("_.a.org-"));
        let mut other = order(&["a.org", "b.org"], KeyKind::P256);
        other.issuer = Arc::new(Issuer::new("a", "https://c/"));
        assert_ne!(ab, other.file());
        assert_eq!(order(&["a.org", "b.org"], KeyKind::P256).former_file(), other.former_file());
    }

    #[test]
    fn kinds_of_keys_have_names() {
        for kind in ["ecdsa:256", "ecdsa:384", "ecdsa:521", "rsa:2048", "rsa:3072", "rsa:4096"] {
            assert_eq!(KeyKind::parse(kind).map(KeyKind::text), Some(kind));
        }
        assert_eq!(KeyKind::parse("ecdsa"), Some(KeyKind::P256));
        assert_eq!(KeyKind::parse("rsa:1024"), None);
    }
}
