//! The runner of an HTTP/2 connection: reads, hands requests over, writes, waits. Hot path.

use super::Session;
use super::frames::{Context, Fatal};
use crate::connection::unread::{self, HeadFailure};
use crate::connection::{Connection, Work, close};
use crate::error_log;
use crate::thread::{Thread, ThreadConfig};
use forebay_conf::error::Level;
use forebay_core::limit::shares::Network;
use forebay_core::transfers::Over;
use forebay_http::h1::request::Limits;
use forebay_http::h2::frame::{self, Code};
use forebay_http::request::Version;
use forebay_net::reactor::{Deadline, Job, Token};
use forebay_net::wire::{Then, Wire};
use forebay_sys::sync::lock;
use rustix::io::Errno;
use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{LazyLock, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};

/// Size of the first read of a turn, bytes.
const READ: usize = 16 * 1024;

/// Amount of unwritten frames at which reading stops, bytes. Otherwise a client that sends PINGs and never reads would
/// make the buffer grow without bound.
const STOP_READING: usize = 256 * 1024;

/// Largest buffer that is kept for reuse, bytes.
const KEPT: usize = 128 * 1024;

/// Maximum number of buffers kept for reuse.
const BUFFERS: usize = 64;

/// Number of requests read at once from which on their responses are written before the next connection runs, while
/// their frames are still in the L1 cache. Fewer are written after all connections have run, since the kernel's work
/// for a write displaces more of the cache than it would save.
const MANY: usize = 4;

/// Number of requests of one connection after which other connections run.
const TURN: usize = 64;

/// Time for which a network that has exceeded an allowance gets smaller allowances.
const PENALTY: Duration = Duration::from_secs(60);

/// Maximum number of suspect networks that are remembered.
const SOURCES: usize = 4096;

/// Result of driving a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// The connection is idle until the client sends more, and expires at this time.
    Idle(Deadline),
    /// The connection is over.
    Closed,
}

/// Serves the connection until it is idle or closed. It expires at `until` unless a request comes.
pub async fn run(
    thread: &Rc<Thread>,
    conf: &ThreadConfig,
    conn: &mut Connection,
    session: &Rc<Session>,
    until: Deadline,
) -> Rest {
    /// Marks the session as resting, also when a panic or the end of the thread ends the run.
    struct Active<'a> {
        thread: &'a Rc<Thread>,
        session: &'a Session,
        /// Reason for the end, for a head that is not complete.
        why: HeadFailure,
    }
    impl Drop for Active<'_> {
        fn drop(&mut self) {
            self.session.rests();
            self.session.log_begun_head(self.thread, self.why);
        }
    }
    session.active.set(true);
    let mut active = Active { thread, session, why: HeadFailure::Ended };
    let done = Driver::new(thread, conf, conn, session, until).serve().await;
    if done.is_err() {
        let failed = session.state.borrow().failed;
        active.why = match (session.is_given_up(), failed) {
            (true, _) => HeadFailure::Displaced,
            (false, true) => HeadFailure::Broken,
            (false, false) => HeadFailure::Closed,
        };
        // Streams of a connection that is gone would wait for its client forever.
        session.abandon();
    }
    *session.driver.borrow_mut() = None;
    done.map_or(Rest::Closed, Rest::Idle)
}

/// End of a connection.
struct Closed;

/// Amount of work that a step has left.
#[derive(PartialEq, Eq)]
enum Unprocessed {
    /// More frames have been received.
    Frames,
    Nothing,
}

/// State of a connection after a turn.
struct Activity {
    /// Everything has been written and no request may follow.
    over: bool,
    /// The connection is idle until the client sends more.
    idle: bool,
    no_streams: bool,
}

/// A connection being served.
struct Driver<'a> {
    thread: &'a Rc<Thread>,
    conf: &'a ThreadConfig,
    conn: &'a mut Connection,
    session: &'a Rc<Session>,
    limits: Limits,
    /// Time at which the connection expires unless a request comes.
    until: Deadline,
    /// Time since which the socket takes nothing.
    blocked_since: Option<Instant>,
    /// `true` if there were requests since the connection was last idle.
    asked: bool,
    /// `true` if bytes have been received that have not been processed.
    more: bool,
    timed_out: bool,
    /// Stream whose head is not complete, and the time by which it must be.
    head: Option<(u32, Deadline)>,
    /// Requests started since other connections ran.
    in_turn: usize,
}

impl<'a> Driver<'a> {
    fn new(
        thread: &'a Rc<Thread>,
        conf: &'a ThreadConfig,
        conn: &'a mut Connection,
        session: &'a Rc<Session>,
        until: Deadline,
    ) -> Driver<'a> {
        let limits = conn.limits(conf);
        session.wake_up(thread);
        // The connection has expired in its slot, and GOAWAY shows its client that no request was lost.
        if conn.expired {
            session.state.borrow_mut().leave(Code::NoError);
        }
        // Bytes may have come together with the preface.
        let more = !session.state.borrow().input.is_empty();
        Driver {
            thread,
            conf,
            conn,
            session,
            limits,
            until,
            blocked_since: None,
            asked: false,
            more,
            timed_out: false,
            head: None,
            in_turn: 0,
        }
    }

    /// Serves the connection until it is idle. Returns the time at which it expires.
    async fn serve(&mut self) -> Result<Deadline, Closed> {
        loop {
            self.session.dirty.set(false);
            self.check_leaving()?;
            let reading = self.is_reading();
            if reading && self.take_input().await? == Unprocessed::Frames {
                continue;
            }
            self.note_excess();
            self.note_head();
            self.flush()?;
            let activity = self.activity();
            if activity.over {
                return self.close().await;
            }
            if self.session.dirty.get() || (reading && self.conn.wire.is_readable(&self.thread.io)) {
                self.thread.io.poller.be_fair().await;
                continue;
            }
            self.note_requests(activity.no_streams);
            if activity.idle {
                self.session.rest(self.thread);
                return Ok(self.until);
            }
            self.wait(reading, activity.no_streams).await?;
        }
    }

    /// Announces the end of the connection where the thread quits or the client was too slow.
    #[inline]
    fn check_leaving(&mut self) -> Result<(), Closed> {
        if self.session.is_given_up() {
            self.session.given_up.set(true);
            self.log(Level::Info, Over::GivenUp.text());
            self.session.state.borrow_mut().leave(Code::NoError);
            // GOAWAY is written as far as the socket takes it, without a wait.
            let _ = flush(self.thread, &mut self.conn.wire, self.session);
            return Err(Closed);
        }
        if self.thread.quitting.get() {
            self.session.state.borrow_mut().follow(self.thread);
        }
        Ok(())
    }

    #[inline]
    fn is_reading(&self) -> bool {
        let s = self.session.state.borrow();
        !s.failed && s.out.len() < STOP_READING
    }

    /// Reads and processes frames.
    #[inline]
    async fn take_input(&mut self) -> Result<Unprocessed, Closed> {
        if !self.more && self.conn.wire.is_readable(&self.thread.io) {
            match read(self.thread, self.conn, self.session) {
                Ok(n) if n > 0 => self.more = true,
                Err(Errno::AGAIN) => {}
                _ => return Err(Closed),
            }
        }
        if !self.more {
            return Ok(Unprocessed::Nothing);
        }
        let started = self.process();
        if self.more {
            // The runners of the requests that were started so far go first.
            self.thread.io.poller.yield_now().await;
            return Ok(Unprocessed::Frames);
        }
        self.be_fair(started).await;
        Ok(Unprocessed::Nothing)
    }

    /// Processes received frames. Returns the number of requests that were started.
    fn process(&mut self) -> usize {
        match process(self.thread, self.conn, self.session, &self.limits) {
            Ok((more, started)) => {
                self.more = more;
                started
            }
            Err(fatal) => {
                self.more = false;
                self.fail(fatal);
                0
            }
        }
    }

    /// Lets others run after many requests were started.
    #[inline]
    async fn be_fair(&mut self, started: usize) {
        self.in_turn += started;
        if self.in_turn >= TURN {
            self.in_turn = 0;
            self.thread.io.poller.yield_now().await;
        } else if started >= MANY {
            self.thread.reactor.after_queue().await;
            // The next steps handle everything that the streams have added so far, so nothing is left to be noticed.
            self.session.dirty.set(false);
        }
    }

    /// Logs a client that has exceeded an allowance, and remembers its network.
    #[inline]
    fn note_excess(&self) {
        let excess = self.session.state.borrow_mut().excess.take();
        if let Some(what) = excess {
            self.log(Level::Warn, &format!("client sent too many {what}, connection closed"));
            SUSPECTS.add(self.session.client.network(), self.thread.clock.now());
        }
    }

    /// Writes as much as the socket takes.
    #[inline]
    fn flush(&mut self) -> Result<(), Closed> {
        let now = self.thread.clock.now();
        match flush(self.thread, &mut self.conn.wire, self.session) {
            Ok(Flushed::All) => self.blocked_since = None,
            Ok(Flushed::Some) => self.blocked_since = Some(now),
            // Only progress restarts the time, so that a client that takes nothing is timed out.
            Ok(Flushed::Nothing) => self.blocked_since = self.blocked_since.or(Some(now)),
            Err(_) => return Err(Closed),
        }
        Ok(())
    }

    #[inline]
    fn activity(&self) -> Activity {
        let mut s = self.session.state.borrow_mut();
        s.grant();
        let no_streams = s.streams.is_empty();
        let over = s.failed || (no_streams && (s.leaving || s.client_leaves || self.timed_out));
        // TLS may hold records that the socket has taken only in part, even when `out` is empty.
        let all_sent = self.blocked_since.is_none();
        let nothing_held =
            s.out.is_empty() && s.input.is_empty() && s.connection.field_block.stream().is_none();
        Activity { over: over && all_sent, idle: no_streams && nothing_held && all_sent && !over, no_streams }
    }

    /// Closes a connection that is over.
    async fn close(&mut self) -> Result<Deadline, Closed> {
        if let Some(location) = self.conn.location(self.conf) {
            // The client may still be sending frames, and bytes that stay unread would reset the connection before it has read GOAWAY.
            close::close(self.thread, self.conn, &location.settings.core, true).await;
        }
        Err(Closed)
    }

    /// Counts requests, and sets the time at which the connection expires after the last of them.
    #[inline]
    fn note_requests(&mut self, no_streams: bool) {
        self.asked |= !no_streams || self.conn.requests != self.session.requests();
        self.conn.requests = self.session.requests();
        if no_streams && std::mem::take(&mut self.asked) {
            let location = self.conn.location(self.conf);
            let timeout = location.map(|l| l.settings.core.keepalive_timeout.timeout).unwrap_or_default();
            self.until = self.thread.io.poller.after(timeout);
        }
    }

    /// Sets the time for a head that has begun and is not complete. It applies while other streams are served, too.
    #[inline]
    fn note_head(&mut self) {
        let begun = {
            let s = self.session.state.borrow();
            s.begun_head().filter(|_| !(s.failed || s.leaving || s.client_leaves))
        };
        if begun != self.head.map(|(id, _)| id) {
            let timeout = self.conf.header_timeout_of(&self.conn.client);
            self.head = begun.map(|id| (id, self.thread.io.poller.after(timeout)));
        }
    }

    /// Ends the stream of a head whose time is over (nginx: client_header_timeout).
    fn time_out_head(&mut self, id: u32) {
        self.head = None;
        let number = self.session.state.borrow_mut().time_out_head(id);
        let client = self.conn.client.clone();
        unread::log(self.thread, Version::Http2, client, number, HeadFailure::TimedOut);
    }

    /// Waits for something to do. A client that sends no request in time gets a GOAWAY.
    async fn wait(&mut self, reading: bool, no_streams: bool) -> Result<(), Closed> {
        let blocked = self
            .blocked_since
            .map(|t| self.thread.io.poller.deadline_at(t + self.conn.send_timeout(self.conf)));
        let head = self.head.map(|(_, until)| until);
        // The time for being idle runs only while there are no streams and nothing else has a limit of its own.
        let idle = Some(self.until).filter(|_| no_streams && blocked.is_none() && head.is_none());
        let deadline = [blocked, head, idle].into_iter().flatten().min();
        self.session.look(self.thread.clock.now());
        if wait(self.thread, self.conn, self.session, deadline, reading).await == Woken::Ready {
            return Ok(());
        }
        if let Some((id, until)) = self.head
            && deadline == Some(until)
        {
            self.time_out_head(id);
            return Ok(());
        }
        if self.blocked_since.is_some() {
            self.log(Level::Info, "client timed out (110: Connection timed out)");
            return Err(Closed);
        }
        self.session.state.borrow_mut().leave(Code::NoError);
        // The connection ends when GOAWAY has been written.
        self.timed_out = true;
        Ok(())
    }

    /// Ends the connection for a protocol error: queues GOAWAY, stops reading and logs the reason.
    fn fail(&self, fatal: Fatal) {
        let mut s = self.session.state.borrow_mut();
        s.failed = true;
        let last = s.last;
        frame::push_goaway(&mut s.out, last, fatal.code);
        if fatal.excess {
            s.excess = Some(fatal.reason);
        } else {
            drop(s);
            self.log(Level::Info, fatal.reason);
        }
    }

    fn log(&self, level: Level, text: &str) {
        let client = &self.conn.client;
        if error_log::enabled(self.thread, client, level) {
            let (name, server) = (client.text(), client.listener_text(self.conf));
            let tail = format!(" while processing HTTP/2 connection, client: {name}, server: {server}");
            error_log::log_connection(self.thread, client, level, text, &tail);
        }
    }
}

fn read(thread: &Rc<Thread>, conn: &mut Connection, session: &Rc<Session>) -> Result<usize, Errno> {
    let mut input = std::mem::take(&mut session.state.borrow_mut().input);
    input.reserve(READ);
    let got = conn.wire.read(&thread.io, &mut input);
    // A read that finds nothing must not leave a buffer to a connection that may be idle for long.
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
    limits: &Limits,
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
    // A single large field block must not stay in memory for all later ones.
    scratch.shrink_to(64 * 1024);
    thread.h2.scratch.replace(scratch);
    let count = started.len();
    // The keys of TLS have sealed as much as they should, so the client has to come back over a new connection.
    if conn.wire.is_worn() {
        session.leave();
    }
    let mut number = session.state.borrow().requests - count as u32;
    for stream in started.drain(..) {
        number += 1;
        stream.request.number.set(number);
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
    let unsent = wire.unsent();
    let (done, full) = write(thread, wire, &mut s)?;
    s.out_start += done as u64;
    if done == s.out.len() {
        s.out.clear();
    } else {
        s.out.drain(..done);
    }
    // Records that an earlier call has sealed count as progress, too.
    let progress = done > 0 || wire.unsent() < unsent;
    Ok(match (full, progress) {
        (false, _) => Flushed::All,
        (true, false) => Flushed::Nothing,
        (true, true) => Flushed::Some,
    })
}

/// Writes until the socket is full. Returns the number of bytes, and whether it is.
#[inline]
fn write(thread: &Rc<Thread>, wire: &mut Wire, s: &mut super::SessionState) -> Result<(usize, bool), Errno> {
    let mut done = 0;
    loop {
        let rest = s.writable(done);
        if rest.is_empty() && !wire.has_unsent() {
            return Ok((done, false));
        }
        match wire.send(&thread.io, rest, Then::Nothing) {
            Ok(sent) => {
                done += sent.bytes;
                if sent.full {
                    return Ok((done, true));
                }
            }
            Err(Errno::AGAIN) => return Ok((done, true)),
            Err(e) => return Err(e),
        }
    }
}

/// Event that [`wait`] has waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Woken {
    /// The client, the socket or a stream is ready.
    Ready,
    /// The deadline has passed.
    Deadline,
}

/// Waits for the client, the socket or the streams.
async fn wait(
    thread: &Rc<Thread>,
    conn: &Connection,
    session: &Rc<Session>,
    deadline: Option<Deadline>,
    reading: bool,
) -> Woken {
    let wire = &conn.wire;
    let blocked = !session.state.borrow().out.is_empty() || wire.has_unsent();
    let ready = std::future::poll_fn(|cx| {
        thread.io.poller.set_waiter(&mut session.driver.borrow_mut(), cx);
        let ready = session.dirty.get()
            || session.is_given_up()
            || blocked && wire.poll_writable(&thread.io, cx).is_ready()
            || reading && wire.poll_readable(&thread.io, cx).is_ready()
            || thread.quitting.get() && session.state.borrow().has_to_follow(thread);
        if ready { Poll::Ready(()) } else { Poll::Pending }
    });
    let Some(at) = deadline else {
        ready.await;
        return Woken::Ready;
    };
    match thread.io.poller.until(at, ready).await {
        Some(()) => Woken::Ready,
        None => Woken::Deadline,
    }
}

/// Networks whose connections exceeded an allowance, and the times at which they are forgotten. All threads share the table, since the
/// kernel may hand a client's next connection to any of them.
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
        // Expired entries are searched for only when the table is full, so that adding one is cheap.
        if until.len() >= SOURCES {
            until.retain(|_, t| *t > now);
        }
        if until.len() < SOURCES {
            until.insert(network, now + PENALTY);
        }
        self.any.store(true, Ordering::Relaxed);
    }

    /// Returns `true` if a client's network has misbehaved lately.
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

/// Returns `true` if a client's network has misbehaved lately.
pub fn is_suspect(network: Network, now: Instant) -> bool {
    SUSPECTS.has(network, now)
}

impl Session {
    /// Logs a request whose head is not complete or could not be decoded, when the connection ends.
    fn log_begun_head(&self, thread: &Rc<Thread>, why: HeadFailure) {
        let number = {
            let mut s = self.state.borrow_mut();
            let begun = s.begun_head().is_some() || std::mem::take(&mut s.undecoded);
            begun.then_some(s.requests + 1)
        };
        if let Some(number) = number {
            unread::log(thread, Version::Http2, self.client.clone(), number, why);
        }
    }

    /// Releases the memory that an idle connection does not need.
    fn rest(&self, thread: &Thread) {
        let mut s = self.state.borrow_mut();
        let s = &mut *s;
        let mut buffers = thread.h2.buffers.borrow_mut();
        for mine in [&mut s.input, &mut s.out] {
            let mut mine = std::mem::take(mine);
            // A buffer that is smaller than a read would have to grow, and a much larger one would hold memory for nothing.
            if buffers.len() < BUFFERS && (READ..=KEPT).contains(&mine.capacity()) {
                mine.clear();
                buffers.push(mine);
            }
        }
        // A burst of streams must not cost an idle connection memory.
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
