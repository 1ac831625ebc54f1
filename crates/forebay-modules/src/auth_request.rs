//! `auth_request`: another location decides on access (nginx: ngx_http_auth_request_module).

use forebay_conf::error::{Error, Level};
use forebay_conf::tree::Directive;
use forebay_core::config::value::{Setting, once};
use forebay_core::vars::Template;
use forebay_core::vars::{VarError, VarId};
use forebay_http::field::Name;
use forebay_server::body::{self, BodyError};
use forebay_server::config::Scope;
use forebay_server::module::{Module, Phase, PhaseHook, Step, Verdict};
use forebay_server::request::{Request, SubBody};
use forebay_server::subrequest;
use std::sync::Arc;

forebay_server::module_settings! {
    /// `auth_request`.
    "auth_request" => uri: SubrequestUri = SubrequestUri(None);
    /// `auth_request_set`.
    "auth_request_set" => set: Sets = Sets::default();
    /// `auth_request_body`: the subrequest has the body.
    "auth_request_body" => body: bool = false;
    /// `auth_request_fields`: the request gets all fields of the answer.
    "auth_request_fields" => fields: bool = false;
}

/// `auth_request`.
pub static MODULE: Module = Module {
    settings: &[&SETTINGS],
    hooks: &[PhaseHook::new(
        Phase::Access,
        |s| SETTINGS.of(s).uri.0.is_some(),
        |req| Step::later(check(req)),
    )],
    ..Module::NONE
};

/// Path for the subrequest; `None` for off.
#[derive(Clone, Debug)]
pub struct SubrequestUri(pub Option<Arc<[u8]>>);

impl Setting<forebay_server::config::HttpContext> for SubrequestUri {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let uri = d.args.first().filter(|w| w.text != b"off");
        Ok(SubrequestUri(uri.map(|w| w.text.as_slice().into())))
    }
}

/// `auth_request_set`: variables and their values.
#[derive(Clone, Debug, Default)]
pub struct Sets(Arc<Vec<(VarId, Template)>>);

impl Setting<forebay_server::config::HttpContext> for Sets {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        let mut all = previous.map(|p| Arc::unwrap_or_clone(p.0)).unwrap_or_default();
        if let [name, value] = d.args.as_slice() {
            let id = forebay_server::modules::rewrite::variable_to_set(d, name, cx)?;
            all.push((id, cx.template(d, value)?));
        }
        Ok(Sets(Arc::new(all)))
    }
}

/// Sends the subrequest and decides by its status.
async fn check(req: &mut Request) -> Verdict {
    let http = req.http();
    let s = SETTINGS.of(&http.location(req).settings);
    let Some(uri) = &s.uri.0 else { return Verdict::Declined };
    let mut body = SubBody::None;
    if s.body {
        match body::read_all(req).await {
            Ok(()) => body = SubBody::Shared,
            Err(BodyError::Status(status)) => return Verdict::Status(status),
            // The client has gone while it sent the body, so nobody waits for an answer.
            Err(BodyError::Gone) => {
                req.ending.drop_connection();
                return Verdict::Done;
            }
        }
    }
    let mut sub = Request::subrequest(req, uri, b"", body);
    subrequest::run(&mut sub, b"").await;
    if take_variables(req, &mut sub, &s.set).is_err() {
        return Verdict::Status(500);
    }
    let verdict = judge(req, &sub, s.fields);
    sub.recycle();
    verdict
}

/// Decides by the response of a subrequest. `fields`: a request that is let in gets its fields.
fn judge(req: &mut Request, sub: &Request, fields: bool) -> Verdict {
    match sub.status() {
        _ if sub.resp.origin.is_headless() => {
            req.log(Level::Error, "auth request has a response without status");
            Verdict::Status(500)
        }
        status @ (401 | 403) => {
            // RFC 9110, section 15.5.2: a 401 has to say how the client can authenticate.
            if status == 401 {
                copy_challenges(req, sub);
            }
            Verdict::Status(status)
        }
        200..=299 => {
            if fields {
                take_fields(req, sub);
            }
            Verdict::Allowed
        }
        status => {
            // A redirect or an error is no decision, and nobody gets in without one.
            req.log(Level::Error, &format!("auth request unexpected status: {status}"));
            Verdict::Status(500)
        }
    }
}

/// Takes over the variables that the subrequest set, because both share them, and sets those of `auth_request_set`.
fn take_variables(req: &mut Request, sub: &mut Request, set: &Sets) -> Result<(), VarError> {
    req.vars.clone_from(&sub.vars);
    for (id, value) in set.0.iter() {
        let value = value.value(&mut *sub)?;
        if !req.set_special(*id, &value) {
            req.store(*id, Some(&value));
        }
    }
    Ok(())
}

/// Fields of an answer that are about its connection or its content. They say nothing about the request.
const OF_ANSWER: &[&str] = &[
    "Connection",
    "Content-Encoding",
    "Content-Language",
    "Content-Length",
    "Content-Location",
    "Content-Range",
    "Content-Type",
    "Host",
    "Keep-Alive",
    "Proxy-Connection",
    "TE",
    "Trailer",
    "Transfer-Encoding",
    "Upgrade",
];

/// Gives the request the fields of a subrequest's answer. Fields of the client with the same names are removed, also those spelled
/// with `_`, which some applications take for the same name.
fn take_fields(req: &mut Request, sub: &Request) {
    let head = &sub.modules.upstream.head;
    let is_ours = |name: &[u8]| OF_ANSWER.iter().any(|own| name.eq_ignore_ascii_case(own.as_bytes()));
    let same = |a: &[u8], b: &[u8]| {
        let sign = |b: &u8| if *b == b'_' { b'-' } else { b.to_ascii_lowercase() };
        a.iter().map(sign).eq(b.iter().map(sign))
    };
    let lines = || {
        let all = head.fields.iter().map(|line| (line.name.of(&head.buf), line.value.of(&head.buf)));
        all.filter(|(name, _)| !is_ours(name))
    };
    req.head.remove_fields(|name| !is_ours(name) && lines().any(|(new, _)| same(name, new)));
    for (name, value) in lines() {
        let grown = req.head.insert_field(name, value);
        req.body.shift(grown);
    }
}

/// Copies the challenges of a subrequest's response to the response of the request. The challenges of an upstream count
/// even if its location does not pass them on (nginx: proxy_hide_header).
fn copy_challenges(req: &mut Request, sub: &Request) {
    let mut any = false;
    for value in sub.resp.fields.all(b"WWW-Authenticate") {
        req.resp.fields.push(b"WWW-Authenticate", value);
        any = true;
    }
    if any {
        return;
    }
    let head = &sub.modules.upstream.head;
    for line in head.fields.iter().filter(|line| line.id == Name::WwwAuthenticate) {
        req.resp.fields.copy(&head.buf, line);
    }
}
