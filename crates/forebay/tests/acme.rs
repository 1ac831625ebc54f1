//! Certificates by ACME: Pebble is the authority, `openssl s_client` the client.

mod account;
mod certbot;
mod dns;
mod doctor;
mod faults;
mod language;
mod namespace;
mod one_line;

use forebay_testkit::{P256, Server, Site, free_port, program, wait_for, wait_until};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Pebble, and beside it `pebble-challtestsrv`. `./test` builds both, and says so where it cannot.
fn pebble() -> Option<PathBuf> {
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
struct Authority {
    processes: Vec<Child>,
    /// Port of its management.
    management: u16,
    /// Port at which names are managed.
    names: u16,
}

impl Drop for Authority {
    fn drop(&mut self) {
        for process in &mut self.processes {
            let _ = process.kill();
            let _ = process.wait();
        }
    }
}

/// Settings of an authority.
#[derive(Clone, Copy)]
struct Settings {
    /// Lifetime of certificates, seconds.
    life: u32,
    /// Accounts need an external account.
    external: bool,
    /// Name server, in place of one that leads all names to 127.0.0.1.
    dns: Option<SocketAddr>,
    /// Port at which names are managed.
    names: Option<u16>,
    /// Ports of challenges over HTTP and TLS, in place of those of the site.
    ports: Option<(u16, u16)>,
    /// Requests of a hundred whose nonce is refused.
    refused_nonces: u8,
}

/// Makes a certificate that issues others, `NAME.pem` and `NAME.key`.
fn own_authority(site: &Site, name: &str) {
    site.openssl(&format!(
        "req -x509 -newkey {P256} -nodes -keyout {name}.key -out {name}.pem -days 9 -subj /CN={name}"
    ));
}

/// Makes the certificates of an authority's own server.
fn own_certificate(site: &Site) {
    own_authority(site, "ca");
    site.openssl(&format!("req -newkey {P256} -nodes -keyout own.key -out own.csr -subj /CN=localhost"));
    site.write("own.ext", "subjectAltName=IP:127.0.0.1\n");
    let by = "-CA ca.pem -CAkey ca.key -days 9 -extfile own.ext -set_serial 7";
    site.openssl(&format!("x509 -req -in own.csr -out own.pem {by}"));
}

/// Posts JSON to a server, whose certificate may be any.
fn post(url: &str, json: &str) {
    let done = Command::new("curl").args(["-sSfk", "-d", json, url]).output().expect("curl");
    assert!(done.status.success(), "{url}: {}", String::from_utf8_lossy(&done.stderr));
}

impl Authority {
    /// Starts it for a site whose `%PORT0%` is for HTTP, `%PORT1%` for TLS and `%PORT2%` the authority's.
    fn start(site: &Site, program: &Path, settings: Settings) -> Authority {
        let dir = site.dir();
        let Settings { life, external, .. } = settings;
        let (dns, management) = (free_port(), free_port());
        let names = settings.names.unwrap_or_else(free_port);
        let (http, tls) = settings.ports.unwrap_or_else(|| (site.addr(0).port(), site.addr(1).port()));
        own_certificate(site);
        site.write("pebble.json", format!(
            r#"{{"pebble": {{"listenAddress": "127.0.0.1:%PORT2%", "managementListenAddress": "127.0.0.1:{management}",
            "certificate": "own.pem", "privateKey": "own.key", "httpPort": {http}, "tlsPort": {tls},
            "externalAccountBindingRequired": {external},
            "externalAccountMACKeys": {{"kid-1": "zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W"}},
            "retryAfter": {{"authz": 1, "order": 1}}, "keyAlgorithm": "ecdsa",
            "profiles": {{"default": {{"description": "x", "validityPeriod": {life}}}}}}}}}"#
        ));
        let listen = format!("127.0.0.1:{dns}");
        let name_server = Command::new(program.with_file_name("pebble-challtestsrv"))
            .args(["-dnsserver", &listen, "-doh", "", "-http01", "", "-https01", "", "-tlsalpn01", ""])
            .args(["-defaultIPv6", "", "-management", &format!("127.0.0.1:{names}")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("pebble-challtestsrv");
        let log = std::fs::File::create(dir.join("pebble.log")).expect("file");
        let authority = Command::new(program)
            .args(["-config", "pebble.json", "-strict", "-dnsserver"])
            .arg(settings.dns.map_or(listen, |dns| dns.to_string()))
            .current_dir(dir)
            .env("PEBBLE_VA_NOSLEEP", "1")
            .env("PEBBLE_WFE_NONCEREJECT", settings.refused_nonces.to_string())
            .stdout(log.try_clone().expect("file"))
            .stderr(log)
            .spawn()
            .expect("pebble");
        let all = Authority { processes: vec![name_server, authority], management, names };
        wait_for("pebble", || std::net::TcpStream::connect(site.addr(2)).ok());
        wait_for("the name server", || std::net::TcpStream::connect(("127.0.0.1", names)).ok());
        all
    }

    /// Asks the management of the authority for something.
    fn manage(&self, what: &str, json: &str) {
        post(&format!("https://127.0.0.1:{}/{what}", self.management), json);
    }

    /// Has a name lead to an address.
    fn rename(&self, name: &str, address: &str) {
        let base = format!("http://127.0.0.1:{}", self.names);
        post(&format!("{base}/clear-a"), &format!("{{\"host\": \"{name}.\"}}"));
        post(&format!("{base}/add-a"), &format!("{{\"host\": \"{name}.\", \"addresses\": [\"{address}\"]}}"));
    }
}

/// Runs `forebay acme` on a site.
fn acme(site: &Site, wish: &str, names: &[&str]) -> (Option<i32>, String) {
    let done = Command::new(program())
        .args(["acme", wish, "-p"])
        .arg(site.dir())
        .args(["-c", "nginx.conf"])
        .args(names)
        .output()
        .expect("runs");
    (done.status.code(), String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned())
}

/// Issuer, serial number and names of the certificate that a server presents at `%PORT1%`.
fn presented(site: &Site, name: &str) -> String {
    presented_at(site.addr(1), name)
}

/// The same for another address.
fn presented_at(addr: SocketAddr, name: &str) -> String {
    let connect = addr.to_string();
    let mut client = Command::new("openssl")
        .args(["s_client", "-connect", &connect, "-servername", name, "-showcerts"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("openssl");
    let shown = Command::new("openssl")
        .args(["x509", "-noout", "-issuer", "-serial", "-ext", "subjectAltName"])
        .stdin(client.stdout.take().expect("output"))
        .stderr(Stdio::null())
        .output()
        .expect("openssl");
    let _ = client.wait();
    String::from_utf8_lossy(&shown.stdout).into_owned()
}

/// Checks that the order of a certificate's successor named it, which Pebble logs. Version 2.10.1 may not find it if its serial number
/// has seven bytes, as one of 256 has.
fn assert_replaced(site: &Site, shown: &str) {
    let log = site.read("pebble.log");
    let found = log.matches("is a replacement of").count();
    let has_eight_bytes =
        shown.lines().filter_map(|line| line.strip_prefix("serial=")).any(|serial| serial.trim().len() == 16);
    assert!(found == 1 || found == 0 && !has_eight_bytes, "{found} {log}");
}

/// Waits until a server presents a certificate of the authority other than `old`.
fn issued(site: &Site, name: &str, old: &str) -> String {
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

/// Starts an authority, and a server; `None` where there is no Pebble.
fn started(site: Site, settings: Settings) -> Option<(Authority, Server)> {
    let authority = Authority::start(&site, &pebble()?, settings);
    Some((authority, Server::start_on(site)))
}

/// The same, with the first certificate of `a.test`.
fn certified(site: Site, settings: Settings) -> Option<(Authority, Server, String)> {
    let (authority, server) = started(site, settings)?;
    let first = issued(&server.site, "a.test", "");
    Some((authority, server, first))
}

/// A site with an issuer. `inside`: more lines of its block; `server`: lines of the server.
fn site(inside: &str, server: &str) -> Site {
    Site::new(format!(
        "events {{}} error_log logs/error.log notice;\n\
         http {{ access_log off;\n\
         acme_issuer pebble {{ uri https://127.0.0.1:%PORT2%/dir; ssl_trusted_certificate %DIR%/ca.pem; \
           accept_terms_of_service; contact admin@example.com; state_path %DIR%/state; {inside} }}\n\
         server {{ listen 127.0.0.1:%PORT0%; listen 127.0.0.1:%PORT1% ssl; {server} \
           location / {{ return 200 here; }} }} }}\n"
    ))
}

const NGINX_ACME: &str = "server_name a.test b.test; acme_certificate pebble; \
                          ssl_certificate $acme_certificate; ssl_certificate_key $acme_certificate_key;";
const LONG: Settings =
    Settings { life: 90 * 86_400, external: false, dns: None, names: None, ports: None, refused_nonces: 20 };

#[test]
fn a_certificate_is_got_kept_and_found_after_a_restart() {
    let Some((authority, mut server)) = started(site("", NGINX_ACME), LONG) else { return };
    assert!(server.get("/").contains("here"), "HTTP works at once");
    let first = issued(&server.site, "a.test", "");
    assert!(first.contains("DNS:a.test, DNS:b.test"), "{first}");
    let found: Vec<(String, u32)> = (std::fs::read_dir(server.dir().join("state")).expect("a directory"))
        .flatten()
        .map(|f| {
            (
                f.file_name().into_string().expect("text"),
                f.metadata().expect("there").permissions().mode() & 0o777,
            )
        })
        .collect();
    for wanted in ["account.key", "account.url", ".crt", ".key", "history.json"] {
        assert!(
            found.iter().any(|(name, mode)| name.ends_with(wanted) && *mode == 0o600),
            "{wanted}: {found:?}"
        );
    }
    let account = server.read("state/account.url");
    // A reload neither asks again nor presents anything else.
    server.reload();
    server.wait_for_log("reconfigur", 1);
    assert_eq!(presented(&server.site, "b.test"), first);
    // Without an authority the certificate is there from the first handshake on.
    drop(authority);
    server.restart();
    assert_eq!(presented(&server.site, "a.test"), first);
    assert_eq!(server.read("state/account.url"), account);
}

#[test]
fn a_short_certificate_is_renewed_in_place() {
    let site = site("challenge tls-alpn-01;", NGINX_ACME);
    let Some((_authority, server, first)) = certified(site, Settings { life: 16, ..LONG }) else { return };
    let second = issued(&server.site, "a.test", &first);
    assert_ne!(first, second);
    let log = server.error_log();
    assert_eq!(log.matches("reconfiguring").count(), 0, "{log}");
}

#[test]
fn an_external_account_and_an_rsa_key() {
    let external = "external_account_key kid-1 data:zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W; \
                    account_key rsa:2048; common_name_in_csr off; profile default require;";
    let site = site(
        external,
        &NGINX_ACME.replace("acme_certificate pebble", "acme_certificate pebble a.test key=rsa"),
    );
    let settings = Settings { external: true, ..LONG };
    let Some((_authority, _server, first)) = certified(site, settings) else { return };
    assert!(first.contains("DNS:a.test\n") && !first.contains("b.test"), "{first}");
}

#[test]
fn a_certificate_is_shown_and_renewed_by_hand() {
    let Some(program) = pebble() else { return };
    let site =
        site("", &format!("{NGINX_ACME} location /api {{ api; }} location /metrics {{ prometheus; }}"));
    let _authority = Authority::start(&site, &program, LONG);
    let (code, text) = acme(&site, "status", &[]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.starts_with("a.test,b.test (issuer pebble): no certificate yet in"), "{text}");
    let server = Server::start_on(site);
    let first = issued(&server.site, "a.test", "");
    let (code, text) = acme(&server.site, "status", &[]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("89 days left"), "{text}");
    let shown = server.get("/api/9/acme");
    for part in
        ["\"names\":[\"a.test\",\"b.test\"]", "\"state\":\"ready\"", "\"issued\":1", "\"last_error\":null"]
    {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let metrics = server.get("/metrics");
    let expiry = "forebay_acme_certificate_expiry_seconds{issuer=\"pebble\",names=\"a.test,b.test\"} 1";
    assert!(metrics.contains(expiry), "{metrics}");
    assert_eq!(acme(&server.site, "renew", &["c.test"]).0, Some(1));
    let (code, text) = acme(&server.site, "renew", &["b.test"]);
    assert_eq!(code, Some(0), "{text}");
    issued(&server.site, "a.test", &first);
}

/// An authority that answers nonsense, and one whose own certificate is not trusted, change nothing but the log.
#[test]
fn the_old_certificate_outlives_a_lying_authority() {
    let Some((authority, server, first)) = certified(site("", NGINX_ACME), LONG) else { return };
    drop(authority);
    let site = &server.site;
    let renew = || {
        let (code, text) = acme(site, "renew", &[]);
        assert_eq!(code, Some(0), "{text}");
    };
    let liar = |cert: &str, key: &str| {
        let accept = site.addr(2).port().to_string();
        let process = Command::new("openssl")
            .args(["s_server", "-quiet", "-WWW", "-accept", &accept, "-cert", cert, "-key", key])
            .current_dir(site.dir())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("openssl");
        let process = Authority { processes: vec![process], management: 0, names: 0 };
        wait_for("openssl s_server", || std::net::TcpStream::connect(site.addr(2)).ok());
        process
    };
    site.write("dir", "no JSON");
    let nonsense = liar("own.pem", "own.key");
    renew();
    server.wait_for_log(
        "reading the directory: the authority sent no JSON object; the old one stays in use",
        1,
    );
    drop(nonsense);
    own_authority(site, "other");
    let _stranger = liar("other.pem", "other.key");
    renew();
    server.wait_for_log("certificate of acme issuer \"pebble\" cannot be verified", 1);
    assert_eq!(presented(site, "a.test"), first);
}

#[test]
fn an_address_gets_a_certificate() {
    let server = NGINX_ACME.replace("acme_certificate pebble", "acme_certificate pebble 127.0.0.1");
    let site = site("challenge tls-alpn-01;", &server);
    let Some((_authority, _server, first)) = certified(site, LONG) else { return };
    assert!(first.contains("IP Address:127.0.0.1"), "{first}");
}

#[test]
fn two_nodes_share_a_directory() {
    let Some(program) = pebble() else { return };
    let first = site("", NGINX_ACME);
    let _authority = Authority::start(&first, &program, LONG);
    let first = Server::start_on(first);
    let shown = issued(&first.site, "a.test", "");
    let second = site("", NGINX_ACME);
    let conf = second.read("nginx.conf");
    let conf = conf
        .replace(&format!("{}/state", second.dir().display()), &format!("{}/state", first.dir().display()));
    second.write("nginx.conf", &conf);
    own_authority(&second, "ca");
    // Its own authority is not there: it can have the certificate from the directory only.
    let second = Server::start_on(second);
    assert_eq!(presented(&second.site, "a.test"), shown);
}

/// Account, certificates and history are those of an authority: another `uri` begins anew, and the former one goes on where it was.
#[test]
fn kept_state_belongs_to_its_authority() {
    let Some(program) = pebble() else { return };
    let site = site("", NGINX_ACME);
    let _first = Authority::start(&site, &program, LONG);
    let other = crate::acme::site("", NGINX_ACME);
    let ports = Some((site.addr(0).port(), site.addr(1).port()));
    let _second = Authority::start(&other, &program, Settings { ports, ..LONG });
    let server = Server::start_on(site);
    let of_first = issued(&server.site, "a.test", "");
    let account = server.read("state/account.url");
    let conf = server.read("nginx.conf");
    let moved = conf
        .replace(&server.addr(2).to_string(), &other.addr(2).to_string())
        .replace(&format!("{}/ca.pem", server.dir().display()), &format!("{}/ca.pem", other.dir().display()));
    assert_ne!(moved, conf);
    server.reload_with(moved);
    let of_second = issued(&server.site, "a.test", &of_first);
    assert_ne!(server.read("state/account.url"), account);
    server.reload_with(conf);
    wait_until("the first certificate", || presented(&server.site, "a.test") == of_first);
    assert_ne!(of_first, of_second);
    assert_eq!(server.error_log().matches("new certificate for").count(), 2, "{}", server.error_log());
}

/// Two issuers share a directory of files, for the same names.
#[test]
fn issuers_may_share_their_files() {
    let Some(program) = pebble() else { return };
    let site = site("", NGINX_ACME);
    let other = crate::acme::site("", NGINX_ACME);
    let conf = site.read("nginx.conf");
    let block =
        conf.split("acme_issuer").nth(1).and_then(|rest| rest.split_inclusive('}').next()).expect("a block");
    let second = block
        .replace("pebble", "second")
        .replace(&site.addr(2).to_string(), &other.addr(2).to_string())
        .replace(&format!("{}/ca.pem", site.dir().display()), &format!("{}/ca.pem", other.dir().display()));
    let conf = conf.replace("server { listen", &format!("acme_issuer{second}\nserver {{ listen"));
    let conf =
        conf.replace("acme_certificate pebble;", "acme_certificate pebble; acme_certificate second key=rsa;");
    site.write("nginx.conf", &conf);
    let _first = Authority::start(&site, &program, LONG);
    let ports = Some((site.addr(0).port(), site.addr(1).port()));
    let _second = Authority::start(&other, &program, Settings { ports, ..LONG });
    let server = Server::start_on(site);
    server.wait_for_log("new certificate for \"a.test,b.test\"", 2);
}

/// A name that is added does not take the certificate of the others away.
#[test]
fn an_earlier_certificate_serves_until_there_is_one_for_all_names() {
    let Some(program) = pebble() else { return };
    let site = site("", NGINX_ACME);
    let authority = Authority::start(&site, &program, LONG);
    let mut server = Server::start_on(site);
    let first = issued(&server.site, "a.test", "");
    drop(authority);
    let conf = server.read("nginx.conf").replace("server_name a.test b.test;", "server_name a.test c.test;");
    server.reload_with(conf);
    server.wait_for_log("an earlier one for other names is in use", 1);
    assert_eq!(presented(&server.site, "c.test"), first);
    server.restart();
    assert_eq!(presented(&server.site, "a.test"), first);
    let _authority = Authority::start(&server.site, &program, LONG);
    let (code, text) = acme(&server.site, "renew", &[]);
    assert_eq!(code, Some(0), "{text}");
    assert!(issued(&server.site, "a.test", &first).contains("DNS:c.test"));
}

/// Without a directory the account is kept over a reload.
#[test]
fn an_account_in_memory_survives_a_reload() {
    let site = site("", NGINX_ACME);
    let conf = site.read("nginx.conf");
    let conf = conf.replace(&format!("state_path {}/state", site.dir().display()), "state_path off");
    site.write("nginx.conf", &conf);
    let Some((_authority, server, first)) = certified(site, Settings { life: 16, ..LONG }) else { return };
    server.reload();
    server.wait_for_log("reconfiguring", 1);
    issued(&server.site, "a.test", &first);
    assert!(!server.dir().join("state").exists());
    let log = server.read("pebble.log");
    assert!(log.contains("There are now 1 accounts") && !log.contains("There are now 2 accounts"), "{log}");
}

/// Ours: two lines are enough.
#[test]
fn acme_on_with_a_default_issuer() {
    let site = Site::new(
        "events {} error_log logs/error.log notice;\nhttp { access_log off; acme on; acme_client_path %DIR%/state;\n\
         acme_issuer default { uri https://127.0.0.1:%PORT2%/dir; ssl_trusted_certificate %DIR%/ca.pem; \
           accept_terms_of_service; }\n\
         server { listen 127.0.0.1:%PORT0%; server_name a.test; return 301 https://$host$request_uri; }\n\
         server { listen 127.0.0.1:%PORT1% ssl; server_name a.test; location / { return 200 here; } } }\n",
    );
    let Some((_authority, server)) = started(site, LONG) else { return };
    issued(&server.site, "a.test", "");
    // Not below the prefix, where nginx-acme's directives have it.
    assert!(server.dir().join("state/default/account.key").exists());
}

#[test]
fn without_an_authority_the_site_is_served() {
    let site = site("", NGINX_ACME);
    own_authority(&site, "ca");
    let server = Server::start_on(site);
    assert!(server.get("/").contains("here"));
    server.wait_for_log("no certificate for \"a.test,b.test\": reading the directory", 1);
    let shown = presented(&server.site, "a.test");
    assert!(shown.contains("no certificate yet"), "{shown}");
    let log = server.error_log();
    let line = log.lines().find(|l| l.contains("no certificate for")).unwrap_or_default();
    assert!(
        line.contains("connect() failed") && line.contains("a self-signed one is in use, next attempt in"),
        "{line}"
    );
}

#[test]
fn terms_of_service_have_to_be_accepted() {
    let site = site("", NGINX_ACME);
    let conf = site.read("nginx.conf").replace("accept_terms_of_service; ", "");
    site.write("nginx.conf", &conf);
    let Some((_authority, server)) = started(site, LONG) else { return };
    server.wait_for_log("have to be accepted with \"accept_terms_of_service\", read", 1);
    server.wait_for_log("no other attempt before the next reload", 1);
}
