//! One thread's loop: an epoll set, slots with connections, a schedule. Hot path.

use super::conn::{Body, Conn, Flight, Phase, connect};
use super::h1::Template;
use super::h2::H2;
use super::{TICK, ThreadResult, Times};
use crate::histogram::Coarse;
use crate::load::{Load, Protocol, Stop};
use crate::record::{Failure, Record, Sample, ThreadUse};
use crate::schedule::Schedule;
use crate::{Error, clock, thread_cpu};
use rustix::event::{PollFd, PollFlags, Timespec, epoll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags};
use rustls::ClientConnection;
use rustls::client::Resumption;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io::{BufRead, Write};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

/// Bytes of one read.
const READ: usize = 64 * 1024;
/// Bytes that the kernel may drop in one call, when nobody wants to see them.
const DROP: usize = 4 << 20;
/// From how many bytes on that pays.
const DROP_FROM: u64 = 48 * 1024;
/// Content that is kept of an answer for checks.
const CONTENT: usize = 16 << 20;
/// Connections of a thread in the making at once: more would overflow backlogs.
const CONNECTING: usize = 128;
/// Pauses after a failed connection, ns.
const BACKOFF: (u64, u64) = (1_000_000, 100_000_000);
/// How late a request may leave so that those that are due together leave together, ns: waking for each one would cost
/// more than sending it.
const GRAIN: u64 = 50_000;
/// Events of one turn.
const EVENTS: usize = 512;

/// Adds what fits.
pub fn append_limited(to: &mut Vec<u8>, content: &[u8]) {
    let room = CONTENT.saturating_sub(to.len()).min(content.len());
    to.extend_from_slice(content.get(..room).unwrap_or_default());
}

/// What all connections of the thread share.
pub struct Ctx<'a> {
    pub load: &'a Load,
    pub record: Record,
    pub templates: Vec<Template>,
    pub keep_content: bool,
    pub now: u64,
    pub think: u64,
    times: Times,
    issuing: bool,
    /// Requests that may still be sent.
    budget: Option<u64>,
    in_flight: usize,
    connecting: usize,
    schedule: Option<Schedule>,
    next_due: u64,
    again: Vec<Flight>,
    learned: Option<u64>,
    last_answer: u64,
    interval: Interval,
    /// Since when no connection could be made; `None`: the last one stood.
    failing_since: Option<u64>,
    first_error: Option<String>,
}

#[derive(Default)]
struct Interval {
    complete: u64,
    errors: u64,
    bytes: u64,
    latency: Coarse,
}

impl Ctx<'_> {
    /// The next request, if one is due.
    #[inline]
    fn next_work(&mut self) -> Option<Flight> {
        if !self.issuing {
            return None;
        }
        if let Some(flight) = self.again.pop() {
            self.in_flight += 1;
            return Some(flight);
        }
        let due = match &mut self.schedule {
            None => self.now,
            Some(schedule) => {
                let due = self.next_due;
                if due > self.now || due >= self.times.end {
                    return None;
                }
                self.next_due = self.times.start + schedule.following();
                due
            }
        };
        if let Some(left) = &mut self.budget
            && due >= self.times.from
        {
            if *left == 0 {
                return None;
            }
            *left -= 1;
        }
        if self.schedule.is_some() && due >= self.times.from {
            self.record.due += 1;
        }
        self.in_flight += 1;
        Some(Flight { due, start: self.now, request: u32::MAX })
    }

    fn in_window(&self, flight: Flight) -> bool {
        flight.due >= self.times.from
    }

    /// An answer is whole.
    #[inline]
    pub fn answered(&mut self, flight: Flight, status: u16, length: u64, content: &[u8]) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.last_answer = self.now;
        let latency = self.now.saturating_sub(flight.due);
        self.interval.complete += 1;
        self.interval.latency.record(latency);
        if (self.times.from..=self.times.end).contains(&self.now) {
            self.record.in_time += 1;
            self.record.body_in += length;
        }
        if !self.in_window(flight) {
            return;
        }
        self.record.complete += 1;
        self.record.latency.record(latency);
        if self.schedule.is_some() {
            self.record.uncorrected.record(self.now.saturating_sub(flight.start));
        }
        if let Some(count) = self.record.statuses.get_mut(status as usize) {
            *count += 1;
        }
        match self.judge(flight, status, length, content) {
            None => self.record.ok += 1,
            Some(kind) => {
                self.record.fail(kind);
                self.interval.errors += 1;
                if self.first_error.is_none() {
                    self.first_error = Some(match kind {
                        Failure::Status => format!("status {status}"),
                        Failure::Length => format!("{length} bytes of content"),
                        _ => "content without what was expected".to_owned(),
                    });
                }
            }
        }
    }

    fn judge(&mut self, flight: Flight, status: u16, length: u64, content: &[u8]) -> Option<Failure> {
        let checks = &self.load.checks;
        if !checks.status_ok(status) {
            return Some(Failure::Status);
        }
        let mut wanted = checks.length;
        if checks.same_length {
            wanted = Some(*self.learned.get_or_insert(length));
        }
        if wanted.is_some_and(|n| n != length) && !self.is_head(flight) {
            return Some(Failure::Length);
        }
        let text = checks.contains.as_deref()?;
        let found = text.is_empty() || content.windows(text.len()).any(|w| w == text);
        (!found).then_some(Failure::Body)
    }

    pub fn is_head(&self, flight: Flight) -> bool {
        self.load.requests.get(flight.request as usize).is_some_and(|r| r.head)
    }

    /// A request came to nothing.
    pub fn failed(&mut self, flight: Flight, kind: Failure) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.interval.errors += 1;
        // What began in the warm-up and hung until the measured time is a part of that.
        let silent = matches!(kind, Failure::Timeout | Failure::Unanswered);
        let counts = self.in_window(flight) || silent && self.now >= self.times.from;
        if !counts {
            return;
        }
        self.record.fail(kind);
        // The age of what was never answered is a latency that somebody had at least.
        if silent {
            self.record.latency.record(self.now.saturating_sub(flight.due));
            if self.schedule.is_some() {
                self.record.uncorrected.record(self.now.saturating_sub(flight.start));
            }
        }
    }

    /// A request that the server did not take is sent again.
    pub fn again(&mut self, flight: Flight) {
        self.in_flight = self.in_flight.saturating_sub(1);
        self.record.retried += 1;
        self.again.push(flight);
    }

    /// A failure that belongs to no request.
    fn fail(&mut self, kind: Failure) {
        if self.now >= self.times.from || kind == Failure::Connect || kind == Failure::Tls {
            self.record.fail(kind);
        }
        self.interval.errors += 1;
    }

    fn note(&mut self, text: impl FnOnce() -> String) {
        if self.first_error.is_none() {
            self.first_error = Some(text());
        }
    }

    /// Whether a request of an open loop should have left.
    fn open_due(&self, now: u64) -> bool {
        self.schedule.is_some()
            && self.next_due <= now
            && self.next_due < self.times.end
            && self.budget != Some(0)
    }

    fn may_issue(&self) -> bool {
        self.issuing && self.budget != Some(0)
    }
}

/// One thread.
pub struct Worker<'a> {
    ctx: Ctx<'a>,
    conns: Vec<Conn>,
    epoll: OwnedFd,
    buf: Vec<u8>,
    dropped: Vec<u8>,
    plain: Vec<u8>,
    free: VecDeque<u32>,
    /// Connections whose answers came in this turn, in a closed loop.
    answered: Vec<u32>,
    queue: VecDeque<u32>,
    timers: BinaryHeap<Reverse<(u64, u32)>>,
    tls: Option<Arc<rustls::ClientConfig>>,
    index: usize,
    sender: Sender<Sample>,
}

impl<'a> Worker<'a> {
    pub fn new(
        load: &'a Load,
        index: usize,
        threads: usize,
        sender: Sender<Sample>,
    ) -> Result<Worker<'a>, Error> {
        let epoll =
            epoll::create(epoll::CreateFlags::CLOEXEC).map_err(|e| Error::Io("epoll".into(), e.into()))?;
        let share = |n: u64| n / threads as u64 + u64::from((index as u64) < n % threads as u64);
        let span = match load.stop {
            Stop::After(time) | Stop::Count(_, Some(time)) => (time + load.warmup).as_nanos() as u64,
            Stop::Count(_, None) => 1,
        };
        let budget = match load.stop {
            Stop::Count(n, _) => Some(share(n)),
            Stop::After(_) => None,
        };
        let ctx = Ctx {
            load,
            record: Record::default(),
            templates: load.requests.iter().map(|_| Template::default()).collect(),
            keep_content: load.checks.contains.is_some(),
            now: clock(),
            think: load.think.as_nanos() as u64,
            times: Times { start: 0, from: 0, end: 0 },
            issuing: true,
            budget,
            in_flight: 0,
            connecting: 0,
            schedule: load.rate.map(|rate| Schedule::new(rate, span, index, threads, load.seed)),
            next_due: 0,
            again: Vec::new(),
            learned: None,
            last_answer: 0,
            interval: Interval::default(),
            failing_since: None,
            first_error: None,
        };
        // Connections are dealt out to threads in turn, and to origins by their weight.
        let total: u64 = load.origins.iter().map(|o| o.weight).sum::<u64>().max(1);
        let mut conns = Vec::new();
        for number in (index..load.connections).step_by(threads) {
            let mut point = (number as u64 * total).checked_div(load.connections as u64).unwrap_or(0);
            let origin = load.origins.iter().position(|o| {
                let here = point < o.weight;
                point = point.saturating_sub(o.weight);
                here
            });
            let origin = origin.unwrap_or(0);
            let length = load.origins.get(origin).map_or(1, |o| o.order.len().max(1));
            let mut position = (number * length) / load.connections;
            if length <= 1 {
                position = 0;
            }
            conns.push(Conn::new(origin as u32, position, load.parallel));
        }
        let tls = load.tls.as_ref().map(|config| {
            let mut config = (**config).clone();
            config.resumption =
                if load.resume { Resumption::in_memory_sessions(256) } else { Resumption::disabled() };
            Arc::new(config)
        });
        Ok(Worker {
            ctx,
            conns,
            epoll,
            buf: vec![0; READ],
            dropped: vec![0; DROP],
            plain: Vec::new(),
            free: VecDeque::new(),
            answered: Vec::new(),
            queue: VecDeque::new(),
            timers: BinaryHeap::new(),
            tls,
            index,
            sender,
        })
    }

    pub fn run(mut self, times: Times, stop: &AtomicBool) -> Result<ThreadResult, Error> {
        // Sleeps end when they should, not up to 50 us later.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        self.ctx.times = times;
        self.ctx.now = clock();
        if let Some(schedule) = &mut self.ctx.schedule {
            self.ctx.next_due = times.start + schedule.following();
        }
        for slot in 0..self.conns.len() as u32 {
            self.start(slot);
        }
        let timeout = self.ctx.load.timeout.as_nanos() as u64;
        let drain = self.ctx.load.drain.unwrap_or(self.ctx.load.timeout).as_nanos() as u64;
        let scan_every = (timeout / 20).clamp(5_000_000, TICK);
        let (mut next_tick, mut next_scan) = (times.start + TICK, times.start + scan_every);
        let (mut last_tick, mut last_cpu) = (times.start, thread_cpu());
        let mut usage = None;
        let mut stopped = None;
        let mut drain_until = u64::MAX;
        let mut events: Vec<epoll::Event> = Vec::with_capacity(EVENTS);
        loop {
            let now = clock();
            self.ctx.now = now;
            if usage.is_none() && now >= times.from {
                usage = Some(Usage::now());
            }
            let halt = stop.load(Ordering::Relaxed);
            if stopped.is_none() && (now >= times.end || halt) {
                self.ctx.times.end = self.ctx.times.end.min(now);
                stopped = Some((now.min(times.end), usage.unwrap_or_else(Usage::now).until_now()));
                drain_until = now.saturating_add(if halt { 0 } else { drain });
            }
            // In an open loop what was due before the end is still sent.
            let waiting = self.ctx.schedule.is_some() && self.ctx.next_due < self.ctx.times.end && !halt;
            if self.ctx.issuing && stopped.is_some() && !waiting {
                self.ctx.issuing = false;
                self.close_idle();
            }
            let spent = self.ctx.budget == Some(0) && self.ctx.again.is_empty();
            let over = stopped.is_some() && now >= drain_until;
            if over || (!self.ctx.issuing || spent || self.is_hopeless(timeout)) && self.ctx.in_flight == 0 {
                break;
            }
            while self.ctx.issuing && self.ctx.open_due(now) {
                let Some(slot) = self.free.pop_front() else { break };
                if let Some(conn) = self.conns.get_mut(slot as usize) {
                    conn.in_free = false;
                    conn.waited = true;
                }
                self.fill(slot);
            }
            while let Some(Reverse((at, slot))) = self.timers.peek().copied() {
                if at > now {
                    break;
                }
                self.timers.pop();
                self.start(slot);
            }
            while self.ctx.connecting < CONNECTING
                && let Some(slot) = self.queue.pop_front()
            {
                self.connect(slot);
            }
            if now >= next_scan {
                self.scan(timeout);
                next_scan = now + scan_every;
            }
            if now >= next_tick {
                let cpu = thread_cpu();
                self.report(last_tick, cpu - last_cpu);
                (last_tick, last_cpu, next_tick) = (now, cpu, now + TICK);
            }
            let mut until = next_tick.min(next_scan);
            if !self.free.is_empty() && self.ctx.issuing && self.ctx.open_due(u64::MAX) {
                until = until.min(self.ctx.next_due.max(now + GRAIN));
            }
            if let Some(Reverse((at, _))) = self.timers.peek() {
                until = until.min(*at);
            }
            if stopped.is_none() {
                until = until.min(times.end);
            } else {
                until = until.min(drain_until);
            }
            self.wait(&mut events, until)?;
            for event in &events {
                // Fields of a packed struct cannot be borrowed.
                let (data, flags) = (event.data, event.flags);
                let (slot, generation) = (data.u64() as u32, (data.u64() >> 32) as u32);
                self.event(slot, generation, flags);
            }
            // All answers of a turn are read before the next requests leave, as wrk does it. In answer to each at once,
            // the server would find fewer together, wake more often for the same work and so do less of it.
            for at in 0..self.answered.len() {
                let Some(&slot) = self.answered.get(at) else { break };
                self.ctx.now = clock();
                self.fill(slot);
            }
            self.answered.clear();
        }
        self.ctx.now = clock();
        let (end, used) = stopped.unwrap_or_else(|| {
            // Until the last answer, or until it was given up.
            let last = if self.ctx.record.complete > 0 { self.ctx.last_answer } else { self.ctx.now };
            (last.max(times.from), usage.unwrap_or_else(Usage::now).until_now())
        });
        // Who stops a closed loop does not wait for what is under way; nobody was let down by that.
        let given_up = stop.load(Ordering::Relaxed) && self.ctx.schedule.is_none();
        self.leave(given_up);
        let cpu = thread_cpu();
        self.report(last_tick, cpu.saturating_sub(last_cpu));
        let measured = end.saturating_sub(times.from);
        let used = ThreadUse { wall: measured, ..used };
        let head = self.ctx.templates.first().map(|t| t.bytes.clone()).unwrap_or_default();
        Ok(ThreadResult { record: self.ctx.record, used, measured, first_error: self.ctx.first_error, head })
    }

    /// Whether a run that ends with a number of requests will never see its end: no connection stands, and none could be
    /// made for as long as one may take.
    fn is_hopeless(&self, timeout: u64) -> bool {
        self.ctx.budget.is_some()
            && self.ctx.failing_since.is_some_and(|t| self.ctx.now.saturating_sub(t) >= timeout)
            && !self.conns.iter().any(|c| c.phase == Phase::Open)
    }

    fn wait(&mut self, events: &mut Vec<epoll::Event>, until: u64) -> Result<(), Error> {
        let left = until.saturating_sub(clock());
        let time = Timespec { tv_sec: (left / 1_000_000_000) as i64, tv_nsec: (left % 1_000_000_000) as _ };
        events.clear();
        // epoll_wait(2) rounds up to milliseconds, too coarse for a schedule, and epoll_pwait2(2) needs Linux 5.11:
        // ppoll(2) sleeps, where there is nothing to do at once.
        let precise = left > 0 && (self.ctx.schedule.is_some() || !self.timers.is_empty());
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        let timeout = if precise { &at_once } else { &time };
        let mut result = epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), Some(timeout));
        if precise && result == Ok(0) {
            let mut ready = [PollFd::new(&self.epoll, PollFlags::IN)];
            result = match rustix::event::poll(&mut ready, Some(&time)) {
                Ok(n) if n > 0 => {
                    epoll::wait(&self.epoll, rustix::buffer::spare_capacity(events), Some(&at_once))
                }
                other => other,
            };
        }
        match result {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(e) => Err(Error::Io("epoll".into(), e.into())),
        }
    }

    /// What is left at the end counts as unanswered, with its age.
    fn leave(&mut self, given_up: bool) {
        let Worker { ctx, conns, .. } = self;
        for conn in conns {
            let h2 = conn.h2.as_deref().map(|h2| h2.flights().collect::<Vec<_>>()).unwrap_or_default();
            for flight in conn.flights.drain(..).chain(conn.first.take()).chain(h2) {
                if !given_up {
                    ctx.failed(flight, Failure::Unanswered);
                }
            }
        }
        // Nobody waited yet for what would have been due later, where the run was given up.
        let end = ctx.times.end.min(ctx.now);
        while ctx.schedule.is_some() && ctx.next_due < end && ctx.budget != Some(0) {
            let flight = Flight { due: ctx.next_due, start: ctx.now, request: 0 };
            ctx.record.due += u64::from(ctx.in_window(flight));
            ctx.failed(flight, Failure::Unanswered);
            if let Some(schedule) = &mut ctx.schedule {
                ctx.next_due = ctx.times.start + schedule.following();
            }
            if let Some(left) = &mut ctx.budget {
                *left -= 1;
            }
        }
    }

    /// Connections without a request are of no more use after the end.
    fn close_idle(&mut self) {
        for conn in &mut self.conns {
            let idle = conn.first.is_none()
                && conn.flights.is_empty()
                && conn.h2.as_deref().is_none_or(|h2| h2.active() == 0);
            if idle {
                if matches!(conn.phase, Phase::Connecting | Phase::Handshaking) {
                    self.ctx.connecting -= 1;
                }
                conn.reset();
            }
        }
    }

    fn report(&mut self, since: u64, cpu: u64) {
        let ctx = &mut self.ctx;
        let interval = std::mem::take(&mut ctx.interval);
        let sample = Sample {
            thread: self.index,
            at: ctx.now.saturating_sub(ctx.times.start),
            warmup: since < ctx.times.from,
            complete: interval.complete,
            errors: interval.errors,
            bytes: interval.bytes,
            cpu,
            span: ctx.now.saturating_sub(since),
            latency: interval.latency,
        };
        // Nobody listens any more when the run was given up.
        let _ = self.sender.send(sample);
    }

    /// Closes what has had no answer for too long.
    fn scan(&mut self, timeout: u64) {
        for slot in 0..self.conns.len() as u32 {
            let Some(conn) = self.conns.get_mut(slot as usize) else { continue };
            let oldest = match conn.phase {
                Phase::Closed | Phase::Waiting => continue,
                Phase::Connecting | Phase::Handshaking => conn.since,
                Phase::Open => {
                    let h2 = conn.h2.as_deref().and_then(|h2| h2.flights().map(|f| f.start).min());
                    match conn.flights.front().map(|f| f.start).or(h2) {
                        Some(start) => start,
                        None => continue,
                    }
                }
            };
            if self.ctx.now.saturating_sub(oldest) >= timeout {
                self.ctx.note(|| format!("no answer within {}", crate::duration_text(timeout)));
                self.end(slot, Some(Failure::Timeout));
            }
        }
    }

    /// Makes a connection, at once or when it is its turn, or uses it.
    fn start(&mut self, slot: u32) {
        let Some(conn) = self.conns.get_mut(slot as usize) else { return };
        match conn.phase {
            Phase::Closed | Phase::Waiting if self.ctx.load.per_connection == 1 || self.ctx.load.split => {
                conn.phase = Phase::Closed;
                self.fill(slot);
            }
            Phase::Closed | Phase::Waiting => {
                conn.phase = Phase::Closed;
                if self.ctx.may_issue() || conn.first.is_some() {
                    self.queue.push_back(slot);
                }
            }
            Phase::Open => self.fill(slot),
            Phase::Connecting | Phase::Handshaking => {}
        }
    }

    /// Sends as many requests as are due and fit.
    fn fill(&mut self, slot: u32) {
        let Worker { ctx, conns, plain, free, queue, timers, .. } = self;
        let Some(conn) = conns.get_mut(slot as usize) else { return };
        let load = ctx.load;
        let open = conn.phase == Phase::Open;
        if !open && (conn.phase != Phase::Closed || conn.first.is_some()) {
            return;
        }
        if !std::mem::take(&mut conn.waited) && open && !conn.in_free {
            // An answer has come just now: until then there was no room, and nobody here was late.
            conn.since = ctx.now;
        }
        if ctx.think > 0 && ctx.schedule.is_none() && conn.gate > ctx.now {
            timers.push(Reverse((conn.gate, slot)));
            return;
        }
        let mut direct = None;
        plain.clear();
        loop {
            let limit = load.per_connection;
            let room = match &conn.h2 {
                _ if !open => true,
                _ if conn.closing || limit > 0 && conn.issued >= limit => false,
                Some(h2) => h2.has_room(load.parallel),
                None => conn.flights.len() < load.parallel,
            };
            if !room {
                break;
            }
            let work = match conn.first.take() {
                Some(work) => work,
                None => match ctx.next_work() {
                    Some(mut work) => {
                        if work.request == u32::MAX {
                            let order = load.origins.get(conn.origin as usize).map_or(&[][..], |o| &o.order);
                            work.request = order.get(conn.position).copied().unwrap_or(0);
                            conn.position += 1;
                            if conn.position >= order.len() {
                                conn.position = 0;
                            }
                        }
                        work
                    }
                    None => {
                        if ctx.schedule.is_some() && ctx.issuing && !conn.in_free {
                            conn.in_free = true;
                            // How late we are for the next request counts from here, not from its due time.
                            conn.since = ctx.now;
                            free.push_back(slot);
                        }
                        break;
                    }
                },
            };
            if !open {
                conn.first = Some(work);
                queue.push_back(slot);
                return;
            }
            if ctx.schedule.is_some() {
                let could = work.due.max(conn.since);
                if work.due >= ctx.times.from {
                    ctx.record.lateness.record(ctx.now.saturating_sub(could));
                }
            }
            conn.issued += 1;
            let Some(request) = load.requests.get(work.request as usize) else { return };
            if let Some(h2) = conn.h2.as_deref_mut() {
                h2.send(ctx, work, plain);
            } else {
                if load.split {
                    (conn.left_at, conn.came_at) = (ctx.now, 0);
                }
                conn.flights.push_back(work);
                if conn.flights.len() == 1 && conn.tls.is_none() && load.parallel == 1 && conn.out.is_empty()
                {
                    direct = Some(request.h1.as_slice());
                    break;
                }
                plain.extend_from_slice(&request.h1);
            }
        }
        let result = match direct {
            Some(bytes) => write_direct(ctx, conn, bytes),
            None if plain.is_empty() => Ok(()),
            None => write(ctx, conn, plain),
        };
        if let Err(kind) = result {
            self.end(slot, Some(kind));
        }
    }

    fn connect(&mut self, slot: u32) {
        let Worker { ctx, conns, epoll, .. } = self;
        let Some(conn) = conns.get_mut(slot as usize) else { return };
        if conn.phase != Phase::Closed || conn.first.is_none() && !ctx.may_issue() {
            return;
        }
        let Some(origin) = ctx.load.origins.get(conn.origin as usize) else { return };
        conn.since = ctx.now;
        conn.phase = Phase::Connecting;
        ctx.connecting += 1;
        let made = connect(&origin.address, ctx.load.receive_buffer);
        let (fd, ready) = match made {
            Ok(made) => made,
            Err(e) => {
                ctx.note(|| format!("{}: {}", origin.name, std::io::Error::from(e)));
                return self.end(slot, Some(Failure::Connect));
            }
        };
        use epoll::EventFlags as F;
        let data = epoll::EventData::new_u64(u64::from(slot) | u64::from(conn.generation) << 32);
        let added = epoll::add(epoll, &fd, data, F::IN | F::OUT | F::RDHUP | F::ET);
        conn.fd = Some(fd);
        if added.is_err() {
            return self.end(slot, Some(Failure::Connect));
        }
        if ready {
            self.connected(slot);
        }
    }

    fn connected(&mut self, slot: u32) {
        let Worker { ctx, conns, tls, .. } = self;
        let Some(conn) = conns.get_mut(slot as usize) else { return };
        let Some(origin) = ctx.load.origins.get(conn.origin as usize) else { return };
        let failed = match conn.fd.as_ref().map(rustix::net::sockopt::socket_error) {
            Some(Ok(Ok(()))) => None,
            Some(Ok(Err(e)) | Err(e)) => Some(e),
            None => Some(Errno::BADF),
        };
        if let Some(e) = failed {
            ctx.note(|| format!("{}: {}", origin.name, std::io::Error::from(e)));
            return self.end(slot, Some(Failure::Connect));
        }
        ctx.record.connect.record(ctx.now.saturating_sub(conn.since));
        ctx.record.connections += 1;
        match (&origin.server_name, tls) {
            (Some(name), Some(config)) => {
                conn.phase = Phase::Handshaking;
                conn.since = ctx.now;
                match ClientConnection::new(Arc::clone(config), name.clone()) {
                    Ok(mut tls) => {
                        tls.set_buffer_limit(None);
                        conn.tls = Some(Box::new(tls));
                    }
                    Err(e) => {
                        ctx.note(|| format!("{}: {e}", origin.name));
                        return self.end(slot, Some(Failure::Tls));
                    }
                }
                if let Err(kind) = flush_tls(ctx, conn) {
                    self.end(slot, Some(kind));
                }
            }
            _ => self.opened(slot),
        }
    }

    fn opened(&mut self, slot: u32) {
        let Worker { ctx, conns, plain, .. } = self;
        let Some(conn) = conns.get_mut(slot as usize) else { return };
        ctx.connecting = ctx.connecting.saturating_sub(1);
        conn.phase = Phase::Open;
        conn.since = ctx.now;
        conn.fails = 0;
        if let Some(tls) = &conn.tls {
            if tls.handshake_kind() == Some(rustls::HandshakeKind::Resumed) {
                ctx.record.resumed += 1;
            }
            if ctx.load.protocol == Protocol::Http2 && tls.alpn_protocol() != Some(b"h2") {
                ctx.note(|| "the server does not speak HTTP/2 over TLS".to_owned());
                return self.end_open(slot, Failure::Tls);
            }
        }
        ctx.failing_since = None;
        if ctx.load.protocol == Protocol::Http2 {
            plain.clear();
            conn.h2 = Some(Box::new(H2::new(plain, ctx.load.parallel)));
            let sent = write(ctx, conn, plain);
            if let Err(kind) = sent {
                return self.end(slot, Some(kind));
            }
        }
        if conn.tls.is_some() {
            // Content that came with the end of the handshake.
            plain.clear();
            let result = decrypt(ctx, conn, plain, &[]).and_then(|()| match plain.is_empty() {
                true => Ok(()),
                false => write(ctx, conn, plain),
            });
            if let Err(kind) = result {
                return self.end(slot, Some(kind));
            }
        }
        if ctx.load.per_connection != 1
            && !ctx.load.split
            && let Some(flight) = &mut conn.first
        {
            flight.start = ctx.now;
        }
        self.fill(slot);
    }

    fn end_open(&mut self, slot: u32, kind: Failure) {
        if let Some(conn) = self.conns.get_mut(slot as usize) {
            conn.phase = Phase::Handshaking;
            self.ctx.connecting += 1;
        }
        self.end(slot, Some(kind));
    }

    /// Ends a connection, for a reason or because it is through, and goes on with the slot.
    fn end(&mut self, slot: u32, why: Option<Failure>) {
        let Worker { ctx, conns, timers, .. } = self;
        let Some(conn) = conns.get_mut(slot as usize) else { return };
        if let Some(kind) = why {
            ctx.note(|| kind.words().to_owned());
        }
        let mut counted = false;
        let making = matches!(conn.phase, Phase::Connecting | Phase::Handshaking);
        if making {
            ctx.connecting = ctx.connecting.saturating_sub(1);
            if why.is_some() {
                ctx.failing_since.get_or_insert(conn.since);
            }
        }
        if let Some(h2) = conn.h2.take() {
            let flights: Vec<Flight> = h2.flights().collect();
            for flight in flights {
                ctx.failed(flight, why.unwrap_or(Failure::Read));
                counted = true;
            }
        }
        // With a failure the oldest request has it; those queued behind it were not looked at by the server.
        let mut first = true;
        while let Some(flight) = conn.flights.pop_front() {
            match why {
                Some(kind) if first => {
                    ctx.failed(flight, kind);
                    counted = true;
                }
                _ => ctx.again(flight),
            }
            first = false;
        }
        if making && let Some(flight) = conn.first.take() {
            ctx.failed(flight, why.unwrap_or(Failure::Connect));
            counted = true;
        }
        if let Some(kind) = why
            && !counted
        {
            ctx.fail(kind);
        }
        conn.reset();
        if making && why.is_some() {
            conn.fails = conn.fails.saturating_add(1);
            conn.phase = Phase::Waiting;
            let pause = BACKOFF.0 << conn.fails.min(10);
            timers.push(Reverse((ctx.now + pause.min(BACKOFF.1), slot)));
            return;
        }
        self.start(slot);
    }

    fn event(&mut self, slot: u32, generation: u32, flags: epoll::EventFlags) {
        use epoll::EventFlags as F;
        let Some(conn) = self.conns.get_mut(slot as usize) else { return };
        if conn.generation != generation || conn.fd.is_none() {
            return;
        }
        self.ctx.now = clock();
        if conn.phase == Phase::Connecting {
            if !flags.intersects(F::OUT | F::ERR | F::HUP) {
                return;
            }
            self.connected(slot);
            // What came with the same event is read below.
            let Some(conn) = self.conns.get_mut(slot as usize) else { return };
            if conn.generation != generation {
                return;
            }
        }
        let Some(conn) = self.conns.get_mut(slot as usize) else { return };
        if flags.contains(F::OUT) && !conn.out.is_empty() {
            let result = flush(&mut self.ctx, conn);
            if let Err(kind) = result {
                return self.end(slot, Some(kind));
            }
        }
        if flags.intersects(F::IN | F::RDHUP | F::HUP | F::ERR) {
            let last = flags.intersects(F::RDHUP | F::HUP | F::ERR);
            match self.read(slot, last) {
                Ok(Read::More) => {}
                Ok(Read::Refill) if self.ctx.schedule.is_some() => self.fill(slot),
                Ok(Read::Refill) => self.answered.push(slot),
                Ok(Read::Opened) => self.opened(slot),
                Ok(Read::Ended) => self.end(slot, None),
                Err(kind) => self.end(slot, Some(kind)),
            }
        }
    }

    /// Reads what is there. `last`: the peer will send no more.
    fn read(&mut self, slot: u32, last: bool) -> Result<Read, Failure> {
        let Worker { ctx, conns, buf, dropped, plain, .. } = self;
        let Some(conn) = conns.get_mut(slot as usize) else { return Ok(Read::More) };
        plain.clear();
        let handshaking = conn.phase == Phase::Handshaking;
        let mut ended = false;
        loop {
            let Some(fd) = &conn.fd else { return Ok(Read::More) };
            // Content that nobody looks at need not leave the kernel.
            if let Body::Length(left) = conn.body
                && left >= DROP_FROM
                && conn.tls.is_none()
                && conn.h2.is_none()
                && !ctx.keep_content
            {
                let most = left.min(DROP as u64) as usize;
                let part = dropped.get_mut(..most).unwrap_or_default();
                match rustix::net::recv(fd, part, RecvFlags::TRUNC) {
                    Ok((_, 0)) => ended = true,
                    Ok((_, n)) => {
                        let n = (n as u64).min(left);
                        count_in(ctx, n);
                        conn.got += n;
                        if left == n {
                            ctx.now = clock();
                        }
                        conn.length_left(ctx, left - n);
                        if n < most as u64 && !last {
                            break;
                        }
                        continue;
                    }
                    Err(Errno::AGAIN) => break,
                    Err(Errno::INTR) => continue,
                    Err(_) => return Err(lost(conn)),
                }
            }
            if !ended {
                match rustix::io::read(fd, buf.as_mut_slice()) {
                    Ok(0) => ended = true,
                    Ok(n) => {
                        let data = buf.get(..n).unwrap_or_default();
                        if conn.tls.is_some() {
                            decrypt(ctx, conn, plain, data)?;
                        } else {
                            count_in(ctx, n as u64);
                            if conn.h2.is_some() {
                                conn.h2_bytes(ctx, plain, data)?;
                            } else {
                                conn.h1_bytes(ctx, data)?;
                            }
                        }
                        if n == READ || last {
                            continue;
                        }
                        break;
                    }
                    Err(Errno::AGAIN) => break,
                    Err(Errno::INTR) => continue,
                    Err(_) => return Err(lost(conn)),
                }
            }
            break;
        }
        if handshaking
            && let Some(tls) = &conn.tls
            && !tls.is_handshaking()
        {
            ctx.record.handshake.record(ctx.now.saturating_sub(conn.since));
            flush_tls(ctx, conn)?;
            if !ended {
                return Ok(Read::Opened);
            }
        }
        if ended {
            if conn.phase == Phase::Handshaking {
                ctx.note(|| "the server closed during the TLS handshake".to_owned());
                return Err(Failure::Tls);
            }
            if conn.h2.is_some() {
                let idle = conn.h2.as_deref().is_none_or(|h2| h2.active() == 0);
                return if idle { Ok(Read::Ended) } else { Err(Failure::Read) };
            }
            return match conn.h1_closed(ctx) {
                Some(kind) if !conn.closing => Err(kind),
                _ => Ok(Read::Ended),
            };
        }
        if !plain.is_empty() {
            let out = std::mem::take(plain);
            let sent = write(ctx, conn, &out);
            *plain = out;
            sent?;
        }
        let limit = ctx.load.per_connection;
        let idle = conn.flights.is_empty() && conn.h2.as_deref().is_none_or(|h2| h2.active() == 0);
        let spent = conn.h2.as_deref().is_some_and(H2::is_ending) || limit > 0 && conn.issued >= limit;
        if conn.closing || spent && idle && conn.phase == Phase::Open {
            return Ok(Read::Ended);
        }
        if conn.tls.as_deref().is_some_and(|tls| tls.wants_write()) {
            flush_tls(ctx, conn)?;
        }
        Ok(if conn.phase == Phase::Open { Read::Refill } else { Read::More })
    }
}

enum Read {
    More,
    Refill,
    Opened,
    Ended,
}

fn count_in(ctx: &mut Ctx<'_>, n: u64) {
    ctx.interval.bytes += n;
    if (ctx.times.from..=ctx.times.end).contains(&ctx.now) {
        ctx.record.bytes_in += n;
    }
}

/// A reset while content came is an answer cut short; before that it is a lost request.
fn lost(conn: &Conn) -> Failure {
    match (conn.phase, conn.body) {
        (Phase::Handshaking, _) => Failure::Tls,
        (_, Body::Length(_) | Body::Chunked) => Failure::Length,
        _ => Failure::Read,
    }
}

fn decrypt(ctx: &mut Ctx<'_>, conn: &mut Conn, plain: &mut Vec<u8>, data: &[u8]) -> Result<(), Failure> {
    let Some(mut tls) = conn.tls.take() else { return Ok(()) };
    let result = (|| {
        let mut data = data;
        let mut first = true;
        while first || !data.is_empty() {
            first = false;
            tls.read_tls(&mut data).map_err(|_| Failure::Tls)?;
            if let Err(e) = tls.process_new_packets() {
                ctx.note(|| match &e {
                    rustls::Error::InvalidCertificate(why) => {
                        format!("the certificate does not verify: {why}; --ca FILE believes others, --insecure any")
                    }
                    other => other.to_string(),
                });
                // The alert should reach the server.
                let _ = tls.write_tls(&mut conn.out);
                return Err(if conn.phase == Phase::Handshaking { Failure::Tls } else { Failure::Read });
            }
            // What the server says at once is for the protocol that is set up when the handshake is over.
            while conn.phase == Phase::Open {
                let mut reader = tls.reader();
                let n = match reader.fill_buf() {
                    Ok(content) if !content.is_empty() => {
                        count_in(ctx, content.len() as u64);
                        if conn.h2.is_some() {
                            conn.h2_bytes(ctx, plain, content)?;
                        } else {
                            conn.h1_bytes(ctx, content)?;
                        }
                        content.len()
                    }
                    // Empty: closed by the peer. An error: nothing there, or closed without an alert; what
                    // that means is seen when the socket ends.
                    _ => break,
                };
                reader.consume(n);
            }
        }
        Ok(())
    })();
    conn.tls = Some(tls);
    result
}

fn write_direct(ctx: &mut Ctx<'_>, conn: &mut Conn, bytes: &[u8]) -> Result<(), Failure> {
    let Some(fd) = &conn.fd else { return Err(Failure::Write) };
    ctx.record.bytes_out += bytes.len() as u64;
    match rustix::net::send(fd, bytes, SendFlags::NOSIGNAL) {
        Ok(n) if n == bytes.len() => Ok(()),
        Ok(n) => {
            conn.out.extend_from_slice(bytes.get(n..).unwrap_or_default());
            Ok(())
        }
        Err(Errno::AGAIN | Errno::INTR) => {
            conn.out.extend_from_slice(bytes);
            Ok(())
        }
        Err(_) => Err(Failure::Write),
    }
}

fn write(ctx: &mut Ctx<'_>, conn: &mut Conn, bytes: &[u8]) -> Result<(), Failure> {
    if let Some(tls) = conn.tls.as_deref_mut() {
        ctx.record.bytes_out += bytes.len() as u64;
        tls.writer().write_all(bytes).map_err(|_| Failure::Write)?;
        return flush_tls(ctx, conn);
    }
    if conn.out.is_empty() {
        return write_direct(ctx, conn, bytes);
    }
    ctx.record.bytes_out += bytes.len() as u64;
    conn.out.extend_from_slice(bytes);
    flush(ctx, conn)
}

fn flush_tls(ctx: &mut Ctx<'_>, conn: &mut Conn) -> Result<(), Failure> {
    if let Some(tls) = conn.tls.as_deref_mut() {
        while tls.wants_write() {
            tls.write_tls(&mut conn.out).map_err(|_| Failure::Write)?;
        }
    }
    flush(ctx, conn)
}

fn flush(_: &mut Ctx<'_>, conn: &mut Conn) -> Result<(), Failure> {
    let Some(fd) = &conn.fd else { return Err(Failure::Write) };
    while conn.out_at < conn.out.len() {
        match rustix::net::send(fd, conn.out.get(conn.out_at..).unwrap_or_default(), SendFlags::NOSIGNAL) {
            Ok(n) => conn.out_at += n,
            Err(Errno::AGAIN) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(_) if conn.phase == Phase::Handshaking => return Err(Failure::Tls),
            Err(_) => return Err(Failure::Write),
        }
    }
    conn.out.clear();
    conn.out_at = 0;
    Ok(())
}

/// What the thread has used so far.
#[derive(Clone, Copy)]
struct Usage {
    cpu: u64,
    delay: u64,
    switches: (u64, u64),
}

impl Usage {
    fn now() -> Usage {
        let text =
            |name: &str| std::fs::read_to_string(format!("/proc/thread-self/{name}")).unwrap_or_default();
        let delay = text("schedstat").split_whitespace().nth(1).and_then(|n| n.parse().ok()).unwrap_or(0);
        let status = text("status");
        let field = |name: &str| {
            let line = status.lines().find_map(|l| l.strip_prefix(name))?;
            line.trim_start_matches(':').trim().parse().ok()
        };
        let switches =
            (field("voluntary_ctxt_switches").unwrap_or(0), field("nonvoluntary_ctxt_switches").unwrap_or(0));
        Usage { cpu: thread_cpu(), delay, switches }
    }

    fn until_now(self) -> ThreadUse {
        let now = Usage::now();
        ThreadUse {
            cpu: None,
            cpu_time: now.cpu.saturating_sub(self.cpu),
            run_delay: now.delay.saturating_sub(self.delay),
            wall: 0,
            switches: (
                now.switches.0.saturating_sub(self.switches.0),
                now.switches.1.saturating_sub(self.switches.1),
            ),
        }
    }
}
