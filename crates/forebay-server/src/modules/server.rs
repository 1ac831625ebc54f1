//! Settings of the server level (nginx: ngx_http_core_module, server context).

use super::alt_svc::AltSvc;
use crate::config::Scope;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_conf::units;
use forebay_core::config::value::{Buffers, Msec, Number, Setting, Size, first, once};
use forebay_core::tls::HostKeyFile;
use forebay_net::quic::{Congestion, IDS};
use std::time::Duration;

forebay_core::keyword! {
    /// `quic_congestion_control`.
    pub enum CongestionControl { System = "system", Cubic = "cubic", Bbr = "bbr", Reno = "reno", }
}

impl CongestionControl {
    /// Returns the congestion control that is meant.
    pub fn chosen(self) -> Congestion {
        match self {
            CongestionControl::System => Congestion::of_system(),
            CongestionControl::Cubic => Congestion::Cubic,
            CongestionControl::Bbr => Congestion::Bbr,
            CongestionControl::Reno => Congestion::Reno,
        }
    }
}

/// Number of connection identifiers of a client that are kept at a time, within [`IDS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdLimit(pub u64);

impl Setting<crate::config::HttpContext> for IdLimit {
    /// nginx takes any number, but clients end the connection at 0 and 1.
    fn take(previous: Option<Self>, d: &Directive, cx: &mut Scope<'_>) -> Result<Self, Error> {
        once(&previous, d, cx)?;
        let n = units::number(first(d)).ok_or_else(|| cx.directive_error(d, "invalid number"))?;
        let kept = n.clamp(*IDS.start(), *IDS.end());
        if kept != n {
            cx.warn(d, format!("\"{}\" {n} has the effect of {kept}", d.name.as_str()));
        }
        Ok(IdLimit(kept))
    }
}

forebay_core::settings! {
    /// Size of the first buffer for a request head, bytes.
    "client_header_buffer_size" => client_header_buffer_size: Size = Size(1024);
    /// Size of the longest request line or field line, and number of buffers of this size that a head may fill.
    "large_client_header_buffers" => large_client_header_buffers: Buffers = Buffers { count: 4, size: 8192 };
    /// Time limit for a client to send its head.
    "client_header_timeout" => client_header_timeout: Msec = Msec(Duration::from_secs(60));
    /// `true` if field lines with invalid names are dropped rather than refused.
    "ignore_invalid_headers" => ignore_invalid_headers: bool = true;
    /// `true` if field names may contain underscores.
    "underscores_in_headers" => underscores_in_headers: bool = false;
    /// `true` if adjacent slashes in a path are merged.
    "merge_slashes" => merge_slashes: bool = true;
    /// Largest number of field lines.
    "max_headers" => max_headers: Number = Number(1000);
    /// `true` if HTTP/2 is enabled.
    "http2" => http2: bool = false;
    /// `true` if HTTP/3 is enabled.
    "http3" => http3: bool = true;
    /// `true` if HTTP/0.9 over QUIC is enabled.
    "http3_hq" => http3_hq: bool = false;
    /// `Alt-Svc` of responses over TCP.
    "http3_alt_svc" => http3_alt_svc: AltSvc = AltSvc::Auto;
    /// Maximum number of concurrent requests of a connection over HTTP/3.
    "http3_max_concurrent_streams" => http3_max_concurrent_streams: Number = Number(128);
    /// Content of a request over HTTP/3 that a client may send ahead, and of a response that waits for the client, bytes.
    "http3_stream_buffer_size" => http3_stream_buffer_size: Size = Size(65536);
    /// `true` if clients of HTTP/3 must prove their address before a connection is made for them.
    "quic_retry" => quic_retry: bool = false;
    /// Connection identifiers of a client over QUIC that are kept at a time.
    "quic_active_connection_id_limit" => quic_active_connection_id_limit: IdLimit = IdLimit(2);
    /// Congestion control over QUIC.
    "quic_congestion_control" => quic_congestion_control: CongestionControl = CongestionControl::System;
    /// Secret of stateless resets and of tokens for clients.
    "quic_host_key" => quic_host_key: HostKeyFile = HostKeyFile::default();
    /// Maximum number of concurrent streams of a connection.
    "http2_max_concurrent_streams" => http2_max_concurrent_streams: Number = Number(128);
    /// Initial window of a stream: bytes of a body that are buffered before the handler reads it.
    "http2_body_preread_size" => http2_body_preread_size: Size = Size(65536);
}

#[cfg(test)]
mod tests {
    use crate::testing;

    #[test]
    fn limits_of_identifiers_without_effect_are_named() {
        let warnings =
            |n: &str| testing::warnings(&format!("server {{ quic_active_connection_id_limit {n}; }}"));
        for n in ["2", "5"] {
            assert!(warnings(n).is_empty(), "{n}");
        }
        assert_eq!(warnings("0"), ["\"quic_active_connection_id_limit\" 0 has the effect of 2"]);
        assert_eq!(warnings("9"), ["\"quic_active_connection_id_limit\" 9 has the effect of 5"]);
        let wrong = "\"quic_active_connection_id_limit\" directive invalid number";
        assert_eq!(testing::error("quic_active_connection_id_limit x;").as_deref(), Some(wrong));
    }
}
