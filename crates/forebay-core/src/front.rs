//! Front ends: the kinds of servers that a configuration can have (http, stream).

use crate::config::{Build, Config, Listener};
use crate::limit::shares::Network;
use crate::process::Outside;
use crate::thread::{ActiveConfig, Thread};
use forebay_conf::tree::Block;
use forebay_net::addr::Peer;
use forebay_net::reactor::Token;
use std::any::Any;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Instant;

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
    /// Number of levels with settings.
    pub levels: usize,
}

/// Kind of server: its block in the configuration, its work in threads and outside them. `number` is the place of the front
/// end among all.
pub trait FrontEnd: Sync {
    /// Name of its block at the main level.
    fn block(&self) -> &'static str;

    /// Reads its block; without one, returns a configuration that serves nothing. Errors are kept among the messages of the
    /// build.
    fn read<'a>(&self, number: u8, block: Option<&Block>, build: Build<'a>) -> (FrontConfig, Build<'a>);

    /// Prepares what all threads share for a configuration, before the first of them uses it.
    fn prepare(&self, number: u8, config: &Config);

    /// Starts the background work of a configuration, which ends when the result is dropped. What the former configuration
    /// knows goes over to this one first.
    fn begin(
        &self,
        number: u8,
        config: &Config,
        former: Option<&Config>,
        outside: &Outside,
    ) -> Box<dyn Any + Send>;

    /// Starts the front end in a thread.
    fn start(&self, number: u8, thread: &Rc<Thread>) -> Rc<dyn Front>;
}

/// A connection that has just been accepted.
#[derive(Clone, Copy, Debug)]
pub struct Accepted {
    /// Slot of its socket.
    pub token: Token,
    /// Serial number of the connection in the process (`$connection`).
    pub number: u64,
    /// Address of the client.
    pub peer: Peer,
    /// Local address, where the listener's is a wildcard.
    pub local: Option<SocketAddr>,
    /// Slot of the listener; see [`ActiveConfig::listeners`].
    pub listener: u32,
}

/// An idle connection that may be closed to make room for another.
#[derive(Clone, Copy, Debug)]
pub struct Idle {
    /// Slot of its socket.
    pub token: Token,
    /// Network of its client.
    pub network: Network,
    /// Rank: connections with lower ones are closed first.
    pub rank: (u8, Instant),
}

/// Front end in one thread: serves the connections of its listeners.
pub trait Front {
    /// Serves a connection.
    fn accept(&self, connection: Accepted);

    /// Gives a connection that was idle to a runner: data has arrived on it.
    fn resume(&self, token: Token);

    /// Closes a connection that was idle until its deadline, or gives it to a runner once more.
    fn expired(&self, token: Token);

    /// Starts the oldest queued work.
    fn start_queued(&self);

    /// Forgets a connection to an upstream that was set aside, if it is one of this front end: something has arrived on it,
    /// or its deadline is over.
    fn set_aside_ended(&self, token: Token, owner: u32);

    /// Appends the idle connections that may be closed for others.
    fn idle(&self, now: Instant, out: &mut Vec<Idle>);

    /// Closes an idle connection.
    fn close_idle(&self, token: Token);

    /// Takes a configuration for new connections and requests. Closes idle connections of listeners that are gone.
    fn apply(&self, active: &Rc<ActiveConfig>);

    /// Begins to shut down gracefully: closes idle connections.
    fn quit(&self);

    /// Closes what would outlive the thread.
    fn end(&self);

    /// Whether work without a connection is under way, which a graceful shutdown waits for.
    fn has_background(&self) -> bool;

    /// Closes descriptors that can be opened again. Returns whether that made room for more connections.
    fn shed(&self) -> bool;

    /// Handles a notice of the reactor.
    fn noticed(&self, number: u32);

    /// Takes a message that the background work of this front end sent to the thread.
    fn message(&self, message: Box<dyn Any + Send>);
}
