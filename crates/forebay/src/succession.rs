//! Succession of workers that serve QUIC: the secret that all of them have, and the socket between one and the next.
//!
//! A new binary gets both by a socket that the variable [`VARIABLE`] names. The first message in it is the secret.

use forebay_sys::fds;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

/// Environment variable with the number of the socket to the worker of the program that this one replaces.
pub(crate) const VARIABLE: &str = "FOREBAY_QUIC";

/// Length of the secret, bytes.
const SECRET: usize = 64;

/// Secret of the server and socket to the last worker.
#[derive(Debug)]
pub(crate) struct Succession {
    /// Secret of connection identifiers, stateless resets and tokens.
    pub secret: Vec<u8>,
    /// Socket to the worker of the program before.
    pub predecessor: Option<OwnedFd>,
}

impl Succession {
    /// Takes over what the program before has left, or begins anew.
    pub(crate) fn of_environment() -> Succession {
        let number = std::env::var(VARIABLE).ok().and_then(|number| number.parse().ok());
        number.and_then(fds::inherited_pair).and_then(Succession::inherited).unwrap_or_else(|| {
            let words = (0..SECRET / 8).flat_map(|_| forebay_sys::random::random_u64().to_ne_bytes());
            Succession { secret: words.collect(), predecessor: None }
        })
    }

    fn inherited(pair: OwnedFd) -> Option<Succession> {
        let mut secret = vec![0; SECRET];
        let (length, _) = recv(&pair, &mut *secret, RecvFlags::DONTWAIT).ok()?;
        (length == SECRET).then_some(Succession { secret, predecessor: Some(pair) })
    }

    /// Makes the sockets between a worker and its successor: that of the worker, and that of the successor.
    ///
    /// # Errors
    /// Errors of socketpair(2).
    pub(crate) fn pair(&self) -> io::Result<(OwnedFd, OwnedFd)> {
        Ok(socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?)
    }

    /// Makes the sockets between a worker and that of a new binary, with the secret in it. Returns the value of [`VARIABLE`], too.
    ///
    /// # Errors
    /// Errors of socketpair(2) and send(2).
    pub(crate) fn pair_for_binary(&self) -> io::Result<(OwnedFd, OwnedFd, String)> {
        let (ours, theirs) = self.pair()?;
        send(&ours, &self.secret, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)?;
        let number = theirs.as_raw_fd().to_string();
        Ok((ours, theirs, number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_binary_gets_the_secret() {
        let first = Succession::of_environment();
        assert!(first.predecessor.is_none() && first.secret.iter().any(|byte| *byte != 0));
        let (_ours, theirs, _) = first.pair_for_binary().expect("a pair");
        let second = Succession::inherited(theirs).expect("a secret");
        assert!(second.predecessor.is_some());
        assert_eq!(second.secret, first.secret);
        let (_ours, empty) = first.pair().expect("a pair");
        assert!(Succession::inherited(empty).is_none());
    }
}
