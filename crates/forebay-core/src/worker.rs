//! A worker thread: accepts connections, applies new configurations, shuts down gracefully.

use crate::config::{ListenAddr, Listener};
use crate::counters::Counters;
use crate::front::{self, Accepted, Front, FrontEnd, Idle, PARTING};
use crate::idle_memory::IdleMemory;
use crate::limit::shares::GRACE;
use crate::log::buffers::{self, LogBuffers};
use crate::log::error;
use crate::process::{Applied, ThreadGeneration};
use crate::thread::{ActiveConfig, Parts, Thread};
use crate::trace;
use forebay_conf::error::Level;
use forebay_net::addr::Peer;
use forebay_net::io::Io;
use forebay_net::reactor::{Direct, Handler, Remote, Token};
use forebay_sys::errno::{errno, errno_text};
use forebay_sys::sync::lock;
use rustix::io::Errno;
use rustix::net::SocketFlags;
use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Command from the process to a worker thread.
pub enum Command {
    /// A new configuration. The thread drops the second part once it has applied the first.
    Reload(Box<ThreadGeneration>, Arc<Applied>),
    /// New descriptors for log files.
    Reopen(Arc<Vec<(PathBuf, Arc<OwnedFd>)>>),
    /// Shut down gracefully, at the latest after this time.
    Quit(Option<Duration>),
    /// Shut down at once.
    Stop,
    /// A line for the error log.
    Log(Level, String),
    /// A message to the front end of this number.
    Message(u8, Box<dyn Any + Send>),
}

/// Queue of commands to a thread.
#[derive(Default)]
pub struct Mailbox {
    full: AtomicBool,
    commands: Mutex<Vec<Command>>,
}

impl Mailbox {
    /// Adds a command.
    pub fn push(&self, c: Command) {
        // In this order: a thread that sees the flag finds the command.
        lock(&self.commands).push(c);
        self.full.store(true, Ordering::Release);
    }

    fn take(&self) -> Vec<Command> {
        // Every turn of the loop calls this. The plain load keeps the cache line shared while the queue is empty;
        // `swap` would take it away from the other threads each time.
        if !self.full.load(Ordering::Relaxed) || !self.full.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
        // The flag is cleared before: a command that comes in between sets it again.
        std::mem::take(&mut *lock(&self.commands))
    }
}

/// Arguments of a worker thread.
pub struct Setup {
    /// Number of the thread.
    pub number: usize,
    /// CPUs to run on.
    pub cpus: Vec<usize>,
    /// `worker_connections` of this thread.
    pub connections: usize,
    /// Its share of the first generation.
    pub share: ThreadGeneration,
    /// Counters of all threads.
    pub counters: Arc<Vec<Arc<Counters>>>,
    /// Front ends by number.
    pub front_ends: &'static [&'static dyn FrontEnd],
    /// Commands.
    pub mailbox: Arc<Mailbox>,
    /// Shared memory for buffered log lines, from which the master writes them should this process crash. `None`
    /// buffers them in the thread's own memory.
    pub log_area: Option<Arc<forebay_sys::log_area::Mapped>>,
    /// The process's tokio runtime.
    pub tokio: tokio::runtime::Handle,
    /// Receives the handle of the loop once it is ready, or the error that prevented it.
    pub started: std::sync::mpsc::Sender<io::Result<Remote>>,
}

/// Connections accepted in a row before the loop handles other events.
const ACCEPT_BATCH: usize = 64;

/// Most batches that are accepted from a listener before it is closed.
const LAST_BATCHES: usize = 64;

struct ListenSlot {
    token: Token,
    fd: Arc<OwnedFd>,
    addr: ListenAddr,
    /// Number of the front end that serves its connections.
    front: u8,
    shared: bool,
    /// It takes no new connections; see [`WorkerThread::close_listeners`].
    closing: bool,
}

/// Room for a connection beyond the limit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Room {
    /// Idle connections have been closed.
    Now,
    /// Slow transfers end soon.
    Soon,
    /// All connections stay.
    Never,
}

/// Conditions that end a pause in accepting connections.
#[derive(Clone, Copy)]
struct Pause {
    /// The pause ends when fewer connections than this are open,
    below: usize,
    /// or when more than this are idle: one of them can be closed.
    idle: usize,
    /// The pause ends at this time at the latest: another process may have freed descriptors or memory.
    until: Option<Instant>,
}

/// Delay before the next call after `accept4` failed (nginx: accept_mutex_delay).
const RETRY: Duration = Duration::from_millis(500);

/// Returns the descriptor number at which the reserve for files and upstreams begins. The reserve is an eighth of the
/// limit.
fn reserve(limit: u64, threads: usize) -> RawFd {
    let kept = (limit / 8).clamp(8, 256).saturating_add(threads as u64);
    RawFd::try_from(limit.saturating_sub(kept)).unwrap_or(RawFd::MAX)
}

struct WorkerThread {
    thread: Rc<Thread>,
    /// Front ends by number.
    fronts: Vec<Rc<dyn Front>>,
    mailbox: Arc<Mailbox>,
    /// Listeners by number. Numbers are never reused, so that idle connections can keep theirs across reloads.
    listeners: RefCell<Vec<Option<ListenSlot>>>,
    pause: Cell<Option<Pause>>,
    /// First descriptor number of the reserve for files and upstreams. A connection with such a descriptor is one too
    /// many.
    reserve: RawFd,
    /// Number of open connections at which descriptors reached the reserve; `usize::MAX` until that happens.
    ceiling: Cell<usize>,
    /// Time of the last warning that connections were closed for others.
    full_logged: Cell<Option<Instant>>,
    /// Time of the last warning that new connections wait.
    wait_logged: Cell<Option<Instant>>,
    quit_deadline: Cell<Option<Instant>>,
    /// Time at which a thread that quits takes no further requests.
    parting: Cell<Option<Instant>>,
    /// Some listeners are closing.
    closing: Cell<bool>,
    /// Value of [`Thread::delegated`] that the listeners follow.
    delegated: Cell<Option<u8>>,
    spare: IdleMemory,
}

/// Runs a worker thread until a command ends it. It serves once there is something in `begun`; if that is dropped, the process did not
/// start.
pub fn main(setup: Setup, begun: &std::sync::mpsc::Receiver<()>) {
    if !setup.cpus.is_empty() {
        let _ = forebay_sys::affinity::pin_current_thread(&setup.cpus);
    }
    let tokio = setup.tokio.clone();
    let _context = tokio.enter();
    let io = match Io::new() {
        Ok(io) => {
            if let Some(counters) = setup.counters.get(setup.number) {
                counters.watch(&io);
            }
            Rc::new(io)
        }
        Err(e) => {
            let _ = setup.started.send(Err(e));
            return;
        }
    };
    let started = setup.started.clone();
    let remote = io.poller.remote();
    let worker = WorkerThread::new(io, setup);
    let _ = started.send(Ok(remote));
    if begun.recv().is_ok() {
        worker.run();
    }
}

impl WorkerThread {
    /// Creates the thread with its front ends, and applies the first configuration.
    fn new(io: Rc<Io>, setup: Setup) -> WorkerThread {
        let parts = Parts {
            number: setup.number,
            active: ActiveConfig::new(setup.share.config.clone()),
            log_buffers: LogBuffers::new(setup.log_area),
            all_counters: setup.counters.clone(),
            max_connections: setup.connections,
        };
        let thread = Thread::new(io, parts);
        thread.reactor.on_panic({
            let thread = thread.clone();
            move || report_panic(&thread)
        });
        let fronts = setup.front_ends.iter().zip(0..).map(|(f, number)| f.start(number, &thread));
        let worker = WorkerThread {
            fronts: fronts.collect(),
            mailbox: setup.mailbox,
            listeners: RefCell::default(),
            pause: Cell::new(None),
            reserve: reserve(forebay_sys::limits::descriptors().0, setup.counters.len()),
            ceiling: Cell::new(usize::MAX),
            full_logged: Cell::new(None),
            wait_logged: Cell::new(None),
            quit_deadline: Cell::new(None),
            parting: Cell::new(None),
            closing: Cell::new(false),
            delegated: Cell::new(None),
            spare: IdleMemory::default(),
            thread,
        };
        worker.thread.fronts.replace(worker.fronts.iter().map(Rc::downgrade).collect());
        worker.apply(setup.share);
        worker
    }

    /// Serves until the thread has to end.
    fn run(&self) {
        let thread = &self.thread;
        let ended = catch_unwind(AssertUnwindSafe(|| thread.reactor.run(self)));
        if !matches!(ended, Ok(Ok(()))) {
            // Buffered lines may explain the failure: write them before the process ends.
            let _ = catch_unwind(AssertUnwindSafe(|| thread.error_lines.borrow_mut().flush(thread)));
        }
        match ended {
            Ok(Err(e)) => {
                crate::essential::end(&format!("event loop failed ({}), the process ends", errno(&e)))
            }
            Err(panic) => resume_unwind(panic),
            Ok(Ok(())) => {}
        }
        self.fronts.iter().for_each(|front| front.end());
        if !thread.stopping.get() {
            // What `worker_shutdown_timeout` cuts off is logged. A fast shutdown leaves no line, as in nginx.
            thread.reactor.end_tasks();
        }
        buffers::flush(thread, true);
        thread.error_lines.borrow_mut().flush(thread);
    }

    fn front(&self, number: u8) -> Option<&Rc<dyn Front>> {
        self.fronts.get(usize::from(number))
    }

    /// Applies a configuration. Matches listeners by address first, then replaces everything else in one step.
    fn apply(&self, share: ThreadGeneration) {
        let listeners = self.take_listeners(&share);
        buffers::flush(&self.thread, true);
        self.thread.error_lines.borrow_mut().flush(&self.thread);
        // Lines were written above, while numbers of logs still meant files of the former configuration.
        self.thread.log_buffers.borrow_mut().forget(share.generation);
        let active =
            Rc::new(ActiveConfig { config: share.config, listeners, logs: RefCell::new(share.logs) });
        self.thread.active.replace(active.clone());
        crate::pattern::forget();
        self.fronts.iter().for_each(|front| front.apply(&active));
        self.delegate(self.delegated.get());
    }

    /// Has the UDP sockets of a front end read by another process, instead of those of the one before.
    fn delegate(&self, to: Option<u8>) {
        let from = self.delegated.replace(to);
        for s in self.listeners.borrow().iter().flatten().filter(|s| s.addr.is_udp()) {
            if to == Some(s.front) {
                self.thread.io.poller.pause_listener(s.token);
            } else if from == Some(s.front) {
                // It fails where the kernel has no memory. The next change of the configuration tries again.
                let _ = self.thread.io.poller.resume_listener(s.token, s.shared);
            }
        }
    }

    /// Opens the listeners of a configuration, and closes those whose address it does not have. Returns the index in the
    /// configuration for each slot.
    fn take_listeners(&self, share: &ThreadGeneration) -> Vec<Option<usize>> {
        let wanted = &share.config.listeners;
        self.close_listeners(|s| !wanted.iter().any(|l| l.addr == s.addr && !l.outside));
        self.end_moved(wanted);
        let mut slots = self.listeners.borrow_mut();
        let mut map: Vec<Option<usize>> = vec![None; slots.len()];
        for (n, (listener, socket)) in wanted.iter().zip(&share.sockets).enumerate() {
            let Some(socket) = socket else { continue };
            let fd = &socket.0;
            if let (ListenAddr::Inet(_), Some(on)) = (&listener.addr, listener.nodelay) {
                // Accepted connections inherit it, which saves a system call for each.
                let _ = rustix::net::sockopt::set_tcp_nodelay(fd, on);
            }
            let known =
                slots.iter().position(|s| s.as_ref().is_some_and(|s| s.addr == listener.addr && !s.closing));
            // A new slot: numbers of closed ones may still be in use by their connections.
            let number = known.unwrap_or(slots.len());
            if number == slots.len() {
                slots.push(None);
                map.push(None);
            }
            self.take_listener(&mut slots[number], number, listener, socket);
            map[number] = Some(n);
        }
        map
    }

    /// Has a slot accept from a socket. One that does so already stays as it is.
    fn take_listener(
        &self,
        slot: &mut Option<ListenSlot>,
        number: usize,
        listener: &Listener,
        socket: &(Arc<OwnedFd>, bool),
    ) {
        let (fd, shared) = (&socket.0, socket.1);
        if let Some(s) = slot.as_mut().filter(|s| Arc::ptr_eq(&s.fd, fd)) {
            s.front = listener.front;
            return;
        }
        let poller = &self.thread.io.poller;
        if let Some(old) = slot.take() {
            poller.remove(old.token);
        }
        let (addr, front) = (listener.addr.clone(), listener.front);
        // A copy, since the poller owns its descriptors and other threads may use this one.
        match fd.try_clone().and_then(|c| poller.listen(c, number as u32, shared)) {
            Ok(token) => {
                if let Some(front) = self.front(front).filter(|_| addr.is_udp()) {
                    front.listens(number as u32, fd);
                }
                *slot = Some(ListenSlot { token, fd: fd.clone(), addr, front, shared, closing: false });
            }
            Err(e) => {
                let text = format!("cannot listen on {} ({})", listener.text, errno(&e));
                error::log(&self.thread, Level::Alert, &text);
            }
        }
    }

    fn command(&self, c: Command) {
        match c {
            Command::Reload(share, applied) => {
                self.apply(*share);
                drop(applied);
            }
            Command::Reopen(logs) => self.reopen(&logs),
            Command::Quit(timeout) => {
                self.accept_waiting();
                self.stop_accepting();
                self.thread.quitting.set(true);
                let now = Instant::now();
                self.quit_deadline.set(timeout.map(|t| now + t));
                self.parting.set(Some(now + PARTING));
                self.fronts.iter().for_each(|front| front.quit());
                self.thread.reactor.wake_all();
            }
            Command::Log(level, line) => error::log(&self.thread, level, &line),
            Command::Message(front, message) => {
                if let Some(front) = self.front(front) {
                    front.message(message);
                }
            }
            Command::Stop => {
                self.stop_accepting();
                self.thread.stopping.set(true);
            }
        }
    }

    /// Replaces descriptors of log files, after it has flushed what is buffered for the former ones.
    fn reopen(&self, logs: &[(PathBuf, Arc<OwnedFd>)]) {
        crate::essential::panic_on_purpose("worker");
        self.thread.error_lines.borrow_mut().flush(&self.thread);
        buffers::flush(&self.thread, true);
        crate::log::files::close();
        let active = self.thread.active();
        let mut current = active.logs.borrow_mut();
        let by_path: HashMap<&Path, &Arc<OwnedFd>> = logs.iter().map(|(p, fd)| (p.as_path(), fd)).collect();
        for (path, slot) in active.config.log_files.iter().zip(current.iter_mut()) {
            if let Some(fd) = by_path.get(path.as_path()) {
                *slot = Arc::clone(fd);
            }
        }
        drop(current);
        self.thread.log_buffers.borrow_mut().renew();
    }

    /// Accepts the connections that wait in the queues of listeners: the end of the last descriptor of a socket would reset them.
    fn accept_waiting(&self) {
        let count = u32::try_from(self.listeners.borrow().len()).unwrap_or(u32::MAX);
        for number in 0..count {
            let udp = |s: &ListenSlot| s.addr.is_udp();
            if self.listeners.borrow().get(number as usize).and_then(Option::as_ref).is_none_or(udp) {
                continue;
            }
            // A bound, since others may keep coming.
            for _ in 0..LAST_BATCHES {
                let before = self.thread.counters.accepted.get();
                self.accept(number);
                if self.thread.counters.accepted.get() == before {
                    break;
                }
            }
        }
    }

    /// Closes the listeners, except those whose UDP sockets connections still need.
    fn stop_accepting(&self) {
        self.close_listeners(|_| true);
    }

    /// Closes the listeners that `f` selects, or begins to. A UDP socket that connections still need is kept until they have ended.
    fn close_listeners(&self, f: impl Fn(&ListenSlot) -> bool) {
        let mut slots = self.listeners.borrow_mut();
        for (number, slot) in slots.iter_mut().enumerate() {
            let Some(s) = slot.as_mut().filter(|s| f(s)) else { continue };
            s.closing =
                s.addr.is_udp() && self.front(s.front).is_some_and(|front| front.needs_socket(number as u32));
            if !s.closing {
                self.thread.io.poller.remove(s.token);
                *slot = None;
            }
        }
        self.closing.set(slots.iter().flatten().any(|s| s.closing));
    }

    /// Closes UDP listeners whose address another front end has in the configuration. That takes all that comes from now on, so connections
    /// of QUIC do not keep theirs.
    fn end_moved(&self, wanted: &[Listener]) {
        let has_moved =
            |s: &ListenSlot| s.addr.is_udp() && wanted.iter().any(|l| l.addr == s.addr && l.front != s.front);
        for slot in self.listeners.borrow_mut().iter_mut() {
            if let Some(s) = slot.take_if(|s| has_moved(s)) {
                self.thread.io.poller.remove(s.token);
            }
        }
    }

    fn connections(&self) -> usize {
        self.thread.counters.active.get() as usize
    }

    /// Closes some idle connections to make room for others; [`front::choose_idle`] chooses them. Without any it marks slow
    /// transfers to be dropped.
    fn make_room(&self) -> Room {
        let max = self.thread.max_connections;
        let now = self.thread.clock.now();
        let mut waiting: Vec<Idle> = Vec::with_capacity(self.thread.io.poller.idle());
        // Numbers of the front ends, with the index behind the last connection of each.
        let mut ends = Vec::with_capacity(self.fronts.len());
        for front in &self.fronts {
            front.idle(now, &mut waiting);
            ends.push(waiting.len());
        }
        if waiting.is_empty() {
            if self.thread.transfers.give_up(now) == 0 {
                return Room::Never;
            }
            self.thread.reactor.wake_all();
            return Room::Soon;
        }
        for number in front::choose_idle(&waiting, max) {
            let front = ends.iter().position(|end| number < *end).and_then(|n| self.fronts.get(n));
            if let (Some(front), Some(idle)) = (front, waiting.get(number)) {
                front.close_idle(idle.place);
                self.thread.counters.evicted.add(1);
            }
        }
        Room::Now
    }

    /// Logs that there was no room, each outcome at most once a second. `short`: of descriptors.
    fn log_full(&self, short: bool, room: Room) {
        let (logged, outcome) = match room {
            Room::Now | Room::Soon => (&self.full_logged, "reusing connections"),
            Room::Never => (&self.wait_logged, "new connections wait"),
        };
        let now = self.thread.clock.now();
        if logged.get().is_some_and(|t| now < t + Duration::from_secs(1)) {
            return;
        }
        logged.set(Some(now));
        let reason = match short {
            true => format!("descriptors are not enough for more than {} connections", self.connections()),
            false => format!("{} worker_connections are not enough", self.thread.max_connections),
        };
        error::log(&self.thread, Level::Warn, &format!("{reason}, {outcome}"));
    }

    /// Gives connections to the listeners that other listeners have passed them to.
    fn hand_over(&self) {
        loop {
            // A statement of its own: the front end may pass the connection on again.
            let passed = self.thread.passed.borrow_mut().pop();
            let Some((front, passed)) = passed else { return };
            if let Some(front) = self.front(front) {
                front.take_over(passed);
            }
        }
    }

    /// Stops accepting for now. New connections stay in the kernel's queue. Datagrams are still received: they need no place where
    /// there is a session.
    fn pause(&self, until: Option<Instant>) {
        self.pause.set(Some(Pause { below: self.connections(), idle: self.thread.io.poller.idle(), until }));
        for s in self.listeners.borrow().iter().flatten().filter(|s| !s.addr.is_udp()) {
            self.thread.io.poller.pause_listener(s.token);
        }
    }

    /// Accepts again if there may be room.
    fn resume_accepting(&self, now: Instant) {
        let Some(pause) = self.pause.get() else { return };
        let room = self.connections() < pause.below || self.thread.io.poller.idle() > pause.idle;
        if !room && pause.until.is_none_or(|t| now < t) {
            return;
        }
        self.pause.set(None);
        for s in self.listeners.borrow().iter().flatten().filter(|s| !s.addr.is_udp()) {
            if self.thread.io.poller.resume_listener(s.token, s.shared).is_err() {
                // The next attempt resumes all listeners again.
                self.pause.set(Some(Pause { below: 0, idle: usize::MAX, until: Some(now + RETRY) }));
            }
        }
    }

    /// Logs a failure of `accept4` and pauses. The cause may be temporary (out of descriptors or memory) or not.
    fn accept_failed(&self, e: Errno) {
        let short = matches!(e, Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM);
        let level = if short { Level::Crit } else { Level::Alert };
        let text = errno_text(e);
        error::log(&self.thread, level, &format!("accept4() failed {text}"));
        self.pause(Some(self.thread.clock.now() + RETRY));
    }

    fn full(&self) -> bool {
        self.connections() >= self.thread.max_connections.min(self.ceiling.get())
    }

    /// Makes room for one more connection if necessary. Returns `false` if there is none.
    fn may_accept(&self) -> bool {
        if !self.full() {
            return true;
        }
        // If descriptors rather than `worker_connections` run short, close cached files before connections.
        let short = self.connections() < self.thread.max_connections;
        if short && self.fronts.iter().any(|front| front.shed()) {
            return true;
        }
        let gives_way = self.fronts.iter().any(|front| front.give_way());
        let room = if gives_way { Room::Now } else { self.make_room() };
        self.log_full(short, room);
        room == Room::Now
    }

    /// Adjusts the ceiling after a connection was accepted; `crowded` if its descriptor is one of the reserve. A
    /// descriptor below the reserve alone does not lift the ceiling, since it may have belonged to a connection that
    /// was closed to make room.
    fn learn_ceiling(&self, crowded: bool) {
        let (open, ceiling) = (self.connections(), self.ceiling.get());
        if crowded {
            self.ceiling.set(open.min(ceiling).max(1));
        } else if open > ceiling || open < ceiling / 2 {
            self.ceiling.set(usize::MAX);
        }
    }

    fn open(&self, sock: OwnedFd, peer: Peer, listener: u32, bound: Bound) {
        // Counted before the front end has it: it may close the connection at once.
        self.thread.counters.accepted.add(1);
        self.thread.counters.handled.add(1);
        self.thread.counters.active.add(1);
        // Elsewhere the address of the listener is the local address: no system call.
        let local = if bound.is_wildcard { rustix::net::getsockname(&sock).ok() } else { None };
        let local = local.and_then(|a| std::net::SocketAddr::try_from(a).ok());
        let (peer, local) = trace::world().map_or((peer, local), |world| (world.client, world.local));
        let token = self.thread.io.poller.insert(sock);
        let number = crate::thread::next_connection();
        let accepted = Accepted { token, number, peer, local, listener };
        if let Some(front) = self.front(bound.front) {
            front.accept(accepted);
        }
    }
}

/// Facts about a listener that its connections depend on.
#[derive(Clone, Copy)]
struct Bound {
    /// Number of the front end.
    front: u8,
    /// It takes connections to any local address.
    is_wildcard: bool,
}

impl Handler for WorkerThread {
    fn accept(&self, listener: u32) {
        let (fd, udp, bound) = match self.listeners.borrow().get(listener as usize) {
            Some(Some(s)) => {
                let bound = Bound { front: s.front, is_wildcard: s.addr.is_wildcard() };
                (s.fd.clone(), s.addr.is_udp(), bound)
            }
            _ => return,
        };
        if udp {
            if let Some(front) = self.front(bound.front) {
                front.datagrams(listener, &fd);
            }
            return;
        }
        for i in 0..ACCEPT_BATCH {
            if i > 0 && self.full() {
                // It is unknown whether another connection waits in the queue, so close none for it. If one does, the
                // loop reports another event.
                return;
            }
            if !self.may_accept() {
                // Try again when some of the waiting clients have been slow for long enough to be dropped.
                let waiting = self.thread.io.poller.idle() > 0 || !self.thread.transfers.is_empty();
                self.pause(waiting.then(|| self.thread.clock.now() + GRACE));
                return;
            }
            match accept_from(&fd) {
                Ok(None) => {}
                Ok(Some((sock, peer))) => {
                    // The kernel gives the lowest free number: a high one means that all below it are in use.
                    let crowded = sock.as_raw_fd() >= self.reserve;
                    self.open(sock, peer, listener, bound);
                    self.learn_ceiling(crowded);
                }
                Err(Errno::AGAIN) => return,
                Err(e) => {
                    self.accept_failed(e);
                    return;
                }
            }
        }
    }

    fn resume(&self, front: u8, token: Token) {
        if let Some(front) = self.front(front) {
            front.resume(token);
        }
    }

    fn expired(&self, front: u8, token: Token) {
        if let Some(front) = self.front(front) {
            front.expired(token);
        }
    }

    fn start_queued(&self, front: u8) {
        if let Some(front) = self.front(front) {
            front.start_queued();
        }
    }

    fn set_aside_ended(&self, token: Token, owner: u32) {
        self.fronts.iter().for_each(|front| front.set_aside_ended(token, owner));
    }

    fn step(&self, direct: Direct) {
        if let Some(front) = self.front(direct.front) {
            front.step(direct);
        }
    }

    fn tick(&self, now: Instant) {
        self.thread.clock.tick(now);
    }

    fn noticed(&self, number: u32) {
        self.fronts.iter().for_each(|front| front.noticed(number));
    }

    fn turn(&self) {
        self.hand_over();
        if self.closing.get() {
            self.close_listeners(|s| s.closing);
        }
        let now = self.thread.io.poller.now();
        for c in self.mailbox.take() {
            self.command(c);
        }
        if self.thread.log_buffers.borrow().due.is_some_and(|d| d <= now) {
            buffers::flush(&self.thread, false);
        }
        self.resume_accepting(now);
        self.spare.turn(&self.thread.io, &self.fronts, now, |work| drop(tokio::task::spawn_blocking(work)));
        if self.parting.get().is_some_and(|at| at <= now) {
            self.parting.set(None);
            self.thread.parted.set(true);
            self.fronts.iter().for_each(|front| front.part());
            self.thread.reactor.wake_all();
        }
        let delegated = self.thread.delegated.get();
        if delegated != self.delegated.get() {
            self.delegate(delegated);
        }
    }

    fn before_wait(&self, busy: bool) -> bool {
        self.hand_over();
        self.thread.error_lines.borrow_mut().flush(&self.thread);
        let gathered = self.thread.log_buffers.borrow().gathered_at();
        let Some(since) = gathered else { return false };
        if busy && self.thread.io.poller.now().saturating_duration_since(since) < buffers::GATHER {
            return true;
        }
        buffers::flush_gathered(&self.thread);
        false
    }

    fn due(&self) -> Option<Instant> {
        let logs = self.thread.log_buffers.borrow().due;
        let accept = self.pause.get().and_then(|p| p.until);
        let next = [logs, accept, self.quit_deadline.get(), self.parting.get(), self.spare.due()];
        next.into_iter().flatten().min()
    }

    fn finished(&self) -> bool {
        self.thread.stopping.get()
            || (self.thread.quitting.get()
                && ((self.connections() == 0 && !self.fronts.iter().any(|front| front.has_background()))
                    || self.quit_deadline.get().is_some_and(|d| Instant::now() >= d)))
    }
}

/// Accepts a connection. `Ok(None)`: it ended before it was accepted.
fn accept_from(listener: &OwnedFd) -> Result<Option<(OwnedFd, Peer)>, Errno> {
    match rustix::net::acceptfrom_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
        Ok((sock, addr)) => {
            let addr = addr.and_then(|a| std::net::SocketAddr::try_from(a).ok());
            Ok(Some((sock, addr.map_or(Peer::Unix, Peer::Inet))))
        }
        // Linux passes errors of a new connection on here (accept(2)): CONNABORTED, PROTO. The listener is in order.
        Err(Errno::INTR | Errno::CONNABORTED | Errno::PROTO) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Counts and logs the panic of a task of a thread.
fn report_panic(thread: &Thread) {
    thread.counters.panics.add(1);
    let text =
        format!("a request caused a panic; its connection was closed ({})", crate::essential::last_panic());
    error::log(thread, Level::Alert, &text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Build, Config, SocketOptions};
    use crate::front::FrontConfig;
    use forebay_conf::tree::Block;
    use std::net::{TcpListener, TcpStream, UdpSocket};

    thread_local! {
        /// Calls of [`Calls`]: the slot of a listener with the datagram, or nothing for a connection.
        static CALLS: RefCell<Vec<(u32, Vec<u8>)>> = const { RefCell::new(Vec::new()) };
    }

    /// Front end that notes what arrives.
    struct Calls;

    impl FrontEnd for Calls {
        fn block(&self) -> &'static str {
            "calls"
        }
        fn read<'a>(&self, _: u8, _: Option<&Block>, _: Build<'a>) -> (FrontConfig, Build<'a>) {
            unreachable!()
        }
        fn prepare(&self, _: u8, _: &Config) {}
        fn begin(
            &self,
            _: u8,
            _: &Config,
            _: Option<&Config>,
            _: &crate::outside::Outside,
        ) -> Box<dyn Any + Send> {
            Box::new(())
        }
        fn start(&self, _: u8, _: &Rc<Thread>) -> Rc<dyn Front> {
            Rc::new(Calls)
        }
    }

    impl Front for Calls {
        fn accept(&self, connection: Accepted) {
            CALLS.with_borrow_mut(|calls| calls.push((connection.listener, Vec::new())));
        }
        fn datagrams(&self, listener: u32, socket: &Arc<OwnedFd>) {
            let mut buf = [0; 16];
            let (count, _) =
                rustix::net::recv(socket, &mut buf, rustix::net::RecvFlags::empty()).expect("one");
            CALLS.with_borrow_mut(|calls| calls.push((listener, buf[..count].to_vec())));
        }
        fn take_over(&self, _: front::Passed) {}
        fn resume(&self, _: Token) {}
        fn expired(&self, _: Token) {}
        fn start_queued(&self) {}
        fn set_aside_ended(&self, _: Token, _: u32) {}
        fn idle(&self, _: Instant, _: &mut Vec<Idle>) {}
        fn close_idle(&self, _: front::IdlePlace) {}
        fn apply(&self, _: &Rc<ActiveConfig>) {}
        fn quit(&self) {}
        fn end(&self) {}
        fn has_background(&self) -> bool {
            false
        }
        fn shed(&self) -> bool {
            false
        }
        fn noticed(&self, _: u32) {}
        fn message(&self, _: Box<dyn Any + Send>) {}
    }

    /// A thread with listeners of TCP and UDP at one port gives each its own: connections and datagrams.
    #[test]
    fn datagrams_reach_the_front_end() {
        let (worker, at) = with_listeners();
        let _client = TcpStream::connect(at).expect("connected");
        worker.accept(0);
        let client = UdpSocket::bind("127.0.0.1:0").expect("bind");
        client.send_to(b"ping", at).expect("sent");
        worker.accept(1);
        worker.accept(2);
        assert_eq!(CALLS.take(), [(0, Vec::new()), (1, b"ping".to_vec())]);
        assert_eq!(worker.connections(), 1);
    }

    /// The end of its listening socket would reset a connection that waits in the queue.
    #[test]
    fn a_graceful_end_accepts_what_waits() {
        let (worker, at) = with_listeners();
        let _clients = [(); 3].map(|()| TcpStream::connect(at).expect("connected"));
        worker.command(Command::Quit(None));
        assert_eq!(CALLS.take(), [const { (0, Vec::new()) }; 3]);
        assert!(TcpStream::connect(at).is_err(), "it is closed then");
    }

    /// Returns a thread with listeners of TCP and UDP at one port.
    fn with_listeners() -> (WorkerThread, std::net::SocketAddr) {
        let (setup, at) = setup();
        (WorkerThread::new(Rc::new(Io::new().expect("epoll")), setup), at)
    }

    /// A client that has waited for the process is served only after the background work has begun.
    #[test]
    fn clients_wait_for_the_background_work() {
        let (mut setup, at) = setup();
        let (started, ready) = std::sync::mpsc::channel();
        let (begin, begun) = std::sync::mpsc::channel();
        setup.started = started;
        let (counters, mailbox) = (setup.counters.clone(), setup.mailbox.clone());
        let accepted = || counters[0].accepted.get();
        let _client = TcpStream::connect(at).expect("connected");
        let thread = std::thread::spawn(move || main(setup, &begun));
        let remote = ready.recv().expect("a result").expect("a thread");
        let (since, limit) = (Instant::now(), Duration::from_secs(10));
        while since.elapsed() < Duration::from_millis(100) {
            assert_eq!(accepted(), 0);
            std::thread::yield_now();
        }
        begin.send(()).expect("it waits");
        while accepted() == 0 {
            assert!(since.elapsed() < limit, "not served");
            std::thread::yield_now();
        }
        mailbox.push(Command::Stop);
        remote.wake();
        thread.join().expect("an end");
    }

    fn setup() -> (Setup, std::net::SocketAddr) {
        let tcp = TcpListener::bind("127.0.0.1:0").expect("bind");
        tcp.set_nonblocking(true).expect("option");
        let at = tcp.local_addr().expect("bound");
        let udp = UdpSocket::bind(at).expect("bind");
        udp.set_nonblocking(true).expect("option");
        let listener = |addr| Listener::new(addr, SocketOptions::default(), 0, Default::default());
        let listeners = vec![listener(ListenAddr::Inet(at)), listener(ListenAddr::Udp(at))];
        let socket = |fd: OwnedFd| Some((Arc::new(fd), false));
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("runtime");
        let setup = Setup {
            number: 0,
            cpus: Vec::new(),
            connections: 8,
            share: ThreadGeneration {
                config: Arc::new(Config { listeners, ..Config::default() }),
                sockets: vec![socket(tcp.into()), socket(udp.into())],
                logs: Vec::new(),
                generation: 1,
            },
            counters: Arc::new(vec![Arc::default()]),
            front_ends: &[&Calls],
            mailbox: Arc::default(),
            log_area: None,
            tokio: runtime.handle().clone(),
            started: std::sync::mpsc::channel().0,
        };
        (setup, at)
    }

    #[test]
    fn the_reserve_leaves_most_descriptors_to_connections() {
        assert_eq!(reserve(40, 1), 31);
        assert_eq!(reserve(1024, 4), 892);
        assert_eq!(reserve(1_048_576, 4), 1_048_316);
        assert_eq!(reserve(u64::MAX, 4), RawFd::MAX);
        assert_eq!(reserve(4, 1), 0);
    }
}
