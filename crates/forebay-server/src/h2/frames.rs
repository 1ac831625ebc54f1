//! The client's frames and their effects on streams (RFC 9113, sections 5 and 6). Which frames are well-formed, and the state
//! that both ends of a connection have, is in forebay-http (`h2/received.rs`, `h2/connection.rs`). Hot path.

use super::budget::EMPTY_CONTINUATIONS;
use super::{Ended, Session, SessionState, Stream};
use crate::connection::mux::SpareStreams;
use forebay_http::field::Name;
use forebay_http::h1::request::Limits;
use forebay_http::h2::connection::{FlowControlError, Window};
use forebay_http::h2::frame::{self, Code, kind, setting};
use forebay_http::h2::hpack;
use forebay_http::h2::received::{Frame, Role, Rule, Section, Setting, Settings, Violation};
use forebay_http::h2::request::{self, Outcome};
use forebay_http::priority::Priority;
use forebay_http::request::{Framing, RequestHead};
use std::rc::Rc;
use std::time::Instant;

/// The reason for which the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fatal {
    /// Error code for GOAWAY.
    pub code: Code,
    /// Text for the error log; for an excess, the thing of which there was too much.
    pub reason: &'static str,
    /// The client's behaviour cost too much, which counts against its network; a head that is too large does not.
    pub excess: bool,
}

type Result<T> = std::result::Result<T, Fatal>;

fn fatal<T>(code: Code, reason: &'static str) -> Result<T> {
    Err(Fatal { code, reason, excess: false })
}

fn protocol<T>(reason: &'static str) -> Result<T> {
    fatal(Code::ProtocolError, reason)
}

fn flow_control<T>(reason: &'static str) -> impl FnOnce(FlowControlError) -> Result<T> {
    move |FlowControlError| fatal(Code::FlowControlError, reason)
}

fn calm<T>(r: std::result::Result<T, &'static str>) -> Result<T> {
    r.map_err(|reason| Fatal { code: Code::EnhanceYourCalm, reason, excess: true })
}

impl From<hpack::Error> for Fatal {
    fn from(e: hpack::Error) -> Fatal {
        let reason = "client sent invalid field block";
        match e {
            hpack::Error::Truncated => Fatal { code: Code::FrameSizeError, reason, excess: false },
            hpack::Error::Compression => Fatal { code: Code::CompressionError, reason, excess: false },
        }
    }
}

impl From<Violation> for Fatal {
    fn from(v: Violation) -> Fatal {
        Fatal { code: v.code(), reason: reason(v), excess: false }
    }
}

/// Returns the text of the error log for a frame that breaks a rule.
fn reason(v: Violation) -> &'static str {
    match (v.rule, v.kind) {
        (Rule::MaxFrameSize(_), _) => "client sent too large frame",
        (Rule::Contiguous, _) => "client sent another frame within a field block",
        (Rule::Unexpected, kind::CONTINUATION) => "client sent unexpected CONTINUATION frame",
        (Rule::Unexpected, _) => "client sent PUSH_PROMISE frame",
        (Rule::Padding(_), kind::DATA) => "client sent padded DATA frame with incorrect length",
        (Rule::Padding(_), _) => "client sent padded HEADERS frame with incorrect length",
        (Rule::AckLength, _) => "client sent SETTINGS frame with the ACK flag and nonzero length",
        (Rule::Dependency, _) => "client sent PRIORITY frame with incorrect dependency",
        (Rule::Setting(setting::ENABLE_PUSH), _) => {
            "client sent SETTINGS frame with incorrect ENABLE_PUSH value"
        }
        (Rule::Setting(setting::INITIAL_WINDOW_SIZE), _) => {
            "client sent SETTINGS frame with incorrect INITIAL_WINDOW_SIZE value"
        }
        (Rule::Setting(setting::MAX_FRAME_SIZE), _) => {
            "client sent SETTINGS frame with incorrect MAX_FRAME_SIZE value"
        }
        (Rule::Setting(_), _) => "client sent SETTINGS frame with incorrect NO_RFC7540_PRIORITIES value",
        (Rule::Stream, kind::DATA) => "client sent DATA frame for no stream",
        (Rule::Stream, kind::HEADERS) => "client sent HEADERS frame with incorrect identifier",
        (Rule::Stream, kind::PRIORITY) => "client sent PRIORITY frame with incorrect identifier",
        (Rule::Stream, kind::RST_STREAM) => "client sent RST_STREAM frame with incorrect identifier",
        (Rule::Stream, kind::SETTINGS) => "client sent SETTINGS frame with incorrect identifier",
        (Rule::Stream, kind::PING) => "client sent PING frame with incorrect identifier",
        (Rule::Stream, kind::GOAWAY) => "client sent GOAWAY frame with incorrect identifier",
        (Rule::Stream, _) => "client sent PRIORITY_UPDATE frame with incorrect identifier",
        (_, kind::HEADERS) => "client sent HEADERS frame with incorrect length",
        (_, kind::PRIORITY) => "client sent PRIORITY frame with incorrect length",
        (_, kind::RST_STREAM) => "client sent RST_STREAM frame with incorrect length",
        (_, kind::SETTINGS) => "client sent SETTINGS frame with incorrect length",
        (_, kind::PING) => "client sent PING frame with incorrect length",
        (_, kind::GOAWAY) => "client sent GOAWAY frame with incorrect length",
        (_, kind::WINDOW_UPDATE) => "client sent WINDOW_UPDATE frame with incorrect length",
        (_, _) => "client sent PRIORITY_UPDATE frame with incorrect length",
    }
}

/// Parts of the thread and of the configuration for processing frames.
pub(super) struct Context<'c> {
    pub now: Instant,
    pub limits: &'c Limits,
    /// Heads for reuse. They are boxed because streams take them over.
    #[allow(clippy::vec_box)]
    pub spare: &'c mut Vec<Box<RequestHead>>,
    pub scratch: &'c mut Vec<u8>,
    /// Streams for reuse.
    pub ended: &'c mut SpareStreams<Stream>,
    /// Streams whose request is complete.
    pub started: &'c mut Vec<Rc<Stream>>,
}

/// Length of a field block at which the connection ends, in multiples of the limit for a request. A shorter block is decoded, since the
/// table of the connection needs it, and only its request is refused.
const BLOCKS: usize = 4;

/// Number of requests that are processed before their runners get a chance to run.
const BATCH: usize = 32;

impl SessionState {
    /// Ends the connection of a client that costs too much.
    pub(super) fn excess(&mut self, what: &'static str) {
        if !self.failed {
            self.failed = true;
            self.excess = Some(what);
            frame::push_goaway(&mut self.out, self.last, Code::EnhanceYourCalm);
        }
    }

    /// Returns `true` if the client has not opened this stream yet (RFC 9113, section 5.1.1).
    fn is_idle(&self, stream: u32) -> bool {
        // Clients open streams with odd numbers, and this server opens none.
        stream > self.last || stream.is_multiple_of(2)
    }
}

impl Session {
    /// Processes the received frames. Returns `true` if there may be more of them to process without reading.
    pub(super) fn process(self: &Rc<Self>, cx: &mut Context<'_>) -> Result<bool> {
        let mut input = std::mem::take(&mut self.state.borrow_mut().input);
        let mut at = 0;
        let done = self.frames(&input, &mut at, cx);
        if at >= input.len() {
            input.clear();
        } else {
            input.drain(..at);
        }
        self.state.borrow_mut().input = input;
        done
    }

    /// Processes frames of `input`, and moves `at` past each.
    fn frames(self: &Rc<Self>, input: &[u8], at: &mut usize, cx: &mut Context<'_>) -> Result<bool> {
        // A client may send very many small requests at once, and their runners have to begin before all are read.
        while cx.started.len() < BATCH {
            let rest = input.get(*at..).unwrap_or_default();
            let read = self.state.borrow_mut().connection.read(rest);
            let Some((frame, len)) = read.or_else(|v| self.refuse(v))? else { return Ok(false) };
            self.take(frame, cx)?;
            *at += len;
            if self.state.borrow().failed {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn refuse<T>(&self, v: Violation) -> Result<T> {
        // Malformed PRIORITY frames count against the allowance, too.
        if v.kind == kind::PRIORITY && matches!(v.rule, Rule::Length | Rule::Dependency) {
            calm(self.state.borrow_mut().budget.priority())?;
        }
        Err(v.into())
    }

    fn take(self: &Rc<Self>, frame: Frame<'_>, cx: &mut Context<'_>) -> Result<()> {
        match frame {
            Frame::Data { stream, content, len, end_stream } => {
                self.data(stream, &Data { content, len, end_stream })
            }
            Frame::Headers { section, fragment, end_headers: true } => {
                self.field_section(section, fragment, cx)
            }
            Frame::Headers { section, fragment, end_headers: false } => {
                self.state.borrow_mut().connection.field_block.begin(section, fragment);
                Ok(())
            }
            Frame::Continuation { fragment, end_headers } => self.continuation(fragment, end_headers, cx),
            Frame::Priority => calm(self.state.borrow_mut().budget.priority()),
            Frame::RstStream { stream, .. } => self.rst_stream(stream),
            Frame::Settings(settings) => self.settings(&settings, cx.now),
            Frame::SettingsAck => self.settings_ack(cx.now),
            Frame::Ping { ack, data } => self.ping(ack, data, cx.now),
            Frame::GoAway { .. } => {
                self.state.borrow_mut().client_leaves = true;
                Ok(())
            }
            Frame::WindowUpdate { stream, increment } => self.window_update(stream, increment, cx.now),
            Frame::PriorityUpdate { stream, value } => self.priority_update(stream, value),
            Frame::Unknown => calm(self.state.borrow_mut().budget.control(cx.now)),
        }
    }

    /// Resets a stream because of an error of the client.
    fn reset(&self, id: u32, code: Code) -> Result<()> {
        let mut s = self.state.borrow_mut();
        let stream = s.stream(id);
        s.remove(id, true);
        if stream.is_none() {
            s.push_reset(id, code);
        }
        let spent = s.budget.reset();
        drop(s);
        if let Some(stream) = stream {
            stream.break_off(Some(code));
        }
        calm(spent)
    }
}

/// A DATA frame of a stream.
struct Data<'b> {
    content: &'b [u8],
    /// Bytes that count for flow control.
    len: usize,
    end_stream: bool,
}

impl Data<'_> {
    /// Returns `true` if the content so far agrees with the length in `Content-Length`.
    fn keeps(&self, promised: u64) -> bool {
        let n = self.content.len() as u64;
        n <= promised && (!self.end_stream || n == promised)
    }
}

/// Content of requests.
impl Session {
    fn data(&self, id: u32, data: &Data<'_>) -> Result<()> {
        let mut s = self.state.borrow_mut();
        if data.content.is_empty() && !data.end_stream {
            calm(s.budget.empty_data())?;
        }
        // The window of the connection is opened at once, because the windows of the streams already bound the memory.
        let window = &mut s.connection.recv_window;
        window.received(data.len).or_else(flow_control("client violated connection flow control"))?;
        if let Some(increment) = window.refill(frame::MAX_WINDOW as u32) {
            frame::push_window_update(&mut s.out, 0, increment);
        }
        let stream = s.stream(id);
        drop(s);
        match stream {
            Some(stream) => self.content(&stream, data),
            None => self.late_content(id, data),
        }
    }

    fn content(&self, stream: &Stream, data: &Data<'_>) -> Result<()> {
        // Content after END_STREAM is an error of the stream (RFC 9113, section 5.1).
        if stream.ended.get() {
            return self.reset(stream.id, Code::StreamClosed);
        }
        let window = stream.recv_window.get() - data.len as i64;
        stream.recv_window.set(window);
        if window < 0 {
            // The client has sent more than the window of the stream allows (RFC 9113, section 6.9.1).
            return self.reset(stream.id, Code::FlowControlError);
        }
        // The reader of the request gets the error and answers with 400. The stream is reset after that response.
        if stream.request.receive(data.content.len(), data.end_stream).is_err() {
            stream.ended.set(data.end_stream);
            stream.request.wake_reader();
            return Ok(());
        }
        self.state.borrow_mut().moved += data.content.len() as u64;
        stream.received.borrow_mut().extend_from_slice(data.content);
        stream.skip_padding((data.len - data.content.len()) as u32);
        stream.ended.set(data.end_stream);
        stream.request.wake_reader();
        Ok(())
    }

    /// Ignores content of a stream that was answered before its request was complete, unless it breaks the rules.
    fn late_content(&self, id: u32, data: &Data<'_>) -> Result<()> {
        let mut s = self.state.borrow_mut();
        if s.is_idle(id) {
            return protocol("client sent DATA frame for idle stream");
        }
        // Content may still arrive for a stream that this side has ended, because the client has sent it before it knew.
        let Some(e) = s.ended.iter_mut().find(|e| e.id == id && e.by_us) else {
            drop(s);
            return self.reset(id, Code::StreamClosed);
        };
        let Some(left) = e.promised else { return Ok(()) };
        e.promised = Some(left.saturating_sub(data.content.len() as u64));
        if !data.keeps(left) {
            drop(s);
            return self.reset(id, Code::ProtocolError);
        }
        Ok(())
    }
}

/// Field sections: requests and trailers.
impl Session {
    fn continuation(self: &Rc<Self>, fragment: &[u8], last: bool, cx: &mut Context<'_>) -> Result<()> {
        let mut s = self.state.borrow_mut();
        let block = &mut s.connection.field_block;
        block.extend(fragment);
        if block.empty_continuations() > EMPTY_CONTINUATIONS {
            return calm(Err("empty CONTINUATION frames"));
        }
        let (number, size) = cx.limits.large_client_header_buffers;
        if block.len() > number.saturating_mul(size).saturating_mul(BLOCKS) {
            return fatal(Code::EnhanceYourCalm, "client sent too large field block");
        }
        let Some((section, bytes)) = last.then(|| block.finish()).flatten() else { return Ok(()) };
        drop(s);
        let done = self.field_section(section, &bytes, cx);
        self.state.borrow_mut().connection.field_block.recycle(bytes);
        done
    }

    /// Takes a whole field block, either of a request or of its trailers.
    fn field_section(self: &Rc<Self>, section: Section, block: &[u8], cx: &mut Context<'_>) -> Result<()> {
        let mut s = self.state.borrow_mut();
        // The stream was reset when its time was over, but the table of the decoder still needs the block.
        if s.timed_out_head.take_if(|id| *id == section.stream).is_some() {
            request::skip(&mut s.decoder, block, cx.scratch)?;
            return Ok(());
        }
        if section.stream <= s.last {
            drop(s);
            return self.trailers(section, block, cx);
        }
        let previous = std::mem::replace(&mut s.last, section.stream);
        let leaving = s.leaving || s.client_leaves;
        if section.circular && !leaving {
            // nginx ends the connection for this, which RFC 9113 allows.
            s.last = previous;
            return protocol("client sent HEADERS frame for stream with incorrect dependency");
        }
        if leaving || !self.has_room(&s, section) {
            return s.decline(section, block, cx.scratch);
        }
        drop(s);
        self.request(section, block, cx)
    }

    /// Returns `true` if one more request can be served.
    fn has_room(&self, s: &SessionState, section: Section) -> bool {
        // A client that has not acknowledged our SETTINGS may send as much as the protocol's initial window allows, which may be more
        // than our window.
        let ahead =
            !s.acknowledged && !section.end_stream && i64::from(self.settings.window) < frame::INITIAL_WINDOW;
        !ahead && s.streams.len() < self.settings.max_streams
    }

    fn request(self: &Rc<Self>, section: Section, block: &[u8], cx: &mut Context<'_>) -> Result<()> {
        let mut guard = self.state.borrow_mut();
        let s = &mut *guard;
        let mut head = cx.spare.pop().unwrap_or_default();
        head.clear();
        let stream = cx.ended.take(|| Stream::new(self, section.stream, s.connection.initial_window()));
        let parsed =
            request::parse(&mut s.decoder, block, section.end_stream, &mut head, cx.scratch, cx.limits);
        // The request gets its line in the access log when the connection ends.
        s.undecoded = parsed.is_err();
        let refusal = match parsed? {
            Outcome::Complete => None,
            Outcome::Refused(refusal) => Some(refusal),
        };
        s.prioritize(&stream, &head);
        if let Framing::Length(n) = head.framing {
            stream.request.promise(n);
        }
        stream.ended.set(section.end_stream);
        stream.request.begin(head, block.len(), refusal);
        s.streams.push(stream.clone());
        s.requests += 1;
        drop(guard);
        cx.started.push(stream);
        Ok(())
    }

    fn trailers(&self, section: Section, block: &[u8], cx: &mut Context<'_>) -> Result<()> {
        let id = section.stream;
        let mut guard = self.state.borrow_mut();
        let s = &mut *guard;
        // The trailers are not used, but the table of the decoder needs their fields.
        let trailers = request::skip(&mut s.decoder, block, cx.scratch)?;
        let stream = s.stream(id);
        let ended = s.ended.iter().find(|e| e.id == id).copied();
        drop(guard);
        // Trailers have no pseudo-header fields, and end the stream (RFC 9113, section 8.1).
        let malformed = trailers.pseudo || !section.end_stream;
        match (stream, ended) {
            (Some(stream), _) => self.end_request(&stream, malformed),
            // The client itself has ended the stream, so this is an error of the connection (RFC 9113, section 5.1).
            (None, Some(e)) if !e.by_us => {
                fatal(Code::StreamClosed, "client sent HEADERS frame for closed stream")
            }
            (None, Some(_)) if malformed => self.reset(id, Code::ProtocolError),
            (None, Some(_)) => Ok(()),
            (None, None) => protocol("client sent HEADERS frame with incorrect identifier"),
        }
    }

    /// Ends a request by its trailers.
    fn end_request(&self, stream: &Stream, malformed: bool) -> Result<()> {
        if stream.ended.get() {
            return self.reset(stream.id, Code::StreamClosed);
        }
        // Trailers end the content, which must be as long as `Content-Length` says (RFC 9113, section 8.1.1).
        if malformed || stream.request.promised().is_some_and(|left| left > 0) {
            return self.reset(stream.id, Code::ProtocolError);
        }
        stream.ended.set(true);
        stream.request.wake_reader();
        Ok(())
    }
}

impl SessionState {
    /// Declines a request without parsing it. The field block still passes through the decoder, whose table must stay
    /// in step with the client's. No RST_STREAM is needed while either side is leaving: GOAWAY covers the stream.
    fn decline(&mut self, section: Section, block: &[u8], scratch: &mut Vec<u8>) -> Result<()> {
        request::skip(&mut self.decoder, block, scratch)?;
        let window = Window::new(0);
        self.remember(Ended { id: section.stream, by_us: true, promised: None, window });
        if self.leaving || self.client_leaves {
            return Ok(());
        }
        self.push_reset(section.stream, Code::RefusedStream);
        calm(self.budget.reset())
    }

    /// Sets the priority of a new stream (RFC 9218, section 7). An earlier PRIORITY_UPDATE frame takes precedence over
    /// the field.
    fn prioritize(&mut self, stream: &Stream, head: &RequestHead) {
        if let Some(text) = head.get(Name::Priority) {
            stream.request.priority.set(Priority::parse(text));
        }
        if let Some(early) = self.early.take(u64::from(stream.id)) {
            stream.request.priority.set(early);
        }
    }
}

impl Session {
    fn priority_update(&self, id: u32, value: &[u8]) -> Result<()> {
        let mut s = self.state.borrow_mut();
        calm(s.budget.priority())?;
        let p = Priority::parse(value);
        if let Some(stream) = s.stream(id) {
            stream.request.priority.set(p);
        } else if id > s.last {
            s.early.note(u64::from(id), p);
        }
        Ok(())
    }

    fn rst_stream(&self, id: u32) -> Result<()> {
        let mut s = self.state.borrow_mut();
        if id > s.last {
            return protocol("client sent RST_STREAM frame with incorrect identifier");
        }
        let Some(stream) = s.stream(id) else {
            // After RST_STREAM the client must not send frames on this stream.
            if let Some(e) = s.ended.iter_mut().find(|e| e.id == id) {
                e.by_us = false;
            }
            return Ok(());
        };
        s.remove(id, false);
        let spent = s.budget.reset();
        drop(s);
        stream.break_off(None);
        calm(spent)
    }

    fn settings(&self, settings: &Settings<'_>, now: Instant) -> Result<()> {
        let mut guard = self.state.borrow_mut();
        let s = &mut *guard;
        // Ten settings cost as much work as one more frame.
        for _ in 0..1 + settings.count() / 10 {
            calm(s.budget.control(now))?;
        }
        for setting in settings.iter(Role::Server) {
            // Other settings have no effect here: our frames are never larger than the smallest limit that can be set, our encoder has no
            // table, and we open no streams.
            let Setting::InitialWindowSize(size) = setting? else { continue };
            let change = s.connection.set_initial_window(size);
            // A change of the initial window applies to all open streams, and may make their windows negative (RFC 9113, section 6.9.2).
            for stream in &s.streams {
                let mut window = stream.send_window.get();
                window.widen(change).or_else(flow_control("client made a flow control window too large"))?;
                stream.send_window.set(window);
            }
        }
        frame::push_settings_ack(&mut s.out);
        Ok(())
    }

    fn settings_ack(&self, now: Instant) -> Result<()> {
        let mut s = self.state.borrow_mut();
        s.acknowledged = true;
        calm(s.budget.control(now))
    }

    fn ping(&self, ack: bool, data: &[u8; 8], now: Instant) -> Result<()> {
        let mut s = self.state.borrow_mut();
        calm(s.budget.control(now))?;
        if !ack {
            frame::push_ping_ack(&mut s.out, data);
        }
        Ok(())
    }

    fn window_update(&self, id: u32, increment: u32, now: Instant) -> Result<()> {
        let mut s = self.state.borrow_mut();
        calm(s.budget.window_update(now))?;
        if id == 0 {
            // On the connection this ends the connection, while on a stream only the stream is reset (RFC 9113, section 6.9).
            if increment == 0 {
                return protocol("client sent WINDOW_UPDATE frame with incorrect window increment 0");
            }
            let widened = s.connection.send_window.widen(i64::from(increment));
            return widened.or_else(flow_control("client violated flow control for connection"));
        }
        let widened = if let Some(stream) = s.stream(id) {
            let mut window = stream.send_window.get();
            widen(&mut window, increment).map(|()| stream.send_window.set(window))
        } else if s.is_idle(id) {
            return protocol("client sent WINDOW_UPDATE frame for idle stream");
        } else if let Some(e) = s.ended.iter_mut().find(|e| e.id == id && e.by_us) {
            widen(&mut e.window, increment).inspect_err(|_| e.window = Window::new(0))
        } else {
            Ok(())
        };
        drop(s);
        widened.or_else(|code| self.reset(id, code))
    }
}

/// Widens the window of a stream.
fn widen(window: &mut Window, increment: u32) -> std::result::Result<(), Code> {
    if increment == 0 {
        return Err(Code::ProtocolError);
    }
    window.widen(i64::from(increment)).map_err(|FlowControlError| Code::FlowControlError)
}
