//! A browser over HTTP/3.

use super::site;
use forebay_testkit::{Server, tool, wait_for};
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

/// Page that sends a file and tells how it went, and by which protocol it came itself.
const PAGE: &str = "<!doctype html><title>begins</title><p id=told>nothing</p><script>
const told = text => document.getElementById('told').textContent = text;
fetch('/upload/file', {method: 'PUT', body: new Uint8Array(3000000).fill(97)})
  .then(r => told(`status ${r.status} page ${performance.getEntriesByType('navigation')[0].nextHopProtocol}`))
  .catch(e => told(`failed ${e}`));
</script>";

/// Hash of the public key of a certificate, for a browser that is to take it whoever signed it.
fn hash_of_key(crt: &str) -> String {
    let script = format!(
        "openssl x509 -in {crt} -pubkey -noout | openssl pkey -pubin -outform der | openssl dgst -sha256 -binary | base64"
    );
    let out = Command::new("sh").args(["-c", &script]).output().expect("openssl");
    String::from_utf8_lossy(&out.stdout).trim().to_owned()
}

#[test]
fn a_browser_loads_a_page_and_uploads_a_file() {
    if !tool("chromium") {
        return;
    }
    let server = "log_format quic '$http3 $request $status'; server { listen 127.0.0.1:%PORT0% quic; \
                  listen 127.0.0.1:%PORT0% ssl; access_log logs/quic.log quic; client_max_body_size 10m; \
                  location /upload/ { alias %DIR%/up/; dav_methods PUT; create_full_put_path on; } }";
    let site = site(server);
    site.write("html/index.html", PAGE);
    // Workers of a server that root starts are another user.
    let up = site.dir().join("up");
    std::fs::create_dir(&up).expect("made");
    std::fs::set_permissions(&up, std::fs::Permissions::from_mode(0o777)).expect("changed");
    let key = hash_of_key(&site.dir().join("localhost.crt").display().to_string());
    let server = Server::start_on(site);
    let at = format!("localhost:{}", server.addr(0).port());
    let profile = tempfile::tempdir().expect("a directory");
    let out = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-sync"])
        .args(["--disable-background-networking", "--disable-component-update"])
        .args(["--host-resolver-rules=MAP localhost 127.0.0.1", "--virtual-time-budget=10000", "--dump-dom"])
        .arg(format!("--ignore-certificate-errors-spki-list={key}"))
        .arg(format!("--origin-to-force-quic-on={at}"))
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("https://{at}/"))
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .expect("chromium runs");
    let page = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(page.contains("status 201 page h3"), "{page} {}", server.error_log());
    assert_eq!(std::fs::read(server.dir().join("up/file")).expect("the file").len(), 3_000_000);
    let log = wait_for("lines of both requests", || {
        let log = server.read("logs/quic.log");
        log.contains("PUT").then_some(log)
    });
    assert!(log.contains("h3 GET / HTTP/3.0 200"), "{log}");
    assert!(log.contains("h3 PUT /upload/file HTTP/3.0 201"), "{log}");
}
