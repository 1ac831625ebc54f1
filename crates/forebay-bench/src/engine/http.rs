//! The requests and responses of a connection, in whichever protocol. Hot path.

use super::context::Ctx;
use super::flight::Flight;
use super::h1::H1;
use super::h2::H2;
use super::h3::H3;
use crate::record::Failure;

/// Requests and responses of a connection.
pub(super) struct Http {
    h1: H1,
    /// Set on connections that speak a protocol with streams.
    streams: Option<Streams>,
}

/// Protocol with streams.
enum Streams {
    H2(Box<H2>),
    H3(Box<H3>),
}

impl Streams {
    fn active(&self) -> usize {
        match self {
            Streams::H2(h2) => h2.active(),
            Streams::H3(h3) => h3.active(),
        }
    }

    fn has_room(&self, parallel: usize) -> bool {
        match self {
            Streams::H2(h2) => h2.has_room(parallel),
            Streams::H3(h3) => h3.has_room(parallel),
        }
    }

    fn is_ending(&self) -> bool {
        match self {
            Streams::H2(h2) => h2.is_ending(),
            Streams::H3(h3) => h3.is_ending(),
        }
    }

    fn flights(&self) -> Vec<Flight> {
        match self {
            Streams::H2(h2) => h2.flights().collect(),
            Streams::H3(h3) => h3.flights().collect(),
        }
    }

    fn oldest_start(&self) -> Option<u64> {
        match self {
            Streams::H2(h2) => h2.flights().map(|f| f.start).min(),
            Streams::H3(h3) => h3.waits_since(),
        }
    }
}

impl Http {
    pub(super) fn new(parallel: usize) -> Http {
        Http { h1: H1::new(parallel), streams: None }
    }

    /// Forgets the last connection; keeps memory.
    pub(super) fn reset(&mut self) {
        self.h1.reset();
        if let Some(Streams::H3(h3)) = self.streams.take() {
            h3.close();
        }
    }

    /// Switches to HTTP/2; the connection preface is appended to `output`.
    pub(super) fn start_h2(&mut self, parallel: usize, output: &mut Vec<u8>) {
        self.streams = Some(Streams::H2(Box::new(H2::new(output, parallel))));
    }

    /// Switches to HTTP/3 on a connection that is being made.
    pub(super) fn start_h3(&mut self, h3: H3) {
        self.streams = Some(Streams::H3(Box::new(h3)));
    }

    /// Returns the HTTP/3 connection.
    #[inline]
    pub(super) fn h3(&mut self) -> Option<&mut H3> {
        match &mut self.streams {
            Some(Streams::H3(h3)) => Some(h3),
            _ => None,
        }
    }

    #[inline]
    pub(super) fn has_streams(&self) -> bool {
        self.streams.is_some()
    }

    /// Returns `true` if another request may be sent while `parallel` are allowed at a time.
    #[inline]
    pub(super) fn has_room(&self, parallel: usize) -> bool {
        match &self.streams {
            _ if self.h1.is_closing() => false,
            Some(streams) => streams.has_room(parallel),
            None => self.h1.active() < parallel,
        }
    }

    /// Appends a request to `output`, or gives it to QUIC.
    #[inline]
    pub(super) fn send(&mut self, ctx: &mut Ctx<'_>, flight: Flight, output: &mut Vec<u8>) {
        match &mut self.streams {
            Some(Streams::H2(h2)) => return h2.send(ctx, flight, output),
            Some(Streams::H3(h3)) => return h3.send(ctx, flight),
            None => {}
        }
        if let Some(request) = ctx.load.requests.get(flight.request as usize) {
            self.h1.send(ctx, flight);
            output.extend_from_slice(&request.h1);
        }
    }

    /// Notes a request as sent, in HTTP/1, and returns its bytes.
    #[inline]
    pub(super) fn send_h1<'l>(&mut self, ctx: &Ctx<'l>, flight: Flight) -> &'l [u8] {
        let Some(request) = ctx.load.requests.get(flight.request as usize) else { return &[] };
        self.h1.send(ctx, flight);
        &request.h1
    }

    /// Takes bytes of the server; frames in answer to them are appended to `output`.
    #[inline]
    pub(super) fn bytes(
        &mut self,
        ctx: &mut Ctx<'_>,
        data: &[u8],
        output: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        ctx.count_in(data.len() as u64);
        match &mut self.streams {
            Some(Streams::H2(h2)) => h2.bytes(ctx, data, output),
            _ => self.h1.bytes(ctx, data),
        }
    }

    /// Takes a datagram of the server.
    #[inline]
    pub(super) fn datagram(&mut self, ctx: &mut Ctx<'_>, data: &[u8]) {
        ctx.count_in(data.len() as u64);
        self.h1.datagram(ctx, data);
    }

    /// Returns how much of the coming content the kernel may drop, if that pays.
    #[inline]
    pub(super) fn skippable(&self) -> Option<u64> {
        if self.has_streams() { None } else { self.h1.skippable() }
    }

    /// Counts `n` of the `left` bytes of content as received that the kernel has dropped.
    pub(super) fn skip(&mut self, ctx: &mut Ctx<'_>, n: u64, left: u64) {
        self.h1.skip(ctx, n, left);
    }

    /// Returns `true` if no request is under way.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.h1.active() == 0 && self.streams.as_ref().is_none_or(|s| s.active() == 0)
    }

    /// Returns `true` if the server closes the connection after its response.
    #[inline]
    pub(super) fn is_closing(&self) -> bool {
        self.h1.is_closing()
    }

    /// Returns `true` if the server takes no more requests on this connection (GOAWAY).
    #[inline]
    pub(super) fn is_going_away(&self) -> bool {
        self.streams.as_ref().is_some_and(Streams::is_ending)
    }

    /// Returns the time before which no request is sent, ns.
    #[inline]
    pub(super) fn gate(&self) -> u64 {
        match &self.streams {
            Some(Streams::H2(h2)) => h2.gate,
            Some(Streams::H3(h3)) => h3.gate,
            None => self.h1.gate(),
        }
    }

    /// Returns when the oldest request under way left.
    pub(super) fn oldest_start(&self) -> Option<u64> {
        self.h1.oldest_start().or_else(|| self.streams.as_ref().and_then(Streams::oldest_start))
    }

    /// Returns the bytes of content that came of an unfinished response, in HTTP/1 and raw protocols.
    pub(super) fn begun(&self) -> Option<u64> {
        if self.has_streams() { None } else { self.h1.begun() }
    }

    /// Takes the end of the connection; an error if it cut a response short.
    pub(super) fn closed(&mut self, ctx: &mut Ctx<'_>) -> Result<(), Failure> {
        if let Some(streams) = &self.streams {
            return if streams.active() == 0 { Ok(()) } else { Err(Failure::Read) };
        }
        match self.h1.closed(ctx) {
            Some(kind) if !self.h1.is_closing() => Err(kind),
            _ => Ok(()),
        }
    }

    /// Returns the failure that a reset of the connection is.
    pub(super) fn reset_by_peer(&self) -> Failure {
        self.h1.reset_by_peer()
    }

    /// Removes the requests under way and returns them.
    pub(super) fn take_flights(&mut self) -> Vec<Flight> {
        let streams = self.streams.as_ref().map(Streams::flights).unwrap_or_default();
        self.h1.flights().drain(..).chain(streams).collect()
    }

    /// Counts the requests under way at the end of the connection as failed, or has them sent again. Returns whether a
    /// failure was counted.
    pub(super) fn give_up(&mut self, ctx: &mut Ctx<'_>, why: Option<Failure>) -> bool {
        let mut counted = false;
        for flight in self.streams.as_ref().map(Streams::flights).unwrap_or_default() {
            ctx.failed(flight, why.unwrap_or(Failure::Read));
            counted = true;
        }
        // The server was at the oldest request; it has not looked at those behind it.
        if let Some(kind) = why
            && let Some(flight) = self.h1.flights().pop_front()
        {
            ctx.failed(flight, kind);
            counted = true;
        }
        while let Some(flight) = self.h1.flights().pop_front() {
            ctx.again(flight);
        }
        counted
    }
}
