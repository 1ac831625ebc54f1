//! The runner of an HTTP/2 connection: reads, hands requests over, writes, waits. Hot path.

use super::frames::{Context, Fatal};
use super::stream::Spare;
use super::{Session, Stream};
use crate::connection::{Connection, Work, close};
use crate::error_log;
use crate::thread::{Thread, ThreadConfig};
use forebay_conf::error::Level;
use forebay_core::limit::shares::Network;
use forebay_core::transfers::Over;
use forebay_http::h2::frame::{self, Code};
use forebay_net::reactor::{Job, Token};
use forebay_net::wire::{Then, Wire};
use forebay_sys::sync::lock;
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};

/// First read of a turn, bytes.
const READ: usize = 16 * 1024;

/// Amount of unwritten frames at which reading stops, bytes. Otherwise a client that sends PINGs and never reads would
/// make the buffer grow without bound.
const STOP_READING: usize = 256 * 1024;

/// Largest buffer that is kept for reuse, bytes.
const KEPT: usize = 128 * 1024;

/// Most buffers kept for reuse.
const BUFFERS: usize = 64;

/// Number of requests read at once from which on their responses are written before the next connection runs, while
/// their frames are still in the L1 cache. Fewer are written after all connections have run, since the kernel's work
/// for a write displaces more of the cache than it would save.
const MANY: usize = 4;

/// Requests of one connection after which other connections run.
const TURN: usize = 64;

/// Time for which a network that exceeded an allowance gets smaller ones.
const PENALTY: Duration = Duration::from_secs(60);

/// Most suspect networks remembered.
const SOURCES: usize = 4096;

/// Heads kept for the next requests of a thread.
const SPARE: usize = 64;

/// Result of driving a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Nothing is left to do until the client sends more. The connection expires at this time.
    Idle(Instant),
    /// The connection is over.
    Closed,
}

/// Serves the connection until it is idle or closed. It expires at `until` unless a request comes.
pub async fn run(
    thread: &Rc<Thread>,
    conf: &ThreadConfig,
    conn: &mut Connection,
    session: &Rc<Session>,
    until: Instant,
) -> Rest {
    /// Marks the session as resting, also when a panic ends the run.
    struct Active<'a>(&'a Session);
    impl Drop for Active<'_> {
        fn drop(&mut self) {
            self.0.rests();
        }
    }
    session.active.set(true);
    let _active = Active(session);
    let done = serve(thread, conf, conn, session, until).await;
    if done == Rest::Closed {
        session.abandon();
    }
    *session.driver.borrow_mut() = None;
    done
}

async fn serve(
    thread: &Rc<Thread>,
    conf: &ThreadConfig,
    conn: &mut Connection,
    session: &Rc<Session>,
    mut until: Instant,
) -> Rest {
    let limits = conn.limits(conf);
    session.wake_up(thread);
    if conn.expired {
        session.state.borrow_mut().leave(Code::NoError);
    }
    let mut blocked_since: Option<Instant> = None;
    // `true` if there were requests since the connection was last idle.
    let mut asked = false;
    // Bytes that came with the preface.
    let mut more = !session.state.borrow().input.is_empty();
    let mut timed_out = false;
    let mut in_turn = 0;
    loop {
        session.dirty.set(false);
        if session.is_given_up() {
            session.given_up.set(true);
            log(thread, conf, conn, Level::Info, Over::GivenUp.text());
            session.state.borrow_mut().leave(Code::NoError);
            // Write GOAWAY as far as the socket takes it without waiting.
            let _ = flush(thread, &mut conn.wire, session);
            return Rest::Closed;
        }
        if thread.quitting.get() {
            session.state.borrow_mut().leave(Code::NoError);
        }
        let reading = {
            let s = session.state.borrow();
            !s.failed && s.out.len() < STOP_READING
        };
        if reading && !more && conn.wire.is_readable(&thread.io) {
            match read(thread, conn, session) {
                Ok(n) if n > 0 => more = true,
                Err(Errno::AGAIN) => {}
                _ => return Rest::Closed,
            }
        }
        if reading && more {
            let mut started = 0;
            match process(thread, conn, session, &limits) {
                Ok(done) => (more, started) = done,
                Err(fatal) => {
                    more = false;
                    fail(thread, conf, conn, session, fatal);
                }
            }
            if more {
                // Let the runners of the requests started so far go first.
                thread.io.poller.yield_now().await;
                continue;
            }
            in_turn += started;
            if in_turn >= TURN {
                in_turn = 0;
                thread.io.poller.yield_now().await;
            } else if started >= MANY {
                thread.reactor.after_queue().await;
                // The code below handles everything that the streams have added up to here.
                session.dirty.set(false);
            }
        }
        let excess = session.state.borrow_mut().excess.take();
        if let Some(what) = excess {
            log(thread, conf, conn, Level::Warn, &format!("client sent too many {what}, connection closed"));
            SUSPECTS.add(session.client.network(), thread.clock.now());
        }
        match flush(thread, &mut conn.wire, session) {
            Ok(Flushed::All) => blocked_since = None,
            Ok(Flushed::Some) => blocked_since = Some(thread.clock.now()),
            Ok(Flushed::Nothing) => {
                blocked_since.get_or_insert(thread.clock.now());
            }
            Err(_) => return Rest::Closed,
        }
        let (over, idle, no_streams) = {
            let mut s = session.state.borrow_mut();
            s.grant();
            let none = s.streams.is_empty();
            let over = s.failed || (none && (s.leaving || s.client_leaves || timed_out));
            let idle =
                none && s.out.is_empty() && s.input.is_empty() && s.connection.field_block.stream().is_none();
            (over && blocked_since.is_none(), idle && !over, none)
        };
        if over {
            if let Some(location) = conn.location(conf) {
                close::close(thread, conn, &location.settings.core, true).await;
            }
            return Rest::Closed;
        }
        if session.dirty.get() || (reading && conn.wire.is_readable(&thread.io)) {
            continue;
        }
        asked |= !no_streams || conn.requests != session.requests();
        conn.requests = session.requests();
        if no_streams && std::mem::take(&mut asked) {
            let location = conn.location(conf);
            let timeout = location.map(|l| l.settings.core.keepalive_timeout.timeout).unwrap_or_default();
            until = thread.clock.now() + timeout;
        }
        if idle {
            session.rest(thread);
            return Rest::Idle(until);
        }
        let deadline = match blocked_since {
            Some(t) => Some(t + conn.send_timeout(conf)),
            // A partial request does not extend the time of an idle connection.
            None if no_streams => Some(until),
            None => None,
        };
        session.look(thread.clock.now());
        if !wait(thread, conn, session, deadline, reading).await {
            if blocked_since.is_some() {
                log(thread, conf, conn, Level::Info, "client timed out (110: Connection timed out)");
                return Rest::Closed;
            }
            session.state.borrow_mut().leave(Code::NoError);
            timed_out = true;
        }
    }
}

/// Ends the connection for a protocol error: queues GOAWAY, stops reading and logs the reason.
fn fail(thread: &Thread, conf: &ThreadConfig, conn: &Connection, session: &Rc<Session>, fatal: Fatal) {
    let mut s = session.state.borrow_mut();
    s.failed = true;
    let last = s.last;
    frame::push_goaway(&mut s.out, last, fatal.code);
    if fatal.excess {
        s.excess = Some(fatal.reason);
    } else {
        drop(s);
        log(thread, conf, conn, Level::Info, fatal.reason);
    }
}

fn log(thread: &Thread, conf: &ThreadConfig, conn: &Connection, level: Level, text: &str) {
    if error_log::enabled(thread, &conn.client, level) {
        let (client, server) = (conn.client.text(), conn.client.listener_text(conf));
        let tail = format!(" while processing HTTP/2 connection, client: {client}, server: {server}");
        error_log::log_connection(thread, &conn.client, level, text, &tail);
    }
}

fn read(thread: &Rc<Thread>, conn: &mut Connection, session: &Rc<Session>) -> Result<usize, Errno> {
    let mut input = std::mem::take(&mut session.state.borrow_mut().input);
    input.reserve(READ);
    let got = conn.wire.read(&thread.io, &mut input);
    if input.is_empty() && got.is_err() {
        input = Vec::new();
    }
    session.state.borrow_mut().input = input;
    got
}

/// Processes received frames and queues each complete request for a runner. Returns whether there is more to process,
/// and the number of requests.
fn process(
    thread: &Rc<Thread>,
    conn: &Connection,
    session: &Rc<Session>,
    limits: &forebay_http::h1::request::Limits,
) -> Result<(bool, usize), Fatal> {
    let mut started = thread.h2.streams.take();
    let mut spare = thread.h2.heads.take();
    let mut scratch = thread.h2.scratch.take();
    let mut ended = thread.h2.ended.borrow_mut();
    let mut cx = Context {
        now: thread.clock.now(),
        limits,
        spare: &mut spare,
        scratch: &mut scratch,
        ended: &mut ended,
        started: &mut started,
    };
    let done = session.process(&mut cx);
    drop(ended);
    thread.h2.heads.replace(spare);
    scratch.clear();
    scratch.shrink_to(64 * 1024);
    thread.h2.scratch.replace(scratch);
    let count = started.len();
    if conn.wire.is_worn() {
        session.leave();
    }
    let mut number = session.state.borrow().requests - count as u32;
    for stream in started.drain(..) {
        number += 1;
        stream.number.set(number);
        thread.runners.queue(Job { token: Token::NONE, work: Work::Stream(stream) });
    }
    thread.h2.streams.replace(started);
    done.map(|more| (more, count))
}

/// Result of [`flush`].
enum Flushed {
    All,
    /// The socket took a part and is full.
    Some,
    Nothing,
}

/// Writes as much of the session's buffer as the socket takes.
fn flush(thread: &Rc<Thread>, wire: &mut Wire, session: &Rc<Session>) -> Result<Flushed, Errno> {
    let mut s = session.state.borrow_mut();
    if s.out.is_empty() && !wire.has_unsent() {
        return Ok(Flushed::All);
    }
    let mut done = 0;
    let full = loop {
        let rest = s.writable(done);
        if rest.is_empty() && !wire.has_unsent() {
            break false;
        }
        match wire.send(&thread.io, rest, Then::Nothing) {
            Ok(sent) => {
                done += sent.bytes;
                if sent.full {
                    break true;
                }
            }
            Err(Errno::AGAIN) => break true,
            Err(e) => return Err(e),
        }
    };
    s.out_start += done as u64;
    if done == s.out.len() {
        s.out.clear();
    } else {
        s.out.drain(..done);
    }
    Ok(match (full, done) {
        (false, _) => Flushed::All,
        (true, 0) => Flushed::Nothing,
        (true, _) => Flushed::Some,
    })
}

/// Waits for the client, the socket or the streams. Returns `false` if the deadline passed first.
async fn wait(
    thread: &Rc<Thread>,
    conn: &Connection,
    session: &Rc<Session>,
    deadline: Option<Instant>,
    reading: bool,
) -> bool {
    let wire = &conn.wire;
    let blocked = !session.state.borrow().out.is_empty() || wire.has_unsent();
    let mut first = true;
    let ready = std::future::poll_fn(|cx| {
        // Clear the flag only on the first poll: later it may already hold an edge that epoll will not report again.
        let clear = std::mem::take(&mut first);
        {
            let mut driver = session.driver.borrow_mut();
            if !driver.as_ref().is_some_and(|w| w.will_wake(cx.waker())) {
                *driver = Some(cx.waker().clone());
            }
        }
        if session.dirty.get() || session.is_given_up() {
            return Poll::Ready(());
        }
        if blocked && wire.poll_writable(&thread.io, clear, cx).is_ready() {
            return Poll::Ready(());
        }
        if reading && wire.poll_readable(&thread.io, false, cx).is_ready() {
            return Poll::Ready(());
        }
        if thread.quitting.get() && !session.state.borrow().leaving {
            return Poll::Ready(());
        }
        Poll::Pending
    });
    match deadline {
        Some(at) => thread.io.poller.deadline(at, ready).await.is_some(),
        None => {
            ready.await;
            true
        }
    }
}

/// Memory that the HTTP/2 connections of a thread share, so that idle ones hold none.
#[derive(Debug, Default)]
pub struct Shared {
    #[allow(clippy::vec_box)]
    heads: std::cell::RefCell<Vec<Box<forebay_http::request::RequestHead>>>,
    streams: std::cell::RefCell<Vec<Rc<Stream>>>,
    ended: std::cell::RefCell<Spare>,
    scratch: std::cell::RefCell<Vec<u8>>,
    /// Buffers for receiving and for sending.
    buffers: std::cell::RefCell<Vec<Vec<u8>>>,
}

impl Shared {
    /// Keeps the head of a finished request for reuse.
    pub fn give(&self, head: Box<forebay_http::request::RequestHead>) {
        let mut heads = self.heads.borrow_mut();
        if heads.len() < SPARE && head.buf.capacity() <= 16 * 1024 {
            heads.push(head);
        }
    }

    /// Keeps the memory of a stream for reuse.
    pub fn give_stream(&self, stream: Rc<Stream>) {
        self.ended.borrow_mut().give(stream);
    }
}

impl Stream {
    /// Creates the connection for the request of this stream.
    pub fn connection(self: &Rc<Self>) -> Connection {
        let wire = Wire::Mux(self.clone());
        Connection { wire, ..Connection::closed(self.session().client.clone(), self.number.get()) }
    }
}

/// Networks whose connections exceeded an allowance, and the times at which that is forgotten. All threads share it,
/// since the kernel may hand a client's next connection to any of them.
#[derive(Debug, Default)]
struct Suspects {
    until: Mutex<HashMap<Network, Instant>>,
    /// `true` if `until` has entries. Spares new connections the lock.
    any: AtomicBool,
}

static SUSPECTS: LazyLock<Suspects> = LazyLock::new(Suspects::default);

impl Suspects {
    /// Remembers a network whose client exceeded an allowance.
    fn add(&self, network: Network, now: Instant) {
        let mut until = lock(&self.until);
        if until.len() >= SOURCES {
            until.retain(|_, t| *t > now);
        }
        if until.len() < SOURCES {
            until.insert(network, now + PENALTY);
        }
        self.any.store(true, Ordering::Relaxed);
    }

    /// Whether a client's network has misbehaved lately.
    fn has(&self, network: Network, now: Instant) -> bool {
        if !self.any.load(Ordering::Relaxed) {
            return false;
        }
        let mut until = lock(&self.until);
        let known = until.get(&network).copied();
        if known.is_some_and(|t| t <= now) {
            until.remove(&network);
            self.any.store(!until.is_empty(), Ordering::Relaxed);
        }
        known.is_some_and(|t| t > now)
    }
}

/// Whether a client's network has misbehaved lately.
pub fn is_suspect(network: Network, now: Instant) -> bool {
    SUSPECTS.has(network, now)
}

impl Session {
    /// Releases the memory that an idle connection does not need.
    fn rest(&self, thread: &Thread) {
        let mut s = self.state.borrow_mut();
        let s = &mut *s;
        let mut buffers = thread.h2.buffers.borrow_mut();
        for mine in [&mut s.input, &mut s.out] {
            let mut mine = std::mem::take(mine);
            if buffers.len() < BUFFERS && (READ..=KEPT).contains(&mine.capacity()) {
                mine.clear();
                buffers.push(mine);
            }
        }
        if s.streams.capacity() > 32 {
            s.streams = Vec::new();
        }
        s.cuts = VecDeque::new();
        s.waiting = Vec::new();
    }

    /// Takes buffers from the thread for a connection that becomes active.
    fn wake_up(&self, thread: &Thread) {
        let mut s = self.state.borrow_mut();
        let s = &mut *s;
        let mut buffers = thread.h2.buffers.borrow_mut();
        for mine in [&mut s.input, &mut s.out] {
            if mine.capacity() == 0 {
                *mine = buffers.pop().unwrap_or_else(|| Vec::with_capacity(READ));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suspects_are_forgotten() {
        let suspects = Suspects::default();
        let now = Instant::now();
        let network = |third| Network::of(Some([192, 0, third, 1].into()));
        assert!(!suspects.has(network(2), now));
        suspects.add(network(2), now);
        assert!(suspects.has(network(2), now) && !suspects.has(network(3), now));
        assert!(!suspects.has(network(2), now + PENALTY));
        assert!(!suspects.any.load(Ordering::Relaxed));
    }
}
