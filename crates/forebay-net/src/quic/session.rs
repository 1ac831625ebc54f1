//! TLS of QUIC connections (RFC 9001). A session begins without a configuration: the ClientHello chooses it, as over TCP.

use super::version::{self, Agreement};
use crate::tls::hello::{Hello, Reading};
use crate::tls::sessions::{self, OverQuic};
use crate::tls::stream::Agreed;
use bytes::BytesMut;
use quinn_proto::crypto::rustls::QuicServerConfig;
use quinn_proto::crypto::{
    self, CryptoError, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey, UnsupportedVersion,
};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{ConnectionId, Side, TransportError, TransportErrorCode};
use rustls::quic::{KeyChange, Secrets, ServerConnection, Suite, Version};
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::io::Cursor;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, OnceLock};

/// Alert `internal_error` (RFC 8446, section 6).
pub(super) const INTERNAL_ERROR: u8 = 80;
/// Alert `unexpected_message`.
const UNEXPECTED_MESSAGE: u8 = 10;
/// Length of the tag of each AEAD of TLS 1.3 for QUIC, bytes.
const TAG: usize = 16;
/// Length of the sample of header protection, bytes (RFC 9001, sections 5.4.3 and 5.4.4).
const SAMPLE: usize = 16;

/// Chooser of configurations for handshakes.
pub trait Choose {
    /// Returns the configuration for a handshake of the connection of this owner.
    ///
    /// # Errors
    /// The alert with which the handshake is refused.
    fn choose(&self, owner: u32, hello: Hello) -> Result<Arc<rustls::ServerConfig>, u8>;

    /// Returns the address of the client of this owner's connection. Without it early data is refused.
    fn address(&self, _: u32) -> Option<IpAddr> {
        None
    }

    /// Notes that the connection of this owner was not established.
    fn refused(&self, owner: u32);
}

thread_local! {
    static CHOOSER: RefCell<Option<Rc<dyn Choose>>> = const { RefCell::new(None) };
    static OWNER: Cell<u32> = const { Cell::new(0) };
}

/// Asks a chooser until this is dropped. Sessions belong to quinn-proto, which wants them to be `Send`, and cannot hold it.
pub(super) struct Choosing(Option<Rc<dyn Choose>>);

impl Choosing {
    pub(super) fn by(chooser: &Rc<dyn Choose>) -> Choosing {
        Choosing(CHOOSER.replace(Some(chooser.clone())))
    }
}

impl Drop for Choosing {
    fn drop(&mut self) {
        CHOOSER.set(self.0.take());
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

/// Returns the address of the client of the connection that is handled.
fn address() -> Option<IpAddr> {
    CHOOSER.with_borrow(Clone::clone)?.address(OWNER.get())
}

/// Suite of Initial packets (RFC 9001, section 5.2).
static INITIAL: LazyLock<Option<Suite>> = LazyLock::new(|| {
    let suites = rustls::crypto::aws_lc_rs::default_provider().cipher_suites;
    let found = suites.iter().find(|s| s.suite() == rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
    found.and_then(|s| s.tls13()).and_then(|s| s.quic_suite())
});

/// Configuration that makes sessions. It stands for no server.
pub(super) struct Crypto;

/// What a session and the keys of its connection share.
struct Common {
    /// Packets are sent in version 2.
    is_v2: AtomicBool,
}

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

fn number_of(version: Version) -> u32 {
    if matches!(version, Version::V2) { version::V2 } else { version::V1 }
}

pub(super) fn version_of(version: u32) -> Option<Version> {
    match version {
        version::V1 => Some(Version::V1),
        version::V2 => Some(Version::V2),
        _ => None,
    }
}

/// Returns the version in which the datagram that is handled has come.
fn arriving() -> Version {
    if version::is_v2_arriving() { Version::V2 } else { Version::V1 }
}

impl crypto::ServerConfig for Crypto {
    fn initial_keys(&self, _: u32, dst_cid: &ConnectionId) -> Result<Keys, UnsupportedVersion> {
        initial_keys(arriving(), dst_cid, Side::Server).ok_or(UnsupportedVersion)
    }

    fn retry_tag(&self, version: u32, orig_dst_cid: &ConnectionId, packet: &[u8]) -> [u8; 16] {
        if version::is_v2_arriving() {
            return version::retry_tag(orig_dst_cid, packet).unwrap_or_default();
        }
        retry_tag(version, orig_dst_cid, packet)
    }

    fn start_session(self: Arc<Self>, _: u32, params: &TransportParameters) -> Box<dyn crypto::Session> {
        let mut encoded = Vec::new();
        params.write(&mut encoded);
        let version = arriving();
        let common = Common { is_v2: AtomicBool::new(matches!(version, Version::V2)) };
        Box::new(Session {
            begun: version,
            version,
            common: Arc::new(common),
            stage: Stage::Greeting(Reading::default(), encoded),
            next: None,
            alert: None,
            early: (None, false),
        })
    }
}

/// Returns the integrity tag of a Retry packet of version 1.
pub(super) fn retry_tag(version: u32, orig_dst_cid: &ConnectionId, packet: &[u8]) -> [u8; 16] {
    RETRY
        .as_ref()
        .map_or([0; 16], |config| crypto::ServerConfig::retry_tag(&**config, version, orig_dst_cid, packet))
}

fn side_of(side: Side) -> rustls::Side {
    match side {
        Side::Client => rustls::Side::Client,
        Side::Server => rustls::Side::Server,
    }
}

/// Returns keys of Initial packets of one version.
pub(super) fn initial_keys(version: Version, dst_cid: &ConnectionId, side: Side) -> Option<Keys> {
    INITIAL.as_ref().map(|suite| boxed_early(suite.keys(dst_cid, side_of(side), version), version))
}

pub(super) fn boxed(keys: rustls::quic::Keys, version: Version) -> Keys {
    boxed_by(keys, |key| sealing(key, version))
}

/// The same for Initial and Handshake packets.
fn boxed_early(keys: rustls::quic::Keys, version: Version) -> Keys {
    let is_v2 = matches!(version, Version::V2);
    boxed_by(keys, |rustls| Box::new(Key { rustls, is_v2, is_early: true }))
}

fn boxed_by(
    keys: rustls::quic::Keys,
    sealing: impl Fn(Box<dyn rustls::quic::PacketKey>) -> Box<dyn PacketKey>,
) -> Keys {
    Keys {
        header: KeyPair { local: Box::new(keys.local.header), remote: Box::new(keys.remote.header) },
        packet: KeyPair { local: sealing(keys.local.packet), remote: sealing(keys.remote.packet) },
    }
}

/// Returns a key of 0-RTT or 1-RTT packets.
pub(super) fn sealing(rustls: Box<dyn rustls::quic::PacketKey>, version: Version) -> Box<dyn PacketKey> {
    Box::new(Key { rustls, is_v2: matches!(version, Version::V2), is_early: false })
}

/// Opens a packet whose header may have been of version 2.
fn open(
    key: &dyn rustls::quic::PacketKey,
    is_v2: bool,
    packet: u64,
    header: &[u8],
    payload: &mut BytesMut,
) -> Result<(), CryptoError> {
    let opened = if is_v2 {
        let mut header = header.to_vec();
        version::header_on_the_wire(&mut header);
        key.decrypt_in_place(packet, &header, payload)
    } else {
        key.decrypt_in_place(packet, header, payload)
    };
    let length = opened.map_err(|_| CryptoError)?.len();
    payload.truncate(length);
    Ok(())
}

/// Key of packets of one version.
struct Key {
    rustls: Box<dyn rustls::quic::PacketKey>,
    /// Long headers are those of version 2 on the wire.
    is_v2: bool,
    /// The packets are Initial or Handshake packets.
    is_early: bool,
}

impl PacketKey for Key {
    fn encrypt(&self, packet: u64, buf: &mut [u8], header_len: usize) {
        if self.is_early && self.is_v2 {
            version::header_on_the_wire(buf);
        }
        PacketKey::encrypt(&self.rustls, packet, buf, header_len);
    }

    fn decrypt(&self, packet: u64, header: &[u8], payload: &mut BytesMut) -> Result<(), CryptoError> {
        let is_v2 = self.is_v2 && version::is_long(header);
        open(&*self.rustls, is_v2, packet, header, payload)
    }

    fn tag_len(&self) -> usize {
        self.rustls.tag_len()
    }

    fn confidentiality_limit(&self) -> u64 {
        self.rustls.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.rustls.integrity_limit()
    }
}

/// Keys of the Initial packets of a server's connection, in both versions: a client that the server upgrades goes on with version 1 until
/// the first answer reaches it (RFC 9369, section 4.1).
struct Initials {
    suite: Suite,
    id: ConnectionId,
    v1: OnceLock<rustls::quic::Keys>,
    v2: OnceLock<rustls::quic::Keys>,
    common: Arc<Common>,
}

impl Initials {
    fn of(&self, is_v2: bool) -> &rustls::quic::Keys {
        let (keys, version) = if is_v2 { (&self.v2, Version::V2) } else { (&self.v1, Version::V1) };
        keys.get_or_init(|| self.suite.keys(&self.id, rustls::Side::Server, version))
    }
}

/// Part of [`Initials`] that quinn-proto has.
#[derive(Clone)]
struct InitialKey(Arc<Initials>);

impl HeaderKey for InitialKey {
    fn decrypt(&self, pn_offset: usize, packet: &mut [u8]) {
        HeaderKey::decrypt(&self.0.of(version::is_v2_arriving()).remote.header, pn_offset, packet);
    }

    fn encrypt(&self, pn_offset: usize, packet: &mut [u8]) {
        let is_v2 = version::of_long_header(packet) == Some(version::V2);
        HeaderKey::encrypt(&self.0.of(is_v2).local.header, pn_offset, packet);
    }

    fn sample_size(&self) -> usize {
        SAMPLE
    }
}

impl PacketKey for InitialKey {
    fn encrypt(&self, packet: u64, buf: &mut [u8], header_len: usize) {
        let is_v2 = self.0.common.is_v2.load(Relaxed);
        let key = &self.0.of(is_v2).local.packet;
        if is_v2 {
            version::header_on_the_wire(buf);
        }
        PacketKey::encrypt(key, packet, buf, header_len);
    }

    fn decrypt(&self, packet: u64, header: &[u8], payload: &mut BytesMut) -> Result<(), CryptoError> {
        let is_v2 = version::is_v2_arriving();
        open(&*self.0.of(is_v2).remote.packet, is_v2, packet, header, payload)
    }

    fn tag_len(&self) -> usize {
        TAG
    }

    fn confidentiality_limit(&self) -> u64 {
        self.0.of(self.0.common.is_v2.load(Relaxed)).local.packet.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.0.of(self.0.common.is_v2.load(Relaxed)).local.packet.integrity_limit()
    }
}

/// Session of a connection.
struct Session {
    /// Version that the client has begun with.
    begun: Version,
    /// Version in use.
    version: Version,
    common: Arc<Common>,
    stage: Stage,
    next: Option<Secrets>,
    alert: Option<u8>,
    /// Address of the client with its ClientHello, and whether it offers early data.
    early: (Option<IpAddr>, bool),
}

/// Stage of a session.
enum Stage {
    /// The ClientHello is not complete; our transport parameters.
    Greeting(Reading, Vec<u8>),
    /// rustls has it.
    Chosen(Box<ServerConnection>),
    /// The handshake is complete, and everything of it is sent. rustls' state, about 5 KB, has no more use.
    Done(Box<Agreed>),
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
            Stage::Greeting(..) | Stage::Done(_) => None,
            Stage::Chosen(connection) => Some(connection),
        }
    }

    fn fail(&mut self, alert: u8, reason: String) -> TransportError {
        self.alert = Some(alert);
        TransportError { code: TransportErrorCode::crypto(alert), frame: None, reason }
    }
}

/// Reads the transport parameters of a client.
pub(super) fn read_parameters(bytes: &[u8], version: u32) -> Result<TransportParameters, TransportError> {
    let error = |code, reason: &str| TransportError { code, frame: None, reason: reason.to_owned() };
    let wrong = |reason| error(TransportErrorCode::TRANSPORT_PARAMETER_ERROR, reason);
    match version::judge(bytes, version) {
        Agreement::Good => {}
        // RFC 9368, section 8.
        Agreement::Other => {
            let reason = "version information of the client is of another version";
            return Err(error(TransportErrorCode::VERSION_NEGOTIATION_ERROR, reason));
        }
        Agreement::Malformed => return Err(wrong("version information of the client is malformed")),
    }
    // RFC 9000, section 7.4. quinn-proto finds those that it knows only.
    if version::repeats_parameter(bytes) {
        return Err(wrong("client sent a transport parameter twice"));
    }
    Ok(TransportParameters::read(Side::Server, &mut Cursor::new(bytes))?)
}

impl crypto::Session for Session {
    fn initial_keys(&self, dst_cid: &ConnectionId, _: Side) -> Keys {
        // `Crypto::initial_keys` has found the suite before.
        let Some(suite) = *INITIAL else { unreachable!("the suite of Initial packets exists") };
        let (id, common) = (*dst_cid, self.common.clone());
        let key =
            InitialKey(Arc::new(Initials { suite, id, v1: OnceLock::new(), v2: OnceLock::new(), common }));
        Keys {
            header: KeyPair { local: Box::new(key.clone()), remote: Box::new(key.clone()) },
            packet: KeyPair { local: Box::new(key.clone()), remote: Box::new(key) },
        }
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        let agreed = match &self.stage {
            Stage::Greeting(..) => return None,
            Stage::Chosen(connection) => Agreed::of(connection),
            Stage::Done(agreed) => Agreed::clone(agreed),
        };
        Some(Box::new(HandshakeFacts { agreed }))
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        let keys = self.chosen()?.zero_rtt_keys()?;
        Some((Box::new(keys.header), sealing(keys.packet, self.version)))
    }

    fn early_data_accepted(&self) -> Option<bool> {
        None
    }

    fn is_handshaking(&self) -> bool {
        match &self.stage {
            Stage::Greeting(..) => true,
            Stage::Chosen(connection) => connection.is_handshaking(),
            Stage::Done(_) => false,
        }
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
            let (mut params, received) = (std::mem::take(params), reading.stream().to_vec());
            // 0-RTT packets are of the version that the client has begun with.
            if matches!(self.version, Version::V1)
                && !hello.early_data
                && version::prefers_v2(&hello.transport_parameters)
            {
                self.version = Version::V2;
                self.common.is_v2.store(true, Relaxed);
            }
            version::push_version_information(&mut params, number_of(self.version));
            self.early = (address(), hello.early_data);
            let config = choose(hello).map_err(|alert| self.fail(alert, String::new()))?;
            let made = ServerConnection::new(config, self.version, params);
            let connection = made.map_err(|e| self.fail(INTERNAL_ERROR, e.to_string()))?;
            self.stage = Stage::Chosen(Box::new(connection));
            bytes = received;
        }
        let Stage::Chosen(connection) = &mut self.stage else {
            // A client has nothing to say after the handshake, not even KeyUpdate (RFC 9001, section 6).
            return Err(self.fail(UNEXPECTED_MESSAGE, "client sent a message after the handshake".to_owned()));
        };
        let before = connection.is_handshaking();
        let [begun_by_v2, is_v2] = [self.begun, self.version].map(|v| matches!(v, Version::V2));
        let (address, has_early_data) = self.early;
        let handshake = OverQuic { begun_by_v2, is_v2, address, has_early_data };
        if let Err(e) = sessions::over_quic(handshake, || connection.read_hs(&bytes)) {
            let alert = connection.alert().map_or(INTERNAL_ERROR, u8::from);
            return Err(self.fail(alert, e.to_string()));
        }
        Ok(before && !connection.is_handshaking())
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let Some(bytes) = self.chosen().and_then(|c| c.quic_transport_parameters()) else { return Ok(None) };
        read_parameters(bytes, number_of(self.begun)).map(Some)
    }

    fn write_handshake(&mut self, buf: &mut Vec<u8>) -> Option<Keys> {
        let Stage::Chosen(connection) = &mut self.stage else { return None };
        match connection.write_hs(buf) {
            Some(KeyChange::Handshake { keys }) => Some(boxed_early(keys, self.version)),
            Some(KeyChange::OneRtt { keys, next }) => {
                self.next = Some(next);
                Some(boxed(keys, self.version))
            }
            None => {
                if buf.is_empty() && !connection.is_handshaking() {
                    self.stage = Stage::Done(Box::new(Agreed::of(connection)));
                }
                None
            }
        }
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let keys = self.next.as_mut()?.next_packet_keys();
        let sealing = |key| sealing(key, self.version);
        Some(KeyPair { local: sealing(keys.local), remote: sealing(keys.remote) })
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
