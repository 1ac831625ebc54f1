//! Counters of one thread. Only the owning thread writes them, so a plain load and store suffices. Readers add up those
//! of all threads (nginx: stub_status).

use std::sync::atomic::{AtomicU64, Ordering};

/// One counter.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds; only by the owning thread.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }
    /// Subtracts; only by the owning thread.
    #[inline]
    pub fn sub(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_sub(n), Ordering::Relaxed);
    }
    /// Reads.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Counters of a thread. Aligned so that two threads never share a cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Counters {
    /// Connections accepted.
    pub accepted: Counter,
    /// Connections served (nginx: handled).
    pub handled: Counter,
    /// Connections open.
    pub active: Counter,
    /// Requests.
    pub requests: Counter,
    /// Connections whose request head is being read.
    pub reading: Counter,
    /// Connections with a request under way.
    pub writing: Counter,
    /// Connections of sessions, which are never idle.
    pub sessions: Counter,
    /// Sessions over UDP that were ended for others because `worker_connections` were not enough.
    pub displaced: Counter,
    /// Panics caught.
    pub panics: Counter,
    /// Log lines lost because a write failed.
    pub log_lines_lost: Counter,
}
