//! Errors that end a connection (RFC 9000, sections 11 and 20).

use std::borrow::Cow;
use std::fmt;

/// Error code of the transport (RFC 9000, section 20.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Code(pub u64);

impl Code {
    /// Nothing is wrong.
    pub const NO_ERROR: Code = Code(0x0);
    /// An error of this side.
    pub const INTERNAL_ERROR: Code = Code(0x1);
    /// The server takes no new connection.
    pub const CONNECTION_REFUSED: Code = Code(0x2);
    /// More content than flow control allows.
    pub const FLOW_CONTROL_ERROR: Code = Code(0x3);
    /// More streams than are allowed.
    pub const STREAM_LIMIT_ERROR: Code = Code(0x4);
    /// A frame for a stream that may not get it.
    pub const STREAM_STATE_ERROR: Code = Code(0x5);
    /// The final size of a stream changed, or content lies behind it.
    pub const FINAL_SIZE_ERROR: Code = Code(0x6);
    /// A malformed frame.
    pub const FRAME_ENCODING_ERROR: Code = Code(0x7);
    /// Malformed or forbidden transport parameters.
    pub const TRANSPORT_PARAMETER_ERROR: Code = Code(0x8);
    /// More connection identifiers than are allowed.
    pub const CONNECTION_ID_LIMIT_ERROR: Code = Code(0x9);
    /// Another violation of the protocol.
    pub const PROTOCOL_VIOLATION: Code = Code(0xa);
    /// The token of an Initial packet is not one of the server.
    pub const INVALID_TOKEN: Code = Code(0xb);
    /// The application ended the connection during the handshake.
    pub const APPLICATION_ERROR: Code = Code(0xc);
    /// More of the handshake than can be kept.
    pub const CRYPTO_BUFFER_EXCEEDED: Code = Code(0xd);
    /// A wrong update of keys.
    pub const KEY_UPDATE_ERROR: Code = Code(0xe);
    /// The keys have protected as many packets as they may.
    pub const AEAD_LIMIT_REACHED: Code = Code(0xf);
    /// No path is left.
    pub const NO_VIABLE_PATH: Code = Code(0x10);
    /// The negotiation of a version was tampered with (RFC 9368, section 8).
    pub const VERSION_NEGOTIATION_ERROR: Code = Code(0x11);

    /// Returns the code of an alert of TLS (RFC 9001, section 4.8).
    pub const fn crypto(alert: u8) -> Code {
        Code(0x100 | alert as u64)
    }

    /// Returns the alert of TLS that the code stands for.
    pub fn alert(self) -> Option<u8> {
        u8::try_from(self.0 ^ 0x100).ok()
    }

    /// Returns its name in RFC 9000.
    fn name(self) -> Option<&'static str> {
        Some(match self {
            Code::NO_ERROR => "NO_ERROR",
            Code::INTERNAL_ERROR => "INTERNAL_ERROR",
            Code::CONNECTION_REFUSED => "CONNECTION_REFUSED",
            Code::FLOW_CONTROL_ERROR => "FLOW_CONTROL_ERROR",
            Code::STREAM_LIMIT_ERROR => "STREAM_LIMIT_ERROR",
            Code::STREAM_STATE_ERROR => "STREAM_STATE_ERROR",
            Code::FINAL_SIZE_ERROR => "FINAL_SIZE_ERROR",
            Code::FRAME_ENCODING_ERROR => "FRAME_ENCODING_ERROR",
            Code::TRANSPORT_PARAMETER_ERROR => "TRANSPORT_PARAMETER_ERROR",
            Code::CONNECTION_ID_LIMIT_ERROR => "CONNECTION_ID_LIMIT_ERROR",
            Code::PROTOCOL_VIOLATION => "PROTOCOL_VIOLATION",
            Code::INVALID_TOKEN => "INVALID_TOKEN",
            Code::APPLICATION_ERROR => "APPLICATION_ERROR",
            Code::CRYPTO_BUFFER_EXCEEDED => "CRYPTO_BUFFER_EXCEEDED",
            Code::KEY_UPDATE_ERROR => "KEY_UPDATE_ERROR",
            Code::AEAD_LIMIT_REACHED => "AEAD_LIMIT_REACHED",
            Code::NO_VIABLE_PATH => "NO_VIABLE_PATH",
            Code::VERSION_NEGOTIATION_ERROR => "VERSION_NEGOTIATION_ERROR",
            _ => return None,
        })
    }
}

impl fmt::Debug for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.name(), self.alert()) {
            (Some(name), _) => f.write_str(name),
            (None, Some(alert)) => write!(f, "alert {alert} of TLS"),
            (None, None) => write!(f, "error {:#x}", self.0),
        }
    }
}

/// Error for which this side closes a connection with a CONNECTION_CLOSE frame of the transport (type 0x1c).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// Error code.
    pub code: Code,
    /// Type of the frame that caused it; 0 if none did or it is not known.
    pub frame: u64,
    /// Reason for people. It goes to the peer, too.
    pub reason: Cow<'static, str>,
}

impl Error {
    /// Creates an error that no frame has caused yet, see [`Error::in_frame`].
    pub const fn new(code: Code, reason: &'static str) -> Error {
        Error { code, frame: 0, reason: Cow::Borrowed(reason) }
    }

    /// Names the type of the frame that caused it, if none is named yet.
    #[must_use]
    pub fn in_frame(mut self, kind: u64) -> Error {
        if self.frame == 0 {
            self.frame = kind;
        }
        self
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.code)?;
        if !self.reason.is_empty() {
            write!(f, ": {}", self.reason)?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_have_names() {
        assert_eq!(Code::FINAL_SIZE_ERROR.to_string(), "FINAL_SIZE_ERROR");
        assert_eq!(Code::crypto(40).to_string(), "alert 40 of TLS");
        assert_eq!(
            (Code::crypto(40).alert(), Code(0x200).alert(), Code(0x10).alert()),
            (Some(40), None, None)
        );
        assert_eq!(Code(0x200).to_string(), "error 0x200");
    }

    #[test]
    fn the_first_frame_is_named() {
        let error = Error::new(Code::PROTOCOL_VIOLATION, "wrong").in_frame(6).in_frame(8);
        assert_eq!((error.frame, error.to_string().as_str()), (6, "PROTOCOL_VIOLATION: wrong"));
    }
}
