//! TLS of the configuration, for every front end (nginx: ngx_http_ssl_module, ngx_stream_ssl_module). The protocol itself is in
//! `forebay_net::tls`.
//!
//! `session.rs` has the facts of a client's session, `presented.rs` the certificates of a server. `ocsp/` asks issuers about
//! certificates.

pub mod accept;
pub mod client;
pub mod ocsp;
mod presented;
pub mod proxy_ssl;
pub mod server;
mod session;
pub mod settings;
pub mod vars;
pub mod verdict;

pub use session::{Session, Verdict};
