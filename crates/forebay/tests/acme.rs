//! Certificates by ACME: Pebble is the authority, `openssl s_client` the client.

mod account;
mod certbot;
mod dns;
mod doctor;
mod faults;
mod language;
mod namespace;
mod one_line;

use forebay_testkit::acme::*;
use forebay_testkit::{Running, Server, Site, files, wait_until};
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Runs `forebay acme`, whose wish has names behind it, on a site.
fn acme(site: &Site, wish: &str) -> (i32, String) {
    let done = site.forebay(&format!("acme {wish} -p . -c nginx.conf"));
    (done.code, done.all())
}

/// Has certificates renewed.
fn renew(site: &Site, names: &str) {
    let (code, text) = acme(site, &format!("renew {names}"));
    assert_eq!(code, 0, "{text}");
}

/// Replaces a part of a site's configuration.
fn change(site: &Site, old: &str, new: &str) {
    site.write("nginx.conf", site.read("nginx.conf").replace(old, new));
}

/// Has the paths of a configuration lead to another site's directory and authority.
fn moved_to(conf: &str, from: &Site, to: &Site, names: &[&str]) -> String {
    let path = |site: &Site, name: &str| format!("{}/{name}", site.dir().display());
    names.iter().fold(conf.to_owned(), |conf, name| conf.replace(&path(from, name), &path(to, name)))
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

#[test]
fn a_certificate_is_got_kept_and_found_after_a_restart() {
    let Some((authority, mut server)) = started(site("", NGINX_ACME), LONG) else { return };
    assert!(server.get("/").contains("here"), "HTTP works at once");
    let first = issued(&server.site, "a.test", "");
    assert!(first.contains("DNS:a.test, DNS:b.test"), "{first}");
    let mode = |path: &Path| path.metadata().expect("there").permissions().mode() & 0o777;
    let found: Vec<_> = files(&server.path("state")).into_iter().map(|path| (mode(&path), path)).collect();
    for wanted in ["account.key", "account.url", ".crt", ".key", "history.json"] {
        let is =
            |(mode, path): &(u32, PathBuf)| path.display().to_string().ends_with(wanted) && *mode == 0o600;
        assert!(found.iter().any(is), "{wanted}: {found:?}");
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
    let Some((_authority, _server, first)) = certified(site, Settings { external: true, ..LONG }) else {
        return;
    };
    assert!(first.contains("DNS:a.test\n") && !first.contains("b.test"), "{first}");
}

#[test]
fn a_certificate_is_shown_and_renewed_by_hand() {
    let Some(program) = pebble() else { return };
    let site =
        site("", &format!("{NGINX_ACME} location /api {{ api; }} location /metrics {{ prometheus; }}"));
    let _authority = Authority::start(&site, &program, LONG);
    let (code, text) = acme(&site, "status");
    assert_eq!(code, 1, "{text}");
    assert!(text.starts_with("a.test,b.test (issuer pebble): no certificate yet in"), "{text}");
    let server = Server::start_on(site);
    let first = issued(&server.site, "a.test", "");
    let (code, text) = acme(&server.site, "status");
    assert_eq!(code, 0, "{text}");
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
    assert_eq!(acme(&server.site, "renew c.test").0, 1);
    renew(&server.site, "b.test");
    issued(&server.site, "a.test", &first);
}

/// An authority that answers nonsense, and one whose own certificate is not trusted, change nothing but the log.
#[test]
fn the_old_certificate_outlives_a_lying_authority() {
    let Some((authority, server, first)) = certified(site("", NGINX_ACME), LONG) else { return };
    drop(authority);
    let site = &server.site;
    let liar = |name: &str| {
        let args =
            format!("s_server -quiet -WWW -accept {0} -cert {name}.pem -key {name}.key", site.addr(2).port());
        Running::start_at(Command::new("openssl").args(args.split(' ')).current_dir(site.dir()), site.addr(2))
    };
    site.write("dir", "no JSON");
    let nonsense = liar("own");
    renew(site, "");
    server.wait_for_log(
        "reading the directory: the authority sent no JSON object; the old one stays in use",
        1,
    );
    drop(nonsense);
    site.authority("other");
    let _stranger = liar("other");
    renew(site, "");
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
    let Some((_authority, first, shown)) = certified(site("", NGINX_ACME), LONG) else { return };
    let second = site("", NGINX_ACME);
    second.write("nginx.conf", moved_to(&second.read("nginx.conf"), &second, &first.site, &["state"]));
    second.authority("ca");
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
    let moved = conf.replace(&server.addr(2).to_string(), &other.addr(2).to_string());
    let moved = moved_to(&moved, &server.site, &other, &["ca.pem"]);
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
    let second =
        block.replace("pebble", "second").replace(&site.addr(2).to_string(), &other.addr(2).to_string());
    let second = moved_to(&second, &site, &other, &["ca.pem"]);
    change(&site, "server { listen", &format!("acme_issuer{second}\nserver {{ listen"));
    change(&site, "acme_certificate pebble;", "acme_certificate pebble; acme_certificate second key=rsa;");
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
    let Some((authority, mut server, first)) = certified(site("", NGINX_ACME), LONG) else { return };
    drop(authority);
    change(&server, "server_name a.test b.test;", "server_name a.test c.test;");
    server.reload();
    server.wait_for_log("an earlier one for other names is in use", 1);
    assert_eq!(presented(&server.site, "c.test"), first);
    server.restart();
    assert_eq!(presented(&server.site, "a.test"), first);
    let _authority = Authority::start(&server.site, &program, LONG);
    renew(&server.site, "");
    assert!(issued(&server.site, "a.test", &first).contains("DNS:c.test"));
}

/// Without a directory the account is kept over a reload.
#[test]
fn an_account_in_memory_survives_a_reload() {
    let site = site("", NGINX_ACME);
    change(&site, &format!("state_path {}/state", site.dir().display()), "state_path off");
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
    site.authority("ca");
    let server = Server::start_on(site);
    assert!(server.get("/").contains("here"));
    server.wait_for_log("no certificate for \"a.test,b.test\": reading the directory", 1);
    let shown = presented(&server.site, "a.test");
    assert!(shown.contains("no certificate yet"), "{shown}");
    let log = server.error_log();
    let line = log.lines().find(|l| l.contains("no certificate for")).unwrap_or_default();
    assert!(line.contains("connect() failed"), "{line}");
    assert!(line.contains("a self-signed one is in use, next attempt in"), "{line}");
}

#[test]
fn terms_of_service_have_to_be_accepted() {
    let site = site("", NGINX_ACME);
    change(&site, "accept_terms_of_service; ", "");
    let Some((_authority, server)) = started(site, LONG) else { return };
    server.wait_for_log("have to be accepted with \"accept_terms_of_service\", read", 1);
    server.wait_for_log("no other attempt before the next reload", 1);
}
