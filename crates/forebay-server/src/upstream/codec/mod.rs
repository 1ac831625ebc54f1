//! Protocols that upstreams speak, one file each. Hot path.

pub mod fastcgi;
pub(crate) mod http2;
pub(crate) mod memcached;
pub mod protocol;
