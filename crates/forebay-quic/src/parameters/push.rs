//! Parameters that are sent.

use super::{PreferredAddress, TransportParameters, id};
use crate::id::Side;
use crate::packet::negotiation::reserved_version;
use crate::varint::{self, len};

impl TransportParameters {
    /// Appends the parameters of a side as they are in the extension of TLS. A client sends none of those that only servers have.
    ///
    /// The random number `grease` makes a parameter, and a version if there are any, that peers have to ignore (RFC 9000,
    /// section 18.1; RFC 9368, section 3).
    pub fn push(&self, out: &mut Vec<u8>, side: Side, grease: u64) {
        let default = TransportParameters::default();
        for ((id, value), (_, usual)) in self.integers().into_iter().zip(default.integers()) {
            if value != usual {
                push_integer(out, id, value);
            }
        }
        for (id, set) in [
            (id::DISABLE_ACTIVE_MIGRATION, self.disable_active_migration),
            (id::GREASE_QUIC_BIT, self.grease_quic_bit),
        ] {
            if set {
                push_bytes(out, id, &[]);
            }
        }
        if let Some(source) = &self.initial_source_connection_id {
            push_bytes(out, id::INITIAL_SOURCE_CONNECTION_ID, source);
        }
        if let Some(versions) = &self.version_information {
            varint::push(out, id::VERSION_INFORMATION);
            versions.push(out, reserved_version(grease as u32));
        }
        if side.is_server() {
            self.push_of_server(out);
        }
        // Identifiers of the form 31 * N + 27, below 2^62.
        let value = grease.to_be_bytes();
        let some = value.get(..(grease >> 61) as usize).unwrap_or_default();
        push_bytes(out, (grease & 0x01ff_ffff_ffff_ffff) / 31 * 31 + 27, some);
    }

    /// Appends the parameters that only servers have.
    fn push_of_server(&self, out: &mut Vec<u8>) {
        for (id, connection_id) in [
            (id::ORIGINAL_DESTINATION_CONNECTION_ID, &self.original_destination_connection_id),
            (id::RETRY_SOURCE_CONNECTION_ID, &self.retry_source_connection_id),
        ] {
            if let Some(connection_id) = connection_id {
                push_bytes(out, id, connection_id);
            }
        }
        if let Some(token) = &self.stateless_reset_token {
            push_bytes(out, id::STATELESS_RESET_TOKEN, token);
        }
        if let Some(address) = &self.preferred_address {
            varint::push(out, id::PREFERRED_ADDRESS);
            address.push(out);
        }
    }

    /// Returns the parameters that are integers.
    fn integers(&self) -> [(u64, u64); 12] {
        [
            (id::MAX_IDLE_TIMEOUT, self.max_idle_timeout),
            (id::MAX_UDP_PAYLOAD_SIZE, self.max_udp_payload_size),
            (id::INITIAL_MAX_DATA, self.initial_max_data),
            (id::INITIAL_MAX_STREAM_DATA_BIDI_LOCAL, self.initial_max_stream_data_bidi_local),
            (id::INITIAL_MAX_STREAM_DATA_BIDI_REMOTE, self.initial_max_stream_data_bidi_remote),
            (id::INITIAL_MAX_STREAM_DATA_UNI, self.initial_max_stream_data_uni),
            (id::INITIAL_MAX_STREAMS_BIDI, self.initial_max_streams_bidi),
            (id::INITIAL_MAX_STREAMS_UNI, self.initial_max_streams_uni),
            (id::ACK_DELAY_EXPONENT, self.ack_delay_exponent.into()),
            (id::MAX_ACK_DELAY, self.max_ack_delay.into()),
            (id::ACTIVE_CONNECTION_ID_LIMIT, self.active_connection_id_limit),
            (id::MAX_DATAGRAM_FRAME_SIZE, self.max_datagram_frame_size),
        ]
    }
}

fn push_integer(out: &mut Vec<u8>, id: u64, value: u64) {
    varint::push(out, id);
    varint::push(out, len(value) as u64);
    varint::push(out, value);
}

fn push_bytes(out: &mut Vec<u8>, id: u64, bytes: &[u8]) {
    varint::push(out, id);
    varint::push(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

impl PreferredAddress {
    /// Appends length and value of the parameter.
    fn push(&self, out: &mut Vec<u8>) {
        varint::push(out, (4 + 2 + 16 + 2 + 1 + self.id.len() + self.token.len()) as u64);
        out.extend_from_slice(&self.v4.map_or([0; 4], |v4| v4.ip().octets()));
        out.extend_from_slice(&self.v4.map_or(0, |v4| v4.port()).to_be_bytes());
        out.extend_from_slice(&self.v6.map_or([0; 16], |v6| v6.ip().octets()));
        out.extend_from_slice(&self.v6.map_or(0, |v6| v6.port()).to_be_bytes());
        out.push(self.id.len() as u8);
        out.extend_from_slice(&self.id);
        out.extend_from_slice(&self.token);
    }
}
