//! Settings of connections.

use crate::congestion::Algorithm;
use crate::id::ConnectionId;
use crate::parameters::TransportParameters;
use crate::stream::Limits;
use std::time::Duration;

/// Settings of the connections of an endpoint.
#[derive(Clone, Debug)]
pub struct Config {
    /// Streams, windows.
    pub limits: Limits,
    /// Content that is kept until the peer has acknowledged it, bytes, once the congestion window is large: three times that, and at
    /// most this. At first it is `send_window` of the limits.
    pub max_send_window: u64,
    /// Time without packets after which a connection ends (`max_idle_timeout`); zero leaves it to the peer.
    pub idle: Duration,
    /// Time without packets after which a PING is sent.
    pub keep_alive: Option<Duration>,
    /// Identifiers of the peer that are kept at a time (`active_connection_id_limit`), 2 or more.
    pub ids: u64,
    /// Largest DATAGRAM frame that is taken (RFC 9221), bytes; 0: none.
    pub datagrams: u16,
    /// Congestion control.
    pub congestion: Algorithm,
    /// Packets are spread over time (RFC 9002, section 7.7).
    pub is_paced: bool,
    /// Largest datagram that is tried on a path, bytes of UDP payload, 1200 or more.
    pub most_mtu: u16,
    /// The kernel keeps datagrams whole, so that the size of the path can be searched.
    pub searches_mtu: bool,
    /// Round-trip time that is assumed before the first measurement (RFC 9002, section 6.2.2).
    pub initial_rtt: Duration,
    /// A server gives each client a token for its next connection (NEW_TOKEN).
    pub gives_token: bool,
}

impl Config {
    /// Returns the transport parameters of a side whose first identifier is given (RFC 9000, section 18.2).
    pub fn parameters(&self, local: &ConnectionId) -> TransportParameters {
        TransportParameters {
            max_idle_timeout: u64::try_from(self.idle.as_millis()).unwrap_or(0),
            initial_max_data: self.limits.window,
            initial_max_stream_data_bidi_local: self.limits.stream_window,
            initial_max_stream_data_bidi_remote: self.limits.stream_window,
            initial_max_stream_data_uni: self.limits.stream_window,
            initial_max_streams_bidi: self.limits.bi,
            initial_max_streams_uni: self.limits.uni,
            ack_delay_exponent: ACK_DELAY_EXPONENT,
            max_ack_delay: MAX_ACK_DELAY.as_millis() as u16,
            active_connection_id_limit: self.ids.max(2),
            max_datagram_frame_size: self.datagrams.into(),
            grease_quic_bit: true,
            initial_source_connection_id: Some(*local),
            ..TransportParameters::default()
        }
    }
}

/// Longest time for which acknowledgments of this side wait (`max_ack_delay`).
pub const MAX_ACK_DELAY: Duration = Duration::from_millis(25);
/// Unit of acknowledgment delays on the wire: 2^3 microseconds (`ack_delay_exponent`).
pub const ACK_DELAY_EXPONENT: u8 = 3;
