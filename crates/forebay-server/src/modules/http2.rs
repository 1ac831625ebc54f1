//! Settings of HTTP/2 in a location (nginx: ngx_http_v2_module).

use crate::module::Module;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::config::value::{Setting, Size};
use forebay_core::config::{Context, Scope};

crate::module_settings! {
    /// `http2_chunk_size`: longest DATA frame, bytes.
    "http2_chunk_size" => chunk_size: ChunkSize = ChunkSize(8192);
}

/// `http2_chunk_size`.
pub static MODULE: Module = Module { settings: &[&SETTINGS], ..Module::NONE };

/// Length of a DATA frame in bytes, not zero.
#[derive(Clone, Copy, Debug)]
pub struct ChunkSize(pub u64);

impl<C: Context> Setting<C> for ChunkSize {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_, C>) -> Result<Self, Error> {
        match Size::take(previous.map(|p| Size(p.0)), d, cx)?.0 {
            0 => Err(cx.error(d, "the http2 chunk size cannot be zero")),
            n => Ok(ChunkSize(n)),
        }
    }
}
