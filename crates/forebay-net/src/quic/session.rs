//! TLS of QUIC connections (RFC 9001). A session begins without a configuration: the ClientHello chooses it, as over TCP.

use crate::tls::hello::{Hello, Reading};
use crate::tls::stream::Agreed;
use quinn_proto::crypto::rustls::QuicServerConfig;
use quinn_proto::crypto::{
    self, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectionId, Side, TransportError, TransportErrorCode};
use rustls::quic::{KeyChange, Secrets, ServerConnection, Suite, Version};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::io::Cursor;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};

/// Alert `internal_error` (RFC 8446, section 6).
const INTERNAL_ERROR: u8 = 80;

/// Chooser of configurations for handshakes.
pub trait Choose {
    /// Returns the configuration for a handshake of the connection of this owner.
    ///
    /// # Errors
    /// The alert with which the handshake is refused.
    fn choose(&self, owner: u32, hello: Hello) -> Result<Arc<rustls::ServerConfig>, u8>;

    /// Notes that the connection of this owner was not established.
    fn refused(&self, owner: u32);
}

thread_local! {
    static CHOOSER: RefCell<Option<Rc<dyn Choose>>> = const { RefCell::new(None) };
    static OWNER: Cell<u32> = const { Cell::new(0) };
}

/// Asks a chooser until this is dropped. Sessions belong to quinn-proto, which wants them to be `Send`, and cannot hold it.
pub(super) struct Choosing;

impl Choosing {
    pub(super) fn by(chooser: &Rc<dyn Choose>) -> Choosing {
        CHOOSER.set(Some(chooser.clone()));
        Choosing
    }
}

impl Drop for Choosing {
    fn drop(&mut self) {
        CHOOSER.set(None);
    }
}

/// Sets the owner of the connection that is about to be handled.
pub(super) fn concern(owner: u32) {
    OWNER.set(owner);
}

/// Tells the chooser that a connection was not established.
pub(super) fn refused(owner: u32) {
    let chooser = CHOOSER.with_borrow(Clone::clone);
    if let Some(chooser) = chooser {
        chooser.refused(owner);
    }
}

fn choose(hello: Hello) -> Result<Arc<rustls::ServerConfig>, u8> {
    let chooser = CHOOSER.with_borrow(Clone::clone);
    chooser.map_or(Err(INTERNAL_ERROR), |chooser| chooser.choose(OWNER.get(), hello))
}

/// Suite of Initial packets (RFC 9001, section 5.2).
static INITIAL: LazyLock<Option<Suite>> = LazyLock::new(|| {
    let suites = rustls::crypto::aws_lc_rs::default_provider().cipher_suites;
    let found = suites.iter().find(|s| s.suite() == rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
    found.and_then(|s| s.tls13()).and_then(|s| s.quic_suite())
});

/// Configuration that makes sessions. It stands for no server.
pub(super) struct Crypto;

/// Configuration by which retries are sealed; it has no certificate.
static RETRY: LazyLock<Option<Arc<QuicServerConfig>>> = LazyLock::new(|| {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .ok()?
        .with_no_client_auth();
    let config = builder.with_cert_resolver(Arc::new(Nobody));
    QuicServerConfig::try_from(config).ok().map(Arc::new)
});

#[derive(Debug)]
struct Nobody;

impl rustls::server::ResolvesServerCert for Nobody {
    fn resolve(&self, _: rustls::server::ClientHello<'_>) -> Option<Arc<rustls::sign::CertifiedKey>> {
        None
    }
}

fn version_of(version: u32) -> Option<Version> {
    (version == 1).then_some(Version::V1)
}

impl crypto::ServerConfig for Crypto {
    fn initial_keys(&self, version: u32, dst_cid: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        let version = version_of(version).ok_or(UnsupportedVersion)?;
        initial_keys(version, dst_cid, Side::Server).ok_or(UnsupportedVersion)
    }

    fn retry_tag(&self, version: u32, orig_dst_cid: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        RETRY.as_ref().map_or([0; 16], |config| config.retry_tag(version, orig_dst_cid, packet))
    }

    fn start_session(
        self: Arc<Self>,
        version: u32,
        params: &TransportParameters,
    ) -> Box<dyn crypto::Session> {
        let mut encoded = Vec::new();
        params.write(&mut encoded);
        // `initial_keys` has accepted the version before.
        let version = version_of(version).unwrap_or(Version::V1);
        Box::new(Session {
            version,
            stage: Stage::Greeting(Reading::default(), encoded),
            next: None,
            alert: None,
        })
    }
}

fn initial_keys(version: Version, dst_cid: &ConnectionId, side: Side) -> Option<Keys> {
    let side = match side {
        Side::Client => rustls::Side::Client,
        Side::Server => rustls::Side::Server,
    };
    INITIAL.as_ref().map(|suite| boxed(suite.keys(dst_cid, side, version)))
}

fn boxed(keys: rustls::quic::Keys) -> Keys {
    Keys {
        header: KeyPair { local: Box::new(keys.local.header), remote: Box::new(keys.remote.header) },
        packet: KeyPair { local: Box::new(keys.local.packet), remote: Box::new(keys.remote.packet) },
    }
}

/// Session of a connection.
struct Session {
    version: Version,
    stage: Stage,
    next: Option<Secrets>,
    alert: Option<u8>,
}

/// Stage of a session.
enum Stage {
    /// The ClientHello is not complete; our transport parameters.
    Greeting(Reading, Vec<u8>),
    /// rustls has it.
    Chosen(Box<ServerConnection>),
}

/// Facts of a handshake.
#[derive(Debug)]
pub struct HandshakeFacts {
    /// Parameters of the connection.
    pub agreed: Agreed,
}

impl Session {
    fn chosen(&self) -> Option<&ServerConnection> {
        match &self.stage {
            Stage::Greeting(..) => None,
            Stage::Chosen(connection) => Some(connection),
        }
    }

    fn fail(&mut self, alert: u8, reason: String) -> TransportError {
        self.alert = Some(alert);
        TransportError { code: TransportErrorCode::crypto(alert), frame: None, reason }
    }
}

impl crypto::Session for Session {
    fn initial_keys(&self, dst_cid: &ConnectionId, side: Side) -> Keys {
        // They have been made for this version before, see `Crypto::initial_keys`.
        match initial_keys(self.version, dst_cid, side) {
            Some(keys) => keys,
            None => unreachable!("the suite of Initial packets exists"),
        }
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        let connection = self.chosen().filter(|c| !c.is_handshaking())?;
        Some(Box::new(HandshakeFacts { agreed: Agreed::of(connection) }))
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        let keys = self.chosen()?.zero_rtt_keys()?;
        Some((Box::new(keys.header), Box::new(keys.packet)))
    }

    fn early_data_accepted(&self) -> Option<bool> {
        None
    }

    fn is_handshaking(&self) -> bool {
        self.chosen().is_none_or(|c| c.is_handshaking())
    }

    fn read_handshake(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        let mut bytes = bytes.to_vec();
        if let Stage::Greeting(reading, params) = &mut self.stage {
            let hello = match reading.more_of_stream(&bytes) {
                Ok(Some(hello)) => hello,
                Ok(None) => return Ok(false),
                Err(e) => {
                    let alert = e.alert().unwrap_or(INTERNAL_ERROR);
                    return Err(self.fail(alert, "no ClientHello".to_owned()));
                }
            };
            let (params, received) = (std::mem::take(params), reading.stream().to_vec());
            let config = choose(hello).map_err(|alert| self.fail(alert, String::new()))?;
            let made = ServerConnection::new(config, self.version, params);
            let connection = made.map_err(|e| self.fail(INTERNAL_ERROR, e.to_string()))?;
            self.stage = Stage::Chosen(Box::new(connection));
            bytes = received;
        }
        let Stage::Chosen(connection) = &mut self.stage else { return Ok(false) };
        let before = connection.is_handshaking();
        if let Err(e) = connection.read_hs(&bytes) {
            let alert = connection.alert().map_or(INTERNAL_ERROR, u8::from);
            return Err(self.fail(alert, e.to_string()));
        }
        Ok(before && !connection.is_handshaking())
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let Some(bytes) = self.chosen().and_then(|c| c.quic_transport_parameters()) else { return Ok(None) };
        Ok(Some(TransportParameters::read(Side::Server, &mut Cursor::new(bytes))?))
    }

    fn write_handshake(&mut self, buf: &mut Vec<u8>) -> Option<Keys> {
        let Stage::Chosen(connection) = &mut self.stage else { return None };
        let keys = match connection.write_hs(buf)? {
            KeyChange::Handshake { keys } => keys,
            KeyChange::OneRtt { keys, next } => {
                self.next = Some(next);
                keys
            }
        };
        Some(boxed(keys))
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let keys = self.next.as_mut()?.next_packet_keys();
        Some(KeyPair { local: Box::new(keys.local), remote: Box::new(keys.remote) })
    }

    fn is_valid_retry(&self, _: &ConnectionId, _: &[u8], _: &[u8]) -> bool {
        // Only clients get them.
        false
    }

    fn export_keying_material(
        &self,
        _: &mut [u8],
        _: &[u8],
        _: &[u8],
    ) -> Result<(), ExportKeyingMaterialError> {
        Err(ExportKeyingMaterialError)
    }
}
