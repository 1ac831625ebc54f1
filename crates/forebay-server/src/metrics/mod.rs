//! Counters for monitoring: zones of servers, locations and caches, outcomes of limits, the life of the process. Each
//! thread writes its own cells; readers add them up. Counters of [`forebay_core::counters`] and of servers, by name,
//! are always active. Zones are counted only if the configuration asks for them (NGINX Plus: status_zone).
//!
//! Servers are counted by name, at most 1000, and the others together. Zones have their names for the life of the process, so counting
//! goes on after a reload. Cells are summed when `prometheus.rs` or `api.rs` is asked. Times of requests go into buckets of each thread
//! (`forebay-core/src/latency.rs`).
//!
//! `page.rs` serves the dashboard, and `details.rs` what it asks for in addition to NGINX Plus' interface. The program gives the facts
//! of `facts.rs` from `forebay/src/shown.rs` and `changes.rs`. `forebay/src/top/` shows the same in a terminal.

mod acme;
pub mod api;
mod details;
pub mod facts;
pub mod history;
mod ingress_nginx;
mod labelled;
pub mod page;
pub mod prometheus;
mod quic;
mod shared_store;
mod usage;

use crate::config::http::{Http, Location, LocationBuild, Server};
use crate::config::{HttpContext, Scope};
use crate::module::{Content, Module, Needs, Page};
use crate::modules::prometheus_labels;
use crate::modules::proxy_cache;
use crate::request::Request;
use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::config::Context;
use forebay_core::histogram::{BUCKETS, Histogram, bucket};
use forebay_core::status_zone::{StatusZone, add, subtract_one, with_cells, zone, zones};
use forebay_sys::sync::lock;
use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// `api`, `dashboard`, `prometheus` and `status_zone`.
pub static MODULE: Module = Module {
    location_directives: &[
        ("api", api::directive),
        ("dashboard", |_, l, _| {
            l.content = Content::of(Page { answer: page::handle, needs: HISTORY });
            Ok(())
        }),
        ("prometheus", |d, l, cx| {
            l.content = Content::of(prometheus::Page::parse(d, cx)?);
            Ok(())
        }),
        ("status_zone", status_zone),
    ],
    begin: Some(history::start),
    ..Module::NONE
};

/// Need of the pages that show a history.
const HISTORY: Needs = Needs { history: true, ..Needs::NONE };

/// Reads `status_zone`.
fn status_zone(d: &Directive, l: &mut LocationBuild, cx: &mut Scope<'_>) -> Result<(), Error> {
    if l.status_zone.is_some() {
        return Err(cx.error(d, "\"status_zone\" directive is duplicate"));
    }
    let kind = if l.kind.is_location() { kind::LOCATION } else { kind::SERVER };
    l.status_zone = Some(zone(kind, crate::config::value::first(d)));
    Ok(())
}

/// Kinds of zones.
pub mod kind {
    use super::{CACHE_STATUSES, cell};
    use forebay_core::status_zone::ZoneKind;

    /// Requests to virtual servers.
    pub const SERVER: ZoneKind = ZoneKind { name: "servers", cells: cell::COUNT };
    /// Requests to locations.
    pub const LOCATION: ZoneKind = ZoneKind { name: "locations", cells: cell::COUNT };
    /// Responses of a cache.
    pub const CACHE: ZoneKind = ZoneKind { name: "caches", cells: 2 * CACHE_STATUSES.len() };
    /// Requests to virtual servers of one name that have no zone. Statuses are counted by class only.
    pub const NAME: ZoneKind = ZoneKind { name: "server names", cells: cell::COUNT_OF_NAME };
}

/// Block of the main level whose servers and groups are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Block {
    Http,
    Stream,
}

impl Block {
    /// Returns its name in the configuration.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Block::Http => HttpContext::BLOCK,
            // Its front end is in a crate that this one does not use.
            Block::Stream => "stream",
        }
    }
}

/// Places of the cells of a server or location.
mod cell {
    pub(super) const REQUESTS: usize = 0;
    pub(super) const DISCARDED: usize = 1;
    pub(super) const RECEIVED: usize = 2;
    pub(super) const SENT: usize = 3;
    pub(super) const MICROS: usize = 4;
    pub(super) const PROCESSING: usize = 5;
    pub(super) const BUCKETS: usize = 6;
    pub(super) const CODES: usize = BUCKETS + super::BUCKETS.len() + 1;
    pub(super) const COUNT: usize = CODES + 500;
    /// Of a name: one for each class of statuses.
    pub(super) const COUNT_OF_NAME: usize = CODES + 5;
}

/// Ways in which a cache takes part, in the order of [`crate::modules::proxy_cache::CacheStatus`].
pub const CACHE_STATUSES: [&str; 7] =
    ["miss", "bypass", "expired", "stale", "updating", "revalidated", "hit"];

/// Returns the responses of a cache and their bytes, by [`CACHE_STATUSES`].
pub fn cache_totals(zone: &StatusZone) -> [(u64, u64); 7] {
    let sum = zone.sum();
    std::array::from_fn(|n| (sum(2 * n), sum(2 * n + 1)))
}

/// Totals of a server or location.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Requests under way.
    pub processing: u64,
    /// Requests.
    pub requests: u64,
    /// Requests that ended without an answer.
    pub discarded: u64,
    /// Bytes received.
    pub received: u64,
    /// Bytes sent.
    pub sent: u64,
    /// Answers by status.
    pub codes: Vec<(u16, u64)>,
    /// Answers by class, where single statuses are not counted.
    pub classes_only: Option<[u64; 5]>,
    /// Times from the first byte of the request to the last of the answer.
    pub times: Histogram,
}

impl Totals {
    /// Returns the totals of a zone of servers or locations.
    pub fn of(zone: &StatusZone) -> Totals {
        let sum = zone.sum();
        Totals {
            processing: sum(cell::PROCESSING),
            requests: sum(cell::REQUESTS),
            discarded: sum(cell::DISCARDED),
            received: sum(cell::RECEIVED),
            sent: sum(cell::SENT),
            codes: match zone.kind {
                kind::NAME => Vec::new(),
                _ => (0..500u16)
                    .map(|n| (n + 100, sum(cell::CODES + usize::from(n))))
                    .filter(|(_, n)| *n > 0)
                    .collect(),
            },
            classes_only: (zone.kind == kind::NAME).then(|| std::array::from_fn(|n| sum(cell::CODES + n))),
            times: Histogram {
                counts: std::array::from_fn(|n| sum(cell::BUCKETS + n)),
                sum: Duration::from_micros(sum(cell::MICROS)),
            },
        }
    }

    /// Returns the totals of a server name without requests.
    fn without_requests() -> Totals {
        Totals { classes_only: Some([0; 5]), ..Totals::default() }
    }

    /// Answers by class: 1xx to 5xx.
    pub fn classes(&self) -> [u64; 5] {
        let mut all = self.classes_only.unwrap_or_default();
        for (code, n) in &self.codes {
            if let Some(c) = all.get_mut(usize::from(code / 100).wrapping_sub(1)) {
                *c += n;
            }
        }
        all
    }
}

/// Sums of a server or location, for the history.
#[derive(Clone, Debug, Default)]
pub struct Sums {
    requests: u64,
    discarded: u64,
    received: u64,
    sent: u64,
    classes: [u64; 5],
}

impl Sums {
    /// Returns the sums of a zone of servers or locations.
    fn of(zone: &StatusZone) -> Sums {
        let sum = zone.sum();
        // A name has a cell for each class, a zone one for each status.
        let width = if zone.kind == kind::NAME { 1 } else { 100 };
        let class = |n: usize| (n * width..(n + 1) * width).map(|at| sum(cell::CODES + at)).sum();
        Sums {
            requests: sum(cell::REQUESTS),
            discarded: sum(cell::DISCARDED),
            received: sum(cell::RECEIVED),
            sent: sum(cell::SENT),
            classes: std::array::from_fn(class),
        }
    }

    /// Adds the growth of a zone since an earlier reading.
    fn add_growth(&mut self, now: &Sums, before: &Sums) {
        let add = |sum: &mut u64, now: u64, before: u64| {
            *sum = sum.saturating_add(now.saturating_sub(before));
        };
        add(&mut self.requests, now.requests, before.requests);
        add(&mut self.discarded, now.discarded, before.discarded);
        add(&mut self.received, now.received, before.received);
        add(&mut self.sent, now.sent, before.sent);
        for ((sum, now), before) in self.classes.iter_mut().zip(now.classes).zip(before.classes) {
            add(sum, now, before);
        }
    }
}

/// Returns the zones in which servers have counted: by `status_zone`, and by name.
pub fn zones_of_servers() -> Vec<Arc<StatusZone>> {
    let names = lock(&NAMES).clone();
    zones(kind::SERVER).into_iter().chain(names).collect()
}

/// A request under way in a server's zone.
#[derive(Debug)]
pub struct Processing(usize);

impl Drop for Processing {
    fn drop(&mut self) {
        with_cells(self.0, |c| subtract_one(c, cell::PROCESSING));
    }
}

/// Counts the beginning of a request in the zone of its server. `root`: the level of that server.
#[inline]
pub fn begin(req: &mut Request, root: &Location) {
    if let Some(zone) = &root.status_zone {
        with_cells(zone.id, |c| add(c, cell::PROCESSING, 1));
        req.modules.processing = Some(Processing(zone.id));
    }
}

/// Counts a request that is over.
#[inline]
pub fn count(req: &mut Request) {
    let cached = proxy_cache::STATE.of(req);
    if let (Some(status), Some(id)) = (cached.status, cached.zone) {
        with_cells(id, |c| {
            add(c, 2 * status as usize, 1);
            add(c, 2 * status as usize + 1, req.sent.saturating_sub(req.sent_head));
        });
    }
    let zone = req.own_location().status_zone.as_ref();
    let location = zone.filter(|zone| zone.kind == kind::LOCATION).map(|zone| zone.id);
    let is_labelled = !prometheus_labels::SETTINGS.of(&req.own_location().settings).labels.is_empty();
    let is_watched = req.conf.http.is_watched || location.is_some() || req.modules.processing.is_some();
    let time = match is_watched || is_labelled {
        true => req.started.elapsed(),
        // The clock of the turn: reading another one for each request would be most of what this costs.
        false => req.thread.io.poller.since(req.started),
    };
    req.thread.counters.times.add(time);
    match req.modules.processing.take() {
        Some(p) => with_cells(p.0, |c| count_cells(req, c, time)),
        None => count_by_name(req, time),
    }
    if let Some(id) = location {
        with_cells(id, |c| count_cells(req, c, time));
    }
    if is_labelled {
        labelled::count(req, time);
    }
}

fn count_cells(req: &Request, c: &[AtomicU64], time: Duration) {
    let status = usize::from(req.logged_status());
    // A name has a cell for each class, a zone one for each status.
    let (first, code) = if c.len() == cell::COUNT_OF_NAME { (1, status / 100) } else { (100, status) };
    add(c, cell::REQUESTS, 1);
    add(c, cell::RECEIVED, req.received);
    add(c, cell::SENT, req.sent);
    if req.sent == 0 {
        add(c, cell::DISCARDED, 1);
        return;
    }
    if let Some(at) = code.checked_sub(first) {
        add(c, cell::CODES + at, 1);
    }
    add(c, cell::BUCKETS + bucket(time), 1);
    add(
        c,
        cell::MICROS,
        time.as_secs().saturating_mul(1_000_000).saturating_add(time.subsec_micros().into()),
    );
}

/// Zones of server names for one thread and one configuration: by number of the server, the number of the zone plus one. It is
/// `NOWHERE` for a server with a `status_zone`, and missing or 0 before the first request.
#[derive(Debug, Default)]
pub struct ByName(RefCell<Vec<u32>>);

const NOWHERE: u32 = u32::MAX;
/// Most server names with counters of their own. All others share one zone.
const MOST_NAMES: usize = 1000;
/// Name under which servers beyond that number are counted.
const OTHERS: &[u8] = b"(others)";
/// Name under which servers without a name are counted.
const NAMELESS: &[u8] = b"_";

/// The zones of names, for the life of the process.
static NAMES: Mutex<Vec<Arc<StatusZone>>> = Mutex::new(Vec::new());

/// Returns the zone of a server's name. Makes it unless there are too many.
fn zone_of_name(name: &[u8]) -> Arc<StatusZone> {
    // A `status_zone` of the same name counts these requests, too.
    let explicit = zones(kind::SERVER).into_iter().find(|z| z.name == name);
    let mut all = lock(&NAMES);
    let known = |name: &[u8], all: &[Arc<StatusZone>]| all.iter().find(|z| z.name == name).cloned();
    if let Some(zone) = explicit.or_else(|| known(name, &all)) {
        return zone;
    }
    let name = if all.len() < MOST_NAMES { name } else { OTHERS };
    known(name, &all).unwrap_or_else(|| {
        let made = zone(kind::NAME, name);
        all.push(made.clone());
        made
    })
}

/// Returns the name under which a server without a zone is counted.
fn name_of(server: &Server) -> &[u8] {
    if server.name.is_empty() { NAMELESS } else { &server.name }
}

#[inline]
fn count_by_name(req: &Request, time: Duration) {
    let known = req.conf.counted.0.borrow().get(req.server).copied().unwrap_or(0);
    let id = if known == 0 { begin_to_count(req) } else { known };
    if id != NOWHERE {
        with_cells(id as usize - 1, |c| count_cells(req, c, time));
    }
}

/// Finds the zone of a server's name at the first request of a thread to the server.
#[cold]
fn begin_to_count(req: &Request) -> u32 {
    let http = req.http();
    let Some(server) = http.servers.get(req.server) else { return NOWHERE };
    let has_zone = server.root().is_some_and(|l| l.status_zone.is_some());
    let id = match has_zone {
        true => NOWHERE,
        false => u32::try_from(zone_of_name(name_of(server)).id + 1).unwrap_or(NOWHERE),
    };
    let mut all = req.conf.counted.0.borrow_mut();
    if all.len() < http.servers.len() {
        all.resize(http.servers.len(), 0);
    }
    if let Some(place) = all.get_mut(req.server) {
        *place = id;
    }
    id
}

/// Returns the totals of servers: those with a `status_zone` under its name, the others under their own. The latter are servers of
/// this configuration, also before their first request.
pub fn servers(http: &Http) -> Vec<(Vec<u8>, Totals)> {
    let mut all: Vec<_> = zones(kind::SERVER).iter().map(|z| (z.name.clone(), Totals::of(z))).collect();
    let names: Vec<Arc<StatusZone>> = lock(&NAMES).clone();
    let explicit: HashSet<Vec<u8>> = all.iter().map(|(name, _)| name.clone()).collect();
    let by_name: HashMap<&[u8], &Arc<StatusZone>> = names.iter().map(|z| (z.name.as_slice(), z)).collect();
    let mut seen: HashSet<&[u8]> = HashSet::new();
    // Names without requests are listed while there is room for zones of their own. Beyond that, requests are counted among the
    // others, so it is unknown which names had any.
    let mut room = MOST_NAMES.saturating_sub(names.len());
    for server in &http.servers {
        let has_zone = server.root().is_some_and(|l| l.status_zone.is_some());
        let name = name_of(server);
        if has_zone || explicit.contains(name) || !seen.insert(name) {
            continue;
        }
        match by_name.get(name) {
            Some(zone) => all.push((name.to_vec(), Totals::of(zone))),
            None if room > 0 => {
                room -= 1;
                all.push((name.to_vec(), Totals::without_requests()));
            }
            None => {}
        }
    }
    if let Some(others) = by_name.get(OTHERS) {
        all.push((OTHERS.to_vec(), Totals::of(others)));
    }
    all
}

/// Configurations that this process has had, milliseconds since the epoch when it loaded the last one, and when
/// it started.
static RELOADS: AtomicU64 = AtomicU64::new(0);
static LOADED: AtomicI64 = AtomicI64::new(0);
static STARTED: AtomicI64 = AtomicI64::new(0);
static RESPAWNED: AtomicU64 = AtomicU64::new(0);

fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(0)
}

/// Notes the start of the process; workers before it have ended unasked.
pub fn started(respawned: u64) {
    STARTED.store(now_ms(), Relaxed);
    LOADED.store(now_ms(), Relaxed);
    RESPAWNED.store(respawned, Relaxed);
}

/// Returns the number of the configuration in effect, from 1 on, and the Unix time in milliseconds at which it was loaded.
pub fn generation() -> (u64, i64) {
    (RELOADS.load(Relaxed) + 1, LOADED.load(Relaxed))
}

/// Notes a new configuration.
pub fn reloaded() {
    RELOADS.fetch_add(1, Relaxed);
    LOADED.store(now_ms(), Relaxed);
}

/// Formats a time as `2026-01-31T12:00:00.000Z`.
pub fn time(ms: i64) -> String {
    jiff::Timestamp::from_millisecond(ms).map_or_else(|_| String::new(), |t| format!("{t:.3}"))
}

/// Sums of counters over all threads.
pub fn total(
    req: &Request,
    f: impl Fn(&forebay_core::counters::Counters) -> &forebay_core::counters::Counter,
) -> u64 {
    req.thread.all_counters.iter().map(|c| f(c).get()).fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_without_a_zone_share_a_limited_number_of_them() {
        let first = zone_of_name(b"first.test");
        assert_eq!((first.kind, first.name.as_slice()), (kind::NAME, &b"first.test"[..]));
        assert!(Arc::ptr_eq(&first, &zone_of_name(b"first.test")));
        let explicit = zone(kind::SERVER, b"explicit.test");
        assert!(Arc::ptr_eq(&explicit, &zone_of_name(b"explicit.test")));
        let ids: HashSet<usize> =
            (0..3 * MOST_NAMES).map(|n| zone_of_name(format!("n{n}.test").as_bytes()).id).collect();
        assert!(ids.len() <= MOST_NAMES, "{}", ids.len());
        assert_eq!(zone_of_name(b"one.more.test").name, OTHERS);
        // Classes, not single statuses: a name takes little memory.
        assert_eq!(first.kind.cells, cell::COUNT_OF_NAME);
        assert_eq!(Totals::of(&first).classes_only, Some([0; 5]));
    }

    #[test]
    fn threads_are_summed() {
        let zone = zone(kind::LOCATION, b"threads_are_summed");
        std::thread::scope(|s| {
            for _ in 0..3 {
                s.spawn(|| {
                    for _ in 0..10 {
                        with_cells(zone.id, |c| {
                            add(c, cell::REQUESTS, 1);
                            add(c, cell::CODES + 104, 1);
                        });
                    }
                });
            }
        });
        let totals = Totals::of(&zone);
        assert_eq!((totals.requests, totals.codes.clone()), (30, vec![(204, 30)]));
        assert_eq!(totals.classes(), [0, 30, 0, 0, 0]);
        assert!(Arc::ptr_eq(&zone, &forebay_core::status_zone::zone(kind::LOCATION, b"threads_are_summed")));
    }
}
