//! Steps of a request for the record of its way ([`trace`]). Hot path: each function is one load where nothing is recorded.

use crate::config::http::{Http, Kind, Location, ROOT};
use crate::file_cache::Found;
use crate::module::{Hook, Phase, Verdict, list};
use crate::modules::rewrite::{Op, Statement};
use crate::request::Request;
use forebay_conf::tree::Place;
use forebay_core::trace::{self, Step};
use forebay_core::vars::VarId;

/// Notes a step that the settings of the request's location have decided.
#[inline]
pub fn note(req: &Request, step: impl FnOnce() -> Step) {
    trace::note(|| step().level(req.conf.http.location(req).at));
}

/// Notes the server of a request.
#[inline]
pub fn server(req: &Request, named: bool) {
    trace::note(|| {
        let server = req.conf.http.server(req);
        let how = if named { "one of its names" } else { "default server of the address" };
        let at = server.root().map(|root| root.at);
        Step::new("server").fact("name", &server.name).fact("host", &req.head.host).fact("how", how).at(at)
    });
}

/// Notes the location of a request after a search, or after a jump to a named one.
#[inline]
pub fn location(http: &Http, req: &Request) {
    trace::note(|| {
        let l = http.location(req);
        let name = if req.location == ROOT { b"" } else { l.name.as_slice() };
        let step = Step::new("location").fact("name", name).fact("kind", kind(l));
        step.fact("uri", &req.uri.path).at(Some(l.at))
    });
}

/// Notes what a search has found at one level.
#[inline]
pub fn found(l: &Location, how: &'static str) {
    trace::note(|| {
        Step::new("search").fact("name", &l.name).fact("kind", kind(l)).fact("how", how).at(Some(l.at))
    });
}

/// Returns the kind of a level in nginx's words.
fn kind(l: &Location) -> &'static str {
    match l.kind {
        Kind::Http | Kind::Server => "server",
        Kind::Exact => "=",
        Kind::Prefix => "prefix",
        Kind::PrefixOnly => "^~",
        Kind::Regex(_) => "regular expression",
        Kind::Predicate(_) => "variable",
        Kind::Named => "named",
        _ => "block",
    }
}

/// Notes the decision of a hook.
#[inline]
pub fn hook(req: &Request, phase: Phase, hook: Hook, verdict: &Verdict) {
    note(req, || {
        let directives = list::directives_of(phase, hook);
        let step = Step::new("module").fact("phase", format!("{phase:?}").to_ascii_uppercase());
        step.fact("decision", decision(verdict)).about(&directives)
    });
}

fn decision(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Declined => "goes on".to_owned(),
        Verdict::Allowed => "allowed".to_owned(),
        Verdict::Status(status) => format!("answers {status}"),
        Verdict::Done => "answers".to_owned(),
        Verdict::Redirect => "starts over with another URI".to_owned(),
        Verdict::Named => "goes on in a named location".to_owned(),
    }
}

/// Notes the value of a variable that was read.
#[cold]
pub fn variable(req: &Request, id: VarId, value: Option<&[u8]>) {
    trace::note(|| {
        let var = req.conf.http.vars.get(id.0 as usize);
        let name = var.map(|var| &*var.name).unwrap_or_default();
        let step = Step::new("variable").fact("name", name);
        match value {
            Some(value) => step.fact("value", value),
            None => step,
        }
    });
}

/// Notes whether the condition of an `if` holds.
#[inline]
pub fn condition(at: Place, holds: bool) {
    trace::note(|| {
        Step::new("if").fact("result", if holds { "true" } else { "false" }).at(Some(at)).about(&["if"])
    });
}

/// Notes the result of a rewrite directive that is no `if`.
#[inline]
pub fn rewritten(req: &Request, statement: &Statement) {
    trace::note(|| {
        let (kind, name) = match &statement.op {
            Op::Set(..) => ("set", "set"),
            Op::Run(_) | Op::If { .. } => ("rewrite", ""),
            Op::Rewrite { .. } => ("rewrite", "rewrite"),
            Op::Return { .. } => ("return", "return"),
            Op::Break => ("break", "break"),
            Op::Goto(_) => ("goto", "goto"),
        };
        let mut uri = req.uri.path.clone();
        if !req.uri.args.is_empty() {
            uri.push(b'?');
            uri.extend_from_slice(&req.uri.args);
        }
        let step = Step::new(kind).at(Some(statement.at)).about(&[name]);
        let step = if kind == "rewrite" { step.fact("uri", uri) } else { step };
        if req.resp.location.is_empty() { step } else { step.fact("location", &req.resp.location) }
    });
}

/// Notes that a directive chooses the page for a status.
#[inline]
pub fn error_page(req: &Request, status: u16) {
    note(req, || Step::new("error page").fact("status", status.to_string()).about(&["error_page"]));
}

/// Notes a file that was looked for.
#[inline]
pub fn file(req: &Request, path: &[u8], found: &Found) {
    note(req, || {
        let result = match found {
            Found::File(_) => "a file",
            Found::Dir => "a directory",
            _ => "not found",
        };
        Step::new("file").fact("path", path).fact("result", result).about(&["root", "alias"])
    });
}
