//! From the tree to an immutable [`Config`].

pub mod checks;
pub mod http;
pub mod listen;
pub mod main_settings;
pub mod mime_types;
pub mod names;
pub mod scope;
pub mod value;

pub use scope::Scope;

use forebay_conf::error::{Error, Level};
use forebay_conf::files::Files;
use forebay_conf::tree::{Block, Directive, Tree};
use forebay_conf::units;
use main_settings::{Affinity, MainSettings, WorkerCount};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

/// Paths given on the command line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    /// `-p`, ends with a slash.
    pub prefix: PathBuf,
    /// Absolute path of the configuration file (`-c`).
    pub conf_path: PathBuf,
    /// `-g`.
    pub globals: String,
    /// `-e`; `None` is the built-in default.
    pub error_log: Option<PathBuf>,
    /// Access log that is written when the configuration names none, below the prefix unless absolute.
    pub access_log: String,
}

impl Environment {
    /// A temporary directory that the configuration does not name: below the prefix that was given, or where
    /// distributions have it (the access log is absolute there, too).
    fn temp_path(&self, installed: &str, relative: &str) -> PathBuf {
        match self.access_log.starts_with('/') {
            true => PathBuf::from(installed),
            false => self.prefix.join(relative),
        }
    }
}

/// Address that a listener is bound to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ListenAddr {
    /// TCP.
    Inet(SocketAddr),
    /// `unix:PATH`.
    Unix(PathBuf),
}

impl ListenAddr {
    /// Whether connections may come to more than one local address.
    pub fn is_wildcard(&self) -> bool {
        matches!(self, ListenAddr::Inet(a) if a.ip().is_unspecified())
    }
}

/// Options of a listening socket (nginx: listen).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SocketOptions {
    /// `backlog=`; the default is 511.
    pub backlog: Option<i32>,
    /// `rcvbuf=`, bytes.
    pub rcvbuf: Option<usize>,
    /// `sndbuf=`, bytes.
    pub sndbuf: Option<usize>,
    /// `fastopen=`, queue length.
    pub fastopen: Option<i32>,
    /// `deferred`, and `deferred=off`, which nginx does not have; the default is on.
    pub deferred: Option<bool>,
    /// `ipv6only=`; the default is on.
    pub ipv6only: Option<bool>,
    /// `reuseport` was written. Every TCP listener gets one socket per thread either way.
    pub reuseport: bool,
    /// `so_keepalive=`.
    pub so_keepalive: Option<KeepaliveProbes>,
    /// `multipath`.
    pub multipath: bool,
}

/// `so_keepalive=on|off|[idle]:[interval]:[count]`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeepaliveProbes {
    /// Whether probes are on.
    pub on: bool,
    /// Seconds of idling before the first probe.
    pub idle: Option<u32>,
    /// Seconds between probes.
    pub interval: Option<u32>,
    /// Number of probes.
    pub count: Option<u32>,
}

/// One socket address to be opened.
#[derive(Clone, Debug)]
pub struct Listener {
    /// Address.
    pub addr: ListenAddr,
    /// As written, for messages (`0.0.0.0:80`).
    pub text: String,
    /// Socket options.
    pub options: SocketOptions,
}

/// The whole configuration, immutable once built.
#[derive(Debug, Default)]
pub struct Config {
    /// Settings of the top level and of `events`.
    pub main: MainSettings,
    /// Sockets to open.
    pub listeners: Vec<Listener>,
    /// Log files with constant names that the master opens (access and error logs), each once.
    pub log_files: Vec<PathBuf>,
    /// Directories that must exist, made by the master for the worker's user (temp paths).
    pub temp_paths: Vec<PathBuf>,
    /// Default temporary directories, without a directive. Failing to create one is not fatal.
    pub default_temp_paths: Vec<PathBuf>,
    /// Default of `client_body_temp_path`.
    pub client_body_temp: PathBuf,
    /// Default of `proxy_temp_path`.
    pub proxy_temp: PathBuf,
    /// The http block.
    pub http: http::Http,
    /// `-p`, with its final slash.
    pub prefix: Vec<u8>,
    /// Default of `root`: `html` below the prefix.
    pub default_root: Vec<u8>,
}

/// Reads, checks and builds a configuration.
///
/// # Errors
/// The error that nginx would have reported first. Warnings go to the second part of the result.
pub fn load(env: &Environment, files: &mut Files) -> Result<(Config, Vec<Error>), Error> {
    let (built, mut errors) = load_all(env, files);
    match built {
        Some(c) if !errors.iter().any(|e| e.level == Level::Emerg) => Ok((c, errors)),
        _ => {
            errors.sort_by_key(|e| e.ordinal);
            let first = errors.iter().position(|e| e.level == Level::Emerg);
            Err(first
                .map_or_else(|| plain("the configuration could not be built"), |i| errors.swap_remove(i)))
        }
    }
}

/// Reads, checks and builds a configuration, and finds all its errors (`forebay check`). With an error of level emerg among
/// them the configuration lacks what was refused, and must not be used.
pub fn load_all(env: &Environment, files: &mut Files) -> (Option<Config>, Vec<Error>) {
    let dir = env.conf_path.parent().map_or_else(|| env.prefix.clone(), PathBuf::from);
    let parsed = forebay_conf::parse::parse(&env.conf_path, &env.globals, &dir, files);
    let mut errors = parsed.errors;
    let fatal = errors.iter().any(|e| e.level == Level::Emerg);
    if fatal && parsed.tree.root.items.is_empty() {
        // If the file cannot be read, do not report what it lacks.
        return (None, errors);
    }
    let single = errors.len();
    let config = match build(env, files, &parsed.tree, &mut errors) {
        Ok(c) => Some(c),
        Err(e) => {
            errors.push(e);
            None
        }
    };
    let refused: Vec<Vec<u8>> = (errors.iter().enumerate())
        .filter(|(i, e)| e.level == Level::Emerg && (*i < single || e.ordinal != u32::MAX))
        .filter_map(|(_, e)| directive_of(e, &parsed.tree.root, files))
        .collect();
    errors.retain(|e| e.ordinal != u32::MAX || !follows(&e.message, &refused));
    drop(parsed.tree);
    if config.as_ref().is_some_and(|c| c.http.locations.len() > MANY) {
        // Building takes several times the memory of the result, and a reload has freed the former configuration.
        forebay_sys::heap::trim();
    }
    (config, errors)
}

/// Errors that may follow from others: beginnings of their texts, and the directives that would have defined the
/// missing thing. An unknown directive may define anything, so its error hides those of unknown variables.
const CONSEQUENCES: &[(&str, &[&str])] = &[
    ("zero size shared memory zone", &["limit_req_zone", "limit_conn_zone", "_cache_path", "zone"]),
    ("\"proxy_cache\" zone", &["_cache_path"]),
    (
        "unknown \"",
        &[
            "map",
            "geo",
            "set",
            "split_clients",
            "if",
            "location",
            "rewrite",
            "server_name",
            "auth_request_set",
            "userid",
        ],
    ),
    ("no \"ssl_certificate\"", &["ssl_certificate", "ssl_certificate_key", "listen"]),
    ("no resolver defined", &["resolver"]),
    ("match \"", &["match"]),
    ("host not found in upstream", &["upstream"]),
    ("no port in upstream", &["upstream"]),
    ("no servers are inside upstream", &["server"]),
];

/// Tells whether an error may only follow from directives that were refused.
fn follows(message: &str, refused: &[Vec<u8>]) -> bool {
    CONSEQUENCES.iter().filter(|(start, _)| message.starts_with(start)).any(|(start, definers)| {
        refused.iter().any(|name| {
            let unknown = forebay_conf::grammar::rows(name).is_empty() && start.starts_with("unknown");
            unknown || definers.iter().any(|d| name == d.as_bytes() || name.ends_with(d.as_bytes()))
        })
    })
}

/// Finds the name of the directive of an error. One that is not in the tree is told by the first word of its line.
fn directive_of(error: &Error, tree: &Block, files: &Files) -> Option<Vec<u8>> {
    fn find(block: &Block, ordinal: u32) -> Option<&Directive> {
        block.iter().find_map(|d| match &d.block {
            _ if d.ordinal == ordinal => Some(d),
            Some(inner) if d.name.text != b"include" => find(inner, ordinal),
            _ => None,
        })
    }
    if let Some(d) = find(tree, error.ordinal) {
        return Some(d.name.text.clone());
    }
    let at = error.span.or(error.at)?;
    let line = files.bytes(at.file).split(|b| *b == b'\n').nth(at.line.checked_sub(1)? as usize)?;
    let word = line.trim_ascii_start().split(|b| b.is_ascii_whitespace() || *b == b';').next()?;
    Some(word.to_vec())
}

/// Levels with settings of a configuration for which giving memory back is worth the time.
const MANY: usize = 1000;

pub(crate) fn plain(message: &str) -> Error {
    Error {
        level: Level::Emerg,
        message: message.into(),
        span: None,
        at: None,
        hint: None,
        ordinal: u32::MAX,
    }
}

/// Builds a configuration. Errors are kept among the warnings.
///
/// # Errors If an error leaves nothing to continue with.
fn build(
    env: &Environment,
    files: &mut Files,
    tree: &Tree,
    warnings: &mut Vec<Error>,
) -> Result<Config, Error> {
    let mut config = Config { prefix: env.prefix.as_os_str().as_bytes().to_vec(), ..Config::default() };
    if config.prefix.last() != Some(&b'/') {
        config.prefix.push(b'/');
    }
    config.default_root = [config.prefix.as_slice(), b"html"].concat();
    let mut cx = Scope::new(env, files, warnings);
    let mut pools = checks::Pools::default();
    checks::tree(&tree.root, &mut pools, &mut cx);
    blocks(&tree.root, &mut config, &mut cx)?;
    check_processes(&config, &mut cx);
    if let Some(e) = pools.missing() {
        cx.keep_late(e);
    }
    add_default_error_log(&mut config.main, env, &mut cx);
    config.log_files = std::mem::take(&mut cx.log_files);
    config.temp_paths = cx.directories.drain(..).map(|d| d.path).collect();
    add_temp_paths(&mut config, env);
    config.http.logs_sent_fields = [b"sent_http_".as_slice(), b"upstream_http_", b"upstream_cookie_"]
        .iter()
        .any(|prefix| cx.vars.uses_prefix(prefix));
    let unknown;
    (config.http.vars, unknown) = cx.vars.finish();
    warnings.extend(unknown.iter().map(|m| plain(m)));
    Ok(config)
}

/// Reads the directives of the main level and their blocks.
///
/// # Errors If a block that is allowed once occurs twice.
fn blocks(root: &Block, config: &mut Config, cx: &mut Scope<'_>) -> Result<(), Error> {
    let (mut http_seen, mut events_seen) = (false, false);
    for d in root {
        match d.name.text.as_slice() {
            b"http" => {
                if std::mem::replace(&mut http_seen, true) {
                    return Err(cx.error(d, "\"http\" directive is duplicate"));
                }
                cx.end = d.block.as_ref().and_then(|block| block.end);
                let mut b = http::Builder::new(cx);
                d.block.iter().for_each(|block| b.http_block(block));
                (config.http, config.listeners) = b.finish();
            }
            b"events" => {
                if std::mem::replace(&mut events_seen, true) {
                    return Err(cx.error(d, "\"events\" directive is duplicate"));
                }
                for e in d.block.iter().flatten() {
                    let taken = events_directive(e, &mut config.main, cx);
                    cx.keep(taken);
                }
            }
            _ => {
                let taken = main_directive(d, &mut config.main, cx);
                cx.keep(taken);
            }
        }
    }
    if !events_seen {
        cx.keep_late(plain("no \"events\" section in configuration"));
    }
    Ok(())
}

/// Checks settings of processes that depend on others.
fn check_processes(config: &Config, cx: &mut Scope<'_>) {
    if let (Affinity::Masks(masks), Some(WorkerCount::Count(n))) =
        (&config.main.worker_cpu_affinity, config.main.worker_processes)
        && masks.len() > 1
        && masks.len() != n
    {
        let text = "the number of \"worker_processes\" is not equal to the number of \"worker_cpu_affinity\" masks, \
                    using last mask for remaining worker processes";
        cx.warnings.push(Error { level: Level::Warn, ..plain(text) });
    }
    if config.main.worker_connections == Some(0) {
        let text =
            format!("0 worker_connections are not enough for {} listening sockets", config.listeners.len());
        cx.keep_late(plain(&text));
    }
}

/// Adds the default error log if the main level has none.
fn add_default_error_log(main: &mut MainSettings, env: &Environment, cx: &mut Scope<'_>) {
    let Some(path) = env.error_log.as_ref().filter(|_| main.error_log.is_empty()) else { return };
    let target = if path.as_os_str() == "stderr" {
        main_settings::ErrorLogTarget::Stderr
    } else {
        let full = cx.full_path(path.as_os_str().as_bytes());
        cx.log_file(full.clone());
        main_settings::ErrorLogTarget::File(full)
    };
    main.error_log.push(main_settings::ErrorLog { target, level: Level::Error });
}

/// Sets the temporary directories, and those of them that are used without a directive.
fn add_temp_paths(config: &mut Config, env: &Environment) {
    config.client_body_temp = env.temp_path("/var/lib/nginx/body", "client_body_temp");
    config.proxy_temp = env.temp_path("/var/lib/nginx/proxy", "proxy_temp");
    let servers = config.http.locations.iter().skip(1);
    if servers.clone().any(|l| l.settings.core.client_body_temp_path.0.is_none()) {
        config.default_temp_paths.push(config.client_body_temp.clone());
    }
    let proxies = |l: &http::Location| matches!(l.content, Some(crate::modules::Content::Proxy(_)));
    if servers.clone().any(|l| proxies(l) && l.settings.proxy.temp_path.0.is_none()) {
        config.default_temp_paths.push(config.proxy_temp.clone());
    }
}

/// Names that [`events_directive`] takes.
#[cfg(test)]
pub const EVENTS_DIRECTIVES: &[&str] = &["worker_connections"];

fn events_directive(d: &Directive, m: &mut MainSettings, cx: &mut Scope<'_>) -> Result<(), Error> {
    if d.name.text == b"worker_connections" {
        value::once(&m.worker_connections, d, cx)?;
        let n = units::number(value::first(d)).ok_or_else(|| invalid_number(d, cx))?;
        m.worker_connections = Some(n as usize);
    }
    Ok(())
}

fn invalid_number(d: &Directive, cx: &Scope<'_>) -> Error {
    match d.args.first() {
        Some(w) => cx.error_at(d, w, format!("invalid number \"{}\"", w.as_str())),
        None => cx.directive_error(d, "invalid number"),
    }
}

/// Names that [`blocks`] and [`main_directive`] take.
#[cfg(test)]
pub const MAIN_DIRECTIVES: &[&str] = &[
    "http",
    "events",
    "daemon",
    "master_process",
    "pid",
    "working_directory",
    "user",
    "worker_processes",
    "worker_cpu_affinity",
    "worker_priority",
    "worker_rlimit_nofile",
    "worker_rlimit_core",
    "worker_shutdown_timeout",
    "env",
    "error_log",
];

fn main_directive(d: &Directive, m: &mut MainSettings, cx: &mut Scope<'_>) -> Result<(), Error> {
    use value::Setting;
    fn set<T: Setting>(slot: &mut Option<T>, d: &Directive, cx: &mut Scope<'_>) -> Result<(), Error> {
        *slot = Some(T::take(slot.take(), d, cx)?);
        Ok(())
    }
    let text = || d.args.first().map(|w| w.as_str().into_owned()).unwrap_or_default();
    match d.name.text.as_slice() {
        b"daemon" => set(&mut m.daemon, d, cx)?,
        b"master_process" => set(&mut m.master_process, d, cx)?,
        b"pid" => set(&mut m.pid, d, cx)?,
        b"working_directory" => {
            value::once(&m.working_directory, d, cx)?;
            m.working_directory = Some(PathBuf::from(text()));
        }
        b"user" => {
            value::once(&m.user, d, cx)?;
            m.user = Some((text(), d.args.get(1).map(|w| w.as_str().into_owned())));
        }
        b"worker_processes" => {
            value::once(&m.worker_processes, d, cx)?;
            m.worker_processes = Some(match value::first(d) {
                b"auto" => WorkerCount::Auto,
                n => WorkerCount::Count(
                    units::number(n)
                        .filter(|n| *n > 0 && *n < 10_000)
                        .ok_or_else(|| cx.directive_error(d, "invalid value"))? as usize,
                ),
            });
        }
        b"worker_cpu_affinity" => {
            if m.worker_cpu_affinity != Affinity::Unset {
                return Err(cx.error(d, "\"worker_cpu_affinity\" directive is duplicate"));
            }
            m.worker_cpu_affinity = affinity(d, cx)?;
        }
        b"worker_priority" => {
            value::once(&m.worker_priority, d, cx)?;
            let t = value::first(d);
            let (neg, digits) = t.strip_prefix(b"-").map_or((false, t), |r| (true, r));
            let n = units::number(digits)
                .and_then(|n| i32::try_from(n).ok())
                .ok_or_else(|| cx.directive_error(d, "invalid number"))?;
            m.worker_priority = Some(if neg { -n } else { n });
        }
        b"worker_rlimit_nofile" => {
            value::once(&m.worker_rlimit_nofile, d, cx)?;
            m.worker_rlimit_nofile =
                Some(units::number(value::first(d)).ok_or_else(|| cx.directive_error(d, "invalid number"))?);
        }
        b"worker_rlimit_core" => {
            value::once(&m.worker_rlimit_core, d, cx)?;
            m.worker_rlimit_core =
                Some(units::offset(value::first(d)).ok_or_else(|| cx.directive_error(d, "invalid value"))?);
        }
        b"worker_shutdown_timeout" => {
            value::once(&m.worker_shutdown_timeout, d, cx)?;
            m.worker_shutdown_timeout = Some(
                units::duration_ms(value::first(d)).ok_or_else(|| cx.directive_error(d, "invalid value"))?,
            );
        }
        b"env" => {
            let t = text();
            m.env.push(match t.split_once('=') {
                Some((k, v)) => (k.to_owned(), Some(v.to_owned())),
                None => (t, None),
            });
        }
        b"error_log" => {
            let log = crate::modules::log::error_log(d, cx)?;
            m.error_log.push(log);
        }
        _ => {}
    }
    Ok(())
}

fn affinity(d: &Directive, cx: &Scope<'_>) -> Result<Affinity, Error> {
    let mask = |t: &[u8]| -> Result<Vec<bool>, Error> {
        let mut bits = Vec::new();
        for b in t.iter().rev() {
            match b {
                b'0' => bits.push(false),
                b'1' => bits.push(true),
                b' ' => {}
                c => {
                    return Err(cx.error(
                        d,
                        format!("invalid character \"{}\" in \"worker_cpu_affinity\"", char::from(*c)),
                    ));
                }
            }
        }
        if bits.len() > 1024 {
            return Err(cx.error(d, "\"worker_cpu_affinity\" supports up to 1024 CPUs only"));
        }
        Ok(bits)
    };
    if value::first(d) == b"auto" {
        return match d.args.as_slice() {
            [_] => Ok(Affinity::Auto(None)),
            [_, m] => Ok(Affinity::Auto(Some(mask(&m.text)?))),
            _ => Err(cx.error(d, "invalid number of arguments in \"worker_cpu_affinity\" directive")),
        };
    }
    Ok(Affinity::Masks(d.args.iter().map(|w| mask(&w.text)).collect::<Result<_, _>>()?))
}
