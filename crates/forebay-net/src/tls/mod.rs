//! TLS 1.2 and 1.3 on rustls and aws-lc-rs. rustls does the handshake; the records behind it are sealed and opened here.
//!
//! `stream.rs` is a connection, `traffic.rs` what follows its handshake, `record.rs` its records, `hello.rs` the ClientHello
//! by which a server chooses its configuration, `post_handshake.rs` what may follow the handshake. `pem.rs`, `certified.rs`, `rsa_pss.rs`, `ciphers.rs` and `p521.rs` make such a configuration;
//! `sessions.rs` resumes sessions; `verify/mod.rs` verifies certificates, with `constraints.rs`, `crl.rs` and `ocsp_message.rs`;
//! `dn.rs` compares names, `der.rs` is the encoding of them all.

pub mod certified;
pub mod ciphers;
pub mod constraints;
pub mod crl;
pub mod der;
pub mod dn;
pub mod handshake;
pub mod hello;
#[cfg(test)]
pub(crate) mod made;
pub mod ocsp_message;
pub mod p521;
pub mod pem;
pub mod post_handshake;
pub mod record;
pub mod rsa_pss;
pub mod sessions;
pub mod sigalg;
pub mod stream;
mod traffic;
pub mod verify;
