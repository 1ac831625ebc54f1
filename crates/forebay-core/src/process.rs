//! The worker process: threads, generations of the configuration, and its end.

use crate::config::{Config, ListenAddr};
use crate::counters::Counters;
use crate::front::FrontEnd;
use crate::outside::{Outside, Post};
use crate::tls::key_log;
use crate::watchdog;
use crate::worker::{self, Command, Mailbox};
use forebay_conf::error::Level;
use forebay_net::reactor::Remote;
use forebay_sys::log_area::Mapped;
use forebay_sys::sync::lock;
use std::any::Any;
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

/// Stack of a worker thread, bytes: subrequests may be 50 deep. Memory that is not touched is not taken.
const STACK: usize = 8 << 20;

/// Default of `worker_stall_timeout`. No request takes the CPU for so long at a time.
const STALL: Duration = Duration::from_secs(60);

/// A configuration with the descriptors that the master opened for it.
#[derive(Debug)]
pub struct Generation {
    /// The configuration.
    pub config: Arc<Config>,
    /// Per address, its listening sockets: one a thread (TCP), or one for all (unix). On a reload only
    /// addresses that are new need sockets; those of known addresses are kept.
    pub sockets: Vec<(ListenAddr, Vec<OwnedFd>)>,
    /// Log files by path.
    pub logs: Vec<(PathBuf, OwnedFd)>,
    /// Number that the master knows it by; not 0, and higher than those before.
    pub number: u64,
}

/// Action for the moment in which the last thread has applied a configuration. Each thread has a copy until then.
pub struct Applied(Box<dyn Fn() + Send + Sync>);

impl Drop for Applied {
    fn drop(&mut self) {
        (self.0)();
    }
}

/// Number and CPUs of the threads.
#[derive(Clone, Debug, Default)]
pub struct ThreadPlan {
    /// CPUs of each thread; an empty list leaves the thread unpinned.
    pub cpus: Vec<Vec<usize>>,
    /// Connections each thread may hold (`worker_connections`).
    pub connections: usize,
}

/// Queue of a thread.
struct Queue {
    mailbox: Arc<Mailbox>,
    remote: Remote,
}

impl Queue {
    fn send(&self, command: Command) {
        self.mailbox.push(command);
        self.remote.wake();
    }
}

impl Post for Queue {
    fn log(&self, level: Level, line: &str) {
        self.send(Command::Log(level, line.to_owned()));
    }

    fn message(&self, front: u8, message: Box<dyn Any + Send>) {
        self.send(Command::Message(front, message));
    }
}

struct Running {
    mailbox: Arc<Mailbox>,
    remote: Remote,
    thread: JoinHandle<()>,
}

/// Background work of a front end, which ends when this is dropped.
type Work = Box<dyn Any + Send>;

/// The running threads of the worker process.
pub struct Worker {
    threads: Vec<Running>,
    /// Counters of all threads.
    counters: Arc<Vec<Arc<Counters>>>,
    /// Ends the thread that drives tokio.
    _tokio: tokio::sync::oneshot::Sender<()>,
    tokio: tokio::runtime::Handle,
    /// The configuration in effect, and the background work of its front ends.
    current: Mutex<(Arc<Config>, Vec<Work>)>,
    front_ends: &'static [&'static dyn FrontEnd],
    /// Settings of the watchdog, which ends with them.
    watchdog: Arc<watchdog::Settings>,
    /// Sockets of each address by thread, kept so that a reload can pass them to the next configuration.
    sockets: Mutex<HashMap<ListenAddr, Vec<Arc<OwnedFd>>>>,
}

/// One thread's share of a generation.
#[derive(Debug, Clone)]
pub struct ThreadGeneration {
    /// Configuration.
    pub config: Arc<Config>,
    /// Socket of each listener, in the configuration's order. The flag is `true` if other threads share the socket.
    pub sockets: Vec<Option<(Arc<OwnedFd>, bool)>>,
    /// Log files in the order of `Config::log_files`.
    pub logs: Vec<Arc<OwnedFd>>,
    /// [`Generation::number`].
    pub generation: u64,
}

impl Worker {
    /// Starts the threads with the front ends, in the order of [`Config::fronts`]. They buffer log lines in `log_area`, if
    /// there is one.
    ///
    /// # Errors
    /// If a thread or its event loop cannot be created.
    pub fn start(
        generation: Generation,
        plan: &ThreadPlan,
        log_area: Option<Arc<Mapped>>,
        front_ends: &'static [&'static dyn FrontEnd],
    ) -> io::Result<Worker> {
        crate::essential::remember_panics();
        let count = plan.cpus.len().max(1);
        let all: Arc<Vec<Arc<Counters>>> =
            Arc::new((0..count).map(|_| Arc::new(Counters::default())).collect());
        let (end, tokio) = start_tokio()?;
        let config = generation.config.clone();
        prepare(front_ends, &config);
        let mut worker = Worker {
            threads: Vec::new(),
            counters: all.clone(),
            _tokio: end,
            tokio: tokio.clone(),
            current: Mutex::new((config.clone(), Vec::new())),
            front_ends,
            watchdog: Arc::default(),
            sockets: Mutex::default(),
        };
        worker.watchdog.set(stall_timeout(&config));
        let shares = worker.shares(generation, count);
        let mut ready = Vec::new();
        for (i, share) in shares.into_iter().enumerate() {
            let mailbox = Arc::new(Mailbox::default());
            let (tx, rx) = std::sync::mpsc::channel();
            let (serve, begun) = std::sync::mpsc::channel();
            let setup = worker::Setup {
                number: i,
                cpus: plan.cpus.get(i).cloned().unwrap_or_default(),
                connections: plan.connections.max(1),
                share,
                front_ends,
                counters: all.clone(),
                mailbox: mailbox.clone(),
                log_area: log_area.clone(),
                tokio: tokio.clone(),
                started: tx,
            };
            let thread = crate::essential::spawn(format!("worker {i}"), Some(STACK), move || {
                worker::main(setup, &begun)
            })?;
            let remote = rx.recv().map_err(|_| io::Error::other("worker thread ended at its start"))??;
            worker.threads.push(Running { mailbox, remote, thread });
            ready.push(serve);
        }
        watchdog::start(&worker.counters, &worker.watchdog)?;
        // Clients may have waited for this process: the first of them finds the background work begun, as after a reload.
        worker.begin(&config, None);
        for serve in ready {
            let _ = serve.send(());
        }
        Ok(worker)
    }

    /// Starts the background work of a configuration and ends that of the former one.
    fn begin(&self, config: &Arc<Config>, former: Option<&Config>) {
        let Some(first) = self.threads.first() else { return };
        let first = Arc::new(Queue { mailbox: first.mailbox.clone(), remote: first.remote.clone() });
        let sockets = Arc::new(self.sockets_outside(config));
        let (counters, tokio) = (self.counters.clone(), self.tokio.clone());
        let outside = Outside { first, counters, sockets, tokio };
        let fronts = self.front_ends.iter().zip(0..);
        let work = fronts.map(|(f, number)| f.begin(number, config, former, &outside)).collect();
        // Drops the former work only now that the new one has begun.
        *lock(&self.current) = (config.clone(), work);
    }

    /// Returns the sockets of the listeners for background work.
    fn sockets_outside(&self, config: &Config) -> HashMap<ListenAddr, Vec<Arc<OwnedFd>>> {
        let known = lock(&self.sockets);
        let outside = config.listeners.iter().filter(|l| l.outside);
        outside.filter_map(|l| Some((l.addr.clone(), known.get(&l.addr)?.clone()))).collect()
    }

    /// Divides a generation among the threads.
    fn shares(&self, generation: Generation, count: usize) -> Vec<ThreadGeneration> {
        let mut known = lock(&self.sockets);
        for (addr, fds) in generation.sockets {
            let fds: Vec<_> = fds.into_iter().map(Arc::new).collect();
            if !fds.is_empty() {
                known.insert(addr, fds);
            }
        }
        let wanted = &generation.config.listeners;
        // Sockets of addresses that are gone close when the threads have dropped theirs, too.
        known.retain(|a, _| wanted.iter().any(|l| l.addr == *a));
        let logs: Vec<Arc<OwnedFd>> = ordered_logs(&generation.config, generation.logs);
        (0..count)
            .map(|i| {
                let sockets = wanted.iter().map(|l| {
                    let a = &l.addr;
                    if l.outside || only_thread(a, count).is_some_and(|only| only != i) {
                        return None;
                    }
                    let fds = known.get(a)?;
                    // If there are fewer sockets than threads, some threads share one.
                    // Not empty: only addresses with sockets are kept above.
                    let fd = fds.get(i % fds.len())?;
                    Some((fd.clone(), fds.len() < count || a.path().is_some()))
                });
                ThreadGeneration {
                    config: generation.config.clone(),
                    sockets: sockets.collect(),
                    logs: logs.clone(),
                    generation: generation.number,
                }
            })
            .collect()
    }

    fn tell(&self, make: impl Fn(usize) -> Command) {
        for (i, t) in self.threads.iter().enumerate() {
            t.mailbox.push(make(i));
            t.remote.wake();
        }
    }

    /// Sends a new configuration to the threads. Connections stay open. The last thread that has applied it calls `applied`.
    pub fn reload(&self, generation: Generation, applied: impl Fn() + Send + Sync + 'static) {
        let config = generation.config.clone();
        // Before any thread has the configuration.
        prepare(self.front_ends, &config);
        self.watchdog.set(stall_timeout(&config));
        let old = lock(&self.current).0.clone();
        let shares = self.shares(generation, self.threads.len());
        self.begin(&config, Some(&old));
        let applied = Arc::new(Applied(Box::new(applied)));
        self.tell(|i| Command::Reload(Box::new(shares[i].clone()), applied.clone()));
    }

    /// Replaces the descriptors of log files (USR1), flushing buffers to the old ones first.
    pub fn reopen(&self, logs: Vec<(PathBuf, OwnedFd)>) {
        let logs: Arc<Vec<(PathBuf, Arc<OwnedFd>)>> =
            Arc::new(logs.into_iter().map(|(p, f)| (p, Arc::new(f))).collect());
        key_log::provide(logs.iter().map(|(path, file)| (path, file)));
        self.tell(|_| Command::Reopen(logs.clone()));
    }

    /// Shuts down gracefully: stops accepting, closes idle connections, and finishes running requests within `timeout`.
    pub fn quit(&self, timeout: Option<Duration>) {
        // Close the sockets, so that new connections are refused instead of waiting in a queue that no thread reads.
        lock(&self.sockets).clear();
        self.tell(|_| Command::Quit(timeout));
    }

    /// Ends the threads at once. Logs are flushed.
    pub fn stop(&self) {
        self.tell(|_| Command::Stop);
    }

    /// Returns `true` if all threads have ended.
    pub fn finished(&self) -> bool {
        self.threads.iter().all(|t| t.thread.is_finished())
    }

    /// Waits until all threads have ended, and has the front ends keep what is to outlive the process. `log` writes to the error log.
    pub fn join(self, log: &dyn Fn(Level, &str)) {
        for t in self.threads {
            let _ = t.thread.join();
        }
        let config = lock(&self.current).0.clone();
        self.front_ends.iter().zip(0..).for_each(|(f, number)| f.ended(number, &config, log));
    }
}

/// Returns the number of the thread that alone receives from an address; `None` if all do. A unix socket gives the datagrams of a
/// client to any thread that reads, but the client's session is in one thread. A reload changes neither path nor threads, so
/// the choice stays.
fn only_thread(addr: &ListenAddr, threads: usize) -> Option<usize> {
    let path = addr.path().filter(|_| addr.is_udp())?;
    let sum = path
        .as_os_str()
        .as_bytes()
        .iter()
        .fold(0, |sum: usize, byte| sum.wrapping_mul(31).wrapping_add((*byte).into()));
    sum.checked_rem(threads)
}

/// Has each front end prepare the state that all threads share for a configuration.
fn prepare(front_ends: &[&dyn FrontEnd], config: &Config) {
    front_ends.iter().zip(0..).for_each(|(f, number)| f.prepare(number, config));
}

/// Returns the bound of the watchdog.
fn stall_timeout(config: &Config) -> Duration {
    config.main.worker_stall_timeout.unwrap_or(STALL)
}

/// Time after which a thread of the blocking pool without work ends, and less than half of it, after which one of them gets some. So
/// one thread always stays: where the system has no thread left, a pool without one panics, and with one, work waits.
const KEPT: Duration = Duration::from_secs(10);
const STIRRED: Duration = Duration::from_secs(4);

/// Starts the thread that drives tokio's timers and sockets for all worker threads. Their connections do not use it,
/// see [`forebay_net::reactor`].
fn start_tokio() -> io::Result<(tokio::sync::oneshot::Sender<()>, tokio::runtime::Handle)> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(32)
        .thread_keep_alive(KEPT)
        .build()?;
    let handle = runtime.handle().clone();
    handle.spawn(stir());
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    crate::essential::spawn("tokio".into(), None, move || {
        let _ = runtime.block_on(ended);
        // Does not wait: a blocking task (a slow disk, a name server) must not hold up the end of the process.
        runtime.shutdown_background();
    })?;
    Ok((end, handle))
}

/// Gives the blocking pool work now, while there can be a thread, and from time to time: see [`KEPT`].
#[allow(clippy::disallowed_methods, reason = "not on a thread of connections: the tokio thread runs this")]
async fn stir() {
    loop {
        drop(tokio::task::spawn_blocking(|| ()));
        tokio::time::sleep(STIRRED).await;
    }
}

/// Sorts descriptors in the order of the configuration's log files. Lines for a missing one are discarded.
fn ordered_logs(config: &Config, logs: Vec<(PathBuf, OwnedFd)>) -> Vec<Arc<OwnedFd>> {
    let mut by_path: HashMap<PathBuf, Arc<OwnedFd>> =
        logs.into_iter().map(|(p, f)| (p, Arc::new(f))).collect();
    key_log::provide(by_path.iter());
    (config.log_files.iter())
        .filter_map(|p| {
            by_path.remove(p).or_else(|| {
                let null =
                    rustix::fs::open("/dev/null", rustix::fs::OFlags::WRONLY, rustix::fs::Mode::empty());
                null.ok().map(Arc::new)
            })
        })
        .collect()
}
