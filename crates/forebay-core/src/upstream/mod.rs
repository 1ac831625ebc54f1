//! Upstream groups: servers, the choice of one for a request or session, and connections to them (nginx: upstream). Knows no
//! protocol; a front end evaluates the [`balance::Key`] of a request, and keeps what its protocol needs on a connection.

pub mod balance;
pub mod bind;
pub mod config;
pub mod conn;
pub mod dial_error;
pub mod dialing;
pub mod greeting;
pub mod group;
pub(crate) mod hash;
pub mod health;
pub(crate) mod idle;
pub mod lease;
pub mod local;
pub mod peer;
pub mod queue;
pub mod resolve;
pub mod servers;
pub mod sticky;

#[cfg(test)]
mod tests;
