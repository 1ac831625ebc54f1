//! TLS of the configuration (nginx: ngx_http_ssl_module). The protocol itself is in `forebay_net::tls`.
//!
//! `server.rs` makes the configuration of a server, `client.rs` that of connections to upstreams. `accept.rs` is the handshake
//! of a client's connection, `vars.rs` its variables. Certificates and their status are in [`forebay_core::tls`].

pub(crate) mod accept;
pub(crate) mod vars;
