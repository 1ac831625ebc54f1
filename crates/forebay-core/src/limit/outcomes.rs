//! Outcomes of limits, and their counts by zone.

use forebay_sys::sync::lock;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, Weak};

/// Outcome of the limits for a request or session (`$limit_req_status`, `$limit_conn_status`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Outcome {
    Passed,
    Delayed,
    Rejected,
    DelayedDryRun,
    RejectedDryRun,
}

impl Outcome {
    const ALL: [Outcome; 5] = [
        Outcome::Passed,
        Outcome::Delayed,
        Outcome::Rejected,
        Outcome::DelayedDryRun,
        Outcome::RejectedDryRun,
    ];

    /// Returns the outcome of a limit that rejects. With `dry_run` it is only logged.
    pub fn rejected(dry_run: bool) -> Outcome {
        if dry_run { Outcome::RejectedDryRun } else { Outcome::Rejected }
    }

    /// Returns the outcome of a limit that delays. With `dry_run` it is only logged.
    pub fn delayed(dry_run: bool) -> Outcome {
        if dry_run { Outcome::DelayedDryRun } else { Outcome::Delayed }
    }

    /// Returns the value of the variable.
    pub fn text(self) -> &'static str {
        match self {
            Outcome::Passed => "PASSED",
            Outcome::Delayed => "DELAYED",
            Outcome::Rejected => "REJECTED",
            Outcome::DelayedDryRun => "DELAYED_DRY_RUN",
            Outcome::RejectedDryRun => "REJECTED_DRY_RUN",
        }
    }

    /// Returns the name in the API of NGINX Plus.
    pub fn name(self) -> &'static str {
        match self {
            Outcome::Passed => "passed",
            Outcome::Delayed => "delayed",
            Outcome::Rejected => "rejected",
            Outcome::DelayedDryRun => "delayed_dry_run",
            Outcome::RejectedDryRun => "rejected_dry_run",
        }
    }

    /// Returns `true` if only `limit_req` has this outcome: `limit_conn` delays nothing.
    fn is_delay(self) -> bool {
        matches!(self, Outcome::Delayed | Outcome::DelayedDryRun)
    }
}

/// Kind of the things that a zone limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limited {
    /// Requests (`limit_req`).
    Requests,
    /// Connections, or what is under way on them (`limit_conn`).
    Connections,
}

/// Outcomes of a zone, counted by all threads. They go on after a reload.
#[derive(Debug)]
pub struct Outcomes {
    /// Block of the main level that has the zone.
    block: &'static str,
    limited: Limited,
    /// Name of the zone.
    pub zone: Vec<u8>,
    /// Counts in the order of [`Outcome::ALL`].
    counts: [AtomicU64; Outcome::ALL.len()],
}

static KNOWN: Mutex<Vec<Weak<Outcomes>>> = Mutex::new(Vec::new());

impl Outcomes {
    /// Returns the counts of a zone. `block`: see [`crate::config::Context::BLOCK`].
    pub fn named(block: &'static str, limited: Limited, zone: &[u8]) -> Arc<Outcomes> {
        let mut all = lock(&KNOWN);
        all.retain(|l| l.strong_count() > 0);
        let same = |l: &Arc<Outcomes>| l.block == block && l.limited == limited && l.zone == zone;
        let known = all.iter().filter_map(Weak::upgrade).find(same);
        known.unwrap_or_else(|| {
            let l = Arc::new(Outcomes { block, limited, zone: zone.to_vec(), counts: Default::default() });
            all.push(Arc::downgrade(&l));
            l
        })
    }

    /// Returns the counts of all zones of a block.
    pub fn all(block: &str, limited: Limited) -> Vec<Arc<Outcomes>> {
        let all = lock(&KNOWN);
        all.iter().filter_map(Weak::upgrade).filter(|l| l.block == block && l.limited == limited).collect()
    }

    /// Counts an outcome.
    pub fn count(&self, outcome: Outcome) {
        if let Some(c) = self.counts.get(outcome as usize) {
            c.fetch_add(1, Relaxed);
        }
    }

    /// Returns the names and counts of the outcomes that this kind of limit can have.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        let all = Outcome::ALL.iter().zip(&self.counts);
        all.filter(|(o, _)| self.limited == Limited::Requests || !o.is_delay())
            .map(|(o, c)| (o.name(), c.load(Relaxed)))
    }
}
