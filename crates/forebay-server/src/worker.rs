//! A worker thread: accepts connections, applies new configurations, shuts down gracefully.

use crate::client::Client;
use crate::config::ListenAddr;
use crate::connection;
use crate::connection::Connection;
use crate::error_log;
use crate::file_cache::{FileCache, SHED};
use crate::file_watch::Watches;
use crate::log_buffers::{self, LogBuffers};
use crate::process::Share;
use crate::thread::{Parts, Thread, ThreadConfig};
use forebay_conf::error::Level;
use forebay_core::counters::Counters;
use forebay_core::limit::shares::{self, Candidate, GRACE};
use forebay_net::addr::Peer;
use forebay_net::io::Io;
use forebay_net::reactor::{Handler, NOTICE_MOUNTS, Remote, Token};
use forebay_net::wire::Wire;
use forebay_sys::errno::errno;
use forebay_sys::sync::lock;
use rustix::io::Errno;
use rustix::net::SocketFlags;
use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Command from the process to a worker thread.
#[derive(Debug)]
pub enum Command {
    /// A new configuration.
    Reload(Box<Share>),
    /// New descriptors for log files.
    Reopen(Arc<Vec<(PathBuf, Arc<OwnedFd>)>>),
    /// Shut down gracefully, at the latest after this time.
    Quit(Option<Duration>),
    /// Shut down at once.
    Stop,
    /// A line for the error log.
    Log(Level, String),
    /// A response to a health check.
    Judge(Box<crate::upstream::health::Question>),
}

/// Queue of commands to a thread.
#[derive(Debug, Default)]
pub struct Mailbox {
    full: AtomicBool,
    commands: Mutex<Vec<Command>>,
}

impl Mailbox {
    /// Adds a command.
    pub fn push(&self, c: Command) {
        lock(&self.commands).push(c);
        self.full.store(true, Ordering::Release);
    }

    fn take(&self) -> Vec<Command> {
        // Every turn of the loop calls this. The plain load keeps the cache line shared while the queue is empty;
        // `swap` would take it away from the other threads each time.
        if !self.full.load(Ordering::Relaxed) || !self.full.swap(false, Ordering::Acquire) {
            return Vec::new();
        }
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
    pub share: Share,
    /// Counters of all threads.
    pub counters: Arc<Vec<Arc<Counters>>>,
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

/// Serial numbers of connections, unique in the process (`$connection`).
static SERIAL: AtomicU64 = AtomicU64::new(0);

/// Connections accepted in a row before the loop handles other events.
const ACCEPT_BATCH: usize = 64;

struct ListenSlot {
    token: Token,
    fd: Arc<OwnedFd>,
    addr: ListenAddr,
    shared: bool,
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
    mailbox: Arc<Mailbox>,
    /// Listeners by number. Numbers are never reused, so that idle connections can keep theirs across reloads.
    listeners: RefCell<Vec<Option<ListenSlot>>>,
    pause: Cell<Option<Pause>>,
    /// First descriptor number of the reserve for files and upstreams. A connection with such a descriptor is one too
    /// many.
    reserve: RawFd,
    /// Number of open connections at which descriptors reached the reserve; `usize::MAX` until that happens.
    ceiling: Cell<usize>,
    /// Time of the last warning that connections run short: at most one is logged a second.
    told: Cell<Option<Instant>>,
    quit_deadline: Cell<Option<Instant>>,
}

/// Runs a worker thread until it is told to end.
pub fn main(setup: Setup) {
    if !setup.cpus.is_empty() {
        let _ = forebay_sys::affinity::pin_current_thread(&setup.cpus);
    }
    let _context = setup.tokio.enter();
    let io = match Io::new() {
        Ok(io) => Rc::new(io),
        Err(e) => {
            let _ = setup.started.send(Err(e));
            return;
        }
    };
    let remote = io.poller.remote();
    let watches = Watches::new(io.poller.epoll().clone(), setup.counters.len());
    let thread = Thread::new(
        io,
        Parts {
            number: setup.number,
            conf: ThreadConfig::new(setup.share.config.clone()),
            files: FileCache::watching(watches),
            log_buffers: LogBuffers::new(setup.log_area),
            all_counters: setup.counters.clone(),
            max_connections: setup.connections,
        },
    );
    let worker = Rc::new(WorkerThread {
        thread: thread.clone(),
        mailbox: setup.mailbox,
        listeners: RefCell::default(),
        pause: Cell::new(None),
        reserve: reserve(forebay_sys::limits::descriptors().0, setup.counters.len()),
        ceiling: Cell::new(usize::MAX),
        told: Cell::new(None),
        quit_deadline: Cell::new(None),
    });
    thread.reactor.on_panic({
        let thread = thread.clone();
        move || report_panic(&thread)
    });
    worker.apply(setup.share);
    let _ = setup.started.send(Ok(remote));
    let ended = catch_unwind(AssertUnwindSafe(|| thread.reactor.run(&*worker)));
    if !matches!(ended, Ok(Ok(()))) {
        // Buffered lines may explain the failure: write them before the process ends.
        let _ = catch_unwind(AssertUnwindSafe(|| thread.error_lines.borrow_mut().flush(&thread)));
        match ended {
            Ok(Err(e)) => {
                forebay_core::essential::end(&format!("event loop failed ({}), the process ends", errno(&e)))
            }
            Err(panic) => resume_unwind(panic),
            Ok(Ok(())) => {}
        }
    }
    // Idle upstream connections of this thread have no event loop from here on, but other threads may run on and would
    // take them from the shared group.
    worker.close_spares(&thread.config());
    log_buffers::flush(&thread, true);
    thread.error_lines.borrow_mut().flush(&thread);
}

impl Thread {
    /// Closes a connection.
    pub fn close(&self, token: Token) {
        if self.io.poller.remove(token).is_some() {
            self.counters.active.sub(1);
        }
    }
}

impl WorkerThread {
    /// Applies a configuration. Matches listeners by address first, then replaces everything else in one step.
    fn apply(&self, share: Share) {
        let mut slots = self.listeners.borrow_mut();
        let wanted = &share.config.listeners;
        // Close listeners whose address the new configuration does not have.
        for slot in slots.iter_mut() {
            if let Some(s) = slot
                && !wanted.iter().any(|l| l.addr == s.addr)
            {
                self.thread.io.poller.remove(s.token);
                *slot = None;
            }
        }
        let mut map: Vec<Option<usize>> = vec![None; slots.len()];
        for (n, (listener, socket)) in wanted.iter().zip(&share.sockets).enumerate() {
            let Some((fd, shared)) = socket else { continue };
            prepare_listener(&share.config, n, fd);
            let known = slots.iter().position(|s| s.as_ref().is_some_and(|s| s.addr == listener.addr));
            let number = match known {
                Some(k) if slots[k].as_ref().is_some_and(|s| Arc::ptr_eq(&s.fd, fd)) => k,
                _ => {
                    if let Some(k) = known
                        && let Some(old) = slots[k].take()
                    {
                        self.thread.io.poller.remove(old.token);
                    }
                    let number = known.unwrap_or(slots.len());
                    let added =
                        fd.try_clone().and_then(|c| self.thread.io.poller.listen(c, number as u32, *shared));
                    let slot = match added {
                        Ok(token) => Some(ListenSlot {
                            token,
                            fd: fd.clone(),
                            addr: listener.addr.clone(),
                            shared: *shared,
                        }),
                        Err(e) => {
                            error_log::log(
                                &self.thread,
                                Level::Alert,
                                &format!("cannot listen on {} ({})", listener.text, errno(&e)),
                            );
                            None
                        }
                    };
                    match slots.get_mut(number) {
                        Some(s) => *s = slot,
                        None => {
                            slots.push(slot);
                            map.push(None);
                        }
                    }
                    number
                }
            };
            map[number] = Some(n);
        }
        drop(slots);
        log_buffers::flush(&self.thread, true);
        self.thread.error_lines.borrow_mut().flush(&self.thread);
        self.thread.log_buffers.borrow_mut().forget(share.generation);
        let new = Rc::new(ThreadConfig {
            config: share.config,
            listeners: map.clone(),
            groups: RefCell::default(),
            logs: RefCell::new(share.logs),
            counted: Default::default(),
        });
        let old = self.thread.conf.replace(new);
        self.close_spares(&old);
        forebay_core::pattern::forget();
        // The new configuration has no servers for idle connections of removed listeners.
        self.close_idle(|c, _| map.get(c.client.listener as usize).copied().flatten().is_none());
    }

    /// Closes this thread's idle upstream connections of a configuration.
    fn close_spares(&self, conf: &ThreadConfig) {
        for group in &conf.config.http.upstreams {
            let (entries, taken) = group.idle.clear(self.thread.number);
            for token in entries.into_iter().map(|i| i.token).chain(taken) {
                self.thread.io.poller.remove(token);
            }
        }
    }

    fn command(&self, c: Command) {
        match c {
            Command::Reload(share) => self.apply(*share),
            Command::Reopen(logs) => {
                forebay_core::essential::panic_on_purpose("worker");
                self.thread.error_lines.borrow_mut().flush(&self.thread);
                log_buffers::flush(&self.thread, true);
                forebay_core::log::files::close();
                let conf = self.thread.config();
                let mut current = conf.logs.borrow_mut();
                for (path, fd) in logs.iter() {
                    if let Some(n) = conf.config.log_files.iter().position(|p| p == path)
                        && let Some(slot) = current.get_mut(n)
                    {
                        *slot = fd.clone();
                    }
                }
                drop(current);
                self.thread.log_buffers.borrow_mut().renew();
            }
            Command::Quit(timeout) => {
                self.stop_accepting();
                self.thread.quitting.set(true);
                self.quit_deadline.set(timeout.map(|t| Instant::now() + t));
                self.close_idle(|c, _| c.partial.is_none() && c.requests > 0 && c.session.is_none());
                // Wake idle HTTP/2 connections, which send GOAWAY before they close.
                for job in self.thread.runners.take_idle(|c| c.session.is_some()) {
                    self.thread.runners.queue(job);
                }
            }
            Command::Log(level, line) => error_log::log(&self.thread, level, &line),
            Command::Judge(question) => question.answer(&self.thread),
            Command::Stop => {
                self.stop_accepting();
                self.thread.stopping.set(true);
            }
        }
    }

    fn stop_accepting(&self) {
        for slot in self.listeners.borrow_mut().iter_mut() {
            if let Some(s) = slot.take() {
                self.thread.io.poller.remove(s.token);
            }
        }
    }

    /// Closes the idle connections for which `f` returns `true`. Returns their number.
    fn close_idle(&self, mut f: impl FnMut(&Connection, Instant) -> bool) -> usize {
        let mut reading = 0;
        let closed = self.thread.runners.close_idle(|c, deadline| {
            let close = f(c, deadline);
            reading += u64::from(close && c.partial.is_some());
            close
        });
        self.thread.counters.active.sub(closed as u64);
        self.thread.counters.reading.sub(reading);
        closed
    }

    fn connections(&self) -> usize {
        self.thread.counters.active.get() as usize
    }

    /// Closes some idle connections to make room for others; [`shares::who_leaves`] chooses them. Returns `false` if
    /// there was none to close. In that case marks slow transfers to be dropped.
    fn make_room(&self) -> bool {
        let max = self.thread.max_connections;
        let now = self.thread.clock.now();
        let mut waiting = Vec::with_capacity(self.thread.io.poller.idle());
        let mut number = 0;
        self.thread.runners.each_idle(|_, c, deadline, sending| {
            let network = c.client.network();
            let rank = connection::rank(c, deadline, now).filter(|_| !sending);
            waiting.extend(rank.map(|rank| Candidate { number, network, rank }));
            number += 1;
        });
        if waiting.is_empty() {
            if self.thread.transfers.give_up(now) > 0 {
                self.thread.reactor.wake_all();
                self.tell_full(now);
            }
            return false;
        }
        // Close several at a time: the choice looks at every idle connection, which would cost too much for each new
        // one.
        let batch = (max / 64).min(waiting.len() / 8).max(1);
        let mut leaves = vec![false; number];
        shares::who_leaves(waiting, batch, max).into_iter().for_each(|n| leaves[n] = true);
        // `close_idle` visits the connections in the same order as `each_idle` above.
        let mut leaves = leaves.into_iter();
        self.close_idle(|_, _| leaves.next() == Some(true));
        self.tell_full(now);
        true
    }

    fn tell_full(&self, now: Instant) {
        if self.told.get().is_none_or(|t| now >= t + Duration::from_secs(1)) {
            self.told.set(Some(now));
            let max = self.thread.max_connections;
            let what = format!("{max} worker_connections are not enough, reusing connections");
            error_log::log(&self.thread, Level::Warn, &what);
        }
    }

    /// Stops accepting for now. New connections stay in the kernel's queue.
    fn pause(&self, until: Option<Instant>) {
        self.pause.set(Some(Pause { below: self.connections(), idle: self.thread.io.poller.idle(), until }));
        for s in self.listeners.borrow().iter().flatten() {
            self.thread.io.poller.pause_listener(s.token);
        }
    }

    /// Accepts again if there may be room.
    fn resume(&self, now: Instant) {
        let Some(pause) = self.pause.get() else { return };
        let room = self.connections() < pause.below || self.thread.io.poller.idle() > pause.idle;
        if !room && pause.until.is_none_or(|t| now < t) {
            return;
        }
        self.pause.set(None);
        for s in self.listeners.borrow().iter().flatten() {
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
        let text = forebay_sys::errno::errno_text(e);
        error_log::log(&self.thread, level, &format!("accept4() failed {text}"));
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
        (short && self.thread.files.borrow_mut().shed(SHED) == SHED) || self.make_room()
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

    fn open(&self, sock: OwnedFd, peer: Peer, listener: u32, wildcard: bool) {
        self.thread.counters.accepted.add(1);
        self.thread.counters.handled.add(1);
        self.thread.counters.active.add(1);
        let local = if wildcard { rustix::net::getsockname(&sock).ok() } else { None };
        let token = self.thread.io.poller.insert(sock);
        let client = Client {
            number: SERIAL.fetch_add(1, Ordering::Relaxed) + 1,
            peer,
            local: local.and_then(|a| std::net::SocketAddr::try_from(a).ok()),
            listener,
            ..Client::none(self.thread.clock.now())
        };
        let conn = Connection::new(Wire::Plain(token), Rc::new(client));
        self.thread.start(token, conn);
    }
}

/// Sets socket options on a listener. Accepted connections inherit them, which saves a system call for each.
fn prepare_listener(config: &crate::config::Config, listener: usize, fd: &OwnedFd) {
    use rustix::net::sockopt;
    let Some(ListenAddr::Inet(_)) = config.listeners.get(listener).map(|l| &l.addr) else { return };
    let http = &config.http;
    let server = http.addresses.get(listener).and_then(|a| http.servers.get(a.default.default_server));
    // The default server's setting applies, since the server name is not known yet (nginx: tcp_nodelay).
    if let Some(root) = server.and_then(|s| http.locations.get(s.root)) {
        let _ = sockopt::set_tcp_nodelay(fd, root.settings.core.tcp_nodelay);
    }
}

impl Handler for WorkerThread {
    fn accept(&self, listener: u32) {
        let (fd, wildcard) = match self.listeners.borrow().get(listener as usize) {
            Some(Some(s)) => (s.fd.clone(), s.addr.is_wildcard()),
            _ => return,
        };
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
            match rustix::net::acceptfrom_with(&*fd, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) {
                Ok((sock, addr)) => {
                    let peer = match addr.and_then(|a| std::net::SocketAddr::try_from(a).ok()) {
                        Some(a) => Peer::Inet(a),
                        None => Peer::Unix,
                    };
                    let crowded = sock.as_raw_fd() >= self.reserve;
                    self.open(sock, peer, listener, wildcard);
                    self.learn_ceiling(crowded);
                }
                Err(Errno::AGAIN) => return,
                Err(Errno::INTR | Errno::CONNABORTED | Errno::PROTO) => {}
                Err(e) => {
                    self.accept_failed(e);
                    return;
                }
            }
        }
    }

    fn resume(&self, _front: u8, token: Token) {
        if let Some(conn) = self.thread.runners.take_parked(token) {
            self.thread.start(token, conn);
        }
    }

    fn start_queued(&self, _front: u8) {
        self.thread.start_queued();
    }

    fn expired(&self, _front: u8, token: Token) {
        let Some(mut conn) = self.thread.runners.take_parked(token) else { return };
        // An HTTP/2 connection goes to a runner below instead, which sends GOAWAY.
        let between_requests = conn.requests > 0 && conn.partial.is_none() && conn.session.is_none();
        if between_requests {
            conn.wire.close(&self.thread.io);
            self.thread.close(token);
            return;
        }
        conn.expired = true;
        self.thread.start(token, conn);
    }

    fn set_aside_ended(&self, token: Token, group: u32) {
        if let Some(g) = self.thread.conf.borrow().config.http.upstreams.get(group as usize) {
            // If another thread has taken the connection meanwhile, this only frees its slot here.
            drop(g.idle.withdraw(self.thread.number, token));
        }
    }

    fn tick(&self, now: Instant) {
        self.thread.clock.tick(now);
    }

    fn noticed(&self, number: u32) {
        self.thread.files.borrow_mut().heed(number == NOTICE_MOUNTS, self.thread.io.poller.now());
    }

    fn turn(&self) {
        let now = self.thread.io.poller.now();
        for c in self.mailbox.take() {
            self.command(c);
        }
        if self.thread.log_buffers.borrow().due.is_some_and(|d| d <= now) {
            log_buffers::flush(&self.thread, false);
        }
        self.resume(now);
    }

    fn before_wait(&self, busy: bool) -> bool {
        self.thread.error_lines.borrow_mut().flush(&self.thread);
        let gathered = self.thread.log_buffers.borrow().gathered_at();
        let Some(since) = gathered else { return false };
        if busy && self.thread.io.poller.now().saturating_duration_since(since) < log_buffers::GATHER {
            return true;
        }
        log_buffers::flush_gathered(&self.thread);
        false
    }

    fn due(&self) -> Option<Instant> {
        let logs = self.thread.log_buffers.borrow().due;
        let accept = self.pause.get().and_then(|p| p.until);
        [logs, accept, self.quit_deadline.get()].into_iter().flatten().min()
    }

    fn finished(&self) -> bool {
        self.thread.stopping.get()
            || (self.thread.quitting.get()
                && ((self.connections() == 0 && self.thread.background.subs() == 0)
                    || self.quit_deadline.get().is_some_and(|d| Instant::now() >= d)))
    }
}

/// Counts and logs the panic of a task of a thread.
fn report_panic(thread: &Thread) {
    thread.counters.panics.add(1);
    let text = format!(
        "a request caused a panic; its connection was closed ({})",
        forebay_core::essential::last_panic()
    );
    error_log::log(thread, Level::Alert, &text);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::Partial;

    fn conn(requests: u32, accepted: Instant, partial: Option<Instant>) -> Connection {
        let partial = partial.map(|started| Box::new(Partial { buf: [].into(), started }));
        Connection { partial, ..Connection::closed(Rc::new(Client::none(accepted)), requests) }
    }

    #[test]
    fn the_slowest_leave_first() {
        let start = Instant::now();
        let now = start + Duration::from_secs(60);
        let ago = |ms| now - Duration::from_millis(ms);
        let later = now + Duration::from_secs(60);
        let order = [
            connection::rank(&conn(0, ago(9000), None), later, now),
            connection::rank(&conn(7, start, Some(ago(3000))), later, now),
            connection::rank(&conn(1, start, None), now, now),
            connection::rank(&conn(1, start, None), later, now),
            connection::rank(&conn(0, ago(1000), None), later, now),
            connection::rank(&conn(5, start, Some(ago(300))), later, now),
        ];
        assert!(order.is_sorted() && order.iter().all(Option::is_some), "{order:?}");
        assert_eq!(connection::rank(&conn(0, ago(100), None), later, now), None);
        assert_eq!(connection::rank(&conn(3, start, Some(ago(100))), later, now), None);
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
