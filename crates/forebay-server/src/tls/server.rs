//! What a virtual server presents: its certificates, the versions, suites and groups it speaks, what it asks
//! of clients. Made once a configuration from `modules/ssl.rs`.

use super::ciphers;
use super::pem::{self, KeyError};
use super::sessions::{self, Stored, TicketKey, Tickets};
use super::verify::Trust;
use crate::config::Scope;
use crate::modules::ssl::{Name, Preference, SessionCache, Settings, VerifyClient, bio_failed};
use forebay_conf::error::{Error, Level};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use rustls::{ServerConfig, SupportedCipherSuite};
use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use zeroize::Zeroizing;

/// TLS of one virtual server.
#[derive(Debug)]
pub struct ServerTls {
    /// What rustls needs; without certificates where their names have variables.
    pub config: Arc<ServerConfig>,
    /// The same where HTTP/2 is spoken.
    pub config_h2: Arc<ServerConfig>,
    /// Both for clients that compute AES slowly, where nobody has said whose order counts.
    slow_aes: Option<[Arc<ServerConfig>; 2]>,
    /// Names of certificate and key that have to be evaluated for each connection.
    pub dynamic: Vec<(Name, Name)>,
    /// Certificates that were loaded before such a connection, by name.
    pub loaded: Option<Loaded>,
    /// Passwords of keys that are loaded later.
    pub passwords: Arc<Vec<Zeroizing<Vec<u8>>>>,
    /// `ssl_verify_client`.
    pub verify_client: VerifyClient,
    /// Who is trusted to speak for clients.
    pub trust: Option<Arc<Trust>>,
    /// `ssl_reject_handshake`.
    pub reject: bool,
    /// `ssl_buffer_size`, at most what a record holds.
    pub record: usize,
    /// Certificates that are presented.
    pub presented: Arc<Presented>,
}

/// Certificates with keys, of which the client's abilities choose one.
#[derive(Debug, Default)]
pub struct Presented(pub Vec<RwLock<Arc<CertifiedKey>>>);

impl Presented {
    fn new(keys: Vec<Arc<CertifiedKey>>) -> Presented {
        Presented(keys.into_iter().map(RwLock::new).collect())
    }

    /// Staples an OCSP response to a certificate from now on.
    pub fn staple(&self, i: usize, response: Option<Vec<u8>>) {
        if let Some(slot) = self.0.get(i) {
            let mut key = slot.write().unwrap_or_else(PoisonError::into_inner);
            let mut next = CertifiedKey::clone(&key);
            next.ocsp = response;
            *key = Arc::new(next);
        }
    }
}

impl ResolvesServerCert for Presented {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let get = |k: &RwLock<Arc<CertifiedKey>>| k.read().unwrap_or_else(PoisonError::into_inner).clone();
        if let [only] = self.0.as_slice() {
            return Some(get(only));
        }
        // The client's order of preference decides.
        hello
            .signature_schemes()
            .iter()
            .find_map(|scheme| self.0.iter().map(get).find(|k| k.key.choose_scheme(&[*scheme]).is_some()))
    }
}

/// Certificates by name, bounded (nginx: ssl_certificate_cache).
#[derive(Debug)]
pub struct Loaded {
    max: usize,
    inactive: Duration,
    valid: Duration,
    map: std::sync::Mutex<HashMap<Vec<u8>, Entry>>,
}

#[derive(Debug)]
struct Entry {
    key: Arc<CertifiedKey>,
    checked: std::time::Instant,
    used: std::time::Instant,
}

impl Loaded {
    /// An empty store: most certificates, seconds that an unused one and any one is kept.
    pub fn of((max, inactive, valid): (usize, u64, u64)) -> Loaded {
        Loaded {
            max,
            inactive: Duration::from_secs(inactive),
            valid: Duration::from_secs(valid),
            map: Default::default(),
        }
    }

    fn get(&self, name: &[u8]) -> Option<Arc<CertifiedKey>> {
        let mut map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = map.get_mut(name)?;
        if entry.checked.elapsed() > self.valid || entry.used.elapsed() > self.inactive {
            map.remove(name);
            return None;
        }
        entry.used = std::time::Instant::now();
        Some(entry.key.clone())
    }

    fn put(&self, name: Vec<u8>, key: Arc<CertifiedKey>) {
        let mut map = self.map.lock().unwrap_or_else(PoisonError::into_inner);
        if map.len() >= self.max {
            let oldest = map.iter().min_by_key(|(_, e)| e.used).map(|(n, _)| n.clone());
            oldest.map(|n| map.remove(&n));
        }
        let now = std::time::Instant::now();
        map.insert(name, Entry { key, checked: now, used: now });
    }
}

/// Text of the PEM that a name stands for.
fn text_of(
    name: &[u8],
    read: impl FnOnce(&[u8]) -> Result<Vec<u8>, String>,
) -> Result<Zeroizing<Vec<u8>>, String> {
    match name.strip_prefix(b"data:".as_slice()) {
        Some(text) => Ok(Zeroizing::new(text.to_vec())),
        None => read(name).map(Zeroizing::new),
    }
}

/// How messages call a certificate.
fn shown(name: &[u8], path: &Path) -> String {
    if name.starts_with(b"data:") { "data:".to_owned() } else { path.display().to_string() }
}

/// Puts certificate and key together.
///
/// # Errors
/// In OpenSSL's words.
pub fn certified(
    (cert_name, cert): (&str, &[u8]),
    (key_name, key): (&str, &[u8]),
    passwords: &[Zeroizing<Vec<u8>>],
) -> Result<CertifiedKey, String> {
    let chain = pem::certificates(cert);
    let Some(leaf) = chain.first() else {
        return Err(format!(
            "cannot load certificate \"{cert_name}\": PEM_read_bio_X509_AUX() failed (SSL: error:0480006C:PEM \
             routines::no start line:Expecting: TRUSTED CERTIFICATE)"
        ));
    };
    let public = super::verify::public_key(leaf).ok_or_else(|| {
        format!("cannot load certificate \"{cert_name}\": PEM_read_bio_X509_AUX() failed (SSL: error:04800064:PEM routines::bad base64 decode)")
    })?;
    let der = pem::private_key(key, passwords).map_err(|e| {
        let what = match e {
            KeyError::None | KeyError::Unsupported => {
                "error:1E08010C:DECODER routines::unsupported:No supported data to decode. Input type: PEM"
            }
            KeyError::NeedsPassword => "error:04800068:PEM routines::bad password read",
            KeyError::WrongPassword => {
                "error:1C800064:Provider routines::bad decrypt error:11800074:PKCS12 routines::pkcs12 \
                 cipherfinal error:maybe wrong password"
            }
        };
        format!("cannot load certificate key \"{key_name}\": PEM_read_bio_PrivateKey() failed (SSL: {what})")
    })?;
    let key = rustls::crypto::aws_lc_rs::sign::any_supported_type(&der)
        .map_err(|e| format!("cannot load certificate key \"{key_name}\": {e}"))?;
    if key.public_key().is_some_and(|k| k.as_ref() != public) {
        return Err(format!(
            "SSL_CTX_use_PrivateKey(\"{key_name}\") failed (SSL: error:05800074:x509 certificate routines::key \
             values mismatch)"
        ));
    }
    Ok(CertifiedKey::new(chain, key))
}

/// Loads certificates for the servers of one configuration, each once.
#[derive(Default)]
pub struct Loader {
    keys: HashMap<(Vec<u8>, Vec<u8>), Arc<CertifiedKey>>,
    /// Files that were read.
    pub paths: Vec<std::path::PathBuf>,
}

impl Loader {
    fn warn_once(&self, text: &str, cx: &mut Scope<'_>) {
        if !cx.warnings.iter().any(|w| w.message == text) {
            cx.warnings.push(Error { level: Level::Warn, ..crate::config::plain(text) });
        }
    }

    /// A certificate with its key.
    ///
    /// # Errors
    /// In nginx's words.
    pub fn load(
        &mut self,
        cert: &Name,
        key: &Name,
        passwords: &[Zeroizing<Vec<u8>>],
        cx: &mut Scope<'_>,
    ) -> Result<Arc<CertifiedKey>, Error> {
        let names = (cert.text.clone(), key.text.clone());
        if let Some(k) = self.keys.get(&names) {
            return Ok(k.clone());
        }
        let key_text = key.text.strip_prefix(b"store:file:".as_slice()).unwrap_or(&key.text);
        if key_text.starts_with(b"engine:") || key_text.starts_with(b"store:") {
            let text = String::from_utf8_lossy(&key.text).into_owned();
            return Err(
                key.error(format!("cannot load certificate key \"{text}\": no engine or provider is linked"))
            );
        }
        let read = |name: &[u8], what: &str, cx: &mut Scope<'_>| {
            let path = cx.conf_path(name);
            let failed = |e: &std::io::Error| {
                format!("cannot load {what} \"{}\": {}", path.display(), bio_failed(&path, e))
            };
            cx.files.read(&path).map(|(_, bytes)| bytes.to_vec()).map_err(|e| failed(&e))
        };
        let cert_pem = text_of(&cert.text, |n| read(n, "certificate", cx)).map_err(|m| cert.error(m))?;
        let key_pem = text_of(key_text, |n| read(n, "certificate key", cx)).map_err(|m| key.error(m))?;
        for name in [cert.text.as_slice(), key_text] {
            let path = cx.conf_path(name);
            if !name.starts_with(b"data:") && !self.paths.contains(&path) {
                self.paths.push(path);
            }
        }
        let cert_name = shown(&cert.text, &cx.conf_path(&cert.text));
        let key_name = shown(key_text, &cx.conf_path(key_text));
        let made = certified((&cert_name, &cert_pem), (&key_name, &key_pem), passwords).map_err(|m| {
            if m.contains("certificate key") || m.contains("PrivateKey") {
                key.error(m)
            } else {
                cert.error(m)
            }
        })?;
        let made = Arc::new(made);
        self.keys.insert(names, made.clone());
        Ok(made)
    }

    /// TLS of a server, if it has any.
    ///
    /// # Errors
    /// In nginx's words.
    pub fn server(&mut self, s: &Settings, cx: &mut Scope<'_>) -> Result<Option<ServerTls>, Error> {
        let mut certificates = s.certificate.0.clone();
        let mut keys = s.certificate_key.0.clone();
        if certificates.is_empty() && !s.reject_handshake {
            return Ok(None);
        }
        if let (Some(c), Some(k)) = (&s.conf_command.certificate, &s.conf_command.key) {
            (certificates, keys) = (vec![c.clone()], vec![k.clone()]);
        }
        let mut presented = Vec::new();
        let mut dynamic = Vec::new();
        for (i, cert) in certificates.iter().enumerate() {
            let Some(key) = keys.get(i) else {
                let text = String::from_utf8_lossy(&cert.text).into_owned();
                return Err(
                    cert.error(format!("no \"ssl_certificate_key\" is defined for certificate \"{text}\""))
                );
            };
            if cert.template.as_const().is_some() && key.template.as_const().is_some() {
                presented.push(self.load(cert, key, &s.password_file.0, cx)?);
            } else {
                dynamic.push((cert.clone(), key.clone()));
            }
        }
        if s.stapling && s.stapling_file.0.is_empty() {
            let text = "\"ssl_stapling\" ignored: responders are not asked yet, only \"ssl_stapling_file\" is stapled";
            self.warn_once(text, cx);
        }
        if s.stapling && !s.stapling_file.0.is_empty() {
            for k in &mut presented {
                let mut with = CertifiedKey::clone(k);
                with.ocsp = Some(s.stapling_file.0.to_vec());
                *k = Arc::new(with);
            }
        }
        let context = context(s, &presented, &dynamic);
        let presented = Arc::new(Presented::new(presented));
        let trust = trust(s, cx)?;
        let config = config(s, presented.clone(), trust.as_deref(), context).map_err(|m| {
            let place = certificates.first().map(|c| c.place.clone());
            place.map_or_else(|| crate::config::plain(&m), |p| Error { message: m.clone(), ..p })
        })?;
        let loaded = s.certificate_cache.0.map(Loaded::of);
        let mut with_h2 = ServerConfig::clone(&config);
        with_h2.alpn_protocols.insert(0, b"h2".to_vec());
        let by_client = |c: &ServerConfig| {
            let mut c = c.clone();
            c.ignore_client_order = false;
            Arc::new(c)
        };
        let slow_aes = by_cost(s).then(|| [by_client(&config), by_client(&with_h2)]);
        Ok(Some(ServerTls {
            config_h2: Arc::new(with_h2),
            slow_aes,
            config,
            dynamic,
            loaded,
            passwords: s.password_file.0.clone(),
            verify_client: s.verify_client,
            trust,
            reject: s.reject_handshake,
            record: (s.buffer_size.0 as usize).clamp(256, super::record::MAX_CONTENT),
            presented,
        }))
    }
}

fn trust(s: &Settings, _cx: &mut Scope<'_>) -> Result<Option<Arc<Trust>>, Error> {
    if s.verify_client == VerifyClient::Off {
        return Ok(None);
    }
    if s.client_certificate.0.is_empty()
        && s.trusted_certificate.0.is_empty()
        && s.verify_client != VerifyClient::OptionalNoCa
    {
        let text = "no ssl_client_certificate or ssl_trusted_certificate for ssl_verify_client";
        return Err(crate::config::plain(text));
    }
    let anchors = [s.client_certificate.0.as_slice(), s.trusted_certificate.0.as_slice()].concat();
    let depth = s.verify_depth.0 as usize;
    Ok(Some(Arc::new(Trust::new(anchors, s.client_certificate.0.to_vec(), s.crl.0.to_vec(), depth))))
}

/// What sessions of this server are good for: the same certificates and the same demands.
fn context(s: &Settings, presented: &[Arc<CertifiedKey>], dynamic: &[(Name, Name)]) -> sessions::Context {
    let leaf = presented.iter().filter_map(|k| k.cert.first()).map(AsRef::as_ref);
    let names = dynamic.iter().map(|(c, _)| c.text.as_slice());
    let demands = [s.verify_client as u8, u8::from(s.early_data)];
    let anchors = s.client_certificate.0.iter().map(AsRef::as_ref);
    sessions::context(leaf.chain(names).chain(std::iter::once(demands.as_slice())).chain(anchors))
}

/// The provider with suites and groups chosen.
pub fn provider(
    suites: Vec<SupportedCipherSuite>,
    groups: Vec<&'static dyn rustls::crypto::SupportedKxGroup>,
) -> Arc<rustls::crypto::CryptoProvider> {
    let base = rustls::crypto::aws_lc_rs::default_provider();
    Arc::new(rustls::crypto::CryptoProvider { cipher_suites: suites, kx_groups: groups, ..base })
}

/// Versions from what two booleans say.
pub fn versions(v12: bool, v13: bool) -> Vec<&'static rustls::SupportedProtocolVersion> {
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

/// Whether nobody has said whose order of suites counts.
fn by_cost(s: &Settings) -> bool {
    s.prefer_server_ciphers == Preference::Unsaid && s.conf_command.server_preference.is_none()
}

fn config(
    s: &Settings,
    presented: Arc<Presented>,
    trust: Option<&Trust>,
    context: sessions::Context,
) -> Result<Arc<ServerConfig>, String> {
    let c = &s.conf_command;
    let (v12, v13) = (c.v12.unwrap_or(s.protocols.v12), c.v13.unwrap_or(s.protocols.v13));
    let list = c.ciphers.clone().unwrap_or_else(|| s.ciphers.0.clone());
    let mut suites = c.suites13.clone().unwrap_or_else(ciphers::all13);
    suites.extend(list.suites());
    if by_cost(s) {
        ciphers::by_cost(&mut suites);
    }
    let groups = c.groups.clone().unwrap_or_else(|| s.ecdh_curve.clone()).0.to_vec();
    let builder = ServerConfig::builder_with_provider(provider(suites, groups))
        .with_protocol_versions(&versions(v12, v13))
        .map_err(|e| format!("protocols and ciphers do not fit together: {e}"))?;
    let builder = match trust {
        Some(trust) => builder.with_client_cert_verifier(trust.asker()),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(presented);
    config.ignore_client_order = c.server_preference.unwrap_or(s.prefer_server_ciphers != Preference::Off);
    config.alpn_protocols = vec![b"http/1.1".to_vec(), b"http/1.0".to_vec(), b"http/0.9".to_vec()];
    config.enable_secret_extraction = true;
    config.send_tls13_tickets = 2;
    let timeout = Duration::from_secs(s.session_timeout.0);
    // rustls takes early data only for sessions that it can take out of a store, so that none is taken twice.
    let tickets = c.tickets.unwrap_or(s.session_tickets) && !s.early_data;
    config.session_storage = match &s.session_cache {
        SessionCache::Kept(zone) => Arc::new(Stored { sessions: zone.clone(), context, timeout }),
        _ if s.early_data => {
            let zone = sessions::zone(b"early data", 1 << 20);
            Arc::new(Stored { sessions: zone, context, timeout })
        }
        _ => Arc::new(NoServerSessionStorage {}),
    };
    if tickets && !matches!(s.session_cache, SessionCache::Off) {
        let keys = s.session_ticket_key.0.iter().filter_map(|k| TicketKey::new(k)).collect();
        config.ticketer = Arc::new(Tickets { keys, context, timeout });
    } else if !matches!(s.session_cache, SessionCache::Kept(_)) && !s.early_data {
        config.send_tls13_tickets = 0;
    }
    if s.early_data {
        config.max_early_data_size = 16 * 1024;
    }
    config.cert_compressors = if s.certificate_compression { COMPRESSORS.to_vec() } else { Vec::new() };
    config.cert_decompressors = Vec::new();
    Ok(Arc::new(config))
}

impl ServerTls {
    /// The configuration for a client that offers these suites.
    pub fn config_for(&self, offered: &[u16], http2: bool) -> &Arc<ServerConfig> {
        match &self.slow_aes {
            Some([h1, h2]) if ciphers::begins_with_chacha(offered) => {
                if http2 {
                    h2
                } else {
                    h1
                }
            }
            _ if http2 => &self.config_h2,
            _ => &self.config,
        }
    }

    /// The configuration for a connection whose certificate depends on it; `names` are evaluated already.
    ///
    /// # Errors
    /// What is to be logged.
    pub fn with_certificates(
        &self,
        names: &[(Vec<u8>, Vec<u8>)],
        base: &Path,
        config: &ServerConfig,
    ) -> Result<Arc<ServerConfig>, String> {
        let mut keys: Vec<Arc<CertifiedKey>> = Vec::new();
        for k in &self.presented.0 {
            keys.push(k.read().unwrap_or_else(PoisonError::into_inner).clone());
        }
        for files in names {
            keys.push(certified_files(files, base, &self.passwords, self.loaded.as_ref())?);
        }
        let mut config = config.clone();
        config.cert_resolver = Arc::new(Presented::new(keys));
        Ok(Arc::new(config))
    }
}

/// Loads certificate and key by names that were evaluated, found below `base`.
///
/// # Errors
/// What is to be logged.
pub fn certified_files(
    files: &(Vec<u8>, Vec<u8>),
    base: &Path,
    passwords: &[Zeroizing<Vec<u8>>],
    cache: Option<&Loaded>,
) -> Result<Arc<CertifiedKey>, String> {
    let (cert, key) = files;
    let id = [cert.as_slice(), b"\0", key].concat();
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
