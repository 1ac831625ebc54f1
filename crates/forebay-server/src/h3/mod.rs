//! HTTP/3 on client connections (RFC 9114): one [`Session`] a connection, one [`Stream`] a request. Hot path.
//!
//! No task serves a connection. The datagrams of a turn are received together, the events of the connections they belong to are handled
//! at once, and each complete request goes to a runner. What runners have written leaves at the end of the turn, that of all
//! connections together ([`Quic::step`]). A stream is a wire like any other ([`forebay_net::wire::Wire`]), so phases, modules and
//! bodies know nothing of QUIC.

mod input;
mod session;
mod stream;

pub(crate) use session::Session;
pub(crate) use stream::Stream;

use crate::thread::{QUIC, Thread, ThreadConfig};
use forebay_conf::error::Level;
use forebay_core::client::Client;
use forebay_core::log::error;
use forebay_core::thread::next_connection;
use forebay_core::tls::accept::Handshake;
use forebay_net::addr::Peer;
use forebay_net::quic::{Arrival, Choose, Endpoint, HandshakeFacts, Link, Settings, TlsConfig};
use forebay_net::reactor::{Direct, Token};
use forebay_net::tls::hello::Hello;
use forebay_net::wire::Wire;
use forebay_sys::datagrams::Batch;
use forebay_sys::errno::errno_text;
use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use std::cell::{Cell, OnceCell, RefCell};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::sync::{Arc, LazyLock};
use std::time::Duration;

/// Key of stateless resets and of tokens for clients, the same in all threads.
static KEY: LazyLock<[u8; 64]> = LazyLock::new(|| {
    let mut key = [0; 64];
    for word in key.chunks_mut(8) {
        word.copy_from_slice(&forebay_sys::random::random_u64().to_ne_bytes());
    }
    key
});

/// QUIC connections of a thread.
#[derive(Default)]
pub(crate) struct Quic {
    /// Endpoints by the slots of their listeners.
    endpoints: RefCell<Vec<Option<Rc<Endpoint>>>>,
    /// Sessions by number, which links have as their owner.
    sessions: RefCell<Vec<Option<Rc<Session>>>>,
    /// Numbers of sessions that have ended.
    free: RefCell<Vec<u32>>,
    /// Buffers for datagrams.
    batch: RefCell<Option<Batch>>,
    /// Slot of the poller for timers.
    timer: Cell<Option<Token>>,
    /// The poller has been asked for a step.
    asked: Rc<Cell<bool>>,
    chooser: OnceCell<Rc<dyn Choose>>,
}

/// Chooser of TLS configurations for the handshakes of a thread.
struct Chooser(Weak<Thread>);

impl Choose for Chooser {
    fn choose(&self, owner: u32, hello: Hello) -> Result<Arc<TlsConfig>, u8> {
        let Some(thread) = self.0.upgrade() else { return Err(80) };
        let Some(session) = thread.quic.session(owner) else { return Err(80) };
        session.with_handshake(&thread, |handshake| handshake.choose_for_quic(hello))
    }

    fn refused(&self, owner: u32) {
        if let Some(thread) = self.0.upgrade() {
            thread.quic.forget(&thread, owner);
        }
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
        // Taken out: only what nothing shares can be changed.
        let (mut wire, mut client) = (Wire::Closed, self.take_client(thread));
        let result = f(&mut crate::tls::handshake_of(thread, &conf, &mut wire, &mut client));
        self.set_client(client);
        result
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

    fn chooser(&self, thread: &Rc<Thread>) -> Rc<dyn Choose> {
        self.chooser.get_or_init(|| Rc::new(Chooser(Rc::downgrade(thread)))).clone()
    }

    /// Receives the datagrams of a listener. The poller calls again while there are more.
    pub(crate) fn receive(&self, thread: &Rc<Thread>, listener: u32, socket: &Arc<OwnedFd>) {
        let endpoint = match self.endpoint(thread, listener, socket) {
            Ok(endpoint) => endpoint,
            Err(e) => {
                let text = format!("QUIC cannot use a socket ({})", forebay_sys::errno::errno(&e));
                error::log(thread, Level::Alert, &text);
                return;
            }
        };
        let chooser = self.chooser(thread);
        let mut batch = self.batch.take().unwrap_or_default();
        let now = thread.io.poller.now();
        let received = endpoint
            .receive(&mut batch, now, &chooser, |arrival| self.begin(thread, listener, &endpoint, arrival));
        self.batch.replace(Some(batch));
        match received {
            Ok(_) => {}
            Err(Errno::AGAIN) => return,
            Err(e) => {
                error::log(thread, Level::Alert, &format!("recvmmsg() failed {}", errno_text(e)));
                return;
            }
        }
        self.work(thread, &endpoint);
        self.ask(thread);
    }

    /// Returns the endpoint of a listener.
    fn endpoint(
        &self,
        thread: &Rc<Thread>,
        listener: u32,
        socket: &Arc<OwnedFd>,
    ) -> std::io::Result<Rc<Endpoint>> {
        let mut endpoints = self.endpoints.borrow_mut();
        let at = listener as usize;
        if endpoints.len() <= at {
            endpoints.resize_with(at + 1, || None);
        }
        if let Some(Some(endpoint)) = endpoints.get(at)
            && Arc::ptr_eq(endpoint.socket(), socket)
        {
            return Ok(endpoint.clone());
        }
        let v6 = rustix::net::getsockname(&**socket).ok().and_then(|a| SocketAddr::try_from(a).ok());
        let v6 = v6.is_some_and(|a| a.is_ipv6());
        let endpoint = Rc::new(Endpoint::new(socket.clone(), v6, settings(thread, listener))?);
        if let Some(place) = endpoints.get_mut(at) {
            *place = Some(endpoint.clone());
        }
        Ok(endpoint)
    }

    /// Begins a connection. Returns its number; `None` if there is no room.
    fn begin(
        &self,
        thread: &Rc<Thread>,
        listener: u32,
        endpoint: &Rc<Endpoint>,
        arrival: &Arrival,
    ) -> Option<u32> {
        let full = thread.counters.active.get() as usize >= thread.max_connections;
        if thread.quitting.get() || full && !self.give_way(thread) {
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
            client.local = Some(SocketAddr::new(ip, port));
        }
        let patience = endpoint.patience();
        let session = Session::new(thread, endpoint.clone(), Rc::new(client), self.asked.clone(), patience);
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
            session.lost();
            self.free.borrow_mut().push(number);
            thread.counters.active.sub(1);
        }
    }

    /// Has sessions handle the events of their connections.
    fn work(&self, thread: &Rc<Thread>, endpoint: &Rc<Endpoint>) {
        while let Some(link) = endpoint.take_ready() {
            if let Some(session) = self.session(link.owner.get()) {
                endpoint.guard(&link, || session.process(thread, &link));
            }
        }
        for _ in 0..endpoint.take_panics() {
            thread.reactor.report_panic();
        }
    }

    /// Asks the poller for a step.
    fn ask(&self, thread: &Thread) {
        if !self.asked.replace(true) {
            thread.io.poller.step_again(direct(thread.front));
        }
    }

    /// Handles timers, and sends what connections have to send.
    pub(crate) fn step(&self, thread: &Rc<Thread>) {
        self.asked.set(false);
        let now = thread.io.poller.now();
        let endpoints: Vec<Rc<Endpoint>> = self.endpoints.borrow().iter().flatten().cloned().collect();
        let mut next = None;
        for endpoint in &endpoints {
            endpoint.expire(now);
            self.work(thread, endpoint);
            let mut gone: Vec<Rc<Link>> = Vec::new();
            endpoint.flush(now, |link| gone.push(link.clone()));
            for link in gone {
                self.forget(thread, link.owner.get());
            }
            if endpoint.has_unsent() {
                self.ask(thread);
            }
            next = [next, endpoint.next_timer()].into_iter().flatten().min();
        }
        if let (Some(at), Some(token)) = (next, self.timer(thread)) {
            thread.io.poller.step_at(token, thread.io.poller.deadline_at(at));
        }
    }

    /// Returns the slot of the poller for timers: that of a descriptor that never becomes ready.
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

    /// Ends the connection that has been without a request for the longest time, so that there is room for another. Returns `false` if
    /// there is none.
    pub(crate) fn give_way(&self, thread: &Thread) -> bool {
        let oldest = {
            let sessions = self.sessions.borrow();
            let idle = sessions.iter().flatten().filter_map(|s| Some((s.idle_since()?, s)));
            idle.min_by_key(|(since, _)| *since).map(|(_, session)| session.clone())
        };
        let Some(session) = oldest else { return false };
        thread.counters.evicted.add(1);
        session.leave();
        self.ask(thread);
        true
    }

    /// Returns the number of connections of a listener.
    pub(crate) fn open(&self, listener: u32) -> usize {
        self.endpoints.borrow().get(listener as usize).and_then(Option::as_ref).map_or(0, |e| e.open())
    }

    /// Has connections take no further requests: those of the listeners for which `f` returns `true`.
    pub(crate) fn leave(&self, thread: &Thread, f: impl Fn(u32) -> bool) {
        let sessions: Vec<Rc<Session>> = self.sessions.borrow().iter().flatten().cloned().collect();
        for session in sessions.iter().filter(|s| f(s.client().listener)) {
            session.leave();
        }
        self.ask(thread);
    }
}

fn direct(front: u8) -> Direct {
    Direct { front, kind: QUIC, number: 0 }
}

/// Returns the settings of a listener: those of its default server.
fn settings(thread: &Thread, listener: u32) -> Settings {
    let conf = thread.config();
    let client = Client { listener, ..Client::none(thread.clock.now()) };
    let server = conf.http.servers.get(client.default_server(&conf));
    let location = server.and_then(|s| conf.http.locations.get(s.root));
    let idle = location.map_or(Duration::from_secs(75), |l| l.settings.core.keepalive_timeout.timeout);
    let number = |n: u64| u32::try_from(n).unwrap_or(u32::MAX >> 2).max(1);
    let buffer = number(server.map_or(65_536, |s| s.settings.http3_stream_buffer_size.0));
    Settings {
        thread: u8::try_from(thread.number).unwrap_or(u8::MAX),
        streams: number(server.map_or(128, |s| s.settings.http3_max_concurrent_streams.0)),
        stream_window: buffer,
        send_window: buffer.saturating_mul(16),
        idle: idle.max(Duration::from_secs(1)),
        retry: server.is_some_and(|s| s.settings.quic_retry),
        connections: thread.max_connections,
        key: *KEY,
    }
}
