//! HTTP/1: heads and chunked bodies (RFC 9112).

pub mod chunked;
pub mod client;
pub(crate) mod fields;
pub(crate) mod line;
pub mod request;
pub mod response;
