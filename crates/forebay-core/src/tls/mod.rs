//! TLS of the configuration, for every front end (nginx: ngx_http_ssl_module, ngx_stream_ssl_module). The protocol itself is in
//! `forebay_net::tls`.
//!
//! `settings.rs` and `proxy_ssl.rs` have the directives, `alpn.rs` those that HTTP does not have. `loader.rs` builds the settings of servers (`server.rs`) from them,
//! `client.rs` those of connections to upstreams. `slot.rs` is the place of a certificate that the server renews itself,
//! `issued.rs` has those that front ends share, `proof.rs` has those that an authority asks for. `accept.rs` is the handshake with a client, `drive.rs` drives it, `verdict.rs` the verification of
//! its certificate, `demands.rs` what a server demands of it, `session.rs` its result and `vars.rs` the variables that show it. `ocsp/` asks issuers about certificates.
//!
//! Every server has `Demands` on clients. Only a server with a certificate has handshakes (`ServerTls`). A front end gives the
//! handshake its servers as `TlsServers`. The HTTP front end has them in `forebay-server/src/tls.rs`, with the errors for requests that
//! a connection may not carry (421, 495, 496, 497).
//!
//! The verdict on a client's certificate rests on anchors, revocation lists, depth and OCSP mode. A hash of these is kept with the
//! connection (`ServerTls::basis`). After a reload the next request compares it, and the certificate is verified again or the request
//! is refused.

pub mod accept;
pub mod alpn;
mod cache_settings;
mod certified;
pub mod client;
mod conf_command;
pub mod demands;
pub mod drive;
mod files;
pub use files::HostKeyFile;
mod identity;
pub mod issued;
pub mod key_log;
pub mod loader;
pub mod ocsp;
mod presented;
pub mod proof;
pub mod proxy_ssl;
pub mod server;
mod server_config;
mod session;
pub mod settings;
pub mod slot;
pub mod vars;
pub mod verdict;

pub use session::{Session, Verdict};

#[cfg(test)]
mod tests;
