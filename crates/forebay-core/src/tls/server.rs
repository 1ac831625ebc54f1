//! TLS settings of virtual servers: certificates, versions, suites, groups, and requirements on clients. Built once per
//! configuration from the directives of `settings.rs`.

use super::ocsp::client::Check;
use super::ocsp::responder::{Names, Responder};
use super::ocsp::staple::Stapling;
use super::presented::{Loaded, Presented, id};
use super::settings::{Name, Ocsp, Preference, SessionCache, Settings, VerifyClient, bio_failed};
use crate::config::Build;
use forebay_conf::error::{Error, Level};
use forebay_net::resolver::Resolver;
use forebay_net::tls::certified::certified;
use forebay_net::tls::ciphers;
use forebay_net::tls::ocsp_message::Subject;
use forebay_net::tls::sessions::{self, Stored, TicketKey, Tickets};
use forebay_net::tls::verify::{self, Trust};
use forebay_sys::sync::read;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::CertificateDer;
use rustls::server::NoServerSessionStorage;
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, SupportedCipherSuite};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use zeroize::Zeroizing;

/// Settings of a server that depend on the protocol of its front end.
#[derive(Clone, Debug)]
pub struct Application {
    /// Protocols that ALPN may choose, the preferred one first. Without any, the server ignores ALPN.
    pub protocols: Vec<Vec<u8>>,
    /// Protocol that some handshakes prefer to `protocols` (HTTP/2).
    pub optional: Option<&'static [u8]>,
    /// `ssl_early_data`: whether the first request may come with the handshake.
    pub early_data: bool,
    /// Largest content of a record, bytes.
    pub record: usize,
}

/// TLS of one virtual server.
#[derive(Debug)]
pub struct ServerTls {
    /// Configuration for rustls. It has no certificates if their names have variables.
    config: Arc<ServerConfig>,
    /// Variants of `config` with the optional protocol, and both for clients that prefer ChaCha20 because they compute AES
    /// slowly. Each is built on first use.
    others: [OnceLock<Arc<ServerConfig>>; 3],
    /// No directive says whose order of suites counts, so suites are ordered by cost.
    by_cost: bool,
    /// Names of certificate and key that have to be evaluated for each connection.
    pub(super) dynamic: Vec<(Name, Name)>,
    /// Cache of certificates from `dynamic`, by name.
    pub(super) loaded: Option<Arc<Loaded>>,
    /// Passwords of keys that are loaded later.
    pub(super) passwords: Arc<Vec<Zeroizing<Vec<u8>>>>,
    /// `ssl_verify_client`.
    pub verify_client: VerifyClient,
    /// Authorities for clients' certificates.
    pub(super) trust: Option<Arc<Trust>>,
    /// See [`ServerTls::basis`].
    basis: Option<sessions::Context>,
    /// `ssl_reject_handshake`.
    pub(super) reject: bool,
    /// Settings that depend on the front end.
    application: Application,
    /// Certificates to present.
    pub(super) presented: Arc<Presented>,
    /// `ssl_ocsp`.
    pub(super) ocsp: Option<Arc<Check>>,
}

/// Returns the PEM text of a name: its inline data, or the contents of the file.
fn text_of(
    name: &[u8],
    read: impl FnOnce(&[u8]) -> Result<Vec<u8>, String>,
) -> Result<Zeroizing<Vec<u8>>, String> {
    match name.strip_prefix(b"data:".as_slice()) {
        Some(text) => Ok(Zeroizing::new(text.to_vec())),
        None => read(name).map(Zeroizing::new),
    }
}

/// Removes OpenSSL's prefix for a plain file.
fn without_store(key: &[u8]) -> &[u8] {
    key.strip_prefix(b"store:file:".as_slice()).unwrap_or(key)
}

/// Returns the name of a certificate for messages. Inline data may be secret and is left out.
fn shown(name: &[u8], path: &Path) -> String {
    if name.starts_with(b"data:") { "data:".to_owned() } else { path.display().to_string() }
}

/// Loader of certificates for the servers of one configuration. Loads each only once.
#[derive(Default)]
pub struct Loader {
    keys: HashMap<(Vec<u8>, Vec<u8>), Arc<CertifiedKey>>,
    /// Files read so far.
    pub paths: Vec<std::path::PathBuf>,
    /// Certificates whose OCSP responses are to be stapled.
    pub staplings: Vec<Stapling>,
    /// TLS settings built so far, by [`identity`].
    made: HashMap<String, Arc<ServerTls>>,
    /// Providers, by suites and groups.
    providers: HashMap<Vec<u16>, Arc<CryptoProvider>>,
    /// Authorities with revocation lists, by the addresses of these lists and the depth.
    trusts: HashMap<(usize, usize, usize, u64), Arc<Trust>>,
}

impl Loader {
    /// Adds a certificate to [`Loader::staplings`] (nginx: ssl_stapling). Adds a warning if that is impossible.
    fn staple(
        &mut self,
        s: &Settings,
        (name, at): (&Name, usize),
        presented: &Arc<Presented>,
        resolver: Option<&Arc<Resolver>>,
        cx: &mut Build<'_>,
    ) {
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
            names: resolver.map_or(Names::System, |r| Names::Resolver(Some(r.clone()))),
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
        cert: &Name,
        key: &Name,
        passwords: &[Zeroizing<Vec<u8>>],
        cx: &mut Build<'_>,
    ) -> Result<Arc<CertifiedKey>, Error> {
        let names = (cert.text.clone(), key.text.clone());
        if let Some(k) = self.keys.get(&names) {
            return Ok(k.clone());
        }
        let key_text = without_store(&key.text);
        if key_text.starts_with(b"engine:") || key_text.starts_with(b"store:") {
            let text = String::from_utf8_lossy(&key.text).into_owned();
            return Err(
                key.error(format!("cannot load certificate key \"{text}\": no engine or provider is linked"))
            );
        }
        let cert_pem = text_of(&cert.text, |n| read_file(n, "certificate", cx)).map_err(|m| cert.error(m))?;
        let key_pem = text_of(key_text, |n| read_file(n, "certificate key", cx)).map_err(|m| key.error(m))?;
        self.note_path(&cert.text, cx);
        self.note_path(key_text, cx);
        let cert_name = shown(&cert.text, &cx.conf_path(&cert.text));
        let key_name = shown(key_text, &cx.conf_path(key_text));
        let made = certified((&cert_name, &cert_pem), (&key_name, &key_pem), passwords).map_err(|m| {
            let of_key = m.contains("certificate key") || m.contains("PrivateKey");
            if of_key { key.error(m) } else { cert.error(m) }
        })?;
        let made = Arc::new(made);
        self.keys.insert(names, made.clone());
        Ok(made)
    }

    /// Adds the file of a name to [`Loader::paths`].
    fn note_path(&mut self, name: &[u8], cx: &Build<'_>) {
        let path = cx.conf_path(name);
        if !name.starts_with(b"data:") && !self.paths.contains(&path) {
            self.paths.push(path);
        }
    }

    /// Loads the certificates of a server.
    fn certificates<'s>(&mut self, s: &'s Settings, cx: &mut Build<'_>) -> Result<Certificates<'s>, Error> {
        let (certificates, keys) = named(s);
        let mut made = Certificates::default();
        for (i, cert) in certificates.iter().enumerate() {
            let Some(key) = keys.get(i) else {
                let text = String::from_utf8_lossy(&cert.text).into_owned();
                return Err(
                    cert.error(format!("no \"ssl_certificate_key\" is defined for certificate \"{text}\""))
                );
            };
            if is_fixed(cert, key) {
                made.add(cert, self.load(cert, key, &s.password_file.0, cx)?);
            } else {
                made.dynamic.push((cert.clone(), key.clone()));
            }
        }
        Ok(made)
    }

    /// Builds the TLS settings of a server. Returns `None` if it has no certificates and does not reject handshakes.
    ///
    /// # Errors
    /// In nginx's words.
    pub fn server(
        &mut self,
        s: &Settings,
        application: Application,
        resolver: Option<&Arc<Resolver>>,
        cx: &mut Build<'_>,
    ) -> Result<Option<Arc<ServerTls>>, Error> {
        if s.certificate.0.is_empty() && !s.reject_handshake {
            return Ok(None);
        }
        let certificates = self.certificates(s, cx)?;
        let identity = identity(s, &application, &certificates, resolver);
        if let Some(same) = self.made.get(&identity) {
            return Ok(Some(same.clone()));
        }
        let tls = Arc::new(self.build(s, application, certificates, resolver, cx)?);
        self.made.insert(identity, tls.clone());
        Ok(Some(tls))
    }

    /// Builds the TLS settings of a server from its certificates.
    fn build(
        &mut self,
        s: &Settings,
        application: Application,
        certificates: Certificates<'_>,
        resolver: Option<&Arc<Resolver>>,
        cx: &mut Build<'_>,
    ) -> Result<ServerTls, Error> {
        let trust = self.trust(s)?;
        let basis = trust.as_ref().map(|t| basis(s, t));
        let context = context((s, &application), &certificates, basis);
        let Certificates { names, keys, dynamic } = certificates;
        let presented = Arc::new(Presented::new(stapled_from_file(s, keys)));
        if s.stapling && s.stapling_file.0.is_empty() {
            for (at, name) in names.into_iter().enumerate() {
                self.staple(s, (name, at), &presented, resolver, cx);
            }
        }
        let ocsp = check(s, resolver)?;
        let provider = self.provider(s);
        let config = config((s, &application), provider, presented.clone(), trust.as_deref(), context)
            .map_err(|m| at_certificate(s, m))?;
        Ok(ServerTls {
            config,
            others: Default::default(),
            by_cost: by_cost(s),
            dynamic,
            loaded: s.certificate_cache.0.map(Loaded::of).map(Arc::new),
            passwords: s.password_file.0.clone(),
            verify_client: s.verify_client,
            trust,
            basis,
            reject: s.reject_handshake,
            application,
            presented,
            ocsp,
        })
    }

    /// Returns the provider with the suites and groups of a server.
    fn provider(&mut self, s: &Settings) -> Arc<CryptoProvider> {
        let c = &s.conf_command;
        let list = c.ciphers.clone().unwrap_or_else(|| s.ciphers.0.clone());
        let mut suites = c.suites13.clone().unwrap_or_else(ciphers::all13);
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
        let key = (list(named), list(trusted), list(&s.crl.0), s.verify_depth.0);
        let made = self.trusts.entry(key).or_insert_with(|| {
            let anchors = [named.as_slice(), trusted].concat();
            let depth = s.verify_depth.0 as usize;
            Arc::new(Trust::new(anchors, named.to_vec(), s.crl.0.to_vec(), depth))
        });
        Ok(Some(made.clone()))
    }
}

/// Certificates of a server.
#[derive(Default)]
struct Certificates<'s> {
    /// Names of `keys`.
    names: Vec<&'s Name>,
    /// Certificates with keys, one of a kind.
    keys: Vec<Arc<CertifiedKey>>,
    /// Names of certificates and keys that have variables.
    dynamic: Vec<(Name, Name)>,
}

impl<'s> Certificates<'s> {
    /// Adds a certificate, which replaces an earlier one of its kind.
    fn add(&mut self, name: &'s Name, key: Arc<CertifiedKey>) {
        if let Some(at) = self.keys.iter().position(|other| same_kind(other, &key)) {
            self.names.remove(at);
            self.keys.remove(at);
        }
        self.names.push(name);
        self.keys.push(key);
    }
}

/// Returns the names of a server's certificates and keys. Those of `ssl_conf_command` replace the others.
fn named(s: &Settings) -> (&[Name], &[Name]) {
    match (&s.conf_command.certificate, &s.conf_command.key) {
        (Some(cert), Some(key)) => (std::slice::from_ref(cert), std::slice::from_ref(key)),
        _ => (&s.certificate.0, &s.certificate_key.0),
    }
}

/// Returns `true` if the names of a certificate and its key have no variables.
pub(super) fn is_fixed(cert: &Name, key: &Name) -> bool {
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

/// Reads a file of a certificate or key. `what` names it in the error.
fn read_file(name: &[u8], what: &str, cx: &mut Build<'_>) -> Result<Vec<u8>, String> {
    let path = cx.conf_path(name);
    let failed =
        |e: &std::io::Error| format!("cannot load {what} \"{}\": {}", path.display(), bio_failed(&path, e));
    cx.files.read(&path).map(|(_, bytes)| bytes.to_vec()).map_err(|e| failed(&e))
}

/// Returns an error at the position of the first certificate.
fn at_certificate(s: &Settings, message: String) -> Error {
    match named(s).0.first() {
        Some(cert) => cert.error(message),
        None => crate::config::plain(&message),
    }
}

/// Returns the address of a list as its identity. All empty lists are equal.
fn list<T>(list: &Arc<Vec<T>>) -> usize {
    if list.is_empty() { 0 } else { Arc::as_ptr(list) as usize }
}

/// Returns the address of a shared value as its identity.
fn at<T: ?Sized>(arc: &Arc<T>) -> usize {
    Arc::as_ptr(arc).cast::<()>() as usize
}

/// Returns a key of everything that the TLS settings of a server depend on. It compares shared values by address, so it
/// is valid only within one configuration.
fn identity(
    s: &Settings,
    application: &Application,
    made: &Certificates<'_>,
    resolver: Option<&Arc<Resolver>>,
) -> String {
    // Destructure without `..`, so that a new setting does not compile until it is considered here.
    let Settings {
        // `made` covers these, including those of `ssl_conf_command`.
        certificate: _,
        certificate_key: _,
        certificate_cache,
        password_file,
        protocols,
        ciphers,
        prefer_server_ciphers,
        ecdh_curve,
        session_cache,
        session_tickets,
        session_ticket_key,
        session_timeout,
        verify_client,
        verify_depth,
        client_certificate,
        trusted_certificate,
        crl,
        certificate_compression,
        reject_handshake,
        conf_command,
        stapling,
        stapling_file,
        stapling_responder,
        stapling_verify,
        ocsp,
        ocsp_responder,
        ocsp_cache,
    } = s;
    let names: Vec<_> = made.dynamic.iter().flat_map(|(cert, key)| [&cert.text, &key.text]).collect();
    let sessions = match session_cache {
        SessionCache::None => 0,
        SessionCache::Off => 1,
        SessionCache::Kept(zone) => at(zone),
    };
    let keys: Vec<usize> = session_ticket_key.0.iter().map(at).collect();
    let certificates: Vec<usize> = made.keys.iter().map(at).collect();
    let files =
        [list(&client_certificate.0), list(&trusted_certificate.0), list(&crl.0), list(&stapling_file.0)];
    let lists = [list(&password_file.0), at(&ciphers.0), at(&ecdh_curve.0), resolver.map_or(0, at)];
    let ocsp = (ocsp, ocsp_responder, ocsp_cache.0.as_ref().map(at));
    let stapling = (stapling, stapling_responder, stapling_verify);
    let numbers = (certificate_cache, session_timeout, verify_depth, protocols);
    let words = (prefer_server_ciphers, verify_client, session_tickets);
    let more = (certificate_compression, reject_handshake, conf_command, application);
    format!(
        "{names:?} {sessions} {keys:?} {certificates:?} {files:?} {lists:?} {ocsp:?} {stapling:?} {numbers:?} {words:?} {more:?}"
    )
}

/// Longest chain of issuers for verifying OCSP responses (`ssl_stapling_verify`).
const MAX_DEPTH: usize = 9;

/// Returns the OCSP check for clients' certificates, if configured.
fn check(s: &Settings, resolver: Option<&Arc<Resolver>>) -> Result<Option<Arc<Check>>, Error> {
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
        names: Names::Resolver(resolver.cloned()),
    })))
}

/// Hashes the settings that verdicts on clients' certificates depend on: authorities, revocation lists, depth and OCSP
/// responder.
fn basis(s: &Settings, trust: &Trust) -> sessions::Context {
    let asked = [s.ocsp as u8];
    let url = s.ocsp_responder.as_ref().map(|u| u.0.as_slice()).unwrap_or_default();
    sessions::context([trust.fingerprint().as_slice(), &asked, url].into_iter())
}

/// Hashes the settings that a resumed session must share with the current server: certificates and requirements on
/// clients.
fn context(
    (s, application): (&Settings, &Application),
    made: &Certificates<'_>,
    basis: Option<sessions::Context>,
) -> sessions::Context {
    let leaf = made.keys.iter().filter_map(|k| k.cert.first()).map(AsRef::as_ref);
    let names = made.dynamic.iter().map(|(c, _)| c.text.as_slice());
    let demands = [s.verify_client as u8, u8::from(application.early_data)];
    let basis = basis.unwrap_or_default();
    sessions::context(leaf.chain(names).chain([demands.as_slice(), &basis]))
}

/// Returns a provider with these suites and groups.
pub(super) fn provider(
    suites: Vec<SupportedCipherSuite>,
    groups: Vec<&'static dyn rustls::crypto::SupportedKxGroup>,
) -> Arc<CryptoProvider> {
    let base = rustls::crypto::aws_lc_rs::default_provider();
    Arc::new(CryptoProvider { cipher_suites: suites, kx_groups: groups, ..base })
}

/// Returns the enabled versions.
pub(super) fn versions(v12: bool, v13: bool) -> Vec<&'static rustls::SupportedProtocolVersion> {
    let mut versions = Vec::new();
    if v13 {
        versions.push(&rustls::version::TLS13);
    }
    if v12 {
        versions.push(&rustls::version::TLS12);
    }
    versions
}

/// Compressors of certificates.
static COMPRESSORS: [&dyn rustls::compress::CertCompressor; 2] =
    [rustls::compress::BROTLI_COMPRESSOR, rustls::compress::ZLIB_COMPRESSOR];

/// Returns `true` if no directive says whose order of suites counts.
fn by_cost(s: &Settings) -> bool {
    s.prefer_server_ciphers == Preference::Unsaid && s.conf_command.server_preference.is_none()
}

fn config(
    (s, application): (&Settings, &Application),
    provider: Arc<CryptoProvider>,
    presented: Arc<Presented>,
    trust: Option<&Trust>,
    context: sessions::Context,
) -> Result<Arc<ServerConfig>, String> {
    let c = &s.conf_command;
    let (v12, v13) = (c.v12.unwrap_or(s.protocols.v12), c.v13.unwrap_or(s.protocols.v13));
    let builder = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions(v12, v13))
        .map_err(|e| format!("protocols and ciphers do not fit together: {e}"))?;
    let builder = match trust {
        Some(trust) => builder.with_client_cert_verifier(trust.asker()),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(presented);
    config.ignore_client_order = c.server_preference.unwrap_or(s.prefer_server_ciphers != Preference::Off);
    config.alpn_protocols = application.protocols.clone();
    config.enable_secret_extraction = true;
    keep_sessions(&mut config, s, application.early_data, context);
    if application.early_data {
        config.max_early_data_size = 16 * 1024;
    }
    config.cert_compressors = if s.certificate_compression { COMPRESSORS.to_vec() } else { Vec::new() };
    config.cert_decompressors = Vec::new();
    Ok(Arc::new(config))
}

/// Sets where sessions are kept: here, in tickets of the clients, or nowhere.
fn keep_sessions(config: &mut ServerConfig, s: &Settings, early_data: bool, context: sessions::Context) {
    let timeout = Duration::from_secs(s.session_timeout.0);
    let zone = match &s.session_cache {
        SessionCache::Kept(zone) => Some(zone.clone()),
        // rustls accepts early data only for sessions that it can remove from a store, which prevents replay.
        _ if early_data => Some(sessions::zone(b"early data", 1 << 20)),
        _ => None,
    };
    // Tickets would disable early data.
    let tickets = s.conf_command.tickets.unwrap_or(s.session_tickets) && !early_data;
    config.send_tls13_tickets = if tickets || zone.is_some() { 2 } else { 0 };
    config.session_storage = match zone {
        Some(sessions) => Arc::new(Stored { sessions, context, timeout }),
        None => Arc::new(NoServerSessionStorage {}),
    };
    if tickets {
        let keys = s.session_ticket_key.0.iter().filter_map(|k| TicketKey::new(k)).collect();
        config.ticketer = Arc::new(Tickets { keys, context, timeout });
    }
}

impl ServerTls {
    /// Returns the configuration for a client that offers these suites. `optional`: with [`Application::optional`].
    pub(super) fn config_for(&self, offered: &[u16], optional: bool) -> &Arc<ServerConfig> {
        let by_client = self.by_cost && ciphers::begins_with_chacha(offered);
        let optional = self.application.optional.filter(|_| optional);
        let [other, slow, slow_other] = &self.others;
        let place = match (by_client, optional) {
            (false, None) => return &self.config,
            (false, Some(_)) => other,
            (true, None) => slow,
            (true, Some(_)) => slow_other,
        };
        place.get_or_init(|| {
            let mut config = ServerConfig::clone(&self.config);
            if let Some(protocol) = optional {
                config.alpn_protocols.insert(0, protocol.to_vec());
            }
            config.ignore_client_order &= !by_client;
            Arc::new(config)
        })
    }

    /// Returns the largest content of a record, bytes.
    pub(super) fn record(&self) -> usize {
        self.application.record
    }

    /// Returns the hash of the settings that verdicts on clients' certificates depend on. Servers with equal hashes
    /// reach equal verdicts. Returns `None` if the server does not ask for certificates.
    #[inline]
    pub fn basis(&self) -> Option<sessions::Context> {
        self.basis
    }

    /// Returns the configuration for a connection whose certificate names have variables; `names` are their values.
    /// Returns `Ok(None)` if files would have to be read.
    ///
    /// # Errors
    /// The text for the error log.
    pub(super) fn known(
        &self,
        names: &[(Vec<u8>, Vec<u8>)],
        config: &ServerConfig,
    ) -> Result<Option<Arc<ServerConfig>>, String> {
        let mut keys = Vec::new();
        for files in names {
            match self.loaded.as_ref().and_then(|l| l.of_files(files)) {
                Some(key) => keys.push(key),
                None if is_inline(files) => {
                    keys.push(certified_files(
                        files,
                        Path::new(""),
                        &self.passwords,
                        self.loaded.as_deref(),
                    )?);
                }
                None => return Ok(None),
            }
        }
        Ok(Some(self.presenting(keys, config)))
    }

    /// Returns the same as [`ServerTls::known`], but reads missing files, relative to `base`. Blocks.
    ///
    /// # Errors
    /// The text for the error log.
    pub(super) fn load(
        &self,
        names: &[(Vec<u8>, Vec<u8>)],
        base: &Path,
        config: &ServerConfig,
    ) -> Result<Arc<ServerConfig>, String> {
        let load = |files| certified_files(files, base, &self.passwords, self.loaded.as_deref());
        let keys = names.iter().map(load).collect::<Result<Vec<_>, _>>()?;
        Ok(self.presenting(keys, config))
    }

    fn presenting(&self, loaded: Vec<Arc<CertifiedKey>>, config: &ServerConfig) -> Arc<ServerConfig> {
        let mut keys: Vec<Arc<CertifiedKey>> = Vec::new();
        for k in &self.presented.0 {
            keys.push(read(k).clone());
        }
        for key in loaded {
            keys.retain(|other| !same_kind(other, &key));
            keys.push(key);
        }
        let mut config = config.clone();
        config.cert_resolver = Arc::new(Presented::new(keys));
        Arc::new(config)
    }
}

/// Returns `true` if the keys have the same algorithm. As in OpenSSL, the later certificate then replaces the earlier
/// one.
fn same_kind(a: &CertifiedKey, b: &CertifiedKey) -> bool {
    a.key.algorithm() == b.key.algorithm()
}

/// Returns `true` if both certificate and key are inline data.
fn is_inline((cert, key): &(Vec<u8>, Vec<u8>)) -> bool {
    cert.starts_with(b"data:") && key.starts_with(b"data:")
}

/// Loads certificate and key by the values of their names, relative to `base`.
///
/// # Errors
/// The text for the error log.
pub(super) fn certified_files(
    files: &(Vec<u8>, Vec<u8>),
    base: &Path,
    passwords: &[Zeroizing<Vec<u8>>],
    cache: Option<&Loaded>,
) -> Result<Arc<CertifiedKey>, String> {
    let (cert, key) = (files.0.as_slice(), without_store(&files.1));
    let id = id(files);
    if let Some(k) = cache.and_then(|c| c.get(&id)) {
        return Ok(k);
    }
    let path = |n: &[u8]| base.join(<std::ffi::OsStr as std::os::unix::ffi::OsStrExt>::from_bytes(n));
    let read = |n: &[u8], what: &str| {
        let failed = |e: std::io::Error| {
            format!("cannot load {what} \"{}\": {}", path(n).display(), bio_failed(&path(n), &e))
        };
        std::fs::read(path(n)).map_err(failed)
    };
    let cert_pem = text_of(cert, |n| read(n, "certificate"))?;
    let key_pem = text_of(key, |n| read(n, "certificate key"))?;
    let names = (shown(cert, &path(cert)), shown(key, &path(key)));
    let made = Arc::new(certified((&names.0, &cert_pem), (&names.1, &key_pem), passwords)?);
    if let Some(c) = cache {
        c.put(id, made.clone());
    }
    Ok(made)
}
