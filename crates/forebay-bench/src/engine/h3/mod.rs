//! HTTP/3 from the client's side (RFC 9114). Hot path.

mod sections;
mod stream;

use super::context::{Ctx, DISTRUST};
use super::flight::Flight;
use crate::clock;
use crate::record::Failure;
use forebay_http::h3::connection;
use forebay_http::h3::{Code, Fatal, code_name};
use forebay_net::quic::client::{self, Client, Established};
use forebay_net::quic::{Dir, Event, Link, Reason, StreamEvent, StreamId, WriteError};
use sections::Sections;
use std::cell::Cell;
use std::rc::Rc;
use stream::{End, Stream};

/// Unidirectional streams that the server may have open at a time.
pub(super) const UNIS: u32 = 16;

/// State of the handshake after events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// It is not complete.
    Handshaking,
    /// It has just become complete.
    Established,
    /// It was complete before.
    Open,
}

/// State of an HTTP/3 connection.
pub(super) struct H3 {
    client: Rc<Client>,
    link: Rc<Link>,
    open: bool,
    streams: Vec<Stream>,
    /// A stream that was opened for the next request.
    next: Cell<Option<StreamId>>,
    /// Since when the server lets no request be sent though none is under way, ns.
    stuck_since: Cell<Option<u64>>,
    sections: Sections,
    /// Streams that have ended; their memory is used again.
    spare: Vec<Stream>,
    /// No request is sent before this time, ns ([`crate::load::Load::think`]).
    pub(super) gate: u64,
}

impl H3 {
    /// Takes over a connection that begins.
    pub(super) fn new(client: Rc<Client>, link: Rc<Link>, parallel: usize) -> H3 {
        H3 {
            client,
            link,
            open: false,
            streams: Vec::with_capacity(parallel),
            next: Cell::new(None),
            stuck_since: Cell::new(None),
            sections: Sections::default(),
            spare: Vec::new(),
            gate: 0,
        }
    }

    /// Returns what the handshake has agreed on.
    pub(super) fn established(&self) -> Option<Box<Established>> {
        client::established(&self.link)
    }

    /// Opens our control and decoder streams, after the handshake.
    pub(super) fn begin(&mut self, ctx: &mut Ctx<'_>) -> Result<(), Failure> {
        self.open = true;
        let opened = self.sections.connection.open(self.link.as_ref());
        opened.map_err(|fatal| self.fail(ctx, fatal))?;
        self.send_unsent(ctx);
        Ok(())
    }

    /// Sends what waits on our own streams.
    fn send_unsent(&mut self, ctx: &mut Ctx<'_>) {
        ctx.count_out(self.sections.connection.send(self.link.as_ref()) as u64);
    }

    /// Returns `true` if another request may be sent.
    pub(super) fn has_room(&self, parallel: usize) -> bool {
        if !self.open || self.is_ending() || self.streams.len() >= parallel {
            return false;
        }
        if self.next.get().is_none() {
            self.next.set(self.link.streams().open(Dir::Bi));
        }
        let has_room = self.next.get().is_some();
        let is_stuck = !has_room && self.streams.is_empty();
        self.stuck_since.set(is_stuck.then(|| self.stuck_since.get().unwrap_or_else(clock)));
        has_room
    }

    /// Returns since when the server owes a response, or room for a request.
    pub(super) fn waits_since(&self) -> Option<u64> {
        self.streams.iter().map(|s| s.flight.start).min().or(self.stuck_since.get())
    }

    /// Returns `true` if the server wants the connection to end.
    pub(super) fn is_ending(&self) -> bool {
        self.sections.connection.goaway().is_some()
    }

    /// Returns the requests under way.
    pub(super) fn flights(&self) -> impl Iterator<Item = Flight> + '_ {
        self.streams.iter().map(|s| s.flight)
    }

    /// Returns the number of requests under way.
    pub(super) fn active(&self) -> usize {
        self.streams.len()
    }

    /// Sends a request on the stream that [`H3::has_room`] has opened. It leaves when the thread flushes its sockets.
    pub(super) fn send(&mut self, ctx: &mut Ctx<'_>, flight: Flight) {
        let Some(id) = self.next.take() else { return ctx.again(flight) };
        let mut stream = self.spare.pop().unwrap_or_default();
        stream.begin(id, flight);
        stream.send(ctx, &mut self.link.streams());
        self.streams.push(stream);
        self.client.mark_sending(&self.link);
    }

    fn position(&self, id: StreamId) -> Option<usize> {
        self.streams.iter().position(|s| s.id == id)
    }

    fn remove(&mut self, at: usize) {
        let stream = self.streams.swap_remove(at);
        self.spare.push(stream);
    }

    /// Handles all that has happened on the connection.
    pub(super) fn turn(&mut self, ctx: &mut Ctx<'_>) -> Result<Turn, Failure> {
        let mut established = false;
        loop {
            let event = self.link.quic().poll();
            let done = match event {
                None => break,
                Some(Event::Connected) => {
                    established = true;
                    Ok(())
                }
                Some(Event::Lost(reason)) => return Err(self.lost(ctx, &reason)),
                Some(Event::Stream(event)) => self.stream_event(ctx, event),
                Some(_) => Ok(()),
            };
            done.map_err(|fatal| self.fail(ctx, fatal))?;
        }
        self.send_unsent(ctx);
        // Windows were opened, and what was read is acknowledged.
        self.client.mark_sending(&self.link);
        Ok(match () {
            () if established => Turn::Established,
            () if self.open => Turn::Open,
            () => Turn::Handshaking,
        })
    }

    #[inline]
    fn stream_event(&mut self, ctx: &mut Ctx<'_>, event: StreamEvent) -> Result<(), Fatal> {
        match event {
            StreamEvent::Readable { id } if id.dir() == Dir::Bi => self.read(ctx, id),
            StreamEvent::Readable { id } => self.read_uni(ctx, id.0),
            StreamEvent::Opened { dir: Dir::Uni } => loop {
                let Some(id) = self.sections.connection.accept(self.link.as_ref())? else { return Ok(()) };
                self.read_uni(ctx, id)?;
            },
            StreamEvent::Writable { id } => {
                if let Some(stream) = self.streams.iter_mut().find(|s| s.id == id) {
                    stream.send(ctx, &mut self.link.streams());
                }
                Ok(())
            }
            StreamEvent::Stopped { id, .. } => {
                // The response may still come (RFC 9114, section 4.1.1).
                if let Some(stream) = self.streams.iter_mut().find(|s| s.id == id) {
                    stream.stop_sending();
                }
                let _ = self.link.streams().reset(id, Code::NoError.number());
                Ok(())
            }
            // We let the server open none that go both ways; room for requests is looked for after all events.
            StreamEvent::Opened { .. }
            | StreamEvent::Finished { .. }
            | StreamEvent::Available { .. }
            | StreamEvent::ResetAfterEnd { .. } => Ok(()),
        }
    }

    /// Reads what has come of a response.
    fn read(&mut self, ctx: &mut Ctx<'_>, id: StreamId) -> Result<(), Fatal> {
        let Some(at) = self.position(id) else { return Ok(()) };
        let Some(stream) = self.streams.get_mut(at) else { return Ok(()) };
        match stream.read(ctx, &self.link, &mut self.sections)? {
            None => {}
            Some(End::Reset(code)) => self.reset(ctx, at, code),
            Some(end) => {
                stream.end(ctx, end);
                self.gate = ctx.gate();
                self.sections.connection.budget.finished();
                self.remove(at);
            }
        }
        Ok(())
    }

    /// Reads what has come of a unidirectional stream.
    fn read_uni(&mut self, ctx: &mut Ctx<'_>, id: u64) -> Result<(), Fatal> {
        let before = self.sections.connection.received();
        while let Some(event) = self.sections.connection.receive(self.link.as_ref(), id)? {
            match event {
                connection::Event::GoAway(first) => self.go_away(ctx, first),
                connection::Event::Inserted(_) => self.unblock(ctx)?,
                // Clients give priorities.
                connection::Event::Priority { .. } => {}
            }
        }
        ctx.count_in(self.sections.connection.received() - before);
        Ok(())
    }

    /// Goes on with responses that have waited for the dynamic table.
    fn unblock(&mut self, ctx: &mut Ctx<'_>) -> Result<(), Fatal> {
        let H3 { streams, sections, .. } = self;
        let mut ready = Vec::new();
        for stream in streams.iter_mut() {
            if stream.unblock(sections)? {
                ready.push(stream.id);
            }
        }
        ready.into_iter().try_for_each(|id| self.read(ctx, id))
    }

    /// Handles the reset of a response.
    fn reset(&mut self, ctx: &mut Ctx<'_>, at: usize, code: u64) {
        let Some(flight) = self.streams.get(at).map(|s| s.flight) else { return };
        // RFC 9114, section 4.1.1: not processed, may be sent again.
        if code == Code::RequestRejected.number() {
            ctx.again(flight);
        } else {
            ctx.note(|| format!("the server reset a stream: {}", code_text(code)));
            ctx.failed(flight, Failure::Read);
        }
        self.remove(at);
    }

    /// Gives up requests that the server will not serve, so that they are sent again.
    fn go_away(&mut self, ctx: &mut Ctx<'_>, first: u64) {
        while let Some(at) = self.streams.iter().position(|s| s.id.0 >= first) {
            let Some((id, flight)) = self.streams.get(at).map(|s| (s.id, s.flight)) else { return };
            let mut streams = self.link.streams();
            let _ = streams.stop(id, Code::RequestCancelled.number());
            let _ = streams.reset(id, Code::RequestCancelled.number());
            drop(streams);
            ctx.again(flight);
            self.remove(at);
        }
    }

    /// Ends the connection for a fault of the server.
    fn fail(&self, ctx: &mut Ctx<'_>, Fatal { code, reason }: Fatal) -> Failure {
        ctx.note(|| format!("the server {reason}: {}", code_text(code.number())));
        self.client.close(&self.link, code.number());
        Failure::Protocol
    }

    /// Returns the failure that the end of the connection is, or would be for requests under way.
    fn lost(&mut self, ctx: &mut Ctx<'_>, reason: &Reason) -> Failure {
        let idle = self.open && self.streams.is_empty();
        // A server may close a connection that is not used.
        if !idle {
            ctx.note(|| reason_text(reason));
        }
        match reason {
            _ if self.open => Failure::Read,
            Reason::Error(e) | Reason::PeerError(e) if is_tls(e.code.0) => Failure::Tls,
            Reason::TimedOut => Failure::Timeout,
            _ => Failure::Connect,
        }
    }

    /// Closes the connection.
    pub(super) fn close(&self) {
        self.client.close(&self.link, Code::NoError.number());
    }
}

/// Returns `true` for the code of an alert of TLS (RFC 9001, section 4.8).
fn is_tls(code: u64) -> bool {
    (0x100..0x200).contains(&code)
}

/// Writes an error code of HTTP/3 with its name.
fn code_text(code: u64) -> String {
    code_name(code).map_or_else(|| format!("0x{code:x}"), |name| format!("{name} (0x{code:x})"))
}

/// Writes why a connection was lost.
fn reason_text(reason: &Reason) -> String {
    let because = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes);
        if text.is_empty() { String::new() } else { format!(", \"{}\"", text.escape_debug()) }
    };
    match reason {
        Reason::NoVersion => "the server does not speak version 1 of QUIC".into(),
        Reason::PeerClosed { code, reason } => {
            format!("the server closed the connection: {}{}", code_text(*code), because(reason))
        }
        Reason::PeerError(e) if e.code.0 == NO_ALPN => "the server does not speak HTTP/3 over QUIC".into(),
        Reason::PeerError(e) => {
            format!("the server closed the connection: {}{}", e.code, because(e.reason.as_bytes()))
        }
        Reason::Error(e) if e.reason.starts_with("invalid peer certificate") => {
            format!("{DISTRUST}: {}; --ca FILE believes others, --insecure any", e.reason)
        }
        Reason::Error(e) => format!("QUIC: {e}"),
        Reason::Reset => "the server does not know the connection any more (stateless reset)".into(),
        Reason::TimedOut => "the server was silent for longer than QUIC's idle timeout".into(),
    }
}

/// Alert `no_application_protocol` (RFC 7301, section 3.2) as an error of QUIC.
const NO_ALPN: u64 = 0x178;

/// Returns `true` if more of a message may be sent later.
fn is_blocked(error: &WriteError) -> bool {
    matches!(error, WriteError::Blocked)
}
