//! Bytes from and to a server, with or without TLS. Hot path.

use crate::load::Origin;
use crate::record::Failure;
use crate::url::Address;
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};
use rustls::{ClientConfig, ClientConnection};
use std::io::{BufRead, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Bytes of one read.
const READ: usize = 64 * 1024;
/// Bytes that the kernel may drop in one call.
const DROP: usize = 4 << 20;

/// Memory that the connections of a thread share, as only one is read or written at a time.
pub(super) struct Buffers {
    input: Vec<u8>,
    dropped: Vec<u8>,
    /// Requests and HTTP/2 frames to be sent.
    pub(super) output: Vec<u8>,
}

impl Buffers {
    pub(super) fn new() -> Buffers {
        Buffers { input: vec![0; READ], dropped: vec![0; DROP], output: Vec::new() }
    }

    /// Returns the first `n` bytes that were read, and the output.
    pub(super) fn split(&mut self, n: usize) -> (&[u8], &mut Vec<u8>) {
        (self.input.get(..n).unwrap_or_default(), &mut self.output)
    }
}

/// A socket with the bytes that it did not take yet, and TLS on it.
#[derive(Default)]
pub(super) struct Transport {
    fd: Option<OwnedFd>,
    /// The socket carries datagrams.
    datagrams: bool,
    tls: Option<Box<ClientConnection>>,
    out: Vec<u8>,
    /// Bytes of `out` that were sent.
    sent: usize,
    /// Bytes given to [`Transport::write`] that [`Transport::newly_sent`] has not returned.
    uncounted: usize,
}

/// Number of bytes received, and whether that shows that the socket is empty: of a stream, less than there was room for.
pub(super) struct Received {
    pub(super) bytes: usize,
    pub(super) is_short: bool,
}

impl Transport {
    /// Closes the socket; keeps memory.
    pub(super) fn close(&mut self) {
        self.fd = None;
        self.tls = None;
        self.out.clear();
        self.sent = 0;
        self.uncounted = 0;
    }

    /// Uses a socket to an address.
    pub(super) fn open(&mut self, fd: OwnedFd, address: &Address) {
        self.fd = Some(fd);
        self.datagrams = matches!(address, Address::Udp(_));
    }

    /// Returns `true` if the socket carries datagrams.
    #[inline]
    pub(super) fn has_datagrams(&self) -> bool {
        self.datagrams
    }

    pub(super) fn is_open(&self) -> bool {
        self.fd.is_some()
    }

    /// Returns the error of a connection attempt that has ended.
    pub(super) fn connect_error(&self) -> Option<Errno> {
        match self.fd.as_ref().map(sockopt::socket_error) {
            Some(Ok(Ok(()))) => None,
            Some(Ok(Err(e)) | Err(e)) => Some(e),
            None => Some(Errno::BADF),
        }
    }

    /// Starts TLS on the socket. The handshake begins with the next flush.
    pub(super) fn start_tls(
        &mut self,
        config: &Arc<ClientConfig>,
        origin: &Origin,
    ) -> Result<(), rustls::Error> {
        let Some(name) = &origin.server_name else { return Ok(()) };
        let mut tls = ClientConnection::new(Arc::clone(config), name.clone())?;
        tls.set_buffer_limit(None);
        self.tls = Some(Box::new(tls));
        Ok(())
    }

    /// Returns the state of TLS.
    #[inline]
    pub(super) fn tls(&self) -> Option<&ClientConnection> {
        self.tls.as_deref()
    }

    /// Reads bytes from the socket as they are.
    #[inline]
    pub(super) fn read(&self, buffers: &mut Buffers) -> Result<Received, Errno> {
        let fd = self.fd.as_ref().ok_or(Errno::BADF)?;
        let bytes = rustix::io::read(fd, buffers.input.as_mut_slice())?;
        Ok(Received { bytes, is_short: bytes < READ && !self.datagrams })
    }

    /// Has the kernel drop received bytes, `most` of them at most. Content that is not looked at need not be copied.
    pub(super) fn discard(&self, buffers: &mut Buffers, most: u64) -> Result<Received, Errno> {
        let fd = self.fd.as_ref().ok_or(Errno::BADF)?;
        let most = most.min(DROP as u64) as usize;
        let part = buffers.dropped.get_mut(..most).unwrap_or_default();
        let (_, bytes) = rustix::net::recv(fd, part, RecvFlags::TRUNC)?;
        let bytes = bytes.min(most);
        Ok(Received { bytes, is_short: bytes < most })
    }

    /// Decrypts received bytes, as many as TLS takes at a time.
    pub(super) fn decrypt(&mut self, data: &mut &[u8]) -> Result<(), DecryptError> {
        let Some(tls) = self.tls.as_deref_mut() else { return Ok(()) };
        tls.read_tls(data).map_err(|_| DecryptError::Read)?;
        tls.process_new_packets().map(drop).map_err(|e| {
            // The alert should reach the server.
            let _ = tls.write_tls(&mut self.out);
            DecryptError::Tls(e)
        })
    }

    /// Returns decrypted content, if there is any. Call [`Transport::consume`] then.
    pub(super) fn content(&mut self) -> Option<&[u8]> {
        // Empty: closed by the peer. An error: no content, or closed without an alert; which of these it was shows when
        // the socket ends.
        self.tls.as_deref_mut()?.reader().into_first_chunk().ok().filter(|content| !content.is_empty())
    }

    /// Releases decrypted content.
    pub(super) fn consume(&mut self, n: usize) {
        if let Some(tls) = self.tls.as_deref_mut() {
            tls.reader().consume(n);
        }
    }

    /// Returns `true` if bytes may go to the socket as they are, after no others.
    #[inline]
    pub(super) fn is_direct(&self) -> bool {
        self.tls.is_none() && self.out.is_empty()
    }

    /// Sends bytes, and keeps those that the socket does not take now.
    #[inline]
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.uncounted += bytes.len();
        if let Some(tls) = self.tls.as_deref_mut() {
            tls.writer().write_all(bytes).map_err(|_| Failure::Write)?;
            return self.flush();
        }
        if self.out.is_empty() {
            return self.write_direct(bytes);
        }
        self.out.extend_from_slice(bytes);
        self.flush()
    }

    /// Returns how many bytes the socket has taken since the last call, without what TLS adds.
    #[inline]
    pub(super) fn newly_sent(&mut self) -> u64 {
        // Counts the few bytes that TLS adds to those that wait as if they were content.
        let waiting = self.uncounted.min(self.out.len() - self.sent);
        let taken = self.uncounted - waiting;
        self.uncounted = waiting;
        taken as u64
    }

    #[inline]
    fn write_direct(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let Some(fd) = &self.fd else { return Err(Failure::Write) };
        let taken = match rustix::net::send(fd, bytes, SendFlags::NOSIGNAL) {
            Ok(n) => n,
            Err(Errno::AGAIN | Errno::INTR) => 0,
            Err(_) => return Err(Failure::Write),
        };
        if taken < bytes.len() {
            self.out.extend_from_slice(bytes.get(taken..).unwrap_or_default());
        }
        Ok(())
    }

    /// Returns `true` if bytes wait for the socket.
    #[inline]
    pub(super) fn has_unsent(&self) -> bool {
        !self.out.is_empty()
    }

    /// Encrypts and sends the bytes that wait.
    pub(super) fn flush(&mut self) -> Result<(), Failure> {
        if let Some(tls) = self.tls.as_deref_mut() {
            while tls.wants_write() {
                tls.write_tls(&mut self.out).map_err(|_| Failure::Write)?;
            }
        }
        self.flush_socket()
    }

    /// Sends the bytes that wait for the socket.
    pub(super) fn flush_socket(&mut self) -> Result<(), Failure> {
        let Some(fd) = &self.fd else { return Err(Failure::Write) };
        while self.sent < self.out.len() {
            match rustix::net::send(fd, self.out.get(self.sent..).unwrap_or_default(), SendFlags::NOSIGNAL) {
                Ok(n) => self.sent += n,
                Err(Errno::AGAIN) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(_) => return Err(Failure::Write),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(())
    }
}

/// Reason for which bytes could not be decrypted.
pub(super) enum DecryptError {
    /// TLS took no bytes.
    Read,
    /// The peer broke TLS, or its certificate does not verify.
    Tls(rustls::Error),
}

/// State of a connection attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attempt {
    Connected,
    /// The socket becomes writable when it has ended.
    UnderWay,
}

/// Begins to connect.
pub(super) fn connect(address: &Address, receive_buffer: usize) -> rustix::io::Result<(OwnedFd, Attempt)> {
    let (fd, result) = match address {
        Address::Udp(addr) => {
            let fd = rustix::net::socket_with(family(addr), SocketType::DGRAM, flags(), None)?;
            let result = rustix::net::connect(&fd, addr);
            (fd, result)
        }
        Address::Tcp(addr) => {
            let fd = tcp_socket(addr, receive_buffer)?;
            let result = rustix::net::connect(&fd, addr);
            (fd, result)
        }
        Address::Unix(path) => {
            let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags(), None)?;
            let result = rustix::net::connect(&fd, &rustix::net::SocketAddrUnix::new(path)?);
            (fd, result)
        }
    };
    match result {
        Ok(()) => Ok((fd, Attempt::Connected)),
        Err(Errno::INPROGRESS) => Ok((fd, Attempt::UnderWay)),
        Err(e) => Err(e),
    }
}

fn flags() -> SocketFlags {
    SocketFlags::NONBLOCK | SocketFlags::CLOEXEC
}

fn family(addr: &SocketAddr) -> AddressFamily {
    if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 }
}

fn tcp_socket(addr: &SocketAddr, receive_buffer: usize) -> rustix::io::Result<OwnedFd> {
    let fd = rustix::net::socket_with(family(addr), SocketType::STREAM, flags(), None)?;
    sockopt::set_tcp_nodelay(&fd, true)?;
    if receive_buffer > 0 {
        sockopt::set_socket_recv_buffer_size(&fd, receive_buffer)?;
    }
    Ok(fd)
}
