//! Failures of requests and of connections over HTTP/2 to upstreams.

use super::super::client::BadBlock;
use super::super::frame::{Code, kind, setting};
use super::super::received::{Rule, Violation};
use std::borrow::Cow;

/// A failure of a request. Others on the connection go on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Text for the error log, to be written behind "upstream ".
    pub text: Cow<'static, str>,
    /// The server has certainly not acted upon the request (GOAWAY below its stream, REFUSED_STREAM).
    pub unsent: bool,
}

/// A failure of the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fatal {
    /// Text for the error log, to be written behind "upstream ".
    pub text: Cow<'static, str>,
    /// Code for GOAWAY.
    pub code: Code,
}

pub(super) fn problem(text: impl Into<Cow<'static, str>>) -> Problem {
    Problem { text: text.into(), unsent: false }
}

/// Returns the failure of a connection whose server breaks the protocol.
pub(super) fn fatal(text: impl Into<Cow<'static, str>>) -> Fatal {
    Fatal { text: text.into(), code: Code::ProtocolError }
}

impl From<Violation> for Fatal {
    fn from(v: Violation) -> Fatal {
        Fatal { text: text_of(v), code: v.code() }
    }
}

/// Returns the text about a frame that breaks a rule.
fn text_of(v: Violation) -> Cow<'static, str> {
    match (v.rule, v.kind) {
        (Rule::MaxFrameSize(len), _) => return format!("sent too large http2 frame: {len}").into(),
        (Rule::SettingsFirst, _) => "sent no SETTINGS frame first, it may not speak http2",
        (Rule::Contiguous, _) => "sent unexpected frame inside a field block",
        (Rule::Unexpected, kind::CONTINUATION) => "sent unexpected CONTINUATION frame",
        (Rule::Unexpected, _) => "sent unexpected PUSH_PROMISE frame",
        (Rule::Padding(_), _) => "sent http2 frame with invalid padding",
        (Rule::Stream, kind::DATA | kind::HEADERS) => "sent frame for unknown stream 0",
        (Rule::Setting(setting::INITIAL_WINDOW_SIZE), _) => {
            "sent SETTINGS frame with too large initial window"
        }
        (Rule::Setting(setting::MAX_FRAME_SIZE), _) => "sent SETTINGS frame with invalid max frame size",
        (Rule::Setting(_), _) => "sent SETTINGS frame that enables push",
        (_, kind::HEADERS) => "sent too short http2 HEADERS frame",
        (_, kind::RST_STREAM) => "sent invalid RST_STREAM frame",
        (_, kind::SETTINGS) => "sent invalid SETTINGS frame",
        (_, kind::PING) => "sent invalid PING frame",
        (_, kind::GOAWAY) => "sent invalid GOAWAY frame",
        (_, _) => "sent invalid WINDOW_UPDATE frame",
    }
    .into()
}

/// Returns the problem of a malformed head.
pub(super) fn of_block(bad: BadBlock) -> Problem {
    match bad {
        BadBlock::Compression => problem("sent invalid http2 header block"),
        BadBlock::TooLarge => problem("sent too big header"),
        BadBlock::Malformed(what) => problem(format!("sent invalid {what}")),
    }
}
