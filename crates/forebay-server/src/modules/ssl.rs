//! Settings of TLS that only HTTP has (nginx: ngx_http_ssl_module). The others are in [`forebay_core::tls::settings`].

use crate::config::value::Size;
use forebay_core::tls::server::Application;
use forebay_net::tls::record::MAX_CONTENT;

crate::settings! {
    /// `ssl_early_data`.
    "ssl_early_data" => early_data: bool = false;
    /// `ssl_buffer_size`.
    "ssl_buffer_size" => buffer_size: Size = Size(16 * 1024);
}

impl Settings {
    /// Returns the settings of a server for TLS that depend on HTTP.
    pub(crate) fn application(&self) -> Application {
        Application {
            protocols: vec![b"http/1.1".to_vec(), b"http/1.0".to_vec(), b"http/0.9".to_vec()],
            optional: Some(b"h2"),
            early_data: self.early_data,
            record: (self.buffer_size.0 as usize).clamp(256, MAX_CONTENT),
        }
    }
}
