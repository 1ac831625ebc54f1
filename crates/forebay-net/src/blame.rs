//! Side at fault for a failure: this machine or the other side.
//!
//! A shortage of descriptors, memory or ports, and a rule of this machine's firewall, say nothing about the server that was to be
//! asked. Whatever counts failures of servers takes a [`Blamed`], so that it has to decide about both.

use rustix::io::Errno;
use std::io;

/// A failure with the side at fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blamed<E> {
    /// This machine. The state of the other side is unknown.
    Own(E),
    /// The other side, or the way to it.
    Peer(E),
}

impl<E> Blamed<E> {
    /// Changes the description of the failure.
    pub fn map<T>(self, f: impl FnOnce(E) -> T) -> Blamed<T> {
        match self {
            Blamed::Own(e) => Blamed::Own(f(e)),
            Blamed::Peer(e) => Blamed::Peer(f(e)),
        }
    }

    /// Returns the description of the failure.
    pub fn into_inner(self) -> E {
        let (Blamed::Own(e) | Blamed::Peer(e)) = self;
        e
    }

    /// Returns the description of the failure.
    pub fn inner(&self) -> &E {
        let (Blamed::Own(e) | Blamed::Peer(e)) = self;
        e
    }

    /// Returns `true` if this machine is at fault.
    pub fn is_own(&self) -> bool {
        matches!(self, Blamed::Own(_))
    }
}

impl From<io::Error> for Blamed<io::Error> {
    /// Takes an error of a socket of the internet.
    fn from(e: io::Error) -> Self {
        if Errno::from_io_error(&e).is_some_and(is_own) { Blamed::Own(e) } else { Blamed::Peer(e) }
    }
}

/// Returns `true` if an error of a socket of the internet comes from this machine.
pub fn is_own(e: Errno) -> bool {
    match e {
        // A rule of this machine's firewall or security module (connect(2), send(2)).
        Errno::PERM | Errno::ACCESS => true,
        _ => is_shortage(e),
    }
}

/// Returns `true` if an error says that this machine lacks something: descriptors, memory, ports, watches.
pub fn is_shortage(e: Errno) -> bool {
    matches!(
        e,
        // No port is left, or the local address has gone.
        Errno::ADDRNOTAVAIL | Errno::NOMEM | Errno::NOBUFS
        // Of epoll_ctl(2): max_user_watches.
        | Errno::NOSPC
    ) || is_out_of_descriptors(e)
}

/// Returns `true` if an error says that the process or the system has no descriptor left.
pub fn is_out_of_descriptors(e: Errno) -> bool {
    matches!(e, Errno::MFILE | Errno::NFILE)
}

/// Returns `true` if an error of connect(2) to a unix socket comes from this machine. `AGAIN` is a full queue of the server, and
/// the permissions of a socket are a property of that server.
pub fn is_own_of_unix(e: Errno) -> bool {
    is_shortage(e)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shortage_of_this_machine_is_no_fault_of_a_server() {
        let own = [
            Errno::MFILE,
            Errno::NFILE,
            Errno::NOMEM,
            Errno::NOBUFS,
            Errno::ADDRNOTAVAIL,
            Errno::NOSPC,
            Errno::ACCESS,
            Errno::PERM,
        ];
        let peer = [
            Errno::CONNREFUSED,
            Errno::CONNRESET,
            Errno::TIMEDOUT,
            Errno::HOSTUNREACH,
            Errno::NETUNREACH,
            Errno::PIPE,
            Errno::NOENT,
            Errno::AGAIN,
        ];
        let blamed = |e: Errno| Blamed::from(io::Error::from(e)).is_own();
        assert!(own.into_iter().all(blamed));
        assert!(!peer.into_iter().any(blamed));
        assert!(is_own_of_unix(Errno::MFILE));
        assert!(![Errno::AGAIN, Errno::ACCESS, Errno::NOENT].into_iter().any(is_own_of_unix));
        let other = io::Error::other("peer closed connection in SSL handshake");
        assert!(!Blamed::from(other).is_own());
    }
}
