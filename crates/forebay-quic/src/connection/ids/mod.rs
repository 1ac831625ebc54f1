//! Connection identifiers of both sides (RFC 9000, section 5.1).

mod local;
mod remote;

pub use local::LocalIds;
pub use remote::RemoteIds;

use crate::id::ConnectionId;
use crate::version::Version;
use std::net::IpAddr;

/// Token of a stateless reset (RFC 9000, section 10.3).
pub type ResetToken = [u8; 16];

/// Identity of an endpoint: its identifiers, and the secrets behind tokens.
pub trait Identity {
    /// Returns a new identifier, which nobody can tell from a random one. All have the same length.
    fn make(&self) -> ConnectionId;

    /// Returns the length of identifiers, 1 to 20 bytes.
    fn id_len(&self) -> usize;

    /// Returns the token by which this endpoint can reset the connection with an identifier.
    fn reset_token(&self, id: &ConnectionId) -> ResetToken;

    /// Returns a token by which the client at an address proves it on its next connection with a version (NEW_TOKEN).
    fn token(&self, _: Version, _: IpAddr) -> Option<Box<[u8]>> {
        None
    }

    /// Returns `true` if a token of NEW_TOKEN, which this number names, has not been used before (RFC 9000, section 8.1.4).
    fn takes_token(&self, _: u128) -> bool {
        true
    }
}

/// Change of the identifiers by which an endpoint finds a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdChange {
    /// Packets with this identifier are for the connection.
    Add(ConnectionId),
    /// They are not any more.
    Remove(ConnectionId),
    /// A datagram that ends with this token resets the connection.
    AddToken(ResetToken),
    /// It does not any more.
    RemoveToken(ResetToken),
}

/// Returns an identifier of four equal bytes.
#[cfg(test)]
fn four(n: u8) -> ConnectionId {
    ConnectionId::new(&[n; 4]).expect("four bytes")
}
