//! The state of certificates, asked of their issuers (RFC 6960). `responder.rs` carries the messages; `staple.rs` gets what servers show of their own certificates, `client.rs` asks about those of
//! clients.

pub mod client;
pub mod responder;
pub mod staple;
