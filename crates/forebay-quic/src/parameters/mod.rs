//! Transport parameters (RFC 9000, sections 7.3, 7.4 and 18; RFC 9221; RFC 9287; RFC 9368).

mod check;
mod push;
mod read;
mod versions;

use std::net::{SocketAddrV4, SocketAddrV6};

use crate::id::ConnectionId;
use crate::packet::reset::Token;

pub use check::Ids;
pub use versions::{Attempt, VersionInformation, negotiate};

/// Identifiers of parameters.
pub mod id {
    #![allow(missing_docs, reason = "the names are those of the RFCs")]
    pub const ORIGINAL_DESTINATION_CONNECTION_ID: u64 = 0x00;
    pub const MAX_IDLE_TIMEOUT: u64 = 0x01;
    pub const STATELESS_RESET_TOKEN: u64 = 0x02;
    pub const MAX_UDP_PAYLOAD_SIZE: u64 = 0x03;
    pub const INITIAL_MAX_DATA: u64 = 0x04;
    pub const INITIAL_MAX_STREAM_DATA_BIDI_LOCAL: u64 = 0x05;
    pub const INITIAL_MAX_STREAM_DATA_BIDI_REMOTE: u64 = 0x06;
    pub const INITIAL_MAX_STREAM_DATA_UNI: u64 = 0x07;
    pub const INITIAL_MAX_STREAMS_BIDI: u64 = 0x08;
    pub const INITIAL_MAX_STREAMS_UNI: u64 = 0x09;
    pub const ACK_DELAY_EXPONENT: u64 = 0x0a;
    pub const MAX_ACK_DELAY: u64 = 0x0b;
    pub const DISABLE_ACTIVE_MIGRATION: u64 = 0x0c;
    pub const PREFERRED_ADDRESS: u64 = 0x0d;
    pub const ACTIVE_CONNECTION_ID_LIMIT: u64 = 0x0e;
    pub const INITIAL_SOURCE_CONNECTION_ID: u64 = 0x0f;
    pub const RETRY_SOURCE_CONNECTION_ID: u64 = 0x10;
    /// RFC 9368.
    pub const VERSION_INFORMATION: u64 = 0x11;
    /// RFC 9221.
    pub const MAX_DATAGRAM_FRAME_SIZE: u64 = 0x20;
    /// RFC 9287.
    pub const GREASE_QUIC_BIT: u64 = 0x2ab2;
}

/// What one side declares about itself during the handshake.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransportParameters {
    /// Time without packets after which the connection ends, in milliseconds; 0 for none.
    pub max_idle_timeout: u64,
    /// Largest UDP payload that is taken, at least 1200 bytes.
    pub max_udp_payload_size: u64,
    /// Bytes that may be sent in all streams at first.
    pub initial_max_data: u64,
    /// Bytes that may be sent at first in a bidirectional stream that this side opened.
    pub initial_max_stream_data_bidi_local: u64,
    /// Bytes that may be sent at first in a bidirectional stream that the other side opened.
    pub initial_max_stream_data_bidi_remote: u64,
    /// Bytes that may be sent at first in a unidirectional stream.
    pub initial_max_stream_data_uni: u64,
    /// Bidirectional streams that may be opened at first, at most 2^60.
    pub initial_max_streams_bidi: u64,
    /// Unidirectional streams that may be opened at first, at most 2^60.
    pub initial_max_streams_uni: u64,
    /// Delays in ACK frames count in units of two to the power of this, in microseconds; at most 20.
    pub ack_delay_exponent: u8,
    /// Longest time before an acknowledgment is sent, in milliseconds; below 2^14.
    pub max_ack_delay: u16,
    /// The peer has to stay with its address.
    pub disable_active_migration: bool,
    /// Connection identifiers of the peer that are stored, at least 2.
    pub active_connection_id_limit: u64,
    /// Largest DATAGRAM frame that is taken, bytes; 0 for none (RFC 9221, section 3).
    pub max_datagram_frame_size: u64,
    /// The fixed bit of packets may have any value (RFC 9287, section 3).
    pub grease_quic_bit: bool,
    /// Versions (RFC 9368, section 3).
    pub version_information: Option<VersionInformation>,
    /// Source connection identifier of the first Initial packet of this side.
    pub initial_source_connection_id: Option<ConnectionId>,
    /// Of a server: destination connection identifier of the client's first Initial packet.
    pub original_destination_connection_id: Option<ConnectionId>,
    /// Of a server: source connection identifier of its Retry packet.
    pub retry_source_connection_id: Option<ConnectionId>,
    /// Of a server: token of stateless resets for its first connection identifier.
    pub stateless_reset_token: Option<Token>,
    /// Of a server: address that the client is to change to.
    pub preferred_address: Option<Box<PreferredAddress>>,
}

/// Address to which a server asks a client to move (RFC 9000, section 9.6), with a connection identifier of sequence number 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PreferredAddress {
    /// Address of IPv4, if there is one.
    pub v4: Option<SocketAddrV4>,
    /// Address of IPv6, if there is one.
    pub v6: Option<SocketAddrV6>,
    /// Connection identifier, at least one byte.
    pub id: ConnectionId,
    /// Token of stateless resets for it.
    pub token: Token,
}

/// Values of parameters that are not sent.
impl Default for TransportParameters {
    fn default() -> TransportParameters {
        TransportParameters {
            max_idle_timeout: 0,
            max_udp_payload_size: 65527,
            initial_max_data: 0,
            initial_max_stream_data_bidi_local: 0,
            initial_max_stream_data_bidi_remote: 0,
            initial_max_stream_data_uni: 0,
            initial_max_streams_bidi: 0,
            initial_max_streams_uni: 0,
            ack_delay_exponent: 3,
            max_ack_delay: 25,
            disable_active_migration: false,
            active_connection_id_limit: 2,
            max_datagram_frame_size: 0,
            grease_quic_bit: false,
            version_information: None,
            initial_source_connection_id: None,
            original_destination_connection_id: None,
            retry_source_connection_id: None,
            stateless_reset_token: None,
            preferred_address: None,
        }
    }
}

#[cfg(test)]
mod tests;
