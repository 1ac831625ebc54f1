//! A connection to an upstream, and the requests on it. Hot path.

use super::stream::Stream;
use super::{Key, Need};
use crate::upstream::pooled::{self, Life, PATIENCE, Problem, ProblemKind, Session as _, Stage, Trouble};
use forebay_core::upstream::conn::Conn;
use forebay_http::h2::link::{self, Fatal, Link, MOST_STREAMS};
use forebay_net::io::Io;
use forebay_net::reactor::{Direct, Poller, Waiter};
use forebay_sys::errno::errno_text;
use rustix::io::Errno;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Bytes of a read.
const READ: usize = 16 * 1024;
/// Number of reads of a step, after which other connections have their turn.
const READS: usize = 4;
/// Number of streams with news after which their requests have their turn, while what has come for them is still in the
/// caches of the processor.
const MANY: usize = 8;

/// Time without requests after which buffers are given back.
const REST: Duration = Duration::from_secs(1);

/// Tasks that wait for a stream.
#[derive(Debug, Default)]
pub(super) struct Waits {
    pub(super) reader: Option<Waiter>,
    pub(super) writer: Option<Waiter>,
}

/// A connection to an upstream.
pub(super) struct Session {
    io: Rc<Io>,
    direct: Direct,
    key: Key,
    life: Life,
    /// The connection, once it is there.
    conn: RefCell<Option<Conn>>,
    pub(super) link: RefCell<Link<Waits>>,
    /// `true` if the connection is encrypted.
    https: Cell<bool>,
    /// `true` if the poller has been asked for a step.
    asked: Cell<bool>,
    /// Reason for which the connection is over.
    lost: RefCell<Option<Problem>>,
    /// Time at which something has last come.
    heard: Cell<Instant>,
    begun: Instant,
    /// Time that it has taken to open it.
    took: Cell<Duration>,
    /// Empty between two calls.
    woken: RefCell<Vec<Waiter>>,
    /// For what is received.
    buf: Cell<Vec<u8>>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("key", &self.key).field("life", &self.life).finish_non_exhaustive()
    }
}

impl Session {
    /// Creates the state of a connection that is being opened.
    pub(super) fn new(io: &Rc<Io>, direct: Direct, need: &Need) -> Session {
        let now = io.poller.now();
        Session {
            io: io.clone(),
            direct,
            key: need.key.clone(),
            life: Life::new(need.keep, now),
            conn: RefCell::new(None),
            link: RefCell::default(),
            https: Cell::new(false),
            asked: Cell::new(false),
            lost: RefCell::new(None),
            heard: Cell::new(now),
            begun: now,
            took: Cell::new(Duration::ZERO),
            woken: RefCell::default(),
            buf: Cell::default(),
        }
    }

    /// Takes over the connection, which has been opened.
    pub(super) fn connected(&self, conn: Conn, encrypted: bool) {
        let token = conn.token();
        self.poller().serve_directly(token, self.direct);
        self.poller().watch_readable(token);
        *self.conn.borrow_mut() = Some(conn);
        self.https.set(encrypted);
        self.took.set(self.now().saturating_duration_since(self.begun));
        self.life.establish(self.now());
        // Bytes may have come together with the end of a handshake.
        self.ask();
    }

    pub(super) fn poller(&self) -> &Poller {
        &self.io.poller
    }

    /// Returns the time of the turn.
    pub(super) fn now(&self) -> Instant {
        self.poller().now()
    }

    pub(super) fn number(&self) -> u32 {
        self.direct.number
    }

    pub(super) fn is_encrypted(&self) -> bool {
        self.https.get()
    }

    /// Returns the reason for which the connection is over.
    pub(super) fn lost(&self) -> Option<Problem> {
        self.lost.borrow().clone()
    }

    pub(super) fn is_lost(&self) -> bool {
        self.lost.borrow().is_some()
    }

    /// Asks the poller for a step after the other work of the turn.
    pub(super) fn ask(&self) {
        if !self.life.is_over() && !self.asked.replace(true) {
            self.poller().step_again(self.direct);
        }
    }

    /// Wakes the tasks of streams about which there is news. Returns their number.
    pub(super) fn wake_streams(&self) -> usize {
        let mut woken = self.woken.take();
        self.link.borrow_mut().news(|waits| {
            woken.extend(waits.reader.take());
            woken.extend(waits.writer.take());
        });
        let count = woken.len();
        woken.drain(..).for_each(|waiter| self.poller().wake(&waiter));
        *self.woken.borrow_mut() = woken;
        count
    }

    /// Takes no further requests if nothing has come since a time: the connection may be dead.
    pub(super) fn doubt(&self, since: Instant) {
        if self.heard.get() <= since {
            self.retire();
        }
    }
}

impl pooled::Session for Session {
    type Limits = ();
    type Stream = Stream;

    fn key(&self) -> &Key {
        &self.key
    }

    fn life(&self) -> &Life {
        &self.life
    }

    fn streams(&self) -> usize {
        self.link.borrow().streams()
    }

    fn most(&self) -> usize {
        MOST_STREAMS
    }

    fn lacks_room(&self) -> bool {
        !self.link.borrow().has_room()
    }

    fn goes_on(&self) -> bool {
        self.link.borrow().goes_on()
    }

    fn patience(&self) -> Duration {
        // The server's SETTINGS, which say how many streams it allows, come within a round trip.
        PATIENCE.max(2 * self.took.get())
    }

    fn is_settling(&self) -> bool {
        let is_new = || self.now() < self.begun + self.took.get() + self.patience();
        !self.link.borrow().is_settled() && is_new()
    }

    fn open_stream(self: &Rc<Self>, longest: usize) -> Option<Rc<Stream>> {
        self.link.borrow_mut().reserve();
        Some(Rc::new(Stream::new(self, longest)))
    }

    fn abandoned(&self) {
        // The request that opens the connection goes on, and takes it for itself.
    }

    fn close(&self) {
        self.end(Problem { text: "connection was closed".into(), kind: ProblemKind::Gone });
    }
}

/// The end.
impl Session {
    /// Ends the connection. Its requests fail once what has come has been read.
    fn end(&self, problem: Problem) {
        self.ask();
        if !self.life.end() {
            return;
        }
        if problem.kind == ProblemKind::Invalid {
            // Requests that have no stream yet learn the reason by this.
            self.life.note_trouble(Trouble::Unspoken(problem.text.clone().into_owned()));
        }
        *self.lost.borrow_mut() = Some(problem);
        self.link.borrow_mut().note_all();
        self.wake_streams();
        self.life.wake();
    }

    /// Ends the connection because of an error of the server.
    fn fail(&self, fatal: Fatal) {
        // The server learns the reason by a GOAWAY frame before the connection ends (RFC 9113, section 5.4.1).
        self.link.borrow_mut().leave(fatal.code);
        self.flush();
        self.end(Problem { text: fatal.text, kind: ProblemKind::Invalid });
    }

    fn gone(&self, text: impl Into<std::borrow::Cow<'static, str>>) {
        self.end(Problem { text: text.into(), kind: ProblemKind::Gone });
    }

    /// Takes another slot of the poller for the same socket, which counts as readable.
    #[cfg(test)]
    pub(super) fn note_input(&self) {
        let fd =
            self.conn.borrow().as_ref().map(|conn| conn.with_fd(|fd| Ok(fd.try_clone().expect("a copy"))));
        if let Some(Ok(fd)) = fd {
            let wire = forebay_net::wire::Wire::Plain(self.poller().insert(fd));
            *self.conn.borrow_mut() = Some(Conn::opened(&self.io, wire, self.now()));
        }
    }

    /// Closes the socket.
    pub(super) fn disconnect(&self) {
        let conn = self.conn.take();
        drop(conn);
    }

    /// Removes a stream, `None` if it has not begun. Informs the server if it need not go on with the stream.
    pub(super) fn remove(&self, id: Option<u32>) {
        let is_idle = {
            let mut link = self.link.borrow_mut();
            match id {
                Some(id) => link.remove(id),
                None => link.release(),
            }
            link.streams() == 0
        };
        if self.life.is_over() {
            return;
        }
        if is_idle {
            // A connection that is leaving ends in the step.
            self.life.rests(self.now());
        }
        self.ask();
        self.life.wake();
    }

    /// Gives memory back if the connection has been idle for a while, and sets the time of the next step.
    pub(super) fn set_timer(&self) {
        let (Some(since), Some(expires)) = (self.life.idle_since(), self.life.expires()) else { return };
        let rested = since + REST;
        let is_rested = rested <= self.now();
        if is_rested {
            self.link.borrow_mut().shrink();
            self.buf.take();
        }
        if let Some(conn) = &*self.conn.borrow() {
            let at = if is_rested { expires } else { expires.min(rested) };
            self.poller().step_at(conn.token(), self.poller().deadline_at(at));
        }
    }
}

/// A step.
impl Session {
    /// Receives what is there, sends what waits, and ends the connection if it takes no more requests and has none.
    pub(super) fn step(&self) {
        /// Ends the connection if a step panics: its state is not to be trusted.
        struct Broken<'s>(&'s Session);
        impl Drop for Broken<'_> {
            fn drop(&mut self) {
                if std::thread::panicking() {
                    self.0.gone("connection was closed");
                }
            }
        }
        self.asked.set(false);
        let _broken = Broken(self);
        self.receive();
        self.flush();
        let leaves = !self.link.borrow().goes_on();
        if leaves {
            self.retire();
        }
        if self.life.stage() == Stage::Leaving && self.is_idle() {
            self.close();
        }
    }

    /// Reads from the connection.
    fn read(&self, buf: &mut Vec<u8>) -> Result<usize, Errno> {
        match &*self.conn.borrow() {
            Some(conn) if conn.readable() => conn.read(buf, READ),
            _ => Err(Errno::AGAIN),
        }
    }

    fn receive(&self) {
        let mut buf = self.buf.take();
        let (mut turn, mut woken) = (0, 0);
        while !self.life.is_over() {
            // The rest of the bytes in the socket is read in a further step, after the requests that have something to do.
            if turn == READS || woken >= MANY {
                self.ask();
                break;
            }
            turn += 1;
            buf.clear();
            match self.read(&mut buf) {
                Ok(0) => self.gone("prematurely closed connection"),
                Ok(_) => woken += self.took(&buf),
                Err(Errno::AGAIN) => break,
                Err(e) => self.gone(format!("connection failed {}", errno_text(e))),
            }
        }
        self.buf.set(buf);
    }

    /// Takes what has come. Returns the number of streams that it concerns.
    fn took(&self, bytes: &[u8]) -> usize {
        self.heard.set(self.now());
        let (taken, room) = {
            let mut link = self.link.borrow_mut();
            let before = link.most();
            let taken = link.take(bytes);
            (taken, link.most() > before)
        };
        let woken = self.wake_streams();
        if room {
            self.life.wake();
        }
        // Streams were woken first: what was complete before the error still reaches its request.
        if let Err(fatal) = taken {
            self.fail(fatal);
        }
        woken
    }

    /// Sends as much as the socket takes.
    pub(super) fn flush(&self) {
        let done = match &*self.conn.borrow() {
            Some(conn) => self.send(conn),
            None => return,
        };
        match done {
            Ok(()) | Err(Errno::AGAIN) => {}
            // The server may have answered before it closed the connection, so the next read finds answers and end.
            Err(_) if self.is_readable() => self.ask(),
            Err(e) => self.gone(format!("connection failed {}", errno_text(e))),
        }
        self.wake_streams();
    }

    fn send(&self, conn: &Conn) -> Result<(), Errno> {
        loop {
            let mut link = self.link.borrow_mut();
            if link.pending().is_empty() && !conn.wire().has_unsent() {
                return Ok(());
            }
            match conn.send(link.pending()) {
                Ok(sent) => link.wrote(sent.bytes),
                Err(Errno::AGAIN) => {
                    self.poller().watch_writable(conn.token());
                    return Err(Errno::AGAIN);
                }
                Err(e) => return Err(e),
            }
        }
    }

    fn is_readable(&self) -> bool {
        self.conn.borrow().as_ref().is_some_and(Conn::readable)
    }
}

/// Returns the problem of a request.
pub(super) fn problem_of(problem: &link::Problem) -> Problem {
    let kind = if problem.unsent { ProblemKind::Unsent } else { ProblemKind::Invalid };
    Problem { text: problem.text.clone(), kind }
}
