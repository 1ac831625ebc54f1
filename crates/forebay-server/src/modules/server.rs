//! Settings of the server level (nginx: ngx_http_core_module, server context).

use super::alt_svc::AltSvc;
use crate::config::value::{Buffers, Msec, Number, Size};
use forebay_core::tls::HostKeyFile;
use forebay_net::quic::Congestion;
use std::time::Duration;

crate::keyword! {
    /// `quic_congestion_control`.
    pub enum CongestionControl { System = "system", Cubic = "cubic", Bbr = "bbr", Reno = "reno", }
}

impl CongestionControl {
    /// Returns the congestion control that is meant.
    pub(crate) fn chosen(self) -> Congestion {
        match self {
            CongestionControl::System => Congestion::of_system(),
            CongestionControl::Cubic => Congestion::Cubic,
            CongestionControl::Bbr => Congestion::Bbr,
            CongestionControl::Reno => Congestion::Reno,
        }
    }
}

crate::settings! {
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
    /// Most concurrent requests of a connection over HTTP/3.
    "http3_max_concurrent_streams" => http3_max_concurrent_streams: Number = Number(128);
    /// Content of a request over HTTP/3 that a client may send ahead, and of a response that waits for the client, bytes.
    "http3_stream_buffer_size" => http3_stream_buffer_size: Size = Size(65536);
    /// `true` if clients of HTTP/3 must prove their address before a connection is made for them.
    "quic_retry" => quic_retry: bool = false;
    /// Congestion control over QUIC.
    "quic_congestion_control" => quic_congestion_control: CongestionControl = CongestionControl::System;
    /// Secret of stateless resets and of tokens for clients.
    "quic_host_key" => quic_host_key: HostKeyFile = HostKeyFile::default();
    /// Most concurrent streams of a connection.
    "http2_max_concurrent_streams" => http2_max_concurrent_streams: Number = Number(128);
    /// Initial window of a stream: bytes of a body that are buffered before the handler reads it.
    "http2_body_preread_size" => http2_body_preread_size: Size = Size(65536);
}
