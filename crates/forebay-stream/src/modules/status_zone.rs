//! `status_zone`: counts of the sessions of a server (nginx Plus: ngx_http_api_module, /stream/server_zones/).

use crate::config::Scope;
use crate::session::Session;
use crate::thread::Thread;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::config::value::{first, once};
use forebay_core::status_zone::sessions::{CountedSession, SESSIONS, SessionResult};
use forebay_core::status_zone::{self, StatusZone};
use std::rc::Rc;
use std::sync::Arc;

/// Connection of a session that is counted until this is dropped.
pub(crate) struct CountedConnection(Rc<Thread>);

impl CountedConnection {
    /// Counts a connection.
    pub(crate) fn begin(thread: &Rc<Thread>) -> CountedConnection {
        thread.counters.sessions.add(1);
        CountedConnection(thread.clone())
    }
}

impl Drop for CountedConnection {
    fn drop(&mut self) {
        self.0.counters.sessions.sub(1);
    }
}

/// Reads `status_zone`.
///
/// # Errors
/// `is duplicate`.
pub(crate) fn parse(
    d: &Directive,
    known: Option<&Arc<StatusZone>>,
    cx: &Scope<'_>,
) -> Result<Arc<StatusZone>, Error> {
    once(&known, d, cx)?;
    Ok(status_zone::zone(SESSIONS, first(d)))
}

/// Counts the beginning of a session, once its server is known.
pub(crate) fn begin(s: &mut Session) {
    if s.counted_session.is_none() {
        let zone = s.conf.stream.servers.get(s.server).and_then(|server| server.status_zone.as_deref());
        s.counted_session = zone.map(CountedSession::begin);
    }
}

/// Counts the end of a session, whose status is known. Also counts its beginning if the session was refused before that.
pub(crate) fn end(s: &mut Session) {
    begin(s);
    if let Some(counted) = s.counted_session.take() {
        counted.end(SessionResult { status: s.status, received: s.received, sent: s.sent });
    }
}
