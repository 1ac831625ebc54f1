//! TLS (nginx: ngx_http_ssl_module): everything that knows rustls. `stream.rs` is a connection, `traffic.rs` what
//! is behind its handshake, `record.rs` its records, `hello.rs` what a server chooses its configuration by, `server.rs`
//! that configuration, `pem.rs`, `ciphers.rs` and `p521.rs` what it is made of, `sessions.rs` resumption, `verify.rs` the
//! judgement of certificates (with `constraints.rs` and `crl.rs`), `ocsp/` what is asked of their issuers, `der.rs`
//! the encoding of all these.

pub mod accept;
pub mod ciphers;
pub mod client;
pub mod constraints;
pub mod crl;
pub mod der;
pub mod hello;
pub mod ocsp;
mod p521;
pub mod pem;
pub mod record;
pub mod server;
pub mod sessions;
pub mod sigalg;
pub mod stream;
mod traffic;
pub mod vars;
pub mod verify;
