//! Frames (RFC 9113, sections 4, 6 and 7): headers, kinds, flags, error codes, settings, and functions that write them.
//! Received frames are read in [`super::received`]. Hot path.

/// First bytes of a client (RFC 9113, section 3.4).
pub const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Bytes of a frame header.
pub const HEADER_LEN: usize = 9;

/// Largest payload that we accept, and the largest that every peer accepts (SETTINGS_MAX_FRAME_SIZE).
pub const MAX_FRAME: usize = 16384;

/// Flow-control window of a new connection and of a new stream, bytes.
pub const INITIAL_WINDOW: i64 = 65535;

/// Largest flow-control window, bytes.
pub const MAX_WINDOW: i64 = 0x7fff_ffff;

/// Kinds of frames.
#[allow(missing_docs)]
pub mod kind {
    pub const DATA: u8 = 0;
    pub const HEADERS: u8 = 1;
    pub const PRIORITY: u8 = 2;
    pub const RST_STREAM: u8 = 3;
    pub const SETTINGS: u8 = 4;
    pub const PUSH_PROMISE: u8 = 5;
    pub const PING: u8 = 6;
    pub const GOAWAY: u8 = 7;
    pub const WINDOW_UPDATE: u8 = 8;
    pub const CONTINUATION: u8 = 9;
    /// RFC 9218, section 7.1.
    pub const PRIORITY_UPDATE: u8 = 16;
}

/// Flags of frames.
#[allow(missing_docs)]
pub mod flag {
    pub const ACK: u8 = 1;
    pub const END_STREAM: u8 = 1;
    pub const END_HEADERS: u8 = 4;
    pub const PADDED: u8 = 8;
    pub const PRIORITY: u8 = 32;
}

/// Settings (RFC 9113, section 6.5.2; RFC 9218, section 2.1).
#[allow(missing_docs)]
pub mod setting {
    pub const HEADER_TABLE_SIZE: u16 = 1;
    pub const ENABLE_PUSH: u16 = 2;
    pub const MAX_CONCURRENT_STREAMS: u16 = 3;
    pub const INITIAL_WINDOW_SIZE: u16 = 4;
    pub const MAX_FRAME_SIZE: u16 = 5;
    pub const ENABLE_CONNECT_PROTOCOL: u16 = 8;
    pub const NO_RFC7540_PRIORITIES: u16 = 9;
}

/// Error codes (RFC 9113, section 7).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum Code {
    NoError = 0,
    ProtocolError = 1,
    InternalError = 2,
    FlowControlError = 3,
    SettingsTimeout = 4,
    StreamClosed = 5,
    FrameSizeError = 6,
    RefusedStream = 7,
    Cancel = 8,
    CompressionError = 9,
    ConnectError = 10,
    EnhanceYourCalm = 11,
    InadequateSecurity = 12,
    Http11Required = 13,
}

/// A frame header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// Bytes of the payload.
    pub len: usize,
    /// See [`kind`].
    pub kind: u8,
    /// See [`flag`].
    pub flags: u8,
    /// Stream, 0 for the connection.
    pub stream: u32,
}

impl FrameHeader {
    /// Reads a header; `None` while fewer than nine bytes are there.
    #[inline]
    pub fn parse(b: &[u8]) -> Option<FrameHeader> {
        let &[l0, l1, l2, kind, flags, s0, s1, s2, s3] = b.first_chunk::<HEADER_LEN>()?;
        Some(FrameHeader {
            len: usize::from(l0) << 16 | usize::from(l1) << 8 | usize::from(l2),
            kind,
            flags,
            // The highest bit is reserved and must be ignored (RFC 9113, section 4.1).
            stream: u32::from_be_bytes([s0 & 0x7f, s1, s2, s3]),
        })
    }

    /// Returns `true` if a flag is set.
    #[inline]
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Returns the nine bytes.
    #[inline]
    pub fn bytes(&self) -> [u8; HEADER_LEN] {
        // 24 bits are enough: no payload is longer than MAX_FRAME.
        let l = (self.len as u32).to_be_bytes();
        let s = self.stream.to_be_bytes();
        [l[1], l[2], l[3], self.kind, self.flags, s[0], s[1], s[2], s[3]]
    }
}

/// Appends a frame header.
#[inline]
pub fn push_header(out: &mut Vec<u8>, len: usize, kind: u8, flags: u8, stream: u32) {
    out.extend_from_slice(&FrameHeader { len, kind, flags, stream }.bytes());
}

/// Appends RST_STREAM.
pub fn push_reset(out: &mut Vec<u8>, stream: u32, code: Code) {
    push_header(out, 4, kind::RST_STREAM, 0, stream);
    out.extend_from_slice(&(code as u32).to_be_bytes());
}

/// Appends GOAWAY: `last` is the highest stream that was or will be served.
pub fn push_goaway(out: &mut Vec<u8>, last: u32, code: Code) {
    push_header(out, 8, kind::GOAWAY, 0, 0);
    out.extend_from_slice(&last.to_be_bytes());
    out.extend_from_slice(&(code as u32).to_be_bytes());
}

/// Appends WINDOW_UPDATE.
pub fn push_window_update(out: &mut Vec<u8>, stream: u32, increment: u32) {
    push_header(out, 4, kind::WINDOW_UPDATE, 0, stream);
    out.extend_from_slice(&increment.to_be_bytes());
}

/// Appends SETTINGS with these pairs.
pub fn push_settings(out: &mut Vec<u8>, pairs: &[(u16, u32)]) {
    push_header(out, pairs.len() * 6, kind::SETTINGS, 0, 0);
    for (id, value) in pairs {
        out.extend_from_slice(&id.to_be_bytes());
        out.extend_from_slice(&value.to_be_bytes());
    }
}

/// Appends the acknowledgement of the peer's SETTINGS.
pub fn push_settings_ack(out: &mut Vec<u8>) {
    push_header(out, 0, kind::SETTINGS, flag::ACK, 0);
}

/// Appends the acknowledgement of a PING.
pub fn push_ping_ack(out: &mut Vec<u8>, data: &[u8; 8]) {
    push_header(out, 8, kind::PING, flag::ACK, 0);
    out.extend_from_slice(data);
}

/// Appends a field block: HEADERS, and CONTINUATION frames for the rest. `end_stream`: 0 or [`flag::END_STREAM`].
pub fn push_field_block(out: &mut Vec<u8>, stream: u32, end_stream: u8, block: &[u8]) {
    let (mut kind, mut flags, mut rest) = (kind::HEADERS, end_stream, block);
    loop {
        let (fragment, behind) = rest.split_at(rest.len().min(MAX_FRAME));
        if behind.is_empty() {
            flags |= flag::END_HEADERS;
        }
        push_header(out, fragment.len(), kind, flags, stream);
        out.extend_from_slice(fragment);
        if behind.is_empty() {
            return;
        }
        (kind, flags, rest) = (kind::CONTINUATION, 0, behind);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_the_round_trip() {
        let h =
            FrameHeader { len: 0x01_02_03, kind: kind::DATA, flags: flag::END_STREAM, stream: 0x7fff_fffe };
        assert_eq!(FrameHeader::parse(&h.bytes()), Some(h));
        assert_eq!(FrameHeader::parse(&h.bytes()[..8]), None);
        // The reserved bit is ignored.
        assert_eq!(FrameHeader::parse(&[0, 0, 0, 0, 0, 0x80, 0, 0, 1]).map(|h| h.stream), Some(1));
    }

    #[test]
    fn long_field_blocks_go_on_in_continuations() {
        let mut out = Vec::new();
        push_field_block(&mut out, 5, flag::END_STREAM, &vec![b'x'; MAX_FRAME + 1]);
        let first = FrameHeader { len: MAX_FRAME, kind: kind::HEADERS, flags: flag::END_STREAM, stream: 5 };
        let last = FrameHeader { len: 1, kind: kind::CONTINUATION, flags: flag::END_HEADERS, stream: 5 };
        assert_eq!(FrameHeader::parse(&out), Some(first));
        assert_eq!(FrameHeader::parse(&out[HEADER_LEN + MAX_FRAME..]), Some(last));
        assert_eq!(out.len(), MAX_FRAME + 1 + 2 * HEADER_LEN);
        out.clear();
        push_field_block(&mut out, 1, 0, &[]);
        assert_eq!(
            out,
            FrameHeader { len: 0, kind: kind::HEADERS, flags: flag::END_HEADERS, stream: 1 }.bytes()
        );
    }
}
