//! `limit_conn`: limit on concurrent sessions per key (nginx: ngx_stream_limit_conn_module).

use crate::config::Server;
use crate::session::Session;
use crate::variables::{Row, row};
use forebay_core::limit::LogLevel;
use forebay_core::limit::concurrency::{self, Limits, Policy};
use forebay_core::limit::outcomes::Outcome;

forebay_core::settings! {
    /// `limit_conn`.
    "limit_conn" => limits: Limits = Limits::default();
    /// `limit_conn_dry_run`.
    "limit_conn_dry_run" => dry_run: bool = false;
    /// `limit_conn_log_level`.
    "limit_conn_log_level" => log_level: LogLevel = LogLevel::Error;
}

/// Variables of this module.
pub(crate) const VARIABLES: &[Row] = &[row("limit_conn_status", |s, o| {
    let Some(outcome) = s.counted.outcome() else { return Ok(false) };
    o.extend_from_slice(outcome.text().as_bytes());
    Ok(true)
})];

/// Counts a session. Returns the status with which it is refused.
pub(crate) fn check(s: &mut Session, server: &Server) -> Option<u16> {
    let settings = &server.settings.limit_conn;
    let level = settings.log_level.level();
    let phase = " while initializing session";
    let policy = Policy { limits: &settings.limits, dry_run: settings.dry_run, level, phase };
    let mut counted = std::mem::take(&mut s.counted);
    let entered = concurrency::enter(policy, s, &mut counted);
    s.counted = counted;
    match entered {
        Err(_) => Some(500),
        Ok(()) => (s.counted.outcome() == Some(Outcome::Rejected)).then_some(503),
    }
}
