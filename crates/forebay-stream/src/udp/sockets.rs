//! Sockets of listeners, over which clients get their answers. Hot path.

use forebay_sys::datagrams::{self, Destination};
use rustix::net::Shutdown;
use std::cell::RefCell;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Datagrams of one client in a row after which its socket coalesces them. On single datagrams that costs a little.
pub(super) const BURST: usize = 4;

/// Socket of a listener.
struct Listening {
    socket: Arc<OwnedFd>,
    /// Number of sessions.
    sessions: u32,
    /// The kernel coalesces datagrams.
    coalesces: bool,
    /// The thread no longer receives from it: a reload has removed the listener, or the process quits.
    gone: bool,
}

/// Sockets by the slots of their listeners.
#[derive(Default)]
pub(super) struct Sockets(RefCell<Vec<Option<Listening>>>);

impl Sockets {
    /// Notes the socket of a listener.
    pub(super) fn receiving(&self, listener: u32, socket: &Arc<OwnedFd>) {
        let mut all = self.0.borrow_mut();
        let at = listener as usize;
        if all.len() <= at {
            all.resize_with(at + 1, || None);
        }
        let Some(place) = all.get_mut(at) else { return };
        match place {
            Some(l) if Arc::ptr_eq(&l.socket, socket) => {}
            // Sessions answer over a new socket from now on.
            Some(l) => (l.socket, l.coalesces, l.gone) = (socket.clone(), false, false),
            None => {
                let socket = socket.clone();
                *place = Some(Listening { socket, sessions: 0, coalesces: false, gone: false });
            }
        }
    }

    /// Has the kernel coalesce the datagrams of a listener.
    pub(super) fn coalesce(&self, listener: u32) {
        if let Some(Some(l)) = self.0.borrow_mut().get_mut(listener as usize)
            && !std::mem::replace(&mut l.coalesces, true)
        {
            // Old kernels lack it.
            let _ = datagrams::set_coalescing(&l.socket, true);
        }
    }

    /// Returns the socket of a listener.
    pub(super) fn get(&self, listener: u32) -> Option<Arc<OwnedFd>> {
        self.0.borrow().get(listener as usize)?.as_ref().map(|l| l.socket.clone())
    }

    /// Sends a datagram to a client.
    pub(super) fn send(&self, listener: u32, bytes: &[u8], to: &Destination) -> bool {
        self.get(listener).is_some_and(|socket| datagrams::send(socket, bytes, Some(to)).is_ok())
    }

    /// Counts a session of a listener that begins.
    pub(super) fn enter(&self, listener: u32) {
        if let Some(Some(l)) = self.0.borrow_mut().get_mut(listener as usize) {
            l.sessions += 1;
        }
    }

    /// Counts a session of a listener that has ended. Closes a socket that only its sessions needed.
    pub(super) fn leave(&self, listener: u32) {
        if let Some(place) = self.0.borrow_mut().get_mut(listener as usize)
            && let Some(l) = place
        {
            l.sessions = l.sessions.saturating_sub(1);
            if l.gone && l.sessions == 0 {
                *place = None;
            }
        }
    }

    /// Keeps the sockets that the thread no longer receives from only for the answers of their sessions. `remains` tells which
    /// listeners still exist.
    pub(super) fn retain(&self, remains: impl Fn(usize) -> bool) {
        self.drop_unless(remains, isolate);
    }

    /// Keeps the sockets only for the answers of their sessions. Another process may receive from them.
    pub(super) fn quit(&self) {
        self.drop_unless(|_| false, |_| ());
    }

    fn drop_unless(&self, remains: impl Fn(usize) -> bool, set_aside: impl Fn(&OwnedFd)) {
        for (slot, place) in self.0.borrow_mut().iter_mut().enumerate() {
            let Some(l) = place.as_mut().filter(|l| !l.gone && !remains(slot)) else { continue };
            l.gone = true;
            if l.sessions == 0 {
                *place = None;
            } else {
                set_aside(&l.socket);
            }
        }
    }
}

/// Connects a socket to a port that sends nothing. Otherwise it would go on to get a share of the datagrams for its address, also
/// of those for a listener that a later reload opens there, and nothing would read them. It can still send to others. Allows
/// the master to find the address free.
fn isolate(socket: &OwnedFd) {
    /// "discard" (RFC 863).
    const DISCARD: u16 = 9;
    // If a call fails the socket stays as it is, which does harm only after another reload.
    let _ = rustix::net::sockopt::set_socket_reuseaddr(socket, true);
    let local = rustix::net::getsockname(socket).ok().and_then(|a| SocketAddr::try_from(a).ok());
    let peer: SocketAddr = match local {
        Some(SocketAddr::V6(_)) => (Ipv6Addr::LOCALHOST, DISCARD).into(),
        Some(SocketAddr::V4(_)) => (Ipv4Addr::LOCALHOST, DISCARD).into(),
        None => {
            // A unix socket: its clients learn that nothing reads their datagrams.
            let _ = rustix::net::shutdown(socket, Shutdown::Read);
            return;
        }
    };
    let _ = rustix::net::connect(socket, &peer);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::UdpSocket;

    fn bound() -> (Arc<OwnedFd>, SocketAddr) {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("bind");
        let at = socket.local_addr().expect("bound");
        (Arc::new(socket.into()), at)
    }

    #[test]
    fn a_socket_stays_as_long_as_its_sessions() {
        let (sockets, (socket, _)) = (Sockets::default(), bound());
        sockets.receiving(2, &socket);
        sockets.enter(2);
        sockets.retain(|slot| slot == 2);
        sockets.retain(|_| false);
        assert_eq!(Arc::strong_count(&socket), 2);
        sockets.leave(2);
        assert_eq!(Arc::strong_count(&socket), 1);
        assert!(sockets.get(2).is_none());
        sockets.receiving(0, &socket);
        sockets.quit();
        assert_eq!(Arc::strong_count(&socket), 1);
        sockets.leave(7);
    }

    #[test]
    fn a_removed_listener_answers_and_receives_nothing() {
        let ((socket, at), client) = (bound(), UdpSocket::bind("127.0.0.1:0").expect("bind"));
        isolate(&socket);
        let to = Destination { addr: client.local_addr().expect("bound").into(), local: None };
        assert_eq!(datagrams::send(&socket, b"x", Some(&to)), Ok(()));
        client.set_read_timeout(Some(std::time::Duration::from_secs(10))).expect("timeout");
        let mut buf = [0; 2];
        assert_eq!(client.recv_from(&mut buf).expect("an answer"), (1, at));
        // The address takes no datagrams: the kernel says so.
        client.connect(at).expect("connected");
        client.send(b"y").expect("sent");
        assert_eq!(client.recv(&mut buf).expect_err("refused").kind(), std::io::ErrorKind::ConnectionRefused);
    }
}
