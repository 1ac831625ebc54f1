//! HTTP/3 on client connections (RFC 9114): one [`Session`] a connection, one [`Stream`] a request. Hot path.
//!
//! No task serves a connection. The datagrams of a turn are received together, the events of their connections are handled at once, and
//! each complete request goes to a runner. Everything that runners have written leaves at the end of the turn, for all connections
//! together ([`Quic::step`]). A stream is a wire like any other ([`forebay_net::wire::Wire`]), so phases, modules and bodies know nothing
//! of QUIC.
//!
//! Each thread has a socket of its own for each `listen ... quic`, with an [`Endpoint`] on it. Connections and sockets belong to the
//! thread, so a reload does not touch them. A listener that a reload removes, or a listener of a process that quits, stays open for its
//! connections until they have ended (`close_listeners` in `forebay-core/src/worker.rs`).

mod handover;
mod head_deadlines;
mod session;
mod stream;

pub use handover::{start as start_process, succeed};
pub use session::Session;
pub use stream::Stream;

use crate::connection::idle::make_room;
use crate::connection::mux::SpareStreams;
use crate::connection::unread::HeadFailure;
use crate::thread::{QUIC, Thread, ThreadConfig};
use forebay_conf::error::Level;
use forebay_core::client::Client;
use forebay_core::front::{Idle, IdlePlace};
use forebay_core::log::error;
use forebay_core::thread::next_connection;
use forebay_core::tls::accept::Handshake;
use forebay_net::addr::Peer;
use forebay_net::quic::{
    Arrival, Choose, Congestion, Endpoint, HandshakeFacts, IDS, Link, Owner, Place, Received, Settings,
    TlsConfig,
};
use forebay_net::reactor::{Direct, Token};
use forebay_net::tls::hello::Hello;
use forebay_net::wire::Wire;
use forebay_sys::datagrams::Batch;
use forebay_sys::errno::errno_text;
use handover::{Inbox, Side};
use head_deadlines::HeadDeadlines;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use std::cell::{Cell, OnceCell, RefCell};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Name of HTTP/0.9 over QUIC for ALPN (nginx: http3_hq).
pub const HQ: &[u8] = b"hq-interop";

/// Time between two questions to the kernel for the datagrams that it has dropped.
const DROPS_INTERVAL: Duration = Duration::from_secs(1);

/// QUIC connections of a thread.
#[derive(Default)]
pub struct Quic {
    /// Endpoints by the slots of their listeners.
    endpoints: RefCell<Vec<Option<Rc<Endpoint>>>>,
    /// Sessions by their numbers. The owner of a link is such a number.
    sessions: RefCell<Vec<Option<Rc<Session>>>>,
    /// Sockets of listeners that have no endpoint yet.
    new_sockets: RefCell<Vec<(u32, Arc<OwnedFd>)>>,
    /// Numbers of sessions that have ended.
    free: RefCell<Vec<u32>>,
    /// Slot of the poller for timers.
    timer: Cell<Option<Token>>,
    common: Rc<Common>,
    /// Memory of streams that have ended.
    ended: RefCell<SpareStreams<Stream>>,
    chooser: OnceCell<Rc<dyn Choose>>,
    /// Datagrams from other threads and processes, once this thread serves QUIC.
    inbox: OnceCell<Arc<Inbox>>,
    /// Sockets of neighbors that this thread reads.
    neighbors: RefCell<Vec<(Side, Token, Arc<OwnedFd>)>>,
    /// Number of the next endpoint.
    next_endpoint: Cell<u8>,
    /// Time at which the kernel was last asked for the number of datagrams that it has dropped.
    looked_at: Cell<Option<Instant>>,
}

/// Things that all sessions of a thread use.
#[derive(Default)]
struct Common {
    /// The poller has been asked for a step.
    asked: Cell<bool>,
    /// Requests whose heads are not complete.
    heads: Rc<HeadDeadlines>,
}

/// Chooser of TLS configurations for the handshakes of a thread.
struct Chooser(Weak<Thread>);

impl Choose for Chooser {
    fn choose(&self, owner: u32, hello: Hello) -> Result<Arc<TlsConfig>, u8> {
        // The number of the alert `internal_error` (RFC 8446, section 6).
        let Some(thread) = self.0.upgrade() else { return Err(80) };
        let Some(session) = thread.quic.session(owner) else { return Err(80) };
        session.with_handshake(&thread, |handshake| handshake.choose_for_quic(hello))
    }

    fn address(&self, owner: u32) -> Option<IpAddr> {
        self.0.upgrade()?.quic.session(owner)?.client().peer.ip()
    }

    fn refused(&self, owner: u32) {
        if let Some(thread) = self.0.upgrade() {
            thread.quic.forget(&thread, owner);
        }
    }
}

/// Owner of the connections of a listener.
struct Listening<'a> {
    thread: &'a Rc<Thread>,
    listener: u32,
    endpoint: &'a Rc<Endpoint>,
}

impl Owner for Listening<'_> {
    fn is_full(&self) -> bool {
        is_full(self.thread)
    }

    fn begin(&self, arrival: &Arrival) -> Option<u32> {
        self.thread.quic.begin(self.thread, self.listener, self.endpoint, arrival)
    }

    fn redirect(&self, received: &Received<'_>) -> bool {
        if self.thread.quitting.get() && handover::process().has_successor() {
            // The successor does not read the sockets yet. The client sends its first datagram again, and must not be refused before the
            // successor can take it.
            return true;
        }
        let conf = self.thread.config();
        if is_active(&conf, self.listener) {
            return false;
        }
        let address = |endpoint: &Endpoint| {
            rustix::net::getsockname(&**endpoint.socket()).ok().and_then(|a| SocketAddr::try_from(a).ok())
        };
        // A reload may have made another listener for the same address, which has the servers for new connections.
        let here = address(self.endpoint);
        let found = {
            let endpoints = self.thread.quic.endpoints.borrow();
            let mut others = endpoints.iter().zip(0..).filter(|(_, slot)| is_active(&conf, *slot));
            others.find_map(|(other, slot)| {
                Some((other.clone().filter(|other| here.is_some() && address(other) == here)?, slot))
            })
        };
        let Some((endpoint, listener)) = found else { return false };
        let owner = Listening { thread: self.thread, listener, endpoint: &endpoint };
        let (now, chooser) = (self.thread.io.poller.now(), self.thread.quic.chooser(self.thread));
        endpoint.deliver(received, now, &chooser, &owner);
        true
    }

    fn pass(&self, place: Place, exact: bool, received: &Received<'_>) -> bool {
        handover::process().pass(place, exact, received, None)
    }
}

impl Session {
    /// Calls `f` with the TLS handshake of the connection.
    fn with_handshake<R>(
        &self,
        thread: &Rc<Thread>,
        f: impl FnOnce(&mut Handshake<'_, crate::tls::HttpServers<'_>>) -> R,
    ) -> R {
        let conf: Rc<ThreadConfig> = thread.config();
        // The client is taken out of the session, because only a value that nothing else shares can be changed.
        let (mut wire, mut client) = (Wire::Closed, self.take_client(thread));
        let result = f(&mut crate::tls::handshake_of(thread, &conf, &mut wire, &mut client));
        self.set_client(client);
        result
    }

    /// Notes that requests come with the handshake.
    fn early(&self, thread: &Rc<Thread>, facts: HandshakeFacts) {
        self.with_handshake(thread, |handshake| handshake.begin_early_for_quic(facts.agreed));
    }

    /// Notes the results of the handshake.
    fn established(&self, thread: &Rc<Thread>, facts: HandshakeFacts) {
        self.with_handshake(thread, |handshake| handshake.complete_for_quic(facts.agreed));
    }
}

impl Quic {
    fn session(&self, number: u32) -> Option<Rc<Session>> {
        self.sessions.borrow().get(number as usize).cloned().flatten()
    }

    /// Creates a stream with `new`, in the memory of an ended stream if there is one.
    fn take_stream(&self, new: impl FnOnce() -> Stream) -> Rc<Stream> {
        self.ended.borrow_mut().take(new)
    }

    /// Keeps the memory of a stream that has ended for reuse, if nothing else refers to it.
    fn give_stream(&self, thread: &Thread, stream: Rc<Stream>) {
        let nobody =
            || Session::new(thread, 0, thread.no_client.clone(), self.common.clone(), Duration::ZERO);
        self.ended.borrow_mut().give(stream, nobody);
    }

    fn chooser(&self, thread: &Rc<Thread>) -> Rc<dyn Choose> {
        self.chooser.get_or_init(|| Rc::new(Chooser(Rc::downgrade(thread)))).clone()
    }

    /// Notes the socket of a new listener.
    pub fn listens(&self, listener: u32, socket: &Arc<OwnedFd>) {
        self.new_sockets.borrow_mut().push((listener, socket.clone()));
    }

    /// Receives the datagrams of a listener. The poller calls again while there are more.
    pub fn receive(&self, thread: &Rc<Thread>, listener: u32) {
        let Some(endpoint) = self.endpoint(listener) else { return };
        let received = thread.io.with_batch(|batch| self.receive_into(batch, thread, listener, &endpoint));
        match received {
            Ok(()) => self.ask(thread),
            Err(Errno::AGAIN) => {}
            Err(e) => error::log(thread, Level::Alert, &format!("recvmmsg() failed {}", errno_text(e))),
        }
    }

    /// Receives and handles the datagrams of a listener.
    fn receive_into(
        &self,
        batch: &mut Batch,
        thread: &Rc<Thread>,
        listener: u32,
        endpoint: &Rc<Endpoint>,
    ) -> Result<(), Errno> {
        let chooser = self.chooser(thread);
        let now = thread.io.poller.now();
        let owner = Listening { thread, listener, endpoint };
        let received = endpoint.receive(batch);
        let count = received.unwrap_or(0);
        let portion = endpoint.portion();
        let mut from = 0;
        while from < count {
            let to = count.min(from + portion);
            endpoint.handle(batch, from..to, now, &chooser, &owner);
            self.work(thread, endpoint);
            // The answers to the last portion leave at the end of the turn. So do the effects of portions without requests, such as
            // acknowledgments.
            if to < count && thread.runners.has_queued() {
                thread.start_queued();
                self.flush(thread, endpoint, now);
            }
            from = to;
        }
        received.map(drop)
    }

    /// Sends everything that connections have to send, and forgets connections that are over.
    fn flush(&self, thread: &Rc<Thread>, endpoint: &Endpoint, now: Instant) {
        let mut gone: Vec<Rc<Link>> = Vec::new();
        endpoint.flush(now, |link| gone.push(link.clone()));
        for link in gone {
            self.forget(thread, link.owner.get());
        }
    }

    /// Returns the endpoint of a listener.
    fn endpoint(&self, listener: u32) -> Option<Rc<Endpoint>> {
        self.endpoints.borrow().get(listener as usize).cloned().flatten()
    }

    /// Creates the endpoint of a new listener.
    fn open_endpoint(
        &self,
        thread: &Rc<Thread>,
        listener: u32,
        socket: &Arc<OwnedFd>,
    ) -> std::io::Result<()> {
        let mut endpoints = self.endpoints.borrow_mut();
        let at = listener as usize;
        if endpoints.len() <= at {
            endpoints.resize_with(at + 1, || None);
        }
        let v6 = rustix::net::getsockname(&**socket).ok().and_then(|a| SocketAddr::try_from(a).ok());
        let v6 = v6.is_some_and(|a| a.is_ipv6());
        let process = handover::process();
        let taken: Vec<u8> = endpoints.iter().flatten().map(|e| e.place().endpoint).collect();
        let mut numbers = (0..=u8::MAX).map(|n| self.next_endpoint.get().wrapping_add(n));
        let number = numbers.find(|n| !taken.contains(n)).unwrap_or(0);
        self.next_endpoint.set(number.wrapping_add(1));
        let thread_number = u8::try_from(thread.number).unwrap_or(u8::MAX);
        let place = Place { process: process.number, thread: thread_number, endpoint: number };
        let settings = settings(thread, listener);
        let endpoint = Endpoint::new(socket.clone(), v6, settings, place, process.mask.clone())?;
        if let Some(place) = endpoints.get_mut(at) {
            *place = Some(Rc::new(endpoint));
        }
        Ok(())
    }

    /// Applies the configuration of the thread to connections to come, and to the connections of removed listeners.
    pub fn apply(&self, thread: &Rc<Thread>) {
        let conf = thread.config();
        self.leave(thread, |listener| !is_active(&conf, listener));
        for (endpoint, listener) in self.endpoints.borrow_mut().iter_mut().zip(0..) {
            match endpoint {
                Some(endpoint) if is_active(&conf, listener) => {
                    endpoint.change(settings(thread, listener));
                }
                // The endpoint of a removed listener stays until its last connection has ended.
                Some(idle) if idle.open() == 0 => *endpoint = None,
                _ => {}
            }
        }
        for (listener, socket) in self.new_sockets.take() {
            if let Err(e) = self.open_endpoint(thread, listener, &socket) {
                let text = format!("QUIC cannot use a socket ({})", forebay_sys::errno::errno(&e));
                error::log(thread, Level::Alert, &text);
            }
        }
        if conf.active.config.listeners.iter().any(|l| l.front == thread.front && l.addr.is_udp()) {
            self.join(thread);
        }
    }

    /// Has other threads and processes send datagrams that are for this thread.
    fn join(&self, thread: &Rc<Thread>) {
        let Some(token) = self.timer(thread).filter(|_| self.inbox.get().is_none()) else { return };
        let bell = thread.io.poller.with_fd(token, |fd| fd.try_clone());
        let Some(Ok(bell)) = bell else { return };
        thread.io.poller.watch_readable(token);
        let inbox = self.inbox.get_or_init(|| Arc::new(Inbox::new(bell)));
        handover::process().join(u8::try_from(thread.number).unwrap_or(u8::MAX), inbox.clone());
        self.meet(thread);
    }

    /// Reads the sockets of neighbors from now on, if this is the first of the threads.
    fn meet(&self, thread: &Thread) {
        let (process, number) = (handover::process(), u8::try_from(thread.number).unwrap_or(u8::MAX));
        if !process.is_reader(number) {
            return;
        }
        for (side, socket) in process.unread(number) {
            let Ok(copy) = socket.try_clone() else { continue };
            let token = thread.io.poller.insert(copy);
            thread.io.poller.serve_directly(token, direct(thread.front));
            thread.io.poller.watch_readable(token);
            self.neighbors.borrow_mut().push((side, token, socket));
        }
    }

    /// Handles what other threads and processes have sent.
    fn take_strays(&self, thread: &Rc<Thread>) {
        let mut room = Vec::new();
        self.neighbors.borrow_mut().retain(|(side, token, socket)| {
            let is_there = handover::process().read(*side, socket, &mut room);
            if !is_there {
                thread.io.poller.remove(*token);
            }
            is_there
        });
        let Some(strays) = self.inbox.get().and_then(|inbox| inbox.take()) else { return };
        self.meet(thread);
        thread.delegated.set(handover::process().is_delegated().then_some(thread.front));
        let (now, chooser) = (thread.io.poller.now(), self.chooser(thread));
        for stray in strays {
            let endpoints = self.endpoints.borrow();
            let found = endpoints.iter().zip(0..).find_map(|(endpoint, listener)| {
                Some((endpoint.clone().filter(|e| e.place() == stray.place)?, listener))
            });
            drop(endpoints);
            let Some((endpoint, listener)) = found else { continue };
            let owner = Listening { thread, listener, endpoint: &endpoint };
            endpoint.deliver(&stray.received(), now, &chooser, &owner);
        }
    }

    /// Begins a connection. Returns its number; `None` if there is no room.
    fn begin(
        &self,
        thread: &Rc<Thread>,
        listener: u32,
        endpoint: &Rc<Endpoint>,
        arrival: &Arrival,
    ) -> Option<u32> {
        // A removed listener has no servers that could answer.
        let is_active = is_active(&thread.config(), listener);
        // A process that quits serves its connections to their end, and begins none.
        if thread.quitting.get() || !is_active || is_full(thread) && !make_room(thread) {
            return None;
        }
        let mut client = Client {
            number: next_connection(),
            peer: Peer::Inet(arrival.remote()),
            listener,
            ..Client::none(thread.clock.now())
        };
        if let Some(ip) = arrival.local() {
            let port = client.local_address(&thread.config()).map_or(0, |listening| listening.port());
            // The socket may be bound to all addresses, so only the datagram has the address to which the client has sent it.
            client.local = Some(SocketAddr::new(ip, port));
        }
        let patience = endpoint.patience();
        let session =
            Session::new(thread, endpoint.streams(), Rc::new(client), self.common.clone(), patience);
        let mut sessions = self.sessions.borrow_mut();
        let number = self.free.borrow_mut().pop().or_else(|| u32::try_from(sessions.len()).ok())?;
        match sessions.get_mut(number as usize) {
            Some(place) => *place = Some(session),
            None => sessions.push(Some(session)),
        }
        for counter in [&thread.counters.accepted, &thread.counters.handled, &thread.counters.active] {
            counter.add(1);
        }
        Some(number)
    }

    /// Forgets a session whose connection is gone.
    fn forget(&self, thread: &Rc<Thread>, number: u32) {
        let session = self.sessions.borrow_mut().get_mut(number as usize).and_then(Option::take);
        if let Some(session) = session {
            session.guard(|| session.lost(thread, HeadFailure::Closed));
            self.free.borrow_mut().push(number);
            thread.counters.active.sub(1);
        }
    }

    /// Has sessions handle the events of their connections.
    fn work(&self, thread: &Rc<Thread>, endpoint: &Rc<Endpoint>) {
        while let Some(link) = endpoint.take_ready() {
            if let Some(session) = self.session(link.owner.get()) {
                endpoint.guard(&link, || session.process(thread, endpoint, &link));
            }
        }
        for _ in 0..endpoint.take_panics() {
            thread.reactor.report_panic();
        }
    }

    /// Asks the poller for a step.
    fn ask(&self, thread: &Thread) {
        if !self.common.asked.replace(true) {
            thread.io.poller.step_again(direct(thread.front));
        }
    }

    /// Handles timers, and sends what connections have to send.
    pub fn step(&self, thread: &Rc<Thread>) {
        self.common.asked.set(false);
        self.take_strays(thread);
        let now = thread.io.poller.now();
        while let Some(stream) = self.common.heads.take_due(now) {
            stream.time_out(thread);
        }
        let (mut next, mut open, mut half_open) = (None, 0, 0);
        let looks = self.looked_at.get().is_none_or(|at| now.saturating_duration_since(at) > DROPS_INTERVAL);
        if looks {
            self.looked_at.set(Some(now));
        }
        let count = u32::try_from(self.endpoints.borrow().len()).unwrap_or(u32::MAX);
        for endpoint in (0..count).filter_map(|listener| self.endpoint(listener)) {
            endpoint.expire(now);
            self.work(thread, &endpoint);
            self.flush(thread, &endpoint, now);
            if endpoint.has_unsent() {
                self.ask(thread);
            }
            next = [next, endpoint.next_timer()].into_iter().flatten().min();
            // Each question is a system call, so it is not asked in every turn.
            if looks {
                endpoint.count_dropped();
            }
            take_counts(thread, &endpoint);
            open += endpoint.open() as u64;
            half_open += endpoint.half_open() as u64;
        }
        thread.counters.quic_open.set(open);
        thread.counters.quic_half_open.set(half_open);
        next = [next, self.common.heads.next_timer()].into_iter().flatten().min();
        if let (Some(at), Some(token)) = (next, self.timer(thread)) {
            thread.io.poller.step_at(token, thread.io.poller.deadline_at(at));
        }
    }

    /// Returns the slot of the poller for timers. It belongs to the descriptor by which other threads call this one.
    fn timer(&self, thread: &Thread) -> Option<Token> {
        if let Some(token) = self.timer.get() {
            return Some(token);
        }
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?;
        let token = thread.io.poller.insert(fd);
        thread.io.poller.serve_directly(token, direct(thread.front));
        self.timer.set(Some(token));
        Some(token)
    }

    /// Appends the connections without requests.
    pub fn idle(&self, now: Instant, out: &mut Vec<Idle>) {
        for (session, number) in self.sessions.borrow().iter().zip(0..) {
            let Some(session) = session else { continue };
            let network = session.client().network();
            out.extend(session.rank(now).map(|rank| Idle { place: IdlePlace::Quic(number), network, rank }));
        }
    }

    /// Closes a connection without requests.
    pub fn close_idle(&self, thread: &Thread, number: u32) {
        if let Some(session) = self.session(number) {
            session.guard(|| session.leave());
            self.ask(thread);
        }
    }

    /// Logs the heads that are not complete, since the thread ends.
    pub fn cut_off(&self, thread: &Rc<Thread>) {
        let sessions: Vec<Rc<Session>> = self.sessions.borrow().iter().flatten().cloned().collect();
        sessions.iter().for_each(|session| session.guard(|| session.lost(thread, HeadFailure::Ended)));
    }

    /// Leaves the datagrams for the process to other threads, since this thread ends.
    pub fn end(&self, thread: &Thread) {
        if self.inbox.get().is_some() {
            handover::process().part(u8::try_from(thread.number).unwrap_or(u8::MAX));
        }
    }

    /// Tells the clients of all connections that the process ends after them.
    pub fn quit(&self, thread: &Thread) {
        handover::process().leave();
        let sessions: Vec<Rc<Session>> = self.sessions.borrow().iter().flatten().cloned().collect();
        sessions.iter().for_each(|session| session.guard(|| session.announce()));
        self.ask(thread);
    }

    /// Has all connections take no further requests, since the process ends after them.
    pub fn part(&self, thread: &Thread) {
        self.leave(thread, |_| true);
    }

    /// Returns the number of connections of a listener.
    pub fn open(&self, listener: u32) -> usize {
        self.endpoints.borrow().get(listener as usize).and_then(Option::as_ref).map_or(0, |e| e.open())
    }

    /// Has connections take no further requests, for all listeners for which `f` returns `true`.
    pub fn leave(&self, thread: &Thread, f: impl Fn(u32) -> bool) {
        let sessions: Vec<Rc<Session>> = self.sessions.borrow().iter().flatten().cloned().collect();
        for session in sessions.iter().filter(|s| f(s.client().listener)) {
            session.guard(|| session.leave());
        }
        self.ask(thread);
    }
}

/// Returns `true` if a new connection needs the place of another (nginx: worker_connections).
fn is_full(thread: &Thread) -> bool {
    thread.counters.active.get() as usize >= thread.max_connections
}

/// Returns `true` if the configuration has the listener of a slot.
fn is_active(conf: &ThreadConfig, slot: u32) -> bool {
    conf.active.listeners.get(slot as usize).copied().flatten().is_some()
}

fn direct(front: u8) -> Direct {
    Direct { front, kind: QUIC, number: 0 }
}

/// Adds everything that an endpoint has counted to the counters of the thread.
fn take_counts(thread: &Thread, endpoint: &Endpoint) {
    endpoint.take_counts(|what, n| {
        if let Some(counter) = thread.counters.quic.get(what) {
            counter.add(n);
        }
    });
}

/// Returns the settings of a listener, which come from its default server.
fn settings(thread: &Thread, listener: u32) -> Settings {
    let conf = thread.config();
    let client = Client { listener, ..Client::none(thread.clock.now()) };
    let server = conf.http.servers.get(client.default_server(&conf));
    let location = server.and_then(|s| s.root());
    // 75 seconds is nginx's default of keepalive_timeout.
    let idle = location.map_or(Duration::from_secs(75), |l| l.settings.core.keepalive_timeout.timeout);
    let number = |n: u64| u32::try_from(n).unwrap_or(u32::MAX >> 2).max(1);
    let buffer = number(server.map_or(65_536, |s| s.settings.http3_stream_buffer_size.0));
    Settings {
        streams: number(server.map_or(128, |s| s.settings.http3_max_concurrent_streams.0)),
        stream_window: buffer,
        send_window: buffer.saturating_mul(16),
        // This is 4 MB by default, as much as Linux keeps for TCP (tcp(7), tcp_wmem).
        max_send_window: buffer.saturating_mul(64),
        idle: idle.max(Duration::from_secs(1)),
        ids: server.map_or(*IDS.start(), |s| s.settings.quic_active_connection_id_limit.0),
        retry: server.is_some_and(|s| s.settings.quic_retry),
        connections: thread.max_connections,
        congestion: server
            .map_or_else(Congestion::of_system, |s| s.settings.quic_congestion_control.chosen()),
        key: server
            .and_then(|s| s.settings.quic_host_key.0.clone())
            .unwrap_or_else(|| handover::process().key.clone()),
    }
}
