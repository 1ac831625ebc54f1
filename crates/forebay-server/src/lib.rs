//! The HTTP front end: virtual hosts, locations, phases, modules, upstreams, caches.

#![warn(unreachable_pub)]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests make files as they like"))]

mod access_log;
mod background;
mod body;
mod cache;
mod compress;
pub mod config;
mod connection;
mod disk;
mod draft;
mod error_log;
mod error_page;
mod file_cache;
mod file_watch;
mod front;
mod h2;
mod h3;
mod location;
mod memory_fs;
mod metrics;
mod module;
mod modules;
mod password;
mod phases;
mod request;
mod response;
mod subrequest;
mod symlinks;
#[cfg(test)]
mod testing;
mod thread;
mod tls;
mod upstream;
mod variables;

/// HTTP as the only front end.
pub static FRONT_ENDS: &[&dyn forebay_core::front::FrontEnd] = &[&front::HttpFrontEnd];

pub(crate) use config::HttpContext;
pub(crate) use forebay_core::{keyword, settings};
pub(crate) use module::settings::module_settings;

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
