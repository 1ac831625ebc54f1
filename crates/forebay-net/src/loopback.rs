//! Congestion control of connections between programs on one machine.
//!
//! BBR paces the bytes of a connection, at the price of a timer interrupt for every few segments, and probes a path that has
//! neither a bottleneck nor loss. Connections over the loopback device use Reno where the system's default is BBR.

use rustix::net::sockopt::{set_tcp_congestion, tcp_congestion};
use std::os::fd::AsFd;
use std::sync::OnceLock;

/// Replaces BBR of a TCP socket by Reno. Connections take it from their listener. Where it cannot be set, the socket keeps the
/// system's choice.
pub fn spare_pacing(socket: impl AsFd) {
    if is_paced(&socket) {
        let _ = set_tcp_congestion(socket, "reno");
    }
}

/// Does the same for a new TCP socket. The first call asks for the system's default; that saves later ones a system call.
pub(crate) fn spare_default_pacing(socket: impl AsFd) {
    static PACED: OnceLock<bool> = OnceLock::new();
    if *PACED.get_or_init(|| is_paced(&socket)) {
        let _ = set_tcp_congestion(socket, "reno");
    }
}

fn is_paced(socket: impl AsFd) -> bool {
    tcp_congestion(socket).is_ok_and(|name| name.starts_with("bbr"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketType, socket};

    #[test]
    fn sockets_of_loopback_are_not_paced() {
        let socket = socket(AddressFamily::INET, SocketType::STREAM, None).expect("socket");
        let set = |name: &str| set_tcp_congestion(&socket, name).is_ok();
        // Both are modules that a kernel may lack.
        for (name, after) in [("bbr", "reno"), ("cubic", "cubic"), ("reno", "reno")] {
            if set(name) {
                spare_pacing(&socket);
                assert_eq!(tcp_congestion(&socket).expect("name"), after, "{name}");
            }
        }
    }
}
