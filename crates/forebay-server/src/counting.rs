//! Counters of servers and locations, and of the life of the process. Each thread writes its own cells, and readers add them up
//! (`forebay-core/src/status_zone/`). Zones are counted where the configuration asks for them (NGINX Plus: status_zone), and
//! servers without a zone by their names, at most 1000, the others together. Hot path.

use crate::config::http::{Location, Server};
use crate::request::Request;
use forebay_core::counters::Counters;
use forebay_core::histogram::{BUCKETS, bucket};
use forebay_core::status_zone::{StatusZone, ZoneKind, add, subtract_one, with_cells, zone, zones};
use forebay_sys::sync::lock;
use std::cell::RefCell;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Requests to virtual servers.
pub const SERVER: ZoneKind = ZoneKind { name: "servers", cells: cell::COUNT };
/// Requests to locations.
pub const LOCATION: ZoneKind = ZoneKind { name: "locations", cells: cell::COUNT };
/// Requests to virtual servers of one name that have no zone. Statuses are counted by class only.
pub const NAME: ZoneKind = ZoneKind { name: "server names", cells: cell::COUNT_OF_NAME };

/// Places of the cells of a server or location.
pub mod cell {
    /// Requests.
    pub const REQUESTS: usize = 0;
    /// Requests that ended without a response.
    pub const DISCARDED: usize = 1;
    /// Bytes received.
    pub const RECEIVED: usize = 2;
    /// Bytes sent.
    pub const SENT: usize = 3;
    /// Sum of the times of requests, microseconds.
    pub const MICROS: usize = 4;
    /// Requests under way.
    pub const PROCESSING: usize = 5;
    /// First bucket of times.
    pub const BUCKETS: usize = 6;
    /// First status, 100; of a name the first class.
    pub const CODES: usize = BUCKETS + super::BUCKETS.len() + 1;
    /// Number of cells.
    pub const COUNT: usize = CODES + 500;
    /// Number of cells of a name: it has one for each class of statuses.
    pub const COUNT_OF_NAME: usize = CODES + 5;
}

/// A request under way in a server's zone.
#[derive(Debug)]
pub struct Processing(usize);

impl Drop for Processing {
    fn drop(&mut self) {
        with_cells(self.0, |c| subtract_one(c, cell::PROCESSING));
    }
}

/// Counts the beginning of a request in the zone of its server. `root` is the level of that server.
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
    let zone = req.own_location().status_zone.as_ref();
    let location = zone.filter(|zone| zone.kind == LOCATION).map(|zone| zone.id);
    let is_watched = req.conf.http.is_watched || location.is_some() || req.modules.processing.is_some();
    // Histories and zones show times of single requests, which need an exact clock.
    let time = match is_watched {
        true => req.tally.started.elapsed(),
        // The clock of the turn has to do here, since reading another clock for each request would be the larger part of the cost.
        false => req.thread.io.poller.since(req.tally.started),
    };
    req.thread.counters.times.add(time);
    match req.modules.processing.take() {
        Some(p) => with_cells(p.0, |c| count_cells(req, c, time)),
        None => count_by_name(req, time),
    }
    if let Some(id) = location {
        with_cells(id, |c| count_cells(req, c, time));
    }
}

fn count_cells(req: &Request, c: &[AtomicU64], time: Duration) {
    let status = usize::from(req.logged_status());
    // A name has a cell for each class of statuses, and a zone has one for each status.
    let (first, code) = if c.len() == cell::COUNT_OF_NAME { (1, status / 100) } else { (100, status) };
    add(c, cell::REQUESTS, 1);
    add(c, cell::RECEIVED, req.tally.received);
    add(c, cell::SENT, req.tally.sent);
    // NGINX Plus counts a request without a response as discarded, and no status for it.
    if req.tally.sent == 0 {
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
/// Maximum number of server names with counters of their own. All other names share one zone.
pub const MOST_NAMES: usize = 1000;
/// Name under which servers beyond that number are counted.
pub const OTHERS: &[u8] = b"(others)";
/// Name under which servers without a name are counted.
const NAMELESS: &[u8] = b"_";

/// The zones of names, for the life of the process.
static NAMES: Mutex<Vec<Arc<StatusZone>>> = Mutex::new(Vec::new());

/// Returns the zone of a server's name. Makes it unless there are too many.
pub fn zone_of_name(name: &[u8]) -> Arc<StatusZone> {
    // A `status_zone` of the same name counts these requests, too.
    let explicit = zones(SERVER).into_iter().find(|z| z.name == name);
    let mut all = lock(&NAMES);
    let known = |name: &[u8], all: &[Arc<StatusZone>]| all.iter().find(|z| z.name == name).cloned();
    if let Some(zone) = explicit.or_else(|| known(name, &all)) {
        return zone;
    }
    // Configurations may have tens of thousands of names, and each zone takes memory in every thread.
    let name = if all.len() < MOST_NAMES { name } else { OTHERS };
    known(name, &all).unwrap_or_else(|| {
        let made = zone(NAME, name);
        all.push(made.clone());
        made
    })
}

/// Returns the name under which a server without a zone is counted.
pub fn name_of(server: &Server) -> &[u8] {
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

/// Returns the zones of the names of servers.
pub fn zones_of_names() -> Vec<Arc<StatusZone>> {
    lock(&NAMES).clone()
}

/// Life of the process.
#[derive(Debug, Default)]
struct Life {
    /// Number of configurations after the first.
    reloads: AtomicU64,
    /// Unix time at which the last configuration was loaded, milliseconds.
    loaded: AtomicI64,
    /// Unix time of the start, milliseconds.
    started: AtomicI64,
    /// Workers before this one that have ended unasked.
    respawned: AtomicU64,
}

static LIFE: Life = Life {
    reloads: AtomicU64::new(0),
    loaded: AtomicI64::new(0),
    started: AtomicI64::new(0),
    respawned: AtomicU64::new(0),
};

/// Facts about the life of the process.
#[derive(Clone, Copy, Debug)]
pub struct LifeSoFar {
    /// Number of configurations after the first.
    pub reloads: u64,
    /// Unix time at which the configuration in effect was loaded, milliseconds.
    pub loaded: i64,
    /// Unix time of the start, milliseconds.
    pub started: i64,
    /// Workers before this one that have ended unasked.
    pub respawned: u64,
}

/// Returns the facts about the life of the process.
pub fn life() -> LifeSoFar {
    LifeSoFar {
        reloads: LIFE.reloads.load(Relaxed),
        loaded: LIFE.loaded.load(Relaxed),
        started: LIFE.started.load(Relaxed),
        respawned: LIFE.respawned.load(Relaxed),
    }
}

/// Returns the Unix time in milliseconds.
pub fn now_ms() -> i64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(now.as_millis()).unwrap_or(0)
}

/// Notes the start of the process; workers before it have ended unasked.
pub fn started(respawned: u64) {
    LIFE.started.store(now_ms(), Relaxed);
    LIFE.loaded.store(now_ms(), Relaxed);
    LIFE.respawned.store(respawned, Relaxed);
}

/// Notes a new configuration.
pub fn reloaded() {
    LIFE.reloads.fetch_add(1, Relaxed);
    LIFE.loaded.store(now_ms(), Relaxed);
}

/// Returns sums over all threads: active, accepted, handled, requests, reading, writing, waiting.
pub fn totals(req: &Request) -> [u64; 7] {
    sums(&req.thread.all_counters)
}

/// Returns the sums of [`totals`] over these threads.
pub fn sums(threads: &[Arc<Counters>]) -> [u64; 7] {
    let sum = |f: fn(&Counters) -> u64| threads.iter().map(|c| f(c)).fold(0u64, u64::wrapping_add);
    let active = sum(|c| c.active.get());
    let reading = sum(|c| c.reading.get());
    let writing = sum(|c| c.writing.get());
    let busy = reading.wrapping_add(writing).wrapping_add(sum(|c| c.sessions.get()));
    // The threads go on counting while they are read, so the sums may not fit together, and the difference must not wrap.
    let waiting = active.saturating_sub(busy);
    [
        active,
        sum(|c| c.accepted.get()),
        sum(|c| c.handled.get()),
        sum(|c| c.requests.get()),
        reading,
        writing,
        waiting,
    ]
}
