//! The real ports 80, 443 and 53, in a network namespace. The directories of the system, in a mount namespace.

use super::*;
use forebay_testkit::{Done, Server, Site};

/// Set inside of the namespace.
const INSIDE: &str = "FOREBAY_TEST_NAMESPACE";

/// Runs a test of this program in a network namespace of its own, as [`in_own`].
pub(super) fn in_namespace(test: &str) -> bool {
    let is_inside = in_own("--net", test);
    if is_inside {
        let up = Command::new("ip").args(["link", "set", "lo", "up"]).status();
        assert!(up.is_ok_and(|s| s.success()), "ip link set lo up");
    }
    is_inside
}

/// Runs a test of this program in a mount namespace of its own, as [`in_own`]. Inside, these directories are empty.
pub(super) fn in_empty(directories: &[&str], test: &str) -> bool {
    let is_inside = in_own("--mount", test);
    for directory in directories.iter().filter(|_| is_inside) {
        let mounted =
            Command::new("mount").args(["-t", "tmpfs", "-o", "mode=755", "tmpfs", directory]).status();
        assert!(mounted.is_ok_and(|s| s.success()), "mount {directory}");
    }
    is_inside
}

/// Runs a test of this program in a namespace of its own. Returns `true` inside. Elsewhere the test is over: it has been run, or
/// cannot be. In CI it has to be possible.
fn in_own(kind: &str, test: &str) -> bool {
    if std::env::var_os(INSIDE).is_some() {
        return true;
    }
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: a namespace needs root");
        assert!(std::env::var_os("CI").is_none(), "CI has to run it as root");
        return false;
    }
    let program = std::env::current_exe().expect("this program");
    let mut unshare = Command::new("unshare");
    unshare.arg(kind).arg(program).args(["--exact", test, "--nocapture", "--test-threads=1"]);
    let done = Done::of(unshare.env(INSIDE, "1"));
    assert!(done.code == 0 && done.out.contains("1 passed"), "{}", done.all());
    false
}

/// `acme on` by HTTP-01 or TLS-ALPN-01, and a wildcard by answering DNS.
#[test]
fn the_real_ports() {
    let Some(program) = pebble() else { return };
    if !in_namespace("acme::namespace::the_real_ports") {
        return;
    }
    let by = |challenge: &str, names: &str| {
        let site = Site::new(format!(
            "events {{}} error_log logs/error.log notice;\n\
             http {{ access_log off; acme on; acme_issuer default {{ uri https://127.0.0.1:%PORT2%/dir; \
             ssl_trusted_certificate %DIR%/ca.pem; accept_terms_of_service; state_path %DIR%/default; challenge {challenge}; }}\n\
             server {{ listen 127.0.0.1:%PORT0%; listen 80; listen 443 ssl; listen 127.0.0.1:%PORT1% ssl; \
               server_name {names}; location / {{ return 200 here; }} }} }}\n"
        ));
        let dns = (challenge == "dns-01").then(|| SocketAddr::from(([127, 0, 0, 1], 53)));
        let _authority = Authority::start(&site, &program, Settings { ports: Some((80, 443)), dns, ..LONG });
        let server = Server::start_on(site);
        issued(&server.site, "x.a.test", "")
    };
    assert!(by("http-01", "a.test").contains("DNS:a.test"));
    assert!(by("tls-alpn-01", "a.test").contains("DNS:a.test"));
    assert!(by("dns-01", "*.a.test").contains("DNS:*.a.test"));
}
