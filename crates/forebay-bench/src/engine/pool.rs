//! The connections of a thread: made, filled with requests, read, ended and made again. Hot path.

use super::conn::{Conn, Next, Phase};
use super::context::Ctx;
use super::flight::{Flight, UNASSIGNED};
use super::quic::{Quic, SHARED};
use super::transport::{self, Attempt, Buffers};
use crate::load::{Load, Protocol};
use crate::record::Failure;
use crate::{Error, clock};
use forebay_net::quic::client::Client;
use rustix::event::epoll::{self, EventFlags};
use rustls::ClientConfig;
use rustls::client::Resumption;
use rustls::pki_types::ServerName;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Time that waiting without precision may last too long, ns.
const MILLISECOND: u64 = 1_000_000;
/// Connections of a thread in the making at once: more would overflow backlogs.
const CONNECTING: usize = 128;
/// The same of QUIC. The buffer of a server's socket has room for some 90 first packets by default, and a lost one costs a second.
const CONNECTING_QUIC: usize = 48;
/// Pauses after a failed connection attempt, ns: the shortest and the longest.
const BACKOFF: (u64, u64) = (1_000_000, 100_000_000);

/// All connections of a thread, each in a slot.
pub(super) struct Pool<'a> {
    pub(super) ctx: Ctx<'a>,
    conns: Vec<Conn>,
    epoll: OwnedFd,
    buffers: Buffers,
    tls: Option<Arc<ClientConfig>>,
    /// Set for HTTP/3.
    quic: Option<Quic>,
    /// Slots that wait for a request to be due, in an open loop.
    free: VecDeque<u32>,
    /// Slots whose responses were received in this turn, in a closed loop.
    answered: Vec<u32>,
    /// Slots that wait to connect.
    queue: VecDeque<u32>,
    /// Slots that pause, and until when.
    timers: BinaryHeap<Reverse<(u64, u32)>>,
    /// Connections in the making.
    connecting: usize,
    /// Since when no connection could be made; `None`: the last attempt succeeded.
    failing_since: Option<u64>,
}

impl<'a> Pool<'a> {
    /// Prepares the slots of thread `index` of `threads`.
    pub(super) fn new(load: &'a Load, index: usize, threads: usize) -> Result<Pool<'a>, Error> {
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| Error::Io("epoll".into(), e.into()))?;
        let tls = load.tls.as_ref().map(|config| own_sessions(config, load.resume));
        let conns = slots(load, index, threads);
        let quic = Quic::new(load, &conns, tls.as_ref(), &epoll)?;
        Ok(Pool {
            ctx: Ctx::new(load, index, threads),
            conns,
            epoll,
            buffers: Buffers::new(),
            tls,
            quic,
            free: VecDeque::new(),
            answered: Vec::new(),
            queue: VecDeque::new(),
            timers: BinaryHeap::new(),
            connecting: 0,
            failing_since: None,
        })
    }

    pub(super) fn epoll(&self) -> &OwnedFd {
        &self.epoll
    }

    /// Starts all connections.
    pub(super) fn start_all(&mut self) {
        for slot in 0..self.conns.len() as u32 {
            self.start(slot);
        }
    }

    /// Returns `true` if a run that ends with a number of requests will never end: no connection is open, and none could be
    /// made for as long as one may take.
    pub(super) fn is_hopeless(&self, timeout: u64) -> bool {
        self.ctx.supply.is_counted()
            && self.failing_since.is_some_and(|t| self.ctx.now.saturating_sub(t) >= timeout)
            && !self.conns.iter().any(|c| c.phase == Phase::Open)
    }

    /// Returns `true` if any slot pauses.
    pub(super) fn has_timers(&self) -> bool {
        // QUIC always has some; most never fire.
        !self.timers.is_empty() || self.quic_timer().is_some_and(|at| at < self.ctx.now + MILLISECOND)
    }

    fn quic_timer(&self) -> Option<u64> {
        self.quic.as_ref().and_then(Quic::next_timer)
    }

    /// Returns when the next slot has paused long enough, or QUIC has something to do.
    pub(super) fn next_timer(&self) -> Option<u64> {
        let paused = self.timers.peek().map(|Reverse((at, _))| *at);
        paused.into_iter().chain(self.quic_timer()).min()
    }

    /// Returns `true` if a slot waits for a request that the schedule still has.
    pub(super) fn waits_for_schedule(&self) -> bool {
        !self.free.is_empty() && self.ctx.supply.is_due(u64::MAX, self.ctx.times.end)
    }

    /// Sends the requests of an open loop that are due.
    pub(super) fn send_due(&mut self) {
        while self.ctx.supply.is_due(self.ctx.now, self.ctx.times.end) {
            let Some(slot) = self.free.pop_front() else { break };
            if let Some(conn) = self.conns.get_mut(slot as usize) {
                conn.in_free = false;
                conn.waited = true;
            }
            self.fill(slot);
        }
    }

    /// Starts the slots that have paused long enough.
    pub(super) fn start_paused(&mut self) {
        while let Some(Reverse((at, slot))) = self.timers.peek().copied() {
            if at > self.ctx.now {
                break;
            }
            self.timers.pop();
            self.start(slot);
        }
    }

    /// Begins the connections that wait, as many as may be in the making.
    pub(super) fn connect_queued(&mut self) {
        let most = if self.quic.is_some() { CONNECTING_QUIC } else { CONNECTING };
        while self.connecting < most
            && let Some(slot) = self.queue.pop_front()
        {
            self.connect(slot);
        }
    }

    /// Sends the next requests on connections whose responses were received in this turn.
    pub(super) fn refill_answered(&mut self) {
        for at in 0..self.answered.len() {
            let Some(&slot) = self.answered.get(at) else { break };
            self.ctx.now = clock();
            self.fill(slot);
        }
        self.answered.clear();
    }

    /// Counts the requests that are left at the end as unanswered.
    pub(super) fn fail_unanswered(&mut self) {
        let Pool { ctx, conns, .. } = self;
        for conn in conns {
            for flight in conn.http.take_flights().into_iter().chain(conn.first.take()) {
                ctx.failed(flight, Failure::Unanswered);
            }
        }
    }

    /// Closes connections without a request: they are of no more use after the end.
    pub(super) fn close_idle(&mut self) {
        for conn in self.conns.iter_mut().filter(|c| c.is_idle()) {
            if conn.is_connecting() {
                self.connecting -= 1;
            }
            conn.reset();
        }
    }

    /// Closes all connections. Over QUIC the server learns of it.
    pub(super) fn close_all(&mut self) {
        self.conns.iter_mut().for_each(Conn::reset);
        if let Some(quic) = &self.quic {
            let packets = quic.packets();
            let record = &mut self.ctx.record;
            (record.packets, record.packets_lost, record.dropped) =
                (packets.sent, packets.lost, quic.dropped());
            quic.flush(self.ctx.now, |_| {});
        }
    }

    /// Ends the connections whose server has been silent for too long.
    pub(super) fn end_silent(&mut self, timeout: u64) {
        for slot in 0..self.conns.len() as u32 {
            let since = self.conns.get(slot as usize).and_then(Conn::waits_since);
            if since.is_some_and(|since| self.ctx.now.saturating_sub(since) >= timeout) {
                let begun = self.conns.get(slot as usize).and_then(|conn| conn.http.begun());
                let raw = self.ctx.load.protocol == Protocol::Raw;
                self.ctx.note(|| silence(begun, raw, timeout));
                self.end(slot, Some(Failure::Timeout));
            }
        }
    }

    /// Makes a connection, at once or later, or uses the open one.
    fn start(&mut self, slot: u32) {
        let Some(conn) = self.conns.get_mut(slot as usize) else { return };
        match conn.phase {
            Phase::Connecting | Phase::Handshaking => {}
            Phase::Open => self.fill(slot),
            Phase::Closed | Phase::Waiting => {
                conn.phase = Phase::Closed;
                if counts_connecting(self.ctx.load) {
                    self.fill(slot);
                } else if self.ctx.supply.is_worth_connecting() || conn.first.is_some() {
                    self.queue.push_back(slot);
                }
            }
        }
    }

    /// Sends as many requests as are due and fit, or has the connection made for one.
    fn fill(&mut self, slot: u32) {
        let Some(conn) = self.conns.get_mut(slot as usize) else { return };
        let open = conn.phase == Phase::Open;
        if !open && (conn.phase != Phase::Closed || conn.first.is_some()) {
            return;
        }
        if !std::mem::take(&mut conn.waited) && open && !conn.in_free {
            // A response has just been received. Until then there was no room, so this side was not late.
            conn.since = self.ctx.now;
        }
        if self.ctx.think > 0 && !self.ctx.supply.is_open_loop() && conn.http.gate() > self.ctx.now {
            self.timers.push(Reverse((conn.http.gate(), slot)));
            return;
        }
        let sent = match () {
            () if !open => return self.connect_for_request(slot),
            () if conn.sends_singly(self.ctx.load) => self.send_one(slot),
            () => self.send_many(slot),
        };
        if let Err(kind) = sent {
            self.end(slot, Some(kind));
        }
    }

    /// Reserves the next request for a connection that is yet to be made.
    fn connect_for_request(&mut self, slot: u32) {
        if let Some(flight) = self.next_work(slot)
            && let Some(conn) = self.conns.get_mut(slot as usize)
        {
            conn.first = Some(flight);
            self.queue.push_back(slot);
        }
    }

    #[inline]
    fn send_one(&mut self, slot: u32) -> Result<(), Failure> {
        let Some(flight) = self.next_for(slot) else { return Ok(()) };
        let Some(conn) = self.conns.get_mut(slot as usize) else { return Ok(()) };
        self.ctx.record_lateness(flight, conn.since);
        conn.send_singly(&mut self.ctx, flight)
    }

    #[inline]
    fn send_many(&mut self, slot: u32) -> Result<(), Failure> {
        self.buffers.output.clear();
        while let Some(flight) = self.next_for(slot) {
            let Some(conn) = self.conns.get_mut(slot as usize) else { break };
            self.ctx.record_lateness(flight, conn.since);
            conn.gather(&mut self.ctx, flight, &mut self.buffers.output);
        }
        match self.conns.get_mut(slot as usize) {
            Some(conn) => conn.write(&mut self.ctx, &self.buffers.output),
            None => Ok(()),
        }
    }

    /// Returns the next request for an open connection, if it has room for one.
    #[inline]
    fn next_for(&mut self, slot: u32) -> Option<Flight> {
        let conn = self.conns.get_mut(slot as usize)?;
        if !conn.has_room(self.ctx.load) {
            return None;
        }
        match conn.first.take() {
            Some(first) => Some(first),
            None => self.next_work(slot),
        }
    }

    /// Returns the next request. When none is due yet in an open loop, the slot waits for it.
    #[inline]
    fn next_work(&mut self, slot: u32) -> Option<Flight> {
        let conn = self.conns.get_mut(slot as usize)?;
        let Some(mut flight) = self.ctx.next_work() else {
            let supply = &self.ctx.supply;
            if supply.is_open_loop() && supply.is_open() && !conn.in_free {
                conn.in_free = true;
                // Lateness of the next request counts from here, not from its due time.
                conn.since = self.ctx.now;
                self.free.push_back(slot);
            }
            return None;
        };
        if flight.request == UNASSIGNED {
            flight.request = conn.next_in_order(self.ctx.load);
        }
        Some(flight)
    }

    fn connect(&mut self, slot: u32) {
        let Pool { ctx, conns, epoll, .. } = self;
        let Some(conn) = conns.get_mut(slot as usize) else { return };
        if conn.phase != Phase::Closed || conn.first.is_none() && !ctx.supply.is_worth_connecting() {
            return;
        }
        let Some(origin) = conn.origin_of(ctx.load) else { return };
        conn.since = ctx.now;
        conn.phase = Phase::Connecting;
        self.connecting += 1;
        if let Some(quic) = &self.quic {
            let name = origin.server_name.as_ref().map_or_else(Default::default, ServerName::to_str);
            conn.phase = Phase::Handshaking;
            match quic.connect(slot, &name, ctx.load.parallel, ctx.now) {
                Ok(h3) => conn.http.start_h3(h3),
                Err(why) => {
                    ctx.note(|| format!("{}: {why}", origin.name));
                    self.end(slot, Some(Failure::Connect));
                }
            }
            return;
        }
        let (fd, attempt) = match transport::connect(&origin.address, ctx.load.receive_buffer) {
            Ok(made) => made,
            Err(e) => {
                ctx.note(|| format!("{}: {}", origin.name, std::io::Error::from(e)));
                return self.end(slot, Some(Failure::Connect));
            }
        };
        let data = epoll::EventData::new_u64(u64::from(slot) | u64::from(conn.generation) << 32);
        let wanted = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
        let added = epoll::add(epoll, &fd, data, wanted);
        conn.transport.open(fd, &origin.address);
        if added.is_err() {
            self.end(slot, Some(Failure::Connect));
        } else if attempt == Attempt::Connected {
            self.connected(slot);
        }
    }

    /// Goes on after connect(2): with the TLS handshake or the first requests.
    fn connected(&mut self, slot: u32) {
        let Pool { ctx, conns, tls, .. } = self;
        let Some(conn) = conns.get_mut(slot as usize) else { return };
        let Some(origin) = conn.origin_of(ctx.load) else { return };
        if let Some(e) = conn.transport.connect_error() {
            ctx.note(|| format!("{}: {}", origin.name, std::io::Error::from(e)));
            return self.end(slot, Some(Failure::Connect));
        }
        if !conn.transport.has_datagrams() {
            ctx.record.connect.record(ctx.now.saturating_sub(conn.since));
        }
        ctx.record.connections += 1;
        let Some(config) = tls.as_ref().filter(|_| origin.server_name.is_some()) else {
            return self.opened(slot);
        };
        conn.phase = Phase::Handshaking;
        conn.since = ctx.now;
        if let Err(e) = conn.transport.start_tls(config, origin) {
            ctx.note(|| format!("{}: {e}", origin.name));
            return self.end(slot, Some(Failure::Tls));
        }
        if let Err(kind) = conn.flush(ctx) {
            self.end(slot, Some(kind));
        }
    }

    /// Begins HTTP on a connection that is ready for it.
    fn opened(&mut self, slot: u32) {
        let Pool { ctx, conns, buffers, .. } = self;
        let Some(conn) = conns.get_mut(slot as usize) else { return };
        conn.since = ctx.now;
        conn.fails = 0;
        if let Some(tls) = conn.transport.tls() {
            let resumed = tls.handshake_kind() == Some(rustls::HandshakeKind::Resumed);
            ctx.record.resumed += u64::from(resumed);
            if ctx.load.protocol == Protocol::Http2 && tls.alpn_protocol() != Some(b"h2") {
                ctx.note(|| "the server does not speak HTTP/2 over TLS".to_owned());
                return self.end(slot, Some(Failure::Tls));
            }
        }
        if let Some(established) = conn.http.h3().and_then(|h3| h3.established()) {
            ctx.record.resumed += u64::from(established.is_resumed);
            if established.alpn.as_deref() != Some(b"h3") {
                ctx.note(|| "the server does not speak HTTP/3 over QUIC".to_owned());
                return self.end(slot, Some(Failure::Tls));
            }
        }
        self.connecting = self.connecting.saturating_sub(1);
        self.failing_since = None;
        if let Err(kind) = conn.start_http(ctx, buffers) {
            return self.end(slot, Some(kind));
        }
        if !counts_connecting(ctx.load)
            && let Some(flight) = &mut conn.first
        {
            flight.start = ctx.now;
        }
        self.fill(slot);
    }

    /// Ends a connection, because of a failure or since its work is done, and continues with the slot.
    fn end(&mut self, slot: u32, why: Option<Failure>) {
        let Some(conn) = self.conns.get_mut(slot as usize) else { return };
        let ctx = &mut self.ctx;
        if let Some(kind) = why {
            ctx.note(|| kind.words().to_owned());
        }
        let making = conn.is_connecting();
        let mut counted = conn.http.give_up(ctx, why);
        if making && let Some(flight) = conn.first.take() {
            ctx.failed(flight, why.unwrap_or(Failure::Connect));
            counted = true;
        }
        if let Some(kind) = why.filter(|_| !counted) {
            ctx.failed_without_request(kind);
        }
        conn.reset();
        if making {
            self.connecting = self.connecting.saturating_sub(1);
        }
        if making && why.is_some() { self.pause(slot) } else { self.start(slot) }
    }

    /// Has a slot wait after a failed connection attempt, longer each time.
    fn pause(&mut self, slot: u32) {
        let Some(conn) = self.conns.get_mut(slot as usize) else { return };
        self.failing_since.get_or_insert(conn.since);
        conn.fails = conn.fails.saturating_add(1);
        conn.phase = Phase::Waiting;
        let pause = BACKOFF.0 << conn.fails.min(10);
        self.timers.push(Reverse((self.ctx.now + pause.min(BACKOFF.1), slot)));
    }

    /// Handles an event of a socket.
    #[inline]
    pub(super) fn event(&mut self, event: &epoll::Event) {
        // Fields of a packed struct cannot be borrowed.
        let (data, flags) = (event.data.u64(), event.flags);
        let (slot, generation) = (data as u32, (data >> 32) as u32);
        if slot == SHARED {
            return self.datagrams(generation as usize);
        }
        let Some(conn) = self.current(slot, generation) else { return };
        let connecting = conn.phase == Phase::Connecting;
        self.ctx.now = clock();
        if connecting {
            if !flags.intersects(EventFlags::OUT | EventFlags::ERR | EventFlags::HUP) {
                return;
            }
            // Bytes that came with the same event are read below.
            self.connected(slot);
        }
        if flags.contains(EventFlags::OUT) {
            self.writable(slot, generation);
        }
        if flags.intersects(EventFlags::IN | EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR) {
            let last = flags.intersects(EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR);
            self.readable(slot, generation, last);
        }
    }

    /// Receives the datagrams of a socket.
    fn datagrams(&mut self, lane: usize) {
        self.ctx.now = clock();
        let Some(quic) = &mut self.quic else { return };
        let Some(client) = quic.client(lane) else { return };
        quic.receive(&client, self.ctx.now);
        self.serve(&client);
    }

    /// Handles what has happened on QUIC connections.
    fn serve(&mut self, client: &Client) {
        while let Some(link) = client.take_ready() {
            let slot = link.owner.get();
            let Some(conn) = self.conns.get_mut(slot as usize) else {
                // The slot has closed it.
                while link.quic().poll().is_some() {}
                continue;
            };
            let next = conn.receive_h3(&mut self.ctx);
            self.go_on(slot, next);
        }
    }

    /// Has QUIC do what is due, and send what there is to send.
    pub(super) fn run_quic(&mut self) {
        let now = self.ctx.now;
        for lane in 0..self.quic.as_ref().map_or(0, Quic::lanes) {
            if let Some(client) = self.quic.as_ref().and_then(|quic| quic.expire(lane, now)) {
                self.serve(&client);
            }
        }
        let Some(quic) = &self.quic else { return };
        let (mut lost, mut refused) = (Vec::new(), Vec::new());
        quic.flush(now, |slot| lost.push(slot));
        quic.refused(|slot| refused.push(slot));
        for slot in lost {
            self.end(slot, Some(Failure::Read));
        }
        for slot in refused {
            self.refuse(slot);
        }
    }

    /// Ends a connection whose server has no socket at that port.
    fn refuse(&mut self, slot: u32) {
        let Some(conn) = self.conns.get_mut(slot as usize) else { return };
        let kind = match conn.phase {
            Phase::Handshaking => Failure::Connect,
            Phase::Open => Failure::Read,
            _ => return,
        };
        if let Some(origin) = conn.origin_of(self.ctx.load) {
            self.ctx.note(|| format!("{}: connection refused: nobody listens at that UDP port", origin.name));
        }
        self.end(slot, Some(kind));
    }

    /// Returns a connection, unless it has ended since.
    #[inline]
    fn current(&mut self, slot: u32, generation: u32) -> Option<&mut Conn> {
        let conn = self.conns.get_mut(slot as usize)?;
        (conn.generation == generation && conn.transport.is_open()).then_some(conn)
    }

    #[inline]
    fn writable(&mut self, slot: u32, generation: u32) {
        if self.current(slot, generation).is_none() {
            return;
        }
        let Pool { ctx, conns, .. } = self;
        let Some(conn) = conns.get_mut(slot as usize) else { return };
        if conn.transport.has_unsent()
            && let Err(kind) = conn.flush_socket(ctx)
        {
            self.end(slot, Some(kind));
        }
    }

    /// Reads all bytes that have arrived. `last`: the peer will send no more.
    #[inline]
    fn readable(&mut self, slot: u32, generation: u32, last: bool) {
        if self.current(slot, generation).is_none() {
            return;
        }
        let Some(conn) = self.conns.get_mut(slot as usize) else { return };
        let next = conn.receive(&mut self.ctx, &mut self.buffers, last);
        self.go_on(slot, next);
    }

    /// Goes on with a connection that has received something.
    #[inline]
    fn go_on(&mut self, slot: u32, next: Result<Next, Failure>) {
        match next {
            Ok(Next::Wait) => {}
            Ok(Next::Refill) if self.ctx.supply.is_open_loop() => self.fill(slot),
            Ok(Next::Refill) => self.answered.push(slot),
            Ok(Next::Opened) => self.opened(slot),
            Ok(Next::Ended) => self.end(slot, None),
            Err(kind) => self.end(slot, Some(kind)),
        }
    }
}

/// Describes a timeout. `begun`: bytes that came of an answer.
fn silence(begun: Option<u64>, raw: bool, timeout: u64) -> String {
    let within = crate::duration_text(timeout);
    match begun {
        Some(bytes) if raw => {
            format!("{bytes} bytes came within {within}, not a whole answer; --answer sets its end")
        }
        Some(bytes) => format!("{bytes} bytes of content came within {within}, not all"),
        None => format!("no answer within {within}"),
    }
}

/// Returns `true` if connecting counts as a part of a request's time. Then a request is chosen before its connection is
/// made.
fn counts_connecting(load: &Load) -> bool {
    load.per_connection == 1 || load.split
}

/// Deals out connections to threads in turn, and to origins by their weight.
fn slots(load: &Load, index: usize, threads: usize) -> Vec<Conn> {
    let total: u64 = load.origins.iter().map(|o| o.weight).sum::<u64>().max(1);
    let slot = |number: usize| {
        let mut point = (number as u64 * total).checked_div(load.connections as u64).unwrap_or(0);
        let origin = load.origins.iter().position(|o| {
            let here = point < o.weight;
            point = point.saturating_sub(o.weight);
            here
        });
        let origin = origin.unwrap_or(0);
        let length = load.origins.get(origin).map_or(1, |o| o.order.len().max(1));
        // The connections of an origin begin at different places of its order.
        let position = if length > 1 { number * length / load.connections } else { 0 };
        Conn::new(origin as u32, position, load.parallel)
    };
    (index..load.connections).step_by(threads).map(slot).collect()
}

/// Copies a TLS configuration, with a session store of its own or none.
fn own_sessions(config: &Arc<ClientConfig>, resume: bool) -> Arc<ClientConfig> {
    let mut config = (**config).clone();
    config.resumption = if resume { Resumption::in_memory_sessions(256) } else { Resumption::disabled() };
    Arc::new(config)
}
