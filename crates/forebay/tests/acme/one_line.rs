//! `forebay serve` and `forebay proxy` with `--domain`: HTTPS without a configuration.

use super::namespace::in_empty;
use super::{Authority, LONG, pebble, presented};
use forebay_net::tls::pem;
use forebay_testkit::{DEADLINE, Signal, Site, free_port, program, wait_for};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// A program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ =
            nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.0.id().cast_signed()), Signal::SIGTERM);
        let _ = self.0.wait();
    }
}

/// Starts `forebay` with its data in a site's directory.
fn start(site: &Site, args: &[&str]) -> Running {
    run(site, Command::new(program()).args(args).env("XDG_DATA_HOME", site.dir().join("data")))
}

/// Starts a program in a site's directory.
fn run(site: &Site, command: &mut Command) -> Running {
    let log = std::fs::File::create(site.dir().join("stderr")).expect("file");
    let child = command.current_dir(site.dir()).stdout(Stdio::null()).stderr(log).spawn();
    Running(child.expect("runs"))
}

/// Returns the program as root runs it who has set nothing: with the directories of the system.
fn of_root(args: &[&str]) -> Command {
    let mut command = Command::new(program());
    command.args(args).env_remove("XDG_DATA_HOME").env_remove("HOME");
    command
}

/// Runs the program as [`of_root`] to its end: code and standard output.
fn ended(args: &[&str]) -> (Option<i32>, String) {
    let done = of_root(args).output().expect("runs");
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert_eq!(String::from_utf8_lossy(&done.stderr), "", "{args:?}");
    (done.status.code(), text)
}

#[test]
fn root_has_its_certificates_in_the_directory_of_the_system() {
    let Some(program) = pebble() else { return };
    let test = "acme::one_line::root_has_its_certificates_in_the_directory_of_the_system";
    if !in_empty(&["/var/lib"], test) {
        return;
    }
    let site = Site::new("%PORT0% %PORT1% %PORT2%");
    std::fs::create_dir(site.dir().join("pages")).expect("a directory");
    site.write("pages/page.txt", "a page\n");
    let authority = Authority::start(&site, &program, LONG);
    let [http, tls, uri] = [0, 1, 2].map(|n| site.addr(n).to_string());
    let uri = format!("https://{uri}/dir");
    let mut args = vec!["serve", "pages", "--domain", "one.example", "--listen", &tls, "--redirect", &http];
    args.extend(["--acme-uri", &uri, "--acme-ca", "ca.pem"]);
    let server = run(&site, &mut of_root(&args));
    let end = Instant::now() + DEADLINE;
    let first = loop {
        let shown = presented(&site, "one.example");
        if shown.contains("Pebble") {
            break shown;
        }
        assert!(Instant::now() < end, "no certificate: {}", site.read("stderr"));
    };
    let own = Path::new("/var/lib/forebay/acme/default");
    let files: Vec<_> = std::fs::read_dir(own).expect("a directory").flatten().collect();
    let worker = nix::unistd::User::from_name("nobody").expect("users").expect("a user").uid;
    for file in &files {
        let found = file.metadata().expect("there");
        assert_eq!((found.mode() & 0o777, found.uid()), (0o600, worker.as_raw()), "{:?}", file.path());
    }
    let has = |end: &str| files.iter().any(|f| f.file_name().to_string_lossy().ends_with(end));
    assert!(has("account.key") && has(".crt") && has(".key"), "{files:?}");
    // Found again, without the authority.
    drop((server, authority));
    let _server = run(&site, &mut of_root(&args));
    wait_for("the server", || std::net::TcpStream::connect(site.addr(1)).ok());
    assert_eq!(presented(&site, "one.example"), first);
}

/// `forebay trust` of root, and `--remove`, in the store of Debian.
#[test]
fn the_system_trusts_the_authority_of_this_machine_until_it_is_told_not_to() {
    if !Path::new("/usr/sbin/update-ca-certificates").exists() {
        return eprintln!("skipped: there is no update-ca-certificates");
    }
    let test = "acme::one_line::the_system_trusts_the_authority_of_this_machine_until_it_is_told_not_to";
    if !in_empty(&["/var/lib", "/etc/ssl", "/usr/local/share/ca-certificates"], test) {
        return;
    }
    std::fs::create_dir("/etc/ssl/certs").expect("a directory");
    let trusts = || {
        let all = std::fs::read("/etc/ssl/certs/ca-certificates.crt").expect("the store");
        let root = std::fs::read("/var/lib/forebay/local/root.crt").expect("the root");
        pem::certificates(&all).contains(pem::certificates(&root).first().expect("a certificate"))
    };
    let added = Path::new("/usr/local/share/ca-certificates/forebay-local-authority.crt");
    let (code, text) = ended(&["trust"]);
    assert_eq!((code, text), (Some(0), format!("The system trusts {}.\n", added.display())));
    assert!(added.exists() && trusts());
    let (code, text) = ended(&["trust", "--remove"]);
    assert_eq!((code, text), (Some(0), format!("The system no longer trusts {}.\n", added.display())));
    assert!(!added.exists() && !trusts());
    assert_eq!(ended(&["trust", "--remove"]), (Some(0), "It was not trusted.\n".to_owned()));
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
    let printed = Command::new(program())
        .args(["trust", "--print"])
        .env("XDG_DATA_HOME", site.dir().join("data"))
        .output()
        .expect("runs");
    assert_eq!(printed.stdout, std::fs::read(&root).expect("the root"));
}
