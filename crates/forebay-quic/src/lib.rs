//! QUIC (RFC 8999, 9000, 9001, 9002, 9221, 9287, 9368, 9369) as a state machine, for servers and clients.
//!
//! The crate has no socket, no clock and no thread: datagrams, times and timers come from its owner. rustls makes the handshake
//! and the keys of packets.
//!
//! - `packet`, `frame`, [`parameters`]: what is on the wire.
//! - `recovery`, [`congestion`]: which packets arrived, and when others may leave.
//! - `stream`: content of streams, its flow control and its order.
//!
//! ARCHITECTURE.md has the way of a datagram through these files, and the budgets of a peer.

pub mod congestion;
pub mod connection;
pub mod endpoint;
pub mod error;
pub mod frame;
pub mod id;
pub mod item;
pub mod packet;
pub mod parameters;
pub mod ranges;
pub mod recovery;
pub mod stream;
pub mod time;
pub mod tls;
pub mod token;
pub mod varint;
pub mod version;
