//! Status of certificates by OCSP (RFC 6960). `responder.rs` exchanges messages with responders, `staple.rs` fetches
//! responses to staple to servers' certificates, `client.rs` checks clients' certificates.

pub(crate) mod client;
pub(crate) mod responder;
pub mod staple;
