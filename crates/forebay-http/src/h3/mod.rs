//! HTTP/3 (RFC 9114) and QPACK (RFC 9204): frames, settings, field compression, and the state of a connection. No I/O. Hot path.
//!
//! An end has a [`connection::Connection`] for what its requests share, and for each request an [`input::Input`] and an
//! [`output::Output`]. They move bytes by a [`transport::Transport`], the streams of QUIC. The server is in forebay-server, the
//! client of upstreams in forebay-proxy, and the load generator in forebay-bench.
//!
//! `connection/mod.rs` has what the requests of a connection share, `peer.rs` the control and QPACK streams, `tables.rs` the tables of
//! field compression, `budget.rs` what a peer may do in vain. A field section goes through `qpack.rs` to the same builder of heads as
//! HTTP/2's (`h2/request.rs`), and heads of sections that clients repeat are copied instead (`repeats.rs`).

pub mod budget;
mod buffers;
pub mod client;
pub mod connection;
pub mod encode;
pub mod encoder;
pub mod frame;
pub mod input;
pub mod output;
mod peer;
pub mod qpack;
pub mod repeats;
mod static_table;
pub mod tables;
pub mod transport;

/// Connection error of the peer (RFC 9114, section 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fatal {
    /// Code for the peer.
    pub code: Code,
    /// Text for the log, to be written after the name of the peer.
    pub reason: &'static str,
}

impl Fatal {
    /// Creates an error.
    pub const fn new(code: Code, reason: &'static str) -> Fatal {
        Fatal { code, reason }
    }
}

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

impl Code {
    /// Returns the number that QUIC carries.
    pub const fn number(self) -> u64 {
        self as u64
    }
}

/// Returns the name of an error code of a peer; `None` for one that no RFC named above knows.
pub fn code_name(code: u64) -> Option<&'static str> {
    Some(match code {
        0x100 => "H3_NO_ERROR",
        0x101 => "H3_GENERAL_PROTOCOL_ERROR",
        0x102 => "H3_INTERNAL_ERROR",
        0x103 => "H3_STREAM_CREATION_ERROR",
        0x104 => "H3_CLOSED_CRITICAL_STREAM",
        0x105 => "H3_FRAME_UNEXPECTED",
        0x106 => "H3_FRAME_ERROR",
        0x107 => "H3_EXCESSIVE_LOAD",
        0x108 => "H3_ID_ERROR",
        0x109 => "H3_SETTINGS_ERROR",
        0x10a => "H3_MISSING_SETTINGS",
        0x10b => "H3_REQUEST_REJECTED",
        0x10c => "H3_REQUEST_CANCELLED",
        0x10d => "H3_REQUEST_INCOMPLETE",
        0x10e => "H3_MESSAGE_ERROR",
        0x10f => "H3_CONNECT_ERROR",
        0x110 => "H3_VERSION_FALLBACK",
        0x200 => "QPACK_DECOMPRESSION_FAILED",
        0x201 => "QPACK_ENCODER_STREAM_ERROR",
        0x202 => "QPACK_DECODER_STREAM_ERROR",
        _ => return None,
    })
}
