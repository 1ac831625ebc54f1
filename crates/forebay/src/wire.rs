//! Messages of the master to its worker over their socket. Those of the worker are in [`crate::worker_messages`].
//!
//! A message is a head (kind, length of the body, number of descriptors; little-endian), the body, and the
//! descriptors in batches. Both sides are this program, from the same file: there is no version.

use forebay_core::config::{Environment, ListenAddr};
use forebay_core::process::ThreadPlan;
use forebay_sys::{fds, identity::Identity};
use std::ffi::OsStr;
use std::io::{self, Read};
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A configuration for the worker to run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Configure {
    /// Paths.
    pub environment: Environment,
    /// `Files::to_bytes_after`: everything the configuration was read from.
    pub record: Vec<u8>,
    /// Number of the configuration whose files the record leaves out; 0: none.
    pub base: u64,
    /// CPUs of each thread.
    pub cpus: Vec<Vec<usize>>,
    /// Connections of each thread.
    pub connections: usize,
    /// User to become; `None` keeps the user.
    pub identity: Option<Identity>,
    /// Addresses with the number of their sockets, which come first among the descriptors; none for those
    /// that the worker has already.
    pub listeners: Vec<(ListenAddr, usize)>,
    /// Log files, one descriptor each, after the sockets.
    pub logs: Vec<PathBuf>,
    /// Number of this configuration, higher than those before; not 0.
    pub generation: u64,
    /// Secret of QUIC, the same for all workers of this server.
    pub quic_secret: Vec<u8>,
    /// A descriptor behind all others is the socket to the worker before: only the first configuration of a worker has it.
    pub predecessor: bool,
    /// The descriptor behind the logs is the area for lines of logs: only the first configuration of a worker has it.
    pub log_area: bool,
    /// Servers of all groups with `peers external`.
    pub endpoints: Vec<Endpoints>,
    /// Files and directories that the worker gives up before it serves: credentials of the controller.
    pub closed: Vec<PathBuf>,
}

/// Servers of an upstream group, as a controller names them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Endpoints {
    /// Name of the group, lower case.
    pub group: Vec<u8>,
    /// Addresses, each with its weight, which is at least 1.
    pub servers: Vec<(SocketAddr, u32)>,
}

impl Configure {
    /// Returns the thread plan.
    pub(crate) fn plan(&self) -> ThreadPlan {
        ThreadPlan { cpus: self.cpus.clone(), connections: self.connections }
    }
}

/// From the master.
#[derive(Debug)]
pub(crate) enum Order {
    /// Start with, or change to, a configuration.
    Configure(Box<Configure>, Vec<OwnedFd>),
    /// Write to these files from now on.
    Reopen(Vec<PathBuf>, Vec<OwnedFd>),
    /// Show that a new configuration was refused, and why.
    Refused(String),
    /// Hand datagrams over to a successor by this socket, and get them from it.
    Succeed(OwnedFd),
    /// Use these servers in the groups that have `peers external`.
    Endpoints(Vec<Endpoints>),
}

const CONFIGURE: u8 = 1;
const REOPEN: u8 = 2;
const REFUSED: u8 = 3;
const SUCCEED: u8 = 4;
const ENDPOINTS: u8 = 5;

/// Sends a configuration.
///
/// # Errors
/// Errors of the socket.
pub(crate) fn send_configure(
    socket: &UnixStream,
    order: &Configure,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    let mut out = Body::default();
    out.environment(&order.environment);
    out.bytes(&order.record);
    out.number(order.base);
    out.list(&order.cpus, |out, cpus| out.list(cpus, |out, &cpu| out.number(cpu as u64)));
    out.number(order.connections as u64);
    out.number(u64::from(order.identity.is_some()));
    if let Some(identity) = &order.identity {
        out.bytes(identity.name.as_bytes());
        out.number(u64::from(identity.uid));
        out.number(u64::from(identity.gid));
    }
    out.list(&order.listeners, |out, (addr, sockets)| out.listener(addr, *sockets));
    out.list(&order.logs, |out, path| out.path(path));
    out.number(order.generation);
    out.bytes(&order.quic_secret);
    out.number(u64::from(order.predecessor));
    out.number(u64::from(order.log_area));
    out.list(&order.endpoints, Body::endpoints);
    out.list(&order.closed, |out, path| out.path(path));
    send(socket, CONFIGURE, &out.0, fds)
}

/// Sends newly opened log files.
///
/// # Errors
/// Errors of the socket.
pub(crate) fn send_reopen(socket: &UnixStream, paths: &[PathBuf], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut out = Body::default();
    out.number(paths.len() as u64);
    paths.iter().for_each(|path| out.path(path));
    send(socket, REOPEN, &out.0, fds)
}

/// Sends the reason why a configuration was refused.
///
/// # Errors
/// Errors of the socket.
pub(crate) fn send_refused(socket: &UnixStream, reason: &str) -> io::Result<()> {
    let mut out = Body::default();
    out.bytes(reason.as_bytes());
    send(socket, REFUSED, &out.0, &[])
}

/// Sends the socket to a successor.
///
/// # Errors
/// Errors of the socket.
pub(crate) fn send_succeed(socket: &UnixStream, pair: BorrowedFd<'_>) -> io::Result<()> {
    send(socket, SUCCEED, &[], &[pair])
}

/// Sends the servers of groups with `peers external`.
///
/// # Errors
/// Errors of the socket.
pub(crate) fn send_endpoints(socket: &UnixStream, endpoints: &[Endpoints]) -> io::Result<()> {
    let mut out = Body::default();
    out.list(endpoints, Body::endpoints);
    send(socket, ENDPOINTS, &out.0, &[])
}

/// Waits for an order. `None` when the master is gone.
///
/// # Errors
/// Errors of the socket; `InvalidData` for bytes that are no message of a master.
pub(crate) fn receive_order(socket: &UnixStream) -> io::Result<Option<Order>> {
    let Some((kind, body, fds)) = receive(socket)? else { return Ok(None) };
    let mut rest = Rest(&body);
    let order = match kind {
        CONFIGURE => rest.configure().map(|order| Order::Configure(Box::new(order), fds)),
        REOPEN => rest.paths().map(|paths| Order::Reopen(paths, fds)),
        REFUSED => rest.text().map(Order::Refused),
        SUCCEED => fds.into_iter().next().map(Order::Succeed),
        ENDPOINTS => rest.list(Rest::endpoints).map(Order::Endpoints),
        _ => None,
    };
    order.map(Some).ok_or_else(broken)
}

fn broken() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "broken message between master and worker")
}

pub(crate) fn send(socket: &UnixStream, kind: u8, body: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
    let until = Instant::now() + SEND_DEADLINE;
    write(socket, kind, body, fds.len(), until)?;
    fds::send(socket, fds, until)
}

/// Sends a message without descriptors.
///
/// # Errors
/// Errors of the socket; `TimedOut` if the other side has not taken all by `until`.
pub(crate) fn send_until(socket: &UnixStream, kind: u8, body: &[u8], until: Instant) -> io::Result<()> {
    write(socket, kind, body, 0, until)
}

fn write(socket: &UnixStream, kind: u8, body: &[u8], fds: usize, until: Instant) -> io::Result<()> {
    let mut head = [0u8; HEAD];
    head[0] = kind;
    head[1..9].copy_from_slice(&(body.len() as u64).to_le_bytes());
    head[9..17].copy_from_slice(&(fds as u64).to_le_bytes());
    fds::write_all(socket, &head, until)?;
    fds::write_all(socket, body, until)
}

/// A worker that has not taken a message after this time is stuck, or does not want to.
const SEND_DEADLINE: Duration = Duration::from_secs(30);
/// Length of the head in bytes.
pub(crate) const HEAD: usize = 17;
/// Longest body and most descriptors that make sense; more is a broken message.
const LONGEST: u64 = 1 << 32;
const MOST_FDS: u64 = 1 << 20;

/// Kind, body, descriptors.
pub(crate) type Message = (u8, Vec<u8>, Vec<OwnedFd>);

pub(crate) fn receive(mut socket: &UnixStream) -> io::Result<Option<Message>> {
    let mut head = [0u8; HEAD];
    match socket.read_exact(&mut head) {
        Err(e) if matches!(e.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset) => {
            return Ok(None);
        }
        other => other?,
    }
    let mut rest = Rest(&head[1..]);
    let (length, count) = (rest.number().unwrap_or(u64::MAX), rest.number().unwrap_or(u64::MAX));
    if length > LONGEST || count > MOST_FDS {
        return Err(broken());
    }
    let mut body = Vec::new();
    socket.take(length).read_to_end(&mut body)?;
    if body.len() as u64 != length {
        return Ok(None);
    }
    let fds = fds::receive(socket, usize::try_from(count).map_err(|_| broken())?)?;
    Ok(Some((head[0], body, fds)))
}

/// A body being written: numbers as 8 bytes, texts with their length before them.
#[derive(Default)]
pub(crate) struct Body(pub(crate) Vec<u8>);

impl Body {
    pub(crate) fn number(&mut self, number: u64) {
        self.0.extend(number.to_le_bytes());
    }
    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.0.extend(bytes);
    }
    pub(crate) fn path(&mut self, path: &Path) {
        self.bytes(path.as_os_str().as_bytes());
    }
    pub(crate) fn list<T>(&mut self, items: &[T], write: impl Fn(&mut Body, &T)) {
        self.number(items.len() as u64);
        items.iter().for_each(|item| write(self, item));
    }
    fn environment(&mut self, environment: &Environment) {
        self.path(&environment.prefix);
        self.path(&environment.conf_path);
        self.bytes(environment.globals.as_bytes());
        self.number(u64::from(environment.error_log.is_some()));
        self.path(environment.error_log.as_deref().unwrap_or(Path::new("")));
        self.bytes(environment.access_log.as_bytes());
    }
    pub(crate) fn endpoints(&mut self, endpoints: &Endpoints) {
        self.bytes(&endpoints.group);
        self.list(&endpoints.servers, |out, (addr, weight)| {
            out.bytes(addr.to_string().as_bytes());
            out.number(u64::from(*weight));
        });
    }
    fn listener(&mut self, addr: &ListenAddr, sockets: usize) {
        match addr {
            ListenAddr::Inet(addr) => {
                self.number(0);
                self.bytes(addr.to_string().as_bytes());
            }
            ListenAddr::Unix(path) => {
                self.number(1);
                self.path(path);
            }
            ListenAddr::Udp(addr) => {
                self.number(2);
                self.bytes(addr.to_string().as_bytes());
            }
            ListenAddr::UnixDatagram(path) => {
                self.number(3);
                self.path(path);
            }
        }
        self.number(sockets as u64);
    }
}

/// A body being read.
pub(crate) struct Rest<'a>(pub(crate) &'a [u8]);

impl<'a> Rest<'a> {
    pub(crate) fn number(&mut self) -> Option<u64> {
        let (head, tail) = self.0.split_first_chunk::<8>()?;
        self.0 = tail;
        Some(u64::from_le_bytes(*head))
    }
    fn size(&mut self) -> Option<usize> {
        usize::try_from(self.number()?).ok()
    }
    pub(crate) fn bytes(&mut self) -> Option<&'a [u8]> {
        let length = self.size()?;
        let (head, tail) = self.0.split_at_checked(length)?;
        self.0 = tail;
        Some(head)
    }
    pub(crate) fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }
    pub(crate) fn path(&mut self) -> Option<PathBuf> {
        Some(OsStr::from_bytes(self.bytes()?).into())
    }
    fn paths(&mut self) -> Option<Vec<PathBuf>> {
        (0..self.number()?).map(|_| self.path()).collect()
    }
    fn cpus(&mut self) -> Option<Vec<usize>> {
        (0..self.number()?).map(|_| self.size()).collect()
    }
    pub(crate) fn flag(&mut self) -> Option<bool> {
        Some(self.number()? != 0)
    }
    fn identity(&mut self) -> Option<Identity> {
        let name = self.text()?;
        Some(Identity { name, uid: self.number()?.try_into().ok()?, gid: self.number()?.try_into().ok()? })
    }
    fn listener(&mut self) -> Option<(ListenAddr, usize)> {
        let addr = match self.number()? {
            0 => ListenAddr::Inet(self.text()?.parse().ok()?),
            1 => ListenAddr::Unix(self.path()?),
            2 => ListenAddr::Udp(self.text()?.parse().ok()?),
            3 => ListenAddr::UnixDatagram(self.path()?),
            _ => return None,
        };
        Some((addr, self.size()?))
    }
    pub(crate) fn endpoints(&mut self) -> Option<Endpoints> {
        let group = self.bytes()?.to_vec();
        let servers = self.list(|rest| {
            let addr = rest.text()?.parse().ok()?;
            Some((addr, u32::try_from(rest.number()?).ok()?))
        });
        Some(Endpoints { group, servers: servers? })
    }
    fn environment(&mut self) -> Option<Environment> {
        let (prefix, conf_path, globals) = (self.path()?, self.path()?, self.text()?);
        let error_log = self.flag()?.then_some(self.path()?);
        Some(Environment { prefix, conf_path, globals, error_log, access_log: self.text()? })
    }

    /// Reads a number, and so many values.
    pub(crate) fn list<T>(&mut self, mut read: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        (0..self.number()?).map(|_| read(self)).collect()
    }

    /// Reads a flag, and the value if the flag is set.
    fn flagged<T>(&mut self, read: impl FnOnce(&mut Self) -> Option<T>) -> Option<Option<T>> {
        if self.flag()? { read(self).map(Some) } else { Some(None) }
    }

    fn configure(&mut self) -> Option<Configure> {
        Some(Configure {
            environment: self.environment()?,
            record: self.bytes()?.to_vec(),
            base: self.number()?,
            cpus: self.list(Self::cpus)?,
            connections: self.size()?,
            identity: self.flagged(Self::identity)?,
            listeners: self.list(Self::listener)?,
            logs: self.paths()?,
            generation: self.number()?,
            quic_secret: self.bytes()?.to_vec(),
            predecessor: self.flag()?,
            log_area: self.flag()?,
            endpoints: self.list(Self::endpoints)?,
            closed: self.paths()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::AsFd;

    fn example() -> Configure {
        Configure {
            environment: Environment {
                prefix: "/srv/".into(),
                conf_path: "/srv/x.conf".into(),
                globals: "daemon off;".into(),
                error_log: Some("stderr".into()),
                access_log: "logs/access.log".into(),
            },
            record: vec![0, 255, 1],
            base: 8,
            cpus: vec![vec![0, 1], vec![]],
            connections: 512,
            identity: Some(Identity { name: "web".into(), uid: 7, gid: 8 }),
            listeners: vec![
                (ListenAddr::Inet("[::1]:80".parse().expect("address")), 2),
                (ListenAddr::Unix("/run/x.sock".into()), 1),
                (ListenAddr::Udp("[::1]:80".parse().expect("address")), 1),
                (ListenAddr::UnixDatagram("/run/x.sock".into()), 1),
            ],
            logs: vec!["/var/log/x".into()],
            generation: 9,
            quic_secret: vec![7; 64],
            predecessor: false,
            log_area: true,
            endpoints: vec![Endpoints {
                group: b"shop-web-80".to_vec(),
                servers: vec![
                    ("10.0.0.1:80".parse().expect("address"), 1),
                    ("[fd00::1]:80".parse().expect("address"), 7),
                ],
            }],
            closed: vec!["/var/run/secrets".into()],
        }
    }

    #[test]
    fn orders_arrive() {
        let (left, right) = UnixStream::pair().expect("socket pair");
        let pipe = io::pipe().expect("pipe").0;
        let fds = vec![pipe.as_fd(); 4];
        send_configure(&left, &example(), &fds).expect("send");
        send_reopen(&left, &["/a".into()], &fds[..1]).expect("send");
        match receive_order(&right).expect("receive").expect("not closed") {
            Order::Configure(order, fds) => assert_eq!((*order, fds.len()), (example(), 4)),
            other => panic!("{other:?}"),
        }
        match receive_order(&right).expect("receive").expect("not closed") {
            Order::Reopen(paths, fds) => assert_eq!((paths, fds.len()), (vec![PathBuf::from("/a")], 1)),
            other => panic!("{other:?}"),
        }
        send_endpoints(&left, &example().endpoints).expect("send");
        match receive_order(&right).expect("receive").expect("not closed") {
            Order::Endpoints(endpoints) => assert_eq!(endpoints, example().endpoints),
            other => panic!("{other:?}"),
        }
        send_refused(&left, "unknown directive").expect("send");
        match receive_order(&right).expect("receive").expect("not closed") {
            Order::Refused(reason) => assert_eq!(reason, "unknown directive"),
            other => panic!("{other:?}"),
        }
        drop(left);
        assert!(receive_order(&right).expect("receive").is_none());
    }

    #[test]
    fn broken_messages_are_errors() {
        let (mut left, right) = UnixStream::pair().expect("socket pair");
        left.write_all(&[CONFIGURE, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3]).expect("write");
        assert!(receive_order(&right).is_err());
        left.write_all(&[255; 17]).expect("write");
        assert!(receive_order(&right).is_err());
    }
}
