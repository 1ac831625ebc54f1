//! One check of a server: a connection or a datagram, and perhaps an exchange over it.

#![allow(clippy::disallowed_methods, reason = "not on a thread of connections: the tokio thread runs this")]

use super::matching::{Expect, Match};
use super::{Check, Protocol};
use crate::config::{Server, Stream, Upstream};
use forebay_core::control::Line;
use forebay_core::upstream::health::{Probe, Visit, step};
use forebay_core::upstream::peer::Peer;
use forebay_http::proxy_protocol::{self, HeaderVersion};
use forebay_net::addr::PeerAddr;
use forebay_net::blame::Blamed;
use forebay_net::dial::LocalAddress;
use forebay_sys::sockets;
use rustix::net::{AddressFamily, SocketFlags, SocketType};
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::UdpSocket;

/// Datagram that a check sends without `send`.
const DATAGRAM: &[u8] = b"nginx health check";
/// Longest datagram that is read, bytes.
const MAX_DATAGRAM: usize = 64 * 1024;

/// Checks one server.
pub(super) struct StreamProbe {
    pub(super) peer: Peer,
    pub(super) upstream: Arc<Upstream>,
    /// Number of the check in its group.
    pub(super) number: usize,
    pub(super) stream: Arc<Stream>,
}

impl Probe for StreamProbe {
    async fn check(&mut self) -> Result<(), Blamed<String>> {
        let Some(check) = self.upstream.extras.checks.get(self.number) else { return Ok(()) };
        let Some(server) = self.stream.servers.get(check.server) else { return Ok(()) };
        let attempt = Attempt {
            peer: &self.peer,
            check,
            server,
            host: &self.upstream.group.name,
            until: Instant::now() + server.settings.health_check.timeout.0,
        };
        match (check.protocol, check.common.address(&self.peer)) {
            (Protocol::Tcp, addr) => attempt.over_tcp(&addr).await,
            (Protocol::Udp, PeerAddr::Inet(addr)) => attempt.over_udp(addr).await,
            (Protocol::Udp, PeerAddr::Unix(_)) => {
                Err(Blamed::Peer("sending datagram to upstream (a unix socket has no UDP)".to_owned()))
            }
        }
    }
}

/// A check that is being made.
struct Attempt<'c> {
    peer: &'c Peer,
    check: &'c Check,
    server: &'c Server,
    /// Name of the group.
    host: &'c [u8],
    /// End of its time.
    until: Instant,
}

impl Attempt<'_> {
    fn conditions(&self) -> Option<&Match> {
        self.check.conditions.as_deref()
    }

    fn expect(&self) -> Option<&Expect> {
        self.conditions()?.expect.as_ref()
    }

    fn send(&self) -> Option<&[u8]> {
        self.conditions()?.send.as_deref()
    }

    /// Returns the time that is left.
    fn rest(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Returns the version of the PROXY protocol header that the server gets.
    fn announced(&self) -> Option<HeaderVersion> {
        let header = &self.server.settings.proxy_protocol.header;
        self.peer.proxy_protocol.unwrap_or_else(|| header.without_session()).version()
    }

    /// Returns the datagram of a check, with the header that a session's first one has.
    fn datagram(&self) -> Vec<u8> {
        let mut datagram = Vec::new();
        if let Some(version) = self.announced() {
            // There is no client to announce.
            proxy_protocol::write(version.over_udp(), None, b"", &mut datagram);
        }
        datagram.extend_from_slice(self.send().unwrap_or(DATAGRAM));
        datagram
    }

    /// Connects to the server, sends, and reads until the condition holds.
    async fn over_tcp(&self, addr: &PeerAddr) -> Result<(), Blamed<String>> {
        let proxy = &self.server.settings.proxy;
        let visit = Visit {
            addr,
            local: self.server.settings.bind.fixed_local(),
            announce: self.announced(),
            tls: self.server.upstream_tls.as_ref(),
            host: self.host,
            protocols: &self.server.settings.offered.alpn.constants().unwrap_or_default(),
            timeout: proxy.connect_timeout.0.min(self.rest()),
        };
        let mut line = visit.open().await?;
        // Connection and handshake each have the whole time.
        if self.rest().is_zero() {
            return Err(Blamed::Peer("connecting to upstream (timed out)".to_owned()));
        }
        if let Some(text) = self.send() {
            step("sending to", self.rest(), line.write_all(text)).await?;
        }
        let Some(expect) = self.expect() else { return Ok(()) };
        let most = usize::try_from(self.server.settings.health_check.buffer_size.0).unwrap_or(usize::MAX);
        let found = step("receiving from", self.rest(), find(&mut line, expect, most)).await?;
        found.then_some(()).ok_or_else(|| Blamed::Peer("checking data from upstream".to_owned()))
    }

    /// Sends a datagram, and receives until the condition holds. Without a condition, the server passes if it answers, and
    /// if no error has come at the end of the time.
    async fn over_udp(&self, addr: SocketAddr) -> Result<(), Blamed<String>> {
        let local = self.server.settings.bind.fixed_local();
        let socket = step("connecting to", self.rest(), connect(addr, local)).await?;
        step("sending to", self.rest(), socket.send(&self.datagram())).await?;
        let received = step("receiving from", self.rest(), receive(&socket, self.expect())).await;
        match self.expect() {
            // Silence for the whole time is no error.
            None if self.rest().is_zero() => Ok(()),
            _ => received,
        }
    }
}

/// Reads until the condition holds, the connection ends, or `most` bytes have come. Returns `true` if the condition holds.
async fn find(line: &mut Line, expect: &Expect, most: usize) -> io::Result<bool> {
    let mut bytes = Vec::new();
    while bytes.len() < most {
        if line.read(&mut bytes).await? == 0 {
            return Ok(false);
        }
        bytes.truncate(most);
        if expect.holds(&bytes) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Creates a UDP socket that is connected to a server, and that returns the ICMP errors of its datagrams.
async fn connect(addr: SocketAddr, local: Option<LocalAddress>) -> Result<UdpSocket, Blamed<io::Error>> {
    let socket = match local {
        Some(local) => bound(local),
        None if addr.is_ipv4() => UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await,
        None => UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).await,
    };
    // Up to here the server has no part in it, whatever the error.
    let socket = socket.map_err(Blamed::Own)?;
    sockets::set_icmp_errors(&socket, addr.is_ipv6()).map_err(Blamed::Own)?;
    socket.connect(addr).await.map_err(Blamed::from)?;
    Ok(socket)
}

/// Creates a UDP socket with a local address.
fn bound(local: LocalAddress) -> io::Result<UdpSocket> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let family = if local.addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
    if local.transparent {
        sockets::set_transparent(&socket, local.addr.is_ipv6())?;
    }
    rustix::net::bind(&socket, &local.addr)?;
    UdpSocket::from_std(socket.into())
}

/// Receives datagrams until one fulfils the condition.
async fn receive(socket: &UdpSocket, expect: Option<&Expect>) -> io::Result<()> {
    let mut buf = vec![0; MAX_DATAGRAM];
    loop {
        let length = socket.recv(&mut buf).await?;
        let datagram = buf.get(..length).unwrap_or_default();
        if expect.is_none_or(|e| e.holds(datagram)) {
            return Ok(());
        }
    }
}
