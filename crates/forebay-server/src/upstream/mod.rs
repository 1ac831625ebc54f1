//! Upstream groups: their servers, what threads share about them and what each keeps for itself (nginx:
//! ngx_http_upstream_module). Which peer a request goes to is decided in `balance.rs`. Hot path.

pub(crate) mod attempts;
pub mod background;
pub mod balance;
pub(crate) mod codec;
pub mod config;
pub mod conn;
pub mod exchange;
pub(crate) mod fault;
pub mod hash;
pub mod health;
pub mod idle;
pub mod lease;
pub(crate) mod open;
pub mod peer;
pub mod queue;
mod send;
pub mod spool;
pub mod sticky;
pub mod stream;
mod switched;
pub mod upload;
pub mod vars;

pub use balance::Method;
pub(crate) use codec::protocol;
use forebay_net::addr::{PeerAddr, Place};
use forebay_net::resolver::Resolver;
use forebay_sys::sync::lock;
pub use peer::{Peer, PeerStatus};
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// Where the connection for a request comes from, and what becomes of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reuse {
    /// It is a new one, and is closed.
    #[default]
    No,
    /// An idle one of an `upstream` block, and idle again behind the response.
    Group,
    /// The same where `proxy_pass` has an address or a name. Nobody asked for it there, so a request fails by it in no case: what
    /// cannot be sent twice has a new connection, and all else is sent again by a new one.
    Implied,
}

/// `keepalive` and what belongs to it.
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
    /// Holds in an `upstream` block where nothing is said.
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
    /// Holds in the group of an address or name that stands in `proxy_pass` itself.
    pub fn implied() -> Keepalive {
        // Shorter than the five seconds after which Node.js, Apache and uvicorn close an idle connection, so that they
        // seldom do while a request is on its way.
        Keepalive { timeout: Duration::from_secs(4), ..Keepalive::default() }
    }
}

/// One `server` line.
#[derive(Clone, Debug)]
pub struct Server {
    /// What all its peers have in common.
    pub template: Peer,
    /// As written.
    pub place: Place,
    /// Port where none is written.
    pub default_port: u16,
    /// How it gets its addresses.
    pub source: Source,
    /// Its addresses now.
    pub found: Vec<Found>,
}

/// How a server gets its addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// They were known at the start.
    Fixed,
    /// `resolve`; with the name of the SRV record that `service=` asks for.
    Resolve(Option<String>),
    /// Not found at the start (`upstream_start_unresolved`): the system's resolver is asked again.
    Later,
}

/// An address that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Address.
    pub addr: PeerAddr,
    /// Weight of a SRV record.
    pub weight: Option<i64>,
    /// A SRV record of lower priority.
    pub backup: bool,
}

impl Found {
    /// An address of which no more is known.
    pub fn plain(addr: PeerAddr) -> Found {
        Found { addr, weight: None, backup: false }
    }
}

/// The servers of a group at one time.
#[derive(Debug, Default)]
pub struct PeerSet {
    /// Servers by address, in file order.
    pub peers: Vec<Peer>,
    /// There is one server and nothing to balance or limit: no lock is taken and nothing shared is counted.
    pub lone: bool,
    /// Factor of weights, so that `slow_start` can have parts of one.
    pub scale: i64,
    /// Sum of the weights of servers that are not backups.
    pub total_weight: i64,
    /// Points of `hash ... consistent`.
    pub ring: hash::Ring,
}

/// What one thread has of a [`PeerSet`].
#[derive(Debug)]
pub struct LocalSet {
    /// The servers.
    pub set: Arc<PeerSet>,
    /// Counters of this thread, for each server.
    pub shards: Vec<Arc<peer::Shard>>,
}

/// A group of servers.
#[derive(Debug)]
pub struct Group {
    /// Name, lower case.
    pub name: Vec<u8>,
    /// Written as an `upstream` block.
    pub explicit: bool,
    /// How it balances.
    pub method: Method,
    /// `sticky`.
    pub sticky: Option<sticky::Sticky>,
    /// `queue`.
    pub queue: Option<queue::Queue>,
    /// Idle connections.
    pub keepalive: Keepalive,
    /// `resolver`, here or on the http level.
    pub resolver: Option<Arc<Resolver>>,
    /// `resolver_timeout`: time to the next question after one that failed, and for the answer.
    pub resolver_timeout: Duration,
    /// `health_check`s of locations that pass to it.
    pub checks: Vec<health::Check>,
    /// Idle connections.
    pub idle: idle::Lists,
    servers: Mutex<Vec<Server>>,
    set: Mutex<Arc<PeerSet>>,
    version: AtomicU64,
    choosing: Mutex<()>,
    waiting: queue::Waiting,
}

/// State of a group in one thread.
#[derive(Debug, Default)]
pub struct GroupState {
    local: Option<(u64, Rc<LocalSet>)>,
}

impl GroupState {
    /// The servers as they are now.
    pub fn local(&mut self, group: &Group) -> Rc<LocalSet> {
        let version = group.version.load(Ordering::Acquire);
        match &self.local {
            Some((v, l)) if *v == version => l.clone(),
            _ => {
                let set = group.set();
                let shards = set.peers.iter().map(|p| p.live.shard()).collect();
                let l = Rc::new(LocalSet { set, shards });
                self.local = Some((version, l.clone()));
                l
            }
        }
    }
}

impl Group {
    /// A group at its start, without servers.
    pub fn new(name: Vec<u8>, explicit: bool, keepalive: Keepalive) -> Group {
        Group {
            name,
            explicit,
            method: Method::RoundRobin,
            sticky: None,
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
            waiting: queue::Waiting::default(),
        }
    }

    /// Gives it its servers.
    pub fn set_servers(&self, servers: Vec<Server>) {
        *lock(&self.servers) = servers;
        self.rebuild(&[]);
    }

    /// The servers as they are now.
    pub fn set(&self) -> Arc<PeerSet> {
        lock(&self.set).clone()
    }

    /// Looks at the `server` lines.
    pub fn with_servers<R>(&self, f: impl FnOnce(&[Server]) -> R) -> R {
        f(&lock(&self.servers))
    }

    /// A server has these addresses now. `true`: that is a change.
    pub fn found(&self, server: usize, found: Vec<Found>) -> bool {
        {
            let mut servers = lock(&self.servers);
            let Some(s) = servers.get_mut(server) else { return false };
            if s.found == found {
                return false;
            }
            s.found = found;
        }
        self.rebuild(&[]);
        true
    }

    /// Takes over what the group of the same name in the former configuration knows: addresses that were
    /// resolved, and the state of peers that stay.
    pub fn adopt(&self, old: &Group) {
        {
            let former = lock(&old.servers);
            for s in lock(&self.servers).iter_mut().filter(|s| s.source != Source::Fixed) {
                let same = |o: &&Server| {
                    o.place == s.place && o.source == s.source && o.default_port == s.default_port
                };
                if let Some(o) = former.iter().find(same) {
                    s.found.clone_from(&o.found);
                }
            }
        }
        if let (Some(mine), Some(theirs)) = (&self.sticky, &old.sticky) {
            mine.adopt(theirs);
        }
        self.rebuild(&old.set().peers);
    }

    /// Makes the peers anew; those that stay keep their state.
    fn rebuild(&self, former: &[Peer]) {
        let servers = lock(&self.servers);
        let mut present = lock(&self.set);
        let mut known: Vec<&Peer> = former.iter().chain(&present.peers).collect();
        let mut peers = Vec::new();
        for s in servers.iter() {
            for f in &s.found {
                let mut p = s.template.clone();
                p.name = forebay_net::addr::address_text(&f.addr);
                p.addr = f.addr.clone();
                p.weight = f.weight.unwrap_or(p.weight);
                p.backup |= f.backup;
                if !p.routed {
                    p.sid = sticky::sid(&p.name);
                }
                let same = |k: &&Peer| k.server == p.server && k.addr == p.addr;
                p.live = match known.iter().position(same) {
                    Some(at) => known.swap_remove(at).live.clone(),
                    None => Arc::default(),
                };
                self.start_health(&p, !former.is_empty());
                peers.push(p);
            }
        }
        let slow = peers.iter().any(|p| !p.slow_start.is_zero());
        let plain = |p: &Peer| p.max_conns == 0 && !p.down && !p.drain && p.slow_start.is_zero();
        let free = self.sticky.is_none() && self.queue.is_none() && self.checks.is_empty();
        let ring = match self.method {
            Method::Consistent(_) => hash::Ring::new(&peers),
            _ => hash::Ring::default(),
        };
        *present = Arc::new(PeerSet {
            lone: free && matches!(peers.as_slice(), [p] if plain(p)),
            scale: if slow { 100 } else { 1 },
            total_weight: peers.iter().filter(|p| !p.backup).map(|p| p.weight).sum(),
            ring,
            peers,
        });
        drop(present);
        self.version.fetch_add(1, Ordering::AcqRel);
    }

    /// What is thought of a peer before it is checked; `reloaded`: the configuration is a new one.
    fn start_health(&self, p: &Peer, reloaded: bool) {
        use peer::Health;
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
            p.live.down(peer::clock(Instant::now()));
        }
    }

    /// Peers are chosen one at a time.
    fn choosing(&self) -> MutexGuard<'_, ()> {
        lock(&self.choosing)
    }

    /// Calls `f` with the servers as they are set.
    pub fn settings<R>(&self, f: impl FnMut(&Peer) -> R) -> Vec<R> {
        self.set().peers.iter().map(f).collect()
    }

    /// What is known about each server.
    pub fn status(&self, now: Instant) -> Vec<PeerStatus> {
        let now = peer::clock(now);
        self.set().peers.iter().map(|p| p.status(now)).collect()
    }
}

#[cfg(test)]
mod tests;
