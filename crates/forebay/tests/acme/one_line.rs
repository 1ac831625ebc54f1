//! `forebay serve` and `forebay proxy` with `--domain`: HTTPS without a configuration.

use super::{Authority, LONG, pebble, presented};
use crate::harness::{PROGRAM, Site, free_port, wait_for};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(self.0.id().cast_signed()),
            nix::sys::signal::Signal::SIGTERM,
        );
        let _ = self.0.wait();
    }
}

/// Starts `forebay` with its data in a site's directory.
fn start(site: &Site, args: &[&str]) -> Running {
    let log = std::fs::File::create(site.dir().join("stderr")).expect("file");
    let child = Command::new(PROGRAM)
        .args(args)
        .env("XDG_DATA_HOME", site.dir().join("data"))
        .current_dir(site.dir())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn();
    Running(child.expect("runs"))
}

/// Returns what curl prints for a URL of `name`, which leads to this machine.
fn curl(site: &Site, roots: &Path, (name, port): (&str, u16), more: &[&str]) -> Option<String> {
    let done = Command::new("curl")
        .args(["-sS", "--max-time", "10", "--cacert"])
        .arg(roots)
        .args(["--resolve", &format!("{name}:{port}:127.0.0.1")])
        .args(more)
        .arg(format!("https://{name}:{port}/page.txt"))
        .output()
        .expect("curl");
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    std::fs::write(site.dir().join("curl"), &done.stderr).expect("write");
    done.status.success().then_some(text)
}

#[test]
fn a_public_name_gets_its_certificate_in_one_line() {
    let Some(program) = pebble() else { return };
    let site = Site::new("%PORT0% %PORT1% %PORT2%");
    std::fs::create_dir(site.dir().join("pages")).expect("a directory");
    site.write("pages/page.txt", "a page\n");
    let _authority = Authority::start(&site, &program, LONG);
    let [http, tls, uri] = [0, 1, 2].map(|n| site.addr(n));
    let (http, tls, uri) = (http.to_string(), tls.to_string(), format!("https://{uri}/dir"));
    let args = [
        "--domain",
        "one.example",
        "--listen",
        &tls,
        "--redirect",
        &http,
        "--acme-uri",
        &uri,
        "--acme-ca",
        "ca.pem",
    ];
    let _server = start(&site, &[&["serve", "pages"], args.as_slice()].concat());
    wait_for("a certificate of the authority", || {
        presented(&site, "one.example").contains("Pebble").then_some(())
    });
    let moved = Command::new("curl")
        .args([
            "-s",
            "-o",
            "/dev/null",
            "-w",
            "%{redirect_url}",
            "-H",
            "Host: one.example",
            &format!("http://{http}/x?y"),
        ])
        .output()
        .expect("curl");
    let port = site.addr(1).port();
    assert_eq!(String::from_utf8_lossy(&moved.stdout), format!("https://one.example:{port}/x?y"));
    let page = curl(&site, Path::new("/dev/null"), ("one.example", port), &["-k"]);
    assert_eq!(page.as_deref(), Some("a page\n"));
}

#[test]
fn an_application_on_localhost_has_https_by_the_authority_of_this_machine() {
    let site = Site::new("%PORT0%");
    std::fs::create_dir(site.dir().join("pages")).expect("a directory");
    site.write("pages/page.txt", "a page\n");
    let (back, front) = (free_port().to_string(), free_port());
    let listen = format!("127.0.0.1:{front}");
    let _application = start(&site, &["serve", "pages", "--listen", &back]);
    let _server = start(&site, &["proxy", "--domain", "localhost", "--domain", "app.test", &listen, &back]);
    let root = site.dir().join("data/forebay/local/root.crt");
    // OpenSSL verifies the constraints of the root.
    let page =
        wait_for("the page", || curl(&site, &root, ("localhost", front), &[]).filter(|p| p == "a page\n"));
    assert_eq!(page, "a page\n");
    assert_eq!(curl(&site, &root, ("app.test", front), &[]).as_deref(), Some("a page\n"));
    // The certificate is for these names only.
    assert_eq!(curl(&site, &root, ("other.test", front), &[]), None);
    let printed = Command::new(PROGRAM)
        .args(["trust", "--print"])
        .env("XDG_DATA_HOME", site.dir().join("data"))
        .output()
        .expect("runs");
    assert_eq!(printed.stdout, std::fs::read(&root).expect("the root"));
}
