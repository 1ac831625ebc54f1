//! Modules of the stream block, one file for each module of nginx.

pub(crate) mod core;
pub(crate) mod health_check;
pub(crate) mod keyval;
pub(crate) mod limit_conn;
pub(crate) mod log;
pub(crate) mod pass;
pub(crate) mod preread;
pub(crate) mod proxy;
pub(crate) mod proxy_protocol;
pub(crate) mod realip;
pub(crate) mod return_text;
pub(crate) mod set;
pub(crate) mod ssl;
pub(crate) mod status_zone;
pub(crate) mod sticky;

use crate::config::Scope;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::blocks;
use forebay_core::limit::concurrency;
use forebay_core::vars::Template;

/// Handler of the sessions of a server.
#[derive(Clone, Debug)]
pub(crate) enum Content {
    /// `proxy_pass`.
    Proxy(proxy::Pass),
    /// `pass`.
    Pass(pass::Target),
    /// `return`.
    Return(Template),
}

/// Function that reads a directive of the stream level.
pub(crate) type Read = fn(&Directive, &mut Scope<'_>) -> Result<(), Error>;

/// Directives of the stream level that are not settings.
pub(crate) const BLOCK_DIRECTIVES: &[(&str, Read)] = &[
    ("map", blocks::map::block),
    ("num_map", blocks::num_map::block),
    ("geo", blocks::geo::block),
    ("split_clients", blocks::split_clients::block),
    ("keyval", keyval::variable),
    ("keyval_zone", keyval::zone),
    ("log_format", log::format),
    ("limit_conn_zone", concurrency::directives::zone),
    ("match", health_check::block),
];

/// Reads a directive of the stream level that is not a setting. Returns `Ok(false)` if it is another.
///
/// # Errors
/// In nginx's words.
pub(crate) fn block_directive(d: &Directive, cx: &mut Scope<'_>) -> Result<bool, Error> {
    match BLOCK_DIRECTIVES.iter().find(|(name, _)| name.as_bytes() == d.name.text) {
        Some((_, read)) => read(d, cx).map(|()| true),
        None => Ok(false),
    }
}
