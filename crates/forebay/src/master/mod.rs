//! The master: one thread that holds privilege, owns sockets and files, supervises the worker, obeys signals.
//!
//! Another thread opens the configurations of a controller, so that endpoints are passed on meanwhile (`in_thread.rs`).

mod control;
mod upgrade;

use crate::control_api::Control;
use crate::controller_process::{Configuration, Controller, Delivery};
use crate::in_thread::run_in_thread;
use crate::listen::{self, Listeners, Refused};
use crate::log_recovery::WorkerLogs;
use crate::master_log::{Log, errno};
use crate::paths::Paths;
use crate::reports::Reports;
use crate::service_manager::ServiceManager;
use crate::signals::{Received, Signals, received_line};
use crate::state::{self, Before, ForWorker, Source, State, WorkerFiles};
use crate::succession::Succession;
use crate::title;
use crate::wire;
use crate::worker;
use crate::worker_messages::{Broken, WorkerMessage, WorkerMessages};
use forebay_conf::error::Level;
use forebay_conf::files::Files;
use forebay_core::config::ListenAddr;
use forebay_sys::fds;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{Pid, getppid};
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A fast stop kills a worker that has not ended after this time.
const KILL_AFTER: Duration = Duration::from_secs(1);
/// A worker that lived this long was healthy: the next one starts at once.
const HEALTHY: Duration = Duration::from_secs(10);
/// Pauses before a new worker when the last ones died young: the first, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// Time that a worker has for the rest of a message, since it sends a message at once.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(2);
/// Bytes read from a worker at a time, so that other workers and signals get their turn.
const MOUTHFUL: usize = 4096;
/// Pieces of memory of a size that a thread of the worker keeps at hand, where the C library is glibc: of its seven the
/// streams of one HTTP/2 connection need more, and those of several connections more than a hundred. `env` of the configuration may say
/// otherwise. (glibc before 2.30 takes no more than 127.)
const TUNABLES: &str = "glibc.malloc.tcache_count=512";

/// Circumstances of the master's start.
#[derive(Clone, Debug)]
pub(crate) struct Start {
    /// The true command line, for the next binary.
    pub arguments: Vec<OsString>,
    /// Default places.
    pub paths: Paths,
    /// It left its terminal, or its predecessor had: WINCH counts only then, as in nginx.
    pub daemonized: bool,
    /// The sockets came from a predecessor.
    pub inherited: bool,
    /// Process that started the server: a predecessor, or the manager of a server in the foreground. `None` for a daemon, even if
    /// its parent started it: an orphan gets process 1 as its parent, which is any program in a container.
    pub parent: Option<Pid>,
}

/// A worker process.
struct Child {
    pid: Pid,
    /// `None` once the process has closed its side: it is about to end.
    control: Option<UnixStream>,
    /// Bytes that are no whole message yet, and the deadline for the rest.
    answers: WorkerMessages,
    silent_at: Option<Instant>,
    started: Instant,
    /// Told to end.
    leaving: bool,
    /// Its threads, which do not change while it lives.
    threads: usize,
    /// Addresses whose sockets it has.
    known: Vec<ListenAddr>,
    /// Files of the last configuration that it was given, and whether it has applied that.
    given: (WorkerFiles, bool),
    /// Its log files, and the lines that have not reached them.
    logs: WorkerLogs,
}

impl Child {
    /// Reads bytes that the process has sent. Returns `true` if there were any.
    fn has_sent(&mut self) -> bool {
        let Some(control) = &self.control else { return false };
        let mut bytes = [0; MOUTHFUL];
        match fds::read_ready(control, &mut bytes) {
            Ok(None) => false,
            Ok(Some(count)) if count > 0 => {
                self.answers.add(bytes.get(..count).unwrap_or_default());
                true
            }
            // The process is at its end: SIGCHLD says the rest.
            Ok(_) | Err(_) => {
                (self.control, self.silent_at) = (None, None);
                false
            }
        }
    }
}

/// Time between two looks at certificate files.
const CERTIFICATE_INTERVAL: Duration = Duration::from_secs(2);

/// What [`Master::wait`] has waited for.
struct Ready {
    /// Workers that have sent something.
    workers: Vec<Pid>,
    /// The controller has.
    controller: bool,
    /// A client of the control API has.
    control: bool,
}

/// File of the program that runs. It stays the same when an upgrade replaces the file on disk.
const OWN_PROGRAM: &str = "/proc/self/exe";

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    No,
    Gracefully,
    Fast,
}

/// The master.
pub(crate) struct Master {
    start: Start,
    signals: Signals,
    state: State,
    log: Log,
    children: Vec<Child>,
    ending: Ending,
    kill_at: Option<Instant>,
    /// The master has received WINCH: no worker is wanted.
    no_accept: bool,
    respawn_at: Option<Instant>,
    /// Workers that ended unasked so far.
    respawned: u64,
    /// Configurations given to workers so far.
    generations: u64,
    pause: Duration,
    new_binary: Option<Pid>,
    succession: Succession,
    /// Pid file as it is called now; `.oldbin` while a new binary runs.
    pid_file: PathBuf,
    reports: Reports,
    /// Time of the next look at certificate files, and the stamps of the last one.
    certificates: Option<(Instant, Vec<state::Stamp>)>,
    /// Process that the configuration comes from, if it comes from no file.
    controller: Option<Controller>,
    control: Option<Control>,
    /// Time when the configuration in use was read.
    loaded: jiff::Timestamp,
    /// Warnings of the last reload.
    heard: Vec<String>,
}

impl Master {
    /// Makes a master for an opened configuration whose pid file is written.
    pub(crate) fn new(
        start: Start,
        signals: Signals,
        state: State,
        controller: Option<Controller>,
    ) -> Master {
        let log = state.log();
        let pid_file = state.pid.clone();
        Master {
            start,
            signals,
            state,
            log,
            children: Vec::new(),
            ending: Ending::No,
            kill_at: None,
            no_accept: false,
            respawn_at: None,
            respawned: 0,
            generations: 0,
            pause: Duration::ZERO,
            new_binary: None,
            succession: Succession::of_environment(),
            pid_file,
            reports: Reports::new(ServiceManager::of_environment()),
            certificates: None,
            controller,
            control: None,
            loaded: jiff::Timestamp::now(),
            heard: Vec::new(),
        }
        .watching()
    }

    /// Begins to watch the certificates of the configuration, if it has any.
    fn watching(mut self) -> Master {
        self.watch_certificates();
        self
    }

    fn watch_certificates(&mut self) {
        let stamps = self.state.certificate_stamps();
        self.certificates = (!stamps.is_empty()).then(|| (Instant::now() + CERTIFICATE_INTERVAL, stamps));
    }

    /// Gives certificates that changed to the worker, without a reload.
    fn read_changed_certificates(&mut self) {
        let Some((_, before)) = self.certificates.take() else { return };
        let changed = before != self.state.certificate_stamps();
        self.watch_certificates();
        if changed && self.ending == Ending::No && !self.no_accept && self.state.read_certificates(&self.log)
        {
            self.hand_over();
        }
    }

    /// Serves until a signal ends it.
    ///
    /// # Errors
    /// Errors of poll(2) and signalfd(2), which do not occur in practice.
    pub(crate) fn run(mut self) -> io::Result<()> {
        self.log.notice("start worker processes");
        self.spawn();
        self.deliveries();
        loop {
            let Ready { workers, controller, control } = self.wait()?;
            for pid in workers {
                self.listen_to(pid);
            }
            if let Some(controller) = self.controller.as_mut().filter(|_| controller) {
                controller.read(&self.log);
            }
            while let Some(received) = self.signals.next() {
                self.signal(received);
            }
            if control {
                self.answer_control();
            }
            self.timers();
            self.deliveries();
            if self.ending != Ending::No && self.children.is_empty() {
                self.finish();
                return Ok(());
            }
        }
    }

    /// Waits for a signal, a deadline or a message.
    fn wait(&self) -> io::Result<Ready> {
        let (pids, mut sockets): (Vec<Pid>, Vec<_>) = self
            .children
            .iter()
            .filter_map(|child| Some((child.pid, child.control.as_ref()?.as_fd())))
            .unzip();
        sockets.extend(self.controller.as_ref().and_then(Controller::socket));
        let before_control = sockets.len();
        let accepting = self.accepts_control();
        sockets.extend(self.control.iter().flat_map(|control| control.sockets(accepting)));
        let ready = self.signals.wait(&sockets, self.deadline())?;
        let any = |range| ready.get::<std::ops::Range<usize>>(range).is_some_and(|r| r.contains(&true));
        Ok(Ready {
            controller: any(pids.len()..before_control),
            control: any(before_control..ready.len()),
            workers: pids.into_iter().zip(&ready).filter(|(_, ready)| **ready).map(|(pid, _)| pid).collect(),
        })
    }

    fn deadline(&self) -> Option<Instant> {
        let certificates = self.certificates.as_ref().map(|(at, _)| *at);
        let silent = self.children.iter().filter_map(|child| child.silent_at).min();
        let controller = self.controller.as_ref().and_then(Controller::deadline);
        [self.kill_at, self.respawn_at, certificates, silent, controller].into_iter().flatten().min()
    }

    fn signal(&mut self, received: Received) {
        let action = match received.signal {
            Signal::SIGTERM | Signal::SIGINT => ", exiting",
            Signal::SIGQUIT => ", shutting down",
            Signal::SIGHUP => ", reconfiguring",
            Signal::SIGUSR1 => ", reopening logs",
            Signal::SIGUSR2 if self.may_change_binary() => ", changing binary",
            Signal::SIGUSR2 => ", ignoring",
            Signal::SIGWINCH if self.start.daemonized => ", shutting down worker processes",
            _ => "",
        };
        self.log.notice(&received_line(received, action));
        match received.signal {
            Signal::SIGTERM | Signal::SIGINT => self.end(Ending::Fast),
            Signal::SIGQUIT => self.end(Ending::Gracefully),
            Signal::SIGHUP => self.reload(),
            Signal::SIGUSR1 => self.reopen(),
            Signal::SIGUSR2 => self.change_binary(),
            Signal::SIGWINCH if self.start.daemonized => {
                self.no_accept = true;
                self.respawn_at = None;
                self.dismiss(Signal::SIGQUIT);
            }
            Signal::SIGCHLD => self.reap(),
            _ => {}
        }
    }

    fn end(&mut self, how: Ending) {
        if self.ending == Ending::Fast {
            return;
        }
        if self.ending == Ending::No {
            self.report_end();
        }
        self.ending = how;
        self.respawn_at = None;
        if let Some(controller) = &mut self.controller {
            controller.dismiss();
        }
        match how {
            Ending::Fast => {
                self.kill_at = Some(Instant::now() + KILL_AFTER);
                self.dismiss(Signal::SIGTERM);
            }
            _ => {
                self.dismiss(Signal::SIGQUIT);
                self.close_listeners(&Listeners::default());
            }
        }
    }

    /// Reports that this process ends. With a new binary the service does not: the new one has reported itself. A new binary
    /// that ends before its predecessor gives the service back.
    fn report_end(&self) {
        if self.new_binary.is_none() {
            self.reports.ending(self.predecessor().map(Pid::as_raw));
        }
    }

    /// Returns the process that started this one, unless it has ended.
    fn starter(&self) -> Option<Pid> {
        self.start.parent.filter(|parent| *parent == getppid())
    }

    /// Returns the master before, if this is a new binary and that one still runs.
    fn predecessor(&self) -> Option<Pid> {
        self.starter().filter(|_| self.start.inherited)
    }

    /// Tells all workers to end. The graceful request is made once, the fast one may follow it.
    fn dismiss(&mut self, signal: Signal) {
        for child in &mut self.children {
            if signal == Signal::SIGTERM || !child.leaving {
                child.leaving = true;
                let _ = kill(child.pid, signal);
            }
        }
    }

    fn timers(&mut self) {
        let now = Instant::now();
        if self.kill_at.is_some_and(|at| at <= now) {
            self.kill_at = Some(now + KILL_AFTER);
            for child in &self.children {
                let _ = kill(child.pid, Signal::SIGKILL);
            }
        }
        let silent: Vec<Pid> = (self.children.iter())
            .filter(|child| child.silent_at.is_some_and(|at| at <= now))
            .map(|child| child.pid)
            .collect();
        silent.into_iter().for_each(|pid| self.distrust(pid));
        if self.certificates.as_ref().is_some_and(|(at, _)| *at <= now) {
            self.read_changed_certificates();
        }
        if self.respawn_at.is_some_and(|at| at <= now) {
            self.respawn_at = None;
            self.spawn();
        }
        if let Some(controller) = &mut self.controller {
            controller.start_if_due(&self.log);
        }
    }

    fn finish(&mut self) {
        self.close_listeners(&Listeners::default());
        self.close_control();
        let _ = std::fs::remove_file(&self.pid_file);
        self.log.notice("exit");
    }

    /// Removes the files of unix sockets that are needed no more, unless another master has the sockets too.
    fn close_listeners(&mut self, kept: &Listeners) {
        let old = std::mem::replace(&mut self.state.listeners, kept.clone());
        let shared = self.new_binary.is_some() || self.predecessor().is_some();
        if !shared {
            old.unlink_except(kept);
        }
    }

    // Workers.

    fn spawn(&mut self) {
        // The last worker may have had another number of threads than the configuration in use now.
        let (wanted, threads) = (&self.state.config.listeners, self.state.plan.threads.cpus.len());
        if let Ok(listeners) = listen::open(wanted, &self.state.listeners, threads, false, &self.log) {
            self.state.listeners = listeners;
        }
        match self.start_worker() {
            Ok(child) => {
                self.log.notice(&format!("start worker process {}", child.pid));
                self.children.push(child);
            }
            Err(e) => {
                let why = match Path::new(OWN_PROGRAM).exists() {
                    true => errno(&e),
                    false => format!("there is no {OWN_PROGRAM}, by which it is started: mount /proc"),
                };
                self.log.alert(&format!("could not start a worker process: {why}"));
                self.respawn_later(Duration::ZERO);
            }
        }
    }

    /// Returns the command that starts a worker, which reads its orders from `control`.
    fn worker_command(&self, control: UnixStream) -> Command {
        let mut command = Command::new(OWN_PROGRAM);
        command.arg0(worker::TITLE).env_clear().stdin(Stdio::from(OwnedFd::from(control)));
        command.env("GLIBC_TUNABLES", TUNABLES);
        // nginx: env. Only the named variables are inherited, and TZ.
        for (name, value) in &self.state.config.main.env {
            let value = value.clone().map(OsString::from).or_else(|| std::env::var_os(name));
            if let Some(value) = value.filter(|_| !name.is_empty()) {
                command.env(name, value);
            }
        }
        if let Some(zone) = std::env::var_os("TZ") {
            command.env("TZ", zone);
        }
        command.env(worker::RESPAWNED, self.respawned.to_string());
        command.env(worker::ROLE, title::process_name(&self.start.arguments));
        command
    }

    fn start_worker(&mut self) -> io::Result<Child> {
        let (control, theirs) = UnixStream::pair()?;
        let mut command = self.worker_command(theirs);
        let process = command.spawn()?;
        let pid = Pid::from_raw(i32::try_from(process.id()).map_err(io::Error::other)?);
        self.generations += 1;
        let mut logs = WorkerLogs::new(&self.log);
        logs.given(self.generations, &self.state.config.log_files, &self.state.logs);
        let predecessor = self.predecessor_of_worker();
        let predecessor = predecessor.as_ref().or(self.succession.predecessor.as_ref()).map(AsFd::as_fd);
        let worker = ForWorker {
            generation: self.generations,
            endpoints: self.controller.as_ref().map(Controller::endpoints).unwrap_or_default(),
            log_area: logs.area(),
            quic_secret: &self.succession.secret,
            predecessor,
            ..ForWorker::default()
        };
        let (mut order, fds) = self.state.order(worker);
        order.closed = self.controller.as_ref().map(|c| c.credentials().to_vec()).unwrap_or_default();
        // A worker that dies before it has read all is reaped like any other.
        if let Err(e) = wire::send_configure(&control, &order, &fds) {
            self.log.alert(&format!("could not configure worker process {pid} ({})", errno(&e)));
        }
        let known = self.state.addresses();
        let threads = self.state.plan.threads.cpus.len();
        Ok(Child {
            pid,
            control: Some(control),
            answers: WorkerMessages::default(),
            silent_at: None,
            started: Instant::now(),
            leaving: false,
            threads,
            known,
            given: (WorkerFiles { generation: self.generations, files: self.state.files.clone() }, false),
            logs,
        })
    }

    /// Connects the worker that is about to start with the last one, if that still has connections. Returns the socket of the new one.
    fn predecessor_of_worker(&self) -> Option<OwnedFd> {
        let last = self.children.iter().rev().find_map(|child| child.control.as_ref())?;
        let (theirs, ours) = self.succession.pair().ok()?;
        wire::send_succeed(last, theirs.as_fd()).ok()?;
        Some(ours)
    }

    fn respawn_later(&mut self, lived: Duration) {
        let pause = if lived >= HEALTHY { Duration::ZERO } else { self.pause };
        self.respawn_at = Some(Instant::now() + pause);
        self.pause = (pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
    }

    /// Reads messages of a worker. An attacker may control it: nothing here waits for it.
    fn listen_to(&mut self, pid: Pid) {
        let Some(child) = self.children.iter_mut().find(|child| child.pid == pid) else { return };
        if !child.has_sent() {
            return;
        }
        let (answers, end) = child.answers.take_all();
        let since = child.silent_at.filter(|_| answers.is_empty());
        child.silent_at = child.answers.waiting().then(|| since.unwrap_or(Instant::now() + MESSAGE_TIMEOUT));
        answers.into_iter().for_each(|answer| self.act_on(pid, answer));
        if end == Err(Broken) {
            self.distrust(pid);
        }
    }

    fn act_on(&mut self, pid: Pid, answer: WorkerMessage) {
        match answer {
            WorkerMessage::Applied(generation) => {
                if let Some(child) = self.children.iter_mut().find(|child| child.pid == pid) {
                    child.given.1 |= child.given.0.generation == generation;
                }
                self.reports.applied(generation, &self.state.status());
                if let Some(control) = &mut self.control {
                    control.applied(generation);
                }
                if let Some(controller) = &mut self.controller {
                    controller.applied(generation);
                }
            }
            WorkerMessage::Failed(text) => {
                self.log.emerg(&format!("worker process {pid}: {text}"));
                self.reports.failed(&text);
                if let Some(control) = &mut self.control {
                    control.failed(&text);
                }
                if let Some(controller) = &mut self.controller {
                    controller.failed(&text);
                }
            }
            WorkerMessage::PleaseReopen => self.reopen(),
            WorkerMessage::Leaving => self.replace(pid),
        }
    }

    /// Ends a worker that sent a broken message, since its responses cannot be trusted either. Another one follows.
    fn distrust(&mut self, pid: Pid) {
        let Some(child) = self.children.iter_mut().find(|child| child.pid == pid) else { return };
        (child.control, child.silent_at) = (None, None);
        self.log.alert(&format!("worker process {pid} sent a broken message and is killed"));
        let _ = kill(pid, Signal::SIGKILL);
    }

    /// Starts the successor of a worker that quits because of a signal from outside. The worker may be busy with its last
    /// requests for long, so nothing waits for its end.
    fn replace(&mut self, pid: Pid) {
        let Some(child) = self.children.iter_mut().find(|child| child.pid == pid) else { return };
        let told = std::mem::replace(&mut child.leaving, true);
        if !told && self.ending == Ending::No && !self.no_accept {
            self.spawn();
        }
    }

    fn reap(&mut self) {
        while let Ok(status) = waitpid(None::<Pid>, Some(WaitPidFlag::WNOHANG)) {
            let Some(pid) = status.pid() else { return };
            if self.new_binary == Some(pid) {
                self.new_binary_ended(&status);
                continue;
            }
            if self.controller.as_mut().is_some_and(|controller| controller.ended(pid)) {
                let (level, text) = end_line(&status);
                self.log.write(level, &format!("controller process {pid} {text}"));
                continue;
            }
            let Some(at) = self.children.iter().position(|child| child.pid == pid) else { continue };
            let child = self.children.swap_remove(at);
            let (level, text) = end_line(&status);
            let who = format!("worker process {pid}");
            self.log.write(level, &format!("{who} {text}"));
            child.logs.recover(&who, &self.log);
            let replaced = self.children.iter().any(|other| !other.leaving);
            if !child.leaving && !replaced && self.ending == Ending::No && !self.no_accept {
                self.respawned += 1;
                self.respawn_later(child.started.elapsed());
            }
        }
    }

    // Reload and logs.

    fn reload(&mut self) {
        if self.ending != Ending::No {
            return;
        }
        let accepting = !std::mem::replace(&mut self.no_accept, false);
        if self.new_binary.is_some() {
            // nginx: while a new binary runs, HUP starts the old one's workers again, as they were.
            if !accepting {
                self.log.notice("start worker processes");
                self.spawn();
            }
            return;
        }
        self.log.notice("reconfiguring");
        // What was refused is known by now, and reported.
        let _ = self.reconfigure();
    }

    /// Reads the configuration again and gives it to the worker.
    ///
    /// # Errors
    /// The reason why it is refused. Nothing has changed then.
    fn reconfigure(&mut self) -> Result<(), String> {
        self.reports.reading(&self.pid_file);
        self.log.listen();
        let result = self.take_configuration();
        // A new configuration has a log of its own.
        self.heard.extend(self.log.take_heard());
        result
    }

    fn take_configuration(&mut self) -> Result<(), String> {
        self.heard.clear();
        let opened = self.open();
        let moved = |new: &State| new.pid != self.state.pid;
        let Ok(mut new) = opened.and_then(|new| match moved(&new) {
            true => new.write_pid(&self.log).map(|()| new),
            false => Ok(new),
        }) else {
            let reason = self.log.take_refusal().unwrap_or_default();
            self.show_refusal(&reason);
            self.reports.refused(&reason);
            return Err(reason);
        };
        if moved(&new) {
            let _ = std::fs::remove_file(&self.pid_file);
            self.pid_file = new.pid.clone();
        }
        self.say_what_stays(&new);
        let kept = new.listeners.clone();
        self.close_listeners(&kept);
        new.memory = std::mem::take(&mut self.state.memory);
        self.state = new;
        self.loaded = jiff::Timestamp::now();
        self.heard = self.log.take_heard();
        self.log = self.state.log();
        self.watch_certificates();
        self.hand_over();
        self.reports.given(self.generations);
        Ok(())
    }

    /// Opens the configuration as it is now. One of a controller may take long: servers of groups reach the worker meanwhile.
    fn open(&mut self) -> Result<State, Refused> {
        let Master { state, start, log, children, controller, .. } = self;
        let threads = children.iter().find(|child| !child.leaving).map(|child| child.threads);
        let before = Before { listeners: Some(&state.listeners), threads, test: false };
        let files = controller.as_ref().map_or_else(Files::disk, Controller::files);
        let (environment, memory) = (&state.environment, &mut state.memory);
        let log = &*log;
        let source = Source { files, keeps_record: controller.is_none(), memory };
        let open = || state::open(environment, &start.paths, source, before, log);
        let Some(controller) = controller else { return open() };
        let socket = controller
            .socket()
            .map_or_else(|| Err(io::ErrorKind::NotConnected.into()), |socket| socket.try_clone_to_owned());
        run_in_thread(socket, open, || {
            let any = controller.read(log);
            pass_endpoints(controller, children, log);
            any
        })
    }

    // Controller.

    /// Acts on what the controller has sent. Some of it may have been read at the start or while a configuration was opened.
    fn deliveries(&mut self) {
        loop {
            let Some(controller) = &mut self.controller else { return };
            pass_endpoints(controller, &self.children, &self.log);
            let Some(Delivery::Configuration(configuration)) = controller.next_delivery() else { return };
            self.configured(configuration);
        }
    }

    /// Uses a configuration of the controller.
    fn configured(&mut self, configuration: Configuration) {
        let Some(controller) = &mut self.controller else { return };
        let number = configuration.number;
        controller.take(configuration);
        // While a new binary runs, its own controller configures it.
        if self.ending != Ending::No || self.no_accept || self.new_binary.is_some() {
            return;
        }
        let result = self.reconfigure();
        let Some(controller) = &mut self.controller else { return };
        match result {
            Ok(()) => controller.given(self.generations, number),
            Err(reason) => controller.refused(number, &reason),
        }
    }

    /// Has the pages of the worker show that a configuration was refused.
    fn show_refusal(&self, reason: &str) {
        let child = self.children.iter().find(|child| !child.leaving);
        if let Some(control) = child.and_then(|child| child.control.as_ref()) {
            // A page without it is no harm.
            let _ = wire::send_refused(control, reason);
        }
    }

    /// Gives the current configuration to the worker, or starts one.
    fn hand_over(&mut self) {
        let Some(child) = self.children.iter_mut().find(|child| !child.leaving) else {
            self.spawn();
            return;
        };
        self.generations += 1;
        let endpoints = self.controller.as_ref().map(Controller::endpoints).unwrap_or_default();
        child.logs.given(self.generations, &self.state.config.log_files, &self.state.logs);
        // A worker that has not applied the last configuration may refuse it, and keep the files of an earlier one.
        let base = Some(&child.given.0).filter(|_| child.given.1);
        let generation = self.generations;
        let worker = ForWorker { known: &child.known, base, generation, endpoints, ..ForWorker::default() };
        let (order, fds) = self.state.order(worker);
        child.given = (WorkerFiles { generation: self.generations, files: self.state.files.clone() }, false);
        // Without a socket it is about to end, and its successor gets the new configuration.
        let Some(control) = &child.control else { return };
        match wire::send_configure(control, &order, &fds) {
            Ok(()) => child.known = self.state.addresses(),
            Err(e) => {
                // It is replaced when it has ended.
                self.log.alert(&format!(
                    "worker process {} takes no configuration ({})",
                    child.pid,
                    errno(&e)
                ));
                let _ = kill(child.pid, Signal::SIGKILL);
            }
        }
    }

    /// Logs settings that a reload cannot change because they need a new process.
    fn say_what_stays(&self, new: &State) {
        let (old_main, new_main) = (&self.state.config.main, &new.config.main);
        let stays = |name: &str, detail: String| {
            self.log.notice(&format!(
                "\"{name}\" changed{detail}, which takes effect with the next worker process: upgrade or restart"
            ));
        };
        let (old_threads, new_threads) = (self.state.plan.threads.cpus.len(), new.plan.threads.cpus.len());
        if old_threads != new_threads {
            stays("worker_processes", format!(" from {old_threads} to {new_threads}"));
        }
        if self.state.identity != new.identity {
            stays("user", String::new());
        }
        if self.state.plan.threads.connections != new.plan.threads.connections {
            stays("worker_connections", String::new());
        }
        for (name, changed) in [
            ("worker_priority", old_main.worker_priority != new_main.worker_priority),
            ("worker_rlimit_nofile", old_main.worker_rlimit_nofile != new_main.worker_rlimit_nofile),
            ("worker_rlimit_core", old_main.worker_rlimit_core != new_main.worker_rlimit_core),
            ("worker_cpu_affinity", old_main.worker_cpu_affinity != new_main.worker_cpu_affinity),
            ("working_directory", old_main.working_directory != new_main.working_directory),
            ("env", old_main.env != new_main.env),
        ] {
            if changed {
                stays(name, String::new());
            }
        }
    }

    fn reopen(&mut self) {
        self.log.notice("reopening logs");
        self.state.reopen_logs();
        self.log = self.state.log();
        let paths: Vec<PathBuf> = self.state.logs.iter().map(|(path, _)| path.clone()).collect();
        let fds: Vec<_> = self.state.logs.iter().map(|(_, fd)| fd.as_fd()).collect();
        for child in &mut self.children {
            child.logs.reopened(&self.state.logs);
            let Some(control) = &child.control else { continue };
            if let Err(e) = wire::send_reopen(control, &paths, &fds) {
                self.log.alert(&format!("worker process {} takes no log files ({})", child.pid, errno(&e)));
                if e.kind() == io::ErrorKind::TimedOut {
                    // It would write to files that have been rotated away, and keep the master waiting again.
                    let _ = kill(child.pid, Signal::SIGKILL);
                }
            }
        }
    }
}

/// Passes servers of groups that came from the controller before its next configuration to the worker.
fn pass_endpoints(controller: &mut Controller, children: &[Child], log: &Log) {
    while let Some(endpoints) = controller.next_endpoints() {
        for child in children.iter().filter(|child| !child.leaving) {
            let Some(control) = &child.control else { continue };
            if let Err(e) = wire::send_endpoints(control, &endpoints) {
                // It is replaced when it has ended, and its successor gets all of them.
                log.alert(&format!("worker process {} takes no servers ({})", child.pid, errno(&e)));
                let _ = kill(child.pid, Signal::SIGKILL);
            }
        }
    }
}

fn end_line(status: &WaitStatus) -> (Level, String) {
    match status {
        WaitStatus::Exited(_, code) => (Level::Notice, format!("exited with code {code}")),
        WaitStatus::Signaled(_, signal, core) => {
            let core = if *core { " (core dumped)" } else { "" };
            (Level::Alert, format!("exited on signal {}{core}", *signal as i32))
        }
        other => (Level::Alert, format!("changed its state: {other:?}")),
    }
}
