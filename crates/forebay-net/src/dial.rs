//! Opens connections to servers: socket, local address, connect, the bytes that a connection begins with, TLS. Hot path.

use crate::addr::PeerAddr;
use crate::blame;
use crate::io::Io;
use crate::loopback;
use crate::reactor::{Deadline, Token};
use crate::tls::stream::{Agreed, Step, Stream};
use crate::wait::{For, Wait, Waited};
use crate::wire::{Watch, Wire};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, sockopt};
use rustls::client::UnbufferedClientConnection;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Address that a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LocalAddress {
    /// The address; with port 0 the system chooses the port.
    pub addr: SocketAddr,
    /// The address may be another machine's (ip(7), IP_TRANSPARENT).
    pub transparent: bool,
}

/// Parameters of a connection.
#[derive(Clone, Copy, Debug)]
pub struct DialSettings<'d> {
    /// Address of the server.
    pub addr: &'d PeerAddr,
    /// `STREAM`, or `DGRAM` for a socket that only takes datagrams of the server.
    pub kind: SocketType,
    /// Address that the connection comes from; `None`: the system chooses. Not for unix sockets.
    pub local: Option<LocalAddress>,
    /// Longest time for the connection.
    pub timeout: Duration,
    /// `SO_RCVBUF`, bytes; 0 = the system's.
    pub receive_buffer: usize,
    /// `SO_SNDBUF`, bytes; 0 = the system's.
    pub send_buffer: usize,
    /// `SO_KEEPALIVE`.
    pub keepalive: bool,
    /// Bytes that the connection begins with, in plain text: a PROXY protocol header. A new socket must have room for them.
    pub greeting: &'d [u8],
}

impl DialSettings<'_> {
    /// Returns the family of the socket if another connection can use it afterwards: it takes datagrams and has no options of its
    /// own.
    pub fn spare(&self) -> Option<AddressFamily> {
        let ordinary = self.kind == SocketType::DGRAM
            && self.local.is_none()
            && self.receive_buffer == 0
            && self.send_buffer == 0
            && !self.keepalive;
        let family = family(self.addr);
        (ordinary && family != AddressFamily::UNIX).then_some(family)
    }
}

/// Reason for which there is no connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DialError {
    /// This machine failed at a step. The server is not to blame.
    Own(OwnStep, Errno),
    /// The server, or the way to it, refuses the connection.
    Connect(Errno),
    /// The greeting could not be sent.
    Greeting(Errno),
    /// The time is over.
    Timeout,
    /// The watched client is gone.
    ClientGone,
}

/// Step of opening a connection that fails by itself, without the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnStep {
    /// `socket()`: no descriptor or no memory.
    Socket,
    /// The socket cannot use foreign addresses: the process lacks CAP_NET_RAW (capabilities(7)).
    Transparent,
    /// `bind()` to the local address.
    Bind,
    /// `connect()`: no port to this server is left, no memory, or a rule of this machine forbids it. A connection to another server
    /// may be possible.
    Connect,
}

impl DialError {
    /// Returns the failure of `connect()`.
    pub fn connect(addr: &PeerAddr, e: Errno) -> DialError {
        let own = match addr {
            PeerAddr::Inet(_) => blame::is_own(e),
            PeerAddr::Unix(_) => blame::is_own_of_unix(e),
        };
        if own { DialError::Own(OwnStep::Connect, e) } else { DialError::Connect(e) }
    }

    /// Returns `true` if this machine has no descriptor left.
    pub fn is_out_of_descriptors(&self) -> bool {
        matches!(self, DialError::Own(_, e) if blame::is_out_of_descriptors(*e))
    }
}

/// Reason for which a handshake failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HandshakeError {
    /// The server closed the connection.
    Closed,
    /// Reading or writing failed.
    Failed(Errno),
    /// The server does not speak TLS, or not as we do: the reason in words.
    Refused(String),
    /// The time is over.
    Timeout,
    /// The watched client is gone.
    ClientGone,
}

/// Opens a connection and sends its greeting.
///
/// # Errors
/// [`DialError`].
pub async fn dial(io: &Io, s: &DialSettings<'_>, watch: &mut Watch) -> Result<Wire, DialError> {
    let spare = s.spare().and_then(|family| io.spare.take(&io.poller, family));
    let slot = match spare {
        Some(token) => NewSocket { io, token },
        None => NewSocket::insert(io, socket(s)?),
    };
    let begun = slot.with_fd(|fd| connect(fd, s.addr)).unwrap_or(Err(Errno::BADF));
    // Servers rarely speak first; if one does, epoll reports it. It also reports room to write once the connection is there.
    io.poller.drained(slot.token);
    io.poller.filled(slot.token);
    slot.finish(begun, s, watch).await?;
    if s.keepalive {
        slot.with_fd(|fd| {
            let _ = sockopt::set_socket_keepalive(fd, true);
        });
    }
    if !s.greeting.is_empty() {
        slot.greet(s.greeting)?;
    }
    Ok(Wire::Plain(slot.keep()))
}

/// Makes the client's side of a TLS handshake on a connection. The caller judges the certificate.
///
/// # Errors
/// [`HandshakeError`].
pub async fn handshake(
    io: &Io,
    wire: &mut Wire,
    client: UnbufferedClientConnection,
    timeout: Duration,
    watch: &mut Watch,
) -> Result<Box<Agreed>, HandshakeError> {
    wire.encrypt(Stream::client(client));
    let deadline = io.poller.after(timeout);
    loop {
        let token = wire.token();
        let what = match wire.tls().map_or(Step::Closed, |stream| stream.handshake(io, token)) {
            Step::Done(agreed) => return Ok(agreed),
            Step::Read => For::Read,
            Step::Write => For::Write,
            Step::Closed => return Err(HandshakeError::Closed),
            Step::Failed(e) => return Err(HandshakeError::Failed(e)),
            Step::Refused(text) => return Err(HandshakeError::Refused(text)),
        };
        let mut wait = Wait::new(what, deadline, watch);
        match std::future::poll_fn(|cx| wait.poll(io, wire, cx)).await {
            Waited::Ready => {}
            Waited::Timeout => return Err(HandshakeError::Timeout),
            Waited::ClientGone => return Err(HandshakeError::ClientGone),
        }
    }
}

/// Returns a function that makes the failure of a step.
pub(crate) fn own(step: OwnStep) -> impl FnOnce(Errno) -> DialError {
    move |e| DialError::Own(step, e)
}

/// Creates the socket and binds it.
fn socket(s: &DialSettings<'_>) -> Result<OwnedFd, DialError> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let fd = rustix::net::socket_with(family(s.addr), s.kind, flags, None).map_err(own(OwnStep::Socket))?;
    // The buffers are set before connect(), since the window that is announced to the server depends on them
    // (tcp(7)).
    if s.receive_buffer > 0 {
        let _ = sockopt::set_socket_recv_buffer_size(&fd, s.receive_buffer);
    }
    if s.send_buffer > 0 {
        let _ = sockopt::set_socket_send_buffer_size(&fd, s.send_buffer);
    }
    if s.kind == SocketType::STREAM && matches!(s.addr, PeerAddr::Inet(a) if a.ip().is_loopback()) {
        loopback::spare_default_pacing(&fd);
    }
    if let (Some(local), PeerAddr::Inet(_)) = (s.local, s.addr) {
        if local.transparent {
            let ipv6 = local.addr.is_ipv6();
            forebay_sys::sockets::set_transparent(&fd, ipv6).map_err(own(OwnStep::Transparent))?;
        }
        if local.addr.port() == 0 {
            // Old kernels lack this option, and bind() then reserves a port at once.
            let _ = forebay_sys::sockets::set_bind_address_no_port(&fd);
        }
        rustix::net::bind(&fd, &local.addr).map_err(own(OwnStep::Bind))?;
    }
    Ok(fd)
}

fn family(addr: &PeerAddr) -> AddressFamily {
    match addr {
        PeerAddr::Inet(a) if a.is_ipv4() => AddressFamily::INET,
        PeerAddr::Inet(_) => AddressFamily::INET6,
        PeerAddr::Unix(_) => AddressFamily::UNIX,
    }
}

/// Begins to connect.
fn connect(fd: &OwnedFd, addr: &PeerAddr) -> Result<(), Errno> {
    match addr {
        PeerAddr::Inet(a) => connect_inet(fd, a),
        PeerAddr::Unix(p) => rustix::net::connect(fd, &rustix::net::SocketAddrUnix::new(p.as_path())?),
    }
}

fn connect_inet(fd: &OwnedFd, addr: &SocketAddr) -> Result<(), Errno> {
    match rustix::net::connect(fd, addr) {
        // On the loopback device the handshake is over when the call returns, but only a second call reports that.
        Err(Errno::INPROGRESS) if addr.ip().is_loopback() => match rustix::net::connect(fd, addr) {
            Err(Errno::ISCONN) => Ok(()),
            Err(Errno::ALREADY) => Err(Errno::INPROGRESS),
            done => done,
        },
        begun => begun,
    }
}

/// Socket of a new connection, which is closed unless it is kept.
struct NewSocket<'i> {
    io: &'i Io,
    token: Token,
}

impl Drop for NewSocket<'_> {
    fn drop(&mut self) {
        self.io.poller.remove(self.token);
    }
}

impl<'i> NewSocket<'i> {
    fn insert(io: &'i Io, fd: OwnedFd) -> NewSocket<'i> {
        NewSocket { io, token: io.poller.insert(fd) }
    }

    fn keep(self) -> Token {
        std::mem::ManuallyDrop::new(self).token
    }

    fn with_fd<R>(&self, f: impl FnOnce(&OwnedFd) -> R) -> Option<R> {
        self.io.poller.with_fd(self.token, f)
    }

    /// Ends the connecting that has begun.
    async fn finish(
        &self,
        begun: Result<(), Errno>,
        s: &DialSettings<'_>,
        watch: &mut Watch,
    ) -> Result<(), DialError> {
        match begun {
            Ok(()) => Ok(()),
            Err(Errno::INPROGRESS) => self.connected(s, self.io.poller.after(s.timeout), watch).await,
            Err(e) => Err(DialError::connect(s.addr, e)),
        }
    }

    /// Waits until the connection is there.
    async fn connected(
        &self,
        s: &DialSettings<'_>,
        deadline: Deadline,
        watch: &mut Watch,
    ) -> Result<(), DialError> {
        let wire = Wire::Plain(self.token);
        // A socket becomes writable when its connection is there and also when it has failed: SO_ERROR tells which.
        let mut wait = Wait::new(For::Write, deadline, watch);
        match std::future::poll_fn(|cx| wait.poll(self.io, &wire, cx)).await {
            Waited::Ready => {}
            Waited::Timeout => return Err(DialError::Timeout),
            Waited::ClientGone => return Err(DialError::ClientGone),
        }
        match self.with_fd(|fd| sockopt::socket_error(fd)) {
            Some(Ok(Ok(()))) => Ok(()),
            Some(Ok(Err(e)) | Err(e)) => Err(DialError::connect(s.addr, e)),
            None => Err(DialError::Connect(Errno::BADF)),
        }
    }

    fn greet(&self, greeting: &[u8]) -> Result<(), DialError> {
        let sent = self.with_fd(|fd| rustix::net::send(fd, greeting, SendFlags::NOSIGNAL));
        match sent.unwrap_or(Err(Errno::BADF)) {
            Ok(n) if n == greeting.len() => Ok(()),
            // A new socket has room for all of it, so a part means that something is wrong with the
            // connection.
            Ok(_) => Err(DialError::Greeting(Errno::PIPE)),
            Err(e) => Err(DialError::Greeting(e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;
    use std::os::unix::net::UnixListener;
    use std::task::{Poll, Waker};

    fn settings(addr: &PeerAddr) -> DialSettings<'_> {
        DialSettings {
            addr,
            kind: SocketType::STREAM,
            local: None,
            timeout: Duration::from_secs(60),
            receive_buffer: 0,
            send_buffer: 0,
            keepalive: false,
            greeting: b"",
        }
    }

    /// Dials where that needs no wait, as on the loopback device.
    fn at_once(io: &Io, s: &DialSettings<'_>) -> Result<Wire, DialError> {
        let dialed = std::pin::pin!(dial(io, s, &mut Watch::Nothing))
            .poll(&mut std::task::Context::from_waker(Waker::noop()));
        match dialed {
            Poll::Ready(done) => done,
            Poll::Pending => panic!("it waits"),
        }
    }

    fn from(ip: [u8; 4]) -> Option<LocalAddress> {
        Some(LocalAddress { addr: (ip, 0).into(), transparent: false })
    }

    /// Whether a process may use foreign addresses depends on its capabilities. The address is not at fault either way.
    #[test]
    fn a_foreign_address_needs_a_capability() {
        let addr = PeerAddr::Inet(([127, 0, 0, 1], 9).into());
        let local = from([192, 0, 2, 1]).map(|local| LocalAddress { transparent: true, ..local });
        match socket(&DialSettings { local, ..settings(&addr) }) {
            Ok(fd) => {
                let bound = rustix::net::getsockname(&fd).map(SocketAddr::try_from).unwrap().unwrap();
                assert_eq!(bound.ip().to_string(), "192.0.2.1");
            }
            Err(e) => assert_eq!(e, DialError::Own(OwnStep::Transparent, Errno::PERM)),
        }
    }

    #[test]
    fn connections_over_loopback_are_not_paced() {
        let name = |ip: [u8; 4]| {
            let addr = PeerAddr::Inet((ip, 9).into());
            sockopt::tcp_congestion(socket(&settings(&addr)).unwrap()).unwrap()
        };
        assert!(!name([127, 0, 0, 1]).starts_with("bbr"));
        let system = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap();
        assert_eq!(name([192, 0, 2, 1]), system.trim());
    }

    #[test]
    fn a_connection_begins_with_its_greeting() {
        let io = Io::new().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = PeerAddr::Inet(listener.local_addr().unwrap());
        let local = from([127, 0, 0, 2]);
        let dialed =
            at_once(&io, &DialSettings { local, keepalive: true, greeting: b"PROXY", ..settings(&addr) });
        let wire = dialed.unwrap();
        let (mut server, from) = listener.accept().unwrap();
        let mut got = [0; 5];
        server.read_exact(&mut got).unwrap();
        assert_eq!((&got, from.ip().to_string().as_str()), (b"PROXY", "127.0.0.2"));
        let keepalive = wire.with_fd(&io, |fd| sockopt::socket_keepalive(fd)).unwrap();
        assert_eq!(keepalive, Ok(true));
    }

    #[test]
    fn the_port_of_a_local_address_is_chosen_when_the_server_is_known() {
        let addr = PeerAddr::Inet(([127, 0, 0, 1], 1).into());
        let port = |local: SocketAddr| {
            let local = Some(LocalAddress { addr: local, transparent: false });
            let fd = socket(&DialSettings { local, ..settings(&addr) }).unwrap();
            SocketAddr::try_from(rustix::net::getsockname(&fd).unwrap()).unwrap().port()
        };
        // Otherwise bind() would reserve one that no other connection can use.
        assert_eq!(port(([127, 0, 0, 2], 0).into()), 0);
        let free = TcpListener::bind("127.0.0.2:0").unwrap().local_addr().unwrap();
        assert_eq!(port(free), free.port());
    }

    #[test]
    fn failures_say_at_which_step() {
        let io = Io::new().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = PeerAddr::Inet(listener.local_addr().unwrap());
        // An address of documentation (RFC 5737) is none of this machine's.
        let local = from([192, 0, 2, 1]);
        let bound = at_once(&io, &DialSettings { local, ..settings(&addr) });
        assert!(matches!(bound, Err(DialError::Own(OwnStep::Bind, Errno::ADDRNOTAVAIL))), "{bound:?}");
        drop(listener);
        let refused = at_once(&io, &settings(&addr));
        assert!(matches!(refused, Err(DialError::Connect(Errno::CONNREFUSED))), "{refused:?}");
    }

    /// One connection from a given address and port takes the place of the next one to the same server.
    #[test]
    fn a_server_is_not_to_blame_for_ports_that_are_used_up() {
        let io = Io::new().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = PeerAddr::Inet(listener.local_addr().unwrap());
        let unused = TcpListener::bind("127.0.0.4:0").unwrap().local_addr().unwrap();
        let local = Some(LocalAddress { addr: unused, transparent: false });
        let s = DialSettings { local, ..settings(&addr) };
        let _first = at_once(&io, &s).unwrap();
        let second = at_once(&io, &s);
        assert!(matches!(second, Err(DialError::Own(..))), "{second:?}");
        // Without a local address the kernel says so at connect().
        assert_eq!(
            DialError::connect(&addr, Errno::ADDRNOTAVAIL),
            DialError::Own(OwnStep::Connect, Errno::ADDRNOTAVAIL)
        );
        assert_eq!(DialError::connect(&addr, Errno::CONNREFUSED), DialError::Connect(Errno::CONNREFUSED));
        let unix = PeerAddr::Unix("/s".into());
        assert_eq!(DialError::connect(&unix, Errno::ACCESS), DialError::Connect(Errno::ACCESS));
    }

    /// The local address is one of the internet, which a unix socket cannot have.
    #[test]
    fn unix_sockets_need_no_local_address() {
        let io = Io::new().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("socket");
        let addr = PeerAddr::Unix(path.clone());
        let missing = at_once(&io, &settings(&addr));
        assert!(matches!(missing, Err(DialError::Connect(Errno::NOENT))), "{missing:?}");
        let listener = UnixListener::bind(path).unwrap();
        let local = from([192, 0, 2, 1]);
        at_once(&io, &DialSettings { local, ..settings(&addr) }).unwrap();
        listener.accept().unwrap();
    }
}
