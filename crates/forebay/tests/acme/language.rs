//! Angie's directives, and certificates with keys of different kinds.

use super::*;
use forebay_testkit::{Site, ask, wait_for};

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

/// A server with a client and nothing else.
const BARE: &str = "server { listen 127.0.0.1:%PORT1% ssl; server_name a.test; acme example; }";

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
    let Some((_authority, server)) = started(angie("key_type=rsa key_bits=2048 challenge=alpn", BARE), LONG)
    else {
        return;
    };
    assert!(issued_with_key(&server, "a.test", "RSA").contains("rsaEncryption"));
}

/// The form and the algorithm are those that Angie accepts.
#[test]
fn a_client_has_an_external_account() {
    let site =
        angie("eab=kid-1:HS256:zWNDZM6eQGHWpSRTPal5eIUYFTu7EajVIoguysqZ9wG44nMEtx3MUAsUDkMTQ12W", BARE);
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
    let get = || ask(server.addr(3), b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: close\r\n\r\n");
    let answer = get();
    assert!(answer.starts_with("HTTP/1.1 404 Not Found\r\n"), "{answer}");
    // The port goes to a server and back. Each connection is answered, whichever thread had its socket.
    let without = server.read("nginx.conf");
    let with = without.replacen(
        "server {",
        &format!("server {{ listen {}; return 418; }} server {{", server.addr(3)),
        1,
    );
    for (conf, status) in [(&with, "HTTP/1.1 418"), (&without, "HTTP/1.1 404")] {
        server.reload_with(conf);
        // Threads take the new configuration one after the other.
        wait_until(status, || {
            let answers: Vec<String> = (0..20).map(|_| get()).collect();
            assert!(answers.iter().all(|a| a.starts_with("HTTP/1.1 4")), "{status}: {answers:?}");
            answers.iter().all(|a| a.starts_with(status))
        });
    }
}

#[test]
fn a_client_that_is_off_asks_for_nothing() {
    let Some((_authority, server)) = started(angie("enabled=off", BARE), LONG) else { return };
    let shown = wait_for("the state", || Some(server.get("/api/9/acme")).filter(|s| s.contains("disabled")));
    let [missing, never] = ["\"certificate\":\"missing\"", "\"next_attempt\":null"];
    assert!(shown.contains(missing) && shown.contains(never), "{shown}");
    assert!(presented(&server.site, "a.test").contains("no certificate yet"));
}

/// Asserts that each client gets the certificate that it can verify.
fn assert_both_keys(server: &Server) {
    assert!(issued_with_key(server, "a.test", "RSA").contains("rsaEncryption"));
    assert!(issued_with_key(server, "a.test", "ECDSA").contains("id-ecPublicKey"));
}

/// Both certificates are got, and each client gets the one that it can verify.
#[test]
fn rsa_and_ecdsa_side_by_side() {
    let both = "acme_certificate pebble key=rsa; acme_certificate pebble key=ecdsa";
    let site = site("", &NGINX_ACME.replace("acme_certificate pebble", both));
    let Some((_authority, server)) = started(site, LONG) else { return };
    assert_both_keys(&server);
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
    change(&server, "ca.pem;", "ca.pem challenge=alpn;");
    change(&server, "b.test", "c.test");
    server.reload();
    assert!(issued(&server.site, "c.test", &first).contains("DNS:c.test"));
}

#[test]
fn two_clients_side_by_side() {
    let client = "https://127.0.0.1:%PORT2%/dir trusted_certificate=%DIR%/ca.pem";
    let site = Site::new(format!(
        "events {{}} error_log logs/error.log notice;\n\
         http {{ access_log off; acme_http_port %PORT0%; acme_client_path %DIR%/clients;\n\
         acme_client rsa {client} key_type=rsa; acme_client ecdsa {client};\n\
         server {{ listen 127.0.0.1:%PORT0%; listen 127.0.0.1:%PORT1% ssl; server_name a.test; acme rsa; acme ecdsa; \
           ssl_certificate $acme_cert_rsa; ssl_certificate_key $acme_cert_key_rsa; \
           ssl_certificate $acme_cert_ecdsa; ssl_certificate_key $acme_cert_key_ecdsa; }} }}\n"
    ));
    let Some((_authority, server)) = started(site, LONG) else { return };
    assert_both_keys(&server);
}
