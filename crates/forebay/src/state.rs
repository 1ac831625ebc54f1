//! A configuration with everything the master opened for it.

use crate::front_ends::{load, load_after, load_part};
use crate::in_effect::InEffect;
use crate::listen::{self, Listeners, Refused};
use crate::master_log::{Log, errno, failed, open_log};
use crate::origin;
use crate::paths::{self, Paths};
use crate::plan::Plan;
use crate::wire::{Configure, Endpoints};
use forebay_conf::error::{Error, Level};
use forebay_conf::files::Files;
use forebay_conf::tree::Tree;
use forebay_core::config::main_settings::{ErrorLog, ErrorLogTarget};
use forebay_core::config::{Config, Environment, ListenAddr, Memory};
use forebay_core::process::Generation;
use forebay_core::tls::key_log;
use forebay_sys::files;
use forebay_sys::identity::{self, Identity};
use std::collections::HashSet;
use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Fingerprint of a file: times of change, length, inode; `None` if it does not exist.
pub(crate) type Stamp = Option<(i64, i64, u64, u64)>;

/// Open log files by path.
pub(crate) type Logs = Vec<(PathBuf, Arc<OwnedFd>)>;

/// Files of a configuration that a worker was given.
#[derive(Clone, Debug)]
pub(crate) struct WorkerFiles {
    /// Number of the configuration.
    pub generation: u64,
    /// Its files.
    pub files: Arc<Files>,
}

/// A configuration in use, or about to be.
#[derive(Debug)]
pub(crate) struct State {
    /// Paths.
    pub environment: Environment,
    /// The configuration.
    pub config: Arc<Config>,
    /// Files that it was read from.
    pub files: Arc<Files>,
    /// Threads, connections, descriptors.
    pub plan: Plan,
    /// User of the worker; `None` without privilege.
    pub identity: Option<Identity>,
    /// Listening sockets.
    pub listeners: Listeners,
    /// Log files.
    pub logs: Logs,
    /// Target of the error log, the default filled in.
    pub error_log: Vec<ErrorLog>,
    /// Pid file.
    pub pid: PathBuf,
    /// What the next configuration takes over.
    pub memory: Memory,
    /// Its record, for commands.
    #[expect(dead_code, reason = "it is open for others to find")]
    pub in_effect: InEffect,
}

/// A configuration that has been read, with the user of the worker; `None` without privilege.
pub(crate) type Read = (Config, Option<Identity>);

/// Reads and checks a configuration; warnings and the error go to the log.
///
/// # Errors
/// The configuration has an error.
pub(crate) fn read(environment: &Environment, files: &mut Files, log: &Log) -> Result<Read, Refused> {
    let loaded = load(environment, files);
    check(loaded, environment, files, log)
}

/// Reads and checks as [`read`] does what `narrow` leaves of a configuration, and returns the tree that is left.
///
/// # Errors
/// That part has an error.
pub(crate) fn read_part(
    environment: &Environment,
    files: &mut Files,
    log: &Log,
    narrow: impl FnOnce(&mut Tree),
) -> Result<(Config, Tree), Refused> {
    let mut left = None;
    let loaded = load_part(environment, files, narrow).map(|(config, warnings, tree)| {
        left = Some(tree);
        (config, warnings)
    });
    let (config, _) = check(loaded, environment, files, log)?;
    left.map(|tree| (config, tree)).ok_or(Refused)
}

/// Writes the warnings of a configuration that was loaded, or its error, and finds the user of the worker.
fn check(
    loaded: Result<(Config, Vec<Error>), Error>,
    environment: &Environment,
    files: &mut Files,
    log: &Log,
) -> Result<Read, Refused> {
    let refuse = |error: &Error, files: &Files| {
        log.emerg(&files.render(error));
        Refused
    };
    let (config, warnings) = loaded.map_err(|error| refuse(&error, files))?;
    write_warnings(&warnings, files, log);
    let identity = who(&config).map_err(|text| {
        let tree = origin::tree(environment, files);
        match origin::main_directive(&tree, "user") {
            Some(directive) => refuse(&origin::error_at(directive, text), files),
            None => {
                log.emerg(&text);
                Refused
            }
        }
    })?;
    Ok((config, identity))
}

/// Writes each warning once: a file that many servers include is read as often, with the same warnings.
fn write_warnings(warnings: &[Error], files: &Files, log: &Log) {
    let mut written = HashSet::new();
    for warning in warnings {
        let text = files.render(warning);
        // Other words of the line may have an equal warning.
        let place = warning.span.or(warning.at).map(|span| (span.file, span.start));
        if written.insert((text.clone(), place)) {
            log.write(warning.level, &text);
        }
    }
}

/// Returns the pid file that a configuration names.
pub(crate) fn pid_path(config: &Config, paths: &Paths) -> PathBuf {
    config.main.pid.clone().unwrap_or_else(|| paths.pid.clone())
}

/// Parts of the running server that [`open`] uses again.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Before<'a> {
    /// Sockets to use again.
    pub listeners: Option<&'a Listeners>,
    /// Threads of the worker that runs and stays, which get one socket each; `None`: as many as planned.
    pub threads: Option<usize>,
    /// Nothing is kept, and addresses in use are passed over.
    pub test: bool,
}

/// What a worker has already, and what it gets with the configuration.
#[derive(Default)]
pub(crate) struct ForWorker<'w, 'fd> {
    /// Addresses whose sockets it has.
    pub known: &'w [ListenAddr],
    /// Files that it has.
    pub base: Option<&'w WorkerFiles>,
    /// Number of the configuration.
    pub generation: u64,
    /// Servers of groups with `peers external`.
    pub endpoints: Vec<Endpoints>,
    pub log_area: Option<BorrowedFd<'fd>>,
    pub quic_secret: &'w [u8],
    /// Socket of the worker before, which gets packets of its QUIC connections.
    pub predecessor: Option<BorrowedFd<'fd>>,
}

/// Source of a configuration.
pub(crate) struct Source<'a> {
    pub files: Files,
    /// Keep the record of the files for `forebay reload`, which compares it with those on the disk.
    pub keeps_record: bool,
    /// Memory of the configuration before. It changes even if a file or socket cannot be opened.
    pub memory: &'a mut Memory,
}

/// Reads a configuration and opens its files and sockets.
///
/// # Errors
/// A file, socket or other resource cannot be opened. The log has nginx's message, and nothing has changed.
pub(crate) fn open(
    environment: &Environment,
    paths: &Paths,
    source: Source<'_>,
    before: Before<'_>,
    log: &Log,
) -> Result<State, Refused> {
    let Source { files, keeps_record, memory } = source;
    let mut files = memory.files(files);
    let loaded = load_after(memory, environment, &mut files);
    let read = check(loaded, environment, &mut files, log)?;
    let state = open_read(environment, read, paths, before, log);
    let files = memory.accept(files);
    let in_effect = if keeps_record { InEffect::new(&files) } else { InEffect::default() };
    Ok(State { in_effect, files, ..state? })
}

/// Opens the files and sockets of a configuration that has been read. The result lacks [`State::files`] and
/// [`State::in_effect`].
///
/// # Errors
/// As [`open`].
pub(crate) fn open_read(
    environment: &Environment,
    read: Read,
    paths: &Paths,
    before: Before<'_>,
    log: &Log,
) -> Result<State, Refused> {
    let (config, identity) = read;
    let refuse = |text: String| {
        log.emerg(&text);
        Refused
    };
    let plan = Plan::new(&config);
    if let Some(warning) = plan.warning() {
        log.warn(&warning);
    }
    if !before.test {
        check_working_directory(&config).map_err(refuse)?;
    }
    let pid = pid_path(&config, paths);
    if before.test {
        touch(&pid).map_err(|e| refuse(failed("open()", &pid, &e)))?;
    }
    make_temp_directories(&config, identity.as_ref(), log).map_err(refuse)?;
    let error_log = error_targets(&config, environment);
    let logs = open_logs(&config, &error_log).map_err(refuse)?;
    let none = Listeners::default();
    let threads = before.threads.unwrap_or(plan.threads.cpus.len());
    let old = before.listeners.unwrap_or(&none);
    let listeners = listen::open(&config.listeners, old, threads, before.test, log)?;
    Ok(State {
        environment: environment.clone(),
        config: Arc::new(config),
        files: Arc::default(),
        plan,
        identity,
        listeners,
        logs,
        error_log,
        pid,
        memory: Memory::default(),
        in_effect: InEffect::default(),
    })
}

/// Checks that workers can enter `working_directory`: one line of the log now instead of one for each attempt.
fn check_working_directory(config: &Config) -> Result<(), String> {
    let Some(directory) = &config.main.working_directory else { return Ok(()) };
    match std::fs::metadata(directory.join(".")) {
        Ok(_) => Ok(()),
        Err(e) => Err(failed("chdir()", directory, &e)),
    }
}

/// Makes the directories for temporary files. Only those that the configuration names are required.
fn make_temp_directories(config: &Config, identity: Option<&Identity>, log: &Log) -> Result<(), String> {
    for directory in &config.temp_paths {
        make_directory(directory, identity)?;
    }
    for directory in &config.default_temp_paths {
        if let Err(text) = make_directory(directory, identity) {
            log.warn(&format!("{text}; what does not fit into memory will be refused"));
        }
    }
    Ok(())
}

impl State {
    /// Returns the error log of this configuration.
    pub(crate) fn log(&self) -> Log {
        Log::configured(&self.error_log, &self.logs)
    }

    /// Reads certificates and keys whose files have changed; everything else stays as it was read. What does not fit together
    /// is refused, and the old ones are kept.
    pub(crate) fn read_certificates(&mut self, log: &Log) -> bool {
        let mut files = self.memory.files(self.files.as_record());
        for path in &self.config.certificate_files {
            files.refresh(path);
        }
        match load_after(&mut self.memory, &self.environment, &mut files) {
            Ok((config, _)) => {
                self.config = Arc::new(config);
                self.files = self.memory.accept(files);
                log.notice("certificates were renewed");
                true
            }
            Err(e) => {
                log.write(Level::Error, &format!("renewed certificates are not used: {}", files.render(&e)));
                false
            }
        }
    }

    /// Fingerprints of certificates and keys.
    pub(crate) fn certificate_stamps(&self) -> Vec<Stamp> {
        use std::os::unix::fs::MetadataExt;
        let stamp = |m: std::fs::Metadata| (m.mtime(), m.mtime_nsec(), m.size(), m.ino());
        self.config.certificate_files.iter().map(|p| std::fs::metadata(p).ok().map(stamp)).collect()
    }

    /// Opens the log files again (USR1). A log whose file cannot be opened keeps its old one, as in nginx.
    pub(crate) fn reopen_logs(&mut self) {
        let log = self.log();
        for (path, fd) in &mut self.logs {
            match open_any_log(path) {
                Ok(file) => *fd = Arc::new(file.into()),
                Err(e) => log.emerg(&failed("open()", path, &e)),
            }
        }
    }

    /// Returns the message for a worker, and its descriptors in order.
    pub(crate) fn order<'a>(&'a self, worker: ForWorker<'_, 'a>) -> (Configure, Vec<BorrowedFd<'a>>) {
        let ForWorker { known, base, generation, endpoints, log_area, quic_secret, predecessor } = worker;
        let new = |open: &&listen::Open| !known.contains(&open.addr);
        let order = Configure {
            environment: self.environment.clone(),
            record: self.files.to_bytes_after(base.map(|base| &*base.files)),
            base: base.map_or(0, |base| base.generation),
            cpus: self.plan.threads.cpus.clone(),
            connections: self.plan.threads.connections,
            identity: self.identity.clone(),
            listeners: (self.listeners.open.iter())
                .map(|open| (open.addr.clone(), if new(&open) { open.sockets.len() } else { 0 }))
                .collect(),
            logs: self.logs.iter().map(|(path, _)| path.clone()).collect(),
            generation,
            quic_secret: quic_secret.to_vec(),
            predecessor: predecessor.is_some(),
            log_area: log_area.is_some(),
            endpoints,
            closed: Vec::new(),
        };
        let sockets = self.listeners.open.iter().filter(new).flat_map(|open| &open.sockets);
        let fds = sockets.chain(self.logs.iter().map(|(_, fd)| fd)).map(|fd| fd.as_fd());
        let fds = fds.chain(log_area).chain(predecessor).collect();
        (order, fds)
    }

    /// Returns a sentence for people about what runs.
    pub(crate) fn status(&self) -> String {
        let count = |number: usize, name: &str, more: &str| {
            format!("{number} {name}{}", if number == 1 { "" } else { more })
        };
        let addresses = count(self.listeners.open.len(), "address", "es");
        format!("Serving {addresses} with {}", count(self.plan.threads.cpus.len(), "thread", "s"))
    }

    /// Returns the addresses of this configuration.
    pub(crate) fn addresses(&self) -> Vec<ListenAddr> {
        self.listeners.open.iter().map(|open| open.addr.clone()).collect()
    }

    /// Makes a generation for threads in this process (nginx: master_process off).
    ///
    /// # Errors
    /// The process has no free descriptor.
    pub(crate) fn generation(&self, known: &[ListenAddr], number: u64) -> std::io::Result<Generation> {
        let copy = |fds: &[Arc<OwnedFd>]| fds.iter().map(|fd| fd.try_clone()).collect::<Result<Vec<_>, _>>();
        let new = self.listeners.open.iter().filter(|open| !known.contains(&open.addr));
        let sockets = new.map(|open| Ok((open.addr.clone(), copy(&open.sockets)?)));
        Ok(Generation {
            config: self.config.clone(),
            sockets: sockets.collect::<std::io::Result<_>>()?,
            logs: self.log_copies()?,
            number,
        })
    }

    /// Copies the log descriptors.
    ///
    /// # Errors
    /// The process has no free descriptor.
    pub(crate) fn log_copies(&self) -> std::io::Result<Vec<(PathBuf, OwnedFd)>> {
        self.logs.iter().map(|(path, fd)| Ok((path.clone(), fd.try_clone()?))).collect()
    }

    /// Writes the pid file.
    ///
    /// # Errors
    /// The file cannot be written; the log has nginx's message.
    pub(crate) fn write_pid(&self, log: &Log) -> Result<(), Refused> {
        let text = format!("{}\n", std::process::id());
        files::write(&self.pid, text.as_bytes(), files::READABLE).map_err(|e| {
            log.emerg(&failed("open()", &self.pid, &e));
            Refused
        })
    }
}

/// Creates an empty pid file if there is none, as `nginx -t` does to see whether it can.
fn touch(path: &Path) -> std::io::Result<()> {
    files::create(path, files::READABLE).map(drop)
}

/// Looks up the user of the worker; `None` without privilege.
///
/// # Errors
/// There is no such user or group; in nginx's words.
pub(crate) fn who(config: &Config) -> Result<Option<Identity>, String> {
    if !identity::is_root() {
        return Ok(None);
    }
    let found = match &config.main.user {
        Some((user, group)) => identity::lookup(user, group.as_deref()),
        None => identity::lookup_user(paths::USER),
    };
    found.map(Some).map_err(|e| e.to_string())
}

/// Makes a directory for the worker. Unlike nginx: also those above it, which only a package of nginx would have made.
fn make_directory(path: &Path, owner: Option<&Identity>) -> Result<(), String> {
    let make = || files::create_directory(path, files::PRIVATE_DIRECTORY);
    let made = match make() {
        Err(e) if e.kind() == ErrorKind::NotFound => make_parents(path).and_then(|()| make()),
        made => made,
    };
    match made {
        Err(e) if e.kind() != ErrorKind::AlreadyExists => return Err(failed("mkdir()", path, &e)),
        _ => {}
    }
    let Some(owner) = owner else { return Ok(()) };
    files::give_directory(path, owner.uid)
        .map_err(|e| format!("chown(\"{}\", {}) failed ({})", path.display(), owner.uid, errno(&e)))
}

/// Makes the directories above a path. They belong to the user of the master, and others may enter.
fn make_parents(path: &Path) -> std::io::Result<()> {
    let Some(parent) = path.parent() else { return Ok(()) };
    files::create_directories(parent, files::directory_mode(files::READABLE))
}

fn error_targets(config: &Config, environment: &Environment) -> Vec<ErrorLog> {
    if !config.main.error_log.is_empty() {
        return config.main.error_log.clone();
    }
    let path = environment.error_log.clone().unwrap_or_else(|| paths::ERROR_LOG.into());
    let stderr = path == Path::new("stderr");
    let target = if stderr { ErrorLogTarget::Stderr } else { ErrorLogTarget::File(path) };
    vec![ErrorLog { target, level: Level::Error, form: Default::default() }]
}

/// Opens a log file; one of secrets so that no other user can read it.
fn open_any_log(path: &Path) -> std::io::Result<std::fs::File> {
    use std::os::unix::fs::MetadataExt;
    if !key_log::is_key_log(path) {
        return open_log(path);
    }
    let file = files::append(path, files::PRIVATE)?;
    let found = file.metadata()?;
    if found.is_file() && found.mode() & 0o077 != 0 {
        return Err(std::io::Error::other(
            "secrets would be open to other users: remove the file, or chmod 600",
        ));
    }
    Ok(file)
}

fn open_logs(config: &Config, error_log: &[ErrorLog]) -> Result<Logs, String> {
    let of_errors = error_log.iter().filter_map(|log| match &log.target {
        ErrorLogTarget::File(path) => Some(path),
        _ => None,
    });
    let mut logs: Logs = Vec::new();
    let mut known = HashSet::new();
    for path in of_errors.chain(&config.log_files) {
        if known.insert(path) {
            let missing = |e: &std::io::Error| e.kind() == ErrorKind::NotFound;
            let built_in = [paths::ERROR_LOG, paths::HTTP_LOG].iter().any(|p| path == Path::new(p));
            let opened = match open_any_log(path) {
                // A package of nginx would have made the directory.
                Err(e) if missing(&e) && built_in => make_parents(path).and_then(|()| open_any_log(path)),
                opened => opened,
            };
            let file = opened.map_err(|e| failed("open()", path, &e))?;
            logs.push((path.clone(), Arc::new(file.into())));
        }
    }
    Ok(logs)
}
