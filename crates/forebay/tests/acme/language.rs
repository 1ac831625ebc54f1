//! Angie's directives, and certificates with keys of different kinds.

use super::*;
use forebay_testkit::{Site, raw, wait_for};

/// A site with Angie's directives. `client`: more parameters; `servers`: servers but the first.
fn angie(client: &str, servers: &str) -> Site {
    Site::new(format!(
        "events {{}} error_log logs/error.log notice;\n\
         http {{ access_log off; acme_http_port %PORT0%; acme_client_path %DIR%/clients;\n\
         acme_client Example https://127.0.0.1:%PORT2%/dir trusted_certificate=%DIR%/ca.pem email=admin@example.com {client};\n\
         server {{ listen 127.0.0.1:%PORT0%; server_name b.test; acme example; location / {{ return 200 here; }} \
           location /api {{ api; }} }}\n\
         {servers} }}\n"
    ))
}

/// One certificate is for the names of all servers of a client.
#[test]
fn a_client_has_one_certificate_for_all_its_servers() {
    let site = angie(
        "",
        "server { listen 127.0.0.1:%PORT1% ssl; server_name a.test ~^x; acme Example; \
         ssl_certificate $acme_cert_example; ssl_certificate_key $acme_cert_key_example; }",
    );
    let Some((_authority, server, first)) = certified(site, LONG) else { return };
    assert!(first.contains("DNS:b.test") && first.contains("DNS:a.test"), "{first}");
    assert!(server.dir().join("clients/Example/account.key").exists());
    let shown = server.get("/api/9/acme");
    for part in ["\"issuer\":\"Example\"", "\"state\":\"ready\"", "\"certificate\":\"valid\""] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
}

/// A server without `ssl_certificate` presents the certificates of its clients.
#[test]
fn a_client_needs_no_other_directive() {
    let site = angie(
        "key_type=rsa key_bits=2048 challenge=alpn",
        "server { listen 127.0.0.1:%PORT1% ssl; server_name a.test; acme example; }",
    );
    let Some((_authority, server)) = started(site, LONG) else { return };
    issued(&server.site, "a.test", "");
    assert!(key_of(&server.site, "a.test", "RSA").contains("rsaEncryption"));
}

/// The form and the algorithm are those that Angie accepts.
#[test]
fn a_client_has_an_external_account() {
    let site = angie(
        "eab=kid-1:HS256:zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W",
        "server { listen 127.0.0.1:%PORT1% ssl; server_name a.test; acme example; }",
    );
    let Some((_authority, server)) = started(site, Settings { external: true, ..LONG }) else { return };
    issued(&server.site, "a.test", "");
}

/// Where no server has the port, the challenge is answered all the same, and nothing else is.
#[test]
fn a_client_answers_where_no_server_listens() {
    let site = Site::new(
        "events {} error_log logs/error.log notice;\n\
         http { access_log off; acme_client_path %DIR%/clients; acme_http_port 127.0.0.1:%PORT3%;\n\
         acme_client c https://127.0.0.1:%PORT2%/dir trusted_certificate=%DIR%/ca.pem;\n\
         server { listen 127.0.0.1:%PORT0% ssl; listen 127.0.0.1:%PORT1% ssl; server_name a.test; acme c; \
           location / { return 200 here; } } }\n",
    );
    let ports = Some((site.addr(3).port(), site.addr(1).port()));
    let Some((_authority, server)) = started(site, Settings { ports, ..LONG }) else { return };
    issued(&server.site, "a.test", "");
    let answer = raw(server.addr(3), b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n");
    assert!(answer.starts_with(b"HTTP/1.1 404 Not Found\r\n"), "{}", answer.escape_ascii());
    // The port goes to a server and back. Each connection is answered, whichever thread had its socket.
    let without = server.read("nginx.conf");
    let with = without.replacen(
        "server {",
        &format!("server {{ listen {}; return 418; }} server {{", server.addr(3)),
        1,
    );
    for (conf, status) in [(&with, "418"), (&without, "404")] {
        server.reload_with(conf);
        let get = || raw(server.addr(3), b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n");
        let is = |answer: &[u8]| answer.starts_with(format!("HTTP/1.1 {status}").as_bytes());
        // Threads take the new configuration one after the other.
        wait_for(status, || {
            let answers: Vec<Vec<u8>> = (0..20).map(|_| get()).collect();
            assert!(answers.iter().all(|a| a.starts_with(b"HTTP/1.1 4")), "{status}: {answers:?}");
            answers.iter().all(|a| is(a)).then_some(())
        });
    }
}

#[test]
fn a_client_that_is_off_asks_for_nothing() {
    let site =
        angie("enabled=off", "server { listen 127.0.0.1:%PORT1% ssl; server_name a.test; acme example; }");
    let Some((_authority, server)) = started(site, LONG) else { return };
    let shown = wait_for("the state", || Some(server.get("/api/9/acme")).filter(|s| s.contains("disabled")));
    assert!(
        shown.contains("\"certificate\":\"missing\"") && shown.contains("\"next_attempt\":null"),
        "{shown}"
    );
    assert!(presented(&server.site, "a.test").contains("no certificate yet"));
}

/// Algorithm of the key of the certificate for a client that accepts only signatures by this kind of key.
fn key_of(site: &Site, name: &str, kind: &str) -> String {
    let connect = site.addr(1).to_string();
    let algorithms = if kind == "RSA" { "rsa_pss_rsae_sha256" } else { "ecdsa_secp256r1_sha256" };
    let shown = Command::new("sh")
        .args([
            "-c",
            "openssl s_client -connect \"$1\" -servername \"$2\" -sigalgs \"$3\" </dev/null 2>/dev/null | \
                      openssl x509 -noout -text",
            "sh",
            &connect,
            name,
            algorithms,
        ])
        .stderr(Stdio::null())
        .output()
        .expect("openssl");
    String::from_utf8_lossy(&shown.stdout).into_owned()
}

/// Both certificates are got, and each client gets the one that it can verify.
#[test]
fn rsa_and_ecdsa_side_by_side() {
    let both = "acme_certificate pebble key=rsa; acme_certificate pebble key=ecdsa";
    let site = site("", &NGINX_ACME.replace("acme_certificate pebble", both));
    let Some((_authority, server)) = started(site, LONG) else { return };
    let of = |kind: &str| Some(key_of(&server.site, "a.test", kind)).filter(|text| text.contains("Pebble"));
    assert!(wait_for("RSA", || of("RSA")).contains("rsaEncryption"));
    assert!(wait_for("ECDSA", || of("ECDSA")).contains("id-ecPublicKey"));
}

/// Servers of the stream block share the certificate of the client.
#[test]
fn a_client_serves_the_stream_block_too() {
    let site = Site::new(
        "events {} error_log logs/error.log notice;\n\
         http { access_log off; acme_http_port %PORT0%; acme_client_path %DIR%/clients;\n\
         acme_client c https://127.0.0.1:%PORT2%/dir trusted_certificate=%DIR%/ca.pem;\n\
         server { listen 127.0.0.1:%PORT0%; server_name a.test; acme c; } }\n\
         stream { server { listen 127.0.0.1:%PORT1% ssl; server_name b.test ~x; acme c; return here; }\n\
         server { listen 127.0.0.1:%PORT3% ssl; ssl_certificate $acme_cert_c; ssl_certificate_key $acme_cert_key_c; \
           return there; } }\n",
    );
    let Some((_authority, server)) = started(site, LONG) else { return };
    let first = issued(&server.site, "b.test", "");
    assert!(first.contains("DNS:a.test") && first.contains("DNS:b.test"), "{first}");
    assert_eq!(presented_at(server.addr(3), "x.test"), first);
    // A challenge in a handshake is answered there, too.
    let conf = server
        .site
        .read("nginx.conf")
        .replace("ca.pem;", "ca.pem challenge=alpn;")
        .replace("b.test", "c.test");
    server.reload_with(conf);
    assert!(issued(&server.site, "c.test", &first).contains("DNS:c.test"));
}

#[test]
fn two_clients_side_by_side() {
    let site = Site::new(
        "events {} error_log logs/error.log notice;\n\
         http { access_log off; acme_http_port %PORT0%; acme_client_path %DIR%/clients;\n\
         acme_client rsa https://127.0.0.1:%PORT2%/dir trusted_certificate=%DIR%/ca.pem key_type=rsa;\n\
         acme_client ecdsa https://127.0.0.1:%PORT2%/dir trusted_certificate=%DIR%/ca.pem;\n\
         server { listen 127.0.0.1:%PORT0%; listen 127.0.0.1:%PORT1% ssl; server_name a.test; acme rsa; acme ecdsa; \
           ssl_certificate $acme_cert_rsa; ssl_certificate_key $acme_cert_key_rsa; \
           ssl_certificate $acme_cert_ecdsa; ssl_certificate_key $acme_cert_key_ecdsa; } }\n",
    );
    let Some((_authority, server)) = started(site, LONG) else { return };
    let of = |kind: &str| Some(key_of(&server.site, "a.test", kind)).filter(|text| text.contains("Pebble"));
    assert!(wait_for("RSA", || of("RSA")).contains("rsaEncryption"));
    assert!(wait_for("ECDSA", || of("ECDSA")).contains("id-ecPublicKey"));
}
