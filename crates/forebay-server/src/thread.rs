//! State of the HTTP front end in one worker thread: connections, file cache, configuration. Hot path.

use crate::config::http::{Http, Server};
use crate::connection::switched::{self, Relays};
use crate::connection::{Connection, Work};
use crate::file_cache::FileCache;
use crate::module::thread::ThreadStates;
use crate::request::Request;
use crate::shelf::{Shelf, SmallBuffers};
use crate::subrequest::Walk;
use forebay_core::client::Client;
use forebay_core::thread::{ActiveConfig, Thread as WorkerThread};
use forebay_core::upstream::local::LocalGroups;
use forebay_http::h1::request::Limits;
use forebay_net::io::LargeBuffers;
use forebay_net::reactor::{Body, Job, Runners, Token};
use std::cell::RefCell;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Kind of [`forebay_net::reactor::Direct`] work: a relay of [`Thread::relays`].
pub const SWITCHED: u8 = 0;
/// Kind of [`forebay_net::reactor::Direct`] work: the connections of [`Thread::quic`].
pub const QUIC: u8 = 1;

/// A configuration together with the state that one thread keeps for it.
#[derive(Debug)]
pub struct ThreadConfig {
    /// Listeners, log files and the main level of the configuration.
    pub active: Rc<ActiveConfig>,
    /// Settings of the http block.
    pub http: Arc<Http>,
    /// Upstream groups.
    pub groups: LocalGroups,
    /// Counters for requests to servers without `status_zone`, by server index.
    pub counted: crate::counting::ByName,
}

impl ThreadConfig {
    /// Creates the state that a thread keeps for a configuration. `front` is the number of the HTTP front end.
    pub fn new(thread: &WorkerThread, active: Rc<ActiveConfig>, front: u8) -> ThreadConfig {
        let http = active.config.front(front).unwrap_or_default();
        let groups = LocalGroups::new(thread.number, thread.all_counters.len());
        ThreadConfig { groups, ..ThreadConfig::of(active, http) }
    }

    /// Creates the state for settings of the http block, which may belong to a former configuration. Connections to upstreams are not
    /// kept.
    pub fn of(active: Rc<ActiveConfig>, http: Arc<Http>) -> ThreadConfig {
        ThreadConfig { http, active, groups: LocalGroups::default(), counted: Default::default() }
    }
}

impl ThreadConfig {
    /// Returns the server whose settings apply to a connection before a request names one; see [`Client::server`].
    pub fn server_of(&self, client: &Client, by_name: bool) -> Option<&Server> {
        self.http.servers.get(client.server(self, by_name)).map(Arc::as_ref)
    }

    /// Returns the limits of the server that applies to a connection before a request names one.
    #[inline]
    pub fn limits_of(&self, client: &Client) -> Limits {
        // The name that TLS has given matters only if servers differ in these limits.
        self.server_of(client, self.http.heads_differ).map_or_else(Limits::default, |s| s.head)
    }

    /// Returns `client_header_timeout` of a connection's default server.
    pub fn header_timeout_of(&self, client: &Client) -> Duration {
        let server = self.http.servers.get(client.default_server(self));
        server.map_or(Duration::from_secs(60), |s| s.settings.client_header_timeout.0)
    }
}

impl Deref for ThreadConfig {
    type Target = ActiveConfig;
    fn deref(&self) -> &ActiveConfig {
        &self.active
    }
}

/// HTTP front end of a worker thread.
pub struct Thread {
    /// The worker thread.
    pub worker: Rc<WorkerThread>,
    /// Number of the front end.
    pub front: u8,
    /// Tasks that serve connections, and the idle connections.
    pub runners: Runners<Connection, Work>,
    /// Placeholder client for requests without a connection.
    pub no_client: Rc<Client>,
    /// Configuration in effect for new requests.
    pub conf: RefCell<Rc<ThreadConfig>>,
    /// Open files.
    pub files: RefCell<FileCache>,
    /// State of the disk, for work that writes to it.
    pub disk: crate::disk::Disk,
    /// Tunnels, and connections that have switched to another protocol.
    pub relays: Relays,
    /// Buffer for the first bytes of a head.
    pub came: RefCell<Vec<u8>>,
    /// Buffers that no request uses at the moment.
    pub buffers: SmallBuffers,
    /// Requests that have ended, for later ones that the server makes.
    pub spare_requests: Shelf<Box<Request>>,
    /// Walks that no subrequest uses at the moment.
    pub spare_walks: Shelf<Walk>,
    /// Running requests without a client.
    pub background: crate::background::Running,
    /// Buffers of HTTP/2 connections.
    pub h2: crate::h2::Shared,
    /// QUIC connections.
    pub quic: crate::h3::Quic,
    /// States of modules.
    pub states: ThreadStates,
}

impl Deref for Thread {
    type Target = WorkerThread;
    fn deref(&self) -> &WorkerThread {
        &self.worker
    }
}

impl Thread {
    /// Creates the front end of this number in a worker thread, with the configuration that is in effect there.
    pub fn new(worker: Rc<WorkerThread>, front: u8, files: FileCache) -> Rc<Thread> {
        let conf = ThreadConfig::new(&worker, worker.active(), front);
        Rc::new(Thread {
            no_client: Rc::new(Client::none(worker.io.poller.now())),
            runners: Runners::new(worker.reactor.clone(), front),
            relays: switched::relays(&worker, front),
            front,
            conf: RefCell::new(Rc::new(conf)),
            files: RefCell::new(files),
            disk: Default::default(),
            came: RefCell::default(),
            buffers: SmallBuffers::default(),
            spare_requests: Shelf::default(),
            spare_walks: Shelf::default(),
            background: Default::default(),
            h2: crate::h2::Shared::default(),
            quic: crate::h3::Quic::default(),
            states: ThreadStates::new(&worker),
            worker,
        })
    }

    /// Hands a connection to a runner and polls it.
    pub fn start(self: &Rc<Self>, token: Token, conn: Connection) {
        self.start_work(Job { token, work: conn.into() });
    }

    /// Hands work to a runner and polls it.
    pub fn start_work(self: &Rc<Self>, job: Job<Work>) {
        self.runners.start(job, || self.runner());
    }

    /// Starts the oldest work that is queued for a runner.
    pub fn start_queued(self: &Rc<Self>) {
        self.runners.start_queued(|| self.runner());
    }

    fn runner(self: &Rc<Self>) -> Body {
        Box::pin(crate::connection::runner(self.clone()))
    }

    /// Returns the configuration for a new request.
    #[inline]
    pub fn config(&self) -> Rc<ThreadConfig> {
        self.conf.borrow().clone()
    }

    /// Takes a buffer back that a request does not need any more.
    pub fn give_buffer(&self, b: Vec<u8>) {
        // Large buffers have a list of their own, from which reads of large bodies borrow them.
        if b.capacity() < LargeBuffers::LEAST { self.buffers.give(b) } else { self.io.large.give(b) }
    }

    /// Returns `true` if new requests get this configuration.
    pub fn is_current(&self, conf: &Rc<ThreadConfig>) -> bool {
        Rc::ptr_eq(&self.conf.borrow(), conf)
    }
}
