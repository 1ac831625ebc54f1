//! Which peer of a group a request goes to (nginx: the load balancing methods of the upstream modules).
//! Hot path.

use super::hash::{self, IP_START};
use super::peer::{Peer, clock, ms};
use super::{Group, LocalSet, PeerSet};
use crate::request::Request;
use forebay_core::vars::Template;
use std::net::IpAddr;
use std::rc::Rc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// What `least_time` goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timed {
    /// `header`.
    Header,
    /// `last_byte`.
    LastByte,
}

/// What makes a peer the better one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Load {
    /// Fewest requests under way.
    Connections,
    /// Shortest time; `inflight`: requests under way count as well.
    Time {
        /// Which time.
        timed: Timed,
        /// `inflight`.
        inflight: bool,
    },
}

/// How a group balances.
#[derive(Clone, Debug, Default)]
pub enum Method {
    /// Weighted round robin.
    #[default]
    RoundRobin,
    /// `least_conn` and `least_time`.
    Least(Load),
    /// `ip_hash`.
    IpHash,
    /// `hash KEY`.
    Hash(Template),
    /// `hash KEY consistent`.
    Consistent(Template),
    /// `random`; `random two ...`.
    Random(Option<Load>),
}

impl Method {
    /// Whether the requests under way must be counted for it.
    pub fn counts(&self) -> bool {
        matches!(self, Method::Least(_) | Method::Random(Some(_)))
    }

    /// What it measures.
    pub fn load(&self) -> Option<Load> {
        match self {
            Method::Least(l) | Method::Random(Some(l)) => Some(*l),
            _ => None,
        }
    }
}

/// Keys that found unusable servers before round robin takes over.
const MAX_TRIES: u32 = 20;

/// The choices for one request.
#[derive(Debug)]
pub struct Picker {
    /// The servers, as they were when the request came.
    pub local: Rc<LocalSet>,
    tried: Vec<usize>,
    key: Vec<u8>,
    client: Option<IpAddr>,
    hash: u32,
    again: u32,
    /// What the request sticks to.
    pub sticky: Option<Vec<u8>>,
}

impl Picker {
    /// Starts. `key`: value of the key of `hash`.
    pub fn new(local: Rc<LocalSet>) -> Picker {
        Picker { local, tried: Vec::new(), key: Vec::new(), client: None, hash: 0, again: 0, sticky: None }
    }

    /// Starts for a request.
    ///
    /// # Errors
    /// When the key or what it sticks to cannot be evaluated.
    pub fn for_request(
        local: Rc<LocalSet>,
        group: &Group,
        req: &mut Request,
    ) -> Result<Picker, forebay_core::vars::VarError> {
        let mut p = Picker::new(local);
        match &group.method {
            Method::Hash(key) => p.key = key.value(req)?,
            Method::Consistent(key) => {
                p.key = key.value(req)?;
                p.hash = hash::crc32(&[&p.key]);
                p.hash = u32::try_from(p.local.set.ring.find(p.hash)).unwrap_or(0);
            }
            Method::IpHash => {
                p.client = req.peer.ip();
                p.hash = IP_START;
            }
            _ => {}
        }
        if let Some(s) = &group.sticky {
            p.sticky = s.wanted(req, group)?;
        }
        Ok(p)
    }

    /// How many servers were asked in vain.
    pub fn tried(&self) -> usize {
        self.tried.len()
    }

    /// The peer was asked in vain.
    pub fn give_up(&mut self, peer: usize) {
        self.tried.push(peer);
    }

    /// All may be asked again.
    pub fn ask_again(&mut self) {
        self.tried.clear();
    }

    /// Chooses a peer, and counts the request as under way until [`Group::end`].
    pub fn choose(&mut self, group: &Group, now: Instant) -> Option<usize> {
        if self.local.set.lone {
            let shard = self.local.shards.first().filter(|_| self.tried.is_empty())?;
            shard.begin(clock(now));
            return Some(0);
        }
        let local = self.local.clone();
        let set = &*local.set;
        let now = clock(now);
        let _one_at_a_time = group.choosing();
        let chosen = self.stuck(set, now, false).or_else(|| self.by_method(group, set, now));
        let chosen = chosen.or_else(|| self.stuck(set, now, true)).or_else(|| {
            // Backups are balanced among themselves.
            match &group.method {
                Method::Least(load) => self.least(set, now, true, *load),
                _ => self.round_robin(set, now, true),
            }
        })?;
        let p = set.peers.get(chosen)?;
        let l = &p.live;
        let checked = l.checked.load(Relaxed);
        if now.saturating_sub(checked) > ms(p.fail_timeout) {
            l.checked.store(now, Relaxed);
            if p.max_fails != 0 && l.fails.load(Relaxed) >= p.max_fails {
                // It is left alone again until this request has an answer.
                l.up(checked + ms(p.fail_timeout));
                l.down(now);
            }
        }
        l.conns.fetch_add(1, Relaxed);
        l.begun.fetch_add(now, Relaxed);
        local.shards.get(chosen)?.begin(now);
        Some(chosen)
    }

    /// Whether a peer may be asked. `sticky`: by a request that sticks to it.
    fn usable(&self, set: &PeerSet, i: usize, p: &Peer, now: u64, sticky: bool) -> bool {
        !p.down
            && (sticky || !p.drain)
            && p.live.is_healthy()
            && (set.peers.len() == 1 || !p.is_failed(now))
            && !p.is_full()
            && !self.tried.contains(&i)
    }

    /// The peer that the request sticks to.
    fn stuck(&self, set: &PeerSet, now: u64, backup: bool) -> Option<usize> {
        let sid = self.sticky.as_ref()?;
        let mut fits = set
            .peers
            .iter()
            .enumerate()
            .filter(|(i, p)| p.backup == backup && p.sid == *sid && self.usable(set, *i, p, now, true));
        fits.next().map(|(i, _)| i)
    }

    fn by_method(&mut self, group: &Group, set: &PeerSet, now: u64) -> Option<usize> {
        match &group.method {
            Method::RoundRobin => self.round_robin(set, now, false),
            Method::Least(load) => self.least(set, now, false, *load),
            Method::IpHash => self.ip_hash(set, now),
            Method::Hash(_) if self.key.is_empty() => self.round_robin(set, now, false),
            Method::Consistent(_) if self.key.is_empty() => self.round_robin(set, now, false),
            Method::Hash(_) => self.hash(set, now),
            Method::Consistent(_) => self.consistent(set, now),
            Method::Random(two) => self.random(set, now, *two),
        }
    }

    /// Smooth weighted round robin.
    fn round_robin(&self, set: &PeerSet, now: u64, backup: bool) -> Option<usize> {
        self.among(set, now, |p| p.backup == backup)
    }

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
        set.peers.get(i)?.live.current.store(current - total, Relaxed);
        Some(i)
    }

    /// The peer with the least load for its weight; equals take turns.
    fn least(&self, set: &PeerSet, now: u64, backup: bool, load: Load) -> Option<usize> {
        let mut best: Option<(u128, i64)> = None;
        let usable = |i: usize, p: &Peer| p.backup == backup && self.usable(set, i, p, now, false);
        for (i, p) in set.peers.iter().enumerate().filter(|(i, p)| usable(*i, p)) {
            if load != Load::Connections && probe(p, load, now) {
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
            let h = hash::ip(self.client, self.hash);
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
            self.hash = self.hash.wrapping_add(hash::memcached(&self.key, self.again));
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

/// The peer at a number on the line of weights. Servers that are down keep their place on it.
fn at_weight(set: &PeerSet, n: u32) -> Option<usize> {
    let total: i64 = set.total_weight;
    let mut w = i64::from(n).checked_rem(total)?;
    for (i, p) in set.peers.iter().enumerate().filter(|(_, p)| !p.backup) {
        w -= p.weight;
        if w < 0 {
            return Some(i);
        }
    }
    None
}

/// Whether a load is less than another, each for its weight.
fn lighter((a, wa): (u128, i64), (b, wb): (u128, i64)) -> bool {
    a * u128::from(wb.unsigned_abs()) < b * u128::from(wa.unsigned_abs())
}

/// How much a peer has to bear.
fn burden(p: &Peer, load: Load, now: u64) -> u128 {
    let conns = u128::from(p.live.conns.load(Relaxed));
    match load {
        Load::Connections => conns,
        // Times within a millisecond are the same: then the requests under way decide.
        Load::Time { .. } => u128::from(time(p, load, now)) * (conns + 1) * 1_000_000 + conns,
    }
}

/// Milliseconds that a peer takes. What it took long ago counts less: half after each second without a response.
fn time(p: &Peer, load: Load, now: u64) -> u64 {
    let Load::Time { timed, inflight } = load else { return 0 };
    let l = &p.live;
    let mean = match timed {
        Timed::Header => &l.header_time,
        Timed::LastByte => &l.response_time,
    };
    let idle = now.saturating_sub(l.ended.load(Relaxed)) / 1000;
    let past = (mean.load(Relaxed) / 1000).checked_shr(u32::try_from(idle).unwrap_or(63)).unwrap_or(0);
    let conns = u64::from(l.conns.load(Relaxed));
    if !inflight || conns == 0 {
        return past;
    }
    let waiting = (now * conns).saturating_sub(l.begun.load(Relaxed)) / conns;
    past.max(waiting)
}

/// Whether a slow peer has rested long enough for one request that finds out how it does now.
fn probe(p: &Peer, load: Load, now: u64) -> bool {
    let Load::Time { timed, .. } = load else { return false };
    let l = &p.live;
    let mean = match timed {
        Timed::Header => l.header_time.load(Relaxed),
        Timed::LastByte => l.response_time.load(Relaxed),
    } / 1000;
    let rest = ms(p.fail_timeout).max(mean - mean / 4).max(1000);
    mean > 0 && l.conns.load(Relaxed) == 0 && now.saturating_sub(l.ended.load(Relaxed)) >= rest
}

impl Group {
    /// A request to a chosen peer is over.
    pub fn end(&self, local: &LocalSet, peer: usize, begun: Instant) {
        if let Some(s) = local.shards.get(peer) {
            s.end();
        }
        if local.set.lone {
            return;
        }
        if let Some(p) = local.set.peers.get(peer) {
            let down = |n: u32| n.checked_sub(1);
            let _ = p.live.conns.fetch_update(Relaxed, Relaxed, down);
            let began = clock(begun);
            let _ = p.live.begun.fetch_update(Relaxed, Relaxed, |n| Some(n.saturating_sub(began)));
        }
        self.wake_one();
    }

    /// A request failed. `true`: the peer is now taken for dead.
    pub fn fail(&self, set: &PeerSet, peer: usize, now: Instant) -> bool {
        let Some(p) = set.peers.get(peer) else { return false };
        let l = &p.live;
        l.total_fails.fetch_add(1, Relaxed);
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
        if fails == p.max_fails {
            l.unavail.fetch_add(1, Relaxed);
        }
        if fails >= p.max_fails {
            l.down(now);
        }
        fails >= p.max_fails
    }

    /// A request went well: failures before the present period are forgotten.
    pub fn succeed(&self, set: &PeerSet, peer: usize, now: Instant) {
        let Some(p) = set.peers.get(peer).filter(|_| !set.lone) else { return };
        let l = &p.live;
        let failed = l.failed.load(Relaxed);
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

    /// A response is over: its times count for `least_time`.
    pub fn measure(
        &self,
        set: &PeerSet,
        peer: usize,
        header: Option<Duration>,
        whole: Option<Duration>,
        now: Instant,
    ) {
        if !matches!(self.method.load(), Some(Load::Time { .. })) {
            return;
        }
        let (Some(p), Some(header)) = (set.peers.get(peer), header) else { return };
        super::peer::average(&p.live.header_time, header);
        if let Some(d) = whole {
            super::peer::average(&p.live.response_time, d);
        }
        p.live.ended.store(clock(now), Relaxed);
    }
}
