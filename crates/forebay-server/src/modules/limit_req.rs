//! `limit_req` (nginx: ngx_http_limit_req_module).

use crate::config::scope::Scope;
use crate::modules::{LocationSettings, Verdict};
use crate::request::Request;
use crate::variables::Row;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;

crate::settings! {
    /// `limit_req_dry_run`.
    "limit_req_dry_run" => dry_run: bool = false;
}

/// Zones of a configuration under construction.
#[derive(Debug, Default)]
pub struct Zones {}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Passed.
    Passed,
}

/// The rows.
pub const VARIABLES: &[Row] = &[];

/// `limit_req_zone`.
///
/// # Errors
/// In nginx's words.
pub fn zone(_d: &Directive, _cx: &mut Scope<'_>) -> Result<(), Error> {
    Ok(())
}

/// Whether a location limits.
pub fn enabled(_s: &LocationSettings) -> bool {
    false
}

/// The hook.
pub fn check(_req: &mut Request) -> Verdict {
    Verdict::Declined
}
