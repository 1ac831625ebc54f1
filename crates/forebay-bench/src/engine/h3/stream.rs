//! One request and its response. Hot path.

use super::super::context::{Ctx, append_limited};
use super::super::flight::Flight;
use super::sections::{Meaning, Sections};
use super::{Fatal, is_blocked};
use crate::record::Failure;
use forebay_http::h3::Code;
use forebay_http::h3::frame::{Header, kind};
use forebay_net::quic::{Dir, Side, StreamId, Streams};

/// Most bytes of a field section.
const SECTION: u64 = 256 * 1024;

/// A request and its response.
pub(super) struct Stream {
    pub(super) id: StreamId,
    pub(super) flight: Flight,
    status: u16,
    length: Option<u64>,
    got: u64,
    /// Bytes of the payload of a DATA frame that have not come.
    content_left: u64,
    /// Bytes of a frame without a meaning that have not come.
    skip_left: u64,
    /// Begin of a frame that is not whole yet.
    partial: Vec<u8>,
    /// A field section that waits for the dynamic table.
    blocked: Option<Vec<u8>>,
    /// Bytes of the request that were sent, if not all were.
    sent: Option<usize>,
    content: Vec<u8>,
}

impl Default for Stream {
    fn default() -> Stream {
        Stream {
            id: StreamId::new(Side::Client, Dir::Bi, 0),
            flight: Flight::default(),
            status: 0,
            length: None,
            got: 0,
            content_left: 0,
            skip_left: 0,
            partial: Vec::new(),
            blocked: None,
            sent: None,
            content: Vec::new(),
        }
    }
}

fn unexpected<T>() -> Result<T, Fatal> {
    Err((Code::FrameUnexpected, "the server sent a frame where it must not"))
}

impl Stream {
    /// Begins a request; keeps memory of the last one.
    pub(super) fn begin(&mut self, id: StreamId, flight: Flight) {
        self.partial.clear();
        self.content.clear();
        let (partial, content) = (std::mem::take(&mut self.partial), std::mem::take(&mut self.content));
        *self = Stream { id, flight, partial, content, sent: Some(0), ..Stream::default() };
    }

    /// Sends as much of the request as QUIC takes.
    pub(super) fn send(&mut self, ctx: &mut Ctx<'_>, streams: &mut Streams) {
        let Some(request) = ctx.load.requests.get(self.flight.request as usize) else { return };
        while let Some(at) = self.sent {
            let rest = match request.h3.get(at..).filter(|rest| !rest.is_empty()) {
                Some(head) => head,
                None => request.body.get(at - request.h3.len()..).unwrap_or_default(),
            };
            if rest.is_empty() {
                // It cannot be finished when the server has stopped it.
                let _ = streams.finish(self.id);
                self.sent = None;
                return;
            }
            match streams.write_slice(self.id, rest) {
                Ok(n) => {
                    ctx.count_out(n as u64);
                    self.sent = Some(at + n);
                }
                Err(e) if is_blocked(&e) => return,
                Err(_) => self.sent = None,
            }
        }
    }

    /// Sends nothing more of the request.
    pub(super) fn stop_sending(&mut self) {
        self.sent = None;
    }

    /// Returns `true` if the response waits for the dynamic table.
    pub(super) fn is_blocked(&self) -> bool {
        self.blocked.is_some()
    }

    /// Takes bytes of the response.
    pub(super) fn bytes(&mut self, ctx: &Ctx<'_>, sections: &mut Sections, data: &[u8]) -> Result<(), Fatal> {
        if self.partial.is_empty() {
            let used = self.frames(ctx, sections, data)?;
            self.partial.extend_from_slice(data.get(used..).unwrap_or_default());
            return Ok(());
        }
        let mut whole = std::mem::take(&mut self.partial);
        whole.extend_from_slice(data);
        let used = self.frames(ctx, sections, &whole)?;
        whole.drain(..used);
        self.partial = whole;
        Ok(())
    }

    /// Takes frames and parts of them. Returns the number of bytes that were taken.
    fn frames(&mut self, ctx: &Ctx<'_>, sections: &mut Sections, bytes: &[u8]) -> Result<usize, Fatal> {
        let mut at = 0;
        while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
            if self.content_left > 0 {
                let part = first(rest, self.content_left);
                self.content_left -= part.len() as u64;
                self.got += part.len() as u64;
                if ctx.keep_content {
                    append_limited(&mut self.content, part);
                }
                at += part.len();
                continue;
            }
            if self.skip_left > 0 {
                let part = first(rest, self.skip_left);
                self.skip_left -= part.len() as u64;
                at += part.len();
                continue;
            }
            let Some((header, len)) = Header::read(rest) else { break };
            match header.kind {
                kind::DATA if self.status != 0 => self.content_left = header.len,
                kind::HEADERS => {
                    if header.len > SECTION {
                        return Err((Code::ExcessiveLoad, "the server sent too many fields"));
                    }
                    let end = len + header.len as usize;
                    let Some(section) = rest.get(len..end) else { break };
                    at += end;
                    match sections.meaning(self.id, section)? {
                        Some(meaning) => self.fields(meaning)?,
                        None => {
                            self.blocked = Some(section.to_vec());
                            break;
                        }
                    }
                    continue;
                }
                kind::PUSH_PROMISE => {
                    return Err((Code::IdError, "the server pushed without being allowed to"));
                }
                kind::DATA
                | kind::SETTINGS
                | kind::CANCEL_PUSH
                | kind::GOAWAY
                | kind::MAX_PUSH_ID
                | kind::PRIORITY_UPDATE
                | kind::PRIORITY_UPDATE_PUSH => return unexpected(),
                _ if header.is_reserved() => return unexpected(),
                _ => self.skip_left = header.len,
            }
            at += len;
        }
        Ok(at)
    }

    /// Takes a field section that has waited, if all that it needs has come. Returns `true` if the stream is not blocked any more.
    pub(super) fn unblock(&mut self, ctx: &Ctx<'_>, sections: &mut Sections) -> Result<bool, Fatal> {
        let Some(section) = self.blocked.take() else { return Ok(false) };
        let Some(meaning) = sections.meaning(self.id, &section)? else {
            self.blocked = Some(section);
            return Ok(false);
        };
        self.fields(meaning)?;
        let rest = std::mem::take(&mut self.partial);
        self.bytes(ctx, sections, &rest)?;
        Ok(true)
    }

    /// Takes the fields of a response, of an interim one, or trailers.
    fn fields(&mut self, meaning: Meaning) -> Result<(), Fatal> {
        if self.status != 0 || (100..200).contains(&meaning.status) {
            return Ok(());
        }
        if meaning.status == 0 {
            return Err((Code::MessageError, "the server sent a response without a status"));
        }
        (self.status, self.length) = (meaning.status, meaning.length);
        Ok(())
    }

    /// Counts the response, which has ended.
    pub(super) fn end(&self, ctx: &mut Ctx<'_>) {
        let is_whole = self.content_left == 0 && self.skip_left == 0 && self.partial.is_empty();
        let has_length = self.length.is_none_or(|n| n == self.got || ctx.is_head(self.flight));
        match self.status {
            0 => ctx.failed(self.flight, Failure::Protocol),
            status if is_whole && has_length => {
                ctx.answered(self.flight, Some(status), self.got, &self.content);
            }
            _ => ctx.failed(self.flight, Failure::Length),
        }
    }
}

/// Returns the first `most` bytes, or all.
fn first(bytes: &[u8], most: u64) -> &[u8] {
    let most = usize::try_from(most).unwrap_or(usize::MAX).min(bytes.len());
    bytes.get(..most).unwrap_or_default()
}
