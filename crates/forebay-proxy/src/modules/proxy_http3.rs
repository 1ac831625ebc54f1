//! Settings of HTTP/3 to upstreams (Angie: ngx_http_proxy_module), for locations with `proxy_http_version 3`.

use crate::upstream::h3::Limits;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::config::value::{Number, Setting, Size, once};
use forebay_server::config::Scope;
use std::time::Duration;

forebay_server::module_settings! {
    /// `proxy_http3_max_concurrent_streams`: requests at a time on a connection.
    "proxy_http3_max_concurrent_streams" => max_concurrent_streams: Number = Number(128);
    /// `proxy_http3_max_table_capacity`: size of the dynamic table for responses, bytes.
    "proxy_http3_max_table_capacity" => max_table_capacity: Size = Size(4096);
    /// `proxy_http3_stream_buffer_size`: content that a server may send ahead on a stream, bytes.
    "proxy_http3_stream_buffer_size" => stream_buffer_size: Size = Size(65536);
    /// `proxy_quic_active_connection_id_limit`.
    "proxy_quic_active_connection_id_limit" => active_connection_id_limit: Number = Number(2);
    /// `proxy_http3_alt_svc`: requests go over TCP until a server says by `Alt-Svc` where it takes HTTP/3.
    "proxy_http3_alt_svc" => alt_svc: bool = false;
    /// `proxy_http3_fallback`.
    "proxy_http3_fallback" => fallback: Fallback = Fallback(Some(Terms::DEFAULT));
}

/// Largest dynamic table, bytes. A server that fills the table makes this server keep one for each connection.
const MOST_TABLE: u64 = 64 * 1024;

impl Settings {
    /// Returns the limits of connections.
    pub fn limits(&self) -> Limits {
        let number = |n: u64| u32::try_from(n).unwrap_or(u32::MAX >> 2).max(1);
        Limits {
            streams: number(self.max_concurrent_streams.0),
            window: number(self.stream_buffer_size.0),
            table: self.max_table_capacity.0.min(MOST_TABLE) as usize,
            ids: self.active_connection_id_limit.0,
        }
    }
}

/// Terms on which a request goes over TCP if there is no connection over QUIC; `None`: it does not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fallback(pub Option<Terms>);

/// Terms of [`Fallback`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// Longest time that a request waits for a connection over QUIC.
    pub after: Duration,
    /// Time for which the server is taken for one without HTTP/3.
    pub valid: Duration,
}

impl Terms {
    const DEFAULT: Terms = Terms { after: Duration::from_secs(3), valid: Duration::from_secs(60) };
}

impl Setting<forebay_server::config::HttpContext> for Fallback {
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let mut terms = Terms::DEFAULT;
        for (at, w) in d.args.iter().enumerate() {
            let invalid = || cx.error_at(d, w, format!("invalid parameter \"{}\"", w.as_str()));
            let place = match w.text.as_slice() {
                b"off" if d.args.len() == 1 => return Ok(Fallback(None)),
                b"on" if at == 0 => continue,
                text if at > 0 && text.starts_with(b"after=") => &mut terms.after,
                text if at > 0 && text.starts_with(b"valid=") => &mut terms.valid,
                _ => return Err(invalid()),
            };
            let time = w.text.get("after=".len()..).unwrap_or_default();
            *place = forebay_conf::units::duration_ms(time).ok_or_else(invalid)?;
        }
        Ok(Fallback(Some(terms)))
    }
}
