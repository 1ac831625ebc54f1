//! Virtual hosts, locations, phases, modules, file cache, access log, worker.

pub mod access_log;
pub mod background;
pub mod body;
pub mod cache;
pub mod cidr;
pub mod config;
pub mod connection;
pub mod counters;
pub mod error_log;
pub mod error_page;
pub mod file_cache;
pub mod h2;
pub mod head;
pub mod host_table;
pub mod location;
pub mod log_files;
pub mod metrics;
pub mod modules;
pub mod password;
pub mod pattern;
pub mod phases;
pub mod process;
pub mod reactor;
pub mod request;
pub mod resolver;
pub mod response;
pub mod subrequest;
pub mod symlinks;
pub mod syslog;
#[cfg(test)]
mod testing;
pub mod thread;
pub mod tls;
pub mod upstream;
pub mod variables;
pub mod wire;
pub mod worker;
