//! `proxy_ssl_*` (nginx: ngx_http_proxy_module). [`forebay_core::tls::client`] implements them.

pub use forebay_core::tls::proxy_ssl::{Settings, Written};

use forebay_server::module::SettingsOf;

/// Settings of this module.
pub static SETTINGS: SettingsOf<Written> = SettingsOf::new();
