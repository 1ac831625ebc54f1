//! Connections that this side begins. A [`Client`] is an [`Endpoint`] that takes none.

use super::{
    Arrival, Choose, Congestion, Endpoint, HostKey, Link, Mask, Owner, Place, Received, Settings, session,
};
use crate::addr::PeerAddr;
use crate::dial::{DialError, LocalAddress, OwnStep, own};
use crate::tls::hello::Hello;
use bytes::Bytes;
use forebay_sys::datagrams::Batch;
use quinn_proto::crypto::{self, ExportKeyingMaterialError, HeaderKey, KeyPair, Keys, PacketKey};
use quinn_proto::transport_parameters::TransportParameters;
use quinn_proto::{
    ClientConfig, ConnectError, ConnectionId, EndpointConfig, IdleTimeout, NoneTokenStore, Side,
    TokenMemoryCache, TransportConfig, TransportError, TransportErrorCode, VarInt,
};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::quic::{ClientConnection, KeyChange, Secrets, Version};
use std::any::Any;
use std::cell::Cell;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes asked for as buffers of the socket, which all its connections share. The kernel may give less.
const SOCKET_BUFFER: usize = 4 << 20;

/// Owner of a connection that was closed.
pub const NO_OWNER: u32 = u32::MAX;

/// TLS and limits of connections.
#[derive(Clone)]
pub struct Dialling(ClientConfig);

impl std::fmt::Debug for Dialling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dialling").finish_non_exhaustive()
    }
}

/// Limits of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Content of a stream that the server may send ahead, bytes.
    pub window: u32,
    /// Content of all streams together that the server may send ahead, bytes.
    pub connection_window: u32,
    /// Content that is kept until the server has acknowledged it, bytes; `None`: as quinn-proto has it.
    pub send_window: Option<u32>,
    /// Unidirectional streams that the server may have open at a time.
    pub uni_streams: u32,
    /// Time without packets after which the connection ends; `None` leaves it to the server.
    pub idle: Option<Duration>,
    /// Time without packets after which a PING is sent; `None`: never.
    pub keep_alive: Option<Duration>,
    /// Connection identifiers of the server that are kept at a time, one of [`IDS`](super::IDS); `None`: as many as quinn-proto keeps.
    pub ids: Option<u64>,
    /// Tokens of the server are used again, which saves the proof of the address.
    pub tokens: bool,
}

impl Dialling {
    /// Creates it with a configuration of TLS, whose ALPN says what is spoken.
    pub fn new(tls: Arc<rustls::ClientConfig>, limits: Limits) -> Dialling {
        let mut transport = TransportConfig::default();
        let idle = limits.idle.and_then(|idle| IdleTimeout::try_from(idle).ok());
        transport
            .max_concurrent_bidi_streams(0u32.into())
            .max_concurrent_uni_streams(limits.uni_streams.into())
            .stream_receive_window(limits.window.into())
            .receive_window(limits.connection_window.into())
            .max_idle_timeout(idle)
            .keep_alive_interval(limits.keep_alive)
            .datagram_receive_buffer_size(None);
        if let Some(window) = limits.send_window {
            transport.send_window(window.into());
        }
        if let Some(ids) = limits.ids {
            transport.active_connection_id_limit(usize::try_from(ids).unwrap_or(usize::MAX));
        }
        let mut config = ClientConfig::new(Arc::new(Tls { tls }));
        config.transport_config(Arc::new(transport));
        if limits.tokens {
            config.token_store(Arc::new(TokenMemoryCache::default()));
        } else {
            config.token_store(Arc::new(NoneTokenStore));
        }
        Dialling(config)
    }
}

/// Connections to one server over one socket.
pub struct Client {
    endpoint: Endpoint,
    remote: SocketAddr,
    nobody: Rc<dyn Choose>,
    /// Packets of the connections that were closed.
    packets: Cell<Packets>,
}

/// Packets of connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Packets {
    /// Packets sent.
    pub sent: u64,
    /// Packets that were sent and taken for lost.
    pub lost: u64,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("remote", &self.remote).finish_non_exhaustive()
    }
}

impl std::ops::Deref for Client {
    type Target = Endpoint;

    fn deref(&self) -> &Endpoint {
        &self.endpoint
    }
}

impl Client {
    /// Makes a socket to a server.
    ///
    /// # Errors
    /// Errors of socket(2), setsockopt(2) and connect(2).
    pub fn new(remote: SocketAddr) -> io::Result<Client> {
        Client::bound(remote, None).map_err(|e| match e {
            DialError::Own(_, e) | DialError::Connect(e) => e.into(),
            _ => io::ErrorKind::Other.into(),
        })
    }

    /// Makes a socket to a server, from a local address if one is given.
    ///
    /// # Errors
    /// [`DialError`] of a socket that takes datagrams.
    pub fn bound(remote: SocketAddr, local: Option<LocalAddress>) -> Result<Client, DialError> {
        let socket = socket(remote, local)?;
        Client::on(socket, remote)
            .map_err(|e| DialError::Own(OwnStep::Socket, Errno::from_io_error(&e).unwrap_or(Errno::IO)))
    }

    /// Makes the endpoint of a socket that is connected to a server.
    fn on(socket: OwnedFd, remote: SocketAddr) -> io::Result<Client> {
        let v6 = remote.is_ipv6();
        let settings = Settings {
            streams: 0,
            stream_window: 0,
            send_window: 0,
            max_send_window: 0,
            idle: Duration::ZERO,
            ids: 2,
            retry: false,
            connections: 0,
            congestion: Congestion::Cubic,
            key: HostKey::new(&[]),
        };
        let mut key = [0; 32];
        for part in key.chunks_exact_mut(8) {
            part.copy_from_slice(&forebay_sys::random::random_u64().to_ne_bytes());
        }
        let config =
            EndpointConfig::new(Arc::new(aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &key)));
        // Nothing but this endpoint reads its identifiers.
        let place = Place { process: 0, thread: 0, endpoint: 0 };
        let (secret, _) = key.split_first_chunk::<16>().unwrap_or((&[0; 16], &[]));
        let mask = Mask::new(secret).ok_or(io::ErrorKind::Unsupported)?;
        let endpoint = Endpoint::with(Arc::new(socket), v6, (settings, place, Arc::new(mask)), config, None)?;
        Ok(Client { endpoint, remote, nobody: Rc::new(Nobody), packets: Cell::default() })
    }

    /// Begins a connection for `owner`. [`Endpoint::flush`] sends its first packet.
    ///
    /// # Errors
    /// A name that TLS does not know, or an address that no connection can go to.
    pub fn connect(
        &self,
        now: Instant,
        dialling: &Dialling,
        name: &str,
        owner: u32,
    ) -> Result<Rc<Link>, ConnectError> {
        let made = self.endpoint.quinn.borrow_mut().connect(now, dialling.0.clone(), self.remote, name);
        let (handle, connection) = made?;
        Ok(self.endpoint.add(handle, connection, owner, now))
    }

    /// Receives the datagrams that are there, at most [`forebay_sys::datagrams::MOST`] pieces, and returns their number.
    ///
    /// # Errors
    /// Errors of recvmmsg(2); `AGAIN`: there are none.
    pub fn receive(&self, batch: &mut Batch, now: Instant) -> Result<usize, Errno> {
        let received = self.endpoint.receive(batch);
        match received {
            Ok(count) => self.endpoint.handle(batch, 0..count, now, &self.nobody, &Nobody),
            Err(e) => self.endpoint.refused.set(self.endpoint.refused.get() || e == Errno::CONNREFUSED),
        }
        received
    }

    /// Returns whether a datagram was refused since the last call: nobody listens there. The error may show at receiving or at the
    /// next sending.
    pub fn take_refusal(&self) -> bool {
        self.endpoint.refused.take()
    }

    /// Closes a connection with an error code of the application. Nothing tells its owner any more.
    pub fn close(&self, link: &Rc<Link>, code: VarInt) {
        if link.owner.replace(NO_OWNER) == NO_OWNER {
            return;
        }
        let mut quinn = link.quinn();
        let (path, before) = (quinn.stats().path, self.packets.get());
        let (sent, lost) = (before.sent + path.sent_packets, before.lost + path.lost_packets);
        self.packets.set(Packets { sent, lost });
        quinn.close(Instant::now(), code, Bytes::new());
        drop(quinn);
        self.mark_sending(link);
    }

    /// Returns the packets of the connections that were closed.
    pub fn packets(&self) -> Packets {
        self.packets.get()
    }

    /// Returns the socket.
    pub fn socket(&self) -> &OwnedFd {
        self.endpoint.socket()
    }
}

/// Makes a socket that takes datagrams of one server.
fn socket(remote: SocketAddr, local: Option<LocalAddress>) -> Result<OwnedFd, DialError> {
    let family = if remote.is_ipv6() { AddressFamily::INET6 } else { AddressFamily::INET };
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket =
        rustix::net::socket_with(family, SocketType::DGRAM, flags, None).map_err(own(OwnStep::Socket))?;
    for grow in [sockopt::set_socket_recv_buffer_size, sockopt::set_socket_send_buffer_size] {
        let _ = grow(&socket, SOCKET_BUFFER);
    }
    // More than the kernel's limit, where that is allowed.
    let _ = sockopt::set_socket_recv_buffer_size_force(&socket, SOCKET_BUFFER);
    if let Some(local) = local {
        if local.transparent {
            let v6 = local.addr.is_ipv6();
            forebay_sys::sockets::set_transparent(&socket, v6).map_err(own(OwnStep::Transparent))?;
        }
        rustix::net::bind(&socket, &local.addr).map_err(own(OwnStep::Bind))?;
    }
    // A peer makes the kernel report a closed port, and drop what others send.
    rustix::net::connect(&socket, &remote).map_err(|e| DialError::connect(&PeerAddr::Inet(remote), e))?;
    Ok(socket)
}

/// Parameters of an established connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Established {
    /// The handshake resumed a session.
    pub resumed: bool,
    /// Protocol chosen by ALPN.
    pub alpn: Option<Vec<u8>>,
    /// Certificates of the server, its own first.
    pub certificates: Vec<CertificateDer<'static>>,
}

/// Returns the parameters of a connection of a [`Client`] once it is established.
pub fn established(link: &Link) -> Option<Box<Established>> {
    link.quinn().crypto_session().handshake_data()?.downcast().ok()
}

/// No server, so that nobody is asked for a configuration.
#[derive(Debug)]
struct Nobody;

impl Choose for Nobody {
    fn choose(&self, _: u32, _: Hello) -> Result<Arc<rustls::ServerConfig>, u8> {
        Err(session::INTERNAL_ERROR)
    }

    fn refused(&self, _: u32) {}
}

impl Owner for Nobody {
    fn begin(&self, _: &Arrival) -> Option<u32> {
        None
    }

    fn redirect(&self, _: &Received<'_>) -> bool {
        false
    }

    fn pass(&self, _: Place, _: bool, _: &Received<'_>) -> bool {
        false
    }
}

/// Configuration that makes sessions.
struct Tls {
    tls: Arc<rustls::ClientConfig>,
}

impl crypto::ClientConfig for Tls {
    fn start_session(
        self: Arc<Self>,
        version: u32,
        server_name: &str,
        params: &TransportParameters,
    ) -> Result<Box<dyn crypto::Session>, ConnectError> {
        let version = session::version_of(version).ok_or(ConnectError::UnsupportedVersion)?;
        let bad_name = || ConnectError::InvalidServerName(server_name.to_owned());
        let name = ServerName::try_from(server_name.to_owned()).map_err(|_| bad_name())?;
        let mut encoded = Vec::new();
        params.write(&mut encoded);
        // It fails for a configuration without TLS 1.3, too, or without randomness.
        let tls = ClientConnection::new(self.tls.clone(), version, name, encoded).map_err(|_| bad_name())?;
        Ok(Box::new(Session { version, tls, told: false, next: None }))
    }
}

/// Session of a connection.
struct Session {
    version: Version,
    tls: ClientConnection,
    /// quinn-proto knows that the handshake has agreed on something.
    told: bool,
    next: Option<Secrets>,
}

impl crypto::Session for Session {
    fn initial_keys(&self, dst_cid: &ConnectionId, side: Side) -> Keys {
        match session::initial_keys(self.version, dst_cid, side) {
            Some(keys) => keys,
            None => unreachable!("the suite of Initial packets exists"),
        }
    }

    fn handshake_data(&self) -> Option<Box<dyn Any>> {
        if self.tls.is_handshaking() {
            return None;
        }
        let resumed = self.tls.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
        let alpn = self.tls.alpn_protocol().map(<[u8]>::to_vec);
        let shown = self.tls.peer_certificates().unwrap_or_default();
        let certificates = shown.iter().map(|c| c.clone().into_owned()).collect();
        Some(Box::new(Established { resumed, alpn, certificates }))
    }

    fn peer_identity(&self) -> Option<Box<dyn Any>> {
        None
    }

    fn early_crypto(&self) -> Option<(Box<dyn HeaderKey>, Box<dyn PacketKey>)> {
        let keys = self.tls.zero_rtt_keys()?;
        Some((Box::new(keys.header), session::sealing(keys.packet, self.version)))
    }

    fn early_data_accepted(&self) -> Option<bool> {
        Some(self.tls.is_early_data_accepted())
    }

    fn is_handshaking(&self) -> bool {
        self.tls.is_handshaking()
    }

    fn read_handshake(&mut self, bytes: &[u8]) -> Result<bool, TransportError> {
        if let Err(e) = self.tls.read_hs(bytes) {
            let alert = self.tls.alert().map_or(session::INTERNAL_ERROR, u8::from);
            let code = TransportErrorCode::crypto(alert);
            return Err(TransportError { code, frame: None, reason: e.to_string() });
        }
        Ok(!self.tls.is_handshaking() && !std::mem::replace(&mut self.told, true))
    }

    fn transport_parameters(&self) -> Result<Option<TransportParameters>, TransportError> {
        let Some(bytes) = self.tls.quic_transport_parameters() else { return Ok(None) };
        Ok(Some(TransportParameters::read(Side::Client, &mut io::Cursor::new(bytes))?))
    }

    fn write_handshake(&mut self, buf: &mut Vec<u8>) -> Option<Keys> {
        let keys = match self.tls.write_hs(buf)? {
            KeyChange::Handshake { keys } => keys,
            KeyChange::OneRtt { keys, next } => {
                self.next = Some(next);
                keys
            }
        };
        Some(session::boxed(keys, self.version))
    }

    fn next_1rtt_keys(&mut self) -> Option<KeyPair<Box<dyn PacketKey>>> {
        let keys = self.next.as_mut()?.next_packet_keys();
        let sealing = |key| session::sealing(key, self.version);
        Some(KeyPair { local: sealing(keys.local), remote: sealing(keys.remote) })
    }

    fn is_valid_retry(&self, orig_dst_cid: &ConnectionId, header: &[u8], payload: &[u8]) -> bool {
        let Some((rest, tag)) = payload.split_last_chunk::<16>() else { return false };
        session::retry_tag(1, orig_dst_cid, &[header, rest].concat()) == *tag
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
