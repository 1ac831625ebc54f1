//! A connection: its control and QPACK streams, its request streams, and its end (RFC 9114, sections 5 and 6). Hot path.

mod control;

use super::Stream;
use super::input::Failure;
use crate::connection::{Connection, Work};
use crate::error_log;
use crate::thread::{QUIC, Thread};
use forebay_conf::error::Level;
use forebay_core::client::Client;
use forebay_core::transfers::{Transfer, Transfers};
use forebay_http::h1::request::Limits;
use forebay_http::h2::request::{self, Outcome, Refusal, Trailers};
use forebay_http::h3::Code;
use forebay_http::h3::frame::{self, Settings, setting, stream as stream_kind};
use forebay_http::h3::qpack::{self, Decoder, TABLE_CAPACITY};
use forebay_http::request::{RequestHead, Version};
use forebay_net::addr::Peer;
use forebay_net::io::Io;
use forebay_net::quic::{ConnectionError, Dir, Endpoint, Event, Link, StreamEvent, StreamId, VarInt};
use forebay_net::reactor::{Direct, Job, Token};
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Streams whose field sections may wait for insertions.
const BLOCKED_STREAMS: usize = 16;
/// Most bytes of our control and decoder streams that wait for the client.
const MOST_UNSENT: usize = 64 * 1024;
/// Resets without a finished response in between after which the connection ends, as over HTTP/2.
const RESETS: u32 = 200;
/// Control frames, QPACK instructions and unidirectional streams after which the connection ends, if no response was finished.
const OVERHEAD: u64 = 1000;
/// Part of these that a finished response makes up for: a client may send priorities and insertions with each request.
const OVERHEAD_OF_REQUEST: u64 = 64;

/// Purpose of a unidirectional stream of the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// Its type has not been read.
    Unknown,
    Control,
    Encoder,
    Decoder,
    /// Of a type that we do not know.
    Ignored,
}

/// Unidirectional stream of the client.
#[derive(Debug)]
struct Uni {
    id: StreamId,
    purpose: Purpose,
    /// Bytes that have not been handled.
    input: Vec<u8>,
}

/// State of a connection.
#[derive(Debug)]
struct State {
    streams: Vec<Rc<Stream>>,
    unis: Vec<Uni>,
    decoder: Decoder,
    /// Insertions that the client has been told of.
    told: u64,
    settings: Option<Settings>,
    /// Our control and decoder streams, with bytes that QUIC has not taken.
    control: Option<(StreamId, Vec<u8>)>,
    feedback: Option<(StreamId, Vec<u8>)>,
    /// GOAWAY has been sent.
    leaving: bool,
    /// First request stream that the client has not opened.
    next: u64,
    max_push: Option<u64>,
    goaway: Option<u64>,
    requests: u32,
    resets: u32,
    /// See [`OVERHEAD`].
    overhead: u64,
    closed: bool,
    scratch: Vec<u8>,
    /// Content received and sent, bytes.
    moved: u64,
}

/// An HTTP/3 connection.
pub(crate) struct Session {
    io: Rc<Io>,
    front: u8,
    endpoint: Rc<Endpoint>,
    link: OnceCell<Rc<Link>>,
    /// The poller has been asked for a step of the thread's connections.
    asked: Rc<Cell<bool>>,
    client: RefCell<Rc<Client>>,
    transfers: Rc<Transfers>,
    state: RefCell<State>,
    /// Error of the client that a handler has found while it read.
    found: Cell<Option<Fatal>>,
    /// Number of streams that are blocked on the client.
    waits: Cell<usize>,
    pace: RefCell<Option<Rc<Transfer>>>,
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

/// End of a connection because of the client.
pub(super) type Fatal = (Code, &'static str);

impl Session {
    pub(super) fn new(
        thread: &Rc<Thread>,
        endpoint: Rc<Endpoint>,
        client: Rc<Client>,
        asked: Rc<Cell<bool>>,
        patience: Duration,
    ) -> Rc<Session> {
        Rc::new(Session {
            io: thread.io.clone(),
            front: thread.front,
            endpoint,
            link: OnceCell::new(),
            asked,
            client: RefCell::new(client),
            transfers: thread.transfers.clone(),
            state: RefCell::new(State {
                streams: Vec::new(),
                unis: Vec::new(),
                decoder: Decoder::new(TABLE_CAPACITY),
                told: 0,
                settings: None,
                control: None,
                feedback: None,
                leaving: false,
                next: 0,
                max_push: None,
                goaway: None,
                requests: 0,
                resets: 0,
                overhead: 0,
                closed: false,
                scratch: Vec::new(),
                moved: 0,
            }),
            found: Cell::new(None),
            waits: Cell::new(0),
            pace: RefCell::new(None),
            idle_since: Cell::new(thread.io.poller.now()),
            patience,
        })
    }

    /// Returns the time since which there is no request; `None` if there is one, or the connection is closing.
    pub(super) fn idle_since(&self) -> Option<Instant> {
        let s = self.state.borrow();
        (s.streams.is_empty() && !s.closed).then(|| self.idle_since.get())
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
        self.link.get()
    }

    /// Notes that there is something to send.
    pub(super) fn notify(&self) {
        if let Some(link) = self.link.get() {
            self.endpoint.mark_sending(link);
        }
        if !self.asked.replace(true) {
            self.io.poller.step_again(Direct { front: self.front, kind: QUIC, number: 0 });
        }
    }

    /// Handles the events of the connection.
    pub(super) fn process(self: &Rc<Self>, thread: &Rc<Thread>, link: &Rc<Link>) {
        let _ = self.link.set(link.clone());
        loop {
            // A statement of its own: handlers use the connection.
            let event = link.quinn().poll();
            let Some(event) = event else { break };
            let done = match event {
                Event::HandshakeDataReady => Ok(()),
                Event::Connected => {
                    self.connected(thread, link);
                    Ok(())
                }
                Event::ConnectionLost { reason } => {
                    self.log_lost(thread, &reason);
                    self.lost();
                    Ok(())
                }
                Event::Stream(event) => self.stream_event(thread, link, event),
                Event::DatagramReceived | Event::DatagramsUnblocked => Ok(()),
            };
            if let Err(fatal) = done {
                self.fail(thread, fatal);
            }
        }
        if let Some(fatal) = self.found.take() {
            self.fail(thread, fatal);
        }
        self.send_unsent(link);
        // QUIC ends connections without packets. One whose client only sends PING frames ends here.
        let now = thread.io.poller.now();
        if self.idle_since().is_some_and(|since| now.saturating_duration_since(since) > self.patience) {
            self.leave();
        }
    }

    /// Has the connection end because of an error that a handler has found. The stream may be gone before that.
    pub(super) fn blame(&self, fatal: Fatal) {
        self.found.set(Some(fatal));
        if let Some(link) = self.link.get() {
            self.endpoint.mark(link);
        }
        self.notify();
    }

    /// Begins HTTP after the handshake.
    fn connected(self: &Rc<Self>, thread: &Rc<Thread>, link: &Rc<Link>) {
        self.endpoint.established(link);
        if let Some(facts) = link.facts() {
            self.established(thread, *facts);
        }
        let mut quinn = link.quinn();
        let mut open = |kind: u64| {
            let mut bytes = Vec::new();
            frame::push_varint(&mut bytes, kind);
            quinn.streams().open(Dir::Uni).map(|id| (id, bytes))
        };
        let mut control = open(stream_kind::CONTROL);
        if let Some((_, bytes)) = &mut control {
            let pairs = [
                (setting::QPACK_MAX_TABLE_CAPACITY, TABLE_CAPACITY as u64),
                (setting::QPACK_BLOCKED_STREAMS, BLOCKED_STREAMS as u64),
            ];
            frame::push_settings(bytes, &pairs);
        }
        let feedback = open(stream_kind::DECODER);
        drop(quinn);
        let mut s = self.state.borrow_mut();
        (s.control, s.feedback) = (control, feedback);
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
                let id = link.quinn().streams().accept(Dir::Bi);
                let Some(id) = id else { return Ok(()) };
                self.open_request(thread, id)?;
            },
            StreamEvent::Opened { dir: Dir::Uni } => loop {
                let id = link.quinn().streams().accept(Dir::Uni);
                let Some(id) = id else { return Ok(()) };
                let mut s = self.state.borrow_mut();
                s.spend(1)?;
                s.unis.push(Uni { id, purpose: Purpose::Unknown, input: Vec::new() });
                drop(s);
                self.read_uni(thread, link, id)?;
            },
            StreamEvent::Readable { id } if id.dir() == Dir::Uni => self.read_uni(thread, link, id),
            StreamEvent::Readable { id } => match self.stream(id) {
                Some(stream) => self.readable(thread, &stream),
                None => Ok(()),
            },
            StreamEvent::Writable { id } => {
                if let Some(stream) = self.stream(id) {
                    stream.writable();
                }
                Ok(())
            }
            StreamEvent::Stopped { id, .. } => match self.stream(id) {
                Some(stream) => {
                    stream.break_off(Some(Code::RequestCancelled));
                    self.count_reset()
                }
                None if self.is_critical(id) => {
                    Err((Code::ClosedCriticalStream, "client stopped a critical stream"))
                }
                None => Ok(()),
            },
            StreamEvent::Finished { .. } => {
                self.close_if_over();
                Ok(())
            }
            StreamEvent::Available { .. } => Ok(()),
        }
    }

    fn is_critical(&self, id: StreamId) -> bool {
        let s = self.state.borrow();
        [&s.control, &s.feedback].into_iter().flatten().any(|(own, _)| *own == id)
    }

    fn stream(&self, id: StreamId) -> Option<Rc<Stream>> {
        let s = self.state.borrow();
        let at = s.streams.binary_search_by_key(&id, |stream| stream.id).ok()?;
        s.streams.get(at).cloned()
    }

    /// Begins a request stream.
    fn open_request(self: &Rc<Self>, thread: &Rc<Thread>, id: StreamId) -> Result<(), Fatal> {
        let mut s = self.state.borrow_mut();
        s.next = u64::from(VarInt::from(id)) + 4;
        if s.leaving {
            drop(s);
            if let Some(link) = self.link.get() {
                reject(link, id);
            }
            return Ok(());
        }
        let (number, size) = self.limits(thread).large_client_header_buffers;
        let stream = Stream::new(self, id, number.saturating_mul(size));
        s.streams.push(stream.clone());
        drop(s);
        self.readable(thread, &stream)
    }

    /// Takes over the address of a client that has moved (RFC 9000, section 9). Requests keep the address that they began with.
    fn follow_client(&self) {
        let Some(link) = self.link.get() else { return };
        let peer = Peer::Inet(link.remote());
        let mut client = self.client.borrow_mut();
        if client.peer != peer {
            *client = Rc::new(Client { peer, ..Client::clone(&client) });
        }
    }

    /// Tells the client's encoder that a field section will not be decoded (RFC 9204, section 4.4.2).
    pub(super) fn cancel_sections(&self, id: StreamId) {
        if let Some((_, out)) = &mut self.state.borrow_mut().feedback {
            qpack::push_stream_cancellation(out, u64::from(VarInt::from(id)));
        }
        if let Some(link) = self.link.get() {
            self.send_unsent(link);
        }
    }

    fn limits(&self, thread: &Rc<Thread>) -> Limits {
        let conf = thread.config();
        Connection::closed(self.client(), 0).limits(&conf)
    }

    /// Handles bytes of a request stream.
    fn readable(self: &Rc<Self>, thread: &Rc<Thread>, stream: &Rc<Stream>) -> Result<(), Fatal> {
        stream.note_readable();
        if stream.has_begun() {
            return stream.look();
        }
        match stream.read_section() {
            Ok(Some(section)) => self.begin(thread, stream, section),
            Ok(None) => Ok(()),
            Err(Failure::Connection(code, reason)) => Err((code, reason)),
            Err(Failure::Reset) => {
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

    /// Begins the request of a stream with its field section, or has it wait for insertions.
    fn begin(
        self: &Rc<Self>,
        thread: &Rc<Thread>,
        stream: &Rc<Stream>,
        section: Vec<u8>,
    ) -> Result<(), Fatal> {
        const FAILED: Fatal = (Code::DecompressionFailed, "client sent invalid field section");
        let mut s = self.state.borrow_mut();
        let s = &mut *s;
        let required = s.decoder.required(&section).map_err(|_| FAILED)?;
        if required > s.decoder.inserted() {
            let waiting = s.streams.iter().filter(|other| other.blocked_section.borrow().is_some()).count();
            if waiting >= BLOCKED_STREAMS {
                return Err((Code::DecompressionFailed, "client blocked too many streams"));
            }
            *stream.blocked_section.borrow_mut() = Some((required, section));
            return Ok(());
        }
        let mut head = thread.h2.take_head();
        let limits = self.limits(thread);
        let end = stream.ends();
        let (decoder, scratch) = (&s.decoder, &mut s.scratch);
        let mut dynamic = false;
        let built = request::build(Version::Http3, end, &mut head, &limits, |fields| {
            dynamic = decoder.decode(&section, scratch, fields)?;
            Ok::<(), qpack::Error>(())
        });
        scratch.clear();
        scratch.shrink_to(64 * 1024);
        let outcome = built.map_err(|_| FAILED)?;
        if dynamic {
            s.acknowledge(stream.id);
        }
        let refusal = match outcome {
            Outcome::Complete => None,
            Outcome::Refused(refusal) => Some(refusal),
            Outcome::TooLarge(reason) if reason == request::TOO_LARGE => {
                Some(Refusal { status: 494, reason, malformed: false })
            }
            Outcome::TooLarge(reason) => return Err((Code::ExcessiveLoad, reason)),
        };
        s.requests += 1;
        self.follow_client();
        stream.begin(s.requests, head, section.len(), refusal);
        thread.runners.queue(Job { token: Token::NONE, work: Work::Http3(stream.clone()) });
        Ok(())
    }

    /// Handles the trailers of a request: their fields are not used. Returns `true` if they are well-formed.
    pub(super) fn trailers(&self, id: StreamId, section: &[u8]) -> Result<bool, Fatal> {
        const FAILED: Fatal = (Code::DecompressionFailed, "client sent invalid field section");
        let mut s = self.state.borrow_mut();
        let s = &mut *s;
        let mut trailers = Trailers::default();
        // Trailers that wait for insertions would hold the end of the request back: they are refused.
        let dynamic = s.decoder.decode(section, &mut s.scratch, &mut trailers).map_err(|_| FAILED)?;
        s.scratch.clear();
        if dynamic {
            s.acknowledge(id);
        }
        Ok(!trailers.pseudo)
    }

    /// Sends what waits on our own streams.
    fn send_unsent(&self, link: &Link) {
        let mut s = self.state.borrow_mut();
        let state = &mut *s;
        let mut quinn = link.quinn();
        for (id, bytes) in [&mut state.control, &mut state.feedback].into_iter().flatten() {
            if bytes.is_empty() {
                continue;
            }
            let sent = quinn.send_stream(*id).write(bytes).unwrap_or(0);
            bytes.drain(..sent);
            // A client that takes nothing does not need it.
            bytes.truncate(MOST_UNSENT);
        }
    }

    /// Has the connection take no further requests.
    pub(crate) fn leave(&self) {
        let mut s = self.state.borrow_mut();
        if s.leaving || s.closed {
            return;
        }
        s.leaving = true;
        let next = s.next;
        if let Some((_, out)) = &mut s.control {
            frame::push_goaway(out, next);
        }
        drop(s);
        if let Some(link) = self.link.get() {
            self.send_unsent(link);
        }
        self.close_if_over();
        self.notify();
    }

    /// Closes a connection that takes no requests and has none, once the client has received everything: the end of the connection
    /// would discard what is on its way.
    fn close_if_over(&self) {
        let s = self.state.borrow();
        let own = [&s.control, &s.feedback].into_iter().flatten().count();
        let over = s.leaving && s.streams.is_empty() && !s.closed;
        drop(s);
        if over && self.link.get().is_none_or(|link| link.quinn().streams().send_streams() <= own) {
            self.close(Code::NoError, b"");
        }
    }

    fn close(&self, why: Code, reason: &'static [u8]) {
        self.state.borrow_mut().closed = true;
        if let Some(link) = self.link.get() {
            link.quinn().close(self.io.poller.now(), code(why), reason.into());
        }
        self.notify();
    }

    /// Ends the connection because of an error of the client.
    fn fail(&self, thread: &Rc<Thread>, (why, reason): Fatal) {
        if self.state.borrow().closed {
            return;
        }
        self.log(thread, Level::Info, reason);
        // nginx's phrase; the log has the reason.
        self.close(why, b"stream error");
        self.lost();
    }

    /// Breaks off all requests of a connection that is gone.
    pub(super) fn lost(&self) {
        let streams = {
            let mut s = self.state.borrow_mut();
            s.closed = true;
            std::mem::take(&mut s.streams)
        };
        for stream in streams {
            stream.break_off(None);
        }
        if let Some(pace) = self.pace.take() {
            self.transfers.remove(&pace);
        }
    }

    /// Counts a request that ended before its response did.
    pub(super) fn count_reset(&self) -> Result<(), Fatal> {
        let mut s = self.state.borrow_mut();
        s.resets += 1;
        match s.resets > RESETS {
            true => Err((Code::ExcessiveLoad, "client reset too many requests")),
            false => Ok(()),
        }
    }

    /// Removes a stream that is over. `finished`: its response was sent whole.
    pub(super) fn remove(&self, id: StreamId, finished: bool) {
        let mut s = self.state.borrow_mut();
        if let Ok(at) = s.streams.binary_search_by_key(&id, |stream| stream.id) {
            s.streams.remove(at);
            self.idle_since.set(self.io.poller.now());
        }
        if finished {
            s.resets = s.resets.saturating_sub(1);
            s.overhead = s.overhead.saturating_sub(OVERHEAD_OF_REQUEST);
        }
        drop(s);
        self.close_if_over();
    }

    /// Counts content.
    pub(super) fn moved(&self, n: usize) {
        self.state.borrow_mut().moved += n as u64;
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

    fn log_lost(&self, thread: &Rc<Thread>, reason: &ConnectionError) {
        match reason {
            ConnectionError::ApplicationClosed(_)
            | ConnectionError::LocallyClosed
            | ConnectionError::TimedOut
            | ConnectionError::Reset => {}
            other => {
                if self.state.borrow().control.is_none() {
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

impl State {
    /// Counts what a client may send without a limit of its own.
    fn spend(&mut self, n: u64) -> Result<(), Fatal> {
        self.overhead += n;
        match self.overhead > OVERHEAD {
            true => Err((Code::ExcessiveLoad, "client sent too many frames and instructions")),
            false => Ok(()),
        }
    }

    fn acknowledge(&mut self, id: StreamId) {
        if let Some((_, out)) = &mut self.feedback {
            qpack::push_section_ack(out, u64::from(VarInt::from(id)));
        }
    }
}

/// Returns a code for QUIC.
pub(super) fn code(code: Code) -> VarInt {
    VarInt::from_u32(code as u32)
}

/// Refuses a request that was not looked at: the client may send it again elsewhere.
fn reject(link: &Link, id: StreamId) {
    let mut quinn = link.quinn();
    let _ = quinn.recv_stream(id).stop(code(Code::RequestRejected));
    let _ = quinn.send_stream(id).reset(code(Code::RequestRejected));
}

/// Head of a request, boxed because streams take it over.
pub(super) type Head = Box<RequestHead>;
