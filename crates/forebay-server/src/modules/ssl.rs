//! Settings and variables of TLS that only HTTP has (nginx: ngx_http_ssl_module). The others are in [`forebay_core::tls`].

use crate::module::Module;
use crate::request::Request;
use crate::variables::Row;
use forebay_core::config::value::Size;
use forebay_core::tls::server::Application;
use forebay_core::tls::vars::Variables;
use forebay_core::vars::{RowSource, VarError};
use forebay_net::tls::record::MAX_CONTENT;

crate::module_settings! {
    /// `ssl_early_data`.
    "ssl_early_data" => early_data: bool = false;
    /// `ssl_buffer_size`.
    "ssl_buffer_size" => buffer_size: Size = Size(16 * 1024);
}

/// `ssl`.
pub static MODULE: Module =
    Module { settings: &[&SETTINGS], variables: &[VARIABLES, Variables::ROWS], ..Module::NONE };

const VARIABLES: &[Row] = &[Row { name: "ssl_early_data", get: RowSource::Get(early_data), settable: true }];

fn early_data(r: &mut Request, out: &mut Vec<u8>) -> Result<bool, VarError> {
    // Over TCP only the first request can have come with the handshake.
    let may = r.conn.requests == 1 || r.head.version.is_multiplexed();
    let early = may && r.conn.client.tls.as_ref().is_some_and(|s| s.early.get());
    if early {
        out.push(b'1');
    }
    Ok(early)
}

impl Settings {
    /// Returns the settings of a server for TLS that depend on HTTP.
    pub fn application(&self) -> Application {
        Application {
            protocols: vec![b"http/1.1".to_vec(), b"http/1.0".to_vec(), b"http/0.9".to_vec()],
            optional: Some(b"h2"),
            early_data: self.early_data,
            record: (self.buffer_size.0 as usize).clamp(256, MAX_CONTENT),
        }
    }
}
