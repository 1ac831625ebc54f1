//! Parts that every front end needs and that know no protocol: process, threads, configuration, variables, logs, limits.
//!
//! Variables, patterns, limits and logs are generic over the trait [`vars::Evaluate`], which requests and sessions implement. Setters
//! of directives are generic over a `Context` ([`config`]): a block of the main level with variables and tables of its own.

#![warn(unreachable_pub)]

pub mod blocks;
pub mod client;
pub mod clock;
pub mod config;
pub mod control;
pub mod counters;
pub mod digest;
pub mod essential;
pub mod front;
pub mod greeting;
pub mod histogram;
pub mod idle_memory;
pub mod keyval;
pub mod latency;
pub mod limit;
pub mod log;
pub mod outside;
pub mod pattern;
pub mod process;
pub mod shared_store;
pub mod status_zone;
pub mod strftime;
pub mod tasks;
pub mod thread;
pub mod tls;
pub mod trace;
pub mod transfers;
pub mod upstream;
pub mod vars;
pub mod watchdog;
pub mod worker;

pub use forebay_conf::NGINX_VERSION;
