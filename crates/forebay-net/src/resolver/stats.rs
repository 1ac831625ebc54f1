//! Counters of the queries and answers of resolvers, by zone (nginx Plus: status_zone=).

use super::Failure;
use forebay_sys::sync::lock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};

/// Kind of a query.
#[derive(Clone, Copy, Debug)]
pub(super) enum Asked {
    /// Addresses of a name.
    Name,
    /// Servers of a service (SRV).
    Service,
}

/// Counters of a resolver.
#[derive(Debug, Default)]
pub struct Stats {
    names: AtomicU64,
    services: AtomicU64,
    /// In the order of [`RESPONSES`].
    responses: [AtomicU64; RESPONSES.len()],
}

/// Kinds of answers of name servers, in the words of the API.
const RESPONSES: [&str; 8] =
    ["noerror", "formerr", "servfail", "nxdomain", "notimp", "refused", "timedout", "unknown"];

/// Counters by name of the zone. They live as long as a configuration uses them.
static ZONES: Mutex<Vec<(Vec<u8>, Weak<Stats>)>> = Mutex::new(Vec::new());

impl Stats {
    /// Returns the counters of a zone. Those in use are the same after a reload.
    pub fn zone(name: &[u8]) -> Arc<Stats> {
        let mut all = lock(&ZONES);
        all.retain(|(_, s)| s.strong_count() > 0);
        if let Some(s) = all.iter().find_map(|(n, s)| s.upgrade().filter(|_| n == name)) {
            return s;
        }
        let s = Arc::new(Stats::default());
        all.push((name.to_vec(), Arc::downgrade(&s)));
        s
    }

    /// Returns all zones.
    pub fn zones() -> Vec<(Vec<u8>, Arc<Stats>)> {
        let all = lock(&ZONES);
        all.iter().filter_map(|(n, s)| Some((n.clone(), s.upgrade()?))).collect()
    }

    /// Returns the numbers of queries for names, for services, and for the names of addresses (always 0).
    pub fn requests(&self) -> [u64; 3] {
        [self.names.load(Relaxed), self.services.load(Relaxed), 0]
    }

    /// Returns the numbers of answers by kind.
    pub fn responses(&self) -> impl Iterator<Item = (&'static str, u64)> {
        RESPONSES.iter().zip(&self.responses).map(|(what, n)| (*what, n.load(Relaxed)))
    }

    pub(super) fn asked(&self, what: Asked) {
        let counter = match what {
            Asked::Name => &self.names,
            Asked::Service => &self.services,
        };
        counter.fetch_add(1, Relaxed);
    }

    /// Counts a response. `None` stands for one without an error.
    pub(super) fn answered(&self, failure: Option<Failure>) {
        let at = failure.map_or(0, Failure::place);
        if let Some(n) = self.responses.get(at) {
            n.fetch_add(1, Relaxed);
        }
    }
}

impl Failure {
    /// Returns the index of its counter.
    fn place(self) -> usize {
        match self {
            Failure::Format => 1,
            Failure::Server => 2,
            Failure::NotFound => 3,
            Failure::Unimplemented => 4,
            Failure::Refused => 5,
            Failure::Timeout => 6,
            Failure::Other(_) => 7,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zones_are_found_by_name_while_they_are_used() {
        let a = Stats::zone(b"stats-a");
        a.asked(Asked::Name);
        a.answered(Some(Failure::NotFound));
        a.answered(None);
        let again = Stats::zone(b"stats-a");
        assert_eq!(again.requests(), [1, 0, 0]);
        let known: Vec<_> = again.responses().filter(|(_, n)| *n > 0).collect();
        assert_eq!(known, [("noerror", 1), ("nxdomain", 1)]);
        drop((a, again));
        assert!(!Stats::zones().iter().any(|(n, _)| n == b"stats-a"));
        assert_eq!(Stats::zone(b"stats-a").requests(), [0; 3]);
    }
}
