//! Ports of listeners that this machine has given to another program.

use forebay_k8s::gateway::GatewayObjects;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;

/// Time between looks at ports that were taken.
pub(crate) const PAUSE: Duration = Duration::from_secs(5);

/// Returns the addresses that a configuration was refused for, since they could not be opened, each with the reason.
fn unopened(reason: &str) -> Vec<(SocketAddr, &str)> {
    let failures =
        reason.split("; ").filter_map(|text| text.find("bind() to ").and_then(|at| text.get(at..)));
    let address = |text: &str| text.strip_prefix("bind() to ")?.split_once(" failed")?.0.parse().ok();
    failures.filter_map(|text| Some((address(text)?, text))).collect()
}

/// Sets the listeners of all addresses aside that a configuration was refused for. Returns `false` if nobody wants any of them, or if
/// that has been done already.
pub(crate) fn set_all_aside(objects: &mut GatewayObjects, reason: &str) -> bool {
    unopened(reason).into_iter().fold(false, |any, (address, text)| set_aside(objects, address, text) | any)
}

/// Sets the listeners of an address aside. Returns `false` if none wants it, or if that has been done already.
fn set_aside(objects: &mut GatewayObjects, address: SocketAddr, reason: &str) -> bool {
    let mut changed = false;
    for udp in [false, true] {
        if objects.wants_port(udp, address.port()) && !objects.taken.contains_key(&(udp, address)) {
            changed |= objects.set_taken((udp, address), Some(reason.to_owned()));
        }
    }
    changed
}

/// Looks whether ports that were taken are free again, or wanted no more. Returns `true` if any is.
pub(crate) fn take_back(objects: &mut GatewayObjects) -> bool {
    let taken: Vec<(bool, SocketAddr)> = objects.taken.keys().copied().collect();
    let mut changed = false;
    for (udp, address) in taken {
        if !objects.wants_port(udp, address.port()) || is_free(udp, address) {
            changed |= objects.set_taken((udp, address), None);
        }
    }
    changed
}

/// Returns `true` if a socket can be opened. One that this process must not open may be one of the master's, which has more rights:
/// it stays set aside until the program starts again, as rights do not change.
fn is_free(udp: bool, address: SocketAddr) -> bool {
    let opened = if udp { UdpSocket::bind(address).map(drop) } else { TcpListener::bind(address).map(drop) };
    match opened {
        Ok(()) => true,
        Err(error) => !matches!(
            error.kind(),
            ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable | ErrorKind::PermissionDenied
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_k8s::Key;
    use forebay_k8s::gateway::GatewayKind;
    use serde_json::json;

    #[test]
    fn reasons_name_addresses() {
        let of = |reason: &str| unopened(reason).into_iter().map(|(a, _)| a.to_string()).collect::<Vec<_>>();
        let both = "still could not bind(): bind() to 0.0.0.0:80 failed (98: Address already in use); \
                    bind() to [::]:80 failed (98: Address already in use)";
        assert_eq!(of(both), ["0.0.0.0:80", "[::]:80"]);
        assert_eq!(of("bind() to [::]:80 failed (13: Permission denied)"), ["[::]:80"]);
        assert_eq!(of("unknown directive \"bind() to x\""), [""; 0]);
        assert_eq!(of("bind() to unix:/a failed (98: Address already in use)"), [""; 0]);
    }

    #[test]
    fn a_port_is_taken_back_when_it_is_free() {
        let mut objects = GatewayObjects::default();
        let busy = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = busy.local_addr().expect("an address");
        assert!(!set_aside(&mut objects, address, "no one wants it"));
        let spec = json!({ "gatewayClassName": "c", "listeners": [{ "name": "a", "protocol": "HTTP", "port": address.port() }] });
        let gateway = json!({ "metadata": { "name": "g", "namespace": "n" }, "spec": spec });
        objects.apply(GatewayKind::Gateway, Key::new("n", "g"), gateway).expect("a Gateway");
        assert!(set_aside(&mut objects, address, "taken"));
        assert!(!set_aside(&mut objects, address, "taken"), "once is enough");
        assert!(!take_back(&mut objects), "it is taken still");
        drop(busy);
        assert!(take_back(&mut objects));
        assert!(objects.taken.is_empty());
        // One that nobody wants any more is forgotten.
        assert!(set_aside(&mut objects, address, "taken"));
        objects.delete(GatewayKind::Gateway, &Key::new("n", "g"));
        let _busy = TcpListener::bind(address).expect("the port");
        assert!(take_back(&mut objects));
    }
}
