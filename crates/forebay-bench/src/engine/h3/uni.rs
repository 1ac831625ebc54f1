//! Unidirectional streams: control, and those of QPACK (RFC 9114, section 6.2; RFC 9204, section 4.2).

use super::super::context::Ctx;
use super::{Fatal, H3, number};
use forebay_http::h3::Code;
use forebay_http::h3::frame::{self, Header, MAX_CONTROL_FRAME, Settings, kind, setting, stream};
use forebay_http::h3::qpack::{Error, Feedback, TABLE_CAPACITY, feedback};
use forebay_net::quic::{Dir, Next, ReadError, StreamId};

/// Streams whose fields may wait for the dynamic table.
const BLOCKED: u64 = 100;

/// Unidirectional streams that the server may have open at a time.
pub(in crate::engine) const UNIS: u32 = 16;

/// A stream of the server.
pub(super) struct Uni {
    id: StreamId,
    /// Type of the stream, once it has come.
    kind: Option<u64>,
    /// Bytes that are no whole frame or instruction.
    input: Vec<u8>,
}

/// Returns the beginning of our control stream.
pub(super) fn settings() -> Vec<u8> {
    let mut out = Vec::new();
    frame::push_varint(&mut out, stream::CONTROL);
    let capacity = (setting::QPACK_MAX_TABLE_CAPACITY, TABLE_CAPACITY as u64);
    frame::push_settings(&mut out, &[capacity, (setting::QPACK_BLOCKED_STREAMS, BLOCKED)]);
    out
}

impl H3 {
    /// Accepts streams of the server.
    pub(super) fn accept(&mut self, ctx: &mut Ctx<'_>) -> Result<(), Fatal> {
        loop {
            let id = self.link.streams().accept(Dir::Uni);
            let Some(id) = id else { return Ok(()) };
            self.unis.push(Uni { id, kind: None, input: Vec::new() });
            self.read_uni(ctx, id)?;
        }
    }

    /// Reads what has come of a stream.
    pub(super) fn read_uni(&mut self, ctx: &mut Ctx<'_>, id: StreamId) -> Result<(), Fatal> {
        loop {
            let Some(at) = self.unis.iter().position(|uni| uni.id == id) else { return Ok(()) };
            // A statement of its own: what follows uses the link.
            let read = self.link.streams().read(id, 4096);
            match read {
                Ok(Some(chunk)) if !chunk.bytes.is_empty() || chunk.next != Next::End => {
                    ctx.count_in(chunk.bytes.len() as u64);
                    let Some(uni) = self.unis.get_mut(at) else { return Ok(()) };
                    let mut input = std::mem::take(&mut uni.input);
                    input.extend_from_slice(&chunk.bytes);
                    let done = self.uni_bytes(ctx, at, &input)?;
                    input.drain(..done);
                    if let Some(uni) = self.unis.get_mut(at).filter(|uni| uni.id == id) {
                        uni.input = input;
                    }
                    match chunk.next {
                        Next::More => {}
                        Next::Blocked => return self.tell(),
                        Next::End => return self.uni_ended(id),
                    }
                }
                Err(ReadError::Blocked) => return self.tell(),
                Err(ReadError::Closed) => return Ok(()),
                Ok(_) | Err(ReadError::Reset(_)) => return self.uni_ended(id),
            }
        }
    }

    /// Handles the end of a stream of the server.
    fn uni_ended(&mut self, id: StreamId) -> Result<(), Fatal> {
        let Some(at) = self.unis.iter().position(|uni| uni.id == id) else { return Ok(()) };
        match self.unis.swap_remove(at).kind {
            Some(stream::CONTROL | stream::ENCODER | stream::DECODER) => {
                Err((Code::ClosedCriticalStream, "the server closed a critical stream"))
            }
            _ => Ok(()),
        }
    }

    /// Takes bytes of a stream. Returns how many were taken.
    fn uni_bytes(&mut self, ctx: &mut Ctx<'_>, at: usize, bytes: &[u8]) -> Result<usize, Fatal> {
        let Some((id, known)) = self.unis.get(at).map(|uni| (uni.id, uni.kind)) else { return Ok(0) };
        let (kind, len) = match known {
            Some(kind) => (kind, 0),
            None => {
                let Some((kind, len)) = frame::varint(bytes) else { return Ok(0) };
                if kind <= stream::DECODER && self.unis.iter().any(|uni| uni.kind == Some(kind)) {
                    return Err((Code::StreamCreationError, "the server opened a critical stream twice"));
                }
                if let Some(uni) = self.unis.get_mut(at) {
                    uni.kind = Some(kind);
                }
                (kind, len)
            }
        };
        let rest = bytes.get(len..).unwrap_or_default();
        let done = match kind {
            stream::CONTROL => self.control(ctx, rest)?,
            stream::ENCODER => {
                let done = self.sections.instructions(rest)?;
                self.unblock(ctx)?;
                done
            }
            stream::DECODER => told(rest)?,
            stream::PUSH => return Err((Code::IdError, "the server pushed without being allowed to")),
            _ => {
                let _ = self.link.streams().stop(id, number(Code::StreamCreationError));
                self.unis.swap_remove(at);
                rest.len()
            }
        };
        Ok(len + done)
    }

    /// Handles frames of the control stream. Returns the number of bytes that were whole frames.
    fn control(&mut self, ctx: &mut Ctx<'_>, bytes: &[u8]) -> Result<usize, Fatal> {
        let mut at = 0;
        while let Some((header, len)) = bytes.get(at..).and_then(Header::read) {
            if !self.has_settings && header.kind != kind::SETTINGS {
                return Err((Code::MissingSettings, "the server began its control stream without SETTINGS"));
            }
            if header.len > MAX_CONTROL_FRAME {
                return Err((Code::ExcessiveLoad, "the server sent too large a control frame"));
            }
            let begin = at + len;
            let Some(payload) = bytes.get(begin..begin + header.len as usize) else { break };
            self.control_frame(ctx, header, payload)?;
            at = begin + payload.len();
        }
        Ok(at)
    }

    fn control_frame(&mut self, ctx: &mut Ctx<'_>, header: Header, payload: &[u8]) -> Result<(), Fatal> {
        let unexpected = Err((Code::FrameUnexpected, "the server sent a control frame that it must not"));
        match header.kind {
            kind::SETTINGS if self.has_settings => unexpected,
            kind::SETTINGS => {
                self.has_settings = true;
                let read = Settings::read(payload);
                read.map(drop).map_err(|code| (code, "the server sent invalid SETTINGS"))
            }
            kind::GOAWAY => {
                let first =
                    frame::id(payload).map_err(|code| (code, "the server sent a malformed GOAWAY"))?;
                if self.goaway.is_some_and(|before| first > before) {
                    return Err((Code::IdError, "the server sent GOAWAY with a greater identifier"));
                }
                self.go_away(ctx, first);
                Ok(())
            }
            kind::DATA | kind::HEADERS | kind::PUSH_PROMISE | kind::MAX_PUSH_ID | kind::CANCEL_PUSH => {
                unexpected
            }
            _ if header.is_reserved() => unexpected,
            _ => Ok(()),
        }
    }

    /// Goes on with responses that have waited for the dynamic table.
    fn unblock(&mut self, ctx: &mut Ctx<'_>) -> Result<(), Fatal> {
        let H3 { streams, sections, .. } = self;
        let mut ready = Vec::new();
        for stream in streams.iter_mut() {
            if stream.unblock(ctx, sections)? {
                ready.push(stream.id);
            }
        }
        ready.into_iter().try_for_each(|id| self.read(ctx, id))
    }

    /// Sends what the QPACK decoder has to say, on a stream that is opened for it.
    pub(super) fn tell(&mut self) -> Result<(), Fatal> {
        if self.sections.feedback.is_empty() {
            return Ok(());
        }
        if self.feedback.is_none() {
            self.feedback = self.open_uni(&[stream::DECODER as u8]).map(|(id, _)| id);
        }
        // The server lets us open none yet, or not send yet: later.
        let Some(id) = self.feedback else { return Ok(()) };
        if let Ok(n) = self.link.streams().write_slice(id, &self.sections.feedback) {
            self.sections.feedback.drain(..n);
        }
        Ok(())
    }
}

/// Reads the server's decoder stream. We insert nothing, so that only cancellations are right. Returns the number of bytes that were
/// whole instructions.
fn told(bytes: &[u8]) -> Result<usize, Fatal> {
    let mut at = 0;
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        match feedback(rest) {
            Ok((Feedback::StreamCancellation(_), len)) => at += len,
            Err(Error::Truncated) => break,
            _ => return Err((Code::DecoderStreamError, "the server acknowledged what was not sent")),
        }
    }
    Ok(at)
}
