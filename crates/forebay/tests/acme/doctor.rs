//! `forebay doctor` on certificates by ACME, with a name server of the test.

use super::*;
use forebay_testkit::{Server, Site, program};
use std::net::UdpSocket;

/// Types of records.
const A: u16 = 1;
const CAA: u16 = 257;

/// Answer of the name server: a response code and the data of records.
type Answer = (u8, Vec<Vec<u8>>);

/// Starts a name server. `answer`: the answer about a name and a type; `None` keeps silent.
fn name_server(answer: fn(&str, u16) -> Option<Answer>) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("bind");
    let at = socket.local_addr().expect("bound");
    std::thread::spawn(move || {
        let mut buf = [0; 512];
        while let Ok((n, from)) = socket.recv_from(&mut buf) {
            let question = &buf[12..n];
            let (name, rest) = name_of(question);
            let Some((code, records)) = answer(&name, u16::from_be_bytes([rest[0], rest[1]])) else {
                continue;
            };
            let mut m = vec![buf[0], buf[1], 0x81, 0x80 | code, 0, 1, 0, records.len() as u8, 0, 0, 0, 0];
            m.extend_from_slice(question);
            for data in records {
                m.extend([0xc0, 12, rest[0], rest[1], 0, 1, 0, 0, 0, 60, 0, data.len() as u8]);
                m.extend(data);
            }
            let _ = socket.send_to(&m, from);
        }
    });
    at
}

/// Returns the name of a question and what follows it.
fn name_of(mut question: &[u8]) -> (String, &[u8]) {
    let mut labels = Vec::new();
    while let Some((length @ 1.., rest)) = question.split_first() {
        let (label, rest) = rest.split_at(usize::from(*length));
        labels.push(String::from_utf8_lossy(label).into_owned());
        question = rest;
    }
    (labels.join("."), &question[1..])
}

/// A site with certificates of Let's Encrypt for these names.
fn wanting(dns: SocketAddr, listens: &str, names: &str) -> Site {
    Site::new(format!(
        "events {{}} pid logs/nginx.pid; error_log logs/error.log notice;\n\
         http {{ access_log off; resolver {dns};\n\
         acme_issuer le {{ uri https://acme-v02.api.letsencrypt.org/directory; accept_terms_of_service; state_path %DIR%/state; }}\n\
         server {{ {listens} server_name {names};\n\
         acme_certificate le;\n\
         ssl_certificate $acme_certificate; ssl_certificate_key $acme_certificate_key; }} }}\n"
    ))
}

/// Runs `forebay doctor` on a site. Returns its output.
fn doctor(site: &Site, args: &[&str]) -> String {
    let mut command = Command::new(program());
    command.args(["doctor", "-p"]).arg(site.dir()).args(["-c", "nginx.conf"]).args(args);
    String::from_utf8_lossy(&command.output().expect("forebay doctor").stdout).into_owned()
}

/// Returns rules and texts of the findings about ACME.
fn findings(site: &Site, more: &[&str]) -> Vec<(String, String)> {
    let json = doctor(site, &[&["--format", "json"], more].concat());
    let list: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let text = |f: &serde_json::Value, key: &str| f[key].as_str().unwrap_or_default().to_owned();
    let all = list.as_array().expect("a list").iter().map(|f| (text(f, "rule"), text(f, "message")));
    all.filter(|(rule, _)| rule.starts_with("acme-") || rule == "syntax").collect()
}

#[test]
fn doctor_asks_dns_about_the_names() {
    let dns = name_server(|name, kind| match (name, kind) {
        ("here.a.example", A) => Some((0, vec![vec![127, 0, 0, 1]])),
        ("far.b.example", A) => Some((0, vec![vec![192, 0, 2, 1]])),
        ("gone.a.example", _) => Some((3, Vec::new())),
        // The nearest parent with records decides.
        ("a.example", CAA) => Some((0, vec![b"\x00\x05issueletsencrypt.org".to_vec()])),
        ("b.example", CAA) => Some((0, vec![b"\x00\x05issueca.example".to_vec()])),
        ("example", CAA) => Some((0, vec![b"\x00\x05issue;".to_vec()])),
        _ => Some((0, Vec::new())),
    });
    let site = wanting(dns, "listen 127.0.0.1:%PORT0%;", "here.a.example far.b.example gone.a.example");
    let mut found = findings(&site, &["--here"]);
    found.sort();
    let port = "nothing listens on port 80 without TLS, where the authority looks for HTTP-01";
    assert_eq!(
        found
            .iter()
            .map(|(rule, text)| (rule.as_str(), text.split(", no ").next().unwrap_or_default()))
            .collect::<Vec<_>>(),
        [
            ("acme-caa", "\"far.b.example\": CAA has issue \"ca.example\""),
            ("acme-name-elsewhere", "\"far.b.example\" leads to 192.0.2.1"),
            ("acme-name-unknown", "\"gone.a.example\" has no address"),
            ("acme-port", port),
        ]
    );
    // Without the machine nobody is asked.
    assert_eq!(findings(&site, &["--no-host"]), []);
}

#[test]
fn doctor_says_why_it_does_not_look_at_certificates() {
    let site = wanting("127.0.0.1:9".parse().expect("an address"), "listen 80;", "*.a.example");
    let text = doctor(&site, &["--here"]);
    let line =
        text.lines().find(|l| l.starts_with("certificates by ACME were not looked at: ")).expect("a line");
    assert!(line.contains("only a challenge by DNS proves it"), "{line}");
}

#[test]
fn doctor_does_not_wait_for_name_servers() {
    let site = wanting(name_server(|_, _| None), "listen 80;", "a.example b.example c.example");
    let begin = Instant::now();
    let found = findings(&site, &["--here"]);
    let took = begin.elapsed();
    assert_eq!(found, [("acme-no-resolver".to_owned(), "no name server answers".to_owned())]);
    // Four seconds for all questions; the rest is for a machine with other work.
    assert!(took < Duration::from_secs(15), "{took:?}");
}

#[test]
fn doctor_connects_to_the_port_of_the_challenge() {
    let dns = name_server(|_, kind| Some((0, if kind == A { vec![vec![127, 0, 0, 1]] } else { Vec::new() })));
    let conf = |port: &str| {
        format!(
            "# nothing at %PORT2%\nevents {{}} pid logs/nginx.pid; error_log logs/error.log notice;\n\
             http {{ access_log off; resolver {dns}; acme_http_port {port};\n\
             acme_issuer le {{ uri https://127.0.0.1:9/dir; accept_terms_of_service; state_path off; }}\n\
             server {{ listen 127.0.0.1:{port}; listen 127.0.0.1:%PORT1% ssl; server_name a.example; acme_certificate le;\n\
             ssl_certificate $acme_certificate; ssl_certificate_key $acme_certificate_key; }} }}\n"
        )
    };
    let server = Server::start_on(Site::new(conf("%PORT0%")));
    assert_eq!(findings(&server.site, &[]), []);
    // The server does not have the new configuration yet.
    server.write("nginx.conf", conf("%PORT2%"));
    let found = findings(&server.site, &[]);
    let text = format!("no connection to {}: 111: Connection refused", server.addr(2));
    assert_eq!(found, [("acme-port-closed".to_owned(), text)]);
}
