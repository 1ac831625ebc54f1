//! A group of servers: its parameters, and its servers as they are now (nginx: upstream). Hot path.

use super::balance::Method;
use super::health::Schedule;
use super::peer::{Health, Peer, PeerStatus, clock};
use super::servers::{Discovery, Found, Server};
use super::{hash, idle, queue};
use crate::vars::Template;
use forebay_net::resolver::Resolver;
use forebay_sys::sync::lock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// `keepalive` and the directives about it.
#[derive(Clone, Copy, Debug)]
pub struct Keepalive {
    /// Idle connections kept per thread; 0 = none.
    pub connections: usize,
    /// `local`: connections stay with the location that opened them.
    pub local: bool,
    /// `keepalive_requests`.
    pub requests: u64,
    /// `keepalive_time`.
    pub time: Duration,
    /// `keepalive_timeout`.
    pub timeout: Duration,
}

impl Default for Keepalive {
    /// Returns the defaults of an `upstream` block.
    fn default() -> Keepalive {
        Keepalive {
            connections: 32,
            local: true,
            requests: 1000,
            time: Duration::from_secs(3600),
            timeout: Duration::from_secs(60),
        }
    }
}

impl Keepalive {
    /// Returns the parameters of a group that `proxy_pass` implies by an address or a name.
    pub fn implied() -> Keepalive {
        // Node.js, Apache and uvicorn close an idle connection after five seconds. A shorter time makes it rare that they do
        // so while a request is on its way.
        Keepalive { timeout: Duration::from_secs(4), ..Keepalive::default() }
    }
}

/// The servers of a group at one time.
#[derive(Debug, Default)]
pub struct PeerSet {
    /// Servers by address, in file order.
    pub peers: Vec<Peer>,
    /// The group has one server and nothing to balance or limit. Choosing it takes no lock and counts nothing shared.
    pub lone: bool,
    /// There is no server, or all are `down`.
    pub vacant: bool,
    /// Factor of weights, so that `slow_start` can have fractions.
    pub scale: i64,
    /// Sum of the weights of servers that are not backups.
    pub total_weight: i64,
    /// Points of `hash ... consistent`.
    pub ring: hash::Ring,
}

/// A group of servers. All threads share it.
#[derive(Debug)]
pub struct Group {
    /// Number in its configuration, by which threads find their state of the group.
    pub number: u32,
    /// Name, lower case.
    pub name: Vec<u8>,
    /// An `upstream` block defines it.
    pub explicit: bool,
    /// Balancing method.
    pub method: Method,
    /// Key of `hash`.
    pub key: Option<Template>,
    /// Requests of a session stick to a server, which their front end finds.
    pub sticky: bool,
    /// `queue`.
    pub queue: Option<queue::Queue>,
    /// Rules for idle connections.
    pub keepalive: Keepalive,
    /// `resolver`, here or on the level above.
    pub resolver: Option<Arc<Resolver>>,
    /// `resolver_timeout`: time limit for an answer, and pause after a failure.
    pub resolver_timeout: Duration,
    /// Schedules of its health checks.
    pub checks: Vec<Schedule>,
    /// Idle connections.
    pub idle: idle::Lists,
    servers: Mutex<Vec<Server>>,
    set: Mutex<Arc<PeerSet>>,
    version: AtomicU64,
    choosing: Mutex<()>,
    pub(super) waiting: queue::Waiters,
    /// Names without addresses whose first answer is still to come.
    unanswered: AtomicUsize,
}

/// A name of a group without addresses, until its first answer has come or nobody asks any more.
#[derive(Debug)]
pub(super) struct Unanswered(Arc<Group>);

impl Drop for Unanswered {
    fn drop(&mut self) {
        // A thread that sees the number sees the addresses.
        self.0.unanswered.fetch_sub(1, Ordering::Release);
        self.0.wake_all();
    }
}

impl Group {
    /// Creates a group without servers.
    pub fn new(name: Vec<u8>, explicit: bool, keepalive: Keepalive) -> Group {
        Group {
            number: 0,
            name,
            explicit,
            method: Method::RoundRobin,
            key: None,
            sticky: false,
            queue: None,
            keepalive,
            resolver: None,
            resolver_timeout: Duration::from_secs(30),
            checks: Vec::new(),
            idle: idle::Lists::default(),
            servers: Mutex::default(),
            set: Mutex::default(),
            version: AtomicU64::new(0),
            choosing: Mutex::default(),
            waiting: queue::Waiters::default(),
            unanswered: AtomicUsize::new(0),
        }
    }

    /// Notes that the name of a server is asked for, by the number of its line. Returns `None` if addresses of it are known.
    pub(super) fn ask(self: &Arc<Group>, server: usize) -> Option<Unanswered> {
        let unknown = lock(&self.servers).get(server).is_some_and(|s| s.found.is_empty());
        unknown.then(|| {
            self.unanswered.fetch_add(1, Ordering::Relaxed);
            Unanswered(self.clone())
        })
    }

    /// Returns `true` while a name without addresses is being resolved for the first time in this process.
    pub(in crate::upstream) fn is_unanswered(&self) -> bool {
        self.unanswered.load(Ordering::Acquire) > 0
    }

    /// Sets its servers.
    pub(super) fn set_servers(&self, servers: Vec<Server>) {
        *lock(&self.servers) = servers;
        self.rebuild(&[]);
    }

    /// Returns the servers as they are now.
    pub fn set(&self) -> Arc<PeerSet> {
        lock(&self.set).clone()
    }

    /// Returns a number that changes with [`Group::set`].
    pub(super) fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire)
    }

    /// Calls `f` with the `server` lines.
    pub fn with_servers<R>(&self, f: impl FnOnce(&[Server]) -> R) -> R {
        f(&lock(&self.servers))
    }

    /// Sets the addresses of a server, by the number of its line.
    pub fn found(&self, server: usize, found: Vec<Found>) {
        {
            let mut servers = lock(&self.servers);
            // The lock must end with this block: `rebuild` takes it, too.
            let Some(s) = servers.get_mut(server) else { return };
            if s.found == found {
                return;
            }
            s.found = found;
        }
        self.rebuild(&[]);
    }

    /// Returns `true` for a group with `peers external`.
    pub fn is_external(&self) -> bool {
        lock(&self.servers).iter().any(|s| s.source == Discovery::External)
    }

    /// Replaces the servers of a group with `peers external`. Those that stay keep their state and connections. Returns `false`
    /// for a group without that directive.
    pub fn set_external(&self, found: Vec<Found>) -> bool {
        let line = lock(&self.servers).iter().position(|s| s.source == Discovery::External);
        line.map(|line| self.found(line, found)).is_some()
    }

    /// Takes over from the group of the same name in the former configuration: addresses found at run time, and the state
    /// of peers that stay.
    pub fn adopt(&self, old: &Group) {
        {
            let former = lock(&old.servers);
            // The controller of external servers has told them with the new configuration.
            let found_here = |s: &&mut Server| !matches!(s.source, Discovery::Fixed | Discovery::External);
            for s in lock(&self.servers).iter_mut().filter(found_here) {
                let same = |o: &&Server| o.place.host() == s.place.host() && o.source == s.source;
                if let Some(o) = former.iter().find(same) {
                    let found = o.found.iter().map(|found| s.adopted(found));
                    s.found = found.collect();
                }
            }
        }
        self.rebuild(&old.set().peers);
    }

    /// Makes the peers again. Those that stay, here or from a `former` configuration, keep their state.
    fn rebuild(&self, former: &[Peer]) {
        // Held to the end, so that of two calls at a time the later one has the later servers.
        let servers = lock(&self.servers);
        let mut present = lock(&self.set);
        let mut known: Vec<&Peer> = former.iter().chain(&present.peers).collect();
        let mut peers = Vec::new();
        for (s, f) in servers.iter().flat_map(|s| s.found.iter().map(move |f| (s, f))) {
            let mut peer = s.peer(f);
            let same = |k: &&Peer| k.server == peer.server && k.addr == peer.addr;
            if let Some(at) = known.iter().position(same) {
                // Taken out of the list: of two equal peers each keeps a state of its own.
                peer.live = known.swap_remove(at).live.clone();
            }
            self.start_health(&peer, !former.is_empty());
            peers.push(peer);
        }
        // A reload removes nobody: it has another list of servers.
        if former.is_empty() {
            let now = Instant::now();
            for gone in &known {
                let _ = gone.live.removed.set(now);
            }
        }
        *present = Arc::new(self.set_of(peers));
        drop(present);
        // After the set: a thread that sees the number gets the new set.
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    fn set_of(&self, peers: Vec<Peer>) -> PeerSet {
        let plain = |p: &Peer| p.max_conns == 0 && !p.down && !p.drain && p.slow_start.is_zero();
        let free = !self.sticky && self.queue.is_none() && self.checks.is_empty();
        PeerSet {
            lone: free && matches!(peers.as_slice(), [p] if plain(p)),
            vacant: peers.iter().all(|p| p.down),
            scale: if peers.iter().any(|p| !p.slow_start.is_zero()) { 100 } else { 1 },
            total_weight: peers.iter().filter(|p| !p.backup).map(|p| p.weight).sum(),
            ring: match self.method {
                Method::Consistent => hash::Ring::new(&peers),
                _ => hash::Ring::default(),
            },
            peers,
        }
    }

    /// Sets the health of a peer before its first check; `reloaded`: under a new configuration.
    fn start_health(&self, p: &Peer, reloaded: bool) {
        let mandatory = self.checks.iter().any(|c| c.mandatory);
        let again = reloaded && self.checks.iter().any(|c| c.mandatory && !c.persistent);
        let start = match p.live.health() {
            _ if self.checks.is_empty() => Health::Unknown,
            Health::Unknown if mandatory => Health::Checking,
            Health::Unknown => Health::Healthy,
            _ if again => Health::Checking,
            known => known,
        };
        p.live.set_health(start);
        if start == Health::Checking {
            p.live.down(clock(Instant::now()));
        }
    }

    /// Locks the choice of a peer, so that threads choose one after the other.
    pub(super) fn choosing(&self) -> MutexGuard<'_, ()> {
        lock(&self.choosing)
    }

    /// Calls `f` with each server as it is set.
    pub fn settings<R>(&self, f: impl FnMut(&Peer) -> R) -> Vec<R> {
        self.set().peers.iter().map(f).collect()
    }

    /// Returns the status of each server.
    pub fn status(&self, now: Instant) -> Vec<PeerStatus> {
        let now = clock(now);
        self.set().peers.iter().map(|p| p.status(now)).collect()
    }
}
