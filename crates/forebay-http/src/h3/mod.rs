//! HTTP/3 (RFC 9114) and QPACK (RFC 9204): frames, settings, field compression. No I/O. Hot path.

pub mod encode;
pub mod frame;
pub mod qpack;
mod static_table;

/// Error codes of HTTP/3 (RFC 9114, section 8.1) and QPACK (RFC 9204, section 6).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
#[repr(u32)]
pub enum Code {
    NoError = 0x100,
    GeneralProtocolError = 0x101,
    InternalError = 0x102,
    StreamCreationError = 0x103,
    ClosedCriticalStream = 0x104,
    FrameUnexpected = 0x105,
    FrameError = 0x106,
    ExcessiveLoad = 0x107,
    IdError = 0x108,
    SettingsError = 0x109,
    MissingSettings = 0x10a,
    RequestRejected = 0x10b,
    RequestCancelled = 0x10c,
    RequestIncomplete = 0x10d,
    MessageError = 0x10e,
    ConnectError = 0x10f,
    VersionFallback = 0x110,
    DecompressionFailed = 0x200,
    EncoderStreamError = 0x201,
    DecoderStreamError = 0x202,
}
