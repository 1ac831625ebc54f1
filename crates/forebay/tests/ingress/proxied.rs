//! Proxies in front: PROXY headers and forwarded fields, and whose count.

use super::table;
use forebay_testkit::free_pair;

#[test]
fn proxy_protocol() {
    table(include_str!("proxy-protocol.cases"), &[]);
}

/// A PROXY header from an address that is not trusted decides nothing, with forwarded fields and without, beside TLS that passes and
/// alone.
#[test]
fn proxy_protocol_of_others() {
    let cases = include_str!("untrusted-proxy.cases");
    let (settings, rest) = cases.split_once("\n\n").expect("settings");
    let port = free_pair().to_string();
    let passthrough = ["--enable-ssl-passthrough", "--ssl-passthrough-proxy-port", port.as_str()];
    // The address of this machine, from which the requests come, is trusted beside passthrough, except at the port for TLS.
    let encrypted = rest.find("== TLS").map_or("", |at| &rest[at..]);
    for setting in ["use-forwarded-headers: true", "use-forwarded-headers: false", "enable-real-ip: true"] {
        assert!(table(&format!("{setting}\n{cases}"), &[]) >= 6, "{setting}");
        assert_eq!(table(&format!("{setting}\n{settings}\n\n{encrypted}"), &passthrough), 1, "{setting}");
    }
}

/// X-Forwarded-For counts at the port for HTTP beside TLS that passes.
#[test]
fn forwarded_addresses_beside_passthrough() {
    let text = "access-log-path: /dev/null\nuse-forwarded-headers: true\n\n== an address\n/ Prefix web\n> GET /\nX-Forwarded-For: 1.2.3.4\n< 200 web\nsaw X-Forwarded-For: 1.2.3.4\nsaw X-Real-IP: 1.2.3.4\n";
    let port = free_pair().to_string();
    table(text, &["--enable-ssl-passthrough", "--ssl-passthrough-proxy-port", &port]);
}
