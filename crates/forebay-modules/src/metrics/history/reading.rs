//! Reads the counters that exist, for the history.

use super::scale::{Columns, Key};
use crate::metrics::{Block, Sums, usage, zones_of_servers};
use forebay_core::config::Config;
use forebay_core::counters::{Counter, Counters};
use forebay_core::limit::outcomes::{Limited, Outcome, Outcomes};
use forebay_core::status_zone::sessions::SessionTotals;
use forebay_core::status_zone::zones;
use forebay_core::upstream::group::Group;
use forebay_proxy::cache::counts;
use forebay_server::config::http::Http;
use forebay_server::counting::{self, LOCATION};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Instant;

/// Kind of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Grows; the history has the growth for each second.
    Counter,
    /// Goes up and down; the history has the mean.
    Gauge,
}

/// Values of all requests and connections: name in the API, and kind.
pub const COLUMNS: [(&str, Kind); 23] = [
    ("requests", Kind::Counter),
    ("1xx", Kind::Counter),
    ("2xx", Kind::Counter),
    ("3xx", Kind::Counter),
    ("4xx", Kind::Counter),
    ("5xx", Kind::Counter),
    ("discarded", Kind::Counter),
    ("received", Kind::Counter),
    ("sent", Kind::Counter),
    ("http1", Kind::Counter),
    ("http2", Kind::Counter),
    ("http3", Kind::Counter),
    ("accepted", Kind::Counter),
    ("evicted", Kind::Counter),
    ("tls12", Kind::Counter),
    ("tls13", Kind::Counter),
    ("tls_resumed", Kind::Counter),
    ("tls_failed", Kind::Counter),
    ("cpu_us", Kind::Counter),
    ("active", Kind::Gauge),
    ("idle", Kind::Gauge),
    ("current", Kind::Gauge),
    ("memory", Kind::Gauge),
];

/// Number of gauges, which are the last of [`COLUMNS`].
const GAUGES: usize = 4;

/// Reads the counters for one configuration.
pub(super) struct Reader {
    http: Arc<Http>,
    groups: Vec<(Block, Arc<Group>)>,
    threads: Arc<Vec<Arc<Counters>>>,
}

/// Sums over readings, which go on after a reload.
#[derive(Default)]
pub(super) struct Running {
    /// Sums of the gauges at all readings.
    gauges: [u64; GAUGES],
    /// Sums of the connections of each thread at all readings.
    connections: Vec<u64>,
    /// Sums of the zones of servers at the last reading, by the number of the zone. The counts of a zone are gone when the zone is.
    zones: HashMap<usize, Sums>,
    /// Requests and errors of servers by name. A name may have two zones: a zone of its own, and the zone of a `status_zone` that
    /// came with a reload.
    names: BTreeMap<Vec<u8>, [u64; 2]>,
    /// Sums of all zones of servers since the first reading.
    total: Sums,
}

impl Reader {
    pub(super) fn new(http: Arc<Http>, config: &Config, threads: Arc<Vec<Arc<Counters>>>) -> Reader {
        let groups = |block: Block| config.upstreams(block.name()).map(move |g| (block, g.clone()));
        Reader { http, groups: groups(Block::Http).chain(groups(Block::Stream)).collect(), threads }
    }

    /// Reads all counters.
    pub(super) fn read(&self, running: &mut Running) -> (Columns, Vec<(Key, [u64; 2])>) {
        let mut rows = Vec::new();
        running.read_threads(&self.threads, &mut rows);
        running.read_servers(&mut rows);
        self.read_groups(&mut rows);
        self.read_caches(&mut rows);
        for zone in zones(LOCATION) {
            let sums = Sums::of(&zone);
            rows.push(row("http/location_zones", &zone.name, [sums.requests, sums.classes[4]]));
        }
        read_limits(&mut rows);
        for (zone, t) in SessionTotals::all() {
            rows.push(row("stream/server_zones", &zone.name, [t.connections, t.sessions[2]]));
        }
        (self.columns(running), rows)
    }

    fn columns(&self, running: &mut Running) -> Columns {
        let sum = |f: fn(&Counters) -> &Counter| {
            self.threads.iter().map(|c| f(c).get()).fold(0u64, u64::wrapping_add)
        };
        let [active, accepted, _, requests, reading, writing, waiting] = counting::sums(&self.threads);
        let (http2, http3) = (sum(|c| &c.http2), sum(|c| &c.http3));
        let memory = usage::memory().unwrap_or(0);
        let now = [active.saturating_sub(waiting), waiting, reading.wrapping_add(writing), memory];
        for (sum, now) in running.gauges.iter_mut().zip(now) {
            *sum = sum.saturating_add(now);
        }
        let t = &running.total;
        let [c1, c2, c3, c4, c5] = t.classes;
        let [active, idle, current, memory] = running.gauges;
        let mut columns = Columns {
            values: [
                requests,
                c1,
                c2,
                c3,
                c4,
                c5,
                t.discarded,
                t.received,
                t.sent,
                requests.saturating_sub(http2 + http3),
                http2,
                http3,
                accepted,
                sum(|c| &c.evicted),
                sum(|c| &c.tls12),
                sum(|c| &c.tls13),
                sum(|c| &c.tls_resumed),
                sum(|c| &c.tls_failed),
                usage::cpu_micros(),
                active,
                idle,
                current,
                memory,
            ],
            ..Columns::default()
        };
        self.threads.iter().for_each(|c| c.times.add_to(&mut columns.times));
        columns
    }

    fn read_groups(&self, rows: &mut Vec<(Key, [u64; 2])>) {
        let now = Instant::now();
        for (block, group) in &self.groups {
            let kind = match block {
                Block::Http => "http/upstreams",
                Block::Stream => "stream/upstreams",
            };
            // A group may have an address twice, as it is written or because two names resolve to it.
            let mut peers: BTreeMap<Vec<u8>, [u64; 2]> = BTreeMap::new();
            for peer in group.status(now) {
                // A response of class 5xx may count as a failed attempt as well, so the numbers must not be
                // added.
                let errors = peer.responses[4].max(peer.fails);
                let [all, bad] = peers.entry(peer.name).or_default();
                (*all, *bad) = (all.wrapping_add(peer.requests), bad.wrapping_add(errors));
            }
            rows.extend(peers.into_iter().map(|(name, values)| {
                let (key, values) = row(kind, &name, values);
                (Key { group: text(&group.name), ..key }, values)
            }));
        }
    }

    fn read_caches(&self, rows: &mut Vec<(Key, [u64; 2])>) {
        for cache in forebay_proxy::cache::all(&self.http) {
            let counts = counts::cache_totals(&cache.counts);
            let all = counts.iter().map(|(n, _)| *n).fold(0, u64::wrapping_add);
            let hits = counts.last().map_or(0, |(n, _)| *n);
            rows.push(row("http/caches", &cache.name, [all, hits]));
        }
    }
}

impl Running {
    fn read_threads(&mut self, threads: &[Arc<Counters>], rows: &mut Vec<(Key, [u64; 2])>) {
        self.connections.resize(threads.len(), 0);
        for ((n, c), connections) in threads.iter().enumerate().zip(&mut self.connections) {
            *connections = connections.saturating_add(c.active.get());
            rows.push(row("workers", n.to_string().as_bytes(), [c.requests.get(), *connections]));
        }
    }

    fn read_servers(&mut self, rows: &mut Vec<(Key, [u64; 2])>) {
        let former = std::mem::take(&mut self.zones);
        let former_names = std::mem::take(&mut self.names);
        for zone in zones_of_servers() {
            let sums = Sums::of(&zone);
            let before = former.get(&zone.id).cloned().unwrap_or_default();
            self.total.add_growth(&sums, &before);
            let mut grown = Sums::default();
            grown.add_growth(&sums, &before);
            let former = || former_names.get(&zone.name).copied().unwrap_or_default();
            let [all, bad] = self.names.entry(zone.name.clone()).or_insert_with(former);
            (*all, *bad) = (all.saturating_add(grown.requests), bad.saturating_add(grown.classes[4]));
            self.zones.insert(zone.id, sums);
        }
        rows.extend(self.names.iter().map(|(name, values)| row("http/server_zones", name, *values)));
    }
}

fn read_limits(rows: &mut Vec<(Key, [u64; 2])>) {
    let limits = [
        ("http/limit_reqs", Block::Http, Limited::Requests),
        ("http/limit_conns", Block::Http, Limited::Connections),
        ("stream/limit_conns", Block::Stream, Limited::Connections),
    ];
    for (kind, block, limited) in limits {
        for zone in Outcomes::all(block.name(), limited) {
            let all = zone.counts().map(|(_, n)| n).fold(0, u64::wrapping_add);
            let rejected = zone.counts().filter(|(o, _)| *o == Outcome::Rejected.name());
            let rejected = rejected.map(|(_, n)| n).fold(0, u64::wrapping_add);
            rows.push(row(kind, &zone.zone, [all, rejected]));
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn row(kind: &'static str, name: &[u8], values: [u64; 2]) -> (Key, [u64; 2]) {
    (Key { kind, group: String::new(), name: text(name) }, values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gauges_are_the_last_columns() {
        let gauges = COLUMNS.iter().skip(COLUMNS.len() - GAUGES).filter(|(_, kind)| *kind == Kind::Gauge);
        assert_eq!(gauges.count(), COLUMNS.iter().filter(|(_, kind)| *kind == Kind::Gauge).count());
    }
}
