//! Received frames, checked against the rules that hold for a single frame (RFC 9113, section 6). Hot path.

use super::frame::{Code, FrameHeader, MAX_FRAME, MAX_WINDOW, flag, kind, setting};

/// Our side of the connection. It decides which frames and settings the peer may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Role {
    Client,
    Server,
}

/// A frame of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Frame<'b> {
    /// `len`: bytes that count for flow control, padding included.
    Data {
        stream: u32,
        content: &'b [u8],
        len: usize,
        end_stream: bool,
    },
    /// The first fragment of a field block.
    Headers {
        section: Section,
        fragment: &'b [u8],
        end_headers: bool,
    },
    /// A further fragment, of the block that [`super::connection::FieldBlock`] gathers.
    Continuation {
        fragment: &'b [u8],
        end_headers: bool,
    },
    Priority,
    RstStream {
        stream: u32,
        code: u32,
    },
    Settings(Settings<'b>),
    SettingsAck,
    Ping {
        ack: bool,
        data: &'b [u8; 8],
    },
    /// `last`: the highest stream that the peer has handled or will handle.
    GoAway {
        last: u32,
        code: u32,
    },
    /// `stream` is 0 for the connection. The receiver judges an increment of 0, which ends the stream or the connection.
    WindowUpdate {
        stream: u32,
        increment: u32,
    },
    /// RFC 9218, section 7.1.
    PriorityUpdate {
        stream: u32,
        value: &'b [u8],
    },
    /// A frame that is to be ignored (RFC 9113, section 5.5).
    Unknown,
}

/// A field section (RFC 9113, section 8.1), as its HEADERS frame introduces it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Section {
    /// Stream, not 0.
    pub stream: u32,
    /// Nothing follows the section on its stream.
    pub end_stream: bool,
    /// The stream depends on itself. Priorities of this kind are deprecated (section 5.3.2); only this is an error.
    pub circular: bool,
}

/// A frame that breaks a rule: a connection error (RFC 9113, section 5.4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Violation {
    /// See [`kind`].
    pub kind: u8,
    /// The rule that the frame breaks.
    pub rule: Rule,
}

/// A rule for frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rule {
    /// A payload has at most SETTINGS_MAX_FRAME_SIZE bytes (section 4.2). This one has so many.
    MaxFrameSize(usize),
    /// A server begins with SETTINGS (section 3.4).
    SettingsFirst,
    /// Only CONTINUATION frames of its stream may follow a field block that has not ended (section 6.10).
    Contiguous,
    /// The frame may not be sent here: CONTINUATION without a block, any PUSH_PROMISE.
    Unexpected,
    /// The stream identifier fits the kind of frame.
    Stream,
    /// The length fits the kind of frame.
    Length,
    /// SETTINGS with the flag ACK is empty.
    AckLength,
    /// Padding is shorter than the payload (section 6.1). The code differs for a payload without a length of padding.
    Padding(Code),
    /// A stream does not depend on itself.
    Dependency,
    /// The value of this setting is allowed (section 6.5.2).
    Setting(u16),
}

impl Violation {
    /// Returns the error code for GOAWAY.
    pub fn code(&self) -> Code {
        match self.rule {
            Rule::MaxFrameSize(_) | Rule::Length | Rule::AckLength => Code::FrameSizeError,
            Rule::Padding(code) => code,
            Rule::Setting(setting::INITIAL_WINDOW_SIZE) => Code::FlowControlError,
            _ => Code::ProtocolError,
        }
    }
}

type Result<T> = std::result::Result<T, Violation>;

impl<'b> Frame<'b> {
    /// Reads the payload of a frame.
    ///
    /// # Errors
    /// [`Violation`] of a rule for this one frame.
    #[inline]
    pub fn read(header: &FrameHeader, payload: &'b [u8], role: Role) -> Result<Frame<'b>> {
        let received = Received { header, payload };
        match header.kind {
            kind::DATA => received.data(),
            kind::HEADERS => received.headers(role),
            kind::CONTINUATION => {
                Ok(Frame::Continuation { fragment: payload, end_headers: header.has(flag::END_HEADERS) })
            }
            kind::RST_STREAM => received.rst_stream(),
            kind::SETTINGS => received.settings(),
            kind::PUSH_PROMISE => received.breaks(Rule::Unexpected),
            kind::PING => received.ping(),
            kind::GOAWAY => received.goaway(),
            kind::WINDOW_UPDATE => received.window_update(),
            // Clients give priorities, servers do not.
            kind::PRIORITY if role == Role::Server => received.priority(),
            kind::PRIORITY_UPDATE if role == Role::Server => received.priority_update(),
            _ => Ok(Frame::Unknown),
        }
    }
}

/// A frame of any kind.
struct Received<'h, 'b> {
    header: &'h FrameHeader,
    payload: &'b [u8],
}

impl<'b> Received<'_, 'b> {
    fn breaks<T>(&self, rule: Rule) -> Result<T> {
        Err(Violation { kind: self.header.kind, rule })
    }

    fn check(&self, holds: bool, rule: Rule) -> Result<()> {
        if holds { Ok(()) } else { self.breaks(rule) }
    }

    /// Returns the payload without its padding (RFC 9113, section 6.1).
    fn unpadded(&self) -> Result<&'b [u8]> {
        if !self.header.has(flag::PADDED) {
            return Ok(self.payload);
        }
        let Some((pad, rest)) = self.payload.split_first() else {
            return self.breaks(Rule::Padding(Code::FrameSizeError));
        };
        match rest.len().checked_sub(usize::from(*pad)) {
            Some(len) => Ok(rest.get(..len).unwrap_or_default()),
            None => self.breaks(Rule::Padding(Code::ProtocolError)),
        }
    }

    #[inline]
    fn data(&self) -> Result<Frame<'b>> {
        self.check(self.header.stream != 0, Rule::Stream)?;
        Ok(Frame::Data {
            stream: self.header.stream,
            content: self.unpadded()?,
            // Padding counts for flow control (RFC 9113, section 6.1), so the receiver gets the whole length.
            len: self.payload.len(),
            end_stream: self.header.has(flag::END_STREAM),
        })
    }

    #[inline]
    fn headers(&self, role: Role) -> Result<Frame<'b>> {
        let stream = self.header.stream;
        // Clients open the streams with odd numbers (section 5.1.1). A client knows the streams that it has opened.
        self.check(stream != 0 && (role == Role::Client || !stream.is_multiple_of(2)), Rule::Stream)?;
        let mut fragment = self.unpadded()?;
        let mut circular = false;
        if self.header.has(flag::PRIORITY) {
            let Some((priority, rest)) = fragment.split_at_checked(5) else {
                return self.breaks(Rule::Length);
            };
            // The highest bit of the dependency is the exclusive flag.
            circular = number(priority).is_some_and(|on| on & LOW_31 == stream);
            fragment = rest;
        }
        let section = Section { stream, end_stream: self.header.has(flag::END_STREAM), circular };
        Ok(Frame::Headers { section, fragment, end_headers: self.header.has(flag::END_HEADERS) })
    }

    fn priority(&self) -> Result<Frame<'b>> {
        self.check(self.header.stream != 0, Rule::Stream)?;
        self.check(self.payload.len() == 5, Rule::Length)?;
        let itself = number(self.payload).is_some_and(|on| on & LOW_31 == self.header.stream);
        self.check(!itself, Rule::Dependency)?;
        Ok(Frame::Priority)
    }

    fn rst_stream(&self) -> Result<Frame<'b>> {
        let &[a, b, c, d] = self.payload else { return self.breaks(Rule::Length) };
        self.check(self.header.stream != 0, Rule::Stream)?;
        Ok(Frame::RstStream { stream: self.header.stream, code: u32::from_be_bytes([a, b, c, d]) })
    }

    fn settings(&self) -> Result<Frame<'b>> {
        self.check(self.header.stream == 0, Rule::Stream)?;
        if self.header.has(flag::ACK) {
            self.check(self.payload.is_empty(), Rule::AckLength)?;
            return Ok(Frame::SettingsAck);
        }
        self.check(self.payload.len().is_multiple_of(6), Rule::Length)?;
        Ok(Frame::Settings(Settings(self.payload)))
    }

    fn ping(&self) -> Result<Frame<'b>> {
        let Ok(data) = self.payload.try_into() else { return self.breaks(Rule::Length) };
        self.check(self.header.stream == 0, Rule::Stream)?;
        Ok(Frame::Ping { ack: self.header.has(flag::ACK), data })
    }

    fn goaway(&self) -> Result<Frame<'b>> {
        self.check(self.header.stream == 0, Rule::Stream)?;
        let code = self.payload.get(4..).and_then(number);
        let (Some(last), Some(code)) = (number(self.payload), code) else { return self.breaks(Rule::Length) };
        Ok(Frame::GoAway { last: last & LOW_31, code })
    }

    fn window_update(&self) -> Result<Frame<'b>> {
        let &[a, b, c, d] = self.payload else { return self.breaks(Rule::Length) };
        let increment = u32::from_be_bytes([a, b, c, d]) & LOW_31;
        Ok(Frame::WindowUpdate { stream: self.header.stream, increment })
    }

    fn priority_update(&self) -> Result<Frame<'b>> {
        let (Some(id), Some(value)) = (number(self.payload), self.payload.get(4..)) else {
            return self.breaks(Rule::Length);
        };
        let stream = id & LOW_31;
        self.check(self.header.stream == 0 && !stream.is_multiple_of(2), Rule::Stream)?;
        Ok(Frame::PriorityUpdate { stream, value })
    }
}

/// Bits of a stream identifier or window increment; the highest bit is reserved.
const LOW_31: u32 = 0x7fff_ffff;

fn number(payload: &[u8]) -> Option<u32> {
    payload.first_chunk::<4>().map(|b| u32::from_be_bytes(*b))
}

/// The payload of a SETTINGS frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings<'b>(&'b [u8]);

/// A setting that bounds what we send (RFC 9113, section 6.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Setting {
    HeaderTableSize(usize),
    MaxConcurrentStreams(usize),
    InitialWindowSize(u32),
    MaxFrameSize(usize),
    /// A setting that does not matter to us or is unknown.
    Other,
}

impl Settings<'_> {
    /// Returns the number of settings.
    pub fn count(&self) -> usize {
        self.0.len() / 6
    }

    /// Iterates over the settings. Items are [`Violation`]s where a value is not allowed to the peer of `role`.
    pub fn iter(&self, role: Role) -> impl Iterator<Item = Result<Setting>> {
        // The length is a multiple of 6: `Received::settings` has checked it.
        self.0.chunks_exact(6).filter_map(move |pair| {
            let (id, value) = pair.split_first_chunk::<2>()?;
            Some(Setting::read(u16::from_be_bytes(*id), number(value)?, role))
        })
    }
}

impl Setting {
    fn read(id: u16, value: u32, role: Role) -> Result<Setting> {
        if is_allowed(id, value, role) {
            Ok(Setting::new(id, value))
        } else {
            Err(Violation { kind: kind::SETTINGS, rule: Rule::Setting(id) })
        }
    }

    fn new(id: u16, value: u32) -> Setting {
        let size = value as usize;
        match id {
            setting::HEADER_TABLE_SIZE => Setting::HeaderTableSize(size),
            setting::MAX_CONCURRENT_STREAMS => Setting::MaxConcurrentStreams(size),
            setting::INITIAL_WINDOW_SIZE => Setting::InitialWindowSize(value),
            setting::MAX_FRAME_SIZE => Setting::MaxFrameSize(size),
            _ => Setting::Other,
        }
    }
}

/// Returns `true` if the peer of `role` may send this value (RFC 9113, section 6.5.2).
fn is_allowed(id: u16, value: u32, role: Role) -> bool {
    match id {
        // A server may only say that it does not push.
        setting::ENABLE_PUSH => value <= u32::from(role == Role::Server),
        setting::INITIAL_WINDOW_SIZE => i64::from(value) <= MAX_WINDOW,
        // From 2^14, which is MAX_FRAME, to 2^24 - 1 (RFC 9113, section 6.5.2).
        setting::MAX_FRAME_SIZE => (MAX_FRAME..1 << 24).contains(&(value as usize)),
        setting::NO_RFC7540_PRIORITIES => value <= 1 || role == Role::Client,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame;
    use super::*;

    fn read(kind: u8, flags: u8, stream: u32, payload: &[u8], role: Role) -> Result<Frame<'_>> {
        Frame::read(&FrameHeader { len: payload.len(), kind, flags, stream }, payload, role)
    }

    fn rule(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Rule {
        read(kind, flags, stream, payload, Role::Server).expect_err("a violation").rule
    }

    #[test]
    fn padding_counts_but_is_no_content() {
        let data = |payload| read(kind::DATA, flag::PADDED, 1, payload, Role::Client);
        let want = |content, len| Ok(Frame::Data { stream: 1, content, len, end_stream: false });
        assert_eq!(data(&[2, b'a', 0, 0]), want(b"a", 4));
        assert_eq!(data(&[3, 0, 0, 0]), want(b"", 4));
        let broken = |code| Err(Violation { kind: kind::DATA, rule: Rule::Padding(code) });
        assert_eq!(data(&[4, 0, 0, 0]), broken(Code::ProtocolError));
        assert_eq!(data(&[]), broken(Code::FrameSizeError));
    }

    #[test]
    fn headers_with_a_priority() {
        let headers = |payload| read(kind::HEADERS, flag::PRIORITY, 3, payload, Role::Server);
        let want = |circular| {
            let section = Section { stream: 3, end_stream: false, circular };
            Ok(Frame::Headers { section, fragment: b"x", end_headers: false })
        };
        assert_eq!(headers(&[0x80, 0, 0, 1, 9, b'x']), want(false));
        assert_eq!(headers(&[0x80, 0, 0, 3, 9, b'x']), want(true));
        assert_eq!(headers(&[0, 0, 0, 1]).map_err(|v| v.code()), Err(Code::FrameSizeError));
        assert_eq!(rule(kind::HEADERS, 0, 2, b""), Rule::Stream);
        assert!(read(kind::HEADERS, 0, 2, b"", Role::Client).is_ok());
    }

    #[test]
    fn lengths_and_identifiers() {
        for (kind, flags, stream, payload, broken) in [
            (kind::DATA, 0, 0, &b""[..], Rule::Stream),
            (kind::PRIORITY, 0, 0, b"", Rule::Stream),
            (kind::PRIORITY, 0, 1, b"1234", Rule::Length),
            (kind::PRIORITY, 0, 1, &[0, 0, 0, 1, 0], Rule::Dependency),
            (kind::RST_STREAM, 0, 1, b"12345", Rule::Length),
            (kind::RST_STREAM, 0, 0, b"1234", Rule::Stream),
            (kind::SETTINGS, 0, 1, b"", Rule::Stream),
            (kind::SETTINGS, 0, 0, b"12345", Rule::Length),
            (kind::SETTINGS, flag::ACK, 0, b"123456", Rule::AckLength),
            (kind::PUSH_PROMISE, 0, 1, b"", Rule::Unexpected),
            (kind::PING, 0, 0, b"1234567", Rule::Length),
            (kind::PING, 0, 1, b"12345678", Rule::Stream),
            (kind::GOAWAY, 0, 1, b"12345678", Rule::Stream),
            (kind::GOAWAY, 0, 0, b"1234567", Rule::Length),
            (kind::WINDOW_UPDATE, 0, 0, b"12345", Rule::Length),
            (kind::PRIORITY_UPDATE, 0, 0, b"123", Rule::Length),
            (kind::PRIORITY_UPDATE, 0, 0, &[0, 0, 0, 2], Rule::Stream),
        ] {
            assert_eq!(rule(kind, flags, stream, payload), broken, "{kind}");
        }
    }

    #[test]
    fn only_clients_give_priorities() {
        for kind in [kind::PRIORITY, kind::PRIORITY_UPDATE] {
            assert_eq!(read(kind, 0, 0, b"", Role::Client), Ok(Frame::Unknown));
        }
        let update = read(kind::PRIORITY_UPDATE, 0, 0, b"\0\0\0\x03u=1", Role::Server);
        assert_eq!(update, Ok(Frame::PriorityUpdate { stream: 3, value: b"u=1" }));
    }

    #[test]
    fn settings_come_out_as_they_went_in() {
        let mut out = Vec::new();
        frame::push_settings(&mut out, &[(setting::MAX_FRAME_SIZE, 16384), (99, 1)]);
        let Ok(Frame::Settings(settings)) =
            read(kind::SETTINGS, 0, 0, &out[frame::HEADER_LEN..], Role::Client)
        else {
            panic!("no settings in {out:?}")
        };
        assert_eq!(settings.count(), 2);
        let got: Result<Vec<_>> = settings.iter(Role::Client).collect();
        assert_eq!(got, Ok(vec![Setting::MaxFrameSize(16384), Setting::Other]));
    }

    #[test]
    fn values_of_settings_are_checked() {
        let allowed = |id, value, role| Setting::read(id, value, role).map_err(|v| v.code());
        let refused = Err(Code::ProtocolError);
        assert_eq!(allowed(setting::ENABLE_PUSH, 1, Role::Server), Ok(Setting::Other));
        assert_eq!(allowed(setting::ENABLE_PUSH, 2, Role::Server), refused);
        assert_eq!(allowed(setting::ENABLE_PUSH, 1, Role::Client), refused);
        assert_eq!(allowed(setting::NO_RFC7540_PRIORITIES, 2, Role::Server), refused);
        assert_eq!(allowed(setting::NO_RFC7540_PRIORITIES, 2, Role::Client), Ok(Setting::Other));
        assert_eq!(allowed(setting::MAX_FRAME_SIZE, 16383, Role::Client), refused);
        assert_eq!(allowed(setting::MAX_FRAME_SIZE, 1 << 24, Role::Client), refused);
        assert_eq!(allowed(setting::INITIAL_WINDOW_SIZE, 1 << 31, Role::Server), Err(Code::FlowControlError));
    }
}
