//! Frames of a packet that is put together.

use super::kind;
use super::read::Frame;
use crate::id::{Dir, StreamId};
use crate::varint::{self, len, push};

/// Appends something if the buffer does not grow beyond `end` bytes. Returns whether it was appended.
///
/// `fit(out, end, |out| push_max_data(out, n))`
#[inline]
pub fn fit(out: &mut Vec<u8>, end: usize, append: impl FnOnce(&mut Vec<u8>)) -> bool {
    let before = out.len();
    append(out);
    let fits = out.len() <= end;
    if !fits {
        out.truncate(before);
    }
    fits
}

/// Appends a number of PADDING frames.
pub fn push_padding(out: &mut Vec<u8>, n: usize) {
    out.resize(out.len() + n, kind::PADDING as u8);
}

/// Appends PING.
pub fn push_ping(out: &mut Vec<u8>) {
    out.push(kind::PING as u8);
}

/// Appends a type and integers of variable length.
#[inline]
fn push_fields<const N: usize>(out: &mut Vec<u8>, kind: u64, fields: [u64; N]) {
    out.push(kind as u8);
    for field in fields {
        push(out, field);
    }
}

/// Appends RESET_STREAM.
pub fn push_reset_stream(out: &mut Vec<u8>, id: StreamId, code: u64, final_size: u64) {
    push_fields(out, kind::RESET_STREAM, [id.0, code, final_size]);
}

/// Appends STOP_SENDING.
pub fn push_stop_sending(out: &mut Vec<u8>, id: StreamId, code: u64) {
    push_fields(out, kind::STOP_SENDING, [id.0, code]);
}

/// Returns the number of bytes of a CRYPTO frame before its content.
pub const fn crypto_head_len(offset: u64, len: usize) -> usize {
    1 + varint::len(offset) + varint::len(len as u64)
}

/// Appends the part of a CRYPTO frame before `len` bytes of content, which the caller appends.
pub fn push_crypto_head(out: &mut Vec<u8>, offset: u64, len: usize) {
    push_fields(out, kind::CRYPTO, [offset, len as u64]);
}

/// Appends CRYPTO.
pub fn push_crypto(out: &mut Vec<u8>, offset: u64, data: &[u8]) {
    push_crypto_head(out, offset, data.len());
    out.extend_from_slice(data);
}

/// Returns the number of bytes of a NEW_TOKEN frame.
pub const fn new_token_len(token: &[u8]) -> usize {
    1 + len(token.len() as u64) + token.len()
}

/// Appends NEW_TOKEN.
pub fn push_new_token(out: &mut Vec<u8>, token: &[u8]) {
    push_fields(out, kind::NEW_TOKEN, [token.len() as u64]);
    out.extend_from_slice(token);
}

/// Returns the number of bytes of a STREAM frame before its content. Without a length the content ends the packet.
pub const fn stream_head_len(id: StreamId, offset: u64, len: Option<usize>) -> usize {
    let offset = if offset == 0 { 0 } else { varint::len(offset) };
    let len = if let Some(len) = len { varint::len(len as u64) } else { 0 };
    1 + varint::len(id.0) + offset + len
}

/// Appends the part of a STREAM frame before its content, which the caller appends. Without a length the content has to end the
/// packet: the caller then also appends no PADDING.
#[inline]
pub fn push_stream_head(out: &mut Vec<u8>, id: StreamId, offset: u64, len: Option<usize>, fin: bool) {
    let mut kind = kind::STREAM;
    if fin {
        kind |= kind::STREAM_FIN;
    }
    if len.is_some() {
        kind |= kind::STREAM_LEN;
    }
    if offset != 0 {
        kind |= kind::STREAM_OFF;
    }
    out.push(kind as u8);
    push(out, id.0);
    if offset != 0 {
        push(out, offset);
    }
    if let Some(len) = len {
        push(out, len as u64);
    }
}

/// Appends STREAM, without a length if it is to be the last of its packet.
pub fn push_stream(out: &mut Vec<u8>, id: StreamId, offset: u64, data: &[u8], fin: bool, last: bool) {
    push_stream_head(out, id, offset, (!last).then_some(data.len()), fin);
    out.extend_from_slice(data);
}

/// Appends MAX_DATA.
pub fn push_max_data(out: &mut Vec<u8>, limit: u64) {
    push_fields(out, kind::MAX_DATA, [limit]);
}

/// Appends MAX_STREAM_DATA.
pub fn push_max_stream_data(out: &mut Vec<u8>, id: StreamId, limit: u64) {
    push_fields(out, kind::MAX_STREAM_DATA, [id.0, limit]);
}

/// Appends MAX_STREAMS.
pub fn push_max_streams(out: &mut Vec<u8>, dir: Dir, limit: u64) {
    push_fields(out, of(dir, kind::MAX_STREAMS_BIDI, kind::MAX_STREAMS_UNI), [limit]);
}

/// Appends DATA_BLOCKED.
pub fn push_data_blocked(out: &mut Vec<u8>, limit: u64) {
    push_fields(out, kind::DATA_BLOCKED, [limit]);
}

/// Appends STREAM_DATA_BLOCKED.
pub fn push_stream_data_blocked(out: &mut Vec<u8>, id: StreamId, limit: u64) {
    push_fields(out, kind::STREAM_DATA_BLOCKED, [id.0, limit]);
}

/// Appends STREAMS_BLOCKED.
pub fn push_streams_blocked(out: &mut Vec<u8>, dir: Dir, limit: u64) {
    push_fields(out, of(dir, kind::STREAMS_BLOCKED_BIDI, kind::STREAMS_BLOCKED_UNI), [limit]);
}

const fn of(dir: Dir, bi: u64, uni: u64) -> u64 {
    match dir {
        Dir::Bi => bi,
        Dir::Uni => uni,
    }
}

/// Appends NEW_CONNECTION_ID.
pub fn push_new_connection_id(
    out: &mut Vec<u8>,
    sequence: u64,
    retire_prior_to: u64,
    id: &[u8],
    token: &[u8; 16],
) {
    push_fields(out, kind::NEW_CONNECTION_ID, [sequence, retire_prior_to]);
    out.push(id.len() as u8);
    out.extend_from_slice(id);
    out.extend_from_slice(token);
}

/// Appends RETIRE_CONNECTION_ID.
pub fn push_retire_connection_id(out: &mut Vec<u8>, sequence: u64) {
    push_fields(out, kind::RETIRE_CONNECTION_ID, [sequence]);
}

/// Appends PATH_CHALLENGE.
pub fn push_path_challenge(out: &mut Vec<u8>, data: [u8; 8]) {
    out.push(kind::PATH_CHALLENGE as u8);
    out.extend_from_slice(&data);
}

/// Appends PATH_RESPONSE.
pub fn push_path_response(out: &mut Vec<u8>, data: [u8; 8]) {
    out.push(kind::PATH_RESPONSE as u8);
    out.extend_from_slice(&data);
}

/// Appends CONNECTION_CLOSE for an error of the transport if there is a type of frame, otherwise for one of the application. The
/// reason is cut to fit into `room` bytes. Returns `false`, and nothing is appended, if there is no room even without a reason.
pub fn push_connection_close(
    out: &mut Vec<u8>,
    code: u64,
    frame: Option<u64>,
    reason: &[u8],
    room: usize,
) -> bool {
    let fixed = 1 + len(code) + frame.map_or(0, len);
    // The length of the whole reason takes at least as many bytes as that of its part.
    let left = room.checked_sub(fixed + len(reason.len() as u64)).map(|left| left.min(reason.len()));
    let Some(reason) = left.and_then(|left| reason.get(..left)).or((room > fixed).then_some(&[])) else {
        return false;
    };
    match frame {
        Some(frame) => push_fields(out, kind::CONNECTION_CLOSE, [code, frame, reason.len() as u64]),
        None => push_fields(out, kind::CONNECTION_CLOSE_APP, [code, reason.len() as u64]),
    }
    out.extend_from_slice(reason);
    true
}

/// Appends HANDSHAKE_DONE.
pub fn push_handshake_done(out: &mut Vec<u8>) {
    out.push(kind::HANDSHAKE_DONE as u8);
}

/// Returns the number of bytes of a DATAGRAM frame before its content.
pub const fn datagram_head_len(len: usize, last: bool) -> usize {
    1 + if last { 0 } else { varint::len(len as u64) }
}

/// Appends DATAGRAM, without a length if it is to be the last of its packet.
pub fn push_datagram(out: &mut Vec<u8>, data: &[u8], last: bool) {
    if last {
        out.push(kind::DATAGRAM as u8);
    } else {
        push_fields(out, kind::DATAGRAM_LEN, [data.len() as u64]);
    }
    out.extend_from_slice(data);
}

impl Frame<'_> {
    /// Appends the frame, with lengths where they can be left out. An ACK frame gets the ranges that it was read with.
    pub fn push(&self, out: &mut Vec<u8>) {
        match *self {
            Frame::Padding(n) => push_padding(out, n),
            Frame::Ping => push_ping(out),
            Frame::Ack(ref ack) => ack.push(out),
            Frame::ResetStream { id, code, final_size } => push_reset_stream(out, id, code, final_size),
            Frame::StopSending { id, code } => push_stop_sending(out, id, code),
            Frame::Crypto { offset, data } => push_crypto(out, offset, data),
            Frame::NewToken(token) => push_new_token(out, token),
            Frame::Stream { id, offset, data, fin } => push_stream(out, id, offset, data, fin, false),
            Frame::MaxData(limit) => push_max_data(out, limit),
            Frame::MaxStreamData { id, limit } => push_max_stream_data(out, id, limit),
            Frame::MaxStreams { dir, limit } => push_max_streams(out, dir, limit),
            Frame::DataBlocked(limit) => push_data_blocked(out, limit),
            Frame::StreamDataBlocked { id, limit } => push_stream_data_blocked(out, id, limit),
            Frame::StreamsBlocked { dir, limit } => push_streams_blocked(out, dir, limit),
            Frame::NewConnectionId { sequence, retire_prior_to, id, ref token } => {
                push_new_connection_id(out, sequence, retire_prior_to, &id, token);
            }
            Frame::RetireConnectionId(sequence) => push_retire_connection_id(out, sequence),
            Frame::PathChallenge(data) => push_path_challenge(out, data),
            Frame::PathResponse(data) => push_path_response(out, data),
            Frame::ConnectionClose { code, frame, reason } => {
                push_connection_close(out, code, frame, reason, usize::MAX);
            }
            Frame::HandshakeDone => push_handshake_done(out),
            Frame::Datagram(data) => push_datagram(out, data, false),
        }
    }
}
