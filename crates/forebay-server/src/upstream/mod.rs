//! Requests to upstream groups (nginx: ngx_http_upstream_module). `attempts.rs` chooses servers by
//! [`forebay_core::upstream`], `exchange.rs` asks them, `stream.rs` reads the response. Hot path.

pub(crate) mod attempts;
mod background;
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
use crate::modules::proxy::NextUpstream;
use crate::request::rare::Unused;
use crate::request::states::Slot;
use protocol::Protocol;

/// `upstream`, and health checks.
pub(crate) static MODULE: Module = Module {
    http_directives: &[("upstream", config::block), ("match", config::matching)],
    location_directives: &[("health_check", |d, l, cx| {
        l.health_check = Some(health_check::Check::parse(d, cx)?);
        Ok(())
    })],
    variables: &[vars::VARIABLES],
    begin: Some(background::begin),
    threads: &[&h2::POOL, &h3::POOL],
    ..Module::NONE
};

/// State of a request that is passed on.
#[derive(Debug)]
pub(crate) struct Call {
    /// Protocol of the upstream.
    pub(crate) protocol: Protocol,
    /// `true` if the connection is encrypted.
    pub(crate) encrypted: bool,
    /// Reuse of the connection.
    pub(crate) reuse: Reuse,
    /// `true` if the head begins with a status line, once that is known. uwsgi and SCGI servers may send either.
    pub(crate) status_line: Option<bool>,
    /// `true` if the request goes on when the client leaves.
    pub(crate) detached: bool,
    /// Reason for the failure of the last server; `None` if it has not failed, or the client is to blame.
    pub(crate) fault: Option<NextUpstream>,
}

impl Call {
    /// Returns the beginning of the upstream's name in the error log.
    pub(crate) fn scheme(&self) -> &'static [u8] {
        self.protocol.scheme(self.encrypted)
    }
}

/// State of the requests that are passed on.
pub(crate) static CALL: Slot<Call> = Slot::new();

impl Default for Call {
    fn default() -> Call {
        Call {
            protocol: Protocol::Http,
            encrypted: false,
            reuse: Reuse::No,
            status_line: None,
            detached: false,
            fault: None,
        }
    }
}

impl Unused for Call {
    const UNUSED: &'static Call = &Call {
        protocol: Protocol::Http,
        encrypted: false,
        reuse: Reuse::No,
        status_line: None,
        detached: false,
        fault: None,
    };

    #[inline]
    fn clear(&mut self) {
        *self = Call::default();
    }
}

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
