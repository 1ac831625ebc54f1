//! One request and its response. Hot path.

use super::super::context::{Ctx, append_limited};
use super::super::flight::Flight;
use super::is_blocked;
use super::sections::{Meaning, Sections};
use crate::record;
use bytes::Bytes;
use forebay_http::h3::connection::Role;
use forebay_http::h3::input::{CUT, Failure, Input, Next};
use forebay_http::h3::{Code, Fatal};
use forebay_net::quic::{Dir, Link, Side, StreamId, Streams};

/// Longest field section, bytes.
const SECTION: usize = 256 * 1024;

/// End of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The stream has ended between frames.
    Whole,
    /// It has ended within a frame.
    Cut,
    /// The server has reset it with this code.
    Reset(u64),
}

/// A request and its response.
pub(super) struct Stream {
    pub(super) id: StreamId,
    pub(super) flight: Flight,
    status: u16,
    length: Option<u64>,
    got: u64,
    input: Input,
    /// A field section that waits for the dynamic table.
    blocked: Option<Bytes>,
    /// Bytes of the request that were sent, if not all were.
    sent: Option<usize>,
    content: Vec<u8>,
}

/// Placeholder.
const NONE: StreamId = StreamId::new(Side::Client, Dir::Bi, 0);

impl Default for Stream {
    fn default() -> Stream {
        Stream {
            id: NONE,
            flight: Flight::default(),
            status: 0,
            length: None,
            got: 0,
            input: Input::new(Role::Client, NONE.0, SECTION),
            blocked: None,
            sent: None,
            content: Vec::new(),
        }
    }
}

impl Stream {
    /// Begins a request; keeps memory of the last one.
    pub(super) fn begin(&mut self, id: StreamId, flight: Flight) {
        self.content.clear();
        let (input, content) = (Input::new(Role::Client, id.0, SECTION), std::mem::take(&mut self.content));
        *self = Stream { id, flight, input, content, sent: Some(0), ..Stream::default() };
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

    /// Reads what has come of the response. Returns its end, if that has come.
    pub(super) fn read(
        &mut self,
        ctx: &mut Ctx<'_>,
        link: &Link,
        sections: &mut Sections,
    ) -> Result<Option<End>, Fatal> {
        if self.is_blocked() {
            return Ok(None);
        }
        if let Some(code) = link.streams().received_reset(self.id) {
            return Ok(Some(End::Reset(code)));
        }
        self.input.note_readable();
        let before = self.input.received();
        let end = self.pull(ctx.keep_content, link, sections);
        ctx.count_in(self.input.received() - before);
        end
    }

    fn pull(
        &mut self,
        keep_content: bool,
        link: &Link,
        sections: &mut Sections,
    ) -> Result<Option<End>, Fatal> {
        while !self.is_blocked() {
            let Stream { input, got, content, .. } = self;
            let next = input.drain(link, |piece| {
                *got += piece.len() as u64;
                if keep_content {
                    append_limited(content, piece);
                }
            });
            match next {
                Ok(Next::Section(section)) => self.section(sections, section)?,
                Ok(Next::TooLarge) => return Err(Fatal::new(Code::ExcessiveLoad, "sent too many fields")),
                Ok(Next::End) => return Ok(Some(End::Whole)),
                Ok(Next::Nothing | Next::Content) => break,
                Err(CUT) => return Ok(Some(End::Cut)),
                Err(Failure::Connection(fatal)) => return Err(fatal),
                // It was looked for above.
                Err(Failure::Reset) => break,
            }
        }
        Ok(None)
    }

    /// Takes a field section, or has it wait for the dynamic table.
    fn section(&mut self, sections: &mut Sections, section: Bytes) -> Result<(), Fatal> {
        match sections.meaning(self.id, &section)? {
            Some(meaning) => self.fields(meaning),
            None => {
                self.blocked = Some(section);
                Ok(())
            }
        }
    }

    /// Takes a field section that has waited, if all that it needs has come. Returns `true` if the stream is not blocked any more.
    pub(super) fn unblock(&mut self, sections: &mut Sections) -> Result<bool, Fatal> {
        let Some(section) = self.blocked.take() else { return Ok(false) };
        self.section(sections, section)?;
        Ok(!self.is_blocked())
    }

    /// Takes the fields of a response, of an interim one, or trailers.
    fn fields(&mut self, meaning: Meaning) -> Result<(), Fatal> {
        if self.status != 0 {
            return Ok(());
        }
        match meaning.status {
            100..200 => self.input.await_head(),
            0 => return Err(Fatal::new(Code::MessageError, "sent a response without a status")),
            status => (self.status, self.length) = (status, meaning.length),
        }
        Ok(())
    }

    /// Counts the response, which has ended.
    pub(super) fn end(&self, ctx: &mut Ctx<'_>, end: End) {
        let has_length = self.length.is_none_or(|n| n == self.got || ctx.is_head(self.flight));
        match self.status {
            0 => ctx.failed(self.flight, record::Failure::Protocol),
            status if end == End::Whole && has_length => {
                ctx.answered(self.flight, Some(status), self.got, &self.content);
            }
            _ => ctx.failed(self.flight, record::Failure::Length),
        }
    }
}
