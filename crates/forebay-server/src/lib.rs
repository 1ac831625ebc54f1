//! The HTTP front end: virtual hosts, locations, phases, modules, upstreams, caches.

#![warn(unreachable_pub)]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests make files as they like"))]

pub mod access_log;
pub mod background;
pub mod body;
pub mod cache;
pub mod compress;
pub mod config;
pub mod connection;
pub mod disk;
pub mod draft;
pub mod error_log;
pub mod error_page;
pub mod file_cache;
pub mod file_watch;
pub mod front;
pub mod h2;
pub mod h3;
pub mod location;
pub mod memory_fs;
pub mod metrics;
pub mod module;
pub mod modules;
pub mod password;
pub mod phases;
pub mod request;
pub mod response;
pub mod subrequest;
pub mod symlinks;
#[cfg(test)]
pub mod testing;
pub mod thread;
pub mod tls;
pub mod upstream;
pub mod variables;

/// HTTP as the only front end.
pub static FRONT_ENDS: &[&dyn forebay_core::front::FrontEnd] = &[&front::HttpFrontEnd];

pub use config::HttpContext;
pub use forebay_core::{keyword, settings};

/// Parts that the program, tools and fuzz targets use without a server.
pub mod parts {
    pub use crate::compress::Coding;
    pub use crate::compress::accept::{Set, rank};
    pub use crate::h3::{start_process as start_quic, succeed as succeed_quic};
    pub use crate::metrics::facts;
    pub use crate::metrics::started;
    pub use crate::modules::ssi::parser as ssi;

    /// Returns the certificates that the http block of a configuration gets by ACME.
    pub fn acme_orders(config: &crate::config::Config) -> Vec<forebay_acme::Order> {
        let numbers = 0..u8::try_from(config.fronts.len()).unwrap_or(u8::MAX);
        let http = numbers.filter_map(|n| config.front::<crate::config::http::Http>(n)).next();
        http.map(|http| http.acme.orders.clone()).unwrap_or_default()
    }

    /// Returns what locations of the http block show of [`facts`]: all of them, and the certificates.
    pub fn shown_facts(config: &crate::config::Config) -> (bool, bool) {
        let numbers = 0..u8::try_from(config.fronts.len()).unwrap_or(u8::MAX);
        let http = numbers.filter_map(|n| config.front::<crate::config::http::Http>(n)).next();
        http.map_or((false, false), |http| (http.is_watched, http.is_watched || http.shows_certificates))
    }

    /// Returns the names of all variables of HTTP. A family ends in `*`.
    pub fn variable_names() -> impl Iterator<Item = &'static str> {
        crate::modules::variables().map(|row| row.name)
    }
}
