//! How a test begins.

use forebay_quic::congestion::Algorithm;
use forebay_quic::connection::Config;
use forebay_quic::parameters::TransportParameters;
use forebay_quic::stream::Limits;
use forebay_quic::version::Version;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// Certificate of the server, its key.
static CERTIFICATE: LazyLock<(CertificateDer<'static>, Vec<u8>)> = LazyLock::new(|| {
    let made = rcgen::generate_simple_self_signed(vec!["h".to_owned()]).expect("a certificate");
    (made.cert.der().clone(), made.signing_key.serialize_der())
});

/// Most streams and bytes that the tested side allows.
pub const BI: u64 = 10;
pub const UNI: u64 = 5;
pub const STREAM_WINDOW: u64 = 2000;
pub const WINDOW: u64 = 5000;
/// Identifiers that the tested side keeps.
pub const IDS: u64 = 4;

/// Settings of the tested side.
pub fn config() -> Config {
    Config {
        limits: Limits {
            stream_window: STREAM_WINDOW,
            window: WINDOW,
            bi: BI,
            uni: UNI,
            send_window: 64 << 10,
        },
        max_send_window: 1 << 20,
        idle: Duration::from_secs(30),
        keep_alive: None,
        ids: IDS,
        datagrams: 0,
        congestion: Algorithm::NewReno,
        is_paced: false,
        most_mtu: 1200,
        searches_mtu: false,
        initial_rtt: Duration::from_millis(100),
        gives_token: false,
    }
}

/// What a test changes before it begins.
#[derive(Clone)]
pub struct Setup {
    pub version: Version,
    /// Settings of the tested side.
    pub config: fn(&mut Config),
    /// Transport parameters of the wrong peer.
    pub parameters: fn(&mut TransportParameters),
    /// The same, encoded.
    pub encoded: fn(&mut Vec<u8>),
    /// Messages of TLS of the wrong peer, in a packet number space (0: Initial, 1: Handshake, 2: 1-RTT).
    pub edit: fn(usize, &mut Vec<u8>),
    /// Bytes of the identifier of the wrong peer.
    pub id_len: usize,
    /// The tested server asks for a proof of addresses.
    pub retries: bool,
    pub resets: Duration,
    /// Protocols of the client and of the server (ALPN).
    pub alpn: [&'static [u8]; 2],
    /// Sessions are resumed, and early data is sent.
    pub early: bool,
    /// Configuration of TLS that lasts for several connections.
    pub client: Option<Arc<rustls::ClientConfig>>,
    pub server: Option<Arc<rustls::ServerConfig>>,
}

impl Default for Setup {
    fn default() -> Setup {
        Setup {
            version: Version::V1,
            config: |_| {},
            parameters: |_| {},
            encoded: |_| {},
            edit: |_, _| {},
            id_len: 8,
            retries: false,
            resets: crate::node::NO_WAIT,
            alpn: [b"", b""],
            early: false,
            client: None,
            server: None,
        }
    }
}

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    static PROVIDER: LazyLock<Arc<rustls::crypto::CryptoProvider>> =
        LazyLock::new(|| Arc::new(rustls::crypto::aws_lc_rs::default_provider()));
    PROVIDER.clone()
}

fn protocols(name: &[u8]) -> Vec<Vec<u8>> {
    if name.is_empty() { Vec::new() } else { vec![name.to_vec()] }
}

impl Setup {
    pub fn server_tls(&self) -> Arc<rustls::ServerConfig> {
        if let Some(config) = &self.server {
            return config.clone();
        }
        let (certificate, key) = &*CERTIFICATE;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.clone()));
        let mut config = rustls::ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("versions")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.clone()], key)
            .expect("a certificate");
        config.max_early_data_size = u32::MAX;
        config.alpn_protocols = protocols(self.alpn[1]);
        Arc::new(config)
    }

    pub fn client_tls(&self) -> Arc<rustls::ClientConfig> {
        if let Some(config) = &self.client {
            return config.clone();
        }
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CERTIFICATE.0.clone()).expect("a certificate");
        let mut config = rustls::ClientConfig::builder_with_provider(provider())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .expect("versions")
            .with_root_certificates(roots)
            .with_no_client_auth();
        config.enable_early_data = self.early;
        config.alpn_protocols = protocols(self.alpn[0]);
        Arc::new(config)
    }

    /// Returns the same setup with configurations of TLS that several connections share.
    pub fn shared(mut self) -> Setup {
        self.early = true;
        self.client = Some(self.client_tls());
        self.server = Some(self.server_tls());
        self
    }
}
