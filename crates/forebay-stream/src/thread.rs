//! State of the stream front end in one worker thread. Hot path.

use crate::config::Stream;
use crate::passing::{self, Sessions};
use crate::session::Session;
use crate::udp::Udp;
use forebay_core::config::main_settings::ErrorLog;
use forebay_core::thread::{ActiveConfig, Thread as WorkerThread};
use forebay_core::upstream::local::LocalGroups;
use forebay_net::reactor::{Body, Direct, Job, Runners, Token};
use std::cell::RefCell;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;

/// Kind of [`Direct`] work: a session of [`Thread::passing`].
pub(crate) const PAIR: u8 = 0;

/// Kind of [`Direct`] work: a session of [`Thread::udp`].
pub(crate) const FLOW: u8 = 1;

/// A configuration together with the state that one thread keeps for it.
#[derive(Debug)]
pub(crate) struct ThreadConfig {
    /// Listeners, log files and the main level of the configuration.
    pub active: Rc<ActiveConfig>,
    /// Settings of the stream block.
    pub stream: Arc<Stream>,
    /// Upstream groups.
    pub groups: LocalGroups,
}

impl ThreadConfig {
    fn new(thread: &WorkerThread, active: Rc<ActiveConfig>, front: u8) -> ThreadConfig {
        let stream = active.config.front(front).unwrap_or_default();
        ThreadConfig { stream, active, groups: LocalGroups::new(thread.number, thread.all_counters.len()) }
    }
}

impl ThreadConfig {
    /// Returns the error logs of a server.
    pub(crate) fn error_logs(&self, server: usize) -> &[ErrorLog] {
        let own = self.stream.servers.get(server).and_then(|s| s.settings.core.error_log.as_ref());
        own.map_or(self.active.config.main.error_log.as_slice(), |l| l.0.as_slice())
    }
}

impl Deref for ThreadConfig {
    type Target = ActiveConfig;
    fn deref(&self) -> &ActiveConfig {
        &self.active
    }
}

/// Stream front end of a worker thread.
pub(crate) struct Thread {
    /// The worker thread.
    pub worker: Rc<WorkerThread>,
    /// Number of the front end.
    pub front: u8,
    /// Tasks that serve sessions. No connection is idle.
    pub runners: Runners<Box<Session>, Box<Session>>,
    /// Sessions that are passed on.
    pub passing: Sessions,
    /// Sessions over UDP.
    pub udp: Udp,
    /// Configuration in effect for new sessions.
    pub conf: RefCell<Rc<ThreadConfig>>,
}

impl Deref for Thread {
    type Target = WorkerThread;
    fn deref(&self) -> &WorkerThread {
        &self.worker
    }
}

impl Thread {
    /// Creates the front end of this number in a worker thread, with the configuration that is in effect there.
    pub(crate) fn new(worker: Rc<WorkerThread>, front: u8) -> Rc<Thread> {
        let conf = ThreadConfig::new(&worker, worker.active(), front);
        Rc::new(Thread {
            runners: Runners::new(worker.reactor.clone(), front),
            passing: passing::sessions(&worker, front),
            udp: Udp::default(),
            front,
            conf: RefCell::new(Rc::new(conf)),
            worker,
        })
    }

    /// Uses a configuration for new sessions.
    pub(crate) fn apply(&self, active: &Rc<ActiveConfig>) {
        let conf = ThreadConfig::new(&self.worker, active.clone(), self.front);
        self.conf.replace(Rc::new(conf)).groups.close(&self.io);
        self.udp.apply(active);
    }

    /// Returns the name of a session of [`Thread::udp`] for the poller.
    pub(crate) fn flow(&self, number: u32) -> Direct {
        Direct { front: self.front, kind: FLOW, number }
    }

    /// Returns the configuration for a new session.
    pub(crate) fn config(&self) -> Rc<ThreadConfig> {
        self.conf.borrow().clone()
    }

    /// Hands a session to a runner and polls it.
    pub(crate) fn start(self: &Rc<Self>, token: Token, session: Box<Session>) {
        self.runners.start(Job { token, work: session }, || self.runner());
    }

    /// Starts the sessions that are queued for runners.
    pub(crate) fn start_queued(self: &Rc<Self>) {
        self.runners.start_queued(|| self.runner());
    }

    fn runner(self: &Rc<Self>) -> Body {
        Box::pin(crate::session::runner(self.clone()))
    }
}
