//! An HTTP/1 connection from its first byte to its last: read a head, run the phases, write the
//! response, log, and again (RFC 9112). Hot path.

use crate::access_log;
use crate::body;
use crate::compress;
use crate::error_log;
use crate::error_page;
use crate::h2::{Session, Stream};
use crate::head::{self, BodyFraming};
use crate::log_buffers;
use crate::modules::post_action;
use crate::pattern::LimitExceeded;
use crate::phases::{self, MAX_URI_CHANGES};
use crate::reactor::{Job, Token};
use crate::request::{Conn, Partial, Request};
use crate::shares::Network;
use crate::thread::Thread;
use crate::tls::accept::{self, Accept};
use forebay_conf::error::Level;
use forebay_http::h1::request::{self as parser, Limits, Stage, Status};
use forebay_http::h2::frame::{Code, PREFACE};
use forebay_http::proxy_protocol::{self, Broken, Parsed};
use forebay_http::request::{Framing, Method, Version};
use forebay_sys::errno::errno_text;
use rustix::io::Errno;
use std::rc::Rc;
use std::time::Instant;

/// First read of a connection, bytes; heads are rarely longer.
const READ: usize = 4096;

/// Requests of one connection answered before the others get their turn: a client that sends one behind the
/// other without end must not hold up the thread.
const TURN: u32 = 32;

/// Longest that a handshake waits for room to send, from the connection's beginning.
const HANDSHAKE: std::time::Duration = std::time::Duration::from_secs(60);

/// The life of a runner: one connection after another.
pub async fn runner(thread: Rc<Thread>) {
    let mut req = Request::new(thread.clone());
    loop {
        let job = thread.reactor.next_job().await;
        serve(&thread, &mut req, job).await;
    }
}

/// Closes the connection when the runner lets go of it, also by a panic.
struct Guard<'t> {
    thread: &'t Rc<Thread>,
    token: Token,
    open: bool,
    state: Option<fn(&crate::counters::Counters) -> &crate::counters::Counter>,
}

impl Guard<'_> {
    fn state(&mut self, s: Option<fn(&crate::counters::Counters) -> &crate::counters::Counter>) {
        if let Some(old) = self.state {
            old(&self.thread.counters).sub(1);
        }
        if let Some(new) = s {
            new(&self.thread.counters).add(1);
        }
        self.state = s;
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.state(None);
        if self.open {
            // Who sees the end of the connection may look for the line in the log.
            log_buffers::flush_gathered(self.thread);
            self.thread.close(self.token);
        }
    }
}

/// What reading a head came to.
enum Head {
    Complete,
    Refused(parser::Reject),
    /// Nothing more for now: the connection can wait without a runner.
    Wait,
    /// It will not be completed.
    Gone(End),
    /// The client does not begin with the PROXY protocol header that is asked for.
    Stranger,
    /// The client speaks HTTP/2; the session is in the connection.
    Http2,
    /// The client has agreed on HTTP/2 and does not speak it.
    NoPreface,
    /// The handshake waits for something that is not the client's.
    Later(Box<accept::Later>),
}

/// Why a head will not be completed.
#[derive(Clone, Copy)]
enum End {
    /// The client closed the connection.
    Closed,
    /// Reading failed.
    Failed(Errno),
    /// The client is too slow (`client_header_timeout`).
    TimedOut,
}

impl End {
    /// What nginx's log says of it, as a client that `did` so.
    fn text(self, did: &str) -> String {
        match self {
            End::Closed => format!("client {did} connection"),
            End::Failed(e) => format!("recv() failed {}", errno_text(e)),
            End::TimedOut => "client timed out (110: Connection timed out)".to_owned(),
        }
    }
}

async fn serve(thread: &Rc<Thread>, req: &mut Request, job: Job<Box<Conn>>) {
    if let Some(work) = thread.background.take(job.token) {
        Box::pin(crate::background::run(thread, req, job.token, work)).await;
        return;
    }
    let Job { token, mut conn } = job;
    if let Some(stream) = conn.wire.as_stream().cloned() {
        return serve_stream(thread, req, conn, stream).await;
    }
    let mut guard = Guard { thread, token, open: true, state: None };
    if conn.partial.is_some() {
        // It has been counted since its first byte.
        guard.state = Some(|c| &c.reading);
    }
    // An idle connection is taken up because of bytes that came before the turn.
    let idle = conn.requests > 0 && conn.partial.is_none();
    // Its time for a head runs already.
    let waited = conn.greeted && conn.partial.is_none() && !conn.wire.is_handshaking();
    req.begin_connection(&mut conn);
    req.take_connection(conn);
    req.token = token;
    req.early = idle;
    if req.conn.session.is_some() {
        let until = thread.reactor.deadline_of(token);
        return serve_session(thread, req, &mut guard, until).await;
    }
    if req.conn.expired {
        gone(req, End::TimedOut);
        return;
    }
    let mut in_turn = 0u32;
    // Whose settings apply is known.
    let mut placed = false;
    loop {
        let limits = req.limits();
        match read_head(thread, req, &limits) {
            Head::Complete => {}
            Head::Refused(reject) => {
                guard.state(Some(|c| &c.writing));
                placed = true;
                // Over TLS the client has said beforehand what it is going to speak.
                let may_be_h2 = req.conn.tls.as_ref().is_none_or(|s| s.alpn.as_deref() == Some(b"h2"));
                if reject.stage == Stage::Line && may_be_h2 && req.is_no_http1() {
                    broken_preface(thread, req).await;
                } else {
                    refuse(thread, req, &reject).await;
                }
                break;
            }
            Head::Gone(end) => {
                gone(req, end);
                break;
            }
            Head::Stranger => break,
            Head::Http2 => {
                let until = req.head_deadline(thread.clock.now());
                return serve_session(thread, req, &mut guard, until).await;
            }
            Head::NoPreface => {
                placed = true;
                broken_preface(thread, req).await;
                break;
            }
            Head::Later(later) => {
                req.early = false;
                if !Box::pin(accept::resume(thread, req, *later)).await {
                    break;
                }
                continue;
            }
            Head::Wait if req.conn.wire.owes() => {
                req.early = false;
                // A handshake whose bytes have no room, or an answer to a change of keys that is to leave.
                if !req.conn.wire.is_handshaking() {
                    match req.conn.wire.send(thread, b"", crate::wire::Then::Nothing) {
                        Ok(sent) if !sent.full => continue,
                        Ok(_) | Err(Errno::AGAIN) => {}
                        Err(_) => break,
                    }
                }
                let from = if req.conn.wire.is_handshaking() { req.conn.accepted } else { Instant::now() };
                let until = from + HANDSHAKE;
                let room = req.conn.wire.wait_writable(thread);
                if thread.reactor.deadline(until, room).await.is_none() {
                    break;
                }
                continue;
            }
            // The last answer has found no room: nothing else is done before it is sent.
            Head::Wait if thread.reactor.owes(token) => {
                req.early = false;
                guard.state(Some(|c| &c.writing));
                req.use_default_server();
                placed = true;
                // It is idle for as long as the location of that answer says, but not before.
                let left = thread.reactor.deadline_of(token).saturating_duration_since(thread.clock.now());
                req.keepalive_timeout.get_or_insert(left);
                body::settle(thread, req).await;
                if req.timed_out {
                    req.reset_if_timed_out();
                    break;
                }
                continue;
            }
            Head::Wait => {
                req.early = false;
                let begun = !req.head.buf.is_empty();
                guard.state(if begun { Some(|c| &c.reading) } else { None });
                if park(thread, req, token, waited) {
                    guard.open = false;
                    if begun {
                        guard.state = None;
                    }
                    return;
                }
                continue;
            }
        }
        guard.state(Some(|c| &c.writing));
        placed = true;
        if !one_request(thread, req).await {
            break;
        }
        req.early = false;
        in_turn += 1;
        if in_turn.is_multiple_of(TURN) {
            thread.reactor.yield_now().await;
        }
    }
    // An answer before the last may be on its way yet.
    if !req.conn.wire.settle(thread) {
        if !placed {
            req.use_default_server();
        }
        body::settle(thread, req).await;
    }
}

/// A head will not be completed: says so in the logs.
fn gone(req: &mut Request, end: End) {
    if !req.head.buf.is_empty() && req.conn.greeted {
        unfinished(req, end);
        req.reset_if_timed_out();
        return;
    }
    if !req.head.buf.is_empty() && !matches!(end, End::TimedOut) {
        req.log_stranger(Broken::Header);
        return;
    }
    if !error_log::enabled(req, Level::Info) {
        return;
    }
    let mut client = Vec::new();
    crate::request::push_peer(req.conn.peer, &mut client);
    let client = String::from_utf8_lossy(&client).into_owned();
    let (what, tail) = if req.conn.requests == 0 {
        let doing = match (req.conn.greeted, req.conn.wire.is_handshaking()) {
            (false, _) => "reading PROXY protocol",
            (true, true) => "SSL handshaking",
            (true, false) => "waiting for request",
        };
        let tail = format!(", client: {client}, server: {}", req.listener_text());
        (format!("{} while {doing}", end.text("closed")), tail)
    } else {
        let why = if let End::Failed(e) = end { format!(" {}", errno_text(e)) } else { String::new() };
        (format!("client {client} closed keepalive connection{why}"), String::new())
    };
    error_log::log_connection(req, Level::Info, &what, &tail);
}

/// Logs a request whose head has only begun. It gets no answer, only a status.
fn unfinished(req: &mut Request, end: End) {
    let line = req.head.buf.iter().position(|b| !matches!(b, b'\r' | b'\n')).unwrap_or(0);
    let rest = req.head.buf.get(line..).unwrap_or_default();
    let complete = memchr::memrchr(b'\n', rest).map_or(0, |at| at + 1);
    // What has come of it so far, for the log.
    let limits = req.limits();
    let _ = parser::parse(&mut req.head, &limits);
    if complete == 0 {
        let end = req.head.buf.len() as u32;
        req.head.request_line = forebay_http::field::Slice { start: line as u32, end };
    }
    req.begin_request();
    // The request is refused whatever its server is.
    let _ = req.choose_server();
    req.conn.requests += 1;
    req.received = complete as u64;
    let part = if complete > 0 { "headers" } else { "line" };
    let text = end.text("prematurely closed");
    req.log(Level::Info, &format!("{text} while reading client request {part}"));
    req.timed_out = matches!(end, End::TimedOut);
    req.resp.status = if req.timed_out { 408 } else { 400 };
    finish(req);
}

fn read_head(thread: &Rc<Thread>, req: &mut Request, limits: &Limits) -> Head {
    loop {
        if !req.conn.greeted && !req.take_greeting() {
            return Head::Stranger;
        }
        if req.conn.wire.is_handshaking() {
            match accept::step(thread, req) {
                Accept::Done => continue,
                Accept::Wait => return Head::Wait,
                Accept::Over => return Head::Stranger,
                Accept::Later(later) => return Head::Later(later),
            }
        }
        if req.conn.requests == 0 && req.conn.greeted && req.may_be_preface() {
            match preface(thread, req) {
                Preface::Http1 => {}
                Preface::Partial => {
                    if let Some(head) = receive_head(thread, req, limits) {
                        return head;
                    }
                    continue;
                }
                Preface::Http2 => return Head::Http2,
                Preface::Broken => return Head::NoPreface,
            }
        }
        if req.conn.greeted && !req.head.buf.is_empty() {
            match parser::parse(&mut req.head, limits) {
                Ok(Status::Complete) if req.head.ignored.is_empty() => return Head::Complete,
                Ok(Status::Partial) => {}
                judged => match reconsider(req, limits, judged) {
                    Ok(Status::Complete) => return Head::Complete,
                    Err(reject) => return Head::Refused(reject),
                    Ok(Status::Partial) => {}
                },
            }
        }
        if let Some(head) = receive_head(thread, req, limits) {
            return head;
        }
    }
}

/// A head from which something was left out, or that was refused: the server that it names may see it otherwise.
#[cold]
fn reconsider(
    req: &mut Request,
    limits: &Limits,
    judged: Result<Status, parser::Reject>,
) -> Result<Status, parser::Reject> {
    let Some(own) = req.own_limits(limits) else { return judged };
    req.head.restart();
    parser::parse(&mut req.head, &own)
}

/// Reads more of a head; `Some`: there is no more.
#[inline]
fn receive_head(thread: &Rc<Thread>, req: &mut Request, limits: &Limits) -> Option<Head> {
    if !req.conn.wire.is_readable(thread) {
        return Some(Head::Wait);
    }
    let room = READ.max(limits.client_header_buffer_size);
    req.head.buf.reserve(room);
    match req.conn.wire.read(thread, &mut req.head.buf) {
        Ok(0) | Err(Errno::BADF) => Some(Head::Gone(End::Closed)),
        Ok(n) => {
            if req.head.buf.len() == n {
                req.started = thread.clock.now();
            }
            None
        }
        Err(Errno::AGAIN) => Some(Head::Wait),
        Err(e) => Some(Head::Gone(End::Failed(e))),
    }
}

/// What the first bytes of a connection say about its protocol.
enum Preface {
    Http1,
    Partial,
    Http2,
    Broken,
}

/// Looks for the preface of HTTP/2 (RFC 9113, section 3.4), where the address speaks it.
fn preface(thread: &Rc<Thread>, req: &mut Request) -> Preface {
    let buf = &req.head.buf;
    let n = buf.len().min(PREFACE.len());
    let agreed = req.conn.tls.as_ref().map(|s| s.alpn.as_deref() == Some(b"h2"));
    if buf.get(..n) != PREFACE.get(..n) {
        return if agreed == Some(true) { Preface::Broken } else { Preface::Http1 };
    }
    // Over TLS the client says beforehand what it is going to speak.
    if agreed == Some(false) || req.conn.unencrypted {
        return Preface::Http1;
    }
    let Some(settings) = req.http2_settings() else { return Preface::Http1 };
    if n < PREFACE.len() {
        return Preface::Partial;
    }
    let network = Network::of_client(&req.conn);
    let session = Session::new(settings, network, crate::h2::drive::is_suspect(network, thread.clock.now()));
    session.feed(&req.head.buf[n..]);
    req.head.clear();
    req.conn.session = Some(session);
    Preface::Http2
}

/// Answers a client that speaks neither HTTP/1 nor HTTP/2 to an address of both (RFC 9113, section 3.4).
async fn broken_preface(thread: &Rc<Thread>, req: &mut Request) {
    error_log::log_connection(req, Level::Info, "invalid connection preface", "");
    req.use_default_server();
    let mut out = Vec::new();
    forebay_http::h2::frame::push_goaway(&mut out, 0, Code::ProtocolError);
    req.closes_at_once = true;
    if body::write_last(thread, req, &out).await {
        close(thread, req, true).await;
    }
}

/// What became of a connection that a session had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parked {
    /// It waits in its slot.
    Idle,
    /// It is over.
    Closed,
}

/// Drives an HTTP/2 connection until it is idle or over. `until`: when it is closed unless a request comes.
async fn serve_session(thread: &Rc<Thread>, req: &mut Request, guard: &mut Guard<'_>, until: Instant) {
    let Some(session) = req.conn.session.clone() else { return };
    req.use_default_server();
    guard.state(Some(|c| &c.writing));
    if crate::h2::drive::run(thread, req, &session, until).await == Parked::Idle {
        guard.open = false;
    }
    guard.state(None);
}

/// Puts an HTTP/2 connection without streams aside.
pub fn park_session(thread: &Rc<Thread>, req: &mut Request, deadline: Instant) -> bool {
    let token = req.token;
    park_until(thread, req, token, deadline)
}

/// Resets a stream that its runner has left without an end, also by a panic.
struct StreamGuard(Rc<Stream>);

impl Drop for StreamGuard {
    fn drop(&mut self) {
        self.0.reset(Code::InternalError);
    }
}

/// Serves one request of an HTTP/2 connection.
async fn serve_stream(thread: &Rc<Thread>, req: &mut Request, mut conn: Box<Conn>, stream: Rc<Stream>) {
    let guard = StreamGuard(stream);
    let stream = &guard.0;
    // The slot is the session's.
    req.token = Token::NONE;
    req.begin_connection(&mut conn);
    req.take_connection(conn);
    let Some(mut head) = stream.take_head() else { return };
    std::mem::swap(&mut req.head, &mut head);
    thread.h2.give(head);
    req.begin_request();
    req.received = u64::from(stream.head_len());
    thread.counters.requests.add(1);
    let unknown_server = req.choose_server().err().map(|_| 500);
    // Settings of a location end HTTP/1 connections only: here they would end other requests too.
    let old = req.connection_is_old();
    if !req.head.ignored.is_empty() {
        log_ignored(req);
    }
    if let Some(refusal) = stream.refusal.get() {
        req.refused = refusal.status;
        req.log(Level::Info, &format!("{} while reading client request headers", refusal.reason));
        phases::refuse(req, refusal.status).await;
    } else if let Some(status) = unknown_server.or_else(|| accept::judge(req)).or_else(|| req.misdirected()) {
        phases::refuse(req, status).await;
    } else {
        phases::run(req).await;
    }
    if req.refused == 0 && old {
        stream.session().leave();
    }
    let http = req.http();
    stream.set_chunk(http.location(req).settings.http2.chunk_size.0 as usize);
    let sent = !req.drop_connection && respond(thread, req).await;
    finish(req);
    if sent {
        stream.finish();
    } else {
        stream.reset(Code::Cancel);
    }
    // The next stream may have the memory.
    drop(guard);
    let conn = req.end_connection();
    thread.h2.give_conn(conn);
}

/// Puts the connection aside until more comes. What of a head has come is kept with it. `waited`: for a head since before it
/// was taken up.
fn park(thread: &Rc<Thread>, req: &mut Request, token: Token, waited: bool) -> bool {
    let now = thread.clock.now();
    let fresh = req.head.buf.is_empty();
    let deadline = if fresh && req.conn.requests > 0 {
        if thread.quitting.get() {
            thread.close(token);
            return true;
        }
        // What came meanwhile was no request: it is as idle as before.
        req.keepalive_timeout.map_or_else(|| thread.reactor.deadline_of(token), |t| now + t)
    } else if fresh && waited {
        thread.reactor.deadline_of(token)
    } else {
        req.head_deadline(now)
    };
    park_until(thread, req, token, deadline)
}

fn park_until(thread: &Rc<Thread>, req: &mut Request, token: Token, deadline: Instant) -> bool {
    req.conn.wire.shrink();
    let mut conn = req.end_connection();
    if !req.head.buf.is_empty() {
        let buf = req.head.buf.as_slice().into();
        conn.partial = Some(Box::new(Partial { buf, started: req.started }));
    }
    match thread.reactor.park(token, conn, deadline) {
        Ok(()) => {
            req.head.clear();
            true
        }
        Err(mut conn) => {
            // The buffer is still in the head: the copy is not needed.
            conn.partial = None;
            req.conn = conn;
            false
        }
    }
}

/// Tells of field lines that were left out.
#[cold]
fn log_ignored(req: &mut Request) {
    for line in std::mem::take(&mut req.head.ignored) {
        let text = line.of(&req.head.buf).to_vec();
        req.log_with(Level::Info, |out| {
            let parts: [&[u8]; 3] =
                [b"client sent invalid header line: \"", &text, b"\" while reading client request headers"];
            parts.iter().for_each(|part| out.extend_from_slice(part));
        });
    }
}

async fn refuse(thread: &Rc<Thread>, req: &mut Request, reject: &parser::Reject) {
    req.begin_request();
    req.conn.requests += 1;
    thread.counters.requests.add(1);
    // The request is refused whatever its server is.
    let _ = req.choose_server();
    req.keep_alive = false;
    req.refused = reject.status;
    if reject.stage == Stage::Line {
        req.uri.clear();
    }
    let mut message = Vec::new();
    reject.message(&req.head, &mut message);
    if reject.stage == Stage::Line && req.pipelined {
        let at = message.len() - "request line".len();
        message.splice(at..at, *b"pipelined ");
    }
    req.log_with(Level::Info, |out| out.extend_from_slice(&message));
    if reject.stage == Stage::Line && req.head.version == Version::Http09 {
        req.head.version = Version::Http11;
    }
    phases::refuse(req, reject.status).await;
    respond(thread, req).await;
    finish(req);
    close(thread, req, true).await;
}

/// Serves one request whose head is complete. `false`: the connection is over.
async fn one_request(thread: &Rc<Thread>, req: &mut Request) -> bool {
    req.begin_request();
    req.conn.requests += 1;
    thread.counters.requests.add(1);
    let unknown_server = req.choose_server().err().map(|_| 500);
    if !req.head.ignored.is_empty() {
        log_ignored(req);
    }
    match unknown_server.or_else(|| accept::judge(req)) {
        None => phases::run(req).await,
        Some(status) => phases::refuse(req, status).await,
    }
    if req.drop_connection {
        finish(req);
        return false;
    }
    // Bytes of the body that came with the head are taken before the answer, the rest after it, unless an upstream that
    // answers already is to have them.
    let uploads = req.resp.source.as_ref().is_some_and(|b| b.uploads());
    let mut sound = uploads || body::discard_buffered(req);
    if sound
        && !uploads
        && !req.body.done()
        && req.head.expect_continue
        && !req.body.continued
        && req.refused == 0
    {
        sound = body::send_continue(thread, req).await;
    }
    if !sound {
        req.keep_alive = false;
    }
    let sent = respond(thread, req).await;
    let unread = !req.body.done();
    let mut keep = sent && req.keep_alive && !thread.quitting.get();
    if keep && unread {
        keep = body::discard(thread, req).await;
    }
    finish(req);
    if !sent {
        req.reset_if_timed_out();
        return false;
    }
    if !keep {
        let linger = unread || req.head.buf.len() > req.consumed();
        close(thread, req, linger).await;
        return false;
    }
    let consumed = req.consumed();
    req.head.advance(consumed);
    req.pipelined = !req.head.buf.is_empty();
    if !req.head.buf.is_empty() {
        req.started = thread.clock.now();
    }
    true
}

/// Room for a response head, bytes; longer ones grow.
const HEAD: usize = 1024;

/// Sends the response. `false`: the client is gone or too slow.
async fn respond(thread: &Rc<Thread>, req: &mut Request) -> bool {
    if req.drop_connection {
        return false;
    }
    // A graceful end may have begun while the request was held up.
    req.keep_alive &= !thread.quitting.get();
    let mut out = req.take_buf();
    out.reserve(HEAD);
    let framing = if head::write_ready(req, &mut out) {
        BodyFraming::Plain
    } else {
        let file = head::subject(req);
        run_header_filters(req).await;
        if req.drop_connection {
            return false;
        }
        let framing = head::write(req, &mut out);
        head::remember(req, file, &out);
        framing
    };
    req.closes_at_once = !req.keep_alive && req.resp.source.is_none();
    req.sent_head = out.len() as u64;
    if let Some(stream) = req.conn.wire.as_stream() {
        stream.send_head(&out);
        req.sent += out.len() as u64;
        out.clear();
    }
    let sent = match framing {
        BodyFraming::None => {
            let sent = body::write_last(thread, req, &out).await;
            if let Some(mut source) = req.resp.source.take() {
                if sent && source.relay(req).await {
                    req.keep_alive = false;
                }
                source.drain(req).await;
                source.abandon(req);
            }
            sent
        }
        _ => body::send(thread, req, &mut out, framing == BodyFraming::Chunked).await,
    };
    if sent
        && framing != BodyFraming::None
        && (req.resp.expect_trailers || !req.resp.trailers.is_empty())
        && let Some(stream) = req.conn.wire.as_stream().cloned()
    {
        out.clear();
        crate::modules::headers::trailers(req);
        head::write_trailers(req, &mut out);
        if !out.is_empty() {
            stream.send_head(&out);
        }
    }
    req.give_buf(out);
    req.complete = sent;
    sent
}

/// Runs the header filters. What one of them refuses is answered as any other error, and goes through them
/// again; an error passes them, so that ends.
async fn run_header_filters(req: &mut Request) {
    let mut content_range = Vec::new();
    loop {
        req.modules.compress.clear();
        let http = req.http();
        if let Some(status) = req.status_override {
            if req.resp.status != status {
                req.resp.reason.clear();
            }
            req.resp.status = status;
        }
        for filter in &http.location(req).plan.header_filters {
            if filter(req).is_err() {
                req.modules.compress.clear();
                error_page::built_in(req, 500);
                return;
            }
            if req.refusal.is_some() {
                break;
            }
        }
        let Some(refusal) = req.refusal.take() else {
            if compress::unsettled(req) {
                compress::settle(req).await;
            }
            break;
        };
        if !refusal.content_range.is_empty() {
            content_range = refusal.content_range;
        }
        phases::refuse(req, refusal.status).await;
    }
    if !content_range.is_empty() {
        req.resp.fields.push(b"Content-Range", &content_range);
    }
}

/// Log phase, and the end of what belongs to the request.
fn finish(req: &mut Request) {
    if let Some(mut source) = req.resp.source.take() {
        source.abandon(req);
    }
    post_action::begin(req);
    crate::metrics::count(req);
    access_log::log_request(req);
    req.modules.limit_conn.clear();
    req.body.end();
    req.resp.body.clear();
}

/// Ends a connection; reads on for a while if the client may still be sending (RFC 9112, section 9.6).
pub async fn close(thread: &Rc<Thread>, req: &mut Request, unread: bool) {
    use crate::modules::core::Lingering;
    body::settle(thread, req).await;
    let http = req.http();
    let core = &http.location(req).settings.core;
    let linger = match core.lingering_close {
        Lingering::Off => false,
        Lingering::On => unread,
        Lingering::Always => true,
    };
    // Without it a response whose end only the connection tells looks as if it had been cut off (RFC 8446, section 6.1).
    req.conn.wire.close(thread);
    if !linger {
        return;
    }
    log_buffers::flush_gathered(thread);
    req.conn.wire.shutdown(thread);
    let end = Instant::now() + core.lingering_time.0;
    let mut scratch = req.take_buf();
    loop {
        scratch.reserve(READ);
        match req.conn.wire.discard(thread, &mut scratch) {
            Ok(n) if n > 0 => {
                if Instant::now() >= end {
                    break;
                }
            }
            Err(Errno::AGAIN) => {
                let until = (Instant::now() + core.lingering_timeout.0).min(end);
                if thread.quitting.get() && thread.stopping.get() {
                    break;
                }
                if thread.reactor.deadline(until, req.conn.wire.wait_readable(thread)).await.is_none() {
                    break;
                }
            }
            _ => break,
        }
    }
    req.give_buf(scratch);
}

impl Request {
    /// Encrypts the connection, if the listener asks for that. What has been read belongs to the handshake.
    fn begin_tls(&mut self) {
        if self.address().is_some_and(|a| a.options.ssl) {
            let received = std::mem::take(&mut self.head.buf);
            self.conn.wire.encrypt(crate::tls::stream::Stream::server(received));
        }
    }

    /// Reads the PROXY protocol header, if the listener asks for one. `false`: what came is none.
    fn take_greeting(&mut self) -> bool {
        if !self.address().is_some_and(|a| a.options.proxy_protocol) {
            self.conn.greeted = true;
            self.begin_tls();
            return true;
        }
        if self.head.buf.is_empty() {
            return true;
        }
        match proxy_protocol::parse(&self.head.buf) {
            Ok(Parsed::Partial) => true,
            Ok(Parsed::Complete(len, header)) => {
                self.head.buf.drain(..len);
                self.conn.proxied = header.map(Box::new);
                self.conn.greeted = true;
                self.begin_tls();
                true
            }
            Err(broken) => {
                self.log_stranger(broken);
                false
            }
        }
    }

    fn log_stranger(&mut self, broken: Broken) {
        let what = match broken {
            Broken::Header => {
                let line = self.head.buf.split(|b| matches!(b, b'\r' | b'\n')).next().unwrap_or_default();
                format!("broken header: \"{}\"", String::from_utf8_lossy(line))
            }
            Broken::TooLarge => "header is too large".to_owned(),
            Broken::Version(v) => format!("unknown PROXY protocol version: {v}"),
        };
        let mut client = Vec::new();
        crate::request::push_peer(self.conn.peer, &mut client);
        let tail =
            format!(", client: {}, server: {}", String::from_utf8_lossy(&client), self.listener_text());
        let what = format!("{what} while reading PROXY protocol");
        error_log::log_connection(self, Level::Error, &what, &tail);
    }

    /// Limits of the default server of the connection's address, or of the one asked for by TLS (SNI).
    #[inline]
    pub fn limits(&self) -> Limits {
        let http = self.http();
        let server = self.address().map_or(0, |a| match &self.conn.tls {
            Some(tls) if http.heads_differ => {
                let named = tls.name.as_deref().and_then(|n| a.names.find(n).ok().flatten());
                named.map_or(a.default_server, |(s, _)| s)
            }
            _ => a.default_server,
        });
        http.servers.get(server).map_or_else(Limits::default, |s| s.head)
    }

    /// Limits of the server whose name a head has, if they are others than those that it was read by.
    fn own_limits(&self, limits: &Limits) -> Option<Limits> {
        let http = self.http();
        if !http.heads_differ || self.head.host.is_empty() {
            return None;
        }
        let (server, _) = self.address()?.names.find(&self.head.host).ok().flatten()?;
        // The path was read before the name was known.
        let own = Limits { merge_slashes: limits.merge_slashes, ..http.servers.get(server)?.head };
        (own != *limits).then_some(own)
    }

    /// Latest time at which the head must be complete.
    pub fn head_deadline(&self, now: Instant) -> Instant {
        let http = self.http();
        let server = self.default_server();
        let timeout = http.servers.get(server).map(|s| s.settings.client_header_timeout.0);
        let from = match (self.conn.wire.is_handshaking(), self.head.buf.is_empty()) {
            (true, _) => self.conn.accepted,
            (false, true) => now,
            (false, false) => self.started,
        };
        from + timeout.unwrap_or(std::time::Duration::from_secs(60))
    }

    /// Takes over what an idle connection kept.
    fn begin_connection(&mut self, conn: &mut Conn) {
        self.head.clear();
        self.conf = self.thread.config();
        self.started = self.thread.clock.now();
        if let Some(p) = conn.partial.take() {
            self.head.buf.extend_from_slice(&p.buf);
            self.started = p.started;
        }
        self.remote.clear();
        self.pipelined = false;
        self.early = false;
        self.timed_out = false;
        self.keepalive_timeout = None;
    }

    /// Takes a connection; what stood in its place is kept for [`Request::end_connection`].
    fn take_connection(&mut self, conn: Box<Conn>) {
        let mut old = std::mem::replace(&mut self.conn, conn);
        if self.no_conn.is_none() {
            if !old.wire.is_plain() || old.session.is_some() || old.tls.is_some() {
                *old = Conn::none(old.accepted);
            }
            self.no_conn = Some(old);
        }
    }

    /// Takes the connection out of the request, for the idle slot.
    fn end_connection(&mut self) -> Box<Conn> {
        let accepted = self.conn.accepted;
        let empty = self.no_conn.take().unwrap_or_else(|| Box::new(Conn::none(accepted)));
        std::mem::replace(&mut self.conn, empty)
    }

    /// Resets what belongs to one request.
    pub(crate) fn begin_request(&mut self) {
        self.conf = self.thread.config();
        self.resp.clear();
        self.method = self.head.method;
        std::mem::swap(&mut self.uri, &mut self.head.path);
        self.args.clear();
        self.args.extend_from_slice(self.head.args.of(&self.head.buf));
        let vars = self.conf.config.http.vars.len();
        if !self.arena.is_empty() || self.slots.len() != vars {
            self.slots.clear();
            self.slots.resize(vars, crate::request::Slot::Empty);
            self.arena.clear();
        } else {
            self.slots.fill(crate::request::Slot::Empty);
        }
        self.captures.groups.clear();
        self.internal = false;
        self.uri_changes = MAX_URI_CHANGES;
        self.error_status = 0;
        self.status_override = None;
        self.add_uri_to_alias = false;
        self.refusal = None;
        self.drop_connection = false;
        self.rewritten = false;
        self.valid_location = true;
        self.sent = 0;
        self.sent_head = 0;
        self.received = self.head.len as u64;
        self.transfer = None;
        self.modules.clear();
        self.complete = false;
        self.timed_out = false;
        self.depth = 0;
        self.refused = 0;
        self.keep_alive = self.head.keep_alive && !self.thread.quitting.get();
        self.peer = self.conn.peer;
        self.body.begin(self.head.framing, self.head.len);
        self.remote.clear();
        crate::request::push_peer(self.peer, &mut self.remote);
    }

    /// The default server of the connection's address.
    #[inline]
    fn default_server(&self) -> usize {
        self.address().map_or(0, |a| a.default_server)
    }

    /// Has it speak for a connection without a request.
    fn use_default_server(&mut self) {
        let http = self.http();
        self.server = self.default_server();
        self.location = http.servers.get(self.server).map_or(0, |s| s.root);
        self.peer = self.conn.peer;
        self.remote.clear();
        crate::request::push_peer(self.peer, &mut self.remote);
        self.timed_out = false;
        self.transfer = None;
        self.sent = 0;
    }

    /// Chooses the virtual server by the host, and with it the first location level. If that fails it is the default server, and
    /// the request must not be served.
    ///
    /// # Errors
    /// A pattern of a `server_name` exceeded its limits, which is logged.
    pub(crate) fn choose_server(&mut self) -> Result<(), LimitExceeded> {
        let http = self.http();
        self.server = self.default_server();
        let mut chosen = Ok(());
        let conf = self.conf.clone();
        if let Some(a) = self.address_in(&conf)
            && !a.names.is_empty()
            // A head that was not read to its end may yet name a host: this is no request without one.
            && !(self.head.host.is_empty() && self.head.len == 0)
        {
            let host = std::mem::take(&mut self.head.host);
            match a.names.find(&host) {
                Ok(Some((s, pattern))) => {
                    self.server = s;
                    if let Some(p) = pattern {
                        chosen = p.exec(self, &host).map(drop);
                    }
                }
                Ok(None) => {}
                Err(p) => chosen = Err(p.log_failure(self, &host)),
            }
            self.head.host = host;
        }
        self.location = http.servers.get(self.server).map_or(0, |s| s.root);
        crate::metrics::begin(self);
        self.keepalive_timeout = Some(http.location(self).settings.core.keepalive_timeout.timeout);
        chosen
    }

    /// Bytes of the head's buffer that this request used.
    fn consumed(&self) -> usize {
        self.body.consumed(self.head.len)
    }

    /// `reset_timedout_connection`: a client that is not reading gets a reset, which frees the kernel's buffers.
    fn reset_if_timed_out(&self) {
        let http = self.http();
        if self.timed_out && http.location(self).settings.core.reset_timedout_connection {
            let zero = Some(std::time::Duration::ZERO);
            let _ =
                self.conn.wire.with_fd(&self.thread, |fd| rustix::net::sockopt::set_socket_linger(fd, zero));
        }
    }

    /// Settings of the location that govern the connection.
    pub fn update_connection_settings(&mut self) {
        let http = self.http();
        let core = &http.location(self).settings.core;
        self.keepalive_timeout = Some(core.keepalive_timeout.timeout);
        if self.keep_alive && (self.connection_is_old() || self.disabled_agent()) {
            self.keep_alive = false;
        }
    }

    /// Whether the connection has served as many requests, or as long, as it may.
    fn connection_is_old(&self) -> bool {
        if self.conn.wire.is_worn() || self.conn.tls.as_ref().is_some_and(|s| s.outdated.get()) {
            return true;
        }
        let http = self.http();
        let core = &http.location(self).settings.core;
        core.keepalive_timeout.timeout.is_zero()
            || u64::from(self.conn.requests) >= core.keepalive_requests.0
            || self.conn.accepted.checked_add(core.keepalive_time.0).is_some_and(|end| self.started > end)
    }

    /// `send_timeout`.
    pub fn send_timeout(&self) -> std::time::Duration {
        let http = self.http();
        http.location(self).settings.core.send_timeout.0
    }

    /// Whether the first line of a connection that may speak HTTP/2 names no version of HTTP at all.
    fn is_no_http1(&self) -> bool {
        let line = self.head.buf.split(|b| *b == b'\n').next().unwrap_or_default();
        self.conn.requests == 0
            && memchr::memmem::find(line, b"HTTP/").is_none()
            && self.http2_settings().is_some()
    }

    /// A request by HTTP/2 for a server that does not speak it.
    fn misdirected(&mut self) -> Option<u16> {
        let http = self.http();
        let on = http.server(self).settings.http2 || self.address().is_some_and(|a| a.options.http2);
        if on {
            return None;
        }
        self.log(
            Level::Info,
            "client attempted to request the server name for which the negotiated protocol is disabled",
        );
        Some(421)
    }

    /// Whether what has come may be the beginning of an HTTP/2 connection.
    #[inline]
    fn may_be_preface(&self) -> bool {
        match self.head.buf.first() {
            Some(b'P') => true,
            Some(_) => self.conn.tls.as_ref().is_some_and(|s| s.alpn.as_deref() == Some(b"h2")),
            None => false,
        }
    }

    /// What HTTP/2 connections to this address are given; `None`: it speaks no HTTP/2.
    fn http2_settings(&self) -> Option<crate::h2::Settings> {
        let http = self.http();
        let address = self.address()?;
        let server = &http.servers.get(address.default_server)?.settings;
        (server.http2 || address.options.http2 || self.conn.tls.is_some()).then_some(crate::h2::Settings {
            max_streams: server.http2_max_concurrent_streams.0 as usize,
            window: u32::try_from(server.http2_body_preread_size.0).unwrap_or(0x7fff_ffff).max(1),
        })
    }

    fn disabled_agent(&self) -> bool {
        let http = self.http();
        let d = http.location(self).settings.core.keepalive_disable;
        if self.method != Method::Post && !d.safari {
            return false;
        }
        let Some(agent) = self.head.get(forebay_http::field::Name::UserAgent) else { return false };
        let has = |what: &[u8]| memchr::memmem::find(agent, what).is_some();
        let old_msie = match memchr::memmem::find(agent, b"MSIE ").and_then(|at| agent.get(at + 5..at + 7)) {
            Some([b'4' | b'5', b'.']) => true,
            Some([b'6', b'.']) => !has(b"SV1"),
            _ => false,
        };
        (d.msie6 && self.method == Method::Post && old_msie && !has(b"Opera"))
            || (d.safari && has(b"Safari/") && has(b"Mac OS X") && !has(b"Chrome"))
    }

    /// Whether a body follows the head.
    pub fn has_body(&self) -> bool {
        !matches!(self.head.framing, Framing::None | Framing::Length(0))
    }
}
