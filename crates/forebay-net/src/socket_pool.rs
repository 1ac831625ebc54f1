//! Sockets for datagrams between two uses. Hot path.
//!
//! A session over UDP may be one question and its answer. Without these sockets it costs socket(), an entry of the epoll set and
//! close(), a quarter of all its time.

use crate::reactor::{Poller, Token};
use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags};
use std::cell::RefCell;
use std::collections::VecDeque;
use std::os::fd::OwnedFd;

/// Maximum number of sockets that are kept.
const KEPT: usize = 64;

/// Maximum number of datagrams and errors of the former peer that are thrown away before a socket serves another one.
const LEFTOVERS: usize = 32;

/// Unconnected sockets without a port, in the slots of their former use.
#[derive(Debug, Default)]
pub(crate) struct SocketPool(RefCell<VecDeque<(AddressFamily, Token)>>);

impl SocketPool {
    /// Takes a socket of a family that has nothing to read.
    pub(crate) fn take(&self, poller: &Poller, family: AddressFamily) -> Option<Token> {
        // The socket that has waited longest comes first: a datagram on its way to its former port has arrived by now.
        let mut kept = self.0.borrow_mut();
        let at = kept.iter().position(|(f, _)| *f == family)?;
        let (_, token) = kept.remove(at)?;
        if poller.with_fd(token, empty) == Some(true) {
            return Some(token);
        }
        // Datagrams that keep coming could reach the next session, so such a socket is closed.
        poller.remove(token);
        None
    }

    /// Takes a connected socket of a slot back. It loses its peer and its port; what others send there is refused from now on.
    pub(crate) fn give(&self, poller: &Poller, family: AddressFamily, token: Token) {
        let mut kept = self.0.borrow_mut();
        // After connect(2) to AF_UNSPEC the kernel gives the port up, and the next connect chooses another one.
        let disconnected =
            kept.len() < KEPT && poller.with_fd(token, |fd| rustix::net::connect_unspec(fd)) == Some(Ok(()));
        if disconnected {
            poller.renew(token);
            kept.push_back((family, token));
        } else {
            poller.remove(token);
        }
    }
}

/// Throws away what a socket has received: nothing of it may reach the next session. Returns `false` if it does not end.
fn empty(socket: &OwnedFd) -> bool {
    // A buffer of one byte is enough, since a datagram is removed as a whole, and the rest of it is dropped.
    let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
    (0..LEFTOVERS).any(|_| rustix::net::recv(socket, &mut [0; 1], flags) == Err(Errno::AGAIN))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    fn connected(poller: &Poller, to: &UdpSocket) -> (Token, std::net::SocketAddr) {
        let socket =
            rustix::net::socket(AddressFamily::INET, rustix::net::SocketType::DGRAM, None).expect("socket");
        rustix::net::connect(&socket, &to.local_addr().expect("bound")).expect("connected");
        let at = rustix::net::getsockname(&socket).expect("name").try_into().expect("IPv4");
        (poller.insert(socket), at)
    }

    fn bound() -> UdpSocket {
        UdpSocket::bind("127.0.0.1:0").expect("bound")
    }

    #[test]
    fn a_socket_forgets_its_former_peer() {
        let (poller, spare, server) = (Poller::new().expect("poller"), SocketPool::default(), bound());
        let (token, at) = connected(&poller, &server);
        server.send_to(b"late", at).expect("sent");
        spare.give(&poller, AddressFamily::INET, token);
        // Nobody listens there any more.
        let other = bound();
        other.connect(at).expect("connected");
        other.send(b"x").expect("sent");
        assert_eq!(
            other.recv(&mut [0; 9]).expect_err("refused").kind(),
            std::io::ErrorKind::ConnectionRefused
        );
        assert_eq!(spare.take(&poller, AddressFamily::INET6), None);
        assert_eq!(spare.take(&poller, AddressFamily::INET), Some(token));
        assert_eq!(poller.with_fd(token, empty), Some(true));
        assert_eq!(spare.take(&poller, AddressFamily::INET), None);
        // It serves another peer from another port.
        let next = bound();
        let name = |token| {
            poller.with_fd(token, |fd| {
                rustix::net::connect(fd, &next.local_addr().expect("bound")).expect("connected");
                rustix::net::send(fd, b"new", rustix::net::SendFlags::empty()).expect("sent")
            })
        };
        assert_eq!(name(token), Some(3));
        let (count, from) = next.recv_from(&mut [0; 9]).expect("received");
        assert_eq!((count, from.ip()), (3, at.ip()));
        server.send_to(b"stray", from).expect("sent");
        assert_eq!(poller.with_fd(token, empty), Some(true), "only its peer reaches it");
    }

    #[test]
    fn few_are_kept_and_none_with_much_to_read() {
        let (poller, spare, server) = (Poller::new().expect("poller"), SocketPool::default(), bound());
        let all: Vec<_> = (0..=KEPT).map(|_| connected(&poller, &server)).collect();
        let full = all[1].1;
        for _ in 0..=LEFTOVERS {
            server.send_to(b"x", full).expect("sent");
        }
        all.iter().for_each(|(token, _)| spare.give(&poller, AddressFamily::INET, *token));
        assert_eq!(poller.in_use(), KEPT);
        let take = || spare.take(&poller, AddressFamily::INET);
        assert_eq!((take(), take(), take()), (Some(all[0].0), None, Some(all[2].0)));
        assert_eq!(poller.in_use(), KEPT - 1);
    }
}
