//! What clients of all protocols see, and what backends of all protocols see of them.

use super::cases::read;
use super::{Table, table, tables};
use crate::http3;
use serde_json::json;
use std::fmt::Write;

tables! {
    protocols: "protocols" ["--default-ssl-certificate", "default/second"] 12;
    backends: "backends" [] 15;
    identity_of_websockets: "websockets" [] 1;
    forwarded_addresses_of_a_host_that_passes: "passthrough" ["--enable-ssl-passthrough", "--ssl-passthrough-proxy-port", "%FREE0%"] 2;
    proxy_protocol_in_front_of_passthrough: "passthrough-proxy-protocol" ["--enable-ssl-passthrough", "--ssl-passthrough-proxy-port", "%FREE0%"] 2;
    addresses_of_streams: "streams-trusted" ["--tcp-services-configmap", "default/tcp"] 1,
        "streams-untrusted" ["--tcp-services-configmap", "default/tcp"] 1;
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

/// A session of one host does not stand for a certificate at another one, which asks for certificates (CVE-2025-23419).
#[test]
fn sessions_of_other_hosts() {
    let (settings, cases) = read(include_str!("sessions.cases"));
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
    let second = json!({"name": "c1.test", "port": port, "ticket": "first"});
    let told = client.connect_with("second", &table.server, second);
    assert_eq!(told["connected"], true, "{told}");
    assert_eq!(client.ask("second", json!({"authority": "c1.test"}))["status"], 400);
}
