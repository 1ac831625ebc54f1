//! Certificates from an authority by ACME (RFC 8555). Knows no configuration language: a front end describes its [`Issuer`]s
//! and [`Order`]s and presents the [`Certificate`]s, which are renewed in place.
//!
//! `engine.rs` is the task of an issuer, which decides with `schedule.rs` when to ask. `issue.rs` gets one certificate over
//! `protocol.rs`, the signed requests, and `transport.rs`, HTTP over TLS. `rehearsal.rs` tries an order
//! without a certificate. `publish.rs` brings the proofs to where the authority looks
//! for them: `challenge.rs` has those of this process, `dns` and `http.rs` answer questions about them, and `program.rs` calls a program.
//! `state_dir.rs` has the files. `key.rs` and `x509.rs` make keys, requests and certificates,
//! those of `local.rs`, an authority of this machine, among them.
//!
//! Everything runs on the process's tokio thread, and work with files on the blocking pool. Worker threads only read what
//! `challenge.rs` and `certificate.rs` publish.
//!
//! A front end replaces certificates in their `Slot` (`forebay-core/src/tls/slot.rs`). Challenges of HTTP-01 are answered in the
//! POST_READ phase, and challenges of TLS-ALPN-01 by `forebay-core/src/tls/proof.rs`. `dns/` and `http.rs` have listeners of their own,
//! which worker threads skip and the tokio thread reads (`Outside` in `forebay-core/src/outside.rs`).

#![warn(unreachable_pub)]
#![allow(clippy::disallowed_methods, reason = "not on a thread of connections: the tokio thread runs this")]

mod accounts;
mod certificate;
mod challenge;
pub mod dns;
mod engine;
mod failure;
mod history;
pub mod http;
mod issue;
mod key;
mod listening;
mod local;
mod program;
mod protocol;
mod publish;
mod rehearsal;
mod schedule;
mod settings;
mod state_dir;
mod substitute;
mod transport;
mod x509;

pub use certificate::{Certificate, Phase, Report, reports};
pub use engine::{Environment, load, start};
pub use key::pem_text;
pub use listening::quit;
pub use local::{LocalAuthority, PairFiles, is_local, self_signed};
pub use publish::{HookCall, Hooks, Step};
pub use settings::{
    Challenge, ExternalAccount, Identifier, Issuer, KeyKind, LETS_ENCRYPT, MacAlgorithm, Order, Profile,
    Program, Publication, RenewalRule, Retry,
};
pub use state_dir::{Mark, Stored, stored, take_result};
