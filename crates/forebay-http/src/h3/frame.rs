//! Variable-length integers (RFC 9000, section 16), frames, stream types and settings (RFC 9114, sections 6.2 and 7). Hot path.

use super::Code;

/// Types of frames (RFC 9114, section 7.2; RFC 9218, section 7.2).
#[allow(missing_docs)]
pub mod kind {
    pub const DATA: u64 = 0x0;
    pub const HEADERS: u64 = 0x1;
    pub const CANCEL_PUSH: u64 = 0x3;
    pub const SETTINGS: u64 = 0x4;
    pub const PUSH_PROMISE: u64 = 0x5;
    pub const GOAWAY: u64 = 0x7;
    pub const MAX_PUSH_ID: u64 = 0xd;
    /// PRIORITY_UPDATE for a request.
    pub const PRIORITY_UPDATE: u64 = 0xf0700;
    /// PRIORITY_UPDATE for a push.
    pub const PRIORITY_UPDATE_PUSH: u64 = 0xf0701;
}

/// Types of unidirectional streams (RFC 9114, section 6.2; RFC 9204, section 4.2).
#[allow(missing_docs)]
pub mod stream {
    pub const CONTROL: u64 = 0x0;
    pub const PUSH: u64 = 0x1;
    pub const ENCODER: u64 = 0x2;
    pub const DECODER: u64 = 0x3;
}

/// Identifiers of settings (RFC 9114, section 7.2.4.1; RFC 9204, section 5; RFC 9220, section 3).
#[allow(missing_docs)]
pub mod setting {
    pub const QPACK_MAX_TABLE_CAPACITY: u64 = 0x1;
    pub const MAX_FIELD_SECTION_SIZE: u64 = 0x6;
    pub const QPACK_BLOCKED_STREAMS: u64 = 0x7;
    pub const ENABLE_CONNECT_PROTOCOL: u64 = 0x8;
}

/// Longest frame that is gathered whole before it is read, bytes: all but DATA and HEADERS.
pub const MAX_CONTROL_FRAME: u64 = 4096;

/// Most settings of a SETTINGS frame.
const MAX_SETTINGS: usize = 64;

/// Reads a variable-length integer. Returns it with its length; `None` if it is not complete.
#[inline]
pub fn varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let first = *bytes.first()?;
    let len = 1usize << (first >> 6);
    let rest = bytes.get(1..len)?;
    Some((rest.iter().fold(u64::from(first & 0x3f), |n, b| n << 8 | u64::from(*b)), len))
}

/// Appends a variable-length integer. `value` is less than 2^62.
#[inline]
pub fn push_varint(out: &mut Vec<u8>, value: u64) {
    match value {
        0..0x40 => out.push(value as u8),
        0x40..0x4000 => out.extend_from_slice(&(value as u16 | 0x4000).to_be_bytes()),
        0x4000..0x4000_0000 => out.extend_from_slice(&(value as u32 | 0x8000_0000).to_be_bytes()),
        _ => out.extend_from_slice(&(value | 0xc000_0000_0000_0000).to_be_bytes()),
    }
}

/// Returns the length of a variable-length integer in bytes.
pub fn varint_len(value: u64) -> usize {
    match value {
        0..0x40 => 1,
        0x40..0x4000 => 2,
        0x4000..0x4000_0000 => 4,
        _ => 8,
    }
}

/// Type and length of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// See [`kind`].
    pub kind: u64,
    /// Length of the payload, bytes.
    pub len: u64,
}

impl Header {
    /// Reads a header. Returns it with its length; `None` if it is not complete.
    #[inline]
    pub fn read(bytes: &[u8]) -> Option<(Header, usize)> {
        let (kind, first) = varint(bytes)?;
        let (len, second) = varint(bytes.get(first..)?)?;
        Some((Header { kind, len }, first + second))
    }

    /// Appends a header.
    #[inline]
    pub fn push(self, out: &mut Vec<u8>) {
        push_varint(out, self.kind);
        push_varint(out, self.len);
    }

    /// Returns `true` for a type of HTTP/2 that HTTP/3 forbids (RFC 9114, section 7.2.8).
    pub fn is_reserved(self) -> bool {
        matches!(self.kind, 0x2 | 0x6 | 0x8 | 0x9)
    }
}

/// Settings of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Size of the dynamic table that our encoder may use, bytes.
    pub table_capacity: u64,
    /// Number of streams that our encoder may block.
    pub blocked_streams: u64,
    /// Size of the largest field section that the peer takes, bytes as RFC 9114 counts them.
    pub max_field_section: u64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings { table_capacity: 0, blocked_streams: 0, max_field_section: u64::MAX }
    }
}

impl Settings {
    /// Reads the payload of a SETTINGS frame.
    ///
    /// # Errors
    /// H3_SETTINGS_ERROR for a setting of HTTP/2, one that comes twice, or a value that is not allowed; H3_FRAME_ERROR for a
    /// payload that ends within a setting; H3_EXCESSIVE_LOAD for too many.
    pub fn read(mut payload: &[u8]) -> Result<Settings, Code> {
        let mut settings = Settings::default();
        let mut seen = Vec::new();
        while !payload.is_empty() {
            let (id, a) = varint(payload).ok_or(Code::FrameError)?;
            let (value, b) = payload.get(a..).and_then(varint).ok_or(Code::FrameError)?;
            payload = payload.get(a + b..).unwrap_or_default();
            if seen.contains(&id) {
                return Err(Code::SettingsError);
            }
            if seen.len() >= MAX_SETTINGS {
                return Err(Code::ExcessiveLoad);
            }
            seen.push(id);
            match id {
                setting::QPACK_MAX_TABLE_CAPACITY => settings.table_capacity = value,
                setting::MAX_FIELD_SECTION_SIZE => settings.max_field_section = value,
                setting::QPACK_BLOCKED_STREAMS => settings.blocked_streams = value,
                setting::ENABLE_CONNECT_PROTOCOL if value > 1 => return Err(Code::SettingsError),
                // Settings of HTTP/2 (RFC 9114, section 7.2.4.1).
                0x0 | 0x2..=0x5 => return Err(Code::SettingsError),
                _ => {}
            }
        }
        Ok(settings)
    }
}

/// Appends a SETTINGS frame with these pairs.
pub fn push_settings(out: &mut Vec<u8>, pairs: &[(u64, u64)]) {
    let len = pairs.iter().map(|(id, value)| varint_len(*id) + varint_len(*value)).sum::<usize>() as u64;
    Header { kind: kind::SETTINGS, len }.push(out);
    for (id, value) in pairs {
        push_varint(out, *id);
        push_varint(out, *value);
    }
}

/// Appends a GOAWAY frame. `id`: first stream that is not served.
pub fn push_goaway(out: &mut Vec<u8>, id: u64) {
    Header { kind: kind::GOAWAY, len: varint_len(id) as u64 }.push(out);
    push_varint(out, id);
}

/// Reads a payload that is one variable-length integer: GOAWAY, MAX_PUSH_ID, CANCEL_PUSH.
///
/// # Errors
/// H3_FRAME_ERROR if it is something else.
pub fn id(payload: &[u8]) -> Result<u64, Code> {
    varint(payload).filter(|(_, len)| *len == payload.len()).map(|(id, _)| id).ok_or(Code::FrameError)
}

/// Reads the payload of PRIORITY_UPDATE: the element and its priority (RFC 9218, section 7.2).
///
/// # Errors
/// H3_FRAME_ERROR without an element.
pub fn priority_update(payload: &[u8]) -> Result<(u64, &[u8]), Code> {
    let (id, len) = varint(payload).ok_or(Code::FrameError)?;
    Ok((id, payload.get(len..).unwrap_or_default()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9000, appendix A.1.
    #[test]
    fn integers_of_the_rfc() {
        for (bytes, value) in [
            (&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c][..], 151_288_809_941_952_652),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15293),
            (&[0x25], 37),
        ] {
            assert_eq!(varint(bytes), Some((value, bytes.len())));
            assert_eq!(varint(&bytes[..bytes.len() - 1]), None);
            let mut out = Vec::new();
            push_varint(&mut out, value);
            assert_eq!((out.as_slice(), varint_len(value)), (bytes, bytes.len()));
        }
        assert_eq!(varint(&[0x40, 0x25]), Some((37, 2)));
    }

    #[test]
    fn settings_are_read_and_checked() {
        let mut out = Vec::new();
        push_settings(&mut out, &[(1, 4096), (7, 16), (0x21, 7)]);
        let (header, len) = Header::read(&out).expect("a header");
        assert_eq!((header.kind, header.len as usize), (kind::SETTINGS, out.len() - len));
        let read = Settings::read(&out[len..]);
        let want = Settings { table_capacity: 4096, blocked_streams: 16, ..Settings::default() };
        assert_eq!(read, Ok(want));
        assert_eq!(Settings::read(&[6]), Err(Code::FrameError));
        assert_eq!(Settings::read(&[6, 1, 6, 1]), Err(Code::SettingsError));
        assert_eq!(Settings::read(&[2, 1]), Err(Code::SettingsError));
        assert_eq!(Settings::read(&[8, 2]), Err(Code::SettingsError));
        let many: Vec<u8> =
            (0..=MAX_SETTINGS as u16).flat_map(|n| [0x60 | (n >> 8) as u8, n as u8, 0]).collect();
        assert_eq!(Settings::read(&many), Err(Code::ExcessiveLoad));
    }

    #[test]
    fn payloads_of_one_number() {
        assert_eq!(id(&[4]), Ok(4));
        assert_eq!(
            (id(&[]), id(&[4, 0]), id(&[0x40])),
            (Err(Code::FrameError), Err(Code::FrameError), Err(Code::FrameError))
        );
        assert_eq!(priority_update(b"\x04u=1"), Ok((4, &b"u=1"[..])));
        assert_eq!(priority_update(b""), Err(Code::FrameError));
    }
}
