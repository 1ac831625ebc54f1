//! What the client's frames mean (RFC 9113, sections 5 and 6). Hot path.

use super::budget::EMPTY_CONTINUATIONS;
use super::stream::Spare;
use super::{Ended, Pending, Priority, Session, State, Stream};
use forebay_http::field::Name;
use forebay_http::h1::request::Limits;
use forebay_http::h2::frame::{self, Code, Header, flag, kind, setting};
use forebay_http::h2::hpack;
use forebay_http::h2::request::{self, Outcome};
use forebay_http::request::{Framing, RequestHead};
use std::rc::Rc;
use std::time::Instant;

/// Why the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fatal {
    /// What GOAWAY says.
    pub code: Code,
    /// What the error log says; for an excess, what there was too much of.
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

/// What processing needs from outside.
pub(super) struct Context<'c> {
    pub now: Instant,
    pub limits: &'c Limits,
    /// Heads that can be used again; in boxes, since they are handed over.
    #[allow(clippy::vec_box)]
    pub spare: &'c mut Vec<Box<RequestHead>>,
    pub scratch: &'c mut Vec<u8>,
    /// Streams that can be used again.
    pub ended: &'c mut Spare,
    /// Streams whose request is complete.
    pub started: &'c mut Vec<Rc<Stream>>,
}

/// Streams begun before those that are ready are served.
const BATCH: usize = 32;

impl State {
    /// A client that costs too much is sent away.
    pub(super) fn excess(&mut self, what: &'static str) {
        if !self.failed {
            self.failed = true;
            self.excess = Some(what);
            frame::push_goaway(&mut self.out, self.last, Code::EnhanceYourCalm);
        }
    }
}

impl Session {
    /// Works off the frames that have come. `Ok(true)`: there may be more to do without reading.
    pub(super) fn process(self: &Rc<Self>, cx: &mut Context<'_>) -> Result<bool> {
        let mut guard = self.state.borrow_mut();
        let mut input = std::mem::take(&mut guard.input);
        drop(guard);
        let mut at = 0;
        let done = loop {
            if cx.started.len() >= BATCH {
                break Ok(true);
            }
            let rest = input.get(at..).unwrap_or_default();
            let Some(header) = Header::parse(rest) else { break Ok(false) };
            if let Err(e) = self.judge(&header) {
                break Err(e);
            }
            let Some(payload) = rest.get(frame::HEADER_LEN..frame::HEADER_LEN + header.len) else {
                break Ok(false);
            };
            if let Err(e) = self.take(&header, payload, cx) {
                break Err(e);
            }
            at += frame::HEADER_LEN + header.len;
            if self.state.borrow().failed {
                break Ok(false);
            }
        };
        if at >= input.len() {
            input.clear();
        } else {
            input.drain(..at);
        }
        self.state.borrow_mut().input = input;
        done
    }

    /// What can be said by the header alone.
    fn judge(&self, h: &Header) -> Result<()> {
        let s = self.state.borrow();
        if h.len > frame::MAX_FRAME {
            return fatal(Code::FrameSizeError, "client sent too large frame");
        }
        if let Some(p) = s.pending
            && (h.kind != kind::CONTINUATION || h.stream != p.stream)
        {
            return protocol("client sent another frame within a field block");
        }
        Ok(())
    }

    fn take(self: &Rc<Self>, h: &Header, payload: &[u8], cx: &mut Context<'_>) -> Result<()> {
        match h.kind {
            kind::DATA => self.data(h, payload),
            kind::HEADERS => self.headers(h, payload, cx),
            kind::CONTINUATION => self.continuation(h, payload, cx),
            kind::PRIORITY => self.priority(h, payload),
            kind::RST_STREAM => self.rst_stream(h, payload),
            kind::SETTINGS => self.on_settings(h, payload, cx.now),
            kind::PUSH_PROMISE => protocol("client sent PUSH_PROMISE frame"),
            kind::PING => self.ping(h, payload, cx.now),
            kind::GOAWAY => self.goaway(h, payload),
            kind::WINDOW_UPDATE => self.window_update(h, payload, cx.now),
            kind::PRIORITY_UPDATE => self.priority_update(h, payload),
            _ => calm(self.state.borrow_mut().budget.control(cx.now)),
        }
    }

    /// Ends a stream for what the client did.
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

    fn data(&self, h: &Header, payload: &[u8]) -> Result<()> {
        let mut s = self.state.borrow_mut();
        if h.stream == 0 {
            return protocol("client sent DATA frame for no stream");
        }
        let (start, end) = frame::unpad(h, payload).map_err(|code| Fatal {
            code,
            reason: "client sent padded DATA frame with incorrect length",
            excess: false,
        })?;
        let end_stream = h.has(flag::END_STREAM);
        if start == end && !end_stream {
            calm(s.budget.empty_data())?;
        }
        // The connection's window is opened at once: what is kept is limited by the windows of the streams.
        s.recv_window -= h.len as i64;
        if s.recv_window < 0 {
            return fatal(Code::FlowControlError, "client violated connection flow control");
        }
        if s.recv_window < frame::MAX_WINDOW / 2 {
            let more = frame::MAX_WINDOW - s.recv_window;
            s.recv_window = frame::MAX_WINDOW;
            frame::push_window_update(&mut s.out, 0, more as u32);
        }
        let Some(stream) = s.stream(h.stream) else {
            if h.stream > s.last || h.stream.is_multiple_of(2) {
                return protocol("client sent DATA frame for idle stream");
            }
            let Some(e) = s.ended.iter_mut().find(|e| e.id == h.stream && e.by_us) else {
                drop(s);
                return self.reset(h.stream, Code::StreamClosed);
            };
            // Answered before it was complete: what comes is ignored, but not if it breaks the rules.
            let n = (end - start) as u64;
            if std::mem::take(&mut e.untold) && !end_stream {
                s.push_reset(h.stream, Code::NoError);
                return Ok(());
            }
            let Some(left) = e.promised else { return Ok(()) };
            e.promised = Some(left.saturating_sub(n));
            if n > left || (end_stream && n < left) {
                drop(s);
                return self.reset(h.stream, Code::ProtocolError);
            }
            return Ok(());
        };
        drop(s);
        if stream.ended.get() {
            return self.reset(h.stream, Code::StreamClosed);
        }
        let window = stream.recv_window.get() - h.len as i64;
        stream.recv_window.set(window);
        if window < 0 {
            return self.reset(h.stream, Code::FlowControlError);
        }
        let content = payload.get(start..end).unwrap_or_default();
        let n = content.len() as u64;
        if let Some(left) = stream.promised.get() {
            if n > left || (end_stream && n < left) {
                stream.wrong_length.set(true);
                stream.ended.set(end_stream);
                stream.wake_reader();
                return Ok(());
            }
            stream.promised.set(Some(left - n));
        }
        self.state.borrow_mut().moved += n;
        stream.received.borrow_mut().extend_from_slice(content);
        stream.skip_padding((h.len - content.len()) as u32);
        stream.ended.set(end_stream);
        stream.wake_reader();
        Ok(())
    }

    fn headers(self: &Rc<Self>, h: &Header, payload: &[u8], cx: &mut Context<'_>) -> Result<()> {
        if h.stream.is_multiple_of(2) {
            return protocol("client sent HEADERS frame with incorrect identifier");
        }
        let (mut start, end) = frame::unpad(h, payload).map_err(|code| Fatal {
            code,
            reason: "client sent padded HEADERS frame with incorrect length",
            excess: false,
        })?;
        let mut circular = false;
        if h.has(flag::PRIORITY) {
            let on = payload.get(start..end).and_then(frame::number);
            if end < start + 5 {
                return fatal(Code::FrameSizeError, "client sent HEADERS frame with incorrect length");
            }
            circular = on.is_some_and(|on| on & 0x7fff_ffff == h.stream);
            start += 5;
        }
        let block = payload.get(start..end).unwrap_or_default();
        let p = Pending { stream: h.stream, end_stream: h.has(flag::END_STREAM), continuations: 0, circular };
        if h.has(flag::END_HEADERS) {
            return self.block(p, block, cx);
        }
        let mut s = self.state.borrow_mut();
        s.block.clear();
        s.block.extend_from_slice(block);
        s.pending = Some(p);
        Ok(())
    }

    fn continuation(self: &Rc<Self>, h: &Header, payload: &[u8], cx: &mut Context<'_>) -> Result<()> {
        let mut s = self.state.borrow_mut();
        let Some(mut p) = s.pending else { return protocol("client sent unexpected CONTINUATION frame") };
        if payload.is_empty() {
            p.continuations += 1;
            if p.continuations > EMPTY_CONTINUATIONS {
                return calm(Err("empty CONTINUATION frames"));
            }
        }
        s.block.extend_from_slice(payload);
        let (number, size) = cx.limits.large_client_header_buffers;
        if s.block.len() > number.saturating_mul(size) {
            return fatal(Code::EnhanceYourCalm, "client sent too large field block");
        }
        if !h.has(flag::END_HEADERS) {
            s.pending = Some(p);
            return Ok(());
        }
        s.pending = None;
        let block = std::mem::take(&mut s.block);
        drop(s);
        let done = self.block(p, &block, cx);
        let mut s = self.state.borrow_mut();
        // Not kept: it would cost every idle connection.
        s.block = if block.capacity() <= 1024 { block } else { Vec::new() };
        s.block.clear();
        done
    }

    /// A complete field block: a request, or the trailers of one.
    fn block(self: &Rc<Self>, p: Pending, block: &[u8], cx: &mut Context<'_>) -> Result<()> {
        let mut guard = self.state.borrow_mut();
        let s = &mut *guard;
        if p.stream <= s.last {
            let open = s.stream(p.stream);
            let known = s.ended.iter().find(|e| e.id == p.stream).copied();
            let trailers = request::skip(&mut s.decoder, block, cx.scratch)?;
            drop(guard);
            return match (open, known) {
                (Some(stream), _) => self.trailers(&stream, p, trailers),
                (None, Some(e)) if e.by_us => {
                    if trailers.pseudo || !p.end_stream {
                        return self.reset(p.stream, Code::ProtocolError);
                    }
                    Ok(())
                }
                (None, Some(_)) => fatal(Code::StreamClosed, "client sent HEADERS frame for closed stream"),
                (None, None) => protocol("client sent HEADERS frame with incorrect identifier"),
            };
        }
        let previous = std::mem::replace(&mut s.last, p.stream);
        if s.leaving || s.client_leaves {
            request::skip(&mut s.decoder, block, cx.scratch)?;
            s.remember(Ended { id: p.stream, by_us: true, promised: None, window: 0, untold: false });
            return Ok(());
        }
        if p.circular {
            // nginx ends the connection for it, which RFC 9113 allows.
            s.last = previous;
            return protocol("client sent HEADERS frame for stream with incorrect dependency");
        }
        // Until it knows of our window, a client sends as much as the initial one lets it.
        let ahead =
            !s.acknowledged && !p.end_stream && i64::from(self.settings.window) < frame::INITIAL_WINDOW;
        if ahead || s.streams.len() >= self.settings.max_streams {
            request::skip(&mut s.decoder, block, cx.scratch)?;
            s.remember(Ended { id: p.stream, by_us: true, promised: None, window: 0, untold: false });
            s.push_reset(p.stream, Code::RefusedStream);
            return calm(s.budget.reset());
        }
        let mut head = cx.spare.pop().unwrap_or_default();
        head.clear();
        let stream = cx.ended.take(self, p.stream, s.peer_window);
        match request::parse(&mut s.decoder, block, p.end_stream, &mut head, cx.scratch, cx.limits)? {
            Outcome::Complete => {}
            Outcome::Refused(r) => stream.refusal.set(Some(r)),
            Outcome::TooLarge(reason) => return fatal(Code::EnhanceYourCalm, reason),
        }
        if let Some(text) = head.get(Name::Priority) {
            stream.priority.set(Priority::parse(text));
        }
        if let Some(at) = s.early.iter().position(|(id, _)| *id == p.stream) {
            stream.priority.set(s.early.swap_remove(at).1);
        }
        if let Framing::Length(n) = head.framing {
            stream.promised.set(Some(n));
        }
        stream.ended.set(p.end_stream);
        stream.head_len.set(block.len() as u32);
        *stream.head.borrow_mut() = Some(head);
        s.streams.push(stream.clone());
        s.requests += 1;
        drop(guard);
        cx.started.push(stream);
        Ok(())
    }

    fn trailers(&self, stream: &Rc<Stream>, p: Pending, t: request::Trailers) -> Result<()> {
        if stream.ended.get() {
            return self.reset(p.stream, Code::StreamClosed);
        }
        if !p.end_stream || t.pseudo || stream.promised.get().is_some_and(|left| left > 0) {
            return self.reset(p.stream, Code::ProtocolError);
        }
        stream.ended.set(true);
        stream.wake_reader();
        Ok(())
    }

    fn priority(&self, h: &Header, payload: &[u8]) -> Result<()> {
        if h.stream == 0 {
            return protocol("client sent PRIORITY frame with incorrect identifier");
        }
        calm(self.state.borrow_mut().budget.priority())?;
        // The scheme itself is gone (RFC 9113, section 5.3); what it says is only checked.
        if h.len != 5 {
            return fatal(Code::FrameSizeError, "client sent PRIORITY frame with incorrect length");
        }
        if frame::number(payload).is_some_and(|on| on & 0x7fff_ffff == h.stream) {
            return protocol("client sent PRIORITY frame with incorrect dependency");
        }
        Ok(())
    }

    fn priority_update(&self, h: &Header, payload: &[u8]) -> Result<()> {
        let Some((id, text)) =
            frame::number(payload).map(|id| (id & 0x7fff_ffff, payload.get(4..).unwrap_or_default()))
        else {
            return fatal(Code::FrameSizeError, "client sent PRIORITY_UPDATE frame with incorrect length");
        };
        if h.stream != 0 || id.is_multiple_of(2) {
            return protocol("client sent PRIORITY_UPDATE frame with incorrect identifier");
        }
        let mut s = self.state.borrow_mut();
        calm(s.budget.priority())?;
        let p = Priority::parse(text);
        if let Some(stream) = s.stream(id) {
            stream.priority.set(p);
        } else if id > s.last {
            s.early.retain(|(known, _)| *known != id);
            if s.early.len() < 16 {
                s.early.push((id, p));
            }
        }
        Ok(())
    }

    fn rst_stream(&self, h: &Header, payload: &[u8]) -> Result<()> {
        if h.len != 4 || payload.len() != 4 {
            return fatal(Code::FrameSizeError, "client sent RST_STREAM frame with incorrect length");
        }
        let mut s = self.state.borrow_mut();
        if h.stream == 0 || h.stream > s.last {
            return protocol("client sent RST_STREAM frame with incorrect identifier");
        }
        let Some(stream) = s.stream(h.stream) else {
            // From here on nothing may come for it.
            if let Some(e) = s.ended.iter_mut().find(|e| e.id == h.stream) {
                e.by_us = false;
            }
            return Ok(());
        };
        s.remove(h.stream, false);
        let spent = s.budget.reset();
        drop(s);
        stream.break_off(None);
        calm(spent)
    }

    fn on_settings(&self, h: &Header, payload: &[u8], now: Instant) -> Result<()> {
        let mut guard = self.state.borrow_mut();
        let s = &mut *guard;
        if h.stream != 0 {
            return protocol("client sent SETTINGS frame with incorrect identifier");
        }
        if h.has(flag::ACK) {
            s.acknowledged = true;
            if h.len != 0 {
                return fatal(
                    Code::FrameSizeError,
                    "client sent SETTINGS frame with the ACK flag and nonzero length",
                );
            }
            return calm(s.budget.control(now));
        }
        if !h.len.is_multiple_of(6) {
            return fatal(Code::FrameSizeError, "client sent SETTINGS frame with incorrect length");
        }
        // Each setting costs as much as a frame.
        for _ in 0..1 + h.len / 60 {
            calm(s.budget.control(now))?;
        }
        for (id, value) in frame::settings(payload) {
            match id {
                setting::ENABLE_PUSH if value > 1 => {
                    return protocol("client sent SETTINGS frame with incorrect ENABLE_PUSH value");
                }
                setting::INITIAL_WINDOW_SIZE => {
                    let value = i64::from(value);
                    if value > frame::MAX_WINDOW {
                        let reason = "client sent SETTINGS frame with incorrect INITIAL_WINDOW_SIZE value";
                        return fatal(Code::FlowControlError, reason);
                    }
                    let change = value - s.peer_window;
                    s.peer_window = value;
                    for stream in &s.streams {
                        let window = stream.send_window.get() + change;
                        if window > frame::MAX_WINDOW {
                            return fatal(
                                Code::FlowControlError,
                                "client made a flow control window too large",
                            );
                        }
                        stream.send_window.set(window);
                    }
                }
                // We send no larger frames than the smallest limit that can be set.
                setting::MAX_FRAME_SIZE if !(frame::MAX_FRAME as u32..=0xff_ffff).contains(&value) => {
                    return protocol("client sent SETTINGS frame with incorrect MAX_FRAME_SIZE value");
                }
                setting::NO_RFC7540_PRIORITIES if value > 1 => {
                    return protocol("client sent SETTINGS frame with incorrect NO_RFC7540_PRIORITIES value");
                }
                // HEADER_TABLE_SIZE does not matter: our encoder keeps no table.
                _ => {}
            }
        }
        frame::push_settings_ack(&mut s.out);
        Ok(())
    }

    fn ping(&self, h: &Header, payload: &[u8], now: Instant) -> Result<()> {
        if h.len != 8 {
            return fatal(Code::FrameSizeError, "client sent PING frame with incorrect length");
        }
        if h.stream != 0 {
            return protocol("client sent PING frame with incorrect identifier");
        }
        let mut s = self.state.borrow_mut();
        calm(s.budget.control(now))?;
        if !h.has(flag::ACK) {
            frame::push_header(&mut s.out, 8, kind::PING, flag::ACK, 0);
            s.out.extend_from_slice(payload);
        }
        Ok(())
    }

    fn goaway(&self, h: &Header, payload: &[u8]) -> Result<()> {
        if h.stream != 0 {
            return protocol("client sent GOAWAY frame with incorrect identifier");
        }
        if payload.len() < 8 {
            return fatal(Code::FrameSizeError, "client sent GOAWAY frame with incorrect length");
        }
        self.state.borrow_mut().client_leaves = true;
        Ok(())
    }

    fn window_update(&self, h: &Header, payload: &[u8], now: Instant) -> Result<()> {
        let Some(n) = frame::number(payload).filter(|_| h.len == 4) else {
            return fatal(Code::FrameSizeError, "client sent WINDOW_UPDATE frame with incorrect length");
        };
        let n = i64::from(n & 0x7fff_ffff);
        let mut s = self.state.borrow_mut();
        calm(s.budget.window_update(now))?;
        if h.stream == 0 {
            if n == 0 {
                return protocol("client sent WINDOW_UPDATE frame with incorrect window increment 0");
            }
            s.send_window += n;
            if s.send_window > frame::MAX_WINDOW {
                return fatal(Code::FlowControlError, "client violated flow control for connection");
            }
            return Ok(());
        }
        let Some(stream) = s.stream(h.stream) else {
            if h.stream > s.last || h.stream.is_multiple_of(2) {
                return protocol("client sent WINDOW_UPDATE frame for idle stream");
            }
            if let Some(e) = s.ended.iter_mut().find(|e| e.id == h.stream && e.by_us) {
                e.window += n;
                let code = if n == 0 { Code::ProtocolError } else { Code::FlowControlError };
                if n == 0 || e.window > frame::MAX_WINDOW {
                    e.window = 0;
                    drop(s);
                    return self.reset(h.stream, code);
                }
            }
            return Ok(());
        };
        drop(s);
        if n == 0 {
            return self.reset(h.stream, Code::ProtocolError);
        }
        let window = stream.send_window.get() + n;
        if window > frame::MAX_WINDOW {
            return self.reset(h.stream, Code::FlowControlError);
        }
        stream.send_window.set(window);
        Ok(())
    }
}
