//! Session: a client's connection from its acceptance to its line in the access log (nginx: the phases of
//! ngx_stream_core_module). Hot path.

use crate::access_log;
use crate::config::{Server, Stream};
use crate::modules::{Content, limit_conn, pass, preread, proxy, realip, return_text, set, ssl, status_zone};
use crate::passing::{self, Connected};
use crate::thread::{Thread, ThreadConfig};
use crate::udp::{Entry, Udp};
use forebay_conf::error::Level;
use forebay_core::client::Client;
use forebay_core::clock::Clock;
use forebay_core::greeting::{self, Greeting};
use forebay_core::limit::cidr::Cidr;
use forebay_core::limit::concurrency::Counted;
use forebay_core::log::{buffers, error};
use forebay_core::status_zone::sessions::CountedSession;
use forebay_core::tls;
use forebay_core::vars::{Captures, Evaluate, Stored, VarError, VarId, VarStore};
use forebay_http::proxy_protocol::{Broken, Header};
use forebay_net::addr::{Peer, push_peer};
use forebay_net::wire::Wire;
use forebay_sys::errno::errno_text;
use rustix::io::Errno;
use std::rc::Rc;
use std::time::Instant;

/// A client's connection and the state of its phases.
pub(crate) struct Session {
    /// Thread that serves it.
    pub thread: Rc<Thread>,
    /// Configuration with which it began. A reload does not change it.
    pub conf: Rc<ThreadConfig>,
    /// The client.
    pub client: Rc<Client>,
    /// Transport of the client.
    pub wire: Wire,
    /// Index of the server.
    pub server: usize,
    /// Address of the client, as modules see it.
    pub peer: Peer,
    /// Time at which it began.
    pub begun: Instant,
    /// Values of variables.
    pub vars: VarStore,
    captures: Captures,
    /// Status for `$status`; 0 until the session has ended.
    pub status: u16,
    /// It is a client's, and its line in the access log has not been written.
    unlogged: bool,
    /// Bytes received from the client. As in nginx, those that a phase has read only count once a server is connected.
    pub received: u64,
    /// Bytes sent to the client.
    pub sent: u64,
    /// Result and counts of `limit_conn`.
    pub counted: Counted,
    /// Count of its connection; `None` if it has none.
    pub counted_connection: Option<status_zone::CountedConnection>,
    /// Count in the `status_zone` of its server.
    pub counted_session: Option<CountedSession>,
    /// First message of the client, if a preread module has read it.
    pub first_message: Option<Box<preread::FirstMessage>>,
    /// Bytes that the client has sent and that no phase has consumed.
    pub early: Vec<u8>,
    /// Entry among the sessions over UDP; `None` over TCP.
    pub udp: Option<Entry>,
    /// State of the proxy; `None` before a server is chosen.
    pub upstream: Option<Box<proxy::State>>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("client", &self.client).finish_non_exhaustive()
    }
}

impl Drop for Session {
    /// Closes the connection, also after a panic. A session that has not ended gets its line in the access log first.
    fn drop(&mut self) {
        self.break_off();
        let token = self.wire.token();
        self.wire.close(&self.thread.io);
        self.thread.close(token);
        if let Some(entry) = &self.udp {
            self.thread.udp.release(self, entry);
        }
    }
}

/// Result of the phases.
pub(crate) enum Outcome {
    /// The session is over, with this status.
    Over(u16),
    /// Another listener has the connection.
    Passed,
    /// It is proxied over this connection.
    Connected(Box<Connected>),
}

/// Bytes read at once for a PROXY protocol header.
const GREETING: usize = 4096;

/// Most bytes that are read for a PROXY protocol header.
const MAX_GREETING: usize = 64 * 1024;

/// Serves sessions, one after another, forever.
pub(crate) async fn runner(thread: Rc<Thread>) {
    loop {
        let job = thread.runners.next_job().await;
        thread.io.poller.note_place(job.work.client.number);
        job.work.serve().await;
    }
}

impl Session {
    /// Creates a session of a connection that has just been accepted.
    pub(crate) fn new(thread: Rc<Thread>, wire: Wire, client: Client) -> Session {
        let conf = thread.config();
        let counted = status_zone::CountedConnection::begin(&thread);
        let mut session = Session::of(thread, conf, wire, Rc::new(client));
        session.counted_connection = Some(counted);
        session.unlogged = true;
        session
    }

    /// Creates a session with a configuration.
    pub(crate) fn of(thread: Rc<Thread>, conf: Rc<ThreadConfig>, wire: Wire, client: Rc<Client>) -> Session {
        Session {
            server: client.default_server(&conf),
            peer: client.peer,
            begun: thread.clock.now(),
            vars: VarStore::default(),
            captures: Captures::default(),
            status: 0,
            unlogged: false,
            received: 0,
            sent: 0,
            counted: Counted::default(),
            counted_connection: None,
            counted_session: None,
            first_message: None,
            early: Vec::new(),
            udp: None,
            upstream: None,
            client,
            wire,
            conf,
            thread,
        }
    }

    /// Returns the stream block.
    pub(crate) fn stream(&self) -> std::sync::Arc<Stream> {
        self.conf.stream.clone()
    }

    /// Runs the phases. A session that is passed on leaves the runner then; another one ends.
    async fn serve(mut self: Box<Self>) {
        if self.logs_connections() {
            let protocol = self.log_prefix();
            let text = format!("{protocol}client {} connected to {}", self.client_text(), self.local_text());
            self.log_bare(Level::Info, &text);
        }
        let stream = self.stream();
        let outcome = match stream.servers.get(self.server) {
            Some(server) => self.accept(&stream, server).await,
            None => Outcome::Over(500),
        };
        match outcome {
            Outcome::Over(status) => self.end(status),
            Outcome::Passed => {
                // The other listener logs it.
                self.status = 200;
                self.unlogged = false;
                status_zone::end(&mut self);
            }
            Outcome::Connected(connected) => {
                let thread = self.thread.clone();
                match self.udp {
                    Some(_) => Udp::connected(&thread, self, *connected),
                    None => passing::begin(&thread, self, *connected),
                }
            }
        }
    }

    /// Ends a session that its runner leaves unfinished: by a panic, or because the thread ends (`worker_shutdown_timeout`).
    fn break_off(&mut self) {
        // A fast shutdown leaves no line, as in nginx.
        if !self.unlogged || self.thread.stopping.get() {
            return;
        }
        let status = if std::thread::panicking() { 500 } else { 200 };
        // A second panic would end the process.
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.end(status)));
    }

    /// Counts the session and adds its line to the access log.
    pub(crate) fn conclude(&mut self, status: u16) {
        self.status = status;
        // First, so that a panic in here does not lead back to here.
        self.unlogged = false;
        status_zone::end(self);
        proxy::ended(self);
        access_log::log_session(self);
    }

    /// Concludes the session and writes its line to the access log.
    pub(crate) fn end(&mut self, status: u16) {
        self.conclude(status);
        // A client that sees the end of the connection may look for its line in the log.
        buffers::flush_gathered(&self.thread);
    }

    /// Runs the phases of the default server, up to the choice of the server, and then those of that server.
    async fn accept(&mut self, stream: &Stream, server: &Server) -> Outcome {
        if let Some(status) = self.admit(server).await {
            return Outcome::Over(status);
        }
        let Some(server) = stream.servers.get(self.server) else { return Outcome::Over(500) };
        if let Some(status) = self.permit(server) {
            return Outcome::Over(status);
        }
        if let Some(status) = preread::read(self, server).await {
            return Outcome::Over(status);
        }
        // The name in a ClientHello that has been read chooses the server, too.
        let name = preread::hello(self).and_then(|hello| hello.server_name.clone());
        if let Some(status) = name.and_then(|name| ssl::choose_server(self, &name)) {
            return Outcome::Over(status);
        }
        let Some(server) = stream.servers.get(self.server) else { return Outcome::Over(500) };
        if let Some(status) = self.permit(server) {
            return Outcome::Over(status);
        }
        status_zone::begin(self);
        self.run(server).await
    }

    /// Runs the phases up to the choice of the server. Returns the status with which the session is refused.
    async fn admit(&mut self, server: &Server) -> Option<u16> {
        // A listener of UDP has neither PROXY protocol headers nor TLS, and nothing more is read for the phases.
        if self.udp.is_none()
            && let Some(status) = self.greet(server).await
        {
            return Some(status);
        }
        realip::replace(self, server);
        if let Some(status) = limit_conn::check(self, server) {
            return Some(status);
        }
        if let Some(status) = self.forbid(server) {
            return Some(status);
        }
        ssl::accept(self, server).await
    }

    /// Applies the rules of the server that a name has chosen. Returns the status with which the session is refused.
    fn permit(&mut self, server: &Server) -> Option<u16> {
        // Unlike nginx, which applies only the address rules of the default server.
        self.forbid(server).or_else(|| ssl::judge(self))
    }

    /// Applies the address rules of a server (nginx: allow, deny). Returns the status with which the session is refused.
    fn forbid(&self, server: &Server) -> Option<u16> {
        if server.settings.access.judge(self.peer) != Some(false) {
            return None;
        }
        self.log(Level::Error, "access forbidden by rule while initializing session");
        Some(403)
    }

    /// Reads the PROXY protocol header and begins TLS, where the listener asks for these. Returns the status with which the
    /// session is refused.
    async fn greet(&mut self, server: &Server) -> Option<u16> {
        let (thread, conf) = (self.thread.clone(), self.conf.clone());
        let deadline = thread.io.poller.after(server.settings.core.proxy_protocol_timeout.0);
        // Another listener may have read them.
        let mut buf = std::mem::take(&mut self.early);
        loop {
            match greeting::take_header(&mut self.client, &conf, &mut buf) {
                Ok(Greeting::Complete) => break,
                Ok(Greeting::Partial) => {}
                Err(broken) => {
                    self.log(Level::Error, &greeting::failure(broken, &buf));
                    return Some(400);
                }
            }
            // A read needs spare capacity.
            buf.reserve(GREETING);
            match self.wire.read(&thread.io, &mut buf) {
                Ok(0) => {
                    self.log(Level::Error, &greeting::failure(Broken::Header, &buf));
                    return Some(400);
                }
                Ok(_) => {}
                Err(Errno::AGAIN) => {
                    let readable = self.wire.wait_readable(&thread.io);
                    if thread.io.poller.until(deadline, readable).await.is_none() {
                        let text =
                            "client timed out (110: Connection timed out) while reading PROXY protocol";
                        self.log(Level::Info, text);
                        return Some(200);
                    }
                }
                Err(e) => {
                    let error = errno_text(e);
                    self.log(Level::Info, &format!("recv() failed {error} while reading PROXY protocol"));
                    return Some(200);
                }
            }
            if buf.len() > MAX_GREETING {
                self.log(Level::Error, &greeting::failure(Broken::TooLarge, &buf));
                return Some(400);
            }
        }
        self.early = buf;
        if conf.stream.passes_tls
            && let Some(status) = preread::read_hello(self, server).await
        {
            return Some(status);
        }
        let passes = conf.stream.servers.get(self.server).is_some_and(|s| s.settings.preread.passes);
        if !passes {
            let mut buf = std::mem::take(&mut self.early);
            greeting::begin_tls(&self.client, &mut self.wire, &conf, &mut buf);
            self.early = buf;
        }
        None
    }

    /// Runs the phases of the chosen server.
    async fn run(&mut self, server: &Server) -> Outcome {
        if let Err(e) = set::assign(self, &server.assignments) {
            self.log(Level::Error, &e.0);
            return Outcome::Over(500);
        }
        match &server.content {
            Some(Content::Proxy(target)) => proxy::serve(self, target, &server.settings.proxy).await,
            Some(Content::Pass(target)) => pass::serve(self, target),
            Some(Content::Return(text)) => Outcome::Over(return_text::serve(self, text).await),
            // nginx refuses such a server when it gets a connection.
            None => {
                self.log(Level::Error, "no handler for server");
                Outcome::Over(500)
            }
        }
    }

    /// Returns the word by which the error log tells sessions over UDP from others.
    pub(crate) fn log_prefix(&self) -> &'static str {
        if self.udp.is_some() { "udp " } else { "" }
    }

    /// Appends an address of the client. A unix socket that sends datagrams may have a name.
    pub(crate) fn push_client(&self, peer: Peer, out: &mut Vec<u8>) {
        push_peer(peer, out);
        if let (Peer::Unix, Some(entry)) = (peer, &self.udp) {
            out.extend_from_slice(entry.path());
        }
    }

    /// Returns the address of the client with its port.
    pub(crate) fn client_text(&self) -> String {
        match self.client.peer {
            Peer::Inet(a) => a.to_string(),
            Peer::Unix => {
                let mut text = Vec::new();
                self.push_client(Peer::Unix, &mut text);
                String::from_utf8_lossy(&text).into_owned()
            }
        }
    }

    fn local_text(&self) -> String {
        let local = self.client.local_address(&self.conf);
        local.map_or_else(|| self.client.listener_text(&self.conf), |a| a.to_string())
    }

    /// Returns `true` if a log takes lines about connections.
    pub(crate) fn logs_connections(&self) -> bool {
        self.logs(Level::Info)
    }

    fn logs(&self, level: Level) -> bool {
        self.conf.error_logs(self.server).iter().any(|l| level <= l.level)
    }

    /// Writes a line about this session to the error log.
    pub(crate) fn log(&self, level: Level, message: &str) {
        if self.logs(level) {
            let mut tail = Vec::new();
            self.describe(&mut tail);
            self.write_line(level, message, &tail);
        }
    }

    /// Writes a line to the error log that does not describe the session.
    pub(crate) fn log_bare(&self, level: Level, message: &str) {
        if self.logs(level) {
            self.write_line(level, message, b"");
        }
    }

    fn write_line(&self, level: Level, message: &str, tail: &[u8]) {
        let logs = self.conf.error_logs(self.server);
        let connection = Some(self.client.number);
        error::write(&self.thread, logs, &error::Entry { level, connection, message, tail });
    }

    fn describe(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b", ");
        out.extend_from_slice(self.log_prefix().as_bytes());
        out.extend_from_slice(b"client: ");
        self.push_client(self.peer, out);
        out.extend_from_slice(b", server: ");
        out.extend_from_slice(self.client.listener_text(&self.conf).as_bytes());
        if let Some(upstream) = &self.upstream {
            upstream.describe(out);
            out.extend_from_slice(self.traffic().as_bytes());
        }
    }

    /// Returns the bytes of both sides, as they end a line of the error log.
    pub(crate) fn traffic(&self) -> String {
        let (received, sent) = self.upstream.as_ref().map_or((0, 0), |u| u.traffic());
        let (from, to) = (self.received, self.sent);
        format!(", bytes from/to client:{from}/{to}, bytes from/to upstream:{received}/{sent}")
    }
}

impl Evaluate for Session {
    fn var(&mut self, id: VarId, out: &mut Vec<u8>) -> Result<bool, VarError> {
        match self.vars.get(id) {
            Stored::Value(v) => {
                out.extend_from_slice(v);
                return Ok(true);
            }
            Stored::Missing => return Ok(false),
            Stored::Empty => {}
        }
        let stream = self.stream();
        match stream.vars.get(usize::from(id.0)) {
            Some(var) => var.evaluate(self, id, out),
            None => Ok(false),
        }
    }

    fn values(&mut self) -> &mut VarStore {
        &mut self.vars
    }

    fn captures(&mut self) -> &mut Captures {
        &mut self.captures
    }

    fn clock(&self) -> &Clock {
        &self.thread.clock
    }

    fn peer(&self) -> Peer {
        self.peer
    }

    fn proxied(&self) -> Option<&Header> {
        self.client.proxied.as_deref()
    }

    fn session(&self) -> Option<&tls::Session> {
        self.client.tls.as_deref()
    }

    fn forwarded(&self, peer: Peer, _proxies: &[Cidr], _recursive: bool) -> Peer {
        // No protocol of a stream says whom a proxy forwards for, except the PROXY protocol, which `realip` reads.
        peer
    }

    fn log_with(&mut self, level: Level, message: impl FnOnce(&mut Vec<u8>)) {
        if self.logs(level) {
            let mut text = Vec::new();
            message(&mut text);
            self.log(level, &String::from_utf8_lossy(&text));
        }
    }
}
