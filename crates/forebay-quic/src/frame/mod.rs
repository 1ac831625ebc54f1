//! Frames (RFC 9000, section 19; RFC 9221).
//!
//! [`Frames`] takes the payload of a packet apart and refuses what the RFC forbids whatever the state of a connection. The functions
//! `push_*` append frames to a packet.

mod ack;
pub mod kind;
mod push;
mod read;

pub use ack::{AckFrame, AckRanges, push_ack};
pub use push::*;
pub use read::{Frame, Frames};

#[cfg(test)]
mod tests;
