//! TLS to upstreams (nginx: proxy_ssl_*), with one [`ClientTls`] a location. After the handshake,
//! `forebay-net/src/tls/verify/mod.rs` verifies the certificate of the server.

use super::certified::certified_files;
use super::files::FileName;
use super::loader::{Loader, is_fixed};
use super::presented::Loaded;
use super::proxy_ssl::Settings;
use super::server_config::{provider, versions};
use crate::config::Build;
use crate::vars::{Evaluate, Template};
use forebay_conf::error::Error;
use forebay_net::dial::{HandshakeError, handshake};
use forebay_net::io::Io;
use forebay_net::tls::certified::VerifyLater;
use forebay_net::tls::ciphers;
use forebay_net::tls::sessions::{Context, context};
use forebay_net::tls::verify::{self, Trust};
use forebay_net::wire::{Watch, Wire};
use forebay_sys::errno::errno_text;
use rustls::client::{ClientSessionMemoryCache, ResolvesClientCert, Resumption, UnbufferedClientConnection};
use rustls::crypto::SupportedKxGroup;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::sign::CertifiedKey;
use rustls::{ClientConfig, SignatureScheme, SupportedCipherSuite};
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use zeroize::Zeroizing;

/// Most sessions kept for a location.
const SESSIONS: usize = 256;

/// TLS settings of a location for its upstreams.
#[derive(Debug)]
pub struct ClientTls {
    config: Arc<ClientConfig>,
    /// The same for connections over QUIC, which have sessions of their own, if there are any.
    quic: Option<Arc<ClientConfig>>,
    /// Certificate and key, if their names have variables.
    dynamic: Option<(FileName, FileName)>,
    passwords: Arc<Vec<Zeroizing<Vec<u8>>>>,
    /// `proxy_ssl_certificate_cache`. Without it the files are read for each connection.
    cached: Option<Loaded>,
    /// `proxy_ssl_name`.
    name: Option<Template>,
    /// `proxy_ssl_verify`.
    verify: Option<Arc<Trust>>,
    /// `proxy_ssl_verify_names`.
    verify_names: Arc<[String]>,
    /// Hash of all settings that affect a connection or its verification. Equal settings in another location or after a
    /// reload have the same hash.
    fingerprint: Context,
}

/// Reason for which a connection to a server could not be encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unencrypted {
    /// The handshake or the server's certificate failed, with the text for the error log.
    Failed(String),
    /// This machine could not begin the handshake, since it cannot read the certificate to present: the text for the error log. The
    /// server is not to blame.
    Own(String),
    /// The server did not answer in time.
    Timeout,
    /// The client, which was watched, closed its connection.
    ClientGone,
}

impl From<HandshakeError> for Unencrypted {
    fn from(e: HandshakeError) -> Unencrypted {
        Unencrypted::Failed(match e {
            HandshakeError::Closed => "peer closed connection in SSL handshake".to_owned(),
            HandshakeError::Failed(e) => format!("SSL_do_handshake() failed {}", errno_text(e)),
            HandshakeError::Refused(text) => format!("SSL_do_handshake() failed (SSL: {text})"),
            HandshakeError::Timeout => return Unencrypted::Timeout,
            HandshakeError::ClientGone => return Unencrypted::ClientGone,
        })
    }
}

/// Properties of a connection to an upstream. Connections are reused only for equal ones.
#[derive(Clone, Debug)]
pub struct Wanted {
    /// The location's settings.
    pub tls: Arc<ClientTls>,
    /// Name of the server, to be found in its certificate.
    pub name: String,
    /// Names of certificate and key.
    files: Option<(Vec<u8>, Vec<u8>)>,
    /// Protocols to offer; `None`: those of the location.
    protocols: Option<Vec<Vec<u8>>>,
}

impl Wanted {
    /// Offers these protocols instead of those that the location's connections have in common.
    pub fn offer(&mut self, protocols: Vec<Vec<u8>>) {
        self.protocols = Some(protocols);
    }

    /// Returns a key for reusing connections, never 0. It is a hash with a random seed: the name may come from a
    /// client, which must not be able to provoke collisions.
    pub fn key(&self) -> u64 {
        static STATE: LazyLock<RandomState> = LazyLock::new(RandomState::new);
        STATE.hash_one((&self.tls.fingerprint, &self.name, &self.files, &self.protocols)) | 1
    }

    /// Encrypts a connection to the server and verifies its certificate. Reads a client certificate whose name has variables
    /// on the blocking pool, relative to `base`.
    ///
    /// Returns the protocol that ALPN has agreed on.
    ///
    /// # Errors
    /// [`Unencrypted`].
    pub async fn encrypt(
        &self,
        io: &Io,
        wire: &mut Wire,
        base: &Path,
        timeout: Duration,
        watch: &mut Watch,
    ) -> Result<Option<Box<[u8]>>, Unencrypted> {
        let begun = self.begin(base).await.map_err(Unencrypted::Own)?;
        let agreed = handshake(io, wire, begun, timeout, watch).await?;
        self.tls.judge(&agreed.peer, &self.name).map_err(Unencrypted::Failed)?;
        Ok(agreed.alpn)
    }

    /// Returns the configuration of a connection over QUIC, and the name for its handshake. Reads certificates whose names have variables
    /// on the blocking pool, relative to `base`. The caller judges the certificate of the server ([`ClientTls::judge`]).
    ///
    /// # Errors
    /// The text for the error log.
    pub async fn over_quic(&self, base: &Path) -> Result<(Arc<ClientConfig>, String), String> {
        let Some(config) = self.tls.quic.clone() else { return Err("no TLS for QUIC".to_owned()) };
        let name = match server_name(&self.name)? {
            ServerName::IpAddress(_) => self.name.clone(),
            name => name.to_str().into_owned(),
        };
        Ok((self.with_certificate(config, base).await?, name))
    }

    /// Completes a configuration with the certificate to present, if its name has variables.
    async fn with_certificate(
        &self,
        mut config: Arc<ClientConfig>,
        base: &Path,
    ) -> Result<Arc<ClientConfig>, String> {
        if let Some(files) = self.files.as_ref().filter(|files| !files.0.is_empty()) {
            let key = self.certificate(files, base).await?;
            Arc::make_mut(&mut config).client_auth_cert_resolver = Arc::new(Presents(Some(key)));
        }
        Ok(config)
    }

    /// Begins a connection. Reads certificates whose names have variables on the blocking pool, relative to `base`.
    ///
    /// # Errors
    /// The text for the error log.
    pub(super) async fn begin(&self, base: &Path) -> Result<UnbufferedClientConnection, String> {
        let mut config = self.with_certificate(self.tls.config.clone(), base).await?;
        if let Some(protocols) = &self.protocols {
            Arc::make_mut(&mut config).alpn_protocols.clone_from(protocols);
        }
        UnbufferedClientConnection::new(config, server_name(&self.name)?).map_err(|e| e.to_string())
    }

    /// Returns the certificate of these files, which have been loaded before or are read now.
    async fn certificate(
        &self,
        files: &(Vec<u8>, Vec<u8>),
        base: &Path,
    ) -> Result<Arc<CertifiedKey>, String> {
        if let Some(key) = self.tls.cached.as_ref().and_then(|cached| cached.of_files(files)) {
            return Ok(key);
        }
        let (tls, files, base) = (self.tls.clone(), files.clone(), base.to_owned());
        let work = move || certified_files(&files, &base, &tls.passwords, tls.cached.as_ref());
        let loaded = tokio::task::spawn_blocking(work).await;
        loaded.unwrap_or_else(|_| Err("reading a certificate ended".to_owned()))
    }
}

fn server_name(name: &str) -> Result<ServerName<'static>, String> {
    ServerName::try_from(name.to_owned())
        .or_else(|_| ServerName::try_from("upstream.invalid"))
        .map_err(|e| e.to_string())
}

/// Protocols that are offered by ALPN.
#[derive(Clone, Copy, Debug, Default)]
pub struct OfferedProtocols<'a> {
    /// Over TCP.
    pub alpn: &'a [&'a [u8]],
    /// Over QUIC; `None`: there is none.
    pub quic: Option<&'a [&'a [u8]]>,
}

impl ClientTls {
    /// Reads the settings of a location.
    ///
    /// # Errors
    /// In nginx's words; without TLS 1.3 for QUIC.
    pub fn new(
        s: &Settings,
        offered: OfferedProtocols<'_>,
        loader: &mut Loader,
        cx: &mut Build<'_>,
    ) -> Result<ClientTls, Error> {
        let OfferedProtocols { alpn, quic } = offered;
        let Certificate { fixed, dynamic } = certificate(s, loader, cx)?;
        let verify = verifier(s)?;
        let spoken = Spoken::of(s);
        let named = dynamic.as_ref().map(|(cert, key)| [cert.text.as_slice(), &key.text]);
        let shown = fixed.as_ref().map(|k| k.cert.as_slice()).unwrap_or_default();
        let trusted = verify.as_ref().map(|t| t.fingerprint());
        let fingerprint = context(
            [spoken.bits(s, alpn).as_slice(), &spoken.numbers()]
                .into_iter()
                .chain(alpn.iter().copied())
                .chain(trusted.as_ref().map(Context::as_slice))
                .chain([(s.verify_names.0.len() as u64).to_le_bytes().as_slice()])
                .chain(s.verify_names.0.iter().map(String::as_bytes))
                .chain(named.into_iter().flatten())
                .chain(shown.iter().map(AsRef::as_ref)),
        );
        Ok(ClientTls {
            quic: quic.map(|protocols| spoken.over_quic(s, protocols, fixed.clone())).transpose()?,
            config: Arc::new(spoken.config(s, alpn, fixed)?),
            dynamic,
            passwords: s.password_file.0.clone(),
            cached: s.certificate_cache.0.map(Loaded::new),
            name: s.name.clone(),
            verify,
            verify_names: s.verify_names.0.clone(),
            fingerprint,
        })
    }

    /// Returns `true` if certificates of servers are verified.
    pub fn verifies(&self) -> bool {
        self.verify.is_some()
    }

    /// Returns `true` if the name of the certificate to present has variables, so that its files are read while requests are served.
    pub fn reads_certificates(&self) -> bool {
        self.dynamic.is_some()
    }

    /// Begins a health check's connection to `host`, which offers protocols by ALPN. Also returns the name to look for in the
    /// server's certificate. Without a request there are no variables: ignores a `proxy_ssl_name` and a client certificate that
    /// use them.
    ///
    /// # Errors
    /// The text for the error log.
    pub fn begin_check(
        &self,
        host: &[u8],
        protocols: &[&[u8]],
    ) -> Result<(String, rustls::ClientConnection), String> {
        let name = without_port(self.name.as_ref().and_then(|t| t.as_const()).unwrap_or(host));
        let mut config = ClientConfig::clone(&self.config);
        config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
        let connection = rustls::ClientConnection::new(Arc::new(config), server_name(&name)?);
        Ok((name, connection.map_err(|e| e.to_string())?))
    }

    /// Verifies the certificates of a server of this name, its own first (nginx: proxy_ssl_verify).
    ///
    /// # Errors
    /// The text for the error log.
    pub fn judge(&self, certificates: &[CertificateDer<'_>], name: &str) -> Result<(), String> {
        let Some(trust) = &self.verify else { return Ok(()) };
        if let Err(f) = trust.verify(certificates, verify::Purpose::Server, verify::now()) {
            return Err(format!("upstream SSL certificate verify error: ({}:{})", f.0, f.text()));
        }
        let own = certificates.first();
        if !self.verify_names.is_empty() {
            return match own.is_some_and(|c| verify::has_alternative_name(c, &self.verify_names)) {
                true => Ok(()),
                false => Err("upstream SSL certificate has none of \"proxy_ssl_verify_names\"".to_owned()),
            };
        }
        if !own.is_some_and(|c| verify::is_for_host(c, name)) {
            return Err(format!("upstream SSL certificate does not match \"{name}\""));
        }
        Ok(())
    }

    /// Returns the properties of the connection that a request or session needs. `host` returns the name of the server unless
    /// `proxy_ssl_name` gives another.
    pub fn wanted<E: Evaluate>(self: &Arc<Self>, eval: &mut E, host: impl FnOnce(&E) -> Vec<u8>) -> Wanted {
        let name = match &self.name {
            Some(t) => t.value(eval).unwrap_or_default(),
            None => host(eval),
        };
        let name = without_port(&name);
        let files = self.dynamic.as_ref().map(|(cert, key)| {
            (cert.template.value(eval).unwrap_or_default(), key.template.value(eval).unwrap_or_default())
        });
        Wanted { tls: self.clone(), name, files, protocols: None }
    }
}

/// Certificate for servers that ask for one (nginx: proxy_ssl_certificate).
#[derive(Default)]
struct Certificate {
    /// Loaded.
    fixed: Option<Arc<CertifiedKey>>,
    /// Names of certificate and key, if they have variables.
    dynamic: Option<(FileName, FileName)>,
}

fn certificate(s: &Settings, loader: &mut Loader, cx: &mut Build<'_>) -> Result<Certificate, Error> {
    let c = &s.conf_command;
    let cert = c.certificate.as_ref().or(s.certificate.0.last()).filter(|c| !c.text.is_empty());
    let Some(cert) = cert else {
        return match &c.key {
            Some(key) => Err(key.error("no certificate is defined for \"PrivateKey\"".to_owned())),
            None => Ok(Certificate::default()),
        };
    };
    let Some(key) = c.key.as_ref().or(s.certificate_key.0.last()) else {
        let text = String::from_utf8_lossy(&cert.text).into_owned();
        return Err(
            cert.error(format!("no \"proxy_ssl_certificate_key\" is defined for certificate \"{text}\""))
        );
    };
    Ok(if is_fixed(cert, key) {
        let key = loader.load(cert, key, &s.password_file.0, cx)?;
        Certificate { fixed: Some(key), ..Certificate::default() }
    } else {
        Certificate { dynamic: Some((cert.clone(), key.clone())), ..Certificate::default() }
    })
}

/// Returns the authorities for servers' certificates, if these are verified.
fn verifier(s: &Settings) -> Result<Option<Arc<Trust>>, Error> {
    if !s.verify {
        return Ok(None);
    }
    if s.trusted_certificate.0.is_empty() {
        return Err(crate::config::plain("no proxy_ssl_trusted_certificate for proxy_ssl_verify"));
    }
    let (anchors, lists) = (s.trusted_certificate.0.to_vec(), s.crl.0.to_vec());
    Ok(Some(Arc::new(Trust::new(anchors, Vec::new(), lists, s.verify_depth.0 as usize))))
}

/// Versions, suites and groups that a location offers.
#[derive(Clone)]
struct Spoken {
    v12: bool,
    v13: bool,
    suites: Vec<SupportedCipherSuite>,
    groups: Vec<&'static dyn SupportedKxGroup>,
}

impl Spoken {
    fn of(s: &Settings) -> Spoken {
        let c = &s.conf_command;
        let list = c.ciphers.clone().unwrap_or_else(|| s.ciphers.0.clone());
        let mut suites = c.suites13.clone().unwrap_or_else(ciphers::all13);
        suites.retain(|s| list.allows(s));
        suites.extend(list.suites());
        Spoken {
            v12: c.v12.unwrap_or(s.protocols.v12),
            v13: c.v13.unwrap_or(s.protocols.v13),
            suites,
            groups: c.groups.as_ref().map_or_else(ciphers::default_groups, |g| g.0.to_vec()),
        }
    }

    /// Returns the settings that are on or off and the number of protocols, for a fingerprint.
    fn bits(&self, s: &Settings, alpn: &[&[u8]]) -> [u8; 6] {
        let [v12, v13, name, reuse, verify] =
            [self.v12, self.v13, s.server_name, s.session_reuse, s.verify].map(u8::from);
        [v12, v13, name, reuse, verify, alpn.len() as u8]
    }

    /// Returns the numbers of suites and groups, for a fingerprint.
    fn numbers(&self) -> Vec<u8> {
        let suites = self.suites.iter().map(|s| u16::from(s.suite()));
        let groups = self.groups.iter().map(|g| u16::from(g.name()));
        suites.chain([0]).chain(groups).flat_map(u16::to_be_bytes).collect()
    }

    /// Builds a configuration for connections over QUIC. `fixed` is the certificate to present.
    fn over_quic(
        &self,
        s: &Settings,
        protocols: &[&[u8]],
        fixed: Option<Arc<CertifiedKey>>,
    ) -> Result<Arc<ClientConfig>, Error> {
        if !self.v13 {
            return Err(crate::config::plain("HTTP/3 needs TLSv1.3 among \"proxy_ssl_protocols\""));
        }
        let spoken = Spoken { v12: false, ..self.clone() };
        Ok(Arc::new(spoken.config(s, protocols, fixed)?))
    }

    /// Builds a configuration for rustls. `fixed` is the certificate to present.
    fn config(
        self,
        s: &Settings,
        alpn: &[&[u8]],
        fixed: Option<Arc<CertifiedKey>>,
    ) -> Result<ClientConfig, Error> {
        let mut config = ClientConfig::builder_with_provider(provider(self.suites, self.groups))
            .with_protocol_versions(&versions(self.v12, self.v13))
            .map_err(|e| {
                crate::config::plain(&format!("proxy_ssl_protocols and proxy_ssl_ciphers do not fit: {e}"))
            })?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(VerifyLater))
            .with_client_cert_resolver(Arc::new(Presents(fixed)));
        config.enable_secret_extraction = true;
        config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
        config.enable_sni = s.server_name;
        config.resumption = if s.session_reuse {
            Resumption::store(Arc::new(ClientSessionMemoryCache::new(SESSIONS)))
        } else {
            Resumption::disabled()
        };
        if let Some(log) = s.key_log.for_connections() {
            config.key_log = log;
        }
        Ok(config)
    }
}

/// Returns the host of an address without its port.
fn without_port(name: &[u8]) -> String {
    let name = String::from_utf8_lossy(name).into_owned();
    match name.strip_prefix('[').and_then(|n| n.split_once(']')) {
        Some((inner, _)) => inner.to_owned(),
        None => name.split(':').next().unwrap_or_default().to_owned(),
    }
}

/// Resolver with the client certificate to present, if any.
#[derive(Debug)]
struct Presents(Option<Arc<CertifiedKey>>);

impl ResolvesClientCert for Presents {
    fn resolve(&self, _: &[&[u8]], schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        self.0.clone().filter(|k| k.key.choose_scheme(schemes).is_some())
    }
    fn has_certs(&self) -> bool {
        self.0.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Environment, Scope};
    use crate::tls::proxy_ssl::Written;
    use forebay_conf::files::Files;
    use forebay_conf::tree::Block;

    /// Reads the directives of a level and returns the fingerprint of its connections.
    fn fingerprint(level: &Block, build: Build<'_>) -> Context {
        let (mut written, mut scope) = (Written::default(), Scope::main(build));
        for d in level {
            let bound = written.set(d, &mut scope).unwrap_or_else(|e| panic!("{}", e.message));
            assert!(bound, "{}", d.name.as_str());
        }
        let made = ClientTls::new(
            &written.resolve(),
            OfferedProtocols::default(),
            &mut Loader::default(),
            &mut scope,
        );
        made.unwrap_or_else(|e| panic!("{}", e.message)).fingerprint
    }

    /// Returns the fingerprints of the connections of each location.
    fn fingerprints(locations: &[&str], files: &[(&str, String)]) -> Vec<Context> {
        let text: String = locations.iter().map(|l| format!("server {{ {l} }}\n")).collect();
        let text = format!("http {{ {text} }}");
        let env = Environment {
            prefix: "/test/".into(),
            conf_path: "/test/nginx.conf".into(),
            globals: String::new(),
            error_log: None,
            access_log: "access.log".into(),
        };
        let files = files.iter().map(|(name, text)| (*name, text.clone()));
        let mut files = Files::recorded(files.chain([("/test/nginx.conf", text)]));
        let parsed = forebay_conf::parse::parse(&env.conf_path, "", "/test".as_ref(), &mut files);
        assert_eq!(parsed.errors.len(), 0);
        let blocks = |level: &Block| level.iter().filter_map(|d| d.block.clone()).collect::<Vec<_>>();
        let servers: Vec<Block> = blocks(&parsed.tree.root).iter().flat_map(blocks).collect();
        let mut warnings = Vec::new();
        let of = |level: &Block| fingerprint(level, Build::new(&env, &mut files, &mut warnings));
        servers.iter().map(of).collect()
    }

    #[test]
    fn reasons_of_failed_handshakes() {
        let text = |e: HandshakeError| match Unencrypted::from(e) {
            Unencrypted::Failed(text) => text,
            other => format!("{other:?}"),
        };
        assert_eq!(text(HandshakeError::Closed), "peer closed connection in SSL handshake");
        let reset = HandshakeError::Failed(rustix::io::Errno::CONNRESET);
        assert_eq!(text(reset), "SSL_do_handshake() failed (104: Connection reset by peer)");
        assert_eq!(text(HandshakeError::Refused("x".into())), "SSL_do_handshake() failed (SSL: x)");
        assert_eq!(text(HandshakeError::Timeout), "Timeout");
        assert_eq!(text(HandshakeError::ClientGone), "ClientGone");
    }

    /// Idle connections serve requests with the same settings, also after a reload.
    #[test]
    fn connections_are_told_apart_by_what_counts() {
        let dir = tempfile::tempdir().unwrap();
        let openssl = |args: &str| {
            let done =
                std::process::Command::new("openssl").args(args.split(' ')).current_dir(dir.path()).output();
            done.is_ok_and(|d| d.status.success())
        };
        std::fs::write(dir.path().join("c"), "[ca]\ndefault_ca=d\n[d]\ndatabase=i\ndefault_md=sha256\n")
            .unwrap();
        std::fs::write(dir.path().join("i"), "").unwrap();
        let list = |from: &str, name: &str| {
            let dates = format!("-crl_lastupdate {from}000000Z -crl_nextupdate 20490101000000Z");
            openssl(&format!("ca -config c -gencrl -cert ca.crt -keyfile ca.key -out {name} {dates}"))
        };
        let made = openssl("req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.crt -subj /CN=ca")
            && list("20240101", "old.crl")
            && list("20250101", "new.crl");
        if !made {
            assert!(std::env::var_os("CI").is_none(), "openssl is missing");
            println!("skipped: openssl is missing");
            return;
        }
        let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        let with = |crl: &str| [("/test/ca.crt", read("ca.crt")), ("/test/ca.crl", read(crl))];
        let verify = "proxy_ssl_verify on; proxy_ssl_trusted_certificate ca.crt;";
        let all = [
            "",
            "proxy_ssl_server_name on;",
            "proxy_ssl_protocols TLSv1.3;",
            "proxy_ssl_ciphers ECDHE-RSA-AES128-GCM-SHA256;",
            verify,
            &format!("{verify} proxy_ssl_verify_depth 2;"),
            &format!("{verify} proxy_ssl_crl ca.crl;"),
            &format!("{verify} proxy_ssl_verify_names a.test;"),
            &format!("{verify} proxy_ssl_verify_names a.test b.test;"),
        ];
        let first = fingerprints(&all, &with("old.crl"));
        assert_eq!(first.len(), all.len());
        for (i, one) in first.iter().enumerate() {
            assert!(first.iter().skip(i + 1).all(|other| other != one), "{}", all[i]);
        }
        assert_eq!(fingerprints(&all, &with("old.crl")), first, "nothing has changed");
        let newer = fingerprints(&all, &with("new.crl"));
        assert_eq!(newer[..6], first[..6]);
        assert_ne!(newer[6], first[6], "the list is another one");
    }
}
