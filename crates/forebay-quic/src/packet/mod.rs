//! Packets (RFC 8999; RFC 9000, section 17; RFC 9369, section 3).
//!
//! - [`header`]: where a packet of a datagram begins and ends, and whom it is for.
//! - [`build`]: headers of packets that are put together.
//! - [`number`]: packet numbers of one to four bytes.
//! - [`protect`]: encryption of packets and of a part of their headers.
//! - [`retry`], [`negotiation`], [`reset`]: what a server sends without a connection.

pub mod build;
pub mod header;
pub mod negotiation;
pub mod number;
pub mod protect;
pub mod reset;
pub mod retry;

pub use build::{Head, Place};
pub use header::{Header, Long, LongKind, Packet};

/// Encryption level of a packet that has a number. Each has keys of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Initial packet.
    Initial,
    /// 0-RTT packet.
    ZeroRtt,
    /// Handshake packet.
    Handshake,
    /// 1-RTT packet: the only one with a short header.
    OneRtt,
}
