//! HTTP/1 on a connection (RFC 9112): read a head, run the phases, send the response, log, and again. Hot path.

use super::greeting::Preface;
use super::switched::Relay;
use super::unread::HeadFailure;
use super::{Connection, Guard, Partial, close, switched};
use crate::body;
use crate::error_log;
use crate::phases;
use crate::request::Request;
use crate::request::tally::Arrival;
use crate::response::respond::{finish, respond};
use crate::thread::Thread;
use crate::tls;
use forebay_conf::error::Level;
use forebay_core::front::PARTING;
use forebay_core::tls::drive::{Driven, Patience};
use forebay_http::field::Slice;
use forebay_http::h1::request::{self as parser, Limits, Stage, Status};
use forebay_http::proxy_protocol::Broken;
use forebay_http::request::{Framing, Version};
use forebay_net::reactor::{Deadline, Token};
use forebay_net::wire::Then;
use forebay_sys::errno::errno_text;
use rustix::io::Errno;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Size of the first read of a connection in bytes; longer heads are rare.
const READ: usize = 4096;

/// Number of requests that one connection gets answered before others have their turn. Otherwise a client that pipelines without end
/// would hold up the thread.
const TURN: u32 = 32;

/// Maximum time that a handshake waits for room to send, counted from the beginning of the connection. Other TLS records wait for as long
/// from the time at which they find no room.
const HANDSHAKE: Duration = Duration::from_secs(60);

/// Result of serving a connection.
pub(super) enum Served {
    /// The connection is over.
    Closed,
    /// The connection waits in its slot.
    Parked,
    /// The bytes of the connection are passed on without a runner.
    Relayed,
    /// The connection speaks HTTP/2, and is closed at this time unless a request comes.
    Http2(Deadline),
}

/// Result of reading a head.
enum Head {
    Complete,
    Refused(parser::Reject),
    /// No more bytes for now: the connection can wait without a runner.
    Wait,
    /// The head will not be completed.
    Gone(HeadFailure),
    /// The connection is over and has been logged: a broken PROXY protocol header or a failed handshake.
    Over,
    /// The client speaks HTTP/2; the session is in the connection.
    Http2,
    /// The client has agreed on HTTP/2 and does not speak it.
    NoPreface,
    /// The handshake is to be continued.
    Handshake,
}

/// A connection while a runner serves it.
struct Http1<'s, 'g> {
    thread: &'s Rc<Thread>,
    req: &'s mut Request,
    guard: &'s mut Guard<'g>,
    /// `true` if the time for the first head was running before this runner got the connection.
    waited: bool,
    /// `true` if a request has begun, so that settings of its location apply.
    begun: bool,
    /// Requests answered since others had a turn.
    in_turn: u32,
}

/// Serves a connection until it is idle or over.
pub(super) fn serve<'s>(
    thread: &'s Rc<Thread>,
    req: &'s mut Request,
    guard: &'s mut Guard<'_>,
    waited: bool,
) -> impl Future<Output = Served> + 's {
    let mut served = Http1 { thread, req, guard, waited, begun: false, in_turn: 0 };
    // The arguments of an `async fn` would be in the future twice: as captured and as used.
    async move {
        // The time for a head has ended while the connection was in its slot.
        if served.req.conn.expired {
            gone(served.req, HeadFailure::TimedOut);
            return Served::Closed;
        }
        let done = served.run().await;
        if let Served::Closed = done {
            served.flush().await;
        }
        done
    }
}

impl Http1<'_, '_> {
    async fn run(&mut self) -> Served {
        loop {
            let done = match self.read_head() {
                Head::Complete => self.request().await,
                Head::Wait => self.wait().await,
                // Everything that is rare is boxed, so that the futures of requests have no room for it.
                other => Box::pin(self.leave(other)).await,
            };
            if let Some(done) = done {
                return done;
            }
        }
    }

    fn read_head(&mut self) -> Head {
        let limits = self.req.conn.limits(&self.req.conf);
        read_head(self.thread, self.req, &limits)
    }

    /// Handles an outcome other than a complete head.
    async fn leave(&mut self, head: Head) -> Option<Served> {
        match head {
            Head::Complete | Head::Wait | Head::Over => {}
            Head::Refused(reject) => self.refuse(&reject).await,
            Head::Gone(end) => gone(self.req, end),
            Head::Http2 => return Some(Served::Http2(head_deadline(self.thread, self.req))),
            Head::NoPreface => {
                let conf = self.req.conf.clone();
                self.req.conn.refuse_preface(self.thread, &conf).await;
            }
            Head::Handshake => return self.shake_hands().await,
        }
        Some(Served::Closed)
    }

    /// Continues the TLS handshake.
    async fn shake_hands(&mut self) -> Option<Served> {
        let (thread, req) = (self.thread, &mut *self.req);
        let conf = req.conf.clone();
        let until = thread.io.poller.deadline_at(req.conn.client.accepted + HANDSHAKE);
        let mut handshake = tls::handshake(thread, &conf, &mut req.conn);
        match handshake.drive(Patience::Room(until)).await {
            Driven::Done => None,
            // The client has sent plain bytes to a port of TLS. They are parsed as a head, so that an error page can answer them (nginx:
            // status 497).
            Driven::Plain(bytes) => {
                req.head.buf = bytes;
                req.tally.started = thread.clock.now();
                None
            }
            Driven::Paused => self.wait().await,
            Driven::Over | Driven::TimedOut => Some(Served::Closed),
        }
    }

    /// Serves a request whose head is complete.
    async fn request(&mut self) -> Option<Served> {
        self.guard.state(Some(|c| &c.writing));
        self.begun = true;
        if let Some(served) = one_request(self.thread, self.req, self.guard).await {
            return Some(served);
        }
        self.in_turn += 1;
        if self.in_turn.is_multiple_of(TURN) {
            // A client may have sent thousands of requests at once, and other connections have their turn in between.
            self.thread.io.poller.yield_now().await;
        }
        None
    }

    /// Answers a head that cannot be a request.
    async fn refuse(&mut self, reject: &parser::Reject) {
        self.guard.state(Some(|c| &c.writing));
        self.begun = true;
        refuse(self.thread, self.req, reject).await;
    }

    /// Waits for the client: for room if something has not been sent, else for data, without a runner.
    async fn wait(&mut self) -> Option<Served> {
        // From here on, facts that were found in this turn may be older than the next request.
        self.req.tally.end_turn();
        if self.req.conn.wire.has_unsent() {
            return self.send_records().await;
        }
        // An answer that waits for the end of the turn has to leave before the connection may rest in its slot.
        if self.thread.io.poller.has_unsent(self.guard.token) {
            return self.send_answer().await;
        }
        // nginx counts a connection as reading from the first byte of a head on, not while it is idle.
        let begun = !self.req.head.buf.is_empty();
        self.guard.state(if begun { Some(|c| &c.reading) } else { None });
        if park(self.thread, self.req, self.guard, self.waited) == Parking::DataCame {
            self.thread.io.poller.be_fair().await;
            return None;
        }
        if begun {
            // The parked connection stays counted until a runner takes it up again.
            self.guard.state = None;
        }
        Some(Served::Parked)
    }

    /// Sends TLS records that found no room: the last ones of a handshake, or the answer to a change of keys.
    async fn send_records(&mut self) -> Option<Served> {
        let (thread, wire) = (self.thread, &mut self.req.conn.wire);
        match wire.send(&thread.io, b"", Then::Nothing) {
            Ok(sent) if !sent.full => return None,
            Ok(_) | Err(Errno::AGAIN) => {}
            Err(_) => return Some(Served::Closed),
        }
        let room = self.req.conn.wire.wait_writable(&thread.io);
        match thread.io.poller.deadline(Instant::now() + HANDSHAKE, room).await {
            Some(()) => None,
            None => Some(Served::Closed),
        }
    }

    /// Sends the rest of the last answer before anything else is done.
    async fn send_answer(&mut self) -> Option<Served> {
        let (thread, req) = (self.thread, &mut *self.req);
        self.guard.state(Some(|c| &c.writing));
        // The connection may be idle for as long as the location of the last answer says, but that time begins only when the answer has
        // been sent.
        let poller = &thread.io.poller;
        let left =
            poller.instant(poller.deadline_of(self.guard.token)).saturating_duration_since(poller.now());
        req.keepalive_timeout.get_or_insert(left);
        let conf = req.conf.clone();
        if req.conn.flush(thread, &conf).await.is_ok() {
            return None;
        }
        req.timed_out = true;
        if req.conn.location(&conf).is_some_and(|l| l.settings.core.reset_timedout_connection) {
            close::reset(thread, &req.conn);
        }
        Some(Served::Closed)
    }

    /// Sends answers that still wait when the connection ends.
    async fn flush(&mut self) {
        // A client that has timed out gets no more time for the answers that wait.
        if self.req.timed_out || self.req.conn.wire.flush(&self.thread.io) {
            return;
        }
        // Before the first request there is no location whose timeouts apply, so the default server's do.
        if self.begun {
            body::flush_answers(self.thread, self.req).await;
        } else {
            let conf = self.req.conf.clone();
            // A client that takes no more loses the answers; its connection ends in any case.
            let _ = self.req.conn.flush(self.thread, &conf).await;
        }
    }
}

/// Logs a head that will not be completed.
fn gone(req: &mut Request, end: HeadFailure) {
    let (thread, conf) = (req.thread.clone(), req.conf.clone());
    let conn = &req.conn;
    // After the greeting, the bytes are the beginning of a request, which gets a line in the access log.
    if !req.head.buf.is_empty() && conn.greeted {
        unfinished(req, end);
        reset_if_timed_out(req);
    } else if !req.head.buf.is_empty() && !matches!(end, HeadFailure::TimedOut) {
        conn.log_broken_greeting(&thread, &conf, &req.head.buf, Broken::Header);
    } else if error_log::enabled(&thread, &conn.client, Level::Info) {
        let (what, tail) = if conn.requests == 0 { never_asked(req, end) } else { left(req, end) };
        error_log::log_connection(&thread, &conn.client, Level::Info, &what, &tail);
    }
}

/// Returns the line of the log, and its tail, for a connection that ends before its first request.
fn never_asked(req: &Request, end: HeadFailure) -> (String, String) {
    let conn = &req.conn;
    let doing = match (conn.greeted, conn.wire.is_handshaking()) {
        (false, _) => "reading PROXY protocol",
        (true, true) => "SSL handshaking",
        (true, false) => "waiting for request",
    };
    (format!("{} while {doing}", end.text("closed")), conn.client.tail(&req.conf))
}

/// Returns the line of the log for a connection that ends after a request.
fn left(req: &Request, end: HeadFailure) -> (String, String) {
    let why = if let HeadFailure::Failed(e) = end { format!(" {}", errno_text(e)) } else { String::new() };
    (format!("client {} closed keepalive connection{why}", req.conn.client.text()), String::new())
}

/// Logs a request whose head has only begun. It gets no answer, only a status.
fn unfinished(req: &mut Request, end: HeadFailure) {
    // Empty lines before a request line are no part of it (RFC 9112, section 2.2).
    let line = req.head.buf.iter().position(|b| !matches!(b, b'\r' | b'\n')).unwrap_or(0);
    let rest = req.head.buf.get(line..).unwrap_or_default();
    let complete = memchr::memrchr(b'\n', rest).map_or(0, |at| at + 1);
    // The parser takes everything that has come so far, since the log shows it.
    let limits = req.conn.limits(&req.conf);
    let _ = parser::parse(&mut req.head, &limits);
    // An incomplete request line is logged as far as it has come.
    if complete == 0 {
        let end = req.head.buf.len() as u32;
        req.head.request_line = Slice { start: line as u32, end };
    }
    req.begin_request();
    // The request is refused whatever its server is, so a failure of the choice does not matter.
    let _ = req.choose_server();
    req.conn.requests += 1;
    req.tally.received = complete as u64;
    let part = if complete > 0 { "headers" } else { "line" };
    let text = end.text("prematurely closed");
    req.log(Level::Info, &format!("{text} while reading client request {part}"));
    req.timed_out = matches!(end, HeadFailure::TimedOut);
    req.resp.status = end.status();
    finish(req);
}

/// Drops an idle connection. If a head has begun on it, the request is logged like any other that is not completed.
pub fn drop_idle(thread: &Rc<Thread>, mut conn: Connection, why: HeadFailure) {
    // A connection that has sent nothing of a request gets no line in the access log, as in nginx.
    if conn.partial.is_none() || !conn.greeted || conn.wire.is_handshaking() {
        return;
    }
    let mut req = Request::new(thread.clone());
    req.begin_connection(&mut conn);
    req.take_connection(conn);
    unfinished(&mut req, why);
    drop(req.end_connection());
}

/// Reads until a head is complete, as far as that is possible without waiting.
fn read_head(thread: &Rc<Thread>, req: &mut Request, limits: &Limits) -> Head {
    loop {
        if !req.conn.greeted
            && let Err(broken) = req.conn.take_greeting(&req.conf, &mut req.head.buf)
        {
            req.conn.log_broken_greeting(thread, &req.conf, &req.head.buf, broken);
            return Head::Over;
        }
        if req.conn.wire.is_handshaking() {
            return Head::Handshake;
        }
        if req.conn.greeted
            && let Some(head) = look_at_head(thread, req, limits)
        {
            return head;
        }
        if let Some(head) = receive_head(thread, req, limits) {
            return head;
        }
    }
}

/// Looks for the preface of HTTP/2 or a head of HTTP/1. Returns `None` if neither is complete.
#[inline]
fn look_at_head(thread: &Rc<Thread>, req: &mut Request, limits: &Limits) -> Option<Head> {
    // Only the first bytes of a connection can be the preface of HTTP/2.
    if req.conn.requests == 0 && req.conn.may_be_preface(&req.head.buf) {
        match req.conn.preface(thread, &req.conf, &req.head.buf) {
            Preface::Http1 => {}
            Preface::Partial => return None,
            Preface::Http2 => return Some(Head::Http2),
            Preface::Broken => return Some(Head::NoPreface),
        }
    }
    if req.head.buf.is_empty() { None } else { parse_head(req, limits) }
}

/// Parses the head. Returns `None` if it is incomplete.
#[inline]
fn parse_head(req: &mut Request, limits: &Limits) -> Option<Head> {
    // The hot case comes first: a complete head in which every line was valid needs no second look.
    match parser::parse(&mut req.head, limits) {
        Ok(Status::Complete) if req.head.ignored.is_empty() => Some(Head::Complete),
        Ok(Status::Partial) => None,
        judged => match reconsider(req, limits, judged) {
            Ok(Status::Complete) => Some(Head::Complete),
            Err(reject) => Some(Head::Refused(reject)),
            Ok(Status::Partial) => None,
        },
    }
}

/// Parses a head again if it was refused or one of its lines was ignored, since the server that it names may have other limits.
#[cold]
fn reconsider(
    req: &mut Request,
    limits: &Limits,
    judged: Result<Status, parser::Reject>,
) -> Result<Status, parser::Reject> {
    let Some(own) = limits_of_named_server(req, limits) else { return judged };
    req.head.restart();
    parser::parse(&mut req.head, &own)
}

/// Returns the limits of the server that a head names, if they differ from the limits with which the head was parsed.
fn limits_of_named_server(req: &Request, limits: &Limits) -> Option<Limits> {
    let http = req.http();
    if !http.heads_differ || req.head.host.is_empty() {
        return None;
    }
    let (server, _) = req.address()?.names.find(&req.head.host).ok().flatten()?;
    // The path was read before the name was known, so the merging of slashes does not change.
    let own = Limits { merge_slashes: limits.merge_slashes, ..http.servers.get(server)?.head };
    (own != *limits).then_some(own)
}

/// Reads more of a head. Returns `None` if bytes have come.
#[inline]
fn receive_head(thread: &Rc<Thread>, req: &mut Request, limits: &Limits) -> Option<Head> {
    if !req.conn.wire.is_readable(&thread.io) {
        return Some(Head::Wait);
    }
    let room = READ.max(limits.client_header_buffer_size);
    let got = if req.head.buf.is_empty() && req.head.buf.capacity() < room {
        // The bytes come through a buffer of the thread, so that the request keeps no more memory than its head needs.
        let mut came = thread.came.borrow_mut();
        came.reserve(room);
        let got = req.conn.wire.read(&thread.io, &mut came);
        req.head.buf.extend_from_slice(&came);
        came.clear();
        got
    } else {
        req.head.buf.reserve(room);
        req.conn.wire.read(&thread.io, &mut req.head.buf)
    };
    match got {
        // A slot that is gone (EBADF) means that the connection was closed from this side, and is treated like a client that has left.
        Ok(0) | Err(Errno::BADF) => Some(Head::Gone(HeadFailure::Closed)),
        Ok(n) => {
            // The clock of a request starts with its first byte, as in nginx.
            if req.head.buf.len() == n {
                req.tally.started = thread.clock.now();
            }
            None
        }
        Err(Errno::AGAIN) => Some(Head::Wait),
        Err(e) => Some(Head::Gone(HeadFailure::Failed(e))),
    }
}

/// Returns the time by which the head must be complete.
fn head_deadline(thread: &Thread, req: &Request) -> Deadline {
    let poller = &thread.io.poller;
    let from = match (req.conn.wire.is_handshaking(), req.head.buf.is_empty()) {
        (true, _) => req.conn.client.accepted,
        // Nothing of a head has come, so its time begins now.
        (false, true) => poller.now(),
        (false, false) => req.tally.started,
    };
    poller.deadline_at(from + req.conf.header_timeout_of(&req.conn.client))
}

/// Result of [`park`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Parking {
    /// The connection rests in its slot.
    Parked,
    /// Data has come meanwhile, so that the request still has the connection.
    DataCame,
}

/// Puts the connection into its slot until more comes, with the part of a head that has come. `waited` means that the time for its head
/// was running before a runner took the connection.
fn park(thread: &Rc<Thread>, req: &mut Request, guard: &mut Guard<'_>, waited: bool) -> Parking {
    let token = guard.token;
    let fresh = req.head.buf.is_empty();
    let mut deadline = deadline(thread, req, token, waited);
    if fresh && req.conn.requests > 0 && thread.quitting.get() {
        // The last answer was sent with keep-alive, so the client may send one more request before it learns that the process is ending.
        deadline = deadline.min(thread.io.poller.after(PARTING));
    }
    // Tens of thousands of connections may be idle, so each gives back its buffers.
    req.conn.wire.shrink();
    let mut conn = req.end_connection();
    if !fresh {
        let buf = req.head.buf.as_slice().into();
        let (started, arrival) = (req.tally.started, req.tally.arrival);
        conn.partial = Some(Box::new(Partial { buf, started, arrival }));
    }
    match thread.runners.park(token, conn, deadline) {
        Ok(()) => {
            req.head.clear();
            Parking::Parked
        }
        Err(mut conn) => {
            // The runner still has the bytes in its head, so the copy is dropped.
            conn.partial = None;
            req.conn = conn;
            Parking::DataCame
        }
    }
}

/// Returns the time at which a connection that is parked expires.
#[inline]
fn deadline(thread: &Thread, req: &Request, token: Token, waited: bool) -> Deadline {
    let poller = &thread.io.poller;
    let fresh = req.head.buf.is_empty();
    match req.keepalive_timeout.filter(|_| fresh && req.conn.requests > 0) {
        Some(timeout) => poller.after(timeout),
        // The data that has come was not a request, so the connection is as idle as before and its deadline stays.
        None if fresh && (req.conn.requests > 0 || waited) => poller.deadline_of(token),
        None => head_deadline(thread, req),
    }
}

/// Answers a head that cannot be a request, and closes the connection.
async fn refuse(thread: &Rc<Thread>, req: &mut Request, reject: &parser::Reject) {
    req.begin_request();
    req.conn.requests += 1;
    thread.counters.requests.add(1);
    // The request is refused whatever its server is, so a failure of the choice does not matter.
    let _ = req.choose_server();
    req.ending.close();
    req.errors.rejected = reject.status;
    if reject.stage == Stage::Line {
        req.uri.path.clear();
    }
    let mut message = Vec::new();
    reject.message(&req.head, &mut message);
    // nginx writes in this case that it was reading a pipelined request line.
    if reject.stage == Stage::Line && req.tally.arrival == Arrival::Pipelined {
        let at = message.len() - "request line".len();
        message.splice(at..at, *b"pipelined ");
    }
    req.log_with(Level::Info, |out| out.extend_from_slice(&message));
    // A client whose line is refused before its version has not said that it takes chunks.
    if reject.stage == Stage::Line && req.head.protocol.is_empty() {
        req.head.version = Version::Http10;
    }
    phases::refuse(req, reject.status).await;
    // The connection is closed, whether or not the client gets the response.
    let _ = respond(thread, req).await;
    finish(req);
    end(thread, req, true).await;
}

/// Serves one request. Returns `None` if the connection may serve another.
async fn one_request(thread: &Rc<Thread>, req: &mut Request, guard: &mut Guard<'_>) -> Option<Served> {
    req.begin_request();
    forebay_core::essential::stall_on_purpose(&req.uri.path);
    req.conn.requests += 1;
    thread.counters.requests.add(1);
    let unknown_server = req.choose_server().err().map(|_| 500);
    req.log_ignored();
    match unknown_server.or_else(|| tls::judge(req)) {
        None => phases::run(req).await,
        Some(status) => Box::pin(phases::refuse(req, status)).await,
    }
    // `return 444` closes the connection without a response, but with a line in the log.
    if req.ending.is_dropped() {
        finish(req);
        return Some(Served::Closed);
    }
    take_body(thread, req).await;
    let sent = respond(thread, req).await.is_ok();
    if sent && req.resp.source.is_some() && switched::begin(thread, req, guard) == Relay::Begun {
        return Some(Served::Relayed);
    }
    let unread = !req.body.done();
    // The keep-alive of this response has been decided. Even if the thread begins to quit now, the client has read that it may send
    // another request, which may be on its way.
    let mut keep = sent && req.ending.keeps_alive();
    if keep && unread {
        keep = body::discard(thread, req).await.is_ok();
    }
    finish(req);
    req.give_buffers();
    if !sent {
        reset_if_timed_out(req);
        return Some(Served::Closed);
    }
    if !keep {
        // Unread bytes would make the kernel reset the connection, and the client might lose the response (RFC 9112, section 9.6).
        let linger = unread || req.head.buf.len() > req.consumed();
        end(thread, req, linger).await;
        return Some(Served::Closed);
    }
    advance(thread, req);
    None
}

/// Discards the bytes of the body that came with the head, before the answer; the rest is discarded after the answer. An upstream that
/// answers before it has the whole body still gets the rest. The connection is closed after the response if it cannot serve another
/// request.
#[inline]
async fn take_body(thread: &Rc<Thread>, req: &mut Request) {
    if req.resp.source.as_ref().is_some_and(|b| b.uploads()) {
        return;
    }
    let sound = body::discard_buffered(req).is_ok();
    let waits = req.head.expect_continue && !req.body.continued;
    let asks = sound && waits && !req.body.done() && req.errors.rejected == 0;
    if !sound || asks && body::send_continue(thread, req).await.is_err() {
        req.ending.close();
    }
}

/// Goes on to the bytes after a request.
#[inline]
fn advance(thread: &Thread, req: &mut Request) {
    let consumed = req.consumed();
    req.tally.arrival = Arrival::Unknown;
    if req.head.buf.len() > consumed {
        if shares_buffer(req) {
            req.tally.arrival = Arrival::Pipelined;
        }
        req.tally.started = thread.clock.now();
    }
    req.head.advance(consumed);
}

/// Returns `true` if what has come behind a request is pipelined as nginx understands it. It reads no further than to the end of a body whose
/// length it knows. What follows is read like a new request then, unless it is in the buffer of the head already.
fn shares_buffer(req: &Request) -> bool {
    let Framing::Length(n @ 1..) = req.head.framing else { return true };
    let (head, consumed) = (req.head.len, req.consumed());
    let limits = req.conn.limits(&req.conf);
    let (small, large) = (limits.client_header_buffer_size, limits.large_client_header_buffers.1);
    let buffer = if head > small { large } else { small };
    consumed.saturating_sub(head) as u64 == n && consumed < buffer
}

/// Ends the connection after a response.
pub(super) async fn end(thread: &Rc<Thread>, req: &mut Request, unread: bool) {
    body::flush_answers(thread, req).await;
    let http = req.http();
    let core = &http.location(req).settings.core;
    close::close(thread, &mut req.conn, core, unread).await;
}

/// Resets the connection of a client that was too slow, if the location asks for that.
fn reset_if_timed_out(req: &Request) {
    let http = req.http();
    if req.timed_out && http.location(req).settings.core.reset_timedout_connection {
        close::reset(&req.thread, &req.conn);
    }
}

impl Request {
    /// Prepares for a connection, and takes the part of a head that it has kept.
    pub(super) fn begin_connection(&mut self, conn: &mut Connection) {
        self.head.clear();
        self.conf = self.thread.config();
        self.start_clock();
        if let Some(p) = conn.partial.take() {
            self.head.buf.extend_from_slice(&p.buf);
            (self.tally.started, self.tally.arrival) = (p.started, p.arrival);
        }
        self.remote.clear();
        self.keepalive_timeout = None;
    }
}
