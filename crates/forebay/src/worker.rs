//! The worker process: receives the configuration, drops privilege, runs the threads, obeys signals.

use crate::building::{Builder, ConfigurationBuilder, Named, own_log};
use crate::dashboard_facts::DashboardFacts;
use crate::master_log::{Log, errno};
use crate::signals::{Received, Signals, received_line};
use crate::title;
use crate::wire::{Configure, Order, receive_order};
use crate::worker_messages::WorkerMessage;
use forebay_core::config::Config;
use forebay_core::process::Worker;
use forebay_sys::log_area::Mapped;
use forebay_sys::sync::lock;
use forebay_sys::{closed, daemon, identity, limits};
use nix::sys::signal::Signal;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Environment variable that makes the program a worker. Its value is the name of the process; its standard input is
/// the control socket.
pub(crate) const ROLE: &str = "FOREBAY_WORKER";
/// Environment variable with the number of workers before it that ended unasked.
pub(crate) const RESPAWNED: &str = "FOREBAY_RESPAWNED";
/// Title that `ps` shows.
pub(crate) const TITLE: &str = "nginx: worker process";

/// Interval at which a worker that is quitting checks whether its threads have ended.
const FINISHED_CHECK: Duration = Duration::from_millis(20);

/// Runs the worker. Returns the exit code.
pub(crate) fn main() -> u8 {
    match run() {
        Ok(()) => 0,
        Err(e) => {
            eprintln!("nginx: [emerg] worker process: {}", errno(&e));
            1
        }
    }
}

fn run() -> io::Result<()> {
    let signals = Signals::take_over()?;
    title::set_process_name(&std::env::var_os(ROLE).unwrap_or_default());
    let control = UnixStream::from(io::stdin().as_fd().try_clone_to_owned()?);
    daemon::silence_stdin()?;
    let Some(Order::Configure(order, fds)) = receive_order(&control)? else { return Ok(()) };
    let replies = Replies(Arc::new(Mutex::new(control.try_clone()?)));
    match Process::start(control, replies, &order, fds) {
        Ok(process) => process.serve(&signals),
        Err((replies, text)) => {
            replies.send(&WorkerMessage::Failed(text));
            Err(io::Error::other("could not start"))
        }
    }
}

/// Way of answers to the master. Threads of the worker use it too; a message must not end up in the middle of another.
#[derive(Clone)]
struct Replies(Arc<Mutex<UnixStream>>);

impl Replies {
    /// Sends an answer. Errors are ignored: the master is gone then.
    fn send(&self, answer: &WorkerMessage) {
        let _ = lock(&self.0).write_all(&answer.encode());
    }
}

struct Process {
    control: Option<UnixStream>,
    replies: Replies,
    /// Number of the first configuration.
    generation: u64,
    worker: Worker,
    config: Arc<Config>,
    named: Named,
    builder: Builder,
    /// Log files that were opened anew while a configuration was built, which has the former ones.
    reopened: Vec<(Vec<PathBuf>, Vec<OwnedFd>)>,
    log: Arc<Log>,
    shown: DashboardFacts,
}

/// Sets limits, priority, user and directory, in the order in which each still has the privilege that it needs.
fn become_worker(order: &Configure, config: &Config, log: &Log) -> Result<(), String> {
    let main = &config.main;
    let complain = |what: &str, result: io::Result<()>| {
        if let Err(e) = result {
            log.alert(&format!("{what} failed ({})", errno(&e)));
        }
    };
    if let Some(nice) = main.worker_priority {
        complain(&format!("setpriority({nice})"), limits::set_priority(nice));
    }
    match main.worker_rlimit_nofile {
        Some(count) => {
            complain(&format!("setrlimit(RLIMIT_NOFILE, {count})"), limits::set_descriptors(count))
        }
        None => {
            limits::raise_descriptors();
        }
    }
    if let Some(bytes) = main.worker_rlimit_core {
        complain(&format!("setrlimit(RLIMIT_CORE, {bytes})"), limits::set_core(bytes));
    }
    match &order.identity {
        Some(identity) => identity::become_user(identity, config.transparent).map_err(|e| errno(&e))?,
        // It shares its user with the controller, whose files are then closed by other means than their modes.
        None => match closed::close(&order.closed) {
            Ok(true) => {}
            Ok(false) => log.warn(
                "this kernel has no Landlock: the process that serves requests can read the credentials of the cluster",
            ),
            Err(e) => return Err(format!("could not give up the credentials of the cluster ({})", errno(&e))),
        },
    }
    if let Some(directory) = &main.working_directory {
        let changed = std::env::set_current_dir(directory);
        changed.map_err(|e| format!("chdir(\"{}\") failed ({})", directory.display(), errno(&e)))?;
    }
    Ok(())
}

impl Process {
    fn start(
        control: UnixStream,
        replies: Replies,
        order: &Configure,
        fds: Vec<OwnedFd>,
    ) -> Result<Process, (Replies, String)> {
        let mut workshop = ConfigurationBuilder::new();
        let started = workshop.build(order, fds).and_then(|built| {
            built.named.set(&order.endpoints);
            built.log.take_last_words();
            become_worker(order, &built.generation.config, &built.log)?;
            let config = built.generation.config.clone();
            let respawned = std::env::var(RESPAWNED).ok().and_then(|n| n.parse().ok());
            forebay_server::parts::started(respawned.unwrap_or(0));
            forebay_server::parts::start_quic(&order.quic_secret, built.predecessor);
            let area = built.log_area.and_then(|fd| {
                let mapped = Mapped::new(fd);
                mapped
                    .map_err(|e| built.log.warn(&format!("no use of shared log buffers ({})", errno(&e))))
                    .ok()
            });
            let worker = Worker::start(built.generation, &order.plan(), area, crate::front_ends::FRONT_ENDS)
                .map_err(|e| errno(&e))?;
            Ok((worker, config, built.named, built.log, built.files))
        });
        match started {
            Ok((worker, config, named, log, files)) => {
                let (control, generation) = (Some(control), order.generation);
                let mut shown = DashboardFacts::default();
                shown.loaded(&config, &order.environment, &files);
                let (builder, reopened) = (Builder::new(workshop), Vec::new());
                Ok(Process {
                    control,
                    replies,
                    generation,
                    worker,
                    config,
                    named,
                    builder,
                    reopened,
                    log,
                    shown,
                })
            }
            Err(text) => Err((replies, text)),
        }
    }

    fn serve(mut self, signals: &Signals) -> io::Result<()> {
        self.replies.send(&WorkerMessage::Applied(self.generation));
        loop {
            let (ordered, built) = {
                let control = self.control.as_ref().map(AsFd::as_fd);
                let builder = self.builder.ready();
                let others: Vec<_> = control.into_iter().chain(builder).collect();
                let ready = signals.wait(&others, None)?;
                let mut ready = ready.into_iter();
                let mut is_ready = |there: bool| there && ready.next().unwrap_or(false);
                (is_ready(control.is_some()), is_ready(builder.is_some()))
            };
            while let Some(received) = signals.next() {
                match received.signal {
                    Signal::SIGTERM | Signal::SIGINT => return self.stop(),
                    Signal::SIGQUIT => return self.quit(received, signals),
                    Signal::SIGUSR1 => self.replies.send(&WorkerMessage::PleaseReopen),
                    _ => {}
                }
            }
            if built {
                self.built()?;
            }
            if ordered {
                self.order(false);
            }
        }
    }

    fn order(&mut self, quitting: bool) {
        let Some(control) = &self.control else { return };
        match receive_order(control) {
            // Its successor has it.
            Ok(Some(Order::Configure(..))) if quitting => {}
            Ok(Some(Order::Configure(order, fds))) => {
                if let Err(e) = self.builder.order(order, fds) {
                    self.refuse(format!("could not start a thread ({})", errno(&e)));
                }
            }
            Ok(Some(Order::Reopen(paths, fds))) if self.builder.is_busy() && !quitting => {
                self.reopened.push((paths, fds));
            }
            Ok(Some(Order::Reopen(paths, fds))) => self.reopen(paths, fds),
            Ok(Some(Order::Refused(reason))) => DashboardFacts::refused(reason),
            Ok(Some(Order::Endpoints(endpoints))) => {
                self.named.set(&endpoints);
                self.builder.keep(endpoints);
            }
            Ok(Some(Order::Succeed(pair))) => forebay_server::parts::succeed_quic(pair),
            Ok(None) | Err(_) => {
                // As in nginx, a killed master does not take the site with it.
                self.log.alert("the master process is gone, serving goes on without it");
                self.control = None;
            }
        }
    }

    /// Has the threads change to the configuration that has been built.
    fn built(&mut self) -> io::Result<()> {
        let (order, result) = self.builder.take()?;
        match result {
            Ok(built) => {
                self.config = built.generation.config.clone();
                self.named = built.named;
                self.log = built.log;
                self.log.take_last_words();
                let (replies, number) = (self.replies.clone(), order.generation);
                self.worker.reload(built.generation, move || replies.send(&WorkerMessage::Applied(number)));
                self.shown.loaded(&self.config, &order.environment, &built.files);
            }
            Err(text) => self.refuse(text),
        }
        if !self.builder.is_busy() {
            for (paths, fds) in std::mem::take(&mut self.reopened) {
                self.reopen(paths, fds);
            }
        }
        Ok(())
    }

    fn refuse(&self, reason: String) {
        DashboardFacts::refused(reason.clone());
        self.replies.send(&WorkerMessage::Failed(reason));
    }

    fn reopen(&mut self, paths: Vec<PathBuf>, fds: Vec<OwnedFd>) {
        let logs: Vec<_> = paths.into_iter().zip(fds).collect();
        self.log.notice("reopening logs");
        // Where the configuration names no path, the default is the first one that the master opens.
        let fallback = logs.first().map(|(path, _)| path.clone());
        self.log = Arc::new(own_log(&self.config, fallback.as_deref(), &logs));
        self.log.take_last_words();
        self.worker.reopen(logs);
    }

    fn stop(self) -> io::Result<()> {
        self.log.notice("exiting");
        self.worker.stop();
        self.worker.join(&|level, text| self.log.write(level, text));
        self.log.notice("exit");
        Ok(())
    }

    fn quit(mut self, received: Received, signals: &Signals) -> io::Result<()> {
        self.log.notice(&received_line(received, ", shutting down"));
        self.log.notice("gracefully shutting down");
        // The configuration that is being built belongs to its successor.
        for (paths, fds) in std::mem::take(&mut self.reopened) {
            self.reopen(paths, fds);
        }
        self.replies.send(&WorkerMessage::Leaving);
        self.worker.quit(self.config.main.worker_shutdown_timeout);
        // Waiting for the last request must not make the process deaf: a fast stop still counts.
        while !self.worker.finished() {
            let ready = {
                let others: Vec<_> = self.control.iter().map(AsFd::as_fd).collect();
                signals.wait(&others, Some(Instant::now() + FINISHED_CHECK))?
            };
            // The last request may take hours, and logs are rotated meanwhile.
            if ready.contains(&true) {
                self.order(true);
            }
            while let Some(received) = signals.next() {
                match received.signal {
                    Signal::SIGTERM | Signal::SIGINT => self.worker.stop(),
                    Signal::SIGUSR1 => self.replies.send(&WorkerMessage::PleaseReopen),
                    _ => {}
                }
            }
        }
        self.worker.join(&|level, text| self.log.write(level, text));
        self.log.notice("exiting");
        self.log.notice("exit");
        Ok(())
    }
}
