//! Answers in HTTP/1. Hot path.

use super::conn::{Body, Conn};
use super::worker::Ctx;
use crate::record::Failure;
use forebay_http::h1::chunked::Step;
use forebay_http::h1::client::{framing_of_response, parse};
use forebay_http::h1::request::Status;
use forebay_http::request::Framing;

/// Longest head that is read.
const HEAD: usize = 65_536;
/// Longest head that is remembered.
const REMEMBERED: usize = 2048;

/// The last head that came for a request, and what it meant. Most servers send the same bytes again, and
/// comparing is much cheaper than parsing.
#[derive(Debug, Default)]
pub struct Template {
    pub bytes: Vec<u8>,
    status: u16,
    framing: Framing,
    keep_alive: bool,
}

impl Conn {
    /// Takes bytes of the server. What fails ends the connection.
    pub fn h1_bytes(&mut self, ctx: &mut Ctx<'_>, data: &[u8]) -> Result<(), Failure> {
        let mut data = data;
        while !data.is_empty() {
            match self.body {
                Body::Head => {
                    // Bytes that nobody asked for.
                    let Some(flight) = self.flights.front() else { return Err(Failure::Protocol) };
                    let request = flight.request as usize;
                    if ctx.load.split && self.came_at == 0 {
                        self.came_at = ctx.now;
                    }
                    data = match self.known_head(ctx, request, data) {
                        Some(rest) => rest,
                        None => match self.parse_head(ctx, request, data)? {
                            Some(rest) => rest,
                            None => return Ok(()),
                        },
                    };
                }
                Body::Length(left) => {
                    let n = left.min(data.len() as u64) as usize;
                    let (content, rest) = data.split_at(n);
                    self.take_content(ctx, content);
                    data = rest;
                    self.length_left(ctx, left - n as u64);
                }
                Body::Chunked => match self.chunked.decode(data).map_err(|_| Failure::Protocol)? {
                    Step::Data { start, end } => {
                        let content = data.get(start..end).unwrap_or_default();
                        self.take_content(ctx, content);
                        data = data.get(end..).unwrap_or_default();
                    }
                    Step::More => return Ok(()),
                    Step::End { consumed } => {
                        data = data.get(consumed..).unwrap_or_default();
                        self.h1_done(ctx);
                    }
                },
                Body::Stream => {
                    self.take_content(ctx, data);
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn known_head<'d>(&mut self, ctx: &mut Ctx<'_>, request: usize, data: &'d [u8]) -> Option<&'d [u8]> {
        let template = ctx.templates.get(request)?;
        if template.bytes.is_empty() || !self.head.buf.is_empty() {
            return None;
        }
        let rest = data.strip_prefix(template.bytes.as_slice())?;
        let (status, framing, keep_alive) = (template.status, template.framing, template.keep_alive);
        self.begin(ctx, status, framing, keep_alive);
        Some(rest)
    }

    /// Gives what follows the head, or `None` while it is incomplete.
    fn parse_head<'d>(
        &mut self,
        ctx: &mut Ctx<'_>,
        request: usize,
        data: &'d [u8],
    ) -> Result<Option<&'d [u8]>, Failure> {
        let before = self.head.buf.len();
        let part = data.get(..HEAD).unwrap_or(data);
        self.head.buf.extend_from_slice(part);
        match parse(&mut self.head, HEAD) {
            Err(_) => return Err(Failure::Protocol),
            Ok(Status::Partial) => return Ok(None),
            Ok(Status::Complete) => {}
        }
        let rest = data.get(self.head.len.saturating_sub(before)..).unwrap_or_default();
        if !self.head.is_interim() {
            let to_head = ctx.load.requests.get(request).is_some_and(|r| r.head);
            let framing = framing_of_response(&self.head, to_head);
            let (status, keep_alive) = (self.head.status, self.head.keep_alive);
            if let Some(template) = ctx.templates.get_mut(request)
                && self.head.len <= REMEMBERED
            {
                template.bytes.clear();
                template.bytes.extend_from_slice(self.head.buf.get(..self.head.len).unwrap_or_default());
                (template.status, template.framing, template.keep_alive) = (status, framing, keep_alive);
            }
            self.begin(ctx, status, framing, keep_alive);
        }
        let all = self.head.buf.len();
        self.head.advance(all);
        Ok(Some(rest))
    }

    fn begin(&mut self, ctx: &mut Ctx<'_>, status: u16, framing: Framing, keep_alive: bool) {
        (self.status, self.keep_alive, self.got) = (status, keep_alive, 0);
        self.content.clear();
        match framing {
            Framing::None | Framing::Length(0) => self.h1_done(ctx),
            Framing::Length(n) => self.body = Body::Length(n),
            Framing::Chunked => {
                self.chunked.reset();
                self.body = Body::Chunked;
            }
            Framing::Stream => {
                self.keep_alive = false;
                self.body = Body::Stream;
            }
        }
    }

    fn take_content(&mut self, ctx: &mut Ctx<'_>, content: &[u8]) {
        self.got += content.len() as u64;
        if ctx.keep_content {
            super::worker::append_limited(&mut self.content, content);
        }
    }

    /// Says how much of a body is left after some of it has come.
    pub fn length_left(&mut self, ctx: &mut Ctx<'_>, left: u64) {
        if left > 0 {
            self.body = Body::Length(left);
        } else {
            self.h1_done(ctx);
        }
    }

    /// The answer to the oldest request is whole.
    pub fn h1_done(&mut self, ctx: &mut Ctx<'_>) {
        self.body = Body::Head;
        if !self.keep_alive {
            self.closing = true;
        }
        if let Some(flight) = self.flights.pop_front() {
            if ctx.load.split {
                ctx.record.dial.record(self.left_at.saturating_sub(flight.start));
                ctx.record.processing.record(ctx.now.saturating_sub(self.left_at));
                ctx.record.waiting.record(self.came_at.saturating_sub(self.left_at));
            }
            ctx.answered(flight, self.status, self.got, &self.content);
            if ctx.think > 0 {
                self.gate = ctx.now + ctx.think;
            }
        }
    }

    /// The server has closed: whether that ends an answer.
    pub fn h1_closed(&mut self, ctx: &mut Ctx<'_>) -> Option<Failure> {
        match self.body {
            Body::Stream => {
                self.h1_done(ctx);
                None
            }
            Body::Head if self.flights.is_empty() => None,
            Body::Head => Some(Failure::Read),
            Body::Length(_) | Body::Chunked => Some(Failure::Length),
        }
    }
}
