//! Listening sockets: opened by the master, kept over reloads, handed to workers and to the next master.
//!
//! A TCP or UDP address has one SO_REUSEPORT socket per thread, so that every thread accepts on its own; a unix
//! address has one socket for all.

use crate::master_log::{Log, errno};
use crate::service_manager::Passed;
use forebay_core::config::{KeepaliveProbes, ListenAddr, Listener, SocketOptions};
use forebay_sys::{fds, sockets};
use rustix::io::Errno;
use socket2::{Domain, Protocol, SockAddr, SockRef, Socket, TcpKeepalive, Type};
use std::fmt::Write;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// The configuration cannot be used; the reason is in the log already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refused;

/// Backlog when `backlog=` is not given (nginx: listen).
const BACKLOG: i32 = 511;
/// Tries to bind an address that is in use, and the pause between them, as nginx has them.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(500);

/// One address with its sockets.
#[derive(Clone, Debug)]
pub(crate) struct Open {
    /// Address.
    pub addr: ListenAddr,
    /// Its sockets.
    pub sockets: Vec<Arc<OwnedFd>>,
    /// Name of the socket if the service manager has passed it. The manager keeps the socket when this process ends.
    pub passed: Option<String>,
}

/// All open addresses.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listeners {
    /// In the order of the configuration.
    pub open: Vec<Open>,
    /// Addresses of former configurations over UDP: a worker keeps their sockets while connections over QUIC need them.
    pub former: Vec<ListenAddr>,
}

/// Opens what `wanted` names, with `threads` sockets per TCP or UDP address. Sockets of `old` are used again. With
/// `test` an address in use is passed over in silence, as `nginx -t` does.
///
/// # Errors
/// An address cannot be bound; the log has nginx's message.
pub(crate) fn open(
    wanted: &[Listener],
    old: &Listeners,
    threads: usize,
    test: bool,
    log: &Log,
) -> Result<Listeners, Refused> {
    let mut refusal = String::new();
    for attempt in 1..=TRIES {
        let (opened, busy) = open_all(wanted, old, threads, test, log)?;
        if busy.is_empty() {
            return Ok(opened);
        }
        refusal = busy.join("; ");
        // What this attempt bound is closed again: the addresses are tried together.
        unlink_new(&opened, old);
        if attempt < TRIES {
            log.notice("try again to bind() after 500ms");
            std::thread::sleep(PAUSE);
        }
    }
    log.emerg("still could not bind()");
    // Who asked for the configuration is told which addresses these are.
    log.add_to_refusal(&refusal);
    Err(Refused)
}

/// Tries to open all addresses once. Returns those that it could open, and the failures of others, which are in use.
fn open_all(
    wanted: &[Listener],
    old: &Listeners,
    threads: usize,
    test: bool,
    log: &Log,
) -> Result<(Listeners, Vec<String>), Refused> {
    let mut opened = Listeners::default();
    let mut busy = Vec::new();
    // All addresses are probed before any is opened: `*:80` would be in the way of `127.0.0.1:80`.
    let free: Vec<_> = wanted.iter().map(|listener| probe(listener, old)).collect();
    for (listener, free) in wanted.iter().zip(free) {
        let free = free.and_then(|()| only_once(listener, &opened));
        match free.and_then(|()| open_one(listener, old, threads.max(1))) {
            Ok(open) => {
                if listener.options.multipath && open.is_plain_tcp() {
                    log.notice(&format!(
                        "no Multipath TCP for {}, its connections are plain TCP",
                        listener.text
                    ));
                }
                opened.open.push(open);
            }
            Err(e) if test && in_use(&e.1) => {}
            Err((call, e)) => {
                let text = format!("{call} failed ({})", errno(&e));
                log.emerg(&text);
                if !in_use(&e) {
                    return Err(Refused);
                }
                busy.push(text);
            }
        }
    }
    let all = old.former.iter().chain(old.open.iter().map(|open| &open.addr));
    let gone = |addr: &&ListenAddr| addr.is_udp() && opened.find(addr).is_none();
    opened.former = all.filter(gone).cloned().collect();
    Ok((opened, busy))
}

/// The failed call in nginx's words with the reason.
type Failure = (String, io::Error);

fn in_use(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::AddrInUse
}

/// Checks that an address is free. With SO_REUSEPORT a bind would succeed although another program of the same user has the
/// address, so this binds without it. It would fail because of our own sockets on the port.
fn probe(wanted: &Listener, old: &Listeners) -> Result<(), Failure> {
    let Some(addr) = wanted.addr.inet() else { return Ok(()) };
    if old.has_port(&wanted.addr) {
        return Ok(());
    }
    let socket = new_socket(&wanted.addr, addr, &wanted.options)
        .map_err(|e| (format!("socket() {}", wanted.text), e))?;
    let failed = |e| (format!("bind() to {}", wanted.text), e);
    if wanted.addr.is_udp() {
        // A socket that allows the same does not count: sessions over UDP keep that of a removed listener for their answers.
        socket.set_reuse_address(true).map_err(failed)?;
    }
    socket.bind(&addr.into()).map_err(failed)
}

/// Refuses an address that a listener of another front end has. SO_REUSEPORT would let both bind it.
fn only_once(wanted: &Listener, opened: &Listeners) -> Result<(), Failure> {
    match opened.find(&wanted.addr) {
        Some(_) => Err((format!("bind() to {}", wanted.text), Errno::ADDRINUSE.into())),
        None => Ok(()),
    }
}

fn open_one(wanted: &Listener, old: &Listeners, threads: usize) -> Result<Open, Failure> {
    let found = old.find(&wanted.addr);
    let passed = found.and_then(|open| open.passed.clone());
    let mut sockets = found.map(|open| open.sockets.clone()).unwrap_or_default();
    match &wanted.addr {
        ListenAddr::Unix(path) | ListenAddr::UnixDatagram(path) => match sockets.first() {
            Some(socket) => start_listening(socket, wanted)?,
            None => sockets.push(Arc::new(open_unix(path, wanted)?)),
        },
        ListenAddr::Inet(addr) | ListenAddr::Udp(addr) => {
            // A socket that no thread accepts from would keep its share of the connections waiting for ever.
            sockets.truncate(threads);
            for socket in &sockets {
                start_listening(socket, wanted)?;
            }
            if let Some(shared) =
                sockets.first().filter(|_| passed.is_some() && !wanted.addr.is_udp()).cloned()
            {
                // Connections that wait in a socket of our own would be lost at our end. Those in the manager's are not.
                sockets.resize(threads, shared);
            }
            open_inet(*addr, wanted, threads, &mut sockets)?;
        }
    }
    Ok(Open { addr: wanted.addr.clone(), sockets, passed })
}

/// Opens the missing sockets of an address.
fn open_inet(
    addr: SocketAddr,
    wanted: &Listener,
    threads: usize,
    sockets: &mut Vec<Arc<OwnedFd>>,
) -> Result<(), Failure> {
    while sockets.len() < threads {
        let made = bind_inet(&wanted.addr, addr, &wanted.options);
        match (made, sockets.first()) {
            (Ok(socket), _) => {
                let socket = Arc::new(OwnedFd::from(socket));
                start_listening(&socket, wanted)?;
                sockets.push(socket);
            }
            // Inherited from a program that did not set SO_REUSEPORT: the threads share its socket.
            (Err(_), Some(shared)) => {
                let shared = shared.clone();
                sockets.push(shared);
            }
            (Err(e), None) => return Err((format!("bind() to {}", wanted.text), e)),
        }
    }
    Ok(())
}

/// Multipath TCP (`multipath`). Clients without it get connections of TCP.
const MULTIPATH: Protocol = Protocol::MPTCP;

/// Creates a socket for `listen`, which has the IP address `addr`.
fn new_socket(listen: &ListenAddr, addr: SocketAddr, options: &SocketOptions) -> io::Result<Socket> {
    let udp = listen.is_udp();
    let domain = Domain::for_address(addr);
    let socket = match udp {
        true => Socket::new(domain, Type::DGRAM, None)?,
        false if options.multipath => {
            or_plain_tcp(domain, Socket::new(domain, Type::STREAM, Some(MULTIPATH)))?
        }
        false => Socket::new(domain, Type::STREAM, None)?,
    };
    if !udp {
        // UDP has no connections in TIME_WAIT. With this option, two programs could bind one port (socket(7)).
        socket.set_reuse_address(true)?;
    }
    if addr.is_ipv6() {
        socket.set_only_v6(options.ipv6only.unwrap_or(true))?;
    }
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Takes a socket of TCP where the kernel has no Multipath TCP, or has it switched off (`net.mptcp.enabled`).
fn or_plain_tcp(domain: Domain, made: io::Result<Socket>) -> io::Result<Socket> {
    let lacks = |e: &io::Error| {
        // Kernels before 5.6 do not know so large a number of a protocol.
        [Errno::PROTONOSUPPORT, Errno::NOPROTOOPT, Errno::INVAL].map(Some).contains(&Errno::from_io_error(e))
    };
    match made {
        Err(e) if lacks(&e) => Socket::new(domain, Type::STREAM, None),
        made => made,
    }
}

/// Sets the options that a socket has before bind().
fn set_options(socket: &Socket, options: &SocketOptions, udp: bool) -> io::Result<()> {
    // Buffer sizes count for the window scale, so they must be set before listen().
    if let Some(size) = options.rcvbuf {
        socket.set_recv_buffer_size(size)?;
    } else if udp {
        set_datagram_room(socket);
    }
    if let Some(size) = options.sndbuf {
        socket.set_send_buffer_size(size)?;
    }
    options.so_keepalive.map_or(Ok(()), |probes| set_keepalive(socket, probes))
}

/// Receive buffer of a UDP socket, bytes. The kernel's default of 208 KB is full after 150 large datagrams, which come while one
/// turn of a busy thread lasts.
const DATAGRAM_ROOM: usize = 4 << 20;

/// Gives a UDP socket room for the datagrams that come in a turn.
fn set_datagram_room(socket: &Socket) {
    // Without privileges the kernel grants as much as `net.core.rmem_max` says.
    if rustix::net::sockopt::set_socket_recv_buffer_size_force(socket, DATAGRAM_ROOM).is_err() {
        let _ = socket.set_recv_buffer_size(DATAGRAM_ROOM);
    }
}

fn bind_inet(listen: &ListenAddr, addr: SocketAddr, options: &SocketOptions) -> io::Result<Socket> {
    let socket = new_socket(listen, addr, options)?;
    socket.set_reuse_port(true)?;
    set_options(&socket, options, listen.is_udp())?;
    socket.bind(&addr.into())?;
    options.fastopen.map_or(Ok(()), |length| sockets::set_fastopen(&socket, length))?;
    if addr.ip().is_loopback() && !listen.is_udp() {
        forebay_net::loopback::spare_pacing(&socket);
    }
    Ok(socket)
}

fn set_keepalive(socket: &Socket, probes: KeepaliveProbes) -> io::Result<()> {
    socket.set_keepalive(probes.on)?;
    if !probes.on {
        return Ok(());
    }
    let seconds = |n: u32| Duration::from_secs(n.into());
    let mut keepalive = TcpKeepalive::new();
    if let Some(idle) = probes.idle {
        keepalive = keepalive.with_time(seconds(idle));
    }
    if let Some(interval) = probes.interval {
        keepalive = keepalive.with_interval(seconds(interval));
    }
    if let Some(count) = probes.count {
        keepalive = keepalive.with_retries(count);
    }
    socket.set_tcp_keepalive(&keepalive)
}

fn open_unix(path: &Path, wanted: &Listener) -> Result<OwnedFd, Failure> {
    let bind = |e| (format!("bind() to {}", wanted.text), e);
    let addr = SockAddr::unix(path).map_err(bind)?;
    let kind = if wanted.addr.is_udp() { Type::DGRAM } else { Type::STREAM };
    let socket = Socket::new(Domain::UNIX, kind, None).map_err(bind)?;
    socket.set_nonblocking(true).map_err(bind)?;
    if wanted.addr.is_udp() {
        set_options(&socket, &wanted.options, false).map_err(bind)?;
    }
    // The file gets the mode of the socket: afterwards its name may stand for something else.
    let mode = rustix::fs::Mode::from_raw_mode(0o666);
    rustix::fs::fchmod(&socket, mode).map_err(|e| bind(e.into()))?;
    let umask = rustix::process::umask(rustix::fs::Mode::empty());
    let bound = bind_unix(&socket, &addr, path);
    rustix::process::umask(umask);
    bound.map_err(bind)?;
    let socket = Arc::new(OwnedFd::from(socket));
    start_listening(&socket, wanted)?;
    Arc::try_unwrap(socket).map_err(|_| bind(io::Error::other("socket is shared")))
}

fn bind_unix(socket: &Socket, addr: &SockAddr, path: &Path) -> io::Result<()> {
    match socket.bind(addr) {
        Err(e) if in_use(&e) && is_stale(addr, socket.r#type()?) => {
            // Unlike nginx: the file that a killed server left behind is replaced.
            let _ = std::fs::remove_file(path);
            socket.bind(addr)
        }
        other => other,
    }
}

/// Returns `true` if no process has a unix address whose file exists.
fn is_stale(addr: &SockAddr, kind: Type) -> bool {
    let Ok(client) = Socket::new(Domain::UNIX, kind, None) else { return false };
    let _ = client.set_nonblocking(true);
    matches!(client.connect(addr), Err(e) if e.kind() == io::ErrorKind::ConnectionRefused)
}

fn start_listening(socket: &Arc<OwnedFd>, wanted: &Listener) -> Result<(), Failure> {
    if wanted.addr.is_udp() {
        return wanted.addr.inet().map_or(Ok(()), |addr| report_local_address(socket, addr, wanted));
    }
    if matches!(wanted.addr, ListenAddr::Inet(_)) {
        defer(socket, wanted.options.deferred)
            .map_err(|e| (format!("setsockopt(TCP_DEFER_ACCEPT) for {}", wanted.text), e))?;
    }
    let fail = |e: io::Error| (format!("listen() to {}, backlog {}", wanted.text, backlog(wanted)), e);
    rustix::net::listen(socket, backlog(wanted)).map_err(|e| fail(e.into()))
}

/// Has the kernel report the local address of each datagram to a wildcard: the answers must come from it.
fn report_local_address(socket: &OwnedFd, addr: SocketAddr, wanted: &Listener) -> Result<(), Failure> {
    if !addr.ip().is_unspecified() {
        return Ok(());
    }
    let name = if addr.is_ipv6() { "IPV6_RECVPKTINFO" } else { "IP_PKTINFO" };
    sockets::set_packet_info(socket, addr.is_ipv6())
        .map_err(|e| (format!("setsockopt({name}) for {}", wanted.text), e))
}

/// Has the kernel keep a connection to itself until its first bytes are there. In HTTP the client always begins, so accepting
/// it earlier only costs a wake-up, a read in vain and a place in the epoll set: half of the work of a connection with one
/// request. One that stays silent is accepted after the second that is set here.
fn defer(socket: &Arc<OwnedFd>, wanted: Option<bool>) -> io::Result<()> {
    let done = sockets::set_defer_accept(socket, i32::from(wanted.unwrap_or(true)));
    // Nobody asked for it, and a system without it serves as well.
    if wanted.is_none() { Ok(()) } else { done }
}

fn backlog(wanted: &Listener) -> i32 {
    wanted.options.backlog.unwrap_or(BACKLOG)
}

fn unlink_new(opened: &Listeners, old: &Listeners) {
    for open in &opened.open {
        if old.find(&open.addr).is_none() {
            open.unlink();
        }
    }
}

impl Open {
    /// Returns `true` if the address is one of TCP whose first socket is no socket of Multipath TCP.
    fn is_plain_tcp(&self) -> bool {
        let protocol = self.sockets.first().map(|socket| SockRef::from(socket).protocol());
        matches!(self.addr, ListenAddr::Inet(_))
            && protocol.is_some_and(|p| !matches!(p, Ok(Some(MULTIPATH))))
    }

    /// Removes the file of a unix address, unless the service manager has made it.
    pub(crate) fn unlink(&self) {
        if let Some(path) = self.addr.path().filter(|_| self.passed.is_none()) {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Listeners {
    fn find(&self, addr: &ListenAddr) -> Option<&Open> {
        self.open.iter().find(|open| open.addr == *addr)
    }

    /// Returns `true` if any address has the protocol and port of `addr`.
    fn has_port(&self, addr: &ListenAddr) -> bool {
        let port = |addr: &ListenAddr| addr.inet().map(|inet| (inet.port(), addr.is_udp()));
        let mut all = self.open.iter().map(|open| &open.addr).chain(&self.former);
        all.any(|open| port(open).is_some_and(|open| port(addr) == Some(open)))
    }

    /// Removes the files of unix addresses that `kept` does not have.
    pub(crate) fn unlink_except(&self, kept: &Listeners) {
        self.open.iter().filter(|open| kept.find(&open.addr).is_none()).for_each(Open::unlink);
    }

    /// Returns the value of the variable `NGINX` that lists the sockets for the next master, and the sockets.
    pub(crate) fn to_inherit(&self) -> (String, Vec<Arc<OwnedFd>>) {
        let mut list: Vec<Arc<OwnedFd>> = Vec::new();
        for socket in self.open.iter().flat_map(|open| &open.sockets) {
            if !list.iter().any(|other| Arc::ptr_eq(other, socket)) {
                list.push(socket.clone());
            }
        }
        let mut text = String::new();
        for socket in &list {
            let _ = write!(text, "{};", socket.as_raw_fd());
        }
        (text, list)
    }

    /// Takes over the sockets that `NGINX="6;7;"` names, from this program or a real nginx: what address they
    /// have, the kernel says.
    pub(crate) fn inherited(variable: &str) -> Listeners {
        let numbers: Vec<i32> = variable.split([';', ':']).filter_map(|text| text.parse().ok()).collect();
        Listeners::take_over(&numbers, |_| None)
    }

    /// Takes over the sockets that the service manager has passed (socket activation). Descriptors that are no sockets of a
    /// server get a warning.
    pub(crate) fn passed(passed: &Passed, log: &Log) -> Listeners {
        let mut others = passed.numbers();
        let result = Listeners::take_over(&passed.numbers(), |number| {
            others.retain(|other| *other != number);
            Some(passed.name(number).to_owned())
        });
        for number in others {
            let name = passed.name(number);
            log.warn(&format!(
                "descriptor {number} \"{name}\" of the service manager is no listening socket, ignored"
            ));
        }
        result
    }

    /// Warns of sockets of the service manager that a configuration does not name.
    pub(crate) fn warn_of_unused(&self, used: &Listeners, log: &Log) {
        for open in self.open.iter().filter(|open| used.find(&open.addr).is_none()) {
            let Some(name) = &open.passed else { continue };
            let addr = &open.addr;
            log.warn(&format!(
                "socket {addr} \"{name}\" of the service manager matches no \"listen\", closed"
            ));
        }
    }

    /// Takes over sockets by number. `name` gives the name of those that the service manager has passed.
    fn take_over(numbers: &[RawFd], mut name: impl FnMut(RawFd) -> Option<String>) -> Listeners {
        let mut result = Listeners::default();
        for fd in fds::inherited_listeners(numbers) {
            let passed = name(fd.as_raw_fd());
            let socket = Socket::from(fd);
            let Some(addr) = listen_addr(&socket) else { continue };
            let _ = socket.set_nonblocking(true);
            if addr.inet().is_some() {
                // A real nginx may not have set it; without it no further socket can be bound here.
                let _ = socket.set_reuse_port(true);
            }
            let fd = Arc::new(OwnedFd::from(socket));
            match result.open.iter_mut().find(|open| open.addr == addr) {
                Some(open) => open.sockets.push(fd),
                None => result.open.push(Open { addr, sockets: vec![fd], passed }),
            }
        }
        result
    }
}

fn listen_addr(socket: &Socket) -> Option<ListenAddr> {
    let addr = socket.local_addr().ok()?;
    let udp = socket.r#type().is_ok_and(|t| t == Type::DGRAM);
    match addr.as_socket() {
        Some(inet) if udp => Some(ListenAddr::Udp(inet)),
        Some(inet) => Some(ListenAddr::Inet(inet)),
        None if udp => addr.as_pathname().map(|path| ListenAddr::UnixDatagram(path.to_owned())),
        None => addr.as_pathname().map(|path| ListenAddr::Unix(path.to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn wanted(addr: &str) -> Listener {
        let addr: SocketAddr = addr.parse().expect("address");
        Listener::new(ListenAddr::Inet(addr), SocketOptions::default(), 0, Default::default())
    }

    fn local(open: &Open) -> SocketAddr {
        let socket = Socket::from(open.sockets[0].try_clone().expect("dup"));
        socket.local_addr().expect("bound").as_socket().expect("TCP")
    }

    fn quiet() -> Log {
        Log::default()
    }

    /// A kernel without Multipath TCP is a reason to listen by TCP, anything else is none.
    #[test]
    fn multipath_or_tcp() {
        let mut listener = wanted("127.0.0.1:0");
        listener.options.multipath = true;
        let has_it = Socket::new(Domain::IPV4, Type::STREAM, Some(MULTIPATH)).is_ok();
        let opened = open(&[listener], &Listeners::default(), 1, false, &quiet()).expect("free port");
        assert_eq!(opened.open[0].is_plain_tcp(), !has_it);
        let plain =
            open(&[wanted("127.0.0.1:0")], &Listeners::default(), 1, false, &quiet()).expect("free port");
        assert!(plain.open[0].is_plain_tcp());
        for missing in [Errno::PROTONOSUPPORT, Errno::NOPROTOOPT, Errno::INVAL] {
            let socket = or_plain_tcp(Domain::IPV4, Err(missing.into())).expect("TCP");
            assert_ne!(socket.protocol().expect("a protocol"), Some(MULTIPATH), "{missing}");
        }
        assert!(or_plain_tcp(Domain::IPV4, Err(Errno::MFILE.into())).is_err());
    }

    /// Two sockets per address, reused on reload, and a third where a thread was added.
    #[test]
    fn one_socket_a_thread_and_reuse() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("bind").local_addr().expect("bound");
        let list = [wanted(&taken.to_string())];
        let first = open(&list, &Listeners::default(), 2, false, &quiet()).expect("free port");
        assert_eq!(first.open[0].sockets.len(), 2);
        assert_eq!(local(&first.open[0]), taken);
        let second = open(&list, &first, 3, false, &quiet()).expect("own port");
        assert_eq!(second.open[0].sockets.len(), 3);
        assert!(Arc::ptr_eq(&first.open[0].sockets[1], &second.open[0].sockets[1]));
        assert_eq!(open(&list, &second, 1, false, &quiet()).expect("own port").open[0].sockets.len(), 1);
        let (text, fds) = second.to_inherit();
        assert_eq!((text.matches(';').count(), fds.len()), (3, 3));
    }

    fn udp(addr: &str) -> Listener {
        Listener::new(
            ListenAddr::Udp(addr.parse().expect("address")),
            SocketOptions::default(),
            0,
            Default::default(),
        )
    }

    /// Sockets of UDP and TCP with one port, over a reload that adds a thread.
    #[test]
    fn datagram_sockets() {
        let taken = std::net::UdpSocket::bind("127.0.0.1:0").expect("bind").local_addr().expect("bound");
        let list = [udp(&taken.to_string()), wanted(&taken.to_string())];
        let first = open(&list, &Listeners::default(), 2, false, &quiet()).expect("free port");
        assert_eq!(first.open.iter().map(|open| open.sockets.len()).collect::<Vec<_>>(), [2, 2]);
        let second = open(&list, &first, 3, false, &quiet()).expect("own port");
        assert!(Arc::ptr_eq(&first.open[0].sockets[1], &second.open[0].sockets[1]));
        assert_eq!(second.open[0].sockets.len(), 3);
        let socket = Socket::from(second.open[0].sockets[2].try_clone().expect("dup"));
        assert_eq!(socket.r#type().expect("type"), Type::DGRAM);
        assert_eq!(listen_addr(&socket), Some(ListenAddr::Udp(taken)));
        assert_eq!(socket.local_addr().expect("bound").as_socket(), Some(taken));
        // Datagrams of one client come to one of the sockets.
        std::net::UdpSocket::bind("127.0.0.1:0").expect("bind").send_to(b"x", taken).expect("sent");
        let received = second.open[0].sockets.iter().filter(|fd| {
            let socket = std::net::UdpSocket::from(fd.try_clone().expect("dup"));
            socket.recv_from(&mut [0; 9]).is_ok_and(|(count, _)| count == 1)
        });
        assert_eq!(received.count(), 1);
        let other = std::net::UdpSocket::bind(taken);
        assert!(other.is_err(), "the port is in use");
    }

    #[test]
    fn a_program_with_the_port_of_a_datagram_socket_is_noticed() {
        let other = Socket::new(Domain::IPV4, Type::DGRAM, None).expect("socket");
        other.set_reuse_port(true).expect("option");
        other.bind(&"127.0.0.1:0".parse::<SocketAddr>().expect("address").into()).expect("bind");
        let addr = other.local_addr().expect("bound").as_socket().expect("UDP");
        let (call, e) = probe(&udp(&addr.to_string()), &Listeners::default()).expect_err("in use");
        assert_eq!((call, e.raw_os_error()), (format!("bind() to {addr}"), Some(98)));
        let old = Listeners {
            open: vec![Open { addr: ListenAddr::Inet(addr), sockets: Vec::new(), passed: None }],
            ..Listeners::default()
        };
        assert!(probe(&udp(&addr.to_string()), &old).is_err(), "TCP has ports of its own");
    }

    #[test]
    fn the_port_of_a_former_datagram_socket_is_free() {
        let taken = std::net::UdpSocket::bind("127.0.0.1:0").expect("bind").local_addr().expect("bound");
        let list = [udp(&taken.to_string())];
        let first = open(&list, &Listeners::default(), 1, false, &quiet()).expect("free port");
        let _kept_by_the_worker = first.open[0].sockets[0].clone();
        let without = open(&[], &first, 1, false, &quiet()).expect("nothing");
        drop(first);
        assert!(probe(&list[0], &Listeners::default()).is_err());
        let without = open(&[], &without, 1, false, &quiet()).expect("nothing");
        let again = open(&list, &without, 1, false, &quiet()).expect("own port");
        assert!(again.former.is_empty() && without.former.len() == 1);
    }

    #[test]
    fn wildcards_report_the_local_address_of_datagrams() {
        use socket2::{MaybeUninitSlice, MsgHdrMut};
        for (any, local) in [("0.0.0.0", "127.0.0.1"), ("[::]", "[::1]")] {
            let Ok(taken) = std::net::UdpSocket::bind(format!("{local}:0")) else { continue };
            let port = taken.local_addr().expect("bound").port();
            drop(taken);
            let list = [udp(&format!("{any}:{port}"))];
            let opened = open(&list, &Listeners::default(), 1, false, &quiet()).expect("free port");
            let client = std::net::UdpSocket::bind(format!("{local}:0")).expect("bind");
            client.send_to(b"x", format!("{local}:{port}")).expect("sent");
            let socket = Socket::from(opened.open[0].sockets[0].try_clone().expect("dup"));
            let (mut control, mut byte) =
                ([std::mem::MaybeUninit::uninit(); 128], [std::mem::MaybeUninit::uninit()]);
            let mut into = [MaybeUninitSlice::new(&mut byte)];
            let mut message = MsgHdrMut::new().with_control(&mut control).with_buffers(&mut into);
            assert_eq!(socket.recvmsg(&mut message, 0).expect("a datagram"), 1);
            assert!(message.control_len() > 0, "{any}");
        }
    }

    /// Two front ends may not have one address, although SO_REUSEPORT would allow it.
    #[test]
    fn an_address_of_two_front_ends_is_in_use() {
        let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("bind").local_addr().expect("bound");
        let list = [wanted(&taken.to_string()), wanted(&taken.to_string())];
        let (opened, busy) =
            open_all(&list, &Listeners::default(), 1, false, &quiet()).expect("no other error");
        assert_eq!((opened.open.len(), busy.len()), (1, 1));
        let (call, e) = only_once(&list[1], &opened).expect_err("in use");
        assert_eq!((call, e.raw_os_error()), (format!("bind() to {taken}"), Some(98)));
        drop(opened);
        // As `nginx -t`, which does not report it.
        let tested = open(&list, &Listeners::default(), 1, true, &quiet()).expect("no error");
        assert_eq!(tested.open.len(), 1);
    }

    #[test]
    fn another_program_is_noticed_in_spite_of_reuseport() {
        let other = Socket::new(Domain::IPV4, Type::STREAM, None).expect("socket");
        other.set_reuse_port(true).expect("option");
        other.bind(&"127.0.0.1:0".parse::<SocketAddr>().expect("address").into()).expect("bind");
        other.listen(1).expect("listen");
        let addr = other.local_addr().expect("bound").as_socket().expect("TCP");
        let list = [wanted(&addr.to_string())];
        let (call, e) = probe(&list[0], &Listeners::default()).expect_err("in use");
        assert_eq!((call, e.raw_os_error()), (format!("bind() to {addr}"), Some(98)));
        let tested = open(&list, &Listeners::default(), 1, true, &quiet()).expect("-t passes over it");
        assert!(tested.open.is_empty());
    }

    #[test]
    fn unix_sockets_and_stale_files() {
        let dir = tempfile::tempdir().expect("temporary directory");
        let path = dir.path().join("x.sock");
        let addr = ListenAddr::Unix(path.clone());
        let listener = Listener::new(addr, SocketOptions::default(), 0, Default::default());
        let list = [listener];
        let first = open(&list, &Listeners::default(), 4, false, &quiet()).expect("free");
        assert_eq!(first.open[0].sockets.len(), 1);
        let mode = std::fs::metadata(&path).expect("there").permissions().mode();
        assert_eq!(mode & 0o777, 0o666);
        assert!(open_one(&list[0], &Listeners::default(), 1).is_err(), "somebody listens");
        drop(first);
        let again = open(&list, &Listeners::default(), 1, false, &quiet()).expect("stale file");
        again.unlink_except(&Listeners::default());
        assert!(!path.exists());
    }

    #[test]
    fn silent_connections_stay_with_the_kernel_unless_the_option_is_off() {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        use std::io::Write as _;
        let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("bind").local_addr().expect("bound");
        let mut old = Listeners::default();
        // One socket through what are reloads.
        for deferred in [None, Some(false), Some(true), Some(false), None] {
            let mut listener = wanted(&taken.to_string());
            listener.options.deferred = deferred;
            old = open(&[listener], &old, 1, false, &quiet()).expect("own port");
            let socket = Socket::from(old.open[0].sockets[0].try_clone().expect("dup"));
            let come = |seconds: i64| {
                let limit = Timespec { tv_sec: seconds, tv_nsec: 0 };
                poll(&mut [PollFd::new(&socket, PollFlags::IN)], Some(&limit)).expect("poll") == 1
            };
            // Over loopback the handshake is over when connect() returns.
            let mut client = std::net::TcpStream::connect(taken).expect("connected");
            assert_eq!(come(0), deferred == Some(false), "{deferred:?}");
            client.write_all(b"G").expect("written");
            assert!(come(0), "{deferred:?}: the first byte is there");
            socket.accept().expect("accepted");
            let silent = std::net::TcpStream::connect(taken).expect("connected");
            assert!(come(30), "{deferred:?}: not for ever");
            socket.accept().expect("accepted");
            drop(silent);
        }
    }

    #[test]
    fn loopback_is_not_paced() {
        use rustix::net::sockopt::tcp_congestion;
        let at = |ip: &str| SocketAddr::new(ip.parse().expect("address"), 0);
        let bound = |ip: &str| {
            bind_inet(&ListenAddr::Inet(at(ip)), at(ip), &SocketOptions::default()).expect("bound")
        };
        assert!(!tcp_congestion(bound("127.0.0.1")).expect("name").starts_with("bbr"));
        let system = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").expect("Linux");
        assert_eq!(tcp_congestion(bound("0.0.0.0")).expect("name"), system.trim());
    }
}
