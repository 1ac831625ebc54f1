//! `resolver`, `resolver_timeout` and `upstream_start_unresolved` (nginx: ngx_http_core_module). [`forebay_core::config::resolver`]
//! implements them.

use crate::module::Module;
use forebay_core::config::resolver::Chosen;
use forebay_core::config::value::Msec;
use std::time::Duration;

crate::module_settings! {
    /// `resolver`.
    "resolver" => resolver: Chosen = Chosen::default();
    /// `resolver_timeout`.
    "resolver_timeout" => timeout: Msec = Msec(Duration::from_secs(30));
    /// `upstream_start_unresolved`: whether to start with servers whose names cannot be resolved. Requests for them get
    /// 502, and the names are resolved again later.
    // Not an nginx directive.
    "upstream_start_unresolved" => start_unresolved: bool = false;
}

/// `resolver`, `resolver_timeout` and `upstream_start_unresolved`.
pub static MODULE: Module = Module { settings: &[&SETTINGS], ..Module::NONE };
