//! From the tree of a file to an immutable [`Config`]: the main level, and what all front ends share.
//!
//! `scope.rs` holds the state of a build, `value.rs` the typed values of directives, `listen.rs`, `addresses.rs` and `names.rs` read
//! virtual servers and their addresses. A front end reads its own block ([`FrontEnd::read`]).
//!
//! Errors are collected: errors of single directives in reading order, then errors of the whole (`Build::keep_late`). Errors that only
//! follow from a refused directive are left out.

pub mod access_log;
mod addresses;
pub mod checks;
pub mod error_log;
pub mod listen;
mod main_level;
pub mod main_settings;
pub mod memory;
pub mod names;
pub mod networks;
pub mod resolver;
mod scope;
mod shared_zones;
pub mod value;

pub use addresses::{Lacking, Listening, check_certificates, listeners};
pub use main_level::{EVENTS_DIRECTIVES, main_directives};
pub use memory::Memory;
pub use scope::{Build, Context, Effects, LogBuffer, Main, Scope};

use crate::front::{FrontConfig, FrontEnd};
use crate::upstream::group::Group;
use forebay_conf::error::{Error, Level};
use forebay_conf::files::Files;
use forebay_conf::parse::Parsed;
use forebay_conf::tree::{Block, Directive, FileId, Tree};
use listen::AddressOptions;
use main_settings::{Affinity, MainSettings, WorkerCount};
use names::NameTable;
use std::any::Any;
use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

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
    /// Returns a temporary directory that the configuration does not name: `relative` below the prefix, or `installed` if the
    /// built-in access log is absolute, as in distributions.
    pub fn temp_path(&self, installed: &str, relative: &str) -> PathBuf {
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
    /// UDP. A listener of TCP may have the same port.
    Udp(SocketAddr),
    /// `unix:PATH`.
    Unix(PathBuf),
    /// `unix:PATH` with `udp`.
    UnixDatagram(PathBuf),
}

impl ListenAddr {
    /// Returns the IP address and port; `None` for a unix address.
    pub fn inet(&self) -> Option<SocketAddr> {
        match self {
            ListenAddr::Inet(a) | ListenAddr::Udp(a) => Some(*a),
            ListenAddr::Unix(_) | ListenAddr::UnixDatagram(_) => None,
        }
    }

    /// Returns `true` for a socket that receives datagrams and accepts no connections.
    pub fn is_udp(&self) -> bool {
        matches!(self, ListenAddr::Udp(_) | ListenAddr::UnixDatagram(_))
    }

    /// Returns the path of a unix address.
    pub fn path(&self) -> Option<&Path> {
        match self {
            ListenAddr::Unix(path) | ListenAddr::UnixDatagram(path) => Some(path),
            ListenAddr::Inet(_) | ListenAddr::Udp(_) => None,
        }
    }

    /// Returns `true` if connections or datagrams may come to more than one local address.
    pub fn is_wildcard(&self) -> bool {
        self.inet().is_some_and(|a| a.ip().is_unspecified())
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
    /// `deferred`, and `deferred=off`, which nginx does not have; the default is on for HTTP and off for others.
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
    /// Probes are on.
    pub on: bool,
    /// Seconds of idling before the first probe.
    pub idle: Option<u32>,
    /// Seconds between probes.
    pub interval: Option<u32>,
    /// Number of probes.
    pub count: Option<u32>,
}

/// One socket address to be opened, with the virtual servers of its connections.
#[derive(Clone, Debug)]
pub struct Listener {
    /// Address.
    pub addr: ListenAddr,
    /// As written, for messages (`0.0.0.0:80`).
    pub text: String,
    /// Socket options.
    pub options: SocketOptions,
    /// `tcp_nodelay` for its connections; `None`: as the system does.
    pub nodelay: Option<bool>,
    /// Number of the front end that serves its connections.
    pub front: u8,
    /// Background work of the front end has its sockets, and threads do not (see [`crate::outside::Outside::sockets`]). There are as
    /// many as threads all the same, which a reload may give to a server.
    pub outside: bool,
    /// Servers of connections to any local address that is not in `exact`.
    pub default: Address,
    /// Local addresses with servers of their own: a wildcard socket may stand for several.
    pub exact: Vec<(SocketAddr, Address)>,
}

impl Listener {
    /// Creates a listener of the front end of this number, whose connections all have the same servers.
    pub fn new(addr: ListenAddr, options: SocketOptions, front: u8, default: Address) -> Listener {
        let text = addr.to_string();
        Listener { addr, text, options, nodelay: None, front, outside: false, default, exact: Vec::new() }
    }

    /// Creates a listener for background work of the front end of this number.
    pub fn outside(addr: ListenAddr, front: u8) -> Listener {
        let listener = Listener::new(addr, SocketOptions::default(), front, Address::default());
        Listener { outside: true, ..listener }
    }

    /// Returns the address that a connection to a local address came to; `local` may be missing unless there are several.
    pub fn address(&self, local: Option<SocketAddr>) -> Option<&Address> {
        if self.exact.is_empty() {
            return Some(&self.default);
        }
        let local = local?;
        Some(self.exact.iter().find(|(a, _)| *a == local).map_or(&self.default, |(_, a)| a))
    }
}

/// One listen address with its virtual servers, which are numbered by their front end.
#[derive(Clone, Debug, Default)]
pub struct Address {
    /// Index of the default server.
    pub default_server: usize,
    /// Other servers by name.
    pub names: NameTable,
    /// `proxy_protocol`, `ssl` and the like.
    pub options: AddressOptions,
    /// No other server than the default one listens here.
    pub has_one_server: bool,
}

impl Address {
    /// Returns `true` if a name belongs to a server. As in nginx constant names of an only server count for nothing.
    pub fn has_server_of(&self, name: &[u8]) -> bool {
        let counts = !self.has_one_server || self.names.has_patterns();
        counts && !matches!(self.names.find(name), Ok(None))
    }
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
    /// Files of certificates and keys, which may be renewed.
    pub certificate_files: Vec<PathBuf>,
    /// Connections to upstreams may come from foreign addresses (nginx: `proxy_bind ... transparent`), so the worker process
    /// keeps the capability for that.
    pub transparent: bool,
    /// `-p`, with its final slash.
    pub prefix: Vec<u8>,
    /// Configuration of each front end, by its number.
    pub fronts: Vec<Arc<dyn Any + Send + Sync>>,
    /// Upstream groups of all front ends, with the names of their blocks.
    pub groups: Vec<(&'static str, Arc<Group>)>,
}

impl Config {
    /// Returns the groups that the `upstream` blocks of a front end define. `block` is the name of the front end's block.
    pub fn upstreams(&self, block: &str) -> impl Iterator<Item = &Arc<Group>> {
        let groups = self.groups.iter().filter(move |(of, group)| *of == block && group.explicit);
        groups.map(|(_, group)| group)
    }

    /// Returns the configuration of the front end of this number. `None` if it has another type.
    pub fn front<T: Any + Send + Sync>(&self, number: u8) -> Option<Arc<T>> {
        self.fronts.get(usize::from(number))?.clone().downcast().ok()
    }
}

/// Reads, checks and builds a configuration. Warnings go to the second part of the result.
///
/// # Errors
/// The error that nginx would have reported first.
pub fn load(
    env: &Environment,
    files: &mut Files,
    fronts: &[&dyn FrontEnd],
) -> Result<(Config, Vec<Error>), Error> {
    let (built, errors) = load_all(env, files, fronts);
    without_errors(built, errors)
}

/// Reads, checks and builds a part of a configuration. `narrow` takes away what is not wanted between reading and checking. Returns
/// also the warnings and the tree that is left.
///
/// # Errors
/// As [`load`], errors in what was taken away left out.
pub fn load_part(
    env: &Environment,
    files: &mut Files,
    fronts: &[&dyn FrontEnd],
    narrow: impl FnOnce(&mut Tree),
) -> Result<(Config, Vec<Error>, Tree), Error> {
    let mut parsed = parsed(env, files);
    narrow(&mut parsed.tree);
    let tree = parsed.tree.clone();
    let Loaded { config, errors, .. } = build_parsed(env, files, fronts, parsed, None);
    without_errors(config, errors).map(|(config, warnings)| (config, warnings, tree))
}

fn parsed(env: &Environment, files: &mut Files) -> Parsed {
    let dir = env.conf_path.parent().map_or_else(|| env.prefix.clone(), PathBuf::from);
    forebay_conf::parse::parse(&env.conf_path, &env.globals, &dir, files)
}

/// Returns a configuration with its warnings, or the first of its errors.
fn without_errors(built: Option<Config>, errors: Vec<Error>) -> Result<(Config, Vec<Error>), Error> {
    match built {
        Some(c) if !errors.iter().any(|e| e.level == Level::Emerg) => Ok((c, errors)),
        _ => Err(first_error(errors)),
    }
}

/// Returns the error that nginx would have reported first.
fn first_error(mut errors: Vec<Error>) -> Error {
    errors.sort_by_key(|e| e.ordinal);
    let first = errors.iter().position(|e| e.level == Level::Emerg);
    first.map_or_else(|| plain("the configuration could not be built"), |i| errors.swap_remove(i))
}

/// Reads, checks and builds a configuration, and finds all its errors (`forebay check`). With an error of level emerg among
/// them the configuration lacks what was refused, and must not be used.
pub fn load_all(
    env: &Environment,
    files: &mut Files,
    fronts: &[&dyn FrontEnd],
) -> (Option<Config>, Vec<Error>) {
    let parsed = parsed(env, files);
    let Loaded { config, errors, .. } = build_parsed(env, files, fronts, parsed, None);
    (config, errors)
}

/// Configuration that was built, with its errors and warnings.
struct Loaded {
    config: Option<Config>,
    errors: Vec<Error>,
    again: Option<memory::Again>,
}

/// Builds a configuration that has been parsed, and finds all its errors. `again`: see [`memory`].
fn build_parsed(
    env: &Environment,
    files: &mut Files,
    fronts: &[&dyn FrontEnd],
    parsed: Parsed,
    again: Option<memory::Again>,
) -> Loaded {
    let mut errors = parsed.errors;
    let fatal = errors.iter().any(|e| e.level == Level::Emerg);
    if fatal && parsed.tree.root.items.is_empty() {
        // If the file cannot be read, do not report what it lacks.
        return Loaded { config: None, errors, again };
    }
    let single = errors.len();
    let (config, levels, again) = match build(Source { env, again }, files, &parsed.tree, &mut errors, fronts)
    {
        Ok((config, levels, again)) => (Some(config), levels, again),
        Err(e) => {
            errors.push(e);
            (None, 0, None)
        }
    };
    let places = fatal_among(&errors).then(|| Places::new(&parsed.tree.root));
    let refused: Vec<RefusedDirective> = (errors.iter().enumerate())
        .filter(|(i, e)| {
            let is_first = *i < single || e.ordinal != u32::MAX || e.message.starts_with(NO_CERTIFICATE_FILE);
            e.level == Level::Emerg && is_first
        })
        .filter_map(|(_, e)| refused_directive(e, places.as_ref()?, files))
        .collect();
    errors.retain(|e| {
        // An error with a place of its own is one that only certain mistakes explain.
        let follows =
            places.as_ref().is_some_and(|places| follows_in_place(e, places, &parsed.tree.root, &refused))
                || e.ordinal == u32::MAX && follows(&e.message, &refused);
        !follows
    });
    drop(parsed.tree);
    if levels > MANY {
        // Building takes several times the memory of the result, and a reload has freed the former configuration.
        forebay_sys::heap::trim();
    }
    Loaded { config, errors, again }
}

/// Errors that may follow from others: beginnings of their texts, and the directives that would have defined the
/// missing thing. An unknown directive may define anything, so its error hides those of unknown variables.
const CONSEQUENCES: &[(&str, &[&str])] = &[
    (
        "zero size shared memory zone",
        &["limit_req_zone", "limit_conn_zone", "keyval_zone", "_cache_path", "zone"],
    ),
    ("\"proxy_cache\" zone", &["_cache_path"]),
    (
        "unknown \"",
        &[
            "map",
            "num_map",
            "json_set",
            "keyval",
            "time_format",
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
    ("no \"ssl_certificate\"", &["listen"]),
    ("no resolver defined", &["resolver"]),
    ("match \"", &["match"]),
    ("host not found in upstream", &["upstream"]),
    ("no port in upstream", &["upstream"]),
    ("no servers are inside upstream", &["server"]),
];

fn fatal_among(errors: &[Error]) -> bool {
    errors.iter().any(|e| e.level == Level::Emerg)
}

/// Beginning of the error about a file of a certificate or key, which comes late, and from which others follow.
const NO_CERTIFICATE_FILE: &str = "cannot load certificate";

/// Directive that was refused.
struct RefusedDirective {
    name: Vec<u8>,
    /// Number of the `upstream` or `server` block around it, with the first argument of that block.
    block: Option<(u32, Vec<u8>)>,
}

/// Tells whether an error that has a place follows from what was refused in a block: a server without the certificate that could not
/// be read, or a group that is not there because one of its lines is wrong.
fn follows_in_place(error: &Error, places: &Places<'_>, root: &Block, refused: &[RefusedDirective]) -> bool {
    if error.message.starts_with("no \"ssl_certificate\"") {
        let server = places.of(error).and_then(|(_, around)| around).map(|d| d.ordinal);
        return refused.iter().filter(|r| r.name.starts_with(b"ssl_certificate")).any(|r| {
            // Outside of all servers, it is the certificate of all.
            r.block.as_ref().is_none_or(|(refused, _)| server.is_none_or(|server| server == *refused))
        });
    }
    let group = error.message.strip_prefix("host not found in upstream \"").and_then(|m| m.split('"').next());
    let is_group = |name: &str| {
        let groups = |block: &Block| block.iter().any(|d| is_block_of(d, b"upstream", name));
        groups(root) || root.iter().filter_map(|d| d.block.as_ref()).any(groups)
    };
    group.is_some_and(|name| {
        let in_it = |r: &RefusedDirective| r.block.as_ref().is_some_and(|(_, word)| word == name.as_bytes());
        is_group(name) && refused.iter().any(in_it)
    })
}

fn is_block_of(d: &Directive, name: &[u8], word: &str) -> bool {
    d.name.text == name && d.args.first().is_some_and(|w| w.text == word.as_bytes())
}

/// Tells whether an error may only follow from directives that were refused.
fn follows(message: &str, refused: &[RefusedDirective]) -> bool {
    CONSEQUENCES.iter().filter(|(start, _)| message.starts_with(start)).any(|(start, definers)| {
        refused.iter().map(|r| &r.name).any(|name| {
            let unknown = forebay_conf::grammar::rows(name).is_empty() && start.starts_with("unknown");
            unknown || definers.iter().any(|d| name == d.as_bytes() || name.ends_with(d.as_bytes()))
        })
    })
}

/// Directives of a tree by their numbers and by their ends, with the `upstream` or `server` block around each.
struct Places<'t> {
    by_ordinal: HashMap<u32, Found<'t>>,
    by_end: HashMap<(FileId, u32), Found<'t>>,
}

type Found<'t> = (&'t Directive, Option<&'t Directive>);

impl<'t> Places<'t> {
    fn new(tree: &'t Block) -> Places<'t> {
        let mut places = Places { by_ordinal: HashMap::new(), by_end: HashMap::new() };
        places.add(tree, None);
        places
    }

    fn add(&mut self, block: &'t Block, around: Option<&'t Directive>) {
        for d in block.iter() {
            self.by_ordinal.entry(d.ordinal).or_insert((d, around));
            self.by_end.entry((d.end.file, d.end.start)).or_insert((d, around));
            if let Some(inner) = d.block.as_ref().filter(|_| d.name.text != b"include") {
                let is_owner = matches!(d.name.text.as_slice(), b"upstream" | b"server");
                self.add(inner, if is_owner { Some(d) } else { around });
            }
        }
    }

    /// Returns the directive of an error; errors without a number have its end.
    fn of(&self, error: &Error) -> Option<Found<'t>> {
        match (error.ordinal, error.at) {
            (u32::MAX, Some(at)) => self.by_end.get(&(at.file, at.start)).copied(),
            (ordinal, _) => self.by_ordinal.get(&ordinal).copied(),
        }
    }
}

/// Finds the directive of an error. If it is not in the tree, its name is the first word of the line.
fn refused_directive(error: &Error, places: &Places<'_>, files: &Files) -> Option<RefusedDirective> {
    if let Some((d, around)) = places.of(error) {
        let word = |d: &Directive| d.args.first().map(|w| w.text.clone()).unwrap_or_default();
        return Some(RefusedDirective {
            name: d.name.text.clone(),
            block: around.map(|around| (around.ordinal, word(around))),
        });
    }
    let at = error.span.or(error.at)?;
    let line = files.bytes(at.file).split(|b| *b == b'\n').nth(at.line.checked_sub(1)? as usize)?;
    let word = line.trim_ascii_start().split(|b| b.is_ascii_whitespace() || *b == b';').next()?;
    Some(RefusedDirective { name: word.to_vec(), block: None })
}

/// Levels with settings of a configuration for which giving memory back is worth the time.
const MANY: usize = 1000;

/// Creates an error without a place, which sorts behind those of directives.
pub fn plain(message: &str) -> Error {
    Error {
        level: Level::Emerg,
        message: message.into(),
        span: None,
        at: None,
        hint: None,
        ordinal: u32::MAX,
    }
}

/// Origin of a configuration.
struct Source<'a> {
    env: &'a Environment,
    /// Memory of the configuration before.
    again: Option<memory::Again>,
}

/// Builds a configuration, and counts its levels with settings. Errors are kept among the warnings.
///
/// # Errors
/// If an error leaves nothing to continue with.
fn build(
    source: Source<'_>,
    files: &mut Files,
    tree: &Tree,
    warnings: &mut Vec<Error>,
    fronts: &[&dyn FrontEnd],
) -> Result<(Config, usize, Option<memory::Again>), Error> {
    let Source { env, again } = source;
    let mut config = Config { prefix: env.prefix.as_os_str().as_bytes().to_vec(), ..Config::default() };
    if config.prefix.last() != Some(&b'/') {
        config.prefix.push(b'/');
    }
    let mut cx = Build::new(env, files, warnings);
    cx.again = again;
    let mut pools = checks::Pools::default();
    checks::tree(&tree.root, &mut pools, &mut cx);
    let mut reading = Reading { config, fronts, read: fronts.iter().map(|_| None).collect(), levels: 0 };
    let mut cx = reading.blocks(&tree.root, cx)?;
    let Reading { mut config, levels, .. } = reading;
    check_processes(&config, &mut cx);
    if let Some(e) = pools.missing() {
        cx.keep_late(e);
    }
    add_default_error_log(&mut config.main, env, &mut cx);
    config.transparent = cx.transparent;
    config.log_files = std::mem::take(&mut cx.log_files);
    config.temp_paths = cx.directories.drain(..).map(|d| d.path).collect();
    Ok((config, levels, cx.again.take()))
}

/// Configuration whose main level is being read.
struct Reading<'f> {
    config: Config,
    fronts: &'f [&'f dyn FrontEnd],
    /// Configurations of the front ends whose blocks have been read, by their numbers.
    read: Vec<Option<Arc<dyn Any + Send + Sync>>>,
    /// Number of levels with settings.
    levels: usize,
}

impl Reading<'_> {
    /// Reads the directives of the main level and their blocks.
    ///
    /// # Errors
    /// If a block that is allowed once occurs twice.
    fn blocks<'a>(&mut self, root: &Block, build: Build<'a>) -> Result<Build<'a>, Error> {
        let mut cx = Scope::main(build);
        // The http block makes orders for certificates of servers in other blocks.
        for d in root {
            if let Some(front) = self.fronts.iter().find(|f| f.block().as_bytes() == d.name.text) {
                front.announce(d, &mut cx.build);
            }
        }
        let mut events = false;
        for d in root {
            if let Some(number) = self.fronts.iter().position(|f| f.block().as_bytes() == d.name.text) {
                once(self.read.get(number).is_some_and(Option::is_some), d, &cx)?;
                cx = Scope::main(self.front(number, Some(d), cx.build));
            } else if d.name.text == b"events" {
                once(std::mem::replace(&mut events, true), d, &cx)?;
                main_level::events_block(d, &mut self.config.main, &mut cx);
            } else {
                let taken = main_level::main_directive(d, &mut self.config.main, &mut cx);
                cx.keep(taken);
            }
        }
        if !events {
            cx.keep_late(plain("no \"events\" section in configuration"));
        }
        Ok(self.finish(cx.build))
    }

    /// Has the front ends without a block make their configurations.
    fn finish<'a>(&mut self, mut build: Build<'a>) -> Build<'a> {
        for number in 0..self.fronts.len() {
            if self.read.get(number).is_some_and(Option::is_none) {
                build = self.front(number, None, build);
            }
        }
        self.config.fronts = std::mem::take(&mut self.read).into_iter().flatten().collect();
        build
    }

    /// Has a front end read its block; `None`: the configuration has none.
    fn front<'a>(&mut self, number: usize, d: Option<&Directive>, mut build: Build<'a>) -> Build<'a> {
        let Some(front) = self.fronts.get(number) else { return build };
        build.end = d.and_then(|d| d.block.as_ref()).and_then(|block| block.end);
        let (read, build) = front.read(number as u8, d.and_then(|d| d.block.as_ref()), build);
        let FrontConfig { config, listeners, default_temp_paths, certificate_files, groups, levels } = read;
        if let Some(place) = self.read.get_mut(number) {
            *place = Some(config);
        }
        self.levels += levels;
        self.config.listeners.extend(listeners);
        self.config.groups.extend(groups.into_iter().map(|group| (front.block(), group)));
        self.config.default_temp_paths.extend(default_temp_paths);
        self.config.certificate_files.extend(certificate_files);
        build
    }
}

/// Refuses a block that has been read before.
fn once(seen: bool, d: &Directive, cx: &Build<'_>) -> Result<(), Error> {
    match seen {
        true => Err(cx.error(d, format!("\"{}\" directive is duplicate", d.name.as_str()))),
        false => Ok(()),
    }
}

/// Checks settings of processes that depend on others.
fn check_processes(config: &Config, cx: &mut Build<'_>) {
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
fn add_default_error_log(main: &mut MainSettings, env: &Environment, cx: &mut Build<'_>) {
    let Some(path) = env.error_log.as_ref().filter(|_| main.error_log.is_empty()) else { return };
    let target = if path.as_os_str() == "stderr" {
        main_settings::ErrorLogTarget::Stderr
    } else {
        let full = cx.full_path(path.as_os_str().as_bytes());
        cx.log_file(full.clone());
        main_settings::ErrorLogTarget::File(full)
    };
    main.error_log.push(main_settings::ErrorLog {
        target,
        level: Level::Error,
        form: main_settings::Form::Text,
    });
}
