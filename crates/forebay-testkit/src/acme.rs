//! An authority for certificates by ACME: Pebble, and beside it `pebble-challtestsrv` as its name server.

use crate::{Done, P256, Running, Site, free_port, wait_for};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Returns the program of Pebble. `./test` builds it, and says so where it cannot.
pub fn pebble() -> Option<PathBuf> {
    let named = std::env::var_os("FOREBAY_TEST_PEBBLE").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = || std::env::split_paths(&path).map(|dir| dir.join("pebble")).find(|p| p.is_file());
    let found = named.or_else(in_path).filter(|p| p.is_file());
    if found.is_none() {
        eprintln!("skipped: FOREBAY_TEST_PEBBLE names no pebble; ./test builds one");
    }
    found
}

/// A running authority, which validates at the ports of a site.
pub struct Authority {
    _processes: [Running; 2],
    /// Port of its management.
    management: u16,
    /// Port at which names are managed.
    names: u16,
}

/// Settings of an authority.
#[derive(Clone, Copy)]
pub struct Settings {
    /// Lifetime of certificates, seconds.
    pub life: u32,
    /// Accounts need an external account.
    pub external: bool,
    /// Name server, in place of one that leads all names to 127.0.0.1.
    pub dns: Option<SocketAddr>,
    /// Port at which names are managed.
    pub names: Option<u16>,
    /// Ports of challenges over HTTP and TLS, in place of those of the site.
    pub ports: Option<(u16, u16)>,
    /// Requests of a hundred whose nonce is refused.
    pub refused_nonces: u8,
}

/// Settings of an authority whose certificates live long.
pub const LONG: Settings =
    Settings { life: 90 * 86_400, external: false, dns: None, names: None, ports: None, refused_nonces: 20 };

/// Posts JSON to a server, whose certificate may be any.
fn post(url: &str, json: &str) {
    let done = Done::of(Command::new("curl").args(["-sSfk", "-d", json, url]));
    assert_eq!(done.code, 0, "{url}: {}", done.err);
}

impl Site {
    /// Makes a certificate that issues others, `NAME.pem` and `NAME.key`.
    pub fn authority(&self, name: &str) {
        self.openssl(&format!(
            "req -x509 -newkey {P256} -nodes -keyout {name}.key -out {name}.pem -days 9 -subj /CN={name}"
        ));
    }

    /// Makes the certificates of an authority's own server.
    pub fn own_certificate(&self) {
        self.authority("ca");
        self.openssl(&format!("req -newkey {P256} -nodes -keyout own.key -out own.csr -subj /CN=localhost"));
        self.write("own.ext", "subjectAltName=IP:127.0.0.1\n");
        let by = "-CA ca.pem -CAkey ca.key -days 9 -extfile own.ext -set_serial 7";
        self.openssl(&format!("x509 -req -in own.csr -out own.pem {by}"));
    }
}

impl Authority {
    /// Starts it for a site whose `%PORT0%` is for HTTP, `%PORT1%` for TLS and `%PORT2%` the authority's.
    pub fn start(site: &Site, program: &Path, settings: Settings) -> Authority {
        let Settings { life, external, .. } = settings;
        let (dns, management) = (free_port(), free_port());
        let names = settings.names.unwrap_or_else(free_port);
        let (http, tls) = settings.ports.unwrap_or_else(|| (site.addr(0).port(), site.addr(1).port()));
        site.own_certificate();
        site.write("pebble.json", format!(
            r#"{{"pebble": {{"listenAddress": "127.0.0.1:%PORT2%", "managementListenAddress": "127.0.0.1:{management}",
            "certificate": "own.pem", "privateKey": "own.key", "httpPort": {http}, "tlsPort": {tls},
            "externalAccountBindingRequired": {external},
            "externalAccountMACKeys": {{"kid-1": "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W"}},
            "retryAfter": {{"authz": 1, "order": 1}}, "keyAlgorithm": "ecdsa",
            "profiles": {{"default": {{"description": "x", "validityPeriod": {life}}}}}}}}}"#
        ));
        let listen = format!("127.0.0.1:{dns}");
        let mut name_server = Command::new(program.with_file_name("pebble-challtestsrv"));
        name_server.args(["-dnsserver", &listen, "-management", &format!("127.0.0.1:{names}")]);
        name_server.args(["-doh", "", "-http01", "", "-https01", "", "-tlsalpn01", "", "-defaultIPv6", ""]);
        let mut pebble = Command::new("sh");
        pebble.args(["-c", "exec \"$@\" >pebble.log 2>&1", "pebble"]).arg(program).current_dir(site.dir());
        pebble.args(["-config", "pebble.json", "-strict", "-dnsserver"]);
        pebble.arg(settings.dns.map_or(listen, |dns| dns.to_string()));
        pebble.env("PEBBLE_VA_NOSLEEP", "1");
        pebble.env("PEBBLE_WFE_NONCEREJECT", settings.refused_nonces.to_string());
        let names_at = SocketAddr::from(([127, 0, 0, 1], names));
        let _processes =
            [Running::start_at(&mut name_server, names_at), Running::start_at(&mut pebble, site.addr(2))];
        Authority { _processes, management, names }
    }

    /// Asks the management of the authority for something.
    pub fn manage(&self, what: &str, json: &str) {
        post(&format!("https://127.0.0.1:{}/{what}", self.management), json);
    }

    /// Has a name lead to an address.
    pub fn rename(&self, name: &str, address: &str) {
        let base = format!("http://127.0.0.1:{}", self.names);
        post(&format!("{base}/clear-a"), &format!("{{\"host\": \"{name}.\"}}"));
        post(&format!("{base}/add-a"), &format!("{{\"host\": \"{name}.\", \"addresses\": [\"{address}\"]}}"));
    }
}

/// Returns what `openssl x509` prints of the certificate that a server presents. `options`: those of the client.
pub fn certificate_at(addr: SocketAddr, options: &str, print: &str) -> String {
    let client = format!("openssl s_client -connect {addr} {options} </dev/null 2>/dev/null");
    Done::of(Command::new("sh").args(["-c", &format!("{client} | openssl x509 -noout {print}")])).out
}

/// Returns issuer, serial number and names of the certificate that a server presents for a name.
pub fn presented_at(addr: SocketAddr, name: &str) -> String {
    certificate_at(addr, &format!("-servername {name}"), "-issuer -serial -ext subjectAltName")
}

/// The same at `%PORT1%`.
pub fn presented(site: &Site, name: &str) -> String {
    presented_at(site.addr(1), name)
}

/// Waits until a server presents a certificate of the authority other than `old`.
pub fn issued(site: &Site, name: &str, old: &str) -> String {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        let shown = presented(site, name);
        if shown.contains("Pebble") && shown != old {
            return shown;
        }
        // With the reason, which the logs have.
        let logs = [site.read("stderr"), site.read("logs/error.log"), site.read("pebble.log")].join("\n");
        assert!(Instant::now() < end, "waited in vain for a certificate; {shown}\n{logs}");
        // Each look starts two programs.
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Returns a certificate of the authority, once a server presents one to clients that accept only signatures by one kind of key.
pub fn issued_with_key(site: &Site, name: &str, kind: &str) -> String {
    let algorithms = if kind == "RSA" { "rsa_pss_rsae_sha256" } else { "ecdsa_secp256r1_sha256" };
    let options = format!("-servername {name} -sigalgs {algorithms}");
    let shown = || certificate_at(site.addr(1), &options, "-text");
    wait_for(kind, || Some(shown()).filter(|text| text.contains("Pebble")))
}
