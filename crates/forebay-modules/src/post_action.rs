//! `post_action`: a subrequest to another location after a request (nginx: ngx_http_core_module).

use crate::auth_request::SubrequestUri;
use forebay_server::background;
use forebay_server::module::{LogHook, Module};
use forebay_server::request::{Origin, Request, SubBody};

forebay_server::module_settings! {
    /// `post_action`.
    "post_action" => target: SubrequestUri = SubrequestUri(None);
}

/// `post_action`.
pub static MODULE: Module = Module {
    settings: &[&SETTINGS],
    log: Some(LogHook { enabled: |s| SETTINGS.of(s).target.0.is_some(), concerns: |_| true, hook: begin }),
    ..Module::NONE
};

/// Starts the subrequest in the background. Its variables describe the result of the request.
fn begin(req: &mut Request) {
    let http = req.http();
    let Some(target) = &SETTINGS.of(&http.location(req).settings).target.0 else { return };
    // A request whose head could not be read has no path, and nothing to repeat.
    if req.uri.path.is_empty() {
        return;
    }
    // A named location has no URI of its own, so it gets the one of the request.
    let (uri, args) = match target.first() {
        Some(b'@') => (req.uri.path.as_slice(), req.uri.args.as_slice()),
        _ => (&target[..], &b""[..]),
    };
    // The subrequest repeats the request, with its body if the body was received completely.
    let body = if req.body.done() { SubBody::Shared } else { SubBody::None };
    let mut sub = Request::subrequest(req, uri, args, body);
    sub.origin = Origin::PostAction { client_get: req.client_turned_to_get() };
    sub.method = req.method;
    sub.location = req.location;
    // Variables such as `$status` and `$bytes_sent` describe the request that has ended.
    sub.resp.status = req.resp.status;
    (sub.tally.sent, sub.tally.sent_head) = (req.tally.sent, req.tally.sent_head);
    sub.tally.complete = req.tally.complete;
    sub.modules.upstream.attempts.clone_from(&req.modules.upstream.attempts);
    background::send(req, sub, target);
}
