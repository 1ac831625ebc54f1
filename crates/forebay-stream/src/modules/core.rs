//! Settings of servers (nginx: ngx_stream_core_module).

use forebay_core::config::error_log::ErrorLogs;
use forebay_core::config::resolver::Chosen;
use forebay_core::config::value::Msec;
use std::time::Duration;

forebay_core::settings! {
    /// `tcp_nodelay`.
    "tcp_nodelay" => tcp_nodelay: bool = true;
    /// `proxy_protocol_timeout`: time for the whole header.
    "proxy_protocol_timeout" => proxy_protocol_timeout: Msec = Msec(Duration::from_secs(30));
    /// `resolver`.
    "resolver" => resolver: Chosen = Chosen::default();
    /// `resolver_timeout`.
    "resolver_timeout" => resolver_timeout: Msec = Msec(Duration::from_secs(30));
    /// `error_log` of this level; `None` for the log of the top level.
    "error_log" => error_log: Option<ErrorLogs> = None;
}
