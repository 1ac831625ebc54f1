//! certbot with its plugin for nginx, which edits the configuration and calls `nginx`: that is Forebay here.

use super::namespace::in_namespace;
use super::*;
use crate::moving;
use forebay_testkit::{Done, Server, Site, wait_for};
use std::os::unix::fs::symlink;

/// Returns `true` if certbot and its plugin are there. In CI they have to be.
fn has_certbot() -> bool {
    let found = Path::new("/usr/lib/python3/dist-packages/certbot_nginx").is_dir()
        && Command::new("certbot").arg("--version").output().is_ok_and(|done| done.status.success());
    if !found {
        eprintln!("skipped: no certbot with python3-certbot-nginx");
        assert!(std::env::var_os("CI").is_none(), "CI has to have certbot and python3-certbot-nginx");
    }
    found
}

/// Runs certbot, which has to succeed, with directories below that of a site.
fn certbot(site: &Site, args: &str) {
    let own = "--non-interactive --no-verify-ssl --config-dir letsencrypt --work-dir work --logs-dir certbot";
    let mut command = Command::new("certbot");
    command.args(args.split(' ')).args(own.split(' ')).current_dir(site.dir());
    // Not a warning at each request that is not verified.
    let done = Done::of(command.env("PYTHONWARNINGS", "ignore"));
    let log = || site.read("certbot/letsencrypt.log") + &site.read("logs/error.log");
    assert_eq!(done.code, 0, "certbot {args}: {}\n{}", done.all(), log());
}

#[test]
fn certbot_gets_installs_and_renews_a_certificate() {
    let Some(program) = pebble() else { return };
    // certbot redirects from port 80 only.
    if !has_certbot() || !in_namespace("acme::certbot::certbot_gets_installs_and_renews_a_certificate") {
        return;
    }
    // Paths are absolute since certbot calls nginx without a prefix. %PORT1% is not used.
    let site = Site::new(
        "# %PORT1%, and %PORT2% for the authority\n\
         pid %DIR%/logs/nginx.pid; error_log %DIR%/logs/error.log notice;\n\
         events {\n}\n\
         http {\n    access_log off;\n    server {\n        listen 80;\n        listen 127.0.0.1:%PORT0%;\n        server_name a.test;\n\
         \n        location / {\n            return 200 \"here over $scheme\";\n        }\n    }\n}\n",
    );
    // certbot tries a request with another nonce only once.
    let settings = Settings { ports: Some((80, 443)), refused_nonces: 0, ..LONG };
    let _authority = Authority::start(&site, &program, settings);
    symlink(crate::PROGRAM, site.dir().join("nginx")).expect("a link");
    let server = Server::start_on(site);
    let site = &server.site;
    moving::fake(site, "1.22.1");
    moving::compare_and_test(site);
    let states = || ["compared", "tests", "swap"].map(|name| moving::state(&moving::steps(site), name).0);
    assert_eq!(states(), ["done", "done", "done"]);
    let directory = format!("https://{}/dir", site.addr(2));
    let (root, ctl) = (site.dir().display().to_string(), site.dir().join("nginx").display().to_string());
    let options = "--nginx --domain a.test --redirect --agree-tos --email a@example.com --no-eff-email";
    let places = format!("--server {directory} --nginx-server-root {root} --nginx-ctl {ctl}");
    certbot(site, &format!("run {options} {places}"));
    let https = SocketAddr::from(([127, 0, 0, 1], 443));
    // The reload goes on after certbot has ended.
    let new = |old: &str| {
        let is_new =
            |shown: &String| shown.contains("Pebble") && shown.contains("DNS:a.test") && shown != old;
        wait_for("a certificate from certbot", || Some(presented_at(https, "a.test")).filter(is_new))
    };
    let first = new("");
    let fetch = |url: &str| {
        let options = ["-sSk", "-w", " %{http_code} %{redirect_url}", "--noproxy", "*"];
        let names = ["--resolve", "a.test:443:127.0.0.1", "--resolve", "a.test:80:127.0.0.1", url];
        Done::of(Command::new("curl").args(options).args(names)).out
    };
    assert_eq!(fetch("https://a.test/x"), "here over https 200 ");
    let redirected = fetch("http://a.test/x");
    assert!(redirected.ends_with(" 301 https://a.test/x"), "{redirected}");
    // Its lines for TLS are new to the comparison. A new certificate in the same file changes nothing of it.
    assert_eq!(states(), ["stale", "stale", "done"]);
    moving::compare_and_test(site);
    assert_eq!(states(), ["done", "done", "done"]);
    certbot(site, "renew --force-renewal --no-random-sleep-on-renew");
    new(&first);
    assert_eq!(states(), ["done", "done", "done"]);
    let log = server.error_log();
    assert!(!log.contains("[emerg]") && !log.contains("[alert]"), "{log}");
}
