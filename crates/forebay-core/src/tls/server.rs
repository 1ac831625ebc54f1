//! TLS settings of virtual servers: certificates, versions, suites, groups, and requirements on clients. `loader.rs` builds
//! them once per configuration.

use super::certified::{certified_files, is_inline};
use super::demands::Demands;
use super::files::FileName;
use super::ocsp::client::Check;
use super::presented::{Loaded, Presented};
use forebay_net::tls::ciphers::is_post_quantum;
use forebay_net::tls::hello::Hello;
use forebay_net::tls::verify::Trust;
use forebay_net::tls::{ciphers, rsa_pss, sessions};
use rustls::ServerConfig;
use rustls::sign::CertifiedKey;
use std::path::Path;
use std::sync::{Arc, OnceLock};
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

/// TLS of a virtual server, which may have no certificate.
#[derive(Clone, Debug)]
pub struct VirtualTls {
    /// Demands on clients, also on those whose handshake another server has made.
    pub demands: Demands,
    /// Handshakes of the server. `None`: it has no certificate, and the default server makes them.
    pub handshakes: Option<Arc<ServerTls>>,
}

impl VirtualTls {
    /// Creates the TLS of a server whose settings have not been read yet: no client may use it.
    pub fn unread() -> VirtualTls {
        VirtualTls { demands: Demands::UNMEETABLE, handshakes: None }
    }
}

/// Handshakes of a virtual server with a certificate.
#[derive(Debug)]
pub struct ServerTls {
    /// Configuration for rustls. It has no certificates if their names have variables.
    pub(super) config: Arc<ServerConfig>,
    /// `config` without post-quantum groups. `None`: it has none, or no others.
    pub(super) classical: Option<Arc<ServerConfig>>,
    /// Variants of `config`, then of `classical`: with the optional protocol, and both for clients that prefer ChaCha20 because they
    /// compute AES slowly. Each is built on first use.
    pub(super) variants: [[OnceLock<Arc<ServerConfig>>; 3]; 2],
    /// Variant of `config` for QUIC.
    pub(super) quic: OnceLock<Arc<ServerConfig>>,
    /// No directive says whose order of suites counts, so suites are ordered by cost.
    pub(super) by_cost: bool,
    /// Names of certificate and key that have to be evaluated for each connection.
    pub(super) dynamic: Vec<(FileName, FileName)>,
    /// Cache of certificates from `dynamic`, by name.
    pub(super) loaded: Option<Arc<Loaded>>,
    /// Passwords of keys that are loaded later.
    pub(super) passwords: Arc<Vec<Zeroizing<Vec<u8>>>>,
    /// `ssl_verify_client` is not off.
    pub(super) asks: bool,
    /// Authorities for clients' certificates.
    pub(super) trust: Option<Arc<Trust>>,
    /// See [`ServerTls::basis`].
    pub(super) basis: Option<sessions::Context>,
    /// `ssl_reject_handshake`.
    pub(super) reject: bool,
    /// Settings that depend on the front end.
    pub(super) application: Application,
    /// Certificates to present.
    pub(super) presented: Arc<Presented>,
    /// `ssl_ocsp`.
    pub(super) ocsp: Option<Arc<Check>>,
}

impl ServerTls {
    /// Returns the configuration for a client. `optional`: with [`Application::optional`].
    pub(super) fn config_for(&self, hello: &Hello, optional: bool) -> &Arc<ServerConfig> {
        let by_client = self.by_cost && ciphers::begins_with_chacha(&hello.ciphers);
        let optional = self.application.optional.filter(|_| optional);
        let classical =
            self.classical.as_ref().filter(|classical| spares_retry(&self.config, classical, hello));
        let base = classical.unwrap_or(&self.config);
        let [other, slow, slow_other] = &self.variants[usize::from(classical.is_some())];
        let place = match (by_client, optional) {
            (false, None) => return base,
            (false, Some(_)) => other,
            (true, None) => slow,
            (true, Some(_)) => slow_other,
        };
        place.get_or_init(|| {
            let mut config = ServerConfig::clone(base);
            if let Some(protocol) = optional {
                config.alpn_protocols.insert(0, protocol.to_vec());
            }
            config.ignore_client_order &= !by_client;
            Arc::new(config)
        })
    }

    /// Returns the variant of a configuration of this server for QUIC, with these protocols. Early data is refused where clients have to
    /// show certificates.
    pub(super) fn for_quic(
        &self,
        config: &Arc<ServerConfig>,
        protocols: &'static [&'static [u8]],
    ) -> Arc<ServerConfig> {
        let make = || {
            let mut config = ServerConfig::clone(config);
            config.alpn_protocols = protocols.iter().map(|protocol| protocol.to_vec()).collect();
            let early = config.max_early_data_size > 0 && !self.asks;
            // RFC 9001, section 4.6.1.
            config.max_early_data_size = if early { u32::MAX } else { 0 };
            // A client needs one connection, not several at a time as with HTTP/1.
            config.send_tls13_tickets = config.send_tls13_tickets.min(1);
            Arc::new(config)
        };
        // Kept for the usual one only: servers that share this may speak different protocols.
        let usual = Arc::ptr_eq(config, &self.config) && protocols == [b"h3"];
        if usual { self.quic.get_or_init(make).clone() } else { make() }
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
            keys.push(k.get());
        }
        for key in loaded {
            keys.retain(|other| !same_kind(other, &key));
            keys.push(key);
        }
        let mut config = config.clone();
        config.cert_resolver = Arc::new(Presented::fixed(keys));
        Arc::new(config)
    }
}

/// Returns `true` if a client that resumes a session has to be spared a HelloRetryRequest. Its session may be another server's with a
/// suite of another hash. The client then takes it out of its second ClientHello (RFC 8446, section 4.1.2), which rustls refuses. Such a
/// client has a key share for the group of the other server alone, which may not have had post-quantum groups.
fn spares_retry(config: &ServerConfig, classical: &ServerConfig, hello: &Hello) -> bool {
    let of = |config: &ServerConfig, fits: &dyn Fn(u16) -> bool| {
        config.crypto_provider().kx_groups.iter().any(|group| fits(group.name().into()))
    };
    hello.v13
        && hello.offers_session
        && of(config, &|g| is_post_quantum(g) && hello.groups.contains(&g) && !hello.shares.contains(&g))
        && of(classical, &|g| hello.shares.contains(&g))
}

/// Returns `true` if the keys have the same algorithm. As in OpenSSL, the later certificate then replaces the earlier
/// one.
pub(super) fn same_kind(a: &CertifiedKey, b: &CertifiedKey) -> bool {
    a.key.algorithm() == b.key.algorithm() && rsa_pss::signs(&*a.key) == rsa_pss::signs(&*b.key)
}
