//! Builds the TLS settings of servers while a configuration is read.

use super::certified::{read_file, shown, text_of, without_store};
use super::demands::{self, Demands};
use super::files::FileName;
use super::identity::{Held, identity};
pub use super::issued::Issued;
use super::ocsp::client::Check;
use super::ocsp::responder::{NameLookup, Responder};
use super::ocsp::staple::Stapling;
use super::presented::{Loaded, Presented};
use super::server::{Application, ServerTls, VirtualTls, same_kind};
use super::server_config::{basis, by_cost, classical, config, context, provider};
use super::settings::{Ocsp, Settings, VerifyClient};
use crate::config::Build;
use crate::shared_store::seal;
use forebay_conf::error::{Error, Level};
use forebay_conf::files::Reads;
use forebay_net::resolver::Resolver;
use forebay_net::tls::certified::certified;
use forebay_net::tls::ciphers;
use forebay_net::tls::ocsp_message::Subject;
use forebay_net::tls::pem;
use forebay_net::tls::verify::{self, Trust};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::sign::CertifiedKey;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use zeroize::Zeroizing;

/// Source of the TLS settings of a server.
#[derive(Clone, Debug)]
pub struct ServerInput<'s> {
    /// Directives in effect at the server.
    pub settings: &'s Settings,
    /// Settings that depend on the front end.
    pub application: Application,
    /// Resolver for the names of OCSP responders (nginx: resolver).
    pub resolver: Option<&'s Arc<Resolver>>,
    /// Certificates that the server gets and renews itself.
    pub issued: Vec<Issued>,
}

/// Returns `true` if the values of `ssl_certificate` and `ssl_certificate_key` name a certificate.
fn is_named(issued: &Issued, cert: &FileName, key: &FileName) -> bool {
    let is = |name: &FileName, variable: &str| {
        name.text.strip_prefix(b"$").is_some_and(|n| {
            n == variable.as_bytes()
                || n.strip_prefix(b"{").and_then(|n| n.strip_suffix(b"}")) == Some(variable.as_bytes())
        })
    };
    issued.variables.as_ref().is_some_and(|(c, k)| is(cert, c) && is(key, k))
}

/// A certificate with its key, and the files that they were read from.
type LoadedKey = (Arc<CertifiedKey>, Reads);

/// Loader of certificates for the servers of one configuration. Loads each only once.
#[derive(Default)]
pub struct Loader {
    keys: HashMap<(Vec<u8>, Vec<u8>), LoadedKey>,
    /// Files read so far.
    pub paths: Vec<std::path::PathBuf>,
    /// The same as a set.
    known_paths: HashSet<std::path::PathBuf>,
    /// Certificates whose OCSP responses are to be stapled.
    pub staplings: Vec<Stapling>,
    /// TLS settings built so far, by [`identity`].
    made: HashMap<String, Arc<ServerTls>>,
    /// Providers, by suites and groups.
    providers: HashMap<Vec<u16>, Arc<CryptoProvider>>,
    /// Authorities with revocation lists, by the addresses of these lists and the depth.
    trusts: HashMap<(usize, usize, usize, u64), Arc<Trust>>,
    /// Values that the keys of `made` and `trusts` name by address.
    held: Held,
}

impl Loader {
    /// Adds the certificate with index `at` to [`Loader::staplings`] (nginx: ssl_stapling). Adds a warning if that is impossible.
    fn staple(
        &mut self,
        server: &ServerInput<'_>,
        name: &FileName,
        at: usize,
        presented: &Arc<Presented>,
        cx: &mut Build<'_>,
    ) {
        let s = server.settings;
        let Some(key) = presented.get(at) else { return };
        let Some(cert) = key.cert.first() else { return };
        let file = shown(&name.text, &cx.conf_path(&name.text));
        let trusted = [s.client_certificate.0.as_slice(), s.trusted_certificate.0.as_slice()].concat();
        let chain = key.cert.get(1..).unwrap_or_default();
        let (issuer, responder) = match status_source(s, cert, &[chain, &trusted].concat(), &file) {
            Ok(source) => source,
            Err(text) => return warn_once(cx, &format!("\"ssl_stapling\" ignored, {text}")),
        };
        let verified = s.stapling_verify;
        let trust = || Trust::new(trusted.clone(), Vec::new(), Vec::new(), MAX_DEPTH);
        self.add_stapling(Stapling {
            subject: Subject { cert: cert.clone(), issuer },
            chain: chain.to_vec(),
            signers: if verified { Vec::new() } else { [chain, &trusted].concat() },
            trust: verified.then(|| Arc::new(trust())),
            responder,
            names: server.resolver.map_or(NameLookup::System, |r| NameLookup::Resolver(Some(r.clone()))),
            file,
            slots: vec![(presented.clone(), at)],
        });
    }

    /// Adds a stapling, or its certificates to one that is the same otherwise.
    fn add_stapling(&mut self, stapling: Stapling) {
        let wanted = stapling.key();
        match self.staplings.iter_mut().find(|other| other.key() == wanted) {
            Some(same) => same.slots.extend(stapling.slots),
            None => self.staplings.push(stapling),
        }
    }

    /// Loads a certificate with its key.
    ///
    /// # Errors
    /// In nginx's words.
    pub(super) fn load(
        &mut self,
        cert: &FileName,
        key: &FileName,
        passwords: &[Zeroizing<Vec<u8>>],
        cx: &mut Build<'_>,
    ) -> Result<Arc<CertifiedKey>, Error> {
        let names = (cert.text.clone(), key.text.clone());
        if let Some((key, reads)) = self.keys.get(&names) {
            cx.files.note_reads(reads.clone());
            return Ok(key.clone());
        }
        let key_text = without_store(&key.text);
        if key_text.starts_with(b"engine:") || key_text.starts_with(b"store:") {
            let text = String::from_utf8_lossy(&key.text).into_owned();
            return Err(
                key.error(format!("cannot load certificate key \"{text}\": no engine or provider is linked"))
            );
        }
        let outer = cx.files.exchange_reads(Reads::default());
        let cert_pem = self.pem(&cert.text, "certificate", cx).map_err(|m| cert.error(m));
        let key_pem = self.pem(key_text, "certificate key", cx).map_err(|m| key.error(m));
        let reads = cx.files.exchange_reads(outer);
        cx.files.note_reads(reads.clone());
        let (cert_pem, key_pem) = (cert_pem?, key_pem?);
        let made = certified((&cert_pem.shown, &cert_pem.text), (&key_pem.shown, &key_pem.text), passwords);
        let made = Arc::new(made.map_err(|m| {
            let of_key = m.contains("certificate key") || m.contains("PrivateKey");
            if of_key { key.error(m) } else { cert.error(m) }
        })?);
        if let Ok(der) = pem::private_key(&key_pem.text, passwords) {
            seal::remember(der.secret_der());
        }
        self.keys.insert(names, (made.clone(), reads));
        Ok(made)
    }

    /// Counts files of certificates of a former configuration as read.
    pub fn read_again(&mut self, paths: &[std::path::PathBuf]) {
        for path in paths {
            if self.known_paths.insert(path.clone()) {
                self.paths.push(path.clone());
            }
        }
    }

    /// Reads a certificate or key and adds its file to [`Loader::paths`]. `what` names it in the error.
    fn pem(&mut self, name: &[u8], what: &str, cx: &mut Build<'_>) -> Result<Pem, String> {
        let text = text_of(name, |n| read_file(n, what, cx))?;
        let path = cx.conf_path(name);
        let shown = shown(name, &path);
        if !name.starts_with(b"data:") && self.known_paths.insert(path.clone()) {
            self.paths.push(path);
        }
        Ok(Pem { shown, text })
    }

    /// Loads the certificates of a server.
    fn certificates<'s>(
        &mut self,
        server: &ServerInput<'s>,
        cx: &mut Build<'_>,
    ) -> Result<Certificates<'s>, Error> {
        let s = server.settings;
        let mut made = Certificates::default();
        made.issued.extend(server.issued.iter().filter(|i| i.variables.is_none()).cloned());
        for (cert, key) in named(s) {
            let Some(key) = key else {
                let text = String::from_utf8_lossy(&cert.text).into_owned();
                return Err(
                    cert.error(format!("no \"ssl_certificate_key\" is defined for certificate \"{text}\""))
                );
            };
            // Variables may name several certificates, with keys of different kinds.
            let before = made.issued.len();
            made.issued.extend(server.issued.iter().filter(|i| is_named(i, cert, key)).cloned());
            if made.issued.len() > before {
                continue;
            }
            if is_fixed(cert, key) {
                made.add(cert, self.load(cert, key, &s.password_file.0, cx)?);
            } else {
                made.dynamic.push((cert.clone(), key.clone()));
            }
        }
        Ok(made)
    }

    /// Builds the TLS settings of a server. It makes handshakes if it has certificates or rejects handshakes.
    ///
    /// # Errors
    /// In nginx's words.
    pub fn server(&mut self, server: &ServerInput<'_>, cx: &mut Build<'_>) -> Result<VirtualTls, Error> {
        let s = server.settings;
        let implied = server.issued.iter().any(|i| i.variables.is_none());
        if s.certificate.0.is_empty() && !s.reject_handshake && !implied {
            return Ok(VirtualTls { demands: self.demands_alone(s), handshakes: None });
        }
        let tls = self.handshakes(server, cx)?;
        Ok(VirtualTls { demands: Demands::new(s, tls.basis()), handshakes: Some(tls) })
    }

    /// Returns the demands of a server without handshakes of its own. As in nginx it need not name authorities.
    fn demands_alone(&mut self, s: &Settings) -> Demands {
        let judges = s.verify_client != VerifyClient::Off && demands::say_how(s);
        let basis = judges.then(|| basis(s, &self.authorities(s)));
        Demands::new(s, basis)
    }

    /// Builds the handshakes of a server, or finds those of one with the same settings.
    fn handshakes(&mut self, server: &ServerInput<'_>, cx: &mut Build<'_>) -> Result<Arc<ServerTls>, Error> {
        let certificates = self.certificates(server, cx)?;
        let identity = identity(server, &certificates, &mut self.held);
        if let Some(same) = self.made.get(&identity) {
            return Ok(same.clone());
        }
        let tls = Arc::new(self.build(server, certificates, cx)?);
        self.made.insert(identity, tls.clone());
        Ok(tls)
    }

    /// Builds the TLS settings of a server from its certificates.
    fn build(
        &mut self,
        server: &ServerInput<'_>,
        certificates: Certificates<'_>,
        cx: &mut Build<'_>,
    ) -> Result<ServerTls, Error> {
        let s = server.settings;
        let trust = self.trust(s)?;
        let basis = trust.as_ref().map(|t| basis(s, t));
        let context = context(server, &certificates, basis);
        let Certificates { names, keys, issued, dynamic } = certificates;
        let mut presented = Presented::fixed(stapled_from_file(s, keys));
        // After the others: those with an OCSP response are found by their index.
        presented.0.extend(issued.into_iter().map(|i| i.slot));
        let presented = Arc::new(presented);
        if s.stapling && s.stapling_file.0.is_empty() {
            for (at, name) in names.into_iter().enumerate() {
                self.staple(server, name, at, &presented, cx);
            }
        }
        let ocsp = check(server)?;
        let provider = self.provider(s);
        let make = |provider| {
            config(server, provider, presented.clone(), trust.as_deref(), context)
                .map_err(|m| at_certificate(s, m))
        };
        let classical = classical(&provider).map(make).transpose()?;
        let config = make(provider)?;
        Ok(ServerTls {
            config,
            classical,
            variants: Default::default(),
            quic: Default::default(),
            by_cost: by_cost(s),
            dynamic,
            loaded: s.certificate_cache.0.map(Loaded::new).map(Arc::new),
            passwords: s.password_file.0.clone(),
            asks: s.verify_client != VerifyClient::Off,
            trust,
            basis,
            reject: s.reject_handshake,
            application: server.application.clone(),
            presented,
            ocsp,
        })
    }

    /// Returns the provider with the suites and groups of a server.
    fn provider(&mut self, s: &Settings) -> Arc<CryptoProvider> {
        let c = &s.conf_command;
        let list = c.ciphers.clone().unwrap_or_else(|| s.ciphers.0.clone());
        let mut suites = c.suites13.clone().unwrap_or_else(ciphers::all13);
        suites.retain(|s| list.allows(s));
        suites.extend(list.suites());
        if by_cost(s) {
            ciphers::by_cost(&mut suites);
        }
        let groups = c.groups.clone().unwrap_or_else(|| s.ecdh_curve.clone()).0.to_vec();
        let numbers = suites.iter().map(|s| u16::from(s.suite())).chain([0]);
        let numbers = numbers.chain(groups.iter().map(|g| u16::from(g.name()))).collect();
        self.providers.entry(numbers).or_insert_with(|| provider(suites, groups)).clone()
    }

    /// Returns the authorities for clients' certificates, if the server asks for these.
    fn trust(&mut self, s: &Settings) -> Result<Option<Arc<Trust>>, Error> {
        if s.verify_client == VerifyClient::Off {
            return Ok(None);
        }
        let (named, trusted) = (&s.client_certificate.0, &s.trusted_certificate.0);
        if named.is_empty() && trusted.is_empty() && s.verify_client != VerifyClient::OptionalNoCa {
            let text = "no ssl_client_certificate or ssl_trusted_certificate for ssl_verify_client";
            return Err(crate::config::plain(text));
        }
        Ok(Some(self.authorities(s)))
    }

    /// Returns the authorities that settings name, with the revocation lists and the depth.
    fn authorities(&mut self, s: &Settings) -> Arc<Trust> {
        let (named, trusted) = (&s.client_certificate.0, &s.trusted_certificate.0);
        let held = &mut self.held;
        let key = (held.list(named), held.list(trusted), held.list(&s.crl.0), s.verify_depth.0);
        let made = self.trusts.entry(key).or_insert_with(|| {
            let anchors = [named.as_slice(), trusted].concat();
            let depth = s.verify_depth.0 as usize;
            Arc::new(Trust::new(anchors, named.to_vec(), s.crl.0.to_vec(), depth))
        });
        made.clone()
    }
}

/// Certificate or key as it was read.
struct Pem {
    /// Its name for messages.
    shown: String,
    text: Zeroizing<Vec<u8>>,
}

/// Certificates of a server.
#[derive(Default)]
pub(super) struct Certificates<'s> {
    /// Names of `keys`.
    names: Vec<&'s FileName>,
    /// Certificates with keys, one of a kind.
    pub keys: Vec<Arc<CertifiedKey>>,
    /// Certificates that the server gets itself.
    pub issued: Vec<Issued>,
    /// Names of certificates and keys that have variables.
    pub dynamic: Vec<(FileName, FileName)>,
}

impl<'s> Certificates<'s> {
    /// Adds a certificate, which replaces an earlier one of its kind.
    fn add(&mut self, name: &'s FileName, key: Arc<CertifiedKey>) {
        if let Some(at) = self.keys.iter().position(|other| same_kind(other, &key)) {
            self.names.remove(at);
            self.keys.remove(at);
        }
        self.names.push(name);
        self.keys.push(key);
    }
}

/// Returns the names of a server's certificates, each with that of its key. Those of `ssl_conf_command` come last, since they
/// replace a certificate with a key of the same kind. One of the two alone belongs to the last of the directives.
fn named(s: &Settings) -> impl Iterator<Item = (&FileName, Option<&FileName>)> {
    let (certificates, keys) = (&s.certificate.0, &s.certificate_key.0);
    let c = &s.conf_command;
    let own = certificates.iter().enumerate().map(|(i, cert)| (cert, keys.get(i)));
    let added = match (&c.certificate, &c.key) {
        (None, None) => None,
        (Some(cert), key) => Some((cert, key.as_ref().or(keys.last()))),
        (None, Some(key)) => certificates.last().map(|cert| (cert, Some(key))),
    };
    // A certificate whose key is replaced is not loaded with the other key.
    let replaced = usize::from(c.certificate.is_none() && added.is_some());
    own.take(certificates.len() - replaced.min(certificates.len())).chain(added)
}

/// Returns `true` if the names of a certificate and its key have no variables.
pub(super) fn is_fixed(cert: &FileName, key: &FileName) -> bool {
    cert.template.as_const().is_some() && key.template.as_const().is_some()
}

/// Staples the response of `ssl_stapling_file`, if there is one.
fn stapled_from_file(s: &Settings, mut keys: Vec<Arc<CertifiedKey>>) -> Vec<Arc<CertifiedKey>> {
    if s.stapling && !s.stapling_file.0.is_empty() {
        for k in &mut keys {
            let mut with = CertifiedKey::clone(k);
            with.ocsp = Some(s.stapling_file.0.to_vec());
            *k = Arc::new(with);
        }
    }
    keys
}

/// Returns the issuer of a certificate, one of `issuers`, and the responder that reports the certificate's status.
///
/// # Errors
/// Reason for which there is no such responder.
fn status_source(
    s: &Settings,
    cert: &CertificateDer<'static>,
    issuers: &[CertificateDer<'static>],
    file: &str,
) -> Result<(CertificateDer<'static>, Responder), String> {
    let issuer = verify::issuer(cert, issuers.iter())
        .ok_or(format!("issuer certificate not found for certificate \"{file}\""))?;
    let url = match &s.stapling_responder {
        Some(url) => url.0.clone(),
        None => {
            verify::responder(cert).ok_or(format!("no OCSP responder URL in the certificate \"{file}\""))?
        }
    };
    let responder = Responder::parse(&url).map_err(|e| format!("{e} in the certificate \"{file}\""))?;
    Ok((issuer.clone(), responder))
}

/// Adds a warning, unless there is the same already.
fn warn_once(cx: &mut Build<'_>, text: &str) {
    if !cx.warnings.iter().any(|w| w.message == text) {
        cx.warnings.push(Error { level: Level::Warn, ..crate::config::plain(text) });
    }
}

/// Returns an error at the position of the first certificate.
fn at_certificate(s: &Settings, message: String) -> Error {
    match named(s).next() {
        Some((cert, _)) => cert.error(message),
        None => crate::config::plain(&message),
    }
}

/// Longest chain of issuers for verifying OCSP responses (`ssl_stapling_verify`).
const MAX_DEPTH: usize = 9;

/// Returns the OCSP check for clients' certificates, if configured.
fn check(server: &ServerInput<'_>) -> Result<Option<Arc<Check>>, Error> {
    let s = server.settings;
    if s.ocsp == Ocsp::Off {
        return Ok(None);
    }
    if s.verify_client == VerifyClient::OptionalNoCa {
        let text = "\"ssl_ocsp\" is incompatible with \"ssl_verify_client optional_no_ca\"";
        return Err(crate::config::plain(text));
    }
    let found = |url: &[u8]| Responder::parse(url).and_then(Responder::found);
    let responder = s.ocsp_responder.as_ref().map(|u| found(&u.0)).transpose();
    let responder = responder.map_err(|e| crate::config::plain(&format!("{e} in \"ssl_ocsp_responder\"")))?;
    Ok(Some(Arc::new(Check {
        all: s.ocsp == Ocsp::On,
        responder,
        cache: s.ocsp_cache.0.clone(),
        names: NameLookup::Resolver(server.resolver.cloned()),
    })))
}
