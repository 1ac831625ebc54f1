//! TLS (nginx: ngx_http_ssl_module): everything that knows rustls. `stream.rs` is a connection, `record.rs` its
//! records, `hello.rs` what a server chooses its configuration by, `server.rs` that configuration, `pem.rs` and
//! `ciphers.rs` what it is made of, `sessions.rs` resumption, `verify.rs` the judgement of certificates
//! (with `constraints.rs` and `crl.rs`), `p521.rs` a group that rustls lacks,
//! `ocsp/` what is asked of their issuers, `der.rs` the encoding of all these.

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
pub mod vars;
pub mod verify;
