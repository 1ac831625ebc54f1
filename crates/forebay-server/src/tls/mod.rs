//! TLS of the configuration (nginx: ngx_http_ssl_module). The protocol itself is in `forebay_net::tls`.
//!
//! `server.rs` makes the configuration of a server, `client.rs` that of connections to upstreams. `accept.rs` is the handshake
//! of a client's connection, `vars.rs` its variables, `presented.rs` has the certificates. `ocsp/` asks issuers about certificates.

pub(crate) mod accept;
pub(crate) mod client;
pub(crate) mod ocsp;
pub(crate) mod presented;
pub(crate) mod server;
pub(crate) mod vars;
