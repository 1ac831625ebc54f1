//! The program as people start it: one test program, a module for each area.
#![allow(missing_docs)]

mod harness;

mod cache;
mod command_line;
mod compress;
mod differential;
mod http2;
mod load;
mod processes;
mod proxy;
mod robustness;
mod subcommands;
mod tls;
mod tune;
mod upstream;
