//! `fastcgi_pass`: parameters of a request for a FastCGI server (nginx: ngx_http_fastcgi_module). The rest is shared with
//! `proxy_pass`: processing of a request in `proxy.rs`, settings in `family.rs`, communication with the server in
//! `upstream/`. Hot path.

use super::family::fastcgi_family;
use super::params::Params;
use super::proxy;
use crate::upstream::codec::Codec;
use crate::upstream::codec::fastcgi::FastCgi;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::config::value::{Setting, first};
use forebay_core::pattern::Pattern;
use forebay_core::vars::Captures;
use forebay_core::vars::RowSource;
use forebay_core::vars::VarError;
use forebay_http::fastcgi;
use forebay_server::config::Scope;
use forebay_server::module::Module;
use forebay_server::request::Request;
use forebay_server::request::states::Slot;
use forebay_server::variables::Row;
use std::sync::Arc;

forebay_server::module_settings! {
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

/// `fastcgi_split_path_info`.
#[derive(Clone, Debug)]
pub struct Split(Option<Pattern>);

impl Setting<forebay_server::config::HttpContext> for Split {
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
    /// Returns `true` if one of the texts occurs in a message of the server.
    pub fn is_in(&self, message: &[u8]) -> bool {
        self.0.iter().any(|t| memchr::memmem::find(message, t).is_some())
    }
}

impl Setting<forebay_server::config::HttpContext> for Texts {
    fn take(previous: Option<Self>, d: &Directive, _cx: &mut Scope<'_>) -> Result<Self, Error> {
        let mut all = previous.map(|p| Arc::unwrap_or_clone(p.0)).unwrap_or_default();
        all.push(first(d).to_vec());
        Ok(Texts(Arc::new(all)))
    }
}

/// Appends the request for the server, up to its content. With `stored` the response goes into a cache, so `Range` and the
/// client's conditions are left out. With `bare` no content follows.
///
/// # Errors
/// If a variable cannot be evaluated.
pub fn write_params(
    req: &mut Request,
    s: &proxy::Settings,
    stored: bool,
    bare: bool,
    out: &mut Vec<u8>,
) -> Result<(), VarError> {
    let http = req.http();
    let own = SETTINGS.of(&http.location(req).settings);
    let start = fastcgi::begin(out, own.keep_conn);
    own.param.each(req, s, stored, |name, value| fastcgi::param(out, name, value))?;
    fastcgi::params_end(out, start);
    // Without content, the empty record that ends it can follow at once and leave in the same write.
    if bare {
        fastcgi::stdin_end(out);
    }
    Ok(())
}

const CODEC: Codec = Codec::FastCgi(FastCgi::NEW);

/// `fastcgi`.
pub static MODULE: Module = Module {
    settings: &[&SETTINGS, &fastcgi_family::SETTINGS],
    location_directives: &[("fastcgi_pass", |d, l, cx| proxy::pass_by(CODEC, d, l, cx))],
    variables: &[VARIABLES],
    ..Module::NONE
};

const VARIABLES: &[Row] = &[
    Row { name: "fastcgi_script_name", get: RowSource::Get(script_name), settable: false },
    Row { name: "fastcgi_path_info", get: RowSource::Get(path_info), settable: false },
];

/// Memory of `fastcgi_split_path_info`.
static SPLIT: Slot<Captures> = Slot::new();

/// Matches the path against `fastcgi_split_path_info` and appends one of the groups. Returns `false` if it does not match.
fn split(req: &mut Request, group: usize, out: &mut Vec<u8>) -> Result<bool, VarError> {
    let http = req.http();
    let Some(pattern) = &SETTINGS.of(&http.location(req).settings).split_path_info.0 else {
        return Ok(false);
    };
    // The memory of the groups is kept with the request, since both variables match the same path.
    let mut captures = std::mem::take(SPLIT.of_mut(req));
    let matches = pattern.captures(&req.uri.path, &mut captures);
    if matches == Ok(true)
        && let Some((a, b)) = captures.groups.get(group)
    {
        out.extend_from_slice(captures.text.get(*a as usize..*b as usize).unwrap_or_default());
    }
    *SPLIT.of_mut(req) = captures;
    matches.map_err(|_| {
        let uri = req.uri.path.clone();
        pattern.log_failure(req, &uri).into()
    })
}

fn script_name(req: &mut Request, out: &mut Vec<u8>) -> Result<bool, VarError> {
    if !split(req, 1, out)? {
        out.extend_from_slice(&req.uri.path);
        // As in nginx, `fastcgi_index` names the script of a path that ends in a slash.
        if req.uri.path.last() == Some(&b'/') {
            out.extend_from_slice(&SETTINGS.of(&req.own_location().settings).index);
        }
    }
    Ok(true)
}

fn path_info(req: &mut Request, out: &mut Vec<u8>) -> Result<bool, VarError> {
    split(req, 2, out)?;
    Ok(true)
}

#[cfg(test)]
mod tests;
