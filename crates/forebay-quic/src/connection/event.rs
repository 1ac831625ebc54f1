//! Events of a connection, for its owner.

use crate::error::{Code, Error};
use crate::stream::StreamEvent;
use std::fmt;

/// Event of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The handshake is complete.
    Connected,
    /// Something happened to a stream. At a server it may come before [`Event::Connected`] (0-RTT).
    Stream(StreamEvent),
    /// A DATAGRAM frame came (RFC 9221).
    Datagram,
    /// A server gave a token for the next connection to it (NEW_TOKEN).
    Token(Box<[u8]>),
    /// The connection is over.
    Lost(Reason),
}

/// Reason for the end of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The peer broke the protocol, or this side cannot go on. The peer is told.
    Error(Error),
    /// The peer closed it with an error of the transport.
    PeerError(Error),
    /// The peer's application closed it.
    PeerClosed {
        /// Error code of the application.
        code: u64,
        /// Reason for people.
        reason: Box<[u8]>,
    },
    /// The peer has forgotten the connection (stateless reset, RFC 9000, section 10.3).
    Reset,
    /// No packet came within the idle timeout.
    TimedOut,
    /// The peer speaks no version that is spoken here.
    NoVersion,
}

impl Reason {
    /// Returns the code with which the peer closed the connection or was told, if it is one of the transport.
    pub fn code(&self) -> Option<Code> {
        match self {
            Reason::Error(e) | Reason::PeerError(e) => Some(e.code),
            _ => None,
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Error(e) => e.fmt(f),
            Reason::PeerError(e) => write!(f, "closed by peer: {e}"),
            Reason::PeerClosed { code, reason } => {
                write!(f, "closed by peer: {code:#x}")?;
                match reason.is_empty() {
                    true => Ok(()),
                    false => write!(f, ": {}", String::from_utf8_lossy(reason)),
                }
            }
            Reason::Reset => f.write_str("reset by peer"),
            Reason::TimedOut => f.write_str("timed out"),
            Reason::NoVersion => f.write_str("peer speaks no version in common"),
        }
    }
}
