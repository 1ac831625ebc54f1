//! Virtual hosts, locations, phases, modules, file cache, access log, worker.

pub mod config;
pub mod process;
