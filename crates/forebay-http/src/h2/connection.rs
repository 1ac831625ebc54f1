//! The state of an HTTP/2 connection that its two ends have in common (RFC 9113). No I/O. Hot path.
//!
//! An end passes received bytes to [`Connection::read`] and gets one [`Frame`] at a time, checked against the rules for
//! frames and for their order. It then acts on the frame:
//!
//! - HEADERS and CONTINUATION: fragments are gathered in [`Connection::field_block`], unless HEADERS has all of the block.
//! - DATA and WINDOW_UPDATE: [`Window`]s count the bytes that may be sent and received (section 5.2). The windows of the
//!   connection are here, the windows of streams where the end keeps its streams.
//! - SETTINGS: [`Connection::set_initial_window`] returns the change of the windows of streams (section 6.9.2).
//!
//! Streams, HPACK, the bytes that are to be written and the limits for peers that send too much belong to the ends: the
//! server is in forebay-server, the client of upstreams in [`super::link`], the load generator in forebay-bench.

use super::frame::{self, FrameHeader, INITIAL_WINDOW, MAX_FRAME, flag, kind};
use super::received::{Frame, Role, Rule, Section, Violation};

/// An end's view of a connection.
#[derive(Debug)]
pub struct Connection {
    role: Role,
    /// The peer has sent its SETTINGS.
    settings_came: bool,
    /// SETTINGS_INITIAL_WINDOW_SIZE of the peer: send window of a new stream.
    initial_window: Window,
    /// Bytes of content that may be sent on all streams together.
    pub send_window: Window,
    /// Bytes of content that the peer may send on all streams together.
    pub recv_window: Window,
    /// The field block that is being received.
    pub field_block: FieldBlock,
}

impl Connection {
    /// Begins a connection. `recv_window`: the window that this end announces, bytes.
    pub fn new(role: Role, recv_window: u32) -> Connection {
        Connection {
            role,
            settings_came: false,
            initial_window: Window::INITIAL,
            send_window: Window::INITIAL,
            recv_window: Window::new(recv_window),
            field_block: FieldBlock::default(),
        }
    }

    /// Reads the frame at the start of `bytes`. Returns it with its length, header included; `None` while it is incomplete.
    ///
    /// # Errors
    /// [`Violation`], where possible by the header alone.
    #[inline]
    pub fn read<'b>(&mut self, bytes: &'b [u8]) -> Result<Option<(Frame<'b>, usize)>, Violation> {
        let Some(header) = FrameHeader::parse(bytes) else { return Ok(None) };
        // Before the payload is there: a frame that is refused must not be waited for.
        self.admit(&header)?;
        let end = frame::HEADER_LEN + header.len;
        let Some(payload) = bytes.get(frame::HEADER_LEN..end) else { return Ok(None) };
        Ok(Some((self.frame(&header, payload)?, end)))
    }

    /// Reads the payload of a frame whose header was admitted.
    ///
    /// # Errors
    /// [`Violation`] of a rule for this one frame.
    #[inline]
    pub fn frame<'b>(&mut self, header: &FrameHeader, payload: &'b [u8]) -> Result<Frame<'b>, Violation> {
        let frame = Frame::read(header, payload, self.role)?;
        self.settings_came |= header.kind == kind::SETTINGS;
        Ok(frame)
    }

    /// Checks whether a frame with this header may come now.
    ///
    /// # Errors
    /// [`Violation`] of a rule about the size or the order of frames.
    #[inline]
    pub fn admit(&self, header: &FrameHeader) -> Result<(), Violation> {
        let breaks = |rule| Err(Violation { kind: header.kind, rule });
        if header.len > MAX_FRAME {
            return breaks(Rule::MaxFrameSize(header.len));
        }
        // Clients that send no SETTINGS are served, as by nginx.
        if !self.settings_came
            && self.role == Role::Client
            && (header.kind != kind::SETTINGS || header.has(flag::ACK))
        {
            return breaks(Rule::SettingsFirst);
        }
        match (self.field_block.stream(), header.kind) {
            (None, kind::CONTINUATION) => breaks(Rule::Unexpected),
            (Some(stream), kind) if kind != kind::CONTINUATION || header.stream != stream => {
                breaks(Rule::Contiguous)
            }
            _ => Ok(()),
        }
    }

    /// Returns `true` if the peer has sent its SETTINGS.
    pub fn has_settings(&self) -> bool {
        self.settings_came
    }

    /// Returns the send window of a new stream.
    pub fn initial_window(&self) -> Window {
        self.initial_window
    }

    /// Takes over SETTINGS_INITIAL_WINDOW_SIZE of the peer. Returns the change, for the windows of open streams.
    pub fn set_initial_window(&mut self, size: u32) -> i64 {
        let before = std::mem::replace(&mut self.initial_window, Window::new(size));
        i64::from(self.initial_window.0) - i64::from(before.0)
    }
}

/// A field block in more than one frame (RFC 9113, section 4.3). The end that gathers limits it.
#[derive(Debug, Default)]
pub struct FieldBlock {
    section: Option<Section>,
    bytes: Vec<u8>,
    continuations: u32,
    empty: u32,
}

/// Largest buffer for field blocks that is kept, bytes: every idle connection would have one.
const KEPT: usize = 1024;

impl FieldBlock {
    /// Begins a block with the fragment of its HEADERS frame.
    pub fn begin(&mut self, section: Section, fragment: &[u8]) {
        (self.section, self.continuations, self.empty) = (Some(section), 0, 0);
        self.bytes.clear();
        self.bytes.extend_from_slice(fragment);
    }

    /// Appends the fragment of a CONTINUATION frame.
    pub fn extend(&mut self, fragment: &[u8]) {
        self.continuations += 1;
        self.empty += u32::from(fragment.is_empty());
        self.bytes.extend_from_slice(fragment);
    }

    /// Returns the whole block. Its buffer should come back with [`FieldBlock::recycle`].
    pub fn finish(&mut self) -> Option<(Section, Vec<u8>)> {
        // Without a section, frames of other kinds may come again.
        Some((self.section.take()?, std::mem::take(&mut self.bytes)))
    }

    /// Keeps the buffer of a block for the next one, unless it is large.
    pub fn recycle(&mut self, buffer: Vec<u8>) {
        if buffer.capacity() <= KEPT {
            self.bytes = buffer;
        }
    }

    /// Returns the stream of the block that is being received; `None` between blocks.
    pub fn stream(&self) -> Option<u32> {
        self.section.map(|s| s.stream)
    }

    /// Returns the number of bytes so far.
    #[allow(clippy::len_without_is_empty, reason = "an empty block is like any other")]
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns the number of CONTINUATION frames so far.
    pub fn continuations(&self) -> u32 {
        self.continuations
    }

    /// Returns the number of CONTINUATION frames without content so far.
    pub fn empty_continuations(&self) -> u32 {
        self.empty
    }
}

/// A flow-control window (RFC 9113, section 5.2): bytes that may be sent, or that the peer may send. A send window is below 0
/// after the peer has made its initial window smaller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window(i32);

/// The peer has sent more than its window allows, or has made ours larger than a window may be: FLOW_CONTROL_ERROR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowControlError;

impl Window {
    /// The window of a new connection (RFC 9113, section 6.9.2).
    pub const INITIAL: Window = Window(INITIAL_WINDOW as i32);

    /// Creates a window of `size` bytes, or the largest one.
    pub fn new(size: u32) -> Window {
        Window(i32::try_from(size).unwrap_or(i32::MAX))
    }

    /// Returns the number of bytes that may be sent.
    #[inline]
    pub fn available(self) -> usize {
        usize::try_from(self.0).unwrap_or(0)
    }

    /// Counts bytes that are sent, at most those that are available.
    #[inline]
    pub fn sent(&mut self, n: usize) {
        // `n` is at most what is available: it fits, and the window stays at 0 or above.
        self.0 -= n as i32;
    }

    /// Counts bytes of a received frame.
    ///
    /// # Errors
    /// The frame has more bytes than the window allows.
    #[inline]
    pub fn received(&mut self, n: usize) -> Result<(), FlowControlError> {
        if n > self.available() {
            return Err(FlowControlError);
        }
        self.0 -= n as i32;
        Ok(())
    }

    /// Changes the window: by the increment of a WINDOW_UPDATE, or by the change of the initial window.
    ///
    /// # Errors
    /// The window would be larger than 2^31 - 1 bytes (RFC 9113, section 6.9.1).
    pub fn widen(&mut self, change: i64) -> Result<(), FlowControlError> {
        // It cannot be below -MAX_WINDOW: before the initial window shrinks, no window is below 0.
        self.0 = i32::try_from(i64::from(self.0) + change).map_err(|_| FlowControlError)?;
        Ok(())
    }

    /// Opens the window to `size` again when less than half of it is left. Returns the increment for WINDOW_UPDATE.
    pub fn refill(&mut self, size: u32) -> Option<u32> {
        let left = self.available() as u32;
        // A WINDOW_UPDATE for each DATA frame would double the number of frames.
        if left >= size / 2 {
            return None;
        }
        *self = Window::new(size);
        Some(size - left)
    }
}

#[cfg(test)]
mod tests {
    use super::super::frame::{MAX_WINDOW, push_header};
    use super::*;

    fn bytes(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        push_header(&mut out, payload.len(), kind, flags, stream);
        [out, payload.to_vec()].concat()
    }

    #[test]
    fn frames_come_out_when_they_are_whole() {
        let mut c = Connection::new(Role::Server, 0);
        let ping = bytes(kind::PING, 0, 0, b"12345678");
        for part in 0..ping.len() {
            assert_eq!(c.read(&ping[..part]), Ok(None));
        }
        let two = [&ping[..], &ping[..]].concat();
        assert_eq!(c.read(&two), Ok(Some((Frame::Ping { ack: false, data: b"12345678" }, ping.len()))));
    }

    #[test]
    fn a_frame_that_is_too_large_is_refused_by_its_header() {
        let header = FrameHeader { len: MAX_FRAME + 1, kind: 99, flags: 0, stream: 0 };
        let refused = Err(Violation { kind: 99, rule: Rule::MaxFrameSize(MAX_FRAME + 1) });
        assert_eq!(Connection::new(Role::Server, 0).read(&header.bytes()), refused);
    }

    #[test]
    fn servers_begin_with_settings() {
        let settings = bytes(kind::SETTINGS, 0, 0, b"");
        let ack = bytes(kind::SETTINGS, flag::ACK, 0, b"");
        let mut client = Connection::new(Role::Client, 0);
        assert_eq!(client.read(&ack).map_err(|v| v.rule), Err(Rule::SettingsFirst));
        assert!(client.read(&settings).is_ok() && client.has_settings());
        assert_eq!(client.read(&ack), Ok(Some((Frame::SettingsAck, ack.len()))));
        assert!(Connection::new(Role::Server, 0).read(&ack).is_ok());
    }

    #[test]
    fn field_blocks_are_contiguous() {
        let mut c = Connection::new(Role::Server, 0);
        let more = bytes(kind::CONTINUATION, flag::END_HEADERS, 1, b"b");
        assert_eq!(c.read(&more).map_err(|v| v.rule), Err(Rule::Unexpected));
        let section = Section { stream: 1, end_stream: true, circular: false };
        c.field_block.begin(section, b"a");
        for other in [bytes(kind::PING, 0, 0, b"12345678"), bytes(kind::CONTINUATION, 0, 3, b"b")] {
            assert_eq!(c.read(&other).map_err(|v| v.rule), Err(Rule::Contiguous));
        }
        let Ok(Some((Frame::Continuation { fragment, end_headers: true }, _))) = c.read(&more) else {
            panic!("no CONTINUATION")
        };
        c.field_block.extend(fragment);
        c.field_block.extend(b"");
        let block = &c.field_block;
        assert_eq!((block.len(), block.continuations(), block.empty_continuations()), (2, 2, 1));
        assert_eq!(c.field_block.finish(), Some((section, b"ab".to_vec())));
        assert_eq!(c.field_block.stream(), None);
    }

    #[test]
    fn windows() {
        let mut w = Window::new(10);
        assert_eq!((w.received(6), w.available()), (Ok(()), 4));
        assert_eq!((w.refill(10), w.refill(10)), (Some(6), None));
        assert_eq!(w.received(11), Err(FlowControlError));
        let mut w = Window::INITIAL;
        assert_eq!((w.widen(-INITIAL_WINDOW - 5), w.available()), (Ok(()), 0));
        assert_eq!((w.widen(MAX_WINDOW + 5), w.widen(1)), (Ok(()), Err(FlowControlError)));
        let mut c = Connection::new(Role::Client, 0);
        assert_eq!((c.set_initial_window(10), c.set_initial_window(30)), (10 - INITIAL_WINDOW, 20));
    }
}
