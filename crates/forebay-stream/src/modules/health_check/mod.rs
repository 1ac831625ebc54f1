//! Health checks by connections and datagrams (nginx Plus: ngx_stream_upstream_hc_module). [`forebay_core::upstream::health`]
//! decides when a server is checked.

mod matching;
mod probe;

use super::Content;
use super::proxy::Pass;
use crate::config::{Scope, Stream, Upstream};
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::config::value::{Msec, Size};
use forebay_core::tasks::{Log, Tasks};
use forebay_core::upstream::health::{self, HealthCheck, Refusal};
use forebay_core::upstream::peer::Peer;
use matching::Match;
use probe::StreamProbe;
use std::sync::Arc;
use std::time::Duration;

forebay_core::settings! {
    /// `health_check_timeout`: time for a whole check.
    "health_check_timeout" => timeout: Msec = Msec(Duration::from_secs(5));
    /// `proxy_buffer_size`: number of bytes that `expect` looks at. The relay has buffers of its own.
    "proxy_buffer_size" => buffer_size: Size = Size(16 * 1024);
}

/// `match` blocks of a configuration under construction.
pub(crate) type Matches = health::Matches<Match>;

/// Protocol of the checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Protocol {
    Tcp,
    /// `udp`.
    Udp,
}

/// `health_check`.
#[derive(Debug)]
pub(crate) struct Check {
    /// Parameters that every protocol has.
    common: HealthCheck,
    protocol: Protocol,
    /// The block that `match=` names.
    conditions: Option<Arc<Match>>,
    /// Number of the server of this block, whose settings count.
    server: usize,
}

impl Check {
    fn parameter(&mut self, name: &[u8], value: Option<&[u8]>) -> Result<(), Refusal> {
        match (name, value) {
            (b"udp", None) => self.protocol = Protocol::Udp,
            _ => self.common.parameter(name, value)?,
        }
        Ok(())
    }

    /// Sets the conditions that `match=` names.
    ///
    /// # Errors
    /// `match "x" not found`.
    pub(crate) fn find_match(&mut self, matches: &Matches) -> Result<(), Error> {
        self.conditions = matches.of(&self.common)?;
        Ok(())
    }
}

/// Reads `health_check`.
///
/// # Errors
/// `is duplicate`, or `invalid parameter "x"`.
pub(crate) fn parse(d: &Directive, known: Option<&Check>, cx: &Scope<'_>) -> Result<Check, Error> {
    if known.is_some() {
        return Err(cx.directive_error(d, "is duplicate"));
    }
    let common = HealthCheck::new(d, cx);
    let mut check = Check { common, protocol: Protocol::Tcp, conditions: None, server: 0 };
    health::parameters(d, cx, |name, value| check.parameter(name, value))?;
    Ok(check)
}

/// Reads `match NAME { ... }`.
///
/// # Errors
/// With the place of the line that is invalid, or `duplicate match "x"`.
pub(crate) fn block(d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
    let conditions = Match::parse(d, cx)?;
    let Scope { tables, build, .. } = cx;
    tables.matches.define(d, conditions, build)
}

/// Adds the check of a server to the group that the server passes sessions to. `server`: its number.
///
/// # Errors
/// If the server passes sessions to no group that is known before there is one.
pub(crate) fn attach(
    mut check: Check,
    server: usize,
    content: Option<&Content>,
    cx: &mut Scope<'_>,
) -> Result<(), Error> {
    let group = match content {
        Some(Content::Proxy(Pass::Group(group))) => group,
        Some(Content::Proxy(Pass::Variable(_))) => {
            return Err(check.common.error("\"health_check\" requires a constant \"proxy_pass\""));
        }
        _ => return Err(check.common.error("\"health_check\" requires \"proxy_pass\"")),
    };
    check.server = server;
    if let Some((group, extras)) = cx.tables.upstreams.entry(*group) {
        group.checks.push(check.common.schedule);
        extras.checks.push(check);
    }
    Ok(())
}

/// Starts the checks of a group.
pub(crate) fn start(
    stream: &Arc<Stream>,
    upstream: &Arc<Upstream>,
    tasks: &mut Tasks,
    tokio: &tokio::runtime::Handle,
    log: &Log,
) {
    if upstream.extras.checks.is_empty() {
        return;
    }
    let (group, stream, upstream) = (upstream.group.clone(), stream.clone(), upstream.clone());
    let probe = move |peer: &Peer, number: usize| StreamProbe {
        peer: peer.clone(),
        upstream: upstream.clone(),
        number,
        stream: stream.clone(),
    };
    tasks.spawn(tokio, "checking health", health::watch(group, log.clone(), probe));
}
