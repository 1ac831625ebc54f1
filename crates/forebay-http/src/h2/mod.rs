//! HTTP/2 (RFC 9113) and HPACK (RFC 7541): frames, field compression, and request heads made of them. No I/O.
//! Hot path.

pub(crate) mod client;
pub mod connection;
pub mod encode;
pub mod frame;
pub mod hpack;
pub mod link;
pub mod received;
pub mod request;
