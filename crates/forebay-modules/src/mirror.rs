//! `mirror`: copies of requests for other locations, whose responses are discarded (nginx: ngx_http_mirror_module).

use crate::dav;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::config::value::Setting;
use forebay_server::background;
use forebay_server::body;
use forebay_server::config::Scope;
use forebay_server::module::{Module, Phase, PhaseHook, Step, Verdict};
use forebay_server::request::{Request, SubBody};
use std::sync::Arc;

forebay_server::module_settings! {
    /// `mirror`.
    "mirror" => uris: Uris = Uris::default();
    /// `mirror_request_body`.
    "mirror_request_body" => request_body: bool = true;
}

/// `mirror`.
pub static MODULE: Module = Module {
    settings: &[&SETTINGS],
    hooks: &[PhaseHook::new(
        Phase::PreContent,
        |s| !SETTINGS.of(s).uris.0.is_empty(),
        |req| Step::later(run(req)),
    )],
    ..Module::NONE
};

/// Paths for the copies, empty for off.
#[derive(Clone, Debug, Default)]
pub struct Uris(Arc<Vec<Vec<u8>>>);

impl Setting<forebay_server::config::HttpContext> for Uris {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        let given = previous.is_some();
        let mut all = previous.map(|p| Arc::unwrap_or_clone(p.0)).unwrap_or_default();
        let Some(w) = d.args.first() else { return Ok(Uris::default()) };
        let off = w.text == b"off";
        // `off` stands alone: it cancels the paths of the level above, and cannot be mixed with others.
        if given && (off || all.is_empty()) {
            return Err(cx.error(d, "\"mirror\" directive is duplicate"));
        }
        if !off {
            all.push(w.text.clone());
        }
        Ok(Uris(Arc::new(all)))
    }
}

/// Sends the copies in the background. Declines unless reading the body for them fails.
async fn run(req: &mut Request) -> Verdict {
    // The copies run through the same phases, and copies of copies could go on without an end.
    if req.is_subrequest() {
        return Verdict::Declined;
    }
    let http = req.http();
    let s = SETTINGS.of(&http.location(req).settings);
    let mut body = SubBody::None;
    // The body is read before the copies are sent, since all of them and the request share it.
    if s.request_body {
        // WebDAV's PUT needs the body in a file, which it then renames.
        req.body.in_file = dav::SETTINGS.of(&http.location(req).settings).methods.has(req.method);
        if let Err(e) = body::read_all(req).await {
            return e.outcome(req).into();
        }
        body = SubBody::Shared;
    }
    for uri in s.uris.0.iter() {
        let mut sub = Request::subrequest(req, uri, &req.uri.args, body);
        // A subrequest is a GET by default, and a mirror has to see the original method.
        sub.method = req.method;
        background::send(req, sub, b"");
    }
    Verdict::Declined
}
