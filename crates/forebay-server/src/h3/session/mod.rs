//! A connection: its control and QPACK streams, its request streams, and its end (RFC 9114, sections 5 and 6). Hot path.

mod control;
mod state;

use super::{Common, HQ, Stream};
use crate::connection::Work;
use crate::connection::unread::{self, HeadFailure};
use crate::error_log;
use crate::thread::{QUIC, Thread};
use bytes::Bytes;
use forebay_conf::error::Level;
use forebay_core::client::Client;
use forebay_core::limit::shares::{GRACE, SLOW_HEAD};
use forebay_core::transfers::{Transfer, Transfers};
use forebay_http::field::Name;
use forebay_http::h1::{self, request::Limits};
use forebay_http::h2::request::{self, Outcome, Refusal, Trailers};
use forebay_http::h3::budget::OVERHEAD_OF_REQUEST;
use forebay_http::h3::input::{Failure, Next};
use forebay_http::h3::qpack;
use forebay_http::h3::repeats::Origin;
use forebay_http::h3::tables::{Acknowledge, FAILED, Required};
use forebay_http::h3::{Code, Fatal};
use forebay_http::priority::Priority;
use forebay_http::request::{RequestHead, Version};
use forebay_net::addr::Peer;
use forebay_net::io::Io;
use forebay_net::quic::{Count, Dir, Endpoint, Event, Link, Reason, StreamEvent, StreamId};
use forebay_net::reactor::{Direct, Job, Token};
use state::State;
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// An HTTP/3 connection.
pub struct Session {
    io: Rc<Io>,
    front: u8,
    /// The QUIC connection and its endpoint, once there are events. A placeholder has none.
    quic: OnceCell<(Rc<Endpoint>, Rc<Link>)>,
    common: Rc<Common>,
    client: RefCell<Rc<Client>>,
    transfers: Rc<Transfers>,
    state: RefCell<State>,
    /// The client speaks HTTP/0.9 (nginx: http3_hq).
    hq: Cell<bool>,
    /// Error of the client that a handler has found while it read.
    found: Cell<Option<Fatal>>,
    /// Number of streams that are blocked on the client.
    waits: Cell<usize>,
    /// Number of writes so far.
    turns: Cell<u64>,
    pace: RefCell<Option<Rc<Transfer>>>,
    /// HTTP has begun: our own streams are open.
    has_begun: Cell<bool>,
    /// Time since which there is no request.
    idle_since: Cell<Instant>,
    /// Time without requests after which the connection ends (nginx: keepalive_timeout).
    patience: Duration,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("client", &self.client).finish_non_exhaustive()
    }
}

impl Session {
    pub(super) fn new(
        thread: &Thread,
        streams_at_a_time: u32,
        client: Rc<Client>,
        common: Rc<Common>,
        patience: Duration,
    ) -> Rc<Session> {
        Rc::new(Session {
            io: thread.io.clone(),
            front: thread.front,
            quic: OnceCell::new(),
            common,
            client: RefCell::new(client),
            transfers: thread.transfers.clone(),
            state: RefCell::new(State::new(streams_at_a_time)),
            hq: Cell::new(false),
            found: Cell::new(None),
            waits: Cell::new(0),
            turns: Cell::new(0),
            pace: RefCell::new(None),
            has_begun: Cell::new(false),
            idle_since: Cell::new(thread.io.poller.now()),
            patience,
        })
    }

    /// Returns the time since which there is no request; `None` if there is one, or the connection is closing.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let s = self.state.borrow();
        (s.streams.is_empty() && !s.closed && !s.connection.is_leaving()).then(|| self.idle_since.get())
    }

    /// Returns the rank in which the connection is closed to make room, as [`crate::connection::rank`] does for connections over TCP.
    pub(super) fn rank(&self, now: Instant) -> Option<(u8, Instant)> {
        let since = self.idle_since()?;
        if self.state.borrow().requests > 0 {
            return Some((1, since + self.patience));
        }
        match now.saturating_duration_since(since) {
            age if age >= SLOW_HEAD => Some((0, since)),
            age if age >= GRACE => Some((2, since)),
            _ => None,
        }
    }

    /// Returns the client.
    pub(super) fn client(&self) -> Rc<Client> {
        self.client.borrow().clone()
    }

    pub(super) fn take_client(&self, thread: &Thread) -> Rc<Client> {
        self.client.replace(thread.no_client.clone())
    }

    pub(super) fn set_client(&self, client: Rc<Client>) {
        *self.client.borrow_mut() = client;
    }

    /// Returns the QUIC connection.
    pub(super) fn link(&self) -> Option<&Rc<Link>> {
        self.quic.get().map(|(_, link)| link)
    }

    /// Returns the endpoint of the QUIC connection.
    fn endpoint(&self) -> Option<&Endpoint> {
        self.quic.get().map(|(endpoint, _)| endpoint.as_ref())
    }

    /// Calls a function that handles the connection for another reason than its events. A panic in it ends only this connection, and the
    /// other connections of the thread have their turn after it.
    pub(super) fn guard(&self, f: impl FnOnce()) {
        match self.quic.get() {
            Some((endpoint, link)) => {
                endpoint.guard(link, f);
            }
            None => f(),
        }
    }

    /// Notes that there is something to send.
    pub(super) fn notify(&self) {
        if let Some((endpoint, link)) = self.quic.get() {
            endpoint.mark_sending(link);
        }
        if !self.common.asked.replace(true) {
            self.io.poller.step_again(Direct { front: self.front, kind: QUIC, number: 0 });
        }
    }

    /// Handles the events of the connection.
    pub(super) fn process(self: &Rc<Self>, thread: &Rc<Thread>, endpoint: &Rc<Endpoint>, link: &Rc<Link>) {
        self.quic.get_or_init(|| (endpoint.clone(), link.clone()));
        let mut writable = Vec::new();
        loop {
            // The borrow ends with this statement, because the handlers use the connection.
            let event = link.quic().poll();
            let Some(event) = event else { break };
            let done = match event {
                Event::Connected => {
                    self.connected(thread, link);
                    Ok(())
                }
                Event::Lost(reason) => {
                    self.log_lost(thread, &reason);
                    self.lost(thread, HeadFailure::Closed);
                    Ok(())
                }
                Event::Stream(StreamEvent::Writable { id }) => {
                    writable.extend(self.stream(id));
                    Ok(())
                }
                Event::Stream(event) => {
                    if !self.has_begun.get() {
                        self.begin_early(thread, link);
                    }
                    self.stream_event(thread, link, event)
                }
                Event::Datagram | Event::Token(_) => Ok(()),
            };
            if let Err(fatal) = done {
                self.fail(thread, fatal);
            }
        }
        // The first stream takes all that the connection can send, so the streams go in the order of their priorities.
        writable.sort_by_key(|stream| stream.order());
        for stream in writable {
            stream.writable();
            thread.quic.give_stream(thread, stream);
        }
        if let Some(fatal) = self.found.take() {
            self.fail(thread, fatal);
        }
        let now = thread.io.poller.now();
        if link.is_excessive(now) {
            self.fail(thread, Fatal::new(Code::ExcessiveLoad, "sent too many QUIC frames without progress"));
        }
        if link.take_pause() {
            self.state.borrow_mut().connection.tables.hurry();
        }
        self.send_unsent(link);
        // QUIC itself ends a connection without packets. A connection whose client only sends PING frames ends here.
        if self.idle_since().is_some_and(|since| now.saturating_duration_since(since) > self.patience) {
            self.leave();
        }
    }

    /// Has the connection end because of an error that a handler has found. The stream may be gone before that.
    pub(super) fn blame(&self, fatal: Fatal) {
        self.found.set(Some(fatal));
        if let Some((endpoint, link)) = self.quic.get() {
            endpoint.mark(link);
        }
        self.notify();
    }

    /// Begins HTTP after the handshake.
    fn connected(self: &Rc<Self>, thread: &Rc<Thread>, link: &Rc<Link>) {
        if let Some(endpoint) = self.endpoint() {
            endpoint.established(link);
        }
        if let Some(facts) = link.facts() {
            self.hq.set(facts.agreed.alpn.as_deref() == Some(HQ));
            self.established(thread, *facts);
        }
        if !self.has_begun.get() {
            self.begin_http(thread, link);
        }
    }

    /// Begins HTTP before the handshake is complete, for requests that come with it (0-RTT).
    fn begin_early(self: &Rc<Self>, thread: &Rc<Thread>, link: &Rc<Link>) {
        if let Some(facts) = link.facts() {
            self.hq.set(facts.agreed.alpn.as_deref() == Some(HQ));
            self.count(Count::Early);
            self.early(thread, *facts);
        }
        self.begin_http(thread, link);
    }

    /// Counts something at the endpoint.
    fn count(&self, what: Count) {
        if let Some(endpoint) = self.endpoint() {
            endpoint.count(what);
        }
    }

    /// Opens our own streams.
    fn begin_http(&self, thread: &Rc<Thread>, link: &Link) {
        self.has_begun.set(true);
        if self.hq.get() {
            return;
        }
        let mut s = self.state.borrow_mut();
        // A longer field would be refused in every request.
        s.connection.tables.limit_strings(self.limits(thread).large_client_header_buffers.1);
        // A client may allow too few streams. Then it gets no SETTINGS, but its requests are served all the same.
        let _ = s.connection.open(link);
    }

    fn stream_event(
        self: &Rc<Self>,
        thread: &Rc<Thread>,
        link: &Rc<Link>,
        event: StreamEvent,
    ) -> Result<(), Fatal> {
        if self.state.borrow().closed {
            return Ok(());
        }
        match event {
            StreamEvent::Opened { dir: Dir::Bi } => loop {
                let id = link.streams().accept(Dir::Bi);
                let Some(id) = id else { return Ok(()) };
                self.open_request(thread, id)?;
                if let Some(endpoint) = self.endpoint() {
                    endpoint.allow_streams(link, self.state.borrow().streams.len());
                }
            },
            StreamEvent::Opened { dir: Dir::Uni } => loop {
                let id = self.state.borrow_mut().connection.accept(link.as_ref())?;
                let Some(id) = id else { return Ok(()) };
                self.read_uni(thread, link, id)?;
            },
            StreamEvent::Readable { id } if id.dir() == Dir::Uni => self.read_uni(thread, link, id.0),
            StreamEvent::Readable { id } => match self.stream(id) {
                Some(stream) => self.readable(thread, &stream, None),
                None => Ok(()),
            },
            StreamEvent::ResetAfterEnd { id } => match self.stream(id) {
                // The request has begun, and its trailers wait for insertions.
                Some(stream) if stream.has_begun() && stream.is_waiting() => {
                    stream.break_off(Some(Code::RequestCancelled));
                    self.count_reset()
                }
                Some(stream) if stream.stop_waiting() => self.refuse_reset(thread, &stream),
                _ => Ok(()),
            },
            // STOP_SENDING means that the client no longer wants the response (RFC 9000, section 3.5).
            StreamEvent::Stopped { id, .. } => match self.stream(id) {
                Some(stream) => {
                    self.log_begun_head(thread, &stream, HeadFailure::Closed);
                    stream.break_off(Some(Code::RequestCancelled));
                    self.count_reset()
                }
                None => self.state.borrow().connection.stopped(id.0),
            },
            StreamEvent::Finished { .. } => {
                self.close_if_over();
                Ok(())
            }
            StreamEvent::Available { .. } | StreamEvent::Writable { .. } => Ok(()),
        }
    }

    fn stream(&self, id: StreamId) -> Option<Rc<Stream>> {
        self.state.borrow().stream(id)
    }

    /// Returns a number that is greater than all before.
    pub(super) fn next_turn(&self) -> u64 {
        self.turns.set(self.turns.get() + 1);
        self.turns.get()
    }

    /// Begins a request stream.
    fn open_request(self: &Rc<Self>, thread: &Rc<Thread>, id: StreamId) -> Result<(), Fatal> {
        let mut s = self.state.borrow_mut();
        let priority = s.connection.begin_request(id.0);
        if s.connection.is_leaving() {
            drop(s);
            if let Some(link) = self.link() {
                // The client learns that nothing was done with the request and that it may send it again (RFC 9114, section 5.2).
                reject(link, id);
            }
            return Ok(());
        }
        let limits = self.limits(thread);
        let (number, size) = limits.large_client_header_buffers;
        s.connection.tables.limit_strings(size);
        let (longest, is_bare) = (number.saturating_mul(size), self.hq.get());
        let stream = thread.quic.take_stream(|| Stream::new(self, id, longest, is_bare));
        s.streams.push((id, stream.clone()));
        if let Some(priority) = priority {
            stream.update_priority(priority);
        }
        drop(s);
        self.readable(thread, &stream, Some(limits))?;
        if !stream.has_begun() {
            let time = thread.config().header_timeout_of(&self.client.borrow());
            stream.wait_for_head(self.common.heads.add(thread.io.poller.now() + time, &stream));
        }
        Ok(())
    }

    /// Ends a stream whose head has taken too long (nginx: client_header_timeout). A client that only keeps the connection open would
    /// hold it for ever. Nobody has seen the request, so that the client may send it again (RFC 9114, section 4.1.1).
    pub(super) fn time_out(&self, thread: &Rc<Thread>, stream: &Stream) {
        self.log_begun_head(thread, stream, HeadFailure::TimedOut);
        stream.break_off(Some(Code::RequestRejected));
        if let Err(fatal) = self.count_reset() {
            self.fail(thread, fatal);
        }
    }

    /// Logs a request whose head has begun and will not be completed.
    fn log_begun_head(&self, thread: &Rc<Thread>, stream: &Stream, why: HeadFailure) {
        if stream.has_begun_head() {
            self.log_unread(thread, why);
        }
    }

    fn log_unread(&self, thread: &Rc<Thread>, why: HeadFailure) {
        let number = {
            let mut s = self.state.borrow_mut();
            s.requests += 1;
            s.requests
        };
        let version = if self.hq.get() { Version::Http09 } else { Version::Http3 };
        unread::log(thread, version, self.client(), number, why);
    }

    /// Takes over the address of a client that has moved (RFC 9000, section 9). Requests keep the address that they began with.
    fn follow_client(&self) {
        let Some(link) = self.link() else { return };
        let peer = Peer::Inet(link.remote());
        let mut client = self.client.borrow_mut();
        if client.peer != peer {
            *client = Rc::new(Client { peer, ..Client::clone(&client) });
        }
    }

    /// Tells the client's encoder that a field section will not be decoded (RFC 9204, section 4.4.2).
    pub(super) fn cancel_sections(&self, id: StreamId) {
        self.state.borrow_mut().connection.tables.cancel(id.0);
        if let Some(link) = self.link() {
            self.send_unsent(link);
        }
    }

    fn limits(&self, thread: &Rc<Thread>) -> Limits {
        thread.config().limits_of(&self.client.borrow())
    }

    /// Handles bytes of a request stream. `limits` are the limits of its head, if they are known.
    fn readable(
        self: &Rc<Self>,
        thread: &Rc<Thread>,
        stream: &Rc<Stream>,
        limits: Option<Limits>,
    ) -> Result<(), Fatal> {
        stream.note_readable();
        if stream.has_begun() {
            return stream.look();
        }
        if stream.is_reset_while_waiting() && stream.stop_waiting() {
            return self.refuse_reset(thread, stream);
        }
        match stream.read_section() {
            Ok(Next::Section(line)) if self.hq.get() => {
                self.begin_old(thread, stream, &line);
                Ok(())
            }
            Ok(Next::Section(section)) => {
                let limits = limits.unwrap_or_else(|| self.limits(thread));
                self.begin(thread, stream, section, limits)
            }
            Ok(Next::TooLarge) => {
                self.refuse_unread(thread, stream, request::TOO_LARGE);
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(Failure::Connection(fatal)) => Err(fatal),
            Err(Failure::Reset) => {
                self.log_begun_head(thread, stream, HeadFailure::Closed);
                let incomplete = stream.is_incomplete();
                stream.break_off(Some(if incomplete {
                    Code::RequestIncomplete
                } else {
                    Code::RequestCancelled
                }));
                self.count_reset()
            }
        }
    }

    /// Refuses a request that the client has reset while its field section waited for insertions.
    fn refuse_reset(self: &Rc<Self>, thread: &Rc<Thread>, stream: &Rc<Stream>) -> Result<(), Fatal> {
        let reason = "client reset a stream before its head was decoded";
        self.refuse_unread(thread, stream, Refusal { status: 400, reason, malformed: false });
        self.count_reset()
    }

    /// Begins the request of a stream with its field section, or has it wait for insertions. The client's encoder learns of a section
    /// that cannot be decoded (RFC 9204, section 4.4.2).
    fn begin(
        self: &Rc<Self>,
        thread: &Rc<Thread>,
        stream: &Rc<Stream>,
        section: Bytes,
        limits: Limits,
    ) -> Result<(), Fatal> {
        let begun = self.decode(thread, stream, section, limits);
        if begun.is_err() {
            self.log_unread(thread, HeadFailure::Broken);
            self.state.borrow_mut().connection.tables.cancel(stream.id.0);
        }
        begun
    }

    /// Decodes the field section of a request and begins it, or has it wait for insertions.
    fn decode(
        self: &Rc<Self>,
        thread: &Rc<Thread>,
        stream: &Rc<Stream>,
        section: Bytes,
        limits: Limits,
    ) -> Result<(), Fatal> {
        let mut s = self.state.borrow_mut();
        let s = &mut *s;
        let required = match s.required(&section)? {
            Required::Here(required) => required,
            Required::Awaited(required) => {
                *stream.blocked_section.borrow_mut() = Some((required, section));
                return Ok(());
            }
        };
        let end = stream.ends();
        let mut repeats = thread.h2.repeats.borrow_mut();
        let table = (required > 0).then(|| s.connection.tables.state(&mut repeats, required));
        let origin = Origin { section: &section, table, limits: &limits, end_stream: end };
        let mut head = thread.h2.take_used_head();
        let outcome = if repeats.find(&origin, &mut head) {
            Outcome::Complete
        } else {
            head.clear();
            let built = s.connection.tables.decode(|decoder, scratch| {
                request::build(Version::Http3, end, &mut head, &limits, |fields| {
                    decoder.decode(&section, scratch, fields).map(|_| ())
                })
            });
            let outcome = built.map_err(|_: qpack::Error| FAILED)?;
            if outcome == Outcome::Complete {
                repeats.note(&origin, &head);
            }
            outcome
        };
        // Only sections that refer to the dynamic table are acknowledged (RFC 9204, section 4.4.1).
        if required > 0 {
            s.connection.tables.acknowledge(stream.id.0, Acknowledge::Later);
        }
        let refusal = match outcome {
            Outcome::Complete => None,
            Outcome::Refused(refusal) => Some(refusal),
        };
        if let Some(text) = head.get(Name::Priority) {
            stream.prioritize(Priority::parse(text));
        }
        self.start(thread, s, stream, NewRequest { head, len: section.len(), refusal });
        Ok(())
    }

    /// Begins a request of HTTP/0.9 with its request line.
    fn begin_old(self: &Rc<Self>, thread: &Rc<Thread>, stream: &Rc<Stream>, line: &[u8]) {
        let mut head = thread.h2.take_head();
        head.buf.extend_from_slice(line);
        let refused = |status, reason| Some(Refusal { status, reason, malformed: false });
        let refusal = match h1::request::parse(&mut head, &self.limits(thread)) {
            Ok(h1::request::Status::Complete) if head.version == Version::Http09 => None,
            Ok(_) => refused(400, "client sent no request of HTTP/0.9"),
            Err(reject) => refused(reject.status, reject.reason),
        };
        head.version = Version::Http09;
        let new = NewRequest { head, len: line.len(), refusal };
        self.start(thread, &mut self.state.borrow_mut(), stream, new);
    }

    /// Refuses a request whose field section is not decoded. Nothing of it is known.
    fn refuse_unread(self: &Rc<Self>, thread: &Rc<Thread>, stream: &Rc<Stream>, refusal: Refusal) {
        self.cancel_sections(stream.id);
        let mut head = thread.h2.take_head();
        (head.version, head.keep_alive) = (Version::Http3, true);
        let new = NewRequest { head, len: 0, refusal: Some(refusal) };
        self.start(thread, &mut self.state.borrow_mut(), stream, new);
    }

    /// Gives a request to a runner.
    fn start(&self, thread: &Thread, s: &mut State, stream: &Rc<Stream>, new: NewRequest) {
        s.requests += 1;
        self.follow_client();
        stream.begin(s.requests, new.head, new.len, new.refusal);
        thread.runners.queue(Job { token: Token::NONE, work: Work::Http3(stream.clone()) });
    }

    /// Returns the number of insertions that trailers need.
    pub(super) fn required(&self, section: &[u8]) -> Result<Required, Fatal> {
        self.state.borrow().required(section)
    }

    /// Handles the trailers of a request, whose fields are not used. Returns `true` if they are well-formed.
    pub(super) fn trailers(&self, id: StreamId, section: &[u8]) -> Result<bool, Fatal> {
        let mut s = self.state.borrow_mut();
        let tables = &mut s.connection.tables;
        let mut trailers = Trailers::default();
        let decoded = tables.decode(|decoder, scratch| decoder.decode(section, scratch, &mut trailers));
        let Ok(dynamic) = decoded else {
            tables.cancel(id.0);
            return Err(FAILED);
        };
        if dynamic {
            tables.acknowledge(id.0, Acknowledge::Later);
        }
        Ok(!trailers.pseudo)
    }

    /// Appends a HEADERS frame of a stream. `section` is encoded by the static table.
    pub(super) fn push_section(&self, id: StreamId, section: &[u8], out: &mut Vec<u8>) {
        if let Some(link) = self.link() {
            self.state.borrow_mut().connection.push_section(link.as_ref(), id.0, section, out);
        }
    }

    /// Sends what waits on our own streams.
    fn send_unsent(&self, link: &Link) {
        self.state.borrow_mut().connection.send(link);
    }

    /// Asks the client for no further requests, but still takes the requests that are on their way (RFC 9114, section 5.2).
    pub fn announce(&self) {
        let mut s = self.state.borrow_mut();
        if s.connection.is_leaving() || s.closed {
            return;
        }
        s.connection.announce();
        drop(s);
        if let Some(link) = self.link() {
            self.send_unsent(link);
        }
        self.notify();
    }

    /// Has the connection take no further requests.
    pub fn leave(&self) {
        let mut s = self.state.borrow_mut();
        if s.connection.is_leaving() || s.closed {
            return;
        }
        s.connection.leave();
        drop(s);
        if let Some((endpoint, link)) = self.quic.get() {
            self.send_unsent(link);
            // The end of the connection would discard the GOAWAY. Without it the client does not know that requests on their way were not
            // handled and may be sent again.
            endpoint.send(link, self.io.poller.now());
        }
        self.close_if_over();
        self.notify();
    }

    /// Closes a connection that takes no requests and has none, once the client has received everything, since the end of the connection
    /// would discard data that is on its way.
    fn close_if_over(&self) {
        let s = self.state.borrow();
        if !s.connection.is_leaving() || s.closed || !s.streams.is_empty() {
            return;
        }
        // Our control and QPACK streams stay open to the end (RFC 9114, section 6.2.1), so they are left out of the count.
        let own = s.connection.own().count();
        drop(s);
        if self.link().is_none_or(|link| link.streams().send_streams() <= own) {
            self.close(Code::NoError, b"");
        }
    }

    fn close(&self, why: Code, reason: &'static [u8]) {
        self.state.borrow_mut().closed = true;
        if let Some(link) = self.link() {
            link.close(self.io.poller.now(), why.number(), reason);
        }
        self.notify();
    }

    /// Ends the connection because of an error of the client.
    fn fail(&self, thread: &Rc<Thread>, Fatal { code, reason }: Fatal) {
        if self.state.borrow().closed {
            return;
        }
        if code == Code::ExcessiveLoad {
            self.count(Count::Floods);
        }
        self.log(thread, Level::Info, &format!("client {reason}"));
        if code == Code::DecompressionFailed
            && let Some((endpoint, link)) = self.quic.get()
        {
            // The cancellation of the section leaves first, because the end of the connection would discard it.
            self.send_unsent(link);
            endpoint.send(link, self.io.poller.now());
        }
        // This is nginx's phrase; the log has the reason.
        self.close(code, b"stream error");
        self.lost(thread, HeadFailure::Broken);
    }

    /// Breaks off all requests of a connection that is gone. `why` is the reason for heads that are not complete.
    pub(super) fn lost(&self, thread: &Rc<Thread>, why: HeadFailure) {
        let streams = {
            let mut s = self.state.borrow_mut();
            s.closed = true;
            std::mem::take(&mut s.streams)
        };
        for (_, stream) in streams {
            self.log_begun_head(thread, &stream, why);
            stream.break_off(None);
        }
        if let Some(pace) = self.pace.take() {
            self.transfers.remove(&pace);
        }
    }

    /// Counts a request that ended before its response did.
    pub(super) fn count_reset(&self) -> Result<(), Fatal> {
        self.state.borrow_mut().connection.budget.reset()
    }

    /// Removes a stream that is over. `finished` means that its response was sent whole.
    pub(super) fn remove(&self, id: StreamId, finished: bool) {
        let mut s = self.state.borrow_mut();
        let removed = s.remove(id);
        if removed.is_some() {
            self.idle_since.set(self.io.poller.now());
        }
        if finished {
            s.connection.budget.finished();
        }
        drop(s);
        if let Some(link) = self.link().filter(|_| finished) {
            // A request without content is progress, too, and its few frames are no flood.
            link.note_progress(0, OVERHEAD_OF_REQUEST);
        }
        self.close_if_over();
    }

    /// Counts content.
    pub(super) fn moved(&self, n: usize) {
        self.state.borrow_mut().moved += n as u64;
        if let Some(link) = self.link() {
            link.note_progress(n as u64, 0);
        }
    }

    /// Records that a stream begins or ends waiting for the client.
    pub(super) fn stream_waits(&self, begins: bool, now: Instant) {
        let n = self.waits.get();
        self.waits.set(if begins { n + 1 } else { n.saturating_sub(1) });
        let (only_client, moved) = {
            let s = self.state.borrow();
            (self.waits.get() >= s.streams.len(), s.moved)
        };
        let mut pace = self.pace.borrow_mut();
        match &*pace {
            Some(p) => p.look(only_client, moved, now),
            None if only_client => {
                // One record stands for all streams, since dropping a slow client ends all of them.
                let p = Transfer::of_connection(self.client().network(), moved, now);
                self.transfers.add(&p);
                *pace = Some(p);
            }
            None => {}
        }
    }

    /// Returns `true` if the client was too slow and another connection needs its place.
    pub(super) fn is_given_up(&self) -> bool {
        self.pace.borrow().as_ref().is_some_and(|p| p.is_given_up())
    }

    fn log_lost(&self, thread: &Rc<Thread>, reason: &Reason) {
        match reason {
            Reason::PeerClosed { .. } | Reason::TimedOut | Reason::Reset => {}
            other => {
                // Our own streams open after the handshake, so a connection without them has failed in it.
                if self.state.borrow().connection.own().next().is_none() {
                    thread.counters.tls_failed.add(1);
                }
                self.log(thread, Level::Info, &format!("QUIC connection failed: {other}"));
            }
        }
    }

    fn log(&self, thread: &Rc<Thread>, level: Level, text: &str) {
        let client = self.client();
        if error_log::enabled(thread, &client, level) {
            let conf = thread.config();
            let (name, server) = (client.text(), client.listener_text(&conf));
            let tail = format!(" while processing HTTP/3 connection, client: {name}, server: {server}");
            error_log::log_connection(thread, &client, level, text, &tail);
        }
    }
}

/// Refuses a request that nobody has looked at, so that the client may send it again elsewhere.
fn reject(link: &Link, id: StreamId) {
    let mut streams = link.streams();
    let _ = streams.stop(id, Code::RequestRejected.number());
    let _ = streams.reset(id, Code::RequestRejected.number());
}

/// Head of a request, boxed because streams take it over.
pub(super) type Head = Box<RequestHead>;

/// Request whose head has come.
struct NewRequest {
    head: Head,
    /// Bytes of its field section or its line.
    len: usize,
    /// Reason for refusing it.
    refusal: Option<Refusal>,
}
