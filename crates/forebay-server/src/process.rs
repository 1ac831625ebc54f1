//! The worker process: threads, generations of the configuration, and its end.

use crate::config::{Config, ListenAddr};
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// A configuration with the descriptors that the master opened for it.
#[derive(Debug)]
pub struct Generation {
    /// The configuration.
    pub config: Arc<Config>,
    /// Per address, its listening sockets: one a thread (TCP), or one for all (unix).
    pub sockets: Vec<(ListenAddr, Vec<OwnedFd>)>,
    /// Log files by path.
    pub logs: Vec<(PathBuf, OwnedFd)>,
}

/// How many threads and where they run.
#[derive(Clone, Debug, Default)]
pub struct ThreadPlan {
    /// CPUs of each thread; an empty list leaves the thread unpinned.
    pub cpus: Vec<Vec<usize>>,
    /// Connections each thread may hold (`worker_connections`).
    pub connections: usize,
}

/// The running threads of the worker process.
#[derive(Debug)]
pub struct Worker {}

impl Worker {
    /// Starts the threads.
    ///
    /// # Errors
    /// When a thread or its event loop cannot be made.
    pub fn start(generation: Generation, plan: &ThreadPlan) -> io::Result<Worker> {
        let _ = (generation, plan);
        Ok(Worker {})
    }

    /// Gives the threads a new configuration. Connections stay.
    pub fn reload(&self, generation: Generation) {
        let _ = generation;
    }

    /// Replaces the descriptors of log files (USR1), flushing buffers to the old ones first.
    pub fn reopen(&self, logs: Vec<(PathBuf, OwnedFd)>) {
        let _ = logs;
    }

    /// Stops accepting, finishes requests under way, closes idle connections, at most `timeout` long.
    pub fn quit(&self, timeout: Option<Duration>) {
        let _ = timeout;
    }

    /// Ends at once; logs are flushed.
    pub fn stop(&self) {}

    /// Waits until all threads have ended.
    pub fn join(self) {}
}
