//! A connection to an upstream: its handshake, its own streams and the server's, the requests on it, its end (RFC 9114, sections 5 and 6).
//! Hot path.

mod control;

use super::lane::Lane;
use super::stream::Stream;
use super::{Key, Limits, Need, refused};
use crate::upstream::pooled::{self, Life, PATIENCE, Problem, ProblemKind, Session as _, Trouble};
use bytes::Bytes;
use forebay_core::tls::client::{Unencrypted, Wanted};
use forebay_http::h3::budget::OVERHEAD_OF_REQUEST;
use forebay_http::h3::client::{BadBlock, Section, response_head};
use forebay_http::h3::connection::{Connection, Offer, Role};
use forebay_http::h3::tables::{Acknowledge, FAILED, Required};
use forebay_http::h3::{Code, Fatal, code_name};
use forebay_net::quic::client::{Dialling, NO_OWNER, established};
use forebay_net::quic::{Dir, Event, Link, Reason, StreamEvent, StreamId};
use std::borrow::Cow;
use std::cell::{Cell, RefCell};
use std::rc::{Rc, Weak};
use std::time::{Duration, Instant};

/// Error of QUIC for the alert `no_application_protocol` (RFC 7301, section 3.2).
const NO_PROTOCOL: u64 = 0x178;
/// Streams whose field sections may wait for insertions.
const BLOCKED_STREAMS: usize = 16;
/// Protocol of ALPN.
pub(crate) const H3: &[u8] = b"h3";

#[derive(Debug)]
struct State {
    /// Requests, in the order of their identifiers.
    streams: Vec<(StreamId, Weak<Stream>)>,
    connection: Connection,
}

/// A connection to an upstream.
pub(crate) struct Session {
    pub(super) number: u32,
    key: Key,
    life: Life,
    pub(super) lane: Rc<Lane>,
    pub(super) link: Rc<Link>,
    wanted: Wanted,
    state: RefCell<State>,
    /// The server allows no further streams for now.
    full: Cell<bool>,
    /// STREAM frames received, when they were last counted.
    frames: Cell<u64>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("key", &self.key).field("life", &self.life).finish_non_exhaustive()
    }
}

/// Beginning, and what requests ask.
impl Session {
    /// Begins a connection.
    ///
    /// # Errors
    /// A name that TLS does not know, or an address that no connection can go to.
    pub(super) fn begin(
        lane: &Rc<Lane>,
        dialling: &Dialling,
        name: &str,
        need: &Need<'_>,
    ) -> Result<Rc<Session>, Trouble> {
        let (now, number) = (lane.now(), lane.number());
        let link = lane.client.connect(now, dialling, name, number).map_err(|e| tls(e.to_string()))?;
        let offer =
            Offer { table: need.shared.key.limits.table, blocked_streams: BLOCKED_STREAMS, requests: 0 };
        let session = Rc::new(Session {
            number,
            key: need.shared.key.clone(),
            life: Life::new(need.shared.keep, now),
            lane: lane.clone(),
            link,
            wanted: need.wanted.clone(),
            state: RefCell::new(State {
                streams: Vec::new(),
                connection: Connection::new(Role::Client, offer),
            }),
            full: Cell::new(false),
            frames: Cell::new(0),
        });
        lane.add(&session);
        lane.notify(&session.link);
        Ok(session)
    }

    /// Returns `true` if the connection has ended.
    pub(super) fn is_over(&self) -> bool {
        self.life.is_over()
    }

    /// Returns the time at which it is closed if there is no request until then.
    pub(super) fn expires(&self) -> Option<Instant> {
        self.life.expires()
    }
}

impl pooled::Session for Session {
    type Limits = Limits;
    type Stream = Stream;

    fn key(&self) -> &Key {
        &self.key
    }

    fn life(&self) -> &Life {
        &self.life
    }

    fn streams(&self) -> usize {
        self.state.borrow().streams.len()
    }

    fn most(&self) -> usize {
        self.key.limits.streams as usize
    }

    fn lacks_room(&self) -> bool {
        self.full.get()
    }

    fn goes_on(&self) -> bool {
        true
    }

    fn patience(&self) -> Duration {
        PATIENCE.max(2 * self.link.quic().rtt())
    }

    fn open_stream(self: &Rc<Self>, longest: usize) -> Option<Rc<Stream>> {
        let Some(id) = self.link.streams().open(Dir::Bi) else {
            self.full.set(true);
            return None;
        };
        let stream = Rc::new(Stream::new(self, id, longest));
        self.state.borrow_mut().streams.push((id, Rc::downgrade(&stream)));
        Some(stream)
    }

    /// Ends a handshake that nobody waits for.
    fn abandoned(&self) {
        if self.life.is_connecting() {
            self.close();
        }
    }

    fn close(&self) {
        self.end(Code::NoError, None);
    }
}

/// The end.
impl Session {
    /// Ends the connection with a code for the server. `problem`: reason for the failure of its requests.
    fn end(&self, why: Code, problem: Option<Problem>) {
        if !self.life.end() {
            return;
        }
        self.lane.client.close(&self.link, why.number());
        self.lane.ask();
        let gone = || Problem { text: "connection was closed".into(), kind: ProblemKind::Gone };
        let problem = problem.unwrap_or_else(gone);
        if problem.kind == ProblemKind::Invalid {
            // Requests that have no stream yet learn the reason by this.
            self.life.note_trouble(Trouble::Unspoken(problem.text.clone().into_owned()));
        }
        let streams = std::mem::take(&mut self.state.borrow_mut().streams);
        for stream in streams.iter().filter_map(|(_, stream)| stream.upgrade()) {
            stream.break_off(problem.clone());
        }
        self.life.wake();
    }

    /// Ends a connection that could not be established.
    fn give_up(&self, trouble: Trouble) {
        self.life.note_trouble(trouble);
        self.end(Code::NoError, None);
    }

    /// Ends the connection because of an error of the server.
    pub(super) fn fail(&self, Fatal { code, reason }: Fatal) {
        let text = Cow::Owned(format!("{reason} ({})", code_name(code.number()).unwrap_or_default()));
        self.end(code, Some(Problem { text, kind: ProblemKind::Invalid }));
    }

    /// Ends the connection because nobody listens at the server's port.
    pub(super) fn refused(&self) {
        match self.life.is_connecting() {
            true => self.give_up(refused()),
            false => {
                let text = "is gone: connection refused".into();
                self.end(Code::NoError, Some(Problem { text, kind: ProblemKind::Gone }));
            }
        }
    }

    /// Notes that QUIC has forgotten the connection.
    pub(super) fn gone(&self) {
        self.end(Code::NoError, None);
    }

    /// Handles the end that QUIC reports.
    fn lost(&self, reason: &Reason) {
        self.link.owner.set(NO_OWNER);
        if self.life.is_connecting() {
            return self.give_up(trouble_of(reason));
        }
        let (text, kind) = match reason {
            Reason::TimedOut => ("timed out (110: Connection timed out)".into(), ProblemKind::Silent),
            other => (closed_text(other), ProblemKind::Gone),
        };
        self.end(Code::NoError, Some(Problem { text: text.into(), kind }));
    }

    /// Removes a stream that is over. `finished`: its response has come whole.
    pub(super) fn remove(&self, id: StreamId, finished: bool) {
        let mut s = self.state.borrow_mut();
        let Ok(at) = s.streams.binary_search_by_key(&id, |(id, _)| *id) else { return };
        s.streams.remove(at);
        if finished {
            s.connection.budget.finished();
        }
        let is_idle = s.streams.is_empty();
        drop(s);
        if finished {
            self.link.note_progress(0, OVERHEAD_OF_REQUEST);
        }
        if is_idle && self.life.rests(self.lane.now()) {
            // QUIC sends the remaining frames of the last stream before it closes the connection.
            self.close();
        }
        self.lane.notify(&self.link);
        self.life.wake();
    }
}

/// Events.
impl Session {
    /// Handles the events of the connection.
    pub(super) fn process(self: &Rc<Self>) {
        loop {
            // A statement of its own, which ends the borrow: the handlers use the connection.
            let event = self.link.quic().poll();
            let Some(event) = event else { break };
            if self.is_over() {
                continue;
            }
            let done = match event {
                Event::Connected => self.connected(),
                Event::Lost(reason) => {
                    self.lost(&reason);
                    Ok(())
                }
                Event::Stream(event) => self.stream_event(event),
                Event::Token(token) => {
                    self.lane.client.keep_token(token);
                    Ok(())
                }
                Event::Datagram => Ok(()),
            };
            if let Err(fatal) = done {
                self.fail(fatal);
            }
        }
        if self.is_over() {
            return;
        }
        // The windows bound STREAM frames with content. Empty frames cost the server nothing, so they count against a
        // limit.
        let frames = self.link.quic().stats().received_stream_frames;
        self.link.note_progress(0, frames - self.frames.replace(frames));
        if self.link.is_excessive(self.lane.now()) {
            self.fail(Fatal::new(Code::ExcessiveLoad, "sent too many QUIC frames without progress"));
        }
        self.send_unsent();
    }

    /// Begins HTTP after the handshake, if the server is the right one.
    fn connected(&self) -> Result<(), Fatal> {
        self.lane.client.established(&self.link);
        let facts = established(&self.link);
        let speaks = facts.as_ref().is_some_and(|facts| facts.alpn.as_deref() == Some(H3));
        let shown = facts.map(|facts| facts.certificates).unwrap_or_default();
        // Judged before a request is sent: requests must not reach the wrong server.
        if let Err(text) = self.wanted.tls.judge(&shown, &self.wanted.name) {
            self.give_up(tls(text));
            return Ok(());
        }
        if !speaks {
            self.give_up(Trouble::Unspoken("does not speak HTTP/3".to_owned()));
            return Ok(());
        }
        self.state.borrow_mut().connection.open(self.link.as_ref())?;
        self.life.establish(self.lane.now());
        Ok(())
    }

    fn stream_event(self: &Rc<Self>, event: StreamEvent) -> Result<(), Fatal> {
        match event {
            StreamEvent::Opened { dir: Dir::Uni } => loop {
                let id = self.state.borrow_mut().connection.accept(self.link.as_ref())?;
                let Some(id) = id else { return Ok(()) };
                self.read_uni(id)?;
            },
            StreamEvent::Readable { id } if id.dir() == Dir::Uni => return self.read_uni(id.0),
            StreamEvent::Readable { id } => {
                if let Some(stream) = self.stream(id) {
                    stream.readable();
                }
            }
            StreamEvent::Writable { id } => {
                if let Some(stream) = self.stream(id) {
                    stream.writable();
                }
            }
            StreamEvent::Stopped { id, .. } => match self.stream(id) {
                Some(stream) => stream.stopped(),
                None => return self.state.borrow().connection.stopped(id.0),
            },
            StreamEvent::Available { dir: Dir::Bi } => {
                // The server has raised its limit of streams, so requests that wait look for room again.
                self.full.set(false);
                self.life.wake();
            }
            // This client lets the server open no bidirectional streams (RFC 9114, section 6.1). A response that was read
            // to its end is complete.
            StreamEvent::Opened { .. }
            | StreamEvent::Available { .. }
            | StreamEvent::Finished { .. }
            | StreamEvent::ResetAfterEnd { .. } => {}
        }
        Ok(())
    }

    fn stream(&self, id: StreamId) -> Option<Rc<Stream>> {
        let s = self.state.borrow();
        let at = s.streams.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        s.streams.get(at)?.1.upgrade()
    }

    /// Notes that there is something to send.
    pub(super) fn notify(&self) {
        if !self.is_over() {
            self.lane.notify(&self.link);
        }
    }
}

/// A field section of a response.
pub(super) enum Decoded {
    /// It waits for so many insertions.
    Waits(u64),
    /// Status (0 in trailers) and the lines of an HTTP/1 head.
    Lines(u16, Vec<u8>),
}

/// Field sections.
impl Session {
    /// Decodes a field section of a response. `limit`: largest number of bytes of its lines. A malformed section concerns
    /// its stream only.
    pub(super) fn decode(
        &self,
        id: StreamId,
        bytes: &[u8],
        trailers: bool,
        limit: usize,
    ) -> Result<Result<Decoded, BadBlock>, Fatal> {
        let mut s = self.state.borrow_mut();
        let s = &mut *s;
        let blocked = |(_, stream): &&(_, Weak<Stream>)| stream.upgrade().is_some_and(|s| s.is_blocked());
        let tables = &mut s.connection.tables;
        let required = tables.required(bytes, || s.streams.iter().filter(blocked).count())?;
        if let Required::Awaited(required) = required {
            return Ok(Ok(Decoded::Waits(required)));
        }
        let mut out = Vec::new();
        let section = Section { bytes, trailers, limit };
        let (dynamic, status) =
            tables.decode(|decoder, scratch| response_head(decoder, &section, scratch, &mut out));
        match status {
            Err(BadBlock::Compression) => return Err(FAILED),
            // The server's encoder may drop entries only after this acknowledgement (RFC 9204, section 4.4.1).
            _ if dynamic => tables.acknowledge(id.0, Acknowledge::AtOnce),
            _ => {}
        }
        Ok(status.map(|status| Decoded::Lines(status, out)))
    }

    /// Returns `true` if so many insertions have come.
    pub(super) fn has_inserted(&self, required: u64) -> bool {
        self.state.borrow().connection.tables.inserted() >= required
    }

    /// Tells the server's encoder that the field sections of a stream will not be decoded (RFC 9204, section 4.4.2).
    pub(super) fn cancel_sections(&self, id: StreamId) {
        self.state.borrow_mut().connection.tables.cancel(id.0);
        self.send_unsent();
    }

    /// Appends a HEADERS frame of a stream. `section` is encoded by the static table.
    pub(super) fn push_section(&self, id: StreamId, section: &[u8], out: &mut Vec<u8>) {
        self.state.borrow_mut().connection.push_section(self.link.as_ref(), id.0, section, out);
    }

    /// Sends what waits on our own streams.
    fn send_unsent(&self) {
        self.state.borrow_mut().connection.send(self.link.as_ref());
    }
}

/// Returns the error code of the server, or of QUIC, by which a connection ends.
fn code_of(reason: &Reason) -> Option<u64> {
    match reason {
        Reason::Error(e) | Reason::PeerError(e) => Some(e.code.0),
        _ => None,
    }
}

/// Returns the trouble of a handshake that failed.
fn tls(text: String) -> Trouble {
    Trouble::Tls(Unencrypted::Failed(text))
}

/// Returns the trouble of a connection that was not established.
fn trouble_of(reason: &Reason) -> Trouble {
    match code_of(reason) {
        Some(NO_PROTOCOL) => return Trouble::Unspoken("does not speak HTTP/3".to_owned()),
        // Alerts of TLS (RFC 9001, section 4.8).
        Some(0x100..0x200) => {
            return tls(format!("SSL_do_handshake() failed (SSL: {reason})"));
        }
        _ => {}
    }
    match reason {
        Reason::NoVersion => Trouble::Unspoken("does not speak version 1 of QUIC".to_owned()),
        Reason::TimedOut => Trouble::Timeout,
        other => Trouble::Unspoken(closed_text(other)),
    }
}

/// Returns the text about a connection that has ended, to be written behind "upstream ".
fn closed_text(reason: &Reason) -> String {
    match reason {
        Reason::PeerClosed { code, reason } => {
            let name = code_name(*code).map_or_else(|| format!("0x{code:x}"), str::to_owned);
            let why = String::from_utf8_lossy(reason);
            match why.is_empty() {
                true => format!("prematurely closed connection ({name})"),
                false => format!("prematurely closed connection ({name}: {})", why.escape_debug()),
            }
        }
        Reason::Reset => "does not know the connection any more".to_owned(),
        other => format!("QUIC connection failed: {other}"),
    }
}

/// A field section that waits for insertions.
pub(super) type Blocked = (u64, Bytes);

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_net::dial::{DialError, OwnStep};
    use rustix::io::Errno;

    #[test]
    fn only_failures_of_the_protocol_lead_to_tcp() {
        let falls_back = |reason: Reason| trouble_of(&reason).may_fall_back();
        assert!(falls_back(Reason::NoVersion) && falls_back(Reason::TimedOut));
        assert!(falls_back(Reason::Reset));
        assert!(refused().may_fall_back() && Trouble::Timeout.may_fall_back());
        assert!(!tls("upstream SSL certificate verify error".into()).may_fall_back());
        assert!(!Trouble::ClientGone.may_fall_back());
        for step in [OwnStep::Socket, OwnStep::Bind, OwnStep::Connect] {
            assert!(!Trouble::Dial(DialError::Own(step, Errno::ADDRNOTAVAIL)).may_fall_back());
        }
    }
}
