//! Load generator: open and closed loop over HTTP/1.1, HTTP/2, TCP and UDP, with figures that say how far they can be
//! trusted.
//!
//! [`load`] describes the requests, [`engine`] sends them with one pinned thread a CPU, [`record`] has the
//! counts. [`observe`] watches this machine and the server, and [`verdict`] judges the result. `stats` and
//! `compare` show whether two targets differ. The rest is command line and output.
//!
//! It knows nothing of the server. `forebay-tune` drives it. `stats` and `compare` serve the tuner, too.

#![warn(unreachable_pub)]

mod ab;
mod agent;
mod backend;
pub mod cli;
mod compare;
pub mod engine;
mod gate;
pub mod histogram;
pub mod load;
mod matrix;
pub mod observe;
mod options;
mod output;
pub mod ports;
pub mod raw;
pub mod record;
pub mod run;
pub mod schedule;
pub mod signals;
pub mod sources;
mod stats;
pub mod tls;
pub mod units;
pub mod url;
pub mod verdict;
mod wrk;

/// Reason for which there is nothing to measure.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line, or a file that it names, asks for something impossible.
    #[error("{0}")]
    Usage(String),
    /// The server is not one to be measured: its certificate does not verify.
    #[error("{0}")]
    Distrusted(String),
    /// A host has no address.
    #[error("{0}: {1}")]
    Resolve(String, std::io::Error),
    /// Something of this machine failed.
    #[error("{0}: {1}")]
    Io(String, std::io::Error),
}

impl Error {
    /// Adds the name of the file or thing that failed.
    pub fn io(what: impl std::fmt::Display) -> impl FnOnce(std::io::Error) -> Error {
        move |e| Error::Io(what.to_string(), e)
    }
}

/// Nanoseconds of the monotonic clock. Hot path.
#[inline]
pub fn clock() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Returns CPU time of the calling thread, ns.
pub fn thread_cpu() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Formats a time for people: `1.23ms`, as wrk writes it.
pub fn duration_text(nanos: u64) -> String {
    let n = nanos as f64;
    match nanos {
        0..1_000 => format!("{nanos}ns"),
        1_000..1_000_000 => format!("{:.2}us", n / 1e3),
        1_000_000..1_000_000_000 => format!("{:.2}ms", n / 1e6),
        1_000_000_000..60_000_000_000 => format!("{:.2}s", n / 1e9),
        60_000_000_000..3_600_000_000_000 => format!("{:.2}m", n / 60e9),
        _ => format!("{:.2}h", n / 3600e9),
    }
}
