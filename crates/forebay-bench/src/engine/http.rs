//! The requests and responses of a connection, in whichever protocol. Hot path.

use super::context::Ctx;
use super::flight::Flight;
use super::h1::H1;
use super::h2::H2;
use crate::record::Failure;

/// Requests and responses of a connection.
pub(super) struct Http {
    h1: H1,
    /// Set on connections that speak HTTP/2.
    h2: Option<Box<H2>>,
}

impl Http {
    pub(super) fn new(parallel: usize) -> Http {
        Http { h1: H1::new(parallel), h2: None }
    }

    /// Forgets the last connection; keeps memory.
    pub(super) fn reset(&mut self) {
        self.h1.reset();
        self.h2 = None;
    }

    /// Switches to HTTP/2; the connection preface is appended to `output`.
    pub(super) fn start_h2(&mut self, parallel: usize, output: &mut Vec<u8>) {
        self.h2 = Some(Box::new(H2::new(output, parallel)));
    }

    #[inline]
    pub(super) fn is_h2(&self) -> bool {
        self.h2.is_some()
    }

    /// Returns `true` if another request may be sent while `parallel` are allowed at a time.
    #[inline]
    pub(super) fn has_room(&self, parallel: usize) -> bool {
        match &self.h2 {
            _ if self.h1.is_closing() => false,
            Some(h2) => h2.has_room(parallel),
            None => self.h1.active() < parallel,
        }
    }

    /// Appends a request to `output`.
    #[inline]
    pub(super) fn send(&mut self, ctx: &Ctx<'_>, flight: Flight, output: &mut Vec<u8>) {
        if let Some(h2) = self.h2.as_deref_mut() {
            return h2.send(ctx, flight, output);
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
        match self.h2.as_deref_mut() {
            Some(h2) => h2.bytes(ctx, data, output),
            None => self.h1.bytes(ctx, data),
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
        if self.is_h2() { None } else { self.h1.skippable() }
    }

    /// Counts `n` of the `left` bytes of content as received that the kernel has dropped.
    pub(super) fn skip(&mut self, ctx: &mut Ctx<'_>, n: u64, left: u64) {
        self.h1.skip(ctx, n, left);
    }

    /// Returns `true` if no request is under way.
    #[inline]
    pub(super) fn is_idle(&self) -> bool {
        self.h1.active() == 0 && self.h2.as_deref().is_none_or(|h2| h2.active() == 0)
    }

    /// Returns `true` if the server closes the connection after its response.
    #[inline]
    pub(super) fn is_closing(&self) -> bool {
        self.h1.is_closing()
    }

    /// Returns `true` if the server takes no more requests on this connection (GOAWAY).
    #[inline]
    pub(super) fn is_going_away(&self) -> bool {
        self.h2.as_deref().is_some_and(H2::is_ending)
    }

    /// Returns the time before which no request is sent, ns.
    #[inline]
    pub(super) fn gate(&self) -> u64 {
        self.h1.gate()
    }

    /// Returns when the oldest request under way left.
    pub(super) fn oldest_start(&self) -> Option<u64> {
        let h2 = || self.h2.as_deref().and_then(|h2| h2.flights().map(|f| f.start).min());
        self.h1.oldest_start().or_else(h2)
    }

    /// Returns the bytes of content that came of an unfinished response, in HTTP/1 and raw protocols.
    pub(super) fn begun(&self) -> Option<u64> {
        if self.is_h2() { None } else { self.h1.begun() }
    }

    /// Takes the end of the connection; an error if it cut a response short.
    pub(super) fn closed(&mut self, ctx: &mut Ctx<'_>) -> Result<(), Failure> {
        if let Some(h2) = &self.h2 {
            return if h2.active() == 0 { Ok(()) } else { Err(Failure::Read) };
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
        let h2 = self.h2.as_deref().map(|h2| h2.flights().collect::<Vec<_>>()).unwrap_or_default();
        self.h1.flights().drain(..).chain(h2).collect()
    }

    /// Counts the requests under way at the end of the connection as failed, or has them sent again. Returns whether a
    /// failure was counted.
    pub(super) fn give_up(&mut self, ctx: &mut Ctx<'_>, why: Option<Failure>) -> bool {
        let mut counted = false;
        if let Some(h2) = self.h2.take() {
            for flight in h2.flights() {
                ctx.failed(flight, why.unwrap_or(Failure::Read));
                counted = true;
            }
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
