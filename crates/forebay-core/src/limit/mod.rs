//! Networks of clients, and shares of connections among them.
//!
//! Zones of `limit_req` and `limit_conn` are tables that all threads share: `rate.rs`, `concurrency/mod.rs`. `zones.rs` finds the zones of
//! the configuration before. With `sync` all replicas share them through a store ([`crate::shared_store`], docs/shared-limits.md):
//! `shared_rate.rs` and `shared_count.rs` are the part of this process.

pub mod access;
pub mod cidr;
pub mod concurrency;
mod keys;
pub mod outcomes;
pub mod rate;
mod shared_count;
pub mod shared_rate;
pub mod shares;
pub mod zones;

use forebay_conf::error::Level;

crate::keyword! {
    /// Level of lines about refused requests and sessions (nginx: limit_req_log_level, limit_conn_log_level).
    pub enum LogLevel { Info = "info", Notice = "notice", Warn = "warn", Error = "error", }
}

impl LogLevel {
    /// Returns the level for the error log.
    pub fn level(self) -> Level {
        match self {
            LogLevel::Info => Level::Info,
            LogLevel::Notice => Level::Notice,
            LogLevel::Warn => Level::Warn,
            LogLevel::Error => Level::Error,
        }
    }
}
