//! HTTP/2 on client connections (RFC 9113): one [`Session`] a connection, one [`Stream`] a request. Hot path.
//!
//! The connection's runner ([`drive::run`]) reads frames, hands each complete request to a separate runner, and writes
//! the frames that streams have added to the session's buffer. The frames of all ready streams leave in one write. A
//! stream is a wire like any other ([`forebay_net::wire::Wire`]), so phases, modules and bodies know nothing of frames.
//! A connection without streams is parked like an idle HTTP/1 connection.

mod budget;
pub mod drive;
mod frames;
mod shared;
mod stream;

pub use shared::Shared;
pub use stream::Stream;

use crate::thread::Thread;
use budget::Budget;
use forebay_core::client::Client;
use forebay_core::transfers::{Transfer, Transfers};
use forebay_http::h2::connection::{Connection, Window};
use forebay_http::h2::frame::{self, Code, FrameHeader, kind};
use forebay_http::h2::hpack::Decoder;
use forebay_http::h2::received::Role;
use forebay_http::priority::Early;
use forebay_net::io::Io;
use forebay_net::reactor::Waiter;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Instant;

/// Amount of unwritten frames at which streams wait, bytes.
const OUT: usize = 64 * 1024;

/// Part of the buffer that `grant` reserves for each incremental stream, bytes.
const SHARE: usize = 16 * 1024;

/// Last stream that GOAWAY names as long as further requests are taken.
const LAST_STREAM: u32 = (1 << 31) - 1;

/// Number of ended streams that are remembered, for frames that arrive late.
const REMEMBERED: usize = 16;

/// Settings of the server that apply to new streams.
#[derive(Clone, Copy, Debug)]
pub struct StreamSettings {
    /// `http2_max_concurrent_streams`.
    pub max_streams: usize,
    /// `http2_body_preread_size`: window of a new stream, bytes.
    pub window: u32,
}

/// An HTTP/2 connection.
#[derive(Debug)]
pub struct Session {
    state: RefCell<SessionState>,
    /// Poller of the thread; `None` without a connection.
    io: Option<Rc<Io>>,
    /// Runner that reads and writes. Streams wake it after they add frames.
    driver: RefCell<Option<Waiter>>,
    dirty: Cell<bool>,
    settings: StreamSettings,
    /// The client.
    client: Rc<Client>,
    /// Transfers of the thread.
    transfers: Rc<Transfers>,
    /// Number of streams that are blocked on the client.
    waits: Cell<usize>,
    /// Progress of the client since all of its streams began to wait for it.
    pace: RefCell<Option<Rc<Transfer>>>,
    /// A runner serves the connection, which is not idle.
    active: Cell<bool>,
    /// The connection was dropped because its client was too slow and another one needed it.
    given_up: Cell<bool>,
}

/// A stream that has ended.
#[derive(Clone, Copy, Debug)]
struct Ended {
    id: u32,
    /// We reset it: ignore frames that the client sent before it knew.
    by_us: bool,
    /// Bytes of the announced `Content-Length` that have not arrived.
    promised: Option<u64>,
    /// Send window, so that late WINDOW_UPDATE frames are still checked for overflow.
    window: Window,
}

#[derive(Debug)]
struct SessionState {
    /// Received bytes, not processed yet.
    input: Vec<u8>,
    /// Frames to write.
    out: Vec<u8>,
    /// Offset of the first byte of `out` in everything sent on the connection.
    out_start: u64,
    /// Offsets, counted like `out_start`, at which a write ends, so that over TLS the next frame begins a new record.
    cuts: VecDeque<u64>,
    connection: Connection,
    decoder: Decoder,
    /// Open streams, in the order of their ids.
    streams: Vec<Rc<Stream>>,
    ended: VecDeque<Ended>,
    /// Streams that wait for room to write, in the order in which they began to wait.
    waiting: Vec<Rc<Stream>>,
    /// Priorities received before their streams.
    early: Early,
    /// Highest stream number that the client has opened.
    last: u32,
    /// Stream whose head took too long. The rest of its field block is only decoded.
    timed_out_head: Option<u32>,
    /// The head of a request could not be decoded, which ends the connection.
    undecoded: bool,
    /// The client has acknowledged our SETTINGS.
    acknowledged: bool,
    /// GOAWAY has been sent: no new streams.
    leaving: bool,
    /// A first GOAWAY has announced the end of the connection, but not its last request.
    announced: bool,
    /// The client has sent GOAWAY or closed its side.
    client_leaves: bool,
    /// The connection ends once `out` is written.
    failed: bool,
    /// Name of the allowance that the client exceeded, until it is logged.
    excess: Option<&'static str>,
    budget: Budget,
    requests: u32,
    /// Content received and sent, bytes.
    moved: u64,
}

impl Session {
    /// Creates a session after the client's preface, with our SETTINGS in its buffer. `strict` makes the allowances
    /// smaller.
    pub fn new(
        io: Option<Rc<Io>>,
        settings: StreamSettings,
        client: Rc<Client>,
        transfers: Rc<Transfers>,
        strict: bool,
    ) -> Rc<Session> {
        let mut out = Vec::with_capacity(64);
        let pairs = [
            (frame::setting::MAX_CONCURRENT_STREAMS, settings.max_streams as u32),
            (frame::setting::INITIAL_WINDOW_SIZE, settings.window),
            // Without this setting, clients must not open WebSockets by extended CONNECT (RFC 8441, section 3).
            (frame::setting::ENABLE_CONNECT_PROTOCOL, 1),
            // Priorities follow RFC 9218, so the client need not send the signals of RFC 7540 (RFC 9218, section 2.1).
            (frame::setting::NO_RFC7540_PRIORITIES, 1),
        ];
        frame::push_settings(&mut out, &pairs);
        // The window of the connection starts at its maximum, because the windows of the streams already bound the memory.
        frame::push_window_update(&mut out, 0, (frame::MAX_WINDOW - frame::INITIAL_WINDOW) as u32);
        Rc::new(Session {
            state: RefCell::new(SessionState {
                input: Vec::new(),
                out,
                out_start: 0,
                cuts: VecDeque::new(),
                connection: Connection::new(Role::Server, frame::MAX_WINDOW as u32),
                decoder: Decoder::default(),
                streams: Vec::new(),
                ended: VecDeque::new(),
                waiting: Vec::new(),
                early: Early::default(),
                last: 0,
                timed_out_head: None,
                undecoded: false,
                acknowledged: false,
                leaving: false,
                announced: false,
                client_leaves: false,
                failed: false,
                excess: None,
                budget: Budget::new(strict),
                requests: 0,
                moved: 0,
            }),
            io,
            driver: RefCell::new(None),
            dirty: Cell::new(false),
            settings,
            client,
            transfers,
            waits: Cell::new(0),
            pace: RefCell::new(None),
            active: Cell::new(false),
            given_up: Cell::new(false),
        })
    }

    /// Creates a placeholder session without a connection.
    fn nobody() -> Rc<Session> {
        Session::new(
            None,
            StreamSettings { max_streams: 0, window: 0 },
            Rc::new(Client::none(Instant::now())),
            Rc::default(),
            false,
        )
    }

    /// Adds bytes that came with the preface.
    pub fn feed(&self, bytes: &[u8]) {
        self.state.borrow_mut().input.extend_from_slice(bytes);
    }

    /// Returns the number of requests so far.
    pub fn requests(&self) -> u32 {
        self.state.borrow().requests
    }

    /// Returns `true` if the client was too slow and another connection needs its place.
    pub fn is_given_up(&self) -> bool {
        self.given_up.get() || self.pace.borrow().as_ref().is_some_and(|p| p.is_given_up())
    }

    /// Records that a stream begins or ends waiting for the client.
    fn stream_waits(&self, begins: bool, now: Instant) {
        let n = self.waits.get();
        self.waits.set(if begins { n + 1 } else { n.saturating_sub(1) });
        self.look(now);
    }

    /// Updates `pace`: whether all streams wait for the client, and the bytes moved so far.
    fn look(&self, now: Instant) {
        let (only_client, moved) = {
            let s = self.state.borrow();
            (self.waits.get() >= s.streams.len(), s.moved)
        };
        let mut pace = self.pace.borrow_mut();
        match &*pace {
            Some(p) => p.look(only_client, moved, now),
            None if only_client && self.active.get() => {
                // One record stands for all streams, since dropping a slow client ends all of them.
                let p = Transfer::of_connection(self.client.network(), moved, now);
                self.transfers.add(&p);
                *pace = Some(p);
            }
            None => {}
        }
    }

    /// Marks the connection as idle or gone and stops measuring the client.
    fn rests(&self) {
        self.active.set(false);
        if let Some(p) = self.pace.take() {
            self.transfers.remove(&p);
        }
    }

    /// Wakes the runner of the connection, once until it runs.
    fn notify(&self) {
        if !self.dirty.replace(true)
            && let (Some(io), Some(driver)) = (&self.io, &*self.driver.borrow())
        {
            io.poller.wake(driver);
        }
    }

    /// Queues GOAWAY: the connection accepts no new streams, open ones go on.
    pub fn leave(&self) {
        let mut s = self.state.borrow_mut();
        s.leave(Code::NoError);
        drop(s);
        self.notify();
    }

    /// Breaks off all streams of a connection that is gone.
    fn abandon(&self) {
        let mut s = self.state.borrow_mut();
        s.failed = true;
        s.out = Vec::new();
        s.cuts = VecDeque::new();
        let streams = std::mem::take(&mut s.streams);
        s.waiting.clear();
        drop(s);
        for stream in streams {
            stream.break_off(None);
        }
    }
}

impl SessionState {
    /// Asks the client for no further requests, but still takes the requests that are on their way (RFC 9113, section 6.8).
    fn announce(&mut self) {
        if !self.leaving && !self.announced {
            self.announced = true;
            // The greatest number lets requests that are on their way pass. A second GOAWAY names the last one (RFC 9113, section 6.8).
            frame::push_goaway(&mut self.out, LAST_STREAM, Code::NoError);
        }
    }

    /// Takes the step of a graceful shutdown that is due.
    fn follow(&mut self, thread: &Thread) {
        if thread.parted.get() {
            self.leave(Code::NoError);
        } else if thread.quitting.get() {
            self.announce();
        }
    }

    /// Returns `true` if a step of a graceful shutdown is due.
    fn has_to_follow(&self, thread: &Thread) -> bool {
        !self.leaving && (thread.parted.get() || thread.quitting.get() && !self.announced)
    }

    fn leave(&mut self, code: Code) {
        if !self.leaving {
            self.leaving = true;
            frame::push_goaway(&mut self.out, self.last, code);
        }
    }

    /// Appends RST_STREAM, over TLS in a separate record. curl before 8.2 drops a response that it reads together with
    /// the reset after it, and it reads one record at a time.
    fn push_reset(&mut self, stream: u32, code: Code) {
        if !self.out.is_empty() {
            self.cuts.push_back(self.out_start + self.out.len() as u64);
        }
        frame::push_reset(&mut self.out, stream, code);
    }

    /// Returns the bytes from `done` on that may leave in one write.
    fn writable(&mut self, done: usize) -> &[u8] {
        let at = self.out_start + done as u64;
        while self.cuts.front().is_some_and(|cut| *cut <= at) {
            self.cuts.pop_front();
        }
        let end = match self.cuts.front() {
            Some(cut) => usize::try_from(cut - self.out_start).unwrap_or(usize::MAX).min(self.out.len()),
            None => self.out.len(),
        };
        self.out.get(done..end).unwrap_or_default()
    }

    /// Returns the stream of a request whose head has begun and is not complete.
    fn begun_head(&self) -> Option<u32> {
        let id = self.connection.field_block.stream().or_else(|| {
            let header = FrameHeader::parse(&self.input).filter(|h| h.kind == kind::HEADERS);
            header.map(|header| header.stream)
        })?;
        // A field block of an earlier stream has trailers, and is no head.
        (id > self.last).then_some(id)
    }

    /// Resets a stream whose head has taken too long. Returns the number of its request.
    fn time_out_head(&mut self, id: u32) -> u32 {
        self.last = id;
        self.timed_out_head = Some(id);
        self.requests += 1;
        // nginx resets such a stream with the same code.
        self.push_reset(id, Code::ProtocolError);
        self.remember(Ended { id, by_us: true, promised: None, window: Window::new(0) });
        if let Err(what) = self.budget.reset() {
            self.excess(what);
        }
        self.requests
    }

    fn stream(&self, id: u32) -> Option<Rc<Stream>> {
        // Clients open streams in ascending order, so the list is sorted (RFC 9113, section 5.1.1).
        let at = self.streams.binary_search_by_key(&id, |s| s.id).ok()?;
        self.streams.get(at).cloned()
    }

    /// Removes a stream and remembers how it ended.
    fn remove(&mut self, id: u32, by_us: bool) {
        if let Ok(at) = self.streams.binary_search_by_key(&id, |s| s.id) {
            let stream = self.streams.remove(at);
            let (promised, window) = (stream.request.promised(), stream.send_window.get());
            self.remember(Ended { id, by_us, promised, window });
        }
        if !self.waiting.is_empty() {
            self.waiting.retain(|s| s.id != id);
        }
    }

    fn remember(&mut self, ended: Ended) {
        // A client that ends many streams must not make the server remember all of them.
        if self.ended.len() >= REMEMBERED {
            self.ended.pop_front();
        }
        self.ended.push_back(ended);
    }

    /// Returns the content that a stream may add now, in bytes.
    fn room(&self, stream: &Stream) -> usize {
        let window = self.connection.send_window.available().min(stream.send_window.get().available());
        window.min(OUT.saturating_sub(self.out.len()))
    }

    /// Wakes streams that wait for room, the most urgent first. Incremental streams of the same urgency take turns.
    fn grant(&mut self) {
        let window = self.connection.send_window.available();
        if self.waiting.is_empty() || self.out.len() >= OUT || window == 0 {
            return;
        }
        // The sort is stable: incremental streams of the same urgency stay in the order of their waiting.
        self.waiting.sort_by_key(|s| s.request.priority.get().order(u64::from(s.id)));
        let mut left = (OUT - self.out.len()).min(window);
        let mut still = Vec::new();
        for s in std::mem::take(&mut self.waiting) {
            if left == 0 || s.send_window.get().available() == 0 {
                still.push(s);
                continue;
            }
            // A stream that is not incremental gets all of the room, since its client can use the content only as a whole (RFC 9218,
            // section 4.2).
            left = if s.request.priority.get().incremental { left.saturating_sub(SHARE) } else { 0 };
            s.granted.set(true);
            s.request.wake_writer();
        }
        self.waiting = still;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reset_does_not_leave_together_with_the_answer_before_it() {
        let session = Session::nobody();
        let mut s = session.state.borrow_mut();
        s.out.clear();
        s.out_start = 1000;
        s.out.extend_from_slice(b"answer");
        s.push_reset(1, Code::NoError);
        s.out.extend_from_slice(b"more");
        assert_eq!(s.writable(0), b"answer");
        assert_eq!(s.writable(3), b"wer");
        let reset = s.writable(6).to_vec();
        assert!(reset.len() == 13 + 4 && reset.ends_with(b"more"), "{reset:?}");
        s.push_reset(3, Code::NoError);
        assert_eq!(s.writable(6), reset);
        assert_eq!(s.writable(6 + 17).len(), 13);
        assert_eq!(s.writable(6 + 17 + 13), b"");
    }
}
