//! Identifiers of connections and streams (RFC 9000, sections 2.1 and 5.1).

use std::fmt;
use std::ops::Deref;

/// Longest connection identifier of versions 1 and 2, bytes (RFC 9000, section 17.2).
pub const MAX_ID: usize = 20;

/// Connection identifier of up to 20 bytes.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ConnectionId {
    len: u8,
    /// Zeros follow the identifier.
    bytes: [u8; MAX_ID],
}

impl ConnectionId {
    /// Creates an identifier. Returns `None` if there are more than 20 bytes.
    pub fn new(bytes: &[u8]) -> Option<ConnectionId> {
        let mut id = ConnectionId { len: u8::try_from(bytes.len()).ok()?, bytes: [0; MAX_ID] };
        id.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(id)
    }
}

impl Deref for ConnectionId {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.len)).unwrap_or_default()
    }
}

impl fmt::Debug for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Role of an endpoint in a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// It began the connection.
    Client,
    /// It was asked.
    Server,
}

impl Side {
    /// Returns `true` for the client.
    pub fn is_client(self) -> bool {
        self == Side::Client
    }

    /// Returns `true` for the server.
    pub fn is_server(self) -> bool {
        self == Side::Server
    }

    /// Returns the role of the peer.
    #[must_use]
    pub fn other(self) -> Side {
        if self.is_client() { Side::Server } else { Side::Client }
    }
}

/// Directions of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dir {
    /// Both sides send.
    Bi,
    /// Only the side that opened it sends.
    Uni,
}

/// Identifier of a stream: its number among those of its kind, and two bits for the kind.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u64);

impl StreamId {
    /// Creates the identifier of the stream with a number, counted from 0, among those that a side opens in a direction.
    pub const fn new(opener: Side, dir: Dir, index: u64) -> StreamId {
        StreamId(index << 2 | (matches!(dir, Dir::Uni) as u64) << 1 | matches!(opener, Side::Server) as u64)
    }

    /// Returns the side that opens it.
    pub const fn opener(self) -> Side {
        if self.0 & 1 == 0 { Side::Client } else { Side::Server }
    }

    /// Returns its directions.
    pub const fn dir(self) -> Dir {
        if self.0 & 2 == 0 { Dir::Bi } else { Dir::Uni }
    }

    /// Returns its number among those of its kind.
    pub const fn index(self) -> u64 {
        self.0 >> 2
    }
}

impl fmt::Debug for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connection_ids() {
        let id = ConnectionId::new(&[1, 0xab]).expect("two bytes");
        assert_eq!((&*id, format!("{id:?}").as_str()), (&[1, 0xab][..], "01ab"));
        assert!(ConnectionId::new(&[0; 20]).is_some() && ConnectionId::new(&[0; 21]).is_none());
        assert_ne!(ConnectionId::new(&[0; 3]), ConnectionId::new(&[0; 4]));
    }

    /// RFC 9000, section 2.1, table 1.
    #[test]
    fn stream_ids() {
        let all = [
            (Side::Client, Dir::Bi),
            (Side::Server, Dir::Bi),
            (Side::Client, Dir::Uni),
            (Side::Server, Dir::Uni),
        ];
        for ((side, dir), low) in all.into_iter().zip(0..) {
            let id = StreamId::new(side, dir, 7);
            assert_eq!((id.0, id.opener(), id.dir(), id.index()), (28 + low, side, dir, 7));
        }
    }
}
