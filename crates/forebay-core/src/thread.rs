//! State of one worker thread that every front end needs: event loop, clock, logs, counters. Hot path.

use crate::clock::Clock;
use crate::config::{Config, ListenAddr};
use crate::counters::Counters;
use crate::front::{Front, Passed};
use crate::log::buffers::LogBuffers;
use crate::log::error::Pending;
use crate::transfers::Transfers;
use forebay_net::io::Io;
use forebay_net::reactor::{Reactor, Token};
use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A configuration in effect, with its listeners and log files in one thread.
#[derive(Debug)]
pub struct ActiveConfig {
    /// The configuration, shared by all threads.
    pub config: Arc<Config>,
    /// Index among the configuration's listeners, by the number of this thread's listener slot. Slot numbers are never
    /// reused; a listener that no longer exists maps to `None`.
    pub listeners: Vec<Option<usize>>,
    /// Log files, by their index in the configuration. USR1 replaces them with reopened ones. After a reload, the old
    /// configuration's files stay open for its running requests.
    pub logs: RefCell<Vec<Arc<OwnedFd>>>,
}

impl ActiveConfig {
    /// Puts a configuration into effect without listeners and logs.
    pub fn new(config: Arc<Config>) -> ActiveConfig {
        ActiveConfig { config, listeners: Vec::new(), logs: RefCell::default() }
    }

    /// Finds the listener to which connections to an address come: one of that address, else one of the wildcard address.
    pub fn listener(&self, addr: &ListenAddr) -> Option<FoundListener> {
        let wildcard = addr.inet().map(|a| match a.ip() {
            IpAddr::V4(_) => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), a.port()),
            IpAddr::V6(_) => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), a.port()),
        });
        let at = |addr: &ListenAddr| {
            self.listeners.iter().zip(0..).find_map(|(index, slot)| {
                let listener = self.config.listeners.get((*index)?)?;
                (listener.addr == *addr).then_some((listener.front, slot))
            })
        };
        let (exact, local) = (at(addr), addr.inet());
        let (front, slot, local) = match (exact, wildcard) {
            (Some((front, slot)), _) => (front, slot, None),
            (None, Some(wildcard)) => {
                at(&ListenAddr::Inet(wildcard)).map(|(front, slot)| (front, slot, local))?
            }
            (None, None) => return None,
        };
        Some(FoundListener { front, slot, local })
    }
}

/// Listener of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FoundListener {
    /// Number of its front end.
    pub front: u8,
    /// Its slot; see [`ActiveConfig::listeners`].
    pub slot: u32,
    /// The address, if the listener's is a wildcard.
    pub local: Option<SocketAddr>,
}

/// Serial numbers of connections, unique in the process.
static SERIAL: AtomicU64 = AtomicU64::new(0);

/// Returns the serial number of a new connection (`$connection`).
pub fn next_connection() -> u64 {
    SERIAL.fetch_add(1, Ordering::Relaxed) + 1
}

/// A worker thread.
pub struct Thread {
    /// Index among the worker threads of the process.
    pub number: usize,
    /// Event loop.
    pub reactor: Rc<Reactor>,
    /// Sockets, deadlines and buffers for their bytes.
    pub io: Rc<Io>,
    /// Time of the current turn of the event loop.
    pub clock: Clock,
    /// Configuration in effect for new connections.
    pub active: RefCell<Rc<ActiveConfig>>,
    /// Requests blocked on their clients.
    pub transfers: Rc<Transfers>,
    /// Buffers of the access logs.
    pub log_buffers: RefCell<LogBuffers>,
    /// Error log lines of this turn, not written yet.
    pub error_lines: RefCell<Pending>,
    /// Counters of this thread.
    pub counters: Arc<Counters>,
    /// Counters of all threads, for the status pages that add them up.
    pub all_counters: Arc<Vec<Arc<Counters>>>,
    /// Connections for other listeners, with the numbers of their front ends.
    pub(crate) passed: RefCell<Vec<(u8, Passed)>>,
    /// Front ends, which give up descriptors where these run short.
    pub(crate) fronts: RefCell<Vec<Weak<dyn Front>>>,
    /// Number of the front end whose UDP sockets another process reads.
    pub delegated: Cell<Option<u8>>,
    /// Process id, for log lines.
    pub pid: u32,
    /// Graceful shutdown has begun: the thread accepts no connections and keeps none open between requests.
    pub quitting: Cell<bool>,
    /// The time for requests that were on their way when the shutdown began is over.
    pub parted: Cell<bool>,
    /// The thread ends at once.
    pub stopping: Cell<bool>,
    /// Most connections at a time.
    pub max_connections: usize,
}

/// Arguments of [`Thread::new`].
pub struct Parts {
    /// Number of the thread.
    pub number: usize,
    /// First configuration.
    pub active: ActiveConfig,
    /// Buffers of the access logs.
    pub log_buffers: LogBuffers,
    /// Counters of all threads, by number.
    pub all_counters: Arc<Vec<Arc<Counters>>>,
    /// Most connections at a time.
    pub max_connections: usize,
}

impl Thread {
    /// Creates a thread that serves nothing yet.
    pub fn new(io: Rc<Io>, parts: Parts) -> Rc<Thread> {
        let counters = parts.all_counters.get(parts.number).cloned().unwrap_or_default();
        Rc::new(Thread {
            number: parts.number,
            reactor: Reactor::new(io.clone()),
            io,
            clock: Clock::default(),
            active: RefCell::new(Rc::new(parts.active)),
            transfers: Rc::default(),
            log_buffers: RefCell::new(parts.log_buffers),
            error_lines: RefCell::default(),
            counters,
            all_counters: parts.all_counters,
            passed: RefCell::default(),
            fronts: RefCell::default(),
            delegated: Cell::new(None),
            pid: std::process::id(),
            quitting: Cell::new(false),
            parted: Cell::new(false),
            stopping: Cell::new(false),
            max_connections: parts.max_connections,
        })
    }

    /// Returns the configuration for new connections.
    #[inline]
    pub fn active(&self) -> Rc<ActiveConfig> {
        self.active.borrow().clone()
    }

    /// Calls `f` with a log file of the current configuration. Returns `None` if `number` is out of range.
    pub fn with_log<R>(&self, number: usize, f: impl FnOnce(&OwnedFd) -> R) -> Option<R> {
        self.active.borrow().logs.borrow().get(number).map(|fd| f(fd))
    }

    /// Gives a connection to the listener that its client names, at the end of the turn. `front`: front end of that listener.
    pub fn pass(&self, front: u8, passed: Passed) {
        self.passed.borrow_mut().push((front, passed));
    }

    /// Closes descriptors that can be opened again, after a call failed for want of one. Returns `true` if that is worth another try.
    #[cold]
    pub fn shed(&self) -> bool {
        let mut fronts = self.fronts.borrow().clone();
        fronts.retain(|front| front.upgrade().is_some_and(|front| front.give_descriptors()));
        !fronts.is_empty()
    }

    /// Closes a connection.
    pub fn close(&self, token: Token) {
        // Only the first close of a connection counts.
        if self.io.poller.remove(token).is_some() {
            self.counters.active.sub(1);
        }
    }
}
