//! HTTP/1: heads and chunked bodies (RFC 9112).

mod line;
pub mod request;
