//! The state of certificates, asked of their issuers (RFC 6960). `message.rs` is what is said, `responder.rs` how
//! it is carried; `staple.rs` gets what servers show of their own certificates, `client.rs` asks about those of
//! clients.

pub mod client;
pub mod message;
pub mod responder;
pub mod staple;
