//! `grpc_pass`: differences between gRPC and other HTTP/2 (nginx: ngx_http_grpc_module). The rest is as for `proxy_pass` with
//! `proxy_http_version 2`. Both sides may send at any time, which `upstream/upload.rs` supports, and the status is in the
//! trailers. Hot path.

use super::family::grpc_family;
use super::proxy::{self, HttpVersion, Settings};
use crate::upstream::codec::Codec;
use forebay_http::field::Name;
use forebay_server::module::Module;
use forebay_server::request::Request;

/// `grpc`.
pub static MODULE: Module = Module {
    settings: &[&grpc_family::SETTINGS],
    location_directives: &[("grpc_pass", |d, l, cx| proxy::pass_by(Codec::GRPC, d, l, cx))],
    ..Module::NONE
};

/// Sets the defaults for gRPC servers. Messages are passed on at once, without waiting for a buffer to fill.
pub fn set_defaults(s: &mut Settings) {
    s.http_version = HttpVersion::V2;
    s.buffering = false;
    s.request_buffering = false;
    s.pass_trailers = true;
}

/// Returns `true` if the client accepts trailers, so that `TE: trailers` is sent to the server (RFC 9110, section
/// 10.1.4).
pub fn wants_trailers(req: &Request) -> bool {
    let h = &req.head;
    let mut lines = h.fields.iter().filter(|f| f.id == Name::Te).map(|f| f.value.of(&h.buf));
    lines.any(|line| line.split(|b| *b == b',').any(|w| w.trim_ascii().eq_ignore_ascii_case(b"trailers")))
}
