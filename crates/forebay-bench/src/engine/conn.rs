//! A connection and its sockets. Hot path.

use super::h2::H2;
use crate::url::Address;
use forebay_http::h1::chunked::Chunked;
use forebay_http::h1::client::ResponseHead;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use rustls::ClientConnection;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

/// A request under way.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flight {
    /// When it should have been sent, ns.
    pub due: u64,
    /// When it was sent, ns.
    pub start: u64,
    /// Index of [`crate::load::Load::requests`].
    pub request: u32,
}

/// Where a connection stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// No socket.
    Closed,
    /// No socket, and a pause before the next attempt.
    Waiting,
    /// connect(2) under way.
    Connecting,
    /// TLS.
    Handshaking,
    /// Requests may be sent.
    Open,
}

/// What comes next from an HTTP/1 server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// A head.
    Head,
    /// So many bytes of content.
    Length(u64),
    /// Chunks.
    Chunked,
    /// Content until the end of the connection.
    Stream,
}

/// A slot for one connection after another.
pub struct Conn {
    pub fd: Option<OwnedFd>,
    /// Told apart from the connections that the slot had before.
    pub generation: u32,
    pub phase: Phase,
    pub origin: u32,
    /// When the phase began, ns.
    pub since: u64,
    /// Requests under way in HTTP/1, oldest first.
    pub flights: VecDeque<Flight>,
    /// A request that waits for the connection.
    pub first: Option<Flight>,
    /// Bytes that the socket did not take yet.
    pub out: Vec<u8>,
    pub out_at: usize,
    pub head: ResponseHead,
    pub chunked: Chunked,
    pub body: Body,
    pub status: u16,
    pub keep_alive: bool,
    /// Bytes of content of the answer so far.
    pub got: u64,
    /// Content, if it is looked at.
    pub content: Vec<u8>,
    /// Requests sent on this connection.
    pub issued: u64,
    /// To be closed when the current answers are through.
    pub closing: bool,
    pub h2: Option<Box<H2>>,
    pub tls: Option<Box<ClientConnection>>,
    /// Place in the origin's order.
    pub position: usize,
    pub in_free: bool,
    /// It comes from the list of free ones.
    pub waited: bool,
    /// When the newest request left and when its answer began, ns; kept for [`crate::load::Load::split`] only.
    pub left_at: u64,
    /// See `left_at`; 0: it has not begun.
    pub came_at: u64,
    /// No request before this time.
    pub gate: u64,
    /// Connections in a row that failed.
    pub fails: u32,
}

impl Conn {
    pub fn new(origin: u32, position: usize, parallel: usize) -> Conn {
        Conn {
            fd: None,
            generation: 0,
            phase: Phase::Closed,
            origin,
            since: 0,
            flights: VecDeque::with_capacity(parallel + 1),
            first: None,
            out: Vec::new(),
            out_at: 0,
            head: ResponseHead::default(),
            chunked: Chunked::default(),
            body: Body::Head,
            status: 0,
            keep_alive: true,
            got: 0,
            content: Vec::new(),
            issued: 0,
            closing: false,
            h2: None,
            tls: None,
            position,
            in_free: false,
            waited: false,
            left_at: 0,
            came_at: 0,
            gate: 0,
            fails: 0,
        }
    }

    /// Forgets what belonged to the last connection; keeps memory.
    pub fn reset(&mut self) {
        self.fd = None;
        self.generation = self.generation.wrapping_add(1);
        self.phase = Phase::Closed;
        self.out.clear();
        self.out_at = 0;
        let used = self.head.buf.len();
        if used > 0 {
            self.head.advance(used);
        }
        self.body = Body::Head;
        self.keep_alive = true;
        self.got = 0;
        self.content.clear();
        self.issued = 0;
        self.closing = false;
        self.h2 = None;
        self.tls = None;
    }
}

/// Begins to connect; `true` when the connection stands already.
pub fn connect(address: &Address, receive_buffer: usize) -> rustix::io::Result<(OwnedFd, bool)> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let (fd, result) = match address {
        Address::Tcp(addr) => {
            let family = if addr.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
            let fd = rustix::net::socket_with(family, SocketType::STREAM, flags, None)?;
            sockopt::set_tcp_nodelay(&fd, true)?;
            if receive_buffer > 0 {
                sockopt::set_socket_recv_buffer_size(&fd, receive_buffer)?;
            }
            let result = rustix::net::connect(&fd, addr);
            (fd, result)
        }
        Address::Unix(path) => {
            let fd = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
            let result = rustix::net::connect(&fd, &rustix::net::SocketAddrUnix::new(path)?);
            (fd, result)
        }
    };
    match result {
        Ok(()) => Ok((fd, true)),
        Err(rustix::io::Errno::INPROGRESS) => Ok((fd, false)),
        Err(e) => Err(e),
    }
}
