//! Choice of a peer of a group (nginx: the load balancing methods of the upstream modules). Hot path.

use super::group::{Group, PeerSet};
use super::hash::{self, IP_START};
use super::local::LocalSet;
use super::peer::{Figures, Live, Peer, average, clock, ms};
use crate::vars::{Evaluate, VarError};
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Instant;

/// Time by which `least_time` chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timed {
    /// `connect`: time to the connection, of sessions.
    Connect,
    /// `header`, or `first_byte` of sessions.
    Header,
    /// `last_byte`.
    LastByte,
}

impl Timed {
    /// Returns the mean of this time at a peer, microseconds.
    fn mean(self, live: &Live) -> u64 {
        let mean = match self {
            Timed::Connect => &live.connect_time,
            Timed::Header => &live.header_time,
            Timed::LastByte => &live.response_time,
        };
        mean.load(Relaxed)
    }
}

/// Measure by which the less loaded peer is chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Fewest requests under way.
    Connections,
    /// Shortest time.
    Time {
        /// The time.
        timed: Timed,
        /// Requests under way count as well.
        inflight: bool,
    },
}

/// Balancing method of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Method {
    /// Weighted round robin.
    #[default]
    RoundRobin,
    /// `least_conn` and `least_time`.
    Least(Load),
    /// `ip_hash`.
    IpHash,
    /// `hash KEY`; the key is [`Group::key`].
    Hash,
    /// `hash KEY consistent`.
    Consistent,
    /// `random`; `random two ...`.
    Random(Option<Load>),
}

impl Method {
    /// Returns the measure that it needs, if any.
    fn load(self) -> Option<Load> {
        match self {
            Method::Least(l) | Method::Random(Some(l)) => Some(l),
            _ => None,
        }
    }
}

/// Most keys that lead to unusable servers before round robin chooses.
const MAX_TRIES: u32 = 20;

/// Properties of a request or session that the choice of a peer depends on.
#[derive(Clone, Debug, Default)]
pub struct Key {
    /// Value of [`Group::key`]. Round robin chooses if it is empty.
    pub hash: Vec<u8>,
    /// Address of the client, for `ip_hash`.
    pub client: Option<IpAddr>,
    /// [`Peer::sid`] of the server that the session sticks to.
    pub sticky: Option<Vec<u8>>,
    /// A session that sticks to a server goes to no other.
    pub strict: bool,
}

impl Key {
    /// Evaluates the key of a group, except for what the request sticks to.
    ///
    /// # Errors
    /// If a variable cannot be evaluated.
    pub fn of<E: Evaluate>(group: &Group, e: &mut E) -> Result<Key, VarError> {
        let hash = group.key.as_ref().map(|key| key.value(e)).transpose()?;
        Ok(Key { hash: hash.unwrap_or_default(), client: e.peer().ip(), ..Key::default() })
    }
}

/// Chooses peers for one request, one after the other.
#[derive(Debug)]
pub struct Picker {
    /// The servers.
    pub local: Rc<LocalSet>,
    /// Peers that were asked without success.
    tried: Vec<usize>,
    key: Key,
    hash: u32,
    again: u32,
}

impl Picker {
    /// Creates the choice among `local`.
    pub fn new(local: Rc<LocalSet>, key: Key) -> Picker {
        let hash = match local.group.method {
            Method::Consistent => u32::try_from(local.set.ring.find(hash::crc32(&[&key.hash]))).unwrap_or(0),
            Method::IpHash => IP_START,
            _ => 0,
        };
        Picker { local, tried: Vec::new(), key, hash, again: 0 }
    }

    /// Notes that a peer was asked without success.
    pub fn give_up(&mut self, peer: usize) {
        self.tried.push(peer);
    }

    /// Forgets which peers were asked.
    pub fn ask_again(&mut self) {
        self.tried.clear();
    }

    /// Returns a peer by its number.
    pub fn peer(&self, peer: usize) -> Option<&Peer> {
        self.local.set.peers.get(peer)
    }

    /// Returns the number of servers that are not switched off.
    pub fn number(&self) -> usize {
        self.local.set.peers.iter().filter(|p| !p.down).count()
    }

    /// Chooses a peer, and counts the request as under way until `LocalSet::end`.
    pub fn choose(&mut self, now: Instant) -> Option<usize> {
        if self.local.set.lone {
            // A server that was tried is not chosen again, even if it is the only one.
            let shard = self.local.shards.first().filter(|_| self.tried.is_empty())?;
            shard.begin(clock(now));
            return Some(0);
        }
        let local = self.local.clone();
        let set = &*local.set;
        let now = clock(now);
        // Weights are loaded and stored, not changed atomically: this lock makes a choice one step.
        let _one_at_a_time = local.group.choosing();
        let chosen = self.pick(set, now)?;
        set.peers.get(chosen)?.begin(now);
        local.shards.get(chosen)?.begin(now);
        Some(chosen)
    }

    fn pick(&mut self, set: &PeerSet, now: u64) -> Option<usize> {
        if self.key.strict && self.key.sticky.is_some() {
            return self.stuck(set, now, false).or_else(|| self.stuck(set, now, true));
        }
        let method = self.local.group.method;
        self.stuck(set, now, false)
            .or_else(|| self.by_method(method, set, now))
            .or_else(|| self.stuck(set, now, true))
            .or_else(|| self.backup(method, set, now))
    }

    /// Returns `true` if a peer may be asked; `sticky`: by a request that sticks to it.
    fn usable(&self, set: &PeerSet, i: usize, p: &Peer, now: u64, sticky: bool) -> bool {
        !p.down
            && (sticky || !p.drain)
            && p.live.is_healthy()
            && (set.peers.len() == 1 || !p.is_failed(now))
            && !p.is_full()
            && !self.tried.contains(&i)
    }

    /// Returns the peer that the request sticks to.
    fn stuck(&self, set: &PeerSet, now: u64, backup: bool) -> Option<usize> {
        let sid = self.key.sticky.as_ref()?;
        let fits =
            |i: usize, p: &Peer| p.backup == backup && p.sid == *sid && self.usable(set, i, p, now, true);
        set.peers.iter().enumerate().find(|(i, p)| fits(*i, p)).map(|(i, _)| i)
    }

    fn by_method(&mut self, method: Method, set: &PeerSet, now: u64) -> Option<usize> {
        match method {
            Method::RoundRobin => self.round_robin(set, now, false),
            Method::Least(load) => self.least(set, now, false, load),
            Method::IpHash => self.ip_hash(set, now),
            Method::Hash | Method::Consistent if self.key.hash.is_empty() => {
                self.round_robin(set, now, false)
            }
            Method::Hash => self.hash(set, now),
            Method::Consistent => self.consistent(set, now),
            Method::Random(two) => self.random(set, now, two),
        }
    }

    /// Chooses among the backups.
    fn backup(&self, method: Method, set: &PeerSet, now: u64) -> Option<usize> {
        match method {
            Method::Least(load) => self.least(set, now, true, load),
            _ => self.round_robin(set, now, true),
        }
    }

    /// Chooses by smooth weighted round robin.
    fn round_robin(&self, set: &PeerSet, now: u64, backup: bool) -> Option<usize> {
        self.among(set, now, |p| p.backup == backup)
    }

    /// Chooses by smooth weighted round robin among the peers for which `fits` is `true`.
    fn among(&self, set: &PeerSet, now: u64, fits: impl Fn(&Peer) -> bool) -> Option<usize> {
        let mut best: Option<(usize, i64)> = None;
        let mut total = 0;
        for (i, p) in set.peers.iter().enumerate() {
            if !fits(p) || !self.usable(set, i, p, now, false) {
                continue;
            }
            let deficit = p.live.deficit.load(Relaxed);
            let effective = (p.weight_now(set.scale, now) - deficit).max(0);
            let current = p.live.current.load(Relaxed) + effective;
            p.live.current.store(current, Relaxed);
            total += effective;
            if deficit > 0 {
                p.live.deficit.store((deficit - set.scale).max(0), Relaxed);
            }
            if best.is_none_or(|(_, c)| current > c) {
                best = Some((i, current));
            }
        }
        let (i, current) = best?;
        // The chosen one pays what all have got, so the sum of the current weights stays the same.
        set.peers.get(i)?.live.current.store(current - total, Relaxed);
        Some(i)
    }

    /// Chooses the peer with the least load for its weight; equals take turns.
    fn least(&self, set: &PeerSet, now: u64, backup: bool, load: Load) -> Option<usize> {
        let mut best: Option<(u128, i64)> = None;
        let usable = |i: usize, p: &Peer| p.backup == backup && self.usable(set, i, p, now, false);
        for (i, p) in set.peers.iter().enumerate().filter(|(i, p)| usable(*i, p)) {
            if load != Load::Connections && is_worth_a_try(p, load, now) {
                // As if a request had just ended: others do not try it at the same time.
                p.live.ended.store(now, Relaxed);
                return Some(i);
            }
            let mine = (burden(p, load, now), p.weight_now(set.scale, now));
            if best.is_none_or(|b| lighter(mine, b)) {
                best = Some(mine);
            }
        }
        let best = best?;
        self.among(set, now, |p| {
            let mine = (burden(p, load, now), p.weight_now(set.scale, now));
            p.backup == backup && !lighter(best, mine)
        })
    }

    fn ip_hash(&mut self, set: &PeerSet, now: u64) -> Option<usize> {
        while self.again <= MAX_TRIES && set.peers.len() > 1 {
            let h = hash::ip(self.key.client, self.hash);
            self.hash = h;
            match at_weight(set, h) {
                Some(i) if self.usable(set, i, set.peers.get(i)?, now, false) => return Some(i),
                _ => self.again += 1,
            }
        }
        self.round_robin(set, now, false)
    }

    fn hash(&mut self, set: &PeerSet, now: u64) -> Option<usize> {
        let mut tries = 0;
        while tries <= MAX_TRIES && set.peers.len() > 1 {
            self.hash = self.hash.wrapping_add(hash::memcached(&self.key.hash, self.again));
            self.again += 1;
            match at_weight(set, self.hash) {
                Some(i) if self.usable(set, i, set.peers.get(i)?, now, false) => return Some(i),
                _ => tries += 1,
            }
        }
        self.round_robin(set, now, false)
    }

    fn consistent(&mut self, set: &PeerSet, now: u64) -> Option<usize> {
        while self.again <= MAX_TRIES {
            // The points of the ring belong to servers as written. A server may have several addresses, which take
            // turns.
            let server = &set.peers.get(set.ring.server_at(self.hash as usize)?)?.server;
            let found = self.among(set, now, |p| !p.backup && p.server == *server);
            if found.is_some() {
                return found;
            }
            self.hash = self.hash.wrapping_add(1);
            self.again += 1;
        }
        self.round_robin(set, now, false)
    }

    fn random(&self, set: &PeerSet, now: u64, two: Option<Load>) -> Option<usize> {
        let mut first: Option<usize> = None;
        for _ in 0..=MAX_TRIES {
            let n = forebay_sys::random::quick();
            let Some(i) = at_weight(set, n) else { continue };
            let p = set.peers.get(i)?;
            if !self.usable(set, i, p, now, false) || first == Some(i) {
                continue;
            }
            let Some(load) = two else { return Some(i) };
            let Some(other) = first else {
                first = Some(i);
                continue;
            };
            let weigh = |p: &Peer| (burden(p, load, now), p.weight_now(set.scale, now));
            let o = set.peers.get(other)?;
            return Some(if lighter(weigh(p), weigh(o)) { i } else { other });
        }
        first.or_else(|| self.round_robin(set, now, false))
    }
}

/// Returns the peer at a number on the line of weights. Servers that are down keep their place on it.
fn at_weight(set: &PeerSet, n: u32) -> Option<usize> {
    let total: i64 = set.total_weight;
    // Without any weight (only backups) there is no remainder.
    let mut w = i64::from(n).checked_rem(total)?;
    for (i, p) in set.peers.iter().enumerate().filter(|(_, p)| !p.backup) {
        w -= p.weight;
        if w < 0 {
            return Some(i);
        }
    }
    None
}

/// Returns `true` if the first load is less than the second, each for its weight.
fn lighter((a, wa): (u128, i64), (b, wb): (u128, i64)) -> bool {
    a * u128::from(wb.unsigned_abs()) < b * u128::from(wa.unsigned_abs())
}

/// Returns the load of a peer.
fn burden(p: &Peer, load: Load, now: u64) -> u128 {
    let conns = u128::from(p.live.conns.load(Relaxed));
    match load {
        Load::Connections => conns,
        // Times within a millisecond are equal; then the requests under way decide.
        Load::Time { .. } => u128::from(time(p, load, now)) * (conns + 1) * 1_000_000 + conns,
    }
}

/// Returns the milliseconds that a peer takes. The mean halves with each second without a response.
fn time(p: &Peer, load: Load, now: u64) -> u64 {
    let Load::Time { timed, inflight } = load else { return 0 };
    let l = &p.live;
    let idle = now.saturating_sub(l.ended.load(Relaxed)) / 1000;
    let past = (timed.mean(l) / 1000).checked_shr(u32::try_from(idle).unwrap_or(63)).unwrap_or(0);
    if !inflight {
        return past;
    }
    let waits = u64::from(l.waits.load(Relaxed));
    // The mean of the waits so far, from the sum of the times at which they began.
    let waiting = (now * waits).saturating_sub(l.waits_began.load(Relaxed)).checked_div(waits);
    past.max(waiting.unwrap_or(0))
}

/// Returns `true` if a slow peer has had no requests for so long that one may find out whether it is faster now.
fn is_worth_a_try(p: &Peer, load: Load, now: u64) -> bool {
    let Load::Time { timed, .. } = load else { return false };
    let l = &p.live;
    let mean = timed.mean(l) / 1000;
    let rest = ms(p.fail_timeout).max(mean - mean / 4).max(1000);
    mean > 0 && l.conns.load(Relaxed) == 0 && now.saturating_sub(l.ended.load(Relaxed)) >= rest
}

impl LocalSet {
    /// Counts the end of a request to a chosen peer.
    pub(super) fn end(&self, peer: usize) {
        if let Some(s) = self.shards.get(peer) {
            s.end();
        }
        if self.set.lone {
            // `choose` has counted nothing else, and no request waits for a lone server.
            return;
        }
        if let Some(p) = self.set.peers.get(peer) {
            let _ = p.live.conns.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1));
        }
        self.group.wake_one();
    }

    /// Returns the time for which requests count as waiting (`least_time TIME inflight`).
    pub(super) fn awaited(&self) -> Option<Timed> {
        match self.group.method.load() {
            Some(Load::Time { timed, inflight: true }) if !self.set.lone => Some(timed),
            _ => None,
        }
    }

    /// Counts a request to a chosen peer that waits since `begun`.
    pub(super) fn begin_wait(&self, peer: usize, begun: Instant) {
        if let Some(p) = self.set.peers.get(peer) {
            p.live.waits.fetch_add(1, Relaxed);
            p.live.waits_began.fetch_add(clock(begun), Relaxed);
        }
    }

    /// Ends the wait of a request that has waited since `begun`.
    pub(super) fn end_wait(&self, peer: usize, begun: Instant) {
        if let Some(p) = self.set.peers.get(peer) {
            let _ = p.live.waits.fetch_update(Relaxed, Relaxed, |n| n.checked_sub(1));
            let began = clock(begun);
            let _ = p.live.waits_began.fetch_update(Relaxed, Relaxed, |n| Some(n.saturating_sub(began)));
        }
    }

    /// Notes why a request to a peer has failed, in the words of the error log.
    #[cold]
    pub fn note_failure(&self, peer: usize, reason: &str, now: Instant) {
        if let Some(p) = self.set.peers.get(peer) {
            p.live.note_failure(reason, now);
        }
    }

    /// Counts a failed request. Returns `true` if the peer gets no requests for now.
    pub fn fail(&self, peer: usize, now: Instant) -> bool {
        let set = &self.set;
        let Some(p) = set.peers.get(peer) else { return false };
        let l = &p.live;
        l.total_fails.fetch_add(1, Relaxed);
        // A single server is never considered unavailable (nginx: max_fails).
        if set.peers.len() < 2 {
            return false;
        }
        let now = clock(now);
        let fails = l.fails.fetch_add(1, Relaxed).saturating_add(1);
        l.failed.store(now, Relaxed);
        l.checked.store(now, Relaxed);
        if p.max_fails == 0 {
            return false;
        }
        let full = p.weight * set.scale;
        let deficit = l.deficit.load(Relaxed) + full / i64::from(p.max_fails);
        l.deficit.store(deficit.min(full), Relaxed);
        // Equal, not more: several requests may fail at a time, and it becomes unavailable once.
        if fails == p.max_fails {
            l.unavail.fetch_add(1, Relaxed);
        }
        if fails >= p.max_fails {
            l.down(now);
        }
        fails >= p.max_fails
    }

    /// Counts a successful request: forgets failures before the present period.
    pub(super) fn succeed(&self, peer: usize, now: Instant) {
        let Some(p) = self.set.peers.get(peer).filter(|_| !self.set.lone) else { return };
        let l = &p.live;
        let failed = l.failed.load(Relaxed);
        // `checked` is the later time only if a request has begun another period after the last failure.
        if failed != 0 && failed < l.checked.load(Relaxed) {
            if p.max_fails != 0 && l.fails.load(Relaxed) >= p.max_fails {
                l.up_since.store(clock(now), Relaxed);
                l.deficit.store(0, Relaxed);
                l.up(clock(now));
            }
            l.fails.store(0, Relaxed);
            l.failed.store(0, Relaxed);
        }
    }

    /// Takes the times of a response into account for `least_time`.
    pub(super) fn measure(&self, peer: usize, f: &Figures, now: Instant) {
        if !matches!(self.group.method.load(), Some(Load::Time { .. })) {
            return;
        }
        let Some(p) = self.set.peers.get(peer) else { return };
        if let Some(connect) = f.connect {
            average(&p.live.connect_time, connect);
        }
        let Some(header) = f.header else { return };
        average(&p.live.header_time, header);
        if let Some(d) = f.response {
            average(&p.live.response_time, d);
        }
        p.live.ended.store(clock(now), Relaxed);
    }
}

impl Peer {
    /// Counts a request that goes to this peer. After `fail_timeout`, the request begins the next period in which failures
    /// count.
    fn begin(&self, now: u64) {
        let l = &self.live;
        let checked = l.checked.load(Relaxed);
        if now.saturating_sub(checked) > ms(self.fail_timeout) {
            l.checked.store(now, Relaxed);
            if self.max_fails != 0 && l.fails.load(Relaxed) >= self.max_fails {
                // No other request reaches it until this one has a response.
                l.up(checked + ms(self.fail_timeout));
                l.down(now);
            }
        }
        l.conns.fetch_add(1, Relaxed);
    }
}
