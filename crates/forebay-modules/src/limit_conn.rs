//! `limit_conn`: limit on concurrent requests per key, in zones that all threads share (nginx:
//! ngx_http_limit_conn_module). As in nginx, a connection counts only while a request of it is processed, and each HTTP/2
//! stream counts as a connection.

use crate::limit_req::RefusalStatus;
use crate::store_answers::gather;
use forebay_core::config::plain;
use forebay_core::limit::LogLevel;
use forebay_core::limit::concurrency::Counted;
use forebay_core::limit::concurrency::{self, Limits, Policy};
use forebay_core::limit::outcomes::Outcome;
use forebay_core::shared_store::Answer;
use forebay_core::vars::{RowSource, VarError};
use forebay_server::module::ConfigHooks;
use forebay_server::module::levels::LocationSettings;
use forebay_server::module::{Module, Phase, PhaseHook, Step, Verdict};
use forebay_server::request::Request;
use forebay_server::request::states::Slot;
use forebay_server::variables::Row;
use std::time::Duration;

forebay_server::module_settings! {
    /// `limit_conn`.
    "limit_conn" => limits: Limits = Limits::default();
    /// `limit_conn_dry_run`.
    "limit_conn_dry_run" => dry_run: bool = false;
    /// `limit_conn_log_level`.
    "limit_conn_log_level" => log_level: LogLevel = LogLevel::Error;
    /// `limit_conn_status`.
    "limit_conn_status" => status: RefusalStatus = RefusalStatus::UNAVAILABLE;
}

/// Slots of zones that a request occupies.
static STATE: Slot<Counted> = Slot::new();

/// `limit_conn`.
pub static MODULE: Module = Module {
    settings: &[&SETTINGS],
    http_directives: &[("limit_conn_zone", concurrency::directives::zone)],
    config: ConfigHooks {
        undefined: Some(|tables, _| {
            tables.conn_zones.undefined().map(|message| plain(&message)).into_iter().collect()
        }),
        ..ConfigHooks::NONE
    },
    variables: &[VARIABLES],
    hooks: &[PhaseHook::new(Phase::PreAccess, enabled, check)],
    ..Module::NONE
};

const VARIABLES: &[Row] = &[Row { name: "limit_conn_status", get: RowSource::Get(status), settable: false }];

fn status(r: &mut Request, out: &mut Vec<u8>) -> Result<bool, VarError> {
    let Some(outcome) = STATE.of(r).outcome() else { return Ok(false) };
    out.extend_from_slice(outcome.text().as_bytes());
    Ok(true)
}

/// Returns `true` if a location has `limit_conn`.
fn enabled(s: &LocationSettings) -> bool {
    !SETTINGS.of(s).limits.is_empty()
}

/// Counts a request or refuses it. Runs once per request, even after internal redirects.
fn check(req: &mut Request) -> Step<'_> {
    // The places of the first location are kept until the end of the request. Another location must not take
    // more.
    if STATE.of(req).outcome().is_some() {
        return Verdict::Declined.into();
    }
    let http = req.http();
    let s = SETTINGS.of(&http.location(req).settings);
    // The state is part of the request, and both are needed to enter a zone: keys have variables of the
    // request.
    let mut state = std::mem::take(STATE.of_mut(req));
    let entered = concurrency::enter(policy(s), req, &mut state);
    let answers = state.take_receivers();
    *STATE.of_mut(req) = state;
    if entered.is_err() {
        return Verdict::Status(500).into();
    }
    if answers.is_empty() {
        return verdict(req, s).into();
    }
    // A store that does not answer in time must not hold up requests any longer, they go on without the missing answers.
    let longest = http.shared_store.settings().map_or(Duration::ZERO, |s| s.timeout);
    let until = req.thread.io.poller.now() + longest;
    Step::later(async move {
        let answers = gather(req, answers, until).await;
        settle(req, &answers)
    })
}

/// Decides about a request that has waited for the shared store.
fn settle(req: &mut Request, answers: &[Option<Answer>]) -> Verdict {
    let http = req.http();
    let s = SETTINGS.of(&http.location(req).settings);
    let mut state = std::mem::take(STATE.of_mut(req));
    concurrency::settle(policy(s), req, &mut state, answers);
    *STATE.of_mut(req) = state;
    verdict(req, s)
}

fn policy(s: &Settings) -> Policy<'_> {
    Policy { limits: &s.limits, dry_run: s.dry_run, level: s.log_level.level(), phase: "" }
}

fn verdict(req: &Request, s: &Settings) -> Verdict {
    match STATE.of(req).outcome() {
        Some(Outcome::Rejected) => Verdict::Status(s.status.code()),
        _ => Verdict::Declined,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{again, error, request, value};

    #[test]
    fn places_are_given_back() {
        let conf = "limit_conn_zone $arg_k zone=own:32k;\n\
                    server { limit_conn own 1; set $x $limit_conn_status; }";
        let (mut a, mut b) = (request(conf, "k=1"), request(conf, "k=1"));
        assert_eq!(check(&mut a).now(), Verdict::Declined);
        assert_eq!(value(&mut a, "limit_conn_status").as_deref(), Some("PASSED"));
        assert_eq!(check(&mut b).now(), Verdict::Status(503));
        assert_eq!(value(&mut b, "limit_conn_status").as_deref(), Some("REJECTED"));
        again(&mut b, "k=2");
        assert_eq!(check(&mut b).now(), Verdict::Declined);
        again(&mut b, "k=1");
        drop(a);
        assert_eq!(check(&mut b).now(), Verdict::Declined);
    }

    #[test]
    fn mistakes_are_refused() {
        let says = |conf: &str, what: &str| error(conf).is_some_and(|m| m.contains(what));
        assert!(says("limit_conn none 1;", "zero size shared memory zone \"none\""));
        assert!(says("limit_conn_zone $host zone=a:1m; limit_conn a 0;", "invalid number of connections"));
        assert!(says("limit_conn_zone $host zone=a:1m; limit_conn a 70000;", "must be less 65536"));
        assert!(says("limit_conn_zone $host zone=a:1k;", "is too small"));
        assert!(says("limit_conn_zone $host zone=a:1m; limit_conn_zone $host zone=a:1m;", "already bound"));
        assert!(says("limit_conn_zone $host zone=a:1m; limit_conn a 1; limit_conn a 2;", "is duplicate"));
    }
}
