//! Settings of the top level and of the `events` block.

use forebay_conf::error::Level;
use std::path::PathBuf;
use std::time::Duration;

/// `worker_processes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WorkerCount {
    /// As many as the machine, affinity and cgroups give (the default here).
    #[default]
    Auto,
    /// A number.
    Count(usize),
}

/// `worker_cpu_affinity`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Affinity {
    /// Not given.
    #[default]
    Unset,
    /// `auto [mask]`.
    Auto(Option<Vec<bool>>),
    /// One mask a worker, the last one repeats; bit 0 is CPU 0.
    Masks(Vec<Vec<bool>>),
}

/// Destination of the lines of an `error_log` directive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ErrorLogTarget {
    /// A file, absolute.
    File(PathBuf),
    /// `stderr`.
    Stderr,
    /// `syslog:...`.
    Syslog(std::sync::Arc<crate::log::syslog::Syslog>),
}

/// One `error_log` directive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ErrorLog {
    /// Target.
    pub target: ErrorLogTarget,
    /// Least severe level that is written.
    pub level: Level,
    /// Form of the lines.
    pub form: Form,
}

/// Form of the lines of an error log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// As nginx writes them.
    #[default]
    Text,
    /// A JSON object a line (`json`; Angie: `format=json`).
    Json,
}

/// Settings of the top level and of `events`. `None` means: not in the file.
#[derive(Clone, Debug, Default)]
#[allow(missing_docs)]
pub struct MainSettings {
    pub daemon: Option<bool>,
    pub master_process: Option<bool>,
    pub user: Option<(String, Option<String>)>,
    /// Absolute.
    pub pid: Option<PathBuf>,
    pub worker_processes: Option<WorkerCount>,
    pub worker_cpu_affinity: Affinity,
    pub worker_priority: Option<i32>,
    pub worker_rlimit_nofile: Option<u64>,
    pub worker_rlimit_core: Option<u64>,
    pub worker_shutdown_timeout: Option<Duration>,
    pub worker_stall_timeout: Option<Duration>,
    pub working_directory: Option<PathBuf>,
    /// `env NAME` or `env NAME=VALUE`.
    pub env: Vec<(String, Option<String>)>,
    pub worker_connections: Option<usize>,
    pub error_log: Vec<ErrorLog>,
}
