//! `internal_redirect`: another location answers, after the limits and access rules of this one (nginx: ngx_http_internal_redirect_module).

use crate::try_files;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::config::value::{OptionalSetting, once};
use forebay_core::vars::Template;
use forebay_server::config::{HttpContext, Scope};
use forebay_server::module::{Module, Phase, PhaseHook, Verdict};
use forebay_server::request::Request;
use forebay_server::request::rare::Unused;
use forebay_server::request::states::Slot;
use std::sync::Arc;

forebay_server::module_settings! {
    /// `internal_redirect`.
    "internal_redirect" => target: Option<Target> = None;
}

/// `internal_redirect`.
pub static MODULE: Module = Module {
    settings: &[&SETTINGS],
    hooks: &[PhaseHook::new(Phase::PreContent, |s| SETTINGS.of(s).target.is_some(), |req| run(req).into())],
    ..Module::NONE
};

/// URI with its query, or a named location.
#[derive(Clone, Debug)]
pub struct Target(Arc<Template>);

impl OptionalSetting<HttpContext> for Target {
    fn read(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let word = d.args.first().ok_or_else(|| cx.error(d, "no value"))?;
        Ok(Target(Arc::new(cx.template(d, word)?)))
    }
}

/// Target of the last redirect of a request.
#[derive(Clone, Debug, Default)]
struct Last(Vec<u8>);

impl Unused for Last {
    const UNUSED: &'static Last = &Last(Vec::new());

    fn clear(&mut self) {
        self.0.clear();
    }
}

static STATE: Slot<Last> = Slot::new();

fn run(req: &mut Request) -> Verdict {
    let http = req.http();
    let Some(Target(target)) = &SETTINGS.of(&http.location(req).settings).target else {
        return Verdict::Declined;
    };
    let target = match target.value(req) {
        Ok(target) => target,
        Err(why) => {
            req.log_var_error(&why);
            return Verdict::Status(500);
        }
    };
    // The location of the target inherits the directive of its server, and would redirect to itself.
    if target.is_empty() || STATE.of(req).0 == target {
        return Verdict::Declined;
    }
    STATE.of_mut(req).0.clone_from(&target);
    try_files::redirect(req, &target)
}
