//! A peer, one address of a server in a group: its parameters, and its state at run time. Hot path.

use super::greeting::SendProxy;
use crate::histogram::{BUCKETS, Histogram, bucket};
use forebay_net::addr::PeerAddr;
use forebay_net::addr::address_text;
use forebay_sys::sync::lock;
use md5::{Digest, Md5};
use std::sync::atomic::{AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

/// One address of one `server`.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Address as in `$upstream_addr`.
    pub name: Vec<u8>,
    /// The server as written.
    pub server: Vec<u8>,
    /// Address.
    pub addr: PeerAddr,
    /// `weight=`.
    pub weight: i64,
    /// `max_fails=`; 0 = failures are not counted.
    pub max_fails: u32,
    /// `fail_timeout=`.
    pub fail_timeout: Duration,
    /// `slow_start=`; 0 = at once.
    pub slow_start: Duration,
    /// `max_conns=`; 0 = no limit.
    pub max_conns: u32,
    /// `backup`.
    pub backup: bool,
    /// `down`.
    pub down: bool,
    /// `drain`: only requests that stick to it reach it.
    pub drain: bool,
    /// Name of the peer in sticky sessions: that of `route=`, or see `sid`.
    pub sid: Vec<u8>,
    /// `route=` was given.
    pub routed: bool,
    /// `proxy_protocol=`, of servers of stream.
    pub proxy_protocol: Option<SendProxy>,
    /// State, shared by all threads and by all configurations that have the peer.
    pub live: Arc<Live>,
}

impl Peer {
    /// Creates a peer with nginx's defaults.
    pub fn new(addr: PeerAddr) -> Peer {
        let name = address_text(&addr);
        Peer {
            server: name.clone(),
            sid: Vec::new(),
            routed: false,
            proxy_protocol: None,
            name,
            addr,
            weight: 1,
            max_fails: 1,
            fail_timeout: Duration::from_secs(10),
            slow_start: Duration::ZERO,
            max_conns: 0,
            backup: false,
            down: false,
            drain: false,
            live: Arc::default(),
        }
    }

    /// Returns `true` if it has failed so often lately that it gets no requests.
    pub(super) fn is_failed(&self, now: u64) -> bool {
        self.max_fails != 0
            && self.live.fails.load(Relaxed) >= self.max_fails
            && now.saturating_sub(self.live.checked.load(Relaxed)) <= ms(self.fail_timeout)
    }

    /// Returns `true` if `max_conns` is reached.
    pub(super) fn is_full(&self) -> bool {
        self.max_conns != 0 && self.live.conns.load(Relaxed) >= self.max_conns
    }

    /// Returns the weight at this time, in units of `scale`. It grows after a failure if there is a `slow_start`.
    pub(super) fn weight_now(&self, scale: i64, now: u64) -> i64 {
        let full = self.weight * scale;
        if self.slow_start.is_zero() {
            return full;
        }
        let since = now.saturating_sub(self.live.up_since.load(Relaxed));
        let whole = ms(self.slow_start);
        if since >= whole {
            return full;
        }
        // In 128 bits the product cannot overflow. A peer in use has a weight of at least 1.
        let part = i128::from(full) * i128::from(since) / i128::from(whole.max(1));
        i64::try_from(part).unwrap_or(full).max(1)
    }

    /// Returns its state and counters.
    pub fn status(&self, now: u64) -> PeerStatus {
        let l = &self.live;
        let state = self.state(now);
        if !matches!(state, State::Unavail | State::Unhealthy | State::Checking) {
            // It may be asked again, but no request has come since then to note it.
            l.up(now.min(l.checked.load(Relaxed) + ms(self.fail_timeout)));
        }
        let mut s = PeerStatus {
            name: self.name.clone(),
            server: self.server.clone(),
            backup: self.backup,
            weight: self.weight,
            max_conns: self.max_conns,
            state,
            down_for: ago(l.down_since.load(Relaxed), now),
            fails: l.total_fails.load(Relaxed),
            unavail: l.unavail.load(Relaxed),
            checks: l.checks.load(Relaxed),
            check_fails: l.check_fails.load(Relaxed),
            unhealthy: l.unhealthy.load(Relaxed),
            downtime: l.downtime.load(Relaxed),
            last_check_passed: match l.last_check.load(Relaxed) {
                0 => None,
                n => Some(n == 1),
            },
            last_failure: lock(&l.last_failure)
                .as_ref()
                .map(|(at, reason)| (Duration::from_millis(now.saturating_sub(*at)), reason.clone())),
            ..PeerStatus::default()
        };
        l.add_shards(&mut s, now);
        s
    }

    fn state(&self, now: u64) -> State {
        match self.live.health() {
            _ if self.down => State::Down,
            Health::Unhealthy => State::Unhealthy,
            Health::Checking => State::Checking,
            _ if self.is_failed(now) => State::Unavail,
            _ if self.drain => State::Draining,
            _ => State::Up,
        }
    }
}

/// Returns the MD5 of a text in hexadecimal. That of its address names a peer without `route=` in sticky sessions.
pub(super) fn sid(name: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(32);
    for b in Md5::digest(name) {
        for n in [b >> 4, b & 15] {
            out.push(b"0123456789abcdef"[usize::from(n)]);
        }
    }
    out
}

/// Returns the time since `at`; `None` if that is 0, never.
fn ago(at: u64, now: u64) -> Option<Duration> {
    (at > 0).then(|| Duration::from_millis(now.saturating_sub(at)))
}

/// A mean over threads, by their requests.
#[derive(Default)]
struct Mean {
    sum: u128,
    count: u128,
}

impl Mean {
    fn add(&mut self, micros: u64, requests: u64) {
        if micros > 0 {
            self.sum += u128::from(micros) * u128::from(requests.max(1));
            self.count += u128::from(requests.max(1));
        }
    }
    fn value(&self) -> Option<Duration> {
        (self.count > 0).then(|| Duration::from_micros(u64::try_from(self.sum / self.count).unwrap_or(0)))
    }
}

/// State of a server, which decides whether it gets requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum State {
    /// It gets requests.
    #[default]
    Up,
    /// Switched off by `down`.
    Down,
    /// It gets no requests for `fail_timeout` after `max_fails` failures.
    Unavail,
    /// Only requests that stick to it reach it (`drain`).
    Draining,
    /// Its health checks fail.
    Unhealthy,
    /// Its first health check has not passed (`mandatory`).
    Checking,
}

/// State and counters of a server since the process started.
#[derive(Clone, Debug, Default)]
pub struct PeerStatus {
    /// Address.
    pub name: Vec<u8>,
    /// The server as written.
    pub server: Vec<u8>,
    /// `backup`.
    pub backup: bool,
    /// `weight=`.
    pub weight: i64,
    /// `max_conns=`; 0 = no limit.
    pub max_conns: u32,
    /// State.
    pub state: State,
    /// Requests under way.
    pub active: u64,
    /// Requests so far.
    pub requests: u64,
    /// Responses by class: 1xx to 5xx.
    pub responses: [u64; 5],
    /// Bytes sent to it.
    pub sent: u64,
    /// Bytes received from it.
    pub received: u64,
    /// Attempts that failed.
    pub fails: u64,
    /// Number of times it became unavailable.
    pub unavail: u64,
    /// Health checks made.
    pub checks: u64,
    /// Health checks that failed.
    pub check_fails: u64,
    /// Number of times it became unhealthy.
    pub unhealthy: u64,
    /// Result of the last health check.
    pub last_check_passed: Option<bool>,
    /// Time since it was chosen last.
    pub selected_ago: Option<Duration>,
    /// Time for which it has been unavailable, unhealthy or not yet checked; `None` if it is in use.
    pub down_for: Option<Duration>,
    /// Sum of such times before that, milliseconds.
    pub downtime: u64,
    /// Mean time to the connection, lately; `None` if it is not measured.
    pub connect_time: Option<Duration>,
    /// Mean time to the head of a response, or to the first byte of a session, lately.
    pub header_time: Option<Duration>,
    /// Mean time to the end of a response or session, lately.
    pub response_time: Option<Duration>,
    /// Times to the end of responses.
    pub times: Histogram,
    /// Time since the last failed attempt, and its reason in the words of the error log.
    pub last_failure: Option<(Duration, Arc<str>)>,
}

/// Returns the milliseconds since the process started, from 1 on.
pub fn clock(now: Instant) -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    // A second of room before the start, so that times of a test may be in the past.
    let start = START.get_or_init(|| now.checked_sub(Duration::from_secs(1)).unwrap_or(now));
    // 0 stands for never.
    ms(now.saturating_duration_since(*start)) + 1
}

/// Returns a duration in whole milliseconds.
pub fn ms(d: Duration) -> u64 {
    d.as_secs().saturating_mul(1000).saturating_add(u64::from(d.subsec_millis()))
}

/// Returns a duration in whole microseconds.
fn micros(d: Duration) -> u64 {
    d.as_secs().saturating_mul(1_000_000).saturating_add(u64::from(d.subsec_micros()))
}

/// Longest reason of a failure that is kept, bytes: a server decides on a part of the text, such as the names of its certificate.
const LONGEST_REASON: usize = 200;

/// Health of a server by its checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// There are no checks.
    Unknown,
    /// It is healthy.
    Healthy,
    /// It is not healthy.
    Unhealthy,
    /// The first check, which must pass, has not ended.
    Checking,
}

/// State of a peer that all threads share. Times are those of [`clock`], 0 = never.
#[derive(Debug)]
pub struct Live {
    /// Unique in the process.
    pub id: u64,
    /// Current weight of the smooth round robin.
    pub current: AtomicI64,
    /// Reduction of the weight by failures.
    pub deficit: AtomicI64,
    /// Failures in the present period.
    pub fails: AtomicU32,
    /// Start of the period in which failures count.
    pub checked: AtomicU64,
    /// Time of the last failure.
    pub failed: AtomicU64,
    /// Requests under way; not counted if the server is alone.
    pub conns: AtomicU32,
    /// Requests whose time has not come (`least_time TIME inflight`).
    pub waits: AtomicU32,
    /// Sum of the times at which they began.
    pub waits_began: AtomicU64,
    /// Mean time to the connection, microseconds; kept for `least_time`.
    pub connect_time: AtomicU64,
    /// Mean time to the head or first byte, microseconds; kept for `least_time`.
    pub header_time: AtomicU64,
    /// Mean time to the end, microseconds; kept for `least_time`.
    pub response_time: AtomicU64,
    /// Time at which the last response ended.
    pub ended: AtomicU64,
    /// Time at which it came back.
    pub up_since: AtomicU64,
    health: AtomicU8,
    /// Time at which it was removed from its group.
    pub(super) removed: OnceLock<Instant>,
    /// Time of the last failure whose reason is known, and the reason.
    last_failure: Mutex<Option<(u64, Arc<str>)>>,
    /// Failed attempts.
    pub total_fails: AtomicU64,
    /// Times it became unavailable.
    pub unavail: AtomicU64,
    /// Health checks.
    pub checks: AtomicU64,
    /// Failed health checks.
    pub check_fails: AtomicU64,
    /// Times it became unhealthy.
    pub unhealthy: AtomicU64,
    /// Result of the last check. 0: there was none, 1: passed, 2: failed.
    pub last_check: AtomicU8,
    /// Time since which it gets no requests.
    down_since: AtomicU64,
    /// Sum of such times before that, milliseconds.
    downtime: AtomicU64,
    shards: Mutex<Vec<(ThreadId, Arc<Shard>)>>,
}

impl Default for Live {
    fn default() -> Live {
        static IDS: AtomicU64 = AtomicU64::new(1);
        Live {
            id: IDS.fetch_add(1, Relaxed),
            current: AtomicI64::new(0),
            deficit: AtomicI64::new(0),
            fails: AtomicU32::new(0),
            checked: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            conns: AtomicU32::new(0),
            waits: AtomicU32::new(0),
            waits_began: AtomicU64::new(0),
            connect_time: AtomicU64::new(0),
            header_time: AtomicU64::new(0),
            response_time: AtomicU64::new(0),
            ended: AtomicU64::new(0),
            up_since: AtomicU64::new(0),
            health: AtomicU8::new(0),
            removed: OnceLock::new(),
            last_failure: Mutex::default(),
            total_fails: AtomicU64::new(0),
            unavail: AtomicU64::new(0),
            checks: AtomicU64::new(0),
            check_fails: AtomicU64::new(0),
            unhealthy: AtomicU64::new(0),
            last_check: AtomicU8::new(0),
            down_since: AtomicU64::new(0),
            downtime: AtomicU64::new(0),
            shards: Mutex::default(),
        }
    }
}

impl Live {
    /// Notes the reason of a failed attempt, in the words of the error log. Longer reasons are cut off after 200 bytes.
    #[cold]
    pub fn note_failure(&self, reason: &str, now: Instant) {
        let reason = reason.get(..reason.floor_char_boundary(LONGEST_REASON)).unwrap_or_default();
        *lock(&self.last_failure) = Some((clock(now), reason.into()));
    }

    /// Returns the health by the checks.
    pub(super) fn health(&self) -> Health {
        match self.health.load(Relaxed) {
            1 => Health::Healthy,
            2 => Health::Unhealthy,
            3 => Health::Checking,
            _ => Health::Unknown,
        }
    }

    /// Sets the health.
    pub(super) fn set_health(&self, h: Health) {
        let n = match h {
            Health::Unknown => 0,
            Health::Healthy => 1,
            Health::Unhealthy => 2,
            Health::Checking => 3,
        };
        self.health.store(n, Relaxed);
    }

    /// Returns `true` if the checks allow requests.
    pub(super) fn is_healthy(&self) -> bool {
        // Unknown or healthy.
        self.health.load(Relaxed) < 2
    }

    /// Notes that it gets no requests from now on.
    pub(super) fn down(&self, now: u64) {
        // The first of several causes sets the time.
        let _ = self.down_since.compare_exchange(0, now, Relaxed, Relaxed);
    }

    /// Notes that it gets requests again since then.
    pub(super) fn up(&self, since: u64) {
        // Looked at first, since a swap takes the cache line from the other threads each time.
        let down = match self.down_since.load(Relaxed) {
            0 => 0,
            _ => self.down_since.swap(0, Relaxed),
        };
        if down != 0 {
            self.downtime.fetch_add(since.saturating_sub(down), Relaxed);
        }
    }

    /// Adds the counters of all threads to `s`.
    fn add_shards(&self, s: &mut PeerStatus, now: u64) {
        let [mut connect, mut header, mut response] = <[Mean; 3]>::default();
        for (_, shard) in lock(&self.shards).iter() {
            s.active += shard.active.load(Relaxed);
            let selected = ago(shard.selected.load(Relaxed), now);
            s.selected_ago = s.selected_ago.into_iter().chain(selected).min();
            let requests = shard.requests.load(Relaxed);
            s.requests += requests;
            for (sum, n) in s.responses.iter_mut().zip(&shard.responses) {
                *sum += n.load(Relaxed);
            }
            s.sent += shard.sent.load(Relaxed);
            s.received += shard.received.load(Relaxed);
            for (sum, n) in s.times.counts.iter_mut().zip(&shard.buckets) {
                *sum += n.load(Relaxed);
            }
            s.times.sum += Duration::from_micros(shard.micros.load(Relaxed));
            connect.add(shard.connect_time.load(Relaxed), requests);
            header.add(shard.header_time.load(Relaxed), requests);
            response.add(shard.response_time.load(Relaxed), requests);
        }
        (s.connect_time, s.header_time, s.response_time) =
            (connect.value(), header.value(), response.value());
    }

    /// Returns the counters of this thread.
    pub(super) fn shard(&self) -> Arc<Shard> {
        let me = std::thread::current().id();
        let mut shards = lock(&self.shards);
        if let Some((_, s)) = shards.iter().find(|(id, _)| *id == me) {
            return s.clone();
        }
        let s = Arc::new(Shard::default());
        shards.push((me, s.clone()));
        s
    }
}

/// Counters that one thread writes.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct Shard {
    active: AtomicU64,
    /// Time at which it was chosen last, by [`clock`].
    selected: AtomicU64,
    requests: AtomicU64,
    responses: [AtomicU64; 5],
    sent: AtomicU64,
    received: AtomicU64,
    connect_time: AtomicU64,
    header_time: AtomicU64,
    response_time: AtomicU64,
    micros: AtomicU64,
    buckets: [AtomicU64; BUCKETS.len() + 1],
}

/// Adds to a counter of this thread. No other thread writes it, so no atomic read-modify-write is needed.
fn add(cell: &AtomicU64, n: u64) {
    cell.store(cell.load(Relaxed).wrapping_add(n), Relaxed);
}

/// Moves a mean by an eighth of the way to a new value. The first value becomes the mean.
pub(super) fn average(cell: &AtomicU64, new: Duration) {
    let new = micros(new).max(1);
    let old = cell.load(Relaxed);
    let mean = if old == 0 { new } else { old - old / 8 + new / 8 };
    // 0 stands for no value yet.
    cell.store(mean.max(1), Relaxed);
}

impl Shard {
    /// Counts a request that begins.
    pub(super) fn begin(&self, now: u64) {
        self.selected.store(now, Relaxed);
        add(&self.active, 1);
        add(&self.requests, 1);
    }
    /// Returns `true` if this thread has other requests at the peer than one that is counted.
    pub(super) fn has_others(&self) -> bool {
        self.active.load(Relaxed) > 1
    }
    /// Counts a request that is over.
    pub(super) fn end(&self) {
        let n = self.active.load(Relaxed);
        self.active.store(n.saturating_sub(1), Relaxed);
    }
    /// Adds the figures of an attempt.
    pub(super) fn count(&self, f: &Figures) {
        if let Some(class) = self.responses.get(usize::from(f.status / 100).wrapping_sub(1)) {
            add(class, 1);
        }
        add(&self.sent, f.sent);
        add(&self.received, f.received);
        if let Some(connect) = f.connect {
            average(&self.connect_time, connect);
        }
        let Some(header) = f.header else { return };
        average(&self.header_time, header);
        if let Some(d) = f.response {
            average(&self.response_time, d);
            add(&self.micros, micros(d));
            if let Some(b) = self.buckets.get(bucket(d)) {
                add(b, 1);
            }
        }
    }
}

/// Figures of one attempt at a server.
#[derive(Clone, Copy, Debug, Default)]
pub struct Figures {
    /// Status of the response; 0 if there was none.
    pub status: u16,
    /// Bytes sent.
    pub sent: u64,
    /// Bytes received.
    pub received: u64,
    /// Time to the connection, where it is measured.
    pub connect: Option<Duration>,
    /// Time to the head of the response, or to the first byte of a session.
    pub header: Option<Duration>,
    /// Time to the end of the response or session.
    pub response: Option<Duration>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_a_name_in_sessions() {
        assert_eq!(sid(b"127.0.0.1:19002"), b"50f4ff1c54620e48bc864a4bdfd90a7d");
    }
}
