//! Actions of the nginx-style options: start, test, dump, signal.

use crate::cli::{self, Options, Signal as Wish};
use crate::control_api::Control;
use crate::controller_process::{Controller, Delivery};
use crate::dashboard_facts::DashboardFacts;
use crate::listen::{Listeners, Refused};
use crate::master::{Master, Start};
use crate::master_log::{Log, errno, failed};
use crate::paths::Paths;
use crate::reload;
use crate::reports::Reports;
use crate::service_manager::{Passed, ServiceManager};
use crate::signals::{Signals, received_line};
use crate::state::{self, Before, Source, State};
use crate::title;
use forebay_conf::error::Level;
use forebay_conf::files::Files;
use forebay_conf::parse::parse_after;
use forebay_core::NGINX_VERSION;
use forebay_core::config::{Environment, Memory};
use forebay_core::process::Worker;
use forebay_sys::log_area::{Area, Mapped};
use forebay_sys::{daemon, files, limits};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{Pid, getppid};
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Runs with nginx's options. Returns the exit code. `arguments` is the true command line and `titled` whether
/// the process has its title.
pub(crate) fn main(arguments: Vec<OsString>, titled: bool) -> u8 {
    let words: Vec<String> =
        arguments.iter().skip(1).map(|word| word.to_string_lossy().into_owned()).collect();
    let options = match cli::parse(&words) {
        Ok(options) => options,
        Err(text) => {
            eprintln!("nginx: {text}");
            return 1;
        }
    };
    if options.version {
        print_version(&options);
        if !options.test {
            return 0;
        }
    }
    if options.test {
        return test(&options);
    }
    if let Some(wish) = options.signal {
        if wish == Wish::Reload && options.control.is_some() {
            return reload::by_control_api(&options, RELOADED_WITHIN);
        }
        return code(Found::by(&options).and_then(|master| master.signal(wish)));
    }
    if !titled {
        title::set_master(&arguments);
    }
    start(&options, arguments)
}

/// Longest time that `-s reload -l ADDRESS` waits.
const RELOADED_WITHIN: Duration = Duration::from_secs(60);

fn code(result: Result<(), Refused>) -> u8 {
    u8::from(result.is_err())
}

fn print_version(options: &Options) {
    let mut text = cli::version_line();
    if options.help {
        text.push_str(&cli::usage());
    }
    if options.configure {
        text.push_str(&cli::build_lines());
    }
    eprint!("{text}");
}

fn early_log(options: &Options) -> Log {
    let (environment, _) = options.places();
    let (log, complaint) = Log::early(&environment.error_log.unwrap_or_default());
    if let Some(complaint) = complaint {
        log.alert(&complaint);
    }
    log
}

/// Runs `-t` and `-T`.
fn test(options: &Options) -> u8 {
    let (mut log, mut opening) = (early_log(options), Log::default_console());
    if options.quiet {
        (log, opening) = (log.quiet(), opening.quiet());
    }
    let (environment, paths) = options.places();
    let name = environment.conf_path.display();
    let say = |text: String| {
        if !options.quiet {
            eprintln!("{text}");
        }
    };
    let mut files = Files::disk();
    let opened = state::read(&environment, &mut files, &log).and_then(|read| {
        say(format!("nginx: the configuration file {name} syntax is ok"));
        let before = Before { test: true, ..Before::default() };
        state::open_read(&environment, read, &paths, before, &opening)
    });
    let Ok(state) = opened else {
        eprintln!("nginx: configuration file {name} test failed");
        return 1;
    };
    // Unix sockets bound for the test are removed again.
    state.listeners.unlink_except(&Listeners::default());
    say(format!("nginx: configuration file {name} test is successful"));
    let code = u8::from(options.dump && dump(&files).is_err());
    // The end of the process frees all at once. With many servers this would be a tenth of the time.
    std::mem::forget((state, files));
    code
}

fn dump(files: &Files) -> io::Result<()> {
    let mut out = io::stdout().lock();
    for (_, path, bytes) in files.iter() {
        writeln!(out, "# configuration file {}:", path.display())?;
        out.write_all(bytes)?;
        out.write_all(b"\n")?;
    }
    out.flush()
}

fn signal_of(wish: Wish) -> Signal {
    match wish {
        Wish::Stop => Signal::SIGTERM,
        Wish::Quit => Signal::SIGQUIT,
        Wish::Reopen => Signal::SIGUSR1,
        Wish::Reload => Signal::SIGHUP,
    }
}

/// The master of a configuration, as its pid file names it.
pub(crate) struct Found {
    /// Its number.
    pub pid: Pid,
    /// The pid file.
    pub pid_file: PathBuf,
    log: Log,
}

impl Found {
    /// Reads the configuration and its pid file.
    ///
    /// # Errors
    /// One of them cannot be read; the log has nginx's message.
    pub(crate) fn by(options: &Options) -> Result<Found, Refused> {
        let log = early_log(options);
        let (environment, paths) = options.places();
        let (config, _) = state::read(&environment, &mut Files::disk(), &log)?;
        Found::at(state::pid_path(&config, &paths), log)
    }

    /// Finds the master as [`Found::by`] does, for a command whose answer comes from the master: files that the http block
    /// includes are left to that. There may be thousands of them.
    ///
    /// # Errors
    /// As [`Found::by`].
    pub(crate) fn by_main_level(options: &Options) -> Result<Found, Refused> {
        let (environment, paths) = options.places();
        let directory = environment.conf_path.parent().unwrap_or(&environment.prefix).to_owned();
        let (path, globals) = (&environment.conf_path, &environment.globals);
        let parsed = parse_after(path, globals, &directory, &mut Files::disk(), &mut |_, _| true);
        if parsed.fatal().is_some() {
            return Found::by(options);
        }
        let pid = parsed.tree.root.iter().filter(|d| d.name.text == b"pid").last();
        let written = pid.and_then(|d| d.args.first()).map(|w| OsString::from_vec(w.text.clone()));
        let pid_file = written.map_or(paths.pid, |written| environment.prefix.join(written));
        Found::at(pid_file, early_log(options))
    }

    fn at(pid_file: PathBuf, log: Log) -> Result<Found, Refused> {
        match read_pid(&pid_file) {
            Ok(pid) => Ok(Found { pid: Pid::from_raw(pid), pid_file, log }),
            Err(text) => {
                log.write(Level::Error, &text);
                Err(Refused)
            }
        }
    }

    /// Sends a signal.
    ///
    /// # Errors
    /// Errors of kill(2); the log has nginx's message.
    pub(crate) fn signal(&self, wish: Wish) -> Result<(), Refused> {
        let signal = signal_of(wish);
        kill(self.pid, signal).map_err(|e| {
            let call = format!("kill({}, {})", self.pid, signal as i32);
            self.log.alert(&format!("{call} failed ({})", errno(&e.into())));
            Refused
        })
    }
}

fn read_pid(path: &Path) -> Result<i32, String> {
    let text = files::read_text(path, files::MAX_WHOLE).map_err(|e| failed("open()", path, &e))?;
    let text = text.trim_end();
    let pid = text.parse::<i32>().ok().filter(|pid| *pid > 0);
    pid.ok_or_else(|| format!("invalid PID number \"{text}\" in \"{}\"", path.display()))
}

/// Starts the server and serves until a signal ends it. Returns the exit code.
pub(crate) fn start(options: &Options, arguments: Vec<OsString>) -> u8 {
    title::set_process_name(&title::process_name(&arguments));
    let log = early_log(options);
    match prepare(options, arguments, &log) {
        Ok(run) => run.run(&log),
        Err(Refused) => {
            let (environment, _) = options.places();
            if options.conf.is_none() && !environment.conf_path.exists() {
                eprint!("{}", beginnings(&environment.conf_path));
            }
            1
        }
    }
}

/// Returns what somebody can do who has no configuration yet.
fn beginnings(conf: &Path) -> String {
    format!(
        "\nThere is no configuration at {}. Three ways to begin:\n\
         \x20 forebay serve ./public       serves a folder\n\
         \x20 forebay proxy 3000           passes everything to the application on port 3000\n\
         \x20 forebay -c nginx.conf        runs a configuration that is somewhere else\n\
         'forebay serve --print-config' and 'forebay proxy 3000 --print-config' print a configuration to start from.\n",
        conf.display()
    )
}

/// Starts the server with a controller process as the source of its configuration, and serves in the foreground until a signal
/// ends it. Returns the exit code. The controller is this program with the same arguments.
#[cfg_attr(
    not(feature = "kubernetes"),
    allow(dead_code, reason = "only the ingress controller starts like this")
)]
pub(crate) fn start_controlled(
    environment: &Environment,
    paths: Paths,
    arguments: Vec<OsString>,
    credentials: Vec<PathBuf>,
) -> u8 {
    title::set_process_name(&title::process_name(&arguments));
    let log = Log::default_console();
    let controller = Controller::new(&arguments, &environment.prefix, credentials);
    match prepare_controlled(environment, paths, arguments, controller, &log) {
        Ok(Some(run)) => run.run(&log),
        Ok(None) => 0,
        Err(Refused) => 1,
    }
}

/// Waits for a configuration that can be used. Returns `None` if a signal ends the program before.
fn prepare_controlled(
    environment: &Environment,
    paths: Paths,
    arguments: Vec<OsString>,
    mut controller: Controller,
    log: &Log,
) -> Result<Option<Run>, Refused> {
    let starter = getppid();
    let old = inherited_listeners(log);
    let signals = Signals::take_over().map_err(|e| {
        log.emerg(&format!("signalfd() failed ({})", errno(&e)));
        Refused
    })?;
    let open = |controller: &Controller| {
        let before = Before { listeners: old.as_ref(), ..Before::default() };
        let mut memory = Memory::checking();
        let source = Source { files: controller.files(), keeps_record: false, memory: &mut memory };
        let mut state = state::open(environment, &paths, source, before, log)?;
        state.memory = memory;
        Ok(state)
    };
    let Some(state) = first_configuration(&mut controller, &signals, open, log)? else { return Ok(None) };
    if let Some(old) = &old {
        old.warn_of_unused(&state.listeners, log);
    }
    state.write_pid(log)?;
    greet(&state.log());
    let inherited = old.is_some();
    let start = Start { arguments, paths, daemonized: inherited, inherited, parent: Some(starter) };
    Ok(Some(Run { state, signals, start, controller: Some(controller), control: None }))
}

/// Runs the controller until it has delivered a configuration that can be used.
fn first_configuration(
    controller: &mut Controller,
    signals: &Signals,
    open: impl Fn(&Controller) -> Result<State, Refused>,
    log: &Log,
) -> Result<Option<State>, Refused> {
    loop {
        controller.start_if_due(log);
        let sockets: Vec<_> = controller.socket().into_iter().collect();
        signals.wait(&sockets, controller.deadline()).map_err(|_| Refused)?;
        while let Some(received) = signals.next() {
            match received.signal {
                Signal::SIGTERM | Signal::SIGINT | Signal::SIGQUIT => {
                    controller.dismiss();
                    return Ok(None);
                }
                Signal::SIGCHLD => reap_controller(controller, log),
                _ => {}
            }
        }
        controller.read(log);
        loop {
            // They come with the configuration.
            while controller.next_endpoints().is_some() {}
            let Some(Delivery::Configuration(configuration)) = controller.next_delivery() else { break };
            let number = configuration.number;
            controller.take(configuration);
            match open(controller) {
                Ok(state) => {
                    // The first worker gets the first generation.
                    controller.given(1, number);
                    return Ok(Some(state));
                }
                Err(Refused) => {
                    let reason = log.take_refusal().unwrap_or_default();
                    controller.refused(number, &reason);
                }
            }
        }
    }
}

fn reap_controller(controller: &mut Controller, log: &Log) {
    while let Ok(status) = waitpid(None::<Pid>, Some(WaitPidFlag::WNOHANG)) {
        let Some(pid) = status.pid() else { return };
        if controller.ended(pid) {
            log.alert(&format!("controller process {pid} ended before it delivered a configuration"));
        }
    }
}

/// A server whose files and sockets are open, in its final process.
struct Run {
    state: State,
    signals: Signals,
    start: Start,
    controller: Option<Controller>,
    control: Option<Control>,
}

/// Opens the control API that the options ask for.
fn open_control(options: &Options, log: &Log) -> Result<Option<Control>, Refused> {
    let address = options.control_address().map_err(|text| {
        log.emerg(&text);
        Refused
    })?;
    address.map(|address| Control::open(address, log)).transpose()
}

fn prepare(options: &Options, arguments: Vec<OsString>, log: &Log) -> Result<Run, Refused> {
    let refuse = |what: &str, e: &io::Error| {
        log.emerg(&format!("{what} failed ({})", errno(e)));
        Refused
    };
    let starter = getppid();
    let predecessor = inherited_listeners(log);
    let inherited = predecessor.is_some();
    let old = predecessor.or_else(|| Passed::to_this_process().map(|passed| Listeners::passed(&passed, log)));
    let (environment, paths) = options.places();
    let before = Before { listeners: old.as_ref(), ..Before::default() };
    let mut memory = Memory::checking();
    let source = Source { files: Files::disk(), keeps_record: true, memory: &mut memory };
    let mut state = state::open(&environment, &paths, source, before, log)?;
    state.memory = memory;
    if let Some(old) = old {
        old.warn_of_unused(&state.listeners, log);
    }
    let control = open_control(options, log)?;
    let main = &state.config.main;
    let detached = !inherited && main.daemon != Some(false);
    if detached {
        daemon::detach().map_err(|e| refuse("fork()", &e))?;
    }
    let signals = Signals::take_over().map_err(|e| refuse("signalfd()", &e))?;
    state.write_pid(log)?;
    let daemonized = inherited || detached;
    if detached {
        let _ = daemon::silence_stderr();
    }
    greet(&state.log());
    let parent = (!detached).then_some(starter);
    let start = Start { arguments, paths, daemonized, inherited, parent };
    Ok(Run { state, signals, start, controller: None, control })
}

/// Takes over the sockets of the program that this one replaces.
fn inherited_listeners(log: &Log) -> Option<Listeners> {
    let variable = std::env::var("NGINX").ok().filter(|value| !value.is_empty())?;
    let listeners = Listeners::inherited(&variable);
    log.notice(&format!("using inherited sockets from \"{variable}\""));
    Some(listeners)
}

fn greet(log: &Log) {
    log.notice("using the \"epoll\" event method");
    log.notice(&format!("nginx/{NGINX_VERSION}"));
    log.notice(&format!("built by {}", env!("FOREBAY_RUSTC")));
    if let Ok(release) = std::fs::read_to_string("/proc/sys/kernel/osrelease") {
        log.notice(&format!("OS: Linux {}", release.trim()));
    }
    let (soft, hard) = limits::descriptors();
    log.notice(&format!("getrlimit(RLIMIT_NOFILE): {soft}:{hard}"));
}

impl Run {
    /// Serves. Returns the exit code.
    fn run(self, log: &Log) -> u8 {
        match self.serve() {
            Ok(()) => 0,
            Err(e) => {
                log.alert(&errno(&e));
                1
            }
        }
    }

    fn serve(self) -> io::Result<()> {
        if self.state.config.main.master_process == Some(false) && self.controller.is_none() {
            if let Some(control) = &self.control {
                self.state.log().warn("there is no control API without a master: \"master_process off\"");
                control.unlink();
            }
            return alone(self);
        }
        Master::new(self.start, self.signals, self.state, self.controller).with_control(self.control).run()
    }
}

/// nginx: master_process off. The threads run in this process, for debugging; privilege is kept.
struct Alone {
    start: Start,
    state: State,
    log: Arc<Log>,
    worker: Worker,
    /// Threads of the worker.
    threads: usize,
    /// Number of the configuration in use.
    generation: u64,
    reports: Reports,
    shown: DashboardFacts,
    quitting: bool,
}

/// Longest time that the process without a master waits for its threads to apply a configuration.
const APPLIED_WITHIN: Duration = Duration::from_secs(10);

fn alone(run: Run) -> io::Result<()> {
    let Run { state, signals, start, .. } = run;
    let mut alone = Alone::new(start, state)?;
    while !(alone.quitting && alone.worker.finished()) {
        signals.wait(&[], alone.quitting.then(|| Instant::now() + Duration::from_millis(20)))?;
        while let Some(received) = signals.next() {
            alone.log.notice(&received_line(received, ""));
            alone.signal(received.signal)?;
        }
    }
    alone.worker.join(&|level, text| alone.log.write(level, text));
    alone.state.listeners.unlink_except(&Listeners::default());
    let _ = std::fs::remove_file(&alone.state.pid);
    alone.log.notice("exit");
    Ok(())
}

impl Alone {
    fn new(start: Start, state: State) -> io::Result<Alone> {
        let log = Arc::new(state.log());
        log.take_last_words();
        limits::raise_descriptors();
        let generation = 1;
        // Nothing reads it after the end of this process. It exists so that this mode runs the same code as the other one.
        let area = Area::create().and_then(|area| Mapped::new(area.fd().try_clone_to_owned()?)).ok();
        let worker = Worker::start(
            state.generation(&[], generation)?,
            &state.plan.threads,
            area,
            crate::front_ends::FRONT_ENDS,
        )?;
        let threads = state.plan.threads.cpus.len();
        let mut reports = Reports::new(ServiceManager::of_environment());
        reports.applied(generation, &state.status());
        let mut shown = DashboardFacts::default();
        shown.loaded(&state.config, &state.environment, &state.files);
        Ok(Alone { start, state, log, worker, threads, generation, reports, shown, quitting: false })
    }

    fn signal(&mut self, signal: Signal) -> io::Result<()> {
        match signal {
            Signal::SIGTERM | Signal::SIGINT => {
                self.reports.ending(None);
                self.quitting = true;
                self.worker.stop();
            }
            Signal::SIGQUIT if !self.quitting => {
                self.reports.ending(None);
                self.quitting = true;
                self.worker.quit(self.state.config.main.worker_shutdown_timeout);
            }
            Signal::SIGHUP if !self.quitting => self.reload()?,
            Signal::SIGUSR1 => {
                self.state.reopen_logs();
                self.use_own_log();
                self.worker.reopen(self.state.log_copies()?);
            }
            _ => {}
        }
        Ok(())
    }

    fn reload(&mut self) -> io::Result<()> {
        self.reports.reading(&self.state.pid);
        let known = self.state.addresses();
        let environment = self.state.environment.clone();
        // The worker stays, and with it the number of its threads.
        let threads = Some(self.threads);
        let before = Before { listeners: Some(&self.state.listeners), threads, test: false };
        let source = Source { files: Files::disk(), keeps_record: true, memory: &mut self.state.memory };
        let opened = state::open(&environment, &self.start.paths, source, before, &self.log);
        let Ok(mut new) = opened else {
            let reason = self.log.take_refusal().unwrap_or_default();
            DashboardFacts::refused(reason.clone());
            self.reports.refused(&reason);
            return Ok(());
        };
        self.generation += 1;
        self.reports.given(self.generation);
        let (done, applied) = std::sync::mpsc::channel();
        self.worker.reload(new.generation(&known, self.generation)?, move || {
            let _ = done.send(());
        });
        // A thread may be waiting for a disk. It applies the configuration later.
        let _ = applied.recv_timeout(APPLIED_WITHIN);
        self.reports.applied(self.generation, &new.status());
        self.state.listeners.unlink_except(&new.listeners);
        new.memory = std::mem::take(&mut self.state.memory);
        self.state = new;
        self.shown.loaded(&self.state.config, &self.state.environment, &self.state.files);
        self.use_own_log();
        Ok(())
    }

    fn use_own_log(&mut self) {
        self.log = Arc::new(self.state.log());
        self.log.take_last_words();
    }
}
