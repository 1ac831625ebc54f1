//! Ports of listeners that this machine has given to another program.

use forebay_k8s::gateway::GatewayObjects;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;

/// Time between looks at ports that were taken.
pub(crate) const PAUSE: Duration = Duration::from_secs(5);

/// Returns the address that a configuration was refused for: it could not be opened.
pub(crate) fn unopened(reason: &str) -> Option<SocketAddr> {
    let (_, rest) = reason.split_once("bind() to ")?;
    rest.split_once(" failed")?.0.trim().parse().ok()
}

/// Sets the listeners of an address aside. Returns `false` if none wants it, or if that has been done already.
pub(crate) fn set_aside(objects: &mut GatewayObjects, address: SocketAddr, reason: &str) -> bool {
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
        let text = |reason: &str| unopened(reason).map(|a| a.to_string());
        assert_eq!(
            text("bind() to 0.0.0.0:80 failed (98: Address already in use)").as_deref(),
            Some("0.0.0.0:80")
        );
        assert_eq!(text("bind() to [::]:80 failed (13: Permission denied)").as_deref(), Some("[::]:80"));
        assert_eq!(text("unknown directive \"bind() to x\""), None);
        assert_eq!(text("bind() to unix:/a failed (98: Address already in use)"), None);
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
