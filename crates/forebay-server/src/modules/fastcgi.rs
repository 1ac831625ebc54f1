//! `fastcgi_pass`: the parameters of a request as a FastCGI server gets them (nginx: ngx_http_fastcgi_module). All else is
//! what `proxy_pass` does too: the way of a request in `proxy.rs`, the settings of both in `family.rs`, the conversation in
//! `upstream/`. Hot path.

use super::proxy::{self, Pass, refuse_second};
use crate::config::http::LocationBuild;
use crate::config::scope::Scope;
use crate::config::template::Template;
use crate::config::value::{Setting, first};
use crate::modules::Content;
use crate::pattern::Pattern;
use crate::request::{Request, VarError};
use crate::upstream::protocol::Protocol;
use crate::variables::{Row, RowSource};
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_http::fastcgi;
use forebay_http::field::Name;
use forebay_http::h1::response;
use std::sync::Arc;

crate::settings! {
    /// `fastcgi_param`.
    "fastcgi_param" => param: Params = Params::default();
    /// `fastcgi_index`.
    "fastcgi_index" => index: Vec<u8> = Vec::new();
    /// `fastcgi_split_path_info`.
    "fastcgi_split_path_info" => split_path_info: Split = Split(None);
    /// `fastcgi_keep_conn`.
    "fastcgi_keep_conn" => keep_conn: bool = false;
    /// `fastcgi_catch_stderr`.
    "fastcgi_catch_stderr" => catch_stderr: Texts = Texts::default();
}

/// Lines of `fastcgi_param`.
#[derive(Clone, Debug, Default)]
pub struct Params(Arc<Vec<Param>>);

/// One `fastcgi_param`.
#[derive(Clone, Debug)]
struct Param {
    name: Vec<u8>,
    value: Template,
    /// Left out where the value is empty.
    if_not_empty: bool,
}

impl Setting for Params {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        let mut all = previous.map(|p| p.0.as_ref().clone()).unwrap_or_default();
        let mut if_not_empty = false;
        if let Some(w) = d.args.get(2) {
            if w.text != b"if_not_empty" {
                return Err(cx.error_at(d, w, format!("invalid parameter \"{}\"", w.as_str())));
            }
            if_not_empty = true;
        }
        let name = first(d).to_vec();
        // One that stands for a field of the client is as good as absent when it is empty, as in nginx.
        if_not_empty |= name.starts_with(FIELD);
        if let Some(w) = d.args.get(1) {
            all.push(Param { name, value: cx.template(d, w)?, if_not_empty });
        }
        Ok(Params(Arc::new(all)))
    }
}

/// `fastcgi_split_path_info`.
#[derive(Clone, Debug)]
pub struct Split(Option<Pattern>);

impl Setting for Split {
    fn take(_previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        let pattern = cx.pattern(d, first(d), false)?;
        if pattern.groups() != 2 {
            let text = String::from_utf8_lossy(first(d)).into_owned();
            return Err(cx.error(d, format!("pattern \"{text}\" must have 2 captures")));
        }
        Ok(Split(Some(pattern)))
    }
}

/// `fastcgi_catch_stderr`.
#[derive(Clone, Debug, Default)]
pub struct Texts(Arc<Vec<Vec<u8>>>);

impl Texts {
    /// Whether one of them occurs.
    pub fn is_in(&self, said: &[u8]) -> bool {
        self.0.iter().any(|t| memchr::memmem::find(said, t).is_some())
    }
}

impl Setting for Texts {
    fn take(previous: Option<Self>, d: &Directive, _cx: &mut Scope<'_>) -> Result<Self, Error> {
        let mut all = previous.map(|p| p.0.as_ref().clone()).unwrap_or_default();
        all.push(first(d).to_vec());
        Ok(Texts(Arc::new(all)))
    }
}

/// `fastcgi_pass`.
///
/// # Errors
/// In nginx's words.
pub fn pass(d: &Directive, l: &mut LocationBuild, cx: &mut Scope<'_>) -> Result<(), Error> {
    refuse_second(Protocol::FastCgi, d, l, cx)?;
    l.content = Some(Content::Proxy(Arc::new(Pass::parse_place(d, Protocol::FastCgi, cx)?)));
    Ok(())
}

/// How the names of parameters begin that stand for fields of the client.
const FIELD: &[u8] = b"HTTP_";

/// Appends the request as it goes to the server, up to its content. `stored`: the response is to be stored, so the whole
/// is asked for. `bare`: no content follows.
pub fn write_params(
    req: &mut Request,
    s: &proxy::Settings,
    stored: bool,
    bare: bool,
    out: &mut Vec<u8>,
) -> Result<(), VarError> {
    let http = req.http();
    let own = &http.location(req).settings.fastcgi;
    let start = fastcgi::begin(out, own.keep_conn);
    let mut value = req.take_buf();
    for p in own.param.0.iter() {
        if let Some(constant) = p.value.as_const() {
            if !(p.if_not_empty && constant.is_empty()) {
                fastcgi::param(out, &p.name, constant);
            }
            continue;
        }
        value.clear();
        p.value.eval(req, &mut value)?;
        if !(p.if_not_empty && value.is_empty()) {
            fastcgi::param(out, &p.name, &value);
        }
    }
    value.clear();
    let given = |name: &[u8]| {
        own.param.0.iter().any(|p| p.name.strip_prefix(FIELD).is_some_and(|rest| stands_for(rest, name)))
    };
    if !given(b"Host") {
        host(req, &mut value);
        if !value.is_empty() {
            fastcgi::param(out, b"HTTP_HOST", &value);
        }
    }
    if stored {
        let state = &req.modules.proxy_cache;
        if let Some(t) = state.last_modified.filter(|_| !given(b"If-Modified-Since")) {
            fastcgi::param(out, b"HTTP_IF_MODIFIED_SINCE", &forebay_http::date::imf(t));
        }
        if !state.etag.is_empty() && !given(b"If-None-Match") {
            fastcgi::param(out, b"HTTP_IF_NONE_MATCH", &state.etag);
        }
    }
    if s.pass_request_headers {
        fields(req, stored, given, &mut value, out);
    }
    req.give_buf(value);
    fastcgi::params_end(out, start);
    if bare {
        fastcgi::stdin_end(out);
    }
    Ok(())
}

/// Appends the fields of the client. Lines of one name become one parameter.
fn fields(
    req: &Request,
    stored: bool,
    given: impl Fn(&[u8]) -> bool,
    value: &mut Vec<u8>,
    out: &mut Vec<u8>,
) {
    let h = &req.head;
    for (i, f) in h.fields.iter().enumerate() {
        let name = f.name.of(&h.buf);
        if f.id == Name::Host || stored && proxy::conditional(f.id) || given(name) {
            continue;
        }
        let same = |g: &forebay_http::field::FieldLine| same_param(g.name.of(&h.buf), name);
        if h.fields.iter().take(i).any(same) {
            continue;
        }
        value.clear();
        value.extend_from_slice(f.value.of(&h.buf));
        let separator: &[u8] = if f.id == Name::Cookie { b"; " } else { b", " };
        for g in h.fields.iter().skip(i + 1).filter(|g| same(g)) {
            value.extend_from_slice(separator);
            value.extend_from_slice(g.value.of(&h.buf));
        }
        fastcgi::param_lengths(out, FIELD.len() + name.len(), value.len());
        out.extend_from_slice(FIELD);
        out.extend(name.iter().map(|b| param_byte(*b)));
        out.extend_from_slice(value);
    }
}

/// A byte of the name of a field in that of its parameter.
fn param_byte(b: u8) -> u8 {
    if b == b'-' { b'_' } else { b.to_ascii_uppercase() }
}

/// Whether the rest of a parameter's name is that of a field.
fn stands_for(rest: &[u8], field: &[u8]) -> bool {
    rest.len() == field.len() && rest.iter().zip(field).all(|(r, f)| *r == param_byte(*f))
}

/// Whether two fields have one parameter.
fn same_param(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| param_byte(*a) == param_byte(*b))
}

/// The host that is asked for, and its port if that was said.
fn host(req: &Request, out: &mut Vec<u8>) {
    match req.head.host.as_slice() {
        [] => out.extend_from_slice(&req.http().server(req).name),
        host => out.extend_from_slice(host),
    }
    if let Some(port) = req.head.port {
        out.push(b':');
        response::number(out, u64::from(port));
    }
}

/// The rows.
pub const VARIABLES: &[Row] = &[
    Row { name: "fastcgi_script_name", get: RowSource::Get(script_name), settable: false },
    Row { name: "fastcgi_path_info", get: RowSource::Get(path_info), settable: false },
];

/// Matches `fastcgi_split_path_info`; appends one of its groups. `false`: it does not match.
fn split(req: &mut Request, group: usize, out: &mut Vec<u8>) -> bool {
    let http = req.http();
    let Some(pattern) = &http.location(req).settings.fastcgi.split_path_info.0 else { return false };
    let mut captures = std::mem::take(&mut req.modules.upstream.split);
    let matches = pattern.captures(&req.uri, &mut captures);
    if matches && let Some((a, b)) = captures.groups.get(group) {
        out.extend_from_slice(captures.text.get(*a as usize..*b as usize).unwrap_or_default());
    }
    req.modules.upstream.split = captures;
    matches
}

fn script_name(req: &mut Request, out: &mut Vec<u8>) -> Result<bool, VarError> {
    if !split(req, 1, out) {
        out.extend_from_slice(&req.uri);
        if req.uri.last() == Some(&b'/') {
            out.extend_from_slice(&req.http().location(req).settings.fastcgi.index);
        }
    }
    Ok(true)
}

fn path_info(req: &mut Request, out: &mut Vec<u8>) -> Result<bool, VarError> {
    split(req, 2, out);
    Ok(true)
}

#[cfg(test)]
mod tests;
