//! `scgi_pass`: parameters of a request for an SCGI server (nginx: ngx_http_scgi_module). The rest is as for
//! `fastcgi_pass`. Hot path.

use super::family::scgi_family;
use super::params::Params;
use super::proxy;
use crate::upstream::codec::Codec;
use crate::upstream::codec::scgi::Scgi;
use forebay_core::vars::VarError;
use forebay_http::h1::response;
use forebay_http::request::Framing;
use forebay_server::module::Module;
use forebay_server::request::Request;

forebay_server::module_settings! {
    /// `scgi_param`.
    "scgi_param" => param: Params = Params::default();
}

const CODEC: Codec = Codec::Scgi(Scgi);

/// `scgi`.
pub static MODULE: Module = Module {
    settings: &[&SETTINGS, &scgi_family::SETTINGS],
    location_directives: &[("scgi_pass", |d, l, cx| proxy::pass_by(CODEC, d, l, cx))],
    ..Module::NONE
};

/// Appends the request for the server, up to its content. The parameters form a netstring that begins with the length of
/// the content.
///
/// # Errors
/// If a variable cannot be evaluated.
pub fn write_params(
    req: &mut Request,
    s: &proxy::Settings,
    stored: bool,
    out: &mut Vec<u8>,
) -> Result<(), VarError> {
    let http = req.http();
    let own = SETTINGS.of(&http.location(req).settings);
    let mut all = req.take_buf();
    // The specification of SCGI wants this parameter first.
    all.extend_from_slice(b"CONTENT_LENGTH\0");
    let content = match req.head.framing {
        Framing::None => 0,
        Framing::Length(n) => n,
        _ => req.body.len,
    };
    response::number(&mut all, content);
    all.push(0);
    own.param.each(req, s, stored, |name, value| {
        for part in [name, value] {
            // NUL ends names and values: one inside a value would let the client inject a parameter.
            all.extend(part.iter().filter(|b| **b != 0));
            all.push(0);
        }
    })?;
    // A netstring begins with its length, so the parameters are gathered before anything is written.
    response::number(out, all.len() as u64);
    out.push(b':');
    out.extend_from_slice(&all);
    out.push(b',');
    req.give_buf(all);
    Ok(())
}
