//! Front ends: the kinds of servers that a configuration can have (http, stream).

use crate::client::Client;
use crate::config::{Build, Config, Listener};
use crate::idle_memory::Ended;
use crate::limit::shares::{self, Candidate, Network};
use crate::outside::Outside;
use crate::thread::{ActiveConfig, Thread};
use crate::upstream::group::Group;
use forebay_conf::error::Level;
use forebay_conf::tree::{Block, Directive};
use forebay_net::addr::Peer;
use forebay_net::reactor::{Direct, Token};
use forebay_net::wire::Wire;
use std::any::Any;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Configuration of one front end.
pub struct FrontConfig {
    /// The configuration, of a type that only the front end knows.
    pub config: Arc<dyn Any + Send + Sync>,
    /// Sockets to open for it.
    pub listeners: Vec<Listener>,
    /// Temporary directories that are used without a directive.
    pub default_temp_paths: Vec<PathBuf>,
    /// Files of certificates and keys, which may be renewed.
    pub certificate_files: Vec<PathBuf>,
    /// Upstream groups.
    pub groups: Vec<Arc<Group>>,
    /// Number of levels (servers, locations) with settings. After a build with many, memory is returned to the system.
    pub levels: usize,
}

/// Time for requests that are on their way when a graceful shutdown begins. One that crosses the end of its connection would be lost for
/// its client.
pub const PARTING: Duration = Duration::from_millis(500);

/// Kind of server: its block in the configuration, its work in threads and outside them. `number` is the index of the front
/// end in the list of all.
pub trait FrontEnd: Sync {
    /// Returns the name of its block at the main level.
    fn block(&self) -> &'static str;

    /// Notes the facts of its block that other front ends need before it is read.
    fn announce(&self, block: &Directive, build: &mut Build<'_>) {
        let _ = (block, build);
    }

    /// Reads its block; without one, returns a configuration that serves nothing. Adds errors to the messages of the build.
    fn read<'a>(&self, number: u8, block: Option<&Block>, build: Build<'a>) -> (FrontConfig, Build<'a>);

    /// Prepares the state that all threads share for a configuration, before the first of them uses it.
    fn prepare(&self, number: u8, config: &Config);

    /// Acts on the end of the process, after the last thread that serves connections. `log` writes to the error log.
    fn ended(&self, number: u8, config: &Config, log: &dyn Fn(Level, &str)) {
        let _ = (number, config, log);
    }

    /// Starts the background work of a configuration, which ends when the result is dropped. First takes over state of the
    /// `former` configuration, such as the health of servers.
    fn begin(
        &self,
        number: u8,
        config: &Config,
        former: Option<&Config>,
        outside: &Outside,
    ) -> Box<dyn Any + Send>;

    /// Creates the front end of a thread.
    fn start(&self, number: u8, thread: &Rc<Thread>) -> Rc<dyn Front>;
}

/// Connection that has just been accepted.
#[derive(Clone, Copy, Debug)]
pub struct Accepted {
    /// Slot of its socket.
    pub token: Token,
    /// Serial number of the connection in the process (`$connection`).
    pub number: u64,
    /// Address of the client.
    pub peer: Peer,
    /// Local address of the connection, if the listener's is a wildcard.
    pub local: Option<SocketAddr>,
    /// Slot of the listener; see [`ActiveConfig::listeners`].
    pub listener: u32,
}

/// Connection that a front end gives to another listener of the process (nginx: ngx_stream_pass_module).
#[derive(Debug)]
pub struct Passed {
    /// Transport. TLS has been established if it is encrypted.
    pub wire: Wire,
    /// Bytes that have been read.
    pub early: Vec<u8>,
    /// The client, with the slot of the other listener.
    pub client: Client,
}

/// Name of an idle connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IdlePlace {
    /// Connection with a socket of its own, by the slot of that.
    Socket(Token),
    /// QUIC connection, by the number of its session.
    Quic(u32),
}

/// Idle connection that may be closed to make room for another.
#[derive(Clone, Copy, Debug)]
pub struct Idle {
    /// The connection.
    pub place: IdlePlace,
    /// Network of its client.
    pub network: Network,
    /// Rank in the order of closing, lowest first.
    pub rank: (u8, Instant),
}

/// Chooses idle connections to close, so that there is room for one more of `max` connections. Returns their indices.
pub fn choose_idle(waiting: &[Idle], max: usize) -> Vec<usize> {
    // Several at a time: the choice looks at every idle connection, which would cost too much for each new one.
    let batch = (max / 64).min(waiting.len() / 8).max(1);
    let candidates = waiting.iter().enumerate();
    let candidates =
        candidates.map(|(number, i)| Candidate { number, network: i.network, rank: i.rank }).collect();
    shares::choose_idle(candidates, batch, max)
}

/// Front end in one thread, which serves the connections of its listeners.
pub trait Front {
    /// Gives a new connection to a runner.
    fn accept(&self, connection: Accepted);

    /// Gives a connection of another listener to a runner.
    fn take_over(&self, passed: Passed);

    /// Notes the UDP socket of a new listener, before [`Front::apply`].
    fn listens(&self, listener: u32, socket: &Arc<OwnedFd>) {
        let _ = (listener, socket);
    }

    /// Receives datagrams from the UDP socket of a listener, which has some or an error. The poller repeats this while the
    /// socket has more. `listener` is the slot; see [`ActiveConfig::listeners`]. Other threads may use the socket, too.
    fn datagrams(&self, listener: u32, socket: &Arc<OwnedFd>) {
        let _ = (listener, socket);
    }

    /// Returns `true` if connections need the UDP socket of a listener although it takes no new ones (QUIC).
    fn needs_socket(&self, listener: u32) -> bool {
        let _ = listener;
        false
    }

    /// Gives an idle connection to a runner, after data has arrived on it.
    fn resume(&self, token: Token);

    /// Closes an idle connection whose deadline has passed, or gives it to a runner that ends it (HTTP/2 sends GOAWAY).
    fn expired(&self, token: Token);

    /// Gives the oldest queued job to a runner.
    fn start_queued(&self);

    /// Goes on with work that has no task (see [`forebay_net::reactor::Poller::serve_directly`]): an event has happened on one of
    /// its descriptors, its deadline has passed, or it had more to do.
    fn step(&self, direct: Direct) {
        let _ = direct;
    }

    /// Removes a connection from the idle ones of the upstream group `owner`, if that is a group of this front end. Something
    /// has arrived on the connection, or its deadline has passed.
    fn set_aside_ended(&self, token: Token, owner: u32);

    /// Appends the idle connections that may be closed for others.
    fn idle(&self, now: Instant, out: &mut Vec<Idle>);

    /// Ends work without a connection, so that there is room for a connection. Returns `false` if none has to make way.
    fn give_way(&self) -> bool {
        false
    }

    /// Closes an idle connection.
    fn close_idle(&self, place: IdlePlace);

    /// Uses a configuration for new connections and requests. Closes idle connections of listeners that are gone.
    fn apply(&self, active: &Rc<ActiveConfig>);

    /// Begins to shut down gracefully: tells clients, and takes the requests that are on their way for [`PARTING`].
    fn quit(&self);

    /// Takes no further requests, after the time for those that were on their way.
    fn part(&self) {}

    /// Closes the descriptors that other threads could still use after the end of this one, as idle upstream connections.
    fn end(&self);

    /// Returns `true` while work is under way that belongs to no connection. A graceful shutdown waits for it.
    fn has_background(&self) -> bool;

    /// Closes cached descriptors, which can be opened again. Returns `true` if there is room for more connections then.
    fn shed(&self) -> bool;

    /// Gives back what has not been needed since the last call.
    fn end_unneeded(&self) -> Ended {
        Ended::default()
    }

    /// Closes some descriptors that can be opened again: cached files, else idle upstream connections. Returns `true` if there were any.
    fn give_descriptors(&self) -> bool {
        self.shed()
    }

    /// Handles a notice of the reactor: watched files or the mount table may have changed.
    fn noticed(&self, number: u32);

    /// Handles a message from the background work of this front end.
    fn message(&self, message: Box<dyn Any + Send>);
}
