//! Modules of the stream block, one file for each module of nginx, and the small ones here.

pub(crate) mod core;
pub(crate) mod health_check;
pub(crate) mod limit_conn;
pub(crate) mod log;
pub(crate) mod pass;
pub(crate) mod preread;
pub(crate) mod proxy;
pub(crate) mod proxy_protocol;
pub(crate) mod realip;
pub(crate) mod set;
pub(crate) mod ssl;
pub(crate) mod status_zone;
pub(crate) mod sticky;

use crate::config::Scope;
use crate::session::Session;
use forebay_conf::error::{Error, Level};
use forebay_conf::tree::Directive;
use forebay_core::blocks;
use forebay_core::limit::concurrency;
use forebay_core::vars::Template;
use forebay_net::wire::Then;
use rustix::io::Errno;

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
    ("geo", blocks::geo::block),
    ("split_clients", blocks::split_clients::block),
    ("log_format", log::format),
    ("limit_conn_zone", concurrency::zone),
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

/// Reads `return` (nginx: ngx_stream_return_module).
///
/// # Errors
/// `is duplicate` if the server has a handler.
pub(crate) fn returning(
    d: &Directive,
    known: Option<&Content>,
    cx: &mut Scope<'_>,
) -> Result<Content, Error> {
    if matches!(known, Some(Content::Return(_))) {
        return Err(cx.directive_error(d, "is duplicate"));
    }
    let text = d.args.first().map(|w| cx.template(d, w)).transpose()?;
    Ok(Content::Return(text.unwrap_or_default()))
}

/// Sends the text of `return`. Returns the status.
pub(crate) async fn send_text(s: &mut Session, text: &Template) -> u16 {
    let text = match text.value(s) {
        Ok(text) => text,
        Err(e) => {
            s.log(Level::Error, &e.0);
            return 500;
        }
    };
    let thread = s.thread.clone();
    if s.udp.is_some() {
        return thread.udp.answer(s, &text);
    }
    let mut rest = text.as_slice();
    // Sealed records may wait for room after the last byte has been taken.
    let mut full = false;
    while !rest.is_empty() || full {
        match s.wire.send(&thread.io, rest, Then::Nothing) {
            Ok(sent) => {
                s.sent += sent.bytes as u64;
                rest = rest.get(sent.bytes..).unwrap_or_default();
                full = sent.full;
                if full {
                    s.wire.wait_writable(&thread.io).await;
                }
            }
            Err(Errno::AGAIN) => s.wire.wait_writable(&thread.io).await,
            Err(_) => break,
        }
    }
    200
}
