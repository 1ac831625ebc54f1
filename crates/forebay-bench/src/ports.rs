//! Ports for servers that are about to be started on this machine.

use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};

/// Returns a TCP port of 127.0.0.1 that is free now, another one each time. It is below those that outgoing connections
/// take, the load's among them: one of these could have it by the time the server is started, or started again.
///
/// # Errors
/// There is none.
pub fn free_port() -> std::io::Result<u16> {
    const FIRST: u32 = 10_000;
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let low = range.split_whitespace().next().and_then(|n| n.parse().ok()).unwrap_or(32_768u32);
    // One of the tuner's knobs lets outgoing connections have more.
    let room = low.min(15_000).saturating_sub(FIRST);
    // Two processes begin at different places.
    let start = std::process::id().wrapping_mul(7919);
    for _ in 0..room.min(1000) {
        let at = start.wrapping_add(TAKEN.fetch_add(1, Ordering::Relaxed)) % room;
        let port = u16::try_from(FIRST + at).unwrap_or_default();
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_differ_are_free_and_are_not_those_of_clients() {
        let range = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").expect("Linux");
        let low: u16 = range.split_whitespace().next().expect("a range").parse().expect("a number");
        let ports: std::collections::BTreeSet<u16> = (0..50).map(|_| free_port().expect("a port")).collect();
        assert_eq!(ports.len(), 50);
        for port in ports {
            assert!(low <= 10_000 || port < low, "{port} {low}");
            assert!(TcpListener::bind(("127.0.0.1", port)).is_ok(), "{port}");
        }
    }
}
