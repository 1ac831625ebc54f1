//! `uwsgi_pass`: parameters of a request for a uwsgi server (nginx: ngx_http_uwsgi_module). The rest is as for
//! `fastcgi_pass`. Hot path.

use super::family::uwsgi_family;
use super::params::Params;
use super::proxy;
use crate::upstream::codec::Codec;
use crate::upstream::codec::uwsgi::Uwsgi;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_conf::units;
use forebay_core::config::value::{Setting, first, once};
use forebay_core::vars::VarError;
use forebay_server::config::Scope;
use forebay_server::module::Module;
use forebay_server::request::Request;

forebay_server::module_settings! {
    /// `uwsgi_param`.
    "uwsgi_param" => param: Params = Params::default();
    /// `uwsgi_modifier1`.
    "uwsgi_modifier1" => modifier1: Modifier = Modifier(0);
    /// `uwsgi_modifier2`.
    "uwsgi_modifier2" => modifier2: Modifier = Modifier(0);
    /// `uwsgi_string`, sent after the parameters.
    "uwsgi_string" => string: Vec<u8> = Vec::new();
}

const CODEC: Codec = Codec::Uwsgi(Uwsgi);

/// `uwsgi`.
pub static MODULE: Module = Module {
    settings: &[&SETTINGS, &uwsgi_family::SETTINGS],
    location_directives: &[("uwsgi_pass", |d, l, cx| proxy::pass_by(CODEC, d, l, cx))],
    ..Module::NONE
};

/// A byte of the packet header.
#[derive(Clone, Copy, Debug)]
pub struct Modifier(u8);

impl Setting<forebay_server::config::HttpContext> for Modifier {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let n = units::number(first(d)).ok_or_else(|| cx.directive_error(d, "invalid number"))?;
        u8::try_from(n).map(Modifier).map_err(|_| cx.error(d, "value must be between 0 and 255"))
    }
}

/// Appends the request for the server, up to its content. It is a header, then length and bytes of each name and value.
/// Returns the inner `Err` with the length of the parameters if it is above 65535, the most the header can state.
///
/// # Errors
/// If a variable cannot be evaluated.
pub fn write_params(
    req: &mut Request,
    s: &proxy::Settings,
    stored: bool,
    out: &mut Vec<u8>,
) -> Result<Result<(), usize>, VarError> {
    let http = req.http();
    let own = SETTINGS.of(&http.location(req).settings);
    // Room for the header, which has the length of the parameters and is written last.
    out.extend_from_slice(&[0; 4]);
    let start = out.len();
    own.param.each(req, s, stored, |name, value| {
        for part in [name, value] {
            // If this cast cuts off bits, the parameters as a whole are too long and refused below.
            out.extend_from_slice(&(part.len() as u16).to_le_bytes());
            out.extend_from_slice(part);
        }
    })?;
    out.extend_from_slice(&own.string);
    let len = out.len() - start;
    let Ok(short) = u16::try_from(len) else { return Ok(Err(len)) };
    let [low, high] = short.to_le_bytes();
    if let Some(header) = out.get_mut(start - 4..start) {
        header.copy_from_slice(&[own.modifier1.0, low, high, own.modifier2.0]);
    }
    Ok(Ok(()))
}
