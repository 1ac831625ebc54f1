//! `memcached_pass`: the value of a key as a response (nginx: ngx_http_memcached_module). All else is as for `proxy_pass`;
//! `upstream/codec/memcached.rs` parses answers. Hot path.

use super::family::memcached_family;
use super::proxy;
use crate::upstream::codec::Codec;
use crate::upstream::codec::memcached::{KEY, Memcached};
use forebay_conf::error::Level;
use forebay_core::config::value::Number;
use forebay_core::vars::Template;
use forebay_http::request::Method;
use forebay_http::uri::{Escape, escape};
use forebay_server::module::Module;
use forebay_server::request::Request;

forebay_server::module_settings! {
    /// `memcached_gzip_flag`: flag bits that mark compressed values; 0 for none.
    "memcached_gzip_flag" => gzip_flag: Number = Number(0);
}

const CODEC: Codec = Codec::Memcached(Memcached::NEW);

/// `memcached`.
pub static MODULE: Module = Module {
    settings: &[&SETTINGS, &memcached_family::SETTINGS],
    location_directives: &[("memcached_pass", |d, l, cx| proxy::pass_by(CODEC, d, l, cx))],
    ..Module::NONE
};

/// Sets the defaults for memcached servers. Values are sent without buffering, and `error_page` applies to a missing key.
pub fn set_defaults(s: &mut proxy::Settings) {
    s.buffering = false;
    s.intercept_errors = true;
    s.pass_request_body = false;
    s.force_ranges = true;
}

/// Appends the `get` command for a key. Remembers the key, which the response has to repeat.
///
/// # Errors
/// The status for the client.
pub fn write_command(req: &mut Request, key: &Template, out: &mut Vec<u8>) -> Result<(), u16> {
    if !matches!(req.method, Method::Get | Method::Head) {
        return Err(405);
    }
    let key = key.value(req).map_err(|_| 500u16)?;
    if key.is_empty() {
        req.log(Level::Error, "the \"$memcached_key\" variable is not set");
        return Err(500);
    }
    let word = KEY.of_mut(req);
    word.clear();
    // A key with spaces or line breaks would end the command, and the rest would be a command of the client.
    escape(&key, Escape::Memcached, word);
    for part in [b"get ", word.as_slice(), b"\r\n"] {
        out.extend_from_slice(part);
    }
    Ok(())
}
