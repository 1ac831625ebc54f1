//! Sockets of connections that stay open, see [`talk`](super::talk).

use crate::{Server, connect, udp};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{self, UnixDatagram, UnixStream};

/// A socket of a client.
pub(super) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
    Udp(UdpSocket),
    Datagrams(UnixDatagram),
    /// Socket of an upstream, and the sender of the last datagram.
    Upstream(UdpSocket, Option<SocketAddr>),
}

/// Opens a socket of a name to an address.
pub(super) fn open(server: &Server, name: &str, at: &str) -> Socket {
    let port = |number: &str| number.parse().map(|n| server.addr(n)).ok();
    match at.strip_prefix("udp") {
        Some(number) if port(number).is_some() => Socket::Udp(udp(port(number).expect("a port"))),
        Some(rest) => match rest.trim_start_matches(':').parse::<SocketAddr>() {
            Ok(addr) => Socket::Udp(udp(addr)),
            Err(_) => Socket::Datagrams(datagrams(server, name, rest.trim_start_matches(':'))),
        },
        None => match port(at) {
            Some(addr) => Socket::Tcp(connect(addr)),
            None => {
                let stream = UnixStream::connect(server.path(at)).expect("connected");
                stream.set_read_timeout(Some(crate::DEADLINE)).expect("timeout");
                Socket::Unix(stream)
            }
        },
    }
}

/// Opens a socket of datagrams, which has a name of its own unless that is `-`. The server may write to it.
fn datagrams(server: &Server, name: &str, to: &str) -> UnixDatagram {
    let socket = match name {
        "-" => UnixDatagram::unbound().expect("socket"),
        "abstract" => {
            let own = net::SocketAddr::from_abstract_name(server.dir().as_os_str().as_encoded_bytes());
            UnixDatagram::bind_addr(&own.expect("a name")).expect("bind")
        }
        _ => {
            let path = server.path(name);
            let socket = UnixDatagram::bind(&path).expect("bind");
            crate::open_up(&path);
            socket
        }
    };
    socket.connect(server.path(to)).expect("connected");
    socket.set_read_timeout(Some(crate::DEADLINE)).expect("timeout");
    socket
}

impl Socket {
    pub(super) fn is_stream(&self) -> bool {
        matches!(self, Socket::Tcp(_) | Socket::Unix(_))
    }

    pub(super) fn port(&self) -> Option<u16> {
        match self {
            Socket::Tcp(stream) => stream.local_addr(),
            Socket::Udp(socket) => socket.local_addr(),
            Socket::Upstream(..) | Socket::Unix(_) | Socket::Datagrams(_) => return None,
        }
        .ok()
        .map(|addr| addr.port())
    }

    pub(super) fn tcp(&self) -> &TcpStream {
        let Socket::Tcp(stream) = self else { panic!("not TCP") };
        stream
    }

    /// Sends bytes. A connection that the server has closed already shows so when it is read.
    pub(super) fn send(&mut self, bytes: &[u8]) {
        match self {
            Socket::Tcp(stream) => drop(stream.write_all(bytes)),
            Socket::Unix(stream) => drop(stream.write_all(bytes)),
            Socket::Udp(socket) => assert_eq!(socket.send(bytes).expect("sent"), bytes.len()),
            Socket::Datagrams(socket) => assert_eq!(socket.send(bytes).expect("sent"), bytes.len()),
            Socket::Upstream(socket, to) => {
                let to = to.expect("a datagram before");
                assert_eq!(socket.send_to(bytes, to).expect("sent"), bytes.len());
            }
        }
    }

    pub(super) fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.read(buf),
            Socket::Unix(stream) => stream.read(buf),
            Socket::Udp(socket) => socket.recv(buf),
            Socket::Datagrams(socket) => socket.recv(buf),
            Socket::Upstream(socket, from) => {
                let (count, sender) = socket.recv_from(buf)?;
                *from = Some(sender);
                Ok(count)
            }
        }
    }

    pub(super) fn rest(&mut self, all: &mut Vec<u8>) -> std::io::Result<usize> {
        match self {
            Socket::Tcp(stream) => stream.read_to_end(all),
            Socket::Unix(stream) => stream.read_to_end(all),
            _ => panic!("datagrams have no end"),
        }
    }
}
