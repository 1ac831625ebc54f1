//! Frames of an upstream server.

use super::super::client::{self, BadBlock, Block};
use super::super::frame::{self, Code, FrameHeader, HEADER_LEN, MAX_FRAME};
use super::super::hpack::TABLE_SIZE;
use super::super::received::{Frame, Role, Section, Setting, Settings};
use super::problem::{Fatal, Problem, fatal, of_block, problem};
use super::{CONNECTION_WINDOW, Link};

/// Bytes that acknowledgements of PING and SETTINGS may take before they are written. The connection of a server that sends more of
/// those frames and does not read ends.
const ANSWERS: usize = 64 * 1024;

/// Most frames in a row that move no request on.
const FRUITLESS: u32 = 10_000;

/// Most interim responses (RFC 9110, section 15.2).
const MAX_INTERIM: u32 = 100;

/// Longest field block that is gathered from several frames, bytes. One that is longer than its request allows fails that alone.
const LONGEST_BLOCK: usize = 128 * 1024;

impl<W: Default> Link<W> {
    /// Takes received bytes.
    ///
    /// # Errors
    /// [`Fatal`]. The connection cannot be used any more.
    pub fn take(&mut self, bytes: &[u8]) -> Result<(), Fatal> {
        let bytes = self.complete(bytes)?;
        let used = self.frames(bytes)?;
        self.input.extend_from_slice(bytes.get(used..).unwrap_or_default());
        if let Some(increment) = self.connection.recv_window.refill(CONNECTION_WINDOW) {
            frame::push_window_update(&mut self.out, 0, increment);
        }
        Ok(())
    }

    /// Takes the frame that has begun earlier, if the rest of it has come. Returns what follows it.
    fn complete<'b>(&mut self, mut bytes: &'b [u8]) -> Result<&'b [u8], Fatal> {
        while !self.input.is_empty() && !bytes.is_empty() {
            // Only what is missing, so that the rest is not copied.
            let whole = FrameHeader::parse(&self.input).map_or(HEADER_LEN, |h| HEADER_LEN + h.len);
            let (missing, rest) = bytes.split_at(bytes.len().min(whole - self.input.len()));
            self.input.extend_from_slice(missing);
            bytes = rest;
            // Taken out, so that `frames` may borrow the link while it reads the bytes.
            let mut input = std::mem::take(&mut self.input);
            let used = self.frames(&input)?;
            input.drain(..used);
            self.input = input;
        }
        Ok(bytes)
    }

    /// Takes all frames that are whole. Returns their length.
    fn frames(&mut self, bytes: &[u8]) -> Result<usize, Fatal> {
        let mut at = 0;
        while let Some((frame, len)) = self.connection.read(bytes.get(at..).unwrap_or_default())? {
            at += len;
            self.fruitless += 1;
            // Checked at each frame, since one read may bring thousands of PINGs.
            if self.answers > ANSWERS || self.fruitless > FRUITLESS {
                return Err(Fatal {
                    code: Code::EnhanceYourCalm,
                    ..fatal("sent too many http2 control frames")
                });
            }
            self.frame(frame)?;
        }
        Ok(at)
    }

    fn frame(&mut self, frame: Frame<'_>) -> Result<(), Fatal> {
        match frame {
            Frame::Data { stream, content, len, end_stream } => {
                return self.data(stream, content, len, end_stream);
            }
            Frame::Headers { section, fragment, end_headers: true } => {
                return self.field_section(section, fragment);
            }
            Frame::Headers { section, fragment, .. } => {
                self.check_known(section.stream)?;
                self.connection.field_block.begin(section, fragment);
            }
            Frame::Continuation { fragment, end_headers } => {
                return self.continuation(fragment, end_headers);
            }
            Frame::RstStream { stream, code } => return self.rst_stream(stream, code),
            Frame::Settings(settings) => return self.settings(settings),
            // The server has taken note that we keep no table.
            Frame::SettingsAck => self.decoder.allow(0),
            Frame::Ping { ack: false, data } => self.answer(|out| frame::push_ping_ack(out, data)),
            Frame::GoAway { last, code } => self.goaway(last, code),
            Frame::WindowUpdate { stream, increment } => return self.window_update(stream, increment),
            Frame::Ping { .. } | Frame::Priority | Frame::PriorityUpdate { .. } | Frame::Unknown => {}
        }
        Ok(())
    }

    /// Appends an acknowledgement.
    fn answer(&mut self, push: impl FnOnce(&mut Vec<u8>)) {
        let before = self.out.len();
        push(&mut self.out);
        self.answers += self.out.len() - before;
    }

    /// Checks that a stream has been opened.
    fn check_known(&self, id: u32) -> Result<(), Fatal> {
        match id < self.next && id % 2 == 1 {
            true => Ok(()),
            false => Err(fatal(format!("sent frame for unknown stream {id}"))),
        }
    }

    /// Takes a frame of a stream that is closed. After a reset by us frames may still be on their way.
    fn stray(&mut self, id: u32, len: usize) -> Result<(), Fatal> {
        self.check_known(id)?;
        let cost = (len + HEADER_LEN) as u64;
        match self.owed.checked_sub(cost) {
            Some(left) => {
                self.owed = left;
                Ok(())
            }
            None => Err(Fatal { code: Code::StreamClosed, ..fatal("sent frame for closed stream") }),
        }
    }

    /// Returns the place of a stream that frames of a response may come on.
    fn open_place(&self, id: u32) -> Option<usize> {
        self.place(id).filter(|at| self.streams.get(*at).is_some_and(|s| s.is_open()))
    }

    /// Fails a request, and resets its stream.
    fn fail(&mut self, at: usize, problem: Problem, code: Code) {
        self.reset(at, code);
        self.set_problem(at, problem);
    }

    fn set_problem(&mut self, at: usize, problem: Problem) {
        if let Some(s) = self.streams.get_mut(at) {
            s.problem.get_or_insert(problem);
        }
        self.note(at);
    }

    fn data(&mut self, id: u32, content: &[u8], len: usize, end: bool) -> Result<(), Fatal> {
        let broken = |_| Fatal { code: Code::FlowControlError, ..fatal("violated http2 flow control") };
        self.connection.recv_window.received(len).map_err(broken)?;
        let Some(at) = self.open_place(id) else { return self.stray(id, len) };
        let Some(s) = self.streams.get_mut(at) else { return Ok(()) };
        s.recv_window.received(len).map_err(broken)?;
        if !s.final_head {
            self.fail(at, problem("sent unexpected DATA frame before headers"), Code::ProtocolError);
            return Ok(());
        }
        // Padding is read at once.
        s.credit += (len - content.len()) as u32;
        s.content.extend_from_slice(content);
        s.ended |= end;
        if let Some(increment) = s.refill() {
            frame::push_window_update(&mut self.out, id, increment);
        }
        if !content.is_empty() || end {
            self.fruitless = 0;
        }
        self.note(at);
        Ok(())
    }

    fn continuation(&mut self, fragment: &[u8], last: bool) -> Result<(), Fatal> {
        let block = &mut self.connection.field_block;
        block.extend(fragment);
        // Frames without content have a cost, too. Otherwise a server could send them without end.
        let cost = block.len() + (block.continuations() as usize + 1) * HEADER_LEN;
        let limit = block.stream().and_then(|id| self.of(id)).map_or(0, |s| s.limit);
        if cost > LONGEST_BLOCK.max(limit + MAX_FRAME) {
            return Err(Fatal { code: Code::EnhanceYourCalm, ..fatal("sent too big header") });
        }
        if !last {
            return Ok(());
        }
        let Some((section, bytes)) = self.connection.field_block.finish() else { return Ok(()) };
        let done = self.field_section(section, &bytes);
        self.connection.field_block.recycle(bytes);
        done
    }

    /// Takes a head of a response, or its trailers.
    fn field_section(&mut self, section: Section, bytes: &[u8]) -> Result<(), Fatal> {
        let at = self.open_place(section.stream);
        let Some(s) = at.and_then(|at| self.streams.get_mut(at)) else {
            self.stray(section.stream, bytes.len())?;
            // Decoded all the same: the HPACK tables of both ends have to stay the same.
            return self.decode(bytes, true, 0, &mut Vec::new()).map(|_| ());
        };
        s.uncounted += (bytes.len() + HEADER_LEN) as u64;
        let (trailers, limit) = (s.final_head, s.limit);
        let mut lines = if s.heads.is_empty() { std::mem::take(&mut s.heads) } else { Vec::new() };
        let decoded = self.decode(bytes, trailers, limit, &mut lines)?;
        self.fruitless = 0;
        if let Some(at) = at {
            let done = decoded.map_err(of_block).and_then(|status| self.took(at, section, status, lines));
            match done {
                Ok(()) => self.note(at),
                Err(problem) => self.fail(at, problem, Code::ProtocolError),
            }
        }
        Ok(())
    }

    fn decode(
        &mut self,
        bytes: &[u8],
        trailers: bool,
        limit: usize,
        lines: &mut Vec<u8>,
    ) -> Result<Result<u16, BadBlock>, Fatal> {
        let block = Block { bytes, trailers, limit };
        match client::response_head(&mut self.decoder, &block, &mut self.scratch, lines) {
            Err(BadBlock::Compression) => {
                let text = of_block(BadBlock::Compression).text;
                Err(Fatal { text, code: Code::CompressionError })
            }
            decoded => Ok(decoded),
        }
    }

    /// Takes the lines of a field section.
    fn took(&mut self, at: usize, section: Section, status: u16, lines: Vec<u8>) -> Result<(), Problem> {
        let Some(s) = self.streams.get_mut(at) else { return Ok(()) };
        s.ended |= section.end_stream;
        if s.final_head {
            s.trailers = lines;
            let whole = section.end_stream;
            return whole.then_some(()).ok_or_else(|| problem("sent trailers that do not end the stream"));
        }
        match status {
            101 => return Err(problem("switched protocols over http2")),
            100..200 if section.end_stream => {
                return Err(problem("closed stream without a final response"));
            }
            100..200 if s.interim >= MAX_INTERIM => {
                return Err(problem("sent too many interim responses"));
            }
            100..200 => s.interim += 1,
            _ => {
                s.final_head = true;
                s.ended_with_head = section.end_stream;
            }
        }
        match s.heads.is_empty() {
            true => s.heads = lines,
            false => s.heads.extend_from_slice(&lines),
        }
        Ok(())
    }

    fn rst_stream(&mut self, id: u32, code: u32) -> Result<(), Fatal> {
        if self.check_known(id).is_err() {
            return Err(fatal(format!("sent RST_STREAM frame for unknown stream {id}")));
        }
        // A server may reset a stream after its whole response (RFC 9113, section 8.1), or after we have.
        let Some(at) = self.place(id) else { return Ok(()) };
        let Some(s) = self.streams.get_mut(at).filter(|s| !s.reset) else { return Ok(()) };
        s.reset = true;
        // Behind a whole response it only means that the server does not need the rest of the request.
        if s.ended && code == Code::NoError as u32 {
            self.note(at);
            return Ok(());
        }
        let unsent = code == Code::RefusedStream as u32 && !s.final_head;
        self.set_problem(at, Problem { unsent, ..problem(format!("rejected request with error {code}")) });
        Ok(())
    }

    fn settings(&mut self, settings: Settings<'_>) -> Result<(), Fatal> {
        for setting in settings.iter(Role::Client) {
            match setting? {
                Setting::InitialWindowSize(size) => {
                    let change = self.connection.set_initial_window(size);
                    self.streams.widen(change).map_err(|_| Fatal {
                        code: Code::FlowControlError,
                        ..fatal("sent SETTINGS frame with too large initial window")
                    })?;
                }
                Setting::HeaderTableSize(size) => self.shrink |= size < TABLE_SIZE,
                Setting::MaxConcurrentStreams(most) => self.allowed = most,
                // Larger frames bring nothing.
                Setting::MaxFrameSize(_) | Setting::Other => {}
            }
        }
        self.answer(frame::push_settings_ack);
        self.grant();
        Ok(())
    }

    /// Fails streams above the last one that the server handles. The others go on to their end; no new ones may be opened.
    fn goaway(&mut self, last: u32, code: u32) {
        self.leaving = true;
        let places: Vec<_> = self.streams.places().collect();
        for at in places {
            let Some(s) = self.streams.get_mut(at).filter(|s| s.id > last && s.is_open()) else { continue };
            s.reset = true;
            let unsent = !s.final_head;
            self.set_problem(
                at,
                Problem { unsent, ..problem(format!("sent GOAWAY frame with error {code}")) },
            );
        }
    }

    fn window_update(&mut self, id: u32, increment: u32) -> Result<(), Fatal> {
        let invalid = "sent invalid WINDOW_UPDATE frame";
        let large = "sent too large window update";
        if id == 0 {
            if increment == 0 {
                return Err(fatal(invalid));
            }
            let widened = self.connection.send_window.widen(i64::from(increment));
            widened.map_err(|_| Fatal { code: Code::FlowControlError, ..fatal(large) })?;
        } else {
            if self.check_known(id).is_err() {
                return Err(fatal(format!("sent WINDOW_UPDATE frame for unknown stream {id}")));
            }
            // A closed stream may still get such frames for a while (RFC 9113, section 5.1).
            let Some(at) = self.place(id) else { return Ok(()) };
            let Some(s) = self.streams.get_mut(at).filter(|s| !s.reset) else { return Ok(()) };
            if increment == 0 {
                self.fail(at, problem(invalid), Code::ProtocolError);
            } else if s.send_window.widen(i64::from(increment)).is_err() {
                self.fail(at, problem(large), Code::FlowControlError);
            }
        }
        self.grant();
        Ok(())
    }
}
