//! Counters for monitoring: zones of servers, locations and caches, outcomes of limits, the life of the process. Each
//! thread writes its own cells; readers add them up. Counters of [`forebay_core::counters`] and of servers, by name,
//! are always active. Zones are counted only if the configuration asks for them (NGINX Plus: status_zone).
//!
//! Servers are counted by name, at most 1000, and the others together. Zones have their names for the life of the process, so counting
//! goes on after a reload. The cells are added up when a client asks `prometheus.rs` or `api.rs`. Times of requests go into buckets of
//! each thread (`forebay-core/src/latency.rs`).
//!
//! `page.rs` serves the dashboard, and `details.rs` what it asks for in addition to NGINX Plus' interface. The program gives the facts
//! of `facts.rs` from `forebay/src/dashboard_facts.rs` and `changes.rs`. `forebay/src/top/` shows the same in a terminal.

mod acme;
pub mod api;
mod details;
pub mod facts;
pub mod history;
mod ingress_nginx;
mod keyvals;
pub(crate) mod labelled;
pub mod page;
pub mod prometheus;
mod quic;
mod shared_store;
mod usage;

use forebay_conf::error::Error;
use forebay_conf::tree::Directive;
use forebay_core::config::Context;
use forebay_core::histogram::Histogram;
use forebay_core::status_zone::{StatusZone, zone, zones};
use forebay_server::config::http::{Http, Kind, LocationBuild};
use forebay_server::config::{HttpContext, Scope};
use forebay_server::counting::{
    LOCATION, MOST_NAMES, NAME, OTHERS, SERVER, cell, life, name_of, zones_of_names,
};
use forebay_server::module::{Content, Module, Needs, Page};
use forebay_server::request::Request;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

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
    // An `if` block is a location whose requests are counted in a zone of its own.
    let kind = if matches!(l.kind, Kind::Server) { SERVER } else { LOCATION };
    l.status_zone = Some(zone(kind, forebay_core::config::value::first(d)));
    Ok(())
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
            // The front end of this block is in a crate that this one does not use.
            Block::Stream => "stream",
        }
    }
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
            // The zone of a name counts classes only, so that a thousand names take little memory.
            codes: match zone.kind {
                NAME => Vec::new(),
                _ => (0..500u16)
                    .map(|n| (n + 100, sum(cell::CODES + usize::from(n))))
                    .filter(|(_, n)| *n > 0)
                    .collect(),
            },
            classes_only: (zone.kind == NAME).then(|| std::array::from_fn(|n| sum(cell::CODES + n))),
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
        let width = if zone.kind == NAME { 1 } else { 100 };
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
            // The counters of a zone that was away begin again, and growth must not be below zero then.
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
    let names = zones_of_names();
    zones(SERVER).into_iter().chain(names).collect()
}

/// Returns the totals of servers. A server with a `status_zone` has the name of the zone, any other its own name. The latter are
/// listed before their first request, too.
pub fn servers(http: &Http) -> Vec<(Vec<u8>, Totals)> {
    let mut all: Vec<_> = zones(SERVER).iter().map(|z| (z.name.clone(), Totals::of(z))).collect();
    let names = zones_of_names();
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

/// Returns the number of the configuration in effect, from 1 on, and the Unix time in milliseconds at which it was loaded.
pub fn generation() -> (u64, i64) {
    (life().reloads + 1, life().loaded)
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
    use forebay_core::status_zone::{add, with_cells};
    use forebay_server::counting::zone_of_name;

    #[test]
    fn names_without_a_zone_share_a_limited_number_of_them() {
        let first = zone_of_name(b"first.test");
        assert_eq!((first.kind, first.name.as_slice()), (NAME, &b"first.test"[..]));
        assert!(Arc::ptr_eq(&first, &zone_of_name(b"first.test")));
        let explicit = zone(SERVER, b"explicit.test");
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
        let zone = zone(LOCATION, b"threads_are_summed");
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
        assert!(Arc::ptr_eq(&zone, &forebay_core::status_zone::zone(LOCATION, b"threads_are_summed")));
    }
}
