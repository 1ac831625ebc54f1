//! Configurations that the worker builds from the records of the master.
//!
//! Those of a reload are built in a thread of their own. A large one takes a second, in which servers of groups have to take effect.

use crate::front_ends::load_after;
use crate::master_log::{Log, errno};
use crate::wire::{Configure, Endpoints};
use forebay_conf::error::Level;
use forebay_conf::files::Files;
use forebay_core::config::main_settings::{ErrorLog, ErrorLogTarget};
use forebay_core::config::{Config, Memory};
use forebay_core::process::Generation;
use forebay_core::upstream::group::Group;
use forebay_core::upstream::servers::Found;
use forebay_net::addr::PeerAddr;
use std::collections::{BTreeMap, HashMap};
use std::io::{self, PipeReader, PipeWriter, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// Configuration with its groups, and the descriptors that came with it, by their use.
pub(crate) struct Built {
    pub generation: Generation,
    pub named: Named,
    pub files: Arc<Files>,
    pub log: Arc<Log>,
    pub log_area: Option<OwnedFd>,
    /// Socket to the worker before.
    pub predecessor: Option<OwnedFd>,
}

/// Builds configurations, one after the other, each with what the one before has left.
pub(crate) struct ConfigurationBuilder {
    memory: Memory,
    /// Number of the configuration whose files the memory has.
    remembered: u64,
}

impl ConfigurationBuilder {
    pub(crate) fn new() -> ConfigurationBuilder {
        ConfigurationBuilder { memory: Memory::serving(), remembered: 0 }
    }

    /// Builds the configuration of a record. Its groups may be those of the configuration in use, so the caller gives them their
    /// servers: those of the record may be older by then.
    ///
    /// # Errors
    /// The reason, in nginx's words where the configuration has an error.
    pub(crate) fn build(&mut self, order: &Configure, fds: Vec<OwnedFd>) -> Result<Built, String> {
        // A record that leaves out files of another configuration is refused as broken.
        let known = self.memory.known().filter(|_| order.base == self.remembered);
        let files = Files::from_bytes_after(&order.record, known.as_deref());
        let mut files = self.memory.files(files.map_err(|e| errno(&e))?);
        let loaded = load_after(&mut self.memory, &order.environment, &mut files);
        let (config, _) = loaded.map_err(|e| files.render(&e))?;
        let files = self.memory.accept(files);
        self.remembered = order.generation;
        let named = Named::new(&config);
        let mut fds = fds.into_iter();
        let sockets =
            order.listeners.iter().map(|(addr, count)| (addr.clone(), fds.by_ref().take(*count).collect()));
        let sockets = sockets.collect();
        let logs: Vec<(PathBuf, OwnedFd)> = order.logs.iter().cloned().zip(fds.by_ref()).collect();
        let log_area = if order.log_area { fds.next() } else { None };
        let predecessor = if order.predecessor { fds.next() } else { None };
        let log = Arc::new(own_log(&config, order.environment.error_log.as_deref(), &logs));
        let generation = Generation { config: Arc::new(config), sockets, logs, number: order.generation };
        Ok(Built { generation, named, files, log, log_area, predecessor })
    }
}

/// Order of the master, and what has become of it.
pub(crate) type Finished = (Box<Configure>, Result<Built, String>);

/// Builds the configurations of reloads, in a thread that begins with the first one.
pub(crate) struct Builder {
    /// Before there is a thread.
    workshop: Option<ConfigurationBuilder>,
    thread: Option<Thread>,
    /// Orders that are not finished.
    pending: usize,
    /// Servers of groups that have come since `pending` was 0. They are at least as new as those in any order that is not finished.
    late: BTreeMap<Vec<u8>, Endpoints>,
}

struct Thread {
    orders: Sender<(Box<Configure>, Vec<OwnedFd>)>,
    finished: Receiver<Finished>,
    /// Has a byte for each value in `finished`.
    ready: PipeReader,
}

impl Thread {
    fn start(workshop: ConfigurationBuilder) -> io::Result<Thread> {
        let (orders, received) = channel();
        let (finish, finished) = channel();
        let (ready, told) = io::pipe()?;
        std::thread::Builder::new()
            .name("configuration".into())
            .spawn(move || work(workshop, &received, &finish, told))?;
        Ok(Thread { orders, finished, ready })
    }
}

impl Builder {
    /// Creates it without a thread. `workshop` has built the configuration in use.
    pub(crate) fn new(workshop: ConfigurationBuilder) -> Builder {
        Builder { workshop: Some(workshop), thread: None, pending: 0, late: BTreeMap::new() }
    }

    /// Gives an order to the thread.
    ///
    /// # Errors
    /// There is no thread, and none can be started.
    pub(crate) fn order(&mut self, order: Box<Configure>, fds: Vec<OwnedFd>) -> io::Result<()> {
        if self.thread.is_none() {
            self.thread =
                Some(Thread::start(self.workshop.take().unwrap_or_else(ConfigurationBuilder::new))?);
        }
        if let Some(thread) = &self.thread {
            self.pending += 1;
            // Where the thread has ended, `take` says so.
            let _ = thread.orders.send((order, fds));
        }
        Ok(())
    }

    /// Returns `true` while an order is not finished.
    pub(crate) fn is_busy(&self) -> bool {
        self.pending > 0
    }

    /// Keeps servers for the configurations that are being built.
    pub(crate) fn keep(&mut self, endpoints: Vec<Endpoints>) {
        if self.is_busy() {
            self.late.extend(endpoints.into_iter().map(|e| (e.group.clone(), e)));
        }
    }

    /// Returns the descriptor that is readable when [`Builder::take`] has something.
    pub(crate) fn ready(&self) -> Option<BorrowedFd<'_>> {
        self.thread.as_ref().map(|thread| thread.ready.as_fd())
    }

    /// Takes what the thread has finished, with the newest servers of its groups. Waits for it.
    ///
    /// # Errors
    /// The thread has ended, which it does only by a panic.
    pub(crate) fn take(&mut self) -> io::Result<Finished> {
        let thread = self.thread.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        (&thread.ready).read_exact(&mut [0])?;
        let (order, result) = thread.finished.recv().map_err(io::Error::other)?;
        self.pending = self.pending.saturating_sub(1);
        if let Ok(built) = &result {
            let newest = order.endpoints.iter().filter(|e| !self.late.contains_key(&e.group));
            built.named.set(newest.chain(self.late.values()));
        }
        if self.pending == 0 {
            self.late.clear();
        }
        Ok((order, result))
    }
}

fn work(
    mut workshop: ConfigurationBuilder,
    orders: &Receiver<(Box<Configure>, Vec<OwnedFd>)>,
    finish: &Sender<Finished>,
    mut told: PipeWriter,
) {
    while let Ok((order, fds)) = orders.recv() {
        let result = workshop.build(&order, fds);
        if finish.send((order, result)).is_err() || told.write_all(&[1]).is_err() {
            return;
        }
    }
}

/// Groups with `peers external` by their names. Groups of different blocks, `http` and `stream`, may have one name.
pub(crate) struct Named(HashMap<Vec<u8>, Vec<Arc<Group>>>);

impl Named {
    fn new(config: &Config) -> Named {
        let mut named: HashMap<_, Vec<_>> = HashMap::new();
        for group in config.groups.iter().map(|(_, group)| group).filter(|group| group.is_external()) {
            named.entry(group.name.to_vec()).or_default().push(group.clone());
        }
        Named(named)
    }

    /// Gives groups their servers. Names of other groups are passed over.
    pub(crate) fn set<'e>(&self, endpoints: impl IntoIterator<Item = &'e Endpoints>) {
        for Endpoints { group, servers } in endpoints {
            for group in self.0.get(&**group).into_iter().flatten() {
                let found = |(addr, weight): &(SocketAddr, u32)| Found {
                    addr: PeerAddr::Inet(*addr),
                    weight: Some(i64::from((*weight).max(1))),
                    backup: false,
                };
                group.set_external(servers.iter().map(found).collect());
            }
        }
    }
}

/// Returns the error log for the few lines of the thread that obeys, on copies of the descriptors.
pub(crate) fn own_log(config: &Config, fallback: Option<&Path>, logs: &[(PathBuf, OwnedFd)]) -> Log {
    let copies: Vec<_> =
        logs.iter().filter_map(|(path, fd)| Some((path.clone(), Arc::new(fd.try_clone().ok()?)))).collect();
    if !config.main.error_log.is_empty() {
        return Log::configured(&config.main.error_log, &copies);
    }
    let target = match fallback {
        Some(path) if path != Path::new("stderr") => ErrorLogTarget::File(path.to_owned()),
        _ => ErrorLogTarget::Stderr,
    };
    Log::configured(&[ErrorLog { target, level: Level::Error, form: Default::default() }], &copies)
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_core::config::Environment;

    fn order(generation: u64, server: &str) -> Box<Configure> {
        let files = Files::recorded([
            ("/c/nginx.conf", "events {} http { include g.conf; }"),
            (
                "/c/g.conf",
                "upstream g { zone g 64k; peers external; } server { location / { proxy_pass http://g; } }",
            ),
        ]);
        Box::new(Configure {
            environment: Environment {
                prefix: "/c/".into(),
                conf_path: "/c/nginx.conf".into(),
                globals: String::new(),
                error_log: Some("stderr".into()),
                access_log: "access.log".into(),
            },
            record: files.to_bytes(),
            base: 0,
            cpus: vec![vec![]],
            connections: 16,
            identity: None,
            listeners: Vec::new(),
            logs: Vec::new(),
            generation,
            quic_secret: vec![7; 64],
            predecessor: false,
            log_area: false,
            endpoints: vec![endpoints(server)],
            closed: Vec::new(),
        })
    }

    fn endpoints(server: &str) -> Endpoints {
        Endpoints { group: b"g".to_vec(), servers: vec![(server.parse().expect("address"), 1)] }
    }

    fn servers(built: &Built) -> String {
        let group = &built.named.0[b"g".as_slice()][0];
        group.set().peers.iter().map(|peer| format!("{:?}", peer.addr)).collect()
    }

    /// Groups of files that have not changed are in both configurations.
    #[test]
    fn servers_that_come_late_stay() {
        let mut workshop = ConfigurationBuilder::new();
        let used = workshop.build(&order(1, "10.0.0.1:80"), Vec::new()).unwrap_or_else(|e| panic!("{e}"));
        used.named.set(&[endpoints("10.0.0.1:80")]);
        let mut builder = Builder::new(workshop);
        builder.order(order(2, "10.0.0.1:80"), Vec::new()).expect("a thread");
        used.named.set(&[endpoints("10.0.0.2:80")]);
        builder.keep(vec![endpoints("10.0.0.2:80")]);
        let ready = builder.ready().expect("a thread").try_clone_to_owned().expect("a descriptor");
        rustix::event::poll(&mut [rustix::event::PollFd::new(&ready, rustix::event::PollFlags::IN)], None)
            .expect("poll");
        assert_eq!(servers(&used), "Inet(10.0.0.2:80)", "the record has older servers");
        let (_, result) = builder.take().expect("a result");
        let built = result.unwrap_or_else(|e| panic!("{e}"));
        assert!(Arc::ptr_eq(&used.named.0[b"g".as_slice()][0], &built.named.0[b"g".as_slice()][0]));
        assert_eq!((servers(&built), builder.is_busy()), ("Inet(10.0.0.2:80)".to_owned(), false));
    }
}
