//! Sessions over UDP (nginx: `listen ... udp`). A datagram of an unknown client begins one: it runs the phases like a connection, in
//! a runner, since names may have to be resolved. Once it has a server it leaves the runner and is an entry of the thread's table,
//! with a socket of its own to the server; datagrams pass without a task and without memory of their own. Hot path.
//!
//! `table.rs` finds sessions by client, `sockets.rs` keeps the sockets of the listeners, `flow.rs` passes datagrams on,
//! `responses.rs` sends them to clients.
//!
//! The sessions belong to the thread and not to a configuration, so a reload does not touch them. A session that has ended leaves its
//! socket, without peer and port, to a later one (`forebay-net/src/socket_pool.rs`).

mod flow;
mod responses;
mod sockets;
mod table;

pub(crate) use flow::Counts;

use crate::config::Server;
use crate::passing::Connected;
use crate::rare_line::RareLine;
use crate::session::Session;
use crate::thread::{FLOW, Thread};
use flow::{End, Flow, Progress, Terms};
use forebay_conf::error::Level;
use forebay_core::client::Client;
use forebay_core::config::value::Number;
use forebay_core::front::Idle;
use forebay_core::log::error;
use forebay_core::thread::{ActiveConfig, next_connection};
use forebay_http::proxy_protocol::{self, Header};
use forebay_net::addr::Peer;
use forebay_net::reactor::{Direct, Token};
use forebay_net::wire::Wire;
use forebay_sys::datagrams::{Address, Batch, Destination, MOST};
use forebay_sys::errno::errno_text;
use responses::{Leave, Responses};
use rustix::io::Errno;
use sockets::{BURST, Sockets};
use std::cell::{Cell, RefCell};
use std::net::SocketAddr;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;
use table::{Key, Table};

forebay_core::settings! {
    /// `proxy_requests`: datagrams of a client after which the next one begins a new session; 0 = no limit.
    "proxy_requests" => requests: Number = Number(0);
    /// `proxy_responses`: datagrams of the server for each one of the client, after which the session ends.
    "proxy_responses" => responses: Option<Number> = None;
}

/// [`Direct::number`] of the step that sends the answers of a turn.
const ANSWERS: u32 = u32::MAX;

/// Most datagrams that wait for a session's server.
const QUEUE: usize = 16;

/// Most bytes that wait for a session's server.
const QUEUE_BYTES: usize = 64 * 1024;

/// Entry of a session in the thread's table, which is freed with the session.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    number: u32,
    from: Destination,
}

impl Entry {
    /// Returns the path of the client's unix socket; empty if it has none.
    pub(crate) fn path(&self) -> &[u8] {
        self.from.unix().map_or(b"", |name| name.path())
    }
}

/// Stage of a session.
enum Stage {
    /// A runner serves it. Its datagrams wait.
    Begins(Queue),
    /// It has a server.
    Flows(Box<Flow>),
}

/// Datagrams that wait for a session's server.
struct Queue {
    datagrams: Vec<Vec<u8>>,
    bytes: usize,
    /// Number of datagrams that the session takes from now on; `None`: any number.
    left: Option<u64>,
}

impl Queue {
    /// Adds a datagram; without room it is lost. Returns `true` if the session takes no more.
    fn push(&mut self, bytes: &[u8]) -> bool {
        if self.datagrams.len() < QUEUE && self.bytes + bytes.len() <= QUEUE_BYTES {
            self.bytes += bytes.len();
            self.datagrams.push(bytes.to_vec());
        }
        self.left = self.left.map(|left| left.saturating_sub(1));
        self.left == Some(0)
    }
}

/// UDP in a thread.
#[derive(Default)]
pub(crate) struct Udp {
    sessions: RefCell<Table<Stage>>,
    sockets: Sockets,
    answers: RefCell<Responses>,
    /// Number of sessions that a runner serves. They cannot make way for others.
    beginning: Cell<usize>,
    /// Datagrams of a listener are being handled, see [`Udp::starting`].
    receiving: Cell<bool>,
    /// Sessions whose first datagrams leave once those that have come together are handled. A server on this machine is then
    /// woken once for all of them.
    starting: RefCell<Vec<u32>>,
    /// Warning that there are too many sessions.
    full: RareLine,
    /// Line about datagrams without a header.
    unnamed: RareLine,
    /// Line about answers that could not be sent.
    unsent: RareLine,
    /// Line about sessions that this machine has no socket for.
    refused: RareLine,
}

/// Returns the numbers of datagrams after which a session at a server ends.
fn terms(server: Option<&Server>) -> Terms {
    server.map_or(Terms::default(), |s| {
        let settings = &s.settings.udp;
        Terms { requests: settings.requests.0, responses: settings.responses.map(|n| n.0) }
    })
}

/// Creates the client of a session.
fn client(thread: &Thread, key: &Key) -> Client {
    let mut client = Client {
        number: next_connection(),
        peer: match key.from.addr {
            Address::Inet(addr) => Peer::Inet(addr),
            Address::Unix(_) => Peer::Unix,
        },
        listener: key.listener,
        ..Client::none(thread.clock.now())
    };
    if let Some(ip) = key.from.local {
        let port = client.local_address(&thread.config()).map_or(0, |listening| listening.port());
        client.local = Some(SocketAddr::new(ip, port));
    }
    client
}

/// Returns the address of a client without its port.
fn sender_text(from: &Destination) -> String {
    match &from.addr {
        Address::Inet(addr) => addr.ip().to_string(),
        Address::Unix(name) => format!("unix:{}", String::from_utf8_lossy(name.path())),
    }
}

/// Returns `true` if datagrams of a listener begin with headers of the PROXY protocol.
fn expects_headers(thread: &Thread, listener: u32) -> bool {
    let conf = thread.config();
    let index = conf.listeners.get(listener as usize).copied().flatten();
    let listener = index.and_then(|index| conf.config.listeners.get(index));
    listener.is_some_and(|l| {
        l.default.options.proxy_protocol || l.exact.iter().any(|(_, a)| a.options.proxy_protocol)
    })
}

/// Writes a line to the error log, at most once a second.
fn log_rarely(thread: &Thread, line: &RareLine, level: Level, text: &str) {
    if let Some(text) = line.admit(thread.clock.now(), text) {
        error::log(thread, level, &text);
    }
}

impl Udp {
    /// Receives what a listener has. The poller calls again while there is more.
    pub(crate) fn receive(&self, thread: &Rc<Thread>, listener: u32, socket: &Arc<OwnedFd>) {
        self.sockets.receiving(listener, socket);
        thread.io.with_batch(|batch| self.receive_into(batch, thread, listener, socket));
    }

    fn receive_into(&self, batch: &mut Batch, thread: &Rc<Thread>, listener: u32, socket: &Arc<OwnedFd>) {
        match batch.receive(socket, MOST) {
            Ok(_) => {}
            // Another thread was faster.
            Err(Errno::AGAIN) => return,
            Err(e) => {
                error::log(thread, Level::Alert, &format!("recvmmsg() failed {}", errno_text(e)));
                return;
            }
        }
        self.receiving.set(true);
        self.handle_received(thread, listener, batch);
        self.receiving.set(false);
        self.start_all(thread);
    }

    fn handle_received(&self, thread: &Rc<Thread>, listener: u32, batch: &mut Batch) {
        let headers = expects_headers(thread, listener);
        let mut at = 0;
        while at < batch.len() {
            let Some(from) = batch.sender(at) else {
                at += 1;
                continue;
            };
            let end = batch.run(at);
            let key = Key { listener, from };
            if headers {
                for bytes in (at..end).filter_map(|n| batch.get(n)).flat_map(|d| d.parts()) {
                    self.arrived_with_header(thread, &key, bytes);
                }
            } else {
                self.arrived(thread, batch, &key, at..end);
            }
            at = end;
        }
    }

    /// Handles datagrams of one client.
    fn arrived(&self, thread: &Rc<Thread>, batch: &mut Batch, key: &Key, range: Range<usize>) {
        if range.len() >= BURST {
            self.sockets.coalesce(key.listener);
        }
        if self.forward_batch(thread, batch, key, range.clone()) {
            return;
        }
        for n in range {
            for bytes in batch.get(n).into_iter().flat_map(|d| d.parts()) {
                self.arrived_one(thread, key, bytes);
            }
        }
    }

    /// Passes datagrams of one client on, if its session takes them all. Returns whether it has taken them.
    fn forward_batch(&self, thread: &Rc<Thread>, batch: &mut Batch, key: &Key, range: Range<usize>) -> bool {
        let (number, progress, full) = {
            let mut sessions = self.sessions.borrow_mut();
            let Some(number) = sessions.find(key) else { return false };
            let Some(Stage::Flows(flow)) = sessions.get(number) else { return false };
            let Some(progress) = flow.forward_batch(&thread.io, batch, range) else { return false };
            (number, progress, flow.is_full())
        };
        self.forwarded(thread, number, progress, full);
        true
    }

    fn arrived_one(&self, thread: &Rc<Thread>, key: &Key, bytes: &[u8]) {
        let found = self.sessions.borrow().find(key);
        match found {
            Some(number) => self.forward(thread, number, bytes),
            None => self.begin(thread, key, bytes, None),
        }
    }

    /// Handles a datagram of a listener that expects headers of the PROXY protocol. The first datagram of a session has one. A
    /// later one may: some proxies put it in front of each.
    fn arrived_with_header(&self, thread: &Rc<Thread>, key: &Key, bytes: &[u8]) {
        let found = self.sessions.borrow().find(key);
        match (found, proxy_protocol::parse_datagram(bytes)) {
            (Some(number), Some((_, rest))) => self.forward(thread, number, rest),
            (Some(number), None) => self.forward(thread, number, bytes),
            (None, Some((header, rest))) => self.begin(thread, key, rest, header),
            // Anyone can send any number of these.
            (None, None) => {
                let client = sender_text(&key.from);
                let text = format!("no PROXY protocol header in a datagram, udp client: {client}");
                log_rarely(thread, &self.unnamed, Level::Error, &text);
            }
        }
    }

    fn forward(&self, thread: &Rc<Thread>, number: u32, bytes: &[u8]) {
        let (progress, full) = {
            let mut sessions = self.sessions.borrow_mut();
            match sessions.get(number) {
                Some(Stage::Flows(flow)) => (flow.forward(&thread.io, bytes), flow.is_full()),
                Some(Stage::Begins(queue)) => (Progress::Waits, queue.push(bytes)),
                None => return,
            }
        };
        self.forwarded(thread, number, progress, full);
    }

    /// Handles what a datagram of the client has led to. `full`: the session takes no more.
    fn forwarded(&self, thread: &Rc<Thread>, number: u32, progress: Progress, full: bool) {
        if full {
            self.sessions.borrow_mut().unbind(number);
        }
        self.handle(thread, number, progress);
    }

    fn handle(&self, thread: &Rc<Thread>, number: u32, progress: Progress) {
        match progress {
            Progress::Over(end) => self.finish(number, end),
            Progress::Again => thread.io.poller.step_again(thread.flow(number)),
            Progress::Waits => {
                let mut sessions = self.sessions.borrow_mut();
                if let Some(Stage::Flows(_)) = sessions.get(number) {
                    sessions.touch(number);
                }
            }
        }
    }

    /// Ends a session that has a server.
    fn finish(&self, number: u32, end: End) {
        // A statement of its own: the end of the session frees its place.
        let stage = self.sessions.borrow_mut().take(number);
        if let Some(Stage::Flows(flow)) = stage {
            flow.finish(end);
        }
    }

    /// Begins a session with its first datagram. `proxied`: header of the PROXY protocol in front of it.
    fn begin(&self, thread: &Rc<Thread>, key: &Key, bytes: &[u8], proxied: Option<Header>) {
        if !self.make_room(thread) {
            return;
        }
        let client = Client { proxied: proxied.map(Box::new), ..client(thread, key) };
        let mut session = Session::new(thread.clone(), Wire::Closed, client);
        let terms = terms(session.conf.stream.servers.get(session.server));
        // Clients without a name cannot be told apart: each of their datagrams is a session, as in nginx.
        let alone = key.from.is_nameless().then_some(1);
        let left = (terms.requests > 0).then_some(terms.requests).or(alone).map(|requests| requests - 1);
        let queue = Queue { datagrams: Vec::new(), bytes: 0, left };
        let number = {
            let mut sessions = self.sessions.borrow_mut();
            let number = sessions.insert(key.clone(), Stage::Begins(queue));
            if left == Some(0) {
                sessions.unbind(number);
            }
            number
        };
        self.sockets.enter(key.listener);
        self.beginning.set(self.beginning.get() + 1);
        for counter in [&thread.counters.accepted, &thread.counters.handled, &thread.counters.active] {
            counter.add(1);
        }
        session.udp = Some(Entry { number, from: key.from.clone() });
        session.received = bytes.len() as u64;
        session.early = bytes.to_vec();
        thread.start(Token::NONE, Box::new(session));
    }

    /// Logs that this machine has no socket for a session, at most once a second: datagrams of a flood cause as many.
    pub(crate) fn log_refused(&self, session: &Session, level: Level, text: &str) {
        if let Some(text) = self.refused.admit(session.thread.clock.now(), text) {
            session.log(level, &text);
        }
    }

    /// Makes room for one more session: at most `worker_connections` sessions and connections exist. The session whose last
    /// datagram is oldest makes way, never a connection. Returns `false` if there is no such session.
    fn make_room(&self, thread: &Rc<Thread>) -> bool {
        if self.beginning.get() >= (thread.max_connections / 2).max(1) {
            // Names that resolve slowly, or never. Half of the places remain for sessions with a server and for connections.
            self.log_full(thread, false);
            return false;
        }
        if (thread.counters.active.get() as usize) < thread.max_connections {
            return true;
        }
        let displaces = self.displace_oldest(thread);
        self.log_full(thread, displaces);
        displaces
    }

    /// Ends the session whose last datagram is oldest. Returns `false` if there is none that may be ended.
    fn displace_oldest(&self, thread: &Thread) -> bool {
        // A statement of its own: the end of the session frees its place.
        let oldest = self.sessions.borrow().oldest();
        let Some(number) = oldest else { return false };
        thread.counters.displaced.add(1);
        self.finish(number, End::Displaced);
        true
    }

    /// Makes room for a connection if sessions have more than half of `worker_connections`. They keep the other half, of which
    /// connections get only what [`Udp::idle`] names.
    pub(crate) fn give_way(&self, thread: &Thread) -> bool {
        self.sessions.borrow().len() > thread.max_connections / 2 && self.displace_oldest(thread)
    }

    fn log_full(&self, thread: &Thread, displaces: bool) {
        let max = thread.max_connections;
        let what = if displaces { ", reusing the oldest udp sessions" } else { " for udp sessions" };
        let text = format!("{max} worker_connections are not enough{what}");
        log_rarely(thread, &self.full, Level::Warn, &text);
    }

    /// Passes a session on to its server, first the datagrams that have come meanwhile.
    pub(crate) fn connected(thread: &Rc<Thread>, session: Box<Session>, connected: Connected) {
        let Some(Entry { number, from }) = session.udp.clone() else { return };
        let udp = &thread.udp;
        let terms = terms(session.conf.stream.servers.get(session.server));
        let flow = Box::new(Flow::new(session, connected, terms, from));
        flow.watch(&thread.io, thread.flow(number));
        let former = udp.sessions.borrow_mut().replace(number, Stage::Flows(flow));
        udp.ended_beginning(former.as_ref());
        if udp.receiving.get() {
            udp.starting.borrow_mut().push(number);
            return;
        }
        udp.start(thread, number);
        if let Some(Stage::Begins(queue)) = former {
            queue.datagrams.iter().for_each(|bytes| udp.forward(thread, number, bytes));
        }
    }

    fn start_all(&self, thread: &Rc<Thread>) {
        let mut numbers = self.starting.take();
        numbers.drain(..).for_each(|number| self.start(thread, number));
        // Kept for its memory. None has been added, since nothing is being received.
        self.starting.replace(numbers);
    }

    /// Sends the first datagram of a session.
    fn start(&self, thread: &Rc<Thread>, number: u32) {
        let progress = match self.sessions.borrow_mut().get(number) {
            Some(Stage::Flows(flow)) => {
                flow.begin(&thread.io);
                flow.progress()
            }
            _ => return,
        };
        self.handle(thread, number, progress);
    }

    /// Goes on with a session after an event of its server's socket, or sends the answers of a turn.
    pub(crate) fn step(&self, thread: &Rc<Thread>, direct: Direct) {
        if direct.number == ANSWERS {
            self.send_answers(thread);
            return;
        }
        let (progress, leave) = {
            let mut sessions = self.sessions.borrow_mut();
            let Some(Stage::Flows(flow)) = sessions.get(direct.number) else { return };
            let mut answers = self.answers.borrow_mut();
            answers.prepare(flow.listener(), &self.sockets);
            let progress = flow.step(&thread.io, &mut answers);
            (progress, answers.due(thread.io.poller.is_busy()))
        };
        match leave {
            Leave::Now => self.send_answers(thread),
            Leave::InTurn => thread.io.poller.step_again(thread.flow(ANSWERS)),
            Leave::Asked => {}
        }
        self.handle(thread, direct.number, progress);
    }

    fn send_answers(&self, thread: &Rc<Thread>) {
        let error = {
            let mut answers = self.answers.borrow_mut();
            answers.leave();
            answers.take_error()
        };
        if let Some(e) = error {
            let text = format!("sendmmsg() failed {} while sending to udp clients", errno_text(e));
            log_rarely(thread, &self.unsent, Level::Error, &text);
        }
    }

    /// Sends a text to the client of a session. Returns the status.
    pub(crate) fn answer(&self, session: &mut Session, bytes: &[u8]) -> u16 {
        let Some(entry) = &session.udp else { return 500 };
        if !self.sockets.send(session.client.listener, bytes, &entry.from) {
            return 500;
        }
        session.sent += bytes.len() as u64;
        200
    }

    /// Frees the entry of a session that ends.
    pub(crate) fn release(&self, session: &Session, entry: &Entry) {
        session.thread.counters.active.sub(1);
        self.sockets.leave(session.client.listener);
        let state = self.sessions.borrow_mut().remove(entry.number);
        self.ended_beginning(state.as_ref());
    }

    /// Counts the end of a stage.
    fn ended_beginning(&self, former: Option<&Stage>) {
        if let Some(Stage::Begins(_)) = former {
            self.beginning.set(self.beginning.get().saturating_sub(1));
        }
    }

    /// Appends the sessions that may be ended for connections: those without a datagram for a while.
    pub(crate) fn idle(&self, thread: &Thread, now: Instant, out: &mut Vec<Idle>) {
        out.extend(self.sessions.borrow().states().filter_map(|stage| match stage {
            Stage::Flows(flow) => flow.idle(&thread.io, now),
            Stage::Begins(_) => None,
        }));
    }

    /// Ends the sessions that are left at the end of a graceful shutdown (nginx: worker_shutdown_timeout).
    pub(crate) fn cut_off(&self) {
        let numbers: Vec<u32> = {
            let sessions = self.sessions.borrow();
            sessions.numbers(|stage| matches!(stage, Stage::Flows(_))).collect()
        };
        numbers.into_iter().for_each(|number| self.finish(number, End::CutOff));
    }

    /// Ends a session that [`Udp::idle`] has named.
    pub(crate) fn close_idle(&self, thread: &Thread, token: Token) {
        if let Some(Direct { kind: FLOW, number, .. }) = thread.io.poller.direct(token) {
            thread.counters.displaced.add(1);
            self.finish(number, End::Displaced);
        }
    }

    /// Keeps the sockets of removed listeners only for the answers of their sessions.
    pub(crate) fn apply(&self, active: &ActiveConfig) {
        self.sockets.retain(|slot| active.listeners.get(slot).copied().flatten().is_some());
    }

    /// Keeps all sockets only for the answers of their sessions: the thread no longer receives, and a new process may.
    pub(crate) fn quit(&self) {
        self.sockets.quit();
    }
}
