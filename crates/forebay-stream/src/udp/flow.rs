//! A session whose datagrams pass between the client and a server (nginx: ngx_stream_proxy_module over UDP). Hot path.

use super::responses::{self, Received, Responses};
use crate::passing::Connected;
use crate::session::Session;
use forebay_conf::error::Level;
use forebay_core::front::{Idle, IdlePlace};
use forebay_core::upstream::conn::Conn;
use forebay_core::upstream::lease::Lease;
use forebay_net::blame;
use forebay_net::io::Io;
use forebay_net::reactor::{Deadline, Direct};
use forebay_net::relay::{Quota, Rules};
use forebay_sys::datagrams::{self, Batch, Destination, MOST};
use forebay_sys::errno::errno_text;
use rustix::io::Errno;
use std::ops::Range;
use std::time::{Duration, Instant};

/// Reads of a step, after which other sessions have their turn.
const READS: usize = 4;

/// Time without a datagram after which a session counts as idle.
const IDLE: Duration = Duration::from_secs(10);

/// Progress of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// Another datagram.
    Waits,
    /// Its turn: the server may have sent more.
    Again,
    /// Nothing.
    Over(End),
}

/// Reason for which a session ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It has passed as many datagrams as were expected.
    Done,
    /// No datagram came in time.
    TimedOut,
    /// Another client needs its place.
    Displaced,
    /// The process ends.
    CutOff,
    /// The server has been removed.
    Revoked,
}

/// Direction of datagrams.
#[derive(Clone, Copy)]
enum Way {
    Up,
    Down,
}

/// Numbers and sizes of the datagrams that have passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counts {
    /// Datagrams of the client.
    pub requests: u64,
    /// Datagrams of the server, and errors that it has caused.
    pub responses: u64,
    /// Bytes received from the client.
    pub received: u64,
    /// Bytes sent to the server.
    pub passed_up: u64,
    /// Bytes received from the server.
    pub answered: u64,
    /// Bytes sent to the client.
    pub passed_down: u64,
}

/// Numbers of datagrams after which a session ends (nginx: proxy_requests, proxy_responses).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Terms {
    /// Datagrams of the client; 0 = no limit.
    pub requests: u64,
    /// Datagrams of the server for each one of the client; `None`: any number.
    pub responses: Option<u64>,
}

impl Terms {
    /// Returns the number of datagrams that the server still has to send before the session is done; `None` if it goes on
    /// after them.
    fn missing(&self, counts: &Counts) -> Option<u64> {
        let expected = self.responses?.saturating_mul(counts.requests);
        (counts.requests >= self.requests).then(|| expected.saturating_sub(counts.responses))
    }
}

/// First datagram of a session.
struct First {
    /// PROXY protocol header in front of it; empty without `proxy_protocol`.
    header: Vec<u8>,
    bytes: Vec<u8>,
}

/// Session between a client and a server.
pub(super) struct Flow {
    session: Box<Session>,
    lease: Lease,
    conn: Conn,
    rules: Rules,
    terms: Terms,
    to: Destination,
    listener: u32,
    /// First datagram, if it has not been sent yet.
    first: Option<First>,
    counts: Counts,
    /// Time at which the server was chosen.
    begun: Instant,
    /// Time of the server's first datagram.
    answered: Option<Instant>,
    /// End of the wait for a datagram (nginx: proxy_timeout).
    deadline: Deadline,
    /// An error of the server has been counted.
    failed: bool,
    /// The kernel coalesces the server's datagrams.
    coalesces: bool,
    /// The server has a unix socket, for which nothing splits datagrams that leave in one piece.
    to_unix: bool,
}

impl Flow {
    /// Creates the session. Its first datagram has not been sent.
    pub(super) fn new(
        mut session: Box<Session>,
        connected: Connected,
        terms: Terms,
        to: Destination,
    ) -> Flow {
        let Connected { lease, conn, rules, header } = connected;
        let now = session.thread.io.poller.now();
        let to_unix = session.upstream.as_mut().and_then(|u| u.present()).is_some_and(|a| a.is_unix());
        Flow {
            first: Some(First { header, bytes: std::mem::take(&mut session.early) }),
            listener: session.client.listener,
            deadline: session.thread.io.poller.after(rules.idle),
            session,
            lease,
            conn,
            rules,
            terms,
            to,
            counts: Counts::default(),
            begun: now,
            answered: None,
            failed: false,
            coalesces: false,
            to_unix,
        }
    }

    /// Sends the first datagram, unless it has been sent.
    pub(super) fn begin(&mut self, io: &Io) {
        let Some(First { header, bytes }) = self.first.take() else { return };
        self.counts.requests += 1;
        self.counts.received = bytes.len() as u64;
        if header.is_empty() {
            self.send_up(io, &bytes);
        } else {
            self.send_up(io, &[header, bytes].concat());
        }
    }

    /// Has the events of the server's socket reported as steps, unless the session is over with its first datagram.
    pub(super) fn watch(&self, io: &Io, direct: Direct) {
        if self.terms.responses == Some(0) && self.terms.requests <= 1 {
            return;
        }
        let token = self.conn.token();
        io.poller.serve_directly(token, direct);
        io.poller.watch_readable(token);
        io.poller.step_at(token, self.deadline);
    }

    /// Returns what the thread needs to know to end the session for a connection; `None` as long as datagrams pass.
    pub(super) fn idle(&self, io: &Io, now: Instant) -> Option<Idle> {
        // Each datagram moves the deadline.
        let last = io.poller.instant(self.deadline).checked_sub(self.rules.idle)?;
        let network = self.session.client.network();
        let idle = Idle { place: IdlePlace::Socket(self.conn.token()), network, rank: (1, last) };
        (now.saturating_duration_since(last) >= IDLE).then_some(idle)
    }

    /// Passes a datagram of the client on.
    pub(super) fn forward(&mut self, io: &Io, bytes: &[u8]) -> Progress {
        self.begin(io);
        // Over the limit they are lost, as in nginx.
        if self.quota(io, Way::Up).is_ok() {
            self.counts.requests += 1;
            self.counts.received += bytes.len() as u64;
            self.send_up(io, bytes);
            self.extend(io);
        }
        self.progress()
    }

    /// Passes several datagrams of the client on. `None` if they are to be passed one by one.
    pub(super) fn forward_batch(
        &mut self,
        io: &Io,
        batch: &mut Batch,
        range: Range<usize>,
    ) -> Option<Progress> {
        self.begin(io);
        let (mut count, mut bytes) = (0, 0);
        for d in range.clone().filter_map(|n| batch.get(n)) {
            count += d.count() as u64;
            bytes += d.bytes.len() as u64;
        }
        let too_many = self.terms.requests > 0 && self.counts.requests + count > self.terms.requests;
        if too_many || self.rules.upload_rate > 0 || self.to_unix {
            return None;
        }
        self.counts.requests += count;
        self.counts.received += bytes;
        let sent = self.conn.with_fd(|fd| Ok(responses::send(fd, batch, range))).ok()?;
        self.counts.passed_up += sent.bytes;
        if let Some(e) = sent.error {
            self.refused("send()", e, "sending to");
        }
        self.extend(io);
        Some(self.progress())
    }

    /// Returns `true` if the next datagram of the client begins a new session (nginx: proxy_requests).
    pub(super) fn is_full(&self) -> bool {
        self.terms.requests > 0 && self.counts.requests >= self.terms.requests
    }

    fn send_up(&mut self, io: &Io, bytes: &[u8]) {
        // An error of an earlier datagram may be reported first.
        for _ in 0..2 {
            match io.poller.with_fd(self.conn.token(), |fd| datagrams::send(fd, bytes, None)) {
                Some(Ok(())) => {
                    self.counts.passed_up += bytes.len() as u64;
                    return;
                }
                Some(Err(Errno::AGAIN | Errno::NOBUFS)) | None => return,
                Some(Err(e)) => {
                    self.refused("send()", e, "sending to");
                    if e != Errno::CONNREFUSED {
                        return;
                    }
                }
            }
        }
    }

    /// Notes that a datagram has passed.
    fn extend(&mut self, io: &Io) {
        self.deadline = io.poller.after(self.rules.idle);
        io.poller.step_at(self.conn.token(), self.deadline);
    }

    fn quota(&self, io: &Io, way: Way) -> Result<(), Duration> {
        let (rate, passed) = match way {
            Way::Up => (self.rules.upload_rate, self.counts.received),
            Way::Down => (self.rules.download_rate, self.counts.answered),
        };
        if rate == 0 {
            return Ok(());
        }
        Quota { rate, elapsed: io.poller.since(self.begun) }.allow(passed).map(|_| ())
    }

    /// Tells whether the session has passed as much as was expected.
    pub(super) fn progress(&self) -> Progress {
        if self.lease.is_revoked() {
            return Progress::Over(End::Revoked);
        }
        match self.terms.missing(&self.counts) {
            Some(0) => Progress::Over(End::Done),
            // As in nginx: an answer for a client without a name ends the session.
            _ if self.counts.responses > 0 && self.to.is_nameless() => Progress::Over(End::Done),
            _ => Progress::Waits,
        }
    }

    /// Goes on after an event: adds datagrams of the server to those that leave to clients.
    pub(super) fn step(&mut self, io: &Io, answers: &mut Responses) -> Progress {
        for _ in 0..READS {
            if let Err(pause) = self.quota(io, Way::Down) {
                return self.pause(io, pause);
            }
            let (most, to) = (self.most(), &self.to);
            match self.conn.with_fd(|fd| answers.receive(fd, most, to)) {
                Ok(received) => {
                    self.answer(io, received);
                    if received.drained || self.progress() != Progress::Waits {
                        return self.progress();
                    }
                }
                Err(Errno::AGAIN) => return self.wait(io),
                Err(e) => {
                    self.note_answer(io);
                    self.refused("recv()", e, "reading from");
                    if self.progress() != Progress::Waits {
                        return self.progress();
                    }
                }
            }
        }
        Progress::Again
    }

    /// Returns the number of datagrams to read: one where a rate is limited, and not more than are expected, so that a session
    /// that ends with them does not look for others.
    fn most(&self) -> usize {
        if self.rules.download_rate > 0 {
            return 1;
        }
        let missing = self.terms.missing(&self.counts).unwrap_or(MOST as u64);
        usize::try_from(missing).unwrap_or(MOST).clamp(1, MOST)
    }

    fn wait(&self, io: &Io) -> Progress {
        if io.poller.is_over(self.deadline) {
            return Progress::Over(End::TimedOut);
        }
        Progress::Waits
    }

    /// Waits until the limit of the rate allows another datagram.
    fn pause(&self, io: &Io, pause: Duration) -> Progress {
        io.poller.step_at(self.conn.token(), io.poller.after(pause).min(self.deadline));
        self.wait(io)
    }

    fn note_answer(&mut self, io: &Io) {
        self.answered.get_or_insert(io.poller.now());
    }

    fn answer(&mut self, io: &Io, received: Received) {
        self.note_answer(io);
        self.counts.responses += received.datagrams;
        self.counts.answered += received.bytes;
        if !self.to.is_nameless() {
            // One that finds no room later is lost; the client's side of the network could have lost it as well.
            self.counts.passed_down += received.bytes;
        }
        // Nothing splits pieces for a unix socket.
        let may_coalesce = self.to.unix().is_none();
        if may_coalesce
            && received.pieces >= super::sockets::BURST
            && !std::mem::replace(&mut self.coalesces, true)
        {
            // Old kernels lack it.
            let _ = self.conn.with_fd(|fd| Ok(datagrams::set_coalescing(fd, true).is_ok()));
        }
        self.extend(io);
    }

    /// Counts an error of the server. It stands for an answer, as in nginx: otherwise a session with `proxy_responses` would wait
    /// for one that cannot come.
    fn refused(&mut self, call: &str, e: Errno, doing: &str) {
        self.counts.responses += 1;
        self.note_counts();
        let text = format!("{call} failed {} while proxying and {doing} upstream", errno_text(e));
        self.session.log(Level::Error, &text);
        if !blame::is_own(e) {
            self.fail();
        }
    }

    /// Counts a failure of the server, once.
    fn fail(&mut self) {
        if !std::mem::replace(&mut self.failed, true) && self.lease.failed() {
            let text = "upstream server temporarily disabled while proxying connection";
            self.session.log(Level::Warn, text);
        }
    }

    /// Copies the bytes to where variables and the error log read them.
    fn note_counts(&mut self) {
        self.session.received = self.counts.received;
        self.session.sent = self.counts.passed_down;
        if let Some(attempt) = self.session.upstream.as_mut().and_then(|u| u.present()) {
            attempt.note(&self.counts, self.answered);
        }
    }

    /// Ends the session, and writes its line to the access log.
    pub(super) fn finish(mut self, end: End) {
        self.note_counts();
        let status = self.log_end(end);
        let now = self.session.thread.io.poller.now();
        if !self.failed {
            self.lease.succeeded();
        }
        let s = &mut self.session;
        if let Some(attempt) = s.upstream.as_mut().and_then(|u| u.present()) {
            self.lease.count(&attempt.finish(now), now);
        }
        s.conclude(status);
    }

    /// Logs the end. Returns the status.
    fn log_end(&mut self, end: End) -> u16 {
        let Counts { requests, responses, .. } = self.counts;
        let expected = self.terms.responses.unwrap_or(0).saturating_mul(requests);
        if end == End::TimedOut && responses < expected {
            let text = "upstream timed out (110: Connection timed out) while proxying connection";
            self.session.log(Level::Error, text);
            self.fail();
            return 502;
        }
        if self.session.logs_connections() {
            let what = match end {
                End::Done => "done",
                End::TimedOut => "timed out",
                End::Displaced => "ended for another client",
                End::Revoked => "ended since the server was removed",
                End::CutOff => {
                    self.session.log(Level::Info, "shutdown timeout while proxying connection");
                    return 200;
                }
            };
            let packets = format!("packets from/to client:{requests}/{responses}");
            self.session.log_bare(Level::Info, &format!("udp {what}, {packets}{}", self.session.traffic()));
        }
        200
    }

    /// Returns the slot of the listener.
    pub(super) fn listener(&self) -> u32 {
        self.listener
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_ends_after_the_datagrams_that_are_expected() {
        let missing = |requests, responses, counted: (u64, u64)| {
            let counts = Counts { requests: counted.0, responses: counted.1, ..Counts::default() };
            Terms { requests, responses }.missing(&counts)
        };
        assert_eq!(missing(0, None, (9, 9)), None);
        assert_eq!(missing(1, None, (1, 9)), None);
        assert_eq!(missing(0, Some(0), (1, 0)), Some(0));
        assert_eq!(missing(0, Some(1), (1, 0)), Some(1));
        assert_eq!(missing(0, Some(3), (2, 4)), Some(2));
        assert_eq!(missing(0, Some(1), (1, 5)), Some(0));
        // Not before the client has sent all that a session takes.
        assert_eq!(missing(2, Some(1), (1, 1)), None);
        assert_eq!(missing(2, Some(1), (2, 1)), Some(1));
    }
}
