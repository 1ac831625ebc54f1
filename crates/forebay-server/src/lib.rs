//! The HTTP front end: virtual hosts, locations, phases, modules, upstreams, caches.

#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests make files as they like"))]

pub mod access_log;
pub mod background;
pub mod body;
pub mod cache;
pub mod compress;
pub mod config;
pub mod connection;
pub mod error_log;
pub mod error_page;
pub mod file_cache;
pub mod file_watch;
pub mod front;
pub mod h2;
pub mod location;
pub mod metrics;
pub mod modules;
pub mod password;
pub mod phases;
pub mod request;
pub mod response;
pub mod subrequest;
pub mod symlinks;
#[cfg(test)]
mod testing;
pub mod thread;
pub mod tls;
pub mod upstream;
pub mod variables;

/// HTTP as the only front end.
pub static FRONT_ENDS: &[&dyn forebay_core::front::FrontEnd] = &[&front::HttpFrontEnd];

pub(crate) use config::HttpContext;
pub(crate) use forebay_core::{keyword, settings};
