//! Record of the content of a packet, for the case that it is lost.

use crate::id::{Dir, StreamId};

/// Part of a packet that has to arrive. Whoever made it is told whether it did: `acked` or `lost`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Item {
    /// Bytes of the handshake, in the packet number space of the packet.
    Crypto {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u16,
    },
    /// Content of a stream.
    Stream {
        /// The stream.
        id: StreamId,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u16,
        /// The end of the stream follows them.
        fin: bool,
    },
    /// RESET_STREAM.
    ResetStream(StreamId),
    /// STOP_SENDING.
    StopSending(StreamId),
    /// MAX_DATA with the limit.
    MaxData(u64),
    /// MAX_STREAM_DATA with the limit.
    MaxStreamData(StreamId, u64),
    /// MAX_STREAMS with the limit.
    MaxStreams(Dir, u64),
    /// DATA_BLOCKED at the limit.
    DataBlocked(u64),
    /// STREAM_DATA_BLOCKED at the limit.
    StreamDataBlocked(StreamId, u64),
    /// STREAMS_BLOCKED at the limit.
    StreamsBlocked(Dir, u64),
    /// NEW_CONNECTION_ID with its sequence number.
    NewConnectionId(u64),
    /// RETIRE_CONNECTION_ID with its sequence number.
    RetireConnectionId(u64),
    /// NEW_TOKEN.
    NewToken,
    /// HANDSHAKE_DONE.
    HandshakeDone,
    /// ACK up to this packet number: once it arrived, smaller ones need no acknowledgment any more.
    Ack(u64),
    /// DATAGRAM, which is not sent again (RFC 9221, section 5.2).
    Datagram,
}
