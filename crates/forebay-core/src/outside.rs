//! Access to the worker threads for background work of a front end, which runs on the tokio runtime of the process.

use crate::config::ListenAddr;
use crate::counters::Counters;
use forebay_conf::error::Level;
use std::any::Any;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// Way to the first of the worker threads. Front ends do not see the queue behind it.
pub(crate) trait Post: Send + Sync {
    /// Writes a line to the error log.
    fn log(&self, level: Level, line: &str);
    /// Sends a message to the front end of this number.
    fn message(&self, front: u8, message: Box<dyn Any + Send>);
}

/// Access for background work of a front end: the first of the worker threads, and tokio.
#[derive(Clone)]
pub struct Outside {
    pub(crate) first: Arc<dyn Post>,
    /// Counters of all threads.
    pub counters: Arc<Vec<Arc<Counters>>>,
    /// Sockets of listeners for background work.
    pub(crate) sockets: Arc<HashMap<ListenAddr, Vec<Arc<OwnedFd>>>>,
    /// Runtime for tasks.
    pub tokio: tokio::runtime::Handle,
}

impl Outside {
    /// Returns the sockets of a listener for background work ([`crate::config::Listener::outside`]). All have to be read: the kernel
    /// divides connections and datagrams among them.
    pub fn sockets(&self, addr: &ListenAddr) -> Vec<Arc<OwnedFd>> {
        self.sockets.get(addr).cloned().unwrap_or_default()
    }

    /// Writes a line to the error log.
    pub fn log(&self, level: Level, line: &str) {
        self.first.log(level, line);
    }

    /// Sends a message to the front end of this number in the first thread.
    pub fn message(&self, front: u8, message: Box<dyn Any + Send>) {
        self.first.message(front, message);
    }
}
