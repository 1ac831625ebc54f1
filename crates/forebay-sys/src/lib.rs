//! Functions of the kernel that safe crates lack; the only crate with `unsafe` code.
//!
//! The program uses it to find out about the machine ([`cpus`], [`limits`]), to change what the process is
//! ([`identity`], [`closed`], [`daemon`], [`affinity`]), to pass descriptors ([`fds`]), to make files with a mode ([`files`]) and to keep
//! lines of logs where they outlive the process ([`log_area`]). Small things that all other crates need are here too:
//! error numbers in nginx's words ([`errno`]), texts of others ([`printable`]), locks ([`sync`]), futures in memory that is used
//! again ([`pooled`]), states and values of many types ([`states`], [`any`]), random and serial numbers ([`random`], [`serial`]).

#![warn(unreachable_pub)]

pub mod affinity;
pub mod alloc;
pub mod any;
pub mod child;
pub mod closed;
pub mod cpus;
pub mod daemon;
pub mod datagrams;
pub mod errno;
pub mod fds;
pub mod files;
pub mod heap;
pub mod identity;
pub mod limits;
pub mod log_area;
pub mod pooled;
pub mod printable;
pub mod random;
pub mod serial;
pub mod sockets;
pub mod states;
pub mod sync;
