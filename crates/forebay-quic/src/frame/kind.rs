//! Types of frames, and where they may occur (RFC 9000, sections 12.4, 12.5 and 13.2; RFC 9221).

use crate::packet::Kind;

/// PADDING.
pub const PADDING: u64 = 0x00;
/// PING.
pub const PING: u64 = 0x01;
/// ACK without counts of ECN.
pub const ACK: u64 = 0x02;
/// ACK with counts of ECN.
pub const ACK_ECN: u64 = 0x03;
/// RESET_STREAM.
pub const RESET_STREAM: u64 = 0x04;
/// STOP_SENDING.
pub const STOP_SENDING: u64 = 0x05;
/// CRYPTO.
pub const CRYPTO: u64 = 0x06;
/// NEW_TOKEN.
pub const NEW_TOKEN: u64 = 0x07;
/// STREAM without any of the bits [`STREAM_FIN`], [`STREAM_LEN`] and [`STREAM_OFF`].
pub const STREAM: u64 = 0x08;
/// Bit of STREAM: the stream ends with the frame.
pub const STREAM_FIN: u64 = 0x01;
/// Bit of STREAM: there is a length. Without it the content reaches to the end of the packet.
pub const STREAM_LEN: u64 = 0x02;
/// Bit of STREAM: there is an offset. Without it the offset is 0.
pub const STREAM_OFF: u64 = 0x04;
/// STREAM with all of its bits.
pub const STREAM_LAST: u64 = 0x0f;
/// MAX_DATA.
pub const MAX_DATA: u64 = 0x10;
/// MAX_STREAM_DATA.
pub const MAX_STREAM_DATA: u64 = 0x11;
/// MAX_STREAMS of streams in both directions.
pub const MAX_STREAMS_BIDI: u64 = 0x12;
/// MAX_STREAMS of streams in one direction.
pub const MAX_STREAMS_UNI: u64 = 0x13;
/// DATA_BLOCKED.
pub const DATA_BLOCKED: u64 = 0x14;
/// STREAM_DATA_BLOCKED.
pub const STREAM_DATA_BLOCKED: u64 = 0x15;
/// STREAMS_BLOCKED of streams in both directions.
pub const STREAMS_BLOCKED_BIDI: u64 = 0x16;
/// STREAMS_BLOCKED of streams in one direction.
pub const STREAMS_BLOCKED_UNI: u64 = 0x17;
/// NEW_CONNECTION_ID.
pub const NEW_CONNECTION_ID: u64 = 0x18;
/// RETIRE_CONNECTION_ID.
pub const RETIRE_CONNECTION_ID: u64 = 0x19;
/// PATH_CHALLENGE.
pub const PATH_CHALLENGE: u64 = 0x1a;
/// PATH_RESPONSE.
pub const PATH_RESPONSE: u64 = 0x1b;
/// CONNECTION_CLOSE for an error of the transport.
pub const CONNECTION_CLOSE: u64 = 0x1c;
/// CONNECTION_CLOSE for an error of the application.
pub const CONNECTION_CLOSE_APP: u64 = 0x1d;
/// HANDSHAKE_DONE.
pub const HANDSHAKE_DONE: u64 = 0x1e;
/// DATAGRAM that reaches to the end of the packet (RFC 9221).
pub const DATAGRAM: u64 = 0x30;
/// DATAGRAM with a length (RFC 9221).
pub const DATAGRAM_LEN: u64 = 0x31;

/// Returns `true` if the type is one that [`Frames`](super::Frames) knows.
pub const fn is_known(kind: u64) -> bool {
    matches!(kind, PADDING..=HANDSHAKE_DONE | DATAGRAM | DATAGRAM_LEN)
}

/// Returns `true` if packets of a kind may hold frames of a known type.
///
/// In 0-RTT packets it also refuses the frames that a client cannot send there (RFC 9000, section 12.5).
pub const fn allowed(kind: u64, packet: Kind) -> bool {
    match packet {
        Kind::OneRtt => true,
        Kind::Initial | Kind::Handshake => {
            matches!(kind, PADDING | PING | ACK | ACK_ECN | CRYPTO | CONNECTION_CLOSE)
        }
        Kind::ZeroRtt => !matches!(
            kind,
            ACK | ACK_ECN | CRYPTO | NEW_TOKEN | RETIRE_CONNECTION_ID | PATH_RESPONSE | HANDSHAKE_DONE
        ),
    }
}

/// Returns `true` if a packet with such a frame has to be acknowledged (RFC 9002, section 2).
pub const fn is_ack_eliciting(kind: u64) -> bool {
    !matches!(kind, PADDING | ACK | ACK_ECN | CONNECTION_CLOSE | CONNECTION_CLOSE_APP)
}

/// Returns `true` if a packet with only such frames does not move the connection to another path (RFC 9000, section 9.1).
pub const fn is_probing(kind: u64) -> bool {
    matches!(kind, PADDING | NEW_CONNECTION_ID | PATH_CHALLENGE | PATH_RESPONSE)
}
