//! Connections that this side begins. A [`Client`] is an [`Endpoint`] that takes no connections of others.

use super::{Arrival, Choose, Congestion, Endpoint, HostKey, Link, Mask, Owner, Place, Received, Settings};
use super::{Error, Side, Version, settings, time};
use crate::addr::PeerAddr;
use crate::dial::{DialError, LocalAddress, OwnStep, own};
use crate::tls::hello::Hello;
use forebay_quic::congestion::Algorithm;
use forebay_quic::connection::{Config, Route};
use forebay_quic::packet::reset;
use forebay_quic::parameters::VersionInformation;
use forebay_quic::stream;
pub use forebay_quic::tls::ClientFacts as Established;
use forebay_quic::tls::ClientSession;
use forebay_sys::datagrams::Batch;
use forebay_sys::random::random_u64;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use rustls::pki_types::ServerName;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::fmt;
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

/// Content that is kept until the server has acknowledged it, bytes.
const SEND_WINDOW: u64 = 1 << 20;
/// Largest number of tokens of a server that are kept.
const TOKENS: usize = 2;

/// TLS and limits of connections.
#[derive(Clone)]
pub struct Dialling {
    tls: Arc<rustls::ClientConfig>,
    limits: Limits,
}

/// Reason for which no connection was begun.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConnectError {
    /// TLS knows no such name of a server.
    Name(String),
    /// TLS allows no version 1.3, or randomness is missing.
    Tls(Error),
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ConnectError::Name(name) => write!(f, "invalid server name: {name}"),
            ConnectError::Tls(e) => e.fmt(f),
        }
    }
}

impl fmt::Debug for Dialling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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
    /// Content that is kept until the server has acknowledged it, bytes; `None`: 1 MB.
    pub send_window: Option<u32>,
    /// Unidirectional streams that the server may have open at a time.
    pub uni_streams: u32,
    /// Time without packets after which the connection ends; `None` leaves it to the server.
    pub idle: Option<Duration>,
    /// Time without packets after which a PING is sent; `None`: never.
    pub keep_alive: Option<Duration>,
    /// Connection identifiers of the server that are kept at a time, one of [`IDS`](super::IDS); `None`: 4.
    pub ids: Option<u64>,
    /// Tokens of the server are used again, which saves the proof of the address.
    pub tokens: bool,
}

impl Dialling {
    /// Creates it with a configuration of TLS, whose ALPN says what is spoken.
    pub fn new(tls: Arc<rustls::ClientConfig>, limits: Limits) -> Dialling {
        Dialling { tls, limits }
    }

    fn config(&self, whole: bool) -> Config {
        let limits = &self.limits;
        let send_window = limits.send_window.map_or(SEND_WINDOW, u64::from);
        Config {
            limits: stream::Limits {
                stream_window: limits.window.into(),
                window: limits.connection_window.into(),
                // No application of the server may begin a stream here in both directions, HTTP/3 forbids it
                // (RFC 9114, section 6.1).
                bi: 0,
                uni: limits.uni_streams.into(),
                send_window,
            },
            max_send_window: send_window,
            idle: limits.idle.unwrap_or_default(),
            keep_alive: limits.keep_alive,
            ids: limits.ids.unwrap_or(4),
            datagrams: 0,
            congestion: Algorithm::Cubic,
            is_paced: true,
            most_mtu: settings::MOST_MTU,
            searches_mtu: whole,
            initial_rtt: settings::INITIAL_RTT,
            gives_token: false,
        }
    }
}

/// Connections to one server over one socket.
pub struct Client {
    endpoint: Endpoint,
    remote: SocketAddr,
    nobody: Rc<dyn Choose>,
    /// Tokens that the server has given, the newest last (RFC 9000, section 8.1.3).
    tokens: RefCell<VecDeque<Box<[u8]>>>,
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

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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

    /// Makes the endpoint for a socket that is connected to a server.
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
            part.copy_from_slice(&random_u64().to_ne_bytes());
        }
        // Only this endpoint reads its identifiers, so they need not name a place.
        let place = Place { process: 0, thread: 0, endpoint: 0 };
        let (secret, _) = key.split_first_chunk::<16>().unwrap_or((&[0; 16], &[]));
        let mask = Mask::new(secret).ok_or(io::ErrorKind::Unsupported)?;
        let what = (settings, place, Arc::new(mask));
        let endpoint = Endpoint::with(Arc::new(socket), v6, what, reset::Key::new(&key), false)?;
        let tokens = RefCell::default();
        Ok(Client { endpoint, remote, nobody: Rc::new(Nobody), tokens, packets: Cell::default() })
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
        let bad_name = |_| ConnectError::Name(name.to_owned());
        let server = ServerName::try_from(name.to_owned()).map_err(bad_name)?;
        // The newest token is used, and only once, so that nobody can link two connections by it (RFC 9000,
        // section 8.1.3).
        let token = if dialling.limits.tokens { self.tokens.borrow_mut().pop_back() } else { None };
        let route = Route { remote: self.remote, local: None };
        let made = self.endpoint.quic.borrow_mut().connect(
            time(now),
            (Version::V1, route),
            Rc::new(dialling.config(self.endpoint.whole)),
            token.map(Vec::from).unwrap_or_default(),
            |version, mut parameters| {
                parameters.version_information = Some(VersionInformation::new(version, &[version]));
                let mut encoded = Vec::new();
                parameters.push(&mut encoded, Side::Client, random_u64());
                Ok(Box::new(ClientSession::new(dialling.tls.clone(), version, server, encoded)?))
            },
        );
        let (slot, connection) = made.map_err(ConnectError::Tls)?;
        Ok(self.endpoint.add(slot, connection, owner, now))
    }

    /// Keeps a token of the server for the next connection.
    pub fn keep_token(&self, token: Box<[u8]>) {
        let mut tokens = self.tokens.borrow_mut();
        tokens.push_back(token);
        if tokens.len() > TOKENS {
            tokens.pop_front();
        }
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

    /// Closes a connection with an error code of the application. The owner is not called for it any more.
    pub fn close(&self, link: &Rc<Link>, code: u64) {
        if link.owner.replace(NO_OWNER) == NO_OWNER {
            return;
        }
        let mut quic = link.quic();
        let (stats, before) = (*quic.stats(), self.packets.get());
        let (sent, lost) = (before.sent + stats.sent_packets, before.lost + stats.lost_packets);
        self.packets.set(Packets { sent, lost });
        quic.close(time(Instant::now()), code, b"");
        drop(quic);
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
        // A smaller buffer loses datagrams under load but is no reason to have no connection.
        let _ = grow(&socket, SOCKET_BUFFER);
    }
    // This asks for more than the limit of the kernel, which only some processes may do.
    let _ = sockopt::set_socket_recv_buffer_size_force(&socket, SOCKET_BUFFER);
    if let Some(local) = local {
        if local.transparent {
            let v6 = local.addr.is_ipv6();
            forebay_sys::sockets::set_transparent(&socket, v6).map_err(own(OwnStep::Transparent))?;
        }
        rustix::net::bind(&socket, &local.addr).map_err(own(OwnStep::Bind))?;
    }
    // On a socket with a peer, the kernel reports a closed port and drops datagrams of other senders.
    rustix::net::connect(&socket, &remote).map_err(|e| DialError::connect(&PeerAddr::Inet(remote), e))?;
    Ok(socket)
}

/// Returns the parameters of a connection of a [`Client`] once it is established.
pub fn established(link: &Link) -> Option<Box<Established>> {
    link.quic().facts()?.downcast().ok()
}

/// No server, so that nobody is asked for a configuration.
#[derive(Debug)]
struct Nobody;

impl Choose for Nobody {
    fn choose(&self, _: u32, _: Hello) -> Result<Arc<rustls::ServerConfig>, u8> {
        Err(super::tls::INTERNAL_ERROR)
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
