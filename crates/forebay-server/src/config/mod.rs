//! From the tree to an immutable [`Config`].

pub mod main_settings;

use forebay_conf::error::Error;
use forebay_conf::files::Files;
use main_settings::MainSettings;
use std::net::SocketAddr;
use std::path::PathBuf;

/// What the command line says about where things are.
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
}

/// Address that a listener is bound to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ListenAddr {
    /// TCP.
    Inet(SocketAddr),
    /// `unix:PATH`.
    Unix(PathBuf),
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
    /// `deferred`.
    pub deferred: bool,
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
}

/// Reads, checks and builds a configuration.
///
/// # Errors
/// The error that nginx would have reported first. Warnings go to the second part of the result.
pub fn load(env: &Environment, files: &mut Files) -> Result<(Config, Vec<Error>), Error> {
    let _ = (env, files);
    Ok((Config::default(), Vec::new()))
}
