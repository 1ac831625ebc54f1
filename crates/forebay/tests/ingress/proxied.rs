//! Proxies in front: PROXY headers and forwarded fields, and whose count.

use super::{table, tables};

tables! {
    proxy_protocol: "proxy-protocol" [] 1;
    forwarded_addresses_beside_passthrough: "beside-passthrough" ["--enable-ssl-passthrough", "--ssl-passthrough-proxy-port", "%FREE0%"] 1;
}

/// A PROXY header from an address that is not trusted decides nothing, with forwarded fields and without, beside TLS that passes and
/// alone.
#[test]
fn proxy_protocol_of_others() {
    let cases = include_str!("untrusted-proxy.cases");
    let (settings, rest) = cases.split_once("\n\n").expect("settings");
    let passthrough = ["--enable-ssl-passthrough", "--ssl-passthrough-proxy-port", "%FREE0%"];
    // The address of this machine, from which the requests come, is trusted beside passthrough, except at the port for TLS.
    let encrypted = rest.find("== TLS").map_or("", |at| &rest[at..]);
    for setting in ["use-forwarded-headers: true", "use-forwarded-headers: false", "enable-real-ip: true"] {
        assert!(table(&format!("{setting}\n{cases}"), &[]) >= 6, "{setting}");
        assert_eq!(table(&format!("{setting}\n{settings}\n\n{encrypted}"), &passthrough), 1, "{setting}");
    }
}
