//! Modules of the base: the settings of servers and locations that all others build upon (nginx: ngx_http_core_module and what it
//! comes with).

use crate::module::Module;
use crate::module::list::List;
use forebay_core::blocks;

pub mod alt_svc;
pub mod core;
pub mod http2;
pub mod index;
pub mod log;
pub mod resolver;
pub mod rewrite;
pub mod route;
pub mod server;
pub mod ssl;
pub mod static_file;
pub mod vars;

/// Settings of `ssl_*` that all front ends have.
pub use forebay_core::tls::settings as tls;

/// The modules of the base alone.
pub static BASE: List =
    &[&core::MODULE, &log::MODULE, &BLOCKS, &index::MODULE, &rewrite::MODULE, &ssl::MODULE];

/// Blocks and zones that HTTP has in common with other front ends.
pub static BLOCKS: Module = Module {
    http_directives: &[
        ("upstream", crate::config::upstreams::block),
        ("map", blocks::map::block),
        ("geo", blocks::geo::block),
        ("split_clients", blocks::split_clients::block),
        ("shared_store", forebay_core::shared_store::directive),
    ],
    ..Module::NONE
};
