//! `client_body_early_read`: the body of a request is read before a location is chosen, so that `$request_body` has a value everywhere
//! (nginx: ngx_http_core_module). The settings of the server apply.

use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::config::value::Setting;
use forebay_http::request::{Framing, Method};
use forebay_proxy::modules::proxy_cache::Predicates;
use forebay_server::body;
use forebay_server::config::Scope;
use forebay_server::module::{Module, Phase, PhaseHook, Step, Verdict};
use forebay_server::request::Request;

forebay_server::module_settings! {
    /// `client_body_early_read`.
    "client_body_early_read" => when: When = When(None);
}

/// `early_read`.
pub static MODULE: Module = Module {
    settings: &[&SETTINGS],
    hooks: &[PhaseHook::new(
        Phase::PostRead,
        |s| SETTINGS.of(s).when.0.is_some(),
        |req| if has_body(req) { Step::later(run(req)) } else { Verdict::Declined.into() },
    )],
    ..Module::NONE
};

/// Values of which one must be neither empty nor `0`; `None` for `off`.
#[derive(Clone, Debug)]
pub struct When(Option<Predicates>);

impl Setting<forebay_server::config::HttpContext> for When {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        if let [only] = d.args.as_slice()
            && only.text == b"off"
        {
            return Ok(When(None));
        }
        // `on` is a text like any other that is neither empty nor 0.
        Predicates::take(previous.and_then(|p| p.0), d, cx).map(|values| When(Some(values)))
    }
}

/// Returns `true` if a request has a body that can be read to its end: what comes on a tunnel has none before the answer.
fn has_body(req: &Request) -> bool {
    req.head.framing != Framing::None && req.method != Method::Connect && !req.head.is_websocket
}

async fn run(req: &mut Request) -> Verdict {
    let http = req.http();
    let Some(When(Some(when))) = http.server(req).root().map(|root| &SETTINGS.of(&root.settings).when) else {
        return Verdict::Declined;
    };
    match when.test(req) {
        Ok(false) => return Verdict::Declined,
        Ok(true) => {}
        Err(why) => {
            req.log_var_error(&why);
            return Verdict::Status(500);
        }
    }
    match body::read_early(req).await {
        Ok(()) => Verdict::Declined,
        Err(e) => e.outcome(req).into(),
    }
}
