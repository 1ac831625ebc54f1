//! The base of the HTTP front end: virtual hosts, locations, connections, requests, phases, responses, files.

#![warn(unreachable_pub)]
#![cfg_attr(test, allow(clippy::disallowed_methods, reason = "tests make files as they like"))]

use forebay_core::blocks;
use module::Module;
use module::list::List;

pub mod access_log;
pub mod background;
pub mod body;
pub mod config;
pub mod connection;
pub mod counting;
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
pub mod module;
pub mod modules;
pub mod phases;
pub mod request;
pub mod response;
pub mod shelf;
pub mod subrequest;
pub mod symlinks;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
pub mod thread;
pub mod tls;
pub mod variables;
pub mod way;

/// The modules of the base alone.
pub static MODULES: List = &[
    &modules::core::MODULE,
    &modules::log::MODULE,
    &BLOCKS,
    &modules::index::MODULE,
    &modules::rewrite::MODULE,
    &modules::ssl::MODULE,
    &modules::http2::MODULE,
    &modules::resolver::MODULE,
];

/// Blocks and zones that HTTP has in common with other front ends.
pub static BLOCKS: Module = Module {
    http_directives: &[
        ("upstream", config::upstreams::block),
        ("map", blocks::map::block),
        ("num_map", blocks::num_map::block),
        ("geo", blocks::geo::block),
        ("split_clients", blocks::split_clients::block),
        ("time_format", blocks::time_format::directive),
        ("shared_store", forebay_core::shared_store::directive),
    ],
    ..Module::NONE
};

/// HTTP as the only front end, with the modules of the base.
pub static FRONT_ENDS: &[&dyn forebay_core::front::FrontEnd] = &[&front::HttpFrontEnd::new(MODULES)];

/// Parts that the program and fuzz targets use without a server.
pub mod parts {
    pub use crate::counting::started;
    pub use crate::h3::{start_process as start_quic, succeed as succeed_quic};
    pub use crate::response::coding::{Coding, Set, rank};
}
