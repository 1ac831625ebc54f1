//! Connections of clients: what one keeps between requests, and the runners that serve it. Hot path.
//!
//! `greeting.rs` reads what comes before the first request (PROXY protocol, TLS, the preface of HTTP/2), `h1.rs` serves HTTP/1, `mux.rs`
//! serves a request on a stream of HTTP/2 or HTTP/3, and `websocket.rs` a request that opens a WebSocket there. `unread.rs` logs heads
//! that are not completed, `switched.rs` passes bytes on where HTTP has ended, and `close.rs` ends connections.

pub mod close;
mod greeting;
pub mod h1;
pub mod idle;
pub mod mux;
pub mod switched;
pub mod unread;
pub mod websocket;

use crate::background::Task;
use crate::config::http::Location;
use crate::error_log;
use crate::h2::{self, Session, Stream};
use crate::h3;
use crate::request::Request;
use crate::request::tally::Arrival;
use crate::response::respond::break_off;
use crate::thread::{Thread, ThreadConfig};
use forebay_conf::error::Level;
use forebay_core::client::Client;
use forebay_core::counters::{Counter, Counters};
use forebay_core::limit::shares::{GRACE, SLOW_HEAD};
use forebay_core::log::buffers;
use forebay_core::transfers::{Direction, Transfer, Waiting};
use forebay_http::h1::request::Limits;
use forebay_net::reactor::{Deadline, Job, Token};
use forebay_net::wire::{Then, Wire};
use rustix::io::Errno;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Connection of a client. The type is small, because tens of thousands of connections may be idle.
#[derive(Debug)]
pub struct Connection {
    /// Transport.
    pub wire: Wire,
    /// The client, shared with its requests.
    pub client: Rc<Client>,
    /// `true` if the PROXY protocol header has been read, or none is expected.
    pub greeted: bool,
    /// Number of requests so far.
    pub requests: u32,
    /// `true` if the time for a head is over: the connection is logged and closed.
    pub expired: bool,
    /// Beginning of a head whose rest has not come.
    pub partial: Option<Box<Partial>>,
    /// HTTP/2 session.
    pub session: Option<Rc<Session>>,
}

/// Head that is not complete.
#[derive(Debug)]
pub struct Partial {
    /// Bytes so far.
    pub buf: Box<[u8]>,
    /// Time at which the first byte came.
    pub started: Instant,
    /// Circumstances of its arrival.
    pub arrival: Arrival,
}

/// Work of a runner.
#[derive(Debug)]
pub enum Work {
    /// A connection that is new or has received data.
    Connection(Connection),
    /// A request on a stream of an HTTP/2 connection.
    Stream(Rc<Stream>),
    /// A request on a stream of an HTTP/3 connection.
    Http3(Rc<h3::Stream>),
    /// A request that no client waits for.
    Task(Box<Task>),
    /// A tunnel or a switched protocol that has ended.
    Relayed(Box<switched::Over>),
}

impl From<Connection> for Work {
    fn from(conn: Connection) -> Work {
        Work::Connection(conn)
    }
}

impl Connection {
    /// Creates a connection whose client has sent nothing yet.
    pub fn new(wire: Wire, client: Rc<Client>) -> Connection {
        Connection { wire, client, greeted: false, requests: 0, expired: false, partial: None, session: None }
    }

    /// Creates a connection without a wire, for a request that the server makes for itself.
    pub fn closed(client: Rc<Client>, requests: u32) -> Connection {
        Connection { greeted: true, requests, ..Connection::new(Wire::Closed, client) }
    }

    /// Limits of the server that applies before a request names one.
    #[inline]
    pub fn limits(&self, conf: &ThreadConfig) -> Limits {
        conf.limits_of(&self.client)
    }

    /// Returns the first location of the default server, whose settings apply to the connection without a request.
    pub fn location<'c>(&self, conf: &'c ThreadConfig) -> Option<&'c Location> {
        conf.http.servers.get(self.client.default_server(conf))?.root()
    }

    /// Returns `send_timeout` of that location, or nginx's default.
    pub fn send_timeout(&self, conf: &ThreadConfig) -> Duration {
        self.location(conf).map_or(Duration::from_secs(60), |l| l.settings.core.send_timeout.0)
    }

    /// Returns the settings of an HTTP/2 session on this address; `None`: the address does not speak HTTP/2.
    fn http2_settings(&self, conf: &ThreadConfig) -> Option<h2::StreamSettings> {
        let address = self.client.address(conf)?;
        let server = &conf.http.servers.get(address.default_server)?.settings;
        // A client over TLS gets here only if ALPN has agreed on HTTP/2, so its server has it.
        (server.http2 || address.options.http2 || self.client.tls.is_some()).then_some(h2::StreamSettings {
            max_streams: server.http2_max_concurrent_streams.0 as usize,
            window: u32::try_from(server.http2_body_preread_size.0).unwrap_or(0x7fff_ffff).max(1),
        })
    }

    /// Writes all bytes while no request is in progress.
    async fn write_all(
        &mut self,
        thread: &Rc<Thread>,
        conf: &ThreadConfig,
        bytes: &[u8],
        then: Then,
    ) -> Result<(), ClientGone> {
        let mut rest = bytes;
        let mut full = false;
        while !rest.is_empty() || full {
            match self.wire.send(&thread.io, rest, then) {
                Ok(sent) => {
                    rest = rest.get(sent.bytes..).unwrap_or_default();
                    full = sent.full;
                }
                Err(Errno::AGAIN) => full = true,
                Err(_) => return Err(ClientGone),
            }
            if full {
                self.wait_for_room(thread, conf).await?;
            }
        }
        Ok(())
    }

    /// Sends the answers that still wait, while no request is in progress.
    async fn flush(&mut self, thread: &Rc<Thread>, conf: &ThreadConfig) -> Result<(), ClientGone> {
        while !self.wire.flush(&thread.io) {
            self.wait_for_room(thread, conf).await?;
        }
        Ok(())
    }

    /// Waits until the socket takes more.
    async fn wait_for_room(&mut self, thread: &Rc<Thread>, conf: &ThreadConfig) -> Result<(), ClientGone> {
        let now = Instant::now();
        // The wait is recorded as a wait of a request would be, so that slow clients can be found when connections run out.
        let transfer = Transfer::new(Direction::Response, self.client.network(), 0, now);
        let until = now + self.send_timeout(conf);
        let room = self.wire.wait_writable(&thread.io);
        let waited = thread.transfers.wait(&thread.io.poller, Waiting::Alone(transfer), until, room).await;
        let Err(over) = waited else { return Ok(()) };
        let name = conf.server_of(&self.client, false).map(|s| String::from_utf8_lossy(&s.name));
        let tail = format!(
            " while sending response to client, client: {}, server: {}",
            self.client.text(),
            name.unwrap_or_default()
        );
        error_log::log_connection(thread, &self.client, Level::Info, over.text(), &tail);
        Err(ClientGone)
    }
}

/// A client that has closed its connection or takes too long to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientGone;

/// Serves connections and requests, one after another, forever.
pub async fn runner(thread: Rc<Thread>) {
    // The request is boxed apart from the future, so that each of the two blocks has a size that fits.
    let mut desk = Desk(Box::new(Request::new(thread.clone())));
    loop {
        let Job { token, work } = thread.runners.next_job().await;
        let req = &mut *desk.0;
        match work {
            Work::Connection(conn) if conn.session.is_some() => go_on(&thread, token, conn).await,
            Work::Connection(conn) => serve(&thread, req, token, conn).await,
            Work::Stream(stream) => mux::serve(&thread, req, stream).await,
            Work::Http3(stream) => mux::serve(&thread, req, stream).await,
            Work::Relayed(over) => switched::end(&thread, req, token, *over).await,
            Work::Task(task) => Box::pin(crate::background::run(&thread, *task)).await,
        }
        if !thread.is_current(&req.conf) {
            // A runner without work must not keep an old configuration alive after a reload.
            *req = Request::new(thread.clone());
        }
    }
}

/// Request of a runner. If the runner ends first, the request gets its line in the access log all the same.
struct Desk(Box<Request>);

impl Drop for Desk {
    fn drop(&mut self) {
        break_off(&mut self.0);
    }
}

/// Goes on with an HTTP/2 connection that was idle.
async fn go_on(thread: &Rc<Thread>, token: Token, conn: Connection) {
    let mut guard = Guard { thread, token, open: true, state: None };
    thread.io.poller.note_place(conn.client.number);
    let until = thread.io.poller.deadline_of(token);
    serve_session(thread, conn, &mut guard, until).await;
}

/// Serves a connection of HTTP/1 until it is idle or over, or speaks HTTP/2. The connection is in the request, so the future has no room
/// for it.
fn serve<'r>(
    thread: &'r Rc<Thread>,
    req: &'r mut Request,
    token: Token,
    mut conn: Connection,
) -> impl Future<Output = ()> + 'r {
    let mut guard = Guard { thread, token, open: true, state: None };
    thread.io.poller.note_place(conn.client.number);
    // An idle connection is woken by data, and that data had arrived before this turn began.
    let idle = conn.requests > 0 && conn.partial.is_none();
    if conn.partial.is_some() {
        // The connection has been counted since the first byte of the head.
        guard.state = Some(|c| &c.reading);
    }
    // A greeted connection that has sent nothing was parked before, so the time for its head is running already.
    let waited = conn.greeted && conn.partial.is_none() && !conn.wire.is_handshaking();
    req.begin_connection(&mut conn);
    req.take_connection(conn);
    if idle {
        req.tally.arrival = Arrival::BeforeTurn;
    }
    async move {
        match h1::serve(thread, req, &mut guard, waited).await {
            // A runner without work must not keep the memory of a connection.
            h1::Served::Closed => drop(req.end_connection()),
            h1::Served::Parked => guard.leave_open(),
            h1::Served::Relayed => {}
            h1::Served::Http2(until) => {
                let conn = req.end_connection();
                req.head.clear();
                serve_session(thread, conn, &mut guard, until).await;
            }
        }
    }
}

/// Drives an HTTP/2 connection until it is idle or over. `until` is the time at which it is closed unless a request comes.
async fn serve_session(thread: &Rc<Thread>, mut conn: Connection, guard: &mut Guard<'_>, until: Deadline) {
    let Some(session) = conn.session.clone() else { return };
    guard.state(Some(|c| &c.writing));
    let conf = thread.config();
    let mut until = until;
    loop {
        match h2::drive::run(thread, &conf, &mut conn, &session, until).await {
            h2::drive::Rest::Closed => break,
            h2::drive::Rest::Idle(deadline) => until = deadline,
        }
        conn.wire.shrink();
        match thread.runners.park(guard.token, conn, until) {
            Ok(()) => {
                guard.open = false;
                break;
            }
            // Data came before the connection was parked.
            Err(back) => {
                conn = back;
                thread.io.poller.be_fair().await;
            }
        }
    }
    guard.state(None);
}

/// Closes a connection when its runner drops the guard, even after a panic. Keeps the counters of the connection's state.
struct Guard<'t> {
    thread: &'t Rc<Thread>,
    token: Token,
    open: bool,
    state: Option<fn(&Counters) -> &Counter>,
}

impl Guard<'_> {
    fn leave_open(&mut self) {
        self.open = false;
    }

    fn state(&mut self, s: Option<fn(&Counters) -> &Counter>) {
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
        // The guard closes the connection even after a panic of its runner, which costs this one connection.
        if self.open {
            // A client that sees the end of the connection may look for its line in the log at once.
            buffers::flush_gathered(self.thread);
            self.thread.close(self.token);
        }
    }
}

/// Returns the rank in which a waiting connection is closed to make room, lowest first, or `None` if it must stay open. Clients that are
/// slow with their heads come first, the slowest before the others. Then come connections between requests, the nearest to their timeout
/// first. Connections that have had little time to send a head come last.
pub fn rank(conn: &Connection, deadline: Instant, now: Instant) -> Option<(u8, Instant)> {
    let since = match &conn.partial {
        // A head that has begun counts from its first byte, however old the connection is.
        Some(p) => p.started,
        None if conn.requests == 0 => conn.client.accepted,
        None => return Some((1, deadline)),
    };
    match now.saturating_duration_since(since) {
        age if age >= SLOW_HEAD => Some((0, since)),
        age if age >= GRACE => Some((2, since)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A request that waits for its upstream, or for its client, keeps all of this.
    #[test]
    fn a_runner_is_small() {
        let mut req = crate::testing::request("", "");
        let thread = req.thread.clone();
        let runner = size_of_val(&runner(thread.clone()));
        let request = size_of::<Request>();
        let phases = size_of_val(&crate::phases::run(&mut req));
        let respond = size_of_val(&crate::response::respond::respond(&thread, &mut req));
        let conn = || Connection::closed(thread.no_client.clone(), 0);
        let serve = size_of_val(&serve(&thread, &mut req, Token::NONE, conn()));
        let mut guard = Guard { thread: &thread, token: Token::NONE, open: false, state: None };
        let session =
            size_of_val(&serve_session(&thread, conn(), &mut guard, thread.io.poller.after(Duration::ZERO)));
        let http1 = size_of_val(&h1::serve(&thread, &mut req, &mut guard, false));
        let own = format!("http1 {http1}, serve {serve}, session {session}");
        let mut out = Vec::new();
        let send = size_of_val(&crate::body::send(
            &thread,
            &mut req,
            &mut out,
            crate::response::head::BodyFraming::Plain,
        ));
        let sizes =
            format!("runner {runner}, phases {phases}, respond {respond}, send {send}, request {request}");
        // Sizes that the allocator has.
        assert!(runner <= 1792 && request <= 1536, "{sizes}, {own}");
    }

    #[test]
    fn an_idle_connection_is_small() {
        let client = size_of::<Client>() + 2 * size_of::<usize>();
        // The aim is 600 bytes, with what the allocator and half-filled tables take.
        let bytes = forebay_net::reactor::idle_bytes::<Connection>() + client;
        assert!(bytes <= 340, "{bytes} bytes, client {client}");
    }
}
