//! Virtual hosts, locations, phases, modules, file cache, access log, worker.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests make files as they like"))]

pub mod access_log;
pub mod background;
pub mod body;
pub mod cache;
pub mod client;
pub mod compress;
pub mod config;
pub mod connection;
pub mod error_log;
pub mod error_page;
pub mod file_cache;
pub mod file_watch;
pub mod h2;
pub mod location;
pub mod log_buffers;
pub mod metrics;
pub mod modules;
pub mod password;
pub mod phases;
pub mod process;
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
pub mod transfers;
pub mod upstream;
pub mod variables;
pub mod worker;
