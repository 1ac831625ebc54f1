//! The client's end of an HTTP/2 connection to an upstream server (RFC 9113). It carries one stream at a time. No I/O: received
//! bytes are given in, bytes to be written are taken out. Hot path.

use super::client::{self, BadBlock, Block};
use super::connection::{Connection, Window};
use super::frame::{self, Code, INITIAL_WINDOW, MAX_FRAME, flag, kind, setting};
use super::hpack::{Decoder, TABLE_SIZE};
use super::received::{Frame, Role, Rule, Section, Setting, Settings, Violation};
use std::borrow::Cow;
use std::collections::VecDeque;

/// Window for the content of a response, bytes. A server may send so much while the request is still being sent.
const WINDOW: u32 = 256 * 1024;

/// Bytes of frames waiting to be written beyond which no more content is put behind them.
const OUT: usize = 64 * 1024;

/// Bytes that acknowledgements of PING and SETTINGS may take in addition. A server that sends more of those frames and does
/// not read ends the exchange.
const CONTROL: usize = 64 * 1024;

/// Most interim responses (RFC 9110, section 15.2) that wait for being read.
const MAX_INTERIM: usize = 100;

/// Last stream of a connection, far below the highest identifier.
const LAST_STREAM: u32 = 1 << 30;

/// A failure that ends the exchange and the connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Text for the error log, to be written behind "upstream ".
    pub text: Cow<'static, str>,
    /// The server has certainly not acted upon the request (GOAWAY below its stream, REFUSED_STREAM).
    pub unsent: bool,
}

fn problem(text: impl Into<Cow<'static, str>>) -> Problem {
    Problem { text: text.into(), unsent: false }
}

impl From<Violation> for Problem {
    fn from(v: Violation) -> Problem {
        match (v.rule, v.kind) {
            (Rule::MaxFrameSize(len), _) => problem(format!("sent too large http2 frame: {len}")),
            (Rule::SettingsFirst, _) => problem("sent no SETTINGS frame first, it may not speak http2"),
            (Rule::Contiguous, _) => problem("sent unexpected frame inside a field block"),
            (Rule::Unexpected, kind::CONTINUATION) => problem("sent unexpected CONTINUATION frame"),
            (Rule::Unexpected, _) => problem("sent unexpected PUSH_PROMISE frame"),
            (Rule::Padding(_), _) => problem("sent http2 frame with invalid padding"),
            (Rule::Stream, kind::DATA | kind::HEADERS) => problem("sent frame for unknown stream 0"),
            (Rule::Setting(setting::INITIAL_WINDOW_SIZE), _) => {
                problem("sent SETTINGS frame with too large initial window")
            }
            (Rule::Setting(setting::MAX_FRAME_SIZE), _) => {
                problem("sent SETTINGS frame with invalid max frame size")
            }
            (Rule::Setting(_), _) => problem("sent SETTINGS frame that enables push"),
            (_, kind::HEADERS) => problem("sent too short http2 HEADERS frame"),
            (_, kind::RST_STREAM) => problem("sent invalid RST_STREAM frame"),
            (_, kind::SETTINGS) => problem("sent invalid SETTINGS frame"),
            (_, kind::PING) => problem("sent invalid PING frame"),
            (_, kind::GOAWAY) => problem("sent invalid GOAWAY frame"),
            (_, _) => problem("sent invalid WINDOW_UPDATE frame"),
        }
    }
}

impl From<BadBlock> for Problem {
    fn from(bad: BadBlock) -> Problem {
        match bad {
            BadBlock::Compression => problem("sent invalid http2 header block"),
            BadBlock::TooLarge => problem("sent too big header"),
            BadBlock::Malformed(what) => problem(format!("sent invalid {what}")),
        }
    }
}

/// A request to be sent.
#[derive(Clone, Copy, Debug)]
pub struct Request<'h> {
    /// HTTP/1 head.
    pub head: &'h [u8],
    /// Its scheme is `https`.
    pub https: bool,
    /// `te: trailers` is sent even where the head has no such field.
    pub trailers: bool,
    /// It has no content.
    pub end: bool,
    /// Most bytes of a head of the response.
    pub limit: usize,
}

/// A connection and the stream on it.
#[derive(Debug)]
pub struct Link {
    connection: Connection,
    decoder: Decoder,
    /// Memory for decoding, and for the field block of a request.
    scratch: Vec<u8>,
    /// The beginning of an incomplete frame.
    input: Vec<u8>,
    /// Frames to be written.
    out: Vec<u8>,
    /// Heads of the response that have not been taken, interim ones first, as HTTP/1 heads.
    heads: VecDeque<Vec<u8>>,
    trailers: Vec<u8>,
    /// Most bytes of a head.
    limit: usize,
    /// Identifier of the stream; 0 before the first one.
    stream: u32,
    /// Content of the request that the server takes on the stream.
    send_window: Window,
    /// Content of the response that the server may send on the stream.
    recv_window: Window,
    final_head: bool,
    sent_end: bool,
    ended: bool,
    reset: bool,
    /// The server has sent GOAWAY.
    leaving: bool,
    /// The server wants a smaller HPACK table than is the default. The next field block has to begin with a size of 0.
    shrink: bool,
}

impl Default for Link {
    fn default() -> Self {
        let mut out = frame::PREFACE.to_vec();
        frame::push_settings(
            &mut out,
            &[
                // Without a table an idle connection costs next to nothing.
                (setting::HEADER_TABLE_SIZE, 0),
                (setting::ENABLE_PUSH, 0),
                (setting::INITIAL_WINDOW_SIZE, WINDOW),
            ],
        );
        // The setting above counts for streams only; the window of the connection needs a frame (RFC 9113, section
        // 6.9.2).
        frame::push_window_update(&mut out, 0, WINDOW - INITIAL_WINDOW as u32);
        Link {
            connection: Connection::new(Role::Client, WINDOW),
            decoder: Decoder::lenient(),
            scratch: Vec::new(),
            input: Vec::new(),
            out,
            heads: VecDeque::new(),
            trailers: Vec::new(),
            limit: 0,
            stream: 0,
            send_window: Window::new(0),
            recv_window: Window::new(0),
            final_head: false,
            // No stream yet: as if one were over.
            sent_end: true,
            ended: true,
            reset: false,
            leaving: false,
            shrink: false,
        }
    }
}

/// Least room in the window of a connection after content that the server has not read, bytes.
const LEAST_WINDOW: usize = INITIAL_WINDOW as usize / 2;

/// Sending.
impl Link {
    /// Opens a stream with a request.
    pub fn request(&mut self, request: &Request<'_>) {
        // A client's streams have odd numbers (RFC 9113, section 5.1.1). LAST_STREAM keeps them from overflowing.
        self.stream = if self.stream == 0 { 1 } else { self.stream + 2 };
        self.limit = request.limit;
        self.send_window = self.connection.initial_window();
        self.recv_window = Window::new(WINDOW);
        self.heads.clear();
        self.trailers.clear();
        (self.final_head, self.sent_end, self.ended, self.reset) = (false, request.end, false, false);
        self.scratch.clear();
        if std::mem::take(&mut self.shrink) {
            // A dynamic table of size 0 (RFC 7541, section 4.2).
            self.scratch.push(0x20);
        }
        client::request_block(request.head, request.https, request.trailers, &mut self.scratch);
        let end = if request.end { flag::END_STREAM } else { 0 };
        frame::push_field_block(&mut self.out, self.stream, end, &self.scratch);
    }

    /// Returns the number of bytes of content that the windows allow to send now.
    pub fn sendable(&self) -> usize {
        self.connection.send_window.available().min(self.send_window.available())
    }

    /// Puts content into frames as far as windows and memory allow. Returns how many bytes it has taken. `last`: nothing
    /// follows behind `bytes`.
    pub fn content(&mut self, bytes: &[u8], last: bool) -> usize {
        let mut taken = 0;
        while !self.sent_end && self.out.len() < OUT {
            let rest = bytes.get(taken..).unwrap_or_default();
            let n = rest.len().min(self.sendable()).min(MAX_FRAME);
            let end = last && n == rest.len();
            // A DATA frame without content is sent only to end the stream.
            if n == 0 && !end {
                break;
            }
            self.push_data(rest.get(..n).unwrap_or_default(), end);
            taken += n;
            if end || taken == bytes.len() {
                break;
            }
        }
        taken
    }

    fn push_data(&mut self, content: &[u8], end: bool) {
        let flags = if end { flag::END_STREAM } else { 0 };
        frame::push_header(&mut self.out, content.len(), kind::DATA, flags, self.stream);
        self.out.extend_from_slice(content);
        self.connection.send_window.sent(content.len());
        self.send_window.sent(content.len());
        self.sent_end |= end;
    }

    /// Returns `true` if all of the request is in frames.
    pub fn is_sent(&self) -> bool {
        self.sent_end
    }

    /// Returns bytes to be written. The caller removes what it has written.
    pub fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Opens the receive windows again for content that has been taken.
    pub fn replenish(&mut self) {
        if let Some(increment) = self.connection.recv_window.refill(WINDOW) {
            frame::push_window_update(&mut self.out, 0, increment);
        }
        if !self.ended
            && let Some(increment) = self.recv_window.refill(WINDOW)
        {
            frame::push_window_update(&mut self.out, self.stream, increment);
        }
    }
}

/// The response.
impl Link {
    /// Takes the next head of the stream, an HTTP/1 head.
    pub fn next_head(&mut self) -> Option<Vec<u8>> {
        self.heads.pop_front()
    }

    /// Iterates over the fields of the trailers.
    pub fn trailers(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.trailers.split(|b| *b == b'\n').filter_map(|line| {
            let (name, value) = line.split_at_checked(memchr::memmem::find(line, b": ")?)?;
            Some((name, value.get(2..)?.strip_suffix(b"\r")?))
        })
    }

    /// Returns `true` if the response is over.
    pub fn is_over(&self) -> bool {
        self.ended
    }

    /// Ends a stream whose response is over before its request: the rest of the request is not sent.
    pub fn leave(&mut self) {
        if self.ended && !self.sent_end && !self.reset {
            // The response is whole, so this is no failure (RFC 9113, section 8.1).
            frame::push_reset(&mut self.out, self.stream, Code::NoError);
            self.reset = true;
        }
    }

    /// Returns `true` if another request may be sent.
    pub fn is_reusable(&self) -> bool {
        // A response may end before its request, whose stream is still open then, unless one of both sides has reset it. Content that
        // the server discards has to be acknowledged, too; without room in the window the next request could not be sent.
        let over = self.sent_end || (self.reset && self.connection.send_window.available() >= LEAST_WINDOW);
        let idle = self.ended && over;
        let quiet =
            self.input.is_empty() && self.out.is_empty() && self.connection.field_block.stream().is_none();
        idle && quiet && self.connection.has_settings() && !self.leaving && self.stream < LAST_STREAM
    }
}

/// Receiving.
impl Link {
    /// Takes received bytes. Content is appended to `content`.
    ///
    /// # Errors
    /// [`Problem`]. The connection cannot be used any more.
    pub fn take(&mut self, bytes: &[u8], content: &mut Vec<u8>) -> Result<(), Problem> {
        if self.input.is_empty() {
            let used = self.frames(bytes, content)?;
            self.input.extend_from_slice(bytes.get(used..).unwrap_or_default());
            return Ok(());
        }
        // Taken out, so that `frames` may borrow the link while it reads the bytes.
        let mut input = std::mem::take(&mut self.input);
        input.extend_from_slice(bytes);
        let used = self.frames(&input, content)?;
        input.drain(..used);
        self.input = input;
        Ok(())
    }

    /// Takes all frames that are whole. Returns their length.
    fn frames(&mut self, bytes: &[u8], content: &mut Vec<u8>) -> Result<usize, Problem> {
        let mut at = 0;
        while let Some((frame, len)) = self.connection.read(bytes.get(at..).unwrap_or_default())? {
            at += len;
            // Checked at each frame, since one read may bring thousands of PINGs.
            if self.out.len() > OUT + CONTROL {
                return Err(problem("sent too many http2 control frames"));
            }
            self.frame(frame, content)?;
        }
        Ok(at)
    }

    fn frame(&mut self, frame: Frame<'_>, content: &mut Vec<u8>) -> Result<(), Problem> {
        match frame {
            Frame::Data { stream, content: part, len, end_stream } => {
                self.data(stream, len, end_stream)?;
                content.extend_from_slice(part);
            }
            Frame::Headers { section, fragment, end_headers } => {
                self.check_stream(section.stream)?;
                return self.headers(section, fragment, end_headers);
            }
            Frame::Continuation { fragment, end_headers } => {
                return self.continuation(fragment, end_headers);
            }
            Frame::RstStream { stream, code } => return self.rst_stream(stream, code),
            Frame::Settings(settings) => return self.settings(settings),
            // The server has taken note that we keep no table.
            Frame::SettingsAck => self.decoder.allow(0),
            Frame::Ping { ack: false, data } => frame::push_ping_ack(&mut self.out, data),
            Frame::GoAway { last, code } => return self.goaway(last, code),
            Frame::WindowUpdate { stream, increment } => return self.window_update(stream, increment),
            Frame::Ping { .. } | Frame::Priority | Frame::PriorityUpdate { .. } | Frame::Unknown => {}
        }
        Ok(())
    }

    /// Checks that a frame of a response is on the one stream, while that is open.
    fn check_stream(&self, stream: u32) -> Result<(), Problem> {
        if stream != self.stream {
            return Err(problem(format!("sent frame for unknown stream {stream}")));
        }
        if self.ended || self.reset {
            return Err(problem("sent frame for closed stream"));
        }
        Ok(())
    }

    fn data(&mut self, stream: u32, len: usize, end_stream: bool) -> Result<(), Problem> {
        self.check_stream(stream)?;
        if !self.final_head {
            return Err(problem("sent unexpected DATA frame before headers"));
        }
        self.connection
            .recv_window
            .received(len)
            .and_then(|()| self.recv_window.received(len))
            .map_err(|_| problem("violated http2 flow control"))?;
        self.ended |= end_stream;
        Ok(())
    }

    fn headers(&mut self, section: Section, fragment: &[u8], whole: bool) -> Result<(), Problem> {
        if whole {
            return self.field_section(section, fragment);
        }
        self.connection.field_block.begin(section, fragment);
        Ok(())
    }

    fn continuation(&mut self, fragment: &[u8], last: bool) -> Result<(), Problem> {
        let block = &mut self.connection.field_block;
        block.extend(fragment);
        // Frames without content have a cost, too. Otherwise a server could send them without end.
        let cost = block.len() + (block.continuations() as usize + 1) * frame::HEADER_LEN;
        if cost > self.limit + MAX_FRAME {
            return Err(problem("sent too big header"));
        }
        if !last {
            return Ok(());
        }
        let Some((section, bytes)) = block.finish() else { return Ok(()) };
        let done = self.field_section(section, &bytes);
        self.connection.field_block.recycle(bytes);
        done
    }

    /// Takes a head of the response, or its trailers.
    fn field_section(&mut self, section: Section, bytes: &[u8]) -> Result<(), Problem> {
        let trailers = self.final_head;
        let block = Block { bytes, trailers, limit: self.limit };
        let mut lines = Vec::new();
        // Trailers, too, are decoded in full: the HPACK tables of both ends have to stay the same.
        let status = client::response_head(&mut self.decoder, &block, &mut self.scratch, &mut lines)?;
        self.ended |= section.end_stream;
        if !trailers {
            self.check_interim(status, section.end_stream)?;
            self.final_head = status >= 200;
            self.heads.push_back(lines);
            return Ok(());
        }
        if !section.end_stream {
            return Err(problem("sent trailers that do not end the stream"));
        }
        self.trailers = lines;
        Ok(())
    }

    /// Checks an interim response (RFC 9110, section 15.2).
    fn check_interim(&self, status: u16, end: bool) -> Result<(), Problem> {
        match status {
            101 => Err(problem("switched protocols over http2")),
            100..=199 if end => Err(problem("closed stream without a final response")),
            100..=199 if self.heads.len() >= MAX_INTERIM => Err(problem("sent too many interim responses")),
            _ => Ok(()),
        }
    }

    fn rst_stream(&mut self, stream: u32, code: u32) -> Result<(), Problem> {
        // Of an earlier request: a server may reset a stream after its whole response (RFC 9113, section 8.1).
        if stream < self.stream && stream % 2 == 1 {
            return Ok(());
        }
        if stream != self.stream || self.reset {
            return Err(problem(format!("sent RST_STREAM frame for unknown stream {stream}")));
        }
        self.reset = true;
        // Behind a whole response it only means that the server does not need the rest of the request.
        if self.ended && code == Code::NoError as u32 {
            return Ok(());
        }
        let unsent = code == Code::RefusedStream as u32 && !self.final_head;
        Err(Problem { unsent, ..problem(format!("rejected request with error {code}")) })
    }

    fn settings(&mut self, settings: Settings<'_>) -> Result<(), Problem> {
        for setting in settings.iter(Role::Client) {
            match setting? {
                Setting::InitialWindowSize(size) => {
                    let change = self.connection.set_initial_window(size);
                    self.send_window
                        .widen(change)
                        .map_err(|_| problem("sent SETTINGS frame with too large initial window"))?;
                }
                Setting::HeaderTableSize(size) => self.shrink |= size < TABLE_SIZE,
                // Larger frames bring nothing.
                Setting::MaxFrameSize(_) | Setting::MaxConcurrentStreams(_) | Setting::Other => {}
            }
        }
        frame::push_settings_ack(&mut self.out);
        Ok(())
    }

    fn goaway(&mut self, last: u32, code: u32) -> Result<(), Problem> {
        self.leaving = true;
        // Streams up to `last` go on to their end; only new ones are refused.
        if last < self.stream && !self.ended {
            let unsent = !self.final_head;
            return Err(Problem { unsent, ..problem(format!("sent GOAWAY frame with error {code}")) });
        }
        Ok(())
    }

    fn window_update(&mut self, stream: u32, increment: u32) -> Result<(), Problem> {
        if increment == 0 {
            return Err(problem("sent invalid WINDOW_UPDATE frame"));
        }
        let window = match stream {
            0 => &mut self.connection.send_window,
            s if s == self.stream => &mut self.send_window,
            // A closed stream may still get such frames for a while (RFC 9113, section 5.1).
            s if s < self.stream => return Ok(()),
            s => return Err(problem(format!("sent WINDOW_UPDATE frame for unknown stream {s}"))),
        };
        window.widen(i64::from(increment)).map_err(|_| problem("sent too large window update"))
    }
}

#[cfg(test)]
mod tests;
