//! Authorities that fail, limits, full disks, and attempts without a certificate.

use super::account::chain;
use super::*;
use forebay_testkit::{Server, Signal, Site, wait_for};
use std::sync::atomic::Ordering::SeqCst;

/// A site whose own server is the authority. `directory` and `order`: directives of these locations; `more`: others.
fn own_authority(directory: &str, order: &str, more: &str) -> Site {
    let base = "https://127.0.0.1:%PORT2%";
    let site = Site::new(format!(
        "events {{}} error_log logs/error.log notice;\n\
         http {{ access_log off; default_type application/json;\n\
         acme_issuer own {{ uri {base}/dir; ssl_trusted_certificate %DIR%/ca.pem; state_path off; }}\n\
         server {{ listen 127.0.0.1:%PORT0%; listen 127.0.0.1:%PORT1% ssl; server_name a.test; acme_certificate own; \
           ssl_certificate $acme_certificate; ssl_certificate_key $acme_certificate_key; \
           location / {{ return 200 here; }} location /api {{ api; }} }}\n\
         server {{ listen 127.0.0.1:%PORT2% ssl; ssl_certificate own.pem; ssl_certificate_key own.key; \
           add_header Replay-Nonce abc always; \
           location /dir {{ {directory} return 200 '{{\"newNonce\": \"{base}/nonce\", \"newAccount\": \"{base}/account\", \
             \"newOrder\": \"{base}/order\"}}'; }} \
           location /nonce {{ return 200 ''; }} \
           location /account {{ add_header Replay-Nonce abd always; add_header Location {base}/account/1 always; \
             return 201 '{{}}'; }} \
           location /order {{ {order} }} {more} }} }}\n"
    ));
    site.own_certificate();
    site
}

/// The time that the authority names decides.
#[test]
fn a_limit_of_the_authority_is_kept() {
    let order = "add_header Retry-After 7200 always; return 429 '{\"type\": \"urn:ietf:params:acme:error:rateLimited\", \
                 \"detail\": \"too many\"}';";
    let server = Server::start_on(own_authority("", order, ""));
    server.wait_for_log(
        "no certificate for \"a.test\": creating the order: too many (rateLimited); a self-signed one is in use, \
         next attempt in 7200 s",
        1,
    );
    assert!(server.get("/").contains("here"));
}

/// An authority that hangs keeps neither the site nor a reload waiting.
#[test]
fn an_authority_that_hangs_is_left_alone() {
    let (hangs, asked) = forebay_testkit::silent();
    let hang = format!("location /hang {{ proxy_pass http://{hangs}; }}");
    let site = own_authority("if (!-f %DIR%/well) { rewrite ^ /hang last; }", "return 500;", &hang);
    let server = Server::start_on(site);
    wait_until("the question", || asked.load(SeqCst) > 0);
    assert!(server.get("/").contains("here"));
    let shown = server.get("/api/9/acme");
    assert!(shown.contains("\"state\":\"requesting\""), "{shown}");
    server.write("well", "");
    server.reload();
    server.wait_for_log("no certificate for \"a.test\": creating the order", 1);
}

/// No file may have more than a KiB: the chain does not fit. It is used all the same.
#[test]
fn a_full_disk_does_not_keep_a_certificate_from_being_used() {
    let Some(program) = pebble() else { return };
    let site = site("", &format!("{NGINX_ACME} location /api {{ api; }}"));
    let _authority = Authority::start(&site, &program, LONG);
    let server = Server::start_limited(site, 1);
    issued(&server.site, "a.test", "");
    let shown =
        wait_for("the state", || Some(server.get("/api/9/acme")).filter(|s| s.contains("\"issued\":1")));
    assert!(shown.contains("\"state\":\"ready\""), "{shown}");
    let names = files(&server.path("state"));
    assert!(names.iter().any(|n| n.ends_with("account.key")), "{names:?}");
    let is_part = |n: &PathBuf| n.extension().is_some_and(|e| e == "crt" || e == "new");
    assert!(!names.iter().any(is_part), "{names:?}");
}

/// The authority suggests a time in the past: the certificate is renewed, and the order names it.
#[test]
fn a_suggested_renewal_is_made() {
    let Some((authority, mut server, first)) = certified(site("", NGINX_ACME), LONG) else { return };
    let chain = String::from_utf8(chain(&server, "state")).expect("text");
    let leaf = chain.split_inclusive("-----END CERTIFICATE-----\n").next().expect("a certificate");
    let window =
        r#"{\"suggestedWindow\": {\"start\": \"2020-01-01T00:00:00Z\", \"end\": \"2020-01-02T00:00:00Z\"}}"#;
    let body =
        format!("{{\"certificate\": \"{}\", \"ariResponse\": \"{window}\"}}", leaf.replace('\n', "\\n"));
    authority.manage("set-renewal-info/", &body);
    // Another process asks for renewal information at once.
    server.restart();
    issued(&server.site, "a.test", &first);
    assert_replaced(&server.site, &first);
}

/// The authority knows neither the account nor the certificate that is to be replaced.
#[test]
fn an_authority_that_has_lost_its_state_renews_a_certificate() {
    let Some(program) = pebble() else { return };
    let settings = Settings { life: 16, refused_nonces: 0, ..LONG };
    let Some((authority, mut server, first)) = certified(site("", NGINX_ACME), settings) else { return };
    // A server that runs meanwhile may want to renew while nothing listens.
    server.signal(Signal::SIGTERM);
    server.wait_end();
    drop(authority);
    // The other authority has another root certificate, which the server reads when it starts.
    let _other = Authority::start(&server.site, &program, settings);
    server.restart_dead();
    issued(&server.site, "a.test", &first);
    assert!(!server.error_log().contains("no certificate for"), "{}", server.error_log());
}

/// `forebay acme test` says what failed and why, and asks for no certificate.
#[test]
fn a_test_reports_each_name() {
    let Some((authority, server, first)) = certified(site("", NGINX_ACME), LONG) else { return };
    let (code, text) = acme(&server.site, "test");
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("  a.test: ok\n") && text.contains("  b.test: ok\n"), "{text}");
    // The name leads to an address where nothing listens.
    authority.rename("b.test", "127.0.0.9");
    let (code, text) = acme(&server.site, "test");
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("  a.test: ok\n"), "{text}");
    let failed = "  b.test: proving control of \"b.test\":";
    assert!(text.contains(failed) && text.contains("127.0.0.9"), "{text}");
    assert_eq!(presented(&server.site, "a.test"), first);
    assert_eq!(server.read("pebble.log").matches("Issued certificate").count(), 1);
}

/// A site whose client tries again after a second. `staging`: its other directory.
fn impatient(staging: &str) -> Site {
    Site::new(format!(
        "events {{}} error_log logs/error.log notice;\n\
         http {{ access_log off; acme_http_port %PORT0%; acme_client_path %DIR%/clients;\n\
         acme_client c https://127.0.0.1:%PORT2%/dir staging_uri={staging} \
           trusted_certificate=%DIR%/ca.pem retry_after_error=1s;\n\
         server {{ listen 127.0.0.1:%PORT0%; listen 127.0.0.1:%PORT1% ssl; server_name a.test; acme c; }} }}\n"
    ))
}

/// After a failed proof the next attempts go to the other directory, until one succeeds.
#[test]
fn attempts_after_a_failed_proof_begin_elsewhere() {
    let Some(program) = pebble() else { return };
    let site = impatient("https://127.0.0.1:%PORT2%/dir?staging");
    let authority = Authority::start(&site, &program, LONG);
    authority.rename("a.test", "127.0.0.9");
    let server = Server::start_on(site);
    server.wait_for_log("no certificate for \"a.test\": proving control of \"a.test\"", 1);
    server.wait_for_log("no certificate for \"a.test\": at the staging directory: proving control of", 2);
    authority.rename("a.test", "127.0.0.1");
    issued(&server.site, "a.test", "");
    let log = server.error_log();
    assert_eq!(log.matches("no certificate for \"a.test\": proving control").count(), 1, "{log}");
}

/// A certificate comes although the other directory is down.
#[test]
fn attempts_do_not_depend_on_the_other_directory() {
    let Some(program) = pebble() else { return };
    let site = impatient("https://127.0.0.1:1/dir");
    let authority = Authority::start(&site, &program, LONG);
    authority.rename("a.test", "127.0.0.9");
    let server = Server::start_on(site);
    server.wait_for_log("no certificate for \"a.test\": proving control of \"a.test\"", 1);
    authority.rename("a.test", "127.0.0.1");
    issued(&server.site, "a.test", "");
}
