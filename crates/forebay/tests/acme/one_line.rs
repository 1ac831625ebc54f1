//! `forebay serve` and `forebay proxy` with `--domain`: HTTPS without a configuration.

use super::namespace::in_empty;
use forebay_net::tls::pem;
use forebay_testkit::acme::{Authority, LONG, issued, pebble, presented};
use forebay_testkit::{Done, Running, Site, free_port, wait_for};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

/// Makes a directory with pages.
fn pages(ports: &str) -> Site {
    let site = Site::new(ports);
    site.write("pages/page.txt", "a page\n");
    site
}

/// Arguments of `serve` with a certificate of an authority, at the ports of a site.
fn serve(site: &Site) -> Vec<String> {
    let [http, tls, uri] = [0, 1, 2].map(|n| site.addr(n));
    let text = format!(
        "serve pages --domain one.example --listen {tls} --redirect {http} --acme-uri https://{uri}/dir --acme-ca ca.pem"
    );
    text.split(' ').map(str::to_owned).collect()
}

/// Returns the program as root runs it who has set nothing: with the directories of the system.
fn of_root<A: AsRef<std::ffi::OsStr>>(site: &Site, args: impl IntoIterator<Item = A>) -> Command {
    let mut command = site.subcommand(args);
    command.env_remove("XDG_DATA_HOME").env_remove("HOME").env_remove("TMPDIR");
    command
}

/// Runs the program as [`of_root`] to its end: code and standard output.
fn ended(args: &str) -> (i32, String) {
    let done = Done::of(&mut of_root(&Site::new(""), args.split(' ')));
    assert_eq!(done.err, "", "{args}");
    (done.code, done.out)
}

#[test]
fn root_has_its_certificates_in_the_directory_of_the_system() {
    let Some(program) = pebble() else { return };
    let test = "acme::one_line::root_has_its_certificates_in_the_directory_of_the_system";
    if !in_empty(&["/var/lib"], test) {
        return;
    }
    let site = pages("%PORT0% %PORT1% %PORT2%");
    let authority = Authority::start(&site, &program, LONG);
    let start = || Running::start_at(&mut of_root(&site, serve(&site)), site.addr(1));
    let server = start();
    let first = issued(&site, "one.example", "");
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
    let _server = start();
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
    assert_eq!(ended("trust"), (0, format!("The system trusts {}.\n", added.display())));
    assert!(added.exists() && trusts());
    assert_eq!(ended("trust --remove"), (0, format!("The system no longer trusts {}.\n", added.display())));
    assert!(!added.exists() && !trusts());
    assert_eq!(ended("trust --remove"), (0, "It was not trusted.\n".to_owned()));
}

/// Returns what curl prints for a URL of `name`, which leads to this machine.
fn curl(roots: &Path, (name, port): (&str, u16), more: &[&str]) -> Option<String> {
    let mut curl = Command::new("curl");
    curl.args(["-sS", "--max-time", "10", "--resolve", &format!("{name}:{port}:127.0.0.1"), "--cacert"]);
    let done = Done::of(curl.arg(roots).args(more).arg(format!("https://{name}:{port}/page.txt")));
    (done.code == 0).then_some(done.out)
}

#[test]
fn a_public_name_gets_its_certificate_in_one_line() {
    let Some(program) = pebble() else { return };
    let site = pages("%PORT0% %PORT1% %PORT2%");
    let _authority = Authority::start(&site, &program, LONG);
    let _server = Running::start_at(&mut site.subcommand(serve(&site)), site.addr(1));
    issued(&site, "one.example", "");
    let url = format!("http://{}/x?y", site.addr(0));
    let options = ["-s", "-o", "/dev/null", "-w", "%{redirect_url}", "-H", "Host: one.example", &url];
    let port = site.addr(1).port();
    let moved = Done::of(Command::new("curl").args(options)).out;
    assert_eq!(moved, format!("https://one.example:{port}/x?y"));
    let page = curl(Path::new("/dev/null"), ("one.example", port), &["-k"]);
    assert_eq!(page.as_deref(), Some("a page\n"));
}

#[test]
fn an_application_on_localhost_has_https_by_the_authority_of_this_machine() {
    let site = pages("");
    let (back, front) = (free_port(), free_port());
    let start = |args: String| Running::start(&mut site.subcommand(args.split(' ')));
    let _application = start(format!("serve pages --listen {back}"));
    let _server = start(format!("proxy --domain localhost --domain app.test 127.0.0.1:{front} {back}"));
    let root = site.dir().join("data/forebay/local/root.crt");
    // OpenSSL verifies the constraints of the root.
    let page = wait_for("the page", || curl(&root, ("localhost", front), &[]).filter(|p| p == "a page\n"));
    assert_eq!(page, "a page\n");
    assert_eq!(curl(&root, ("app.test", front), &[]).as_deref(), Some("a page\n"));
    // The certificate is for these names only.
    assert_eq!(curl(&root, ("other.test", front), &[]), None);
    assert_eq!(site.forebay("trust --print").out, site.read("data/forebay/local/root.crt"));
}
