//! Requests to upstream groups (nginx: ngx_http_upstream_module). `attempts.rs` chooses servers by
//! [`forebay_core::upstream`], `exchange.rs` asks them, `stream.rs` reads the response. Hot path.

pub(crate) mod attempts;
pub(crate) mod background;
pub(crate) mod codec;
pub(crate) mod config;
pub(crate) mod contact;
pub(crate) mod exchange;
pub(crate) mod fault;
pub(crate) mod h2;
pub(crate) mod h3;
mod head;
pub(crate) mod health_check;
pub(crate) mod open;
mod pooled;
mod send;
mod session_times;
pub(crate) mod spool;
pub(crate) mod sticky;
pub(crate) mod stream;
pub(crate) mod switched;
pub(crate) mod upload;
pub(crate) mod vars;

pub(crate) use codec::protocol;

use crate::module::Module;

/// `upstream`, and health checks.
pub(crate) static MODULE: Module = Module {
    http_directives: &[("upstream", config::block), ("match", config::matching)],
    location_directives: &[("health_check", |d, l, cx| {
        l.health_check = Some(health_check::Check::parse(d, cx)?);
        Ok(())
    })],
    variables: &[vars::VARIABLES],
    ..Module::NONE
};

/// Source of a request's connection, and its fate after the response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reuse {
    /// A new connection, which is closed.
    #[default]
    No,
    /// An idle connection of an `upstream` block, or a new one; it becomes idle again.
    Group,
    /// An idle or new connection for an address or a name in `proxy_pass`. The configuration does not ask for reuse, so no
    /// request may fail because of it: a request that cannot be sent twice gets a new connection, and any other is sent again by a new one.
    Implied,
}
