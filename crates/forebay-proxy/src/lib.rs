//! Upstreams of HTTP: the modules that pass requests on, the protocols spoken to upstreams, and the caches of responses.

#![warn(unreachable_pub)]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests make files as they like"))]

pub mod cache;
pub mod modules;
#[cfg(test)]
mod testing;
pub mod upstream;

#[cfg(test)]
use forebay_server::module::list::List;

/// The modules of this crate and of the base.
#[cfg(test)]
static MODULES: List = &[
    &forebay_server::modules::core::MODULE,
    &forebay_server::modules::log::MODULE,
    &forebay_server::BLOCKS,
    &upstream::MODULE,
    &forebay_server::modules::index::MODULE,
    &modules::early_hints::MODULE,
    &forebay_server::modules::rewrite::MODULE,
    &forebay_server::modules::ssl::MODULE,
    &forebay_server::modules::http2::MODULE,
    &forebay_server::modules::resolver::MODULE,
    &modules::proxy::MODULE,
    &modules::proxy_cache::MODULE,
    &modules::fastcgi::MODULE,
    &modules::uwsgi::MODULE,
    &modules::scgi::MODULE,
    &modules::grpc::MODULE,
    &modules::memcached::MODULE,
    &modules::tunnel::MODULE,
];
