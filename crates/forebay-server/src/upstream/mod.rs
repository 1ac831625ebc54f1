//! Upstream groups and requests to them (nginx: ngx_http_upstream_module). `balance.rs` chooses the server of a request,
//! `exchange.rs` asks it, `stream.rs` reads its response. Hot path.

pub(crate) mod attempts;
pub mod background;
pub mod balance;
pub(crate) mod codec;
pub mod config;
pub mod conn;
pub mod contact;
pub mod exchange;
pub(crate) mod fault;
pub mod group;
pub mod hash;
pub mod health;
pub mod health_check;
pub mod idle;
pub mod lease;
pub mod local;
pub(crate) mod open;
pub mod peer;
pub mod queue;
pub mod resolve;
mod send;
pub mod servers;
pub mod spool;
pub mod sticky;
pub mod stream;
mod switched;
pub mod upload;
pub mod vars;

pub(crate) use codec::protocol;

/// Source of a request's connection, and its fate after the response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reuse {
    /// It is new, and is closed.
    #[default]
    No,
    /// It is an idle one of an `upstream` block if there is one, and becomes idle again.
    Group,
    /// The same for an address or a name in `proxy_pass`. The configuration does not ask for it, so no request may fail by
    /// it: a request that cannot be sent twice gets a new connection, and any other is sent again by a new one.
    Implied,
}

#[cfg(test)]
mod tests;
