//! Counters of one thread. Only the owning thread writes them, so a plain load and store suffices. Readers add up those
//! of all threads (nginx: stub_status).

use crate::latency::Times;
use forebay_net::io::Io;
use forebay_net::quic::COUNTS;
use forebay_net::reactor::Progress;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// One counter.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Creates a counter of zero.
    pub const fn new() -> Counter {
        Counter(AtomicU64::new(0))
    }

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
    /// Replaces the value, of which only the owning thread knows; only by that.
    #[inline]
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
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
    /// Idle connections that were closed to make room for others.
    pub evicted: Counter,
    /// Requests over HTTP/2, which are among `requests`.
    pub http2: Counter,
    /// Requests over HTTP/3, which are among `requests`.
    pub http3: Counter,
    /// Complete handshakes of TLS 1.2, and of TLS 1.3.
    pub tls12: Counter,
    /// See `tls12`.
    pub tls13: Counter,
    /// Complete handshakes that resumed a session.
    pub tls_resumed: Counter,
    /// Handshakes that failed.
    pub tls_failed: Counter,
    /// QUIC connections, and those of them whose handshake is not complete.
    pub quic_open: Counter,
    /// See `quic_open`.
    pub quic_half_open: Counter,
    /// What happened on them, by the numbers of [`forebay_net::quic::Count`].
    pub quic: [Counter; COUNTS],
    /// QUIC connections to upstreams that are open, and all that were begun.
    pub upstream_quic_open: Counter,
    /// See `upstream_quic_open`.
    pub upstream_quic_connections: Counter,
    /// QUIC connections to upstreams that could not be established, or were ended because the server broke the rules.
    pub upstream_quic_failed: Counter,
    /// Requests to upstreams over HTTP/3.
    pub upstream_quic_requests: Counter,
    /// Requests that went to upstreams over TCP because there was no connection over QUIC.
    pub upstream_quic_fallbacks: Counter,
    /// Times of requests.
    pub times: Times,
    /// Panics caught.
    pub panics: Counter,
    /// Turns of the thread, and its number in the kernel, once it has begun.
    watched: OnceLock<(Arc<Progress>, u64)>,
    /// Turns of the event loop that took longer than a second. Only the watchdog writes it.
    pub long_turns: Counter,
    /// Log lines lost because a write failed.
    pub log_lines_lost: Counter,
}

impl Counters {
    /// Has the watchdog look at the calling thread, whose event loop this is.
    pub(crate) fn watch(&self, io: &Io) {
        let id = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        let _ = self.watched.set((io.poller.progress().clone(), id.into()));
    }

    /// Returns the turns of the thread, and its number in the kernel.
    pub(crate) fn watched(&self) -> Option<&(Arc<Progress>, u64)> {
        self.watched.get()
    }
}
