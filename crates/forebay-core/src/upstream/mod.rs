//! Upstream groups: servers, the choice of one for a request or session, and connections to them (nginx: upstream). Knows no
//! protocol; a front end evaluates the [`balance::Key`] of a request, and keeps what its protocol needs on a connection.
//!
//! A [`group::Group`] holds its `server` lines and the peers they stand for now, a `PeerSet`, which is replaced as a whole when a name
//! is resolved to something else. The choice (`balance.rs`) knows no request. `peer.rs` has the state of a peer: `Live` are atomics
//! that all threads and the next configuration share, `Shard` the counters that one thread writes. A thread holds the set with its
//! shards as a `LocalSet`. An atomic number tells it when there is a new one. Only the choice among several peers takes the group's
//! lock.
//!
//! Failures count for a server only if it is at fault. Opening a connection fails with a `DialError` (threads) or a `Blamed`
//! (tokio thread, `forebay-net/src/blame.rs`), and a shortage of descriptors, memory or ports here counts for nobody.
//!
//! Work that belongs to the process runs as tasks on the tokio thread for the life of a configuration: names are resolved again
//! (`resolve.rs`), and health is checked. `health/` has the schedule and the connection of a check, each front end has its probe. On a
//! reload the new groups first take over the state of the old ones (`Group::adopt`).

pub mod balance;
pub mod bind;
pub mod config;
pub mod conn;
pub mod dial_error;
pub mod dialing;
pub mod greeting;
pub mod group;
pub(crate) mod hash;
pub mod health;
pub(crate) mod idle;
pub mod lease;
pub mod local;
pub mod peer;
pub mod queue;
pub mod resolve;
pub mod servers;
pub mod sticky;

use std::net::SocketAddr;

/// Appends the address in the name of a server that has been asked (`$upstream_last_addr`): an IP address without its port, or `unix:`
/// with a path. Returns `false` for the name of a group, of which no server could be chosen.
pub fn push_address(name: &[u8], out: &mut Vec<u8>) -> bool {
    if name.starts_with(b"unix:") {
        out.extend_from_slice(name);
        return true;
    }
    let address = std::str::from_utf8(name).ok().and_then(|name| name.parse::<SocketAddr>().ok());
    out.extend(address.iter().flat_map(|a| a.ip().to_string().into_bytes()));
    address.is_some()
}

#[cfg(test)]
mod tests;
