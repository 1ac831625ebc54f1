//! Parameters that arrived.

use std::net::{SocketAddrV4, SocketAddrV6};

use super::{PreferredAddress, TransportParameters, VersionInformation, id};
use crate::error::{Code, Error};
use crate::id::{ConnectionId, Side};
use crate::varint::Reader;

/// Unknown parameters that are looked at for duplicates. More of them are ignored, so that a long list costs no more than its length.
const UNKNOWN: usize = 16;

/// Parameters that came already.
#[derive(Default)]
struct Seen {
    /// One bit for each identifier below 63, and the highest for `grease_quic_bit`.
    known: u64,
    unknown: [u64; UNKNOWN],
    unknown_len: usize,
}

impl Seen {
    /// Notes an identifier. Returns `false` if it came before.
    fn note(&mut self, id: u64) -> bool {
        if id < 63 || id == id::GREASE_QUIC_BIT {
            let before = self.known;
            self.known |= 1 << id.min(63);
            return before != self.known;
        }
        if self.unknown.iter().take(self.unknown_len).any(|seen| *seen == id) {
            return false;
        }
        if let Some(free) = self.unknown.get_mut(self.unknown_len) {
            *free = id;
            self.unknown_len += 1;
        }
        true
    }
}

/// Creates the error for all that is wrong with parameters.
pub(super) const fn wrong(reason: &'static str) -> Error {
    Error::new(Code::TRANSPORT_PARAMETER_ERROR, reason)
}

/// Reads identifier and value of the next parameter. Returns `None` at the end.
pub(super) fn next<'b>(reader: &mut Reader<'b>) -> Option<Result<(u64, &'b [u8]), Error>> {
    if reader.is_empty() {
        return None;
    }
    let parameter = reader.varint().and_then(|id| Some((id, reader.sized()?)));
    Some(parameter.ok_or(wrong("transport parameters are cut off")))
}

impl TransportParameters {
    /// Reads the parameters that a side sent in the extension of TLS. Unknown ones are ignored.
    ///
    /// # Errors
    /// TRANSPORT_PARAMETER_ERROR if one is malformed, out of its range, there twice, or only for servers but sent by a client.
    pub fn read(bytes: &[u8], from: Side) -> Result<TransportParameters, Error> {
        let mut reader = Reader::new(bytes);
        let (mut parameters, mut seen) = (TransportParameters::default(), Seen::default());
        while let Some(parameter) = next(&mut reader) {
            let (id, value) = parameter?;
            if !seen.note(id) {
                return Err(wrong("transport parameter is there twice"));
            }
            let only_of_servers = matches!(
                id,
                id::ORIGINAL_DESTINATION_CONNECTION_ID
                    | id::STATELESS_RESET_TOKEN
                    | id::PREFERRED_ADDRESS
                    | id::RETRY_SOURCE_CONNECTION_ID
            );
            if only_of_servers && from.is_client() {
                return Err(wrong("transport parameter is only for servers"));
            }
            parameters.set(id, value, from)?;
        }
        let no_id = parameters.initial_source_connection_id.is_some_and(|id| id.is_empty());
        if no_id && parameters.preferred_address.is_some() {
            return Err(wrong("preferred address of a server without a connection identifier"));
        }
        Ok(parameters)
    }

    fn set(&mut self, id: u64, value: &[u8], from: Side) -> Result<(), Error> {
        match id {
            id::VERSION_INFORMATION => {
                let information = VersionInformation::read(value)?;
                if from.is_client() {
                    information.check_offer()?;
                }
                self.version_information = Some(information);
                Ok(())
            }
            id::ORIGINAL_DESTINATION_CONNECTION_ID
            | id::STATELESS_RESET_TOKEN
            | id::PREFERRED_ADDRESS
            | id::INITIAL_SOURCE_CONNECTION_ID
            | id::RETRY_SOURCE_CONNECTION_ID => {
                self.set_bytes(id, value).ok_or(wrong("malformed transport parameter"))
            }
            id::DISABLE_ACTIVE_MIGRATION | id::GREASE_QUIC_BIT if !value.is_empty() => {
                Err(wrong("transport parameter is not empty"))
            }
            id::DISABLE_ACTIVE_MIGRATION => {
                self.disable_active_migration = true;
                Ok(())
            }
            id::GREASE_QUIC_BIT => {
                self.grease_quic_bit = true;
                Ok(())
            }
            id::MAX_IDLE_TIMEOUT..=id::ACTIVE_CONNECTION_ID_LIMIT | id::MAX_DATAGRAM_FRAME_SIZE => {
                let mut reader = Reader::new(value);
                let value = reader.varint().filter(|_| reader.is_empty());
                let value = value.ok_or(wrong("transport parameter is not one integer"))?;
                self.set_integer(id, value).ok_or(wrong("transport parameter is out of its range"))
            }
            _ => Ok(()),
        }
    }

    fn set_bytes(&mut self, id: u64, value: &[u8]) -> Option<()> {
        match id {
            id::ORIGINAL_DESTINATION_CONNECTION_ID => {
                self.original_destination_connection_id = Some(ConnectionId::new(value)?);
            }
            id::INITIAL_SOURCE_CONNECTION_ID => {
                self.initial_source_connection_id = Some(ConnectionId::new(value)?);
            }
            id::RETRY_SOURCE_CONNECTION_ID => {
                self.retry_source_connection_id = Some(ConnectionId::new(value)?);
            }
            id::STATELESS_RESET_TOKEN => self.stateless_reset_token = Some(value.try_into().ok()?),
            _ => self.preferred_address = Some(Box::new(PreferredAddress::read(value)?)),
        }
        Some(())
    }

    /// Sets a parameter that is an integer. Returns `None` if it is out of its range.
    fn set_integer(&mut self, id: u64, value: u64) -> Option<()> {
        let streams = (value <= 1 << 60).then_some(value);
        match id {
            id::MAX_IDLE_TIMEOUT => self.max_idle_timeout = value,
            id::MAX_UDP_PAYLOAD_SIZE => self.max_udp_payload_size = (value >= 1200).then_some(value)?,
            id::INITIAL_MAX_DATA => self.initial_max_data = value,
            id::INITIAL_MAX_STREAM_DATA_BIDI_LOCAL => self.initial_max_stream_data_bidi_local = value,
            id::INITIAL_MAX_STREAM_DATA_BIDI_REMOTE => self.initial_max_stream_data_bidi_remote = value,
            id::INITIAL_MAX_STREAM_DATA_UNI => self.initial_max_stream_data_uni = value,
            id::INITIAL_MAX_STREAMS_BIDI => self.initial_max_streams_bidi = streams?,
            id::INITIAL_MAX_STREAMS_UNI => self.initial_max_streams_uni = streams?,
            id::ACK_DELAY_EXPONENT => {
                self.ack_delay_exponent = u8::try_from(value).ok().filter(|exponent| *exponent <= 20)?;
            }
            id::MAX_ACK_DELAY => {
                self.max_ack_delay = u16::try_from(value).ok().filter(|delay| *delay < 1 << 14)?;
            }
            id::ACTIVE_CONNECTION_ID_LIMIT => {
                self.active_connection_id_limit = (value >= 2).then_some(value)?;
            }
            _ => self.max_datagram_frame_size = value,
        }
        Some(())
    }
}

impl PreferredAddress {
    fn read(value: &[u8]) -> Option<PreferredAddress> {
        let mut reader = Reader::new(value);
        let v4 = SocketAddrV4::new(reader.array::<4>()?.into(), reader.u16()?);
        let v6 = SocketAddrV6::new(reader.array::<16>()?.into(), reader.u16()?, 0, 0);
        let len = reader.u8().filter(|len| *len > 0)?;
        let id = ConnectionId::new(reader.bytes(len.into())?)?;
        let token = reader.array()?;
        reader.is_empty().then_some(PreferredAddress {
            // Address and port of zeros stand for no address.
            v4: (!v4.ip().is_unspecified() && v4.port() != 0).then_some(v4),
            v6: (!v6.ip().is_unspecified() && v6.port() != 0).then_some(v6),
            id,
            token,
        })
    }
}
