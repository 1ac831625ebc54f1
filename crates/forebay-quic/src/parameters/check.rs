//! Parameters compared with what is known from elsewhere.

use super::TransportParameters;
use super::read::wrong;
use crate::error::{Code, Error};
use crate::id::ConnectionId;

/// Connection identifiers that the peer's parameters have to name (RFC 9000, section 7.3).
#[derive(Clone, Copy, Debug)]
pub struct Ids<'a> {
    /// Source connection identifier of the first Initial packet of the peer.
    pub initial_source: &'a ConnectionId,
    /// At a client: destination connection identifier of its very first Initial packet.
    pub original_destination: Option<&'a ConnectionId>,
    /// At a client: source connection identifier of the Retry packet, if there was one.
    pub retry_source: Option<&'a ConnectionId>,
}

impl TransportParameters {
    /// Checks that the identifiers of the handshake are those of its packets.
    ///
    /// # Errors
    /// TRANSPORT_PARAMETER_ERROR if one is missing, another one, or there without a reason.
    pub fn check_ids(&self, ids: Ids<'_>) -> Result<(), Error> {
        if self.initial_source_connection_id.as_ref() != Some(ids.initial_source) {
            return Err(wrong("initial_source_connection_id is not that of the packets"));
        }
        if self.original_destination_connection_id.as_ref() != ids.original_destination {
            return Err(wrong("original_destination_connection_id is not that of the packets"));
        }
        if self.retry_source_connection_id.as_ref() != ids.retry_source {
            return Err(wrong("retry_source_connection_id is not that of the packets"));
        }
        Ok(())
    }

    /// Returns what a client may remember of a server for 0-RTT (RFC 9000, section 7.4.1; RFC 9287, section 3.1).
    #[must_use]
    pub fn to_remember(&self) -> TransportParameters {
        let default = TransportParameters::default();
        TransportParameters {
            ack_delay_exponent: default.ack_delay_exponent,
            max_ack_delay: default.max_ack_delay,
            grease_quic_bit: false,
            version_information: None,
            initial_source_connection_id: None,
            original_destination_connection_id: None,
            retry_source_connection_id: None,
            stateless_reset_token: None,
            preferred_address: None,
            ..*self
        }
    }

    /// Checks that a server which accepted 0-RTT allows at least what it allowed before (RFC 9000, section 7.4.1; RFC 9221,
    /// section 3).
    ///
    /// # Errors
    /// PROTOCOL_VIOLATION if it allows less.
    pub fn check_remembered(&self, before: &TransportParameters) -> Result<(), Error> {
        let limits = |of: &TransportParameters| {
            [
                of.active_connection_id_limit,
                of.initial_max_data,
                of.initial_max_stream_data_bidi_local,
                of.initial_max_stream_data_bidi_remote,
                of.initial_max_stream_data_uni,
                of.initial_max_streams_bidi,
                of.initial_max_streams_uni,
                of.max_datagram_frame_size,
            ]
        };
        if limits(self).iter().zip(limits(before)).any(|(now, before)| *now < before) {
            return Err(Error::new(Code::PROTOCOL_VIOLATION, "limits are below those of 0-RTT"));
        }
        Ok(())
    }
}
