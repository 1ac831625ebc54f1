//! HTTP/2 on client connections (RFC 9113): one [`Session`] a connection, one [`Stream`] a request. Hot path.
//!
//! The connection's runner ([`drive::run`]) reads frames, hands each complete request to a runner of its own, and writes
//! what the streams have put into the session's buffer: the frames of all streams that are ready leave in one write.
//! A stream is a wire like any other ([`forebay_net::wire::Wire`]), so phases, modules and bodies know nothing of frames.
//! A connection without streams is parked like an idle HTTP/1 connection.

mod budget;
pub mod drive;
mod frames;
mod stream;

pub use stream::Stream;

use crate::client::Client;
use crate::transfers::{Transfer, Transfers};
use budget::Budget;
use forebay_http::h2::connection::{Connection, Window};
use forebay_http::h2::frame::{self, Code};
use forebay_http::h2::hpack::Decoder;
use forebay_http::h2::received::Role;
use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::Waker;
use std::time::Instant;

/// Frames that wait to be written, bytes: beyond this streams wait.
const OUT: usize = 64 * 1024;

/// What a stream of a client that asks for no order may add at a time, bytes.
const SHARE: usize = 16 * 1024;

/// Streams whose end is remembered, to tell a closed stream from one that never was.
const REMEMBERED: usize = 16;

/// What both ends agreed on for new streams, from the server's settings.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// `http2_max_concurrent_streams`.
    pub max_streams: usize,
    /// `http2_body_preread_size`: window of a new stream, bytes.
    pub window: u32,
}

/// An HTTP/2 connection.
#[derive(Debug)]
pub struct Session {
    state: RefCell<State>,
    /// The runner that reads and writes; told when a stream has added something.
    driver: RefCell<Option<Waker>>,
    dirty: Cell<bool>,
    settings: Settings,
    /// The client.
    client: Rc<Client>,
    /// Transfers of the thread.
    transfers: Rc<Transfers>,
    /// Streams whose client is waited for.
    waits: Cell<usize>,
    /// How fast the client has been since all of its streams waited for it.
    pace: RefCell<Option<Rc<Transfer>>>,
    /// It has a runner.
    active: Cell<bool>,
    /// It was closed, since its place was needed.
    given_up: Cell<bool>,
}

/// A stream that has ended.
#[derive(Clone, Copy, Debug)]
struct Ended {
    id: u32,
    /// We reset it, so that frames under way are to be ignored.
    by_us: bool,
    /// Content that was promised and had not come.
    promised: Option<u64>,
    /// What the client let us send.
    window: Window,
    /// It was answered before its request was complete, and the client has not been told to stop: it has sent no
    /// content so far.
    untold: bool,
}

#[derive(Debug)]
struct State {
    /// Received and not yet understood.
    input: Vec<u8>,
    /// To be written.
    out: Vec<u8>,
    /// Offset of the first byte of `out` since the beginning of the connection.
    out_start: u64,
    /// Offsets, counted as `out_start`, before which what is written ends: over TLS what follows has a record of its own.
    cuts: VecDeque<u64>,
    connection: Connection,
    decoder: Decoder,
    /// Open streams, in the order of their ids.
    streams: Vec<Rc<Stream>>,
    ended: VecDeque<Ended>,
    /// Streams that wait for room, in the order in which they came.
    waiting: Vec<Rc<Stream>>,
    /// Priorities that came before their streams.
    early: Vec<(u32, Priority)>,
    /// Highest stream of the client.
    last: u32,
    /// The client knows our settings.
    acknowledged: bool,
    /// GOAWAY has been sent: no new streams.
    leaving: bool,
    /// The client has sent GOAWAY or its end.
    client_leaves: bool,
    /// The connection ends when `out` is written.
    failed: bool,
    /// What the client did too much of.
    excess: Option<&'static str>,
    budget: Budget,
    requests: u32,
    /// Content received and sent, bytes.
    moved: u64,
}

/// RFC 9218, section 4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Priority {
    /// 0 to 7, 0 is the most urgent.
    urgency: u8,
    /// Shares with others of the same urgency.
    incremental: bool,
}

impl Priority {
    /// Of clients that say nothing: they share.
    const DEFAULT: Priority = Priority { urgency: 3, incremental: true };

    /// Reads `u=1, i` (a structured field, of which the rest is ignored).
    fn parse(text: &[u8]) -> Priority {
        let mut p = Priority { urgency: 3, incremental: false };
        for item in text.split(|b| *b == b',') {
            match item.trim_ascii() {
                [b'u', b'=', d @ b'0'..=b'7'] => p.urgency = d - b'0',
                b"i" | b"i=?1" => p.incremental = true,
                b"i=?0" => p.incremental = false,
                _ => {}
            }
        }
        p
    }
}

impl Session {
    /// A session whose preface has been read; SETTINGS is ready to be written. `settings` are those of the server.
    pub fn new(
        settings: Settings,
        client: Rc<Client>,
        transfers: Rc<Transfers>,
        strict: bool,
    ) -> Rc<Session> {
        let mut out = Vec::with_capacity(64);
        let pairs = [
            (frame::setting::MAX_CONCURRENT_STREAMS, settings.max_streams as u32),
            (frame::setting::INITIAL_WINDOW_SIZE, settings.window),
            (frame::setting::NO_RFC7540_PRIORITIES, 1),
        ];
        frame::push_settings(&mut out, &pairs);
        frame::push_window_update(&mut out, 0, (frame::MAX_WINDOW - frame::INITIAL_WINDOW) as u32);
        Rc::new(Session {
            state: RefCell::new(State {
                input: Vec::new(),
                out,
                out_start: 0,
                cuts: VecDeque::new(),
                connection: Connection::new(Role::Server, frame::MAX_WINDOW as u32),
                decoder: Decoder::default(),
                streams: Vec::new(),
                ended: VecDeque::new(),
                waiting: Vec::new(),
                early: Vec::new(),
                last: 0,
                acknowledged: false,
                leaving: false,
                client_leaves: false,
                failed: false,
                excess: None,
                budget: Budget::new(strict),
                requests: 0,
                moved: 0,
            }),
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

    /// A session that is no connection's.
    fn nobody() -> Rc<Session> {
        Session::new(
            Settings { max_streams: 0, window: 0 },
            Rc::new(Client::none(Instant::now())),
            Rc::default(),
            false,
        )
    }

    /// Adds bytes that came with the preface.
    pub fn feed(&self, bytes: &[u8]) {
        self.state.borrow_mut().input.extend_from_slice(bytes);
    }

    /// Requests so far.
    pub fn requests(&self) -> u32 {
        self.state.borrow().requests
    }

    /// Whether its place is needed for another connection.
    pub fn is_given_up(&self) -> bool {
        self.given_up.get() || self.pace.borrow().as_ref().is_some_and(|p| p.is_given_up())
    }

    /// A stream begins to wait for the client, or has ended that.
    fn stream_waits(&self, begins: bool, now: Instant) {
        let n = self.waits.get();
        self.waits.set(if begins { n + 1 } else { n.saturating_sub(1) });
        self.look(now);
    }

    /// Looks whether the client is all that the connection waits for, and how fast it is.
    fn look(&self, now: Instant) {
        let (only_client, moved) = {
            let s = self.state.borrow();
            (self.waits.get() >= s.streams.len(), s.moved)
        };
        let mut pace = self.pace.borrow_mut();
        match &*pace {
            Some(p) => p.look(only_client, moved, now),
            None if only_client && self.active.get() => {
                let p = Transfer::of_connection(self.client.network(), moved, now);
                self.transfers.add(&p);
                *pace = Some(p);
            }
            None => {}
        }
    }

    /// The connection is idle or gone.
    fn rests(&self) {
        self.active.set(false);
        if let Some(p) = self.pace.take() {
            self.transfers.remove(&p);
        }
    }

    /// Tells the runner of the connection that there is something to do.
    fn notify(&self) {
        if !self.dirty.replace(true)
            && let Some(w) = self.driver.borrow().as_ref()
        {
            w.wake_by_ref();
        }
    }

    /// Says that no new streams will be served; those that are open go on.
    pub fn leave(&self) {
        let mut s = self.state.borrow_mut();
        s.leave(Code::NoError);
        drop(s);
        self.notify();
    }

    /// The connection is gone: all streams learn of it.
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

impl State {
    fn leave(&mut self, code: Code) {
        if !self.leaving {
            self.leaving = true;
            frame::push_goaway(&mut self.out, self.last, code);
        }
    }

    /// Appends RST_STREAM, in a record of its own over TLS. curl before 8.2 drops an answer that it reads together with
    /// the reset behind it, and reads a record at a time.
    fn push_reset(&mut self, stream: u32, code: Code) {
        if !self.out.is_empty() {
            self.cuts.push_back(self.out_start + self.out.len() as u64);
        }
        frame::push_reset(&mut self.out, stream, code);
    }

    /// Bytes from `done` on that may leave in one write.
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

    fn stream(&self, id: u32) -> Option<Rc<Stream>> {
        let at = self.streams.binary_search_by_key(&id, |s| s.id).ok()?;
        self.streams.get(at).cloned()
    }

    /// Takes a stream out, remembering how it ended.
    fn remove(&mut self, id: u32, by_us: bool) {
        if let Ok(at) = self.streams.binary_search_by_key(&id, |s| s.id) {
            let stream = self.streams.remove(at);
            let (promised, window) = (stream.promised.get(), stream.send_window.get());
            self.remember(Ended { id, by_us, promised, window, untold: false });
        }
        if !self.waiting.is_empty() {
            self.waiting.retain(|s| s.id != id);
        }
    }

    fn remember(&mut self, ended: Ended) {
        if self.ended.len() >= REMEMBERED {
            self.ended.pop_front();
        }
        self.ended.push_back(ended);
    }

    /// Room that a stream has for content, bytes.
    fn room(&self, stream: &Stream) -> usize {
        let window = self.connection.send_window.available().min(stream.send_window.get().available());
        window.min(OUT.saturating_sub(self.out.len()))
    }

    /// Lets streams write that wait for room: the most urgent first, those that share in turns.
    fn grant(&mut self) {
        let window = self.connection.send_window.available();
        if self.waiting.is_empty() || self.out.len() >= OUT || window == 0 {
            return;
        }
        // Sorting is stable: within an urgency whoever has waited longest is first among those that share.
        self.waiting.sort_by_key(|s| {
            let p = s.priority.get();
            (p.urgency, if p.incremental { u32::MAX } else { s.id })
        });
        let mut left = (OUT - self.out.len()).min(window);
        let mut still = Vec::new();
        for s in std::mem::take(&mut self.waiting) {
            if left == 0 || s.send_window.get().available() == 0 {
                still.push(s);
                continue;
            }
            left = if s.priority.get().incremental { left.saturating_sub(SHARE) } else { 0 };
            s.granted.set(true);
            s.wake_writer();
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

    #[test]
    fn priorities_as_structured_fields() {
        let p = |urgency, incremental| Priority { urgency, incremental };
        assert_eq!(Priority::parse(b""), p(3, false));
        assert_eq!(Priority::parse(b"u=1, i"), p(1, true));
        assert_eq!(Priority::parse(b"i=?0,u=7;x=1, u=6"), p(6, false));
        assert_eq!(Priority::parse(b"u=9"), p(3, false));
    }
}
