//! The HTTP/1 side of a connection: requests under way and the response that is being read. Answers of raw protocols are
//! read as responses without a head. Hot path.

use super::context::{Ctx, append_limited};
use super::flight::Flight;
use super::known_head::Meaning;
use crate::clock;
use crate::load::Protocol;
use crate::raw::Answer;
use crate::record::Failure;
use forebay_http::h1::chunked::{Chunked, Step};
use forebay_http::h1::client::{ResponseHead, framing_of_response, parse};
use forebay_http::h1::request::Status;
use forebay_http::request::Framing;
use std::collections::VecDeque;

/// Longest head that is read.
const HEAD: usize = 65_536;
/// From how many bytes of content on it pays to have the kernel drop them.
const DROP_FROM: u64 = 48 * 1024;

/// The part of a response that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Expected {
    Head,
    /// So many bytes of content.
    Length(u64),
    Chunks,
    /// Content until the end of the connection.
    Stream,
}

/// HTTP/1 on a connection. The value stays with the slot, so that the next connection finds its memory.
pub(super) struct H1 {
    /// Requests under way, oldest first.
    flights: VecDeque<Flight>,
    head: ResponseHead,
    chunked: Chunked,
    expected: Expected,
    /// Status of the response; `None` in a protocol without statuses.
    status: Option<u16>,
    keep_alive: bool,
    /// Bytes of content of the response so far.
    received: u64,
    /// Content, if it is checked.
    content: Vec<u8>,
    /// Set when the server closes the connection after its response.
    closing: bool,
    /// Time at which the newest request was sent, ns; kept for [`crate::load::Load::split`] only.
    left_at: u64,
    /// Time at which its response began, ns; 0: not yet. Kept for [`crate::load::Load::split`] only.
    came_at: u64,
    /// The connection sends no request before this time, ns ([`crate::load::Load::think`]).
    gate: u64,
}

impl H1 {
    pub(super) fn new(parallel: usize) -> H1 {
        H1 {
            flights: VecDeque::with_capacity(parallel + 1),
            head: ResponseHead::default(),
            chunked: Chunked::default(),
            expected: Expected::Head,
            status: None,
            keep_alive: true,
            received: 0,
            content: Vec::new(),
            closing: false,
            left_at: 0,
            came_at: 0,
            gate: 0,
        }
    }

    /// Forgets the last connection; keeps memory and the pause that is under way.
    pub(super) fn reset(&mut self) {
        let used = self.head.buf.len();
        if used > 0 {
            self.head.advance(used);
        }
        self.expected = Expected::Head;
        self.keep_alive = true;
        self.received = 0;
        self.content.clear();
        self.closing = false;
    }

    /// Notes a request as sent.
    #[inline]
    pub(super) fn send(&mut self, ctx: &Ctx<'_>, flight: Flight) {
        if ctx.load.split {
            (self.left_at, self.came_at) = (ctx.now, 0);
        }
        self.flights.push_back(flight);
    }

    /// Returns how many requests are under way.
    #[inline]
    pub(super) fn active(&self) -> usize {
        self.flights.len()
    }

    /// Returns the requests under way, oldest first.
    pub(super) fn flights(&mut self) -> &mut VecDeque<Flight> {
        &mut self.flights
    }

    /// Returns when the oldest request under way left.
    pub(super) fn oldest_start(&self) -> Option<u64> {
        self.flights.front().map(|f| f.start)
    }

    /// Returns the bytes of content that came of an unfinished response.
    pub(super) fn begun(&self) -> Option<u64> {
        (self.expected != Expected::Head).then_some(self.received)
    }

    /// Returns `true` if the server closes the connection after its response.
    #[inline]
    pub(super) fn is_closing(&self) -> bool {
        self.closing
    }

    /// Returns the time before which no request is sent, ns.
    #[inline]
    pub(super) fn gate(&self) -> u64 {
        self.gate
    }

    /// Takes bytes of the server. An error ends the connection.
    pub(super) fn bytes(&mut self, ctx: &mut Ctx<'_>, data: &[u8]) -> Result<(), Failure> {
        let mut data = data;
        while !data.is_empty() {
            data = match self.expected {
                Expected::Head => self.take_head(ctx, data)?,
                Expected::Length(left) => self.take_length(ctx, left, data),
                Expected::Chunks => self.take_chunk(ctx, data)?,
                Expected::Stream => {
                    self.take_content(ctx, data);
                    &[]
                }
            };
        }
        Ok(())
    }

    /// Takes bytes of a head. Returns the bytes after it, none while it is incomplete.
    #[inline]
    fn take_head<'d>(&mut self, ctx: &mut Ctx<'_>, data: &'d [u8]) -> Result<&'d [u8], Failure> {
        let Some(flight) = self.flights.front() else { return unasked(ctx) };
        let request = flight.request as usize;
        if ctx.load.split && self.came_at == 0 {
            self.came_at = ctx.now;
        }
        if ctx.load.protocol == Protocol::Raw {
            return Ok(self.begin_raw(ctx, data));
        }
        let known = ctx.known_heads.get(request).filter(|_| self.head.buf.is_empty());
        if let Some((meaning, rest)) = known.and_then(|known| known.matching(data)) {
            self.begin(ctx, meaning);
            return Ok(rest);
        }
        self.parse_head(ctx, request, data)
    }

    /// Begins an answer of a raw protocol. Returns the bytes that are left for it.
    #[inline]
    fn begin_raw<'d>(&mut self, ctx: &mut Ctx<'_>, data: &'d [u8]) -> &'d [u8] {
        let framing = match ctx.load.answer {
            Answer::Bytes(n) => Framing::Length(n),
            Answer::Close => Framing::Stream,
            Answer::First => {
                self.take_piece(ctx, data);
                return &[];
            }
        };
        self.begin(ctx, Meaning { status: None, framing, keep_alive: true });
        data
    }

    /// Takes an answer that is complete: a datagram, or the first bytes of a raw protocol.
    #[inline]
    fn take_piece(&mut self, ctx: &mut Ctx<'_>, data: &[u8]) {
        (self.status, self.keep_alive, self.received) = (None, true, 0);
        self.content.clear();
        self.take_content(ctx, data);
        self.done(ctx);
    }

    /// Takes a datagram. One that nothing waits for is a second answer, or came late: it is dropped.
    #[inline]
    pub(super) fn datagram(&mut self, ctx: &mut Ctx<'_>, data: &[u8]) {
        if self.flights.is_empty() {
            return;
        }
        if ctx.load.split && self.came_at == 0 {
            self.came_at = ctx.now;
        }
        self.take_piece(ctx, data);
    }

    // Most heads are known: this stays out of the loop that reads them.
    #[inline(never)]
    fn parse_head<'d>(
        &mut self,
        ctx: &mut Ctx<'_>,
        request: usize,
        data: &'d [u8],
    ) -> Result<&'d [u8], Failure> {
        let before = self.head.buf.len();
        let part = data.get(..HEAD).unwrap_or(data);
        self.head.buf.extend_from_slice(part);
        match parse(&mut self.head, HEAD) {
            Err(_) => return Err(Failure::Protocol),
            Ok(Status::Partial) => return Ok(&[]),
            Ok(Status::Complete) => {}
        }
        let rest = data.get(self.head.len.saturating_sub(before)..).unwrap_or_default();
        if !self.head.is_interim() {
            let meaning = self.meaning(ctx, request);
            if let Some(known) = ctx.known_heads.get_mut(request) {
                known.remember(&self.head, meaning);
            }
            self.begin(ctx, meaning);
        }
        let all = self.head.buf.len();
        self.head.advance(all);
        Ok(rest)
    }

    fn meaning(&self, ctx: &Ctx<'_>, request: usize) -> Meaning {
        let to_head = ctx.load.requests.get(request).is_some_and(|r| r.head);
        Meaning {
            status: Some(self.head.status),
            framing: framing_of_response(&self.head, to_head),
            keep_alive: self.head.keep_alive,
        }
    }

    /// Begins a response whose head is complete.
    #[inline]
    fn begin(&mut self, ctx: &mut Ctx<'_>, meaning: Meaning) {
        (self.status, self.keep_alive, self.received) = (meaning.status, meaning.keep_alive, 0);
        self.content.clear();
        match meaning.framing {
            Framing::None | Framing::Length(0) => self.done(ctx),
            Framing::Length(n) => self.expected = Expected::Length(n),
            Framing::Chunked => {
                self.chunked.reset();
                self.expected = Expected::Chunks;
            }
            Framing::Stream => {
                self.keep_alive = false;
                self.expected = Expected::Stream;
            }
        }
    }

    /// Takes content of a known length. Returns the bytes after it.
    #[inline]
    fn take_length<'d>(&mut self, ctx: &mut Ctx<'_>, left: u64, data: &'d [u8]) -> &'d [u8] {
        let n = left.min(data.len() as u64) as usize;
        let (content, rest) = data.split_at(n);
        self.take_content(ctx, content);
        self.length_left(ctx, left - n as u64);
        rest
    }

    #[inline(never)]
    fn take_chunk<'d>(&mut self, ctx: &mut Ctx<'_>, data: &'d [u8]) -> Result<&'d [u8], Failure> {
        match self.chunked.decode(data).map_err(|_| Failure::Protocol)? {
            Step::Data { start, end } => {
                let content = data.get(start..end).unwrap_or_default();
                self.take_content(ctx, content);
                Ok(data.get(end..).unwrap_or_default())
            }
            Step::More => Ok(&[]),
            Step::End { consumed } => {
                let rest = data.get(consumed..).unwrap_or_default();
                self.done(ctx);
                Ok(rest)
            }
        }
    }

    #[inline]
    fn take_content(&mut self, ctx: &mut Ctx<'_>, content: &[u8]) {
        self.received += content.len() as u64;
        if ctx.keep_content {
            append_limited(&mut self.content, content);
        }
    }

    /// Returns how much of the coming content the kernel may drop, if that pays.
    #[inline]
    pub(super) fn skippable(&self) -> Option<u64> {
        match self.expected {
            Expected::Length(left) if left >= DROP_FROM => Some(left),
            _ => None,
        }
    }

    /// Counts `n` of the `left` bytes of content as received that the kernel has dropped.
    pub(super) fn skip(&mut self, ctx: &mut Ctx<'_>, n: u64, left: u64) {
        ctx.count_in(n);
        self.received += n;
        if left == n {
            // Dropping megabytes takes a while; the response ends now, not when the event was noticed.
            ctx.now = clock();
        }
        self.length_left(ctx, left - n);
    }

    fn length_left(&mut self, ctx: &mut Ctx<'_>, left: u64) {
        if left > 0 {
            self.expected = Expected::Length(left);
        } else {
            self.done(ctx);
        }
    }

    /// Ends the response to the oldest request.
    #[inline]
    fn done(&mut self, ctx: &mut Ctx<'_>) {
        self.expected = Expected::Head;
        self.closing |= !self.keep_alive;
        let Some(flight) = self.flights.pop_front() else { return };
        if ctx.load.split {
            self.record_parts(ctx, flight);
        }
        ctx.answered(flight, self.status, self.received, &self.content);
        self.gate = ctx.gate();
    }

    /// Records the times of a request as ab takes them apart.
    fn record_parts(&self, ctx: &mut Ctx<'_>, flight: Flight) {
        ctx.record.dial.record(self.left_at.saturating_sub(flight.start));
        ctx.record.processing.record(ctx.now.saturating_sub(self.left_at));
        ctx.record.waiting.record(self.came_at.saturating_sub(self.left_at));
    }

    /// Takes the end of the connection. Returns the failure that it is.
    pub(super) fn closed(&mut self, ctx: &mut Ctx<'_>) -> Option<Failure> {
        match self.expected {
            Expected::Stream => {
                self.done(ctx);
                None
            }
            Expected::Head if self.flights.is_empty() => None,
            Expected::Head => Some(Failure::Read),
            Expected::Length(_) | Expected::Chunks => Some(Failure::Length),
        }
    }

    /// Returns the failure that a reset is: a response cut short, or a request without one.
    pub(super) fn reset_by_peer(&self) -> Failure {
        match self.expected {
            Expected::Length(_) | Expected::Chunks => Failure::Length,
            Expected::Head | Expected::Stream => Failure::Read,
        }
    }
}

/// Judges bytes that no request waits for. The pieces that follow the first one of an answer are dropped where the
/// first piece is the answer.
#[cold]
fn unasked<'d>(ctx: &mut Ctx<'_>) -> Result<&'d [u8], Failure> {
    if ctx.load.protocol == Protocol::Raw {
        if ctx.load.answer == Answer::First {
            return Ok(&[]);
        }
        ctx.note(|| "more bytes came than the answer has; --answer sets its length".to_owned());
    }
    Err(Failure::Protocol)
}
