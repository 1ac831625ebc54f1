//! Parts that the program, tools and fuzz targets use without a server.

pub use crate::json;
pub use crate::metrics::facts;
pub use crate::ssi::parser as ssi;
use forebay_core::config::Config;
use forebay_server::config::http::Http;
use std::sync::Arc;

/// Returns the certificates that the http block of a configuration gets by ACME.
pub fn acme_orders(config: &Config) -> Vec<forebay_acme::Order> {
    http(config).map(|http| crate::acme::of_http(&http).orders.clone()).unwrap_or_default()
}

/// Returns what locations of the http block show of [`facts`]: all of them, and the certificates.
pub fn shown_facts(config: &Config) -> (bool, bool) {
    http(config).map_or((false, false), |http| (http.is_watched, http.is_watched || http.shows_certificates))
}

fn http(config: &Config) -> Option<Arc<Http>> {
    let numbers = 0..u8::try_from(config.fronts.len()).unwrap_or(u8::MAX);
    numbers.filter_map(|n| config.front::<Http>(n)).next()
}

/// Returns the names of all variables of HTTP. A family ends in `*`.
pub fn variable_names() -> impl Iterator<Item = &'static str> {
    crate::MODULES.iter().flat_map(|module| module.variables).copied().flatten().map(|row| row.name)
}
