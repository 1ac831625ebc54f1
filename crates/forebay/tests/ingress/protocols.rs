//! What clients of all protocols see, and what backends of all protocols see of them.

use super::cases::read;
use super::{Table, table};
use crate::http3;
use forebay_testkit::free_pair;
use serde_json::json;
use std::fmt::Write;

#[test]
fn protocols() {
    let text = include_str!("protocols.cases");
    assert!(table(text, &["--default-ssl-certificate", "default/second"]) >= 12);
}

#[test]
fn backends() {
    assert!(table(include_str!("backends.cases"), &[]) >= 15);
}

/// Fields of which the server is the author, with what they are for a request without a certificate and with one. `None`: any text but
/// the client's; empty: none.
const OWN: [(&str, Option<[&str; 2]>); 17] = [
    ("ssl-client-verify", Some(["NONE", "SUCCESS"])),
    ("ssl-client-subject-dn", Some(["", "CN=client"])),
    ("ssl-client-issuer-dn", Some(["", "CN=client"])),
    ("ssl-client-cert", None),
    ("X-Real-IP", Some(["127.0.0.1"; 2])),
    ("X-Forwarded-For", Some(["127.0.0.1"; 2])),
    ("X-Forwarded-Host", Some(["{host}"; 2])),
    ("X-Forwarded-Port", Some(["443"; 2])),
    ("X-Forwarded-Proto", Some(["https"; 2])),
    ("X-Forwarded-Scheme", Some(["https"; 2])),
    ("X-Scheme", Some(["https"; 2])),
    ("X-User", Some(["ann"; 2])),
    ("X-Secret", Some(["s"; 2])),
    ("X-Nothing", None),
    ("Proxy", None),
    ("Forwarded", None),
    ("Host", Some(["{host}"; 2])),
];

/// Ways to write the name of a field. Names of HTTP/2 and HTTP/3 are in small letters.
fn spellings(name: &str, version: &str) -> Vec<String> {
    let small = name.to_ascii_lowercase();
    let mut all = vec![small.clone(), small.clone(), small.replace('-', "_"), small.replacen('-', "_", 1)];
    if version == "1.1" {
        let mixed = |(i, c): (usize, char)| if i % 2 == 0 { c.to_ascii_uppercase() } else { c };
        all.extend([name.to_owned(), name.to_ascii_uppercase().replace('-', "_")]);
        all.push(small.char_indices().map(mixed).collect());
    }
    all
}

/// Writes the requests of a case: over each protocol, with a certificate and without.
fn requests(backend: &str, text: &mut String) {
    for version in ["1.1", "2", "3"] {
        for (index, certificate) in ["", "certificate: client\n"].into_iter().enumerate() {
            let _ = write!(text, ">> GET /x\nversion: {version}\n{certificate}x-pass: yes\n");
            for (name, _) in OWN.iter().filter(|(name, _)| *name != "Host") {
                let value = match *name {
                    // They go on under other names.
                    "X-Forwarded-For" => "9.9.9.9",
                    "X-Forwarded-Host" => "outer.test",
                    _ => "forged",
                };
                for spelling in spellings(name, version) {
                    let _ = writeln!(text, "{spelling}: {value}");
                }
            }
            if version == "1.1" {
                // They are fields of this connection alone, a client says.
                text.push_str("Connection: close, X-Real-IP, ssl-client-verify, X-User, X-Forwarded-Proto\n");
            }
            let _ = write!(text, "< 200 GET /x\nnever forged\n");
            for (name, values) in OWN {
                let name = match backend {
                    "fast" => format!("HTTP_{}", name.to_ascii_uppercase().replace('-', "_")),
                    _ => name.to_owned(),
                };
                match values.map(|values| values[index]) {
                    Some("") => drop(writeln!(text, "saw !{name}")),
                    Some(value) => drop(writeln!(text, "saw {name}: {value}")),
                    None => {}
                }
            }
        }
    }
}

/// No client of any protocol makes any backend take it for somebody else.
#[test]
fn identity_over_all_protocols() {
    let kinds =
        [("HTTP", "web"), ("https", "encrypted"), ("GRPC", "grpc"), ("grpcs", "encrypted"), ("FCGI", "fast")];
    let settings = ["", "enable-underscores-in-headers: true\n", "ignore-invalid-headers: false\n"];
    for own in settings {
        let mut text = format!("access-log-path: /dev/null\nuse-http3: true\n{own}\n");
        for (protocol, service) in kinds {
            let _ = write!(
                text,
                "== {protocol} {own}\n/ Prefix {service}\ntls\n@backend-protocol: {protocol}\n@ssl-redirect: false\n\
                 @auth-tls-secret: default/tls\n@auth-tls-verify-client: optional\n\
                 @auth-url: http://auth.internal:%auth%/check\n@auth-response-headers: X-User, X-Secret, X-Nothing\n"
            );
            requests(service, &mut text);
        }
        assert_eq!(table(&text, &[]), kinds.len());
    }
}

/// WebSockets have the server's fields.
#[test]
fn identity_of_websockets() {
    let own = "saw X-Real-IP: 127.0.0.1\nsaw X-Forwarded-For: 127.0.0.1\nsaw X-Forwarded-Proto: https\nsaw Host: {host}\n\
               saw X-User: ann\nsaw ssl-client-verify: NONE\nnever forged\nsaw Upgrade: websocket\n";
    let forged = "x-pass: yes\nx-real-ip: forged\nx-forwarded-proto: forged\nx-user: forged\nssl-client-verify: forged\n\
                  x-forwarded-for: 9.9.9.9\n";
    let key = "sec-websocket-version: 13\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\n";
    let text = format!(
        "access-log-path: /dev/null\nuse-http3: true\n\n== a WebSocket\n/ Prefix web\ntls\n@ssl-redirect: false\n\
         @auth-tls-secret: default/tls\n@auth-tls-verify-client: optional\n\
         @auth-url: http://auth.internal:%auth%/check\n@auth-response-headers: X-User\n\
         >> GET /chat\nConnection: Upgrade\nUpgrade: websocket\n{key}{forged}< 101 web GET /chat\n{own}\
         >> CONNECT /chat\nversion: 2\n:protocol: websocket\nsec-websocket-version: 13\n{forged}< 200 web GET /chat\n{own}\
         >> GET /chat\nConnection: Upgrade, close\nUpgrade: websocket\n{key}< 401\n\
         >> CONNECT /chat\nversion: 2\n:protocol: websocket\nsec-websocket-version: 13\n< 401\n\
         >> CONNECT /chat\nversion: 2\n:protocol: websocket\nHost: nobody.test\nsni: {{host}}\n< 404\n"
    );
    assert_eq!(table(&text, &[]), 1);
}

/// Where TLS of a host passes, its requests at the port for HTTP have their addresses, and other hosts, too.
#[test]
fn forwarded_addresses_of_a_host_that_passes() {
    let seen = "saw X-Forwarded-For: 1.2.3.4\nsaw X-Real-IP: 1.2.3.4\n";
    let own = format!("{seen}saw X-Forwarded-Proto: https\nsaw X-Forwarded-Port: 443\n");
    let text = format!(
        "access-log-path: /dev/null\nuse-forwarded-headers: true\nuse-http3: true\n\n\
         == a host that passes\n/ Prefix encrypted\n@ssl-passthrough: true\n@backend-protocol: HTTPS\n@ssl-redirect: false\n\
         > GET /\nX-Forwarded-For: 1.2.3.4\n< 200 web\n{seen}\
         >> GET /\nversion: 2\nx-forwarded-for: 1.2.3.4\n< 200 certificate: backend\nsaw X-Tls-Name: {{host}}\n\
         == another one\n/ Prefix web\ntls\n@ssl-redirect: false\n> GET /\nX-Forwarded-For: 1.2.3.4\n< 200 web\n{seen}\
         >> GET /\nX-Forwarded-For: 1.2.3.4\n< 200 web\n{own}\
         >> GET /\nversion: 2\nx-forwarded-for: 1.2.3.4\n< 200 web\n{own}\
         >> GET /\nversion: 3\nx-forwarded-for: 1.2.3.4\n< 200 web\n{own}"
    );
    let port = free_pair().to_string();
    assert_eq!(table(&text, &["--enable-ssl-passthrough", "--ssl-passthrough-proxy-port", &port]), 2);
}

/// A PROXY header in front of passthrough tells the address. The port at HTTPS is that of the Service, since the stream block writes a
/// header of its own.
#[test]
fn proxy_protocol_in_front_of_passthrough() {
    let header = |port: u16| format!("proxy-protocol: TCP4 203.0.113.7 203.0.113.8 5000 {port}\n");
    let seen = "saw X-Real-IP: 203.0.113.7\nsaw X-Forwarded-For: 203.0.113.7\nsaw X-Forwarded-Proto: https\n";
    let text = format!(
        "access-log-path: /dev/null\nuse-proxy-protocol: true\n\n\
         == a host\n/ Prefix web\ntls\n\
         >> GET /\n{0}< 200 web\n{seen}saw X-Forwarded-Port: 443\n\
         >> GET /\nversion: 2\n{1}< 200 web\n{seen}saw X-Forwarded-Port: 443\n\
         > GET /\n{0}< 200 web\n{seen}saw X-Forwarded-Port: 443\n\
         > GET /\n{2}< 308\n\
         == a host that passes\n/ Prefix encrypted\n@ssl-passthrough: true\n@backend-protocol: HTTPS\n\
         >> GET /\n{1}< 200 certificate: backend\n",
        header(443),
        header(1234),
        header(80)
    );
    let port = free_pair().to_string();
    assert_eq!(table(&text, &["--enable-ssl-passthrough", "--ssl-passthrough-proxy-port", &port]), 2);
}

/// A stream service tells its backend the address of a PROXY header, if who sends it is trusted.
#[test]
fn addresses_of_streams() {
    for (trusted, seen) in [("127.0.0.0/8", "203.0.113.7"), ("10.0.0.0/8", "127.0.0.1")] {
        let map = |name: &str| {
            format!(
                "object {{\"apiVersion\":\"v1\",\"kind\":\"ConfigMap\",\"metadata\":{{\"name\":\"{name}\",\"namespace\":\"default\"}},\
                 \"data\":{{\"%FREE1%\":\"default/api:80:PROXY:PROXY\",\"%FREE2%\":\"default/web:80:PROXY\"}}}}"
            )
        };
        let text = format!(
            "access-log-path: /dev/null\nenable-real-ip: true\nproxy-real-ip-cidr: {trusted}\n\n== a port\n/ Prefix other\n{}\n\
             > GET /x\nport: %FREE1%\nproxy-protocol: TCP4 203.0.113.7 203.0.113.8 5000 6000\n< 200 api\n\
             at api PROXY TCP4 {seen} \n\
             > GET /y\nport: %FREE2%\nproxy-protocol: TCP4 203.0.113.7 203.0.113.8 5000 6000\n< 200 web GET /y\nat web GET /y\n\
             > GET /z\nport: %FREE2%\n< closed\n",
            map("tcp")
        );
        assert_eq!(table(&text, &["--tcp-services-configmap", "default/tcp"]), 1);
    }
}

/// A session of one host does not stand for a certificate at another one, which asks for certificates (CVE-2025-23419).
#[test]
fn sessions_of_other_hosts() {
    let text = "access-log-path: /dev/null\nuse-http3: true\nssl-session-tickets: true\nssl-protocols: TLSv1.2 TLSv1.3\n\n\
                == a host for all\n/ Prefix web\ntls\n\
                == a host with certificates\n/ Prefix api\ntls\n@auth-tls-secret: default/tls\n\
                == one that may have them\n/ Prefix other\ntls\n@auth-tls-secret: default/other2\n@auth-tls-verify-client: optional_no_ca\n\
                object {\"apiVersion\":\"v1\",\"kind\":\"Secret\",\"metadata\":{\"name\":\"other2\",\"namespace\":\"default\"},\
                \"stringData\":{\"ca.crt\":\"%BACKEND.CRT%\"}}\n";
    let (settings, cases) = read(text);
    let (table, _) = Table::start(&settings, &cases, &[]);
    let ask = |host: &str, more: &str| {
        let request = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        forebay_testkit::s_client(&table.server, 1, &format!("-servername {host} {more}"), &request)
    };
    for version in ["-tls1_2", "-tls1_3"] {
        for (from, own) in [("c0.test", ""), ("c2.test", "-cert client.crt -key client.key")] {
            let first = ask(from, &format!("{version} {own} -sess_out session"));
            assert!(first.contains("HTTP/1.1 200"), "{version} {from}: {first}");
            // The session is one that can go on.
            let same = ask(from, &format!("{version} {own} -sess_in session"));
            assert!(same.contains("\nReused, ") && same.contains("HTTP/1.1 200"), "{version} {from}: {same}");
            let answer = ask("c1.test", &format!("{version} -sess_in session"));
            assert!(!answer.contains("\napi GET"), "{version} {from}: {answer}");
        }
    }
    let Some(mut client) = http3::Client::start() else { return };
    let port = table.server.addr(1).port();
    client.connect_with("first", &table.server, json!({"name": "c0.test", "port": port}));
    assert_eq!(client.ask("first", json!({"authority": "c0.test"}))["status"], 200);
    let told = client.connect_with(
        "second",
        &table.server,
        json!({"name": "c1.test", "port": port, "ticket": "first"}),
    );
    assert_eq!(told["connected"], true, "{told}");
    assert_eq!(client.ask("second", json!({"authority": "c1.test"}))["status"], 400);
}
