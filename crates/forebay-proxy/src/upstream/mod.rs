//! Requests to upstream groups (nginx: ngx_http_upstream_module). `attempts/mod.rs` chooses servers by
//! [`forebay_core::upstream`], `exchange.rs` asks them, `stream.rs` reads the response. Hot path.

mod assembly;
pub mod attempts;
mod background;
pub mod codec;
pub mod contact;
pub mod exchange;
pub mod fault;
pub mod h2;
pub mod h3;
mod head;
pub mod health_check;
pub mod open;
mod pooled;
mod send;
mod session_times;
pub mod spool;
pub mod sticky;
pub mod stream;
pub mod switched;
pub mod upload;
pub mod vars;

use crate::modules::proxy::NextUpstream;
use codec::Codec;
use forebay_server::module::Module;
use forebay_server::request::rare::Unused;
use forebay_server::request::states::Slot;

/// `upstream`, and health checks.
pub static MODULE: Module = Module {
    http_directives: &[("match", health_check::matching)],
    location_directives: &[("health_check", |d, l, cx| {
        *l.parts.get_mut::<Option<health_check::Check>>() = Some(health_check::Check::parse(d, cx)?);
        Ok(())
    })],
    variables: &[vars::VARIABLES],
    config: assembly::HOOKS,
    begin: Some(background::begin),
    threads: &[&h2::POOL, &h3::POOL],
    ..Module::NONE
};

/// State of a request that is passed on.
#[derive(Debug)]
pub struct Call {
    /// Way in which the upstream is spoken to.
    pub codec: Codec,
    /// `true` if the connection is encrypted.
    pub encrypted: bool,
    /// Reuse of the connection.
    pub reuse: Reuse,
    /// `true` if the request goes on when the client leaves.
    pub detached: bool,
    /// Reason for the failure of the last server; `None` if it has not failed, or the client is to blame.
    pub fault: Option<NextUpstream>,
    /// Text of the error log about the failure of the present attempt.
    pub reason: Option<Box<str>>,
}

impl Call {
    /// State before the request is passed on.
    const NONE: Call = Call {
        codec: Codec::HTTP1,
        encrypted: false,
        reuse: Reuse::No,
        detached: false,
        fault: None,
        reason: None,
    };

    /// Returns the beginning of the upstream's name in the error log.
    pub fn scheme(&self) -> &'static [u8] {
        self.codec.facts().scheme(self.encrypted)
    }
}

/// State of the requests that are passed on.
pub static CALL: Slot<Call> = Slot::new();

impl Default for Call {
    fn default() -> Call {
        Call::NONE
    }
}

impl Unused for Call {
    const UNUSED: &'static Call = &Call::NONE;

    #[inline]
    fn clear(&mut self) {
        *self = Call::NONE;
    }
}

/// Source of a request's connection, and its fate after the response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reuse {
    /// A new connection, which is closed.
    #[default]
    No,
    /// An idle connection of an `upstream` block, or a new one; it becomes idle again.
    Group,
    /// An idle or new connection for an address or a name in `proxy_pass`. The configuration does not ask for reuse, so
    /// no request may fail because of a reused connection. A request that cannot be sent twice gets a new connection, and
    /// any other request is sent again on a new connection.
    Implied,
}

#[cfg(test)]
mod tests;
