//! Resolution of names at run time (nginx: resolver). All threads share a cache. Queries run on the process's tokio thread
//! and wake each request that waits for them.

mod client;
pub mod message;
mod stats;
mod system;

use forebay_sys::sync::lock;
use message::{Caa, Data, Kind, Response};
pub use stats::Stats;
use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Parameters of a resolver (nginx: resolver).
#[derive(Debug, Default)]
pub struct Parameters {
    /// Name servers.
    pub servers: Vec<SocketAddr>,
    /// Lifetime of answers, instead of their TTL (`valid=`).
    pub valid: Option<Duration>,
    /// IPv4 addresses are looked up.
    pub ipv4: bool,
    /// IPv6 addresses are looked up.
    pub ipv6: bool,
    /// Zone of its counters (`status_zone=`).
    pub zone: Option<Vec<u8>>,
}

/// Resolver of host names.
#[derive(Debug)]
pub struct Resolver {
    servers: Vec<SocketAddr>,
    valid: Option<Duration>,
    ipv4: bool,
    ipv6: bool,
    /// `status_zone=`.
    pub zone: Option<Vec<u8>>,
    /// The system's settings, in effect without `resolver`.
    system: Option<system::System>,
    next: AtomicUsize,
    cache: Arc<Names>,
    /// Counters. With a zone these are the counters of the zone.
    pub stats: Arc<Stats>,
}

/// Reason for which a name has no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The server did not understand the query, or its response is malformed.
    Format,
    /// The server failed.
    Server,
    /// There is no such name, or it has no address.
    NotFound,
    /// The server does not support the query.
    Unimplemented,
    /// The server refuses the query.
    Refused,
    /// Another code.
    Other(u8),
    /// No answer in time.
    Timeout,
}

impl Failure {
    fn of(code: u8) -> Failure {
        match code {
            1 => Failure::Format,
            2 => Failure::Server,
            3 => Failure::NotFound,
            4 => Failure::Unimplemented,
            5 => Failure::Refused,
            n => Failure::Other(n),
        }
    }
}

/// Writes nginx's text, as in `3: Host not found`.
impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Format => f.write_str("1: Format error"),
            Failure::Server => f.write_str("2: Server failure"),
            Failure::NotFound => f.write_str("3: Host not found"),
            Failure::Unimplemented => f.write_str("4: Unimplemented"),
            Failure::Refused => f.write_str("5: Operation refused"),
            Failure::Other(n) => write!(f, "{n}: Unknown error"),
            Failure::Timeout => f.write_str("110: Operation timed out"),
        }
    }
}

/// Addresses of a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// At least one, IPv4 first. A lookup has the order of the answer, as in nginx; each further use rotates each family.
    pub ips: Vec<IpAddr>,
    /// Lifetime.
    pub ttl: Duration,
}

/// A server that offers a service, by a SRV record.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Service {
    pub addr: SocketAddr,
    pub priority: u16,
    pub weight: u16,
}

#[derive(Debug)]
enum Entry {
    /// A query is running.
    Pending(Vec<oneshot::Sender<Result<Addresses, Failure>>>),
    Done {
        found: Addresses,
        until: Instant,
        turn: usize,
    },
}

/// Cache of a resolver.
#[derive(Debug, Default)]
struct Names(Mutex<HashMap<Box<[u8]>, Entry, foldhash::fast::RandomState>>);

/// Parameters by which resolvers share a cache: servers, `valid=`, `ipv4=` and `ipv6=`, `status_zone=`.
type Alike = (Vec<SocketAddr>, Option<Duration>, (bool, bool), Option<Vec<u8>>);

/// Caches of this process by parameters. They survive a reload, so that it needs no name server.
static NAMES: Mutex<Vec<(Alike, Weak<Names>)>> = Mutex::new(Vec::new());

fn shared_names(alike: Alike) -> Arc<Names> {
    let mut all = lock(&NAMES);
    all.retain(|(_, names)| names.strong_count() > 0);
    // A configuration that is being loaded takes the cache over before the old one goes, so the addresses
    // stay known.
    let same = all.iter().find(|(other, _)| *other == alike);
    if let Some(names) = same.and_then(|(_, names)| names.upgrade()) {
        return names;
    }
    let names = Arc::new(Names::default());
    all.push((alike, Arc::downgrade(&names)));
    names
}

/// Largest number of names in a cache.
const MAX_NAMES: usize = 10_000;
/// Largest number of requests that wait for one name.
const MAX_WAITING: usize = 100_000;
/// Largest number of aliases that are followed from a name.
const MAX_CNAMES: usize = 8;
/// Longest lifetime of an answer.
const MAX_TTL: u32 = 7 * 24 * 3600;
/// Largest number of servers by SRV records.
const MAX_SERVICES: usize = 256;

/// A lookup in progress. Its end wakes the requests that wait, even if it panics.
struct Question {
    resolver: Arc<Resolver>,
    name: Vec<u8>,
    found: Result<Addresses, Failure>,
}

impl Question {
    async fn ask(&mut self) {
        self.found = self.resolver.look_up(&self.name).await;
    }
}

impl Drop for Question {
    fn drop(&mut self) {
        let found = std::mem::replace(&mut self.found, Err(Failure::Server));
        self.resolver.store(&self.name, found);
    }
}

impl Resolver {
    fn asking(servers: Vec<SocketAddr>) -> Resolver {
        Resolver {
            servers,
            valid: None,
            ipv4: true,
            ipv6: true,
            zone: None,
            system: None,
            next: AtomicUsize::new(0),
            cache: Arc::default(),
            stats: Arc::default(),
        }
    }

    /// Creates a resolver. Resolvers with the same parameters share their cache.
    pub fn new(p: Parameters) -> Resolver {
        let cache = shared_names((p.servers.clone(), p.valid, (p.ipv4, p.ipv6), p.zone.clone()));
        let stats = p.zone.as_deref().map(Stats::zone).unwrap_or_default();
        let Parameters { servers, valid, ipv4, ipv6, zone } = p;
        Resolver { valid, ipv4, ipv6, zone, cache, stats, ..Resolver::asking(servers) }
    }

    fn cache(&self) -> std::sync::MutexGuard<'_, HashMap<Box<[u8]>, Entry, foldhash::fast::RandomState>> {
        lock(&self.cache.0)
    }

    /// Returns the addresses of a name, from the cache if they are there and `fresh` is not set. Needs a tokio context. Has
    /// no time limit of its own below a minute.
    ///
    /// # Errors
    /// [`Failure`]; not cached.
    pub async fn addresses(self: &Arc<Self>, name: &[u8], fresh: bool) -> Result<Addresses, Failure> {
        // Names are compared without regard to case (RFC 4343), and a dot at the end means the same name
        // here.
        let name = name.strip_suffix(b".").unwrap_or(name).to_ascii_lowercase();
        let (sender, receiver) = oneshot::channel();
        {
            let mut cache = self.cache();
            match cache.get_mut(name.as_slice()) {
                Some(Entry::Done { found, until, turn }) if !fresh && Instant::now() < *until => {
                    *turn = turn.wrapping_add(1);
                    let mut found = found.clone();
                    rotate(&mut found.ips, *turn);
                    return Ok(found);
                }
                Some(Entry::Pending(waiting)) if waiting.len() >= MAX_WAITING => {
                    return Err(Failure::Timeout);
                }
                Some(Entry::Pending(waiting)) => waiting.push(sender),
                _ => {
                    make_room(&mut cache)?;
                    // This comes before the entry is made, since a pending entry without a query would hold
                    // its name for ever.
                    let tokio = tokio::runtime::Handle::try_current().map_err(|_| Failure::Timeout)?;
                    cache.insert(name.as_slice().into(), Entry::Pending(vec![sender]));
                    let mut question = Question { resolver: self.clone(), name, found: Err(Failure::Server) };
                    // The query has a task of its own, so that it goes on for other requests if the one that
                    // began it ends.
                    tokio.spawn(async move { question.ask().await });
                }
            }
        }
        receiver.await.unwrap_or(Err(Failure::Timeout))
    }

    /// Ends a lookup: stores addresses, and gives the result to the requests that wait for it.
    fn store(&self, name: &[u8], found: Result<Addresses, Failure>) {
        let mut cache = self.cache();
        let waiting = match cache.remove(name) {
            Some(Entry::Pending(w)) => w,
            _ => Vec::new(),
        };
        if let Ok(a) = &found {
            let until = Instant::now() + a.ttl;
            cache.insert(name.into(), Entry::Done { found: a.clone(), until, turn: 0 });
        }
        drop(cache);
        for w in waiting {
            let _ = w.send(found.clone());
        }
    }

    fn ttl(&self, ttl: u32) -> Duration {
        self.valid.unwrap_or(Duration::from_secs(u64::from(ttl.min(MAX_TTL))))
    }

    /// Returns `true` if a request waits for a name.
    fn is_wanted(&self, key: &[u8]) -> bool {
        match self.cache().get(key) {
            Some(Entry::Pending(waiting)) => waiting.iter().any(|w| !w.is_closed()),
            _ => false,
        }
    }

    async fn look_up(&self, key: &[u8]) -> Result<Addresses, Failure> {
        self.stats.asked(stats::Asked::Name);
        let Some(system) = &self.system else { return self.look_up_name(key, key.to_vec()).await };
        if let Some(found) = system.host(key) {
            return Ok(found);
        }
        for name in system.candidates(key) {
            match self.look_up_name(key, name).await {
                Err(Failure::NotFound) => {}
                found => return found,
            }
        }
        Err(Failure::NotFound)
    }

    async fn look_up_name(&self, key: &[u8], mut name: Vec<u8>) -> Result<Addresses, Failure> {
        let mut ttl = MAX_TTL;
        for _ in 0..MAX_CNAMES {
            let first = self.next.fetch_add(1, Ordering::Relaxed);
            let (a, aaaa) = both(
                self.ask_if(self.ipv4, key, &name, Kind::A, first),
                self.ask_if(self.ipv6, key, &name, Kind::Aaaa, first),
            )
            .await;
            // IPv4 is added first: `rotate` relies on that order.
            let mut answers = Answers { ips: Vec::new(), ttl, alias: None, failure: None };
            for got in [a, aaaa].into_iter().flatten() {
                answers.add(got, &name);
            }
            let Answers { ips, alias, failure, .. } = answers;
            ttl = answers.ttl;
            // The answer that failed may have held the addresses that can be reached. From the system's name servers half an
            // answer is enough, as in glibc.
            if let Some(e) = failure.filter(|_| self.system.is_none() || ips.is_empty()) {
                return Err(e);
            }
            if !ips.is_empty() {
                return Ok(Addresses { ips, ttl: self.ttl(ttl) });
            }
            let chain = alias.ok_or(Failure::NotFound)?;
            ttl = ttl.min(chain.ttl);
            name = chain.name;
        }
        Err(Failure::NotFound)
    }

    async fn ask_if(
        &self,
        on: bool,
        key: &[u8],
        name: &[u8],
        kind: Kind,
        first: usize,
    ) -> Option<Result<Response, Failure>> {
        if on { Some(self.count(self.ask(Some(key), name, kind, first).await)) } else { None }
    }

    /// Returns the servers that offer a service, with the addresses of all of them.
    ///
    /// # Errors
    /// [`Failure`], also of the lookup of one server.
    pub async fn services(self: &Arc<Self>, service: &[u8]) -> Result<(Vec<Service>, Duration), Failure> {
        self.stats.asked(stats::Asked::Service);
        let mut name = service.to_ascii_lowercase();
        let mut ttl = MAX_TTL;
        for _ in 0..MAX_CNAMES {
            let first = self.next.fetch_add(1, Ordering::Relaxed);
            let r = self.count(self.ask(None, &name, Kind::Srv, first).await)?;
            if r.code != 0 {
                return Err(Failure::of(r.code));
            }
            let chain = follow(&r, &name);
            ttl = ttl.min(chain.ttl);
            if let Some((found, least)) = self.offered(&r, &chain.name).await? {
                return Ok((found, self.ttl(ttl.min(least))));
            }
            if chain.name == name {
                return Err(Failure::NotFound);
            }
            name = chain.name;
        }
        Err(Failure::NotFound)
    }

    /// Returns the servers that the SRV records of a name list, and the least lifetime of these; `None` if there are no such
    /// records.
    async fn offered(
        self: &Arc<Self>,
        r: &Response,
        name: &[u8],
    ) -> Result<Option<(Vec<Service>, u32)>, Failure> {
        let (mut found, mut least) = (Vec::new(), None);
        for record in r.records.iter().filter(|x| x.owner == name).take(MAX_SERVICES) {
            let Data::Srv { priority, weight, port, target } = &record.data else { continue };
            least = Some(least.map_or(record.ttl, |ttl: u32| ttl.min(record.ttl)));
            let mut ips = match self.addresses(target, true).await {
                Ok(a) => a.ips,
                Err(Failure::NotFound) => continue,
                Err(e) => return Err(e),
            };
            // The order is fixed, since name servers rotate addresses and a rotation is no change.
            ips.sort_unstable();
            let all = ips.iter().map(|ip| SocketAddr::new(*ip, *port));
            found.extend(all.map(|addr| Service { addr, priority: *priority, weight: *weight }));
        }
        Ok(least.map(|least| (found, least)))
    }

    /// Returns the rules about authorities in effect for a name: its own or those of the nearest parent that has any (RFC 8659,
    /// section 3). Empty if there are none. Not cached.
    ///
    /// # Errors
    /// [`Failure`] of a query, in which case an authority issues no certificate either.
    pub async fn authority_rules(&self, name: &[u8]) -> Result<Vec<Caa>, Failure> {
        let lower = name.strip_suffix(b".").unwrap_or(name).to_ascii_lowercase();
        let mut at = lower.as_slice();
        loop {
            let first = self.next.fetch_add(1, Ordering::Relaxed);
            let response = self.count(self.ask(None, at, Kind::Caa, first).await)?;
            let rules = match response.code {
                0 => rules_of(&response, at),
                // The parents of a name that does not exist may have rules.
                3 => Vec::new(),
                code => return Err(Failure::of(code)),
            };
            let dot = at.iter().position(|b| *b == b'.');
            match dot.and_then(|dot| at.get(dot + 1..)) {
                Some(parent) if rules.is_empty() => at = parent,
                _ => return Ok(rules),
            }
        }
    }

    /// Counts the result of a query.
    fn count(&self, got: Result<Response, Failure>) -> Result<Response, Failure> {
        self.stats.answered(match &got {
            Ok(r) if r.code == 0 => None,
            Ok(r) => Some(Failure::of(r.code)),
            Err(e) => Some(*e),
        });
        got
    }

    /// Returns the time to wait after an answer without addresses.
    pub fn retry(&self) -> Option<Duration> {
        self.valid
    }
}

/// Returns the rules about authorities that a response has for a name, or for the name that this one stands for.
fn rules_of(response: &Response, name: &[u8]) -> Vec<Caa> {
    let owner = follow(response, name).name;
    let own = response.records.iter().filter(|r| r.owner == owner);
    own.filter_map(|r| if let Data::Caa(rule) = &r.data { Some(rule.clone()) } else { None }).collect()
}

/// Rotates the addresses of each family. IPv4 stays first.
fn rotate(ips: &mut [IpAddr], turn: usize) {
    let at = ips.partition_point(IpAddr::is_ipv4);
    let (v4, v6) = ips.split_at_mut(at);
    for family in [v4, v6] {
        let n = family.len();
        if n > 0 {
            family.rotate_left(turn % n);
        }
    }
}

/// Makes room in a full cache: removes entries that have run out, or else any known one, since names may come from clients.
///
/// # Errors
/// [`Failure::Timeout`] if requests wait for all entries.
fn make_room(cache: &mut HashMap<Box<[u8]>, Entry, foldhash::fast::RandomState>) -> Result<(), Failure> {
    if cache.len() < MAX_NAMES {
        return Ok(());
    }
    let now = Instant::now();
    cache.retain(|_, e| !matches!(e, Entry::Done { until, .. } if *until <= now));
    if cache.len() >= MAX_NAMES {
        let known = cache.iter().find(|(_, e)| matches!(e, Entry::Done { .. }));
        let key = known.map(|(k, _)| k.clone()).ok_or(Failure::Timeout)?;
        cache.remove(&key);
    }
    Ok(())
}

/// Answers to the queries for both kinds of addresses of a name.
struct Answers {
    ips: Vec<IpAddr>,
    /// Least lifetime.
    ttl: u32,
    /// Name for which the queried name is an alias.
    alias: Option<Chain>,
    /// First failure.
    failure: Option<Failure>,
}

impl Answers {
    fn add(&mut self, got: Result<Response, Failure>, name: &[u8]) {
        // If both name an alias, the last one counts, as in nginx.
        self.alias = None;
        let failure = match got {
            Ok(r) if r.code == 0 => return self.add_records(&r, name),
            Ok(r) => Failure::of(r.code),
            Err(e) => e,
        };
        self.failure.get_or_insert(failure);
    }

    fn add_records(&mut self, r: &Response, name: &[u8]) {
        let chain = follow(r, name);
        for record in r.records.iter().filter(|x| x.owner == chain.name) {
            if let Data::Addr(ip) = record.data {
                self.ttl = self.ttl.min(record.ttl).min(chain.ttl);
                self.ips.push(ip);
            }
        }
        self.alias = (chain.name != name).then_some(chain);
    }
}

/// Polls two futures at a time.
async fn both<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
    let (mut a, mut b) = (std::pin::pin!(a), std::pin::pin!(b));
    let (mut first, mut second) = (None, None);
    std::future::poll_fn(|cx| {
        if first.is_none()
            && let Poll::Ready(v) = a.as_mut().poll(cx)
        {
            first = Some(v);
        }
        if second.is_none()
            && let Poll::Ready(v) = b.as_mut().poll(cx)
        {
            second = Some(v);
        }
        match (first.take(), second.take()) {
            (Some(x), Some(y)) => Poll::Ready((x, y)),
            (x, y) => {
                (first, second) = (x, y);
                Poll::Pending
            }
        }
    })
    .await
}

/// Name at the end of a chain of aliases.
struct Chain {
    name: Vec<u8>,
    ttl: u32,
}

/// Follows the aliases in a response. They may be in any order.
fn follow(r: &Response, name: &[u8]) -> Chain {
    let mut c = Chain { name: name.to_vec(), ttl: MAX_TTL };
    for _ in 0..MAX_CNAMES {
        let next = r.records.iter().find_map(|x| match &x.data {
            Data::Cname(n) if x.owner == c.name => Some((n, x.ttl)),
            _ => None,
        });
        let Some((n, ttl)) = next else { break };
        c.name.clone_from(n);
        c.ttl = c.ttl.min(ttl);
    }
    c
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn families_stay_in_order() {
        let ip = |t: &str| t.parse::<IpAddr>().expect("an address");
        let mut ips = [ip("1.1.1.1"), ip("2.2.2.2"), ip("::1"), ip("::2"), ip("::3")];
        rotate(&mut ips, 1);
        assert_eq!(ips, [ip("2.2.2.2"), ip("1.1.1.1"), ip("::2"), ip("::3"), ip("::1")]);
    }

    #[test]
    fn a_question_that_ends_without_an_answer_frees_its_name() {
        let resolver = Arc::new(Resolver::asking(Vec::new()));
        let (tell, mut told) = oneshot::channel();
        resolver.cache().insert((*b"name").into(), Entry::Pending(vec![tell]));
        let found = Err(Failure::Server);
        drop(Question { resolver: resolver.clone(), name: b"name".to_vec(), found });
        assert_eq!(told.try_recv(), Ok(Err(Failure::Server)));
        assert!(resolver.cache().is_empty());
    }

    /// Starts a name server with three addresses for every name.
    fn name_server() -> SocketAddr {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("bind");
        let at = socket.local_addr().expect("bound");
        std::thread::spawn(move || {
            let mut buf = [0; 512];
            while let Ok((n, from)) = socket.recv_from(&mut buf) {
                let question = &buf[12..n];
                let is_a = question[question.len() - 3] == 1;
                let hosts: &[u8] = if is_a { &[1, 2, 3] } else { &[] };
                let mut answer = vec![buf[0], buf[1], 0x81, 0x80, 0, 1, 0, hosts.len() as u8, 0, 0, 0, 0];
                answer.extend_from_slice(question);
                for host in hosts {
                    answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 192, 0, 2, *host]);
                }
                let _ = socket.send_to(&answer, from);
            }
        });
        at
    }

    /// A name that was just looked up has the order of the answer: with fewer tries than addresses, it decides which are reached.
    #[test]
    fn addresses_rotate_after_the_first_use() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        let resolver = Arc::new(Resolver::asking(vec![name_server()]));
        for name in ["a.test", "b.test", "c.test"] {
            let hosts = || {
                let found = runtime.block_on(resolver.addresses(name.as_bytes(), false)).expect("addresses");
                found.ips.iter().map(|ip| ip.to_string().replace("192.0.2.", "")).collect::<String>()
            };
            assert_eq!([hosts(), hosts(), hosts(), hosts()], ["123", "231", "312", "123"]);
        }
    }

    #[test]
    fn aliases_in_any_order() {
        let cname = |owner: &str, to: &str, ttl| message::Record {
            owner: owner.into(),
            ttl,
            data: Data::Cname(to.into()),
        };
        let records = vec![cname("b", "c", 5), cname("a", "b", 9), cname("x", "y", 1)];
        let r = Response { code: 0, truncated: false, records };
        let c = follow(&r, b"a");
        assert_eq!((c.name.as_slice(), c.ttl), (&b"c"[..], 5));
        // A circle ends.
        let r = Response { records: vec![cname("a", "b", 1), cname("b", "a", 1)], ..r };
        follow(&r, b"a");
    }
}
