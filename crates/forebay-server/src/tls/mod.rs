//! TLS of the configuration (nginx: ngx_http_ssl_module). The protocol itself is in `forebay_net::tls`.
//!
//! `server.rs` makes the configuration of a server, `client.rs` that of connections to upstreams. `accept.rs` is the handshake
//! of a client's connection, `vars.rs` its variables. `ocsp/` asks issuers about certificates.

pub mod accept;
pub mod client;
pub mod ocsp;
pub mod server;
pub mod vars;
