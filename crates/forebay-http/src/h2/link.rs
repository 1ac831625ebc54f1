//! The client's side of an HTTP/2 connection that carries one stream at a time (RFC 9113). No I/O: bytes that came are
//! given in, bytes to be written are taken out. Hot path.

use super::client::{self, BadBlock};
use super::frame::{self, Code, Header, INITIAL_WINDOW, MAX_FRAME, MAX_WINDOW, flag, kind, setting};
use super::hpack::{Decoder, TABLE_SIZE};
use std::borrow::Cow;
use std::collections::VecDeque;

/// Window for the content of a response, bytes: what may come unasked while the request is still being sent.
const WINDOW: i64 = 256 * 1024;

/// Most bytes of frames waiting to be written before no more content is put behind them.
const OUT: usize = 64 * 1024;

/// Most bytes that answers to PING and SETTINGS may take: a peer that sends them and does not read is not served.
const CONTROL: usize = 64 * 1024;

/// Most interim responses (RFC 9110, section 15.2) that wait for being read.
const MAX_INTERIM: usize = 100;

/// Last stream of a connection: far below where numbers end.
const LAST_STREAM: u32 = 1 << 30;

/// What ends the exchange.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// For the error log, behind "upstream ".
    pub text: Cow<'static, str>,
    /// The request was certainly not acted upon (GOAWAY below it, REFUSED_STREAM).
    pub unsent: bool,
}

fn problem(text: impl Into<Cow<'static, str>>) -> Problem {
    Problem { text: text.into(), unsent: false }
}

/// State of a connection and of the stream on it.
#[derive(Debug)]
pub struct Link {
    decoder: Decoder,
    scratch: Vec<u8>,
    /// The beginning of a frame whose end has not come.
    input: Vec<u8>,
    /// Frames to be written.
    out: Vec<u8>,
    /// Field block under way: flags of its HEADERS, and bytes counted against the limit.
    block: Vec<u8>,
    block_flags: Option<u8>,
    block_cost: usize,
    /// Heads of the stream, interim ones first, as HTTP/1 heads.
    heads: VecDeque<Vec<u8>>,
    trailers: Vec<u8>,
    /// Most bytes of a head.
    limit: usize,
    /// The stream; 0: none yet.
    stream: u32,
    send_window: i64,
    stream_window: i64,
    initial_window: i64,
    max_frame: usize,
    room: i64,
    stream_room: i64,
    settled: bool,
    final_head: bool,
    sent_end: bool,
    ended: bool,
    reset: bool,
    leaving: bool,
    /// The server allows less of a table than is the default, and has not been told that we use none.
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
                (setting::INITIAL_WINDOW_SIZE, WINDOW as u32),
            ],
        );
        frame::push_window_update(&mut out, 0, (WINDOW - INITIAL_WINDOW) as u32);
        Link {
            decoder: Decoder::lenient(),
            scratch: Vec::new(),
            input: Vec::new(),
            out,
            block: Vec::new(),
            block_flags: None,
            block_cost: 0,
            heads: VecDeque::new(),
            trailers: Vec::new(),
            limit: 0,
            stream: 0,
            send_window: INITIAL_WINDOW,
            stream_window: 0,
            initial_window: INITIAL_WINDOW,
            max_frame: MAX_FRAME,
            room: WINDOW,
            stream_room: 0,
            settled: false,
            final_head: false,
            sent_end: true,
            ended: true,
            reset: false,
            leaving: false,
            shrink: false,
        }
    }
}

impl Link {
    /// Opens a stream with a request whose HTTP/1 head is `head`. `end`: without content. `limit`: most bytes of a
    /// head of the response.
    pub fn request(&mut self, head: &[u8], https: bool, trailers: bool, end: bool, limit: usize) {
        self.stream = if self.stream == 0 { 1 } else { self.stream + 2 };
        self.limit = limit;
        self.stream_window = self.initial_window;
        self.stream_room = WINDOW;
        self.heads.clear();
        self.trailers.clear();
        (self.final_head, self.sent_end, self.ended) = (false, end, false);
        let mut block = std::mem::take(&mut self.block);
        block.clear();
        if std::mem::take(&mut self.shrink) {
            // RFC 7541, section 4.2.
            block.push(0x20);
        }
        client::request_block(head, https, trailers, &mut block);
        let mut kind = kind::HEADERS;
        let mut flags = if end { flag::END_STREAM } else { 0 };
        let mut rest = block.as_slice();
        loop {
            let (part, behind) = rest.split_at(rest.len().min(self.max_frame));
            if behind.is_empty() {
                flags |= flag::END_HEADERS;
            }
            frame::push_header(&mut self.out, part.len(), kind, flags, self.stream);
            self.out.extend_from_slice(part);
            if behind.is_empty() {
                break;
            }
            (rest, kind, flags) = (behind, kind::CONTINUATION, 0);
        }
        block.clear();
        self.block = block;
    }

    /// Bytes of content that may be sent now.
    pub fn sendable(&self) -> usize {
        usize::try_from(self.send_window.min(self.stream_window)).unwrap_or(0)
    }

    /// Puts content into frames as far as windows and memory allow; gives how much was taken. `last`: nothing
    /// follows behind `bytes`.
    pub fn content(&mut self, bytes: &[u8], last: bool) -> usize {
        let mut taken = 0;
        while !self.sent_end && self.out.len() < OUT {
            let rest = bytes.get(taken..).unwrap_or_default();
            let n = rest.len().min(self.sendable()).min(self.max_frame);
            let end = last && n == rest.len();
            if n == 0 && !end {
                break;
            }
            self.content_header(n, end);
            self.out.extend_from_slice(rest.get(..n).unwrap_or_default());
            taken += n;
            if end || taken == bytes.len() {
                break;
            }
        }
        taken
    }

    /// Begins a frame of content of which `len` bytes are written by somebody else, behind what is to be written:
    /// at most what [`Link::piece`] allows.
    pub fn content_header(&mut self, len: usize, end: bool) {
        frame::push_header(
            &mut self.out,
            len,
            kind::DATA,
            if end { flag::END_STREAM } else { 0 },
            self.stream,
        );
        self.send_window -= len as i64;
        self.stream_window -= len as i64;
        self.sent_end |= end;
    }

    /// Longest frame of content that may be sent now, bytes.
    pub fn piece(&self) -> usize {
        self.sendable().min(self.max_frame)
    }

    /// Whether all of the request is in frames.
    pub fn is_sent(&self) -> bool {
        self.sent_end
    }

    /// What is to be written; the caller removes what it has written.
    pub fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// The next head of the stream, an HTTP/1 head.
    pub fn next_head(&mut self) -> Option<Vec<u8>> {
        self.heads.pop_front()
    }

    /// Whether the final head has come.
    pub fn has_answer(&self) -> bool {
        self.final_head
    }

    /// Field lines of the trailers, with their line ends.
    pub fn trailers(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.trailers.split(|b| *b == b'\n').filter_map(|line| {
            let (name, value) = line.split_at_checked(memchr::memmem::find(line, b": ")?)?;
            Some((name, value.get(2..)?.strip_suffix(b"\r")?))
        })
    }

    /// Whether the response is over.
    pub fn is_over(&self) -> bool {
        self.ended
    }

    /// Whether another request may be sent.
    pub fn is_reusable(&self) -> bool {
        self.ended
            && self.sent_end
            && self.settled
            && !self.reset
            && !self.leaving
            && self.input.is_empty()
            && self.out.is_empty()
            && self.block_flags.is_none()
            && self.stream < LAST_STREAM
    }

    /// Gives the server room again for what has been taken.
    pub fn replenish(&mut self) {
        if self.room < WINDOW / 2 {
            frame::push_window_update(&mut self.out, 0, (WINDOW - self.room) as u32);
            self.room = WINDOW;
        }
        if self.stream_room < WINDOW / 2 && !self.ended {
            frame::push_window_update(&mut self.out, self.stream, (WINDOW - self.stream_room) as u32);
            self.stream_room = WINDOW;
        }
    }

    /// Takes bytes that came. Content is appended to `content`.
    ///
    /// # Errors
    /// [`Problem`]: the connection is of no more use.
    pub fn take(&mut self, bytes: &[u8], content: &mut Vec<u8>) -> Result<(), Problem> {
        if self.input.is_empty() {
            let used = self.frames(bytes, content)?;
            self.input.extend_from_slice(bytes.get(used..).unwrap_or_default());
            return Ok(());
        }
        let mut input = std::mem::take(&mut self.input);
        input.extend_from_slice(bytes);
        let used = self.frames(&input, content)?;
        input.drain(..used);
        self.input = input;
        Ok(())
    }

    fn frames(&mut self, bytes: &[u8], content: &mut Vec<u8>) -> Result<usize, Problem> {
        let mut at = 0;
        while let Some(h) = Header::parse(bytes.get(at..).unwrap_or_default()) {
            if h.len > MAX_FRAME {
                return Err(problem(format!("sent too large http2 frame: {}", h.len)));
            }
            if !self.settled && (h.kind != kind::SETTINGS || h.has(flag::ACK)) {
                return Err(problem("sent no SETTINGS frame first, it may not speak http2"));
            }
            let start = at + frame::HEADER_LEN;
            let Some(payload) = bytes.get(start..start + h.len) else { break };
            at = start + h.len;
            self.frame(&h, payload, content)?;
        }
        Ok(at)
    }

    fn frame(&mut self, h: &Header, payload: &[u8], content: &mut Vec<u8>) -> Result<(), Problem> {
        if self.block_flags.is_some() && (h.kind != kind::CONTINUATION || h.stream != self.stream) {
            return Err(problem("sent unexpected frame inside a field block"));
        }
        if self.out.len() > OUT + CONTROL {
            return Err(problem("sent too many http2 control frames"));
        }
        match h.kind {
            kind::DATA => self.data(h, payload, content),
            kind::HEADERS => {
                self.of_stream(h)?;
                let (mut start, end) =
                    frame::unpad(h, payload).map_err(|_| problem("sent http2 frame with invalid padding"))?;
                if h.has(flag::PRIORITY) {
                    start += 5;
                }
                let Some(part) = payload.get(start..end) else {
                    return Err(problem("sent too short http2 HEADERS frame"));
                };
                self.block_flags = Some(h.flags);
                self.block_cost = 0;
                self.block.clear();
                self.fragment(h, part)
            }
            kind::CONTINUATION if self.block_flags.is_some() => self.fragment(h, payload),
            kind::CONTINUATION => Err(problem("sent unexpected CONTINUATION frame")),
            kind::RST_STREAM => self.rst(h, payload),
            kind::SETTINGS => self.settings(h, payload),
            kind::PUSH_PROMISE => Err(problem("sent unexpected PUSH_PROMISE frame")),
            kind::PING if payload.len() != 8 || h.stream != 0 => Err(problem("sent invalid PING frame")),
            kind::PING if !h.has(flag::ACK) => {
                frame::push_header(&mut self.out, 8, kind::PING, flag::ACK, 0);
                self.out.extend_from_slice(payload);
                Ok(())
            }
            kind::GOAWAY => self.goaway(h, payload),
            kind::WINDOW_UPDATE => self.window_update(h, payload),
            // PRIORITY and what is not known says nothing to a client.
            _ => Ok(()),
        }
    }

    /// HEADERS and DATA may come on the one stream only, while it is open.
    fn of_stream(&self, h: &Header) -> Result<(), Problem> {
        if h.stream != self.stream || self.stream == 0 {
            return Err(problem(format!("sent frame for unknown stream {}", h.stream)));
        }
        if self.ended || self.reset {
            return Err(problem("sent frame for closed stream"));
        }
        Ok(())
    }

    fn data(&mut self, h: &Header, payload: &[u8], content: &mut Vec<u8>) -> Result<(), Problem> {
        self.of_stream(h)?;
        if !self.final_head {
            return Err(problem("sent unexpected DATA frame before headers"));
        }
        let (start, end) =
            frame::unpad(h, payload).map_err(|_| problem("sent http2 frame with invalid padding"))?;
        self.room -= payload.len() as i64;
        self.stream_room -= payload.len() as i64;
        if self.room < 0 || self.stream_room < 0 {
            return Err(problem("violated http2 flow control"));
        }
        content.extend_from_slice(payload.get(start..end).unwrap_or_default());
        self.ended |= h.has(flag::END_STREAM);
        Ok(())
    }

    fn fragment(&mut self, h: &Header, part: &[u8]) -> Result<(), Problem> {
        // Frames without content cost too, or they could come for ever.
        self.block_cost += part.len() + frame::HEADER_LEN;
        if self.block_cost > self.limit + MAX_FRAME {
            return Err(problem("sent too big header"));
        }
        self.block.extend_from_slice(part);
        if !h.has(flag::END_HEADERS) {
            return Ok(());
        }
        let flags = self.block_flags.take().unwrap_or(0);
        let block = std::mem::take(&mut self.block);
        let done = self.fields(&block, flags & flag::END_STREAM != 0);
        self.block = block;
        done
    }

    fn fields(&mut self, block: &[u8], end: bool) -> Result<(), Problem> {
        let trailers = self.final_head;
        let mut lines = Vec::new();
        let status = client::response_head(
            &mut self.decoder,
            block,
            &mut self.scratch,
            trailers,
            self.limit,
            &mut lines,
        )
        .map_err(|bad| match bad {
            BadBlock::Compression => problem("sent invalid http2 header block"),
            BadBlock::TooLarge => problem("sent too big header"),
            BadBlock::Malformed(what) => problem(format!("sent invalid {what}")),
        })?;
        self.ended |= end;
        if trailers {
            if !end {
                return Err(problem("sent trailers that do not end the stream"));
            }
            self.trailers = lines;
            return Ok(());
        }
        match status {
            101 => return Err(problem("switched protocols over http2")),
            100..=199 if end => {
                return Err(problem("closed stream without a final response"));
            }
            100..=199 if self.heads.len() >= MAX_INTERIM => {
                return Err(problem("sent too many interim responses"));
            }
            100..=199 => {}
            _ => self.final_head = true,
        }
        self.heads.push_back(lines);
        Ok(())
    }

    fn rst(&mut self, h: &Header, payload: &[u8]) -> Result<(), Problem> {
        let code = match frame::number(payload) {
            Some(code) if payload.len() == 4 && h.stream != 0 => code,
            _ => return Err(problem("sent invalid RST_STREAM frame")),
        };
        if h.stream < self.stream && h.stream % 2 == 1 {
            return Ok(());
        }
        if h.stream != self.stream || self.reset {
            return Err(problem(format!("sent RST_STREAM frame for unknown stream {}", h.stream)));
        }
        self.reset = true;
        // Behind a whole response it only says that no more of the request is wanted.
        if self.ended && code == Code::NoError as u32 {
            return Ok(());
        }
        let unsent = code == Code::RefusedStream as u32 && !self.final_head;
        Err(Problem { unsent, ..problem(format!("rejected request with error {code}")) })
    }

    fn settings(&mut self, h: &Header, payload: &[u8]) -> Result<(), Problem> {
        if h.stream != 0 || !payload.len().is_multiple_of(6) || (h.has(flag::ACK) && !payload.is_empty()) {
            return Err(problem("sent invalid SETTINGS frame"));
        }
        if h.has(flag::ACK) {
            self.decoder.allow(0);
            return Ok(());
        }
        self.settled = true;
        for (id, value) in frame::settings(payload) {
            match id {
                setting::INITIAL_WINDOW_SIZE => {
                    let value = i64::from(value);
                    self.stream_window += value - self.initial_window;
                    if value > MAX_WINDOW || self.stream_window > MAX_WINDOW {
                        return Err(problem("sent SETTINGS frame with too large initial window"));
                    }
                    self.initial_window = value;
                }
                setting::MAX_FRAME_SIZE => {
                    if !(MAX_FRAME..1 << 24).contains(&(value as usize)) {
                        return Err(problem("sent SETTINGS frame with invalid max frame size"));
                    }
                    // Larger frames bring nothing.
                    self.max_frame = MAX_FRAME;
                }
                setting::HEADER_TABLE_SIZE => self.shrink |= (value as usize) < TABLE_SIZE,
                setting::ENABLE_PUSH if value != 0 => {
                    return Err(problem("sent SETTINGS frame that enables push"));
                }
                _ => {}
            }
        }
        frame::push_settings_ack(&mut self.out);
        Ok(())
    }

    fn goaway(&mut self, h: &Header, payload: &[u8]) -> Result<(), Problem> {
        let (Some(last), Some(code), 0) =
            (frame::number(payload), frame::number(payload.get(4..).unwrap_or_default()), h.stream)
        else {
            return Err(problem("sent invalid GOAWAY frame"));
        };
        self.leaving = true;
        if last & 0x7fff_ffff < self.stream && !self.ended {
            let unsent = !self.final_head;
            return Err(Problem { unsent, ..problem(format!("sent GOAWAY frame with error {code}")) });
        }
        Ok(())
    }

    fn window_update(&mut self, h: &Header, payload: &[u8]) -> Result<(), Problem> {
        let increment = match frame::number(payload) {
            Some(n) if payload.len() == 4 && n & 0x7fff_ffff != 0 => i64::from(n & 0x7fff_ffff),
            _ => return Err(problem("sent invalid WINDOW_UPDATE frame")),
        };
        let window = match h.stream {
            0 => &mut self.send_window,
            s if s == self.stream => &mut self.stream_window,
            s if s < self.stream => return Ok(()),
            s => return Err(problem(format!("sent WINDOW_UPDATE frame for unknown stream {s}"))),
        };
        *window += increment;
        if *window > MAX_WINDOW {
            return Err(problem("sent too large window update"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
