//! Modules of the base: the settings of servers and locations that all others build upon (nginx: ngx_http_core_module and the modules
//! that come with it).

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
