//! `memcached_pass`: the value of a key as a response (nginx: ngx_http_memcached_module). All else is as for `proxy_pass`;
//! `upstream/codec/memcached.rs` parses answers. Hot path.

use super::proxy;
use crate::config::scope::Scope;
use crate::config::value::Number;
use crate::request::Request;
use forebay_conf::error::{Error, Level};
use forebay_core::vars::Template;
use forebay_http::request::Method;
use forebay_http::uri::{Escape, escape};

crate::settings! {
    /// `memcached_gzip_flag`: bits of the flags of values that are compressed; 0: no matter.
    "memcached_gzip_flag" => gzip_flag: Number = Number(0);
}

/// What holds for every server: values leave as they come, and a key that is not there is an error of its own.
pub fn set_defaults(s: &mut proxy::Settings) {
    s.buffering = false;
    s.intercept_errors = true;
    s.pass_request_body = false;
    s.force_ranges = true;
}

/// `$memcached_key`, which the configuration has to set.
///
/// # Errors
/// It sets it nowhere.
pub fn key(cx: &mut Scope<'_>) -> Result<Template, Error> {
    Template::compile(b"$memcached_key", &mut cx.vars).map_err(|m| crate::config::plain(&m))
}

/// Appends the command that asks for a key, which is noted for the answer.
///
/// # Errors
/// The status to answer with.
pub fn write_command(req: &mut Request, key: &Template, out: &mut Vec<u8>) -> Result<(), u16> {
    if !matches!(req.method, Method::Get | Method::Head) {
        return Err(405);
    }
    let key = key.value(req).map_err(|_| 500u16)?;
    if key.is_empty() {
        req.log(Level::Error, "the \"$memcached_key\" variable is not set");
        return Err(500);
    }
    let word = &mut req.modules.upstream.key;
    word.clear();
    escape(&key, Escape::Memcached, word);
    for part in [b"get ", word.as_slice(), b"\r\n"] {
        out.extend_from_slice(part);
    }
    Ok(())
}
