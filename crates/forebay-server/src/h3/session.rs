//! A connection: its control and QPACK streams, its request streams, and its end (RFC 9114, sections 5 and 6). Hot path.

mod control;

use super::input::{Failure, Next};
use super::uni::Unis;
use super::{Common, HQ, Stream};
use crate::connection::{Connection, Work};
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
use forebay_http::h3::Code;
use forebay_http::h3::encoder::Encoder;
use forebay_http::h3::frame::{self, Header, Settings, kind, setting, stream as stream_kind};
use forebay_http::h3::qpack::{self, Decoder, TABLE_CAPACITY};
use forebay_http::priority::{Early, Priority};
use forebay_http::request::{RequestHead, Version};
use forebay_net::addr::Peer;
use forebay_net::io::Io;
use forebay_net::quic::{ConnectionError, Count, Dir, Endpoint, Event, Link, StreamEvent, StreamId, VarInt};
use forebay_net::reactor::{Direct, Job, Token};
use std::cell::{Cell, OnceCell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Streams whose field sections may wait for insertions.
const BLOCKED_STREAMS: usize = 16;
/// Most bytes of our control and decoder streams that wait for the client.
const MOST_UNSENT: usize = 64 * 1024;
/// Bytes of our encoder stream that wait for the client, from which on nothing is inserted.
const UNSENT_INSERTS: usize = 4096;
/// Resets without a finished response in between after which the connection ends, as over HTTP/2.
const RESETS: u32 = 200;
/// Control frames, QPACK instructions and unidirectional streams after which the connection ends, if no response was finished.
const OVERHEAD: u64 = 1000;
/// Part of these that a finished response makes up for: a client may send priorities and insertions with each request.
const OVERHEAD_OF_REQUEST: u64 = 64;

/// State of a connection.
#[derive(Debug)]
struct State {
    streams: Vec<Rc<Stream>>,
    decoder: Decoder,
    /// Insertions that the client has been told of.
    told: u64,
    settings: Option<Settings>,
    /// Encoder of what we send, once the client has offered a table for it and there was a response.
    encoder: Option<Box<Encoder>>,
    /// Our control, decoder and encoder streams, with bytes that QUIC has not taken.
    control: Option<(StreamId, Vec<u8>)>,
    feedback: Option<(StreamId, Vec<u8>)>,
    inserts: Option<(StreamId, Vec<u8>)>,
    /// GOAWAY has been sent.
    leaving: bool,
    /// First request stream that the client has not opened.
    next: u64,
    /// Priorities that came before their requests.
    early: Early,
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
    common: Rc<Common>,
    client: RefCell<Rc<Client>>,
    transfers: Rc<Transfers>,
    state: RefCell<State>,
    /// Unidirectional streams of the client.
    unis: Unis,
    /// The client speaks HTTP/0.9 (nginx: http3_hq).
    hq: Cell<bool>,
    /// Error of the client that a handler has found while it read.
    found: Cell<Option<Fatal>>,
    /// Number of streams that are blocked on the client.
    waits: Cell<usize>,
    /// Requests that the client may have open at a time.
    streams_at_a_time: u32,
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

/// End of a connection because of the client: the code for it, and the reason, to be written behind "client ".
pub(crate) type Fatal = (Code, &'static str);

const FAILED: Fatal = (Code::DecompressionFailed, "sent invalid field section");

impl Session {
    pub(super) fn new(
        thread: &Rc<Thread>,
        endpoint: Rc<Endpoint>,
        client: Rc<Client>,
        common: Rc<Common>,
        patience: Duration,
    ) -> Rc<Session> {
        Rc::new(Session {
            io: thread.io.clone(),
            front: thread.front,
            streams_at_a_time: endpoint.streams(),
            endpoint,
            link: OnceCell::new(),
            common,
            client: RefCell::new(client),
            transfers: thread.transfers.clone(),
            state: RefCell::new(State {
                streams: Vec::new(),
                decoder: Decoder::new(TABLE_CAPACITY),
                told: 0,
                settings: None,
                encoder: None,
                control: None,
                feedback: None,
                inserts: None,
                leaving: false,
                next: 0,
                early: Early::default(),
                max_push: None,
                goaway: None,
                requests: 0,
                resets: 0,
                overhead: 0,
                closed: false,
                scratch: Vec::new(),
                moved: 0,
            }),
            unis: Unis::default(),
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
        (s.streams.is_empty() && !s.closed && !s.leaving).then(|| self.idle_since.get())
    }

    /// Returns the rank in which the connection is closed to make room, as [`crate::connection::rank`] does for those over TCP.
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
        self.link.get()
    }

    /// Notes that there is something to send.
    pub(super) fn notify(&self) {
        if let Some(link) = self.link.get() {
            self.endpoint.mark_sending(link);
        }
        if !self.common.asked.replace(true) {
            self.io.poller.step_again(Direct { front: self.front, kind: QUIC, number: 0 });
        }
    }

    /// Handles the events of the connection.
    pub(super) fn process(self: &Rc<Self>, thread: &Rc<Thread>, link: &Rc<Link>) {
        let _ = self.link.set(link.clone());
        let mut writable = Vec::new();
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
                Event::DatagramReceived | Event::DatagramsUnblocked => Ok(()),
            };
            if let Err(fatal) = done {
                self.fail(thread, fatal);
            }
        }
        // The first takes all that the connection can send, so the order is that of the priorities.
        writable.sort_by_key(|stream| stream.order());
        writable.iter().for_each(|stream| stream.writable());
        if let Some(fatal) = self.found.take() {
            self.fail(thread, fatal);
        }
        let now = thread.io.poller.now();
        if link.is_excessive(now) {
            self.fail(thread, (Code::ExcessiveLoad, "sent too many QUIC frames without progress"));
        }
        self.send_unsent(link);
        // QUIC ends connections without packets. One whose client only sends PING frames ends here.
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
            self.hq.set(facts.agreed.alpn.as_deref() == Some(HQ));
            self.established(thread, *facts);
        }
        if !self.has_begun.get() {
            self.begin_http(link);
        }
    }

    /// Begins HTTP before the handshake is complete, for requests that come with it (0-RTT).
    fn begin_early(self: &Rc<Self>, thread: &Rc<Thread>, link: &Rc<Link>) {
        if let Some(facts) = link.facts() {
            self.hq.set(facts.agreed.alpn.as_deref() == Some(HQ));
            self.endpoint.count(Count::Early);
            self.early(thread, *facts);
        }
        self.begin_http(link);
    }

    /// Opens our own streams.
    fn begin_http(&self, link: &Rc<Link>) {
        self.has_begun.set(true);
        if self.hq.get() {
            return;
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
                (setting::ENABLE_CONNECT_PROTOCOL, 1),
            ];
            frame::push_settings(bytes, &pairs);
        }
        let feedback = open(stream_kind::DECODER);
        for (id, _) in [&control, &feedback].into_iter().flatten() {
            let _ = quinn.send_stream(*id).set_priority(i32::MAX);
        }
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
                self.endpoint.allow_streams(link, self.state.borrow().streams.len());
            },
            StreamEvent::Opened { dir: Dir::Uni } => loop {
                let id = link.quinn().streams().accept(Dir::Uni);
                let Some(id) = id else { return Ok(()) };
                self.state.borrow_mut().spend(1)?;
                self.unis.add(id);
                self.read_uni(thread, link, id)?;
            },
            StreamEvent::Readable { id } if id.dir() == Dir::Uni => self.read_uni(thread, link, id),
            StreamEvent::Readable { id } => match self.stream(id) {
                Some(stream) => self.readable(thread, &stream),
                None => Ok(()),
            },
            StreamEvent::Stopped { id, .. } => match self.stream(id) {
                Some(stream) => {
                    stream.break_off(Some(Code::RequestCancelled));
                    self.count_reset()
                }
                None if self.is_critical(id) => {
                    Err((Code::ClosedCriticalStream, "stopped a critical stream"))
                }
                None => Ok(()),
            },
            StreamEvent::Finished { .. } => {
                self.close_if_over();
                Ok(())
            }
            StreamEvent::Available { .. } | StreamEvent::Writable { .. } => Ok(()),
        }
    }

    fn is_critical(&self, id: StreamId) -> bool {
        let s = self.state.borrow();
        s.own().any(|own| own == id)
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
        s.next = u64::from(VarInt::from(id)) + 4;
        if s.leaving {
            drop(s);
            if let Some(link) = self.link.get() {
                reject(link, id);
            }
            return Ok(());
        }
        let (number, size) = self.limits(thread).large_client_header_buffers;
        let stream = Stream::new(self, id, number.saturating_mul(size), self.hq.get());
        s.streams.push(stream.clone());
        if let Some(priority) = s.early.take(u64::from(VarInt::from(id))) {
            stream.update_priority(priority);
        }
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
            Ok(Next::Section(line)) if self.hq.get() => {
                self.begin_old(thread, stream, &line);
                Ok(())
            }
            Ok(Next::Section(section)) => self.begin(thread, stream, section),
            Ok(Next::TooLarge) => {
                self.refuse_unread(thread, stream);
                Ok(())
            }
            Ok(_) => Ok(()),
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
    fn begin(self: &Rc<Self>, thread: &Rc<Thread>, stream: &Rc<Stream>, section: Bytes) -> Result<(), Fatal> {
        let mut s = self.state.borrow_mut();
        let s = &mut *s;
        if let Some(required) = s.must_wait(&section)? {
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
            Outcome::TooLarge(reason) => Some(Refusal { status: 494, reason, malformed: false }),
        };
        if let Some(text) = head.get(Name::Priority) {
            stream.prioritize(Priority::parse(text));
        }
        self.start(thread, s, stream, (head, section.len(), refusal));
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
        self.start(thread, &mut self.state.borrow_mut(), stream, (head, line.len(), refusal));
    }

    /// Refuses a request whose field section is too large. It is skipped, so nothing of it is known.
    fn refuse_unread(self: &Rc<Self>, thread: &Rc<Thread>, stream: &Rc<Stream>) {
        self.cancel_sections(stream.id);
        let mut head = thread.h2.take_head();
        (head.version, head.keep_alive) = (Version::Http3, true);
        let refusal = Refusal { status: 494, reason: request::TOO_LARGE, malformed: false };
        self.start(thread, &mut self.state.borrow_mut(), stream, (head, 0, Some(refusal)));
    }

    /// Gives a request to a runner.
    fn start(
        &self,
        thread: &Thread,
        s: &mut State,
        stream: &Rc<Stream>,
        (head, len, refusal): (Head, usize, Option<Refusal>),
    ) {
        s.requests += 1;
        self.follow_client();
        stream.begin(s.requests, head, len, refusal);
        thread.runners.queue(Job { token: Token::NONE, work: Work::Http3(stream.clone()) });
    }

    /// Returns the number of insertions that trailers have to wait for; `None` if they can be handled at once.
    pub(super) fn trailers_wait(&self, section: &[u8]) -> Result<Option<u64>, Fatal> {
        self.state.borrow().must_wait(section)
    }

    /// Handles the trailers of a request: their fields are not used. Returns `true` if they are well-formed.
    pub(super) fn trailers(&self, id: StreamId, section: &[u8]) -> Result<bool, Fatal> {
        let mut s = self.state.borrow_mut();
        let s = &mut *s;
        let mut trailers = Trailers::default();
        let dynamic = s.decoder.decode(section, &mut s.scratch, &mut trailers).map_err(|_| FAILED)?;
        s.scratch.clear();
        if dynamic {
            s.acknowledge(id);
        }
        Ok(!trailers.pseudo)
    }

    /// Returns an empty buffer for what is put together before QUIC gets it.
    pub(super) fn take_buffer(&self) -> Vec<u8> {
        self.common.buffer.take()
    }

    /// Keeps the memory of a buffer for the next response of any connection.
    pub(super) fn give_buffer(&self, mut buffer: Vec<u8>) {
        if buffer.capacity() <= 8 * 1024 {
            buffer.clear();
            self.common.buffer.set(buffer);
        }
    }

    /// Appends a HEADERS frame of a stream. `section` is encoded by the static table.
    pub(super) fn push_section(&self, id: StreamId, section: &[u8], out: &mut Vec<u8>) {
        let mut s = self.state.borrow_mut();
        let state = &mut *s;
        self.begin_encoder(state);
        let waiting = state.inserts.as_ref().map_or(0, |(_, waiting)| waiting.len());
        state.scratch.clear();
        let encoded = state.encoder.as_mut().and_then(|encoder| {
            let inserts = state.inserts.as_mut().map(|(_, out)| out).filter(|_| waiting < UNSENT_INSERTS);
            encoder.encode(u64::from(VarInt::from(id)), section, &mut state.scratch, inserts)
        });
        let (head, rest) = match encoded.and_then(|at| state.scratch.split_at_checked(at)) {
            // The lines are there before the prefix.
            Some((lines, prefix)) => (prefix, lines),
            None => (section, &[][..]),
        };
        out.reserve(head.len() + rest.len() + 16);
        Header { kind: kind::HEADERS, len: (head.len() + rest.len()) as u64 }.push(out);
        out.extend_from_slice(head);
        out.extend_from_slice(rest);
        let inserted = state.inserts.as_ref().is_some_and(|(_, out)| out.len() > waiting);
        drop(s);
        if let Some(link) = self.link.get().filter(|_| inserted) {
            self.send_unsent(link);
        }
    }

    /// Opens the encoder stream, if the client offers a table and its settings are there.
    fn begin_encoder(&self, s: &mut State) {
        if s.inserts.is_some() {
            return;
        }
        let encoder = s.settings.and_then(|settings| Encoder::new(settings.table_capacity));
        let (Some(encoder), Some(link)) = (encoder, self.link.get()) else { return };
        let mut quinn = link.quinn();
        let Some(id) = quinn.streams().open(Dir::Uni) else { return };
        let _ = quinn.send_stream(id).set_priority(i32::MAX);
        let mut bytes = Vec::new();
        frame::push_varint(&mut bytes, stream_kind::ENCODER);
        (s.encoder, s.inserts) = (Some(Box::new(encoder)), Some((id, bytes)));
    }

    /// Sends what waits on our own streams.
    fn send_unsent(&self, link: &Link) {
        let mut s = self.state.borrow_mut();
        let state = &mut *s;
        let mut quinn = link.quinn();
        for (id, bytes) in [&mut state.control, &mut state.feedback, &mut state.inserts].into_iter().flatten()
        {
            if bytes.is_empty() {
                continue;
            }
            let sent = quinn.send_stream(*id).write(bytes).unwrap_or(0);
            bytes.drain(..sent);
            // A client that takes nothing does not need it. Of insertions only few can wait.
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
        let own = s.own().count();
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
        if why == Code::ExcessiveLoad {
            self.endpoint.count(Count::Floods);
        }
        self.log(thread, Level::Info, &format!("client {reason}"));
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
            true => Err((Code::ExcessiveLoad, "reset too many requests")),
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
        if let Some(link) = self.link.get().filter(|_| finished) {
            link.note_progress(0, OVERHEAD_OF_REQUEST);
        }
        self.close_if_over();
    }

    /// Counts content.
    pub(super) fn moved(&self, n: usize) {
        self.state.borrow_mut().moved += n as u64;
        if let Some(link) = self.link.get() {
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
    /// Returns our unidirectional streams.
    fn own(&self) -> impl Iterator<Item = StreamId> {
        [&self.control, &self.feedback, &self.inserts].into_iter().flatten().map(|(id, _)| *id)
    }

    fn stream(&self, id: StreamId) -> Option<Rc<Stream>> {
        let at = self.streams.binary_search_by_key(&id, |stream| stream.id).ok()?;
        self.streams.get(at).cloned()
    }

    /// Returns the number of insertions that a field section needs, if they have not arrived. Only so many streams may wait.
    fn must_wait(&self, section: &[u8]) -> Result<Option<u64>, Fatal> {
        let required = self.decoder.required(section).map_err(|_| FAILED)?;
        if required <= self.decoder.inserted() {
            return Ok(None);
        }
        let waiting = self.streams.iter().filter(|stream| stream.blocked_section.borrow().is_some()).count();
        match waiting >= BLOCKED_STREAMS {
            true => Err((Code::DecompressionFailed, "blocked too many streams")),
            false => Ok(Some(required)),
        }
    }

    /// Counts what a client may send without a limit of its own.
    fn spend(&mut self, n: u64) -> Result<(), Fatal> {
        self.overhead += n;
        match self.overhead > OVERHEAD {
            true => Err((Code::ExcessiveLoad, "sent too many frames and instructions")),
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
pub(crate) fn code(code: Code) -> VarInt {
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
