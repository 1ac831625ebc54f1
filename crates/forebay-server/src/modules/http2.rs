//! Settings of HTTP/2 in a location (nginx: ngx_http_v2_module).

use crate::config::value::Size;

crate::settings! {
    /// `http2_chunk_size`: longest DATA frame, bytes.
    "http2_chunk_size" => chunk_size: Size = Size(8192);
}
